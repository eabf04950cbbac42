//! The cluster: the hosts that share a device, and the reports of all of them about one period.
//!
//! Hosts that decide for themselves, without a leader, must decide from the same
//! statistics. Time is cut into periods at multiples of the period's length on the
//! wall clock, so that hosts agree on their numbers; each host reports once a period,
//! and a [`View`] is what is known of all members for one period: a function of the set
//! of reports alone, not of their order or number, nor of any clock. The clock only
//! says when there is no use in waiting longer.
//!
//! | a member that | is | its share |
//! |---|---|---|
//! | reported the period | present | by its report |
//! | did not, for less than the lease | suspect | by its last report, so that what it still uses is not given away twice |
//! | did not, for longer than lease and safe time | expired | given to the others |
//! | said that it leaves | gone | given to the others at once |
//!
//! The other side of it: a host that does not see its own reports come back for as
//! long as the lease has lost the cluster ([`Status::Lost`]) and must fall back to
//! a safe minimum *before* the others give its share away; the safe time lies
//! between the two. A host that joins or comes back takes its share in steps
//! ([`Status::Shared`]), while the others have freed it in the first of them.
//!
//! The paper leaves the protocol open ("statistics collected by distributed hosts",
//! section 6); this is ours.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Duration, Instant, InvalidConfig};

pub mod shard;
pub mod sharding;

/// Clocks of hosts may be apart by so many periods.
pub const SKEW_PERIODS: u64 = 1;
/// Periods for which reports of one host are kept: those that are decided late, one that is due, and skew on both sides.
const KEPT: usize = 8;
/// A period this many periods old is not decided any more.
const STALE: u64 = 4;
/// The longest that a report may be late and its period still be decided, in half periods.
const MAX_LATE: u64 = 2 * (STALE - 1);
/// Expired members are remembered for so many leases, because some of them still use their safe minimum.
const REMEMBERED_LEASES: u64 = 20;

/// Settings of the cluster. All members need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of a period; at least 1 ms.
    pub period: Duration,
    /// Periods for which the last report of a suspect member counts; at least 2.
    pub lease: u64,
    /// Further periods before its share is given away; at least 1, for clocks that are apart.
    pub safe: u64,
    /// Periods in which a host that joins goes from its safe minimum to its share; at least 1.
    pub ramp: u64,
    /// Half periods for which a report is waited for after it was due; 2 to 6.
    pub late: u64,
    /// Hosts that are kept track of; more are ignored and reported. At least 1.
    pub max_members: usize,
}

impl Config {
    /// Settings for a period: lease of three periods, safe time of one, three steps on joining; reports may be late by
    /// what clocks may be apart and half a period on the way; 256 hosts.
    pub const fn new(period: Duration) -> Self {
        Self { period, lease: 3, safe: 1, ramp: 3, late: 2 * SKEW_PERIODS + 1, max_members: 256 }
    }

    /// Checks the ranges above.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let wrong = |setting, must_be| Err(InvalidConfig { setting, must_be });
        if self.period < Duration::from_millis(1) {
            return wrong("period", "at least 1 ms");
        }
        if !(2..=1_000_000).contains(&self.lease) {
            return wrong("lease", "2 to 1000000 periods");
        }
        if !(1..=1_000_000).contains(&self.safe) {
            return wrong("safe", "1 to 1000000 periods");
        }
        if !(1..=1_000_000).contains(&self.ramp) {
            return wrong("ramp", "1 to 1000000 periods");
        }
        if !(2 * SKEW_PERIODS..=MAX_LATE).contains(&self.late) {
            return wrong("late", "2 to 6 half periods");
        }
        if self.max_members == 0 {
            return wrong("max_members", "at least 1");
        }
        Ok(())
    }

    /// The period in which `now` lies. The zero of the time scale is the same for all hosts: 1 January 1970.
    pub fn period_at(&self, now: Instant) -> u64 {
        now.as_nanos() / self.period.as_nanos().max(1)
    }

    /// When a period is over and its report due.
    pub fn due(&self, period: u64) -> Instant {
        Instant::from_nanos(period.saturating_add(1).saturating_mul(self.period.as_nanos()))
    }
}

/// One host's report about one period.
#[derive(Clone, Debug, PartialEq)]
pub struct Report<C> {
    /// Which life of the host: a later start has a larger number, and no two processes have the same.
    pub incarnation: u64,
    /// The period.
    pub period: u64,
    /// The period in which it joined or came back.
    pub joined: u64,
    /// It leaves the cluster: its share is free.
    pub leaving: bool,
    /// Its statistics.
    pub content: C,
}

/// Why a report was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is about a period that is not over by far: that host's clock is ahead, or ours is behind.
    Future {
        /// Periods by which it is ahead.
        ahead: u64,
    },
    /// It is about a period long over: delayed, or that host's clock is behind.
    Late {
        /// Periods by which it is late.
        behind: u64,
    },
    /// A process that started later reports under the same name: one of the two has to take another one.
    Duplicate {
        /// The incarnation that counts.
        counts: u64,
    },
    /// The host has reported something else about the same period before.
    Conflict,
    /// More hosts than are kept track of.
    TooMany {
        /// So many are.
        max: usize,
    },
}

/// Status of this host in the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    /// The newest view decides. `ramp`: how much of the way from the safe minimum to the share to take, 0 to 1; below 1
    /// only after joining.
    Shared {
        /// See above.
        ramp: f64,
    },
    /// Our reports have not come back for a while; the last decision stays in force until the lease ends.
    Holding {
        /// Periods without one.
        missed: u64,
    },
    /// The cluster is lost, or was never reached: safe minimum and control by what this host itself measures.
    Lost,
}

/// A member in a view.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a, C> {
    /// Name.
    pub host: &'a str,
    /// Periods since what it reported; 0 = it reported this period.
    pub age: u64,
    /// Its report.
    pub report: &'a Report<C>,
}

/// The state of one period: the same on every host that knows the same reports.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a, C> {
    /// The period.
    pub period: u64,
    /// Hosts whose reports count, by name.
    pub members: Vec<Member<'a, C>>,
    /// Members that have expired but may still use their safe minimum, by name.
    pub expired: Vec<&'a str>,
}

/// A host as it is seen at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It reports.
    Present,
    /// It has not reported for so many periods.
    Suspect(u64),
    /// Its share has been given away, or will be at the next period.
    Expired(u64),
}

/// The state of a host.
#[derive(Clone, Debug)]
struct Host<C> {
    incarnation: u64,
    /// By period; never empty.
    reports: BTreeMap<u64, Report<C>>,
    /// The last report that counts for the lease that has ended.
    ended_at: Option<u64>,
    /// The last report before a period was decided without waiting longer: until another one comes no host waits for it.
    given_up_at: Option<u64>,
}

impl<C> Host<C> {
    fn newest(&self) -> u64 {
        self.reports.last_key_value().map_or(0, |(period, _)| *period)
    }

    /// The newest report about `period` or before.
    fn known_at(&self, period: u64) -> Option<&Report<C>> {
        self.reports.range(..=period).next_back().map(|(_, report)| report)
    }

    fn lease_ended(&self, report: &Report<C>) -> bool {
        self.ended_at.is_some_and(|period| report.period <= period)
    }
}

/// The members of a cluster by their reports, bounded in members and periods.
#[derive(Clone, Debug)]
pub struct Membership<C> {
    config: Config,
    /// Our name and incarnation.
    own: (String, u64),
    hosts: BTreeMap<String, Host<C>>,
    decided: Option<u64>,
}

impl<C: PartialEq> Membership<C> {
    /// Nothing known yet. `own` is the name of this host, `incarnation` which life of it this is.
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

    /// Takes a report in. Its own reports a host takes in too, but only when they have come back to it: that shows that
    /// the others can know them. Order and repetition do not matter.
    ///
    /// # Errors
    /// Why the report was ignored; a repeated one is no error.
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

    /// The lease of a host has ended: no more is to come from it unless it comes back.
    pub fn lease_ended(&mut self, host: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.ended_at = Some(host.newest());
        }
    }

    /// The next period that can be decided, each one once: all that report have reported it, or it is of no use to wait
    /// longer. Ask after each report, and at [`Membership::deadline`].
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

    /// When to ask [`Membership::poll`] again even if no report comes: a host has not reported what is due.
    pub fn deadline(&self, now: Instant) -> Instant {
        self.pending(self.config.period_at(now)).map_or(Instant::FAR_FUTURE, |next| self.patience(next))
    }

    /// The members of a period.
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

    /// Status of this host.
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

    /// The last of our own reports that came back.
    pub fn last_own(&self) -> Option<u64> {
        self.own().map(Host::newest)
    }

    /// The last report of a host.
    fn last(&self, host: &str) -> Option<&Report<C>> {
        self.hosts.get(host)?.reports.last_key_value().map(|(_, report)| report)
    }

    /// The last period that a host reported.
    fn newest(&self, host: &str) -> Option<u64> {
        self.last(host).map(|report| report.period)
    }

    /// Hosts that are read no more are forgotten.
    fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.hosts.retain(|host, _| keep(host));
    }

    /// We go by another name from now on.
    fn rename(&mut self, own: &str) {
        self.own.0 = own.to_owned();
    }

    /// All hosts that are known, by name, with incarnation and presence.
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

    /// Ourselves, as we come back to us; another process with our name is another host.
    fn own(&self) -> Option<&Host<C>> {
        let (name, incarnation) = &self.own;
        self.hosts.get(name).filter(|host| host.incarnation == *incarnation)
    }

    /// Periods after its last report from which a member has expired.
    fn expires_after(&self) -> u64 {
        self.config.lease.saturating_add(self.config.safe)
    }

    fn is_expired(&self, host: &Host<C>, report: &Report<C>, age: u64) -> bool {
        age > self.expires_after() || (age > self.config.safe && host.lease_ended(report))
    }

    /// The next period to decide: the earliest that a host has reported and that is neither decided nor stale.
    fn pending(&self, current: u64) -> Option<u64> {
        let oldest = current.saturating_sub(STALE);
        let first = self.decided.map_or(oldest, |decided| oldest.max(decided.saturating_add(1)));
        let reported = |host: &Host<C>| host.reports.range(first..).next().map(|(period, _)| *period);
        self.hosts.values().filter_map(reported).min()
    }

    /// True if all that are waited for have reported a period, or a later one: no host reports an earlier period after
    /// a later one. We ourselves are waited for always.
    fn complete(&self, period: u64) -> bool {
        let own = self.own().is_some_and(|own| own.newest() >= period);
        own && self.hosts.values().all(|host| host.newest() >= period || !self.expected(host, period))
    }

    /// True if a host is waited for: it reported one of the periods before. Where its clock is behind ours by as much
    /// as may be, our own report is back before that of the last one comes.
    fn expected(&self, host: &Host<C>, period: u64) -> bool {
        let before = period.saturating_sub(1 + SKEW_PERIODS)..period;
        let last = host.reports.range(before).next_back().map(|(_, report)| report);
        last.is_some_and(|report| {
            !report.leaving && !host.lease_ended(report) && host.given_up_at.is_none_or(|period| period < report.period)
        })
    }

    /// When waiting for reports of a period ends: by then one of a host whose clock is a period behind has come.
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

    /// Forgets the member that expired first; whether there was one.
    fn forget_expired(&mut self, current: u64) -> bool {
        let over = self.expires_after();
        let oldest = self.hosts.iter().min_by_key(|(_, host)| host.newest());
        let Some((name, _)) = oldest.filter(|(_, host)| current.saturating_sub(host.newest()) > over) else {
            return false;
        };
        let name = name.clone();
        self.hosts.remove(&name).is_some()
    }

    /// Drops what cannot matter any more, and what the clock, set back, has left ahead.
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
