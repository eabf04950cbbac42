//! Sensors that the agent's loop reads: timings of single reads, and TCP's counts of segments.

use std::path::{Path, PathBuf};

use evenkeel_control::Instant;

use super::group_histograms::{self, GroupHistograms};
use crate::error::Error;
use crate::loops::local::Sense;
use crate::loops::packets::Packets;
use crate::points::local::Local;
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

/// Measures the latencies of single reads of control groups; `None` inside if no device has a latency target for groups, or
/// single reads cannot be timed.
pub(super) struct GroupReads {
    times: Option<(ReadTimes, Sense)>,
    /// The groups whose reads count in histograms of their own, behind those of devices.
    own: GroupHistograms,
    /// True if devices or groups could not be watched, which is tried again at the next tick.
    stale: bool,
}

impl GroupReads {
    /// Numbers of a device's histograms: that of all other reads, and that of reads that count for the target. `place` is the
    /// place of the device among those with a latency target.
    fn numbers(place: u32) -> (u32, u32) {
        (2 * place, 2 * place + 1)
    }

    /// Number of the first histogram of a single group. The devices are the same until the agent ends.
    const fn first_own(locals: &[Local]) -> u32 {
        2 * locals.len() as u32
    }

    /// Starts to measure single reads on the devices of `locals`. If groups cannot be told apart, all reads of a device are
    /// measured; if single reads cannot be timed, none, and the kernel's means count.
    ///
    /// # Errors
    /// If a latency target is for a percentile and the kernel refuses the BPF programs that time reads.
    pub(super) fn start(locals: &[Local]) -> Result<Self, Error> {
        let started = |times| Self { times, own: GroupHistograms::default(), stale: false };
        if locals.is_empty() {
            return Ok(started(None));
        }
        let histograms = Self::first_own(locals) as usize + group_histograms::MOST as usize;
        let start = |events: Events| match ReadTimes::start_by_cgroup(&events, histograms) {
            Ok(times) => Ok((times, Sense::Groups)),
            Err(error) => {
                tracing::warn!(
                    "reads of single control groups cannot be timed, so latency targets are for all reads of a device: {error}"
                );
                ReadTimes::start(&events, histograms).map(|times| (times, Sense::Device))
            }
        };
        match Events::read(&FOLDERS.map(PathBuf::from)).and_then(start) {
            Ok(times) => Ok(started(Some(times))),
            Err(error) if locals.iter().any(|local| local.mind.wants_percentile()) => Err(error),
            Err(error) => {
                tracing::warn!(
                    "single reads cannot be timed, so latency targets are for the mean of all reads of a device: {error}"
                );
                Ok(started(None))
            }
        }
    }

    /// Passes the latencies of the reads since the previous call to `locals`, and follows changes of their devices and groups.
    /// Call it before each tick of the agent. If some reads could not be counted, returns the last error.
    pub(super) fn count(&mut self, locals: &mut [Local], now: Instant) -> Result<(), Error> {
        let Some((times, sense)) = &mut self.times else {
            locals.iter_mut().for_each(|local| local.mind.begin(now, Sense::Statistics));
            return Ok(());
        };
        let mut result = Ok(());
        let first_own = Self::first_own(locals);
        for (local, place) in locals.iter_mut().zip(0..) {
            local.mind.begin(now, *sense);
            let (others, counted) = Self::numbers(place);
            let every = *sense == Sense::Device;
            let read = times.read(others, |bucket, reads| {
                if every {
                    local.mind.count(bucket, reads);
                }
            });
            result = result.and(read).and(times.read(counted, |bucket, reads| local.mind.count(bucket, reads)));
        }
        for ((place, group), own) in self.own.iter() {
            let Some(local) = locals.get_mut(*place as usize) else { continue };
            let read = times.read(first_own + own.histogram, |bucket, reads| {
                local.count_of(group, now, bucket, reads);
                if own.counts {
                    local.mind.count(bucket, reads);
                }
            });
            result = result.and(read);
        }
        // Each is asked, so that none stays changed.
        let mut changed = self.stale;
        for local in &mut *locals {
            changed |= local.take_changed();
        }
        if changed {
            let watched = Self::watch(times, *sense, &mut self.own, locals);
            self.stale = watched.is_err();
            result = result.and(watched);
        }
        result
    }

    /// From now on times reads of the devices and groups that `locals` have now.
    fn watch(times: &mut ReadTimes, sense: Sense, own: &mut GroupHistograms, locals: &[Local]) -> Result<(), Error> {
        let first_own = Self::first_own(locals);
        let mut result = Ok(());
        if sense == Sense::Groups {
            let mut watched: Vec<(u32, &str, bool)> = Vec::new();
            for (local, place) in locals.iter().zip(0..) {
                watched.extend(local.watched().map(|(group, counts, _)| (place, group, counts)));
            }
            for histogram in own.renew(watched) {
                // Late reads of the group before count for no group.
                result = result.and(times.discard(first_own + histogram));
            }
        }
        let own = &*own;
        let devices = locals
            .iter()
            .zip(0..)
            .flat_map(|(local, place)| local.devices().map(move |device| (device, Self::numbers(place).0)));
        let timed = times.watch(devices);
        let mut groups: Vec<(u64, u32, u32)> = Vec::new();
        for (local, place) in locals.iter().zip(0..) {
            let (others, counted) = Self::numbers(place);
            for (group, counts, numbers) in local.watched() {
                let histogram = own.histogram(place, group).map(|own| first_own + own);
                let Some(histogram) = histogram.or(counts.then_some(counted)) else { continue };
                groups.extend(numbers.iter().map(|number| (*number, others, histogram)));
            }
        }
        // Also without some of the devices.
        let distinguished = times.watch_cgroups(groups);
        result.and(timed).and(distinguished)
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
