//! The I/O priority of requests, by which the kernel's disk scheduler keeps the order in which Evenkeel has scheduled them.
//!
//! A disk scheduler that sorts requests by offset (mq-deadline, bfq) serves sequential requests in a row and lets others
//! wait, up to 500 ms in mq-deadline. A request that is sent for a tenant's reservation must not wait that long: it gets the
//! real-time I/O class, which these schedulers serve first. Disks without a scheduler (`none`) ignore the priority.

use rustix::io::Result;

use crate::error::last_errno;

/// Bit position of the I/O class in a priority (`linux/ioprio.h`), above 13 bits for the level within the class; level 4 is
/// the middle of eight.
const CLASS_SHIFT: u32 = 13;
/// The priority of ordinary requests: no I/O class, so that the kernel derives one from the scheduling of the process.
pub(crate) const ORDINARY: u16 = 0;
/// The priority of a thread without a class on Linux 5.15 to 5.19: best effort, the middle level.
const USUAL: u16 = 2 << CLASS_SHIFT | 4;
/// The priority of requests for a reservation: the real-time I/O class, middle level.
pub(crate) const URGENT: u16 = 1 << CLASS_SHIFT | 4;
/// Argument `IOPRIO_WHO_PROCESS`: the call is for one thread, for the calling one if the thread number is 0.
const ONE_THREAD: libc::c_int = 1;

/// True if requests may be [`URGENT`]: the process has the privilege, and the operator chose no I/O class for the whole
/// process.
///
/// # Errors
/// EPERM without CAP_SYS_NICE (or CAP_SYS_ADMIN) in the first user namespace, or if a filter forbids `ioprio_set`.
pub(crate) fn probe() -> Result<bool> {
    let own = get()?;
    if own >> CLASS_SHIFT != 0 && own != USUAL {
        return Ok(false);
    }
    set(URGENT)?;
    set(ORDINARY)?;
    Ok(true)
}

/// The I/O priority that the calling thread has set for itself.
#[derive(Default)]
pub(crate) struct Own(u16);

impl Own {
    /// Sets the I/O priority of the calling thread's requests from now on.
    #[inline]
    pub(crate) fn become_of(&mut self, priority: u16) {
        // Without it a request is served all the same.
        if self.0 != priority && set(priority).is_ok() {
            self.0 = priority;
        }
    }
}

fn get() -> Result<u16> {
    // SAFETY: takes integers only.
    match unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, 0) } {
        priority @ 0.. => Ok(priority as u16),
        _ => Err(last_errno()),
    }
}

fn set(priority: u16) -> Result<()> {
    // SAFETY: takes integers only.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0, libc::c_int::from(priority)) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the I/O priority changes for the calling thread and changes back.
    #[test]
    fn a_thread_is_urgent_while_it_carries_out_what_is() {
        if probe() != Ok(true) {
            return crate::skip::skip("the right to raise a priority (CAP_SYS_NICE)");
        }
        let mut own = Own::default();
        let before = get().unwrap();
        own.become_of(URGENT);
        assert_eq!(get(), Ok(URGENT));
        own.become_of(URGENT);
        own.become_of(ORDINARY);
        assert_eq!(get(), Ok(before));
    }

    #[test]
    fn a_class_that_was_chosen_is_left_alone() {
        // Best effort, which every process may choose.
        const CHOSEN: u16 = 2 << CLASS_SHIFT | 6;
        std::thread::spawn(|| {
            set(CHOSEN).unwrap();
            assert_eq!(probe(), Ok(false));
            assert_eq!(get(), Ok(CHOSEN));
        })
        .join()
        .unwrap();
    }
}
