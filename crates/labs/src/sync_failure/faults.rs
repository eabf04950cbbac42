//! Devices that fail, work again and vanish, and the kernel's own behaviour with such devices.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::requests::{BLOCK, block};
use super::{Check, GONE, OTHER, SLICES, SUBJECTS, VOLUME_SECTORS};
use crate::base::process;
use crate::machine::guest::tool;

/// Longest wait until an unplugged disk is back.
const PLUG_LIMIT: Duration = Duration::from_secs(60);

/// The device that can be made to fail, under all slices but those of [`OTHER`]: a plain mapping, or a mapping on which every
/// request fails.
pub(super) struct Faulty;

impl Faulty {
    const SECTORS: u64 = (SLICES - SUBJECTS.len() as u64) * VOLUME_SECTORS;

    /// Makes the device, and a slice of it for each name.
    pub(super) fn create(slices: &[String]) -> Result<()> {
        let mut all = format!("faulty,,,rw,{}", Self::working());
        for (number, name) in slices.iter().enumerate() {
            // The first mapped device is dm-0.
            let start = number as u64 * VOLUME_SECTORS;
            ensure!(start + VOLUME_SECTORS <= Self::SECTORS, "no room for slice {name}");
            all += &format!(";{name},,,rw,0 {VOLUME_SECTORS} linear /dev/dm-0 {start}");
        }
        for subject in SUBJECTS {
            let start = Self::SECTORS + subject.index * VOLUME_SECTORS;
            let name = subject.slice(OTHER);
            all += &format!(";{name},,,rw,0 {VOLUME_SECTORS} linear /dev/vda {start}");
        }
        tool("dmsetup", &["create", "--noudevsync", "--concise", &all])?;
        tool("dmsetup", &["mknodes"])?;
        Ok(())
    }

    fn working() -> String {
        format!("0 {} linear /dev/vda 0", Self::SECTORS)
    }

    /// Makes every request to the device fail from now on.
    pub(super) fn fail() -> Result<()> {
        Self::load(&format!("0 {} flakey /dev/vda 0 0 1", Self::SECTORS))
    }

    /// Makes requests to the device succeed again.
    pub(super) fn repair() -> Result<()> {
        Self::load(&Self::working())
    }

    /// Replaces the device's table without writing back the page cache, which would save the data.
    fn load(table: &str) -> Result<()> {
        tool("dmsetup", &["load", "faulty", "--table", table])?;
        tool("dmsetup", &["resume", "--noudevsync", "--noflush", "--nolockfs", "faulty"])?;
        Ok(())
    }
}

/// Writes a device's dirty pages back, as the kernel does after some time. True if that succeeded. A failure is also reported to
/// processes that opened the device before.
pub(super) fn write_back(device: &Path) -> Result<bool> {
    let file = File::open(device)?;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call has no memory effects on this process.
    Ok(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } == 0)
}

/// Removes the disk `device` from the machine, as if it were unplugged.
pub(super) fn unplug(device: &Path) -> Result<()> {
    let name = device.file_name().context("the disk has no name")?.to_string_lossy().into_owned();
    let virtio = std::fs::canonicalize(format!("/sys/block/{name}/device"))?;
    let slot = virtio.parent().context("the disk is in no slot")?;
    std::fs::write(slot.join("remove"), "1").with_context(|| format!("cannot unplug {}", device.display()))?;
    ensure!(!device.exists(), "{} is still there", device.display());
    Ok(())
}

/// Restores all unplugged disks. A disk gets its old name if the name is free.
pub(super) fn plug_in() -> Result<()> {
    std::fs::write("/sys/bus/pci/rescan", "1")?;
    process::until("all disks", [PLUG_LIMIT, Duration::from_millis(20)], || {
        Ok(SUBJECTS.map(|s| s.device(GONE)).iter().all(|device| device.exists()))
    })
    .map(drop)
}

/// A page-aligned buffer of one block, as O_DIRECT needs.
#[repr(align(4096))]
pub(super) struct Page(pub(super) [u8; BLOCK]);

/// A file by which the kernel's own answers about a lost write are observed, without a server that remembers the failure.
pub(super) struct Kernel {
    file: File,
    device: PathBuf,
    direct: bool,
    failing: Option<std::io::Result<()>>,
}

impl Kernel {
    pub(super) fn begin(cache: &str) -> Result<Self> {
        let device = Path::new("/dev/mapper").join(format!("kernel-{cache}"));
        let direct = cache == "direct";
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&device)?;
        let kernel = Self { file, device, direct, failing: None };
        if direct {
            kernel.write()?;
        }
        Ok(kernel)
    }

    fn write(&self) -> Result<()> {
        let mut page = Page([0; BLOCK]);
        page.0.copy_from_slice(&block(0, 1));
        Ok(self.file.write_all_at(&page.0, 0)?)
    }

    pub(super) fn while_failing(&mut self) -> Result<()> {
        if !self.direct {
            self.write()?;
        }
        self.failing = Some(self.file.sync_data());
        Ok(())
    }

    /// Checks that after a failed sync the next sync succeeds, although data of the page cache is not on the device.
    pub(super) fn when_repaired(&self) -> Result<Check> {
        let mut check = Check::default();
        let first = self.failing.as_ref().context("no first sync was made")?;
        check.expect(first.is_err(), "the first sync succeeded");
        let second = self.file.sync_data();
        check.expect(second.is_ok(), format_args!("the second sync failed as well: {second:?}"));
        let mut page = Page([9; BLOCK]);
        let device = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.device)?;
        device.read_exact_at(&mut page.0, 0)?;
        let there = page.0[..] == block(0, 1)[..];
        check.expect(there == self.direct, format_args!("the data is on the device: {there}"));
        Ok(check)
    }
}
