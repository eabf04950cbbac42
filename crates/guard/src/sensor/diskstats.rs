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
#[inline(always)]
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

/// A place in the text. A host may have a hundred thousand devices and is asked ten times a second, so that what is wrong
/// with a line is found out only when something is.
struct Fields<'a> {
    text: &'a [u8],
    at: usize,
}

/// Bytes whose kind is found out at once.
const BLOCK: usize = 64;

/// Which of these bytes are no digits, one bit each, the first lowest.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn no_digits(block: &[u8; BLOCK]) -> u64 {
    use std::arch::x86_64::{_mm_add_epi8, _mm_cmpgt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    /// Brings the digits to the lowest values of a signed byte, of which the last is that of 9.
    const SHIFT: i8 = i8::MIN.wrapping_sub(b'0' as i8);
    const NINE: i8 = i8::MIN + 9;
    let mut found = 0;
    for (n, bytes) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: every x86-64 processor has SSE2; the load may be unaligned and reads the 16 bytes of `bytes`.
        let bits = unsafe {
            let shifted = _mm_add_epi8(_mm_loadu_si128(bytes.as_ptr().cast()), _mm_set1_epi8(SHIFT));
            _mm_movemask_epi8(_mm_cmpgt_epi8(shifted, _mm_set1_epi8(NINE)))
        };
        found |= u64::from(bits as u32) << (16 * n);
    }
    found
}

/// The same by arithmetic, eight bytes at a time.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn no_digits_by_arithmetic(block: &[u8; BLOCK]) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut found = 0;
    for (n, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
        let values = u64::from_le_bytes(*bytes) ^ 0x3030_3030_3030_3030;
        // The top bit of a byte that is above 9.
        let above = ((values & !HIGH).wrapping_add(0x7676_7676_7676_7676) | values) & HIGH;
        // Each of these bits to its place in the top byte; no two sums meet.
        let bits = (above >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        found |= bits << (8 * n);
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
use no_digits_by_arithmetic as no_digits;

/// What is looked at with a block: numbers that end in it are read from where they begin in words of eight bytes.
const WINDOW: usize = BLOCK + 32;

/// Numbers as the kernel prints them: at most sixteen digits, and one blank after each.
///
/// Where each ends is known before the first is read, so that none waits for the one before it.
struct Numbers<'a> {
    window: &'a [u8; WINDOW],
    /// What in the block is no digit and ends a number that is still to be read.
    ends: u64,
    /// Where the next number begins.
    begin: usize,
}

impl<'a> Numbers<'a> {
    /// The numbers from the beginning of `text`; `None` near its end.
    #[inline(always)]
    fn of(text: &'a [u8]) -> Option<Self> {
        let window = text.first_chunk::<WINDOW>()?;
        Some(Self { window, ends: no_digits(window.first_chunk()?), begin: 0 })
    }

    /// The next number and what comes after it; anything if there is none in the block.
    #[inline(always)]
    fn next(&mut self) -> (u64, u8) {
        let end = self.ends.trailing_zeros() as usize;
        self.ends &= self.ends.wrapping_sub(1);
        let (begin, digits) = (self.begin, end.wrapping_sub(self.begin));
        self.begin = end + 1;
        // No number at all: nothing good comes after it.
        let after = if (1..=16).contains(&digits) { self.window[end] } else { 0 };
        let word =
            |at: usize| self.window.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; 8]);
        if digits <= 8 {
            return (eight_digits(word(begin), digits), after);
        }
        let more = (digits - 8).min(8);
        (eight_digits(word(begin), 8) * POWERS_OF_TEN[more] + eight_digits(word(begin + 8), more), after)
    }

    /// Totals, a blank after them; `None` if that is not what there is.
    #[inline(always)]
    fn totals(&mut self) -> Option<Totals> {
        let (completed, merged) = (self.next(), self.next());
        let (sectors, time_ms) = (self.next(), self.next());
        let blanks = completed.1 == b' ' && merged.1 == b' ' && sectors.1 == b' ' && time_ms.1 == b' ';
        blanks.then_some(Totals { completed: completed.0, sectors: sectors.0, time_ms: time_ms.0 })
    }
}

const POWERS_OF_TEN: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The number that this many digits make, 1 to 8, of which the first comes first.
#[inline(always)]
fn eight_digits(bytes: [u8; 8], digits: usize) -> u64 {
    // The first digit is in the lowest byte: zeros before it, then neighbours are put together, three times.
    let ones = (u64::from_le_bytes(bytes) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_shl(64 - 8 * digits as u32);
    let pairs = ones.wrapping_mul(10 << 8 | 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000 << 32 | 1) >> 32
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
        let Figures { reads, writes, in_flight } = self.figures()?;
        Some(Line { number, name, reads, writes, in_flight: in_flight.into() })
    }

    fn identity(&mut self) -> Option<(DeviceNumber, &'a str)> {
        let number = DeviceNumber { major: self.device_part()?, minor: self.device_part()? };
        Some((number, std::str::from_utf8(self.field()?).ok()?))
    }

    /// What comes after the name.
    #[inline(always)]
    fn figures(&mut self) -> Option<Figures> {
        let Some((length, figures)) = self.usual_figures() else { return self.any_figures() };
        self.at += length;
        Some(figures)
    }

    /// The figures and how long they are, if they look as usual.
    #[inline(always)]
    fn usual_figures(&self) -> Option<(usize, Figures)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let reads = numbers.totals()?;
        let mut length = 1;
        if numbers.ends.count_ones() < 5 {
            length += numbers.begin;
            numbers = Numbers::of(&rest[numbers.begin..])?;
        }
        let writes = numbers.totals()?;
        let (in_flight, b' ' | b'\n') = numbers.next() else { return None };
        Some((length + numbers.begin - 1, Figures::new(reads, writes, in_flight)))
    }

    /// The figures however they look.
    #[cold]
    fn any_figures(&mut self) -> Option<Figures> {
        let (reads, writes) = (self.totals()?, self.totals()?);
        Some(Figures::new(reads, writes, self.number()?))
    }

    fn totals(&mut self) -> Option<Totals> {
        let completed = self.number()?;
        let _merged = self.number()?;
        Some(Totals { completed, sectors: self.number()?, time_ms: self.number()? })
    }

    fn device_part(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    fn number(&mut self) -> Option<u64> {
        decimal(self.field()?)
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

/// What a line tells of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    reads: Totals,
    writes: Totals,
    in_flight: u32,
}

impl Figures {
    #[inline]
    fn new(reads: Totals, writes: Totals, in_flight: u64) -> Self {
        // Kernels before 5.5 could show a moment of -1 as a large number.
        Self { reads, writes, in_flight: i32::try_from(in_flight).map_or(0, i32::cast_unsigned) }
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
#[inline]
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
    #[inline]
    pub fn sample(self) -> Option<Sample> {
        match self {
            Self::First => None,
            Self::Sample(sample) => Some(sample),
        }
    }
}

/// The beginning of a device's line: number and name. As long as that is the same, so is the device.
#[derive(Debug)]
struct Head {
    /// As much of it as nearly all have; what is left is with the device's name.
    first: [u8; Self::SHORT],
    length: u32,
}

impl Head {
    const SHORT: usize = 24;

    /// The head, and what is left of it.
    fn new(text: &[u8]) -> (Self, Box<[u8]>) {
        let (short, left) = text.split_at(text.len().min(Self::SHORT));
        let mut first = [0; Self::SHORT];
        first[..short.len()].copy_from_slice(short);
        (Self { first, length: text.len() as u32 }, left.into())
    }

    /// Its length, if the text begins with it and a blank.
    #[inline(always)]
    fn begins<'a>(&self, text: &[u8], left: impl FnOnce() -> Option<&'a [u8]>) -> Option<usize> {
        let length = self.length as usize;
        let same = match text.first_chunk::<{ Self::SHORT }>() {
            Some(there) => {
                let (there, first) = (there.as_chunks::<8>().0, self.first.as_chunks::<8>().0);
                let mut differ = 0;
                for (n, (there, first)) in there.iter().zip(first).enumerate() {
                    let counts = length.saturating_sub(8 * n).min(8);
                    let counted = u64::MAX.checked_shr(64 - 8 * counts as u32).unwrap_or(0);
                    differ |= (u64::from_le_bytes(*there) ^ u64::from_le_bytes(*first)) & counted;
                }
                differ == 0
            }
            None => text.starts_with(&self.first[..length.min(Self::SHORT)]),
        };
        let long = length > Self::SHORT;
        let same = same && (!long || text.get(Self::SHORT..length).is_some_and(|there| left() == Some(there)));
        (same && text.get(length) == Some(&b' ')).then_some(length)
    }
}

/// What the next reading needs of a device.
#[derive(Debug)]
struct Device {
    head: Head,
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
    /// What is left of the head of its line.
    left: Box<[u8]>,
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
    moves: Vec<Move>,
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
                && let Some(length) = device.head.begins(fields.text, || Some(&self.identities.get(place)?.left))
            {
                fields.at = length;
                let figures = fields.figures()?;
                (device.line, device.seen) = (place as u32, self.reading);
                self.moves[place] = device.observe(now, figures);
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
        let (head, left) = Head::new(&fields.text[..fields.at]);
        let figures = fields.figures()?;
        let device =
            Device { head, reads: figures.reads, writes: figures.writes, read_at: now, line, seen: self.reading };
        let place = *self.places.entry(number).or_insert(self.devices.len() as u32) as usize;
        let identity = Identity { number, name: name.into(), left };
        match self.devices.get_mut(place) {
            None => {
                self.devices.push(device);
                self.moves.push(Move::FIRST);
                self.identities.push(identity);
            }
            Some(known) if self.identities[place].name == identity.name => {
                self.moves[place] = known.observe(now, figures);
                (*known, self.identities[place]) = (device, identity);
            }
            // Another device under a number that was given back.
            Some(known) => {
                *known = device;
                (self.moves[place], self.identities[place]) = (Move::FIRST, identity);
            }
        }
        Some(())
    }

    /// Forgets devices that are gone, and brings the others into the file's order.
    fn arrange(&mut self) {
        let parts = self.devices.drain(..).zip(self.moves.drain(..)).zip(self.identities.drain(..));
        let mut all: Vec<_> = parts.collect();
        all.retain(|((device, _), _)| device.seen == self.reading);
        all.sort_unstable_by_key(|((device, _), _)| device.line);
        let both: (Vec<_>, Vec<_>) = all.into_iter().unzip();
        (self.devices, self.moves) = both.0.into_iter().unzip();
        self.identities = both.1;
        self.places.clear();
        self.places.extend(self.identities.iter().zip(0..).map(|(identity, place)| (identity.number, place)));
        self.arrangement += 1;
    }

    /// What a device did last; `None` if it is not there.
    pub fn get(&self, number: DeviceNumber) -> Option<Reading> {
        self.place(number).and_then(|place| self.at(place))
    }

    /// Where a device is, until [`Self::arrangement`] changes.
    pub fn place(&self, number: DeviceNumber) -> Option<usize> {
        self.places.get(&number).map(|&place| place as usize)
    }

    /// What the device at a place did last.
    #[inline]
    pub fn at(&self, place: usize) -> Option<Reading> {
        self.moves.get(place).map(Move::reading)
    }

    /// Changes whenever places do.
    pub fn arrangement(&self) -> u64 {
        self.arrangement
    }

    /// All devices, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceNumber, &str, Reading)> {
        let both = self.identities.iter().zip(&self.moves);
        both.map(|(identity, moved)| (identity.number, &*identity.name, moved.reading()))
    }
}

/// By how much totals moved: no device does in an interval what would not fit (2 TB).
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    completed: u32,
    sectors: u32,
    time_ms: u32,
}

impl Moved {
    #[inline(always)]
    fn between(before: &Totals, now: &Totals) -> Option<Self> {
        let moved = |before, now| moved(before, now).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Some(Self {
            completed: moved(before.completed, now.completed)?,
            sectors: moved(before.sectors, now.sectors)?,
            time_ms: moved(before.time_ms, now.time_ms)?,
        })
    }

    #[inline]
    fn flow(&self) -> Flow {
        Flow {
            completed: self.completed.into(),
            bytes: u64::from(self.sectors) * SECTOR_BYTES,
            time: Duration::from_millis(self.time_ms.into()),
        }
    }
}

/// A reading in the least room, as all of them are gone through at every tick.
#[derive(Clone, Copy, Debug)]
struct Move {
    interval: Duration,
    reads: Moved,
    writes: Moved,
    in_flight: u32,
    /// Whether there is nothing to tell yet.
    first: bool,
}

impl Move {
    const ZERO: Moved = Moved { completed: 0, sectors: 0, time_ms: 0 };
    const FIRST: Self =
        Self { interval: Duration::ZERO, reads: Self::ZERO, writes: Self::ZERO, in_flight: 0, first: true };

    #[inline]
    fn reading(&self) -> Reading {
        if self.first {
            return Reading::First;
        }
        let (reads, writes) = (self.reads.flow(), self.writes.flow());
        Reading::Sample(Sample { interval: self.interval, reads, writes, in_flight: self.in_flight.into() })
    }
}

impl Device {
    #[inline(always)]
    fn observe(&mut self, now: Instant, figures: Figures) -> Move {
        let interval = now.since(self.read_at);
        let both = Moved::between(&self.reads, &figures.reads).zip(Moved::between(&self.writes, &figures.writes));
        (self.reads, self.writes, self.read_at) = (figures.reads, figures.writes, now);
        match both {
            Some((reads, writes)) => Move { interval, reads, writes, in_flight: figures.in_flight, first: false },
            None => Move::FIRST,
        }
    }
}

#[cfg(test)]
#[path = "diskstats_tests.rs"]
mod tests;
