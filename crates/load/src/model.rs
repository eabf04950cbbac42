//! The possible content of each block of a volume, while reads and writes are in flight.
//!
//! A block (a *grain*, the largest unit of which all requests are multiples) holds the
//! content of one of the writes sent to it. The writes that a read may return follow from the
//! order of requests and answers alone, for any scheduling by the server:
//!
//! - a read may return a write that was in flight at the same time, or not;
//! - a completed write rules out every write that had completed before it was sent;
//! - two writes in flight at the same time may land in either order, word by word;
//! - a failed write may have landed, wholly or in part, and rules out no other write.
//!
//! The same rules give the possible content after a power cut: see [`Model::floors`].

use std::collections::HashMap;
use std::fmt;

use crate::content::{Content, Found, SECTOR};

/// The most completed writes that are tracked as possible contents of one grain: writes that failed, or that were in flight at
/// the same time. With more, the grain's content counts as unknown until the next write completes, which bounds memory.
const MAX_CANDIDATES: usize = 32;

/// The content that a grain may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Any content: the run has not written it, or a trim has completed.
    Unknown,
    /// Only zeroes.
    Zeroes,
    /// The content of the write with this generation.
    Write(u64),
    /// The content of the write with this generation or of a later one (after a power cut).
    AtLeast(u64),
}

/// A write, zeroing or trim in flight; to be passed to [`Model::end_write`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Event number at which the request was sent.
    issued: u64,
    /// Generation of the written content; 0 for a zeroing or trim.
    pub(crate) generation: u64,
}

/// A read that returned content which the volume cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Offset of the first wrong sector, in bytes.
    pub(crate) offset: u64,
    /// The possible content of the sector, as text.
    pub(crate) expected: String,
    /// The content that was read from the sector.
    pub(crate) got: Found,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: expected {}, got {}", self.offset, self.expected, self.got)
    }
}

/// A range with the lowest generation that it may hold after a power cut, as the journal records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Offset of the range, in bytes.
    pub(crate) offset: u64,
    /// Length of the range, in bytes.
    pub(crate) length: u64,
    /// Lowest generation that the range may hold.
    pub(crate) generation: u64,
}

/// A write that a grain may hold, or may have held since the start of a read still in flight.
#[derive(Clone, Copy, Debug)]
struct Version {
    holds: Holds,
    issued: u64,
    completed: Option<u64>,
    /// Event number at which a later write ruled this version out; `None`: it is still possible.
    gone: Option<u64>,
}

/// A grain with requests in flight, or with several possible contents.
#[derive(Debug, Default)]
struct Busy {
    versions: Vec<Version>,
    /// Event numbers of the starts of the reads in flight.
    readers: Vec<u64>,
}

/// The possible content of each grain of `start..start + length`.
pub(crate) struct Model {
    /// The content that is written, by sector and generation.
    pub(crate) content: Content,
    start: u64,
    /// Size of a grain, in bytes.
    pub(crate) grain: u64,
    /// Per grain: its content, unless the grain is in `busy`. Nearly all grains are at rest.
    settled: Vec<Packed>,
    /// Possible contents of grains that are not at rest (with requests in flight, or several possible contents), by number.
    busy: HashMap<usize, Busy>,
    /// Number of the last event; starts and ends of requests are events.
    clock: u64,
    /// Generation of the last write that was begun.
    generation: u64,
    /// Bytes of reads that were compared with the possible content.
    pub(crate) verified_bytes: u64,
}

/// A [`Holds`] in 8 bytes: two bits for the variant, the other bits for the generation.
#[derive(Clone, Copy)]
struct Packed(u64);

impl From<Holds> for Packed {
    fn from(holds: Holds) -> Self {
        Self(match holds {
            Holds::Unknown => 0,
            Holds::Zeroes => 1,
            Holds::Write(generation) => generation << 2 | 2,
            Holds::AtLeast(generation) => generation << 2 | 3,
        })
    }
}

impl From<Packed> for Holds {
    fn from(packed: Packed) -> Self {
        match packed.0 & 3 {
            0 => Self::Unknown,
            1 => Self::Zeroes,
            2 => Self::Write(packed.0 >> 2),
            _ => Self::AtLeast(packed.0 >> 2),
        }
    }
}

impl Model {
    /// A model of `length` bytes from `start`, whose content is unknown. `start` and `length` are multiples of
    /// `grain`, and `grain` is a multiple of [`SECTOR`].
    pub(crate) fn new(content: Content, start: u64, length: u64, grain: u64) -> Self {
        debug_assert!(grain.is_multiple_of(SECTOR) && start.is_multiple_of(grain) && length.is_multiple_of(grain));
        let settled = vec![Packed::from(Holds::Unknown); (length / grain) as usize];
        Self { content, start, grain, settled, busy: HashMap::new(), clock: 0, generation: 0, verified_bytes: 0 }
    }

    /// Bytes of memory that the model takes for each grain at rest.
    pub(crate) const BYTES_PER_GRAIN: u64 = size_of::<Packed>() as u64;

    fn grains(&self, offset: u64, length: u64) -> std::ops::Range<usize> {
        let first = (offset - self.start) / self.grain;
        first as usize..(first + length / self.grain) as usize
    }

    fn busy(&mut self, grain: usize) -> &mut Busy {
        let settled = self.settled[grain];
        self.busy.entry(grain).or_insert_with(|| {
            let rest = Version { holds: settled.into(), issued: 0, completed: Some(0), gone: None };
            Busy { versions: vec![rest], readers: Vec::new() }
        })
    }

    /// Sets the content of `offset..offset + length`, where no request may be in flight.
    pub(crate) fn set(&mut self, offset: u64, length: u64, holds: Holds) {
        for grain in self.grains(offset, length) {
            self.settled[grain] = holds.into();
        }
    }

    /// The content of the grain at `offset`; `None` while requests are in flight or several contents are possible.
    pub(crate) fn at_rest(&self, offset: u64) -> Option<Holds> {
        let grain = self.grains(offset, 0).start;
        if self.busy.contains_key(&grain) { None } else { Some(self.settled[grain].into()) }
    }

    /// Records that a write is about to be sent. The written content must have the generation of the returned ticket.
    pub(crate) fn begin_write(&mut self, offset: u64, length: u64) -> Ticket {
        self.generation += 1;
        let generation = self.generation;
        let issued = self.begin_change(offset, length, Holds::Write(generation));
        Ticket { issued, generation }
    }

    /// Records that a zeroing ([`Holds::Zeroes`]) or a trim ([`Holds::Unknown`]) is about to be sent.
    pub(crate) fn begin_discard(&mut self, offset: u64, length: u64, holds: Holds) -> Ticket {
        Ticket { issued: self.begin_change(offset, length, holds), generation: 0 }
    }

    fn begin_change(&mut self, offset: u64, length: u64, holds: Holds) -> u64 {
        self.clock += 1;
        let issued = self.clock;
        for grain in self.grains(offset, length) {
            self.busy(grain).versions.push(Version { holds, issued, completed: None, gone: None });
        }
        issued
    }

    /// Records the answer to a write, zeroing or trim.
    pub(crate) fn end_write(&mut self, offset: u64, length: u64, ticket: Ticket, succeeded: bool) {
        self.clock += 1;
        let now = self.clock;
        for grain in self.grains(offset, length) {
            for version in &mut self.busy(grain).versions {
                if version.issued == ticket.issued {
                    version.completed = Some(now);
                } else if succeeded && version.completed.is_some_and(|completed| completed <= ticket.issued) {
                    version.gone.get_or_insert(now);
                }
            }
            self.settle(grain);
        }
    }

    /// Records that a read is about to be sent. Returns the event number, which [`Model::end_read`] needs.
    pub(crate) fn begin_read(&mut self, offset: u64, length: u64) -> u64 {
        self.clock += 1;
        let issued = self.clock;
        for grain in self.grains(offset, length) {
            self.busy(grain).readers.push(issued);
        }
        issued
    }

    /// Records the answer to a read, with `data` if the read succeeded, and checks the data.
    ///
    /// # Errors
    /// The first sector whose content is not possible.
    pub(crate) fn end_read(
        &mut self,
        offset: u64,
        length: u64,
        issued: u64,
        data: Option<&[u8]>,
    ) -> Result<(), Box<Mismatch>> {
        self.clock += 1;
        let mut result = Ok(());
        for (index, grain) in self.grains(offset, length).enumerate() {
            if let (Some(data), Ok(())) = (data, &result) {
                let size = self.grain as usize;
                result = self.check(grain, issued, &data[index * size..(index + 1) * size]);
            }
            let readers = &mut self.busy(grain).readers;
            if let Some(at) = readers.iter().position(|&reader| reader == issued) {
                readers.swap_remove(at);
            }
            self.settle(grain);
        }
        result
    }

    fn check(&mut self, grain: usize, issued: u64, bytes: &[u8]) -> Result<(), Box<Mismatch>> {
        let content = self.content;
        let offset = self.start + grain as u64 * self.grain;
        let sector = offset / SECTOR;
        let candidates: Vec<Holds> = self
            .busy(grain)
            .versions
            .iter()
            .filter(|version| version.gone.is_none_or(|gone| gone > issued))
            .map(|version| version.holds)
            .collect();
        if candidates.contains(&Holds::Unknown) {
            return Ok(());
        }
        self.verified_bytes += bytes.len() as u64;
        let whole = |holds: &Holds| match *holds {
            Holds::Write(generation) => content.matches(sector, generation, bytes),
            Holds::Zeroes => bytes.iter().all(|&byte| byte == 0),
            Holds::Unknown | Holds::AtLeast(_) => false,
        };
        // Newest first: nearly always that is it.
        if candidates.iter().rev().any(whole) {
            return Ok(());
        }
        for (sector, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR as usize)) {
            if !may_hold(content, sector, bytes, &candidates) {
                let expected: Vec<String> = candidates.iter().map(describe).collect();
                let (expected, got) = (expected.join(" or "), content.identify(bytes));
                return Err(Box::new(Mismatch { offset: sector * SECTOR, expected, got }));
            }
        }
        Ok(())
    }

    /// Drops the versions of a grain that are ruled out and that no read in flight can return any more.
    fn settle(&mut self, grain: usize) {
        let Some(busy) = self.busy.get_mut(&grain) else { return };
        let oldest_reader = busy.readers.iter().min().copied().unwrap_or(u64::MAX);
        busy.versions.retain(|version| version.gone.is_none_or(|gone| gone > oldest_reader));
        let is_candidate = |version: &Version| version.completed.is_some() && version.gone.is_none();
        if busy.versions.iter().filter(|version| is_candidate(version)).count() > MAX_CANDIDATES {
            let latest = busy.versions.iter().filter_map(|version| version.completed).max();
            busy.versions.retain(|version| !is_candidate(version));
            busy.versions.push(Version { holds: Holds::Unknown, issued: 0, completed: latest, gone: None });
        }
        if let ([Version { holds, completed: Some(_), gone: None, .. }], true) =
            (busy.versions.as_slice(), busy.readers.is_empty())
        {
            self.settled[grain] = (*holds).into();
            self.busy.remove(&grain);
        }
    }

    /// Appends the lowest generation that each part of the range may hold now, as runs of grains; parts
    /// without a known generation are left out. Once all writes that are complete now are durable, a power cut
    /// leaves at least these generations: other possible contents are in flight or will be sent later.
    pub(crate) fn floors(&self, offset: u64, length: u64, out: &mut Vec<Floor>) {
        for grain in self.grains(offset, length) {
            let generation_of = |holds: Holds| match holds {
                Holds::Write(generation) | Holds::AtLeast(generation) => generation,
                Holds::Unknown | Holds::Zeroes => 0,
            };
            let generation = match self.busy.get(&grain) {
                None => generation_of(self.settled[grain].into()),
                Some(busy) => {
                    let alive = busy.versions.iter().filter(|version| version.gone.is_none());
                    alive.map(|version| generation_of(version.holds)).min().unwrap_or(0)
                }
            };
            let at = self.start + grain as u64 * self.grain;
            match out.last_mut() {
                _ if generation == 0 => {}
                Some(last) if last.offset + last.length == at && last.generation == generation => {
                    last.length += self.grain;
                }
                _ => out.push(Floor { offset: at, length: self.grain, generation }),
            }
        }
    }
}

/// True if a sector's content is possible: each word must come from one of the candidates; after a power cut the whole sector
/// must come from one write.
fn may_hold(content: Content, sector: u64, bytes: &[u8], candidates: &[Holds]) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    // After a power cut the sector names its own generation, which then has to be right as a whole.
    if let Some(Holds::AtLeast(least)) = candidates.iter().find(|holds| matches!(holds, Holds::AtLeast(_))) {
        return matches!(content.identify(bytes), Found::Write { sector: at, generation } if at == sector && generation >= *least);
    }
    words.iter().enumerate().all(|(index, word)| {
        let word = u64::from_le_bytes(*word);
        candidates.iter().any(|holds| match *holds {
            Holds::Write(generation) => content.word(sector, generation, index) == word,
            Holds::Zeroes => word == 0,
            Holds::Unknown | Holds::AtLeast(_) => true,
        })
    })
}

fn describe(holds: &Holds) -> String {
    match holds {
        Holds::Unknown => "anything".into(),
        Holds::Zeroes => "zeroes".into(),
        Holds::Write(generation) => format!("write number {generation}"),
        Holds::AtLeast(generation) => format!("write number {generation} or later"),
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
