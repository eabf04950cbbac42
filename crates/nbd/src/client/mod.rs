//! The client role: handshake, request encoder and reply parser.
//!
//! ```text
//!              bytes in                             bytes out
//!  Handshake ◀───────── server greeting, replies ─────────▶ options
//!      │ Connected { size, flags, limits, headers }
//!      ▼
//!  Request::encode ──────────────────────────────────────▶ requests
//!  Replies::parse ◀──── replies ──▶ Sink: data, holes, extents, errors, done
//! ```
//!
//! Nothing here reads or writes a socket. The caller owns the buffers and remembers
//! its outstanding requests (the parser looks them up through [`Sink::expect`]). The
//! parser passes payload to the [`Sink`] in place and never copies it.
//!
//! If the server breaks the protocol, a function returns a [`Violation`] (and never
//! panics); the connection cannot be used any further. Memory is bounded: the
//! handshake keeps at most [`MAX_LISTED`] exports, the reply parser a few words for
//! each request that is answered in parts.

mod coverage;
mod handshake;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use core::fmt;

pub use crate::wire::Request;
pub use handshake::{
    Connected, Handshake, Listed, MAX_LISTED, MAX_OPTION_REPLY, Outcome, Purpose, Refusal, Step, Wanted,
};
pub use reply::{Expect, MAX_CARRY, Replies, Sink};
pub use request::MAX_REQUEST;

/// A server's violation of the protocol. The connection cannot be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Description of the violation.
    pub what: &'static str,
    /// The number that is wrong, or that identifies the place: a magic number, a length, an offset, a cookie.
    pub value: u64,
}

impl Violation {
    pub(crate) const fn new(what: &'static str, value: u64) -> Self {
        Self { what, value }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server broke the NBD protocol: {} (wrong value or place: {:#x}); try another version of that server",
            self.what, self.value
        )
    }
}

impl core::error::Error for Violation {}

/// The 16-bit big-endian integer at `bytes[at..]`; the caller has checked the length of `bytes`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The 32-bit big-endian integer at `bytes[at..]`; the caller has checked the length of `bytes`.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

/// The 64-bit big-endian integer at `bytes[at..]`; the caller has checked the length of `bytes`.
#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}
