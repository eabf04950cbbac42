//! An immutable snapshot of pools, volumes and tenants, which workers read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use evenkeel_control::pool::target::{Decision, Statistic};
use evenkeel_control::pool::{Pool, TenantId};
use evenkeel_control::response::Reason;
use evenkeel_control::units::Direction;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::Tls;
use evenkeel_policy::Config;
use evenkeel_policy::access::{Barred, Caller};
use evenkeel_policy::config::{Clients, DEFAULT_TENANT, Volume as Settings, in_policy};
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::state::LatencyTargetState;
use evenkeel_policy::target;

use crate::backend::emulate::Device;
use crate::clock;
use crate::transport::Peer;
use crate::transport::tls::Acceptor;
use crate::volume::Volume;
use crate::worker::request::Request;

/// Least time between two lines in the log about new reasons of a latency controller, whose clients may come and go ten times a
/// second.
const NEWS_EVERY: Duration = Duration::from_secs(10);

/// A pool behind its lock. Workers hold the lock for microseconds, for a batch of requests at a time.
pub(crate) struct SharedPool {
    /// Name of the pool in the configuration.
    pub(crate) name: String,
    /// The pool's scheduling state machine.
    pub(crate) state: Mutex<Pool<Box<Request>>>,
    /// Age at which an operation in flight counts as lost, in nanoseconds.
    pub(crate) overdue_after_ns: AtomicU64,
    /// Size, by direction, of the slices into which large requests are divided, in bytes; a copy of the pool's present sizes.
    slice_bytes: [AtomicU32; 2],
    /// True if the latest report in the log about the latency target was that it is missed.
    target_missed: AtomicBool,
    /// Name of the newest reason in the log about the latency target, and when it was logged, so that a controller that decides
    /// ten times a second does not fill the log.
    target_reason: Mutex<(&'static str, Instant)>,
}

impl SharedPool {
    /// A pool called `name`. `overdue_after_ns`: age at which an operation in flight counts as lost, in nanoseconds.
    pub(crate) fn new(name: String, state: Pool<Box<Request>>, overdue_after_ns: u64) -> Self {
        let slice_bytes = Direction::ALL.map(|direction| AtomicU32::new(state.slices().bytes(direction)));
        let (state, overdue_after_ns) = (Mutex::new(state), AtomicU64::new(overdue_after_ns));
        let (target_missed, target_reason) = (AtomicBool::new(false), Mutex::new(("", Instant::ZERO)));
        Self { name, state, overdue_after_ns, slice_bytes, target_missed, target_reason }
    }

    /// Size, in bytes, of the slices into which large requests of this direction are divided.
    #[inline]
    pub(crate) fn slice_bytes(&self, direction: Direction) -> u64 {
        self.slice_bytes[direction as usize].load(Ordering::Relaxed).into()
    }

    /// Sets the size of slices of both directions until the pool's own sizes are noted again.
    #[cfg(test)]
    pub(crate) fn set_slice_bytes(&self, bytes: u32) {
        self.slice_bytes.iter().for_each(|size| size.store(bytes, Ordering::Relaxed));
    }

    /// Copies the sizes of slices from the pool's state, so that workers can read them without the lock.
    #[inline]
    pub(crate) fn note_slices(&self, state: &Pool<Box<Request>>) {
        for direction in Direction::ALL {
            let (bytes, known) = (state.slices().bytes(direction), &self.slice_bytes[direction as usize]);
            if known.load(Ordering::Relaxed) != bytes {
                known.store(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Logs the latency controller's decision: as a warning if the latency target was met until now and is missed, at level
    /// debug if its reason is known. `statistic`: the one that the target is for; `tenant` gives a tenant's name. Returns true
    /// if the target has become missed.
    #[cold]
    pub(crate) fn log_target(
        &self,
        statistic: Statistic,
        decision: &Decision,
        tenant: impl Fn(TenantId) -> Option<String>,
    ) -> bool {
        let (pool, reason) = (&self.name, &decision.reason);
        let record = LatencyTargetState::record(pool, statistic.into(), decision, tenant, DecisionRecord::default());
        let (name, because) = (record.reason, record.because);
        let now = clock::now();
        let (newly, is_news) = (self.newly_missed(reason, now), self.is_news(reason, now));
        match newly {
            Some(true) => tracing::warn!(pool, reason = name, "latency target missed: {because}"),
            Some(false) => tracing::info!(pool, reason = name, "latency target no longer missed: {because}"),
            None if is_news => tracing::info!(pool, reason = name, "latency target: {because}"),
            None => tracing::debug!(pool, reason = name, "latency target: {because}"),
        }
        newly == Some(true)
    }

    /// True if a decision at `now` has another reason than the one logged last, at least [`NEWS_EVERY`] ago; that the effect of a
    /// decision is awaited is never news.
    fn is_news(&self, reason: &Reason, now: Instant) -> bool {
        if matches!(reason, Reason::AwaitingEffect { .. }) {
            return false;
        }
        let mut last = self.target_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, logged_at) = *last;
        let is_news = name != reason.name() && (name.is_empty() || now.since(logged_at) >= NEWS_EVERY);
        if is_news {
            *last = (reason.name(), now);
        }
        is_news
    }

    /// `Some(true)` if the latency target has become missed since the previous call, `Some(false)` if it has become met again
    /// for certain, `None` if nothing has changed. A target that is met again counts as missed until [`NEWS_EVERY`] after the
    /// newest line in the log: it may be missed again ten times a second.
    fn newly_missed(&self, reason: &Reason, now: Instant) -> Option<bool> {
        let missed = target::is_missed(reason)?;
        let mut last = self.target_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let may_change = missed || now.since(last.1) >= NEWS_EVERY;
        if !may_change || self.target_missed.swap(missed, Ordering::Relaxed) == missed {
            return None;
        }
        *last = (reason.name(), now);
        Some(missed)
    }

    /// Takes the pool's lock.
    ///
    /// Workers hold the lock for a batch of requests, some 10 us. Sleeping and being woken takes about as long on a real
    /// machine and several times as long on a virtual one. So this method retries for about that time before it sleeps.
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

/// All configured objects that a worker looks up. A snapshot is immutable, and is replaced as a whole when the configuration
/// changes.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// The configuration from which the snapshot was made.
    pub(crate) config: Arc<Config>,
    /// Volumes by id; the entries of removed volumes are `None`.
    pub(crate) volumes: Vec<Option<Arc<Volume>>>,
    /// Settings of the volumes, by id: quicker than a look-up in `config`, since a list of exports needs thousands of them.
    pub(crate) settings: Vec<Option<Arc<Settings>>>,
    /// Name of each volume's tenant, by the volume's id, which pays for clients that no tenant names. Computed once, because
    /// a reload needs it for thousands of connections.
    pub(crate) owners: Vec<Option<Arc<str>>>,
    /// The clients that tenants name, to look up the tenant of a connection.
    pub(crate) clients: Clients,
    /// Ids of the volumes, by name.
    pub(crate) by_name: HashMap<String, u32>,
    /// All pools, by index. Pools are never removed, so that indices stay valid.
    pub(crate) pools: Vec<Arc<SharedPool>>,
    /// For each pool: the ids of its tenants, by name.
    pub(crate) tenants: Vec<HashMap<Arc<str>, TenantId>>,
    /// For each pool: its modelled device, if the pool emulates one.
    pub(crate) devices: Vec<Option<Arc<Device>>>,
    /// The TLS settings of connections; `None` if connections cannot be encrypted.
    pub(crate) tls: Option<Arc<Acceptor>>,
}

impl Snapshot {
    /// The volume with the export name that a client asks for; an empty name stands for the default export.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Volume>> {
        let name = if name.is_empty() { self.config.default_export()? } else { name };
        let id = *self.by_name.get(name)?;
        self.volume(id)
    }

    /// Applies the limits of single volumes that are in force, to requests that wait too.
    pub(crate) fn limit_volumes(&self, now: Instant) {
        let mut limits = vec![BTreeMap::new(); self.pools.len()];
        for volume in self.volumes.iter().flatten() {
            let limit = self.settings(volume).map(|settings| settings.limit).unwrap_or_default();
            volume.set_limit(limit.in_force().into());
            if !limit.in_force().is_unset() {
                limits[volume.pool].insert(volume.id, (limit.in_force().into(), limit.burst));
            }
        }
        for (pool, limits) in self.pools.iter().zip(&limits) {
            pool.lock().limit_volumes(now, limits);
        }
    }

    /// The volume with this id, unless it was removed.
    #[inline]
    pub(crate) fn volume(&self, id: u32) -> Option<&Arc<Volume>> {
        self.volumes.get(id as usize)?.as_ref()
    }

    /// The TLS mode for a new connection: forced if every volume requires TLS, so that names of volumes are hidden before
    /// TLS; otherwise at the client's choice.
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

    /// Checks that the access lists of the server and of the volume with these settings allow `peer` to open the volume.
    pub(crate) fn admits_to(&self, settings: Option<&Settings>, peer: &Peer) -> Result<(), Barred> {
        let caller = peer.caller();
        match settings {
            Some(settings) => self.config.admits_to(settings, &caller),
            None => self.config.admits(&caller),
        }
    }

    /// True unless the server requires named certificates (`named_only`) and no tenant names the client's certificate.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        let named_only = self.config.server.tls.as_ref().is_some_and(|tls| tls.named_only);
        let certificate = peer.caller().certificate;
        !named_only || self.clients.tenant_of(&Caller { certificate, ..Caller::default() }).is_some()
    }

    /// The tenant to which a connection of `peer` to `volume` belongs: its name, and its id in the volume's pool.
    pub(crate) fn tenant(&self, volume: &Volume, peer: &Peer) -> Option<(Arc<str>, TenantId)> {
        let name = match self.clients.tenant_of(&peer.caller()) {
            Some(name) => name,
            None => self.owners.get(volume.id as usize)?.as_deref()?,
        };
        let (name, &id) = self.tenants.get(volume.pool)?.get_key_value(name)?;
        Some((Arc::clone(name), id))
    }
}

/// The tenant that goes on with the requests which the departed tenant `name` had queued for `volume`: if `each` was switched,
/// the tenant of that volume or of all its volumes, otherwise the volume's tenant, by its id in `owners`. The default tenant
/// takes what is left: its clients would wait behind the backlog of a tenant that was renamed.
pub(crate) fn heir(
    tenants: &HashMap<Arc<str>, TenantId>,
    name: &str,
    owners: &[Option<Arc<str>>],
    volume: Option<&Volume>,
) -> Option<TenantId> {
    let tenant = in_policy(name);
    let of_volume = volume.and_then(|of| tenants.get(format!("{tenant}/{}", of.name).as_str()));
    let same = of_volume.or_else(|| tenants.get(tenant));
    let of_owner = || tenants.get(owners.get(volume?.id as usize)?.as_deref()?);
    same.or_else(of_owner).or_else(|| tenants.get(DEFAULT_TENANT)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::paced::Work;
    use crate::registry::Registry;
    use crate::worker::request::ConnKey;

    #[test]
    fn what_a_tenant_had_queued_stays_with_its_volume_when_each_is_switched_or_the_tenant_is_renamed() {
        let volume = String::from("[volumes.db-1]\nbackend = \"memory\"\nsize = 4096\n");
        let config = |each: bool, tenant: &str| {
            let text = format!("[tenants.{tenant}]\neach = {each}\nmatch = [\"volume:db-*\"]\n{volume}");
            Config::parse(&text, "test").unwrap()
        };
        let mut registry = Registry::new(0, Vec::new(), Faults::NONE);
        let mut present = Snapshot::default();
        for (next, name) in [
            (config(true, "db"), "db/db-1"),
            (config(false, "db"), "db"),
            (config(true, "db"), "db/db-1"),
            // It was renamed, and then removed.
            (config(true, "other"), "other/db-1"),
            (config(false, "other"), "other"),
            (Config::parse(&volume, "test").unwrap(), "default"),
        ] {
            let mut snapshot = registry.plan(&present, &next, true).unwrap();
            registry.apply(&present, &mut snapshot);
            let mut state = snapshot.pools[0].lock();
            if present.pools.is_empty() {
                let volume = snapshot.find("db-1").unwrap();
                let request = Box::new(Request::of(ConnKey { slot: 0, generation: 0 }, volume.id));
                let (id, work) = (snapshot.tenants[0][name], request.work(volume));
                assert!(state.submit(Instant::ZERO, id, work, request).is_ok());
            }
            let queued = state.tenant(snapshot.tenants[0][name]).map(|tenant| tenant.queued);
            assert_eq!(queued, Some(1), "{name}: {:?}", snapshot.tenants[0]);
            drop(state);
            present = snapshot;
        }
    }

    #[test]
    fn requests_of_a_tenant_that_is_removed_are_charged_once_to_the_limit_of_their_volume() {
        let config = |tenants: &str| {
            let limit = "limit = { iops = 1, burst = \"0s\" }";
            let text = format!("{tenants}[volumes.db]\nbackend = \"memory\"\nsize = 4096\n{limit}\n");
            Config::parse(&text, "test").unwrap()
        };
        let (mut registry, before) = (Registry::new(0, Vec::new(), Faults::NONE), Snapshot::default());
        let mut present = registry.plan(&before, &config("[tenants.db]\n"), true).unwrap();
        registry.apply(&before, &mut present);
        let (volume, now) = (present.find("db").unwrap(), crate::clock::now());
        for _ in 0..3 {
            let request = Box::new(Request::of(ConnKey { slot: 0, generation: 0 }, volume.id));
            let (id, work) = (present.tenants[0]["db"], request.work(volume));
            assert!(present.pools[0].lock().submit_of(now, volume.id, id, work, request).is_ok());
        }
        let mut next = registry.plan(&present, &config(""), true).unwrap();
        registry.apply(&present, &mut next);
        let state = next.pools[0].lock();
        let queued = state.tenant(next.tenants[0]["default"]).map(|tenant| tenant.queued);
        let waiting = state.volume(now, volume.id).map(|volume| volume.waiting);
        assert_eq!((queued, waiting), (Some(1), Some(2)), "one has passed the limit");
    }

    /// A pool about whose latency target nothing is logged yet.
    fn shared_pool() -> SharedPool {
        SharedPool::new(
            "main".into(),
            Pool::new((&evenkeel_policy::config::Pool::default()).into(), Instant::ZERO, 1),
            0,
        )
    }

    #[test]
    fn a_target_is_missed_once_until_it_is_met_again() {
        let pool = shared_pool();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let (measured, target, delay) = (Duration::from_millis(30), Duration::from_millis(20), Duration::ZERO);
        let over = Reason::ReadsOverTarget { measured, target };
        let missed = Reason::Unachievable { measured, target };
        let met = Reason::ReadsUnderTarget { measured: target, target };
        let mut seconds = 0;
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
            seconds += 10;
            assert_eq!(pool.newly_missed(&reason, at(1_000 * seconds)), newly, "{reason:?}");
        }
        // One that is missed and met ten times a second is reported as missed at once, and twice in ten seconds.
        let newly = |n: u64| {
            pool.newly_missed(if n.is_multiple_of(2) { &missed } else { &met }, at(1_000 * seconds + 1_000 + 100 * n))
        };
        assert_eq!(newly(0), Some(true));
        assert_eq!((1..200).filter_map(newly).collect::<Vec<_>>(), [false, true], "in 20 s");
        // A controller at work has one line, however often it decides.
        let pool = shared_pool();
        let awaiting = Reason::AwaitingEffect { target };
        let over_again = Reason::ReadsOverTarget { measured: delay, target };
        let decided =
            [(over, 0), (awaiting, 100), (over_again, 20_000), (awaiting, 20_100), (met, 40_000), (over, 50_000)];
        let news = decided.map(|(reason, ms)| pool.is_news(&reason, at(ms)));
        assert_eq!(news, [true, false, false, false, true, true]);
        // Reasons that come and go ten times a second have a line in ten seconds.
        let is_logged = |n: u64| pool.is_news(if n.is_multiple_of(2) { &met } else { &over }, at(60_000 + 100 * n));
        assert_eq!((0..200).filter(|&n| is_logged(n)).count(), 2, "in 20 s");
        // A line that says that the target is missed has named the reason.
        assert_eq!(pool.newly_missed(&missed, at(80_000)), Some(true));
        assert!(!pool.is_news(&missed, at(80_000)) && !pool.is_news(&missed, at(90_000)));
    }

    /// Processor time, in nanoseconds, of 4,000 look-ups of a connection's tenant, with `tenants` tenants that each name
    /// volumes by a pattern.
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
