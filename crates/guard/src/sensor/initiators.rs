//! One initiator's traffic at one volume, as LIO counts it.

use std::path::Path;

/// Totals since the volume was mapped to the initiator, in MiB: the kernel counts no finer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Read by the initiator.
    pub read_mib: u64,
    /// Written by the initiator.
    pub written_mib: u64,
}

impl Moved {
    /// The totals in `folder`, which is an access list's `lun_N/statistics/scsi_auth_intr`; `None` if they cannot be read.
    pub fn read(folder: &Path) -> Option<Self> {
        let total = |name: &str| parse(&std::fs::read_to_string(folder.join(name)).ok()?);
        Some(Self { read_mib: total("read_mbytes")?, written_mib: total("write_mbytes")? })
    }
}

/// A number on a line of its own.
fn parse(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_or_not_there() {
        let folder = std::env::temp_dir().join(format!("evenkeel-guard-{}-moved", std::process::id()));
        std::fs::create_dir_all(&folder).expect("made");
        assert_eq!(Moved::read(&folder), None);
        std::fs::write(folder.join("read_mbytes"), "12\n").expect("written");
        std::fs::write(folder.join("write_mbytes"), "345\n").expect("written");
        assert_eq!(Moved::read(&folder), Some(Moved { read_mib: 12, written_mib: 345 }));
        std::fs::write(folder.join("write_mbytes"), "many\n").expect("written");
        assert_eq!(Moved::read(&folder), None);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
