//! Connections that wait for buffer memory, and the order in which the worker looks at them when memory may be free. A connection
//! of a volume with a limit also waits here while its requests hold as much as the limit lets pass soon.
//!
//! A pass goes over all waiting connections. To look at thousands of them costs milliseconds, mostly for connections that get
//! no memory. So a pass begins only when the budget has changed, or after [`MEMORY_RETRY`]; and where many wait, the worker
//! first asks their tenants' accounts, and skips the connections of tenants that get nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use evenkeel_control::{Duration, Instant};

use super::connection::{Connection, Paused};
use super::house::IN_A_ROUND;
use super::request::ConnKey;
use super::{MEMORY_RETRY, Worker};
use crate::budget::{Account, Charge, Waiting};
use crate::clock;

/// Largest number of waiting connections that are all looked at in each pass, in some 10 us.
const FEW: usize = 32;
/// Interval after which a pass looks at every connection, however many there are: to find those that have waited for a
/// second, and those whose tenant or reason to wait has changed.
const THOROUGH_EVERY: Duration = Duration::from_millis(100);
/// A pass without a change of the budget begins later by [`MEMORY_RETRY`] for each so many waiting connections: to look at them
/// takes as long.
const SLOWS: usize = 1024;
/// Number of connections that can be skipped in the time in which one is looked at.
const SKIPS: usize = 16;

/// The connections of a worker that wait for buffer memory, and the progress of the pass over them.
#[derive(Default)]
pub(super) struct Hungry {
    /// One wish for each waiting connection, in the order in which they began to wait.
    pub(super) wishes: VecDeque<Wish>,
    /// Progress of the pass over `wishes`: `passed` were looked at or skipped and still wait, `unfed` are still to be looked
    /// at.
    pub(super) passed: usize,
    pub(super) unfed: usize,
    /// True if the present pass skips connections whose tenant gets no memory.
    skips: bool,
    /// Value of [`crate::budget::Budget::changes`] when the newest pass began.
    changes: u64,
    /// When the next pass begins even if the budget has not changed.
    next_at: Instant,
    /// From when on a pass looks at every connection.
    thorough_at: Instant,
}

/// A connection's wish for memory, as of the newest look at the connection.
#[derive(Clone)]
pub(super) struct Wish {
    key: ConnKey,
    account: Arc<Account>,
    volume: u32,
    bytes: u64,
    /// Number of the connection's wait ([`Waiting::number`]); 0: it waits for requests that gone clients left behind, or for its
    /// own that wait for their volume's limit, and not for memory of other connections.
    number: u64,
}

impl Wish {
    fn of(connection: &Connection) -> Option<Self> {
        let Paused::Memory(bytes) = connection.paused else { return None };
        let (account, volume) = (Arc::clone(connection.account()?), connection.volume()?.id);
        let number = connection.waiting.as_ref().map_or(0, Waiting::number);
        Some(Self { key: connection.key, account, volume, bytes, number })
    }

    /// True if the tenant's account would refuse the memory, so that looking at the connection would be in vain.
    fn is_refused(&self) -> bool {
        self.account.refuses(self.volume, self.bytes, self.number)
    }
}

impl Hungry {
    /// True if no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.wishes.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wishes.len()
    }

    /// Begins a pass if the budget has changed or the next pass is due; false if not, or if no connection waits. `changes`:
    /// present value of [`crate::budget::Budget::changes`].
    fn begins(&mut self, now: Instant, changes: u64) -> bool {
        if self.wishes.is_empty() || changes == self.changes && now < self.next_at {
            return false;
        }
        let retry = MEMORY_RETRY.as_nanos() * (1 + self.wishes.len() / SLOWS) as u64;
        (self.changes, self.next_at) = (changes, now + Duration::from_nanos(retry));
        self.skips = self.wishes.len() > FEW && now < self.thorough_at;
        if !self.skips {
            self.thorough_at = now + THOROUGH_EVERY;
        }
        (self.passed, self.unfed) = (0, self.wishes.len());
        true
    }
}

impl Worker {
    /// Takes `bytes` bytes of buffer memory for a connection's request; `None` if the connection must wait for them, which
    /// pauses it.
    pub(super) fn charge(&mut self, connection: &mut Connection, bytes: u64) -> Option<Charge> {
        let held = connection.held();
        let account = connection.account()?;
        let for_its_own = connection.waits_for_its_own(bytes);
        if !for_its_own && let Some(charge) = account.take(held, bytes, connection.waiting.as_ref()) {
            connection.charged += bytes;
            return Some(charge);
        }
        if for_its_own {
            connection.waiting = None;
        } else if connection.waiting.is_none() {
            connection.waiting = Some(account.wait(clock::now()));
        }
        connection.paused = Paused::Memory(bytes);
        self.hungry.wishes.extend(Wish::of(connection));
        None
    }

    /// Receives from connections that waited for memory and may have it now. Each takes its memory before the next is looked
    /// at: receiving in vain costs a copy of all bytes that the client has sent ahead. Connections that are not reached come
    /// first in the next round; one that has received and needs more memory comes last.
    pub(super) fn feed(&mut self, now: Instant) {
        if self.hungry.unfed == 0 && !self.hungry.begins(now, self.shared.budget.changes()) {
            return;
        }
        let mut effort = 0;
        while self.hungry.unfed > 0 && effort < IN_A_ROUND * SKIPS {
            let Some(wish) = self.hungry.wishes.get_mut(self.hungry.passed) else {
                self.hungry.unfed = 0;
                return;
            };
            self.hungry.unfed -= 1;
            if self.hungry.skips && wish.is_refused() {
                self.hungry.passed += 1;
                effort += 1;
                continue;
            }
            effort += SKIPS;
            let key = wish.key;
            let connection = &mut self.connections[key.slot as usize];
            if let Some(one) = connection.as_deref_mut().filter(|one| one.key == key)
                && one.waits_for_memory(now)
            {
                if let Some(renewed) = Wish::of(one) {
                    *wish = renewed;
                }
                self.hungry.passed += 1;
                continue;
            }
            self.hungry.wishes.remove(self.hungry.passed);
            if let Some(connection) = connection.take_if(|one| one.key == key) {
                self.receive(connection);
                if clock::now().since(now) >= self.turn() {
                    break;
                }
            }
        }
    }
}
