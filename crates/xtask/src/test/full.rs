//! Writes the results file of `cargo xtask test --full`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use evenkeel_labs::base::record::Page;
use evenkeel_record::{Origin, head};

use super::job::Outcome;

/// A row of the results file: one job.
#[derive(Debug)]
pub(super) struct Row {
    name: String,
    passed: u64,
    failed: Vec<String>,
    /// Skipped checks of the job: name, and reason.
    skipped: BTreeMap<String, String>,
    seconds: f64,
}

impl Row {
    pub(super) fn of(outcome: &Outcome) -> Self {
        Self {
            name: outcome.name.clone(),
            passed: outcome.tally.passed,
            failed: outcome.tally.failed.clone(),
            skipped: outcome.tally.skipped.clone(),
            seconds: outcome.wall.as_secs_f64(),
        }
    }
}

/// Writes the results file. `origin` is the state before the first job.
pub(super) fn write(rows: &[Row], origin: &Origin) -> Result<()> {
    let page = Page {
        name: "full".into(),
        title: "Full test run".into(),
        what: "Each job had the machine to itself. Figures of labs are on pages of their own, `docs/results/NAME.md`."
            .into(),
        seed: None,
    };
    let took: f64 = rows.iter().map(|row| row.seconds).sum();
    let line = origin.line("cargo xtask test --full", None, &format!("{took:.0} s"));
    page.write(&(head(&page.title, &page.what, &line) + &text(rows)))
}

fn text(rows: &[Row]) -> String {
    let mut text = "\n| job | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n".to_owned();
    for Row { name, passed, failed, skipped, seconds } in rows {
        let _ = writeln!(text, "| `{name}` | {passed} | {} | {} | {seconds:.0} |", failed.len(), skipped.len());
    }
    for Row { name, failed, skipped, .. } in rows.iter().filter(|row| !row.failed.is_empty() || !row.skipped.is_empty())
    {
        let _ = writeln!(text, "\n## {name}\n");
        for check in failed {
            let _ = writeln!(text, "- failed: `{check}`");
        }
        for (check, reason) in skipped {
            let _ = writeln!(text, "- skipped: `{check}`: {reason}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_skipped_checks_are_listed_by_job() {
        let row = |name: &str, failed: &[&str]| Row {
            name: name.into(),
            passed: 2,
            failed: failed.iter().map(|&name| name.to_owned()).collect(),
            skipped: BTreeMap::new(),
            seconds: 1.4,
        };
        let (mut first, second) = (row("a", &[]), row("b", &["lab::b::x"]));
        first.skipped.insert("c".into(), "no d".into());
        let text = text(&[first, second, row("e", &[])]);
        assert!(text.contains("| `a` | 2 | 0 | 1 | 1 |"), "{text}");
        assert!(
            text.ends_with("| `b` | 2 | 1 | 0 | 1 |\n| `e` | 2 | 0 | 0 | 1 |\n\n## a\n\n- skipped: `c`: no d\n\n## b\n\n- failed: `lab::b::x`\n"),
            "{text}"
        );
    }
}
