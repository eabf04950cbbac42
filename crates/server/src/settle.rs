//! Runs slow work on devices in parallel and with a time limit, so that a device that hangs delays neither other devices nor
//! the caller.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use crate::error::Error;

/// Upper bound on the number of threads. With this many hanging devices, the work on further devices would not begin.
const MAX_THREADS: usize = 64;

/// Does `work` for all items at the same time; returns the errors. Each item comes with its volume's name. Items whose work
/// is not done after `patience` are reported as [`Error::NoAnswer`]; their work goes on. An item is dropped before its work
/// counts as done.
pub(crate) fn side_by_side<T: Send + 'static>(
    items: Vec<(String, T)>,
    patience: StdDuration,
    work: impl Fn(T) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Error> {
    let until = StdInstant::now() + patience;
    let mut waiting: Vec<Option<String>> = items.iter().map(|(name, _)| Some(name.clone())).collect();
    let (done, finished) = mpsc::channel();
    let threads = items.len().min(MAX_THREADS);
    let items = Mutex::new(items.into_iter().enumerate());
    let carry_out = Arc::new(move || {
        let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((index, (_, item))) = next() {
            let result = work(item);
            let _ = done.send((index, result));
        }
    });
    let start = || {
        let carry_out = Arc::clone(&carry_out);
        thread::Builder::new().name("evenkeel-settle".into()).spawn(move || carry_out()).is_ok()
    };
    // Those that run do the work of those that cannot be started; without any it is done here, however long it takes.
    if (0..threads).filter(|_| start()).count() == 0 {
        carry_out();
    }
    drop(carry_out);
    let mut errors = Vec::new();
    while waiting.iter().any(Option::is_some) {
        match finished.recv_timeout(until.saturating_duration_since(StdInstant::now())) {
            Ok((index, result)) => {
                waiting[index] = None;
                errors.extend(result.err());
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    errors.extend(waiting.into_iter().flatten().map(|volume| Error::NoAnswer { volume, patience }));
    errors
}

/// Does `work` on a thread of its own and waits no longer than `patience` for the result. With `None`, does `work` on the
/// calling thread, however long it takes. `volume` is the name for the error.
///
/// # Errors
/// The error of `work`, or [`Error::NoAnswer`] after `patience`: in this case `work` goes on, and its result is dropped.
pub(crate) fn within<T: Send + 'static>(
    patience: Option<StdDuration>,
    volume: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let Some(patience) = patience else { return work() };
    let (done, finished) = mpsc::channel();
    let started = thread::Builder::new().name("evenkeel-settle".into()).spawn(move || {
        let _ = done.send(work());
    });
    started.map_err(|cause| Error::System { action: "start a thread", cause })?;
    finished.recv_timeout(patience).unwrap_or_else(|_| Err(Error::NoAnswer { volume: volume.to_owned(), patience }))
}

/// Ends the process when it is dropped, that is, when a worker or the driver of a remote volume panics. Otherwise the
/// thread's requests would never be answered, and new connections would still be sent to it. A service manager can start the
/// process again.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        tracing::error!(
            "a thread that serves volumes has panicked; the process ends, so that a service manager restarts it and clients reconnect"
        );
        // The log may be written by another thread.
        thread::sleep(StdDuration::from_millis(100));
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_hangs_and_one_that_fails_keep_no_other_from_the_end() {
        let (release, hang) = mpsc::channel::<()>();
        let (hang, (seen, all_seen)) = (Mutex::new(hang), mpsc::channel());
        let items = ["fails", "hangs", "a", "b"].map(|name| (name.to_owned(), name)).into();
        let errors = side_by_side(items, StdDuration::from_millis(200), move |name| {
            match name {
                "fails" => return Err(Error::Refused("no".into())),
                "hangs" => drop(hang.lock().unwrap().recv()),
                _ => {}
            }
            seen.send(name).unwrap();
            Ok(())
        });
        let texts: Vec<_> = errors.iter().map(Error::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0] == "no" && texts[1].contains("hangs"), "{texts:?}");
        let mut done: Vec<_> = all_seen.try_iter().collect();
        done.sort_unstable();
        assert_eq!(done, ["a", "b"], "the others were not kept");
        drop(release);
        assert_eq!(all_seen.recv(), Ok("hangs"), "it goes on nevertheless");
    }

    #[test]
    fn none_waits_longer_than_allowed() {
        let (release, hang) = mpsc::channel::<()>();
        let limit = Some(StdDuration::from_millis(20));
        let waited = within(limit, "slow", move || {
            let _ = hang.recv();
            Ok(())
        });
        assert!(matches!(waited, Err(Error::NoAnswer { .. })), "{waited:?}");
        drop(release);
        assert_eq!(within(None, "quick", || Ok(7)).unwrap(), 7);
    }
}
