//! Placement of connections compared with round robin, on workers and connections drawn at random.
//!
//! | module | subject |
//! |---|---|
//! | [`draw`] | a case: workers, and the load of each connection |
//! | [`world`] | a case in virtual time |
//!
//! The criteria are those of the judge of admission control; light connections count together, as one tenant. A static
//! placement, chosen on a seed that is not judged, shows how much a method could gain.

pub mod draw;
pub mod world;

use evenkeel_control::placement::Config;

use super::judge::{Effect, GAINED, Verdict};
pub use draw::Case;
use world::{Outcome, Who, simulate};

/// Runs (seeds) of every case.
const SEEDS: u64 = 2;
/// Runs (seeds) of a case that looks harmed after [`SEEDS`] runs.
const MORE_SEEDS: u64 = 8;
/// Seed of the runs by which the static placement is chosen; the method is judged on other seeds.
const OTHER_SEED: u64 = 1_000;
/// A static placement is worth having with at least the first value times the throughput of round robin, and at most the
/// second value times its p99 latency of light connections.
const WORTH: (f64, f64) = (0.97, 0.5);
/// Requests of light connections that a run needs for meaningful percentiles.
const REQUESTS: u64 = 300;

/// A case and its results.
pub struct Judged {
    /// Seed of the case.
    pub seed: u64,
    /// Effect of the method, compared with round robin.
    pub effect: Effect,
    /// The method's gain divided by the gain of the best static placement. Gain: fall of the light connections' p99 latency
    /// against round robin. `None` where no static placement is worth having ([`Counts::worth`]).
    pub part_of_gain: Option<f64>,
}

impl Judged {
    /// The verdict on the method by its effect.
    pub fn verdict(&self) -> Verdict {
        self.effect.verdict()
    }
}

/// Numbers of cases by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of cases that the method harms.
    pub harmed: usize,
    /// Number of cases that the method harms gravely.
    pub gravely: usize,
    /// Number of cases that the method helps.
    pub helped: usize,
    /// Cases in which a static placement halves the light connections' p99 and keeps 97 % of the throughput.
    pub worth: usize,
    /// Cases of `worth` in which the method has at least half of the best static placement's gain.
    pub gained: usize,
}

impl Counts {
    /// Counts the verdicts of cases.
    pub fn of(cases: &[Judged]) -> Self {
        let count = |counts: &dyn Fn(&Judged) -> bool| cases.iter().filter(|case| counts(case)).count();
        Self {
            harmed: count(&|case| case.verdict().harmed),
            gravely: count(&|case| case.verdict().gravely),
            helped: count(&|case| case.verdict().helped),
            worth: count(&|case| case.part_of_gain.is_some()),
            gained: count(&|case| case.part_of_gain.is_some_and(|part| part >= GAINED)),
        }
    }
}

/// Judges the placement method `config` on the cases with the seeds `from..from + count`. Results are reproducible.
pub fn cases(from: u64, count: u64, config: Config) -> Vec<Judged> {
    (from..from + count).map(|seed| judge(seed, config)).collect()
}

/// Judges the placement method `config` on the case of one seed.
pub fn judge(seed: u64, config: Config) -> Judged {
    let case = draw::case(seed);
    let mut judged = Judged { seed, effect: Effect::default(), part_of_gain: None };
    let found = find_static(&case);
    let mut gains = [0.0; 2];
    for run in 0..MORE_SEEDS {
        if run >= SEEDS && !judged.effect.looks_harmed() {
            break;
        }
        let none = simulate(&case, &Who::Placed(Config::RoundRobin), run);
        let ours = simulate(&case, &Who::Placed(config), run);
        learn(&mut judged.effect, &none, &ours);
        if let Some(homes) = &found
            && run < SEEDS
        {
            let best = simulate(&case, &Who::Homes(homes.clone()), run);
            gains[0] += none.light_ms[1] - best.light_ms[1];
            gains[1] += none.light_ms[1] - ours.light_ms[1];
        }
    }
    judged.part_of_gain = (found.is_some() && gains[0] > 0.0).then(|| gains[1] / gains[0]);
    judged
}

fn learn(effect: &mut Effect, none: &Outcome, ours: &Outcome) {
    let light = (none.light_requests >= REQUESTS).then_some((none.light_ms, ours.light_ms));
    effect.add(ours.bytes_per_s / none.bytes_per_s.max(1.0), light);
}

/// The static placement with the lowest p99 of light connections among those worth having; each connection's worker. Three
/// are tried, which place the heaviest connections first, each on the worker with the least load: by load per time slot,
/// by total load, and by load per time slot with one worker reserved for light connections.
fn find_static(case: &Case) -> Option<Vec<u32>> {
    let none = simulate(case, &Who::Placed(Config::RoundRobin), OTHER_SEED);
    if none.light_requests < REQUESTS || case.workers < 2 {
        return None;
    }
    let kinds = [(true, case.workers), (false, case.workers), (true, case.workers - 1)];
    let tried = kinds.map(|(by_slot, heavy)| {
        let homes = place(case, &none.slots, by_slot, heavy);
        (simulate(case, &Who::Homes(homes.clone()), OTHER_SEED), homes)
    });
    let worth = |outcome: &Outcome| {
        outcome.bytes_per_s >= WORTH.0 * none.bytes_per_s && outcome.light_ms[1] <= WORTH.1 * none.light_ms[1]
    };
    let best = tried.into_iter().filter(|(outcome, _)| worth(outcome));
    best.min_by(|(a, _), (b, _)| a.light_ms[1].total_cmp(&b.light_ms[1])).map(|(_, homes)| homes)
}

/// A static placement: each connection's worker. Heavy connections come first, the heaviest of them at the start, on one of
/// the first `heavy` workers; light connections come last, on any worker. Each goes to the worker with the least total load,
/// or, with `by_slot`, with the least load in the time slots in which the connection is active.
fn place(case: &Case, slots: &[Vec<f32>], by_slot: bool, heavy: usize) -> Vec<u32> {
    let width = slots.first().map_or(0, Vec::len);
    let mut totals = vec![vec![0.0_f32; width]; case.workers];
    let mut homes = vec![0; case.connections.len()];
    let sum = |of: usize| slots[of].iter().sum::<f32>();
    let mut order: Vec<usize> = (0..homes.len()).collect();
    let light = |of: usize| case.connections[of].light;
    order.sort_by(|&a, &b| light(a).cmp(&light(b)).then(sum(b).total_cmp(&sum(a))));
    for one in order {
        let among = if case.connections[one].light { case.workers } else { heavy };
        let meets = |worker: usize| -> f32 {
            let total = &totals[worker];
            if by_slot {
                total.iter().zip(&slots[one]).map(|(total, load)| total * (load + 1e-4)).sum()
            } else {
                total.iter().sum()
            }
        };
        let worker = (0..among).min_by(|&a, &b| meets(a).total_cmp(&meets(b))).unwrap_or(0);
        homes[one] = worker as u32;
        totals[worker].iter_mut().zip(&slots[one]).for_each(|(total, load)| *total += load);
    }
    homes
}
