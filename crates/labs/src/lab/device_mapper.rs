//! A message to a device-mapper target, by ioctl: starting `dmsetup` for each takes an emulated machine
//! most of a second.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

/// Size of the kernel's `struct dm_ioctl`.
const HEADER_BYTES: usize = 312;
const NAME_AT: usize = 48;
const NAME_BYTES: usize = 128;
/// `_IOWR(0xfd, 14, struct dm_ioctl)`.
const TARGET_MESSAGE: libc::c_ulong = 3 << 30 | (HEADER_BYTES as libc::c_ulong) << 16 | 0xfd << 8 | 14;

/// The control node with the name of one device.
#[derive(Debug)]
pub(crate) struct Device {
    control: File,
    name: String,
}

impl Device {
    /// A mapped device by name.
    pub(crate) fn open(name: &str) -> Result<Self> {
        ensure!(name.len() < NAME_BYTES, "device name of {} bytes", name.len());
        let path = "/dev/mapper/control";
        let control =
            OpenOptions::new().read(true).write(true).open(path).with_context(|| format!("cannot open {path}"))?;
        Ok(Self { control, name: name.to_owned() })
    }

    /// Sends `message` to the target at the device's first sector.
    pub(crate) fn message(&self, message: &str) -> Result<()> {
        let mut request = request(&self.name, message);
        // SAFETY: the request holds its own size and a terminated message within that size; the kernel
        // reads and writes only that many bytes of it.
        let result = unsafe { libc::ioctl(self.control.as_raw_fd(), TARGET_MESSAGE, request.as_mut_ptr()) };
        ensure!(result == 0, "message `{message}` to {}: {}", self.name, io::Error::last_os_error());
        Ok(())
    }
}

/// `struct dm_ioctl`, then `struct dm_target_msg`: sector 0 and a terminated text.
fn request(name: &str, message: &str) -> Vec<u8> {
    let size = HEADER_BYTES + 8 + message.len() + 1;
    let mut request = vec![0; size];
    // Version 4.0.0 of the interface, size of all, start of the data.
    for (at, value) in [(0, 4), (12, size), (16, HEADER_BYTES)] {
        request[at..at + 4].copy_from_slice(&(value as u32).to_ne_bytes());
    }
    request[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
    let text_at = HEADER_BYTES + 8;
    request[text_at..text_at + message.len()].copy_from_slice(message.as_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_laid_out_as_the_kernel_reads_it() {
        let request = request("disk", "mark 7");
        assert_eq!(request.len(), 312 + 8 + 7);
        assert_eq!(request[12..16], 327u32.to_ne_bytes());
        assert_eq!(&request[48..53], b"disk\0");
        assert_eq!(&request[320..327], b"mark 7\0");
        assert_eq!(TARGET_MESSAGE, 0xc138_fd0e);
    }
}
