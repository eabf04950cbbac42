//! Delays packets by departure times: a BPF program sets the earliest time at which each packet may leave, and the queueing
//! discipline `fq` keeps the packet until that time.
//!
//! ```text
//!  packet to a client ──▶ BPF program: is it to wait? ──▶ departure = max(now, departure) + delay ──▶ HTB class: fq ──▶ device
//!                             └─ no ────────────────────────────────────────────────────────────▶ past the class ──▶
//! ```
//!
//! Delays are exact to the nanosecond. A delay is an element of a BPF hash map, with an expiry that the program compares with
//! the clock: a delay that is not renewed ends by itself. The program is attached by a link, which ends with this process, or
//! by a [filter](super::filter) where the kernel has no such links (before 6.6).
//!
//! `fq` sends the packets of one connection in the order of their departure, but looks at a connection again only when its
//! first packet is due, and needs time to sort packets. So `fq` is in a class of HTB: the program marks packets that are to
//! wait for this class, and all other packets bypass the class.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::client_delay::{Client, Delay, Delays, Packets};
use super::filter::{Filters, Refused};
use super::qdisc::CLASS;
use crate::bpf::{
    self, Assembler, Do, Kind, Map, Program, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register, Sees, Size, When,
};

/// Size of a map key in bytes: the client's address as IPv6, then the ports of client and service in network order (both 0
/// for all connections of the address).
const KEY_BYTES: usize = 20;
/// Size of a map value in bytes: delay in ns, expiry in ns of the clock `CLOCK_MONOTONIC`, kind of packets, padding.
const VALUE_BYTES: usize = 24;
/// Offsets of delay, expiry and kind in a map value, in bytes.
const DELAY: i16 = 0;
const EXPIRES: i16 = 8;
const KIND: i16 = 16;

const ALL: i32 = 0;
const ACKNOWLEDGEMENTS: i32 = 1;
const DATA: i32 = 2;

/// Offsets, in bytes, of fields in the kernel's struct __sk_buff.
const PROTOCOL: i16 = 16;
const PRIORITY: i16 = 32;
const DEPARTURE: i16 = 152;

/// Numbers of the kernel's BPF helper functions.
const MAP_LOOKUP: i32 = 1;
const CLOCK: i32 = 5;
const LOAD_BYTES_RELATIVE: i32 = 68;

/// Offsets, in bytes from the end of the program's stack, at which the program keeps the IP header, the TCP header and the
/// map key.
const IP: i16 = -40;
const TCP: i16 = -64;
const KEY: i16 = -88;

/// The program's result (TC_ACT_UNSPEC): later programs and filters also see the packet.
const NEXT: i32 = -1;
/// The priority of a packet that makes HTB send the packet through the class of delayed packets.
const WAITS: i32 = CLASS as i32;
const PROTOCOL_TCP: i32 = 6;
/// Length in bytes that is assumed for a packet if the IP header's length is 0, as in segments too long for the field.
const LONG: i32 = 65_535;
/// An element of the map is renewed when its age reaches its timeout divided by this number, so that ticks may be late.
const RENEW_AFTER: u32 = 3;
/// Largest number of elements renewed in one tick, so that elements written together are later renewed at different ticks.
const RENEW_AT_ONCE: usize = 4_096;
/// An element whose age reaches its timeout divided by this number is renewed even beyond [`RENEW_AT_ONCE`], because it might
/// expire.
const RENEW_AT_LATEST: u32 = 2;
/// Time without a throttled client after which the program is detached from the devices, because it costs processor time for
/// every packet. Attaching the program again takes no longer than writing a delay.
const LINGER: Duration = Duration::from_secs(5);

/// Emits a copy of `bytes` bytes of the packet, at the offset in register `offset` from the network header, to the stack at
/// `to`; the program jumps to `otherwise` if the packet is too short.
fn read(program: &mut Assembler, offset: Register, to: i16, bytes: i32, otherwise: crate::bpf::Label) {
    const FROM_NETWORK_HEADER: i32 = 1;
    program.set(R1, R6);
    program.set(R2, offset);
    program.on_stack(R3, to);
    program.set(R4, bytes);
    program.set(R5, FROM_NETWORK_HEADER);
    program.call(LOAD_BYTES_RELATIVE);
    program.jump_when(When::Unequal, R0, 0, otherwise);
}

/// The number that the program loads from a packet that holds `n` in network byte order.
fn in_memory(n: u16) -> i32 {
    i32::from(u16::from_ne_bytes(n.to_be_bytes()))
}

/// Assembles the program. Registers: R6: the packet; R7: first the length after the IP header, later 1 if there is payload
/// and 0 if not; R8: the delay; R9: first the offset of the TCP header, later the time.
fn program(delays: &Map, ports: &[u16]) -> Assembler {
    let mut p = Assembler::default();
    let [v6, tcp, known, found, acks, delay, pass] = std::array::from_fn(|_| p.label());
    let [v4_length, v6_length, payload, later] = std::array::from_fn(|_| p.label());
    p.set(R6, R1);
    // At a device below a bond, bridge or VLAN that has the program too: the packet has waited there.
    p.load(Size::Word, R0, R6, PRIORITY);
    p.jump_when(When::Equal, R0, WAITS, pass);
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
        p.load_map(R1, delays);
        p.on_stack(R2, KEY);
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
    p.jump_when(When::Equal, R0, ALL, delay);
    p.jump_when(When::Equal, R0, ACKNOWLEDGEMENTS, acks);
    p.jump_when(When::Equal, R7, 1, delay);
    p.jump(pass);
    p.place(acks);
    p.jump_when(When::Unequal, R7, 0, pass);

    p.place(delay);
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

fn value(delay: &Delay, expires_ns: u64) -> [u8; VALUE_BYTES] {
    let kind = match delay.packets {
        Packets::All => ALL,
        Packets::Acknowledgements => ACKNOWLEDGEMENTS,
        Packets::Data => DATA,
    };
    let delay_ns = u64::try_from(delay.delay.as_nanos()).unwrap_or(u64::MAX);
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&delay_ns.to_ne_bytes());
    value[8..16].copy_from_slice(&expires_ns.to_ne_bytes());
    value[16..20].copy_from_slice(&kind.to_ne_bytes());
    value
}

/// The clock of the BPF program (CLOCK_MONOTONIC), in nanoseconds.
fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The attachment of the program to a network device: through it the program sees the packets that the device sends.
#[derive(Debug)]
enum Attached {
    Link(OwnedFd),
    Filter,
}

/// The BPF program that sets departure times, and its map of delays.
#[derive(Debug)]
pub(crate) struct Departures {
    map: Map,
    program: Program,
    /// Filters by which the program is attached, which outlive this process; `None`: attached by links, which end with this
    /// process.
    filters: Option<Filters>,
    /// Indices of the network devices at which the program is used, each with its attachment; the attachment is `None` while
    /// no client is throttled.
    devices: Vec<(u32, Option<Attached>)>,
    /// Latest time at which a client was throttled.
    needed: Option<Instant>,
    /// The entries of the map, sorted by client, each with the time at which it was written.
    delayed: Vec<(Client, Delay, Instant)>,
}

impl Departures {
    /// Loads the program for packets from `ports`, with a map for `most` delays; does not attach the program yet.
    pub(crate) fn load(ports: &[u16], most: usize) -> Result<Self, Errno> {
        let map = Map::new(Kind::Hash, KEY_BYTES, VALUE_BYTES, most)?;
        let program = Program::load(Sees::Packets, program(&map, ports))?;
        Ok(Self { map, program, filters: None, devices: Vec::new(), needed: None, delayed: Vec::new() })
    }

    /// True if the kernel can attach the program by a link, as tried on this network device.
    pub(crate) fn has_links(&self, device: u32) -> bool {
        !matches!(self.program.attach_to_egress(device), Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
    }

    /// Attaches the program by filters from now on, not by links.
    pub(crate) fn use_filters(&mut self, filters: Filters) {
        self.filters = Some(filters);
    }

    /// True if the program's attachment ends with this process; otherwise the sentinel has to remove it.
    pub(crate) fn ends_with_process(&self) -> bool {
        self.filters.is_none()
    }

    /// Attaches the program to a network device; from now on the program is attached to the device whenever a client is
    /// throttled.
    pub(crate) fn attach(&mut self, device: u32) -> Result<(), Refused> {
        // The kernel refuses a program that is there already.
        self.forget(device);
        let attached = self.attached(device)?;
        self.devices.push((device, Some(attached)));
        Ok(())
    }

    fn attached(&self, device: u32) -> Result<Attached, Refused> {
        match &self.filters {
            None => self.program.attach_to_egress(device).map(Attached::Link).map_err(Refused::Other),
            Some(filters) => filters.attach(device, self.program.descriptor()).map(|()| Attached::Filter),
        }
    }

    /// Forgets a network device, such as one that is gone, and ends the program's link to the device, if any.
    pub(crate) fn forget(&mut self, device: u32) {
        self.devices.retain(|(known, _)| *known != device);
    }

    /// Attaches the program to a network device again if another program has detached it; true in this case.
    pub(crate) fn repair(&mut self, device: u32) -> Result<bool, Refused> {
        let is_attached = |(known, attached): &(u32, Option<Attached>)| match (attached, &self.filters) {
            (Some(Attached::Link(link)), _) if *known == device => bpf::is_attached(link),
            (Some(Attached::Filter), Some(filters)) if *known == device => filters.is_attached(device),
            _ => Ok(true),
        };
        for place in 0..self.devices.len() {
            if !is_attached(&self.devices[place]).map_err(Refused::Other)? {
                self.devices[place].1 = Some(self.attached(device)?);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Attaches the program while a client is throttled, and detaches it once no client has been throttled for [`LINGER`],
    /// because it costs processor time for every packet.
    fn follow_need(&mut self, now: Instant) -> Result<(), Errno> {
        if !self.delayed.is_empty() {
            self.needed = Some(now);
        }
        let needed = *self.needed.get_or_insert(now);
        let mut failure = Ok(());
        if now.saturating_duration_since(needed) >= LINGER {
            for (device, attached) in &mut self.devices {
                // One that could not be detached is tried again, and keeps no other from it.
                match (&*attached, &self.filters) {
                    (Some(_), Some(filters)) => match filters.detach(*device) {
                        Ok(_) => *attached = None,
                        Err(e) => failure = failure.and(Err(e)),
                    },
                    _ => *attached = None,
                }
            }
        } else if !self.delayed.is_empty() {
            for place in 0..self.devices.len() {
                let (device, None) = &self.devices[place] else { continue };
                match self.attached(*device) {
                    Ok(attached) => self.devices[place].1 = Some(attached),
                    // The check of the devices says so.
                    Err(Refused::Other(Errno::NODEV)) => {}
                    Err(Refused::Other(e)) => failure = failure.and(Err(e)),
                    Err(Refused::Missing(_) | Refused::Ingress) => failure = failure.and(Err(Errno::OPNOTSUPP)),
                }
            }
        }
        failure
    }

    /// Puts exactly `delays` in force, but none above `maximum`. An element that is written expires after `timeout`; only
    /// elements that differ or are due for renewal are written. True if the map was written. After an error, the next call
    /// tries again what could not be written or removed.
    pub(crate) fn set(
        &mut self,
        now: Instant,
        delays: &Delays,
        maximum: Duration,
        timeout: Duration,
    ) -> Result<bool, Errno> {
        let expires_ns = clock_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let (mut written, mut renewed, mut failure) = (false, 0, Ok(()));
        // Removals first: in a full map they make the room for new elements.
        let (map, mut left) = (&self.map, delays.iter().map(|(client, _)| client).peekable());
        self.delayed.retain(|(client, ..)| {
            while left.next_if(|wanted| *wanted < client).is_some() {}
            if left.peek().is_some_and(|wanted| *wanted == client) {
                return true;
            }
            let removed = map.remove(&key(client));
            written |= removed.is_ok();
            failure = failure.and(removed);
            removed.is_err()
        });
        let mut wanted = Vec::with_capacity(self.delayed.len());
        let mut old = std::mem::take(&mut self.delayed).into_iter().peekable();
        for (client, delay) in delays.iter() {
            let delay = Delay { delay: delay.delay.min(maximum), ..*delay };
            while let Some(stays) = old.next_if(|(delayed, ..)| delayed < client) {
                wanted.push(stays);
            }
            let before = old.next_if(|(delayed, ..)| delayed == client);
            let same = before.filter(|(_, before, _)| *before == delay);
            let kept = same.map(|(.., at)| at).filter(|at| {
                let age = now.saturating_duration_since(*at);
                let is_due =
                    age >= timeout / RENEW_AFTER && (renewed < RENEW_AT_ONCE || age >= timeout / RENEW_AT_LATEST);
                renewed += usize::from(is_due);
                !is_due
            });
            if kept.is_none() {
                let updated = self.map.update(&key(client), &value(&delay, expires_ns));
                failure = failure.and(updated);
                if updated.is_err() {
                    // The element is as it was, or not there.
                    wanted.extend(before);
                    continue;
                }
                written = true;
            }
            wanted.push((*client, delay, kept.unwrap_or(now)));
        }
        wanted.extend(old);
        self.delayed = wanted;
        failure.and(self.follow_need(now))?;
        Ok(written)
    }

    /// The delays in force.
    pub(crate) fn delays(&self) -> Delays {
        self.delayed.iter().map(|(client, delay, _)| (*client, *delay)).collect()
    }
}

#[cfg(test)]
#[path = "departure_tests.rs"]
mod tests;
