//! Evenkeel's own method: holds the guarantee in each window, remembers missing throughput as a debt, repays debts slowly, and
//! learns only from windows in which the limit was binding.
//!
//! Time is divided into windows (1 s). In each window a stream (one direction of one tenant) is due T·window, T being its
//! guarantee, plus a part of its debt from earlier windows. The limit A spreads the part of it that the stream has not got
//! yet over the rest of the window, less the time that misses usually take:
//!
//! ```text
//! A = (due − got) / ((1 − κ)·time left)
//! ```
//!
//! κ is the part of the time during which the stream could not use its limit, averaged over some twenty windows in which the
//! limit was binding. With one control interval per window, A = due/((1 − κ)·window). With several intervals, throughput lost
//! to a burst of misses is made up in the rest of the same window, and κ makes the stream run ahead of an even pace, so that a
//! burst at the end of a window finds less left to do. A stream without misses has κ = 0 and an even limit. The load of the
//! slow device is taken from its measured utilisation, and from its estimated bandwidth only where that is not known, so that
//! a wrong estimate does no harm.
//!
//! At the end of a window: a stream that got less than was due, without misses to explain it, was limited by its own demand;
//! nothing is owed to it and nothing learned. The debt is bounded, and so is the part that a window repays. While the slow
//! device is saturated for long and a tenant is short of its guarantee, streams with misses are owed nothing and nothing is
//! learned from them; see `share`.

use alloc::vec::Vec;

use super::stream::{Device, Interval, Seen, Stream};
use super::{Config, Demand, PATIENCE, REMEMBERED, Reason, share};

/// Weight of the newest window in the average of κ (the part of the time lost to misses). Also the part of a stream's debt
/// that one window repays.
pub(super) const NEWEST: f64 = 1.0 / REMEMBERED as f64;
/// Weight of the newest window in the averages of rates and of the slow device's utilisation: a change shows nearly in full
/// within [`REMEMBERED`] windows.
pub(super) const USUAL: f64 = 2.0 * NEWEST;
/// A part that is too small to matter. A limit is at least this part of the guarantee, so that no stream is stopped. A
/// shortage of up to this part is put down to misses, however few there are. A debt is the reason of a limit only above this
/// part of its upper bound.
pub(crate) const LEAST: f64 = 0.1;
/// A stream runs ahead of an even pace by this multiple of κ, the part of a window that misses usually take: misses come in
/// bursts, so that the next window may well have twice as many. A shortage is put down to misses up to `AHEAD - 1` times the
/// part of the time in which the slow device was busy: requests behind a miss come late too.
const AHEAD: f64 = 2.5;
/// Upper bound on `AHEAD` × κ, as a part of the rest of the window.
const AHEAD_MOST: f64 = 0.65;
/// A stream that got at least this part of the smaller of its limit and its guarantee is not short. If the slow device was
/// busy for at least this part of a window, it and not the limit decided throughput: κ is not learned from the window.
pub(crate) const ENOUGH: f64 = 0.97;

/// A stream's state from window to window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// κ: part of the time during which the stream could not use its limit, averaged over about twenty windows.
    lost: f64,
    /// Units (bytes or requests) that the stream is owed; negative if it got more than it was due.
    pub(super) owed: f64,
    window: Window,
    /// The stream's rate in units of its guarantee per second, averaged over about ten windows.
    pub(super) usual_rate: f64,
    /// The stream's bytes per second at the slow device, averaged over about ten windows.
    pub(super) usual_slow: f64,
    /// While the stream is limited to its share of the slow device: the bytes per second that all streams together had at that
    /// device when shares began to be enforced. Otherwise 0.
    pub(super) cut: f64,
    /// Response of the stream's rate to bandwidth of the slow device that limits on other streams leave to it.
    pub(super) wants: share::Wants,
    /// The stream's demand in the latest complete window.
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
    /// Seconds of this window during which the stream could not use its limit.
    lost: f64,
    /// Seconds of this window during which the slow device was busy; intervals in which the stream had no misses count 0.
    busy: f64,
    /// Units that the assigned limits allowed in this window: the sum of each limit times its seconds in force.
    assigned: f64,
    app_limited: bool,
    /// True if nothing can be learned from this window: counters began anew, or another program's limit was in force.
    void: bool,
}

impl Memory {
    /// False if the stream got nothing in the latest complete window, or asked for less than it could have.
    pub(super) fn is_backlogged(&self) -> bool {
        self.activity == Activity::Backlogged
    }

    pub(super) fn without_debt(&self) -> Self {
        Self { owed: 0.0, window: Window::default(), ..*self }
    }

    /// The state after the part of a guarantee that applies here has changed from `before` to `guaranteed` units per second;
    /// windows are `length` seconds long. The debt stays as a number of units, up to the bound of the new part, and so does what
    /// the stream got beyond an even pace: one large request at a tiny part is no large excess of the whole guarantee.
    pub(super) fn in_part(&self, before: f64, guaranteed: f64, length: f64) -> Self {
        let window = self.window;
        if window.elapsed == 0.0 && window.due == 0.0 {
            return *self;
        }
        let bound = most_owed(guaranteed, length);
        let was_repaid = window.due - before * length;
        let repaid = was_repaid.clamp(-NEWEST * bound, NEWEST * bound);
        let owed = (self.owed + was_repaid - repaid).clamp(-bound, bound);
        let ahead = window.got - before * window.elapsed;
        let ahead = if ahead < 0.0 { ahead * (guaranteed / before).min(1.0) } else { ahead };
        // A stream that got nothing so far still did not.
        let got = if window.got > 0.0 { guaranteed * window.elapsed + ahead } else { 0.0 };
        let assigned = window.assigned * guaranteed / before;
        let window = Window { due: guaranteed * length + repaid, got, assigned, ..window };
        Self { owed, window, ..*self }
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

/// Part (0 to 1) of the interval in which the slow device was busy: as measured, else by its estimated bandwidth, else 1. It is
/// 0 if the stream had no misses.
fn busy(seen: &Seen, device: &Device) -> f64 {
    let slow = seen.slow_bytes_per_s.unwrap_or(0.0);
    if slow <= 0.0 {
        return 0.0;
    }
    let estimated = || device.slow_bytes_per_s().map(|bandwidth| (slow / bandwidth).min(1.0));
    device.utilisation.or_else(estimated).unwrap_or(1.0)
}

/// Upper bound on the debt to a stream and on its excess, in units (bytes or requests). `guaranteed`: units per second;
/// `length`: seconds of a window.
fn most_owed(guaranteed: f64, length: f64) -> f64 {
    guaranteed * f64::from(PATIENCE) * length
}

/// Ends a stream's window: updates its debt and averages, and begins its next window with the units that are due in it.
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
