//! The policy of a drawn case: half of the cases have none, the others a limit, a reservation or a latency target.
//!
//! A policy is scaled to the tenants' figures without control, with random numbers of its own, so that the rest of the case
//! is exactly the text that [`draw`](super::draw) makes of the seed. A case with a policy is compared with the best fixed
//! budget under the same policy.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Rates;
use toml::{Table, Value};

use super::Config;
use super::judge::{Case, HELP};
use crate::experiment::{Digest, Execute};
use crate::world::Setup;

/// Share of the cases that have a policy, 0 to 1.
const CARRIED: f64 = 0.5;
/// Range of limits, as fractions of the tenant's rate without control.
const LIMITS: (f64, f64) = (0.1, 1.0);
/// Range of reservations, as fractions of the tenant's rate without control.
const RESERVATIONS: (f64, f64) = (0.05, 1.0);
/// Range of latency targets, as multiples of the light tenant's latency without control.
const TARGETS: (f64, f64) = (0.05, 2.0);
/// Range of a pool's latency target, in microseconds.
const TARGET_US: (f64, f64) = (20.0, 5e6);
/// Fixed budgets, in KiB, among which the best setting is chosen; no admission control is a further candidate.
pub(super) const BUDGETS_KIB: [u64; 4] = [256, 1_024, 4_096, 16_384];
/// Seed of the runs by which the best setting is chosen; methods are judged on other seeds.
const OTHER_SEED: u64 = 1_000;

/// The scenario `text` with the policy that the seed gives; `None` if the seed gives none. `setup` and `pilot` are the
/// setup and the pilot run of the case without a policy.
pub(super) fn add(seed: u64, text: &str, setup: &Setup, pilot: &Digest) -> Option<String> {
    // Not the numbers of which the case was drawn.
    let mut random = SplitMix64::new(seed ^ 0x706f_6c69_6379);
    random.next_u64();
    if random.next_f64() >= CARRIED {
        return None;
    }
    let kind = random.next_below(3);
    let mut between = |(from, to): (f64, f64)| libm::exp(libm::log(from) + random.next_f64() * libm::log(to / from));
    let mut table: Table = text.parse().ok()?;
    let seconds = setup.duration.as_secs_f64();
    // Those that take what they get come first, light ones last.
    let (first, last) = (0, setup.tenants.len() - 1);
    let whole = |value: f64| Value::Integer((value as i64).max(1));
    let mut set = |place: usize, key: &str, unit: &str, value: f64| {
        let tenant = table.get_mut("tenants")?.get_mut(&setup.tenants[place].name)?.as_table_mut()?;
        tenant.insert(key.to_owned(), Value::Table(Table::from_iter([(unit.to_owned(), whole(value))])));
        Some(())
    };
    match kind {
        0 => {
            let part = between(LIMITS);
            match random.next_below(2) {
                0 => set(first, "limit", "bytes_per_s", part * pilot.tenants[first].bytes_per_s)?,
                _ => set(first, "limit", "iops", part * pilot.tenants[first].requests as f64 / seconds)?,
            }
        }
        1 => {
            let part = between(RESERVATIONS);
            let place = [first, last][random.next_below(2) as usize];
            set(place, "reservation", "iops", part * pilot.tenants[place].requests as f64 / seconds)?;
        }
        _ => {
            let factor = between(TARGETS);
            let is_mean = random.next_below(2) == 0;
            let response = &pilot.tenants[last].response;
            let us = (if is_mean { response.mean_ms } else { response.p99_ms }) * 1e3 * factor;
            let us = us.clamp(TARGET_US.0, TARGET_US.1) as u64;
            let noisy = ["writers", "readers", "all"][random.next_below(3) as usize];
            let percentile = if is_mean { "\"mean\"" } else { "99" };
            let pool =
                format!("latency = {{ target = \"{us}us\", percentile = {percentile} }}\ntuning.noisy = \"{noisy}\"");
            table.insert("pool".to_owned(), pool.parse::<Table>().ok()?.into());
        }
    }
    Some(table.to_string())
}

/// The setup with its latency target, limits and reservations removed.
pub(super) fn without(setup: &Setup) -> Setup {
    let mut plain = setup.clone();
    plain.pool.target = None;
    for tenant in &mut plain.tenants {
        (tenant.qos.limit, tenant.qos.reservation) = (Rates::UNSET, Rates::UNSET);
    }
    plain
}

/// The best fixed setting of a case: no control or a fixed budget. Of the settings that keep 0.97 of the highest throughput,
/// the one with the lowest p99 of light tenants.
///
/// # Errors
/// The errors of `execute`.
pub(super) fn best_setting<E>(case: &Case, execute: &mut Execute<'_, E>) -> Result<Config, E> {
    let budgets = BUDGETS_KIB.map(|kib| Config::Fixed { budget_bytes: kib << 10 });
    let settings: Vec<Config> = std::iter::once(Config::None).chain(budgets).collect();
    let runs: Vec<_> = settings.iter().map(|&setting| (case.with(setting), OTHER_SEED)).collect();
    let digests = execute("fixed settings", &runs)?;
    let light = case.light(&digests[0]);
    // A tenant that gets nothing waits for ever.
    let log_p99 = |digest: &Digest, place: usize| match digest.tenants[place].response.p99_ms {
        p99 if p99 > 0.0 => libm::log(p99),
        _ => f64::INFINITY,
    };
    let p99 = |digest: &Digest| light.iter().map(|&place| log_p99(digest, place)).sum::<f64>();
    let most = digests.iter().map(|digest| digest.bytes_per_s).fold(0.0, f64::max);
    let good = settings.iter().zip(&digests).filter(|(_, digest)| digest.bytes_per_s >= HELP.0 * most);
    let best = good.min_by(|(_, one), (_, other)| p99(one).total_cmp(&p99(other)));
    Ok(best.map_or(Config::None, |(&setting, _)| setting))
}

#[cfg(test)]
mod tests {
    use super::super::judge::has_policy;
    use super::super::tests::execute;
    use super::super::{PILOT, case, draw, parsed, setup};
    use super::*;
    use crate::world::run_quietly;
    use evenkeel_control::Duration;

    /// A made-up digest of a pilot run, for tests that need no real one.
    fn pilot(setup: &Setup) -> Digest {
        let mut short = setup.clone();
        (short.duration, short.sample_every) = (Duration::from_millis(1), Duration::from_millis(1));
        let mut digest = Digest::of(run_quietly(&short, 1).expect("models work"));
        for tenant in &mut digest.tenants {
            (tenant.requests, tenant.bytes_per_s, tenant.response.mean_ms, tenant.response.p99_ms) =
                (5_000, 4e6, 8.0, 40.0);
        }
        digest
    }

    #[test]
    fn half_of_the_cases_have_a_policy_and_the_others_are_as_drawn() {
        let mut kinds = [0; 4];
        for seed in 0..300 {
            let text = super::super::timed(&draw::case(seed), Duration::ZERO, PILOT);
            let setup = parsed(&text).expect("a scenario");
            let Some(with) = add(seed, &text, &setup, &pilot(&setup)) else {
                assert!(!has_policy(&setup), "case {seed}");
                kinds[3] += 1;
                continue;
            };
            let new = parsed(&with).unwrap_or_else(|why| panic!("case {seed}: {why}\n{with}"));
            assert!(has_policy(&new) && !has_policy(&without(&new)), "case {seed}: {with}");
            assert_eq!((&new.device, new.clients.len()), (&setup.device, setup.clients.len()), "case {seed}");
            let tenants = || new.tenants.iter();
            match new.pool.target {
                Some(_) => kinds[0] += 1,
                None if tenants().any(|tenant| tenant.qos.reservation.iops > 0) => kinds[1] += 1,
                None => kinds[2] += 1,
            }
        }
        assert!(kinds[..3].iter().all(|&count| (35..=65).contains(&count)), "{kinds:?}");
        assert!((120..=180).contains(&kinds[3]), "{kinds:?}");
    }

    /// A bulk writer's throughput suffers only under a small budget; a light reader waits behind the writer.
    #[test]
    fn the_best_setting_keeps_the_throughput_and_has_the_lowest_latency() {
        let text = "
            [device]
            kind = 'store'
            preset = 'ssd'
            [tenants.bulk]
            limit = { iops = 100000 }
            [tenants.light]
            [[client]]
            tenant = 'bulk'
            workload = { op = 'write', block_size = '64k', queue_depth = 128, size = '16GiB' }
            [[client]]
            tenant = 'light'
            workload = { op = 'read', rate = 100, size = '16GiB' }
        ";
        let time = Duration::from_secs(10);
        let setup = setup(text, time, time).expect("a scenario");
        let case = Case::new(1, setup, text, vec![1_600.0, 10_000.0], 0);
        assert_eq!(best_setting(&case, &mut execute).expect("models work"), Config::Fixed { budget_bytes: 1 << 20 });
        // Of the bulk writer alone nothing is light.
        let bulk = Case::new(1, case.setup.clone(), text, vec![1_600.0, 1e-3], 0);
        assert_eq!(best_setting(&bulk, &mut execute).expect("models work"), Config::None);
    }

    /// A case with a policy whose runs are short is compared with a fixed setting under the same policy.
    #[test]
    fn a_case_with_a_policy_is_compared_with_a_fixed_setting() {
        let found = (0..60).find_map(|seed| {
            let case = case(seed, 1_500.0, &[], &mut execute).expect("models work")?;
            has_policy(&case.setup).then_some(case)
        });
        let case = found.expect("half of the cases have one");
        let reference = case.reference();
        assert!(matches!(reference.pool.admission, Config::None | Config::Fixed { .. }));
        assert_eq!(format!("{:?}", reference.tenants), format!("{:?}", case.setup.tenants));
        assert_eq!(has_policy(&reference), has_policy(&case.setup));
    }
}
