//! The best that one limit for each period could do if the future were known.
//!
//! Before each period the whole world is copied and the period tried with other limits, until every stream comes as close
//! to its guarantee, and to what it is owed of earlier periods, as these tries can bring it. Then the period happens.

use evenkeel_control::Instant;
use evenkeel_control::units::Kind;

use super::world::{Meter, PERIOD, Setup, World};

/// Tries for each period.
const TRIES: u32 = 6;
/// A stream this close to what it should get is not tried further.
const CLOSE: f64 = 0.002;
/// Part of what is owed that a period repays.
const REPAY: f64 = 0.1;
/// Limits are at most this many times the guarantee, as those of the controllers are.
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

/// Each stream's rate until `next` under these limits.
fn tried(world: &World, limits: &[f64], next: Instant, before: &[u64], seconds: f64) -> Vec<f64> {
    let mut copy = world.clone();
    copy.set_limits(limits);
    copy.run(next);
    copy.bytes().iter().zip(before).map(|(after, before)| (after - before) as f64 / seconds).collect()
}
