//! The attacker: a process with one thread and many connections, which makes the attack of one row of the table of attacks.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recv, send, shutdown,
    socket_with, sockopt,
};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::time::Timespec;

use super::attacks::{self, Ask, At, Attack, CROWD, End, Ends, FILLED, NEXT_SPAN, Opening, Place, SPAN, Sends, Target};
use super::counts::Counts;
use super::wire;
use crate::base::random::xorshift;

/// NBD port of the server under test.
pub(super) const NBD_PORT: u16 = 10809;
/// Port of the status API of the server under test.
pub(super) const STATUS_PORT: u16 = 9809;
/// The most requests that a process begins per second; for connections see [`Attack::per_s`].
pub(super) const ASKS_PER_S: u64 = 50_000;
/// Longest sleep of the attacker's loop.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Pause after which further requests may begin when [`ASKS_PER_S`] was reached.
const REFILL: Duration = Duration::from_millis(1);
/// Time between two bytes of a slow writer.
const BYTE_EVERY: Duration = Duration::from_millis(10);
/// Pause before the next attempt to open a connection after the server had no room for it.
const AGAIN: Duration = Duration::from_millis(10);
/// A connection makes further requests while fewer bytes than this wait to be sent on it.
const OUT_MOST: usize = 128 << 10;
/// The most successive reads from one connection before other connections are handled.
const READS_IN_A_ROW: u32 = 4;
/// User id of the first user of a crowd. These ids belong to no real users.
const FIRST_USER: u32 = 20_001;
/// Data from which the payload of all writes is taken.
static PAYLOAD: [u8; 64 << 10] = [0xa5; 64 << 10];

/// Arguments of `guest attack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    pub(super) attack: String,
    #[arg(long)]
    pub(super) place: Place,
    /// Address of the server.
    #[arg(long)]
    pub(super) host: Ipv4Addr,
    /// Its socket for NBD.
    #[arg(long)]
    pub(super) unix: PathBuf,
    /// Its socket for the operator.
    #[arg(long)]
    pub(super) control: PathBuf,
    /// Number of this process, of those that the attack has.
    #[arg(long)]
    pub(super) process: u32,
    /// Duration.
    #[arg(long)]
    pub(super) milliseconds: u64,
}

/// Runs the attack, and prints its counts.
pub(crate) fn run(options: &Options) -> Result<()> {
    let attack = attacks::by_name(&options.attack).context("there is no such attack")?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("cannot open more files")?;
    let mut attacker = Attacker::new(attack, options)?;
    attacker.attack(Instant::now() + Duration::from_millis(options.milliseconds))?;
    println!("{}", Counts { mib: attacker.bytes >> 20, ..attacker.seen });
    Ok(())
}

/// A rate limiter of `per_s` operations per second. At most a hundredth of a second of unused operations is saved up.
#[derive(Debug)]
struct Rate {
    per_s: u64,
    left: u64,
    since: Instant,
}

impl Rate {
    fn new(per_s: u64) -> Self {
        Self { per_s, left: 0, since: Instant::now() }
    }

    fn refill(&mut self, now: Instant) {
        let due = now.duration_since(self.since).as_micros() as u64 * self.per_s / 1_000_000;
        if due > 0 {
            (self.left, self.since) = ((self.left + due).min((self.per_s / 100).max(1)), now);
        }
    }

    fn take(&mut self) -> bool {
        let some = self.left > 0;
        self.left -= u64::from(some);
        some
    }
}

/// The state of a connection's protocol: the meaning of the next bytes from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    /// Replies to options. The number counts the options of the opening whose replies are still missing.
    Options(u32),
    /// Replies to requests.
    Replies,
    /// Bytes that the attacker does not interpret.
    Anything,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Number of the connection in the order of opening. It tells successive connections at one place of the table apart.
    number: u64,
    /// Events for which the socket is registered with epoll.
    watched: EventFlags,
    /// Bytes to be sent, without large payloads.
    out: Vec<u8>,
    /// Number of bytes of `out` that were sent.
    out_at: usize,
    /// Number of payload bytes to be sent after `out`; their data is [`PAYLOAD`].
    payload: u64,
    stage: Stage,
    /// The header that is being received.
    head: [u8; wire::OPTION_REPLY_LEN],
    /// Number of bytes of `head` received so far.
    have: usize,
    /// Number of bytes from the server to be skipped before the next header.
    skip: u64,
    /// Number of requests without a reply.
    in_flight: u32,
    sent: u32,
    answered: u32,
    next_at: u64,
    /// True if the connection makes no further requests.
    mute: bool,
    /// True while the connection pauses until its time in [`Attacker::waiting`].
    waits: bool,
    ended: bool,
}

struct Attacker<'a> {
    attack: &'a Attack,
    options: &'a Options,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    /// Indices in `connections` without a connection.
    empty: Vec<usize>,
    /// Connections that pause: the instant of their next step, their index, and their number.
    waiting: VecDeque<(Instant, usize, u64)>,
    /// Connections that are to be closed, or whose hosts are to vanish, at an instant, with their index and number.
    deadlines: VecDeque<(Instant, usize, u64)>,
    /// Sockets of vanished hosts.
    vanished: Vec<OwnedFd>,
    /// First bytes that a connection sends, and the number of option replies that they get.
    opening: (Vec<u8>, u32),
    /// A TLS ClientHello message.
    hello: Vec<u8>,
    connects: Rate,
    asks: Rate,
    random: u64,
    buffer: Vec<u8>,
    begun: Instant,
    /// Instant before which no connection is opened.
    pause: Instant,
    /// Counts, but for those of bytes, which are in `bytes`.
    seen: Counts,
    /// Number of bytes received.
    bytes: u64,
}

impl<'a> Attacker<'a> {
    fn new(attack: &'a Attack, options: &'a Options) -> Result<Self> {
        let mut bytes = Vec::new();
        let answers = match attack.opening {
            Opening::Bytes(given) => {
                bytes.extend(given);
                0
            }
            Opening::Options => {
                wire::flags(&mut bytes);
                u32::MAX
            }
            Opening::Simple => wire::choose(&mut bytes, false),
            Opening::Structured => wire::choose(&mut bytes, true),
            Opening::Tls => {
                wire::start_tls(&mut bytes);
                1
            }
        };
        let places = (attack.connections / attack.processes) as usize;
        Ok(Self {
            attack,
            options,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: (0..places).map(|_| None).collect(),
            empty: (0..places).rev().collect(),
            waiting: VecDeque::new(),
            deadlines: VecDeque::new(),
            vanished: Vec::new(),
            opening: (bytes, answers),
            hello: wire::client_hello(),
            connects: Rate::new(attack.per_s),
            asks: Rate::new(ASKS_PER_S),
            random: 0x9e37_79b9_7f4a_7c15 ^ u64::from(options.process),
            buffer: vec![0; 256 << 10],
            begun: Instant::now(),
            pause: Instant::now(),
            seen: Counts::default(),
            bytes: 0,
        })
    }

    fn attack(&mut self, until: Instant) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            self.connects.refill(now);
            self.asks.refill(now);
            while now >= self.pause && !self.empty.is_empty() && self.connects.take() {
                self.open(now)?;
            }
            while self.deadlines.front().is_some_and(|(due, ..)| *due <= now) {
                let (_, place, number) = self.deadlines.pop_front().context("no deadline is left")?;
                if self.is_there(place, number) {
                    match self.attack.ends {
                        Ends::Vanish(_) => self.vanish(place)?,
                        _ => self.close(place),
                    }
                }
            }
            while self.waiting.front().is_some_and(|(due, ..)| *due <= now) {
                let (_, place, number) = self.waiting.pop_front().context("no connection waits")?;
                if let Some(connection) = self.connections[place].as_mut().filter(|there| there.number == number) {
                    connection.waits = false;
                    self.go_on(place, now);
                }
            }
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TICK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                let (data, flags) = (event.data, event.flags);
                self.happened(data.u64() as usize, flags, now);
            }
        }
    }

    fn is_there(&self, place: usize, number: u64) -> bool {
        self.connections[place].as_ref().is_some_and(|connection| connection.number == number)
    }

    fn open(&mut self, now: Instant) -> Result<()> {
        let Some(place) = self.empty.pop() else { return Ok(()) };
        let socket = match self.connect(place as u32 * self.attack.processes + self.options.process) {
            Ok(socket) => socket,
            // The server has no room, this host no port, or the process may open no more.
            Err(_) => {
                self.empty.push(place);
                (self.pause, self.seen.refused) = (now + AGAIN, self.seen.refused + 1);
                return Ok(());
            }
        };
        let watched = if self.attack.takes { EventFlags::IN } else { EventFlags::RDHUP };
        epoll::add(&self.epoll, &socket, EventData::new_u64(place as u64), watched)?;
        self.seen.connected += 1;
        let number = self.seen.connected;
        let stage = match self.attack.opening {
            Opening::Bytes(_) => Stage::Anything,
            _ => Stage::Greeting,
        };
        self.connections[place] = Some(Connection {
            socket,
            number,
            watched,
            out: self.opening.0.clone(),
            out_at: 0,
            payload: 0,
            stage,
            head: [0; wire::OPTION_REPLY_LEN],
            have: 0,
            skip: 0,
            in_flight: 0,
            sent: 0,
            answered: 0,
            next_at: 0,
            mute: false,
            waits: false,
            ended: false,
        });
        if let Ends::After(life) | Ends::Vanish(life) = self.attack.ends {
            self.deadlines.push_back((now + life, place, number));
        }
        self.go_on(place, now);
        Ok(())
    }

    /// A socket that is connecting to the server. Its source address or user is that of [`Place`]; `number` selects a member of
    /// a crowd.
    fn connect(&self, number: u32) -> Result<OwnedFd> {
        let Options { place, host, unix, control, .. } = self.options;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let path = match self.attack.target {
            Target::Control => Some(control),
            Target::Nbd if *place == Place::Users => Some(unix),
            _ => None,
        };
        if let Some(path) = path {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let crowd = *place == Place::Users && self.attack.target == Target::Nbd;
            become_user(if crowd { FIRST_USER + number % CROWD } else { 0 })?;
            let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?);
            become_user(0)?;
            connected?;
            return Ok(socket);
        }
        let source = match place {
            Place::One | Place::OtherPool | Place::Users => Ipv4Addr::new(127, 0, 0, 2),
            Place::Addresses => Ipv4Addr::new(127, 0, 0, 2 + (number % CROWD) as u8),
            Place::Tenants => tenant_address(number % CROWD),
        };
        let port = if self.attack.target == Target::Status { STATUS_PORT } else { NBD_PORT };
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        leave_port_to_connect(&socket)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &SocketAddrV4::new(*host, port)) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }

    fn close(&mut self, place: usize) {
        self.connections[place] = None;
        self.empty.push(place);
    }

    /// Makes the socket of the connection at index `place` drop all packets, and leaves it open.
    fn vanish(&mut self, place: usize) -> Result<()> {
        let Some(connection) = self.connections[place].take() else { return Ok(()) };
        epoll::delete(&self.epoll, &connection.socket)?;
        drop_packets(&connection.socket)?;
        self.vanished.push(connection.socket);
        self.empty.push(place);
        Ok(())
    }

    fn closed_by_server(&mut self, place: usize) {
        self.seen.closed += 1;
        self.close(place);
    }

    fn happened(&mut self, place: usize, flags: EventFlags, now: Instant) {
        if self.connections[place].is_none() {
            return;
        }
        let gone = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
        if flags.intersects(EventFlags::IN | gone) {
            if !self.attack.takes {
                return self.closed_by_server(place);
            }
            match self.receive(place) {
                Ok(true) => {}
                Ok(false) => return self.close(place),
                Err(_) => return self.closed_by_server(place),
            }
        }
        self.go_on(place, now);
    }

    /// Receives the bytes that are available on the connection at index `place`. True if the connection stays open.
    fn receive(&mut self, place: usize) -> Result<bool> {
        let connection = self.connections[place].as_mut().context("no such connection")?;
        for _ in 0..READS_IN_A_ROW {
            let read = match recv(&connection.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => anyhow::bail!("the server closed the connection"),
                Ok((read, _)) => read,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            let answers = connection.parse(&self.buffer[..read], self.attack.opening, self.opening.1, &self.hello)?;
            connection.answered += answers;
            connection.in_flight = connection.in_flight.saturating_sub(answers);
            self.seen.answered += u64::from(answers);
            self.bytes += read as u64;
            if matches!(self.attack.ends, Ends::Answered(most) if connection.answered >= most) {
                return Ok(false);
            }
            if read < self.buffer.len() {
                break;
            }
        }
        Ok(true)
    }

    /// Makes all requests that the attack allows now on the connection at index `place`, and sends as much as the socket takes.
    fn go_on(&mut self, place: usize, now: Instant) {
        loop {
            if self.connections[place].as_ref().is_none_or(|connection| connection.waits) {
                return;
            }
            let asked = self.ask(place, now);
            let Some(connection) = self.connections[place].as_mut() else { return };
            match connection.send(self.attack.sends == Sends::Bytes) {
                Ok(true) => {}
                Ok(false) if self.attack.sends == Sends::Bytes => {
                    connection.waits = true;
                    return self.waiting.push_back((now + BYTE_EVERY, place, connection.number));
                }
                Ok(false) => return self.watch(place, true),
                Err(_) => return self.closed_by_server(place),
            }
            if !asked {
                break;
            }
        }
        self.watch(place, false);
        let Some(connection) = self.connections[place].as_mut() else { return };
        let Ends::Sent(all, how) = self.attack.ends else { return };
        if connection.sent < all || connection.ended {
            return;
        }
        connection.ended = true;
        match how {
            End::Close | End::Disconnect => self.close(place),
            End::Reset => {
                let _ = sockopt::set_socket_linger(&connection.socket, Some(Duration::ZERO));
                self.close(place);
            }
            End::Half => drop(shutdown(&connection.socket, Shutdown::Write)),
        }
    }

    /// Makes the requests that the attack allows now on the connection at index `place`. True if there are new ones to be sent.
    fn ask(&mut self, place: usize, now: Instant) -> bool {
        let Some(connection) = self.connections[place].as_mut() else { return false };
        let attack = self.attack;
        let (all, how) = match attack.ends {
            Ends::Sent(all, how) => (all, Some(how)),
            _ => (u32::MAX, None),
        };
        // An attack that does not look at answers does not wait for those to the opening either.
        let ready = how.is_some()
            || !attack.takes
            || !matches!(connection.stage, Stage::Greeting) && connection.has_chosen(attack);
        let before = connection.sent;
        while ready
            && !connection.mute
            && !attack.asks.is_empty()
            && connection.sent < all
            && (connection.in_flight < attack.depth || how.is_some())
            && connection.payload == 0
            && connection.out.len() < OUT_MOST
        {
            let rests =
                !attack.every.is_zero() && self.begun.elapsed().as_micros() / (attack.every.as_micros() / 2) % 2 == 1;
            if rests || !self.asks.take() {
                connection.waits = true;
                self.waiting.push_back((now + REFILL, place, connection.number));
                break;
            }
            let number = u64::from(connection.sent) + connection.number - 1;
            let ask = attack.asks[(number % attack.asks.len() as u64) as usize];
            connection.make(ask, attack.sends, &mut self.random);
            self.seen.sent += 1;
            if connection.sent == all && how == Some(End::Disconnect) {
                wire::request(&mut connection.out, wire::REQUEST_MAGIC, [0, wire::DISCONNECT], 0, 0, 0);
            }
        }
        connection.sent != before
    }

    /// Registers the connection at index `place` with epoll: with `writing` also for the event that it can be written to.
    fn watch(&mut self, place: usize, writing: bool) {
        let Some(connection) = self.connections[place].as_mut() else { return };
        let base = if self.attack.takes { EventFlags::IN } else { EventFlags::RDHUP };
        let wanted = if writing { base | EventFlags::OUT } else { base };
        if wanted != connection.watched {
            connection.watched = wanted;
            let data = EventData::new_u64(place as u64);
            if epoll::modify(&self.epoll, &connection.socket, data, wanted).is_err() {
                self.close(place);
            }
        }
    }
}

impl Connection {
    fn has_chosen(&self, attack: &Attack) -> bool {
        attack.opening == Opening::Options || matches!(self.stage, Stage::Replies | Stage::Anything)
    }

    /// Appends a request, option or bytes to the connection's output.
    fn make(&mut self, ask: Ask, sends: Sends, random: &mut u64) {
        match ask {
            Ask::Bytes(bytes) => self.out.extend(bytes),
            Ask::Option { code, length, data } => wire::option(&mut self.out, code, length, data),
            Ask::Request { magic, command, flags, length, at } => {
                let random = xorshift(random);
                let length_64 = u64::from(length);
                let room = SPAN.saturating_sub(length_64);
                let at = match at {
                    At::Start => 0,
                    At::Anywhere => (random >> 8) % (room / length_64.max(1) + 1) * length_64,
                    At::Filled => (random >> 8) % (FILLED / length_64.max(1)) * length_64,
                    At::Odd => ((random >> 8) % room.max(1)) | 1,
                    At::Next if self.next_at + length_64 > NEXT_SPAN => 0,
                    At::Next => self.next_at,
                    At::Beyond => 1 << 62,
                };
                self.next_at = at.saturating_add(length_64);
                // A simple reply does not say how much data it has.
                let data = if command == wire::READ { length_64 } else { 0 };
                let cookie = data << 32 | u64::from(self.sent);
                wire::request(&mut self.out, magic, [flags, command], cookie, at, length);
                if command == wire::WRITE {
                    self.payload = match sends {
                        Sends::Part(bytes) => {
                            self.mute = true;
                            u64::from(bytes)
                        }
                        Sends::Whole | Sends::Bytes => length_64,
                    };
                }
            }
        }
        // Small payloads go out together with what follows them.
        if self.payload <= PAYLOAD.len() as u64 {
            self.out.extend(&PAYLOAD[..self.payload as usize]);
            self.payload = 0;
        }
        (self.sent, self.in_flight) = (self.sent + 1, self.in_flight + 1);
    }

    /// Sends as much of the output as the socket takes, or with `one_byte` a single byte. True if all output was sent.
    fn send(&mut self, one_byte: bool) -> Result<bool> {
        loop {
            let from_out = self.out_at < self.out.len();
            let piece = if from_out {
                &self.out[self.out_at..]
            } else {
                &PAYLOAD[..self.payload.min(PAYLOAD.len() as u64) as usize]
            };
            if piece.is_empty() {
                self.out.clear();
                self.out_at = 0;
                return Ok(true);
            }
            let most = if one_byte { 1 } else { piece.len() };
            let sent = match send(&self.socket, &piece[..most], SendFlags::NOSIGNAL) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            if from_out {
                self.out_at += sent;
            } else {
                self.payload -= sent as u64;
            }
            if one_byte {
                return Ok(false);
            }
        }
    }

    /// Interprets bytes from the server. Returns the number of replies whose headers they complete.
    fn parse(&mut self, mut bytes: &[u8], opening: Opening, awaited: u32, hello: &[u8]) -> Result<u32> {
        let mut answers = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() as u64);
                self.skip -= skipped;
                bytes = &bytes[skipped as usize..];
                continue;
            }
            let length = match self.stage {
                Stage::Greeting => wire::GREETING_LEN,
                Stage::Options(_) => wire::OPTION_REPLY_LEN,
                Stage::Replies if opening == Opening::Structured => wire::STRUCTURED_REPLY_LEN,
                Stage::Replies => wire::SIMPLE_REPLY_LEN,
                Stage::Anything => return Ok(answers + u32::from(self.answered == 0)),
            };
            let more = (length - self.have).min(bytes.len());
            self.head[self.have..self.have + more].copy_from_slice(&bytes[..more]);
            (self.have, bytes) = (self.have + more, &bytes[more..]);
            if self.have == length {
                self.have = 0;
                answers += u32::from(self.header(opening, awaited, hello)?);
            }
        }
        Ok(answers)
    }

    /// Interprets the complete header in `head`. True if it is the last header of a reply to one of the attack's requests.
    fn header(&mut self, opening: Opening, awaited: u32, hello: &[u8]) -> Result<bool> {
        let be32 = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| self.head[at + i]));
        match self.stage {
            Stage::Greeting => {
                self.stage = Stage::Options(awaited);
                Ok(false)
            }
            Stage::Options(left) => {
                let kind = be32(12);
                self.skip = u64::from(be32(16));
                let is_last = kind == wire::REPLY_ACK || kind & wire::REPLY_ERROR != 0;
                if opening == Opening::Options || !is_last {
                    return Ok(is_last);
                }
                self.stage = Stage::Options(left - 1);
                if left == 1 {
                    anyhow::ensure!(kind == wire::REPLY_ACK, "refused");
                    self.stage = if opening == Opening::Tls { Stage::Anything } else { Stage::Replies };
                    if opening == Opening::Tls {
                        self.out.extend(hello);
                    }
                }
                Ok(false)
            }
            Stage::Replies if opening == Opening::Structured => {
                anyhow::ensure!(be32(0) == wire::STRUCTURED_REPLY_MAGIC, "not a reply");
                self.skip = u64::from(be32(16));
                Ok((be32(4) >> 16) as u16 & wire::DONE != 0)
            }
            Stage::Replies => {
                anyhow::ensure!(be32(0) == wire::SIMPLE_REPLY_MAGIC, "not a reply");
                self.skip = if be32(4) == 0 { u64::from(be32(8)) } else { 0 };
                Ok(true)
            }
            Stage::Anything => Ok(false),
        }
    }
}

/// Address from which the tenant with this number of a crowd connects.
pub(super) fn tenant_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, 1 + number as u8)
}

/// Makes the kernel choose a bound socket's port only when it connects (`IP_BIND_ADDRESS_NO_PORT`). Otherwise the ports of an
/// address are used up after some ten thousand connections.
fn leave_port_to_connect(socket: &OwnedFd) -> Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option is an integer.
    unsafe { set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &on) }
        .context("IP_BIND_ADDRESS_NO_PORT")
}

/// Sets an option of a socket.
///
/// # Safety
/// `T` must be the type of the option.
unsafe fn set_option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> Result<()> {
    let (value, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the descriptor is open, and the value outlives the call; the caller knows the type.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Makes a socket drop every packet that arrives. The acknowledgements of a vanished host are lost, too.
fn drop_packets(socket: &OwnedFd) -> Result<()> {
    // The program returns the number of bytes of a packet to keep: 0.
    let mut nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    // SAFETY: the option is a program, whose one instruction outlives the call.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }.context("SO_ATTACH_FILTER")
}

/// Sets the effective user of this thread, from which its next connection comes; 0 restores the program's own user. Without
/// effect unless the program runs as root.
fn become_user(user: u32) -> Result<()> {
    if Uid::is_root(rustix::process::getuid()) {
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(user), None).context("cannot become another user")?;
    }
    Ok(())
}
