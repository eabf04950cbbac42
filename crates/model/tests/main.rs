//! All tests of the device models in one program: every test program has to be linked.

mod bufferbloat;
mod cached;
mod disk;
mod disk_cheetah;
mod faster;
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
