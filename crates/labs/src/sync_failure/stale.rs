//! The check of a volume that is a file. The page cache outlives the server, and keeps data that never reached the device.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Check;
use super::faults::Faulty;
use super::requests::{EIO, LOST, connect, content, flush, keep, lose};
use crate::base::process::{self, Running};
use crate::base::servers;
use crate::machine::guest::{tool, work_dir};

const EXPORT: &str = "file";
/// Time limit of a graceful stop.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(binary: &Path, dir: &Path) -> Result<Running> {
    process::daemon(dir, "serve", &mut servers::serve(binary, dir.join("evenkeel.toml")))
}

/// Checks that data which a client has read and flushed after a restart of the server stays readable, even when the kernel frees
/// its page cache.
pub(super) fn check(binary: &Path, device: &str) -> Result<Check> {
    let dir = work_dir("stale");
    let mount = dir.join("fs");
    std::fs::create_dir_all(&mount)?;
    // Without a journal, whose own failure would make the file system read-only.
    tool("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", device])?;
    tool("mount", &["-t", "ext4", device, &mount.to_string_lossy()])?;
    let volume = mount.join("disk0.img").display().to_string();
    tool("dd", &["if=/dev/zero", &format!("of={volume}"), "bs=1M", "count=5", "conv=fsync", "status=none"])?;
    let path = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "[server]\nlisten = []\nunix = [{:?}]\ndata_dir = {:?}\nstatus = \"off\"\n\
         [volumes.{EXPORT}]\npath = {volume:?}\ncache = \"buffered\"\n",
        path("nbd.sock"),
        path("data")
    );
    std::fs::write(dir.join("evenkeel.toml"), config)?;

    let mut check = Check::default();
    let server = start(binary, &dir)?;
    let mut client = connect(&path("nbd.sock"), EXPORT)?;
    keep(&mut client, 1)?;
    Faulty::fail()?;
    lose(&mut client, 1)?;
    check.answer(flush(&mut client)?, EIO, "FLUSH while the device fails");
    Faulty::repair()?;
    check.answer(flush(&mut client)?, EIO, "FLUSH when the device works again");
    drop(client);
    ensure!(!server.stop(libc::SIGTERM, PATIENCE)?.success(), "a stop that could not make all durable ended well");

    let _server = start(binary, &dir)?;
    let mut client = connect(&path("nbd.sock"), EXPORT)?;
    let before = content(&mut client, LOST)?;
    check.answer(flush(&mut client)?, 0, "FLUSH after the restart");
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches")?;
    let after = content(&mut client, LOST)?;
    check.expect(before == after, format_args!("{before:?} was read and flushed with success, then {after:?}"));
    Ok(check)
}
