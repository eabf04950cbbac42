//! `evenkeel trace plot`: a recording as one HTML page with plots.

use std::path::{Path, PathBuf};

use anyhow::Context;
use evenkeel_flight::statistics::{Course, Figures, Point, Summary, Timeline};
use evenkeel_policy::moment;
use evenkeel_sim::report::{Axis, Block, Cell, Decimal, Page, Plot, Section, Series, Style, Table};

use super::Trace;
use crate::output;

/// Number of tenants, those with the most requests, that have plots.
const PLOTTED: usize = 8;
/// Group of the plots over time.
const TIME: &str = "time";

/// Arguments of `trace plot`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording, or a trace of another program: fio iolog, blkparse text, MSR Cambridge CSV, SPC, MQSim
    file: PathBuf,

    /// HTML file to write; it contains all its data and loads nothing else
    #[arg(short, long, value_name = "FILE.html")]
    output: PathBuf,
}

/// Writes the page of a recording. The file is read twice: for the figures, then for their course.
///
/// # Errors
/// A recording that cannot be read, or a page that cannot be written.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    super::ensure_apart(&args.file, &args.output)?;
    let _prepared = output::prepare(&args.output)?;
    let page = page(&args.file)?;
    std::fs::write(&args.output, page.html()).with_context(|| output::cannot_write(&args.output))
}

/// The page of the recording in a file.
fn page(file: &Path) -> anyhow::Result<Page> {
    let summary = Trace::open(file)?.summary()?;
    let mut tenants: Vec<&Figures> = summary.tenants.iter().filter(|figures| figures.number.is_some()).collect();
    tenants.sort_by_key(|figures| std::cmp::Reverse(figures.requests));
    tenants.truncate(PLOTTED);
    let numbers: Vec<u32> = tenants.iter().filter_map(|figures| figures.number).collect();
    let mut timeline = Timeline::new(summary.begin_ns, summary.duration_ns, &numbers);
    let mut trace = Trace::open_again(file)?;
    while let Some(item) = trace.item()? {
        timeline.observe(&item);
    }
    let courses = timeline.courses();
    let named = std::iter::once(("all tenants", &summary.total));
    let named = named.chain(tenants.iter().map(|figures| (figures.tenant.as_str(), *figures)));
    let rows: Vec<(&str, &Figures, &Course)> =
        named.zip(&courses).map(|((name, figures), course)| (name, figures, course)).collect();
    let has_latencies = summary.total.device.is_some();
    let sections = rows.iter().map(|(name, _, course)| Section {
        title: (*name).to_owned(),
        text: Vec::new(),
        blocks: plots(course, has_latencies).into_iter().map(Block::Plot).collect(),
    });
    let mut intro = Vec::new();
    if summary.lost > 0 {
        intro.push(format!("{} requests could not be recorded: the figures are those of the others.", summary.lost));
    }
    if !has_latencies {
        intro.push("This file has no latencies, so that it shows no requests in flight.".into());
    }
    let more = summary.tenants.len().saturating_sub(PLOTTED);
    if more > 0 {
        intro.push(format!("{PLOTTED} tenants with the most requests have plots, {more} more are in the table."));
    }
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    Ok(Page {
        title: format!("Recording {file}"),
        intro,
        facts: facts(&summary),
        checks: Vec::new(),
        sections: std::iter::once(overview(&summary, &rows)).chain(sections).collect(),
    })
}

fn facts(summary: &Summary) -> Vec<(String, String)> {
    let seconds = summary.begun_unix_ns() / 1_000_000_000;
    let start = if seconds == 0 { "not recorded".into() } else { moment::text(seconds, moment::utc) };
    [
        ("source", summary.head.source.clone()),
        ("start", start),
        ("duration, s", evenkeel_sim::report::short(summary.duration_ns as f64 / 1e9)),
        ("requests", summary.total.requests.to_string()),
        ("lost", summary.lost.to_string()),
        ("evenkeel", env!("CARGO_PKG_VERSION").to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The table of all tenants, and the rates of those that have plots.
fn overview(summary: &Summary, rows: &[(&str, &Figures, &Course)]) -> Section {
    let series = rows.iter().map(|(name, _, course)| curve(name, course, |point| Some(point.iops)));
    let rates = Plot::new("Rate", "", time(), Axis::linear("requests per second"), series);
    Section {
        title: "Tenants".into(),
        text: Vec::new(),
        blocks: vec![Block::Table(table(summary)), Block::Plot(Plot { link: TIME.into(), ..rates })],
    }
}

fn table(summary: &Summary) -> Table {
    let columns = [
        "tenant",
        "requests",
        "IOPS",
        "peak IOPS",
        "MB/s",
        "reads, %",
        "sequential, %",
        "median size, bytes",
        "mean in flight",
        "queue p99, ms",
        "device p99, ms",
        "working set, MiB",
        "burstiness",
        "failed",
        "cancelled",
        "retried",
    ];
    let number = |value: f64| Cell::Number(Decimal(value));
    let maybe = |value: Option<f64>| value.map_or(Cell::Empty, number);
    let row = |name: &str, figures: &Figures| {
        vec![
            Cell::Text(name.to_owned()),
            number(figures.requests as f64),
            number(figures.iops),
            number(figures.peak_iops as f64),
            number(figures.bytes_per_s / 1e6),
            maybe(figures.read_share.map(|share| share * 100.0)),
            maybe(figures.sequential_share.map(|share| share * 100.0)),
            maybe(figures.sizes.map(|sizes| sizes.p50 as f64)),
            maybe(figures.in_flight.map(|in_flight| in_flight.mean)),
            maybe(figures.queue.map(|latency| latency.p99_ns as f64 / 1e6)),
            maybe(figures.device.map(|latency| latency.p99_ns as f64 / 1e6)),
            number(figures.working_set_bytes as f64 / f64::from(1 << 20)),
            number(figures.burstiness),
            number(figures.failed as f64),
            number(figures.cancelled as f64),
            number(figures.retried as f64),
        ]
    };
    let tenants = summary.tenants.iter().map(|figures| row(&figures.tenant, figures));
    Table {
        title: String::new(),
        columns: columns.map(str::to_owned).into(),
        rows: std::iter::once(row("all", &summary.total)).chain(tenants).collect(),
    }
}

/// The plots of a tenant, or of all tenants together.
fn plots(course: &Course, has_latencies: bool) -> Vec<Plot> {
    let over_time = |title: &str, note: &str, y: Axis, series: Vec<Series>| Plot {
        link: TIME.into(),
        ..Plot::new(title, note, time(), y, series)
    };
    let mut plots = vec![
        over_time(
            "Rate",
            "",
            Axis::linear("requests per second"),
            vec![curve("arrivals", course, |point| Some(point.iops))],
        ),
        over_time(
            "Throughput",
            "Reads and writes.",
            Axis::linear("MB/s"),
            vec![curve("arrivals", course, |point| Some(point.bytes_per_s / 1e6))],
        ),
    ];
    if has_latencies {
        let latency = |title: &str, percentiles: fn(&Point) -> Option<[u64; 2]>| {
            let in_ms = |index: usize| move |point: &Point| percentiles(point).map(|both| both[index] as f64 / 1e6);
            let curves = vec![curve("p50", course, in_ms(0)), curve("p99", course, in_ms(1))];
            over_time(title, "Of the requests that arrived in a step.", Axis::log("latency, ms"), curves)
        };
        plots.push(latency("Queue latency", |point| point.queue_ns));
        plots.push(latency("Device latency", |point| point.device_ns));
        plots.push(over_time(
            "In flight",
            "Mean number of requests between arrival and completion.",
            Axis::linear("requests"),
            vec![curve("in flight", course, |point| Some(point.in_flight))],
        ));
    }
    let sizes = course.sizes.iter().map(|(size, share)| (*size as f64, share * 100.0));
    plots.push(Plot::new(
        "Request sizes",
        "Share of reads and writes that are not larger.",
        Axis::log("bytes"),
        Axis::linear("share, %"),
        [Series::new("reads and writes", Style::Steps, sizes)],
    ));
    plots
}

fn time() -> Axis {
    Axis::linear("time, s")
}

/// A curve over time. A step without a figure makes a gap.
fn curve(name: &str, course: &Course, figure: impl Fn(&Point) -> Option<f64>) -> Series {
    let points = course.points.iter().map(|point| (point.at_s, figure(point).unwrap_or(f64::NAN)));
    Series::new(name, Style::Steps, points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_plots_of_each_tenant() {
        let text = "0,0,4096,r,0.0\n1,8,4096,w,1.0\n0,8,8192,r,2.5\n";
        let folder = crate::folder::Folder::new();
        let page = page(&folder.file("a.spc", text)).expect("a page");
        let titles: Vec<&str> = page.sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["Tenants", "all tenants", "device0", "device1"]);
        assert_eq!(page.intro, ["This file has no latencies, so that it shows no requests in flight."]);
        let plots = |section: &Section| -> Vec<Plot> {
            let plot = |block: &Block| if let Block::Plot(plot) = block { Some(plot.clone()) } else { None };
            section.blocks.iter().filter_map(plot).collect()
        };
        let names = |section: &Section| plots(section).into_iter().map(|plot| plot.title).collect::<Vec<_>>();
        assert_eq!(names(&page.sections[2]), ["Rate", "Throughput", "Request sizes"]);
        assert_eq!(plots(&page.sections[0])[0].series.len(), 3);
        let drawn = plots(&page.sections[2]);
        let sizes = [(Decimal(4096.0), Decimal(50.0)), (Decimal(8192.0), Decimal(100.0))];
        assert_eq!(drawn[2].series[0].points, sizes);
        assert!(page.html().contains("device1"));
    }
}
