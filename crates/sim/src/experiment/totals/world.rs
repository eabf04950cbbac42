//! Members that serve a tenant with totals, through a store or with equal parts, and a central scheduler for comparison.

use evenkeel_control::rng::SplitMix64;

use super::exchange::Exchange;
use super::host::{BURST, Host, OTHER_WEIGHT};
use super::setup::{FAULT, LIMIT, MOVES, RESERVATION, STEP, STEPS_PER_S, Setup, at};
use super::traffic::Values;

/// Requests per second for the tenant, on all members together.
const DEMAND: f64 = 5_000.0;
/// Requests that the tenant has queued on a member at most, as seconds of its mean demand there.
const QUEUE_S: f64 = 0.25;
/// Requests that the tenant has queued on a member at most, beyond [`QUEUE_S`].
const QUEUE_MORE: u64 = 8;

/// The requests served for the tenant on all members, per step, and the cost of reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests served in each step with parts of the total by demand.
    pub parts: Vec<f64>,
    /// Requests served in each step with equal parts of the total.
    pub equal: Vec<f64>,
    /// Requests served in each step by a central scheduler, which knows all queues at all times.
    pub central: Vec<f64>,
    /// The largest sum of the members' parts of the limit in any step.
    pub most: f64,
    /// Number of reports of a member in a period.
    pub reports: f64,
    /// Number of bytes that a member sends and receives in a period.
    pub traffic: f64,
    /// Processor time of a member in a period, in milliseconds, by the caller's clock: for its parts, and for reading the values
    /// that it receives.
    pub processor_ms: f64,
}

/// The demand for the tenant: the same for the same seed, whatever is served.
struct Demand {
    rng: SplitMix64,
    /// Requests per second of each rank.
    by_rank: Vec<f64>,
    /// The rank of each member.
    ranks: Vec<usize>,
    /// Requests per second of each member.
    rates: Vec<f64>,
    /// Probability that no request arrives at a member in a step.
    none: Vec<f64>,
}

impl Demand {
    fn new(setup: &Setup, seed: u64) -> Self {
        let weight = |rank: usize| libm::exp(-setup.exponent() * libm::log((rank + 1) as f64));
        let by_rank: Vec<f64> = (0..setup.members).map(weight).collect();
        let (rates, none) = (vec![0.0; setup.members], vec![1.0; setup.members]);
        Self { rng: SplitMix64::new(seed), by_rank, ranks: (0..setup.members).collect(), rates, none }
    }

    /// Spreads the demand of this step over the members that serve.
    fn step(&mut self, setup: &Setup, step: u64) {
        let moves = step.is_multiple_of(MOVES);
        if moves {
            for last in (1..self.ranks.len()).rev() {
                self.ranks.swap(last, self.rng.next_below(last as u64 + 1) as usize);
            }
        }
        if moves || FAULT.contains(&step) {
            let weight = |member: usize| {
                if setup.is_dead(member, step) { 0.0 } else { self.by_rank[self.ranks[member]] }
            };
            let sum: f64 = (0..setup.members).map(weight).sum();
            self.rates = (0..setup.members).map(|member| DEMAND * weight(member) / sum).collect();
            self.none = self.rates.iter().map(|rate| libm::exp(-rate / STEPS_PER_S as f64)).collect();
        }
    }

    /// Number of requests that arrive at a member in a step: Poisson.
    fn arrivals(&mut self, member: usize) -> u64 {
        let least = self.none[member];
        let (mut product, mut number) = (self.rng.next_f64(), 0);
        while product > least {
            product *= self.rng.next_f64();
            number += 1;
        }
        number
    }

    /// The most requests that may be queued on a member.
    fn most_queued(&self, member: usize) -> u64 {
        (QUEUE_S * self.rates[member]) as u64 + QUEUE_MORE
    }
}

/// Simulates a run with parts by demand, with equal parts, and with a central scheduler, without a clock.
///
/// # Errors
/// If the setup has no members.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    timed(setup, seed, &|| 0)
}

/// As [`simulate`], with the processor time that this thread has used, in nanoseconds, by `clock`.
///
/// # Errors
/// If the setup has no members.
pub fn timed(setup: &Setup, seed: u64, clock: &dyn Fn() -> u64) -> Result<Outcome, String> {
    if setup.members == 0 {
        return Err("a cluster needs at least one member".into());
    }
    let mut exchange = Exchange::new(setup, seed);
    let (parts, most, spent) = members(setup, seed, Some(&mut exchange), clock);
    let (equal, ..) = members(setup, seed, None, clock);
    // A period is a second.
    let periods = setup.members as f64 * setup.seconds.max(1) as f64;
    let reports = exchange.reports() as f64 / periods;
    let values = Values::new(&exchange.lines(), reports);
    let processor_ms = spent as f64 / 1e6 / periods + values.reading_ms(clock);
    let (central, traffic) = (central(setup, seed), values.bytes());
    Ok(Outcome { parts, equal, central, most, reports, traffic, processor_ms })
}

/// Service with parts that the members decide through `exchange`, or with equal parts; also the largest sum of parts, and the
/// time by `clock` that decisions took.
fn members(
    setup: &Setup,
    seed: u64,
    mut exchange: Option<&mut Exchange>,
    clock: &dyn Fn() -> u64,
) -> (Vec<f64>, f64, u64) {
    let mut demand = Demand::new(setup, seed);
    let mut hosts: Vec<Host> = (0..setup.members).map(|_| Host::new(setup)).collect();
    let (mut served, mut most, mut spent) = (Vec::new(), 0.0_f64, 0);
    for step in 0..setup.steps() {
        demand.step(setup, step);
        if let Some(exchange) = &mut exchange {
            let begun = clock();
            exchange.step(setup, step, &mut hosts);
            spent += clock().saturating_sub(begun);
            most = most.max(exchange.sum(setup, step));
        } else if step == 0 {
            let part = 1.0 / setup.members as f64;
            hosts.iter_mut().for_each(|host| host.set_part(step, part, part));
        }
        let mut number = 0;
        for (member, host) in hosts.iter_mut().enumerate() {
            let (requests, most) = (demand.arrivals(member), demand.most_queued(member));
            if !setup.is_dead(member, step) {
                host.arrive(at(step), requests, most);
                number += host.serve(at(step), at(step + 1));
            }
        }
        served.push(number as f64);
    }
    (served, most, spent)
}

/// Service by one mClock for all members, as a fluid: the reservation is spent where requests are queued, then each member
/// serves by weight, both within the limit.
fn central(setup: &Setup, seed: u64) -> Vec<f64> {
    let mut demand = Demand::new(setup, seed);
    let mut queued = vec![0.0_f64; setup.members];
    let step_s = STEP.as_secs_f64();
    let (mut reserved, mut limit) = (0.0_f64, 0.0_f64);
    let device = setup.capacity() as f64 * step_s;
    let by_weight = device / f64::from(1 + OTHER_WEIGHT);
    let mut served = Vec::new();
    for step in 0..setup.steps() {
        demand.step(setup, step);
        for (member, queued) in queued.iter_mut().enumerate() {
            let (requests, most) = (demand.arrivals(member), demand.most_queued(member));
            let room = (most as f64 - *queued).max(0.0);
            *queued = if setup.is_dead(member, step) { 0.0 } else { *queued + (requests as f64).min(room) };
        }
        // What may be caught up of a reservation, and saved up of a limit, is bounded as in mClock.
        reserved = (reserved + RESERVATION as f64 * step_s).min(RESERVATION as f64);
        limit = (limit + LIMIT as f64 * step_s).min(LIMIT as f64 * (step_s + BURST.as_secs_f64()));
        let could: f64 = queued.iter().map(|queued| queued.min(device)).sum();
        let by_reservation = reserved.min(limit).min(could);
        let part = if could > 0.0 { by_reservation / could } else { 0.0 };
        let more = |queued: f64| (queued.min(by_weight) - part * queued.min(device)).max(0.0);
        let beyond: f64 = queued.iter().map(|queued| more(*queued)).sum();
        let fits = if beyond > 0.0 { ((limit - by_reservation) / beyond).clamp(0.0, 1.0) } else { 0.0 };
        let mut sum = 0.0;
        for queued in &mut queued {
            let number = part * queued.min(device) + fits * more(*queued);
            *queued -= number;
            sum += number;
        }
        reserved -= by_reservation;
        limit -= sum;
        served.push(sum);
    }
    served
}
