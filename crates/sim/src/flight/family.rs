//! The families of device models that a recording is fitted with, and their parameters that are searched.

use evenkeel_control::Duration;
use evenkeel_model::cached::CachedParams;
use evenkeel_model::device::DeviceParams;
use evenkeel_model::disk::DiskParams;
use evenkeel_model::jitter::Jitter;
use evenkeel_model::raid::Raid0Params;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;
use evenkeel_model::surface::SurfaceParams;
use serde::Serialize;

use super::direct::Direct;

/// A family of devices: a model with the parameters from which a search starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// A batching store.
    Store,
    /// A client drive on a SATA link.
    Sata,
    /// A data centre drive on PCIe.
    Nvme,
    /// A disk of today's servers.
    Nearline,
    /// A fast disk with a queue depth of 1.
    Cheetah9lp,
    /// An array of disks.
    Raid0,
    /// A fast device that caches a slow one.
    Cached,
    /// A table of the recorded latencies, if no other family fits well; nothing of it is searched.
    Surface,
}

evenkeel_control::named!(Family: Store "store", Sata "sata", Nvme "nvme", Nearline "nearline", Cheetah9lp "cheetah9lp",
    Raid0 "raid0", Cached "cached", Surface "surface");

/// The requests that depend on a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// All.
    Any,
    /// Reads.
    Reads,
    /// Writes and flushes.
    Writes,
}

/// A parameter of a device as a number above 0: nanoseconds, bytes per second, or a count.
#[derive(Clone, Copy)]
pub(super) struct Knob {
    /// Key of the parameter in TOML.
    pub(super) key: &'static str,
    /// The requests that depend on it.
    pub(super) of: Use,
    /// The value.
    pub(super) get: fn(&DeviceParams) -> f64,
    /// Sets the value, rounded and within its bounds.
    pub(super) set: fn(&mut DeviceParams, f64),
}

/// A type of parameters as a number.
trait Number {
    fn number(&self) -> f64;
    fn set_number(&mut self, value: f64);
}

impl Number for Duration {
    fn number(&self) -> f64 {
        self.as_nanos() as f64
    }

    fn set_number(&mut self, value: f64) {
        *self = Self::from_nanos(value.clamp(10.0, 1e10) as u64);
    }
}

impl Number for u64 {
    fn number(&self) -> f64 {
        *self as f64
    }

    fn set_number(&mut self, value: f64) {
        *self = value.clamp(1.0, 1e12).round() as Self;
    }
}

impl Number for u32 {
    fn number(&self) -> f64 {
        f64::from(*self)
    }

    fn set_number(&mut self, value: f64) {
        *self = value.clamp(1.0, 1e6).round() as Self;
    }
}

impl Number for Jitter {
    fn number(&self) -> f64 {
        match self {
            Self::LogNormal { sigma } => *sigma,
            Self::None | Self::Uniform { .. } => 0.0,
        }
    }

    fn set_number(&mut self, value: f64) {
        *self = Self::LogNormal { sigma: value.clamp(0.005, 2.0) };
    }
}

macro_rules! knobs {
    ($family:ident: $($key:literal $of:ident $($field:ident).+;)*) => {
        &[$(Knob {
            key: $key,
            of: Use::$of,
            get: |device| match device {
                DeviceParams::$family(params) => params.$($field).+.number(),
                _ => 0.0,
            },
            set: |device, value| {
                if let DeviceParams::$family(params) = device {
                    params.$($field).+.set_number(value);
                }
            },
        }),*]
    };
}

const STORE: &[Knob] = knobs!(Store:
    "read_latency" Reads read_latency;
    "write_latency" Writes write_latency;
    "commit_latency" Writes commit_latency;
    "iops" Any iops;
    "bandwidth" Any bandwidth_bytes_per_s;
    "jitter" Any jitter;
);

const SSD: &[Knob] = knobs!(Ssd:
    "page_read_time" Reads page_read_time;
    "read_latency" Reads read_latency;
    "write_latency" Writes write_latency;
    "program_time" Writes program_time;
    "command_time" Any command_time;
    "link_bandwidth" Any link_bandwidth_bytes_per_s;
    "dies" Any geometry.dies;
    "jitter" Any jitter;
);

const CACHED: &[Knob] = knobs!(Cached:
    "fast_latency" Any fast_latency;
    "slow_latency" Reads slow_latency;
    "fast_bandwidth" Any fast_bytes_per_s;
    "slow_bandwidth" Any slow_bytes_per_s;
    "fast_size" Any fast_bytes;
);

/// The disk of a device: itself, or the member of an array.
fn disk(device: &DeviceParams) -> Option<&DiskParams> {
    match device {
        DeviceParams::Disk(disk) => Some(disk),
        DeviceParams::Raid0(array) => disk(&array.member),
        _ => None,
    }
}

fn disk_mut(device: &mut DeviceParams) -> Option<&mut DiskParams> {
    match device {
        DeviceParams::Disk(disk) => Some(disk),
        DeviceParams::Raid0(array) => disk_mut(&mut array.member),
        _ => None,
    }
}

/// The longest seek in nanoseconds; the others are in proportion.
fn seek(device: &DeviceParams) -> f64 {
    disk(device).and_then(|disk| disk.seek.last()).map_or(0.0, |(_, time)| time.number())
}

fn set_seek(device: &mut DeviceParams, value: f64) {
    let by = value / seek(device).max(1.0);
    if let Some(disk) = disk_mut(device) {
        disk.seek.iter_mut().for_each(|(_, time)| time.set_number(time.number() * by));
    }
}

const RPM: Knob = Knob {
    key: "rpm",
    of: Use::Any,
    get: |device| disk(device).map_or(0.0, |disk| disk.rpm.number()),
    set: |device, value| {
        if let Some(disk) = disk_mut(device) {
            disk.rpm.set_number(value.min(100_000.0));
        }
    },
};
const SEEK: Knob = Knob { key: "seek", of: Use::Any, get: seek, set: set_seek };

macro_rules! disk_knob {
    ($key:literal $of:ident $($field:ident).+) => {
        Knob {
            key: $key,
            of: Use::$of,
            get: |device| disk(device).map_or(0.0, |disk| disk.$($field).+.number()),
            set: |device, value| {
                if let Some(disk) = disk_mut(device) {
                    disk.$($field).+.set_number(value);
                }
            },
        }
    };
}

const BUS: Knob = disk_knob!("bus_bandwidth" Any bus_bandwidth_bytes_per_s);
const READ_OVERHEAD: Knob = disk_knob!("read_miss_overhead" Reads overhead.read_miss);
const WRITE_OVERHEAD: Knob = disk_knob!("write_overhead" Writes overhead.write);
const MEMBERS: Knob = Knob {
    key: "members",
    of: Use::Any,
    get: |device| match device {
        DeviceParams::Raid0(array) => array.members.number(),
        _ => 0.0,
    },
    set: |device, value| {
        if let DeviceParams::Raid0(array) = device {
            array.members.set_number(value.min(64.0));
        }
    },
};
const DISK: &[Knob] = &[RPM, SEEK, BUS, READ_OVERHEAD, WRITE_OVERHEAD];
const RAID0: &[Knob] = &[MEMBERS, RPM, SEEK, BUS, READ_OVERHEAD, WRITE_OVERHEAD];

impl Family {
    /// The parameters that are searched.
    pub(super) fn knobs(self) -> &'static [Knob] {
        match self {
            Self::Store => STORE,
            Self::Sata | Self::Nvme => SSD,
            Self::Nearline | Self::Cheetah9lp => DISK,
            Self::Raid0 => RAID0,
            Self::Cached => CACHED,
            Self::Surface => &[],
        }
    }

    /// The device from which a search starts.
    pub(super) fn start(self, direct: &Direct) -> DeviceParams {
        match self {
            Self::Store => DeviceParams::Store(store(direct)),
            Self::Sata => DeviceParams::Ssd(ssd(SsdParams::sata(), direct)),
            Self::Nvme => DeviceParams::Ssd(ssd(SsdParams::nvme(), direct)),
            Self::Nearline => DeviceParams::Disk(DiskParams::nearline()),
            Self::Cheetah9lp => DeviceParams::Disk(DiskParams::cheetah9lp()),
            Self::Raid0 => DeviceParams::Raid0(Raid0Params::default()),
            Self::Cached => DeviceParams::Cached(cached(direct)),
            Self::Surface => DeviceParams::Surface(SurfaceParams::default()),
        }
    }
}

fn ns(value: f64) -> Duration {
    Duration::from_nanos(value.clamp(100.0, 1e10) as u64)
}

fn rate(value: f64) -> u64 {
    value.clamp(1_000.0, 1e11) as u64
}

fn store(direct: &Direct) -> StoreParams {
    let alone = [direct.read.base_ns, direct.write.base_ns].into_iter().filter(|&ns| ns > 0.0);
    // A request has its turn on the idle device, too: where the load was light or of large requests, the highest rate seen says
    // little, and a turn is at most half of the idle latency.
    let turn = alone.fold(f64::INFINITY, f64::min) / 2.0;
    let transfer = (1e9 / (direct.most_iops * 1.25).max(1.0)).min(turn);
    let (read, write) = (direct.read.base_ns - transfer, direct.write.base_ns - transfer);
    StoreParams {
        bandwidth_bytes_per_s: rate(direct.bytes_per_s()),
        iops: ((1e9 / transfer) as u64).max(1),
        read_latency: ns(read),
        // A write waits for its own commit and for half of the one before.
        write_latency: ns(write * 0.25),
        commit_latency: ns(write * 0.5),
        jitter: Jitter::LogNormal { sigma: 0.15 },
        ..StoreParams::ssd()
    }
}

fn ssd(preset: SsdParams, direct: &Direct) -> SsdParams {
    let of_reads = preset.command_time.number() + preset.read_latency.number() + preset.page_read_time.number();
    let of_writes = preset.command_time.number() + preset.write_latency.number();
    let by = |found: f64, of: f64| if found > 0.0 { (found / of).clamp(0.05, 20.0) } else { 1.0 };
    let (reads, writes) = (by(direct.read.base_ns, of_reads), by(direct.write.base_ns, of_writes));
    SsdParams {
        command_time: ns((1e9 / (direct.most_iops * 1.25).max(1.0)).min(preset.command_time.number())),
        read_latency: ns(preset.read_latency.number() * reads),
        page_read_time: ns(preset.page_read_time.number() * reads),
        write_latency: ns(preset.write_latency.number() * writes),
        link_bandwidth_bytes_per_s: rate(direct.bytes_per_s()),
        ..preset
    }
}

fn cached(direct: &Direct) -> CachedParams {
    let slow = direct.read.base_ns.max(direct.write.base_ns);
    CachedParams {
        fast_bytes_per_s: rate(direct.bytes_per_s()).max(2_000),
        slow_bytes_per_s: rate(direct.bytes_per_s() / 2.0),
        fast_latency: ns(direct.read.base_ns.min(direct.write.base_ns).max(slow / 4.0)),
        slow_latency: ns(slow),
        ..CachedParams::paper()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_under_few_large_requests_is_no_slow_store() {
        // 2,000 requests a second fill the bandwidth; a read takes 180 µs alone, so that 500 µs cannot be its turn.
        let line = |base_ns| super::super::direct::Line { base_ns, byte_ns: 10.0 };
        let direct = Direct { read: line(180e3), write: line(1.3e6), most_iops: 2_000.0, ..Direct::default() };
        let start = store(&direct);
        assert!(start.iops >= 11_000 && start.read_latency >= Duration::from_micros(80), "{start:?}");
        let fast = store(&Direct { most_iops: 40_000.0, ..direct });
        assert_eq!(fast.iops, 50_000);
    }

    #[test]
    fn each_parameter_of_each_family_can_be_read_and_set() {
        for family in Family::ALL {
            let mut device = family.start(&Direct::default());
            assert_eq!(device.validate(), Ok(()), "{family:?}");
            for knob in family.knobs() {
                let before = (knob.get)(&device);
                (knob.set)(&mut device, before * 2.0);
                let after = (knob.get)(&device);
                assert!(before > 0.0 && (after / before - 2.0).abs() < 0.01, "{family:?}.{}: {after}", knob.key);
                (knob.set)(&mut device, before);
            }
        }
    }
}
