//! A sample of a long recording in bounded memory: runs of consecutive requests, evenly spread over the recording.
//!
//! The recording is cut into 20 pieces with equal numbers of requests, and each run is the middle of a piece. So percentiles of
//! latencies, and rates during the runs, are those of the recording but for chance. The time between two runs is left out: a run
//! begins when all requests of the one before have completed.

use std::path::Path;

use evenkeel_flight::{Recording, Request};

use super::{MOST_REQUESTS, Part, Trace, arrange, most_requests, scan};
use crate::control::whole;

/// Number of runs of a sample.
const RUNS: u64 = 20;
/// The most requests of a recording that is replayed or learned from, by default; with all that is computed from them they take
/// some 800 MB.
const MOST_SIMULATED: usize = 4_000_000;
/// The fewest requests of a sample: a thousand in each run. Runs of fewer show their edges, where the requests in flight are cut
/// off, more than the load.
const FEWEST: usize = 20_000;

/// The requests of a recording that are simulated.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sample {
    #[command(flatten)]
    part: Part,

    /// The most requests to simulate: of a longer recording, 20 runs of consecutive requests, evenly spread over it; a request
    /// takes some 200 bytes of memory
    #[arg(long, value_name = "REQUESTS", default_value_t = MOST_SIMULATED, value_parser = number)]
    most: usize,
}

impl Default for Sample {
    fn default() -> Self {
        Self { part: Part::default(), most: MOST_SIMULATED }
    }
}

fn number(text: &str) -> Result<usize, String> {
    let most = whole::<usize>(text)?;
    let is_known = (FEWEST..=MOST_REQUESTS).contains(&most);
    is_known.then_some(most).ok_or_else(|| format!("write a number from {FEWEST} to {MOST_REQUESTS}"))
}

/// A recording, or a sample of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampled {
    /// The requests, with all names.
    pub(crate) recording: Recording,
    /// The start of each run on the clock of the arrivals, in order.
    pub(crate) begins: Vec<u64>,
    /// Requests between the runs.
    pub(crate) left: u64,
}

/// Reads the requests of a recording, or of a trace of another program, that are simulated: those that went to `pool`, or all if
/// there is no such request. A recording with more of them than the sample takes is read twice.
///
/// # Errors
/// A file that cannot be read, or a part without requests of a file that has some.
pub(crate) fn open(path: &Path, sample: &Sample, pool: Option<&str>) -> anyhow::Result<Sampled> {
    read(Trace::open(path)?, path, sample, pool)
}

/// As [`open`]; `trace` is the file at `path` that was just opened.
fn read(trace: Trace, path: &Path, sample: &Sample, pool: Option<&str>) -> anyhow::Result<Sampled> {
    let most = most_requests(trace.progress.length).min(sample.most);
    let (mut requests, mut count): (Vec<Request>, u64) = (Vec::new(), 0);
    let mut recording = scan(trace, &sample.part, pool, |request| {
        count += 1;
        if requests.len() < most {
            requests.push(request);
        }
        Ok(())
    })?;
    if count == 0 && pool.is_some() {
        // The error about the pool names those of the other requests. A larger sample would have none of the pool, either.
        return read(Trace::open_again(path)?, path, sample, None).map(|all| Sampled { left: 0, ..all });
    }
    let mut begins = vec![0];
    if count > most as u64 {
        requests.clear();
        let (every, length) = (count.div_ceil(RUNS).max(1), (most as u64 / RUNS).max(1));
        let mut number = 0;
        recording = scan(Trace::open_again(path)?, &sample.part, pool, |request| {
            // A recording that goes on has become longer.
            if is_taken(number, every, length) && requests.len() < most {
                requests.push(request);
            }
            number += 1;
            Ok(())
        })?;
        begins = join(&mut requests, usize::try_from(length).unwrap_or(most));
    }
    let left = count.saturating_sub(requests.len() as u64);
    recording.requests = requests;
    arrange(&mut recording);
    Ok(Sampled { recording, begins, left })
}

/// True if the request with this `number` is in a run: the middle `length` requests of each piece of `every` consecutive ones. So
/// the first requests of a recording are not more likely to be taken than others.
fn is_taken(number: u64, every: u64, length: u64) -> bool {
    let from = every.saturating_sub(length) / 2;
    (from..from.saturating_add(length)).contains(&(number % every.max(1)))
}

/// Moves each run of `length` requests behind the completions of the one before. Returns the start of each.
fn join(requests: &mut [Request], length: usize) -> Vec<u64> {
    let (mut begins, mut next_ns) = (Vec::new(), 0);
    for run in requests.chunks_mut(length.max(1)) {
        let first_ns = run.iter().map(|request| request.arrival_ns).min().unwrap_or(0);
        let begin_ns = next_ns;
        begins.push(begin_ns);
        for request in run {
            request.arrival_ns = (request.arrival_ns - first_ns).saturating_add(begin_ns);
            let end_ns = request.arrival_ns.saturating_add(request.queue_ns).saturating_add(request.device_ns);
            next_ns = end_ns.saturating_add(1).max(next_ns);
        }
    }
    begins
}

#[cfg(test)]
mod tests {
    use evenkeel_flight::{Head, Item, Kind, Name, Table, Writer};
    use evenkeel_sim::flight::figures::{Figures, recorded};
    use evenkeel_sim::flight::load::Load;
    use evenkeel_sim::flight::policy;
    use evenkeel_sim::flight::replay::simulate;

    use super::*;
    use crate::folder::Folder;

    fn request(arrival_ns: u64) -> Request {
        Request { arrival_ns, length: 4096, ..Request::default() }
    }

    #[test]
    fn a_run_begins_when_the_one_before_has_completed() {
        let one = |arrival_ns, queue_ns, device_ns| Request { queue_ns, device_ns, ..request(arrival_ns) };
        // In order of completion: the second of each run arrived first.
        let mut requests =
            [one(7_100, 0, 10), one(7_000, 50, 150), one(9_300, 0, 5), one(9_200, 0, 200), one(20_000, 0, 1)];
        assert_eq!(join(&mut requests, 2), [0, 201, 402]);
        assert_eq!(requests.map(|request| request.arrival_ns), [100, 0, 301, 201, 402]);
        assert!(join(&mut [], 2).is_empty());
    }

    #[test]
    fn a_run_is_the_middle_of_its_part() {
        let taken = |length| (0..20).filter(|&number| is_taken(number, 10, length)).collect::<Vec<u64>>();
        assert_eq!(taken(4), [3, 4, 5, 6, 13, 14, 15, 16]);
        assert_eq!((taken(9).first(), taken(9).len(), taken(10).len()), (Some(&0), 18, 20));
    }

    #[test]
    fn the_number_of_requests_is_bounded() {
        assert_eq!((number("20000"), number("100000000")), (Ok(20_000), Ok(100_000_000)));
        for refused in ["19999", "100000001"].map(number) {
            assert!(refused.unwrap_err().contains("from 20000 to 100000000"));
        }
    }

    /// The text of a recording of two clients: a closed loop with a think time of 10 µs, and one that reads each millisecond.
    fn written(count: u64) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &Head { source: "serve".into(), ..Head::default() }).expect("a head");
        let name = |table, number: u32, name: String| {
            let (pool, bytes) = if table == Table::Volume { ("main".to_owned(), 1 << 30) } else { (String::new(), 0) };
            Item::Name(Name { table, number, name, pool, bytes })
        };
        writer.write(&name(Table::Volume, 0, "v".into())).expect("written");
        for number in 0..2 {
            writer.write(&name(Table::Tenant, number, format!("t{number}"))).expect("written");
            writer.write(&name(Table::Client, number, format!("client-{number}"))).expect("written");
        }
        let (mut all, mut at_ns) = (Vec::new(), 0);
        for n in 0..count {
            let device_ns = 480_000 + n * 7_919 % 20_000;
            let offset = n * 7_919 % 4_096 * 4_096;
            let closed = Request { device_ns, offset, ..request(at_ns) };
            all.push(closed);
            if n % 2 == 0 {
                let arrival_ns = at_ns + n * 6_007 % 400_000;
                let (tenant, client, kind) = (1, 1, Kind::Write);
                all.push(Request { arrival_ns, tenant, client, kind, ..closed });
            }
            at_ns += device_ns + 10_000;
        }
        all.sort_by_key(|request| request.arrival_ns + request.device_ns);
        for request in all {
            writer.write(&Item::Request(request)).expect("written");
        }
        writer.finish().expect("written")
    }

    /// The figures of a recording as recorded, and as simulated on a faster device; the share of the closed loop's requests that
    /// depend on others.
    fn figures(sampled: Sampled) -> ([Figures; 2], f64) {
        let load = Load::of_runs(sampled.recording, &sampled.begins, None).expect("a load");
        let text = "kind = \"store\"\nread_latency = \"200us\"\nwrite_latency = \"200us\"\n";
        let device = policy::device(text, "test", &[]).expect("a device");
        let simulated = simulate(&load, &device, None, &[], 1).expect("simulated");
        let closed: Vec<_> = load.clients.iter().filter(|client| client.tenant == 0).collect();
        let dependent: usize = closed.iter().map(|client| client.inferred.dependent()).sum();
        let all: usize = closed.iter().map(|client| client.requests.len()).sum();
        ([recorded(&load, &[]), simulated], dependent as f64 / all as f64)
    }

    #[test]
    fn a_sample_is_of_the_chosen_pool_alone() {
        let mut writer = Writer::new(Vec::new(), &Head::default()).expect("a head");
        for (number, pool) in [(0, "main"), (1, "quiet")] {
            let (table, name, pool) = (Table::Volume, format!("v{number}"), pool.to_owned());
            writer.write(&Item::Name(Name { table, number, name, pool, bytes: 1 << 30 })).expect("written");
        }
        for n in 0..20_000_u64 {
            let volume = u32::from(n % 20 == 7);
            writer.write(&Item::Request(Request { volume, ..request(n * 1_000) })).expect("written");
        }
        let folder = Folder::new();
        let path = folder.file("pools.rec", writer.finish().expect("written"));
        let of = |most, pool| {
            let sampled = open(&path, &Sample { most, ..Sample::default() }, Some(pool)).expect("a recording");
            let quiet = sampled.recording.requests.iter().filter(|request| request.volume == 1).count();
            (sampled.recording.requests.len(), quiet, sampled.left, sampled.begins.len())
        };
        // All of a pool whose requests are few enough, and a sample of them otherwise.
        assert_eq!(of(1_000, "quiet"), (1_000, 1_000, 0, 1));
        assert_eq!(of(400, "quiet"), (400, 400, 600, 20));
        assert_eq!(of(19_000, "main"), (19_000, 0, 0, 1));
        assert_eq!(of(400, "other").2, 0, "a larger sample has none of this pool, either");
        let error = Load::new(open(&path, &Sample::default(), Some("other")).expect("all").recording, Some("other"));
        let error = error.expect_err("no such pool").to_string();
        assert!(error.contains("its pools are main, quiet"), "{error}");
    }

    #[test]
    fn a_sample_has_the_figures_of_the_whole_recording() {
        let folder = Folder::new();
        let path = folder.file("long.rec", written(40_000));
        let recording = super::super::open(&path, &Part::default(), MOST_REQUESTS).expect("a recording");
        let of = |most| open(&path, &Sample { most, ..Sample::default() }, None).expect("a recording");
        // As many as there are, and one fewer.
        assert_eq!(recording.requests.len(), 60_000);
        let whole = Sampled { recording, begins: vec![0], left: 0 };
        assert_eq!(of(60_000), whole);
        let almost = of(59_999);
        assert_eq!((almost.recording.requests.len(), almost.left), (59_980, 20));
        let part = of(12_000);
        assert_eq!((part.recording.requests.len(), part.left, part.begins.len()), (12_000, 48_000, 20));
        assert_eq!((&part.recording.names, part.recording.complete), (&whole.recording.names, true));
        assert!(part.recording.requests.is_sorted_by_key(|request| request.arrival_ns));
        let ((of_part, dependent), (of_whole, of_all)) = (figures(part), figures(whole));
        assert!(dependent > 0.95 && of_all > 0.95, "{dependent} of a part, {of_all} of all");
        for (of_part, of_whole) in of_part.iter().zip(&of_whole) {
            assert!(of_whole.seconds / of_part.seconds > 4.0, "{} of {} s", of_part.seconds, of_whole.seconds);
            assert_eq!(of_part.unfinished, 0);
            let part = &of_part.tenants[0];
            let whole = &of_whole.tenants[0];
            for (part, whole) in [(part.iops, whole.iops), (part.p50_ms, whole.p50_ms), (part.p99_ms, whole.p99_ms)] {
                assert!((part / whole - 1.0).abs() < 0.05, "{part} of a part, {whole} of all");
            }
        }
    }
}
