//! First, do no harm: admission control on 24 drawn cases. More of them: `evenkeel reproduce harm`.

use evenkeel_control::admission::{Config, ElasticConfig};
use evenkeel_sim::experiment::harm::{self, Method};

use crate::parallel::{each, in_turn};

/// Cases with more requests a second take too long here.
const MOST_REQUESTS_PER_S: f64 = 3_000.0;
/// Cases that the default harms and that are not mended yet; those that it harms gravely.
const HARMED: &[u64] = &[6, 13];
const GRAVELY: &[u64] = &[6, 13];
/// Cases that it helps, at least.
const HELPED: usize = 4;

#[test]
fn the_default_harms_the_cases_that_are_listed_and_no_others() {
    let default = Method { name: "elastic".into(), admission: Config::Elastic(ElasticConfig::default()) };
    let methods = [default];
    let judge = |seed| harm::case(seed, MOST_REQUESTS_PER_S, &methods, &mut in_turn).unwrap();
    let cases = each(0..24, judge);
    let which = |counts: fn(harm::Verdict) -> bool| -> Vec<u64> {
        cases.iter().filter(|case| counts(case.verdict(0))).map(|case| case.seed).collect()
    };
    let helped = which(|verdict| verdict.helped).len();
    println!("{} cases, {helped} helped; harmed:", cases.len());
    let (harmed, gravely) = (which(|verdict| verdict.harmed), which(|verdict| verdict.gravely));
    for case in cases.iter().filter(|case| harmed.contains(&case.seed)) {
        println!("case {}: {}", case.seed, case.effect(0));
    }
    assert_eq!(harmed, HARMED, "what is mended leaves the list");
    assert_eq!(gravely, GRAVELY);
    assert!(helped >= HELPED, "a controller that never acts harms none: {helped} helped");
}
