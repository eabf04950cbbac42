//! The sum over a group of workloads: all that the hosts of a cluster need to know of each other.
//!
//! Each figure is a sum (or a smallest or largest value), so that figures of hosts add up to those of a rack, and figures of
//! racks to those of the cluster, and the size of a host's summary does not grow with the number of its workloads.

use crate::time::Duration;

/// Number of factors on all targets at which needs are added up: from 0.1 to 10, evenly in the logarithm.
pub const SCALES: usize = 25;
/// Number of scales below 1: `scale(OWN)` is 1.
pub(super) const OWN: usize = 12;
/// Number of classes into which workloads are divided by the size of their needs.
pub const CLASSES: usize = 48;
/// Number of classes for each doubling of the need.
const PER_DOUBLING: f64 = 4.0;
/// Needs of up to this many slots for each unit of weight are in the first class.
const SMALLEST: f64 = 1.0 / 16.0;

/// The factor on targets at index `n` of [`Summary::needs`]: 10^((n − 12) / 12), from 0.1 to 10.
pub fn scale(n: usize) -> f64 {
    libm::pow(10.0, (n as f64 - OWN as f64) / OWN as f64)
}

/// Sums over workloads whose needs, the slots with which they meet their targets, are of about one size per unit of weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Class {
    /// Sum of the weights of the class's workloads.
    pub weight: f64,
    /// Slots that the class's workloads need together to meet their targets.
    pub need: f64,
}

/// The factor on all targets at which the slots needed add up to the total. It lies between two of the [`SCALES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// Index of the smallest scale at which the slots needed are at most the total.
    pub place: usize,
    /// Position of the fit between the scales of index `place − 1` (0, excluded) and `place` (1). Linear: 0 is where the total
    /// equals the slots needed at the former scale, 1 where it equals those needed at the latter.
    pub part: f64,
    /// Slots that the total exceeds the need at the smallest scale by; 0 if the total is smaller than that need.
    pub left: f64,
}

impl Fit {
    pub(super) fn scale(&self) -> f64 {
        // Evenly in the logarithm, like the scales.
        libm::pow(10.0, (self.place as f64 - (1.0 - self.part) - OWN as f64) / OWN as f64)
    }
}

/// Sums over a group of workloads: their figures in one period, and their needs of slots in the next.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Summary {
    /// Number of workloads that are not idle.
    #[cfg_attr(feature = "serde", serde(rename = "tenants"))]
    pub workloads: f64,
    /// Sum of the weights of the workloads that are not idle.
    pub active_weight: f64,
    /// Sum of the weights of all workloads.
    pub weight: f64,
    /// Mean number of slots in use in the period.
    pub used: f64,
    /// Slots granted in any case (one to each workload that is not idle) and not used, as a mean over the period.
    pub unused: f64,
    /// Number of workloads with a target within reach that had requests in the last 30 s.
    pub targets: f64,
    /// Requests completed in the period.
    pub completed: f64,
    /// Device latencies of the requests completed in the period, in seconds, added up.
    pub device_s: f64,
    /// The largest ratio of a workload's mean device latency to its target.
    pub device_part: f64,
    /// Requests queued at hosts when the period ended.
    pub queued: f64,
    /// Weight of `elasticity`, added up over hosts: the more each host's slots varied, relative to their mean, the larger; 0 =
    /// nothing measured.
    pub known: f64,
    /// Elasticity of throughput over slots (per cent of throughput gained for one per cent more slots, 0 to 1) by each host's
    /// measurements, times the host's `known`, added up.
    pub elasticity: f64,
    /// The smallest latency target among workloads that are not idle and whose target is within reach.
    #[cfg_attr(feature = "serde", serde(rename = "smallest_target_us", with = "written::micros"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub smallest_target: Option<Duration>,
    /// For each [`scale`], the slots needed in all to meet every target multiplied by this scale.
    #[cfg_attr(feature = "serde", serde(with = "written::needs"))]
    pub needs: [f64; SCALES],
    /// The slots needed to meet the targets themselves (scale 1), by class of need per unit of weight.
    #[cfg_attr(feature = "serde", serde(with = "written::classes"))]
    pub classes: [Class; CLASSES],
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            workloads: 0.0,
            active_weight: 0.0,
            weight: 0.0,
            used: 0.0,
            unused: 0.0,
            targets: 0.0,
            completed: 0.0,
            device_s: 0.0,
            device_part: 0.0,
            queued: 0.0,
            known: 0.0,
            elasticity: 0.0,
            smallest_target: None,
            needs: [0.0; SCALES],
            classes: [Class::default(); CLASSES],
        }
    }
}

impl Summary {
    /// Every figure but the smallest target.
    pub fn figures(&mut self) -> impl Iterator<Item = &mut f64> {
        let sums = [
            &mut self.workloads,
            &mut self.active_weight,
            &mut self.weight,
            &mut self.used,
            &mut self.unused,
            &mut self.targets,
            &mut self.completed,
            &mut self.device_s,
            &mut self.device_part,
            &mut self.queued,
            &mut self.known,
            &mut self.elasticity,
        ];
        let classes = self.classes.iter_mut().flat_map(|class| [&mut class.weight, &mut class.need]);
        sums.into_iter().chain(&mut self.needs).chain(classes)
    }

    /// Adds the figures of another group. For bit-equal sums on all hosts, all must add in the same order.
    pub fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.active_weight += other.active_weight;
        self.weight += other.weight;
        self.used += other.used;
        self.unused += other.unused;
        self.targets += other.targets;
        self.completed += other.completed;
        self.device_s += other.device_s;
        self.device_part = self.device_part.max(other.device_part);
        self.queued += other.queued;
        self.known += other.known;
        self.elasticity += other.elasticity;
        self.smallest_target = match (self.smallest_target, other.smallest_target) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for (sum, need) in self.needs.iter_mut().zip(&other.needs) {
            *sum += need;
        }
        for (sum, class) in self.classes.iter_mut().zip(&other.classes) {
            sum.weight += class.weight;
            sum.need += class.need;
        }
    }

    /// Counts a workload that needs `need` slots to meet its target, in its class.
    pub(super) fn count(&mut self, need: f64, weight: f64) {
        let class = &mut self.classes[class(need, weight)];
        class.weight += weight;
        class.need += need;
    }

    /// Mean latency of the device in seconds; `None` when nothing completed.
    pub fn device_latency_s(&self) -> Option<f64> {
        (self.completed > 0.0).then(|| self.device_s / self.completed)
    }

    /// The factor on all targets at which `total` slots just meet them; `None` if ten times the targets need more slots.
    pub(super) fn fit(&self, total: f64) -> Option<Fit> {
        let place = self.needs.iter().position(|&need| need <= total)?;
        let Some(before) = place.checked_sub(1) else {
            return Some(Fit { place, part: 1.0, left: total - self.needs[0] });
        };
        let (more, less) = (self.needs[before], self.needs[place]);
        Some(Fit { place, part: if more > less { (more - total) / (more - less) } else { 1.0 }, left: 0.0 })
    }

    /// The bound on slots for each unit of weight at which all workloads together get `total` slots, if each gets its need up
    /// to the bound (max-min fairness); infinite if `total` covers all needs.
    pub(super) fn level(&self, total: f64) -> f64 {
        let (mut left, mut weight) = (total.max(0.0), self.classes.iter().map(|class| class.weight).sum::<f64>());
        for class in self.classes.iter().filter(|class| class.weight > 0.0) {
            // What is left of adding and subtracting is no weight.
            weight = weight.max(class.weight);
            if class.need * weight > left * class.weight {
                return left / weight;
            }
            (left, weight) = (left - class.need, weight - class.weight);
        }
        f64::INFINITY
    }
}

/// Index of the class (0 to `CLASSES - 1`) of a workload of weight `weight` that needs `need` slots.
pub(super) fn class(need: f64, weight: f64) -> usize {
    let doublings = libm::log2((need / weight / SMALLEST).max(1.0));
    ((doublings * PER_DOUBLING) as usize).min(CLASSES - 1)
}

/// The written form of a [`Summary`], without needs if all are 0, and without empty classes.
#[cfg(feature = "serde")]
mod written {
    use alloc::format;
    use alloc::vec::Vec;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{CLASSES, Class, Duration, SCALES};

    /// A target in microseconds.
    pub(super) mod micros {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(target: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            target.map(|target| target.as_nanos() / 1_000).serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::deserialize(deserializer)?.map(Duration::from_micros))
        }
    }

    /// Needs by scale: the list of all of them, or an empty list if all are 0.
    pub(super) mod needs {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(needs: &[f64; SCALES], serializer: S) -> Result<S::Ok, S::Error> {
            if needs.iter().any(|&need| need > 0.0) { needs.as_slice() } else { &[] }.serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; SCALES], D::Error> {
            let needs = Vec::<f64>::deserialize(deserializer)?;
            let none = needs.is_empty().then_some([0.0; SCALES]);
            let all = |needs: Vec<f64>| format!("{} needs instead of {SCALES}", needs.len());
            none.map_or_else(|| needs.try_into().map_err(|needs| D::Error::custom(all(needs))), Ok)
        }
    }

    /// The classes that are not empty, in order, each as a triple of index, sum of weights and slots needed.
    pub(super) mod classes {
        use super::*;

        pub(crate) fn serialize<S: Serializer>(classes: &[Class; CLASSES], serializer: S) -> Result<S::Ok, S::Error> {
            let used = (0u16..).zip(classes).filter(|(_, class)| **class != Class::default());
            serializer.collect_seq(used.map(|(index, class)| (index, class.weight, class.need)))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[Class; CLASSES], D::Error> {
            let (mut classes, mut next) = ([Class::default(); CLASSES], 0);
            for (index, weight, need) in Vec::<(u16, f64, f64)>::deserialize(deserializer)? {
                let index = usize::from(index);
                if index < next {
                    return Err(D::Error::custom("the classes of the summary are not in ascending order"));
                }
                let beyond = || D::Error::custom(format!("class {index} is unknown: there are {CLASSES}, from 0 on"));
                *classes.get_mut(index).ok_or_else(beyond)? = Class { weight, need };
                next = index + 1;
            }
            Ok(classes)
        }
    }
}
