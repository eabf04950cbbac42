//! Placement of connections: properties that always hold, and the moves of each method for typical loads.

use evenkeel_control::placement::{Config, Move, Moving, Placement, Reason, Sample, Usage, exact, genetic, lpt};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

fn heaviest(fixed: &[u64], loads: &[u64], assignment: &[u32]) -> u64 {
    let mut totals = fixed.to_vec();
    assignment.iter().zip(loads).for_each(|(&worker, &load)| totals[worker as usize] += load);
    totals.into_iter().max().unwrap()
}

fn moved(before: &[u32], after: &[u32]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

/// The least `measure` of all assignments that move at most `budget` connections from `home`, found by trying all.
fn all_tried(workers: u32, home: &[u32], budget: usize, measure: &impl Fn(&[u32]) -> u64) -> u64 {
    fn rest(workers: u32, left: usize, trial: &mut [u32], next: usize, measure: &impl Fn(&[u32]) -> u64) -> u64 {
        let Some(&home) = trial.get(next) else { return measure(trial) };
        let mut best = u64::MAX;
        for worker in 0..workers {
            let cost = usize::from(worker != home);
            if cost <= left {
                trial[next] = worker;
                best = best.min(rest(workers, left - cost, trial, next + 1, measure));
            }
        }
        trial[next] = home;
        best
    }
    rest(workers, budget, &mut home.to_vec(), 0, measure)
}

prop_compose! {
    fn problems(most: usize, workers: usize)(workers in 1..=workers)(
        fixed in prop::collection::vec(0..500_u64, workers),
        connections in prop::collection::vec((prop_oneof![0..1_000_u64, 0..50_000_u64], 0..workers as u32), 0..=most),
        budget in 0..=most,
    ) -> (Vec<u64>, Vec<u64>, Vec<u32>, usize) {
        let (loads, home) = connections.into_iter().unzip();
        (fixed, loads, home, budget)
    }
}

proptest! {
    #[test]
    fn the_search_finds_the_best_and_keeps_its_budget((fixed, loads, home, budget) in problems(7, 3)) {
        let mut after = home.clone();
        let found = exact::assign(&fixed, &loads, budget, &mut after);
        prop_assert!(moved(&home, &after) <= budget);
        prop_assert_eq!(found, heaviest(&fixed, &loads, &after));
        prop_assert_eq!(found, all_tried(fixed.len() as u32, &home, budget, &|trial| heaviest(&fixed, &loads, trial)));
        // Graham's bound on the heaviest first, where nothing stays.
        let empty = vec![0; fixed.len()];
        let best = exact::assign(&empty, &loads, loads.len(), &mut home.clone());
        lpt::assign(&empty, &loads, &mut after);
        prop_assert!(3 * heaviest(&empty, &loads, &after) <= 4 * best);
    }

    #[test]
    fn the_other_solvers_place_everything((fixed, loads, home, _) in problems(60, 8), seed: u64) {
        let mut after = home.clone();
        lpt::assign(&fixed, &loads, &mut after);
        prop_assert!(after.iter().all(|&worker| (worker as usize) < fixed.len()));
        let mut after = home.clone();
        let gain = genetic::evolve(&fixed, &loads, &mut after, &mut SplitMix64::new(seed));
        prop_assert!(after.iter().all(|&worker| (worker as usize) < fixed.len()));
        prop_assert!(gain >= 0.0 && (gain > 0.0 || after == home));
    }

    #[test]
    fn whatever_happens_every_connection_is_on_a_worker_that_exists(
        method in 0..5_usize,
        events in prop::collection::vec((0..7_u32, 0..40_u32, 0..2_000_u64), 0..300),
    ) {
        let mut placement = Placement::new(methods()[method], 4, 7, Instant::ZERO);
        let (mut now, mut live) = (Instant::ZERO, std::collections::BTreeMap::new());
        for (event, slot, amount) in events {
            match event {
                0 | 1 => _ = live.insert(slot, placement.join(slot)),
                2 => {
                    placement.leave(slot);
                    live.remove(&slot);
                }
                3 => placement.observe(slot, sample(amount)),
                6 => {
                    let busy = amount as f64 / 1_500.0;
                    placement.observe_worker(slot % 9, Usage { busy, backlog: Duration::from_micros(amount / 3), each: Duration::from_micros(amount % 3) });
                }
                4 => {
                    now += Duration::from_secs(1 + amount / 300);
                    if let Some(decision) = placement.tick(now) {
                        prop_assert_eq!(decision.moves, placement.moves().len());
                        follow(&mut live, placement.moves());
                    }
                }
                _ => {
                    let decision = placement.set_workers(now, amount as usize % 7);
                    prop_assert_eq!(decision.moves, placement.moves().len());
                    follow(&mut live, placement.moves());
                }
            }
            for slot in 0..40 {
                prop_assert_eq!(placement.worker(slot), live.get(&slot).copied());
            }
            prop_assert!(live.values().all(|&worker| (worker as usize) < placement.workers()));
        }
    }
}

/// Carries out moves in `live` (worker by connection), and asserts that each names the connection's present worker.
fn follow(live: &mut std::collections::BTreeMap<u32, u32>, moves: &[Move]) {
    for one in moves {
        assert_eq!(live.insert(one.slot, one.to), Some(one.from), "{one:?}");
        assert_ne!(one.from, one.to);
    }
}

fn methods() -> [Config; 5] {
    let (moving, published) = (Moving::new(), Moving::published());
    [
        Config::RoundRobin,
        Config::LeastConnections,
        Config::Genetic(published),
        Config::Lpt(moving),
        Config::Waits(moving),
    ]
}

/// Time between two reports of a worker.
const LOOK: Duration = Duration::from_millis(100);

fn sample(ms: u64) -> Sample {
    Sample { cpu: Duration::from_millis(ms), received_bytes: ms * 1_000 }
}

/// A placement with connections whose load is given in milliseconds of CPU time per second.
struct Bench {
    placement: Placement,
    now: Instant,
    moves: usize,
}

impl Bench {
    fn new(config: Config, workers: usize, connections: u32) -> Self {
        let mut placement = Placement::new(config, workers, 1, Instant::ZERO);
        (0..connections).for_each(|slot| _ = placement.join(slot));
        Self { placement, now: Instant::ZERO, moves: 0 }
    }

    /// Runs for a second, in which workers report ten times; returns the reason of the last decision in it, if any.
    fn second(&mut self, loads: &[u64]) -> Option<Reason> {
        (0..10).filter_map(|_| self.tenth(loads)).last()
    }

    fn tenth(&mut self, loads: &[u64]) -> Option<Reason> {
        for (&ms, slot) in loads.iter().zip(0..) {
            let cpu = Duration::from_micros(ms * 100);
            self.placement.observe(slot, Sample { cpu, received_bytes: ms * 100 });
        }
        self.now += LOOK;
        let decision = self.placement.tick(self.now)?;
        self.moves += decision.moves;
        Some(decision.reason)
    }

    fn heaviest(&self, loads: &[u64]) -> u64 {
        let mut totals = vec![0; self.placement.workers()];
        loads.iter().zip(0..).for_each(|(load, slot)| totals[self.placement.worker(slot).unwrap() as usize] += load);
        totals.into_iter().max().unwrap()
    }
}

#[test]
fn two_heavy_ones_on_a_worker_are_parted_and_then_nothing_moves() {
    let mut bench = Bench::new(Config::default(), 4, 16);
    // Placed one after the other: 0 and 4 are together.
    let mut loads = [10; 16];
    (loads[0], loads[4]) = (500, 400);
    let reasons: Vec<_> = (0..200).filter_map(|_| bench.tenth(&loads)).collect();
    assert!(reasons.iter().any(|reason| matches!(reason, Reason::Rebalanced { .. })), "{reasons:?}");
    assert_ne!(bench.placement.worker(0), bench.placement.worker(4));
    assert!(
        bench.heaviest(&loads) <= 530 && bench.moves <= 7,
        "{} after {} moves",
        bench.heaviest(&loads),
        bench.moves
    );
    let before = bench.moves;
    (0..100).for_each(|_| _ = bench.second(&loads));
    assert_eq!(bench.moves, before);
}

#[test]
fn loads_that_only_vary_make_nothing_move() {
    let mut rng = SplitMix64::new(3);
    let mut bench = Bench::new(Config::default(), 4, 64);
    let mut minutes = |bench: &mut Bench, heavy: u64, seconds: usize| {
        for _ in 0..seconds * 10 {
            let load = |slot| if [0, 4, 8].contains(&slot) { heavy } else { 40 };
            let loads: Vec<u64> =
                (0..64).map(|slot| (load(slot) as f64 * (0.3 * rng.next_normal()).exp()) as u64).collect();
            bench.tenth(&loads);
        }
    };
    minutes(&mut bench, 40, 300);
    assert!(bench.moves <= 8, "{} moves in five minutes", bench.moves);
    // What lasts does, although it varies just as much: no worker is asked for more than it can do.
    let loads: Vec<u64> = (0..64).map(|slot| if [0, 4, 8].contains(&slot) { 240 } else { 40 }).collect();
    let before = bench.heaviest(&loads);
    minutes(&mut bench, 240, 30);
    let after = bench.heaviest(&loads);
    assert!(before > 1_100 && after <= 1_000, "{before} to {after}");
}

#[test]
fn an_elephant_is_named_and_gets_a_worker_of_its_own() {
    let mut bench = Bench::new(Config::default(), 3, 9);
    let mut loads = [60; 9];
    loads[0] = 900;
    let last = (0..20).filter_map(|_| bench.second(&loads)).last();
    assert!(matches!(last, Some(Reason::Elephant { slot: 0, heaviest }) if heaviest > 0.85), "{last:?}");
    assert_eq!(bench.heaviest(&loads), 900, "nobody shares its worker");
}

#[test]
fn an_elephant_does_not_keep_others_from_being_parted() {
    let mut bench = Bench::new(Config::default(), 4, 8);
    // 0 has a worker of its own; 1 and 5 share one, and two workers have nothing to do.
    let loads = [950, 400, 0, 0, 0, 400, 0, 0];
    let reasons: Vec<_> = (0..10).filter_map(|_| bench.second(&loads)).collect();
    assert_ne!(bench.placement.worker(1), bench.placement.worker(5), "{reasons:?}");
    assert_eq!(bench.moves, 1);
    assert!(matches!(reasons.last(), Some(Reason::Elephant { slot: 0, .. })), "{reasons:?}");
}

#[test]
fn those_beside_an_elephant_do_not_keep_others_waiting() {
    let mut bench = Bench::new(Config::default(), 4, 16);
    // Three small ones are beside the elephant, and gain by leaving it.
    let mut loads = [0; 16];
    (loads[0], loads[1], loads[5]) = (950, 400, 400);
    (loads[4], loads[8], loads[12]) = (5, 5, 5);
    let reasons: Vec<_> = (0..10).filter_map(|_| bench.second(&loads)).collect();
    assert_ne!(bench.placement.worker(1), bench.placement.worker(5), "{reasons:?}");
    assert!(bench.moves <= 4, "{} moves", bench.moves);
    assert!(matches!(reasons.last(), Some(Reason::Elephant { slot: 0, .. })), "{reasons:?}");
}

#[test]
fn idle_workers_one_worker_and_equal_loads_are_left_alone() {
    let mut idle = Bench::new(Config::default(), 4, 8);
    (0..60).for_each(|_| _ = idle.second(&[0; 8]));
    assert_eq!(idle.moves, 0);
    (0..60).for_each(|_| _ = idle.second(&[100, 0, 0, 0, 100, 0, 0, 0]));
    assert!(idle.moves <= 1, "two of eight ask, and there are four workers: {} moves", idle.moves);
    let mut one = Bench::new(Config::default(), 1, 8);
    assert_eq!(one.second(&[100; 8]), Some(Reason::OneWorker));
    let mut even = Bench::new(Config::default(), 4, 8);
    for _ in 0..600 {
        let reason = even.second(&[300; 8]);
        assert!(matches!(reason, Some(Reason::NotWorth { gain: 0.0, .. })), "{reason:?}");
    }
    assert_eq!(even.moves, 0);
    for config in [
        Config::Genetic(Moving { interval: Duration::from_secs(1), ..Moving::published() }),
        Config::Lpt(Moving::new()),
    ] {
        // σ = 0: nothing is fitter.
        let mut even = Bench::new(config, 4, 8);
        even.second(&[300; 8]);
        assert_eq!(even.moves, 0, "{}", config.name());
    }
}

#[test]
fn figures_of_the_published_method_are_numbers_without_load() {
    for loads in [[0; 8], [0, 0, 0, 0, 0, 0, 0, 1]] {
        let mut idle = Bench::new(Config::Genetic(Moving::slow()), 4, 8);
        let reason = idle.second(&loads);
        let Some(Reason::NotWorth { heaviest, gain }) = reason else { panic!("{reason:?}") };
        assert!(heaviest.is_finite() && gain == 0.0, "{reason:?}");
        assert_eq!((heaviest == 0.0, idle.moves), (loads == [0; 8], 0));
    }
}

#[test]
fn light_connections_stay_where_they_are() {
    let mut bench = Bench::new(Config::default(), 2, 40);
    let mut loads = [0; 40];
    (loads[0], loads[2], loads[4]) = (300, 300, 300);
    let before: Vec<_> = (0..40).map(|slot| bench.placement.worker(slot)).collect();
    (0..10).for_each(|_| _ = bench.second(&loads));
    assert_eq!(bench.heaviest(&loads), 600);
    let changed: Vec<u32> = (0..40).filter(|&slot| bench.placement.worker(slot) != before[slot as usize]).collect();
    assert!(changed.len() == 1 && [0, 2, 4].contains(&changed[0]), "{changed:?}");
}

#[test]
fn the_workers_that_are_left_take_over_and_new_ones_are_filled() {
    let mut bench = Bench::new(Config::default(), 4, 16);
    let loads = [100; 16];
    (0..5).for_each(|_| _ = bench.second(&loads));
    let decision = bench.placement.set_workers(bench.now, 2);
    assert_eq!((decision.reason, decision.moves), (Reason::WorkersChanged { workers: 2 }, 8));
    assert_eq!(bench.heaviest(&loads), 800, "shared evenly");
    bench.placement.set_workers(bench.now, 4);
    (0..30).for_each(|_| _ = bench.second(&loads));
    assert_eq!(bench.heaviest(&loads), 400);
}

#[test]
fn a_newcomer_goes_where_there_is_room_and_many_at_once_are_spread() {
    let mut bench = Bench::new(Config::default(), 4, 4);
    (0..3).for_each(|_| _ = bench.second(&[900, 900, 900, 100]));
    let roomy = bench.placement.worker(3);
    assert_eq!(Some(bench.placement.join(4)), roomy);
    let fresh: Vec<u32> = (5..45).map(|slot| bench.placement.join(slot)).collect();
    for worker in 0..4 {
        let got = fresh.iter().filter(|&&at| at == worker).count();
        assert!((8..=12).contains(&got), "worker {worker} got {got} of 40");
    }
}

#[test]
fn the_published_method_evens_out_bytes_and_moves_more_than_half() {
    let mut rng = SplitMix64::new(11);
    let loads: Vec<u64> = (0..52).map(|_| (20.0 * (1.2 * rng.next_normal()).exp()) as u64).collect();
    let mut genetic = Bench::new(Config::Genetic(Moving { min_gain: 0.01, ..Moving::published() }), 8, 52);
    let before = genetic.heaviest(&loads);
    let reason = (0..5).filter_map(|_| genetic.second(&loads)).last();
    assert!(matches!(reason, Some(Reason::Rebalanced { before, after }) if after < before), "{reason:?}");
    assert!(genetic.heaviest(&loads) < before && genetic.moves > 26, "{} moved", genetic.moves);
}

#[test]
fn what_could_not_move_is_known_to_be_where_it_was() {
    let mut bench = Bench::new(Config::default(), 2, 4);
    let loads = [400, 10, 400, 10];
    while bench.moves == 0 {
        bench.tenth(&loads);
        assert!(bench.now < Instant::ZERO + Duration::from_secs(10), "two heavy ones are on worker 0");
    }
    let one = bench.placement.moves()[0];
    bench.placement.found_on(one.slot, one.from);
    assert_eq!(bench.placement.worker(one.slot), Some(one.from));
    (0..10).for_each(|_| _ = bench.second(&loads));
    assert!(bench.heaviest(&loads) <= 420, "tried again");
}

/// A placement on workers that get a fifth of a core each. Connections have a given number of requests of 1 us outstanding at
/// all times, and each worker serves all its requests in rounds.
struct Quota {
    placement: Placement,
    /// Number of outstanding requests from which on a worker is busy all the time.
    full: u64,
    now: Instant,
    moves: usize,
}

impl Quota {
    /// CPU time that a worker gets in each tenth of a second.
    const GETS: Duration = Duration::from_millis(20);

    fn new(config: Config, connections: u32) -> Self {
        let mut placement = Placement::new(config, 4, 1, Instant::ZERO);
        (0..connections).for_each(|slot| _ = placement.join(slot));
        Self { placement, full: 1, now: Instant::ZERO, moves: 0 }
    }

    /// Number of outstanding requests of each worker, for these numbers of the connections.
    fn depths(&self, depths: &[u64]) -> [u64; 4] {
        let mut sums = [0; 4];
        depths.iter().zip(0..).for_each(|(depth, slot)| sums[self.placement.worker(slot).unwrap() as usize] += depth);
        sums
    }

    fn second(&mut self, depths: &[u64]) -> Reason {
        (0..9).for_each(|_| _ = self.tenth(depths));
        self.tenth(depths)
    }

    fn tenth(&mut self, depths: &[u64]) -> Reason {
        let sums = self.depths(depths);
        for (&depth, slot) in depths.iter().zip(0..) {
            let all = sums[self.placement.worker(slot).unwrap() as usize];
            let cpu = Duration::from_nanos(Self::GETS.as_nanos() * depth / all.max(1));
            self.placement.observe(slot, Sample { cpu, received_bytes: 0 });
        }
        for (&sum, worker) in sums.iter().zip(0..) {
            let busy = (sum as f64 / self.full as f64).min(1.0);
            self.placement.observe_worker(
                worker,
                Usage { busy, backlog: Duration::from_micros(sum), each: Duration::from_micros(1) },
            );
        }
        self.now += LOOK;
        let decision = self.placement.tick(self.now).unwrap();
        self.moves += decision.moves;
        decision.reason
    }
}

#[test]
fn a_worker_that_is_held_to_a_share_of_a_core_is_busy_all_the_same() {
    let mut quota = Quota::new(Config::default(), 8);
    // Placed one after the other: 0 and 4 are together, and two workers have nothing to do.
    let depths = [32, 0, 0, 0, 32, 0, 0, 0];
    let reasons: Vec<Reason> = (0..6).map(|_| quota.second(&depths)).collect();
    assert_ne!(quota.placement.worker(0), quota.placement.worker(4), "{reasons:?}");
    assert_eq!(quota.moves, 1);
}

#[test]
fn full_workers_are_told_apart_by_what_waits_for_them() {
    let mut quota = Quota::new(Config::default(), 16);
    // All are full from the first second on; the first has 130 of 172 requests before it.
    let mut depths = [0; 16];
    for (slot, depth) in [(0, 64), (4, 32), (8, 21), (12, 13), (1, 12), (5, 2), (2, 10), (6, 2), (3, 9), (7, 7)] {
        depths[slot] = depth;
    }
    assert_eq!(quota.depths(&depths), [130, 14, 12, 16]);
    (0..20).for_each(|_| _ = quota.second(&depths));
    let most = *quota.depths(&depths).iter().max().unwrap();
    // It does not even out what waits: those that wait least would wait longer.
    assert!(most <= 100 && quota.moves <= 12, "{:?} after {} moves", quota.depths(&depths), quota.moves);
    let (moved, settled) = (quota.moves, quota.depths(&depths));
    (0..60).for_each(|_| _ = quota.second(&depths));
    assert_eq!(quota.depths(&depths), settled, "and then they stay");
    assert!(quota.moves <= moved + 4, "but for a trial in 40 s: {} after {moved}", quota.moves);
}

proptest! {
    /// Under any reports of workers the number of moves is bounded, each goes to a worker that exists, and a second run with the
    /// same input makes the same moves.
    #[test]
    fn waits_are_the_same_for_the_same_input_and_bounded(
        workers in 1..6_usize,
        events in prop::collection::vec((0..6_u32, 0..24_u32, amounts(), amounts()), 0..400),
    ) {
        let run = || {
            let mut placement = Placement::new(Config::default(), workers, 3, Instant::ZERO);
            let (mut now, mut moves) = (Instant::ZERO, Vec::new());
            for &(event, slot, amount, other) in &events {
                match event {
                    0 => _ = placement.join(slot),
                    1 => placement.leave(slot),
                    2 | 3 => {
                        placement.observe(slot, Sample { cpu: Duration::from_nanos(amount), received_bytes: other });
                    }
                    4 => {
                        let (backlog, each) = (Duration::from_nanos(amount), Duration::from_nanos(other));
                        let busy = (amount % 2_000) as f64 / 1_000.0 - 0.2;
                        placement.observe_worker(slot % 8, Usage { busy, backlog, each });
                    }
                    _ => {
                        now += LOOK;
                        placement.tick(now).unwrap();
                        assert!(placement.moves().len() <= 64 && placement.moves().iter().all(|one| (one.to as usize) < workers));
                        moves.extend_from_slice(placement.moves());
                    }
                }
            }
            moves
        };
        prop_assert_eq!(run(), run());
    }
}

/// Times in ns: none, up to twice the time that passes, and impossibly long ones.
fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..200_000_000_u64, any::<u64>(), Just(u64::MAX)]
}

/// The longest time, in ms, from the first moment at which two connections collide on a worker until one is moved, over all
/// positions in an interval at which the collision may begin.
fn slowest_ms(interval: Duration) -> u64 {
    let step = Duration::from_millis(1);
    let slowest = (0..interval.as_nanos() / step.as_nanos()).map(|place| {
        let mut placement = Placement::new(Config::Waits(Moving { interval, ..Moving::new() }), 2, 1, Instant::ZERO);
        (0..4).for_each(|slot| _ = placement.join(slot));
        // 0 and 2 share a worker, and have asked for nothing for as long as anybody knows.
        let collides = Instant::from_nanos(interval.as_nanos() * 40 + step.as_nanos() * place);
        let mut now = Instant::ZERO;
        loop {
            for slot in [0, 2].into_iter().filter(|_| now >= collides) {
                placement.observe(slot, Sample { cpu: Duration::from_micros(450), received_bytes: 0 });
            }
            now += step;
            if placement.tick(now).is_some_and(|decision| decision.moves > 0) {
                return now.since(collides).as_nanos() / 1_000_000;
            }
            assert!(now < collides + Duration::from_secs(5), "nothing moves");
        }
    });
    slowest.max().unwrap()
}

#[test]
fn a_collision_is_acted_on_as_soon_as_enough_slots_show_it() {
    let default = Moving::new().interval;
    let (fast, slow) = (slowest_ms(Duration::from_millis(20)), slowest_ms(default));
    println!("{fast} ms with slots of 20 ms, {slow} ms with the default of {default:?}");
    assert!(fast <= 100, "{fast} ms");
}

#[test]
fn full_workers_with_the_same_before_them_move_nothing() {
    let mut quota = Quota::new(Config::default(), 32);
    (0..30).for_each(|_| _ = quota.second(&[8; 32]));
    assert_eq!(quota.moves, 0);
}

#[test]
fn the_connections_of_a_worker_that_tells_nothing_count_for_what_they_did() {
    let mut placement = Placement::new(Config::default(), 2, 1, Instant::ZERO);
    (0..4).for_each(|slot| _ = placement.join(slot));
    let mut now = Instant::ZERO;
    let mut second = |placement: &mut Placement, heard: bool| {
        for worker in 0..2 {
            if heard || worker == 0 {
                placement.observe(worker, sample(300));
                placement.observe_worker(
                    worker,
                    Usage { busy: 0.6, backlog: Duration::from_micros(10), each: Duration::from_micros(5) },
                );
            }
        }
        now += Duration::from_secs(1);
        placement.tick(now).unwrap().reason
    };
    (0..5).for_each(|_| _ = second(&mut placement, true));
    for silent in 0..20 {
        let reason = second(&mut placement, false);
        assert!(matches!(reason, Reason::NotWorth { gain: 0.0, .. } | Reason::Elephant { .. }), "{silent}: {reason:?}");
    }
    assert_eq!(placement.join(4), placement.join(5) ^ 1, "newcomers are shared between both");
}

#[test]
fn decisions_about_thousands_of_connections_come_less_often() {
    let moving = Moving::new();
    let intervals = |connections: u32| {
        let mut placement = Placement::new(Config::Waits(moving), 2, 1, Instant::ZERO);
        (0..connections).for_each(|slot| _ = placement.join(slot));
        let due = placement.next_tick().unwrap();
        assert!(placement.tick(Instant::from_nanos(due.as_nanos() - 1)).is_none() && placement.tick(due).is_some());
        due.as_nanos() / moving.interval.as_nanos()
    };
    assert_eq!([1_000, 4_096, 16_384].map(intervals), [1, 5, 17]);
}
