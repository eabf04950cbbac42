//! Sensors that the agent's loop reads: timings of single reads, and TCP's counts of segments.

use std::path::{Path, PathBuf};

use evenkeel_control::Instant;

use crate::error::Error;
use crate::loops::packets::Packets;
use crate::sensor::Source;
use crate::sensor::retransmits::{self, Segments};
use crate::sensor::tracepoints::{Events, FOLDERS, ReadTimes};

/// The file with the totals of TCP segments sent and retransmitted.
const SNMP: &str = "/proc/net/snmp";

/// Measures the latencies of single reads; `None` inside if no latency target is for a percentile.
pub(super) struct Reads(Option<ReadTimes>);

impl Reads {
    /// Starts to measure single reads on the devices of pools whose latency target is for a percentile.
    ///
    /// # Errors
    /// If the kernel refuses the BPF programs that time reads.
    pub(super) fn start(packets: &Packets) -> Result<Self, Error> {
        if !packets.wants_read_times() {
            return Ok(Self(None));
        }
        let events = Events::read(&FOLDERS.map(PathBuf::from))?;
        let mut reads = Self(Some(ReadTimes::start(&events, packets.names().count())?));
        reads.watch(packets)?;
        Ok(reads)
    }

    /// From now on times reads on the devices that the pools of `packets` have now, and on no others.
    pub(super) fn watch(&mut self, packets: &Packets) -> Result<(), Error> {
        self.0.as_mut().map_or(Ok(()), |read_times| read_times.watch(packets.timed_devices()))
    }

    /// Passes the latencies of the reads since the previous call to `packets`. If the reads of some pools could not be
    /// counted, returns the error of the last of these pools.
    pub(super) fn count(&mut self, packets: &mut Packets, now: Instant) -> Result<(), Error> {
        let Some(read_times) = &mut self.0 else { return Ok(()) };
        let mut result = Ok(());
        packets.count_read_times(now, |pool, each| {
            if let Err(error) = read_times.read(pool, each) {
                result = Err(error);
            }
        });
        result
    }
}

/// Opens the file with TCP's totals; `None` if that fails: then delays that cause retransmits are not detected.
pub(super) fn open_segments() -> Option<Source> {
    Source::open(Path::new(SNMP)).inspect_err(|error| tracing::warn!("{error}")).ok()
}

/// Reads TCP's totals; `None` if they cannot be read or parsed.
pub(super) fn segments(snmp: &mut Source) -> Option<Segments> {
    let text = std::str::from_utf8(snmp.read().ok()?).ok()?;
    retransmits::parse(text).ok()
}
