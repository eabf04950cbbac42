//! Reader of the log that the kernel's `dm-log-writes` target writes.
//!
//! The target passes writes through to one device and logs them on a second one. A completed write enters the log only when
//! a FLUSH that was submitted after it completes, or at once if the write carried FUA. A replay of any prefix of the log
//! therefore gives the disk after a power cut at that moment, in which every unflushed write is lost.
//!
//! Format (kernel documentation, `admin-guide/device-mapper/log-writes`): a super block in sector 0, then
//! entries; each is a header of one sector and, for a write, the data. All numbers are little-endian; sector numbers count in
//! units of the super block's sector size.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Number of bytes of an entry's header, after which the text of a mark begins.
const HEADER_BYTES: usize = 32;
/// The most data of an entry, in bytes. No write of a guest is larger, so a larger length means a damaged log.
const MAX_DATA_BYTES: u64 = 64 << 20;

/// An entry of the log: a write or discard that became durable, or a mark.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A write whose data became durable at `offset` (in bytes); `flush` and `fua` are the request's flags.
    Write { offset: u64, data: Vec<u8>, flush: bool, fua: bool },
    /// A discarded range, given in bytes, which reads as zeros.
    Discard { offset: u64, bytes: u64 },
    /// A text that the guest placed with `dmsetup message NAME 0 mark TEXT`.
    Mark(String),
}

impl Entry {
    /// The kind of the entry, as a word.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Write { fua: true, .. } => "FUA write",
            Self::Write { flush: true, .. } => "flush",
            Self::Write { .. } => "write",
            Self::Discard { .. } => "discard",
            Self::Mark(_) => "mark",
        }
    }
}

/// A log device or file, read from its start.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    sector_bytes: u64,
    entries: u64,
    read: u64,
    position: u64,
}

impl Log {
    /// Opens a log. An error if the file is no log of `dm-log-writes`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open the write log {}", path.display()))?;
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0).context("the write log has no super block")?;
        ensure!(
            u64_at(&head, 0) == MAGIC && u64_at(&head, 8) == VERSION,
            "{} is not a dm-log-writes log",
            path.display()
        );
        let sector_bytes = u64::from(u32::from_le_bytes([head[24], head[25], head[26], head[27]]));
        ensure!(matches!(sector_bytes, 512 | 4096), "sector size {sector_bytes} in the write log");
        Ok(Self { file, sector_bytes, entries: u64_at(&head, 16), read: 0, position: sector_bytes })
    }

    /// Number of entries according to the super block.
    pub(crate) fn len(&self) -> u64 {
        self.entries
    }

    /// The next entry; `None` at the end of the log. An error describes a damaged log.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        if self.read == self.entries {
            return Ok(None);
        }
        self.read += 1;
        let mut header = vec![0; self.sector_bytes as usize];
        self.read_at(&mut header, self.position)?;
        self.position += self.sector_bytes;
        let [sector, sectors, flags, length] = [0, 8, 16, 24].map(|at| u64_at(&header, at));
        if flags & MARK != 0 {
            let end = HEADER_BYTES + usize::try_from(length)?;
            let text = header.get(HEADER_BYTES..end).context("mark longer than a sector in the write log")?;
            return Ok(Some(Entry::Mark(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())));
        }
        let offset = sector.checked_mul(self.sector_bytes).context("sector number out of range in the write log")?;
        let bytes = sectors.checked_mul(self.sector_bytes).context("sector count out of range in the write log")?;
        if flags & DISCARD != 0 {
            return Ok(Some(Entry::Discard { offset, bytes }));
        }
        if bytes > MAX_DATA_BYTES || flags & !(FLUSH | FUA | 1 << 4) != 0 {
            bail!("entry {} of the write log is damaged (sectors {sectors}, flags {flags:#x})", self.read);
        }
        let mut data = vec![0; bytes as usize];
        self.read_at(&mut data, self.position)?;
        self.position += bytes;
        Ok(Some(Entry::Write { offset, data, flush: flags & FLUSH != 0, fua: flags & FUA != 0 }))
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> Result<()> {
        let entry = self.read;
        self.file.read_exact_at(into, at).with_context(|| format!("entry {entry} of the write log is cut off"))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
pub(crate) mod build {
    //! Builds logs for tests.
    use super::*;

    /// A log under construction, with sectors of 512 bytes.
    #[derive(Default)]
    pub(crate) struct Builder {
        body: Vec<u8>,
        entries: u64,
    }

    impl Builder {
        fn header(&mut self, sector: u64, sectors: u64, flags: u64, text: &[u8]) {
            let start = self.body.len();
            for word in [sector, sectors, flags, text.len() as u64] {
                self.body.extend(word.to_le_bytes());
            }
            self.body.extend(text);
            self.body.resize(start + 512, 0);
            self.entries += 1;
        }

        pub(crate) fn write(mut self, sector: u64, data: &[u8]) -> Self {
            self.header(sector, data.len() as u64 / 512, FUA, &[]);
            self.body.extend(data);
            self
        }

        pub(crate) fn flush(mut self) -> Self {
            self.header(0, 0, FLUSH, &[]);
            self
        }

        pub(crate) fn discard(mut self, sector: u64, sectors: u64) -> Self {
            self.header(sector, sectors, DISCARD, &[]);
            self
        }

        pub(crate) fn mark(mut self, text: &str) -> Self {
            self.header(0, 0, MARK, text.as_bytes());
            self
        }

        pub(crate) fn bytes(self) -> Vec<u8> {
            let mut log = Vec::new();
            for word in [MAGIC, VERSION, self.entries] {
                log.extend(word.to_le_bytes());
            }
            log.extend(512u32.to_le_bytes());
            log.resize(512, 0);
            log.extend(self.body);
            log
        }
    }
}

#[cfg(test)]
mod tests {
    use super::build::Builder;
    use super::*;
    use crate::base::scratch::Scratch;

    #[test]
    fn entries_come_back_in_order() {
        let log = Builder::default().write(8, &[7; 1024]).flush().discard(2, 3).mark("m1").bytes();
        let dir = Scratch::new("log").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, &log).unwrap();
        let mut log = Log::open(&path).unwrap();
        assert_eq!(log.len(), 4);
        let write = Entry::Write { offset: 4096, data: vec![7; 1024], flush: false, fua: true };
        assert_eq!(log.next().unwrap(), Some(write));
        let flush = Entry::Write { offset: 0, data: vec![], flush: true, fua: false };
        assert_eq!(log.next().unwrap(), Some(flush));
        assert_eq!(log.next().unwrap(), Some(Entry::Discard { offset: 1024, bytes: 1536 }));
        assert_eq!(log.next().unwrap(), Some(Entry::Mark("m1".into())));
        assert_eq!(log.next().unwrap(), None);
    }

    #[test]
    fn damaged_logs_are_errors() {
        let dir = Scratch::new("log").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, vec![0; 4096]).unwrap();
        assert!(Log::open(&path).unwrap_err().to_string().contains("not a dm-log-writes log"));
        let whole = Builder::default().write(0, &[1; 4096]).bytes();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(Log::open(&path).unwrap().next().unwrap_err().to_string().contains("cut off"));
    }
}
