//! Who is noisy?

use alloc::vec::Vec;

use super::{ClientId, ClientSample, Standing};
use crate::time::Duration;

/// Time constant of the smoothed load.
const SMOOTHING: Duration = Duration::from_secs(1);
/// No client moves more; whatever says so is mistaken, and would stay in the smoothed load for good.
const MOST_BYTES_PER_S: f64 = 1e13;
/// A noisy client stays one until its load has fallen below this part of what makes one.
const LEAVES_AT: f64 = 0.5;
/// Part of all load that the smallest set of loud clients makes (Pareto's).
const MOST: f64 = 0.8;

/// A client of the resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) standing: Standing,
    /// Load in the last interval, in bytes per second.
    pub(super) now_bytes_per_s: f64,
    /// The same, smoothed.
    pub(super) bytes_per_s: f64,
    /// The same of all that it moves, whether or not the throttle slows it.
    all_bytes_per_s: f64,
    /// Whether it is among those that make most of the load.
    loud: bool,
    /// Whether it is among those that may be throttled.
    pub(super) noisy: bool,
    /// How long its load has been too small for a noisy client, in microseconds, at most an hour. For the published method.
    quiet_us: u32,
    /// The delay in force, in ms. For the adaptive method.
    pub(super) delay_ms: f64,
    present: bool,
}

impl Client {
    fn new(sample: &ClientSample) -> Self {
        let mut new = Self {
            id: sample.client,
            standing: sample.standing,
            now_bytes_per_s: 0.0,
            bytes_per_s: 0.0,
            all_bytes_per_s: 0.0,
            loud: false,
            noisy: false,
            quiet_us: 0,
            delay_ms: 0.0,
            present: true,
        };
        new.take(sample, 1.0);
        new
    }

    /// Its usual load, or the present one if it has begun to move more.
    pub(super) fn load(&self) -> f64 {
        self.bytes_per_s.max(self.now_bytes_per_s)
    }

    /// Takes the load of an interval, with this weight in the smoothed one.
    fn take(&mut self, sample: &ClientSample, weight: f64) {
        let valid = |load: f64| if load.is_nan() { 0.0 } else { load.clamp(0.0, MOST_BYTES_PER_S) };
        let load = valid(sample.bytes_per_s);
        self.bytes_per_s += weight * (load - self.bytes_per_s);
        self.all_bytes_per_s += weight * (valid(sample.all_bytes_per_s).max(load) - self.all_bytes_per_s);
        (self.standing, self.now_bytes_per_s, self.present) = (sample.standing, load, true);
    }
}

fn microseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos() / 1_000).unwrap_or(u32::MAX)
}

/// The load from which on a client is loud: half of the least in the smallest set that makes most of the load, so that
/// equals are treated alike. Sorts the loads.
pub(crate) fn loud_from(loads: &mut [f64]) -> f64 {
    loads.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut left = MOST * loads.iter().sum::<f64>();
    let least = loads.iter().find(|&&load| {
        left -= load;
        left <= 0.0 && load > 0.0
    });
    least.map_or(f64::INFINITY, |least| LEAVES_AT * least)
}

/// The clients in order of their numbers, so that the order in which they are told changes nothing.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Client>);

impl Clients {
    /// Takes the loads of an interval of this length. O(clients) if they are the same as before and in order.
    pub(super) fn observe(&mut self, length: Duration, samples: &[ClientSample]) {
        let weight = 1.0 - libm::exp(-length.as_secs_f64() / SMOOTHING.as_secs_f64());
        let same =
            samples.len() == self.0.len() && self.0.iter().zip(samples).all(|(known, told)| known.id == told.client);
        if same {
            for (client, sample) in self.0.iter_mut().zip(samples) {
                client.take(sample, weight);
            }
            return;
        }
        for client in &mut self.0 {
            client.present = false;
        }
        for sample in samples {
            match self.0.binary_search_by_key(&sample.client, |client| client.id) {
                Ok(place) => {
                    let client = &mut self.0[place];
                    // Of several samples of one client only the first may enter the smoothed load.
                    let weight = if client.present { 0.0 } else { weight };
                    client.take(sample, weight);
                }
                Err(place) => self.0.insert(place, Client::new(sample)),
            }
        }
        self.0.retain(|client| client.present);
    }

    /// Decides anew who is noisy by a threshold, as published: a client with more than `threshold` (in bytes per second),
    /// until it has had less than half of that for as long as `patience`.
    pub(super) fn converge(&mut self, length: Duration, threshold: f64, patience: Duration) {
        let (length_us, patience_us) = (microseconds(length), microseconds(patience));
        for client in &mut self.0 {
            client.noisy = match client.standing {
                Standing::Never => false,
                Standing::Always => true,
                Standing::Ordinary | Standing::Important => {
                    let busy = client.bytes_per_s > threshold * LEAVES_AT;
                    client.quiet_us = if busy { 0 } else { client.quiet_us.saturating_add(length_us) };
                    client.bytes_per_s > threshold || client.noisy && (busy || client.quiet_us < patience_us)
                }
            };
        }
    }

    /// Decides anew who is noisy: the loud clients that the throttle slows. What counts is the load that a client would have
    /// without its delay, of which a millisecond takes `effect` times the load, so that a delay makes no client look
    /// harmless. Tells whether a client has become noisy. O(clients · log clients).
    pub(super) fn find_noisy(&mut self, effect: f64, loads: &mut Vec<f64>) -> bool {
        let freed =
            |client: &Client| client.all_bytes_per_s.max(client.now_bytes_per_s) * (1.0 + effect * client.delay_ms);
        loads.clear();
        loads.extend(self.0.iter().map(freed));
        let from = loud_from(loads);
        let mut joined = false;
        for client in &mut self.0 {
            client.loud = freed(client) >= if client.loud { LEAVES_AT * from } else { from };
            let noisy = match client.standing {
                Standing::Never => false,
                Standing::Always => true,
                Standing::Ordinary | Standing::Important => client.loud && client.load() > 0.0,
            };
            joined |= noisy && !client.noisy;
            client.noisy = noisy;
        }
        joined
    }

    /// Whether this client is noisy.
    pub(super) fn is_noisy(&self, client: ClientId) -> bool {
        self.0.binary_search_by_key(&client, |client| client.id).is_ok_and(|place| self.0[place].noisy)
    }

    /// The noisy clients, in order.
    pub(super) fn noisy(&self) -> impl Iterator<Item = &Client> {
        self.0.iter().filter(|client| client.noisy)
    }

    /// The same, to be changed.
    pub(super) fn noisy_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut().filter(|client| client.noisy)
    }

    /// All of them, in order, to be changed.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut()
    }
}
