//! `evenkeel guard run`: the loop with its clock, its files and its end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_guard::Agent;
use evenkeel_guard::agent::DISKSTATS;
use evenkeel_guard::config::Config;
use evenkeel_guard::discovery::map::Configured;
use evenkeel_guard::discovery::{Map, Note, Roots, Survey, resolved};
use evenkeel_guard::loops::packets::Packets;
use evenkeel_guard::loops::record::State;
use evenkeel_guard::points::osds::Osds;
use evenkeel_guard::sensor::initiators::Moved;
use evenkeel_guard::sensor::retransmits::{self, Segments};
use evenkeel_guard::sensor::tracepoints::{Events, FOLDERS, ReadTimes};
use evenkeel_guard::sensor::{Source, cgroup};
use evenkeel_server::Paced;
use signal_hook::consts::SIGHUP;

use super::act::Actor;
use super::certificates::Certificates;
use super::exchange::SharedArrays;
use crate::output;
use crate::serve::systemd::{self, Condition, Watchdog};
use crate::signals;

/// Where the kernel tells how many TCP segments were sent again.
const SNMP: &str = "/proc/net/snmp";
const SNMP_EVERY: Duration = Duration::from_secs(1);

/// Time between two ticks where there are only OSDs, which have threads of their own: for the clock that is shown.
const IDLE_EVERY: Duration = Duration::from_secs(1);

/// A map is old when so many new ones should have come since.
const OLD_MAP: u32 = 3;

const AFTER_HELP: &str = "\
Signals: HUP reads the policy and the certificates of the status address again (bad ones change nothing; what takes a restart is \
named); TERM and INT stop, and put everything back that was changed. So does the sentinel, should the agent be killed.";

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

/// What the loop and the API share.
pub(super) struct Shared {
    pub(super) agent: Agent,
    config: Config,
    exchange: Option<Arc<evenkeel_cluster::Handle>>,
    acting: bool,
    acting_reason: String,
    /// When the map that is in use was made, and after which time one ought to be there again, if one is needed.
    map_at: Instant,
    map_due: Option<Duration>,
    late_ticks: u64,
    errors: u64,
    last_error: Option<String>,
}

/// A record that a panic left half written is still worth showing.
pub(super) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn state(&self) -> State {
        let age = self.map_at.elapsed();
        let mut state = State {
            map_age_s: self.map_due.map(|_| age.as_secs_f64()),
            acting: self.acting,
            exchange: self.exchange.as_ref().map(|exchange| exchange.state()),
            acting_reason: self.acting_reason.clone(),
            late_ticks_total: self.late_ticks,
            errors_total: self.errors,
            last_error: self.last_error.clone(),
            ..self.agent.state()
        };
        if self.map_due.is_some_and(|due| age > OLD_MAP * due) {
            let message = format!(
                "who reaches which device was last found out {:.0} s ago: a target's tool or a file in /proc does not answer; clients that came since are not throttled",
                age.as_secs_f64()
            );
            state.notes.push(Note { kind: "old_map".into(), message });
        }
        state
    }

    fn failed(&mut self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        // Ten times a second the same is nothing to log.
        if self.last_error.as_ref() != Some(&text) {
            tracing::error!("{text}");
        }
        self.errors += 1;
        self.last_error = Some(text);
    }
}

/// Runs until told to stop.
///
/// # Errors
/// A configuration that cannot be used, a kernel that lacks what is asked for, or a stop that could not put everything back.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (config, doubts) = super::read(&args.config)?;
    for doubt in doubts {
        tracing::warn!("{doubt}");
    }
    let watches = config.watches_devices();
    if !watches && config.ceph.is_none() {
        return Err(anyhow!(
            "no pool has anything to enforce here; add [pools.NAME] with latency, NAME as `evenkeel guard discover` shows it, with devices and tenants whose control groups have a throughput guarantee, with tuning.slots and tenants that name its devices, or with devices = [\"osd:*\"] (`evenkeel check FILE` says of each pool what is missing)"
        ));
    }
    let diskstats = watches.then(|| Source::open(Path::new(DISKSTATS)).context("nothing can be measured"));
    let mut diskstats = diskstats.transpose()?;
    let mut received = signals::receive()?;
    let terms = config.agent.terms();
    let certificates = Arc::new(Certificates::read(terms.clone())?);
    let status = super::address(config.agent.status).map(crate::serve::listen_status).transpose()?;
    let address = status.as_ref().and_then(|listener| listener.local_addr().ok());

    let mut agent = Agent::open(&config, &Roots::default(), Path::new(cgroup::ROOT))?;
    let first = if watches { survey(&config.configured()) } else { Map::default() };
    for name in agent.packets.names().filter(|name| !first.resources.iter().any(|entry| entry.name == *name)) {
        tracing::warn!(
            "nothing that is served now is on {name}; it is looked for every {}",
            config.agent.discover_every
        );
    }
    agent.follow(first);
    for note in agent.state().pools.iter().flat_map(|pool| pool.notes.iter().map(move |note| (&pool.name, note))) {
        tracing::warn!("pool {}: {}", note.0, note.1);
    }
    let packets = &agent.packets;
    let mut read_times = packets.wants_read_times().then(|| start_read_times(packets)).transpose()?;
    let mut actor = Actor::start(&config, args.dry_run)?;
    let started = Instant::now();
    let discover_every = config.agent.discover_every.into();
    let osds = config.ceph.as_ref();
    let osds = osds.map(|ceph| Osds::start(ceph, discover_every, started, actor.shared_journal()));
    let osds = osds.transpose().context("cannot control OSDs")?;
    osds.iter().for_each(|osds| agent.add_osds(Arc::clone(osds)));
    let guarded = agent.names();
    let shared = Shared {
        agent,
        config: config.clone(),
        exchange: None,
        acting: actor.is_acting(),
        acting_reason: actor.explain(),
        map_at: Instant::now(),
        map_due: watches.then(|| config.agent.discover_every.into()),
        late_ticks: 0,
        errors: 0,
        last_error: None,
    };
    let shared = Arc::new(Mutex::new(shared));
    if let Some(listener) = status {
        let (stated, recorded, certificates) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&certificates));
        let records = move |pool: Option<&str>, count| lock(&recorded).agent.records(pool, count);
        let router = evenkeel_web::guard::router(move || lock(&stated).state(), records);
        evenkeel_web::spawn_read_only(router, listener, terms.http.tls, move || certificates.https())
            .context("cannot serve the API")?;
    }

    let exchange = start_exchange(&config, &shared)?;

    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, stopped) = (Arc::clone(&stop), thread::current());
    let pace = Paced::default();
    let configured = Arc::new(Mutex::new(config.configured()));
    let (newer, policies) = channel();
    let (path, running, ticking) = (args.config.clone(), Arc::clone(&shared), thread::current());
    let reload = crate::serve::reload_on_demand(move |_| {
        pace.run((), || {
            certificates.renew();
            if let Some(config) = reread(&path, &running) {
                let _ = newer.send(config);
                ticking.unpark();
            }
        });
    })?;
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
    let (found, maps) = channel();
    let (_alive, ended) = channel::<()>();
    if watches {
        let (configured, every) = (Arc::clone(&configured), config.agent.discover_every.into());
        thread::Builder::new()
            .name("evenkeel-discover".into())
            .spawn(move || discover(&configured, every, &found, &ended))?;
    }

    let mut lines = format!("guarding {}: {}\n", guarded.join(", "), actor.explain());
    if let Some(address) = address {
        let scheme = if terms.is_https(address) { "https" } else { "http" };
        lines += &format!("{scheme}://{address}/api/v1/state\n");
    }
    output::announce(lines);
    systemd::notify(Condition::Ready);
    let mut sensors = Sensors { diskstats: diskstats.as_mut(), read_times: read_times.as_mut() };
    let interval = if watches { config.agent.interval.into() } else { IDLE_EVERY };
    let news = News { maps, policies, configured };
    keep(interval, started, &shared, &mut sensors, &mut actor, &news, &stop);
    systemd::notify(Condition::Stopping);
    tracing::info!("stopping: putting everything back");
    if let Some(exchange) = exchange {
        exchange.stop();
    }
    if let Some(osds) = osds {
        osds.stop();
    }
    actor.stop()
}

/// The policy in the file, if it differs from the one that is enforced and can be taken; the log says what is not.
fn reread(path: &Path, running: &Mutex<Shared>) -> Option<Config> {
    let (config, doubts) = match super::read(path) {
        Ok(read) => read,
        Err(error) => {
            tracing::error!("reload refused, nothing was changed: {error:#}");
            return None;
        }
    };
    let running = lock(running).config.clone();
    let fixed = running.needs_restart(&config);
    if !fixed.is_empty() {
        tracing::error!("reload refused, nothing was changed: a restart is needed for {}", fixed.join(", "));
        return None;
    }
    doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    (running != config).then_some(config)
}

/// Puts a newer policy in force.
fn take_policy(shared: &mut Shared, config: &Config, actor: &mut Actor, configured: &Mutex<Configured>) {
    let changed = shared.config.changed_pools(config);
    let at = (&Roots::default(), Path::new(cgroup::ROOT));
    match shared.agent.reload(config, at, actor.journal().as_deref_mut()) {
        Ok(errors) => {
            *configured.lock().unwrap_or_else(PoisonError::into_inner) = config.configured();
            shared.config.clone_from(config);
            tracing::info!("reloaded: pools {} changed", changed.join(", "));
            errors.0.into_iter().for_each(|error| shared.failed(&error.into()));
        }
        Err(error) => tracing::error!("reload refused, nothing was changed: {error}"),
    }
}

/// What other threads find out for the loop.
struct News {
    maps: Receiver<Map>,
    policies: Receiver<Config>,
    /// Devices that the newest policy names, for discovery.
    configured: Arc<Mutex<Configured>>,
}

/// Has the slots of arrays decided together with other hosts, where there are any.
fn start_exchange(
    config: &Config,
    shared: &Arc<Mutex<Shared>>,
) -> anyhow::Result<Option<Arc<evenkeel_cluster::Handle>>> {
    if config.arrays.is_empty() {
        return Ok(None);
    }
    if config.exchange.etcd.is_empty() {
        tracing::warn!(
            "no [exchange] is configured: slots of arrays follow the latency that this host measures, without regard to the latency targets of others"
        );
        return Ok(None);
    }
    let settings = evenkeel_cluster::Settings::of_this_host(&config.exchange)?;
    let handle = Arc::new(evenkeel_cluster::start(settings, SharedArrays(Arc::clone(shared)))?);
    lock(shared).exchange = Some(Arc::clone(&handle));
    Ok(Some(handle))
}

/// What measures at every tick.
struct Sensors<'a> {
    /// Where there are devices to watch.
    diskstats: Option<&'a mut Source>,
    /// Where a latency target is for a percentile.
    read_times: Option<&'a mut ReadTimes>,
}

/// Has single reads measured, of the devices with latency targets for percentiles.
fn start_read_times(packets: &Packets) -> anyhow::Result<ReadTimes> {
    let mut read_times = ReadTimes::start(&Events::read(&FOLDERS.map(PathBuf::from))?, packets.names().count())?;
    read_times.watch(packets.timed_devices())?;
    Ok(read_times)
}

/// Takes over how long single reads took; what could not be read is the result.
fn count_read_times(
    packets: &mut Packets,
    now: evenkeel_control::Instant,
    read_times: &mut ReadTimes,
) -> Result<(), evenkeel_guard::Error> {
    let mut result = Ok(());
    packets.count_read_times(now, |pool, each| {
        if let Err(error) = read_times.read(pool, each) {
            result = Err(error);
        }
    });
    result
}

/// Ticks until told to stop.
fn keep(
    interval: Duration,
    started: Instant,
    shared: &Mutex<Shared>,
    sensors: &mut Sensors<'_>,
    actor: &mut Actor,
    news: &News,
    stop: &AtomicBool,
) {
    let mut due = Instant::now() + interval;
    let mut snmp = sensors
        .diskstats
        .as_ref()
        .and_then(|_| Source::open(Path::new(SNMP)).inspect_err(|error| tracing::warn!("{error}")).ok());
    let mut snmp_due = due;
    let mut watchdog = Watchdog::of_this_process();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        // Told by the loop itself, so that one that hangs is not told of.
        if let Some(watchdog) = &mut watchdog {
            watchdog.tell(now);
        }
        if now < due {
            thread::park_timeout((due - now).min(watchdog.as_ref().map_or(Duration::MAX, Watchdog::every)));
            continue;
        }
        let late = now - due > interval / 2;
        // After a long delay the ticks that were missed are not made up for.
        due = if late { now + interval } else { due + interval };
        let read = sensors.diskstats.as_mut().map_or(Ok(&[] as &[u8]), |diskstats| diskstats.read());
        let mut shared = lock(shared);
        shared.late_ticks += u64::from(late);
        let at = evenkeel_control::Instant::ZERO + now.duration_since(started).into();
        let mut timed = Ok(());
        while let Ok(config) = news.policies.try_recv() {
            take_policy(&mut shared, &config, actor, &news.configured);
        }
        match news.maps.try_recv() {
            Ok(map) => {
                shared.agent.follow(map);
                shared.map_at = now;
                if let Some(read_times) = &mut sensors.read_times {
                    timed = read_times.watch(shared.agent.packets.timed_devices());
                }
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        if let Some(read_times) = &mut sensors.read_times {
            timed = timed.and(count_read_times(&mut shared.agent.packets, at, read_times));
        }
        // Without a reading an empty file: every device is gone, and controllers let go after a while.
        let (text, failure) = match read {
            Ok(text) => (text, None),
            Err(error) => (&[] as &[u8], Some(anyhow::Error::from(error))),
        };
        let errors = shared.agent.tick(at, text, actor.journal().as_deref_mut());
        let acted = actor.hold(now, shared.agent.packets.holds());
        let failures = failure.into_iter().chain(errors.into_iter().map(anyhow::Error::from));
        let failures = failures.chain(timed.err().map(anyhow::Error::from)).chain(acted.err());
        failures.for_each(|error| shared.failed(&error));
        if now >= snmp_due {
            snmp_due = now + SNMP_EVERY;
            shared.agent.packets.count_initiators(Moved::read);
            if let Some(total) = snmp.as_mut().and_then(segments) {
                shared.agent.packets.watch_retransmits(at, total);
            }
        }
    }
}

/// TCP's totals, where the kernel tells them.
fn segments(snmp: &mut Source) -> Option<Segments> {
    let text = std::str::from_utf8(snmp.read().ok()?).ok()?;
    retransmits::parse(text).ok()
}

/// Looks around again and again, away from the loop: a large machine takes its time.
fn discover(configured: &Mutex<Configured>, every: Duration, found: &Sender<Map>, ended: &Receiver<()>) {
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let named = configured.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if found.send(survey(&named)).is_err() {
            return;
        }
    }
}

fn survey(configured: &Configured) -> Map {
    Map::of(&Survey::of_this_machine(), configured, resolved)
}
