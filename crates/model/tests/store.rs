//! The batching store: its equations, and laws that hold for any requests.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::jitter::Jitter;
use evenkeel_model::store::{InvalidParams, Store, StoreParams};
use proptest::prelude::*;

use laws::{Event, drain, event, play};

use crate::laws;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn at_us(n: u64) -> Instant {
    Instant::ZERO + us(n)
}

/// A store of 100 MB/s, 10,000 requests/s, 200 µs for a write, 100 µs for a read, 1 ms for a commit, without jitter.
fn exact() -> StoreParams {
    StoreParams {
        bandwidth_bytes_per_s: 100_000_000,
        iops: 10_000,
        read_latency: us(100),
        write_latency: us(200),
        commit_latency: us(1_000),
        jitter: Jitter::None,
        ..StoreParams::ssd()
    }
}

fn io(kind: Kind, bytes: u32) -> Io {
    Io { kind, offset: 0, bytes }
}

/// Polls at every event up to `end`; returns the completed requests in order, each with the instant of its completion.
fn drain_until(store: &mut Store, end: Instant) -> Vec<(Instant, u64)> {
    let mut completions = Vec::new();
    while store.next_event() <= end {
        let now = store.next_event();
        while let Some(id) = store.poll(now) {
            completions.push((now, id));
        }
    }
    completions
}

fn completion_times(params: StoreParams, ios: &[Io]) -> Vec<u64> {
    let mut store = Store::new(params, 1);
    for (id, &io) in ios.iter().enumerate() {
        store.submit(Instant::ZERO, id as u64, io);
    }
    let mut times = vec![0; ios.len()];
    for (at, id) in drain(&mut store) {
        times[id as usize] = at.as_nanos() / 1_000;
    }
    times
}

#[test]
fn one_request_takes_the_sum_of_its_stages() {
    // 4,096 B in 41 µs, so the link is held for the base cost of 100 µs; 100,000 B in 1,000 µs.
    assert_eq!(completion_times(exact(), &[io(Kind::Write, 4_096)]), [100 + 200 + 1_000]);
    assert_eq!(completion_times(exact(), &[io(Kind::Write, 100_000)]), [1_000 + 200 + 1_000]);
    assert_eq!(completion_times(exact(), &[io(Kind::Read, 4_096)]), [100 + 100]);
    assert_eq!(completion_times(exact(), &[io(Kind::Flush, 0)]), [1_000]);
    assert_eq!(completion_times(exact(), &[io(Kind::Meta, 0)]), [1_000]);
}

#[test]
fn the_link_serves_in_order_and_a_commit_takes_all_that_is_queued() {
    let writes = [io(Kind::Write, 4_096); 12];
    // The first commits alone from 300 to 1,300 µs; the other eleven arrive by 1,400 µs, ten of them by 1,300.
    let mut expected = vec![1_300];
    expected.extend([2_300; 10]);
    expected.push(3_300);
    assert_eq!(completion_times(exact(), &writes), expected);
    // A batch limit of 4 spreads them.
    let limited = StoreParams { commit_batch_max: 4, ..exact() };
    assert_eq!(
        completion_times(limited, &writes),
        [1_300, 2_300, 2_300, 2_300, 2_300, 3_300, 3_300, 3_300, 3_300, 4_300, 4_300, 4_300]
    );
}

#[test]
fn a_log_on_the_same_device_takes_its_turn_on_the_link() {
    // 50,000 B take 500 us before the commit of 1,000 us.
    let params = StoreParams { commit_bytes: 50_000, ..exact() };
    assert_eq!(completion_times(params, &[io(Kind::Flush, 0)]), [1_500]);
    assert_eq!(completion_times(params, &[io(Kind::Write, 100_000)]), [1_000 + 200 + 1_500]);
    // The log of the first write waits behind the second (to 2,000 us); that commits with the next batch, from 3,500 us on.
    assert_eq!(completion_times(params, &[io(Kind::Write, 100_000); 2]), [2_000 + 1_500, 3_500 + 1_500]);
    // A read waits for a log that came before it.
    assert_eq!(completion_times(params, &[io(Kind::Flush, 0), io(Kind::Read, 4_096)]), [1_500, 500 + 100 + 100]);
}

#[test]
fn reads_wait_for_the_link_but_not_for_commits() {
    let times = completion_times(exact(), &[io(Kind::Write, 100_000), io(Kind::Read, 4_096)]);
    assert_eq!(times, [2_200, 1_000 + 100 + 100]);
}

#[test]
fn small_writes_are_done_with_the_log_and_applied_later() {
    let params = StoreParams { deferred_max_bytes: 10_000, deferred_backlog_max_bytes: 15_000, ..exact() };
    let mut store = Store::new(params, 1);
    // A big write holds the link for 10 ms; small ones do not wait for it.
    store.submit(Instant::ZERO, 0, io(Kind::Write, 1_000_000));
    store.submit(Instant::ZERO, 1, io(Kind::Write, 10_000));
    // Log payload counts: 1,000 µs + 100 µs at 100 MB/s.
    assert_eq!(store.next_event(), at_us(1_100));
    assert_eq!(store.poll(at_us(1_100)), Some(1));
    // The backlog of 15,000 B still holds 10,000 until the link gets to them, so the next goes the long way.
    store.submit(at_us(1_100), 2, io(Kind::Write, 10_000));
    let completions = drain(&mut store);
    // Big write at 10,000 µs; then 100 µs to apply the first small one and 100 µs for the second; both commit together.
    assert_eq!(completions, [(at_us(11_200), 0), (at_us(12_200), 2)]);
    // The backlog has been applied: a small write is quick again.
    store.submit(at_us(20_000), 3, io(Kind::Write, 10_000));
    assert_eq!(drain(&mut store)[0], (at_us(21_100), 3));
}

#[test]
fn a_stall_delays_all_that_is_under_way_by_its_length() {
    let submit = |store: &mut Store| {
        for id in 0..20 {
            store.submit(Instant::ZERO, id, io(if id % 3 == 0 { Kind::Read } else { Kind::Write }, 50_000));
        }
    };
    let mut plain = Store::new(exact(), 1);
    submit(&mut plain);
    let mut stalled = Store::new(exact(), 1);
    submit(&mut stalled);
    let mut completions = drain_until(&mut stalled, at_us(2_250));
    assert!(!completions.is_empty());
    stalled.stall(at_us(2_250), us(7_000));
    // During a stall another one comes on top.
    stalled.stall(at_us(3_000), us(500));
    let expected: Vec<_> = drain(&mut plain)
        .into_iter()
        .map(|(at, id)| (if at <= at_us(2_250) { at } else { at + us(7_500) }, id))
        .collect();
    completions.extend(drain(&mut stalled));
    assert_eq!(completions, expected);
}

#[test]
fn periodic_stalls_take_their_share_of_the_time() {
    let params = StoreParams { stall_every: us(10_000), stall_for: us(2_500), ..exact() };
    let mut store = Store::new(params, 1);
    for id in 0..1_000 {
        store.submit(Instant::ZERO, id, io(Kind::Read, 10_000));
    }
    let last = drain(&mut store).last().expect("they complete").0;
    // 1,000 × 100 µs on the link and 100 µs of latency, at three quarters of the time.
    let expected_us = (100_000.0 + 100.0) / 0.75;
    assert!((last.as_nanos() as f64 / 1e3 - expected_us).abs() < 2_500.0, "{last:?}");
}

#[test]
fn every_stall_counts_however_seldom_we_look() {
    // A commit of 100 ms and a stall of 1 ms every 10 ms: eleven stalls fall into it however seldom we look.
    let params = StoreParams { commit_latency: us(100_000), stall_every: us(10_000), stall_for: us(1_000), ..exact() };
    let mut store = Store::new(params, 1);
    store.submit(Instant::ZERO, 0, io(Kind::Flush, 0));
    assert_eq!(store.poll(at_us(111_000) - Duration::from_nanos(1)), None);
    assert_eq!(store.poll(at_us(111_000)), Some(0), "100 ms of work, 11 stalls");
}

#[test]
fn long_idleness_costs_nothing() {
    let params = StoreParams { stall_every: Duration::from_nanos(2), stall_for: Duration::from_nanos(1), ..exact() };
    let mut store = Store::new(params, 1);
    assert_eq!(store.poll(Instant::from_nanos(u64::MAX / 2)), None);
    assert_eq!(store.next_event(), Instant::FAR_FUTURE);
}

#[test]
fn new_parameters_hold_for_what_has_not_begun() {
    let mut store = Store::new(exact(), 1);
    for id in 0..3 {
        store.submit(Instant::ZERO, id, io(Kind::Read, 100_000));
    }
    store.set_params(at_us(500), StoreParams { bandwidth_bytes_per_s: 50_000_000, ..exact() });
    assert_eq!(drain(&mut store), [(at_us(1_100), 0), (at_us(3_100), 1), (at_us(5_100), 2)]);
    assert_eq!(store.params().bandwidth_bytes_per_s, 50_000_000);
}

#[test]
fn a_faster_store_does_everything_in_less_time() {
    let ios = [io(Kind::Write, 100_000), io(Kind::Read, 4_096), io(Kind::Flush, 0), io(Kind::Write, 4_096)];
    let (plain, half) = (completion_times(exact(), &ios), completion_times(exact().scaled(0.5), &ios));
    assert_eq!(half, plain.iter().map(|time| 2 * time).collect::<Vec<_>>());
}

#[test]
fn invalid_parameters_are_named() {
    let cases = [
        (StoreParams { bandwidth_bytes_per_s: 0, ..exact() }, "bandwidth"),
        (StoreParams { iops: 0, ..exact() }, "iops"),
        (StoreParams { commit_batch_max: 0, ..exact() }, "commit_batch_max"),
        (StoreParams { jitter: Jitter::Uniform { spread: 1.5 }, ..exact() }, "jitter"),
        (StoreParams { jitter: Jitter::LogNormal { sigma: f64::NAN }, ..exact() }, "jitter"),
        (StoreParams { stall_every: us(5), stall_for: us(5), ..exact() }, "stall_for"),
    ];
    for (params, parameter) in cases {
        let Err(InvalidParams { parameter: named, must_be, .. }) = params.validate() else {
            panic!("{parameter} accepted")
        };
        assert_eq!(named, parameter);
        assert!(!must_be.is_empty());
    }
    for params in [exact(), StoreParams::ssd(), StoreParams::hdd()] {
        assert_eq!(params.validate(), Ok(()));
    }
}

#[test]
fn jitter_keeps_the_mean() {
    let mut rng = evenkeel_control::rng::SplitMix64::new(5);
    for jitter in [Jitter::None, Jitter::Uniform { spread: 0.5 }, Jitter::LogNormal { sigma: 0.5 }] {
        let n = 20_000u64;
        let mut sum = 0;
        let mut distinct = std::collections::BTreeSet::new();
        for _ in 0..n {
            let drawn = jitter.apply(us(1_000), &mut rng).as_nanos();
            sum += drawn;
            distinct.insert(drawn);
        }
        let mean_us = sum as f64 / n as f64 / 1e3;
        assert!((mean_us - 1_000.0).abs() < 20.0, "{jitter:?}: {mean_us}");
        assert_eq!(distinct.len() > 1_000, jitter != Jitter::None);
    }
}

fn params() -> impl Strategy<Value = StoreParams> {
    let latency = || (0u64..3_000).prop_map(us);
    let jitter = prop_oneof![
        Just(Jitter::None),
        (0.0f64..1.0).prop_map(|spread| Jitter::Uniform { spread }),
        (0.0f64..1.0).prop_map(|sigma| Jitter::LogNormal { sigma }),
    ];
    let stalls = prop_oneof![Just((0, 0)), (1_000u64..50_000).prop_map(|every| (every, every / 3))];
    (
        (1_000_000u64..4_000_000_000, 50u64..2_000_000, latency(), latency(), latency()),
        (1u32..40, 0u32..20_000, 0u64..100_000, prop_oneof![Just(0u32), 1u32..50_000]),
        jitter,
        stalls,
    )
        .prop_map(|(rates, batch, jitter, stalls)| StoreParams {
            bandwidth_bytes_per_s: rates.0,
            iops: rates.1,
            read_latency: rates.2,
            write_latency: rates.3,
            commit_latency: rates.4,
            commit_bytes: batch.3,
            commit_batch_max: batch.0,
            deferred_max_bytes: batch.1,
            deferred_backlog_max_bytes: batch.2,
            jitter,
            stall_every: us(stalls.0),
            stall_for: us(stalls.1),
        })
}

fn any_io() -> impl Strategy<Value = Io> {
    prop_oneof![
        (0u32..200_000).prop_map(|bytes| io(Kind::Read, bytes)),
        (0u32..200_000).prop_map(|bytes| io(Kind::Write, bytes)),
        Just(io(Kind::Flush, 0)),
        Just(io(Kind::Meta, 0)),
    ]
}

proptest! {
    #[test]
    fn every_request_completes_once_and_not_before_its_time(params in params(), events in prop::collection::vec(event(any_io(), params()), 0..120)) {
        laws::each_completes_once::<Store>(params, &events);
    }

    #[test]
    fn completions_depend_on_calls_and_seed_alone(params in params(), events in prop::collection::vec(event(any_io(), params()), 0..120)) {
        laws::calls_and_seed_decide_alone::<Store>(params, &events);
    }

    #[test]
    fn nothing_completes_before_the_next_event(params in params(), ios in prop::collection::vec(any_io(), 1..50)) {
        laws::nothing_completes_before_its_event::<Store>(params, &ios);
    }

    /// Without jitter writes complete in the order of submission.
    #[test]
    fn commits_are_first_come_first_served(params in params(), sizes in prop::collection::vec(0u32..200_000, 1..80)) {
        let params = StoreParams { jitter: Jitter::None, deferred_max_bytes: 0, ..params };
        let events: Vec<Event<StoreParams>> = sizes.iter().map(|&bytes| Event::Submit(io(Kind::Write, bytes))).collect();
        let (completions, _) = play::<Store>(params, &events, true);
        prop_assert!(completions.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    /// Neither bandwidth nor IOPS of the link are ever exceeded, and the link is never idle while a request waits for it.
    #[test]
    fn the_link_conserves_work(params in params(), sizes in prop::collection::vec(0u32..200_000, 1..80)) {
        let params = StoreParams { jitter: Jitter::None, stall_every: Duration::ZERO, ..params };
        let events: Vec<Event<StoreParams>> = sizes.iter().map(|&bytes| Event::Submit(io(Kind::Read, bytes))).collect();
        let (completions, _) = play::<Store>(params, &events, true);
        let (mut bytes, mut busy_ns) = (0u64, 0u64);
        for (count, (at, id)) in completions.iter().enumerate() {
            let size = u64::from(sizes[*id as usize]);
            bytes += size;
            busy_ns += (size * 1_000_000_000).div_ceil(params.bandwidth_bytes_per_s).max(1_000_000_000u64.div_ceil(params.iops));
            let link_ns = at.since(Instant::ZERO + params.read_latency).as_nanos();
            prop_assert!(u128::from(bytes) * 1_000_000_000 <= u128::from(params.bandwidth_bytes_per_s) * u128::from(link_ns));
            prop_assert!((count as u128 + 1) * 1_000_000_000 <= u128::from(params.iops) * u128::from(link_ns));
            prop_assert_eq!(link_ns, busy_ns);
        }
    }

    /// At no moment has a closed loop of writes committed more bytes than the bandwidth allows since the start of the loop.
    #[test]
    fn a_closed_loop_stays_within_the_bandwidth(params in params(), depth in 1usize..40, bytes in 20_000u32..200_000) {
        let params = StoreParams { deferred_max_bytes: 0, ..params };
        let mut store = Store::new(params, 9);
        for id in 0..depth {
            store.submit(Instant::ZERO, id as u64, io(Kind::Write, bytes));
        }
        let mut done = 0u64;
        while done < 300 {
            let now = store.next_event();
            while store.poll(now).is_some() {
                done += 1;
                store.submit(now, done, io(Kind::Write, bytes));
            }
            prop_assert!(
                u128::from(done * u64::from(bytes)) * 1_000_000_000
                    <= u128::from(params.bandwidth_bytes_per_s) * u128::from(now.as_nanos())
            );
        }
    }
}
