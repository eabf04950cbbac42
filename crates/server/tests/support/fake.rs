//! A fake NBD server in the test's process; the test decides the handling of each request.
#![allow(unreachable_pub, reason = "as the rest of the support")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Session, Status, reply, request};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Extent, Framing, MAX_PAYLOAD, Request, TransmissionFlags};

/// The properties of the export that the fake server offers, under any name but `none`.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub size: u64,
    pub flags: TransmissionFlags,
    pub min_block: u32,
    pub max_payload: u32,
    pub framing: Framing,
}

impl Default for Shown {
    fn default() -> Self {
        Self {
            size: 4 << 20,
            flags: TransmissionFlags::ALL.without(TransmissionFlags::READ_ONLY).without(TransmissionFlags::ROTATIONAL),
            min_block: 1,
            max_payload: MAX_PAYLOAD,
            framing: Framing::Extended,
        }
    }
}

impl Directory for Shown {
    fn count(&self) -> usize {
        1
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        let stopped = from == 0 && !f(&self.export());
        stopped.then_some(1)
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        if name != "none" {
            f(&self.export());
        }
        name != "none"
    }
}

impl Shown {
    fn export(&self) -> Export<'static> {
        Export {
            name: "fake",
            description: "",
            size: self.size,
            flags: self.flags,
            min_block: self.min_block,
            preferred_block: self.min_block.max(4096),
            max_payload: self.max_payload,
            access: Access::Open,
        }
    }
}

/// The fake server's handling of one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Carries the request out and answers it.
    Serve,
    /// Carries the request out, and ends the connection without an answer.
    ServeAndHangUp,
    /// Neither carries the request out nor answers it; the connection stays open.
    Ignore,
    /// Answers with this error, without carrying the request out.
    Fail(Errno),
    /// Answers with these bytes, without carrying the request out.
    Send(Vec<u8>),
    /// Carries the request out, and answers with what the function makes of the answer.
    #[allow(dead_code, reason = "for the tests of `evenkeel load`, which include this file")]
    Alter(fn(&mut Vec<u8>)),
    /// Ends the connection, without carrying the request out or answering it.
    HangUp,
    /// Simulates a crash and restart of the server, which loses all data that was not flushed. The request's connection ends
    /// at once, the other connections at their next request.
    Crash,
}

/// A request that the fake server has received, as passed to the test's decision and as recorded in the log.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Number of connections that the fake server accepted before the request's connection.
    pub connection: usize,
    /// Number of requests on the same connection before this one.
    pub nth: usize,
    pub request: Request,
    pub framing: Framing,
}

struct Disk {
    now: Vec<u8>,
    /// The content after a crash: all data that was flushed or written with FUA.
    durable: Vec<u8>,
}

type Behaviour = dyn Fn(&Seen) -> Act + Send + Sync;

struct Shared {
    shown: Mutex<Shown>,
    disk: Mutex<Disk>,
    /// Connections with a smaller number than this began before the newest simulated crash, and end at their next request.
    dead_below: AtomicUsize,
    log: Mutex<Vec<Seen>>,
    streams: Mutex<Vec<UnixStream>>,
    closed: AtomicBool,
    behaviour: Box<Behaviour>,
}

/// A fake NBD server on a Unix socket.
pub struct Fake {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Fake {
    /// Starts a fake server with its socket in `folder`; `behaviour` decides the handling of each request.
    pub fn start(folder: &Path, shown: Shown, behaviour: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let path = folder.join("fake.sock");
        let shared = Arc::new(Shared {
            // Ranges of more are answered and not kept.
            disk: Mutex::new({
                let empty = vec![0; shown.size.min(64 << 20) as usize];
                Disk { now: empty.clone(), durable: empty }
            }),
            dead_below: AtomicUsize::new(0),
            shown: Mutex::new(shown),
            log: Mutex::default(),
            streams: Mutex::default(),
            closed: AtomicBool::new(false),
            behaviour: Box::new(behaviour),
        });
        let fake = Self { path, shared };
        fake.listen();
        fake
    }

    fn listen(&self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if shared.closed.load(Ordering::SeqCst) {
                    return;
                }
                let connection = {
                    let mut streams = shared.streams.lock().unwrap();
                    streams.push(stream.try_clone().unwrap());
                    streams.len() - 1
                };
                let shared = Arc::clone(&shared);
                // A client that leaves is the end of its thread, not of the test.
                std::thread::spawn(move || serve(stream, connection, &shared));
            }
        });
    }

    /// Configuration of the volume `far`, which the fake server holds, with further `settings`.
    pub fn volume(&self, settings: &str) -> String {
        format!(
            "[volumes.far]\nbackend = \"nbd\"\nuri = \"nbd+unix:///disk?socket={}\"\n{settings}",
            self.path.display()
        )
    }

    /// Path of the fake server's Unix socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the export that connections accepted from now on see.
    pub fn show(&self, shown: Shown) {
        *self.shared.shown.lock().unwrap() = shown;
    }

    /// Ends all connections, and accepts no others until [`Fake::come_back`].
    pub fn go_away(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts, which then ends; what connects in between is not answered.
        let _ = UnixStream::connect(&self.path);
        std::fs::remove_file(&self.path).unwrap();
        self.hang_up();
    }

    pub fn come_back(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
        self.listen();
    }

    /// Ends all connections.
    pub fn hang_up(&self) {
        for stream in self.shared.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Ends one connection.
    pub fn hang_up_on(&self, connection: usize) {
        let _ = self.shared.streams.lock().unwrap()[connection].shutdown(std::net::Shutdown::Both);
    }

    /// All requests that the fake server has received so far.
    pub fn log(&self) -> Vec<Seen> {
        self.shared.log.lock().unwrap().clone()
    }

    /// The requests with this command that the fake server has received so far.
    pub fn seen(&self, command: Command) -> Vec<Seen> {
        self.log().into_iter().filter(|seen| seen.request.command == command).collect()
    }

    /// The fake volume's present content in a range of bytes.
    pub fn content(&self, offset: usize, length: usize) -> Vec<u8> {
        self.shared.disk.lock().unwrap().now[offset..offset + length].to_vec()
    }

    /// The fake volume's content in a range of bytes after a crash: data that was flushed or written with FUA.
    pub fn durable(&self, offset: usize, length: usize) -> Vec<u8> {
        self.shared.disk.lock().unwrap().durable[offset..offset + length].to_vec()
    }
}

fn negotiate(stream: &mut UnixStream, shown: &Shown) -> io::Result<(Session, Vec<u8>)> {
    let offer =
        Offer { structured: shown.framing.has_chunks(), extended: shown.framing.is_extended(), ..Offer::default() };
    let mut handshake = Handshake::new(offer);
    let (mut out, mut input) = (Vec::new(), Vec::new());
    handshake.greet(&mut out);
    loop {
        stream.write_all(&out)?;
        out.clear();
        let mut piece = [0; 4096];
        let received = stream.read(&mut piece)?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        input.extend_from_slice(&piece[..received]);
        loop {
            let step = handshake.advance(&input, shown, &mut out).map_err(io::Error::other)?;
            input.drain(..step.consumed);
            match step.status {
                Status::Transmission(session) => {
                    stream.write_all(&out)?;
                    return Ok((session, input));
                }
                Status::Unfinished => {}
                Status::More if step.consumed > 0 => {}
                Status::More => break,
                Status::Closed | Status::StartTls => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }
}

fn serve(mut stream: UnixStream, connection: usize, shared: &Shared) -> io::Result<()> {
    let shown = *shared.shown.lock().unwrap();
    let (session, mut input) = negotiate(&mut stream, &shown)?;
    let framing = session.framing;
    let mut nth = 0;
    loop {
        while let Some((request, used)) = request::parse(&input, session.extended()).map_err(io::Error::other)? {
            let end = used + request.payload_len(session.extended()) as usize;
            if input.len() < end {
                break;
            }
            if request.command == Command::Disconnect {
                return Ok(());
            }
            let seen = Seen { connection, nth, request, framing };
            nth += 1;
            let is_dead = connection < shared.dead_below.load(Ordering::SeqCst);
            let act = if is_dead { Act::HangUp } else { (shared.behaviour)(&seen) };
            let payload: Vec<u8> = input.drain(..end).skip(used).collect();
            let answer = match &act {
                Act::Serve | Act::ServeAndHangUp => answer(shared, &request, framing, &payload),
                Act::Fail(errno) => reply::error(framing, request.cookie, request.offset, *errno).as_slice().to_vec(),
                Act::Send(bytes) => bytes.clone(),
                Act::Alter(alter) => {
                    let mut bytes = answer(shared, &request, framing, &payload);
                    alter(&mut bytes);
                    bytes
                }
                Act::Crash => {
                    let mut disk = shared.disk.lock().unwrap();
                    disk.now = disk.durable.clone();
                    shared.dead_below.store(shared.streams.lock().unwrap().len(), Ordering::SeqCst);
                    Vec::new()
                }
                Act::Ignore | Act::HangUp => Vec::new(),
            };
            // Once it is here, it was carried out.
            shared.log.lock().unwrap().push(seen);
            match act {
                Act::HangUp | Act::ServeAndHangUp | Act::Crash => return stream.shutdown(std::net::Shutdown::Both),
                _ => stream.write_all(&answer)?,
            }
        }
        let mut piece = vec![0; 64 << 10];
        let received = stream.read(&mut piece)?;
        if received == 0 {
            return Ok(());
        }
        input.extend_from_slice(&piece[..received]);
    }
}

/// Carries a request out on the fake volume; returns the bytes of the reply.
fn answer(shared: &Shared, request: &Request, framing: Framing, payload: &[u8]) -> Vec<u8> {
    let (cookie, offset, length) = (request.cookie, request.offset, request.length);
    let mut disk = shared.disk.lock().unwrap();
    let Disk { now, durable } = &mut *disk;
    let range = || offset as usize..(offset + length) as usize;
    match request.command {
        Command::Read => {
            let mut answer = reply::read(framing, cookie, offset, length as u32).as_slice().to_vec();
            answer.extend_from_slice(&now[range()]);
            return answer;
        }
        Command::Write => {
            now[range()].copy_from_slice(payload);
            if request.flags.contains(CommandFlags::FUA) {
                durable[range()].copy_from_slice(payload);
            }
        }
        Command::Flush => durable.copy_from_slice(now),
        Command::Trim | Command::WriteZeroes => {
            let bytes = now.len() as u64;
            now[offset.min(bytes) as usize..(offset + length).min(bytes) as usize].fill(0);
        }
        Command::BlockStatus => {
            // Data up to the middle of the export, a hole after it.
            let half = shared.shown.lock().unwrap().size / 2;
            let data = half.saturating_sub(offset).min(length);
            let extents = [Extent { length: data, status: 0 }, Extent { length: length - data, status: 3 }];
            let mut answer = Vec::new();
            let extents = extents.into_iter().filter(|extent| extent.length > 0);
            reply::block_status(framing, cookie, offset, length, false, extents, &mut answer);
            return answer;
        }
        _ => {}
    }
    reply::ok(framing, cookie, offset).as_slice().to_vec()
}
