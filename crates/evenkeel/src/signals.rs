//! Signals that stop a server or an agent, and signals that must not end it. `docs/reference/failures.md` lists all of them.

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

/// Signals that stop gracefully: a user or program asks for it, power is about to fail, or the soft limit of processor
/// time is reached.
pub(crate) const STOP: [c_int; 4] = [SIGTERM, SIGINT, SIGPWR, SIGXCPU];

/// Signals that would end a program by default and mean nothing to a server or an agent.
const STRAY: [c_int; 7] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT];

/// Real-time signals, which no program sends; the C library reserves 32 and 33.
const REAL_TIME: RangeInclusive<c_int> = 34..=64;

/// Received signals, with what the kernel knows of their senders.
pub(crate) type Received = SignalsInfo<WithRawSiginfo>;
/// The process that sent a signal, if the kernel knows it.
pub(crate) type Sender = Option<Process>;

/// Receives signals that stop, and SIGHUP.
///
/// # Errors
/// When the process has no descriptors left.
pub(crate) fn receive() -> anyhow::Result<Received> {
    Received::new(STOP.into_iter().chain([SIGHUP])).context("cannot listen for signals")
}

/// The process that sent a signal.
pub(crate) fn sender(info: &siginfo_t) -> Sender {
    // Positive: from the kernel. A sender in another PID namespace has no number here.
    // SAFETY: all other signals of this process have the fields of one that was sent.
    let (uid, pid) = (info.si_code <= 0).then(|| unsafe { (info.si_uid(), info.si_pid()) })?;
    Some(Process { uid, pid: (pid > 0).then_some(pid) })
}

/// Time within which a further signal is part of the same request: `timeout` sends TERM to its child and to the whole group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// True if a signal that comes this long after the first one asks to stop at once. Signals that repeat by themselves do not.
pub(crate) fn is_second_request(signal: c_int, since: Duration) -> bool {
    matches!(signal, SIGTERM | SIGINT) && since >= SAME_REQUEST
}

/// Reason for which a signal stops a server or an agent, as text.
pub(crate) fn reason(signal: c_int) -> &'static str {
    match signal {
        SIGPWR => "SIGPWR: the power is about to fail",
        SIGXCPU => "SIGXCPU: the limit of processor time is reached (LimitCPU= of the service, ulimit -t)",
        _ => "asked to",
    }
}

/// Makes `signals` have no effect. They get a handler instead of being ignored, as programs that are started would
/// inherit the latter.
///
/// # Errors
/// This fails for no signal of this system.
pub(crate) fn pass(signals: impl IntoIterator<Item = c_int>) -> io::Result<()> {
    signals.into_iter().try_for_each(|signal| signal_hook::flag::register(signal, Arc::default()).map(drop))
}

/// Makes all signals without a meaning have no effect, so that one sent by mistake does not end the process.
///
/// # Errors
/// As of [`pass`].
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
