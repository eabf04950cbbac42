//! The nftables table that gives a packet its delay class: maps from client to class, and the rules that ask them.
//!
//! A rule writes the class into the packet's priority, which is where HTB looks first. The elements of the maps
//! carry a timeout, so that a throttle ends by itself when nobody renews it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::hold::{Client, Packets};
use super::netlink::{self, Batch, Socket, Subsystem};
use super::nft::{
    self, Element, Expression, Header, Meta, NEW_ELEMENT, NEW_GENERATION, NEW_RULE, REGISTER, SET_CONSTANT, SET_MAP,
    SET_TIMEOUT, Set, TABLE_OWNED, TYPE_CLASS, TYPE_IPV4, TYPE_IPV6, TYPE_PORT, Table, concatenation,
};

/// Name of the table, of family inet.
pub(crate) const TABLE: &str = "evenkeel";
const CHAIN: &str = "output";
const PORTS: &str = "ports";
const TCP: u8 = 6;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
/// Somebody else may commit rules between our look and our change; as many times in a row means a fault.
const ATTEMPTS: u32 = 8;
/// ERESTART, which the headers of user space do not have: somebody else was faster.
const RESTART: Errno = Errno::from_raw_os_error(85);

/// Class of a client: HTB's major and minor number.
pub(crate) type Classes = BTreeMap<(Client, Packets), u32>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// One of the twelve maps.
#[derive(Debug, Clone, Copy)]
struct Map {
    name: &'static str,
    packets: Packets,
    family: Family,
    connection: bool,
}

/// In the order in which the rules ask: connections before addresses.
const MAPS: [Map; 12] = [
    map("conn_all4", Packets::All, Family::V4, true),
    map("conn_ack4", Packets::Acknowledgements, Family::V4, true),
    map("conn_data4", Packets::Data, Family::V4, true),
    map("conn_all6", Packets::All, Family::V6, true),
    map("conn_ack6", Packets::Acknowledgements, Family::V6, true),
    map("conn_data6", Packets::Data, Family::V6, true),
    map("all4", Packets::All, Family::V4, false),
    map("ack4", Packets::Acknowledgements, Family::V4, false),
    map("data4", Packets::Data, Family::V4, false),
    map("all6", Packets::All, Family::V6, false),
    map("ack6", Packets::Acknowledgements, Family::V6, false),
    map("data6", Packets::Data, Family::V6, false),
];
/// Two rules that let everything else pass, and one for each map.
const RULES: usize = MAPS.len() + 2;

const fn map(name: &'static str, packets: Packets, family: Family, connection: bool) -> Map {
    Map { name, packets, family, connection }
}

impl Family {
    /// Type and length of an address, and where its destination address is in the header.
    fn address(self) -> (u32, u32, u32) {
        match self {
            Self::V4 => (TYPE_IPV4, 4, 16),
            Self::V6 => (TYPE_IPV6, 16, 24),
        }
    }

    /// Set of the lengths that a TCP segment without payload has: (length in the IP header, TCP header length).
    fn bare(self) -> &'static str {
        match self {
            Self::V4 => "bare4",
            Self::V6 => "bare6",
        }
    }

    /// Where the length is, and how much of it is the IP header.
    fn length(self) -> (u32, u16) {
        match self {
            Self::V4 => (2, 20),
            Self::V6 => (4, 0),
        }
    }
}

impl Map {
    fn takes(self, client: &Client, packets: Packets) -> bool {
        let (address, connection) = match client {
            Client::Address(address) => (address, false),
            Client::Connection { address, .. } => (address, true),
        };
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        self.packets == packets && self.family == family && self.connection == connection
    }

    fn set(self, id: u32) -> Set<'static> {
        let (kind, bytes, _) = self.family.address();
        let (key_type, key_bytes) = match self.connection {
            true => (concatenation(&[kind, TYPE_PORT, TYPE_PORT]), bytes + 8),
            false => (kind, bytes),
        };
        let flags = SET_MAP | SET_TIMEOUT;
        Set { name: self.name, flags, key_type, key_bytes, value: Some((TYPE_CLASS, 4)), id }
    }

    fn rule(self) -> Vec<Expression<'static>> {
        let family: &'static [u8] = match self.family {
            Family::V4 => &[NFPROTO_IPV4],
            Family::V6 => &[NFPROTO_IPV6],
        };
        let mut rule = vec![
            Expression::LoadMeta(Meta::Family, REGISTER),
            Expression::Compare { register: REGISTER, equal: true, to: family },
        ];
        if self.packets != Packets::All {
            rule.extend(bare_segment(self.family, self.packets == Packets::Data));
        }
        let (_, bytes, offset) = self.family.address();
        rule.push(Expression::Payload { header: Header::Network, offset, bytes, register: REGISTER });
        if self.connection {
            let next = REGISTER + bytes / 4;
            // Sent by us: the destination port is the client's, the source port the service's.
            rule.push(Expression::Payload { header: Header::Transport, offset: 2, bytes: 2, register: next });
            rule.push(Expression::Payload { header: Header::Transport, offset: 0, bytes: 2, register: next + 1 });
        }
        rule.push(Expression::InMap { map: self.name, key: REGISTER, value: REGISTER });
        rule.push(Expression::SetPriority(REGISTER));
        rule.push(Expression::Return);
        rule
    }
}

/// Goes on if a segment has no payload, or, negated, if it has some: exactly, by comparing the packet's length with
/// the length of its headers. (A rule cannot subtract, so a set lists the few pairs. Options in the IP header make a
/// packet count as data, which no known target sends.)
fn bare_segment(family: Family, negated: bool) -> [Expression<'static>; 4] {
    let (offset, _) = family.length();
    [
        Expression::Payload { header: Header::Network, offset, bytes: 2, register: REGISTER },
        Expression::Payload { header: Header::Transport, offset: 12, bytes: 1, register: REGISTER + 1 },
        Expression::Mask { register: REGISTER + 1, mask: &[0xf0] },
        Expression::InSet { set: family.bare(), register: REGISTER, negated },
    ]
}

fn bare_elements(family: Family) -> Vec<Element> {
    let (_, header) = family.length();
    let of = |words: u8| {
        let [high, low] = (header + 4 * u16::from(words)).to_be_bytes();
        Element { key: vec![high, low, 0, 0, words << 4, 0, 0, 0], value: None, timeout_ms: None }
    };
    (5..=15).map(of).collect()
}

fn key(client: &Client) -> Vec<u8> {
    let (address, ports) = match client {
        Client::Address(address) => (address, None),
        Client::Connection { address, client_port, service_port } => (address, Some([client_port, service_port])),
    };
    let mut key = match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    for port in ports.into_iter().flatten() {
        let [high, low] = port.to_be_bytes();
        key.extend([high, low, 0, 0]);
    }
    key
}

fn elements(map: Map, classes: &Classes, timeout: Duration) -> Vec<Element> {
    let of = |((client, packets), class): (&(Client, Packets), &u32)| {
        map.takes(client, *packets).then(|| Element {
            key: key(client),
            value: Some(class.to_ne_bytes().to_vec()),
            timeout_ms: Some((timeout.as_millis() as u64).max(1)),
        })
    };
    classes.iter().filter_map(of).collect()
}

/// Table, sets, chain and rules, with no client in it.
fn write_structure(batch: &mut Batch, ports: &[u16], owned: bool) {
    let table = Table(TABLE);
    table.create(batch, if owned { TABLE_OWNED } else { 0 });
    let plain = |name, key_type, key_bytes, id| Set { name, flags: SET_CONSTANT, key_type, key_bytes, value: None, id };
    table.create_set(batch, &plain(PORTS, TYPE_PORT, 2, 1));
    let port = |p: &u16| Element { key: p.to_be_bytes().to_vec(), value: None, timeout_ms: None };
    table.add_elements(batch, PORTS, &ports.iter().map(port).collect::<Vec<_>>());
    for (id, family) in [(2, Family::V4), (3, Family::V6)] {
        table.create_set(batch, &plain(family.bare(), concatenation(&[TYPE_PORT, TYPE_PORT]), 8, id));
        table.add_elements(batch, family.bare(), &bare_elements(family));
    }
    for (number, map) in MAPS.iter().enumerate() {
        table.create_set(batch, &map.set(number as u32 + 4));
    }
    table.create_output_chain(batch, CHAIN);
    table.add_rule(
        batch,
        CHAIN,
        &[
            Expression::LoadMeta(Meta::Protocol, REGISTER),
            Expression::Compare { register: REGISTER, equal: false, to: &[TCP] },
            Expression::Return,
        ],
    );
    table.add_rule(
        batch,
        CHAIN,
        &[
            Expression::Payload { header: Header::Transport, offset: 0, bytes: 2, register: REGISTER },
            Expression::InSet { set: PORTS, register: REGISTER, negated: true },
            Expression::Return,
        ],
    );
    for map in MAPS {
        table.add_rule(batch, CHAIN, &map.rule());
    }
}

/// Makes the maps that differ hold exactly `new`, whatever they held; all maps when `old` is unknown.
fn write_classes(batch: &mut Batch, old: Option<&Classes>, new: &Classes, timeout: Duration) {
    let table = Table(TABLE);
    for map in MAPS {
        let fresh = elements(map, new, timeout);
        let stale = old.is_none_or(|old| old.keys().any(|(client, packets)| map.takes(client, *packets)));
        // Emptying and filling in one transaction is one change for the packets, needs no knowledge of what has timed
        // out meanwhile, and renews the timeouts on kernels that cannot change one in place.
        if stale {
            table.flush_set(batch, map.name);
        }
        table.add_elements(batch, map.name, &fresh);
    }
}

/// The table in the kernel.
#[derive(Debug)]
pub(crate) struct ThrottleTable {
    socket: Socket,
    ports: Vec<u16>,
    owned: bool,
    /// Number of the last transaction known to leave our table as we want it.
    generation: u32,
    /// What the maps hold, as far as it has not timed out.
    held: Classes,
}

/// What was found and done by [`ThrottleTable::repair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Unchanged,
    /// Others changed rules, but not ours.
    OthersChanged,
    /// Table, chain, rules or sets were missing or changed, and have been made again.
    StructureRepaired,
    /// Elements were missing or changed, and have been written again.
    ElementsRepaired,
}

impl ThrottleTable {
    /// Makes the table. One that an earlier run left behind is replaced. With `owned`, the kernel removes it when
    /// this process ends and keeps others from changing it, where it can do that (Linux 5.12).
    pub(crate) fn create(ports: &[u16], owned: bool) -> Result<Self, Errno> {
        let socket = Socket::open(Subsystem::Netfilter)?;
        let mut table = Self { socket, ports: ports.to_vec(), owned, generation: 0, held: Classes::new() };
        table.rebuild(&Classes::new(), Duration::ZERO)?;
        Ok(table)
    }

    /// Whether the kernel removes the table by itself when this process ends.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Replaces what is held back, and starts all timeouts anew. One transaction.
    pub(crate) fn write(&mut self, classes: &Classes, timeout: Duration) -> Result<(), Errno> {
        let (before, after) = self.commit(|batch| write_classes(batch, Some(&self.held), classes, timeout))?;
        self.held.clone_from(classes);
        // If others were active since the last look, that look is still due.
        if before == self.generation {
            self.generation = after;
        }
        Ok(())
    }

    /// Looks whether somebody changed our rules, and mends them. `timeout` is for elements that are written again.
    pub(crate) fn repair(&mut self, timeout: Duration) -> Result<Found, Errno> {
        let generation = self.read_generation()?;
        if generation == self.generation {
            return Ok(Found::Unchanged);
        }
        let held = self.held.clone();
        if self.count_rules()? != RULES {
            self.rebuild(&held, timeout)?;
            return Ok(Found::StructureRepaired);
        }
        match self.elements_agree() {
            Ok(true) => {
                self.generation = generation;
                Ok(Found::OthersChanged)
            }
            Ok(false) => {
                (_, self.generation) = self.commit(|batch| write_classes(batch, None, &held, timeout))?;
                Ok(Found::ElementsRepaired)
            }
            Err(Errno::NOENT) => {
                self.rebuild(&held, timeout)?;
                Ok(Found::StructureRepaired)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether nothing is held that we did not write. What we wrote may have timed out.
    fn elements_agree(&self) -> Result<bool, Errno> {
        let mut agree = true;
        let mut found = 0;
        for map in MAPS {
            let wanted: BTreeMap<Vec<u8>, Option<Vec<u8>>> =
                elements(map, &self.held, Duration::ZERO).into_iter().map(|e| (e.key, e.value)).collect();
            self.socket.query(&Table(TABLE).list_elements(map.name), |message| {
                if message.kind == NEW_ELEMENT {
                    for (key, value) in nft::read_elements(message.body) {
                        found += 1;
                        agree &= wanted.get(key).is_some_and(|w| w.as_deref() == value);
                    }
                }
            })?;
        }
        Ok(agree && found == self.held.len())
    }

    fn count_rules(&self) -> Result<usize, Errno> {
        let mut rules = 0;
        let result = self.socket.query(&Table(TABLE).list_rules(CHAIN), |message| {
            rules += usize::from(message.kind == NEW_RULE);
        });
        match result {
            Ok(()) => Ok(rules),
            Err(Errno::NOENT) => Ok(0),
            Err(e) => Err(e),
        }
    }

    fn rebuild(&mut self, classes: &Classes, timeout: Duration) -> Result<(), Errno> {
        remove_with(&self.socket)?;
        let ports = self.ports.clone();
        let write = |batch: &mut Batch, owned| {
            write_structure(batch, &ports, owned);
            write_classes(batch, Some(&Classes::new()), classes, timeout);
        };
        let owned = self.owned;
        let committed = match self.commit(|batch| write(batch, owned)) {
            // The kernel does not know the flag.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if owned => {
                self.owned = false;
                self.commit(|batch| write(batch, false))
            }
            other => other,
        };
        (_, self.generation) = committed?;
        self.held.clone_from(classes);
        Ok(())
    }

    /// One transaction, done on rules that nobody changes meanwhile. The result is the generation before and after.
    fn commit(&self, body: impl Fn(&mut Batch)) -> Result<(u32, u32), Errno> {
        for _ in 0..ATTEMPTS {
            let before = self.read_generation()?;
            let (batch, last) = nft::transaction(Some(before), &body);
            if last == 0 {
                return Ok((before, before));
            }
            match self.socket.transact(&batch, last) {
                // The kernel counts transactions and skips zero. Counted here, not read back: a change by others
                // right after ours must not be missed.
                Ok(()) => return Ok((before, before.checked_add(1).unwrap_or(1))),
                Err(RESTART) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::AGAIN)
    }

    fn read_generation(&self) -> Result<u32, Errno> {
        let mut generation = None;
        self.socket.query(&nft::get_generation(), |message| {
            if message.kind == NEW_GENERATION {
                generation = message.body.get(4..).and_then(|b| netlink::attribute(b, 1)).and_then(netlink::be32);
            }
        })?;
        generation.ok_or(Errno::PROTO)
    }
}

/// Whether the table exists, made by anyone.
pub(crate) fn exists() -> Result<bool, Errno> {
    let socket = Socket::open(Subsystem::Netfilter)?;
    match socket.query(&Table(TABLE).list_elements(PORTS), |_| {}) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes the table, if it is there. Fails with EPERM while a living process owns it.
pub(crate) fn remove() -> Result<(), Errno> {
    remove_with(&Socket::open(Subsystem::Netfilter)?)
}

fn remove_with(socket: &Socket) -> Result<(), Errno> {
    let (batch, last) = nft::transaction(None, |batch| Table(TABLE).delete(batch));
    match socket.transact(&batch, last) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
