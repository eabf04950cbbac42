//! The journal of writes that the server acknowledged as durable, in order, with marks.
//!
//! A line is `A SECTOR COUNT GENERATION` for sectors of a write acknowledged with FUA or before an acknowledged FLUSH, or
//! `M N`, written before mark `N` is put into the write log. The writes of all `A` lines above `M N` were acknowledged
//! before the mark, so a replay of the log up to mark `N` must contain them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Sectors acknowledged as durable by one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durable {
    /// First sector.
    pub(crate) sector: u64,
    /// Number of sectors.
    pub(crate) count: u64,
    /// Generation of the write, a number that grows from write to write.
    pub(crate) generation: u64,
}

/// The acknowledged writes of one run, grouped by the mark that follows them.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    before_mark: BTreeMap<u64, Vec<Durable>>,
}

impl Journal {
    /// Reads a journal. A last line that the power cut left incomplete is dropped.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut journal = Self::default();
        let mut open = Vec::new();
        let whole = &text[..text.rfind('\n').map_or(0, |i| i + 1)];
        for (number, line) in whole.lines().enumerate() {
            let fields: Vec<&str> = line.split(' ').collect();
            let values: Result<Vec<u64>, _> = fields[1..].iter().map(|f| f.parse()).collect();
            let values = values.with_context(|| format!("line {} of the journal: `{line}`", number + 1))?;
            match (fields[0], values.as_slice()) {
                ("A", &[sector, count, generation]) => open.push(Durable { sector, count, generation }),
                ("M", &[mark]) => {
                    journal.before_mark.insert(mark, std::mem::take(&mut open));
                }
                _ => anyhow::bail!("line {} of the journal: `{line}`", number + 1),
            }
        }
        Ok(journal)
    }

    /// The writes acknowledged between the preceding mark and `mark`.
    pub(crate) fn before(&self, mark: u64) -> &[Durable] {
        self.before_mark.get(&mark).map_or(&[], Vec::as_slice)
    }

    /// Per sector: the lowest generation that it may hold after a replay of the log up to `mark`.
    pub(crate) fn owed_at(&self, mark: u64) -> BTreeMap<u64, u64> {
        owed(self.before_mark.range(..=mark).flat_map(|(_, d)| d))
    }
}

/// Per sector: the lowest generation that it may hold after these acknowledged writes.
pub(crate) fn owed<'a>(acknowledged: impl IntoIterator<Item = &'a Durable>) -> BTreeMap<u64, u64> {
    let mut owed = BTreeMap::new();
    for durable in acknowledged {
        for sector in durable.sector..durable.sector + durable.count {
            let generation = owed.entry(sector).or_insert(0);
            *generation = durable.generation.max(*generation);
        }
    }
    owed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_belong_to_the_next_mark() {
        let journal = Journal::parse("A 8 2 1\nM 1\nA 9 1 5\nA 20 1 6\nM 2\nA 0 1 9\nA 1 ").unwrap();
        assert_eq!(journal.owed_at(1), BTreeMap::from([(8, 1), (9, 1)]));
        assert_eq!(journal.owed_at(2), BTreeMap::from([(8, 1), (9, 5), (20, 6)]));
        assert_eq!(journal.before(2).len(), 2);
        assert!(Journal::parse("A 1 x\n").is_err());
    }
}
