//! `evenkeel trace convert`: a recording in another format, or with scrambled offsets and names.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use evenkeel_flight::{Item, Recording, Request, Scrambler, Table, Writer, to_blkparse, to_fio, to_fio_2, to_msr};
use evenkeel_policy::figures::counted;

use super::{MOST_REQUESTS, Part};
use crate::{output, record};

/// A format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A recording, as of `evenkeel record`
    Evenkeel,
    /// An iolog of fio, version 3, which fio reads from 3.31 on
    Fio,
    /// An iolog of fio, version 2, with waits of at least 100 µs
    #[value(name = "fio-2")]
    Fio2,
    /// The text of blkparse
    Blkparse,
    /// CSV as of the MSR Cambridge traces
    Msr,
}

/// Arguments of `trace convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording, or a trace of another program: fio iolog, blkparse text, MSR Cambridge CSV, SPC, MQSim
    file: PathBuf,

    /// The file to write; a new one is readable by its owner alone
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Format of the file to write
    #[arg(long, value_enum, default_value = "evenkeel", value_name = "FORMAT")]
    to: Format,

    /// Scramble offsets and names with the key in this file, and leave out the policy. Locality is kept; the same key gives the
    /// same names
    #[arg(long, value_name = "KEYFILE")]
    anonymise: Option<PathBuf>,

    #[command(flatten)]
    part: Part,
}

/// Converts a recording.
///
/// # Errors
/// A file that cannot be read or written, or a key that is too short or too long.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    super::ensure_apart(&args.file, &args.output)?;
    if let Some(key) = &args.anonymise {
        super::ensure_apart(key, &args.output)?;
    }
    // In the form that `evenkeel record` sends, so that both scramble in the same way.
    let key = args.anonymise.as_deref().map(record::key).transpose()?;
    let mut recording = super::open(&args.file, &args.part, MOST_REQUESTS)?;
    if let Some(key) = &key {
        anonymise(&mut recording, &Scrambler::new(key.as_bytes()));
    }
    super::warn_of_loss(&recording, &args.file);
    let all = recording.requests.len() as u64;
    let repeated = recording.requests.iter().filter(|request| request.retried).count() as u64;
    let cannot_write = || format!("cannot write {}", args.output.display());
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&args.output);
    let mut out = BufWriter::new(file.with_context(cannot_write)?);
    let written = match args.to {
        Format::Evenkeel => write(recording, &mut out),
        Format::Fio => to_fio(&recording, &mut out),
        Format::Fio2 => to_fio_2(&recording, &mut out),
        Format::Blkparse => to_blkparse(&recording, &mut out),
        Format::Msr => to_msr(&recording, &mut out),
    };
    let written = written.and_then(|count| out.flush().map(|()| count)).with_context(cannot_write)?;
    if let Some(left_out) = args.to.left_out(all - written, repeated) {
        output::complain(&format!("evenkeel: warning: {left_out}\n"));
    }
    output::print(&format!("{} written to {}\n", counted(written, "request"), args.output.display()))
}

impl Format {
    /// The warning that the file written lacks so many `requests` of the recording, `repeated` of them repetitions; `None` if it
    /// has all.
    fn left_out(self, requests: u64, repeated: u64) -> Option<String> {
        let of_them = if repeated > 0 { format!(", {repeated} of them repetitions") } else { String::new() };
        let requests = (requests > 0).then(|| counted(requests, "request"))?;
        Some(format!("the file written lacks {requests} of the recording{of_them}: {}", self.lacks()))
    }

    /// The reason why the format leaves requests out.
    fn lacks(self) -> &'static str {
        match self {
            Self::Evenkeel => "a recording has all kinds of requests",
            Self::Blkparse => {
                "the format can only hold first attempts at reads, writes, flushes and trims, and all but flushes need \
                 a length, which trims from traces of other programs do not have"
            }
            Self::Fio | Self::Fio2 => {
                "the format can only hold first attempts at reads, writes, flushes and trims, none cancelled or \
                 refused, and all but flushes need a length, which trims from traces of other programs do not have"
            }
            Self::Msr => {
                "the format can only hold first attempts at reads and writes with a length, none of them cancelled or \
                 refused; the formats fio and blkparse hold more kinds of requests"
            }
        }
    }
}

/// Scrambles the offsets and names of a recording, and removes its policy, which has names.
fn anonymise(recording: &mut Recording, scrambler: &Scrambler) {
    let volumes = recording.names.iter().filter(|name| name.table == Table::Volume);
    let bytes: HashMap<u32, u64> = volumes.map(|name| (name.number, name.bytes)).collect();
    for request in &mut recording.requests {
        let volume_bytes = bytes.get(&request.volume).copied().unwrap_or(0);
        let (offset, length) = (request.offset, request.length);
        request.offset = scrambler.offset(request.volume, volume_bytes, offset);
        if offset.saturating_add(length) <= volume_bytes {
            // It may have crossed the end of an extent that is the last one now.
            request.offset = request.offset.min(volume_bytes - length);
        }
    }
    for name in &mut recording.names {
        *name = scrambler.entry(name);
    }
    recording.head.policy.clear();
    recording.head.anonymised = true;
}

/// Writes a recording in its own format, and returns the number of its requests.
fn write(mut recording: Recording, out: &mut impl Write) -> io::Result<u64> {
    let completion =
        |request: &Request| request.arrival_ns.saturating_add(request.queue_ns).saturating_add(request.device_ns);
    recording.requests.sort_by_key(completion);
    let end_ns = recording.requests.last().map_or(0, completion);
    let mut writer = Writer::new(out, &recording.head)?;
    let count = recording.requests.len() as u64;
    for name in recording.names {
        writer.write(&Item::Name(name))?;
    }
    for request in recording.requests {
        writer.write(&Item::Request(request))?;
    }
    if recording.lost > 0 {
        writer.write(&Item::Lost { requests: recording.lost, from_ns: 0, to_ns: end_ns })?;
    }
    writer.finish()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use evenkeel_flight::{Head, Name};

    use super::*;
    use crate::folder::Folder;
    use crate::output::Usage;

    const MSR: &str = "128166372000000000,web,0,Read,1310720,8192,703\n128166372000012345,web,1,Write,4096,512,99\n";

    /// Runs `trace convert` on the MSR trace, and returns the file written.
    fn converted(to: Format, key: Option<&str>) -> anyhow::Result<Recording> {
        let folder = Folder::new();
        let (file, output) = (folder.file("a.csv", MSR), folder.join("out"));
        let anonymise = key.map(|key| folder.file("key", key));
        let args = Args { file, output: output.clone(), to, anonymise, part: Part::default() };
        run(&args).and_then(|()| super::super::open(&output, &Part::default(), MOST_REQUESTS))
    }

    #[test]
    fn every_format_keeps_kinds_times_and_offsets() {
        let facts = |recording: &Recording| -> Vec<_> {
            let requests = recording.requests.iter();
            // Of fio and blkparse the times are whole microseconds.
            requests.map(|r| (r.arrival_ns / 1000, r.kind, r.offset, r.length)).collect()
        };
        let own = converted(Format::Evenkeel, None).expect("a recording");
        assert_eq!((own.head.source.as_str(), own.complete, own.names.len()), ("msr", true, 6));
        assert_eq!(own.head.started_unix_ns, 1_172_163_600_000_000_000);
        for to in [Format::Fio, Format::Blkparse, Format::Msr] {
            let other = converted(to, None).expect("a trace");
            assert_eq!(facts(&other), facts(&own), "{to:?}");
        }
        // Without waits of less than 100 us.
        let shape = |recording: &Recording| -> Vec<_> {
            recording.requests.iter().map(|r| (r.kind, r.offset, r.length)).collect()
        };
        assert_eq!(shape(&converted(Format::Fio2, None).expect("a trace")), shape(&own));
    }

    #[test]
    fn repetitions_are_left_out_of_other_formats_and_counted() {
        let mut writer = Writer::new(Vec::new(), &Head::default()).expect("a head");
        for n in 0..4_u64 {
            let request = Request { arrival_ns: n << 20, device_ns: 9_000, length: 4_096, ..Request::default() };
            writer.write(&Item::Request(Request { retried: n == 2, ..request })).expect("written");
        }
        let folder = Folder::new();
        let file = folder.file("a.rec", writer.finish().expect("written"));
        let requests = |to| {
            let output = folder.join("out");
            let args = Args { file: file.clone(), output: output.clone(), to, anonymise: None, part: Part::default() };
            run(&args).expect("written");
            super::super::open(&output, &Part::default(), MOST_REQUESTS).expect("a trace").requests.len()
        };
        let all = [Format::Evenkeel, Format::Fio, Format::Fio2, Format::Blkparse, Format::Msr];
        assert_eq!(all.map(requests), [4, 3, 3, 3, 3]);
        let warning = Format::Msr.left_out(3, 1).expect("a warning");
        let lacks = "the file written lacks 3 requests of the recording, 1 of them repetitions: the format can only \
                     hold";
        assert!(warning.starts_with(lacks), "{warning}");
        assert!(Format::Fio.left_out(1, 0).is_some_and(|warning| !warning.contains("repetitions")));
        assert_eq!(Format::Evenkeel.left_out(0, 1), None);
    }

    #[test]
    fn latencies_of_msr_are_kept_where_the_format_has_them() {
        let latencies = |recording: &Recording| -> Vec<u64> {
            recording.requests.iter().map(|request| request.device_ns).collect()
        };
        for to in [Format::Evenkeel, Format::Msr, Format::Blkparse] {
            let written = converted(to, None).expect("a trace");
            assert_eq!(latencies(&written), [70_300, 9_900], "{to:?}");
        }
    }

    #[test]
    fn a_key_scrambles_names_and_offsets_and_keeps_the_rest() {
        let plain = converted(Format::Evenkeel, None).expect("a recording");
        let other = converted(Format::Evenkeel, Some("0123456789abcdef")).expect("a recording");
        assert!(other.head.anonymised && !plain.head.anonymised);
        assert!(other.names.iter().all(|name| !name.name.contains("device")), "{:?}", other.names);
        // As the server scrambles, which gets the key in hexadecimal digits.
        let scrambler = Scrambler::new(b"30313233343536373839616263646566");
        assert_eq!(other.names, plain.names.iter().map(|name| scrambler.entry(name)).collect::<Vec<_>>());
        let shape = |recording: &Recording| -> Vec<_> {
            recording.requests.iter().map(|r| (r.arrival_ns, r.kind, r.length, r.volume)).collect()
        };
        assert_eq!(shape(&other), shape(&plain));
        let error = converted(Format::Evenkeel, Some("short")).expect_err("refused");
        assert!(error.is::<Usage>() && error.to_string().contains("has 5 bytes"), "{error}");
    }

    #[test]
    fn scrambled_requests_stay_in_their_volumes() {
        // Each crosses the end of an extent; the last extent of a volume has none.
        let bytes = 4 << 20;
        let name = |number| Name { table: Table::Volume, number, name: "v".into(), pool: String::new(), bytes };
        let request = |volume: u32, extent: u64| Request {
            volume,
            offset: ((extent + 1) << 20) - 4096,
            length: 8192,
            ..Request::default()
        };
        let volumes = 0..32_u32;
        let names = volumes.clone().map(name).collect();
        let requests = volumes.flat_map(|volume| (0..3).map(move |extent| request(volume, extent))).collect();
        let mut recording = Recording { head: Head::default(), names, requests, lost: 0, complete: true };
        anonymise(&mut recording, &Scrambler::new(b"key"));
        assert!(recording.requests.iter().all(|request| request.offset + request.length <= bytes));
    }

    #[test]
    fn a_key_is_not_written_over() {
        let folder = Folder::new();
        let (file, key) = (folder.file("a.csv", MSR), folder.file("key", "0123456789abcdef"));
        let (to, part) = (Format::Evenkeel, Part::default());
        let args = Args { file, output: key.clone(), to, anonymise: Some(key.clone()), part };
        let error = run(&args).expect_err("refused");
        assert!(error.is::<Usage>(), "{error}");
        assert_eq!(std::fs::read_to_string(&key).expect("text"), "0123456789abcdef");
    }

    #[test]
    fn a_trace_is_not_written_over_itself() {
        let folder = Folder::new();
        let file = folder.file("a.csv", MSR);
        let (to, part) = (Format::Fio, Part::default());
        let args = Args { file: file.clone(), output: file.clone(), to, anonymise: None, part };
        let error = run(&args).expect_err("refused");
        assert!(error.is::<Usage>(), "{error}");
        assert_eq!(std::fs::read_to_string(&file).expect("text"), MSR);
    }
}
