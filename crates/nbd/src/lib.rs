//! The NBD protocol as state machines: bytes in, events out.
//!
//! No sockets, no clock, no threads. The caller moves bytes and performs the
//! requests; this crate decodes the received bytes and encodes those to send.
//!
//! | module | role |
//! |---|---|
//! | [`wire`] | numbers and types that both sides share |
//! | [`client`] | handshake, request encoder and reply parser of a client |
//! | [`server::handshake`] | option haggling, from greeting to [`server::Session`] |
//! | [`server::request`] | parsing of a request header, and the rules that a request must meet before it runs |
//! | [`server::reply`] | the header in front of each reply, in the framing that was negotiated |
//!
//! The crate follows the NBD specification (`doc/proto.md` of the `NetworkBlockDevice/nbd`
//! repository); comments name its sections. `docs/reference/protocol.md` lists the supported
//! parts and the choices made where the specification leaves one.
#![no_std]

extern crate alloc;

pub mod client;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod server;
pub mod wire;
