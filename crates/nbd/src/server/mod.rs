//! The server's side of the protocol.
//!
//! [`Handshake`] turns a new connection into a [`Session`]. From then on the
//! caller takes requests off its receive buffer with [`request::parse`], checks
//! each with [`request::validate`], and puts a header from [`reply`] in front of
//! each answer.

mod fields;
pub mod handshake;
pub mod reply;
pub mod request;

pub use crate::wire::Request;
pub use handshake::{Access, Directory, Export, Handshake, Offer, Session, Status, Step, Tls};
pub use reply::ReplyHeader;
pub use request::Limits;

use core::fmt;

/// The reason why a connection has to be closed without an answer (a "hard disconnect").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The client set flags that were not offered; the field has all its flags.
    UnknownClientFlags(u32),
    /// An option starts with this number instead of its magic number.
    OptionMagic(u64),
    /// A client without fixed newstyle sent an option with this code, which is not EXPORT_NAME.
    OptionNotFixed(u32),
    /// An option's data is longer than [`MAX_SKIPPED_OPTION`](handshake::MAX_SKIPPED_OPTION).
    OptionLength {
        /// Option code.
        option: u32,
        /// Length of the data in bytes, as announced.
        length: u32,
    },
    /// The client sent more options than a session needs, see [`MAX_OPTIONS`](handshake::MAX_OPTIONS).
    TooManyOptions,
    /// EXPORT_NAME, which can only be refused by closing, with a name that is not valid.
    ExportNameInvalid,
    /// EXPORT_NAME, which can only be refused by closing, for an export that does not exist.
    ExportNameUnknown,
    /// EXPORT_NAME after extended headers were negotiated, which demand GO.
    ExportNameExtended,
    /// EXPORT_NAME for an export whose minimum block size the client must ask for first.
    ExportNameBlockSize,
    /// EXPORT_NAME while the server shuts down.
    ExportNameShutdown,
    /// EXPORT_NAME before TLS was started, for an export that needs TLS or at a server that demands it.
    ExportNameTls,
    /// EXPORT_NAME for an export that this client may not use.
    ExportNameRefused,
    /// A request starts with this number instead of the magic number of the negotiated framing.
    RequestMagic(u32),
    /// A request announces a payload of this length in bytes, above [`MAX_SKIP`](request::MAX_SKIP).
    PayloadLength(u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownClientFlags(flags) => write!(f, "the client set flags that were not offered: {flags:#x}"),
            Self::OptionMagic(magic) => write!(f, "the client began an option with {magic:#018x} instead of IHAVEOPT"),
            Self::OptionNotFixed(option) => write!(f, "the client sent option {option} without fixed newstyle"),
            Self::OptionLength { option, length } => {
                write!(f, "the client's option {option} is too long ({length} bytes; at most 1 MiB is accepted)")
            }
            Self::TooManyOptions => f.write_str("the client sent too many options before it chose an export"),
            Self::ExportNameInvalid => f.write_str("the client sent EXPORT_NAME with an invalid name"),
            Self::ExportNameUnknown => f.write_str("the client sent EXPORT_NAME for an export that does not exist"),
            Self::ExportNameExtended => f.write_str("the client sent EXPORT_NAME after extended headers, not GO"),
            Self::ExportNameBlockSize => f.write_str("the client sent EXPORT_NAME where the block size needs GO"),
            Self::ExportNameTls => f.write_str("the client sent EXPORT_NAME without TLS for an export that needs it"),
            Self::ExportNameRefused => f.write_str("the client sent EXPORT_NAME for an export that it may not use"),
            Self::ExportNameShutdown => f.write_str("the client sent EXPORT_NAME while the server shuts down"),
            Self::RequestMagic(magic) => {
                write!(f, "the client began a request with {magic:#010x}, not the magic number of requests")
            }
            Self::PayloadLength(length) => {
                write!(f, "the client announced a payload of {length} bytes; at most 1 GiB is accepted")
            }
        }
    }
}

impl core::error::Error for Violation {}
