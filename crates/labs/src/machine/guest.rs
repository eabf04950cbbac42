//! Functions for the code of labs that runs inside a virtual machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::base::tutorial::{self, Stage};
use crate::base::{build, process};
use crate::check::steps;

/// Folder of the root of all control groups.
pub(crate) const GROUPS: &str = "/sys/fs/cgroup";
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A command that runs in a control group what its further arguments name. `group` is the group's path, below [`GROUPS`] if it is
/// relative.
pub(crate) fn in_group(group: impl AsRef<Path>) -> Command {
    let mut shell = process::program("sh");
    let script = "echo $$ > \"$1/cgroup.procs\"; shift; exec \"$@\"";
    shell.args(["-c", script, "sh"]).arg(Path::new(GROUPS).join(group));
    shell
}

/// Path of the machine's disk number `index`, counted from 0.
pub(crate) fn disk(index: usize) -> PathBuf {
    format!("/dev/vd{}", char::from(b'a' + index as u8)).into()
}

/// Runs a program, which the guest shares with the host, to its end. Returns the program's output.
pub(crate) fn tool(name: &str, args: &[&str]) -> Result<String> {
    process::output(process::program(name).args(args))
}

/// Does the tutorial page `name`. The machine must be in the state in which a reader begins.
pub(crate) fn follow_tutorial(name: &str, binary: &Path) -> Result<String> {
    let program = binary.to_str().context("a path in UTF-8")?;
    let stage = Stage { program, instead: &[], prepare: process::tie_to_this_program };
    let (commands, written) = tutorial::play(&build::page(name)?, &stage)?;
    if let Some(text) = written {
        steps::tell_page(name, &text)?;
    }
    Ok(format!("{commands} commands of docs/guide/{name}.md"))
}

/// Copies programs, with all files that they need, from the host into the guest's memory. While the machine waits for the host,
/// its virtual clock jumps from timer to timer, so that opening a program could take a virtual second.
pub(crate) fn keep_in_memory(mut files: Vec<PathBuf>) -> Result<()> {
    files.push(std::env::current_exe()?);
    for file in files.clone() {
        // Of a program without libraries it fails.
        let needed = process::output(process::program("ldd").arg(file)).unwrap_or_default();
        files.extend(needed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    files.push("/etc/ld.so.cache".into());
    for file in files {
        // Setting anything of a file brings all of it into the layer in memory; a name may lead to another one.
        let Ok(file) = file.canonicalize() else { continue };
        let permissions = std::fs::metadata(&file)?.permissions();
        std::fs::set_permissions(&file, permissions).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

/// Makes a folder for a server's files in the guest's memory, not in the directory shared with the host.
pub(crate) fn work_dir(name: &str) -> PathBuf {
    Path::new("/mnt").join(name)
}

/// Makes a folder and those above it.
pub(crate) fn make_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Writes a value to a file of the kernel, as in sysfs.
pub(crate) fn put(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    std::fs::write(path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects; the process is a child that has not been reaped.
    unsafe { libc::kill(pid as i32, signal) };
}

/// Waits until `found` returns a value. `what` names the awaited event in the error.
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        ensure!(started.elapsed() < READY_LIMIT, "no {what} within {READY_LIMIT:?}");
        thread::sleep(Duration::from_millis(50));
    }
}
