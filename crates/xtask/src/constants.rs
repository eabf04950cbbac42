//! `cargo xtask constants`: measures on drawn cases the effect of half and of twice the value of each constant of a controller.
//! Constants are changed one at a time, in a copy of the project.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evenkeel_labs::base::build;
use evenkeel_labs::base::process;
use evenkeel_record::Origin;

use crate::mutate::{cargo, copy, with_line};

const PAGE: &str = "docs/results/constants.md";
/// Time limit of one build with its set of cases.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Types of constants whose values can be halved and doubled.
const TYPES: [&str; 5] = ["f64", "f32", "u32", "usize", "Duration"];

/// A controller: its name in results, its source files below `crates/control/src`, and constants in these that are left out.
struct Controller {
    name: &'static str,
    sources: &'static [&'static str],
    /// Names of constants that are left out: directions, bounds of numbers, and constants of other methods in the same file.
    others: &'static [&'static str],
}

const CONTROLLERS: [Controller; 5] = [
    Controller {
        name: "admission",
        sources: &["admission/elastic/mod.rs", "admission/elastic/evidence.rs", "admission/elastic/meter.rs"],
        others: &[],
    },
    Controller {
        name: "latency target",
        sources: &["response/adaptive.rs", "response/clients.rs", "response/gain.rs", "response/trial.rs"],
        others: &["MOST_BYTES_PER_S"],
    },
    Controller {
        name: "placement",
        sources: &["placement/waits.rs"],
        // How much is remembered and looked at, which bounds memory and time.
        others: &["SLOTS", "CANDIDATES", "PAIRS", "ALL"],
    },
    Controller {
        name: "slots",
        sources: &["slots/mod.rs", "slots/knee.rs", "slots/need.rs"],
        others: &["ALPHA", "PARDA_GAIN", "PARDA_STEP"],
    },
    Controller {
        name: "guarantees",
        sources: &["throughput/mod.rs", "throughput/accurate.rs", "throughput/bandwidth.rs", "throughput/share.rs"],
        others: &[],
    },
];

/// Arguments of `cargo xtask constants`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only controllers whose name contains this
    #[arg(long, default_value = "")]
    controller: String,
    /// The first drawn case; those from 0 on are the ones that controllers were developed with
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Number of cases
    #[arg(long, default_value_t = 48)]
    cases: u64,
    /// Print the constants and judge nothing
    #[arg(long)]
    list: bool,
}

/// A constant that is defined on a line of its own.
#[derive(Debug, PartialEq, Eq)]
struct Constant {
    name: String,
    kind: String,
    value: String,
    /// Index of the constant's line in the file, from 0.
    line: usize,
}

impl Constant {
    /// The constant's line with half the value or, if `twice`, with twice the value.
    fn scaled(&self, line: &str, twice: bool) -> String {
        let Self { kind, value, .. } = self;
        let scaled = match (kind.as_str(), twice) {
            ("f64" | "f32", false) => format!("({value}) / 2.0"),
            ("f64" | "f32", true) => format!("({value}) * 2.0"),
            ("Duration", false) => format!("Duration::from_nanos(({value}).as_nanos() / 2)"),
            ("Duration", true) => format!("Duration::from_nanos(({value}).as_nanos() * 2)"),
            (_, false) => format!("({value}) / 2"),
            (_, true) => format!("({value}) * 2"),
        };
        let declared = &line[..line.rfind(" = ").unwrap_or(line.len())];
        format!("{declared} = {scaled};")
    }
}

/// True if the text of a value refers to another constant, so that the constant is not independent.
fn is_derived(value: &str) -> bool {
    let mut words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| {
        word.len() > 1
            && !word.contains(|c: char| c.is_ascii_lowercase())
            && word.contains(|c: char| c.is_ascii_uppercase())
    })
}

/// The constants in a source file's text up to its tests, except those named in `others`.
fn constants(text: &str, others: &[&str]) -> Vec<Constant> {
    let code = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    let constant = |(line, text): (usize, &str)| {
        let (before, rest) = text.split_once("const ")?;
        let (name, rest) = rest.split_once(": ")?;
        let (kind, value) = rest.strip_suffix(';')?.split_once(" = ")?;
        let is_one = (before.is_empty() || before.starts_with("pub")) && TYPES.contains(&kind);
        (is_one && !others.contains(&name) && !is_derived(value)).then(|| Constant {
            name: name.into(),
            kind: kind.into(),
            value: value.into(),
            line,
        })
    };
    code.filter_map(constant).collect()
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let (root, tree) = (build::workspace(), build::target_dir()?.join("xtask/mutate"));
    if !args.list {
        copy(&root, &tree)?;
    }
    let (origin, begun) = (Origin::now(&root)?, Instant::now());
    let (mut page, mut tried) = (String::new(), 0);
    for controller in CONTROLLERS.iter().filter(|controller| controller.name.contains(&args.controller)) {
        tried += 1;
        let of = |source: &&str| -> Result<Vec<(String, Constant)>> {
            let path = format!("crates/control/src/{source}");
            let text = std::fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            Ok(constants(&text, controller.others).into_iter().map(|constant| (path.clone(), constant)).collect())
        };
        let found: Vec<(String, Constant)> =
            controller.sources.iter().map(of).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        println!("{}: {} constants", controller.name, found.len());
        if args.list {
            found.iter().for_each(|(path, Constant { name, value, .. })| println!("  {name} = {value} ({path})"));
            continue;
        }
        let as_it_is =
            counts(&tree, controller.name, args)?.context("the committed project does not compile or run")?;
        println!("  unchanged: {as_it_is}");
        write!(
            page,
            "\n## {}\n\n{} constants. As they are: {as_it_is}.\n\nconstant | value | half | twice\n---|---|---|---\n",
            controller.name,
            found.len()
        )?;
        for (path, constant) in &found {
            let mut said = Vec::new();
            for twice in [false, true] {
                let is_it = |line: &str| line.contains(&format!("const {}:", constant.name));
                let change = |line: &str| is_it(line).then(|| constant.scaled(line, twice));
                let count = || counts(&tree, controller.name, args);
                let counts = with_line(&tree, Path::new(path), constant.line, change, count)?;
                said.push(counts.unwrap_or_else(|| "does not run".into()));
            }
            println!("  {} = {}: half {}; twice {}", constant.name, constant.value, said[0], said[1]);
            writeln!(page, "`{}` | {} | {} | {}", constant.name, constant.value, said[0], said[1])?;
        }
    }
    ensure!(tried > 0, "no controller has {:?} in its name", args.controller);
    if !args.list && args.controller.is_empty() {
        let page = head(args, &origin, begun.elapsed()) + &page;
        std::fs::write(root.join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
        println!("written: {PAGE}");
    }
    Ok(true)
}

fn head(args: &Args, origin: &Origin, took: Duration) -> String {
    let (first, cases, last) = (args.first, args.cases, args.first + args.cases - 1);
    let what = format!(
        "Drawn cases {first} to {last} of `evenkeel reproduce harm`, in virtual time: each column says how many were harmed, how \
         many of those gravely, and how many helped."
    );
    let command = format!("cargo xtask constants --first {first} --cases {cases}");
    let line = origin.line(&command, None, &format!("{:.0} s", took.as_secs_f64()));
    evenkeel_record::head("Constants of the controllers, halved and doubled", &what, &line)
}

/// Judges the cases with the copy `tree`; `None` if the copy does not compile or panics.
fn counts(tree: &Path, controller: &str, args: &Args) -> Result<Option<String>> {
    let (first, cases) = (args.first.to_string(), args.cases.to_string());
    let words = ["run", "--quiet", "--package", "evenkeel-sim", "--example", "harm", "--", controller, &first, &cases];
    let mut counts = None;
    let (status, _) = process::stream(&mut cargo(tree, &words), LIMIT, |line| {
        if let Some((_, said)) = line.split_once(" judged, ") {
            counts = Some(said.to_owned());
        }
    })?;
    Ok(counts.filter(|_| status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "/// A part.\nconst PART: f64 = 0.5;\npub(super) const ROUND: u32 = 4;\nconst ALL: &str = \"x\";\n\
                          const LASTS: Duration = Duration::from_secs(30);\nconst HALF: f64 = 0.5 * PART;\n    const INNER: f64 = 1.0;\nconst UP: usize = 1;\n\
                          #[cfg(test)]\nmod tests { }\nconst LATER: f64 = 1.0;\n";

    #[test]
    fn constants_of_a_source_are_found_up_to_its_tests() {
        let found = constants(SOURCE, &["UP"]);
        let names: Vec<&str> = found.iter().map(|constant| constant.name.as_str()).collect();
        assert_eq!(names, ["PART", "ROUND", "LASTS"]);
    }

    #[test]
    fn a_constant_is_halved_and_doubled_in_its_own_type() {
        let lines: Vec<&str> = SOURCE.lines().collect();
        let scaled = |constant: &Constant, twice| constant.scaled(lines[constant.line], twice);
        let found = constants(SOURCE, &["UP"]);
        assert_eq!(scaled(&found[0], false), "const PART: f64 = (0.5) / 2.0;");
        assert_eq!(scaled(&found[1], true), "pub(super) const ROUND: u32 = (4) * 2;");
        assert_eq!(
            scaled(&found[2], false),
            "const LASTS: Duration = Duration::from_nanos((Duration::from_secs(30)).as_nanos() / 2);"
        );
    }

    /// Every controller has constants, and every left-out name exists in the sources.
    #[test]
    fn the_sources_of_the_controllers_are_there() {
        for controller in &CONTROLLERS {
            let mut count = 0;
            for source in controller.sources {
                let path = build::workspace().join("crates/control/src").join(source);
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                count += constants(&text, controller.others).len();
            }
            assert!(count > 0, "{}", controller.name);
            let has = |name: &str| {
                controller.sources.iter().any(|source| {
                    let path = build::workspace().join("crates/control/src").join(source);
                    std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("const {name}: ")))
                })
            };
            assert!(controller.others.iter().all(|name| has(name)), "{}", controller.name);
        }
    }
}
