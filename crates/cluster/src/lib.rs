//! Coordinates hosts through etcd, on a thread of its own: publishes this host's reports, reads those of all hosts, and
//! decides by them.
//!
//! [`evenkeel_control::cluster`] has the meaning of reports and decisions; this crate has the clock, the access to etcd, and
//! the log.
//!
//! | module | content |
//! |---|---|
//! | `settings` | the settings with which this host takes part |
//! | `participant` | the interface to the pools, which report and decide |
//! | `handle` | start, observation and stop of the membership |
//! | `driver` | the schedule of reports and decisions |
//! | `totals` | parts of tenants' reservations and limits |
//! | `ledger` | the other members' reports on tenants with totals, added up |
//! | `clock` | the clock by which leases end |
//! | `kept` | parts of totals in a file, for the next process of this host |
//! | `watcher`, `publish` | reading other hosts' values, writing this host's |
//! | `faults` | values of other hosts that are ignored |
//! | `reach` | a check if etcd answers |
//! | `rival` | another running process with the name of this host |
//! | `etcd` | the client of etcd |

mod clock;
mod driver;
mod error;
mod etcd;
mod event;
mod faults;
#[cfg(test)]
#[path = "../../evenkeel/tests/serve/folder.rs"]
mod folder;
mod handle;
mod kept;
mod ledger;
mod participant;
mod publish;
mod reach;
mod rival;
mod settings;
#[cfg(test)]
mod tests;
mod totals;
mod watcher;

pub use error::Error;
pub use handle::{Handle, start};
pub use participant::{Demands, Key, Participant, Parts, sums};
pub use reach::{Answer, password_fault, reach};
pub use settings::Settings;
