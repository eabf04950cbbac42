//! Ours: hold the guarantee in every window, remember what is owed, repay it slowly, learn only from what binds.
//!
//! Time is divided into windows (1 s). In each a stream is due T·window, plus a part of what it is owed of earlier ones.
//! The limit spreads what is left of that over what is left of the window, less the time that misses usually take:
//!
//! ```text
//! A = (due − got) / ((1 − κ)·time left)
//! ```
//!
//! κ is the part of the time during which the stream could not use its limit, averaged over some twenty windows in which
//! the limit did bind. With one interval to a window this is A = due/(1 − κ): what a limit yields has been learned, once.
//! With several, what a burst of misses cost is had back in the rest of the same window, and κ makes the stream run ahead
//! a little so that a burst at the end of a window finds less left to do. A stream without misses has κ = 0 and an even
//! limit. Where the bandwidth of the slow device is needed at all it is its utilisation that is used, so that a wrong
//! estimate does no harm.
//!
//! At the end of a window: who got less than was due and had no misses to show for it was limited by itself; nothing is
//! owed and nothing learned. What is owed is bounded, and so is what a window repays. While the slow device is saturated
//! for long and a tenant is short of its guarantee, nothing is learned or owed by those who miss; see `share`.

use alloc::vec::Vec;

use super::stream::{Device, Interval, Seen, Stream};
use super::{Config, Demand, Reason, share};

/// Weight of the newest window in what is learned.
const NEWEST_WEIGHT: f64 = 0.05;
/// A window repays this part of what is owed ...
const REPAY: f64 = 0.05;
/// ... and at most this part of the guarantee.
const REPAY_MOST: f64 = 0.25;
/// The longest memory of a debt, as time at the guarantee; more is forgotten.
const REMEMBERED_S: f64 = 5.0;
/// A limit is at least this part of the guarantee, however far ahead a stream is: no stream is stopped.
const LEAST: f64 = 0.1;
/// A stream runs ahead for this many times the part of a window that misses usually take: bursts come singly, so that the
/// next window may well hold twice as much ...
const AHEAD: f64 = 2.5;
/// ... and at most for this part of a window.
const AHEAD_MOST: f64 = 0.65;
/// A stream that got this part of what it could is not short.
const NOT_SHORT: f64 = 0.97;
/// A slow device this busy over a whole window leaves a limit nothing to say.
const SATURATED: f64 = 0.97;
/// A shortage is put down to misses up to this multiple of the part of the time in which the slow device was busy, and
/// this much more: what is waiting behind a miss comes late too.
const EXPLAINED: (f64, f64) = (1.5, 0.1);
/// Owed more than the guarantee of this many seconds is worth a reason of its own.
const MUCH_OWED_S: f64 = 0.5;

/// The memory of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Part of the time during which the limit could not be used, over the last windows.
    lost: f64,
    /// The debt in units; below zero the excess.
    pub(super) owed: f64,
    window: Window,
    /// Rate and bytes per second at the slow device over the last windows, for what is short.
    pub(super) usual_rate: f64,
    pub(super) usual_slow: f64,
    /// It is limited to its share of what is short; what all streams had of the slow device when that began, else 0.
    pub(super) cut: f64,
    /// The answer to what others leave it.
    pub(super) wants: share::Wants,
    /// The last whole window was one in which the tenant asked for nothing, or for less than it could have.
    activity: Activity,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Activity {
    #[default]
    Backlogged,
    Idle,
    AppLimited {
        measured: f64,
        limit: f64,
    },
}

/// The present window so far.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    elapsed: f64,
    due: f64,
    got: f64,
    slow_bytes: f64,
    /// Seconds during which the limit could not be used.
    lost: f64,
    /// Seconds during which the slow device was busy.
    busy: f64,
    /// Limits, each times its seconds.
    assigned: f64,
    app_limited: bool,
    /// Something happened in it from which nothing can be learned.
    void: bool,
}

impl Memory {
    /// False if the tenant asked for nothing in the last window, or for less than it could have.
    pub(super) fn is_backlogged(&self) -> bool {
        self.activity == Activity::Backlogged
    }

    pub(super) fn without_debt(&self) -> Self {
        Self { owed: 0.0, window: Window::default(), ..*self }
    }
}

pub(super) fn decide(config: &Config, device: &Device, mut streams: Vec<&mut Stream>) {
    let length = config.window.as_secs_f64().max(config.interval.as_secs_f64());
    // Half an interval early or late is on time.
    let ends = length - 0.5 * config.interval.as_secs_f64();
    for stream in &mut streams {
        let interval = core::mem::replace(&mut stream.interval, Interval::None);
        match interval {
            Interval::None => {}
            Interval::Reset => {
                stream.memory.window.void = true;
                stream.keep(Reason::CountersReset);
            }
            Interval::Seen(seen) => step(stream, &seen, device, length, ends),
        }
    }
    // Twice the time constant of what is usual.
    let shows = length / NEWEST_WEIGHT;
    share::what_is_short(device, &mut streams, shows, config.interval.as_secs_f64());
}

fn step(stream: &mut Stream, seen: &Seen, device: &Device, length: f64, ends: f64) {
    let guaranteed = stream.guaranteed;
    let memory = &mut stream.memory;
    if memory.window.elapsed == 0.0 && memory.window.due == 0.0 {
        memory.window.due = guaranteed * length;
    }
    let window = &mut memory.window;
    window.elapsed += seen.seconds;
    window.got += seen.rate * seen.seconds;
    window.slow_bytes += seen.slow_bytes_per_s.unwrap_or(0.0) * seen.seconds;
    window.assigned += stream.assigned * seen.seconds;
    window.lost += (1.0 - seen.rate / stream.assigned).max(0.0) * seen.seconds;
    window.busy += busy(seen, device) * seen.seconds;
    window.app_limited |= seen.demand == Demand::AppLimited && seen.rate < NOT_SHORT * stream.assigned;
    window.void |= seen.other_limit.is_some();
    let backlogged = seen.demand == Demand::Backlogged;
    if window.elapsed >= ends {
        close(memory, guaranteed, length, backlogged, seen.slow_bytes_per_s.is_some());
    }
    let memory = stream.memory;
    let left = (length - memory.window.elapsed).max(length - ends);
    let rest = memory.window.due - memory.window.got;
    // The last interval of a window is the only one from which nothing can be put off.
    let time = if ends > seen.seconds {
        left - (AHEAD * memory.lost).min(AHEAD_MOST) * (left - seen.seconds).max(0.0)
    } else {
        left * (1.0 - memory.lost)
    };
    let limit = (rest / time).max(LEAST * guaranteed);
    let reason = reason(stream, seen, limit);
    stream.assign(limit, reason);
}

/// Part of the interval in which the slow device was busy, as well as can be told.
fn busy(seen: &Seen, device: &Device) -> f64 {
    let slow = seen.slow_bytes_per_s.unwrap_or(0.0);
    if slow <= 0.0 {
        return 0.0;
    }
    let estimated = || device.slow_bytes_per_s().map(|bandwidth| (slow / bandwidth).min(1.0));
    device.utilisation.or_else(estimated).unwrap_or(1.0)
}

/// A window is over: what is owed of it, what is learned from it, and what the next one owes.
fn close(memory: &mut Memory, guaranteed: f64, length: f64, backlogged: bool, misses_known: bool) {
    let window = memory.window;
    let share = |part: f64| part / window.elapsed;
    let could = (guaranteed * window.elapsed).min(window.assigned).max(f64::MIN_POSITIVE);
    let shortage = 1.0 - window.got / could;
    let explained = misses_known && shortage <= EXPLAINED.0 * share(window.busy) + EXPLAINED.1 && window.busy > 0.0;
    let short = window.got < NOT_SHORT * could;
    memory.activity = match () {
        () if window.got <= 0.0 => Activity::Idle,
        () if window.app_limited || (short && !backlogged && !explained) => {
            Activity::AppLimited { measured: share(window.got), limit: share(window.assigned) }
        }
        () => Activity::Backlogged,
    };
    if memory.activity == Activity::Backlogged && !window.void {
        // Measured, not planned: windows are not all equally long.
        let rest = window.due + guaranteed * (window.elapsed - length) - window.got;
        let bound = guaranteed * REMEMBERED_S;
        memory.owed = (memory.owed + rest).clamp(-bound, bound);
        if share(window.busy) < SATURATED {
            memory.lost += NEWEST_WEIGHT * (share(window.lost).min(0.75) - memory.lost);
        }
    } else {
        // What this window was to repay is owed again.
        memory.owed += (window.due - guaranteed * length).max(-guaranteed * length);
    }
    if !window.void {
        // The first window is all that is known.
        let newest = if memory.usual_rate > 0.0 { NEWEST_WEIGHT * 2.0 } else { 1.0 };
        memory.usual_rate += newest * (share(window.got) - memory.usual_rate);
        memory.usual_slow += newest * (share(window.slow_bytes) - memory.usual_slow);
    }
    let most = REPAY_MOST * guaranteed * length;
    let repaid = (REPAY * memory.owed).clamp(-most, most);
    memory.owed -= repaid;
    memory.window = Window { due: guaranteed * length + repaid, ..Window::default() };
}

fn reason(stream: &Stream, seen: &Seen, limit: f64) -> Reason {
    let (measured, guaranteed, memory) = (seen.rate, stream.guaranteed, &stream.memory);
    let behind = guaranteed * memory.window.elapsed - memory.window.got;
    if let Some(in_force) = seen.other_limit {
        return Reason::OtherLimit { in_force };
    }
    match memory.activity {
        Activity::Idle if measured <= 0.0 => Reason::Idle,
        // Before the window is over.
        _ if measured <= 0.0 && seen.demand == Demand::AppLimited => Reason::Idle,
        Activity::AppLimited { measured, limit } => Reason::AppLimited { measured, limit },
        _ if limit >= stream.most && measured < guaranteed => Reason::AtCeiling { measured, guaranteed },
        _ if limit < 0.98 * guaranteed => Reason::GivingBack { measured, guaranteed, ahead: -behind - memory.owed },
        _ if memory.owed > MUCH_OWED_S * guaranteed => Reason::Repaying { measured, guaranteed, owed: memory.owed },
        _ if limit <= 1.001 * guaranteed => Reason::AsGuaranteed,
        _ => Reason::Compensating { measured, guaranteed, miss_rate: seen.miss_rate().unwrap_or(0.0) },
    }
}
