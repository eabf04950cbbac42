//! `cargo xtask record`: runs the commands whose figures the documents need, and writes what they print into a page of
//! `docs/results`. Labs, comparisons and the soak have an option `--record` of their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use evenkeel_labs::base::build::{self, Profile, cargo};
use evenkeel_labs::base::record::{Page, own_command};

/// The word of a command that stands for the folder of traces.
const TRACES: &str = "$EVENKEEL_TRACES";

/// Name of a page of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Processor time of schedulers, controllers, protocol, agent, simulator and history, and of a connection's move between workers.
    Benches,
    /// Bytes between the members of a cluster and etcd; they follow from the format and are the same on every machine.
    Cluster,
    /// A light client beside a bulk writer on an emulated device, live, also while device or load change.
    Demo,
    /// The modelled devices beside data sheets, theory and measurements, in virtual time: the same on every machine, except the
    /// speed of the model at the end. Where EVENKEEL_TRACES names the folder of a disk's trace, with that disk.
    Models,
    /// The scenarios, in virtual time: the same on every machine. Those that need a trace are left out.
    Sim,
}

/// Arguments of `cargo xtask record`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Page of docs/results to write.
    name: Name,
    /// Evenkeel's binary; built in release mode when not given.
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Writes the page. True if all of its commands succeed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let lines = lines(args.name)?;
    let binary = match &args.binary {
        Some(binary) => std::path::absolute(binary)?,
        None if lines.iter().any(|line| line.starts_with("evenkeel ")) => build::binary("evenkeel", Profile::Release)?,
        None => PathBuf::new(),
    };
    // The demo starts its server with this seed.
    let seed = (args.name == Name::Demo).then_some(1);
    let page = Page::of("Figures", &args.name, seed);
    page.record(&own_command(), lines.into_iter().map(|line| (line.clone(), command(&line, &binary))).collect())
}

/// The command of a line such as `evenkeel sim FILE` or `cargo bench`.
fn command(line: &str, binary: &Path) -> Command {
    let mut words = line.split(' ');
    let mut command = if words.next() == Some("cargo") { cargo() } else { Command::new(binary) };
    let traces = std::env::var_os("EVENKEEL_TRACES").unwrap_or_default();
    command.args(words.map(|word| if word == TRACES { traces.as_os_str() } else { OsStr::new(word) }));
    command.current_dir(build::workspace()).env("EVENKEEL_LOG", "warn");
    command
}

/// The commands of a page.
fn lines(name: Name) -> Result<Vec<String>> {
    const SETTINGS: &str = "--settings 64K,256K,4M,64M,elastic --seconds 8";
    Ok(match name {
        Name::Benches => {
            let benches = [
                "control --bench mclock",
                "control --bench pool",
                "control --bench admission",
                "control --bench response",
                "control --bench placement",
                "control --bench slots",
                "nbd --bench header",
                "guard --bench groups",
                "guard --bench tick",
                "guard --bench guarantee",
                "server --bench recording",
                "sim --bench engine",
                "sim --bench flight",
            ];
            let mut lines: Vec<String> = benches.map(|bench| format!("cargo bench -p evenkeel-{bench}")).into();
            lines.push("cargo test --release -p evenkeel-server --test all pause -- --nocapture".into());
            lines.push("cargo test --release -p evenkeel-web --lib a_second_of_a_thousand -- --nocapture".into());
            lines
        }
        Name::Cluster => vec!["cargo test -p evenkeel-policy --test all cluster_bytes -- --nocapture".into()],
        Name::Demo => vec![
            "evenkeel demo bufferbloat --settings none,1M,256K,64K,elastic --svg docs/bufferbloat.svg".into(),
            "evenkeel demo bufferbloat --settings 4M,64M,slowfast".into(),
            format!("evenkeel demo bufferbloat --speeds 1,0.4,2.5 {SETTINGS}"),
            format!("evenkeel demo bufferbloat --bulk 64Kx64,256Kx32,4Kx512 {SETTINGS}"),
        ],
        Name::Models => {
            let modules = ["store_facts", "bufferbloat", "ssd_facts", "disk", "cached", "link", "worker"];
            let line =
                |module| format!("cargo test -p evenkeel-model --test all {module} -- --nocapture --test-threads 1");
            let mut lines: Vec<String> = modules.map(line).into();
            let example = "cargo run --release -p evenkeel-model --example";
            if std::env::var_os("EVENKEEL_TRACES").is_some_and(|folder| !folder.is_empty()) {
                lines.push(format!("{example} disk_validation -- {TRACES}"));
            }
            lines.push(format!("{example} ssd_speed"));
            lines
        }
        Name::Sim => {
            let mut files = Vec::new();
            for entry in std::fs::read_dir(build::workspace().join("scenarios")).context("cannot read scenarios")? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name.ends_with(".toml") && !name.starts_with("trace-") {
                    files.push(format!("evenkeel sim scenarios/{name}"));
                }
            }
            files.sort();
            files
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn all_benchmarks_are_recorded() {
        let crates = build::workspace().join("crates");
        let (lines, mut found) = (lines(Name::Benches).unwrap(), 0);
        for package in std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path()) {
            let Ok(benches) = std::fs::read_dir(package.join("benches")) else { continue };
            let package = package.file_name().unwrap().to_string_lossy().into_owned();
            // A folder without a `main.rs` has what several benchmarks use.
            let is_bench = |path: &std::path::PathBuf| path.is_file() || path.join("main.rs").exists();
            for bench in benches.map(|entry| entry.unwrap().path()).filter(is_bench) {
                let line =
                    format!("cargo bench -p evenkeel-{package} --bench {}", bench.file_stem().unwrap().display());
                assert!(lines.contains(&line), "{line}");
                found += 1;
            }
        }
        assert!(found >= 10, "{found}");
    }

    #[test]
    fn every_page_has_commands_and_the_files_that_they_name_exist() {
        for name in Name::value_variants() {
            assert!(!lines(*name).unwrap().is_empty(), "{name:?}");
        }
        for line in [Name::Cluster, Name::Models].map(|name| lines(name).unwrap()).concat() {
            let words: Vec<&str> = line.split(' ').collect();
            let package = words.iter().find_map(|word| word.strip_prefix("evenkeel-")).unwrap();
            let folder = if words[1] == "run" { "examples" } else { "tests" };
            let file = build::workspace().join(format!("crates/{package}/{folder}/{}.rs", words[6]));
            assert!(file.is_file(), "{}", file.display());
        }
    }
}
