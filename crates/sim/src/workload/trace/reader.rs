//! The reader of traces: parses lines into records.

use std::collections::VecDeque;
use std::io::BufRead;

use evenkeel_control::Duration;

use super::error::{Fault, TraceError};
use super::lines::{self, Line};
use super::{BadLines, Completion, Format, Options, Record, blkparse, fio, mqsim, msr, spc};

/// Number of lines at the start of a trace that are examined to detect its format.
const PROBED_LINES: usize = 32;

/// Reads a trace line by line, with memory that does not grow with the trace's length.
///
/// The reader is an iterator over records and ends after an error. With [`BadLines::Skip`] a bad line is no error, but is
/// counted, see [`Reader::skipped`].
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    file: String,
    options: Options,
    parser: Option<Parser>,
    line: Vec<u8>,
    /// Lines that were read to detect the format and are still to be parsed.
    probed: VecDeque<(Line, Vec<u8>)>,
    /// Number of lines parsed so far.
    number: u64,
    /// Number of bad lines left out so far.
    skipped: u64,
    /// The error of the first bad line left out.
    first_skipped: Option<TraceError>,
    /// True after the last line of the trace or an error.
    done: bool,
    /// The error, until it is returned.
    failed: Option<TraceError>,
}

/// The parser of a format, with the state set by the lines read so far.
#[derive(Debug)]
struct Parser {
    format: Format,
    msr: msr::State,
    fio: fio::State,
    blkparse: blkparse::State,
}

impl Parser {
    fn new(format: Format) -> Self {
        let (msr, fio, blkparse) = (msr::State::default(), fio::State::default(), blkparse::State::default());
        Self { format, msr, fio, blkparse }
    }

    fn parse(&mut self, line: &[u8], options: &Options) -> Result<Option<Record>, Fault> {
        match self.format {
            Format::Msr => self.msr.parse(line),
            Format::Spc => spc::parse(line),
            Format::Mqsim => mqsim::parse(line),
            Format::Fio => self.fio.parse(line),
            Format::Blkparse => self.blkparse.parse(line, options.event),
        }
    }
}

impl<R: BufRead> Reader<R> {
    /// A reader of the trace `input`. `file` is the trace's name in errors.
    pub fn new(input: R, file: impl Into<String>, options: Options) -> Self {
        Self {
            input,
            file: file.into(),
            options,
            parser: None,
            line: Vec::new(),
            probed: VecDeque::new(),
            number: 0,
            skipped: 0,
            first_skipped: None,
            done: false,
            failed: None,
        }
    }

    /// The format of the trace; `None` before the first record was read, unless the options name the format.
    pub fn format(&self) -> Option<Format> {
        self.parser.as_ref().map(|parser| parser.format)
    }

    /// The completion of the newest record, which only traces in [`Format::Msr`] and [`Format::Blkparse`] may state.
    pub fn completion(&self) -> Completion {
        let Some(parser) = &self.parser else { return Completion::Unstated };
        match parser.format {
            Format::Msr => {
                let stated = |device| Completion::Stated { queue: Duration::ZERO, device, error: 0 };
                parser.msr.latency(lines::text(&self.line)).map_or(Completion::Unstated, stated)
            }
            Format::Blkparse => parser.blkparse.completion(),
            Format::Spc | Format::Mqsim | Format::Fio => Completion::Unstated,
        }
    }

    /// Number of bad lines left out so far, and the error of the first one.
    pub fn skipped(&self) -> (u64, Option<&TraceError>) {
        (self.skipped, self.first_skipped.as_ref())
    }

    /// The next record; `None` at the end of the trace.
    fn advance(&mut self) -> Result<Option<Record>, Fault> {
        if self.parser.is_none() {
            let format = match self.options.format {
                Some(format) => Some(format),
                None => self.probe()?,
            };
            match format {
                Some(format) => self.parser = Some(Parser::new(format)),
                None => return Ok(None),
            }
        }
        loop {
            let what = match self.probed.pop_front() {
                Some((what, line)) => {
                    self.line = line;
                    what
                }
                None => lines::read(&mut self.input, &mut self.line)?,
            };
            self.number += 1;
            let outcome = match (what, lines::text(&self.line), &mut self.parser) {
                (Line::End, _, _) | (_, _, None) => return Ok(None),
                (Line::TooLong, _, _) => Err(Fault::TooLong),
                (Line::Whole, [], _) => continue,
                (Line::Whole, line, Some(parser)) => parser.parse(line, &self.options),
            };
            match outcome {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => {}
                Err(fault) if self.options.bad_lines == BadLines::Stop => return Err(fault),
                Err(fault) => {
                    self.skipped += 1;
                    if self.first_skipped.is_none() {
                        self.first_skipped = Some(self.at_this_line(fault));
                    }
                }
            }
        }
    }

    /// Detects the format: the format that fits the first of the probed lines that fits any format. `None` for a trace without
    /// lines.
    fn probe(&mut self) -> Result<Option<Format>, Fault> {
        let mut empty = true;
        while self.probed.len() < PROBED_LINES {
            let mut line = Vec::new();
            let what = lines::read(&mut self.input, &mut line)?;
            if what == Line::End {
                break;
            }
            let text = lines::text(&line);
            let fits = |format: &Format| Parser::new(*format).parse(text, &self.options).is_ok();
            let found = match what {
                Line::Whole if !text.is_empty() => Format::ALL.into_iter().find(fits),
                _ => None,
            };
            empty &= text.is_empty();
            self.probed.push_back((what, line));
            if found.is_some() {
                return Ok(found);
            }
        }
        if empty {
            return Ok(None);
        }
        self.number = 1;
        Err(Fault::UnknownFormat)
    }

    fn at_this_line(&self, fault: Fault) -> TraceError {
        TraceError { file: self.file.clone(), line: self.number.max(1), fault }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.done {
            match self.advance() {
                Ok(Some(record)) => return Some(Ok(record)),
                Ok(None) => {}
                Err(fault) => self.failed = Some(self.at_this_line(fault)),
            }
            self.done = true;
        }
        // Requests of earlier lines may still wait for their completions.
        let rest = self.parser.as_mut().and_then(|parser| parser.blkparse.rest());
        rest.map(Ok).or_else(|| self.failed.take().map(Err))
    }
}
