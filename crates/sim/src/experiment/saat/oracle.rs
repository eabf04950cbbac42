//! The oracle: the best results of one limit per stream and period, found with knowledge of the future.
//!
//! Each period is tried in copies of the whole world with several sets of limits. Each stream is to get its guarantee and a
//! part of what earlier periods fell short of it. The run goes on from the copy with the best limits.

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
        let (mut best, mut least) = (None, f64::INFINITY);
        for _ in 0..TRIES {
            let (copy, fork) = tried(world, &limits, next, meter);
            let bytes = copy.bytes();
            let got = bytes.iter().zip(&before).map(|(after, before)| (after - before) as f64 / seconds);
            let misses: Vec<f64> = got.zip(&wanted).map(|(got, wanted)| got / wanted - 1.0).collect();
            let worst = misses.iter().map(|miss| miss.abs()).sum::<f64>();
            if best.is_none() || worst < least {
                (least, best) = (least.min(worst), Some((copy, fork)));
            }
            if misses.iter().all(|miss| miss.abs() < CLOSE) {
                break;
            }
            for ((limit, guaranteed), miss) in limits.iter_mut().zip(&guaranteed).zip(&misses) {
                *limit = (*limit / (1.0 + miss).max(0.25)).clamp(0.25 * guaranteed, MOST * guaranteed);
            }
        }
        if let Some((copy, fork)) = best {
            *world = copy;
            meter.join(fork);
        }
        for ((owed, guaranteed), (after, before)) in
            owed.iter_mut().zip(&guaranteed).zip(world.bytes().iter().zip(&before))
        {
            *owed += guaranteed * seconds - (after - before) as f64;
        }
        now = next;
    }
}

/// A copy of the world that was run until `next` under `limits`, and what `meter` would have collected in it.
fn tried(world: &World, limits: &[f64], next: Instant, meter: &Meter) -> (World, Meter) {
    let (mut copy, mut fork) = (world.clone(), meter.fork());
    copy.set_limits(limits);
    fork.run(&mut copy, next);
    (copy, fork)
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Duration;
    use evenkeel_model::cached::CachedParams;

    use super::super::tenants::{Habits, TRACES};
    use super::super::world::{Control, Tenant};
    use super::*;

    #[test]
    fn a_period_in_a_copy_is_the_period_itself() {
        let tenant = |place: usize| Tenant { trace: TRACES[place], recorded: None, guaranteed: 50e6 };
        let setup = Setup {
            device: CachedParams::paper(),
            tenants: vec![tenant(0), tenant(1)],
            habits: Habits::FITTED,
            control: Control::Oracle,
            // Not a whole number of periods.
            lead: Duration::from_millis(1_250),
            duration: Duration::from_secs(3),
        };
        let (mut world, mut meter) = (World::new(&setup, 3), Meter::new(&setup));
        let (mut other, mut collected) = (World::new(&setup, 3), Meter::new(&setup));
        for period in 1..=5u64 {
            let next = Instant::ZERO + Duration::from_secs(period);
            let limits = [10e6, 20e6, 30e6, 40e6].map(|limit| limit * period as f64);
            world.set_limits(&limits);
            meter.run(&mut world, next);
            // A try that is not taken leaves nothing behind.
            drop(tried(&other, &[1e6; 4], next, &collected));
            let (copy, fork) = tried(&other, &limits, next, &collected);
            other = copy;
            collected.join(fork);
            assert_eq!(other.bytes(), world.bytes());
        }
        assert_eq!(collected.outcome, meter.outcome);
        // From 1.25 s on, every 0.1 s.
        assert!(meter.outcome.tenths.iter().all(|tenths| tenths.len() == 37));
    }
}
