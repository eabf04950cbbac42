//! Runs the load of a comparison: by `evenkeel load` or, over TLS, by `nbdcopy`, which reads from Evenkeel and from nbdkit.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Case, Contender, MEMORY_BYTES};
use crate::base::process;
use crate::base::servers::{Address, EXPORT};

/// Number of requests that `nbdcopy` keeps in flight.
const REQUESTS: u32 = 8;
/// Size of a request of `nbdcopy`, in bytes.
const REQUEST_BYTES: u64 = 128 << 10;

/// The fields of `evenkeel load --json` that comparisons use.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) requests: f64,
    pub(super) iops: f64,
    pub(super) bytes_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// True if no request failed or was lost.
    pub(super) clean: bool,
}

impl Job {
    fn read(report: &Value) -> Option<Self> {
        let job = report.get("jobs")?.get(0)?;
        let number = |key: &str| job.get(key)?.as_f64();
        let latency = |key: &str| job.get("latency_us")?.get(key)?.as_f64();
        Some(Self {
            requests: number("requests")?,
            iops: number("iops")?,
            bytes_per_s: number("bytes_per_s")?,
            p50_us: latency("p50")?,
            p99_us: latency("p99")?,
            clean: job.get("failure")?.is_null() && job.get("errors")?.as_object()?.is_empty(),
        })
    }
}

/// Runs the load of a case over a Unix socket or TCP.
///
/// # Errors
/// When the load generator or a request fails.
pub(super) fn run(case: &Case, seconds: u32, contender: &Contender<'_>) -> Result<Job> {
    let mut load = Command::new(contender.client);
    load.arg("load").arg(contender.address.uri()).args(["--json", "--op", case.op, "--block-size", case.block_size]);
    load.args(["--pattern", case.pattern, "--duration", &format!("{seconds}s")]);
    load.args(["--queue-depth", &case.queue_depth.to_string(), "--connections", &case.connections.to_string()]);
    let report = process::json(&mut load)?;
    let job = Job::read(&report).with_context(|| format!("unexpected report of the load generator: {report}"))?;
    ensure!(job.requests > 0.0 && job.clean, "requests failed: {report}");
    Ok(job)
}

/// Reads the whole export by `nbdcopy` over TLS, again and again for `seconds`, each time on a new connection.
///
/// # Errors
/// When the address is no TCP address, or `nbdcopy` fails.
pub(super) fn copy(address: &Address, certificates: &Path, seconds: u32) -> Result<Job> {
    let Address::Tcp(port) = address else { anyhow::bail!("TLS is measured over TCP") };
    let uri = format!("nbds://localhost:{port}/{EXPORT}?tls-certificates={}", certificates.display());
    let begun = Instant::now();
    let mut copied = 0;
    while begun.elapsed() < Duration::from_secs(seconds.into()) {
        let mut nbdcopy: Command = process::program("nbdcopy");
        nbdcopy.args(["--connections=1", "--no-extents"]).arg(format!("--requests={REQUESTS}"));
        nbdcopy.arg(format!("--request-size={REQUEST_BYTES}")).args([&uri, "null:"]);
        process::output(&mut nbdcopy)?;
        copied += MEMORY_BYTES;
    }
    let bytes_per_s = copied as f64 / begun.elapsed().as_secs_f64();
    Ok(Job {
        requests: copied as f64 / REQUEST_BYTES as f64,
        iops: bytes_per_s / REQUEST_BYTES as f64,
        bytes_per_s,
        // It tells no times.
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        clean: true,
    })
}
