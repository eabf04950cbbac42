//! The protocol: one program, because each costs a link.

mod access;
mod fuzz_smoke;
mod handshake;
mod interoperate;
mod properties;
mod reply;
mod request;
mod support;
mod tls;
