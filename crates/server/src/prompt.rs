//! Threads that run when they are due, though other programs keep the processors busy.

use std::num::NonZeroU64;

use rustix::io::{Errno, Result};

/// The shortest time slice that Linux gives.
const SLICE_NS: u64 = 100_000;
/// The slack of timers. Guarantees are kept to the microsecond; the default is 50 µs.
const SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1);

/// Gives the calling thread exact timers.
pub(crate) fn keep_time() {
    let _ = rustix::thread::set_current_timer_slack(SLACK_NS);
}

/// Makes the calling thread prompt, or gives it the default slice.
///
/// A prompt thread runs, when it wakes, before those whose slice ends later. Its share of the processor stays the same. With
/// slices of 1 to 4 ms, the default, a woken worker waits as long for whatever else computes. But clients on the same
/// processors are interrupted more often, so that a server does up to a tenth less of small requests: only one that owes
/// tenants something is prompt. Linux knows slices of threads from 6.12 on; without, or without the right (a filter of
/// system calls), the thread keeps the default. Threads that it starts inherit the slice.
pub(crate) fn be_prompt(prompt: bool) {
    let _ = set_slice(if prompt { SLICE_NS } else { 0 });
}

/// Sets the slice of the calling thread; 0 for the default. Another policy of scheduling than the default stays as it is.
fn set_slice(ns: u64) -> Result<()> {
    let mut attributes = get()?;
    let is_ordinary = matches!(attributes.sched_policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH);
    if is_ordinary && attributes.sched_runtime != ns {
        attributes.sched_runtime = ns;
        set(&attributes)?;
    }
    Ok(())
}

/// The scheduling of the calling thread. The slice is 0 before Linux 6.12.
fn get() -> Result<libc::sched_attr> {
    // SAFETY: integers only, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most as many bytes as it is given the size of.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<libc::sched_attr>(), 0) } {
        0 => Ok(attributes),
        _ => Err(last_errno()),
    }
}

fn set(attributes: &libc::sched_attr) -> Result<()> {
    // SAFETY: the kernel reads as many bytes as the structure says that it has.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slice is the thread's own; policy and niceness stay.
    #[test]
    fn a_prompt_thread_has_the_shortest_slice() {
        let before = get().unwrap();
        if before.sched_runtime == 0 {
            return crate::skip::skip("time slices of threads (Linux 6.12)");
        }
        let inside = std::thread::spawn(|| {
            be_prompt(true);
            let prompt = get().unwrap();
            be_prompt(false);
            (prompt, get().unwrap().sched_runtime)
        });
        let (inside, after) = inside.join().unwrap();
        assert_eq!((inside.sched_runtime, after), (SLICE_NS, before.sched_runtime));
        assert_eq!((inside.sched_policy, inside.sched_nice), (before.sched_policy, before.sched_nice));
        assert_eq!(get().unwrap().sched_runtime, before.sched_runtime);
    }

    /// A thread that was given a real-time policy, or SCHED_IDLE, keeps it.
    #[test]
    fn a_policy_that_was_chosen_is_left_alone() {
        std::thread::spawn(|| {
            let mut chosen = get().unwrap();
            chosen.sched_policy = libc::SCHED_IDLE.cast_unsigned();
            set(&chosen).unwrap();
            let before = get().unwrap().sched_runtime;
            be_prompt(true);
            let after = get().unwrap();
            assert_eq!((after.sched_policy, after.sched_runtime), (libc::SCHED_IDLE.cast_unsigned(), before));
        })
        .join()
        .unwrap();
    }
}
