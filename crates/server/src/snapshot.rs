//! Pools, volumes and tenants as workers see them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use evenkeel_control::pool::{Pool, TenantId};
use evenkeel_control::response::Reason;
use evenkeel_control::units::Direction;
use evenkeel_nbd::server::Tls;
use evenkeel_policy::Config;
use evenkeel_policy::access::{Barred, Caller};
use evenkeel_policy::config::{Clients, Volume as Settings};
use evenkeel_policy::explain::{self, Throttles};
use evenkeel_policy::target;

use crate::backend::emulate::Device;
use crate::transport::Peer;
use crate::transport::tls::Acceptor;
use crate::volume::Volume;
use crate::worker::request::Request;

/// A pool behind its lock, which is held for microseconds: workers go in with a batch of requests.
pub(crate) struct SharedPool {
    /// Name in the configuration.
    pub(crate) name: String,
    /// The state machine.
    pub(crate) state: Mutex<Pool<Box<Request>>>,
    /// Age at which an operation in flight counts as lost, in nanoseconds.
    pub(crate) overdue_after_ns: AtomicU64,
    /// Bytes of a slice of a large request, by direction, as last set by the pool.
    slice_bytes: [AtomicU32; 2],
    /// True if the latency target was last reported as missed.
    target_missed: AtomicBool,
}

impl SharedPool {
    /// A pool under its name.
    pub(crate) fn new(name: String, state: Pool<Box<Request>>, overdue_after_ns: u64) -> Self {
        let slice_bytes = Direction::ALL.map(|direction| AtomicU32::new(state.slices().bytes(direction)));
        let (state, overdue_after_ns) = (Mutex::new(state), AtomicU64::new(overdue_after_ns));
        Self { name, state, overdue_after_ns, slice_bytes, target_missed: AtomicBool::new(false) }
    }

    /// Bytes of the slices into which large requests are divided.
    #[inline]
    pub(crate) fn slice_bytes(&self, direction: Direction) -> u64 {
        self.slice_bytes[direction as usize].load(Ordering::Relaxed).into()
    }

    /// Tells the workers how large slices are from now on.
    #[inline]
    pub(crate) fn note_slices(&self, state: &Pool<Box<Request>>) {
        for direction in Direction::ALL {
            let (bytes, known) = (state.slices().bytes(direction), &self.slice_bytes[direction as usize]);
            if known.load(Ordering::Relaxed) != bytes {
                known.store(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Logs the reason of the latency controller's decision: as a warning if the target has just become missed.
    #[cold]
    pub(crate) fn log_target(&self, reason: &Reason) {
        let (pool, name, because) = (&self.name, reason.name(), explain::latency(reason, Throttles::Tenants));
        match self.newly_missed(reason) {
            Some(true) => tracing::warn!(pool, reason = name, "latency target missed: {because}"),
            Some(false) => tracing::info!(pool, reason = name, "latency target no longer missed: {because}"),
            None => tracing::info!(pool, reason = name, "latency target: {because}"),
        }
    }

    /// `Some(true)` if the target has become missed since the last report, `Some(false)` if it is certain to be met again.
    fn newly_missed(&self, reason: &Reason) -> Option<bool> {
        let missed = target::is_missed(reason)?;
        (self.target_missed.swap(missed, Ordering::Relaxed) != missed).then_some(missed)
    }

    /// Takes the lock.
    ///
    /// Workers hold it for a batch, some 10 us. Sleeping and being woken takes as long on a machine and several times
    /// that on a virtual one, so the lock is tried for about as long before sleeping.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Pool<Box<Request>>> {
        const TRIES: u32 = 200;
        for _ in 0..TRIES {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => (0..16).for_each(|_| std::hint::spin_loop()),
            }
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything a worker looks up, immutable; replaced as a whole when something changes.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// The configuration it was made from.
    pub(crate) config: Arc<Config>,
    /// Volumes by id; removed ones leave a gap.
    pub(crate) volumes: Vec<Option<Arc<Volume>>>,
    /// Settings of volumes by id: a list of exports needs thousands of them.
    pub(crate) settings: Vec<Option<Arc<Settings>>>,
    /// Tenants of volumes by id, for clients that no tenant names: a reload needs them for thousands of connections.
    pub(crate) owners: Vec<Option<Arc<str>>>,
    /// The clients that tenants name.
    pub(crate) clients: Clients,
    /// Volumes by name.
    pub(crate) by_name: HashMap<String, u32>,
    /// Pools, never removed.
    pub(crate) pools: Vec<Arc<SharedPool>>,
    /// Each pool's tenants by name.
    pub(crate) tenants: Vec<HashMap<Arc<str>, TenantId>>,
    /// Each pool's modelled device, if it emulates one.
    pub(crate) devices: Vec<Option<Arc<Device>>>,
    /// The TLS of connections, if they can be encrypted.
    pub(crate) tls: Option<Arc<Acceptor>>,
}

impl Snapshot {
    /// The volume a client asks for.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Volume>> {
        let name = if name.is_empty() { self.config.default_export()? } else { name };
        let id = *self.by_name.get(name)?;
        self.volume(id)
    }

    /// The volume with this id, unless it was removed.
    #[inline]
    pub(crate) fn volume(&self, id: u32) -> Option<&Arc<Volume>> {
        self.volumes.get(id as usize)?.as_ref()
    }

    /// The TLS offered to a new connection: forced if every volume needs it, which hides the names of volumes before TLS,
    /// else at the client's choice.
    pub(crate) fn offered_tls(&self, peer: &Peer) -> Tls {
        match &self.tls {
            None => Tls::No,
            Some(_) if self.config.all_need_tls(peer.is_remote()) => Tls::Forced,
            Some(_) => Tls::Selective,
        }
    }

    /// The settings of a volume, if the configuration still has it.
    pub(crate) fn settings(&self, volume: &Volume) -> Option<&Settings> {
        self.settings.get(volume.id as usize)?.as_deref()
    }

    /// True if a client must use TLS for a volume with these settings.
    pub(crate) fn needs_tls(&self, settings: Option<&Settings>, peer: &Peer) -> bool {
        settings.is_some_and(|settings| self.config.needs_tls(settings, peer.is_remote()))
    }

    /// Checks that the lists of the server and of a volume with these settings let a client open it.
    pub(crate) fn admits_to(&self, settings: Option<&Settings>, peer: &Peer) -> Result<(), Barred> {
        let caller = peer.caller();
        match settings {
            Some(settings) => self.config.admits_to(settings, &caller),
            None => self.config.admits(&caller),
        }
    }

    /// True if the client's certificate does not bar it from every volume: a tenant names it, or `named_only` is not set.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        let named_only = self.config.server.tls.as_ref().is_some_and(|tls| tls.named_only);
        let certificate = peer.caller().certificate;
        !named_only || self.clients.tenant_of(&Caller { certificate, ..Caller::default() }).is_some()
    }

    /// The tenant that pays for a connection of `peer` to `volume`.
    pub(crate) fn tenant(&self, volume: &Volume, peer: &Peer) -> Option<(Arc<str>, TenantId)> {
        let name = match self.clients.tenant_of(&peer.caller()) {
            Some(name) => name,
            None => self.owners.get(volume.id as usize)?.as_deref()?,
        };
        let (name, &id) = self.tenants.get(volume.pool)?.get_key_value(name)?;
        Some((Arc::clone(name), id))
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::{Duration, Instant};

    use super::*;
    use crate::faults::Faults;
    use crate::paced::Work;
    use crate::registry::Registry;

    #[test]
    fn a_target_is_missed_once_until_it_is_met_again() {
        let pool = SharedPool::new(
            "main".into(),
            Pool::new((&evenkeel_policy::config::Pool::default()).into(), Instant::ZERO, 1),
            0,
        );
        let (measured, target, delay) = (Duration::from_millis(30), Duration::from_millis(20), Duration::ZERO);
        let over = Reason::ReadsOverTarget { measured, target };
        let missed = Reason::Unachievable { measured, target };
        let met = Reason::ReadsUnderTarget { measured: target, target };
        for (reason, newly) in [
            (Reason::NotEnoughData, None),
            (over, None),
            (missed, Some(true)),
            (missed, None),
            (over, None),
            (Reason::NoNoisy { measured, target }, None),
            (Reason::TestingEffect { delay }, None),
            (met, Some(false)),
            (Reason::Idle, None),
            (Reason::Ineffective { delay }, Some(true)),
            (Reason::Idle, Some(false)),
        ] {
            assert_eq!(pool.newly_missed(&reason), newly, "{reason:?}");
        }
    }

    /// Processor time of 4,000 lookups where `tenants` tenants name one volume by a pattern, and a client by its address.
    fn lookups(tenants: usize) -> u64 {
        let mut text = String::from("[volumes.disk-0]\nbackend = \"memory\"\nsize = 4096\n");
        for n in 0..tenants {
            text += &format!("[tenants.t{n}]\nmatch = [\"volume:disk-{n}*\"]\n");
        }
        let config = Config::parse(&text, "test").unwrap();
        let mut registry = Registry::new(0, Vec::new(), Faults::NONE);
        let mut snapshot = registry.plan(&Snapshot::default(), &config, true).unwrap();
        registry.apply(&Snapshot::default(), &mut snapshot);
        let volume = snapshot.find("disk-0").unwrap();
        let peer = Peer { address: Some([192, 0, 2, 1].into()), ..Peer::default() };
        let begun = Work::begin();
        for _ in 0..4_000 {
            assert_eq!(&*snapshot.tenant(volume, &peer).unwrap().0, "t0");
        }
        Work::begin().since(&begun)
    }

    #[test]
    fn finding_the_tenant_of_a_connection_takes_no_longer_with_a_thousand_tenants() {
        let [few, many] = [1, 1_000].map(|tenants| (0..5).map(|_| lookups(tenants)).min().unwrap());
        assert!(many < 10 * few, "{many} ns, and {few} ns with one tenant");
    }
}
