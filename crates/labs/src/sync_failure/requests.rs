//! The requests of clients to a server whose device fails, and the server's answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::base::client::{Client, Command, Refused};
use crate::check::pattern::{self, Content, SECTOR};

/// Longest wait until a server, which runs on an emulated processor, answers.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// Size of the lab's writes in bytes: a page, which the page cache accepts without reading the device first.
pub(super) const BLOCK: usize = 4096;
/// Number of an I/O error in the NBD protocol.
pub(super) const EIO: u32 = 5;

/// Number of the first block that is written and flushed before the failure.
pub(super) const KEPT: u64 = 0;
/// Number of the first block that is written and acknowledged, but not flushed, before the failure.
pub(super) const LOST: u64 = 16;
/// Numbers of the blocks that [`Load`] writes.
const LOAD: std::ops::Range<u64> = 64..320;
/// Number of a block that is not used before, and far from blocks that read-ahead loads.
pub(super) const UNTOUCHED: u64 = 1024;
/// Number of blocks written at [`KEPT`] and at [`LOST`].
pub(super) const BLOCKS: u64 = 16;

/// The server's answer to a request: 0, or the number of the error in the reply. An `Err` if the connection is lost.
pub(super) fn answer(result: Result<()>) -> Result<u32> {
    match result {
        Ok(()) => Ok(0),
        Err(e) => e.downcast_ref::<Refused>().map(|r| r.0).ok_or(e),
    }
}

pub(super) fn connect(address: &str, export: &str) -> Result<Client> {
    Client::connect(address, export, CONNECT_LIMIT)
}

pub(super) fn block(number: u64, generation: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    pattern::fill(&mut data, number * (BLOCK / SECTOR) as u64, generation);
    data
}

pub(super) fn write(client: &mut Client, number: u64, generation: u64, fua: bool) -> Result<u32> {
    let data = block(number, generation);
    client.send(Command::Write, fua, number, number * BLOCK as u64, BLOCK as u32, &data)?;
    answer(client.receive().map(drop))
}

/// Writes one sector of block `number`, so that the page cache must read the block first. Returns the server's answer.
pub(super) fn write_sector(client: &mut Client, number: u64, generation: u64) -> Result<u32> {
    let at = number * BLOCK as u64;
    client.send(Command::Write, false, number, at, SECTOR as u32, &block(number, generation)[..SECTOR])?;
    answer(client.receive().map(drop))
}

pub(super) fn read(client: &mut Client, number: u64) -> Result<u32> {
    answer(client.read(number * BLOCK as u64, &mut [0; BLOCK]))
}

pub(super) fn flush(client: &mut Client) -> Result<u32> {
    client.send(Command::Flush, false, 0, 0, 0, &[])?;
    answer(client.receive().map(drop))
}

/// The content of block `number`: corrupt unless all its sectors have one generation.
pub(super) fn content(client: &mut Client, number: u64) -> Result<Content> {
    let mut data = vec![0; BLOCK];
    client.read(number * BLOCK as u64, &mut data)?;
    let first = number * (BLOCK / SECTOR) as u64;
    let mut sectors = data.chunks_exact(SECTOR).zip(first..).map(|(data, n)| pattern::read(data, n));
    let one = sectors.next().context("the block has no sectors")?;
    Ok(if sectors.all(|s| s == one) { one } else { Content::Corrupt })
}

/// Writes the blocks at [`KEPT`] and flushes them.
pub(super) fn keep(client: &mut Client, generation: u64) -> Result<()> {
    for number in KEPT..KEPT + BLOCKS {
        ensure!(write(client, number, generation, false)? == 0, "a write to a good device failed");
    }
    ensure!(flush(client)? == 0, "a flush of a good device failed");
    Ok(())
}

/// Writes the blocks at [`LOST`] without flushing them.
pub(super) fn lose(client: &mut Client, generation: u64) -> Result<()> {
    for number in LOST..LOST + BLOCKS {
        ensure!(write(client, number, generation + 1, false)? == 0, "a write was refused");
    }
    Ok(())
}

/// A thread that writes on a connection of its own until it is stopped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    thread: JoinHandle<Result<u32>>,
}

impl Load {
    pub(super) fn start(address: &str, export: &str) -> Result<Self> {
        let mut client = connect(address, export)?;
        let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&refused));
        let thread = thread::spawn(move || {
            for number in LOAD.cycle() {
                let last = told.load(Ordering::Relaxed);
                match write(&mut client, number, 7, false)? {
                    answer if last => return Ok(answer),
                    0 => {}
                    EIO => drop(count.fetch_add(1, Ordering::Relaxed)),
                    other => bail!("a write was answered with error {other}"),
                }
                // Leaves the emulated processors to the others.
                thread::sleep(Duration::from_millis(2));
            }
            bail!("the load has no end of its own")
        });
        Ok(Self { stop, refused, thread })
    }

    /// Waits until a write of the load has failed, or the load has ended.
    pub(super) fn wait_until_refused(&self) {
        while self.refused.load(Ordering::Relaxed) == 0 && !self.thread.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the load. Returns the number of failed writes, and the server's answer to one more write.
    pub(super) fn finish(self) -> Result<(u64, u32)> {
        self.stop.store(true, Ordering::Relaxed);
        let last = self.thread.join().map_err(|_| anyhow::anyhow!("the load panicked"))?.context("the load")?;
        Ok((self.refused.load(Ordering::Relaxed), last))
    }
}

/// Acknowledged writes that are lost, and flushes on several connections. The steps are equal for every kind of server.
pub(super) struct Flushing {
    address: String,
    export: String,
    generation: u64,
    pub(super) clients: Vec<Client>,
    pub(super) load: Option<Load>,
    /// The server's answers to FLUSH requests while the device fails.
    pub(super) failing: Vec<u32>,
    /// The server's answers to FLUSH requests after the device works again.
    pub(super) repaired: Vec<u32>,
}

impl Flushing {
    pub(super) fn begin(address: &str, export: &str, generation: u64) -> Result<Self> {
        let mut clients = vec![connect(address, export)?, connect(address, export)?];
        keep(&mut clients[0], generation)?;
        let load = Some(Load::start(address, export)?);
        let (address, export) = (address.to_owned(), export.to_owned());
        Ok(Self { address, export, generation, clients, load, failing: vec![], repaired: vec![] })
    }

    /// Writes blocks that no flush covers.
    pub(super) fn lose(&mut self) -> Result<()> {
        lose(&mut self.clients[0], self.generation)
    }

    /// Flushes on three connections: the one that wrote, another one, and a new one.
    pub(super) fn while_failing(&mut self) -> Result<()> {
        for client in &mut self.clients {
            self.failing.push(flush(client)?);
        }
        let mut late = connect(&self.address, &self.export)?;
        self.failing.push(flush(&mut late)?);
        self.clients.push(late);
        Ok(())
    }

    /// Flushes twice on each of the three connections of [`Flushing::while_failing`], and on a new one.
    pub(super) fn when_repaired(&mut self) -> Result<(u64, u32)> {
        self.clients.push(connect(&self.address, &self.export)?);
        for client in &mut self.clients {
            for _ in 0..2 {
                self.repaired.push(flush(client)?);
            }
        }
        self.load.take().context("a load")?.finish()
    }
}
