//! A small NBD server for tests, built on the server side of the crate `evenkeel-nbd`, that misbehaves on demand.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Session, Status, reply, request};
use evenkeel_nbd::wire::{Command, MAX_PAYLOAD, TransmissionFlags};

use super::peers::{Scratch, scratch};

const SIZE: usize = 4 << 20;
/// Number of requests that the server answers correctly before its fault shows.
const GOOD: u32 = 100;

/// Misbehaviour of the server after [`GOOD`] correct answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The server stops answering, and keeps the connection open.
    Silence,
    /// An answer has the cookie of no request.
    WrongCookie,
    /// An answer does not have the magic number of an answer.
    Garbage,
    /// The server closes the connection.
    HangUp,
    /// One byte of the data that a read returns is wrong.
    WrongByte,
}

/// A running test server; its threads end with the test process.
pub(crate) struct Server {
    socket: String,
    _dir: Scratch,
}

struct Shelf;

impl Shelf {
    const DISK: Export<'static> = Export {
        name: "",
        description: "",
        size: SIZE as u64,
        flags: TransmissionFlags::HAS_FLAGS
            .union(TransmissionFlags::SEND_FLUSH)
            .union(TransmissionFlags::SEND_FUA)
            .union(TransmissionFlags::CAN_MULTI_CONN),
        min_block: 1,
        preferred_block: 4096,
        max_payload: MAX_PAYLOAD,
        access: Access::Open,
    };
}

impl Directory for Shelf {
    fn count(&self) -> usize {
        1
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        (from == 0 && !f(&Self::DISK)).then_some(1)
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        if name.is_empty() {
            f(&Self::DISK);
        }
        name.is_empty()
    }
}

impl Server {
    /// Starts a server that misbehaves by `fault`. The two booleans are true if it offers structured replies and extended
    /// headers, respectively.
    pub(crate) fn start((structured, extended): (bool, bool), fault: Fault) -> Self {
        let (dir, path) = scratch("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let disk = Arc::new(Mutex::new(vec![0; SIZE]));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, disk) = (stream.unwrap(), Arc::clone(&disk));
                // A client that leaves is the end of its thread, not of the test.
                std::thread::spawn(move || {
                    serve(stream, Offer { structured, extended, ..Offer::default() }, &disk, fault)
                });
            }
        });
        Self { socket: path.display().to_string(), _dir: dir }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }
}

fn negotiate(stream: &mut UnixStream, offer: Offer) -> io::Result<(Session, Vec<u8>)> {
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
            let step = handshake.advance(&input, &Shelf, &mut out).map_err(io::Error::other)?;
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

fn serve(mut stream: UnixStream, offer: Offer, disk: &Mutex<Vec<u8>>, fault: Fault) -> io::Result<()> {
    let (session, mut input) = negotiate(&mut stream, offer)?;
    let framing = session.framing;
    let mut served = 0;
    loop {
        while let Some((request, used)) = request::parse(&input, session.extended()).map_err(io::Error::other)? {
            let end = used + request.payload_len(session.extended()) as usize;
            if input.len() < end {
                break;
            }
            served += 1;
            let fault = if served > GOOD { fault } else { Fault::None };
            let (cookie, offset, length) = (request.cookie, request.offset, request.length as usize);
            let cookie = if fault == Fault::WrongCookie { cookie ^ 1 << 40 } else { cookie };
            let range = offset as usize..offset as usize + length;
            let mut disk = disk.lock().unwrap();
            let answer = match request.command {
                Command::Read => {
                    let mut answer = reply::read(framing, cookie, offset, length as u32).as_slice().to_vec();
                    answer.extend_from_slice(&disk[range]);
                    if fault == Fault::WrongByte {
                        *answer.last_mut().unwrap() ^= 1;
                    }
                    answer
                }
                Command::Write => {
                    disk[range].copy_from_slice(&input[used..end]);
                    reply::ok(framing, cookie, offset).as_slice().to_vec()
                }
                _ => reply::ok(framing, cookie, offset).as_slice().to_vec(),
            };
            drop(disk);
            match fault {
                Fault::Silence => {}
                Fault::HangUp => return Ok(()),
                Fault::Garbage => stream.write_all(&[0x55; 64])?,
                _ => stream.write_all(&answer)?,
            }
            input.drain(..end);
        }
        let mut piece = vec![0; 64 << 10];
        let received = stream.read(&mut piece)?;
        if received == 0 {
            return Ok(());
        }
        input.extend_from_slice(&piece[..received]);
    }
}
