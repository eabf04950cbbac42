//! A file that requests are recorded in.

use std::collections::HashSet;
use std::fs::File;
use std::io;

use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Head, Item, Name, Request, Scrambler, Table, Writer};

use super::Record;
use super::names::{Names, Numbers};
use super::ring::Lost;

/// Interval at which the requests so far are written out, so that they can be read after a crash, if there are [`MANY`].
const FLUSHED_EVERY: Duration = Duration::from_secs(1);
/// The same if there are fewer, which in a block of their own take more bytes each.
const FEW_FLUSHED_EVERY: Duration = Duration::from_secs(10);
/// Number of requests from which on a block is as compact as a full one, or nearly so.
const MANY: u64 = 128;
/// Room for the block that is not written yet, in bytes: 4096 requests that do not compress.
const BLOCK: u64 = 256 << 10;

/// An open file with its recording: of the server's requests, or of another source's.
pub struct Sheet {
    writer: Writer<File>,
    /// The time that the recording counts from.
    zero: Instant,
    /// Index of the only pool that is recorded.
    pool: Option<u32>,
    scrambler: Option<Scrambler>,
    /// The names that are in the file already.
    introduced: HashSet<(Table, u32)>,
    flushed: Instant,
    /// Number of requests at `flushed`.
    flushed_requests: u64,
    requests: u64,
    lost: u64,
    /// Number of requests, with those that could not be kept, which the blocks in the file account for.
    accounted: u64,
}

impl Sheet {
    /// Begins a recording in an empty file. Requests that had arrived before `zero` are left out.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(
        file: File,
        head: &Head,
        zero: Instant,
        pool: Option<u32>,
        scrambler: Option<Scrambler>,
    ) -> io::Result<Self> {
        let writer = Writer::new(file, head)?;
        let introduced = HashSet::new();
        let (flushed, flushed_requests) = (zero, 0);
        let (requests, lost, accounted) = (0, 0, 0);
        Ok(Self { writer, zero, pool, scrambler, introduced, flushed, flushed_requests, requests, lost, accounted })
    }

    /// Records a request, unless it is not asked for.
    ///
    /// # Errors
    /// If the file cannot be written; the request counts nevertheless, see [`Self::unwritten`].
    pub(super) fn put(
        &mut self,
        record: &Record,
        numbers: Numbers,
        retried: bool,
        names: &mut Names,
    ) -> io::Result<()> {
        if record.arrived < self.zero || self.pool.is_some_and(|pool| pool != record.pool) {
            return Ok(());
        }
        let Numbers { tenant, client } = numbers;
        for (table, number) in [(Table::Tenant, tenant), (Table::Client, client), (Table::Volume, record.volume)] {
            if !self.introduced.contains(&(table, number)) {
                self.introduce(names.name(table, number)).inspect_err(|_| self.lost += 1)?;
            }
        }
        let bytes = names.volume(record.volume).bytes;
        let request = Request {
            arrival_ns: record.arrived.since(self.zero).as_nanos(),
            queue_ns: record.admitted.since(record.arrived).as_nanos(),
            device_ns: record.done.since(record.admitted).as_nanos(),
            tenant,
            client,
            volume: record.volume,
            kind: record.kind,
            durable: record.durable,
            retried,
            offset: record.offset,
            length: record.length,
            outcome: record.outcome,
        };
        self.write(request, bytes)
    }

    /// Writes the name of a tenant, client or volume, scrambled if the recording has a key ([`Order::key`](super::Order::key)).
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn introduce(&mut self, name: Name) -> io::Result<()> {
        self.introduced.insert((name.table, name.number));
        let name = self.scrambler.as_ref().map_or(name.clone(), |scrambler| scrambler.entry(&name));
        self.hand_over(&Item::Name(name)).map(drop)
    }

    /// Hands an item to the writer, after it was counted. True if the writer has left it out because the format has no form for
    /// it, after which writing goes on.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn hand_over(&mut self, item: &Item) -> io::Result<bool> {
        let before = self.writer.bytes();
        match self.writer.write(item) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(true),
            Err(error) => return Err(error),
        }
        if self.writer.bytes() > before {
            self.accounted = self.requests + self.lost;
        }
        Ok(false)
    }

    /// True if the file has the name of this number.
    pub(super) fn knows(&self, table: Table, number: u32) -> bool {
        self.introduced.contains(&(table, number))
    }

    /// Writes a request whose names are in the file, with its offset scrambled if that is asked for. `bytes`: size of its
    /// volume.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, mut request: Request, bytes: u64) -> io::Result<()> {
        if let Some(scrambler) = &self.scrambler {
            let (offset, length) = (request.offset, request.length);
            request.offset = scrambler.offset(request.volume, bytes, offset);
            if offset.saturating_add(length) <= bytes {
                // It may have crossed the end of an extent that is the last one now.
                request.offset = request.offset.min(bytes - length);
            }
        }
        self.requests += 1;
        if self.hand_over(&Item::Request(request))? {
            self.requests -= 1;
            self.lost += 1;
        }
        Ok(())
    }

    /// Records that requests could not be kept.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn lose(&mut self, lost: Lost) -> io::Result<()> {
        if Instant::from_nanos(lost.to_ns) < self.zero {
            return Ok(());
        }
        let since = |ns| Instant::from_nanos(ns).since(self.zero).as_nanos();
        let (requests, from_ns, to_ns) = (lost.requests, since(lost.from_ns), since(lost.to_ns));
        self.write_lost(requests, from_ns, to_ns)
    }

    /// Writes that `requests` requests were lost, between two times in nanoseconds since the start of the recording.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_lost(&mut self, requests: u64, from_ns: u64, to_ns: u64) -> io::Result<()> {
        self.lost += requests;
        self.hand_over(&Item::Lost { requests, from_ns: from_ns.min(to_ns), to_ns }).map(drop)
    }

    /// Flushes the file ([`Self::flush`]) if that was last done 1 s ago, or 10 s ago with few requests since.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn tick(&mut self, now: Instant) -> io::Result<()> {
        let are_many = self.requests - self.flushed_requests >= MANY;
        if now.since(self.flushed) < if are_many { FLUSHED_EVERY } else { FEW_FLUSHED_EVERY } {
            return Ok(());
        }
        self.flush(now)
    }

    /// Ends the present block and writes all requests so far to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.flushed = now;
        self.flushed_requests = self.requests;
        self.writer.flush()?;
        self.accounted = self.requests + self.lost;
        Ok(())
    }

    /// Instant of the latest attempt to write out the requests so far; before the first one, the start of the recording.
    pub(super) fn flushed(&self) -> Instant {
        self.flushed
    }

    /// Number of requests, with those that could not be kept, for which no block in the file accounts.
    pub(super) fn unwritten(&self) -> u64 {
        (self.requests + self.lost).saturating_sub(self.accounted)
    }

    /// Counts the requests that are in no block as lost, because the file has failed.
    pub fn forfeit(&mut self) {
        let pending = self.writer.pending().min(self.requests);
        self.requests -= pending;
        self.lost += pending;
    }

    /// Removes clients that `names` has forgotten from those known to be in the file: they do not come back under their numbers.
    pub(super) fn forget(&mut self, names: &Names) {
        self.introduced.retain(|&(table, number)| table != Table::Client || names.has_client(number));
    }

    /// Number of requests recorded.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Number of requests that could not be kept.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// True if another block might make the file longer than `most` bytes.
    pub fn is_full(&self, most: u64) -> bool {
        self.bytes() + BLOCK.min(most / 2) > most
    }

    /// Completes the file; returns its size in bytes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<u64> {
        let before = self.writer.bytes();
        let file = self.writer.finish()?;
        Ok(file.metadata().map_or(before, |found| found.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn requests_in_no_block_are_lost_when_the_file_fails() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let file = File::from(OwnedFd::from(writer));
        let mut sheet = Sheet::new(file, &Head::default(), Instant::ZERO, None, None).expect("room for the head");
        let request = Request { arrival_ns: 1, queue_ns: 2, device_ns: 3, length: 4096, ..Request::default() };
        (0..3).for_each(|_| sheet.write(request, 1 << 20).expect("not written yet"));
        sheet.write_lost(2, 0, 1).expect("not written yet");
        assert_eq!(sheet.unwritten(), 5);
        sheet.flush(Instant::ZERO).expect("room for a block");
        assert_eq!((sheet.requests(), sheet.lost(), sheet.unwritten()), (3, 2, 0));
        (0..7).for_each(|_| sheet.write(request, 1 << 20).expect("not written yet"));
        drop(reader);
        assert!(sheet.flush(Instant::ZERO).is_err(), "nothing reads the pipe");
        assert_eq!(sheet.unwritten(), 7);
        sheet.forfeit();
        assert_eq!((sheet.requests(), sheet.lost(), sheet.unwritten()), (3, 9, 7));
    }
}
