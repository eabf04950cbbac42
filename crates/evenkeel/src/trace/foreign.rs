//! Traces of other programs, read as the items of a recording.

use std::collections::{HashSet, VecDeque};
use std::io::BufRead;

use anyhow::{anyhow, ensure};
use evenkeel_control::units::Kind as Asked;
use evenkeel_flight::{Head, Item, Kind, Name, Outcome, Request, Table};
use evenkeel_policy::figures::counted;
use evenkeel_sim::workload::trace::{BadLines, Completion, Event, Format, Options, Reader, Record};

use crate::output;

/// Start of the clock of MSR traces, 1601, until that of Unix time, 1970, in nanoseconds.
const MSR_TO_UNIX_NS: u64 = 11_644_473_600_000_000_000;

/// A trace in one of the formats that the simulator reads. Each device of the trace becomes a tenant, a client and a volume. The
/// latencies of MSR traces count as those of the device; those of formats without are 0. A request without completion in a trace
/// that has some counts as cancelled. Lines that cannot be read count as lost requests, unless most lines are such.
pub(super) struct Foreign<R> {
    reader: Reader<R>,
    /// Name of the trace in messages.
    file: String,
    head: Head,
    /// Time of the first request on the trace's clock, in nanoseconds.
    begin_ns: u64,
    /// Latest arrival, in nanoseconds since the first request.
    last_ns: u64,
    /// Number of requests read.
    requests: u64,
    /// Number of those whose time is before that of the first request.
    early: u64,
    /// Number of those without completion, in a trace that has some.
    missing: u64,
    /// True once the trace has ended.
    ended: bool,
    /// True to warn of nothing, as when the file is read once more.
    pub(super) quiet: bool,
    named: HashSet<u32>,
    /// Items that were read and are still to be returned.
    pending: VecDeque<Item>,
}

impl<R: BufRead> Foreign<R> {
    /// Reads the trace up to its first request. `open` opens it, and `file` is its name in errors. In a blkparse text the events
    /// Q (queued) are the requests, or the events D (issued) if there is no event Q.
    ///
    /// # Errors
    /// A trace of unknown format, without requests, or that cannot be read.
    pub(super) fn new(open: impl Fn() -> anyhow::Result<R>, file: &str) -> anyhow::Result<Self> {
        let mut options = Options { bad_lines: BadLines::Skip, ..Options::default() };
        let (reader, first) = loop {
            let mut reader = Reader::new(open()?, file, options);
            if let Some(first) = reader.next().transpose()? {
                break (reader, first);
            }
            match (reader.skipped(), reader.format()) {
                (_, Some(Format::Blkparse)) if options.event == Event::Queue => options.event = Event::Issue,
                ((_, Some(error)), _) => return Err(anyhow!("{error}")),
                (_, Some(Format::Blkparse)) => {
                    return Err(anyhow!("{file} has no request: only blkparse events Q or D count; trace these"));
                }
                _ => return Err(anyhow!("{file} has no request: name a recording or a trace")),
            }
        };
        let begin_ns = first.at.as_nanos();
        let (source, started_unix_ns) = match reader.format() {
            Some(Format::Msr) => ("msr", begin_ns.saturating_sub(MSR_TO_UNIX_NS)),
            Some(Format::Spc) => ("spc", 0),
            Some(Format::Mqsim) => ("mqsim", 0),
            Some(Format::Blkparse) => ("blkparse", 0),
            Some(Format::Fio) | None => ("fio", 0),
        };
        let head = Head { started_unix_ns, source: source.into(), ..Head::default() };
        let mut trace = Self {
            reader,
            file: file.to_owned(),
            head,
            begin_ns,
            last_ns: 0,
            requests: 0,
            early: 0,
            missing: 0,
            ended: false,
            quiet: false,
            named: HashSet::new(),
            pending: VecDeque::new(),
        };
        trace.add(&first);
        Ok(trace)
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// The next item; `None` at the end of the trace.
    ///
    /// # Errors
    /// A file that cannot be read, or more lines that cannot be read than requests.
    pub(super) fn item(&mut self) -> anyhow::Result<Option<Item>> {
        if self.pending.is_empty() && !self.ended {
            match self.reader.next().transpose()? {
                Some(record) => self.add(&record),
                None => self.end()?,
            }
        }
        Ok(self.pending.pop_front())
    }

    /// Counts the lines that cannot be read as lost requests, and warns of them, of early times and of missing completions.
    ///
    /// # Errors
    /// More lines that cannot be read than requests.
    fn end(&mut self) -> anyhow::Result<()> {
        self.ended = true;
        if let (lines @ 1.., Some(error)) = self.reader.skipped() {
            let (bad, good) = (counted(lines, "line"), counted(self.requests, "request"));
            ensure!(lines <= self.requests, "{error}; {bad} cannot be read, and only {good} can: is this a trace?");
            self.warn(&format!("{error}; in all {bad} cannot be read and count as lost requests"));
            self.pending.push_back(Item::Lost { requests: lines, from_ns: 0, to_ns: self.last_ns });
        }
        if self.early > 0 {
            self.warn(&format!(
                "{}: {} with earlier times than the first line count as sent at its time; sort the lines by time",
                self.file,
                counted(self.early, "request")
            ));
        }
        if self.missing > 0 {
            self.warn(&format!(
                "{}: {} of {} without completion count as cancelled; trace all events in larger buffers (blktrace -b)",
                self.file,
                counted(self.missing, "request"),
                self.requests
            ));
        }
        Ok(())
    }

    fn warn(&self, message: &str) {
        if !self.quiet {
            output::complain(&format!("evenkeel: warning: {message}\n"));
        }
    }

    /// Adds the items of a record: its request, and before it the names of a device that is new.
    fn add(&mut self, record: &Record) {
        let number = record.device;
        if self.named.insert(number) {
            let tables = [Table::Tenant, Table::Client, Table::Volume];
            let name = |table| Name { table, number, name: format!("device{number}"), pool: String::new(), bytes: 0 };
            self.pending.extend(tables.map(name).map(Item::Name));
        }
        let at_ns = record.at.as_nanos();
        // Some traces have a few lines out of order.
        let arrival_ns = at_ns.saturating_sub(self.begin_ns);
        self.last_ns = self.last_ns.max(arrival_ns);
        self.requests += 1;
        self.early += u64::from(at_ns < self.begin_ns);
        let (queue_ns, device_ns, outcome) = match self.reader.completion() {
            Completion::Unstated => (0, 0, Outcome::Done),
            Completion::Missing => {
                self.missing += 1;
                (0, 0, Outcome::Cancelled)
            }
            Completion::Stated { queue, device, error: 0 } => (queue.as_nanos(), device.as_nanos(), Outcome::Done),
            Completion::Stated { queue, device, error } => {
                (queue.as_nanos(), device.as_nanos(), Outcome::Failed(error))
            }
        };
        let kind = match record.kind {
            Asked::Read => Kind::Read,
            Asked::Write => Kind::Write,
            Asked::Flush => Kind::Flush,
            Asked::Meta => Kind::Trim,
        };
        self.pending.push_back(Item::Request(Request {
            arrival_ns,
            queue_ns,
            device_ns,
            outcome,
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
