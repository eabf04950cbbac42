//! Requests: parsing of a header, and the rules that a request must meet before it runs.
//!
//! # Payloads
//!
//! [`payload_len`](Request::payload_len) bytes follow the header on the wire, also
//! if the request is not valid: they must be taken off the stream before the next
//! header. WRITE has a payload, with extended headers even without
//! [`CommandFlags::PAYLOAD_LEN`], and so has every other request with that flag
//! in an extended header. So when [`validate`] refuses a request, the caller skips
//! `payload_len` bytes, then sends the error. A payload has at most [`MAX_SKIP`]
//! bytes: [`parse`] treats a longer one as a violation.

use super::{Session, Violation};
use crate::wire::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, EXTENDED_REQUEST_MAGIC, Errno, REQUEST_LEN, REQUEST_MAGIC, Request,
    TransmissionFlags,
};

/// The longest payload of a request that is read off the stream, in bytes: 1 GiB.
///
/// The specification wants no disconnect for payloads below 32 MiB. 1 GiB is the largest `max_payload` that a server can be
/// configured with: a client that sends more than a smaller limit allows gets an error and keeps its connection.
pub const MAX_SKIP: u64 = 1 << 30;

/// Takes one request off the front of `input`. Returns the request and its header's length (28 bytes, 32 with `extended`
/// headers); `None` if `input` has less than a header. Checks only the magic number and the payload's length. Does not
/// allocate; O(1).
///
/// # Errors
///
/// [`Violation::RequestMagic`], after which the stream cannot be understood, and
/// [`Violation::PayloadLength`] for a payload above [`MAX_SKIP`].
#[inline]
pub fn parse(input: &[u8], extended: bool) -> Result<Option<(Request, usize)>, Violation> {
    if extended { parse_extended(input) } else { parse_compact(input) }
}

#[inline]
fn parse_compact(input: &[u8]) -> Result<Option<(Request, usize)>, Violation> {
    let Some(header) = input.first_chunk::<REQUEST_LEN>() else { return Ok(None) };
    let length = u64::from(u32::from_be_bytes(field(header, 24)));
    Ok(Some((request(header, REQUEST_MAGIC, length, false)?, REQUEST_LEN)))
}

#[inline]
fn parse_extended(input: &[u8]) -> Result<Option<(Request, usize)>, Violation> {
    let Some(header) = input.first_chunk::<EXTENDED_REQUEST_LEN>() else { return Ok(None) };
    let length = u64::from_be_bytes(field(header, 24));
    Ok(Some((request(header, EXTENDED_REQUEST_MAGIC, length, true)?, EXTENDED_REQUEST_LEN)))
}

/// Reads the fields that compact and extended headers have in common, and checks magic number and payload.
#[inline]
fn request(header: &[u8], magic: u32, length: u64, extended: bool) -> Result<Request, Violation> {
    let found = u32::from_be_bytes(field(header, 0));
    if found != magic {
        return Err(Violation::RequestMagic(found));
    }
    let request = Request {
        cookie: u64::from_be_bytes(field(header, 8)),
        command: Command::from_code(u16::from_be_bytes(field(header, 6))),
        flags: CommandFlags::from_bits(u16::from_be_bytes(field(header, 4))),
        offset: u64::from_be_bytes(field(header, 16)),
        length,
    };
    let payload_len = request.payload_len(extended);
    if payload_len > MAX_SKIP { Err(Violation::PayloadLength(payload_len)) } else { Ok(request) }
}

/// The `N` bytes of a header at place `at`, which lie within the header.
#[inline]
fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// The present limits of an export on requests; they may change during a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the export in bytes.
    pub size: u64,
    /// True if writes are refused.
    pub read_only: bool,
    /// Unit of access in bytes, of which every offset and length must be a multiple; a power of two.
    pub min_block: u32,
    /// The longest READ or WRITE, in bytes; at least [`MIN_UNFRAGMENTED`](crate::wire::MIN_UNFRAGMENTED).
    pub max_payload: u32,
}

/// Checks a request by every rule of the specification that can be tested without access to the export's data. O(1).
///
/// # Errors
///
/// The error to reply with ("Error values"). The payload, if any, must be
/// skipped: see the [module's documentation](self).
#[inline]
pub fn validate(request: &Request, limits: &Limits, session: &Session) -> Result<(), Errno> {
    use TransmissionFlags as Has;
    let has = |flag| session.flags.contains(flag);
    let extended = session.framing.is_extended();

    // What the command may carry, and whether it was offered.
    let (own_flags, offered, writes) = match request.command {
        Command::Read => (CommandFlags::DF, true, false),
        Command::Write => (if extended { CommandFlags::PAYLOAD_LEN } else { CommandFlags::NONE }, true, true),
        Command::Disconnect => return Ok(()),
        Command::Flush => (CommandFlags::NONE, has(Has::SEND_FLUSH), false),
        Command::Trim => (CommandFlags::NONE, has(Has::SEND_TRIM), true),
        Command::Cache => (CommandFlags::NONE, has(Has::SEND_CACHE), false),
        Command::WriteZeroes => (CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO, has(Has::SEND_WRITE_ZEROES), true),
        Command::BlockStatus => (CommandFlags::REQ_ONE, session.base_allocation, false),
        Command::Unknown(_) => return Err(Errno::Invalid),
    };
    if !offered || !request.flags.without(own_flags | CommandFlags::FUA).is_empty() {
        return Err(Errno::Invalid);
    }
    // Flags that are valid for the command only if they were offered.
    for (flag, offer) in [
        (CommandFlags::FUA, Has::SEND_FUA),
        (CommandFlags::DF, Has::SEND_DF),
        (CommandFlags::FAST_ZERO, Has::SEND_FAST_ZERO),
    ] {
        if request.flags.contains(flag) && !has(offer) {
            return Err(Errno::Invalid);
        }
    }
    if writes && limits.read_only {
        return Err(Errno::Perm);
    }

    // The range.
    if request.command == Command::Flush {
        return if request.offset == 0 && request.length == 0 { Ok(()) } else { Err(Errno::Invalid) };
    }
    let misaligned = (request.offset | request.length) & (u64::from(limits.min_block) - 1) != 0;
    if request.length == 0 || misaligned {
        return Err(Errno::Invalid);
    }
    if request.offset.checked_add(request.length).is_none_or(|end| end > limits.size) {
        let grows = matches!(request.command, Command::Write | Command::WriteZeroes);
        return Err(if grows { Errno::NoSpace } else { Errno::Invalid });
    }
    let moves_data = matches!(request.command, Command::Read | Command::Write);
    if moves_data && request.length > u64::from(limits.max_payload) {
        let unfragmented = request.flags.contains(CommandFlags::DF);
        return Err(if unfragmented { Errno::Overflow } else { Errno::Invalid });
    }
    Ok(())
}
