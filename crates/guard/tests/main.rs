//! The agent: one program, because each costs a link.

mod config;
mod discovery;
mod fuzz_smoke;
mod preflight_arrays;
mod queue;
mod tree;
