//! An initiator's traffic at a volume, as the kernel's SCSI target (LIO) counts it.

use std::path::Path;

/// Totals of an initiator at a volume since the volume was mapped to the initiator, in MiB, the unit in which the kernel
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Data that the initiator has read from the volume, in MiB.
    pub read_mib: u64,
    /// Data that the initiator has written to the volume, in MiB.
    pub written_mib: u64,
}

impl Moved {
    /// The totals in `folder`, which is an access list's `lun_N/statistics/scsi_auth_intr`; `None` if they cannot be read.
    pub fn read(folder: &Path) -> Option<Self> {
        let total = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        Some(Self { read_mib: total("read_mbytes")?, written_mib: total("write_mbytes")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_or_not_there() {
        let folder = crate::folder::folder("moved");
        assert_eq!(Moved::read(&folder), None);
        folder.file("read_mbytes", "12\n");
        folder.file("write_mbytes", "345\n");
        assert_eq!(Moved::read(&folder), Some(Moved { read_mib: 12, written_mib: 345 }));
        folder.file("write_mbytes", "many\n");
        assert_eq!(Moved::read(&folder), None);
    }
}
