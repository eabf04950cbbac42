//! A mark in the file of the program `evenkeel`, by which discovery recognises the program under any file name.
//!
//! The mark is an ELF note in a section of its own ([`Mark`]). Discovery finds the note by the program headers, in the format
//! of the System V ABI (chapters *Program Header* and *Note Section*), without running the program.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Name of the ELF note's owner, with the terminating zero.
const OWNER: [u8; 9] = *b"Evenkeel\0";
/// Type of the ELF note: the program has the command `serve`.
const SERVES: u32 = 1;

/// The ELF note, to be put into a section whose name begins with `.note.`.
#[repr(C, align(4))]
pub struct Mark {
    owner_bytes: u32,
    description_bytes: u32,
    kind: u32,
    owner: [u8; OWNER.len().next_multiple_of(4)],
}

impl Mark {
    /// The note with which a program declares that it has the command `serve`.
    pub const SERVES: Self = {
        let mut owner = [0; OWNER.len().next_multiple_of(4)];
        let mut n = 0;
        while n < OWNER.len() {
            owner[n] = OWNER[n];
            n += 1;
        }
        Self { owner_bytes: OWNER.len() as u32, description_bytes: 0, kind: SERVES, owner }
    };
}

/// Largest number of program headers that are read; programs have about a dozen.
const MAX_HEADERS: u16 = 64;
/// Largest number of bytes of notes that are read; programs have some hundred.
const MAX_NOTES: u64 = 16 << 10;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const CLASS_64: u8 = 2;
const NOTE: u32 = 4;

/// True if the file `program` has the mark; false if the file cannot be read.
pub(super) fn is_marked(program: &Path) -> bool {
    let regular = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file());
    File::open(program).is_ok_and(|mut file| regular(&file) && has_note(&mut file).unwrap_or(false))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// True if the file has the mark. Reads only the file's header, program headers and notes. False for programs that are not of
/// 64 bits in this machine's byte order.
fn has_note(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header)?;
    let order = if cfg!(target_endian = "big") { 2 } else { 1 };
    if header[..6] != [0x7f, b'E', b'L', b'F', CLASS_64, order] {
        return Ok(false);
    }
    let place = double(&header, 32).zip(half(&header, 54)).zip(half(&header, 56));
    let Some(((at, size), count)) = place else { return Ok(false) };
    if usize::from(size) != PROGRAM_HEADER_BYTES {
        return Ok(false);
    }
    let mut headers = vec![0; usize::from(count.min(MAX_HEADERS)) * PROGRAM_HEADER_BYTES];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut headers)?;
    let mut left = MAX_NOTES;
    for header in headers.chunks_exact(PROGRAM_HEADER_BYTES).filter(|header| word(header, 0) == Some(NOTE)) {
        let (Some(at), Some(length)) = (double(header, 8), double(header, 32)) else { continue };
        if length > left {
            continue;
        }
        left -= length;
        let mut notes = vec![0; length as usize];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut notes)?;
        if tells(&notes) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if the mark is among these ELF notes.
fn tells(mut notes: &[u8]) -> bool {
    while let (Some(owner_bytes), Some(description_bytes), Some(kind)) =
        (word(notes, 0), word(notes, 4), word(notes, 8))
    {
        let Some(owner) = notes.get(12..).and_then(|rest| rest.get(..owner_bytes as usize)) else { return false };
        if owner == OWNER && kind == SERVES {
            return true;
        }
        let length = 12 + (owner_bytes as usize).next_multiple_of(4) + (description_bytes as usize).next_multiple_of(4);
        let Some(rest) = notes.get(length..) else { return false };
        notes = rest;
    }
    false
}

/// The smallest program file that the format allows, for tests: with a note of another owner, and a note of `owner` after it.
#[cfg(test)]
pub(super) fn program(owner: &[u8]) -> Vec<u8> {
    let note = |owner: &[u8], description: &[u8]| {
        let mut note = Vec::new();
        for number in [owner.len() as u32, description.len() as u32, SERVES] {
            note.extend(number.to_ne_bytes());
        }
        for part in [owner, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    };
    let notes = [note(b"GNU\0", &[7; 20]), note(owner, &[])].concat();
    let mut file = vec![0; HEADER_BYTES + PROGRAM_HEADER_BYTES];
    let order = if cfg!(target_endian = "big") { 2 } else { 1 };
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', CLASS_64, order]);
    file[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_ne_bytes());
    file[54..56].copy_from_slice(&(PROGRAM_HEADER_BYTES as u16).to_ne_bytes());
    file[56..58].copy_from_slice(&1u16.to_ne_bytes());
    let header = &mut file[HEADER_BYTES..];
    header[..4].copy_from_slice(&NOTE.to_ne_bytes());
    header[8..16].copy_from_slice(&((HEADER_BYTES + PROGRAM_HEADER_BYTES) as u64).to_ne_bytes());
    header[32..40].copy_from_slice(&(notes.len() as u64).to_ne_bytes());
    file.extend(notes);
    file
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn marked(bytes: &[u8]) -> bool {
        has_note(&mut Cursor::new(bytes)).unwrap_or(false)
    }

    #[test]
    fn the_note_is_found_after_others_and_only_ours() {
        let ours = program(b"Evenkeel\0");
        assert!(marked(&ours));
        assert!(!marked(&program(b"Evenkeeler\0")));
        assert!(!marked(&ours[..ours.len() - 4]), "cut short");
        assert!(!marked(b"#!/bin/sh\nexec evenkeel serve\n"));
    }

    #[test]
    fn the_mark_is_a_note_as_it_lies_in_memory() {
        let mark = Mark::SERVES;
        let mut bytes = Vec::new();
        for number in [mark.owner_bytes, mark.description_bytes, mark.kind] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(mark.owner);
        assert_eq!(bytes.len(), size_of::<Mark>());
        assert!(tells(&bytes));
    }

    #[test]
    fn lengths_that_lie_are_no_program() {
        let good = program(b"Evenkeel\0");
        for (at, value) in [(32, u64::MAX), (HEADER_BYTES + 8, u64::MAX), (HEADER_BYTES + 32, 1 << 40)] {
            let mut bad = good.clone();
            bad[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            assert!(!marked(&bad), "{value:x} at {at}");
        }
    }

    proptest! {
        #[test]
        fn damage_does_not_panic(at in 0usize..200, value in any::<u8>(), notes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = program(b"Evenkeel\0");
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = (marked(&bytes), tells(&notes));
        }
    }
}
