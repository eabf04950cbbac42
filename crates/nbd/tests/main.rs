//! Tests of the protocol in one program: every test program has to be linked.

mod access;
mod fuzz_smoke;
mod handshake;
mod interoperate;
mod properties;
mod reply;
mod request;
mod support;
mod tls;
