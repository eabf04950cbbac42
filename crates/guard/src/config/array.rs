//! Settings of the queue-depth loop: arrays that hosts share, and the volumes of these arrays that this host uses.

use std::collections::BTreeMap;

use evenkeel_control::slots;
use evenkeel_policy::config::{Cluster, Latency, Slots};
use evenkeel_policy::is_name;
use evenkeel_policy::units::Duration;

use crate::loops::owed::Owed;

/// Allowed control periods. Shorter ones measure nothing but noise and stop queues too often; longer ones decide too late.
const PERIOD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// An array that hosts share, and how the requests in flight in it are bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayConfig {
    /// Method by which slots (requests in flight) are shared out.
    pub method: Slots,
    /// Control interval without a cluster; in a cluster its period is used instead.
    pub period: Duration,
    /// Target for the mean latency of the array; `None`: what the tenants' latency targets allow.
    pub latency: Option<Duration>,
    /// Upper bound on the sum of all hosts' slots, and its fixed value for the method "rwd".
    pub most: u32,
    /// Volumes of the array that this host uses, by the names of their tenants.
    pub volumes: BTreeMap<String, ArrayVolume>,
}

/// A volume of an array, as a block device of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayVolume {
    /// The device, by path or name: a disk, or what stands on disks of this array alone (multipath, LVM).
    pub device: String,
    /// The tenant's target for the latency of the volume.
    pub latency: Option<Latency>,
    /// The tenant's weight: its worth where not all targets can be met, and its share where slots are shared out by weight.
    pub weight: f64,
    /// Most slots of the volume; `None`: as many as its queues had before the agent.
    pub ceiling: Option<u32>,
    /// The reservation and guarantee, below which no bound on slots takes the tenant.
    pub owed: Owed,
}

impl ArrayConfig {
    /// Control interval unless the pool sets one.
    pub(super) const DEFAULT_PERIOD: Duration = Duration::from_secs(1);

    /// The controller's settings.
    pub fn controller(&self, cluster: &Cluster) -> slots::Config {
        let period = if cluster.etcd.is_empty() { self.period } else { cluster.period };
        slots::Config::configured(self.method, period, self.latency, self.most)
    }

    /// Faults of the settings: each with its key below `[pools.NAME]` and what would be right.
    pub(super) fn faults(
        &self,
        name: &str,
        interval: Duration,
        cluster: &Cluster,
    ) -> Vec<(&'static [&'static str], String)> {
        let mut faults: Vec<(&'static [&'static str], String)> = Vec::new();
        if !is_name(name) {
            let message = "is no name of an array, which other hosts see; use letters, digits, '.', '_' and '-'";
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
