//! The drive against what data sheets and reviews say of real ones; the facts and their sources are in `docs/model-ssd.md`.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::ssd::{Geometry, Ssd, SsdParams};

/// What one stream of a closed loop does.
#[derive(Clone, Copy)]
struct Stream {
    depth: usize,
    bytes: u32,
    /// Per cent of requests that read.
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

/// Closed loops on one drive, going on from call to call.
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

    /// Runs the streams side by side for `length` and lets what is under way end; one count for each.
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
            if self.drive.inside() == 0 {
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

#[test]
fn survey() {
    for (name, params) in [("sata", SsdParams::sata()), ("nvme", SsdParams::nvme())] {
        for depth in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1023] {
            let t = std::time::Instant::now();
            let c = &Bench::new(params).run(&[random(Kind::Read, 4096, depth)], ms(200))[0];
            println!(
                "{name} rr 4k qd{depth}: {:.0} iops mean {:.1} p99 {:.1} us ({:?})",
                c.iops(ms(200)),
                mean_us(&c.read_ns),
                percentile_us(&c.read_ns, 99.0),
                t.elapsed()
            );
        }
        for kind in [Kind::Read, Kind::Write] {
            for depth in [1, 8, 32] {
                let c = &Bench::new(params).run(&[sequential(kind, 131072, depth)], ms(1000))[0];
                println!("{name} seq {kind:?} 128k qd{depth}: {:.0} MB/s", c.megabytes_per_s(ms(1000)));
            }
        }
        for depth in [1, 4, 32, 128] {
            let t = std::time::Instant::now();
            let mut b = Bench::new(params);
            let c = &b.run(&[random(Kind::Write, 4096, depth)], ms(1000))[0];
            println!(
                "{name} rw first s 4k qd{depth}: {:.0} iops mean {:.1} waf {:.2} ({:?})",
                c.iops(ms(1000)),
                mean_us(&c.write_ns),
                b.drive.wear().write_amplification(),
                t.elapsed()
            );
        }
        let mut b = Bench::new(params);
        for i in 0..20 {
            let c = &b.run(&[random(Kind::Write, 4096, 32)], ms(2000))[0];
            println!(
                "{name} rw {i} 4k qd32: {:.0} iops p99 {:.0} waf {:.2}",
                c.iops(ms(2000)),
                percentile_us(&c.write_ns, 99.0),
                b.drive.wear().write_amplification()
            );
        }
        for reads in [100, 90, 70, 50, 0] {
            let mut b = Bench::new(params);
            b.run(&[random(Kind::Write, 4096, 32)], ms(1000));
            let c = &b.run(&[Stream { reads, ..random(Kind::Read, 4096, 32) }], ms(1000))[0];
            println!(
                "{name} mix {reads}: {:.0} iops read mean {:.0} p99 {:.0}",
                c.iops(ms(1000)),
                mean_us(&c.read_ns),
                percentile_us(if c.read_ns.is_empty() { &[0] } else { &c.read_ns }, 99.0)
            );
        }
        let mut b = Bench::new(params);
        for i in 0..12 {
            let c = &b.run(&[sequential(Kind::Write, 1 << 20, 8), random(Kind::Read, 4096, 1)], ms(4000));
            println!(
                "{name} sw {i} 1M: {:.0} MB/s; reads mean {:.0} p99 {:.0} us waf {:.3}",
                c[0].megabytes_per_s(ms(4000)),
                mean_us(&c[1].read_ns),
                percentile_us(&c[1].read_ns, 99.0),
                b.drive.wear().write_amplification()
            );
        }
    }
    let _ = Geometry { ..SsdParams::sata().geometry };
}
