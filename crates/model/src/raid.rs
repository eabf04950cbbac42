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

    /// Number of bytes, of the array's first `offset` bytes, that are on `member`. The same number is the offset on the member
    /// of its first byte that lies at or after `offset` in the array.
    fn on_member(&self, member: u64, offset: u64) -> u64 {
        let (stripe, row) = (self.stripe_bytes, self.stripe_bytes * u64::from(self.members));
        offset / row * stripe + (offset % row).saturating_sub(member * stripe).min(stripe)
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
        let members = (0..params.members).map(|_| Device::new(&params.member, seeds.next_u64())).collect();
        Self {
            params: params.clone(),
            members,
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
        let mut pieces = 0;
        for (member, device) in (0..).zip(&mut self.members) {
            let first = self.params.on_member(member, io.offset);
            let end = self.params.on_member(member, io.offset.saturating_add(u64::from(io.bytes)));
            let whole_row = io.kind == Kind::Flush;
            if end > first || whole_row || (io.bytes == 0 && member == home) {
                device.submit(now, whole as u64, Io { kind: io.kind, offset: first, bytes: (end - first) as u32 });
                pieces += 1;
            }
        }
        self.wholes[whole] = Whole { id, pieces };
    }

    /// When to poll next; `Instant::FAR_FUTURE` when nothing is in flight.
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
        for member in &mut self.members {
            member.stall(now, length);
        }
    }

    /// Changes the members' parameters, and the stripe size for requests submitted from now on; the number of members stays.
    pub fn set_params(&mut self, now: Instant, params: &Raid0Params) {
        self.advance(now);
        for member in &mut self.members {
            member.set_params(now, &params.member);
        }
        self.params = Raid0Params { members: self.params.members, ..params.clone() };
    }

    fn next_member_event(&self) -> Instant {
        self.members.iter().map(Device::next_event).min().unwrap_or(Instant::FAR_FUTURE)
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
                while let Some(whole) = self.members[index].poll(at) {
                    self.finish_piece(whole as usize);
                }
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
    use crate::store::StoreParams;

    #[test]
    fn every_byte_is_on_one_member_after_those_before_it() {
        for members in 1..5 {
            let member = Box::new(DeviceParams::Store(StoreParams::ssd()));
            let params = Raid0Params { members, stripe_bytes: 3, member };
            let members = u64::from(members);
            for byte in 0..100 {
                for member in 0..members {
                    let (before, after) = (params.on_member(member, byte), params.on_member(member, byte + 1));
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
