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
    // A bulk writer on an NVMe drive.
    let cases = cases(2, 1, &methods, &mut execute).expect("models work");
    let [nothing, least] = [0, 1].map(|method| cases[0].verdict(method));
    assert_eq!(nothing, Verdict { harmed: false, gravely: false, helped: false });
    assert!(least.harmed && least.gravely, "{}", cases[0].effect(1));
}
