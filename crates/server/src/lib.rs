//! The Evenkeel block server.
//!
//! ```text
//!  client ──▶ worker (connections, one thread) ──▶ pool (evenkeel-control) ──▶ back end
//!             worker/                              shared, behind a lock       backend/, engine/
//! ```
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod adopted;
mod backend;
mod budget;
mod buffer;
mod clock;
mod connections;
mod engine;
mod error;
mod failures;
#[doc(hidden)]
pub mod faults;
mod figures;
mod handshakes;
mod holder;
mod listen;
mod mailbox;
mod paced;
mod parts;
mod places;
mod prompt;
mod ram;
mod recorder;
mod refusals;
mod registry;
mod server;
mod settle;
mod shared;
#[cfg(test)]
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
mod snapshot;
mod space;
mod spin;
mod state;
mod surroundings;
mod transport;
mod volume;
mod worker;

pub use adopted::replace;
pub use backend::rbd::leave;
pub use error::Error;
pub use figures::Meter;
pub use listen::{bind, is_obstructed, is_stale};
pub use paced::{Paced, Work};
pub use recorder::{Order, Recorded, Sheet, open_recording, shortage};
pub use registry::inspect;
pub use server::{Applied, Server, Start};
pub use space::free_and_capacity;
pub use spin::Spin;
