//! Groups of any size: hosts read each other one by one, or, in a large group, their own section's hosts and of the other
//! sections one sum each.
//!
//! Two [`Exchange`]s of the same kind, one over the other: in the first one hosts report, in the second one sections. When
//! the hosts of a section have reported period k, one of them adds up what they reported and publishes the sum. From
//! then on all decide from the sums alone, their own section's included as it was published, so that all decide from the
//! same. No host is elected: the first by name of those that reported is the first to publish, the next one does it a
//! quarter of a period later if nothing has come, and so on; of one period the first sum that is written counts.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::section::{Section, Seen, Sizes, cover};
use super::{Config, Exchange, Fault, Presence, Report, Round, SKEW_PERIODS, Status};
use crate::{Duration, Instant, InvalidConfig};

/// Sections that are kept track of: as many as there can be, so that a change of how finely a group is divided fits too.
const MAX_SECTIONS: usize = 2 << super::section::MAX_BITS;
/// Half periods for which a sum is waited for: those for which a host is, and one for the sum's own way.
const SUM_LATE: u64 = 5;
/// Decisions in a row that have to find a group too finely divided before it is divided more coarsely.
const SMALLER_FOR: u32 = 10;

/// A host's or section's report of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Said<C> {
    /// How often its hosts halve the group.
    pub bits: u8,
    /// How many hosts it speaks for.
    pub hosts: u64,
    /// Statistics.
    pub content: C,
}

/// A sum to be published.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum<C> {
    /// Of which section.
    pub section: Section,
    /// Of which period.
    pub period: u64,
    /// It is the last one: no host is left that would publish another.
    pub leaving: bool,
    /// How many hosts, and what they did together.
    pub said: Said<C>,
}

/// How statistics add up; the same parts in the same order have to give the same sum everywhere.
pub type Together<C> = fn(&mut dyn Iterator<Item = &C>) -> C;

/// All hosts that share a device, however many.
#[derive(Clone, Debug)]
pub struct Fleet<C> {
    own: String,
    sizes: Sizes,
    together: Together<C>,
    hosts: Exchange<Said<C>>,
    sections: Exchange<Said<C>>,
    section: Section,
    /// The period since which sums of sections decide, if they do.
    divided: Option<u64>,
    /// A sum that this host publishes if no other has by then.
    untold: Option<(Instant, Sum<C>)>,
    decided: Option<u64>,
    /// Hosts of the last round.
    size: u64,
    wanted: u8,
    smaller_for: u32,
}

impl<C: Clone + PartialEq> Fleet<C> {
    /// Nothing known yet; not divided. `own` is the name of this host, `incarnation` which life of it this is.
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
        let above = Config { max_hosts: MAX_SECTIONS, late: SUM_LATE, ..config };
        Ok(Self {
            own: own.to_owned(),
            sizes,
            together,
            hosts: Exchange::new(config, own, incarnation)?,
            // Of a section there is only one life, whichever host speaks for it.
            sections: Exchange::new(above, &Section::WHOLE.to_string(), 0)?,
            section: Section::WHOLE,
            divided: None,
            untold: None,
            decided: None,
            size: 0,
            wanted: 0,
            smaller_for: 0,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.hosts.config()
    }

    /// Other sizes from now on.
    pub fn set_sizes(&mut self, sizes: Sizes) {
        self.sizes = sizes;
        if self.size > 0 {
            self.wanted = sizes.bits_after(self.section.bits(), self.size);
        }
    }

    /// The section whose hosts are read one by one.
    pub fn section(&self) -> Section {
        self.section
    }

    /// The section whose hosts should be: call [`Fleet::divide`] once they are all known.
    pub fn wanted(&self) -> Section {
        Section::of(&self.own, self.wanted)
    }

    /// From now on the hosts of `section` are read one by one, in which this host is; others are forgotten.
    pub fn divide(&mut self, now: Instant, section: Section) {
        if section == self.section {
            return;
        }
        let good_bye = self.good_bye(now);
        self.hosts.retain(|host| section.holds(host));
        self.sections.rename(&section.to_string());
        self.section = section;
        (self.wanted, self.smaller_for) = (section.bits(), 0);
        self.divided = (section.bits() > 0).then(|| self.config().period_at(now));
        self.untold = good_bye.map(|sum| (now, sum));
    }

    /// True if sums of sections decide.
    pub fn is_divided(&self) -> bool {
        self.divided.is_some()
    }

    /// Hosts of the last round, all sections together.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Takes a host's report in; see [`Exchange::observe`]. Those of other sections are left out, without a word.
    ///
    /// # Errors
    /// Why the report was ignored.
    pub fn observe(&mut self, now: Instant, host: &str, report: Report<Said<C>>) -> Result<(), Fault> {
        if self.section.holds(host) { self.hosts.observe(now, host, report) } else { Ok(()) }
    }

    /// Takes a section's sum in, one's own included, when it has come back.
    ///
    /// # Errors
    /// Why it was ignored.
    pub fn observe_sum(&mut self, now: Instant, sum: Sum<C>) -> Result<(), Fault> {
        let Sum { section, period, leaving, said } = sum;
        // Sections do not join step by step; their hosts do.
        let report = Report { incarnation: 0, period, joined: 0, leaving, content: said };
        self.sections.observe(now, &section.to_string(), report)
    }

    /// The lease of a host has ended. That of a section's sum says nothing: another host publishes the next one.
    pub fn lease_ended(&mut self, host: &str) {
        self.hosts.lease_ended(host);
    }

    /// The next round to decide from, each period once: of hosts, or of sections where the group is divided. Ask after each
    /// report, and at [`Fleet::deadline`].
    pub fn poll(&mut self, now: Instant) -> Option<Round<'_, Said<C>>> {
        let current = self.config().period_at(now);
        if self.decided.is_some_and(|decided| decided > current.saturating_add(SKEW_PERIODS)) {
            self.decided = None;
        }
        while let Some(period) = self.hosts.poll(now) {
            let round = self.hosts.round(period);
            let hosts = round.members.len() as u64;
            // A host that reads all others one by one goes by the sums as soon as another does not.
            let divided = self.section.bits() > 0 || round.members.iter().any(|member| member.report.content.bits > 0);
            if divided {
                self.divided = self.divided.or(Some(current));
                self.add_up(now, period);
            } else {
                self.divided = None;
                if self.next(period, hosts) {
                    return Some(self.hosts.round(period));
                }
            }
        }
        while let Some(period) = self.sections.poll(now) {
            let (counts, hosts) = self.covered(period);
            if self.divided.is_some() && self.next(period, hosts) {
                let mut round = self.sections.round(period);
                round.members.retain(|member| counts.binary_search(&member.host.to_owned()).is_ok());
                return Some(round);
            }
        }
        None
    }

    /// A sum to be published now, because no other host has published it.
    pub fn to_tell(&mut self, now: Instant) -> Option<Sum<C>> {
        let (_, sum) = self.untold.take_if(|(at, _)| *at <= now)?;
        let told = self.sections.newest(&sum.section.to_string()).is_some_and(|newest| newest >= sum.period);
        (sum.leaving || !told).then_some(sum)
    }

    /// The last sum of our section, if this host is the last one in it that would publish one.
    pub fn good_bye(&self, now: Instant) -> Option<Sum<C>> {
        let newest = self.sections.newest(&self.section.to_string())?;
        let period = self.config().period_at(now);
        let recent = period.saturating_sub(newest) <= 1 + SKEW_PERIODS + self.config().lease;
        let round = self.hosts.round(period);
        let others = self.tellers(&round).any(|host| host != self.own);
        let nothing = Said { bits: self.section.bits(), hosts: 1, content: (self.together)(&mut [].iter()) };
        (recent && !others).then(|| Sum { section: self.section, period, leaving: true, said: nothing })
    }

    /// When to ask again even if nothing comes.
    pub fn deadline(&self, now: Instant) -> Instant {
        let untold = self.untold.as_ref().map_or(Instant::FAR_FUTURE, |(at, _)| *at);
        untold.min(self.hosts.deadline(now)).min(self.sections.deadline(now))
    }

    /// How this host stands: as well as both its own reports and its section's sums come back.
    pub fn status(&self, now: Instant) -> Status {
        let host = self.hosts.status(now);
        let Some(since) = self.divided else { return host };
        let section = match self.sections.status(now) {
            // Before the first sum there is the time that it takes to miss one.
            Status::Lost => {
                let silent = self.config().period_at(now).saturating_sub(since);
                if silent >= self.config().lease { Status::Lost } else { Status::Holding { silent } }
            }
            other => other,
        };
        match (host, section) {
            (Status::Lost, _) | (_, Status::Lost) => Status::Lost,
            (Status::Holding { silent: a }, Status::Holding { silent: b }) => Status::Holding { silent: a.max(b) },
            (holding @ Status::Holding { .. }, _) | (_, holding @ Status::Holding { .. }) => holding,
            (shared @ Status::Shared { .. }, Status::Shared { .. }) => shared,
        }
    }

    /// The last of our own reports that came back.
    pub fn last_own(&self) -> Option<u64> {
        self.hosts.last_own()
    }

    /// The hosts that are read one by one, by name, with presence.
    pub fn hosts(&self, now: Instant) -> impl Iterator<Item = (&str, Presence)> {
        self.hosts.hosts(now).map(|(name, _, presence)| (name, presence))
    }

    /// The sections, by name, with presence and hosts.
    pub fn sections(&self, now: Instant) -> impl Iterator<Item = (&str, Presence, u64)> {
        let hosts = |name| self.sections.last(name).map_or(0, |report| report.content.hosts);
        self.sections.hosts(now).map(move |(name, _, presence)| (name, presence, hosts(name)))
    }

    /// True if a period is one to decide, and not decided by the other kind of round already; what follows from its
    /// size.
    fn next(&mut self, period: u64, hosts: u64) -> bool {
        if self.decided.is_some_and(|decided| decided >= period) {
            return false;
        }
        (self.decided, self.size) = (Some(period), hosts);
        let (now, wanted) = (self.section.bits(), self.sizes.bits_after(self.section.bits(), hosts));
        self.smaller_for = if wanted < now { self.smaller_for + 1 } else { 0 };
        if wanted > now || self.smaller_for >= SMALLER_FOR {
            self.wanted = wanted;
        }
        true
    }

    /// Hosts of our section that publish its sum, in the order in which they do.
    fn tellers<'a>(&self, round: &Round<'a, Said<C>>) -> impl Iterator<Item = &'a str> {
        let bits = self.section.bits();
        let tells = move |member: &&super::Member<'a, Said<C>>| {
            member.age <= SKEW_PERIODS && member.report.content.bits == bits
        };
        let tellers: Vec<&'a str> = round.members.iter().filter(tells).map(|member| member.host).collect();
        tellers.into_iter()
    }

    /// Our section's sum of a period, to be published when it is our turn.
    fn add_up(&mut self, now: Instant, period: u64) {
        if self.hosts.status(now) == Status::Lost {
            return;
        }
        let round = self.hosts.round(period);
        let present = |host: &&str| round.members.iter().any(|member| member.host == *host && member.age == 0);
        let tellers: Vec<&str> = self.tellers(&round).filter(present).collect();
        let turn = tellers.iter().position(|host| *host == self.own).unwrap_or(tellers.len());
        let quarter = self.config().period.as_nanos() / 4;
        let at = now + Duration::from_nanos(quarter.saturating_mul(turn as u64));
        let said = Said {
            bits: self.section.bits(),
            hosts: round.members.len() as u64,
            content: (self.together)(&mut round.members.iter().map(|member| &member.report.content.content)),
        };
        self.untold = Some((at, Sum { section: self.section, period, leaving: false, said }));
    }

    /// Names of the sections that count in a round, in order, and how many hosts they have.
    fn covered(&self, period: u64) -> (Vec<String>, u64) {
        let round = self.sections.round(period);
        let seen = round.members.iter().filter_map(|member| {
            let section = member.host.parse().ok()?;
            Some(Seen { section, age: member.age, hosts: member.report.content.hosts })
        });
        let seen: Vec<Seen> = seen.collect();
        let counts = cover(&seen);
        let hosts = seen.iter().filter(|seen| counts.contains(&seen.section)).map(|seen| seen.hosts).sum();
        let mut names: Vec<String> = counts.iter().map(Section::to_string).collect();
        names.sort();
        (names, hosts)
    }
}
