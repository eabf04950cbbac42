//! Clients, one pool (or one on each of several hosts) and one device, run together in virtual time.
//!
//! ```text
//!  workload ──▶ (workers) ──▶ control::pool ──▶ model::Device
//!     ▲                                             │
//!     └──────── (workers) ◀─── completion ──────────┘
//! ```

mod failure;
mod front;
mod hosts;
mod inversion;
mod latencies;
mod meter;
mod result;
mod run;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use evenkeel_control::admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::placement;
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::response::Throttle;
use evenkeel_control::units::Rates;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::{Device, DeviceParams, Machine};
use evenkeel_model::worker::WorkerParams;

use crate::workload;

pub use failure::{Failure, Source};
pub use hosts::Hosts;
pub use latencies::Latencies;
pub(crate) use result::windows;
pub use result::{
    BudgetSpread, Completion, Deficit, NO_BOUND_BYTES, Run, Sample, Served, TenantResult, TenantSample, Window,
    WorkerResult,
};

/// The most outstanding requests of a run; more end the run, as the queue then grows without end. A million requests of
/// 64 KiB are minutes of work for a fast device.
pub const MAX_OUTSTANDING: usize = 1_000_000;

/// Number of events between two reports of progress; their simulation takes some milliseconds of real time.
pub const EVENTS_PER_PROGRESS: u64 = 1 << 16;

/// The setup of a run: workers, device, pool, tenants, clients, changes and times.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Workers, which receive requests and send replies; `None`: clients reach the pool directly.
    pub workers: Option<FrontSetup>,
    /// The device behind the pool.
    pub device: DeviceParams,
    /// Settings of the pool: scheduler, admission control and limits.
    pub pool: pool::Config,
    /// The tenants and their QoS policies.
    pub tenants: Vec<Tenant>,
    /// The clients.
    pub clients: Vec<Client>,
    /// Changes in mid-run, each with its instant.
    pub changes: Vec<(Instant, Change)>,
    /// Warm-up: virtual time at the start of the run that does not count for the result.
    pub warmup: Duration,
    /// Length of the counted time, which follows the warm-up.
    pub duration: Duration,
    /// Interval of the samples of the time series.
    pub sample_every: Duration,
    /// True if large requests enter the pool in slices, as in `serve`; otherwise they stay whole.
    pub divides: bool,
}

/// Settings of the worker threads that receive requests and pass them to the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontSetup {
    /// Number of workers; at least one.
    pub count: u32,
    /// Costs of requests and replies at workers.
    pub params: WorkerParams,
    /// The method that places connections on workers.
    pub placement: placement::Config,
    /// Number of connections of each client, at least one. A client sends its requests on them in turn.
    pub connections: u32,
}

/// A tenant of the pool.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The tenant's name in results.
    pub name: String,
    /// The tenant's QoS policy: weight, reservation, limit.
    pub qos: Qos,
    /// Throttle rank of the tenant for the pool's latency target.
    pub throttle: Throttle,
    /// The tenant's guaranteed throughputs, if any, for the pool's throughput controller.
    pub guarantee: Throughputs,
    /// The tenant's own latency target, for the slots of the pool; `None`: no target.
    pub latency_target: Option<LatencyTarget>,
}

impl Tenant {
    /// A tenant with a QoS policy. It is throttled for the pool's latency target while it causes much of the load.
    pub fn new(name: impl Into<String>, qos: Qos) -> Self {
        Self { name: name.into(), qos, throttle: Throttle::Normal, guarantee: Throughputs::NONE, latency_target: None }
    }
}

/// A client of a tenant.
#[derive(Clone, Debug)]
pub struct Client {
    /// Index of the client's tenant in [`Setup::tenants`].
    pub tenant: usize,
    /// The client's workload.
    pub workload: workload::Spec,
    /// Instant at which the client begins to send requests.
    pub from: Instant,
    /// Instant at which the client stops sending requests.
    pub until: Instant,
}

impl Client {
    /// A client that is active for the whole run.
    pub fn always(tenant: usize, workload: workload::Spec) -> Self {
        Self { tenant, workload, from: Instant::ZERO, until: Instant::FAR_FUTURE }
    }
}

/// A change in mid-run.
#[derive(Clone, Debug)]
pub enum Change {
    /// New parameters of the device.
    Device(DeviceParams),
    /// A stall: the device serves no request for this long.
    Stall(Duration),
    /// New settings of the pool.
    Pool(Box<pool::Config>),
    /// A new QoS policy, guarantee and latency target of the tenant at this index of [`Setup::tenants`].
    Tenant(usize, Qos, Throughputs, Option<LatencyTarget>),
}

/// Progress of a run that is being simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current virtual time.
    pub at: Instant,
    /// Virtual time at which the run ends.
    pub end: Instant,
    /// Events handled so far.
    pub events: u64,
}

impl Progress {
    /// The finished fraction of the run's virtual time, 0 to 1.
    pub fn fraction(&self) -> f64 {
        self.at.as_nanos() as f64 / self.end.as_nanos().max(1) as f64
    }
}

/// Runs `setup` to its end. The same setup and seed give the same result, bit for bit, on every machine.
///
/// `progress` is called every [`EVENTS_PER_PROGRESS`] events; when it returns `Break`, the run ends.
///
/// # Errors
/// [`Failure::Cancelled`] after a `Break`; [`Failure::Setup`] for an invalid setup; another failure, which names the model or
/// client, if one of these misbehaves.
pub fn run(setup: &Setup, seed: u64, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Run, Failure> {
    setup.check()?;
    run::World::new(setup, seed, Device::new).run(progress)
}

/// A function that is called for each completed request: with the instant of completion, the number of the request's tenant,
/// and the completion.
pub(crate) type Watch<'a> = dyn FnMut(Instant, usize, &Completion) + 'a;

/// Runs `setup` on several hosts that share the device. `device` makes the device from its parameters and a seed; `watch` is
/// called at each completion.
pub(crate) fn run_hosts<'a>(
    setup: &'a Setup,
    hosts: &Hosts,
    seed: u64,
    device: impl FnOnce(&DeviceParams, u64) -> Device,
    watch: &'a mut Watch<'a>,
) -> Result<Run, Failure> {
    setup.check()?;
    let mut world = run::World::with(setup, Some(hosts), seed, device);
    world.watch = Some(watch);
    world.run(&mut |_| ControlFlow::Continue(()))
}

/// As [`run_hosts`], without statistics of the run: for a caller that counts what it watches.
pub(crate) fn watch_hosts<'a>(
    setup: &'a Setup,
    hosts: &Hosts,
    seed: u64,
    device: impl FnOnce(&DeviceParams, u64) -> Device,
    watch: &'a mut Watch<'a>,
) -> Result<(), Failure> {
    setup.check()?;
    let mut world = run::World::with(setup, Some(hosts), seed, device).without_statistics();
    world.watch = Some(watch);
    world.run(&mut |_| ControlFlow::Continue(())).map(|_| ())
}

/// Runs `setup` as [`run()`] does, without statistics of the run, and calls `watch` at each completion. `device` makes the device
/// from its parameters and a seed.
pub(crate) fn run_watched<'a, D: Machine>(
    setup: &'a Setup,
    seed: u64,
    device: impl FnOnce(&DeviceParams, u64) -> D,
    watch: &'a mut Watch<'a>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), Failure> {
    setup.check()?;
    let mut world = run::World::new(setup, seed, device).without_statistics();
    world.watch = Some(watch);
    world.run(progress).map(|_| ())
}

/// Runs `setup` without progress reports, and without a way to cancel.
///
/// # Errors
/// As [`run()`].
pub fn run_quietly(setup: &Setup, seed: u64) -> Result<Run, Failure> {
    run(setup, seed, &mut |_| ControlFlow::Continue(()))
}

impl Setup {
    /// A setup without admission control, workers, changes or warm-up. One sample covers the whole run, and requests are not
    /// divided.
    pub fn new(device: DeviceParams, tenants: Vec<Tenant>, clients: Vec<Client>, duration: Duration) -> Self {
        let pool = pool::Config {
            scheduler: Scheduler::Mclock,
            admission: admission::Config::None,
            base_cost_bytes: 0,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::from_millis(10),
            target: None,
            slots: None,
        };
        let (changes, warmup, sample_every) = (Vec::new(), Duration::ZERO, duration);
        Self { workers: None, device, pool, tenants, clients, changes, warmup, duration, sample_every, divides: false }
    }

    /// The instant at which a run of the setup ends: warm-up plus counted time after its start.
    pub fn end(&self) -> Instant {
        Instant::ZERO + self.warmup + self.duration
    }

    fn check(&self) -> Result<(), Failure> {
        let fault = |what: String| Err(Failure::Setup { what });
        let tenants = self.tenants.len();
        if self.duration == Duration::ZERO {
            return fault("a duration of 0 counts nothing".to_owned());
        }
        if self.sample_every == Duration::ZERO {
            return fault("samples 0 apart never end; take sample_every = duration for a single one".to_owned());
        }
        let invalid = |at: &str, error: &dyn std::fmt::Display| fault(format!("device{at}: {error}"));
        if let Err(error) = self.device.validate() {
            return invalid("", &error);
        }
        if let Some(workers) = &self.workers {
            if workers.count == 0 || workers.connections == 0 {
                return fault("workers: count and connections must be 1 or more".to_owned());
            }
            if let Err(error) = workers.params.validate() {
                return fault(format!("workers: {error}"));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            if client.tenant >= tenants {
                return fault(format!("client {index} belongs to tenant {} of {tenants}", client.tenant));
            }
        }
        for (at, change) in &self.changes {
            match change {
                Change::Tenant(place, ..) if *place >= tenants => {
                    return fault(format!("the change at {at:?} is about tenant {place} of {tenants}"));
                }
                Change::Device(params) => {
                    if let Err(error) = params.validate() {
                        return invalid(&format!(" from {at:?}"), &error);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
