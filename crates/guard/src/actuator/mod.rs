//! What is done about it: plan, apply, restore.
//!
//! Packets that are sent to a client are held back, without dropping any (iSCSI paper, section 4):
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

pub use delay::{MAX_HOLDS, Outcome, PacketDelay, Plan, Settings, remove_leftovers};
pub(crate) use delay::{remove_classes, remove_filter, remove_table};
pub use error::Error;
pub use file::{FileKnob, Written};
pub(crate) use file::{read as read_file, write as write_file};
pub use hold::{Actuator, Attach, Client, Hold, Holds, Packets};
pub use queue_length::QueueLength;
