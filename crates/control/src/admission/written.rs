//! The written form of admission control in a configuration: `"slowfast"` or `{ kind = "fixed", budget = "512KiB" }`.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use toml::{Table, Value};

use super::{Config, ElasticConfig, Repairs, SlowFastConfig};
use crate::overlay;
use crate::text::Bytes;
use crate::time::Duration;

/// Every kind of admission control with its defaults: first the kinds that operators choose from, then the baselines. The
/// budget of `fixed` has no default; the one here is an example.
const KINDS: [Config; 8] = [
    Config::None,
    Config::Fixed { budget_bytes: 512 << 10 },
    Config::Elastic(ElasticConfig::DEFAULT),
    Config::SlowFast(SlowFastConfig::REPAIRED),
    Config::Theta,
    // The target of Linux for flash.
    Config::Wbt { target: Duration::from_millis(2) },
    Config::Vegas,
    Config::Gradient,
];

impl Config {
    /// Names of the kinds that operators choose from.
    pub const NAMES: [&str; 4] = ["none", "fixed", "elastic", "slowfast"];

    /// Reads admission control from a table with `kind`; an error message names the key at fault.
    fn of(written: Table) -> Result<Self, String> {
        let kind = written.get("kind").ok_or("missing field `kind`")?;
        let kind = kind.as_str().ok_or_else(|| format!("kind: invalid type: {}, expected a name", kind.type_str()))?;
        let kind = KINDS
            .iter()
            .find(|known| known.name() == kind)
            .ok_or_else(|| format!("unknown variant `{kind}`, expected one of `{}`", Self::NAMES.join("`, `")))?;
        let keys = |of: &Self| Table::try_from(*of).map_err(|error| error.to_string());
        let base = keys(kind)?;
        let others = if kind.is_baseline() { &KINDS[..] } else { &KINDS[..Self::NAMES.len()] };
        for key in written.keys().filter(|&key| !base.contains_key(key)) {
            for other in others {
                if keys(other)?.contains_key(key) {
                    let alike: Vec<&str> =
                        base.keys().map(String::as_str).filter(|own| own.starts_with(key.as_str())).collect();
                    let instead = match alike.split_last() {
                        Some((last, rest)) => format!("; {} has {} and {last}", kind.name(), rest.join(", ")),
                        None => String::new(),
                    };
                    return Err(format!("`{key}` belongs to kind = \"{}\"{instead}", other.name()));
                }
            }
        }
        if matches!(kind, Self::Fixed { .. }) && !written.contains_key("budget") {
            return Err("kind = \"fixed\" needs a budget, for example budget = \"512KiB\"".into());
        }
        overlay::read(&base, written, Self::deserialize)
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match Value::deserialize(deserializer)? {
            Value::Table(table) => table,
            kind @ Value::String(_) => Table::from_iter([("kind".to_owned(), kind)]),
            other => {
                return Err(de::Error::invalid_type(
                    de::Unexpected::Other(other.type_str()),
                    &"\"elastic\", \"none\", \"slowfast\" or a table such as { kind = \"fixed\", budget = \"512KiB\" }",
                ));
            }
        };
        Self::of(table).map_err(de::Error::custom)
    }
}

/// The kinds that operators choose from, and their keys.
impl JsonSchema for Config {
    fn schema_name() -> Cow<'static, str> {
        "Admission".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut budget = Bytes::json_schema(generator);
        budget.insert("description".into(), "Most bytes in flight in the back end; for `fixed` only.".into());
        let mut table = SlowFastConfig::json_schema(generator);
        let elastic = ElasticConfig::json_schema(generator);
        let tolerance = elastic.get("properties").and_then(|keys| keys.get("tolerance")).cloned().unwrap_or_default();
        if let Some(keys) = table.get_mut("properties").and_then(|keys| keys.as_object_mut()) {
            let kind = json_schema!({ "enum": Self::NAMES, "description": "The kind of admission control." });
            keys.extend([
                ("kind".into(), kind.into()),
                ("budget".into(), budget.into()),
                ("tolerance".into(), tolerance),
            ]);
        }
        table.insert("required".into(), ["kind"].as_slice().into());
        table.insert("additionalProperties".into(), false.into());
        let alone: Vec<&str> = Self::NAMES.into_iter().filter(|&name| name != "fixed").collect();
        json_schema!({ "anyOf": [{ "enum": alone }, table] })
    }
}

impl Serialize for Repairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut repairs = *self;
        let on = Self::SWITCHES.iter().filter(|(_, switch)| *switch(&mut repairs)).map(|&(name, _)| name);
        serializer.collect_seq(on)
    }
}

struct RepairsVisitor;

impl<'de> de::Visitor<'de> for RepairsVisitor {
    type Value = Repairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\", \"none\" or a list of repairs")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Repairs, E> {
        match text {
            "all" => Ok(Repairs::ALL),
            "none" => Ok(Repairs::NONE),
            _ => Err(E::unknown_variant(text, &["all", "none"])),
        }
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Repairs, A::Error> {
        let mut repairs = Repairs::NONE;
        while let Some(name) = names.next_element::<String>()? {
            match Repairs::SWITCHES.iter().find(|(known, _)| *known == name) {
                Some((_, switch)) => *switch(&mut repairs) = true,
                None => return Err(de::Error::unknown_variant(&name, Repairs::NAMES)),
            }
        }
        Ok(repairs)
    }
}

impl<'de> Deserialize<'de> for Repairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RepairsVisitor)
    }
}

impl JsonSchema for Repairs {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Repairs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "enum": ["all", "none"] }, { "type": "array", "items": { "enum": Self::NAMES } }] })
    }
}
