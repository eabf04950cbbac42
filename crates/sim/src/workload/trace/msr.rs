//! Parser of MSR Cambridge traces (SNIA): CSV in which a header may name the columns in another order.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::Record;
use super::error::Fault;
use super::fields::{Field, by_comma};

/// Nanoseconds in a tick, the unit of the trace's times.
const TICK_NS: u64 = 100;
/// Names of the columns in errors, in the order of a trace without a header. The last one may be missing.
const COLUMNS: [&str; 7] = ["timestamp", "host", "disk", "type", "offset", "size", "latency"];
/// Place of the latency in [`COLUMNS`].
const LATENCY: usize = 6;
/// Place of the host in [`COLUMNS`], which is not used.
const HOST: usize = 1;

/// The parser's state, set by the header.
#[derive(Debug)]
pub(super) struct State {
    /// For each column of the trace its place in [`COLUMNS`]; `None` for another column.
    columns: Vec<Option<usize>>,
    /// Least number of columns of a line.
    least: usize,
}

impl Default for State {
    fn default() -> Self {
        Self { columns: (0..COLUMNS.len()).map(Some).collect(), least: LATENCY }
    }
}

impl State {
    /// The latency in the line of a request; `None` if there is none, or no number of ticks.
    pub(super) fn latency(&self, line: &[u8]) -> Option<Duration> {
        let place = self.columns.iter().position(|column| *column == Some(LATENCY))?;
        let field = Field::new("latency", by_comma(line).nth(place)?);
        Some(field.time(TICK_NS).ok()?.since(Instant::ZERO))
    }

    /// Parses one line: `Some` for a request, `None` for a header, which some copies of the traces have.
    pub(super) fn parse(&mut self, line: &[u8]) -> Result<Option<Record>, Fault> {
        // A unit may stand behind the name.
        let is_time = |name: &[u8]| name.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"timestamp"));
        if !line.first().is_some_and(u8::is_ascii_digit) && by_comma(line).any(is_time) {
            return self.begin(line).map(|()| None);
        }
        let mut texts = [&b""[..]; COLUMNS.len()];
        let mut found = 0;
        for text in by_comma(line) {
            if let Some(&Some(column)) = self.columns.get(found) {
                texts[column] = text;
            }
            found += 1;
        }
        if found < self.least {
            return Err(Fault::Fields { found, layout: "timestamp,host,disk,Read or Write,offset,size,response time" });
        }
        let field = |column: usize| Field::new(COLUMNS[column], texts[column]);
        let [at, disk, kind, offset, bytes] = [0, 2, 3, 4, 5].map(field);
        let kind = match kind.text() {
            b"Read" | b"read" => Kind::Read,
            b"Write" | b"write" => Kind::Write,
            _ => return Err(kind.wrong("Read or Write")),
        };
        Ok(Some(Record {
            at: at.time(TICK_NS)?,
            kind,
            offset: offset.number()?,
            bytes: bytes.bytes()?,
            device: disk.device()?,
        }))
    }

    /// Takes the order of the columns from a header.
    fn begin(&mut self, header: &[u8]) -> Result<(), Fault> {
        let columns: Vec<Option<usize>> = by_comma(header).map(column).collect();
        let has = |place: usize| columns.contains(&Some(place));
        if (0..LATENCY).all(|place| place == HOST || has(place)) {
            let last = columns.iter().rposition(|column| column.is_some_and(|place| place < LATENCY));
            self.least = last.map_or(LATENCY, |last| last + 1);
            self.columns = columns;
            return Ok(());
        }
        // Some columns have other names: those with known names tell that the order is the usual one.
        if columns.iter().enumerate().all(|(place, column)| column.is_none_or(|usual| usual == place)) {
            *self = Self::default();
            return Ok(());
        }
        // No line can be read in an order that is not known.
        self.least = usize::MAX;
        Err(Field::new("the header", header).wrong("names of columns: Timestamp, DiskNumber, Type, Offset and Size"))
    }
}

/// The place in [`COLUMNS`] of the column that a header calls so.
fn column(name: &[u8]) -> Option<usize> {
    let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_lowercase);
    match &letters.collect::<Vec<u8>>()[..] {
        b"timestamp" => Some(0),
        b"hostname" | b"host" => Some(HOST),
        b"disknumber" | b"disk" => Some(2),
        b"type" => Some(3),
        b"offset" => Some(4),
        b"size" => Some(5),
        b"responsetime" | b"latency" => Some(LATENCY),
        _ => None,
    }
}
