//! Judges a pool's latency target: runs with the target are compared with runs without it, on cases drawn at random.
//!
//! Devices and loads are those of [`draw`]; the target is scaled to the latency of light tenants without a target. Half
//! of the cases have a reservation of a bulk tenant. Both runs of a pair have the same seed.
//!
//! | verdict | condition; "before" means the run without a target |
//! |---|---|
//! | harmed | a light tenant's p50 or p99 is above 1.1 times the one before, with 99 % confidence |
//! | | throughput is below 0.95 times the one before, although light tenants met the target before or gain less than a tenth |
//! | | a tenant gets less than 0.95 of its reservation, or of its rate before if that is lower |
//! | | a tenant's p999 latency is above 1.1 times the sum of the p999 before and `max_delay` |
//! | gravely | as harmed, with 0.8 in place of 0.95 and 2 in place of 1.1 |
//! | helped | not harmed, and light tenants missed the target before but now meet it or have at most half the latency |

use std::collections::BTreeMap;

use evenkeel_control::Duration;
use evenkeel_control::pool::target::{self, Load, Statistic};
use evenkeel_control::response::Config;
use evenkeel_control::rng::SplitMix64;
pub use evenkeel_policy::target::Method;

use super::judge::{self, GRAVE, HARM, REQUESTS, log_ratio, log_throughput, mean};
use super::{PILOT, Verdict, compare, counted, draw, setup};
use crate::experiment::{Digest, Execute, TenantDigest};
use crate::statistics::interval_99;
use crate::world::Setup;

/// The fewest requests, in the run without a target, with which a tenant drawn as light counts for gain and target.
const PROTECTED_REQUESTS: u64 = 30;
/// The longest time for which a throttle delays a request.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// A case and the effects of the methods on it.
pub struct Case {
    /// Seed of [`draw::case`].
    pub seed: u64,
    /// The setup without a latency target.
    pub setup: Setup,
    /// The latency target.
    pub target: Duration,
    /// The statistic of latencies that the target bounds.
    pub statistic: Statistic,
    /// The kind of load by which tenants count as noisy and are throttled: writes, reads or both.
    pub load: Load,
    effects: Vec<Effect>,
}

/// The effect of a latency target on a case. Values are natural logarithms of ratios, one for each pair of runs without
/// and with the target; 0 means equal.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Throughput, light tenants' latencies and reservations: figures with the target divided by figures without it.
    judge: judge::Effect,
    /// Latency with the target divided by latency without it; the lowest of the tenants drawn as light.
    gained: Vec<f64>,
    /// Latency without the target divided by the target; the highest of the tenants drawn as light.
    none_of_target: Vec<f64>,
    /// Latency with the target divided by the target; the highest of the tenants drawn as light.
    with_of_target: Vec<f64>,
    /// By tenant number: its p999 latency with the target, divided by the sum of its p999 without the target and `max_delay`.
    waits: BTreeMap<usize, Vec<f64>>,
}

impl Case {
    fn with(&self, method: Method) -> Setup {
        let target = self.target.max(Duration::from_micros(10));
        let published = method.published(target);
        let interval = Duration::from_nanos(2 * target.as_nanos());
        let mut setup = self.setup.clone();
        setup.pool.target = Some(target::Config {
            response: Config {
                interval: interval.clamp(published.interval, Duration::from_secs(10)),
                step: if method == Method::Pid { published.step } else { Duration::ZERO },
                max_delay: MAX_DELAY,
                ..published
            },
            statistic: self.statistic,
            load: self.load,
        });
        setup
    }

    fn figure(&self, tenant: &TenantDigest) -> f64 {
        if self.statistic == Statistic::Mean { tenant.response.mean_ms } else { tenant.response.p99_ms }
    }

    /// Adds the results of one seed to the method's effect: the run without a target (`none`), and the one under the method.
    fn learn(&mut self, method: usize, none: &Digest, with: &Digest) {
        let mut effect = core::mem::take(&mut self.effects[method]);
        effect.judge.throughput.push(log_throughput(with.bytes_per_s, none.bytes_per_s));
        effect.judge.reserve(&self.setup, none, with);
        let (mut gained, mut before, mut after) = (f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY);
        for (place, (was, is)) in none.tenants.iter().zip(&with.tenants).enumerate() {
            if was.requests >= REQUESTS && is.requests >= REQUESTS {
                let wait = log_ratio(is.response.p999_ms, was.response.p999_ms + MAX_DELAY.as_millis_f64());
                effect.waits.entry(place).or_default().push(wait);
            }
            if is_light(&self.setup, none, place) {
                let of = |tenant: &TenantDigest| [tenant.response.p50_ms, tenant.response.p99_ms];
                effect.judge.late(place, of(was), of(is));
            }
            // The target is for those that were drawn as light, also where they are many or slow.
            let drawn_light = self.setup.tenants[place].name.starts_with("light");
            if !drawn_light || was.requests < PROTECTED_REQUESTS {
                continue;
            }
            let target_ms = self.target.as_millis_f64();
            gained = gained.min(log_ratio(self.figure(is), self.figure(was)));
            before = before.max(log_ratio(self.figure(was), target_ms));
            after = after.max(log_ratio(self.figure(is), target_ms));
        }
        if before > f64::NEG_INFINITY {
            effect.gained.push(gained);
            effect.none_of_target.push(before);
            effect.with_of_target.push(after);
        }
        self.effects[method] = effect;
    }

    /// True if the method's means over the seeds added so far are beyond a bound of harm, so that more seeds are needed.
    fn looks_harmed(&self, method: usize) -> bool {
        self.effects[method].beyond(HARM, |values| (mean(values), mean(values)))
    }

    /// The effect of a controller or fixed setting on the case, against none; `method` is its place in the list of methods.
    pub fn effect(&self, method: usize) -> &Effect {
        &self.effects[method]
    }

    /// The verdict on a controller or fixed setting in the case; `method` is its place in the list of methods.
    pub fn verdict(&self, method: usize) -> Verdict {
        let effect = &self.effects[method];
        let missed = mean(&effect.none_of_target) > 0.0;
        Verdict {
            harmed: effect.beyond(HARM, interval_99),
            gravely: effect.beyond(GRAVE, interval_99),
            helped: missed
                && (mean(&effect.with_of_target) <= 0.0 || mean(&effect.gained) <= libm::log(0.5))
                && !effect.beyond(HARM, interval_99),
        }
    }
}

impl Effect {
    /// True if a figure is beyond its bound over the whole interval in which its mean lies. `range` gives this interval for
    /// a list of values.
    fn beyond(&self, bounds: (f64, f64), range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        // A light tenant that gains pays for throughput, unless nothing was to be gained.
        let for_nothing = self.none_of_target.is_empty()
            || mean(&self.none_of_target) <= 0.0
            || mean(&self.gained) > -libm::log(HARM.1);
        self.judge.is_slow(bounds.0, &range) && for_nothing
            || self.waits.values().any(|waits| range(waits).0 > libm::log(bounds.1))
            || self.judge.is_beyond_for_a_tenant(bounds, &range)
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.judge)?;
        if !self.none_of_target.is_empty() {
            let [none, with] = [&self.none_of_target, &self.with_of_target].map(|values| libm::exp(mean(values)));
            write!(f, ", latency {none:.2} times the target without control and {with:.2} times with")?;
        }
        let waits = self.waits.values().map(|waits| mean(waits));
        waits.max_by(f64::total_cmp).map_or(Ok(()), |most| {
            write!(f, ", p99.9 at worst {:.2} times that without control plus the largest delay", libm::exp(most))
        })
    }
}

/// True if a tenant is light: in the run without a target it takes less than its fair share of all requests and of all
/// bytes, and completes enough requests for percentiles.
fn is_light(setup: &Setup, none: &Digest, place: usize) -> bool {
    let tenant = &none.tenants[place];
    let all: u64 = none.tenants.iter().map(|tenant| tenant.requests).sum();
    let (bytes, requests) = (tenant.bytes_per_s / none.bytes_per_s, tenant.requests as f64 / all as f64);
    judge::is_light_by_use(setup, place, bytes, requests, tenant.requests) && tenant.response.p50_ms > 0.0
}

/// Runs the case of a seed without a latency target and with each method. `None` if the pilot run completes more than
/// `most` requests per second, so that the case would take long to run.
///
/// # Errors
/// The errors of `execute`.
///
/// # Panics
/// If the drawn case is no scenario.
pub fn case<E>(seed: u64, most: f64, methods: &[Method], execute: &mut Execute<'_, E>) -> Result<Option<Case>, E> {
    let ready = |warmup, duration| {
        setup(&draw::case(seed), warmup, duration).unwrap_or_else(|why| panic!("case {seed}: {why}"))
    };
    let pilot = execute("pilot", &[(ready(Duration::ZERO, PILOT), seed)])?.remove(0);
    if pilot.requests_per_s > most {
        return Ok(None);
    }
    let time = counted(pilot.requests_per_s);
    let mut setup = ready(time, time);
    // Not the numbers of which the case was drawn.
    let mut random = SplitMix64::new(!seed);
    let mut draw = || random.next_f64();
    let statistic = if draw() < 0.5 { Statistic::Mean } else { Statistic::Percentile(99.0) };
    let load = [Load::Writes, Load::Reads, Load::All][(draw() * 3.0) as usize];
    let (factor, reserved) = (draw(), draw());
    if reserved < 0.5 {
        let rate = pilot.tenants[0].requests as f64 / PILOT.as_secs_f64();
        setup.tenants[0].qos.reservation.iops = (reserved * rate) as u64;
    }
    let effects = vec![Effect::default(); methods.len()];
    let mut case = Case { seed, setup, target: PILOT, statistic, load, effects };
    // Light tenants come last.
    let usual_ms = pilot.tenants.last().map_or(0.0, |tenant| case.figure(tenant));
    let target_ms = usual_ms * libm::exp(libm::log(0.05) + factor * libm::log(2.0 / 0.05));
    case.target = Duration::from_nanos((target_ms.clamp(0.02, 5e3) * 1e6) as u64);
    let with = |case: &Case, method: usize| case.with(methods[method]);
    compare(&mut case, methods.len(), Case::looks_harmed, |case| case.setup.clone(), with, Case::learn, execute)?;
    Ok(Some(case))
}
