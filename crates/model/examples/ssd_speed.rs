//! Speed of the SSD model in simulated requests per second of real time: `cargo run --release -p evenkeel-model
//! --example ssd_speed`.

use std::time::Instant as Clock;

use evenkeel_control::Instant;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;
use evenkeel_model::ssd::{Ssd, SsdParams};

const REQUESTS: u64 = 2_000_000;

fn main() {
    for (name, params) in [("sata", SsdParams::sata()), ("nvme", SsdParams::nvme())] {
        for (what, reads_percent) in [("read", 100), ("write", 0), ("70/30", 70)] {
            let started = Clock::now();
            let virtual_s = closed_loop(params, reads_percent);
            let million_per_s = REQUESTS as f64 / 1e6 / started.elapsed().as_secs_f64();
            println!(
                "{name} {what:5} 4 KiB, depth 128: {million_per_s:.2} million requests/s, {virtual_s:.1} s of the drive"
            );
        }
    }
}

/// Runs [`REQUESTS`] random requests of 4 KiB at queue depth 128; returns the virtual time that they took, in seconds.
fn closed_loop(params: SsdParams, reads_percent: u64) -> f64 {
    let mut drive = Ssd::new(params, 1);
    let mut rng = SplitMix64::new(2);
    let pages = params.geometry.capacity_bytes / 4_096;
    let mut submit = |drive: &mut Ssd, now: Instant| {
        let kind = if rng.next_below(100) < reads_percent { Kind::Read } else { Kind::Write };
        drive.submit(now, 0, Io { kind, offset: rng.next_below(pages) * 4_096, bytes: 4_096 });
    };
    for _ in 0..128 {
        submit(&mut drive, Instant::ZERO);
    }
    let (mut now, mut done) = (Instant::ZERO, 0);
    while done < REQUESTS {
        now = drive.next_event();
        while drive.poll(now).is_some() {
            done += 1;
            submit(&mut drive, now);
        }
    }
    now.as_nanos() as f64 / 1e9
}
