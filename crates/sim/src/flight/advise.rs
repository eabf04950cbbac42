//! Advice on a policy: which of its targets are achievable for a recorded load on a device, and by which settings.
//!
//! The wanted policy is simulated as it is and with changes: without admission control, with the default one, with fixed
//! budgets, with slots, with reservations or higher weights for tenants that have targets, and with lower limits on the three
//! tenants that have the most load. Of the candidates that meet all targets and guarantees the one with the most throughput is
//! advised, or the wanted policy if that has hardly less.
//!
//! A block bootstrap gives the confidence: the seconds of the simulated run are drawn anew in blocks, which keeps
//! bursts together, and the share of draws is counted in which all latency targets hold. It says how much the result depends
//! on the recorded seconds; errors of the device model are not in it.
//!
//! Without such a candidate a smaller load and a faster device are sought. At most 23 policies are tried, and 15 more runs are
//! made for load and device.

use std::cmp::Reverse;

use evenkeel_control::admission;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::Method;
use evenkeel_model::device::DeviceParams;
use evenkeel_policy::tenant::Percentile;
use serde::Serialize;

use super::figures::{Figures, Second, Target, TargetFigures, TenantFigures, recorded};
use super::load::Load;
use super::policy::{Guaranteed, Policy};
use super::replay::{simulate, simulate_on, speeded};
use super::speed;
use crate::world::Failure;

/// The candidate without a difference from the wanted policy.
const AS_WANTED: &str = "as wanted";
/// Shares of its recorded rate to which a tenant with much load is limited.
const LIMITS: [f64; 4] = [0.75, 0.5, 0.35, 0.25];
/// Number of tenants that are limited, one at a time.
const LIMITED: usize = 3;
/// Fixed budgets that are tried, with their names.
const BUDGETS: [(u64, &str); 5] =
    [(64 << 10, "64 KiB"), (256 << 10, "256 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB"), (16 << 20, "16 MiB")];
/// The wanted policy is advised if it loses at most this against the best candidate: a simulation tells no smaller difference.
const ALIKE: f64 = 0.01;
/// Least length of a run for a bootstrap, in seconds.
const FEWEST_SECONDS: usize = 10;
/// Number of draws of the bootstrap.
const DRAWS: u32 = 1_000;
/// Length of a block of the bootstrap in seconds, if the run is long enough for ten.
const BLOCK: usize = 5;
/// Factor by which the weight of a tenant with a target is raised.
const HEAVIER: u32 = 8;
/// A reservation is set this much above the recorded rate.
const HEADROOM: f64 = 1.1;
/// Share of a guaranteed throughput that has to be achieved.
const KEPT: f64 = 0.97;
/// Number of halvings in the search for the largest load that meets the targets: within 1/64.
const HALVINGS: u32 = 6;
/// Cost of a request beside its payload, in bytes, for the comparison of loads.
const BASE_BYTES: u64 = 4_000;

/// A guarantee with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    /// Name of the tenant.
    pub tenant: String,
    /// The unit of both rates: `IOPS` or `B/s`.
    pub unit: &'static str,
    /// The smaller of guaranteed and recorded rate, in requests or bytes per second.
    pub due: f64,
    /// The simulated rate.
    pub achieved: f64,
    /// True if the guarantee is met.
    pub met: bool,
}

/// A policy that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The difference from the wanted policy.
    pub change: String,
    /// The figures of its run.
    pub figures: Figures,
    /// The guarantees.
    pub guarantees: Vec<Kept>,
    /// True if all targets and guarantees are met.
    pub met: bool,
    /// Throughput lost against the candidate with the most, 0 to 1.
    pub lost: f64,
    /// The policy.
    #[serde(skip)]
    pub policy: Policy,
}

impl Candidate {
    /// The largest figure of a target as a multiple of it, or of a due rate as a multiple of the achieved one; at most 1 for a
    /// guarantee that is met. Infinite if requests did not complete.
    pub fn worst(&self) -> f64 {
        if self.figures.unfinished > 0 {
            return f64::INFINITY;
        }
        let targets = self.figures.targets.iter().map(|target| target.achieved_ms / target.target_ms.max(1e-9));
        let guarantees = self.guarantees.iter().map(|kept| {
            let ratio = kept.due / kept.achieved.max(1e-9);
            // A rate just below the due one meets the guarantee: the figure does not contradict the verdict.
            if kept.met { ratio.min(1.0) } else { ratio }
        });
        targets.chain(guarantees).fold(0.0, f64::max)
    }
}

/// The device that would meet all targets and guarantees, where no candidate does on the device as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FasterDevice {
    /// The candidate that was simulated on it, by its difference from the wanted policy.
    pub change: String,
    /// Its speed as a multiple of that of the device, in tenths: the least up to 8; `None` if not even 8 is enough.
    pub factor: Option<f64>,
}

/// A policy whose simulation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Untried {
    /// The difference from the wanted policy.
    pub change: String,
    /// The reason.
    pub failure: String,
}

/// A target that no candidate meets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unmet {
    /// The target in words.
    pub target: String,
    /// The best figure of all candidates, in milliseconds.
    pub best_ms: f64,
    /// The best figure divided by the target.
    pub ratio: f64,
}

/// Advice on a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Name of the pool.
    pub pool: String,
    /// The seed of simulation and bootstrap.
    pub seed: u64,
    /// The candidates, in the order of trial.
    pub candidates: Vec<Candidate>,
    /// Policies whose simulations failed.
    pub untried: Vec<Untried>,
    /// Index of the advised candidate; `None` if none meets all targets and guarantees.
    pub chosen: Option<usize>,
    /// Share of the bootstrap's draws in which the advised candidate meets all latency targets, 0 to 1; `None` without advice or
    /// targets, if the run is too short, and if a target has too few requests for its percentile.
    pub confidence: Option<f64>,
    /// Targets that no candidate meets.
    pub unmet: Vec<Unmet>,
    /// Targets without requests, in words: the load says nothing about them, and they count as not met.
    pub unjudged: Vec<String>,
    /// Guarantees that no candidate keeps, each with the highest rate.
    pub unkept: Vec<Kept>,
    /// The largest share of the load, 0 to 1, with which the wanted policy meets its latency targets; 0 if there is none down to
    /// 1/64; `None` with an advice, and if the wanted policy meets its latency targets.
    pub load_share: Option<f64>,
    /// The device that would meet all targets and guarantees; `None` with an advice, and if a target has no requests.
    pub faster: Option<FasterDevice>,
    /// The policy to use, as TOML; empty if none meets all targets and guarantees.
    pub advised: String,
    /// Doubts about the result.
    pub notes: Vec<String>,
}

impl Advice {
    /// The advised candidate.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.get(self.chosen?)
    }
}

/// Reason why there is no advice.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Trouble {
    /// The wanted policy wants nothing.
    #[error(
        "the policy has neither a latency target nor a guarantee for this load: add latency, reservation or guarantee \
         to [tenants.NAME], or latency to [pools.NAME]"
    )]
    NothingWanted,
    /// All simulations failed.
    #[error("no policy can be simulated; {change}: {failure}")]
    Failed {
        /// The first candidate.
        change: String,
        /// The reason why it cannot be simulated.
        failure: String,
    },
    /// The policy cannot be written.
    #[error("the advised policy cannot be written: {reason}")]
    Unwritable {
        /// The reason.
        reason: String,
    },
}

/// Advises on the policy `wish` for a load on a device. The same arguments give the same advice.
///
/// # Errors
/// When the policy wants nothing, or no simulation succeeds.
pub fn advise(load: &Load, device: &DeviceParams, wish: &Policy, seed: u64) -> Result<Advice, Trouble> {
    let (targets, guaranteed) = (wish.targets(load), wish.guaranteed(load));
    if targets.is_empty() && guaranteed.is_empty() {
        return Err(Trouble::NothingWanted);
    }
    let before = recorded(load, &[]);
    let run = |policy: &Policy| simulate(load, device, Some(policy), &targets, seed);
    let (mut candidates, untried) = tried(policies(load, &before, wish, &targets), run);
    if let (true, Some(Untried { change, failure })) = (candidates.is_empty(), untried.first()) {
        return Err(Trouble::Failed { change: change.clone(), failure: failure.clone() });
    }
    let most = candidates.iter().map(|candidate| candidate.figures.bytes_per_s()).fold(0.0, f64::max);
    for candidate in &mut candidates {
        candidate.guarantees = kept(&guaranteed, &before, &candidate.figures);
        candidate.met = candidate.figures.meets_targets() && candidate.guarantees.iter().all(|kept| kept.met);
        candidate.lost = if most > 0.0 { 1.0 - candidate.figures.bytes_per_s() / most } else { 0.0 };
    }
    let chosen = best_of(&candidates);
    let best = chosen.and_then(|place| candidates.get(place));
    let advised = match best {
        Some(best) => {
            let text = best.policy.text().map_err(|reason| Trouble::Unwritable { reason })?;
            format!(
                "# In place of [pools.{0}], and of the settings of these tenants there.\n# Settings of other pools are not \
                 in this text; beside other pools, write\n# the settings of tenants as [tenants.NAME.pools.{0}].\n{text}",
                best.policy.name
            )
        }
        None => String::new(),
    };
    let confidence = best.and_then(|best| confidence(&targets, &best.figures, seed));
    let mut advice = Advice {
        pool: load.pool.clone(),
        seed,
        chosen,
        confidence,
        unmet: Vec::new(),
        unjudged: Vec::new(),
        unkept: Vec::new(),
        load_share: None,
        faster: None,
        advised,
        notes: load.sampled().into_iter().collect(),
        candidates,
        untried,
    };
    if chosen.is_none() {
        advice.unmet = unmet(&advice.candidates);
        advice.unkept = unkept(&advice.candidates);
        let first = advice.candidates.first();
        let is_without = |target: &&TargetFigures| target.seconds == 0;
        let without = first.iter().flat_map(|candidate| candidate.figures.targets.iter().filter(is_without));
        advice.unjudged = without.map(|target| target.target.clone()).collect();
        // Without candidate as wanted its simulation has failed.
        let wanted = first.filter(|candidate| candidate.change == AS_WANTED);
        let is_missed = |target: &TargetFigures| target.seconds > 0 && !target.met;
        let misses = wanted.is_none_or(|wanted| wanted.figures.targets.iter().any(is_missed));
        if misses && !targets.is_empty() && advice.unjudged.is_empty() {
            advice.load_share = Some(load_share(load, device, wish, &targets, seed));
        }
        if advice.unjudged.is_empty() {
            advice.faster = faster(&advice.candidates, |policy, thousandths| {
                let run = simulate_on(speeded(thousandths), load, device, Some(policy), &targets, seed);
                let keeps = |figures: &Figures| kept(&guaranteed, &before, figures).iter().all(|kept| kept.met);
                run.is_ok_and(|figures| figures.meets_targets() && keeps(&figures))
            });
        }
    }
    Ok(advice)
}

/// The place of the candidate to advise, of those that meet all targets and guarantees: the one that loses least, or the wanted
/// policy if it loses no more than [`ALIKE`] beyond that.
fn best_of(candidates: &[Candidate]) -> Option<usize> {
    let met = || candidates.iter().enumerate().filter(|(_, candidate)| candidate.met);
    let (best, least) = met().min_by(|(_, a), (_, b)| a.lost.total_cmp(&b.lost))?;
    let mut wanted = met().filter(|(_, candidate)| candidate.change == AS_WANTED);
    let alike = wanted.find(|(_, candidate)| candidate.lost <= least.lost + ALIKE);
    Some(alike.map_or(best, |(place, _)| place))
}

/// The least speed of the device at which the nearest candidate `meets` all targets and guarantees; if there is none, that at
/// which the wanted policy does. `None` without candidates.
fn faster(candidates: &[Candidate], meets: impl Fn(&Policy, u32) -> bool) -> Option<FasterDevice> {
    let nearest = candidates.iter().min_by(|a, b| a.worst().total_cmp(&b.worst()))?;
    let wanted = candidates.iter().find(|candidate| candidate.change == AS_WANTED);
    let wanted = wanted.filter(|wanted| wanted.change != nearest.change);
    for candidate in [nearest].into_iter().chain(wanted) {
        if let Some(least) = speed::least(|thousandths| meets(&candidate.policy, thousandths)) {
            let factor = Some(f64::from(least) / 1_000.0);
            return Some(FasterDevice { change: candidate.change.clone(), factor });
        }
    }
    Some(FasterDevice { change: nearest.change.clone(), factor: None })
}

/// The candidates whose simulations succeed, not judged yet, and the others.
fn tried(
    policies: Vec<(String, Policy)>,
    mut run: impl FnMut(&Policy) -> Result<Figures, Failure>,
) -> (Vec<Candidate>, Vec<Untried>) {
    let (mut candidates, mut untried) = (Vec::new(), Vec::new());
    for (change, policy) in policies {
        match run(&policy) {
            Ok(mut figures) => {
                // The course of a month takes much memory, and is not shown.
                figures.course = Vec::new();
                candidates.push(Candidate { change, figures, guarantees: Vec::new(), met: false, lost: 0.0, policy });
            }
            Err(failure) => untried.push(Untried { change, failure: failure.to_string() }),
        }
    }
    (candidates, untried)
}

/// The policies to try, each with its difference from the wanted one.
fn policies(load: &Load, before: &Figures, wish: &Policy, targets: &[Target]) -> Vec<(String, Policy)> {
    let changed = |change: &dyn Fn(&mut Policy)| {
        let mut policy = wish.clone();
        change(&mut policy);
        policy
    };
    let mut all = vec![(AS_WANTED.to_owned(), wish.clone())];
    let open = changed(&|policy| policy.pool.tuning.admission = admission::Config::None);
    all.push(("without admission control".to_owned(), open));
    let usual = changed(&|policy| policy.pool.tuning.admission = admission::Config::default());
    all.push(("default admission control".to_owned(), usual));
    for (budget_bytes, name) in BUDGETS {
        let fixed = changed(&|policy| policy.pool.tuning.admission = admission::Config::Fixed { budget_bytes });
        all.push((format!("budget of {name}"), fixed));
    }
    if targets.iter().any(|target| target.tenant.is_some()) {
        all.push(("slots".to_owned(), changed(&|policy| policy.pool.tuning.slots = Method::Needs)));
        let owners_changed = |change: &dyn Fn(&mut Policy, &TenantFigures)| {
            changed(&|policy| {
                let owners = targets.iter().filter_map(|target| before.tenants.get(target.tenant?));
                for figures in owners.filter(|figures| !load.is_root(&figures.tenant)) {
                    if load.is_of_groups() {
                        policy.adopt_group(&figures.tenant);
                    }
                    change(policy, figures);
                }
            })
        };
        let reserved = owners_changed(&|policy, figures| {
            let tenant = policy.tenant_mut(&figures.tenant);
            let most = if tenant.limit.iops > 0 { tenant.limit.iops } else { u64::MAX };
            let iops = ((figures.iops * HEADROOM).ceil() as u64).clamp(1, most);
            tenant.reservation.iops = tenant.reservation.iops.max(iops);
        });
        all.push(("reservations of the recorded rates".to_owned(), reserved));
        let weighted = owners_changed(&|policy, figures| {
            // The volumes of a tenant with `each` have one weight, which is raised once.
            let weight = wish.tenant(&figures.tenant).weight.saturating_mul(HEAVIER);
            policy.tenant_mut(&figures.tenant).weight = weight;
        });
        all.push((format!("weights times {HEAVIER}"), weighted));
    }
    let heaviest = heaviest(load, targets, wish);
    let heaviest = heaviest.into_iter().filter_map(|place| before.tenants.get(place));
    // The hours of a limit are not simulated.
    let is_timed = |figures: &&TenantFigures| wish.tenant(&figures.tenant).limit.when.is_some();
    for heaviest in heaviest.filter(|heaviest| !is_timed(heaviest)) {
        for share in LIMITS {
            let mut policy = wish.clone();
            if load.is_of_groups() {
                policy.adopt_group(&heaviest.tenant);
            }
            let tenant = policy.tenant_mut(&heaviest.tenant);
            // A limit below the tenant's own guarantee would contradict it; one above that of the operator would void it.
            let due = tenant.reservation.iops.max(tenant.guarantee.sum().iops);
            let most = if tenant.limit.iops > 0 { tenant.limit.iops } else { u64::MAX };
            let iops = ((heaviest.iops * share).ceil() as u64).max(due).max(1);
            if iops >= most {
                continue;
            }
            tenant.limit.iops = iops;
            all.push((format!("{} limited to {iops} IOPS", wish.key(&heaviest.tenant)), policy));
        }
    }
    all.retain({
        let mut seen: Vec<Policy> = Vec::new();
        move |(change, policy)| {
            let is_new = !seen.contains(policy);
            seen.push(policy.clone());
            is_new && (change == AS_WANTED || is_accepted(policy))
        }
    });
    all
}

/// True if the policy as a text is accepted: a change may contradict another setting, as slots do `scheduler = "none"`.
fn is_accepted(policy: &Policy) -> bool {
    policy.text().is_ok_and(|text| Policy::parse(&text, "a changed policy", &policy.name, &[]).is_ok())
}

/// Up to three tenants with the most load, those without a latency target first, and never a host's root group; none if there is
/// only one tenant. The only tenant with targets and guarantees is not among them: its limit would serve none of these. Of the
/// volumes of a tenant with `each`, which have one limit, the one with the most load stands for all.
fn heaviest(load: &Load, targets: &[Target], wish: &Policy) -> Vec<usize> {
    if load.tenants.len() < 2 {
        return Vec::new();
    }
    let mut costs = vec![0u64; load.tenants.len()];
    for request in &load.requests {
        costs[request.tenant] += BASE_BYTES + u64::from(request.io.bytes);
    }
    let guaranteed = wish.guaranteed(load);
    let has_target = |place: usize| targets.iter().any(|target| target.tenant == Some(place));
    let serves_others = |place: usize| {
        let of_others = targets.iter().any(|target| target.tenant != Some(place));
        of_others || guaranteed.iter().any(|guaranteed| guaranteed.tenant != place)
    };
    let places = (0..costs.len()).filter(|&place| !load.is_root(&load.tenants[place]) && serves_others(place));
    let mut places: Vec<usize> = places.collect();
    places.sort_by_key(|&place| (has_target(place), Reverse(costs[place])));
    let (mut heaviest, mut keys): (Vec<usize>, Vec<&str>) = (Vec::new(), Vec::new());
    for place in places {
        let key = wish.key(&load.tenants[place]);
        if !keys.contains(&key) {
            heaviest.push(place);
            keys.push(key);
        }
        if heaviest.len() == LIMITED {
            break;
        }
    }
    heaviest
}

fn kept(guaranteed: &[Guaranteed], before: &Figures, after: &Figures) -> Vec<Kept> {
    let of = |guaranteed: &Guaranteed| -> Vec<Kept> {
        let place = guaranteed.tenant;
        let (Some(recorded), Some(simulated)) = (before.tenants.get(place), after.tenants.get(place)) else {
            return Vec::new();
        };
        let rates = guaranteed.rates;
        let units = [
            ("IOPS", rates.iops, recorded.iops, simulated.iops),
            ("B/s", rates.bytes_per_s, recorded.bytes_per_s, simulated.bytes_per_s),
        ];
        let set = units.into_iter().filter(|(_, rate, ..)| *rate > 0);
        set.map(|(unit, rate, recorded_rate, achieved)| {
            let due = (rate as f64).min(recorded_rate);
            Kept { tenant: recorded.tenant.clone(), unit, due, achieved, met: achieved >= due * KEPT }
        })
        .collect()
    };
    guaranteed.iter().flat_map(of).collect()
}

/// The targets that no candidate meets, with the best figures; targets without requests are left out.
fn unmet(candidates: &[Candidate]) -> Vec<Unmet> {
    let count = candidates.first().map_or(0, |candidate| candidate.figures.targets.len());
    let of = |place: usize| {
        let all = candidates.iter().filter_map(|candidate| candidate.figures.targets.get(place));
        if all.clone().any(|target| target.met) {
            return None;
        }
        let best = all.filter(|target| target.seconds > 0).min_by(|a, b| a.achieved_ms.total_cmp(&b.achieved_ms))?;
        Some(Unmet {
            target: best.target.clone(),
            best_ms: best.achieved_ms,
            ratio: best.achieved_ms / best.target_ms.max(1e-9),
        })
    };
    (0..count).filter_map(of).collect()
}

/// The guarantees that no candidate meets, with the highest rates.
fn unkept(candidates: &[Candidate]) -> Vec<Kept> {
    let count = candidates.first().map_or(0, |candidate| candidate.guarantees.len());
    let of = |place: usize| {
        let all = candidates.iter().filter_map(|candidate| candidate.guarantees.get(place));
        let best = all.max_by(|a, b| a.achieved.total_cmp(&b.achieved))?;
        (!best.met).then(|| best.clone())
    };
    (0..count).filter_map(of).collect()
}

/// The largest share of the load with which the wanted policy meets its latency targets, by halving; 0 if there is none.
fn load_share(load: &Load, device: &DeviceParams, wish: &Policy, targets: &[Target], seed: u64) -> f64 {
    let (mut met, mut missed) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let share = (met + missed) / 2.0;
        let run = simulate(&load.thinned(share), device, Some(wish), targets, seed);
        // Where nothing is left that the target is about, it is not met.
        match run.is_ok_and(|figures| figures.meets_targets()) {
            true => met = share,
            false => missed = share,
        }
    }
    met
}

/// Share of the draws of a block bootstrap over the seconds of a run in which all targets are met; `None` without targets, for a
/// short run, and if a target has too few requests for its percentile. Draws without requests of a target do not count.
fn confidence(targets: &[Target], figures: &Figures, seed: u64) -> Option<f64> {
    // Of fewer requests none has to be above the percentile: draws of so few would all agree.
    let has_enough = |(target, figures): (&Target, &TargetFigures)| match target.percentile {
        Percentile::Mean => true,
        Percentile::At(percent) => {
            let requests: u64 = figures.course.iter().map(|second| second.requests).sum();
            (1.0 - percent / 100.0) * requests as f64 >= 1.0 - 1e-9
        }
    };
    if !targets.iter().zip(&figures.targets).all(has_enough) {
        return None;
    }
    let seconds = figures.targets.iter().map(|target| target.course.len()).max().unwrap_or(0);
    if seconds < FEWEST_SECONDS {
        return None;
    }
    let block = BLOCK.min(seconds / 10).max(1);
    let mut rng = SplitMix64::new(seed);
    let (mut met, mut judged) = (0u32, 0u32);
    for _ in 0..DRAWS {
        let mut sums = vec![Second::default(); targets.len()];
        for _ in 0..seconds.div_ceil(block) {
            // Blocks go on at the start where the run ends, so that all seconds are equally likely.
            let from = rng.next_below(seconds as u64) as usize;
            for second in (from..from + block).map(|second| second % seconds) {
                for (sum, target) in sums.iter_mut().zip(&figures.targets) {
                    if let Some(second) = target.course.get(second) {
                        sum.add(second);
                    }
                }
            }
        }
        if sums.iter().any(|sum| sum.requests == 0) {
            continue;
        }
        judged += 1;
        met += u32::from(sums.iter().zip(targets).all(|(sum, target)| sum.meets(target)));
    }
    (judged > 0).then(|| f64::from(met) / f64::from(judged))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recording, request};
    use super::*;

    /// Tenant t0 reads 1,000 times a second for two seconds, tenant t1 100 times.
    fn load() -> Load {
        let busy = (0..2_000).map(|n| request(n * 1_000_000, 100_000));
        let quiet =
            (0..200).map(|n| evenkeel_flight::Request { tenant: 1, ..request(n * 10_000_000 + 5_000, 100_000) });
        Load::new(recording(busy.chain(quiet).collect()), None).unwrap()
    }

    fn limits(text: &str) -> Vec<u64> {
        let (load, wish) = (load(), Policy::parse(text, "test", "main", &[]).unwrap());
        let all = policies(&load, &recorded(&load, &[]), &wish, &wish.targets(&load));
        let limited = all.iter().filter(|(change, _)| change.contains("limited to"));
        limited.map(|(_, policy)| policy.tenant("t0").limit.iops).collect()
    }

    #[test]
    fn a_tried_limit_is_never_above_that_of_the_policy() {
        let target = "[tenants.t1]\nlatency = { target = \"5ms\" }\n";
        let free = limits(target);
        assert_eq!(free.len(), LIMITS.len());
        assert!(free.is_sorted_by(|a, b| a > b) && (740..=760).contains(&free[0]), "{free:?}");
        // Those that are not lower are the policy as wanted.
        let own = limits(&format!("{target}[tenants.t0]\nlimit.iops = 400\n"));
        assert_eq!(own, free[2..]);
        assert!(limits(&format!("{target}[tenants.t0]\nlimit.iops = 50\n")).is_empty());
        // Hours are not read from texts for a replay.
        let mut wish = Policy::parse(target, "test", "main", &[]).unwrap();
        let hours = "limit = { iops = 400, when = \"22:00-06:00\" }";
        wish.tenants.insert("t0".into(), toml::from_str(hours).unwrap());
        let all = policies(&load(), &recorded(&load(), &[]), &wish, &wish.targets(&load()));
        assert!(all.iter().all(|(change, _)| !change.contains("limited to")));
    }

    #[test]
    fn budgets_and_limits_of_the_three_heaviest_tenants_are_tried() {
        use evenkeel_flight::{Name, Request, Table};
        // Tenants t0 to t3 have 400, 300, 200 and 100 reads in one second.
        let place = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3];
        let requests = (0..1_000_u64).map(|n| {
            let tenant = place[(n % 10) as usize];
            Request { tenant, client: tenant, ..request(n * 1_000_000, 100_000) }
        });
        let mut recorded_load = recording(requests.collect());
        let (name, pool) = ("t3".to_owned(), String::new());
        recorded_load.names.push(Name { table: Table::Tenant, number: 3, name, pool, bytes: 0 });
        let load = Load::new(recorded_load, None).unwrap();
        let changes = |text: &str| -> Vec<String> {
            let wish = Policy::parse(text, "test", "main", &[]).unwrap();
            let all = policies(&load, &recorded(&load, &[]), &wish, &wish.targets(&load));
            all.into_iter().map(|(change, _)| change).collect()
        };
        let starting = |all: &[String], begin: &str| all.iter().filter(|change| change.starts_with(begin)).count();
        let limited = |all: &[String]| {
            let of = |name: &str| starting(all, &format!("{name} limited to"));
            ["t0", "t1", "t2", "t3"].map(of)
        };
        let own = "[tenants.t1]\nlatency.target = \"5ms\"\n";
        let all = changes(own);
        // The wanted admission control is the default one.
        assert_eq!(starting(&all, "default"), 0, "{all:?}");
        let budgets: Vec<&String> = all.iter().filter(|change| change.starts_with("budget of")).collect();
        assert_eq!(budgets, BUDGETS.map(|(_, name)| format!("budget of {name}")).iter().collect::<Vec<_>>());
        // A limit of t1 would serve none but t1.
        assert_eq!((limited(&all), all == changes(own)), ([4, 0, 4, 4], true));
        // It serves the target of the pool, but three others come first.
        let pool = "[pools.main]\nlatency = { target = \"5ms\", percentile = 99 }\n";
        let all = changes(&format!("{pool}{own}"));
        assert!(limited(&all) == [4, 0, 4, 4] && all.len() <= 23, "{all:?}");
        assert_eq!(limited(&changes(pool)), [4, 4, 4, 0]);
        let fixed = "[pools.main]\ntuning.admission = { kind = \"fixed\", budget = \"1MiB\" }\n";
        let all = changes(&format!("{fixed}{own}"));
        assert_eq!((starting(&all, "default"), starting(&all, "budget of"), all.len() <= 23), (1, 4, true), "{all:?}");
    }

    #[test]
    fn the_volumes_of_a_tenant_are_limited_together() {
        let mut load = load();
        load.tenants = ["bulk/v0", "bulk/v1"].map(str::to_owned).to_vec();
        let text = "[pools.main]\nlatency = { target = \"5ms\", percentile = 99 }\n[tenants.bulk]\neach = true\n";
        let wish = Policy::parse(text, "test", "main", &[]).unwrap();
        let all = policies(&load, &recorded(&load, &[]), &wish, &wish.targets(&load));
        let limited: Vec<&(String, Policy)> = all.iter().filter(|(change, _)| change.contains("limited to")).collect();
        assert_eq!(limited.len(), LIMITS.len());
        for (change, policy) in limited {
            let iops = policy.tenant("bulk/v1").limit.iops;
            // By the load of v0, which is the larger one.
            assert!(iops > 200 && *change == format!("bulk limited to {iops} IOPS"), "{change}");
        }
    }

    #[test]
    fn the_speed_is_that_of_the_nearest_candidate_or_of_the_wanted_policy() {
        let figures = recorded(&load(), &[]);
        let candidate = |change: &str, achieved: f64, weight: u32| {
            let text = format!("[tenants.t1]\nweight = {weight}\n");
            let policy = Policy::parse(&text, "test", "main", &[]).unwrap();
            let kept = Kept { tenant: "t1".into(), unit: "IOPS", due: 100.0, achieved, met: false };
            let (change, guarantees, figures) = (change.to_owned(), vec![kept], figures.clone());
            Candidate { change, figures, guarantees, met: false, lost: 0.0, policy }
        };
        let all = [candidate(AS_WANTED, 50.0, 1), candidate("far", 20.0, 2), candidate("near", 80.0, 3)];
        assert_eq!(all[1].worst(), 5.0);
        let mut met = candidate("met", 98.0, 1);
        met.guarantees[0].met = true;
        assert_eq!(met.worst(), 1.0);
        let weight = |policy: &Policy| policy.tenant("t1").weight;
        let found = |meets: &dyn Fn(u32, u32) -> bool| {
            let found = faster(&all, |policy, thousandths| meets(weight(policy), thousandths)).unwrap();
            (found.change, found.factor)
        };
        assert_eq!(found(&|_, speed| speed >= 1_350), ("near".to_owned(), Some(1.4)));
        assert_eq!(found(&|weight, speed| weight < 3 && speed >= 3_000), (AS_WANTED.to_owned(), Some(3.0)));
        assert_eq!(found(&|weight, _| weight == 2), ("near".to_owned(), None));
        assert_eq!(faster(&[], |_, _| true), None);
    }

    #[test]
    fn tenants_with_targets_are_tried_with_a_higher_weight() {
        let weights = |text: &str| {
            let (load, wish) = (load(), Policy::parse(text, "test", "main", &[]).unwrap());
            let all = policies(&load, &recorded(&load, &[]), &wish, &wish.targets(&load));
            let weighted = all.iter().find(|(change, _)| change.starts_with("weights"));
            weighted.map(|(_, policy)| ["t0", "t1"].map(|name| policy.tenant(name).weight))
        };
        let target = "[tenants.t1]\nlatency.target = \"5ms\"\n";
        assert_eq!(weights(target), Some([1, 8]));
        assert_eq!(weights(&format!("{target}weight = 3\n")), Some([1, 24]));
        // The scheduler computes no such weight.
        assert_eq!(weights(&format!("{target}weight = 900000\n")), None);
        assert_eq!(weights("pools.main.latency = { target = \"5ms\", percentile = 99 }\n"), None);
        // Two volumes of a tenant with `each` raise its weight once.
        let mut load = load();
        load.tenants = ["db/v0", "db/v1"].map(str::to_owned).to_vec();
        let wish = Policy::parse("[tenants.db]\neach = true\nlatency.target = \"5ms\"\n", "test", "main", &[]).unwrap();
        let all = policies(&load, &recorded(&load, &[]), &wish, &wish.targets(&load));
        let weighted = all.iter().find(|(change, _)| change.starts_with("weights"));
        assert_eq!(weighted.map(|(_, policy)| policy.tenant("db/v1").weight), Some(8));
    }

    #[test]
    fn a_change_that_a_configuration_refuses_is_not_tried() {
        let of = |scheduler: &str| {
            let text = format!("pools.main.tuning.scheduler = {scheduler:?}\n[tenants.t1]\nlatency.target = \"5ms\"\n");
            let wish = Policy::parse(&text, "test", "main", &[]).unwrap();
            let all = policies(&load(), &recorded(&load(), &[]), &wish, &wish.targets(&load()));
            all.into_iter().map(|(change, _)| change).collect::<Vec<_>>()
        };
        assert!(of("mclock").contains(&"slots".to_owned()));
        let without = of("none");
        assert!(without[0] == AS_WANTED && !without.contains(&"slots".to_owned()), "{without:?}");
    }

    #[test]
    fn a_policy_that_cannot_be_simulated_leaves_the_others() {
        let wish = Policy::parse("", "test", "main", &[]).unwrap();
        let all = ["a", "b", "c"].map(|change| (change.to_owned(), wish.clone())).to_vec();
        let figures = recorded(&load(), &[]);
        let mut turn = 0;
        let (candidates, untried) = tried(all, |_| {
            turn += 1;
            if turn == 2 { Err(Failure::Setup { what: "it is so".into() }) } else { Ok(figures.clone()) }
        });
        assert_eq!(candidates.iter().map(|one| one.change.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert!(candidates.iter().all(|one| one.figures.course.is_empty()));
        assert!(untried[0].change == "b" && untried[0].failure.contains("it is so"), "{untried:?}");
    }

    #[test]
    fn a_guarantee_of_both_rates_is_judged_by_both() {
        use evenkeel_control::units::Rates;
        let load = load();
        let before = recorded(&load, &[]);
        let mut after = before.clone();
        after.tenants[0].iops /= 2.0;
        let guaranteed = [Guaranteed { tenant: 0, rates: Rates { iops: 900, bytes_per_s: 1_000_000 } }];
        let verdicts: Vec<(&str, bool)> =
            kept(&guaranteed, &before, &after).iter().map(|kept| (kept.unit, kept.met)).collect();
        assert_eq!(verdicts, [("IOPS", false), ("B/s", true)]);
    }

    #[test]
    fn a_short_run_and_one_without_targets_have_no_confidence() {
        use evenkeel_control::Duration;
        use evenkeel_policy::tenant::Of;
        let (time, percentile) = (Duration::from_millis(5), Percentile::Mean);
        let targets = [Target { tenant: Some(1), time, percentile, of: Of::All }];
        assert_eq!(confidence(&targets, &recorded(&load(), &targets), 1), None);
        assert_eq!(confidence(&[], &recorded(&load(), &[]), 1), None);
        // All requests in one second of twenty: draws without this second do not count.
        let far = request(20_000_000_000, 100_000);
        let mut requests: Vec<_> = (0..100).map(|n| request(n * 1_000_000, 100_000)).collect();
        requests.push(evenkeel_flight::Request { tenant: 1, ..far });
        let load = Load::new(recording(requests), None).unwrap();
        assert_eq!(confidence(&targets, &recorded(&load, &targets), 1), Some(1.0));
        // Of all 101 requests one may be above the 99th percentile, and none above the 99.9th.
        let of = |percent| {
            let targets = [Target { tenant: None, time, percentile: Percentile::At(percent), of: Of::All }];
            confidence(&targets, &recorded(&load, &targets), 1)
        };
        assert_eq!((of(99.0), of(99.9)), (Some(1.0), None));
    }

    #[test]
    fn a_policy_that_meets_all_is_not_changed_for_a_percent() {
        let (figures, policy) = (recorded(&load(), &[]), Policy::parse("", "test", "main", &[]).unwrap());
        let candidate = |change: &str, lost: f64, met: bool| {
            let (change, figures, policy) = (change.to_owned(), figures.clone(), policy.clone());
            Candidate { change, figures, guarantees: Vec::new(), met, lost, policy }
        };
        let of = |lost: f64, met: bool| best_of(&[candidate(AS_WANTED, lost, met), candidate("other", 0.02, true)]);
        assert_eq!((of(0.029, true), of(0.04, true), of(0.0, false)), (Some(0), Some(1), Some(1)));
        assert_eq!(best_of(&[candidate(AS_WANTED, 0.0, false)]), None);
    }
}
