//! Makes threads prompt: they run soon after they wake, even if other programs keep the processors busy.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_policy::Config;
use evenkeel_policy::tenant::Tenant;
use rustix::io::{Errno, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::last_errno;

/// The shortest time slice that Linux gives, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// Timer slack: how late timers may fire, in nanoseconds. The kernel's default of 50 µs is too late, because guarantees are
/// enforced to the microsecond.
const SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1);

/// True if a tenant of the configuration in force has a reservation, guarantee or latency target; set by [`follow`].
static WANTED: AtomicBool = AtomicBool::new(false);

/// The processors of the process, as they were when the first thread asked for them.
static PROCESSORS: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Follows a configuration: threads are to be prompt if a tenant has a reservation, a guarantee or a latency target.
pub(crate) fn follow(config: &Config) {
    WANTED.store(owes(config), Ordering::Relaxed);
}

fn owes(config: &Config) -> bool {
    config.tenants.values().any(Tenant::is_owed_something)
}

/// True if the data path's threads are to be prompt (have short time slices) under the configuration in force.
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// A warning if this configuration wants prompt threads and the kernel does not allow them; otherwise `None`.
pub(crate) fn lack(config: &Config) -> Option<String> {
    // Sets what is there.
    let tried = || match get()? {
        attributes if attributes.sched_runtime == 0 => Err(Errno::NOSYS),
        attributes => set(&attributes),
    };
    let error = if owes(config) { tried().err()? } else { return None };
    Some(format!(
        "the kernel gives workers no short time slices (Linux 6.12 has them; a filter of system calls may forbid \
         sched_setattr): where other programs use all processors, a request may wait 4 ms for a processor ({error})"
    ))
}

/// Gives the calling thread exact timers.
pub(crate) fn keep_time() {
    let _ = rustix::thread::set_current_timer_slack(SLACK_NS);
}

/// Makes the calling thread prompt, or gives it the default time slice.
///
/// A prompt thread has a short time slice: when the thread wakes, it runs before threads whose slice ends later. Its share of
/// the processor stays the same. With the default slices of 1 to 4 ms, a woken worker may wait that long for another running
/// thread. But prompt threads interrupt clients on the same processors more often, so that a server completes up to a tenth
/// less of small requests: so threads are prompt only if a tenant has a reservation, a guarantee or a latency target. Linux
/// has slices of threads from 6.12 on; on older kernels, or if a filter of system calls forbids the call, the thread keeps
/// the default. Threads that the thread starts inherit the slice.
pub(crate) fn be_prompt(prompt: bool) {
    let _ = set_slice(if prompt { SLICE_NS } else { 0 });
}

/// Keeps the calling thread, worker number `index` of `workers`, on a processor of its own, if `prompt` and the process has as
/// many processors as workers; otherwise, and if it `is_kept` on one, lets the thread run on all. Returns true if it is kept
/// on one now.
///
/// Two workers on one processor take turns of up to a tick, 4 ms, while another program has the other processor; the kernel
/// parts them only now and then. With fewer workers than processors, or where a filter of system calls forbids it, the kernel
/// chooses.
pub(crate) fn keep_apart(index: usize, workers: usize, prompt: bool, is_kept: bool) -> bool {
    let Some(all) = processors() else { return false };
    let own = if prompt && workers > 1 && workers == all.count() as usize {
        (0..CpuSet::MAX_CPU).filter(|&processor| all.is_set(processor)).nth(index)
    } else {
        None
    };
    if let Some(own) = own {
        let mut only = CpuSet::new();
        only.set(own);
        return sched_setaffinity(None, &only).is_ok();
    }
    if is_kept {
        roam();
    }
    false
}

/// Lets the calling thread run on all processors of the process. Threads that a worker starts begin on the worker's.
pub(crate) fn roam() {
    if let Some(all) = processors() {
        let _ = sched_setaffinity(None, all);
    }
}

/// The processors of the process. The first call has to come before any worker is kept on one.
pub(crate) fn processors() -> Option<&'static CpuSet> {
    PROCESSORS.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
}

/// Sets the time slice of the calling thread in nanoseconds; 0 for the default. A thread with a real-time or idle scheduling
/// policy stays unchanged.
fn set_slice(ns: u64) -> Result<()> {
    let mut attributes = get()?;
    let is_ordinary = matches!(attributes.sched_policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH);
    // A longer one than ours was the default, or chosen outside.
    let has_short = attributes.sched_runtime == SLICE_NS;
    if is_ordinary && has_short != (ns == SLICE_NS) {
        attributes.sched_runtime = ns;
        set(&attributes)?;
    }
    Ok(())
}

/// The scheduling attributes of the calling thread. The slice in them is 0 before Linux 6.12.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the slice changes for this thread alone, and that policy and niceness stay.
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

    /// Checks that weights and limits alone do not make threads prompt.
    #[test]
    fn threads_are_prompt_where_tenants_are_owed_something() {
        let owes = |text: &str| owes(&Config::parse(text, "test").unwrap());
        assert!(!owes("[tenants.a]\nweight = 3\nlimit = { iops = 100 }\n"));
        assert!(owes("[tenants.a]\nreservation = { iops = 100 }\n"));
        assert!(owes("[tenants.a]\nlatency = { target = \"5ms\" }\n"));
        assert!(owes("[pools.p]\n[tenants.a.pools.p]\nreservation = { iops = 100 }\n"));
    }

    /// Checks that workers stay on processors of their own only if there are as many processors and threads are to be prompt,
    /// and that threads which a worker starts may run anywhere.
    #[test]
    fn workers_stay_apart_and_their_threads_roam() {
        let on = || sched_getaffinity(None).expect("of this thread");
        let all = *processors().expect("of this process");
        let count = all.count() as usize;
        std::thread::spawn(move || {
            assert!(!keep_apart(0, count + 1, true, false), "more workers than processors");
            assert!(!keep_apart(0, count, false, false), "no tenant is owed anything");
            assert_eq!(on(), all);
            if count == 1 {
                return;
            }
            let own: Vec<CpuSet> = (0..count)
                .map(|index| {
                    assert!(keep_apart(index, count, true, index > 0));
                    on()
                })
                .collect();
            assert!(own.iter().all(|set| set.count() == 1));
            assert!((1..count).all(|n| !own[..n].contains(&own[n])), "each has another");
            let roams = std::thread::spawn(move || {
                roam();
                on()
            });
            assert_eq!(roams.join().expect("the thread ends"), all);
            assert!(!keep_apart(0, count, false, true));
            assert_eq!(on(), all);
        })
        .join()
        .expect("the thread ends");
    }

    /// Checks that a thread with a real-time policy or SCHED_IDLE keeps its policy.
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
