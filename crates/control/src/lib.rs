//! Storage quality of service as pure state machines.
//!
//! No I/O, no clock, no threads, no randomness that is not passed in: the server
//! runs these types in real time, the simulator runs the same types in virtual time.
//!
//! | module | question | answers |
//! |---|---|---|
//! | [`mclock`] | who goes next? | reservation, weight and limit for each client |
//! | [`admission`] | how much may be in flight? | none, fixed, elastic, SlowFast CoDel |
//! | [`limits`] | which of several limits binds? | the smallest, with its owner and reason |
//! | [`response`] | how long to throttle a noisy client? | one-sided PID, adaptive |
//! | [`throughput`] | which limit gives the throughput that was guaranteed? | static, SAAT, accurate |
//! | [`slots`] | how many I/Os may each host have in flight? | none, RW(D), PARDA, SFQ(D), DRG, needs |
//! | [`duty`] | how much processor time may client-triggered work such as handshakes take? | a share, divided fairly |
//! | [`placement`] | which worker serves which connection? | round robin, least connections, genetic, LPT, waits |
//! | [`cluster`] | which hosts share a device, and what did all of them report? | a view of each period |
//! | [`pool`] | all of these together, for one shared device | one state machine |
//!
//! The pattern everywhere is two verbs: something happened (`observe`, `push`,
//! `complete`), and what should happen now (`tick`, `pull`, `dispatch`), with the
//! time of the next interesting instant as part of the answer.
#![no_std]

extern crate alloc;

pub mod admission;
pub mod cluster;
pub mod duty;
pub mod histogram;
mod invalid;
pub mod limits;
pub mod log;
pub mod mclock;
#[cfg(feature = "serde")]
pub mod overlay;
pub mod placement;
pub mod pool;
mod price;
pub mod response;
pub mod rng;
mod shape;
pub mod slices;
pub mod slots;
#[cfg(feature = "serde")]
pub mod text;
pub mod throughput;
pub mod time;
pub mod token_bucket;
pub mod units;

pub use invalid::InvalidConfig;
pub use time::{Duration, Instant};

/// Defines, for an enumeration without fields, `ALL` with its values in this order, and `name` with the name of each.
#[macro_export]
macro_rules! named {
    ($type:ident: $($value:ident $name:literal),+) => {
        impl $type {
            /// All values, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Name of the value in configuration, records and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }
    };
}
