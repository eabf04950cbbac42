//! Latencies of single reads, measured at the block layer's tracepoints.
//!
//! ```text
//!  block_bio_queue ─────▶ program: a read of a watched device? ──▶ when it began, by device and last sector
//!  block_bio_complete ┐
//!  block_rq_complete ─┴─▶ program: when did it begin? ──▶ one more in its bucket, by group of devices
//! ```
//!
//! BPF programs count in the kernel; a tick reads one histogram for each pool whose target is for a percentile. Stacked
//! devices (multipath, LVM) complete bios; disks complete requests. A read is known by its device and by the sector after its
//! last one, which stays the same when parts of the read complete or are split off. Of reads that a disk serves as one
//! request only the last counts; two reads of the same place at the same time count as one.
//!
//! With [`ReadTimes::start_by_cgroup`] reads of chosen control groups count in a histogram of their own. The control group of
//! a read is that of the task that submits it. A read that `io.max` delays is submitted by a task of the kernel, and so counts
//! for no chosen group.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_control::Duration;
use rustix::io::Errno;

use super::diskstats::DeviceNumber;
pub use super::events::FOLDERS;
use super::events::{
    Attached, CLOCK, CURRENT_CGROUP, Format, MAP_DELETE, MAP_UPDATE, attach, end, formats, in_events, look_up,
};
use crate::bpf::{Assembler, Do, Kind, Label, Map, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Size, When};
use crate::error::Error;

/// Names of the tracepoints that are used, in tracefs's folder `events/block`.
pub const EVENTS: [&str; 3] = ["block_bio_queue", "block_bio_complete", "block_rq_complete"];
/// Folder of sysfs that has the block devices by number.
const DEVICES: &str = "/sys/dev/block";

/// Largest number of reads in flight that are measured at one time; if there are more, the oldest are not measured. Each
/// takes some 100 bytes of kernel memory.
const MAX_READS: usize = 32_768;
/// Largest number of devices whose reads can be timed. The map takes some 80 bytes of kernel memory for each that it has room
/// for.
const MAX_DEVICES: usize = 131_072;
/// Largest number of pairs of a control group and a group of devices whose reads count in a histogram of their own. The map
/// takes some 90 bytes of kernel memory for each that it has room for.
const MAX_CGROUPS: usize = 131_072;
/// Number of devices, and of such pairs, that there is room for at first: more than most hosts have, in 170 kB.
const LEAST_ROOM: usize = 1_024;

/// Binary logarithm of the number of buckets for each doubling of the latency: 16 buckets, so that each is at most 6.25 %
/// wide.
const SUB_BITS: i32 = 4;
/// Binary logarithm of the shortest latency in ns that is distinguished: all latencies below 2^12 ns (4 us) share the first
/// bucket.
const FLOOR_BITS: i32 = 12;
/// Binary logarithm of the longest latency in ns that is distinguished: all latencies from 2^38 ns (275 s) on share the last
/// bucket.
const CEIL_BITS: i32 = 38;
/// Number of buckets of a histogram of latencies.
pub const BUCKETS: usize = ((CEIL_BITS - FLOOR_BITS) << SUB_BITS) as usize + 2;

/// The latency in the middle of the bucket with this index.
pub fn middle(bucket: usize) -> Duration {
    let Some(above) = bucket.checked_sub(1) else { return Duration::from_nanos(1 << (FLOOR_BITS - 1)) };
    let exponent = FLOOR_BITS as usize + (above >> SUB_BITS);
    let width = 1u64 << (exponent - SUB_BITS as usize);
    let sub = above as u64 & ((1 << SUB_BITS) - 1);
    Duration::from_nanos((1 << exponent) + sub * width + width / 2)
}

/// Offsets, in bytes from the end of the programs' stack, of: the number of the group of devices (`NUMBER`); device and end
/// sector of the read (`READ`); time at which the read began, and its group (`BEGAN`); control group of the read, and the
/// number of the group of devices (`CGROUP`).
const NUMBER: i16 = -4;
const READ: i16 = -24;
const BEGAN: i16 = -40;
const CGROUP: i16 = -56;

/// Emits the beginning of a program, in which R6 is the event: the program puts the read's device and the sector after its
/// last one at `READ`, or jumps to `pass` if the event is not about a read.
fn identify(p: &mut Assembler, format: &Format, pass: Label) {
    p.set(R6, R1);
    p.load(Size::Byte, R0, R6, format.kind);
    p.jump_when(When::Unequal, R0, i32::from(b'R'), pass);
    p.load(Size::Word, R1, R6, format.device);
    p.store(Size::Word, R10, READ, R1);
    p.store(Size::Word, R10, READ + 4, 0);
    p.load(Size::Double, R1, R6, format.sector);
    p.load(Size::Word, R2, R6, format.sectors);
    p.alu(Do::Add, R1, R2);
    p.store(Size::Double, R10, READ + 8, R1);
}

/// Assembles the program for the event that a read is submitted: it keeps the time at which the read of a watched device
/// began. If the submitting task's control group is in `cgroups` for the device, the number there takes the place of the
/// device's own.
fn at_queue(format: &Format, devices: &Map, reads: &Map, cgroups: Option<&Map>) -> Assembler {
    let mut p = Assembler::default();
    let pass = p.label();
    identify(&mut p, format, pass);
    look_up(&mut p, devices, READ, pass);
    p.load(Size::Word, R1, R0, 0);
    p.store(Size::Double, R10, BEGAN + 8, R1);
    if cgroups.is_some() {
        p.store(Size::Word, R10, CGROUP + 8, R1);
        p.store(Size::Word, R10, CGROUP + 12, 0);
    }
    // It completes as one of the disk's, of which the device may be a part.
    p.load(Size::Word, R1, R0, 4);
    p.store(Size::Word, R10, READ, R1);
    if let Some(cgroups) = cgroups {
        let other = p.label();
        p.call(CURRENT_CGROUP);
        // The half that the folder's number has on all kernels.
        p.alu(Do::ShiftLeft, R0, 32);
        p.alu(Do::ShiftRight, R0, 32);
        p.store(Size::Double, R10, CGROUP, R0);
        look_up(&mut p, cgroups, CGROUP, other);
        p.load(Size::Word, R1, R0, 0);
        p.store(Size::Double, R10, BEGAN + 8, R1);
        p.place(other);
    }
    p.call(CLOCK);
    p.store(Size::Double, R10, BEGAN, R0);
    p.load_map(R1, reads);
    p.on_stack(R2, READ);
    p.on_stack(R3, BEGAN);
    // Whatever was there: a read that was never seen to complete.
    p.set(R4, 0);
    p.call(MAP_UPDATE);
    end(p, pass)
}

/// Assembles the program for the event that a read has completed. Registers: R7: time at which the read began; R8: its
/// latency; R9: the histogram of its group.
fn at_completion(format: &Format, reads: &Map, histograms: &Map) -> Assembler {
    let mut p = Assembler::default();
    let [pass, count, bounded] = std::array::from_fn(|_| p.label());
    identify(&mut p, format, pass);
    look_up(&mut p, reads, READ, pass);
    p.load(Size::Double, R7, R0, 0);
    p.load(Size::Double, R1, R0, 8);
    p.store(Size::Word, R10, NUMBER, R1);
    p.load_map(R1, reads);
    p.on_stack(R2, READ);
    p.call(MAP_DELETE);
    p.call(CLOCK);
    p.set(R8, R0);
    p.alu(Do::Subtract, R8, R7);
    look_up(&mut p, histograms, NUMBER, pass);
    p.set(R9, R0);

    // R2: the bucket.
    p.set(R2, 0);
    p.set(R1, R8);
    p.alu(Do::ShiftRight, R1, FLOOR_BITS);
    p.jump_when(When::Equal, R1, 0, count);
    // R2: the highest bit that is set, by halves.
    p.set(R3, R8);
    for bits in [32, 16, 8, 4, 2, 1] {
        let lower = p.label();
        p.set(R4, R3);
        p.alu(Do::ShiftRight, R4, bits);
        p.jump_when(When::Equal, R4, 0, lower);
        p.set(R3, R4);
        p.alu(Do::Add, R2, bits);
        p.place(lower);
    }
    p.set(R5, R2);
    p.alu(Do::Subtract, R5, SUB_BITS);
    p.alu(Do::ShiftRight, R8, R5);
    p.alu(Do::And, R8, (1 << SUB_BITS) - 1);
    p.alu(Do::Subtract, R2, FLOOR_BITS);
    p.alu(Do::ShiftLeft, R2, SUB_BITS);
    p.alu(Do::Add, R2, R8);
    p.alu(Do::Add, R2, 1);
    p.place(count);
    let last = BUCKETS as i32 - 1;
    let beyond = p.label();
    p.jump_when(When::Greater, R2, last, beyond);
    p.jump(bounded);
    p.place(beyond);
    p.set(R2, last);
    p.place(bounded);
    p.alu(Do::ShiftLeft, R2, 3);
    p.alu(Do::Add, R9, R2);
    p.set(R1, 1);
    p.add_atomically(R9, 0, R1);
    end(p, pass)
}

/// The formats of the kernel's events for reads that are submitted and reads that complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    queue: Format,
    completions: Vec<Format>,
}

impl Events {
    /// Reads the formats of the events in the first of `folders` that has them all.
    ///
    /// # Errors
    /// [`Error::Read`] where there is no tracefs or no such event, [`Error::Parse`] for an unknown format.
    pub fn read(folders: &[PathBuf]) -> Result<Self, Error> {
        let [queue, completions @ ..] = formats(folders, EVENTS)?;
        Ok(Self { queue, completions: completions.to_vec() })
    }
}

fn failed(cause: Errno) -> Error {
    Error::Programs { cause: cause.into() }
}

/// Number of elements of a map that is to have `wanted` of them: as many again fit in later.
fn room(wanted: usize, most: usize) -> usize {
    (2 * wanted.min(most)).next_power_of_two().clamp(LEAST_ROOM, most)
}

/// The program that sees submitted reads, with the maps that choose those to be timed. Maps of programs at tracepoints have a
/// fixed number of elements: for more of them the program is replaced by another one with larger maps.
#[derive(Debug)]
struct Submissions {
    devices: Map,
    /// Numbers of histograms by control group and group of devices; `None` if control groups are not told apart.
    cgroups: Option<Map>,
    /// Number of devices, and of pairs of a control group and a group of devices, that the maps have room for.
    room: [usize; 2],
    _attached: Attached,
}

impl Submissions {
    /// Attaches the program; it notes no read yet.
    fn start(format: &Format, reads: &Map, by_cgroup: bool, room: [usize; 2]) -> Result<Self, Errno> {
        let cgroups = by_cgroup.then(|| Map::new(Kind::Fixed, 16, 4, room[1])).transpose()?;
        let devices = Map::new(Kind::Fixed, 8, 8, room[0])?;
        let attached = attach(format, at_queue(format, &devices, reads, cgroups.as_ref()))?;
        Ok(Self { devices, cgroups, room, _attached: attached })
    }
}

/// Gives a device its group in the map of devices, or removes the device.
fn set_device(map: &Map, number: DeviceNumber, group: Option<u32>) -> Result<(), Error> {
    let key = [in_events(number), [0; 4]].concat();
    let set = match group {
        Some(group) => map.update(&key, &[group.to_ne_bytes(), in_events(disk_of(number))].concat()),
        None => map.remove(&key),
    };
    set.map_err(failed)
}

/// The part by which programs know a control group. Before Linux 5.5 the kernel's number of a group has a count in its upper half
/// that the inode number lacks; no two groups at a time have the same lower half.
const fn lower_half(id: u64) -> u64 {
    id & 0xffff_ffff
}

/// Gives a pair of a control group and a group of devices its histogram in the map of pairs, or removes the pair.
fn set_pair(map: &Map, (id, devices): (u64, u32), histogram: Option<u32>) -> Result<(), Error> {
    let key = [&lower_half(id).to_ne_bytes()[..], &devices.to_ne_bytes(), &[0; 4]].concat();
    let set = match histogram {
        Some(histogram) => map.update(&key, &histogram.to_ne_bytes()),
        None => map.remove(&key),
    };
    set.map_err(failed)
}

/// The attached BPF programs and their histograms of read latencies. The programs are detached when this value is dropped or
/// this process ends.
#[derive(Debug)]
pub struct ReadTimes {
    submissions: Submissions,
    /// Format of the events that the program of `submissions` sees.
    queue: Format,
    /// Reads in flight.
    reads: Map,
    histograms: Map,
    watched: BTreeMap<DeviceNumber, u32>,
    watched_cgroups: BTreeMap<(u64, u32), u32>,
    /// Content of each group's histogram at the previous reading.
    before: Vec<Vec<u64>>,
    buffer: Vec<u8>,
    _completions: Vec<Attached>,
}

/// The disk of which a device is a partition, or the device itself.
fn disk_of(number: DeviceNumber) -> DeviceNumber {
    let folder = Path::new(DEVICES).join(number.to_string());
    let disk = folder.canonicalize().ok().filter(|folder| folder.join("partition").exists());
    let disk = disk.and_then(|folder| std::fs::read_to_string(folder.parent()?.join("dev")).ok()?.parse().ok());
    disk.unwrap_or(number)
}

/// Brings the entries of a map in line with `wanted`: `set` gives a key its value, or removes it. `known` holds the entries of
/// the map, also after an error; the next call goes on with the others.
fn bring_in_line<K: Copy + Ord, E>(
    known: &mut BTreeMap<K, u32>,
    wanted: &BTreeMap<K, u32>,
    mut set: impl FnMut(K, Option<u32>) -> Result<(), E>,
) -> Result<(), E> {
    let gone: Vec<K> = known.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
    for key in gone {
        set(key, None)?;
        known.remove(&key);
    }
    for (key, value) in wanted {
        if known.get(key) != Some(value) {
            set(*key, Some(*value))?;
            known.insert(*key, *value);
        }
    }
    Ok(())
}

impl ReadTimes {
    /// Loads and attaches the programs, with a histogram for each of `groups` groups of devices; no device is watched yet.
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn start(events: &Events, groups: usize) -> Result<Self, Error> {
        Self::load(events, groups, false)
    }

    /// As [`Self::start`], with reads of control groups told apart ([`Self::watch_cgroups`]).
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn start_by_cgroup(events: &Events, groups: usize) -> Result<Self, Error> {
        Self::load(events, groups, true)
    }

    fn load(events: &Events, groups: usize, by_cgroup: bool) -> Result<Self, Error> {
        let start = || {
            let reads = Map::new(Kind::Recent, 16, 16, MAX_READS)?;
            let histograms = Map::new(Kind::Array, 4, 8 * BUCKETS, groups.max(1))?;
            // Completions first, so that no read is noted that is not seen to complete.
            let attached = |format: &Format| attach(format, at_completion(format, &reads, &histograms));
            let completions = events.completions.iter().map(attached).collect::<Result<Vec<Attached>, Errno>>()?;
            let submissions = Submissions::start(&events.queue, &reads, by_cgroup, [LEAST_ROOM; 2])?;
            let (before, buffer) = (vec![vec![0; BUCKETS]; groups], vec![0; 8 * BUCKETS]);
            Ok::<Self, Errno>(Self {
                submissions,
                queue: events.queue,
                reads,
                histograms,
                watched: BTreeMap::new(),
                watched_cgroups: BTreeMap::new(),
                before,
                buffer,
                _completions: completions,
            })
        };
        start().map_err(failed)
    }

    /// Makes room for so many devices, and pairs of a control group and a group of devices. No read goes uncounted: the smaller
    /// maps are in use until the larger ones have the same elements.
    fn make_room(&mut self, devices: usize, pairs: usize) -> Result<(), Error> {
        let [had, had_pairs] = self.submissions.room;
        if devices.min(MAX_DEVICES) <= had && pairs.min(MAX_CGROUPS) <= had_pairs {
            return Ok(());
        }
        let larger = |wanted: usize, had: usize, most| if wanted > had { room(wanted, most) } else { had };
        let room = [larger(devices, had, MAX_DEVICES), larger(pairs, had_pairs, MAX_CGROUPS)];
        let by_cgroup = self.submissions.cgroups.is_some();
        let new = Submissions::start(&self.queue, &self.reads, by_cgroup, room).map_err(failed)?;
        // Pairs first, so that no read counts in the histogram of its device alone.
        if let Some(map) = &new.cgroups {
            for (pair, histogram) in &self.watched_cgroups {
                set_pair(map, *pair, Some(*histogram))?;
            }
        }
        for (number, group) in &self.watched {
            set_device(&new.devices, *number, Some(*group))?;
        }
        self.submissions = new;
        Ok(())
    }

    /// From now on times the reads of exactly these devices; each counts in the histogram of the group whose number is given
    /// with it. If a device is named twice, its last group counts.
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn watch(&mut self, devices: impl IntoIterator<Item = (DeviceNumber, u32)>) -> Result<(), Error> {
        let wanted: BTreeMap<DeviceNumber, u32> = devices.into_iter().collect();
        let room = self.make_room(wanted.len(), 0);
        // Also without room, as far as there is some.
        let map = &self.submissions.devices;
        let set = bring_in_line(&mut self.watched, &wanted, |number, group| set_device(map, number, group));
        room.and(set)
    }

    /// From now on counts reads of exactly these control groups in histograms of their own. Each entry is a control group (the
    /// inode number of its folder), the number of a group of devices, and the number of the histogram for reads of the one on
    /// the other; entries beyond 131,072 are left out. Reads of groups below a control group do not count for it.
    /// Without [`Self::start_by_cgroup`] groups are not distinguished.
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn watch_cgroups(&mut self, cgroups: impl IntoIterator<Item = (u64, u32, u32)>) -> Result<(), Error> {
        if self.submissions.cgroups.is_none() {
            return Ok(());
        }
        let wanted = cgroups.into_iter().map(|(id, devices, histogram)| ((lower_half(id), devices), histogram));
        let wanted: BTreeMap<(u64, u32), u32> = wanted.take(MAX_CGROUPS).collect();
        let room = self.make_room(0, wanted.len());
        let Some(map) = &self.submissions.cgroups else { return Ok(()) };
        let set = bring_in_line(&mut self.watched_cgroups, &wanted, |pair, histogram| set_pair(map, pair, histogram));
        room.and(set)
    }

    /// Discards the group's reads that have been counted since the previous call of [`Self::read`]: the histogram goes to another
    /// control group.
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn discard(&mut self, group: u32) -> Result<(), Error> {
        self.read(group, |_, _| {})
    }

    /// Calls `each` with the index of a bucket (see [`middle`]) and the number of the group's reads that have been added to
    /// the bucket since the previous call for the group.
    ///
    /// # Errors
    /// [`Error::Programs`] with what the kernel refuses.
    pub fn read(&mut self, group: u32, mut each: impl FnMut(usize, u64)) -> Result<(), Error> {
        let Some(before) = self.before.get_mut(group as usize) else { return Ok(()) };
        let read = self.histograms.read(&group.to_ne_bytes(), &mut self.buffer);
        read.map_err(failed)?;
        let counts = self.buffer.chunks_exact(8).map(|bytes| u64::from_ne_bytes(std::array::from_fn(|n| bytes[n])));
        for (bucket, (before, now)) in before.iter_mut().zip(counts).enumerate() {
            let more = now.wrapping_sub(*before);
            *before = now;
            if more > 0 {
                each(bucket, more);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tracepoints_tests.rs"]
mod tests;
