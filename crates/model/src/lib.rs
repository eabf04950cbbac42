//! Storage devices as pure state machines.
//!
//! No I/O, no clock, no threads; all randomness is seeded. The server runs a model in real time over memory (back end
//! `emulate`), the simulator runs the same model in virtual time.
//!
//! | module | device |
//! |---|---|
//! | [`ssd`] | a solid-state drive, SATA or NVMe: dies, garbage collection, fast cells |
//! | [`disk`] | a disk with seeks, rotation, zones and a cache |
//! | [`cached`] | a fast device that caches a slow one, and the throttle of `io.max` |
//! | [`raid`] | RAID-0 over equal members |
//! | [`link`] | clients of an iSCSI target over TCP, with delayed packets from the target |
//! | [`store`] | a batching store over a device, with a buffer that accepts everything |
//! | [`surface`] | a table of latencies, for a device that no other model is like |
//! | [`faster`] | a device of any model whose clock runs faster |
//! | [`worker`] | threads of a server that serve the messages of their connections |
//!
//! Every model of a device has the methods `submit(now, id, io)`, `next_event()`, `poll(now)`, called until it returns `None`,
//! and `set_params(now, params)`. [`link`] and [`worker`] have no `set_params`, and their `submit` names a connection. Polling
//! later shows completions later, but changes neither them nor their times.
#![no_std]

extern crate alloc;

pub mod cached;
mod clock;
pub mod device;
pub mod disk;
pub mod faster;
pub mod jitter;
pub mod link;
pub mod params;
#[cfg(feature = "serde")]
pub mod preset;
pub mod raid;
pub mod ssd;
pub mod store;
pub mod surface;
pub mod worker;

use evenkeel_control::units::Kind;

/// One request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// The kind of the request.
    pub kind: Kind,
    /// Offset in bytes; ignored by models without geometry.
    pub offset: u64,
    /// Payload in bytes; 0 for flushes and metadata work. In the model [`ssd`], metadata work with a size is a trim of that
    /// many bytes.
    pub bytes: u32,
}
