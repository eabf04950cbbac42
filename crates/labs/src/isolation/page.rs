//! Writes the page with the results of a full run of the lab of isolation.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result};

use super::attacks::{Backend, Engine, Setting};
use crate::base::{build, process};
use crate::check::figures::{Figures, Spread};

const FILE: &str = "docs/results/isolation.md";

/// The results of an attack in one setting: medians over the repeats.
pub(super) struct Row {
    attack: &'static str,
    setting: Setting,
    /// Failures as text: that of the attack itself, and figures other than the p99 beyond the limit of every working mechanism.
    broken: Vec<String>,
    /// Fraction of its reservation that the light client got.
    share: Option<f64>,
    /// The light client's p99 latency divided by its p99 beside the bulk writer.
    p99_times: Option<f64>,
    /// Longest time until a new connection had read, in seconds.
    connect_s: Option<f64>,
    /// Names of the figures whose bars were missed.
    missed: Vec<String>,
}

impl Row {
    pub(super) fn of(attack: &'static str, setting: Setting, failure: Option<String>, figures: &Figures) -> Self {
        Self {
            attack,
            setting,
            broken: failure
                .into_iter()
                .chain(figures.broken().iter().filter(|what| !what.starts_with("p99_times")).cloned())
                .collect(),
            share: figures.median("share"),
            p99_times: figures.median("p99_times"),
            connect_s: figures.median("connect_s"),
            missed: figures.missed(),
        }
    }

    fn misses(&self, figure: &str) -> bool {
        self.missed.iter().any(|name| name == figure)
    }

    /// True if the attack failed for another reason than a p99 above its bar.
    fn fails_otherwise(&self) -> bool {
        !self.broken.is_empty() || self.missed.iter().any(|name| name != "p99_times")
    }
}

/// The present date and commit, as the origin of the measurements that follow.
pub(super) fn origin() -> Result<[String; 2]> {
    let output = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        process::output(command.args(words).current_dir(build::workspace())).map(|text| text.trim().to_owned())
    };
    Ok([output("date", &["-u", "+%F"])?, output("git", &["describe", "--always", "--dirty"])?])
}

/// Writes the page of results. `origin` is the answer of [`origin`]; `repeats` is the number of rounds.
pub(super) fn write(origin: &[String; 2], rows: &[Row], repeats: u64) -> Result<()> {
    let path = build::workspace().join(FILE);
    std::fs::write(&path, text(origin, repeats, rows)).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written: {FILE}");
    Ok(())
}

fn text([date, commit]: &[String; 2], repeats: u64, rows: &[Row]) -> String {
    let mut text = format!(
        "# Isolation: attacks beside a client with a reservation\n\n\
         Written by `cargo xtask lab isolation --full` ([the lab](../../crates/labs/src/isolation/README.md)), {date}, \
         commit {commit}, medians of {repeats}. `share`: answers of those due, at least 0.95. `p99`: the client's p99 as a \
         multiple of that beside a bulk writer, at most 1.5.\n\n"
    );
    let head = |first: &str| {
        format!(
            "{first} | settings | share, least | p99, median | p99, worst | p99 above the bar | new connection, worst | other failures\n\
             ---|---|---|---|---|---|---|---\n"
        )
    };
    text += &head("where");
    line(&mut text, "everywhere", rows, |_| true);
    for backend in Backend::ALL {
        line(&mut text, &format!("{backend} volumes"), rows, |row| row.setting.backend == backend);
    }
    for engine in Engine::ALL {
        line(&mut text, &engine.to_string(), rows, |row| row.setting.engine == engine);
    }
    text += "\n";
    text += &head("attack");
    let mut done: Vec<&str> = Vec::new();
    for attack in rows.iter().map(|row| row.attack) {
        if !done.contains(&attack) {
            done.push(attack);
            line(&mut text, &format!("`{attack}`"), rows, |row| row.attack == attack);
        }
    }
    let failed: Vec<&Row> = rows.iter().filter(|row| row.fails_otherwise()).collect();
    if !failed.is_empty() {
        text += "\nFailed by more than p99:\n\n";
    }
    for row in failed {
        let missed: Vec<&str> = row.missed.iter().chain(&row.broken).map(String::as_str).collect();
        let _ = writeln!(text, "- `{}` at `{}`: {}", row.attack, row.setting, missed.join(", "));
    }
    text
}

/// Appends one line of a table: the summary of the rows for which `meant` is true.
fn line(text: &mut String, name: &str, rows: &[Row], meant: impl Fn(&Row) -> bool) {
    let rows: Vec<&Row> = rows.iter().filter(|row| meant(row)).collect();
    let spread = |value: fn(&Row) -> Option<f64>| Spread::of(rows.iter().filter_map(|row| value(row)));
    let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
    let p99 = spread(|row| row.p99_times);
    let _ = writeln!(
        text,
        "{name} | {} | {} | {} | {} | {} | {} s | {}",
        rows.len(),
        show(spread(|row| row.share).map(|spread| spread.min)),
        show(p99.map(|spread| spread.median)),
        show(p99.map(|spread| spread.max)),
        rows.iter().filter(|row| row.misses("p99_times")).count(),
        show(spread(|row| row.connect_s).map(|spread| spread.max)),
        rows.iter().filter(|row| row.fails_otherwise()).count(),
    );
}

#[cfg(test)]
mod tests {
    use super::super::attacks::Place;
    use super::*;

    #[test]
    fn a_page_counts_what_missed_by_back_end_and_attack() {
        let row = |attack, backend, p99: f64, share: f64, failure: Option<&str>| {
            let mut figures = Figures::default();
            figures.at_least("share", share, 0.0, 0.95);
            figures.at_most("p99_times", p99, f64::INFINITY, 1.5);
            figures.at_most("connect_s", 0.1, 5.0, 1.0);
            let setting = Setting { backend, engine: Engine::Uring, place: Place::One };
            Row::of(attack, setting, failure.map(str::to_owned), &figures)
        };
        let rows = [
            row("flood", Backend::File, 0.5, 1.0, None),
            row("flood", Backend::Memory, 2.5, 0.99, None),
            row("storm", Backend::Memory, 1.0, 0.9, Some("no answer")),
        ];
        let text = text(&["2026-01-02".into(), "abc".into()], 5, &rows);
        assert!(text.contains("\neverywhere | 3 | 0.90 | 1.00 | 2.50 | 1 | 0.10 s | 1\n"), "{text}");
        assert!(text.contains("\nmemory volumes | 2 | 0.90 | 1.75 | 2.50 | 1 | 0.10 s | 1\n"), "{text}");
        assert!(text.contains("\n`flood` | 2 | 0.99 | 1.50 | 2.50 | 1 | 0.10 s | 0\n"), "{text}");
        assert!(text.ends_with("\n- `storm` at `memory_io_uring_one_client`: share, no answer\n"), "{text}");
    }
}
