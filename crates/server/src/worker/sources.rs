//! A worker's sources of events, in two epoll sets: clients that come in crowds do not keep the others waiting.
//!
//! The kernel reports ready sources in turn, so that one of ten thousand sockets with something to say waits for all others.
//! Connections of tenants that have many, and connections that negotiate, are therefore in a set of their own, the crowd, which
//! is one source among the others and is served little by little.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use evenkeel_control::Duration;
use rustix::event::epoll;
use rustix::io::{Errno, Result};

/// Event data of the worker's own sources; that of a connection is its key, whose slot is never this great.
pub(super) const MAILBOX_EVENT: u64 = u64::MAX;
pub(super) const RING_EVENT: u64 = u64::MAX - 1;
pub(super) const CROWD_EVENT: u64 = u64::MAX - 2;
pub(super) const LISTENER_EVENTS: u64 = u64::MAX - 1024;

pub(super) const READ: u32 = libc::EPOLLIN as u32;
pub(super) const WRITE: u32 = libc::EPOLLOUT as u32;
pub(super) const GONE: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// Events taken with one call, those of a crowd aside.
pub(super) const EVENTS: usize = 256;
/// Events of the crowd taken with one call: up to a millisecond of work over TCP, for which other connections wait.
const CROWD_EVENTS: usize = 64;
/// Connections of a tenant with more of them go to the crowd: all of them at once are as much work as [`CROWD_EVENTS`].
const CROWD: u32 = 64;

/// The epoll set of a worker that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Served before the crowd.
    Own,
    /// Served in turn with many others.
    Crowd,
}

impl Set {
    /// The set for a connection of a tenant that has `connections` connections.
    pub(crate) fn of(connections: u32) -> Self {
        if connections > CROWD { Self::Crowd } else { Self::Own }
    }
}

/// The sources of one worker.
pub(super) struct Sources {
    own: OwnedFd,
    crowd: OwnedFd,
    /// True if the kernel can only wait for whole milliseconds.
    coarse: bool,
}

impl Sources {
    /// Two empty epoll sets, the crowd as a source in the own set.
    ///
    /// # Errors
    /// Those of the system, for want of memory or descriptors.
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

    /// Adds `fd` to `set`: `interest` in it is reported as `data` from now on.
    ///
    /// # Errors
    /// Those of the system, for want of memory or of watches (fs.epoll.max_user_watches).
    pub(super) fn add(&self, fd: BorrowedFd<'_>, data: u64, interest: u32, set: Set) -> Result<()> {
        epoll::add(self.set(set), fd, epoll::EventData::new_u64(data), epoll::EventFlags::from_bits_retain(interest))
    }

    /// Changes the `interest` in `fd`, which is in `set`.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn modify(&self, fd: BorrowedFd<'_>, data: u64, interest: u32, set: Set) -> Result<()> {
        epoll::modify(self.set(set), fd, epoll::EventData::new_u64(data), epoll::EventFlags::from_bits_retain(interest))
    }

    /// Removes `fd` from `set`.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>, set: Set) {
        let _ = epoll::delete(self.set(set), fd);
    }

    /// Makes waits good to the millisecond from now on; false if they were so before.
    pub(super) fn wait_coarsely(&mut self) -> bool {
        !std::mem::replace(&mut self.coarse, true)
    }

    /// Waits until something happens, and adds the events to `events`, as far as that has room. The timeout is good to the
    /// nanosecond, because guarantees depend on it; where the kernel (before 5.11) or a sandbox knows only milliseconds, it
    /// is rounded up. Returns how many of the events are not of the crowd, which is passed over unless it is `wanted`.
    ///
    /// # Errors
    /// Those of the system.
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

    /// A socket with something to read.
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
