//! `evenkeel record --status`: the devices and tenants of a pool of an agent on this host, for the recorder of devices.
//!
//! | point of the pool | devices | tenant of a request |
//! |---|---|---|
//! | `cgroup` | the pool's device | of the control group, as in the policy; of other groups their path |
//! | `queue_depth` | volumes of the array on this host | of the volume |
//! | `packets` | the devices that are served | the control group of the target's tasks: clients are not known here |
//! | `osd` | none: the agent does not know an OSD's disk | |

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use evenkeel_guard::discovery::Roots;
use evenkeel_guard::discovery::blocks::Block;
use evenkeel_guard::loops::record::{At, PoolState, State};
use evenkeel_guard::sensor::diskstats::DeviceNumber;

use super::device::{Subject, add};
use crate::control::{Certificates, PATIENCE, Site, get};
use crate::guard::{PORT, read_answer};
use crate::output::Usage;

/// Note about a recording of a pool whose clients reach it over the network.
const OF_CLIENTS: &str = "clients reach this pool over the network: the tenants of the recording are the control \
                          groups of the tasks that serve them";

/// The recording of the pool `pool` of the agent with this status address.
///
/// # Errors
/// When no agent answers there, it has no such pool, it runs on another host, or it knows no device of the pool here.
pub(super) fn subject(site: &Site, certificates: &Certificates, pool: &str) -> anyhow::Result<Subject> {
    let place = certificates.reach(site, PORT)?;
    let state: State = read_answer(&get(&place, "/api/v1/state", PATIENCE)?).context(
        "--status names an agent; to record a server, run this on its machine with --control, --data-dir or --config",
    )?;
    let found = Pool::of(&state, pool)?;
    let roots = Roots::default();
    ensure!(is_here(&state, &roots.boot_id()), elsewhere(&state, &place.authority(), pool));
    found.resolve(&roots)
}

/// True if the agent runs on this host, whose boot ID is `own`. Its address does not tell: a tunnel may lead to another host,
/// which has other devices under the same names.
fn is_here(state: &State, own: &str) -> bool {
    !own.is_empty() && state.boot_id == own
}

/// The message about a pool of an agent on another host, or on an unknown one.
fn elsewhere(state: &State, authority: &str, pool: &str) -> String {
    if state.boot_id.is_empty() {
        return format!(
            "the agent at {authority} (version {}) does not say on which host it runs: update it, or name the devices \
             of pool {pool} with --device",
            state.version
        );
    }
    let host = state.cluster.as_ref().map_or_else(String::new, |cluster| format!(" {}", cluster.host));
    format!(
        "the devices of pool {pool} are on the agent's host{host} ({authority}), where they must be recorded: run \
         this command there, as root, with --status 127.0.0.1:{PORT}, or the address that the agent's configuration \
         has"
    )
}

/// The tenant behind a name in the state of an agent, which ends with the device or control group at `path`, or with the last
/// part of the path, where a tenant has several. `None` if the name ends with a pattern.
fn tenant_of<'s>(shown: &'s str, path: &str) -> Option<&'s str> {
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    let tenant = [path, last].into_iter().find_map(|end| shown.strip_suffix(end)?.strip_suffix('.'));
    let whole = (!shown.contains(['*', '?'])).then_some(shown);
    tenant.filter(|tenant| !tenant.is_empty()).or(whole)
}

/// A device of a pool, as an agent names it.
#[derive(Debug, PartialEq, Eq)]
struct Device {
    /// Path in `/dev`, the kernel's name, or for a device with a number any path.
    name: String,
    number: Option<DeviceNumber>,
    /// The tenant of all its requests.
    owner: Option<String>,
}

/// A pool, as an agent describes it.
#[derive(Debug, PartialEq, Eq)]
struct Pool<'n> {
    name: &'n str,
    devices: Vec<Device>,
    /// Tenants by path of their control groups.
    groups: BTreeMap<String, String>,
    note: Option<&'static str>,
}

impl<'n> Pool<'n> {
    /// The pool `name` in the state of an agent, at all its enforcement points together.
    ///
    /// # Errors
    /// If the agent has no such pool, or knows no device of it.
    fn of(state: &State, name: &'n str) -> anyhow::Result<Self> {
        let points: Vec<&PoolState> = state.pools.iter().filter(|pool| pool.name == name).collect();
        if points.is_empty() {
            let known: BTreeSet<&str> = state.pools.iter().map(|pool| pool.name.as_str()).collect();
            let message = evenkeel_policy::unknown("pool", name, &known.into_iter().collect::<Vec<_>>());
            bail!(Usage(format!("{message}\nwhat to do: name a pool that `evenkeel guard status` shows")));
        }
        let (mut devices, mut groups) = (Vec::new(), BTreeMap::new());
        for point in &points {
            match &point.at {
                At::Packets(at) => devices.extend(at.devices.iter().map(|device| Device {
                    // In names of the kernel an exclamation mark is a slash of the path.
                    name: format!("/dev/{}", device.name.replace('!', "/")),
                    number: None,
                    owner: None,
                })),
                At::Cgroup(at) => {
                    // Without a number while the device is not there.
                    let number: Option<DeviceNumber> = at.device_number.parse().ok();
                    devices.extend(number.map(|number| Device {
                        name: at.device.clone(),
                        number: Some(number),
                        owner: None,
                    }));
                    groups.extend(at.groups.iter().filter_map(|group| {
                        let path = group.group.trim_matches('/');
                        Some((path.to_owned(), tenant_of(&group.tenant, path)?.to_owned()))
                    }));
                }
                At::QueueDepth(at) => devices.extend(at.volumes.iter().map(|volume| Device {
                    name: volume.device.clone(),
                    number: None,
                    owner: Some(tenant_of(&volume.name, &volume.device).unwrap_or(&volume.name).to_owned()),
                })),
                _ => {}
            }
        }
        if devices.is_empty() {
            let is_osd = |point: &&PoolState| matches!(point.at, At::Osd(_));
            bail!(if points.iter().all(is_osd) {
                format!(
                    "pool {name} is an OSD, whose disk the agent does not know: name the disk with --device, on \
                     the OSD's host (`ceph-volume lvm list` shows it)"
                )
            } else {
                format!(
                    "the agent knows no device of pool {name} at present: its device is absent, or no volume on it is \
                     served; name a device with --device, on the host that has it (`lsblk` shows all)"
                )
            });
        }
        let are_clients = points.iter().all(|point| matches!(point.at, At::Packets(_)));
        Ok(Self { name, devices, groups, note: are_clients.then_some(OF_CLIENTS) })
    }

    /// The pool's devices on this host, with the names of tenants. A device that several enforcement points name is one, with the
    /// owner that one of them names. A policy that hosts share may name devices of other hosts: a note lists those.
    ///
    /// # Errors
    /// If no device is on this host, or one is a part of another one.
    fn resolve(self, roots: &Roots) -> anyhow::Result<Subject> {
        let mut subject = Subject {
            pool: Some(self.name.to_owned()),
            groups: self.groups,
            note: self.note.map(str::to_owned),
            ..Subject::default()
        };
        let mut absent = Vec::new();
        for Device { name, number, owner } in self.devices {
            let Some(block) = Block::named(roots, &name, number) else {
                absent.push(name);
                continue;
            };
            if let Some(known) = subject.blocks.iter().position(|known| known.number == block.number) {
                let first = &mut subject.owners[known];
                *first = first.take().or(owner);
                continue;
            }
            add(&mut subject.blocks, block)?;
            subject.owners.push(owner);
        }
        let absent = absent.join(", ");
        ensure!(
            !subject.blocks.is_empty(),
            "no device of pool {} is on this host, or sysfs does not show it ({absent}): attach one, or run this \
             command in the container of the agent",
            self.name
        );
        if !absent.is_empty() {
            let absent = format!("not recorded, as this host has no such device: {absent}");
            subject.note = Some(subject.note.map_or_else(|| absent.clone(), |note| format!("{note}\n{absent}")));
        }
        Ok(subject)
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
