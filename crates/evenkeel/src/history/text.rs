//! The history as a table for a terminal of 80 columns, with gaps and events between the steps.

use std::fmt::Write as _;

use evenkeel_policy::figures::{aligned, count, counted, megabytes, ms};
use evenkeel_policy::history::{Event, EventKind, Gap, Gauge, History, Series, Step};
use evenkeel_policy::moment;

/// Width of the table, in characters.
const WIDTH: usize = 80;
/// The worst level of a trouble.
const CRITICAL: &str = "critical";
/// The columns behind that of the time.
const HEAD: [&str; 8] = ["pool, tenant", "IOPS", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "queued", "flight"];

/// Order of lines of the same moment: figures, failed requests, a gap, events.
const FIGURES: u8 = 0;
const FAILED: u8 = 1;
const GAP: u8 = 2;
const EVENT: u8 = 3;

/// A line of the table at a moment.
enum Line {
    Row(Vec<String>),
    Text(String),
}

/// The history as text; times are those of `zone`.
pub(super) fn of(history: &History, zone: impl Fn(i64) -> i64 + Copy) -> String {
    let (from, to) = (history.from_s, history.to_s);
    let same_day = moment::date(from, zone) == moment::date(to.saturating_sub(1), zone);
    let time = |at: u64| match same_day {
        true => moment::time(at, zone),
        false => format!("{} {}", &moment::date(at, zone)[5..], moment::time(at, zone)),
    };
    let mut lines: Vec<(u64, u8, Line)> = Vec::new();
    for step in &history.steps {
        let mut rows: Vec<&Series> = step.series.iter().collect();
        rows.sort_by(|a, b| (&a.pool, &a.tenant, &a.device).cmp(&(&b.pool, &b.tenant, &b.device)));
        lines.extend(rows.iter().map(|series| (step.at_s, FIGURES, Line::Row(row(time(step.at_s), series)))));
        lines.extend(rows.iter().filter(|series| series.errors > 0).map(|series| {
            let failed = format!("{} of {} failed", counted(series.errors, "request"), name(series));
            (step.at_s, FAILED, Line::Text(failed))
        }));
    }
    lines.extend(idle(&history.steps).into_iter().map(|(from, to)| {
        let idle = format!("idle until {}", time(to));
        (from, FIGURES, Line::Text(idle))
    }));
    lines.extend(history.gaps.iter().map(|gap| (gap.from_s, GAP, Line::Text(gap_text(gap, time)))));
    lines.extend(history.events.iter().map(|event| (event.at_s, EVENT, Line::Text(event_text(event)))));
    lines.sort_by_key(|(at, kind, _)| (*at, *kind));

    let mut table = vec![std::iter::once("time").chain(HEAD).map(str::to_owned).collect::<Vec<_>>()];
    table.extend(
        lines.iter().filter_map(|(_, _, line)| if let Line::Row(row) = line { Some(row.clone()) } else { None }),
    );
    let aligned = aligned(&table, 2, WIDTH);
    let mut rows = aligned.lines();

    let mut out = String::new();
    let zone_name = moment::text(from, zone)[19..].to_owned();
    let zone_name = if zone_name == "Z" { "UTC".to_owned() } else { format!("UTC{zone_name}") };
    let step = history.steps.iter().map(|step| step.seconds).max().unwrap_or(history.step_s).max(history.step_s);
    let longer = if step > history.step_s { format!(", older ones of up to {step} s") } else { String::new() };
    let _ = writeln!(out, "{} ({zone_name}), steps of {} s{longer}", moment::date(from, zone), history.step_s);
    let oldest = history.oldest_s.map_or_else(|| "none".into(), |oldest| moment::text(oldest, zone));
    let _ = writeln!(out, "oldest record: {oldest}\n");
    let _ = writeln!(out, "{}", rows.next().unwrap_or_default());
    for (at, kind, line) in &lines {
        match line {
            Line::Row(_) => {
                let _ = writeln!(out, "{}", rows.next().unwrap_or_default());
            }
            Line::Text(text) => {
                let head = if *kind == GAP { "  ".to_owned() } else { time(*at) + "  " };
                out += &wrapped(&head, text, 10);
            }
        }
    }
    if history.steps.is_empty() && history.gaps.is_empty() {
        out.push_str("nothing is recorded of this time\n");
    }
    for problem in &history.problems {
        let _ = write!(out, "\n{}", wrapped("warning: ", problem, 2));
    }
    out
}

/// Begin and end of the times in which no series had figures, Unix time in seconds.
fn idle(steps: &[Step]) -> Vec<(u64, u64)> {
    let mut times: Vec<(u64, u64)> = Vec::new();
    for step in steps.iter().filter(|step| step.series.is_empty()) {
        let end = step.at_s + step.seconds;
        match times.last_mut() {
            Some((_, to)) if *to == step.at_s => *to = end,
            _ => times.push((step.at_s, end)),
        }
    }
    times
}

/// Name of a series: its pool, tenant and device, as far as it has them.
fn name(series: &Series) -> String {
    let parts = [&series.pool, &series.tenant, &series.device].into_iter().filter(|part| !part.is_empty());
    parts.map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn row(time: String, series: &Series) -> Vec<String> {
    let latency = |figure: Option<f64>| figure.map_or_else(|| "-".into(), ms);
    let mean = |gauge: Option<Gauge>| gauge.map_or_else(|| "-".into(), |gauge| count(gauge.mean));
    let Series { iops, bytes_per_s, p50_ms, p99_ms, p999_ms, queued, in_flight, .. } = *series;
    let [p50, p99, p999] = [p50_ms, p99_ms, p999_ms].map(latency);
    vec![time, name(series), count(iops), megabytes(bytes_per_s), p50, p99, p999, mean(queued), mean(in_flight)]
}

fn gap_text(gap: &Gap, time: impl Fn(u64) -> String) -> String {
    format!("no record from {} to {}: {}", time(gap.from_s), time(gap.to_s), gap.because)
}

/// The words for the kind of an event, and for the level of a critical trouble.
fn words(event: &Event) -> String {
    let words = event.kind.words();
    if event.level == CRITICAL { format!("{CRITICAL} {words}") } else { words.to_owned() }
}

/// An event without its time.
pub(crate) fn event_text(event: &Event) -> String {
    let about = match event.kind {
        EventKind::Decision => {
            let parts = [&event.pool, &event.tenant].into_iter().filter(|part| !part.is_empty());
            parts.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
        EventKind::TroubleBegins | EventKind::TroubleEnds if event.about.is_empty() => words(event),
        EventKind::TroubleBegins | EventKind::TroubleEnds => format!("{}, {}", words(event), event.about),
        EventKind::Started | EventKind::Stopped => words(event),
    };
    if about.is_empty() { event.because.clone() } else { format!("{about}: {}", event.because) }
}

/// Text behind `head` in lines of at most [`WIDTH`] characters, of which all but the first are indented.
pub(crate) fn wrapped(head: &str, text: &str, indent: usize) -> String {
    let (mut out, mut line, mut begins) = (String::new(), head.to_owned(), true);
    for word in text.split_whitespace() {
        if !begins && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out += &line;
            out.push('\n');
            (line, begins) = (" ".repeat(indent), true);
        }
        if !begins {
            line.push(' ');
        }
        line += word;
        begins = false;
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_critical_trouble_is_called_so() {
        let of = |level: &str, kind| {
            let (level, about) = (level.to_owned(), "volume db".to_owned());
            event_text(&Event { level, about, kind, because: "12 requests failed".into(), ..Event::default() })
        };
        assert_eq!(of("critical", EventKind::TroubleBegins), "critical trouble, volume db: 12 requests failed");
        assert_eq!(of("critical", EventKind::TroubleEnds), "critical trouble ended, volume db: 12 requests failed");
        assert_eq!(of("warning", EventKind::TroubleBegins), "trouble, volume db: 12 requests failed");
    }

    #[test]
    fn a_table_has_steps_gaps_and_events_in_order_within_80_columns() {
        let series = |tenant: &str, errors| Series {
            pool: "main".into(),
            tenant: tenant.into(),
            iops: 1_234.0,
            bytes_per_s: 5_054_464.0,
            errors,
            p50_ms: Some(0.82),
            p99_ms: Some(3.1),
            p999_ms: Some(9.0),
            queued: Some(Gauge { mean: 3.1, max: 9.0 }),
            in_flight: Some(Gauge { mean: 12.0, max: 32.0 }),
            ..Series::default()
        };
        let at = 1_795_834_800;
        let step = |n: u64, series| Step { at_s: at + n, seconds: 10, recorded_s: 10, series };
        let because = "the server was not running: a crash, kill -9 or a loss of power had ended it";
        let sentence = "throttled by the latency target's controller, 4 slots, 5 ms delay: the most requests of all";
        let history = History {
            oldest_s: Some(at - 100_000),
            from_s: at,
            to_s: at + 200,
            step_s: 10,
            steps: vec![
                step(0, vec![series("", 0), series("a tenant with a long name", 3)]),
                step(10, Vec::new()),
                step(20, Vec::new()),
                step(190, vec![series("", 0)]),
            ],
            gaps: vec![Gap { from_s: at + 30, to_s: at + 190, because: because.into() }],
            events: vec![Event {
                at_s: at + 4,
                pool: "main".into(),
                tenant: "backup".into(),
                because: sentence.into(),
                ..Event::default()
            }],
            ..History::default()
        };
        let text = of(&history, moment::utc);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let expected = "\
2026-11-28 (UTC), steps of 10 s
oldest record: 2026-11-26T23:13:20Z

time      pool, tenant      IOPS  MB/s  p50 ms  p99 ms  p99.9 ms  queued  flight
";
        assert_eq!(text.lines().take(4).collect::<Vec<_>>(), expected.lines().collect::<Vec<_>>(), "{text}");
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{text}"));
        let order = [
            "03:00:00  main ",
            "3 requests of main a tenant",
            "main backup: throttled by",
            "03:00:10  idle until 03:00:30",
        ];
        assert!(order.map(position).is_sorted(), "{text}");
        assert!(position("03:00:10  idle") < position("no record from 03:00:30 to 03:03:10"), "{text}");
        assert!(position("no record") < position("03:03:10  main"), "{text}");
        let empty = of(&History { from_s: at, to_s: at + 10, step_s: 1, ..History::default() }, moment::utc);
        assert!(
            empty.contains("oldest record: none") && empty.ends_with("nothing is recorded of this time\n"),
            "{empty}"
        );
    }
}
