//! The io_uring instance (ring) of a worker.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use evenkeel_control::{Duration, Instant};
use io_uring::{IoUring, opcode, squeue, types};

use crate::backend::file::File;
use crate::backend::operation::FileIo;
use crate::clock;
use crate::faults::{Call, Fault, Faults};

/// Number of entries of the submission queue: enough for one batch of a few connections with high queue depths.
const SUBMISSIONS: u32 = 512;
/// Number of operations that are submitted with one system call.
///
/// The kernel starts a batch only when it has prepared all of it, which takes 2 to 3 us for each operation. In one batch, 32
/// operations would keep the device waiting for 80 us, complete together, and never overlap with the client's next requests.
/// Batches of four spread the operations out, at the cost of a system call for each batch.
const SUBMIT_BATCH: usize = 4;
/// Largest number of operations inside the kernel at one time: the size of the completion queue, so that it never overflows.
const COMPLETIONS: u32 = 4096;
/// Largest number of operations of one volume on a ring; further ones go to the volume's threads. A volume also leaves as much
/// of the ring as it takes ([`Uring::room`]): a device that hangs never frees its part, and a tenant may have many volumes.
pub(crate) const MOST_OF_VOLUME: u32 = COMPLETIONS / 4;
/// Largest number of completions that are handled in one round; each takes some 5 us.
const COMPLETED: usize = 256;
/// Largest number of the kernel's threads for operations that would block, such as writes into holes: more than one volume
/// can have operations, so that a device that hangs leaves threads for others. The threads end when idle.
const KERNEL_THREADS: u32 = 2 * MOST_OF_VOLUME;
/// Bit position, in the user data of an entry, of the errno that a test injects; the lower bits are the token.
const FAILURE_SHIFT: u32 = 32;
/// Time to wait before entries that the kernel refused, for want of memory, are submitted again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Time for which the kernel may refuse entries before the ring is given up. Operations for which no thread can be started
/// are retried for the same time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A ring that one worker thread owns.
pub(crate) struct Uring {
    ring: IoUring,
    /// Entries that wait for room on the ring.
    backlog: VecDeque<squeue::Entry>,
    /// Tokens of the entries on the ring that the kernel has not taken yet, in order.
    untaken: VecDeque<u32>,
    /// Number of operations on the ring and inside the kernel.
    inside: u32,
    /// `Some` while the kernel refuses entries.
    refused: Option<Refused>,
    /// True once the kernel has refused entries for too long: no more are submitted, and operations inside the kernel still
    /// complete.
    given_up: bool,
    faults: Faults,
}

#[derive(Clone, Copy)]
struct Refused {
    since: Instant,
    again_at: Instant,
}

impl Uring {
    /// Makes a ring for the calling thread.
    pub(crate) fn new(faults: &Faults) -> io::Result<Self> {
        faults.check(Call::Setup)?;
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(SUBMISSIONS)
            // Kernels before 6.0 do not know these flags.
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS))?;
        // Four a processor by default. Kernels before 5.15 cannot change it.
        let _ = ring.submitter().register_iowq_max_workers(&mut [KERNEL_THREADS, 0]);
        Ok(Self {
            ring,
            backlog: VecDeque::new(),
            untaken: VecDeque::with_capacity(SUBMISSIONS as usize),
            inside: 0,
            refused: None,
            given_up: false,
            faults: faults.clone(),
        })
    }

    /// The ring's descriptor: readable when operations have completed.
    pub(crate) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Number of operations for which the ring has room.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        COMPLETIONS.saturating_sub(self.inside + self.backlog.len() as u32)
    }

    /// Queues a read or write under `token` with an I/O priority of [`super::priority`]; the operation is submitted with the
    /// next [`Uring::submit`] at the latest. False for other operations, which the kernel would give to threads anyway; syncs
    /// have to wait for each other. False also while the ring is full, as it stays while devices hang.
    #[inline]
    pub(crate) fn push(&mut self, token: u32, io: &FileIo, file: &File, priority: u16) -> bool {
        if self.given_up || self.inside as usize + self.backlog.len() >= COMPLETIONS as usize {
            return false;
        }
        let mut io = *io;
        let (call, len) = match &mut io {
            FileIo::Read { len, .. } => (Call::Read, len),
            FileIo::Write { len, .. } => (Call::Write, len),
            FileIo::Sync { .. }
            | FileIo::Trim { .. }
            | FileIo::Zero { .. }
            | FileIo::Cache { .. }
            | FileIo::Extents { .. } => return false,
        };
        let failure = match file.faults().take(call) {
            None => 0,
            // A thread can wait.
            Some(Fault::Late(_)) => return false,
            Some(fault) => match fault.meet(*len) {
                Ok(part) => {
                    *len = part;
                    0
                }
                Err(errno) => errno.raw_os_error() as u32,
            },
        };
        let entry = match io {
            FileIo::Read { ptr, len, offset } if failure == 0 => {
                opcode::Read::new(types::Fd(file.fd_for(ptr, offset, len)), ptr, len)
                    .offset(offset)
                    .ioprio(priority)
                    .build()
            }
            FileIo::Write { ptr, len, offset, durable } if failure == 0 => {
                opcode::Write::new(types::Fd(file.fd_for(ptr, offset, len)), ptr, len)
                    .offset(offset)
                    .ioprio(priority)
                    .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            _ => opcode::Nop::new().build(),
        };
        let entry = entry.user_data(u64::from(token) | u64::from(failure) << FAILURE_SHIFT);
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
        }
        true
    }

    /// Puts an entry on the ring if there is room for it and, later, for its completion.
    #[inline]
    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        if self.inside == COMPLETIONS {
            return false;
        }
        // SAFETY: buffer and file live in the worker's table of operations until the completion is reaped.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit_now();
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return false;
            }
        }
        self.inside += 1;
        self.untaken.push_back(entry.get_user_data() as u32);
        if self.untaken.len() >= SUBMIT_BATCH {
            self.submit_now();
        }
        true
    }

    fn submit_now(&mut self) {
        if self.refused.is_some_and(|refused| clock::now() < refused.again_at) {
            return;
        }
        loop {
            match self.faults.check(Call::Enter).map_err(io::Error::from).and_then(|()| self.ring.submit()) {
                // The kernel may take only some, for want of memory.
                Ok(taken) => {
                    self.untaken.drain(..taken);
                    self.refused = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // EAGAIN, EBUSY, ENOMEM: the entries stay on the ring.
                Err(error) => self.is_refused(&error),
            }
            return;
        }
    }

    #[cold]
    fn is_refused(&mut self, error: &io::Error) {
        let now = clock::now();
        let since = self.refused.map_or(now, |refused| refused.since);
        if self.refused.is_none() {
            tracing::warn!(%error, "the kernel refuses io_uring_enter, usually for lack of memory: free memory; this worker tries again every 10 ms, and after 5 s serves files by threads");
        }
        self.refused = Some(Refused { since, again_at: now + ASK_AGAIN_AFTER });
    }

    /// Submits all queued operations to the kernel.
    #[inline]
    pub(crate) fn submit(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            if !self.try_push(&entry) {
                self.backlog.push_front(entry);
                break;
            }
        }
        if !self.untaken.is_empty() {
            self.submit_now();
        }
    }

    /// Time at which entries that the kernel has not taken are to be submitted again; far in the future if there are none.
    pub(crate) fn submit_at(&self, now: Instant) -> Instant {
        let waits = !self.untaken.is_empty() || (!self.backlog.is_empty() && self.inside < COMPLETIONS);
        if waits { self.refused.map_or(now, |refused| refused.again_at) } else { Instant::FAR_FUTURE }
    }

    /// Gives the ring up if the kernel has refused entries for [`PATIENCE`]; in this case returns, once, the tokens of the
    /// operations that threads have to carry out instead.
    ///
    /// Operations that the kernel has taken complete as usual. Entries that it has not taken stay on the ring, but the kernel
    /// never handles them, because the ring is never submitted again.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = u32> + use<> {
        let too_long = |refused: Refused| clock::now().since(refused.since) >= PATIENCE;
        let mut tokens = VecDeque::new();
        if self.refused.is_some_and(too_long) {
            tracing::error!(
                "the kernel has refused io_uring_enter for 5 s; this worker serves files by threads from now on, which costs more CPU per request. Free memory, and restart the server to use io_uring again"
            );
            (self.given_up, self.refused) = (true, None);
            tokens = std::mem::take(&mut self.untaken);
            tokens.extend(self.backlog.drain(..).map(|entry| entry.get_user_data() as u32));
        }
        tokens.into_iter()
    }

    /// Calls `done` for completed operations, at most [`COMPLETED`] of them, with the token and the result: number of bytes,
    /// or minus the errno.
    #[inline]
    pub(crate) fn reap(&mut self, mut done: impl FnMut(u32, i32)) {
        for completion in self.ring.completion().take(COMPLETED) {
            self.inside -= 1;
            let data = completion.user_data();
            let failure = (data >> FAILURE_SHIFT) as i32;
            done(data as u32, if failure == 0 { completion.result() } else { -failure });
        }
    }
}

/// Checks that the kernel allows this process to use io_uring.
pub(crate) fn probe(faults: &Faults) -> io::Result<()> {
    Uring::new(faults).map(drop)
}
