//! The model of a batching store compared with measurements of Ceph's BlueStore.
//!
//! Ceph 16.2.15, one OSD, BlueStore with its log on the same device, which was paced at 40 MiB/s; a client with 64 writes of
//! 64 KiB in flight, and BlueStore's throttle (each request counts 64 KiB + 4,000 B) as the budget. Three parameters are fitted
//! to five points. With `commit_bytes` 0 no `commit_latency` fits both of the first two points within 5 %.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::store::{Store, StoreParams};

fn megabytes_per_s(params: StoreParams, inside: usize) -> f64 {
    let mut store = Store::new(params, 1);
    let write = Io { kind: Kind::Write, offset: 0, bytes: 64 << 10 };
    for id in 0..inside as u64 {
        store.submit(Instant::ZERO, id, write);
    }
    let end = Instant::ZERO + Duration::from_secs(10);
    let mut done = 0u64;
    loop {
        let now = store.next_event();
        if now > end {
            return done as f64 * f64::from(write.bytes) / 10e6;
        }
        while store.poll(now).is_some() {
            done += 1;
            store.submit(now, 0, write);
        }
    }
}

/// Measured throughput of bulk writes of 64 KiB through the throttle of a Ceph OSD (16.2.15, BlueStore with its log on the same
/// device, which was limited to 40 MiB/s): the number of requests that the throttle lets in, at 64 KiB + 4,000 B each, and MB/s.
/// The throttles have 128, 256, 512 and 1,024 KiB; the last one has room for all 64 requests that the client keeps outstanding.
const MEASURED: [(usize, f64); 5] = [(1, 24.2), (3, 32.6), (7, 35.4), (15, 36.7), (64, 37.7)];

/// Parameters of the OSD of [`MEASURED`]; bandwidth, commit size and commit latency are fitted to its five points.
fn osd() -> StoreParams {
    StoreParams {
        bandwidth_bytes_per_s: 39_000_000,
        commit_bytes: 8_000,
        commit_latency: Duration::from_micros(700),
        ..StoreParams::ssd()
    }
}

#[test]
fn throughput_grows_with_the_budget_as_measured_on_bluestore() {
    for (inside, measured) in MEASURED {
        let modelled = megabytes_per_s(osd(), inside);
        println!("{inside} inside: {modelled:.1} MB/s (measured: {measured} ± 3 %)");
        assert!((modelled / measured - 1.0).abs() < 0.03, "{inside} inside: {modelled} MB/s, not {measured}");
    }
}

/// With the log on another device, three requests in flight nearly saturate the link at any commit latency. So no commit latency
/// fits both of the first two points of [`MEASURED`].
#[test]
fn the_log_on_the_same_device_makes_the_knee_round() {
    for commit_us in (0..=1_500).step_by(100) {
        let elsewhere = StoreParams { commit_bytes: 0, commit_latency: Duration::from_micros(commit_us), ..osd() };
        let off = |(inside, measured): (usize, f64)| (megabytes_per_s(elsewhere, inside) / measured - 1.0).abs();
        assert!(off(MEASURED[0]).max(off(MEASURED[1])) > 0.05, "commits of {commit_us} us fit");
    }
}
