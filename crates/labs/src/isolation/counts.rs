//! The counts of an attack, and the fewest with which an attack has taken place.

use std::fmt;

use anyhow::{Result, ensure};

use super::attacks::{Attack, Ends};

/// The most connections of an attack that its least number of connections is derived from.
const CONNECTIONS: u64 = 1_000;
/// The most requests in flight of an attack that its least number of requests is derived from.
const IN_FLIGHT: u64 = 4_000;

/// Counts of an attack, of one of its processes or of all together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections begun.
    pub(super) connected: u64,
    /// Connections that could not be begun.
    pub(super) refused: u64,
    /// Connections that the server closed.
    pub(super) closed: u64,
    /// Requests, options or pieces of bytes made.
    pub(super) sent: u64,
    /// Complete replies.
    pub(super) answered: u64,
    /// Bytes received, in MiB.
    pub(super) mib: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connected, refused, closed, sent, answered, mib } = self;
        write!(
            f,
            "{connected} connections, {refused} refused, {closed} closed by the server, {sent} requests, {answered} answers of {mib} MiB"
        )
    }
}

impl Counts {
    /// Reads the text that the `Display` implementation writes; `None` if it is another text.
    pub(super) fn read(text: &str) -> Option<Self> {
        let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
        let [connected, refused, closed, sent, answered, mib]: [u64; 6] =
            numbers.collect::<Vec<_>>().try_into().ok()?;
        let counts = Self { connected, refused, closed, sent, answered, mib };
        (counts.to_string() == text).then_some(counts)
    }

    /// The sum of these counts and those of another process.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            connected: self.connected + other.connected,
            refused: self.refused + other.refused,
            closed: self.closed + other.closed,
            sent: self.sent + other.sent,
            answered: self.answered + other.answered,
            mib: self.mib + other.mib,
        }
    }

    /// An error if the attack has not taken place: too few connections or requests were begun, no reply came to an attack that
    /// reads replies, or the server closed most connections of one that does not. Replies count only if `ran`: if the machine did
    /// not keep threads waiting for most of the time, in which no reply may come from any server.
    pub(super) fn judge(&self, attack: &Attack, ran: bool) -> Result<()> {
        let Least { connections, requests, answers } = Least::of(attack);
        let answers = if ran { answers } else { 0 };
        let shut_out = !attack.takes && self.closed > self.connected / 2;
        ensure!(
            self.connected + self.refused >= connections
                && self.sent >= requests
                && self.answered >= answers
                && !shut_out,
            "the attack did not take place: {self}; at least {connections} connections, {requests} requests, {answers} \
             answers were expected{}",
            if attack.takes { "" } else { ", and half of the connections closed at most" }
        );
        Ok(())
    }
}

/// The fewest connections, requests and replies with which an attack has taken place.
#[derive(Debug, PartialEq, Eq)]
struct Least {
    connections: u64,
    requests: u64,
    answers: u64,
}

impl Least {
    fn of(attack: &Attack) -> Self {
        let connections = u64::from(attack.connections);
        let in_flight = connections * u64::from(attack.depth.max(1));
        let asks = !attack.asks.is_empty();
        // The others need the server's answers to the handshake before they send their first request.
        let wants_answers = match attack.ends {
            Ends::Sent(..) => asks,
            Ends::Answered(_) => !asks,
            _ => attack.storm,
        };
        Self {
            connections: (connections.min(CONNECTIONS) / 10).max(1),
            requests: if asks { (in_flight.min(IN_FLIGHT) / 40).max(1) } else { 0 },
            answers: u64::from(attack.takes && wants_answers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attacks::by_name;
    use super::*;

    fn counts([connected, refused, closed, sent, answered]: [u64; 5]) -> Counts {
        Counts { connected, refused, closed, sent, answered, mib: 0 }
    }

    fn takes_place(name: &str, numbers: [u64; 5]) -> bool {
        counts(numbers).judge(by_name(name).unwrap(), true).is_ok()
    }

    #[test]
    fn counts_are_read_back() {
        let one = Counts { mib: 7, ..counts([1, 2, 3, 4, 5]) };
        assert_eq!(Counts::read(&one.to_string()), Some(one));
        assert_eq!(Counts::read("1 connections, 2 refused"), None);
        assert_eq!(one.with(one), Counts { mib: 14, ..counts([2, 4, 6, 8, 10]) });
    }

    #[test]
    fn an_attack_that_is_shut_out_has_not_taken_place() {
        // Refused in the handshake: a request follows only its end.
        assert!(takes_place("tiny_reads", [16, 0, 0, 82_541, 80_493]));
        assert!(!takes_place("tiny_reads", [8_500, 0, 8_500, 0, 0]));
        // These send without waiting for the handshake.
        assert!(takes_place("reads_never_taken", [32, 0, 0, 2_048, 0]));
        assert!(!takes_place("reads_never_taken", [8_500, 0, 8_470, 80_000, 0]));
        assert!(takes_place("reads_and_close", [1_380, 0, 0, 86_464, 1_024]));
        assert!(!takes_place("reads_and_close", [1_380, 0, 0, 86_464, 0]));
        let late = counts([1_380, 0, 0, 86_464, 0]).judge(by_name("reads_and_close").unwrap(), false);
        assert!(late.is_ok(), "the machine stood still");
        assert!(takes_place("a_read_and_a_new_connection", [64, 0, 0, 64, 0]), "the requests follow a handshake");
        assert!(takes_place("reload_storm", [914, 0, 910, 0, 910]));
        assert!(!takes_place("reload_storm", [914, 0, 914, 0, 0]));
    }

    #[test]
    fn a_flood_may_be_refused_but_not_absent() {
        assert!(takes_place("connection_flood", [54_454, 0, 46_774, 0, 0]));
        assert!(takes_place("connection_flood", [0, 300, 0, 0, 0]));
        assert!(!takes_place("connection_flood", [99, 0, 0, 0, 0]));
        assert!(!takes_place("bulk", [1, 0, 0, 0, 0]));
    }

    #[test]
    fn the_least_follows_from_the_row() {
        let least = |name: &str| {
            let Least { connections, requests, answers } = Least::of(by_name(name).unwrap());
            [connections, requests, answers]
        };
        assert_eq!(least("half_arrived_writes"), [2, 1, 0]);
        assert_eq!(least("half_closed"), [25, 100, 0]);
        assert_eq!(least("writes_and_disconnect"), [6, 100, 1]);
        assert_eq!(least("connect_and_reset"), [6, 0, 0]);
        assert_eq!(least("tls_handshake_storm"), [1, 0, 1]);
    }
}
