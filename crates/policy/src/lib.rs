//! The operator's policy, and the records that the operator sees.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | the configuration: types, defaults, resolution of what was left out |
//! | [`access`] | who may open what |
//! | [`check`] | TOML text to configuration; every error with file, line, key and cure |
//! | [`document`] | the same for any type, with values put over those of the text |
//! | [`decision`] | decisions on record |
//! | [`change`] | what a reload changes, and what it cannot |
//! | [`tenant`], [`pool`] | the policy: who gets what, and the devices that saturate |
//! | [`mod@explain`] | every sentence about a decision |
//! | [`verdict`] | whether targets are met, and what throttles; computed here alone |
//! | [`figures`] | figures in few characters, and tables of them |
//! | [`target`], [`guarantee`] | latency targets and throughput guarantees in the controllers' words |
//! | [`effective`] | which setting is enforced where, which one wins, and what is not enforced |
//! | [`cluster`] | the cluster of hosts: settings, and the reports of its members |
//! | [`http`] | HTTP beyond this machine |
//! | [`rbd`] | images of a Ceph cluster |
//! | [`uri`] | addresses of NBD servers and their exports, as URIs |
//! | [`units`] | bytes, durations, rates and address blocks as people write them |
//! | [`workload`] | sizes, patterns and bursts of requests as people write them |
//! | [`state`] | the records behind `/api/v1/state` |

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
pub mod http;
mod lately;
mod names;
pub mod pool;
mod problem;
pub mod rbd;
mod rules;
pub mod source;
pub mod state;
pub mod target;
pub mod tenant;
pub mod tls;
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

/// A configuration that shows every key with its default, commented.
pub const EXAMPLE: &str = include_str!("../example.toml");

/// The JSON schema of the configuration (draft 2020-12), for editors and other programs.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}
