//! Numbers and types of the wire format, shared by client and server.
//!
//! Every integer travels in network byte order (big-endian).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// First 8 bytes of a server's greeting, ASCII `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second 8 bytes of a newstyle greeting and first 8 bytes of every option, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First 8 bytes of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First 4 bytes of a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First 4 bytes of a request once extended headers are negotiated.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First 4 bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First 4 bytes of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First 4 bytes of a reply chunk once extended headers are negotiated.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of a newstyle greeting: two magic numbers and the handshake flags.
pub const GREETING_LEN: usize = 18;
/// Bytes of an option header: magic, option, length.
pub const OPTION_HEADER_LEN: usize = 16;
/// Bytes of an option reply header: magic, option, reply type, length.
pub const OPTION_REPLY_HEADER_LEN: usize = 20;
/// Number of zero bytes that follow an `EXPORT_NAME` reply, unless both sides set `NO_ZEROES`.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// Bytes of a compact request header.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an extended request header.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Bytes of a simple reply header.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a structured reply chunk header.
pub const STRUCTURED_REPLY_LEN: usize = 20;
/// Bytes of an extended reply chunk header.
pub const EXTENDED_REPLY_LEN: usize = 32;

/// The port that IANA reserves for NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// The longest string (export name, description, message), in bytes ("Conventions").
pub const MAX_STRING: usize = 4096;
/// The largest payload of one READ or WRITE that every peer should accept, in
/// bytes: 32 MiB ("Block size constraints").
pub const MAX_PAYLOAD: u32 = 1 << 25;
/// The longest READ with the flag DF (one chunk of content) that a server has to support, in bytes (`NBD_CMD_READ`).
pub const MIN_UNFRAGMENTED: u32 = 65_536;
/// Smallest unit of access, in bytes, that a client should use if no block size was negotiated.
pub const PORTABLE_MIN_BLOCK: u32 = 512;

/// The one metadata context that the specification defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Status bit of `base:allocation`: the extent is not allocated.
pub const STATE_HOLE: u32 = 1;
/// Status bit of `base:allocation`: the extent reads as zeroes.
pub const STATE_ZERO: u32 = 2;

/// Option codes (field *option*).
pub mod option {
    /// Choose an export and start transmission; the server can refuse only by closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start transmission.
    pub const GO: u32 = 7;
    /// Ask for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Ask for extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types (field *reply type*).
pub mod reply {
    /// The option succeeded; this is its last reply.
    pub const ACK: u32 = 1;
    /// One export of the answer to LIST.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export, in the answer to INFO or GO; see [`super::info`].
    pub const INFO: u32 = 3;
    /// One metadata context that is available or was selected.
    pub const META_CONTEXT: u32 = 4;
    /// Bit that is set in every error reply.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The server's policy forbids the option.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is malformed or not allowed at this point of the negotiation.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The option needs something that the server's platform lacks.
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    /// TLS must be started first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must ask for the block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The request or its reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers must be negotiated first, or are in use already and cannot be undone.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Types of the information on an export in answers to `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags of the export.
    pub const EXPORT: u16 = 0;
    /// Canonical name of the export.
    pub const NAME: u16 = 1;
    /// Human-readable description of the export.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum block size, preferred block size and maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Reply chunk types (field *type* of structured and extended replies).
pub mod chunk {
    /// A chunk without payload; always the last one of a reply.
    pub const NONE: u16 = 0;
    /// Content of a READ: an offset in the export, and the data from there on.
    pub const OFFSET_DATA: u16 = 1;
    /// Content of a READ: an offset in the export, and a number of bytes that are zero from there on.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a BLOCK_STATUS, with 32-bit lengths.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of a BLOCK_STATUS, with 64-bit lengths.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Bit that is set in the type of every error chunk.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// The request failed at the offset that the chunk names.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
    /// Chunk flag (field *flags*): the chunk is the last one of its reply.
    pub const FLAG_DONE: u16 = 1;
}

macro_rules! flags {
    ($(#[$meta:meta])* $name:ident($int:ty) { $($(#[$flag_meta:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: Self = Self(1 << $bit);)*
            /// No flag.
            pub const NONE: Self = Self(0);
            /// Every flag that is defined.
            pub const ALL: Self = Self($((1 << $bit) |)* 0);

            /// The flags with these bits, known or not.
            #[inline]
            pub const fn from_bits(bits: $int) -> Self {
                Self(bits)
            }
            /// The bits as sent on the wire.
            #[inline]
            pub const fn bits(self) -> $int {
                self.0
            }
            /// True if all flags of `other` are set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
            /// These flags without those of `other`.
            #[inline]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
            /// These flags and those of `other`: the operator `|` for constants.
            #[inline]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
            /// True if no flag is set.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl BitOr for $name {
            type Output = Self;
            #[inline]
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            #[inline]
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }
    };
}

flags! {
    /// Features that the server offers in its greeting.
    HandshakeFlags(u16) {
        /// The server speaks fixed newstyle.
        FIXED_NEWSTYLE = 0;
        /// The server can leave out the 124 zero bytes after an `EXPORT_NAME` reply.
        NO_ZEROES = 1;
    }
}

flags! {
    /// Features that the client chooses among the server's [`HandshakeFlags`].
    ClientFlags(u32) {
        /// The client speaks fixed newstyle.
        FIXED_NEWSTYLE = 0;
        /// The server must leave out the 124 zero bytes after an `EXPORT_NAME` reply.
        NO_ZEROES = 1;
    }
}

flags! {
    /// Features of an export and the commands that it supports.
    TransmissionFlags(u16) {
        /// Always set, so that the field is never 0.
        HAS_FLAGS = 0;
        /// The export refuses writes.
        READ_ONLY = 1;
        /// FLUSH is supported.
        SEND_FLUSH = 2;
        /// FUA (force unit access) is supported.
        SEND_FUA = 3;
        /// The medium is rotational.
        ROTATIONAL = 4;
        /// TRIM is supported.
        SEND_TRIM = 5;
        /// WRITE_ZEROES is supported.
        SEND_WRITE_ZEROES = 6;
        /// The flag DF (do not fragment: answer a READ with one chunk) is supported; requires structured replies or extended
        /// headers.
        SEND_DF = 7;
        /// A FLUSH or FUA on one connection makes writes durable that completed on any connection to the export.
        CAN_MULTI_CONN = 8;
        /// RESIZE (experimental extension) is supported.
        SEND_RESIZE = 9;
        /// CACHE is supported.
        SEND_CACHE = 10;
        /// The flag FAST_ZERO is supported; requires `SEND_WRITE_ZEROES`.
        SEND_FAST_ZERO = 11;
        /// BLOCK_STATUS accepts a payload that selects contexts; requires extended headers.
        BLOCK_STATUS_PAYLOAD = 12;
    }
}

flags! {
    /// Flags of a request, which modify its command.
    CommandFlags(u16) {
        /// Reply only after the data written by this request is on stable storage.
        FUA = 0;
        /// For WRITE_ZEROES: keep the range allocated, do not punch a hole.
        NO_HOLE = 1;
        /// For READ (do not fragment): reply with one chunk of content.
        DF = 2;
        /// For BLOCK_STATUS: reply with one extent.
        REQ_ONE = 3;
        /// For WRITE_ZEROES: fail at once with [`Errno::NotSupported`] if zeroing is not faster than a WRITE.
        FAST_ZERO = 4;
        /// With extended headers: the field *length* is the length of a payload that follows the header.
        PAYLOAD_LEN = 5;
    }
}

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read data.
    Read,
    /// Write the data that follows the header.
    Write,
    /// End the session; there is no reply.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Discard the range: the client no longer needs its data.
    Trim,
    /// Prefetch the range: the client will read it soon.
    Cache,
    /// Write zeroes.
    WriteZeroes,
    /// Describe the extents of a range.
    BlockStatus,
    /// A code that this crate does not know.
    Unknown(u16),
}

impl Command {
    /// The command with this code.
    #[inline]
    pub const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    /// The code as sent on the wire.
    #[inline]
    pub const fn code(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(code) => code,
        }
    }
}

/// The header of a request, for client and server; a write's payload follows it on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number that the client chooses and the server repeats in every reply; unique among outstanding requests.
    pub cookie: u64,
    /// The command.
    pub command: Command,
    /// Flags that modify the command.
    pub flags: CommandFlags,
    /// Offset in the export of the first byte concerned; 0 for FLUSH.
    pub offset: u64,
    /// Number of bytes concerned; 0 for FLUSH. Only extended headers carry more than 2^32 - 1.
    pub length: u64,
}

impl Request {
    /// Number of payload bytes that follow the header on the wire, also if the request is not valid. `extended`: headers are
    /// extended. A WRITE has a payload even without the flag that says so: QEMU's client, up to version 10 at least, never sets
    /// the flag.
    #[inline]
    pub const fn payload_len(&self, extended: bool) -> u64 {
        let is_flagged = extended && self.flags.contains(CommandFlags::PAYLOAD_LEN);
        if is_flagged || matches!(self.command, Command::Write) { self.length } else { 0 }
    }
}

/// The errors that a reply can carry ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// The back end failed.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// The request breaks a rule.
    Invalid = 22,
    /// The back end is full, or a write reaches past the end of the export.
    NoSpace = 28,
    /// A READ with the flag DF is too long for one chunk.
    Overflow = 75,
    /// WRITE_ZEROES with the flag FAST_ZERO would not be faster than a WRITE.
    NotSupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// The code as sent on the wire.
    #[inline]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error with this code; `None` for 0, which means success. Codes outside
    /// the specification count as [`Errno::Invalid`], which it asks clients to do.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpace,
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Invalid,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perm => "operation not permitted",
            Self::Io => "input/output error",
            Self::NoMem => "out of memory",
            Self::Invalid => "invalid argument",
            Self::NoSpace => "no space left on device",
            Self::Overflow => "value too large",
            Self::NotSupported => "operation not supported",
            Self::Shutdown => "server is shutting down",
        })
    }
}

impl core::error::Error for Errno {}

/// Format of requests and replies in the transmission phase; fixed by the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Compact request headers (28 bytes), and simple replies.
    #[default]
    Simple,
    /// Compact request headers (28 bytes), and replies of structured chunks.
    Structured,
    /// Extended request headers, and replies of extended chunks; all headers have 32 bytes.
    Extended,
}

impl Framing {
    /// True if replies are made of chunks.
    #[inline]
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Self::Simple)
    }

    /// True if requests and replies use extended headers.
    #[inline]
    pub const fn is_extended(self) -> bool {
        matches!(self, Self::Extended)
    }
}

/// A run of blocks with one status, as BLOCK_STATUS reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes; not zero on the wire.
    pub length: u64,
    /// Status of the extent in its metadata context; for `base:allocation` the bits [`STATE_HOLE`] and [`STATE_ZERO`].
    pub status: u32,
}
