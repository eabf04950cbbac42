//! Keeps every device's totals from one reading of `/proc/diskstats` to the next.

use std::collections::HashMap;

use evenkeel_control::{Duration, Instant};

use super::DeviceNumber;
use super::digits::leading_same;
use super::flow::{Kept, Move, Moved, Reading, interval_us};
use super::text::{Fields, Figures, Totals, walk};
use crate::error::Fault;

/// The beginning of a device's line at the previous reading: number, name, totals of reads. If number and name agree, the
/// line is about the same device. If the totals of reads agree too, as for most devices that are only written, they need not
/// be parsed again.
#[derive(Debug)]
struct Beginning {
    text: [u8; Self::LENGTH],
    /// Length of number and name in bytes; 0 if they are longer than the text that is kept, which then never matches.
    head: u8,
    /// Length of number, name and totals of reads in bytes; 0 if they are longer than the text that is kept.
    reads: u8,
}

/// The part of a line's beginning that agrees with the previous reading.
enum Same {
    /// Number or name differ.
    Nothing,
    /// Number and name agree; they end at this offset in bytes.
    Head(usize),
    /// Number, name and totals of reads agree; they end at this offset in bytes.
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

/// The facts about a device that the next reading needs; kept small, because each reading goes through all devices.
#[derive(Debug)]
struct Device {
    beginning: Beginning,
    /// Number of the latest reading that listed the device.
    seen: u32,
    reads: Kept,
    writes: Kept,
    /// Total times of reads and of writes in ms, modulo 2^32 as the kernel prints them.
    times_ms: [u32; 2],
}

impl Device {
    fn new(beginning: Beginning, seen: u32, reads: Totals, writes: Totals) -> Self {
        let kept = |totals: &Totals| Kept { completed: totals.completed, sectors: totals.sectors };
        let times_ms = [reads.time_ms as u32, writes.time_ms as u32];
        Self { beginning, seen, reads: kept(&reads), writes: kept(&writes), times_ms }
    }

    /// Takes over new totals of reads; returns their growth since the previous ones, `None` if they were reset.
    #[inline(always)]
    fn read(&mut self, now: Totals) -> Option<Moved> {
        Moved::between(&mut self.reads, &mut self.times_ms[0], &now)
    }

    /// Takes over new totals of writes; returns their growth since the previous ones, `None` if they were reset.
    #[inline(always)]
    fn wrote(&mut self, now: Totals) -> Option<Moved> {
        Moved::between(&mut self.writes, &mut self.times_ms[1], &now)
    }
}

/// Number and name of a device.
#[derive(Debug)]
struct Identity {
    number: DeviceNumber,
    name: Box<str>,
}

/// The device number that all disks share that are hidden from /dev, such as paths of the kernel's own NVMe multipath.
const HIDDEN: DeviceNumber = DeviceNumber { major: 0, minor: 0 };

/// Number of readings whose times are kept. A reading with a faulty line misses the devices after that line, so that a
/// device's previous reading may be some readings old.
const REMEMBERED: usize = 8;

/// The figures of every device between the latest two readings of `/proc/diskstats`.
///
/// Devices are kept in the file's order, which hardly ever changes: as a rule a line is at the same place as in the previous
/// reading. Data for callers is stored separately from data that only the next reading needs.
#[derive(Debug, Default)]
pub struct Tracker {
    devices: Vec<Device>,
    moves: Vec<Move>,
    identities: Vec<Identity>,
    /// Indices of devices by their numbers; `hidden` has the indices of hidden devices by their names.
    places: HashMap<DeviceNumber, u32>,
    hidden: HashMap<Box<str>, u32>,
    /// For a reading in which some devices have changed their places: the line number of each device, from 0.
    lines: Vec<u32>,
    reading: u32,
    /// Times of the latest [`REMEMBERED`] readings, each at the index of its number modulo `REMEMBERED`.
    times: [Instant; REMEMBERED],
    arrangement: u64,
}

impl Tracker {
    /// Takes in the content of `/proc/diskstats`, read at `now`. Allocates memory only for new devices.
    ///
    /// # Errors
    /// The fault of the first malformed line. The devices of the lines before it have been taken in, and no device is
    /// forgotten.
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

    /// Time from the reading with this number to `now`; `None` if that reading is too old for its time to be kept.
    fn since(&self, now: Instant, reading: u32) -> Option<Duration> {
        let age = self.reading.wrapping_sub(reading) as usize;
        (age < REMEMBERED).then(|| now.since(self.times[reading as usize % REMEMBERED]))
    }

    /// Takes in a line whose place in the file or whose beginning differs from the previous reading.
    fn displaced(&mut self, now: Instant, line: u32, in_order: &mut bool, fields: &mut Fields<'_>) -> Option<()> {
        if std::mem::take(in_order) {
            self.lines.clear();
            self.lines.extend(0..self.devices.len() as u32);
        }
        let (number, name) = fields.identity()?;
        let head = fields.at;
        let (Figures { reads, writes, in_flight }, end) = fields.figures()?;
        let device = Device::new(Beginning::new(fields.text, head, end), self.reading, reads, writes);
        let next = self.devices.len() as u32;
        let place = match number {
            HIDDEN => *self.hidden.entry(name.into()).or_insert(next),
            number => *self.places.entry(number).or_insert(next),
        } as usize;
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

    /// Forgets devices that are gone, and sorts the other devices in the file's order.
    fn arrange(&mut self) {
        let parts = self.devices.drain(..).zip(self.moves.drain(..)).zip(self.identities.drain(..));
        let mut all: Vec<_> = parts.zip(self.lines.drain(..)).collect();
        all.retain(|(((device, _), _), _)| device.seen == self.reading);
        all.sort_unstable_by_key(|(_, line)| *line);
        let both: (Vec<_>, Vec<_>) = all.into_iter().map(|(part, _)| part).unzip();
        (self.devices, self.moves) = both.0.into_iter().unzip();
        self.identities = both.1;
        self.places.clear();
        self.hidden.clear();
        for (identity, place) in self.identities.iter().zip(0..) {
            match identity.number {
                HIDDEN => self.hidden.insert(identity.name.clone(), place),
                number => self.places.insert(number, place),
            };
        }
        self.arrangement += 1;
    }

    /// A device's figures at the latest reading; `None` if there is no device of this number.
    pub fn get(&self, number: DeviceNumber) -> Option<Reading> {
        self.place(number).and_then(|place| self.reading(place))
    }

    /// As [`Self::get`], for the device at the index `place`.
    pub fn reading(&self, place: usize) -> Option<Reading> {
        self.at(place).map(Move::reading)
    }

    /// Index of the device of this name, which may be hidden from /dev. The index is valid until [`Self::arrangement`]
    /// changes. O(devices).
    pub fn named(&self, name: &str) -> Option<usize> {
        self.identities.iter().position(|identity| *identity.name == *name)
    }

    /// Index of the device with this number, unless it is hidden from /dev. The index is valid until [`Self::arrangement`]
    /// changes.
    pub fn place(&self, number: DeviceNumber) -> Option<usize> {
        self.places.get(&number).map(|&place| place as usize)
    }

    /// The compact figures of the device at the index `place`.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<&Move> {
        self.moves.get(place)
    }

    /// A number that changes whenever indices of devices change.
    pub fn arrangement(&self) -> u64 {
        self.arrangement
    }

    /// Number, name and figures of all devices, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceNumber, &str, Reading)> {
        let both = self.identities.iter().zip(&self.moves);
        both.map(|(identity, moved)| (identity.number, &*identity.name, moved.reading()))
    }
}
