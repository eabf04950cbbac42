//! What is done about it: plan, apply, restore.
//!
//! The one actuator so far holds back packets that are sent to a client, without dropping any (iSCSI paper, section 4):
//!
//! ```text
//!  packet to a client ──▶ nftables: whose is it? ──▶ priority = class ──▶ HTB class n ──▶ netem, n × step ──▶ device
//!                             └─ nobody's ──────────────────────────────▶ past all classes ───────────────────▶
//! ```
//!
//! Classes are made once. A tick changes the maps only, in one transaction, over netlink and without starting a process.

mod delay;
mod error;
mod file;
mod hold;
mod netlink;
mod nft;
mod qdisc;
mod table;

pub use delay::{MAX_HOLDS, Outcome, PacketDelay, Plan, Settings};
pub(crate) use delay::{remove_classes, remove_table};
pub use error::Error;
pub use file::{FileKnob, Written};
pub(crate) use file::{read as read_file, write as write_file};
pub use hold::{Client, Hold, Holds, Packets};
