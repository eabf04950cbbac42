//! A device whose clock runs faster, over all models.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::cached::CachedParams;
use evenkeel_model::device::{Device, DeviceParams, Machine};
use evenkeel_model::disk::DiskParams;
use evenkeel_model::faster::Faster;
use evenkeel_model::raid::Raid0Params;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;
use evenkeel_model::surface::SurfaceParams;
use proptest::prelude::*;

fn devices() -> [DeviceParams; 6] {
    [
        DeviceParams::Store(StoreParams::ssd()),
        DeviceParams::Ssd(SsdParams::nvme()),
        DeviceParams::Disk(DiskParams::nearline()),
        DeviceParams::Raid0(Raid0Params::default()),
        DeviceParams::Cached(CachedParams::paper()),
        DeviceParams::Surface(SurfaceParams::default()),
    ]
}

/// The time in nanoseconds in which a closed loop of `depth` requests completes `count` of them, two of three reads.
fn closed_loop(device: &mut dyn Machine, count: u64, depth: u64) -> u64 {
    let (mut now, mut sent, mut done) = (Instant::ZERO, 0_u64, 0_u64);
    while done < count {
        while sent < count && sent - done < depth {
            let kind = if sent % 3 == 2 { Kind::Write } else { Kind::Read };
            // Offsets are scattered over 1 GiB.
            let offset = (sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 46) << 12;
            device.submit(now, sent, Io { kind, offset, bytes: 16_384 });
            sent += 1;
        }
        let next = device.next_event();
        assert!(now <= next && next < Instant::FAR_FUTURE, "{}: {next:?} after {now:?}", device.name());
        now = next;
        while device.poll(now).is_some() {
            done += 1;
        }
    }
    now.as_nanos()
}

#[test]
fn a_stall_is_as_long_on_a_faster_device() {
    // A request takes 100 µs at speed 1.
    let mut device = Faster::new(Device::new(&devices()[5], 1), 4_000);
    device.submit(Instant::ZERO, 7, Io { kind: Kind::Read, offset: 0, bytes: 4_096 });
    assert_eq!(device.next_event(), Instant::from_nanos(25_000));
    device.stall(Instant::ZERO, Duration::from_millis(1));
    assert_eq!(device.next_event(), Instant::from_nanos(1_025_000));
    assert_eq!((device.poll(Instant::from_nanos(1_024_999)), device.name()), (None, "surface"));
    assert_eq!(device.poll(Instant::from_nanos(1_025_000)), Some(7));
    assert_eq!(device.next_event(), Instant::FAR_FUTURE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A single request takes 1/factor of its time, and a closed loop completes about factor times as much in the same time.
    #[test]
    fn times_are_divided_by_the_factor(place in 0_usize..6, thousandths in 1_000_u32..=8_000, depth in 1_u64..=16) {
        let params = &devices()[place];
        let run = |count: u64, depth: u64| {
            let slow = closed_loop(&mut Device::new(params, 3), count, depth);
            (slow, closed_loop(&mut Faster::new(Device::new(params, 3), thousandths), count, depth))
        };
        let (slow, fast) = run(1, 1);
        assert_eq!(fast, (slow * 1_000).div_ceil(u64::from(thousandths)));
        let (slow, fast) = run(300, depth);
        let (ratio, factor) = (slow as f64 / fast as f64, f64::from(thousandths) / 1_000.0);
        assert!((ratio / factor - 1.0).abs() < 0.1, "{ratio} times as fast, not {factor}");
    }
}
