//! What is done about it: plan, apply, restore.
//!
//! Packets that are sent to a client are throttled, without dropping any (iSCSI paper, section 4):
//!
//! ```text
//!  packet to a client ──▶ nftables: whose is it? ──▶ priority = class ──▶ HTB class n ──▶ netem, n × step ──▶ device
//!                             └─ nobody's ──────────────────────────────▶ past all classes ───────────────────▶
//! ```
//!
//! Classes are made once. A tick changes the maps only, over netlink and without starting a process. Where the kernel has
//! them, a BPF program and `fq` do the same with one class for all delays (`edt.rs`).

pub mod ceph_option;
mod delay;
mod edt;
mod error;
mod file;
mod filter;
mod hold;
pub mod io_max;
mod netlink;
mod nft;
mod only;
mod qdisc;
mod queue_length;
mod table;

/// Reads a netlink datagram as all of its readers do.
#[cfg(feature = "fuzz")]
pub(crate) fn read_netlink(bytes: &[u8]) {
    let mut left = bytes.len();
    for message in netlink::messages(bytes) {
        left = left.checked_sub(message.body.len()).expect("messages hold no more than there is");
        let _ = (qdisc::read(message), filter::read(message), netlink::outcome(message.body));
        let _ = (nft::read_table_flags(message.body), nft::read_elements(message.body).count());
    }
}

pub use delay::{MAX_HOLDS, Outcome, PacketDelay, Plan, Settings, remove_leftovers};
pub(crate) use delay::{remove_classes, remove_filter, remove_table};
pub use error::Error;
pub use file::{FileKnob, Written};
pub(crate) use file::{read as read_file, write as write_file};
pub use hold::{Actuator, Attach, Client, Hold, Holds, Packets};
pub use queue_length::QueueLength;
