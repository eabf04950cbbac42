//! Arrays that this host shares with others, and the volumes of them that it uses, as their loop wants them.

use std::collections::BTreeMap;

use evenkeel_control::slots;
use evenkeel_policy::config::{Cluster, Latency, Slots};
use evenkeel_policy::is_name;
use evenkeel_policy::units::Duration;

use crate::loops::owed::Owed;

/// Shorter periods measure nothing but noise and stop queues too often; longer ones decide too late.
const PERIOD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// An array that hosts share: how many requests each may have in flight in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayConfig {
    /// How slots are shared out.
    pub method: Slots,
    /// Control interval without a cluster; in one its period counts.
    pub period: Duration,
    /// Mean latency of the array that is aimed at; none: what the latency targets allow.
    pub latency: Option<Duration>,
    /// All slots together, on all hosts: never more, and the total of "rwd".
    pub most: u32,
    /// The volumes of it that this host uses, by the names of their tenants.
    pub volumes: BTreeMap<String, ArrayVolume>,
}

/// A volume of an array, as a block device of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayVolume {
    /// The device, by path or name: a disk, or what stands on disks of this array alone (multipath, LVM).
    pub device: String,
    /// The target for its mean latency.
    pub latency: Option<Latency>,
    /// Its worth where not all targets can be met, and its share by weight.
    pub weight: f64,
    /// It never has more slots than this; none: as many as the device had before.
    pub ceiling: Option<u32>,
    /// The part that no bound takes.
    pub owed: Owed,
}

impl ArrayConfig {
    /// How often is decided unless the pool says so.
    pub(super) const DEFAULT_PERIOD: Duration = Duration::from_secs(1);

    /// The controller's settings.
    pub fn controller(&self, cluster: &Cluster) -> slots::Config {
        let period = if cluster.etcd.is_empty() { self.period } else { cluster.period };
        slots::Config::configured(self.method, period, self.latency, self.most)
    }

    /// The faults: keys below `[pools.NAME]`, and what would be right.
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
