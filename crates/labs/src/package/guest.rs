//! The package lab in the guest: checks of dpkg and systemd after each change of the package.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::client::{Client, Command as Request};
use crate::base::process;
use crate::check::steps::tell;
use crate::machine::services::{
    self, FOLDER, GUARD, PATIENCE, SERVE, beside, is_running, number, show, show_each, systemctl, until, write,
};

const ADDRESS: &str = "127.0.0.1:10809";
const EXPORT: &str = "disk0";
const SETTINGS: &str = "/etc/evenkeel/evenkeel.toml";
/// Text that an operator adds to the package's configuration file of the server.
const EDIT: &str = "\n[tenants.default]\nweight = 3\n";
const GUARD_SETTINGS: &str = "/etc/evenkeel/guard.toml";
const GUARD_EDIT: &str = "\n[pools.lab]\nlatency.target = \"15ms\"\n";
const DATA: &str = "/var/lib/evenkeel";
const PIECE: usize = 64 << 10;
/// Numbers of the pieces of the volume (64 KiB each) that the steps write.
const PLACES: [u64; 3] = [0, 1, 2];
/// Folders that a package manager or systemd writes to, in which files of Evenkeel are searched.
const SEARCHED: [&str; 6] = ["/etc", "/run", "/usr/bin", "/usr/lib/systemd", "/usr/lib/sysusers.d", "/var/lib"];
/// Paths that must not exist, in folders that would take an emulated processor too long to search.
const ABSENT: [&str; 3] =
    ["/usr/share/doc/evenkeel", "/usr/share/man/man1/evenkeel.1.gz", "/usr/share/bash-completion/completions/evenkeel"];

/// Boot of the machine, with the checks that run in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Boot {
    /// The package is installed and upgraded.
    First,
    /// The package is found as it was, and removed.
    Second,
}

type Step = fn(&[PathBuf]) -> Result<String>;
/// Steps before the machine is rebooted, in order.
pub(super) const BEFORE: [(&str, Step); 4] = [
    ("it_installs_and_starts_nothing", install),
    ("systemd_and_man_understand_what_is_installed", understood),
    ("enabled_it_serves_its_volume", serve),
    ("an_upgrade_keeps_data_settings_and_what_runs", upgrade),
];
/// Steps after the reboot, in order.
pub(super) const REBOOTED: [(&str, Step); 3] = [
    ("after_a_reboot_both_services_are_there_with_their_data", rebooted),
    ("removal_stops_both_and_keeps_data_and_settings", remove),
    ("purged_it_leaves_nothing_but_volumes_and_its_user", purge),
];

/// Runs the steps of a boot. `packages` are the package to install first, and its upgrade.
pub(crate) fn run(boot: Boot, packages: &[PathBuf], full: bool) -> Result<()> {
    let steps: &[(&str, Step)] = match boot {
        Boot::First => {
            services::prepare()?;
            if !full {
                forget_others(&packages[0])?;
            }
            // What `enable` puts there is what the lab's machine starts, in place of what the host has enabled.
            let wanted = format!("{FOLDER}/multi-user.target.wants");
            let _ = std::fs::remove_dir_all(&wanted);
            std::fs::create_dir_all(&wanted)?;
            std::os::unix::fs::symlink(&wanted, format!("{FOLDER}/lab.target.wants"))?;
            &BEFORE
        }
        Boot::Second => &REBOOTED,
    };
    let systemd = services::boot("lab.target")?;
    for (name, step) in steps {
        tell(name, step(packages).inspect_err(|_| services::print_journals()));
    }
    systemctl(&["--no-block", "poweroff"])?;
    systemd.wait(PATIENCE)?;
    // The machine ends with the last line of its console.
    rustix::fs::sync();
    Ok(())
}

/// Reduces dpkg's database to the packages on which Evenkeel's package depends. dpkg reads the file names of all packages at
/// each call, which takes an emulated processor long.
fn forget_others(package: &Path) -> Result<()> {
    const STATUS: &str = "/var/lib/dpkg/status";
    let fields =
        process::output(process::program("dpkg-deb").arg("--field").arg(package).args(["Depends", "Pre-Depends"]))?;
    // `Depends: one (>= 1), another:any | third`
    let names: Vec<&str> = fields
        .lines()
        .filter_map(|line| line.split_once(": "))
        .flat_map(|(_, list)| list.split([',', '|']))
        .filter_map(|name| name.trim().split([' ', ':']).next())
        .collect();
    let books = std::fs::read_to_string(STATUS)?;
    let needed = |book: &&str| {
        let name = book.lines().find_map(|line| line.strip_prefix("Package: "));
        name.is_some_and(|name| names.contains(&name))
    };
    let kept: Vec<&str> = books.split_inclusive("\n\n").filter(needed).collect();
    write(STATUS, &kept.concat())
}

fn dpkg(arguments: &[&str]) -> Result<String> {
    // The index of all manual pages of the host takes minutes on an emulated processor.
    let command = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "dpkg", "--no-triggers"];
    beside("env", &[&command, arguments].concat())
}

/// dpkg's status of Evenkeel's package: `installed`, `config-files` or empty.
fn status() -> String {
    beside("dpkg-query", &["-W", "-f", "${db:Status-Status}", "evenkeel"]).unwrap_or_default()
}

fn enabled(unit: &str) -> String {
    // Its exit status says the same again.
    let asked = beside("sh", &["-c", &format!("systemctl is-enabled {unit} || true")]);
    asked.unwrap_or_default().trim().to_owned()
}

fn weight() -> Result<Option<u64>> {
    let state = beside("evenkeel", &["state", "--json", "--config", SETTINGS])?;
    let state: Value = serde_json::from_str(&state).context("evenkeel state")?;
    Ok(state["pools"][0]["tenants"][0]["qos"]["weight"].as_u64())
}

fn piece(place: u64) -> Vec<u8> {
    (0..PIECE).map(|i| (i as u64).wrapping_mul(31).wrapping_add(place * 7 + 1) as u8).collect()
}

/// Writes the piece number `place` of the volume, and flushes it if `durable`.
fn put(place: u64, durable: bool) -> Result<()> {
    let mut client = Client::connect(ADDRESS, EXPORT, PATIENCE)?;
    client.send(Request::Write, false, 1, place * PIECE as u64, PIECE as u32, &piece(place))?;
    client.receive()?;
    if durable {
        client.send(Request::Flush, false, 2, 0, 0, &[])?;
        client.receive()?;
    }
    client.disconnect()
}

/// Checks that the pieces with these numbers contain the data that was written.
fn holds(places: &[u64]) -> Result<()> {
    let mut client = Client::connect(ADDRESS, EXPORT, PATIENCE)?;
    for &place in places {
        let mut found = vec![0; PIECE];
        client.read(place * PIECE as u64, &mut found)?;
        ensure!(found == piece(place), "the data written at piece {place} are not there");
    }
    client.disconnect()
}

fn install(packages: &[PathBuf]) -> Result<String> {
    let said = dpkg(&["--install", &packages[0].display().to_string()])?;
    ensure!(status() == "installed", "dpkg says {:?}: {said}", status());
    for unit in [GUARD, SERVE] {
        let (active, enabled) = (show(unit, "ActiveState")?, enabled(unit));
        ensure!(active == "inactive" && enabled == "disabled", "{unit} is {active} and {enabled}");
    }
    let changed = beside("dpkg", &["--verify", "evenkeel"])?;
    ensure!(changed.is_empty(), "not as in the package: {changed}");
    let user = beside("getent", &["passwd", "evenkeel"])?;
    ensure!(user.contains(":/var/lib/evenkeel:") && user.trim().ends_with("/nologin"), "the user is {user}");
    ensure!(!Path::new(DATA).exists(), "{DATA} is there before the first start");
    Ok(String::new())
}

fn understood(_: &[PathBuf]) -> Result<String> {
    let units = [GUARD, SERVE, "evenkeel.socket"].map(|unit| format!("/usr/lib/systemd/system/{unit}"));
    beside("systemd-analyze", &["verify", &units[0], &units[1], &units[2]])?;
    let page = beside("man", &["--locale=C", "--path", "evenkeel-serve"])?;
    ensure!(page.trim() == "/usr/share/man/man1/evenkeel-serve.1.gz", "man finds {page:?}");
    let script = "/usr/share/bash-completion/completions/evenkeel";
    beside("bash", &["-c", &format!(". {script} && complete -p evenkeel")])?;
    beside("evenkeel", &["check", "--strict", SETTINGS])?;
    beside("evenkeel", &["check", GUARD_SETTINGS])?;
    Ok(String::new())
}

fn serve(_: &[PathBuf]) -> Result<String> {
    systemctl(&["enable", "--now", SERVE])?;
    ensure!(is_running(SERVE)?, "it is {}", show(SERVE, "SubState")?);
    put(PLACES[0], true)?;
    holds(&PLACES[..1])?;
    let size = Client::connect(ADDRESS, EXPORT, PATIENCE)?.size;
    ensure!(size == 1 << 30, "the volume has {size} bytes");
    let user = show(SERVE, "UID")?;
    Ok(format!("as user {user}"))
}

fn append(file: &str, text: &str) -> Result<()> {
    let before = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    write(file, &(before + text))
}

fn upgrade(packages: &[PathBuf]) -> Result<String> {
    append(SETTINGS, EDIT)?;
    append(GUARD_SETTINGS, GUARD_EDIT)?;
    // Acknowledged, and not flushed: a graceful stop makes it durable.
    put(PLACES[1], false)?;
    let process = number(SERVE, "MainPID")?;
    dpkg(&["--install", &packages[1].display().to_string()])?;
    let version = beside("dpkg-query", &["-W", "-f", "${Version}", "evenkeel"])?;
    ensure!(status() == "installed" && version == "0.0.2", "{} {version}", status());
    ensure!(is_running(SERVE)? && number(SERVE, "MainPID")? != process, "the server was not started anew");
    let journal = beside("journalctl", &["--no-pager", "-u", SERVE])?;
    ensure!(journal.contains("stopping: answering requests in flight"), "it was not asked to stop:\n{journal}");
    let idle = show(GUARD, "ActiveState")?;
    ensure!(idle == "inactive", "a unit that did not run before is {idle}");
    ensure!(weight()? == Some(3), "the edited settings are not in force: {:?}", weight()?);
    holds(&PLACES[..2])?;
    put(PLACES[2], true)?;
    systemctl(&["enable", "--now", GUARD])?;
    ensure!(is_running(GUARD)?, "the agent is {}", show(GUARD, "SubState")?);
    Ok(String::new())
}

fn rebooted(_: &[PathBuf]) -> Result<String> {
    let both = || Ok(show_each(&[GUARD, SERVE], "SubState")? == ["running"; 2]);
    let took = until("both units", PATIENCE, both)?;
    ensure!(weight()? == Some(3), "the edited settings are not in force");
    holds(&PLACES)?;
    Ok(format!("{:.1} s after the target", took.as_secs_f64()))
}

fn remove(_: &[PathBuf]) -> Result<String> {
    dpkg(&["--remove", "evenkeel"])?;
    ensure!(status() == "config-files", "dpkg says {:?}", status());
    for unit in [GUARD, SERVE] {
        let (active, known) = (show(unit, "ActiveState")?, show(unit, "FragmentPath")?);
        ensure!(active == "inactive" && known.is_empty(), "{unit} is {active}, from {known}");
    }
    // The folder goes with the last link in it.
    let links = std::fs::read_dir(format!("{FOLDER}/multi-user.target.wants"));
    let left: Vec<_> = links.into_iter().flatten().flatten().map(|link| link.file_name()).collect();
    ensure!(left.is_empty(), "still enabled: {left:?}");
    ensure!(Path::new(SETTINGS).exists() && Path::new(GUARD_SETTINGS).exists(), "settings are gone");
    let volume = beside("stat", &["--format=%s", &format!("{DATA}/disk0.img")])?;
    ensure!(volume.trim() == (1u64 << 30).to_string(), "the volume has {volume} bytes");
    Ok(String::new())
}

fn purge(_: &[PathBuf]) -> Result<String> {
    const AGAIN: &str = "/var/lib/dpkg/lab.postrm";
    std::fs::copy("/var/lib/dpkg/info/evenkeel.postrm", AGAIN).context("cannot copy the removal script")?;
    dpkg(&["--purge", "evenkeel"])?;
    let volume = File::options().read(true).write(true).open(format!("{DATA}/disk0.img"));
    let volume = volume.context("the volume is gone")?;
    let mut found = vec![0; PIECE];
    volume.read_exact_at(&mut found, PLACES[0] * PIECE as u64)?;
    ensure!(found == piece(PLACES[0]), "the data written to the volume are gone");
    // As it was before anything was written.
    volume.set_len(0)?;
    beside("sh", &[AGAIN, "purge"])?;
    ensure!(status().is_empty() || status() == "not-installed", "dpkg says {:?}", status());
    let mut find = process::program("find");
    // Not the lab's own: what it shares with the host, and its settings of units; nor systemd's books.
    let others = ["-path", "/run/lab", "-o", "-path", "/run/systemd", "-o", "-name", "evenkeel*.service.d"];
    find.args(SEARCHED).args(["-xdev", "("]).args(others).args([")", "-prune"]);
    let left = process::output(find.args(["-o", "-name", "*evenkeel*", "-print"]))?;
    ensure!(left.is_empty(), "left behind: {}", left.split_whitespace().collect::<Vec<_>>().join(" "));
    for path in ABSENT {
        ensure!(!Path::new(path).exists(), "{path} is left behind");
    }
    beside("getent", &["passwd", "evenkeel"]).context("the user is gone")?;
    let running = until("the end of all processes", PATIENCE, || {
        Ok(process::output(process::program("pgrep").args(["--exact", "evenkeel"])).is_err())
    });
    running.map(|_| String::new())
}
