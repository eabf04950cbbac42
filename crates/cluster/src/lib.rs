//! Coordination of hosts through etcd, on a thread of its own: reports out, reports of all in, decisions.
//!
//! The meaning of reports and decisions is in [`evenkeel_control::cluster`]; here are the clock, etcd, and the log.
//!
//! | module | question |
//! |---|---|
//! | `settings` | how does this host take part? |
//! | `participant` | what is reported and decided, and of what? |
//! | `handle` | how is it started, watched and stopped? |
//! | `driver` | what is done when? |
//! | `watcher`, `publish` | what do the others say, and what does this host? |
//! | `faults` | which values are ignored? |
//! | `reach` | does etcd answer at all? |
//! | `etcd` | how is etcd asked? |

mod driver;
mod error;
mod etcd;
mod event;
mod faults;
mod handle;
mod participant;
mod publish;
mod reach;
mod settings;
#[cfg(test)]
mod tests;
mod watcher;

pub use error::Error;
pub use handle::{Handle, start};
pub use participant::{Participant, sums};
pub use reach::{Answer, reach};
pub use settings::Settings;
