//! The cluster: the hosts that share a device, and the reports of all of them about one period.
//!
//! Hosts that decide for themselves, without a leader, must decide from the same
//! statistics. Time is cut into periods at multiples of the period's length on the
//! wall clock, so that hosts agree on their numbers; each host reports once a period,
//! and a [`View`] is what is known of all members for one period: a function of the set
//! of reports alone, not of their order or number, nor of any clock. The clock only
//! says when there is no use in waiting longer.
//!
//! | a member that | is called | its share of the device |
//! |---|---|---|
//! | reported the period | present | by its report |
//! | has not reported for less than the lease | suspect | by its last report, so that a share in use is not given away |
//! | has not reported for longer than lease and safe time | expired | given to the others |
//! | reported that it leaves | gone | given to the others at once |
//!
//! Conversely, a host that does not see its own reports come back for as long as the lease has lost the cluster
//! ([`Status::Lost`]) and must fall back to a safe minimum *before* the others give its share away; the safe time lies
//! between the two. A host that joins or comes back takes its share in steps ([`Status::Shared`]); the others have freed that
//! share by the end of the first step.
//!
//! The DRG paper (see [`crate::slots`]) leaves the protocol open ("statistics collected by distributed hosts", section 6);
//! this protocol is Evenkeel's own.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Duration, Instant, InvalidConfig};

pub mod shard;
pub mod sharding;
pub mod totals;

/// Periods by which the clocks of two hosts may differ.
pub const SKEW_PERIODS: u64 = 1;
/// Number of a host's newest reports that are kept, one for each period: enough for periods that are decided late, the period
/// whose report is due, and clock skew in both directions.
const KEPT: usize = 8;
/// A period that began more than this many periods before the present one is not decided any more.
const STALE: u64 = 4;
/// Largest [`Config::late`], in half periods: a report that comes later is about a period that is not decided any more.
const MAX_LATE: u64 = 2 * (STALE - 1);
/// An expired member is remembered for this many lengths of the lease, because it may still use its safe minimum.
const REMEMBERED_LEASES: u64 = 20;

/// Settings of the cluster, which must be the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between two reports of a host: one period. At least 1 ms.
    pub period: Duration,
    /// Number of periods for which the last report of a member that stops reporting counts; at least 2.
    pub lease: u64,
    /// Number of periods from the end of a member's lease until its share is given away; at least 1, as clocks differ.
    pub safe: u64,
    /// Number of periods in which a host that joins goes from its safe minimum to its full share; at least 1.
    pub ramp: u64,
    /// Half periods after the end of a period for which its missing reports are waited for; 2 to 6.
    pub late: u64,
    /// Largest number of hosts that are tracked; reports of further hosts are ignored as [`Fault::TooMany`]. At least 1.
    pub max_members: usize,
}

impl Config {
    /// Settings for periods of this length: a lease of three periods, a safe time of one, three periods until a host that
    /// joins has its share, 256 hosts. A report may come 1.5 periods late: one for clock skew, and half a one on the way.
    pub const fn new(period: Duration) -> Self {
        Self { period, lease: 3, safe: 1, ramp: 3, late: 2 * SKEW_PERIODS + 1, max_members: 256 }
    }

    /// Checks that every setting is in its range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        InvalidConfig::check(&[
            (self.period >= Duration::from_millis(1), "period", "at least 1 ms"),
            ((2..=1_000_000).contains(&self.lease), "lease", "2 to 1000000 periods"),
            ((1..=1_000_000).contains(&self.safe), "safe", "1 to 1000000 periods"),
            ((1..=1_000_000).contains(&self.ramp), "ramp", "1 to 1000000 periods"),
            ((2 * SKEW_PERIODS..=MAX_LATE).contains(&self.late), "late", "2 to 6 half periods"),
            (self.max_members > 0, "max_members", "at least 1"),
        ])
    }

    /// The period in which `now` lies. The zero of the time scale is the same for all hosts: 1 January 1970.
    pub fn period_at(&self, now: Instant) -> u64 {
        now.as_nanos() / self.period.as_nanos().max(1)
    }

    /// The end of `period`, when the reports about it are due.
    pub fn due(&self, period: u64) -> Instant {
        Instant::from_nanos(period.saturating_add(1).saturating_mul(self.period.as_nanos()))
    }
}

/// One host's report about one period.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<C> {
    /// Identifies one start of the host's process: a later start has a larger number, and no two processes have the same.
    pub incarnation: u64,
    /// The period that the report is about.
    pub period: u64,
    /// The period in which the host joined the cluster, or came back to it.
    pub joined: u64,
    /// True if the host leaves the cluster: its share is free at once.
    pub leaving: bool,
    /// The host's statistics of the period.
    pub content: C,
}

/// Reason for which a report was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The report is about a period more than [`SKEW_PERIODS`] ahead: the clock of the host that reports is ahead, or the clock
    /// of this host is behind.
    Future {
        /// Periods by which the report's period is after the present one on this host's clock.
        ahead: u64,
    },
    /// The report is about a period for which its lease and safe time are over: it was delayed, or the clock of the host that
    /// reports is behind.
    Late {
        /// Periods by which the report's period is before the present one on this host's clock.
        behind: u64,
    },
    /// A process that started later reports under the same name: one of the two needs another name.
    Duplicate {
        /// The incarnation whose reports count.
        counts: u64,
    },
    /// The host sent another report, with other content, about the same period before.
    Conflict,
    /// The cluster has more hosts than are tracked.
    TooMany {
        /// Largest number of hosts that are tracked ([`Config::max_members`]).
        max: usize,
    },
}

/// Status of this host in the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    /// The newest view decides this host's share of the device. The host takes its full share, except for some periods after
    /// joining.
    Shared {
        /// Progress of the host from its safe minimum (0) to its full share (1); below 1 only after joining.
        ramp: f64,
    },
    /// This host's own reports have not come back from the cluster for more than [`SKEW_PERIODS`]; the last decision stays in
    /// force until the lease ends.
    Holding {
        /// Number of periods for which no report of this host has come back.
        missed: u64,
    },
    /// The cluster is lost, or was never reached: the host takes its safe minimum, the share that an expired member
    /// may still use, and its own measurements only.
    Lost,
}

/// A member in a view.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a, C> {
    /// The member's name.
    pub host: &'a str,
    /// Age of the report in periods; 0 = it is about the view's period.
    pub age: u64,
    /// The member's newest report about the view's period or an earlier one.
    pub report: &'a Report<C>,
}

/// The members of a cluster in one period: equal on all hosts that know the same reports.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a, C> {
    /// The period that the view is about.
    pub period: u64,
    /// Hosts whose reports count, in order of their names.
    pub members: Vec<Member<'a, C>>,
    /// Names of members that have expired but may still use their safe minimum, in order.
    pub expired: Vec<&'a str>,
}

/// A host's state by the age of its newest report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The host has reported one of the two periods that ended last.
    Present,
    /// The host has not reported for this many periods; its last report still counts.
    Suspect(u64),
    /// The host has not reported for this many periods: its share has been given away, or will be at the next period.
    Expired(u64),
}

/// The reports and the state of a host.
#[derive(Clone, Debug)]
struct Host<C> {
    incarnation: u64,
    /// Reports by period; never empty.
    reports: BTreeMap<u64, Report<C>>,
    /// Period of the host's newest report at the moment when the host's lease ended; `None` if it has not ended. Reports about
    /// later periods belong to a new lease.
    ended_at: Option<u64>,
    /// Period of the host's newest report at the moment when a later period was decided without the host's report. The host is
    /// not waited for until a newer report comes.
    given_up_at: Option<u64>,
}

impl<C> Host<C> {
    fn newest(&self) -> u64 {
        self.reports.last_key_value().map_or(0, |(period, _)| *period)
    }

    /// The host's newest report about `period` or an earlier one.
    fn known_at(&self, period: u64) -> Option<&Report<C>> {
        self.reports.range(..=period).next_back().map(|(_, report)| report)
    }

    fn lease_ended(&self, report: &Report<C>) -> bool {
        self.ended_at.is_some_and(|period| report.period <= period)
    }
}

/// The members of a cluster, known by their reports. The number of members and the number of reports kept are bounded.
#[derive(Clone, Debug)]
pub struct Membership<C> {
    config: Config,
    /// Name and incarnation of this host.
    own: (String, u64),
    hosts: BTreeMap<String, Host<C>>,
    decided: Option<u64>,
}

impl<C: PartialEq> Membership<C> {
    /// A cluster of which nothing is known yet. `own` is the name of this host; `incarnation` goes into its reports
    /// ([`Report::incarnation`]).
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(config: Config, own: &str, incarnation: u64) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self { config, own: (own.to_owned(), incarnation), hosts: BTreeMap::new(), decided: None })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes in a report of `host`. A host takes in its own reports too, but only when they have come back from the cluster,
    /// which shows that the other hosts can know them. Order and repetition of reports do not matter.
    ///
    /// # Errors
    /// Reason for which the report was ignored; a repeated one is no error.
    pub fn observe(&mut self, now: Instant, host: &str, report: Report<C>) -> Result<(), Fault> {
        let current = self.config.period_at(now);
        let ahead = report.period.saturating_sub(current);
        if ahead > SKEW_PERIODS {
            return Err(Fault::Future { ahead });
        }
        let behind = current.saturating_sub(report.period);
        let latest = self.expires_after().saturating_add(SKEW_PERIODS);
        if behind > latest {
            return Err(Fault::Late { behind });
        }
        let Some(known) = self.hosts.get_mut(host) else { return self.admit(current, host, report) };
        if report.incarnation != known.incarnation {
            // What came too late now could not have been taken in either, so order does not matter here.
            let gone = current.saturating_sub(known.newest()) > latest;
            if report.incarnation < known.incarnation && !gone {
                return Err(Fault::Duplicate { counts: known.incarnation });
            }
            *known = Host {
                incarnation: report.incarnation,
                reports: BTreeMap::from([(report.period, report)]),
                ended_at: None,
                given_up_at: None,
            };
            return Ok(());
        }
        if let Some(before) = known.reports.get(&report.period) {
            return if *before == report { Ok(()) } else { Err(Fault::Conflict) };
        }
        known.reports.insert(report.period, report);
        if known.reports.len() > KEPT {
            known.reports.pop_first();
        }
        Ok(())
    }

    /// Notes that the lease of a host has ended: no more reports are expected from it unless it comes back.
    pub fn lease_ended(&mut self, host: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.ended_at = Some(host.newest());
        }
    }

    /// The next period that can be decided; each period is returned once. All hosts that are waited for have reported this
    /// period, or the time for waiting is over. Ask after each report, and at [`Membership::deadline`].
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        let current = self.config.period_at(now);
        self.forget(current);
        // The clock was set back: what was decided lies ahead.
        if self.decided.is_some_and(|decided| decided > current.saturating_add(SKEW_PERIODS)) {
            self.decided = None;
        }
        let next = self.pending(current)?;
        let complete = self.complete(next);
        if !complete && now < self.patience(next) {
            return None;
        }
        if !complete {
            for host in self.hosts.values_mut().filter(|host| host.newest() < next) {
                host.given_up_at = Some(host.newest());
            }
        }
        self.decided = Some(next);
        Some(next)
    }

    /// Time at which to ask [`Membership::poll`] again even if no report comes: the end of waiting for the reports of the next
    /// period to decide. Far in the future if no period is to be decided.
    pub fn deadline(&self, now: Instant) -> Instant {
        self.pending(self.config.period_at(now)).map_or(Instant::FAR_FUTURE, |next| self.patience(next))
    }

    /// The members in `period`, by the reports that have been taken in so far.
    pub fn view(&self, period: u64) -> View<'_, C> {
        let mut view = View { period, members: Vec::new(), expired: Vec::new() };
        for (host, known) in &self.hosts {
            let Some(report) = known.known_at(period).filter(|report| !report.leaving) else { continue };
            let age = period - report.period;
            if self.is_expired(known, report, age) {
                view.expired.push(host);
            } else {
                view.members.push(Member { host, age, report });
            }
        }
        view
    }

    /// Status of this host in the cluster at `now`.
    pub fn status(&self, now: Instant) -> Status {
        let Some(own) = self.own().and_then(|own| own.reports.last_key_value()) else {
            return Status::Lost;
        };
        let (&newest, report) = own;
        // The report of the present period is not due yet.
        let missed = self.config.period_at(now).saturating_sub(newest.saturating_add(1));
        if missed >= self.config.lease {
            Status::Lost
        } else if missed > SKEW_PERIODS {
            Status::Holding { missed }
        } else {
            let steps = newest.saturating_sub(report.joined);
            Status::Shared { ramp: ((steps as f64) / (self.config.ramp as f64)).min(1.0) }
        }
    }

    /// Period of this host's newest report that came back from the cluster; `None` before the first.
    pub fn last_own(&self) -> Option<u64> {
        self.own().map(Host::newest)
    }

    /// The report of `host` about the newest period.
    fn last(&self, host: &str) -> Option<&Report<C>> {
        self.hosts.get(host)?.reports.last_key_value().map(|(_, report)| report)
    }

    /// The newest period about which `host` has reported.
    fn newest(&self, host: &str) -> Option<u64> {
        self.last(host).map(|report| report.period)
    }

    /// Forgets the hosts for which `keep` is false.
    fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.hosts.retain(|host, _| keep(host));
    }

    /// Changes the name under which this host's own reports come back.
    fn rename(&mut self, own: &str) {
        self.own.0 = own.to_owned();
    }

    /// All hosts that are known and have not left: name, incarnation and presence at `now`, in order of names.
    pub fn known(&self, now: Instant) -> impl Iterator<Item = (&str, u64, Presence)> {
        let due = self.config.period_at(now).saturating_sub(1);
        self.hosts.iter().filter_map(move |(name, host)| {
            let (_, report) = host.reports.last_key_value()?;
            let age = due.saturating_sub(report.period);
            let presence = match age {
                _ if report.leaving => return None,
                _ if self.is_expired(host, report, age) => Presence::Expired(age),
                0 | SKEW_PERIODS => Presence::Present,
                _ => Presence::Suspect(age),
            };
            Some((name.as_str(), host.incarnation, presence))
        })
    }

    /// This host's own reports that came back; reports of another process with the same name do not count.
    fn own(&self) -> Option<&Host<C>> {
        let (name, incarnation) = &self.own;
        self.hosts.get(name).filter(|host| host.incarnation == *incarnation)
    }

    /// A member has expired when its last report is more than this many periods old.
    fn expires_after(&self) -> u64 {
        self.config.lease.saturating_add(self.config.safe)
    }

    fn is_expired(&self, host: &Host<C>, report: &Report<C>, age: u64) -> bool {
        age > self.expires_after() || (age > self.config.safe && host.lease_ended(report))
    }

    /// The next period to decide: the earliest that a host has reported and that is neither decided nor older than [`STALE`].
    fn pending(&self, current: u64) -> Option<u64> {
        let oldest = current.saturating_sub(STALE);
        let first = self.decided.map_or(oldest, |decided| oldest.max(decided.saturating_add(1)));
        let reported = |host: &Host<C>| host.reports.range(first..).next().map(|(period, _)| *period);
        self.hosts.values().filter_map(reported).min()
    }

    /// True if this host and all other hosts that are waited for have reported `period` or a later one: no host reports an
    /// earlier period after a later one.
    fn complete(&self, period: u64) -> bool {
        let own = self.own().is_some_and(|own| own.newest() >= period);
        own && self.hosts.values().all(|host| host.newest() >= period || !self.expected(host, period))
    }

    /// True if the report of `host` about `period` is waited for: the host reported one of the two periods before. To look at
    /// one period is not enough: this host's own report may be back before the previous one of a host whose clock is behind.
    fn expected(&self, host: &Host<C>, period: u64) -> bool {
        let before = period.saturating_sub(1 + SKEW_PERIODS)..period;
        let last = host.reports.range(before).next_back().map(|(_, report)| report);
        last.is_some_and(|report| {
            !report.leaving && !host.lease_ended(report) && host.given_up_at.is_none_or(|period| period < report.period)
        })
    }

    /// When waiting for reports about `period` ends: late enough for the report of a host whose clock is a period behind.
    fn patience(&self, period: u64) -> Instant {
        let late = Duration::from_nanos((self.config.period.as_nanos() / 2).saturating_mul(self.config.late));
        self.config.due(period) + late
    }

    fn admit(&mut self, current: u64, name: &str, report: Report<C>) -> Result<(), Fault> {
        if self.hosts.len() >= self.config.max_members && !self.forget_expired(current) {
            return Err(Fault::TooMany { max: self.config.max_members });
        }
        let host = Host {
            incarnation: report.incarnation,
            reports: BTreeMap::from([(report.period, report)]),
            ended_at: None,
            given_up_at: None,
        };
        self.hosts.insert(name.to_owned(), host);
        Ok(())
    }

    /// Forgets the member that has been expired for longest; returns false if none has expired.
    fn forget_expired(&mut self, current: u64) -> bool {
        let over = self.expires_after();
        let oldest = self.hosts.iter().min_by_key(|(_, host)| host.newest());
        let Some((name, _)) = oldest.filter(|(_, host)| current.saturating_sub(host.newest()) > over) else {
            return false;
        };
        let name = name.clone();
        self.hosts.remove(&name).is_some()
    }

    /// Forgets hosts that left or expired long ago, and reports about future periods, which a clock that was set back causes.
    fn forget(&mut self, current: u64) {
        let remembered = self.config.lease.saturating_mul(REMEMBERED_LEASES);
        let over = self.expires_after();
        self.hosts.retain(|_, host| {
            host.reports.retain(|&period, _| period <= current.saturating_add(SKEW_PERIODS));
            let last = host.reports.last_key_value();
            last.is_some_and(|(_, report)| {
                let age = current.saturating_sub(report.period);
                age <= if report.leaving { over } else { over.saturating_add(remembered) }
            })
        });
    }
}
