//! Replays a write log against a journal and finds acknowledged writes that are lost.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::log_writes::{Entry, Log};
use crate::check::journal::Journal;
use crate::check::pattern::{self, Content, SECTOR};

/// Results of a replay.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Number of entries in the log.
    pub(crate) entries: u64,
    /// Number of FLUSH entries.
    pub(crate) flushes: u64,
    /// Number of FUA writes.
    pub(crate) fua_writes: u64,
    /// Numbers of the marks, in the order of the log.
    pub(crate) marks: Vec<u64>,
    /// Number of sectors acknowledged as durable before the last mark.
    pub(crate) promised_sectors: u64,
    /// Number of sectors that after some cut held a lower generation than had been acknowledged as durable.
    pub(crate) broken_sectors: u64,
    /// Description of the first of the `broken_sectors`; `None` if there are none.
    pub(crate) first_broken: Option<String>,
}

impl Findings {
    /// Counts a write as a FLUSH and as a FUA write if it is one.
    fn count(&mut self, entry: &Entry) {
        if let Entry::Write { flush, fua, .. } = entry {
            self.flushes += u64::from(*flush);
            self.fua_writes += u64::from(*fua);
        }
    }
}

/// The disk after the replay of a prefix of the log.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Content of the whole disk.
    pub(crate) image: Vec<u8>,
}

impl Disk {
    /// Applies an entry of the log. Returns the range of bytes that the entry changed.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Result<std::ops::Range<usize>> {
        let (offset, bytes) = match entry {
            Entry::Write { offset, data, .. } => (*offset, data.len() as u64),
            Entry::Discard { offset, bytes } => (*offset, *bytes),
            Entry::Mark(_) => (0, 0),
        };
        let end = offset.checked_add(bytes).filter(|&e| e <= self.image.len() as u64);
        let end = end.with_context(|| format!("the write log holds a write at {offset} + {bytes}, past the disk"))?;
        let range = offset as usize..end as usize;
        match entry {
            Entry::Write { data, .. } => self.image[range.clone()].copy_from_slice(data),
            Entry::Discard { .. } => self.image[range.clone()].fill(0),
            Entry::Mark(_) => {}
        }
        Ok(range)
    }

    fn content(&self, sector: u64) -> Content {
        let start = sector as usize * SECTOR;
        self.image.get(start..start + SECTOR).map_or(Content::Corrupt, |s| pattern::read(s, sector))
    }
}

/// Cuts the power after every entry of the log, and compares the disk with the acknowledged writes.
///
/// Time is linear in the log: after a write only the sectors of the write are compared, and after a mark only the sectors
/// acknowledged before the mark.
pub(crate) fn judge(log: &Path, disk_bytes: usize, journal: &Journal) -> Result<Findings> {
    let mut log = Log::open(log)?;
    let mut disk = Disk { image: vec![0; disk_bytes] };
    let mut owed = vec![0; disk_bytes / SECTOR];
    let mut broken = BTreeSet::new();
    let mut found = Findings { entries: log.len(), ..Findings::default() };
    let mut number = 0;
    while let Some(entry) = log.next()? {
        number += 1;
        let mut suspects: Vec<u64> = Vec::new();
        match &entry {
            Entry::Mark(text) => {
                // The target itself adds a closing mark, which promises nothing.
                let Ok(mark) = text.parse() else { continue };
                found.marks.push(mark);
                for durable in journal.before(mark) {
                    for sector in durable.sector..durable.sector + durable.count {
                        let owed = owed.get_mut(sector as usize).context("the journal names a sector past the disk")?;
                        *owed = durable.generation.max(*owed);
                        suspects.push(sector);
                    }
                }
            }
            other => found.count(other),
        }
        let changed = disk.apply(&entry)?;
        suspects.extend((changed.start / SECTOR) as u64..changed.end.div_ceil(SECTOR) as u64);
        for sector in suspects {
            let due = owed[sector as usize];
            let content = disk.content(sector);
            if content.generation().is_none_or(|g| g < due) && broken.insert(sector) && found.first_broken.is_none() {
                found.first_broken = Some(format!(
                    "after entry {number} of the log, a {}: sector {sector} holds {content:?}, generation {due} had been acknowledged",
                    entry.kind()
                ));
            }
        }
    }
    found.promised_sectors = owed.iter().filter(|&&g| g > 0).count() as u64;
    found.broken_sectors = broken.len() as u64;
    Ok(found)
}

/// Counts the entries, marks and acknowledged sectors of a log, without checking the content of the disk.
pub(crate) fn survey(log: &Path, journal: &Journal) -> Result<Findings> {
    let mut log = Log::open(log)?;
    let mut found = Findings { entries: log.len(), ..Findings::default() };
    while let Some(entry) = log.next()? {
        match entry {
            Entry::Mark(text) => found.marks.extend(text.parse::<u64>()),
            other => found.count(&other),
        }
    }
    found.promised_sectors = journal.owed_at(found.marks.last().copied().unwrap_or(0)).len() as u64;
    Ok(found)
}

/// For each of `cuts`, a mark and a file, writes the disk's content at the mark to the file. Marks must ascend.
pub(crate) fn write_images(log: &Path, disk_bytes: usize, cuts: &[(u64, &Path)]) -> Result<()> {
    let mut log = Log::open(log)?;
    let mut disk = Disk { image: vec![0; disk_bytes] };
    let mut cuts = cuts.iter();
    let mut next = cuts.next();
    while let (Some(&(mark, path)), Some(entry)) = (next, log.next()?) {
        disk.apply(&entry)?;
        if entry == Entry::Mark(mark.to_string()) {
            std::fs::write(path, &disk.image).with_context(|| format!("cannot write {}", path.display()))?;
            next = cuts.next();
        }
    }
    ensure!(next.is_none(), "mark {} is not in the write log", next.map_or(0, |c| c.0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scratch::Scratch;
    use crate::durability::log_writes::build::Builder;

    fn sectors(first: u64, count: usize, generation: u64) -> Vec<u8> {
        let mut data = vec![0; count * SECTOR];
        pattern::fill(&mut data, first, generation);
        data
    }

    fn run(log: Builder, journal: &str) -> Findings {
        let dir = Scratch::new("replay").unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, log.bytes()).unwrap();
        judge(&path, 64 * SECTOR, &Journal::parse(journal).unwrap()).unwrap()
    }

    #[test]
    fn acknowledged_writes_that_are_there_pass() {
        let log =
            Builder::default().write(8, &sectors(8, 2, 1)).flush().mark("1").write(9, &sectors(9, 1, 4)).mark("2");
        let found = run(log, "A 8 2 1\nM 1\nA 9 1 4\nM 2\n");
        assert_eq!((found.broken_sectors, found.promised_sectors, found.flushes), (0, 2, 1));
        assert_eq!(found.marks, [1, 2]);
    }

    #[test]
    fn a_write_that_is_missing_at_its_mark_is_caught_even_if_it_comes_later() {
        let log = Builder::default().write(8, &sectors(8, 1, 1)).mark("1").write(9, &sectors(9, 1, 2)).mark("2");
        let found = run(log, "A 8 1 1\nA 9 1 2\nM 1\nM 2\n");
        assert_eq!(found.broken_sectors, 1);
        assert!(found.first_broken.unwrap().contains("sector 9 holds Zero"));
    }

    #[test]
    fn old_data_over_durable_data_and_mixed_data_are_caught_between_marks() {
        let old = Builder::default().write(8, &sectors(8, 1, 3)).mark("1").write(8, &sectors(8, 1, 2));
        assert_eq!(run(old, "A 8 1 3\nM 1\n").broken_sectors, 1);
        let mut mixed = sectors(8, 1, 3);
        mixed[256..].fill(0);
        let mixed = Builder::default().write(8, &sectors(8, 1, 3)).mark("1").write(8, &mixed);
        assert_eq!(run(mixed, "A 8 1 3\nM 1\n").broken_sectors, 1);
        let discarded = Builder::default().write(8, &sectors(8, 1, 3)).mark("1").discard(0, 32);
        assert_eq!(run(discarded, "A 8 1 3\nM 1\n").broken_sectors, 1);
    }

    #[test]
    fn images_are_the_disk_at_their_marks() {
        let log = Builder::default().write(1, &sectors(1, 1, 1)).mark("1").write(1, &sectors(1, 1, 2)).mark("2");
        let dir = Scratch::new("replay").unwrap();
        let [path, first, second, third] = ["log", "1", "2", "3"].map(|n| dir.path().join(n));
        std::fs::write(&path, log.bytes()).unwrap();
        write_images(&path, 8 * SECTOR, &[(1, &first), (2, &second)]).unwrap();
        for (image, generation) in [(first, 1), (second, 2)] {
            let image = std::fs::read(image).unwrap();
            assert_eq!(pattern::read(&image[SECTOR..2 * SECTOR], 1), Content::Generation(generation));
        }
        assert!(write_images(&path, 8 * SECTOR, &[(7, &third)]).is_err());
    }
}
