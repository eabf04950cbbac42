//! Names and losses of a block as bytes, each with its place among the block's requests.

use evenkeel_wire::{Input, put, put_text};

use crate::bounds::{BLOCK_NOTES, MAX_TEXT};
use crate::request::{Item, Name, Outcome, Table};

/// Code of a loss. The code of a name is the number of its table.
const LOSS: u64 = 3;

/// The reason why an item cannot be recorded; `None` if it can.
pub(crate) fn fault(item: &Item) -> Option<&'static str> {
    match item {
        Item::Request(request) => {
            let admitted = request.arrival_ns.checked_add(request.queue_ns);
            let completed = admitted.and_then(|admitted| admitted.checked_add(request.device_ns));
            let failed = request.outcome == Outcome::Failed(0);
            match completed {
                None => Some("a request completes 2^64 ns after the start of the recording: correct its times"),
                Some(_) => failed.then_some("a request failed with error 0: record the error's number"),
            }
        }
        Item::Name(name) => {
            let longest = name.name.len().max(name.pool.len());
            (longest > MAX_TEXT).then_some("a name is longer than 4096 bytes: shorten it")
        }
        Item::Lost { from_ns, to_ns, .. } => {
            (from_ns > to_ns).then_some("a loss of requests ends before it begins: correct its times")
        }
    }
}

/// The names and losses of a block that is being written.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    count: usize,
    /// Number of requests before the newest.
    at: usize,
    bytes: Vec<u8>,
}

impl Notes {
    /// Number of names and losses.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Length of their encoding, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.at = 0;
        self.bytes.clear();
    }

    /// Adds a name behind the block's first `requests` requests.
    pub(crate) fn add_name(&mut self, requests: usize, name: &Name) {
        self.begin(requests, u64::from(name.table as u8));
        put(&mut self.bytes, u64::from(name.number));
        put_text(&mut self.bytes, &name.name);
        put_text(&mut self.bytes, &name.pool);
        put(&mut self.bytes, name.bytes);
    }

    /// Adds a loss of `lost` requests, in the time from `from_ns` to `to_ns`, behind the block's first `requests` requests.
    pub(crate) fn add_loss(&mut self, requests: usize, lost: u64, from_ns: u64, to_ns: u64) {
        self.begin(requests, LOSS);
        put(&mut self.bytes, lost);
        put(&mut self.bytes, from_ns);
        put(&mut self.bytes, to_ns.saturating_sub(from_ns));
    }

    fn begin(&mut self, requests: usize, code: u64) {
        put(&mut self.bytes, (requests - self.at) as u64);
        put(&mut self.bytes, code);
        self.at = requests;
        self.count += 1;
    }

    /// Appends all to a payload.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put(out, self.count as u64);
        out.extend_from_slice(&self.bytes);
    }
}

/// Reads the names and losses of a block of so many requests, each with the number of requests before it.
pub(crate) fn notes(input: &mut Input<'_>, requests: usize) -> Option<Vec<(usize, Item)>> {
    let count = input.count(BLOCK_NOTES)?;
    let mut notes = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        at += input.count(requests - at)?;
        notes.push((at, note(input)?));
    }
    Some(notes)
}

/// Reads a name or loss.
fn note(input: &mut Input<'_>) -> Option<Item> {
    let table = match input.number()? {
        0 => Table::Tenant,
        1 => Table::Client,
        2 => Table::Volume,
        LOSS => {
            let (requests, from_ns, length) = (input.number()?, input.number()?, input.number()?);
            return Some(Item::Lost { requests, from_ns, to_ns: from_ns.checked_add(length)? });
        }
        _ => return None,
    };
    let number = input.small()?;
    let (name, pool) = (input.text(MAX_TEXT)?, input.text(MAX_TEXT)?);
    Some(Item::Name(Name { table, number, name, pool, bytes: input.number()? }))
}
