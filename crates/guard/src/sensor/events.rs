//! Formats of the block layer's tracepoints, and the pieces that BPF programs attached to them have in common.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::diskstats::DeviceNumber;
use crate::bpf::{Assembler, Label, Map, Program, R0, R1, R2, Sees, When};
use crate::error::{Error, Fault};

/// Folders in which tracefs may be mounted.
pub const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Numbers of the kernel's BPF helper functions.
pub(super) const MAP_LOOKUP: i32 = 1;
pub(super) const MAP_UPDATE: i32 = 2;
pub(super) const MAP_DELETE: i32 = 3;
pub(super) const CLOCK: i32 = 5;
pub(super) const CURRENT_CGROUP: i32 = 80;
pub(super) const RING_OUTPUT: i32 = 130;

/// Number of a tracepoint, and the offsets, in bytes from the beginning of its events, of the fields that the programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) id: u64,
    pub(super) device: i16,
    pub(super) sector: i16,
    pub(super) sectors: i16,
    pub(super) kind: i16,
    /// `None` if the events have no error, as those before the completion.
    pub(super) error: Option<i16>,
}

/// A program with its attachment to a tracepoint.
pub(super) type Attached = (Program, OwnedFd);

/// Loads a program, and attaches it to the tracepoint with this format.
pub(super) fn attach(format: &Format, program: Assembler) -> Result<Attached, Errno> {
    let program = Program::load(Sees::Event, program)?;
    let attached = program.attach_to_event(format.id)?;
    Ok((program, attached))
}

/// Parses the description of a tracepoint's events, tracefs's file `events/block/NAME/format`.
pub(super) fn parse_format(text: &str) -> Result<Format, Fault> {
    let mut id = None;
    let mut fields = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        if let Some(value) = line.strip_prefix("ID:") {
            id = value.trim().parse().ok();
        } else if let Some(field) = line.trim_start().strip_prefix("field:") {
            let mut parts = field.split(';');
            let name = parts.next().and_then(|field| field.split_whitespace().last()).unwrap_or_default();
            let name = name.split('[').next().unwrap_or_default();
            let mut value = |key| parts.next().and_then(|part| part.trim().strip_prefix(key)?.parse::<i16>().ok());
            let place = value("offset:").zip(value("size:"));
            let place =
                place.ok_or_else(|| Fault::new(number, format!("the field {name:?} has no offset and size")))?;
            fields.insert(name, place);
        }
    }
    let place = |name: &str, bytes: i16| match fields.get(name) {
        // The kernel refuses a program that reads elsewhere. Texts are read byte by byte.
        Some(&(offset, size))
            if offset >= 8 && size >= bytes && (bytes == 1 || size == bytes && offset % size == 0) =>
        {
            Ok(offset)
        }
        Some((offset, size)) => Err(Fault::new(1, format!("the field {name} is at {offset} with {size} bytes"))),
        None => Err(Fault::new(1, format!("there is no field {name}"))),
    };
    Ok(Format {
        id: id.ok_or_else(|| Fault::new(1, "there is no ID"))?,
        device: place("dev", 4)?,
        sector: place("sector", 8)?,
        sectors: place("nr_sector", 4)?,
        kind: place("rwbs", 1)?,
        error: place("error", 4).ok(),
    })
}

/// Reads the formats of the tracepoints `names` in the first of `folders` that has them all, in the order of the names.
///
/// # Errors
/// [`Error::Read`] where there is no tracefs or no such tracepoint, [`Error::Parse`] for an unknown format.
pub(super) fn formats<const N: usize>(folders: &[PathBuf], names: [&str; N]) -> Result<[Format; N], Error> {
    let absent = || Error::read(Path::new(FOLDERS[0]), std::io::ErrorKind::NotFound.into());
    let in_folder = |folder: &PathBuf| {
        let format = |name: &str| {
            let path = folder.join("events/block").join(name).join("format");
            let text = std::fs::read_to_string(&path).map_err(|cause| Error::read(&path, cause))?;
            parse_format(&text).map_err(|fault| fault.in_file(&path))
        };
        let found = names.into_iter().map(format).collect::<Result<Vec<Format>, Error>>()?;
        <[Format; N]>::try_from(found).map_err(|_| absent())
    };
    let mut failure = absent();
    for folder in folders {
        match in_folder(folder) {
            Ok(found) => return Ok(found),
            // A folder that may not be read says more than one that does not exist.
            Err(error) if failure.is_absent() => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Emits a look-up in `map` of the key at stack offset `key`: afterwards R0 points to the value; if the key has no value, the
/// program jumps to `otherwise`.
pub(super) fn look_up(p: &mut Assembler, map: &Map, key: i16, otherwise: Label) {
    p.load_map(R1, map);
    p.on_stack(R2, key);
    p.call(MAP_LOOKUP);
    p.jump_when(When::Equal, R0, 0, otherwise);
}

/// Emits the end of a program, to which `pass` leads.
pub(super) fn end(mut p: Assembler, pass: Label) -> Assembler {
    p.place(pass);
    p.set(R0, 0);
    p.exit();
    p
}

/// A device's number in the layout of the kernel's events: 12 bits for the major, 20 for the minor number.
pub(super) fn in_events(number: DeviceNumber) -> [u8; 4] {
    (number.major << 20 | number.minor & 0xf_ffff).to_ne_bytes()
}

/// The device number that an event has: the inverse of [`in_events`].
pub(super) fn of_events(number: [u8; 4]) -> DeviceNumber {
    let number = u32::from_ne_bytes(number);
    DeviceNumber { major: number >> 20, minor: number & 0xf_ffff }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
