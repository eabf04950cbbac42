//! `cargo xtask fuzz`: coverage-guided fuzzing with the stable compiler. Inputs that reach new code are kept in
//! `fuzz/corpus`, and every run adds a line to `docs/results/fuzzing.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_labs::base::record::Page;
use evenkeel_labs::base::{build, process};
use evenkeel_record::{Origin, head};

/// Compiler options for coverage, which cargo-fuzz uses with nightly and which stable Rust has, too: counters at each edge of the
/// control flow, and tracing of comparisons.
const INSTRUMENTED: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longest input, in bytes: enough for several messages of any kind.
const MAX_INPUT_BYTES: u64 = 4_096;
/// Time in seconds from which on the running of one input counts as a finding; inputs normally take microseconds.
const MAX_INPUT_S: u64 = 10;
/// Memory of a fuzzing process, in MB, above which its present input counts as a finding.
const MAX_MEMORY_MB: u64 = 1_024;
/// The most bytes that are kept of a target's corpus: sixteen corpora stay below 1 MiB.
const MAX_CORPUS_BYTES: u64 = 65_000;
/// Time limit of a build or of a merge of a corpus, and of a fuzzing run beyond its own duration.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// Arguments of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Minutes for each target; thirty make seven and a half hours of all.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Only these targets.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// The result of fuzzing one target.
struct Outcome {
    target: String,
    /// CPU time of the fuzzing run.
    cpu: Duration,
    executions: u64,
    files: usize,
    bytes: u64,
    findings: Vec<PathBuf>,
}

/// Fuzzes the targets one after the other. True if there are no findings.
///
/// # Errors
/// If the targets cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = build::workspace().join("fuzz");
    let programs = build_targets(&folder)?;
    let mut targets: Vec<String> = names(&folder.join("fuzz_targets"))?;
    for wanted in &args.targets {
        ensure!(targets.contains(wanted), "no target {wanted:?}; there are {}", targets.join(", "));
    }
    targets.retain(|target| args.targets.is_empty() || args.targets.contains(target));
    let mut clean = true;
    for target in targets {
        let origin = Origin::now(&build::workspace())?;
        let outcome = fuzz(&folder, &programs.join(&target), &target, Duration::from_secs_f64(args.minutes * 60.0))?;
        record(&outcome, &origin)?;
        let minutes = outcome.cpu.as_secs_f64() / 60.0;
        println!("{target}: {} inputs in {minutes:.1} min of CPU, {} in the corpus", outcome.executions, outcome.files);
        for finding in &outcome.findings {
            println!("FOUND: {target} fails on the input {}", finding.display());
        }
        clean &= outcome.findings.is_empty();
    }
    Ok(clean)
}

/// Builds all targets. Returns the folder with the built programs.
fn build_targets(folder: &Path) -> Result<PathBuf> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let mut cargo = build::cargo();
    // With a target, so that build scripts and macros are not instrumented.
    cargo.current_dir(folder).args(["build", "--quiet", "--release", "--target", host]);
    cargo.env("RUSTFLAGS", INSTRUMENTED).env_remove("CARGO_TARGET_DIR");
    let (status, said) = process::transcript(&mut cargo, LIMIT)?;
    ensure!(status.success(), "cannot build the targets:\n{said}");
    Ok(folder.join("target").join(host).join("release"))
}

/// Fuzzes one target for `time`, beginning with its corpus; adds the inputs that reach new code to the corpus.
fn fuzz(folder: &Path, program: &Path, target: &str, time: Duration) -> Result<Outcome> {
    let (kept, found) = (folder.join("corpus").join(target), folder.join("target/corpus").join(target));
    let artifacts = folder.join("artifacts").join(target);
    for made in [&kept, &found, &artifacts] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    let mut command = Command::new(program);
    command.args([
        format!("-max_total_time={}", time.as_secs().max(1)),
        format!("-max_len={MAX_INPUT_BYTES}"),
        format!("-timeout={MAX_INPUT_S}"),
        format!("-rss_limit_mb={MAX_MEMORY_MB}"),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".into(),
    ]);
    let mut executions = None;
    let (_, cpu) = process::stream(command.arg(&found).arg(&kept), time + LIMIT, |line| {
        let count = line.strip_prefix("stat::number_of_executed_units:");
        executions = executions.or(count.and_then(|count| count.trim().parse().ok()));
    })?;
    let Some(executions) = executions else { bail!("fuzz target {target} ended without its statistics") };
    // Only what reaches something that the kept ones do not.
    let mut merge = Command::new(program);
    merge.args(["-merge=1".into(), format!("-max_len={MAX_INPUT_BYTES}")]).arg(&kept).arg(&found);
    let (status, said) = process::transcript(&mut merge, LIMIT)?;
    ensure!(status.success(), "cannot merge the corpus of {target}:\n{said}");
    let (files, bytes) = bound(&kept)?;
    let findings = fs::read_dir(&artifacts)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    Ok(Outcome { target: target.to_owned(), cpu, executions, files, bytes, findings })
}

/// Removes the longest of the inputs that the fuzzer has made (their names are digests) until the folder has at most
/// [`MAX_CORPUS_BYTES`]. Returns the number of remaining files, and their size in bytes.
fn bound(folder: &Path) -> Result<(usize, u64)> {
    let mut files: Vec<(bool, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let made = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        files.push((made, entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
    while bytes > MAX_CORPUS_BYTES
        && let Some((_, length, path)) = files.pop_if(|(made, ..)| *made)
    {
        fs::remove_file(&path)?;
        bytes -= length;
    }
    Ok((files.len(), bytes))
}

/// Adds a row about the outcome to `docs/results/fuzzing.md`, and writes the page's head anew.
fn record(outcome: &Outcome, origin: &Origin) -> Result<()> {
    let page = Page {
        name: "fuzzing".into(),
        title: "Fuzzing".into(),
        what: "Coverage-guided fuzzing, a row for each run of a target. The line below is of the last run.".into(),
        seed: None,
    };
    let path = build::workspace().join(format!("docs/results/{}.md", page.name));
    let before = fs::read_to_string(path).unwrap_or_default();
    let took = format!("{:.0} s of processor time", outcome.cpu.as_secs_f64());
    let line = origin.line(&format!("cargo xtask fuzz {}", outcome.target), None, &took);
    page.write(&format!("{}\n{}", head(&page.title, &page.what, &line), table(&before, outcome, origin)))
}

/// The table of the page `before`, or an empty one, with a row about the outcome.
fn table(before: &str, outcome: &Outcome, origin: &Origin) -> String {
    const HEAD: &str = "| date | commit | target | CPU min | inputs | corpus | bytes | findings |\n|---|---|---|---|---|---|---|---|\n";
    let Outcome { target, cpu, executions, files, bytes, findings } = outcome;
    let (date, commit, minutes) = (&origin.date, &origin.commit, cpu.as_secs_f64() / 60.0);
    let mut table = HEAD.to_owned();
    for row in before.lines().filter(|line| line.starts_with('|')).skip(2) {
        table = table + row + "\n";
    }
    let findings = findings.len();
    let row =
        format!("| {date} | {commit} | {target} | {minutes:.1} | {executions} | {files} | {bytes} | {findings} |\n");
    table + &row
}

/// Names of the files in a folder without their endings, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry?.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default())
    };
    let mut names = fs::read_dir(folder)?.map(name).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_added_to_the_table_of_the_page() {
        let origin = Origin { date: "2026-01-02".into(), commit: "abc".into(), machine: String::new() };
        let (target, cpu) = ("host".to_owned(), Duration::from_secs(90));
        let outcome = Outcome { target, cpu, executions: 7, files: 3, bytes: 40, findings: vec![PathBuf::from("x")] };
        let once = table("# Title\n\nText.\n", &outcome, &origin);
        let row = "| 2026-01-02 | abc | host | 1.5 | 7 | 3 | 40 | 1 |\n";
        assert!(once.ends_with(&format!("|---|\n{row}")), "{once}");
        assert_eq!(table(&format!("# Title\n\n{once}\nText.\n"), &outcome, &origin), once + row);
    }
}
