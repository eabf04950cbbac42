//! The store through which members report, as etcd does it: all writes have one order, and each member reads them in this order,
//! a little later.

use std::collections::VecDeque;

use evenkeel_control::cluster::totals::{Contact, Line, MEASUREMENTS, Share, Sums};
use evenkeel_control::rng::SplitMix64;

use super::Fault;
use super::host::Host;
use super::setup::{LIMIT, RESERVATION, STEPS_PER_S, Setup};

/// Length of a period, in steps.
const PERIOD: u64 = STEPS_PER_S as u64;
/// Length of a lease, in steps.
const LEASE: u64 = 3 * PERIOD;
/// Steps after the end of its lease until the store notes that a member has expired.
const EXPIRY: u64 = PERIOD / 2;
/// Steps from [`Share::lost`] to [`Share::alone`].
const ALONE_AFTER: u64 = 2 * LEASE + PERIOD;
/// The most steps after a measurement is due until it is made, so that members do not report together.
const JITTER: u64 = PERIOD / 8;
/// The most members that report more often than once a period; more members exchange sums, which are made once a period.
const UNDIVIDED: usize = 100;
/// Fraction of the reports that are lost with [`Fault::Loss`].
const LOST: f64 = 0.05;
/// Largest fraction by which a member's period is longer or shorter with [`Fault::Skew`].
const DRIFT: f64 = 0.01;

/// The state of a member's key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Key {
    Missing,
    Reported(Line),
    /// The lease has ended; with the safe part of the last report.
    Expired(f64),
}

/// A change of a member's key.
#[derive(Clone, Copy, Debug)]
struct Change {
    member: usize,
    key: Key,
    /// Number of the report, and the step in which it was made.
    report: (u64, u64),
    at: u64,
    /// The sums over all members after this change.
    sums: Sums,
}

/// A report on its way to the store.
#[derive(Clone, Copy, Debug)]
struct Flying {
    arrives: u64,
    report: (u64, u64),
    line: Line,
}

/// A member's connection to the store.
#[derive(Clone, Debug)]
struct Peer {
    share: Share,
    /// Number of changes read; in a large cluster, number of steps.
    read: usize,
    /// The member's own key as it was at the last change read.
    own: Key,
    reports: u64,
    flying: Option<Flying>,
    next_report: f64,
    /// When demand is measured next, and how often it was since the last report that was due.
    next_measurement: f64,
    measurements: u64,
    /// The step of the last measurement.
    measured: u64,
    period: f64,
    /// Steps from a change to its reading.
    lag: u64,
    /// The step in which the newest report was made that came back.
    back: u64,
    lost_at: Option<u64>,
    was_dead: bool,
}

/// The store, and all members' connections to it. In a small cluster each member reads each change. In a large one a member
/// reads the changes of its own key, and otherwise the sums after each step, so that a step costs each member the same.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    rng: SplitMix64,
    is_large: bool,
    /// The sums over all members now, and in a large cluster after each step.
    sums: Sums,
    after: Vec<Sums>,
    /// All changes; in a large cluster none.
    changes: Vec<Change>,
    /// In a large cluster, the changes of each member's key that this member has not read.
    unread: Vec<VecDeque<Change>>,
    /// Each member's key, and the step of its last write.
    keys: Vec<(Key, u64)>,
    /// Number of reports that have reached the store.
    landed: u64,
    peers: Vec<Peer>,
}

impl Exchange {
    pub(super) fn new(setup: &Setup, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed ^ 0x7074);
        let is_skewed = setup.fault == Fault::Skew;
        let mut peer = |_: usize| {
            // Reports carry no time, so that of a clock that is off by minutes only the part of a period counts.
            let phase = rng.next_f64() * if is_skewed { PERIOD as f64 } else { 5.0 };
            let drift = if is_skewed { DRIFT * (2.0 * rng.next_f64() - 1.0) } else { 0.0 };
            Peer {
                share: Share::new(RESERVATION, LIMIT),
                read: 0,
                own: Key::Missing,
                reports: 0,
                flying: None,
                next_report: phase,
                next_measurement: phase,
                measurements: 0,
                measured: 0,
                period: PERIOD as f64 * (1.0 + drift),
                lag: 2 + rng.next_below(4),
                back: 0,
                lost_at: None,
                was_dead: false,
            }
        };
        let peers = (0..setup.members).map(&mut peer).collect();
        let (is_large, keys) = (setup.members > UNDIVIDED, vec![(Key::Missing, 0); setup.members]);
        let unread = vec![VecDeque::new(); setup.members];
        let (sums, landed) = (Sums::default(), 0);
        Self { rng, is_large, sums, after: Vec::new(), changes: Vec::new(), unread, keys, landed, peers }
    }

    /// Lets all members report, read and decide what is due in this step.
    pub(super) fn step(&mut self, setup: &Setup, step: u64, hosts: &mut [Host]) {
        for (member, host) in hosts.iter_mut().enumerate() {
            let is_dead = setup.is_dead(member, step);
            let is_connected = !is_dead && !setup.is_cut(member, step);
            if std::mem::replace(&mut self.peers[member].was_dead, is_dead) && !is_dead {
                self.restart(member, step);
            }
            if !is_dead {
                self.report(setup, member, step, is_connected, host);
            }
            self.land(member, step, is_connected);
            self.expire(member, step);
            if is_connected {
                self.read(member, step);
            }
            if !is_dead {
                self.keep_time(member, step);
                let share = &self.peers[member].share;
                host.set_part(step, share.reservation(), share.limit());
            }
        }
        if self.is_large {
            self.after.push(self.sums);
        }
    }

    /// Number of reports of all members that have reached the store.
    pub(super) fn reports(&self) -> u64 {
        self.landed
    }

    /// The newest reports of the members that have not expired.
    pub(super) fn lines(&self) -> Vec<Line> {
        let line = |(key, _): &(Key, u64)| match key {
            Key::Reported(line) => Some(*line),
            Key::Missing | Key::Expired(_) => None,
        };
        self.keys.iter().filter_map(line).collect()
    }

    /// The sum of the parts of all members that serve.
    pub(super) fn sum(&self, setup: &Setup, step: u64) -> f64 {
        let alive = self.peers.iter().enumerate().filter(|(member, _)| !setup.is_dead(*member, step));
        alive.map(|(_, peer)| peer.share.limit()).sum()
    }

    /// A new process of a member: it reads all keys.
    fn restart(&mut self, member: usize, step: u64) {
        let read = if self.is_large { step as usize } else { self.changes.len() };
        self.unread[member].clear();
        let peer = &mut self.peers[member];
        (peer.share, peer.own) = (Share::new(RESERVATION, LIMIT), self.keys[member].0);
        (peer.read, peer.flying, peer.back, peer.lost_at) = (read, None, step, None);
        (peer.next_report, peer.measured) = (step as f64, step);
        peer.share.observe(&without(self.sums, peer.own), false);
    }

    fn report(&mut self, setup: &Setup, member: usize, step: u64, is_connected: bool, host: &mut Host) {
        let peer = &mut self.peers[member];
        let is_regular = step as f64 >= peer.next_report;
        if !is_regular && (step as f64) < peer.next_measurement {
            return;
        }
        // The first report comes after no time.
        let seconds = (step - peer.measured).max(1) as f64 / PERIOD as f64;
        peer.share.measure(&host.asked(seconds), seconds);
        peer.measured = step;
        if is_regular {
            (peer.next_report, peer.measurements) = (peer.next_report + peer.period, 0);
        }
        peer.measurements += 1;
        let is_last = peer.measurements >= MEASUREMENTS;
        let before_end = peer.period * (1.0 - peer.measurements as f64 / MEASUREMENTS as f64);
        let jitter = self.rng.next_below(JITTER) as f64;
        peer.next_measurement = if is_last { f64::INFINITY } else { peer.next_report - before_end + jitter };
        if !is_regular && (setup.members > UNDIVIDED || !peer.share.is_due()) {
            return;
        }
        peer.reports += 1;
        let line = if is_regular { peer.share.report() } else { peer.share.early_report() };
        let is_lossy = setup.fault == Fault::Loss;
        let arrives = step + 1 + self.rng.next_below(if is_lossy { 30 } else { 3 });
        let is_lost = is_lossy && self.rng.next_f64() < LOST;
        let flying = Flying { arrives, report: (peer.reports, step), line };
        peer.flying = (is_connected && !is_lost).then_some(flying);
    }

    fn land(&mut self, member: usize, step: u64, is_connected: bool) {
        let peer = &mut self.peers[member];
        if !is_connected {
            peer.flying = None;
        }
        if let Some(flying) = peer.flying.take_if(|flying| flying.arrives <= step) {
            self.keys[member].1 = step;
            self.landed += 1;
            self.change(member, step, Key::Reported(flying.line), flying.report);
        }
    }

    fn expire(&mut self, member: usize, step: u64) {
        let (key, written) = self.keys[member];
        if let Key::Reported(line) = key
            && step > written + LEASE + EXPIRY
        {
            self.change(member, step, Key::Expired(line.safe), (0, 0));
        }
    }

    fn change(&mut self, member: usize, step: u64, key: Key, report: (u64, u64)) {
        let mut sums = without(self.sums, self.keys[member].0);
        match &key {
            Key::Missing => {}
            Key::Reported(line) => {
                sums.members += 1;
                sums.lines.add(line);
            }
            Key::Expired(safe) => sums.reserved += safe,
        }
        (self.keys[member].0, self.sums) = (key, sums);
        let change = Change { member, key, report, at: step, sums };
        if self.is_large {
            self.unread[member].push_back(change);
        } else {
            self.changes.push(change);
        }
    }

    fn read(&mut self, member: usize, step: u64) {
        let peer = &mut self.peers[member];
        if !self.is_large {
            while let Some(change) = self.changes.get(peer.read).filter(|change| change.at + peer.lag <= step) {
                peer.read += 1;
                peer.take_in(member, change, step);
            }
            return;
        }
        // Changes of this step and of some steps before are not read yet.
        let steps = (step + 1).saturating_sub(peer.lag) as usize;
        if steps <= peer.read {
            return;
        }
        let unread = &mut self.unread[member];
        while let Some(change) = unread.front().copied().filter(|change| change.at < steps as u64) {
            unread.pop_front();
            peer.take_in(member, &change, step);
        }
        peer.read = steps;
        peer.share.observe(&without(self.after[steps - 1], peer.own), false);
    }

    /// Notes that the store is lost, and that all others know it.
    fn keep_time(&mut self, member: usize, step: u64) {
        let peer = &mut self.peers[member];
        match (peer.share.contact(), peer.lost_at) {
            (Contact::Shared, _) if step < peer.back + LEASE => peer.lost_at = None,
            (Contact::Shared, _) => {
                peer.share.lost();
                peer.lost_at = Some(step);
            }
            (Contact::Lost, Some(lost_at)) if step >= lost_at + ALONE_AFTER => peer.share.alone(),
            (Contact::None, _) if step >= peer.back + LEASE + ALONE_AFTER => peer.share.alone(),
            _ => {}
        }
    }
}

impl Peer {
    /// Takes in a change that `member`, which is this one, reads in this step.
    fn take_in(&mut self, member: usize, change: &Change, step: u64) {
        let mut is_back = false;
        if change.member == member {
            self.own = change.key;
            if let (Key::Reported(_), (number, made)) = (change.key, change.report) {
                is_back = number == self.reports && step < made + LEASE;
                self.back = made;
            }
        }
        self.share.observe(&without(change.sums, self.own), is_back);
    }
}

/// The sums without those of one member, by the state of its key.
fn without(mut sums: Sums, key: Key) -> Sums {
    match key {
        Key::Missing => {}
        Key::Reported(line) => {
            sums.members = sums.members.saturating_sub(1);
            sums.lines.remove(&line);
        }
        Key::Expired(safe) => sums.reserved = (sums.reserved - safe).max(0.0),
    }
    sums
}
