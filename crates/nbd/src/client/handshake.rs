//! The client side of option haggling (fixed newstyle).

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Violation, be16, be32, be64};
use crate::wire::{
    BASE_ALLOCATION, ClientFlags, EXPORT_NAME_ZEROES, Framing, GREETING_LEN, GREETING_MAGIC, HandshakeFlags,
    MAX_PAYLOAD, MAX_STRING, OPTION_MAGIC, OPTION_REPLY_HEADER_LEN, OPTION_REPLY_MAGIC, PORTABLE_MIN_BLOCK,
    TransmissionFlags, info, option, reply,
};

/// The longest data of an option reply that is accepted, in bytes: a name and a description
/// of the longest length that the specification allows, with room to spare.
pub const MAX_OPTION_REPLY: usize = 4 * MAX_STRING;
/// The most replies to one option, and so the most exports that [`Purpose::List`] collects.
pub const MAX_LISTED: usize = 65_536;
/// The most bytes of names and descriptions that [`Purpose::List`] collects.
const MAX_LIST_BYTES: usize = 16 << 20;
/// The preferred block size, in bytes, that is assumed if the server sends none.
const DEFAULT_PREFERRED_BLOCK: u32 = 4096;
/// The largest minimum block size that the specification allows, in bytes.
const MAX_MIN_BLOCK: u32 = 65_536;

/// The purpose of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Start transmission with one export.
    Go,
    /// Get the description of one export, then end the negotiation.
    Info,
    /// Get the list of exports, then end the negotiation.
    List,
}

/// The client's requests in a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the export; empty for the default one. At most [`MAX_STRING`] bytes.
    pub export: String,
    /// The purpose of the handshake.
    pub purpose: Purpose,
    /// The framing to ask for; the server may grant a simpler one.
    pub framing: Framing,
    /// True to select the context `base:allocation`, for block status.
    pub base_allocation: bool,
    /// True if everything after the greeting must be encrypted. There is no fallback: a server without TLS is refused.
    pub tls: bool,
}

/// The facts about an export, and the result of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Size of the export in bytes.
    pub size: u64,
    /// Features of the export and the commands that it supports.
    pub flags: TransmissionFlags,
    /// Unit of access in bytes, of which every offset and length must be a multiple; 1 if the server sent none.
    pub min_block: u32,
    /// Efficient unit of access in bytes, of which offsets and lengths should be multiples.
    pub preferred_block: u32,
    /// The longest READ or WRITE that the server accepts, in bytes.
    pub max_payload: u32,
    /// The granted framing.
    pub framing: Framing,
    /// Id of the context `base:allocation`; `None` if it was not selected.
    pub context: Option<u32>,
    /// Canonical name of the export; `None` if the server did not send it.
    pub name: Option<String>,
    /// Human-readable description of the export; `None` if the server did not send it.
    pub description: Option<String>,
}

/// One export of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name by which the export can be asked for.
    pub name: String,
    /// Human-readable description; may be empty.
    pub description: String,
}

/// The server's refusal of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Code of the refused option, see [`option`].
    pub option: u32,
    /// Error code of the server's reply, see [`reply`].
    pub code: u32,
    /// The server's message; may be empty.
    pub message: String,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self.code {
            reply::ERR_UNSUP => "the server does not support this option",
            reply::ERR_POLICY => "the server's policy forbids it",
            reply::ERR_INVALID => "the server calls the request invalid",
            reply::ERR_PLATFORM => "the server's platform does not support it",
            reply::ERR_TLS_REQD => "the server requires TLS",
            reply::ERR_UNKNOWN => "the server has no such export",
            reply::ERR_SHUTDOWN => "the server is shutting down",
            reply::ERR_BLOCK_SIZE_REQD => "the server requires the block size to be negotiated",
            reply::ERR_TOO_BIG => "the server finds the request too big",
            _ => "the server refused",
        })?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl core::error::Error for Refusal {}

/// The end of a handshake, or with `StartTls` of its unencrypted part. After all but `Connected` and `StartTls`, the caller sends
/// the rest of `out` (ABORT, where the server knows it), then closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Transmission may start ([`Purpose::Go`]).
    Connected(Connected),
    /// The description of the export ([`Purpose::Info`]).
    Described(Connected),
    /// The list of exports ([`Purpose::List`]).
    Listed(Vec<Listed>),
    /// The server refused the purpose of the handshake, or TLS.
    Refused(Refusal),
    /// TLS starts now ([`Wanted::tls`]). After the TLS handshake the caller goes on with [`Handshake::secured`]; from then on all
    /// bytes go through TLS. Input that is not consumed came unencrypted, perhaps from an attacker in between: the caller must
    /// close the connection then.
    StartTls,
}

/// The result of a call to [`Handshake::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are processed. The caller passes the other bytes again, with those that arrive next.
    pub consumed: usize,
    /// The end of the handshake or of its unencrypted part; `None` while it goes on.
    pub outcome: Option<Outcome>,
}

/// The message that the client expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// Replies to the option with this code.
    Option(u32),
    /// The reply to `EXPORT_NAME`, which has no header.
    ExportName,
    /// Nothing, until TLS is established.
    Tls,
    Over,
}

/// The client side of the handshake. Until there is an outcome, the caller passes received bytes to
/// [`Handshake::advance`], and sends the bytes that it appends to `out`.
#[derive(Debug)]
pub struct Handshake {
    wanted: Wanted,
    state: State,
    no_zeroes: bool,
    /// Replies to the present option so far.
    replies: usize,
    /// Bytes of names and descriptions in `listed`.
    listed_bytes: usize,
    /// Facts and results so far.
    found: Connected,
    /// True if the server has sent the export's size and flags.
    has_export: bool,
    listed: Vec<Listed>,
}

impl Handshake {
    /// A handshake that waits for the server's greeting.
    ///
    /// # Panics
    /// When the export name is longer than [`MAX_STRING`] bytes.
    pub fn new(wanted: Wanted) -> Self {
        assert!(wanted.export.len() <= MAX_STRING, "an export name is at most {MAX_STRING} bytes");
        let found = Connected {
            size: 0,
            flags: TransmissionFlags::NONE,
            min_block: 1,
            preferred_block: DEFAULT_PREFERRED_BLOCK,
            max_payload: MAX_PAYLOAD,
            framing: Framing::Simple,
            context: None,
            name: None,
            description: None,
        };
        Self {
            wanted,
            state: State::Greeting,
            no_zeroes: false,
            replies: 0,
            listed_bytes: 0,
            found,
            has_export: false,
            listed: Vec::new(),
        }
    }

    /// Takes in bytes from the server; appends the bytes to send to `out`. The caller's receive buffer must have room for 20 +
    /// [`MAX_OPTION_REPLY`] bytes.
    ///
    /// # Errors
    /// When the server does not speak newstyle NBD or breaks the protocol.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, Violation> {
        let mut consumed = 0;
        let mut outcome = None;
        while outcome.is_none() {
            let rest = &input[consumed..];
            let used = match self.state {
                State::Greeting => self.greeting(rest, out, &mut outcome)?,
                State::Option(asked) => self.option_reply(asked, rest, out, &mut outcome)?,
                State::ExportName => self.export_name_reply(rest, &mut outcome),
                State::Tls | State::Over => 0,
            };
            if used == 0 {
                break;
            }
            consumed += used;
        }
        match outcome {
            None => {}
            Some(Outcome::StartTls) => self.state = State::Tls,
            Some(_) => self.state = State::Over,
        }
        Ok(Step { consumed, outcome })
    }

    /// Goes on after [`Outcome::StartTls`], once TLS is established; appends the bytes to send through TLS to `out`.
    ///
    /// # Panics
    /// When the handshake does not wait for TLS.
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        assert!(self.state == State::Tls, "the server has not agreed to TLS");
        self.ask_after(0, out);
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>, outcome: &mut Option<Outcome>) -> Result<usize, Violation> {
        // Look at what there is, so that another protocol's short greeting is an error and not a long wait.
        let start = GREETING_MAGIC.to_be_bytes();
        let seen = input.len().min(start.len());
        if input[..seen] != start[..seen] {
            return Err(Violation::new("this is not an NBD server: its greeting is wrong", u64::from(input[0])));
        }
        if input.len() < GREETING_LEN {
            return Ok(0);
        }
        if be64(input, 8) != OPTION_MAGIC {
            return Err(Violation::new("the server speaks an NBD dialect older than newstyle", be64(input, 8)));
        }
        let offered = HandshakeFlags::from_bits(be16(input, 16));
        let mut flags = ClientFlags::NONE;
        if offered.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            flags |= ClientFlags::FIXED_NEWSTYLE;
        }
        if offered.contains(HandshakeFlags::NO_ZEROES) {
            flags |= ClientFlags::NO_ZEROES;
            self.no_zeroes = true;
        }
        out.extend_from_slice(&flags.bits().to_be_bytes());
        if offered.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            if self.wanted.tls {
                self.ask(option::STARTTLS, out);
            } else {
                self.ask_after(0, out);
            }
        } else if self.wanted.purpose == Purpose::Go && !self.wanted.tls {
            self.ask(option::EXPORT_NAME, out);
        } else {
            let message = "it knows no option but EXPORT_NAME".to_owned();
            let option = if self.wanted.tls { option::STARTTLS } else { self.goal_option() };
            *outcome = Some(Outcome::Refused(Refusal { option, code: reply::ERR_UNSUP, message }));
        }
        Ok(GREETING_LEN)
    }

    fn goal_option(&self) -> u32 {
        match self.wanted.purpose {
            Purpose::Go => option::GO,
            Purpose::Info => option::INFO,
            Purpose::List => option::LIST,
        }
    }

    /// Sends the next option after `previous` (0 = none) that is wanted and of use with the framing granted so far.
    fn ask_after(&mut self, previous: u32, out: &mut Vec<u8>) {
        let (wanted, granted) = (self.wanted.framing, self.found.framing);
        // A list needs no framing; asking for it would only cost round trips.
        let transfers = self.wanted.purpose != Purpose::List;
        let order = [
            (option::EXTENDED_HEADERS, transfers && wanted.is_extended()),
            (option::STRUCTURED_REPLY, transfers && wanted.has_chunks() && !granted.has_chunks()),
            (option::SET_META_CONTEXT, transfers && self.wanted.base_allocation && granted.has_chunks()),
        ];
        let done = order.iter().position(|&(code, _)| code == previous).map_or(0, |at| at + 1);
        let next = order[done..].iter().find(|&&(_, ask)| ask).map_or(self.goal_option(), |&(code, _)| code);
        self.ask(next, out);
    }

    fn ask(&mut self, code: u32, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        let export = self.wanted.export.as_bytes();
        match code {
            option::GO | option::INFO => {
                put_string(&mut data, export);
                let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
                data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
                for info in wanted {
                    data.extend_from_slice(&info.to_be_bytes());
                }
            }
            option::SET_META_CONTEXT => {
                put_string(&mut data, export);
                data.extend_from_slice(&1u32.to_be_bytes());
                put_string(&mut data, BASE_ALLOCATION.as_bytes());
            }
            option::EXPORT_NAME => data.extend_from_slice(export),
            _ => {}
        }
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&code.to_be_bytes());
        put_string(out, &data);
        self.replies = 0;
        self.state = if code == option::EXPORT_NAME { State::ExportName } else { State::Option(code) };
    }

    fn option_reply(
        &mut self,
        asked: u32,
        input: &[u8],
        out: &mut Vec<u8>,
        outcome: &mut Option<Outcome>,
    ) -> Result<usize, Violation> {
        if input.len() < OPTION_REPLY_HEADER_LEN {
            return Ok(0);
        }
        if be64(input, 0) != OPTION_REPLY_MAGIC {
            return Err(Violation::new("an option reply starts with a wrong magic number", be64(input, 0)));
        }
        if be32(input, 8) != asked {
            return Err(Violation::new("a reply to an option that was not sent", u64::from(be32(input, 8))));
        }
        let (kind, length) = (be32(input, 12), be32(input, 16) as usize);
        if length > MAX_OPTION_REPLY {
            return Err(Violation::new("an option reply is too long", length as u64));
        }
        let Some(data) = input.get(OPTION_REPLY_HEADER_LEN..OPTION_REPLY_HEADER_LEN + length) else { return Ok(0) };
        self.replies += 1;
        if self.replies > MAX_LISTED {
            return Err(Violation::new("an option has too many replies", self.replies as u64));
        }
        match kind {
            reply::ACK => self.acknowledged(asked, out, outcome)?,
            kind if kind & reply::ERROR_BIT != 0 => self.refused(asked, kind, data, out, outcome),
            reply::SERVER if asked == option::LIST => {
                self.listed_bytes += data.len();
                if self.listed_bytes > MAX_LIST_BYTES {
                    return Err(Violation::new("the list of exports is too long", self.listed_bytes as u64));
                }
                self.listed.push(server(data)?);
            }
            reply::INFO if matches!(asked, option::GO | option::INFO) => self.information(data)?,
            reply::META_CONTEXT if asked == option::SET_META_CONTEXT => {
                if data.len() < 4 {
                    return Err(Violation::new("a metadata context without an id", data.len() as u64));
                }
                if &data[4..] == BASE_ALLOCATION.as_bytes() {
                    self.found.context = Some(be32(data, 0));
                }
            }
            _ => return Err(Violation::new("an option reply of a type that does not fit", u64::from(kind))),
        }
        Ok(OPTION_REPLY_HEADER_LEN + length)
    }

    fn acknowledged(&mut self, asked: u32, out: &mut Vec<u8>, outcome: &mut Option<Outcome>) -> Result<(), Violation> {
        match asked {
            option::EXTENDED_HEADERS => self.found.framing = Framing::Extended,
            option::STRUCTURED_REPLY => self.found.framing = Framing::Structured,
            option::STARTTLS => {
                *outcome = Some(Outcome::StartTls);
                return Ok(());
            }
            option::GO | option::INFO if !self.has_export => {
                return Err(Violation::new("the server acknowledges an export without its size", u64::from(asked)));
            }
            option::GO => {
                *outcome = Some(Outcome::Connected(self.found.clone()));
                return Ok(());
            }
            option::INFO => {
                put_abort(out);
                *outcome = Some(Outcome::Described(self.found.clone()));
                return Ok(());
            }
            option::LIST => {
                put_abort(out);
                *outcome = Some(Outcome::Listed(core::mem::take(&mut self.listed)));
                return Ok(());
            }
            _ => {}
        }
        self.ask_after(asked, out);
        Ok(())
    }

    /// Handles an error reply. If an optional feature is refused, the handshake goes on without it; if the purpose is refused,
    /// the handshake ends.
    fn refused(&mut self, asked: u32, code: u32, data: &[u8], out: &mut Vec<u8>, outcome: &mut Option<Outcome>) {
        match asked {
            option::GO if code == reply::ERR_UNSUP => self.ask(option::EXPORT_NAME, out),
            option::GO | option::INFO | option::LIST | option::STARTTLS => {
                put_abort(out);
                let message = String::from_utf8_lossy(data).into_owned();
                *outcome = Some(Outcome::Refused(Refusal { option: asked, code, message }));
            }
            _ => {
                if asked == option::SET_META_CONTEXT {
                    self.found.context = None;
                }
                self.ask_after(asked, out);
            }
        }
    }

    fn information(&mut self, data: &[u8]) -> Result<(), Violation> {
        let malformed = || Violation::new("an item of export information has a wrong length", data.len() as u64);
        if data.len() < 2 {
            return Err(malformed());
        }
        let (kind, data) = (be16(data, 0), &data[2..]);
        match kind {
            info::EXPORT => {
                if data.len() != 10 {
                    return Err(malformed());
                }
                self.found.size = be64(data, 0);
                self.found.flags = TransmissionFlags::from_bits(be16(data, 8));
                self.has_export = true;
            }
            info::NAME => self.found.name = Some(text(data)?),
            info::DESCRIPTION => self.found.description = Some(text(data)?),
            info::BLOCK_SIZE => {
                if data.len() != 12 {
                    return Err(malformed());
                }
                let (min, preferred, max) = (be32(data, 0), be32(data, 4), be32(data, 8));
                if !min.is_power_of_two() || min > MAX_MIN_BLOCK {
                    return Err(Violation::new("the minimum block size is not a power of two up to 65536", min.into()));
                }
                if !preferred.is_power_of_two() || preferred < min.max(PORTABLE_MIN_BLOCK) || max < min {
                    return Err(Violation::new("the block sizes contradict each other", preferred.into()));
                }
                (self.found.min_block, self.found.preferred_block, self.found.max_payload) = (min, preferred, max);
            }
            // Later versions of the protocol may tell more.
            _ => {}
        }
        Ok(())
    }

    fn export_name_reply(&mut self, input: &[u8], outcome: &mut Option<Outcome>) -> usize {
        let length = 10 + if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        if input.len() < length {
            return 0;
        }
        self.found.size = be64(input, 0);
        self.found.flags = TransmissionFlags::from_bits(be16(input, 8));
        *outcome = Some(Outcome::Connected(self.found.clone()));
        length
    }
}

/// Parses the data of a `SERVER` reply: length of the name, name, description.
fn server(data: &[u8]) -> Result<Listed, Violation> {
    let malformed = Violation::new("a list entry has a wrong length", data.len() as u64);
    if data.len() < 4 {
        return Err(malformed);
    }
    let name = be32(data, 0) as usize;
    let (name, description) = data[4..].split_at_checked(name).ok_or(malformed)?;
    Ok(Listed { name: text(name)?, description: text(description)? })
}

/// Reads bytes as a string of the protocol: UTF-8, at most [`MAX_STRING`] bytes, no NUL.
fn text(bytes: &[u8]) -> Result<String, Violation> {
    match core::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= MAX_STRING && !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(Violation::new("a string is too long or not UTF-8", bytes.len() as u64)),
    }
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    // Callers pass at most a name of MAX_STRING bytes and a few words.
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_abort(out: &mut Vec<u8>) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option::ABORT.to_be_bytes());
    out.extend_from_slice(&0u32.to_be_bytes());
}
