//! Requests of clients: generators and traces.
//!
//! A [`Spec`] describes a client's load; a [`Workload`] produces the requests, which depend only on the seed and on the
//! instants at which earlier requests complete. No memory is allocated per request.
//!
//! | module | contents |
//! |---|---|
//! | [`form`] | a client's load, as deserialized from TOML |
//! | [`spec`] | a client's load, checked and complete |
//! | `pace` | the instants of requests: closed loop, open loop, bursts |
//! | [`stream`] | the kinds, sizes and offsets of requests |
//! | [`zipf`] | a distribution of offsets: a few hot blocks and many cold ones |
//! | [`trace`] | recorded requests: readers and transformations |
//! | `replay` | the sending of recorded requests |
//! | [`dependent`] | the sending of recorded requests that depend on each other |

pub mod dependent;
pub mod form;
#[cfg(test)]
mod form_tests;
mod pace;
mod replay;
pub mod spec;
pub mod stream;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod zipf;

use evenkeel_control::Instant;
use evenkeel_control::rng::SplitMix64;
use evenkeel_model::Io;

use dependent::Player as Causal;
use pace::{Due, Pacer};
use replay::Player as Recorded;
pub use spec::{Arrivals, OnOff, Pace, Pattern, Phase, Replay, Requests, SizeShare, Spec};
use stream::Stream;

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The client sends this request now; [`Workload::next`] is to be called again at once.
    Issue(Io),
    /// The client sends nothing before this instant; ask again at the instant, or after an earlier completion.
    At(Instant),
    /// The client sends nothing before one of its requests completes.
    Completion,
    /// The client sends no further request in this run.
    End,
}

/// A running client, which produces requests as its [`Spec`] says.
#[derive(Debug)]
pub struct Workload {
    player: Player,
    outstanding: u32,
    started: bool,
}

/// A running [`Spec`] or a part of one. Each player counts time from the instant of its last start.
#[derive(Debug)]
enum Player {
    Idle,
    Load { pacer: Pacer, stream: Box<Stream> },
    Phases(Phases),
    Replay(Recorded),
    Dependent(Causal),
}

/// A running [`Spec::Phases`]: players that are run one after the other.
#[derive(Debug)]
struct Phases {
    players: Vec<(evenkeel_control::Duration, Player)>,
    times: u32,
    round: u32,
    current: usize,
    since: Instant,
}

impl Workload {
    /// A client that has sent no request yet. The client's time starts with the first call of [`Workload::next`].
    pub fn new(spec: &Spec, seed: u64) -> Self {
        Self { player: Player::new(spec, &mut SplitMix64::new(seed)), outstanding: 0, started: false }
    }

    /// The client's next step at `now`; `now` never decreases from call to call.
    pub fn next(&mut self, now: Instant) -> Next {
        if !self.started {
            self.started = true;
            self.player.enter(now);
        }
        let next = self.player.next(now, self.outstanding);
        if matches!(next, Next::Issue(_)) {
            self.outstanding += 1;
        }
        next
    }

    /// Reports that a request of the client has completed, for clients whose requests do not depend on certain other ones.
    pub fn complete(&mut self, now: Instant) {
        self.complete_request(now, u32::MAX);
    }

    /// Number of the request that [`Workload::next`] issued last, for [`Workload::complete_request`]; `u32::MAX` if the client
    /// does not number its requests.
    pub fn issued(&self) -> u32 {
        self.player.issued()
    }

    /// Reports that the client's request with this number has completed.
    pub fn complete_request(&mut self, now: Instant, number: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.player.complete(now, number);
    }
}

impl Player {
    fn new(spec: &Spec, seeds: &mut SplitMix64) -> Self {
        match spec {
            Spec::Idle => Self::Idle,
            Spec::Load { pace, requests } => Self::Load {
                pacer: Pacer::new(pace, seeds.next_u64()),
                stream: Box::new(Stream::new(requests, seeds.next_u64())),
            },
            Spec::Phases { phases, times } => Self::Phases(Phases {
                players: phases.iter().map(|phase| (phase.length, Self::new(&phase.spec, seeds))).collect(),
                times: *times,
                round: 0,
                current: 0,
                since: Instant::ZERO,
            }),
            Spec::Replay(replay) => Self::Replay(Recorded::new(replay)),
            Spec::Dependent(requests) => Self::Dependent(Causal::new(requests)),
        }
    }

    fn enter(&mut self, now: Instant) {
        match self {
            Self::Idle => {}
            Self::Load { pacer, .. } => pacer.enter(now),
            Self::Phases(phases) => phases.enter(now),
            Self::Replay(recorded) => recorded.enter(now),
            Self::Dependent(causal) => causal.enter(now),
        }
    }

    fn next(&mut self, now: Instant, outstanding: u32) -> Next {
        match self {
            Self::Idle => Next::End,
            Self::Load { pacer, stream } => match pacer.due(now, outstanding) {
                Due::Now => {
                    pacer.take();
                    Next::Issue(stream.request())
                }
                Due::At(at) => Next::At(at),
                Due::Completion => Next::Completion,
            },
            Self::Phases(phases) => phases.next(now, outstanding),
            Self::Replay(recorded) => recorded.next(now, outstanding),
            Self::Dependent(causal) => causal.next(now, outstanding),
        }
    }

    fn issued(&self) -> u32 {
        match self {
            Self::Dependent(causal) => causal.issued(),
            // Phases count requests that are outstanding from the phase before: their numbers would be ambiguous.
            Self::Idle | Self::Load { .. } | Self::Phases(_) | Self::Replay(_) => u32::MAX,
        }
    }

    fn complete(&mut self, now: Instant, number: u32) {
        match self {
            Self::Idle | Self::Replay(_) => {}
            Self::Load { pacer, .. } => pacer.complete(now),
            Self::Dependent(causal) => causal.complete(now, number),
            Self::Phases(phases) => {
                if let Some((_, player)) = phases.players.get_mut(phases.current) {
                    player.complete(now, number);
                }
            }
        }
    }
}

impl Phases {
    fn enter(&mut self, now: Instant) {
        self.since = now;
        self.round = 0;
        self.current = 0;
        if let Some((_, first)) = self.players.first_mut() {
            first.enter(now);
        }
    }

    fn next(&mut self, now: Instant, outstanding: u32) -> Next {
        let mut empty_in_a_row = 0;
        while let Some((length, player)) = self.players.get_mut(self.current) {
            let end = self.since + *length;
            if now < end {
                return match player.next(now, outstanding) {
                    issue @ Next::Issue(_) => issue,
                    Next::At(at) if at < end => Next::At(at),
                    Next::At(_) | Next::Completion | Next::End => Next::At(end),
                };
            }
            empty_in_a_row = if *length == evenkeel_control::Duration::ZERO { empty_in_a_row + 1 } else { 0 };
            self.current += 1;
            if self.current == self.players.len() {
                // Phases that take no time would take turns for ever.
                let last = self.times > 0 && self.round + 1 >= self.times;
                if last || empty_in_a_row >= self.players.len() {
                    return Next::End;
                }
                self.round = self.round.saturating_add(1);
                self.current = 0;
            }
            self.since = end;
            self.players[self.current].1.enter(end);
        }
        Next::End
    }
}
