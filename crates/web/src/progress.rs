//! The stages of HTTP connections, and the choice of the connection that gives way to a new one if there are too many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::caller::{Caller, Process};

/// Interval at which connections check conditions that do not wake them.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Time after which a second connection is asked to give way if the first one that was asked has not.
const ANOTHER: Duration = Duration::from_millis(2);

/// The origin of a connection, by which connections of one client are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// The origin is not known: the caller is about to connect.
    Unknown,
    /// The id of a user on the control socket; `None` if the kernel does not name the user.
    User(Option<u32>),
    /// An IPv4 address, or the /64 prefix of an IPv6 address, all of which may belong to one host.
    Network(u64),
}

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::Network(address.to_bits().into()),
            // No /64 of the network is in the range of IPv4.
            IpAddr::V6(address) => Self::Network((address.to_bits() >> 64) as u64),
        }
    }
}

impl Origin {
    /// The site of a network, as far as processor time is concerned: the /48 of an IPv6 network, which one customer of a provider
    /// usually gets, and all addresses 127.0.0.0/8 of this machine.
    pub(crate) fn site(self) -> Option<Self> {
        let Self::Network(network) = self else { return None };
        match u32::try_from(network) {
            Ok(address) => Ipv4Addr::from_bits(address).is_loopback().then_some(Self::Network(127)),
            Err(_) => Some(Self::Network(network >> 16)),
        }
    }
}

impl From<&Caller> for Origin {
    fn from(caller: &Caller) -> Self {
        match caller {
            Caller::Address(address) => address.ip().into(),
            Caller::Process(Process { uid, .. }) => Self::User(Some(*uid)),
            Caller::Unknown | Caller::Signal(_) => Self::User(None),
        }
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connection has received a request incompletely (or, at its beginning, not at all) since this instant.
    Part(Instant),
    /// A complete request waits for the client's turn. The client is not responsible for the silence.
    Turn,
    /// A request is being answered. The client is not responsible for the silence.
    Answering,
    /// The answer is complete and has been being sent since this instant. The client's reading determines the speed.
    Sending(Instant),
    /// The connection waits for the next request.
    Idle,
}

/// The stage of a connection, and the state of a request that it give way.
pub(crate) struct Progress {
    origin: Origin,
    came: Instant,
    state: Mutex<State>,
    /// Wakes the connection when it is asked to give way.
    asked: Notify,
    /// Wakes the connection's next request when the answer before it has been sent.
    sent: Notify,
}

struct State {
    stage: Stage,
    /// True while another connection needs this connection's place; false again when the stage changes.
    gives_way: bool,
}

impl Progress {
    /// The progress of a connection from `origin` that begins now.
    pub(crate) fn new(origin: Origin) -> Self {
        let came = Instant::now();
        let state = State { stage: Stage::Part(came), gives_way: false };
        Self { origin, came, state: Mutex::new(state), asked: Notify::new(), sent: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Sets the stage; the connection need not give way any more.
    pub(crate) fn enter(&self, stage: Stage) {
        *self.state() = State { stage, gives_way: false };
    }

    pub(crate) fn is_answering(&self) -> bool {
        matches!(self.stage(), Stage::Turn | Stage::Answering)
    }

    /// Reports that bytes were received; an idle connection becomes one with an incomplete request.
    pub(crate) fn receive(&self) {
        if self.stage() == Stage::Idle {
            self.enter(Stage::Part(Instant::now()));
        }
    }

    /// Reports that the system has accepted all bytes to be sent, so that an answer that was being sent is complete.
    pub(crate) fn send(&self) {
        if matches!(self.stage(), Stage::Sending(_)) {
            self.enter(Stage::Idle);
            self.sent.notify_one();
        }
    }

    /// Waits until no answer is being sent. So a client that sends requests and does not read has only one answer in memory.
    pub(crate) async fn until_sent(&self) {
        while matches!(self.stage(), Stage::Sending(_)) {
            self.sent.notified().await;
        }
    }

    /// Reports that no bytes could be read. A connection that is asked to give way does so now, unless `more` returns true: bytes
    /// have arrived in the meantime.
    pub(crate) fn starve(&self, more: impl FnOnce() -> bool) {
        let mut state = self.state();
        state.gives_way = state.gives_way && !more();
    }

    /// Asks the connection to give way.
    pub(crate) fn ask(&self) {
        self.state().gives_way = true;
        self.asked.notify_one();
    }

    /// True if the connection is asked to give way to another one.
    pub(crate) fn gives_way(&self) -> bool {
        self.state().gives_way
    }

    /// Waits until the connection gives way. To be polled after the connection itself, which by then has read all available
    /// bytes, so that a request that has arrived completely is answered.
    pub(crate) async fn until_it_gives_way(&self) {
        loop {
            self.asked.notified().await;
            if self.gives_way() {
                return;
            }
        }
    }

    /// Waits until a request has been incomplete for the time `incomplete`, or an answer has been sent for the time `sending`.
    pub(crate) async fn until_late(&self, incomplete: Duration, sending: Duration) {
        loop {
            let (since, patience) = match self.stage() {
                Stage::Part(since) => (since, incomplete),
                Stage::Sending(since) => (since, sending),
                Stage::Turn | Stage::Answering | Stage::Idle => {
                    sleep(incomplete.min(sending).min(LOOK)).await;
                    continue;
                }
            };
            if since.elapsed() >= patience {
                return;
            }
            // It may get on before, to a stage with less time.
            sleep_until((since + patience).min(Instant::now() + LOOK)).await;
        }
    }
}

/// The large answers that are being sent, the oldest first, each with the client and its number of bytes.
#[derive(Default)]
pub(crate) struct Unsent(Mutex<Vec<(Weak<Progress>, Origin, u64)>>);

impl Unsent {
    /// Adds an answer of `bytes` bytes, which a connection begins to send. While all together have more than `most` bytes, the
    /// oldest answer of the client with the most bytes gives way, but never the new one.
    pub(crate) fn add(&self, progress: &Arc<Progress>, bytes: u64, most: u64) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|(other, ..)| {
            let other = other.upgrade().filter(|other| !Arc::ptr_eq(other, progress));
            other.is_some_and(|other| matches!(other.stage(), Stage::Sending(_)))
        });
        answers.push((Arc::downgrade(progress), progress.origin, bytes));
        while answers.len() > 1 && answers.iter().map(|(_, _, bytes)| *bytes).sum::<u64>() > most {
            let mut counts = HashMap::<Origin, u64>::new();
            answers.iter().for_each(|(_, origin, bytes)| *counts.entry(*origin).or_default() += *bytes);
            let largest = counts.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(origin, _)| origin);
            let older = &answers[..answers.len() - 1];
            let place = older.iter().position(|(_, origin, _)| Some(*origin) == largest).unwrap_or(0);
            let (gives_way, ..) = answers.remove(place);
            gives_way.upgrade().iter().for_each(|gives_way| gives_way.ask());
        }
    }
}

/// All connections, in the order in which they were opened.
#[derive(Default)]
pub(crate) struct Crowd(Vec<Weak<Progress>>);

impl Crowd {
    /// Adds a new connection. O(1) amortised. Entries of ended connections stay until the vector is full: it has at most about
    /// twice as many entries as connections were ever open at once.
    pub(crate) fn push(&mut self, progress: &Arc<Progress>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|progress| progress.strong_count() > 0);
        }
        self.0.push(Arc::downgrade(progress));
    }

    /// Asks a connection to give way, the first that exists of: one with an incomplete request, an idle one, one whose answer is
    /// being sent, one that waits for its turn. Of several it is the oldest one of the client that has the most of them. An
    /// incomplete request counts only after `grace`. Returns the time after which to ask again if no place is free by then.
    pub(crate) fn make_room(&mut self, grace: Duration) -> Duration {
        self.0.retain(|progress| progress.strong_count() > 0);
        let open: Vec<_> = self.0.iter().filter_map(Weak::upgrade).collect();
        let of = |wanted: fn(Stage) -> bool| {
            let there: Vec<_> = open.iter().filter(|progress| wanted(progress.stage())).collect();
            let mut counts = HashMap::<_, usize>::new();
            there.iter().for_each(|progress| *counts.entry(progress.origin).or_default() += 1);
            // The last of the largest is the oldest.
            there.into_iter().rev().max_by_key(|progress| counts.get(&progress.origin))
        };
        if let Some(part) = of(|stage| matches!(stage, Stage::Part(_))) {
            let left = grace.saturating_sub(part.came.elapsed());
            if !left.is_zero() {
                return left;
            }
            part.ask();
        } else {
            let sends = || of(|stage| matches!(stage, Stage::Sending(_)));
            let oldest = of(|stage| stage == Stage::Idle).or_else(sends).or_else(|| of(|stage| stage == Stage::Turn));
            oldest.into_iter().for_each(|oldest| oldest.ask());
        }
        ANOTHER
    }
}
