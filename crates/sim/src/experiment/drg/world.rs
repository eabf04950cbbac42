//! Hosts that have a pool each and share one array: setup and outcome of a run.

use std::sync::Arc;

use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool;
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::slots;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::{Device, DeviceParams};

use super::load::{self, Source};
use crate::workload::trace::Trace;
use crate::workload::{Replay, Spec};
use crate::world::{self, Client, Hosts, Tenant, watch_hosts};

/// Interval over which response times are averaged and compared with the target.
pub const WINDOW: Duration = Duration::from_secs(1);

/// A workload, its host and its target.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Name in results.
    pub name: &'static str,
    /// Number of the workload's host, from 0.
    pub host: usize,
    /// Source of the workload's requests.
    pub source: Source,
    /// Target of the workload's mean response time in each [`WINDOW`].
    pub target: Duration,
    /// Weight of the workload in the sharing of slots.
    pub weight: u32,
    /// Start of the workload's requests.
    pub from: Instant,
    /// End of the workload's requests, at which its host fails.
    pub until: Instant,
    /// Start and end of the surge, in which the workload sends all requests of its source; at other times it sends one in
    /// [`SURGE`]. `None`: it always sends all.
    pub surge: Option<(Instant, Instant)>,
}

/// A workload's request rate in its surge, as a multiple of its rate outside.
pub const SURGE: usize = 3;

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The array.
    pub device: DeviceParams,
    /// Bytes of the array that requests go to.
    pub capacity: u64,
    /// The workloads, in the order of [`Outcome::seconds`].
    pub workloads: Vec<Workload>,
    /// Settings of the controller that shares out slots.
    pub slots: slots::Config,
    /// Start and end of the time in which hosts receive no figures from each other.
    pub partition: Option<(Instant, Instant)>,
    /// Warm-up before the counted time.
    pub lead: Duration,
    /// Counted time.
    pub duration: Duration,
}

/// One workload's completions in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// Requests completed.
    pub completed: u64,
    /// Sum of the response times of the completed requests, in seconds.
    pub response_s: f64,
    /// Requests that arrived.
    pub sent: u64,
}

impl Second {
    /// Mean response time in seconds; `None` when nothing completed.
    pub fn response(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.response_s / self.completed as f64)
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Completions, indexed by workload, then by second of the counted time.
    pub seconds: Vec<Vec<Second>>,
}

/// Runs a setup. The same setup and seed give the same outcome, bit for bit.
///
/// # Errors
/// Invalid parameters of the device or of the slots.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    setup.slots.validate().map_err(|error| error.to_string())?;
    let tenants = setup.workloads.iter().map(Workload::tenant).collect();
    let clients = (0..).zip(&setup.workloads).map(|(place, workload)| workload.client(place, setup, seed)).collect();
    let mut world = world::Setup::new(setup.device.clone(), tenants, clients, setup.duration);
    (world.warmup, world.sample_every) = (setup.lead, Duration::MAX);
    world.pool = pool::Config {
        cost: CostModel { base_bytes: 1, write_percent: 100 },
        limit_burst: Duration::ZERO,
        slots: Some(setup.slots),
        ..world.pool
    };
    let of = setup.workloads.iter().map(|workload| workload.host).collect();
    let hosts = Hosts { of, unmanaged: None, partition: setup.partition };
    let from = Instant::ZERO + setup.lead;
    let count = (setup.duration.as_nanos() / WINDOW.as_nanos()) as usize;
    let mut seconds = vec![vec![Second::default(); count]; setup.workloads.len()];
    for (seconds, client) in seconds.iter_mut().zip(&world.clients) {
        let Spec::Replay(Replay { trace, .. }) = &client.workload else { continue };
        for record in trace.records() {
            let at = client.from + record.at.since(Instant::ZERO);
            let second = (at.since(from).as_nanos() / WINDOW.as_nanos()) as usize;
            if let Some(second) = seconds.get_mut(second).filter(|_| at >= from) {
                second.sent += 1;
            }
        }
    }
    let device = |params: &DeviceParams, _| Device::new(params, seed);
    let ran = watch_hosts(&world, &hosts, seed, device, &mut |now, workload, done| {
        let second = (now.since(from).as_nanos() / WINDOW.as_nanos()) as usize;
        if let Some(second) = seconds[workload].get_mut(second).filter(|_| now >= from) {
            second.completed += 1;
            second.response_s += now.since(done.sent_at).as_secs_f64();
        }
    });
    ran.map(|()| Outcome { seconds }).map_err(|failure| failure.to_string())
}

impl Workload {
    fn tenant(&self) -> Tenant {
        let latency_target = Some(LatencyTarget::mean(self.target));
        Tenant { latency_target, ..Tenant::new(self.name, Qos { weight: self.weight, ..Qos::default() }) }
    }

    /// The workload's client, which replays all its requests.
    fn client(&self, place: usize, setup: &Setup, seed: u64) -> Client {
        let until = self.until.min(Instant::ZERO + setup.lead + setup.duration);
        let seed = seed.wrapping_mul(1_000_003) ^ place as u64;
        let mut records = load::arrivals(&self.source, seed, until, setup.capacity);
        if let Some((from, until)) = self.surge {
            let mut place = 0;
            records.retain(|record| {
                place += 1;
                (from..until).contains(&record.at) || place % SURGE == 0
            });
        }
        records.retain(|record| record.at >= self.from);
        let from = records.first().map_or(self.from, |record| record.at);
        let replay = |trace| Spec::Replay(Replay { trace: Arc::new(trace), queue_depth: None, times: 1 });
        let workload = Trace::new(records).map_or(Spec::Idle, replay);
        Client { tenant: place, workload, from, until: Instant::FAR_FUTURE }
    }
}
