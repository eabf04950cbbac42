//! Signals that stop a server or an agent, and signals that must not end one. `docs/reference/failures.md` lists both.

use std::ffi::c_int;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_web::Process;
use libc::siginfo_t;
use rustix::process::Signal;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

const SIGPWR: c_int = Signal::POWER.as_raw();
const SIGSTKFLT: c_int = Signal::STKFLT.as_raw();

/// Signals on which a server or an agent stops gracefully: a user or program asks for the stop (SIGTERM, SIGINT), power is about
/// to fail (SIGPWR), or the soft limit on CPU time is reached (SIGXCPU).
pub(crate) const STOP: [c_int; 4] = [SIGTERM, SIGINT, SIGPWR, SIGXCPU];

/// Signals that by default end a process and that have no meaning for a server or an agent.
const STRAY: [c_int; 7] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT];

/// Numbers of the real-time signals, which have no meaning for a server or an agent; the C library reserves 32 and 33.
const REAL_TIME: RangeInclusive<c_int> = 34..=64;

/// A stream of received signals, each with the kernel's record of the sender.
pub(crate) type Received = SignalsInfo<WithRawSiginfo>;
/// The process that sent a signal; `None` if the kernel sent it.
pub(crate) type Sender = Option<Process>;

/// Begins to receive the signals of [`STOP`] and SIGHUP, which then no longer end the process.
///
/// # Errors
/// When the process has no descriptors left.
pub(crate) fn receive() -> anyhow::Result<Received> {
    Received::new(STOP.into_iter().chain([SIGHUP])).context("cannot listen for signals")
}

/// The process that sent the signal with this record; `None` if the kernel sent it.
pub(crate) fn sender(info: &siginfo_t) -> Sender {
    // Positive: from the kernel. A sender in another PID namespace has no number here.
    // SAFETY: all other signals of this process have the fields of one that was sent.
    let (uid, pid) = (info.si_code <= 0).then(|| unsafe { (info.si_uid(), info.si_pid()) })?;
    Some(Process { uid, pid: (pid > 0).then_some(pid) })
}

/// Time after a first signal to stop within which a second one counts as part of the same request. The program `timeout`, for
/// example, sends SIGTERM to its child and to the whole process group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// True if a signal that comes `since` after the first signal to stop asks to stop at once. SIGPWR and SIGXCPU, which repeat by
/// themselves, never do.
pub(crate) fn is_second_request(signal: c_int, since: Duration) -> bool {
    matches!(signal, SIGTERM | SIGINT) && since >= SAME_REQUEST
}

/// The reason for which `signal` stops a server or an agent, as text for the log.
pub(crate) fn reason(signal: c_int) -> &'static str {
    match signal {
        SIGPWR => "SIGPWR: the power is about to fail",
        SIGXCPU => "SIGXCPU: the limit of processor time is reached (LimitCPU= of the service, ulimit -t)",
        _ => "asked to",
    }
}

/// Gives each of `signals` a handler that does nothing. The signals are not set to be ignored, because child processes would
/// inherit that.
///
/// # Errors
/// When the system refuses a handler, which it does for none of the signals used here.
pub(crate) fn pass(signals: impl IntoIterator<Item = c_int>) -> io::Result<()> {
    signals.into_iter().try_for_each(|signal| signal_hook::flag::register(signal, Arc::default()).map(drop))
}

/// Gives all signals without a meaning for a server or an agent a handler that does nothing, so that one sent by mistake does not
/// end the process.
///
/// # Errors
/// The errors of [`pass`].
pub(crate) fn pass_strays() -> io::Result<()> {
    pass(STRAY.into_iter().chain(REAL_TIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_twice_at_once_is_one() {
        let after = |signal, ms| is_second_request(signal, Duration::from_millis(ms));
        assert!(!after(SIGTERM, 0) && !after(SIGINT, 199));
        assert!(after(SIGTERM, 200) && after(SIGINT, 5_000));
        assert!(!after(SIGPWR, 5_000) && !after(SIGXCPU, 5_000));
    }
}
