//! Traces of other programs, read as the items of a recording.

use std::collections::{HashSet, VecDeque};
use std::io::BufRead;

use anyhow::Context;
use evenkeel_control::units::Kind as Asked;
use evenkeel_flight::{Head, Item, Kind, Name, Request, Table};
use evenkeel_sim::workload::trace::{Format, Options, Reader, Record};

/// Start of the clock of MSR traces, 1601, until that of Unix time, 1970, in nanoseconds.
const MSR_TO_UNIX_NS: u64 = 11_644_473_600_000_000_000;

/// A trace in one of the formats that the simulator reads. Each device of the trace becomes a tenant, a client and a volume. The
/// latencies of MSR traces count as those of the device; of other formats latencies are 0.
pub(super) struct Foreign<R> {
    reader: Reader<R>,
    head: Head,
    /// Time of the first request on the trace's clock, in nanoseconds.
    begin_ns: u64,
    named: HashSet<u32>,
    /// Items that were read and are still to be returned.
    pending: VecDeque<Item>,
}

impl<R: BufRead> Foreign<R> {
    /// Reads the trace up to its first request. `file` is the trace's name in errors.
    ///
    /// # Errors
    /// A trace of unknown format, without requests, or that cannot be read.
    pub(super) fn new(input: R, file: &str) -> anyhow::Result<Self> {
        let mut reader = Reader::new(input, file, Options::default());
        let first = reader.next().transpose()?;
        let first = first.with_context(|| match reader.format() {
            Some(Format::Blkparse) => format!("{file} has no request: of blkparse text events Q count, trace these"),
            _ => format!("{file} has no request: name a recording or a trace"),
        })?;
        let begin_ns = first.at.as_nanos();
        let (source, started_unix_ns) = match reader.format() {
            Some(Format::Msr) => ("msr", begin_ns.saturating_sub(MSR_TO_UNIX_NS)),
            Some(Format::Spc) => ("spc", 0),
            Some(Format::Mqsim) => ("mqsim", 0),
            Some(Format::Blkparse) => ("blkparse", 0),
            Some(Format::Fio) | None => ("fio", 0),
        };
        let head = Head { started_unix_ns, source: source.into(), policy: String::new(), anonymised: false };
        let mut trace = Self { reader, head, begin_ns, named: HashSet::new(), pending: VecDeque::new() };
        trace.add(&first);
        Ok(trace)
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// The next item; `None` at the end of the trace.
    ///
    /// # Errors
    /// A line that cannot be read.
    pub(super) fn item(&mut self) -> anyhow::Result<Option<Item>> {
        if self.pending.is_empty()
            && let Some(record) = self.reader.next().transpose()?
        {
            self.add(&record);
        }
        Ok(self.pending.pop_front())
    }

    /// Adds the items of a record: its request, and before it the names of a device that is new.
    fn add(&mut self, record: &Record) {
        let number = record.device;
        if self.named.insert(number) {
            let tables = [Table::Tenant, Table::Client, Table::Volume];
            let name = |table| Name { table, number, name: format!("device{number}"), pool: String::new(), bytes: 0 };
            self.pending.extend(tables.map(name).map(Item::Name));
        }
        let device_ns = self.reader.latency().map_or(0, |latency| latency.as_nanos());
        let kind = match record.kind {
            Asked::Read => Kind::Read,
            Asked::Write => Kind::Write,
            Asked::Flush => Kind::Flush,
            Asked::Meta => Kind::Trim,
        };
        self.pending.push_back(Item::Request(Request {
            // Some traces have a few lines out of order.
            arrival_ns: record.at.as_nanos().saturating_sub(self.begin_ns),
            device_ns,
            tenant: number,
            client: number,
            volume: number,
            kind,
            offset: record.offset,
            length: u64::from(record.bytes),
            ..Request::default()
        }));
    }
}
