//! Tests of selecting, rescaling and remapping requests.

use evenkeel_control::Duration;
use proptest::prelude::*;

use super::*;

fn record(at_ms: u64, offset: u64, bytes: u32, device: u32) -> Record {
    Record { at: Instant::from_nanos(at_ms * 1_000_000), kind: Kind::Read, offset, bytes, device }
}

/// Ten requests, one every 10 ms, alternately to two devices.
fn ten() -> Vec<Record> {
    (0..10).map(|n| record(1000 + n * 10, n * 4096, 4096, (n % 2) as u32)).collect()
}

fn kept(selection: Selection) -> Vec<u64> {
    let read = Trace::read(ten().into_iter().map(Ok), &selection, "a").unwrap();
    read.map_or(Vec::new(), |trace| trace.records().iter().map(|record| record.offset / 4096).collect())
}

#[test]
fn slices_by_device_time_and_count() {
    let all = Selection::default();
    assert_eq!(kept(all.clone()), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(kept(Selection { devices: vec![1], ..all.clone() }), [1, 3, 5, 7, 9]);
    let time = Selection { from: Duration::from_millis(20), until: Duration::from_millis(50), ..all.clone() };
    assert_eq!(kept(time.clone()), [2, 3, 4]);
    assert_eq!(kept(Selection { skip: 1, count: 1, ..time }), [3]);
    assert_eq!(kept(Selection { skip: 10, ..all.clone() }), Vec::<u64>::new());
    assert_eq!(kept(Selection { count: 0, ..all }), Vec::<u64>::new());
}

#[test]
fn the_count_ends_reading_before_a_later_error() {
    let bad = || Err(TraceError { file: "a".into(), line: 3, fault: Fault::TooLong });
    let records = || ten().into_iter().take(2).map(Ok).chain([bad()]);
    let two = Selection { count: 2, ..Selection::default() };
    assert_eq!(Trace::read(records(), &two, "a").unwrap().unwrap().records().len(), 2);
    assert!(Trace::read(records(), &Selection::default(), "a").is_err());
}

#[test]
fn time_starts_with_the_first_request_whatever_the_order_in_the_file() {
    let mut records = ten();
    records.swap(0, 9);
    records.swap(2, 5);
    let trace = Trace::new(records).unwrap();
    let times: Vec<u64> = trace.records().iter().map(|record| record.at.as_nanos() / 1_000_000).collect();
    assert_eq!(times, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    assert_eq!(trace.length(), Duration::from_millis(90));
    assert_eq!(trace.period(), Duration::from_millis(100));
    assert!((trace.rate_per_s().unwrap() - 100.0).abs() < 1e-9);
    assert_eq!(Trace::new(Vec::new()), None);
    assert_eq!(Trace::new(vec![record(5, 0, 1, 0)]).unwrap().rate_per_s(), None);
}

#[test]
fn time_goes_faster_or_slower() {
    let mut trace = Trace::new(ten()).unwrap();
    trace.speed_up(4.0);
    assert_eq!(trace.length(), Duration::from_micros(22_500));
    trace.speed_up(0.25);
    assert_eq!(trace.length(), Duration::from_millis(90));
    for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        trace.speed_up(nonsense);
    }
    assert_eq!(trace.length(), Duration::from_millis(90));
}

#[test]
fn devices_lie_side_by_side_and_sequences_stay_sequences() {
    let mut trace =
        Trace::new(vec![record(0, 0, 4096, 7), record(1, 4096, 4096, 7), record(2, 8192, 4096, 9)]).unwrap();
    let offsets = |trace: &Trace| trace.records().iter().map(|record| record.offset).collect::<Vec<_>>();
    let mut loose = trace.clone();
    loose.remap(100, None, 1).unwrap();
    assert_eq!(offsets(&loose), [100, 4196, 100 + 12288 + 8192], "each device gets what the largest needs");
    trace.remap(1 << 20, Some(16384), 4096).unwrap();
    assert_eq!(offsets(&trace), [1 << 20, (1 << 20) + 4096, (1 << 20) + 8192]);
}

#[test]
fn a_part_that_cannot_hold_the_largest_request_is_refused_with_the_size_that_can() {
    let records = vec![record(0, 0, 4096, 0), record(1, 0, 65536, 1)];
    let refused = Trace::new(records.clone()).unwrap().remap(0, Some(100_000), 512).unwrap_err();
    assert_eq!((refused.devices, refused.largest, refused.needed), (2, 65536, 131_072));
    assert!(refused.to_string().contains("at least 131072 bytes"), "{refused}");
    assert_eq!(Trace::new(records).unwrap().remap(0, Some(refused.needed), 512), Ok(()));
}

proptest! {
    #[test]
    fn every_request_lands_in_its_part(
        rows in proptest::collection::vec((0u64..1000, any::<u64>(), 1u32..1 << 20, 0u32..5), 1..50),
        offset in 0u64..1 << 40,
        span in proptest::option::of(0u64..1 << 34),
        align in 0u64..100_000,
    ) {
        let records: Vec<Record> = rows.iter().map(|&(at, offset, bytes, device)| record(at, offset >> 8, bytes, device)).collect();
        let mut trace = Trace::new(records.clone()).unwrap();
        let before = trace.clone();
        match trace.remap(offset, span, align) {
            Ok(()) => {
                for (old, new) in before.records().iter().zip(trace.records()) {
                    prop_assert!(new.offset >= offset);
                    prop_assert_eq!((new.offset - offset) % align.max(1), 0);
                    prop_assert_eq!(u64::from(new.bytes) % align.max(1), 0);
                    prop_assert!(new.bytes >= old.bytes);
                    if let Some(span) = span {
                        prop_assert!(new.offset + u64::from(new.bytes) <= offset + span);
                    }
                }
            }
            Err(refused) => {
                prop_assert!(span.is_some(), "without a size it always fits: {}", refused);
                let mut again = before.clone();
                prop_assert_eq!(again.remap(offset, Some(refused.needed), align), Ok(()));
            }
        }
    }
}
