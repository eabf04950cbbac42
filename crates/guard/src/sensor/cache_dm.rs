//! Queries of device mapper by ioctl: a mapped device's table, or the status of its target.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::diskstats::DeviceNumber;
use crate::error::Error;

const CONTROL: &str = "/dev/mapper/control";
/// Size of the kernel's `struct dm_ioctl` (`linux/dm-ioctl.h`), in bytes.
const HEADER_BYTES: usize = 312;
/// Size of the kernel's `struct dm_target_spec`, which precedes each target's text, in bytes.
const TARGET_BYTES: usize = 40;
/// Size of the buffer for a request and its answer, in bytes; the longest answers have a few hundred bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// Number of the ioctl for a table or status: `_IOWR(0xfd, 12, struct dm_ioctl)`.
const TABLE_STATUS: libc::c_ulong = 3 << 30 | (HEADER_BYTES as libc::c_ulong) << 16 | 0xfd << 8 | 12;
const STATUS_TABLE_FLAG: u32 = 1 << 4;
const BUFFER_FULL_FLAG: u32 = 1 << 8;
/// Flag of a request: without it, a request for the status makes a cache write its metadata.
const NOFLUSH_FLAG: u32 = 1 << 11;

/// The text that a request asks device mapper for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The table: the parameters of the target, with the devices below it.
    Table,
    /// The target's status: the cache's totals and faults.
    Status,
}

/// Device mapper's control node `/dev/mapper/control`, open.
#[derive(Debug)]
pub(crate) struct Control(File);

impl Control {
    /// # Errors
    /// If the kernel has no device mapper, or this process may not open the control node.
    pub(crate) fn open() -> Result<Self, Error> {
        let path = Path::new(CONTROL);
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.map(Self).map_err(|cause| Error::read(path, cause))
    }

    /// The error that [`open`](Self::open) returns on a host without device mapper.
    pub(crate) fn absent() -> Error {
        Error::read(Path::new(CONTROL), io::ErrorKind::NotFound.into())
    }

    /// Type of the first target of a mapped device, and its table or status as text.
    ///
    /// # Errors
    /// The kernel's error: `ENXIO` if there is no such device.
    pub(crate) fn ask(&self, device: DeviceNumber, wanted: Wanted) -> Result<(String, String), Error> {
        let mut request = request(device, wanted);
        // SAFETY: the request holds its own size, and the kernel reads and writes only that many bytes of it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), TABLE_STATUS, request.as_mut_ptr()) };
        let fail = |cause| Error::read(Path::new(CONTROL), cause);
        if result != 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        answer(&request).ok_or_else(|| fail(io::Error::other("the mapped device has no table; load one")))
    }
}

fn request(device: DeviceNumber, wanted: Wanted) -> Vec<u8> {
    let mut request = vec![0; BUFFER_BYTES];
    let table = if wanted == Wanted::Table { STATUS_TABLE_FLAG } else { 0 };
    // Version 4.0.0 of the interface, size of all, start of the data, flags.
    let fields = [(0, 4), (12, BUFFER_BYTES as u32), (16, HEADER_BYTES as u32), (28, table | NOFLUSH_FLAG)];
    for (at, value) in fields {
        request[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // The kernel's own wide encoding of a device's number (`huge_encode_dev`).
    let DeviceNumber { major, minor } = device;
    let number = u64::from(minor & 0xff | major << 8) | u64::from(minor & !0xff) << 12;
    request[40..48].copy_from_slice(&number.to_ne_bytes());
    request
}

/// Type and text of the first target in an answer of device mapper, from a `struct dm_target_spec` (start, length, status,
/// next, type) and a zero-terminated text. `None` without a target, or if the answer did not fit into the buffer.
pub(super) fn answer(bytes: &[u8]) -> Option<(String, String)> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (start, targets, flags) = (word(16)? as usize, word(20)?, word(28)?);
    if targets == 0 || flags & BUFFER_FULL_FLAG != 0 {
        return None;
    }
    let text = |from: usize, longest: usize| {
        let bytes = bytes.get(from..)?;
        let bytes = &bytes[..bytes.len().min(longest)];
        let end = bytes.iter().position(|&byte| byte == 0)?;
        String::from_utf8(bytes[..end].to_vec()).ok()
    };
    Some((text(start + 24, 16)?, text(start + TARGET_BYTES, BUFFER_BYTES)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_laid_out_as_the_kernel_does() {
        let mut bytes = request(DeviceNumber { major: 253, minor: 0x1_02 }, Wanted::Table);
        assert_eq!(TABLE_STATUS, 0xc138_fd0c);
        assert_eq!(bytes[28..32], (1u32 << 4 | 1 << 11).to_ne_bytes());
        assert_eq!(bytes[40..48], (0x10_fd02u64).to_ne_bytes());
        assert_eq!(answer(&bytes), None, "no target yet");
        bytes[20..24].copy_from_slice(&1u32.to_ne_bytes());
        bytes[HEADER_BYTES + 24..HEADER_BYTES + 29].copy_from_slice(b"cache");
        bytes[HEADER_BYTES + 40..HEADER_BYTES + 48].copy_from_slice(b"1:2 3:4 ");
        assert_eq!(answer(&bytes), Some(("cache".into(), "1:2 3:4 ".into())));
        bytes[28..32].copy_from_slice(&BUFFER_FULL_FLAG.to_ne_bytes());
        assert_eq!(answer(&bytes), None, "cut short");
    }
}
