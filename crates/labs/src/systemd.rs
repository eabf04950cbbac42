//! The systemd lab: the shipped units under the real systemd, in a virtual machine. Services are started, watched, hung, killed
//! and stopped.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process;
use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};
use crate::check::steps;
use crate::machine::guest::tool;
use crate::machine::services;
use crate::machine::services::{
    FOLDER, GUARD, PATIENCE, SERVE, beside, drop_in, is_running, named_drop_in, number, show, show_each, systemctl,
    until, write,
};
use crate::machine::vm::{self, Machine, SHARE};

const LIMIT: Duration = Duration::from_secs(600);
const DEVICE: &str = "lab0";
const GUARD_CONFIG: &str = "[agent]\ninterfaces = [\"lab0\"]\n\n[pools.lab]\nlatency.target = \"15ms\"\n";
const SERVE_FILE: &str = "/etc/evenkeel/evenkeel.toml";
const SERVE_CONFIG: &str = "[volumes.disk0]\nsize = \"64MiB\"\n";
/// Path of the server's control socket, which follows from the unit's state folder and the default data folder.
const SERVE_CONTROL: &str = "/var/lib/evenkeel/evenkeel-data/control.sock";
const PROGRAM: &str = "/usr/local/bin/evenkeel";
/// Drop-in with a shorter watchdog time than the shipped 15 and 30 s, so that a hung service is found soon. With `--full` the
/// shipped times are used.
const SHORT_WATCHDOG: &str = "[Service]\nWatchdogSec=10s\n";
/// Drop-in that delays the restart of a service, so that the state after an agent's death can be checked.
const NO_RESTART: &str = "[Service]\nRestartSec=1h\n";

/// Path of an admin socket as in Debian's Ceph.
const OSD: &str = "/run/ceph/ceph-osd.7.asok";
/// Number of the user and group that own an admin socket in Debian's Ceph.
const CEPH: u32 = 64_045;

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "systemd")?;
    let mut machine = Machine::new(vm::SERVICES, &options.build, &scratch, options.verbose)?;
    let units = crate::base::build::workspace().join("packaging/systemd");
    // Without symbols: an emulated processor copies it.
    process::output(process::program("strip").arg("-o").arg(scratch.path().join("evenkeel")).arg(&options.binary))?;
    let program = format!("{SHARE}/evenkeel");
    let mut arguments = vec!["--units".to_owned(), units.display().to_string(), "--program".into(), program];
    arguments.extend(options.full.then(|| "--full".to_owned()));
    let script = options.guest_script("systemd", &arguments)?;
    let guest = machine.boot(&script, &[])?;
    steps::report(lab, guest, LIMIT, STEPS.len())
}

type Step = fn() -> Result<String>;
/// The steps of the lab, each with its name, in order.
const STEPS: [(&str, Step); 8] = [
    ("the_units_start_and_say_when_they_are_ready", start),
    ("the_watchdog_hears_that_all_is_well", fed),
    ("a_reload_keeps_them_running", reload),
    ("who_hangs_is_ended_and_started_anew", hang),
    ("agent_and_sentinel_killed_leave_nothing", kill),
    ("a_stop_puts_everything_back", stop),
    ("with_the_drop_in_of_its_page_the_server_raises_priorities", priority),
    ("with_the_drop_in_of_its_page_the_agent_reaches_osds", ceph),
];

/// In the guest: starts systemd in a process namespace of its own, and runs every step.
pub(crate) fn guest(binary: &Path, units: &Path, full: bool) -> Result<()> {
    install(binary, units)?;
    if !full {
        for unit in [GUARD, SERVE] {
            named_drop_in(unit, "watchdog", SHORT_WATCHDOG)?;
        }
    }
    let _systemd = services::boot("lab.target")?;
    for (name, step) in STEPS {
        steps::tell(name, step().inspect_err(|_| services::print_journals()));
    }
    Ok(())
}

fn install(binary: &Path, units: &Path) -> Result<()> {
    services::prepare()?;
    for folder in ["/etc/evenkeel", "/usr/local/bin"] {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(binary, PROGRAM).context("cannot install the program")?;
    for entry in std::fs::read_dir(units)? {
        let unit = entry?;
        std::fs::copy(unit.path(), Path::new(FOLDER).join(unit.file_name()))?;
    }
    write("/etc/evenkeel/guard.toml", GUARD_CONFIG)?;
    write(SERVE_FILE, SERVE_CONFIG)?;
    tool("ip", &["link", "add", DEVICE, "type", "veth", "peer", "name", "lab1"])?;
    for device in [DEVICE, "lab1"] {
        tool("ip", &["link", "set", device, "up"])?;
    }
    Ok(())
}

/// True if the agent's queueing disciplines are installed on the network interface.
fn has_queues() -> Result<bool> {
    Ok(tool("tc", &["qdisc", "show", "dev", DEVICE, "root"])?.contains("htb 7ee1:"))
}

fn start() -> Result<String> {
    systemctl(&["start", "--no-block", GUARD, SERVE])?;
    let running = || Ok(show_each(&[GUARD, SERVE], "SubState")? == ["running"; 2]);
    // With Type=notify a unit runs when its process has said that it is ready.
    let took = until("both units", PATIENCE, running)
        .with_context(|| systemctl(&["list-jobs", "--no-pager"]).unwrap_or_default())?;
    for unit in [GUARD, SERVE] {
        ensure!(show(unit, "Type")? == "notify" && is_running(unit)?, "{unit} is {}", show(unit, "SubState")?);
        ensure!(number(unit, "NRestarts")? == 0, "{unit} was started more than once");
    }
    ensure!(has_queues()?, "the agent is ready without its queues");
    Ok(format!("after {:.1} s", took.as_secs_f64()))
}

fn fed() -> Result<String> {
    let last = || -> Result<Vec<u64>> {
        let told = show_each(&[GUARD, SERVE], "WatchdogTimestampMonotonic")?;
        ensure!(told.len() == 2, "systemd says {told:?}");
        Ok(told.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
    };
    let mut before = last()?;
    let patience = show_each(&[GUARD, SERVE], "WatchdogUSec")?;
    ensure!(!before.contains(&0) && !patience.contains(&"0".to_owned()), "no watchdog: {before:?}, {patience:?}");
    let mut detail = "told again within".to_owned();
    for _ in 0..2 {
        let took = until("news of both for the watchdog", PATIENCE, || {
            Ok(last()?.iter().zip(&before).all(|(now, before)| now > before))
        })?;
        before = last()?;
        detail += &format!(" {:.1} s", took.as_secs_f64());
    }
    Ok(detail)
}

/// The default tenant's weight, as the server reports it; `None` if it reports none.
fn weight() -> Result<Option<u64>> {
    let state = tool(PROGRAM, &["state", "--json", "--control", SERVE_CONTROL])?;
    let state: Value = serde_json::from_str(&state).context("evenkeel state")?;
    Ok(state["pools"][0]["tenants"][0]["qos"]["weight"].as_u64())
}

fn reload() -> Result<String> {
    let (process, before) = (number(SERVE, "MainPID")?, weight()?);
    ensure!(before == Some(1), "the default tenant has a weight of {before:?}");
    write(SERVE_FILE, &format!("{SERVE_CONFIG}[tenants.default]\nweight = 3\n"))?;
    systemctl(&["reload", SERVE])?;
    // The unit's signal is sent by then, and not yet followed.
    let took = until("the new weight", PATIENCE, || Ok(weight()? == Some(3)))?;
    ensure!(is_running(SERVE)? && number(SERVE, "MainPID")? == process, "the server did not stay");
    let agent = number(GUARD, "MainPID")?;
    systemctl(&["reload", GUARD])?;
    ensure!(is_running(GUARD)? && number(GUARD, "MainPID")? == agent, "the agent did not stay");
    Ok(format!("the file's new weight in force after {:.1} s", took.as_secs_f64()))
}

/// Checks that systemd restarts services that hang. The hang is simulated by stopped processes (SIGSTOP), which send no watchdog
/// messages.
fn hang() -> Result<String> {
    let before = [number(GUARD, "MainPID")?, number(SERVE, "MainPID")?];
    for unit in [GUARD, SERVE] {
        systemctl(&["kill", "--signal=STOP", "--kill-who=main", unit])?;
    }
    let mut detail = String::new();
    for (unit, before) in [(GUARD, before[0]), (SERVE, before[1])] {
        let took = until("another start", PATIENCE, || Ok(number(unit, "NRestarts")? == 1 && is_running(unit)?))?;
        ensure!(number(unit, "MainPID")? != before, "{unit} is the same process");
        let journal = beside("journalctl", &["--no-pager", "-u", unit])?;
        ensure!(journal.contains("result 'watchdog'"), "{unit} did not end by its watchdog:\n{journal}");
        detail += &format!("{unit} ended by its watchdog and runs again, {:.0} s; ", took.as_secs_f64());
    }
    ensure!(has_queues()?, "the new agent has no queues");
    Ok(detail)
}

/// Checks that after a kill of agent and sentinel, `ExecStopPost=` restores the settings that no other process can restore.
fn kill() -> Result<String> {
    drop_in(GUARD, NO_RESTART)?;
    systemctl(&["daemon-reload"])?;
    let waits = || Ok(show(GUARD, "SubState")? == "auto-restart");
    systemctl(&["kill", "--signal=KILL", "--kill-who=all", GUARD])?;
    until("the end of the agent", PATIENCE, waits)?;
    let (result, left) = (show(GUARD, "Result")?, has_queues()?);
    ensure!(!left, "queues are left when every setting has been restored (result {result})");
    systemctl(&["restart", GUARD])?;
    ensure!(is_running(GUARD)? && has_queues()?, "the new agent has no queues");
    Ok(format!("result {result}; nothing left between two starts"))
}

fn stop() -> Result<String> {
    systemctl(&["stop", GUARD, SERVE])?;
    for unit in [GUARD, SERVE] {
        let (state, result) = (show(unit, "ActiveState")?, show(unit, "Result")?);
        ensure!(state == "inactive" && result == "success", "{unit} is {state}, result {result}");
    }
    ensure!(!has_queues()?, "queues are left");
    let said = tool(PROGRAM, &["guard", "reset"])?;
    ensure!(said.contains("nothing to restore"), "guard reset said {said:?}");
    Ok(String::new())
}

/// Checks that the server, without its drop-in, warns that it is not allowed to raise the I/O priority of requests within a
/// reservation.
fn priority() -> Result<String> {
    const WARNING: &str = "no right to raise the I/O priority";
    write(SERVE_FILE, &format!("{SERVE_CONFIG}[tenants.default]\nreservation.iops = 100\n"))?;
    // A unit with Type=notify has started when the server has said all of its start.
    let log_of_a_start = || -> Result<String> {
        systemctl(&["restart", SERVE])?;
        ensure!(is_running(SERVE)?, "{SERVE} is {}", show(SERVE, "SubState")?);
        let invocation = format!("_SYSTEMD_INVOCATION_ID={}", show(SERVE, "InvocationID")?);
        beside("journalctl", &["--sync"])?;
        beside("journalctl", &["--no-pager", "--output=cat", &invocation])
    };
    let without = log_of_a_start()?;
    ensure!(without.contains(WARNING), "no warning without the drop-in:\n{without}");
    let page = crate::base::build::page_at("docs/reference/config.md")?;
    let wanted = page.split("```").find(|block| block.contains("ioprio_set\n") && block.contains("[Service]\n"));
    let wanted = wanted.context("config.md has no [Service] drop-in")?.trim_start_matches("ini");
    named_drop_in(SERVE, "priority", wanted)?;
    systemctl(&["daemon-reload"])?;
    let with = log_of_a_start()?;
    ensure!(with.contains("nbd://"), "the log of the start lacks the address:\n{with}");
    ensure!(!with.contains(WARNING), "a warning with the drop-in:\n{with}");
    systemctl(&["stop", SERVE])?;
    Ok("the warning is gone".into())
}

/// Checks that the agent reaches the admin socket: it reports that the listener there closes the connection and is no OSD.
fn ceph() -> Result<String> {
    let (socket, folder) = (services::inside(OSD), services::inside("/run/ceph"));
    std::fs::create_dir_all(&folder)?;
    let listener = UnixListener::bind(&socket).context("cannot be an OSD")?;
    for (path, mode) in [(&socket, 0o755), (&folder, 0o770)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        chown(path, Some(CEPH), Some(CEPH))?;
    }
    thread::spawn(move || {
        // The question, up to its end.
        listener.incoming().flatten().for_each(|stream| drop(BufReader::new(stream).skip_until(0)));
    });
    write("/etc/evenkeel/guard.toml", "[pools.ceph]\ndevices = [\"osd:*\"]\n")?;
    let osd = || -> Result<Value> {
        let state: Value = serde_json::from_str(&tool(PROGRAM, &["guard", "status", "--json"])?)?;
        Ok(state["pools"][0].clone())
    };
    systemctl(&["start", GUARD])?;
    let without = osd()?;
    ensure!(without.is_null(), "it is reached without the drop-in: {without}");
    let page = crate::base::build::page("ceph")?;
    let wanted =
        page.split("```\n").find(|block| block.contains("CAP_DAC_OVERRIDE")).context("ceph.md has no drop-in")?;
    drop_in(GUARD, wanted)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["restart", GUARD])?;
    let mut with = Value::Null;
    let reached = until("an answer", PATIENCE, || {
        with = osd()?;
        Ok(with["name"] == "osd.7" && with["problem"].as_str().is_some_and(|why| why.contains("the answer ends")))
    });
    reached.with_context(|| with.to_string())?;
    systemctl(&["stop", GUARD])?;
    Ok(with["problem"].to_string())
}
