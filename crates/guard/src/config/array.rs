//! Settings of the queue-depth loop: arrays that hosts share, and the volumes of these arrays that this host uses.

use std::collections::BTreeMap;

use evenkeel_control::slots;
use evenkeel_policy::config::{Cluster, Latency, Slots};
use evenkeel_policy::is_name;
use evenkeel_policy::units::Duration;

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
#[derive(Clone, Debug, PartialEq)]
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
