//! The agent's main loop on a live host: clock, files, reloads, and restoring all settings at the end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use evenkeel_policy::check::Problem;

use super::actor::Actor;
use super::sensors::{self, GroupReads, Reads};
use super::shared::Shared;
use super::{Error, Say, faults};
use crate::Agent;
use crate::aside::leave_files;
use crate::aside::lock;
use crate::config::Config;
use crate::discovery::map::Configured;
use crate::discovery::{Map, Roots, Survey, resolved};
use crate::points::DISKSTATS;
use crate::points::osds::Osds;
use crate::sensor::initiators::Moved;
use crate::sensor::{Source, cgroup};

const SNMP_EVERY: Duration = Duration::from_secs(1);

/// Time between two ticks if only OSDs are controlled. OSDs have threads of their own, so that such a tick only advances the
/// uptime that is shown.
const IDLE_EVERY: Duration = Duration::from_secs(1);

/// The running agent on this host, with the files that it reads and the settings that it changes.
pub struct Host {
    interval: Duration,
    started: Instant,
    shared: Arc<Mutex<Shared>>,
    diskstats: Option<Source>,
    reads: Reads,
    group_reads: GroupReads,
    actor: Actor,
    osds: Option<Arc<Osds>>,
    guarded: String,
    newer: Sender<Config>,
    policies: Receiver<Config>,
    maps: Receiver<Map>,
    /// Devices by pool, as the policy in force names them; read by the discovery thread.
    configured: Arc<Mutex<Configured>>,
    /// Dropping these ends of channels ends the discovery thread, and the one that looks for faults of devices.
    _alive: (Sender<()>, Option<Sender<()>>),
}

/// Passes newer policies to the agent's loop.
pub struct Policies {
    shared: Arc<Mutex<Shared>>,
    newer: Sender<Config>,
    ticking: Thread,
}

impl Host {
    /// Discovers clients, targets and devices, and prepares the enforcement points that `config` asks for; with `dry_run` no
    /// setting will be changed. Call [`Host::keep`] on the same thread.
    ///
    /// # Errors
    /// The kernel lacks a part that the configuration needs, or the configuration cannot be enforced for another reason; on
    /// an error no setting is left changed.
    pub fn start(config: &Config, dry_run: bool, say: Say) -> Result<Self, Error> {
        super::raise_descriptors();
        let watches = config.watches_devices();
        let diskstats = watches.then(|| Source::open(Path::new(DISKSTATS))).transpose().map_err(Error::Measure)?;
        let mut agent = Agent::open(config, &Roots::default(), Path::new(cgroup::ROOT))?;
        let first = if watches { survey(&config.configured()) } else { Map::default() };
        for name in agent.packets.names().filter(|name| !first.pools.iter().any(|entry| entry.name == *name)) {
            tracing::warn!(
                "pool {name}: no target, export or disk found now is on its devices, so no client is throttled for it; the agent searches again every {}. `evenkeel guard discover` shows its findings",
                config.agent.discover_every
            );
        }
        agent.follow(first);
        for note in agent.state().pools.iter().flat_map(|pool| pool.notes.iter().map(move |note| (&pool.name, note))) {
            tracing::warn!("pool {}: {}", note.0, note.1);
        }
        let reads = Reads::start(&agent.packets)?;
        let group_reads = GroupReads::start(&agent.locals)?;
        let actor = Actor::start(config, dry_run, say)?;
        let started = Instant::now();
        let discover_every = config.agent.discover_every.into();
        let osds = config.ceph.as_ref();
        let osds = osds.map(|ceph| Osds::start(ceph, discover_every, started, actor.shared_journal()));
        let osds = osds.transpose().map_err(Error::Osds)?;
        osds.iter().for_each(|osds| agent.add_osds(Arc::clone(osds)));
        let guarded = format!("{}: {}", agent.names().join(", "), actor.explanation);
        let mut shared = Shared::new(agent, config.clone());
        (shared.acting, shared.acting_reason) = (actor.is_acting(), actor.explanation.clone());
        shared.map_due = watches.then_some(discover_every);
        let shared = Arc::new(Mutex::new(shared));
        let looking = if watches { Some(faults::start(&shared)?) } else { None };
        let configured = Arc::new(Mutex::new(config.configured()));
        let (found, maps) = channel();
        let (alive, ended) = channel();
        if watches {
            let configured = Arc::clone(&configured);
            thread::Builder::new().name("evenkeel-discover".into()).spawn(move || {
                // Paths of volumes may be on a disk that hangs.
                leave_files();
                discover(&configured, discover_every, &found, &ended);
            })?;
        }
        let (newer, policies) = channel();
        Ok(Self {
            interval: if watches { config.agent.interval.into() } else { IDLE_EVERY },
            started,
            shared,
            diskstats,
            reads,
            group_reads,
            actor,
            osds,
            guarded,
            newer,
            policies,
            maps,
            configured,
            _alive: (alive, looking),
        })
    }

    /// The state that the loop shares with the API.
    pub fn shared(&self) -> Arc<Mutex<Shared>> {
        Arc::clone(&self.shared)
    }

    /// A handle that passes newer policies to the loop; call this on the thread of the loop.
    pub fn policies(&self) -> Policies {
        Policies { shared: self.shared(), newer: self.newer.clone(), ticking: thread::current() }
    }

    /// A text for the operator: names of the pools and OSDs controlled at the start, and how decisions take effect.
    pub fn guarded(&self) -> &str {
        &self.guarded
    }

    /// Runs the loop until `stop` is set; unpark this thread after setting it. For the watchdog, the loop calls `alive` at
    /// every turn, at intervals of at most `at_least`; `None` sets no longest interval.
    pub fn keep(&mut self, stop: &AtomicBool, at_least: Option<Duration>, mut alive: impl FnMut(Instant)) {
        let mut due = Instant::now() + self.interval;
        let mut snmp = self.diskstats.as_ref().and_then(|_| sensors::open_segments());
        let mut snmp_due = due;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            alive(now);
            if now < due {
                thread::park_timeout((due - now).min(at_least.unwrap_or(Duration::MAX)));
                continue;
            }
            let late = now - due > self.interval / 2;
            // After a long delay the ticks that were missed are not made up for.
            due = if late { now + self.interval } else { due + self.interval };
            self.tick(now, late);
            if now >= snmp_due {
                snmp_due = now + SNMP_EVERY;
                let at = self.at(now);
                let packets = &mut lock(&self.shared).agent.packets;
                packets.count_initiators(Moved::read);
                if let Some(total) = snmp.as_mut().and_then(sensors::segments) {
                    packets.watch_retransmits(at, total);
                }
            }
        }
    }

    /// `now` on the agent's clock, which was zero at the agent's start.
    fn at(&self, now: Instant) -> evenkeel_control::Instant {
        evenkeel_control::Instant::ZERO + now.duration_since(self.started).into()
    }

    fn tick(&mut self, now: Instant, late: bool) {
        let at = self.at(now);
        let read = self.diskstats.as_mut().map_or(Ok(&[] as &[u8]), Source::read);
        let mut shared = lock(&self.shared);
        shared.late_ticks += u64::from(late);
        while let Ok(config) = self.policies.try_recv() {
            take_policy(&mut shared, &config, &self.actor, &self.configured);
        }
        let mut timed = Ok(());
        if let Ok(map) = self.maps.try_recv() {
            shared.agent.follow(map);
            shared.map_at = now;
            timed = self.reads.watch(&shared.agent.packets);
        }
        timed = timed.and(self.reads.count(&mut shared.agent.packets, at));
        timed = timed.and(self.group_reads.count(&mut shared.agent.locals, at));
        // Without a reading an empty file: every device is gone, and controllers release all clients after a while.
        let (text, failure) = read.map_or_else(|error| (&[] as &[u8], Some(error)), |text| (text, None));
        let errors = shared.agent.tick(at, text, self.actor.journal().as_deref_mut());
        let acted = self.actor.delay(now, shared.agent.packets.delays());
        failure.iter().for_each(|error| shared.failed(error));
        errors.iter().for_each(|error| shared.failed(error));
        timed.err().iter().for_each(|error| shared.failed(error));
        acted.err().iter().for_each(|error| shared.failed(error));
    }

    /// Ends the agent, and restores all settings that it has changed.
    ///
    /// # Errors
    /// [`Error::NotRestored`] if settings could not be restored; they stay in the journal.
    pub fn stop(self) -> Result<(), Error> {
        if let Some(osds) = self.osds {
            osds.stop();
        }
        self.actor.stop()
    }
}

impl Policies {
    /// Passes a policy to the loop, with its warnings to the log. A policy that needs a restart of the agent is refused; the
    /// log says why.
    pub fn offer(&self, config: Config, doubts: &[Problem]) {
        let (running, has_joined) = {
            let shared = lock(&self.shared);
            (shared.config.clone(), shared.agent.shares_totals())
        };
        let fixed = running.needs_restart(&config, has_joined);
        if !fixed.is_empty() {
            tracing::error!(
                "the new policy is not applied and the earlier one stays in force: restart the agent for {}",
                fixed.join(", ")
            );
            return;
        }
        doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
        // Also the one in force: another may be on its way there.
        let _ = self.newer.send(config);
        self.ticking.unpark();
    }
}

/// Puts the policy `config` in force, if it differs from the one in force.
fn take_policy(shared: &mut Shared, config: &Config, actor: &Actor, configured: &Mutex<Configured>) {
    if shared.config == *config {
        return;
    }
    let changed = shared.config.changed_pools(config);
    let at = (&Roots::default(), Path::new(cgroup::ROOT));
    match shared.agent.reload(config, at, actor.journal().as_deref_mut()) {
        Ok(errors) => {
            *lock(configured) = config.configured();
            shared.config.clone_from(config);
            tracing::info!("reloaded: pools {} changed", changed.join(", "));
            errors.0.iter().for_each(|error| shared.failed(error));
        }
        Err(error) => tracing::error!("the new policy is not applied and the earlier one stays in force: {error}"),
    }
}

/// Body of the discovery thread: sends a new map of clients and devices to `found` after each time `every`, until the sender
/// of `ended` is dropped. Discovery has a thread of its own because it takes long on a host with many processes or devices.
fn discover(configured: &Mutex<Configured>, every: Duration, found: &Sender<Map>, ended: &Receiver<()>) {
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let named = lock(configured).clone();
        if found.send(survey(&named)).is_err() {
            return;
        }
    }
}

fn survey(configured: &Configured) -> Map {
    Map::of(&Survey::of_this_machine(), configured, resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Abilities;

    fn policy(target: &str) -> Config {
        let text = format!("[pools.a]\nlatency.target = \"{target}\"\n");
        Config::parse(&text, "test", Abilities { tracepoints: false }).expect("valid")
    }

    #[test]
    fn an_agent_names_its_host_by_the_boot_id() {
        let roots = Roots::default();
        let agent = Agent::open(&policy("10ms"), &roots, Path::new("none")).expect("opened");
        assert!(!roots.boot_id().is_empty());
        assert_eq!(agent.state().boot_id, roots.boot_id());
    }

    /// An agent that is not on this host, under a policy.
    fn shared(config: &Config) -> Arc<Mutex<Shared>> {
        let agent = Agent::open(config, &Roots::under(Path::new("none")), Path::new("none")).expect("opened");
        Arc::new(Mutex::new(Shared::new(agent, config.clone())))
    }

    #[test]
    fn the_first_limit_of_a_cluster_is_taken_by_an_agent_that_has_joined_it() {
        let read = |limit: &str| {
            let text = format!(
                "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n[tenants.bulk]\nmatch = [\"cgroup:b\"]\n\
                 {limit}[cluster]\netcd = [\"http://a:2379\"]\n"
            );
            Config::parse(&text, "test", Abilities { tracepoints: false }).expect("valid")
        };
        // The policy in force when the last limit has gone.
        let shared = shared(&read(""));
        let (newer, offered) = channel();
        let policies = Policies { shared: Arc::clone(&shared), newer, ticking: thread::current() };
        policies.offer(read("limit.iops = 100\n"), &[]);
        assert!(offered.try_recv().is_err(), "an agent outside the cluster needs a restart");
        lock(&shared).agent.share_totals();
        policies.offer(read("limit.iops = 100\n"), &[]);
        assert!(offered.try_recv().is_ok_and(|config| config.shares_totals()));
    }

    #[test]
    fn the_policy_that_was_offered_last_is_the_one_in_force() {
        let (first, second) = (policy("10ms"), policy("20ms"));
        let shared = shared(&first);
        let (newer, offered) = channel();
        let policies = Policies { shared: Arc::clone(&shared), newer, ticking: thread::current() };
        // All within one tick.
        [&second, &first].into_iter().for_each(|config| policies.offer(config.clone(), &[]));
        let (actor, configured) = (Actor::watching(""), Mutex::default());
        let mut in_force = Vec::new();
        while let Ok(config) = offered.try_recv() {
            take_policy(&mut lock(&shared), &config, &actor, &configured);
            in_force.push(lock(&shared).config.clone());
        }
        assert_eq!(in_force, [second, first]);
    }
}
