//! BPF programs that follow the requests of chosen devices from their submission to their completion.
//!
//! ```text
//!  block_bio_queue ─────▶ program: of a chosen device? ──▶ in flight: its figures, by disk, operation and end sector
//!  block_rq_issue ──────▶ program: time of issue of each bio of the request
//!  block_bio_complete ┐
//!  block_rq_complete ─┴─▶ program: each bio of the request ──▶ ring
//! ```
//!
//! A bio is known by its disk, its operation and the sector after its last one, which stays the same when parts of the bio
//! complete or are split off. A disk may serve several bios as one request: they lie one behind the other, so that the first
//! sector of each is the end sector of the one before. Of two bios with the same operation and end sector at the same time,
//! such as flushes, the later one alone is followed.

use super::events::{CLOCK, CURRENT_CGROUP, Format, MAP_DELETE, MAP_UPDATE, RING_OUTPUT, end, look_up};
use crate::bpf::{Assembler, Do, Label, Map, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Size, When};

/// Length of a disk's number, the value of a chosen device in the map `devices`; the device's number is the key.
pub(super) const DEVICE_BYTES: usize = 4;
/// Length of a bio's key in the map `in_flight`: disk, operation, end sector.
pub(super) const KEY_BYTES: usize = 16;

/// Offsets, in bytes, of the figures of a bio in flight, ...
pub(super) const ARRIVAL: i16 = 0;
pub(super) const ISSUE: i16 = 8;
pub(super) const CGROUP: i16 = 16;
pub(super) const SECTOR: i16 = 24;
pub(super) const SECTORS: i16 = 32;
pub(super) const DEVICE: i16 = 36;
pub(super) const LETTERS: i16 = 40;
/// ... and their length.
pub(super) const BIO_BYTES: i16 = 48;
/// Offsets of the figures that a completed bio has in the ring behind those, ...
pub(super) const COMPLETION: i16 = 48;
pub(super) const DISK: i16 = 56;
pub(super) const ERROR: i16 = 60;
/// ... and the length of all.
pub(super) const RECORD_BYTES: i16 = 64;
/// Number of letters of an operation and its flags that are kept.
pub(super) const MAX_LETTERS: i16 = 8;

/// Indices in the map `counts`: bios that were submitted, and completed bios for which the ring had no room.
pub(super) const ARRIVALS: i32 = 0;
pub(super) const LOST: i32 = 1;

/// Largest number of bios of one request that are followed. Requests of most disks have at most 1280 KiB, and so 320 bios of
/// 4 KiB; the kernel merges few that are that small.
const MAX_BIOS: i32 = 256;
/// Flag of a record for which no reader is to be woken: the reader polls.
const NO_WAKEUP: i32 = 1;

/// Offsets, in bytes from the end of the programs' stack, of: the bio's key (`KEY`), its figures at its submission (`BIO`) or
/// completion (`RECORD`), and the index of a count (`NUMBER`).
const KEY: i16 = -16;
const BIO: i16 = KEY - BIO_BYTES;
const RECORD: i16 = KEY - RECORD_BYTES;
const NUMBER: i16 = RECORD - 8;

/// The maps that the programs share.
pub(super) struct Maps<'a> {
    /// The disk of each chosen device, by the device's number.
    pub(super) devices: &'a Map,
    /// Figures of bios in flight.
    pub(super) in_flight: &'a Map,
    /// Two counts.
    pub(super) counts: &'a Map,
    /// The ring of completed bios.
    pub(super) ring: &'a Map,
}

/// Emits the beginning of a program: the bio's or request's key at `KEY`, in R6 the event, in R8 the number of sectors, in R9
/// the end sector. If the event is of no chosen device, the program jumps to `pass`.
///
/// The letters of an operation begin with F if it asks for a flush before. A flush for itself is a write of no sectors at
/// sector 0; its request has lost that F. A flush that the kernel makes of several has the letters FF, and is passed over.
fn identify(p: &mut Assembler, format: &Format, devices: &Map, pass: Label) {
    p.set(R6, R1);
    p.load(Size::Word, R1, R6, format.device);
    p.store(Size::Word, R10, KEY, R1);
    look_up(p, devices, KEY, pass);
    p.load(Size::Word, R1, R0, 0);
    p.store(Size::Word, R10, KEY, R1);
    p.load(Size::Word, R8, R6, format.sectors);
    p.load(Size::Double, R9, R6, format.sector);
    p.alu(Do::Add, R9, R8);
    p.store(Size::Double, R10, KEY + 8, R9);
    let [plain, found] = std::array::from_fn(|_| p.label());
    p.load(Size::Byte, R7, R6, format.kind);
    p.jump_when(When::Unequal, R7, i32::from(b'F'), plain);
    p.load(Size::Byte, R7, R6, format.kind + 1);
    p.jump_when(When::Unequal, R7, i32::from(b'W'), pass);
    p.place(plain);
    p.jump_when(When::Unequal, R7, i32::from(b'W'), found);
    p.jump_when(When::Unequal, R9, 0, found);
    p.set(R7, i32::from(b'F'));
    p.place(found);
    p.store(Size::Word, R10, KEY + 4, R7);
}

/// Emits the end of a program that walks over the bios of a request, from the last to the first, with the request's first sector
/// in R7. For each that is in flight `each` is emitted once, with the bio's key at `KEY` and the address of its figures in R0; it
/// leaves the bio's first sector in R1, and R7 and R9 as they are.
fn each_bio(mut p: Assembler, in_flight: &Map, pass: Label, each: impl FnOnce(&mut Assembler)) -> Assembler {
    let again = p.label();
    p.set(R9, MAX_BIOS);
    p.place(again);
    look_up(&mut p, in_flight, KEY, pass);
    each(&mut p);
    p.jump_when(When::AtLeast, R7, R1, pass);
    p.store(Size::Double, R10, KEY + 8, R1);
    p.alu(Do::Subtract, R9, 1);
    p.jump_when(When::Unequal, R9, 0, again);
    end(p, pass)
}

/// Assembles the program for the event that a bio is submitted: it keeps the figures of a bio of a chosen device.
pub(super) fn at_queue(format: &Format, maps: &Maps<'_>) -> Assembler {
    let mut p = Assembler::default();
    let pass = p.label();
    identify(&mut p, format, maps.devices, pass);
    p.alu(Do::Subtract, R9, R8);
    p.store(Size::Double, R10, BIO + SECTOR, R9);
    p.store(Size::Word, R10, BIO + SECTORS, R8);
    p.load(Size::Word, R1, R6, format.device);
    p.store(Size::Word, R10, BIO + DEVICE, R1);
    for letter in 0..MAX_LETTERS {
        p.load(Size::Byte, R1, R6, format.kind + letter);
        p.store(Size::Byte, R10, BIO + LETTERS + letter, R1);
    }
    p.store(Size::Double, R10, BIO + ISSUE, 0);
    p.call(CURRENT_CGROUP);
    p.store(Size::Double, R10, BIO + CGROUP, R0);
    p.call(CLOCK);
    p.store(Size::Double, R10, BIO + ARRIVAL, R0);
    p.load_map(R1, maps.in_flight);
    p.on_stack(R2, KEY);
    p.on_stack(R3, BIO);
    // In place of a bio that was never seen to complete.
    p.set(R4, 0);
    p.call(MAP_UPDATE);
    p.store(Size::Word, R10, NUMBER, ARRIVALS);
    look_up(&mut p, maps.counts, NUMBER, pass);
    p.set(R1, 1);
    p.add_atomically(R0, 0, R1);
    end(p, pass)
}

/// Assembles the program for the event that a request is issued to its disk. R8: the time.
pub(super) fn at_issue(format: &Format, maps: &Maps<'_>) -> Assembler {
    let mut p = Assembler::default();
    let pass = p.label();
    identify(&mut p, format, maps.devices, pass);
    p.set(R7, R9);
    p.alu(Do::Subtract, R7, R8);
    p.call(CLOCK);
    p.set(R8, R0);
    each_bio(p, maps.in_flight, pass, |p| {
        p.store(Size::Double, R0, ISSUE, R8);
        p.load(Size::Double, R1, R0, SECTOR);
    })
}

/// Assembles the program for the event that a bio or request has completed. R6: the count of lost records.
pub(super) fn at_completion(format: &Format, maps: &Maps<'_>) -> Assembler {
    let mut p = Assembler::default();
    let pass = p.label();
    identify(&mut p, format, maps.devices, pass);
    p.set(R7, R9);
    p.alu(Do::Subtract, R7, R8);
    match format.error {
        Some(error) => {
            p.load(Size::Word, R1, R6, error);
            p.store(Size::Word, R10, RECORD + ERROR, R1);
        }
        None => p.store(Size::Word, R10, RECORD + ERROR, 0),
    }
    p.load(Size::Word, R1, R10, KEY);
    p.store(Size::Word, R10, RECORD + DISK, R1);
    p.call(CLOCK);
    p.store(Size::Double, R10, RECORD + COMPLETION, R0);
    p.store(Size::Word, R10, NUMBER, LOST);
    look_up(&mut p, maps.counts, NUMBER, pass);
    p.set(R6, R0);
    each_bio(p, maps.in_flight, pass, |p| {
        for offset in (0..BIO_BYTES).step_by(8) {
            p.load(Size::Double, R1, R0, offset);
            p.store(Size::Double, R10, RECORD + offset, R1);
        }
        p.load_map(R1, maps.in_flight);
        p.on_stack(R2, KEY);
        p.call(MAP_DELETE);
        p.load_map(R1, maps.ring);
        p.on_stack(R2, RECORD);
        p.set(R3, i32::from(RECORD_BYTES));
        p.set(R4, NO_WAKEUP);
        p.call(RING_OUTPUT);
        // 0, or a negative number without room: its sign is added.
        p.alu(Do::ShiftRight, R0, 63);
        p.add_atomically(R6, 0, R0);
        p.load(Size::Double, R1, R10, RECORD + SECTOR);
    })
}
