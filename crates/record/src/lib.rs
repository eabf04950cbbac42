//! The head of a page of recorded results: command, seed, date, commit and machine. All commands that write to `docs/results`
//! use it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Folders, relative to the root of a checkout, on whose files results depend.
const SOURCES: [&str; 3] = ["crates", "lab", "scenarios"];

/// The state in which a command runs: date, commit and machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The day in UTC, such as `2026-01-02`.
    pub date: String,
    /// The abbreviated commit of the checkout, followed by `with changes` if its sources differ from it.
    pub commit: String,
    /// The machine: the text of [`machine`].
    pub machine: String,
}

impl Origin {
    /// The present state, with the commit of the checkout in the folder `root`. To be called before the measurement, because
    /// the load average is a part of it.
    ///
    /// # Errors
    /// When `root` is no checkout of git, or when `date` or `git` cannot run.
    pub fn now(root: &Path) -> Result<Self> {
        let date = output(root, "date", &["--utc", "+%F"])?;
        let commit = output(root, "git", &["rev-parse", "--short=8", "HEAD"])?;
        let status = [&["status", "--porcelain", "--untracked-files=no", "--"][..], &SOURCES].concat();
        let changed = !output(root, "git", &status)?.is_empty();
        let commit = if changed { commit + " with changes" } else { commit };
        Ok(Self { date, commit, machine: machine() })
    }

    /// The line about a run: the command that repeats it, its seed if it has one, date, commit, running time (text such as
    /// `90 s`) and machine.
    pub fn line(&self, command: &str, seed: Option<u64>, took: &str) -> String {
        let Self { date, commit, machine } = self;
        let mut line = format!("`{command}`: ");
        if let Some(seed) = seed {
            let _ = write!(line, "seed {seed}, ");
        }
        let _ = write!(line, "{date}, commit {commit}, {took}. Machine: {machine}.");
        line
    }
}

/// The head of a page as Markdown: title, a sentence that says what was run, and the text of [`Origin::line`].
pub fn head(title: &str, what: &str, line: &str) -> String {
    format!("# {title}\n\n{what}\n\n{line}\n")
}

/// This machine as text: model of the processor, number of processors that this process may use, memory, kernel, and load
/// average of the last minute.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    text(
        &read("/proc/cpuinfo"),
        processors,
        &read("/proc/meminfo"),
        &read("/proc/sys/kernel/osrelease"),
        &read("/proc/loadavg"),
    )
}

/// The text of [`machine`] from the contents of the files of `/proc`; facts that a file lacks are left out or called unknown.
fn text(cpuinfo: &str, processors: usize, meminfo: &str, release: &str, loadavg: &str) -> String {
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    };
    let model = value(cpuinfo, "model name").unwrap_or_else(|| "unknown processor".into());
    let kib = value(meminfo, "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<f64>().ok());
    let memory = kib.map_or_else(String::new, |kib| format!(", {:.1} GiB of memory", kib / 1024.0 / 1024.0));
    let load = loadavg.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    // What follows the numbers is the name of a build.
    let version = release.trim().split('-').next().unwrap_or_default();
    let cores = if processors == 1 { "core" } else { "cores" };
    format!("{model}, {processors} {cores}{memory}, Linux {version}, load average {load}")
}

/// Runs a program in the folder `root`. Returns its standard output, trimmed; an error if it fails.
fn output(root: &Path, program: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(words).current_dir(root).output().with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", words.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_with_what_its_files_say() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nmodel name\t: another\n";
        let meminfo = "MemTotal:        8388608 kB\nMemFree:          100 kB\n";
        assert_eq!(
            text(cpuinfo, 2, meminfo, "6.1.0-28-amd64\n", "0.25 0.5 1 2/3 4"),
            "Some CPU @ 2 GHz, 2 cores, 8.0 GiB of memory, Linux 6.1.0, load average 0.25"
        );
        assert_eq!(text("", 1, "", "6.1.0", ""), "unknown processor, 1 core, Linux 6.1.0, load average unknown");
    }

    #[test]
    fn a_head_names_command_seed_date_commit_time_and_machine() {
        let origin = Origin { date: "2026-01-02".into(), commit: "abc".into(), machine: "M".into() };
        assert_eq!(
            head("T", "W.", &origin.line("run", Some(7), "3 s")),
            "# T\n\nW.\n\n`run`: seed 7, 2026-01-02, commit abc, 3 s. Machine: M.\n"
        );
        assert_eq!(origin.line("run", None, "3 s"), "`run`: 2026-01-02, commit abc, 3 s. Machine: M.");
    }

    #[test]
    fn the_present_state_is_that_of_the_checkout() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // A source archive has no history.
        let Ok(origin) = Origin::now(&root) else { return };
        assert_eq!(origin.date.len(), "2026-01-02".len(), "{origin:?}");
        assert!(origin.commit.len() >= 8 && origin.machine.contains("Linux "), "{origin:?}");
        assert!(Origin::now(Path::new("/proc")).is_err());
    }
}
