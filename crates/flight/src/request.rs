//! One recorded request, and the names that a recording gives to numbers.

/// The kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Reads data.
    #[default]
    Read = 0,
    /// Writes data.
    Write = 1,
    /// Makes earlier writes durable. Has no length.
    Flush = 2,
    /// Discards data.
    Trim = 3,
    /// Writes zeroes without a payload.
    Zero = 4,
    /// Anything else: status of extents, prefetching.
    Other = 5,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The request succeeded.
    #[default]
    Done,
    /// The request failed with this error number of Linux (never 0). If its queue latency and its device latency are both 0, it
    /// was refused before it was queued, for example because it was out of range: a replay leaves it out.
    Failed(u16),
    /// The request was dropped before it was dispatched, because its client had gone.
    Cancelled,
}

/// One request as it was carried out; by default a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Arrival, in nanoseconds since the start of the recording.
    pub arrival_ns: u64,
    /// Time between arrival and admission to the device, in nanoseconds: the queue latency, with waits for requests to the
    /// same bytes. Of a request that was carried out in slices: all of its time except `device_ns`, including the waits of its
    /// slices between one another.
    pub queue_ns: u64,
    /// Time between admission and completion, in nanoseconds: the device latency. Of a request that was carried out in slices:
    /// the time in which at least one of them was at the device.
    pub device_ns: u64,
    /// Number of the tenant in the recording's names.
    pub tenant: u32,
    /// Number of the client (a connection's peer) in the recording's names.
    pub client: u32,
    /// Number of the volume in the recording's names.
    pub volume: u32,
    /// Kind of the request: read, write, ...
    pub kind: Kind,
    /// True if the request asked to be durable when it is answered (FUA).
    pub durable: bool,
    /// True if the request is a repetition of one that failed or was not answered.
    pub retried: bool,
    /// Offset in the volume, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The things that a recording gives numbers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Table {
    /// Tenants by name.
    Tenant = 0,
    /// Clients: one for each connection, named by its peer.
    Client = 1,
    /// Volumes (or devices) by name.
    Volume = 2,
}

/// A name: the number `number` of `table` stands for `name` in all requests of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The table in which the number is.
    pub table: Table,
    /// The number.
    pub number: u32,
    /// The name.
    pub name: String,
    /// For a volume the pool that it is in, otherwise empty.
    pub pool: String,
    /// For a volume its length in bytes, otherwise 0.
    pub bytes: u64,
}

impl Name {
    /// Host, port and identity of a client that is the peer of a TCP connection: `10.0.0.1`, `5000` and ` (alice)` of
    /// `10.0.0.1:5000 (alice)`; the identity may be empty. `None` of other names.
    pub fn connection(&self) -> Option<(&str, &str, &str)> {
        let (address, identity) = self.name.split_at(self.name.find(" (").unwrap_or(self.name.len()));
        let (host, port) = address.rsplit_once(':')?;
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        (self.table == Table::Client && is_port).then_some((host, port, identity))
    }
}

/// One item of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A name, before the first request that uses its number.
    Name(Name),
    /// A request. Requests are in the order of completion, not of arrival.
    Request(Request),
    /// Requests between two times, in nanoseconds since the start, could not be kept.
    Lost {
        /// Number of requests.
        requests: u64,
        /// First time.
        from_ns: u64,
        /// Last time.
        to_ns: u64,
    },
}

/// The head of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Start, as Unix time in nanoseconds.
    pub started_unix_ns: u64,
    /// Program that recorded: `serve`, `guard`, `host`, or the format that was converted.
    pub source: String,
    /// The policy in force at the start, as TOML; empty if not known.
    pub policy: String,
    /// True if offsets are scrambled.
    pub anonymised: bool,
}
