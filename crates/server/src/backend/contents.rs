//! Recognises the present content of a file by magic numbers.
//!
//! A table has the place of each format's magic number (mark) and a verdict: an image of another format is refused, because
//! its bytes are not those of the disk in the image; a file system, partition table or other superblock is reported and
//! served. The first row that matches counts, so that rows are sorted from the most certain to the least.

use std::io;

/// The verdict on a file whose content was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The file is refused: it is an image of another format, whose bytes are not those of the disk in the image.
    Refuse,
    /// The file is served and the content reported: clients may want exactly this content, or may be about to destroy it.
    Report,
}

/// The place of a format's magic number (mark) in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At this offset from the beginning of the file, in bytes.
    Start(u64),
    /// The first number of bytes before the end of the file, rounded down to a multiple of the second number.
    End(u64, u64),
}

impl Place {
    /// Offset of the mark, in bytes, in a file of `size` bytes; `None` if the file is too small.
    fn offset(self, size: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End(back, align) => size.checked_sub(back).map(|offset| offset - offset % align),
        }
    }
}

/// A row of the table: a format, its mark, and the verdict.
#[derive(Debug)]
struct Magic {
    place: Place,
    bytes: &'static [u8],
    name: &'static str,
    verdict: Verdict,
}

/// Length of the longest mark, in bytes.
const MAX_MARK: usize = 20;

const fn refuse(place: Place, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic { place, bytes, name, verdict: Verdict::Refuse }
}

const fn report(place: Place, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic { place, bytes, name, verdict: Verdict::Report }
}

use Place::{End, Start};

/// Magic number of an md RAID superblock, little-endian.
const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];

const TABLE: &[Magic] = &[
    refuse(Start(0), b"QFI\xfb", "a qcow2 image"),
    refuse(Start(0), b"QED\0", "a QED image"),
    refuse(Start(0), b"KDMV", "a VMDK image"),
    refuse(Start(0), b"COWD", "a VMDK image"),
    refuse(Start(0), &[0xbe, 0xba, 0xfe, 0xca, 0, 0, 0, 0], "a VMDK image"),
    refuse(Start(0), b"# Disk DescriptorFil", "the description of a VMDK image"),
    refuse(Start(0x40), &[0x7f, 0x10, 0xda, 0xbe], "a VDI image"),
    refuse(Start(0), b"vhdxfile", "a VHDX image"),
    // A growing VHD has a copy of its footer in front; a fixed one is the disk and the footer, of 511 bytes in old ones.
    refuse(Start(0), b"conectix", "a VHD image"),
    refuse(End(512, 1), b"conectix", "a VHD image"),
    refuse(End(511, 1), b"conectix", "a VHD image"),
    refuse(Start(0), b"WithoutFreeSpace", "a Parallels image"),
    refuse(Start(0), b"WithouFreSpacExt", "a Parallels image"),
    report(Start(0), b"LUKS\xba\xbe", "a LUKS header"),
    report(Start(3), b"-FVE-FS-", "a BitLocker volume"),
    // The label is in one of the first four sectors.
    report(Start(24), b"LVM2 001", "an LVM physical volume"),
    report(Start(512 + 24), b"LVM2 001", "an LVM physical volume"),
    report(Start(1024 + 24), b"LVM2 001", "an LVM physical volume"),
    report(Start(1536 + 24), b"LVM2 001", "an LVM physical volume"),
    report(Start(0), b"bluestore block devi", "a BlueStore OSD"),
    // Versions 1.1, 1.2, 1.0 and 0.90, the last two near the end.
    report(Start(0), MD, "an md RAID member"),
    report(Start(4096), MD, "an md RAID member"),
    report(End(8 << 10, 4 << 10), MD, "an md RAID member"),
    report(End(64 << 10, 64 << 10), MD, "an md RAID member"),
    report(Start(0x10040), b"_BHRfS_M", "a btrfs file system"),
    // The first pair of the configuration in the first label.
    report(Start((16 << 10) + 20), b"\0\0\0\x07version\0", "a ZFS pool member"),
    report(Start(0), b"XFSB", "an XFS file system"),
    report(Start(3), b"NTFS    ", "an NTFS file system"),
    report(Start(3), b"EXFAT   ", "an exFAT file system"),
    report(Start(0x52), b"FAT32   ", "a FAT file system"),
    report(Start(0x36), b"FAT16   ", "a FAT file system"),
    report(Start(0x36), b"FAT12   ", "a FAT file system"),
    report(Start(0x400), &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    report(Start(0x8001), b"CD001", "an ISO 9660 file system"),
    // At the end of the first page, of 4, 16 or 64 KiB.
    report(Start((4 << 10) - 10), b"SWAPSPACE2", "swap space"),
    report(Start((16 << 10) - 10), b"SWAPSPACE2", "swap space"),
    report(Start((64 << 10) - 10), b"SWAPSPACE2", "swap space"),
    // In the second sector, of 512 or 4096 bytes.
    report(Start(512), b"EFI PART", "a GPT partition table"),
    report(Start(4096), b"EFI PART", "a GPT partition table"),
    report(Start(0x438), &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    report(Start(510), &[0x55, 0xaa], "an MBR partition table or boot sector"),
];

/// Name of the content of a file of `size` bytes and the verdict; `None` if the content is not recognised. `read_at` reads
/// like `pread`.
///
/// # Errors
/// Errors of `read_at`.
pub(crate) fn examine(
    size: u64,
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<Option<(&'static str, Verdict)>> {
    for magic in TABLE {
        let mut mark = [0; MAX_MARK];
        let mark = &mut mark[..magic.bytes.len()];
        let fits = |offset: &u64| offset.checked_add(magic.bytes.len() as u64).is_some_and(|end| end <= size);
        let Some(offset) = magic.place.offset(size).filter(fits) else { continue };
        // A file that has become shorter meanwhile does not have this mark.
        if read_at(mark, offset)? == mark.len() && mark == magic.bytes {
            return Ok(Some((magic.name, magic.verdict)));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
