//! Steps of the iSCSI lab with servers other than LIO: tgt, and `evenkeel serve` over NBD.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::control::spell;
use super::holding::Holding;
use super::observe::mean;
use super::stage::{
    GROUP, HOSTS, NBD_PORTS, Server, TGT_PORT, address, initiator, load, load_command, quiet, target, volume_path,
};
use crate::base::process::{self, Running};
use crate::base::servers::{self, EXPORT};
use crate::base::spelled::spelled;
use crate::check::figures::Figures;
use crate::machine::guest::{tool, work_dir};

const START_LIMIT: Duration = Duration::from_secs(20);

fn start(binary: &Path, server: Server) -> Result<Vec<Running>> {
    match server {
        Server::Lio => bail!("the kernel's target runs all the time"),
        Server::Tgt => start_tgt().map(|daemon| vec![daemon]),
        Server::Evenkeel => [(NBD_PORTS[0], server.volume(1)), (NBD_PORTS[1], server.volume(2))]
            .map(|(port, volume)| serve(binary, port, volume))
            .into_iter()
            .collect(),
    }
}

/// Starts tgt with an iSCSI target for each host.
fn start_tgt() -> Result<Running> {
    let mut command = process::program("tgtd");
    command.args(["-f", "--iscsi", &format!("portal=10.0.0.1:{TGT_PORT}")]);
    let daemon = process::daemon(Path::new("/run"), "tgtd", &mut command)?;
    let admin = |arguments: &str| -> Result<String> {
        tool("tgtadm", &format!("--lld iscsi {arguments}").split(' ').collect::<Vec<_>>())
    };
    let started = Instant::now();
    while let Err(error) = admin("--op show --mode target") {
        let said = || std::fs::read_to_string("/run/tgtd.log").unwrap_or_default();
        ensure!(started.elapsed() < START_LIMIT, "tgtd does not answer: {error:#}; it said {}", said());
        thread::sleep(Duration::from_millis(100));
    }
    for host in 1..=HOSTS {
        let volume = volume_path(Server::Tgt.volume(host));
        admin(&format!("--op new --mode target --tid {host} -T {}", target(host)))?;
        // Around the page cache, so that the device sees every request.
        admin(&format!("--op new --mode logicalunit --tid {host} --lun 1 --bsoflags direct -b {}", volume.display()))?;
        admin(&format!("--op bind --mode target --tid {host} -I ALL"))?;
    }
    Ok(daemon)
}

/// Starts `evenkeel serve` with one volume.
fn serve(binary: &Path, port: u16, volume: usize) -> Result<Running> {
    let dir = work_dir(&format!("serve-{port}"));
    std::fs::create_dir_all(&dir)?;
    let mut config = format!(
        "[server]\nstatus = \"off\"\nunix = []\nlisten = [\"10.0.0.1:{port}\"]\ndata_dir = {:?}\n",
        dir.join("data").display().to_string()
    );
    // What is measured here is the agent.
    config += "busy_poll = \"0s\"\n\n[pools.main]\ntuning.admission = \"none\"\n\n[tenants.default]\nweight = 1\n";
    write!(config, "\n[volumes.{EXPORT}]\nbackend = \"block\"\npath = \"{}\"\n", volume_path(volume).display())?;
    std::fs::write(dir.join("serve.toml"), config)?;
    let mut command = servers::serve(binary, dir.join("serve.toml"));
    servers::start_and_reach(&dir, "serve", &mut command, || servers::reach(&format!("10.0.0.1:{port}"), EXPORT))
}

/// Checks that `guard discover` shows all facts about a connected client of `server`.
fn check_found(binary: &Path, server: Server, host: usize) -> Result<String> {
    let map = process::json(Command::new(binary).args(["guard", "discover", "--json"]))?;
    let links = map["links"].as_array().context("guard discover printed no links")?;
    let of_it = |link: &&Value| link["server"] == spelled(&server) && link["client"] == address(host).as_str();
    let found: Vec<&Value> = links.iter().filter(of_it).collect();
    let [link] = found[..] else { bail!("{} links of {}: {found:?}", found.len(), address(host)) };
    let volume = volume_path(server.volume(host));
    ensure!(link["device"] == server.device(host).as_str(), "device: {link}");
    ensure!(link["pool"] == GROUP, "pool: {link}");
    match server {
        Server::Lio | Server::Tgt => {
            ensure!(link["target"] == target(host).as_str() && link["volume"] == "lun_1", "target: {link}");
            ensure!(link["path"] == volume.display().to_string(), "path: {link}");
            ensure!(link["client_name"] == initiator(host, 0).as_str(), "name: {link}");
            ensure!(link["known_by"] == "session", "certainty: {link}");
        }
        Server::Evenkeel => ensure!(link["known_by"] == "connection", "certainty: {link}"),
    }
    let text = |key: &str| link[key].as_str().unwrap_or("?").to_owned();
    Ok(format!("{} -> {} -> {} -> {GROUP}", address(host), text("target"), text("device")))
}

/// Checks that a client of `server` is found by `guard discover` and can be throttled.
pub(super) fn hold(binary: &Path, server: Server) -> Result<String> {
    let _servers = start(binary, server)?;
    let write = ["--seconds", "1", "--write"];
    let free = load(server, 2, &write)?;
    let connected = Running::spawn(quiet(&mut load_command(server, 2, 0, &["--seconds", "60", "--write"])?))?;
    let started = Instant::now();
    let found = loop {
        match check_found(binary, server, 2) {
            Err(_) if started.elapsed() < START_LIMIT => thread::sleep(Duration::from_millis(500)),
            found => break found?,
        }
    };
    drop(connected);
    let ports: Vec<String> = [TGT_PORT, NBD_PORTS[0], NBD_PORTS[1]].map(|port| port.to_string()).into();
    let more: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
    let measure = |packets: &str| -> Result<f64> {
        let holding = Holding::start(binary, &[2], 9_500, packets, &more)?;
        let held = load(server, 2, &write)?;
        let dropped = holding.stop()?;
        ensure!(dropped == 0, "{dropped} packets were dropped");
        Ok(held.mean_ms)
    };
    let (bare, all) = (measure("acknowledgements")?, measure("all")?);
    let detail = format!(
        "{found}; a write takes {:.2} ms free, {bare:.2} with acknowledgements held by 9.5 ms, {all:.2} with all packets",
        free.mean_ms
    );
    ensure!(all > free.mean_ms + 9.5 && bare > free.mean_ms + 9.5, "the delay is ineffective: {detail}");
    Ok(detail)
}

/// Checks the agent with `server`: the agent throttles the writers' hosts and no other host, and reads meet the latency target.
pub(super) fn agent(binary: &Path, figures: &mut Figures, server: Server) -> Result<String> {
    let _servers = start(binary, server)?;
    // `evenkeel serve` lets fewer requests into the device at once, so that reads wait for less in it.
    let target_ms = if server == Server::Evenkeel { 8 } else { 15 };
    let (windows, free_ms) = spell(binary, server, target_ms, 10)?;
    let reads: Vec<f64> = windows.iter().filter_map(|w| w.read_ms).collect();
    let worst = reads.iter().copied().fold(0.0, f64::max);
    let written = mean(windows.iter().map(|w| w.written_mb_per_s));
    let detail = format!(
        "target {target_ms} ms: from 6 s on {:.1} ms, worst second {worst:.1}; writes {written:.1} MB/s; {free_ms:.1} ms \
         without the agent",
        mean(reads.iter().copied())
    );
    ensure!(!reads.is_empty(), "no reads: {detail}");
    // No second as long as without the agent.
    figures.at_most("settled_ms", worst, free_ms, 1.15 * f64::from(target_ms));
    Ok(detail)
}
