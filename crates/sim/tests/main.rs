//! The simulator: one program, because each costs a link.

mod bufferbloat;
mod drg;
mod elastic;
mod engine;
mod goal;
mod iscsi;
mod messenger;
mod oracle;
mod saat;
mod traces;
mod world;
