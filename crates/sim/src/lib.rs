//! Evenkeel in virtual time.
//!
//! The same controllers (`evenkeel-control`) and devices (`evenkeel-model`) as in the server, driven by an event
//! engine instead of a clock. The same seed gives the same bytes of output on every machine.
//!
//! | module | what it does |
//! |---|---|
//! | [`engine`] | what happens next: an event queue in integer nanoseconds |
//! | [`scenario`] | what is run and what must come of it, as a text |
//! | [`sweep`] | a scenario over several settings and seeds, and what came of it |
//! | [`report`] | results as text, as rows and as a page with plots |
//! | [`statistics`] | what several seeds say together |
//! | [`workload`] | what clients ask: generators and traces |
//! | [`experiment`] | what was measured elsewhere, measured here |
//! | [`world`] | clients, one pool or one on each of several hosts, one device, run together |

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
