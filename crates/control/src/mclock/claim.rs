//! The small share of service that keeps a phase or class that always comes second from starving.

/// A phase or class that waits behind another is owed 1/64 of the other's service, by cost; this is the inverse.
pub(super) const FRACTION: i64 = 64;

/// The service owed to the phase or class that comes second: a 64th of the first one's service is added, service of the
/// second one ahead of the first is taken off. The account may be overdrawn by one request, and saves no more than the last
/// request earned.
#[derive(Clone, Copy, Default)]
pub(super) struct Claim {
    /// In cost units times [`FRACTION`].
    balance: i64,
}

impl Claim {
    #[inline]
    pub(super) fn is_owed(self) -> bool {
        self.balance > 0
    }

    /// Counts service of the phase or class that comes first; `waiting`: the second one has something to do.
    #[inline]
    pub(super) fn earn(&mut self, cost: u32, waiting: bool) {
        let cost = i64::from(cost);
        self.balance = self.balance.saturating_add(cost).min(if waiting { cost } else { 0 });
    }

    /// Counts service of the phase or class that comes second, ahead of the first one.
    #[inline]
    pub(super) fn spend(&mut self, cost: u32) {
        self.balance = self.balance.saturating_sub(i64::from(cost) * FRACTION);
    }
}
