//! Elastic admission control on the model of a batching store.

use evenkeel_control::admission::{Config, ElasticConfig};
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::workload::{Requests, Spec};
use evenkeel_sim::world::{Client, Setup, Tenant, run_quietly};

/// A setup with one client, which writes bursts of 32 requests of 32 KiB ten times a second; warmed up for 20 s.
fn bursts(admission: Config) -> Setup {
    let workload = Spec::bursts(32, Duration::from_millis(100), Requests::random(Kind::Write, 32 << 10, 1 << 30));
    Setup {
        workers: None,
        device: DeviceParams::Store(StoreParams::ssd()),
        pool: pool::Config {
            scheduler: Scheduler::Mclock,
            admission,
            base_cost_bytes: 4_000,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::from_millis(10),
            target: None,
            slots: None,
        },
        tenants: vec![Tenant::new("bursty", Qos::default())],
        clients: vec![Client { tenant: 0, workload, from: Instant::ZERO, until: Instant::FAR_FUTURE }],
        changes: Vec::new(),
        warmup: Duration::from_secs(20),
        duration: Duration::from_secs(20),
        sample_every: Duration::from_secs(20),
        divides: true,
    }
}

/// The mean throughput of bursts does not depend on the budget; only within a burst a smaller budget shows its cost.
#[test]
fn pauses_between_bursts_do_not_make_a_small_budget_look_free() {
    for seed in 1..=3 {
        let p99 = |admission| run_quietly(&bursts(admission), seed).expect("the model works").tenants[0].response.p99();
        let (free, ours) = (p99(Config::None), p99(Config::Elastic(ElasticConfig::default())));
        assert!(ours.as_millis_f64() <= 1.2 * free.as_millis_f64(), "{ours:?} against {free:?}, seed {seed}");
    }
}
