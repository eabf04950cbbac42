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
        let (Figures { reads, writes, in_flight }, _) = self.figures()?;
        Some(Line { number, name, reads, writes, in_flight: in_flight.into() })
    }

    fn identity(&mut self) -> Option<(DeviceNumber, &'a str)> {
        let number = DeviceNumber { major: self.device_part()?, minor: self.device_part()? };
        Some((number, std::str::from_utf8(self.field()?).ok()?))
    }

    /// What comes after the name, and where the totals of reads end.
    #[inline(always)]
    fn figures(&mut self) -> Option<(Figures, usize)> {
        let Some((reads, length)) = self.usual_reads() else { return self.any_figures() };
        self.at += length;
        let end = self.at;
        let (writes, in_flight) = self.writes()?;
        Some((Figures { reads, writes, in_flight }, end))
    }

    /// The totals of reads and how long they are, if they look as usual.
    #[inline(always)]
    fn usual_reads(&self) -> Option<(Totals, usize)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let reads = numbers.totals()?;
        // The blank before them in place of the one after them.
        Some((reads, numbers.begin))
    }

    /// What comes after the totals of reads: those of writes, and what is inside.
    #[inline(always)]
    fn writes(&mut self) -> Option<(Totals, u32)> {
        let Some((writes, in_flight, length)) = self.usual_writes() else {
            return Some((self.totals()?, in_flight(self.number()?)));
        };
        self.at += length;
        Some((writes, in_flight))
    }

    #[inline(always)]
    fn usual_writes(&self) -> Option<(Totals, u32, usize)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let writes = numbers.totals()?;
        let (inside, b' ' | b'\n') = numbers.next() else { return None };
        Some((writes, in_flight(inside), numbers.begin))
    }

    /// The figures however they look.
    #[cold]
    fn any_figures(&mut self) -> Option<(Figures, usize)> {
        let reads = self.totals()?;
        let end = self.at;
        let (writes, in_flight) = self.writes()?;
        Some((Figures { reads, writes, in_flight }, end))
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

/// Kernels before 5.5 could show a moment of -1 as a large number.
#[inline]
fn in_flight(n: u64) -> u32 {
    i32::try_from(n).map_or(0, i32::cast_unsigned)
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
    moved_back(before, now)
}

/// The same for a total that went back.
#[cold]
fn moved_back(before: u64, now: u64) -> Option<u64> {
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

/// How a device's line began at the last reading: number, name, totals of reads. As long as number and name are the same, so
/// is the device; where the totals of reads are too, they need not be read again, which is so for most of those who write.
#[derive(Debug)]
struct Beginning {
    text: [u8; Self::LENGTH],
    /// Length of number and name; 0 if they are longer than what is kept, and then it is never the same.
    head: u8,
    /// The same with the totals of reads.
    reads: u8,
}

/// What of a line's beginning is as it was.
enum Same {
    /// Nothing that counts.
    Nothing,
    /// Number and name, which end here.
    Head(usize),
    /// The totals of reads as well, which end here.
    Reads(usize),
}

impl Beginning {
    const LENGTH: usize = 48;

    fn new(line: &[u8], head: usize, reads: usize) -> Self {
        let length = |length: usize| if length <= Self::LENGTH { length as u8 } else { 0 };
        let mut text = [0; Self::LENGTH];
        let kept = line.len().min(Self::LENGTH);
        text[..kept].copy_from_slice(&line[..kept]);
        Self { text, head: length(head), reads: length(reads) }
    }

    #[inline(always)]
    fn compare(&self, line: &[u8]) -> Same {
        // The blank after them must be there, too.
        let Some(there) = line.first_chunk::<{ Self::LENGTH + 1 }>() else { return Same::Nothing };
        let same = there.first_chunk().map_or(0, |there| leading_same(&self.text, there));
        let (head, reads) = (usize::from(self.head), usize::from(self.reads));
        let ends = |length: usize| length != 0 && same >= length && there[length] == b' ';
        match () {
            () if ends(reads) => Same::Reads(reads),
            () if ends(head) => Same::Head(head),
            () => Same::Nothing,
        }
    }
}

/// How many bytes from the first on are the same.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn leading_same(one: &[u8; Beginning::LENGTH], other: &[u8; Beginning::LENGTH]) -> usize {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
    let mut same = 0;
    for (n, (one, other)) in one.as_chunks::<16>().0.iter().zip(other.as_chunks::<16>().0).enumerate() {
        // SAFETY: every x86-64 processor has SSE2; the loads may be unaligned and read the 16 bytes of each.
        let bits = unsafe {
            let (one, other) = (_mm_loadu_si128(one.as_ptr().cast()), _mm_loadu_si128(other.as_ptr().cast()));
            _mm_movemask_epi8(_mm_cmpeq_epi8(one, other))
        };
        same |= u64::from(bits as u32) << (16 * n);
    }
    same.trailing_ones() as usize
}

/// The same eight bytes at a time.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn leading_same_by_words(one: &[u8; Beginning::LENGTH], other: &[u8; Beginning::LENGTH]) -> usize {
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    for (n, (one, other)) in words.enumerate() {
        let differ = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return 8 * n + differ.trailing_zeros() as usize / 8;
        }
    }
    Beginning::LENGTH
}

#[cfg(not(target_arch = "x86_64"))]
use leading_same_by_words as leading_same;

/// What the next reading needs of a device. All of them are gone through at every tick, so that room counts.
#[derive(Debug)]
struct Device {
    beginning: Beginning,
    /// At which reading it was seen last.
    seen: u32,
    reads: Kept,
    writes: Kept,
    /// Of reads and of writes; the kernel prints no more bits.
    times_ms: [u32; 2],
}

/// Totals without their time.
#[derive(Clone, Copy, Debug)]
struct Kept {
    completed: u64,
    sectors: u64,
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

/// Readings whose times are remembered: a line at fault keeps those after it from being read.
const REMEMBERED: usize = 8;

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
    /// Lines of the devices in a reading in which some are not where they were.
    lines: Vec<u32>,
    reading: u32,
    /// When the last readings were, by their number.
    times: [Instant; REMEMBERED],
    arrangement: u64,
}

impl Tracker {
    /// Takes in what the file held at `now`. Allocates only for devices that are new.
    ///
    /// # Errors
    /// A line at fault; the devices of the lines before it have been taken in, no device is forgotten.
    pub fn observe(&mut self, now: Instant, text: &[u8]) -> Result<(), Fault> {
        self.reading = self.reading.wrapping_add(1);
        self.times[self.reading as usize % REMEMBERED] = now;
        let last = self.reading.wrapping_sub(1);
        let interval = interval_us(self.since(now, last));
        let known = self.devices.len();
        let mut in_order = true;
        let mut count = 0;
        let result = walk(text, |fields| {
            let place = count;
            count += 1;
            if let Some(device) = self.devices.get_mut(place).filter(|device| device.seen == last) {
                let (reads, after_reads) = match device.beginning.compare(fields.text) {
                    Same::Reads(length) => {
                        fields.at = length;
                        (Some(Moved::ZERO), fields.writes()?)
                    }
                    Same::Head(length) => {
                        fields.at = length;
                        let (Figures { reads, writes, in_flight }, end) = fields.figures()?;
                        device.beginning = Beginning::new(fields.text, length, end);
                        (device.read(reads), (writes, in_flight))
                    }
                    Same::Nothing => {
                        self.displaced(now, place as u32, &mut in_order, fields)?;
                        return Some(());
                    }
                };
                let (writes, in_flight) = after_reads;
                device.seen = last.wrapping_add(1);
                self.moves[place] = Move::of(interval, reads.zip(device.wrote(writes)), in_flight);
                return Some(());
            }
            self.displaced(now, place as u32, &mut in_order, fields)
        });
        self.arrangement += u64::from(self.devices.len() != known);
        result?;
        if !in_order || count != self.devices.len() {
            if in_order {
                self.lines.clear();
                self.lines.extend(0..self.devices.len() as u32);
            }
            self.arrange();
        }
        Ok(())
    }

    /// Time since a reading; `None` if it was too long ago.
    fn since(&self, now: Instant, reading: u32) -> Option<Duration> {
        let age = self.reading.wrapping_sub(reading) as usize;
        (age < REMEMBERED).then(|| now.since(self.times[reading as usize % REMEMBERED]))
    }

    /// A line that is not where it was, or not as it was.
    fn displaced(&mut self, now: Instant, line: u32, in_order: &mut bool, fields: &mut Fields<'_>) -> Option<()> {
        if std::mem::take(in_order) {
            self.lines.clear();
            self.lines.extend(0..self.devices.len() as u32);
        }
        let (number, name) = fields.identity()?;
        let head = fields.at;
        let (Figures { reads, writes, in_flight }, end) = fields.figures()?;
        let device = Device::new(Beginning::new(fields.text, head, end), self.reading, reads, writes);
        let place = *self.places.entry(number).or_insert(self.devices.len() as u32) as usize;
        let identity = Identity { number, name: name.into() };
        let before = self.devices.get(place).map(|known| known.seen).and_then(|seen| self.since(now, seen));
        match self.devices.get_mut(place) {
            None => {
                self.devices.push(device);
                self.moves.push(Move::FIRST);
                self.identities.push(identity);
                self.lines.push(line);
                return Some(());
            }
            Some(known) if self.identities[place].name == identity.name => {
                let both = before.and_then(|_| known.read(reads).zip(known.wrote(writes)));
                self.moves[place] = Move::of(interval_us(before), both, in_flight);
                *known = device;
            }
            // Another device under a number that was given back.
            Some(known) => {
                *known = device;
                (self.moves[place], self.identities[place]) = (Move::FIRST, identity);
            }
        }
        self.lines[place] = line;
        Some(())
    }

    /// Forgets devices that are gone, and brings the others into the file's order.
    fn arrange(&mut self) {
        let parts = self.devices.drain(..).zip(self.moves.drain(..)).zip(self.identities.drain(..));
        let mut all: Vec<_> = parts.zip(self.lines.drain(..)).collect();
        all.retain(|(((device, _), _), _)| device.seen == self.reading);
        all.sort_unstable_by_key(|(_, line)| *line);
        let both: (Vec<_>, Vec<_>) = all.into_iter().map(|(part, _)| part).unzip();
        (self.devices, self.moves) = both.0.into_iter().unzip();
        self.identities = both.1;
        self.places.clear();
        self.places.extend(self.identities.iter().zip(0..).map(|(identity, place)| (identity.number, place)));
        self.arrangement += 1;
    }

    /// What a device did last; `None` if it is not there.
    pub fn get(&self, number: DeviceNumber) -> Option<Reading> {
        self.place(number).and_then(|place| self.at(place)).map(Move::reading)
    }

    /// Where a device is, until [`Self::arrangement`] changes.
    pub fn place(&self, number: DeviceNumber) -> Option<usize> {
        self.places.get(&number).map(|&place| place as usize)
    }

    /// What the device at a place did last.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<&Move> {
        self.moves.get(place)
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
    const ZERO: Self = Self { completed: 0, sectors: 0, time_ms: 0 };

    #[inline(always)]
    fn between(before: &mut Kept, time_ms: &mut u32, now: &Totals) -> Option<Self> {
        let moved = |before, now| moved(before, now).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let completed = moved(before.completed, now.completed);
        let sectors = moved(before.sectors, now.sectors);
        let time = moved_32(*time_ms, now.time_ms as u32);
        (before.completed, before.sectors, *time_ms) = (now.completed, now.sectors, now.time_ms as u32);
        Some(Self { completed: completed?, sectors: sectors?, time_ms: time? })
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

/// As [`moved`], for totals of 32 bits.
#[inline(always)]
fn moved_32(before: u32, now: u32) -> Option<u32> {
    let n = now.wrapping_sub(before);
    (now >= before || u64::from(n) < MAX_MOVE).then_some(n)
}

/// An interval in the unit of [`Move`]; 0 for none.
fn interval_us(interval: Option<Duration>) -> u32 {
    u32::try_from(interval.unwrap_or_default().as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// A reading in the least room, as all of them are gone through at every tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    interval_us: u32,
    reads: Moved,
    writes: Moved,
    /// [`Self::NOTHING`] if there is nothing to tell yet.
    in_flight: u32,
}

impl Move {
    /// More than are ever inside.
    const NOTHING: u32 = u32::MAX;
    const FIRST: Self = Self { interval_us: 0, reads: Moved::ZERO, writes: Moved::ZERO, in_flight: Self::NOTHING };

    #[inline(always)]
    fn of(interval_us: u32, both: Option<(Moved, Moved)>, in_flight: u32) -> Self {
        both.map_or(Self::FIRST, |(reads, writes)| Self { interval_us, reads, writes, in_flight })
    }

    /// Whether there is anything to tell.
    #[inline]
    pub(crate) fn is_sample(&self) -> bool {
        self.in_flight != Self::NOTHING
    }

    /// Between which two readings, in microseconds.
    #[inline]
    pub(crate) fn interval_us(&self) -> u32 {
        self.interval_us
    }

    /// Bytes read.
    #[inline]
    pub(crate) fn read_bytes(&self) -> u64 {
        u64::from(self.reads.sectors) * SECTOR_BYTES
    }

    /// Bytes written.
    #[inline]
    pub(crate) fn written_bytes(&self) -> u64 {
        u64::from(self.writes.sectors) * SECTOR_BYTES
    }

    #[inline]
    fn reading(&self) -> Reading {
        if !self.is_sample() {
            return Reading::First;
        }
        let (reads, writes) = (self.reads.flow(), self.writes.flow());
        let interval = Duration::from_micros(self.interval_us.into());
        Reading::Sample(Sample { interval, reads, writes, in_flight: self.in_flight.into() })
    }
}

/// Several devices together, as [`Sample::plus`] puts them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    samples: u32,
    interval_us: u32,
    /// Of reads and of writes: completed, sectors, time.
    reads: [u64; 3],
    writes: [u64; 3],
    in_flight: u64,
}

impl Sum {
    /// Takes in what a device did, if there is anything to tell.
    #[inline(always)]
    pub(crate) fn add(&mut self, device: &Move) {
        let add = |sum: &mut [u64; 3], moved: &Moved| {
            sum[0] += u64::from(moved.completed);
            sum[1] += u64::from(moved.sectors);
            sum[2] += u64::from(moved.time_ms);
        };
        self.samples += 1;
        self.interval_us = self.interval_us.max(device.interval_us);
        add(&mut self.reads, &device.reads);
        add(&mut self.writes, &device.writes);
        self.in_flight += u64::from(device.in_flight);
    }

    /// All of them; `None` if nobody had anything to tell.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let flow = |[completed, sectors, time_ms]: [u64; 3]| Flow {
            completed,
            bytes: sectors.saturating_mul(SECTOR_BYTES),
            time: Duration::from_millis(time_ms),
        };
        let interval = Duration::from_micros(self.interval_us.into());
        let (reads, writes, in_flight) = (flow(self.reads), flow(self.writes), self.in_flight);
        (self.samples > 0).then_some(Sample { interval, reads, writes, in_flight })
    }
}

impl Device {
    fn new(beginning: Beginning, seen: u32, reads: Totals, writes: Totals) -> Self {
        let kept = |totals: &Totals| Kept { completed: totals.completed, sectors: totals.sectors };
        let times_ms = [reads.time_ms as u32, writes.time_ms as u32];
        Self { beginning, seen, reads: kept(&reads), writes: kept(&writes), times_ms }
    }

    /// Takes new totals of reads; answers how they moved, unless they began anew.
    #[inline(always)]
    fn read(&mut self, now: Totals) -> Option<Moved> {
        Moved::between(&mut self.reads, &mut self.times_ms[0], &now)
    }

    /// The same of writes.
    #[inline(always)]
    fn wrote(&mut self, now: Totals) -> Option<Moved> {
        Moved::between(&mut self.writes, &mut self.times_ms[1], &now)
    }
}

#[cfg(test)]
#[path = "diskstats_tests.rs"]
mod tests;
