//! The agent's control loops, one module for each enforcement point: they turn samples into settings and reasons, without
//! access to files or the clock.
//!
//! | point | sample | controller | setting |
//! |---|---|---|---|
//! | [`packets`] | diskstats, block tracepoints | `control::response` | delay of packets |
//! | [`cgroup`] | `io.stat` of groups, diskstats of the slow device | `control::throughput` | `io.max` |
//! | [`local`] | block tracepoints, `io.stat` of groups, diskstats | `control::response` | `io.max` |
//! | [`queue_depth`] | diskstats | `control::slots` | queue lengths |
//! | [`osd`] | `perf dump` | `control::admission` | BlueStore's throttles |
//!
//! The files of each point are in [`crate::points`]; [`crate::Agent`] drives them all.

pub mod cgroup;
mod due;
pub mod health;
pub mod local;
pub mod meter;
pub mod osd;
mod osd_order;
pub mod owed;
pub mod packets;
pub mod queue_depth;
pub mod record;
mod totals;

pub use due::Due;

/// Largest number of decisions that are kept of each pool. A decision that stays the same is one entry: with a new decision
/// every second the entries reach back ten minutes, in most cases hours.
pub const MAX_RECORDS: usize = 600;
