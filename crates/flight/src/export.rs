//! Writes recordings in the formats of other tools.
//!
//! Requests are written in the order in which the recording has them: that of arrival. Names have `_` in place of blanks, commas
//! and brackets; a number without a name becomes `volume-7` or the like. Requests of no kind that the format knows are left out,
//! and so are reads, writes and trims without a length, and repetitions, which no format tells from first attempts. Only
//! blkparse text has cancelled and refused requests: in other formats they would look like requests that were carried out. Each
//! function returns the number of requests that it has written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, Write};

use crate::recording::Recording;
use crate::request::{Kind, Outcome, Request, Table};

/// Nanoseconds in a microsecond, the unit of fio's times.
const MICROSECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
/// Waits that fio skips, in microseconds.
const SHORT_WAIT_US: u64 = 100;
/// Nanoseconds in a tick, the unit of MSR's times.
const TICK: u64 = 100;
/// Ticks from the start of 1601, where MSR's times begin, to that of 1970.
const TICKS_BEFORE_1970: u64 = 116_444_736_000_000_000;
/// Major number of the devices in a blkparse text: that of NBD.
const MAJOR: u32 = 43;
const SECTOR: u64 = 512;

/// Writes an iolog of fio, version 3: requests with their times of arrival. fio reads it from 3.31 on.
///
/// A file stands for each volume. A trim and a write of zeroes become `trim`, a flush `sync`.
///
/// # Errors
/// The error of `out`.
pub fn to_fio(recording: &Recording, out: &mut impl Write) -> io::Result<u64> {
    let files = labels(recording, Table::Volume, |request| request.volume);
    writeln!(out, "fio version 3 iolog")?;
    for file in files.values() {
        writeln!(out, "0 {file} add\n0 {file} open")?;
    }
    let (mut at_us, mut written) = (0, 0);
    for request in &recording.requests {
        let Some((action, offset, length)) = fio_action(request) else { continue };
        let file = &files[&request.volume];
        at_us = request.arrival_ns / MICROSECOND;
        writeln!(out, "{at_us} {file} {action} {offset} {length}")?;
        written += 1;
    }
    for file in files.values() {
        writeln!(out, "{at_us} {file} close")?;
    }
    Ok(written)
}

/// Writes an iolog of fio, version 2: requests and waits, for versions of fio before 3.31. Otherwise it is as [`to_fio`].
///
/// fio skips waits of less than 100 us, so that shorter ones are added to the next.
///
/// # Errors
/// The error of `out`.
pub fn to_fio_2(recording: &Recording, out: &mut impl Write) -> io::Result<u64> {
    let files = labels(recording, Table::Volume, |request| request.volume);
    writeln!(out, "fio version 2 iolog")?;
    for file in files.values() {
        writeln!(out, "{file} add\n{file} open")?;
    }
    let (mut waited_us, mut written) = (0, 0);
    for request in &recording.requests {
        let Some((action, offset, length)) = fio_action(request) else { continue };
        let file = &files[&request.volume];
        let wait_us = (request.arrival_ns / MICROSECOND).saturating_sub(waited_us);
        if wait_us >= SHORT_WAIT_US {
            writeln!(out, "{file} wait {wait_us}")?;
            waited_us += wait_us;
        }
        writeln!(out, "{file} {action} {offset} {length}")?;
        written += 1;
    }
    for file in files.values() {
        writeln!(out, "{file} close")?;
    }
    Ok(written)
}

/// True if a format without outcomes has the request: it is no repetition, and it was carried out, if perhaps in vain.
fn is_plain(request: &Request) -> bool {
    let is_refused = matches!(request.outcome, Outcome::Failed(_)) && request.queue_ns == 0 && request.device_ns == 0;
    !request.retried && request.outcome != Outcome::Cancelled && !is_refused
}

/// Action, offset and length in an iolog; `None` if the request is left out.
fn fio_action(request: &Request) -> Option<(&'static str, u64, u64)> {
    if !is_plain(request) {
        return None;
    }
    let action = match request.kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Flush => return Some(("sync", 0, 0)),
        Kind::Trim | Kind::Zero => "trim",
        Kind::Other => return None,
    };
    (request.length > 0).then_some((action, request.offset, request.length))
}

/// Writes CSV as the traces of MSR Cambridge: time of arrival, host, disk, `Read` or `Write`, offset, size, latency.
///
/// The host is the tenant, the disk is the number of the volume. Times are in ticks of 100 ns, that of arrival since 1601.
/// Cancelled and refused requests are left out, as they have no latency.
///
/// # Errors
/// The error of `out`.
pub fn to_msr(recording: &Recording, out: &mut impl Write) -> io::Result<u64> {
    let hosts = labels(recording, Table::Tenant, |request| request.tenant);
    let mut written = 0;
    for request in &recording.requests {
        let kind = match request.kind {
            Kind::Read => "Read",
            Kind::Write => "Write",
            Kind::Flush | Kind::Trim | Kind::Zero | Kind::Other => continue,
        };
        if request.length == 0 || !is_plain(request) {
            continue;
        }
        let at = TICKS_BEFORE_1970 + recording.head.started_unix_ns.saturating_add(request.arrival_ns) / TICK;
        let latency = request.queue_ns.saturating_add(request.device_ns) / TICK;
        let (host, disk) = (&hosts[&request.tenant], request.volume);
        let (offset, length) = (request.offset, request.length);
        writeln!(out, "{at},{host},{disk},{kind},{offset},{length},{latency}")?;
        written += 1;
    }
    Ok(written)
}

/// Writes the default text output of blkparse: `Q` at arrival, `D` at admission, `C` at completion. It takes memory for all
/// events, 24 bytes for each.
///
/// The minor number of the device is that of the volume, the process is the tenant, its number that of the client. Requests are
/// rounded to sectors of 512 bytes. A trim and a write of zeroes become a discard (`D`), a flush has no sectors (`FWS`). A
/// cancelled request has no `D` and no `C`.
///
/// # Errors
/// The error of `out`.
pub fn to_blkparse(recording: &Recording, out: &mut impl Write) -> io::Result<u64> {
    let tenants = labels(recording, Table::Tenant, |request| request.tenant);
    let mut events: Vec<(u64, usize, char)> = Vec::new();
    let mut written = 0;
    for (number, request) in recording.requests.iter().enumerate() {
        if letters(request).is_none() {
            continue;
        }
        written += 1;
        events.push((request.arrival_ns, number, 'Q'));
        if request.outcome != Outcome::Cancelled {
            let admitted = request.arrival_ns.saturating_add(request.queue_ns);
            events.push((admitted, number, 'D'));
            events.push((admitted.saturating_add(request.device_ns), number, 'C'));
        }
    }
    // Events of a request stay in their order, because the sort is stable.
    events.sort_by_key(|event| event.0);
    for (sequence, (time, number, action)) in (1_u64..).zip(events) {
        let request = &recording.requests[number];
        let Some(rwbs) = letters(request) else { continue };
        let (volume, client, tenant) = (request.volume, request.client, &tenants[&request.tenant]);
        let (seconds, nanos) = (time / SECOND, time % SECOND);
        write!(out, "{MAJOR:>3},{volume:<3}  0 {sequence:>8} {seconds:>5}.{nanos:09} ")?;
        write!(out, "{client:>5} {action:>2} {rwbs:>3} ")?;
        let (sector, sectors) = sectors(request);
        let error = match request.outcome {
            Outcome::Failed(error) => error,
            Outcome::Done | Outcome::Cancelled => 0,
        };
        match (action, sectors) {
            ('C', 0) => writeln!(out, "{sector} [{error}]")?,
            ('C', _) => writeln!(out, "{sector} + {sectors} [{error}]")?,
            (_, 0) => writeln!(out, "[{tenant}]")?,
            _ => writeln!(out, "{sector} + {sectors} [{tenant}]")?,
        }
    }
    Ok(written)
}

/// The letters of the RWBS field; `None` if the request is left out.
fn letters(request: &Request) -> Option<&'static str> {
    match request.kind {
        _ if request.retried => None,
        Kind::Flush => Some("FWS"),
        Kind::Other => None,
        _ if request.length == 0 => None,
        Kind::Read => Some("R"),
        Kind::Write if request.durable => Some("WF"),
        Kind::Write => Some("W"),
        Kind::Trim | Kind::Zero => Some("D"),
    }
}

/// First sector and number of sectors.
fn sectors(request: &Request) -> (u64, u64) {
    if request.kind == Kind::Flush {
        return (0, 0);
    }
    (request.offset / SECTOR, request.length.saturating_add(request.offset % SECTOR).div_ceil(SECTOR))
}

/// For each number that the requests have, its name as a word that no other number has.
fn labels(recording: &Recording, table: Table, number: fn(&Request) -> u32) -> BTreeMap<u32, String> {
    let of_table = recording.names.iter().filter(|name| name.table == table);
    let names: HashMap<u32, &str> = of_table.map(|name| (name.number, name.name.as_str())).collect();
    let begin = match table {
        Table::Tenant => "tenant",
        Table::Client => "client",
        Table::Volume => "volume",
    };
    let numbers: BTreeSet<u32> = recording.requests.iter().map(number).collect();
    let (mut labels, mut taken) = (BTreeMap::new(), HashSet::new());
    for number in numbers {
        let mut label = match names.get(&number) {
            Some(name) if !name.is_empty() => word(name),
            _ => format!("{begin}-{number}"),
        };
        while !taken.insert(label.clone()) {
            label = format!("{label}-{number}");
        }
        labels.insert(number, label);
    }
    labels
}

/// A name as one word in all of these formats.
fn word(name: &str) -> String {
    let separates = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '[' | ']');
    name.chars().map(|c| if separates(c) { '_' } else { c }).collect()
}
