use evenkeel_control::placement;

use super::placement as connections;
use super::*;
use crate::experiment::Digest;
use crate::world::{Failure, run_quietly};

#[test]
fn every_drawn_case_is_a_scenario() {
    for seed in 0..2_000 {
        let text = draw::case(seed);
        let time = Duration::from_secs(1);
        let setup = setup(&text, time, time).unwrap_or_else(|why| panic!("case {seed}: {why}\n{text}"));
        assert!(setup.clients.len() >= 2, "case {seed}");
    }
}

/// Judged against itself, doing nothing is neither harm nor help; a budget of one small request is harm.
#[test]
fn the_judge_knows_harm_from_nothing() {
    let method = |name: &str, admission| Method { name: name.into(), admission };
    let methods = [method("none", Config::None), method("fixed_4k", Config::Fixed { budget_bytes: 4 << 10 })];
    let mut execute = |_: &str, runs: &[(Setup, u64)]| -> Result<Vec<Digest>, Failure> {
        runs.iter().map(|(setup, seed)| run_quietly(setup, *seed).map(Digest::of)).collect()
    };
    // Three bulk clients on a drive with many dies.
    let cases = cases(5, 1, &methods, &mut execute).expect("models work");
    let [nothing, least] = [0, 1].map(|method| cases[0].verdict(method));
    assert_eq!(nothing, Verdict { harmed: false, gravely: false, helped: false });
    assert!(least.harmed && least.gravely, "{}", cases[0].effect(1));
}

#[test]
fn drawn_workers_have_something_to_place() {
    for seed in 0..500 {
        let case = connections::draw::case(seed);
        assert_eq!(case, connections::draw::case(seed), "case {seed}");
        let light = case.connections.iter().filter(|one| one.light).count();
        assert!(case.workers >= 2 && case.params.validate().is_ok(), "case {seed}");
        assert!((1..=1_000).contains(&light) && light < case.connections.len(), "case {seed}");
    }
}

#[test]
fn round_robin_does_not_harm_itself() {
    let judged = connections::cases(0, 6, placement::Config::RoundRobin);
    let counts = connections::Counts::of(&judged);
    assert_eq!((counts.harmed, counts.gravely, counts.helped, counts.gained), (0, 0, 0, 0));
    assert!(counts.worth > 0, "a static placement is worth having in some of them");
}

/// The default does harm, in more cases than it helps. The bounds are its figures, which may only fall (harm) and rise.
#[test]
fn placement_harms_no_more_cases_than_it_did() {
    let judged = connections::cases(0, 60, placement::Config::default());
    let counts = connections::Counts::of(&judged);
    println!("{counts:?}");
    for case in judged.iter().filter(|case| case.verdict().harmed) {
        println!("case {}: {}", case.seed, case.effect);
    }
    assert!(counts.harmed <= 25 && counts.gravely <= 11, "{counts:?}");
    assert!(counts.worth >= 20 && counts.gained >= 4, "{counts:?}");
}
