//! Totals of a tenant over a cluster: each member's part of the tenant's reservation and limit.
//!
//! A tenant's volumes are served by several members; its reservation R and limit T hold for the sum over all members. Each
//! member computes its own part from its own demand and from sums over the other members' reports ([`Sums`]). No member leads,
//! and clocks do not matter: the reports are ordered by the store through which they go (revisions of etcd).
//!
//! **Parts or tags.** dmClock leaves the total undivided and moves a server's tags by foreign service, which requests carry as
//! ρ (service by reservation since the last own request) and δ (all service): R ← max(now, R + ρ / r), L ← max(now, L + δ / l).
//! NBD has no field for ρ and δ, so that servers learn of foreign service once a period *p*, after a delay *d*. Until then *n*
//! servers that become busy together serve up to n · l · (p + d), which exceeds a limit in a window of 3 s by (n − 1)(p + d) / 3
//! of it: 70 % for three servers and a second. Parts that sum up to at most the total bound the excess by the bursts alone, and
//! need no change of a tag for foreign service: R and L move by 1 / part. So this module computes parts.
//!
//! **Target.** With *a* = (1 − 1/64) · (1 − parts kept for expired members), the need nᵢ (what was asked in a period, as a
//! fraction of the total) and N members, each gets a minimum m = a / 64 N. Of the rest, D = a − N m:
//!
//! ```text
//! Σn ≥ D:  part = m + D · nᵢ / Σn
//! Σn < D:  part = m + nᵢ + (D − Σn) · vᵢ / Σv,   v = n if throttled, else 0; plus n / 8 + 1 / 64 N
//! ```
//!
//! **Closed loops.** A client that waits for answers asks for what its member's part lets pass: its need is the part, and needs
//! alone would keep any division as it is. Such a member has requests queued all the time, but few. It reports the lack ℓ: what
//! its need is below an equal part, at most the need itself and 1 / 16 N, so that a small need that is known well does not take
//! an equal part. All throttled members give for it in proportion to their needs t, at most half of their parts:
//!
//! ```text
//! F = min(Σℓ, D · Σt / max(Σn, D) / 2),   part + F · ℓᵢ / Σℓ − F · tᵢ / Σt
//! ```
//!
//! The slack of a 64th lets parts grow before others have shrunk, and absorbs that members compute from sums of different age.
//!
//! **Reservation.** A client gets the greater of its reservation and its share by weight, so a reservation is of use only where
//! the share is too small. A member reports its floor: the need while its service is short of its limit with requests queued,
//! which decays to an eighth of the need otherwise. Reservations are divided by floors, and never exceed the limit's part.
//!
//! **Early reports.** A member measures four times a period. When its newest report is back and by the newest sums it should
//! claim another part (by a 16th of it, and an eighth of an equal part), it reports at once, at most four times a period. An
//! early report claims no more than the others leave: claims beyond the total keep all from growing. A share that was never
//! reported is reported at the next measurement, as nothing of it is in use before.
//!
//! **Claims.** A part in use never exceeds the member's claim in the store. A member that wants less first uses less, and then
//! reports the smaller claim. A member that wants more reports the larger claim, waits until this report comes back, and then
//! takes at most what the claims of all others leave. Of two members whose claims exceed the total together, the one whose
//! report is later in the store's order sees the other's claim. So the parts in use never exceed the total, however old the
//! sums are and whatever reports are missing.
//!
//! **Lost and expired members.** A member without the cluster falls back to its safe part, or stays below it if it used less
//! ([`Share::lost`]). From the expiry on, the others keep this safe part free for it; after two leases and the safe time all of
//! them do, and the lost member takes its whole safe part ([`Share::alone`]). The safe part is s = min((1 − k) / N,
//! max(1 − R / T, (R / T − k) / N)), where k is the sum of the expired members' safe parts: N safe parts and those reach the
//! reservation, and one safe part leaves the reservation to the others where R allows that.
//! Of the reservation a lost member keeps 1 / N. A reservation is a floor, so what an expired member keeps is not taken off the
//! others' reservations.
//!
//! **Restarts.** A process keeps its safe part on disk, and writes it there before a report with a smaller one leaves
//! ([`Share::kept`]). A process that starts soon afterwards continues as one that lost the cluster ([`Share::resumed`]). Its safe
//! part is at most the one in any report that the store may hold, so the others keep it free from the expiry on. Two leases and
//! the safe time after the start they know of the expiry, as the earlier process had ended before. If the earlier process had its
//! safe part in use without the cluster, its newest report claims no less, and the part is in use at once.
//!
//! **Versions.** Members whose reports this member cannot read ([`Share::set_unread`]) count by their number alone: of N members,
//! u unread, those that read each other divide 1 − u / N by need, and safe parts are 1 / N. The members of the other version do
//! the same, so that the sum stays. A part grows one report later then, as no claims of the others order it.
//!
//! **Limits.** Others that forget an expired member, and members that start without ever having had contact, void the bound by
//! a safe part each. The order of the store holds among the reports that a member reads in one stream. Members of another
//! version that read late may exceed the total, by what they have not yet given up, for a lease at most.

mod line;
mod slow;

/// Fraction of a total that no member's target uses.
const SLACK: f64 = 1.0 / 64.0;
/// Fraction of a total that is divided equally, so that no member is without a part.
const LEAST: f64 = 1.0 / 64.0;
/// Weight of the need of a member that is not throttled when unneeded limit is divided; a throttled member has 1 more.
const SATISFIED: f64 = 1.0 / 8.0;
/// Weight, of all members together, that does not depend on their needs when unneeded limit is divided.
const IDLE: f64 = 1.0 / 64.0;
/// A need that changes by at most this many standard deviations of the number of requests is smoothed.
const NOISE: f64 = 3.0;
/// Part of a change within the noise that is followed at each measurement.
const GAIN: f64 = 1.0 / 4.0;
/// A member whose queue is below this part of its own part is throttled, but its need does not show by how much.
const SHALLOW: f64 = 1.0 / 8.0;
/// Part of an equal part that a member with little need may lack; a queue is compared with no smaller part.
const FIRST: f64 = 1.0 / 16.0;
/// Part of a change of the lack that is followed in a period.
const LACK_GAIN: f64 = 1.0 / 2.0;
/// A member with requests queued that uses less than this part of its limit is short of service by its device.
const SHORT: f64 = 31.0 / 32.0;
/// Part of the need for which a member that is not short asks a reservation, in the end.
const FLOOR: f64 = 1.0 / 8.0;
/// Part of its reservation that a member gives up in a period in which it is not short.
const FLOOR_LOSS: f64 = 1.0 / 8.0;
/// Part of a reservation by which all members together reserve more, as one may reserve more than it uses.
const RESERVED_MORE: f64 = 1.0 / 16.0;
/// An early report is due when the target is off the claim by more than this part of the larger of the two ...
const OFF: f64 = 1.0 / 16.0;
/// ... and by more than this part of an equal part.
const OFF_EQUAL: f64 = 1.0 / 8.0;
/// Number of times in a period that a member measures its demand, and may report.
pub const MEASUREMENTS: u64 = 4;
/// The largest part of its needs that a throttled member gives to those that lack.
const GIVEN: f64 = 1.0 / 2.0;
/// The largest need in a report, as a fraction of the total.
const MOST_NEED: f64 = 1e6;
/// Tolerance for figures that were rounded up in a report.
const ROUNDING: f64 = 1.001;
/// Number of members that a member assumes before it has had any contact.
const UNKNOWN_MEMBERS: u64 = 8;

/// Demand of a tenant on one member, and what it got, since the last measurement. Amounts are requests or payload bytes, as
/// fractions of what the tenant's total rate gives in a period; `arrived` and `served` are scaled to a whole period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    /// Number of requests that arrived.
    pub requests: f64,
    /// Amount that arrived.
    pub arrived: f64,
    /// Amount that is queued now.
    pub queued: f64,
    /// Amount that was served.
    pub served: f64,
}

/// A member's report on one tenant, in one unit (requests or bytes per second), from which members divide the tenant's
/// reservation and limit. All figures are fractions of the tenant's total in this unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Line {
    /// The member's need: the demand for the tenant on this member in a period, smoothed.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub need: f64,
    /// The same as `need` if requests were queued, 0 otherwise.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub throttled: f64,
    /// The part that the member's limit would have to grow by to be an equal share (the total divided by the members), as far
    /// as `need` does not show it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub lack: f64,
    /// The part of the need for which the member asks a reservation. It is smaller than the need if the member's throughput
    /// reaches its limit without a reservation.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub floor: f64,
    /// The member's claim: upper bound on the part of the total that it uses until its next report.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub claim: f64,
    /// The member's safe part: upper bound on the part of the total that it uses when it has lost the cluster.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub safe: f64,
}

#[cfg(feature = "serde")]
fn is_zero(figure: &f64) -> bool {
    *figure == 0.0
}

/// Sums over the other members' newest reports on one tenant, in one unit (requests or bytes per second).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Sums {
    /// Number of the other members whose reports count.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_none"))]
    pub members: u64,
    /// Their lines, added up.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_empty"))]
    pub lines: Line,
    /// Sum of [`Line::safe`] over the newest reports of expired members, which may still use that part.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub reserved: f64,
}

#[cfg(feature = "serde")]
fn is_none(members: &u64) -> bool {
    *members == 0
}

#[cfg(feature = "serde")]
fn is_empty(line: &Line) -> bool {
    *line == Line::default()
}

/// Contact of a member with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// No report of this member has come back yet.
    None,
    /// This member's reports come back.
    Shared,
    /// The cluster was lost, and the others may not have expired this member yet.
    Lost,
    /// The cluster was lost for so long that the others keep this member's safe part ([`Line::safe`]) free.
    Alone,
}

/// The figures of a [`Share`] that are kept on disk, so that a restarted process continues with them ([`Share::resumed`]).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Kept {
    /// The safe part ([`Line::safe`]): at most the one in any report that the store may hold.
    pub safe: f64,
    /// Number of members that served the tenant, this one included.
    pub members: u64,
    /// True if the safe part was in use because the cluster had been lost for long.
    pub is_alone: bool,
}

impl Kept {
    /// True if all figures are in the range in which [`Share::kept`] returns them, so that a file with them is not damaged.
    pub fn is_valid(&self) -> bool {
        (0.0..=ROUNDING).contains(&self.safe) && self.members > 0
    }
}

/// One member's share of a tenant's reservation and limit over a cluster, in one unit (requests or bytes per second): decides
/// from reports which fraction of them applies on this member. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Share {
    /// The reservation as a fraction of the limit; 0 if either is unset.
    ratio: f64,
    /// True if the member divides a reservation with the others.
    reserves: bool,
    need: f64,
    requests: f64,
    throttled: bool,
    lack: f64,
    floor: f64,
    /// Means of the part that was served and of the part in use, over about a period.
    means: [f64; 2],
    others: Sums,
    /// Number of members whose reports cannot be read.
    unread: u64,
    /// Rest that the members that cannot be read left when the newest report was made.
    left: f64,
    /// True if they left no less at the report before, which had come back by then.
    is_settled: bool,
    /// The claim in the newest report.
    claim: f64,
    /// The safe part that all others' safe parts leave, at most that in any report that may be the one in the store.
    safe: f64,
    /// The safe part in the newest report.
    newest_safe: f64,
    granted: f64,
    /// The smallest part in use since the last measurement.
    least_granted: f64,
    /// True if the newest report has come back.
    is_back: bool,
    /// True if the newest report was made after the last call of [`Share::lost`].
    is_new: bool,
    /// The smallest figures of the reports that have not come back; `None` if all have.
    awaited: Option<slow::Awaited>,
    contact: Contact,
    /// True if a report has come back at any time, before a restart included, so that the others know a safe part.
    had_contact: bool,
    /// Number of members before a restart, until a report has come back; 0 without a restart.
    remembered: u64,
}

impl Share {
    /// A share of which nothing is in use yet. `reservation` and `limit`: the tenant's totals in this unit; 0 = unset.
    pub fn new(reservation: u64, limit: u64) -> Self {
        let mut share = Self {
            ratio: 0.0,
            reserves: false,
            need: 0.0,
            requests: 0.0,
            throttled: false,
            lack: 0.0,
            floor: 0.0,
            means: [0.0; 2],
            others: Sums::default(),
            unread: 0,
            left: 0.0,
            is_settled: false,
            claim: 0.0,
            safe: 0.0,
            newest_safe: 0.0,
            granted: 0.0,
            least_granted: 0.0,
            is_back: false,
            is_new: false,
            awaited: None,
            contact: Contact::None,
            had_contact: false,
            remembered: 0,
        };
        share.set_totals(reservation, limit);
        share
    }

    /// The share of a process that starts soon after an earlier one of the same member has ended, without leaving the cluster.
    /// `kept`: of the earlier one's newest report. The share has lost the cluster, as after [`Share::lost`] or [`Share::alone`].
    pub fn resumed(reservation: u64, limit: u64, kept: &Kept) -> Self {
        let safe = kept.safe.clamp(0.0, 1.0);
        let (granted, contact) = if kept.is_alone { (safe, Contact::Alone) } else { (0.0, Contact::Lost) };
        let mut share = Self::new(reservation, limit);
        (share.safe, share.newest_safe) = (safe, safe);
        (share.granted, share.least_granted) = (granted, granted);
        (share.contact, share.had_contact, share.remembered) = (contact, true, kept.members);
        share
    }

    /// The figures to keep on disk for a restart; `None` if no other member knows a safe part of this one. After each call of
    /// [`Share::report`] or [`Share::early_report`] it has to be on disk before the report leaves.
    pub fn kept(&self) -> Option<Kept> {
        let members = self.members() as u64;
        self.had_contact.then(|| Kept { safe: self.safe, members, is_alone: self.contact == Contact::Alone })
    }

    /// True if a report of this member, or of an earlier process of it, has come back at any time.
    pub fn had_contact(&self) -> bool {
        self.had_contact
    }

    /// Takes over other totals. Parts are fractions, so that the part in use stays.
    pub fn set_totals(&mut self, reservation: u64, limit: u64) {
        self.reserves = reservation > 0;
        self.ratio =
            if reservation == 0 || limit == 0 { 0.0 } else { (reservation as f64 / limit as f64).clamp(0.0, 1.0) };
    }

    /// Takes in the demand since the last call, which was `periods` periods ago.
    pub fn measure(&mut self, asked: &Asked, periods: f64) {
        let sane = |figure: f64, most: f64| if figure.is_finite() { figure.clamp(0.0, most) } else { 0.0 };
        // The need is at most twice of what arrived, or of a part.
        let (arrived, queued) = (sane(asked.arrived, MOST_NEED / 4.0), sane(asked.queued, MOST_NEED / 4.0));
        let (requests, served) = (sane(asked.requests, f64::MAX), sane(asked.served, MOST_NEED));
        let periods = sane(periods, MOST_NEED);
        // A queue is drained in a period, if it is not longer than what a period brings or a part serves.
        let need = arrived + queued.min(arrived.max(self.granted));
        let noise = NOISE / libm::sqrt(1.0 + requests.max(self.requests));
        let is_noise = libm::fabs(need - self.need) <= noise * need.max(self.need);
        self.need = if is_noise { self.need + GAIN * (need - self.need) } else { need };
        let followed = periods.min(1.0);
        self.lack += LACK_GAIN * followed * (self.lacking(queued, served) - self.lack);
        for (mean, part) in self.means.iter_mut().zip([served, self.least_granted]) {
            *mean += followed * (part - *mean);
        }
        let [used, granted] = self.means;
        let is_short = queued > 0.0 && self.throttled && used < SHORT * granted;
        let kept = (self.floor * (1.0 - FLOOR_LOSS * followed)).max(FLOOR * self.need);
        self.floor = if is_short { self.need } else { kept.min(self.need) };
        (self.requests, self.throttled, self.least_granted) = (requests, queued > 0.0, self.granted);
    }

    /// True if an early report is of use: the member should claim another part by the newest sums, and its last report has come
    /// back; or this share was never reported, so that nothing of it can be in use. Ask after each measurement within a period.
    pub fn is_due(&self) -> bool {
        if self.contact == Contact::None {
            return !self.is_new;
        }
        let (claim, equal) = (self.possible(), 1.0 / (self.others.members + 1) as f64);
        let off = libm::fabs(claim - self.claim);
        self.contact == Contact::Shared && self.is_back && off > (OFF * claim.max(self.claim)).max(OFF_EQUAL * equal)
    }

    /// Returns the line to report at the end of a period. The part in use may shrink.
    pub fn report(&mut self) -> Line {
        self.claimed(self.target())
    }

    /// Returns the line to report within a period. It claims no more than the others leave, so that claims that exceed the
    /// total together shrink. Before the first contact it claims the same as [`Self::report`]. The part in use may shrink.
    pub fn early_report(&mut self) -> Line {
        self.claimed(if self.contact == Contact::None { self.target() } else { self.possible() })
    }

    fn claimed(&mut self, part: f64) -> Line {
        self.claim = match self.contact {
            Contact::None | Contact::Shared => part,
            // The report may come back at any time; it has to cover what is or will be in use.
            Contact::Lost | Contact::Alone => self.granted.max(self.safe),
        };
        self.granted = self.granted.min(self.claim);
        self.least_granted = self.least_granted.min(self.granted);
        if self.contact == Contact::Shared || self.contact == Contact::None {
            self.newest_safe = self.safe_part();
            self.safe = self.safe.min(self.newest_safe);
        }
        // Members that cannot be read have had the time between two reports to make room.
        let free = self.free();
        self.is_settled = self.is_back && self.contact == Contact::Shared && free <= self.left;
        self.left = free;
        (self.is_back, self.is_new) = (false, true);
        self.await_newest();
        Line {
            need: self.need,
            throttled: if self.throttled { self.need } else { 0.0 },
            lack: self.lack,
            floor: if self.reserves { self.floor } else { 0.0 },
            claim: self.claim,
            safe: self.newest_safe,
        }
    }

    /// Takes in the sums over the other members, in the order of the store: call this after each change that was read.
    /// `own_is_back`: the newest report of this member is among the reports that were read, and was made within the last lease.
    pub fn observe(&mut self, others: &Sums, own_is_back: bool) {
        let before = self.free();
        self.others = *others;
        self.make_room(before);
        let free = self.free();
        if own_is_back && self.is_new {
            (self.is_back, self.awaited, self.contact) = (true, None, Contact::Shared);
            (self.had_contact, self.remembered) = (true, 0);
        }
        let may_grow = self.unread == 0 || self.is_settled;
        if self.is_back && self.contact == Contact::Shared && may_grow {
            // With claims beyond the total, a part in use stays: the member whose claim is later waits.
            self.granted = self.granted.max(self.claim.min(free - others.lines.claim));
            // Safe parts are claims, too: all members may lose the cluster.
            self.safe = self.safe.max(self.newest_safe.min(free - others.lines.safe));
        }
    }

    /// Takes in the number of members whose reports cannot be read, because they have another version.
    pub fn set_unread(&mut self, members: u64) {
        let before = self.free();
        self.unread = members;
        self.make_room(before);
    }

    /// Shrinks the part in use, with those of the others, if what all may use is less than `before`.
    fn make_room(&mut self, before: f64) {
        let (free, claimed) = (self.free(), self.others.lines.claim + self.granted);
        if free < before && claimed > free {
            self.granted *= free / claimed;
        }
    }

    /// Notes that no report of this member has come back for a lease: call it before the others can expire the member, and
    /// only if no earlier report can reach the store any more. Call it again for each further lease without contact: of reports
    /// made before a call, which are read late, none counts.
    pub fn lost(&mut self) {
        if self.contact == Contact::Shared {
            (self.granted, self.contact) = (self.granted.min(self.safe), Contact::Lost);
        }
        (self.is_back, self.is_new, self.awaited) = (false, false, None);
    }

    /// Notes that two leases and the safe time have passed since [`Share::lost`]: all other members keep this member's safe
    /// part free, or have lost the cluster themselves. A member that has had no contact since its start takes an equal share
    /// among the members that it knows of, or among eight; the others know nothing of this part.
    pub fn alone(&mut self) {
        match self.contact {
            Contact::None => self.safe = self.safe_part(),
            Contact::Lost => {}
            Contact::Shared | Contact::Alone => return,
        }
        (self.granted, self.contact) = (self.safe, Contact::Alone);
    }

    /// Contact of this member with the cluster.
    pub fn contact(&self) -> Contact {
        self.contact
    }

    /// Fraction of the tenant's limit that this member may use now.
    pub fn limit(&self) -> f64 {
        self.granted
    }

    /// Fraction of the tenant's reservation that holds on this member now. The reservation on this member never exceeds the
    /// limit on this member.
    pub fn reservation(&self) -> f64 {
        let part = match self.contact {
            Contact::Lost | Contact::Alone => 1.0 / self.members(),
            Contact::None => self.granted / self.free().max(LEAST),
            Contact::Shared => {
                let (floors, read) = (self.floor + self.others.lines.floor, self.others.members as f64 + 1.0);
                let by_floor = if floors > 0.0 { self.floor / floors } else { 1.0 / read };
                (LEAST / read + (1.0 - LEAST) * by_floor) * (1.0 + RESERVED_MORE) * self.read_part()
            }
        };
        if self.ratio > 0.0 { part.min(self.granted / self.ratio).min(1.0) } else { part.min(1.0) }
    }

    /// Number of members that serve the tenant, this one included, as last seen.
    pub fn members(&self) -> f64 {
        let others = self.others.members.saturating_add(self.unread);
        let is_known = self.contact != Contact::None || others > 0;
        let members = if is_known { others.saturating_add(1) } else { UNKNOWN_MEMBERS };
        members.max(self.remembered) as f64
    }

    fn free(&self) -> f64 {
        (1.0 - self.others.reserved).clamp(0.0, 1.0) * self.read_part()
    }

    /// The members that can be read, this one included, as a fraction of all.
    fn read_part(&self) -> f64 {
        let read = self.others.members as f64 + 1.0;
        read / (read + self.unread as f64)
    }

    fn safe_part(&self) -> f64 {
        // Expired members, which may come back, keep theirs.
        let (members, kept) = (self.members(), self.others.reserved.min(1.0));
        let most = (1.0 - kept) / members;
        if self.ratio > 0.0 { most.min((1.0 - self.ratio).max((self.ratio - kept) / members)) } else { most }
    }

    /// The part that this member should have by the newest sums; see the module's documentation.
    fn target(&self) -> f64 {
        if self.others.members == 0 && self.unread == 0 && self.others.reserved <= 0.0 {
            return 1.0;
        }
        let members = (self.others.members + 1) as f64;
        let all = self.free() * (1.0 - SLACK);
        let (least, divided) = (LEAST * all / members, all * (1.0 - LEAST));
        let needs = self.need + self.others.lines.need;
        let throttled = if self.throttled { self.need } else { 0.0 };
        let all_throttled = throttled + self.others.lines.throttled;
        let by_need = if needs >= divided {
            if needs > 0.0 { divided * self.need / needs } else { 0.0 }
        } else {
            let own = throttled + SATISFIED * self.need + IDLE / members;
            let weights = all_throttled + SATISFIED * needs + IDLE;
            self.need + (divided - needs) * own / weights
        };
        let lacks = self.lack + self.others.lines.lack;
        let part = least + by_need;
        if lacks <= 0.0 || all_throttled <= 0.0 {
            return part;
        }
        let given = lacks.min(GIVEN * divided * all_throttled / needs.max(divided));
        (part + given * (self.lack / lacks - throttled / all_throttled)).clamp(least.min(all), all)
    }

    /// The target, as far as the claims of the others leave it, or the part in use.
    fn possible(&self) -> f64 {
        self.target().min(self.granted.max(self.free() - self.others.lines.claim))
    }

    /// The part that this member lacks for an equal one, if it has few requests queued all the time.
    fn lacking(&self, queued: f64, served: f64) -> f64 {
        // A queue that other bounds than the limit cause leaves a part unused.
        if queued <= 0.0 || served < self.granted / 2.0 {
            return 0.0;
        }
        let equal = 1.0 / (self.others.members + 1) as f64;
        let is_shallow = 1.0 - queued / (SHALLOW * self.granted.max(FIRST * equal));
        is_shallow.max(0.0) * (self.need + FIRST * equal).min(equal - self.need).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arrived: f64, queued: f64) -> Asked {
        Asked { requests: 10_000.0, arrived, queued, served: arrived }
    }

    fn others(members: u64, need: f64, claim: f64) -> Sums {
        Sums { members, lines: Line { need, claim, ..Line::default() }, reserved: 0.0 }
    }

    fn report(share: &mut Share, asked: &Asked) -> Line {
        share.measure(asked, 1.0);
        share.report()
    }

    #[test]
    fn a_larger_part_waits_for_the_report_and_for_the_others() {
        let mut share = Share::new(0, 4_000);
        assert_eq!(share.limit(), 0.0);
        share.observe(&others(2, 0.4, 0.7), false);
        let line = report(&mut share, &asked(0.4, 0.0));
        assert!(line.claim > 0.45 && share.limit() == 0.0, "{line:?}");
        share.observe(&others(2, 0.4, 0.7), true);
        assert!((share.limit() - 0.3).abs() < 1e-12, "{share:?}");
        share.observe(&others(2, 0.4, 0.5), false);
        assert!((share.limit() - line.claim).abs() < 1e-12, "{share:?}");
        // A smaller part is in force before it is reported.
        let line = report(&mut share, &asked(0.0, 0.0));
        assert!(line.claim < 0.4 && (share.limit() - line.claim).abs() < 1e-12, "{line:?}");
    }

    #[test]
    fn an_early_report_is_due_when_demand_moves_and_claims_what_the_others_leave() {
        let mut share = Share::new(0, 4_000);
        let rest = others(2, 0.8, 0.8);
        share.observe(&rest, false);
        assert!(share.is_due(), "it was never reported");
        let (first, early) = (share.clone().report(), share.clone().early_report());
        assert_eq!(early, first, "the first report");
        report(&mut share, &asked(0.1, 0.0));
        assert!(!share.is_due(), "the first report is not back");
        share.observe(&rest, true);
        share.measure(&asked(0.1, 0.0), 0.25);
        assert!(!share.is_due(), "nothing has moved: {share:?}");
        share.measure(&asked(0.6, 0.3), 0.25);
        assert!(share.is_due(), "{share:?}");
        let line = share.early_report();
        assert!((line.need - 0.9).abs() < 1e-12 && (line.claim - 0.2).abs() < 1e-12, "{line:?}");
        assert!(!share.is_due(), "this report is not back");
        share.observe(&rest, true);
        assert!(!share.is_due() && (share.limit() - 0.2).abs() < 1e-12, "the others leave no more: {share:?}");
        share.observe(&others(2, 0.8, 0.5), false);
        assert!(share.is_due(), "the others leave more: {share:?}");
        let line = share.early_report();
        assert!((line.claim - 0.5).abs() < 1e-12, "{line:?}");
    }

    #[test]
    fn a_member_asks_a_reservation_while_it_is_short_of_its_limit() {
        let mut share = Share::new(3_000, 4_000);
        let rest = Sums { lines: Line { floor: 0.4, ..others(1, 0.4, 0.4).lines }, ..others(1, 0.4, 0.4) };
        share.observe(&rest, false);
        report(&mut share, &asked(0.4, 0.1));
        share.observe(&rest, true);
        let served = |part: f64| Asked { served: part, ..asked(0.4, 0.1) };
        for _ in 0..20 {
            let limit = share.limit();
            share.measure(&served(limit), 1.0);
        }
        // All that the limit lets pass is served: an eighth of the need.
        let line = share.report();
        assert!((line.floor - line.need / 8.0).abs() < 0.05 * line.need, "{line:?}");
        share.observe(&rest, true);
        assert!(share.reservation() < 0.2, "{share:?}");
        (0..8).for_each(|_| share.measure(&served(0.2), 0.25));
        let line = share.report();
        assert!(line.floor >= line.need && share.reservation() > 0.5, "{line:?}, {share:?}");
        // One that enforces the limit alone takes nothing of the others' reservation.
        share.set_totals(0, 4_000);
        assert_eq!(share.report().floor, 0.0);
    }

    #[test]
    fn a_member_without_the_cluster_keeps_its_share_by_number() {
        for (reservation, limit, members, safe) in
            [(0, 4_000, 4, 0.25), (3_000, 4_000, 3, 0.25), (4_000, 4_000, 4, 0.25), (1_000, 0, 5, 0.2)]
        {
            let mut share = Share::new(reservation, limit);
            share.observe(&others(members - 1, 0.0, 0.0), false);
            let line = report(&mut share, &asked(1.0, 1.0));
            share.observe(&others(members - 1, 0.0, 0.0), true);
            assert!(share.limit() > 0.9 && (line.safe - safe).abs() < 1e-12, "{line:?}");
            share.lost();
            assert!((share.limit() - safe).abs() < 1e-12, "{share:?}");
            // Reports that do not come back change nothing.
            let line = report(&mut share, &asked(0.0, 0.0));
            share.alone();
            assert!((line.claim - safe).abs() < 1e-12 && (share.limit() - safe).abs() < 1e-12, "{share:?}");
            assert!((share.reservation() - 1.0 / members as f64).abs() < 1e-12, "{share:?}");
        }
    }

    #[test]
    fn the_safe_part_leaves_expired_members_theirs() {
        for (members, kept) in [(2, 0.0), (1, 0.25), (0, 0.5)] {
            let mut share = Share::new(3_000, 4_000);
            let sums = Sums { reserved: kept, ..others(members, 0.0, 0.0) };
            share.observe(&sums, false);
            report(&mut share, &asked(1.0, 1.0));
            share.observe(&sums, true);
            let line = report(&mut share, &asked(1.0, 1.0));
            assert!((line.safe - 0.25).abs() < 1e-12, "of three members {members} others are present: {line:?}");
        }
    }

    #[test]
    fn a_member_that_starts_without_the_cluster_takes_little_after_a_while() {
        let mut share = Share::new(0, 4_000);
        report(&mut share, &asked(1.0, 1.0));
        share.lost();
        assert_eq!((share.limit(), share.contact()), (0.0, Contact::None));
        share.alone();
        assert_eq!((share.limit(), share.contact()), (0.125, Contact::Alone));
        assert!(report(&mut share, &asked(1.0, 1.0)).claim >= 0.125);
    }

    #[test]
    fn a_member_that_restarts_without_the_cluster_continues_with_its_safe_part() {
        let mut share = Share::new(3_000, 4_000);
        assert_eq!(share.kept(), None, "the others know nothing of it");
        share.observe(&others(2, 0.0, 0.0), false);
        let line = report(&mut share, &asked(1.0, 1.0));
        share.observe(&others(2, 0.0, 0.0), true);
        let kept = share.kept().expect("contact");
        assert_eq!(kept, Kept { safe: line.safe, members: 3, is_alone: false });
        // Within two leases the others may use what the last report did not claim.
        let mut after = Share::resumed(3_000, 4_000, &kept);
        assert_eq!((after.limit(), after.contact()), (0.0, Contact::Lost));
        let first = report(&mut after, &asked(1.0, 1.0));
        assert_eq!((first.claim, first.safe), (line.safe, line.safe));
        after.alone();
        assert_eq!((after.limit(), after.contact()), (line.safe, Contact::Alone));
        assert!((after.reservation() - 1.0 / 3.0).abs() < 1e-12, "{after:?}");
        // One that was alone is so at once.
        let again = Share::resumed(3_000, 4_000, &after.kept().expect("kept"));
        assert_eq!((again.limit(), again.contact()), (line.safe, Contact::Alone));
        // Back in the cluster all is as ever.
        report(&mut after, &asked(1.0, 1.0));
        after.observe(&others(2, 0.0, 0.0), true);
        report(&mut after, &asked(1.0, 1.0));
        after.observe(&others(2, 0.0, 0.0), true);
        assert!(after.limit() > 0.9 && !after.kept().expect("kept").is_alone, "{after:?}");
    }

    #[test]
    fn a_restart_keeps_no_more_than_any_report_in_the_store() {
        let mut share = Share::new(0, 4_000);
        let mut in_store = f64::INFINITY;
        for members in [1, 4, 2, 7, 7, 3] {
            let mut rest = others(members, 0.5, 0.5);
            rest.lines.safe = 0.9 * members as f64 / (members + 1) as f64;
            share.observe(&rest, false);
            let line = report(&mut share, &asked(0.1, 0.0));
            // The report may be the one in the store, or the one before.
            let least = in_store.min(line.safe);
            assert!(share.kept().is_none_or(|kept| kept.safe <= least), "{share:?}");
            share.observe(&rest, true);
            in_store = line.safe;
            assert!(share.kept().is_some_and(|kept| kept.is_valid() && kept.safe <= in_store), "{share:?}");
        }
        let kept = Kept { safe: 0.5, members: 2, is_alone: true };
        assert!(!Kept { safe: f64::NAN, ..kept }.is_valid() && !Kept { safe: 2.0, ..kept }.is_valid());
        assert!(!Kept { members: 0, ..kept }.is_valid());
    }

    #[test]
    fn an_idle_member_takes_its_safe_part_only_when_the_others_leave_it() {
        let mut share = Share::new(0, 4_000);
        share.observe(&others(3, 2.0, 0.9), false);
        report(&mut share, &asked(0.0, 0.0));
        share.observe(&others(3, 2.0, 0.9), true);
        let idle = share.limit();
        share.lost();
        assert!(idle < 0.01 && share.limit() <= idle && share.contact() == Contact::Lost);
        share.alone();
        assert!((share.limit() - 0.25).abs() < 1e-12 && share.contact() == Contact::Alone);
    }

    #[test]
    fn what_an_expired_member_keeps_is_taken_off_all_others_alike() {
        let mut share = Share::new(3_000, 4_000);
        share.observe(&others(2, 0.6, 0.6), false);
        report(&mut share, &asked(0.3, 0.0));
        share.observe(&others(2, 0.6, 0.6), true);
        let before = share.limit();
        let expired = Sums { reserved: 0.25, ..others(1, 0.6, 0.6) };
        share.observe(&expired, false);
        assert!((share.limit() - before * 0.75 / (0.6 + before)).abs() < 1e-12, "{share:?}");
        report(&mut share, &asked(0.3, 0.0));
        assert!(share.limit() + share.claim < 0.75);
        // The reservation is divided among those that are left, but exceeds no limit.
        assert!(share.reservation() > share.limit() && share.reservation() * 3_000.0 <= share.limit() * 4_000.0 + 1e-9);
    }

    #[test]
    fn figures_that_are_no_numbers_do_not_spread() {
        let mut share = Share::new(0, 100);
        let line =
            report(&mut share, &Asked { requests: f64::NAN, arrived: f64::INFINITY, queued: -1.0, served: f64::NAN });
        assert!(line.is_valid(), "{line:?}");
        assert!(!Line { need: f64::NAN, ..line }.is_valid() && !Line { claim: -1.0, ..line }.is_valid());
    }
}
