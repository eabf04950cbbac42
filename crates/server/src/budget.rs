//! The buffer budget: bounds the bytes that the requests of all connections hold in buffers, and shares them out among
//! tenants.
//!
//! While no other tenant waits for memory, a connection may hold up to half of the free bytes, and a tenant as many bytes as
//! it leaves free: however many tenants hoard, each holds less than the one before, and new tenants find free bytes. While
//! another tenant waits, no tenant takes more than its share: the limit divided by the number of tenants with connections.
//! Each tenant always gets its floor ([`FLOOR`]). The sum therefore stays below the limit plus one floor per tenant.
//!
//! A large request would wait for ever while small requests take all bytes that become free, or if the request is larger than
//! a share. So one waiting connection at a time is the eldest: one that has waited for a second, and whose tenant is within
//! its share. The rest of its tenant's share is set aside for it, and for one second in 32 all bytes that it needs, even out
//! of other tenants' shares. In this way a tenant may exceed its share by one request.
//!
//! Requests that are inside a device when their client disconnects are left behind: they stay there, with their charge. While
//! a tenant has left more bytes than the limit divided by [`LEFT_BEHIND`] behind on a volume, it takes no more than its floor
//! for that volume: clients that connect, send requests and leave would otherwise fill a device faster than it works. If no
//! request left behind has ended for a second, the device counts as hung, and new requests do not wait for it.
//!
//! Requests that wait for the limit of their volume release memory at the rate of that limit only. So a tenant's connections to a
//! volume with a limit hold together as many bytes as the limit lets pass in a fraction of a second, or the limit of the budget
//! divided by [`LEFT_BEHIND`] if that is more, and each of them may hold one request: other volumes of the tenant get the rest.
//!
//! A [`Charge`] returns its bytes to the budget when it is dropped.

mod ahead;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub(crate) use ahead::Ahead;
use evenkeel_control::{Duration, Instant};

use crate::clock;

/// A tenant's floor: the bytes that it may always hold, enough for 16 small requests. A connection that holds no bytes may
/// also take this many of the free bytes, even if they are more than half of them.
pub(crate) const FLOOR: u64 = 64 << 10;
/// Time that a connection must wait before it can become the eldest: longer than requests usually hold memory.
const ELDEST_AFTER: Duration = Duration::from_secs(1);
/// Time for which all bytes that the eldest connection needs are set aside, even beyond its tenant's share.
const WHOLE_FOR: Duration = Duration::from_secs(1);
/// Interval between two beginnings of [`WHOLE_FOR`]. Even if the eldest connection's tenant releases no memory, other tenants
/// are stopped for only 3 % of the time.
const WHOLE_EVERY: Duration = Duration::from_secs(32);

/// Divisor of the limit: if a tenant's disconnected clients have left more than `limit / LEFT_BEHIND` bytes inside a volume's
/// device, the tenant's new requests to that volume wait. The quotient is 4 MiB by default, as much as an ordinary bulk
/// writer has in flight.
const LEFT_BEHIND: u64 = 64;
/// Divisor of the least memory that a volume with a limit may hold while its tenant holds more than half of its share: the memory
/// of a tenant with many such volumes goes to all of its volumes.
const CROWDED: u64 = 8;
/// A device counts as hung if it has ended no request left behind for this long.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The buffer budget of a server; clones share it.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

struct Inner {
    limit: u64,
    used: AtomicU64,
    /// Bytes that connections hold beside their requests, see [`Ahead`].
    ahead: AtomicU64,
    /// Number of accounts: of tenants that have connections, charges or requests left behind.
    tenants: AtomicU32,
    /// Number of accounts that have connections which wait for memory.
    hungry: AtomicU32,
    /// Number ([`Waiting::number`]) of the connection that is the eldest; 0: none.
    eldest: AtomicU64,
    /// Bytes set aside for the eldest connection, which other connections may not take.
    aside: AtomicU64,
    /// When all bytes that an eldest connection needs were most recently set aside, in nanoseconds of the server's clock; 0:
    /// never.
    whole_since: AtomicU64,
    /// Number of waits for memory that have begun so far; numbers them.
    numbers: AtomicU64,
    /// Number of events so far that may end a connection's wait, or change the reason for it.
    changes: AtomicU64,
    accounts: Mutex<HashMap<Arc<str>, Weak<Account>>>,
}

/// One tenant's account: the bytes of the budget that its requests hold.
pub(crate) struct Account {
    budget: Arc<Inner>,
    used: AtomicU64,
    /// Bytes that the tenant's connections hold beside their requests, see [`Ahead`].
    ahead: AtomicU64,
    /// Bytes of the tenant that disconnected clients left behind inside devices, over all volumes.
    left_bytes: AtomicU64,
    /// Bytes left behind, by volume id; only for volumes that have any.
    left: Mutex<HashMap<u32, Left>>,
    /// Number of connections of the tenant, with those that left requests behind.
    connections: AtomicU32,
    /// Number of connections of the tenant that wait for memory.
    waiting: AtomicU32,
}

/// Bytes that a tenant's disconnected clients left behind inside a volume's device.
struct Left {
    bytes: u64,
    /// When the newest end of a request left behind was; before the first end, when the first request was left behind.
    last_ended: Instant,
}

/// Membership of one connection in its tenant's account, which ends when the value is dropped.
pub(crate) struct Member(Arc<Account>);

/// Bytes that one disconnected connection left behind inside a volume's device. Counts as a connection of its tenant until
/// dropped.
pub(crate) struct LeftBehind {
    member: Member,
    volume: u32,
    bytes: u64,
}

/// Bytes taken from the budget by a tenant, which return to the budget when the charge is dropped.
#[derive(Default)]
pub(crate) struct Charge {
    bytes: u64,
    account: Option<Arc<Account>>,
}

/// A connection's wait for memory, which ends when the value is dropped.
pub(crate) struct Waiting {
    account: Arc<Account>,
    number: u64,
    since: Instant,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit,
            used: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            tenants: AtomicU32::new(0),
            hungry: AtomicU32::new(0),
            eldest: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            whole_since: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            accounts: Mutex::default(),
        }))
    }

    /// Bytes of the budget that are taken at present.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// The size of the budget in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// A number that rises when memory becomes free while connections wait for some, and when the bytes that disconnected
    /// clients left behind change. It does not rise when a wait may end for another reason (time, fewer tenants).
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Relaxed)
    }

    /// The account of a tenant; a new one if it has none.
    pub(crate) fn account(&self, tenant: &Arc<str>) -> Arc<Account> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(tenant).and_then(Weak::upgrade) {
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        self.0.tenants.fetch_add(1, Relaxed);
        let account = Arc::new(Account {
            budget: Arc::clone(&self.0),
            used: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            left_bytes: AtomicU64::new(0),
            left: Mutex::default(),
            connections: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        });
        accounts.insert(Arc::clone(tenant), Arc::downgrade(&account));
        account
    }
}

impl Account {
    /// Takes `bytes` bytes for a connection that holds `held` bytes; `None` if the connection must wait. `waits`: the
    /// connection's wait, if it waits already.
    #[inline]
    pub(crate) fn take(self: &Arc<Self>, held: u64, bytes: u64, waits: Option<&Waiting>) -> Option<Charge> {
        let Inner { limit, used, .. } = &*self.budget;
        let floor = self.used.load(Relaxed) + bytes <= FLOOR;
        if !floor && !self.may_take(held, bytes, waits) {
            return None;
        }
        // Another worker may be as far. What is larger than everything gets through when nothing but floors is there.
        let least = if self.is_eldest(waits) { self.floors() } else { 0 };
        let fits = |used: u64| (floor || used <= least || used + bytes <= *limit).then_some(used + bytes);
        used.fetch_update(Relaxed, Relaxed, fits).ok()?;
        self.used.fetch_add(bytes, Relaxed);
        Some(Charge { bytes, account: Some(Arc::clone(self)) })
    }

    /// True if a connection that holds `held` bytes may take `bytes` more now. `waits`: the connection's wait, if it waits
    /// already.
    pub(crate) fn may_take(&self, held: u64, bytes: u64, waits: Option<&Waiting>) -> bool {
        let (limit, all) = (self.budget.limit, self.budget.used.load(Relaxed));
        let own = self.used.load(Relaxed);
        if own + bytes <= FLOOR {
            return true;
        }
        if self.is_eldest(waits) {
            return all + bytes <= limit || all <= self.floors();
        }
        let limit = limit.saturating_sub(self.budget.aside.load(Relaxed));
        if all == 0 && limit > 0 {
            return true;
        }
        if all + bytes > limit {
            return false;
        }
        if own == 0 {
            return true;
        }
        if self.others_wait() {
            return own + bytes <= self.share();
        }
        let free = limit - all;
        own + 2 * bytes <= free && (held == 0 && bytes <= FLOOR || held + bytes <= free / 2)
    }

    /// True if no connection of the tenant, except the eldest, would get `bytes` bytes or more now for a request to a volume,
    /// even one that holds no bytes. `number`: number of a waiting connection, for which the result is false if it is the
    /// eldest; 0: none.
    pub(crate) fn refuses(&self, volume: u32, bytes: u64, number: u64) -> bool {
        let is_eldest = number > 0 && self.budget.eldest.load(Relaxed) == number;
        !is_eldest && (!self.may_take(0, bytes, None) || self.waits_for_the_gone(volume, bytes))
    }

    /// The account of another tenant of the same budget.
    pub(crate) fn other(&self, tenant: &Arc<str>) -> Arc<Self> {
        Budget(Arc::clone(&self.budget)).account(tenant)
    }

    /// True if `waits` is the wait of the eldest connection, for which memory is set aside.
    fn is_eldest(&self, waits: Option<&Waiting>) -> bool {
        waits.is_some_and(|waits| self.budget.eldest.load(Relaxed) == waits.number)
    }

    /// Sum of the floors of all tenants, in bytes.
    fn floors(&self) -> u64 {
        FLOOR * u64::from(self.budget.tenants.load(Relaxed))
    }

    /// The tenant's share: the bytes that it may hold while other tenants wait.
    fn share(&self) -> u64 {
        (self.budget.limit / u64::from(self.budget.tenants.load(Relaxed).max(1))).max(FLOOR)
    }

    /// True if connections of other tenants wait for memory.
    fn others_wait(&self) -> bool {
        let own = u32::from(self.waiting.load(Relaxed) > 0);
        self.budget.hungry.load(Relaxed) > own
    }

    /// True if the tenant holds more than its share while connections of other tenants wait.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.others_wait() && self.used.load(Relaxed) > self.share()
    }

    /// True if connections of the tenant wait for memory.
    pub(crate) fn waits(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// True if a request that needs `bytes` bytes must wait until the volume's device has ended requests that the tenant left
    /// behind.
    #[inline]
    pub(crate) fn waits_for_the_gone(&self, volume: u32, bytes: u64) -> bool {
        let most = self.budget.limit / LEFT_BEHIND;
        // The lock is for the rare case.
        self.left_bytes.load(Relaxed) > most
            && self.used.load(Relaxed) + bytes > FLOOR
            && self.left().get(&volume).is_some_and(|left| left.bytes > most && !left.hangs(clock::now()))
    }

    /// True if a connection that holds `held` bytes for requests to a volume with a limit may not have `bytes` more, because they
    /// would wait for that limit. `soon`: bytes that the limit lets pass soon; `connections`: upper bound on the number of the
    /// tenant's connections to the volume.
    pub(crate) fn waits_for_limit(&self, held: u64, bytes: u64, soon: u64, connections: u32) -> bool {
        // One request may always wait, however large it is.
        if held == 0 {
            return false;
        }
        let crowded = self.used.load(Relaxed) > self.share() / 2;
        let least = self.budget.limit / LEFT_BEHIND / if crowded { CROWDED } else { 1 };
        held + bytes > (soon.max(least) / u64::from(connections.max(1))).max(FLOOR)
    }

    fn left(&self) -> MutexGuard<'_, HashMap<u32, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more connection of the tenant until the result is dropped.
    pub(crate) fn join(self: &Arc<Self>) -> Member {
        self.connections.fetch_add(1, Relaxed);
        Member(Arc::clone(self))
    }

    /// Number of connections of the tenant, with those that left requests behind.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Begins, at `now`, the wait for memory of a connection of the tenant; it lasts until the result is dropped.
    pub(crate) fn wait(self: &Arc<Self>, now: Instant) -> Waiting {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.budget.hungry.fetch_add(1, Relaxed);
        }
        let number = self.budget.numbers.fetch_add(1, Relaxed) + 1;
        Waiting { account: Arc::clone(self), number, since: now }
    }
}

impl Left {
    /// True if the device has ended no request left behind for [`HANGS_AFTER`].
    fn hangs(&self, now: Instant) -> bool {
        now.since(self.last_ended) >= HANGS_AFTER
    }
}

impl Inner {
    /// Counts an event that may end a connection's wait, or change the reason for it.
    fn note_change(&self) {
        self.changes.fetch_add(1, Relaxed);
    }
}

impl Waiting {
    /// Number of the wait in the order in which waits began, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// To be called while the connection still waits, for `bytes` bytes. Makes it the eldest if it has waited long enough and
    /// there is none; sets memory aside for it if it is the eldest.
    pub(crate) fn goes_on(&self, now: Instant, bytes: u64) {
        let Account { budget, used, .. } = &*self.account;
        let rest_of_share = self.account.share().checked_sub(used.load(Relaxed));
        let is_due = now.since(self.since) >= ELDEST_AFTER && rest_of_share.is_some();
        let is_eldest = budget.eldest.load(Relaxed) == self.number
            || is_due && budget.eldest.compare_exchange(0, self.number, Relaxed, Relaxed).is_ok();
        if !is_eldest {
            return;
        }
        let whole_since = budget.whole_since.load(Relaxed);
        let age = now.since(Instant::from_nanos(whole_since));
        if whole_since == 0 || age >= WHOLE_EVERY {
            budget.whole_since.store(now.as_nanos().max(1), Relaxed);
        }
        let whole = whole_since == 0 || age >= WHOLE_EVERY || age < WHOLE_FOR;
        budget.aside.store(if whole { bytes } else { bytes.min(rest_of_share.unwrap_or(0)) }, Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.tenants.fetch_sub(1, Relaxed);
    }
}

impl std::ops::Deref for Member {
    type Target = Arc<Account>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Member {
    /// To be called when the client has disconnected and left requests inside a volume's device that hold `bytes` bytes.
    pub(crate) fn leave_behind(self, now: Instant, volume: u32, bytes: u64) -> LeftBehind {
        if bytes > 0 {
            self.left().entry(volume).or_insert(Left { bytes: 0, last_ended: now }).bytes += bytes;
            self.left_bytes.fetch_add(bytes, Relaxed);
            self.budget.note_change();
        }
        LeftBehind { member: self, volume, bytes }
    }
}

impl LeftBehind {
    /// To be called when a request left behind has ended, which held `bytes` bytes. `ended`: when the device ended it; `None`
    /// if the request never reached the device.
    pub(crate) fn end(&mut self, ended: Option<Instant>, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        let mut volumes = self.member.left();
        if let Some(left) = volumes.get_mut(&self.volume) {
            left.bytes -= bytes;
            left.last_ended = ended.unwrap_or(left.last_ended);
            if left.bytes == 0 {
                volumes.remove(&self.volume);
            }
        }
        self.member.left_bytes.fetch_sub(bytes, Relaxed);
        self.member.budget.note_change();
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        self.end(None, self.bytes);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Account { budget, waiting, .. } = &*self.account;
        if waiting.fetch_sub(1, Relaxed) == 1 {
            budget.hungry.fetch_sub(1, Relaxed);
            budget.note_change();
        }
        if budget.eldest.load(Relaxed) == self.number {
            // In this order: no other becomes the eldest before what is set aside is given back.
            budget.aside.store(0, Relaxed);
            budget.eldest.store(0, Relaxed);
            budget.note_change();
        }
    }
}

impl Charge {
    /// Number of bytes that the charge holds.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits up to `bytes` bytes off this charge, and returns them as a charge of their own.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { bytes, account: self.account.clone() }
    }

    /// Adds another charge of the same account to this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        if self.account.is_none() {
            return *self = other;
        }
        debug_assert!(
            other.account.is_none()
                || other.account.as_ref().map(Arc::as_ptr) == self.account.as_ref().map(Arc::as_ptr)
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        if self.bytes > 0
            && let Some(account) = &self.account
        {
            account.used.fetch_sub(self.bytes, Relaxed);
            account.budget.used.fetch_sub(self.bytes, Relaxed);
            if account.budget.hungry.load(Relaxed) > 0 {
                account.budget.note_change();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn what_is_larger_than_everything_gets_through_alone() {
        let budget = Budget::new(100 * KIB);
        let account = budget.account(&"a".into());
        let large = account.take(0, 1000 * KIB, None).unwrap();
        assert!(account.take(1000 * KIB, 4 * KIB, None).is_none());
        drop(large);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_volume_with_a_limit_leaves_memory_to_the_other_volumes_of_its_tenant() {
        let budget = Budget::new(256 << 20);
        let account = budget.account(&"tenant".into());
        let most = |soon, connections| {
            let may = |held: &u64| !account.waits_for_limit(*held, 4 * KIB, soon, connections);
            (0..).step_by(4 << 10).take_while(may).last().map_or(0, |held| held + 4 * KIB)
        };
        assert_eq!(most(0, 1), 4 << 20, "a slow limit");
        assert_eq!(most(25 << 20, 1), 25 << 20, "a fast limit");
        assert_eq!([4, 1_000].map(|connections| most(0, connections)), [1 << 20, FLOOR], "they share it");
        assert!(!account.waits_for_limit(0, 32 << 20, 0, 1), "one request may always wait");
        // The tenant's other requests hold much, and then another tenant wants its share.
        let _held = account.take(0, 80 << 20, None).unwrap();
        assert_eq!(most(0, 1), 4 << 20);
        let _other = budget.account(&"other".into());
        assert_eq!((most(0, 1), most(25 << 20, 1)), (512 << 10, 25 << 20));
    }

    #[test]
    fn a_tenant_whose_clients_left_much_behind_has_its_floor_until_that_is_done() {
        let budget = Budget::new(6400 * KIB);
        let (busy, light) = (budget.account(&"busy".into()), budget.account(&"light".into()));
        let left = [busy.take(0, 60 * KIB, None).unwrap(), busy.take(0, 50 * KIB, None).unwrap()];
        assert!(!busy.waits_for_the_gone(3, 4 * KIB), "its clients are there");
        // Later than the test takes.
        let now = clock::now() + Duration::from_secs(60);
        let mut gone = busy.join().leave_behind(now, 3, 110 * KIB);
        assert!(busy.waits_for_the_gone(3, 4 * KIB));
        assert!(!busy.waits_for_the_gone(4, 4 * KIB), "another volume");
        assert!(!light.waits_for_the_gone(3, 1000 * KIB), "another tenant");
        // They end one after the other, or the device hangs.
        let hangs = |ms| busy.left()[&3].hangs(now + Duration::from_millis(ms));
        assert!(!hangs(999) && hangs(1_000));
        // Neither a client that goes and leaves nothing, nor a request that never began, nor another volume shows that it works.
        let later = now + HANGS_AFTER;
        busy.join().leave_behind(later, 3, 0).end(Some(later), 4 * KIB);
        busy.join().leave_behind(later, 3, 4 * KIB).end(None, 4 * KIB);
        busy.join().leave_behind(later, 19, 4 * KIB).end(Some(later), 4 * KIB);
        assert!(hangs(1_000));
        gone.end(Some(later), 60 * KIB);
        assert!(!hangs(1_000) && !busy.waits_for_the_gone(3, 1000 * KIB));
        // Those that are there keep what they have, and the floor is there in any case.
        let more = busy.join().leave_behind(now, 3, 60 * KIB);
        assert!(busy.waits_for_the_gone(3, 4 * KIB) && busy.connections() == 2);
        drop(left);
        assert!(!busy.waits_for_the_gone(3, 64 * KIB));
        // A request that holds more than was left of its connection, as after a change of tenants, ends no more than that.
        gone.end(Some(now), 1000 * KIB);
        drop((gone, more));
        assert_eq!((busy.left().len(), busy.left_bytes.load(Relaxed), busy.connections()), (0, 0, 0));
    }

    #[test]
    fn a_tenant_that_comes_late_has_its_floor_at_once_and_its_share_as_others_give_back() {
        let budget = Budget::new(1024 * KIB);
        let (hoarder, light) = (budget.account(&"hoarder".into()), budget.account(&"light".into()));
        // Connections that each take what they can leave as much free as they have, and those of another tenant likewise.
        let mut hoard: Vec<Charge> = (0..100).filter_map(|_| hoarder.take(0, 64 * KIB, None)).collect();
        assert_eq!(budget.used(), 512 * KIB);
        let at_once = light.take(0, 256 * KIB, None).expect("half of what is free");
        assert!(light.take(0, 64 * KIB, None).is_none());
        drop(at_once);
        // A large one that waited for long exceeds that.
        let waits = hoarder.wait(Instant::ZERO);
        waits.goes_on(Instant::ZERO + ELDEST_AFTER, 512 * KIB);
        let large = hoarder.take(0, 512 * KIB, Some(&waits)).expect("it is the eldest");
        drop(waits);
        let floor = light.take(0, FLOOR, None).expect("the floor is there in any case");
        assert!(light.take(FLOOR, 4 * KIB, None).is_none());
        let waiting = light.wait(Instant::ZERO);
        assert!(hoarder.is_in_the_way() && !light.is_in_the_way());
        drop(large);
        assert!(hoarder.take(0, 4 * KIB, None).is_none(), "half, and another one waits");
        let share = light.take(0, 64 * KIB, None);
        assert!(share.is_some());
        hoard.truncate(4);
        assert!(hoarder.take(0, 4 * KIB, None).is_some() && !hoarder.is_in_the_way());
        drop((waiting, floor, share, hoard));
        assert_eq!((budget.used(), budget.0.hungry.load(Relaxed)), (0, 0));
        drop((hoarder, light));
        assert_eq!(budget.0.tenants.load(Relaxed), 0);
    }

    #[test]
    fn what_has_waited_for_long_comes_before_what_is_small() {
        let budget = Budget::new(1024 * KIB);
        let accounts = ["a", "b", "c", "d"].map(|name| budget.account(&name.into()));
        let [a, b, ..] = &accounts;
        let second = |second| Instant::ZERO + Duration::from_secs(second);
        // More than a share of 256 KiB, beside small ones that never end; another tenant does the same.
        let others = b.wait(second(0));
        let mut small: Vec<Charge> = (0..30).filter_map(|_| a.take(4 * KIB, 4 * KIB, None)).collect();
        let large = 600 * KIB;
        let waits = a.wait(second(0));
        waits.goes_on(second(0), large);
        assert!(a.take(0, large, Some(&waits)).is_none(), "it has only begun to wait");
        waits.goes_on(second(1), large);
        others.goes_on(second(1), large);
        let first = a.take(0, large, Some(&waits)).expect("it is the eldest");
        drop(waits);
        let waits = a.wait(second(1));
        waits.goes_on(second(9), large);
        assert!(a.take(0, large, Some(&waits)).is_none(), "its tenant has more than its share");
        others.goes_on(second(9), large);
        assert!(b.take(0, large, Some(&others)).is_none(), "there is no room yet");
        assert!(a.take(4 * KIB, 4 * KIB, None).is_none(), "what becomes free is set aside");
        drop(first);
        assert!(a.take(4 * KIB, 300 * KIB, None).is_none());
        assert!(b.take(0, large, Some(&others)).is_some());
        drop(others);
        small.clear();
        assert_eq!((budget.used(), budget.0.aside.load(Relaxed)), (0, 0));
        // Larger than everything, beside floors that are never given back.
        let floors: Vec<_> = accounts[1..].iter().map(|account| account.take(0, FLOOR, None)).collect();
        waits.goes_on(second(10), 4096 * KIB);
        assert!(a.take(0, 4096 * KIB, Some(&waits)).is_some());
        drop(floors);
    }

    #[test]
    fn a_wait_may_end_when_memory_is_given_back_or_what_was_left_behind_changes() {
        let budget = Budget::new(6400 * KIB);
        let (busy, light) = (budget.account(&"busy".into()), budget.account(&"light".into()));
        let changed = |what: &mut dyn FnMut()| {
            let before = budget.changes();
            what();
            budget.changes() > before
        };
        assert!(!changed(&mut || drop(busy.take(0, 4 * KIB, None))), "none waits for it");
        let waits = light.wait(Instant::ZERO);
        let mut held = busy.take(0, 400 * KIB, None);
        assert!(!changed(&mut || drop(busy.take(0, 7000 * KIB, None))), "nothing was taken, and nothing is given back");
        assert!(changed(&mut || drop(held.take())));
        let mut gone = None;
        assert!(changed(&mut || gone = Some(busy.join().leave_behind(Instant::ZERO, 3, 8 * KIB))));
        assert!(changed(&mut || drop(gone.take())));
        let mut waits = Some(waits);
        assert!(changed(&mut || drop(waits.take())), "the others may have more than their shares");
    }

    #[test]
    fn what_is_refused_to_all_connections_of_a_tenant_is_known_without_them() {
        let budget = Budget::new(1024 * KIB);
        let (busy, light) = (budget.account(&"busy".into()), budget.account(&"light".into()));
        let mut half: Vec<_> = (0..14).filter_map(|_| busy.take(0, 64 * KIB, None)).collect();
        let others = light.wait(Instant::ZERO);
        assert!(busy.refuses(0, 4 * KIB, 0) && !light.refuses(0, 4 * KIB, 0));
        drop(others);
        half.truncate(4);
        assert!(!busy.may_take(600 * KIB, 128 * KIB, None) && !busy.refuses(0, 128 * KIB, 0), "it may hold less");
        assert!(busy.refuses(0, 512 * KIB, 0), "more than half of what is free");
        drop(half);
        let all = light.take(0, 1024 * KIB, None).expect("it is alone");
        let floor = busy.take(0, FLOOR, None);
        let waits = busy.wait(Instant::ZERO);
        assert!(busy.refuses(0, 4 * KIB, waits.number()));
        waits.goes_on(Instant::ZERO + ELDEST_AFTER, 4 * KIB);
        assert!(!busy.refuses(0, 4 * KIB, waits.number()), "the eldest is asked in any case");
        assert!(busy.refuses(0, 4 * KIB, waits.number() + 1) && busy.refuses(0, 4 * KIB, 0));
        drop((waits, all, floor));
        let gone = busy.join().leave_behind(clock::now() + Duration::from_secs(60), 3, 110 * KIB);
        let kept = busy.take(0, FLOOR, None);
        assert!(busy.refuses(3, 4 * KIB, 0) && !busy.refuses(4, 4 * KIB, 0), "one volume");
        drop((gone, kept));
    }

    #[test]
    fn a_request_larger_than_a_share_takes_that_of_others_now_and_then() {
        let budget = Budget::new(1024 * KIB);
        let (greedy, light) = (budget.account(&"greedy".into()), budget.account(&"light".into()));
        let ms = |ms| Instant::ZERO + Duration::from_millis(ms);
        // Its clients keep what they have, so that there is no room for the large one.
        let kept = greedy.take(0, 300 * KIB, None);
        let waits = greedy.wait(ms(0));
        let mut blocked = 0;
        for step in 0..6_400 {
            waits.goes_on(ms(1_000 + 10 * step), 900 * KIB);
            let free =
                light.take(0, FLOOR, None).and_then(|floor| light.take(0, FLOOR, None).map(|more| (floor, more)));
            blocked += u32::from(free.is_none());
        }
        assert_eq!(blocked, 200, "two seconds of 64");
        drop(kept);
        assert!(greedy.take(0, 900 * KIB, Some(&waits)).is_some(), "it is the eldest");
    }

    proptest! {
        /// Whatever charges tenants take, split, join and drop: the sum is at most the limit plus one floor per tenant, it
        /// agrees with the accounts, and a tenant within its floor never waits.
        #[test]
        fn the_bound_holds_and_a_floor_is_always_granted(
            steps in prop::collection::vec((0usize..4, 0u8..4, 1u64..300), 1..200),
        ) {
            let budget = Budget::new(1024 * KIB);
            let accounts: Vec<_> = (0..4).map(|n| budget.account(&format!("{n}").into())).collect();
            let mut held: Vec<Vec<Charge>> = (0..4).map(|_| Vec::new()).collect();
            let mut waiting: Vec<Option<Waiting>> = (0..4).map(|_| None).collect();
            for (tenant, what, kib) in steps {
                let (account, held) = (&accounts[tenant], &mut held[tenant]);
                match what {
                    0 | 1 => {
                        let before = account.used.load(Relaxed);
                        match account.take(0, kib * KIB, None) {
                            Some(charge) => {
                                held.push(charge);
                                waiting[tenant] = None;
                            }
                            None => {
                                prop_assert!(before + kib * KIB > FLOOR);
                                waiting[tenant].get_or_insert_with(|| account.wait(Instant::ZERO));
                            }
                        }
                    }
                    2 => drop(held.pop()),
                    _ => if let Some(mut charge) = held.pop() {
                        let part = charge.split(kib * KIB);
                        charge.join(part);
                        held.push(charge);
                    }
                }
                prop_assert!(budget.used() <= 1024 * KIB + 4 * FLOOR);
                let sum: u64 = accounts.iter().map(|account| account.used.load(Relaxed)).sum();
                prop_assert_eq!(budget.used(), sum);
            }
            drop((held, waiting));
            prop_assert_eq!((budget.used(), budget.0.hungry.load(Relaxed)), (0, 0));
        }
    }
}
