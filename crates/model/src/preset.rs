//! Parameters of a model in TOML: the key `preset` names a set of values to start from, and other keys override single values.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use evenkeel_control::overlay;
use schemars::{Schema, json_schema};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use toml::Table;

/// Presets: the name of each, and a function that makes its parameters.
pub type Presets<P> = &'static [(&'static str, fn() -> P)];

/// Parameters of a model that start from one of its presets.
pub trait Preset: Serialize + DeserializeOwned + 'static {
    /// The presets, the default first. With a single preset the key `preset` is not allowed.
    const PRESETS: Presets<Self>;
}

/// Reads parameters; keys that are absent have the preset's value.
///
/// # Errors
/// A message that names the key, when a preset or a key is unknown or a value has the wrong type.
pub fn read<'de, P: Preset, D: Deserializer<'de>>(deserializer: D) -> Result<P, D::Error> {
    let mut written = Table::deserialize(deserializer)?;
    let [(_, mut start), ..] = *P::PRESETS else { return Err(D::Error::custom("there is no preset")) };
    if P::PRESETS.len() > 1
        && let Some(name) = written.remove("preset")
    {
        let name = name.as_str().unwrap_or(name.type_str());
        let Some((_, found)) = P::PRESETS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<String> = P::PRESETS.iter().map(|(known, _)| format!("`{known}`")).collect();
            return Err(D::Error::custom(format_args!(
                "preset: unknown variant `{name}`, expected {}",
                known.join(" or ")
            )));
        };
        start = *found;
    }
    let base = Table::try_from(start()).map_err(D::Error::custom)?;
    overlay::read(&base, written, P::deserialize).map_err(D::Error::custom)
}

/// Reads parameters as [`read`] does, for an optional key that is present; always `Some`.
///
/// # Errors
/// As [`read`].
pub fn read_some<'de, P: Preset, D: Deserializer<'de>>(deserializer: D) -> Result<Option<P>, D::Error> {
    read(deserializer).map(Some)
}

/// Adds the key `preset` to a schema of parameters, and makes all keys optional.
pub(crate) fn schema<P: Preset>(schema: &mut Schema) {
    let names: Vec<&str> = P::PRESETS.iter().map(|(name, _)| *name).collect();
    let preset = json_schema!({ "enum": names, "description": "The device to start from; the first is the default." });
    if let Some(keys) = schema.get_mut("properties").and_then(|keys| keys.as_object_mut()) {
        keys.insert("preset".into(), preset.into());
    }
    schema.remove("required");
    schema.insert("additionalProperties".into(), false.into());
}

/// Jitter in TOML as a number: the standard deviation of the latency's natural logarithm; 0 = no jitter.
pub(crate) mod jitter {
    use super::{Deserialize, Deserializer};
    use crate::jitter::Jitter;
    use serde::Serializer;
    use serde::ser::Error;

    pub(crate) fn serialize<S: Serializer>(jitter: &Jitter, serializer: S) -> Result<S::Ok, S::Error> {
        match jitter {
            Jitter::None => serializer.serialize_f64(0.0),
            Jitter::LogNormal { sigma } => serializer.serialize_f64(*sigma),
            Jitter::Uniform { .. } => Err(S::Error::custom("uniform jitter is not written")),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Jitter, D::Error> {
        let sigma = f64::deserialize(deserializer)?;
        Ok(if sigma == 0.0 { Jitter::None } else { Jitter::LogNormal { sigma } })
    }
}
