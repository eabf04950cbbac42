//! Tells another running process with this host's name from an earlier process of this host, whose key has not expired yet.

/// Number of writes of this host's key by one other process, each seen at a report of this one, after which that process runs. An
/// earlier process of this host has ended: at most its last write is still under way. This host reports once a period, and takes
/// no part of a total without contact for longer.
const WRITES: u32 = 4;

/// The other process that owns this host's key, as this process has seen it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rival {
    /// Incarnation of the process, and the etcd revision of its newest write; `None` before the first.
    seen: Option<(u64, i64)>,
    /// Number of its writes since the first that was seen.
    writes: u32,
}

impl Rival {
    /// Takes in that a process with this incarnation has written this host's key, most recently at this revision. Returns true
    /// if that process runs.
    pub(crate) fn observe(&mut self, incarnation: u64, written_at: i64) -> bool {
        self.writes = match self.seen {
            Some((known, before)) if known == incarnation => {
                self.writes.saturating_add(u32::from(before != written_at))
            }
            _ => 0,
        };
        self.seen = Some((incarnation, written_at));
        self.writes >= WRITES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_no_rival() {
        let mut rival = Rival::default();
        // Its last write came late, and its key stays until its lease ends.
        assert!(!rival.observe(7, 100));
        assert!((0..1_000).all(|_| !rival.observe(7, 101)));
    }

    #[test]
    fn a_process_that_goes_on_writing_is_a_rival_and_each_process_counts_by_itself() {
        let mut rival = Rival::default();
        let runs = [100, 110, 120, 120, 130, 140, 150].map(|at| rival.observe(7, at));
        assert_eq!(runs, [false, false, false, false, false, true, true]);
        // Processes that start again and again write once each.
        assert!((0..1_000).all(|n| !rival.observe(n, 200)));
    }
}
