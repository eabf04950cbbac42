//! Actuators: change the kernel's and Ceph's settings, and restore them.
//!
//! Packets to a throttled client wait until a departure time that a BPF program sets; no packet is dropped (`departure.rs`).
//! Queueing disciplines and program are made once; later a tick changes only the delays in the program's map.

pub mod ceph_option;
mod client_delay;
mod delay;
mod departure;
mod error;
mod file;
mod filter;
pub mod io_max;
mod netlink;
mod only;
mod qdisc;
mod queue_length;
mod restore;

/// Parses a netlink datagram with every parser that reads one, for fuzzing.
#[cfg(feature = "fuzz")]
pub(crate) fn read_netlink(bytes: &[u8]) {
    let mut left = bytes.len();
    for message in netlink::messages(bytes) {
        left = left.checked_sub(message.body.len()).expect("messages hold no more than there is");
        let _ = (qdisc::read(message), filter::read(message), netlink::outcome(message.body));
    }
}

pub use client_delay::{Client, Delay, Delays, Packets};
pub(crate) use delay::{LONGEST_DELAY, SHORTEST_TIMEOUT};
pub use delay::{MAX_DELAYS, Outcome, PacketDelay, Plan, Settings, remove_leftovers};
pub use error::Error;
pub use file::FileKnob;
pub use queue_length::QueueLength;
