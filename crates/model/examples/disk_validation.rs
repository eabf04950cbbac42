//! Compares the disk model with a real disk.
//!
//! ```text
//! cargo run --release --example disk_validation -p evenkeel-model -- DIR
//! ```
//!
//! `DIR` holds `cheetah9LP.trace`: 10,000 requests with the service times of a Seagate Cheetah 9LP.

use std::error::Error;
use std::path::PathBuf;

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::disk::DiskParams;

#[path = "../tests/support/replay.rs"]
mod replay;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: disk_validation DIR, the directory of cheetah9LP.trace")?;
    let path = PathBuf::from(dir).join("cheetah9LP.trace");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let records = replay::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let measured: Vec<Duration> = records.iter().map(|record| record.service).collect();
    let params = DiskParams::cheetah9lp();

    println!("{:>16} {:>12} {:>12} {:>8} {:>11}", "requests", "measured ms", "model ms", "mean %", "demerit ms");
    let model = replay::replay(&params, 1, &records);
    row("all", &measured, &model);
    let half = records.len() / 2;
    row("first half", &measured[..half], &model[..half]);
    row("second half", &measured[half..], &model[half..]);
    // The seed only chooses how the platters stand at the beginning, which the first request cancels; what varies a run
    // is when each request meets them.
    for seed in 1..=10 {
        let mut rng = SplitMix64::new(seed);
        let vary = |record: &replay::Record| {
            let later = Duration::from_nanos(rng.next_below(params.revolution().as_nanos()));
            replay::Record { gap: record.gap + later, ..*record }
        };
        let varied: Vec<_> = records.iter().map(vary).collect();
        row(&format!("gaps varied, {seed}"), &measured, &replay::replay(&params, 1, &varied));
    }

    println!("\nby kind of request");
    // The slowest answer from the cache is well below the fastest from the platters.
    let hit = |index: usize, time: Duration| {
        let transfer_ms = f64::from(records[index].io.bytes) / params.bus_bandwidth_bytes_per_s as f64 * 1e3;
        time.as_millis_f64() - transfer_ms < 0.4
    };
    let reads = |index: usize| records[index].io.kind == Kind::Read;
    for (name, wanted) in [
        ("write", &(|index: usize, _| !reads(index)) as &dyn Fn(usize, Duration) -> bool),
        ("read, cached", &|index, time| reads(index) && hit(index, time)),
        ("read, seek", &|index, time| reads(index) && !hit(index, time)),
    ] {
        let mean_ms = |times: &[Duration]| {
            let times: Vec<f64> = (0..)
                .zip(times)
                .filter(|&(index, &time)| wanted(index, time))
                .map(|(_, t)| t.as_millis_f64())
                .collect();
            (times.len(), times.iter().sum::<f64>() / times.len().max(1) as f64)
        };
        let ((measured_count, measured_ms), (count, ms)) = (mean_ms(&measured), mean_ms(&model));
        println!(
            "{name:>13}: measured {measured_count:5} of mean {measured_ms:6.3} ms, model {count:5} of {ms:6.3} ms"
        );
    }
    Ok(())
}

fn row(name: &str, measured: &[Duration], model: &[Duration]) {
    let distance = replay::distance(measured, model);
    println!(
        "{name:>16} {:>12.3} {:>12.3} {:>+8.2} {:>11.3}",
        distance.measured_mean_ms,
        distance.model_mean_ms,
        distance.mean_percent(),
        distance.demerit_ms
    );
}
