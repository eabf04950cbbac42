//! Workers of a messenger, compared with queueing theory, and checks of their counters.

use std::collections::BTreeMap;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::worker::{Done, Side, WorkerParams, Workers};
use proptest::prelude::*;

/// Workers that take 10 µs for each message of 1,000 bytes: 5 µs fixed, 5 µs for the bytes.
fn constant() -> WorkerParams {
    WorkerParams {
        receive_time: Duration::from_micros(5),
        receive_bytes_per_s: 200_000_000,
        send_time: Duration::from_micros(5),
        send_bytes_per_s: 200_000_000,
        jitter: Jitter::None,
        handover: Duration::from_micros(7),
        move_time: Duration::from_micros(3),
    }
}

const BYTES: u32 = 1_000;
const SERVICE_US: f64 = 10.0;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn at(n: u64) -> Instant {
    Instant::ZERO + us(n)
}

/// Polls at every event until no message is left; returns the finished messages.
fn drain(workers: &mut Workers) -> Vec<Done> {
    let mut done = Vec::new();
    while workers.next_event() < Instant::FAR_FUTURE {
        done.extend(workers.poll(workers.next_event()));
    }
    done
}

/// Mean time in µs from submission to completion with Poisson arrivals at a rate of `utilisation` times the worker's capacity.
fn open_loop(params: WorkerParams, utilisation: f64, seed: u64) -> f64 {
    let mut workers = Workers::new(params, 1, &[0, 0, 0], seed);
    let mut rng = SplitMix64::new(seed + 1);
    let (mut now, mut sum, count) = (0.0, 0.0, 1_000_000);
    let mut submitted = Vec::new();
    let mut next = |submitted: &mut Vec<Instant>| {
        now += -SERVICE_US * 1e3 / utilisation * rng.next_f64().ln();
        submitted.push(Instant::from_nanos(now as u64));
        (*submitted.last().unwrap(), rng.next_below(3) as u32)
    };
    let (mut due, mut connection) = next(&mut submitted);
    let mut ended = 0;
    while ended < count {
        let event = workers.next_event();
        if due < event {
            workers.submit(due, connection, submitted.len() as u64 - 1, Side::Receive, BYTES);
            (due, connection) = next(&mut submitted);
        } else if let Some(done) = workers.poll(event) {
            sum += done.at.since(submitted[done.id as usize]).as_nanos() as f64 / 1e3;
            ended += 1;
        }
    }
    sum / f64::from(count)
}

#[test]
fn waits_are_those_of_a_queue_with_constant_service() {
    // Pollaczek and Khinchine: service + ρ·service·(1 + c²)/(2·(1 − ρ)).
    for (jitter, variation) in [
        (Jitter::None, 0.0),
        (Jitter::Uniform { spread: 0.5 }, 0.25 / 3.0),
        (Jitter::Uniform { spread: 1.0 }, 1.0 / 3.0),
    ] {
        for utilisation in [0.3, 0.6, 0.8] {
            let measured = open_loop(WorkerParams { jitter, ..constant() }, utilisation, 5);
            let wait = utilisation * SERVICE_US * (1.0 + variation) / (2.0 * (1.0 - utilisation));
            let expected = SERVICE_US + wait;
            println!("{jitter:?}, {utilisation} busy: {measured:.2} µs (theory: {expected:.2} ± 3 %)");
            assert!((measured / expected - 1.0).abs() < 0.03, "{utilisation}: {measured} instead of {expected} µs");
        }
    }
}

/// Messages per second of each connection, if each keeps `depth` messages in circulation: the next message is submitted `delay`
/// after the completion of one.
fn closed_loop(homes: &[u32], workers: usize, depth: u64, delay: Duration) -> Vec<f64> {
    let mut model = Workers::new(constant(), workers, homes, 1);
    let mut due: BTreeMap<(Instant, u64), u32> = BTreeMap::new();
    let mut order = 0;
    for connection in 0..homes.len() as u32 {
        for n in 0..depth {
            due.insert((at(n), order), connection);
            order += 1;
        }
    }
    let second = Instant::ZERO + Duration::from_secs(1);
    loop {
        let first = due.first_key_value().map_or(Instant::FAR_FUTURE, |(&(at, _), _)| at);
        let now = first.min(model.next_event());
        if now > second {
            break;
        }
        while let Some(done) = model.poll(now) {
            due.insert((done.at + delay, order), done.connection);
            order += 1;
        }
        while let Some(entry) = due.first_entry().filter(|entry| entry.key().0 <= now) {
            model.submit(now, entry.remove(), 0, Side::Receive, BYTES);
        }
    }
    (0..homes.len() as u32).map(|c| model.counters(c).received as f64).collect()
}

#[test]
fn a_closed_loop_is_bound_by_delay_or_by_the_worker() {
    // Four outstanding, 10 µs each: with 90 µs elsewhere 4 in 100 µs; with 10 µs the worker's 100,000 a second.
    for (delay, expected) in [(us(90), 40_000.0), (us(10), 100_000.0)] {
        let rate = closed_loop(&[0], 1, 4, delay)[0];
        println!("4 outstanding, {delay:?} elsewhere: {rate:.0} messages a second (theory: {expected:.0} ± 1 %)");
        assert!((rate / expected - 1.0).abs() < 0.01, "{delay:?}: {rate}");
    }
    // Two connections share a worker and get half each; the third has one of its own.
    let rates = closed_loop(&[0, 0, 1], 2, 8, us(10));
    for (rate, expected) in rates.iter().zip([50_000.0, 50_000.0, 100_000.0]) {
        assert!((rate / expected - 1.0).abs() < 0.01, "{rates:?}");
    }
}

#[test]
fn a_moved_connection_takes_its_messages_along_after_the_one_under_way() {
    let mut workers = Workers::new(constant(), 2, &[0, 0], 1);
    for id in 0..3 {
        workers.submit(at(0), 0, id, Side::Receive, BYTES);
        workers.submit(at(0), 1, 10 + id, Side::Send, BYTES);
    }
    workers.move_to(at(4), 0, 1);
    workers.submit(at(5), 0, 3, Side::Send, BYTES);
    let ends: Vec<(u64, Instant)> = drain(&mut workers).iter().map(|done| (done.id, done.at)).collect();
    // The one under way ends at 10, handed over at 17, 3 µs more for the first one on the new worker.
    let expected = [(0, 10), (10, 20), (11, 30), (1, 30), (12, 40), (2, 40), (3, 50)];
    assert_eq!(ends, expected.map(|(id, end)| (id, at(end))));
    let counters = workers.counters(0);
    assert_eq!((counters.received, counters.received_bytes, counters.sent, counters.sent_bytes), (3, 3_000, 1, 1_000));
    assert_eq!((counters.busy, workers.counters(1).busy), (us(43), us(30)));
    assert_eq!((workers.worker(0), workers.worker(1), workers.waiting(0), workers.waiting(1)), (1, 0, 0, 0));
}

#[test]
fn messages_of_all_sizes_and_both_directions_take_their_nominal_time() {
    let params = WorkerParams { send_bytes_per_s: 100_000_000, ..constant() };
    let (mut workers, mut now) = (Workers::new(params, 1, &[0], 1), at(1));
    for bytes in [0, 256, 4_352, 0, 512, 8_448, 256, 4_352, 4_096] {
        for side in [Side::Receive, Side::Send] {
            workers.submit(now, 0, 0, side, bytes);
            let done = workers.poll(workers.next_event()).expect("a message");
            assert_eq!(done.at.since(now), params.time(side, bytes), "{bytes} bytes, {side:?}");
            now = done.at;
        }
    }
}

#[test]
fn slower_is_a_matter_of_scale() {
    let run = |factor: u64| {
        let params = WorkerParams { jitter: Jitter::None, ..constant() }.slower(factor as f64);
        let mut workers = Workers::new(params, 2, &[0, 1, 1], 3);
        for n in 0..50 {
            workers.submit(at(3 * n * factor), (n % 3) as u32, n, Side::Send, 400);
        }
        workers.move_to(at(150 * factor), 2, 0);
        drain(&mut workers).iter().map(|done| (done.id, done.at.as_nanos() / factor)).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(8));
}

#[test]
fn parameters_that_make_no_sense_are_named() {
    assert_eq!(WorkerParams::serve().validate(), Ok(()));
    let wrong = WorkerParams { send_bytes_per_s: 0, ..WorkerParams::serve() };
    assert_eq!(wrong.validate().unwrap_err().parameter, "send_bytes_per_s");
}

#[derive(Clone, Debug)]
enum Call {
    Submit { connection: u32, send: bool, bytes: u32 },
    Move { connection: u32, worker: u32 },
    Poll,
}

fn calls() -> impl Strategy<Value = Vec<(u64, Call)>> {
    let call = prop_oneof![
        4 => (0..5_u32, any::<bool>(), 0..5_000_u32)
            .prop_map(|(connection, send, bytes)| Call::Submit { connection, send, bytes }),
        1 => (0..5_u32, 0..3_u32).prop_map(|(connection, worker)| Call::Move { connection, worker }),
        2 => Just(Call::Poll),
    ];
    prop::collection::vec((0..30_u64, call), 0..200)
}

/// Makes the calls, and polls at every event (`eager`), or only where the calls say so and at the end. Returns the finished
/// messages and the workers.
fn carry_out(calls: &[(u64, Call)], eager: bool) -> (Vec<Done>, Workers) {
    let params = WorkerParams { jitter: Jitter::Uniform { spread: 0.5 }, ..constant() };
    let mut workers = Workers::new(params, 3, &[0, 1, 2, 0, 1], 9);
    let (mut now, mut done) = (0, Vec::new());
    for (id, (wait, call)) in calls.iter().enumerate() {
        now += wait;
        while eager && workers.next_event() <= at(now) {
            done.extend(workers.poll(workers.next_event()));
        }
        match *call {
            Call::Submit { connection, send, bytes } => {
                let side = if send { Side::Send } else { Side::Receive };
                workers.submit(at(now), connection, id as u64, side, bytes);
            }
            Call::Move { connection, worker } => workers.move_to(at(now), connection, worker),
            Call::Poll => done.extend(workers.poll(at(now))),
        }
    }
    done.extend(drain(&mut workers));
    (done, workers)
}

proptest! {
    #[test]
    fn every_message_is_served_once_and_those_of_a_connection_in_order(calls in calls()) {
        let (done, workers) = carry_out(&calls, true);
        for wanted in 0..5 {
            let mine = |connection: u32| connection == wanted;
            let submitted: Vec<u64> = calls.iter().enumerate().filter_map(|(id, (_, call))| match call {
                Call::Submit { connection, .. } if mine(*connection) => Some(id as u64),
                _ => None,
            }).collect();
            let served: Vec<u64> = done.iter().filter(|done| mine(done.connection)).map(|done| done.id).collect();
            prop_assert_eq!(&served, &submitted);
            let counters = workers.counters(wanted);
            prop_assert_eq!(counters.received + counters.sent, served.len() as u64);
        }
        prop_assert!(done.windows(2).all(|pair| pair[0].at <= pair[1].at));
        // Nobody works longer than there is time.
        let busy: u64 = (0..5).map(|connection| workers.counters(connection).busy.as_nanos()).sum();
        prop_assert!(busy <= 3 * done.last().map_or(0, |done| done.at.as_nanos()));
    }

    #[test]
    fn when_it_is_polled_changes_nothing(calls in calls()) {
        prop_assert_eq!(carry_out(&calls, true).0, carry_out(&calls, false).0);
    }
}

#[test]
fn a_worker_tells_what_it_did_and_among_how_many_it_found_each() {
    let mut workers = Workers::new(constant(), 2, &[0], 1);
    assert_eq!(workers.connect(1), 1);
    assert_eq!((workers.worker(0), workers.worker(1)), (0, 1));
    for id in 0..4 {
        workers.submit(at(0), 0, id, Side::Receive, BYTES);
    }
    workers.submit(at(0), 1, 4, Side::Send, BYTES);
    assert_eq!(drain(&mut workers).len(), 5);
    let before = workers.counters(0);
    let (first, second) = (workers.worked(0), workers.worked(1));
    assert_eq!((first.messages, first.busy, second.messages, second.busy), (4, us(40), 1, us(10)));
    // The first began before the others came; then 3, 2 and 1 were there.
    assert_eq!((first.among, second.among), (1 + 3 + 2 + 1, 1));
    workers.submit(at(100), 0, 5, Side::Send, BYTES);
    drain(&mut workers);
    let since = workers.counters(0).since(&before);
    assert_eq!((since.received, since.sent, since.sent_bytes, since.busy), (0, 1, 1_000, us(10)));
}
