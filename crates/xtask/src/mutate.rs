//! `cargo xtask mutate`: measures how many faults the tests notice. Mutations of controllers, data path and agent are drawn by a
//! seed. Each is made in a copy of the project, and counts as caught if the tests of its crate fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evenkeel_labs::base::build;
use evenkeel_labs::base::process;
use evenkeel_labs::base::record::Page;

/// Time limit of a crate's tests with a mutation; the limit of a whole suite is four times as long. A test that does not end
/// counts as having caught the mutation.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// Packages and source folders of the three areas controllers, data path and agent. Mutations are drawn from the areas in turn.
const AREAS: [&[(&str, &str)]; 3] = [
    &[("evenkeel-control", "crates/control/src")],
    &[("evenkeel-server", "crates/server/src"), ("evenkeel-nbd", "crates/nbd/src")],
    &[("evenkeel-guard", "crates/guard/src")],
];

/// Arguments of `cargo xtask mutate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Decides which mutations are drawn, in which order.
    #[arg(long, default_value_t = 20)]
    seed: u64,
    /// Number of mutations, besides those that do not compile and those that are skipped.
    #[arg(long, default_value_t = 30)]
    count: usize,
    /// Numbers of drawn mutations to skip, because they change no behaviour that a test could notice.
    #[arg(long, value_delimiter = ',')]
    equivalent: Vec<usize>,
    /// Test only the drawn mutations with these numbers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<usize>,
    /// Print the drawn mutations, and test none.
    #[arg(long)]
    list: bool,
    /// Judge by everything that `cargo xtask test` runs, with these arguments, instead of the crate's own tests.
    #[arg(long, num_args = 0.., allow_hyphen_values = true)]
    suite: Option<Vec<String>>,
    /// Write the verdicts, with command, seed, date, commit and machine, to docs/results/mutations.md.
    #[arg(long, conflicts_with_all = ["list", "only"])]
    record: bool,
}

impl Args {
    /// The page of results that this run writes; `None` without `--record`.
    pub(crate) fn page(&self) -> Option<Page> {
        let what = "Faults in controllers, data path and agent, drawn by the seed: each is caught if a test fails.";
        let page =
            Page { name: "mutations".into(), title: "Mutations".into(), what: what.into(), seed: Some(self.seed) };
        self.record.then_some(page)
    }
}

/// Kind of the change of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `a < b` becomes `a >= b`.
    InequalityTurned,
    /// `a + b` becomes `a`.
    TermDropped,
    /// `a.min(b)` becomes `a`.
    LimitIgnored,
}

const KINDS: [Kind; 3] = [Kind::InequalityTurned, Kind::TermDropped, Kind::LimitIgnored];

/// A mutation: one changed line in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mutation {
    kind: Kind,
    package: &'static str,
    file: PathBuf,
    /// Index of the line in the file, from 0.
    line: usize,
    before: String,
    after: String,
}

impl Mutation {
    fn describe(&self) -> String {
        let (before, after) = (self.before.trim(), self.after.trim());
        format!("{:?}, {}:{}: `{before}` -> `{after}`", self.kind, self.file.display(), self.line + 1)
    }
}

/// Runs `cargo xtask mutate`. True if no mutation survived.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = build::workspace();
    let mut places = Vec::new();
    for area in AREAS {
        let mut found = Vec::new();
        for (package, folder) in area {
            sources(&root, Path::new(folder), &mut |file, text| found.extend(places_in(package, file, text)))?;
        }
        places.push(found);
    }
    let tree = build::target_dir()?.join("xtask/mutate");
    if !args.list {
        copy(&root, &tree)?;
    }
    println!("seed {}; {:?} mutations", args.seed, places.iter().map(Vec::len).collect::<Vec<_>>());
    // Packages whose tests pass without a mutation; otherwise each would count as caught.
    let mut sound = std::collections::BTreeSet::new();
    let (mut random, mut made, mut survivors) = (Random(args.seed), 0, Vec::new());
    for number in 1.. {
        if made == args.count {
            break;
        }
        let of = &mut places[number % AREAS.len()];
        let kind = KINDS[random.below(KINDS.len())];
        let of_kind: Vec<usize> = (0..of.len()).filter(|&i| of[i].kind == kind).collect();
        ensure!(!of_kind.is_empty(), "no {kind:?} mutation is left to draw: lower --count");
        let mutation = of.swap_remove(of_kind[random.below(of_kind.len())]);
        if args.equivalent.contains(&number) {
            println!("{number}: equivalent: {}", mutation.describe());
            continue;
        }
        if args.list || !args.only.is_empty() && !args.only.contains(&number) {
            // Those that do not compile are only known by trying.
            made += 1;
            if args.list {
                println!("{number}: {}", mutation.describe());
            }
            continue;
        }
        if sound.insert(mutation.package) {
            let (mut command, name) = (tests_of(&tree, mutation.package), mutation.package);
            let (status, _) = process::stream(&mut command, 4 * LIMIT, |_| {})?;
            ensure!(status.success(), "the tests of {name} fail without a mutation: run `cargo test -p {name}` first");
        }
        let begun = Instant::now();
        let verdict = judge(&tree, &mutation, args.suite.as_deref())?;
        made += usize::from(verdict != Verdict::DoesNotCompile);
        println!("{number}: {verdict:?} ({:.0} s): {}", begun.elapsed().as_secs_f64(), mutation.describe());
        if verdict == Verdict::Survived {
            survivors.push(number);
        }
    }
    println!("{made} mutations, {} survived: {survivors:?}", survivors.len());
    Ok(survivors.is_empty())
}

/// Verdict on a mutation: caught by a test, survived all tests, or does not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Caught { by: String },
    Survived,
    DoesNotCompile,
}

fn judge(tree: &Path, mutation: &Mutation, suite: Option<&[String]>) -> Result<Verdict> {
    let Mutation { file, line, before, after, .. } = mutation;
    let change = |found: &str| (found == before).then(|| after.clone());
    with_line(tree, file, *line, change, || tests(tree, mutation, suite))
}

/// Does `work` while a line of a file in the copy `tree` is as `change` makes it; `line` is its index in the file, from 0.
///
/// # Errors
/// When there is no such line, or `change` does not know it.
pub(crate) fn with_line<T>(
    tree: &Path,
    file: &Path,
    line: usize,
    change: impl FnOnce(&str) -> Option<String>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let path = tree.join(file);
    let whole = std::fs::read_to_string(&path)?;
    let mut lines: Vec<&str> = whole.lines().collect();
    let changed = lines.get(line).and_then(|found| change(found));
    let differs = || format!("{} differs from its committed copy: commit it first", file.display());
    let changed = changed.with_context(differs)?;
    lines[line] = &changed;
    std::fs::write(&path, lines.join("\n") + "\n")?;
    let outcome = work();
    std::fs::write(&path, whole)?;
    outcome
}

/// A cargo command that runs in the copy `tree` of the project, with the copy's own target folder.
pub(crate) fn cargo(tree: &Path, words: &[&str]) -> Command {
    let mut cargo = build::cargo();
    cargo.args(words).current_dir(tree).env("CARGO_TARGET_DIR", tree.join("target"));
    cargo
}

fn tests_of(tree: &Path, package: &str) -> Command {
    cargo(tree, &["test", "--package", package])
}

fn tests(tree: &Path, mutation: &Mutation, suite: Option<&[String]>) -> Result<Verdict> {
    let build = ["test", "--package", mutation.package, "--no-run"];
    if !process::stream(&mut cargo(tree, &build), 4 * LIMIT, |_| {})?.0.success() {
        return Ok(Verdict::DoesNotCompile);
    }
    let mut command = match suite {
        None => tests_of(tree, mutation.package),
        Some(words) => {
            cargo(tree, &[&["xtask", "test"][..], &words.iter().map(String::as_str).collect::<Vec<_>>()].concat())
        }
    };
    let mut by = String::new();
    let limit = if suite.is_some() { 4 * LIMIT } else { LIMIT };
    let ended = process::stream(&mut command, limit, |line| {
        let failed = line.strip_prefix("test ").and_then(|test| test.strip_suffix(" ... FAILED"));
        if let Some(name) = failed.or_else(|| line.strip_prefix("failed: ")).filter(|_| by.is_empty()) {
            name.clone_into(&mut by);
        }
    });
    Ok(match ended {
        Ok((status, _)) if status.success() => Verdict::Survived,
        Ok(_) => Verdict::Caught { by },
        Err(_) => Verdict::Caught { by: "its time".into() },
    })
}

/// Updates the copy `tree` to the committed state of the project, and keeps the copy's compiled files.
pub(crate) fn copy(root: &Path, tree: &Path) -> Result<()> {
    let git = |folder: &Path, words: &[&str]| {
        let mut git = Command::new("git");
        process::output(git.arg("-C").arg(folder).args(words))
    };
    if !tree.join(".git").exists() {
        let to = tree.to_string_lossy();
        git(root, &["clone", "--quiet", "--local", ".", &to])?;
    }
    git(tree, &["fetch", "--quiet", "origin", "HEAD"])?;
    git(tree, &["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"]).map(drop)
}

/// Calls `take` with path and text of every source file below `folder`, sorted by name, except files of tests.
fn sources(root: &Path, folder: &Path, take: &mut impl FnMut(&Path, &str)) -> Result<()> {
    let path = root.join(folder);
    let read = std::fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut names = read.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let (inside, text) = (folder.join(&name), name.to_string_lossy());
        if root.join(&inside).is_dir() {
            sources(root, &inside, take)?;
        } else if text.ends_with(".rs") && !text.contains("test") {
            take(&inside, &std::fs::read_to_string(root.join(&inside))?);
        }
    }
    Ok(())
}

/// All possible mutations of a source file, except in the tests at its end.
fn places_in(package: &'static str, file: &Path, text: &str) -> Vec<Mutation> {
    let mut places = Vec::new();
    for (line, before) in text.lines().enumerate() {
        let start = before.trim_start();
        if start.starts_with("#[cfg(test)]") {
            break;
        }
        let asserts = ["//", "#", "debug_assert", "assert", "const _"].iter().any(|word| start.starts_with(word));
        if asserts || before.contains('"') || before.contains("//") {
            continue;
        }
        let mutation =
            |(kind, after)| Mutation { kind, package, file: file.to_owned(), line, before: before.to_owned(), after };
        places.extend(mutants(before).into_iter().map(mutation));
    }
    places
}

/// All possible mutations of a line, each with its kind and the changed line.
fn mutants(line: &str) -> Vec<(Kind, String)> {
    let mut mutants = Vec::new();
    for (from, to) in [(" < ", " >= "), (" > ", " <= "), (" <= ", " > "), (" >= ", " < ")] {
        for (at, _) in line.match_indices(from) {
            mutants.push((Kind::InequalityTurned, format!("{}{to}{}", &line[..at], &line[at + from.len()..])));
        }
    }
    for operator in [" + ", " - "] {
        for (at, _) in line.match_indices(operator) {
            let term = &line[at + operator.len()..];
            let end = end_of(term, ")],; ").unwrap_or(term.len());
            mutants.push((Kind::TermDropped, format!("{}{}", &line[..at], &term[end..])));
        }
    }
    for limit in [".min(", ".max(", ".clamp("] {
        for (at, _) in line.match_indices(limit) {
            if let Some(end) = end_of(&line[at + limit.len()..], ")") {
                mutants.push((Kind::LimitIgnored, format!("{}{}", &line[..at], &line[at + limit.len() + end + 1..])));
            }
        }
    }
    mutants
}

/// Index of the first character of `text` that is one of `stops` and outside of the brackets that `text` opens.
fn end_of(text: &str, stops: &str) -> Option<usize> {
    let mut depth = 0;
    let is_end = |&(_, c): &(usize, char)| {
        let is_end = depth == 0 && stops.contains(c);
        depth += i32::from(['(', '['].contains(&c)) - i32::from([')', ']'].contains(&c));
        is_end
    };
    text.char_indices().find(is_end).map(|(at, _)| at)
}

/// Random numbers by SplitMix64 (Steele, Lea, Flood 2014); the field is its state.
struct Random(u64);

impl Random {
    /// A random number below `bound`, which must be far below 2^64.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_mutated_in_every_place() {
        let line = "    if a.b < c + d.e(f, g) && h { x.min(y.max(1)) - 2 } else { z };";
        let after: Vec<_> = mutants(line).into_iter().map(|(kind, after)| (kind, after.trim().to_owned())).collect();
        let expected = [
            (Kind::InequalityTurned, "if a.b >= c + d.e(f, g) && h { x.min(y.max(1)) - 2 } else { z };"),
            (Kind::TermDropped, "if a.b < c && h { x.min(y.max(1)) - 2 } else { z };"),
            (Kind::TermDropped, "if a.b < c + d.e(f, g) && h { x.min(y.max(1)) } else { z };"),
            (Kind::LimitIgnored, "if a.b < c + d.e(f, g) && h { x - 2 } else { z };"),
            (Kind::LimitIgnored, "if a.b < c + d.e(f, g) && h { x.min(y) - 2 } else { z };"),
        ];
        assert_eq!(after, expected.map(|(kind, after)| (kind, after.to_owned())));
    }

    #[test]
    fn tests_comments_and_messages_are_left_alone() {
        let text = "// a < b\nassert!(a < b);\nlet x = a - 1;\nf(\"a + b\");\n#[cfg(test)]\nmod tests { a < b }\n";
        let places = places_in("p", Path::new("f.rs"), text);
        assert_eq!(
            places.iter().map(|place| (place.line, place.after.as_str())).collect::<Vec<_>>(),
            [(2, "let x = a;")]
        );
    }

    #[test]
    fn draws_are_the_same_for_the_same_seed() {
        let draw = |seed| (0..8).scan(Random(seed), |random, _| Some(random.below(100))).collect::<Vec<_>>();
        assert_eq!(draw(20), draw(20));
        assert_ne!(draw(20), draw(21));
    }
}
