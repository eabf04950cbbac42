//! A [`Summary`](super::Summary) as it is written: scales and classes without a need are left out.

use alloc::format;
use alloc::vec::Vec;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CLASSES, Class, SCALES};
use crate::time::Duration;

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

/// Needs by scale: all, or none where none is above 0.
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

/// Classes in order, each with its number, the weights and the slots.
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
                return Err(D::Error::custom("its classes are out of order"));
            }
            let beyond = || D::Error::custom(format!("a class beyond the {CLASSES} that there are"));
            *classes.get_mut(index).ok_or_else(beyond)? = Class { weight, need };
            next = index + 1;
        }
        Ok(classes)
    }
}
