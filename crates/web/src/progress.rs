//! The stages of HTTP connections, and which connection gives way to a new one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::caller::{Caller, Process};

/// How often connections check a condition that does not wake them.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// How soon another connection is asked to give way after one that was asked did not.
const ANOTHER: Duration = Duration::from_millis(2);

/// The caller, as far as the network knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// A caller that is about to connect.
    Unknown,
    /// A user on the control socket, where the kernel knows it.
    User(Option<u32>),
    /// An IPv4 address, or the /64 of an IPv6 address, which is all one host's.
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
    /// The head or the body of a request, or anything before the first request, is incomplete since this time.
    Part(Instant),
    /// A request waits for the client's turn: silence is not the client's fault.
    Turn,
    /// A request is being answered: silence is not the client's fault.
    Answering,
    /// The answer is complete and is being sent since this time: how fast the client reads is its own business.
    Sending(Instant),
    /// The connection waits for the next request.
    Idle,
}

/// The stage of a connection, and requests to give way.
pub(crate) struct Progress {
    origin: Origin,
    came: Instant,
    state: Mutex<State>,
    /// Wakes the connection when it is asked to give way.
    asked: Notify,
    /// Wakes the connection's next request when an answer is sent.
    sent: Notify,
}

struct State {
    stage: Stage,
    /// True from when another connection needs its place until its stage changes.
    gives_way: bool,
}

impl Progress {
    /// The progress of a connection that begins now.
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

    /// Bytes were received: ends idleness.
    pub(crate) fn receive(&self) {
        if self.stage() == Stage::Idle {
            self.enter(Stage::Part(Instant::now()));
        }
    }

    /// The system has taken all bytes that were to be sent: an answer that was being sent is over.
    pub(crate) fn send(&self) {
        if matches!(self.stage(), Stage::Sending(_)) {
            self.enter(Stage::Idle);
            self.sent.notify_one();
        }
    }

    /// Waits until no answer is being sent: a client that asks on and reads nothing then has only one answer in memory.
    pub(crate) async fn until_sent(&self) {
        while matches!(self.stage(), Stage::Sending(_)) {
            self.sent.notified().await;
        }
    }

    /// Nothing could be read. A connection that is asked to give way stays if `more` says that bytes have arrived.
    pub(crate) fn starve(&self, more: impl FnOnce() -> bool) {
        let mut state = self.state();
        state.gives_way = state.gives_way && !more();
    }

    /// Asks the connection to give way.
    pub(crate) fn ask(&self) {
        self.state().gives_way = true;
        self.asked.notify_one();
    }

    /// True if another connection is to have its place.
    pub(crate) fn gives_way(&self) -> bool {
        self.state().gives_way
    }

    /// Waits until the connection gives way. To be polled after the connection, which then has read all that was there: a
    /// request that has arrived completely is answered.
    pub(crate) async fn until_it_gives_way(&self) {
        loop {
            self.asked.notified().await;
            if self.gives_way() {
                return;
            }
        }
    }

    /// Waits until a request has been incomplete for `incomplete`, or an answer has been under way for `sending`.
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

/// Connections in the order in which they came.
#[derive(Default)]
pub(crate) struct Crowd(Vec<Weak<Progress>>);

impl Crowd {
    /// Adds a new connection. O(1) amortised. Ended connections stay until the vector is full: at most about twice as
    /// many are in memory as were ever open at once.
    pub(crate) fn push(&mut self, progress: &Arc<Progress>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|progress| progress.strong_count() > 0);
        }
        self.0.push(Arc::downgrade(progress));
    }

    /// Asks a connection to give way: one with an incomplete request, else an idle one, else one that is being sent its answer,
    /// else one that waits for its turn. Among these it is the oldest of the client with the most of them, so that a client
    /// with few yields last. Incomplete requests have `grace` first. Returns after which time to ask again without a free place.
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
