//! Faults that a test injects into system calls of the data path.
//!
//! The server asks [`Faults`] before each call. Without tests there is no table of faults, only a null pointer to check, so
//! that tests run exactly the code that production runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

/// Size of a page in bytes, the unit of direct reads and writes.
const PAGE: u32 = 4096;

/// A system call into which a fault can be injected. An operation of io_uring counts as the call that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// A read from a file.
    Read,
    /// A write to a file, also of zeros.
    Write,
    /// `fdatasync`.
    Sync,
    /// `fallocate`, for holes and zeroed ranges.
    Fallocate,
    /// `lseek` that searches for data or holes.
    Seek,
    /// The start of an I/O thread, or of a thread that connects to a remote server.
    Clone,
    /// Allocation of memory for a request's payload.
    Malloc,
    /// `io_uring_setup`.
    Setup,
    /// `io_uring_enter`.
    Enter,
    /// `accept4`.
    Accept,
    /// `epoll_ctl` for a new connection, also to a remote server.
    Watch,
    /// `epoll_pwait2`, or `epoll_wait` in its place.
    Wait,
    /// The write to an eventfd that wakes a worker, or the driver of a remote volume.
    Wake,
    /// `readv` from a client or from a remote server.
    Receive,
    /// `sendmsg` to a client or to a remote server.
    Send,
    /// An attempt to connect to a remote server: look-up of its name, `connect` and negotiation.
    Connect,
    /// `madvise` that gives back memory of a volume.
    Advise,
}

/// The way in which a call fails or is changed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The call is not made, and fails with this errno.
    Errno(i32),
    /// A read or write of a file moves only half of its bytes, rounded down to whole pages if it has two pages or more.
    Short,
    /// A call on a file is made by a thread after a delay of this time. `times` does not count: every matching call is late
    /// until the line is removed.
    Late(Duration),
}

/// One line of a table of faults.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The calls that the line is for: name of a volume for calls on its file, on its memory or for its remote server, `tcp` or
    /// `unix` for calls on such connections of clients; empty for all.
    pub place: String,
    /// Kind of call that the line is for.
    pub call: Call,
    /// The fault that matching calls meet.
    pub fault: Fault,
    /// Number of matching calls that succeed before the first that meets the fault.
    pub skip: u64,
    /// Number of matching calls that meet the fault after these.
    pub times: u64,
}

/// A table of faults, or no table; clones share the table.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<Seam>>);

struct Seam {
    /// The lines of the table, each with the number of calls that have met its fault.
    table: Arc<Mutex<Vec<(Injection, u64)>>>,
    /// The volume or kind of connection whose calls are checked through this value.
    place: String,
}

impl Seam {
    fn table(&self) -> MutexGuard<'_, Vec<(Injection, u64)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn take(&self, call: Call) -> Option<Fault> {
        let mut table = self.table();
        let here = |line: &Injection| line.call == call && (line.place.is_empty() || line.place == self.place);
        let (line, met) = table.iter_mut().find(|(line, _)| line.times > 0 && here(line))?;
        if line.skip > 0 {
            line.skip -= 1;
            return None;
        }
        *met += 1;
        if !matches!(line.fault, Fault::Late(_)) {
            line.times -= 1;
        }
        Some(line.fault)
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().flat_map(|seam| seam.table().clone())).finish()
    }
}

impl Faults {
    /// No table: no fault is injected.
    pub(crate) const NONE: Self = Self(None);

    /// An empty table of faults.
    pub fn table() -> Self {
        Self(Some(Arc::new(Seam { table: Arc::default(), place: String::new() })))
    }

    /// Adds a line to the table. If several lines match a call, the first that is not used up applies.
    pub fn add(&self, injection: Injection) {
        if let Some(seam) = &self.0 {
            seam.table().push((injection, 0));
        }
    }

    /// Removes the lines for a place; returns the smallest number of calls that have met the fault of one of these lines, 0
    /// if there are none.
    pub fn clear(&self, place: &str) -> u64 {
        let Some(seam) = &self.0 else { return 0 };
        seam.table().extract_if(.., |(line, _)| line.place == place).map(|(_, met)| met).min().unwrap_or_default()
    }

    /// Number of calls of this kind that have met a fault, for all lines in the table together.
    pub fn met(&self, call: Call) -> u64 {
        let of = |seam: &Arc<Seam>| seam.table().iter().filter(|(line, _)| line.call == call).map(|(_, met)| met).sum();
        self.0.as_ref().map_or(0, of)
    }

    /// The same table, for checking calls of the volume or kind of connection `place`.
    pub(crate) fn at(&self, place: &str) -> Self {
        let seam = |seam: &Arc<Seam>| Arc::new(Seam { table: Arc::clone(&seam.table), place: place.to_owned() });
        Self(self.0.as_ref().map(seam))
    }

    /// The fault that the present call of this kind meets, if any; also counts the call.
    #[inline]
    pub(crate) fn take(&self, call: Call) -> Option<Fault> {
        self.0.as_ref().and_then(|seam| seam.take(call))
    }

    /// Applies the fault for a call that moves no bytes: returns an error, or delays the call. For threads that may block.
    #[inline]
    pub(crate) fn check(&self, call: Call) -> Result<(), Errno> {
        match self.take(call) {
            None => Ok(()),
            Some(fault) => fault.meet(0).map(drop),
        }
    }

    /// Applies the fault for a read or write of `len` bytes; returns how many bytes the call has to move. For threads that
    /// may block.
    #[inline]
    pub(crate) fn cut(&self, call: Call, len: u32) -> Result<u32, Errno> {
        match self.take(call) {
            None => Ok(len),
            Some(fault) => fault.meet(len),
        }
    }
}

impl Fault {
    /// Carries out the fault for a call of `len` bytes (0 if the call moves none): returns the errno or a shorter length, or
    /// sleeps and returns `len`.
    #[cold]
    pub(crate) fn meet(self, len: u32) -> Result<u32, Errno> {
        match self {
            Self::Errno(errno) => return Err(Errno::from_raw_os_error(errno)),
            Self::Short if len < 2 * PAGE => return Ok(len.div_ceil(2)),
            Self::Short => return Ok(len / 2 / PAGE * PAGE),
            Self::Late(time) => std::thread::sleep(time),
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_their_calls_and_keep_to_their_place() {
        let faults = Faults::table();
        let line =
            |place: &str, fault, skip, times| Injection { place: place.into(), call: Call::Write, fault, skip, times };
        faults.add(line("a", Fault::Errno(libc::EIO), 1, 2));
        faults.add(line("a", Fault::Short, 0, 1));
        let (a, b) = (faults.at("a"), faults.at("b"));
        assert_eq!(a.cut(Call::Write, 9), Ok(9), "the first is left alone");
        assert_eq!(b.cut(Call::Write, 9), Ok(9), "another place");
        assert_eq!(a.cut(Call::Read, 9), Ok(9), "another call");
        assert_eq!(a.cut(Call::Write, 9), Err(Errno::IO));
        assert_eq!(a.cut(Call::Write, 9), Err(Errno::IO));
        assert_eq!(a.cut(Call::Write, 9), Ok(5), "the next line");
        assert_eq!(Fault::Short.meet(3 * PAGE), Ok(PAGE));
        assert_eq!(a.cut(Call::Write, 9), Ok(9), "all is used up");
        assert_eq!((faults.met(Call::Write), faults.met(Call::Read)), (3, 0));
        assert_eq!((faults.clear("b"), faults.clear("a")), (0, 1));
        faults.add(line("", Fault::Errno(libc::EIO), 0, u64::MAX));
        assert_eq!((a.check(Call::Write), b.check(Call::Write)), (Err(Errno::IO), Err(Errno::IO)), "everywhere");
        assert_eq!(faults.clear(""), 2);
        assert_eq!((a.check(Call::Write), Faults::NONE.check(Call::Write)), (Ok(()), Ok(())));
    }
}
