//! Bounds the processor time of an activity that clients cause, and decides which client gets a turn.
//!
//! A storm of something that is cheap to ask for (connections, handshakes, status, reloads) takes a share of one processor
//! and no more, however fast it comes. Ordinary use is never delayed: the burst of processor time that may be taken at once
//! covers far more than an honest client asks for.
//!
//! The unused processor time is kept in one common account, which fills at the share and holds at most [`Config::burst`].
//! Each client has an account of its own, which holds a small part of the burst and fills at an equal part of half the share.
//! The level of the common account decides which clients get a turn (may have work done now):
//!
//! | level | get a turn |
//! |---|---|
//! | above a half | every client |
//! | above a quarter | newcomers of whom nothing is known ([`Duty::newcomer`]), and clients whose own account is above zero |
//! | above zero | clients whose own account is above zero |
//!
//! A storming client has overdrawn its own account, so the lower half of the common account is left to the other clients. The
//! cost of a piece of work is known only afterwards, so accounts may go below zero; the debt is paid off before the next
//! turn.
//!
//! Clients may belong to sites ([`Duty::with_sites`]), so that a client which can appear as thousands gets no more than a few. A
//! site fills its account as one client does, and shares half of that out among its clients; the account holds as much as
//! those of four clients. What a client takes while its own account and its site's are above zero is charged to both. While the
//! account of a site is used up, those of its clients count as used up.
//!
//! **Bounds.** In any window of time `t` the activity takes at most `t / one_in + burst`, plus work that was under way in
//! parallel and work that could not wait ([`Duty::spent_anyway`]). A client within its account never waits while no more than
//! some ten others storm.

use alloc::collections::BTreeMap;

use crate::time::{Duration, Instant};

/// A client's own account holds at most [`Config::burst`] divided by this number; a client that overdraws it counts as storming.
/// The lower quarter of the common account holds as much as 16 clients' accounts.
const OWN_PART: u64 = 64;
/// A site's account holds at most [`Config::burst`] divided by this number.
const SITE_PART: u64 = OWN_PART / 4;
/// A client waits until the account that it needs is [`Config::burst`] divided by this number above the level that it needs:
/// a wake-up for each request would cost more than the request.
const QUANTUM_PART: u64 = 128;
/// Largest number of clients that have an account of their own. Full accounts are dropped. A client without an account counts
/// as one that has not overdrawn it.
const MAX_CLIENTS: usize = 4_096;
/// Largest number of clients of one site that have an account of their own, so that a site leaves accounts to other clients.
const MAX_OF_SITE: u64 = 256;
/// Interval at which full accounts are looked for and dropped.
const SWEEP: Duration = Duration::from_secs(1);

/// The processor time that an activity may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The share of one processor, as its inverse: 10 for a tenth. At least 1.
    pub one_in: u32,
    /// Largest saved-up processor time, which clients may use at once. At least 1 us.
    pub burst: Duration,
}

/// Smallest [`Config::burst`]: the parts of a smaller one would round to almost nothing.
const SHORTEST_BURST: Duration = Duration::from_micros(1);

impl Config {
    /// The bound on a storm at a storage server: a tenth of one processor. A 15th of a processor is accounted as thread time;
    /// the rest allows for work that no thread's clock shows (wake-ups, interrupts, cold caches). With clients that sent NBD
    /// options one by one, this work was a third to a half of the accounted time. The burst, 1 s of processor time, covers a
    /// host that starts a hundred virtual machines.
    pub const STORM: Self = Self { one_in: 15, burst: Duration::from_secs(1) };
}

/// A client's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The client's work may begin now: the client's own account is above zero.
    Own,
    /// The client's work may begin now, after that of clients that wait already: the client's own account is used up, but the
    /// common account is more than half full.
    Spare,
    /// The client has to wait.
    Wait {
        /// When to ask again.
        until: Instant,
        /// True if the client's own account is above zero, and only the common account is empty. These clients go before
        /// clients whose own account is used up.
        own: bool,
    },
}

/// Processor time that comes in at a rate and is saved up to a bound; negative while in debt.
#[derive(Clone, Copy, Debug)]
struct Account {
    left_ns: i64,
    at: Instant,
}

impl Account {
    /// Adds the processor time that came in since the last call, 1 ns for each `one_in` ns that passed, up to a balance of
    /// `most` ns.
    fn fill(&mut self, now: Instant, one_in: u64, most: i64) {
        let came = now.since(self.at).as_nanos() / one_in;
        // What the division leaves over counts the next time.
        self.at += Duration::from_nanos(came * one_in);
        self.left_ns = self.left_ns.saturating_add_unsigned(came).min(most);
    }

    /// When the balance reaches `level` ns if nothing is spent.
    fn reaches(&self, level: i64, one_in: u64) -> Instant {
        let missing = u64::try_from(level.saturating_sub(self.left_ns)).unwrap_or(0);
        self.at + Duration::from_nanos(missing.saturating_mul(one_in))
    }

    /// Scales a positive balance from the burst `before` to the new `burst`; a debt stays.
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

/// A client's own account.
#[derive(Clone, Copy, Debug)]
struct OfClient<C> {
    account: Account,
    /// The site that counts the client; `None` if it has none.
    site: Option<C>,
}

/// A site's account.
#[derive(Clone, Copy, Debug)]
struct OfSite {
    account: Account,
    /// Number of the site's clients that have an account.
    clients: u64,
}

impl OfSite {
    /// Nanoseconds that pass until the account of one of the site's clients gains 1 ns of processor time; `slow`: the same of
    /// the site itself.
    fn one_in_of_client(&self, slow: u64) -> u64 {
        slow * 2 * self.clients.max(1)
    }
}

/// Divides the processor time of one activity among its clients.
#[derive(Clone, Debug)]
pub struct Duty<C> {
    config: Config,
    all: Account,
    clients: BTreeMap<C, OfClient<C>>,
    sites: BTreeMap<C, OfSite>,
    /// Number of the clients with an account that belong to a site.
    in_sites: u64,
    site_of: fn(C) -> Option<C>,
    sweep_at: Instant,
}

impl<C: Ord + Copy> Duty<C> {
    /// Starts with a full common account, and no client accounts. No client belongs to a site.
    pub fn new(config: Config) -> Self {
        Self::with_sites(config, |_| None)
    }

    /// As [`Self::new`], for clients that may belong to sites. `site_of`: the site of a client; `None` if it has none.
    pub fn with_sites(config: Config, site_of: fn(C) -> Option<C>) -> Self {
        let config = Config { one_in: config.one_in.max(1), burst: config.burst.max(SHORTEST_BURST) };
        let all = Account { left_ns: part(config, 1), at: Instant::ZERO };
        let (clients, sites) = (BTreeMap::new(), BTreeMap::new());
        Self { config, all, clients, sites, in_sites: 0, site_of, sweep_at: Instant::ZERO }
    }

    /// Changes [`Config::burst`] from `now` on. A positive balance keeps its ratio to the burst, so that changing the burst to
    /// and fro gains nothing; debts stay. O(clients) when the burst changes.
    pub fn set_burst(&mut self, now: Instant, burst: Duration) {
        let burst = burst.max(SHORTEST_BURST);
        let before = self.config.burst;
        if burst == before {
            return;
        }
        self.fill(now);
        self.fill_parts(now);
        self.config.burst = burst;
        let of_clients = self.clients.values_mut().map(|client| &mut client.account);
        let of_sites = self.sites.values_mut().map(|site| &mut site.account);
        for account in of_clients.chain(of_sites).chain([&mut self.all]) {
            account.scale(burst, before);
        }
    }

    /// Decides if `client` may go now or has to wait; charges nothing. O(log clients), and once a second O(clients).
    pub fn turn(&mut self, now: Instant, client: C) -> Turn {
        self.fill(now);
        let (slow, quantum) = (self.one_in_of_part(), part(self.config, QUANTUM_PART));
        let (mut slow_of_client, mut is_within, mut within) = (slow, true, self.reaches(quantum));
        if let Some(name) = (self.site_of)(client)
            && let Some(site) = self.sites.get_mut(&name)
        {
            site.account.fill(now, slow, part(self.config, SITE_PART));
            slow_of_client = site.one_in_of_client(slow);
            if site.account.left_ns <= 0 {
                (is_within, within) = (false, within.max(site.account.reaches(quantum, slow)));
            }
        }
        if let Some(OfClient { account, .. }) = self.clients.get_mut(&client) {
            account.fill(now, slow_of_client, part(self.config, OWN_PART));
            if account.left_ns <= 0 {
                (is_within, within) = (false, within.max(account.reaches(quantum, slow_of_client)));
            }
        }
        let spare = part(self.config, 2);
        if is_within {
            if self.all.left_ns > 0 { Turn::Own } else { Turn::Wait { until: within, own: true } }
        } else if self.all.left_ns > spare {
            Turn::Spare
        } else {
            Turn::Wait { until: self.reaches(spare + quantum).min(within), own: false }
        }
    }

    /// Time at which a client of which nothing is known yet should ask again; `None`: it gets a turn now, as the common account
    /// is more than a quarter full.
    pub fn newcomer(&mut self, now: Instant) -> Option<Instant> {
        self.fill(now);
        let least = part(self.config, 4);
        (self.all.left_ns <= least).then(|| self.reaches(least + part(self.config, QUANTUM_PART)))
    }

    /// Charges `time` of processor time to `client`, its site, and the common account.
    pub fn spent(&mut self, now: Instant, client: C, time: Duration) {
        self.fill(now);
        self.all.spend(time);
        let full = |of: u64| Account { left_ns: part(self.config, of), at: now };
        let (own, of_site) = (full(OWN_PART), full(SITE_PART));
        if let Some(name) = (self.site_of)(client)
            && self.sites.len() < MAX_CLIENTS
        {
            self.sites.entry(name).or_insert(OfSite { account: of_site, clients: 0 });
        }
        let slow = self.one_in_of_part();
        let name = (self.site_of)(client).filter(|name| self.sites.contains_key(name));
        let mut site = name.and_then(|name| self.sites.get_mut(&name));
        let (mut slow_of_client, mut has_room) = (slow, self.clients.len() < MAX_CLIENTS);
        if let Some(site) = &mut site {
            site.account.fill(now, slow, of_site.left_ns);
            slow_of_client = site.one_in_of_client(slow);
            has_room &= site.clients < MAX_OF_SITE;
        }
        let is_known = self.clients.contains_key(&client);
        let mut is_within = true;
        if is_known || has_room {
            let of_client = self.clients.entry(client).or_insert(OfClient { account: own, site: name });
            of_client.account.fill(now, slow_of_client, own.left_ns);
            is_within = of_client.account.left_ns > 0;
            of_client.account.spend(time);
            if !is_known && let Some(site) = &mut site {
                site.clients += 1;
                self.in_sites += 1;
            }
        }
        // What is left over from others is no time of the site: a few storming clients do not use up the site's account.
        if is_within
            && let Some(site) = site
            && site.account.left_ns > 0
        {
            site.account.spend(time);
        }
    }

    /// [`Self::spent`] for work that could not wait for a turn, such as accepting a connection. The charge does not take the
    /// common account below a quarter of the burst: otherwise a storm of this work would starve all work that can wait.
    pub fn spent_anyway(&mut self, now: Instant, client: C, time: Duration) {
        self.fill(now);
        let before = self.all.left_ns;
        self.spent(now, client, time);
        self.all.left_ns = self.all.left_ns.max(before.min(part(self.config, 4)));
    }

    /// Number of clients that have an account, because they took processor time that is not made up for yet.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    fn fill(&mut self, now: Instant) {
        self.all.fill(now, self.config.one_in.into(), part(self.config, 1));
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.fill_parts(now);
        let (own, of_site) = (part(self.config, OWN_PART), part(self.config, SITE_PART));
        let (sites, in_sites) = (&mut self.sites, &mut self.in_sites);
        self.clients.retain(|_, client| {
            let stays = client.account.left_ns < own;
            if !stays
                && let Some(name) = client.site
                && let Some(site) = sites.get_mut(&name)
            {
                site.clients -= 1;
                *in_sites -= 1;
            }
            stays
        });
        self.sites.retain(|_, site| site.clients > 0 || site.account.left_ns < of_site);
    }

    /// Fills the accounts of all clients and sites.
    fn fill_parts(&mut self, now: Instant) {
        let slow = self.one_in_of_part();
        for site in self.sites.values_mut() {
            site.account.fill(now, slow, part(self.config, SITE_PART));
        }
        for client in self.clients.values_mut() {
            let mut slow_of_client = slow;
            if let Some(name) = client.site
                && let Some(site) = self.sites.get(&name)
            {
                slow_of_client = site.one_in_of_client(slow);
            }
            client.account.fill(now, slow_of_client, part(self.config, OWN_PART));
        }
    }

    fn reaches(&self, level: i64) -> Instant {
        self.all.reaches(level, self.config.one_in.into())
    }

    /// Nanoseconds that pass until the account of a site, or of a client without a site, gains 1 ns of processor time. Half of
    /// the activity's share is divided among them; the other half serves storming clients or fills the common account.
    fn one_in_of_part(&self) -> u64 {
        let parts = self.clients.len() as u64 - self.in_sites + self.sites.len() as u64;
        u64::from(self.config.one_in) * 2 * parts.max(1)
    }
}

/// [`Config::burst`] divided by `of`, in nanoseconds.
fn part(config: Config, of: u64) -> i64 {
    i64::try_from(config.burst.as_nanos() / of).unwrap_or(i64::MAX)
}
