//! Pages of `docs/results`: runs commands, shows what they print, and writes it into a page of its own.
//!
//! A task with `--record` runs itself again without that option, so that no task needs code of its own for its page.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evenkeel_record::{Origin, head};

use crate::base::spelled::spelled;
use crate::base::{build, process};

/// Time limit of one command: far above the duration of a full test run.
const LIMIT: Duration = Duration::from_secs(48 * 3600);

/// A page of `docs/results`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Name of the file, without `.md`.
    pub name: String,
    /// Heading of the page.
    pub title: String,
    /// One sentence that says what is run.
    pub what: String,
    /// Seed of the run, if it has one.
    pub seed: Option<u64>,
}

impl Page {
    /// The page that has the name of a value of the command line, such as a lab. `kind` begins its heading, and the value's help
    /// says what is run.
    pub fn of(kind: &str, value: &impl clap::ValueEnum, seed: Option<u64>) -> Self {
        let name = spelled(value);
        let help = value.to_possible_value().and_then(|value| Some(value.get_help()?.to_string()));
        let what = help.unwrap_or_default().trim_end_matches('.').to_owned() + ".";
        Self { title: format!("{kind}: {name}"), name, what, seed }
    }

    /// Runs this program again with its arguments, but without `--record`, and writes the page. True if the run succeeds.
    ///
    /// # Errors
    /// When the run prints no results, or when the page cannot be written.
    pub fn record_self(&self) -> Result<bool> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1).filter(|word| word != "--record"));
        self.record(&own_command(), vec![(String::new(), command)])
    }

    /// Runs `commands`, each with its text as heading of its part, and writes the page; `own` is the command that repeats all of
    /// it. True if all of them succeed.
    ///
    /// # Errors
    /// As [`Self::record_self`].
    pub fn record(&self, own: &str, commands: Vec<(String, Command)>) -> Result<bool> {
        let (origin, begun) = (Origin::now(&build::workspace())?, Instant::now());
        let (target, root) = (build::target_dir()?.display().to_string(), build::workspace().display().to_string());
        let (mut parts, mut succeeded) = (String::new(), true);
        for (text, mut command) in commands {
            let mut printed = Printed::default();
            let (status, _) = process::stream_output(&mut command, LIMIT, |line| {
                println!("{line}");
                printed.line(&line.replace(&target, "target").replace(&root, "."));
            })?;
            ensure!(!printed.is_empty(), "`{text}` printed no results ({status}); the page stays as it is");
            succeeded &= status.success();
            if !text.is_empty() {
                let _ = write!(parts, "\n## `{text}`\n");
            }
            parts += &printed.text();
        }
        let took = format!("{:.0} s", begun.elapsed().as_secs_f64());
        self.write(&(head(&self.title, &self.what, &origin.line(own, self.seed, &took)) + &parts))?;
        Ok(succeeded)
    }

    /// Writes the page with this text.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, text: &str) -> Result<()> {
        let file = format!("docs/results/{}.md", self.name);
        let path = build::workspace().join(&file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written: {file}");
        Ok(())
    }
}

/// The command line of this program as `cargo xtask ...`.
pub fn own_command() -> String {
    let words = std::env::args().skip(1).map(|word| shortened(&word));
    ["cargo".to_owned(), "xtask".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// A word of a command line without those parts of an absolute path that only one machine has; in quotes if it has spaces.
fn shortened(word: &str) -> String {
    let short = match word.find("/target/") {
        Some(at) => &word[at + 1..],
        None if word.starts_with('/') => word.rsplit('/').next().unwrap_or(word),
        None => word,
    };
    if short.is_empty() || short.contains(' ') { format!("'{short}'") } else { short.to_owned() }
}

/// A command's output: the figures and steps of a lab, and all other lines except those of cargo's test harness.
#[derive(Debug, Default)]
struct Printed {
    /// Each with name, value, bar and verdict.
    figures: Vec<[String; 4]>,
    /// Each with name, result and detail.
    steps: Vec<[String; 3]>,
    others: Vec<String>,
}

impl Printed {
    fn line(&mut self, line: &str) {
        if let Some(figure) = line.strip_prefix("lab: figure ") {
            self.figures.extend(figure_of(figure));
        } else if let Some(test) = line.strip_prefix("test ") {
            self.test(test);
        } else if line != "ok" && !line.starts_with("running ") {
            self.others.push(line.to_owned());
        }
    }

    /// Handles a line that begins with `test `: a lab's step, the harness's summary, or a test that prints. With one thread, the
    /// first line that a test prints is behind its name.
    fn test(&mut self, test: &str) {
        let Some((name, result)) = test.split_once(" ... ") else { return };
        if let Some(step) = name.strip_prefix("lab::").and_then(|name| Some(name.split_once("::")?.1)) {
            let before = format!("lab: {step}: ");
            let detail = self.others.last().and_then(|last| last.strip_prefix(&before)).map(str::to_owned);
            if detail.is_some() {
                self.others.pop();
            }
            let detail = detail.unwrap_or_default();
            let (result, detail) = match detail.strip_prefix("skipped: ") {
                Some(reason) => ("skipped", reason),
                None => (if result == "ok" { "passed" } else { "FAILED" }, detail.as_str()),
            };
            self.steps.push([format!("`{step}`"), result.to_owned(), detail.to_owned()]);
        } else if result == "FAILED" {
            self.others.push(format!("{name}: FAILED"));
        } else if result != "ok" && !result.starts_with("ignored") {
            self.others.extend([format!("{name}:"), result.to_owned()]);
        }
    }

    fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.steps.is_empty() && self.others.iter().all(|line| line.trim().is_empty())
    }

    /// The part of a page: a table of figures, a table of steps, and the other lines as they are, in fences except for tables.
    fn text(&self) -> String {
        let mut text = String::new();
        table(&mut text, ["figure", "value", "bar", "verdict"], &self.figures);
        table(&mut text, ["step", "result", "detail"], &self.steps);
        let is_table = |lines: &[String]| lines.len() > 1 && lines[0].starts_with('|') && lines[1].starts_with("|---");
        let mut rest = &self.others[..];
        while !rest.is_empty() {
            let is_drawn = is_table(rest);
            let end = if is_drawn {
                rest.iter().position(|line| !line.starts_with('|'))
            } else {
                (1..rest.len()).find(|&at| is_table(&rest[at..]))
            };
            let (lines, after) = rest.split_at(end.unwrap_or(rest.len()));
            let lines = lines.join("\n");
            let lines = lines.trim_matches('\n');
            if is_drawn {
                let _ = write!(text, "\n{lines}\n");
            } else if !lines.trim().is_empty() {
                let _ = write!(text, "\n```\n{lines}\n```\n");
            }
            rest = after;
        }
        text
    }
}

/// Name, value, bar and verdict in the text of a figure, such as `caches::jitter 1.5 ms (bar <= 2 ms, met)`.
fn figure_of(figure: &str) -> Option<[String; 4]> {
    let (measured, judged) = figure.strip_suffix(')')?.rsplit_once(" (bar ")?;
    let ((name, value), (bar, verdict)) = (measured.split_once(' ')?, judged.rsplit_once(", ")?);
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    Some([format!("`{name}`"), value.to_owned(), bar.to_owned(), verdict.to_owned()])
}

/// Appends a table, but only if it has rows.
fn table<const N: usize>(text: &mut String, head: [&str; N], rows: &[[String; N]]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(text, "\n{}\n{}\n", head.join(" | "), ["---"; N].join("|"));
    for row in rows {
        // A bar would end the cell, a bracket before a parenthesis would begin a link, and `<` a tag.
        let plain =
            |cell: &String| cell.replace('|', "\\|").replace("](", "] (").replace('<', "&lt;").replace("&lt;= ", "<= ");
        let cells = row.each_ref().map(plain);
        let _ = writeln!(text, "{}", cells.join(" | ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> String {
        let mut printed = Printed::default();
        lines.iter().for_each(|line| printed.line(line));
        printed.text()
    }

    #[test]
    fn a_lab_has_a_row_for_each_figure_and_step() {
        let text = text(&[
            "lab: 2 lives of 20 s, --seed 7",
            "lab: figure caches::dm_cache::jitter 1.50, median of 1.40 1.50 1.60 (bar <= 2.00, met)",
            "lab: dm_cache: 24.1 MB/s of [1, 2](3) | <b>",
            "test lab::caches::dm_cache ... ok",
            "lab: figure caches::throughput 9 MB/s (bar 10 MB/s, MISSED)",
            "test lab::caches::quiet ... FAILED",
            "lab: bcache: skipped: no kernel module",
            "test lab::caches::bcache ... ok",
        ]);
        let expected = "\nfigure | value | bar | verdict\n---|---|---|---\n\
             `dm_cache::jitter` | 1.50, median of 1.40 1.50 1.60 | <= 2.00 | met\n\
             `throughput` | 9 MB/s | 10 MB/s | MISSED\n\
             \nstep | result | detail\n---|---|---\n\
             `dm_cache` | passed | 24.1 MB/s of [1, 2] (3) \\| &lt;b>\n\
             `quiet` | FAILED |\n\
             `bcache` | skipped | no kernel module\n\
             \n```\nlab: 2 lives of 20 s, --seed 7\n```\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_test_that_prints_keeps_its_lines_and_name() {
        let lines = [
            "",
            "running 2 tests",
            "test store::curve ... 1 in flight: 24.4 MB/s",
            "| 10 | 2 |",
            "ok",
            "test store::silent ... ok",
            "test store::left_out ... ignored",
            "test result: ok. 2 passed; 0 failed",
        ];
        assert_eq!(text(&lines), "\n```\nstore::curve:\n1 in flight: 24.4 MB/s\n| 10 | 2 |\n```\n");
        assert_eq!(text(&lines[5..]), "");
    }

    #[test]
    fn a_table_that_a_command_prints_is_a_table_of_the_page() {
        let lines = ["lab: begun", "", "| budget | bulk |", "|---|---|", "| 1 MiB | 3.6 MB/s |", "", "lab: done"];
        let expected = "\n```\nlab: begun\n```\n\
             \n| budget | bulk |\n|---|---|\n| 1 MiB | 3.6 MB/s |\n\
             \n```\nlab: done\n```\n";
        assert_eq!(text(&lines), expected);
    }

    #[test]
    fn a_run_without_results_is_found() {
        let mut printed = Printed::default();
        printed.line("running 0 tests");
        printed.line("");
        assert!(printed.is_empty());
        printed.line("test lab::slots::agents ... FAILED");
        assert!(!printed.is_empty());
    }

    #[test]
    fn paths_of_one_machine_are_not_recorded() {
        assert_eq!(shortened("/home/x/evenkeel/target/release/evenkeel"), "target/release/evenkeel");
        assert_eq!(shortened("/usr/bin/evenkeel"), "evenkeel");
        assert_eq!(shortened("scenarios/a.toml"), "scenarios/a.toml");
        assert_eq!(shortened("two words"), "'two words'");
    }
}
