//! A file of the kernel that stays open and is read at every tick.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Size, in bytes, up to which a file is read; `/proc/diskstats` has some 120 bytes for each device.
pub const MAX_BYTES: usize = 16 << 20;

/// Initial size of the buffer, in bytes.
const STEP: usize = 16 << 10;

/// A file that stays open and is read from its beginning each time, into a buffer that is used again for each reading.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl Source {
    /// Opens `path`.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|cause| Error::read(path, cause))?;
        Ok(Self { path: path.to_owned(), file, buffer: vec![0; STEP] })
    }

    /// The path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present content of the file. Allocates memory only if the file is larger than at all earlier readings.
    ///
    /// # Errors
    /// If the file cannot be read, or holds more than [`MAX_BYTES`].
    pub fn read(&mut self) -> Result<&[u8], Error> {
        read_all(&self.file, &self.path, &mut self.buffer, [STEP, MAX_BYTES])
    }
}

/// Reads the present content of a file into `buffer`, which grows from `least` to at most `limit` bytes. Each system call gets
/// at least a quarter of `least` as free space.
pub(super) fn read_all<'b>(
    file: &File,
    path: &Path,
    buffer: &'b mut Vec<u8>,
    [least, limit]: [usize; 2],
) -> Result<&'b [u8], Error> {
    let mut filled = 0;
    loop {
        if buffer.len() - filled < least / 4 {
            if buffer.len() >= limit {
                return Err(Error::TooLarge { path: path.to_owned(), limit });
            }
            buffer.resize((buffer.len() * 2).clamp(least, limit), 0);
        }
        // Such files give a piece at a time; nothing marks the end.
        match file.read_at(&mut buffer[filled..], filled as u64) {
            Ok(0) => return Ok(&buffer[..filled]),
            Ok(n) => filled += n,
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(Error::read(path, cause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_now_and_grows() {
        let path = std::env::temp_dir().join(format!("evenkeel-guard-source-{}", std::process::id()));
        std::fs::write(&path, "one").expect("written");
        let mut source = Source::open(&path).expect("opened");
        assert_eq!(source.read().expect("read"), b"one");
        let long = vec![b'x'; 100_000];
        std::fs::write(&path, &long).expect("written");
        assert_eq!(source.read().expect("read"), long);
        std::fs::write(&path, "").expect("written");
        assert_eq!(source.read().expect("read"), b"");
        std::fs::remove_file(&path).expect("removed");
        assert!(Source::open(&path).is_err_and(|error| error.is_absent()));
    }
}
