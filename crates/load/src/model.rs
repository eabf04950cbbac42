//! The possible content of each block of a volume, with reads and writes in flight.
//!
//! A block (a *grain*, the greatest unit that all requests are multiples of) holds one
//! of the writes that were sent to it. Which ones a read may return follows from order
//! alone, with no assumption on how the server schedules:
//!
//! - a write that is in flight, or was when the read was, may be seen or not;
//! - a completed write rules out every write that had completed before it was sent;
//! - two writes in flight together may land in either order, word by word;
//! - a failed write may have landed, wholly or in part, and rules out nothing.
//!
//! The same rules give what a block may hold after a power cut: see [`Model::floors`].

use std::collections::HashMap;
use std::fmt;

use crate::content::{Content, Found, SECTOR};

/// Completed writes of one grain that may all be what it holds (failed ones, writes that overlapped).
/// Beyond this the grain counts as unknown until the next write completes, which bounds memory.
const MAX_CANDIDATES: usize = 32;

/// The content that a write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Anything: never written in this run, or trimmed.
    Unknown,
    /// Zeroes.
    Zeroes,
    /// The content of this write.
    Write(u64),
    /// The content of this write or of a later one (after a power cut).
    AtLeast(u64),
}

/// A write, zeroing or trim in flight; hand it back with [`Model::end_write`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// When it was sent, as an event number.
    issued: u64,
    /// Generation of its content; 0 without content.
    pub(crate) generation: u64,
}

/// A read that returned what the volume cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Offset of the first wrong sector, in bytes.
    pub(crate) offset: u64,
    /// The possible content there.
    pub(crate) expected: String,
    /// The content that was read.
    pub(crate) got: Found,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {}: expected {}, got {}", self.offset, self.expected, self.got)
    }
}

/// A range that holds at least generation `generation`, as the journal records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Smallest generation that the range may hold.
    pub(crate) generation: u64,
}

/// One write that a grain may hold, or may have held while a read now in flight was.
#[derive(Clone, Copy, Debug)]
struct Version {
    holds: Holds,
    issued: u64,
    completed: Option<u64>,
    /// When a later write ruled it out.
    gone: Option<u64>,
}

/// A grain with something in flight, or with several candidates.
#[derive(Debug, Default)]
struct Busy {
    versions: Vec<Version>,
    /// When each read in flight was sent.
    readers: Vec<u64>,
}

/// The possible content of each grain of `start..start + length`.
pub(crate) struct Model {
    content: Content,
    start: u64,
    grain: u64,
    /// Grains at rest with one candidate, which is nearly all of them.
    settled: Vec<Packed>,
    busy: HashMap<usize, Busy>,
    /// Number of the last event.
    clock: u64,
    /// Number of the last write.
    generation: u64,
    /// Bytes whose content was compared.
    pub(crate) verified_bytes: u64,
}

/// [`Holds`] in 8 bytes: two bits of kind, the rest generation.
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
    /// A model of `length` bytes from `start`, of which nothing is known. All are multiples of
    /// `grain`, and that of [`SECTOR`].
    pub(crate) fn new(content: Content, start: u64, length: u64, grain: u64) -> Self {
        debug_assert!(grain.is_multiple_of(SECTOR) && start.is_multiple_of(grain) && length.is_multiple_of(grain));
        let settled = vec![Packed::from(Holds::Unknown); (length / grain) as usize];
        Self { content, start, grain, settled, busy: HashMap::new(), clock: 0, generation: 0, verified_bytes: 0 }
    }

    /// Bytes of memory that a model takes for each grain at rest.
    pub(crate) const BYTES_PER_GRAIN: u64 = size_of::<Packed>() as u64;

    /// The unit of the model, in bytes.
    pub(crate) fn grain(&self) -> u64 {
        self.grain
    }

    /// The content that writes carry.
    pub(crate) fn content(&self) -> Content {
        self.content
    }

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

    /// States what `offset..offset + length` holds while nothing is in flight there.
    pub(crate) fn set(&mut self, offset: u64, length: u64, holds: Holds) {
        for grain in self.grains(offset, length) {
            self.settled[grain] = holds.into();
        }
    }

    /// The content of a grain at rest; `None` while something is in flight or several writes may be there.
    pub(crate) fn at_rest(&self, offset: u64) -> Option<Holds> {
        let grain = self.grains(offset, 0).start;
        if self.busy.contains_key(&grain) { None } else { Some(self.settled[grain].into()) }
    }

    /// A write is about to be sent; its content is that of the ticket's generation.
    pub(crate) fn begin_write(&mut self, offset: u64, length: u64) -> Ticket {
        self.generation += 1;
        let generation = self.generation;
        let issued = self.begin_change(offset, length, Holds::Write(generation));
        Ticket { issued, generation }
    }

    /// A zeroing ([`Holds::Zeroes`]) or trim ([`Holds::Unknown`]) is about to be sent.
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

    /// A write, zeroing or trim was answered.
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

    /// A read is about to be sent; returns when, for [`Model::end_read`].
    pub(crate) fn begin_read(&mut self, offset: u64, length: u64) -> u64 {
        self.clock += 1;
        let issued = self.clock;
        for grain in self.grains(offset, length) {
            self.busy(grain).readers.push(issued);
        }
        issued
    }

    /// A read was answered, with `data` if it succeeded.
    ///
    /// # Errors
    /// The first sector that holds what it cannot hold.
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

    /// Forgets what no read in flight can see any more.
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

    /// The smallest generation that each part of the range may hold now, as runs of grains; parts
    /// without a known generation are left out. Once what is completed now is durable, a power cut
    /// leaves at least these: whatever it may hold else was in flight, or is sent later.
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

/// True if each word of a sector comes from one of the candidates.
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
        Holds::Write(generation) => format!("write {generation}"),
        Holds::AtLeast(generation) => format!("write {generation} or later"),
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
