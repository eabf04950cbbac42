//! Parts of both benchmarks: CPU time, and the spread of a figure over rounds.

use rustix::time::{ClockId, clock_gettime};

/// Lowest, middle and highest value of the rounds.
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

pub(crate) fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread { low: values[0], median: values[values.len() / 2], high: values[values.len() - 1] }
}

/// Runs `body`. Returns its result, and the thread's CPU time for it in seconds.
pub(crate) fn time<T>(body: impl FnOnce() -> T) -> (T, f64) {
    let cpu_seconds = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let start = cpu_seconds();
    let result = body();
    (result, cpu_seconds() - start)
}
