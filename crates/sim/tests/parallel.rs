//! A setup, and runs of experiments and cases on all processors, for the tests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_control::Duration;
use evenkeel_control::mclock::Qos;
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::experiment::Digest;
use evenkeel_sim::workload::Spec;
use evenkeel_sim::world::{Client, Failure, Setup, Tenant, run_quietly};

/// A setup of one tenant with one client, alone on a store for `seconds` seconds.
pub(crate) fn alone(workload: Spec, store: StoreParams, seconds: u64) -> Setup {
    let (tenants, clients) = (vec![Tenant::new("only", Qos::default())], vec![Client::always(0, workload)]);
    let mut setup = Setup::new(DeviceParams::Store(store), tenants, clients, Duration::from_secs(seconds));
    setup.pool.base_cost_bytes = 4_000;
    Setup { divides: true, ..setup }
}

/// Runs each setup with its seed, one after the other; the outcomes are in the order of the setups.
pub(crate) fn in_turn(_: &str, runs: &[(Setup, u64)]) -> Result<Vec<Digest>, Failure> {
    runs.iter().map(|(setup, seed)| run_quietly(setup, *seed).map(Digest::of)).collect()
}

/// The results that `work` returns for `seeds`, in the order of the seeds; seeds for which it returns `None` are left out. All
/// processors work, and each takes the next seed.
pub(crate) fn each<R: Send>(seeds: std::ops::Range<u64>, work: impl Fn(u64) -> Option<R> + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(8);
    let (next, made) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let take = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = work(seed);
            made.lock().unwrap().push((seed, result));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(take))));
    let mut made = made.into_inner().unwrap();
    made.sort_by_key(|(seed, _)| *seed);
    assert_eq!(made.len() as u64, seeds.end - seeds.start);
    made.into_iter().filter_map(|(_, result)| result).collect()
}
