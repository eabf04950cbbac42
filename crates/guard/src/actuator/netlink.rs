//! Netlink, as far as traffic control needs it: writing messages, reading messages, and the socket.
//!
//! Writing and reading are pure functions; [`Socket`] makes the system calls.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const ECHO: u16 = 0x8;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;

const NESTED: u16 = 0x8000;
/// Mask for the type of an attribute; the two bits above say how the attribute is encoded.
const TYPE_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 16;
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;
/// Longest wait for an answer of the kernel, which as a rule comes within microseconds.
const REPLY_LIMIT: Duration = Duration::from_secs(2);
/// Size of the receive buffer in bytes. The kernel sends lists in datagrams as large as the buffer has room for, up to this
/// size.
const RECEIVE_BYTES: usize = 64 << 10;

/// A netlink message to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// A message of this kind with these flags; `body` writes the content after the header. The message gets its sequence
    /// number when it is sent.
    pub(crate) fn new(kind: u16, flags: u16, body: impl FnOnce(&mut Writer<'_>)) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | REQUEST).to_ne_bytes());
        bytes.extend([0; 8]);
        body(&mut Writer { bytes: &mut bytes });
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        Self(bytes)
    }

    fn numbered(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Writes the content of a message after the header.
pub(crate) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Writer<'_> {
    /// Writes the fixed header of a netlink family, without an attribute header.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.pad();
    }

    /// Writes an attribute of type `kind` with the content `value`.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = (value.len() + 4) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// Writes an attribute with a string and its closing zero.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// Writes an attribute whose content is attributes, which `body` writes; they must not exceed 64 KiB together.
    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Writer<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        body(&mut Writer { bytes: self.bytes });
        let length = self.bytes.len() - start;
        debug_assert!(length <= usize::from(u16::MAX), "a nested attribute of {length} bytes");
        self.bytes[start..start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Splits a datagram into messages; ends before the first message that is cut short.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER_BYTES)?;
        let length = u32::from_ne_bytes(header[..4].try_into().ok()?) as usize;
        let body = bytes.get(HEADER_BYTES..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes(header[8..12].try_into().ok()?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, sequence, body })
    })
}

/// The attributes in `bytes` as pairs of type and content; ends before the first attribute that is cut short.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Content of the first attribute of type `kind` in `bytes`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// The string in the content of an attribute, without its closing zero; empty if it is not UTF-8.
pub(crate) fn text(value: &[u8]) -> &str {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).unwrap_or_default()
}

/// The result in the kernel's message of type `NLMSG_ERROR`: `Ok` for an acknowledgement.
pub(super) fn outcome(body: &[u8]) -> Result<(), Errno> {
    let code = body.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
    match code {
        0 => Ok(()),
        // The kernel's own range.
        -4095..0 => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::PROTO),
    }
}

/// The result of a removal: `Ok(true)` if the object was removed, `Ok(false)` if it did not exist any more.
pub(super) fn gone(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::INVAL | Errno::NODEV) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
}

impl Socket {
    pub(crate) fn open() -> Result<Self, Errno> {
        // Without a protocol named it is that of routes and traffic control.
        let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(REPLY_LIMIT))?;
        Ok(Self { fd, sequence: Cell::new(1), buffer: RefCell::new(vec![0; RECEIVE_BYTES]) })
    }

    /// Sends a request with the flag [`ACK`], and waits for the acknowledgement.
    pub(crate) fn tell(&self, request: &Request) -> Result<(), Errno> {
        self.ask(request, |_| {})
    }

    /// Sends a request and passes every message of the answer to `each`, until the kernel has sent the last one.
    pub(crate) fn ask(&self, request: &Request, mut each: impl FnMut(Message<'_>)) -> Result<(), Errno> {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.wrapping_add(1));
        net::sendto(&self.fd, &request.numbered(sequence), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = self.buffer.borrow_mut();
        loop {
            let (length, _) = rustix::io::retry_on_intr(|| net::recv(&self.fd, &mut buffer[..], RecvFlags::empty()))?;
            // What answers an earlier request, which ended without an answer in time, is passed over.
            let answers = messages(&buffer[..length.min(buffer.len())]).filter(|answer| answer.sequence == sequence);
            for message in answers {
                match message.kind {
                    KIND_DONE => return Ok(()),
                    KIND_ERROR => return outcome(message.body),
                    _ => each(message),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_and_attributes_are_laid_out_as_netlink_says() {
        let request = Request::new(0x0a00, ACK, |w| {
            w.raw(&[1, 0, 0, 0]);
            w.text(1, "evenkeel");
            w.nest(2, |w| w.bytes(1, &[0, 0, 0, 7]));
        });
        let mut expected = vec![];
        expected.extend([0; 4]);
        expected.extend(0x0a00u16.to_ne_bytes());
        expected.extend(5u16.to_ne_bytes());
        expected.extend([0; 8]);
        expected.extend([1, 0, 0, 0]);
        expected.extend(13u16.to_ne_bytes());
        expected.extend(1u16.to_ne_bytes());
        expected.extend(b"evenkeel\0\0\0\0");
        expected.extend(12u16.to_ne_bytes());
        expected.extend(0x8002u16.to_ne_bytes());
        expected.extend(8u16.to_ne_bytes());
        expected.extend(1u16.to_ne_bytes());
        expected.extend([0, 0, 0, 7]);
        let length = expected.len() as u32;
        expected[0..4].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(request.bytes(), expected);
        let numbered = request.numbered(9);
        let message = messages(&numbered).next().unwrap();
        assert_eq!((message.kind, message.sequence), (0x0a00, 9));
        let nested = attribute(&message.body[4..], 2).unwrap();
        assert_eq!(attribute(nested, 1), Some(&[0, 0, 0, 7][..]));
        assert_eq!(attribute(&message.body[4..], 1).map(text), Some("evenkeel"));
    }

    #[test]
    fn errors_of_the_kernel_are_distinguished_from_acknowledgements() {
        assert_eq!(outcome(&0i32.to_ne_bytes()), Ok(()));
        assert_eq!(outcome(&(-2i32).to_ne_bytes()), Err(Errno::NOENT));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut total = 0;
            for message in messages(&bytes) {
                total += HEADER_BYTES + message.body.len();
                for (_, value) in attributes(message.body) {
                    let _ = (text(value), outcome(value));
                }
            }
            prop_assert!(total <= bytes.len());
        }
    }
}
