//! Latency targets of hosts that share an array: the experiments of the DRG paper.
//!
//! L. Liu, L. Xu and D. Yang, *A Decentralized Resource Allocation Approach for Response-time Guarantees in Storage
//! System*. The array is the model [`evenkeel_model::raid`] of eight disks as in the paper. Where the paper leaves
//! something open (load, period, slots, duration), a value is chosen and documented.
//!
//! | module | contents |
//! |---|---|
//! | [`load`] | the requests of the workloads, generated or recorded |
//! | [`world`] | hosts, their pools, the array, and the figures that hosts send each other |
//! | `judge` | rows of the report, and claims |
//! | `tuning` | settings of the baselines, tuned on a training set |

mod judge;
pub mod load;
mod tuning;
pub mod world;

pub use tuning::tuned;

use std::sync::Arc;

use evenkeel_control::slots::{Config, Method};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::disk::{DiskParams, Scheduling};
use evenkeel_model::raid::Raid0Params;

use super::once::once;
use super::tune::Tuned;
use super::{Options, Report};
use crate::workload::trace::Record;
use load::{Habits, Source};
use world::{Outcome, SURGE, Setup, Workload};

/// Name on the command line and in results.
pub const NAME: &str = "drg";

/// Workloads of the paper.
const NAMES: [&str; 4] = ["web0", "web1", "tpcc0", "tpcc1"];
/// Slots that the methods with a fixed total share out, and the upper bound of the published method: requests in flight on
/// the array. With so many slots the overloaded array has a latency a little below [`LATENCY`].
const TOTAL: f64 = 100.0;
/// Target of the published method for the device's latency: two fifths of the smallest response time target.
const LATENCY: Duration = Duration::from_millis(100);
/// Counted time of a run, in seconds of virtual time.
const SECONDS: u64 = 120;
/// Warm-up before the counted time.
const LEAD: Duration = Duration::from_secs(10);
/// Start and end of the disturbance in cases that have one (a join, a death, lost figures), in seconds of the run.
const EVENT: (u64, u64) = (40, 80);
/// Duration of the surge in the case `Neighbour`, in which tpcc1 sends [`SURGE`] times its usual rate.
const SURGE_LASTS: Duration = Duration::from_secs(20);

/// Recorded requests, replayed in place of generated ones.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// Requests of the workloads web0 and web1; `None`: generated.
    pub web: Option<Arc<[Record]>>,
    /// Requests of the workloads tpcc0 and tpcc1; `None`: generated.
    pub tpcc: Option<Arc<[Record]>>,
}

/// The type [`super::Execute`] with this experiment's setup and outcome.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// A case of the experiment: targets, load and disturbance of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// The paper's set of latency targets SLO_A.
    SloA,
    /// The paper's set of latency targets SLO_B.
    SloB,
    /// SLO_A; the rates of the TPC-C workloads vary twice as much.
    Bursts,
    /// SLO_A; the host of tpcc1 joins in mid-run.
    Join,
    /// SLO_A; the host of tpcc1 fails in mid-run.
    Death,
    /// SLO_A; for a third of the run hosts receive no figures from each other.
    Loss,
    /// SLO_A, but tpcc1 has a target of 30 s, and for 20 s sends three times its usual rate: more than the array can serve.
    Neighbour,
    /// SLO_B with 25 % more requests per second: not all targets can be met.
    Unachievable,
    /// SLO_A with the WebSearch workloads, and recorded traces, at their own pace.
    OwnPace,
}

evenkeel_control::named!(Case: SloA "slo_a", SloB "slo_b", Bursts "burst", Join "join", Death "death", Loss "loss",
    Neighbour "neighbour", Unachievable "unachievable", OwnPace "own_pace");

/// An arm: a method, with its published settings or with tuned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arm {
    method: Method,
    is_tuned: bool,
}

impl Arm {
    /// All methods, and after them those with tuned settings.
    fn of(tuned: &Tuned) -> Vec<Self> {
        let has = |method: &Method| tuned.baselines.contains_key(method.name());
        let published = Method::ALL.into_iter().map(|method| Self { method, is_tuned: false });
        let again = tuning::SUBJECTS.into_iter().map(|(method, _)| method).filter(has);
        published.chain(again.map(|method| Self { method, is_tuned: true })).collect()
    }

    /// Name in results.
    fn name(self) -> String {
        format!("{}{}", self.method.name(), if self.is_tuned { "_tuned" } else { "" })
    }

    fn config(self, tuned: &Tuned) -> Config {
        if self.method == Method::Needs {
            return Config::NEEDS;
        }
        let parameters = tuning::parameters(self.method);
        let values = tuned.values(self.method.name(), parameters).filter(|_| self.is_tuned);
        values.map_or(Config::published(self.method, LATENCY, TOTAL), |values| tuning::config(self.method, &values))
    }
}

impl Case {
    /// True for the cases of the paper.
    const fn is_published(self) -> bool {
        matches!(self, Self::SloA | Self::SloB)
    }

    /// Response time targets by workload, in milliseconds.
    const fn targets(self) -> [u64; 4] {
        match self {
            Self::SloB | Self::Unachievable => [400, 400, 250, 250],
            Self::Neighbour => [250, 250, 800, 30_000],
            _ => [250, 250, 800, 800],
        }
    }

    fn setup(self, slots: Config, traces: &Traces) -> Setup {
        let ours = slots.method == Method::Needs;
        let (event, end) = (Instant::ZERO + Duration::from_secs(EVENT.0), Instant::ZERO + Duration::from_secs(EVENT.1));
        let workload = |place: usize| {
            let web = place < 2;
            let mut habits = if web { Habits::web() } else { Habits::tpcc() };
            let recorded = if web { &traces.web } else { &traces.tpcc };
            match self {
                Self::OwnPace => {
                    let invented = if web { load::WEB_OWN_RATE_PER_S } else { habits.rate_per_s };
                    let own = |records: &Arc<[Record]>| load::own_rate_per_s(records).unwrap_or(habits.rate_per_s);
                    habits.rate_per_s = recorded.as_ref().map_or(invented, own);
                }
                Self::Bursts if !web => habits.varies *= 2.0,
                Self::Unachievable => habits.rate_per_s *= 1.25,
                Self::Neighbour if place == 3 => habits.rate_per_s *= SURGE as f64,
                _ => {}
            }
            let target = self.targets()[place];
            Workload {
                name: NAMES[place],
                // The published method and those beside it are calculated in one place, without waiting for other hosts.
                host: if ours { place } else { 0 },
                source: match recorded {
                    Some(records) => Source::Recorded(habits, Arc::clone(records)),
                    None => Source::Twin(habits),
                },
                target: Duration::from_millis(target),
                // Shares after the targets: who is to be served faster gets more, and each gets some.
                weight: (100_000 / target.min(800)) as u32,
                from: if self == Self::Join && place == 3 { event } else { Instant::ZERO },
                until: if self == Self::Death && place == 3 { event } else { Instant::FAR_FUTURE },
                surge: (self == Self::Neighbour && place == 3).then_some((event, event + SURGE_LASTS)),
            }
        };
        Setup {
            device: array(),
            capacity: 8 * (DiskParams::cheetah9lp().capacity_bytes >> 20 << 20),
            workloads: (0..NAMES.len()).map(workload).collect(),
            slots,
            // A single host has no other one to hear of.
            partition: (self == Self::Loss && ours).then_some((event, end)),
            lead: LEAD,
            duration: Duration::from_secs(SECONDS),
        }
    }
}

/// RAID-0 of eight Seagate Cheetah 9LP disks; each disk serves the request with the shortest positioning time first.
fn array() -> DeviceParams {
    let member = DiskParams { queue_depth: 64, scheduling: Scheduling::Sptf, ..DiskParams::cheetah9lp() };
    DeviceParams::Raid0(Raid0Params {
        members: 8,
        stripe_bytes: 64 << 10,
        member: Box::new(DeviceParams::Disk(member)),
    })
}

/// Runs all cases and methods. Workloads replay `traces` where given, and send generated requests otherwise.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, traces: &Traces, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    let seeds: Vec<u64> = (options.seed..).take(options.count(30, 1)).collect();
    let arms = Arm::of(&options.tuned);
    let mut runs = Vec::new();
    for case in Case::ALL {
        for arm in &arms {
            let setup = case.setup(arm.config(&options.tuned), traces);
            runs.extend(seeds.iter().map(|&seed| (setup.clone(), seed)));
        }
    }
    // In one place no figures are lost: without hosts of their own, methods run in `Loss` as in `SloA`.
    let outcomes = once("cases", &runs, &[], &[], execute)?;
    Ok(judge::report(options, &outcomes, &arms, seeds.len(), traces))
}
