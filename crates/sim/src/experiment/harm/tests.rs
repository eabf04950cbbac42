use super::*;

#[test]
fn every_drawn_case_is_a_scenario() {
    for seed in 0..2_000 {
        let text = draw::case(seed);
        let time = Duration::from_secs(1);
        let setup = setup(&text, time, time).unwrap_or_else(|why| panic!("case {seed}: {why}\n{text}"));
        assert!(setup.clients.len() >= 2, "case {seed}");
    }
}
