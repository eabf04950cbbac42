//! The part of the durability lab in the virtual machine: writing until the power is cut, and checking afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{FILE_BYTES, Subject};
use crate::base::client::Client;
use crate::base::process::Running;
use crate::base::servers::{self, Address, Setup, Storage};
use crate::check::writer::compare;
use crate::machine::guest::{disk, tool, work_dir};
use crate::machine::vm::SHARE;

const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// The storage of a subject on `device`. If the subject has a file system, it is mounted; with `fresh` it is made first.
fn storage(subject: &Subject, device: &Path, name: &str, fresh: bool) -> Result<Storage> {
    if !subject.file {
        return Ok(Storage::Block(device.to_owned()));
    }
    let mount = work_dir(&format!("{name}-fs"));
    std::fs::create_dir_all(&mount)?;
    if fresh {
        // The file system is written through the log like everything else.
        tool(
            "mkfs.ext4",
            &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", &device.to_string_lossy()],
        )?;
    }
    tool("mount", &["-t", "ext4", &device.to_string_lossy(), &mount.to_string_lossy()])?;
    let file = mount.join("disk0.img");
    if fresh {
        std::fs::File::create(&file)?.set_len(FILE_BYTES as u64)?;
        // What the operator made before the server started is durable; the server's own writes are on trial.
        tool("sync", &[])?;
    }
    Ok(Storage::File(file))
}

pub(crate) fn load(binary: &Path, subjects: &[Subject]) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut writers = Vec::new();
    let mut servers = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        let name = subject.to_string();
        let (log, data) = (disk(2 * index), disk(2 * index + 1));
        let sectors = tool("blockdev", &["--getsz", &data.to_string_lossy()])?;
        // Requests enter the log in the order in which the target wrote them.
        let block = log.file_name().context("the disk has no name")?.to_string_lossy().into_owned();
        std::fs::write(format!("/sys/block/{block}/queue/scheduler"), "none")?;
        let table = format!("0 {} log-writes {} {}", sectors.trim(), data.display(), log.display());
        tool("dmsetup", &["create", "--noudevsync", &name, "--table", &table])?;
        tool("dmsetup", &["mknodes"])?;
        let device = Path::new("/dev/mapper").join(&name);
        let storage = storage(subject, &device, &name, true)?;
        let address = Address::Unix(work_dir(&format!("{name}.sock")));
        let setup = Setup { server: &subject.server, binary, storage: &storage, address: &address };
        servers.push(servers::start(&setup, None, &work_dir(&name))?);
        let mut writer = Command::new(&own);
        writer.args(["guest", "write", "--socket", &address.plain(), "--device", &name, "--journal"]);
        writer.arg(Path::new(SHARE).join(format!("{name}.journal")));
        writer.arg("--seed").arg((index + 1).to_string()).stdin(Stdio::null());
        writers.push((name, Running::spawn(&mut writer)?));
    }
    loop {
        println!("lab: tick");
        thread::sleep(Duration::from_millis(250));
        for (name, writer) in &mut writers {
            if let Some(status) = writer.ended()? {
                bail!("the writer of {name} ended: {status}");
            }
        }
        for server in &mut servers {
            if let Some(status) = server.ended()? {
                bail!("a server ended: {status}");
            }
        }
    }
}

pub(crate) fn check(binary: &Path, cuts: &[String]) -> Result<()> {
    for (index, cut) in cuts.iter().enumerate() {
        let (subject, owed) = cut.split_once('=').context("expected SUBJECT=FILE")?;
        let subject: Subject = subject.parse()?;
        let owed = parse_owed(&std::fs::read_to_string(Path::new(SHARE).join(owed))?)?;
        let name = format!("{subject}-{index}");
        let storage = storage(&subject, &disk(index), &name, false)?;
        let address = Address::Unix(work_dir(&format!("{name}.sock")));
        let setup = Setup { server: &subject.server, binary, storage: &storage, address: &address };
        let server = servers::start(&setup, None, &work_dir(&name))?;
        let broken = compare(&mut Client::connect(&address.plain(), servers::EXPORT, CONNECT_LIMIT)?, &owed)?;
        println!("lab: checked {index} owed {} broken {}", owed.len(), broken.len());
        if let Some(first) = broken.first() {
            println!("lab: {name}: {first}");
        }
        server.kill();
    }
    Ok(())
}

/// Parses lines that each contain a sector's number and the lowest generation that the sector may hold.
fn parse_owed(text: &str) -> Result<BTreeMap<u64, u64>> {
    let pair = |line: &str| {
        let (sector, generation) = line.split_once(' ').context("expected SECTOR GENERATION")?;
        Ok((sector.parse()?, generation.parse()?))
    };
    text.lines().map(pair).collect()
}
