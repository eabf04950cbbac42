//! A client's workload, as people write it in TOML; `docs/guide/workloads.md` explains every key.

use std::io::{self, BufRead};

use evenkeel_policy::units::{Bytes, Duration};
use evenkeel_policy::workload::{Burst, Pattern, SizeMix};
use serde::{Deserialize, Serialize};

use super::spec::{Arrivals, Spec};
use super::trace::{BadLines, Event, Format};

mod build;
mod rules;

/// A fault of a form, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Problem {
    /// The key, dotted from the outermost table of the workload inward, phases counted from 0: `phases.1.rate`.
    pub key: String,
    /// The fault, and what would be right.
    pub message: String,
}

/// A form brought to a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The client's workload.
    pub spec: Spec,
    /// Doubts, such as lines of a trace that were left out.
    pub warnings: Vec<Problem>,
}

/// Opens a trace by the name that the form gives.
pub type Open<'a> = &'a mut dyn FnMut(&str) -> io::Result<Box<dyn BufRead>>;

/// A workload as written. Which keys there are says what it is: `idle`, `phases`, `trace`, and otherwise generated
/// requests: in bursts (`burst_requests`), in an open loop (`rate`) or else in a closed one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Form {
    /// Requests outstanding in a closed loop, 1 to 65536; default 1.
    pub queue_depth: Option<u32>,
    /// From a completion to the request that takes its place; default 0s.
    pub think_time: Option<Duration>,
    /// Requests each second in an open loop; of a trace the mean rate to replay it at.
    pub rate: Option<f64>,
    /// How requests of an open loop (or bursts) follow each other.
    pub arrivals: Option<Arrivals>,
    /// Send only while on, as in "200ms:800ms".
    pub burst: Option<Burst>,
    /// Requests sent at once, every `burst_every`.
    pub burst_requests: Option<u32>,
    /// From burst to burst.
    pub burst_every: Option<Duration>,

    /// Reads, writes or both.
    pub op: Option<Op>,
    /// Share of reads in a mix, 0 to 100; default 70.
    pub read_percent: Option<f64>,
    /// A size, or sizes with weights: "4k:80,64k:20"; default 4k.
    pub block_size: Option<SizeMix>,
    /// "random" (default), "sequential" or "zipf:EXPONENT".
    pub pattern: Option<Pattern>,
    /// Sequential streams that take turns; default 1.
    pub streams: Option<u32>,
    /// A flush after so many writes; default none.
    pub flush_every: Option<u32>,
    /// Start of the part of the device in use; default 0.
    pub offset: Option<Bytes>,
    /// Its size; default 1GiB for generated requests, for a trace what it needs.
    pub size: Option<Bytes>,

    /// Sends nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,

    /// One workload after the other, each with `for`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Form>,
    /// In a phase: how long it takes.
    #[serde(rename = "for")]
    pub length: Option<Duration>,
    /// How often phases or a trace are played; 0 = for ever; default 1.
    pub repeat: Option<u32>,

    /// A file of recorded requests.
    pub trace: Option<String>,
    /// Its format; default: found out from its first lines.
    pub format: Option<Format>,
    /// Which events of a blkparse text are requests; default "queue".
    pub event: Option<Event>,
    /// The treatment of bad lines: "stop" (default) or "skip".
    pub bad_lines: Option<BadLines>,
    /// Take the requests of these devices only.
    pub devices: Option<Vec<u32>>,
    /// Take requests from so long after the first of the trace on.
    pub from: Option<Duration>,
    /// Take requests that are less than so long after the first of the trace.
    pub until: Option<Duration>,
    /// Leave out so many of these.
    pub skip: Option<u64>,
    /// Take at most so many of the others.
    pub count: Option<u64>,
    /// Replay so many times as fast; default 1.
    pub speed: Option<f64>,
    /// Make offsets and sizes multiples of this; default 1.
    pub align: Option<Bytes>,
}

/// Which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Both, in the share of `read_percent`.
    Mix,
}

impl Form {
    /// The faults, as far as they can be told without its traces.
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        rules::check(self, "", false, &mut problems);
        problems
    }

    /// The described workload; traces are read through `open`.
    ///
    /// # Errors
    /// All that is wrong with it, or the first trace that cannot be used.
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

/// A key below a dotted path.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
