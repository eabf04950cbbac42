//! Tests of the whole crate, and what they share.

mod coding;
mod crashes;
mod files;
mod fuzz_smoke;
mod reading;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::folder::Plain;
use crate::{Entry, Event, Figures, Filter, Gauge, History, Mark, Note};
use crate::{Reader, Resolution, Sample, Second, Series, Slice};

/// A time at which steps of all resolutions begin.
const T0: u64 = 1_760_000_400;
/// A bound with room for all that the tests write.
const AMPLE: u64 = 64 << 20;

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("evenkeel-history-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = env::temp_dir().join(unique);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn series(tenant: u64) -> Arc<Series> {
    Arc::new(Series { pool: "main".into(), tenant: format!("tenant-{tenant}"), device: String::new() })
}

/// A second with so many tenants, whose figures differ, and a mark in each tenth.
fn second(at: u64, tenants: u64) -> Second {
    let sample = |tenant: u64| {
        let noise = (at.wrapping_mul(2_654_435_761) ^ tenant.wrapping_mul(40_503)) % 251;
        let requests = 100 + noise;
        let figures = Figures {
            requests,
            bytes: requests * 4_096,
            latency_us: requests * (900 + noise),
            p50_us: 800 + noise,
            p99_us: 3_000 + 7 * noise,
            in_flight: Gauge::at(noise % 32),
            queued: Gauge::at(noise % 5),
            ..Figures::default()
        };
        Sample { series: series(tenant), figures }
    };
    let marks = if at.is_multiple_of(10) { vec![decision(at)] } else { Vec::new() };
    Second { at, samples: (0..tenants).map(sample).collect(), marks }
}

fn decision(at: u64) -> Mark {
    let (pool, tenant, reason) = ("main".into(), "tenant-0".into(), "reads_over_target".into());
    Mark { at, event: Event::Decision { pool, tenant, reason, sentence: format!("reads took {at} ms") } }
}

/// The history in a folder with this bound.
fn open(folder: &Path, bound: u64) -> (History, Vec<Note>) {
    History::open_with(folder.to_owned(), bound, Box::new(Plain)).expect("a history")
}

/// A history of `seconds` seconds from [`T0`] on, with two tenants.
fn recorded(folder: &Path, seconds: u64) -> History {
    let (mut history, _) = open(folder, AMPLE);
    (T0..T0 + seconds).for_each(|at| history.append(&second(at, 2)));
    assert_eq!(history.status().lost_seconds, 0, "{:?}", history.status());
    history
}

/// All that a history has at a resolution.
fn entries(folder: &Path, resolution: Resolution) -> Vec<Entry> {
    let range = Reader::new(folder).range(0, u64::MAX, resolution, &Filter::default()).expect("a folder");
    range.map(|entry| entry.expect("files without a fault")).collect()
}

/// The slices among them, which must be in the order of time.
fn slices(folder: &Path, resolution: Resolution) -> Vec<Slice> {
    let slice = |entry| match entry {
        Entry::Slice(slice) => Some(slice),
        Entry::Gap { .. } => None,
    };
    let slices: Vec<Slice> = entries(folder, resolution).into_iter().filter_map(slice).collect();
    assert!(slices.is_sorted_by(|a, b| a.end() <= b.at), "out of order: {slices:?}");
    slices
}

/// Seconds recorded, requests, and seconds of requests in flight of these slices.
fn totals(slices: &[Slice]) -> [u64; 3] {
    let figures = || slices.iter().flat_map(|slice| &slice.samples).map(|sample| &sample.figures);
    let recorded = slices.iter().map(|slice| slice.recorded).sum();
    [recorded, figures().map(|figures| figures.requests).sum(), figures().map(|figures| figures.in_flight.sum).sum()]
}

/// Asserts that all resolutions have the same in them, and returns it.
fn same_at_all(folder: &Path) -> [u64; 3] {
    let seconds = totals(&slices(folder, Resolution::Second));
    for resolution in Resolution::ALL {
        assert_eq!(totals(&slices(folder, resolution)), seconds, "{resolution:?}");
    }
    seconds
}

/// Copies the files of a folder into a new one.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file");
    }
}

/// Length of all files of a folder together.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").metadata().expect("metadata").len()).sum()
}
