//! A device that no family is like is learned as a table of its latencies.

use super::super::policy::{device as read, device_text};
use super::*;

/// A device that dozes: a request takes 30 ms if at most one other is in flight, otherwise 0.3 ms, both within 5 %. On the
/// devices of the families more requests in flight make none faster.
struct Dozing {
    rng: SplitMix64,
    pending: Vec<(Instant, u64)>,
}

impl Machine for Dozing {
    fn name(&self) -> &'static str {
        "dozing"
    }

    fn submit(&mut self, now: Instant, id: u64, _: Io) {
        let micros = if self.pending.len() < 2 { 30_000.0 } else { 300.0 };
        let spread = 0.95 + 0.1 * self.rng.next_f64();
        self.pending.push((now + Duration::from_nanos((micros * spread * 1e3) as u64), id));
    }

    fn next_event(&self) -> Instant {
        self.pending.iter().map(|(at, _)| *at).min().unwrap_or(Instant::FAR_FUTURE)
    }

    fn poll(&mut self, now: Instant) -> Option<u64> {
        let next = self.pending.iter().enumerate().min_by_key(|(_, pending)| **pending)?;
        let (place, (at, id)) = (next.0, *next.1);
        if at > now {
            return None;
        }
        self.pending.swap_remove(place);
        Some(id)
    }

    fn stall(&mut self, _: Instant, _: Duration) {}

    fn set_params(&mut self, _: Instant, _: &DeviceParams) {}
}

/// Single requests all the time, and a burst in each half.
fn recorded() -> Load {
    let bursts = [10_000, 50_000].map(|from_ms| closed(1, 4_096, 8, from_ms, from_ms + 100));
    let mut drivers = vec![paced(0, 4_096, 100_000.0, 80_000)];
    drivers.extend(bursts);
    let mut device = Dozing { rng: SplitMix64::new(3), pending: Vec::new() };
    Load::new(drive_on(&mut device, &drivers), None).unwrap()
}

#[test]
fn a_device_that_no_family_is_like_is_learned_as_a_table() {
    let load = recorded();
    let learned = |families: &[Family]| {
        let options = Options { families: families.to_vec(), seed: 9, ..Options::default() };
        fit(&load, &options).unwrap()
    };
    let like = learned(&[Family::Store]);
    assert!(like.error > 0.25 && like.notes.iter().any(|note| note.contains("no model fits well")), "{like:#?}");
    let table = learned(&[Family::Surface, Family::Store]);
    assert_eq!(table.family, "surface", "{:#?}", table.held_out);
    assert!(table.error < 0.15 && table.error < like.error / 2.0, "{} {}", table.error, like.error);
    assert_eq!(table.held_out.len(), 3);
    // The table is tried after the families.
    assert_eq!(table.tried.iter().map(|tried| tried.family).collect::<Vec<_>>(), ["store", "surface"]);
    let says_so = table.notes.iter().any(|note| note.contains("a table of the recorded latencies"));
    assert!(table.parameters.is_empty() && says_so, "{:?}", table.notes);
    assert!(text::fit(&table).starts_with("surface, from "), "{}", text::fit(&table));
    // It is written and read like any device, and a replay on it repeats the recording.
    let written = device_text(&table.device).unwrap();
    assert_eq!(read(&written, "device", &[]).ok().as_ref(), Some(&table.device), "{written}");
    let comparison = compare(&load, Under { device: &table.device, policy: None }, None, 3).unwrap();
    for off in &comparison.calibration {
        // Hardly any request found two to five others in flight. The table is linear there, so that the ends of bursts are slow:
        // the work of t1 takes some 2 s more than the recorded 40 s.
        assert!(off.iops.abs() < 0.1 && off.p50.abs() < 0.15, "{off:?}");
    }
}

#[test]
fn a_table_alone_can_be_chosen() {
    let options = Options { families: vec![Family::Surface], ..Options::default() };
    assert_eq!(fit(&recorded(), &options).map(|fit| fit.family), Ok("surface"));
}
