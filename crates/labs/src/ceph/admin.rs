//! A client for the admin socket of an OSD. Ceph's own client takes 0.1 s of CPU time per call, too much during a
//! measurement.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Longest wait for an answer of an OSD under load.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of bytes at the start of an answer that hold the answer's length.
const LENGTH_BYTES: usize = 4;
/// Name of the OSD's thread that answers on the admin socket.
const THREAD: &str = "admin_socket";

/// The admin socket of one OSD, given by its path.
pub(crate) struct Admin(pub(super) PathBuf);

impl Admin {
    /// A connection to the socket, whose reads and writes have the time limit [`LIMIT`].
    fn connect(&self) -> Result<UnixStream> {
        let stream =
            UnixStream::connect(&self.0).with_context(|| format!("nothing listens on {}", self.0.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream)
    }

    /// The value of one of the OSD's counters; for a counter that is a mean, the number of its samples.
    pub(crate) fn counter(&self, logger: &str, counter: &str) -> Result<u64> {
        let mut stream = self.connect()?;
        let question = json!({ "prefix": "perf dump", "format": "json", "logger": logger, "counter": counter });
        stream.write_all(format!("{question}\0").as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer: Value = serde_json::from_slice(answer.get(LENGTH_BYTES..).unwrap_or_default())?;
        let value = &answer[logger][counter];
        value
            .as_u64()
            .or_else(|| value["avgcount"].as_u64())
            .with_context(|| format!("the OSD does not count {counter}"))
    }

    /// CPU time that the OSD has spent on answers on its admin socket so far, in nanoseconds.
    pub(crate) fn thread_ns(&self) -> Result<u64> {
        let pid = rustix::net::sockopt::socket_peercred(self.connect()?)?.pid;
        for entry in std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
            let task = entry?.path();
            if std::fs::read_to_string(task.join("comm"))?.trim_end() == THREAD {
                let times = std::fs::read_to_string(task.join("schedstat"))?;
                let ran = times.split_whitespace().next().context("unexpected format of schedstat")?;
                return Ok(ran.parse()?);
            }
        }
        anyhow::bail!("the OSD has no thread {THREAD}")
    }
}
