//! Runs many simulations on all cores: results come in the order of the runs, progress is shown, and an interrupt ends the work.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_sim::world::{self, Failure, Run, Setup};
use indicatif::{ProgressBar, ProgressStyle};

/// Time from the start of the work after which progress is shown.
const QUIET: Duration = Duration::from_secs(2);
/// Upper bound on the interval at which progress is drawn.
const REDRAW: Duration = Duration::from_millis(100);
/// Number of units into which the progress of one run is divided.
const PARTS: u64 = 1000;

/// The reason why the runs have no results.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// The user interrupted the work.
    #[error("interrupted after {done} of {of} runs")]
    Interrupted {
        /// Number of runs that were complete at the interrupt.
        done: usize,
        /// Number of all runs, complete or not.
        of: usize,
    },
    /// A run failed. If several runs failed, the fields are about the one with the lowest index.
    #[error("run {place}: {failure}")]
    Failed {
        /// Index of the failed run among all runs, from 0.
        place: usize,
        /// The failure of the run.
        failure: Failure,
    },
}

/// Exit status after an interrupt: 128 plus the number of SIGINT, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A flag that the first SIGINT or SIGTERM sets; the second ends the process.
///
/// # Errors
/// When the system refuses the handlers.
pub(crate) fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch interrupts")?;
    }
    Ok(stop)
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Simulates each setup with its seed on `threads` threads, and applies `keep` to the run's index and result. Returns the
/// values of `keep` in the order of `runs`, whatever `threads` is.
///
/// # Errors
/// When `stop` was set, or a run failed; a failure aborts the other runs.
pub(crate) fn simulate<R: Send>(
    runs: &[(&Setup, u64)],
    threads: usize,
    stop: &AtomicBool,
    keep: impl Fn(usize, Run) -> R + Sync,
) -> Result<Vec<R>, Stopped> {
    let results = until(runs, threads, stop, |place, &(setup, seed), tick| {
        world::run(setup, seed, &mut |progress| tick(progress.fraction())).map(|run| keep(place, run))
    });
    let (mut kept, of) = (Vec::with_capacity(runs.len()), runs.len());
    for (place, result) in results.into_iter().enumerate() {
        match result {
            Some(Ok(result)) => kept.push(result),
            Some(Err(Failure::Cancelled { .. })) | None => {}
            Some(Err(failure)) => return Err(Stopped::Failed { place, failure }),
        }
    }
    let whole = kept.len() == of && !stop.load(Ordering::Relaxed);
    if whole { Ok(kept) } else { Err(Stopped::Interrupted { done: kept.len(), of }) }
}

/// Applies `work` to each item on `threads` threads, and returns the results in the order of the items. For items that take
/// well below a second each, because an interrupt waits for the items in progress.
///
/// # Errors
/// When `stop` was set, or `work` failed for an item.
pub(crate) fn each<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> anyhow::Result<Vec<R>> {
    let results = until(items, threads, stop, |_, item, _| work(item));
    let done = results.iter().flatten().count();
    let results: Result<Vec<R>, String> = results.into_iter().flatten().collect();
    let results = results.map_err(anyhow::Error::msg)?;
    if results.len() < items.len() { Err(Stopped::Interrupted { done, of: items.len() }.into()) } else { Ok(results) }
}

/// Applies `work` to each item on `threads` threads until `stop` is set or an item fails. Returns the results in the order of
/// the items; `None` for items that had not begun. `work` gets its item's index, the item, and a function to which it passes
/// its progress (0 to 1); the function returns `Break` when the work must end. After [`QUIET`] progress is shown on a terminal.
pub(crate) fn until<T: Sync, R: Send, E: Send>(
    items: &[T],
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(usize, &T, &mut dyn FnMut(f64) -> ControlFlow<()>) -> Result<R, E> + Sync,
) -> Vec<Option<Result<R, E>>> {
    let threads = threads.clamp(1, items.len().max(1));
    let (next, complete, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let parts: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let results: Vec<Mutex<Option<Result<R, E>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let take = |part: &AtomicU64| {
        let stopped = || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
        while !stopped() {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { return };
            let result = work(place, item, &mut |fraction| {
                part.store((fraction * PARTS as f64) as u64, Ordering::Relaxed);
                if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            *results[place].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            part.store(0, Ordering::Relaxed);
            complete.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let take = &take;
        let workers: Vec<_> = parts.iter().map(|part| scope.spawn(move || take(part))).collect();
        let done = || {
            let under_way: u64 = parts.iter().map(|part| part.load(Ordering::Relaxed)).sum();
            complete.load(Ordering::Relaxed) as u64 * PARTS + under_way
        };
        show_until(&|| workers.iter().all(|worker| worker.is_finished()), &done, items.len());
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Draws the progress on standard error until `finished` returns true. `done`: progress of all runs together, of which each run
/// counts [`PARTS`].
fn show_until(finished: &dyn Fn() -> bool, done: &dyn Fn() -> u64, runs: usize) {
    let begun = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    let mut pause = Duration::from_millis(1);
    while !finished() {
        std::thread::sleep(pause);
        // Short work is waited for in short steps.
        pause = (pause * 2).min(REDRAW);
        if begun.elapsed() < QUIET || !std::io::stderr().is_terminal() {
            continue;
        }
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(runs as u64 * PARTS);
            let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {percent:>3} %  {msg}  about {eta} left");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_elapsed(begun.elapsed())
        });
        let done = done();
        bar.set_position(done);
        bar.set_message(format!("{} of {runs} runs", done / PARTS));
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::mclock::Qos;
    use evenkeel_control::units::Kind;
    use evenkeel_model::device::DeviceParams;
    use evenkeel_model::store::StoreParams;
    use evenkeel_sim::workload::{Requests, Spec};
    use evenkeel_sim::world::{Client, Tenant};

    fn setup(duration: evenkeel_control::Duration) -> Setup {
        let client = Client {
            tenant: 0,
            workload: Spec::closed(4, Requests::random(Kind::Write, 4096, 1 << 30)),
            from: evenkeel_control::Instant::ZERO,
            until: evenkeel_control::Instant::FAR_FUTURE,
        };
        let (device, tenant) = (DeviceParams::Store(StoreParams::ssd()), Tenant::new("one", Qos::default()));
        let sample_every = evenkeel_control::Duration::from_millis(100);
        Setup { sample_every, ..Setup::new(device, vec![tenant], vec![client], duration) }
    }

    #[test]
    fn results_come_in_order_however_many_threads() {
        let setup = setup(evenkeel_control::Duration::from_millis(200));
        let runs: Vec<(&Setup, u64)> = (1..=9).map(|seed| (&setup, seed)).collect();
        let of = |threads| simulate(&runs, threads, &AtomicBool::new(false), |place, run| (place, run)).unwrap();
        let (one, four) = (of(1), of(4));
        assert!(one == four, "threads must not change results");
        assert!(one.iter().enumerate().all(|(i, (place, run))| *place == i && run.seed == i as u64 + 1));
    }

    #[test]
    fn each_item_is_worked_on_once_in_order_until_an_interrupt() {
        let items: Vec<u64> = (0..50).collect();
        let go = AtomicBool::new(false);
        assert_eq!(each(&items, 4, &go, |n| Ok(n * n)).unwrap(), items.iter().map(|n| n * n).collect::<Vec<_>>());
        let stopped = each(&items, 2, &AtomicBool::new(true), |n| Ok(*n)).unwrap_err();
        assert!(matches!(stopped.downcast_ref(), Some(Stopped::Interrupted { done: 0, of: 50 })), "{stopped:?}");
        let failed = each(&items, 2, &go, |n| if *n == 7 { Err("seven".into()) } else { Ok(*n) });
        assert_eq!(failed.unwrap_err().to_string(), "seven");
    }

    #[test]
    fn an_interrupt_stops_runs_under_way() {
        let setup = setup(evenkeel_control::Duration::from_secs(1_000_000));
        let stop = AtomicBool::new(false);
        let stopped = std::thread::scope(|scope| {
            let running = scope.spawn(|| simulate(&[(&setup, 1), (&setup, 2)], 2, &stop, |_, _| ()));
            stop.store(true, Ordering::Relaxed);
            running.join().unwrap()
        });
        assert!(matches!(stopped, Err(Stopped::Interrupted { done: 0, of: 2 })), "{stopped:?}");
    }

    #[test]
    fn a_failure_names_its_run() {
        let (good, bad) = (setup(evenkeel_control::Duration::from_millis(1)), setup(evenkeel_control::Duration::ZERO));
        let stopped = simulate(&[(&good, 1), (&bad, 1)], 1, &AtomicBool::new(false), |_, _| ());
        assert!(matches!(stopped, Err(Stopped::Failed { place: 1, failure: Failure::Setup { .. } })), "{stopped:?}");
    }
}
