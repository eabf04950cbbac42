//! Finds noisy clients.

use alloc::vec::Vec;

use super::{ClientId, ClientSample, Throttle, whole};
use crate::time::Duration;

/// Distance of the set point below the target, as a part of the target: at first, and at most. The tenant of a throttled
/// client keeps more than it is owed, by the first of these parts.
pub(super) const MARGIN: (f64, f64) = (0.15, 0.5);
/// Time constant of the smoothed load.
const SMOOTHING: Duration = Duration::from_secs(1);
/// No client moves more; a larger figure is mistaken, and would stay in the smoothed load for good.
const MOST_BYTES_PER_S: f64 = 1e13;
/// A noisy client stays one until its load has fallen below this part of the load that makes one.
const LEAVES_AT: f64 = 0.5;
/// Part of all load that the smallest set of loud clients makes (Pareto's).
const MOST: f64 = 0.8;

/// A client of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) throttle: Throttle,
    /// Load in the last interval, in bytes per second.
    pub(super) now_bytes_per_s: f64,
    /// Load that the throttle slows, in bytes per second, smoothed.
    pub(super) bytes_per_s: f64,
    /// Load of all that the client moves, in bytes per second, smoothed.
    pub(super) all_bytes_per_s: f64,
    /// True if it is among those that may be throttled.
    pub(super) noisy: bool,
    /// Share of the load of all noisy clients, 0 to 1, for the adaptive method; `delay_ms`: the delay in force.
    pub(super) share: f64,
    pub(super) delay_ms: f64,
    /// The longest delay that leaves its tenant what it is owed, in ms; `None` if nothing is owed.
    pub(super) most_ms: Option<f64>,
    /// By Little's law: the throughput of the client's tenant, as a multiple of what it is owed, times the latency with the
    /// delay in ms; smoothed.
    pub(super) circulation: f64,
    pub(super) present: bool,
}

impl Client {
    /// The client's usual load, or its present load if that is larger.
    pub(super) fn load(&self) -> f64 {
        self.bytes_per_s.max(self.now_bytes_per_s)
    }

    /// Takes the load of an interval, with this weight in the smoothed one.
    fn take(&mut self, sample: &ClientSample, weight: f64) {
        let valid = |load: f64| if load.is_nan() { 0.0 } else { load.clamp(0.0, MOST_BYTES_PER_S) };
        let load = valid(sample.bytes_per_s);
        self.bytes_per_s += weight * (load - self.bytes_per_s);
        self.all_bytes_per_s += weight * (valid(sample.all_bytes_per_s).max(load) - self.all_bytes_per_s);
        (self.throttle, self.now_bytes_per_s, self.present) = (sample.throttle, load, true);
    }

    /// Finds the longest delay that leaves its tenant what it is owed, where `latency_ms` is that of the storage and a request
    /// meets the delay `k` times. With so much in circulation the throughput is `circulation / (latency + k·delay)`; errors of
    /// latency and k cancel where the delay is the longest one.
    fn bound(&mut self, paid: f64, latency_ms: f64, k: f64, weight: f64) {
        self.most_ms = paid.is_finite().then(|| {
            let now = paid * (latency_ms + k * self.delay_ms);
            let weight = if self.most_ms.is_some() { weight } else { 1.0 };
            self.circulation += weight * (now - self.circulation);
            ((self.circulation / (1.0 + MARGIN.0) - latency_ms) / k).max(0.0)
        });
    }

    /// The longest delay it may have, of `largest_ms`: a multiple of the step, or any with a step of 0.
    pub(super) fn most_of(&self, largest_ms: f64, step_ms: f64) -> f64 {
        match self.most_ms.filter(|most| *most < largest_ms) {
            Some(most) if step_ms > 0.0 => whole(most / step_ms) * step_ms,
            most => most.unwrap_or(largest_ms),
        }
    }

    /// Decides anew if the client is noisy. `loads` are pairs of a load and its threshold: the client becomes noisy when all
    /// loads exceed their thresholds, and stays so until one falls below half of its threshold.
    pub(super) fn judge(&mut self, loads: &[(f64, f64)]) {
        let part = if self.noisy { LEAVES_AT } else { 1.0 };
        self.noisy = match self.throttle {
            Throttle::Never => false,
            Throttle::Always => true,
            Throttle::Normal | Throttle::Last => loads.iter().all(|(load, threshold)| *load > part * threshold),
        };
    }
}

/// The load above which a client is loud: half of the least load in the smallest set of clients that makes most of the load,
/// so that equals are treated alike. Sorts the loads.
pub(crate) fn loud_from(loads: &mut [f64]) -> f64 {
    loads.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut left = MOST * loads.iter().sum::<f64>();
    let least = loads.iter().find(|&&load| {
        left -= load;
        left <= 0.0 && load > 0.0
    });
    least.map_or(f64::INFINITY, |least| LEAVES_AT * least)
}

/// The clients in order of their numbers, so that the order in which samples come changes nothing.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) all: Vec<Client>,
    /// Memory that [`Self::find_noisy`] uses again.
    loads: Vec<f64>,
}

impl Clients {
    /// Takes the loads of an interval of this length, in which the storage had this latency and a request met a delay `k`
    /// times. O(clients · log clients).
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

    /// Decides anew which clients are noisy: those that are loud by all that they move, and also loud by what the
    /// throttle slows, or with a good part of their own traffic in that. By what is slowed alone, a client that mostly
    /// reads would hide; by all traffic alone, a victim that moves most while noisy clients are throttled would be
    /// taken for noisy for a single write. Where one that is never throttled is loud, the others are compared with each
    /// other, so that it does not hide them all. Returns true if there are more than before. O(clients · log clients).
    pub(super) fn find_noisy(&mut self) -> bool {
        let all = |client: &Client| client.all_bytes_per_s.max(client.now_bytes_per_s);
        let mut from = |load: fn(&Client) -> f64, of: fn(&&Client) -> bool| {
            self.loads.clear();
            self.loads.extend(self.all.iter().filter(of).map(load));
            loud_from(&mut self.loads)
        };
        let every = |_: &&Client| true;
        let (mut from_all, mut from_slowed) = (from(all, every), from(Client::load, every));
        let is_loud = |client: &Client| all(client) > from_all || client.load() > from_slowed;
        if self.all.iter().any(|client| client.throttle == Throttle::Never && is_loud(client)) {
            let others = |client: &&Client| client.throttle != Throttle::Never;
            // What is small beside its load is no noise.
            from_all = from(all, others).clamp((1.0 - MOST) * from_all, from_all);
            from_slowed = from(Client::load, others).clamp((1.0 - MOST) * from_slowed, from_slowed);
        }
        let before = self.noisy().count();
        for client in &mut self.all {
            let good_part = client.load() > (1.0 - MOST) * all(client);
            let slowed = if good_part { f64::INFINITY } else { client.load() };
            client.judge(&[(all(client), from_all), (slowed, from_slowed)]);
        }
        self.noisy().count() > before
    }

    /// True if this client is noisy.
    pub(super) fn is_noisy(&self, client: ClientId) -> bool {
        self.all.binary_search_by_key(&client, |client| client.id).is_ok_and(|place| self.all[place].noisy)
    }

    /// The noisy clients, in order.
    pub(super) fn noisy(&self) -> impl Iterator<Item = &Client> {
        self.all.iter().filter(|client| client.noisy)
    }
}
