//! Counts the bytes that connections hold beside the buffers of their requests: received and not parsed, and bytes that TLS holds
//! in either direction.
//!
//! These bytes are in no request, so that no request pays for them. A part of the limit is for them ([`PART`]). Beyond it, each
//! tenant has an equal share of that part; the connections of a tenant that holds more, and connections that negotiate, receive
//! and encrypt little at a time. Other tenants do not notice.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Account, Budget, Inner};

/// Divisor of the limit: so much may be held beside requests before tenants must keep to their shares.
const PART: u64 = 4;

/// Bytes that one connection holds beside its requests. They leave the counts when the value is dropped.
pub(crate) struct Ahead {
    budget: Arc<Inner>,
    /// The account of the connection's tenant; `None` while the connection negotiates.
    account: Option<Arc<Account>>,
    bytes: u64,
}

impl Budget {
    /// The count of a new connection, which negotiates and holds nothing.
    pub(crate) fn ahead(&self) -> Ahead {
        Ahead { budget: Arc::clone(&self.0), account: None, bytes: 0 }
    }
}

impl Ahead {
    /// Sets the number of bytes that the connection holds.
    #[inline]
    pub(crate) fn set(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes != self.bytes {
            self.add(bytes);
        }
    }

    fn add(&mut self, bytes: u64) {
        let accounts = self.account.as_ref().map(|account| &account.ahead);
        for count in accounts.into_iter().chain([&self.budget.ahead]) {
            // In this order, so that a count is never below zero.
            count.fetch_add(bytes, Relaxed);
            count.fetch_sub(self.bytes, Relaxed);
        }
        self.bytes = bytes;
    }

    /// Counts the connection's bytes for this account from now on.
    pub(crate) fn belongs_to(&mut self, account: &Arc<Account>) {
        let bytes = self.bytes;
        self.set(0);
        self.account = Some(Arc::clone(account));
        self.add(bytes);
    }

    /// True if the connection is to receive and encrypt little at a time.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        let most = self.budget.limit / PART;
        if self.budget.ahead.load(Relaxed) <= most {
            return false;
        }
        let share = most / u64::from(self.budget.tenants.load(Relaxed).max(1));
        self.account.as_ref().is_none_or(|account| account.ahead.load(Relaxed) > share)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn a_tenant_above_its_share_keeps_to_little_at_a_time() {
        let budget = Budget::new(1024 * KIB as u64);
        let (noise, light) = (budget.account(&"noise".into()), budget.account(&"light".into()));
        let ahead = |account: &Arc<Account>| {
            let mut ahead = budget.ahead();
            ahead.belongs_to(account);
            ahead
        };
        let (mut first, mut second, mut quiet, negotiates) =
            (ahead(&noise), ahead(&noise), ahead(&light), budget.ahead());
        first.set(256 * KIB);
        assert!(!first.is_crowded() && !negotiates.is_crowded(), "all of the part is there");
        second.set(1);
        assert!(first.is_crowded() && second.is_crowded() && negotiates.is_crowded());
        assert!(!quiet.is_crowded(), "it is another tenant that holds too much");
        quiet.set(128 * KIB);
        assert!(!quiet.is_crowded(), "its share");
        quiet.set(128 * KIB + 1);
        assert!(quiet.is_crowded());
        // The connection goes to another tenant, with its bytes.
        first.belongs_to(&light);
        assert_eq!([&noise, &light].map(|account| account.ahead.load(Relaxed)), [1, 384 * KIB as u64 + 1]);
        drop(quiet);
        first.set(64 * KIB);
        assert!(!first.is_crowded() && !second.is_crowded());
        drop((first, second, negotiates));
        assert_eq!([&noise, &light].map(|account| account.ahead.load(Relaxed)), [0, 0]);
        assert_eq!(budget.0.ahead.load(Relaxed), 0);
    }

    proptest! {
        /// However counts are set, moved and dropped, they agree with what connections hold.
        #[test]
        fn counts_agree_with_connections(steps in prop::collection::vec((0usize..4, 0u8..3, 0usize..1000), 1..200)) {
            let budget = Budget::new(1 << 20);
            let accounts: Vec<_> = (0..4).map(|n| budget.account(&format!("{n}").into())).collect();
            let mut open: Vec<Ahead> = (0..4).map(|_| budget.ahead()).collect();
            for (one, what, bytes) in steps {
                match what {
                    0 => open[one].set(bytes),
                    1 => open[one].belongs_to(&accounts[bytes % 4]),
                    _ => open[one] = budget.ahead(),
                }
                let all: u64 = open.iter().map(|ahead| ahead.bytes).sum();
                prop_assert_eq!(budget.0.ahead.load(Relaxed), all);
                let with: u64 = open.iter().filter(|ahead| ahead.account.is_some()).map(|ahead| ahead.bytes).sum();
                let counted: u64 = accounts.iter().map(|account| account.ahead.load(Relaxed)).sum();
                prop_assert_eq!(counted, with);
            }
            drop(open);
            prop_assert_eq!(budget.0.ahead.load(Relaxed), 0);
        }
    }
}
