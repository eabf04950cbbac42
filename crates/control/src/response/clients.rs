//! Finds noisy clients: the few that make most of a pool's load.

use alloc::vec::Vec;

use super::{ClientId, ClientSample, Throttle, whole};
use crate::time::Duration;

/// Distance of the set point below the target, as a part of the target: the initial and the largest value. Also, the tenant of
/// a throttled client keeps its reservation or guarantee plus the first of these parts.
pub(super) const MARGIN: (f64, f64) = (0.15, 0.5);
/// Time constant with which the load of a client is smoothed.
const SMOOTHING: Duration = Duration::from_secs(1);
/// Upper bound on a client's load: a larger figure is an error, and would stay in the smoothed load for good.
const MOST_BYTES_PER_S: f64 = 1e13;
/// A noisy client stays noisy until its load has fallen below this part of the load above which a client becomes noisy.
const LEAVES_AT: f64 = 0.5;
/// Part of all load that the smallest set of clients has to make (Pareto's 80 %) for its members to count as loud.
const MOST: f64 = 0.8;

/// A client of the pool, with its load and its delay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) throttle: Throttle,
    /// Load that the throttle slows in the last interval, in bytes per second, not smoothed.
    pub(super) now_bytes_per_s: f64,
    /// Load that the throttle slows, in bytes per second, smoothed.
    pub(super) bytes_per_s: f64,
    /// Load of all that the client moves, in bytes per second, smoothed.
    pub(super) all_bytes_per_s: f64,
    /// Load of all that the client would move without a throttle, in bytes per second, smoothed.
    pub(super) freed_bytes_per_s: f64,
    /// True if the client reads at present.
    pub(super) reads: bool,
    /// True if the client counts as noisy, so that it may be throttled.
    pub(super) noisy: bool,
    /// True if the client counted as noisy before the latest judgement.
    pub(super) was_noisy: bool,
    /// The client's share of the load of all noisy clients, 0 to 1, for the adaptive method; 0 if the client is not noisy.
    pub(super) share: f64,
    /// The client's delay in force, in ms.
    pub(super) delay_ms: f64,
    /// The longest delay with which the client's tenant gets its reservation or guarantee, in ms; `None` if it has neither.
    pub(super) most_ms: Option<f64>,
    /// Throughput of the client's tenant, as a multiple of its reservation or guarantee, times latency plus effect of the
    /// delay in ms; smoothed. By Little's law this product does not depend on the delay.
    pub(super) circulation: f64,
    pub(super) present: bool,
}

impl Client {
    /// The larger of the client's smoothed load and its load in the last interval, in bytes per second that the throttle slows.
    pub(super) fn load(&self) -> f64 {
        self.bytes_per_s.max(self.now_bytes_per_s)
    }

    /// Takes the client's load in an interval, which enters the smoothed load with `weight` (0 to 1).
    fn take(&mut self, sample: &ClientSample, weight: f64) {
        let valid = |load: f64| if load.is_nan() { 0.0 } else { load.clamp(0.0, MOST_BYTES_PER_S) };
        let load = valid(sample.bytes_per_s);
        let all = valid(sample.all_bytes_per_s).max(load);
        self.bytes_per_s += weight * (load - self.bytes_per_s);
        self.all_bytes_per_s += weight * (all - self.all_bytes_per_s);
        self.freed_bytes_per_s += weight * (valid(sample.freed_bytes_per_s).max(all) - self.freed_bytes_per_s);
        (self.throttle, self.now_bytes_per_s, self.present) = (sample.throttle, load, true);
        self.reads = sample.reads;
    }

    /// The larger of all the client's smoothed load, as it would be without a throttle, and its load in the last interval.
    fn freed(&self) -> f64 {
        self.freed_bytes_per_s.max(self.now_bytes_per_s)
    }

    /// As [`Self::load`], without a throttle.
    fn freed_load(&self) -> f64 {
        match self.all_bytes_per_s > 0.0 && self.freed_bytes_per_s > self.all_bytes_per_s {
            true => (self.load() * (self.freed_bytes_per_s / self.all_bytes_per_s)).min(self.freed()),
            false => self.load(),
        }
    }

    /// Finds the longest delay with which the client's tenant gets its reservation or guarantee. `paid`: see
    /// [`ClientSample::paid`]; `latency_ms`: latency of the storage; a request meets the delay `k` times. Throughput is taken as
    /// `circulation / (latency + k·delay)`; errors of latency and k cancel at the longest delay.
    fn bound(&mut self, paid: f64, latency_ms: f64, k: f64, weight: f64) {
        self.most_ms = paid.is_finite().then(|| {
            let now = paid * (latency_ms + k * self.delay_ms);
            let weight = if self.most_ms.is_some() { weight } else { 1.0 };
            self.circulation += weight * (now - self.circulation);
            ((self.circulation / (1.0 + MARGIN.0) - latency_ms) / k).max(0.0)
        });
    }

    /// The longest delay that the client may have, in ms: `largest_ms`, or less for a reservation or guarantee of its tenant,
    /// rounded down to a multiple of `step_ms` unless that is 0.
    pub(super) fn most_of(&self, largest_ms: f64, step_ms: f64) -> f64 {
        match self.most_ms.filter(|most| *most < largest_ms) {
            Some(most) if step_ms > 0.0 => whole(most / step_ms) * step_ms,
            most => most.unwrap_or(largest_ms),
        }
    }

    /// Decides anew if the client is noisy. `loads` are pairs of a load and its threshold: the client becomes noisy when all
    /// loads exceed their thresholds, and stays noisy until a load falls below half of its threshold.
    pub(super) fn judge(&mut self, loads: &[(f64, f64)]) {
        let part = if self.noisy { LEAVES_AT } else { 1.0 };
        self.was_noisy = self.noisy;
        self.noisy = match self.throttle {
            Throttle::Never => false,
            Throttle::Always => true,
            Throttle::Normal | Throttle::Last => loads.iter().all(|(load, threshold)| *load > part * threshold),
        };
    }
}

/// The load above which a client is loud: half of the least load in the smallest set of clients that makes 80 % of all load, so
/// that clients with equal loads are treated alike. Infinite without load. Sorts `loads`.
pub(crate) fn loud_from(loads: &mut [f64]) -> f64 {
    loads.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut left = MOST * loads.iter().sum::<f64>();
    let least = loads.iter().find(|&&load| {
        left -= load;
        left <= 0.0 && load > 0.0
    });
    least.map_or(f64::INFINITY, |least| LEAVES_AT * least)
}

/// The clients in order of their numbers, so that the order of their samples does not matter.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) all: Vec<Client>,
    /// Memory that [`Self::find_noisy`] uses for loads, kept to avoid allocations.
    loads: Vec<f64>,
}

impl Clients {
    /// Takes the clients' loads of an interval of this length. `latency_ms`: the storage's latency in the interval; `k`: number
    /// of times that a request meets the delay. O(clients · log clients).
    pub(super) fn observe(&mut self, length: Duration, samples: &[ClientSample], latency_ms: f64, k: f64) {
        let usual = 1.0 - libm::exp(-length.as_secs_f64() / SMOOTHING.as_secs_f64());
        self.all.iter_mut().for_each(|client| client.present = false);
        for sample in samples {
            let (place, weight) = match self.all.binary_search_by_key(&sample.client, |client| client.id) {
                // Of several samples of one client only the first may enter the smoothed load.
                Ok(place) => (place, if self.all[place].present { 0.0 } else { usual }),
                Err(place) => {
                    self.all.insert(place, Client { id: sample.client, ..Client::default() });
                    (place, 1.0)
                }
            };
            self.all[place].take(sample, weight);
            self.all[place].bound(sample.paid, latency_ms, k, weight);
        }
        self.all.retain(|client| client.present);
    }

    /// Decides anew which clients are noisy: those that are loud by all their traffic, and also either loud by the traffic that
    /// the throttle slows, or with more than 20 % of their traffic slowed. By slowed traffic alone, a client that mostly reads
    /// would not be found; by all traffic alone, a victim that moves most while noisy clients are throttled would count as
    /// noisy for a single write. If a client that is never throttled is loud, the others are compared with each other, so that
    /// it does not hide them all. Loads are those without a throttle. Returns true if there are more noisy clients than before.
    /// O(clients · log clients).
    pub(super) fn find_noisy(&mut self) -> bool {
        let mut from = |load: fn(&Client) -> f64, of: fn(&&Client) -> bool| {
            self.loads.clear();
            self.loads.extend(self.all.iter().filter(of).map(load));
            loud_from(&mut self.loads)
        };
        let every = |_: &&Client| true;
        let (mut from_all, mut from_slowed) = (from(Client::freed, every), from(Client::freed_load, every));
        let is_loud = |client: &Client| client.freed() > from_all || client.freed_load() > from_slowed;
        if self.all.iter().any(|client| client.throttle == Throttle::Never && is_loud(client)) {
            let others = |client: &&Client| client.throttle != Throttle::Never;
            // What is small beside its load is no noise.
            from_all = from(Client::freed, others).clamp((1.0 - MOST) * from_all, from_all);
            from_slowed = from(Client::freed_load, others).clamp((1.0 - MOST) * from_slowed, from_slowed);
        }
        let before = self.noisy().count();
        for client in &mut self.all {
            let good_part = client.freed_load() > (1.0 - MOST) * client.freed();
            let slowed = if good_part { f64::INFINITY } else { client.freed_load() };
            client.judge(&[(client.freed(), from_all), (slowed, from_slowed)]);
        }
        self.keep_a_reader();
        self.noisy().count() > before
    }

    /// If all clients that read are noisy, so that no read would count: those that are throttled last are not noisy; if that
    /// leaves all clients that read noisy, or no noisy client, those are not noisy that were not noisy before.
    fn keep_a_reader(&mut self) {
        let mut readers = self.all.iter().filter(|client| client.reads).peekable();
        if readers.peek().is_none() || readers.any(|client| !client.noisy) {
            return;
        }
        let is_last = |client: &Client| client.throttle == Throttle::Last;
        let by_policy = self.all.iter().any(|client| client.reads && is_last(client))
            && self.all.iter().any(|client| client.noisy && !is_last(client));
        for client in self.all.iter_mut().filter(|client| client.throttle != Throttle::Always) {
            client.noisy &= if by_policy { !is_last(client) } else { client.was_noisy };
        }
    }

    /// Notes that the client's delay in force until the next decision is `delay`, not the decided one.
    pub(super) fn set_delay(&mut self, client: ClientId, delay: Duration) {
        if let Ok(place) = self.all.binary_search_by_key(&client, |client| client.id) {
            self.all[place].delay_ms = delay.as_millis_f64();
        }
    }

    /// True if this client is noisy.
    pub(super) fn is_noisy(&self, client: ClientId) -> bool {
        self.all.binary_search_by_key(&client, |client| client.id).is_ok_and(|place| self.all[place].noisy)
    }

    /// The noisy clients, in order of their numbers.
    pub(super) fn noisy(&self) -> impl Iterator<Item = &Client> {
        self.all.iter().filter(|client| client.noisy)
    }
}
