//! The form of a client's workload, as written in TOML. `docs/guide/workloads.md` explains every key.

use std::io::{self, BufRead};

use evenkeel_policy::units::{Bytes, Duration};
use evenkeel_policy::workload::{Burst, Pattern, SizeMix};
use serde::{Deserialize, Serialize};

use super::spec::{Arrivals, Spec};
use super::trace::{BadLines, Event, Format};

mod build;
mod rules;

/// A fault of a workload's form, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Problem {
    /// The faulty key, dotted from the outermost table of the workload inward, such as `phases.1.rate`; phases count from 0.
    pub key: String,
    /// The fault and its remedy.
    pub message: String,
}

/// The workload that was built from a form, with warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The client's workload.
    pub spec: Spec,
    /// Warnings, such as about lines of a trace that were left out.
    pub warnings: Vec<Problem>,
}

/// A function that opens a trace by the name that the form gives.
pub type Open<'a> = &'a mut dyn FnMut(&str) -> io::Result<Box<dyn BufRead>>;

/// A workload as deserialized from TOML. The keys present decide the kind of workload: `idle`, `phases` or `trace`; without
/// these, generated requests in bursts (`burst_requests`), in an open loop (`rate`) or, by default, in a closed loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Form {
    /// Closed loop: requests outstanding at once, 1 to 65536; default 1.
    pub queue_depth: Option<u32>,
    /// Closed loop: time from a completion to the request that replaces the completed one; default 0s.
    pub think_time: Option<Duration>,
    /// Open loop: requests per second; for a trace, the mean rate at which it is replayed.
    pub rate: Option<f64>,
    /// Distribution of the gaps between requests of an open loop, or between bursts.
    pub arrivals: Option<Arrivals>,
    /// Alternating durations of sending and of pausing, as in "200ms:800ms"; default: no pauses.
    pub burst: Option<Burst>,
    /// Number of requests of a burst; they are sent all at once, every `burst_every`.
    pub burst_requests: Option<u32>,
    /// Time from the start of one burst to the start of the next.
    pub burst_every: Option<Duration>,

    /// Kinds of requests: reads, writes or both.
    pub op: Option<Op>,
    /// Share of reads among reads and writes if `op` is "mix", in per cent, 0 to 100; default 70.
    pub read_percent: Option<f64>,
    /// Size of a request, or several sizes with weights, as in "4k:80,64k:20"; default 4k.
    pub block_size: Option<SizeMix>,
    /// Order of the requests' offsets: "random" (default), "sequential" or "zipf:EXPONENT".
    pub pattern: Option<Pattern>,
    /// Number of sequential streams, from which requests are taken in turn; default 1.
    pub streams: Option<u32>,
    /// Number of writes after which a flush is sent; default: no flushes.
    pub flush_every: Option<u32>,
    /// Start of the device's part to which requests go; default 0.
    pub offset: Option<Bytes>,
    /// Size of the device's part to which requests go. Default: 1GiB for generated requests; for a trace the smallest part
    /// that holds all its requests.
    pub size: Option<Bytes>,

    /// True for a client that sends nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,

    /// Workloads that are run one after the other, each for its length (key `for`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Form>,
    /// Length of the phase; only in workloads of `phases`.
    #[serde(rename = "for")]
    pub length: Option<Duration>,
    /// Number of times that phases or a trace are played; 0 = for ever; default 1.
    pub repeat: Option<u32>,

    /// Name of a file of recorded requests.
    pub trace: Option<String>,
    /// Format of the trace; default: detected from its first lines.
    pub format: Option<Format>,
    /// Events of a blkparse text that count as requests; default "queue".
    pub event: Option<Event>,
    /// Treatment of bad lines in a trace: "stop" (default) or "skip".
    pub bad_lines: Option<BadLines>,
    /// Devices whose requests are replayed; default: all.
    pub devices: Option<Vec<u32>>,
    /// Replay only requests that come at least this long after the first one of the trace.
    pub from: Option<Duration>,
    /// Replay only requests that come less than this long after the first one of the trace.
    pub until: Option<Duration>,
    /// Number of requests left out at the start of the trace; only requests that the other keys select count.
    pub skip: Option<u64>,
    /// The most requests replayed, counted after the ones that `skip` leaves out.
    pub count: Option<u64>,
    /// Factor on the speed of the replay; default 1.
    pub speed: Option<f64>,
    /// Unit, in bytes, to multiples of which offsets and sizes are rounded; default 1.
    pub align: Option<Bytes>,
}

/// Kinds of requests that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes, in the share of `read_percent`.
    Mix,
}

impl Form {
    /// All faults of the form that can be found without opening its traces.
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        rules::check(self, "", false, &mut problems);
        problems
    }

    /// The workload that the form describes; its traces are read through `open`.
    ///
    /// # Errors
    /// All faults of the form, or the first trace that cannot be used.
    pub fn build(&self, open: Open<'_>) -> Result<Built, Vec<Problem>> {
        let problems = self.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut warnings = Vec::new();
        let spec = build::build(self, "", open, &mut warnings).map_err(|problem| vec![problem])?;
        Ok(Built { spec, warnings })
    }
}

/// The dotted path of `key` in the table at `path`.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
