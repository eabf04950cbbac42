//! Measures a block device or file by reads at random that go past the page cache, with several numbers of them in flight.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use evenkeel_control::histogram::Histogram;
use evenkeel_policy::units::Duration;

use super::{Cell, DEPTHS};

/// Sizes of the reads, in bytes.
const SIZES: [usize; 2] = [4 << 10, 128 << 10];
/// Alignment of buffers, in bytes, with which any device reads past the page cache.
const ALIGNED: usize = 4 << 10;
/// Least length of a device or file, in bytes: a shorter one is in a cache of the device.
const LEAST: u64 = 1 << 20;
/// Shortest time to measure.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);

/// A device or file to measure.
pub(super) struct Target {
    file: File,
    path: PathBuf,
    length: u64,
}

impl Target {
    /// Opens a block device or file for reads past the page cache.
    ///
    /// # Errors
    /// A path that cannot be opened so, or is neither a block device nor a file of sufficient length.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        Self::with(path, libc::O_DIRECT)
    }

    fn with(path: &Path, flags: i32) -> anyhow::Result<Self> {
        let kind = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            bail!("{} is neither a block device nor a file; name one, for example /dev/vdb", path.display());
        }
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let mut file = opened.with_context(|| {
            format!(
                "cannot read {} past the page cache; run this as a user that may, and name a device or a file on one",
                path.display()
            )
        })?;
        let length = file.seek(SeekFrom::End(0)).with_context(|| format!("cannot seek in {}", path.display()))?;
        if length < LEAST {
            bail!("{} has {length} bytes, too few to measure; name one of at least {LEAST} bytes", path.display());
        }
        Ok(Self { file, path: path.to_owned(), length })
    }

    /// Length in bytes.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    /// True for a block device that is mounted, or that another program or device uses for itself.
    pub(super) fn is_in_use(&self) -> bool {
        let alone = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.path);
        let is_block = self.file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
        is_block && alone().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// The doubt that most of a file is holes, whose reads touch no device; `None` without it.
    pub(super) fn doubt(&self) -> Option<String> {
        let metadata = self.file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        (metadata.blocks().saturating_mul(512) < self.length / 2).then(|| {
            let path = self.path.display();
            format!("most of {path} is holes, whose reads touch no device; measure the device, or a file without holes")
        })
    }

    /// Reads for `period` in all; one cell for each size and each of [`DEPTHS`].
    ///
    /// # Errors
    /// A read that fails.
    pub(super) fn measure(&self, period: Duration) -> anyhow::Result<Vec<Cell>> {
        let each = period.as_nanos() / (SIZES.len() * DEPTHS.len()) as u64;
        let mut cells = Vec::new();
        for size in SIZES {
            for in_flight in DEPTHS {
                let cell = self.cell(size, in_flight, std::time::Duration::from_nanos(each));
                cells.push(cell.with_context(|| format!("cannot read {}", self.path.display()))?);
            }
        }
        Ok(cells)
    }

    fn cell(&self, size: usize, in_flight: u64, period: std::time::Duration) -> io::Result<Cell> {
        let begun = Instant::now();
        let end = begun + period;
        let readers: io::Result<Vec<Histogram>> = thread::scope(|scope| {
            let start = |index| thread::Builder::new().spawn_scoped(scope, move || self.read(size, seed(index), end));
            let started: Vec<_> = (0..in_flight).map(start).collect::<io::Result<_>>()?;
            let ended = started
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|_| Err(io::Error::other("a reading thread has panicked"))));
            ended.collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let mut latencies = Histogram::default();
        readers?.iter().for_each(|reader| latencies.merge(reader));
        let iops = latencies.count() as f64 / seconds;
        let ms = |quantile| latencies.quantile(quantile).as_nanos() as f64 / 1e6;
        Ok(Cell {
            size_bytes: size as u64,
            in_flight,
            iops,
            bytes_per_s: iops * size as f64,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
        })
    }

    /// Reads one block after the other at random until `end`, at least one. Returns the latencies.
    fn read(&self, size: usize, mut random: u64, end: Instant) -> io::Result<Histogram> {
        let mut space = vec![0_u8; size + ALIGNED];
        let from = space.as_ptr().align_offset(ALIGNED);
        let buffer = &mut space[from..from + size];
        let blocks = self.length / size as u64;
        let mut latencies = Histogram::default();
        loop {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let begun = Instant::now();
            self.file.read_exact_at(buffer, random % blocks * size as u64)?;
            let now = Instant::now();
            latencies.record(Duration::from_nanos((now - begun).as_nanos() as u64));
            if now >= end {
                return Ok(latencies);
            }
        }
    }
}

/// The random seed of the reader `index` for its offsets. It differs in each run: a device may cache the data of the last run.
fn seed(index: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    (now ^ (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_at_every_size_and_depth() {
        let folder = crate::folder::Folder::new();
        // A file system that compresses keeps all of it.
        let mut random = 1_u64;
        let bytes = std::iter::repeat_with(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_le_bytes()
        });
        let bytes: Vec<u8> = bytes.take(1 << 18).flatten().collect();
        let path = folder.file("data", bytes);
        File::open(&path).and_then(|file| file.sync_all()).expect("durable");
        // The file system of temporary files may have no reads past the page cache.
        let target = Target::with(&path, 0).expect("a file");
        let cells = target.measure(Duration::from_millis(80)).expect("read");
        assert_eq!((target.is_in_use(), target.doubt(), target.length()), (false, None, 2 << 20));
        std::fs::write(&path, "short").expect("written");
        let error = Target::with(&path, 0).map(drop).unwrap_err().to_string();
        assert!(error.contains("too few"), "{error}");
        assert_eq!(cells.len(), 8);
        for cell in cells {
            assert!(cell.iops > 0.0 && cell.p99_ms >= cell.p50_ms && cell.p50_ms > 0.0, "{cell:?}");
        }
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for path in ["/dev/null", "/"] {
            let error = Target::open(Path::new(path)).map(drop).unwrap_err().to_string();
            assert!(error.contains("neither a block device nor a file"), "{error}");
        }
    }
}
