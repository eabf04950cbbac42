//! Connections of a storage cluster's messengers, placed on workers: the experiments of the message-aware scheduler.
//!
//! Y. Han, S. Park and K. Lee, *A Dynamic Message-aware Communication Scheduler for Ceph Storage System*. Workers are
//! the model [`evenkeel_model::worker`]. Where the paper leaves something open, a value is chosen and documented.
//!
//! | module | contents |
//! |---|---|
//! | [`cluster`] | connections between clients and OSDs, and the messages on them |
//! | [`world`] | clients, OSDs, workers and placements in virtual time |
//! | `best` | the most even placement, computed from loads after they were measured |
//! | `judge` | rows of the report, and claims |
//! | `tuning` | settings of the methods that move connections, tuned on a training set |

mod best;
pub mod cluster;
mod judge;
mod tuning;
pub mod world;

pub use tuning::tuned;

use evenkeel_control::Duration;
use evenkeel_control::placement::{Config, Moving};
use evenkeel_control::rng::SplitMix64;
use evenkeel_model::worker::WorkerParams;
use evenkeel_policy::config::Placement;

use super::once::once;
use super::tune::Tuned;
use super::{Options, Report};
use cluster::{Load, Opening, Skew};
use world::{Outcome, Setup};

/// Name on the command line and in results.
pub const NAME: &str = "messenger";

/// Factor on all costs and delays, with which the modelled cluster serves as many messages as the paper's cluster (Table I:
/// 113,000 reads per second), fewer than `serve` could. Ratios of figures do not depend on the factor.
const SLOWER: f64 = 48.0;
/// One-way network delay in microseconds, before the factor [`SLOWER`]; assumed.
const NETWORK_US: u64 = 25;
/// Mean time from a reply to the client's next request in microseconds, before the factor [`SLOWER`]. It is chosen so that
/// under round robin the most loaded worker is busy 95 % of the time in each of the three operations; placement would change
/// nothing if all workers had idle time.
const CLIENT_US: u64 = 30;
/// Inequality of the requests' destinations. `sigma` is fitted to the most loaded worker of figure 2; the other values are
/// assumed.
const SKEW: Skew = Skew { sigma: 0.75, common: 0.5, drifting: 0.25, memory_s: 30.0 };
/// Warm-up before the counted time: long enough for the published method's first two decisions, at 5 and 10 s.
const LEAD: Duration = Duration::from_secs(11);

/// The type [`super::Execute`] with this experiment's setup and outcome.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// The operation that all clients of a run perform: reads, writes, or both mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Read,
    Write,
    Mixed,
}

evenkeel_control::named!(Operation: Read "randread", Write "randwrite", Mixed "randrw");

impl Operation {
    /// Share of the requests that are writes, 0 to 1. Mixed operation has 8 reads to 2 writes (section VI.B).
    const fn writes(self) -> f64 {
        match self {
            Self::Read => 0.0,
            Self::Write => 1.0,
            Self::Mixed => 0.2,
        }
    }
}

/// An arm of the experiment: a method of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    RoundRobin,
    Genetic,
    Waits,
    LeastConnections,
    Lpt,
    /// The project's own method, deciding every 5 s as the published method does.
    WaitsSlow,
    /// The project's own method, deciding every second.
    WaitsSecond,
    /// The published method, deciding every second.
    GeneticSecond,
    /// LPT, deciding every 5 s.
    LptSlow,
    /// The published method with tuned settings.
    GeneticTuned,
    /// LPT with tuned settings.
    LptTuned,
}

impl Arm {
    const ALL: [Self; 11] = [
        Self::RoundRobin,
        Self::Genetic,
        Self::Waits,
        Self::LeastConnections,
        Self::Lpt,
        Self::WaitsSlow,
        Self::WaitsSecond,
        Self::GeneticSecond,
        Self::LptSlow,
        Self::GeneticTuned,
        Self::LptTuned,
    ];

    /// Name of an arm that has rows of its own in results; `None` for the three arms that are the columns of every row.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::RoundRobin | Self::Genetic | Self::Waits => None,
            Self::LeastConnections => Some("least_connections"),
            Self::Lpt => Some("lpt"),
            Self::WaitsSlow => Some("waits_5s"),
            Self::WaitsSecond => Some("waits_1s"),
            Self::GeneticSecond => Some("genetic_1s"),
            Self::LptSlow => Some("lpt_5s"),
            Self::GeneticTuned => Some("genetic_tuned"),
            Self::LptTuned => Some("lpt_tuned"),
        }
    }

    /// The settings of the method, as a server uses them or as they were tuned; `None` if they were not tuned.
    fn config(self, tuned: &Tuned) -> Option<Config> {
        Some(match self {
            Self::RoundRobin => Placement::RoundRobin.control(),
            Self::LeastConnections => Placement::LeastConnections.control(),
            Self::Genetic => Placement::Genetic.control(),
            Self::Lpt => Placement::Lpt.control(),
            Self::Waits => Placement::Waits.control(),
            Self::WaitsSlow => Config::Waits(Moving::published()),
            Self::WaitsSecond => Config::Waits(Moving::slow()),
            Self::GeneticSecond => Config::Genetic(Moving::slow()),
            Self::LptSlow => Config::Lpt(Moving::published()),
            Self::GeneticTuned => tuning::config(tuning::GENETIC, &tuned.values(tuning::GENETIC, &tuning::OF_GENETIC)?),
            Self::LptTuned => tuning::config(tuning::LPT, &tuned.values(tuning::LPT, &tuning::OF_LPT)?),
        })
    }
}

/// A case: what clients do, and how connections were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    opening: Opening,
    load: Load,
    operation: Operation,
}

/// The opening orders: the random one, and in a full run also that in which active connections collide.
fn openings(quick: bool) -> &'static [Opening] {
    if quick { &[Opening::Random] } else { &Opening::ALL }
}

/// All cases of these opening orders.
fn cases(openings: &[Opening]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &opening in openings {
        for load in Load::ALL {
            cases.extend(Operation::ALL.map(|operation| Case { opening, load, operation }));
        }
    }
    cases
}

/// A setup of the paper's cluster with a random opening order. `writes` is the share of the requests that are writes, 0 to 1;
/// `seconds` is the length of the counted time.
pub fn setup(writes: f64, load: Load, placement: Config, seconds: u64) -> Setup {
    let stretched = |us: u64| Duration::from_nanos((us as f64 * 1e3 * SLOWER) as u64);
    Setup {
        params: WorkerParams::serve().slower(SLOWER),
        network: stretched(NETWORK_US),
        client: stretched(CLIENT_US),
        skew: SKEW,
        writes,
        load,
        opening: Opening::Random,
        placement,
        lead: LEAD,
        duration: Duration::from_secs(seconds),
    }
}

/// Runs all cases with all methods of placement.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    // Runs differ much, so rather many short ones; the shortest are two windows.
    let seconds = if options.quick { 10 } else { 15 };
    // Far apart, so that the runs of one seed are not those of the next.
    let mut rng = SplitMix64::new(options.seed);
    let seeds: Vec<u64> = (0..options.count(30, 2)).map(|_| rng.next_u64() >> 16).collect();
    let arms: Vec<(Arm, Config)> =
        Arm::ALL.into_iter().filter_map(|arm| Some((arm, arm.config(&options.tuned)?))).collect();
    let cases = cases(openings(options.quick));
    let mut runs = Vec::new();
    for Case { opening, load, operation } in &cases {
        for &(_, placement) in &arms {
            let setup = Setup { opening: *opening, ..setup(operation.writes(), *load, placement, seconds) };
            runs.extend(seeds.iter().map(|&seed| (setup.clone(), seed)));
        }
    }
    // Tuned values may be the published ones.
    let outcomes = once("placement", &runs, &[], &[], execute)?;
    let arms: Vec<Arm> = arms.into_iter().map(|(arm, _)| arm).collect();
    Ok(judge::report(options, &judge::Outcomes::new(&outcomes, cases, arms, seeds.len()), &seeds, seconds))
}
