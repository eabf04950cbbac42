//! Evenkeel in virtual time.
//!
//! The simulator runs the server's controllers (`evenkeel-control`) and device models (`evenkeel-model`), driven by an event
//! queue instead of a clock. The same seed gives the same bytes of output on every machine.
//!
//! | module | contents |
//! |---|---|
//! | [`engine`] | the event queue, in integer nanoseconds of virtual time |
//! | [`scenario`] | a setup and bounds on its outcome, written as a text |
//! | [`sweep`] | a scenario run with several settings and seeds, and the results |
//! | [`report`] | results as text, as rows and as a page with plots |
//! | [`statistics`] | statistics over several seeds |
//! | [`workload`] | requests of clients: generators and traces |
//! | [`experiment`] | experiments of publications, repeated in virtual time |
//! | [`flight`] | recordings of real clients: replay, learning of a device, advice on a policy |
//! | [`world`] | clients, one pool or one on each of several hosts, and one device, run together |

pub mod engine;
pub mod experiment;
pub mod flight;
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
