//! The journal of durable writes, which a power cut must not lose.
//!
//! The journal is a text file (or serial line) with one line for each durable range. A line is written when
//! the server's answer makes the range durable: the answer to a write with FUA, or to a
//! FLUSH that was sent after the write's answer. It states that from this moment on the range
//! holds at least the named generation; the range may hold a later one.
//!
//! ```text
//! evenkeel-journal 1 seed 42 grain 4096
//! 8192 4096 17          offset, length, generation
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use crate::content::SECTOR;
use crate::error::{At, Error, ensure};
use crate::job::Job;
use crate::model::Floor;

const MAGIC: &str = "evenkeel-journal 1";

/// The file to which durable ranges are written. The threads of a job share it.
pub struct Journal {
    out: Mutex<Box<dyn Write + Send>>,
}

impl Journal {
    /// Creates the journal of `job` at `path` (`-` is standard output).
    ///
    /// # Errors
    /// The job's writes cannot be recorded, or the file cannot be written.
    pub fn of(job: &Job, path: &Path) -> Result<Self, Error> {
        ensure!(
            Options,
            job.fua || job.flush_every.is_some(),
            "--journal records what becomes durable: add --fua or --flush-every"
        );
        ensure!(
            Options,
            job.trim_percent == 0 && job.zero_percent == 0,
            "--journal needs writes whose content can be recognised: leave --trim-percent and --zero-percent out"
        );
        ensure!(
            Options,
            job.grain().is_multiple_of(SECTOR),
            "--journal needs block sizes that are multiples of 512 bytes"
        );
        Self::create(path, job.seed, job.grain())
    }

    /// Creates the file and writes seed and grain.
    fn create(path: &Path, seed: u64, grain: u64) -> Result<Self, Error> {
        let mut out: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            // A device is opened as it is; a file starts afresh.
            Box::new(File::create(path).at_with(|| format!("cannot write the journal {}", path.display()))?)
        };
        let header = format!("{MAGIC} seed {seed} grain {grain}\n");
        let written = out.write_all(header.as_bytes()).and_then(|()| out.flush());
        written.at_with(|| format!("cannot write the journal {}", path.display()))?;
        Ok(Self { out: Mutex::new(out) })
    }

    /// Appends durable ranges to the journal with one write call.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub(crate) fn append(&self, floors: &[Floor]) -> io::Result<()> {
        let mut text = String::new();
        for floor in floors {
            text.push_str(&format!("{} {} {}\n", floor.offset, floor.length, floor.generation));
        }
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }
}

/// A journal that was read back.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    /// Seed of the content that the run wrote.
    pub(crate) seed: u64,
    /// Unit in bytes of which all offsets and lengths are multiples.
    pub(crate) grain: u64,
    /// The durable ranges, oldest first.
    pub(crate) floors: Vec<Floor>,
}

impl Record {
    /// Reads a journal. A last line without a line end was cut off and is ignored.
    ///
    /// # Errors
    /// The file is no journal; the message names the line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).at_with(|| format!("cannot read the journal {}", path.display()))?;
        // Serial lines turn line ends into CR LF.
        let text = String::from_utf8_lossy(&bytes).replace('\r', "");
        Self::parse(&text).at_with(|| {
            format!("{} is damaged or no journal; give the file that --journal wrote, unchanged", path.display())
        })
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let header = lines.next().unwrap_or_default();
        let words: Vec<&str> = header.strip_prefix(MAGIC).unwrap_or_default().split_whitespace().collect();
        let ["seed", seed, "grain", grain] = words[..] else {
            return Err(Error::Journal(format!(
                "the first line is not `{MAGIC} seed SEED grain GRAIN`: this file is not a journal"
            )));
        };
        let number = |word: &str| word.parse::<u64>().at_with(|| format!("`{word}` is not a number"));
        let (seed, grain) = (number(seed)?, number(grain)?);
        ensure!(
            Journal,
            grain > 0 && grain.is_multiple_of(SECTOR),
            "the unit of ranges, {grain} bytes, is not a multiple of {SECTOR} bytes: the journal is damaged"
        );
        let floor = |line: &str| {
            let numbers = line.split_whitespace().map(number).collect::<Result<Vec<u64>, Error>>()?;
            let [offset, length, generation] = numbers[..] else {
                return Err(Error::Journal("the line is not OFFSET LENGTH GENERATION".into()));
            };
            ensure!(
                Journal,
                offset.is_multiple_of(grain) && length.is_multiple_of(grain),
                "offset and length are not both multiples of the grain, {grain} bytes"
            );
            ensure!(Journal, offset.checked_add(length).is_some(), "the range ends beyond 2^64 bytes");
            Ok(Floor { offset, length, generation })
        };
        let floors = lines.enumerate().map(|(index, line)| floor(line).at_with(|| format!("line {}", index + 2)));
        Ok(Self { seed, grain, floors: floors.collect::<Result<_, Error>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back_without_a_cut_off_line() {
        let dir = std::env::temp_dir().join(format!("evenkeel-journal-{}", std::process::id()));
        let journal = Journal::create(&dir, 42, 4096).unwrap();
        let floors = [
            Floor { offset: 8192, length: 4096, generation: 17 },
            Floor { offset: 0, length: 65536, generation: 1 << 40 },
        ];
        journal.append(&floors[..1]).unwrap();
        journal.append(&floors[1..]).unwrap();
        let mut text = std::fs::read_to_string(&dir).unwrap();
        std::fs::remove_file(&dir).unwrap();
        text.push_str("4096 40");
        let expected = Record { seed: 42, grain: 4096, floors: floors.to_vec() };
        assert_eq!(Record::parse(&text).unwrap(), expected);
    }

    #[test]
    fn a_damaged_journal_is_refused_with_its_line() {
        for (text, words) in [
            ("", "first line"),
            ("evenkeel-journal 2 seed 1 grain 512\n", "first line"),
            ("evenkeel-journal 1 seed x grain 512\n", "`x` is not a number"),
            ("evenkeel-journal 1 seed 1 grain 100\n", "multiple of 512"),
            ("evenkeel-journal 1 seed 1 grain 512\n512 512 1\n0 512\n", "line 3"),
            ("evenkeel-journal 1 seed 1 grain 512\n100 512 1\n", "grain, 512 bytes"),
            ("evenkeel-journal 1 seed 1 grain 512\n18446744073709551104 512 1\n", "beyond 2^64"),
        ] {
            let error = Record::parse(text).unwrap_err().in_full();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
