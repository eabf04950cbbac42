//! Hybrid devices and what their tenants were guaranteed, as an operator writes it.

use std::collections::BTreeMap;

use evenkeel_control::throughput;
use evenkeel_policy::units::{Bytes, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A slow device behind a fast one, whose tenants were guaranteed a throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HybridConfig {
    /// The device that tenants use, by path or name: a dm-cache, dm-writecache or bcache.
    pub device: String,
    /// The slow device below it; default: found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<String>,
    /// The fast device below it; default: found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast: Option<String>,
    /// How limits are assigned.
    #[serde(default)]
    pub method: GuaranteeMethod,
    /// Over how long a guarantee is to hold, "50ms" to "60s".
    #[serde(default = "default_period")]
    pub period: Duration,
    /// How often is measured and decided; `accurate` does better several times in a period, the others decide once in it.
    #[serde(default = "default_decide_every")]
    pub decide_every: Duration,
    /// What the slow device gives, in bytes per second; default: estimated while it is busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_bytes_per_s: Option<Bytes>,
    /// A limit is at most so many times the guarantee.
    #[serde(default = "default_max_raise")]
    pub max_raise: f64,
    /// Who was guaranteed what, by names of your own.
    #[serde(default)]
    pub tenants: BTreeMap<String, GuaranteeConfig>,
}

fn default_period() -> Duration {
    Duration::from_secs(1)
}

fn default_decide_every() -> Duration {
    Duration::from_millis(100)
}

fn default_max_raise() -> f64 {
    throughput::Config::DEFAULT.max_raise
}

/// How limits are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuaranteeMethod {
    /// The guarantee is the limit, as people do it by hand.
    Static,
    /// The published equations.
    Saat,
    /// What a limit yields is learned, what is owed is repaid.
    #[default]
    Accurate,
}

impl GuaranteeMethod {
    /// In the controller's words.
    pub const fn control(self) -> throughput::Method {
        match self {
            Self::Static => throughput::Method::Static,
            Self::Saat => throughput::Method::Saat,
            Self::Accurate => throughput::Method::Accurate,
        }
    }
}

/// What each of some groups was guaranteed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuaranteeConfig {
    /// A control group by its path below /sys/fs/cgroup. `*` and `?` stand for parts of a name: each group that is found
    /// has the guarantee for itself.
    pub group: String,
    /// What was guaranteed for reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<GoalConfig>,
    /// What was guaranteed for writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<GoalConfig>,
    /// Share of what is short, beside other tenants.
    #[serde(default = "default_weight")]
    pub weight: f64,
}

fn default_weight() -> f64 {
    1.0
}

/// A throughput: bytes or requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GoalConfig {
    /// Payload bytes per second, for example "200MB".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<Bytes>,
    /// Requests per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// The limit never exceeds this, in the unit of the guarantee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Bytes>,
}

impl GoalConfig {
    /// In the controller's words; `None` unless it is either bytes or requests.
    fn goal(&self) -> Option<throughput::Goal> {
        let guaranteed = match (self.bytes_per_s, self.iops) {
            (Some(bytes), None) => throughput::Rate::BytesPerS(bytes.0),
            (None, Some(requests)) => throughput::Rate::RequestsPerS(requests),
            (None, None) | (Some(_), Some(_)) => return None,
        };
        Some(throughput::Goal { guaranteed, ceiling: self.ceiling.map(|ceiling| ceiling.0) })
    }
}

impl GuaranteeConfig {
    /// In the controller's words. A goal in both units or in none is refused when the configuration is read.
    pub fn guarantee(&self) -> throughput::Guarantee {
        let goal = |goal: Option<GoalConfig>| goal.and_then(|goal| goal.goal());
        throughput::Guarantee { read: goal(self.read), write: goal(self.write), weight: self.weight }
    }
}

impl HybridConfig {
    /// How often is decided: the published equations and fixed limits are for whole periods.
    pub fn interval(&self) -> evenkeel_control::Duration {
        let often = self.method == GuaranteeMethod::Accurate && self.decide_every < self.period;
        if often { self.decide_every.into() } else { self.period.into() }
    }

    /// The controller's settings.
    pub fn controller(&self) -> throughput::Config {
        throughput::Config {
            method: self.method.control(),
            interval: self.interval(),
            window: self.period.into(),
            slow_bytes_per_s: self.slow_bytes_per_s.map(|bytes| bytes.0),
            max_raise: self.max_raise,
        }
    }

    /// What is wrong with it: keys below `[hybrids.NAME]`, and what would be right.
    pub(super) fn faults(&self) -> Vec<(Vec<&str>, String)> {
        let mut faults = Vec::new();
        let mut controller = match throughput::Controller::new(&self.controller()) {
            Ok(controller) => controller,
            Err(invalid) => {
                let often = self.interval() != evenkeel_control::Duration::from(self.period);
                let key = match invalid.setting {
                    "interval" if often => "decide_every",
                    "interval" | "window" => "period",
                    other => other,
                };
                return vec![(vec![key], format!("must be {}", invalid.must_be))];
            }
        };
        if self.tenants.is_empty() {
            faults.push((
                vec!["tenants"],
                "names nobody; add [hybrids.NAME.tenants.WHO] with a group and a guarantee".into(),
            ));
        }
        for (name, tenant) in &self.tenants {
            let at = |key| vec!["tenants", name.as_str(), key];
            let outside = tenant.group.split('/').any(|part| part == "..");
            if outside || tenant.group.split('/').all(str::is_empty) {
                faults.push((at("group"), "must be a path below /sys/fs/cgroup, as `systemd-cgls` shows them".into()));
            }
            let mut told = false;
            for (key, goal) in [("read", tenant.read), ("write", tenant.write)] {
                if goal.is_some_and(|goal| goal.goal().is_none()) {
                    told = true;
                    faults.push((at(key), "must have either bytes_per_s or iops".into()));
                }
            }
            let guarantee = tenant.guarantee();
            if told {
                continue;
            }
            if guarantee.read.is_none() && guarantee.write.is_none() {
                faults.push((at("read"), "is missing, and so is write: add read = { bytes_per_s = \"100MB\" }".into()));
            } else if let Err(invalid) = controller.join(&guarantee) {
                let key = if invalid.setting == "weight" {
                    "weight"
                } else if tenant.read.is_some() {
                    "read"
                } else {
                    "write"
                };
                faults.push((at(key), format!("{} must be {}", invalid.setting, invalid.must_be)));
            }
        }
        faults
    }
}
