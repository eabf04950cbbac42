//! How any modelled device is written: a table with `kind`.

use evenkeel_model::device::DeviceParams;
use evenkeel_model::params::InvalidParams;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

pub use crate::disk::{Disk, Raid0};
pub use crate::emulate::Emulate;
pub use crate::hybrid::Hybrid;
pub use crate::ssd::Ssd;

/// A modelled device: `kind`, and the keys of that kind.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Device {
    /// A batching store over a device.
    Store(Emulate),
    /// A solid-state drive.
    Ssd(Ssd),
    /// A disk.
    Disk(Disk),
    /// Stripes over equal devices.
    Raid0(Raid0),
    /// A fast device over a slow one.
    Hybrid(Hybrid),
}

impl Device {
    /// The parameters of the model.
    ///
    /// # Errors
    /// Says which key makes no sense and what would be right.
    pub fn params(&self) -> Result<DeviceParams, String> {
        match self {
            Self::Store(store) => store.params().map(DeviceParams::Store),
            Self::Ssd(ssd) => ssd.params().map(DeviceParams::Ssd),
            Self::Disk(disk) => disk.params().map(DeviceParams::Disk),
            Self::Raid0(raid) => raid.params().map(DeviceParams::Raid0),
            Self::Hybrid(hybrid) => hybrid.params().map(DeviceParams::Hybrid),
        }
    }
}

/// The names of [`Device`].
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Store,
    Ssd,
    Disk,
    Raid0,
    Hybrid,
}

impl<'de> Deserialize<'de> for Device {
    /// The keys of a kind are known only after `kind`, which may be anywhere in the table; so errors name the key.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        let Some(kind) = table.remove("kind") else {
            return Err(de::Error::missing_field("kind"));
        };
        match kind.try_into().map_err(de::Error::custom)? {
            Kind::Store => read(table).map(Self::Store),
            Kind::Ssd => read(table).map(Self::Ssd),
            Kind::Disk => read(table).map(Self::Disk),
            Kind::Raid0 => read(table).map(Self::Raid0),
            Kind::Hybrid => read(table).map(Self::Hybrid),
        }
    }
}

/// The keys of one kind; a key at fault is named.
fn read<T: de::DeserializeOwned, E: de::Error>(table: toml::Table) -> Result<T, E> {
    let error = match table.clone().try_into() {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // The error does not say which key it is about: it is the one without which there is no such error.
    let at_fault = table.keys().find(|&key| {
        let alone = toml::Table::from_iter([(key.clone(), table[key].clone())]);
        alone.try_into::<T>().is_err()
    });
    let message = error.message();
    Err(match at_fault {
        Some(key) if !message.starts_with("unknown field") => E::custom(format_args!("{key}: {message}")),
        _ => E::custom(message),
    })
}

/// What is wrong, with keys as they are written: without their unit.
pub(crate) fn complaint(error: &InvalidParams) -> String {
    let key = error.parameter.trim_end_matches("_bytes_per_s").trim_end_matches("_bytes");
    match key {
        "jitter" => "jitter must be 0 to 2".into(),
        _ => format!("{key} must be {}", error.must_be.replace("_bytes", "")),
    }
}
