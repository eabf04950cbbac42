//! The server's side of the protocol.
//!
//! [`Handshake`] turns a new connection into a [`Session`]. From then on the
//! caller takes requests off its receive buffer with [`request::parse`], asks
//! [`request::validate`] whether each may run, and puts a header from [`reply`]
//! in front of each answer.

mod fields;
pub mod handshake;
pub mod reply;
pub mod request;

pub use crate::wire::Request;
pub use handshake::{Access, Directory, Export, Handshake, Offer, Session, Status, Step, Tls};
pub use reply::ReplyHeader;
pub use request::Limits;

use core::fmt;

/// Why a connection has to be closed without an answer (a "hard disconnect").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The client set flags that were not offered.
    UnknownClientFlags(u32),
    /// An option does not start with its magic number.
    OptionMagic(u64),
    /// An option other than EXPORT_NAME from a client without fixed newstyle.
    OptionNotFixed(u32),
    /// An option is so long that skipping it would be a denial of service.
    OptionLength {
        /// Option code.
        option: u32,
        /// Bytes announced.
        length: u32,
    },
    /// The client sent more options than a session needs.
    TooManyOptions,
    /// EXPORT_NAME cannot be refused other than by closing: the name is not valid.
    ExportNameInvalid,
    /// EXPORT_NAME cannot be refused other than by closing: no such export.
    ExportNameUnknown,
    /// EXPORT_NAME after extended headers were negotiated, which demand GO.
    ExportNameExtended,
    /// EXPORT_NAME for an export whose block size the client must know.
    ExportNameBlockSize,
    /// EXPORT_NAME while the server shuts down.
    ExportNameShutdown,
    /// EXPORT_NAME without TLS for an export that needs it.
    ExportNameTls,
    /// EXPORT_NAME for an export that is refused to this client.
    ExportNameRefused,
    /// A request does not start with the magic number of the negotiated framing.
    RequestMagic(u32),
    /// The payload of a request is so long that reading it off the stream would be a denial of service.
    PayloadLength(u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownClientFlags(flags) => write!(f, "client flags {flags:#x} were not offered"),
            Self::OptionMagic(magic) => write!(f, "option starts with {magic:#018x} instead of IHAVEOPT"),
            Self::OptionNotFixed(option) => write!(f, "option {option} from a client without fixed newstyle"),
            Self::OptionLength { option, length } => write!(f, "option {option} announces {length} bytes"),
            Self::TooManyOptions => f.write_str("too many options"),
            Self::ExportNameInvalid => f.write_str("EXPORT_NAME with a name that is not valid"),
            Self::ExportNameUnknown => f.write_str("EXPORT_NAME for an export that does not exist"),
            Self::ExportNameExtended => f.write_str("EXPORT_NAME after extended headers"),
            Self::ExportNameBlockSize => f.write_str("EXPORT_NAME for an export with a block size to negotiate"),
            Self::ExportNameTls => f.write_str("EXPORT_NAME for an export that needs TLS"),
            Self::ExportNameRefused => f.write_str("EXPORT_NAME for an export that this client may not have"),
            Self::ExportNameShutdown => f.write_str("EXPORT_NAME while shutting down"),
            Self::RequestMagic(magic) => write!(f, "request starts with {magic:#010x}"),
            Self::PayloadLength(length) => write!(f, "request announces a payload of {length} bytes"),
        }
    }
}

impl core::error::Error for Violation {}
