//! Several owners may each limit the same rate or queue depth of a tenant; the smallest limit binds.
//!
//! An operator, a PID, a throughput controller and a slot controller can all throttle a tenant at the same time. Each owns
//! one entry, so that none overwrites another's, and the owner of the smallest entry says why the tenant is throttled.

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Owner {
    /// A person, by configuration or API.
    Operator,
    /// The controller of latency targets ([`crate::response`]).
    Latency,
    /// The controller of throughput guarantees ([`crate::throughput`]).
    Throughput,
    /// The controller of slots, which are requests in flight ([`crate::slots`]).
    Slots,
}

crate::named!(Owner: Operator "operator", Latency "latency", Throughput "throughput", Slots "slots");

/// Limits on one quantity (requests per second, bytes per second or requests in flight), at most one from each [`Owner`]. The
/// smallest is in effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSet {
    entries: [Option<u64>; Owner::ALL.len()],
}

impl LimitSet {
    /// No limits.
    pub const NONE: Self = Self { entries: [None; Owner::ALL.len()] };

    /// Sets, replaces or (with `None`) withdraws `owner`'s limit; returns whether the effective limit changed.
    pub fn set(&mut self, owner: Owner, limit: Option<u64>) -> bool {
        let before = self.effective();
        self.entries[owner as usize] = limit;
        before != self.effective()
    }

    /// The smallest limit; `None` if no owner has set one.
    pub fn effective(&self) -> Option<u64> {
        self.entries.iter().flatten().min().copied()
    }

    /// The smallest limit with its owner; of equal limits, the one whose owner is first in [`Owner::ALL`].
    pub fn binding(&self) -> Option<(Owner, u64)> {
        Owner::ALL
            .iter()
            .filter_map(|&owner| self.entries[owner as usize].map(|limit| (owner, limit)))
            .min_by_key(|&(owner, limit)| (limit, owner))
    }
}

/// A configured rate as a limit; a rate of 0 stands for no limit.
pub(crate) fn rate(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_binds_and_withdrawal_uncovers_the_next() {
        let mut limits = LimitSet::NONE;
        assert_eq!(limits.binding(), None);
        assert!(limits.set(Owner::Operator, Some(1_000)));
        assert!(limits.set(Owner::Latency, Some(400)));
        assert!(!limits.set(Owner::Slots, Some(700)));
        assert_eq!(limits.binding(), Some((Owner::Latency, 400)));
        assert!(limits.set(Owner::Latency, None));
        assert_eq!(limits.binding(), Some((Owner::Slots, 700)));
    }

    #[test]
    fn the_operator_wins_a_tie() {
        let mut limits = LimitSet::NONE;
        limits.set(Owner::Slots, Some(5));
        limits.set(Owner::Operator, Some(5));
        assert_eq!(limits.binding(), Some((Owner::Operator, 5)));
    }
}
