//! Tests that replay recorded traces in a whole run: published traces if their files are present, and a synthetic trace like
//! each of them in any case.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::io::{self, BufRead, Cursor};
use std::ops::ControlFlow;
use std::path::PathBuf;

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::workload::form::Form;
use evenkeel_sim::workload::trace::{Options, Reader, Record};
use evenkeel_sim::workload::{Replay, Spec};
use evenkeel_sim::world::{Run, Setup, run};

use crate::parallel::alone;
use crate::skip::skip;

/// The text of a trace that is stored outside of the project. If the file is missing, prints that the test is skipped and
/// returns `None`.
#[expect(clippy::disallowed_methods, reason = "a test may look at files")]
fn recorded(file: &str) -> Option<String> {
    let directory = std::env::var_os("EVENKEEL_TRACES").map(PathBuf::from);
    let text = directory.and_then(|directory| std::fs::read_to_string(directory.join(file)).ok());
    if text.is_none() {
        skip(&format!("{file} is not in the folder EVENKEEL_TRACES"));
    }
    text
}

/// A trace in MQSim's format: `count` requests to `devices` devices within `span_ns` nanoseconds; every `write_every`th request
/// is a write.
fn synthetic(count: u64, devices: u64, span_ns: u64, write_every: u64) -> String {
    let mut rng = SplitMix64::new(1);
    let mut text = String::new();
    for n in 0..count {
        let (at, lba) = (n * span_ns / (count - 1), rng.next_below(1 << 25) * 8);
        let (device, read) = (rng.next_below(devices), u8::from(n % write_every != write_every - 1));
        writeln!(text, "{at} {device} {lba} {} {read}", 8 << rng.next_below(3)).unwrap();
    }
    text
}

fn records(text: &str) -> Vec<Record> {
    Reader::new(text.as_bytes(), "trace", Options::default()).map(|record| record.unwrap()).collect()
}

/// The replay of the trace `text`; `keys` are further keys of the workload, in TOML.
fn replay(text: &str, keys: &str) -> Replay {
    let form: Form = toml::from_str(&format!("trace = \"t\"\n{keys}")).unwrap();
    let mut open = |_: &str| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(Cursor::new(text.to_owned()))) };
    match form.build(&mut open).unwrap().spec {
        Spec::Replay(replay) => replay,
        other => panic!("{other:?}"),
    }
}

/// Runs the replay for `seconds` seconds on a store that is as fast as an NVMe device, fast enough for all requests.
fn play(replay: Replay, seconds: u64) -> Run {
    let device = StoreParams { iops: 500_000, bandwidth_bytes_per_s: 5_000_000_000, ..StoreParams::ssd() };
    let setup = alone(Spec::Replay(replay), device, seconds);
    let setup = Setup { sample_every: Duration::from_millis(100), ..setup };
    run(&setup, 1, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Figures of a trace: number of requests, number of devices, reads in per cent, and length in seconds.
fn facts(records: &[Record]) -> (usize, usize, f64, f64) {
    let devices: std::collections::BTreeSet<u32> = records.iter().map(|record| record.device).collect();
    let reads = records.iter().filter(|record| record.kind == Kind::Read).count();
    let times = || records.iter().map(|record| record.at.as_nanos());
    let span = times().max().unwrap() - times().min().unwrap();
    (records.len(), devices.len(), reads as f64 * 100.0 / records.len() as f64, span as f64 / 1e9)
}

fn every_request_arrives_once(text: &str, devices: u64) {
    let all = records(text);
    let bytes: u64 = all.iter().map(|record| u64::from(record.bytes)).sum();
    // At its own pace, on a part that is smaller than the devices it was recorded on.
    let spread = replay(text, &format!("rate = 20000\nsize = \"{devices}GiB\""));
    let result = play(spread.clone(), 10);
    assert_eq!((result.tenants[0].requests, result.tenants[0].bytes), (all.len() as u64, bytes));
    let rate = spread.trace.rate_per_s().unwrap();
    assert!((rate - 20_000.0).abs() < 1.0, "{rate}");
    assert!(spread.trace.records().iter().all(|r| r.offset + u64::from(r.bytes) <= devices << 30));
    // As fast as it goes, twice.
    let result = play(replay(text, "queue_depth = 32\nrepeat = 2"), 10);
    assert_eq!((result.tenants[0].requests, result.tenants[0].bytes), (2 * all.len() as u64, 2 * bytes));
}

#[test]
fn web_search() {
    let Some(text) = recorded("wsrch-small.trace") else { return };
    let (count, devices, reads, seconds) = facts(&records(&text));
    // The last line has no end: tools that count line ends find one less.
    assert_eq!(count, 24_783);
    assert!((reads - 99.98).abs() < 0.005, "{reads} % reads");
    assert!((seconds - 60.0).abs() < 0.5, "{seconds} s");
    every_request_arrives_once(&text, devices as u64);
}

#[test]
fn tpcc() {
    let Some(text) = recorded("tpcc-small.trace") else { return };
    let (count, devices, reads, seconds) = facts(&records(&text));
    assert_eq!((count, devices), (6999, 16));
    assert!((reads - 63.0).abs() < 0.5, "{reads} % reads");
    assert!((seconds - 0.137).abs() < 0.001, "{seconds} s");
    every_request_arrives_once(&text, devices as u64);
}

#[test]
fn synthetic_web_search() {
    let text = synthetic(24_783, 6, 60_000_000_000, 5000);
    let (count, devices, reads, seconds) = facts(&records(&text));
    assert_eq!((count, devices), (24_783, 6));
    assert!((reads - 99.98).abs() < 0.005 && (seconds - 60.0).abs() < 1e-6, "{reads} % reads, {seconds} s");
    every_request_arrives_once(&text, 6);
}

#[test]
fn synthetic_tpcc() {
    let text = synthetic(6999, 16, 137_000_000, 3);
    let (count, devices, reads, _) = facts(&records(&text));
    assert_eq!((count, devices), (6999, 16));
    assert!((reads - 66.7).abs() < 0.1, "{reads} % reads");
    every_request_arrives_once(&text, 16);
}
