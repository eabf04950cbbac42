//! Pressure stall information of a control group (`io.pressure`): the time in which tasks of the group waited for I/O.
//!
//! The format is that of the kernel's `Documentation/accounting/psi.rst`. The time has no device and no direction, and tasks
//! that wait at the same time count once: it is a coarse signal, for hosts where the kernel counts nothing better.

use std::path::Path;

use evenkeel_control::Duration;

/// Time in which at least one task waited, since the group was made, in the text of an `io.pressure`; `None` without such a
/// line.
pub fn parse(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    let nanos = total.parse::<u64>().ok()?.checked_mul(1_000)?;
    Some(Duration::from_nanos(nanos))
}

/// The same for the group with the folder `group`; `None` where the kernel does not count it (CONFIG_PSI, `psi=1`).
pub fn stalled(group: &Path) -> Option<Duration> {
    parse(&std::fs::read_to_string(group.join("io.pressure")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_in_which_some_task_waited() {
        let text = "some avg10=1.50 avg60=0.40 avg300=0.10 total=1234567\n\
                    full avg10=0.50 avg60=0.10 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Some(Duration::from_micros(1_234_567)));
        let large = "some total=18446744073709551615";
        for odd in ["", "full avg10=0.00 total=7\n", "some avg10=0.00\n", "some total=-1\n", large] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
        assert_eq!(stalled(Path::new("/nonexistent")), None);
    }
}
