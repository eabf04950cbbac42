//! The divided requests of a connection (requests that are carried out in slices), and their progress.

use evenkeel_control::slices::Division;
use evenkeel_control::units::{Kind, Work};
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};

use super::request::{Request, Whole};
use crate::budget::Charge;
use crate::buffer::Buffer;
use crate::volume::METADATA_RATIO;

/// A request that is being carried out in slices.
pub(crate) struct Divided {
    pub(super) command: Command,
    pub(super) flags: CommandFlags,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) slices: Division,
    pub(super) since: Instant,
    /// When its slices were at the device, as far as requests were recorded then.
    pub(super) at_device: AtDevice,
    /// Buffer memory that the request holds apart from its slices in flight: for a read, the memory of the data read so far
    /// and still to be read.
    pub(super) charge: Charge,
    /// The data read so far: offset in the volume and bytes of each slice that has ended, in the order of their ends.
    pub(super) read: Vec<(u64, Buffer)>,
    pub(super) failed: Option<Errno>,
    /// True once the flush that makes the whole request durable has begun.
    pub(super) flushing: bool,
}

/// Largest number of times that [`AtDevice`] keeps apart: a trim of a large volume has a hundred thousand slices.
const MOST_TIMES: usize = 64;

/// The times in which at least one slice of a request was at the device: apart from one another, oldest first.
#[derive(Default)]
pub(super) struct AtDevice {
    newest: Vec<(Instant, Instant)>,
    /// Sum of the times before the newest [`MOST_TIMES`], and the end of the last of these.
    older: Duration,
    older_to: Instant,
}

impl AtDevice {
    /// Adds the time of a slice that was dispatched at `from` and ended at `to`, which is not before the end of another one.
    pub(super) fn add(&mut self, from: Instant, to: Instant) {
        let mut from = from.max(self.older_to);
        while let Some(&(begun, ended)) = self.newest.last()
            && ended >= from
        {
            from = from.min(begun);
            self.newest.pop();
        }
        self.newest.push((from, to));
        if self.newest.len() > MOST_TIMES {
            let (from, to) = self.newest.remove(0);
            (self.older, self.older_to) = (self.older + to.since(from), to);
        }
    }

    /// The whole time; `None` if no slice has ended.
    pub(super) fn total(&self) -> Option<Duration> {
        let sum = self.newest.iter().fold(self.older, |sum, (from, to)| sum + to.since(*from));
        (!self.newest.is_empty()).then_some(sum)
    }
}

/// The divided requests of a connection.
#[derive(Default)]
pub(crate) struct DividedRequests(Vec<Option<Box<Divided>>>);

impl DividedRequests {
    pub(super) fn insert(&mut self, divided: Divided) -> Whole {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(Box::new(divided));
        Whole(free as u32)
    }

    pub(super) fn get(&mut self, whole: Whole) -> Option<&mut Divided> {
        self.0.get_mut(whole.0 as usize)?.as_deref_mut()
    }

    /// Bytes of the buffer budget that divided requests hold, without the bytes that their slices in flight hold.
    pub(super) fn held(&self) -> u64 {
        self.0.iter().flatten().map(|divided| divided.charge.bytes()).sum()
    }

    /// Takes the buffers with the data that divided requests have read so far.
    pub(super) fn take_buffers(&mut self) -> impl Iterator<Item = Buffer> {
        self.0.iter_mut().flatten().flat_map(|divided| divided.read.drain(..)).map(|(_, buffer)| buffer)
    }

    /// The divided requests that have not ended.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Divided> {
        self.0.iter().flatten().map(|divided| &**divided)
    }

    pub(super) fn remove(&mut self, whole: Whole) -> Option<Box<Divided>> {
        let divided = self.0.get_mut(whole.0 as usize)?.take();
        while self.0.last().is_some_and(Option::is_none) {
            self.0.pop();
        }
        divided
    }
}

impl Divided {
    /// A divided request of which no slice has begun; `slice`: size of its slices in bytes.
    pub(super) fn new(request: Request, work: &Work, slice: u64, now: Instant) -> Self {
        let Request { command, flags, cookie, offset, length, charge, .. } = request;
        // Of what the device moves; where metadata changes, that is less.
        let moved = if work.kind == Kind::Meta { slice / METADATA_RATIO } else { slice };
        Self {
            command,
            flags,
            cookie,
            offset,
            slices: Division::new(offset, length, slice, moved),
            since: now,
            at_device: AtDevice::default(),
            charge,
            read: Vec::new(),
            failed: None,
            flushing: false,
        }
    }

    /// True if the request still needs a flush to be durable, because its slices are carried out without FUA.
    pub(super) fn needs_flush(&self) -> bool {
        let durable = self.flags.contains(CommandFlags::FUA)
            && matches!(self.command, Command::Write | Command::Trim | Command::WriteZeroes);
        durable && !self.flushing && self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_time_at_the_device_has_every_moment_once(
            slices in proptest::collection::vec((0..60_u64, 0..20_u64), 0..12),
        ) {
            let mut slices = slices;
            slices.sort_by_key(|(from, length)| from + length);
            let mut at_device = AtDevice::default();
            let at = |ns| Instant::ZERO + Duration::from_nanos(ns);
            slices.iter().for_each(|&(from, length)| at_device.add(at(from), at(from + length)));
            let moments: BTreeSet<u64> = slices.iter().flat_map(|&(from, length)| from..from + length).collect();
            let wanted = (!slices.is_empty()).then(|| Duration::from_nanos(moments.len() as u64));
            prop_assert_eq!(at_device.total(), wanted);
        }
    }

    #[test]
    fn times_of_any_number_of_slices_take_little_memory() {
        let at = |ns| Instant::ZERO + Duration::from_nanos(ns);
        let mut at_device = AtDevice::default();
        for n in 0..100_000 {
            at_device.add(at(10 * n), at(10 * n + 5));
        }
        // One that was at the device all the time.
        let sum = at_device.total().expect("slices have ended");
        at_device.add(at(0), at(1_000_000));
        let whole = at_device.total().expect("slices have ended");
        assert_eq!(sum, Duration::from_nanos(500_000));
        assert!(sum < whole && whole <= Duration::from_nanos(1_000_000) && at_device.newest.len() <= MOST_TIMES);
    }
}
