//! A small share of the service for a phase or class of requests that always comes second, so that it does not starve.

/// A phase or class that waits behind another one is owed 1 / this number of the other's service, by cost.
pub(super) const FRACTION: i64 = 64;

/// Account of the service owed to a phase or class that waits behind another one. A 64th of the service of the other one is
/// added; service ahead of the other one is taken off. The account may be overdrawn by one request, and saves no more than
/// one request of the other one earned.
#[derive(Clone, Copy, Default)]
pub(super) struct Claim {
    /// Service owed, in cost units times [`FRACTION`]; negative if overdrawn.
    balance: i64,
}

impl Claim {
    #[inline]
    pub(super) fn is_owed(self) -> bool {
        self.balance > 0
    }

    /// Counts service of the phase or class that comes first; `waiting`: the second one has requests queued.
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
