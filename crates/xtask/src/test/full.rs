//! Writes the results file of `cargo xtask test --full`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result};
use evenkeel_labs::base::{build, process};

use super::job::Outcome;

const FILE: &str = "docs/results/full.md";

/// A row of the results file: one job.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    passed: u64,
    failed: Vec<String>,
    /// Skipped checks of the job: name, and reason.
    skipped: BTreeMap<String, String>,
    seconds: f64,
    figures: Vec<String>,
}

impl Row {
    pub(super) fn of(outcome: &Outcome) -> Self {
        Self {
            name: outcome.name.clone(),
            passed: outcome.tally.passed,
            failed: outcome.tally.failed.clone(),
            skipped: outcome.tally.skipped.clone(),
            seconds: outcome.wall.as_secs_f64(),
            figures: outcome.figures.clone(),
        }
    }
}

/// Writes the results file, with today's date and the commit.
pub(super) fn write(rows: &[Row]) -> Result<()> {
    let said = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        process::output(command.args(words).current_dir(build::workspace())).map(|text| text.trim().to_owned())
    };
    let (date, commit) = (said("date", &["-u", "+%F"])?, said("git", &["describe", "--always", "--dirty"])?);
    let path = build::workspace().join(FILE);
    std::fs::create_dir_all(path.parent().context("a folder")?)?;
    std::fs::write(&path, text(&date, &commit, rows)).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written: {FILE}");
    Ok(())
}

fn text(date: &str, commit: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "# `cargo xtask test --full`\n\n{date}, commit {commit}. Each job had the machine to itself.\n\n\
         | job | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n"
    );
    for Row { name, passed, failed, skipped, seconds, .. } in rows {
        let _ = writeln!(text, "| `{name}` | {passed} | {} | {} | {seconds:.0} |", failed.len(), skipped.len());
    }
    let tells = |row: &&Row| !(row.failed.is_empty() && row.skipped.is_empty() && row.figures.is_empty());
    for Row { name, failed, skipped, figures, .. } in rows.iter().filter(tells) {
        let _ = writeln!(text, "\n## {name}\n");
        for check in failed {
            let _ = writeln!(text, "- failed: `{check}`");
        }
        for (check, reason) in skipped {
            let _ = writeln!(text, "- skipped: `{check}`: {reason}");
        }
        for figure in figures {
            let _ = writeln!(text, "- {figure}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_figures_are_listed_by_job() {
        let row = |name: &str, failed: &[&str], figures: &[&str]| Row {
            name: name.into(),
            passed: 2,
            failed: failed.iter().map(|&name| name.to_owned()).collect(),
            skipped: BTreeMap::new(),
            seconds: 1.4,
            figures: figures.iter().map(|&figure| figure.to_owned()).collect(),
        };
        let (mut first, second) = (row("a", &[], &[]), row("b", &["lab::b::x"], &["y 3 (bar <= 2, MISSED)"]));
        first.skipped.insert("c".into(), "no d".into());
        let text = text("2026-01-02", "abc", &[first, second]);
        assert!(text.contains("2026-01-02, commit abc.") && text.contains("| `a` | 2 | 0 | 1 | 1 |"), "{text}");
        assert!(
            text.ends_with("| `b` | 2 | 1 | 0 | 1 |\n\n## a\n\n- skipped: `c`: no d\n\n## b\n\n- failed: `lab::b::x`\n- y 3 (bar <= 2, MISSED)\n"),
            "{text}"
        );
    }
}
