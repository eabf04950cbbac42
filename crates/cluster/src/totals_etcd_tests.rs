//! Tests of parts of a tenant's total with a real etcd.

use evenkeel_control::pool::Demand;

use super::*;
use crate::{Demands, Parts};

#[path = "three_etcd_tests.rs"]
mod three;

/// Limit of the tenant, in IOPS.
const LIMIT: u64 = 3_000;

fn key() -> (String, String) {
    ("main".into(), "db".into())
}

/// A participant with one tenant.
struct Server {
    /// Requests per second that are asked for, and the part of the limit that applies.
    shared: Arc<Mutex<(u64, f64)>>,
    arrived: f64,
    measured: StdInstant,
}

impl Participant for Server {
    fn report(&mut self) -> Pools {
        Pools::new()
    }

    fn decide(&mut self, _: &View<'_, Contribution<Pools>>, _: f64) {}

    fn alone(&mut self) {}

    fn demands(&mut self) -> Demands {
        let (rate, part) = *lock(&self.shared);
        let since = std::mem::replace(&mut self.measured, StdInstant::now());
        self.arrived += rate as f64 * since.elapsed().as_secs_f64();
        let queued = if rate as f64 > part * LIMIT as f64 { rate / 2 } else { 0 };
        let arrived = [self.arrived as u64, 0];
        Demands::from([(key(), Demand { limit: [LIMIT, 0], arrived, queued, ..Demand::default() })])
    }

    fn divide(&mut self, parts: &Parts) {
        if let Some(part) = parts.get(&key()) {
            lock(&self.shared).1 = part.limit[0].of_rate(1_000_000_000) as f64 / 1e9;
        }
    }
}

struct Member {
    shared: Arc<Mutex<(u64, f64)>>,
    handle: Handle,
}

impl Member {
    fn start(etcd: &Etcd, name: &str, rate: u64, totals: bool) -> Self {
        let mut settings = etcd.settings(name, wall_clock);
        settings.cluster.totals = totals;
        Self::with(settings, rate)
    }

    fn with(settings: Settings, rate: u64) -> Self {
        let shared = Arc::new(Mutex::new((rate, 0.0)));
        let server = Server { shared: Arc::clone(&shared), arrived: 0.0, measured: StdInstant::now() };
        Self { shared, handle: start(settings, server).expect("it starts") }
    }

    fn ask(&self, rate: u64) {
        lock(&self.shared).0 = rate;
    }

    fn part(&self) -> f64 {
        lock(&self.shared).1
    }

    fn contact(&self) -> String {
        self.handle.state().totals.map(|totals| totals.contact).unwrap_or_default()
    }

    fn error(&self) -> String {
        self.handle.state().error.unwrap_or_default()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

#[test]
fn parts_of_a_total_move_with_demand_and_survive_etcd() {
    let Some(etcd) = Etcd::start() else { return };
    let [a, b] = ["a", "b"].map(|name| Member::start(&etcd, name, 300, true));
    a.ask(4_000);
    wait("the busy one has most", || a.part() > 0.7 && a.contact() == "shared" && b.contact() == "shared");
    a.ask(300);
    b.ask(4_000);
    wait("demand has moved", || b.part() > 0.7 && a.part() < 0.3);

    etcd.signal(Signal::STOP);
    wait("each has its safe part at most", || [&a, &b].iter().all(|member| member.contact() == "lost"));
    assert!(a.part() <= 0.5 && b.part() <= 0.5, "{} and {}", a.part(), b.part());
    etcd.signal(Signal::CONT);
    wait("they share again", || b.part() > 0.7 && a.contact() == "shared");

    // One that leaves in order leaves its whole part.
    a.handle.stop();
    wait("the other has all", || b.part() == 1.0);
}

#[test]
fn a_full_etcd_is_named_with_the_cure_and_leaves_the_safe_parts() {
    let Some(etcd) = Etcd::begin(false, &[SMALL]) else { return };
    let [a, b] = ["a", "b"].map(|name| Member::start(&etcd, name, 300, true));
    a.ask(4_000);
    wait("the busy one has most", || a.part() > 0.7 && a.contact() == "shared" && b.contact() == "shared");

    etcd.fill();
    let cure = "database space exceeded; compact, defragment and disarm the alarm (etcdctl)";
    for member in [&a, &b] {
        wait("it says so, with the cure", || member.error().contains(cure));
    }
    // Of two members, one has half at most.
    wait("the busy one keeps its safe part", || {
        // The watch ends, too, for want of changes, and does not hide the cause.
        let error = a.error();
        assert!(!error.contains("has reported nothing"), "{error}");
        ["lost", "alone"].contains(&a.contact().as_str()) && (0.1..=0.5).contains(&a.part())
    });
    wait("so does the other one", || ["lost", "alone"].contains(&b.contact().as_str()) && b.part() <= 0.5);

    // What the cure names, and nothing else.
    etcd.ctl(&["compaction", &etcd.revision(), "--physical"]).expect("compacted");
    wait("it is defragmented", || etcd.ctl(&["defrag"]).is_some());
    wait("the alarm is disarmed", || etcd.ctl(&["alarm", "disarm"]).is_some());
    wait("they share again", || {
        a.part() > 0.7 && [&a, &b].iter().all(|member| member.contact() == "shared" && member.error().is_empty())
    });
}

#[test]
fn without_totals_a_member_has_no_parts() {
    let Some(etcd) = Etcd::start() else { return };
    let member = Member::start(&etcd, "a", 4_000, false);
    wait("it takes part", || {
        let state = member.handle.state();
        state.status == "shared" && state.decided_periods_total > 3
    });
    // The participant was given none.
    assert_eq!((member.contact(), member.part()), (String::new(), 0.0));
}
