use std::ops::ControlFlow;

use evenkeel_control::admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;

use super::*;
use crate::workload::Requests;

fn client(tenant: usize, queue_depth: u32, bytes: u32) -> Client {
    Client {
        tenant,
        workload: workload::Spec::closed(queue_depth, Requests::random(Kind::Write, bytes, 1 << 30)),
        from: Instant::ZERO,
        until: Instant::FAR_FUTURE,
    }
}

fn setup(admission: admission::Config) -> Setup {
    let tenant = |name: &str, weight| Tenant { name: name.to_owned(), qos: Qos { weight, ..Qos::default() } };
    Setup {
        device: DeviceParams::Store(StoreParams::ssd()),
        pool: pool::Config {
            scheduler: Scheduler::Mclock,
            admission,
            base_cost_bytes: 4000,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::from_millis(10),
        },
        tenants: vec![tenant("bulk", 1), tenant("light", 10)],
        clients: vec![client(0, 64, 65536), client(1, 1, 4096)],
        changes: Vec::new(),
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(4),
        sample_every: Duration::from_millis(100),
    }
}

#[test]
fn a_budget_keeps_the_light_tenant_from_waiting_behind_the_bulk() {
    let run = |admission| run_quietly(&setup(admission), 1).unwrap();
    let bloated = run(admission::Config::None);
    let bounded = run(admission::Config::Fixed { budget_bytes: 512 << 10 });
    let light = |run: &Run| run.tenants[1].response.mean().as_nanos();
    assert!(light(&bounded) * 4 < light(&bloated), "{} ns against {} ns", light(&bounded), light(&bloated));
    assert!(bounded.tenants[0].bytes * 10 > bloated.tenants[0].bytes * 9);
    let inverted = |run: &Run| run.tenants[1].inversion_per_request();
    assert!(inverted(&bounded).as_nanos() * 4 < inverted(&bloated).as_nanos());
    assert_eq!(bounded.tenants[0].inversion, Duration::ZERO);
    assert_eq!((bounded.budget.mean_bytes, bounded.budget.cv), (524_288.0, 0.0));
    assert!(bloated.budget.mean_bytes.is_infinite());
}

#[test]
fn the_same_seed_repeats_a_run_and_another_does_not() {
    let run = |seed| run_quietly(&setup(admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED)), seed);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).unwrap().tenants, run(8).unwrap().tenants);
}

#[test]
fn progress_is_told_and_can_end_the_run() {
    let setup = Setup { duration: Duration::from_secs(60), ..setup(admission::Config::None) };
    let mut told = Vec::new();
    let whole = run(&setup, 1, &mut |progress| {
        told.push(progress);
        ControlFlow::Continue(())
    });
    assert_eq!(told.len() as u64, whole.unwrap().events / EVENTS_PER_PROGRESS);
    assert!(told.windows(2).all(|pair| pair[0].fraction() < pair[1].fraction() && pair[1].fraction() <= 1.0));
    let cancelled = run(&setup, 1, &mut |_| ControlFlow::Break(()));
    assert_eq!(cancelled, Err(Failure::Cancelled { at: told[0].at }));
}

#[test]
fn what_crosses_threads_may() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Setup>();
    crosses::<Run>();
}
