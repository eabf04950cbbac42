//! All integration tests of the agent in one program, because each program costs a run of the linker.

mod config;
mod discovery;
#[path = "../../evenkeel/tests/serve/folder.rs"]
mod folder;
mod fuzz_smoke;
mod preflight_arrays;
mod queue;
mod tree;
