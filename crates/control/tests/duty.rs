//! The share of processor time that storming clients may take, and the clients that a storm must not delay.

use evenkeel_control::duty::{Config, Duty, Turn};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const CONFIG: Config = Config { one_in: 10, burst: Duration::from_millis(400) };

/// Time of a step, after which each client may ask again.
const STEP: Duration = Duration::from_micros(100);

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// A client that takes as much processor time as it can get, in pieces of the length `piece`.
#[derive(Clone, Copy, Debug)]
struct Storm {
    client: u32,
    piece: Duration,
    /// When the client asks next.
    again: Instant,
}

/// Lets storming clients ask for `time` from `from` on; returns the processor time that each has taken, in ns. `look` is called
/// at every step.
fn storm(
    duty: &mut Duty<u32>,
    storms: &mut [Storm],
    from: Instant,
    time: Duration,
    mut look: impl FnMut(&mut Duty<u32>, Instant),
) -> Vec<u64> {
    let mut taken = vec![0; storms.len()];
    let mut now = from;
    while now < from + time {
        for (storm, taken) in storms.iter_mut().zip(&mut taken) {
            if storm.again > now {
                continue;
            }
            match duty.turn(now, storm.client) {
                Turn::Wait { until, .. } => {
                    assert!(until > now, "a wait that is over at once would spin");
                    storm.again = until;
                }
                Turn::Own | Turn::Spare => {
                    duty.spent(now, storm.client, storm.piece);
                    *taken += storm.piece.as_nanos();
                }
            }
        }
        look(duty, now);
        now += STEP;
    }
    taken
}

fn storms(pieces: &[u64]) -> Vec<Storm> {
    let storm = |(client, &micros): (usize, &u64)| Storm {
        client: client as u32,
        piece: Duration::from_micros(micros),
        again: Instant::ZERO,
    };
    pieces.iter().enumerate().map(storm).collect()
}

#[test]
fn a_storm_gets_its_share_and_no_more() {
    for pieces in [&[20][..], &[20, 20, 20], &[5_000], &[20, 5_000]] {
        let (mut duty, mut storms) = (Duty::new(CONFIG), storms(pieces));
        storm(&mut duty, &mut storms, at(0), Duration::from_secs(10), |_, _| {});
        // What was saved up is used up by now.
        let taken = storm(&mut duty, &mut storms, at(10_000_000_000), Duration::from_secs(20), |_, _| {});
        let share = taken.iter().sum::<u64>() as f64 / 20e9;
        assert!((0.097..=0.102).contains(&share), "pieces of {pieces:?} us take {share} of a processor");
    }
}

#[test]
fn a_storm_at_a_storage_server_gets_less_than_a_tenth_of_a_processor() {
    let (mut duty, mut storms) = (Duty::new(Config::STORM), storms(&[20, 20, 5_000]));
    storm(&mut duty, &mut storms, at(0), Duration::from_secs(10), |_, _| {});
    let taken = storm(&mut duty, &mut storms, at(10_000_000_000), Duration::from_secs(20), |_, _| {});
    let share = taken.iter().sum::<u64>() as f64 / 20e9;
    assert!((0.05..0.1).contains(&share), "{share} of a processor");
}

/// Clients from 1,000 on belong to one site.
fn with_a_site() -> Duty<u32> {
    Duty::with_sites(CONFIG, |client| (client >= 1_000).then_some(0))
}

/// Lets the client `modest` ask for `piece` ten times a second for 6 s, and `storming` clients of the site, one after the other,
/// for 100 us ten times a millisecond. Returns the number of times that `modest` was not within its account.
fn waits_beside_a_site(mut duty: Duty<u32>, storming: u64, modest: u32, piece: Duration) -> u64 {
    let mut waits = 0;
    for step in 0..6_000 {
        let now = at(step * 1_000_000);
        for asks in step * 10..step * 10 + 10 {
            let client = 1_000 + (asks % storming) as u32;
            if !matches!(duty.turn(now, client), Turn::Wait { .. }) {
                duty.spent(now, client, Duration::from_micros(100));
            }
        }
        if step % 100 == 0 {
            if duty.turn(now, modest) == Turn::Own {
                duty.spent(now, modest, piece);
            } else {
                waits += 1;
            }
        }
    }
    waits
}

#[test]
fn a_site_of_thousands_of_clients_leaves_others_what_is_theirs() {
    let piece = Duration::from_millis(1);
    for storming in [3, 300, 5_000, 200_000] {
        assert_eq!(waits_beside_a_site(with_a_site(), storming, 7, piece), 0, "beside {storming}");
    }
    assert!(waits_beside_a_site(Duty::new(CONFIG), 5_000, 7, piece) > 30, "as that many hosts they starve it");
}

#[test]
fn a_few_storming_clients_of_a_site_leave_its_other_clients_what_is_theirs() {
    for storming in 1..=3 {
        let waits = waits_beside_a_site(with_a_site(), storming, 900_000, Duration::from_micros(200));
        assert_eq!(waits, 0, "beside {storming}");
    }
    assert!(waits_beside_a_site(with_a_site(), 5_000, 900_000, Duration::from_micros(200)) > 0, "all are one site");
}

#[test]
fn a_site_has_accounts_for_some_of_its_clients_and_forgets_them() {
    let mut duty = with_a_site();
    for client in 0..2_000 {
        duty.spent(at(0), client, Duration::from_micros(1));
    }
    assert_eq!(duty.clients(), 1_000 + 256);
    // All of it is made up for.
    assert_eq!(duty.turn(at(100_000_000_000), 1_500), Turn::Own);
    assert_eq!(duty.clients(), 0);
}

#[test]
fn clients_that_storm_alike_get_alike() {
    let (mut duty, mut storms) = (Duty::new(CONFIG), storms(&[50; 5]));
    let taken = storm(&mut duty, &mut storms, at(0), Duration::from_secs(30), |_, _| {});
    let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
    assert!(most - least < most / 10, "{taken:?}");
}

#[test]
fn what_was_saved_up_is_there_at_once() {
    // A list of many exports, or a host that starts all of its machines: half of what can be saved up.
    let mut duty = Duty::new(CONFIG);
    let mut taken = Duration::ZERO;
    while duty.turn(at(0), 7) != Turn::Spare || taken < Duration::from_millis(199) {
        assert!(!matches!(duty.turn(at(0), 7), Turn::Wait { .. }), "after {taken:?}");
        duty.spent(at(0), 7, Duration::from_millis(1));
        taken = taken + Duration::from_millis(1);
    }
    assert_eq!(taken, Duration::from_millis(199));
    duty.spent(at(0), 7, Duration::from_millis(1));
    let Turn::Wait { until, own: false } = duty.turn(at(0), 7) else { panic!("it has had its half") };
    assert!(until.since(at(0)) < Duration::from_millis(50), "and waits for a moment: {until:?}");
    assert!(!matches!(duty.turn(until, 7), Turn::Wait { .. }), "it goes when it was called");
}

#[test]
fn a_debt_is_paid_off_before_the_next_turn() {
    let mut duty = Duty::new(CONFIG);
    duty.spent(at(0), 1, Duration::from_secs(2));
    let Turn::Wait { until, own: true } = duty.turn(at(0), 2) else { panic!("all of it is gone") };
    assert!((16..=17).contains(&(until.as_nanos() / 1_000_000_000)), "{until:?}");
    assert_eq!(duty.turn(until, 2), Turn::Own);
    assert!(duty.newcomer(until).is_some_and(|then| then > until), "those that are known go first");
}

#[test]
fn another_burst_leaves_accounts_as_full_as_they_were_and_debts_as_they_are() {
    let left = |duty: &mut Duty<u32>, client| {
        let mut left = 0;
        while !matches!(duty.turn(at(0), client), Turn::Wait { .. }) {
            duty.spent(at(0), client, Duration::from_millis(1));
            left += 1;
        }
        left
    };
    let with_burst = |burst| {
        let mut duty = Duty::new(CONFIG);
        duty.set_burst(at(0), Duration::from_millis(burst));
        duty
    };
    assert_eq!(left(&mut with_burst(400), 7), 200);
    assert_eq!(left(&mut with_burst(100), 7), 50, "half of less");
    assert_eq!(left(&mut with_burst(4_000), 7), 2_000, "half of more, at once");
    // Who has used up half of what there was has used up half of what there is, to and fro.
    let mut duty = with_burst(400);
    assert_eq!(left(&mut duty, 7), 200);
    for burst in [4_000, 100, 400].repeat(20) {
        duty.set_burst(at(0), Duration::from_millis(burst));
        assert!(matches!(duty.turn(at(0), 7), Turn::Wait { own: false, .. }), "at {burst} ms");
    }
    duty.spent(at(0), 1, Duration::from_secs(2));
    let before = duty.turn(at(0), 2);
    duty.set_burst(at(0), Duration::from_secs(4));
    duty.set_burst(at(0), CONFIG.burst);
    assert_eq!(duty.turn(at(0), 2), before);
}

#[test]
fn what_cannot_wait_does_not_starve_what_can() {
    let mut duty = Duty::new(CONFIG);
    // A storm of connections takes half of a processor to be accepted alone.
    for ms in 0..10_000 {
        duty.spent_anyway(at(ms * 1_000_000), 1, Duration::from_micros(500));
    }
    let now = at(10_000_000_000);
    assert_eq!(duty.turn(now, 2), Turn::Own, "the lower quarter is there for others");
    assert!(matches!(duty.turn(now, 1), Turn::Wait { own: false, .. }), "and not for the one that storms");
    duty.spent(now, 2, Duration::from_millis(101));
    duty.spent_anyway(now, 1, Duration::from_millis(100));
    let Turn::Wait { until, own: true } = duty.turn(now, 3) else { panic!("the quarter is used up") };
    assert!(until.since(now) < Duration::from_millis(50), "and fills again");
}

#[test]
fn accounts_are_bounded_and_forgotten() {
    let mut duty = Duty::new(CONFIG);
    for client in 0..100_000u32 {
        duty.spent(at(0), client, Duration::from_nanos(10));
        assert!(duty.clients() <= 4_096);
    }
    assert_ne!(duty.clients(), 0);
    let later = at(3_600_000_000_000);
    assert_eq!(duty.turn(later, 3), Turn::Own);
    assert_eq!(duty.clients(), 0);
}

#[test]
fn time_that_does_not_pass_brings_nothing() {
    let mut duty = Duty::new(CONFIG);
    duty.spent(at(1_000), 1, Duration::from_secs(1));
    let first = duty.turn(at(1_000), 1);
    for _ in 0..1_000 {
        assert_eq!(duty.turn(at(1_000), 1), first);
        assert_eq!(duty.turn(at(0), 1), first, "nor time that is said to be earlier");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In each window of time the processor time taken is within the bound, whichever clients ask, when and for how much.
    #[test]
    fn no_window_exceeds_the_bound(
        asks in prop::collection::vec((0u64..20_000_000, 0u32..6, 1u64..3_000_000), 1..600),
    ) {
        let mut duty = Duty::new(CONFIG);
        let mut now = 0;
        let mut spent: Vec<(u64, u64)> = Vec::new();
        for (pause, client, cost) in asks {
            // Mostly at once, so that there is a storm.
            now += if pause > 15_000_000 { pause } else { pause / 1_000 };
            if !matches!(duty.turn(at(now), client), Turn::Wait { .. }) {
                duty.spent(at(now), client, Duration::from_nanos(cost));
                spent.push((now, cost));
            }
        }
        let longest = spent.iter().map(|&(_, cost)| cost).max().unwrap_or(0);
        for (index, &(from, _)) in spent.iter().enumerate() {
            let mut sum = 0;
            for &(until, cost) in &spent[index..] {
                sum += cost;
                let bound = CONFIG.burst.as_nanos() + (until - from) / 10 + longest;
                prop_assert!(sum <= bound + 10, "{sum} ns from {from} to {until}, more than {bound}");
            }
        }
    }

    /// A client that takes little never waits while up to ten others take all that they get, and neither do newcomers.
    #[test]
    fn who_takes_little_does_not_wait_for_those_who_storm(
        pieces in prop::collection::vec(10u64..2_000, 1..=10),
        cost in 10u64..1_500,
        phase in 0u64..1_000,
    ) {
        let (mut duty, mut storms) = (Duty::new(CONFIG), storms(&pieces));
        let quiet = 1_000;
        // A quarter of what would be its part of the half that is divided.
        let every = Duration::from_micros(cost * 10 * 2 * 4 * (pieces.len() as u64 + 1));
        let mut next = at(5_000_000_000 + phase * 1_000_000);
        let mut failed = None;
        storm(&mut duty, &mut storms, at(0), Duration::from_secs(8), |duty, now| {
            if duty.newcomer(now).is_some() {
                failed = failed.or(Some(("a newcomer", now)));
            }
            if now >= next {
                if duty.turn(now, quiet) != Turn::Own {
                    failed = failed.or(Some(("the quiet client", now)));
                }
                duty.spent(now, quiet, Duration::from_micros(cost));
                next = now + every;
            }
        });
        prop_assert_eq!(failed, None);
    }
}
