//! The steps of the lab of initiators, inside the virtual machine.
//!
//! ```text
//!  fio, one request at a time ─▶ disk of the database ─┐
//!                                                      ├─▶ target ─▶ array: one request at a time, 3 ms each
//!  fio, 32 requests at a time ─▶ disk of the backup ───┘
//! ```
//!
//! Both disks are of one kind: SCSI disks of the kernel's loopback target (tcm_loop), or NVMe disks of its NVMe loopback target
//! (nvme-loop).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::base::servers;
use crate::check::figures::Figures;
use crate::check::policy;
use crate::check::steps::{self, Plan};
use crate::machine::devices::{CONFIG, make_disk};
use crate::machine::guard::{self, Guard, Place};
use crate::machine::guest::{keep_in_memory, make_dir, put, until};

const ARRAY: &str = "/dev/array";
/// Names and status addresses of two agents, which stand for the agents of two hosts. Each controls one disk.
const HOSTS: [Place; 2] =
    [Place { name: "database", status: "127.0.0.1:9811" }, Place { name: "backup", status: "127.0.0.1:9812" }];
/// Address of etcd, through which the agents exchange figures.
const ETCD: &str = "http://127.0.0.1:2379";
/// Longest wait until disks or agents are ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Latency target of the database, in ms. A request takes 3 ms alone, and 100 ms behind the backup's requests.
const TARGET_MS: f64 = 25.0;
/// Seconds of a load before it is measured: without the agent, and with the agent.
const SETTLE_SECONDS: [u64; 2] = [1, 6];
/// Seconds of a load before it is measured with two agents, each of which gets the other agent's figures one period late.
const SETTLE_TOGETHER_SECONDS: u64 = 8;
/// Time limit of a load that the lab normally ends earlier, in seconds.
const NOISE_SECONDS: u64 = 65;
/// Measured seconds of a load: in a short run, and in a full run.
const LOAD_SECONDS: [u64; 2] = [3, 5];

type Step = fn(&Stage, &mut Figures) -> Result<String>;

const STEPS: [(&str, Step); 6] = [
    ("a_target_is_met_by_queue_depth_of_scsi_disks", |stage, figures| compare(stage, figures, Kind::Scsi)),
    ("a_target_is_met_by_nr_requests_of_nvme_disks", |stage, figures| compare(stage, figures, Kind::Nvme)),
    ("two_agents_meet_a_target_together_through_etcd_and_go_on_alone_without", together),
    ("a_killed_agent_leaves_no_short_queue", |stage, _| killed(stage, false)),
    ("agent_and_sentinel_killed_leave_them_until_the_reset_or_the_next_start", |stage, _| killed(stage, true)),
    ("the_policy_of_all_labs_is_enforced", |stage, _| shared_policy(stage)),
];

/// Number of steps that the plan contains, for the report on the host.
pub(super) fn steps(plan: &Plan) -> usize {
    plan.wanted(&STEPS).count()
}

/// The kind of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scsi,
    Nvme,
}

/// A disk of the array on this host.
#[derive(Clone)]
struct Disk {
    /// Name of the disk in `/dev`.
    name: String,
    /// The file that sets the disk's queue depth.
    setting: PathBuf,
}

impl Disk {
    fn length(&self) -> Result<u32> {
        let text = std::fs::read_to_string(&self.setting).with_context(|| self.setting.display().to_string())?;
        Ok(text.trim().parse()?)
    }
}

fn lengths(disks: &[Disk; 2]) -> Result<Vec<u32>> {
    disks.iter().map(Disk::length).collect()
}

/// Disks of both kinds for database and backup.
struct Stage {
    binary: PathBuf,
    scsi: [Disk; 2],
    nvme: [Disk; 2],
    /// Measured seconds of a load.
    load_seconds: u64,
}

impl Stage {
    fn disks(&self, kind: Kind) -> &[Disk; 2] {
        match kind {
            Kind::Scsi => &self.scsi,
            Kind::Nvme => &self.nvme,
        }
    }
}

/// Builds the stage and runs the steps; runs inside the virtual machine.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    // Serves one request at a time, in the order in which they come.
    let slow = [("irqmode", "2"), ("completion_nsec", "3000000"), ("hw_queue_depth", "1"), ("memory_backed", "0")];
    make_disk("array", 1024, &slow)?;
    let scsi = scsi_disks()?;
    let nvme = nvme_disks()?;
    let programs = ["fio", "etcd"].into_iter().filter_map(process::find_program);
    keep_in_memory(programs.chain([plan.binary.clone()]).collect())?;
    println!("lab: ready");
    let load_seconds = plan.either(LOAD_SECONDS[0], LOAD_SECONDS[1]);
    let stage = Stage { binary: plan.binary.clone(), scsi, nvme, load_seconds };
    for (name, step) in plan.wanted(&STEPS) {
        steps::take(plan, name, |figures| step(&stage, figures));
    }
    Ok(())
}

fn link(to: &str, at: &str) -> Result<()> {
    std::os::unix::fs::symlink(to, at).with_context(|| format!("cannot link {at} to {to}"))
}

/// Names of block devices that begin with `prefix`, in order.
fn blocks(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    names
}

/// Makes two SCSI disks, each behind a loopback target of its own, as if on two hosts.
fn scsi_disks() -> Result<[Disk; 2]> {
    let store = format!("{CONFIG}/target/core/iblock_0/array");
    make_dir(&store)?;
    put(format!("{store}/control"), &format!("udev_path={ARRAY}"))?;
    put(format!("{store}/enable"), "1")?;
    let disk = |number: u32| -> Result<Disk> {
        let group = format!("{CONFIG}/target/loopback/naa.500140500000000{number}/tpgt_1");
        make_dir(&group)?;
        put(format!("{group}/nexus"), &format!("naa.600140500000000{number}"))?;
        make_dir(format!("{group}/lun/lun_0"))?;
        link(&store, &format!("{group}/lun/lun_0/array"))?;
        let name = until("SCSI disk", || blocks("sd").into_iter().nth(number as usize - 1))?;
        let setting = format!("/sys/block/{name}/device/queue_depth").into();
        Ok(Disk { name, setting })
    };
    Ok([disk(1)?, disk(2)?])
}

/// Makes two NVMe disks, each with a subsystem and a controller of its own, and with one hardware queue.
fn nvme_disks() -> Result<[Disk; 2]> {
    let root = format!("{CONFIG}/nvmet");
    make_dir(format!("{root}/ports/1"))?;
    put(format!("{root}/ports/1/addr_trtype"), "loop")?;
    let disk = |number: u32| -> Result<Disk> {
        let subsystem = format!("{root}/subsystems/lab{number}");
        make_dir(format!("{subsystem}/namespaces/1"))?;
        put(format!("{subsystem}/attr_allow_any_host"), "1")?;
        put(format!("{subsystem}/namespaces/1/device_path"), ARRAY)?;
        put(format!("{subsystem}/namespaces/1/enable"), "1")?;
        link(&subsystem, &format!("{root}/ports/1/subsystems/lab{number}"))?;
        put("/dev/nvme-fabrics", &format!("transport=loop,nqn=lab{number},nr_io_queues=1,queue_size=64"))?;
        // With the kernel's multipath the queue is that of the one path, which is hidden from /dev.
        let is_disk = |name: &&String| Path::new("/dev").join(name).exists();
        let name = until("NVMe disk", || blocks("nvme").iter().filter(is_disk).nth(number as usize - 1).cloned())?;
        let (subsystem, _) = name.split_once('n').and_then(|_| name[4..].split_once('n')).context("name of a disk")?;
        let path = blocks(&format!("nvme{subsystem}c")).into_iter().next().unwrap_or_else(|| name.clone());
        let setting = format!("/sys/block/{path}/queue/nr_requests").into();
        Ok(Disk { name, setting })
    };
    Ok([disk(1)?, disk(2)?])
}

/// Text of the agent's configuration of the array and its volumes (name and disk), with the database's latency target.
fn volumes<'a>(of: impl IntoIterator<Item = (&'a str, &'a Disk)>) -> String {
    let volume = |(name, disk): (&str, &Disk)| {
        let target = if name == "database" { format!("latency.target = \"{TARGET_MS}ms\"\n") } else { String::new() };
        format!("[tenants.{name}]\nmatch = [\"device:/dev/{}\"]\n{target}\n", disk.name)
    };
    let volumes: String = of.into_iter().map(volume).collect();
    format!("[pools.san]\ntuning.slots = \"needs\"\n{volumes}")
}

/// Starts one agent for both disks.
fn one_for_both(stage: &Stage, [database, backup]: &[Disk; 2]) -> Result<Guard> {
    Guard::start(&stage.binary, guard::ONLY, &volumes([("database", database), ("backup", backup)]))
}

/// Starts one agent for each disk, as on two hosts.
fn one_for_each(stage: &Stage, disks: &[Disk; 2]) -> Result<[Guard; 2]> {
    let cluster = |place: Place| format!("[cluster]\netcd = [\"{ETCD}\"]\nhost = \"{}\"\n", place.name);
    let start = |place: Place, disk: &Disk| {
        Guard::start(&stage.binary, place, &(volumes([(place.name, disk)]) + &cluster(place)))
    };
    Ok([start(HOSTS[0], &disks[0])?, start(HOSTS[1], &disks[1])?])
}

fn start_etcd() -> Result<Running> {
    servers::etcd(Path::new("/run"), process::program("etcd"), [ETCD, ETCD, "http://127.0.0.1:2380"])
}

/// Pause between two questions to an agent. Each question starts a program, which takes an emulated processor long.
const REST: Duration = Duration::from_millis(400);

/// Waits until all agents report `status`: `shared` if they decide together, `lost` if each decides on its own.
fn agree(agents: &[Guard; 2], status: &str) -> Result<()> {
    let is_so = |agent: &Guard| {
        let state = agent.state().ok()?;
        let clustered = state["pools"][0]["slots"]["clustered"] == (status == "shared");
        (state["cluster"]["status"] == status && clustered).then_some(())
    };
    let all_are = || {
        std::thread::sleep(REST);
        agents.iter().try_for_each(is_so)
    };
    until(&format!("status {status:?} of both"), all_are).with_context(|| {
        let states: Vec<String> =
            agents.iter().map(|agent| agent.state().map_or_else(|e| e.to_string(), |s| s.to_string())).collect();
        states.join("; ")
    })
}

/// The fio command for random reads of 4 KiB at queue depth `depth`, with further arguments `more`.
fn fio(disk: &Disk, depth: u32, seconds: u64, more: &[&str]) -> Command {
    let mut command = process::program("fio");
    command.args(["--name=load", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio", "--time_based"]);
    command.args([format!("--filename=/dev/{}", disk.name), format!("--iodepth={depth}")]);
    command.args([format!("--runtime={seconds}"), "--output-format=json".into(), "--thread".into()]).args(more);
    command
}

/// Starts the loads of database and backup, which run until they are killed. The database's load is needed because the agent
/// shortens no queue while the volume with the latency target is idle.
fn noise([database, backup]: &[Disk; 2]) -> Result<[Running; 2]> {
    let run = |disk: &Disk, depth: u32| {
        Running::spawn(fio(disk, depth, NOISE_SECONDS, &[]).stdin(Stdio::null()).stdout(Stdio::null()))
    };
    Ok([run(database, 1)?, run(backup, 32)?])
}

/// Results of a load: the database's mean latency in ms, and the backup's requests per second.
struct Served {
    response_ms: f64,
    backup_iops: f64,
}

/// Runs the loads of database and backup at the same time, and measures them for `seconds` after `settle_seconds`.
fn load([database, backup]: &[Disk; 2], settle_seconds: u64, seconds: u64) -> Result<Served> {
    let ramp = format!("--ramp_time={settle_seconds}");
    let noise = std::fs::File::create("/run/backup.json")?;
    let mut other = fio(backup, 32, seconds, &[&ramp]);
    let other = Running::spawn(other.stdin(Stdio::null()).stdout(noise))?;
    let text = process::output(&mut fio(database, 1, seconds, &[&ramp]))?;
    other.wait(READY_LIMIT)?;
    let figure = |text: &str, of: fn(&Value) -> Option<f64>| -> Result<f64> {
        let from = text.find('{').context("fio said nothing")?;
        let report: Value = serde_json::from_str(&text[from..]).context("the report of fio is not JSON")?;
        of(&report["jobs"][0]["read"]).with_context(|| format!("fio said {report}"))
    };
    Ok(Served {
        response_ms: figure(&text, |read| read["clat_ns"]["mean"].as_f64())? / 1e6,
        backup_iops: figure(&std::fs::read_to_string("/run/backup.json")?, |read| read["iops"].as_f64())?,
    })
}

/// Measures the load without the agent and with the agent, and compares both.
fn compare(stage: &Stage, figures: &mut Figures, kind: Kind) -> Result<String> {
    let disks = stage.disks(kind);
    let lengths = || lengths(disks);
    let before = lengths()?;
    let without = load(disks, SETTLE_SECONDS[0], stage.load_seconds)?;
    let agent = one_for_both(stage, disks)?;
    let with = load(disks, SETTLE_SECONDS[1], stage.load_seconds)?;
    let (during, state) = (lengths()?, agent.state()?["pools"][0].take());
    let why = agent.ask(&["why", "san"])?;
    agent.stop()?;
    let after = lengths()?;
    let detail = judge(figures, &without, &with, &before, &during, &[state])?;
    ensure!(why.contains("san backup"), "guard why said {why}");
    ensure!(after == before, "after the agent's end queues are {after:?}: {detail}");
    Ok(detail)
}

/// Checks that the latency target was missed without agents and met with agents, which reduced the queue depth of the backup's
/// disk. `before` and `during` are the disks' queue depths without and with agents.
fn judge(
    figures: &mut Figures,
    without: &Served,
    with: &Served,
    before: &[u32],
    during: &[u32],
    states: &[Value],
) -> Result<String> {
    let detail = format!(
        "target {TARGET_MS} ms; without {:.1} ms, backup {:.0}/s, queues {before:?}; with {:.1} ms, backup {:.0}/s, queues {during:?}",
        without.response_ms, without.backup_iops, with.response_ms, with.backup_iops
    );
    if with.response_ms >= TARGET_MS {
        println!("lab: the target is not met: {states:?}");
    }
    // Behind 32 requests of the backup, a request takes four times the target.
    figures.at_least("without_ms", without.response_ms, TARGET_MS, TARGET_MS);
    // A queue that is not shorter gives what there was without an agent.
    figures.at_most("with_ms", with.response_ms, 0.75 * without.response_ms, TARGET_MS);
    // With a queue of one request, the backup still takes turns with the database.
    figures.at_least("backup_of_free", with.backup_iops / without.backup_iops, 0.25, 0.5);
    ensure!(during[1] < before[1], "no queue became shorter: {detail}; {states:?}");
    Ok(detail)
}

/// Compares the load without agents and with one agent for each disk; the disks are of different kinds. After that etcd dies
/// under load and returns. At the end one agent is stopped and the other killed.
fn together(stage: &Stage, figures: &mut Figures) -> Result<String> {
    let disks = &[stage.scsi[0].clone(), stage.nvme[1].clone()];
    let before = lengths(disks)?;
    let without = load(disks, SETTLE_SECONDS[0], stage.load_seconds)?;
    let etcd = start_etcd()?;
    let agents = one_for_each(stage, disks)?;
    agree(&agents, "shared")?;
    let with = load(disks, SETTLE_TOGETHER_SECONDS, stage.load_seconds)?;
    let during = lengths(disks)?;
    agree(&agents, "shared").context("after the load")?;
    let states = [agents[0].state()?, agents[1].state()?];
    let detail = judge(figures, &without, &with, &before, &during, &states)?;
    let noise = noise(disks)?;
    let decided = |how: &str| {
        let last = || {
            std::thread::sleep(REST);
            agents[1].ask(&["why", "san", "-n", "1"]).ok().filter(|last| last.contains(how))
        };
        until(&format!("decision of the backup's agent {how}"), last).map(drop)
    };
    decided("with other hosts")?;
    let at = Instant::now();
    etcd.kill();
    agree(&agents, "lost")?;
    let took = at.elapsed();
    for place in HOSTS {
        ensure!(
            place.said().contains("this host decides alone"),
            "{} does not say that it is alone: {}",
            place.name,
            place.said()
        );
    }
    decided("alone").context("without etcd")?;
    let etcd = start_etcd()?;
    agree(&agents, "shared").context("etcd is back")?;
    decided("with other hosts").context("etcd is back")?;
    until("shorter queue", || (disks[1].length().ok()? < before[1]).then_some(()))?;
    let [database, backup] = agents;
    database.stop()?;
    ensure!(disks[0].length()? == before[0], "a stopped agent left {}", disks[0].length()?);
    backup.kill(false)?;
    until("original length", || (disks[1].length().ok()? == before[1]).then_some(()))?;
    noise.into_iter().for_each(Running::kill);
    etcd.kill();
    Ok(format!(
        "{detail}; both alone {:.1} s after etcd was killed, together again after its start",
        took.as_secs_f64()
    ))
}

/// Checks the agent with the policy file that all labs share, which has a latency target for one disk of an array.
fn shared_policy(stage: &Stage) -> Result<String> {
    let disks = stage.disks(Kind::Scsi);
    for (name, disk) in ["lab-database", "lab-backup"].iter().zip(disks) {
        policy::name_device(name, &Path::new("/dev").join(&disk.name))?;
    }
    let before = lengths(disks)?;
    let noise = noise(disks)?;
    let (guard, settings) = Guard::enforce(&stage.binary, guard::ONLY, "", "san")?;
    until("shorter queue", || (disks[1].length().ok()? < before[1]).then_some(()))?;
    guard.stop()?;
    noise.into_iter().for_each(Running::kill);
    ensure!(lengths(disks)? == before, "at its end the agent left {:?}", lengths(disks)?);
    Ok(settings)
}

/// Checks that disks get their old queue depth after the agent is killed; with `both`, after the agent and its sentinel are
/// killed.
fn killed(stage: &Stage, both: bool) -> Result<String> {
    let mut details = String::new();
    for kind in [Kind::Scsi, Kind::Nvme] {
        let disks = stage.disks(kind);
        let backup = &disks[1];
        let before = backup.length()?;
        let noise = noise(disks)?;
        let shorter = || until("shorter queue", || (backup.length().ok()? < before).then_some(()));
        let agent = one_for_both(stage, disks)?;
        shorter()?;
        let at = Instant::now();
        agent.kill(both)?;
        if both {
            std::thread::sleep(Duration::from_secs(1));
            ensure!(backup.length()? < before, "{kind:?}: who restored it?");
            let said = guard::reset(&stage.binary, guard::ONLY)?;
            ensure!(backup.length()? == before, "{kind:?}: guard reset left {}: {said}", backup.length()?);
            let agent = one_for_both(stage, disks)?;
            shorter()?;
            agent.kill(both)?;
            // The next one begins with what was there before, whatever it does then.
            let agent = one_for_both(stage, disks)?;
            let known = until("queue of the backup", || {
                let state = agent.state().ok()?;
                let backup =
                    state["pools"][0]["volumes"].as_array()?.iter().find(|volume| volume["name"] == "backup")?.clone();
                backup["queues"][0]["before"].as_u64()
            })?;
            agent.stop()?;
            ensure!(known == u64::from(before), "{kind:?}: the next agent found {known} instead of {before}");
            ensure!(backup.length()? == before, "{kind:?}: the next agent left {}", backup.length()?);
            details += &format!("{kind:?}: queue depth stays low until `guard reset` or the next start. ");
        } else {
            until("original length", || (backup.length().ok()? == before).then_some(()))?;
            details += &format!("{kind:?}: queue depth restored within {:.2} s. ", at.elapsed().as_secs_f64());
        }
        noise.into_iter().for_each(Running::kill);
    }
    Ok(details)
}
