//! Settings of the queue-depth loop, from the policy: arrays that hosts share, and the volumes of these arrays that this host
//! uses.

use std::collections::BTreeMap;

use evenkeel_control::slots;
use evenkeel_policy::config::{Cluster, Enforcement, Latency, Match, Pool, Slots, Tenant};
use evenkeel_policy::effective::{Precedence, Row, settings as settings_of};
use evenkeel_policy::is_name;
use evenkeel_policy::tenant::fits;
use evenkeel_policy::units::Duration;

use super::lower::{Lowering, devices_of, has_slots, name_of, owed};
use crate::loops::owed::Owed;

/// Shortest and longest allowed control period. A shorter period would measure noise and stop queues too often; with a longer
/// one decisions would come too late.
const PERIOD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// An array that hosts share, and how the requests in flight in it are bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayConfig {
    /// Method by which slots (requests in flight) are shared out.
    pub method: Slots,
    /// Time between decisions on a host without a cluster; in a cluster, the period of `[cluster]` is used instead.
    pub period: Duration,
    /// Target for the mean latency of the array; `None`: the tenants' latency targets decide.
    pub latency: Option<Duration>,
    /// Upper bound on the sum of all hosts' slots (requests in flight in the array); for the method "rwd", the sum itself,
    /// which is fixed.
    pub most: u32,
    /// Volumes of the array that this host uses, by the names of their tenants.
    pub volumes: BTreeMap<String, ArrayVolume>,
}

/// A volume of an array, as a block device of this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArrayVolume {
    /// The device, by path or name: a disk, or a multipath or LVM device that lies on disks of this array alone.
    pub device: String,
    /// The tenant's latency target for the volume; `None` if the tenant has none.
    pub latency: Option<Latency>,
    /// The tenant's weight relative to other tenants: its importance if not all targets can be met, and its share of slots
    /// under methods that share by weight.
    pub weight: f64,
    /// Upper bound on the volume's slots; `None`: the sum of its queues' lengths before the agent changed them.
    pub ceiling: Option<u32>,
    /// The tenant's reservation and guarantee; no bound on slots takes the tenant's throughput below them.
    pub owed: Owed,
}

impl ArrayConfig {
    /// Time between decisions if the pool sets no period.
    pub(super) const DEFAULT_PERIOD: Duration = Duration::from_secs(1);

    /// Settings of the controller that shares out this array's slots.
    pub fn controller(&self, cluster: &Cluster) -> slots::Config {
        let period = if cluster.etcd.is_empty() { self.period } else { cluster.period };
        slots::Config::configured(self.method, period, self.latency, self.most)
    }

    /// Faults of the settings: each with its key below `[pools.NAME]` and a message that says which values are allowed.
    pub(super) fn faults(
        &self,
        name: &str,
        interval: Duration,
        cluster: &Cluster,
    ) -> Vec<(&'static [&'static str], String)> {
        let mut faults: Vec<(&'static [&'static str], String)> = Vec::new();
        if !is_name(name) {
            let message = "cannot name an array that hosts share; use letters, digits, '.', '_' and '-'";
            faults.push((&[], message.to_owned()));
        }
        match self.method {
            Slots::Drg if !cluster.etcd.is_empty() => faults.push((
                &["tuning", "slots"],
                "must be \"needs\", \"rwd\" or \"parda\" with [cluster]: \"drg\" knows the volumes of one host only"
                    .into(),
            )),
            _ => {}
        }
        let [shortest, longest] = PERIOD;
        if !(shortest.max(interval)..=longest).contains(&self.period) {
            let message = format!("is {}; write \"{shortest}\" to \"{longest}\", at least agent.interval", self.period);
            faults.push((&["tuning", "slots_period"], message));
        } else if let Err(invalid) = self.controller(cluster).validate() {
            let key: &[&str] =
                if invalid.setting == "latency" { &["tuning", "slots_latency"] } else { &["tuning", "slots_most"] };
            faults.push((key, format!("must be {}", invalid.must_be)));
        }
        faults
    }
}

impl<'f> Lowering<'f, '_> {
    /// The devices of a pool that tenants name, each with the tenant whose entry names it most exactly.
    fn volumes(&mut self, name: &str, pool: &Pool) -> Vec<(String, &'f str)> {
        let entries = |(tenant, settings): (&'f String, &'f Tenant)| {
            let devices = settings.matches.iter().filter_map(|entry| match entry {
                Match::Device(pattern) => Some((entry.specificity(), pattern.as_str())),
                _ => None,
            });
            devices.map(|(rank, pattern)| (rank, pattern, tenant.as_str())).collect::<Vec<_>>()
        };
        let entries: Vec<_> = self.tenants.iter().flat_map(entries).collect();
        let (_, devices) = devices_of(pool);
        if devices.is_empty() {
            if self.pools.values().filter(|pool| has_slots(pool)).count() > 1 {
                return Vec::new();
            }
            let (exact, patterns): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|(_, pattern, _)| !pattern.contains(['*', '?']));
            for (_, pattern, tenant) in patterns {
                let message =
                    format!("device:{pattern} is a pattern, which needs a list of devices; add pools.{name}.devices");
                self.note(&["tenants", tenant, "match"], message);
            }
            return exact.into_iter().map(|(_, device, tenant)| (device.to_owned(), tenant)).collect();
        }
        let mut volumes = Vec::new();
        for device in devices {
            // Of equally specific entries the first decides.
            let named = entries.iter().rev().filter(|(_, pattern, _)| fits(pattern, device));
            match named.max_by_key(|(rank, _, _)| *rank) {
                Some((_, _, tenant)) => volumes.push((device.to_owned(), *tenant)),
                None if entries.is_empty() => {}
                None => {
                    let message = format!(
                        "{device} belongs to no tenant and is left alone; add \"device:{device}\" to match of a tenant"
                    );
                    self.note(&["pools", name, "devices"], message);
                }
            }
        }
        volumes
    }

    /// A pool with slots, whose volumes are the devices that tenants name.
    pub(super) fn array(&mut self, name: &str, pool: &Pool) {
        if !has_slots(pool) {
            return;
        }
        let named = self.volumes(name, pool);
        if named.is_empty() {
            return;
        }
        let mut volumes = BTreeMap::new();
        for (device, tenant) in &named {
            let Some(settings) = self.tenants.get(*tenant) else { continue };
            // The agent does not keep hours.
            let there = Tenant { weight_at: None, ..settings.on(name) };
            let row = Row::of_pool(name, Enforcement::QueueDepth, None, String::new());
            let row = row.by(format!("diskstats of {device}"), format!("queue_depth or nr_requests of {device}"));
            let most = there.max_in_flight.map(|most| (Precedence::TenantLimit, format!("at most {most} in flight")));
            let others = settings_of(&there).into_iter().filter(|(precedence, _)| *precedence >= Precedence::Latency);
            let row = Row { on: vec![device.clone()], ..row };
            self.rows(tenant, most.into_iter().chain(others), &row);
            self.rows(
                tenant,
                owed(&there),
                &Row { throttled: format!("{}, never below this rate", row.throttled), ..row },
            );
            let alone = named.iter().filter(|(_, other)| other == tenant).count() == 1;
            let volume = ArrayVolume {
                device: device.clone(),
                latency: there.latency,
                weight: f64::from(there.weight),
                ceiling: there.max_in_flight,
                owed: Owed::of(&there),
            };
            volumes.insert(name_of(&volumes, tenant, device, alone), volume);
            self.slotted.insert(*tenant);
        }
        let tuning = &pool.tuning;
        let array = ArrayConfig {
            method: tuning.slots,
            period: tuning.slots_period.unwrap_or(ArrayConfig::DEFAULT_PERIOD),
            latency: tuning.slots_latency,
            most: tuning.slots_most,
            volumes,
        };
        let (interval, cluster) = (self.lowered.config.agent.interval, self.lowered.config.cluster.clone());
        for (keys, message) in array.faults(name, interval, &cluster) {
            self.fault(&[&["pools", name], keys].concat(), message);
        }
        self.lowered.config.arrays.insert(name.to_owned(), array);
    }
}
