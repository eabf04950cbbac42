//! Attaches BPF programs to the egress of a network device by a traffic-control filter, for kernels without links (before
//! 6.6).
//!
//! The filter (`cls_bpf`, direct action) hangs on `clsact`, which queues no packets and stands beside the root queueing
//! discipline. Filter and `clsact` outlive the process: the agent, the sentinel or `guard reset` removes them, and until then
//! the program ignores expired delays. The agent's filter is recognised by number, priority and name.

use rustix::io::Errno;

use super::netlink::{ACK, CREATE, DUMP, EXCLUSIVE, Message, Request, Socket, attribute, gone, text};
use super::qdisc::{DELETE_QDISC, KIND, NEW_QDISC, OPTIONS, Qdiscs, header};

const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;

/// Traffic-control handles: of the parent of `clsact`, of `clsact` itself, and of its lists of filters for ingress and
/// egress.
const CLSACT_PARENT: u32 = 0xffff_fff1;
const CLSACT: u32 = 0xffff_0000;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;

/// Numbers of the netlink attributes of `cls_bpf`.
const PROGRAM: u16 = 6;
const NAME: u16 = 7;
const FLAGS: u16 = 8;
/// Flag of `cls_bpf`: the program's result is the verdict on the packet.
const DIRECT_ACTION: u32 = 1;

const OUR_NAME: &str = "evenkeel";
const OUR_NUMBER: u32 = 1;
/// Priority of the agent's filter: above the low numbers that other programs use, and below those that the kernel assigns
/// (from 0xc000 on).
const OUR_PRIORITY: u32 = 0x7ee1;
/// The protocol number of the agent's filter: all protocols (ETH_P_ALL), in network byte order.
const ALL_PROTOCOLS: u16 = 3_u16.to_be();

/// The reason why a filter cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The kernel lacks a part that this module provides.
    Missing(&'static str),
    /// The device has the older `ingress` in the place of `clsact`.
    Ingress,
    /// Another error of the kernel.
    Other(Errno),
}

/// A traffic-control filter as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    device: u32,
    number: u32,
    priority: u32,
    name: String,
}

impl Filter {
    fn is_ours(&self) -> bool {
        self.number == OUR_NUMBER && self.priority == OUR_PRIORITY && self.name == OUR_NAME
    }
}

fn information() -> u32 {
    OUR_PRIORITY << 16 | u32::from(ALL_PROTOCOLS)
}

fn make_clsact(device: u32) -> Request {
    Request::new(NEW_QDISC, ACK | CREATE | EXCLUSIVE, |w| {
        header(w, device, CLSACT, CLSACT_PARENT, 0);
        w.text(KIND, "clsact");
    })
}

fn make_filter(device: u32, program: i32, information: u32, name: &str) -> Request {
    Request::new(NEW_FILTER, ACK | CREATE | EXCLUSIVE, |w| {
        header(w, device, OUR_NUMBER, EGRESS, information);
        w.text(KIND, "bpf");
        w.nest(OPTIONS, |w| {
            w.bytes(PROGRAM, &program.to_ne_bytes());
            w.text(NAME, name);
            w.bytes(FLAGS, &DIRECT_ACTION.to_ne_bytes());
        });
    })
}

fn remove_filter(device: u32) -> Request {
    Request::new(DELETE_FILTER, ACK, |w| {
        header(w, device, OUR_NUMBER, EGRESS, information());
        w.text(KIND, "bpf");
    })
}

pub(super) fn read(message: Message<'_>) -> Option<Filter> {
    let word = |at: usize| Some(u32::from_ne_bytes(message.body.get(at..at + 4)?.try_into().ok()?));
    let options = attribute(message.body.get(20..)?, OPTIONS).unwrap_or_default();
    Some(Filter {
        device: word(4)?,
        number: word(8)?,
        priority: word(16)? >> 16,
        name: attribute(options, NAME).map(text).unwrap_or_default().to_owned(),
    })
}

/// Access to the filters in the network namespace of the thread that opened this value.
#[derive(Debug)]
pub(crate) struct Filters {
    socket: Socket,
    qdiscs: Qdiscs,
}

impl Filters {
    pub(crate) fn open() -> Result<Self, Errno> {
        Ok(Self { socket: Socket::open()?, qdiscs: Qdiscs::open()? })
    }

    /// True if a network device has `clsact`, whichever program made it.
    pub(crate) fn has_clsact(&self, device: u32) -> Result<bool, Errno> {
        Ok(self.qdiscs.list(device)?.iter().any(|q| q.kind == "clsact"))
    }

    /// Attaches the BPF program with this descriptor to the egress of a network device. An earlier filter of the agent is
    /// replaced.
    pub(crate) fn attach(&self, device: u32, program: i32) -> Result<(), Refused> {
        let found = self.qdiscs.list(device).map_err(Refused::Other)?;
        if found.iter().any(|q| q.kind == "ingress") {
            return Err(Refused::Ingress);
        }
        if !found.iter().any(|q| q.kind == "clsact") {
            let made = self.socket.tell(&make_clsact(device));
            made.or_else(|e| if e == Errno::EXIST { Ok(()) } else { Err(refused(e, "sch_ingress")) })?;
        }
        self.detach(device).map_err(Refused::Other)?;
        let filter = make_filter(device, program, information(), OUR_NAME);
        self.socket.tell(&filter).map_err(|e| refused(e, "cls_bpf"))
    }

    /// Removes the agent's filter from a network device; `clsact` and other programs' filters stay. True if the agent's
    /// filter was there.
    pub(crate) fn detach(&self, device: u32) -> Result<bool, Errno> {
        if !self.is_attached(device)? {
            return Ok(false);
        }
        gone(self.socket.tell(&remove_filter(device)))
    }

    /// True if the agent's filter is on the network device.
    pub(crate) fn is_attached(&self, device: u32) -> Result<bool, Errno> {
        Ok(self.list(device, EGRESS)?.iter().any(Filter::is_ours))
    }

    /// Removes the agent's filter, and `clsact` too if the agent made it (`made_clsact`) and it has no other filter. True if
    /// anything was removed.
    pub(crate) fn remove(&self, device: u32, made_clsact: bool) -> Result<bool, Errno> {
        if !self.has_clsact(device)? {
            return Ok(false);
        }
        let had = self.detach(device)?;
        let empty = || Ok(self.list(device, EGRESS)?.is_empty() && self.list(device, INGRESS)?.is_empty());
        if made_clsact && empty()? {
            let clsact = Request::new(DELETE_QDISC, ACK, |w| header(w, device, CLSACT, CLSACT_PARENT, 0));
            return Ok(gone(self.socket.tell(&clsact))? || had);
        }
        Ok(had)
    }

    fn list(&self, device: u32, parent: u32) -> Result<Vec<Filter>, Errno> {
        let request = Request::new(GET_FILTER, DUMP, |w| header(w, device, 0, parent, 0));
        let mut found = Vec::new();
        self.socket.ask(&request, |message| {
            if message.kind == NEW_FILTER {
                // The kernel lists a priority once without number before what hangs on it.
                found.extend(read(message).filter(|filter| filter.device == device && filter.number != 0));
            }
        })?;
        Ok(found)
    }
}

#[cfg(test)]
impl Filters {
    /// Adds a filter as another program would, beside the agent's.
    pub(crate) fn attach_foreign(&self, device: u32, program: i32) {
        let foreign = (1 << 16) | u32::from(ALL_PROTOCOLS);
        self.socket.tell(&make_filter(device, program, foreign, "foreign")).unwrap();
    }
}

fn refused(error: Errno, module: &'static str) -> Refused {
    match error {
        Errno::NOENT | Errno::OPNOTSUPP => Refused::Missing(module),
        e => Refused::Other(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_encoded_as_the_kernel_reads_it() {
        let request = make_filter(7, 42, information(), OUR_NAME);
        let bytes = request.bytes();
        assert_eq!(bytes[4..6], NEW_FILTER.to_ne_bytes());
        assert_eq!(bytes[20..24], 7u32.to_ne_bytes(), "device");
        assert_eq!(bytes[28..32], 0xffff_fff3u32.to_ne_bytes(), "egress of clsact");
        assert_eq!(bytes[32..34], [0, 3], "all protocols, in network order");
        let attributes = &bytes[36..];
        assert_eq!(attribute(attributes, KIND).map(text), Some("bpf"));
        let options = attribute(attributes, OPTIONS).unwrap();
        assert_eq!(attribute(options, PROGRAM).unwrap(), 42i32.to_ne_bytes());
        assert_eq!(attribute(options, FLAGS).unwrap(), 1u32.to_ne_bytes());
    }

    #[test]
    fn ours_is_distinguished_from_others_by_all_three_marks() {
        let ours = Filter { device: 1, number: 1, priority: OUR_PRIORITY, name: "evenkeel".into() };
        assert!(ours.is_ours());
        assert!(!Filter { name: "cilium".into(), ..ours.clone() }.is_ours());
        assert!(!Filter { priority: 1, ..ours.clone() }.is_ours());
        assert!(!Filter { number: 2, ..ours }.is_ours());
    }
}
