//! The table of attacks, and the settings (back end, engine, origin) in which each attack is tried.

use std::fmt;
use std::time::Duration;

use super::wire;
use crate::base::spelled::spelled;

/// Bytes at the start of the attacked volume to which requests go; also the size of this volume, unless it is in memory.
pub(super) const SPAN: u64 = 128 << 20;
/// Bytes at the start of the volume to which the bulk writer writes. Behind them a volume with holes still has more holes than a
/// reply about block status can list (1,024 extents).
pub(super) const NEXT_SPAN: u64 = 16 << 20;
/// Size in bytes of an attacked volume in memory, which takes memory only for written parts.
pub(super) const MEMORY_BYTES: u64 = 4 << 30;
/// Bytes at the start of an attacked volume in memory that are written before and during attacks on its memory.
pub(super) const FILLED: u64 = 256 << 20;
/// Number of addresses, users or tenants from which a crowd connects.
pub(super) const CROWD: u32 = 32;
/// The most connections that a process of the attacker begins per second: far more than a server without a defence survives, but
/// few enough that the attacker itself does not use up the processors.
pub(super) const CONNECTIONS_PER_S: u64 = 5_000;
const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
/// Duration of a storm before it is measured, in ms. A server may grant clients saved-up CPU time, for the moment at which a host
/// starts a hundred machines; a storm that takes a third of a processor has used this up by then.
const STORM_RISE_MS: u64 = 4_000;
/// The largest length of a request in whole pages that 32 bits can express, in bytes.
const ALL_4G: u32 = !0xfff;

/// The storage behind the volumes of the attacker and of the light client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Backend {
    File,
    Memory,
    Emulated,
    /// An export of a second server, which keeps it in memory.
    Remote,
}

impl Backend {
    pub(super) const ALL: [Self; 4] = [Self::File, Self::Memory, Self::Emulated, Self::Remote];
}

/// The I/O engine with which the server accesses files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Engine {
    #[value(name = "io_uring")]
    Uring,
    Threads,
}

impl Engine {
    pub(super) const ALL: [Self; 2] = [Self::Uring, Self::Threads];
}

/// Origin of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Place {
    /// One address, in the pool of the light client.
    One,
    /// Many addresses of one tenant, in the pool of the light client.
    Addresses,
    /// Many users of this machine and one tenant, in the pool of the light client.
    Users,
    /// One address, in another pool.
    OtherPool,
    /// As many tenants as addresses, in the pool of the light client.
    Tenants,
}

impl Place {
    /// The origins over which attacks rotate. [`Place::Tenants`] is used only by an attack that requires it.
    pub(super) const ALL: [Self; 4] = [Self::One, Self::Addresses, Self::Users, Self::OtherPool];
}

/// The setting of an attack: back end, engine and origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) backend: Backend,
    pub(super) engine: Engine,
    pub(super) place: Place,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, engine, place } = self;
        let place = match place {
            Place::One => "one_client",
            Place::Addresses => "many_addresses",
            Place::Users => "many_users",
            Place::OtherPool => "other_pool",
            Place::Tenants => "many_tenants",
        };
        write!(f, "{}_{}_{place}", spelled(backend), spelled(engine))
    }
}

/// The part of the server that an attack connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Nbd,
    /// The HTTP port with the dashboard and the status API.
    Status,
    /// The control socket for the operator.
    Control,
}

/// The first bytes that a connection sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// These bytes, without a handshake; the server's answer is not interpreted.
    Bytes(&'static [u8]),
    /// The client flags of the NBD handshake. The elements of [`Attack::asks`] are then options of the handshake.
    Options,
    /// A handshake that chooses the attacked volume, with simple replies.
    Simple,
    /// A handshake that chooses the attacked volume, with structured replies and the metadata context `base:allocation`.
    Structured,
    /// A handshake that starts TLS, up to the server's certificate.
    Tls,
}

/// The offset of a request in the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Start,
    /// A random multiple of the request's length.
    Anywhere,
    /// A random odd number, so that the request is not aligned.
    Odd,
    /// The end of the connection's preceding request, within [`NEXT_SPAN`]; after that 0 again.
    Next,
    /// A random multiple of the request's length within [`FILLED`], in a volume in memory.
    Filled,
    /// An offset beyond the end of every volume.
    Beyond,
}

/// An element of what a connection sends after its opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Request {
        magic: u32,
        command: u16,
        flags: u16,
        length: u32,
        at: At,
    },
    /// An option of the handshake with its data, and with a length field that may be wrong.
    Option {
        code: u32,
        length: u32,
        data: &'static [u8],
    },
    /// Bytes that are sent unchanged.
    Bytes(&'static [u8]),
}

const fn ask(command: u16, length: u32, at: At) -> Ask {
    Ask::Request { magic: wire::REQUEST_MAGIC, command, flags: 0, length, at }
}

const fn flagged(command: u16, flags: u16, length: u32, at: At) -> Ask {
    Ask::Request { magic: wire::REQUEST_MAGIC, command, flags, length, at }
}

/// The way in which the elements of [`Attack::asks`] are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    Whole,
    /// Only the first write, and of its payload only this number of bytes.
    Part(u32),
    /// One byte every 10 ms.
    Bytes,
}

/// The way in which the attacker ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Close,
    Reset,
    /// The attacker sends NBD_CMD_DISC and closes the socket.
    Disconnect,
    /// The attacker shuts down only the sending direction, and leaves the socket open.
    Half,
}

/// The condition for the end of a connection. The attacker opens a new connection in its place, also after the server has
/// closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Never,
    /// The connection ends when it has sent this number of requests, without waiting for replies.
    Sent(u32, End),
    /// The connection ends when it has received this number of replies.
    Answered(u32),
    /// The connection ends this long after its opening.
    After(Duration),
    /// The host of the connection vanishes this long after its opening: the socket stays open, and drops all packets.
    Vanish(Duration),
}

/// An attack, a row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// The only back end on which the attack makes sense; `None`: any.
    pub(super) backend: Option<Backend>,
    /// The only origin from which the attack comes; `None`: any.
    pub(super) place: Option<Place>,
    /// The part of the server that is attacked.
    pub(super) target: Target,
    /// Number of processes of the attacker.
    pub(super) processes: u32,
    /// Number of connections of all processes together.
    pub(super) connections: u32,
    pub(super) opening: Opening,
    /// Requests, options or bytes that a connection sends in turn after its opening; empty: it sends nothing.
    pub(super) asks: &'static [Ask],
    /// Queue depth: the most requests of a connection without a reply.
    pub(super) depth: u32,
    pub(super) sends: Sends,
    /// True if a connection reads the server's replies.
    pub(super) takes: bool,
    pub(super) ends: Ends,
    /// The most connections that each process begins per second.
    pub(super) per_s: u64,
    /// Period of bursts: requests are sent only in the first half of each period. Zero: no bursts.
    pub(super) every: Duration,
    /// Time from the start of the attack until its measurement begins.
    pub(super) rise: Duration,
    /// True if the attacked volume has holes before the attack: every second piece of length [`wire::STRIDE`].
    pub(super) holes: bool,
    /// True if the first [`FILLED`] bytes of the attacked volume, which is in memory, are written before the attack.
    pub(super) filled: bool,
    /// True if the attack changes holes or content of the attacked volume.
    pub(super) punches: bool,
    /// True if the attack is a storm, whose cost for the server is compared with a tenth of a processor.
    pub(super) storm: bool,
    /// True if `/healthz` is requested during the attack.
    pub(super) health: bool,
    /// True if every second request of the light client is a write.
    pub(super) beside_writes: bool,
}

impl Attack {
    /// An attack by NBD requests that are sent without end on `connections` connections with queue depth `depth`.
    const fn requests(name: &'static str, connections: u32, depth: u32, asks: &'static [Ask]) -> Self {
        Self {
            name,
            backend: None,
            place: None,
            target: Target::Nbd,
            processes: 1,
            connections,
            opening: Opening::Simple,
            asks,
            depth,
            sends: Sends::Whole,
            takes: true,
            ends: Ends::Never,
            per_s: CONNECTIONS_PER_S,
            every: Duration::ZERO,
            rise: Duration::from_millis(300),
            holes: false,
            filled: false,
            punches: false,
            storm: false,
            health: false,
            beside_writes: false,
        }
    }

    /// An attack by HTTP requests, each on a connection of its own that sends only `bytes`.
    const fn http(name: &'static str, target: Target, connections: u32, bytes: &'static [u8]) -> Self {
        Self { target, opening: Opening::Bytes(bytes), health: true, ..Self::requests(name, connections, 0, &[]) }
    }

    const fn on(self, backend: Backend) -> Self {
        Self { backend: Some(backend), ..self }
    }

    const fn from(self, place: Place) -> Self {
        Self { place: Some(place), ..self }
    }

    const fn structured(self) -> Self {
        Self { opening: Opening::Structured, ..self }
    }

    const fn sends(self, sends: Sends) -> Self {
        Self { sends, ..self }
    }

    const fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    const fn deaf(self) -> Self {
        Self { takes: false, ..self }
    }

    const fn punches(self) -> Self {
        Self { punches: true, ..self }
    }

    const fn holes(self) -> Self {
        Self { holes: true, punches: true, ..self }
    }

    /// Makes the attack meet a volume in memory with [`FILLED`] bytes of data, from its first request on.
    const fn filled(self) -> Self {
        Self { filled: true, ..self.on(Backend::Memory).rises(0) }
    }

    const fn rises(self, milliseconds: u64) -> Self {
        Self { rise: Duration::from_millis(milliseconds), ..self }
    }

    const fn in_bursts(self, every: Duration) -> Self {
        assert!(every.as_micros() >= 2, "it has two halves");
        Self { every, ..self }
    }

    const fn beside_writes(self) -> Self {
        Self { beside_writes: true, ..self }
    }

    /// Makes the attack open its connections one after the other, 40 per second.
    const fn in_line(self) -> Self {
        Self { per_s: 40, ..self.rises(1_000) }
    }

    /// Makes the attack a storm. It uses up the server's saved-up CPU time, a second of a processor, before it is measured: see
    /// [`STORM_RISE_MS`].
    const fn storm(self) -> Self {
        Self { storm: true, ..self.rises(STORM_RISE_MS) }
    }
}

/// The bulk writer, an ordinary neighbour of the light client for comparison: sequential writes of 64 KiB, 64 in flight.
pub(super) const BULK: Attack = Attack::requests("bulk", 1, 64, &[ask(wire::WRITE, 64 * KIB, At::Next)]);

const READ: u16 = wire::READ;
const WRITE: u16 = wire::WRITE;
const MIXED: &[Ask] = &[
    ask(READ, 512, At::Anywhere),
    ask(WRITE, 4 * KIB, At::Anywhere),
    ask(READ, 32 * MIB, At::Anywhere),
    ask(WRITE, MIB, At::Anywhere),
    ask(READ, 100_000, At::Odd),
    ask(WRITE, 9 * MIB, At::Odd),
    ask(WRITE, 777, At::Odd),
    ask(READ, 64 * KIB, At::Anywhere),
];
const READS_AND_WRITES: &[Ask] = &[ask(READ, 64 * KIB, At::Anywhere), ask(WRITE, 64 * KIB, At::Anywhere)];
const READS_AND_A_WRITE: &[Ask] = &{
    let mut asks = [ask(READ, MIB, At::Anywhere); 8];
    asks[7] = ask(WRITE, MIB, At::Anywhere);
    asks
};
const SMALL_READ: &[Ask] = &[ask(READ, 4 * KIB, At::Anywhere)];
/// Writes that together fill the server's 256 MiB for payloads to the last byte. Each takes almost half of what its predecessors
/// have left, but at most 32 MiB, the largest request; the last ones have 64 KiB, a size that the server always accepts.
const HALVES: &[Ask] = &{
    let mut asks = [ask(WRITE, 64 * KIB, At::Start); 28];
    let (mut number, mut left) = (0, 256 * MIB);
    while left > 512 * KIB {
        let half = (left / 2 - 64 * KIB) / (64 * KIB) * (64 * KIB);
        let half = if half < 32 * MIB { half } else { 32 * MIB };
        asks[number] = ask(WRITE, half, At::Start);
        (number, left) = (number + 1, left - half);
    }
    asks
};
/// Three requests in four trim a range, and the fourth writes it again.
const TRIMS_OF_ALL: &[Ask] = &{
    let all = ask(wire::TRIM, ALL_4G, At::Start);
    [ask(WRITE, 256 * KIB, At::Filled), all, all, all]
};
const ZEROS_OF_ALL: &[Ask] = &{
    let all = ask(wire::WRITE_ZEROES, ALL_4G, At::Start);
    [ask(WRITE, 256 * KIB, At::Filled), all, all, all]
};
const STATUS_OF_ALL: &[Ask] = &[ask(wire::BLOCK_STATUS, SPAN as u32, At::Start)];
const LIST: &[Ask] = &[Ask::Option { code: wire::LIST, length: 0, data: &[] }];
const INFO: &[Ask] = &[Ask::Option { code: wire::INFO, length: 11, data: b"\0\0\0\x05noise\0\0" }];
const HALF_A_REQUEST: &[u8] = b"GET /api/v1/state HTTP/1.1\r\nHost: lo";

/// All attacks, in the order in which they are tried.
pub(super) const ATTACKS: &[Attack] = &[
    // Memory for what is on its way.
    Attack::requests("half_arrived_writes", 28, 1, HALVES)
        .in_line()
        .sends(Sends::Part(1_000))
        .ends(Ends::After(Duration::from_secs(20))),
    Attack::requests("half_sent_headers", 1_000, 1, &[Ask::Bytes(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1])]),
    Attack::requests("writes_a_byte_at_a_time", 256, 1, &[ask(WRITE, 64 * KIB, At::Anywhere)]).sends(Sends::Bytes),
    Attack::requests("half_arrived_writes_reconnecting", 28, 1, HALVES)
        .in_line()
        .sends(Sends::Part(1_000))
        .ends(Ends::After(Duration::from_millis(1_500))),
    Attack::requests("reads_never_taken", 32, 64, &[ask(READ, MIB, At::Anywhere)]).deaf(),
    Attack::requests("small_reads_never_taken", 256, 256, SMALL_READ).deaf(),
    Attack::requests("replies_to_writes_never_taken", 32, 10_000, &[ask(WRITE, 512, At::Anywhere)]).deaf(),
    // Work that moves no data.
    Attack::requests("trims_of_4_gib_in_another_pool", 32, 256, TRIMS_OF_ALL).filled().from(Place::OtherPool),
    Attack::requests("zeros_of_4_gib_in_another_pool", 32, 256, ZEROS_OF_ALL).filled().from(Place::OtherPool),
    Attack::requests("status_of_holes_in_another_pool", 32, 256, STATUS_OF_ALL)
        .structured()
        .holes()
        .on(Backend::Memory)
        .from(Place::OtherPool),
    Attack::requests("status_of_a_fragmented_file", 4, 64, STATUS_OF_ALL).structured().holes().on(Backend::File),
    Attack::requests("status_never_taken", 16, 256, STATUS_OF_ALL).structured().holes().deaf().on(Backend::Memory),
    Attack::requests("status_storm", 16, 64, &[ask(wire::BLOCK_STATUS, 64 * KIB, At::Anywhere)]).structured(),
    Attack::requests("trim_storm", 16, 64, &[ask(wire::TRIM, MIB, At::Anywhere)]).punches(),
    Attack::requests("zero_storm", 16, 64, &[ask(wire::WRITE_ZEROES, MIB, At::Anywhere)]).punches(),
    Attack::requests(
        "zeros_without_holes",
        4,
        16,
        &[flagged(wire::WRITE_ZEROES, wire::NO_HOLE, 16 * MIB, At::Anywhere)],
    ),
    Attack::requests("cache_storm", 16, 64, &[ask(wire::CACHE, 16 * MIB, At::Anywhere)]),
    Attack::requests("flush_storm", 16, 64, &[ask(WRITE, 4 * KIB, At::Anywhere), ask(wire::FLUSH, 0, At::Start)]),
    Attack::requests("fua_storm", 16, 32, &[flagged(WRITE, wire::FUA, 4 * KIB, At::Anywhere)]),
    // Large, tiny and crooked requests.
    Attack::requests("reads_of_32_mib_one_at_a_time", 1, 1, &[ask(READ, 32 * MIB, At::Anywhere)])
        .on(Backend::Emulated)
        .from(Place::One),
    Attack::requests("reads_of_32_mib_16_at_a_time", 4, 4, &[ask(READ, 32 * MIB, At::Anywhere)]).on(Backend::File),
    Attack::requests("writes_of_32_mib", 4, 4, &[ask(WRITE, 32 * MIB, At::Anywhere)]),
    Attack::requests("mixed_and_huge_sizes", 8, 16, MIXED),
    Attack::requests("tiny_reads", 16, 128, &[ask(READ, 512, At::Anywhere)]),
    Attack::requests("tiny_writes", 16, 64, &[ask(WRITE, 512, At::Anywhere)]),
    Attack::requests("unaligned_writes", 16, 32, &[ask(WRITE, 4_097, At::Odd)]),
    Attack::requests(
        "unaligned_beside_aligned",
        8,
        32,
        &[ask(WRITE, 5_000, At::Odd), ask(WRITE, 64 * KIB, At::Anywhere)],
    ),
    Attack::requests("one_connection_256_deep", 1, 256, &[ask(READ, 64 * KIB, At::Anywhere)]),
    Attack::requests("many_tenants_write", 64, 16, &[ask(WRITE, 64 * KIB, At::Anywhere)]).from(Place::Tenants),
    Attack::requests("many_tenants_read_much", 32, 2, &[ask(READ, 8 * MIB, At::Anywhere)]).from(Place::Tenants),
    // Connections.
    Attack { processes: 2, ..Attack::requests("connection_flood", 16_384, 0, &[]).rises(3_000).from(Place::One) },
    Attack {
        processes: 2,
        ..Attack::requests("connection_flood_of_a_crowd", 16_384, 0, &[]).rises(3_000).from(Place::Addresses)
    },
    Attack::requests("connections_10000_that_read", 10_000, 1, SMALL_READ).rises(3_000),
    Attack {
        opening: Opening::Bytes(b"\0\0\0\x03"),
        ..Attack::requests("frozen_in_the_handshake", 4_000, 0, &[]).rises(1_200)
    },
    Attack {
        opening: Opening::Bytes(&[]),
        ..Attack::requests("connect_and_reset", 64, 0, &[]).ends(Ends::Sent(0, End::Reset))
    },
    Attack::requests("reads_and_close", 64, 64, READS_AND_WRITES).ends(Ends::Sent(64, End::Close)),
    Attack::requests("reads_and_reset", 64, 64, &[ask(READ, 64 * KIB, At::Anywhere)]).ends(Ends::Sent(64, End::Reset)),
    Attack::requests("writes_and_disconnect", 64, 64, &[ask(WRITE, 4 * KIB, At::Anywhere)])
        .ends(Ends::Sent(64, End::Disconnect)),
    Attack::requests("half_closed", 256, 64, READS_AND_WRITES).deaf().ends(Ends::Sent(64, End::Half)),
    Attack::requests("a_read_and_a_new_connection", 64, 1, SMALL_READ).ends(Ends::Answered(1)),
    // Wrong requests.
    Attack::requests(
        "requests_out_of_range",
        16,
        128,
        &[ask(READ, 4 * KIB, At::Beyond), ask(WRITE, 4 * KIB, At::Beyond)],
    ),
    Attack::requests(
        "unknown_commands_and_flags",
        16,
        128,
        &[ask(99, 4 * KIB, At::Start), flagged(READ, 0x8000, 4 * KIB, At::Start)],
    ),
    Attack::requests(
        "bad_magic",
        64,
        1,
        &[Ask::Request { magic: 0xdead_beef, command: READ, flags: 0, length: 4 * KIB, at: At::Start }],
    ),
    Attack::requests("absurd_lengths", 64, 1, &[ask(WRITE, u32::MAX, At::Start)])
        .sends(Sends::Part(1_000))
        .ends(Ends::After(Duration::from_millis(200))),
    Attack::requests(
        "misused_replies",
        16,
        64,
        &[ask(wire::BLOCK_STATUS, MIB, At::Start), flagged(READ, wire::DF, MIB, At::Start)],
    ),
    // Before a volume is chosen, and beside the volumes.
    Attack { opening: Opening::Options, ..Attack::requests("option_list_storm", 32, 8, LIST).storm() },
    Attack { opening: Opening::Options, ..Attack::requests("option_info_storm", 32, 8, INFO).storm() },
    Attack {
        opening: Opening::Options,
        ..Attack::requests("options_of_4_gib", 64, 1, &[Ask::Option { code: 99, length: u32::MAX, data: b"x" }])
    },
    Attack {
        opening: Opening::Tls,
        ..Attack::requests("tls_handshake_storm", 16, 0, &[]).storm().ends(Ends::Answered(1))
    },
    Attack::http("half_sent_http", Target::Status, 64, HALF_A_REQUEST),
    Attack::http("many_half_sent_http", Target::Status, 1_000, HALF_A_REQUEST),
    Attack::http(
        "api_storm",
        Target::Status,
        8,
        b"GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    .storm(),
    Attack::http(
        "metrics_storm",
        Target::Status,
        8,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    .storm(),
    Attack::http(
        "reload_storm",
        Target::Control,
        4,
        b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    .storm(),
    // What is inside a device when its client is gone.
    Attack::requests("small_reads_and_reset", 64, 256, &[ask(READ, 512, At::Anywhere)])
        .ends(Ends::Sent(256, End::Reset)),
    Attack::requests("trims_and_reset", 64, 64, &[ask(wire::TRIM, 64 * KIB, At::Anywhere)])
        .punches()
        .ends(Ends::Sent(64, End::Reset)),
    Attack::requests("flushes_and_reset", 64, 64, &[ask(WRITE, 4 * KIB, At::Anywhere), ask(wire::FLUSH, 0, At::Start)])
        .ends(Ends::Sent(64, End::Reset)),
    Attack::requests("reads_10000_and_close", 4, 10_000, SMALL_READ).ends(Ends::Sent(10_000, End::Close)),
    // Now and then, and beside a light client that writes, too.
    Attack::requests("bursts_of_reads_and_writes", 64, 64, READS_AND_WRITES).in_bursts(Duration::from_millis(200)),
    Attack::requests("reads_and_writes_beside_writes", 16, 64, READS_AND_WRITES).beside_writes(),
    Attack::requests(
        "flush_storm_beside_writes",
        16,
        64,
        &[ask(WRITE, 4 * KIB, At::Anywhere), ask(wire::FLUSH, 0, At::Start)],
    )
    .beside_writes(),
    // Hosts that vanish, 40 a second, each with up to seven reads outstanding and a write half sent.
    Attack::requests("hosts_vanish_with_memory", 32, 8, READS_AND_A_WRITE)
        .from(Place::Addresses)
        .in_line()
        .deaf()
        .sends(Sends::Part(1_000))
        .ends(Ends::Vanish(Duration::from_millis(100))),
];

/// The attack with this name.
pub(super) fn by_name(name: &str) -> Option<&'static Attack> {
    if name == BULK.name { Some(&BULK) } else { ATTACKS.iter().find(|attack| attack.name == name) }
}

/// The setting of attack number `number` in a short run. Over 16 attacks each back end is combined with each origin, over 32
/// attacks both of these with each engine.
pub(super) fn once(number: usize) -> Setting {
    pinned(number, setting(number, number + number / 4, number / 2 + number / 16))
}

/// The settings of attack number `number` with `--full`: all back ends, engines and origins occur; their combinations rotate from
/// attack to attack.
pub(super) fn everywhere(number: usize) -> Vec<Setting> {
    let mut settings = Vec::new();
    for backend in 0..Backend::ALL.len() {
        let setting = pinned(number, setting(backend, number + backend, number / 4 + backend / 2));
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

fn setting(backend: usize, place: usize, engine: usize) -> Setting {
    Setting {
        backend: Backend::ALL[backend % Backend::ALL.len()],
        engine: Engine::ALL[engine % Engine::ALL.len()],
        place: Place::ALL[place % Place::ALL.len()],
    }
}

/// The setting, changed to the back end and the origin that attack number `number` requires.
fn pinned(number: usize, setting: Setting) -> Setting {
    let attack = &ATTACKS[number];
    Setting {
        backend: attack.backend.unwrap_or(setting.backend),
        place: attack.place.unwrap_or(setting.place),
        ..setting
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pairs(settings: impl Iterator<Item = Setting>) -> BTreeSet<String> {
        settings
            .flat_map(|Setting { backend, engine, place }| {
                [format!("{backend:?} {place:?}"), format!("{backend:?} {engine:?}"), format!("{place:?} {engine:?}")]
            })
            .collect()
    }

    /// Number of pairs: 16 of back end and origin, 8 of back end and engine, 8 of origin and engine.
    const ALL_PAIRS: usize = 32;

    #[test]
    fn back_ends_engines_and_places_meet_in_a_short_run() {
        let settings = (0..ATTACKS.len()).map(once);
        assert_eq!(pairs(settings.filter(|setting| setting.place != Place::Tenants)).len(), ALL_PAIRS);
    }

    #[test]
    fn every_attack_meets_every_back_end_engine_and_place_in_a_full_run() {
        let settings = (0..ATTACKS.len()).flat_map(everywhere);
        assert_eq!(pairs(settings.filter(|setting| setting.place != Place::Tenants)).len(), ALL_PAIRS);
        for (number, attack) in ATTACKS.iter().enumerate() {
            let settings = everywhere(number);
            for backend in Backend::ALL {
                assert_eq!(
                    settings.iter().any(|s| s.backend == backend),
                    attack.backend.is_none_or(|only| only == backend)
                );
            }
            for engine in Engine::ALL {
                assert!(settings.iter().any(|s| s.engine == engine), "{} {engine:?}", attack.name);
            }
            for place in Place::ALL {
                assert_eq!(settings.iter().any(|s| s.place == place), attack.place.is_none_or(|only| only == place));
            }
        }
    }

    #[test]
    fn only_volumes_in_memory_are_filled() {
        let fills = |attack: &&Attack| {
            attack.filled || attack.asks.iter().any(|ask| matches!(ask, Ask::Request { at: At::Filled, .. }))
        };
        let filled: Vec<&Attack> = ATTACKS.iter().filter(fills).collect();
        assert_eq!(filled.len(), 2);
        assert!(filled.iter().all(|attack| attack.filled && attack.backend == Some(Backend::Memory)));
        const { assert!(FILLED < MEMORY_BYTES) };
    }

    #[test]
    fn attacks_have_names_of_their_own() {
        let names: BTreeSet<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), ATTACKS.len());
        assert!(by_name("bulk").is_some() && by_name("reload_storm").is_some() && by_name("x").is_none());
    }
}
