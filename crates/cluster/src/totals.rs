//! Parts of tenants' totals: reservations, limits and guarantees that hold for the sum over all members. A guarantee is a total
//! of its own, divided like a limit.
//!
//! [`evenkeel_control::cluster::totals`] decides a tenant's part in one unit. This module has the units of all tenants, the
//! sums over the other members ([`Ledger`]), and the times at which the cluster counts as lost. Times are of a clock of this
//! host that is never set.
//!
//! In a divided cluster the other shards know a report of this host when a sum of this host's shard has it. Each sum names the
//! revision of the store up to which it has the reports of its shard, whichever host wrote it: a report that was read back with no
//! later revision is in the sum. A sum is as old as the time since it was read here. Clocks of other hosts do not matter.
//!
//! A member has expired when the store has ended its lease, or when a report of this host comes back that was made long after the
//! member's newest report was read here: the store has none in between. The member counts its lease from before it wrote that
//! report, so it had lost the cluster by then and stays within its safe part; the time until a part becomes free has two periods
//! more. What it reports later is later in the store than this host's claim, which it reads first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration as StdDuration;

use evenkeel_control::cluster::shard::Shard;
use evenkeel_control::cluster::totals::{Asked, Contact, Kept, Line, Share, Sums};
use evenkeel_control::pool::Demand;
use evenkeel_control::units::{Fraction, Fractions};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::{MAX_SUM_TOTALS, MAX_TOTALS, Record, Totals, tenant_of_total};
use evenkeel_policy::config;
use evenkeel_policy::figures::counted;
use evenkeel_policy::state::{TotalState, TotalsState};

use crate::kept::KeptParts;
use crate::ledger::{Ledger, News};
use crate::participant::{Demands, Key, Parts};

/// Number of lengths of the lease for which the safe part of an expired member is kept free.
const REMEMBERED_LEASES: u64 = 20;
/// Number of parts of a period in which changed sums of shards are added up once.
const REFRESHES: u64 = 16;
/// Number of lengths of the lease after which the file for a restart gets a new time.
const KEPT_STEP: u32 = 5;
/// Number of this host's newest reports of which the time is kept.
const SENT: usize = 32;
/// Number of the period in which this host starts, by its own count: sums from before have smaller ones.
const FIRST_PERIOD: u64 = 10_000;

/// A report: its period, and the number of earlier reports about this period.
type Number = (u64, u8);

/// The parts of a tenant that has no share of its totals.
pub(crate) fn least() -> Fractions {
    let least = [Fraction::of(0.0); 2];
    Fractions { reservation: least, limit: least }
}

/// A tenant's share in one unit.
#[derive(Clone, Debug)]
struct Unit {
    share: Share,
    /// When the share was made, or when it lost the cluster.
    since: Instant,
    /// When the first report was made that has not come back; `None` if all have.
    awaited: Option<Instant>,
}

impl Unit {
    /// Notes that the cluster is lost, or was lost before and no earlier report counts any more.
    fn lose(&mut self, now: Instant) {
        if self.share.contact() == Contact::Shared {
            self.since = now;
        }
        self.share.lost();
        self.awaited = None;
    }
}

/// A tenant's shares in requests and in bytes; `None` in a unit in which the tenant has neither a reservation nor a limit.
#[derive(Clone, Debug, Default)]
struct Tenant {
    units: [Option<Unit>; 2],
    /// The shares before a restart of this process, until the first measurement.
    kept: [Option<Kept>; 2],
    /// The demand at the last measurement.
    before: Demand,
    /// Mean payload of the requests that arrived in the last period with requests, in bytes.
    mean_bytes: f64,
    /// True if the newest sum of this host's shard is full, and lacks this tenant: the other shards do not know its parts.
    is_left_out: bool,
}

impl Tenant {
    /// Takes in the demand of `periods` periods, each `period_s` seconds long. `create`: a unit that has a reservation or a limit
    /// now, but no share, gets one.
    fn measure(
        &mut self,
        now: Instant,
        demand: &Demand,
        periods: f64,
        period_s: f64,
        others: &[Sums; 2],
        create: bool,
    ) {
        let before = std::mem::replace(&mut self.before, *demand);
        // Counters of a tenant that left and joined again begin anew.
        let more = |after: [u64; 2], before: [u64; 2]| [0, 1].map(|n| after[n].saturating_sub(before[n]) as f64);
        let (arrived, served) = (more(demand.arrived, before.arrived), more(demand.served, before.served));
        if arrived[0] > 0.0 {
            self.mean_bytes = arrived[1] / arrived[0];
        }
        let queued = [demand.queued as f64, demand.queued as f64 * self.mean_bytes];
        for n in [0, 1] {
            let (reservation, limit) = (demand.reservation[n], demand.limit[n]);
            let total = if limit > 0 { limit } else { reservation };
            // Of a unit that is not in the first report, the others know nothing.
            let kept = self.kept[n].take();
            if total == 0 {
                self.units[n] = None;
                continue;
            }
            if self.units[n].is_none() && !create {
                continue;
            }
            let unit = self.units[n].get_or_insert_with(|| {
                let mut share = match &kept {
                    Some(kept) => Share::resumed(reservation, limit, kept),
                    None => Share::new(reservation, limit),
                };
                share.observe(&others[n], false);
                Unit { share, since: now, awaited: None }
            });
            unit.share.set_totals(reservation, limit);
            let whole = total as f64 * period_s;
            let asked = Asked {
                requests: arrived[0],
                arrived: arrived[n] / periods / whole,
                queued: queued[n] / whole,
                served: served[n] / periods / whole,
            };
            unit.share.measure(&asked, periods);
        }
    }

    /// The figures to report now, by `line`.
    fn lines(&mut self, now: Instant, line: fn(&mut Share) -> Line) -> [Sums; 2] {
        self.units.each_mut().map(|unit| {
            unit.as_mut().map_or(Sums::default(), |unit| {
                unit.awaited = unit.awaited.or(Some(now));
                Sums { members: 1, lines: line(&mut unit.share), reserved: 0.0 }
            })
        })
    }

    fn observe(&mut self, others: &[Sums; 2], own_is_back: bool) {
        for (unit, others) in self.units.iter_mut().zip(others) {
            if let Some(unit) = unit {
                unit.share.observe(others, own_is_back);
                unit.awaited = unit.awaited.filter(|_| !own_is_back);
            }
        }
    }

    /// Takes in that a report that was `made` at this time is back, and not the `newest` one.
    fn observe_earlier(&mut self, others: &[Sums; 2], made: Instant, newest: Instant) {
        for (unit, others) in self.units.iter_mut().zip(others) {
            if let Some(unit) = unit.as_mut().filter(|unit| unit.awaited.is_some_and(|awaited| made >= awaited)) {
                unit.share.observe_earlier(others);
                unit.awaited = Some(newest);
            }
        }
    }

    fn fractions(&self) -> Fractions {
        // A total that a reload sets in a unit without one applies before it is measured: nothing of it is reported yet.
        let part = |n: usize, of: fn(&Share) -> f64| {
            self.units[n].as_ref().map_or(Fraction::of(0.0), |unit| Fraction::of(of(&unit.share)))
        };
        Fractions {
            reservation: [part(0, Share::reservation), part(1, Share::reservation)],
            limit: [part(0, Share::limit), part(1, Share::limit)],
        }
    }
}

/// This host's shares of all tenants' totals.
pub(crate) struct Sharing {
    incarnation: u64,
    period: Duration,
    /// Time without a report that comes back, after which the cluster counts as lost.
    lease: Duration,
    /// Time from then until all other members keep this host's safe parts free.
    alone_after: Duration,
    /// Number of periods beyond its lease after which a member without reports counts as expired: the safe time, and one for
    /// clocks that run differently and a member that is slow to notice.
    silent: u64,
    ledger: Ledger,
    /// When changed sums of shards were added up last.
    refreshed: Instant,
    tenants: BTreeMap<Key, Tenant>,
    /// The shares before a restart of this process, until the first report.
    kept: KeptParts,
    /// Number of tenants beyond those that a report may have.
    excess: u64,
    /// The totals by host at the newest report, for the state.
    by_host: Vec<TotalState>,
    /// When this host's newest reports were made.
    sent: BTreeMap<Number, Instant>,
    /// The newest report.
    newest: Option<Number>,
    /// The newest report that was read back.
    read: Option<Number>,
    /// When the newest report was made that was read back; `None` if none was.
    read_made: Option<Instant>,
    /// Revision of the store at which the report was written that is taken in next; 0: not known.
    revision: u64,
    /// Revision of the store up to which the reports of this host's shard were taken in.
    taken_in: u64,
    /// The newest reports of this host that were read back, with their revisions, which rise.
    read_at: VecDeque<(u64, Number)>,
    /// Until when no report counts as back, because sums that the watch has found may be of shards whose parts are not known.
    unsettled_until: Instant,
    /// The lease in the store.
    in_store: Duration,
    /// Until when no report counts as back, because the store has lost reports.
    distrusted_until: Instant,
    /// When the newest report was made that all other members can know.
    back: Instant,
    /// When demand was measured last.
    measured: Instant,
}

impl Sharing {
    /// Shares of no tenants. `host` and `incarnation`: of this host's reports.
    pub(crate) fn new(cluster: &config::Cluster, host: &str, incarnation: u64) -> Self {
        let control = cluster.control();
        let periods = |number: u64| Duration::from_nanos(control.period.as_nanos().saturating_mul(number));
        // In etcd a lease may be longer than here.
        let in_etcd = Duration::from_secs(cluster.lease_seconds());
        Self {
            incarnation,
            period: control.period,
            lease: periods(control.lease),
            alone_after: in_etcd + in_etcd + periods(control.safe),
            silent: control.safe.saturating_add(1),
            ledger: Ledger::new(host, control.lease + control.safe),
            refreshed: Instant::ZERO,
            tenants: BTreeMap::new(),
            kept: KeptParts::new(),
            excess: 0,
            by_host: Vec::new(),
            sent: BTreeMap::new(),
            newest: None,
            read: None,
            read_made: None,
            revision: 0,
            taken_in: 0,
            read_at: VecDeque::new(),
            unsettled_until: Instant::ZERO,
            in_store: in_etcd,
            distrusted_until: Instant::ZERO,
            back: Instant::ZERO,
            measured: Instant::ZERO,
        }
    }

    /// Time after the last sign of this process for which another one may take over its safe parts: the others keep these parts
    /// free for longer, also if the cluster was lost already.
    pub(crate) fn kept_for(&self) -> StdDuration {
        let remembered = StdDuration::from(self.lease).saturating_mul(REMEMBERED_LEASES as u32);
        remembered.saturating_sub(StdDuration::from(self.lease + self.alone_after))
    }

    /// Step of the time in the file for a restart.
    pub(crate) fn kept_step(&self) -> StdDuration {
        StdDuration::from(self.lease).saturating_mul(KEPT_STEP)
    }

    /// Takes over the shares of the process before this one, for the tenants of the first report.
    pub(crate) fn resume(&mut self, kept: KeptParts) {
        self.kept = kept;
    }

    /// Makes these counters the begin of demand, for a process that has served requests before.
    pub(crate) fn count_from(&mut self, demands: &Demands) {
        let counted = |(key, before): (&Key, &Demand)| (key.clone(), Tenant { before: *before, ..Tenant::default() });
        self.tenants = demands.iter().take(MAX_TOTALS).map(counted).collect();
    }

    /// The shares that a restart may take over, by the newest report.
    pub(crate) fn kept(&self) -> KeptParts {
        let of = |tenant: &Tenant| tenant.units.each_ref().map(|unit| unit.as_ref().and_then(|unit| unit.share.kept()));
        let kept = self.tenants.iter().map(|(key, tenant)| (key.clone(), of(tenant)));
        kept.filter(|(_, units)| units.iter().any(Option::is_some)).collect()
    }

    /// True if the other members know shares of this host, and the cluster is lost, or was before a restart and no report was
    /// made since.
    pub(crate) fn is_apart(&self) -> bool {
        let is_apart = |share: &Share| share.had_contact() && matches!(share.contact(), Contact::Lost | Contact::Alone);
        !self.kept.is_empty() || self.units().any(|unit| is_apart(&unit.share))
    }

    /// Takes in the demand since the last measurement. Returns true if an early report is of use. `create`: totals that are new
    /// get a share, of which nothing is in use until it is reported: false where no early report can follow.
    pub(crate) fn measure(&mut self, now: Instant, demands: &Demands, create: bool) -> bool {
        let period_s = self.period.as_secs_f64();
        // Not close to 0, whatever the clock did.
        let periods = (now.since(self.measured).as_secs_f64() / period_s).max(0.05);
        self.measured = now;
        let unread = self.ledger.unread();
        for (key, tenant) in &mut self.tenants {
            if let Some(demand) = demands.get(key) {
                tenant.measure(now, demand, periods, period_s, &self.ledger.others(key), create);
                // A share may be new.
                tenant.units.iter_mut().flatten().for_each(|unit| unit.share.set_unread(unread));
            }
        }
        self.units().any(|unit| unit.share.is_due())
    }

    /// Takes in the demand since the last measurement; returns the figures for the report about `period`. Parts may shrink: the
    /// smaller parts have to apply before the report is sent.
    pub(crate) fn report(&mut self, now: Instant, period: u64, demands: &Demands) -> Totals {
        self.tenants.retain(|key, _| demands.contains_key(key));
        self.ledger.next_period();
        self.excess = 0;
        let mut kept = std::mem::take(&mut self.kept);
        for key in demands.keys() {
            if self.tenants.contains_key(key) {
                continue;
            }
            if self.tenants.len() >= MAX_TOTALS {
                self.excess += 1;
                continue;
            }
            let kept = kept.remove(key).unwrap_or_default();
            self.tenants.insert(key.clone(), Tenant { kept, ..Tenant::default() });
        }
        self.measure(now, demands, true);
        self.by_host = self.ledger.by_host();
        self.figures(now, (period, 0), Share::report)
    }

    /// Returns the figures for a further report about the period of the newest report, and how many there were before. Parts
    /// may shrink, as with [`Self::report`].
    pub(crate) fn early_report(&mut self, now: Instant) -> Option<(u8, Totals)> {
        let (period, before) = self.newest?;
        let early = before.checked_add(1)?;
        Some((early, self.figures(now, (period, early), Share::early_report)))
    }

    fn figures(&mut self, now: Instant, number: Number, line: fn(&mut Share) -> Line) -> Totals {
        // Each report has a time of its own, later than those of all reports before.
        let before = self.sent.values().max().copied();
        let made = before.map_or(now, |before| now.max(before + Duration::from_nanos(1)));
        let mut totals = Totals::new();
        for ((pool, name), tenant) in &mut self.tenants {
            totals.entry(pool.clone()).or_default().insert(name.clone(), tenant.lines(made, line));
        }
        self.sent.insert(number, made);
        while self.sent.len() > SENT
            && let Some(oldest) = self.sent.iter().min_by_key(|(_, made)| **made).map(|(number, _)| *number)
        {
            self.sent.remove(&oldest);
        }
        self.newest = Some(number);
        totals
    }

    /// Notes that a watch begins, with the values of `present` members of `shard`: each is to be passed to [`Self::heard`],
    /// that of this host last.
    pub(crate) fn begin(&mut self, now: Instant, shard: Shard, present: &BTreeSet<&str>) {
        // A store that was restored counts from a lower revision on. It may have a new report of this host already.
        let revision = self.revision;
        if (revision < self.taken_in || !present.contains(self.ledger.own())) && self.was_read_lately(now) {
            self.went_back(now);
        }
        self.taken_in = revision;
        self.read_at.retain(|(read, _)| *read <= revision);
        if shard != self.ledger.shard() {
            for tenant in self.tenants.values_mut().filter(|tenant| tenant.is_left_out) {
                tenant.is_left_out = false;
                tenant.units.iter_mut().flatten().for_each(|unit| unit.since = now);
            }
        }
        self.ledger.keep_outside(now, shard);
        self.ledger.begin(now, shard, present);
        self.ledger.refresh();
        self.count_unread();
        self.observe_all();
    }

    /// Takes in a member's report, in the order of the store. `divided`: members of other shards know only sums.
    pub(crate) fn heard(&mut self, now: Instant, host: &str, record: &Record, divided: bool) {
        let news = self.news(now, record);
        let changed = if record.leaving {
            self.ledger.put(host, None)
        } else {
            self.ledger.put_news(host, record.totals.clone(), news)
        };
        self.count_unread();
        self.observe(&changed);
        self.taken_in = self.revision;
        let is_own = host == self.ledger.own();
        let is_ours = is_own && record.incarnation == self.incarnation && !record.leaving;
        let number = (record.period, record.early);
        let is_of_another = is_own && record.incarnation != self.incarnation;
        if (is_ours && self.is_of_the_past(number)) || (is_of_another && self.was_read_lately(now)) {
            self.went_back(now);
        } else if let Some(&made) = self.sent.get(&number).filter(|_| is_ours) {
            self.read_made = self.read_made.max(Some(made));
            let ended = self.ledger.end_silent(now, made);
            self.observe(&ended);
            self.read = Some(number);
            self.read_at.push_back((self.revision, number));
            if self.read_at.len() > SENT {
                self.read_at.pop_front();
            }
            if !divided {
                self.returned(now, number, None);
            } else if self.revision > 0 {
                // Sums come on a way of their own, and may be read before the reports in them.
                self.sum_returned(now);
            }
        }
    }

    /// Notes that the values that are taken in next, all values of a watch or a member's report, are of this revision of the
    /// store.
    pub(crate) fn note_revision(&mut self, revision: u64) {
        self.revision = revision;
    }

    /// Revision of the store up to which [`Self::together`] has all reports of this host's shard; 0: some are missing.
    pub(crate) fn added_up_to(&self) -> u64 {
        if self.ledger.is_overfull() { 0 } else { self.taken_in }
    }

    /// Revision of the store up to which the reports of this host's shard were taken in.
    pub(crate) fn taken_in(&self) -> u64 {
        self.taken_in
    }

    /// Number of members that count at present, this host included.
    pub(crate) fn members(&self) -> u64 {
        self.ledger.members()
    }

    /// True of a report of this host that is older than one that was read back before.
    fn is_of_the_past(&self, number: Number) -> bool {
        match self.sent.get(&number) {
            Some(made) => self.read_made.is_some_and(|newest| *made < newest),
            // Made long ago; a store that was away for long may still hold the newest one that was read back, or a later one.
            None => self.read.is_some_and(|newest| number < newest),
        }
    }

    /// True if a report of this host is in the store, unless the store has lost it: its lease cannot have ended yet.
    fn was_read_lately(&self, now: Instant) -> bool {
        self.read_made.is_some_and(|made| now.since(made) < self.in_store)
    }

    /// Notes that the store has lost reports that were in it, as after a restore from an older state. The claims of other members
    /// in it may be older than their parts. Within a lease each member notices, or has lost the cluster and expires.
    fn went_back(&mut self, now: Instant) {
        tracing::warn!(
            "cluster: etcd has lost newer reports of this host, as after a restore from an older snapshot: for {:?}, until all hosts have reported again, this host uses at most its safe part (1/members) of each limit and guarantee; if no etcd was restored, check that all addresses in cluster.etcd are of one etcd",
            StdDuration::from(self.in_store)
        );
        self.distrusted_until = now + self.in_store;
        self.read_at.clear();
        self.tenants.values_mut().flat_map(|tenant| &mut tenant.units).flatten().for_each(|unit| unit.lose(now));
    }

    /// The time for which a member's report counts if no other follows; `None`: until the store says that the member has expired.
    /// The member counts its lease from before it wrote the report, which is earlier than the report is read here.
    fn news(&self, now: Instant, record: &Record) -> Option<News> {
        let periods = record.lease.saturating_add(self.silent);
        let counts_for = Duration::from_nanos(self.period.as_nanos().saturating_mul(periods));
        let report = (record.incarnation, record.period, record.early);
        (record.lease > 0).then_some(News { report, read: now, counts_for })
    }

    /// Takes in that a member's report cannot be read, because it has another version or another period, or that such a member
    /// is `leaving`.
    pub(crate) fn unread(&mut self, host: &str, leaving: bool) {
        let changed = self.ledger.put_unread(host, leaving);
        self.count_unread();
        self.observe(&changed);
    }

    /// Takes in that a member has written a value that is no report of one host.
    pub(crate) fn unusable(&mut self, host: &str) {
        self.ledger.put_unusable(host);
    }

    /// Takes in that a shard's sum over this number of members cannot be read. `None`: the last such member has left.
    pub(crate) fn unread_sum(&mut self, now: Instant, shard: Shard, members: Option<u64>) {
        self.ledger.put_unread_sum(now, shard, members);
        self.count_unread();
    }

    /// Number of other members whose reports cannot be read and count at present: the slots of these are unknown.
    pub(crate) fn unread_now(&self) -> u64 {
        self.ledger.unread_now()
    }

    /// Makes the number of members whose reports cannot be read count in all shares.
    fn count_unread(&mut self) {
        let unread = self.ledger.unread();
        let units = self.tenants.values_mut().flat_map(|tenant| &mut tenant.units).flatten();
        units.for_each(|unit| unit.share.set_unread(unread));
    }

    /// Takes in the sum of a shard that was written now, in the order of the store: number of members, and their figures. `None`:
    /// the shard's last member has left. `revision`: of the store, up to which the sum has the reports of its shard.
    pub(crate) fn summed(&mut self, now: Instant, shard: Shard, revision: u64, sum: Option<(u64, Totals)>) {
        self.found(now, shard, 0, revision, sum);
    }

    /// As [`Self::summed`], of a sum that was written this number of periods ago.
    pub(crate) fn found(&mut self, now: Instant, shard: Shard, age: u64, revision: u64, sum: Option<(u64, Totals)>) {
        let present = FIRST_PERIOD + now.as_nanos() / self.period.as_nanos().max(1);
        // A member whose clock is off knows fewer members than it adds up.
        let sum = sum.map(|(members, totals)| {
            let added_up = totals.values().flat_map(BTreeMap::values).flatten().map(|sums| sums.members).max();
            (members.max(added_up.unwrap_or(0)), totals)
        });
        let counts = self.ledger.put_sum_of(shard, present.saturating_sub(age).max(1), revision, sum);
        if !counts || shard != self.ledger.shard() {
            return;
        }
        if let Some((_, totals)) = self.ledger.own_sum() {
            self.leave_out(now, &totals);
            self.sum_returned(now);
        }
    }

    /// Takes in that the watch has found a sum of unknown age. If its shard has members, their parts are not known here. Within a
    /// lease one of them writes the next sum, or all have lost the cluster.
    pub(crate) fn found_undated(&mut self, now: Instant, shard: Shard) {
        if self.ledger.is_outside(&shard) {
            self.unsettled_until = now + self.lease;
        }
    }

    /// Notes that all members can know those reports of this host that are in the newest sum of its shard. Members of smaller
    /// shards within this one may have parts by reports that are in the sums of these, and that are yet to be read here.
    fn sum_returned(&mut self, now: Instant) {
        let Some((revision, totals)) = self.ledger.own_sum() else { return };
        if self.ledger.revision_within() > self.taken_in {
            return;
        }
        let newest = self.read_at.iter().rev().find(|(read, _)| *read <= revision);
        if let Some((_, number)) = newest.copied() {
            self.returned(now, number, Some(&totals));
        }
    }

    /// Notes which tenants are not in the sum of this host's shard because it has no room for more: their parts do not grow, and
    /// are no larger than the safe parts.
    fn leave_out(&mut self, now: Instant, totals: &Totals) {
        let is_full = totals.values().map(BTreeMap::len).sum::<usize>() >= MAX_SUM_TOTALS;
        for ((pool, name), tenant) in &mut self.tenants {
            let is_in_sum = totals.get(pool).is_some_and(|tenants| tenants.contains_key(name));
            tenant.is_left_out = is_full && !is_in_sum;
            if !tenant.is_left_out {
                continue;
            }
            for unit in tenant.units.iter_mut().flatten().filter(|unit| unit.share.contact() == Contact::Shared) {
                unit.lose(now);
            }
        }
    }

    /// Notes that all members can know this report of this host; with `within` only of the tenants in these figures.
    fn returned(&mut self, now: Instant, number: Number, within: Option<&Totals>) {
        let Some(&made) = self.sent.get(&number) else { return };
        self.back = self.back.max(made);
        // With a slow store the next report is made before this one is back.
        let newest = self.newest.filter(|newest| *newest != number);
        let distrusted_until = self.distrusted_until.max(self.unsettled_until);
        if now.since(made) >= self.lease || now < distrusted_until || self.ledger.is_overfull() {
            return;
        }
        let newest_made = newest.map(|newest| self.sent.get(&newest).copied().unwrap_or(now));
        self.ledger.refresh();
        for (key, tenant) in &mut self.tenants {
            let (pool, name) = key;
            if within.is_none_or(|totals| totals.get(pool).is_some_and(|tenants| tenants.contains_key(name))) {
                // Without sums, nothing is left out of them.
                tenant.is_left_out = false;
                let others = self.ledger.others(key);
                match newest_made {
                    None => tenant.observe(&others, true),
                    Some(newest_made) => tenant.observe_earlier(&others, made, newest_made),
                }
            }
        }
    }

    /// Notes that the lease of a member has ended.
    pub(crate) fn ended(&mut self, now: Instant, host: &str) {
        let changed = self.ledger.end(now, host);
        self.observe(&changed);
    }

    fn observe(&mut self, changed: &BTreeSet<Key>) {
        for key in changed {
            if let Some(tenant) = self.tenants.get_mut(key) {
                tenant.observe(&self.ledger.others(key), false);
            }
        }
    }

    fn observe_all(&mut self) {
        for (key, tenant) in &mut self.tenants {
            tenant.observe(&self.ledger.others(key), false);
        }
    }

    /// Does what is due by time. To be called at [`Self::deadline`], and after reports were taken in.
    pub(crate) fn keep_time(&mut self, now: Instant) {
        if now >= self.refresh_at() && self.ledger.refresh() {
            self.refreshed = now;
            self.observe_all();
        }
        let remembered = Duration::from_nanos(self.lease.as_nanos().saturating_mul(REMEMBERED_LEASES));
        let changed = self.ledger.forget(now, remembered);
        self.count_unread();
        self.observe(&changed);
        let (lost_after, lease, alone_after) = (self.lost_after(), self.lease, self.alone_after);
        let counted = self.tenants.values_mut().filter(|tenant| !tenant.is_left_out);
        for unit in counted.flat_map(|tenant| &mut tenant.units).flatten() {
            match unit.share.contact() {
                Contact::Shared if now >= lost_after => unit.lose(now),
                Contact::Lost if now >= unit.since + alone_after => unit.share.alone(),
                Contact::None if now >= unit.since + lease + alone_after => unit.share.alone(),
                _ => {}
            }
        }
    }

    /// When the cluster counts as lost if no report comes back until then.
    fn lost_after(&self) -> Instant {
        self.back + self.lease
    }

    /// When [`Self::keep_time`] has to be called next.
    pub(crate) fn deadline(&self) -> Instant {
        let due = |unit: &Unit| match unit.share.contact() {
            Contact::Shared => self.lost_after(),
            Contact::Lost => unit.since + self.alone_after,
            Contact::None => unit.since + self.lease + self.alone_after,
            Contact::Alone => Instant::FAR_FUTURE,
        };
        let refresh = if self.ledger.is_old() { self.refresh_at() } else { Instant::FAR_FUTURE };
        self.counted_units().map(due).min().unwrap_or(Instant::FAR_FUTURE).min(refresh)
    }

    /// When changed sums of shards are to be added up. All hosts' sums change at about the same time.
    fn refresh_at(&self) -> Instant {
        self.refreshed + Duration::from_nanos(self.period.as_nanos() / REFRESHES)
    }

    fn units(&self) -> impl Iterator<Item = &Unit> {
        self.tenants.values().flat_map(|tenant| &tenant.units).flatten()
    }

    /// The shares of tenants that are not left out of the sum of this host's shard.
    fn counted_units(&self) -> impl Iterator<Item = &Unit> {
        self.tenants.values().filter(|tenant| !tenant.is_left_out).flat_map(|tenant| &tenant.units).flatten()
    }

    /// Notes that this host leaves the cluster: it keeps no more than its safe parts, for requests that are queued.
    pub(crate) fn leave(&mut self) {
        for unit in self.tenants.values_mut().flat_map(|tenant| &mut tenant.units).flatten() {
            unit.share.lost();
            unit.awaited = None;
        }
    }

    /// The parts that apply now.
    pub(crate) fn parts(&self) -> Parts {
        self.each_part().map(|(key, part)| (key.clone(), part)).collect()
    }

    /// The parts that apply now, in the order of their keys.
    fn each_part(&self) -> impl Iterator<Item = (&Key, Fractions)> {
        self.tenants.iter().map(|(key, tenant)| (key, tenant.fractions()))
    }

    /// True if these are the parts that apply now.
    pub(crate) fn has_parts(&self, parts: &Parts) -> bool {
        self.tenants.len() == parts.len()
            && self.each_part().zip(parts).all(|((key, part), (other, before))| key == other && part == *before)
    }

    /// Sums over this host's shard, for the other shards.
    pub(crate) fn together(&self) -> Totals {
        self.ledger.together()
    }

    /// The state of all shares for the API; `None` if there are none.
    pub(crate) fn state(&self) -> Option<TotalsState> {
        let left_out = self.tenants.values().filter(|tenant| tenant.is_left_out).count() as u64;
        let excess_tenants = self.excess + left_out;
        let worst = self.counted_units().map(|unit| unit.share.contact()).max_by_key(|contact| match contact {
            Contact::Shared => 0,
            Contact::Lost => 1,
            Contact::Alone => 2,
            Contact::None => 3,
        });
        let Some(worst) = worst else {
            let by_host = self.by_host.clone();
            let is_empty = by_host.is_empty() && excess_tenants == 0;
            return (!is_empty).then(|| TotalsState { by_host, excess_tenants, ..TotalsState::default() });
        };
        let tenants: BTreeSet<_> = self.tenants.keys().map(|(pool, name)| (pool, tenant_of_total(name).0)).collect();
        let tenants = tenants.len() as u64;
        let had_contact = self.units().any(|unit| unit.share.had_contact());
        let wait = (self.lease + self.alone_after).as_secs_f64();
        let (contact, because) = match worst {
            Contact::Shared if self.ledger.unread() > 0 => (
                "shared",
                format!(
                    "the reports of {} are in a format that this host cannot read, or of another cluster.period: each of these members gets an equal part (1/members) of reservations, limits and guarantees, and demand divides the rest",
                    counted(self.ledger.unread(), "member")
                ),
            ),
            Contact::Shared => ("shared", "each member's part of reservations, limits and guarantees follows its demand".to_owned()),
            Contact::Lost => (
                "lost",
                "reports of this host do not come back from etcd: the host's parts of reservations, limits and guarantees do not grow, and of limits and guarantees it uses at most the safe parts (1/members)".to_owned(),
            ),
            Contact::Alone if had_contact => (
                "alone",
                "reports of this host do not come back from etcd: this host has its safe parts (1/members) of limits and guarantees, which the other members keep free".to_owned(),
            ),
            Contact::Alone => (
                "alone",
                format!(
                    "no report of this host has come back from etcd since its start, and this host does not know the number of members: this host serves an eighth of the reservations, limits and guarantees of {}",
                    counted(tenants, "tenant")
                ),
            ),
            Contact::None => (
                "none",
                format!(
                    "no report of this host has come back from etcd since its start: this host serves almost nothing (to control groups at least a 16th) of the reservations, limits and guarantees of {}, because the other members may use all of them; an eighth from {wait:.0} s after the start on",
                    counted(tenants, "tenant")
                ),
            ),
        };
        let (contact, by_host) = (contact.to_owned(), self.by_host.clone());
        Some(TotalsState { contact, because, tenants, excess_tenants, by_host })
    }
}

#[cfg(test)]
#[path = "totals_tests.rs"]
mod tests;
