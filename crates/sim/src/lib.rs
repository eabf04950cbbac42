//! Evenkeel in virtual time.
//!
//! The same controllers (`evenkeel-control`) and devices (`evenkeel-model`) as in the server, driven by an event
//! engine instead of a clock. The same seed gives the same bytes of output on every machine.
//!
//! | module | what it does |
//! |---|---|
//! | [`engine`] | the event queue, in integer nanoseconds |
//! | [`scenario`] | a setup and bounds on its outcome, written as a text |
//! | [`sweep`] | a scenario over several settings and seeds, with its results |
//! | [`report`] | results as text, as rows and as a page with plots |
//! | [`statistics`] | statistics over several seeds |
//! | [`workload`] | requests of clients: generators and traces |
//! | [`experiment`] | experiments of publications, repeated |
//! | [`world`] | clients, one pool or one on each of several hosts, and one device, run together |

pub mod engine;
pub mod experiment;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod placed;
pub mod report;
pub mod scenario;
mod slab;
pub mod statistics;
pub mod sweep;
pub mod workload;
pub mod world;
