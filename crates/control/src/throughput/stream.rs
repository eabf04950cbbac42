//! A stream, which is one direction of one tenant: its guarantee, its figures of the last interval, its assigned limit.

use crate::time::Duration;

use super::{Bandwidth, Bounds, Counters, Demand, Limit, Rate, Reason, TenantSample, accurate};

/// The state of the slow device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Device {
    pub(super) bandwidth: Bandwidth,
    pub(super) background_bytes_per_s: f64,
    /// Part (0 to 1) of the last interval in which the slow device was busy; `None` if not known.
    pub(super) utilisation: Option<f64>,
    /// Part (0 to 1) of the time in which the slow device was busy, averaged over about ten windows, so that one burst of
    /// misses does not count as a lasting shortage; `None` if not known.
    pub(super) usual_utilisation: Option<f64>,
}

impl Device {
    /// Takes the figures of an interval. `slow`: the slow device's bytes per second and the part of the time it was busy;
    /// `tenants_bytes_per_s`: the tenants' part of these bytes; `since`: the interval's length; `window_s`: seconds of a window.
    pub(super) fn observe(
        &mut self,
        slow: Option<(f64, f64)>,
        tenants_bytes_per_s: f64,
        since: Duration,
        window_s: f64,
    ) {
        self.background_bytes_per_s = slow.map_or(0.0, |(all, _)| (all - tenants_bytes_per_s).max(0.0));
        self.utilisation = slow.map(|(_, busy)| busy);
        let weight = (since.as_secs_f64() / (window_s / accurate::USUAL)).clamp(0.0, 1.0);
        self.usual_utilisation = self.utilisation.map(|now| {
            let usual = self.usual_utilisation.unwrap_or(0.0);
            usual + weight * (now - usual)
        });
    }

    /// Bandwidth of the slow device in bytes per second, if the figure is trusted.
    pub(super) fn slow_bytes_per_s(&self) -> Option<f64> {
        self.bandwidth.bytes_per_s.filter(|&bytes| self.bandwidth.trusted && bytes > 0.0)
    }
}

/// A stream's figures in an interval. Rates are in the unit of the guarantee, per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) seconds: f64,
    /// The stream's rate in units (bytes or requests, as in its guarantee) per second.
    pub(super) rate: f64,
    /// Bytes in one unit of the guarantee: 1 for a guarantee in bytes, the mean request size for one in requests.
    pub(super) unit_bytes: f64,
    /// The stream's bytes per second that reached the slow device; `None` if that is not known.
    pub(super) slow_bytes_per_s: Option<f64>,
    pub(super) demand: Demand,
    /// The limit in force if another program had set it, infinite if that program had removed the limit. `None`: the assigned
    /// limit was in force.
    pub(super) other_limit: Option<f64>,
}

impl Seen {
    /// Part of the stream's bytes that reached the slow device, 0 to 1; `None` if that is not known.
    pub(super) fn miss_rate(&self) -> Option<f64> {
        let bytes = self.rate * self.unit_bytes;
        self.slow_bytes_per_s.map(|slow| if bytes > 0.0 { (slow / bytes).min(1.0) } else { 0.0 })
    }
}

/// A stream's figures of the interval since the previous decision, if there are any.
#[derive(Clone, Copy, Debug)]
pub(super) enum Interval {
    /// No interval has been observed since the last decision.
    None,
    /// The interval has no figures: counters began anew, or there was a pause.
    Reset,
    Seen(Seen),
}

#[derive(Clone, Debug)]
pub(super) struct Stream {
    unit: Rate,
    pub(super) guaranteed: f64,
    /// Upper bound on the assigned limit, in the unit of the guarantee per second.
    pub(super) most: f64,
    pub(super) weight: f64,
    pub(super) assigned: f64,
    reason: Reason,
    pub(super) interval: Interval,
    pub(super) memory: accurate::Memory,
}

impl Stream {
    pub(super) fn new(bounds: Bounds, weight: f64, max_raise: f64) -> Self {
        let guaranteed = bounds.guaranteed.value() as f64;
        Self {
            unit: bounds.guaranteed,
            guaranteed,
            most: bounds.ceiling.map_or(f64::INFINITY, |ceiling| ceiling as f64).min(guaranteed * max_raise),
            weight,
            assigned: guaranteed,
            reason: Reason::NotEnoughData,
            interval: Interval::None,
            memory: accurate::Memory::default(),
        }
    }

    /// Gives this stream the state that `old`, the same stream with its previous guarantee, has learned. Nothing is taken over
    /// if the two guarantees differ in unit.
    pub(super) fn learned_from(mut self, old: &Self) -> Self {
        if core::mem::discriminant(&self.unit) == core::mem::discriminant(&old.unit) {
            self.memory = old.memory.without_debt();
            self.assign(old.assigned * self.guaranteed / old.guaranteed, old.reason);
        }
        self
    }

    /// The same for another part of one guarantee, of which other hosts have the rest: the debt and the present window stay, too.
    /// `length`: seconds of a window.
    pub(super) fn in_part_from(self, old: &Self, length: f64) -> Self {
        let is_same_unit = core::mem::discriminant(&self.unit) == core::mem::discriminant(&old.unit);
        let new = self.learned_from(old);
        let memory = old.memory.in_part(old.guaranteed, new.guaranteed, length);
        if is_same_unit { Self { memory, ..new } } else { new }
    }

    pub(super) fn assign(&mut self, limit: f64, reason: Reason) {
        // A limit of nothing would be "none" to some, and starves.
        self.assigned = libm::round(limit).clamp(1.0, self.most);
        self.reason = reason;
    }

    /// Keeps the assigned limit, and sets `reason` as the reason for it.
    pub(super) fn keep(&mut self, reason: Reason) {
        self.reason = reason;
    }

    /// Forgets all that was learned of the stream, and the figures of its last interval.
    pub(super) fn forget(&mut self) {
        self.memory = accurate::Memory::default();
        self.interval = Interval::None;
    }

    /// Sets the stream's debt or excess of throughput to zero.
    pub(super) fn forgive(&mut self) {
        self.memory.owed = 0.0;
    }

    pub(super) fn limit(&self) -> Limit {
        Limit { limit: self.unit.with_value(self.assigned as u64), reason: self.reason }
    }

    fn observe(
        &mut self,
        bytes: u64,
        requests: u64,
        slow_bytes: Option<u64>,
        in_force: Option<Option<u64>>,
        of: &Change,
    ) {
        let (units, unit_bytes) = match self.unit {
            Rate::BytesPerS(_) => (bytes as f64, 1.0),
            Rate::RequestsPerS(_) => (requests as f64, bytes as f64 / (requests as f64).max(1.0)),
        };
        let in_force = in_force.map(|limit| limit.map_or(f64::INFINITY, |limit| limit as f64));
        // Limits are whole numbers: a smaller difference is rounding.
        let other = |limit: &f64| libm::fabs(limit - self.assigned) > 1.0;
        self.interval = Interval::Seen(Seen {
            seconds: of.seconds,
            rate: units / of.seconds,
            unit_bytes,
            slow_bytes_per_s: slow_bytes.map(|slow| slow as f64 / of.seconds),
            demand: of.demand,
            other_limit: in_force.filter(other),
        });
    }
}

/// A tenant's counters between two samples.
pub(super) struct Change {
    seconds: f64,
    demand: Demand,
    /// Growth of the counters on the cached device; `None` if a counter began anew, or the samples are too far apart.
    cached: Option<Counters>,
    slow: Option<Counters>,
    in_force: Option<super::InForce>,
}

impl Change {
    pub(super) fn between(
        cached: &Counters,
        slow: Option<&Counters>,
        sample: &TenantSample,
        seconds: f64,
        paused: bool,
    ) -> Self {
        let known = slow.zip(sample.slow.as_ref());
        let slow = known.map(|(before, after)| difference(before, after));
        // A slow device whose counters began anew makes the whole interval void, not one without misses.
        let whole = !paused && slow != Some(None);
        Self {
            seconds,
            demand: sample.demand,
            cached: difference(cached, &sample.cached).filter(|_| whole),
            slow: slow.flatten(),
            in_force: sample.in_force,
        }
    }
}

fn difference(before: &Counters, after: &Counters) -> Option<Counters> {
    Some(Counters {
        read_bytes: after.read_bytes.checked_sub(before.read_bytes)?,
        written_bytes: after.written_bytes.checked_sub(before.written_bytes)?,
        reads: after.reads.checked_sub(before.reads)?,
        writes: after.writes.checked_sub(before.writes)?,
    })
}

/// Passes a tenant's figures of an interval to its read and its write stream; returns the tenant's bytes per second at the slow
/// device.
pub(super) fn observe([read, write]: [&mut Option<Stream>; 2], change: &Change) -> f64 {
    let Some(cached) = change.cached else {
        [read, write].into_iter().flatten().for_each(|stream| stream.interval = Interval::Reset);
        return 0.0;
    };
    let slow = change.slow;
    if let Some(read) = read {
        let limit = change.in_force.map(|found| found.read);
        read.observe(cached.read_bytes, cached.reads, slow.map(|slow| slow.read_bytes), limit, change);
    }
    if let Some(write) = write {
        let limit = change.in_force.map(|found| found.write);
        write.observe(cached.written_bytes, cached.writes, slow.map(|slow| slow.written_bytes), limit, change);
    }
    slow.map_or(0.0, |slow| (slow.read_bytes.saturating_add(slow.written_bytes)) as f64 / change.seconds)
}
