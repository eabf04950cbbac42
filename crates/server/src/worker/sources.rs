//! A worker's sources of events, in two epoll sets, so that tenants with many connections do not delay the others.
//!
//! The kernel reports ready sources in turn, so that with ten thousand readable sockets each waits for all others.
//! Connections of tenants that have many connections, and connections that negotiate, are therefore in a set of their own,
//! the crowd. The crowd is one source in the worker's other set, and a few of its events are served in each round.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use evenkeel_control::Duration;
use rustix::event::epoll;
use rustix::io::{Errno, Result};

/// Event data of the worker's mailbox; below are those of its io_uring, its crowd set and its first listener. All are greater
/// than any connection's event data, which is the connection's key.
pub(super) const MAILBOX_EVENT: u64 = u64::MAX;
pub(super) const RING_EVENT: u64 = u64::MAX - 1;
pub(super) const CROWD_EVENT: u64 = u64::MAX - 2;
pub(super) const LISTENER_EVENTS: u64 = u64::MAX - 1024;

pub(super) const READ: u32 = libc::EPOLLIN as u32;
pub(super) const WRITE: u32 = libc::EPOLLOUT as u32;
/// The client has closed its sending side; bytes that it sent before may still be unread.
pub(super) const ENDED: u32 = libc::EPOLLRDHUP as u32;
pub(super) const GONE: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// Largest number of events taken with one call from the own set.
pub(super) const EVENTS: usize = 256;
/// Largest number of events taken with one call from the crowd set: up to a millisecond of work over TCP, for which other
/// connections wait.
const CROWD_EVENTS: usize = 64;
/// A tenant with more connections than this has all of them in the crowd set. Events of this number of connections are as
/// much work as [`CROWD_EVENTS`].
const CROWD: u32 = 64;

/// One of a worker's two epoll sets, which a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// All ready sources are served in each round.
    Own,
    /// At most [`CROWD_EVENTS`] ready connections are served in each round, in turn.
    Crowd,
}

impl Set {
    /// The set for a connection of a tenant that has `connections` connections.
    pub(crate) fn of(connections: u32) -> Self {
        if connections > CROWD { Self::Crowd } else { Self::Own }
    }
}

/// The two epoll sets of one worker.
pub(super) struct Sources {
    own: OwnedFd,
    crowd: OwnedFd,
    /// True if waits last whole milliseconds, because the kernel knows no finer ones.
    coarse: bool,
}

impl Sources {
    /// Two epoll sets without connections; the crowd set is a source in the own set.
    ///
    /// # Errors
    /// If the system has no memory or descriptors left.
    pub(super) fn new() -> Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let sources = Self { own: create()?, crowd: create()?, coarse: false };
        sources.add(sources.crowd.as_fd(), CROWD_EVENT, READ, Set::Own)?;
        Ok(sources)
    }

    fn set(&self, set: Set) -> BorrowedFd<'_> {
        match set {
            Set::Own => self.own.as_fd(),
            Set::Crowd => self.crowd.as_fd(),
        }
    }

    /// Adds `fd` to `set`: epoll reports the events `interest` of `fd` with the event data `data`.
    ///
    /// # Errors
    /// If the system has no memory or watches (fs.epoll.max_user_watches) left.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, data: u64, interest: u32, set: Set) -> Result<()> {
        epoll::add(self.set(set), fd, epoll::EventData::new_u64(data), epoll::EventFlags::from_bits_retain(interest))
    }

    /// Changes the events of `fd`, which is in `set`, that epoll reports to `interest`.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub(super) fn modify(&self, fd: BorrowedFd<'_>, data: u64, interest: u32, set: Set) -> Result<()> {
        epoll::modify(self.set(set), fd, epoll::EventData::new_u64(data), epoll::EventFlags::from_bits_retain(interest))
    }

    /// Removes `fd` from `set`.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>, set: Set) {
        let _ = epoll::delete(self.set(set), fd);
    }

    /// Makes waits last whole milliseconds from now on; false if they already did.
    pub(super) fn wait_coarsely(&mut self) -> bool {
        !std::mem::replace(&mut self.coarse, true)
    }

    /// Waits for events for at most `timeout`, and adds them to `events`, as far as that has room. The timeout is exact to
    /// the nanosecond, because guarantees depend on it; where the kernel (before 5.11) or a sandbox knows only milliseconds,
    /// it is rounded up. Events of the crowd set are taken only if `wanted`; returns the number of the other events.
    ///
    /// # Errors
    /// The error of the system call that waits.
    pub(super) fn wait(&self, events: &mut Vec<libc::epoll_event>, timeout: Duration, wanted: bool) -> Result<usize> {
        self.wait_for(self.own.as_fd(), events, EVENTS, timeout)?;
        let crowd = events.iter().position(|event| event.u64 == CROWD_EVENT);
        let Some(crowd) = crowd else { return Ok(events.len()) };
        events.remove(crowd);
        let others = events.len();
        if !wanted {
            return Ok(others);
        }
        self.wait_for(self.crowd.as_fd(), events, CROWD_EVENTS, Duration::ZERO)?;
        Ok(others)
    }

    fn wait_for(
        &self,
        set: BorrowedFd<'_>,
        events: &mut Vec<libc::epoll_event>,
        most: usize,
        timeout: Duration,
    ) -> Result<()> {
        let room = events.spare_capacity_mut();
        let (most, into) = (most.min(room.len()) as libc::c_int, room.as_mut_ptr().cast());
        let nanos = timeout.as_nanos();
        let ready = if self.coarse {
            let millis = nanos.div_ceil(1_000_000).min(libc::c_int::MAX as u64);
            // SAFETY: there is room for as many.
            unsafe { libc::epoll_wait(set.as_raw_fd(), into, most, millis as libc::c_int).into() }
        } else {
            let timeout =
                libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: as above; the timeout outlives the call, and there is no signal mask.
            unsafe {
                let (call, set) = (libc::SYS_epoll_pwait2, set.as_raw_fd());
                libc::syscall(call, set, into, most, &raw const timeout, no_mask, 0usize)
            }
        };
        if ready < 0 {
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
            return Err(Errno::from_raw_os_error(error));
        }
        // SAFETY: the kernel has filled in as many.
        unsafe { events.set_len(events.len() + ready as usize) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A pair of connected sockets, of which the second has a byte to read.
    fn ready() -> (UnixStream, UnixStream) {
        let (mut far, near) = UnixStream::pair().unwrap();
        far.write_all(b"x").unwrap();
        (far, near)
    }

    fn data(events: &[libc::epoll_event]) -> Vec<u64> {
        events.iter().map(|event| event.u64).collect()
    }

    #[test]
    fn a_crowd_is_served_little_by_little() {
        let mut sources = Sources::new().unwrap();
        let mut events = Vec::with_capacity(EVENTS);
        let crowd: Vec<_> = (0..300).map(|_| ready()).collect();
        for (n, (_, near)) in crowd.iter().enumerate() {
            sources.add(near.as_fd(), n as u64, READ, Set::Crowd).unwrap();
        }
        for coarse in [false, true] {
            assert!(!coarse || sources.wait_coarsely());
            events.clear();
            assert_eq!(sources.wait(&mut events, Duration::from_secs(60), true), Ok(0));
            assert_eq!(events.len(), CROWD_EVENTS, "another client may come meanwhile");
            let (_far, near) = ready();
            sources.add(near.as_fd(), 1_000, READ, Set::Own).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..2 * crowd.len().div_ceil(CROWD_EVENTS) {
                events.clear();
                assert_eq!(sources.wait(&mut events, Duration::from_secs(60), true), Ok(1));
                assert!(data(&events).contains(&1_000), "a source outside the crowd is seen in every round");
                assert_eq!(events.len(), 1 + CROWD_EVENTS);
                seen.extend(data(&events));
            }
            assert_eq!(seen.len(), 1 + crowd.len(), "and the crowd in turn");
            sources.remove(near.as_fd(), Set::Own);
        }
        crowd.iter().for_each(|(_, near)| sources.remove(near.as_fd(), Set::Crowd));
        events.clear();
        sources.wait(&mut events, Duration::ZERO, true).unwrap();
        assert!(events.is_empty());
    }
}
