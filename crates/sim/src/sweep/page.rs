//! The results of a plan as a page: bounds, table, curves over the swept values, and the first seed's run over time.

use crate::world::{Run, Sample, TenantSample};
use evenkeel_control::Instant;
use evenkeel_policy::explain;
use evenkeel_policy::units::{Bytes, Duration};

use super::outcome::{Measured, Outcome, PointOutcome};
use super::plan::{self, Plan};
use crate::report::{Axis, Block, Cell, Check, Decimal, Mark, Page, Plot, Section, Series, Style, Table};

/// Number of series of a plot that are visible at first. The reader can select further ones in the legend.
const SHOWN: usize = 8;
/// Largest number of runs that are drawn over time. More would make the page large and the plots unreadable.
const DRAWN: usize = 24;
/// The [`Plot::link`] of all plots over time, which makes them zoom together.
const TIME: &str = "time";

/// Columns of the table of results: heading, metric, and divisor of the metric's value.
const COLUMNS: [(&str, &str, f64); 9] = [
    ("IOPS", "iops", 1.0),
    ("MB/s", "bytes_per_s", 1e6),
    ("mean, ms", "mean_ms", 1.0),
    ("p50, ms", "p50_ms", 1.0),
    ("p99, ms", "p99_ms", 1.0),
    ("p99.9, ms", "p999_ms", 1.0),
    ("queueing p99, ms", "queue_p99_ms", 1.0),
    ("device p99, ms", "device_p99_ms", 1.0),
    ("inversion, ms a request", "inversion_mean_ms", 1.0),
];

/// The page of an outcome. `text` is the scenario as written; `command` is the command line that repeats the runs.
pub fn page(plan: &Plan, outcome: &Outcome, text: &str, command: String) -> Page {
    let scenario = &plan.points[0].scenario;
    let sections =
        [Some(results(plan, outcome)), curves(plan, outcome), course(plan, outcome), percentiles(plan, outcome)];
    let listing = Block::Listing { title: "Scenario".into(), text: text.to_owned() };
    let source = Section { title: "Setup".into(), text: vec![command], blocks: vec![listing] };
    Page {
        title: plan.title.clone(),
        intro: scenario.description.split("\n\n").map(|part| part.trim().replace('\n', " ")).collect(),
        facts: facts(plan),
        checks: checks(plan, outcome),
        sections: sections.into_iter().flatten().chain([source]).collect(),
    }
}

fn facts(plan: &Plan) -> Vec<(String, String)> {
    let setup = &plan.points[0].scenario.setup;
    let seeds = match plan.seeds {
        1 => plan.seed.to_string(),
        n => format!("{} to {}", plan.seed, plan.seed.wrapping_add(u64::from(n) - 1)),
    };
    [
        ("virtual time", format!("{:?}", setup.duration)),
        ("warm-up", format!("{:?}", setup.warmup)),
        (if plan.seeds == 1 { "seed" } else { "seeds" }, seeds),
        ("runs", plan.runs().len().to_string()),
        ("evenkeel", env!("CARGO_PKG_VERSION").to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn checks(plan: &Plan, outcome: &Outcome) -> Vec<Check> {
    let points = plan.points.iter().zip(&outcome.points);
    let check = |(point, result): (&plan::Point, &PointOutcome)| {
        let at = plan.label(point).map_or_else(String::new, |label| format!(" at {label}"));
        let checks = result.bounds.iter().map(|bound| Check {
            what: format!("{}{at}", bound.formula()),
            measured: bound.shown(),
            met: bound.met,
            note: bound.why.clone(),
        });
        checks.collect::<Vec<_>>()
    };
    points.flat_map(check).collect()
}

fn cell(measured: &Measured, unit: f64) -> Cell {
    let mean = Decimal(measured.mean / unit);
    match measured.values.len() {
        1 => Cell::Number(mean),
        _ => Cell::Interval(mean, Decimal(measured.ci95 / unit)),
    }
}

/// The table of results, with a row for each tenant of each point.
fn results(plan: &Plan, outcome: &Outcome) -> Section {
    let names = COLUMNS.iter().map(|&(name, ..)| name.to_owned());
    let bounded = !plan.keys.is_empty() && outcome.points.iter().any(|point| !point.bounds.is_empty());
    let verdict = bounded.then(|| "bounds".to_owned());
    let columns = plan.keys.iter().cloned().chain(["tenant".to_owned()]).chain(names).chain(verdict).collect();
    let mut rows = Vec::new();
    for (point, result) in plan.points.iter().zip(&outcome.points) {
        for (place, tenant) in plan.tenants.iter().enumerate() {
            let values = point.values.iter().map(|value| Cell::Text(value.clone()));
            let figures =
                COLUMNS.iter().map(|&(_, metric, unit)| cell(result.metric(&format!("{tenant}.{metric}")), unit));
            let verdict = bounded.then(|| match place {
                0 => Cell::Met(result.bounds.iter().all(|bound| bound.met)),
                _ => Cell::Empty,
            });
            rows.push(values.chain([Cell::Text(tenant.clone())]).chain(figures).chain(verdict).collect());
        }
    }
    let table = Table { title: String::new(), columns, rows };
    let note = match plan.seeds {
        1 => "Latency = queue latency + device latency.".to_owned(),
        n => format!(
            "Latency = queue latency + device latency. Means over {n} seeds ± half of the 95 % confidence interval."
        ),
    };
    Section { title: "Results".into(), text: vec![note], blocks: vec![Block::Table(table)] }
}

/// The section with the curves of a sweep: latency over throughput, and each of them over the last swept key. `None` without
/// a sweep.
fn curves(plan: &Plan, outcome: &Outcome) -> Option<Section> {
    let (last, others) = plan.keys.split_last()?;
    let per_series = plan.points.len().checked_div(series_count(plan, others.len())).filter(|&n| n > 0)?;
    // A line from one number to the next has a meaning, from one name to the next it has none.
    let numbers = plan.points.iter().all(|point| point.values.last().is_some_and(|value| number(value).is_some()));
    let style = if numbers { Style::Dotted } else { Style::Dots };
    let mut blocks = Vec::new();
    let metric = |result: &PointOutcome, name: &str, unit: f64| result.metric(name).mean / unit;
    let plot = |title: &str, note: &str, x: Axis, y: Axis, of: &dyn Fn(&PointOutcome, &str, f64) -> (f64, f64)| {
        let mut series = Vec::new();
        for (points, results) in plan.points.chunks(per_series).zip(outcome.points.chunks(per_series)) {
            let fixed = plan::describe(others, &points[0].values);
            for tenant in &plan.tenants {
                let coordinates = results
                    .iter()
                    .zip(points)
                    .enumerate()
                    .map(|(place, (result, point))| of(result, tenant, position(point.values.last(), place)));
                let name = [tenant.as_str(), &fixed].into_iter().filter(|part| !part.is_empty());
                let labels = points.iter().map(|point| plan::describe(&plan.keys, &point.values));
                series.push(Series {
                    labels: labels.collect(),
                    hidden: series.len() >= SHOWN,
                    ..Series::new(name.collect::<Vec<_>>().join(", "), style, coordinates)
                });
            }
        }
        Block::Plot(Plot::new(title, note, x, y, series))
    };
    blocks.push(plot(
        "Latency over throughput",
        "One dot for each combination of settings; below and to the right is better.",
        Axis::linear("throughput of all tenants, MB/s"),
        Axis::log("99th percentile of the latency, ms"),
        &|result, tenant, _| (metric(result, "bytes_per_s", 1e6), metric(result, &format!("{tenant}.p99_ms"), 1.0)),
    ));
    let axis = || axis(last, &plan.points, numbers);
    blocks.push(plot("99th percentile of the latency", "", axis(), Axis::log("ms"), &|result, tenant, x| {
        (x, metric(result, &format!("{tenant}.p99_ms"), 1.0))
    }));
    blocks.push(plot("Throughput", "", axis(), Axis::linear("MB/s"), &|result, tenant, x| {
        (x, metric(result, &format!("{tenant}.bytes_per_s"), 1e6))
    }));
    let text = format!("{per_series} values of {last}.");
    Some(Section { title: "Over the settings".into(), text: vec![text], blocks })
}

/// Number of series in the curves of a sweep: the combinations of values of the first `others` swept keys, all but the last.
fn series_count(plan: &Plan, others: usize) -> usize {
    let mut seen: Vec<&[String]> = plan.points.iter().map(|point| &point.values[..others]).collect();
    seen.dedup();
    seen.len()
}

/// A swept value as a number: bytes in KiB, times in ms. `None` for a text.
fn number(value: &str) -> Option<f64> {
    let text = value.trim_matches(['"', '\'']);
    let plain = || text.parse::<f64>().ok().filter(|number| number.is_finite());
    let bytes = || text.parse::<Bytes>().ok().map(|bytes| bytes.0 as f64 / 1024.0);
    let time = || text.parse::<Duration>().ok().map(|time| time.as_secs_f64() * 1e3);
    // Times first: "1m" is a minute, and never meant as a mebibyte.
    plain().or_else(time).or_else(bytes)
}

/// Position of a swept value on the axis: the value as a number, or `place`, its place in the sweep, if it is a text.
fn position(value: Option<&String>, place: usize) -> f64 {
    value.and_then(|value| number(value)).unwrap_or(place as f64)
}

/// The axis of a swept key: logarithmic if its values span more than a factor of ten, otherwise linear. Without `numbers`
/// the values are texts, and positions are their places in the sweep.
fn axis(key: &str, points: &[plan::Point], numbers: bool) -> Axis {
    if !numbers {
        return Axis::linear(format!("{key}, by place"));
    }
    let values = || points.iter().filter_map(|point| number(point.values.last()?));
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let label = points.first().map_or_else(|| key.to_owned(), |point| unit(key, &point.values));
    if least > 0.0 && most > 10.0 * least { Axis::log(label) } else { Axis::linear(label) }
}

/// A swept key as the label of an axis, with the unit that [`number`] uses for its values.
fn unit(key: &str, values: &[String]) -> String {
    let text = values.last().map(|value| value.trim_matches(['"', '\''])).unwrap_or_default();
    match (text.parse::<f64>(), text.parse::<Duration>()) {
        (Ok(_), _) => key.to_owned(),
        (_, Ok(_)) => format!("{key}, ms"),
        _ => format!("{key}, KiB"),
    }
}

/// The runs that were kept for the page, each with the label of its point.
fn kept<'a>(plan: &'a Plan, outcome: &'a Outcome) -> impl Iterator<Item = (String, &'a Run)> {
    let points = plan.points.iter().zip(&outcome.points);
    points.filter_map(|(point, result)| Some((plan.label(point).unwrap_or_default(), result.run.as_ref()?))).take(DRAWN)
}

/// Seconds from the start of the run to `at`, in virtual time.
fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

/// The section with plots over time: throughput, latencies, admission budget and latency target. `None` if no run was kept.
fn course(plan: &Plan, outcome: &Outcome) -> Option<Section> {
    let single = plan.keys.is_empty();
    kept(plan, outcome).next()?;
    let marks: Vec<Mark> = plan.points[0]
        .scenario
        .marks
        .iter()
        .map(|(at, label)| Mark { at: Decimal(seconds(*at)), label: label.clone() })
        .collect();
    let over_time = |title: String, note: &str, y: Axis, mut series: Vec<Series>| {
        series.iter_mut().skip(SHOWN).for_each(|series| series.hidden = true);
        let plot = Plot::new(title, note, Axis::linear("time, s"), y, series);
        let plot = Plot { marks: marks.clone(), link: TIME.into(), ..plot };
        plot.has_points().then_some(Block::Plot(plot))
    };
    // Without a sweep a plot compares tenants; with one, a plot for each tenant compares settings.
    let by_tenant = |title: &str, note: &str, y: &dyn Fn() -> Axis, of: &dyn Fn(&TenantSample, f64) -> f64| {
        let line = |name: String, run: &Run, place: usize| Series::new(name, Style::Line, samples(run, place, of));
        if single {
            let (_, run) = kept(plan, outcome).next()?;
            let lines = plan.tenants.iter().enumerate().map(|(place, tenant)| line(tenant.clone(), run, place));
            return Some(over_time(title.into(), note, y(), lines.collect()).into_iter().collect::<Vec<_>>());
        }
        let plots = plan.tenants.iter().enumerate().filter_map(|(place, tenant)| {
            let lines = kept(plan, outcome).map(|(label, run)| line(label, run, place));
            over_time(format!("{title}: {tenant}"), note, y(), lines.collect())
        });
        Some(plots.collect())
    };
    let pool_wide = |title: &str, note: &str, y: Axis, of: &dyn Fn(&str, &Run) -> Vec<Series>| {
        over_time(title.into(), note, y, kept(plan, outcome).flat_map(|(label, run)| of(&label, run)).collect())
    };
    let mut blocks = Vec::new();
    blocks.extend(by_tenant("Throughput", "", &|| Axis::linear("MB/s"), &|sample, interval| {
        sample.served.bytes as f64 / interval / 1e6
    }));
    let ms = |duration: evenkeel_control::Duration| duration.as_secs_f64() * 1e3;
    blocks.extend(by_tenant(
        "Latency, 99th percentile",
        "Of the requests that completed in each interval.",
        &|| Axis::log("ms"),
        &|sample, _| if sample.served.requests == 0 { f64::NAN } else { ms(sample.p99_response) },
    ));
    blocks.extend(by_tenant("Latency, mean", "", &|| Axis::log("ms"), &|sample, _| {
        sample.served.mean_response().map_or(f64::NAN, ms)
    }));
    let mut blocks: Vec<Block> = blocks.into_iter().flatten().collect();
    blocks.extend(pool_wide(
        "Admission budget",
        "Budget, in a single run bytes in flight, and at the cursor the latest reason.",
        Axis::linear("KiB"),
        &|label, run| budget(label, run, single),
    ));
    blocks.extend(pool_wide(
        "Latency target",
        "The latency that admission aims at.",
        Axis::linear("ms"),
        &|label, run| {
            let target = |sample: &Sample| {
                (seconds(sample.at), sample.target.map_or(f64::NAN, ms), explain::admission(&sample.target_reason))
            };
            vec![Series::named(named("target", label), Style::Steps, run.series.iter().map(target))]
        },
    ));
    blocks.extend(pool_wide(
        "Requests waiting",
        "Before admission, where they can be reordered.",
        Axis::linear("requests"),
        &|label, run| {
            let points = run.series.iter().map(|sample| (seconds(sample.at), sample.queued as f64));
            vec![Series::new(named("waiting", label), Style::Steps, points)]
        },
    ));
    let interval = plan.points[0].scenario.setup.sample_every;
    let mut text = vec![format!("The run with seed {}, in intervals of {interval:?}.", plan.seed)];
    if plan.points.len() > DRAWN {
        text.push(format!("Of {} combinations the first {DRAWN} are plotted.", plan.points.len()));
    }
    Some(Section { title: "Over time".into(), text, blocks })
}

/// Time in seconds, and a value, for each sample of the tenant with number `place`. `of` computes the value from the sample
/// and its length in seconds.
fn samples<'a>(
    run: &'a Run,
    place: usize,
    of: &'a dyn Fn(&TenantSample, f64) -> f64,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let starts = std::iter::once(run.counted_from).chain(run.series.iter().map(|sample| sample.at));
    starts.zip(&run.series).map(move |(start, sample)| {
        let interval = sample.at.since(start).as_secs_f64();
        (seconds(sample.at), of(&sample.tenants[place], interval))
    })
}

/// The label of a point, or `what` if the label is empty.
fn named(what: &str, label: &str) -> String {
    if label.is_empty() { what.to_owned() } else { label.to_owned() }
}

/// The series of the admission budget over time and, if `single` (only one run is drawn), of the bytes in flight.
fn budget(label: &str, run: &Run, single: bool) -> Vec<Series> {
    let kib = |bytes: u64| if bytes == u64::MAX { f64::NAN } else { bytes as f64 / 1024.0 };
    let point = |sample: &Sample| (seconds(sample.at), kib(sample.budget_bytes), explain::admission(&sample.reason));
    let mut series = vec![Series::named(named("budget", label), Style::Steps, run.series.iter().map(point))];
    if single {
        let inside = run.series.iter().map(|sample| (seconds(sample.at), kib(sample.in_flight_bytes)));
        series.push(Series::new("inside", Style::Line, inside));
    }
    series
}

/// The section with the percentile curves: latency over the share of requests. `None` if no request completed.
fn percentiles(plan: &Plan, outcome: &Outcome) -> Option<Section> {
    let mut series = Vec::new();
    for (label, run) in kept(plan, outcome) {
        for tenant in &run.tenants {
            let name = if label.is_empty() { tenant.name.clone() } else { format!("{}, {label}", tenant.name) };
            let shares = shares(tenant.requests);
            let points = shares.map(|share| (share, tenant.response.quantile(share).as_secs_f64() * 1e3));
            series.push(Series { hidden: series.len() >= SHOWN, ..Series::new(name, Style::Line, points) });
        }
    }
    if series.iter().all(|series| series.points.is_empty()) {
        return None;
    }
    let note = "At 99 %, so many milliseconds are enough for 99 of 100 requests.";
    let (x, y) = (Axis::nines("share of requests"), Axis::log("latency, ms"));
    let plot = Plot::new("Latency by share of requests", note, x, y, series);
    let text = vec![format!("All requests that completed in the counted time of the run with seed {}.", plan.seed)];
    Some(Section { title: "Percentiles".into(), text, blocks: vec![Block::Plot(plot)] })
}

/// The shares at which a percentile curve is drawn: from 0 to 1 - 1/`requests`, at most 0.99999, denser towards 1.
fn shares(requests: u64) -> impl Iterator<Item = f64> {
    let nines = libm::log10(requests.max(1) as f64).min(5.0);
    let steps = if requests == 0 { 0 } else { (nines * 20.0) as u32 + 1 };
    (0..steps).map(|step| 1.0 - libm::pow(10.0, -f64::from(step) / 20.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swept_values_stand_at_their_numbers() {
        assert_eq!(
            [number("4"), number("2.5"), number("64KiB"), number("\"1MiB\"")],
            [Some(4.0), Some(2.5), Some(64.0), Some(1024.0)]
        );
        assert_eq!([number("5ms"), number("2s"), number("none")], [Some(5.0), Some(2000.0), None]);
        assert_eq!(unit("budget", &["64KiB".into()]), "budget, KiB");
        assert_eq!(unit("queue_depth", &["4".into()]), "queue_depth");
        assert_eq!(position(Some(&"none".into()), 3), 3.0);
    }

    #[test]
    fn shares_end_where_requests_do() {
        assert_eq!(shares(0).count(), 0);
        let last = |requests| shares(requests).last().unwrap();
        assert!((last(1000) - 0.999).abs() < 1e-9 && (last(u64::MAX) - 0.99999).abs() < 1e-9);
    }
}
