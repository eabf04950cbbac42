//! `evenkeel record --device`: records the requests of block devices of this host, without a server.
//!
//! A tenant is the control group of the task that submits a request, and a client is a control group by number: a group that is
//! removed and made again is another client of the same tenant. A volume is a device, in a pool of its own. For a pool of an
//! agent, pool and tenants have the names of its policy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use evenkeel_control::{Duration as Time, Instant};
use evenkeel_flight::{Head, Kind, Name, Outcome, Request, Scrambler, Table};
use evenkeel_guard::discovery::Roots;
use evenkeel_guard::discovery::blocks::{Block, SECTOR_BYTES};
use evenkeel_guard::sensor::cgroup_paths;
use evenkeel_guard::sensor::requests::{Request as Seen, Requests};
use evenkeel_guard::sensor::tracepoints::FOLDERS;
use evenkeel_server::{Sheet, open_recording, shortage};
use indicatif::ProgressBar;
use rustix::time::{ClockId, clock_gettime};

use super::{Args, Recorded, key, text};
use crate::output::{self, Usage};
use crate::parallel::interrupts;

/// Interval at which completed requests are taken from the kernel, whose ring has room for those of 1.1 million IOPS.
const TAKEN_EVERY: Duration = Duration::from_millis(50);
/// Interval at which progress is shown, losses are counted, and the free space is read.
const SHOWN_EVERY: Time = Time::from_secs(1);
/// Upper bound on the wait for requests that are in flight at the end.
const ENDED_WITHIN: Duration = Duration::from_secs(1);
/// Smallest bound on the size of a recording, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
/// Largest number of control groups that are distinguished: some 10 MB. Those that come later count as one.
const MOST_GROUPS: usize = 1 << 16;
/// Number and name of the tenant and client of all later groups.
const OTHERS: (u32, &str) = (u32::MAX, "other groups");

/// The devices of a recording, and the names under which their requests are recorded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The devices; none is a part of another one.
    pub(super) blocks: Vec<Block>,
    /// Pool of all devices; without it each device is a pool of its own.
    pub(super) pool: Option<String>,
    /// For each device the tenant of all its requests; without it the control group decides.
    pub(super) owners: Vec<Option<String>>,
    /// Tenants by path of their control groups.
    pub(super) groups: BTreeMap<String, String>,
    /// Note about the recording.
    pub(super) note: Option<String>,
}

impl Subject {
    /// The block devices at these paths, each as a pool of its own.
    ///
    /// # Errors
    /// A path without a block device, or devices of which one is a part of the other.
    pub(super) fn of(paths: &[PathBuf]) -> anyhow::Result<Self> {
        Ok(Self { blocks: blocks(paths)?, ..Self::default() })
    }

    /// The tenant of the control group with this path: that of the group, else of the nearest group around it, else the path.
    fn tenant<'a>(&'a self, path: &'a str) -> &'a str {
        let mut group = path.trim_matches('/');
        loop {
            if let Some(tenant) = self.groups.get(group) {
                return tenant;
            }
            match group.rsplit_once('/') {
                Some((around, _)) => group = around.trim_end_matches('/'),
                None => return path,
            }
        }
    }
}

/// Records the requests of the devices of `subject` into `file`, until the time is over, an interrupt comes, or the file or its
/// file system is full.
///
/// # Errors
/// A kernel that refuses the recording, or a file that cannot be made.
pub(super) fn record(args: &Args, file: &Path, subject: Subject) -> anyhow::Result<Recorded> {
    ensure!(!args.length.is_zero(), Usage("a recording of no time is empty; give a length such as --for 1m".into()));
    ensure!(args.max_size.0 >= LEAST_BYTES, Usage("a recording needs at least 1MiB; raise --max-size".into()));
    // In the form that is sent to a server, so that both scramble in the same way.
    let scrambler = args.anonymise.as_deref().map(key).transpose()?.map(|key| Scrambler::new(key.as_bytes()));
    let stop = interrupts()?;
    let chosen = subject.blocks.iter().flat_map(|block| block.all.iter().map(move |&number| (number, block.disk)));
    let mut requests = Requests::start(&FOLDERS.map(PathBuf::from), chosen)?;
    let made = open_recording(file, args.force)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let head = Head {
        started_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        source: "host".to_owned(),
        policy: String::new(),
        anonymised: scrambler.is_some(),
    };
    let zero = now();
    let sheet = Sheet::new(made, &head, zero, None, scrambler)
        .inspect_err(|_| drop(fs::remove_file(file)))
        .with_context(|| format!("cannot write {}; make room on its disk", file.display()))?;
    let mut session = Session::new(sheet, zero, subject, cgroup_paths::mounted());
    let progress = output::spinner("{elapsed:>4} {msg}");
    let ended = session.run(&mut requests, args, file, &stop, &progress);
    progress.finish_and_clear();
    Ok(session.finish(file, ended.err()))
}

/// The block devices at these paths.
///
/// # Errors
/// A path without a block device, or devices of which one is a part of the other.
fn blocks(paths: &[PathBuf]) -> anyhow::Result<Vec<Block>> {
    let mut blocks: Vec<Block> = Vec::new();
    for path in paths {
        add(&mut blocks, Block::find(&Roots::default(), path)?)?;
    }
    Ok(blocks)
}

/// Adds a device to others.
///
/// # Errors
/// If it is one of them, a part of one, or one is a part of it.
pub(super) fn add(blocks: &mut Vec<Block>, block: Block) -> anyhow::Result<()> {
    let is_part = |other: &&Block| {
        let is_whole = block.number == block.disk || other.number == other.disk;
        block.number == other.number || is_whole && block.disk == other.disk
    };
    if let Some(other) = blocks.iter().find(is_part) {
        let (one, other) = (&block.name, &other.name);
        return Err(Usage(format!("{one} and {other} have requests in common; name one of them with --device")).into());
    }
    blocks.push(block);
    Ok(())
}

/// The present time of the clock by which the kernel times requests.
fn now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// A recording under way.
struct Session {
    sheet: Sheet,
    /// The time that the recording counts from.
    zero: Instant,
    subject: Subject,
    /// Numbers of the tenants of all requests of devices, in the order of the devices.
    owners: Vec<Option<u32>>,
    /// Folder where cgroup v2 is mounted.
    groups: Option<PathBuf>,
    /// Numbers of the tenant and the client of each control group, by the group's number.
    clients: HashMap<u64, (u32, u32)>,
    /// Numbers of tenants by name.
    tenants: HashMap<String, u32>,
    /// Number of requests that the kernel had no room for, as far as the file has them, and when they were counted.
    lost: u64,
    lost_until: Instant,
}

impl Session {
    /// A recording without requests; `groups` is the folder where cgroup v2 is mounted.
    fn new(sheet: Sheet, zero: Instant, subject: Subject, groups: Option<PathBuf>) -> Self {
        let (clients, tenants, owners) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { sheet, zero, subject, owners, groups, clients, tenants, lost: 0, lost_until: zero }
    }

    /// Writes the names of the devices, and of the tenants of all their requests.
    fn introduce_devices(&mut self) -> anyhow::Result<()> {
        for number in 0..self.subject.blocks.len() {
            let Subject { blocks, pool, owners, .. } = &self.subject;
            let (block, owner) = (&blocks[number], owners.get(number).cloned().flatten());
            let (name, bytes) = (block.name.clone(), block.bytes());
            let pool = pool.clone().unwrap_or_else(|| name.clone());
            self.sheet.introduce(Name { table: Table::Volume, number: number as u32, name, pool, bytes })?;
            let owner = owner.map(|tenant| self.number(tenant)).transpose()?;
            self.owners.push(owner);
        }
        Ok(())
    }

    /// Records until the end.
    ///
    /// # Errors
    /// When the file cannot be written, its file system is nearly full, or the kernel does not answer.
    fn run(
        &mut self,
        requests: &mut Requests,
        args: &Args,
        file: &Path,
        stop: &AtomicBool,
        progress: &ProgressBar,
    ) -> anyhow::Result<()> {
        self.introduce_devices()?;
        let (length, most) = (args.length, args.max_size.0);
        let mut shown = self.zero;
        let mut taken = std::time::Instant::now();
        loop {
            // The ring fills while requests are written, too.
            thread::sleep(TAKEN_EVERY.saturating_sub(taken.elapsed()));
            taken = std::time::Instant::now();
            self.take(requests, most)?;
            let now = now();
            self.sheet.tick(now)?;
            if now.since(self.zero) >= length || stop.load(Ordering::Relaxed) || self.sheet.is_full(most) {
                break;
            }
            if now.since(shown) >= SHOWN_EVERY {
                shown = now;
                self.count_lost(requests, now)?;
                let figures = text(&self.figures(file));
                progress.set_message(figures.lines().next().unwrap_or_default().to_owned());
                shortage(file).map_or(Ok(()), Err)?;
            }
        }
        requests.end_arrivals();
        let begun = std::time::Instant::now();
        while requests.incomplete()? > 0 && begun.elapsed() < ENDED_WITHIN {
            thread::sleep(TAKEN_EVERY);
            self.take(requests, most)?;
        }
        let now = now();
        self.count_lost(requests, now)?;
        let incomplete = requests.incomplete()?;
        if incomplete > 0 {
            self.sheet.write_lost(incomplete, 0, now.since(self.zero).as_nanos())?;
        }
        Ok(())
    }

    /// Writes the requests that have completed, as far as the file has room for them.
    fn take(&mut self, requests: &mut Requests, most: u64) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        let (blocks, zero_ns) = (&self.subject.blocks, self.zero.as_nanos());
        requests.drain(|seen| batch.extend(recorded(&seen, blocks, zero_ns).map(|request| (seen.cgroup, request))));
        self.learn(batch.iter().map(|(group, _)| *group).collect())?;
        for (group, request) in batch {
            if self.sheet.is_full(most) {
                break;
            }
            let (tenant, client) = self.clients.get(&group).copied().unwrap_or((OTHERS.0, OTHERS.0));
            let tenant = self.owners.get(request.volume as usize).copied().flatten().unwrap_or(tenant);
            let bytes = self.subject.blocks.get(request.volume as usize).map_or(0, Block::bytes);
            self.sheet.write(Request { tenant, client, ..request }, bytes)?;
        }
        Ok(())
    }

    /// Gives numbers to the control groups among `groups` that have none. Their names are searched once.
    fn learn(&mut self, mut groups: BTreeSet<u64>) -> anyhow::Result<()> {
        groups.retain(|group| !self.clients.contains_key(group));
        if groups.is_empty() || self.clients.len() > MOST_GROUPS {
            return Ok(());
        }
        let paths = self.groups.as_deref().map(|folder| cgroup_paths::find(folder, &groups)).unwrap_or_default();
        for group in groups {
            if self.clients.len() == MOST_GROUPS {
                self.introduce(Table::Tenant, OTHERS.0, OTHERS.1.to_owned())?;
                self.introduce(Table::Client, OTHERS.0, OTHERS.1.to_owned())?;
                self.clients.insert(group, (OTHERS.0, OTHERS.0));
                break;
            }
            let name = format!("cgroup-{group}");
            // The path of a group that is gone cannot be read any more.
            let tenant = paths.get(&group).map_or_else(|| name.clone(), |path| self.subject.tenant(path).to_owned());
            let client = self.clients.len() as u32;
            let number = self.number(tenant)?;
            self.introduce(Table::Client, client, name)?;
            self.clients.insert(group, (number, client));
        }
        Ok(())
    }

    /// Number of the tenant with this name, which is written if it is new.
    fn number(&mut self, tenant: String) -> anyhow::Result<u32> {
        let next = self.tenants.len() as u32;
        let number = *self.tenants.entry(tenant.clone()).or_insert(next);
        if number == next {
            self.introduce(Table::Tenant, number, tenant)?;
        }
        Ok(number)
    }

    fn introduce(&mut self, table: Table, number: u32, name: String) -> anyhow::Result<()> {
        Ok(self.sheet.introduce(Name { table, number, name, pool: String::new(), bytes: 0 })?)
    }

    /// Records how many requests the kernel had no room for since the previous call.
    fn count_lost(&mut self, requests: &Requests, now: Instant) -> anyhow::Result<()> {
        let lost = requests.lost()?;
        if lost > self.lost {
            let since = |time: Instant| time.since(self.zero).as_nanos();
            self.sheet.write_lost(lost - self.lost, since(self.lost_until), since(now))?;
        }
        (self.lost, self.lost_until) = (lost, now);
        Ok(())
    }

    /// The figures so far.
    fn figures(&self, file: &Path) -> Recorded {
        Recorded {
            file: file.to_owned(),
            requests: self.sheet.requests(),
            lost: self.sheet.lost(),
            bytes: self.sheet.bytes(),
            seconds: now().since(self.zero).as_secs_f64(),
            ..Recorded::default()
        }
    }

    /// Completes the file, and returns the figures of the recording, which `error` has ended if there is one.
    fn finish(mut self, file: &Path, error: Option<anyhow::Error>) -> Recorded {
        let flushed = self.sheet.flush(now());
        if flushed.is_err() {
            self.sheet.forfeit();
        }
        let mut figures = self.figures(file);
        let finished = flushed.and_then(|()| self.sheet.finish());
        figures.bytes = *finished.as_ref().unwrap_or(&figures.bytes);
        let error = error.or_else(|| finished.err().map(Into::into));
        figures.error = error.map(|error| {
            format!(
                "cannot record into {}: {error:#}; the recording has ended, and what was written before can be read. Make \
                 room and record again",
                file.display()
            )
        });
        let unseen = (figures.requests == 0 && figures.lost > 0).then(|| {
            "no request was seen to complete: the device hands its requests to other devices; record those (`lsblk -s` shows \
             them; the kernel hides those of an NVMe device with native multipath, unless it is booted with \
             nvme_core.multipath=N)"
                .to_owned()
        });
        figures.note = unseen.or(self.subject.note);
        figures.ended = true;
        figures
    }
}

/// The request as the recording has it, without tenant and client; `None` if it arrived before the recording began at `zero_ns`,
/// or is for none of the devices.
fn recorded(seen: &Seen, blocks: &[Block], zero_ns: u64) -> Option<Request> {
    let arrival_ns = seen.arrival_ns.checked_sub(zero_ns)?;
    let offset_in = |block: &Block| block.offset_of(seen.disk, seen.device, seen.sector, seen.sectors);
    let (volume, offset) = (0..).zip(blocks).find_map(|(volume, block)| Some((volume, offset_in(block)?)))?;
    let admission_ns = seen.issue_ns.unwrap_or(seen.arrival_ns).max(seen.arrival_ns);
    let (kind, durable) = kind(seen.letters, seen.sectors);
    Some(Request {
        arrival_ns,
        queue_ns: admission_ns - seen.arrival_ns,
        device_ns: seen.completion_ns.saturating_sub(admission_ns),
        volume,
        kind,
        durable,
        offset,
        length: u64::from(seen.sectors) * SECTOR_BYTES,
        outcome: if seen.error == 0 { Outcome::Done } else { Outcome::Failed(seen.error) },
        ..Request::default()
    })
}

/// The kind of a request with these letters, and true if it asks for durability. The letters are a flush before (F), the
/// operation, and flags; the kernel has none for zeroes, which are `N` for none.
fn kind(letters: [u8; 8], sectors: u32) -> (Kind, bool) {
    let end = letters.iter().position(|&letter| letter == 0).unwrap_or(letters.len());
    let (operation, flags) = match &letters[..end] {
        [b'F', operation, flags @ ..] | [operation, flags @ ..] => (*operation, flags),
        [] => (0, <&[u8]>::default()),
    };
    let kind = match operation {
        b'R' => Kind::Read,
        b'W' if flags.first() == Some(&b'Z') => Kind::Zero,
        b'W' if sectors == 0 => Kind::Flush,
        b'W' => Kind::Write,
        b'F' => Kind::Flush,
        b'D' => Kind::Trim,
        b'N' if sectors > 0 => Kind::Zero,
        _ => Kind::Other,
    };
    (kind, flags.contains(&b'F'))
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
