//! `evenkeel trace`: figures, plots and conversion of recordings, and of traces of other programs.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal as _, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use evenkeel_flight::statistics::{Statistics, Summary};
use evenkeel_flight::{Error, Head, Item, Reader, Recording, Request, Table};
use evenkeel_policy::config::DEFAULT_POOL;
use evenkeel_policy::figures::counted;
use evenkeel_policy::units::Duration as Length;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{self, Usage, printable};

mod convert;
mod foreign;
mod info;
mod plot;
pub(crate) mod sample;

use foreign::Foreign;

/// Time from the start of reading after which progress is shown.
const QUIET: Duration = Duration::from_secs(2);
/// The most requests of a recording in memory; they take some 7 GB.
const MOST_REQUESTS: usize = 100_000_000;
/// Requests of a recording in memory whatever the length of its file.
const USUAL_REQUESTS: usize = 1_000_000;
/// The most requests for each byte of a file, beyond [`USUAL_REQUESTS`]: a usual recording has some 0.1 for each byte, a file
/// that an attacker makes to exhaust memory may have 60.
const PER_BYTE: u64 = 8;
/// The length of a volume whose length is not recorded is its last byte used, rounded up to a multiple of this.
const VOLUME_UNIT: u64 = 1 << 20;

/// The part of a recording that is read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Part {
    /// Leave out requests that arrived within this time after the first recorded request
    #[arg(long, value_name = "TIME")]
    from: Option<Length>,

    /// Read only requests that arrived within this time after the begin or --from; only they take memory
    #[arg(long = "for", value_name = "TIME")]
    length: Option<Length>,
}

impl Part {
    /// The part's time, in nanoseconds since the first recorded request.
    fn window(&self) -> Range<u64> {
        let begin_ns = self.from.map_or(0, Length::as_nanos);
        begin_ns..self.length.map_or(u64::MAX, |length| begin_ns.saturating_add(length.as_nanos()))
    }
}

/// Commands of `evenkeel trace`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the figures of a recording by tenant: rates, sizes, latencies, working set
    ///
    /// Sequential: requests that begin where one of the last 32 of the volume ended. Working set: extents of 1 MiB that were read
    /// or written, estimated within 5 %. Burstiness: variance of the arrivals per 100 ms, divided by their mean; 1 for
    /// independent arrivals. In flight: from arrival to completion. Percentiles are rounded down by at most 1.6 %.
    Info(info::Args),
    /// Write a recording as one HTML page with plots by tenant
    Plot(plot::Args),
    /// Convert a recording to and from fio iolog, blkparse text and MSR CSV, or scramble its offsets and names
    ///
    /// Reads the recording, or the part of it that --from and --for choose, into memory: 64 bytes for each request, for blkparse
    /// text 24 more for each event.
    Convert(convert::Args),
}

/// Runs a command of `evenkeel trace`.
///
/// # Errors
/// A file that cannot be read or written.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Convert(args) => convert::run(args),
    }
}

/// Reads a part of a recording, or of a trace of another program, into memory. A trace of another program has a tenant, a client
/// and a volume for each of its devices. Only traces of MSR and texts of blkparse have latencies.
///
/// # Errors
/// A file that cannot be read, or a part of more than `most` requests, or of a million and more than 8 for each byte of the file,
/// or a part without requests of a file that has some.
pub(crate) fn open(path: &Path, part: &Part, most: usize) -> anyhow::Result<Recording> {
    let trace = Trace::open(path)?;
    let most = most_requests(trace.progress.length).min(most);
    let mut requests = Vec::new();
    let mut recording = scan(trace, part, None, |request| {
        ensure!(
            requests.len() < most,
            "{} has more than {most} requests, too many for its length or for memory: choose a part of it with \
             --from and --for, or use trace info",
            path.display()
        );
        requests.push(request);
        Ok(())
    })?;
    recording.requests = requests;
    arrange(&mut recording);
    Ok(recording)
}

/// Hands each request of a part of a trace to `keep`, or each of them that went to `pool`, and returns the recording without its
/// requests.
///
/// # Errors
/// A file that cannot be read, a part without requests of a file that has some, or an error of `keep`.
fn scan(
    mut trace: Trace,
    part: &Part,
    pool: Option<&str>,
    mut keep: impl FnMut(Request) -> anyhow::Result<()>,
) -> anyhow::Result<Recording> {
    let (window, mut first_ns, mut last_ns, mut is_empty) = (part.window(), None, 0, true);
    let head = trace.head().clone();
    // For each volume, true if its requests are wanted.
    let mut wanted: HashMap<u32, bool> = HashMap::new();
    let mut recording = Recording { head, names: Vec::new(), requests: Vec::new(), lost: 0, complete: false };
    while let Some(item) = trace.item()? {
        match item {
            Item::Name(name) => {
                if name.table == Table::Volume {
                    wanted.insert(name.number, is_pool(pool, &name.pool));
                }
                recording.names.push(name);
            }
            Item::Request(request) => {
                let since_ns = request.arrival_ns.saturating_sub(*first_ns.get_or_insert(request.arrival_ns));
                last_ns = since_ns.max(last_ns);
                if window.contains(&since_ns) {
                    is_empty = false;
                    let is_wanted = || wanted.get(&request.volume).copied().unwrap_or_else(|| is_pool(pool, ""));
                    if pool.is_none() || is_wanted() {
                        keep(request)?;
                    }
                }
            }
            Item::Lost { requests, from_ns, to_ns } => {
                let since_first = |at_ns: u64| at_ns.saturating_sub(first_ns.unwrap_or(from_ns));
                if since_first(from_ns) < window.end && since_first(to_ns) >= window.start {
                    recording.lost = recording.lost.saturating_add(requests);
                }
            }
        }
    }
    ensure!(
        first_ns.is_none() || !is_empty,
        "{} has no request in the part that --from and --for choose: all arrived within {} of the first; choose \
         another part",
        trace.path.display(),
        Length::from_secs(last_ns.div_ceil(1_000_000_000))
    );
    recording.complete = trace.is_complete();
    Ok(recording)
}

/// True if `pool` is the wanted pool, or none is wanted. An empty `pool`, of a recording that names no pools, stands for
/// [`DEFAULT_POOL`].
fn is_pool(wanted: Option<&str>, pool: &str) -> bool {
    let pool = if pool.is_empty() { DEFAULT_POOL } else { pool };
    wanted.is_none_or(|wanted| wanted == pool)
}

/// Sorts the requests of a recording by arrival, and measures its volumes.
fn arrange(recording: &mut Recording) {
    recording.requests.sort_by_key(|request| request.arrival_ns);
    measure_volumes(recording);
}

/// Warns if requests are missing in the recording that was read from `path`.
pub(crate) fn warn_of_loss(recording: &Recording, path: &Path) {
    if let Some(loss) = loss(recording) {
        output::complain(&format!("evenkeel: warning: {}: {loss}\n", path.display()));
    }
}

/// The reason why requests are missing in a recording; `None` if the recording is complete.
fn loss(recording: &Recording) -> Option<String> {
    let lost = counted(recording.lost, "request");
    let lost = (recording.lost > 0).then(|| format!("{lost} could not be recorded: the file lacks them"));
    let end = (!recording.complete).then(|| {
        let from = "the recording goes on, or it was cut off";
        format!("the file has no end mark: {from}, and this is its beginning alone")
    });
    let all: Vec<String> = lost.into_iter().chain(end).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The most requests in memory of a file with so many bytes.
fn most_requests(bytes: u64) -> usize {
    usize::try_from(bytes.saturating_mul(PER_BYTE)).unwrap_or(usize::MAX).clamp(USUAL_REQUESTS, MOST_REQUESTS)
}

/// Sets the length of each volume whose length is not recorded, from the requests.
fn measure_volumes(recording: &mut Recording) {
    let mut ends: HashMap<u32, u64> = HashMap::new();
    for request in &recording.requests {
        let end = ends.entry(request.volume).or_default();
        *end = (*end).max(request.offset.saturating_add(request.length));
    }
    let unknown = recording.names.iter_mut().filter(|name| name.table == Table::Volume && name.bytes == 0);
    for name in unknown {
        let end = ends.get(&name.number).copied().unwrap_or(0).max(1);
        name.bytes = end.checked_next_multiple_of(VOLUME_UNIT).unwrap_or(end);
    }
}

/// Checks that a command does not write over a file that it reads.
///
/// # Errors
/// When both paths are of the same file.
pub(crate) fn ensure_apart(input: &Path, output: &Path) -> anyhow::Result<()> {
    let is_same = match (input.canonicalize(), output.canonicalize()) {
        (Ok(input), Ok(output)) => input == output,
        _ => false,
    };
    ensure!(!is_same, Usage(format!("{} is the file to read: name another one to write", output.display())));
    Ok(())
}

/// A recording, or a trace of another program, that is read item by item in bounded memory. Progress is shown on standard error.
struct Trace {
    path: PathBuf,
    source: Source,
    progress: Progress,
    complete: bool,
}

enum Source {
    Recording(Box<Reader<Input>>),
    Foreign(Box<Foreign<Input>>),
}

/// A file whose bytes are counted as they are read.
type Input = BufReader<Counted>;

struct Counted {
    file: File,
    bytes: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

impl Trace {
    /// Opens the file, and reads its head or its first request.
    ///
    /// # Errors
    /// A file that cannot be read, or of a format that is not known.
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let cannot_read = || format!("cannot read {name}");
        let found = std::fs::metadata(path).with_context(cannot_read)?;
        ensure!(found.is_file(), "{name} is not a file: name a recording or a trace, unpacked and stored in a file");
        let bytes = Rc::new(Cell::new(0));
        let input = || -> anyhow::Result<Input> {
            bytes.set(0);
            let file = File::open(path).with_context(cannot_read)?;
            Ok(BufReader::with_capacity(1 << 16, Counted { file, bytes: Rc::clone(&bytes) }))
        };
        let source = match Reader::new(input()?) {
            Ok(reader) => Source::Recording(Box::new(reader)),
            Err(Error::NotARecording) => Source::Foreign(Box::new(Foreign::new(input, &name)?)),
            Err(error) => return Err(error).with_context(cannot_read),
        };
        let progress = Progress { begun: Instant::now(), items: 0, length: found.len(), bytes, bar: None };
        Ok(Self { path: path.to_owned(), source, progress, complete: false })
    }

    /// Opens a file that was read before, as [`Trace::open`] does, without repeating the warnings about its content.
    ///
    /// # Errors
    /// As of [`Trace::open`].
    fn open_again(path: &Path) -> anyhow::Result<Self> {
        let mut trace = Self::open(path)?;
        if let Source::Foreign(foreign) = &mut trace.source {
            foreign.quiet = true;
        }
        Ok(trace)
    }

    fn head(&self) -> &Head {
        match &self.source {
            Source::Recording(reader) => reader.head(),
            Source::Foreign(trace) => trace.head(),
        }
    }

    /// The next item; `None` at the end. Names are without control characters.
    ///
    /// # Errors
    /// A file that cannot be read, or is damaged.
    fn item(&mut self) -> anyhow::Result<Option<Item>> {
        self.progress.tick();
        let mut item = match &mut self.source {
            Source::Recording(reader) => {
                reader.next().with_context(|| format!("cannot read {}", self.path.display()))?
            }
            Source::Foreign(trace) => trace.item()?,
        };
        if let Some(Item::Name(name)) = &mut item {
            (name.name, name.pool) = (printable(&name.name), printable(&name.pool));
        }
        if item.is_none() {
            self.complete = match &self.source {
                Source::Recording(reader) => reader.is_complete(),
                Source::Foreign(_) => true,
            };
        }
        Ok(item)
    }

    /// True after the end if the file is whole: a recording has its end mark, a trace of another program needs none.
    fn is_complete(&self) -> bool {
        self.complete
    }

    /// Reads all items, and returns their figures.
    ///
    /// # Errors
    /// As of [`Trace::item`].
    fn summary(&mut self) -> anyhow::Result<Summary> {
        let mut statistics = Statistics::new(self.head());
        while let Some(item) = self.item()? {
            statistics.observe(&item);
        }
        Ok(statistics.summary())
    }
}

/// The progress of reading a file.
struct Progress {
    begun: Instant,
    items: u32,
    /// Length of the file, in bytes.
    length: u64,
    /// Bytes read.
    bytes: Rc<Cell<u64>>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Draws the progress from time to time, on a terminal and after [`QUIET`].
    fn tick(&mut self) {
        self.items = self.items.wrapping_add(1);
        if !self.items.is_multiple_of(1 << 14) || self.begun.elapsed() < QUIET || !io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(self.length);
            let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {percent:>3} %  about {eta} left");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_elapsed(self.begun.elapsed())
        });
        bar.set_position(self.bytes.get());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use evenkeel_flight::{Kind, Name, Outcome, Writer};

    /// The result of `open` for a file with this text.
    fn opened(name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<Recording> {
        let folder = Folder::new();
        open(&folder.file(name, text), &Part::default(), MOST_REQUESTS)
    }

    #[test]
    fn a_part_has_the_requests_of_its_time_alone() {
        let mut writer = Writer::new(Vec::new(), &Head::default()).expect("a head");
        let lost = |requests, from_s: u64, to_s: u64| Item::Lost {
            requests,
            from_ns: from_s * 1_000_000_000,
            to_ns: to_s * 1_000_000_000,
        };
        writer.write(&lost(7, 999, 1_000)).expect("written");
        // The clock of a ring's segment begins with the server.
        for n in 0..100 {
            let item = Item::Request(request((1_000 + n) * 1_000_000_000, 0, Kind::Read, 0, 4096));
            writer.write(&item).expect("written");
        }
        writer.write(&lost(3, 1_011, 1_012)).expect("written");
        writer.write(&lost(5, 1_020, 1_021)).expect("written");
        let folder = Folder::new();
        let path = folder.file("part", writer.finish().expect("written"));
        let part = |from: Option<u64>, length: Option<u64>| Part {
            from: from.map(Length::from_secs),
            length: length.map(Length::from_secs),
        };
        let of = |part: &Part, most| {
            open(&path, part, most).map(|read| {
                let at = |request: Option<&Request>| request.map(|request| request.arrival_ns / 1_000_000_000);
                (read.requests.len(), at(read.requests.first()), at(read.requests.last()), read.lost)
            })
        };
        let cases = [(None, None), (Some(10), None), (None, Some(5)), (Some(10), Some(5))];
        let read = cases.map(|(from, length)| of(&part(from, length), 100).expect("a recording"));
        let empty = of(&part(Some(200), None), 100).expect_err("no request").to_string();
        let refused = of(&part(None, Some(5)), 4).expect_err("more than 4").to_string();
        assert_eq!(
            read,
            [
                (100, Some(1_000), Some(1_099), 15),
                (90, Some(1_010), Some(1_099), 8),
                (5, Some(1_000), Some(1_004), 7),
                (5, Some(1_010), Some(1_014), 3),
            ]
        );
        assert!(empty.contains("--from and --for choose: all arrived within 99s of the first"), "{empty}");
        assert!(refused.contains("more than 4 requests") && refused.contains("--from and --for"), "{refused}");
    }

    fn request(arrival_ns: u64, device: u32, kind: Kind, offset: u64, length: u64) -> Request {
        let (tenant, client, volume) = (device, device, device);
        Request { arrival_ns, tenant, client, volume, kind, offset, length, ..Request::default() }
    }

    #[test]
    fn an_iolog_of_fio_is_a_recording() {
        let text = "fio version 3 iolog\n2 /dev/a add\n3 /dev/a open\n10 /dev/b read 1310720 8192\n\
                    30 /dev/a write 4096 512\n20 /dev/a trim 0 1048576\n35 /dev/a sync 0 0\n40 /dev/a close\n";
        let recording = opened("fio", text).expect("a recording");
        assert_eq!((recording.head.source.as_str(), recording.head.started_unix_ns), ("fio", 0));
        assert_eq!((recording.lost, recording.complete), (0, true));
        let expected = [
            request(0, 1, Kind::Read, 1_310_720, 8192),
            request(10_000, 0, Kind::Trim, 0, 0),
            request(20_000, 0, Kind::Write, 4096, 512),
            request(25_000, 0, Kind::Flush, 0, 0),
        ];
        assert_eq!(recording.requests, expected);
        let volumes: Vec<&Name> = recording.names.iter().filter(|name| name.table == Table::Volume).collect();
        let volumes: Vec<_> = volumes.iter().map(|name| (name.number, name.name.as_str(), name.bytes)).collect();
        assert_eq!(volumes, [(1, "device1", 2 << 20), (0, "device0", 1 << 20)]);
        assert_eq!(recording.names.len(), 6);
        assert_eq!(recording.name(Table::Tenant, 1).map(|name| name.name.as_str()), Some("device1"));
    }

    #[test]
    fn a_trace_of_msr_is_a_recording_with_its_start() {
        let text = "128166372000000000,web,0,Read,1310720,8192,703\n128166372000012345,web,1,Write,4096,512,99\n";
        let recording = opened("msr", text).expect("a recording");
        assert_eq!((recording.head.source.as_str(), recording.requests.len()), ("msr", 2));
        assert_eq!(recording.head.started_unix_ns, 1_172_163_600_000_000_000);
        let second = Request { device_ns: 9_900, ..request(1_234_500, 1, Kind::Write, 4096, 512) };
        assert_eq!((recording.requests[0].device_ns, recording.requests[1]), (70_300, second));
    }

    #[test]
    fn a_text_of_blkparse_is_a_recording_with_its_latencies() {
        let read = "  8,0    1        2     0.000200000   700  Q   R 64 + 16 [cat]\n";
        let issued = "  8,0    1        3     0.000210000   700  D   R 64 + 16 [cat]\n";
        let failed = "  8,0    1        4     0.000510000     0  C   R 64 + 16 [65531]\n";
        let last = "  8,0    1        5     0.000600000   700  Q  WS 128 + 8 [cat]\n";
        let requests = |text: &[&str]| opened("blkparse", text.concat()).expect("a recording").requests;
        let of_read = request(0, 0, Kind::Read, 32_768, 8_192);
        let of_last = request(400_000, 0, Kind::Write, 65_536, 4_096);
        let outcome = Outcome::Failed(5);
        let whole = Request { queue_ns: 10_000, device_ns: 300_000, outcome, ..of_read };
        let cancelled = Request { outcome: Outcome::Cancelled, ..of_last };
        assert_eq!(requests(&[read, issued, failed, last]), [whole, cancelled]);
        // Without completions, and without requests as queued.
        assert_eq!(requests(&[read, issued, last]), [of_read, of_last]);
        assert_eq!(requests(&[issued, failed]), [Request { queue_ns: 0, ..whole }]);
        let error = format!("{:#}", opened("completed", failed).expect_err("refused"));
        assert!(error.contains("events Q or D count"), "{error}");
    }

    #[test]
    fn lines_that_cannot_be_read_count_as_lost() {
        // Without length, from before the first line, and cut off.
        let text = "128166372000000000,web,0,Read,1310720,8192,703\r\n128166372000000010,web,0,Read,4096,0,9\r\n\
                    128166371999999999,web,0,Write,4096,512,99\r\n1281663720000";
        let recording = opened("partial", text).expect("a trace");
        let read: Vec<_> = recording.requests.iter().map(|r| (r.arrival_ns, r.offset, r.length, r.device_ns)).collect();
        assert_eq!(read, [(0, 1_310_720, 8_192, 70_300), (0, 4_096, 512, 9_900)]);
        assert_eq!((recording.lost, recording.complete), (2, true));
        // Most lines are such: it is no trace.
        let error = format!("{:#}", opened("prose", "1 0 8 8 1\nTo whom\nit may\n").expect_err("refused"));
        assert!(error.contains(":2: ") && error.contains("2 lines cannot be read, and only 1 request can"), "{error}");
        let headed = "Timestamp,Hostname,DiskNumber,Type,Length,Offset\n1,web,0,Read,0,512\n";
        let error = format!("{:#}", opened("headed", headed).expect_err("refused"));
        assert!(error.contains("the header") && error.contains("Size"), "{error}");
    }

    #[test]
    fn a_trace_that_is_read_again_repeats_no_warning() {
        let folder = Folder::new();
        let path = folder.file("a.spc", "0,8,4096,r,0.0\n0,8,cut\n");
        let is_quiet = |trace: &Trace| matches!(&trace.source, Source::Foreign(foreign) if foreign.quiet);
        let first = Trace::open(&path).expect("a trace");
        let mut again = Trace::open_again(&path).expect("a trace");
        assert_eq!((is_quiet(&first), is_quiet(&again)), (false, true));
        // The loss is in the figures all the same.
        assert_eq!(again.summary().expect("a summary").lost, 1);
    }

    #[test]
    fn names_of_a_recording_cannot_drive_the_terminal() {
        let mut writer = Writer::new(Vec::new(), &Head::default()).expect("a head");
        let (name, pool) = ("a\u{1b}[2J".to_owned(), "p\n\u{9b}".to_owned());
        let name = Name { table: Table::Volume, number: 0, name, pool, bytes: 1 << 20 };
        writer.write(&Item::Name(name)).expect("written");
        let recording = opened("escapes", writer.finish().expect("written")).expect("a recording");
        let [name] = &recording.names[..] else { panic!("{:?}", recording.names) };
        assert_eq!((name.name.as_str(), name.pool.as_str()), ("a?[2J", "p??"));
    }

    #[test]
    fn a_recording_that_was_cut_off_has_lost_its_end() {
        let mut writer = Writer::new(Vec::new(), &Head::default()).expect("a head");
        writer.write(&Item::Request(request(0, 0, Kind::Read, 0, 4096))).expect("written");
        writer.flush().expect("written");
        writer.write(&Item::Lost { requests: 3, from_ns: 0, to_ns: 1 }).expect("written");
        let whole = writer.finish().expect("written");
        let of = |name: &str, bytes: &[u8]| loss(&opened(name, bytes).expect("a recording"));
        assert_eq!(of("whole", &whole).as_deref(), Some("3 requests could not be recorded: the file lacks them"));
        let cut = of("cut", &whole[..whole.len() - 1]).expect("cut off");
        assert!(cut.contains("has no end mark"), "{cut}");
        let csv = opened("csv", "128166372000000000,web,0,Read,0,512,7\n").expect("a trace");
        assert_eq!(loss(&csv), None);
    }

    #[test]
    fn a_short_file_has_no_room_for_all_requests() {
        let lengths = [0, 200_000, 1_500_000, 1 << 40, u64::MAX];
        let most = [USUAL_REQUESTS, 1_600_000, 12_000_000, MOST_REQUESTS, MOST_REQUESTS];
        assert_eq!(lengths.map(most_requests), most);
    }

    #[test]
    fn an_output_is_no_input_under_another_name() {
        let folder = Folder::new();
        let (file, other) = (folder.file("a.rec", "a"), folder.join("b.rec"));
        let again = folder.join(".").join("a.rec");
        let refused = ensure_apart(&file, &again).expect_err("the same file");
        assert!(refused.is::<Usage>() && refused.to_string().contains("name another one"), "{refused}");
        assert!(ensure_apart(&file, &other).is_ok());
    }

    #[test]
    fn a_file_of_no_known_format_is_refused_with_the_formats() {
        for (text, part) in [("a line of prose\n", "known are msr, spc, mqsim, fio"), ("\n\n", "has no request")] {
            let error = format!("{:#}", opened("other", text).expect_err("refused"));
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let whole = |path: &Path| open(path, &Part::default(), MOST_REQUESTS);
        let folder = whole(&std::env::temp_dir()).expect_err("a folder").to_string();
        assert!(folder.contains("is not a file"), "{folder}");
        let missing = format!("{:#}", whole(Path::new("/nowhere/a.trace")).expect_err("missing"));
        assert!(missing.starts_with("cannot read /nowhere/a.trace: "), "{missing}");
    }
}
