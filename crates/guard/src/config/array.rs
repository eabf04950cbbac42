//! Arrays that this host shares with others, and the volumes of them that it uses, as an operator writes it.

use std::collections::BTreeMap;

use evenkeel_control::slots;
use evenkeel_policy::config::{Exchange, Latency, Slots};
use evenkeel_policy::is_name;
use evenkeel_policy::units::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Weights stay within what the controller computes well.
const MAX_WEIGHT: f64 = 1e6;
/// Shorter periods measure nothing but noise and stop queues too often; longer ones decide too late.
const PERIOD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];

/// An array that hosts share: how many I/Os each may have inside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrayConfig {
    /// How slots are shared out.
    #[serde(default = "default_method")]
    pub method: Slots,
    /// How often is decided where there is no exchange; with one its period counts.
    #[serde(default = "default_period")]
    pub period: Duration,
    /// Mean latency of the array that is aimed at; default: what the goals allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Duration>,
    /// All slots together, on all hosts: never more, and the total of "rwd".
    #[serde(default = "default_most")]
    pub most: u32,
    /// The volumes of it that this host uses, by names of your own.
    #[serde(default)]
    pub volumes: BTreeMap<String, ArrayVolume>,
}

fn default_method() -> Slots {
    Slots::Needs
}

fn default_period() -> Duration {
    Duration::from_secs(1)
}

fn default_most() -> u32 {
    slots::Config::NEEDS.most as u32
}

/// A volume of an array, as a block device of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrayVolume {
    /// The device, by path or name: a disk, or what stands on disks of this array alone (multipath, LVM).
    pub device: String,
    /// What its mean latency is to stay below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Its worth where not all goals can be kept, and its share by weight.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// It never has more slots than this; default: as many as the device had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<u32>,
}

fn default_weight() -> f64 {
    1.0
}

impl ArrayConfig {
    /// The controller's settings.
    pub fn controller(&self, exchange: &Exchange) -> slots::Config {
        let period = if exchange.etcd.is_empty() { self.period } else { exchange.period };
        self.method.control(period.into(), self.latency, self.most)
    }

    /// What is wrong with it: keys below `[arrays.NAME]`, and what would be right.
    pub(super) fn faults(&self, name: &str, interval: Duration, exchange: &Exchange) -> Vec<(Vec<&str>, String)> {
        let mut faults = Vec::new();
        if !is_name(name) {
            let message = "is no name of an array: other hosts are told of it; use letters, digits, '.', '_' and '-'";
            faults.push((Vec::new(), message.to_owned()));
        }
        match self.method {
            // All tenants together wait in one queue, which is not ours.
            Slots::SfqD => faults.push((
                vec!["method"],
                "must be \"needs\", \"drg\", \"parda\", \"rwd\" or \"none\": \"sfq_d\" needs a queue of its own (`evenkeel serve`)".into(),
            )),
            Slots::Drg if !exchange.etcd.is_empty() => faults.push((
                vec!["method"],
                "must be \"needs\", \"rwd\" or \"parda\" with [exchange]: \"drg\" knows the volumes of one host only".into(),
            )),
            Slots::Drg | Slots::None | Slots::Rwd | Slots::Parda | Slots::Needs => {}
        }
        let [shortest, longest] = PERIOD;
        if !(shortest.max(interval)..=longest).contains(&self.period) {
            let message = format!("is {}; write \"{shortest}\" to \"{longest}\", at least guard.interval", self.period);
            faults.push((vec!["period"], message));
        } else if let Err(invalid) = self.controller(exchange).validate() {
            let key = if invalid.setting == "latency" { "latency" } else { "most" };
            faults.push((vec![key], format!("must be {}", invalid.must_be)));
        }
        if self.volumes.is_empty() {
            faults.push((vec!["volumes"], "names nothing; add [arrays.NAME.volumes.WHAT] with a device".into()));
        }
        for (name, volume) in &self.volumes {
            let at = |key| vec!["volumes", name.as_str(), key];
            if !(volume.weight > 0.0 && volume.weight <= MAX_WEIGHT) {
                faults.push((at("weight"), "must be above 0, at most 1,000,000".into()));
            }
            if volume.latency.is_some_and(|latency| latency.target.is_zero()) {
                faults.push((at("latency"), "must have a target above 0; write for example \"10ms\"".into()));
            }
            if volume.ceiling == Some(0) {
                faults.push((at("ceiling"), "must be at least 1".into()));
            }
        }
        faults
    }
}
