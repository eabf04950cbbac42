//! The sentinel: a process that waits for the agent's death, and then restores the settings that the agent changed.
//!
//! The sentinel holds the reading end of a pipe whose writing end only the agent has. However the agent ends, the kernel
//! closes the writing end. A sentinel that was killed does no harm by itself: the agent starts another one.

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::actuator::Error;
use crate::journal::{Journal, Restoration};

/// Longest wait for the dead agent's lock on the journal. The kernel closes a process's files in any order, so that the pipe
/// may end before the lock is free.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The agent's handle of its sentinel process.
#[derive(Debug)]
pub struct Sentinel {
    child: Child,
    /// Writing end of the pipe to the sentinel; the kernel closes this end when the agent ends.
    _pipe: ChildStdin,
}

impl Sentinel {
    /// Starts `command`, which must call [`watch`] with its standard input. The sentinel runs in a process group of its own,
    /// so that neither Ctrl-C nor a kill of the agent's process group ends agent and sentinel together.
    ///
    /// # Errors
    /// [`Error::File`] if the program cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, Error> {
        use std::os::unix::process::CommandExt as _;
        let program = command.get_program().to_owned();
        let failed = |cause| Error::File { doing: "start the sentinel", path: program.clone().into(), cause };
        let mut child = command.stdin(Stdio::piped()).process_group(0).spawn().map_err(failed)?;
        let pipe = child.stdin.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, _pipe: pipe })
    }

    /// True if the sentinel still runs; otherwise the caller has to start another one.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The sentinel's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the sentinel, which finds an empty journal if everything has been restored. Drop the journal first, because the
    /// sentinel waits for the journal's lock.
    pub fn stop(self) {
        let Self { mut child, _pipe } = self;
        drop(_pipe);
        let _ = child.wait();
    }
}

/// The sentinel's whole life: waits until `pipe` ends, then restores the settings that the journal lists. `None` if another
/// process, such as a new agent, has the journal in use and so has to restore them.
///
/// # Errors
/// As [`Journal::open`]. Errors of restoring single settings are in the returned [`Restoration`].
pub fn watch(mut pipe: impl Read, journal: &Path) -> Result<Option<Restoration>, Error> {
    let mut nothing = [0; 64];
    // No process writes to it; an error means as little good as the end.
    while let Ok(1..) = pipe.read(&mut nothing) {}
    match Journal::open_within(journal, LOCK_LIMIT) {
        Ok(mut journal) => Ok(Some(journal.restore_all())),
        Err(Error::JournalInUse { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
