//! Troubles that are over in a moment and come again: connections that are refused, clients that are refused and come again in a
//! loop, and connections to remote servers that break. Counters of the state show them, and each counts for ten minutes.

use std::collections::{BTreeMap, VecDeque};

use crate::figures::{counted, uptime};
use crate::state::{State, VolumeState};
use crate::trouble::Trouble;

/// Time for which the growth of a counter counts, in seconds: that of the alert on refused connections.
const KEPT_S: f64 = 600.0;
/// Time whose growth is kept as one figure, in seconds.
const STEP_S: f64 = 1.0;
/// Times that all connections to a remote server together must have been made again to be a trouble.
const SEVERAL: u64 = 3;
/// Reasons, in [`State::refused_clients_total`], for which connections are refused although the server has room for others.
const OF_ONE: [&str; 2] = ["connections_of_client", "connections_of_tenant"];
/// Number of refusals for one reason from which on they are a trouble: a client that is refused comes again and again.
const OFTEN: u64 = 10;
/// Reasons, in [`State::refused_clients_total`], for which clients that should be served may be refused, in words, and with the
/// cure. A client that `deny` names, and one that opens no volume, are no trouble of the server.
const OF_CLIENTS: [(&[&str], &str, &str); 4] = [
    (
        &["server_allow", "volume_allow", "no_certificate", "unnamed_certificate"],
        "neither `allow` nor a tenant names the client or its certificate",
        "add it to `allow` of the server or volume, or its certificate to a tenant; else stop the client",
    ),
    (
        &["tls_no_certificate", "tls_expired", "tls_revoked", "tls_bad_certificate"],
        "the client has no valid certificate",
        "renew the client's certificate, or add its authority to server.tls.clients; else stop the client",
    ),
    (
        &["tls_alert"],
        "the client ended TLS, mostly as it does not trust the server's certificate",
        "give the client the authority of the server's certificate, and the name that the certificate has",
    ),
    (
        &["tls_protocol"],
        "client and server have no common version or cipher of TLS, or the client does not use TLS",
        "correct the client's settings of TLS; else stop the client",
    ),
];

/// The growth of a counter.
#[derive(Debug, Default)]
struct Growth {
    /// The newest value.
    total: u64,
    /// When it grew, on the scale of the uptime, and by how much; oldest first.
    steps: VecDeque<(f64, u64)>,
}

impl Growth {
    /// Takes the value of the counter at `now_s`. One that went back has not grown: it was read before the newest value, or is
    /// that of a new volume with the same name.
    fn count(&mut self, now_s: f64, total: u64) {
        let grown = total.saturating_sub(self.total);
        self.total = total;
        while self.steps.front().is_some_and(|(at_s, _)| now_s - at_s >= KEPT_S) {
            self.steps.pop_front();
        }
        if grown == 0 {
            return;
        }
        match self.steps.back_mut() {
            Some((at_s, by)) if now_s < *at_s + STEP_S => *by += grown,
            _ => self.steps.push_back((now_s, grown)),
        }
    }

    /// The growth within the time that counts.
    fn sum(&self, now_s: f64) -> u64 {
        self.steps.iter().filter(|(at_s, _)| now_s - at_s < KEPT_S).map(|(_, by)| *by).sum()
    }

    /// Time since it grew last, as text.
    fn ago(&self, now_s: f64) -> String {
        uptime(self.steps.back().map_or(0.0, |(at_s, _)| (now_s - at_s).max(0.0)))
    }
}

/// Finds the recurring troubles of a server in its states, one after the other.
#[derive(Debug, Default)]
pub struct Recurring {
    /// Uptime of the newest state, in seconds; `None` before the first.
    read_s: Option<f64>,
    /// Refused connections.
    refused: Growth,
    /// Those of them that were refused because of a bound on one client or tenant.
    of_one: Growth,
    /// Refused clients, by the reasons of [`OF_CLIENTS`].
    clients: [Growth; OF_CLIENTS.len()],
    /// Connections made again, by volume.
    remotes: BTreeMap<String, Growth>,
}

impl Recurring {
    /// The troubles at the time of this state, in the order of its objects.
    pub fn troubles(&mut self, state: &State) -> Vec<Trouble> {
        let now_s = state.uptime_s;
        let unseen_s = now_s - self.read_s.unwrap_or(0.0);
        // Of two states that were collected at once the older may come last.
        if unseen_s >= 0.0 {
            self.count(state);
        }
        if unseen_s >= KEPT_S {
            // When it grew is not known.
            self.forget();
        }
        let remotes = state.volumes.iter().filter_map(|volume| self.of_remote(now_s, volume));
        remotes.chain(self.of_refused(now_s)).chain(self.of_clients(now_s)).collect()
    }

    fn count(&mut self, state: &State) {
        let now_s = state.uptime_s;
        self.read_s = Some(now_s);
        self.refused.count(now_s, state.refused_connections_total);
        let of_one: u64 = OF_ONE.iter().filter_map(|reason| state.refused_clients_total.get(*reason)).sum();
        self.of_one.count(now_s, of_one);
        for (growth, (reasons, ..)) in self.clients.iter_mut().zip(OF_CLIENTS) {
            growth.count(now_s, reasons.iter().filter_map(|reason| state.refused_clients_total.get(*reason)).sum());
        }
        let reconnects = |volume: &VolumeState| volume.remote.as_ref().map(|remote| remote.reconnects_total);
        let totals: BTreeMap<&str, u64> =
            state.volumes.iter().filter_map(|volume| Some((volume.name.as_str(), reconnects(volume)?))).collect();
        self.remotes.retain(|name, _| totals.contains_key(name.as_str()));
        for (name, total) in totals {
            self.remotes.entry(name.to_owned()).or_default().count(now_s, total);
        }
    }

    fn forget(&mut self) {
        let refused = [&mut self.refused, &mut self.of_one];
        for growth in self.remotes.values_mut().chain(refused).chain(&mut self.clients) {
            growth.steps.clear();
        }
    }

    fn of_remote(&self, now_s: f64, volume: &VolumeState) -> Option<Trouble> {
        let (remote, growth) = (volume.remote.as_ref()?, self.remotes.get(&volume.name)?);
        let times = growth.sum(now_s);
        if times < SEVERAL.saturating_mul(remote.connections_wanted.max(1)) {
            return None;
        }
        let (uri, ago) = (&remote.uri, growth.ago(now_s));
        let why = remote.last_error.as_ref().map_or_else(String::new, |error| format!("; the newest error: {error}"));
        Some(Trouble::warning(
            "remote_unstable",
            format!("volume {}", volume.name),
            format!(
                "connections to {uri} broke and were made again {} in the last 10 min, most recently {ago} ago{why}",
                counted(times, "time")
            ),
            format!("look at the log of the server at {uri}, and at the network; requests wait at each break"),
        ))
    }

    /// The troubles of clients that are refused again and again, by the reason.
    fn of_clients(&self, now_s: f64) -> impl Iterator<Item = Trouble> {
        self.clients.iter().zip(OF_CLIENTS).filter_map(move |(growth, (_, why, cure))| {
            let (number, ago) = (growth.sum(now_s), growth.ago(now_s));
            (number >= OFTEN).then(|| {
                let connections = counted(number, "connection");
                let because = format!("{connections} refused in the last 10 min, the last of them {ago} ago: {why}");
                let cure = format!("the log (level info) has addresses of such clients; {cure}");
                Trouble::warning("clients_refused", "", because, cure).of_part(why)
            })
        })
    }

    fn of_refused(&self, now_s: f64) -> Option<Trouble> {
        let number = self.refused.sum(now_s);
        let why = match self.of_one.sum(now_s) {
            of_one if of_one >= number => "a client or a tenant has as many connections as one may have",
            // Without a descriptor a client waits, and the server counts each attempt to accept it.
            _ => {
                "as many are open as server.max_connections or the limit of open files allows; at the limit of open files a client waits, and counts at each attempt to accept it"
            }
        };
        let (refused, ago) = (counted(number, "connection"), self.refused.ago(now_s));
        (number > 0).then(|| {
            Trouble::warning(
                "connections_refused",
                "",
                format!("{refused} refused in the last 10 min, the last of them {ago} ago: {why}"),
                "end connections that are not needed (`evenkeel state` has those of each tenant), or raise server.max_connections and LimitNOFILE= (needs a restart)",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::RemoteState;
    use crate::trouble::Level;

    fn state(uptime_s: f64, refused: u64, reconnects: u64) -> State {
        let remote = RemoteState {
            uri: "nbd://far/db".into(),
            connected: true,
            connections_wanted: 2,
            reconnects_total: reconnects,
            last_error: Some("closed".into()),
            ..RemoteState::default()
        };
        let volume = VolumeState { name: "db".into(), remote: Some(remote), ..VolumeState::default() };
        State { uptime_s, refused_connections_total: refused, volumes: vec![volume], ..State::default() }
    }

    fn kinds(troubles: &[Trouble]) -> Vec<&str> {
        troubles.iter().map(|trouble| trouble.kind.as_str()).collect()
    }

    #[test]
    fn a_remote_server_that_comes_and_goes_is_a_warning_for_ten_minutes() {
        let mut recurring = Recurring::default();
        assert_eq!(kinds(&recurring.troubles(&state(1.0, 0, 0))), [""; 0]);
        // Both connections are made again twice: once or twice is no pattern.
        assert_eq!(kinds(&recurring.troubles(&state(10.0, 0, 2))), [""; 0]);
        assert_eq!(kinds(&recurring.troubles(&state(100.0, 0, 4))), [""; 0]);
        let troubles = recurring.troubles(&state(200.0, 0, 6));
        let [trouble] = &troubles[..] else { panic!("{troubles:?}") };
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, "remote_unstable"));
        let sentence = "volume db: connections to nbd://far/db broke and were made again 6 times in the last 10 min, most recently 0 s ago; the newest error: closed";
        assert_eq!(trouble.sentence(), sentence);
        assert!(trouble.cure.contains("the log of the server at nbd://far/db"), "{trouble:?}");
        // It stays while all is well, and when the connection is away again.
        assert_eq!(kinds(&recurring.troubles(&state(609.0, 0, 6))), ["remote_unstable"]);
        assert_eq!(kinds(&recurring.troubles(&state(610.0, 0, 6))), [""; 0], "the first are ten minutes old");
    }

    #[test]
    fn refused_connections_are_a_trouble_for_ten_minutes_with_the_bound_that_is_reached() {
        let mut recurring = Recurring::default();
        recurring.troubles(&state(1.0, 0, 0));
        let troubles = recurring.troubles(&state(5.0, 3, 0));
        let [trouble] = &troubles[..] else { panic!("{troubles:?}") };
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, "connections_refused"));
        assert!(trouble.because.starts_with("3 connections refused in the last 10 min, the last of them 0 s ago: "));
        assert!(trouble.because.contains("server.max_connections") && trouble.cure.contains("LimitNOFILE="));
        assert!(trouble.because.ends_with("a client waits, and counts at each attempt to accept it"), "{trouble:?}");
        assert_eq!(kinds(&recurring.troubles(&state(604.0, 3, 0))), ["connections_refused"]);
        assert_eq!(kinds(&recurring.troubles(&state(605.0, 3, 0))), [""; 0]);
        let mut of_tenant = state(700.0, 5, 0);
        of_tenant.refused_clients_total = [("connections_of_tenant".to_owned(), 2)].into();
        assert!(recurring.troubles(&of_tenant)[0].because.contains("a client or a tenant has as many"));
    }

    #[test]
    fn a_client_that_is_refused_in_a_loop_is_a_trouble_with_the_reason() {
        let mut recurring = Recurring::default();
        let mut of = |uptime_s, counts: &[(&str, u64)]| {
            let counts = counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
            recurring.troubles(&State { refused_clients_total: counts, ..state(uptime_s, 0, 0) })
        };
        assert_eq!(kinds(&of(1.0, &[("tls_expired", 0)])), [""; 0]);
        assert_eq!(kinds(&of(2.0, &[("tls_expired", 5), ("tls_alert", OFTEN - 1)])), [""; 0], "it may have ended");
        let denied = [("volume_deny", 99), ("handshake_timeout", 99), ("tls_alert", OFTEN - 1)];
        assert_eq!(kinds(&of(3.0, &denied)), [""; 0], "as the operator wants, or no client");
        let looped = [("tls_expired", 9), ("tls_revoked", 6), ("tls_alert", OFTEN)];
        let troubles = of(5.0, &looped);
        assert_eq!(kinds(&troubles), ["clients_refused"; 2]);
        assert!(troubles[0].because.ends_with("0 s ago: the client has no valid certificate"), "{troubles:?}");
        assert!(troubles[0].cure.contains("server.tls.clients"), "{troubles:?}");
        // The server logs at most one refusal of a kind in 10 s.
        assert!(troubles[0].cure.starts_with("the log (level info) has addresses of such clients; "), "{troubles:?}");
        assert_ne!(troubles[0].part, troubles[1].part);
        assert_eq!(kinds(&of(605.0, &looped)), [""; 0], "ten minutes later");
    }

    #[test]
    fn what_happened_before_the_first_look_has_no_time() {
        assert_eq!(kinds(&Recurring::default().troubles(&state(KEPT_S, 9, 90))), [""; 0]);
        let mut recurring = Recurring::default();
        assert_eq!(kinds(&recurring.troubles(&state(60.0, 9, 90))), ["remote_unstable", "connections_refused"]);
        // An older state changes nothing.
        assert_eq!(kinds(&recurring.troubles(&state(59.0, 8, 80))), ["remote_unstable", "connections_refused"]);
        assert_eq!((recurring.refused.total, recurring.refused.sum(60.0)), (9, 9));
        // Nor has that between two looks that are ten minutes apart.
        assert_eq!(kinds(&recurring.troubles(&state(660.0, 19, 190))), [""; 0]);
        assert_eq!(kinds(&recurring.troubles(&state(670.0, 20, 190))), ["connections_refused"]);
    }

    #[test]
    fn a_counter_that_was_read_before_the_newest_value_is_no_growth() {
        let mut recurring = Recurring::default();
        recurring.troubles(&state(KEPT_S, 1_000, 1_000));
        assert_eq!(kinds(&recurring.troubles(&state(KEPT_S + 0.1, 999, 999))), [""; 0]);
        assert_eq!(kinds(&recurring.troubles(&state(KEPT_S + 1.0, 1_000, 1_000))), ["connections_refused"]);
        assert_eq!(recurring.refused.sum(KEPT_S + 1.0), 1);
    }

    proptest! {
        /// The growth is that of the last ten minutes, exact to the length of a step, and takes bounded memory.
        #[test]
        fn growth_is_that_of_the_last_ten_minutes(steps in prop::collection::vec((0.0f64..300.0, 0u64..5), 1..60)) {
            let (mut growth, mut now_s, mut total) = (Growth::default(), 0.0, 0);
            let mut all = Vec::new();
            for (pause_s, by) in steps {
                (now_s, total) = (now_s + pause_s, total + by);
                growth.count(now_s, total);
                all.push((now_s, by));
                let within = |time_s: f64| -> u64 {
                    all.iter().filter(|(at_s, _)| now_s - at_s < time_s).map(|(_, by)| *by).sum()
                };
                let sum = growth.sum(now_s);
                prop_assert!(within(KEPT_S - STEP_S) <= sum && sum <= within(KEPT_S));
                prop_assert!(growth.steps.len() as f64 <= KEPT_S / STEP_S + 1.0);
            }
        }
    }
}
