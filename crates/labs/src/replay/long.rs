//! The speed of a replay, and the memory that a recording of a hundred million requests takes. Both recordings are made request
//! by request with the writer that the server has.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use evenkeel_flight::{Head, Item, Kind, Name, Request, Table, Writer};

use crate::base::process::{Running, Used, describe};
use crate::check::figures::{Figures, told};
use crate::check::run::{Lab, Options};

/// Names of the two trials.
const SPEED: &str = "speed";
const LONG: &str = "long_recording";
/// Requests of the long recording.
const REQUESTS: u64 = 100_000_000;
/// Requests per second.
const IOPS: u64 = 5_000;
/// Clients, each with a volume of its own; half of them are closed loops.
const CLIENTS: u64 = 50;
/// Clients that also send in the quiet half of a cycle of the long recording, and the length of the cycle in seconds.
const QUIET_CLIENTS: u64 = 10;
const CYCLE_S: u64 = 4;
const TENANTS: u32 = 8;
/// Length of the recording whose replay is timed, in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [20, 120];
/// Bar: the least speed of a replay as a multiple of real time, in CPU time of the whole command.
const SPEED_BAR: f64 = 50.0;
/// A lower speed comes from work that grows with the square of the number of requests, also without optimisation.
const SPEED_SURE: f64 = 3.0;
/// Bar: the most memory of a command, in MiB. The reader has 12 at its head; statistics, the order of 65,536 requests and the
/// program take some 50; a plot at most 160; a part of a minute, 180,000 requests of some 200 bytes, 40.
const MEMORY_BAR: f64 = 256.0;
/// More memory comes from a command that keeps the requests: they take 6,100 MiB.
const MEMORY_SURE: f64 = 1_024.0;
/// The device of replays.
const DEVICE: &str = "kind = \"store\"\nread_latency = \"9ms\"\nwrite_latency = \"9ms\"\n";
/// The policy that is compared with the recorded one.
const POLICY: &str = "[tenants.tenant-0]\nlatency.target = \"100ms\"\n";
/// The policy that is advised on: the device meets its target.
const WISH: &str = "pools.main.tuning.admission = \"none\"\n[tenants.tenant-0]\nlatency.target = \"100ms\"\n";
/// Bars for commands that simulate the whole recording, by its sample of 4 million requests of some 200 bytes.
const SAMPLE_BAR: f64 = 1_024.0;
const SAMPLE_SURE: f64 = 2_048.0;
/// The part of the long recording that is held in memory.
const PART: [&str; 4] = ["--from", "2h", "--for", "1m"];
/// Time limit of a command: a hundred times what it takes.
const LIMIT: Duration = Duration::from_secs(3 * 3_600);

/// Runs the trials that are wanted, in `folder`. Returns their number. The long recording is for full runs, or if it is selected
/// by name.
pub(super) fn run(lab: &mut Lab, options: &Options, folder: &Path) -> usize {
    let wanted = |name: &str| name.contains(&options.only);
    let mut taken = 0;
    if wanted(SPEED) {
        let seconds = SECONDS[usize::from(options.full)];
        let rounds = if options.full { options.repeats } else { 1 };
        let mut figures = Figures::default();
        let verdict = figures.collect(rounds, |figures| speed(&options.binary, folder, seconds, options.full, figures));
        end(lab, SPEED, &figures, &verdict);
        taken += 1;
    }
    if wanted(LONG) && (options.full || !options.only.is_empty()) {
        let mut figures = Figures::default();
        let outcome = long(&options.binary, folder, &mut figures);
        end(lab, LONG, &figures, &figures.judge_by(true, outcome));
        taken += 1;
    }
    taken
}

fn end(lab: &mut Lab, name: &str, figures: &Figures, verdict: &Result<String>) {
    for line in figures.lines() {
        println!("lab: figure replay::{name}_{line}");
    }
    lab.check(name, verdict.is_ok(), &told(verdict));
}

/// Replays a recording of so many seconds; in a `full` run also with another policy, which is a second simulation with a
/// scheduler and admission control.
fn speed(binary: &Path, folder: &Path, seconds: u64, full: bool, figures: &mut Figures) -> Result<String> {
    let [path, device, policy] = ["speed.rec", "speed.toml", "policy.toml"].map(|name| folder.join(name));
    write(&path, seconds * IOPS, request)?;
    std::fs::write(&device, DEVICE)?;
    std::fs::write(&policy, POLICY)?;
    let replay = || {
        let mut command = Command::new(binary);
        command.args(["replay", "--json", "--device"]).arg(&device).arg(&path);
        command
    };
    let times = |used: &Used| seconds as f64 / used.cpu.as_secs_f64();
    let used = succeeded(&mut replay())?;
    figures.at_least("times_real_time", times(&used), SPEED_SURE, SPEED_BAR);
    let mut said = format!("{seconds} s of {IOPS} requests a second replayed in {:.2?} of CPU time", used.cpu);
    if full {
        let used = succeeded(replay().arg("--policy").arg(&policy))?;
        figures.at_least("changed_times_real_time", times(&used), SPEED_SURE, SPEED_BAR);
        said += &format!(", with another policy in {:.2?}", used.cpu);
    }
    Ok(said)
}

/// Has the long recording read by each command that reads recordings.
fn long(binary: &Path, folder: &Path, figures: &mut Figures) -> Result<String> {
    let [path, device, wish, out] = ["long.rec", "long.toml", "wish.toml", "long.out"].map(|name| folder.join(name));
    write(&path, REQUESTS, varied)?;
    std::fs::write(&device, DEVICE)?;
    std::fs::write(&wish, WISH)?;
    let evenkeel = |words: &[&str]| {
        let mut command = Command::new(binary);
        command.args(words);
        command
    };
    let mut said = Vec::new();
    let mut put = |name: &str, used: Used| {
        let mib = used.peak_bytes as f64 / f64::from(1 << 20);
        let (sure, bar) = if name.starts_with("whole") { (SAMPLE_SURE, SAMPLE_BAR) } else { (MEMORY_SURE, MEMORY_BAR) };
        figures.at_most(&format!("{name}_mib"), mib, sure, bar);
        said.push(format!("{name} {mib:.0} MiB, {:.0?} of CPU time", used.cpu));
    };
    put("info", succeeded(evenkeel(&["trace", "info"]).arg(&path))?);
    put("plot", succeeded(evenkeel(&["trace", "plot", "-o"]).arg(&out).arg(&path))?);
    put("convert", succeeded(evenkeel(&["trace", "convert"]).args(PART).arg("-o").arg(&out).arg(&path))?);
    put("replay", succeeded(evenkeel(&["replay"]).args(PART).arg("--device").arg(&device).arg(&path))?);
    put("whole_replay", succeeded(evenkeel(&["replay"]).arg("--device").arg(&device).arg(&path))?);
    put("fit", succeeded(evenkeel(&["fit"]).args(PART).arg(&path))?);
    put("whole_fit", succeeded(evenkeel(&["fit"]).arg(&path))?);
    let mut advise = evenkeel(&["advise"]);
    advise.arg("--device").arg(&device).arg("--policy").arg(&wish).arg(&path);
    put("whole_advise", succeeded(&mut advise)?);
    Ok(format!("{REQUESTS} requests in {} MB: {}", std::fs::metadata(&path)?.len() / 1_000_000, said.join("; ")))
}

fn succeeded(command: &mut Command) -> Result<Used> {
    let running = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
    let (status, used) = running.wait_and_measure(LIMIT)?;
    ensure!(status.success(), "`{}`: {status}", describe(command));
    Ok(used)
}

/// Writes a recording of so many requests, which `request` makes from their numbers, holding one block in memory.
fn write(path: &Path, requests: u64, request: fn(u64) -> Request) -> Result<()> {
    let cannot_write = || format!("cannot write {}", path.display());
    let head = Head { source: "serve".into(), ..Head::default() };
    let mut writer = Writer::new(File::create(path).with_context(cannot_write)?, &head)?;
    for name in names() {
        writer.write(&Item::Name(name))?;
    }
    for number in 0..requests {
        writer.write(&Item::Request(request(number))).with_context(cannot_write)?;
    }
    writer.finish().with_context(cannot_write)?;
    Ok(())
}

fn names() -> Vec<Name> {
    let name = |table: Table, number: u32, name: String| {
        let is_volume = table == Table::Volume;
        let (pool, bytes) = if is_volume { ("main".to_owned(), 1 << 34) } else { (String::new(), 0) };
        Name { table, number, name, pool, bytes }
    };
    let clients = (0..CLIENTS as u32).flat_map(|number| {
        let client = name(Table::Client, number, format!("client-{number}"));
        [client, name(Table::Volume, number, format!("volume-{number}"))]
    });
    (0..TENANTS).map(|number| name(Table::Tenant, number, format!("tenant-{number}"))).chain(clients).collect()
}

/// The request of this number: those of the clients take turns. The next of a closed loop comes some microseconds after the
/// completion, that of an open loop at a time of its own.
fn request(number: u64) -> Request {
    let (client, random) = (number % CLIENTS, mixed(number));
    let (period_ns, due_ns) = (1_000_000_000 * CLIENTS / IOPS, number * (1_000_000_000 / IOPS));
    let (late_ns, device_ns) = match client % 2 {
        0 => (0, period_ns - 20_000 - random % 100_000),
        _ => (random % 5_000_000, period_ns / 4 + random % 1_000_000),
    };
    Request {
        arrival_ns: due_ns + late_ns,
        device_ns,
        tenant: client as u32 % TENANTS,
        client: client as u32,
        volume: client as u32,
        kind: if random % 10 < 7 { Kind::Read } else { Kind::Write },
        offset: ((random >> 20) % (1 << 22)) << 12,
        length: 4_096,
        ..Request::default()
    }
}

/// The same with fewer clients in the second half of each cycle: a load that never changes hardly shows the device.
fn varied(number: u64) -> Request {
    let all = CYCLE_S * IOPS;
    let busy = all / 2;
    let cycle = busy + busy * QUIET_CLIENTS / CLIENTS;
    let (begin, within) = (number / cycle * all, number % cycle);
    let passed = match within.checked_sub(busy) {
        None => within,
        Some(quiet) => busy + quiet / QUIET_CLIENTS * CLIENTS + quiet % QUIET_CLIENTS,
    };
    request(begin + passed)
}

/// A number that looks random.
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use evenkeel_flight::Recording;

    use super::*;
    use crate::base::scratch::Scratch;

    #[test]
    fn a_recording_has_the_rate_and_both_kinds_of_clients() {
        let scratch = Scratch::new("long").unwrap();
        let path = scratch.path().join("a.rec");
        write(&path, IOPS, request).unwrap();
        let recording = Recording::read(&path).unwrap();
        assert_eq!((recording.requests.len() as u64, recording.complete), (IOPS, true));
        assert_eq!(recording.names.len(), TENANTS as usize + 2 * CLIENTS as usize);
        let last_ns = recording.requests.last().unwrap().arrival_ns;
        assert!((990_000_000..1_010_000_000).contains(&last_ns), "{last_ns}");
        let thinks = |client: u32| -> Vec<u64> {
            let own = recording.requests.iter().filter(|request| request.client == client);
            let own: Vec<&Request> = own.collect();
            let think = |pair: &[&Request]| pair[1].arrival_ns - (pair[0].arrival_ns + pair[0].device_ns);
            own.windows(2).map(think).collect()
        };
        assert!(thinks(0).iter().all(|think_ns| (20_000..120_000).contains(think_ns)));
        assert!(thinks(1).iter().any(|think_ns| *think_ns > 1_000_000));
    }

    #[test]
    fn a_device_can_be_learned_from_the_long_recording() {
        // Of two cycles the number in flight at each arrival. `evenkeel fit` refuses a load whose 95th percentile of it is less
        // than 1.5 times the 5th.
        let depths = |request: fn(u64) -> Request| -> Vec<usize> {
            let mut all: Vec<Request> = (0..24_000).map(request).collect();
            all.sort_by_key(|request| request.arrival_ns);
            let (mut ends, mut depths): (Vec<u64>, Vec<usize>) = (Vec::new(), Vec::new());
            for one in &all {
                ends.retain(|&end_ns| end_ns > one.arrival_ns);
                ends.push(one.arrival_ns + one.device_ns);
                depths.push(ends.len());
            }
            depths.sort_unstable();
            [5, 95].map(|percent| depths[depths.len() * percent / 100]).to_vec()
        };
        let (constant, changing) = (depths(request), depths(varied));
        assert!(constant[1] < 2 * constant[0], "{constant:?}");
        assert!(changing[1] > 3 * changing[0], "{changing:?}");
        // The second cycle begins four seconds after the first, with all clients.
        let second = varied(12_000);
        assert_eq!((second.client, second.arrival_ns), (0, CYCLE_S * 1_000_000_000));
        let quiet = (10_000..12_000).map(varied);
        assert!(quiet.clone().all(|request| u64::from(request.client) < QUIET_CLIENTS));
        assert!(quiet.map(|request| request.arrival_ns).all(|at_ns| (2_000_000_000..4_010_000_000).contains(&at_ns)));
    }
}
