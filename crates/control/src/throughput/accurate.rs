//! Ours: learn what the limit yields, remember what is owed, repay it.

use alloc::vec::Vec;

use super::stream::{Device, Interval, Seen, Stream};
use super::{Config, Demand, Reason};

/// Weight of the newest interval in what a limit is taken to yield.
const NEWEST_WEIGHT: f64 = 0.2;
/// What is owed is repaid over this long.
const REPAY_S: f64 = 2.0;
/// What is owed is remembered up to the promise of this long; more is forgotten.
const REMEMBERED_S: f64 = 5.0;
/// A stream that got this part of its limit used it.
const USED: f64 = 0.97;

/// What is remembered of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// What a limit yields, as a part of it.
    yields: f64,
    /// What is owed, in units; below zero what was given too much.
    owed: f64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { yields: 1.0, owed: 0.0 }
    }
}

impl Memory {
    pub(super) fn without_debt(&self) -> Self {
        Self { owed: 0.0, ..*self }
    }
}

pub(super) fn decide(_config: &Config, _device: &Device, streams: Vec<&mut Stream>) {
    for stream in streams {
        match core::mem::replace(&mut stream.interval, Interval::None) {
            Interval::None => {}
            Interval::Reset => stream.keep(Reason::CountersReset),
            Interval::Seen(seen) => step(stream, &seen),
        }
    }
}

fn step(stream: &mut Stream, seen: &Seen) {
    let (measured, promised) = (seen.rate, stream.promised);
    if let Some(in_force) = seen.other_limit {
        return stream.keep(Reason::OtherLimit { in_force });
    }
    if measured <= 0.0 {
        return stream.keep(Reason::Idle);
    }
    let used = measured >= USED * stream.assigned;
    if !used && seen.demand == Demand::AppLimited {
        return stream.keep(Reason::AppLimited { measured, limit: stream.assigned });
    }
    let memory = &mut stream.memory;
    memory.yields += NEWEST_WEIGHT * ((measured / stream.assigned).clamp(0.1, 1.2) - memory.yields);
    let bound = promised * REMEMBERED_S;
    memory.owed = (memory.owed + (promised - measured) * seen.seconds).clamp(-bound, bound);
    let Memory { yields, owed } = *memory;
    let limit = ((promised + owed / REPAY_S) / yields).max(promised * 0.5);
    let reason = if limit >= stream.most && measured < promised {
        Reason::AtCeiling { measured, promised }
    } else {
        Reason::Compensating { measured, promised, miss_rate: seen.miss_rate().unwrap_or(0.0) }
    };
    stream.assign(limit, reason);
}
