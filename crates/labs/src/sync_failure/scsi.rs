//! A disk of the kernel's module scsi_debug, into which the errors of the table of SCSI disks in `docs/reference/failures.md` are
//! injected, row by row, under each server.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::faults::Page;
use super::requests::{BLOCK, EIO, answer, block, connect, content, flush, read, write};
use super::tables::table;
use super::{Check, SUBJECTS, Subject};
use crate::base::client::Client;
use crate::base::process::Running;
use crate::base::servers::{self, EXPORT};
use crate::check::pattern::{Content, SECTOR};
use crate::check::steps;
use crate::machine::guest::{put, tool, until, work_dir};

/// The module's settings.
const SETTINGS: &str = "/sys/bus/pseudo/drivers/scsi_debug";
const DEBUG: &str = "/sys/kernel/debug";
/// Time after which the kernel aborts a command without an answer, in seconds.
const TIMEOUT_S: u64 = 1;
/// A block with a bad sector: the module's sectors 0x1234 to 0x123d cannot be read while [`Fault::BadSector`] is injected.
const BAD: u64 = 0x1234 * SECTOR as u64 / BLOCK as u64;
/// Number of blocks that a row reads, and that it writes.
const EACH: u64 = 8;
/// Opcode of SYNCHRONIZE CACHE.
const SYNC: &str = "0x35";

/// An error that the disk makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Reads of some sectors fail: an unrecovered read error.
    BadSector,
    /// Every third command is aborted.
    Aborted,
    /// Every fifth command gets no answer.
    Silent,
    /// Every second read moves half of the data.
    Short,
    /// The disk cannot write its cache back.
    Sync,
}

/// Rows of the table: the words of its first two columns, the name of the check, and the fault.
const ROWS: [(&str, &str, &str, Fault); 6] = [
    ("READ", "bad sector", "scsi_read_of_a_bad_sector", Fault::BadSector),
    ("READ elsewhere, WRITE", "bad sector", "scsi_requests_beside_a_bad_sector", Fault::BadSector),
    ("READ, WRITE", "aborted command", "scsi_aborted_commands", Fault::Aborted),
    ("READ, WRITE", "no answer", "scsi_commands_without_an_answer", Fault::Silent),
    ("READ", "short transfer", "scsi_short_transfers", Fault::Short),
    // Last, because the volume remembers it.
    ("FLUSH", "failed sync", "scsi_failed_sync", Fault::Sync),
];
/// Number of checks.
pub(super) const CHECKS: usize = ROWS.len();

/// A row of the page's table: request, error of the disk, the client's answer, the answer to FLUSH afterwards.
type Line = [&'static str; 4];

/// Heading of the table.
const HEADING: &str = "SCSI disks";

/// The number of the answer that a cell of the table names.
fn number(cell: &str) -> Result<u32> {
    match cell {
        "done" => Ok(0),
        "EIO" => Ok(EIO),
        other => bail!("an answer {other:?} is not known"),
    }
}

/// The disk.
struct Disk {
    device: PathBuf,
    /// Folder of the disk in sysfs.
    folder: PathBuf,
    /// File for errors of certain commands; `None` before Linux 6.7.
    errors: Option<PathBuf>,
}

impl Disk {
    /// The disk that the module makes when it is loaded; `None` without the module.
    fn find() -> Result<Option<Self>> {
        if !Path::new(SETTINGS).exists() {
            return Ok(None);
        }
        let (folder, name) = until("disk of scsi_debug", || {
            let disks = std::fs::read_dir("/sys/block").ok()?.filter_map(Result::ok);
            disks.filter_map(|disk| Some((disk.path(), disk.file_name().into_string().ok()?))).find(|(path, name)| {
                let model = std::fs::read_to_string(path.join("device/model")).unwrap_or_default();
                model.trim() == "scsi_debug" && Path::new("/dev").join(name).exists()
            })
        })?;
        put(folder.join("device/timeout"), &TIMEOUT_S.to_string())?;
        // It is there in most kernels, and nothing else needs it.
        let _ = tool("mount", &["-t", "debugfs", "none", DEBUG]);
        let address = std::fs::canonicalize(folder.join("device"))?;
        let address = address.file_name().context("the SCSI device has no address")?;
        let errors = Path::new(DEBUG).join("scsi_debug").join(address).join("error");
        let errors = errors.exists().then_some(errors);
        Ok(Some(Self { device: Path::new("/dev").join(name), folder, errors }))
    }

    fn inject(&self, fault: Fault) -> Result<()> {
        // Options of the module: 2 medium error, 4 no answer, 0x10 aborted by the transport, 0x100 short transfer.
        let (options, every_nth) = match fault {
            Fault::BadSector => ("2", "0"),
            Fault::Aborted => ("0x10", "3"),
            Fault::Silent => ("4", "5"),
            Fault::Short => ("0x100", "2"),
            Fault::Sync => {
                let errors = self.errors.as_ref().context("this kernel cannot do that")?;
                // Type 2: a sense code, here that of a hardware error, which is not tried again; 1: until it is removed.
                return put(errors, &format!("2 1 {SYNC} 0x0 0x0 0x2 0x4 0x44 0x0"));
            }
        };
        put(Path::new(SETTINGS).join("every_nth"), every_nth)?;
        put(Path::new(SETTINGS).join("opts"), options)
    }

    fn repair(&self, fault: Fault) -> Result<()> {
        put(Path::new(SETTINGS).join("opts"), "0")?;
        put(Path::new(SETTINGS).join("every_nth"), "0")?;
        match &self.errors {
            Some(errors) if fault == Fault::Sync => put(errors, &format!("- 2 {SYNC}")),
            _ => Ok(()),
        }
    }

    /// A counter of the kernel, such as `iorequest_cnt`; 0 if it does not have the counter.
    fn counter(&self, name: &str) -> Result<u64> {
        let Ok(text) = std::fs::read_to_string(self.folder.join("device").join(name)) else { return Ok(0) };
        u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).with_context(|| format!("{name}: {text}"))
    }

    /// True if block `number` on the disk holds data of this generation.
    fn holds(&self, number: u64, generation: u64) -> Result<bool> {
        let mut page = Page([0; BLOCK]);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.device)?;
        file.read_exact_at(&mut page.0, number * BLOCK as u64)?;
        Ok(page.0[..] == block(number, generation)[..])
    }
}

/// The server of a subject on the disk.
fn start(subject: Subject, binary: &Path, disk: &Disk) -> Result<(Running, String)> {
    let dir = work_dir(&format!("scsi-{subject}"));
    std::fs::create_dir_all(&dir)?;
    let path = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "[server]\nlisten = []\nunix = [{:?}]\ndata_dir = {:?}\nstatus = \"off\"\nworkers = 2\n\
         [volumes.{EXPORT}]\nbackend = \"block\"\npath = {:?}\ncache = \"{}\"\n",
        path("nbd.sock"),
        path("data"),
        disk.device,
        subject.cache
    );
    std::fs::write(dir.join("evenkeel.toml"), config)?;
    let mut command = servers::serve(binary, dir.join("evenkeel.toml"));
    command.args(["--engine", subject.engine]);
    let address = path("nbd.sock");
    let running = servers::start_and_reach(&dir, "serve", &mut command, || servers::reach(&address, servers::EXPORT))?;
    Ok((running, address))
}

/// Takes each server through all rows of the table, and reports a check for each row.
pub(super) fn check(binary: &Path) -> Result<()> {
    let table: Vec<Line> = table(HEADING);
    let known: Vec<_> = ROWS.iter().map(|(request, disk, ..)| [*request, *disk]).collect();
    ensure!(table.iter().map(|line| [line[0], line[1]]).eq(known), "the table of SCSI disks has other rows");
    let Some(disk) = Disk::find()? else {
        ROWS.iter().for_each(|(.., name, _)| steps::tell_skipped(name, "this kernel has no scsi_debug"));
        return Ok(());
    };
    let possible = |fault: Fault| fault != Fault::Sync || disk.errors.is_some();
    let mut checks: [Check; CHECKS] = Default::default();
    for subject in SUBJECTS {
        let (_server, address) = start(subject, binary, &disk)?;
        let mut client = connect(&address, EXPORT)?;
        let generation = 10 * (subject.index + 1);
        fill(&mut client, generation)?;
        for ((number, line), check) in (0..).zip(&table).zip(&mut checks) {
            let fault = ROWS[number as usize].3;
            if possible(fault) {
                let row = Row { disk: &disk, subject, fault, number, generation, line: *line };
                row.try_it(&mut client, &address, check)
                    .with_context(|| format!("{subject}: {}", line[..2].join(" ")))?;
            }
        }
    }
    for ((.., name, fault), check) in ROWS.iter().zip(&checks) {
        if possible(*fault) {
            check.report(name);
        } else {
            steps::tell_skipped(name, "scsi_debug injects no errors of single commands before Linux 6.7");
        }
    }
    Ok(())
}

/// Blocks of a row; each row has its own, so that no answer comes from a cache.
fn blocks(row: u64) -> std::ops::Range<u64> {
    let first = 16 + 64 * row;
    first..first + EACH
}

/// Writes the blocks of all rows and the bad ones, and flushes them.
fn fill(client: &mut Client, generation: u64) -> Result<()> {
    for number in (0..ROWS.len() as u64).flat_map(blocks).chain([BAD, BAD + 1]) {
        ensure!(write(client, number, generation, false)? == 0, "a write to a good disk failed");
    }
    ensure!(flush(client)? == 0, "a flush of a good disk failed");
    Ok(())
}

/// A row of the table, tried on one server.
struct Row<'a> {
    disk: &'a Disk,
    subject: Subject,
    fault: Fault,
    /// Number of the row.
    number: u64,
    /// Generation of the data that is there; what the row writes has the next one.
    generation: u64,
    line: Line,
}

impl Row<'_> {
    fn try_it(&self, client: &mut Client, address: &str, check: &mut Check) -> Result<()> {
        let Self { disk, fault, generation, line, .. } = self;
        let what = |of: &str| format!("{}, {} with {}: {of}", self.subject, line[0], line[1]);
        let (wanted, flushed) = (number(line[2])?, number(line[3])?);
        // Reads must come to the disk.
        put("/proc/sys/vm/drop_caches", "3")?;
        let counted = || -> Result<[u64; 3]> {
            Ok([disk.counter("iorequest_cnt")?, disk.counter("ioerr_cnt")?, disk.counter("iotmo_cnt")?])
        };
        let (before, begun) = (counted()?, Instant::now());
        disk.inject(*fault)?;
        let outcome = self.ask(client);
        let (after, took) = (counted()?, begun.elapsed());
        disk.repair(*fault)?;
        for (request, got) in outcome? {
            check.answer(got, wanted, what(request));
        }
        // Without this the row would hold without a fault, too.
        let [requests, errors, timeouts] = [0, 1, 2].map(|index| after[index] - before[index]);
        let injected = match fault {
            Fault::BadSector if wanted == 0 => true,
            Fault::BadSector | Fault::Sync => errors > 0,
            Fault::Aborted => errors + timeouts > 0,
            Fault::Silent => took >= Duration::from_secs(TIMEOUT_S),
            Fault::Short => requests > EACH,
        };
        check.expect(injected, what(&format!("no error was injected: {requests} {errors} {timeouts} {took:?}")));

        check.answer(flush(client)?, flushed, what("FLUSH afterwards"));
        check.answer(flush(&mut connect(address, EXPORT)?)?, flushed, what("FLUSH on a new connection"));
        let writes = line[0].contains("WRITE") || line[0] == "FLUSH";
        for number in blocks(self.number) {
            let wanted = if writes { generation + 1 } else { *generation };
            let held = content(client, number)?;
            check.expect(held == Content::Generation(wanted), what(&format!("block {number} holds {held:?}")));
            if flushed == 0 {
                let there = disk.holds(number, wanted)?;
                check.expect(there, what(&format!("block {number} is not on the disk")));
            }
        }
        check.answer(read(client, BAD)?, 0, what("a read of the sector that was bad"));
        Ok(())
    }

    /// Makes the row's requests. Returns the server's answers.
    fn ask(&self, client: &mut Client) -> Result<Vec<(&'static str, u32)>> {
        let mut answers = Vec::new();
        match (self.line[0], self.fault) {
            ("READ", Fault::BadSector) => {
                answers.push(("a read", read(client, BAD)?));
                answers.push(("a read of the next block", read(client, BAD + 1)?));
                let data = &mut vec![0; 4 * BLOCK];
                let large = answer(client.read((BAD - 1) * BLOCK as u64, data))?;
                answers.push(("a read of several blocks", large));
            }
            ("FLUSH", _) => {
                for number in blocks(self.number) {
                    ensure!(write(client, number, self.generation + 1, false)? == 0, "a write was refused");
                }
                answers.push(("FLUSH", flush(client)?));
            }
            (requests, _) => {
                for number in blocks(self.number) {
                    answers.push(("a read", read(client, number)?));
                    if requests.contains("WRITE") {
                        answers.push(("a FUA write", write(client, number, self.generation + 1, true)?));
                    }
                }
            }
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_rows_that_the_lab_tries() {
        let table: Vec<Line> = table(HEADING);
        assert_eq!(table.len(), CHECKS);
        for ([request, disk, answer, flushed], row) in table.into_iter().zip(ROWS) {
            assert_eq!([request, disk], [row.0, row.1]);
            assert!(number(answer).is_ok() && number(flushed).is_ok(), "{request}: {answer}, {flushed}");
        }
        assert!(number("closed").is_err());
    }

    #[test]
    fn rows_have_blocks_of_their_own() {
        let last = (0..ROWS.len() as u64).map(blocks).map(|blocks| blocks.end).max().unwrap();
        assert!(last < BAD && BLOCK as u64 * (BAD + 4) < 8 << 20, "the disk has 8 MiB");
    }
}
