//! Mounted file systems (`/proc/PID/mountinfo`), to find the block device below a file.

use std::path::{Path, PathBuf};

use super::unescaped;
use crate::error::Fault;
use crate::sensor::diskstats::DeviceNumber;

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the block device of the file system; major number 0 for file systems without a device of their own (btrfs,
    /// overlay).
    pub device: DeviceNumber,
    /// Mount point of the file system.
    pub point: PathBuf,
    /// Source from which the file system is mounted, for example `/dev/sda1`.
    pub source: PathBuf,
    /// Kind of the file system, for example `ext4`.
    pub kind: String,
    /// Options of the file system, separated by commas.
    pub options: String,
}

/// Parses the text of a `mountinfo`.
///
/// # Errors
/// The first line that is not in the file's format.
pub fn parse(text: &str) -> Result<Vec<Mount>, Fault> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| parse_line(line).map_err(|problem| Fault::new(index + 1, problem))).collect()
}

fn parse_line(line: &str) -> Result<Mount, String> {
    let mut fields = line.split(' ');
    let device = fields.nth(2).ok_or("ends before the device")?.parse()?;
    let point = fields.nth(1).ok_or("ends before the mount point")?;
    // A variable number of tags ends with a lone dash; behind it type and source.
    let mut behind = fields.skip_while(|&field| field != "-").skip(1);
    let [kind, source, options] = std::array::from_fn(|_| behind.next().unwrap_or_default());
    // Spaces, tabs, line ends and backslashes are written as a backslash and three octal digits.
    Ok(Mount {
        device,
        point: unescaped(point, "\\", 3, 8).into(),
        source: unescaped(source, "\\", 3, 8).into(),
        kind: kind.to_owned(),
        options: options.to_owned(),
    })
}

/// The file system that holds `path`: the one with the deepest mount point above `path`; if several have the same mount
/// point, the one mounted last.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 21 0:26 / /proc rw - proc proc rw
40 21 252:3 / /srv/my\\040images rw,noatime shared:9 master:2 - xfs /dev/mapper/vg-images rw
41 40 0:44 /sub /srv/my\\040images/b rw - btrfs /dev/sdc rw
";

    #[test]
    fn the_deepest_mount_holds_a_file() {
        let mounts = parse(TEXT).expect("the kernel's format");
        let of = |path: &str| holding(&mounts, Path::new(path)).map(|mount| mount.device.to_string());
        assert_eq!(of("/srv/my images/a.img").as_deref(), Some("252:3"));
        assert_eq!(of("/srv/my images/b/a.img").as_deref(), Some("0:44"));
        assert_eq!(of("/srv/my images2").as_deref(), Some("254:0"));
        assert_eq!((mounts[3].source.as_path(), mounts[3].kind.as_str()), (Path::new("/dev/sdc"), "btrfs"));
        assert_eq!(mounts[3].options, "rw");
        assert_eq!(parse("1 2\n").expect_err("too short").line, 1);
    }
}
