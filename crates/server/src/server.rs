//! The interface of the server for its owner: starting, reading state, changing the configuration, stopping.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use evenkeel_control::slots::Summary;
use evenkeel_history::Sample;
use evenkeel_model::store::StoreParams;
use evenkeel_policy::Config;
use evenkeel_policy::change::{self, Change};
use evenkeel_policy::config::{Backend as VolumeBackend, Engine, Volume as VolumeConfig, Workers};
use evenkeel_policy::figures::counted;
use evenkeel_policy::state::{Clients, State};
use evenkeel_policy::tenant::Tenant;
use evenkeel_policy::units::{Bytes, Rates};

use crate::backend::Backend;
use crate::budget::Budget;
use crate::engine::{priority, uring};
use crate::error::Error;
use crate::faults::Faults;
use crate::figures::Meter;
use crate::listen::{Listener, Listening, SocketFile};
use crate::places::is_allowed;
use crate::prompt;
use crate::recorder::RING_BYTES;
use crate::registry::{self, Registry};
use crate::settle::{AbortOnPanic, within};
use crate::shared::{Bounds, Shared};
use crate::snapshot::Snapshot;
use crate::state::{Counted, Detail, WINDOW};
use crate::volume::Volume;
use crate::worker::Worker;
use crate::worker::message::Message;
use crate::worker::request::ConnKey;

/// Longest wait for a device while a volume on it is opened or grown, in a server that already runs.
const DEVICE_PATIENCE: StdDuration = StdDuration::from_secs(30);
/// Longest wait for workers to end after [`Message::Stop`].
const STOP_PATIENCE: StdDuration = StdDuration::from_secs(2);

/// The parameters of a start besides the configuration.
#[derive(Default)]
pub struct Start {
    /// Listening sockets from a service manager; if there are any, the configured addresses are not opened.
    pub inherited: Vec<OwnedFd>,
    /// Seed of the random numbers for adaptive controllers' exploration and emulated devices' jitter.
    pub seed: u64,
    /// Paths of the program's own files (configuration and records), existing or not; no volume may be on one of them.
    pub own_files: Vec<PathBuf>,
    /// Faults that a test injects into system calls.
    #[doc(hidden)]
    pub faults: Faults,
}

/// The result of a configuration change that is now in force.
#[derive(Debug)]
pub struct Applied {
    /// The differences to the previous configuration, as one text each.
    pub changes: Vec<String>,
    /// Errors of syncing the volumes that the change has removed: data written to these volumes may be lost.
    pub warnings: Vec<Error>,
    /// Notes for the operator, which are in the log already: on the files of newly opened volumes, and on a missing privilege
    /// that reservations need.
    pub notes: Vec<String>,
}

/// A running server. All methods may be called from any thread.
///
/// Dropping this value stops the server at once; [`Server::shutdown`] stops it gracefully.
pub struct Server {
    shared: Arc<Shared>,
    registry: Mutex<Registry>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    running: Arc<Running>,
    uris: Vec<String>,
    files: Mutex<Vec<SocketFile>>,
    started: StdInstant,
    engine: Engine,
    stopped: AtomicBool,
    /// The latest two readings of the tenants' counters, the older one first.
    counted: Mutex<[Option<Arc<Counted>>; 2]>,
}

/// Number of worker threads that run, and a signal for its changes.
#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Running {
    fn wait_for_none(&self, patience: StdDuration) -> bool {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, _) = self
            .changed
            .wait_timeout_while(count, patience, |count| *count > 0)
            .unwrap_or_else(PoisonError::into_inner);
        *count == 0
    }
}

impl Server {
    /// Opens volumes and sockets and starts to serve.
    ///
    /// # Errors
    /// A volume that cannot be opened or is in use, an address that is taken, an I/O engine that the kernel refuses. On an
    /// error nothing is left running or locked.
    pub fn start(config: Config, start: Start) -> Result<Self, Error> {
        let engine = choose_engine(config.server.engine, &start.faults)?;
        let most_connections = check_descriptors(&config)?;
        check_memory(&config)?;
        let needs_folder = config.volumes.iter().any(|(name, v)| config.path_of(name, v).is_some() && v.path.is_none())
            || (start.inherited.is_empty() && config.server.unix.is_none());
        if needs_folder {
            let made = std::fs::create_dir_all(&config.server.data_dir);
            made.map_err(|cause| Error::Volume {
                path: config.server.data_dir.clone(),
                action: "create the folder",
                cause,
            })?;
        }
        let workers = count_of(config.server.workers);
        let memory = config.server.buffer_memory.0;
        let bounds = Bounds {
            in_flight: config.server.max_inflight_per_connection as usize,
            handshake_ns: config.server.handshake_timeout.as_nanos(),
            handshakes: config.server.max_handshakes,
            handshakes_of_client: config.server.max_handshakes_per_client,
            peer_timeout: config.server.peer_timeout,
            busy_poll: config.server.busy_poll,
        };
        let mut shared = Shared::new(
            workers,
            most_connections,
            Budget::new(memory),
            bounds,
            config.server.placement.control(),
            start.faults.clone(),
        );
        shared.limits_descriptors = most_connections < config.server.max_connections;
        shared.raises_priority = priority::probe().unwrap_or(false);
        shared.own_files = start.own_files.clone();
        if let Some(lack) = lacks_priority(&config) {
            tracing::warn!("{lack}");
        }
        if let Some(lack) = prompt::lack(&config) {
            tracing::info!("{lack}");
        }
        let shared = Arc::new(shared);
        let mut registry = Registry::new(start.seed, start.own_files, start.faults);
        let mut snapshot = registry.plan(&Snapshot::default(), &config, true)?;
        registry.apply(&Snapshot::default(), &mut snapshot);
        registry.notes.clear();
        // From here on there are clients, and changes that wait behind one another.
        registry.patience = Some(DEVICE_PATIENCE);
        shared.publish(snapshot);

        let mut listening = Listening::default();
        if start.inherited.is_empty() {
            for address in &config.server.listen {
                listening.tcp(*address, &config.server.listen)?;
            }
            for path in config.server.unix_paths() {
                listening.unix(&path)?;
            }
        } else {
            for fd in start.inherited {
                // Of configured addresses, the rules of the configuration warn.
                if let (Some(address), Some(danger)) = (listening.inherited(fd)?, config.danger_from_afar()) {
                    tracing::warn!(
                        "{address}, inherited from the service manager, is reachable from other machines, and {danger}"
                    );
                }
            }
        }
        let server = Self {
            shared: Arc::clone(&shared),
            registry: Mutex::new(registry),
            threads: Mutex::default(),
            running: Arc::default(),
            uris: std::mem::take(&mut listening.uris),
            files: Mutex::new(std::mem::take(&mut listening.files)),
            started: StdInstant::now(),
            engine,
            stopped: AtomicBool::new(false),
            counted: Mutex::default(),
        };
        let mut listeners = Some(std::mem::take(&mut listening.listeners));
        let _ = prompt::processors();
        for index in 0..workers {
            // One worker accepts for all and spreads the connections.
            server.start_worker(index, listeners.take().unwrap_or_default())?;
        }
        server.keep_requests(&server.config());
        Ok(server)
    }

    fn start_worker(&self, index: usize, listeners: Vec<Listener>) -> Result<(), Error> {
        let fail = |cause: io::Error| Error::System { action: "start a worker", cause };
        let mailbox = self.shared.make_mailbox(index).map_err(|e| fail(e.into()))?;
        if mailbox.post(Message::Stay).is_ok() {
            // It was to leave, and had not left.
            return Ok(());
        }
        let worker = Worker::new(index, Arc::clone(&self.shared), listeners).map_err(|e| fail(e.into()))?;
        mailbox.open();
        let (running, with_ring) = (Arc::clone(&self.running), self.engine == Engine::IoUring);
        *running.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let spawned = std::thread::Builder::new().name(format!("evenkeel-{index}")).spawn(move || {
            let alive = AbortOnPanic;
            worker.run(with_ring);
            std::mem::forget(alive);
            *running.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
            running.changed.notify_all();
        });
        match spawned {
            Ok(thread) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                Ok(())
            }
            Err(error) => {
                mailbox.close_if_empty();
                *self.running.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                Err(fail(error))
            }
        }
    }

    /// The addresses at which clients can connect, as URIs without export names.
    pub fn listening(&self) -> &[String] {
        &self.uris
    }

    /// Time since the latest housekeeping of that worker whose housekeeping is longest ago: slightly more than 1 s while all
    /// workers run. A much longer time means that a worker hangs, and so do the connections that it serves. Workers that have
    /// ended do not count.
    pub fn silence(&self) -> StdDuration {
        let now = crate::clock::now();
        let heard = self.shared.stats.iter().map(|stats| stats.heard_ns.load(Ordering::Relaxed));
        let oldest = heard.filter(|&heard| heard > 0).min().unwrap_or(now.as_nanos());
        StdDuration::from_nanos(now.as_nanos().saturating_sub(oldest))
    }

    /// True once the server stops: it accepts no more clients.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// The server's state: pools, tenants, volumes, workers. Takes each pool's lock for microseconds.
    pub fn state(&self) -> State {
        self.collect(Detail::ALL)
    }

    /// As [`Self::state`], without distributions of latencies, and of decisions only those first taken at the uptime `since` or
    /// later, in seconds: several times as cheap with many tenants.
    pub fn state_since(&self, since: f64) -> State {
        self.collect(Detail { latencies: false, decided_since: since })
    }

    /// Figures of each pool, and of each tenant that was not idle, since the last reading with this meter.
    /// Takes each pool's lock once for each of its tenants.
    pub fn read(&self, meter: &mut Meter) -> Vec<Sample> {
        meter.read(&self.shared)
    }

    fn collect(&self, detail: Detail) -> State {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let uptime = self.started.elapsed();
        let before = counted.iter().flatten().find(|counted| uptime.saturating_sub(counted.uptime) >= WINDOW);
        crate::state::collect(&self.shared, self.engine, uptime, before.map(Arc::as_ref), detail)
    }

    /// Reads the tenants' counters, as the beginning of the window whose rates a later [`Self::state`] shows. To be called
    /// once a second.
    pub fn count(&self) {
        let counted = Arc::new(crate::state::count(&self.shared, self.started.elapsed()));
        let [older, newer] = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        *older = newer.replace(counted);
    }

    /// The TLS configuration for the HTTP API, with the newest certificates; `None` without `[server.tls]`.
    pub fn https(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.shared.snapshot().tls.as_ref().map(|acceptor| acceptor.http())
    }

    /// The connected clients, with figures at most about 1 s old.
    pub fn clients(&self) -> Clients {
        crate::state::clients(&self.shared, self.started.elapsed())
    }

    /// Warning, as a sentence, about the server's certificate in use; the flag is true if that certificate has expired, and false
    /// if it expires soon. `None` while the certificate is valid for longer, and without TLS.
    pub fn doubt_about_certificate(&self) -> Option<(bool, String)> {
        self.shared.snapshot().tls.as_ref()?.doubt()
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        // Not out of the registry, which a change may hold for as long as a device does not answer.
        Arc::clone(&self.shared.snapshot().config)
    }

    /// Puts a new configuration in force without dropping a connection; reads certificates again.
    ///
    /// # Errors
    /// If a changed setting needs a restart, or a volume cannot be opened or grown. On an error nothing has changed.
    pub fn reload(&self, config: Config) -> Result<Applied, Error> {
        self.take_up(&mut self.registry(), &config, true)
    }

    /// As [`Self::reload`], for a change by command: reads certificates again only if their settings changed.
    ///
    /// # Errors
    /// As for [`Self::reload`].
    pub fn put(&self, config: Config) -> Result<Applied, Error> {
        self.take_up(&mut self.registry(), &config, false)
    }

    /// Puts each limit with hours into force or out of it, as it is at the minute of the day that `minute` returns; everything else
    /// stays as it is. The minute is asked for when no other change is under way.
    ///
    /// # Errors
    /// As for [`Self::reload`].
    pub fn set_time(&self, minute: impl FnOnce() -> u16) -> Result<Applied, Error> {
        let mut registry = self.registry();
        let mut config = Config::clone(&registry.config);
        config.set_time(minute());
        self.take_up(&mut registry, &config, false)
    }

    fn take_up(&self, registry: &mut Registry, config: &Config, fresh: bool) -> Result<Applied, Error> {
        let changes = change::plan(&registry.config, config).map_err(|refused| Error::Refused(refused.to_string()))?;
        let before = self.shared.snapshot().tls.clone();
        let warnings = self.switch(registry, config, fresh)?;
        let notes = std::mem::take(&mut registry.notes);
        let mut changes: Vec<_> = changes.iter().map(Change::to_string).collect();
        if let (Some(before), Some(after)) = (before, &self.shared.snapshot().tls)
            && !Arc::ptr_eq(&before, after)
        {
            changes.push("certificates changed".into());
        }
        Ok(Applied { changes, warnings, notes })
    }

    /// Adds a volume by command and serves it; returns notes about its file.
    ///
    /// # Errors
    /// If a volume of that name exists, commands may not use the volume's path, or the volume cannot be opened.
    pub fn create_volume(&self, name: &str, volume: VolumeConfig) -> Result<Vec<String>, Error> {
        let mut registry = self.registry();
        let mut config = Config::clone(&registry.config);
        if config.volumes.contains_key(name) {
            return Err(Error::Refused(format!("there is a volume named \"{name}\" already; choose another name")));
        }
        if let Some(path) = config.path_of(name, &volume) {
            let (server, asked) = (config.server.clone(), path.clone());
            if !within(registry.patience, name, move || Ok(is_allowed(&server, &asked)))? {
                return Err(Error::NotOurs {
                    volume: name.to_owned(),
                    path,
                    why: "it is outside the data folder, and the configuration does not allow commands to use it"
                        .into(),
                    cure: "Name its folder in volume_dirs of [server], or put the volume into the configuration file"
                        .into(),
                });
            }
        }
        config.volumes.insert(name.to_owned(), volume);
        self.switch(&mut registry, &config, false)?;
        Ok(std::mem::take(&mut registry.notes))
    }

    /// Grows a volume to `size`; returns notes about its file. Clients see the new size when they reconnect.
    ///
    /// # Errors
    /// If there is no such volume, the volume has that size or more already, or its back end cannot grow.
    pub fn grow_volume(&self, name: &str, size: Bytes) -> Result<Vec<String>, Error> {
        let mut registry = self.registry();
        let config = self.grown_from(&registry.config, name, size)?;
        // A block device has the size it has, and the configuration says none: nothing is written by this.
        if config.volumes.get(name).is_some_and(|volume| volume.backend.has_its_size()) {
            let device = self.served(name)?;
            registry::lengthen(&device, size.0, registry.patience)?.0.keep();
            device.set_size(size.0);
        }
        self.switch(&mut registry, &config, false)?;
        Ok(std::mem::take(&mut registry.notes))
    }

    /// The configuration that [`Self::grow_volume`] puts in force for these arguments.
    ///
    /// # Errors
    /// If there is no such volume, or the volume has that size or more already.
    pub fn grown(&self, name: &str, size: Bytes) -> Result<Config, Error> {
        self.grown_from(&self.registry().config, name, size)
    }

    fn grown_from(&self, config: &Config, name: &str, size: Bytes) -> Result<Config, Error> {
        let volume = self.served(name)?;
        if size.0 <= volume.size() {
            return Err(Error::Refused(format!(
                "volume \"{name}\" has {} bytes already, and a volume only grows; choose a larger size",
                volume.size()
            )));
        }
        let mut config = config.clone();
        if let Some(settings) = config.volumes.get_mut(name).filter(|settings| !settings.backend.has_its_size()) {
            settings.size = Some(size);
            // Asked for by name.
            settings.grow |= matches!(&volume.backend, Backend::File(file) if file.is_foreign());
        }
        Ok(config)
    }

    fn served(&self, name: &str) -> Result<Arc<Volume>, Error> {
        self.shared.snapshot().find(name).cloned().ok_or_else(|| unknown("volume", name))
    }

    /// Stops serving a volume: closes the volume's connections, makes its data durable, and releases its file without
    /// changing it. Returns the errors of making the data durable; the volume is removed nevertheless.
    ///
    /// # Errors
    /// If there is no such volume.
    pub fn remove_volume(&self, name: &str) -> Result<Vec<Error>, Error> {
        let mut registry = self.registry();
        let mut config = Config::clone(&registry.config);
        config.volumes.remove(name).ok_or_else(|| unknown("volume", name))?;
        self.switch(&mut registry, &config, false)
    }

    /// Changes the parameters of a pool's modelled device while the pool is in use.
    ///
    /// # Errors
    /// If there is no such pool, the pool has no modelled device, or the values are out of range.
    pub fn set_emulate(&self, pool: &str, emulate: StoreParams) -> Result<(), Error> {
        emulate.validate().map_err(|why| Error::Refused(format!("pool \"{pool}\": {why}")))?;
        let mut registry = self.registry();
        let mut config = Config::clone(&registry.config);
        let settings = config.pools.get_mut(pool).ok_or_else(|| unknown("pool", pool))?;
        if settings.emulate.is_none() {
            return Err(Error::Refused(format!(
                "pool \"{pool}\" emulates no device; add [pools.{pool}.emulate], and restart the server"
            )));
        }
        settings.emulate = Some(emulate);
        self.switch(&mut registry, &config, false).map(drop)
    }

    /// By pool, the summary of this host's tenants over the period that has just ended, to be sent to the other hosts on the
    /// same device. Only for pools whose slots (requests in flight) are shared out; each summary is returned once. In pools
    /// that share slots with other hosts, this call ends the period.
    pub fn slot_summaries(&self) -> BTreeMap<String, Summary> {
        let snapshot = self.shared.snapshot();
        let told = snapshot.pools.iter().filter_map(|pool| {
            let mut state = pool.lock();
            let now = crate::clock::now();
            state.tick_controllers(now);
            Some((pool.name.clone(), state.take_summary(now)?))
        });
        told.collect()
    }

    /// Shares out the slots (requests in flight) of every pool for which `sums` returns a summary, the sum of all hosts'
    /// summaries for one period. `ramp`: fraction of this host's share that the host takes, 0 to 1.
    pub fn decide_slots(&self, sums: impl Fn(&str) -> Option<Summary>, ramp: f64) {
        for pool in &self.shared.snapshot().pools {
            let Some(summary) = sums(&pool.name) else { continue };
            let mut state = pool.lock();
            state.share_slots(true);
            state.set_slot_ramp(ramp);
            state.decide_slots(crate::clock::now(), &summary);
        }
        // Who has more slots now may have something waiting.
        self.shared.post(0, Message::Visit);
    }

    /// Ends the sharing of slots with other hosts: from now on this host alone determines, for each pool, how many requests
    /// in flight the device can take.
    pub fn decide_slots_alone(&self) {
        self.shared.snapshot().pools.iter().for_each(|pool| pool.lock().share_slots(false));
        self.shared.post(0, Message::Visit);
    }

    /// Moves all connections, with their requests in flight, to other workers while the connections are served. For tests.
    #[doc(hidden)]
    pub fn shuffle_connections(&self) {
        self.shuffle_first(usize::MAX);
    }

    /// As [`Self::shuffle_connections`], but moves only the first `count` connections in the order of their slots.
    #[doc(hidden)]
    pub fn shuffle_first(&self, count: usize) {
        let workers = self.shared.workers();
        for (n, key) in self.shared.slots.all_alive().into_iter().take(count).enumerate() {
            let home = self.shared.slots.home(key);
            self.move_connection(key, (home + 1 + n % workers.max(2).saturating_sub(1)) % workers);
        }
    }

    fn move_connection(&self, key: ConnKey, to: usize) {
        self.shared.post(self.shared.slots.home(key), Message::Move(key, to));
    }

    /// Starts the workers with the indices `present` to `wanted - 1`. They get no connections before [`Shared::set_workers`]
    /// counts them.
    fn hire(&self, present: usize, wanted: usize) -> Result<(), Error> {
        for index in present..wanted {
            self.start_worker(index, Vec::new()).inspect_err(|_| self.dismiss(present, index))?;
        }
        Ok(())
    }

    /// Makes the workers with the indices `wanted` to `present - 1` give their connections away and end, each after its last
    /// operation. Does not wait for the workers: one that hangs ends when it runs again.
    fn dismiss(&self, wanted: usize, present: usize) {
        for index in wanted..present {
            self.shared.post(index, Message::Leave);
        }
    }

    /// Puts a new configuration in force, and reads certificates again if `fresh`; returns the errors of making removed
    /// volumes durable. On an error nothing has changed.
    fn switch(&self, registry: &mut Registry, config: &Config, fresh: bool) -> Result<Vec<Error>, Error> {
        let (before, same) = (self.shared.workers(), registry.config.server.workers == config.server.workers);
        let workers = if same { before } else { count_of(config.server.workers) };
        self.hire(before, workers)?;
        let present = self.shared.snapshot();
        registry.notes.clear();
        let mut next = registry.plan(&present, config, fresh).inspect_err(|_| self.dismiss(before, workers))?;
        let same_tls = present.tls.as_ref().map(Arc::as_ptr) == next.tls.as_ref().map(Arc::as_ptr);
        if same_tls && *registry.config == *config {
            // The workers need not look through all of their connections.
            return Ok(Vec::new());
        }
        let gone: Vec<_> =
            present.volumes.iter().flatten().filter(|volume| next.volume(volume.id).is_none()).cloned().collect();
        let lack = lacks_priority(config).filter(|_| lacks_priority(&registry.config).is_none());
        if prompt::lack(&registry.config).is_none()
            && let Some(lack) = prompt::lack(config)
        {
            tracing::info!("{lack}");
        }
        registry.apply(&present, &mut next);
        drop(present);
        self.shared.publish(next);
        self.keep_requests(config);
        if let Some(lack) = lack {
            tracing::warn!("{lack}");
            registry.notes.push(lack);
        }
        if workers != before {
            let moves = self.shared.set_workers(workers);
            tracing::info!(
                before,
                workers,
                moves,
                "the number of workers has changed; `moves` connections move to another worker"
            );
            self.dismiss(workers, before);
        }
        Ok(registry::settle(gone, config.server.drain_timeout.into(), registry::retire))
    }

    /// Stops gracefully: accepts no more connections or requests, answers the requests received, and makes all volumes
    /// durable. Answering takes at most `drain_timeout` plus 2 s; making volumes durable takes at most the longer of
    /// `drain_timeout` and 2 s.
    ///
    /// # Errors
    /// If requests were still in flight or answers still being sent after `drain_timeout`, or a sync failed. Data may be lost
    /// unless only answers are missing.
    pub fn shutdown(&self) -> Result<(), Error> {
        let patience: StdDuration = self.config().server.drain_timeout.into();
        let stopped = self.stop(patience);
        let volumes: Vec<_> = self.shared.snapshot().volumes.iter().flatten().cloned().collect();
        let mut errors = registry::settle(volumes, patience.max(STOP_PATIENCE), |volume| registry::finish(&volume));
        errors.extend(stopped.err());
        Error::unless_empty(errors)
    }

    /// Stops at once, without answering requests in flight.
    pub fn abort(&self) {
        let _ = self.stop(StdDuration::ZERO);
    }

    fn stop(&self, patience: StdDuration) -> Result<(), Error> {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.shared.draining.store(true, Ordering::Release);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.shared.tell_all(|| Message::Drain);
        let mut clean = self.running.wait_for_none(patience);
        let mut is_answered = false;
        if !clean {
            self.shared.tell_all(|| Message::Stop);
            let ended = self.running.wait_for_none(STOP_PATIENCE);
            is_answered = ended && !self.shared.left_in_flight.load(Ordering::Acquire);
            // Workers that ended of themselves after `patience` have left nothing.
            clean = ended && (patience.is_zero() || is_answered && !self.shared.left_unsent.load(Ordering::Acquire));
        }
        self.shared.recorder.close(STOP_PATIENCE);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if thread.is_finished() && thread.join().is_err() {
                return Err(Error::Refused(
                    "a worker ended with a panic, which the log has; report it as a bug".into(),
                ));
            }
        }
        if clean {
            Ok(())
        } else if is_answered {
            Err(Error::Refused("clients had not taken all of their answers when server.drain_timeout was over, and may lack the rest; raise server.drain_timeout, or look for clients that read slowly: the log names one for each worker".into()))
        } else {
            Err(Error::Refused("requests were still in flight when server.drain_timeout was over, and their clients got no answer; raise server.drain_timeout, or see the kernel's log if a device hangs".into()))
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.abort();
    }
}

fn unknown(kind: &'static str, name: &str) -> Error {
    Error::Unknown { kind, name: name.to_owned() }
}

fn count_of(workers: Workers) -> usize {
    match workers {
        Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from).min(Workers::MAX as usize),
        Workers::Count(count) => (count as usize).clamp(1, Workers::MAX as usize),
    }
}

fn choose_engine(wanted: Engine, faults: &Faults) -> Result<Engine, Error> {
    match (wanted, uring::probe(faults)) {
        (Engine::Epoll, _) => Ok(Engine::Epoll),
        (_, Ok(())) => Ok(Engine::IoUring),
        (Engine::IoUring, Err(error)) => Err(Error::NoIoUring(error)),
        (Engine::Auto, Err(error)) => {
            tracing::warn!(%error, "the kernel refuses io_uring; workers serve files by threads instead, which costs more CPU per request. Allow it (sysctl kernel.io_uring_disabled=0, or the container's profile)");
            Ok(Engine::Epoll)
        }
    }
}

/// A warning if `config` has reservations and volumes on files or devices, and the process lacks the privilege to raise the
/// I/O priority of reserved requests; otherwise `None`.
fn lacks_priority(config: &Config) -> Option<String> {
    let reserves = |tenant: &Tenant| {
        let of_pools = || tenant.pools.values().any(|own| own.reservation.is_some());
        tenant.reservation != Rates::default() || of_pools()
    };
    let on_disks =
        || config.volumes.values().any(|volume| matches!(volume.backend, VolumeBackend::File | VolumeBackend::Block));
    if !(config.tenants.values().any(reserves) && on_disks()) {
        return None;
    }
    let error = priority::probe().err()?;
    Some(format!(
        "no right to raise the I/O priority of requests for which a reservation is owed (it takes CAP_SYS_NICE, and \
         the call ioprio_set): on a disk with the scheduler mq-deadline or bfq, sequential requests of others may delay them by up to 500 ms; see docs/reference/config.md ({error})"
    ))
}

/// Number of file descriptors that a server needs in addition to those of workers, volumes and clients: standard streams,
/// listening sockets, the HTTP thread with its clients, and the files of new volumes during a change.
const OWN_DESCRIPTORS: u64 = 32;
/// Number of file descriptors of a worker: two epoll sets, an eventfd and a ring.
const DESCRIPTORS_OF_WORKER: u64 = 4;
/// Number of file descriptors of a volume: its file through the page cache and for direct I/O. A volume in memory has none.
const DESCRIPTORS_OF_VOLUME: u64 = 2;
/// Smallest number of clients for which there must be file descriptors; otherwise the server does not start.
const LEAST_CLIENTS: u64 = 8;

/// Raises the process's limit of open files to the maximum that the system allows, and checks that the limit is sufficient:
/// each connection needs a descriptor. Returns the largest number of connections.
fn check_descriptors(config: &Config) -> Result<u32, Error> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.map_or(Ok(config.server.max_connections), |limit| connections_of(limit, config))
}

/// The largest number of connections under a limit of open files, of which each client and each tenant may have a part.
fn connections_of(limit: u64, config: &Config) -> Result<u32, Error> {
    let workers = count_of(config.server.workers) as u64;
    let in_memory = |volume: &&VolumeConfig| matches!(volume.backend, VolumeBackend::Memory | VolumeBackend::Emulate);
    let volumes = config.volumes.values().filter(|volume| !in_memory(volume)).count() as u64;
    let own = OWN_DESCRIPTORS + workers * DESCRIPTORS_OF_WORKER + volumes * DESCRIPTORS_OF_VOLUME;
    const CURE: &str = "Raise it (LimitNOFILE= of the service, ulimit -n)";
    if limit < own + LEAST_CLIENTS {
        return Err(Error::Refused(format!(
            "the limit of open files is {limit}, and the server needs at least {}: {own} for itself and {LEAST_CLIENTS} for clients. {CURE}",
            own + LEAST_CLIENTS
        )));
    }
    let clients = limit - own;
    if clients < config.server.max_connections.into() {
        tracing::warn!(
            "the limit of open files, {limit}, allows {}, of which each client and each tenant may have a part; server.max_connections allows {}, and further clients wait until others disconnect. {CURE}, or lower max_connections",
            counted(clients, "client"),
            config.server.max_connections
        );
    }
    Ok(u32::try_from(clients).unwrap_or(u32::MAX).min(config.server.max_connections))
}

/// Checks that the limits of address space (`RLIMIT_AS`) and of data (`RLIMIT_DATA`) are sufficient. With less, an allocation
/// may fail in the middle of the start, which ends the program without a reason. Volumes in memory and buffers come on top:
/// without room for them, volumes cannot be created and requests fail.
fn check_memory(config: &Config) -> Result<(), Error> {
    use rustix::process::{Resource, getrlimit};
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = |field: usize| statm.split(' ').nth(field).and_then(|pages| pages.parse().ok()).unwrap_or(0_u64);
    let bytes = |field: usize| pages(field) * rustix::param::page_size() as u64;
    let (code, data, workers) = (bytes(3), bytes(5), count_of(config.server.workers) as u64);
    // Beside what is there at the start: threads with their stacks of 2 MiB, libraries and heap; then for each worker, with its
    // buffers, its ring, and the ring in which it leaves records of requests. The size of the whole would include what the
    // allocator has only reserved, as long as there was room.
    for (resource, what, cure, least) in [
        (
            Resource::As,
            "address space",
            "LimitAS= of the service, ulimit -v",
            code + data + (24 << 20) + workers * ((4 << 20) + RING_BYTES),
        ),
        (
            Resource::Data,
            "data",
            "LimitDATA= of the service, ulimit -d",
            data + (12 << 20) + workers * ((3 << 20) + RING_BYTES),
        ),
    ] {
        if let Some(limit) = getrlimit(resource).current.filter(|&limit| limit < least) {
            return Err(Error::Refused(format!(
                "the limit of {what} is {} MiB, and the server needs at least {} MiB. Raise it ({cure})",
                limit >> 20,
                least.div_ceil(1 << 20)
            )));
        }
    }
    Ok(())
}

mod parts;
mod recording;
#[cfg(test)]
mod tests;
