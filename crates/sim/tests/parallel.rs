//! Runs of experiments on all processors.

use evenkeel_sim::experiment::Digest;
use evenkeel_sim::world::{Setup, run_quietly};

/// Runs each setup with its seed; digests in the same order.
pub(crate) fn execute(_: &str, runs: &[(Setup, u64)]) -> Result<Vec<Digest>, String> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(8);
    let mut made: Vec<Option<Result<Digest, String>>> = runs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                let run = move |place: usize| {
                    let (setup, seed) = &runs[place];
                    (place, run_quietly(setup, *seed).map(Digest::of).map_err(|failure| failure.to_string()))
                };
                scope.spawn(move || (first..runs.len()).step_by(threads).map(run).collect::<Vec<_>>())
            })
            .collect();
        for worker in workers {
            for (place, digest) in worker.join().map_err(|_| "a worker panicked").unwrap_or_default() {
                made[place] = Some(digest);
            }
        }
    });
    made.into_iter().map(|digest| digest.unwrap_or_else(|| Err("not run".into()))).collect()
}
