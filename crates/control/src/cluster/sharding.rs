//! Clusters of any size. In a small cluster each host reads the reports of all hosts. In a large one it reads the reports of
//! the hosts of its own shard, and one sum of reports for each shard.
//!
//! Two [`Membership`]s of the same kind, one over the other: in the lower one hosts report, in the upper one shards. When
//! the hosts of a shard have reported period k, one of them adds up their reports and publishes the sum. All hosts decide
//! from the published sums alone, that of their own shard included, so that all decide from the same figures. No host is
//! elected: of the hosts that reported, the first by name publishes first; the next one does so a quarter of a period later
//! if no sum has come, and so on. The first sum that is written about a period counts.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::shard::{Seen, Shard, Sizes, cover};
use super::{Config, Fault, Membership, Presence, Report, SKEW_PERIODS, Status, View};
use crate::{Duration, Instant, InvalidConfig};

/// Largest number of shards that are tracked: all possible shards of all sizes together, so that there is room while a
/// cluster changes how finely it is divided.
const MAX_SHARDS: usize = 2 << super::shard::MAX_BITS;
/// Half periods after the end of a period for which its missing sums are waited for: three for the hosts' reports (the
/// default), and two for a sum to be formed and published.
const SUM_LATE: u64 = 5;
/// A cluster is divided more coarsely after this many decisions in a row that found it divided too finely.
const SMALLER_FOR: u32 = 10;

/// The statistics that one host or one shard contributes to those of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution<C> {
    /// Number of times that the host, or the shard's hosts, halve the cluster to get shards; 0 = undivided.
    pub bits: u8,
    /// Number of hosts whose statistics are in `content`.
    pub members: u64,
    /// The statistics of these hosts, added up.
    pub content: C,
}

/// The sum of the reports of one shard's hosts about one period, which one of these hosts publishes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum<C> {
    /// The shard that the sum is over.
    pub shard: Shard,
    /// The period that the sum is about.
    pub period: u64,
    /// True if this is the shard's last sum: no host is left that would publish another one.
    pub leaving: bool,
    /// Number of the shard's members, and their statistics, added up.
    pub contribution: Contribution<C>,
}

/// A function that adds up statistics; the same parts in the same order have to give the same sum on each host.
pub type Together<C> = fn(&mut dyn Iterator<Item = &C>) -> C;

/// All hosts that share a device, as seen by one of them; a large cluster is divided into shards.
#[derive(Clone, Debug)]
pub struct Cluster<C> {
    own: String,
    sizes: Sizes,
    together: Together<C>,
    members: Membership<Contribution<C>>,
    shards: Membership<Contribution<C>>,
    shard: Shard,
    /// The period from which on shards' sums are decided from; `None` while hosts' reports are.
    divided: Option<u64>,
    /// A sum of this host's shard, and when this host publishes it if no other host has done so before.
    unpublished: Option<(Instant, Sum<C>)>,
    decided: Option<u64>,
    /// Number of hosts in the latest view, all shards together; 0 before the first view.
    size: u64,
    wanted: u8,
    smaller_for: u32,
}

impl<C: Clone + PartialEq> Cluster<C> {
    /// A cluster of which nothing is known yet, not divided. `own` is the name of this host, `incarnation` that of its
    /// reports ([`Report::incarnation`]).
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(
        config: Config,
        sizes: Sizes,
        together: Together<C>,
        own: &str,
        incarnation: u64,
    ) -> Result<Self, InvalidConfig> {
        let above = Config { max_members: MAX_SHARDS, late: SUM_LATE, ..config };
        Ok(Self {
            own: own.to_owned(),
            sizes,
            together,
            members: Membership::new(config, own, incarnation)?,
            // Of a shard there is only one life, whichever host speaks for it.
            shards: Membership::new(above, &Shard::WHOLE.to_string(), 0)?,
            shard: Shard::WHOLE,
            divided: None,
            unpublished: None,
            decided: None,
            size: 0,
            wanted: 0,
            smaller_for: 0,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.members.config()
    }

    /// Changes the number of hosts above which the cluster is divided, and the size of its shards.
    pub fn set_sizes(&mut self, sizes: Sizes) {
        self.sizes = sizes;
        if self.size > 0 {
            self.wanted = sizes.bits_after(self.shard.bits(), self.size);
        }
    }

    /// The shard of this host: it reads the single reports of this shard's hosts, and of other shards the sums.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// The shard that this host should have for the cluster's present size. Once the reports of all hosts of that shard are at
    /// hand, call [`Cluster::divide`] with it.
    pub fn wanted(&self) -> Shard {
        Shard::of(&self.own, self.wanted)
    }

    /// Makes `shard`, to which this host must belong, the one whose hosts' single reports this host reads; hosts outside of it
    /// are forgotten.
    pub fn divide(&mut self, now: Instant, shard: Shard) {
        if shard == self.shard {
            return;
        }
        let last_sum = self.last_sum(now);
        self.members.retain(|host| shard.holds(host));
        self.shards.rename(&shard.to_string());
        self.shard = shard;
        (self.wanted, self.smaller_for) = (shard.bits(), 0);
        self.divided = (shard.bits() > 0).then(|| self.config().period_at(now));
        self.unpublished = last_sum.map(|sum| (now, sum));
    }

    /// True if decisions are made from sums of shards, false if from reports of hosts.
    pub fn is_divided(&self) -> bool {
        self.divided.is_some()
    }

    /// Number of hosts in the latest view, all shards together; 0 before the first view.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Takes in a host's report; see [`Membership::observe`]. Reports of hosts of other shards are ignored without an error.
    ///
    /// # Errors
    /// Reason for which the report was ignored.
    pub fn observe(&mut self, now: Instant, host: &str, report: Report<Contribution<C>>) -> Result<(), Fault> {
        if self.shard.holds(host) { self.members.observe(now, host, report) } else { Ok(()) }
    }

    /// Takes in a shard's published sum. Sums of this host's own shard are taken in too, when they come back from the cluster.
    ///
    /// # Errors
    /// Reason for which the sum was ignored.
    pub fn observe_sum(&mut self, now: Instant, sum: Sum<C>) -> Result<(), Fault> {
        let Sum { shard, period, leaving, contribution } = sum;
        // Shards do not join step by step; their hosts do.
        let report = Report { incarnation: 0, period, joined: 0, leaving, content: contribution };
        self.shards.observe(now, &shard.to_string(), report)
    }

    /// Notes that the lease of a host has ended. When the lease of a shard's sum ends, nothing is to be noted: another host
    /// publishes the shard's next sum.
    pub fn lease_ended(&mut self, host: &str) {
        self.members.lease_ended(host);
    }

    /// The next view to decide from; there is one for each period. The view's members are hosts, or shards if the cluster is
    /// divided. Ask after each report or sum, and at [`Cluster::deadline`].
    pub fn poll(&mut self, now: Instant) -> Option<View<'_, Contribution<C>>> {
        let current = self.config().period_at(now);
        if self.decided.is_some_and(|decided| decided > current.saturating_add(SKEW_PERIODS)) {
            self.decided = None;
        }
        while let Some(period) = self.members.poll(now) {
            let view = self.members.view(period);
            let members = view.members.len() as u64;
            // A host that reads all others one by one goes by the sums as soon as another does not.
            let divided = self.shard.bits() > 0 || view.members.iter().any(|member| member.report.content.bits > 0);
            if divided {
                self.divided = self.divided.or(Some(current));
                self.add_up(now, period);
            } else {
                self.divided = None;
                if self.next(period, members) {
                    return Some(self.members.view(period));
                }
            }
        }
        while let Some(period) = self.shards.poll(now) {
            let (counts, members) = self.covered(period);
            if self.divided.is_some() && self.next(period, members) {
                let mut view = self.shards.view(period);
                view.members.retain(|member| counts.binary_search(&member.host.to_owned()).is_ok());
                return Some(view);
            }
        }
        None
    }

    /// The sum of this host's shard that this host has to publish now, because no other host has published it; each is
    /// returned once.
    pub fn to_publish(&mut self, now: Instant) -> Option<Sum<C>> {
        let (_, sum) = self.unpublished.take_if(|(at, _)| *at <= now)?;
        let published = self.shards.newest(&sum.shard.to_string()).is_some_and(|newest| newest >= sum.period);
        (sum.leaving || !published).then_some(sum)
    }

    /// The last [`Sum`] of this host's shard, without statistics, from which other shards learn that this shard ends. The host
    /// publishes it when it leaves. `None` if another host of the shard would publish sums, or the shard has no recent sum.
    pub fn last_sum(&self, now: Instant) -> Option<Sum<C>> {
        let newest = self.shards.newest(&self.shard.to_string())?;
        let period = self.config().period_at(now);
        let recent = period.saturating_sub(newest) <= 1 + SKEW_PERIODS + self.config().lease;
        let view = self.members.view(period);
        let others = self.publishers(&view).any(|host| host != self.own);
        let nothing = Contribution { bits: self.shard.bits(), members: 1, content: (self.together)(&mut [].iter()) };
        (recent && !others).then(|| Sum { shard: self.shard, period, leaving: true, contribution: nothing })
    }

    /// Time at which to ask [`Cluster::poll`] and [`Cluster::to_publish`] again even if no report and no sum comes.
    pub fn deadline(&self, now: Instant) -> Instant {
        let unpublished = self.unpublished.as_ref().map_or(Instant::FAR_FUTURE, |(at, _)| *at);
        unpublished.min(self.members.deadline(now)).min(self.shards.deadline(now))
    }

    /// Status of this host: in a divided cluster the worse of its status by its own reports and the status of its shard by the
    /// shard's sums.
    pub fn status(&self, now: Instant) -> Status {
        let host = self.members.status(now);
        let Some(since) = self.divided else { return host };
        let shard = match self.shards.status(now) {
            // Before the first sum there is the time that it takes to miss one.
            Status::Lost => {
                let missed = self.config().period_at(now).saturating_sub(since);
                if missed >= self.config().lease { Status::Lost } else { Status::Holding { missed } }
            }
            other => other,
        };
        match (host, shard) {
            (Status::Lost, _) | (_, Status::Lost) => Status::Lost,
            (Status::Holding { missed: a }, Status::Holding { missed: b }) => Status::Holding { missed: a.max(b) },
            (holding @ Status::Holding { .. }, _) | (_, holding @ Status::Holding { .. }) => holding,
            (shared @ Status::Shared { .. }, Status::Shared { .. }) => shared,
        }
    }

    /// Period of this host's newest report that came back from the cluster; `None` before the first.
    pub fn last_own(&self) -> Option<u64> {
        self.members.last_own()
    }

    /// Name and presence of each host whose reports this host reads one by one, in order of names.
    pub fn members(&self, now: Instant) -> impl Iterator<Item = (&str, Presence)> {
        self.members.known(now).map(|(name, _, presence)| (name, presence))
    }

    /// Name, presence and number of members of each known shard, in order of names.
    pub fn shards(&self, now: Instant) -> impl Iterator<Item = (&str, Presence, u64)> {
        let members = |name| self.shards.last(name).map_or(0, |report| report.content.members);
        self.shards.known(now).map(move |(name, _, presence)| (name, presence, members(name)))
    }

    /// True if `period` is not decided yet, neither from hosts' reports nor from shards' sums. If so, notes it as decided, and
    /// how finely a cluster of `members` hosts should be divided.
    fn next(&mut self, period: u64, members: u64) -> bool {
        if self.decided.is_some_and(|decided| decided >= period) {
            return false;
        }
        (self.decided, self.size) = (Some(period), members);
        let (now, wanted) = (self.shard.bits(), self.sizes.bits_after(self.shard.bits(), members));
        self.smaller_for = if wanted < now { self.smaller_for + 1 } else { 0 };
        if wanted > now || self.smaller_for >= SMALLER_FOR {
            self.wanted = wanted;
        }
        true
    }

    /// Hosts of this host's shard that may publish the shard's sum, in the order of their turns.
    fn publishers<'a>(&self, view: &View<'a, Contribution<C>>) -> impl Iterator<Item = &'a str> {
        let bits = self.shard.bits();
        let publishes = move |member: &&super::Member<'a, Contribution<C>>| {
            member.age <= SKEW_PERIODS && member.report.content.bits == bits
        };
        let publishers: Vec<&'a str> = view.members.iter().filter(publishes).map(|member| member.host).collect();
        publishers.into_iter()
    }

    /// Adds up the reports of this host's shard about `period`, for this host to publish in its turn.
    fn add_up(&mut self, now: Instant, period: u64) {
        if self.members.status(now) == Status::Lost {
            return;
        }
        let view = self.members.view(period);
        let bits = self.shard.bits();
        let publishers = view.members.iter().filter(|member| member.age == 0 && member.report.content.bits == bits);
        let publishers: Vec<&str> = publishers.map(|member| member.host).collect();
        let turn = publishers.iter().position(|host| *host == self.own).unwrap_or(publishers.len());
        let quarter = self.config().period.as_nanos() / 4;
        let at = now + Duration::from_nanos(quarter.saturating_mul(turn as u64));
        let contribution = Contribution {
            bits: self.shard.bits(),
            members: view.members.len() as u64,
            content: (self.together)(&mut view.members.iter().map(|member| &member.report.content.content)),
        };
        self.unpublished = Some((at, Sum { shard: self.shard, period, leaving: false, contribution }));
    }

    /// Names of the shards whose sums count in `period`, in order, and the number of hosts in these sums together.
    fn covered(&self, period: u64) -> (Vec<String>, u64) {
        let view = self.shards.view(period);
        let seen = view.members.iter().filter_map(|member| {
            let shard = member.host.parse().ok()?;
            Some(Seen { shard, age: member.age, members: member.report.content.members })
        });
        let seen: Vec<Seen> = seen.collect();
        let counts = cover(&seen);
        let members = seen.iter().filter(|seen| counts.contains(&seen.shard)).map(|seen| seen.members).sum();
        let mut names: Vec<String> = counts.iter().map(Shard::to_string).collect();
        names.sort();
        (names, members)
    }
}
