//! All tests of the devices in one program, because each program costs a link.

mod bufferbloat;
mod cached;
mod disk;
mod disk_cheetah;
#[path = "support/laws.rs"]
mod laws;
mod link;
#[path = "support/replay.rs"]
mod replay;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
mod ssd;
mod ssd_facts;
mod store;
mod store_facts;
mod worker;
