//! The disk and RAID-0: their physics, and laws that hold for any requests.

use std::collections::BTreeMap;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams, Machine as _};
use evenkeel_model::disk::{BLOCK_BYTES, CacheParams, Disk, DiskParams, Scheduling, Zone};
use evenkeel_model::raid::Raid0Params;
use proptest::prelude::*;

const END: Instant = Instant::from_nanos(u64::MAX - 1);

fn io(kind: Kind, block: u64, blocks: u64) -> Io {
    Io { kind, offset: block * BLOCK_BYTES, bytes: (blocks * BLOCK_BYTES) as u32 }
}

fn ms(n: f64) -> Duration {
    Duration::from_nanos((n * 1e6) as u64)
}

/// Polls at every event up to `end`; returns the completed requests in order, each with the instant of its completion.
fn drain_until(device: &mut Device, end: Instant) -> Vec<(Instant, u64)> {
    let mut completions = Vec::new();
    while device.next_event() <= end {
        let now = device.next_event();
        while let Some(id) = device.poll(now) {
            completions.push((now, id));
        }
    }
    completions
}

/// Keeps `depth` requests in flight until `count` have completed; returns the requests completed per second.
fn closed_loop(device: &mut Device, depth: u64, count: u64, mut next: impl FnMut(u64) -> Io) -> f64 {
    let (mut sent, mut done, mut now) = (0, 0, Instant::ZERO);
    while done < count {
        while sent < count && sent - done < depth {
            device.submit(now, sent, next(sent));
            sent += 1;
        }
        now = device.next_event();
        while device.poll(now).is_some() {
            done += 1;
        }
    }
    count as f64 / now.as_nanos() as f64 * 1e9
}

fn cache(segment_blocks: u32, read_ahead_blocks: u32) -> CacheParams {
    CacheParams { segments: 2, segment_blocks, read_ahead_blocks, read_ahead_min_blocks: 0, write_back: false }
}

/// A disk with two surfaces and one zone of ten cylinders; a track has 100 blocks, each of which passes in 100 µs. Only seeks,
/// head switches and rotation take time.
fn bare() -> DiskParams {
    let mut params = DiskParams::cheetah9lp();
    params.rpm = 6_000;
    params.surfaces = 2;
    params.zones = vec![Zone {
        first_cylinder: 0,
        last_cylinder: 9,
        blocks_per_track: 100,
        track_skew_blocks: 10,
        cylinder_skew_blocks: 30,
    }];
    params.spare_blocks_per_cylinder = 0;
    params.capacity_bytes = 2_000 * BLOCK_BYTES;
    params.seek = vec![(1, ms(2.0)), (9, ms(6.0))];
    params.head_switch = ms(0.5);
    params.write_settle = Duration::ZERO;
    params.setup = Duration::ZERO;
    params.overhead.read_sequential = Duration::ZERO;
    params.overhead.read_hit = Duration::ZERO;
    params.overhead.read_miss = Duration::ZERO;
    params.overhead.write_hit = Duration::ZERO;
    params.overhead.write = Duration::ZERO;
    params.bus_bandwidth_bytes_per_s = u64::MAX;
    params.queue_depth = 8;
    params.cache = cache(50, 0);
    params
}

fn disk(params: &DiskParams) -> Device {
    params.validate().unwrap();
    Device::new(&DeviceParams::Disk(params.clone()), 1)
}

/// Milliseconds after which each of `ios` completes, if all are submitted at once to an idle disk.
fn completion_ms(params: &DiskParams, ios: &[Io]) -> Vec<f64> {
    let mut device = disk(params);
    for (id, &io) in (0..).zip(ios) {
        device.submit(Instant::ZERO, id, io);
    }
    let mut times = vec![0.0; ios.len()];
    for (at, id) in drain_until(&mut device, END) {
        times[id as usize] = (at.as_nanos() as f64 / 1e4).round() / 100.0;
    }
    times
}

#[test]
fn rotation_skew_and_seeks_add_up() {
    // The platters stand anywhere at the beginning; all that follows the first request is known.
    let after_first = |ios: &[Io]| {
        let times = completion_ms(&bare(), ios);
        times.windows(2).map(|pair| ((pair[1] - pair[0]) * 10.0).round() / 10.0).collect::<Vec<_>>()
    };
    let read = |block, blocks| io(Kind::Read, block, blocks);
    // What follows is there at once; what was just missed takes a turn of 10 ms.
    assert_eq!(after_first(&[read(0, 10), read(10, 20)]), [2.0]);
    assert_eq!(after_first(&[read(10, 10), read(10, 10)]), [10.0]);
    // From the last block of a track to the first of the next: ten blocks of skew, in which the head is switched.
    assert_eq!(after_first(&[read(90, 10), read(100, 10)]), [2.0]);
    // From the last track of a cylinder to the next: thirty blocks of skew, in which the arm moves.
    assert_eq!(after_first(&[read(190, 10), read(200, 10)]), [4.0]);
    // In one request it is the same: the tracks 0, 1 and 2 in full.
    assert_eq!(after_first(&[read(0, 1), read(1, 299)]), [9.9 + 1.0 + 10.0 + 3.0 + 10.0]);
    // Nine cylinders take 6 ms. The target starts at slot 9 * (10 + 30) = 360 = 60; the head leaves at slot 10 and is
    // there at slot 70, has to wait for slot 60 for 9 ms, and reads for 1 ms.
    assert_eq!(after_first(&[read(0, 10), read(1_800, 10)]), [6.0 + 9.0 + 1.0]);
}

#[test]
fn a_write_settles_and_a_command_is_set_up_before_the_head_may_be_used() {
    let mut params = bare();
    params.write_settle = ms(0.6);
    // A switch of 0.5 ms and 0.6 ms to settle are more than the skew of 1 ms: the first block is missed.
    let times = completion_ms(&params, &[io(Kind::Write, 90, 10), io(Kind::Write, 100, 10)]);
    assert_eq!(times[1] - times[0], 1.0 + 10.0 + 1.0);
    let times = completion_ms(&params, &[io(Kind::Read, 90, 10), io(Kind::Read, 100, 10)]);
    assert_eq!(times[1] - times[0], 1.0 + 1.0);
    // 0.25 ms are two and a half blocks that pass before the electronics are ready.
    params.setup = ms(0.25);
    params.queue_depth = 1;
    let times = completion_ms(&params, &[io(Kind::Read, 0, 10), io(Kind::Read, 12, 10)]);
    assert_eq!(times[1] - times[0], 10.0 + 0.2 + 1.0);
    let times = completion_ms(&params, &[io(Kind::Read, 0, 10), io(Kind::Read, 13, 10)]);
    assert!((times[1] - times[0] - (0.3 + 1.0)).abs() < 0.011, "{times:?}");
}

#[test]
fn seek_times_interpolate_and_continue() {
    let params = bare();
    assert_eq!(params.seek_time(0), Duration::ZERO);
    assert_eq!(params.seek_time(1), ms(2.0));
    assert_eq!(params.seek_time(5), ms(4.0));
    assert_eq!(params.seek_time(11), ms(7.0));
    let cheetah = DiskParams::cheetah9lp();
    let times: Vec<Duration> = (0..7_000).map(|cylinders| cheetah.seek_time(cylinders)).collect();
    assert!(times.is_sorted());
}

#[test]
fn reading_ahead_makes_the_next_read_fast_and_what_was_handed_out_is_read_again() {
    let mut params = bare();
    params.cache = cache(50, 50);
    params.overhead.read_hit = ms(0.2);
    params.overhead.read_sequential = ms(0.1);
    let mut device = disk(&params);
    let mut now = Instant::ZERO;
    let mut read = |block, idle| {
        device.submit(now, 0, io(Kind::Read, block, 10));
        let (done, _) = drain_until(&mut device, now + ms(50.0))[0];
        let took = done.since(now);
        now = now + ms(50.0) + idle;
        took
    };
    read(0, ms(50.0));
    assert_eq!(read(10, ms(50.0)), ms(0.1) + Duration::from_nanos(1), "continues");
    assert_eq!(read(30, ms(50.0)), ms(0.2) + Duration::from_nanos(1), "skips");
    assert!(read(20, ms(50.0)) > ms(1.0), "was skipped");
    assert!(read(20, ms(50.0)) > ms(1.0), "was handed out");
    assert!(read(90, ms(50.0)) > ms(1.0), "is beyond what is read ahead");
}

#[test]
fn what_was_written_since_is_not_read_from_what_was_read_ahead() {
    for write_back in [false, true] {
        let mut params = bare();
        params.cache = CacheParams { segments: 3, write_back, ..cache(50, 50) };
        let mut device = disk(&params);
        let mut now = Instant::ZERO;
        let mut serve = |kind, block| {
            device.submit(now, 0, io(kind, block, 10));
            let took = drain_until(&mut device, now + ms(50.0))[0].0.since(now);
            now += ms(100.0);
            took
        };
        serve(Kind::Read, 0);
        serve(Kind::Write, 50);
        assert!(serve(Kind::Read, 10) < ms(0.1), "what comes before it is still there");
        // Two more take the places of what was written, the least recently used.
        serve(Kind::Write, 500);
        serve(Kind::Write, 1_000);
        assert!(serve(Kind::Read, 50) > ms(0.9));
    }
}

#[test]
fn a_sequential_reader_gets_what_the_track_gives() {
    let mut params = bare();
    params.cache = cache(100, 100);
    // Per cylinder: two tracks of 10 ms, skews of 1 and 3 ms.
    let blocks_per_s = 200.0 / 0.024;
    let per_s = closed_loop(&mut disk(&params), 1, 190, |n| io(Kind::Read, n * 10, 10)) * 10.0;
    assert!((per_s / blocks_per_s - 1.0).abs() < 0.06, "{per_s} of {blocks_per_s}");
}

#[test]
fn a_write_is_done_in_the_cache_and_a_flush_waits_for_the_platters() {
    let mut params = bare();
    params.cache.write_back = true;
    let times = completion_ms(&params, &[io(Kind::Write, 0, 10), io(Kind::Write, 500, 10), io(Kind::Flush, 0, 0)]);
    assert!(times[0] < 0.01 && times[1] < 0.01, "{times:?}");
    assert!(times[2] > 2.0 + 2.0, "two writes and a seek: {times:?}");
    // A third finds both segments taken, and waits until one is written.
    let scattered = [0, 500, 1_000].map(|block| io(Kind::Write, block, 10));
    let times = completion_ms(&params, &scattered);
    assert!(times[1] < 0.01 && times[2] >= 1.0, "{times:?}");
    // What is in the cache can be read from there.
    let times = completion_ms(&params, &[io(Kind::Write, 0, 10), io(Kind::Read, 2, 5)]);
    assert!(times[1] < 0.01, "{times:?}");
}

#[test]
fn deeper_queues_shorten_the_way_of_the_arm() {
    let rate = |scheduling, queue_depth| {
        let mut params = DiskParams::nearline();
        (params.scheduling, params.queue_depth) = (scheduling, queue_depth);
        let mut rng = SplitMix64::new(7);
        let blocks = params.blocks();
        closed_loop(&mut disk(&params), 32, 3_000, |_| io(Kind::Read, rng.next_below(blocks / 8) * 8, 8))
    };
    let fcfs = rate(Scheduling::Fcfs, 32);
    let (elevator, sptf) = (rate(Scheduling::Elevator, 32), rate(Scheduling::Sptf, 32));
    println!("4 KiB reads, 32 inside: fcfs {fcfs:.0}, elevator {elevator:.0}, sptf {sptf:.0} IOPS");
    assert!(elevator > 1.3 * fcfs && sptf > 1.3 * elevator, "fcfs {fcfs}, elevator {elevator}, sptf {sptf}");
    // Of a queue of one there is no choice, except that commands are decoded ahead in the deeper one.
    assert!((rate(Scheduling::Sptf, 1) / fcfs - 1.0).abs() < 0.05);
    let by_depth: Vec<f64> = [1, 2, 4, 8, 16, 32].map(|depth| rate(Scheduling::Sptf, depth)).to_vec();
    println!("sptf by queue depth 1 to 32: {by_depth:.0?} IOPS");
    assert!(by_depth.is_sorted(), "{by_depth:?}");
}

#[test]
fn no_command_waits_for_ever() {
    let params = DiskParams::nearline();
    let mut device = disk(&params);
    let far = params.blocks() - 8;
    let (mut sent, mut now) = (0, Instant::ZERO);
    let mut rng = SplitMix64::new(3);
    let mut submit = |device: &mut Device, now| {
        sent += 1;
        // One at the inner edge, and always others at the outer edge that are nearer.
        let block = if sent == 40 { far } else { rng.next_below(100_000) * 8 };
        device.submit(now, sent, io(Kind::Read, block, 8));
    };
    for _ in 0..32 {
        submit(&mut device, now);
    }
    for done in 0.. {
        // Each of those before it may be passed over 8 * 32 times.
        assert!(done < 32 * (8 * 32 + 1), "the far one is not served");
        now = device.next_event();
        if device.poll(now) == Some(40) {
            break;
        }
        submit(&mut device, now);
    }
}

#[test]
fn the_modern_disk_is_as_fast_as_its_class() {
    let params = DiskParams::nearline();
    let blocks = params.blocks();
    let random = |kind, depth, count| {
        let mut rng = SplitMix64::new(11);
        closed_loop(&mut disk(&params), depth, count, |_| io(kind, rng.next_below(blocks / 8) * 8, 8))
    };
    // 8.5 ms average seek, 4.17 ms for half a turn, 0.1 ms overhead.
    let read_ms = 1e3 / random(Kind::Read, 1, 5_000);
    assert!((12.3..13.3).contains(&read_ms), "{read_ms}");
    let queued = random(Kind::Read, 32, 5_000);
    assert!((150.0..260.0).contains(&queued), "{queued}");
    let writes = random(Kind::Write, 1, 5_000);
    assert!((150.0..500.0).contains(&writes), "{writes}");
    println!("4 KiB: a read takes {read_ms:.2} ms; 32 at once {queued:.0} IOPS; writes {writes:.0} IOPS");
    let sequential = |kind, depth, first: u64| {
        // What is in the cache at the end does not count.
        let next = |n| if n == 4_000 { io(Kind::Flush, 0, 0) } else { io(kind, first + n * 512, 512) };
        closed_loop(&mut disk(&params), depth, 4_001, next) * 512.0 * BLOCK_BYTES as f64 / 1e6
    };
    for depth in [1, 8] {
        for kind in [Kind::Read, Kind::Write] {
            let (outer, inner) = (sequential(kind, depth, 0), sequential(kind, depth, blocks - 4_000 * 512));
            println!("{kind:?} in a row at depth {depth}: {outer:.0} MB/s outside, {inner:.0} MB/s inside");
            assert!((220.0..255.0).contains(&outer), "{kind:?} at depth {depth}: {outer} MB/s outside");
            assert!((110.0..135.0).contains(&inner), "{kind:?} at depth {depth}: {inner} MB/s inside");
        }
    }
}

#[test]
fn several_readers_in_a_row_keep_most_of_the_bandwidth() {
    let rate = |readers: u64, read_ahead_min_blocks| {
        let mut params = DiskParams::nearline();
        params.cache.read_ahead_min_blocks = read_ahead_min_blocks;
        let apart = params.blocks() / readers / 16 * 16;
        // They take turns, each 64 KiB after 64 KiB.
        let next = |n| io(Kind::Read, n % readers * apart + n / readers * 128, 128);
        closed_loop(&mut disk(&params), readers, 4_000, next) * 65_536.0 / 1e6
    };
    assert!(rate(1, 0) > 200.0 && rate(1, 1_024) > 200.0);
    let (without, with) = (rate(4, 0), rate(4, 1_024));
    println!("four readers in a row: {without:.1} MB/s without a firm piece, {with:.1} MB/s with it");
    assert!(without < 12.0 && with > 3.0 * without, "{without} MB/s, {with} MB/s");
}

#[test]
fn offsets_beyond_the_end_wrap_and_requests_across_it_end_there() {
    let params = bare();
    let end = params.blocks();
    let one = |block, blocks| completion_ms(&params, &[io(Kind::Read, block, blocks)]);
    assert_eq!(one(end + 5, 3), one(5, 3));
    assert_eq!(one(end - 1, 3), one(end - 3, 3));
    assert_eq!(one(7, end + 100), one(0, end));
}

#[test]
fn a_stall_delays_everything_by_its_length() {
    let params = DiskParams::nearline();
    let run = |stall: Option<Duration>| {
        let mut device = disk(&params);
        for id in 0..8 {
            device.submit(Instant::ZERO, id, io(Kind::Read, id * 1_000_000, 8));
        }
        if let Some(stall) = stall {
            device.stall(Instant::ZERO + ms(0.05), stall);
        }
        drain_until(&mut device, END)
    };
    let late: Vec<_> = run(None).into_iter().map(|(at, id)| (at + ms(700.0), id)).collect();
    assert_eq!(run(Some(ms(700.0))), late);
}

#[test]
fn raid0_adds_up_the_members_and_splits_at_stripes() {
    let raid = |members| {
        let member = Box::new(DeviceParams::Disk(DiskParams::nearline()));
        DeviceParams::Raid0(Raid0Params { members, stripe_bytes: 64 << 10, member })
    };
    let blocks = DiskParams::nearline().blocks();
    let random = |members| {
        let mut rng = SplitMix64::new(11);
        let mut device = Device::new(&raid(members), 1);
        let pages = blocks / 8 * u64::from(members);
        closed_loop(&mut device, 8 * u64::from(members), 3_000, |_| io(Kind::Read, rng.next_below(pages) * 8, 8))
    };
    let (one, four) = (random(1), random(4));
    // A random load does not spread evenly at every moment.
    assert!((3.0..4.1).contains(&(four / one)), "{one} {four}");
    println!("4 KiB reads, 8 for each member: one member {one:.0} IOPS, four {four:.0}");
    let sequential = |members| {
        let mut device = Device::new(&raid(members), 1);
        closed_loop(&mut device, 1, 2_000, |n| io(Kind::Read, n * 2_048, 2_048)) * 2_048.0 * 512.0 / 1e6
    };
    let (one, four) = (sequential(1), sequential(4));
    println!("1 MiB reads in a row: one member {one:.0} MB/s, four {four:.0}");
    assert!(one > 200.0 && four > 2.5 * one, "{one} MB/s, {four} MB/s");
}

#[test]
fn parameters_that_make_no_sense_are_named() {
    type Wrong = fn(&mut DiskParams);
    let wrong: [(&str, Wrong); 10] = [
        ("rpm", |p| p.rpm = 0),
        ("surfaces", |p| p.surfaces = 0),
        ("zones", |p| p.zones.clear()),
        ("zones", |p| p.zones.swap(0, 1)),
        ("blocks_per_track", |p| p.zones[0].blocks_per_track = 0),
        ("spare_blocks_per_cylinder", |p| p.spare_blocks_per_cylinder = 5_000),
        ("capacity", |p| p.capacity_bytes *= 2),
        ("seek", |p| p.seek.swap(0, 1)),
        ("queue_depth", |p| p.queue_depth = 0),
        ("read_ahead_blocks", |p| p.cache.read_ahead_blocks += 1),
    ];
    for (parameter, change) in wrong {
        let mut params = DiskParams::cheetah9lp();
        change(&mut params);
        assert_eq!(params.validate().map_err(|error| error.parameter), Err(parameter));
    }
    assert_eq!(DiskParams::cheetah9lp().validate(), Ok(()));
    assert_eq!(DiskParams::nearline().validate(), Ok(()));
}

/// Lower bound on a request's latency: the smaller overhead of cache hits, and its payload's transfer over the interface.
fn least(params: &DiskParams, io: Io) -> Duration {
    let bus = u128::from(io.bytes) * 1_000_000_000 / u128::from(params.bus_bandwidth_bytes_per_s);
    let overhead = params.overhead.read_sequential.as_nanos().min(params.overhead.write_hit.as_nanos());
    Duration::from_nanos(bus as u64 + overhead)
}

fn a_device() -> impl Strategy<Value = DeviceParams> {
    let disk = (0..3usize, 1..=40u32, 0..3usize, any::<bool>()).prop_map(|(preset, depth, order, write_back)| {
        let mut params = [DiskParams::cheetah9lp(), DiskParams::nearline(), bare()][preset].clone();
        params.queue_depth = depth;
        params.scheduling = [Scheduling::Fcfs, Scheduling::Elevator, Scheduling::Sptf][order];
        params.cache.write_back = write_back;
        params
    });
    (disk, 0..4u32).prop_map(|(disk, members)| match members {
        0 => DeviceParams::Disk(disk),
        _ => DeviceParams::Raid0(Raid0Params {
            members,
            stripe_bytes: 8_192,
            member: Box::new(DeviceParams::Disk(disk)),
        }),
    })
}

/// Requests that continue each other, repeat, jump and cross the end of the disk, each with the time since the request before.
fn some_ios() -> impl Strategy<Value = Vec<(Duration, Io)>> {
    let kind =
        prop_oneof![4 => Just(Kind::Read), 4 => Just(Kind::Write), 1 => Just(Kind::Flush), 1 => Just(Kind::Meta)];
    let block = prop_oneof![0..300u64, 1_900..2_100u64, any::<u64>().prop_map(|block| block >> 10)];
    let one = (0..30_000_000u64, kind, block, 0..200u64).prop_map(|(gap, kind, block, blocks)| {
        let blocks = if matches!(kind, Kind::Read | Kind::Write) { blocks } else { 0 };
        // Bursts half of the time.
        (Duration::from_nanos(if gap % 2 == 0 { 0 } else { gap }), io(kind, block, blocks))
    });
    proptest::collection::vec(one, 1..80)
}

/// Submits `ios`, and between them polls at every event, or never if `lazy`. Returns the completed requests, each with the
/// instant of the poll that returned it.
fn completions(params: &DeviceParams, ios: &[(Duration, Io)], lazy: bool) -> Vec<(Instant, u64)> {
    let mut device = Device::new(params, 5);
    let mut now = Instant::ZERO;
    let mut completions = Vec::new();
    for (id, &(gap, io)) in (0..).zip(ios) {
        now += gap;
        if !lazy {
            completions.extend(drain_until(&mut device, now));
        }
        device.submit(now, id, io);
    }
    completions.extend(drain_until(&mut device, END));
    completions
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_request_completes_once_and_not_before_it_can(params in a_device(), ios in some_ios()) {
        let done = completions(&params, &ios, false);
        prop_assert!(done.is_sorted_by_key(|&(at, _)| at));
        let times: BTreeMap<u64, Instant> = done.iter().map(|&(at, id)| (id, at)).collect();
        prop_assert_eq!((done.len(), times.len()), (ios.len(), ios.len()));
        let mut now = Instant::ZERO;
        for (id, &(gap, io)) in (0..).zip(&ios) {
            now += gap;
            if let DeviceParams::Disk(disk) = &params {
                let io = Io { bytes: io.bytes.min(disk.capacity_bytes as u32), ..io };
                prop_assert!(times[&id].since(now) >= least(disk, io), "request {}", id);
            }
            prop_assert!(times[&id] >= now);
        }
    }

    #[test]
    fn the_same_calls_give_the_same_completions_however_often_it_is_polled(params in a_device(), ios in some_ios()) {
        let eager = completions(&params, &ios, false);
        prop_assert_eq!(&eager, &completions(&params, &ios, false));
        let order = |done: Vec<(Instant, u64)>| done.into_iter().map(|(_, id)| id).collect::<Vec<_>>();
        let last = eager.last().copied();
        let lazy = completions(&params, &ios, true);
        prop_assert_eq!(last.map(|(_, id)| id), lazy.last().map(|&(_, id)| id));
        prop_assert_eq!(order(eager), order(lazy));
    }

    #[test]
    fn a_change_in_mid_run_loses_nothing(params in a_device(), other in a_device(), ios in some_ios()) {
        let mut device = Device::new(&params, 5);
        let mut now = Instant::ZERO;
        for (id, &(gap, io)) in (0..).zip(&ios) {
            now += gap;
            if id == ios.len() as u64 / 2 {
                device.set_params(now, &other);
            }
            device.submit(now, id, io);
        }
        prop_assert_eq!(drain_until(&mut device, END).len(), ios.len());
    }
}

#[test]
fn an_idle_disk_has_no_event() {
    let mut disk = Disk::new(DiskParams::cheetah9lp(), 1);
    assert_eq!((disk.next_event(), disk.in_flight()), (Instant::FAR_FUTURE, 0));
    assert_eq!(disk.poll(Instant::ZERO + ms(1.0)), None);
}
