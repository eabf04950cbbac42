//! Tests of generated workloads: rates, distributions and instants.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The requests that a client sends until `end`, each with the instant at which it is sent; the device completes each request
/// after `latency`.
pub(super) fn play(spec: &Spec, seed: u64, latency: Duration, end: Instant) -> Vec<(Instant, Io)> {
    let mut workload = Workload::new(spec, seed);
    let mut answers = std::collections::VecDeque::new();
    let mut sent = Vec::new();
    let mut now = Instant::ZERO;
    loop {
        let wake = loop {
            match workload.next(now) {
                Next::Issue(io) => {
                    sent.push((now, io));
                    answers.push_back(now + latency);
                    assert!(sent.len() < 10_000_000, "sends without end at {now:?}");
                }
                Next::At(at) => break at,
                Next::Completion | Next::End => break Instant::FAR_FUTURE,
            }
        };
        assert!(wake > now, "asks to be woken in the past");
        now = wake.min(answers.front().copied().unwrap_or(Instant::FAR_FUTURE));
        if now > end || now == Instant::FAR_FUTURE {
            return sent;
        }
        while answers.front().is_some_and(|&at| at <= now) {
            answers.pop_front();
            workload.complete(now);
        }
    }
}

fn reads() -> Requests {
    Requests::random(Kind::Read, 4096, 1 << 30)
}

#[test]
fn a_closed_loop_keeps_its_depth() {
    let sent = play(&Spec::closed(8, reads()), 1, Duration::from_millis(1), Instant::ZERO + SECOND);
    // 8 at once, then 8 each millisecond.
    assert_eq!(sent.len(), 8 * 1001);
}

#[test]
fn a_client_that_thinks_sends_the_next_request_that_much_later() {
    let pace = Pace::Closed { queue_depth: 2, think_time: Duration::from_millis(4), on_off: None };
    let spec = Spec::Load { pace, requests: reads() };
    let sent = play(&spec, 1, Duration::from_millis(1), Instant::ZERO + Duration::from_millis(20));
    let times: Vec<u64> = sent.iter().map(|(at, _)| at.as_nanos() / 1_000_000).collect();
    assert_eq!(times, [0, 0, 5, 5, 10, 10, 15, 15, 20, 20]);
}

#[test]
fn an_open_loop_keeps_its_rate_however_slow_the_device() {
    let constant = Spec::Load {
        pace: Pace::Open { rate_per_s: 3000.0, arrivals: Arrivals::Constant, batch: 1, on_off: None },
        requests: reads(),
    };
    let sent = play(&constant, 1, Duration::from_secs(100), Instant::ZERO + SECOND);
    assert_eq!(sent.len(), 3001);
    for (index, (at, _)) in sent.iter().enumerate() {
        // A third of a microsecond does not add up.
        assert!(at.as_nanos().abs_diff(index as u64 * 1_000_000_000 / 3000) <= 1);
    }

    let sent = play(&Spec::open(10_000.0, reads()), 3, Duration::from_secs(100), Instant::ZERO + SECOND);
    let n = sent.len() as f64;
    // Five standard deviations of a Poisson count.
    assert!((n - 10_000.0).abs() < 500.0, "{n} requests");
    let gaps: Vec<f64> = sent.windows(2).map(|pair| (pair[1].0.since(pair[0].0)).as_secs_f64()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    let variation = variance.sqrt() / mean;
    assert!((0.95..1.05).contains(&variation), "coefficient of variation {variation}, 1 for exponential gaps");
}

#[test]
fn bursts_come_all_at_once_at_their_times() {
    let every = Duration::from_millis(30);
    let sent = play(&Spec::bursts(5, every, reads()), 1, Duration::from_millis(100), Instant::ZERO + SECOND);
    assert_eq!(sent.len(), 5 * 34);
    for (index, (at, _)) in sent.iter().enumerate() {
        assert_eq!(at.as_nanos(), index as u64 / 5 * 30_000_000, "request {index}");
    }
}

#[test]
fn nothing_is_sent_while_off_and_the_rate_holds_while_on() {
    let on_off = Some(OnOff { on: Duration::from_millis(200), off: Duration::from_millis(800) });
    let open = Pace::Open { rate_per_s: 1000.0, arrivals: Arrivals::Constant, batch: 1, on_off };
    let closed = Pace::Closed { queue_depth: 4, think_time: Duration::ZERO, on_off };
    let end = Instant::from_nanos(2_999_999_999);
    for (pace, expected) in [(open, 600), (closed, 3 * 4 * 200)] {
        let sent = play(&Spec::Load { pace, requests: reads() }, 1, Duration::from_millis(1), end);
        assert_eq!(sent.len(), expected);
        assert!(sent.iter().all(|(at, _)| at.as_nanos() % 1_000_000_000 < 200_000_000));
    }
}

#[test]
fn phases_follow_each_other_and_start_over() {
    let phase = |seconds, spec| Phase { length: Duration::from_secs(seconds), spec };
    let constant = |rate_per_s| Spec::Load {
        pace: Pace::Open { rate_per_s, arrivals: Arrivals::Constant, batch: 1, on_off: None },
        requests: reads(),
    };
    let phases = vec![phase(2, constant(100.0)), phase(1, Spec::Idle), phase(1, constant(1000.0))];
    let count = |times, seconds: u64| {
        let spec = Spec::Phases { phases: phases.clone(), times };
        let sent = play(&spec, 1, Duration::from_micros(10), Instant::from_nanos(seconds * 1_000_000_000 - 1));
        let mut each = vec![0; seconds as usize];
        for (at, _) in &sent {
            each[(at.as_nanos() / 1_000_000_000) as usize] += 1;
        }
        each
    };
    assert_eq!(count(0, 9), [100, 100, 0, 1000, 100, 100, 0, 1000, 100]);
    assert_eq!(count(1, 6), [100, 100, 0, 1000, 0, 0]);
    assert_eq!(count(2, 9), [100, 100, 0, 1000, 100, 100, 0, 1000, 0]);
}

#[test]
fn what_an_earlier_phase_left_behind_counts_towards_the_depth() {
    let phase = |depth| Phase { length: Duration::from_millis(10), spec: Spec::closed(depth, reads()) };
    let spec = Spec::Phases { phases: vec![phase(8), phase(2)], times: 1 };
    let sent = play(&spec, 1, Duration::from_millis(15), Instant::ZERO + SECOND);
    let times: Vec<u64> = sent.iter().map(|(at, _)| at.as_nanos() / 1_000_000).collect();
    assert_eq!(times, [0, 0, 0, 0, 0, 0, 0, 0, 15, 15]);
}

#[test]
fn phases_without_time_end_instead_of_turning_for_ever() {
    let phase = Phase { length: Duration::ZERO, spec: Spec::closed(1, reads()) };
    let spec = Spec::Phases { phases: vec![phase; 3], times: 0 };
    assert_eq!(play(&spec, 1, SECOND, Instant::ZERO + SECOND), []);
}

/// The first `n` requests of a client that sends without end.
fn stream(requests: &Requests, n: usize) -> Vec<Io> {
    let mut workload = Workload::new(&Spec::closed(u32::MAX, requests.clone()), 5);
    let next = |_| match workload.next(Instant::ZERO) {
        Next::Issue(io) => io,
        other => panic!("{other:?}"),
    };
    (0..n).map(next).collect()
}

fn mix() -> Requests {
    let share = |bytes, weight| SizeShare { bytes, weight };
    Requests { read_percent: 70.0, sizes: vec![share(4096, 80), share(65536, 20)], ..reads() }
}

#[test]
fn shares_of_reads_and_sizes_come_out_as_asked() {
    let all = stream(&mix(), 100_000);
    let share = |test: &dyn Fn(&Io) -> bool| all.iter().filter(|io| test(io)).count() as f64 / all.len() as f64;
    // More than six standard deviations.
    assert!((share(&|io| io.kind == Kind::Read) - 0.7).abs() < 0.01);
    assert!((share(&|io| io.bytes == 4096) - 0.8).abs() < 0.01);
    assert!((share(&|io| io.kind == Kind::Read && io.bytes == 4096) - 0.56).abs() < 0.01);
    let rare = stream(&Requests { read_percent: 99.98, ..reads() }, 100_000);
    let writes = rare.iter().filter(|io| io.kind == Kind::Write).count();
    assert!((1..60).contains(&writes), "{writes} writes of 20 expected");
}

#[test]
fn requests_stay_in_their_part_and_aligned_to_their_size() {
    let patterns = [Pattern::Random, Pattern::Sequential { streams: 3 }, Pattern::Zipf { exponent: 1.1 }];
    for pattern in patterns {
        // The span is no multiple of the sizes.
        let requests = Requests { pattern, offset: 1 << 20, span: (10 << 20) + 100, ..mix() };
        for io in stream(&requests, 20_000) {
            assert!(io.offset >= 1 << 20 && io.offset + u64::from(io.bytes) <= (11 << 20) + 100, "{io:?}");
            let aligned = (io.offset - (1 << 20)).is_multiple_of(io.bytes.into());
            assert!(aligned || matches!(pattern, Pattern::Sequential { .. }), "{io:?}");
        }
    }
}

#[test]
fn random_offsets_cover_their_part_evenly() {
    let mut counts = [0u32; 16];
    for io in stream(&Requests { span: 16 << 20, ..reads() }, 160_000) {
        counts[(io.offset >> 20) as usize] += 1;
    }
    // Chi-squared with 15 degrees of freedom: beyond 50 once in 100,000 seeds.
    let chi: f64 = counts.iter().map(|&count| (f64::from(count) - 10_000.0).powi(2) / 10_000.0).sum();
    assert!(chi < 50.0, "{chi}: {counts:?}");
}

#[test]
fn streams_take_turns_each_around_its_own_part() {
    let sizes = vec![SizeShare { bytes: 1 << 20, weight: 1 }];
    let requests = Requests { sizes, pattern: Pattern::Sequential { streams: 2 }, span: 6 << 20, ..reads() };
    let megabytes: Vec<u64> = stream(&requests, 9).iter().map(|io| io.offset >> 20).collect();
    assert_eq!(megabytes, [0, 3, 1, 4, 2, 5, 0, 3, 1]);
}

#[test]
fn hot_blocks_follow_the_law_wherever_they_are_and_are_hot_in_every_size() {
    let blocks = 1024;
    let pattern = Pattern::Zipf { exponent: 1.0 };
    let all = stream(&Requests { pattern, span: blocks * 4096, ..reads() }, 200_000);
    let mut counts = vec![0u32; blocks as usize];
    for io in &all {
        counts[(io.offset / 4096) as usize] += 1;
    }
    let norm: f64 = (1..=blocks).map(|rank| 1.0 / rank as f64).sum();
    let hottest = f64::from(counts.iter().copied().max().unwrap()) / all.len() as f64;
    assert!((hottest * norm - 1.0).abs() < 0.05, "{hottest} of the requests go to the hottest block");
    assert!(counts.iter().filter(|&&count| count > 0).count() > 1000, "nearly every block is reached");
    // The ten hottest are not neighbours.
    let mut hot: Vec<usize> = (0..blocks as usize).collect();
    hot.sort_by_key(|&block| std::cmp::Reverse(counts[block]));
    let mut hot: Vec<usize> = hot[..10].to_vec();
    hot.sort_unstable();
    assert!(hot.windows(2).all(|pair| pair[1] - pair[0] > 10), "{hot:?}");

    let large = SizeShare { bytes: 65536, weight: 1 };
    let small = SizeShare { bytes: 4096, weight: 1 };
    let both = Requests { pattern, sizes: vec![small, large], span: blocks * 4096, ..reads() };
    let mut heat = [vec![0u32; 64], vec![0u32; 64]];
    for io in stream(&both, 200_000) {
        heat[usize::from(io.bytes == 65536)][(io.offset >> 16) as usize] += 1;
    }
    let hottest = |heat: &Vec<u32>| heat.iter().enumerate().max_by_key(|(_, count)| **count).map(|(place, _)| place);
    assert_eq!(hottest(&heat[0]), hottest(&heat[1]));
}

#[test]
fn a_flush_follows_every_n_writes() {
    let requests = Requests { read_percent: 0.0, flush_every: 3, ..reads() };
    let flushes: Vec<usize> = stream(&requests, 12)
        .iter()
        .enumerate()
        .filter(|(_, io)| io.kind == Kind::Flush && io.bytes == 0)
        .map(|(index, _)| index)
        .collect();
    assert_eq!(flushes, [3, 7, 11]);
}

#[test]
fn the_same_seed_sends_the_same_requests_and_another_seed_others() {
    let spec = Spec::open(500.0, Requests { pattern: Pattern::Zipf { exponent: 1.2 }, ..mix() });
    let sent = |seed| play(&spec, seed, Duration::from_millis(1), Instant::ZERO + SECOND);
    assert_eq!(sent(5), sent(5));
    assert_ne!(sent(5), sent(6));
}

mod any_spec {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Requests> {
        let share = (any::<u32>(), any::<u32>()).prop_map(|(bytes, weight)| SizeShare { bytes, weight });
        let pattern = prop_oneof![
            Just(Pattern::Random),
            any::<u32>().prop_map(|streams| Pattern::Sequential { streams: streams % 5000 }),
            any::<f64>().prop_map(|exponent| Pattern::Zipf { exponent }),
        ];
        (any::<f64>(), proptest::collection::vec(share, 0..4), pattern, any::<u64>(), any::<u64>(), 0u32..4).prop_map(
            |(read_percent, sizes, pattern, offset, span, flush_every)| Requests {
                read_percent,
                sizes,
                pattern,
                offset,
                span,
                flush_every,
            },
        )
    }

    fn pace() -> impl Strategy<Value = Pace> {
        let time = || prop_oneof![Just(0), 0u64..1_000_000_000, any::<u64>()].prop_map(Duration::from_nanos);
        let on_off = || proptest::option::of((time(), time()).prop_map(|(on, off)| OnOff { on, off }));
        prop_oneof![
            (0u32..100, time(), on_off()).prop_map(|(queue_depth, think_time, on_off)| Pace::Closed {
                queue_depth,
                think_time,
                on_off
            }),
            (any::<f64>(), any::<bool>(), any::<u32>(), on_off()).prop_map(|(rate_per_s, poisson, batch, on_off)| {
                let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
                Pace::Open { rate_per_s, arrivals, batch, on_off }
            }),
        ]
    }

    proptest! {
        /// Even a spec that no form can produce neither panics nor names an instant in the past for its next request.
        #[test]
        fn never_panics(requests in requests(), pace in pace(), seed: u64) {
            let mut workload = Workload::new(&Spec::Load { pace, requests }, seed);
            let (mut now, mut outstanding) = (Instant::ZERO, 0);
            for _ in 0..300 {
                match workload.next(now) {
                    Next::Issue(_) => outstanding += 1,
                    Next::At(at) if at == Instant::FAR_FUTURE => break,
                    Next::At(at) => {
                        prop_assert!(at > now);
                        now = at;
                    }
                    Next::Completion | Next::End if outstanding == 0 => break,
                    Next::Completion | Next::End => {
                        now += Duration::from_micros(100);
                        outstanding -= 1;
                        workload.complete(now);
                    }
                }
            }
        }
    }
}
