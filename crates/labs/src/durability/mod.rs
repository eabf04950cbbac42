//! The durability lab: cuts the power under load, drops every unflushed write, and compares the disk's content with the
//! acknowledged writes.
//!
//! `README.md` explains why this method is sound if a journal has the order of the write log.

pub(crate) mod guest;
mod log_writes;
mod replay;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::replay::Findings;
use crate::base::scratch::Scratch;
use crate::base::servers::Server;
use crate::base::spelled::spelled;
use crate::check::journal::Journal;
use crate::check::run::{Lab, Options};
use crate::machine::vm::{self, Machine};

/// Size of a device with a file system, in bytes.
const FILE_SYSTEM_BYTES: usize = 96 << 20;
/// Size of a volume, in bytes, if it is a file in a file system and also if it is a device.
pub(crate) const FILE_BYTES: usize = 32 << 20;
/// Size of the write log, a sparse file, in bytes. It is an upper bound of the data that a run can write.
const LOG_BYTES: u64 = 16 << 30;
/// Number of marks that every journal must have before the load ends: in a short run, and in a full run.
const MARKS: [usize; 2] = [40, 160];
/// Number of replayed disks of each subject that are used in a rebooted machine and served again.
const REBOOTS: usize = 3;
/// Time limit of the guest that writes until the power cut.
const LOAD_LIMIT: Duration = Duration::from_secs(240);
/// Time limit of the guest that checks replayed disks.
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// A subject of the lab: a server on a logged device, which it uses directly or through a file in a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) server: Server,
    pub(crate) file: bool,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", spelled(&self.server), if self.file { "file" } else { "block" })
    }
}

impl FromStr for Subject {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (server, storage) = text.split_once('_').context("expected SERVER_block or SERVER_file")?;
        ensure!(matches!(storage, "block" | "file"), "expected block or file, not `{storage}`");
        let server = <Server as clap::ValueEnum>::from_str(server, false).map_err(anyhow::Error::msg)?;
        Ok(Self { server, file: storage == "file" })
    }
}

/// A subject with its files on the host.
struct Trial {
    subject: Subject,
    log: PathBuf,
    data: PathBuf,
    journal: PathBuf,
    disk_bytes: usize,
}

impl Trial {
    fn new(subject: Subject, dir: &Path) -> Result<Self> {
        let path = |extension: &str| dir.join(format!("{subject}.{extension}"));
        let (log, data, journal) = (path("log"), path("data"), path("journal"));
        let disk_bytes = if subject.file { FILE_SYSTEM_BYTES } else { FILE_BYTES };
        std::fs::File::create(&log)?.set_len(LOG_BYTES)?;
        std::fs::File::create(&data)?.set_len(disk_bytes as u64)?;
        std::fs::write(&journal, "")?;
        Ok(Self { subject, log, data, journal, disk_bytes })
    }

    fn marks(&self) -> usize {
        let text = std::fs::read_to_string(&self.journal).unwrap_or_default();
        text.lines().filter(|l| l.starts_with("M ")).count()
    }
}

/// Runs the lab and reports each check.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "durability")?;
    let dir = scratch.path().to_owned();
    let mut machine = Machine::new(vm::PLAIN, &options.build, &scratch, options.verbose)?;
    let server = options.server;
    let mut subjects = [false, true].map(|file| Subject { server, file }).to_vec();
    if server == Server::Evenkeel {
        // The other engine writes and syncs in its own way.
        subjects.push(Subject { server: Server::EvenkeelEpoll, file: false });
    }
    subjects.push(Subject { server: Server::QemuNbdUnsafe, file: false });
    let trials: Vec<Trial> = subjects.into_iter().map(|s| Trial::new(s, &dir)).collect::<Result<_>>()?;

    load_and_cut(&mut machine, options, &trials)?;
    let marks = MARKS[usize::from(options.full)];
    let (control, honest) = trials.split_last().context("there is a control")?;
    for trial in honest {
        let journal = Journal::parse(&std::fs::read_to_string(&trial.journal)?)?;
        let found = findings(trial, &journal)?;
        let broken = found.first_broken.clone();
        let name = format!("{}_at_every_cut", trial.subject);
        match (trial.subject.file, broken) {
            // On a file system the sectors of the disk are not those of the volume: judged after the reboot.
            (true, _) => println!("lab: {}: {}", trial.subject, summary(&found)),
            (false, Some(first)) => lab.failed(&name, &format!("{}; {first}", summary(&found))),
            (false, None) => lab.passed(&name, &summary(&found)),
        }
        lab.check(
            &format!("{}_log_is_not_empty", trial.subject),
            found.flushes > 0 && found.marks.len() >= marks / 2 && found.promised_sectors > 0,
            &summary(&found),
        );
    }
    reboot_and_check(lab, &mut machine, options, honest, &dir)?;

    let journal = Journal::parse(&std::fs::read_to_string(&control.journal)?)?;
    let found = findings(control, &journal)?;
    let caught = found.broken_sectors > 0 && found.promised_sectors > 0;
    lab.check("a_server_that_ignores_flush_is_caught", caught, &summary(&found));
    Ok(())
}

/// Boots the machine, starts all servers and writing clients, and cuts the power during the load.
fn load_and_cut(machine: &mut Machine, options: &Options, trials: &[Trial]) -> Result<()> {
    let subjects: Vec<String> = trials.iter().map(|t| t.subject.to_string()).collect();
    let disks: Vec<PathBuf> = trials.iter().flat_map(|t| [t.log.clone(), t.data.clone()]).collect();
    let script = options.guest_script("load", &subjects)?;
    let mut guest = machine.boot(&script, &disks)?;
    let marks = MARKS[usize::from(options.full)];
    let started = Instant::now();
    let enough = |line: &str| {
        let all = || trials.iter().all(|t| t.marks() >= marks);
        (line == "lab: tick" && all()).then_some(())
    };
    guest.wait_for(LOAD_LIMIT, enough).context("under load")?;
    guest.cut_power()?;
    println!("lab: power cut after {:.1} s of load", started.elapsed().as_secs_f64());
    Ok(())
}

fn findings(trial: &Trial, journal: &Journal) -> Result<Findings> {
    if trial.subject.file {
        // Without promises: counts what the log holds.
        return replay::survey(&trial.log, journal);
    }
    replay::judge(&trial.log, trial.disk_bytes, journal)
}

/// Boots the machine with replayed disks, serves them, and reads and checks all their sectors through the server.
fn reboot_and_check(
    lab: &mut Lab,
    machine: &mut Machine,
    options: &Options,
    trials: &[Trial],
    dir: &Path,
) -> Result<()> {
    let mut disks = Vec::new();
    let mut arguments = Vec::new();
    let mut names = Vec::new();
    for trial in trials {
        let journal = Journal::parse(&std::fs::read_to_string(&trial.journal)?)?;
        let marks = replay::survey(&trial.log, &journal)?.marks;
        ensure!(marks.len() >= REBOOTS, "{}: only {} marks in the write log", trial.subject, marks.len());
        let cuts: Vec<u64> = (1..=REBOOTS).map(|i| marks[i * marks.len() / REBOOTS - 1]).collect();
        let images: Vec<PathBuf> = cuts.iter().map(|m| dir.join(format!("{}-{m}.img", trial.subject))).collect();
        let pairs: Vec<(u64, &Path)> = cuts.iter().copied().zip(images.iter().map(PathBuf::as_path)).collect();
        replay::write_images(&trial.log, trial.disk_bytes, &pairs)?;
        for (mark, image) in pairs {
            let owed = format!("{}-{mark}.owed", trial.subject);
            let lines =
                journal.owed_at(mark).into_iter().map(|(sector, generation)| format!("{sector} {generation}\n"));
            std::fs::write(dir.join(&owed), lines.collect::<String>())?;
            arguments.push(format!("{}={owed}", trial.subject));
            names.push(format!("{}_after_reboot_at_mark_{mark}", trial.subject));
            disks.push(image.to_owned());
        }
    }
    let script = options.guest_script("check", &arguments)?;
    let mut results = vec![None; names.len()];
    let guest = machine.boot(&script, &disks)?;
    let ended = guest.finish(CHECK_LIMIT, |line| {
        if let Some((index, owed, broken)) = parse_result(line) {
            if let Some(result) = results.get_mut(index) {
                *result = Some((owed, broken));
            }
        } else if line.starts_with("lab: ") || line.starts_with("Error") {
            println!("{line}");
        }
    });
    for (name, result) in names.iter().zip(results) {
        match result {
            Some((owed, broken)) => {
                lab.check(name, owed > 0 && broken == 0, &format!("{owed} sectors owed, {broken} broken"));
            }
            None => lab.failed(name, "not checked"),
        }
    }
    ended.context("checking the replayed disks")
}

fn parse_result(line: &str) -> Option<(usize, u64, u64)> {
    let mut words = line.strip_prefix("lab: checked ")?.split(' ');
    let index = words.next()?.parse().ok()?;
    let owed = words.nth(1)?.parse().ok()?;
    let broken = words.nth(1)?.parse().ok()?;
    Some((index, owed, broken))
}

fn summary(found: &Findings) -> String {
    format!(
        "{} cuts, {} flushes, {} FUA writes, {} marks, {} sectors acknowledged, {} lost",
        found.entries,
        found.flushes,
        found.fua_writes,
        found.marks.len(),
        found.promised_sectors,
        found.broken_sectors
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read_back() {
        for text in ["evenkeel_block", "qemu-nbd-unsafe_file"] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        assert!("evenkeel_tape".parse::<Subject>().is_err());
    }

    #[test]
    fn results_of_the_guest_are_understood() {
        assert_eq!(parse_result("lab: checked 3 owed 120 broken 1"), Some((3, 120, 1)));
        assert_eq!(parse_result("lab: tick"), None);
    }
}
