//! `/proc/diskstats`: what each block device did, from the kernel's running totals.
//!
//! The format is that of the kernel's `Documentation/admin-guide/iostats.rst`. Totals of requests and sectors are
//! as wide as the kernel's `unsigned long` and wrap at 32 bits on 32-bit kernels; times are printed as 32 bits of
//! milliseconds on every kernel and wrap after 49.7 days of summed waiting. Times are cut to whole milliseconds when
//! printed, so the mean of a few requests is good to 1 ms / requests; over several intervals the cuts cancel.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use evenkeel_control::{Duration, Instant};

use crate::error::Fault;

/// Sectors of this file are 512 bytes, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// A total that went back counts as wrapped if that makes it move less than this; as reset otherwise. No device
/// completes so many requests between two ticks.
const MAX_MOVE: u64 = 1 << 30;

/// Major and minor number: what the kernel knows a device by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device or partition in it.
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl std::str::FromStr for DeviceNumber {
    type Err = String;

    /// Reads `MAJOR:MINOR`, as in `/sys/block/NAME/dev`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.trim().split_once(':');
        let number = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = number.ok_or_else(|| format!("{:?} is no device number MAJOR:MINOR", text.trim()))?;
        Ok(Self { major, minor })
    }
}

/// Totals of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests completed.
    pub completed: u64,
    /// Sectors of 512 bytes moved.
    pub sectors: u64,
    /// Time that requests took, summed over them, in ms modulo 2^32.
    pub time_ms: u64,
}

/// One line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The device.
    pub number: DeviceNumber,
    /// Its name under `/sys/block` or below its disk there.
    pub name: &'a str,
    /// Reads since the device appeared.
    pub reads: Totals,
    /// Writes since the device appeared.
    pub writes: Totals,
    /// Requests inside the device.
    pub in_flight: u64,
}

/// Calls `each` with every line of the file.
///
/// # Errors
/// The first line that is none of the file's format; the lines before it have been handed out.
pub fn parse<'a>(text: &'a [u8], mut each: impl FnMut(Line<'a>)) -> Result<(), Fault> {
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        each(parse_line(line).map_err(|problem| Fault::new(index + 1, problem))?);
    }
    Ok(())
}

fn parse_line(line: &[u8]) -> Result<Line<'_>, String> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let mut number = |what: &str| {
        let field = fields.next().ok_or_else(|| format!("ends before {what}"))?;
        decimal(field).ok_or_else(|| format!("{what} is {:?}, not a number", String::from_utf8_lossy(field)))
    };
    let device_part = |n: u64, what: &str| u32::try_from(n).map_err(|_| format!("{what} is {n}, which is too large"));
    let major = device_part(number("the major number")?, "the major number")?;
    let minor = device_part(number("the minor number")?, "the minor number")?;
    let name = fields.next().ok_or("ends before the name")?;
    let name = std::str::from_utf8(name).map_err(|_| "the name is not UTF-8")?;
    let mut number = |what: &str| {
        let field = fields.next().ok_or_else(|| format!("ends before {what} of {name}"))?;
        decimal(field).ok_or_else(|| format!("{what} of {name} is {:?}, not a number", String::from_utf8_lossy(field)))
    };
    let mut totals = |kind: &str| {
        let completed = number(kind)?;
        number("requests merged")?;
        Ok::<_, String>(Totals { completed, sectors: number("sectors")?, time_ms: number("time")? })
    };
    let (reads, writes) = (totals("reads completed")?, totals("writes completed")?);
    let in_flight = number("requests in flight")?;
    // Kernels before 5.5 could show a moment of -1 as a large number.
    let in_flight = if in_flight > i32::MAX as u64 { 0 } else { in_flight };
    Ok(Line { number: DeviceNumber { major, minor }, name, reads, writes, in_flight })
}

fn decimal(field: &[u8]) -> Option<u64> {
    let digit = |n: u64, &byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    };
    field.iter().try_fold(0, digit)
}

/// How far a total moved: across a wrap of 32 or 64 bits if that is what happened, `None` if it was reset.
fn moved(before: u64, now: u64) -> Option<u64> {
    if now >= before {
        return Some(now - before);
    }
    let across_64 = now.wrapping_sub(before);
    let across_32 = u32::try_from(before).ok().map(|_| (now + (1 << 32)) - before);
    across_32.into_iter().chain([across_64]).find(|&n| n < MAX_MOVE)
}

/// What one direction did in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Requests completed.
    pub completed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time that these requests took, summed over them.
    pub time: Duration,
}

impl Flow {
    /// Mean response time in the block layer; `None` if nothing completed.
    pub fn mean_response_time(&self) -> Option<Duration> {
        self.time.as_nanos().checked_div(self.completed).map(Duration::from_nanos)
    }

    /// Mean bytes of a request; `None` if nothing completed.
    pub fn mean_size(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.bytes as f64 / self.completed as f64)
    }

    /// Bytes per second over `interval`; 0 if that is no time.
    pub fn bytes_per_s(&self, interval: Duration) -> f64 {
        if interval == Duration::ZERO { 0.0 } else { self.bytes as f64 / interval.as_secs_f64() }
    }

    /// Requests per second over `interval`; 0 if that is no time.
    pub fn iops(&self, interval: Duration) -> f64 {
        if interval == Duration::ZERO { 0.0 } else { self.completed as f64 / interval.as_secs_f64() }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            completed: self.completed.saturating_add(other.completed),
            bytes: self.bytes.saturating_add(other.bytes),
            time: self.time + other.time,
        }
    }

    fn between(before: &Totals, now: &Totals) -> Option<Self> {
        Some(Self {
            completed: moved(before.completed, now.completed)?,
            bytes: moved(before.sectors, now.sectors)?.saturating_mul(SECTOR_BYTES),
            time: Duration::from_millis(moved(before.time_ms, now.time_ms)?),
        })
    }
}

/// What a device did between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Between which two readings.
    pub interval: Duration,
    /// Reads.
    pub reads: Flow,
    /// Writes.
    pub writes: Flow,
    /// Requests inside at the second reading.
    pub in_flight: u64,
}

impl Sample {
    /// Whether requests are inside and none came out: not idle, but nothing to measure either.
    pub fn is_stuck(&self) -> bool {
        self.in_flight > 0 && self.reads.completed == 0 && self.writes.completed == 0
    }
}

/// What is known of a device after a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It was not there before, or its totals started anew: nothing to tell before the next reading.
    First,
    /// What it did since the last reading.
    Sample(Sample),
}

impl Reading {
    /// The sample, if there is one.
    pub fn sample(&self) -> Option<&Sample> {
        match self {
            Self::First => None,
            Self::Sample(sample) => Some(sample),
        }
    }
}

#[derive(Debug)]
struct Device {
    number: DeviceNumber,
    name: String,
    reads: Totals,
    writes: Totals,
    read_at: Instant,
    seen: u64,
    reading: Reading,
}

/// Device numbers are few and not chosen by an adversary.
#[derive(Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0.rotate_left(20) ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Differences between readings of the file, for every device.
#[derive(Debug, Default)]
pub struct Tracker {
    devices: HashMap<DeviceNumber, Device, BuildHasherDefault<NumberHasher>>,
    reading: u64,
}

impl Tracker {
    /// Takes in what the file held at `now`. Allocates only for devices that are new.
    ///
    /// # Errors
    /// A line at fault; the devices of the lines before it have been taken in, no device is forgotten.
    pub fn observe(&mut self, now: Instant, text: &[u8]) -> Result<(), Fault> {
        self.reading += 1;
        let reading = self.reading;
        let devices = &mut self.devices;
        parse(text, |line| match devices.get_mut(&line.number) {
            Some(device) => device.observe(now, reading, &line),
            None => drop(devices.insert(line.number, Device::new(now, reading, &line))),
        })?;
        self.devices.retain(|_, device| device.seen == reading);
        Ok(())
    }

    /// What a device did last; `None` if it is not there.
    pub fn get(&self, number: DeviceNumber) -> Option<&Reading> {
        self.devices.get(&number).map(|device| &device.reading)
    }

    /// All devices, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceNumber, &str, &Reading)> {
        self.devices.values().map(|device| (device.number, device.name.as_str(), &device.reading))
    }
}

impl Device {
    fn new(now: Instant, seen: u64, line: &Line<'_>) -> Self {
        Self {
            number: line.number,
            name: line.name.to_owned(),
            reads: line.reads,
            writes: line.writes,
            read_at: now,
            seen,
            reading: Reading::First,
        }
    }

    fn observe(&mut self, now: Instant, seen: u64, line: &Line<'_>) {
        if self.name != line.name {
            // Another device under a number that was given back.
            *self = Self::new(now, seen, line);
            return;
        }
        let flows = Flow::between(&self.reads, &line.reads).zip(Flow::between(&self.writes, &line.writes));
        let interval = now.since(self.read_at);
        self.reading = match flows {
            Some((reads, writes)) => Reading::Sample(Sample { interval, reads, writes, in_flight: line.in_flight }),
            None => Reading::First,
        };
        (self.reads, self.writes, self.read_at, self.seen) = (line.reads, line.writes, now, seen);
    }
}

/// Reads of several devices together: those that completed any count, the others say nothing about response times.
pub fn together<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Sample {
    samples.into_iter().fold(Sample::default(), |sum, sample| Sample {
        interval: sum.interval.max(sample.interval),
        reads: sum.reads.plus(sample.reads),
        writes: sum.writes.plus(sample.writes),
        in_flight: sum.in_flight.saturating_add(sample.in_flight),
    })
}

#[cfg(test)]
#[path = "diskstats_tests.rs"]
mod tests;
