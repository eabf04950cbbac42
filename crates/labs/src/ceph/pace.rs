//! The pace of the OSDs' devices: a library that is preloaded into the OSDs, and the file that it reads.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::base::{build, process};

/// Name of the file that sets the speed of the devices.
const FILE: &str = "pace";

/// Makes the library and the file in the folder of a cluster; the devices are memory until [`set`]. Returns environment
/// variables for the OSDs.
///
/// # Errors
/// If a file cannot be written, or the library does not compile.
pub(crate) fn prepare(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let (library, pace) = (folder.join("pace.so"), folder.join(FILE));
    std::fs::write(&pace, [0; 16])?;
    let source = build::workspace().join("lab/ceph/pace.c");
    process::output(
        process::program("cc")
            .args(["-O2", "-Wall", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source)
            .args(["-ldl", "-lpthread"]),
    )?;
    Ok(vec![("LD_PRELOAD", library), ("PACE_FILE", pace)])
}

/// Makes each device of the cluster in this folder write `bytes_per_s` bytes per second from now on, with an additional time
/// `each` for every write; zero stands for the additional time of flash. A speed of 0 makes a device memory.
///
/// # Errors
/// If the cluster was started without [`prepare`].
pub(crate) fn set(folder: &Path, bytes_per_s: u64, each: Duration) -> Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(folder.join(FILE))?;
    let each_ns = each.as_nanos() as u64;
    Ok(file.write_all_at([bytes_per_s.to_ne_bytes(), each_ns.to_ne_bytes()].as_flattened(), 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scratch::Scratch;

    #[test]
    fn the_file_of_a_prepared_cluster_gets_the_speed_and_the_time_of_a_write() {
        let scratch = Scratch::new("pace").unwrap();
        assert!(set(scratch.path(), 1, Duration::ZERO).is_err());
        let path = scratch.path().join(FILE);
        std::fs::write(&path, [0; 16]).unwrap();
        set(scratch.path(), 60_000_000, Duration::from_millis(4)).unwrap();
        let written = std::fs::read(path).unwrap();
        assert_eq!(written, [60_000_000_u64.to_ne_bytes(), 4_000_000_u64.to_ne_bytes()].concat());
    }
}
