//! The writing client of labs about durability. It writes without end, and records acknowledged writes in a journal.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::journal::Durable;
use super::pattern::{self, SECTOR};
use crate::base::client::{Client, Command, Refused};
use crate::base::random::xorshift;
use crate::machine::devices::Device;

/// Number of connections of a writer. A FLUSH on one must cover writes of the other if the server offers multi-conn.
pub(crate) const CONNECTIONS: u64 = 2;
/// Number of requests that a connection keeps outstanding.
const QUEUE_DEPTH: usize = 8;
/// One write in this many is followed by a FLUSH.
const FLUSH_ONE_IN: u64 = 12;
/// One write in this many carries FUA.
const FUA_ONE_IN: u64 = 5;
/// Interval between two marks. It determines the number of power cuts that are checked, not the verdict.
const MARK_EVERY: Duration = Duration::from_millis(150);
/// Longest wait until the server answers. A guest without hardware virtualisation starts a server slowly.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// The target of writes, and where to keep the record.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Unix socket of the server.
    #[arg(long)]
    pub(crate) socket: String,
    /// Export to write to.
    #[arg(long, default_value = "disk0")]
    pub(crate) export: String,
    /// Device-mapper name of the log-writes device that takes the marks.
    #[arg(long)]
    pub(crate) device: String,
    /// Journal file.
    #[arg(long)]
    pub(crate) journal: PathBuf,
    /// Seed of the request stream.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Acknowledged writes that are not yet in the journal.
#[derive(Debug, Default)]
struct Promises {
    /// Writes that were completed on any connection and are not yet covered by a FLUSH, each with its connection's number.
    completed: Vec<(u64, Durable)>,
    /// Writes acknowledged as durable that are not yet in the journal.
    durable: Vec<Durable>,
}

type Shared = Arc<Mutex<Promises>>;

/// Writes until the machine dies. Returns only with an error.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (shared, writers) = start(&options.socket, &options.export, options.seed)?;
    let mut marker = Marker::new(&options.journal, &options.device)?;
    // The first writer to fail ends the run: an error from the server is a failed lab.
    while !writers.iter().any(JoinHandle::is_finished) {
        thread::sleep(MARK_EVERY);
        let durable = std::mem::take(&mut lock(&shared).durable);
        marker.mark(&durable)?;
    }
    for writer in writers {
        if writer.is_finished() {
            return writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")));
        }
    }
    Ok(())
}

/// Writes until the server has died; `killer` runs meanwhile and kills it. Returns the writes that were acknowledged as durable.
pub(crate) fn until_killed(socket: &str, export: &str, seed: u64, killer: impl FnOnce()) -> Result<Vec<Durable>> {
    let (shared, writers) = start(socket, export, seed)?;
    killer();
    for writer in writers {
        let end = writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")));
        let error = end.err().context("a writer ended without an error")?;
        ensure!(error.downcast_ref::<Refused>().is_none(), "a writer: {error:#}");
    }
    Ok(std::mem::take(&mut lock(&shared).durable))
}

/// Starts the connections of a writer, each in a thread of its own.
fn start(socket: &str, export: &str, seed: u64) -> Result<(Shared, Vec<JoinHandle<Result<()>>>)> {
    let shared = Shared::default();
    let mut writers = Vec::new();
    for index in 0..CONNECTIONS {
        let client = Client::connect(socket, export, CONNECT_LIMIT)?;
        ensure!(client.promises_durability(), "the server offers no FLUSH or no FUA");
        let connection = Connection::new(client, index, seed, Arc::clone(&shared));
        writers.push(thread::spawn(move || connection.run()));
    }
    Ok((shared, writers))
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Promises> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection of the writer. Each has its own part of the volume, so that no two writes in flight overlap and every sector
/// has one correct content.
struct Connection {
    client: Client,
    index: u64,
    sectors: std::ops::Range<u64>,
    random: u64,
    generation: u64,
    next_cookie: u64,
    in_flight: BTreeMap<u64, InFlight>,
    /// Writes without FUA that no FLUSH of this connection covers yet, by generation; each with true if it has completed.
    volatile: BTreeMap<u64, (Durable, bool)>,
    shared: Shared,
}

enum InFlight {
    Write { write: Durable, fua: bool },
    Flush { covers: Vec<Durable>, settles: Vec<u64> },
}

impl Connection {
    fn new(client: Client, index: u64, seed: u64, shared: Shared) -> Self {
        let share = client.size / SECTOR as u64 / CONNECTIONS;
        let random = (seed << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let sectors = index * share..(index + 1) * share;
        Self {
            client,
            index,
            sectors,
            random,
            generation: 0,
            next_cookie: 0,
            in_flight: BTreeMap::new(),
            volatile: BTreeMap::new(),
            shared,
        }
    }

    fn run(mut self) -> Result<()> {
        loop {
            while self.in_flight.len() < QUEUE_DEPTH {
                self.send_next()?;
            }
            let cookie = self.client.receive()?;
            match self.in_flight.remove(&cookie).context("reply to a request that was not made")? {
                InFlight::Write { write, fua: true } => lock(&self.shared).durable.push(write),
                InFlight::Write { write, fua: false } => {
                    self.volatile.insert(write.generation, (write, true));
                    lock(&self.shared).completed.push((self.index, write));
                }
                InFlight::Flush { covers, settles } => {
                    lock(&self.shared).durable.extend(covers);
                    self.volatile.retain(|generation, _| !settles.contains(generation));
                }
            }
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        (xorshift(&mut self.random) >> 16) % below
    }

    fn send_next(&mut self) -> Result<()> {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        if self.random(FLUSH_ONE_IN) == 0 {
            let covers = self.covered_by_a_flush();
            let settles = self.volatile.iter().filter(|(_, (_, completed))| *completed).map(|(g, _)| *g).collect();
            self.in_flight.insert(cookie, InFlight::Flush { covers, settles });
            return self.client.send(Command::Flush, false, cookie, 0, 0, &[]);
        }
        let (sector, count) = self.free_range();
        self.generation += 1;
        let write = Durable { sector, count, generation: self.generation };
        let mut data = vec![0; count as usize * SECTOR];
        pattern::fill(&mut data, sector, self.generation);
        let fua = self.random(FUA_ONE_IN) == 0 && self.may_use_fua(&write);
        if !fua {
            self.volatile.insert(write.generation, (write, false));
        }
        self.in_flight.insert(cookie, InFlight::Write { write, fua });
        self.client.send(Command::Write, fua, cookie, sector * SECTOR as u64, data.len() as u32, &data)
    }

    /// True unless the write's pages overlap those of an unflushed write. The write log receives a FUA write at its completion,
    /// but an older write to the same place only at the next FLUSH; in a replay the older one would win, unlike on any disk. So
    /// FUA is used only on pages (units in which servers and page caches read, modify and write) without unflushed writes.
    fn may_use_fua(&self, write: &Durable) -> bool {
        const PAGE: u64 = 4096 / SECTOR as u64;
        let pages = |w: &Durable| w.sector / PAGE..=(w.sector + w.count - 1) / PAGE;
        let mine = pages(write);
        !self
            .volatile
            .values()
            .map(|(other, _)| pages(other))
            .any(|p| p.start() <= mine.end() && mine.start() <= p.end())
    }

    /// The writes completed so far that a FLUSH sent now must make durable.
    fn covered_by_a_flush(&self) -> Vec<Durable> {
        let mut promises = lock(&self.shared);
        let everywhere = self.client.multi_conn();
        let (covered, left) = std::mem::take(&mut promises.completed)
            .into_iter()
            .partition(|(index, _)| everywhere || *index == self.index);
        promises.completed = left;
        drop(promises);
        let covered: Vec<(u64, Durable)> = covered;
        covered.into_iter().map(|(_, write)| write).collect()
    }

    /// A random range of sectors that no write in flight touches. Three of four ranges are aligned to 4 KiB, the others only to
    /// sectors, so that a server with larger blocks must read, modify and write.
    fn free_range(&mut self) -> (u64, u64) {
        loop {
            let unit = if self.random(4) == 0 { 1 } else { 8 };
            let count = unit * (1 + self.random(8));
            let places = (self.sectors.end - self.sectors.start - count) / unit;
            let sector = self.sectors.start + unit * self.random(places);
            let busy = self.in_flight.values().any(|f| {
                matches!(f, InFlight::Write { write, .. } if write.sector < sector + count && sector < write.sector + write.count)
            });
            if !busy {
                return (sector, count);
            }
        }
    }
}

/// Writes the journal, and puts marks into the write log, in the right order.
#[derive(Debug)]
struct Marker {
    journal: File,
    device: Device,
    number: u64,
}

impl Marker {
    fn new(journal: &Path, device: &str) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(journal);
        let file = file.with_context(|| format!("cannot write {}", journal.display()))?;
        Ok(Self { journal: file, device: Device::open(device)?, number: 0 })
    }

    /// Sets a mark. First the acknowledged writes go into the journal on the host, then the mark goes into the write log; so all
    /// writes that the journal requires at a mark were acknowledged before it.
    fn mark(&mut self, durable: &[Durable]) -> Result<()> {
        use std::fmt::Write as _;
        self.number += 1;
        let mut lines = String::new();
        for Durable { sector, count, generation } in durable {
            writeln!(lines, "A {sector} {count} {generation}")?;
        }
        writeln!(lines, "M {}", self.number)?;
        self.journal.write_all(lines.as_bytes())?;
        self.device.message(&format!("mark {}", self.number))
    }
}

/// Reads the whole export. Returns a text for each range of sectors whose generation is lower than `owed` requires.
pub(crate) fn compare(client: &mut Client, owed: &BTreeMap<u64, u64>) -> Result<Vec<String>> {
    const CHUNK: usize = 256 << 10;
    let mut broken = Vec::new();
    let mut chunk = vec![0; CHUNK];
    ensure!(client.size.is_multiple_of(CHUNK as u64), "the export changed its size to {}", client.size);
    for at in (0..client.size).step_by(CHUNK) {
        client.read(at, &mut chunk)?;
        for (i, data) in chunk.chunks_exact(SECTOR).enumerate() {
            let sector = at / SECTOR as u64 + i as u64;
            let due = owed.get(&sector).copied().unwrap_or(0);
            let content = pattern::read(data, sector);
            if content.generation().is_none_or(|g| g < due) {
                broken.push(format!("sector {sector} holds {content:?}, generation {due} had been acknowledged"));
            }
        }
    }
    Ok(broken)
}
