//! How much processor time may an activity take that clients cause, and whose turn is it?
//!
//! A storm of something that is cheap to ask for (connections, handshakes, status, reloads) takes a share of one
//! processor and no more, however fast it comes. Ordinary use is never delayed: the time that it may take at once lasts
//! for far more than a client asks in earnest.
//!
//! The time left over is one account, which fills at the share and holds [`Config::burst`]. Each client has an account of
//! its own, a small part of that, which fills at an even part of half the share. Who asks when the common account is at
//!
//! | level | goes |
//! |---|---|
//! | above a half | every client |
//! | above a quarter | newcomers of whom nothing is known ([`Duty::newcomer`]), and clients within their own account |
//! | above zero | clients within their own account |
//!
//! A client that storms is beyond its own account, so the lower half is there for the others. What something costs is
//! known only afterwards: accounts go below zero, and the debt is paid off before the next turn.
//!
//! **Bounds.** In any window of time `t` the activity takes at most `t / one_in + burst`, plus what was under way in
//! parallel and what could not wait ([`Duty::spent_anyway`]). A client within its account never waits while no more than some ten others storm.

use alloc::collections::BTreeMap;

use crate::time::{Duration, Instant};

/// The part of the burst that a client may take before it counts as storming: a tenth of the lower quarter is left to
/// newcomers who have one such part each.
const OWN_PART: u64 = 64;
/// The part of the burst that must come in, beyond the least, until waiting clients are called: a turn for each request
/// would cost more than the request.
const QUANTUM_PART: u64 = 128;
/// Clients with an account; full ones are forgotten. Further clients have none, and count as within theirs.
const MAX_CLIENTS: usize = 4_096;
/// How often full accounts are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// How much time there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The share of one processor, as its inverse: 10 for a tenth. At least 1.
    pub one_in: u32,
    /// Processor time that may be used at once. At least 1 us.
    pub burst: Duration,
}

/// Shorter bursts have no parts.
const SHORTEST_BURST: Duration = Duration::from_micros(1);

impl Config {
    /// The bound on a storm at a storage server: a tenth of a processor, of which a third is for what no clock of a
    /// thread shows as its own (waking threads, interrupts, caches that others find cold): a third to a half of what is
    /// shown, with options of NBD one by one. At once, what a host asks for that starts a hundred machines.
    pub const STORM: Self = Self { one_in: 15, burst: Duration::from_secs(1) };
}

/// A client's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is within its own account.
    Own,
    /// It is not, and there is time left over. Those that wait already go first.
    Spare,
    /// Neither.
    Wait {
        /// When to ask again.
        until: Instant,
        /// True if it is within its own account, and nothing is left of the common one: those who are go before those
        /// who are not.
        own: bool,
    },
}

/// Time that comes in at a rate and is saved up to a bound.
#[derive(Clone, Copy, Debug)]
struct Account {
    left_ns: i64,
    at: Instant,
}

impl Account {
    /// Takes note of what has come in: a nanosecond for each `one_in`, up to `most`.
    fn fill(&mut self, now: Instant, one_in: u64, most: i64) {
        let came = now.since(self.at).as_nanos() / one_in;
        // What the division leaves over counts the next time.
        self.at += Duration::from_nanos(came * one_in);
        self.left_ns = self.left_ns.saturating_add_unsigned(came).min(most);
    }

    /// When there will be so much.
    fn reaches(&self, level: i64, one_in: u64) -> Instant {
        let missing = u64::try_from(level.saturating_sub(self.left_ns)).unwrap_or(0);
        self.at + Duration::from_nanos(missing.saturating_mul(one_in))
    }

    /// Scales the balance as the bound grows.
    fn scale(&mut self, burst: Duration, before: Duration) {
        if self.left_ns > 0 {
            let left = i128::from(self.left_ns) * i128::from(burst.as_nanos()) / i128::from(before.as_nanos());
            self.left_ns = i64::try_from(left).unwrap_or(i64::MAX);
        }
    }

    fn spend(&mut self, time: Duration) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(time.as_nanos());
    }
}

/// The processor time of one activity.
#[derive(Clone, Debug)]
pub struct Duty<C> {
    config: Config,
    all: Account,
    clients: BTreeMap<C, Account>,
    sweep_at: Instant,
}

impl<C: Ord + Copy> Duty<C> {
    /// All accounts are full.
    pub fn new(config: Config) -> Self {
        let config = Config { one_in: config.one_in.max(1), burst: config.burst.max(SHORTEST_BURST) };
        let all = Account { left_ns: part(config, 1), at: Instant::ZERO };
        Self { config, all, clients: BTreeMap::new(), sweep_at: Instant::ZERO }
    }

    /// So much may be used at once from now on. Accounts stay as full as they are, so that changing it to and fro brings
    /// nothing; debts stay what they are. O(clients) when it changes.
    pub fn set_burst(&mut self, now: Instant, burst: Duration) {
        let burst = burst.max(SHORTEST_BURST);
        let before = self.config.burst;
        if burst == before {
            return;
        }
        self.fill(now);
        let slow = self.one_in_of_client();
        for account in self.clients.values_mut() {
            account.fill(now, slow, part(self.config, OWN_PART));
        }
        self.config.burst = burst;
        for account in self.clients.values_mut().chain([&mut self.all]) {
            account.scale(burst, before);
        }
    }

    /// The turn of `client` now. O(log clients), and once a second O(clients).
    pub fn turn(&mut self, now: Instant, client: C) -> Turn {
        self.fill(now);
        let (own, slow) = (part(self.config, OWN_PART), self.one_in_of_client());
        let account = self.clients.get_mut(&client).map(|account| {
            account.fill(now, slow, own);
            *account
        });
        let quantum = part(self.config, QUANTUM_PART);
        match account {
            Some(account) if account.left_ns <= 0 => {
                let spare = part(self.config, 2);
                if self.all.left_ns > spare {
                    return Turn::Spare;
                }
                let within = account.reaches(quantum, slow).max(self.reaches(quantum));
                Turn::Wait { until: self.reaches(spare + quantum).min(within), own: false }
            }
            _ if self.all.left_ns > 0 => Turn::Own,
            _ => Turn::Wait { until: self.reaches(quantum), own: true },
        }
    }

    /// When the next client may come of which nothing is known yet; `None`: now.
    pub fn newcomer(&mut self, now: Instant) -> Option<Instant> {
        self.fill(now);
        let least = part(self.config, 4);
        (self.all.left_ns <= least).then(|| self.reaches(least + part(self.config, QUANTUM_PART)))
    }

    /// `client` has taken so much processor time.
    pub fn spent(&mut self, now: Instant, client: C, time: Duration) {
        self.fill(now);
        self.all.spend(time);
        let (own, slow) = (part(self.config, OWN_PART), self.one_in_of_client());
        if self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client) {
            let account = self.clients.entry(client).or_insert(Account { left_ns: own, at: now });
            account.fill(now, slow, own);
            account.spend(time);
        }
    }

    /// `client` has taken so much without being asked whether it is its turn, as one whose connection is accepted: the lower
    /// quarter is not touched, or a storm of what cannot wait would starve all that can wait.
    pub fn spent_anyway(&mut self, now: Instant, client: C, time: Duration) {
        self.fill(now);
        let before = self.all.left_ns;
        self.spent(now, client, time);
        self.all.left_ns = self.all.left_ns.max(before.min(part(self.config, 4)));
    }

    /// Clients that have an account, because they have taken some time of late.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    fn fill(&mut self, now: Instant) {
        self.all.fill(now, self.config.one_in.into(), part(self.config, 1));
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        let (own, slow) = (part(self.config, OWN_PART), self.one_in_of_client());
        self.clients.retain(|_, account| {
            account.fill(now, slow, own);
            account.left_ns < own
        });
    }

    fn reaches(&self, level: i64) -> Instant {
        self.all.reaches(level, self.config.one_in.into())
    }

    /// Half of the share is divided among the clients; the other half is for those that storm, or fills the account.
    fn one_in_of_client(&self) -> u64 {
        u64::from(self.config.one_in) * 2 * (self.clients.len() as u64).max(1)
    }
}

/// A part of the burst in nanoseconds.
fn part(config: Config, of: u64) -> i64 {
    i64::try_from(config.burst.as_nanos() / of).unwrap_or(i64::MAX)
}
