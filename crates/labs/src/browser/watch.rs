//! The cost of watching a server: in its HTTP thread, and in `evenkeel top`, which runs in a pseudo terminal.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::base::process::{self, Running};
use crate::check::figures::Spread;
use crate::check::run::Options;

/// Duration of a measurement with `--full`, 2,000 times the kernel's tick of 10 ms in which CPU time is counted.
const MEASURED: Duration = Duration::from_secs(20);
/// Duration of a measurement without `--full`, whose figure is only shown.
const MEASURED_SHORT: Duration = Duration::from_secs(4);
/// Time before a measurement. A watcher that has just started sends more requests, and allocates memory.
const SETTLED: Duration = Duration::from_secs(3);
/// Name of the server's thread that answers HTTP requests.
const HTTP: &str = "evenkeel-http";

/// CPU time used during a measurement, as a fraction of a core.
pub(super) struct Spent {
    /// CPU time of the server's HTTP thread.
    pub(super) answering: f64,
    /// CPU time of the watching process if it is `evenkeel top`, otherwise 0.
    pub(super) asking: f64,
    /// CPU time of the whole server, including its work for NBD clients.
    pub(super) serving: f64,
}

/// Measures the CPU time of a server and of a process that watches the server; each figure is the median of several
/// measurements. `server` and `watcher` are process ids.
pub(super) fn spent(options: &Options, server: u32, watcher: Option<u32>) -> Result<Spent> {
    let now = || -> Result<[u64; 3]> {
        let asking = watcher.map_or(Ok(0), process::cpu_ns)?;
        Ok([process::thread_cpu_ns(server, HTTP)?, asking, process::cpu_ns(server)?])
    };
    let (measured, times) = if options.full { (MEASURED, options.repeats) } else { (MEASURED_SHORT, 1) };
    thread::sleep(SETTLED);
    let mut shares: [Vec<f64>; 3] = Default::default();
    for _ in 0..times {
        let (before, begun) = (now()?, Instant::now());
        thread::sleep(measured);
        let (after, took) = (now()?, begun.elapsed().as_nanos() as f64);
        for (place, shares) in shares.iter_mut().enumerate() {
            shares.push(after[place].saturating_sub(before[place]) as f64 / took);
        }
    }
    let [answering, asking, serving] = shares.map(|of| Spread::of(of).map_or(f64::NAN, |spread| spread.median));
    Ok(Spent { answering, asking, serving })
}

/// A running `evenkeel top` in a pseudo terminal of 80 x 24 characters.
pub(super) struct Top {
    process: Running,
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Top {
    /// Starts `evenkeel top` for the server whose status API has the address `status`, at the default interval.
    pub(super) fn start(binary: &Path, status: SocketAddr) -> Result<Self> {
        let (screen, terminal) = terminal(80, 24)?;
        let mut command = Command::new(binary);
        command.args(["top", "--view", "tenants", "--status", &status.to_string()]);
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
        let process = Running::spawn(&mut command)?;
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&drawn);
        // A thread has to read, or the terminal fills up. It ends with the last who has the terminal open.
        thread::spawn(move || {
            let (mut screen, mut buffer) = (File::from(screen), [0; 4096]);
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(&buffer[..read]);
            }
        });
        Ok(Self { process, drawn })
    }

    /// Process id of `evenkeel top`.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Number of bytes that `evenkeel top` has drawn since the last call; and true if they contain `text`.
    pub(super) fn drew(&self, text: &str) -> (usize, bool) {
        let drawn = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        (drawn.len(), String::from_utf8_lossy(&drawn).contains(text))
    }
}

/// A pseudo terminal of this size in characters: the master side, and the side for the program.
fn terminal(columns: u16, rows: u16) -> Result<(OwnedFd, OwnedFd)> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut screen, mut terminal) = (-1, -1);
    // SAFETY: both descriptors and the size outlive the call, name and settings may be null.
    let made = unsafe { libc::openpty(&mut screen, &mut terminal, std::ptr::null_mut(), std::ptr::null(), &size) };
    ensure!(made == 0, "no pseudo terminal: {}", std::io::Error::last_os_error());
    // SAFETY: both are open, and owned by no other value.
    Ok(unsafe { (OwnedFd::from_raw_fd(screen), OwnedFd::from_raw_fd(terminal)) })
}
