//! Signals: those that stop a server or an agent, and those that must not end it. `docs/reference/failures.md` lists all of them.

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

/// Those that stop gracefully: a user or program asks for it, the power is about to fail, the soft limit of processor time is
/// reached.
pub(crate) const STOP: [c_int; 4] = [SIGTERM, SIGINT, SIGPWR, SIGXCPU];

/// Those that would end a program by default and say nothing that a server or an agent understands.
const STRAY: [c_int; 7] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT];

/// Real-time signals, which no program sends; 32 and 33 the C library keeps for itself.
const REAL_TIME: RangeInclusive<c_int> = 34..=64;

/// Signals as they come, with what the kernel knows of them.
pub(crate) type Received = SignalsInfo<WithRawSiginfo>;
/// The process that has sent a signal, where the kernel knows it.
pub(crate) type Sender = Option<Process>;

/// Those that stop, and SIGHUP.
///
/// # Errors
/// When the process has no descriptors left.
pub(crate) fn receive() -> anyhow::Result<Received> {
    Received::new(STOP.into_iter().chain([SIGHUP])).context("cannot listen for signals")
}

/// The process that has sent it.
pub(crate) fn sender(info: &siginfo_t) -> Sender {
    // Positive: from the kernel. A sender in another PID namespace has no number here.
    // SAFETY: all other signals of this process have the fields of one that was sent.
    let (uid, pid) = (info.si_code <= 0).then(|| unsafe { (info.si_uid(), info.si_pid()) })?;
    Some(Process { uid, pid: (pid > 0).then_some(pid) })
}

/// A request that comes sooner after another one is the same: `timeout` sends TERM to its child and to the whole group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// True if a signal that comes so long after the stop began asks to stop at once. One that comes again by itself does not.
pub(crate) fn is_second_request(signal: c_int, since: Duration) -> bool {
    matches!(signal, SIGTERM | SIGINT) && since >= SAME_REQUEST
}

/// Why a signal stops a server or an agent.
pub(crate) fn reason(signal: c_int) -> &'static str {
    match signal {
        SIGPWR => "SIGPWR: the power is about to fail",
        SIGXCPU => "SIGXCPU: the limit of processor time is reached (LimitCPU= of the service, ulimit -t)",
        _ => "asked to",
    }
}

/// Lets `signals` pass without effect. They get a handler instead of being ignored, because that is not passed on to
/// programs that are started.
///
/// # Errors
/// None that a signal of this system can cause.
pub(crate) fn pass(signals: impl IntoIterator<Item = c_int>) -> io::Result<()> {
    signals.into_iter().try_for_each(|signal| signal_hook::flag::register(signal, Arc::default()).map(drop))
}

/// Lets every signal pass that is nothing to a server or an agent: one sent by mistake does not end it.
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
