//! The oracle: the best results of one limit per stream and period, found with knowledge of the future.
//!
//! Before each period the whole world is copied and the period is tried with several sets of limits. Each stream is to get
//! its guarantee and a part of what earlier periods fell short of it. The period is then run with the best limits found.

use evenkeel_control::Instant;
use evenkeel_control::units::Kind;

use super::world::{Meter, PERIOD, Setup, World};

/// The most sets of limits that are tried for a period.
const TRIES: u32 = 6;
/// No further limits are tried for a period when every stream's throughput deviates by less than this fraction from the
/// wanted throughput.
const CLOSE: f64 = 0.002;
/// Fraction of a stream's arrears (bytes by which earlier periods fell short of the guarantee) that one period makes up for.
const REPAY: f64 = 0.1;
/// The highest limit of a stream, as a multiple of its guarantee. The controllers have the same bound.
const MOST: f64 = 4.0;

pub(super) fn run(setup: &Setup, world: &mut World, end: Instant, meter: &mut Meter) {
    let both = |tenant: &super::world::Tenant| [tenant.guaranteed_of(Kind::Read), tenant.guaranteed_of(Kind::Write)];
    let guaranteed: Vec<f64> = setup.tenants.iter().flat_map(both).collect();
    let mut owed = vec![0.0; guaranteed.len()];
    let mut now = Instant::ZERO;
    while now < end {
        let next = now + PERIOD;
        let seconds = PERIOD.as_secs_f64();
        let wanted: Vec<f64> = guaranteed
            .iter()
            .zip(&owed)
            .map(|(guaranteed, owed)| (guaranteed + REPAY * owed).max(guaranteed * 0.5))
            .collect();
        let before = world.bytes();
        let mut limits = wanted.clone();
        let (mut best, mut least) = (limits.clone(), f64::INFINITY);
        for _ in 0..TRIES {
            let got = tried(world, &limits, next, &before, seconds);
            let misses: Vec<f64> = got.iter().zip(&wanted).map(|(got, wanted)| got / wanted - 1.0).collect();
            let worst = misses.iter().map(|miss| miss.abs()).sum();
            if worst < least {
                (least, best) = (worst, limits.clone());
            }
            if misses.iter().all(|miss| miss.abs() < CLOSE) {
                break;
            }
            for ((limit, guaranteed), miss) in limits.iter_mut().zip(&guaranteed).zip(&misses) {
                *limit = (*limit / (1.0 + miss).max(0.25)).clamp(0.25 * guaranteed, MOST * guaranteed);
            }
        }
        world.set_limits(&best);
        meter.run(world, next);
        for ((owed, guaranteed), (after, before)) in
            owed.iter_mut().zip(&guaranteed).zip(world.bytes().iter().zip(&before))
        {
            *owed += guaranteed * seconds - (after - before) as f64;
        }
        now = next;
    }
}

/// Each stream's throughput until `next` under `limits`, in bytes per second, found in a copy of the world. `before` holds
/// the streams' bytes so far; `seconds` is the time until `next`.
fn tried(world: &World, limits: &[f64], next: Instant, before: &[u64], seconds: f64) -> Vec<f64> {
    let mut copy = world.clone();
    copy.set_limits(limits);
    copy.run(next);
    copy.bytes().iter().zip(before).map(|(after, before)| (after - before) as f64 / seconds).collect()
}
