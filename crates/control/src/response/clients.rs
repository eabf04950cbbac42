//! Who is an offender?

use alloc::vec::Vec;

use super::{ClientId, ClientSample, Standing};
use crate::time::Duration;

/// Time constant of the smoothed load.
const SMOOTHING: Duration = Duration::from_secs(1);
/// No client moves more; whatever says so is mistaken, and would stay in the smoothed load for good.
const MOST_BYTES_PER_S: f64 = 1e13;
/// An offender stays one until its load has fallen below this part of the threshold.
const LEAVES_AT: f64 = 0.5;

/// A client of the resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) standing: Standing,
    /// Load in the last interval, in bytes per second.
    pub(super) now_bytes_per_s: f64,
    /// The same, smoothed.
    pub(super) bytes_per_s: f64,
    /// Whether it is among the offenders.
    pub(super) offends: bool,
    /// How long its load has been too small for an offender, in microseconds, at most an hour: there are many clients, and all
    /// are gone through at every tick.
    quiet_us: u32,
    /// What it keeps in circulation, smoothed, in bytes per second times ms; see [`super::gain`]. For the adaptive method.
    pub(super) circulation: f64,
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
            offends: false,
            quiet_us: 0,
            circulation: 0.0,
            delay_ms: 0.0,
            present: true,
        };
        new.take(sample, 1.0);
        new
    }

    /// Takes the load of an interval, with this weight in the smoothed one.
    fn take(&mut self, sample: &ClientSample, weight: f64) {
        let told = sample.bytes_per_s;
        let load = if told.is_nan() { 0.0 } else { told.clamp(0.0, MOST_BYTES_PER_S) };
        self.bytes_per_s += weight * (load - self.bytes_per_s);
        (self.standing, self.now_bytes_per_s, self.present) = (sample.standing, load, true);
    }
}

fn microseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos() / 1_000).unwrap_or(u32::MAX)
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

    /// Decides anew who offends: who has more than `threshold` (in bytes per second) by `enters`, until it has had less
    /// than half of that by `stays` for as long as `patience`. Tells whether the set changed.
    pub(super) fn converge(
        &mut self,
        length: Duration,
        threshold: f64,
        patience: Duration,
        enters: impl Fn(&Client) -> f64,
        stays: impl Fn(&Client) -> f64,
    ) -> bool {
        let mut changed = false;
        let (length_us, patience_us) = (microseconds(length), microseconds(patience));
        for client in &mut self.0 {
            let offends = match client.standing {
                Standing::Never => false,
                Standing::Always => true,
                Standing::Ordinary | Standing::Important => {
                    let busy = stays(client) > threshold * LEAVES_AT;
                    client.quiet_us = if busy { 0 } else { client.quiet_us.saturating_add(length_us) };
                    enters(client) > threshold && busy || client.offends && (busy || client.quiet_us < patience_us)
                }
            };
            changed |= offends != client.offends;
            client.offends = offends;
        }
        changed
    }

    /// Whether this client is among the offenders.
    pub(super) fn offends(&self, client: ClientId) -> bool {
        self.0.binary_search_by_key(&client, |client| client.id).is_ok_and(|place| self.0[place].offends)
    }

    /// The offenders, in order.
    pub(super) fn offenders(&self) -> impl Iterator<Item = &Client> {
        self.0.iter().filter(|client| client.offends)
    }

    /// The same, to be changed.
    pub(super) fn offenders_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut().filter(|client| client.offends)
    }

    /// All of them, in order, to be changed.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut()
    }
}
