//! All integration tests of the simulator, in one program, because each test program must be linked.

mod bufferbloat;
mod drg;
mod elastic;
mod engine;
mod fuzz_smoke;
mod harm_admission;
mod harm_response;
mod iscsi;
mod latency_target;
mod messenger;
mod oracle;
mod parallel;
mod saat;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
mod totals;
mod traces;
mod world;
