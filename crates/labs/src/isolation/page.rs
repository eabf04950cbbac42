//! Writes the page with the results of a full run of the lab of isolation.

use std::fmt::Write as _;

use anyhow::Result;
use evenkeel_record::{Origin, head};

use super::SHORT_BAR_S;
use super::attacker::ASKS_PER_S;
use super::attacks::{Backend, CONNECTIONS_PER_S, Engine, Setting};
use crate::base::record::{Page, own_command};
use crate::base::spelled::spelled;
use crate::check::figures::{Figures, Spread};

/// Figures with a bar, in the order in which the page names them.
const BARS: [&str; 5] = ["share", P99, "connect_s", "healthz_s", "processors"];
const P99: &str = "p99_times";
/// The most settings above only the bar for the p99 that the page lists.
const LISTED: usize = 100;
/// Columns of both tables.
const COLUMNS: [&str; 10] = [
    "settings",
    "share, least",
    "p99, median",
    "p99, worst",
    "there, ms",
    "beside bulk, ms",
    "p99 above the bar",
    "new connection, s",
    "`/healthz`, s",
    "processors",
];

/// The results of an attack in one setting: medians over the repeats.
pub(super) struct Row {
    attack: &'static str,
    setting: Setting,
    /// Failures as text: that of the attack itself, and figures other than the p99 beyond the limit of every working mechanism.
    broken: Vec<String>,
    /// The figures with a bar ([`BARS`]), and the light client's p99 latency in ms: `p99_ms` beside the attack, `bulk_ms` beside
    /// the bulk writer.
    figures: Figures,
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
                .chain(figures.broken().iter().filter(|what| !what.starts_with(P99)).cloned())
                .collect(),
            figures: figures.clone(),
            missed: figures.missed(),
        }
    }

    fn misses(&self, figure: &str) -> bool {
        self.missed.iter().any(|name| name == figure)
    }

    /// True if the attack failed for another reason than a p99 above its bar.
    fn fails_otherwise(&self) -> bool {
        !self.broken.is_empty() || self.missed.iter().any(|name| name != P99)
    }

    /// The median of a figure; `None` if the attack does not measure it.
    fn value(&self, figure: &str) -> Option<f64> {
        self.figures.median(figure)
    }

    /// The missed bars with their values, and the failures, as text.
    fn failures(&self) -> String {
        let missed = BARS.into_iter().filter(|bar| self.misses(bar)).map(|bar| {
            let value = show(self.value(bar));
            match bar {
                P99 => {
                    let (there, bulk) = (show(self.value("p99_ms")), show(self.value("bulk_ms")));
                    format!("{bar} {value}, {there} ms against {bulk} ms")
                }
                bar => format!("{bar} {value}"),
            }
        });
        missed.chain(self.broken.iter().cloned()).collect::<Vec<_>>().join("; ")
    }
}

/// Writes the page of results. `origin` is the state before the first round; `repeats` is the number of rounds; `short_s` is the
/// duration of a short run, and `seconds` that of everything until now.
pub(super) fn write(origin: &Origin, rows: &[Row], repeats: u64, [short_s, seconds]: [f64; 2]) -> Result<()> {
    let page = Page {
        name: "isolation".into(),
        title: "Isolation: attacks beside a client with a reservation".into(),
        what: "[The lab](../../crates/labs/src/isolation/README.md) attacks a server beside a light client.".into(),
        seed: None,
    };
    let line = origin.line(&own_command(), None, &format!("{seconds:.0} s"));
    page.write(&format!("{}\n{}", head(&page.title, &page.what, &line), text(repeats, short_s, rows)))
}

fn text(repeats: u64, short_s: f64, rows: &[Row]) -> String {
    let mut text = format!(
        "Medians of {repeats}. `share`: answers of those due, at least 0.95. `p99`: the client's p99 as a multiple of that beside a \
         bulk writer, at most 1.5; `there` and `beside bulk`: both in the setting with the worst multiple. The other columns show \
         the worst setting: new connections and `/healthz` at most 1 s, `processors` that a storm keeps busy at most 0.1.\n\n\
         Each process of an attacker runs as SCHED_IDLE, on the second half of the processors (the light client has the \
         first), and begins at most {} connections and {} requests a \
         second.\n\nA short run, each attack once, took {short_s:.0} s, of {SHORT_BAR_S:.0} s at most.\n\n",
        thousands(CONNECTIONS_PER_S),
        thousands(ASKS_PER_S),
    );
    let head = |first: &str| {
        format!("{first} | {} | other failures\n---{}|---\n", COLUMNS.join(" | "), "|---".repeat(COLUMNS.len()))
    };
    text += &head("where");
    line(&mut text, "everywhere", rows, |_| true);
    for backend in Backend::ALL {
        line(&mut text, &format!("{} volumes", spelled(&backend)), rows, |row| row.setting.backend == backend);
    }
    for engine in Engine::ALL {
        line(&mut text, &spelled(&engine), rows, |row| row.setting.engine == engine);
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
    text += &missed(rows);
    text
}

/// A sentence for each bar, and a list of the settings that miss a bar or fail. If the list is long, it has only those that miss
/// another bar than that of the p99.
fn missed(rows: &[Row]) -> String {
    let mut text = "\n## Missed bars\n\n".to_owned();
    let mut sentences = Vec::new();
    for bar in BARS {
        let measured = rows.iter().filter(|row| row.value(bar).is_some()).count();
        match rows.iter().filter(|row| row.misses(bar)).count() {
            0 if measured == 0 => {}
            0 => sentences.push(format!("`{bar}` meets its bar in each of {measured} settings.")),
            count => sentences.push(format!("`{bar}` misses its bar in {count} of {measured} settings.")),
        }
    }
    let broken = rows.iter().filter(|row| !row.broken.is_empty()).count();
    sentences.push(match broken {
        0 => "No attack failed.".to_owned(),
        count => format!("The attack failed in {count} settings."),
    });
    text += &sentences.join(" ");
    text += "\n";
    let failed: Vec<&Row> = rows.iter().filter(|row| row.misses(P99) || row.fails_otherwise()).collect();
    let all = failed.len() <= LISTED;
    let listed: Vec<&Row> = failed.iter().copied().filter(|row| all || row.fails_otherwise()).collect();
    if !all {
        let rest = failed.len() - listed.len();
        let _ = writeln!(text, "\nNot listed: {rest} settings that miss only the bar of `{P99}`.");
    }
    if !listed.is_empty() {
        text += "\n";
    }
    for row in listed {
        let _ = writeln!(text, "- `{}` at `{}`: {}", row.attack, row.setting, row.failures());
    }
    text
}

/// Appends one line of a table: the summary of the rows for which `meant` is true.
fn line(text: &mut String, name: &str, rows: &[Row], meant: impl Fn(&Row) -> bool) {
    let rows: Vec<&Row> = rows.iter().filter(|row| meant(row)).collect();
    let spread = |figure: &str| Spread::of(rows.iter().filter_map(|row| row.value(figure)));
    let most = |figure: &str| show(spread(figure).map(|spread| spread.max));
    let p99 = spread(P99);
    let times = |row: &&&Row| row.value(P99).unwrap_or(0.0);
    let worst = rows.iter().max_by(|a, b| times(a).total_cmp(&times(b)));
    let cells = [
        rows.len().to_string(),
        show(spread("share").map(|spread| spread.min)),
        show(p99.map(|spread| spread.median)),
        show(p99.map(|spread| spread.max)),
        show(worst.and_then(|row| row.value("p99_ms"))),
        show(worst.and_then(|row| row.value("bulk_ms"))),
        rows.iter().filter(|row| row.misses(P99)).count().to_string(),
        most("connect_s"),
        most("healthz_s"),
        most("processors"),
        rows.iter().filter(|row| row.fails_otherwise()).count().to_string(),
    ];
    let _ = writeln!(text, "{name} | {}", cells.join(" | "));
}

/// A value with two digits, or a dash.
fn show(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

/// A number of thousands, with a comma.
fn thousands(number: u64) -> String {
    format!("{},{:03}", number / 1_000, number % 1_000)
}

#[cfg(test)]
mod tests {
    use super::super::attacks::Place;
    use super::*;

    fn row(attack: &'static str, backend: Backend, p99: f64, share: f64, failure: Option<&str>) -> Row {
        let mut figures = Figures::default();
        figures.at_least("share", share, 0.0, 0.95);
        figures.at_most(P99, p99, f64::INFINITY, 1.5);
        figures.aside("p99_ms", p99 * 4.0);
        figures.aside("bulk_ms", 4.0);
        figures.at_most("connect_s", 0.1, 5.0, 1.0);
        if attack == "storm" {
            figures.at_most("healthz_s", 0.25, 5.0, 1.0);
            figures.at_most("processors", 0.12, f64::INFINITY, 0.1);
        }
        let setting = Setting { backend, engine: Engine::Uring, place: Place::One };
        Row::of(attack, setting, failure.map(str::to_owned), &figures)
    }

    fn page(rows: &[Row]) -> String {
        text(5, 201.6, rows)
    }

    #[test]
    fn a_page_counts_what_missed_by_back_end_and_attack() {
        let text = page(&[
            row("flood", Backend::File, 0.5, 1.0, None),
            row("flood", Backend::Memory, 2.5, 0.99, None),
            row("storm", Backend::Memory, 1.0, 0.9, Some("no answer")),
        ]);
        let lines = [
            "everywhere | 3 | 0.90 | 1.00 | 2.50 | 10.00 | 4.00 | 1 | 0.10 | 0.25 | 0.12 | 1",
            "memory volumes | 2 | 0.90 | 1.75 | 2.50 | 10.00 | 4.00 | 1 | 0.10 | 0.25 | 0.12 | 1",
            "`flood` | 2 | 0.99 | 1.50 | 2.50 | 10.00 | 4.00 | 1 | 0.10 | – | – | 0",
            "`storm` | 1 | 0.90 | 1.00 | 1.00 | 4.00 | 4.00 | 0 | 0.10 | 0.25 | 0.12 | 1",
        ];
        for line in lines {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        let (head, rule) = text.split_once("\nwhere").and_then(|(_, rest)| rest.split_once('\n')).unwrap();
        let columns = |line: &str| line.lines().next().unwrap_or_default().matches('|').count();
        assert_eq!([columns(head), columns(rule)], [columns(lines[0]); 2], "{text}");
        let attackers = "runs as SCHED_IDLE, on the second half of the processors (the light client has the first), and begins \
                         at most 5,000 connections and 50,000 requests";
        assert!(text.contains(attackers), "{text}");
        assert!(text.contains(" took 202 s, of 240 s at most."), "{text}");
    }

    #[test]
    fn a_page_lists_each_setting_that_misses_a_bar() {
        let text = page(&[
            row("flood", Backend::File, 0.5, 1.0, None),
            row("flood", Backend::Memory, 2.5, 0.99, None),
            row("storm", Backend::Memory, 1.0, 0.9, Some("no answer")),
        ]);
        let end = "\n## Missed bars\n\n`share` misses its bar in 1 of 3 settings. `p99_times` misses its bar in 1 of 3 settings. \
            `connect_s` meets its bar in each of 3 settings. `healthz_s` meets its bar in each of 1 settings. \
            `processors` misses its bar in 1 of 1 settings. The attack failed in 1 settings.\n\n\
            - `flood` at `memory_io_uring_one_client`: p99_times 2.50, 10.00 ms against 4.00 ms\n\
            - `storm` at `memory_io_uring_one_client`: share 0.90; processors 0.12; no answer\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_long_list_keeps_what_fails_otherwise() {
        let mut rows: Vec<Row> = (0..=LISTED).map(|_| row("flood", Backend::File, 2.0, 1.0, None)).collect();
        rows.push(row("flood", Backend::Emulated, 2.0, 0.5, None));
        let text = page(&rows);
        let end = "\nNot listed: 101 settings that miss only the bar of `p99_times`.\n\n\
            - `flood` at `emulated_io_uring_one_client`: share 0.50; p99_times 2.00, 8.00 ms against 4.00 ms\n";
        assert!(text.ends_with(end), "{text}");
        let good = page(&[row("flood", Backend::File, 1.0, 1.0, None)]);
        assert!(good.ends_with("`connect_s` meets its bar in each of 1 settings. No attack failed.\n"), "{good}");
    }
}
