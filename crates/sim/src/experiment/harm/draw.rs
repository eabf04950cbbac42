//! Cases drawn at random: a device such as the market offers, and tenants that load it.
//!
//! A case is the text of a scenario without admission control, so that a case that a method harms can be saved as a file,
//! run and shrunk.

use std::fmt::Write as _;

use evenkeel_control::rng::SplitMix64;

/// The most tenants of a case.
const MOST_TENANTS: u64 = 1_000;
/// Share of the cases that have many tenants, 0 to 1.
const CROWDED: f64 = 0.1;

/// A source of random choices.
pub(super) struct Draw {
    pub(super) random: SplitMix64,
}

/// The scenario of a seed, without `duration`, `warmup` and admission. The same seed gives the same text on every machine.
pub fn case(seed: u64) -> String {
    let mut draw = Draw::new(seed);
    let mut text = format!("title = \"case {seed}\"\n\n");
    let rotational = draw.device(&mut text);
    draw.load(&mut text, rotational);
    text
}

/// The scenario of a seed for hosts that share a device: one to four heavy tenants, some of which send at a fixed rate, and
/// one to three light tenants. Requests are small enough that a host never divides one into slices.
pub fn shared(seed: u64) -> String {
    let mut draw = Draw::new(seed);
    let mut text = format!("title = \"shared case {seed}\"\n\n");
    let rotational = draw.device(&mut text);
    for number in 0..1 + draw.random.next_below(4) {
        let size = draw.power_of_two(9, 17);
        let mut workload = format!("{}, block_size = \"{size}\", size = \"16GiB\"", draw.kind());
        if draw.chance(0.3) {
            // From a part of what such a device does to more than that.
            let rate = if rotational { draw.log(20.0, 300.0) } else { draw.log(200.0, 5_000.0) };
            let _ = write!(workload, ", rate = {rate:.1}, arrivals = \"poisson\"");
        } else {
            let _ = write!(workload, ", queue_depth = {}", draw.power_of_two(2, 8));
        }
        if draw.chance(0.3) {
            let _ = write!(workload, ", burst = \"{}ms:{}ms\"", draw.whole(100.0, 10e3), draw.whole(100.0, 10e3));
        }
        let weight = if draw.chance(0.3) { 4 } else { 1 };
        draw.client(&mut text, &format!("heavy{number}"), weight, &workload);
    }
    for number in 0..1 + draw.random.next_below(3) {
        let rate = if rotational { draw.log(2.0, 20.0) } else { draw.log(10.0, 300.0) };
        let size = draw.power_of_two(9, 14);
        let workload = format!(
            "{}, block_size = \"{size}\", rate = {rate:.1}, arrivals = \"poisson\", size = \"16GiB\"",
            draw.kind()
        );
        draw.client(&mut text, &format!("light{number}"), 1, &workload);
    }
    text
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        // Neighbouring seeds are to differ from the first draw on.
        random.next_u64();
        Self { random }
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.random.next_f64() < probability
    }

    pub(super) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.random.next_f64()
    }

    /// A random number from `from` to `to`, log-uniformly distributed.
    pub(super) fn log(&mut self, from: f64, to: f64) -> f64 {
        libm::exp(self.uniform(libm::log(from), libm::log(to)))
    }

    fn whole(&mut self, from: f64, to: f64) -> u64 {
        libm::round(self.log(from, to)) as u64
    }

    fn power_of_two(&mut self, from: u32, to: u32) -> u64 {
        1 << (u64::from(from) + self.random.next_below(u64::from(to - from) + 1))
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.random.next_below(choices.len() as u64) as usize]
    }

    /// Draws a device and appends its text to `out`. True if the device is a hard disk or an array of them.
    fn device(&mut self, out: &mut String) -> bool {
        out.push_str("[device]\n");
        match self.random.next_below(8) {
            0..=2 => self.store(out),
            3..=5 => self.ssd(out),
            6 => return self.disk(out),
            _ => {
                let members = 2 + self.random.next_below(7);
                let stripe = self.power_of_two(4, 10);
                let _ = writeln!(out, "kind = \"raid0\"\nmembers = {members}\nstripe = \"{stripe}KiB\"");
                if self.chance(0.5) {
                    out.push_str("[device.member]\n");
                    return self.disk(out);
                }
                out.push_str("[device.member]\n");
                self.ssd(out);
            }
        }
        false
    }

    fn store(&mut self, out: &mut String) {
        let preset = self.one_of(&["ssd", "hdd"]);
        let bandwidth = self.whole(50e6, 3e9);
        // Requests of 4 KiB are between seeks and a bus.
        let iops = if preset == "hdd" { self.whole(80.0, 2_000.0) } else { self.whole(3_000.0, 60_000.0) };
        let _ = writeln!(out, "kind = \"store\"\npreset = \"{preset}\"\nbandwidth = {bandwidth}\niops = {iops}");
        for key in ["read_latency", "write_latency"] {
            let _ = writeln!(out, "{key} = \"{}us\"", self.whole(20.0, 5_000.0));
        }
        let _ = writeln!(out, "commit_latency = \"{}us\"", self.whole(30.0, 20_000.0));
        let _ = writeln!(out, "jitter = {:.2}", self.uniform(0.0, 1.0));
        if self.chance(0.3) {
            let _ = writeln!(out, "commit_batch_max = {}", self.power_of_two(2, 10));
        }
        if self.chance(0.3) {
            let _ = writeln!(out, "commit_size = \"{}KiB\"", self.power_of_two(2, 8));
        }
        if self.chance(0.15) {
            let every = self.whole(200.0, 20_000.0);
            let _ = writeln!(out, "stall_every = \"{every}ms\"\nstall_for = \"{}ms\"", (every / 20).clamp(1, 500));
        }
    }

    fn ssd(&mut self, out: &mut String) {
        let sata = self.chance(0.5);
        let _ = writeln!(out, "kind = \"ssd\"\npreset = \"{}\"", if sata { "sata" } else { "nvme" });
        let channels = if sata { self.power_of_two(1, 3) } else { self.power_of_two(2, 4) };
        let _ = writeln!(out, "channels = {channels}\ndies = {}", channels * self.power_of_two(1, 4));
        let depth = if sata { self.power_of_two(0, 5) } else { self.power_of_two(5, 10) };
        let _ = writeln!(out, "queue_depth = {depth}");
        let _ = writeln!(out, "page_read_time = \"{}us\"", self.whole(30.0, 150.0));
        let _ = writeln!(out, "program_time = \"{}us\"", self.whole(300.0, 3_000.0));
        let _ = writeln!(out, "erase_time = \"{}us\"", self.whole(2_000.0, 15_000.0));
        let _ = writeln!(out, "suspend_latency = \"{}us\"", if self.chance(0.5) { 0 } else { self.whole(10.0, 200.0) });
        let aged = self.chance(0.5);
        let used = if aged { 1.0 } else { self.uniform(0.3, 1.0) };
        let _ = writeln!(out, "aged = {aged}\nused = {used:.2}\nspare_percent = {:.0}", self.uniform(4.0, 30.0));
        let _ = writeln!(out, "buffer = \"{}MiB\"", self.power_of_two(1, 8));
        let slc = if aged || self.chance(0.5) { 0 } else { self.whole(1e9, 40e9) };
        let _ = writeln!(out, "slc = {slc}\njitter = {:.2}", self.uniform(0.0, 0.5));
    }

    fn disk(&mut self, out: &mut String) -> bool {
        let preset = if self.chance(0.8) { "nearline" } else { "cheetah9lp" };
        let _ = writeln!(out, "kind = \"disk\"\npreset = \"{preset}\"");
        let _ = writeln!(out, "scheduling = \"{}\"", self.one_of(&["fcfs", "elevator", "sptf"]));
        let _ = writeln!(out, "queue_depth = {}", self.power_of_two(0, 6));
        true
    }

    /// Draws tenants with their clients and appends their text to `out`: bulk tenants that use all throughput they get, and
    /// light tenants with few requests. `rotational`: the device is a hard disk or an array of them.
    fn load(&mut self, out: &mut String, rotational: bool) {
        let crowded = self.chance(CROWDED);
        let bulk = if crowded { self.whole(4.0, MOST_TENANTS as f64 / 4.0) } else { 1 + self.random.next_below(3) };
        let light = if crowded { self.whole(1.0, 20.0) } else { 1 + self.random.next_below(2) };
        for number in 0..bulk {
            let one = (!crowded || number == 0).then(|| self.bulk(crowded));
            match one {
                Some(workload) => self.client(out, &format!("bulk{number}"), 1, &workload),
                // A crowd is of one kind.
                None => {
                    let first = out.find("workload = ").unwrap_or(0);
                    let line = out[first..].lines().next().unwrap_or_default().to_owned();
                    let _ = writeln!(out, "\n[tenants.bulk{number}]\n[[client]]\ntenant = \"bulk{number}\"\n{line}");
                }
            }
        }
        for number in 0..light {
            let weight = if self.chance(0.3) { 10 } else { 1 };
            let workload = self.light(rotational);
            self.client(out, &format!("light{number}"), weight, &workload);
        }
    }

    fn client(&mut self, out: &mut String, name: &str, weight: u32, workload: &str) {
        let _ = writeln!(out, "\n[tenants.{name}]");
        if weight != 1 {
            let _ = writeln!(out, "weight = {weight}");
        }
        let _ = writeln!(out, "[[client]]\ntenant = \"{name}\"\nworkload = {{ {workload} }}");
    }

    fn sizes(&mut self) -> String {
        match self.random.next_below(4) {
            0 => "4k:20,16k:20,64k:20,256k:20,1m:10,4m:10".into(),
            1 => {
                let (small, large) = (self.power_of_two(9, 14), self.power_of_two(16, 22));
                format!("{small}:{},{large}:{}", 1 + self.random.next_below(9), 1 + self.random.next_below(9))
            }
            _ => self.power_of_two(9, 22).to_string(),
        }
    }

    fn kind(&mut self) -> String {
        match self.random.next_below(4) {
            0 => "op = \"read\"".into(),
            1 => "op = \"write\"".into(),
            _ => format!("op = \"mix\", read_percent = {:.0}", self.uniform(5.0, 95.0)),
        }
    }

    fn bulk(&mut self, crowded: bool) -> String {
        let mut workload = format!("{}, block_size = \"{}\"", self.kind(), self.sizes());
        let depth = if crowded { self.power_of_two(0, 4) } else { self.power_of_two(2, 8) };
        let _ = write!(workload, ", queue_depth = {depth}, size = \"16GiB\"");
        match self.random.next_below(4) {
            0 => {
                let _ = write!(workload, ", pattern = \"sequential\", streams = {}", 1 + self.random.next_below(4));
            }
            1 => workload.push_str(", pattern = \"zipf:0.9\""),
            _ => {}
        }
        if self.chance(0.25) {
            let on = self.whole(100.0, 30_000.0);
            let off = self.whole(100.0, 30_000.0);
            let _ = write!(workload, ", burst = \"{on}ms:{off}ms\"");
        }
        workload
    }

    fn light(&mut self, rotational: bool) -> String {
        let rate = if rotational { self.log(2.0, 20.0) } else { self.log(5.0, 1_500.0) };
        let size = if self.chance(0.8) { self.power_of_two(9, 14) } else { self.power_of_two(14, 18) };
        let kind = if self.chance(0.7) { "op = \"read\"".to_owned() } else { self.kind() };
        format!("{kind}, block_size = \"{size}\", rate = {rate:.1}, arrivals = \"poisson\", size = \"16GiB\"")
    }
}
