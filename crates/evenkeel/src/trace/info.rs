//! `evenkeel trace info`: the figures of a recording as tables for a terminal of 80 columns, or as JSON.

use std::fmt::Write as _;
use std::path::PathBuf;

use evenkeel_flight::statistics::{Figures, Latency, Sizes, Summary};
use evenkeel_policy::figures::{aligned, bytes, count, counted, megabytes, ms, three};
use evenkeel_policy::moment;
use serde::Serialize;

use super::Trace;
use crate::history::{wrapped, zone};
use crate::output;

/// Width of the tables, in characters.
const WIDTH: usize = 80;

/// Arguments of `trace info`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording, or a trace of another program: fio iolog, blkparse text, MSR Cambridge CSV, SPC, MQSim
    file: PathBuf,

    /// Print the figures as one JSON document
    #[arg(long)]
    json: bool,
}

/// Prints the figures of a recording.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut trace = Trace::open(&args.file)?;
    let summary = trace.summary()?;
    let document = Document::new(&summary, trace.is_complete());
    // Removes the progress line.
    drop(trace);
    output::show(args.json, &document, |document| text(&summary, document.complete, zone::local))
}

/// The figures of a recording, for programs; `null` for those that the recording does not have.
#[derive(Debug, Serialize)]
struct Document<'s> {
    source: &'s str,
    started_unix_ns: u64,
    duration_s: f64,
    anonymised: bool,
    complete: bool,
    lost: u64,
    total: &'s Figures,
    tenants: &'s [Figures],
}

impl<'s> Document<'s> {
    fn new(summary: &'s Summary, complete: bool) -> Self {
        Self {
            source: &summary.head.source,
            started_unix_ns: summary.begun_unix_ns(),
            duration_s: summary.duration_ns as f64 / 1e9,
            anonymised: summary.head.anonymised,
            complete,
            lost: summary.lost,
            total: &summary.total,
            tenants: &summary.tenants,
        }
    }
}

/// The figures as text; the start is in the clocks of `zone`. `complete`: the recording has its end mark.
pub(super) fn text(summary: &Summary, complete: bool, zone: impl Fn(i64) -> i64) -> String {
    let mut out = String::new();
    for paragraph in about(summary, complete, zone) {
        out += &wrapped("", &paragraph, 2);
    }
    if summary.total.requests == 0 {
        return out;
    }
    let mut rows: Vec<&Figures> = summary.tenants.iter().collect();
    rows.sort_by_key(|figures| std::cmp::Reverse(figures.requests));
    rows.insert(0, &summary.total);
    for (title, table) in tables(&rows) {
        let _ = write!(out, "\n{title}\n{}", aligned(&table, 1, WIDTH));
    }
    if summary.total.device.is_none() {
        out += "\nlatencies and requests in flight: not recorded\n";
    }
    out
}

/// Source, start, duration and faults of a recording, one sentence each.
fn about(summary: &Summary, complete: bool, zone: impl Fn(i64) -> i64) -> Vec<String> {
    let Summary { head, duration_ns, lost, total, .. } = summary;
    let start = match summary.begun_unix_ns() / 1_000_000_000 {
        0 => String::new(),
        start => format!(", from {}", moment::text(start, zone)),
    };
    let source = if head.source.is_empty() { "unknown".to_owned() } else { output::printable(&head.source) };
    let seconds = three(*duration_ns as f64 / 1e9);
    let mut about = vec![format!("source: {source}{start}, {seconds} s, {}", counted(total.requests, "request"))];
    if *lost > 0 {
        let lost = counted(*lost, "request");
        about.push(format!("warning: {lost} could not be recorded; the figures are those of the others"));
    }
    if !complete {
        about.push("warning: the file has no end mark: the recording goes on, or it was cut off".into());
    }
    if head.anonymised {
        about.push("offsets and names are scrambled; within extents of 1 MiB offsets are as recorded".into());
    }
    about
}

/// The tables of the rows, each with its title. The first row is that of all tenants together.
fn tables(rows: &[&Figures]) -> Vec<(&'static str, Vec<Vec<String>>)> {
    let table = |head: &[&str], cells: &dyn Fn(&Figures) -> Vec<String>| -> Vec<Vec<String>> {
        let head = std::iter::once("tenant").chain(head.iter().copied()).map(str::to_owned).collect();
        let row = |(index, figures): (usize, &&Figures)| {
            let name = if index == 0 { "all".to_owned() } else { figures.tenant.clone() };
            std::iter::once(name).chain(cells(figures)).collect::<Vec<String>>()
        };
        std::iter::once(head).chain(rows.iter().enumerate().map(row)).collect()
    };
    let dash = || "-".to_owned();
    let percent = |share: Option<f64>| share.map_or_else(dash, |share| format!("{:.0}", share * 100.0));
    let rates = table(&["requests", "IOPS", "peak", "MB/s", "read %", "seq. %", "in flight", "peak"], &|figures| {
        let in_flight = figures.in_flight;
        vec![
            count(figures.requests as f64),
            count(figures.iops),
            count(figures.peak_iops as f64),
            megabytes(figures.bytes_per_s),
            percent(figures.read_share),
            percent(figures.sequential_share),
            in_flight.map_or_else(dash, |in_flight| count(in_flight.mean)),
            in_flight.map_or_else(dash, |in_flight| count(in_flight.peak as f64)),
        ]
    });
    let shapes = table(&["p10", "p50", "p90", "largest", "working set", "burstiness"], &|figures| {
        let size = |of: fn(&Sizes) -> u64| figures.sizes.as_ref().map_or_else(dash, |sizes| bytes(of(sizes)));
        let [p10, p50, p90] = [size(|sizes| sizes.p10), size(|sizes| sizes.p50), size(|sizes| sizes.p90)];
        vec![p10, p50, p90, size(|sizes| sizes.max), bytes(figures.working_set_bytes), count(figures.burstiness)]
    });
    let mut tables = vec![("requests", rates), ("sizes", shapes)];
    if rows[0].device.is_some() {
        let latencies = table(&["queue p50", "p99", "p99.9", "device p50", "p99", "p99.9"], &|figures| {
            let of = |latency: Option<Latency>| match latency {
                Some(Latency { p50_ns, p99_ns, p999_ns }) => [p50_ns, p99_ns, p999_ns].map(|ns| ms(ns as f64 / 1e6)),
                None => [dash(), dash(), dash()],
            };
            [of(figures.queue), of(figures.device)].concat()
        });
        tables.push(("latencies, ms", latencies));
    }
    if rows[0].failed + rows[0].cancelled + rows[0].retried > 0 {
        let faults = table(&["failed", "cancelled", "retried"], &|figures| {
            [figures.failed, figures.cancelled, figures.retried].map(|number| number.to_string()).to_vec()
        });
        tables.push(("faults", faults));
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_flight::statistics::Statistics;
    use evenkeel_flight::{Head, Item, Kind, Name, Outcome, Request, Table};

    fn head(source: &str) -> Head {
        Head { started_unix_ns: 1_795_834_800_000_000_000, source: source.into(), ..Head::default() }
    }

    fn read(arrival_ns: u64, device_ns: u64) -> Request {
        Request { arrival_ns, device_ns, tenant: 1, length: 4096, ..Request::default() }
    }

    fn summary(device_ns: u64) -> Summary {
        let mut statistics = Statistics::new(&head("serve"));
        let name = "a tenant with a long name".to_owned();
        let name = Name { table: Table::Tenant, number: 1, name, pool: String::new(), bytes: 0 };
        statistics.observe(&Item::Name(name));
        for i in 0..1000u64 {
            statistics.observe(&Item::Request(Request {
                kind: if i % 4 == 0 { Kind::Write } else { Kind::Read },
                offset: i * 4096,
                outcome: if device_ns > 0 && i == 7 { Outcome::Failed(5) } else { Outcome::Done },
                ..read((i + 1) * 10_000_000 - device_ns, device_ns)
            }));
        }
        statistics.summary()
    }

    #[test]
    fn tables_have_the_figures_within_80_columns() {
        let text = text(&summary(4_000_000), false, moment::utc);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for line in [
            "source: serve, from 2026-11-28T03:00:00Z, 10 s, 1000 requests",
            "all 1000 100 100 0.41 75 100 0.4 1.0",
            "all 4 KiB 4 KiB 4 KiB 4 KiB 4.0 MiB 0",
            "all 0 0 0 4.00 4.00 4.00",
            "all 1 0 0",
        ] {
            assert!(lines.contains(&line.split_whitespace().collect()), "no {line:?} in\n{text}");
        }
        assert!(text.contains("\nwarning: the file has no end mark"), "{text}");
    }

    #[test]
    fn a_segment_of_a_ring_is_shown_from_its_first_request() {
        let mut statistics = Statistics::new(&head("serve"));
        for i in 0..10 {
            let days_ns = 10 * 86_400_000_000_000;
            statistics.observe(&Item::Request(read(days_ns + i * 100_000_000, 100_000_000)));
        }
        let summary = statistics.summary();
        let text = text(&summary, true, moment::utc);
        assert!(text.starts_with("source: serve, from 2026-12-08T03:00:00Z, 1 s, 10 requests\n"), "{text}");
        let document = serde_json::to_value(Document::new(&summary, true)).expect("JSON");
        assert_eq!(document["started_unix_ns"], 1_796_698_800_000_000_000_u64);
    }

    #[test]
    fn the_source_cannot_drive_the_terminal() {
        let text = text(&Statistics::new(&head("\u{1b}[2Jx")).summary(), true, moment::utc);
        assert!(text.starts_with("source: ?[2Jx, from "), "{text}");
    }

    #[test]
    fn latencies_that_are_not_recorded_are_no_zeroes() {
        let summary = summary(0);
        let text = text(&summary, true, moment::utc);
        assert!(text.ends_with("\nlatencies and requests in flight: not recorded\n"), "{text}");
        assert!(!text.contains("device p50") && !text.contains("warning"), "{text}");
        let document = serde_json::to_value(Document::new(&summary, true)).expect("JSON");
        assert_eq!(document["total"]["device"], serde_json::Value::Null);
        assert_eq!(document["tenants"][0]["requests"], 1000);
        assert_eq!(document["complete"], true);
    }
}
