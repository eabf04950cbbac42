//! The driver, which keeps the schedule: a report at the end of each period, and a decision as soon as all hosts have
//! reported or the deadline has passed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use evenkeel_control::cluster::shard::{Shard, Sizes};
use evenkeel_control::cluster::sharding::{Cluster, Contribution, Sum};
use evenkeel_control::cluster::totals::MEASUREMENTS;
use evenkeel_control::cluster::{Fault, Presence, Report, Status};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Fractions;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::{Header, Pools, READS, Record, Totals, Unreadable, VERSION};
use evenkeel_policy::figures::counted;
use evenkeel_policy::state::{ClusterState, MemberState, ShardState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::clock::since_boot;
use crate::error::Error;
use crate::etcd::{Access, lock};
use crate::event::Event;
use crate::faults::{self, Faults};
use crate::kept;
use crate::participant::{self, Demands, Key, Participant, Parts};
use crate::publish;
use crate::settings::Settings;
use crate::totals::{self, Sharing};
use crate::watcher::{self, Wanted};

/// Capacity of the queue of events for the driver; with a full queue, senders wait.
const EVENTS: usize = 1_024;
/// Longest time until a change is in the state that the API shows, and the part of a period that is as long.
const SHOWN_WITHIN: (Duration, u64) = (Duration::from_millis(100), 16);
/// Longest time that leaving the cluster may take.
const LEAVE_TIMEOUT: StdDuration = StdDuration::from_secs(2);
/// The fault of a host of which most other hosts' clocks are far, with the cure.
const WRONG_CLOCK: &str = "the clocks of most other hosts are periods off this host's; set the clocks of all (NTP)";
/// The most hosts with such clocks that are remembered; more than may count as near.
const FAR_CLOCKS: usize = 1_024;

pub(crate) struct Driver<M> {
    settings: Settings,
    participant: M,
    cluster: Cluster<Pools>,
    totals: Sharing,
    /// The parts of tenants' totals that the participant has.
    parts: Parts,
    /// Zero of the time of `totals`, since the machine's start.
    began: StdDuration,
    /// When demand for tenants with totals is measured next, within a period, and how often it was in this one.
    measuring: (Instant, u64),
    /// The newest report.
    newest: Option<Record>,
    /// The file with the parts of totals for a restart; `None`: there is none.
    file: Option<kept::File>,
    /// When the state may be published again, by the clock of `totals`.
    shown_at: Instant,
    state: Arc<Mutex<ClusterState>>,
    access: Arc<Access>,
    /// Counts the values of other hosts and shards that were ignored.
    pub(crate) faults: Faults,
    /// Other hosts whose newest reports do not count for slots, as their clocks are far from this host's.
    far_clocks: BTreeSet<String>,
    /// The newest period that this host has reported on.
    reported: u64,
    /// The period in which this host joined, or in which it came back after the cluster had been lost.
    joined: u64,
    status: Status,
    /// The present fault of the watch (first) and of the writes (second); `None` without one.
    troubles: [Option<String>; 2],
    /// True if another running process has the name of this host.
    pub(crate) has_rival: bool,
    /// The name that was to be this host's, if another running process had it.
    taken: Option<String>,
}

impl<M: Participant> Driver<M> {
    /// A driver that knows of no other host. The first period that it reports on is the present one.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub(crate) fn new(settings: Settings, participant: M, state: Arc<Mutex<ClusterState>>) -> Result<Self, Error> {
        let (config, sizes) = (settings.cluster.control(), settings.cluster.sizes());
        let cluster = Cluster::new(config, sizes, participant::together, &settings.host, settings.incarnation)
            .map_err(Error::Setting)?;
        let present = cluster.config().period_at((settings.clock)());
        let file = kept::File::of(&settings).filter(|_| settings.cluster.has_totals());
        let mut totals = Sharing::new(&settings.cluster, &settings.host, settings.incarnation);
        if let Some(file) = &file {
            totals.resume(file.load(kept::uptime(), totals.kept_for()));
        }
        Ok(Self {
            // The period that is under way is the first to be reported, when it is over.
            reported: present.saturating_sub(1),
            joined: present,
            totals,
            parts: Parts::new(),
            began: since_boot(),
            measuring: (Instant::FAR_FUTURE, 0),
            newest: None,
            file,
            shown_at: Instant::ZERO,
            access: Arc::new(Access::of(&settings.cluster)),
            settings,
            participant,
            cluster,
            state,
            faults: Faults::default(),
            far_clocks: BTreeSet::new(),
            status: Status::Lost,
            troubles: [None, None],
            has_rival: false,
            taken: None,
        })
    }

    /// Reports and decides until `stopped` fires, and then leaves the cluster. `resized`: new sizes of shards. If another running
    /// process has the name of this host, goes on under a name for this process alone.
    pub(crate) async fn run(self, mut stopped: oneshot::Receiver<()>, mut resized: watch::Receiver<Sizes>) {
        let mut driver = self;
        while let Some(renamed) = driver.take_part(&mut stopped, &mut resized).await {
            driver = renamed;
        }
    }

    /// As [`Self::run`], under one name; returns the driver for another name, if this host needs one.
    async fn take_part(
        mut self,
        stopped: &mut oneshot::Receiver<()>,
        resized: &mut watch::Receiver<Sizes>,
    ) -> Option<Self> {
        self.cluster.set_sizes(*resized.borrow());
        let (events, mut happened) = mpsc::channel(EVENTS);
        let (outgoing, own) = watch::channel(None);
        let (outgoing_sum, sum) = watch::channel(None);
        let (wanted, to_watch) = watch::channel(Wanted { bits: None, sizes: self.settings.cluster.sizes() });
        let settings = || (self.settings.clone(), Arc::clone(&self.access), events.clone());
        let (ours, access, to) = settings();
        let watcher = tokio::spawn(watcher::run(ours, access, to, to_watch));
        let (ours, access, to) = settings();
        let publisher = tokio::spawn(publish::run(ours, access, to, publish::ToPublish { own, sum }));
        self.participant.alone();
        loop {
            let now = (self.settings.clock)();
            self.totals.keep_time(self.elapsed());
            self.divide(false);
            if let Some(report) = self.report(now).or_else(|| self.measure()) {
                outgoing.send_replace(Some(report));
            }
            self.decide(now);
            if let Some(sum) = self.cluster.to_publish(now).and_then(|sum| self.sum(sum)) {
                outgoing_sum.send_replace(Some(sum));
            }
            // Not noted as seen: a change that comes while another branch of the selection runs is taken in below, the next time.
            let sizes = *resized.borrow();
            // Who has lost the others does not know any more how many there are.
            let bits = (self.status != Status::Lost).then(|| self.wanted_bits(sizes));
            wanted
                .send_if_modified(|wanted| std::mem::replace(wanted, Wanted { bits, sizes }) != Wanted { bits, sizes });
            let shown_at = self.show(now);
            let wake = self.cluster.config().due(self.cluster.config().period_at(now)).min(self.cluster.deadline(now));
            // No less than a millisecond: whatever the clock does, others get their turn.
            let due = self.totals.deadline().min(self.measuring.0).min(shown_at);
            let pause = wake.since(now).min(due.since(self.elapsed()));
            let pause = StdDuration::from(pause).max(StdDuration::from_millis(1));
            tokio::select! {
                event = happened.recv() => if let Some(event) = event { self.take_in(event) },
                () = sleep(pause) => {}
                Ok(()) = resized.changed() => self.cluster.set_sizes(*resized.borrow_and_update()),
                _ = &mut *stopped => break,
            }
            // All that has piled up is taken in before anything is decided.
            while let Ok(event) = happened.try_recv() {
                self.take_in(event);
            }
            if self.has_rival {
                break;
            }
        }
        watcher.abort();
        if self.has_rival {
            // The publisher may be writing the file for a restart, which the next one writes, too.
            happened.close();
            drop((outgoing, outgoing_sum));
            let _ = timeout(LEAVE_TIMEOUT, publisher).await;
            return self.renamed();
        }
        // No further period is decided here: by the last shares a tenant whose requests wait might have no slot.
        self.participant.alone();
        // Without etcd this host cannot leave; the next process continues as this one.
        let stays = self.file.is_some() && self.totals.is_apart();
        self.totals.leave();
        self.divide(false);
        // The publisher still reports what it does.
        happened.close();
        if stays {
            publisher.abort();
            return None;
        }
        let now = (self.settings.clock)();
        if let Some(sum) = self.cluster.last_sum(now).and_then(|sum| self.sum(sum)) {
            outgoing_sum.send_replace(Some(sum));
        }
        let last = self.own_record(self.cluster.config().period_at(now), Pools::new(), Totals::new(), true);
        outgoing.send_replace(self.to_publish(&last));
        let _ = timeout(LEAVE_TIMEOUT, publisher).await;
        None
    }

    /// The driver of this process under a name of its own: a new member, of which the others keep nothing free. Until its reports
    /// come back, almost nothing of totals applies.
    pub(crate) fn renamed(mut self) -> Option<Self> {
        let none: Parts = self.parts.keys().map(|key| (key.clone(), totals::least())).collect();
        if !none.is_empty() {
            self.participant.divide(&none);
        }
        // Requests before are no demand of the first period under the new name.
        let has_totals = self.settings.cluster.has_totals();
        let before = if has_totals { self.participant.demands() } else { Demands::new() };
        let taken = self.taken.take().unwrap_or_else(|| self.settings.host.clone());
        let settings = self.settings.renamed(&taken);
        tracing::warn!(
            "cluster: another running process is host {taken:?} of cluster {:?}: this process takes part as {:?} from now on; give each host its own name with cluster.host, and restart this process",
            settings.cluster.name,
            settings.host
        );
        let state = Arc::clone(&self.state);
        lock(&state).host.clone_from(&settings.host);
        match Self::new(settings, self.participant, state) {
            Ok(mut driver) => {
                driver.totals.count_from(&before);
                // Counters go on.
                Some(Self { taken: Some(taken), faults: self.faults, access: self.access, ..driver })
            }
            Err(error) => {
                tracing::error!("cluster: {error}");
                None
            }
        }
    }

    /// This host's report on the newest period that has ended; `None` if that was reported already.
    fn report(&mut self, now: Instant) -> Option<publish::Outgoing> {
        let present = self.cluster.config().period_at(now);
        let ended = present.checked_sub(1)?;
        // The clock may have been set back.
        if self.reported == ended || (self.reported > ended && self.reported <= present) {
            return None;
        }
        self.reported = ended;
        if self.status == Status::Lost {
            self.joined = ended;
        }
        let pools = self.participant.report();
        // Without totals no tenant has a share. Those of other members still count in this shard's sum.
        let has_totals = self.settings.cluster.has_totals();
        let demands = if has_totals { self.participant.demands() } else { Demands::new() };
        let totals = self.totals.report(self.elapsed(), ended, &demands);
        // What is reported is not exceeded any more when the report is read. All parts, because tenants may be new.
        self.divide(true);
        if has_totals {
            self.measure_next(1);
        }
        let record = self.own_record(ended, pools, totals, false);
        let outgoing = self.to_publish(&record);
        self.newest = Some(record);
        outgoing
    }

    /// Measures the demand for tenants with totals, if that is due within the period. Returns an early report if one is of use.
    fn measure(&mut self) -> Option<publish::Outgoing> {
        let (at, measured) = self.measuring;
        if self.elapsed() < at {
            return None;
        }
        self.measure_next(measured + 1);
        let demands = self.participant.demands();
        // In a divided cluster only sums count, and they are written once a period.
        let is_divided = self.cluster.is_divided();
        let is_due = self.totals.measure(self.elapsed(), &demands, !is_divided) && !is_divided;
        let early = if is_due { self.totals.early_report(self.elapsed()) } else { None };
        self.divide(false);
        let (early, totals) = early?;
        let record = self.newest.take()?;
        let record = Record { early, totals, ..record };
        let outgoing = self.to_publish(&record);
        self.newest = Some(record);
        outgoing
    }

    fn to_publish(&self, record: &Record) -> Option<publish::Outgoing> {
        let text = text(record)?;
        let kept = |file: &kept::File| file.text(self.totals.kept(), kept::uptime(), self.totals.kept_step());
        let (leaving, kept, made) = (record.leaving, self.file.as_ref().map(kept), since_boot());
        Some(publish::Outgoing { text, leaving, kept, made })
    }

    /// Notes that demand was measured for this number of times since the end of a period. Hosts measure at different times, so
    /// that each knows the early reports of others.
    fn measure_next(&mut self, measured: u64) {
        let part = self.cluster.config().period.as_nanos() / MEASUREMENTS;
        let mut rng = SplitMix64::new(self.settings.incarnation ^ (self.reported << 3) ^ measured);
        let jitter = if measured == 1 { rng.next_below((part / 2).max(1)) } else { 0 };
        let next = self.elapsed() + Duration::from_nanos(part + jitter);
        self.measuring = (if measured < MEASUREMENTS { next } else { Instant::FAR_FUTURE }, measured);
    }

    /// Number of times that the cluster is to be halved. Members whose clocks are far from this host's count, too: those see the
    /// cluster as large as it is, and each host must read the same sums.
    fn wanted_bits(&self, sizes: Sizes) -> u8 {
        let counted = sizes.bits_after(self.cluster.shard().bits(), self.totals.members());
        self.cluster.wanted().bits().max(counted)
    }

    /// Time since the start, by a clock that is never set and goes on while the machine is suspended.
    fn elapsed(&self) -> Instant {
        Instant::from_nanos(u64::try_from(since_boot().saturating_sub(self.began).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Makes the present parts of tenants' totals apply: those that have changed, or `all`. Most calls change nothing.
    fn divide(&mut self, all: bool) {
        if !all && self.totals.has_parts(&self.parts) {
            return;
        }
        let parts = self.totals.parts();
        let is_new = |key: &Key, part: &Fractions| self.parts.get(key) != Some(part);
        let present = parts.iter().filter(|(key, part)| all || is_new(key, part));
        let mut changed: Parts = present.map(|(key, part)| (key.clone(), *part)).collect();
        // Totals that a reload removes may come back.
        let gone = self.parts.keys().filter(|key| !parts.contains_key(*key));
        changed.extend(gone.map(|key| (key.clone(), totals::least())));
        self.parts = parts;
        if !changed.is_empty() {
            self.participant.divide(&changed);
        }
    }

    fn own_record(&self, period: u64, pools: Pools, totals: Totals, leaving: bool) -> Record {
        let contribution = Contribution { bits: self.cluster.shard().bits(), members: 1, content: pools };
        let record = self.record(period, self.joined.min(period), leaving, contribution, totals);
        Record { lease: self.cluster.config().lease, ..record }
    }

    fn sum(&self, sum: Sum<Pools>) -> Option<publish::OutgoingSum> {
        let Sum { shard, period, leaving, contribution } = sum;
        // A host whose clock is far from another one's does not know that that one is left in the shard.
        if leaving && self.far_clocks.iter().any(|host| shard.holds(host)) {
            return None;
        }
        let totals = if leaving { Totals::new() } else { self.totals.together() };
        let revision = if leaving { 0 } else { self.totals.added_up_to() };
        let text = text(&Record { revision, ..self.record(period, 0, leaving, contribution, totals) })?;
        Some(publish::OutgoingSum { shard, period, revision: self.totals.taken_in(), text })
    }

    fn record(
        &self,
        period: u64,
        joined: u64,
        leaving: bool,
        contribution: Contribution<Pools>,
        totals: Totals,
    ) -> Record {
        let period_us = self.cluster.config().period.as_nanos() / 1_000;
        let (incarnation, Contribution { bits, members, content: pools }) = (self.settings.incarnation, contribution);
        Record {
            v: VERSION,
            reads: READS,
            incarnation,
            period,
            early: 0,
            joined,
            period_us,
            lease: 0,
            revision: 0,
            leaving,
            bits,
            members,
            pools,
            totals,
        }
    }

    /// Handles an event from the watcher or the publisher.
    pub(crate) fn take_in(&mut self, event: Event) {
        match event {
            Event::Watching { endpoint, shard, mut all, mut sums } => {
                // Own values last: with them all others count as known.
                all.sort_by_key(|(host, _)| *host == self.settings.host);
                sums.sort_by_key(|(name, _, _)| *name == shard.to_string());
                let (now, before) = ((self.settings.clock)(), self.cluster.shard());
                let is_left = shard != before && self.far_clocks.iter().any(|host| before.holds(host));
                self.cluster.divide(now, shard);
                if is_left {
                    // The shard before has a member whose clock is far from this host's: no last sum of it.
                    let _ = self.cluster.to_publish(now);
                }
                let missing: Vec<String> = {
                    let gone =
                        self.cluster.members(now).filter(|(host, _)| !all.iter().any(|(other, _)| other == host));
                    gone.map(|(host, _)| host.to_owned()).collect()
                };
                missing.iter().for_each(|host| self.cluster.lease_ended(host));
                let present: BTreeSet<&str> = all.iter().map(|(host, _)| host.as_str()).collect();
                self.totals.begin(self.elapsed(), shard, &present);
                self.far_clocks.retain(|host| present.contains(host.as_str()));
                all.iter().for_each(|(host, value)| self.heard(host, value, true));
                sums.iter().for_each(|(shard, value, written)| self.summed(shard, value, *written, true));
                tracing::info!("cluster: connected to {endpoint}");
                let mut state = lock(&self.state);
                (state.connected, state.endpoint) = (true, Some(endpoint));
                self.troubles[0] = None;
            }
            Event::At { revision } => self.totals.note_revision(revision),
            Event::Reported { host, value } => self.heard(&host, &value, false),
            Event::Summed { shard, value, written } => self.summed(&shard, &value, written, false),
            Event::Ended { host } => {
                self.cluster.lease_ended(&host);
                self.far_clocks.remove(&host);
                self.totals.ended(self.elapsed(), &host);
            }
            Event::Unwatched { why } => {
                let mut state = lock(&self.state);
                (state.connected, state.endpoint) = (false, None);
                drop(state);
                self.trouble(0, why);
            }
            Event::Written => self.troubles[1] = None,
            Event::Unwritten { why } => self.trouble(1, why),
            Event::Rival => self.has_rival = true,
        }
    }

    /// Notes a fault of the watch (`which` = 0) or of the writes (1); logs it unless there was such a fault before, or one of the
    /// writes.
    fn trouble(&mut self, which: usize, why: String) {
        if self.troubles[which..].iter().all(Option::is_none) {
            tracing::warn!("cluster: {why}");
        }
        self.troubles[which] = Some(why);
    }

    /// The present fault. That of the writes comes first, as it has the cause: a host that cannot write soon hears nothing of
    /// itself, and its watch ends, too, again and again.
    fn fault(&self) -> Option<&str> {
        self.troubles.iter().rev().flatten().next().map(String::as_str)
    }

    /// Handles a host's report. `kept`: as with [`Self::summed`].
    fn heard(&mut self, host: &str, value: &[u8], kept: bool) {
        let now = (self.settings.clock)();
        if !evenkeel_policy::is_name(host) {
            return self.faults.note(now, host, "corrupt", "is not the name of a host: delete this key from etcd");
        }
        let record = match self.read(now, host, value) {
            Ok(record) if record.is_of_one_host() => record,
            Ok(_) => {
                self.totals.unusable(host);
                let what = "has the figures of several hosts in its value: delete this key from etcd";
                return self.faults.note(now, host, "corrupt", what);
            }
            Err(Some((leaving, _))) => return self.totals.unread(host, leaving),
            Err(None) => return self.totals.unusable(host),
        };
        // Whatever the clocks: the order of the store counts.
        self.totals.heard(self.elapsed(), host, &record, self.cluster.is_divided());
        let Record { incarnation, period, joined, leaving, bits, pools, .. } = record;
        let content = Contribution { bits, members: 1, content: pools };
        let report = Report { incarnation, period, joined, leaving, content };
        let observed = self.cluster.observe(now, host, report);
        if let Err(fault) = &observed {
            let (kind, what) = faults::described(fault);
            self.faults.note(now, host, kind, &what);
        }
        let is_other = !leaving && host != self.settings.host;
        match observed {
            // An old report says nothing of a clock.
            Err(Fault::Late { .. }) if kept && is_other => {}
            Err(Fault::Future { .. } | Fault::Late { .. }) if is_other => {
                if self.far_clocks.len() < FAR_CLOCKS {
                    self.far_clocks.insert(host.to_owned());
                }
            }
            _ => {
                self.far_clocks.remove(host);
            }
        }
    }

    /// Handles the published sum of a shard, `written` at this revision of the store. `kept`: the value was found when the watch
    /// began, so that it may be old.
    fn summed(&mut self, name: &str, value: &[u8], written: u64, kept: bool) {
        let now = (self.settings.clock)();
        let Ok(shard) = name.parse::<Shard>() else {
            return self.faults.note(now, name, "corrupt", "is not the name of a shard: delete this key from etcd");
        };
        let record = match self.read(now, name, value) {
            Ok(record) => record,
            Err(Some((leaving, members))) => {
                return self.totals.unread_sum(self.elapsed(), shard, (!leaving).then_some(members));
            }
            Err(None) => return,
        };
        let Record { period, revision, leaving, bits, members, pools, totals, .. } = record;
        let revision = publish::has_up_to(revision, written);
        if bits != shard.bits() {
            return self.faults.note(now, name, "corrupt", "holds reports of another shard: delete this key from etcd");
        }
        let sum = Sum { shard, period, leaving, contribution: Contribution { bits, members, content: pools } };
        let observed = self.cluster.observe_sum(now, sum);
        let elapsed = self.elapsed();
        match &observed {
            Err(Fault::Late { .. }) if kept && leaving => return,
            // Either no host publishes this one any more, and the one that did is still there, or its clock is behind.
            Err(Fault::Late { .. }) if kept => return self.totals.found_undated(elapsed, shard),
            Err(fault) => {
                let (kind, what) = faults::described(fault);
                self.faults.note(now, name, kind, &what);
                // A host with such a clock may not know that others are left in its shard.
                if leaving {
                    return;
                }
            }
            Ok(()) => {}
        }
        // Whatever the clocks: the order of the store counts. What is written now is no old sum.
        let present = self.cluster.config().period_at(now).saturating_sub(1);
        let sum = (!leaving).then_some((members, totals));
        if kept {
            self.totals.found(elapsed, shard, present.saturating_sub(period), revision, sum);
        } else {
            self.totals.summed(elapsed, shard, revision, sum);
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// If the value cannot be used. Members of another version or with another period count by their number: the error says
    /// if these are leaving, and how many they are. `None`: the value is of no member.
    fn read(&mut self, now: Instant, who: &str, value: &[u8]) -> Result<Record, Option<(bool, u64)>> {
        let record = match Record::parse(value) {
            Ok(record) => record,
            Err(fault) => {
                let kind = if matches!(fault, Unreadable::OtherVersion { .. }) { "version" } else { "corrupt" };
                self.faults.note(now, who, kind, &format!("has a value that {fault}"));
                let header = Header::of_other_version(value, &Record::versions());
                return Err(header.map(|header| (header.leaving, header.members)));
            }
        };
        let ours = self.cluster.config().period;
        let theirs = Duration::from_micros(record.period_us);
        if theirs != ours {
            let what = format!("has cluster.period {theirs:?}, this host {ours:?}; set the same one on all hosts");
            self.faults.note(now, who, "period", &what);
            return Err(Some((record.leaving, record.members)));
        }
        Ok(record)
    }

    /// Status of this host in the cluster. Beside members whose slots are unknown it is as if the cluster were lost: those do
    /// the same, so that slots never exceed the device's.
    fn status(&self, now: Instant) -> Status {
        let is_blind = self.totals.unread_now() > 0 || self.has_wrong_clock(now);
        if is_blind { Status::Lost } else { self.cluster.status(now) }
    }

    /// True if more of the other hosts' clocks are far from this host's than near it. Those hosts use slots that this host does
    /// not see, and do not see those of this host. False while this host's reports do not come back: others' may be as late.
    fn has_wrong_clock(&self, now: Instant) -> bool {
        let (config, own) = (self.cluster.config(), self.cluster.last_own());
        let missed = own.map(|own| config.period_at(now).saturating_sub(own.saturating_add(1)));
        if self.far_clocks.is_empty() || missed.is_none_or(|missed| missed >= config.lease) {
            return false;
        }
        let members = self.cluster.members(now);
        let others = members.filter(|(name, _)| *name != self.settings.host && !self.far_clocks.contains(*name));
        let near = others.filter(|(_, presence)| !matches!(presence, Presence::Expired(_))).count();
        self.far_clocks.len() > near
    }

    /// The trouble of members whose reports this host cannot read; `None` without such members.
    fn mixed(&self) -> Option<String> {
        let unread = self.totals.unread_now();
        let members = counted(unread, "member");
        (unread > 0).then(|| {
            format!(
                "the reports of {members} are in a format that this host cannot read, or of another cluster.period; run the same version of Evenkeel, with the same cluster.period, on all hosts"
            )
        })
    }

    /// Decides all periods that are due, and notes if the cluster was lost or restored.
    pub(crate) fn decide(&mut self, now: Instant) {
        loop {
            let status = self.status(now);
            let Some(view) = self.cluster.poll(now) else { break };
            if let Status::Shared { ramp } = status {
                self.participant.decide(&view, ramp);
            }
            let mut state = lock(&self.state);
            (state.decided_period, state.decided_periods_total) = (Some(view.period), state.decided_periods_total + 1);
        }
        let status = self.status(now);
        let lost = |status: &Status| *status == Status::Lost;
        match (lost(&self.status), lost(&status)) {
            (false, true) => {
                let mixed = self.mixed();
                let clock = self.has_wrong_clock(now).then_some(WRONG_CLOCK);
                let why = mixed.as_deref().or(self.fault()).or(clock);
                let why = why.unwrap_or("the reports of this host do not come back from etcd");
                tracing::warn!(
                    "cluster lost: {why}; this host decides alone now: it takes the smallest safe number of slots (requests in flight), and more only as its own latency allows"
                );
                self.participant.alone();
                lock(&self.state).lost_total += 1;
            }
            (true, false) => {
                tracing::info!("cluster restored: this host decides its slots from the reports of all hosts again");
            }
            _ => {}
        }
        self.status = status;
    }

    /// Publishes the state for the API, unless it was published a moment ago: each change of another member's key wakes the
    /// driver, and the state has all members. Returns when it is due, by the clock of `totals`.
    fn show(&mut self, now: Instant) -> Instant {
        let present = self.elapsed();
        if present < self.shown_at {
            return self.shown_at;
        }
        self.publish_state(now);
        let (longest, parts) = SHOWN_WITHIN;
        let part = Duration::from_nanos(self.cluster.config().period.as_nanos() / parts);
        self.shown_at = present + part.min(longest);
        Instant::FAR_FUTURE
    }

    pub(crate) fn publish_state(&mut self, now: Instant) {
        let mut state = lock(&self.state);
        let (status, mut because, ramp) = match self.status {
            Status::Shared { ramp } if ramp < 1.0 => {
                ("shared", format!("this host has joined and takes {:.0} % of its share of slots", 100.0 * ramp), ramp)
            }
            Status::Shared { ramp } => ("shared", "this host decides slots from the reports of all hosts".into(), ramp),
            Status::Holding { missed } => (
                "holding",
                format!(
                    "the reports of this host have not come back from etcd for {}: this host keeps its present slots until cluster.lease has passed",
                    counted(missed, "period")
                ),
                1.0,
            ),
            Status::Lost if self.totals.unread_now() > 0 => {
                ("lost", "this host decides its slots alone: it cannot read the reports of other members".into(), 0.0)
            }
            Status::Lost if self.has_wrong_clock(now) => {
                ("lost", format!("this host decides its slots alone: {WRONG_CLOCK}"), 0.0)
            }
            Status::Lost => {
                ("lost", "this host decides its slots alone, as its reports do not come back from etcd".into(), 0.0)
            }
        };
        if let Some(taken) = &self.taken {
            because += &format!(
                "; another running process is host {taken:?}, so that this process has taken another name: give each host its own name with cluster.host"
            );
        }
        (state.status, state.because, state.ramp) = (status.into(), because, ramp);
        let clock = || self.has_wrong_clock(now).then(|| WRONG_CLOCK.to_owned());
        state.error = self.fault().map(str::to_owned).or_else(|| self.mixed()).or_else(clock);
        let members = self.cluster.members(now).map(|(name, presence)| {
            let (presence, missed_periods) = described(presence);
            MemberState { name: name.to_owned(), presence, missed_periods }
        });
        state.members = members.collect();
        state.counted_members = self.cluster.size();
        state.totals = self.totals.state();
        state.shard = self.cluster.is_divided().then(|| self.cluster.shard().to_string());
        let shards = self.cluster.shards(now).map(|(name, presence, members)| {
            let (presence, missed_periods) = described(presence);
            ShardState { name: name.to_owned(), presence, missed_periods, members }
        });
        state.shards = shards.collect();
        state.age_s = self.cluster.last_own().map(|period| now.since(self.cluster.config().due(period)).as_secs_f64());
        state.ignored_total.clone_from(self.faults.counts());
        state.sent_bytes_total = self.access.traffic.sent.load(Ordering::Relaxed);
        state.received_bytes_total = self.access.traffic.received.load(Ordering::Relaxed);
    }
}

fn text(record: &Record) -> Option<String> {
    record.text().map_err(|error| tracing::error!("cluster: {error}")).ok()
}

fn described(presence: Presence) -> (String, u64) {
    let (presence, missed_periods) = match presence {
        Presence::Present => ("present", 0),
        Presence::Suspect(periods) => ("suspect", periods),
        Presence::Expired(periods) => ("expired", periods),
    };
    (presence.to_owned(), missed_periods)
}

#[cfg(test)]
#[path = "renamed_tests.rs"]
mod tests;
