//! The model of an iSCSI target with delayed packets, compared with measurements of a real one.
//!
//! The real one is a Linux 6.12 target (LIO) in a virtual machine on a block device that serves one request at a time, receive
//! window capped at 32 KiB, requests of 64 KiB. Fitted are the windows that a connection has in effect (24 KiB for one client,
//! 12 KiB with many), the rate from the target (46 MB/s) and 0.4 ms that a write takes longer beside others. Jitter is
//! assumed.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::link::{Delayed, Link, LinkParams, Throttle};
use proptest::prelude::*;

fn ms(n: f64) -> Duration {
    Duration::from_nanos((n * 1e6) as u64)
}

const BLOCK: u32 = 64 << 10;
/// Time from one request of the reader to the next: 256 KiB/s in requests of 4 KiB.
const READ_EVERY: Duration = Duration::from_micros(15_625);

/// Mean latency in ms of 200 requests of 64 KiB, one after the other on one connection.
fn request_ms(params: LinkParams, kind: Kind, throttle: Throttle) -> f64 {
    let mut link = Link::new(params, 1, 1);
    link.set_throttle(0, throttle);
    let (mut sum, mut now, count) = (0.0, Instant::ZERO, 200);
    for id in 0..count {
        link.submit(now, 0, id, kind, BLOCK);
        let done = loop {
            now = link.next_event();
            if let Some(done) = link.poll(now) {
                break done;
            }
        };
        assert_eq!(done.id, id);
        sum += done.response.as_millis_f64();
    }
    sum / count as f64
}

/// Runs twelve writers, each with one request of 64 KiB outstanding and its acknowledgements delayed by `delay_ms`, beside the
/// reader. Returns the mean time of a read at the target's storage in ms, and the MB/s written.
fn interference(delay_ms: f64, seed: u64) -> (f64, f64) {
    let mut link = Link::new(LinkParams::shared(), 13, seed);
    for writer in 1..13 {
        link.set_throttle(writer, Throttle { delay: ms(delay_ms), on: Delayed::Acknowledgements });
        link.submit(Instant::ZERO, writer, 0, Kind::Write, BLOCK);
    }
    let (warmup, end) = (Instant::ZERO + Duration::from_secs(2), Instant::ZERO + Duration::from_secs(32));
    let (mut due, mut reading) = (Instant::ZERO, false);
    let mut before = None;
    loop {
        let next = if reading { link.next_event() } else { link.next_event().min(due) };
        if next >= warmup && before.is_none() {
            before = Some(totals(&link));
        }
        if next >= end {
            break;
        }
        if !reading && due <= next {
            link.submit(next, 0, 0, Kind::Read, 4096);
            (due, reading) = (due + READ_EVERY, true);
        }
        while let Some(done) = link.poll(next) {
            match done.connection {
                0 => {
                    reading = false;
                    due = due.max(next);
                }
                writer => link.submit(next, writer, 0, Kind::Write, BLOCK),
            }
        }
    }
    let ((reads, wait, written), (reads_0, wait_0, written_0)) = (totals(&link), before.unwrap());
    ((wait - wait_0) / (reads - reads_0), (written - written_0) / 30e6)
}

fn totals(link: &Link) -> (f64, f64, f64) {
    let reader = link.counters(0);
    let written: u64 = (1..13).map(|writer| link.counters(writer).written_bytes).sum();
    (reader.reads as f64, reader.read_time.as_millis_f64(), written as f64)
}

/// Intercept, slope and R² of the least-squares line through `points`.
fn line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let n = points.len() as f64;
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let xx = mean(&|p| (p.0 - x) * (p.0 - x));
    let xy = mean(&|p| (p.0 - x) * (p.1 - y));
    let yy = mean(&|p| (p.1 - y) * (p.1 - y));
    (y - xy / xx * x, xy / xx, xy * xy / (xx * yy))
}

#[test]
fn request_time_is_linear_in_the_delay_as_measured() {
    for (kind, on, intercept, slow) in
        [(Kind::Write, Delayed::Acknowledgements, 2.9, 3.0), (Kind::Read, Delayed::Payload, 4.0, 2.8)]
    {
        let at = |delay_ms: f64| request_ms(LinkParams::one_client(), kind, Throttle { delay: ms(delay_ms), on });
        let points: Vec<(f64, f64)> =
            [0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 9.5, 15.0, 20.0].into_iter().map(|delay| (delay, at(delay))).collect();
        let (a, b, r2) = line(&points);
        assert!(r2 > 0.99, "{kind:?}: R² {r2}");
        assert!((a - intercept).abs() < 0.2 && (b - 2.0).abs() < 0.1, "{kind:?}: {a} + {b} d");
        let mb_per_s = f64::from(BLOCK) / 1e3 / at(9.5);
        assert!((mb_per_s - slow).abs() < 0.1 * slow, "{kind:?} at 9.5 ms: {mb_per_s} MB/s");
        assert!(at(9.5) > 4.0 * at(0.0), "{kind:?}");
    }
}

#[test]
fn the_reader_waits_as_measured() {
    // Delay in ms, measured wait of a read in ms, measured MB/s of all writers.
    for (delay_ms, wait_ms, mb_per_s) in [(0.0, 40.0, 17.7), (4.5, 22.0, 17.9), (9.5, 5.2, 13.9), (20.0, 4.0, 7.3)] {
        let (wait, written) = interference(delay_ms, 1);
        println!("{delay_ms} ms: wait {wait:.1} ms ({wait_ms}), written {written:.1} MB/s ({mb_per_s})");
        assert!((wait - wait_ms).abs() < 0.2 * wait_ms, "{delay_ms} ms: {wait} ms, measured {wait_ms}");
        assert!((written - mb_per_s).abs() < 0.12 * mb_per_s, "{delay_ms} ms: {written} MB/s, measured {mb_per_s}");
    }
}

#[test]
fn a_window_as_large_as_the_request_makes_delayed_acknowledgements_harmless() {
    let open = LinkParams { target_window_bytes: 1 << 20, ..LinkParams::one_client() };
    let throttle = |on| Throttle { delay: ms(20.0), on };
    let free = request_ms(open, Kind::Write, Throttle::default());
    assert_eq!(request_ms(open, Kind::Write, throttle(Delayed::Acknowledgements)), free);
    assert!(request_ms(open, Kind::Write, throttle(Delayed::Everything)) > free + 19.0, "all packets are effective");
    let params = LinkParams::one_client();
    let read = request_ms(params, Kind::Read, Throttle::default());
    assert_eq!(request_ms(params, Kind::Read, throttle(Delayed::Acknowledgements)), read, "readers wait for data");
}

#[test]
fn less_than_two_segments_wait_for_the_delayed_acknowledgement() {
    // Two writes whose second does not fit into the window before the first, of one segment, is acknowledged; the
    // response comes first and carries the acknowledgement, unless the storage is slow.
    let params = LinkParams {
        target_window_bytes: 3000,
        write_time: ms(100.0),
        delayed_ack: ms(40.0),
        ..LinkParams::one_client()
    };
    let mut link = Link::new(params, 1, 1);
    link.submit(Instant::ZERO, 0, 1, Kind::Write, 1000);
    link.submit(Instant::ZERO, 0, 2, Kind::Write, 2800);
    let mut sent = Vec::new();
    while link.next_event() < Instant::FAR_FUTURE {
        let now = link.next_event();
        while let Some(done) = link.poll(now) {
            sent.push((done.id, done.response.as_millis_f64()));
        }
    }
    assert_eq!((sent[0].0, sent[1].0), (1, 2));
    // 40 ms for the acknowledgement, then the second request; the storage takes them one after the other.
    assert!((sent[1].1 - 200.3).abs() < 1.0, "{sent:?}");
}

proptest! {
    #[test]
    fn every_request_comes_back_once_whatever_the_delays(
        requests in proptest::collection::vec((0u64..20_000, 0usize..4, any::<bool>(), 1u32..300_000, 0u64..30), 1..60),
        seed in any::<u64>(),
        rare in any::<bool>(),
    ) {
        let mut link = Link::new(LinkParams::shared(), 4, seed);
        let mut now = Instant::ZERO;
        let mut back = Vec::new();
        let (mut written, mut read) = (0u64, 0u64);
        for (id, &(wait_us, connection, write, bytes, delay_ms)) in requests.iter().enumerate() {
            now += Duration::from_micros(wait_us);
            if !rare {
                while let Some(done) = link.poll(now) {
                    back.push(done);
                }
            }
            let on = [Delayed::Acknowledgements, Delayed::Payload, Delayed::Everything][id % 3];
            link.set_throttle(connection, Throttle { delay: Duration::from_millis(delay_ms), on });
            link.submit(now, connection, id as u64, if write { Kind::Write } else { Kind::Read }, bytes);
            *(if write { &mut written } else { &mut read }) += u64::from(bytes);
        }
        while link.next_event() < Instant::FAR_FUTURE {
            let at = link.next_event();
            while let Some(done) = link.poll(at) {
                back.push(done);
            }
        }
        let mut ids: Vec<u64> = back.iter().map(|done| done.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..requests.len() as u64).collect::<Vec<_>>());
        let counted: Vec<_> = (0..4).map(|connection| link.counters(connection)).collect();
        prop_assert_eq!(counted.iter().map(|c| c.written_bytes).sum::<u64>(), written);
        prop_assert_eq!(counted.iter().map(|c| c.read_bytes).sum::<u64>(), read);
    }
}

#[test]
fn parameters_that_make_no_sense_are_named() {
    assert_eq!(LinkParams::one_client().validate(), Ok(()));
    assert_eq!(LinkParams::shared().validate(), Ok(()));
    let refused = LinkParams { target_window_bytes: 1000, ..LinkParams::shared() }.validate();
    assert_eq!(refused.unwrap_err().parameter, "target_window_bytes");
}
