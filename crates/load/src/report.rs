//! The results of jobs as JSON and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_policy::figures::counted;
use serde::Serialize;

use crate::journal::Record;
use crate::measure::{ERRORS, KINDS, OpStats};
use crate::run::{JobResult, per_second};

/// The document of `--json`. `docs/guide/load.md` describes every field.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Seed of the run, with which the same requests can be sent again.
    seed: u64,
    /// The result of each job, in the order of the jobs.
    jobs: Vec<JobReport>,
}

#[derive(Debug, Serialize)]
struct JobReport {
    name: String,
    uri: String,
    size_bytes: u64,
    framing: &'static str,
    queue_depth: u32,
    connections: u32,
    threads: u32,
    elapsed_s: f64,
    requests: u64,
    bytes: u64,
    iops: f64,
    bytes_per_s: f64,
    latency_us: LatencyReport,
    by_kind: BTreeMap<&'static str, KindReport>,
    errors: BTreeMap<&'static str, u64>,
    first_error: Option<String>,
    unsent: u64,
    unanswered: u64,
    client_cpu_us_per_request: f64,
    verified_bytes: u64,
    intervals: Vec<IntervalReport>,
    failure: Option<String>,
    /// True if all requests were answered within the warm-up, so that no request was measured.
    #[serde(skip)]
    warmed_up_only: bool,
}

#[derive(Debug, Serialize)]
struct KindReport {
    requests: u64,
    iops: f64,
    bytes_per_s: f64,
    latency_us: LatencyReport,
}

#[derive(Debug, Serialize)]
struct LatencyReport {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct IntervalReport {
    start_s: u32,
    iops: u64,
    bytes_per_s: u64,
    errors: u64,
    p50_us: f64,
    p99_us: f64,
}

impl LatencyReport {
    fn new(stats: &OpStats) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let histogram = &stats.latency_ns;
        let at = |q: f64| us(histogram.value_at_quantile(q));
        Self {
            min: if histogram.is_empty() { 0.0 } else { us(histogram.min()) },
            mean: if stats.requests == 0 { 0.0 } else { us(stats.sum_ns) / stats.requests as f64 },
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(histogram.max()),
        }
    }
}

impl JobReport {
    fn new(result: &JobResult) -> Self {
        let (job, summary, all) = (&result.job, &result.summary, result.total.all());
        let elapsed_s = result.elapsed_s();
        let by_kind = KINDS.iter().zip(&result.total.ops).filter(|(_, stats)| stats.requests > 0);
        let errors = ERRORS.iter().zip(result.total.errors).filter(|&(_, count)| count > 0);
        Self {
            name: job.name.clone(),
            uri: job.target.to_string(),
            size_bytes: result.connected.size,
            framing: framing(result),
            queue_depth: job.queue_depth,
            connections: job.connections,
            threads: job.threads,
            elapsed_s,
            requests: all.requests,
            bytes: all.bytes,
            iops: result.iops(),
            bytes_per_s: result.bytes_per_s(),
            latency_us: LatencyReport::new(&all),
            by_kind: by_kind
                .map(|(&kind, stats)| {
                    let report = KindReport {
                        requests: stats.requests,
                        iops: per_second(stats.requests, elapsed_s),
                        bytes_per_s: per_second(stats.bytes, elapsed_s),
                        latency_us: LatencyReport::new(stats),
                    };
                    (kind, report)
                })
                .collect(),
            errors: errors.map(|(&(_, name), count)| (name, count)).collect(),
            first_error: summary.first_error.clone(),
            unsent: summary.unsent,
            unanswered: summary.unanswered,
            client_cpu_us_per_request: if summary.answered == 0 {
                0.0
            } else {
                summary.cpu_ns as f64 / 1e3 / summary.answered as f64
            },
            verified_bytes: summary.verified_bytes,
            intervals: result
                .seconds
                .iter()
                .map(|second| IntervalReport {
                    start_s: second.at_s,
                    iops: second.requests,
                    bytes_per_s: second.bytes,
                    errors: second.errors,
                    p50_us: second.p50_ns as f64 / 1e3,
                    p99_us: second.p99_ns as f64 / 1e3,
                })
                .collect(),
            failure: summary.failure.clone(),
            warmed_up_only: job.requests.is_some() && job.warmup_ns > 0 && all.requests == 0,
        }
    }
}

fn framing(result: &JobResult) -> &'static str {
    use evenkeel_nbd::wire::Framing;
    match result.connected.framing {
        Framing::Simple => "simple",
        Framing::Structured => "structured",
        Framing::Extended => "extended",
    }
}

impl Report {
    /// The report on `results`.
    pub fn new(seed: u64, results: &[JobResult]) -> Self {
        Self { seed, jobs: results.iter().map(JobReport::new).collect() }
    }

    /// The failures of all jobs, one sentence for each failed job.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for job in &self.jobs {
            if let Some(failure) = &job.failure {
                failures.push(format!("{}: {failure}", job.name));
            } else if !job.errors.is_empty() {
                let list: Vec<String> = job.errors.iter().map(|(name, count)| format!("{count} {name}")).collect();
                let first = job.first_error.as_deref().unwrap_or_default();
                failures.push(format!("{}: requests failed: {} (the first: {first})", job.name, list.join(", ")));
            } else if job.unanswered > 0 {
                failures.push(format!("{}: no reply came to {}", job.name, counted(job.unanswered, "request")));
            } else if job.warmed_up_only {
                failures.push(format!("{}: no request was measured: all fell into --warmup; shorten it", job.name));
            }
        }
        failures
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for job in &self.jobs {
            // Writing to a String cannot fail.
            let _ = job.write(&mut out);
        }
        let _ = writeln!(out, "seed {} (repeat the same requests with --seed {0})", self.seed);
        out
    }
}

impl JobReport {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{}: {} ({} replies), {} x queue depth {}, {:.1} s",
            self.name,
            self.uri,
            self.framing,
            counted(self.connections.into(), "connection"),
            self.queue_depth,
            self.elapsed_s
        )?;
        writeln!(
            out,
            "  {:<6} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "", "IOPS", "MB/s", "mean µs", "p50 µs", "p99 µs", "p99.9 µs", "max µs"
        )?;
        let mut row = |name: &str, iops: f64, bytes_per_s: f64, latency: &LatencyReport| {
            writeln!(
                out,
                "  {name:<6} {iops:>12.0} {:>12.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                bytes_per_s / 1e6,
                latency.mean,
                latency.p50,
                latency.p99,
                latency.p999,
                latency.max
            )
        };
        for (kind, report) in &self.by_kind {
            row(kind, report.iops, report.bytes_per_s, &report.latency_us)?;
        }
        if self.by_kind.len() > 1 {
            row("all", self.iops, self.bytes_per_s, &self.latency_us)?;
        }
        for (name, count) in &self.errors {
            writeln!(out, "  {name}: {} failed", counted(*count, "request"))?;
        }
        if self.unsent > 0 {
            // A few are due in the last instant of any run.
            let behind = if self.unsent * 100 > self.requests { ": server or client falls behind" } else { "" };
            writeln!(out, "  due by the rate, not sent before the end: {}{behind}", counted(self.unsent, "request"))?;
        }
        if self.unanswered > 0 {
            writeln!(out, "  no reply came to {}", counted(self.unanswered, "request"))?;
        }
        if self.verified_bytes > 0 {
            writeln!(out, "  {:.1} MB read were compared with what was written", self.verified_bytes as f64 / 1e6)?;
        }
        if let Some(failure) = &self.failure {
            writeln!(out, "  FAILED: {failure}")?;
        }
        writeln!(out, "  client processor time {:.2} µs a request", self.client_cpu_us_per_request)
    }
}

/// A sentence with the result of the check of a job's volume against the journal `record`.
pub fn check_result(record: &Record, results: &[JobResult]) -> String {
    let bytes: u64 = results.iter().map(|result| result.summary.verified_bytes).sum();
    let lost = results.iter().find_map(JobResult::failure);
    let lines = counted(record.floors.len() as u64, "line");
    match lost {
        Some(failure) => format!("checked {bytes} bytes against {lines} of the journal: {failure}"),
        None => format!("checked {bytes} bytes against {lines} of the journal: every write is there"),
    }
}

/// The figures of the last finished second of each job, in one line.
pub fn progress_line(results: &[JobResult]) -> String {
    let job = |result: &JobResult| {
        let name = &result.job.name;
        match result.seconds.last() {
            None => format!("{name}: ..."),
            Some(second) => format!(
                "{name}: {} IOPS {:.1} MB/s p50 {:.3} ms p99 {:.3} ms{}",
                second.requests,
                second.bytes as f64 / 1e6,
                second.p50_ns as f64 / 1e6,
                second.p99_ns as f64 / 1e6,
                if second.errors > 0 { format!(" {}", counted(second.errors, "error")) } else { String::new() },
            ),
        }
    };
    results.iter().map(job).collect::<Vec<_>>().join(" | ")
}
