//! The nftables table that gives a packet its delay class: maps from client to class, and the rules that ask them.
//!
//! Every packet that the host sends pays for the rules, so that they ask no map in which nobody is, and while nobody is held
//! there is no chain at all.
//!
//! A rule writes the class into the packet's priority, which is where HTB looks first. The elements of the maps
//! carry a timeout, so that a throttle ends by itself when nobody renews it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::hold::{Client, LINGER, Packets};
use super::netlink::{self, Batch, Socket, Subsystem};
use super::nft::{
    self, Element, Expression, Header, Meta, NEW_ELEMENT, NEW_GENERATION, NEW_RULE, NEW_TABLE, REGISTER, SET_CONSTANT,
    SET_MAP, SET_TIMEOUT, Set, TABLE_OWNED, TYPE_CLASS, TYPE_IPV4, TYPE_IPV6, TYPE_PORT, Table, concatenation,
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

/// Elements that one transaction changes: the kernel works on it for some 50 ms, and nobody else's rules change meanwhile.
const PER_TRANSACTION: usize = 16_384;
/// Elements are renewed when this part of their timeout has passed, so that a tick or two may be late;
const RENEW_AFTER: u32 = 3;
/// and so many at a time, so that those made together are soon renewed apart from each other,
const RENEW_AT_ONCE: usize = 4_096;
/// unless they are so old. Beyond that they may be gone before they are renewed.
const RENEW_AT_LATEST: (u32, u32) = (2, 3);

/// A client and its class: which packets, and HTB's major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) client: Client,
    pub(crate) packets: Packets,
    pub(crate) class: u32,
}

/// Classes in the order of clients, each client once.
pub(crate) type Classes = Vec<Class>;

/// What is different for a client; nothing but the time if both are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    old: Option<Class>,
    new: Option<Class>,
}

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
/// Rules that let everything else pass, before those for maps.
const FIRST_RULES: u32 = 2;
/// A map's key takes at most six registers, an IPv6 address and two ports. The class comes after it, then the length.
const CLASS_REGISTER: u32 = REGISTER + 6;
const LENGTH_REGISTER: u32 = REGISTER + 7;

/// Some of [`MAPS`], as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked(u16);

impl Asked {
    const NONE: Self = Self(0);

    /// Those in which somebody is.
    fn by(classes: &[Class]) -> Self {
        Self(classes.iter().fold(0, |maps, class| maps | 1 << place(class)))
    }

    fn maps(self) -> impl Iterator<Item = Map> {
        MAPS.into_iter().enumerate().filter(move |(number, _)| self.0 >> number & 1 == 1).map(|(_, map)| map)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// How many rules it takes to ask them.
    fn rules(self) -> u32 {
        if self == Self::NONE { 0 } else { FIRST_RULES + self.0.count_ones() }
    }
}

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

/// Which of the maps a client is in.
fn place(Class { client, packets, .. }: &Class) -> usize {
    let (address, connection) = match client {
        Client::Address(address) => (address, false),
        Client::Connection { address, .. } => (address, true),
    };
    let packets = match packets {
        Packets::All => 0,
        Packets::Acknowledgements => 1,
        Packets::Data => 2,
    };
    usize::from(!connection) * 6 + usize::from(address.is_ipv6()) * 3 + packets
}

impl Map {
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
        let (_, bytes, offset) = self.family.address();
        let mut rule = vec![
            Expression::LoadMeta(Meta::Family, REGISTER),
            Expression::Compare { register: REGISTER, equal: true, to: family },
            Expression::Payload { header: Header::Network, offset, bytes, register: REGISTER },
        ];
        if self.connection {
            let next = REGISTER + bytes / 4;
            // Sent by us: the destination port is the client's, the source port the service's.
            rule.push(Expression::Payload { header: Header::Transport, offset: 2, bytes: 2, register: next });
            rule.push(Expression::Payload { header: Header::Transport, offset: 0, bytes: 2, register: next + 1 });
        }
        // Whose it is first: most packets are of clients that are not held, and go on from here.
        rule.push(Expression::InMap { map: self.name, key: REGISTER, value: CLASS_REGISTER });
        if self.packets != Packets::All {
            rule.extend(bare_segment(self.family, self.packets == Packets::Data));
        }
        rule.push(Expression::SetPriority(CLASS_REGISTER));
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
        Expression::Payload { header: Header::Network, offset, bytes: 2, register: LENGTH_REGISTER },
        Expression::Payload { header: Header::Transport, offset: 12, bytes: 1, register: LENGTH_REGISTER + 1 },
        Expression::Mask { register: LENGTH_REGISTER + 1, mask: &[0xf0] },
        Expression::InSet { set: family.bare(), register: LENGTH_REGISTER, negated },
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

fn element(Class { client, class, .. }: &Class, timeout: Duration) -> Element {
    let timeout_ms = Some((timeout.as_millis() as u64).max(1));
    Element { key: key(client), value: Some(class.to_ne_bytes().to_vec()), timeout_ms }
}

/// Table and sets, with no client in it and no chain that asks them.
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
}

/// The chain, to ask these maps and no others from now on.
fn write_chain(batch: &mut Batch, asked: Asked) {
    let table = Table(TABLE);
    table.create_output_chain(batch, CHAIN);
    table.flush_chain(batch, CHAIN);
    if asked == Asked::NONE {
        return;
    }
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
    for map in asked.maps() {
        table.add_rule(batch, CHAIN, &map.rule());
    }
}

/// Sorted by map.
fn by_map(elements: impl Iterator<Item = (usize, Element)>) -> [Vec<Element>; MAPS.len()] {
    let mut maps = [const { Vec::new() }; MAPS.len()];
    elements.for_each(|(place, element)| maps[place].push(element));
    maps
}

/// Adds clients to the maps, which do not have them.
fn write_classes(batch: &mut Batch, classes: &[Class], timeout: Duration) {
    let new = by_map(classes.iter().map(|class| (place(class), element(class, timeout))));
    for (map, elements) in MAPS.iter().zip(&new) {
        Table(TABLE).add_elements(batch, map.name, elements);
    }
}

/// Changes elements; the old ones must still be there. Removing and adding in one transaction is one change for the
/// packets, and renews the timeout on kernels that cannot change one in place.
fn write_changes(batch: &mut Batch, changes: &[Change], timeout: Duration) {
    let stale = |class: &Class| (place(class), Element { key: key(&class.client), value: None, timeout_ms: None });
    let old = by_map(changes.iter().filter_map(|change| change.old.as_ref().map(stale)));
    for (map, elements) in MAPS.iter().zip(&old) {
        Table(TABLE).delete_elements(batch, map.name, elements);
    }
    let new: Classes = changes.iter().filter_map(|change| change.new).collect();
    write_classes(batch, &new, timeout);
}

/// What the table holds, as far as it has not timed out.
#[derive(Debug, Default)]
struct HeldClasses {
    classes: Classes,
    /// When each was written.
    written: Vec<Instant>,
    /// An attempt to write failed half-way, so that nobody knows.
    uncertain: bool,
}

impl HeldClasses {
    /// What must be written for `wanted` to be in force and to stay so; `None` for everything.
    fn changes(&self, now: Instant, wanted: &[Class], timeout: Duration) -> Option<Vec<Change>> {
        let (numerator, denominator) = RENEW_AT_LATEST;
        let (renew, latest) = (timeout / RENEW_AFTER, timeout * numerator / denominator);
        let mut changes = Vec::new();
        let mut renewed = 0;
        let mut wanted = wanted.iter().peekable();
        let new = |class: &Class| Change { old: None, new: Some(*class) };
        for (old, written) in self.classes.iter().zip(&self.written) {
            while let Some(class) = wanted.next_if(|class| class.client < old.client) {
                changes.push(new(class));
            }
            let age = now.saturating_duration_since(*written);
            if self.uncertain || age >= timeout - (timeout - latest) / 2 {
                return None;
            }
            let same = wanted.next_if(|class| class.client == old.client);
            if same == Some(old) {
                if age < renew || (renewed >= RENEW_AT_ONCE && age < latest) {
                    continue;
                }
                renewed += 1;
            }
            changes.push(Change { old: Some(*old), new: same.copied() });
        }
        changes.extend(wanted.map(new));
        Some(changes)
    }

    /// These changes have been made.
    fn take(&mut self, now: Instant, wanted: &[Class], changes: &[Change]) {
        let mut written = Vec::with_capacity(wanted.len());
        let mut before = self.classes.iter().zip(&self.written).peekable();
        let mut changed = changes.iter().filter_map(|change| change.new).peekable();
        for class in wanted {
            while before.next_if(|(old, _)| old.client < class.client).is_some() {}
            let kept = before.next_if(|(old, _)| old.client == class.client).map(|(_, written)| *written);
            let rewritten = changed.next_if(|new| new.client == class.client).is_some();
            written.push(kept.filter(|_| !rewritten).unwrap_or(now));
        }
        self.replace(wanted, written);
    }

    fn replace(&mut self, classes: &[Class], written: Vec<Instant>) {
        self.classes.clear();
        self.classes.extend_from_slice(classes);
        (self.written, self.uncertain) = (written, false);
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
    held: HeldClasses,
    /// Maps that the chain asks; `None` while there is no chain.
    asked: Option<Asked>,
    /// When all of them were needed last.
    needed: Instant,
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
        let (now, ports, held) = (Instant::now(), ports.to_vec(), HeldClasses::default());
        let mut table = Self { socket, ports, owned, generation: 0, held, asked: None, needed: now };
        table.rebuild(now, Duration::ZERO)?;
        Ok(table)
    }

    /// Whether the kernel removes the table by itself when this process ends.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// What is in the maps, as far as it has not timed out.
    pub(crate) fn held(&self) -> &[Class] {
        &self.held.classes
    }

    /// Makes exactly `wanted` be throttled, and renews what would time out. Writes what is different, in one
    /// transaction unless that is very much. Tells whether anything was written.
    pub(crate) fn write(&mut self, now: Instant, wanted: &[Class], timeout: Duration) -> Result<bool, Errno> {
        let Some(changes) = self.held.changes(now, wanted, timeout) else {
            self.write_all(now, wanted, timeout)?;
            return Ok(true);
        };
        let asked = self.chain_for(now, wanted);
        let mut another_chain = asked != self.asked;
        if changes.is_empty() && !another_chain {
            return Ok(false);
        }
        let (begin, rest) = changes.split_at(changes.len().min(PER_TRANSACTION));
        for chunk in [begin].into_iter().chain(rest.chunks(PER_TRANSACTION)) {
            let transaction = self.commit(|batch| {
                match asked {
                    Some(asked) if another_chain => write_chain(batch, asked),
                    None if another_chain => Table(TABLE).delete_chain(batch, CHAIN),
                    _ => {}
                }
                write_changes(batch, chunk, timeout);
            });
            match transaction {
                Ok(transaction) => self.follow(transaction),
                // What was to be replaced is gone, or there is what was to be made.
                Err(Errno::NOENT | Errno::EXIST | Errno::BUSY) => {
                    self.write_all(now, wanted, timeout)?;
                    return Ok(true);
                }
                Err(e) => {
                    self.held.uncertain = true;
                    return Err(e);
                }
            }
            (self.asked, another_chain) = (asked, false);
        }
        if !changes.is_empty() {
            self.held.take(now, wanted, &changes);
        }
        Ok(true)
    }

    /// What the chain is to ask while these are held: every map in which somebody is, at once; none in which nobody has been
    /// for a while.
    fn chain_for(&mut self, now: Instant, wanted: &[Class]) -> Option<Asked> {
        let needed = Asked::by(wanted);
        let recently = now.saturating_duration_since(self.needed) < LINGER;
        match self.asked {
            None if needed == Asked::NONE => return None,
            Some(asked) if asked != needed && asked.has(needed) && recently => return self.asked,
            _ => {}
        }
        // Those that are asked now may be needed again soon.
        let kept = self.asked.filter(|asked| !asked.has(needed)).unwrap_or(Asked::NONE);
        self.needed = now;
        Some(Asked(needed.0 | kept.0)).filter(|asked| *asked != Asked::NONE)
    }

    /// The same, whatever the maps hold.
    fn write_all(&mut self, now: Instant, wanted: &[Class], timeout: Duration) -> Result<(), Errno> {
        self.held.uncertain = true;
        let asked = Asked::by(wanted);
        let first = |batch: &mut Batch| {
            MAPS.iter().for_each(|map| Table(TABLE).flush_set(batch, map.name));
            write_chain(batch, asked);
        };
        self.write_new(wanted, timeout, first)?;
        (self.asked, self.needed) = (Some(asked), now);
        self.held.replace(wanted, vec![now; wanted.len()]);
        Ok(())
    }

    /// Fills empty maps, with `first` in the same transaction as the first clients.
    fn write_new(&mut self, wanted: &[Class], timeout: Duration, first: impl Fn(&mut Batch)) -> Result<(), Errno> {
        let (begin, rest) = wanted.split_at(wanted.len().min(PER_TRANSACTION));
        let transaction = self.commit(|batch| {
            first(batch);
            write_classes(batch, begin, timeout);
        })?;
        self.follow(transaction);
        for chunk in rest.chunks(PER_TRANSACTION) {
            let transaction = self.commit(|batch| write_classes(batch, chunk, timeout))?;
            self.follow(transaction);
        }
        Ok(())
    }

    /// Takes over the generation after our own transaction. If others were active since the last look, that look is still
    /// due.
    fn follow(&mut self, (before, after): (u32, u32)) {
        if before == self.generation {
            self.generation = after;
        }
    }

    /// Whether nobody is held, as far as the kernel told, and no chain looks at packets.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_none() && !self.held.uncertain && self.held.classes.is_empty()
    }

    /// Looks whether somebody changed our rules, and mends them. `timeout` is for elements that are written again.
    pub(crate) fn repair(&mut self, now: Instant, timeout: Duration) -> Result<Found, Errno> {
        let generation = self.read_generation()?;
        if generation == self.generation {
            return Ok(Found::Unchanged);
        }
        if self.count_rules()? != self.asked.unwrap_or(Asked::NONE).rules() {
            self.rebuild(now, timeout)?;
            return Ok(Found::StructureRepaired);
        }
        match self.elements_agree() {
            Ok(true) => {
                self.generation = generation;
                Ok(Found::OthersChanged)
            }
            Ok(false) => {
                self.generation = generation;
                let held = self.held.classes.clone();
                self.write_all(now, &held, timeout)?;
                Ok(Found::ElementsRepaired)
            }
            Err(Errno::NOENT) => {
                self.rebuild(now, timeout)?;
                Ok(Found::StructureRepaired)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether nothing is held that we did not write. What we wrote may have timed out.
    fn elements_agree(&self) -> Result<bool, Errno> {
        let mut agree = true;
        let mut found = 0;
        let wanted = by_map(self.held.classes.iter().map(|class| (place(class), element(class, Duration::ZERO))));
        for (map, wanted) in MAPS.iter().zip(wanted) {
            let wanted: BTreeMap<Vec<u8>, Option<Vec<u8>>> = wanted.into_iter().map(|e| (e.key, e.value)).collect();
            self.socket.query(&Table(TABLE).list_elements(map.name), |message| {
                if message.kind == NEW_ELEMENT {
                    for (key, value) in nft::read_elements(message.body) {
                        found += 1;
                        agree &= wanted.get(key).is_some_and(|w| w.as_deref() == value);
                    }
                }
            })?;
        }
        Ok(agree && found == self.held.classes.len())
    }

    fn count_rules(&self) -> Result<u32, Errno> {
        let mut rules = 0;
        let result = self.socket.query(&Table(TABLE).list_rules(CHAIN), |message| {
            rules += u32::from(message.kind == NEW_RULE);
        });
        match result {
            Ok(()) => Ok(rules),
            Err(Errno::NOENT) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Makes the table anew, with what it held.
    fn rebuild(&mut self, now: Instant, timeout: Duration) -> Result<(), Errno> {
        remove_with(&self.socket)?;
        self.generation = self.read_generation()?;
        let ports = self.ports.clone();
        let held = self.held.classes.clone();
        self.held.uncertain = true;
        let asked = Some(Asked::by(&held)).filter(|asked| *asked != Asked::NONE);
        let first = |batch: &mut Batch, owned| {
            write_structure(batch, &ports, owned);
            if let Some(asked) = asked {
                write_chain(batch, asked);
            }
        };
        let owned = self.owned;
        match self.write_new(&held, timeout, |batch| first(batch, owned)) {
            // The kernel does not know the flag.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if owned => {
                self.owned = false;
                self.write_new(&held, timeout, |batch| first(batch, false))?;
            }
            other => other?,
        }
        (self.asked, self.needed) = (asked, now);
        self.held.replace(&held, vec![now; held.len()]);
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

/// Whether a living process has the table for itself.
pub(crate) fn has_owner() -> Result<bool, Errno> {
    let mut owned = false;
    let result = Socket::open(Subsystem::Netfilter)?.query(&Table(TABLE).get(), |message| {
        if message.kind == NEW_TABLE {
            owned |= nft::read_table_flags(message.body).is_some_and(|flags| flags & TABLE_OWNED != 0);
        }
    });
    match result {
        Ok(()) => Ok(owned),
        // No table, or nothing that could have one.
        Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => Ok(false),
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
