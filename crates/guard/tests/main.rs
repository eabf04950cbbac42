//! The agent: one program, because each costs a link.

mod config;
mod discovery;
mod preflight_arrays;
mod queue;
mod tree;
