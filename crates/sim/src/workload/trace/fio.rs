//! Parser of fio's iolog, versions 2 (requests and waits) and 3 (requests with their times).

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::Record;
use super::error::Fault;
use super::fields::{Field, Names, by_blank, take};

const TICK_NS: u64 = 1000;

/// The parser's state, set by the lines read so far.
#[derive(Debug, Default)]
pub(super) struct State {
    version: Option<Version>,
    files: Names,
    /// The sum of the waits read so far; used with version 2.
    waited: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    Two,
    Three,
}

impl State {
    /// Parses one line: `Some` for a request, `None` for the first line, a wait, or adding, opening and closing a file.
    pub(super) fn parse(&mut self, line: &[u8]) -> Result<Option<Record>, Fault> {
        let Some(version) = self.version else {
            self.version = Some(header(line)?);
            return Ok(None);
        };
        let mut fields = by_blank(line);
        let (time, layout) = match version {
            Version::Two => (None, "file action, or file action offset length"),
            Version::Three => {
                let layout = "time file action, or time file action offset length";
                let [time] = take(&mut fields, ["time"], layout)?;
                (Some(time.time(TICK_NS)?), layout)
            }
        };
        let [file, action] = take(&mut fields, ["file", "action"], layout)?;
        let kind = match action.text() {
            b"add" | b"open" | b"close" => {
                self.files.number(file.text())?;
                return Ok(None);
            }
            b"read" => Kind::Read,
            b"write" => Kind::Write,
            b"sync" | b"datasync" | b"sync_file_range" => Kind::Flush,
            b"trim" => Kind::Meta,
            b"wait" if time.is_none() => {
                let [wait] = take(&mut fields, ["wait"], "file wait microseconds")?;
                self.waited = self.waited + wait.time(TICK_NS)?.since(Instant::ZERO);
                return Ok(None);
            }
            _ => return Err(action.wrong("add, open, close, read, write, sync, datasync, trim, or (version 2) wait")),
        };
        let (offset, bytes) = match kind {
            Kind::Flush => (0, 0),
            Kind::Read | Kind::Write | Kind::Meta => {
                let [offset, length]: [Field<'_>; 2] = take(&mut fields, ["offset", "length"], layout)?;
                let bytes = if kind == Kind::Meta { length.number().map(|_| 0)? } else { length.bytes()? };
                (offset.number()?, bytes)
            }
        };
        let device = self.files.number(file.text())?;
        Ok(Some(Record { at: time.unwrap_or(Instant::ZERO + self.waited), kind, offset, bytes, device }))
    }
}

fn header(line: &[u8]) -> Result<Version, Fault> {
    match line {
        b"fio version 2 iolog" => Ok(Version::Two),
        b"fio version 3 iolog" => Ok(Version::Three),
        _ => {
            let start = Field::new("the first line", line);
            Err(start.wrong("\"fio version 2 iolog\" or \"fio version 3 iolog\""))
        }
    }
}
