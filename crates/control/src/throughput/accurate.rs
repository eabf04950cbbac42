//! Ours: a token bucket that carries debt.
//!
//! A stream is due T a second. What it is due and did not get is its *debt*, below zero what it got too much. Each interval
//! the limit is what pays the debt of the last moments back at once, so that any second holds what it is due, not only those
//! at which the controller counts:
//!
//! ```text
//! A = T / (1 - (interval / window)·κ) + (1 - interval / window)·debt / interval
//! ```
//!
//! κ is the part of the time during which the stream could not use its limit, averaged over some twenty windows in which the
//! limit did bind. With one interval to a window this is A = T / (1 − κ): what a limit yields is learned, and no noise of one
//! window goes into the next. A stream without misses has κ = 0, no debt and an even limit. Where the bandwidth of the slow
//! device is needed at all it is its utilisation that is used, so that a wrong estimate does no harm.
//!
//! At most a third of what a window is due is paid back at once, so that a long shortage is no burst for others afterwards. What
//! exceeds that is *owed*: it is bounded, and a window repays a twentieth of it.
//!
//! At the end of a window: a stream that got less than it was due and had no misses to show for it was limited by itself;
//! nothing is owed and nothing learned. While the slow device is saturated for long and a stream is short of its guarantee,
//! nothing is learned or owed by those who miss; see `share`.

use alloc::vec::Vec;

use super::stream::{Device, Interval, Seen, Stream};
use super::{Config, Demand, Reason, share};

/// Weight of the newest window in what is learned, and the part of what is owed that a window repays.
pub(super) const SLOWLY: f64 = 0.05;
/// The part of what a window is due that is paid back at once.
const AT_ONCE: f64 = 1.0 / 3.0;
/// What is owed is remembered up to the guarantee of this many seconds; more is forgotten.
const REMEMBERED_S: f64 = 5.0;
/// A limit is at least this part of the guarantee, however far ahead a stream is: no stream is stopped.
pub(super) const LEAST: f64 = 0.1;
/// So much of something is all of it: of what a stream could get, or of the time of the slow device.
pub(super) const ENOUGH: f64 = 0.95;
/// A shortage is put down to misses up to this multiple of the part of the time in which the slow device was busy: what
/// waits behind a miss comes late too.
const EXPLAINED: f64 = 2.0;

/// What is remembered of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Part of the time during which the limit could not be used, over the last windows.
    lost: f64,
    /// What it was due lately and did not get, in units; below zero what it got too much.
    pub(super) debt: f64,
    /// The same of longer ago.
    pub(super) owed: f64,
    window: Window,
    /// Rate and bytes per second at the slow device over the last windows, for what is short.
    pub(super) usual_rate: f64,
    pub(super) usual_slow: f64,
    /// It is limited to its share of what is short.
    pub(super) cut: bool,
    /// The last whole window was one in which the tenant asked for nothing, or for less than it could have.
    standing: Standing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Standing {
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
    got: f64,
    /// The debt when it began.
    debt: f64,
    /// What is repaid in it of what is owed.
    repaid: f64,
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
    pub(super) fn without_debt(&self) -> Self {
        Self { debt: 0.0, owed: 0.0, window: Window::default(), ..*self }
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
    share::what_is_short(device, &mut streams);
}

fn step(stream: &mut Stream, seen: &Seen, device: &Device, length: f64, ends: f64) {
    let promised = stream.promised;
    let memory = &mut stream.memory;
    let window = &mut memory.window;
    window.elapsed += seen.seconds;
    window.got += seen.rate * seen.seconds;
    window.slow_bytes += seen.slow_bytes_per_s.unwrap_or(0.0) * seen.seconds;
    window.assigned += stream.assigned * seen.seconds;
    window.lost += (1.0 - seen.rate / stream.assigned).max(0.0) * seen.seconds;
    window.busy += busy(seen, device) * seen.seconds;
    window.app_limited |= seen.demand == Demand::AppLimited && seen.rate < ENOUGH * stream.assigned;
    window.void |= seen.other_limit.is_some();
    // Nothing is owed for what the tenant did not ask, and for what another limit took or gave.
    let asked_less = seen.demand == Demand::AppLimited && seen.rate < promised;
    if seen.other_limit.is_none() && !asked_less {
        memory.debt += (promised + window.repaid / length - seen.rate) * seen.seconds;
    }
    // With one interval to a window there is nothing to pay back within it.
    let within = (1.0 - seen.seconds / length).max(0.0);
    let backlogged = seen.demand == Demand::Backlogged;
    if window.elapsed >= ends {
        close(memory, promised, length, within * AT_ONCE, backlogged, seen.slow_bytes_per_s.is_some());
    }
    let memory = stream.memory;
    let most = AT_ONCE * promised * length;
    let due = promised + memory.window.repaid / length;
    let limit = due / (1.0 - (1.0 - within) * memory.lost) + within * memory.debt.clamp(-most, most) / seen.seconds;
    let limit = limit.max(LEAST * promised);
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

/// A window is over: what is owed of it, what is learned from it, and what the next one repays. Of the debt `at_once`
/// windows stay.
fn close(memory: &mut Memory, promised: f64, length: f64, at_once: f64, backlogged: bool, misses_known: bool) {
    let window = memory.window;
    let share = |part: f64| part / window.elapsed;
    let could = (promised * window.elapsed).min(window.assigned).max(f64::MIN_POSITIVE);
    let shortage = 1.0 - window.got / could;
    let explained = misses_known && shortage <= EXPLAINED * share(window.busy);
    let short = window.got < ENOUGH * could;
    memory.standing = match () {
        () if window.got <= 0.0 => Standing::Idle,
        () if window.app_limited || (short && !backlogged && !explained) => {
            Standing::AppLimited { measured: share(window.got), limit: share(window.assigned) }
        }
        () => Standing::Backlogged,
    };
    if memory.standing == Standing::Backlogged && !window.void {
        if share(window.busy) < ENOUGH {
            memory.lost += SLOWLY * (share(window.lost).min(0.75) - memory.lost);
        }
        memory.usual_rate += 2.0 * SLOWLY * (share(window.got) - memory.usual_rate);
        memory.usual_slow += 2.0 * SLOWLY * (share(window.slow_bytes) - memory.usual_slow);
    } else {
        // Nothing is owed for it, and what it was to repay is owed again.
        memory.debt = memory.debt.min(window.debt);
        memory.owed += window.repaid;
    }
    let most = at_once * promised * length;
    let bound = promised * REMEMBERED_S;
    let stays = memory.debt.clamp(-most, most);
    memory.owed = (memory.owed + memory.debt - stays).clamp(-bound, bound);
    let repaid = SLOWLY * memory.owed;
    memory.owed -= repaid;
    memory.debt = stays;
    memory.window = Window { debt: stays, repaid, ..Window::default() };
}

fn reason(stream: &Stream, seen: &Seen, limit: f64) -> Reason {
    let (measured, promised, memory) = (seen.rate, stream.promised, &stream.memory);
    if let Some(in_force) = seen.other_limit {
        return Reason::OtherLimit { in_force };
    }
    match memory.standing {
        Standing::Idle if measured <= 0.0 => Reason::Idle,
        // Before the window is over.
        _ if measured <= 0.0 && seen.demand == Demand::AppLimited => Reason::Idle,
        Standing::AppLimited { measured, limit } => Reason::AppLimited { measured, limit },
        _ if limit >= stream.most && measured < promised => Reason::AtCeiling { measured, promised },
        _ if limit < 0.98 * promised => Reason::GivingBack { measured, promised, ahead: -memory.debt - memory.owed },
        _ if memory.owed > 0.1 * REMEMBERED_S * promised => Reason::Repaying { measured, promised, owed: memory.owed },
        _ if limit <= 1.001 * promised => Reason::AsPromised,
        _ => Reason::Compensating { measured, promised, miss_rate: seen.miss_rate().unwrap_or(0.0) },
    }
}
