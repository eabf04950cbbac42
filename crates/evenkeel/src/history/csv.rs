//! The history as CSV (RFC 4180): a line for each series of each step.

use std::fmt::Write as _;

use evenkeel_policy::history::{Gauge, History, Series};
use evenkeel_policy::moment;

const HEAD: &str = "time,seconds,recorded_s,pool,tenant,device,iops,bytes_per_s,request_bytes,errors,latency_ms,p50_ms,\
p99_ms,p999_ms,queued,queued_max,in_flight,in_flight_max,budget_bytes,slots,limit_iops,limit_bytes_per_s,delay_ms\n";

/// The figures of a history, in the order of time, which is in UTC. What does not apply is empty.
pub(super) fn of(history: &History) -> String {
    let mut out = HEAD.to_owned();
    for step in &history.steps {
        let time = moment::text(step.at_s, moment::utc);
        for series in &step.series {
            let Series { iops, bytes_per_s, errors, .. } = series;
            let _ = write!(out, "{time},{},{}", step.seconds, step.recorded_s);
            for name in [&series.pool, &series.tenant, &series.device] {
                let _ = write!(out, ",{}", quoted(name));
            }
            let _ = write!(out, ",{iops},{bytes_per_s},{},{errors}", number(series.request_bytes));
            for figure in [series.latency_ms, series.p50_ms, series.p99_ms, series.p999_ms] {
                let _ = write!(out, ",{}", number(figure));
            }
            for gauge in [series.queued, series.in_flight] {
                let _ = write!(out, ",{},{}", mean(gauge), number(gauge.map(|gauge| gauge.max)));
            }
            let Series { budget_bytes, slots, limit_iops, limit_bytes_per_s, delay_ms, .. } = *series;
            for gauge in [budget_bytes, slots, limit_iops, limit_bytes_per_s, delay_ms] {
                let _ = write!(out, ",{}", mean(gauge));
            }
            out.push('\n');
        }
    }
    out
}

fn number(figure: Option<f64>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}

fn mean(gauge: Option<Gauge>) -> String {
    number(gauge.map(|gauge| gauge.mean))
}

/// A name as a field. One that a spreadsheet would take for a formula is no number, and gets an apostrophe.
fn quoted(name: &str) -> String {
    let name = if name.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{name}") } else { name.to_owned() };
    if name.contains([',', '"', '\n', '\r']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::history::Step;

    use super::*;

    #[test]
    fn each_series_of_each_step_is_a_line_with_all_columns() {
        let series = Series {
            pool: "main".into(),
            tenant: "a \"b\", c".into(),
            iops: 100.0,
            p99_ms: Some(3.5),
            queued: Some(Gauge { mean: 0.5, max: 2.0 }),
            ..Series::default()
        };
        let idle = Step { at_s: 0, seconds: 1, recorded_s: 1, series: Vec::new() };
        let step = Step { at_s: 1_795_834_800, seconds: 10, recorded_s: 9, series: vec![series] };
        let text = of(&History { steps: vec![idle, step], ..History::default() });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[1], "2026-11-28T03:00:00Z,10,9,main,\"a \"\"b\"\", c\",,100,0,,0,,,3.5,,0.5,2,,,,,,,");
        assert_eq!(lines[1].replace("\", c\"", "").matches(',').count(), lines[0].matches(',').count());
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!([quoted("\t=1+1"), quoted("a\rb")], ["'\t=1+1", "\"a\rb\""]);
    }
}
