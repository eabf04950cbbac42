//! Blocks as bytes: a step of time with its samples, or the marks of a second.
//!
//! A payload is: steps since the end of the previous block (of the first: since the start of the file); seconds recorded;
//! number of new names, and each as three texts; number of samples, and each as the distance of its name's number from the
//! one that follows the previous sample's, a bit for each figure that differs from its prediction, and these differences;
//! number of marks, and each as its distance back from the start of the block in seconds, its kind, and four texts.

use std::array;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_wire::{Input, put, put_text, unzigzag, zigzag};

use crate::fields::{FIELDS, fields, figures, predicted};
use crate::figures::{Figures, Sample, Series, Slice};
use crate::mark::{Event, Mark};
use crate::resolution::Stream;

/// Number of names in a file from which on a new file is begun.
pub(crate) const MAX_NAMES: usize = 1 << 16;

const DECISION: u64 = 0;
const TROUBLE_BEGINS: u64 = 1;
const TROUBLE_ENDS: u64 = 2;
const PROGRAM_STARTS: u64 = 3;
const PROGRAM_STOPS: u64 = 4;

/// A block of a file. Only the stream of marks has marks, and only the others have samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) slice: Slice,
    pub(crate) marks: Vec<Mark>,
}

impl From<Slice> for Block {
    fn from(slice: Slice) -> Self {
        Self { slice, marks: Vec::new() }
    }
}

/// Turns the blocks of one file into payloads, or payloads into blocks. The state behind the same blocks is the same for both,
/// so that a file that was read can be continued.
#[derive(Debug)]
pub(crate) struct Codec {
    /// Length of a block, in seconds.
    step: u64,
    /// End of the newest block, Unix time in seconds.
    end: u64,
    /// The series by number.
    pub(crate) names: Vec<Arc<Series>>,
    numbers: HashMap<Arc<Series>, usize>,
    /// Figures of the newest sample of each series.
    before: Vec<[u64; FIELDS]>,
}

impl Codec {
    /// The state at the start of a file whose first block begins at `start`, Unix time in seconds.
    pub(crate) fn new(stream: Stream, start: u64) -> Self {
        Self { step: stream.step, end: start, names: Vec::new(), numbers: HashMap::new(), before: Vec::new() }
    }

    /// Appends the payload of a block, which begins no sooner than its predecessor ends.
    pub(crate) fn encode(&mut self, Block { slice, marks }: &Block, out: &mut Vec<u8>) {
        put(out, slice.at.saturating_sub(self.end) / self.step);
        put(out, slice.recorded);
        let known = self.names.len();
        let numbers: Vec<usize> = slice.samples.iter().map(|sample| self.number(&sample.series)).collect();
        put(out, (self.names.len() - known) as u64);
        for series in &self.names[known..] {
            [&series.pool, &series.tenant, &series.device].into_iter().for_each(|name| put_text(out, name));
        }
        put(out, numbers.len() as u64);
        let mut expected = 0;
        for (number, sample) in numbers.into_iter().zip(&slice.samples) {
            put(out, zigzag(number as i64 - expected));
            expected = number as i64 + 1;
            let (now, before) = (fields(&sample.figures), &mut self.before[number]);
            let differences: [u64; FIELDS] = array::from_fn(|n| now[n].wrapping_sub(predicted(n, &now, before)));
            let changed = differences.iter().enumerate().filter(|(_, difference)| **difference != 0);
            put(out, changed.fold(0_u64, |bits, (n, _)| bits | (1_u64 << n)));
            for difference in differences.into_iter().filter(|difference| *difference != 0) {
                put(out, zigzag(difference as i64));
            }
            *before = now;
        }
        put(out, marks.len() as u64);
        for mark in marks {
            put(out, slice.at.saturating_sub(mark.at));
            let none = String::new();
            let (kind, texts) = match &mark.event {
                Event::Decision { pool, tenant, reason, sentence } => (DECISION, [pool, tenant, reason, sentence]),
                Event::Trouble { begins, level, kind, about, sentence } => {
                    (if *begins { TROUBLE_BEGINS } else { TROUBLE_ENDS }, [level, kind, about, sentence])
                }
                Event::Program { begins, name, version } => {
                    (if *begins { PROGRAM_STARTS } else { PROGRAM_STOPS }, [name, version, &none, &none])
                }
            };
            put(out, kind);
            texts.into_iter().for_each(|text| put_text(out, text));
        }
        self.end = slice.end();
    }

    /// The block of a payload; `None` if it is none, and then the state is of no further use.
    pub(crate) fn decode(&mut self, payload: &[u8]) -> Option<Block> {
        let mut input = Input::new(payload);
        let at = self.step.checked_mul(input.number()?)?.checked_add(self.end)?;
        self.end = at.checked_add(self.step)?;
        let recorded = input.number()?;
        // Three texts are three bytes at least.
        for _ in 0..input.items(3)? {
            let (pool, tenant, device) = (text(&mut input)?, text(&mut input)?, text(&mut input)?);
            self.add(Arc::new(Series { pool, tenant, device }));
        }
        if recorded == 0 || recorded > self.step {
            return None;
        }
        let mut samples = Vec::new();
        let mut expected = 0_i64;
        for _ in 0..input.items(2)? {
            let number = usize::try_from(expected.checked_add(unzigzag(input.number()?))?).ok()?;
            let figures = self.figures(number, &mut input)?;
            expected = number as i64 + 1;
            samples.push(Sample { series: Arc::clone(&self.names[number]), figures });
        }
        let mut marks = Vec::new();
        for _ in 0..input.items(6)? {
            marks.push(Mark { at: at.checked_sub(input.number()?)?, event: event(&mut input)? });
        }
        let slice = Slice { at, seconds: self.step, recorded, samples };
        input.is_empty().then_some(Block { slice, marks })
    }

    /// Reads the figures of a sample of series `number`.
    fn figures(&mut self, number: usize, input: &mut Input<'_>) -> Option<Figures> {
        let before = self.before.get_mut(number)?;
        let changed = input.number()?;
        if changed >> FIELDS != 0 {
            return None;
        }
        let mut now = [0; FIELDS];
        for n in 0..FIELDS {
            let difference = if (changed >> n) & 1 == 1 { unzigzag(input.number()?) as u64 } else { 0 };
            now[n] = predicted(n, &now, before).wrapping_add(difference);
        }
        *before = now;
        Some(figures(&now))
    }

    /// Adds a series; returns its number.
    fn add(&mut self, series: Arc<Series>) -> usize {
        let number = self.names.len();
        self.names.push(Arc::clone(&series));
        self.numbers.insert(series, number);
        self.before.push([0; FIELDS]);
        number
    }

    /// Number of a series, which is added if it is new.
    fn number(&mut self, series: &Arc<Series>) -> usize {
        match self.numbers.get(series) {
            Some(&number) => number,
            None => self.add(Arc::clone(series)),
        }
    }
}

/// Reads a text, which only the payload bounds.
fn text(input: &mut Input<'_>) -> Option<String> {
    input.text(usize::MAX)
}

/// Reads the event of a mark.
fn event(input: &mut Input<'_>) -> Option<Event> {
    let kind = input.number()?;
    let [first, second, third, sentence] = [text(input)?, text(input)?, text(input)?, text(input)?];
    let begins = matches!(kind, TROUBLE_BEGINS | PROGRAM_STARTS);
    match kind {
        DECISION => Some(Event::Decision { pool: first, tenant: second, reason: third, sentence }),
        TROUBLE_BEGINS | TROUBLE_ENDS => {
            Some(Event::Trouble { begins, level: first, kind: second, about: third, sentence })
        }
        PROGRAM_STARTS | PROGRAM_STOPS if third.is_empty() && sentence.is_empty() => {
            Some(Event::Program { begins, name: first, version: second })
        }
        _ => None,
    }
}
