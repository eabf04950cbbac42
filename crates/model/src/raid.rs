//! RAID-0: equal members, with the stripes dealt out to them in turn.
//!
//! A request is split into one piece for each member that holds a part of it: the stripes of a request on one member are
//! contiguous there. The request completes with its last piece. A flush goes to every member; other work without payload
//! goes to the member that holds its offset.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use crate::Io;
use crate::device::{Device, DeviceParams, Machine as _};
use crate::disk::DiskParams;
use crate::params::{InvalidParams, check};

/// The parameters of a [`Raid0`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Raid0Params {
    /// Number of members, 1 to 1,024; cannot change while the array runs.
    pub members: u32,
    /// Size of a stripe, the run of consecutive bytes on one member, in bytes: 512 B to 1 TiB.
    #[cfg_attr(feature = "serde", serde(rename = "stripe", with = "evenkeel_control::text::AsBytes"))]
    pub stripe_bytes: u64,
    /// The parameters of each member.
    pub member: Box<DeviceParams>,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for Raid0Params {
    const PRESETS: crate::preset::Presets<Self> = &[("", Self::default)];
}

impl Default for Raid0Params {
    /// Four members like [`DiskParams::nearline`], with stripes of 64 KiB.
    fn default() -> Self {
        Self { members: 4, stripe_bytes: 64 << 10, member: Box::new(DeviceParams::Disk(DiskParams::nearline())) }
    }
}

impl Raid0Params {
    /// Checks that the parameters are in range and fit together, the member's included.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        check(&[
            ((1..=1_024).contains(&self.members), "members", "1 to 1024"),
            ((512..=1 << 40).contains(&self.stripe_bytes), "stripe", "512 B to 1 TiB"),
        ])?;
        self.member.validate().map_err(|error| InvalidParams { depth: error.depth + 1, ..error })
    }

    /// The division of the array's first `offset` bytes among the members.
    fn split(&self, offset: u64) -> Split {
        let (stripe_bytes, row) = (self.stripe_bytes, self.stripe_bytes * u64::from(self.members));
        Split { full: offset / row * stripe_bytes, rest: offset % row, stripe_bytes }
    }
}

/// The first bytes of the array, divided among the members: the same number of stripes on each, and the rest.
#[derive(Clone, Copy)]
struct Split {
    /// Bytes in full rows of stripes, on each member.
    full: u64,
    /// Bytes in the last row, of all members.
    rest: u64,
    stripe_bytes: u64,
}

impl Split {
    /// Number of these bytes that are on `member`. The same number is the offset on the member of its first byte that lies
    /// behind these bytes in the array.
    fn on_member(self, member: u64) -> u64 {
        self.full + self.rest.saturating_sub(member * self.stripe_bytes).min(self.stripe_bytes)
    }
}

/// A request with its number of incomplete pieces.
#[derive(Clone, Copy, Debug)]
struct Whole {
    id: u64,
    pieces: u32,
}

/// RAID-0 over members of any kind. See the module's documentation.
///
/// The `now` of a call must not lie before that of an earlier call. O(members) a call.
pub struct Raid0 {
    params: Raid0Params,
    members: Vec<Device>,
    /// For each member, when to poll it next.
    due: Vec<Instant>,
    /// True if nothing happens in a member before it is due. Stores stall at times of their own.
    is_quiet: bool,
    seen: Instant,
    /// Requests in flight; a request's index is the id of its pieces at the members.
    wholes: Vec<Whole>,
    /// Indexes in `wholes` that no request uses.
    free: Vec<usize>,
    done: VecDeque<u64>,
}

impl Raid0 {
    /// An array of idle members, each with its own seed made from `seed`. The same seed and calls give the same completions.
    ///
    /// # Panics
    /// `params` that [`Raid0Params::validate`] refuses may make this or a later call panic.
    pub fn new(params: &Raid0Params, seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        let members: Vec<Device> = (0..params.members).map(|_| Device::new(&params.member, seeds.next_u64())).collect();
        Self {
            params: params.clone(),
            due: members.iter().map(Device::next_event).collect(),
            members,
            is_quiet: !matches!(&*params.member, DeviceParams::Store(_) | DeviceParams::Raid0(_)),
            seen: Instant::ZERO,
            wholes: Vec::new(),
            free: Vec::new(),
            done: VecDeque::new(),
        }
    }

    /// Takes a request. [`Raid0::poll`] returns `id` when it has completed.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        self.advance(now);
        let whole = self.free.pop().unwrap_or(self.wholes.len());
        if whole == self.wholes.len() {
            self.wholes.push(Whole { id, pieces: 0 });
        }
        let home = io.offset / self.params.stripe_bytes % self.members.len() as u64;
        let from = self.params.split(io.offset);
        let until = self.params.split(io.offset.saturating_add(u64::from(io.bytes)));
        let mut pieces = 0;
        for (member, (device, due)) in (0..).zip(self.members.iter_mut().zip(&mut self.due)) {
            let (first, end) = (from.on_member(member), until.on_member(member));
            let whole_row = io.kind == Kind::Flush;
            if end > first || whole_row || (io.bytes == 0 && member == home) {
                device.submit(now, whole as u64, Io { kind: io.kind, offset: first, bytes: (end - first) as u32 });
                *due = device.next_event();
                pieces += 1;
            }
        }
        self.wholes[whole] = Whole { id, pieces };
    }

    /// Time of the next poll; `Instant::FAR_FUTURE` when nothing is in flight.
    pub fn next_event(&self) -> Instant {
        if self.done.is_empty() { self.next_member_event() } else { self.seen }
    }

    /// The next request that has completed by `now`, in order of completion; call until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        self.advance(now);
        self.done.pop_front()
    }

    /// Stalls all members for `length` from `now`.
    pub fn stall(&mut self, now: Instant, length: Duration) {
        self.advance(now);
        for (member, due) in self.members.iter_mut().zip(&mut self.due) {
            member.stall(now, length);
            *due = member.next_event();
        }
    }

    /// Changes the members' parameters, and the stripe size for requests submitted from now on; the number of members stays.
    pub fn set_params(&mut self, now: Instant, params: &Raid0Params) {
        self.advance(now);
        for (member, due) in self.members.iter_mut().zip(&mut self.due) {
            member.set_params(now, &params.member);
            *due = member.next_event();
        }
        self.params = Raid0Params { members: self.params.members, ..params.clone() };
    }

    fn next_member_event(&self) -> Instant {
        self.due.iter().copied().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Handles the completions of all members up to `now` in order of time, so that results do not depend on the times of the
    /// calls.
    fn advance(&mut self, now: Instant) {
        self.seen = self.seen.max(now);
        loop {
            let at = self.next_member_event();
            if at > self.seen {
                return;
            }
            for index in 0..self.members.len() {
                if self.is_quiet && self.due[index] > at {
                    continue;
                }
                while let Some(whole) = self.members[index].poll(at) {
                    self.finish_piece(whole as usize);
                }
                self.due[index] = self.members[index].next_event();
            }
        }
    }

    fn finish_piece(&mut self, index: usize) {
        let whole = &mut self.wholes[index];
        whole.pieces -= 1;
        if whole.pieces == 0 {
            self.done.push_back(whole.id);
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cached::CachedParams;
    use crate::disk::Scheduling;
    use crate::ssd::{Geometry, SsdParams};
    use crate::store::StoreParams;
    use crate::surface::SurfaceParams;

    /// Completions with their times, of drawn requests under stalls and changes between the parameters `one` and `other` of the
    /// members. `polls_all`: members are polled although they are not due.
    fn completions(one: &DeviceParams, other: &DeviceParams, polls_all: bool) -> Vec<(Instant, u64)> {
        let of = |member: &DeviceParams| Raid0Params { member: Box::new(member.clone()), ..Raid0Params::default() };
        let (mut array, mut rng) = (Raid0::new(&of(one), 3), SplitMix64::new(4));
        array.is_quiet &= !polls_all;
        let (mut now, mut done) = (Instant::ZERO, Vec::new());
        for id in 0..300u64 {
            let until = now + Duration::from_nanos(rng.next_below(4_000_000));
            while array.next_event() <= until {
                let at = array.next_event();
                while let Some(id) = array.poll(at) {
                    done.push((at, id));
                }
            }
            now = until;
            match rng.next_below(20) {
                0 => array.stall(now, Duration::from_millis(5)),
                1 => array.set_params(now, &of(if rng.next_below(2) == 0 { one } else { other })),
                _ => {}
            }
            let (kind, bytes) = match rng.next_below(10) {
                0 => (Kind::Flush, 0),
                1..=4 => (Kind::Write, 4_096u32 << rng.next_below(7)),
                _ => (Kind::Read, 4_096u32 << rng.next_below(7)),
            };
            array.submit(now, id, Io { kind, offset: rng.next_below(1 << 18) << 12, bytes });
            let due: Vec<Instant> = array.members.iter().map(Device::next_event).collect();
            assert_eq!(array.due, due, "after request {id}");
        }
        while array.next_event() < Instant::FAR_FUTURE {
            let at = array.next_event();
            while let Some(id) = array.poll(at) {
                done.push((at, id));
            }
        }
        done
    }

    #[test]
    fn members_that_are_not_due_need_no_poll() {
        let disk = DiskParams { queue_depth: 8, scheduling: Scheduling::Sptf, ..DiskParams::cheetah9lp() };
        let geometry = Geometry { capacity_bytes: 1 << 30, ..SsdParams::nvme().geometry };
        let (ssd, cached) = (SsdParams { geometry, ..SsdParams::nvme() }, CachedParams::paper());
        let pairs = [
            (DeviceParams::Disk(disk.clone()), DeviceParams::Disk(DiskParams { rpm: 7_200, ..disk })),
            (DeviceParams::Ssd(ssd), DeviceParams::Ssd(SsdParams { queue_depth: 2, ..ssd })),
            (
                DeviceParams::Cached(cached),
                DeviceParams::Cached(CachedParams { slow_latency: Duration::from_millis(3), ..cached }),
            ),
            (DeviceParams::Surface(SurfaceParams::default()), DeviceParams::Surface(SurfaceParams::default())),
        ];
        for (one, other) in pairs {
            let due = completions(&one, &other, false);
            assert_eq!(due.len(), 300);
            assert_eq!(due, completions(&one, &other, true));
        }
    }

    #[test]
    fn every_byte_is_on_one_member_after_those_before_it() {
        for members in 1..5 {
            let member = Box::new(DeviceParams::Store(StoreParams::ssd()));
            let params = Raid0Params { members, stripe_bytes: 3, member };
            let members = u64::from(members);
            for byte in 0..100 {
                for member in 0..members {
                    let [before, after] = [byte, byte + 1].map(|offset| params.split(offset).on_member(member));
                    let is_here = byte / 3 % members == member;
                    assert_eq!(after - before, u64::from(is_here), "byte {byte} on member {member} of {members}");
                    if is_here {
                        assert_eq!(before, byte / 3 / members * 3 + byte % 3);
                    }
                }
            }
        }
    }
}
