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
    /// How long its load has been too small for an offender.
    pub(super) quiet: Duration,
    /// What it keeps in circulation, smoothed, in bytes per second times ms; see [`super::gain`]. For the adaptive method.
    pub(super) circulation: f64,
    /// The delay in force, in ms. For the adaptive method.
    pub(super) delay_ms: f64,
    present: bool,
}

/// The clients in order of their numbers, so that the order in which they are told changes nothing.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Client>);

impl Clients {
    /// Takes the loads of an interval of this length.
    pub(super) fn observe(&mut self, length: Duration, samples: &[ClientSample]) {
        for client in &mut self.0 {
            client.present = false;
        }
        let weight = 1.0 - libm::exp(-length.as_secs_f64() / SMOOTHING.as_secs_f64());
        for sample in samples {
            let load = if sample.bytes_per_s.is_nan() { 0.0 } else { sample.bytes_per_s.clamp(0.0, MOST_BYTES_PER_S) };
            match self.0.binary_search_by_key(&sample.client, |client| client.id) {
                Ok(place) => {
                    let client = &mut self.0[place];
                    // Of several samples of one client only the last may enter the smoothed load.
                    if !client.present {
                        client.bytes_per_s += weight * (load - client.bytes_per_s);
                    }
                    (client.standing, client.now_bytes_per_s, client.present) = (sample.standing, load, true);
                }
                Err(place) => {
                    let client = Client {
                        id: sample.client,
                        standing: sample.standing,
                        now_bytes_per_s: load,
                        bytes_per_s: load,
                        offends: false,
                        quiet: Duration::ZERO,
                        circulation: 0.0,
                        delay_ms: 0.0,
                        present: true,
                    };
                    self.0.insert(place, client);
                }
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
        for client in &mut self.0 {
            let offends = match client.standing {
                Standing::Never => false,
                Standing::Always => true,
                Standing::Ordinary | Standing::Important => {
                    let busy = stays(client) > threshold * LEAVES_AT;
                    client.quiet = if busy { Duration::ZERO } else { client.quiet + length };
                    enters(client) > threshold && busy || client.offends && (busy || client.quiet < patience)
                }
            };
            changed |= offends != client.offends;
            client.offends = offends;
        }
        changed
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
