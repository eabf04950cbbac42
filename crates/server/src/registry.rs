//! The registry of pools, volumes and tenants: turns a configuration into a snapshot, at the start and at every change.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::pool::Pool as PoolState;
use evenkeel_control::units::{Kind, Work};
use evenkeel_model::store::StoreParams;
use evenkeel_policy::config::{self, Cache};
use evenkeel_policy::{Config, Finding, Severity};

use crate::adopted::{self, Adopted, Name};
use crate::backend::Backend;
use crate::backend::contents::{self, Verdict};
use crate::backend::emulate::Device;
use crate::backend::file::{File, LOCK_PATIENCE, Open, unfit};
use crate::backend::memory::Memory;
use crate::backend::rbd::Rbd;
use crate::backend::remote::Remote;
use crate::clock;
use crate::error::Error;
use crate::faults::Faults;
use crate::parts;
use crate::places::{OwnFiles, Target, foreign_size, gone, resolved, shortage};
use crate::ram::{self, Room};
use crate::settle::{side_by_side, within};
use crate::snapshot::{SharedPool, Snapshot, heir};
use crate::surroundings;
use crate::transport::tls::Acceptor;
use crate::volume::{MoreRoom, Volume};

/// Time for which the removal of a volume waits for operations in flight before it reports that the file stays locked.
const RETIRE_PATIENCE: StdDuration = StdDuration::from_secs(5);

/// Longest wait for an RBD image to be closed after its data is durable.
const CLOSE_PATIENCE: StdDuration = StdDuration::from_secs(2);

/// Builds the next snapshot from the present one. Workers see nothing of it until it is published.
pub(crate) struct Registry {
    /// The configuration in force.
    pub(crate) config: Arc<Config>,
    /// Longest time that a device may take to open or grow a volume; `None`: without a limit, as at the start, before any client
    /// is served.
    pub(crate) patience: Option<StdDuration>,
    /// Notes and warnings for the operator that the newest change has caused, mostly on files that it opened.
    pub(crate) notes: Vec<String>,
    /// Files that the program itself uses, in which no volume may be.
    own_files: Vec<PathBuf>,
    /// The record of volumes' files; `None` until the first volume in a file was opened.
    adopted: Option<Arc<Mutex<Adopted>>>,
    /// The memory that all volumes in memory may take together.
    pub(crate) room: Room,
    seed: u64,
    faults: Faults,
}

impl Registry {
    /// A registry without volumes. `seed`: of the random numbers for exploration and modelled jitter; `own_files`: files that
    /// the program itself uses; `faults`: failures that a test injects.
    pub(crate) fn new(seed: u64, own_files: Vec<PathBuf>, faults: Faults) -> Self {
        let empty = Config { volumes: Default::default(), ..Config::default() };
        let (config, room) = (Arc::new(empty), Room::new(ram::for_volumes()));
        Self { config, patience: None, notes: Vec::new(), own_files, adopted: None, room, seed, faults }
    }

    /// The snapshot for `config`, based on `present`. Everything that can fail happens here, and nothing that is being served
    /// changes. `fresh`: true at the start and at a reload, which read certificates again even from the same files; false for
    /// a command, which changes one item.
    pub(crate) fn plan(&mut self, present: &Snapshot, config: &Config, fresh: bool) -> Result<Snapshot, Error> {
        let mut next = Snapshot {
            config: Arc::new(config.clone()),
            volumes: present.volumes.clone(),
            settings: Vec::new(),
            owners: Vec::new(),
            clients: config.clients(),
            by_name: HashMap::new(),
            pools: present.pools.clone(),
            tenants: present.tenants.clone(),
            devices: present.devices.clone(),
            tls: self.acceptor(present, config, fresh)?,
        };
        // Looked up once for each of thousands of volumes.
        let mut places: HashMap<String, usize> = next.pools.iter().map(|pool| pool.name.clone()).zip(0..).collect();
        for (name, pool) in &config.pools {
            let known = places.get(name).copied();
            let index = known.unwrap_or(next.pools.len());
            let seed = self.seed.wrapping_add(index as u64);
            if known.is_none() {
                places.insert(name.clone(), index);
                let state = PoolState::new(config.control(pool), clock::now(), seed);
                let overdue_after_ns = pool.tuning.stall_report_after.as_nanos();
                next.pools.push(Arc::new(SharedPool::new(name.clone(), state, overdue_after_ns)));
                next.tenants.push(HashMap::new());
                next.devices.push(None);
            }
            let device = &mut next.devices[index];
            match pool.emulate {
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
        let files = self.files(&next, fresh)?;
        let opened = self.open(present, &mut next, &places, files.as_ref());
        // What was created is known as such although something else failed; what was not may become another program's.
        if let Some(files) = files {
            within(self.patience, "data_dir", move || {
                let mut adopted = files.adopted();
                adopted.settle();
                adopted.save()
            })?;
        }
        opened?;
        self.lengthen(&next)?;
        self.notes.extend(self.room.lack(&self.config, config));
        Ok(next)
    }

    /// Gathers facts about files before volumes are opened in them; `None` if no new volume is in a file. Adds files that are
    /// to be created to the record. `fresh`: refuses to create a file that existed before, according to the record.
    fn files(&mut self, next: &Snapshot, fresh: bool) -> Result<Option<Files>, Error> {
        let config = &next.config;
        let served: HashSet<&str> = next.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
        let new = config.volumes.iter().filter(|(name, _)| !served.contains(name.as_str()));
        // Each with whether it is created if it does not exist.
        let creates = |volume: &config::Volume| {
            volume.backend == config::Backend::File
                && volume.size.is_some()
                && !(volume.read_only || config.server.read_only)
        };
        let new = new.filter_map(|(name, volume)| Some((name.clone(), config.path_of(name, volume)?, creates(volume))));
        let paths: Vec<(String, PathBuf, bool)> = new.collect();
        let Some((_, first, _)) = paths.first() else { return Ok(None) };
        let target = |volume: &Arc<Volume>| match &volume.backend {
            Backend::File(file) => Some((file.target(), volume.name.clone())),
            _ => None,
        };
        let taken = Arc::new(Mutex::new(next.volumes.iter().flatten().filter_map(target).collect()));
        let (config, own_files, known) = (Arc::clone(config), self.own_files.clone(), self.adopted.clone());
        let first = first.display().to_string();
        // A file system may hang; the record is not locked while another one than its own is asked.
        let files = within(self.patience, &first, move || {
            let own = Arc::new(OwnFiles::of(&config, adopted::files(&config.server.data_dir), &own_files));
            let data_dir = &config.server.data_dir;
            let adopted = match known {
                Some(adopted) => adopted,
                None => Arc::new(Mutex::new(Adopted::open(data_dir)?)),
            };
            let missing = paths.iter().filter(|(_, path, creates)| *creates && !path.exists());
            let missing: Vec<_> =
                missing.map(|(name, path, _)| (Name::of_missing(data_dir, path), name, path)).collect();
            let files = Files { own, adopted, taken };
            {
                let mut adopted = files.adopted();
                if let Some((_, name, path)) = missing.iter().find(|(known_by, ..)| fresh && adopted.had(known_by)) {
                    return Err(gone(name, path));
                }
                adopted.expect(missing.into_iter().map(|(known_by, ..)| known_by).collect());
                adopted.save()?;
            }
            Ok(files)
        })?;
        self.adopted = Some(Arc::clone(&files.adopted));
        Ok(Some(files))
    }

    /// Opens the volumes of `next` that are not in `present`. `places`: indices of pools by name.
    fn open(
        &mut self,
        present: &Snapshot,
        next: &mut Snapshot,
        places: &HashMap<String, usize>,
        files: Option<&Files>,
    ) -> Result<(), Error> {
        let config = Arc::clone(&next.config);
        for (name, volume) in &config.volumes {
            let served = present.by_name.get(name).copied();
            let id = match served.filter(|&id| next.volume(id).is_some()) {
                Some(id) => id,
                None => {
                    let id = next.volumes.len() as u32;
                    let pool = places.get(&volume.pool).copied();
                    let pool = pool.ok_or_else(|| Error::Unknown { kind: "pool", name: volume.pool.clone() })?;
                    let opening = Opening {
                        config: Arc::clone(&config),
                        id,
                        name: name.clone(),
                        volume: volume.clone(),
                        pool,
                        device: next.devices[pool].clone(),
                        files: files.cloned(),
                        room: self.room.clone(),
                        // Only a server that starts waits: the one before it may have been killed a moment ago.
                        patience: if self.patience.is_none() { LOCK_PATIENCE } else { StdDuration::ZERO },
                        faults: self.faults.at(name),
                    };
                    let (opened, notes) = within(self.patience, name, move || opening.open())?;
                    self.notes.extend(notes);
                    next.volumes.push(Some(Arc::new(opened)));
                    id
                }
            };
            next.by_name.insert(name.clone(), id);
        }
        let settings =
            |served: &Option<Arc<Volume>>| Some(Arc::new(config.volumes.get(&served.as_ref()?.name)?.clone()));
        next.settings = next.volumes.iter().map(settings).collect();
        let owners = config.owners();
        let owner = |served: &Option<Arc<Volume>>| {
            let name = &served.as_ref()?.name;
            Some(Arc::from(owners.scheduled(name, config.volumes.get(name)?)))
        };
        next.owners = next.volumes.iter().map(owner).collect();
        Ok(())
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

    /// Lengthens the volumes that the configuration makes longer, or none if one fails. Clients see the old sizes until
    /// [`Self::apply`].
    fn lengthen(&mut self, next: &Snapshot) -> Result<(), Error> {
        for volume in next.volumes.iter().flatten() {
            let (name, size) = (&volume.name, volume.size());
            if let Backend::File(file) = &volume.backend
                && let Some(wanted) = wanted_size(next, volume).filter(|wanted| *wanted < size)
            {
                return Err(Error::NotOurs {
                    volume: name.clone(),
                    path: file.path().to_owned(),
                    why: format!(
                        "it is served with {size} bytes, but volumes.{name}.size says {wanted}, which would hide data; nothing was changed"
                    ),
                    cure: format!("Leave size out, or set it to {size}"),
                });
            }
        }
        for (served, size) in growing(next) {
            if let Backend::File(file) = &served.backend
                && file.is_foreign()
                && next.config.volumes.get(&served.name).is_some_and(|volume| !volume.grow)
            {
                return Err(foreign_size(&served.name, file.path(), served.size(), size));
            }
        }
        // A file longer than configured could not be served the next time: one is lengthened only if all are.
        let mut lengthened = Vec::new();
        for (served, size) in growing(next) {
            let (room, lack) = lengthen(served, size, self.patience)?;
            lengthened.push(room);
            self.notes.extend(lack.map(|lack| lacks(&served.name, &lack)));
        }
        lengthened.into_iter().for_each(MoreRoom::keep);
        Ok(())
    }

    /// Applies the new configuration to pools and tenants. Cannot fail; to be called right before `next` is published in
    /// place of `present`.
    pub(crate) fn apply(&mut self, present: &Snapshot, next: &mut Snapshot) {
        let config = Arc::clone(&next.config);
        for (served, size) in growing(next) {
            served.set_size(size);
        }
        let now = clock::now();
        let owners = config.owners();
        for (index, shared) in next.pools.iter().enumerate() {
            let scheduled = owners.scheduled_on(&shared.name);
            let mut state = shared.lock();
            // A pool without configuration, which was removed, keeps its tenants in case it comes back.
            if let Some(pool) = config.pools.get(&shared.name)
                && self.config.pools.get(&shared.name) != Some(pool)
            {
                state.reconfigure(now, config.control(pool));
                shared.overdue_after_ns.store(pool.tuning.stall_report_after.as_nanos(), Ordering::Relaxed);
                if let (Some(device), Some(params)) = (&next.devices[index], pool.emulate) {
                    device.set_params(params);
                }
            }
            let tenants = &mut next.tenants[index];
            for (name, &tenant) in &scheduled {
                let known = tenants.get(&**name).copied();
                if known.is_some() && self.config.tenants.get(config::in_policy(name)) == Some(tenant) {
                    continue;
                }
                let there = tenant.on(&shared.name);
                let id = known.unwrap_or_else(|| state.join(now, (&there).into()));
                if known.is_some() {
                    state.set_qos(now, id, (&there).into());
                } else {
                    parts::begin(&config, &mut state, now, id, name);
                    tenants.insert(Arc::from(&**name), id);
                }
                state.set_throttle(id, there.throttle);
                state.set_guarantees(now, id, &there.guarantee.control());
                state.set_latency_target(id, there.latency_target());
            }
            let departed: Vec<_> = tenants.keys().filter(|name| !scheduled.contains_key(&***name)).cloned().collect();
            for name in departed {
                let Some(id) = tenants.remove(&name) else { continue };
                let heir = |of: Option<&Arc<Volume>>| heir(tenants, &name, &next.owners, of.map(|of| &**of));
                for request in state.leave_to(id, |request| heir(present.volume(request.volume))) {
                    // A worker that has not seen the new snapshot may still carry out a request for a volume that is
                    // removed now; one for a volume removed before is refused when it is its turn.
                    let volume = present.volume(request.volume);
                    let work = volume.map_or(Work::new(Kind::Meta, 0), |volume| request.work(volume));
                    let _ = heir(volume).map(|heir| state.submit(now, heir, work, request));
                }
            }
        }
        next.limit_volumes(now);
        self.config = Arc::clone(&next.config);
    }
}

/// Served volumes that the configuration makes longer, with their new sizes in bytes.
fn growing(next: &Snapshot) -> impl Iterator<Item = (&Arc<Volume>, u64)> {
    let growing = |volume: &Arc<Volume>| wanted_size(next, volume).filter(|wanted| *wanted > volume.size());
    next.volumes.iter().flatten().filter_map(move |volume| Some((volume, growing(volume)?)))
}

/// Lengthens a volume's file or memory to `size` bytes; also returns a warning if the file system has too little free space.
/// Gives up after `patience`.
pub(crate) fn lengthen(
    volume: &Arc<Volume>,
    size: u64,
    patience: Option<StdDuration>,
) -> Result<(MoreRoom, Option<String>), Error> {
    // Ends with the wait.
    let asker = Arc::new(());
    let (served, waits) = (Arc::clone(volume), Arc::downgrade(&asker));
    within(patience, &volume.name, move || {
        let lack = match &served.backend {
            Backend::File(file) => shortage(file.path(), size),
            _ => None,
        };
        Ok((served.lengthen(size, &waits)?, lack))
    })
}

/// The size in bytes that the configuration sets for a volume, if it sets one.
fn wanted_size(next: &Snapshot, volume: &Volume) -> Option<u64> {
    Some(next.config.volumes.get(&volume.name)?.size?.0)
}

fn start_device(pool: &str, params: StoreParams, seed: u64) -> Result<Device, Error> {
    params.validate().map_err(|why| Error::Refused(format!("pool \"{pool}\": {why}")))?;
    Device::start(params, seed).map_err(|cause| Error::System { action: "start an emulated device", cause })
}

/// Facts about files that are needed to open volumes; clones share them.
#[derive(Clone)]
struct Files {
    /// Files that the server and its program use themselves.
    own: Arc<OwnFiles>,
    /// The record of the files of present and former volumes.
    adopted: Arc<Mutex<Adopted>>,
    /// Names of the open volumes by their file or device.
    taken: Arc<Mutex<HashMap<Target, String>>>,
}

impl Files {
    fn adopted(&self) -> MutexGuard<'_, Adopted> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Target, String>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All data needed to open one volume on a thread of its own, for which the caller waits.
struct Opening {
    config: Arc<Config>,
    id: u32,
    name: String,
    volume: config::Volume,
    pool: usize,
    device: Option<Arc<Device>>,
    files: Option<Files>,
    room: Room,
    patience: StdDuration,
    faults: Faults,
}

impl Opening {
    /// Opens the volume; also returns notes for the operator about its file.
    fn open(self) -> Result<(Volume, Vec<String>), Error> {
        let (config, name, volume) = (&self.config, &self.name, &self.volume);
        let mut read_only = volume.read_only || config.server.read_only;
        let mut notes = Vec::new();
        let (backend, size) = match volume.backend {
            config::Backend::Memory => {
                let (memory, size) = self.memory()?;
                (Backend::Memory(memory), size)
            }
            config::Backend::Emulate => {
                let device = self.device.clone().ok_or_else(|| {
                    Error::Refused(format!(
                        "volume \"{name}\" has backend = \"emulate\", but pool \"{pool}\" has no table emulate; add [pools.{pool}.emulate]",
                        pool = volume.pool
                    ))
                })?;
                let (memory, size) = self.memory()?;
                (Backend::Emulate(memory, device), size)
            }
            config::Backend::Nbd => {
                let remote = Remote::open(name, volume, read_only, &self.faults)?;
                let guaranteed = remote.guaranteed();
                read_only = guaranteed.is_read_only();
                let size = guaranteed.size;
                (Backend::Remote(remote), size)
            }
            config::Backend::Rbd => {
                read_only |= volume.rbd.as_ref().is_some_and(|image| image.snapshot.is_some());
                let (rbd, size) = Rbd::open(name, volume, read_only)?;
                (Backend::Rbd(rbd), size)
            }
            config::Backend::File | config::Backend::Block => {
                let (file, size) = self.file(read_only, &mut notes)?;
                (Backend::File(file), size)
            }
        };
        Ok((Volume::new(self.id, name, self.pool, read_only, backend, size).with(self.faults), notes))
    }

    fn memory(&self) -> Result<(Memory, u64), Error> {
        let size = self.volume.size.ok_or_else(|| Error::Refused(format!("volume \"{}\" needs a size", self.name)))?;
        let fail = |cause: io::Error| {
            let name = &self.name;
            Error::Refused(format!(
                "volume \"{name}\": cannot map memory for a volume of {size}: {cause}. Choose a smaller volumes.{name}.size, or raise the limit of address space (LimitAS= of the service, ulimit -v)"
            ))
        };
        Ok((Memory::within(size.0, self.room.clone()).map_err(fail)?, size.0))
    }

    fn file(&self, read_only: bool, notes: &mut Vec<String>) -> Result<(File, u64), Error> {
        let (name, volume) = (&self.name, &self.volume);
        let block = volume.backend == config::Backend::Block;
        // Without a path there is nothing to know about it.
        let (Some(path), Some(files)) = (self.config.path_of(name, volume), &self.files) else {
            return Err(Error::Refused(format!("volume \"{name}\" needs a path")));
        };
        self.must_be_free(files, &path)?;
        let wanted = volume.size.map(|size| size.0);
        let how = Open {
            create: if block { None } else { wanted },
            read_only,
            direct: volume.cache == Cache::Direct,
            block,
            patience: self.patience,
        };
        let lack = wanted.filter(|_| !block && !read_only).and_then(|wanted| shortage(&path, wanted));
        let (mut file, actual) = File::open(&path, &how).map_err(|error| self.unopened(error))?;
        let metadata =
            file.metadata().map_err(|cause| Error::Volume { path: path.clone(), action: "examine", cause })?;
        let known_by = Name::of(&self.config.server.data_dir, &path, &metadata);
        let known = if file.is_new() { Some(true) } else { files.adopted().find(&known_by) };
        file.set_foreign(known != Some(true));
        if known.is_none() {
            notes.extend(self.examine(&file, actual)?);
        }
        let size = self.fit(&file, actual, read_only)?;
        // What is only read stays what it is, and is examined each time.
        if file.is_new() || (known.is_none() && !read_only) {
            files.adopted().remember(known_by, file.is_new());
        }
        files.taken().insert(file.target(), name.clone());
        // A file that had its length before is not news.
        if let Some(lack) = lack.filter(|_| file.is_new() || size > actual) {
            notes.push(lacks(name, &lack));
        }
        Ok((file, size))
    }

    /// Fails if `path` is one of the server's own files or holds another open volume.
    fn must_be_free(&self, files: &Files, path: &Path) -> Result<(), Error> {
        let target = std::fs::metadata(path).ok().map(|metadata| Target::of(&metadata));
        if let Some(what) = files.own.at(&resolved(path), target) {
            return Err(self.not_free(path, format!("it is {what}, which clients would destroy")));
        }
        match target.and_then(|target| files.taken().get(&target).cloned()) {
            Some(other) => {
                Err(self.not_free(path, format!("it already holds volume \"{other}\", by this or another path")))
            }
            None => Ok(()),
        }
    }

    fn not_free(&self, path: &Path, why: String) -> Error {
        let cure = "Give the volume a file or device of its own".to_owned();
        Error::NotOurs { volume: self.name.clone(), path: path.to_owned(), why, cure }
    }

    /// Examines the content of a file or device that is not in the record; returns and logs a note about content that was
    /// recognised.
    fn examine(&self, file: &File, size: u64) -> Result<Option<String>, Error> {
        let note = self.judge(file.path(), file.examine(size))?;
        if let Some(note) = &note {
            tracing::info!("{note}");
        }
        Ok(note)
    }

    /// A note about the content `found` in a file or device; an error for an image of another format, unless `format = "raw"`
    /// is set.
    fn judge(&self, path: &Path, found: io::Result<Option<(&'static str, Verdict)>>) -> Result<Option<String>, Error> {
        let name = &self.name;
        let found = found.map_err(|cause| Error::Volume { path: path.to_owned(), action: "examine", cause })?;
        let Some((what, verdict)) = found else { return Ok(None) };
        if verdict == Verdict::Refuse && self.volume.format != Some(config::Format::Raw) {
            return Err(Error::NotOurs {
                volume: name.clone(),
                path: path.to_owned(),
                why: format!(
                    "it is {what}; clients would get the bytes of the image, not of the disk in it, and could destroy it"
                ),
                cure: format!(
                    "Convert it (qemu-img convert -O raw {} NEW.img) and serve that, or say format = \"raw\" (--format raw) to serve it byte for byte",
                    path.display()
                ),
            });
        }
        Ok(Some(format!("volume {name}: {} already holds {what}; clients get this content unchanged", path.display())))
    }

    /// The size to serve, in bytes. A file shorter than configured is lengthened if the server created it or `grow` is set.
    /// No file is shortened.
    fn fit(&self, file: &File, actual: u64, read_only: bool) -> Result<u64, Error> {
        let block = self.volume.backend == config::Backend::Block;
        let size = self.size(file.path(), actual, block || read_only, file.is_foreign())?;
        if size > actual {
            let fail = |cause| Error::Volume { path: file.path().to_owned(), action: "grow", cause };
            file.grow(size).map_err(fail)?;
            // No client has written anything yet.
            file.sync().map_err(io::Error::from).inspect_err(|_| drop(file.shorten(size, actual))).map_err(fail)?;
        }
        Ok(size)
    }

    /// The size in bytes that a file or device of `actual` bytes is to have. `fixed`: it cannot be lengthened; `foreign`: the
    /// server did not create it.
    fn size(&self, path: &Path, actual: u64, fixed: bool, foreign: bool) -> Result<u64, Error> {
        let name = &self.name;
        let block = self.volume.backend == config::Backend::Block;
        let refuse = |why: String| Err(Error::Refused(format!("volume \"{name}\" ({}): {why}", path.display())));
        match self.volume.size.map(|size| size.0) {
            None if actual == 0 => refuse(format!("it is empty and has no size; set volumes.{name}.size")),
            None => Ok(actual),
            Some(wanted) if wanted < actual && !block => refuse(format!(
                "it has {actual} bytes, but volumes.{name}.size says {wanted}; serving less would hide data. Leave size out, or set it to {actual}"
            )),
            Some(wanted) if wanted > actual && fixed => {
                refuse(format!("it has only {actual} bytes and cannot grow to {wanted}; correct volumes.{name}.size"))
            }
            Some(wanted) if wanted > actual && foreign && !self.volume.grow => {
                Err(foreign_size(name, path, actual, wanted))
            }
            Some(wanted) => Ok(wanted),
        }
    }

    /// Adds the volume's name and, where it is known, the cure to an error of opening the volume's file.
    fn unopened(&self, error: Error) -> Error {
        let Error::Volume { path, action, cause } = error else { return error };
        let cause = match cause.kind() {
            ErrorKind::NotFound if self.may_create() && self.volume.size.is_none() => {
                let cure = "it is not there, and a new file needs a size, for example size = \"1GiB\" (--size 1GiB)";
                io::Error::new(ErrorKind::NotFound, cure)
            }
            _ => cause,
        };
        Error::Opening { volume: self.name.clone(), path, action, cause }
    }

    /// True if the server would create the volume's file when it is missing and a size is given.
    fn may_create(&self) -> bool {
        self.volume.backend == config::Backend::File && !self.volume.read_only && !self.config.server.read_only
    }

    /// Checks, as far as this process can see, that the server could open the volume's file. An error has the configuration
    /// key at fault.
    fn must_open(&self, path: &Path) -> Result<(), (&'static str, Error)> {
        let (volume, server) = (&self.volume, &self.config.server);
        let creates = self.may_create();
        let cause = match std::fs::metadata(path) {
            Ok(metadata) => unfit(metadata.file_type(), volume.backend == config::Backend::Block).map(io::Error::other),
            Err(error) if error.kind() == ErrorKind::NotFound && creates && volume.size.is_some() => {
                let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                // The server makes its own folder.
                let lacks = parent.is_some_and(|folder| !folder.exists() && !server.data_dir.starts_with(folder));
                lacks.then(|| io::Error::new(ErrorKind::NotFound, "its folder is not there; make it"))
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
            Err(error) => Some(error),
        };
        let Some(cause) = cause else { return Ok(()) };
        let no_size = cause.kind() == ErrorKind::NotFound && creates && volume.size.is_none();
        let error = Error::Volume { path: path.to_owned(), action: "open", cause };
        Err((if no_size { "size" } else { "path" }, self.unopened(error)))
    }

    /// A note on the content of the volume's file, if it was recognised; if the server would refuse the file, the
    /// configuration key at fault and the error. Nothing is noted about a file that this process may not read. `judges`: the
    /// record of files is known, so that content and size can be checked. `missing`: files to be created by the volumes
    /// inspected so far, by resolved path, with the volume's name and the path as configured.
    fn inspect(
        &self,
        judges: bool,
        missing: &mut HashMap<PathBuf, (String, PathBuf)>,
    ) -> Result<Option<String>, (&'static str, Error)> {
        let refused = |error| ("path", error);
        let (volume, server) = (&self.volume, &self.config.server);
        let on_disk = matches!(volume.backend, config::Backend::File | config::Backend::Block);
        let path = self.config.path_of(&self.name, volume).filter(|_| on_disk);
        let (Some(path), Some(files)) = (path, &self.files) else { return Ok(None) };
        self.must_be_free(files, &path).map_err(refused)?;
        self.must_open(&path)?;
        let Ok(metadata) = std::fs::metadata(&path) else {
            if !path.exists() && files.adopted().had(&Name::of_missing(&server.data_dir, &path)) {
                return Err(refused(gone(&self.name, &path)));
            }
            // Of the same path twice, the rules of the configuration complain.
            return match missing.insert(resolved(&path), (self.name.clone(), path.clone())) {
                Some((other, written)) if written != path => {
                    Err(refused(self.not_free(&path, format!("it already holds volume \"{other}\", by another path"))))
                }
                _ => Ok(None),
            };
        };
        files.taken().insert(Target::of(&metadata), self.name.clone());
        let Some(file) = (judges && metadata.is_file()).then(|| std::fs::File::open(&path).ok()).flatten() else {
            return Ok(None);
        };
        let known = files.adopted().find(&Name::of(&server.data_dir, &path, &metadata));
        let note = match known {
            Some(_) => None,
            None => {
                let found = contents::examine(metadata.len(), |bytes, at| file.read_at(bytes, at));
                self.judge(&path, found).map_err(refused)?
            }
        };
        let read_only = volume.read_only || server.read_only;
        self.size(&path, metadata.len(), read_only, known != Some(true)).map_err(|error| ("size", error))?;
        Ok(note)
    }
}

/// Findings on the files of volumes, as far as they exist and this process may read them: recognised content, reasons why the
/// server would refuse them, and lack of space; also on sockets and folders of the server. `own_files`: files that the
/// program itself uses. Changes nothing.
pub fn inspect(config: &Arc<Config>, own_files: &[PathBuf]) -> Vec<Finding> {
    let finding = |severity, name: &str, key: &str, message| Finding {
        severity,
        path: ["volumes", name, key].map(str::to_owned).into(),
        message,
    };
    let mut found = surroundings::findings(config);
    let data_dir = &config.server.data_dir;
    let loaded = Adopted::load(data_dir);
    // Without the record, what clients have written would be taken for foreign.
    let judges = loaded.is_ok();
    let adopted = loaded.unwrap_or_else(|error| {
        // The server reads it for volumes on files alone.
        if config.volumes.iter().any(|(name, volume)| config.path_of(name, volume).is_some()) {
            found.push(surroundings::of_record(&error));
        }
        Adopted::default()
    });
    // The server may run in another folder, with a record there by which a file is its own to lengthen.
    let elsewhere = data_dir.is_relative() && !data_dir.exists();
    let adopted = Arc::new(Mutex::new(adopted));
    let files = Files {
        own: Arc::new(OwnFiles::of(config, adopted::files(&config.server.data_dir), own_files)),
        adopted,
        taken: Arc::default(),
    };
    let mut missing = HashMap::new();
    found.extend(config.volumes.iter().filter_map(|(name, volume)| {
        let opening = Opening {
            config: Arc::clone(config),
            id: 0,
            name: name.clone(),
            volume: volume.clone(),
            pool: 0,
            device: None,
            files: Some(files.clone()),
            room: Room::new(None),
            patience: StdDuration::ZERO,
            faults: Faults::NONE,
        };
        let (severity, key, message) = match opening.inspect(judges, &mut missing) {
            Ok(note) => (Severity::Warning, "path", note?),
            Err(("size", error)) if elsewhere && !matches!(error, Error::Opening { .. }) => {
                (Severity::Warning, "size", error.to_string())
            }
            Err((key, error)) => (Severity::Error, key, error.to_string()),
        };
        let named = [format!("volume {name}: "), format!("volume \"{name}\": ")];
        let message =
            named.iter().find_map(|named| message.strip_prefix(named.as_str())).unwrap_or(&message).to_owned();
        Some(finding(severity, name, key, message))
    }));
    found
}

/// Logs `lack`, the reason why there is too little free space for a volume's file; returns it as a warning for the operator.
fn lacks(volume: &str, lack: &str) -> String {
    tracing::warn!(volume, "{lack}");
    format!("warning: volume {volume}: {lack}")
}

/// Does `work` on all volumes at the same time, for at most `patience`; returns the errors. A volume for which `work` has not
/// ended in time keeps its file locked until it ends.
pub(crate) fn settle(
    volumes: Vec<Arc<Volume>>,
    patience: StdDuration,
    work: impl Fn(Arc<Volume>) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Error> {
    side_by_side(volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(), patience, work)
}

/// Waits for at most [`RETIRE_PATIENCE`] until only the caller holds the volume; makes its data durable and closes it.
pub(crate) fn retire(volume: Arc<Volume>) -> Result<(), Error> {
    let until = std::time::Instant::now() + RETIRE_PATIENCE;
    while Arc::strong_count(&volume) > 1 && std::time::Instant::now() < until {
        std::thread::sleep(StdDuration::from_millis(2));
    }
    if Arc::strong_count(&volume) > 1 {
        tracing::warn!(
            volume = volume.name,
            "the volume is removed, but operations on it are still in flight; its file stays locked until they end"
        );
    }
    finish(&volume)
}

/// Makes a volume's data durable, and closes its RBD image if it has one; the volume must not be used any more.
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

/// Makes all data written to a volume so far durable.
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
