//! The NBD protocol as state machines: bytes in, events out.
//!
//! No sockets, no clock, no threads. The caller moves bytes and performs the
//! requests; this crate says what the bytes mean and which bytes to answer.
//!
//! | module | role |
//! |---|---|
//! | [`wire`] | numbers and types that both sides share |
//! | [`client`] | handshake, request encoder and reply parser of a client |
//! | [`server::handshake`] | option haggling, from greeting to [`server::Session`] |
//! | [`server::request`] | parsing one request header, and every rule on whether it may run |
//! | [`server::reply`] | the header in front of each reply, in the framing that was negotiated |
//!
//! The law is the NBD specification (`doc/proto.md` of the `NetworkBlockDevice/nbd`
//! repository); comments name its sections. `docs/reference/protocol.md` lists what is
//! spoken and what was chosen where the specification leaves a choice.
#![no_std]

extern crate alloc;

pub mod client;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod server;
pub mod wire;
