//! Devices of each family with known parameters, learned from recordings of them: a parameter that counts as known is right, and
//! those that no recording tells apart count as unknown.

use evenkeel_model::cached::CachedParams;
use evenkeel_model::disk::DiskParams;
use evenkeel_model::raid::Raid0Params;
use evenkeel_model::ssd::SsdParams;

use super::*;

/// The most requests of a run of the search.
const SAMPLE: usize = 8_000;
/// The largest error of a known parameter, as a share.
const RIGHT: f64 = 0.1;
/// Parameters with a larger error, which the manual names: `jitter` shows in the tails of latencies only.
const LESS_RIGHT: [(&str, f64); 2] = [("jitter", 0.2), ("write_overhead", 0.11)];

/// Clients that show much of a device: independent requests all the time, and bursts of closed loops in both halves.
struct Clients {
    /// Mean time between independent requests of 4 KiB, in microseconds; of 64 KiB it is four times as long.
    every_us: f64,
    /// Queue depth of the bursts.
    depth: u32,
    /// Length, in milliseconds.
    length_ms: u64,
}

impl Clients {
    fn drivers(&self) -> Vec<Driver> {
        let mut all = Vec::new();
        let sizes = [(4_096, 1.0), (65_536, 4.0)];
        let kinds = [Kind::Read, Kind::Write].into_iter();
        let all_kinds = kinds.flat_map(|kind| sizes.map(|(bytes, share)| (kind, bytes, share)));
        for (place, (kind, bytes, share)) in (0_u64..).zip(all_kinds) {
            all.push(Driver { kind, ..paced(0, bytes, self.every_us * share, self.length_ms) });
            for half in [0, self.length_ms / 2] {
                let from = half + self.length_ms / 10 * place + self.length_ms / 20;
                all.push(Driver { kind, ..closed(1, bytes, self.depth, from, from + self.length_ms / 20) });
            }
        }
        all
    }
}

/// The device with its searched parameters a quarter above or below their values in `device`; counts stay.
fn changed(family: Family, mut device: DeviceParams) -> DeviceParams {
    for (place, knob) in family.knobs().iter().enumerate() {
        if !matches!(knob.key, "dies" | "members") {
            let factor = if place % 2 == 0 { 1.25 } else { 0.8 };
            let value = (knob.get)(&device) * factor;
            (knob.set)(&mut device, value);
        }
    }
    assert_eq!(device.validate(), Ok(()), "{family:?}");
    device
}

/// Learns a device like `device` from a recording, and checks what counts as known.
fn learned(family: Family, device: DeviceParams, clients: &Clients) {
    let device = changed(family, device);
    let recorded = Load::new(drive(&device, &clients.drivers()), None).unwrap();
    let options = Options { families: vec![family], sample: SAMPLE, seed: 9 };
    let fit = fit(&recorded, &options).unwrap();
    let mut table = String::new();
    let mut wrong = Vec::new();
    for (knob, found) in family.knobs().iter().zip(&fit.parameters) {
        let off = found.value / (knob.get)(&device) - 1.0;
        table += &format!("{} {:+.1} %, known: {}\n", found.key, 100.0 * off, found.known);
        let bar = LESS_RIGHT.iter().find(|(key, _)| *key == found.key).map_or(RIGHT, |(_, bar)| *bar);
        if found.known && off.abs() > bar {
            wrong.push(found.key);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} of {family:?}, error {}\n{table}", fit.error);
    let knows_some = matches!(family, Family::Store | Family::Sata);
    assert!(!knows_some || fit.parameters.iter().any(|found| found.known), "none is known of {family:?}\n{table}");
    // A parameter that is not known is named.
    for unknown in fit.parameters.iter().filter(|found| !found.known) {
        assert!(fit.notes.iter().any(|note| note.contains(unknown.key)), "{}: {:?}", unknown.key, fit.notes);
    }
}

#[test]
fn the_parameters_of_a_store_are_learned() {
    let clients = Clients { every_us: 700.0, depth: 8, length_ms: 4_000 };
    learned(Family::Store, DeviceParams::Store(store()), &clients);
}

#[test]
fn the_parameters_of_a_client_drive_are_learned() {
    let clients = Clients { every_us: 500.0, depth: 16, length_ms: 2_000 };
    learned(Family::Sata, DeviceParams::Ssd(SsdParams::sata()), &clients);
}

#[test]
fn the_parameters_of_a_data_centre_drive_are_learned() {
    let clients = Clients { every_us: 400.0, depth: 16, length_ms: 1_000 };
    learned(Family::Nvme, DeviceParams::Ssd(SsdParams::nvme()), &clients);
}

#[test]
fn the_parameters_of_disks_are_learned() {
    let clients = Clients { every_us: 50_000.0, depth: 8, length_ms: 60_000 };
    learned(Family::Nearline, DeviceParams::Disk(DiskParams::nearline()), &clients);
    learned(Family::Cheetah9lp, DeviceParams::Disk(DiskParams::cheetah9lp()), &clients);
}

#[test]
fn the_parameters_of_an_array_are_learned() {
    let clients = Clients { every_us: 15_000.0, depth: 16, length_ms: 20_000 };
    learned(Family::Raid0, DeviceParams::Raid0(Raid0Params::default()), &clients);
}

#[test]
fn the_parameters_of_a_cached_device_are_learned() {
    let clients = Clients { every_us: 5_000.0, depth: 8, length_ms: 10_000 };
    learned(Family::Cached, DeviceParams::Cached(CachedParams::paper()), &clients);
}
