//! Option haggling, server side: from the greeting to the transmission phase.

use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use super::Violation;
use super::fields::{Fields, parse_contexts, parse_describe, string};
use super::reply::BASE_ALLOCATION_ID;
use crate::wire::{
    BASE_ALLOCATION, ClientFlags, EXPORT_NAME_ZEROES, Framing, GREETING_MAGIC, HandshakeFlags, MAX_STRING,
    OPTION_HEADER_LEN, OPTION_MAGIC, OPTION_REPLY_MAGIC, PORTABLE_MIN_BLOCK, TransmissionFlags, info, option, reply,
};

/// The longest option payload that is kept in memory, in bytes: room for an export name of the longest permitted length and
/// several queries of the same length.
pub const MAX_OPTION: u32 = 16 * 1024;

/// The longest option payload that is skipped and answered with an error, in
/// bytes; a longer one closes the connection. Far above any sensible option.
pub const MAX_SKIPPED_OPTION: u32 = 1 << 20;

/// The most options of one negotiation, besides [`MAX_OPTIONS_PER_EXPORT`] for each export.
pub const MAX_OPTIONS: u32 = 4096;

/// Options for each export that a negotiation may have beyond [`MAX_OPTIONS`]: a client that asks about all exports asks for
/// the description and the contexts of each, and may ask for one of the two again.
pub const MAX_OPTIONS_PER_EXPORT: u32 = 4;

/// Bytes after which the answer to LIST pauses until they are sent, so that a client that does not read costs little memory
/// with any number of exports.
pub const LIST_PIECE: usize = 32 * 1024;

/// Exports after which the answer to LIST pauses, hidden ones included.
const LIST_PIECE_EXPORTS: usize = 1024;

/// The facts that a client can learn about an export before it starts transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export<'a> {
    /// Canonical name, at most [`MAX_STRING`] bytes, without NUL.
    pub name: &'a str,
    /// Human-readable description, at most [`MAX_STRING`] bytes; may be empty.
    pub description: &'a str,
    /// Size in bytes; should be a multiple of `min_block`.
    pub size: u64,
    /// Features of the export. The server adds `HAS_FLAGS`, removes `SEND_DF` and `SEND_FAST_ZERO` where the specification
    /// demands it, and always removes features that this crate does not support (`SEND_RESIZE`, `BLOCK_STATUS_PAYLOAD`).
    pub flags: TransmissionFlags,
    /// Smallest unit of access in bytes: a power of two up to 65,536.
    pub min_block: u32,
    /// Efficient unit of access in bytes: a power of two, at least 512 and `min_block`.
    pub preferred_block: u32,
    /// Longest READ or WRITE in bytes: a multiple of `min_block`, at least `preferred_block`.
    pub max_payload: u32,
    /// Access of this negotiation's client to the export.
    pub access: Access,
}

/// Access of a client to an export. An export is neither listed nor described to a client without access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The client may use the export.
    #[default]
    Open,
    /// The client may use the export after starting TLS.
    TlsOnly,
    /// The client may not use the export, with or without TLS.
    Refused,
}

/// The server's exports, with the access of one client to each.
pub trait Directory {
    /// Number of exports, including those that are refused to this client.
    fn count(&self) -> usize;

    /// Calls `f` for each export in the order of the list, from place `from` on, until `f` returns false. Returns the place
    /// from which the next call goes on; `None` after the last export.
    ///
    /// The first place is 0. Exports may be added and removed between two calls; the other exports keep their places.
    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize>;

    /// Calls `f` with the export of this name and returns true, or returns false
    /// if there is none. The empty name means the default export; its `name` is
    /// then the canonical one.
    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool;
}

/// Optional parts of the protocol that the server agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// True to grant structured replies.
    pub structured: bool,
    /// True to grant extended headers.
    pub extended: bool,
    /// The use of TLS.
    pub tls: Tls,
}

impl Default for Offer {
    fn default() -> Self {
        Self { structured: true, extended: true, tls: Tls::No }
    }
}

/// The use of TLS: the modes of the specification ("TLS support").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// NOTLS: the server cannot start TLS.
    #[default]
    No,
    /// SELECTIVETLS: the server can start TLS, and demands it for exports that are [`Access::TlsOnly`].
    Selective,
    /// FORCEDTLS: before TLS is started, all options but STARTTLS and ABORT are refused, and no export is named.
    Forced,
}

/// The result of a negotiation, on which the transmission phase is based.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Canonical name of the export.
    pub export: String,
    /// The transmission flags that the server sent to the client.
    pub flags: TransmissionFlags,
    /// The negotiated format of requests and replies.
    pub framing: Framing,
    /// True if BLOCK_STATUS may be used, with `base:allocation` as the only context; its ID is [`BASE_ALLOCATION_ID`].
    pub base_allocation: bool,
    /// True if the client asked for the block sizes, and so must obey them.
    pub block_sizes: bool,
}

impl Session {
    /// True if replies are made of chunks, structured or extended.
    #[inline]
    pub const fn structured(&self) -> bool {
        self.framing.has_chunks()
    }

    /// True if headers of requests and replies are extended.
    #[inline]
    pub const fn extended(&self) -> bool {
        self.framing.is_extended()
    }
}

/// The result of a call to [`Handshake::advance`].
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken off the front of the input.
    pub consumed: usize,
    /// The caller's next step.
    pub status: Status,
}

/// The caller's next step after [`Handshake::advance`].
#[derive(Debug, PartialEq, Eq)]
pub enum Status {
    /// Send the bytes in `out`, then call again: at once if input is left, else
    /// when more arrives.
    More,
    /// Send the bytes in `out`, which are a part of an answer. When they are sent, call again for the next part, with the rest
    /// of the input, if any.
    Unfinished,
    /// Send the bytes in `out` unencrypted, then start TLS on the connection, and call again with the decrypted bytes.
    ///
    /// If input is left, close the connection: the input came before the client could know of this answer, so that TLS did not
    /// protect it.
    StartTls,
    /// Send the bytes in `out`; input that is left belongs to the first requests.
    Transmission(Session),
    /// Send the bytes in `out`, then close the connection: the client has ended the negotiation.
    Closed,
}

/// The negotiation with one client.
///
/// Keeps at most [`MAX_OPTION`] bytes of input, and appends at most [`LIST_PIECE`] bytes and one export's answer in a call.
/// A time limit is up to the caller.
#[derive(Debug)]
pub struct Handshake {
    offer: Offer,
    stage: Stage,
    /// Bytes received so far of a message that is not complete.
    pending: Vec<u8>,
    /// Number of options received.
    options: u32,
    client: ClientFlags,
    framing: Framing,
    /// Name of the export for which the client last selected `base:allocation`.
    context_for: Option<String>,
    /// True if TLS was started.
    secure: bool,
    shutting_down: bool,
}

/// The reason why an export is not served to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withheld {
    NeedsTls,
    Refused,
}

/// The message that the negotiation expects or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ClientFlags,
    /// The header of an option.
    Header,
    /// The `length` bytes of data of an option.
    Payload {
        option: u32,
        length: u32,
    },
    /// The last `left` bytes of an option's data that is too long to keep.
    Skip {
        option: u32,
        left: u32,
    },
    /// The answer to LIST, which is complete up to the place `next` of the directory.
    List {
        next: usize,
    },
    Ended,
}

impl Handshake {
    /// A negotiation that has not begun; it begins with a call of [`greet`](Self::greet).
    pub fn new(offer: Offer) -> Self {
        Self {
            offer,
            stage: Stage::ClientFlags,
            pending: Vec::new(),
            options: 0,
            client: ClientFlags::NONE,
            framing: Framing::Simple,
            context_for: None,
            secure: false,
            shutting_down: false,
        }
    }

    /// Appends the greeting, the first bytes to send, to `out`.
    pub fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&HandshakeFlags::ALL.bits().to_be_bytes());
    }

    /// Number of options received, including the one that is being answered.
    pub const fn options(&self) -> u32 {
        self.options
    }

    /// True if the answer to the last option is not complete: [`advance`](Self::advance) appends more of it without input.
    pub const fn is_unfinished(&self) -> bool {
        matches!(self.stage, Stage::List { .. })
    }

    /// Ends the negotiation soon: from now on every option but ABORT is answered with `ERR_SHUTDOWN`, EXPORT_NAME with a
    /// [`Violation`].
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Takes in bytes from the client, and appends answers to `out`.
    ///
    /// Returns when all input is consumed, when an option is answered, or when a part of the answer to LIST is in `out`. Then
    /// call again with the rest of the input.
    ///
    /// # Errors
    ///
    /// When the client breaks the protocol; the connection must be closed. `out` may hold earlier answers.
    pub fn advance(&mut self, input: &[u8], dir: &impl Directory, out: &mut Vec<u8>) -> Result<Step, Violation> {
        let mut rest = input;
        let result = loop {
            match self.step(&mut rest, dir, out) {
                Ok(None) => {}
                Ok(Some(status)) => break Ok(Step { consumed: input.len() - rest.len(), status }),
                Err(violation) => break Err(violation),
            }
        };
        if !matches!(result, Ok(Step { status: Status::More | Status::Unfinished | Status::StartTls, .. })) {
            self.stage = Stage::Ended;
            self.pending = Vec::new();
        }
        result
    }

    /// Takes one message, or as much of it as has arrived, off `rest`. `None`: go on with the next message.
    fn step(&mut self, rest: &mut &[u8], dir: &impl Directory, out: &mut Vec<u8>) -> Result<Option<Status>, Violation> {
        let needed = match self.stage {
            Stage::ClientFlags => 4,
            Stage::Header => OPTION_HEADER_LEN,
            Stage::Payload { length, .. } => length as usize,
            Stage::Skip { option, left } => {
                let skipped = (left as usize).min(rest.len());
                *rest = &rest[skipped..];
                let left = left - skipped as u32;
                self.stage = Stage::Skip { option, left };
                return if left == 0 { self.finish_skip(option, out).map(Some) } else { Ok(Some(Status::More)) };
            }
            Stage::List { next } => return Ok(Some(self.list(next, dir, out))),
            Stage::Ended => return Ok(Some(Status::Closed)),
        };
        let (taken, after) = rest.split_at((needed - self.pending.len()).min(rest.len()));
        self.pending.extend_from_slice(taken);
        *rest = after;
        if self.pending.len() < needed {
            return Ok(Some(Status::More));
        }
        let message = mem::take(&mut self.pending);
        let status = match self.stage {
            Stage::ClientFlags => self.take_client_flags(&message).map(|()| None),
            Stage::Header => self.take_header(&message, dir).map(|()| None),
            Stage::Payload { option, .. } => {
                self.stage = Stage::Header;
                self.take_option(option, &message, dir, out).map(Some)
            }
            Stage::Skip { .. } | Stage::List { .. } | Stage::Ended => Ok(None),
        };
        // The allocation is worth keeping from option to option.
        self.pending = message;
        self.pending.clear();
        status
    }

    fn take_client_flags(&mut self, message: &[u8]) -> Result<(), Violation> {
        let bits = Fields(message).u32().unwrap_or(0);
        let flags = ClientFlags::from_bits(bits);
        if !flags.without(ClientFlags::ALL).is_empty() {
            return Err(Violation::UnknownClientFlags(bits));
        }
        self.client = flags;
        self.stage = Stage::Header;
        Ok(())
    }

    fn take_header(&mut self, message: &[u8], dir: &impl Directory) -> Result<(), Violation> {
        let mut fields = Fields(message);
        let (Some(magic), Some(option), Some(length)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return Ok(());
        };
        if magic != OPTION_MAGIC {
            return Err(Violation::OptionMagic(magic));
        }
        if !self.client.contains(ClientFlags::FIXED_NEWSTYLE) && option != option::EXPORT_NAME {
            return Err(Violation::OptionNotFixed(option));
        }
        self.options += 1;
        let exports = u32::try_from(dir.count()).unwrap_or(u32::MAX);
        if self.options > MAX_OPTIONS.saturating_add(exports.saturating_mul(MAX_OPTIONS_PER_EXPORT)) {
            return Err(Violation::TooManyOptions);
        }
        if length > MAX_SKIPPED_OPTION {
            return Err(Violation::OptionLength { option, length });
        }
        self.stage = match option {
            option::EXPORT_NAME if length as usize > MAX_STRING => return Err(Violation::ExportNameInvalid),
            _ if length > MAX_OPTION => Stage::Skip { option, left: length },
            _ => Stage::Payload { option, length },
        };
        Ok(())
    }

    /// Answers an option whose payload was too long to keep.
    fn finish_skip(&mut self, option: u32, out: &mut Vec<u8>) -> Result<Status, Violation> {
        self.stage = Stage::Header;
        match option {
            option::ABORT => return Ok(abort(out)),
            _ if self.shutting_down => fail(out, option, reply::ERR_SHUTDOWN, SHUTTING_DOWN),
            option::STARTTLS if self.offer.tls != Tls::No => fail(out, option, reply::ERR_INVALID, UNEXPECTED_DATA),
            _ if self.must_start_tls() => fail(out, option, reply::ERR_TLS_REQD, START_TLS),
            option::LIST
            | option::INFO
            | option::GO
            | option::STRUCTURED_REPLY
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT
            | option::EXTENDED_HEADERS => fail(out, option, reply::ERR_TOO_BIG, "the option's data is too long"),
            _ => fail(out, option, reply::ERR_UNSUP, ""),
        }
        if option == option::SET_META_CONTEXT {
            self.context_for = None;
        }
        Ok(Status::More)
    }

    fn take_option(
        &mut self,
        option: u32,
        data: &[u8],
        dir: &impl Directory,
        out: &mut Vec<u8>,
    ) -> Result<Status, Violation> {
        match option {
            option::ABORT => return Ok(abort(out)),
            option::EXPORT_NAME => return self.export_name(data, dir, out),
            _ if self.shutting_down => fail(out, option, reply::ERR_SHUTDOWN, SHUTTING_DOWN),
            option::STARTTLS if self.offer.tls != Tls::No => return Ok(self.start_tls(data, out)),
            _ if self.must_start_tls() => fail(out, option, reply::ERR_TLS_REQD, START_TLS),
            option::LIST if data.is_empty() => return Ok(self.list(0, dir, out)),
            option::INFO | option::GO => {
                if let Some(session) = self.describe(option, data, dir, out) {
                    return Ok(Status::Transmission(session));
                }
            }
            option::STRUCTURED_REPLY if self.offer.structured && data.is_empty() => {
                if self.framing.is_extended() {
                    fail(out, option, reply::ERR_EXT_HEADER_REQD, "extended headers are in use already");
                } else {
                    self.framing = Framing::Structured;
                    acknowledge(out, option);
                }
            }
            option::EXTENDED_HEADERS if self.offer.extended && data.is_empty() => {
                self.framing = Framing::Extended;
                acknowledge(out, option);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, dir, out),
            option::LIST => fail(out, option, reply::ERR_INVALID, UNEXPECTED_DATA),
            option::STRUCTURED_REPLY if self.offer.structured => fail(out, option, reply::ERR_INVALID, UNEXPECTED_DATA),
            option::EXTENDED_HEADERS if self.offer.extended => fail(out, option, reply::ERR_INVALID, UNEXPECTED_DATA),
            // STARTTLS too in NOTLS mode.
            _ => fail(out, option, reply::ERR_UNSUP, ""),
        }
        Ok(Status::More)
    }

    /// Answers STARTTLS at a server that offers TLS. Forgets framing and context negotiated before, as an attacker on the
    /// network could have asked for them.
    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Status {
        if !data.is_empty() {
            fail(out, option::STARTTLS, reply::ERR_INVALID, UNEXPECTED_DATA);
            return Status::More;
        }
        if self.secure {
            fail(out, option::STARTTLS, reply::ERR_INVALID, "TLS was started already");
            return Status::More;
        }
        self.secure = true;
        self.framing = Framing::Simple;
        self.context_for = None;
        acknowledge(out, option::STARTTLS);
        Status::StartTls
    }

    /// True if the server refuses options until the client starts TLS.
    fn must_start_tls(&self) -> bool {
        self.offer.tls == Tls::Forced && !self.secure
    }

    /// The reason why an export must not be served on this connection at present; `None` if it may.
    fn withholds(&self, export: &Export<'_>) -> Option<Withheld> {
        match export.access {
            Access::Open => None,
            Access::TlsOnly => (!self.secure).then_some(Withheld::NeedsTls),
            Access::Refused => Some(Withheld::Refused),
        }
    }

    /// Refuses an option that names an export which is withheld from this client.
    fn withhold(&self, why: Withheld, option: u32, out: &mut Vec<u8>) {
        match (why, self.offer.tls) {
            (Withheld::Refused, _) => {
                fail(out, option, reply::ERR_POLICY, "access lists refuse this client; the server's log says why");
            }
            // It must not be told to start what it cannot.
            (Withheld::NeedsTls, Tls::No) => {
                fail(out, option, reply::ERR_POLICY, "the export needs TLS, which this server does not offer");
            }
            (Withheld::NeedsTls, Tls::Selective | Tls::Forced) => fail(out, option, reply::ERR_TLS_REQD, START_TLS),
        }
    }

    /// Answers LIST from place `from` of the directory on: with all further exports, or with as many as fill a [`LIST_PIECE`].
    fn list(&mut self, from: usize, dir: &impl Directory, out: &mut Vec<u8>) -> Status {
        let (before, mut visited) = (out.len(), 0);
        let next = dir.visit(from, &mut |export| {
            if self.withholds(export).is_none() {
                answer(out, option::LIST, reply::SERVER, |out| {
                    out.extend_from_slice(&(export.name.len() as u32).to_be_bytes());
                    out.extend_from_slice(export.name.as_bytes());
                    out.extend_from_slice(export.description.as_bytes());
                });
            }
            visited += 1;
            out.len() - before < LIST_PIECE && visited < LIST_PIECE_EXPORTS
        });
        if let Some(next) = next {
            self.stage = Stage::List { next };
            return Status::Unfinished;
        }
        self.stage = Stage::Header;
        acknowledge(out, option::LIST);
        Status::More
    }

    /// Answers EXPORT_NAME, which can only succeed or close the connection.
    fn export_name(&self, data: &[u8], dir: &impl Directory, out: &mut Vec<u8>) -> Result<Status, Violation> {
        if self.shutting_down {
            return Err(Violation::ExportNameShutdown);
        }
        if self.must_start_tls() {
            return Err(Violation::ExportNameTls);
        }
        if self.framing.is_extended() {
            return Err(Violation::ExportNameExtended);
        }
        let name = string(data).ok_or(Violation::ExportNameInvalid)?;
        let mut outcome = Err(Violation::ExportNameUnknown);
        dir.find(name, &mut |export| {
            if let Some(why) = self.withholds(export) {
                outcome = Err(match why {
                    Withheld::NeedsTls => Violation::ExportNameTls,
                    Withheld::Refused => Violation::ExportNameRefused,
                });
                return;
            }
            if must_know_block_size(export) {
                outcome = Err(Violation::ExportNameBlockSize);
                return;
            }
            let session = self.session(export, false);
            out.extend_from_slice(&export.size.to_be_bytes());
            out.extend_from_slice(&session.flags.bits().to_be_bytes());
            if !self.client.contains(ClientFlags::NO_ZEROES) {
                out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
            }
            outcome = Ok(Status::Transmission(session));
        });
        outcome
    }

    /// Answers INFO and GO; returns a session only for a GO that succeeded.
    fn describe(&self, option: u32, data: &[u8], dir: &impl Directory, out: &mut Vec<u8>) -> Option<Session> {
        let Some((name, wanted)) = parse_describe(data) else {
            fail(out, option, reply::ERR_INVALID, MALFORMED);
            return None;
        };
        let mut session = None;
        let found = dir.find(name, &mut |export| {
            if let Some(why) = self.withholds(export) {
                self.withhold(why, option, out);
                return;
            }
            if must_know_block_size(export) && !wanted.block_size {
                info_block_size(out, option, export);
                fail(out, option, reply::ERR_BLOCK_SIZE_REQD, "request NBD_INFO_BLOCK_SIZE and obey it");
                return;
            }
            let negotiated = self.session(export, wanted.block_size);
            answer(out, option, reply::INFO, |out| {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&export.size.to_be_bytes());
                out.extend_from_slice(&negotiated.flags.bits().to_be_bytes());
            });
            if wanted.name {
                info_string(out, option, info::NAME, export.name);
            }
            if wanted.description && !export.description.is_empty() {
                info_string(out, option, info::DESCRIPTION, export.description);
            }
            if wanted.block_size {
                info_block_size(out, option, export);
            }
            acknowledge(out, option);
            if option == option::GO {
                session = Some(negotiated);
            }
        });
        if !found {
            fail(out, option, reply::ERR_UNKNOWN, NO_SUCH_EXPORT);
        }
        session
    }

    fn session(&self, export: &Export<'_>, block_sizes: bool) -> Session {
        let mut flags = (export.flags | TransmissionFlags::HAS_FLAGS).without(NOT_SPOKEN);
        if !self.framing.has_chunks() {
            flags = flags.without(TransmissionFlags::SEND_DF);
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
        }
        Session {
            export: export.name.into(),
            flags,
            framing: self.framing,
            base_allocation: self.context_for.as_deref() == Some(export.name),
            block_sizes,
        }
    }

    /// Answers LIST_META_CONTEXT and SET_META_CONTEXT.
    fn contexts(&mut self, option: u32, data: &[u8], dir: &impl Directory, out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // Replaced even if what follows fails.
            self.context_for = None;
        }
        if !self.framing.has_chunks() {
            return fail(out, option, reply::ERR_INVALID, "negotiate structured replies or extended headers first");
        }
        let Some((name, selected)) = parse_contexts(data, set) else {
            return fail(out, option, reply::ERR_INVALID, MALFORMED);
        };
        let (mut canonical, mut withheld) = (None, None);
        let found = dir.find(name, &mut |export| {
            canonical = Some(String::from(export.name));
            withheld = self.withholds(export);
        });
        if let Some(why) = withheld {
            return self.withhold(why, option, out);
        }
        if !found {
            return fail(out, option, reply::ERR_UNKNOWN, NO_SUCH_EXPORT);
        }
        if selected {
            answer(out, option, reply::META_CONTEXT, |out| {
                let id = if set { BASE_ALLOCATION_ID } else { 0 };
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(BASE_ALLOCATION.as_bytes());
            });
        }
        if set && selected {
            self.context_for = canonical;
        }
        acknowledge(out, option);
    }
}

const SHUTTING_DOWN: &str = "the server is shutting down";
const START_TLS: &str = "TLS is needed here: start TLS first (STARTTLS; nbds in a URI)";
const UNEXPECTED_DATA: &str = "the option takes no data";
const MALFORMED: &str = "the option's data is malformed";
const NO_SUCH_EXPORT: &str = "no such export";

/// Transmission flags that are never offered, because this crate does not understand the requests that they permit.
const NOT_SPOKEN: TransmissionFlags = TransmissionFlags::SEND_RESIZE.union(TransmissionFlags::BLOCK_STATUS_PAYLOAD);

/// True if the export's minimum block is above [`PORTABLE_MIN_BLOCK`], so that a client that does not ask for it could send
/// misaligned requests.
fn must_know_block_size(export: &Export<'_>) -> bool {
    export.min_block > PORTABLE_MIN_BLOCK
}

fn abort(out: &mut Vec<u8>) -> Status {
    acknowledge(out, option::ABORT);
    Status::Closed
}

fn info_string(out: &mut Vec<u8>, option: u32, kind: u16, value: &str) {
    answer(out, option, reply::INFO, |out| {
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(value.as_bytes());
    });
}

fn info_block_size(out: &mut Vec<u8>, option: u32, export: &Export<'_>) {
    answer(out, option, reply::INFO, |out| {
        out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        for size in [export.min_block, export.preferred_block, export.max_payload] {
            out.extend_from_slice(&size.to_be_bytes());
        }
    });
}

fn acknowledge(out: &mut Vec<u8>, option: u32) {
    answer(out, option, reply::ACK, |_| {});
}

fn fail(out: &mut Vec<u8>, option: u32, error: u32, message: &str) {
    answer(out, option, error, |out| out.extend_from_slice(message.as_bytes()));
}

/// Appends one option reply; its length is filled in after `body` has run.
fn answer(out: &mut Vec<u8>, option: u32, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}
