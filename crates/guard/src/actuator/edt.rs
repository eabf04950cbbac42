//! Earliest departure times: a program sets when each packet may leave, and `fq` keeps it until then.
//!
//! ```text
//!  packet to a client ──▶ BPF program: is it to wait? ──▶ departure = max(now, departure) + delay ──▶ HTB class: fq ──▶ device
//!                             └─ no ────────────────────────────────────────────────────────────▶ past the class ──▶
//! ```
//!
//! Delays are exact to the nanosecond and need no classes. A hold is an element of a hash map with its expiry, which the
//! program compares with the clock, so that it ends by itself if nobody renews it; and the program is attached by a link
//! that ends with this process, or where the kernel has none (before 6.6) by a [filter](super::filter).
//!
//! `fq` sends the packets of one connection in the order of their departure, but looks at a connection again only when its
//! first packet is due, and it takes time to sort what it gets. So packets that are not to wait go past it: it is in a class of
//! HTB, as delays are, for which the program marks those that wait.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::filter::{Filters, Refused};
use super::hold::{Client, Hold, Holds, LINGER, Packets};
use super::qdisc::DEPARTURES_ID;
use crate::bpf::{
    Assembler, Do, Kind, Map, Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Sees, Size, When,
};

/// Key: address as IPv6, the client's port and the service's in network order, both 0 for all connections.
const KEY_BYTES: usize = 20;
/// Value: delay and expiry in ns, kind, padding.
const VALUE_BYTES: usize = 24;
const DELAY: i16 = 0;
const EXPIRES: i16 = 8;
const KIND: i16 = 16;

const ALL: i32 = 0;
const ACKNOWLEDGEMENTS: i32 = 1;
const DATA: i32 = 2;

/// Where the kernel's struct __sk_buff has them.
const PROTOCOL: i16 = 16;
const PRIORITY: i16 = 32;
const DEPARTURE: i16 = 152;

/// Helper functions of the kernel.
const MAP_LOOKUP: i32 = 1;
const CLOCK: i32 = 5;
const LOAD_BYTES_RELATIVE: i32 = 68;

/// Where the program keeps what it read, below the end of its stack.
const IP: i16 = -40;
const TCP: i16 = -64;
const KEY: i16 = -88;

/// Others may look at the packet, too.
const NEXT: i32 = -1;
/// The priority by which HTB knows what is to wait.
const WAITS: i32 = DEPARTURES_ID as i32;
const PROTOCOL_TCP: i32 = 6;
/// What stands for a length of 0, which only segments too long for the field have.
const LONG: i32 = 65_535;
/// Elements are renewed when this part of their timeout has passed.
const RENEW_AFTER: u32 = 3;

/// Reads bytes that lie `offset` after the beginning of the network header.
fn read(program: &mut Assembler, offset: Register, to: i16, bytes: i32, otherwise: crate::bpf::Label) {
    const FROM_NETWORK_HEADER: i32 = 1;
    program.set(R1, R6);
    program.set(R2, offset);
    program.set(R3, R10);
    program.alu(Do::Add, R3, i32::from(to));
    program.set(R4, bytes);
    program.set(R5, FROM_NETWORK_HEADER);
    program.call(LOAD_BYTES_RELATIVE);
    program.jump_when(When::Unequal, R0, 0, otherwise);
}

/// Two bytes as they lie in memory, as the program loads them.
fn in_memory(n: u16) -> i32 {
    i32::from(u16::from_ne_bytes(n.to_be_bytes()))
}

/// The program. R6: the packet; R7: length after the IP header, then whether there is payload; R8: the hold; R9: where the
/// TCP header is, then the time.
fn program(holds: &Map, ports: &[u16]) -> Assembler {
    let mut p = Assembler::default();
    let [v6, tcp, known, found, acks, hold, pass] = std::array::from_fn(|_| p.label());
    let [v4_length, v6_length, payload, later] = std::array::from_fn(|_| p.label());
    p.set(R6, R1);
    p.store(Size::Double, R10, KEY, 0);
    p.store(Size::Double, R10, KEY + 8, 0);
    p.store(Size::Word, R10, KEY + 16, 0);
    p.set(R9, 0);
    p.load(Size::Word, R0, R6, PROTOCOL);
    p.jump_when(When::Equal, R0, in_memory(0x86dd), v6);
    p.jump_when(When::Unequal, R0, in_memory(0x0800), pass);

    read(&mut p, R9, IP, 20, pass);
    p.load(Size::Byte, R0, R10, IP + 9);
    p.jump_when(When::Unequal, R0, PROTOCOL_TCP, pass);
    // Of a packet in fragments only the first has ports.
    p.load(Size::Half, R0, R10, IP + 6);
    p.network_16(R0);
    p.alu(Do::And, R0, 0x1fff);
    p.jump_when(When::Unequal, R0, 0, pass);
    p.load(Size::Byte, R9, R10, IP);
    p.alu(Do::And, R9, 0x0f);
    p.alu(Do::ShiftLeft, R9, 2);
    p.load(Size::Half, R7, R10, IP + 2);
    p.network_16(R7);
    p.jump_when(When::Unequal, R7, 0, v4_length);
    p.set(R7, LONG);
    p.place(v4_length);
    p.alu(Do::Subtract, R7, R9);
    p.store(Size::Half, R10, KEY + 10, 0xffff);
    p.load(Size::Word, R0, R10, IP + 16);
    p.store(Size::Word, R10, KEY + 12, R0);
    p.jump(tcp);

    p.place(v6);
    read(&mut p, R9, IP, 40, pass);
    p.load(Size::Byte, R0, R10, IP + 6);
    p.jump_when(When::Unequal, R0, PROTOCOL_TCP, pass);
    p.set(R9, 40);
    p.load(Size::Half, R7, R10, IP + 4);
    p.network_16(R7);
    p.jump_when(When::Unequal, R7, 0, v6_length);
    p.set(R7, LONG);
    p.place(v6_length);
    for half in [0, 8] {
        p.load(Size::Double, R0, R10, IP + 24 + half);
        p.store(Size::Double, R10, KEY + half, R0);
    }

    p.place(tcp);
    read(&mut p, R9, TCP, 20, pass);
    p.load(Size::Half, R0, R10, TCP);
    for port in ports {
        p.jump_when(When::Equal, R0, in_memory(*port), known);
    }
    p.jump(pass);
    p.place(known);
    p.store(Size::Half, R10, KEY + 18, R0);
    p.load(Size::Half, R0, R10, TCP + 2);
    p.store(Size::Half, R10, KEY + 16, R0);
    p.load(Size::Byte, R0, R10, TCP + 12);
    p.alu(Do::ShiftRight, R0, 4);
    p.alu(Do::ShiftLeft, R0, 2);
    p.set(R1, R7);
    p.set(R7, 1);
    p.jump_when(When::Greater, R1, R0, payload);
    p.set(R7, 0);
    p.place(payload);

    for connection in [true, false] {
        if !connection {
            p.store(Size::Word, R10, KEY + 16, 0);
        }
        p.load_map(R1, holds);
        p.set(R2, R10);
        p.alu(Do::Add, R2, i32::from(KEY));
        p.call(MAP_LOOKUP);
        p.jump_when(When::Unequal, R0, 0, found);
    }
    p.jump(pass);
    p.place(found);
    p.set(R8, R0);
    p.call(CLOCK);
    p.set(R9, R0);
    p.load(Size::Double, R1, R8, EXPIRES);
    p.jump_when(When::AtLeast, R9, R1, pass);
    p.load(Size::Word, R0, R8, KIND);
    p.jump_when(When::Equal, R0, ALL, hold);
    p.jump_when(When::Equal, R0, ACKNOWLEDGEMENTS, acks);
    p.jump_when(When::Equal, R7, 1, hold);
    p.jump(pass);
    p.place(acks);
    p.jump_when(When::Unequal, R7, 0, pass);

    p.place(hold);
    p.set(R0, WAITS);
    p.store(Size::Word, R6, PRIORITY, R0);
    p.load(Size::Double, R1, R6, DEPARTURE);
    p.jump_when(When::AtLeast, R1, R9, later);
    p.set(R1, R9);
    p.place(later);
    p.load(Size::Double, R2, R8, DELAY);
    p.alu(Do::Add, R1, R2);
    p.store(Size::Double, R6, DEPARTURE, R1);
    p.place(pass);
    p.set(R0, NEXT);
    p.exit();
    p
}

fn key(client: &Client) -> [u8; KEY_BYTES] {
    let (address, ports) = match client {
        Client::Address(address) => (address, [0, 0]),
        Client::Connection { address, client_port, service_port } => (address, [*client_port, *service_port]),
    };
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => *address,
    };
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&address.octets());
    key[16..18].copy_from_slice(&ports[0].to_be_bytes());
    key[18..].copy_from_slice(&ports[1].to_be_bytes());
    key
}

fn value(hold: &Hold, expires_ns: u64) -> [u8; VALUE_BYTES] {
    let kind = match hold.packets {
        Packets::All => ALL,
        Packets::Acknowledgements => ACKNOWLEDGEMENTS,
        Packets::Data => DATA,
    };
    let delay = u64::try_from(hold.delay.as_nanos()).unwrap_or(u64::MAX);
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&delay.to_ne_bytes());
    value[8..16].copy_from_slice(&expires_ns.to_ne_bytes());
    value[16..20].copy_from_slice(&kind.to_ne_bytes());
    value
}

/// The program's clock.
fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How the program comes to see packets.
#[derive(Debug)]
enum Hook {
    /// By links (Linux 6.6), which end with this process.
    Link,
    /// By filters, which somebody has to remove.
    Filter(Filters),
}

/// What lets the program see what leaves by a device.
#[derive(Debug)]
enum Attached {
    Link(#[expect(dead_code, reason = "the program sees packets as long as it is open")] OwnedFd),
    Filter,
}

/// Why the program does not come to see packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAttached {
    /// The kernel has no links at the egress of devices.
    NoLinks,
    /// The filter was refused.
    Filter(Refused),
    /// What else the kernel says.
    Other(Errno),
}

/// The program and its map.
#[derive(Debug)]
pub(crate) struct Edt {
    map: Map,
    program: Program,
    hook: Hook,
    /// Devices that it is to see, each with what attaches it: nothing while nobody is held.
    devices: Vec<(u32, Option<Attached>)>,
    /// When somebody was held last.
    needed: Option<Instant>,
    /// What the map holds, in the order of clients, and when each was written.
    held: Vec<(Client, Hold, Instant)>,
}

impl Edt {
    /// Loads the program; no packet meets it yet.
    pub(crate) fn load(ports: &[u16], most: usize) -> Result<Self, Errno> {
        let map = Map::new(Kind::Hash, KEY_BYTES, VALUE_BYTES, most)?;
        let program = Program::load(Sees::Packets, program(&map, ports))?;
        Ok(Self { map, program, hook: Hook::Link, devices: Vec::new(), needed: None, held: Vec::new() })
    }

    /// From now on filters attach it, not links.
    pub(crate) fn use_filters(&mut self) -> Result<&Filters, Errno> {
        self.devices.clear();
        self.hook = Hook::Filter(Filters::open()?);
        match &self.hook {
            Hook::Filter(filters) => Ok(filters),
            Hook::Link => Err(Errno::INVAL),
        }
    }

    /// Whether what attaches it ends with this process; else somebody has to remove it.
    pub(crate) fn ends_with_process(&self) -> bool {
        matches!(self.hook, Hook::Link)
    }

    /// Lets it see what leaves by a device, whenever somebody is held.
    pub(crate) fn attach(&mut self, device: u32) -> Result<(), NotAttached> {
        // The kernel refuses a program that is there already.
        self.forget(device);
        let attached = self.attached(device)?;
        self.devices.push((device, Some(attached)));
        Ok(())
    }

    fn attached(&self, device: u32) -> Result<Attached, NotAttached> {
        match &self.hook {
            Hook::Link => match self.program.attach_to_egress(device) {
                Ok(link) => Ok(Attached::Link(link)),
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(NotAttached::NoLinks),
                Err(e) => Err(NotAttached::Other(e)),
            },
            Hook::Filter(filters) => {
                let made = filters.attach(device, self.program.descriptor());
                made.map(|()| Attached::Filter).map_err(NotAttached::Filter)
            }
        }
    }

    /// A device is no more.
    pub(crate) fn forget(&mut self, device: u32) {
        self.devices.retain(|(known, _)| *known != device);
    }

    /// Makes a filter anew that somebody took from a device; tells whether that was so. Nobody can take a link.
    pub(crate) fn repair(&mut self, device: u32) -> Result<bool, NotAttached> {
        let Hook::Filter(filters) = &self.hook else { return Ok(false) };
        let wanted = self.devices.iter().any(|(known, attached)| *known == device && attached.is_some());
        if !wanted || filters.is_attached(device).map_err(NotAttached::Other)? {
            return Ok(false);
        }
        self.attached(device).map(|_| true)
    }

    /// Every packet pays for the program, so that it is attached only when somebody is held, or was until just now.
    fn follow_need(&mut self, now: Instant) -> Result<(), Errno> {
        if !self.held.is_empty() {
            self.needed = Some(now);
        }
        let needed = *self.needed.get_or_insert(now);
        if now.saturating_duration_since(needed) >= LINGER {
            for (device, attached) in &mut self.devices {
                // One that could not be detached is tried again.
                if let (Some(_), Hook::Filter(filters)) = (&*attached, &self.hook) {
                    filters.detach(*device)?;
                }
                *attached = None;
            }
        } else if !self.held.is_empty() {
            for place in 0..self.devices.len() {
                let (device, None) = &self.devices[place] else { continue };
                match self.attached(*device) {
                    Ok(attached) => self.devices[place].1 = Some(attached),
                    // Whoever looks after the devices says so.
                    Err(NotAttached::Other(Errno::NODEV) | NotAttached::Filter(Refused::Other(Errno::NODEV))) => {}
                    Err(NotAttached::Other(e) | NotAttached::Filter(Refused::Other(e))) => return Err(e),
                    Err(NotAttached::NoLinks | NotAttached::Filter(_)) => return Err(Errno::OPNOTSUPP),
                }
            }
        }
        Ok(())
    }

    /// Makes exactly `holds` be in force, each until `timeout` from now. Writes what is different or due for renewal;
    /// tells whether it wrote anything.
    pub(crate) fn set(&mut self, now: Instant, holds: &Holds, timeout: Duration) -> Result<bool, Errno> {
        let expires_ns = clock_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let mut wanted = Vec::with_capacity(self.held.len());
        let mut written = false;
        let mut old = self.held.iter().peekable();
        for (client, hold) in holds.iter() {
            while let Some((gone, ..)) = old.next_if(|(held, ..)| held < client) {
                self.map.remove(&key(gone))?;
                written = true;
            }
            let before = old.next_if(|(held, ..)| held == client);
            let at = before
                .filter(|(_, held, at)| held == hold && now.saturating_duration_since(*at) < timeout / RENEW_AFTER);
            if at.is_none() {
                self.map.update(&key(client), &value(hold, expires_ns))?;
                written = true;
            }
            wanted.push((*client, *hold, at.map_or(now, |(.., at)| *at)));
        }
        for (gone, ..) in old {
            self.map.remove(&key(gone))?;
            written = true;
        }
        self.held = wanted;
        self.follow_need(now)?;
        Ok(written)
    }

    /// What is in force.
    pub(crate) fn held(&self) -> Holds {
        self.held.iter().map(|(client, hold, _)| (*client, *hold)).collect()
    }
}

#[cfg(test)]
#[path = "edt_tests.rs"]
mod tests;
