//! Many simulations at once: on every core, in order, with progress and a way to stop.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_sim::world::{self, Failure, Run, Setup};
use indicatif::{ProgressBar, ProgressStyle};

/// Work that is done sooner shows no progress.
const QUIET: Duration = Duration::from_secs(2);
/// How often progress is drawn.
const REDRAW: Duration = Duration::from_millis(100);
/// Progress counts in parts of a run.
const PARTS: u64 = 1000;

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// The user asked for it.
    #[error("interrupted after {done} of {of} runs")]
    Interrupted {
        /// Runs that were complete by then.
        done: usize,
        /// All runs.
        of: usize,
    },
    /// A run failed; the one that comes first in order, if several did.
    #[error("run {place}: {failure}")]
    Failed {
        /// Its place, from 0.
        place: usize,
        /// Why.
        failure: Failure,
    },
}

/// A flag that the first SIGINT or SIGTERM sets; the second ends the process.
///
/// # Errors
/// When the system refuses the handlers.
pub(crate) fn interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch interrupts")?;
    }
    Ok(stop)
}

/// One for each core.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Runs each setup with its seed and answers what `keep` makes of each result, in the order given: the answer does not
/// depend on `threads`. Shows progress on a terminal when it takes longer than two seconds.
///
/// # Errors
/// When `stop` was set, or when a run failed (the others are then given up).
pub(crate) fn simulate<R: Send>(
    runs: &[(&Setup, u64)],
    threads: usize,
    stop: &AtomicBool,
    keep: impl Fn(usize, Run) -> R + Sync,
) -> Result<Vec<R>, Stopped> {
    let threads = threads.clamp(1, runs.len().max(1));
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let parts: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let complete = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<R, Failure>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let work = |worker: usize| {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(setup, seed)) = runs.get(place) else { return };
            let mut report = |progress: world::Progress| {
                parts[worker].store((progress.fraction() * PARTS as f64) as u64, Ordering::Relaxed);
                match stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let result = match stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                true => return,
                false => world::run(setup, seed, &mut report),
            };
            if let Err(failure) = &result
                && !matches!(failure, Failure::Cancelled { .. })
            {
                failed.store(true, Ordering::Relaxed);
            }
            parts[worker].store(0, Ordering::Relaxed);
            complete.fetch_add(1, Ordering::Relaxed);
            let result = result.map(|run| keep(place, run));
            *results[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads).map(|worker| scope.spawn(move || work(worker))).collect();
        let done = || {
            let under_way: u64 = parts.iter().map(|part| part.load(Ordering::Relaxed)).sum();
            complete.load(Ordering::Relaxed) as u64 * PARTS + under_way
        };
        show_until(&|| workers.iter().all(|worker| worker.is_finished()), &done, runs.len());
    });
    collect(results, stop)
}

/// Applies `work` to each item on `threads` threads and answers in the order given. For items that take well below a
/// second: an interrupt waits for those under way.
///
/// # Errors
/// When `stop` was set.
pub(crate) fn each<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(&T) -> R + Sync,
) -> Result<Vec<R>, Stopped> {
    let results = until(items, threads, &|| stop.load(Ordering::Relaxed), work);
    let done = results.iter().flatten().count();
    let results: Option<Vec<R>> = results.into_iter().collect();
    results.ok_or(Stopped::Interrupted { done, of: items.len() })
}

/// Applies `work` to each item on `threads` threads until `stopped`, and answers in the order given: nothing for items that
/// had not begun by then. Shows progress on a terminal when it takes longer than two seconds.
pub(crate) fn until<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    stopped: &(dyn Fn() -> bool + Sync),
    work: impl Fn(&T) -> R + Sync,
) -> Vec<Option<R>> {
    let next = AtomicUsize::new(0);
    let complete = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        let take = || {
            while !stopped() {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(place) else { return };
                let result = work(item);
                *results[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
                complete.fetch_add(1, Ordering::Relaxed);
            }
        };
        let workers: Vec<_> = (0..threads.clamp(1, items.len().max(1))).map(|_| scope.spawn(take)).collect();
        let done = || complete.load(Ordering::Relaxed) as u64 * PARTS;
        show_until(&|| workers.iter().all(|worker| worker.is_finished()), &done, items.len());
    });
    results.into_iter().map(|slot| slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)).collect()
}

/// Puts the results in order.
fn collect<R>(results: Vec<Mutex<Option<Result<R, Failure>>>>, stop: &AtomicBool) -> Result<Vec<R>, Stopped> {
    let of = results.len();
    let results = results.into_iter().map(|slot| slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
    let (mut kept, mut failure) = (Vec::with_capacity(of), None);
    for (place, result) in results.enumerate() {
        match result {
            Some(Ok(result)) => kept.push(result),
            Some(Err(Failure::Cancelled { .. })) | None => {}
            Some(Err(first)) => {
                failure.get_or_insert(Stopped::Failed { place, failure: first });
            }
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None if kept.len() < of || stop.load(Ordering::Relaxed) => Err(Stopped::Interrupted { done: kept.len(), of }),
        None => Ok(kept),
    }
}

/// Draws progress until the work is finished.
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
    use evenkeel_control::admission;
    use evenkeel_control::mclock::{CostModel, Qos};
    use evenkeel_control::pool::{Config, Scheduler};
    use evenkeel_control::units::{Kind, Rates};
    use evenkeel_model::device::DeviceParams;
    use evenkeel_model::store::StoreParams;
    use evenkeel_sim::workload::{Requests, Spec};
    use evenkeel_sim::world::{Client, Tenant};

    fn setup(duration: evenkeel_control::Duration) -> Setup {
        let start = evenkeel_control::Instant::ZERO;
        Setup {
            workers: None,
            device: DeviceParams::Store(StoreParams::ssd()),
            pool: Config {
                scheduler: Scheduler::Mclock,
                admission: admission::Config::None,
                base_cost_bytes: 4000,
                cost: CostModel::default(),
                limit: Rates::UNSET,
                limit_burst: evenkeel_control::Duration::from_millis(10),
                goal: None,
                slots: None,
            },
            tenants: vec![Tenant::new("one", Qos::default())],
            clients: vec![Client {
                tenant: 0,
                workload: Spec::closed(4, Requests::random(Kind::Write, 4096, 1 << 30)),
                from: start,
                until: evenkeel_control::Instant::FAR_FUTURE,
            }],
            changes: Vec::new(),
            warmup: evenkeel_control::Duration::ZERO,
            duration,
            sample_every: evenkeel_control::Duration::from_millis(100),
        }
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
        assert_eq!(each(&items, 4, &go, |n| n * n).unwrap(), items.iter().map(|n| n * n).collect::<Vec<_>>());
        let stopped = each(&items, 2, &AtomicBool::new(true), |n| *n);
        assert!(matches!(stopped, Err(Stopped::Interrupted { done: 0, of: 50 })), "{stopped:?}");
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
