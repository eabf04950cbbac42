//! Pools, volumes and tenants as configured, and how they change while the server runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use evenkeel_control::pool::Pool as PoolState;
use evenkeel_policy::Config;
use evenkeel_policy::config::{self, Cache};

use crate::backend::Backend;
use crate::backend::emulate::Device;
use crate::backend::file::{File, LOCK_PATIENCE, Open};
use crate::backend::memory::Memory;
use crate::backend::rbd::Rbd;
use crate::backend::remote::Remote;
use crate::clock;
use crate::error::Error;
use crate::settle::{side_by_side, within};
use crate::shared::{SharedPool, Snapshot};
use crate::tls::Acceptor;
use crate::volume::Volume;

/// How long a removed volume may take to let go of its file before that is reported.
const RETIRE_PATIENCE: StdDuration = StdDuration::from_secs(5);

/// How long an image may take to be closed after its data is safe.
const CLOSE_PATIENCE: StdDuration = StdDuration::from_secs(2);

/// Builds the next snapshot from the present one; nothing is visible to workers until it is published.
pub(crate) struct Registry {
    /// What is being served.
    pub(crate) config: Arc<Config>,
    /// How long a device may take to open or grow a volume; for ever if `None`, as before anybody is served.
    pub(crate) patience: Option<StdDuration>,
    seed: u64,
}

impl Registry {
    /// Nothing yet; `seed` feeds exploration and modelled jitter.
    pub(crate) fn new(seed: u64) -> Self {
        let empty = Config { volumes: Default::default(), ..Config::default() };
        Self { config: Arc::new(empty), patience: None, seed }
    }

    /// The snapshot for `config`, starting from `present`; `fresh`: reads certificates again even if they are in the same
    /// files. Everything that can fail happens here, and nothing that is being served changes.
    pub(crate) fn plan(&self, present: &Snapshot, config: &Config, fresh: bool) -> Result<Snapshot, Error> {
        let mut next = Snapshot {
            config: Arc::new(config.clone()),
            volumes: present.volumes.clone(),
            by_name: HashMap::new(),
            pools: present.pools.clone(),
            tenants: present.tenants.clone(),
            devices: present.devices.clone(),
            tls: self.acceptor(present, config, fresh)?,
        };
        for (name, pool) in &config.pools {
            let known = next.pools.iter().position(|p| p.name == *name);
            let index = known.unwrap_or(next.pools.len());
            let seed = self.seed.wrapping_add(index as u64);
            if known.is_none() {
                next.pools.push(Arc::new(SharedPool {
                    name: name.clone(),
                    state: Mutex::new(PoolState::new(config.control(pool), clock::now(), seed)),
                    overdue_after_ns: AtomicU64::new(pool.stall_report_after.0.as_nanos()),
                }));
                next.tenants.push(HashMap::new());
                next.devices.push(None);
            }
            let device = &mut next.devices[index];
            match &pool.emulate {
                Some(emulate) if device.is_none() => *device = Some(Arc::new(start_device(name, emulate, seed)?)),
                Some(_) => {}
                None => *device = None,
            }
        }
        for (pool, device) in next.pools.iter().zip(&mut next.devices) {
            if !config.pools.contains_key(&pool.name) {
                *device = None;
            }
        }
        for volume in next.volumes.iter_mut() {
            let keep = volume.as_ref().is_some_and(|v| config.volumes.contains_key(&v.name));
            if !keep {
                *volume = None;
            }
        }
        for (name, volume) in &config.volumes {
            let served = next.volumes.iter().flatten().find(|v| v.name == *name).map(|v| v.id);
            let id = match served {
                Some(id) => id,
                None => {
                    let id = next.volumes.len() as u32;
                    let pool = next.pools.iter().position(|p| p.name == volume.pool);
                    let pool = pool.ok_or_else(|| Error::Unknown { kind: "pool", name: volume.pool.clone() })?;
                    let (config, device) = (Arc::clone(&next.config), next.devices[pool].clone());
                    let (who, name, volume) = (name.clone(), name.clone(), volume.clone());
                    // Only a server that starts waits: the one before it may have been killed a moment ago.
                    let patience = if self.patience.is_none() { LOCK_PATIENCE } else { StdDuration::ZERO };
                    let open = move || open_volume(&config, id, &name, &volume, pool, device, patience);
                    let opened = within(self.patience, &who, open)?;
                    next.volumes.push(Some(Arc::new(opened)));
                    id
                }
            };
            next.by_name.insert(name.clone(), id);
        }
        self.lengthen(&next)?;
        Ok(next)
    }

    fn acceptor(&self, present: &Snapshot, config: &Config, fresh: bool) -> Result<Option<Arc<Acceptor>>, Error> {
        let known = present.tls.as_ref();
        if let Some(known) = known.filter(|_| !fresh && self.config.server.tls == config.server.tls) {
            return Ok(Some(Arc::clone(known)));
        }
        // Connections are judged anew by what is not the same.
        let newest =
            |read: Acceptor| known.filter(|known| known.is_same(&read)).map_or_else(|| Arc::new(read), Arc::clone);
        Ok(Acceptor::load(&config.server.terms())?.map(newest))
    }

    /// Lengthens the files of volumes that are to be longer. Clients see nothing of it before [`Self::apply`].
    fn lengthen(&self, next: &Snapshot) -> Result<(), Error> {
        let mut lengthened: Vec<(Arc<Volume>, u64)> = Vec::new();
        for (served, size) in growing(next) {
            let volume = Arc::clone(served);
            match within(self.patience, &served.name, move || volume.lengthen(size)) {
                Ok(before) => lengthened.push((Arc::clone(served), before)),
                Err(error) => {
                    // A file longer than configured could not be served the next time.
                    lengthened.iter().for_each(|(volume, before)| volume.shorten(*before));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Brings pools and tenants in line with the new configuration. Cannot fail; call right before publishing `next`.
    pub(crate) fn apply(&mut self, next: &mut Snapshot) {
        let config = Arc::clone(&next.config);
        for (served, size) in growing(next) {
            served.set_size(size);
        }
        let now = clock::now();
        for (index, shared) in next.pools.iter().enumerate() {
            let mut state = shared.lock();
            // A pool without configuration, which was removed, keeps its tenants in case it comes back.
            if let Some(pool) = config.pools.get(&shared.name)
                && self.config.pools.get(&shared.name) != Some(pool)
            {
                state.reconfigure(now, config.control(pool));
                shared.overdue_after_ns.store(pool.stall_report_after.0.as_nanos(), Ordering::Relaxed);
                if let (Some(device), Some(Ok(params))) =
                    (&next.devices[index], pool.emulate.as_ref().map(config::Emulate::params))
                {
                    device.set_params(params);
                }
            }
            let tenants = &mut next.tenants[index];
            for (name, tenant) in &config.tenants {
                match tenants.get(name.as_str()) {
                    None => {
                        let id = state.join(now, tenant.into());
                        state.set_standing(id, tenant.standing.into());
                        state.set_promises(now, id, &tenant.promise.goals());
                        state.set_response_goal(id, tenant.response_goal());
                        tenants.insert(Arc::from(name.as_str()), id);
                    }
                    Some(&id) if self.config.tenants.get(name) != Some(tenant) => {
                        state.set_qos(now, id, tenant.into());
                        state.set_standing(id, tenant.standing.into());
                        state.set_promises(now, id, &tenant.promise.goals());
                        state.set_response_goal(id, tenant.response_goal());
                    }
                    Some(_) => {}
                }
            }
            let default = tenants.get(config::DEFAULT_TENANT).copied();
            tenants.retain(|name, id| {
                if config.tenants.contains_key(&**name) {
                    return true;
                }
                // What the departed tenant had queued is served under the default tenant's promise.
                for request in state.leave(*id) {
                    if let Some(default) = default {
                        let _ = state.submit(now, default, request.work, request);
                    }
                }
                false
            });
        }
        self.config = config;
    }
}

/// The volumes that are to become longer, and how long.
fn growing(next: &Snapshot) -> impl Iterator<Item = (&Arc<Volume>, u64)> {
    let growing = |volume: &Arc<Volume>| {
        let wanted = next.config.volumes.get(&volume.name)?.size?.0;
        (wanted > volume.size()).then_some(wanted)
    };
    next.volumes.iter().flatten().filter_map(move |volume| Some((volume, growing(volume)?)))
}

fn start_device(pool: &str, emulate: &config::Emulate, seed: u64) -> Result<Device, Error> {
    let params = emulate.params().map_err(|why| Error::Refused(format!("pool \"{pool}\": {why}")))?;
    Device::start(params, seed).map_err(|cause| Error::System { action: "start an emulated device", cause })
}

fn open_volume(
    config: &Config,
    id: u32,
    name: &str,
    volume: &config::Volume,
    pool: usize,
    device: Option<Arc<Device>>,
    patience: StdDuration,
) -> Result<Volume, Error> {
    let read_only = volume.read_only || config.server.read_only;
    let wanted = volume.size.map(|size| size.0);
    let memory = || {
        let size = wanted.ok_or_else(|| Error::Refused(format!("volume \"{name}\" needs a size")))?;
        let memory = Memory::new(size).map_err(|cause| Error::System { action: "map memory for a volume", cause })?;
        Ok((memory, size))
    };
    let (backend, size) = match volume.backend {
        config::Backend::Memory => {
            let (memory, size) = memory()?;
            (Backend::Memory(memory), size)
        }
        config::Backend::Emulate => {
            let device = device.ok_or_else(|| {
                Error::Refused(format!(
                    "volume \"{name}\" has the emulate back end, but pool \"{}\" has no emulate table",
                    volume.pool
                ))
            })?;
            let (memory, size) = memory()?;
            (Backend::Emulate(memory, device), size)
        }
        config::Backend::Nbd => {
            let remote = Remote::open(name, volume, read_only)?;
            let promised = remote.promised();
            let (read_only, size) = (promised.is_read_only(), promised.size);
            return Ok(Volume::new(id, name, pool, read_only, Backend::Remote(remote), size));
        }
        config::Backend::Rbd => {
            let read_only = read_only || volume.rbd.as_ref().is_some_and(|image| image.snapshot.is_some());
            let (rbd, size) = Rbd::open(name, volume, read_only)?;
            return Ok(Volume::new(id, name, pool, read_only, Backend::Rbd(rbd), size));
        }
        config::Backend::File | config::Backend::Block => {
            let block = volume.backend == config::Backend::Block;
            let path = config.path_of(name, volume);
            let path = path.ok_or_else(|| Error::Refused(format!("volume \"{name}\" needs a path")))?;
            let how = Open {
                create: if block { None } else { wanted },
                read_only,
                direct: volume.cache == Cache::Direct,
                block,
                patience,
            };
            let (file, actual) = File::open(&path, &how)?;
            let size = fit(name, &file, actual, wanted, block, read_only)?;
            (Backend::File(file), size)
        }
    };
    Ok(Volume::new(id, name, pool, read_only, backend, size))
}

/// The size to serve: what was asked for, growing the file if it is shorter, never cutting data off.
fn fit(name: &str, file: &File, actual: u64, wanted: Option<u64>, block: bool, read_only: bool) -> Result<u64, Error> {
    let refuse = |why: String| Err(Error::Refused(format!("volume \"{name}\" ({}): {why}", file.path().display())));
    match wanted {
        None if actual == 0 => refuse("it is empty and no size is given; set size".into()),
        None => Ok(actual),
        Some(wanted) if wanted < actual && !block => refuse(format!(
            "it has {actual} bytes, but size says {wanted}; serving less would hide data. Leave size out, or set it to {actual}"
        )),
        Some(wanted) if wanted > actual && (block || read_only) => {
            refuse(format!("it has only {actual} bytes, but size says {wanted}"))
        }
        Some(wanted) => {
            if wanted > actual {
                let grown = file.grow(wanted);
                grown.map_err(|cause| Error::Volume { path: file.path().to_owned(), action: "grow", cause })?;
            }
            Ok(wanted)
        }
    }
}

/// Does something to volumes, to all of them at the same time and within `patience`; what went wrong. Where there was
/// no answer in time, the file stays locked until there is one.
pub(crate) fn settle(
    volumes: Vec<Arc<Volume>>,
    patience: StdDuration,
    work: impl Fn(Arc<Volume>) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Error> {
    side_by_side(volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(), patience, work)
}

/// Waits a while until nobody but the caller holds the volume, then makes its data durable and lets it go.
pub(crate) fn retire(volume: Arc<Volume>) -> Result<(), Error> {
    let until = std::time::Instant::now() + RETIRE_PATIENCE;
    while Arc::strong_count(&volume) > 1 && std::time::Instant::now() < until {
        std::thread::sleep(StdDuration::from_millis(2));
    }
    if Arc::strong_count(&volume) > 1 {
        tracing::warn!(
            volume = volume.name,
            "removed, but operations are still inside its back end; its file stays locked until they end"
        );
    }
    finish(&volume)
}

/// Makes a volume's data durable, and lets go of what others wait for; the volume is of no use any more.
pub(crate) fn finish(volume: &Volume) -> Result<(), Error> {
    sync(volume)?;
    if let Backend::Rbd(rbd) = &volume.backend
        && !rbd.close(CLOSE_PATIENCE)
    {
        tracing::warn!(
            volume = volume.name,
            image = rbd.name(),
            "the image could not be closed while its cluster does not answer; its lock is free when the cluster has forgotten this client, usually within 30 s"
        );
    }
    Ok(())
}

/// Makes a volume's data durable.
pub(crate) fn sync(volume: &Volume) -> Result<(), Error> {
    if volume.read_only {
        return Ok(());
    }
    let file = match &volume.backend {
        Backend::File(file) => file,
        Backend::Remote(remote) => {
            let fail = |why| Error::Remote { volume: volume.name.clone(), uri: remote.uri().to_owned(), why };
            return remote.sync().map_err(fail);
        }
        Backend::Rbd(rbd) => {
            let fail = |why| Error::Rbd { volume: volume.name.clone(), image: rbd.name().to_owned(), why };
            return rbd.sync().map_err(fail);
        }
        Backend::Memory(_) | Backend::Emulate(..) => return Ok(()),
    };
    let synced = volume.sync(volume.ask_for_sync());
    synced.map_err(|errno| Error::Volume { path: file.path().to_owned(), action: "sync", cause: errno.into() })
}
