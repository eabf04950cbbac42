//! The messages of nf_tables: tables, sets, chains, rules and their expressions (`linux/netfilter/nf_tables.h`).

use super::netlink::{ACK, APPEND, Batch, CREATE, DUMP, Writer};

/// nf_tables' number among the subsystems of netfilter, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// Message types.
pub(crate) const NEW_TABLE: u16 = SUBSYSTEM;
pub(crate) const GET_TABLE: u16 = SUBSYSTEM | 1;
pub(crate) const DELETE_TABLE: u16 = SUBSYSTEM | 2;
pub(crate) const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
pub(crate) const NEW_RULE: u16 = SUBSYSTEM | 6;
pub(crate) const GET_RULE: u16 = SUBSYSTEM | 7;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
pub(crate) const NEW_SET: u16 = SUBSYSTEM | 9;
pub(crate) const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
pub(crate) const GET_ELEMENT: u16 = SUBSYSTEM | 13;
pub(crate) const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;
pub(crate) const NEW_GENERATION: u16 = SUBSYSTEM | 15;
pub(crate) const GET_GENERATION: u16 = SUBSYSTEM | 16;

/// Rules for IPv4 and IPv6 in one table.
const FAMILY_INET: u8 = 1;

/// The table goes away with the socket that made it, and nobody else may change it (Linux 5.12).
pub(crate) const TABLE_OWNED: u32 = 2;

pub(crate) const SET_CONSTANT: u32 = 0x2;
pub(crate) const SET_MAP: u32 = 0x8;
pub(crate) const SET_TIMEOUT: u32 = 0x10;

/// Types of keys, for whoever lists a set; the kernel does not care.
pub(crate) const TYPE_IPV4: u32 = 7;
pub(crate) const TYPE_IPV6: u32 = 8;
pub(crate) const TYPE_PORT: u32 = 13;
pub(crate) const TYPE_CLASS: u32 = 23;

/// A type made of several, each padded to 32 bits.
pub(crate) fn concatenation(types: &[u32]) -> u32 {
    types.iter().fold(0, |all, one| all << 6 | one)
}

/// First 32-bit register; the following ones count up.
pub(crate) const REGISTER: u32 = 8;

/// What all messages of one table share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table<'a>(pub(crate) &'a str);

/// Which header a payload expression counts from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Header {
    Network = 1,
    Transport = 2,
}

/// What a rule may ask about a packet itself.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meta {
    Priority = 2,
    Family = 15,
    Protocol = 16,
}

/// A set to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Set<'a> {
    pub(crate) name: &'a str,
    pub(crate) flags: u32,
    pub(crate) key_type: u32,
    pub(crate) key_bytes: u32,
    /// Type and length of the values of a map.
    pub(crate) value: Option<(u32, u32)>,
    /// Distinguishes the sets of a transaction.
    pub(crate) id: u32,
}

/// One element: key, value of a map, time until it goes away in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) timeout_ms: Option<u64>,
}

/// Elements that fit into one attribute of 64 KiB, at the most that one takes (24-byte key, value, timeout).
const ELEMENTS_PER_MESSAGE: usize = 800;

fn header(w: &mut Writer<'_>, family: u8, resource: u16) {
    let [high, low] = resource.to_be_bytes();
    w.raw(&[family, 0, high, low]);
}

/// A transaction: all of it happens or nothing. With `generation`, only if nobody changed any rule since.
/// The second value is the number of the message to wait for.
pub(crate) fn transaction(generation: Option<u32>, body: impl FnOnce(&mut Batch)) -> (Batch, u32) {
    let mut inner = Batch::default();
    inner.message(BATCH_BEGIN, 0, |w| {
        header(w, 0, 10);
        if let Some(generation) = generation {
            w.be32(1, generation);
        }
    });
    body(&mut inner);
    let last = inner.acknowledge_last();
    inner.message(BATCH_END, 0, |w| header(w, 0, 10));
    (inner, last)
}

impl Table<'_> {
    pub(crate) fn create(self, batch: &mut Batch, flags: u32) {
        batch.message(NEW_TABLE, CREATE, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.be32(2, flags);
        });
    }

    /// Asks for the table itself.
    pub(crate) fn get(self) -> Batch {
        let mut batch = Batch::default();
        batch.message(GET_TABLE, ACK, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
        });
        batch
    }

    pub(crate) fn delete(self, batch: &mut Batch) {
        batch.message(DELETE_TABLE, 0, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
        });
    }

    pub(crate) fn create_set(self, batch: &mut Batch, set: &Set<'_>) {
        batch.message(NEW_SET, CREATE, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(2, set.name);
            w.be32(3, set.flags);
            w.be32(4, set.key_type);
            w.be32(5, set.key_bytes);
            if let Some((kind, bytes)) = set.value {
                w.be32(6, kind);
                w.be32(7, bytes);
            }
            w.be32(10, set.id);
            if set.value.is_some() {
                // For whoever lists the map: keys are in network order, values in the host's.
                w.bytes(13, &[&[0, 4][..], &2u32.to_ne_bytes(), &[1, 4], &1u32.to_ne_bytes()].concat());
            }
        });
    }

    /// Empties a set.
    pub(crate) fn flush_set(self, batch: &mut Batch, set: &str) {
        batch.message(DELETE_ELEMENT, 0, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(2, set);
        });
    }

    /// Removes elements, all of which must be there.
    pub(crate) fn delete_elements(self, batch: &mut Batch, set: &str, elements: &[Element]) {
        self.change_elements(batch, DELETE_ELEMENT, 0, set, elements);
    }

    pub(crate) fn add_elements(self, batch: &mut Batch, set: &str, elements: &[Element]) {
        self.change_elements(batch, NEW_ELEMENT, CREATE, set, elements);
    }

    fn change_elements(self, batch: &mut Batch, kind: u16, flags: u16, set: &str, elements: &[Element]) {
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            batch.message(kind, flags, |w| {
                header(w, FAMILY_INET, 0);
                w.text(1, self.0);
                w.text(2, set);
                w.nest(3, |w| chunk.iter().for_each(|element| write_element(w, element)));
            });
        }
    }

    /// A chain that sees every packet that this host sends, before the queueing discipline does. One that is there already
    /// stays.
    pub(crate) fn create_output_chain(self, batch: &mut Batch, chain: &str) {
        /// Where nft's "mangle" is.
        const PRIORITY: i32 = -150;
        const HOOK_OUTPUT: u32 = 3;
        batch.message(NEW_CHAIN, CREATE, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(3, chain);
            w.nest(4, |w| {
                w.be32(1, HOOK_OUTPUT);
                w.be32(2, PRIORITY.cast_unsigned());
            });
            w.text(7, "filter");
        });
    }

    /// Removes a chain with its rules: it must be there.
    pub(crate) fn delete_chain(self, batch: &mut Batch, chain: &str) {
        self.about_chain(batch, DELETE_CHAIN, 3, chain);
    }

    /// Removes the rules of a chain.
    pub(crate) fn flush_chain(self, batch: &mut Batch, chain: &str) {
        self.about_chain(batch, DELETE_RULE, 2, chain);
    }

    fn about_chain(self, batch: &mut Batch, kind: u16, attribute: u16, chain: &str) {
        batch.message(kind, 0, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(attribute, chain);
        });
    }

    pub(crate) fn add_rule(self, batch: &mut Batch, chain: &str, expressions: &[Expression<'_>]) {
        batch.message(NEW_RULE, CREATE | APPEND, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(2, chain);
            w.nest(4, |w| {
                for expression in expressions {
                    w.nest(1, |w| expression.write(w));
                }
            });
        });
    }

    /// Asks for the rules of a chain.
    pub(crate) fn list_rules(self, chain: &str) -> Batch {
        let mut batch = Batch::default();
        batch.message(GET_RULE, DUMP, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(2, chain);
        });
        batch
    }

    /// Asks for the elements of a set.
    pub(crate) fn list_elements(self, set: &str) -> Batch {
        let mut batch = Batch::default();
        batch.message(GET_ELEMENT, DUMP, |w| {
            header(w, FAMILY_INET, 0);
            w.text(1, self.0);
            w.text(2, set);
        });
        batch
    }
}

/// Asks how many transactions the rules have seen.
pub(crate) fn get_generation() -> Batch {
    let mut batch = Batch::default();
    batch.message(GET_GENERATION, ACK, |w| header(w, 0, 0));
    batch
}

fn write_element(w: &mut Writer<'_>, element: &Element) {
    w.nest(1, |w| {
        w.nest(1, |w| w.bytes(1, &element.key));
        if let Some(value) = &element.value {
            w.nest(2, |w| w.bytes(1, value));
        }
        if let Some(timeout) = element.timeout_ms {
            w.be64(4, timeout);
        }
    });
}

/// The flags in a message about a table.
pub(crate) fn read_table_flags(body: &[u8]) -> Option<u32> {
    use super::netlink::{attribute, be32};
    be32(attribute(body.get(4..)?, 2)?)
}

/// The elements that a message about a set holds, as (key, value).
pub(crate) fn read_elements(body: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    use super::netlink::{attribute, attributes};
    let list = body.get(4..).and_then(|b| attribute(b, 3)).unwrap_or_default();
    attributes(list).filter_map(|(_, element)| {
        let key = attribute(attribute(element, 1)?, 1)?;
        let value = attribute(element, 2).and_then(|v| attribute(v, 1));
        Some((key, value))
    })
}

/// A step of a rule.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expression<'a> {
    /// Loads a fact about the packet.
    LoadMeta(Meta, u32),
    /// Sets the packet's priority, which HTB reads as its class.
    SetPriority(u32),
    /// Loads bytes of the packet.
    Payload { header: Header, offset: u32, bytes: u32, register: u32 },
    /// Keeps only these bits.
    Mask { register: u32, mask: &'a [u8] },
    /// Goes on if the register is equal to this, or unequal.
    Compare { register: u32, equal: bool, to: &'a [u8] },
    /// Goes on if the set has the key that starts in `register`, or has it not.
    InSet { set: &'a str, register: u32, negated: bool },
    /// Goes on if the map has the key, and loads its value.
    InMap { map: &'a str, key: u32, value: u32 },
    /// Leaves the chain.
    Return,
}

impl Expression<'_> {
    fn write(self, w: &mut Writer<'_>) {
        let mut expression = |name: &str, body: &dyn Fn(&mut Writer<'_>)| {
            w.text(1, name);
            w.nest(2, body);
        };
        match self {
            Self::LoadMeta(meta, register) => expression("meta", &|w| {
                w.be32(1, register);
                w.be32(2, meta as u32);
            }),
            Self::SetPriority(register) => expression("meta", &|w| {
                w.be32(2, Meta::Priority as u32);
                w.be32(3, register);
            }),
            Self::Payload { header, offset, bytes, register } => expression("payload", &|w| {
                w.be32(1, register);
                w.be32(2, header as u32);
                w.be32(3, offset);
                w.be32(4, bytes);
            }),
            Self::Mask { register, mask } => expression("bitwise", &|w| {
                w.be32(1, register);
                w.be32(2, register);
                w.be32(3, mask.len() as u32);
                w.nest(4, |w| w.bytes(1, mask));
                w.nest(5, |w| w.bytes(1, &vec![0; mask.len()]));
            }),
            Self::Compare { register, equal, to } => expression("cmp", &|w| {
                w.be32(1, register);
                w.be32(2, u32::from(!equal));
                w.nest(3, |w| w.bytes(1, to));
            }),
            Self::InSet { set, register, negated } => expression("lookup", &|w| {
                w.text(1, set);
                w.be32(2, register);
                if negated {
                    w.be32(5, 1);
                }
            }),
            Self::InMap { map, key, value } => expression("lookup", &|w| {
                w.text(1, map);
                w.be32(2, key);
                w.be32(3, value);
            }),
            Self::Return => {
                const VERDICT_REGISTER: u32 = 0;
                const VERDICT_RETURN: i32 = -5;
                expression("immediate", &|w| {
                    w.be32(1, VERDICT_REGISTER);
                    w.nest(2, |w| w.nest(2, |w| w.be32(1, VERDICT_RETURN.cast_unsigned())));
                });
            }
        }
    }
}
