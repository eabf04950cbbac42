//! The small share that keeps what would always come second from starving.

/// A phase or class that waits behind another is owed this fraction of what the other is served: 1/64, by cost.
pub(super) const FRACTION: i64 = 64;

/// The debt to the client that comes second, as an account: a 64th of the first's service in, what it was served ahead
/// of the first out. It may overdraw by one request, and cannot save: at most what the last request earned it is kept.
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

    /// The first was served; `waiting` says whether the second had something to do.
    #[inline]
    pub(super) fn earn(&mut self, cost: u32, waiting: bool) {
        let cost = i64::from(cost);
        self.balance = self.balance.saturating_add(cost).min(if waiting { cost } else { 0 });
    }

    /// The second was served ahead of the first.
    #[inline]
    pub(super) fn spend(&mut self, cost: u32) {
        self.balance = self.balance.saturating_sub(i64::from(cost) * FRACTION);
    }
}
