//! The requests of a block as columns.
//!
//! The columns are: a number for each request in a dictionary of the block's combinations of kind, flags, outcome, tenant, client
//! and volume; the time since the previous completion; queue latency; device latency; length; distance from the end of the
//! volume's previous request. Offsets and lengths are in units of the largest power of two that divides all of the block.

use std::collections::HashMap;

use evenkeel_wire::{Input, put, unzigzag, zigzag};

use crate::column::{column, put_column};
use crate::request::{Kind, Outcome, Request};

/// Columns of the dictionary: kind and flags, outcome, tenant, client, volume.
const FIELDS: usize = 5;
/// The place of the volume among them.
const VOLUME: usize = 4;
/// Flags beside the kind, which takes the three lowest bits.
const DURABLE: u64 = 1 << 3;
const RETRIED: u64 = 1 << 4;
/// Codes of outcomes. The code of an error is its number and [`FAILED`].
const DONE: u64 = 0;
const CANCELLED: u64 = 1;
const FAILED: u64 = 1;

/// The fields of a request that are the same in many others.
type Combination = [u64; FIELDS];

fn combination(request: &Request) -> Combination {
    let flags = [(request.durable, DURABLE), (request.retried, RETRIED)];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum::<u64>();
    let outcome = match request.outcome {
        Outcome::Done => DONE,
        Outcome::Cancelled => CANCELLED,
        Outcome::Failed(error) => FAILED + u64::from(error),
    };
    [
        u64::from(request.kind as u8) | flags,
        outcome,
        u64::from(request.tenant),
        u64::from(request.client),
        u64::from(request.volume),
    ]
}

/// A request with these fields, and without times, offset and length; `None` if one is out of range.
fn template(fields: &Combination) -> Option<Request> {
    let [flags, outcome, tenant, client, volume] = *fields;
    if flags >= RETRIED << 1 {
        return None;
    }
    let kind = match flags & (DURABLE - 1) {
        0 => Kind::Read,
        1 => Kind::Write,
        2 => Kind::Flush,
        3 => Kind::Trim,
        4 => Kind::Zero,
        5 => Kind::Other,
        _ => return None,
    };
    let outcome = match outcome {
        DONE => Outcome::Done,
        CANCELLED => Outcome::Cancelled,
        error => Outcome::Failed(u16::try_from(error - FAILED).ok()?),
    };
    Some(Request {
        arrival_ns: 0,
        queue_ns: 0,
        device_ns: 0,
        tenant: u32::try_from(tenant).ok()?,
        client: u32::try_from(client).ok()?,
        volume: u32::try_from(volume).ok()?,
        kind,
        durable: flags & DURABLE != 0,
        retried: flags & RETRIED != 0,
        offset: 0,
        length: 0,
        outcome,
    })
}

/// For each combination the number of its volume, in the order of first appearance.
fn volumes(combinations: &[Combination]) -> Vec<usize> {
    let mut numbers = HashMap::new();
    let number = |fields: &Combination| {
        let next = numbers.len();
        *numbers.entry(fields[VOLUME]).or_insert(next)
    };
    combinations.iter().map(number).collect()
}

/// Time of completion. It does not overflow for a request that can be recorded.
fn completed(request: &Request) -> u64 {
    request.arrival_ns.wrapping_add(request.queue_ns).wrapping_add(request.device_ns)
}

/// Turns requests into bytes. It holds only memory to use again.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    numbers: HashMap<Combination, u64>,
    combinations: Vec<Combination>,
    /// Numbers of the requests' combinations.
    chosen: Vec<u64>,
    column: Vec<u64>,
}

impl Encoder {
    /// Appends the requests of a block; nothing if there are none.
    pub(crate) fn encode(&mut self, requests: &[Request], out: &mut Vec<u8>) {
        let Some(first) = requests.first() else { return };
        let bits = requests.iter().fold(0_u64, |bits, request| bits | request.offset | request.length);
        let unit = if bits == 0 { 0 } else { bits.trailing_zeros() };
        out.push(unit as u8);
        self.numbers.clear();
        self.combinations.clear();
        self.chosen.clear();
        for request in requests {
            let fields = combination(request);
            let next = self.combinations.len() as u64;
            let number = *self.numbers.entry(fields).or_insert(next);
            if number == next {
                self.combinations.push(fields);
            }
            self.chosen.push(number);
        }
        put(out, self.combinations.len() as u64);
        for field in 0..FIELDS {
            put_column(out, &mut self.column, self.combinations.iter().map(|fields| fields[field]));
        }
        put_column(out, &mut self.column, self.chosen.iter().copied());
        let mut before = completed(first);
        put(out, before);
        let steps = requests.iter().map(|request| {
            let step = completed(request).wrapping_sub(before);
            before = completed(request);
            zigzag(step as i64)
        });
        put_column(out, &mut self.column, steps);
        put_column(out, &mut self.column, requests.iter().map(|request| request.queue_ns));
        put_column(out, &mut self.column, requests.iter().map(|request| request.device_ns));
        put_column(out, &mut self.column, requests.iter().map(|request| request.length >> unit));
        let volumes = volumes(&self.combinations);
        let mut ends = vec![0_u64; volumes.len()];
        let distances = requests.iter().zip(&self.chosen).map(|(request, &number)| {
            let end = &mut ends[volumes[number as usize]];
            let (offset, length) = (request.offset >> unit, request.length >> unit);
            let distance = offset.wrapping_sub(*end);
            *end = offset.wrapping_add(length);
            zigzag(distance as i64)
        });
        put_column(out, &mut self.column, distances);
    }
}

/// Reads the `count` requests of a block.
pub(crate) fn requests(input: &mut Input<'_>, count: usize) -> Option<Vec<Request>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let unit = u32::from(input.byte()?);
    if unit >= u64::BITS {
        return None;
    }
    let most = u64::MAX >> unit;
    let known = input.count(count)?;
    let mut combinations: Vec<Combination> = vec![[0; FIELDS]; known];
    for field in 0..FIELDS {
        for (fields, value) in combinations.iter_mut().zip(column(input, known)?) {
            fields[field] = value;
        }
    }
    let templates = combinations.iter().map(template).collect::<Option<Vec<Request>>>()?;
    let volumes = volumes(&combinations);
    let chosen = column(input, count)?;
    let mut before = input.number()?;
    let (steps, queue, device) = (column(input, count)?, column(input, count)?, column(input, count)?);
    let (lengths, distances) = (column(input, count)?, column(input, count)?);
    let mut ends = vec![0_u64; known];
    let mut requests = Vec::with_capacity(count);
    for n in 0..count {
        let number = usize::try_from(chosen[n]).ok()?;
        let mut request = *templates.get(number)?;
        before = before.wrapping_add(unzigzag(steps[n]) as u64);
        request.queue_ns = queue[n];
        request.device_ns = device[n];
        request.arrival_ns = before.checked_sub(device[n])?.checked_sub(queue[n])?;
        let end = &mut ends[volumes[number]];
        let offset = end.wrapping_add(unzigzag(distances[n]) as u64);
        if offset > most || lengths[n] > most {
            return None;
        }
        request.offset = offset << unit;
        request.length = lengths[n] << unit;
        *end = offset.wrapping_add(lengths[n]);
        requests.push(request);
    }
    Some(requests)
}
