//! All integration tests of the agent in one program, because each program costs a run of the linker.

mod config;
mod discovery;
mod fuzz_smoke;
mod preflight_arrays;
mod queue;
mod tree;
