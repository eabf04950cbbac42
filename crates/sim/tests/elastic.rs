//! Tests of elastic admission control on the model of a batching store.

use evenkeel_control::Duration;
use evenkeel_control::admission::{Config, ElasticConfig};
use evenkeel_control::units::Kind;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::workload::{Requests, Spec};
use evenkeel_sim::world::{Setup, run_quietly};

use crate::parallel::alone;

/// A setup with one client, which writes a burst of 32 requests of 32 KiB ten times per second. The warm-up is 20 s.
fn bursts(admission: Config) -> Setup {
    let workload = Spec::bursts(32, Duration::from_millis(100), Requests::random(Kind::Write, 32 << 10, 1 << 30));
    let mut setup = Setup { warmup: Duration::from_secs(20), ..alone(workload, StoreParams::ssd(), 20) };
    setup.pool.admission = admission;
    setup
}

/// With pauses between bursts the mean throughput does not depend on the budget; the cost of a smaller budget shows only
/// within a burst, and must be noticed.
#[test]
fn pauses_between_bursts_do_not_make_a_small_budget_look_free() {
    for seed in 1..=3 {
        let p99 = |admission| run_quietly(&bursts(admission), seed).expect("the model works").tenants[0].response.p99();
        let (free, ours) = (p99(Config::None), p99(Config::Elastic(ElasticConfig::default())));
        assert!(ours.as_millis_f64() <= 1.2 * free.as_millis_f64(), "{ours:?} against {free:?}, seed {seed}");
    }
}
