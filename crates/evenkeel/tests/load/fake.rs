//! The fake server of the server's own tests, with faults that show after a number of correct answers.

use evenkeel_nbd::wire::{Command, Framing, TransmissionFlags as Flags};

use super::folder::Folder;
use super::peers::scratch;
use super::server::{Act, Fake, Seen, Shown};

/// Number of requests that the server answers correctly before its fault shows.
const GOOD: usize = 100;

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

impl Fault {
    fn act(self, seen: &Seen) -> Act {
        match self {
            _ if seen.nth < GOOD => Act::Serve,
            Self::Silence => Act::Ignore,
            // In each framing the cookie is in bytes 8 to 15.
            Self::WrongCookie => Act::Alter(|answer| answer[10] ^= 1),
            Self::Garbage => Act::Send(vec![0x55; 64]),
            Self::HangUp => Act::HangUp,
            Self::WrongByte if seen.request.command == Command::Read => {
                Act::Alter(|answer| *answer.last_mut().unwrap() ^= 1)
            }
            Self::None | Self::WrongByte => Act::Serve,
        }
    }
}

/// A running test server; its threads end with the test process.
pub(crate) struct Server {
    fake: Fake,
    _dir: Folder,
}

impl Server {
    /// Starts a server that offers replies and headers up to `framing`, and misbehaves by `fault`.
    pub(crate) fn start(framing: Framing, fault: Fault) -> Self {
        let (dir, _) = scratch("fake.sock");
        let flags = Flags::HAS_FLAGS | Flags::SEND_FLUSH | Flags::SEND_FUA | Flags::CAN_MULTI_CONN;
        let shown = Shown { flags, framing, ..Shown::default() };
        Self { fake: Fake::start(dir.path(), shown, move |seen| fault.act(seen)), _dir: dir }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.fake.path().display())
    }
}
