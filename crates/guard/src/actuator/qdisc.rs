//! The agent's root queueing discipline on a network device whose packets may be delayed: HTB, which sends unmarked packets
//! straight to the device, with one class of `fq`, which keeps each packet until its departure time.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::netlink::{ACK, CREATE, DUMP, ECHO, EXCLUSIVE, Message, Request, Socket, Writer, attribute, gone, text};

pub(crate) const NEW_QDISC: u16 = 36;
pub(crate) const DELETE_QDISC: u16 = 37;
const GET_QDISC: u16 = 38;
const NEW_CLASS: u16 = 40;

pub(crate) const KIND: u16 = 1;
pub(crate) const OPTIONS: u16 = 2;
const STATISTICS: u16 = 7;

const ROOT: u32 = u32::MAX;
/// Handle with the major number of the agent's root queueing discipline, by which it is recognised; the kernel assigns other
/// numbers (from 0x8001 on).
pub(crate) const MAJOR: u32 = 0x7ee1 << 16;
/// Largest number of packets that may wait in a queue of the device: outside the class, inside it, and inside it of one
/// connection. The defaults of `fq` are 10,000 for all connections and 100 for one.
const LIMIT: u32 = 100_000;
/// Rate of an HTB class in bytes per second (100 Gbit/s): so high that it never throttles a packet.
const RATE: u64 = 12_500_000_000;
/// Burst of an HTB class at [`RATE`], in units of 64 ns: 10 ms.
const BURST: u32 = 156_250;
/// Bytes that an HTB class sends before the next class's turn: a few of the largest packets that TCP hands over.
const QUANTUM: u32 = 200_000;
/// Longest wait for delayed packets to leave before the agent's root is removed; slightly more than the longest delay that
/// may be configured (1 s).
const DRAIN_LIMIT: Duration = Duration::from_millis(1_100);
const DRAIN_POLL: Duration = Duration::from_millis(2);
const ETHERNET: u8 = 1;

/// A queueing discipline as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Qdisc {
    pub(crate) kind: String,
    pub(crate) handle: u32,
    pub(crate) root: bool,
    device: u32,
    /// Packets dropped so far by this queueing discipline and its children.
    pub(crate) drops: u64,
    /// Packets that wait in this queueing discipline now.
    waiting: u32,
}

impl Qdisc {
    /// True if the kernel made this queueing discipline as the device's default. Only a default one has no number. The
    /// default comes back when the agent's root is removed.
    pub(crate) fn is_default(&self) -> bool {
        self.handle == 0
    }

    /// True if this is a root queueing discipline that the agent made.
    pub(crate) fn is_ours(&self) -> bool {
        self.handle == MAJOR && self.kind == "htb"
    }

    /// True if delayed packets wait in this queueing discipline, given that the device's root is the agent's.
    pub(crate) fn keeps_packets(&self) -> bool {
        self.kind == "fq"
    }

    /// Kind and number as `tc` prints them, for example `htb 1:`.
    pub(crate) fn name(&self) -> String {
        format!("{} {:x}:", self.kind, self.handle >> 16)
    }
}

/// Handle of the HTB class in which delayed packets wait; a packet with this number as its priority goes to the class.
pub(crate) const CLASS: u32 = MAJOR | 1;

/// Writes the kernel's struct tcmsg, the header of traffic-control messages.
pub(crate) fn header(w: &mut Writer<'_>, device: u32, handle: u32, parent: u32, information: u32) {
    let mut bytes = [0; 20];
    bytes[4..8].copy_from_slice(&device.to_ne_bytes());
    bytes[8..12].copy_from_slice(&handle.to_ne_bytes());
    bytes[12..16].copy_from_slice(&parent.to_ne_bytes());
    bytes[16..20].copy_from_slice(&information.to_ne_bytes());
    w.raw(&bytes);
}

fn make_root(device: u32) -> Request {
    /// Attribute for the number of packets that may wait outside of classes; without the attribute, this number is the
    /// device's `txqueuelen`, which may be 0.
    const DIRECT: u16 = 5;
    Request::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, |w| {
        header(w, device, MAJOR, ROOT, 0);
        w.text(KIND, "htb");
        w.nest(OPTIONS, |w| {
            // Version, divisor for quanta, default class (none: past the class), debug, packets (output only).
            let init = [3u32, 10, 0, 0, 0];
            w.bytes(2, &init.map(u32::to_ne_bytes).concat());
            w.bytes(DIRECT, &LIMIT.to_ne_bytes());
        });
    })
}

fn remove_root(device: u32) -> Request {
    Request::new(DELETE_QDISC, ACK, |w| header(w, device, MAJOR, ROOT, 0))
}

fn make_class(device: u32) -> Request {
    Request::new(NEW_CLASS, ACK | CREATE | EXCLUSIVE, |w| {
        header(w, device, CLASS, MAJOR, 0);
        w.text(KIND, "htb");
        w.nest(OPTIONS, |w| {
            let mut rate = [0; 12];
            // With the link layer named, the kernel computes what it once wanted as a table.
            rate[1] = ETHERNET;
            rate[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
            let rest = [BURST, BURST, QUANTUM, 0, 0].map(u32::to_ne_bytes).concat();
            w.bytes(1, &[&rate[..], &rate[..], &rest[..]].concat());
            w.bytes(6, &RATE.to_ne_bytes());
            w.bytes(7, &RATE.to_ne_bytes());
        });
    })
}

/// Request for an `fq` with room for [`LIMIT`] packets and without pacing: it only keeps packets until their departure time.
fn make_queue(device: u32) -> Request {
    const PACKETS: u16 = 1;
    const PACKETS_OF_A_FLOW: u16 = 2;
    const PACING: u16 = 5;
    Request::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, |w| {
        header(w, device, 0, CLASS, 0);
        w.text(KIND, "fq");
        w.nest(OPTIONS, |w| {
            w.bytes(PACKETS, &LIMIT.to_ne_bytes());
            w.bytes(PACKETS_OF_A_FLOW, &LIMIT.to_ne_bytes());
            w.bytes(PACING, &0u32.to_ne_bytes());
        });
    })
}

pub(super) fn read(message: Message<'_>) -> Option<Qdisc> {
    let word = |at: usize| Some(u32::from_ne_bytes(message.body.get(at..at + 4)?.try_into().ok()?));
    let attributes = message.body.get(20..)?;
    // Basic numbers, rate, queue; the queue's are packets, bytes, drops.
    let queue = attribute(attributes, STATISTICS).and_then(|s| attribute(s, 3));
    let number = |at: usize| queue.and_then(|q| Some(u32::from_ne_bytes(q.get(at..at + 4)?.try_into().ok()?)));
    Some(Qdisc {
        kind: text(attribute(attributes, KIND)?).to_owned(),
        device: word(4)?,
        handle: word(8)?,
        root: word(12)? == ROOT,
        drops: number(8).unwrap_or(0).into(),
        waiting: number(0).unwrap_or(0),
    })
}

/// Access to the queueing disciplines in the network namespace of the thread that opened this value.
#[derive(Debug)]
pub(crate) struct Qdiscs {
    socket: Socket,
}

/// The kernel's refusal to make an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Kind of the object to be made: `htb` or `fq`.
    pub(crate) what: &'static str,
    pub(crate) error: Errno,
}

impl Qdiscs {
    pub(crate) fn open() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open()? })
    }

    /// All queueing disciplines of the network device with this index.
    pub(crate) fn list(&self, device: u32) -> Result<Vec<Qdisc>, Errno> {
        self.dump(device, |q| q.device == device)
    }

    /// The root queueing discipline of a network device; `None` if the root is built into the kernel (`noqueue`). Takes one
    /// message, while [`Self::list`] takes one for each queue.
    pub(crate) fn root(&self, device: u32) -> Result<Option<Qdisc>, Errno> {
        Ok(self.under(device, ROOT)?.filter(|q| q.root))
    }

    /// True if the agent's root on this device has its class, and the class its `fq`.
    pub(crate) fn is_whole(&self, device: u32) -> Result<bool, Errno> {
        Ok(self.under(device, CLASS)?.is_some_and(|q| q.keeps_packets()))
    }

    fn under(&self, device: u32, parent: u32) -> Result<Option<Qdisc>, Errno> {
        // Without the echo the answer goes to listeners to changes, and not to us.
        let request = Request::new(GET_QDISC, ACK | ECHO, |w| header(w, device, 0, parent, 0));
        let mut found = None;
        let answer = self.socket.ask(&request, |message| {
            if message.kind == NEW_QDISC {
                found = read(message).filter(|q| q.device == device);
            }
        });
        match answer {
            // What is built into the kernel is not told of, by newer kernels with an error.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => Ok(found),
            Err(e) => Err(e),
        }
    }

    /// Indices of the network devices that have the agent's root.
    pub(crate) fn ours(&self) -> Result<Vec<u32>, Errno> {
        let ours = self.dump(0, |q| q.root && q.is_ours())?;
        Ok(ours.into_iter().map(|q| q.device).collect())
    }

    /// Indices of the network devices that have a queueing discipline of this kind.
    pub(crate) fn of_kind(&self, kind: &str) -> Result<Vec<u32>, Errno> {
        Ok(self.dump(0, |q| q.kind == kind)?.into_iter().map(|q| q.device).collect())
    }

    fn dump(&self, device: u32, wanted: impl Fn(&Qdisc) -> bool) -> Result<Vec<Qdisc>, Errno> {
        let request = Request::new(GET_QDISC, DUMP, |w| header(w, device, 0, 0, 0));
        let mut found = Vec::new();
        self.socket.ask(&request, |message| {
            if message.kind == NEW_QDISC {
                found.extend(read(message).filter(&wanted));
            }
        })?;
        Ok(found)
    }

    /// Makes the agent's root on a network device, with the class [`CLASS`] and its `fq`, in which packets are kept until
    /// their departure time.
    pub(crate) fn create(&self, device: u32) -> Result<(), Refused> {
        self.one("htb", &make_root(device))?;
        let rest = self.one("htb", &make_class(device)).and_then(|()| self.one("fq", &make_queue(device)));
        if rest.is_err() {
            // By itself it would be in the way of the next attempt. The caller is to see the refusal.
            let _ = self.socket.tell(&remove_root(device));
        }
        rest
    }

    fn one(&self, what: &'static str, request: &Request) -> Result<(), Refused> {
        self.socket.tell(request).map_err(|error| Refused { what, error })
    }

    /// Removes the agent's root with its class and queue, after its packets have left or [`DRAIN_LIMIT`] has passed; another
    /// program's root stays. The kernel's default comes back. Detach the BPF program before, or more packets arrive. True if
    /// the agent's root was there.
    pub(crate) fn remove(&self, device: u32) -> Result<bool, Errno> {
        if !self.list(device)?.iter().any(|q| q.root && q.is_ours()) {
            return Ok(false);
        }
        let started = Instant::now();
        let holds = |q: &Qdisc| q.keeps_packets() && q.waiting > 0;
        while self.list(device)?.iter().any(holds) && started.elapsed() < DRAIN_LIMIT {
            std::thread::sleep(DRAIN_POLL);
        }
        gone(self.socket.tell(&remove_root(device)))
    }
}

#[cfg(test)]
impl Qdiscs {
    /// Makes the agent's root without its class and queue; false if the kernel has no HTB.
    pub(super) fn halve(&self, device: u32) -> bool {
        self.remove(device).unwrap();
        self.socket.tell(&make_root(device)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuator::netlink::messages;
    use crate::apart::{apart, skip};

    #[test]
    fn a_queue_is_encoded_as_the_kernel_reads_it() {
        let request = make_queue(7);
        let bytes = request.bytes();
        assert_eq!(bytes[4..6], NEW_QDISC.to_ne_bytes());
        assert_eq!(bytes[20..24], 7u32.to_ne_bytes(), "device");
        assert_eq!(bytes[24..28], [0; 4], "the kernel picks the number");
        assert_eq!(bytes[28..32], 0x7ee1_0001u32.to_ne_bytes(), "parent");
        let attributes = &bytes[36..];
        assert_eq!(attribute(attributes, KIND).map(text), Some("fq"));
        let options = attribute(attributes, OPTIONS).unwrap();
        assert_eq!(attribute(options, 1).unwrap(), 100_000u32.to_ne_bytes(), "packets");
        assert_eq!(attribute(options, 5).unwrap(), [0; 4], "no pacing");
    }

    #[test]
    fn packets_past_the_class_have_room_whatever_the_device_is_set_to() {
        let request = make_root(7);
        let options = attribute(&request.bytes()[36..], OPTIONS).unwrap();
        assert_eq!(attribute(options, 5).unwrap(), 100_000u32.to_ne_bytes());
    }

    #[test]
    fn packets_that_wait_and_drops_are_read() {
        let message = Request::new(NEW_QDISC, ACK, |w| {
            header(w, 7, MAJOR, ROOT, 0);
            w.text(KIND, "fq");
            let mut queue = [24u16, 3].map(u16::to_ne_bytes).concat();
            queue.extend([5u32, 700, 9, 0, 0].map(u32::to_ne_bytes).concat());
            w.bytes(STATISTICS, &queue);
        });
        let found = messages(message.bytes()).find_map(read).expect("a queueing discipline");
        assert_eq!((found.device, found.handle, found.root), (7, MAJOR, true));
        assert_eq!((found.waiting, found.drops), (5, 9));
    }

    #[test]
    fn a_class_never_limits() {
        let request = make_class(7);
        let options = attribute(&request.bytes()[36..], OPTIONS).unwrap();
        let parameters = attribute(options, 1).unwrap();
        assert_eq!(parameters.len(), 44, "size of struct tc_htb_opt");
        assert_eq!(attribute(options, 6).unwrap(), 12_500_000_000u64.to_ne_bytes());
    }

    #[test]
    fn default_own_and_foreign_are_told_apart() {
        let qdisc =
            |kind: &str, handle| Qdisc { kind: kind.into(), handle, root: true, device: 1, drops: 0, waiting: 0 };
        assert!(qdisc("fq_codel", 0).is_default());
        assert!(!qdisc("fq_codel", 0x10000).is_default());
        assert!(qdisc("htb", MAJOR).is_ours());
        assert!(!qdisc("pfifo", MAJOR).is_ours());
        assert_eq!(qdisc("htb", 0x1_0000).name(), "htb 1:");
    }

    /// Runs in a network namespace of its own, on its loopback device.
    #[test]
    fn a_root_alone_is_not_whole() {
        const LOOPBACK: u32 = 1;
        apart(rustix::thread::UnshareFlags::NEWNET, || {
            let qdiscs = Qdiscs::open().unwrap();
            assert_eq!(qdiscs.is_whole(LOOPBACK), Ok(false));
            if !qdiscs.halve(LOOPBACK) {
                return skip("the kernel has no htb");
            }
            let kind = || qdiscs.under(LOOPBACK, CLASS).unwrap().map(|q| q.kind);
            assert_eq!((kind(), qdiscs.is_whole(LOOPBACK)), (None, Ok(false)), "without its class");
            qdiscs.one("htb", &make_class(LOOPBACK)).unwrap();
            assert_eq!((kind(), qdiscs.is_whole(LOOPBACK)), (None, Ok(false)), "with the queue that the kernel made");
            // Every kernel has this one.
            let queue = Request::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, |w| {
                header(w, LOOPBACK, 0, CLASS, 0);
                w.text(KIND, "pfifo");
            });
            qdiscs.one("pfifo", &queue).unwrap();
            assert_eq!((kind(), qdiscs.is_whole(LOOPBACK)), (Some("pfifo".into()), Ok(false)));
        });
    }

    /// Runs in a network namespace of its own, on its loopback device.
    #[test]
    fn the_root_is_ours_while_it_is_there() {
        const LOOPBACK: u32 = 1;
        let ran = std::thread::spawn(|| {
            // SAFETY: a network namespace changes no descriptor or memory that others share.
            if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.is_err() {
                return println!("SKIPPED: may not make a network namespace");
            }
            let qdiscs = Qdiscs::open().unwrap();
            assert_eq!(qdiscs.root(LOOPBACK), Ok(None), "built into the kernel");
            match qdiscs.create(LOOPBACK) {
                Err(Refused { what, error: Errno::NOENT }) => {
                    assert_eq!(qdiscs.root(LOOPBACK), Ok(None), "half of it stays");
                    return println!("SKIPPED: the kernel has no {what}");
                }
                other => other.unwrap(),
            }
            let root = qdiscs.root(LOOPBACK).unwrap().unwrap();
            assert!(root.is_ours() && !root.is_default() && root.kind == "htb", "{root:?}");
            assert_eq!(qdiscs.is_whole(LOOPBACK), Ok(true));
            assert!(qdiscs.remove(LOOPBACK).unwrap());
            assert_eq!(qdiscs.is_whole(LOOPBACK), Ok(false));
            assert_eq!(qdiscs.root(LOOPBACK), Ok(None));
            assert!(qdiscs.root(LOOPBACK + 77).is_err(), "no such device");
        });
        ran.join().unwrap();
    }
}
