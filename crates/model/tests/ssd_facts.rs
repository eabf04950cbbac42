//! The model of a solid-state drive compared with facts from data sheets and reviews of real drives.
//!
//! Sources: the Samsung PM983 data sheet of January 2018 (1.92 TB) and its family's published bandwidths; the published
//! specifications of the Samsung 850/860 EVO and Tom's Hardware's test of the 860 EVO 250 GB (about 13 GB of fast region, then
//! 250 MB/s; the maker gives 12 GB); AnandTech's round-up of enterprise drives; Wu and He, FAST 2012; Desnoyers, SYSTOR 2012.
//! The presets were fitted to bandwidths, IOPS and latencies. The curve over queue depth, reads beside writes, the mix, the tail
//! and the amplification were not fitted.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::ssd::{Geometry, Ssd, SsdParams};

/// A closed loop that keeps `depth` requests of `bytes` each in flight.
#[derive(Clone, Copy)]
struct Stream {
    depth: usize,
    bytes: u32,
    /// Share of reads among the requests, in per cent.
    reads: u64,
    sequential: bool,
}

const fn random(kind: Kind, bytes: u32, depth: usize) -> Stream {
    Stream { depth, bytes, reads: if matches!(kind, Kind::Read) { 100 } else { 0 }, sequential: false }
}

const fn sequential(kind: Kind, bytes: u32, depth: usize) -> Stream {
    Stream { sequential: true, ..random(kind, bytes, depth) }
}

#[derive(Default)]
struct Counted {
    bytes: u64,
    read_ns: Vec<u64>,
    write_ns: Vec<u64>,
}

impl Counted {
    fn iops(&self, over: Duration) -> f64 {
        (self.read_ns.len() + self.write_ns.len()) as f64 / over.as_secs_f64()
    }

    fn megabytes_per_s(&self, over: Duration) -> f64 {
        self.bytes as f64 / 1e6 / over.as_secs_f64()
    }
}

fn mean_us(ns: &[u64]) -> f64 {
    ns.iter().sum::<u64>() as f64 / 1e3 / ns.len() as f64
}

fn percentile_us(ns: &[u64], percent: f64) -> f64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * percent / 100.0) as usize] as f64 / 1e3
}

/// A drive for closed loops; each run continues with the state that the run before left.
struct Bench {
    drive: Ssd,
    rng: SplitMix64,
    now: Instant,
    position: u64,
}

impl Bench {
    fn new(params: SsdParams) -> Self {
        Self { drive: Ssd::new(params, 1), rng: SplitMix64::new(2), now: Instant::ZERO, position: 0 }
    }

    /// Runs the streams side by side for `length`, then lets requests in flight complete; returns for each stream the completions
    /// within `length`.
    fn run(&mut self, streams: &[Stream], length: Duration) -> Vec<Counted> {
        let end = self.now + length;
        let capacity = self.drive.params().geometry.capacity_bytes;
        let mut counted: Vec<Counted> = streams.iter().map(|_| Counted::default()).collect();
        // The stream, kind and start of each request under way.
        let mut under_way = Vec::new();
        let mut vacant = Vec::new();
        let mut asking: Vec<usize> = streams.iter().enumerate().flat_map(|(i, s)| vec![i; s.depth]).collect();
        loop {
            for index in asking.drain(..) {
                let stream = streams[index];
                let bytes = u64::from(stream.bytes);
                let offset = if stream.sequential {
                    self.position = (self.position + bytes) % (capacity / bytes * bytes);
                    self.position
                } else {
                    self.rng.next_below(capacity / bytes) * bytes
                };
                let kind = if self.rng.next_below(100) < stream.reads { Kind::Read } else { Kind::Write };
                let id = vacant.pop().unwrap_or_else(|| {
                    under_way.push((0, Kind::Read, self.now));
                    under_way.len() - 1
                });
                under_way[id] = (index, kind, self.now);
                self.drive.submit(self.now, id as u64, Io { kind, offset, bytes: stream.bytes });
            }
            let next = self.drive.next_event();
            if self.drive.in_flight() == 0 {
                return counted;
            }
            self.now = next;
            while let Some(id) = self.drive.poll(self.now) {
                let (index, kind, since) = under_way[id as usize];
                vacant.push(id as usize);
                if self.now <= end {
                    let latency = self.now.since(since).as_nanos();
                    counted[index].bytes += u64::from(streams[index].bytes);
                    match kind {
                        Kind::Read => counted[index].read_ns.push(latency),
                        _ => counted[index].write_ns.push(latency),
                    }
                    asking.push(index);
                }
            }
        }
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Asserts that `measured` is within `percent` of the fact.
fn assert_within(what: &str, measured: f64, fact: f64, percent: f64) {
    println!("{what}: {measured:.1} (fact: {fact} ± {percent} %)");
    assert!((measured / fact - 1.0).abs() * 100.0 <= percent, "{what}: {measured}, not {fact} ± {percent} %");
}

/// IOPS and mean latency in µs of one stream on a new drive, over 200 ms.
fn of_one(params: SsdParams, stream: Stream) -> (f64, f64) {
    let length = ms(200);
    let counted = Bench::new(params).run(&[stream], length).swap_remove(0);
    let all: Vec<u64> = counted.read_ns.iter().chain(&counted.write_ns).copied().collect();
    (counted.iops(length), mean_us(&all))
}

fn sequential_megabytes_per_s(params: SsdParams, kind: Kind) -> f64 {
    let mut bench = Bench::new(params);
    // The buffer takes the first writes.
    bench.run(&[sequential(kind, 128 << 10, 32)], ms(200));
    bench.run(&[sequential(kind, 128 << 10, 32)], ms(500))[0].megabytes_per_s(ms(500))
}

/// The parameters, but of a drive that is empty and erased.
fn fresh(params: SsdParams) -> SsdParams {
    SsdParams { geometry: Geometry { used: 0.0, aged: false, ..params.geometry }, ..params }
}

#[test]
fn sata_meets_its_data_sheet() {
    let sata = SsdParams::sata();
    assert_within("sequential read MB/s", sequential_megabytes_per_s(sata, Kind::Read), 550.0, 3.0);
    assert_within("sequential write MB/s", sequential_megabytes_per_s(sata, Kind::Write), 520.0, 6.0);
    assert_within("random read IOPS QD32", of_one(sata, random(Kind::Read, 4096, 32)).0, 98_000.0, 3.0);
    assert_within("random read IOPS QD1", of_one(sata, random(Kind::Read, 4096, 1)).0, 10_000.0, 3.0);
    assert_within("random write IOPS QD32", of_one(sata, random(Kind::Write, 4096, 32)).0, 90_000.0, 10.0);
    assert_within("random write IOPS QD1", of_one(sata, random(Kind::Write, 4096, 1)).0, 40_000.0, 5.0);
}

#[test]
fn nvme_meets_its_data_sheet() {
    let nvme = SsdParams::nvme();
    assert_within("sequential read MB/s", sequential_megabytes_per_s(nvme, Kind::Read), 3_200.0, 3.0);
    assert_within("sequential write MB/s, fresh", sequential_megabytes_per_s(fresh(nvme), Kind::Write), 2_100.0, 5.0);
    assert_within("random read IOPS QD256", of_one(nvme, random(Kind::Read, 4096, 256)).0, 540_000.0, 3.0);
    assert_within("random read us QD1", of_one(nvme, random(Kind::Read, 4096, 1)).1, 85.0, 3.0);
    assert_within("random write us QD1", of_one(nvme, random(Kind::Write, 4096, 1)).1, 50.0, 5.0);
    let mut bench = Bench::new(nvme);
    bench.run(&[random(Kind::Write, 4096, 32)], ms(1_000));
    let sustained = bench.run(&[random(Kind::Write, 4096, 32)], ms(2_000))[0].iops(ms(2_000));
    assert_within("random write IOPS QD32, sustained", sustained, 50_000.0, 7.0);
}

/// IOPS grow in proportion to the queue depth while dies are idle, stay level once the narrowest part of the drive is always
/// busy, and are never above either of these two lines (Little's law).
#[test]
fn depth_brings_iops_until_the_narrowest_part_is_busy() {
    for (params, ceiling) in [(SsdParams::sata(), 98_000.0), (SsdParams::nvme(), 540_000.0)] {
        let alone_us = of_one(params, random(Kind::Read, 4096, 1)).1;
        let mut last = 0.0;
        for depth in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
            let (iops, mean_us) = of_one(params, random(Kind::Read, 4096, depth));
            println!("QD{depth}: {iops:.0} IOPS, {mean_us:.0} us");
            assert!(iops >= 0.999 * last, "QD{depth}: {iops} after {last}");
            assert!(iops <= 1.01 * f64::min(ceiling, depth as f64 * 1e6 / alone_us), "QD{depth}: {iops}");
            if depth <= 4 {
                assert!(iops >= 0.95 * depth as f64 * 1e6 / alone_us, "QD{depth}: {iops}");
            }
            last = iops;
        }
        assert!(last > 0.97 * ceiling);
    }
}

/// The first 12 GB are written fast, further data at the speed of three bits per cell; idle time makes the drive fast again.
#[test]
fn sata_falls_off_its_cliff_and_recovers() {
    let mut bench = Bench::new(SsdParams::sata());
    let write = [sequential(Kind::Write, 512 << 10, 16)];
    let (mut fast_bytes, mut slow) = (0.0, 0.0);
    for _ in 0..60 {
        slow = bench.run(&write, ms(500))[0].megabytes_per_s(ms(500));
        if slow < 500.0 {
            break;
        }
        fast_bytes += slow * 0.5;
    }
    assert_within("bytes until the cliff, MB", fast_bytes, 12_500.0, 9.0);
    bench.run(&write, ms(500));
    slow = slow.min(bench.run(&write, ms(1_000))[0].megabytes_per_s(ms(1_000)));
    assert_within("sequential write MB/s after the cliff", slow, 250.0, 5.0);
    // A minute moves all of it at about 250 MB/s.
    bench.now += Duration::from_secs(60);
    let recovered = bench.run(&write, ms(500))[0].megabytes_per_s(ms(500));
    assert_within("sequential write MB/s after a minute of rest", recovered, 544.0, 2.0);
}

/// Published: where reads go before programs but cannot interrupt them, programs double the mean read latency; interrupting
/// (suspending) programs takes about half of the latency away (Wu and He, FAST 2012: 50.5 %). Here the writes saturate the
/// drive, so that both effects are larger.
#[test]
fn reads_wait_behind_programs_unless_they_may_interrupt() {
    let under_writes = |suspend_latency| {
        let mut bench = Bench::new(SsdParams { suspend_latency, ..SsdParams::nvme() });
        let streams = [random(Kind::Read, 4096, 1), random(Kind::Write, 4096, 32)];
        bench.run(&streams, ms(300));
        mean_us(&bench.run(&streams, ms(1_000))[0].read_ns)
    };
    let alone = of_one(SsdParams::nvme(), random(Kind::Read, 4096, 1)).1;
    let (waiting, interrupting) = (under_writes(Duration::ZERO), under_writes(Duration::from_micros(30)));
    println!("reads alone {alone:.0} us, behind programs {waiting:.0} us, interrupting them {interrupting:.0} us");
    assert!(waiting > 2.0 * alone);
    assert!(interrupting > 1.2 * alone);
    assert!(interrupting < 0.55 * waiting);
}

/// Published: at 70 % reads this class of drive is as fast at queue depth 32 as at 128, because writes are the bottleneck
/// (AnandTech's round-up of enterprise drives), and at depth 1 the p99.99 of reads is below 2.5 times their mean latency.
#[test]
fn writes_bind_a_mix_and_lone_reads_are_regular() {
    let mixed = |depth| {
        let mut bench = Bench::new(SsdParams::nvme());
        let mix = [Stream { reads: 70, ..random(Kind::Read, 4096, depth) }];
        bench.run(&mix, ms(500));
        bench.run(&mix, ms(1_000))[0].iops(ms(1_000))
    };
    let (shallow, deep) = (mixed(32), mixed(128));
    println!("70 % reads: {shallow:.0} IOPS at QD32, {deep:.0} at QD128");
    assert_within("QD128 / QD32 at 70 % reads", deep / shallow, 1.0, 5.0);
    let lone = Bench::new(SsdParams::nvme()).run(&[random(Kind::Read, 4096, 1)], ms(5_000)).swap_remove(0);
    let (mean, tail) = (mean_us(&lone.read_ns), percentile_us(&lone.read_ns, 99.99));
    println!("QD1: mean {mean:.1} us, p99.99 {tail:.1} us");
    assert!(tail < 2.5 * mean && tail > 1.1 * mean);
}

/// Write amplification of random writes on full drives: the closed form for blocks collected in the order in which they
/// were written (Desnoyers, SYSTOR 2012) is 1 / (1 − e^−k) with (1 − e^−k) / k = 1 / (1 + spare). Collecting the block with
/// the least valid data first, as the model does, is at most slightly better.
#[test]
fn write_amplification_follows_the_spare_space() {
    for (spare_percent, expected) in [(6.0, 8.98), (10.0, 5.69), (28.0, 2.43)] {
        let nvme = SsdParams::nvme();
        let geometry = Geometry { spare_percent, capacity_bytes: 8 << 30, ..nvme.geometry };
        let mut bench = Bench::new(SsdParams { geometry, ..nvme });
        for _ in 0..3 {
            let before = bench.drive.wear();
            bench.run(&[random(Kind::Write, 4096, 32)], ms(2_000));
            let after = bench.drive.wear();
            let moved = (after.moved_bytes - before.moved_bytes) as f64;
            let amplification = 1.0 + moved / (after.written_bytes - before.written_bytes) as f64;
            assert_within(&format!("amplification at {spare_percent} % spare"), amplification, expected, 6.0);
        }
    }
}

#[test]
fn sequential_passes_cost_no_moves_and_make_an_aged_drive_new() {
    let nvme = SsdParams::nvme();
    let small =
        |used, aged| SsdParams { geometry: Geometry { capacity_bytes: 4 << 30, used, aged, ..nvme.geometry }, ..nvme };
    let write = [sequential(Kind::Write, 1 << 20, 8)];
    let mut bench = Bench::new(small(0.0, false));
    // Three times over the whole of it.
    bench.run(&write, ms(6_500));
    assert!(bench.drive.wear().written_bytes > 3 * (4 << 30));
    assert_eq!(bench.drive.wear().moved_bytes, 0);
    let mut bench = Bench::new(small(1.0, true));
    let aged = bench.run(&write, ms(1_000))[0].megabytes_per_s(ms(1_000));
    bench.run(&write, ms(25_000));
    let renewed = bench.run(&write, ms(1_000))[0].megabytes_per_s(ms(1_000));
    assert!(aged < 400.0 && renewed > 1_900.0, "{aged} MB/s at first, {renewed} MB/s in the end");
}

#[test]
fn trims_make_room() {
    let nvme = SsdParams::nvme();
    let params = SsdParams { geometry: Geometry { capacity_bytes: 4 << 30, ..nvme.geometry }, ..nvme };
    let sustained = |trimmed: u64| {
        let mut bench = Bench::new(params);
        for place in 0..trimmed {
            let io = Io { kind: Kind::Meta, offset: place << 30, bytes: 1 << 30 };
            bench.drive.submit(bench.now, u64::MAX, io);
            while bench.drive.poll(bench.now).is_none() {
                bench.now = bench.drive.next_event();
            }
        }
        bench.run(&[random(Kind::Write, 4096, 32)], ms(1_000))[0].iops(ms(1_000))
    };
    let (full, half) = (sustained(0), sustained(2));
    assert!(half > 3.0 * full, "{full} IOPS full, {half} IOPS half trimmed");
}

/// On a drive without capacitors a flush waits until the buffered data is in the flash; with capacitors it does not wait for it.
#[test]
fn a_flush_waits_for_a_volatile_buffer_only() {
    let flush_us = |params: SsdParams| {
        let mut drive = Ssd::new(params, 1);
        let mut now = Instant::ZERO;
        for (id, kind, bytes) in [(0, Kind::Write, 4096), (1, Kind::Flush, 0)] {
            let since = now;
            drive.submit(now, id, Io { kind, offset: 0, bytes });
            while drive.poll(now) != Some(id) {
                now = drive.next_event();
            }
            if kind == Kind::Flush {
                return now.since(since).as_nanos() / 1_000;
            }
        }
        0
    };
    let (sata, nvme) = (flush_us(SsdParams::sata()), flush_us(SsdParams::nvme()));
    assert!((400..800).contains(&sata), "{sata} us: one program of fast cells and the way there");
    assert!(nvme < 60, "{nvme} us");
}
