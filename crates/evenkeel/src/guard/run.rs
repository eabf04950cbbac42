//! `evenkeel guard run`: the agent's loop, its signals, API and cluster.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, ensure};
use evenkeel_guard::config::{AgentConfig, Config};
use evenkeel_guard::host::{self, Host, Policies, Shared, lock};
use evenkeel_guard::loops::record::State;
use evenkeel_net::tls::Renewable;
use evenkeel_policy::config::Bound;
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::health::Health;
use evenkeel_server::Paced;
use evenkeel_web::history::{NO_THREAD_CURE, Place, Recorder};
use evenkeel_web::process;
use signal_hook::consts::SIGHUP;

use super::cluster::GuardedPools;
use crate::output::{self, Unusable};
use crate::serve::log_changes;
use crate::serve::systemd::{self, Condition, Watchdog};
use crate::signals;

const AFTER_HELP: &str = "\
Signals: HUP reads the policy and the certificates of the status address again (invalid ones change nothing; the log names \
changes that need a restart); TERM and INT stop, and restore all changed settings. If the agent is killed, the sentinel (a \
second process) restores them.";

/// Options of `evenkeel guard run`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Configuration file; see `evenkeel guard config example`
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,

    /// Decide and record, but throttle no client
    #[arg(long)]
    dry_run: bool,
}

/// Folder with an entry for each network device.
const NETWORK_DEVICES: &str = "/sys/class/net";

const STATUS_CURE: &str = "choose another address with the key agent.status, or do without: agent.status = \"off\"";

/// Runs the agent until it is stopped.
///
/// # Errors
/// A configuration that cannot be used, a kernel that lacks a required feature, or a stop that could not restore everything.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::serve::readable_again(&args.config)?;
    let (config, doubts) = super::read(&args.config).map_err(|error| Unusable(format!("{error:#}")))?;
    for doubt in doubts {
        tracing::warn!("{doubt}");
    }
    if super::is_idle(&config) && !args.dry_run {
        host::leftovers(&config.agent.journal, output::say);
    }
    ensure!(!super::is_idle(&config), Unusable(super::IDLE.into()));
    if args.dry_run && config.delays_packets() {
        // Without one, the real run would end at once.
        exist(&config.agent.interfaces, Path::new(NETWORK_DEVICES))?;
    }
    let mut received = signals::receive()?;
    let terms = config.agent.terms();
    let certificates = Arc::new(Renewable::load(terms.clone())?);
    let listen = |address| crate::serve::listen_status(address, STATUS_CURE);
    let status = super::address(config.agent.status).map(listen).transpose()?;
    let address = status.as_ref().and_then(|listener| listener.local_addr().ok());

    let mut host = Host::start(&config, args.dry_run, output::say)?;
    let shared = host.shared();
    lock(&shared).agent.keep_hours(crate::serve::minute_of_day);
    let history = record(&config.agent, &shared, &certificates);
    if let Some(listener) = status {
        let certificates = Arc::clone(&certificates);
        let stated = stated(&shared, &certificates);
        let router = evenkeel_web::guard::router(stated, recorded(&shared), history.clone());
        evenkeel_web::spawn_read_only(router, listener, terms.clone(), move || certificates.http())
            .context("cannot serve the API at agent.status; raise the limits of the service (ulimit -u, -n)")?;
    }

    let cluster = start_cluster(&config, &shared, args.dry_run)?;

    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, stopped) = (Arc::clone(&stop), thread::current());
    let pace = Paced::default();
    let (path, policies) = (args.config.clone(), host.policies());
    let reload = move |_: signals::Sender| {
        pace.run((), || {
            match certificates.renew() {
                Ok(changed) => log_changes(changed.then(|| "certificates changed".to_owned()).as_slice()),
                Err(error) => tracing::error!("new certificates refused, the present ones stay in use: {error}"),
            }
            reread(&path, &policies);
        });
    };
    let reload = crate::serve::reload_on_demand(reload)?;
    thread::Builder::new().name("evenkeel-signal".into()).spawn(move || {
        for info in received.forever() {
            let (signal, sender) = (info.si_signo, signals::sender(&info));
            if signal != SIGHUP {
                let by = sender.map(tracing::field::display);
                tracing::info!(why = signals::reason(signal), by, "stopping");
                break;
            }
            // One that still waits for its turn will read the newest files.
            let _ = reload.try_send(sender);
        }
        stopping.store(true, Ordering::Relaxed);
        stopped.unpark();
    })?;

    let mut lines = format!("guarding {}\n", host.guarded());
    if let Some(address) = address {
        let scheme = if terms.is_https(address) { "https" } else { "http" };
        lines += &format!("{scheme}://{address}/api/v1/state\n");
    }
    output::announce(lines);
    systemd::notify(Condition::Ready);
    let mut watchdog = Watchdog::of_this_process();
    host.keep(&stop, watchdog.as_ref().map(Watchdog::every), |now| {
        watchdog.iter_mut().for_each(|watchdog| watchdog.tell(now));
    });
    systemd::notify(Condition::Stopping);
    tracing::info!("{}", last_words(args.dry_run));
    if let Some(cluster) = cluster {
        cluster.stop();
    }
    let stopped = host.stop();
    history.iter().for_each(|history| history.stop());
    Ok(stopped?)
}

/// Refuses network devices that do not exist. `folder` has an entry for each that does.
fn exist(interfaces: &[String], folder: &Path) -> anyhow::Result<()> {
    match interfaces.iter().find(|name| !folder.join(name).exists()) {
        Some(name) => Err(Unusable(format!(
            "agent.interfaces: there is no network device {name}; name those by which clients are reached, as `ip link` shows them"
        ))
        .into()),
        None => Ok(()),
    }
}

/// A function that returns the agent's state, with the troubles of this process.
fn stated(shared: &Arc<Mutex<Shared>>, certificates: &Arc<Renewable>) -> impl Fn() -> State + Send + Sync + 'static {
    let (shared, certificates) = (Arc::clone(shared), Arc::clone(certificates));
    move || {
        let mut state = lock(&shared).state();
        let of_process = process::troubles("agent", certificates.doubt());
        state.health = Health::of(state.health.troubles.into_iter().chain(of_process).collect());
        state
    }
}

/// A function that returns the agent's newest decisions.
fn recorded(
    shared: &Arc<Mutex<Shared>>,
) -> impl Fn(Option<&str>, usize) -> Vec<DecisionRecord> + Send + Sync + 'static {
    let shared = Arc::clone(shared);
    move |pool, count| lock(&shared).agent.records(pool, count)
}

/// Starts to record the history; `None` if the agent has no folder for it, or no thread can be started, which is logged.
fn record(config: &AgentConfig, shared: &Arc<Mutex<Shared>>, certificates: &Arc<Renewable>) -> Option<Arc<Recorder>> {
    let Bound::At(bytes) = config.history else { return None };
    let Some(folder) = config.history_path(std::env::var("STATE_DIRECTORY").ok().as_deref()) else {
        tracing::info!("no history is recorded: set agent.data_dir to its folder, or agent.history = \"off\"");
        return None;
    };
    let place = Place { folder, bytes: bytes.0 };
    let started = evenkeel_web::guard::record(place, stated(shared, certificates), recorded(shared));
    started
        .inspect_err(|error| {
            tracing::warn!("no history is recorded, as no thread can be started: {error}; {NO_THREAD_CURE}");
        })
        .ok()
}

fn last_words(dry_run: bool) -> &'static str {
    if dry_run { "stopping: a dry run has changed nothing" } else { "stopping: restoring all settings" }
}

/// Reads the policy file again and hands the new policy to the agent's loop. An invalid file is logged and changes nothing.
fn reread(path: &Path, policies: &Policies) {
    match super::read(path) {
        Ok((config, doubts)) => policies.offer(config, &doubts),
        Err(error) => tracing::error!("the new policy is not applied and the earlier one stays in force: {error:#}"),
    }
}

/// Joins the cluster, so that slots of arrays and totals of tenants are decided together with other hosts; `None` if the
/// configuration has neither arrays nor such totals, or no cluster. With `dry_run` this host takes no part of totals.
fn start_cluster(
    config: &Config,
    shared: &Arc<Mutex<Shared>>,
    dry_run: bool,
) -> anyhow::Result<Option<Arc<evenkeel_cluster::Handle>>> {
    if config.arrays.is_empty() && (dry_run || !config.shares_totals()) {
        return Ok(None);
    }
    if config.cluster.etcd.is_empty() {
        tracing::warn!(
            "no [cluster] is configured: slots of arrays follow the latency that this host measures, without regard to the latency targets of other hosts; add [cluster] with etcd if hosts share an array"
        );
        return Ok(None);
    }
    let mut settings = evenkeel_cluster::Settings::of_this_host(&config.cluster)?;
    if dry_run {
        // Beside the agent of this host it would be a second member with the same load, and take slots from it.
        settings = settings.alone_beside_another();
    }
    if config.cluster.has_totals() && !dry_run {
        if let Some(folder) = config.agent.journal.parent() {
            settings = settings.kept_in(folder);
        }
        lock(shared).agent.share_totals();
    }
    let handle = Arc::new(evenkeel_cluster::start(settings, GuardedPools(Arc::clone(shared)))?);
    let shown = Arc::clone(&handle);
    lock(shared).cluster = Some(Box::new(move || shown.state()));
    Ok(Some(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_refuses_network_devices_that_do_not_exist() {
        let folder = crate::folder::Folder::new();
        std::fs::create_dir_all(folder.join("eth0")).expect("a folder");
        let exist = |names: &[&str]| exist(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), &folder);
        assert!(exist(&["eth0"]).is_ok() && exist(&[]).is_ok());
        let error = exist(&["eth0", "eth1"]).expect_err("missing");
        assert!(error.is::<Unusable>() && error.to_string().contains("no network device eth1"), "{error}");
    }

    #[test]
    fn a_dry_run_does_not_say_that_it_restores_settings() {
        assert!(last_words(false).contains("restoring all settings") && !last_words(true).contains("restoring"));
    }
}
