//! Runs of drawn cases on hosts that share a device. One of the hosts may be an initiator without any control.

use evenkeel_control::slots;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::Device;

use crate::world::{Hosts, Setup, TenantResult, run_hosts};

/// A tenant's figures in the counted time.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The simulator's result for the tenant.
    pub result: TenantResult,
    /// Payload bytes completed in each tenth of a second.
    pub tenths: Vec<u64>,
}

/// The most hosts of a case, including the host without control.
pub const MOST_HOSTS: usize = 4;
/// A tenth of a second.
const TENTH: Duration = Duration::from_millis(100);

/// Runs `setup` on `hosts`. `slots` are the settings of pools under control; `None`: no pool is controlled. The same
/// arguments give the same figures, by tenant.
///
/// # Panics
/// If a model fails.
pub fn run(setup: &Setup, hosts: &Hosts, slots: Option<slots::Config>, seed: u64) -> Vec<Figures> {
    // Samples would look at idle pools.
    let mut setup = Setup { sample_every: Duration::MAX, ..setup.clone() };
    setup.pool.slots = slots;
    let from = Instant::ZERO + setup.warmup;
    let count = (setup.duration.as_nanos() / TENTH.as_nanos()) as usize;
    let mut tenths = vec![vec![0; count]; setup.tenants.len()];
    let run = run_hosts(&setup, hosts, seed, Device::new, &mut |now, tenant, done| {
        let tenth = (now.since(from).as_nanos() / TENTH.as_nanos()) as usize;
        if let Some(bytes) = tenths[tenant].get_mut(tenth).filter(|_| now >= from) {
            *bytes += u64::from(done.bytes);
        }
    });
    let tenants = run.unwrap_or_else(|failure| panic!("{failure}")).tenants;
    tenants.into_iter().zip(tenths).map(|(result, tenths)| Figures { result, tenths }).collect()
}

/// Payload bytes completed by all tenants together.
pub fn bytes(figures: &[Figures]) -> f64 {
    figures.iter().map(|figures| figures.result.bytes as f64).sum()
}

/// Requests completed by all tenants together.
pub fn requests(figures: &[Figures]) -> f64 {
    figures.iter().map(|figures| figures.result.requests as f64).sum()
}
