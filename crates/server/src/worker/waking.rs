//! Measures the processor time of negotiating clients: the work done for them, and the time between two pieces of work.
//!
//! A storm of options costs as much for waking the worker, for the rounds of its loop and for reading the clock as for the
//! options. So the time from one negotiating client's work to the next is charged to the next, unless something is done for
//! other connections in between.

use evenkeel_control::Duration;

use crate::handshakes::{Client, Handshakes};
use crate::paced::Work;

/// Largest time of waking up that is charged, in nanoseconds. In any further time the worker has looked for events of other
/// connections.
const MOST_NS: u64 = 20_000;

/// Decides to which negotiating client a worker's processor time is charged.
#[derive(Debug, Default)]
pub(super) struct Waking {
    /// True once something was done for a negotiating client in this round of the worker's loop.
    negotiated: bool,
    /// The moment up to which processor time has been charged; `None` if something was done for other connections since.
    since: Option<Work>,
    /// Processor time charged to negotiating clients in this round, in nanoseconds.
    taken_ns: u64,
}

impl Waking {
    /// Ends a round of the worker's loop; the worker waits for events next.
    pub(super) fn round_ends(&mut self) {
        if std::mem::take(&mut self.negotiated) && self.since.is_none() {
            self.since = Some(Work::begin());
        }
    }

    /// Begins a round with `crowd` events of the crowd set and `others` events of other sources.
    pub(super) fn round_begins(&mut self, crowd: usize, others: usize) {
        self.taken_ns = 0;
        let Some(since) = self.since.take() else { return };
        let now = Work::begin();
        let took = now.since(&since).min(MOST_NS);
        // Those that wait for their turn wake the worker without an event.
        let part = if others == 0 { took } else { took * crowd as u64 / (crowd + others) as u64 };
        self.since = Some(now.after(part));
    }

    /// Notes that something is done for connections that do not negotiate: the time so far is not charged to a negotiating
    /// client.
    #[inline]
    pub(super) fn others(&mut self) {
        self.since = None;
    }

    /// Begins work for a negotiating client. The time since the previous such work is included if nothing else was done in
    /// between.
    pub(super) fn begin(&mut self) -> Work {
        self.negotiated = true;
        self.since.take().unwrap_or_else(Work::begin)
    }

    /// True if at least `time` of processor time was charged to negotiating clients in this round.
    pub(super) fn has_taken(&self, time: Duration) -> bool {
        self.taken_ns >= time.as_nanos()
    }

    /// Ends work for a negotiating client, and charges the client for it.
    pub(super) fn charge(&mut self, handshakes: &Handshakes, client: Client, work: &Work) {
        let next = handshakes.charge(client, work);
        self.taken_ns += next.since(work);
        self.since = Some(next);
    }

    /// Ends work for a connection that was accepted or refused, and charges it to the common account of accepting.
    pub(super) fn accepted(&mut self, handshakes: &Handshakes, work: &Work) {
        self.since = Some(handshakes.accepted(work));
    }

    /// Ends work for a negotiating client that could not wait for the client's turn, and charges the client for it.
    pub(super) fn charge_anyway(&mut self, handshakes: &Handshakes, client: Client, work: &Work) {
        let next = handshakes.charge_anyway(client, work);
        self.taken_ns += next.since(work);
        self.since = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses ten times [`MOST_NS`] of processor time, as looking for events may do.
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
                let mut waking = Waking { negotiated, ..Waking::default() };
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
        let mut waking = Waking { since: Some(Work::begin()), ..Waking::default() };
        spin();
        assert!(took(&mut waking) > 10 * MOST_NS);
        waking.since = Some(Work::begin());
        spin();
        waking.others();
        assert!(took(&mut waking) < 10 * MOST_NS);
    }
}
