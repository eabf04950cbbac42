//! Guaranteed throughputs with their files: groups found and read, limits written.

use std::path::{Path, PathBuf};

use evenkeel_control::Instant;
use evenkeel_control::throughput::{InvalidConfig, TenantId};

use super::guarantee::{self, Found, Guarantees};
use super::guarantee_record::{CacheState, GuaranteeRecord, HybridState};
use crate::actuator::io_max::{self, Change, IoMax};
use crate::actuator::{self};
use crate::config::Config;
use crate::discovery::Roots;
use crate::error;
use crate::journal::Journal;
use crate::sensor::cache::{CacheStatus, Hybrid, NotUsable};
use crate::sensor::cgroup::{self, GroupFile, Usage};

/// What goes wrong in a period; the rest of it is done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something cannot be read.
    #[error(transparent)]
    Sense(#[from] error::Error),
    /// A limit cannot be set.
    #[error(transparent)]
    Act(#[from] actuator::Error),
    /// A guarantee is refused.
    #[error("guarantee of {tenant}: {problem}")]
    Guarantee {
        /// Whose.
        tenant: String,
        /// Why.
        problem: InvalidConfig,
    },
}

/// Why guarantees cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// A hybrid device cannot be used.
    #[error("pools.{name}: {cause}")]
    Device {
        /// Its name in the configuration.
        name: String,
        /// What is wrong, and what to do.
        cause: NotUsable,
    },
    /// A setting is refused.
    #[error("pools.{name}: {problem}")]
    Setting {
        /// Its name in the configuration.
        name: String,
        /// Which.
        problem: InvalidConfig,
    },
    /// There are no control groups of the second version.
    #[error(
        "{} holds no cgroup.controllers: mount cgroup v2 there (`mount -t cgroup2 cgroup2 {}`), or start the system with systemd.unified_cgroup_hierarchy=1",
        .0.display(), .0.display()
    )]
    NoGroups(PathBuf),
    /// The io controller is not there.
    #[error("{} does not list io: this kernel has no io controller, or it is in use by cgroup v1", .0.display())]
    NoController(PathBuf),
}

/// A group with a guarantee, and its files.
#[derive(Debug)]
struct Group {
    id: TenantId,
    name: String,
    stat: GroupFile,
    row: IoMax,
}

/// A hybrid device with its groups.
#[derive(Debug)]
struct Device {
    mind: Guarantees,
    hybrid: Hybrid,
    due: Option<Instant>,
    groups: Vec<Group>,
    found: Vec<Found>,
    cache: Option<CacheState>,
    notes: Vec<String>,
}

/// Keeps all guarantees of a configuration.
#[derive(Debug)]
pub struct Keeper {
    cgroups: PathBuf,
    devices: Vec<Device>,
    buffer: Vec<u8>,
}

impl Keeper {
    /// Finds the hybrid devices of `config`; `cgroups` is where cgroup v2 is mounted. Nothing is changed.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub fn open(config: &Config, roots: &Roots, cgroups: &Path) -> Result<Self, Unable> {
        if !config.hybrids.is_empty() {
            let controllers = cgroups.join("cgroup.controllers");
            let listed = std::fs::read_to_string(&controllers).map_err(|_| Unable::NoGroups(cgroups.to_owned()))?;
            if !listed.split_ascii_whitespace().any(|name| name == "io") {
                return Err(Unable::NoController(controllers));
            }
        }
        let open = |(name, config): (&String, &crate::config::HybridConfig)| {
            let hybrid =
                Hybrid::open(roots, &config.device, config.cache.slow.as_deref(), config.cache.fast.as_deref());
            let hybrid = hybrid.map_err(|cause| Unable::Device { name: name.clone(), cause })?;
            let mind = Guarantees::new(name, config);
            let mind = mind.map_err(|problem| Unable::Setting { name: name.clone(), problem })?;
            let (groups, found, notes) = (Vec::new(), Vec::new(), Vec::new());
            Ok(Device { mind, hybrid, due: None, groups, found, cache: None, notes })
        };
        let devices = config.hybrids.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { cgroups: cgroups.to_owned(), devices, buffer: Vec::new() })
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Measures, decides and acts for every hybrid device whose period is over; without a journal it does not act. Call it
    /// often; most calls do nothing.
    pub fn tick(&mut self, now: Instant, mut journal: Option<&mut Journal>) -> Vec<Error> {
        let mut errors = Vec::new();
        for device in &mut self.devices {
            if device.due.is_some_and(|due| now < due) {
                continue;
            }
            let period = guarantee::interval(device.mind.config());
            // Periods that were missed are not made up for.
            let next = device.due.map_or(now, |due| due) + period;
            device.due = Some(if next > now { next } else { now + period });
            device.tick(now, &self.cgroups, &mut self.buffer, journal.as_deref_mut(), &mut errors);
        }
        errors
    }

    /// What is known and decided.
    pub fn state(&self) -> Vec<HybridState> {
        self.devices.iter().map(Device::state).collect()
    }

    /// The newest `count` decisions, newest first, of one hybrid device or all.
    pub fn records(&self, hybrid: Option<&str>, count: usize) -> Vec<GuaranteeRecord> {
        let wanted = self.devices.iter().filter(|device| hybrid.is_none_or(|name| name == device.mind.name()));
        let mut records: Vec<GuaranteeRecord> = wanted.flat_map(|device| device.mind.records()).collect();
        records.sort_by(|a, b| b.until_s.total_cmp(&a.until_s));
        records.truncate(count);
        records
    }

    /// Names of the hybrid devices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.mind.name())
    }
}

impl Device {
    fn tick(
        &mut self,
        now: Instant,
        cgroups: &Path,
        buffer: &mut Vec<u8>,
        mut journal: Option<&mut Journal>,
        errors: &mut Vec<Error>,
    ) {
        self.notes.clear();
        self.follow(cgroups, errors);
        let slow = self.hybrid.slow_device().map_err(|error| errors.push(error.into())).ok();
        self.measure(buffer, journal.as_deref_mut(), errors);
        self.mind.tick(now, slow, &self.found);
        match self.hybrid.status() {
            Ok(status) => self.cache = status.map(cache_state),
            Err(error) => errors.push(error.into()),
        }
        if let Some(journal) = journal {
            self.act(journal, errors);
        }
    }

    /// Takes in groups that have appeared.
    fn follow(&mut self, cgroups: &Path, errors: &mut Vec<Error>) {
        let tenants: Vec<(String, String)> =
            self.mind.config().tenants.iter().map(|(name, tenant)| (name.clone(), tenant.group.clone())).collect();
        for (tenant, pattern) in tenants {
            let plain = pattern.trim_matches('/');
            if self.groups.iter().any(|known| known.name == plain) {
                continue;
            }
            let names = match cgroup::find(cgroups, &pattern) {
                Ok(names) => names,
                Err(error) => {
                    errors.push(error.into());
                    continue;
                }
            };
            if names.is_empty() {
                self.notes
                    .push(format!("no group is named by {pattern:?} ({tenant}) now; it is looked for in every period"));
            }
            for name in names {
                if self.groups.binary_search_by(|known| known.name.as_str().cmp(&name)).is_err() {
                    self.take_in(cgroups, &tenant, name, errors);
                }
            }
        }
    }

    fn take_in(&mut self, cgroups: &Path, tenant: &str, name: String, errors: &mut Vec<Error>) {
        let folder = cgroups.join(&name);
        let stat = match GroupFile::open(folder.join("io.stat")) {
            Ok(stat) => stat,
            Err(error) if error.is_absent() => {
                let parent = folder.parent().unwrap_or(cgroups).display().to_string();
                self.notes.push(format!(
                    "the io controller is off for {name}: with systemd set IOAccounting=yes, otherwise write +io to {parent}/cgroup.subtree_control"
                ));
                return;
            }
            Err(error) => return errors.push(error.into()),
        };
        match self.mind.join(tenant, &name) {
            Ok(Some(id)) => {
                let row = IoMax::new(&folder, self.hybrid.made().device);
                let at = self.groups.partition_point(|known| known.name < name);
                self.groups.insert(at, Group { id, name, stat, row });
            }
            // A tenant of the configuration that was just read from it.
            Ok(None) => {}
            Err(problem) => errors.push(Error::Guarantee { tenant: tenant.to_owned(), problem }),
        }
    }

    /// Reads what every group did; lets go of those that are gone.
    fn measure(&mut self, buffer: &mut Vec<u8>, mut journal: Option<&mut Journal>, errors: &mut Vec<Error>) {
        let made = self.hybrid.made();
        self.found.clear();
        let mut gone = Vec::new();
        for (at, group) in self.groups.iter_mut().enumerate() {
            let usage = match group.stat.read(buffer) {
                Err(error) if error.is_gone() || error.is_absent() => {
                    gone.push(at);
                    continue;
                }
                Err(error) => Err(error),
                Ok(text) => Usage::parse(text, made.device, made.fast, Some(made.slow))
                    .map_err(|fault| fault.in_file(group.stat.path())),
            };
            let usage = usage.map_err(|error| errors.push(error.into())).ok();
            let limits = match group.row.look() {
                Ok(None) => {
                    gone.push(at);
                    continue;
                }
                Ok(limits) => limits,
                Err(error) => {
                    errors.push(error.into());
                    None
                }
            };
            self.found.push(Found { tenant: group.id, usage, limits });
        }
        for at in gone.into_iter().rev() {
            let group = self.groups.remove(at);
            self.mind.leave(group.id);
            if let Some(journal) = journal.as_deref_mut() {
                // Nothing is left to put back; the journal forgets it.
                errors.extend(group.row.restore(journal).err().map(Error::from));
            }
        }
    }

    fn act(&mut self, journal: &mut Journal, errors: &mut Vec<Error>) {
        let mut wanted: Vec<(TenantId, io_max::Limits)> = self.mind.limits().collect();
        wanted.sort_by_key(|(id, _)| *id);
        let mut rows = Vec::with_capacity(wanted.len());
        for group in &mut self.groups {
            if let Ok(at) = wanted.binary_search_by_key(&group.id, |(id, _)| *id) {
                rows.push((group.id, &mut group.row, wanted[at].1));
            }
        }
        let ids: Vec<TenantId> = rows.iter().map(|(id, ..)| *id).collect();
        let mut rows: Vec<(&mut IoMax, io_max::Limits)> =
            rows.into_iter().map(|(_, row, limits)| (row, limits)).collect();
        let results = match io_max::set_all(journal, &mut rows) {
            Ok(results) => results,
            Err(error) => return errors.push(error.into()),
        };
        for (id, result) in ids.into_iter().zip(results) {
            match result {
                Ok(Change::Foreign(limits)) => {
                    tracing::warn!(
                        "somebody else has set the limits of a tenant of {}: it is left alone",
                        self.mind.name()
                    );
                    self.mind.is_foreign(id, limits);
                }
                // What is gone is let go of in the next period.
                Ok(Change::Same | Change::Made | Change::Gone) => {}
                Err(error) => errors.push(error.into()),
            }
        }
    }

    fn state(&self) -> HybridState {
        let made = self.hybrid.made();
        let config = self.mind.config();
        let slow = self.mind.slow_device();
        HybridState {
            name: self.mind.name().to_owned(),
            device: config.device.clone(),
            kind: made.kind.name().into(),
            device_number: made.device.to_string(),
            fast_number: made.fast.map(|number| number.to_string()),
            slow_number: made.slow.to_string(),
            method: config.tuning.method.control().name().into(),
            slow_bytes_per_s: slow.bytes_per_s,
            slow_is_trusted: slow.trusted,
            background_bytes_per_s: self.mind.background_bytes_per_s(),
            cache: self.cache.clone(),
            tenants: self.mind.tenants(),
            notes: self.notes.clone(),
        }
    }
}

fn cache_state(status: CacheStatus) -> CacheState {
    CacheState {
        read_hits_total: status.read_hits,
        read_misses_total: status.read_misses,
        write_hits_total: status.write_hits,
        write_misses_total: status.write_misses,
        dirty_bytes: status.dirty_bytes,
        trouble: status.trouble,
    }
}

#[cfg(test)]
#[path = "guarantee_files_tests.rs"]
mod tests;
