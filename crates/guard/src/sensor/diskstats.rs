//! `/proc/diskstats`: what each block device did, from the kernel's running totals.
//!
//! The format is that of the kernel's `Documentation/admin-guide/iostats.rst`. Totals of requests and sectors are
//! as wide as the kernel's `unsigned long` and wrap at 32 bits on 32-bit kernels; times are printed as 32 bits of
//! milliseconds on every kernel and wrap after 49.7 days of summed waiting. Times are cut to whole milliseconds when
//! printed, so the mean of a few requests is good to 1 ms / requests; over several intervals the cuts cancel.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::BufRead as _;

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
    walk(text, |fields| fields.line().map(&mut each))
}

/// Calls `take` with every line that is not blank; what is wrong with the first that it does not take is the error.
fn walk<'a>(text: &'a [u8], mut take: impl FnMut(&mut Fields<'a>) -> Option<()>) -> Result<(), Fault> {
    let mut rest = text;
    let mut index = 0;
    while !rest.is_empty() {
        index += 1;
        let mut fields = Fields { text: rest, at: 0 };
        fields.skip_blanks();
        if !matches!(rest.get(fields.at), None | Some(b'\n')) && take(&mut fields).is_none() {
            return Err(Fault::new(index, explain(rest)));
        }
        rest = &rest[fields.at..];
        // What else a newer kernel tells. Reading from memory does not fail.
        let _ = rest.skip_until(b'\n');
    }
    Ok(())
}

/// A place in the text. A host may have a hundred thousand devices and is asked ten times a second, so that each byte is
/// looked at once, and what is wrong with a line is found out only when something is.
struct Fields<'a> {
    text: &'a [u8],
    at: usize,
}

const POWERS_OF_TEN: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The number that the digits at a place make, of at most eight bytes, and how many they are. All at once: where a number
/// ends cannot be predicted, and a wrong guess at every field would cost more than all the rest.
fn leading_digits(text: &[u8], at: usize) -> (u64, usize) {
    let word = match text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let rest = text.get(at..).unwrap_or_default();
            let mut bytes = [b' '; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
    };
    let values = word ^ 0x3030_3030_3030_3030;
    // The top bit of a byte that is above 9. What is carried over only reaches bytes after the first of those.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    let digits = others.trailing_zeros() as usize / 8;
    if digits == 0 {
        return (0, 0);
    }
    // The first digit is in the lowest byte: zeros before it, then neighbours are put together, three times.
    let ones = values << (64 - 8 * digits);
    let pairs = ones.wrapping_mul(10 << 8 | 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(10_000 << 32 | 1) >> 32, digits)
}

const fn is_blank(byte: u8) -> bool {
    byte != b'\n' && byte.is_ascii_whitespace()
}

impl<'a> Fields<'a> {
    fn skip_blanks(&mut self) {
        while self.text.get(self.at).is_some_and(|&byte| is_blank(byte)) {
            self.at += 1;
        }
    }

    fn line(&mut self) -> Option<Line<'a>> {
        let (number, name) = self.identity()?;
        let (reads, writes, in_flight) = self.figures()?;
        Some(Line { number, name, reads, writes, in_flight })
    }

    fn identity(&mut self) -> Option<(DeviceNumber, &'a str)> {
        let number = DeviceNumber { major: self.device_part()?, minor: self.device_part()? };
        Some((number, std::str::from_utf8(self.field()?).ok()?))
    }

    /// What comes after the name.
    fn figures(&mut self) -> Option<(Totals, Totals, u64)> {
        let (reads, writes, in_flight) = (self.totals()?, self.totals()?, self.number()?);
        // Kernels before 5.5 could show a moment of -1 as a large number.
        let in_flight = if in_flight > i32::MAX as u64 { 0 } else { in_flight };
        Some((reads, writes, in_flight))
    }

    fn totals(&mut self) -> Option<Totals> {
        let completed = self.number()?;
        let _merged = self.number()?;
        Some(Totals { completed, sectors: self.number()?, time_ms: self.number()? })
    }

    /// Passes over the beginning of a line that is known; tells whether it is this one.
    fn skip_known(&mut self, known: &[u8]) -> bool {
        let same = self.text.starts_with(known) && self.text.get(known.len()) == Some(&b' ');
        if same {
            self.at = known.len();
        }
        same
    }

    fn device_part(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline]
    fn number(&mut self) -> Option<u64> {
        // Nearly always one blank, fewer than eight digits, and another blank.
        let begin = self.at + usize::from(self.text.get(self.at) == Some(&b' '));
        let (value, digits) = leading_digits(self.text, begin);
        if (1..8).contains(&digits) && matches!(self.text.get(begin + digits), Some(b' ' | b'\n')) {
            self.at = begin + digits;
            return Some(value);
        }
        self.any_number()
    }

    #[inline(never)]
    fn any_number(&mut self) -> Option<u64> {
        /// Numbers of so many digits fit into 64 bits, whatever they are.
        const SAFE_DIGITS: usize = 19;
        self.skip_blanks();
        let begin = self.at;
        let mut n = 0u64;
        loop {
            let (value, digits) = leading_digits(self.text, self.at);
            n = n.wrapping_mul(POWERS_OF_TEN[digits]).wrapping_add(value);
            self.at += digits;
            if digits < 8 {
                break;
            }
        }
        if self.text.get(self.at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            return None;
        }
        match self.at - begin {
            1..=SAFE_DIGITS => Some(n),
            _ => decimal(&self.text[begin..self.at]),
        }
    }

    /// What comes before the next blank; `None` at the end of the line.
    fn field(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let begin = self.at;
        while self.text.get(self.at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            self.at += 1;
        }
        (self.at > begin).then(|| &self.text[begin..self.at])
    }
}

/// A number of at least one digit that fits into 64 bits.
fn decimal(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok().filter(|field| !field.starts_with('+'))?.parse().ok()
}

/// What is wrong with the first line of `text`.
#[cold]
fn explain(text: &[u8]) -> String {
    const TOTALS: [&str; 4] = ["completed", "requests merged", "sectors", "time"];
    let mut fields = Fields { text, at: 0 };
    for what in ["the major number", "the minor number"] {
        match fields.field().map(|field| (decimal(field), field)) {
            None => return format!("ends before {what}"),
            Some((None, field)) => return format!("{what} is {:?}, not a number", String::from_utf8_lossy(field)),
            Some((Some(n), _)) if u32::try_from(n).is_err() => return format!("{what} is {n}, which is too large"),
            Some(_) => {}
        }
    }
    let Some(name) = fields.field() else { return "ends before the name".into() };
    let Ok(name) = std::str::from_utf8(name) else { return "the name is not UTF-8".into() };
    for kind in ["reads", "writes"] {
        for what in TOTALS {
            match fields.field().map(|field| (decimal(field), field)) {
                None => return format!("ends before {what} ({kind}) of {name}"),
                Some((None, field)) => {
                    let field = String::from_utf8_lossy(field);
                    return format!("{what} ({kind}) of {name} is {field:?}, not a number");
                }
                Some(_) => {}
            }
        }
    }
    format!("the number of requests in flight of {name} is missing or no number")
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
    /// Two devices together: what completed reads shapes the mean, the others say nothing about response times.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            interval: self.interval.max(other.interval),
            reads: self.reads.plus(other.reads),
            writes: self.writes.plus(other.writes),
            in_flight: self.in_flight.saturating_add(other.in_flight),
        }
    }

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

/// What the next reading needs of a device.
#[derive(Debug)]
struct Device {
    /// The beginning of its line: number and name. As long as that is the same, so is the device.
    head: Box<[u8]>,
    reads: Totals,
    writes: Totals,
    read_at: Instant,
    /// Line at the last reading that had it, and which reading that was.
    line: u32,
    seen: u32,
}

/// Who it is.
#[derive(Debug)]
struct Identity {
    number: DeviceNumber,
    name: Box<str>,
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
///
/// Devices are kept in the file's order, which hardly ever changes: then a line is found where it was the last time. What
/// others ask for lies apart from what only the next reading needs.
#[derive(Debug, Default)]
pub struct Tracker {
    devices: Vec<Device>,
    readings: Vec<Reading>,
    identities: Vec<Identity>,
    places: HashMap<DeviceNumber, u32, BuildHasherDefault<NumberHasher>>,
    reading: u32,
    arrangement: u64,
}

impl Tracker {
    /// Takes in what the file held at `now`. Allocates only for devices that are new.
    ///
    /// # Errors
    /// A line at fault; the devices of the lines before it have been taken in, no device is forgotten.
    pub fn observe(&mut self, now: Instant, text: &[u8]) -> Result<(), Fault> {
        self.reading = self.reading.wrapping_add(1);
        let known = self.devices.len();
        let mut in_order = true;
        let mut count = 0;
        let result = walk(text, |fields| {
            let place = count;
            count += 1;
            if let Some(device) = self.devices.get_mut(place)
                && fields.skip_known(&device.head)
            {
                let figures = fields.figures()?;
                (device.line, device.seen) = (place as u32, self.reading);
                self.readings[place] = device.observe(now, figures);
                return Some(());
            }
            in_order = false;
            self.displaced(now, place as u32, fields)
        });
        self.arrangement += u64::from(self.devices.len() != known);
        result?;
        if !in_order || count != self.devices.len() {
            self.arrange();
        }
        Ok(())
    }

    /// A line that is not where it was, or not as it was.
    fn displaced(&mut self, now: Instant, line: u32, fields: &mut Fields<'_>) -> Option<()> {
        let (number, name) = fields.identity()?;
        let head = &fields.text[..fields.at];
        let figures = fields.figures()?;
        let (reads, writes, _) = figures;
        let device = Device { head: head.into(), reads, writes, read_at: now, line, seen: self.reading };
        let place = *self.places.entry(number).or_insert(self.devices.len() as u32) as usize;
        let identity = Identity { number, name: name.into() };
        match self.devices.get_mut(place) {
            None => {
                self.devices.push(device);
                self.readings.push(Reading::First);
                self.identities.push(identity);
            }
            Some(known) if self.identities[place].name == identity.name => {
                self.readings[place] = known.observe(now, figures);
                *known = device;
            }
            // Another device under a number that was given back.
            Some(known) => {
                *known = device;
                (self.readings[place], self.identities[place]) = (Reading::First, identity);
            }
        }
        Some(())
    }

    /// Forgets devices that are gone, and brings the others into the file's order.
    fn arrange(&mut self) {
        let parts = self.devices.drain(..).zip(self.readings.drain(..)).zip(self.identities.drain(..));
        let mut all: Vec<_> = parts.collect();
        all.retain(|((device, _), _)| device.seen == self.reading);
        all.sort_unstable_by_key(|((device, _), _)| device.line);
        let both: (Vec<_>, Vec<_>) = all.into_iter().unzip();
        (self.devices, self.readings) = both.0.into_iter().unzip();
        self.identities = both.1;
        self.places.clear();
        self.places.extend(self.identities.iter().zip(0..).map(|(identity, place)| (identity.number, place)));
        self.arrangement += 1;
    }

    /// What a device did last; `None` if it is not there.
    pub fn get(&self, number: DeviceNumber) -> Option<&Reading> {
        self.place(number).and_then(|place| self.at(place))
    }

    /// Where a device is, until [`Self::arrangement`] changes.
    pub fn place(&self, number: DeviceNumber) -> Option<usize> {
        self.places.get(&number).map(|&place| place as usize)
    }

    /// What the device at a place did last.
    pub fn at(&self, place: usize) -> Option<&Reading> {
        self.readings.get(place)
    }

    /// Changes whenever places do.
    pub fn arrangement(&self) -> u64 {
        self.arrangement
    }

    /// All devices, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceNumber, &str, &Reading)> {
        let both = self.identities.iter().zip(&self.readings);
        both.map(|(identity, reading)| (identity.number, &*identity.name, reading))
    }
}

impl Device {
    fn observe(&mut self, now: Instant, (reads, writes, in_flight): (Totals, Totals, u64)) -> Reading {
        let interval = now.since(self.read_at);
        let flows = Flow::between(&self.reads, &reads).zip(Flow::between(&self.writes, &writes));
        (self.reads, self.writes, self.read_at) = (reads, writes, now);
        match flows {
            Some((reads, writes)) => Reading::Sample(Sample { interval, reads, writes, in_flight }),
            None => Reading::First,
        }
    }
}

#[cfg(test)]
#[path = "diskstats_tests.rs"]
mod tests;
