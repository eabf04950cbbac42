//! The operator's policy, and the records that the operator sees.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the configuration: types, defaults, and look-ups such as the tenant of a client |
//! | [`access`] | access lists: the clients that may open a volume |
//! | [`check`] | reads a configuration from TOML; every error has file, line, key and remedy |
//! | [`document`] | reads any type from TOML in this way, and applies assignments to values |
//! | [`decision`] | records of controllers' decisions |
//! | [`change`] | the changes that a reload makes, and differences that need a restart |
//! | [`tenant`], [`pool`] | the policy: tenants with their settings, and pools (shared devices) |
//! | [`mod@explain`] | every sentence about a decision |
//! | [`verdict`] | verdicts on targets, and the throttle of a tenant or pool; computed only here |
//! | [`health`] | the health of a server: troubles with cause and cure |
//! | [`figures`] | formats figures in few characters, and aligns tables |
//! | [`target`], [`guarantee`] | latency targets and throughput guarantees as the controllers' types |
//! | [`effective`] | the enforcement point of each setting, its precedence, and settings that are not enforced |
//! | [`cluster`] | the cluster of hosts: settings, and the reports of its members |
//! | [`hours`] | hours of the day in which a setting applies |
//! | [`http`] | settings of HTTP for clients on other machines |
//! | [`rbd`] | images of a Ceph cluster |
//! | [`uri`] | addresses of NBD servers and their exports, as URIs |
//! | [`units`] | bytes, durations, rates and address blocks, with their spelling in configurations |
//! | [`workload`] | sizes, patterns and bursts of requests, with their spelling in configurations |
//! | [`state`] | the records behind `/api/v1/state` |
//! | [`parts`] | parts of reservations and limits on one host of a cluster |
//! | [`space`] | allocated and free space of volumes in files |
//! | [`recurring`] | troubles that are over in a moment and come again, from counters of the state |

pub mod access;
pub mod change;
pub mod check;
pub mod cluster;
pub mod config;
pub mod decision;
pub mod document;
pub mod effective;
pub mod explain;
pub mod figures;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod guarantee;
pub mod health;
pub mod history;
pub mod hours;
pub mod http;
mod lately;
pub mod moment;
mod names;
pub mod parts;
pub mod pool;
mod problem;
pub mod rbd;
pub mod recurring;
mod rules;
pub mod source;
pub mod space;
pub mod specificity;
pub mod state;
pub mod target;
pub mod tenant;
pub mod tls;
mod trouble;
pub mod units;
pub mod uri;
pub mod verdict;
pub mod workload;

pub use config::Config;
pub use document::explain;
pub use names::{closest, is_name, unusable_name};
pub use rules::{
    Finding, Severity, budget_that_hangs, findings, is_pool_name, policy_findings, rate_that_hangs, simulated, unknown,
};

/// The text of a configuration with every key, commented out, and its default.
pub const EXAMPLE: &str = include_str!("../example.toml");

/// The script that plots of the dashboard and of reports have in common: scales, axes, paths and keys. It imports and exports
/// nothing, and goes in front of the script that uses it.
pub const PLOT: &str = include_str!("plot.js");

/// The JSON schema of the configuration (draft 2020-12), for editors and other programs.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}
