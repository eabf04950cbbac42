//! Ours: hold the guarantee in every window, remember what is owed, repay it slowly, learn only from what binds.
//!
//! Time is divided into windows (1 s). In each window a stream (one direction of one tenant) is due T·window, T being its
//! guarantee, plus a part of its debt from earlier windows. The limit spreads the rest of that over the rest of the window,
//! less the time that misses usually take:
//!
//! ```text
//! A = (due − got) / ((1 − κ)·time left)
//! ```
//!
//! κ is the part of the time during which the stream could not use its limit, averaged over some twenty windows in which the
//! limit did bind. With one interval to a window this is A = due/(1 − κ): what a limit yields has been learned, once. With
//! several intervals, throughput lost to a burst of misses is made up in the rest of the same window, and κ makes the stream
//! run ahead a little, so that a burst at the end of a window finds less left to do. A stream without misses has κ = 0 and an
//! even limit. Where the load of the slow device matters, its measured utilisation is used before its estimated bandwidth, so
//! that a wrong estimate does no harm.
//!
//! At the end of a window: a stream that got less than was due, without misses to explain it, was limited by its own demand;
//! nothing is owed to it and nothing learned. The debt is bounded, and so is the part that a window repays. While the slow
//! device is saturated for long and a tenant is short of its guarantee, streams that miss are owed nothing and nothing is
//! learned from them; see `share`.

use alloc::vec::Vec;

use super::stream::{Device, Interval, Seen, Stream};
use super::{Config, Demand, PATIENCE, REMEMBERED, Reason, share};

/// Weight of the newest window in the average of κ, and part of the debt that a window repays.
pub(super) const NEWEST: f64 = 1.0 / REMEMBERED as f64;
/// Weight of the newest window in the averages of what is usual: a change shows within the windows that κ remembers.
pub(super) const USUAL: f64 = 2.0 * NEWEST;
/// Part that is too small to matter. A limit is at least this part of the guarantee, so that no stream is stopped.
/// Misses explain a shortage of this part however few they are. A debt is worth a reason of its own above this part of
/// its bound.
pub(crate) const LEAST: f64 = 0.1;
/// A stream runs ahead by this multiple of the part of a window that misses usually take: bursts come singly, so that the
/// next window may well hold twice as much. A shortage is put down to misses up to `AHEAD - 1` times the part of the
/// time in which the slow device was busy: requests behind a miss come late too.
const AHEAD: f64 = 2.5;
/// Most that a stream runs ahead for misses, as a part of the rest of the window.
const AHEAD_MOST: f64 = 0.65;
/// A stream that got at least this part of what its limit and its guarantee allowed is not short. From this utilisation
/// over a window on, the slow device and not the limit decides throughput: κ is not learned from the window.
pub(crate) const ENOUGH: f64 = 0.97;

/// A stream's state from window to window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// κ: part of the time during which the limit could not be used, averaged over the last windows.
    lost: f64,
    /// The debt to the stream in units (bytes or requests); below zero the stream's excess.
    pub(super) owed: f64,
    window: Window,
    /// Averages over the last windows, for `share`: the stream's rate; `usual_slow`: its bytes per second at the slow device.
    pub(super) usual_rate: f64,
    pub(super) usual_slow: f64,
    /// While the stream is limited to its share of the slow device: the bytes per second that all streams had of that device
    /// when the cut began. Otherwise 0.
    pub(super) cut: f64,
    /// The stream's answer to bandwidth of the slow device that others leave to it.
    pub(super) wants: share::Wants,
    /// The tenant's demand in the last whole window.
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

/// Sums over the present window so far.
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
    /// The assigned limits, each times the seconds for which it was in force.
    assigned: f64,
    app_limited: bool,
    /// True if nothing can be learned from the window: counters began anew, or another program's limit was in force.
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
    for stream in &mut streams {
        let interval = core::mem::replace(&mut stream.interval, Interval::None);
        match interval {
            Interval::None => {}
            Interval::Reset => {
                stream.memory.window.void = true;
                stream.keep(Reason::CountersReset);
            }
            Interval::Seen(seen) => step(config, stream, &seen, device),
        }
    }
    // Twice the time constant of what is usual.
    let shows = config.window_s() / NEWEST;
    share::what_is_short(device, &mut streams, shows, config.interval.as_secs_f64());
}

fn step(config: &Config, stream: &mut Stream, seen: &Seen, device: &Device) {
    let (length, guaranteed) = (config.window_s(), stream.guaranteed);
    // Half an interval early or late is on time.
    let ends = length - 0.5 * config.interval.as_secs_f64();
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
    window.app_limited |= seen.demand == Demand::AppLimited && seen.rate < ENOUGH * stream.assigned;
    window.void |= seen.other_limit.is_some();
    let backlogged = seen.demand == Demand::Backlogged;
    if window.elapsed >= ends {
        close(config, memory, guaranteed, backlogged, seen.slow_bytes_per_s.is_some());
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
    let reason = reason(stream, seen, limit, most_owed(guaranteed, length));
    stream.assign(limit, reason);
}

/// Part of the interval in which the slow device was busy, as well as can be known; 0 if the stream had no misses.
fn busy(seen: &Seen, device: &Device) -> f64 {
    let slow = seen.slow_bytes_per_s.unwrap_or(0.0);
    if slow <= 0.0 {
        return 0.0;
    }
    let estimated = || device.slow_bytes_per_s().map(|bandwidth| (slow / bandwidth).min(1.0));
    device.utilisation.or_else(estimated).unwrap_or(1.0)
}

/// Bound on the debt, and on the excess, in units; more is forgotten.
fn most_owed(guaranteed: f64, length: f64) -> f64 {
    guaranteed * f64::from(PATIENCE) * length
}

/// Ends a window: updates the debt and the averages, and begins the next window with what it is due.
fn close(config: &Config, memory: &mut Memory, guaranteed: f64, backlogged: bool, misses_known: bool) {
    let (window, length) = (memory.window, config.window_s());
    let share = |part: f64| part / window.elapsed;
    let could = (guaranteed * window.elapsed).min(window.assigned).max(f64::MIN_POSITIVE);
    let shortage = 1.0 - window.got / could;
    let explained = misses_known && shortage <= (AHEAD - 1.0) * share(window.busy) + LEAST && window.busy > 0.0;
    let short = window.got < ENOUGH * could;
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
        let bound = most_owed(guaranteed, length);
        memory.owed = (memory.owed + rest).clamp(-bound, bound);
        if share(window.busy) < ENOUGH {
            // More cannot be made up for with the highest limit.
            let most = 1.0 - 1.0 / config.max_raise;
            memory.lost += NEWEST * (share(window.lost).min(most) - memory.lost);
        }
    } else {
        // What this window was to repay is owed again.
        memory.owed += (window.due - guaranteed * length).max(-guaranteed * length);
    }
    if !window.void {
        // The first window is all that is known.
        let newest = if memory.usual_rate > 0.0 { USUAL } else { 1.0 };
        memory.usual_rate += newest * (share(window.got) - memory.usual_rate);
        memory.usual_slow += newest * (share(window.slow_bytes) - memory.usual_slow);
    }
    let repaid = NEWEST * memory.owed;
    memory.owed -= repaid;
    memory.window = Window { due: guaranteed * length + repaid, ..Window::default() };
}

fn reason(stream: &Stream, seen: &Seen, limit: f64, most_owed: f64) -> Reason {
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
        _ if limit < ENOUGH * guaranteed => Reason::GivingBack { measured, guaranteed, ahead: -behind - memory.owed },
        _ if memory.owed > LEAST * most_owed => Reason::Repaying { measured, guaranteed, owed: memory.owed },
        // One window in which a stream got just enough raises κ by as much.
        _ if limit <= (1.0 + NEWEST * (1.0 - ENOUGH)) * guaranteed => Reason::AsGuaranteed,
        _ => Reason::Compensating { measured, guaranteed, miss_rate: seen.miss_rate().unwrap_or(0.0) },
    }
}
