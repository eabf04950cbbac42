//! The disk model compared with a real disk: 10,000 requests that a Seagate Cheetah 9LP served.
//!
//! Run with `EVENKEEL_TRACES` naming the directory of `cheetah9LP.trace`. The test with synthetic requests needs no file: it
//! compares the model with service times computed from seek time and rotation.

use std::path::PathBuf;

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;
use evenkeel_model::disk::{BLOCK_BYTES, DiskParams};

use crate::replay;
use crate::skip::skip;

use replay::{Distance, Record, distance, parse, replay};

/// Largest error allowed of the model's mean service time, in per cent of the measured mean.
const MEAN_PERCENT_MAX: f64 = 5.0;
/// Largest demerit allowed for a part of the trace, in ms. DiskSim's own model of this disk has a demerit of 0.107 ms.
const DEMERIT_MS_MAX: f64 = 0.5;
/// Largest demerit allowed for the whole trace, in ms: that of the present model with a margin for harmless changes; a model
/// with worse physics is well beyond it.
const REACHED_DEMERIT_MS: f64 = 0.107;

fn assert_near(name: &str, distance: Distance, demerit_ms_max: f64) {
    println!("{name}: mean {:+.2} %, {distance:?}", distance.mean_percent());
    assert!(distance.mean_percent().abs() <= MEAN_PERCENT_MAX, "{name}: {distance:?}");
    assert!(distance.demerit_ms <= demerit_ms_max, "{name}: {distance:?}");
}

fn measured(records: &[Record]) -> Vec<Duration> {
    records.iter().map(|record| record.service).collect()
}

/// The text of a trace; if the file does not exist, prints a note and returns `None`.
fn trace(file: &str) -> Option<String> {
    let path = std::env::var_os("EVENKEEL_TRACES").map(|dir| PathBuf::from(dir).join(file));
    if let Some(path) = path.filter(|path| path.exists()) {
        return Some(std::fs::read_to_string(path).unwrap());
    }
    skip(&format!("{file} is not in the folder EVENKEEL_TRACES"));
    None
}

#[test]
fn the_model_takes_as_long_as_the_real_disk() {
    let Some(text) = trace("cheetah9LP.trace") else { return };
    let records = parse(&text).unwrap();
    assert_eq!(records.len(), 10_000);
    let params = DiskParams::cheetah9lp();
    let model = replay(&params, 1, &records);
    assert_near("all", distance(&measured(&records), &model), DEMERIT_MS_MAX.min(REACHED_DEMERIT_MS));
    // Neither half owes it to the other.
    let (first, second) = records.split_at(records.len() / 2);
    assert_near("first half", distance(&measured(first), &model[..first.len()]), DEMERIT_MS_MAX);
    assert_near("second half", distance(&measured(second), &model[first.len()..]), DEMERIT_MS_MAX);
    // Each kind for itself, so that an error of one does not make up for one of the other.
    for kind in [Kind::Read, Kind::Write] {
        let of_kind = |index: &usize| records[*index].io.kind == kind;
        let pick = |times: &[Duration]| (0..records.len()).filter(of_kind).map(|i| times[i]).collect::<Vec<_>>();
        assert_near(&format!("{kind:?}"), distance(&pick(&measured(&records)), &pick(&model)), DEMERIT_MS_MAX);
    }
}

/// Requests like those of the trace, with service times computed as the sum of seek time, rotation and overheads. The computation
/// has no events and no queue; the angle of the platters is random for each request.
fn synthetic(params: &DiskParams, seed: u64, count: usize) -> Vec<Record> {
    let mut rng = SplitMix64::new(seed);
    let blocks = params.blocks();
    let mut cylinder = 0;
    // Where the last read ended, if it is still being continued.
    let mut stream: Option<u64> = None;
    (0..count)
        .map(|_| {
            let size = 4 * (1 + rng.next_below(4));
            let sequential = stream.filter(|next| rng.next_below(5) == 0 && next + size < blocks);
            let kind = if sequential.is_none() && rng.next_below(3) == 0 { Kind::Write } else { Kind::Read };
            let block = sequential.unwrap_or_else(|| rng.next_below((blocks - size) / 4) * 4);
            let bytes = size * BLOCK_BYTES;
            let bus_ms = bytes as f64 / params.bus_bandwidth_bytes_per_s as f64 * 1e3;
            let turn_ms = params.revolution().as_millis_f64();
            let overhead = params.overhead;
            let (target, turns) = place(params, block, size);
            let device_ms = match (kind, sequential) {
                (Kind::Read, Some(_)) => overhead.read_sequential.as_millis_f64(),
                (Kind::Read, None) => {
                    let seek = params.seek_time(target.abs_diff(cylinder)).max(params.setup);
                    overhead.read_miss.as_millis_f64() + seek.as_millis_f64() + turn_ms * (rng.next_f64() + turns)
                }
                _ => overhead.write.as_millis_f64(),
            };
            if sequential.is_none() {
                cylinder = target;
            }
            stream = (kind == Kind::Read).then_some(block + size);
            Record {
                io: Io { kind, offset: block * BLOCK_BYTES, bytes: bytes as u32 },
                service: Duration::from_nanos(((device_ms + bus_ms) * 1e6) as u64),
                gap: Duration::from_nanos(40_000_000 + rng.next_below(20_000_000)),
            }
        })
        .collect()
}

/// Counts through the zones, without the model's table: the cylinder of `block`, and the part of a revolution that passes
/// between the blocks of a request of `size` blocks because a track ends within it.
fn place(params: &DiskParams, block: u64, size: u64) -> (u32, f64) {
    let mut left = block;
    for zone in &params.zones {
        let track = u64::from(zone.blocks_per_track);
        let per_cylinder = u64::from(params.surfaces) * track - u64::from(params.spare_blocks_per_cylinder);
        let cylinder = zone.first_cylinder + u32::try_from(left / per_cylinder).unwrap();
        if cylinder <= zone.last_cylinder {
            let within = left % per_cylinder;
            let slots = if within + size > per_cylinder {
                zone.cylinder_skew_blocks + params.spare_blocks_per_cylinder
            } else if within % track + size > track {
                zone.track_skew_blocks
            } else {
                0
            };
            return (cylinder, f64::from(slots) / f64::from(zone.blocks_per_track));
        }
        left -= per_cylinder * u64::from(zone.last_cylinder - zone.first_cylinder + 1);
    }
    panic!("block {block} is beyond the end");
}

#[test]
fn the_model_takes_as_long_as_seek_and_rotation_say() {
    let params = DiskParams::cheetah9lp();
    for seed in 1..=3 {
        let records = synthetic(&params, seed, 10_000);
        let model = replay(&params, seed, &records);
        // Two samples of 10,000 uniform angles differ by about 1 % of a turn by themselves.
        assert_near(&format!("seed {seed}"), distance(&measured(&records), &model), 0.107);
    }
}

#[test]
fn the_distance_sees_a_wrong_disk() {
    let right = DiskParams::cheetah9lp();
    let records = synthetic(&right, 1, 10_000);
    let of = |change: fn(&mut DiskParams)| {
        let mut params = right.clone();
        change(&mut params);
        distance(&measured(&records), &replay(&params, 1, &records)).demerit_ms
    };
    let best = of(|_| {});
    for (what, demerit_ms) in [
        ("slower platters", of(|p| p.rpm = 7_200)),
        ("a slower arm", of(|p| p.seek.iter_mut().for_each(|pair| pair.1 = pair.1 + Duration::from_millis(1)))),
        ("no reading ahead", of(|p| p.cache.read_ahead_blocks = 0)),
        ("no writing back", of(|p| p.cache.write_back = false)),
        ("half the interface", of(|p| p.bus_bandwidth_bytes_per_s /= 4)),
    ] {
        assert!(demerit_ms > 3.0 * best && demerit_ms > DEMERIT_MS_MAX, "{what}: {demerit_ms} ms, right: {best} ms");
    }
}

#[test]
fn distance_is_the_shift_between_two_distributions() {
    let times = |shift: u64| (0..100).map(|n| Duration::from_micros(n * 37 % 101 * 100 + shift)).collect::<Vec<_>>();
    let found = distance(&times(0), &times(300));
    assert!((found.demerit_ms - 0.3).abs() < 1e-9);
    assert!((found.model_mean_ms - found.measured_mean_ms - 0.3).abs() < 1e-9);
}

#[test]
fn a_line_that_is_no_request_is_named() {
    let good = "R Hit    1975456   4  15362.00000  56074.00000";
    assert_eq!(
        parse(good).unwrap(),
        [Record {
            io: Io { kind: Kind::Read, offset: 1_975_456 * 512, bytes: 2_048 },
            service: Duration::from_micros(15_362),
            gap: Duration::from_micros(56_074),
        }]
    );
    for bad in [
        "X Hit 1 4 1.0 1.0",
        "R Hit 1 4 1.0",
        "R Hit 1 4 1.0 1.0 1.0",
        "R Hit -1 4 1.0 1.0",
        "R Hit 1 4 nan 1.0",
        "R Hit 1 4 1.0 inf",
        "R Hit 1 99999999999 1.0 1.0",
        "R Hit 99999999999999999999 4 1.0 1.0",
        "R Hit 36028797018963968 4 1.0 1.0",
        "\0",
    ] {
        let error = parse(&format!("{good}\n\n{bad}\n")).unwrap_err();
        assert!(error.starts_with("line 3: "), "{bad}: {error}");
    }
}
