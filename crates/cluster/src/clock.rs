//! The clock by which leases end.

use std::time::Duration;

/// Time since the machine's start, by a clock that is never set and goes on while the machine is suspended: the other members
/// count that time, too.
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own figure, which includes suspended time, is cut off to hundredths of a second.
    #[test]
    fn the_clock_is_the_one_of_the_kernels_uptime() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("Linux");
            let seconds = text.split_ascii_whitespace().next().and_then(|seconds| seconds.parse().ok());
            Duration::from_secs_f64(seconds.expect("seconds"))
        };
        let (before, now, after) = (uptime(), since_boot(), uptime());
        let hundredth = Duration::from_millis(11);
        assert!(before <= now + hundredth && now <= after + hundredth, "{before:?} {now:?} {after:?}");
    }
}
