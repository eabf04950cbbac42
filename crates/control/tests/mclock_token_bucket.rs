//! The token bucket's guarantees: over any window it lets pass at most the rate (and the burst), and not noticeably less.

use evenkeel_control::token_bucket::TokenBucket;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn read(bytes: u32) -> Work {
    Work::new(Kind::Read, bytes)
}

fn iops(iops: u64) -> Rates {
    Rates { iops, bytes_per_s: 0 }
}

fn bytes_per_s(bytes_per_s: u64) -> Rates {
    Rates { iops: 0, bytes_per_s }
}

/// Lets requests of `bytes` bytes pass as early as the bucket allows, until `end_ns` ns; returns how many passed.
fn passed(mut bucket: TokenBucket, bytes: u32, end_ns: u64) -> u64 {
    let mut count = 0;
    let mut now = Instant::ZERO;
    loop {
        now = now.max(bucket.ready_at());
        if now.as_nanos() >= end_ns {
            return count;
        }
        bucket.take(now, &read(bytes));
        count += 1;
    }
}

/// Asserts for every window from one request to another that all requests but the last fit into rate × (window + burst).
/// `passes`: when each request passed, in ns, and its amount.
fn assert_bounded(passes: &[(u64, u64)], rate: u64, burst_ns: u64) {
    for (i, &(start, _)) in passes.iter().enumerate() {
        let mut sum = 0_u128;
        for &(end, amount) in &passes[i..] {
            let allowed = u128::from(rate) * u128::from(end - start + burst_ns);
            assert!(sum * u128::from(SECOND) <= allowed, "{sum} in {} ns at {rate}/s", end - start);
            sum += u128::from(amount);
        }
    }
}

fn any_rate() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 4 => 1..10_000_u64, 4 => 10_000..5_000_000_000_u64, 1 => Just(u64::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_exceeds_either_rate_over_any_window(
        request_rate in any_rate(),
        byte_rate in any_rate(),
        burst_ns in prop_oneof![Just(0), 0..SECOND],
        start in prop_oneof![Just(0), 0..10 * SECOND],
        requests in prop::collection::vec((0..3_000_000_u32, prop_oneof![Just(0), 0..5_000_000_u64]), 1..150),
    ) {
        let burst = Duration::from_nanos(burst_ns);
        let mut bucket = TokenBucket::new(Rates { iops: request_rate, bytes_per_s: byte_rate }, burst);
        let mut now = Instant::from_nanos(start);
        let mut passes = Vec::new();
        for &(bytes, late_ns) in &requests {
            now = now.max(bucket.ready_at()) + Duration::from_nanos(late_ns);
            bucket.take(now, &read(bytes));
            passes.push((now.as_nanos(), u64::from(bytes)));
        }
        if request_rate > 0 {
            let ones: Vec<_> = passes.iter().map(|&(at, _)| (at, 1)).collect();
            assert_bounded(&ones, request_rate, burst_ns);
        }
        if byte_rate > 0 {
            assert_bounded(&passes, byte_rate, burst_ns);
        }
    }

    #[test]
    fn survives_any_numbers(
        changes in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()), 1..30),
    ) {
        let mut bucket = TokenBucket::new(iops(1), Duration::MAX);
        for (now, request_rate, byte_rate, burst, bytes) in changes {
            let now = Instant::from_nanos(now);
            bucket.take(now, &read(bytes));
            let _ = bucket.ready_at();
            let rates = Rates { iops: request_rate, bytes_per_s: byte_rate };
            bucket.set_rates(now, rates, Duration::from_nanos(burst));
            bucket.take(now, &read(u32::MAX));
            prop_assert!(request_rate == 0 || bucket.ready_at() > now || burst > 0);
        }
    }
}

#[test]
fn high_rates_are_met_to_a_hundredth_of_a_percent() {
    for (rates, bytes, per_second) in [
        (bytes_per_s(3_000_000_000), 4_096, 3_000_000_000.0 / 4_096.0),
        (bytes_per_s(3_000_000_000), 512, 3_000_000_000.0 / 512.0),
        (bytes_per_s(2_999_999_999), 65_536, 2_999_999_999.0 / 65_536.0),
        (iops(1_000_000), 4_096, 1_000_000.0),
        (iops(999_983), 4_096, 999_983.0),
        (Rates { iops: 700_001, bytes_per_s: 3_000_000_000 }, 4_096, 700_001.0),
    ] {
        // A microsecond of burst covers that a request can only pass at a whole nanosecond.
        let count = passed(TokenBucket::new(rates, Duration::from_micros(1)), bytes, SECOND) as f64;
        let error = count / per_second - 1.0;
        assert!(error.abs() < 1e-4, "{rates:?}, {bytes} bytes: {count} for {per_second}");
    }
}

#[test]
fn without_burst_requests_are_evenly_spaced() {
    let mut bucket = TokenBucket::new(iops(3), Duration::ZERO);
    let mut times = Vec::new();
    for _ in 0..4 {
        let now = bucket.ready_at();
        bucket.take(now, &read(0));
        times.push(now.as_nanos());
    }
    assert_eq!(times, [0, 333_333_334, 666_666_668, 1_000_000_002]);
}

#[test]
fn a_full_burst_passes_at_once_even_at_time_zero() {
    let mut bucket = TokenBucket::new(iops(1_000), Duration::from_millis(10));
    let mut count = 0;
    while bucket.ready_at() <= Instant::ZERO {
        bucket.take(Instant::ZERO, &read(1));
        count += 1;
    }
    assert_eq!(count, 11, "ten saved up and one more");
    assert_eq!(bucket.ready_at(), Instant::from_nanos(1_000_000));
}

#[test]
fn lateness_is_made_up_for_within_the_burst() {
    let mut bucket = TokenBucket::new(iops(1_000), Duration::from_millis(5));
    let mut count = 0;
    let mut now = Instant::ZERO;
    // Somebody who looks only every 4 ms still gets 1,000 a second.
    while now < Instant::from_nanos(SECOND) {
        while bucket.ready_at() <= now {
            bucket.take(now, &read(1));
            count += 1;
        }
        now += Duration::from_millis(4);
    }
    assert!((999..=1_006).contains(&count), "{count}");
}

#[test]
fn no_rate_never_waits() {
    let mut bucket = TokenBucket::new(Rates::UNSET, Duration::ZERO);
    for _ in 0..10 {
        bucket.take(Instant::ZERO, &read(u32::MAX));
        assert_eq!(bucket.ready_at(), Instant::ZERO);
    }
}

#[test]
fn the_slower_of_two_rates_decides() {
    let mut bucket = TokenBucket::new(Rates { iops: 1_000, bytes_per_s: 1_000_000 }, Duration::ZERO);
    bucket.take(Instant::ZERO, &read(500));
    assert_eq!(bucket.ready_at(), Instant::from_nanos(1_000_000));
    bucket.take(Instant::from_nanos(1_000_000), &read(5_000));
    assert_eq!(bucket.ready_at(), Instant::from_nanos(6_000_000));
}

#[test]
fn requests_that_pass_before_they_may_run_up_no_debt() {
    let mut bucket = TokenBucket::new(iops(10), Duration::ZERO);
    for _ in 0..1_000 {
        bucket.take(Instant::ZERO, &read(1));
    }
    assert_eq!(bucket.ready_at(), Instant::from_nanos(SECOND / 10));
}

#[test]
fn new_rates_hold_at_once_and_keep_what_is_owed() {
    let start = Instant::from_nanos(5 * SECOND);
    let mut bucket = TokenBucket::new(bytes_per_s(1_000_000), Duration::ZERO);
    bucket.take(start, &read(1_000_000));
    assert_eq!(bucket.ready_at(), start + Duration::from_secs(1));
    // Half is paid for; the other half takes half a millisecond at the new rate.
    let later = start + Duration::from_millis(500);
    bucket.set_rates(later, bytes_per_s(1_000_000_000), Duration::ZERO);
    assert_eq!(bucket.ready_at(), later + Duration::from_micros(500));
    // And back again, from the same place.
    bucket.set_rates(later, bytes_per_s(1_000_000), Duration::ZERO);
    assert_eq!(bucket.ready_at(), later + Duration::from_millis(500));
}

#[test]
fn changing_rates_gives_no_credit() {
    let start = Instant::from_nanos(5 * SECOND);
    let mut bucket = TokenBucket::new(iops(10), Duration::from_secs(1));
    bucket.set_rates(start, iops(1_000), Duration::from_secs(1));
    bucket.take(start, &read(1));
    assert_eq!(bucket.ready_at(), start + Duration::from_millis(1), "no burst straight after the change");
    let later = start + Duration::from_secs(3);
    let mut count = 0;
    while bucket.ready_at() <= later {
        bucket.take(later, &read(1));
        count += 1;
    }
    assert_eq!(count, 1_001, "saved up anew");
}

#[test]
fn a_controller_that_sets_the_same_rates_again_disturbs_nothing() {
    let mut bucket = TokenBucket::new(iops(1_000), Duration::from_millis(10));
    let now = Instant::from_nanos(SECOND);
    bucket.set_rates(now, iops(1_000), Duration::from_millis(10));
    for _ in 0..11 {
        assert!(bucket.ready_at() <= now);
        bucket.take(now, &read(1));
    }
    assert!(bucket.ready_at() > now);
}

#[test]
fn often_changed_rates_still_hold() {
    // Two rates in turn every 3 ms: on average 1,500 a second, never more.
    let mut bucket = TokenBucket::new(iops(1_000), Duration::ZERO);
    let mut count = 0_u32;
    for tick in 0..1_000_u64 {
        let start = Instant::from_nanos(tick * 3_000_000);
        bucket.set_rates(start, iops(1_000 * (1 + tick % 2)), Duration::ZERO);
        let end = start + Duration::from_millis(3);
        let mut now = start.max(bucket.ready_at());
        while now < end {
            bucket.take(now, &read(1));
            count += 1;
            now = now.max(bucket.ready_at());
        }
    }
    assert!((4_400..=4_501).contains(&count), "{count}");
}
