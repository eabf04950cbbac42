//! The processor time of those that negotiate: what is done for them, and what lies between.
//!
//! A storm of options costs as much for waking the worker, for its rounds and for reading the clock as for the options. So time
//! runs on from one client that negotiates to the next, unless something is done for others in between.

use crate::handshakes::{Client, Handshakes};
use crate::paced::Work;

/// The time of waking up, at most, in nanoseconds. Beyond that the worker has looked for events of others.
const MOST_NS: u64 = 20_000;

/// The payers of a worker's time.
#[derive(Debug, Default)]
pub(super) struct Waking {
    /// Set once a client has negotiated in this round.
    negotiated: bool,
    /// Up to here everything is charged, and nothing was done for others since.
    since: Option<Work>,
}

impl Waking {
    /// A round ends, and the worker waits for the next.
    pub(super) fn round_ends(&mut self) {
        if std::mem::take(&mut self.negotiated) && self.since.is_none() {
            self.since = Some(Work::begin());
        }
    }

    /// A round begins with so many events of a crowd, and of others.
    pub(super) fn round_begins(&mut self, crowd: usize, others: usize) {
        let Some(since) = self.since.take() else { return };
        let now = Work::begin();
        let took = now.since(&since).min(MOST_NS);
        // Those that wait for their turn wake the worker without an event.
        let part = if others == 0 { took } else { took * crowd as u64 / (crowd + others) as u64 };
        self.since = Some(now.after(part));
    }

    /// Something is done for others.
    #[inline]
    pub(super) fn others(&mut self) {
        self.since = None;
    }

    /// Begins with something for a client that negotiates.
    pub(super) fn begin(&mut self) -> Work {
        self.negotiated = true;
        self.since.take().unwrap_or_else(Work::begin)
    }

    /// Ends it.
    pub(super) fn charge(&mut self, handshakes: &Handshakes, client: Client, work: &Work) {
        self.since = Some(handshakes.charge(client, work));
    }

    /// Ends what could not wait for the client's turn.
    pub(super) fn charge_anyway(&mut self, handshakes: &Handshakes, client: Client, work: &Work) {
        self.since = Some(handshakes.charge_anyway(client, work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes more than the most, as looking for events does.
    fn spin() {
        let work = Work::begin();
        while Work::begin().since(&work) <= 10 * MOST_NS {}
    }

    fn took(waking: &mut Waking) -> u64 {
        let work = waking.begin();
        Work::begin().since(&work)
    }

    #[test]
    fn who_negotiates_pays_for_waking_the_worker_and_no_other_does() {
        // An interrupt counts for whom it interrupts.
        let round = |negotiated, crowd, others| {
            let mut rounds = [0; 9].map(|_| {
                let mut waking = Waking { negotiated, since: None };
                waking.round_ends();
                spin();
                waking.round_begins(crowd, others);
                took(&mut waking)
            });
            rounds.sort_unstable();
            rounds[rounds.len() / 2]
        };
        assert!(round(false, 1, 0) < MOST_NS, "no client has negotiated before");
        assert!((MOST_NS..5 * MOST_NS).contains(&round(true, 1, 0)), "looking for events is for others");
        assert!((MOST_NS..5 * MOST_NS).contains(&round(true, 0, 0)), "it was called for its turn");
        assert!(round(true, 0, 3) < MOST_NS, "it was woken for others");
    }

    #[test]
    fn time_runs_on_unless_others_are_served() {
        let mut waking = Waking { negotiated: false, since: Some(Work::begin()) };
        spin();
        assert!(took(&mut waking) > 10 * MOST_NS);
        waking.since = Some(Work::begin());
        spin();
        waking.others();
        assert!(took(&mut waking) < 10 * MOST_NS);
    }
}
