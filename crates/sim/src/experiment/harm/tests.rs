use evenkeel_control::placement;

use super::placement as connections;
use super::*;
use crate::experiment::Digest;
use crate::world::{Failure, run_quietly};

/// Runs each setup with its seed, in order on one core.
pub(super) fn execute(_: &str, runs: &[(Setup, u64)]) -> Result<Vec<Digest>, Failure> {
    runs.iter().map(|(setup, seed)| run_quietly(setup, *seed).map(Digest::of)).collect()
}

#[test]
fn every_drawn_case_is_a_scenario() {
    for seed in 0..2_000 {
        let text = draw::case(seed);
        let time = Duration::from_secs(1);
        let setup = setup(&text, time, time).unwrap_or_else(|why| panic!("case {seed}: {why}\n{text}"));
        assert!(setup.clients.len() >= 2, "case {seed}");
    }
}

/// No control compared with no control neither harms nor helps; a budget for a single small request harms.
#[test]
fn the_judge_knows_harm_from_nothing() {
    let method = |name: &str, admission| Method { name: name.into(), admission };
    let methods = [method("none", Config::None), method("fixed_4k", Config::Fixed { budget_bytes: 4 << 10 })];
    // Three bulk clients on a drive with many dies.
    let case = case(5, f64::INFINITY, &methods, &mut execute).expect("models work").expect("not too fast");
    let [nothing, least] = [0, 1].map(|method| case.verdict(method));
    assert_eq!(nothing, Verdict { harmed: false, gravely: false, helped: false });
    assert!(least.harmed && least.gravely, "{}", case.effect(1));
}

/// The ratio of a tenant without completions is finite, as an infinite one would have no confidence interval.
#[test]
fn a_tenant_that_gets_nothing_is_harmed_and_not_helped() {
    let mut effect = judge::Effect::default();
    (0..3).for_each(|_| effect.add(1.0, Some(([1.0, 10.0], [0.0, 0.0]))));
    assert_eq!(effect.verdict(), Verdict { harmed: true, gravely: true, helped: false });
    let mut nothing = judge::Effect::default();
    (0..3).for_each(|_| nothing.add(0.0, None));
    assert_eq!(nothing.verdict(), Verdict { harmed: true, gravely: true, helped: false });
}

/// A client that sends for 1 s of 4 s has a fifth of the time from 10 s to 20 s.
#[test]
fn a_reservation_is_due_while_the_tenant_sends() {
    let text = "
        [device]
        kind = 'store'
        preset = 'ssd'
        [tenants.one]
        reservation = { iops = 1000 }
        [[client]]
        tenant = 'one'
        workload = { op = 'read', queue_depth = 64, size = '1GiB', burst = '1s:3s' }
    ";
    let time = Duration::from_secs(10);
    let setup = setup(text, time, time).expect("a scenario");
    let none = execute("", &[(setup.clone(), 1)]).expect("models work");
    assert_eq!(judge::due(&setup, &none[0]), [(0, 200.0)]);
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

/// Seeds of the cases among the first 120 that the default placement harms. None is harmed gravely.
const PLACEMENT_HARM: [u64; 2] = [46, 98];

/// Placement also has an effect: in at least 37 of the 50 cases in which a static placement is worth having, it reaches
/// half of that placement's gain.
#[test]
fn placement_harms_the_cases_that_are_listed_and_no_other() {
    let half = |from: u64| connections::cases(from, 60, placement::Config::default());
    let judged = std::thread::scope(|scope| {
        let second = scope.spawn(|| half(60));
        let mut judged = half(0);
        judged.extend(second.join().expect("no panic"));
        judged
    });
    let harmed: Vec<&connections::Judged> = judged.iter().filter(|case| case.verdict().harmed).collect();
    harmed.iter().for_each(|case| println!("case {}: {}", case.seed, case.effect));
    assert_eq!(harmed.iter().map(|case| case.seed).collect::<Vec<u64>>(), PLACEMENT_HARM);
    let counts = connections::Counts::of(&judged);
    assert_eq!((counts.gravely, counts.worth), (0, 50), "{counts:?}");
    assert!(counts.gained >= 37 && counts.helped >= 49, "{counts:?}");
}

/// Seeds of the cases that slots are known to harm.
const SLOTS_HARM: [u64; 7] = [2, 8, 10, 13, 19, 21, 23];
/// Seeds of the cases that throughput guarantees are known to harm.
const THROUGHPUT_HARM: [u64; 4] = [2, 16, 33, 42];

/// Judges the cases with seeds 0 to 23 on two threads. Returns the seeds of the harmed ones, each with true if the harm is grave.
fn harmed(judge: impl Fn(u64) -> Verdict + Sync) -> Vec<(u64, bool)> {
    let half = |from: u64| (0..12).map(|case| from + 2 * case).collect::<Vec<u64>>();
    let judged = |seeds: Vec<u64>| seeds.into_iter().map(|seed| (seed, judge(seed))).collect::<Vec<_>>();
    let mut all = std::thread::scope(|scope| {
        let first = scope.spawn(|| judged(half(0)));
        let mut second = judged(half(1));
        second.extend(first.join().expect("no panic"));
        second
    });
    all.retain(|(_, verdict)| verdict.harmed);
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(seed, verdict)| (seed, verdict.gravely)).collect()
}

#[test]
fn slots_do_no_harm_but_to_the_cases_that_are_listed() {
    let harmed = harmed(|seed| slots::judged(seed, evenkeel_control::slots::Config::NEEDS).verdict());
    let new: Vec<_> = harmed.iter().filter(|(seed, _)| !SLOTS_HARM.contains(seed)).collect();
    assert!(new.is_empty(), "{new:?} of {harmed:?}");
}

#[test]
fn guarantees_do_no_harm_but_to_the_cases_that_are_listed() {
    let harmed = harmed(|seed| throughput::judged(seed).verdict());
    let new: Vec<_> = harmed.iter().filter(|(seed, _)| !THROUGHPUT_HARM.contains(seed)).collect();
    assert!(new.is_empty(), "{new:?} of {harmed:?}");
}

#[test]
fn a_report_counts_what_was_judged() {
    let judged =
        |harmed, gravely, helped, part_of_gain| Judged { harmed, gravely, helped, part_of_gain, ..Judged::default() };
    let ours = [
        judged(true, false, true, None),
        judged(false, false, true, Some(0.7)),
        judged(false, false, false, Some(0.4)),
    ];
    let theirs =
        [judged(true, true, true, None), judged(true, false, false, Some(0.5)), judged(false, false, false, Some(0.1))];
    let fixed =
        [judged(true, false, false, None), judged(true, true, true, Some(0.5)), judged(false, false, false, Some(0.1))];
    let names = ["elastic", "slowfast", "fixed_a", "fixed_b"].map(str::to_owned);
    let answers: Vec<report::Answer> = (0..3)
        .map(|n| (7 + n as u64, vec![ours[n].clone(), theirs[n].clone(), theirs[n].clone(), fixed[n].clone()]))
        .collect();
    let section = report::section("admission", 4, &names, &answers, &["harmed", "harmed_gravely", "gained"]);
    let row = |metric: &str, method: Option<&str>| {
        let is = |row: &&crate::experiment::Row| row.metric == metric && row.method.as_deref() == method;
        let row = section.rows.iter().find(is).unwrap_or_else(|| panic!("{metric}"));
        (row.evenkeel, row.faithful, row.baseline, row.is_met())
    };
    assert_eq!(
        row("harmed", None),
        (Some(1.0), Some(2.0), Some(2.0), Some(false)),
        "one in three is above one in a hundred"
    );
    assert_eq!(row("harmed_gravely", None), (Some(0.0), Some(1.0), Some(1.0), Some(true)));
    assert_eq!(row("harmed_gravely", Some("fixed_a")), (None, None, Some(1.0), None));
    assert_eq!(row("gained", None), (Some(1.0), Some(1.0), Some(1.0), None));
    assert_eq!(section.text[0], "Cases 7 to 9 of the generator.");
    assert_eq!(section.text[1], "Interrupted: 3 of 4 cases were judged.");
    assert!(section.text[2].starts_with("Case 7 is harmed by elastic"), "{}", section.text[2]);
    // Both constants harm two and help one.
    let claim = report::claim(&names, &answers).expect("there are constants");
    assert!(
        claim.reproduced
            && claim.numbers.contains("fixed_a, the fixed budget that harms the fewest, harms 2 and helps 1"),
        "{}",
        claim.numbers
    );
    let helpful: Vec<report::Answer> = answers
        .into_iter()
        .map(|(seed, mut judged)| {
            judged[3].helped = true;
            (seed, judged)
        })
        .collect();
    let claim = report::claim(&names, &helpful).expect("there are constants");
    assert!(
        !claim.reproduced
            && claim.numbers.contains("fixed_b, the fixed budget that harms the fewest, harms 2 and helps 3"),
        "{}",
        claim.numbers
    );
}

/// A run ends after a controller whose answers cover fewer cases than were asked for, which means an interrupt.
#[test]
fn a_run_judges_what_the_plan_says_until_an_interrupt() {
    let plan = Plan { controllers: Controller::ALL.to_vec(), cases: Some(5) };
    let options = crate::experiment::Options { seed: 3, ..Default::default() };
    let run = |stopped: Controller| {
        let mut asked = Vec::new();
        let report = report::run(&options, &plan, &mut |controller, seeds| -> Result<_, ()> {
            asked.push((controller, seeds.to_vec()));
            let seeds = if controller == stopped { &seeds[..2] } else { seeds };
            Ok(seeds.iter().map(|&seed| (seed, vec![Judged::default(); 6])).collect())
        });
        (report.expect("no error"), asked)
    };
    let (report, asked) = run(Controller::Placement);
    assert_eq!(asked.iter().map(|(controller, _)| *controller).collect::<Vec<_>>(), Controller::ALL[..3]);
    assert!(asked.iter().all(|(_, seeds)| *seeds == [3_000, 3_001, 3_002, 3_003, 3_004]), "{asked:?}");
    assert_eq!(report.sections.last().map(|section| section.rows[0].case.as_str()), Some("placement, 2 drawn cases"));
    assert_eq!(report.claims.len(), 1, "of fixed budgets");
}
