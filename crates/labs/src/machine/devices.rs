//! Block devices inside a virtual machine: disks of null_blk, volumes of LVM, and messages to targets of the device mapper.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::guest::{make_dir, put, tool};
use crate::base::process;

/// Folder of configfs, in which devices and targets of the kernel are configured.
pub(crate) const CONFIG: &str = "/sys/kernel/config";
/// Folder with LVM's settings.
const LVM: &str = "/run/lvm-lab";

/// Size of the kernel's `struct dm_ioctl`, in bytes.
const HEADER_BYTES: usize = 312;
/// Offset of the device's name in `struct dm_ioctl`, in bytes.
const NAME_AT: usize = 48;
/// Size of the field for the device's name, in bytes.
const NAME_BYTES: usize = 128;
/// The ioctl DM_TARGET_MSG: `_IOWR(0xfd, 14, struct dm_ioctl)`.
const TARGET_MESSAGE: libc::c_ulong = 3 << 30 | (HEADER_BYTES as libc::c_ulong) << 16 | 0xfd << 8 | 14;

/// Makes a disk of null_blk of `mib` MiB. `settings` replace or extend the common settings. Mounts configfs first where it is not
/// mounted.
pub(crate) fn make_disk(name: &str, mib: u64, settings: &[(&str, &str)]) -> Result<()> {
    if !Path::new(CONFIG).join("nullb").exists() {
        tool("mount", &["-t", "configfs", "configfs", CONFIG])?;
    }
    let disk = format!("{CONFIG}/nullb/{name}");
    make_dir(&disk)?;
    let size = mib.to_string();
    let common = [("size", size.as_str()), ("memory_backed", "1"), ("blocksize", "4096"), ("queue_mode", "2")];
    let more = [("irqmode", "0"), ("submit_queues", "1"), ("hw_queue_depth", "128")];
    for (key, value) in common.iter().chain(&more).chain(settings).chain(&[("power", "1")]) {
        put(format!("{disk}/{key}"), value)?;
    }
    Ok(())
}

/// Removes a disk of null_blk, and its content from memory. Nothing may use it any more.
pub(crate) fn remove_disk(name: &str) -> Result<()> {
    let disk = format!("{CONFIG}/nullb/{name}");
    put(format!("{disk}/power"), "0")?;
    std::fs::remove_dir(&disk).with_context(|| format!("cannot remove {disk}"))
}

/// Runs LVM's `commands` in one process, only on `disks` and without udev. The volumes `expected` must exist afterwards.
pub(crate) fn lvm(disks: &[&str], commands: &str, expected: &[PathBuf]) -> Result<()> {
    let disks: String = disks.iter().map(|disk| format!("\"a|^/dev/{disk}$|\", ")).collect();
    let settings = format!(
        "devices {{ types = [ \"nullb\", 16 ] filter = [ {disks}\"r|.*|\" ] use_devicesfile = 0 }}\n\
         activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}\n\
         backup {{ backup = 0 archive = 0 }}\n\
         global {{ use_lvmpolld = 0 use_lvmlockd = 0 cache_check_executable = \"\" }}\n"
    );
    fs::create_dir_all(LVM)?;
    fs::write(format!("{LVM}/lvm.conf"), settings)?;
    fs::write(format!("{LVM}/commands"), commands)?;
    let script = fs::File::open(format!("{LVM}/commands"))?;
    let mut lvm = process::program("lvm");
    let output = lvm.env("LVM_SYSTEM_DIR", LVM).stdin(script).output().context("cannot start lvm")?;
    if let Some(path) = expected.iter().find(|path| !path.exists()) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        bail!("LVM made no {}: {}", path.display(), said.trim());
    }
    Ok(())
}

/// A mapped device, to which messages are sent by the ioctl of device mapper's control node. An emulated machine would take most
/// of a second to start `dmsetup` for each message.
#[derive(Debug)]
pub(crate) struct Device {
    control: File,
    name: String,
}

impl Device {
    /// The mapped device with this name.
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

/// The bytes of a message's ioctl: `struct dm_ioctl`, followed by `struct dm_target_msg` with sector 0 and a zero-terminated
/// text.
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
