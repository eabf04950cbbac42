//! Hosts with a pool each and one array behind all of them: what is run, and what is kept of it.

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
use crate::world::{self, Client, Hosts, Tenant, run_hosts};

/// Over how long a target is judged.
pub const WINDOW: Duration = Duration::from_secs(1);

/// A workload, its host and its target.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name in results.
    pub name: &'static str,
    /// Which host it is on.
    pub host: usize,
    /// Its requests.
    pub source: Source,
    /// The target for its mean response time.
    pub target: Duration,
    /// Its weight.
    pub weight: u32,
    /// When it begins and ends.
    pub from: Instant,
    /// When it stops asking; its host is gone from then on.
    pub until: Instant,
    /// When it asks all that its source has, if there is such a time; else one request in [`SURGE`].
    pub surge: Option<(Instant, Instant)>,
}

/// How much more a workload asks in its surge.
pub const SURGE: usize = 3;

/// The setup of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The array.
    pub device: DeviceParams,
    /// Bytes of it that are used.
    pub capacity: u64,
    /// The workloads, in the order of [`Outcome::seconds`].
    pub workloads: Vec<Workload>,
    /// How slots are shared out.
    pub slots: slots::Config,
    /// When hosts do not hear of each other.
    pub partition: Option<(Instant, Instant)>,
    /// How long it runs before it counts.
    pub lead: Duration,
    /// How long after that.
    pub duration: Duration,
}

/// A second of one workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// Requests completed.
    pub completed: u64,
    /// Their response times, added up, in seconds.
    pub response_s: f64,
}

impl Second {
    /// Mean response time in seconds; `None` when nothing completed.
    pub fn response(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.response_s / self.completed as f64)
    }
}

/// The outcome of a run: for each workload its seconds, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By workload.
    pub seconds: Vec<Vec<Second>>,
}

/// Runs it. The same setup and seed give the same outcome, bit for bit.
///
/// # Errors
/// Parameters of the device or of the slots that make no sense.
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
    let device = |params: &DeviceParams, _| Device::new(params, seed);
    let ran = run_hosts(&world, &hosts, seed, device, &mut |now, workload, done| {
        let second = (now.since(from).as_nanos() / WINDOW.as_nanos()) as usize;
        if let Some(second) = seconds[workload].get_mut(second).filter(|_| now >= from) {
            second.completed += 1;
            second.response_s += now.since(done.sent_at).as_secs_f64();
        }
    });
    ran.map(|_| Outcome { seconds }).map_err(|failure| failure.to_string())
}

impl Workload {
    fn tenant(&self) -> Tenant {
        let latency_target = Some(LatencyTarget::mean(self.target));
        Tenant { latency_target, ..Tenant::new(self.name, Qos { weight: self.weight, ..Qos::default() }) }
    }

    /// Its requests, from the first on.
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
