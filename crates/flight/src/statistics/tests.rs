use proptest::prelude::*;

use super::*;
use crate::request::Name;

const MS: u64 = 1_000_000;

fn request(arrival_ns: u64, tenant: u32, kind: Kind, offset: u64, length: u64) -> Request {
    Request { arrival_ns, tenant, client: tenant, volume: tenant, kind, offset, length, ..Request::default() }
}

fn tenant(number: u32, name: &str) -> Item {
    Item::Name(Name { table: Table::Tenant, number, name: name.into(), pool: String::new(), bytes: 0 })
}

fn summary(items: impl IntoIterator<Item = Item>) -> Summary {
    let mut statistics = Statistics::new(&Head::default());
    items.into_iter().for_each(|item| statistics.observe(&item));
    statistics.summary()
}

/// Tenant `steady` reads 4 KiB every 10 ms in sequence; tenant `bursts` writes 100 times 64 KiB at once in every second. 10 s.
fn two_tenants() -> Vec<Item> {
    let steady = (0..1000).map(|i| Request {
        queue_ns: MS,
        device_ns: 4 * MS,
        ..request((5 + 10 * i) * MS, 7, Kind::Read, i * 4096, 4096)
    });
    let bursts = (0..1000).map(|i| Request {
        device_ns: 20 * MS,
        volume: 1,
        ..request((i / 100) * SECOND_NS + 5 * MS, 3, Kind::Write, (i % 100) * (10 << 20), 65_536)
    });
    let requests = steady.map(|request| Request { volume: 0, ..request }).chain(bursts).map(Item::Request);
    [tenant(7, "steady"), tenant(3, "bursts")].into_iter().chain(requests).collect()
}

#[test]
fn figures_of_two_tenants_are_literal() {
    let Summary { duration_ns, lost, total, tenants, .. } = summary(two_tenants());
    assert_eq!((duration_ns, lost), (10 * SECOND_NS, 0));
    let steady = Figures {
        number: Some(7),
        tenant: "steady".into(),
        requests: 1000,
        bytes: 4_096_000,
        iops: 100.0,
        peak_iops: 100,
        bytes_per_s: 409_600.0,
        read_share: Some(1.0),
        sizes: Some(Sizes { p10: 4096, p50: 4096, p90: 4096, max: 4096 }),
        sequential_share: Some(0.999),
        in_flight: Some(InFlight { mean: 0.5, peak: 1 }),
        queue: Some(Latency { p50_ns: 999_424, p99_ns: 999_424, p999_ns: 999_424 }),
        device: Some(Latency { p50_ns: 3_997_696, p99_ns: 3_997_696, p999_ns: 3_997_696 }),
        working_set_bytes: 4 << 20,
        burstiness: 0.0,
        failed: 0,
        cancelled: 0,
        retried: 0,
    };
    let bursts = Figures {
        number: Some(3),
        tenant: "bursts".into(),
        bytes: 65_536_000,
        bytes_per_s: 6_553_600.0,
        read_share: Some(0.0),
        sizes: Some(Sizes { p10: 65_536, p50: 65_536, p90: 65_536, max: 65_536 }),
        sequential_share: Some(0.0),
        in_flight: Some(InFlight { mean: 2.0, peak: 100 }),
        queue: Some(Latency { p50_ns: 0, p99_ns: 0, p999_ns: 0 }),
        device: Some(Latency { p50_ns: 19_922_944, p99_ns: 19_922_944, p999_ns: 19_922_944 }),
        working_set_bytes: tenants[0].working_set_bytes,
        burstiness: 90.0,
        ..steady.clone()
    };
    assert_eq!(tenants, [bursts, steady]);
    let near = (95 << 20)..=(105 << 20);
    assert!(near.contains(&tenants[0].working_set_bytes), "100 extents: {}", tenants[0].working_set_bytes);
    // Extents of different volumes are different ones.
    let more = total.working_set_bytes.saturating_sub(tenants[0].working_set_bytes) >> 20;
    assert!((2..=6).contains(&more), "4 extents more: {more}");
    assert_eq!((total.requests, total.bytes, total.iops, total.peak_iops), (2000, 69_632_000, 200.0, 200));
    assert_eq!((total.read_share, total.sequential_share), (Some(0.5), Some(0.4995)));
    assert_eq!((total.in_flight, total.burstiness), (Some(InFlight { mean: 2.5, peak: 101 }), 45.0));
    assert_eq!(total.sizes, Some(Sizes { p10: 4096, p50: 4096, p90: 65_536, max: 65_536 }));
}

#[test]
fn failed_cancelled_retried_and_lost_requests_are_told_apart() {
    let failed = Request { outcome: Outcome::Failed(5), device_ns: MS, ..request(0, 0, Kind::Write, 0, 512) };
    let cancelled = Request { outcome: Outcome::Cancelled, queue_ns: MS, ..request(MS, 0, Kind::Read, 0, 512) };
    let retried = Request { retried: true, device_ns: 2 * MS, ..request(2 * MS, 0, Kind::Flush, 0, 0) };
    let lost = Item::Lost { requests: 9, from_ns: 0, to_ns: 8 * MS };
    let summary = summary([failed, cancelled, retried].map(Item::Request).into_iter().chain([lost]));
    let Figures { requests, failed, cancelled, retried, device, tenant, .. } = &summary.tenants[0];
    assert_eq!((*requests, *failed, *cancelled, *retried), (3, 1, 1, 1));
    assert_eq!((summary.lost, summary.duration_ns, tenant.as_str()), (9, 8 * MS, "tenant 0"));
    // That of the flush alone.
    assert_eq!(device.map(|device| device.p50_ns), Some(1_998_848));
}

#[test]
fn tenants_beyond_the_bound_count_together() {
    let requests = |number: u32| request(u64::from(number) * MS, number, Kind::Flush, 0, 0);
    let more = 7;
    let summary = summary((0..MOST_TENANTS as u32 + more).map(requests).map(Item::Request));
    let last = summary.tenants.last().expect("tenants");
    assert_eq!((summary.tenants.len(), last.number, last.tenant.as_str()), (MOST_TENANTS + 1, None, "others"));
    assert_eq!((last.requests, summary.total.requests), (u64::from(more), MOST_TENANTS as u64 + u64::from(more)));
}

#[test]
fn a_long_request_counts_for_64_extents() {
    let summary = summary([Item::Request(request(0, 0, Kind::Read, 0, u64::MAX))]);
    let extents = summary.total.working_set_bytes >> 20;
    assert!((60..=68).contains(&extents), "{extents}");
}

#[test]
fn a_recording_without_latencies_or_requests_says_so() {
    let read = Item::Request(request(MS, 0, Kind::Read, 0, 512));
    let total = summary([read]).total;
    assert_eq!((total.requests, total.in_flight, total.queue, total.device), (1, None, None, None));
    let Summary { duration_ns, total, tenants, .. } = summary([]);
    assert_eq!((duration_ns, total.requests, total.iops, total.burstiness, tenants.len()), (0, 0, 0.0, 0.0, 0));
    assert_eq!((total.read_share, total.sizes, total.sequential_share, total.working_set_bytes), (None, None, None, 0));
}

#[test]
fn a_sequential_request_begins_at_one_of_the_last_32_ends_of_its_volume() {
    let share = |streams: u64| {
        // Streams take turns.
        let requests = (0..streams * 100).map(|i| {
            let offset = (i % streams) * (1 << 30) + (i / streams) * 4096;
            Item::Request(request(i * MS, 0, Kind::Read, offset, 4096))
        });
        summary(requests).total.sequential_share
    };
    assert_eq!((share(1), share(32), share(33)), (Some(0.99), Some(0.99), Some(0.0)));
}

#[test]
fn a_request_far_from_its_place_counts_with_the_latest() {
    let requests = (0..70_000).map(|i| request(i * MS, 0, Kind::Read, 0, 512));
    let late = request(0, 0, Kind::Read, 0, 512);
    let total = summary(requests.chain([late]).map(Item::Request)).total;
    assert_eq!((total.requests, total.peak_iops), (70_001, 1001));
}

#[test]
fn a_segment_of_a_ring_counts_from_its_first_request() {
    // Ten days after the ring's begin: a read every 10 ms for 10 s.
    let begin_ns = 864_000 * SECOND_NS;
    let read =
        |i: u64| Request { device_ns: 10 * MS, ..request(begin_ns + 10 * i * MS, 0, Kind::Read, i * 4096, 4096) };
    let items: Vec<Item> = (0..1000).map(read).map(Item::Request).collect();
    let segment = summary(items.clone());
    assert_eq!((segment.begin_ns, segment.duration_ns), (begin_ns, 10 * SECOND_NS));
    assert_eq!((segment.total.iops, segment.total.burstiness), (100.0, 0.0));
    assert_eq!(segment.total.in_flight, Some(InFlight { mean: 1.0, peak: 1 }));
    let mut timeline = Timeline::new(segment.begin_ns, segment.duration_ns, &[]);
    items.iter().for_each(|item| timeline.observe(item));
    let points = &timeline.courses()[0].points;
    assert_eq!((points.len(), points[0].at_s), (300, 0.0));
    let is_even = |point: &Point| (80.0..130.0).contains(&point.iops) && point.in_flight > 0.9;
    assert!(points.iter().all(is_even), "{points:?}");

    let lost = Item::Lost { requests: 1, from_ns: begin_ns - SECOND_NS, to_ns: begin_ns };
    let segment = summary(items.into_iter().chain([lost]));
    assert_eq!((segment.begin_ns, segment.duration_ns), (begin_ns - SECOND_NS, 11 * SECOND_NS));
    // A recording with a quiet begin counts from its start.
    let quiet = summary([2, 5].map(|s| Item::Request(request(s * SECOND_NS, 0, Kind::Read, 0, 4096))));
    assert_eq!((quiet.begin_ns, quiet.duration_ns), (0, 5 * SECOND_NS));
}

#[test]
fn a_timeline_of_the_longest_time_does_not_overflow() {
    let mut timeline = Timeline::new(0, u64::MAX, &[0]);
    let late = Request { device_ns: u64::MAX, ..request(u64::MAX - 1, 0, Kind::Read, 0, 512) };
    timeline.observe(&Item::Request(late));
    let points = &timeline.courses()[1].points;
    assert_eq!(points.iter().filter(|point| point.iops > 0.0).count(), 1);
}

#[test]
fn a_timeline_spreads_requests_in_flight_over_the_steps() {
    let mut timeline = Timeline::new(0, 30 * SECOND_NS, &[4]);
    let read = Request { queue_ns: 30 * MS, device_ns: 100 * MS, ..request(50 * MS, 4, Kind::Read, 0, 4096) };
    let other = request(29_999 * MS, 5, Kind::Flush, 0, 0);
    [read, other].map(Item::Request).iter().for_each(|item| timeline.observe(item));
    let courses = timeline.courses();
    assert_eq!(courses.iter().map(|course| course.number).collect::<Vec<_>>(), [None, Some(4)]);
    let points = &courses[1].points;
    let first = Point {
        at_s: 0.0,
        iops: 10.0,
        bytes_per_s: 40_960.0,
        in_flight: 0.5,
        queue_ns: Some([29_884_416; 2]),
        device_ns: Some([99_614_720; 2]),
    };
    let second = Point { at_s: 0.1, iops: 0.0, bytes_per_s: 0.0, in_flight: 0.8, queue_ns: None, device_ns: None };
    assert_eq!((points.len(), points[0], points[1]), (300, first, second));
    assert_eq!((points[299].iops, courses[0].points[299].iops), (0.0, 10.0));
    assert_eq!(courses[1].sizes, [(4096, 1.0)]);
}

/// Some requests with different arrivals, and the same ones in another order.
fn shuffled() -> impl Strategy<Value = (Vec<Request>, Vec<Request>)> {
    let kinds = prop::sample::select(vec![Kind::Read, Kind::Write, Kind::Flush, Kind::Trim]);
    let outcomes = prop::sample::select(vec![Outcome::Done, Outcome::Failed(5), Outcome::Cancelled]);
    let parts = (0..50 * MS, 0..50 * MS, 0..3u32, kinds, 0..64u64, 1..4u64, any::<bool>(), outcomes);
    let requests = prop::collection::vec(parts, 0..200).prop_map(|all| {
        let all = all.into_iter().enumerate();
        let all = all.map(|(index, (queue_ns, device_ns, tenant, kind, block, blocks, retried, outcome))| {
            let plain = request(index as u64 * 7 * MS, tenant, kind, block * 4096, blocks * 4096);
            Request { queue_ns, device_ns, retried, outcome, volume: 0, ..plain }
        });
        all.collect::<Vec<_>>()
    });
    requests.prop_flat_map(|requests| (Just(requests.clone()), Just(requests).prop_shuffle()))
}

proptest! {
    #[test]
    fn the_order_of_observation_does_not_matter((requests, other) in shuffled()) {
        let of = |requests: &[Request]| summary(requests.iter().copied().map(Item::Request));
        let all = of(&requests);
        prop_assert_eq!(&all, &of(&other));

        let sum = |count: fn(&Figures) -> u64| all.tenants.iter().map(count).sum::<u64>();
        prop_assert_eq!(sum(|figures| figures.requests), requests.len() as u64);
        prop_assert_eq!(sum(|figures| figures.bytes), all.total.bytes);
        prop_assert_eq!(sum(|figures| figures.failed), all.total.failed);
        prop_assert!(all.tenants.iter().all(|figures| figures.peak_iops <= all.total.peak_iops));

        // The counts of two halves add up to those of the whole, in either order.
        let (first, second) = requests.split_at(requests.len() / 2);
        let swapped = of(&[second, first].concat());
        prop_assert_eq!(&swapped, &all);
        let (first, second) = (of(first).total, of(second).total);
        prop_assert_eq!(first.retried + second.retried, all.total.retried);
        prop_assert_eq!(first.cancelled + second.cancelled, all.total.cancelled);

        let courses = |requests: &[Request]| {
            let mut timeline = Timeline::new(all.begin_ns, all.duration_ns, &[0, 1]);
            requests.iter().for_each(|request| timeline.observe(&Item::Request(*request)));
            timeline.courses()
        };
        prop_assert_eq!(courses(&requests), courses(&other));
    }
}
