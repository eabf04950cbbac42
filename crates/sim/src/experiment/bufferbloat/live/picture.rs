//! The result as a table with bars, and as a page with a plot.

use std::fmt::Write as _;

use super::{Measured, conclusions, kib};
use crate::report::{Axis, Block, Cell, Page, Plot, Section, Series, Style, Table};

/// Width of a full bar on the terminal, in columns.
const BAR: usize = 24;

/// A bar of block characters, `value / most` of `columns` long, rounded to eighths of a column.
fn bar(value: f64, most: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * (columns * 8) as f64).round() as usize;
    // Something there is never shown as nothing.
    let eighths = if value > 0.0 { eighths.max(1) } else { eighths };
    let text = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let width = eighths.div_ceil(8);
    text + &" ".repeat(columns - width)
}

fn most(measured: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    measured.iter().map(of).fold(0.0, f64::max)
}

/// A table with a row for each measurement: budget, latencies of the light client and throughput of the bulk writer.
pub fn text(measured: &[Measured]) -> String {
    let longest = most(measured, |m| m.light_p99_ms);
    let fastest = most(measured, |m| m.bulk_bytes_per_s);
    let name = measured.iter().map(|m| m.label().len()).max().unwrap_or(0).max(13);
    let mut out = format!(
        "{:<name$} {:>10} {:>8} {:>8} {:>8}  {:<BAR$} {:>6}  {}\n",
        "admission", "budget", "p50 ms", "p99 ms", "burst", "light client, p99", "MB/s", "bulk writer"
    );
    for m in measured {
        let (setting, budget) = (m.label(), m.budget_bytes.map_or_else(|| "unbounded".into(), kib));
        let [p50, p99, burst] = [m.light_p50_ms, m.light_p99_ms, m.burst_p99_ms];
        let mb_per_s = m.bulk_bytes_per_s / 1e6;
        let (late, fast) = (bar(m.light_p99_ms, longest, BAR), bar(m.bulk_bytes_per_s, fastest, BAR));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{setting:<name$} {budget:>10} {p50:>8.1} {p99:>8.1} {burst:>8.1}  {late} {mb_per_s:>6.1}  {}",
            fast.trim_end(),
        );
    }
    out
}

/// A page with a plot of latency over throughput. `command` repeats the measurement.
pub fn page(measured: &[Measured], command: String) -> Page {
    let series = |name: &str, adapts| {
        let of = measured.iter().filter(move |m| m.adapts() == adapts);
        Series::named(name, Style::Dots, of.map(|m| (m.bulk_bytes_per_s / 1e6, m.light_p99_ms, m.label())))
    };
    let title = "Light client, 99th percentile, over bulk throughput";
    let (x, y) = (Axis::linear("bulk writer, MB/s"), Axis::log("light client, ms"));
    let plot = Plot::new(title, "", x, y, [series("fixed budget", false), series("finds its budget", true)]);
    let columns = ["admission", "budget KiB", "light p50 ms", "light p99 ms", "burst p99 ms", "bulk MB/s"];
    let rows = measured.iter().map(|m| {
        let budget = m.budget_bytes.map_or(Cell::Empty, |bytes| Cell::Number(((bytes >> 10) as f64).into()));
        let figures = [m.light_p50_ms, m.light_p99_ms, m.burst_p99_ms, m.bulk_bytes_per_s / 1e6];
        let figures = figures.map(|figure| Cell::Number(figure.into()));
        [Cell::Text(m.label()), budget].into_iter().chain(figures).collect()
    });
    let columns = columns.map(str::to_owned).to_vec();
    let table = Table { columns, rows: rows.collect(), ..Table::default() };
    Page {
        title: "Bufferbloat".into(),
        intro: conclusions(measured).lines().map(str::to_owned).collect(),
        facts: vec![("command".into(), command)],
        sections: vec![Section { blocks: vec![Block::Plot(plot), Block::Table(table)], ..Section::default() }],
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: &'static str, light_p99_ms: f64) -> Measured {
        Measured { light_p99_ms, ..Measured::usual(setting) }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        assert_eq!(bar(10.0, 10.0, 4), "████");
        assert_eq!(bar(5.0, 10.0, 4), "██  ");
        assert_eq!(bar(0.01, 10.0, 4), "▏   ");
        assert_eq!(bar(0.0, 10.0, 4), "    ");
        assert_eq!(bar(1.0, 0.0, 4), "▏   ");
    }

    #[test]
    fn every_setting_has_a_row_and_a_point() {
        let all = [row("none", 40.0), row("slowfast", 0.0)];
        let table = text(&all);
        assert_eq!(table.lines().count(), 3);
        let columns: Vec<usize> =
            table.lines().map(|line| line.chars().take_while(|&c| c != '█').count()).skip(1).collect();
        assert!(columns[0] < 60, "{table}");
        let page = page(&all, "a command".into());
        let [Block::Plot(plot), Block::Table(table)] = &page.sections[0].blocks[..] else { panic!("{page:?}") };
        assert_eq!(
            (plot.series[0].labels.as_slice(), plot.series[1].labels.as_slice()),
            (&["none".to_owned()][..], &["slowfast".to_owned()][..])
        );
        assert_eq!((table.rows.len(), page.intro.len()), (2, 2));
        let html = page.html();
        for odd in ["NaN", "inf", "http:", "https:"] {
            assert!(!html.contains(odd), "{odd} in {html}");
        }
    }
}
