//! The result as a table with bars, sentences, and a page with a plot.

use std::fmt::Write as _;

use evenkeel_sim::report::{Axis, Block, Cell, Page, Plot, Section, Series, Style, Table};

use super::Row;

/// Width of a full bar on the terminal, in columns.
const BAR: usize = 24;

/// A bar, `value / most` of [`BAR`] long; a value above 0 has at least one column.
fn bar(value: f64, most: f64) -> String {
    let columns = if most > 0.0 { (value / most * BAR as f64).round() as usize } else { 0 };
    "█".repeat(columns.clamp(usize::from(value > 0.0), BAR))
}

fn megabytes(row: &Row) -> f64 {
    row.writer.map_or(0.0, |writer| writer.bytes_per_s / 1e6)
}

/// A table with a row for each phase: latencies of the reader and throughput of the writer.
pub(super) fn text(rows: &[Row]) -> String {
    let longest = rows.iter().map(|row| row.reader.p99_ms).fold(0.0, f64::max);
    let fastest = rows.iter().map(megabytes).fold(0.0, f64::max);
    let mut out = format!(
        "{:<16} {:>8} {:>8} {:>8}  {:<BAR$} {:>8}  {}\n",
        "phase", "mean ms", "p50 ms", "p99 ms", "reader, p99", "MB/s", "writer"
    );
    for row in rows {
        let (reader, rate) = (&row.reader, megabytes(row));
        let (late, fast) = (bar(reader.p99_ms, longest), bar(rate, fastest));
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{:<16} {:>8.2} {:>8.2} {:>8.2}  {late:<BAR$}",
            row.phase, reader.mean_ms, reader.p50_ms, reader.p99_ms
        );
        let _ = if row.writer.is_some() { writeln!(out, " {rate:>8.1}  {fast}") } else { writeln!(out) };
    }
    out
}

/// Sentences that follow from the figures. `target_ms`: the latency target of the last phase.
pub(super) fn conclusions(rows: &[Row], target_ms: Option<f64>) -> String {
    let find = |phase: &str| rows.iter().find(|row| row.phase == phase);
    let (Some(alone), Some(nothing)) = (find(super::ALONE), find(super::NOTHING)) else { return String::new() };
    let times = nothing.reader.p99_ms / alone.reader.p99_ms.max(1e-6);
    let mut text = format!(
        "Beside the writer the reader's 99th percentile is {:.2} ms, {times:.1} times as long as alone.\n",
        nothing.reader.p99_ms
    );
    if nothing.reader.mean_ms < super::SLOWED * alone.reader.mean_ms {
        text += "This disk hardly slows the reader down: there is little to see. Choose a slower one with --file.\n";
    }
    let part = |row: &Row| 100.0 * megabytes(row) / megabytes(nothing).max(1e-9);
    if let Some(hand) = find(super::BY_HAND) {
        let _ = writeln!(
            text,
            "With a limit by hand this percentile is {:.2} ms, and the writer keeps {:.0} % of its throughput, \
             also while nothing else reads.",
            hand.reader.p99_ms,
            part(hand)
        );
    }
    if let (Some(managed), Some(target)) = (find(super::EVENKEEL), target_ms) {
        let verdict = if managed.reader.mean_ms <= target { "met" } else { "missed" };
        let _ = writeln!(
            text,
            "With Evenkeel it is {:.2} ms, and the writer keeps {:.0} %: the reader's target of {target:.2} ms for the mean is \
             {verdict} ({:.2} ms).",
            managed.reader.p99_ms,
            part(managed),
            managed.reader.mean_ms
        );
    }
    text
}

/// A page with a plot of the reader's latency over the writer's throughput. `command` repeats the measurement.
pub(super) fn page(rows: &[Row], target_ms: Option<f64>, command: String) -> Page {
    let points = rows.iter().filter(|row| row.writer.is_some());
    let points = points.map(|row| (megabytes(row), row.reader.p99_ms, row.phase.to_owned()));
    let (x, y) = (Axis::linear("writer, MB/s"), Axis::log("reader, ms"));
    let title = "Reader, 99th percentile, over the writer's throughput";
    let plot = Plot::new(title, "", x, y, [Series::named("phase", Style::Dots, points)]);
    let columns = ["phase", "mean ms", "p50 ms", "p99 ms", "writer MB/s"].map(str::to_owned).to_vec();
    let cells = |row: &Row| {
        let figures = [row.reader.mean_ms, row.reader.p50_ms, row.reader.p99_ms].map(|ms| Cell::Number(ms.into()));
        let rate = row.writer.map_or(Cell::Empty, |writer| Cell::Number((writer.bytes_per_s / 1e6).into()));
        [Cell::Text(row.phase.to_owned())].into_iter().chain(figures).chain([rate]).collect()
    };
    let table = Table { columns, rows: rows.iter().map(cells).collect(), ..Table::default() };
    Page {
        title: "Noisy neighbour".into(),
        intro: conclusions(rows, target_ms).lines().map(str::to_owned).collect(),
        facts: vec![("command".into(), command)],
        sections: vec![Section { blocks: vec![Block::Plot(plot), Block::Table(table)], ..Section::default() }],
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Figures;
    use super::*;

    fn row(phase: &'static str, ms: f64, megabytes: Option<f64>) -> Row {
        let reader = Figures { mean_ms: ms, p50_ms: ms, p99_ms: 2.0 * ms, ..Figures::default() };
        let writer = megabytes.map(|rate| Figures { bytes_per_s: rate * 1e6, ..Figures::default() });
        Row { phase, reader, writer }
    }

    fn rows() -> Vec<Row> {
        vec![
            row(super::super::ALONE, 1.0, None),
            row(super::super::NOTHING, 20.0, Some(100.0)),
            row(super::super::BY_HAND, 9.0, Some(50.0)),
            row(super::super::EVENKEEL, 6.0, Some(75.0)),
        ]
    }

    #[test]
    fn the_table_has_bars_of_both_figures() {
        let text = text(&rows());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[1].starts_with("alone") && lines[1].matches('█').count() == 1, "{text}");
        assert_eq!(lines[2].matches('█').count(), 2 * BAR, "{text}");
        assert!(lines[4].contains("12.00") && lines[4].contains("75.0"), "{text}");
    }

    #[test]
    fn the_sentences_follow_the_figures() {
        let text = conclusions(&rows(), Some(7.0));
        for words in
            ["40.00 ms, 20.0 times", "18.00 ms, and the writer keeps 50 %", "75 %", "7.00 ms for the mean is met"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(conclusions(&rows(), Some(5.0)).contains("is missed (6.00 ms)"));
        assert!(conclusions(&rows()[..1], None).is_empty());
        let fast = [row(super::super::ALONE, 1.0, None), row(super::super::NOTHING, 1.1, Some(900.0))];
        assert!(conclusions(&fast, None).contains("little to see"));
        assert!(page(&rows(), Some(7.0), "evenkeel demo neighbour".into()).html().contains("Noisy neighbour"));
    }
}
