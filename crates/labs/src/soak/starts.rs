//! Starts of a server whose predecessor was killed under load. After a kill -9 the kernel keeps locks of files that io_uring
//! still uses for some milliseconds, in which a start must wait and not be refused.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::base::client::Client;
use crate::base::process::{Running, daemon};
use crate::base::servers;
use crate::check::run::Lab;
use crate::check::writer;

const NAME: &str = "every_start_after_kill_9_succeeds";
/// Number of kills: in a short soak, and in a longer one.
const KILLS: [u64; 2] = [10, 140];
/// Shortest load before a kill. Each kill comes after one of [`STEPS`] such times, so that kills meet other moments of the load.
const LOADED: Duration = Duration::from_millis(100);
const STEPS: u64 = 4;
/// Time limit of a start; a server waits 5 s at most for the lock of a predecessor.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Volume of the writer, which counts acknowledged writes.
const WRITTEN: &str = "written";
/// Volume of a client that keeps many large writes in flight.
const LOADED_VOLUME: &str = "loaded";

/// Kills a server under load and starts it again, many times, and reports the number of refused starts. `long`: as often as in a
/// soak that is not short.
pub(super) fn check(lab: &mut Lab, binary: &Path, scratch: &Path, long: bool) -> Result<()> {
    if !uring_is_allowed() {
        return lab.skipped(NAME, "the kernel refuses io_uring");
    }
    let kills = KILLS[usize::from(long)];
    let folder = scratch.join("starts");
    std::fs::create_dir_all(&folder)?;
    let socket = folder.join("nbd.sock").display().to_string();
    let config = folder.join("evenkeel.toml");
    let data = folder.join("data").display().to_string();
    std::fs::write(
        &config,
        format!(
            "[server]\nlisten = []\nstatus = \"off\"\nunix = [{socket:?}]\ndata_dir = {data:?}\nengine = \"io_uring\"\n\
             [volumes.{WRITTEN}]\nbackend = \"file\"\nsize = \"32MiB\"\n\
             [volumes.{LOADED_VOLUME}]\nbackend = \"file\"\nsize = \"64MiB\"\n"
        ),
    )?;
    let (mut refused, mut slowest, mut acknowledged) = (Vec::new(), Duration::ZERO, 0);
    for kill in 0..=kills {
        let begun = Instant::now();
        let server = match start(binary, &folder, &config, &socket)? {
            Ok(server) => server,
            Err(said) => {
                ensure!(kill > 0, "the server does not start: {said}");
                refused.push(said);
                continue;
            }
        };
        if kill > 0 {
            slowest = slowest.max(begun.elapsed());
        }
        if kill == kills {
            break;
        }
        let mut load = Command::new(binary);
        load.args(["load", &format!("nbd+unix:///{LOADED_VOLUME}?socket={socket}"), "--op", "write"]);
        load.args(["--block-size", "256k", "--queue-depth", "32", "--connections", "2", "--duration", "1h"]);
        let mut load = daemon(&folder, "load", &mut load)?;
        let mut loaded = Ok(None);
        let killer = || {
            thread::sleep(LOADED * (1 + kill % STEPS) as u32);
            loaded = load.ended();
            server.kill();
        };
        acknowledged += writer::until_killed(&socket, WRITTEN, kill, killer)?.len();
        ensure!(loaded?.is_none(), "the load had ended: {}", last_line(&folder, "load"));
    }
    let first = refused.first().map_or_else(String::new, |said| format!("; the first said: {said}"));
    let detail = format!(
        "{} of {kills} refused, the slowest start took {:.2} s, {acknowledged} writes were acknowledged{first}",
        refused.len(),
        slowest.as_secs_f64()
    );
    lab.check(NAME, refused.is_empty() && acknowledged > 0, &detail);
    Ok(())
}

/// Starts the server, and waits until it serves. The inner error is the last line of a server that does not.
fn start(binary: &Path, folder: &Path, config: &Path, socket: &str) -> Result<Result<Running, String>> {
    let mut server = daemon(folder, "serve", &mut servers::serve(binary, config))?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if Client::connect_once(socket, WRITTEN, START_LIMIT).and_then(Client::disconnect).is_ok() {
            return Ok(Ok(server));
        }
        if server.ended()?.is_some() || Instant::now() > deadline {
            return Ok(Err(last_line(folder, "serve")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn last_line(folder: &Path, name: &str) -> String {
    let log = std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
    log.lines().last().unwrap_or_default().to_owned()
}

/// True if the kernel lets this process use io_uring.
fn uring_is_allowed() -> bool {
    // SAFETY: without entries and without parameters the call fails, and touches no memory.
    unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null_mut::<libc::c_void>()) };
    !matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}
