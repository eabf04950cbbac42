//! Control of all Ceph OSDs of this host: a thread for each OSD, so that an OSD that hangs blocks no other, and a thread that
//! searches for new OSDs.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenkeel_control::log::Log;
use evenkeel_policy::decision::DecisionRecord;

use super::osd::Osd;
use crate::aside::lock;
use crate::config::CephConfig;
use crate::discovery::osds::{self, OsdEntry};
use crate::journal::Journal;
use crate::loops::osd::Budget;
use crate::loops::record::PoolState;

/// Time between two attempts to reach an OSD that does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Time between two updates of an OSD's [`Shown`] state.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// The state of one OSD for display: a copy, because the OSD's thread owns the [`Osd`], also while the thread waits for an
/// answer.
#[derive(Debug)]
struct Shown {
    state: PoolState,
    decisions: Log<Budget>,
    /// True if the OSD has another socket now; the thread for the old socket is to end.
    replaced: bool,
}

/// All OSDs of this host, with their threads.
#[derive(Debug)]
pub struct Osds {
    config: CephConfig,
    started: Instant,
    stop: AtomicBool,
    /// The journal; `None` if nothing is set. [`Osds::stop`] drops the journal, so that the sentinel can lock it.
    journal: Mutex<Option<Arc<Mutex<Journal>>>>,
    known: Mutex<Vec<(OsdEntry, Arc<Mutex<Shown>>)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Osds {
    /// Starts to search for OSDs every `discover_every`, and to control the OSDs that are found; without a journal the OSDs
    /// are only watched.
    ///
    /// # Errors
    /// If the thread that searches for OSDs cannot be started.
    pub fn start(
        config: &CephConfig,
        discover_every: Duration,
        started: Instant,
        journal: Option<Arc<Mutex<Journal>>>,
    ) -> io::Result<Arc<Self>> {
        let osds = Arc::new(Self {
            config: config.clone(),
            started,
            stop: AtomicBool::new(false),
            journal: Mutex::new(journal),
            known: Mutex::default(),
            threads: Mutex::default(),
        });
        osds.look();
        if lock(&osds.known).is_empty() {
            tracing::warn!(
                "no OSD is found on this host; the agent searches every {} s: start an OSD, or name its socket in agent.ceph.sockets",
                discover_every.as_secs()
            );
        }
        let looking = Arc::clone(&osds);
        let looker = thread::Builder::new().name("evenkeel-osds".into()).spawn(move || {
            while looking.sleep(discover_every) {
                looking.look();
            }
        });
        lock(&osds.threads).push(looker?);
        Ok(osds)
    }

    /// Sleeps for `time`, or until [`Self::stop`]; true if the calling thread is to go on, false after `stop`.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            thread::park_timeout(left);
        }
    }

    /// Searches for OSDs: starts a thread for each new one, and marks an OSD's old socket as replaced if the OSD has another
    /// socket now.
    fn look(self: &Arc<Self>) {
        let found = osds::find(Path::new("/"), &self.config.settings.sockets);
        lock(&self.threads).retain(|thread| !thread.is_finished());
        lock(&self.known).retain(|(known, shown)| {
            // One that is only gone for a while comes back, and is the same then.
            let is_found = found.iter().any(|entry| entry.socket == known.socket);
            let replaced = !is_found && found.iter().any(|entry| entry.name == known.name);
            lock(shown).replaced = replaced;
            !replaced
        });
        for entry in found {
            let known = lock(&self.known).iter().any(|(known, _)| known.socket == entry.socket);
            if known || !self.config.wants(&entry.name) {
                continue;
            }
            // Which target is explored first should differ from one OSD to the next.
            let seed = lock(&self.known).len() as u64 + 1;
            let osd = Osd::new(&entry, &self.config, self.now(), seed);
            let shown = Shown { state: osd.state(), decisions: osd.decisions().clone(), replaced: false };
            let shown = Arc::new(Mutex::new(shown));
            let (osds, to_show) = (Arc::clone(self), Arc::clone(&shown));
            let thread = thread::Builder::new().name(format!("evenkeel-{}", entry.name)).spawn(move || {
                osds.keep(osd, &to_show);
            });
            match thread {
                Ok(thread) => {
                    lock(&self.threads).push(thread);
                    lock(&self.known).push((entry, shown));
                }
                Err(error) => tracing::error!("cannot control {}: {error}", entry.name),
            }
        }
    }

    fn now(&self) -> evenkeel_control::Instant {
        evenkeel_control::Instant::ZERO + self.started.elapsed().into()
    }

    /// Samples and controls an OSD until [`Self::stop`], or until the OSD has another socket. Missed samples are not made up
    /// for.
    fn keep(&self, mut osd: Osd, shown: &Mutex<Shown>) {
        let journal = lock(&self.journal).clone();
        let every: Duration = self.config.settings.sample_every.into();
        let mut due = Instant::now();
        let (mut show_due, mut last_error) = (due, None);
        while self.sleep(due.saturating_duration_since(Instant::now())) {
            if lock(shown).replaced {
                if let Some(Err(error)) = journal.map(|journal| osd.restore(&journal)) {
                    tracing::warn!("{}: {error}", osd.name());
                }
                return;
            }
            let result = osd.tick(|| self.now(), journal.as_deref());
            let now = Instant::now();
            due += every;
            if now > due {
                let missed = now.duration_since(due).as_nanos() / every.as_nanos().max(1) + 1;
                osd.skipped(u64::try_from(missed).unwrap_or(u64::MAX));
                due = now + every;
            }
            let error = result.err().map(|error| error.to_string());
            if error.is_some() {
                due = now + RETRY.max(every);
            }
            if error != last_error {
                match &error {
                    Some(error) => tracing::warn!("{}: {error}", osd.name()),
                    None => tracing::info!("{} answers", osd.name()),
                }
                last_error = error;
            }
            if now >= show_due {
                show_due = now + SHOW_EVERY;
                let mut shown = lock(shown);
                shown.state = osd.state();
                shown.decisions.clone_from(osd.decisions());
            }
        }
    }

    /// The states of all OSDs, each as of the OSD's newest sample or at most 100 ms older.
    pub fn states(&self) -> Vec<PoolState> {
        lock(&self.known).iter().map(|(_, shown)| lock(shown).state.clone()).collect()
    }

    /// The logged decisions about the OSD of this name; without a name about all OSDs.
    pub fn records(&self, osd: Option<&str>) -> Vec<DecisionRecord> {
        let known = lock(&self.known);
        let wanted = known.iter().filter(|(entry, _)| osd.is_none_or(|name| name == entry.name));
        let mut records = Vec::new();
        wanted.for_each(|(entry, shown)| records.extend(Budget::records(&lock(shown).decisions, &entry.name)));
        records
    }

    /// Names of the OSDs that have been found.
    pub fn names(&self) -> Vec<String> {
        lock(&self.known).iter().map(|(entry, _)| entry.name.clone()).collect()
    }

    /// Ends all threads. The OSDs' options keep the values that were set; the owner of the journal restores them afterwards.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        loop {
            let threads = std::mem::take(&mut *lock(&self.threads));
            if threads.is_empty() {
                break;
            }
            for thread in &threads {
                thread.thread().unpark();
            }
            for thread in threads {
                let _ = thread.join();
            }
        }
        *lock(&self.journal) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CephSettings;
    use crate::fake_osd::FakeOsd;
    use crate::folder::folder;
    use crate::loops::record::At;

    #[test]
    fn a_new_socket_of_an_osd_takes_the_place_of_the_old_one() {
        let folder = folder("replaced");
        let socket = |id: u32| folder.join(format!("ceph-osd.4711.{id}.asok"));
        let first = FakeOsd::start(&socket(1));
        let settings = CephSettings { sockets: vec![folder.to_owned()], ..CephSettings::default() };
        let config = CephConfig { settings, only: vec!["osd.4711".into()], ..CephConfig::default() };
        let osds = Osds::start(&config, Duration::from_secs(3_600), Instant::now(), None).unwrap();
        let shown = || {
            let sockets = osds.states().into_iter().map(|state| match state.at {
                At::Osd(osd) => (state.name, osd.socket),
                _ => panic!("another point"),
            });
            sockets.collect::<Vec<_>>()
        };
        let known = |id| vec![("osd.4711".to_owned(), socket(id).display().to_string())];
        assert_eq!(shown(), known(1));
        // One that is away stays until there is another.
        drop(first);
        osds.look();
        assert_eq!(shown(), known(1));
        let _second = FakeOsd::start(&socket(2));
        osds.look();
        assert_eq!(shown(), known(2));
        osds.stop();
    }
}
