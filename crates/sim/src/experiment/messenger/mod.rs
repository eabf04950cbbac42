//! Connections of a storage cluster's messengers, placed on workers: the experiments of the message-aware scheduler.
//!
//! Y. Han, S. Park and K. Lee, *A Dynamic Message-aware Communication Scheduler for Ceph Storage System*. Workers are the
//! model [`evenkeel_model::worker`]; what the paper leaves open is chosen and said.
//!
//! | module | what it does |
//! |---|---|
//! | [`cluster`] | who talks to whom, and how much |
//! | [`world`] | clients, OSDs, workers and placements in virtual time |
//! | `best` | the most even placement, known afterwards |
//! | `judge` | rows and claims |

mod best;
pub mod cluster;
mod judge;
pub mod world;

use evenkeel_control::Duration;
use evenkeel_control::placement::{Config, Moving};
use evenkeel_control::rng::SplitMix64;
use evenkeel_model::worker::WorkerParams;
use evenkeel_policy::config::Placement;

use super::{Options, Report};
use cluster::{Load, Skew};
use world::{Outcome, Setup};

/// Name on the command line and in results.
pub const NAME: &str = "messenger";

/// Costs and delays are stretched by this, so that the cluster has as many messages to serve as the paper's had (Table I:
/// 113,000 reads a second) and not as many as `serve` could; what is relative does not change with it.
const SLOWER: f64 = 48.0;
/// From one end of a connection to the other, before that; assumed.
const NETWORK_US: u64 = 25;
/// From a reply to the client's next request, before that: so that the most loaded worker is busy 95 % of the time with
/// round robin in each of the three operations, for where no worker is short of time placement changes nothing.
const CLIENT_US: u64 = 30;
/// `sigma` is fitted to the most loaded worker of figure 2; the other figures are assumed.
const SKEW: Skew = Skew { sigma: 0.75, common: 0.5, drifting: 0.25, memory_s: 30.0 };
/// Before it counts: the published method decides after 5 and 10 s.
const LEAD: Duration = Duration::from_secs(11);

/// As [`super::Execute`], of this experiment.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// The operation of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Read,
    Write,
    Mixed,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mixed];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "randread",
            Self::Write => "randwrite",
            Self::Mixed => "randrw",
        }
    }

    /// Part of the requests that write; 8:2 for both (section VI.B).
    const fn writes(self) -> f64 {
        match self {
            Self::Read => 0.0,
            Self::Write => 1.0,
            Self::Mixed => 0.2,
        }
    }
}

/// The method of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    RoundRobin,
    Genetic,
    Waits,
    LeastConnections,
    Lpt,
    /// Ours, as often as the published method.
    WaitsSlow,
}

impl Arm {
    const ALL: [Self; 6] =
        [Self::RoundRobin, Self::Genetic, Self::Waits, Self::LeastConnections, Self::Lpt, Self::WaitsSlow];

    /// Name in results of those that have no column of their own.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::RoundRobin | Self::Genetic | Self::Waits => None,
            Self::LeastConnections => Some("least_connections"),
            Self::Lpt => Some("lpt"),
            Self::WaitsSlow => Some("waits_5s"),
        }
    }

    /// As a server has it; ours every 5 s as well.
    const fn config(self) -> Config {
        match self {
            Self::RoundRobin => Placement::RoundRobin.control(),
            Self::LeastConnections => Placement::LeastConnections.control(),
            Self::Genetic => Placement::Genetic.control(),
            Self::Lpt => Placement::Lpt.control(),
            Self::Waits => Placement::Waits.control(),
            Self::WaitsSlow => Config::Waits(Moving::published()),
        }
    }
}

/// The paper's cluster: `writes` of the requests write (0 to 1), for `seconds` after a lead.
pub fn setup(writes: f64, load: Load, placement: Config, seconds: u64) -> Setup {
    let stretched = |us: u64| Duration::from_nanos((us as f64 * 1e3 * SLOWER) as u64);
    Setup {
        params: WorkerParams::serve().slower(SLOWER),
        network: stretched(NETWORK_US),
        client: stretched(CLIENT_US),
        skew: SKEW,
        writes,
        load,
        placement,
        lead: LEAD,
        duration: Duration::from_secs(seconds),
    }
}

/// Runs everything.
///
/// # Errors
/// What `execute` answers.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    // Runs differ much, so rather many short ones; the shortest are two windows.
    let (seeds, seconds) = if options.quick { (2, 10) } else { (10, 15) };
    // Far apart, so that the runs of one seed are not those of the next.
    let mut rng = SplitMix64::new(options.seed);
    let seeds: Vec<u64> = (0..seeds).map(|_| rng.next_u64() >> 16).collect();
    let mut runs = Vec::new();
    for load in [Load::Equal, Load::Random] {
        for operation in Operation::ALL {
            for arm in Arm::ALL {
                let setup = setup(operation.writes(), load, arm.config(), seconds);
                runs.extend(seeds.iter().map(|&seed| (setup.clone(), seed)));
            }
        }
    }
    let outcomes = execute("placement", &runs)?;
    Ok(judge::report(options, &outcomes, &seeds, seconds))
}
