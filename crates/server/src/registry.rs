//! Pools, volumes and tenants as configured, and how they change while the server runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

use evenkeel_control::pool::{Config as PoolConfig, Pool as PoolState};
use evenkeel_policy::Config;
use evenkeel_policy::config::{self, Cache};

use crate::backend::Backend;
use crate::backend::emulate::Device;
use crate::backend::file::{File, Open};
use crate::backend::memory::Memory;
use crate::clock;
use crate::error::Error;
use crate::shared::{SharedPool, Snapshot};
use crate::volume::Volume;

/// Builds the next snapshot from the present one; nothing is visible to workers until it is published.
pub(crate) struct Registry {
    /// What is being served.
    pub(crate) config: Arc<Config>,
    seed: u64,
}

impl Registry {
    /// Nothing yet; `seed` feeds exploration and modelled jitter.
    pub(crate) fn new(seed: u64) -> Self {
        let empty = Config { volumes: Default::default(), ..Config::default() };
        Self { config: Arc::new(empty), seed }
    }

    /// The snapshot for `config`, starting from `present`. Everything that can fail happens here,
    /// and nothing that is being served changes.
    pub(crate) fn plan(&self, present: &Snapshot, config: &Config) -> Result<Snapshot, Error> {
        let mut next = Snapshot {
            config: Arc::new(config.clone()),
            volumes: present.volumes.clone(),
            by_name: HashMap::new(),
            pools: present.pools.clone(),
            tenants: present.tenants.clone(),
        };
        for (name, pool) in &config.pools {
            match next.pools.iter().find(|p| p.name == *name) {
                // One that was removed and comes back.
                Some(known) if known.device.is_some() != pool.emulate.is_some() => {
                    return Err(Error::Refused(format!(
                        "pool \"{name}\" was served before with{} an emulated device; give it another name, or restart",
                        if pool.emulate.is_some() { "out" } else { "" }
                    )));
                }
                Some(_) => {}
                None => {
                    let shared = self.open_pool(name, pool, next.pools.len() as u64)?;
                    next.pools.push(Arc::new(shared));
                    next.tenants.push(HashMap::new());
                }
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
                    let opened = open_volume(config, id, name, volume, &next.pools)?;
                    next.volumes.push(Some(Arc::new(opened)));
                    id
                }
            };
            next.by_name.insert(name.clone(), id);
        }
        Ok(next)
    }

    fn open_pool(&self, name: &str, pool: &config::Pool, index: u64) -> Result<SharedPool, Error> {
        let seed = self.seed.wrapping_add(index);
        let device = match &pool.emulate {
            None => None,
            Some(emulate) => {
                let params = emulate.params().map_err(|why| Error::Refused(format!("pool \"{name}\": {why}")))?;
                let started = Device::start(params, seed);
                Some(Arc::new(started.map_err(|cause| Error::System { action: "start an emulated device", cause })?))
            }
        };
        Ok(SharedPool {
            name: name.to_owned(),
            state: Mutex::new(PoolState::new(PoolConfig::from(pool), clock::now(), seed)),
            device,
            overdue_after_ns: AtomicU64::new(pool.stall_report_after.0.as_nanos()),
        })
    }

    /// Brings pools and tenants in line with the new configuration. Cannot fail; call right before publishing `next`.
    pub(crate) fn apply(&mut self, next: &mut Snapshot) {
        let config = Arc::clone(&next.config);
        // First, because it may take long: between a tenant's departure and the publication workers run in circles.
        for (name, volume) in &config.volumes {
            let served = next.by_name.get(name).and_then(|&id| next.volume(id));
            if let (Some(served), Some(size)) = (served, volume.size)
                && size.0 > served.size()
                && let Err(error) = served.grow(size.0)
            {
                tracing::error!(volume = name, %error, "cannot grow a volume");
            }
        }
        let now = clock::now();
        for (index, shared) in next.pools.iter().enumerate() {
            let mut state = shared.lock();
            // A pool without configuration, which was removed, keeps its tenants in case it comes back.
            if let Some(pool) = config.pools.get(&shared.name)
                && self.config.pools.get(&shared.name) != Some(pool)
            {
                state.reconfigure(now, PoolConfig::from(pool));
                shared.overdue_after_ns.store(pool.stall_report_after.0.as_nanos(), Ordering::Relaxed);
                if let (Some(device), Some(Ok(params))) =
                    (&shared.device, pool.emulate.as_ref().map(config::Emulate::params))
                {
                    device.set_params(params);
                }
            }
            let tenants = &mut next.tenants[index];
            for (name, tenant) in &config.tenants {
                match tenants.get(name.as_str()) {
                    None => {
                        let id = state.join(now, tenant.into());
                        tenants.insert(Arc::from(name.as_str()), id);
                    }
                    Some(&id) if self.config.tenants.get(name) != Some(tenant) => state.set_qos(now, id, tenant.into()),
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
                        let _ = state.submit(now, default, request.work(), request);
                    }
                }
                false
            });
        }
        self.config = config;
    }
}

fn open_volume(
    config: &Config,
    id: u32,
    name: &str,
    volume: &config::Volume,
    pools: &[Arc<SharedPool>],
) -> Result<Volume, Error> {
    let pool = pools.iter().position(|p| p.name == volume.pool);
    let pool = pool.ok_or_else(|| Error::Unknown { kind: "pool", name: volume.pool.clone() })?;
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
            let device = pools[pool].device.clone().ok_or_else(|| {
                Error::Refused(format!(
                    "volume \"{name}\" has the emulate back end, but pool \"{}\" has no emulate table",
                    volume.pool
                ))
            })?;
            let (memory, size) = memory()?;
            (Backend::Emulate(memory, device), size)
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

/// Waits until nobody but the caller holds the volume, then makes its data durable and lets it go.
pub(crate) fn retire(volume: Arc<Volume>, patience: StdDuration) -> Result<(), Error> {
    let until = std::time::Instant::now() + patience;
    while Arc::strong_count(&volume) > 1 && std::time::Instant::now() < until {
        std::thread::sleep(StdDuration::from_millis(2));
    }
    if Arc::strong_count(&volume) > 1 {
        tracing::warn!(
            volume = volume.name,
            "removed, but operations are still inside its back end; its file stays locked until they end"
        );
    }
    sync(&volume)
}

/// Makes a volume's data durable.
pub(crate) fn sync(volume: &Volume) -> Result<(), Error> {
    let Backend::File(file) = &volume.backend else { return Ok(()) };
    if volume.read_only {
        return Ok(());
    }
    let synced = volume.sync();
    synced.map_err(|errno| Error::Volume { path: file.path().to_owned(), action: "sync", cause: errno.into() })
}
