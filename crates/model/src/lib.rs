//! Storage devices as pure state machines.
//!
//! No I/O, no clock, no threads, no randomness that is not seeded: the server drives a model in real time over memory
//! (back end `emulate`), the simulator drives the same model in virtual time.
//!
//! | module | device |
//! |---|---|
//! | [`ssd`] | a solid-state drive, SATA or NVMe: dies, garbage collection, fast cells |
//! | [`disk`] | a disk with seeks, rotation, zones and a cache |
//! | [`cached`] | a fast device that caches a slow one, and the throttle of `io.max` |
//! | [`raid`] | stripes over equal members |
//! | [`link`] | clients of an iSCSI target over TCP, with delays on what is sent back |
//! | [`store`] | a batching store over a device, with a buffer that accepts everything |
//! | [`worker`] | threads of a server that serve the messages of their connections |
//!
//! Every model has the same four verbs: `submit(now, id, io)`, `next_event()`, `poll(now)` until it answers `None`, and
//! `set_params(now, params)`. How often it is polled changes when completions are seen, never what they are.
#![no_std]

extern crate alloc;

pub mod cached;
mod clock;
pub mod device;
pub mod disk;
pub mod jitter;
pub mod link;
pub mod params;
#[cfg(feature = "serde")]
pub mod preset;
pub mod raid;
pub mod ssd;
pub mod store;
pub mod worker;

use evenkeel_control::units::Kind;

/// One request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// The kind of the request.
    pub kind: Kind,
    /// Where, in bytes; models without geometry do not look at it.
    pub offset: u64,
    /// Payload, in bytes; 0 for flushes and metadata work. Metadata work with a size is a trim of it where a model knows trims.
    pub bytes: u32,
}
