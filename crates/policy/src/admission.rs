//! How admission control is written: `admission = "slowfast"` or `admission = { kind = "fixed", budget = "512KiB" }`.

use std::borrow::Cow;
use std::fmt;

use evenkeel_control::Duration as ControlDuration;
use evenkeel_control::admission::{Config as Control, ElasticConfig, SlowFastConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::{Bytes, Duration};

/// How much may be inside a back end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Admission {
    /// Everything is admitted at once.
    None,
    /// A constant budget.
    Fixed {
        /// Cost inside the back end at most.
        budget: Bytes,
    },
    /// The smallest budget that costs no throughput.
    Elastic {
        /// Throughput that a smaller budget may cost, as a fraction.
        tolerance: f64,
    },
    /// SlowFast CoDel: the budget follows the latency, the target follows the throughput.
    SlowFast(SlowFast),
    /// The later variant of SlowFast's authors; to compare with.
    Theta,
    /// The rule of Linux's writeback throttle; to compare with.
    Wbt {
        /// Smallest latency of a window that is still good.
        target: Duration,
    },
    /// Vegas as a limit of concurrency; to compare with.
    Vegas,
    /// Long-term over present latency as a limit of concurrency; to compare with.
    Gradient,
}

/// The target of `wbt` unless another is given: that of Linux for flash.
const WBT_TARGET: Duration = Duration(ControlDuration::from_millis(2));

/// The names of [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    None,
    Fixed,
    Elastic,
    SlowFast,
    Theta,
    Wbt,
    Vegas,
    Gradient,
}

/// Declares the settings once for [`SlowFast`], for the table that also carries `kind`, and for both conversions.
macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $type:ty = $control:ident,)*) => {
        /// Settings of SlowFast CoDel. The default is the published constants with every known defect repaired.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct SlowFast {
            $($(#[$attribute])* pub $name: $type,)*
        }

        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct Table {
            /// Which kind of admission control.
            kind: Kind,
            /// Cost inside the back end at most; for `fixed` only.
            budget: Option<Bytes>,
            /// Smallest latency of a window that is still good; for `wbt` only (2 ms for flash, 75 ms for disks).
            target: Option<Duration>,
            /// Throughput that a smaller budget may cost, as a fraction; for `elastic` only.
            tolerance: Option<f64>,
            $($(#[$attribute])* $name: Option<$type>,)*
        }

        impl Table {
            /// The first setting given that only SlowFast CoDel has.
            fn slowfast_key(&self) -> Option<&'static str> {
                [$(self.$name.is_some().then_some(stringify!($name)),)*].into_iter().flatten().next()
            }

            fn slowfast(self) -> SlowFast {
                let default = SlowFast::default();
                SlowFast { $($name: self.$name.unwrap_or(default.$name),)* }
            }
        }

        impl From<SlowFastConfig> for SlowFast {
            fn from(config: SlowFastConfig) -> Self {
                Self { $($name: config.$control.into(),)* }
            }
        }

        impl From<&SlowFast> for SlowFastConfig {
            fn from(settings: &SlowFast) -> Self {
                Self { $($control: settings.$name.into(),)* }
            }
        }
    };
}

settings! {
    /// Period of the fast loop while the target is met.
    fast_interval: Duration = fast_interval,
    /// Period of the slow loop.
    slow_interval: Duration = slow_interval,
    /// Latency target before the first fit.
    target_initial: Duration = target_initial,
    /// Smallest target.
    target_min: Duration = target_min,
    /// Largest target.
    target_max: Duration = target_max,
    /// Budget at the start.
    budget_initial: Bytes = budget_initial_bytes,
    /// Smallest budget.
    budget_min: Bytes = budget_min_bytes,
    /// Largest budget.
    budget_max: Bytes = budget_max_bytes,
    /// Growth of the budget in a fast interval that met the target.
    budget_increment: Bytes = budget_increment_bytes,
    /// The most a fast interval may leave of the budget when the target is far exceeded, 0 to 1.
    budget_decrease_floor: f64 = budget_decrease_floor,
    /// The budget grows only while it is below this multiple of the peak occupancy.
    budget_headroom: f64 = budget_headroom,
    /// Slow intervals kept for the fit.
    history_samples: u32 = history_samples,
    /// Slope of the throughput-latency curve at the target, MiB/s per ms, without the repair `relative_tradeoff`.
    tradeoff_mib_per_s_per_ms: f64 = tradeoff_mib_per_s_per_ms,
    /// The same slope in per cent of throughput per per cent of latency: higher means less latency and less throughput.
    tradeoff_relative: f64 = tradeoff_relative,
    /// 99th percentile of the explored targets as a multiple of the optimum.
    exploration_p99_factor: f64 = exploration_p99_factor,
    /// Which known defects of the published form are repaired: "all", "none" or a list of names.
    repairs: Repairs = repairs,
}

impl Default for SlowFast {
    fn default() -> Self {
        SlowFastConfig::REPAIRED.into()
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::Elastic { tolerance: ElasticConfig::default().tolerance }
    }
}

impl From<&Admission> for Control {
    fn from(admission: &Admission) -> Self {
        match admission {
            Admission::None => Self::None,
            Admission::Fixed { budget } => Self::Fixed { budget_bytes: budget.0 },
            Admission::Elastic { tolerance } => Self::Elastic(ElasticConfig { tolerance: *tolerance }),
            Admission::SlowFast(settings) => Self::SlowFast(settings.into()),
            Admission::Theta => Self::Theta,
            Admission::Wbt { target } => Self::Wbt { target: (*target).into() },
            Admission::Vegas => Self::Vegas,
            Admission::Gradient => Self::Gradient,
        }
    }
}

impl Admission {
    /// Name as written in the configuration.
    pub fn kind(&self) -> &'static str {
        Control::from(self).name()
    }

    /// What makes no sense in the settings, if anything does.
    pub fn complaint(&self) -> Option<String> {
        match self {
            Self::None | Self::Theta | Self::Vegas | Self::Gradient => None,
            Self::Elastic { tolerance } => {
                let settings = ElasticConfig { tolerance: *tolerance };
                settings.validate().err().map(|error| error.to_string())
            }
            Self::Wbt { target } => (*target == Duration::default()).then(|| "target must be greater than 0".into()),
            Self::Fixed { budget } => (budget.0 == 0).then(|| "budget must be greater than 0".into()),
            Self::SlowFast(settings) => SlowFastConfig::from(settings).validate().err().map(|error| {
                let setting = error.setting.strip_suffix("_bytes").unwrap_or(error.setting);
                format!("{setting} must be {}", error.must_be)
            }),
        }
    }
}

impl TryFrom<Table> for Admission {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        if let (Some(key), true) = (table.slowfast_key(), table.kind != Kind::SlowFast) {
            return Err(format!("`{key}` belongs to kind = \"slowfast\""));
        }
        if table.target.is_some() && table.kind != Kind::Wbt {
            let instead = if table.kind == Kind::SlowFast {
                "; slowfast has target_initial, target_min and target_max"
            } else {
                ""
            };
            return Err(format!("`target` belongs to kind = \"wbt\"{instead}"));
        }
        if table.tolerance.is_some() && table.kind != Kind::Elastic {
            return Err("`tolerance` belongs to kind = \"elastic\"".into());
        }
        if table.budget.is_some() && table.kind != Kind::Fixed {
            let instead = if table.kind == Kind::SlowFast {
                "; slowfast has budget_initial, budget_min and budget_max"
            } else {
                ""
            };
            return Err(format!("`budget` belongs to kind = \"fixed\"{instead}"));
        }
        Ok(match table.kind {
            Kind::None => Self::None,
            Kind::Fixed => {
                let budget = table.budget;
                let budget = budget.ok_or("kind = \"fixed\" needs a budget, for example budget = \"512KiB\"")?;
                Self::Fixed { budget }
            }
            Kind::Elastic => Self::Elastic { tolerance: table.tolerance.unwrap_or(ElasticConfig::default().tolerance) },
            Kind::SlowFast => Self::SlowFast(table.slowfast()),
            Kind::Theta => Self::Theta,
            Kind::Wbt => Self::Wbt { target: table.target.unwrap_or(WBT_TARGET) },
            Kind::Vegas => Self::Vegas,
            Kind::Gradient => Self::Gradient,
        })
    }
}

/// Every kind, in the order in which they are told.
const NAMES: [&str; 8] = ["none", "fixed", "elastic", "slowfast", "theta", "wbt", "vegas", "gradient"];

struct AdmissionVisitor;

impl<'de> de::Visitor<'de> for AdmissionVisitor {
    type Value = Admission;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"elastic\", \"none\", \"slowfast\" or a table such as { kind = \"fixed\", budget = \"512KiB\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Admission, E> {
        match text {
            "none" => Ok(Admission::None),
            "elastic" => Ok(Admission::default()),
            "slowfast" => Ok(Admission::SlowFast(SlowFast::default())),
            "theta" => Ok(Admission::Theta),
            "wbt" => Ok(Admission::Wbt { target: WBT_TARGET }),
            "vegas" => Ok(Admission::Vegas),
            "gradient" => Ok(Admission::Gradient),
            "fixed" => Err(E::custom("\"fixed\" needs a budget: write { kind = \"fixed\", budget = \"512KiB\" }")),
            _ => Err(E::unknown_variant(text, &NAMES)),
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Admission, A::Error> {
        let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
        table.try_into().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Admission {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AdmissionVisitor)
    }
}

impl JsonSchema for Admission {
    fn schema_name() -> Cow<'static, str> {
        "Admission".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<Table>();
        let alone: Vec<_> = NAMES.into_iter().filter(|&name| name != "fixed").collect();
        json_schema!({ "anyOf": [{ "enum": alone }, table] })
    }
}

/// Which known defects of SlowFast CoDel are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repairs(evenkeel_control::admission::Repairs);

type Switch = fn(&mut evenkeel_control::admission::Repairs) -> &mut bool;

/// The switches by name.
macro_rules! switches {
    ($($name:ident,)*) => {
        const SWITCHES: &[(&str, Switch)] = &[$((stringify!($name), |repairs| &mut repairs.$name),)*];
        const SWITCH_NAMES: &[&str] = &[$(stringify!($name),)*];
    };
}

switches! {
    early_fit,
    proportional_growth,
    guarded_fit,
    floored_mode,
    app_limited,
    relative_tradeoff,
    settling_exploration,
    pull_towards_optimum,
    feasible_target,
    await_effect,
    local_fit,
}

impl From<evenkeel_control::admission::Repairs> for Repairs {
    fn from(repairs: evenkeel_control::admission::Repairs) -> Self {
        Self(repairs)
    }
}

impl From<Repairs> for evenkeel_control::admission::Repairs {
    fn from(repairs: Repairs) -> Self {
        repairs.0
    }
}

impl Serialize for Repairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut repairs = self.0;
        let on = SWITCHES.iter().filter(|(_, switch)| *switch(&mut repairs)).map(|&(name, _)| name);
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
            "all" => Ok(Repairs(evenkeel_control::admission::Repairs::ALL)),
            "none" => Ok(Repairs(evenkeel_control::admission::Repairs::NONE)),
            _ => Err(E::unknown_variant(text, &["all", "none"])),
        }
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Repairs, A::Error> {
        let mut repairs = evenkeel_control::admission::Repairs::NONE;
        while let Some(name) = names.next_element::<String>()? {
            match SWITCHES.iter().find(|(known, _)| *known == name) {
                Some((_, switch)) => *switch(&mut repairs) = true,
                None => return Err(de::Error::unknown_variant(&name, SWITCH_NAMES)),
            }
        }
        Ok(Repairs(repairs))
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
        json_schema!({ "anyOf": [{ "enum": ["all", "none"] }, { "type": "array", "items": { "enum": SWITCH_NAMES } }] })
    }
}
