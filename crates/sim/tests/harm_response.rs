//! First, do no harm: tests of a pool's latency target on cases drawn at random. `evenkeel reproduce harm` runs more cases.

use evenkeel_sim::experiment::harm::response::{self, Case, Method};

use crate::parallel::{each, in_turn};

/// Cases with more requests per second than this are left out, as they take too long to run.
const MOST_REQUESTS_PER_S: f64 = 3_000.0;

fn listed(cases: &[Case], which: impl Fn(&Case) -> bool) -> Vec<String> {
    let line = |case: &Case| {
        let target_ms = case.target.as_millis_f64();
        format!(
            "case {}, target {target_ms:.3} ms, {:?}, {:?}: {}",
            case.seed,
            case.statistic,
            case.load,
            case.effect(0)
        )
    };
    cases.iter().filter(|case| which(case)).map(line).collect()
}

/// With the environment variables HARM_FROM and HARM_CASES set, the test judges that many cases from that seed on.
#[test]
fn a_latency_target_harms_few_cases_and_helps_many() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (from, count) = (number("HARM_FROM", 1_000_000), number("HARM_CASES", 40));
    let judge = |seed| response::case(seed, MOST_REQUESTS_PER_S, &[Method::Adaptive], &mut in_turn).unwrap();
    let cases = each(from..from + count, judge);
    let harmed = listed(&cases, |case| case.verdict(0).harmed);
    let helped = listed(&cases, |case| case.verdict(0).helped);
    println!("{} cases; harmed: {harmed:#?}; helped: {}", cases.len(), helped.len());
    // The aim is one in a hundred; this keeps what is reached.
    assert!(harmed.len() * 8 <= cases.len(), "{harmed:#?}");
    assert!(helped.len() * 10 >= cases.len(), "a controller that never acts harms none: {helped:#?}");
}

#[test]
fn the_same_seed_draws_the_same_case() {
    let draw = |seed| response::case(seed, f64::INFINITY, &[], &mut in_turn).unwrap().unwrap();
    for seed in [5, 6] {
        let (one, other) = (draw(seed), draw(seed));
        assert_eq!((one.target, one.load, one.seed), (other.target, other.load, other.seed));
    }
}
