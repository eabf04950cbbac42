//! Looks for faults of the pools' devices, on a thread of its own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::lock;
use super::shared::Shared;
use crate::discovery::Roots;
use crate::loops::health;
use crate::sensor::faults::Faults;

/// Time between two looks. A look reads a few files of sysfs for each device, and waits for no disk.
const EVERY: Duration = Duration::from_secs(1);

/// Starts the thread, which ends when the returned end of the channel is dropped.
///
/// # Errors
/// When no thread can be started.
pub(super) fn start(shared: &Arc<Mutex<Shared>>) -> io::Result<Sender<()>> {
    let (alive, ended) = channel();
    let shared = Arc::clone(shared);
    thread::Builder::new().name("evenkeel-faults".into()).spawn(move || keep(&shared, &ended))?;
    Ok(alive)
}

fn keep(shared: &Mutex<Shared>, ended: &Receiver<()>) {
    let (roots, begun, mut faults) = (Roots::default(), Instant::now(), Faults::default());
    loop {
        let used = lock(shared).agent.devices();
        let now = evenkeel_control::Instant::ZERO + begun.elapsed().into();
        let found = health::of_devices(&faults.sample(now, &roots, &used));
        lock(shared).faults = found;
        if ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
