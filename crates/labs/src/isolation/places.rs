//! The processors of the light client and of the attackers.
//!
//! Both stand for other machines. On a processor that they share, the light client's real-time threads take the processor from a
//! worker of the server a thousand times a second, and when such a thread sleeps again, the kernel gives the processor to an
//! attacker, SCHED_IDLE or not, because the worker has just used more than its time slice: so the client itself would make the
//! server late. Of two halves, the light client has the first and the attackers have the second; the server runs on all.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors of the attackers, as `taskset -c` takes them; `None` if there is only one, which all share.
pub(super) fn attackers() -> Option<String> {
    let (_, second) = halves(&available())?;
    Some(second.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// Keeps the calling thread on the processors of the light client.
pub(super) fn keep_light() {
    let Some((first, _)) = halves(&available()) else { return };
    let mut set = CpuSet::new();
    first.into_iter().for_each(|processor| set.set(processor));
    // Without it the client is measured all the same.
    let _ = sched_setaffinity(None, &set);
}

/// Processors that the calling thread may use; none if the kernel does not say.
fn available() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// The first and the second half of these processors, neither of them empty. The first is the larger one of an odd number.
fn halves(all: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
    let (first, second) = all.split_at(all.len().div_ceil(2));
    (!second.is_empty()).then(|| (first.to_vec(), second.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_divided_into_halves() {
        assert_eq!(halves(&[]), None);
        assert_eq!(halves(&[3]), None, "one is shared");
        assert_eq!(halves(&[0, 1]), Some((vec![0], vec![1])));
        assert_eq!(halves(&[1, 4, 5]), Some((vec![1, 4], vec![5])));
    }

    #[test]
    fn a_light_client_has_no_processor_of_the_attackers() {
        let Some(theirs) = attackers() else { return };
        let own = std::thread::spawn(|| {
            keep_light();
            available()
        });
        let own = own.join().expect("the thread ends");
        assert!(!own.is_empty());
        let theirs: Vec<usize> = theirs.split(',').map(|processor| processor.parse().expect("a number")).collect();
        assert!(!theirs.is_empty() && own.iter().all(|processor| !theirs.contains(processor)));
    }
}
