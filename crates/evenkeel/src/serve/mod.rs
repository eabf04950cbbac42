//! `evenkeel serve`: serves volumes over NBD.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_policy::config::Status;
use evenkeel_policy::{Config, moment};
use evenkeel_server::{Error, Server, Start};
use evenkeel_web::Caller;
use evenkeel_web::history::NO_THREAD_CURE;
use evenkeel_web::serve::{Manager, Source, lock_of};
use rustix::fs::FlockOperation;
use signal_hook::consts::SIGHUP;

use crate::history;
use crate::output;
use crate::signals::{self, Received, Sender};

mod banner;
mod flags;
mod pools;
pub(crate) mod systemd;

use flags::Flags;
use pools::ServedPools;
use systemd::{Condition, Watchdog};

/// Options of `evenkeel serve`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Configuration file; see `evenkeel config example`
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    flags: Flags,
}

const AFTER_HELP: &str = "\
Signals: HUP reads the configuration again (an invalid one changes nothing); TERM and INT stop gracefully: requests in \
flight are answered and all data is made durable; a second signal stops at once.

Under systemd: sockets from a socket unit are used instead of the configured addresses (FileDescriptorName=status for the \
status address, =control for the control socket); Type=notify-reload and WatchdogSec= are supported.";

const STATUS_CURE: &str =
    "choose another address with --status ADDR:PORT (or server.status), or do without: --status off";
const LISTEN_CURE: &str = "choose another address with --listen or --unix (or server.listen, server.unix)";

/// Runs the server until a signal stops it.
///
/// # Errors
/// A configuration that cannot be used, addresses or volumes that are in use, or a stop that could not make everything durable.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    args.config.as_deref().map_or(Ok(()), readable_again)?;
    let mut sockets = systemd::inherited()?;
    let flags = Box::new(move |config: &mut Config| args.flags.apply(config));
    let source = Source { file: args.config, flags, minute: minute_of_day };
    let loaded = source.load().map_err(|errors| anyhow!("the configuration cannot be used\n{errors}"))?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let settings = loaded.config.server.clone();
    // First of all sockets: a second server in a folder is to be called that, whatever else the first one has.
    let control_path = settings.control_path();
    let (control, control_file) = match sockets.control.take() {
        Some(inherited) => {
            if let Some(danger) = systemd::danger(&inherited) {
                tracing::warn!("the control socket was inherited from the service manager, and {danger}");
            }
            (inherited, None)
        }
        None => listen_control(&control_path).map(|(listener, file)| (listener, Some(file)))?,
    };
    let _lock = lock(&settings.data_dir, LOCK_PATIENCE)?;
    let (control, _control_file) = match control_file {
        // Of two servers that start at once, the other one has taken this one's socket for one that was left behind.
        Some(file) if !file.is_in_place() => {
            listen_control(&control_path).map(|(listener, file)| (listener, Some(file)))?
        }
        control_file => (control, control_file),
    };
    let status = match (sockets.status.take(), settings.status) {
        (Some(inherited), _) => {
            // Of a configured address, the check of the configuration warns.
            if let Some(danger) = inherited.local_addr().ok().and_then(|address| settings.terms().danger(address)) {
                tracing::warn!("the status socket was inherited from the service manager, and {danger}");
            }
            Some(inherited)
        }
        (None, Status::Off) => None,
        (None, Status::At(address)) => Some(listen_status(address, STATUS_CURE)?),
    };
    let signals = signals::receive()?;

    let cluster = &loaded.config.cluster;
    let cluster = (!cluster.etcd.is_empty()).then(|| evenkeel_cluster::Settings::of_this_host(cluster)).transpose()?;
    let cluster = cluster.map(|joined| joined.kept_in(&settings.data_dir));
    let own_files = source.own_files(&settings.data_dir);
    let inherited = std::mem::take(&mut sockets.nbd);
    let start = Start { inherited, seed: seed(), own_files, ..Start::default() };
    let server = Server::start(loaded.config, start).map_err(|error| match error {
        error @ Error::Listen { .. } => anyhow!("{error}; {LISTEN_CURE}"),
        error => match error.volume().and_then(|volume| loaded.recorded.record_of(volume)) {
            Some(record) => anyhow!("{error} (the volume is recorded in {})", record.display()),
            None => error.into(),
        },
    })?;
    let status_address = status.as_ref().and_then(|listener| listener.local_addr().ok());
    let manager = Arc::new(Manager::new(server, source, loaded.fixed_volumes, loaded.recorded.is_superseded));
    evenkeel_web::spawn(Arc::clone(&manager), status, control)
        .context("cannot serve the status and control sockets; raise the limits of the service (ulimit -u, -n)")?;
    if let Some(settings) = cluster {
        manager.join_cluster(evenkeel_cluster::start(settings, ServedPools(Arc::clone(&manager)))?);
    }

    let reload = {
        let manager = Arc::clone(&manager);
        let reload = move |sender: Sender| match manager.reload(&Caller::Signal(sender)) {
            Ok(changes) => log_changes(&changes),
            Err(refusal) => tracing::error!(cure = refusal.cure, "reload refused: {}", refusal.message),
        };
        reload_on_demand(reload)?
    };
    keep_hours_in_time(&manager)?;

    // Last, so that no other thread is missing where threads are few.
    if let Err(error) = evenkeel_web::serve::record(&manager) {
        tracing::warn!("no history is recorded, as no thread can be started: {error}; {NO_THREAD_CURE}");
    }
    let uris = manager.server().listening().to_vec();
    output::announce(banner::lines(&manager.config(), &uris, status_address, &control_path));
    systemd::notify(Condition::Ready);
    if let Some(watchdog) = Watchdog::of_this_process() {
        watch(watchdog, Arc::clone(&manager))?;
    }
    wait(&manager, signals, &reload)
}

/// Checks that the configuration file can be read again at a reload.
///
/// # Errors
/// When `config` is `-`, which stands for standard input.
pub(crate) fn readable_again(config: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.as_os_str() != "-",
        output::Usage("--config - cannot be read again at a reload: name a file".into())
    );
    Ok(())
}

/// Lower bound on the time without a report after which a worker counts as hung; above it half of the watchdog's timeout counts.
/// A worker reports once a second.
const SILENT_FOR: Duration = Duration::from_secs(3);

/// Starts a thread that notifies the service manager's watchdog as long as no worker of the server hangs.
fn watch(mut watchdog: Watchdog, manager: Arc<Manager>) -> anyhow::Result<()> {
    let watch = move || {
        let mut silent = false;
        loop {
            let silence = manager.server().silence();
            let hangs = silence > SILENT_FOR.max(watchdog.patience() / 2);
            if !hangs {
                watchdog.tell(Instant::now());
            } else if !silent {
                tracing::error!(
                    "a worker has not responded for {silence:?}; until it does, the server does not notify systemd's watchdog, which restarts the server after WatchdogSec=. See the kernel's log for a device that hangs"
                );
            }
            silent = hangs;
            thread::sleep(watchdog.every());
        }
    };
    thread::Builder::new()
        .name("evenkeel-watchdog".into())
        .spawn(watch)
        .context("cannot start a thread for the watchdog; raise the limit of threads (ulimit -u)")?;
    Ok(())
}

/// The file of a Unix socket that this process has made. It is removed on drop, unless another one has taken its place, such as
/// that of a successor.
struct SocketFile {
    path: PathBuf,
    /// Device and inode; `None` if the file could not be examined.
    is: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), is: Self::at(path) }
    }

    fn at(path: &Path) -> Option<(u64, u64)> {
        fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// True if clients find this file at its path.
    fn is_in_place(&self) -> bool {
        self.is.is_some() && Self::at(&self.path) == self.is
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on the status address. `cure`: advice for the error message, how to choose another address.
///
/// # Errors
/// When the address cannot be opened.
pub(crate) fn listen_status(address: SocketAddr, cure: &str) -> anyhow::Result<TcpListener> {
    evenkeel_server::bind(address).map_err(|error| anyhow!("cannot open the status address: {error}; {cure}"))
}

/// Listens on the control socket, to which only this user can connect. The socket file of a server that no longer runs is
/// replaced.
fn listen_control(path: &Path) -> anyhow::Result<(UnixListener, SocketFile)> {
    let fail = |error: io::Error| {
        anyhow!(
            "cannot make the control socket {}: {error}; make its folder writable, or choose another place with --data-dir or server.control",
            path.display()
        )
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(fail)?;
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            return Err(anyhow!(
                "another server answers on {}; stop it, or give this one a data folder of its own with --data-dir (or server.control)",
                path.display()
            ));
        }
        Err(_) if evenkeel_server::is_stale(path) => fs::remove_file(path).map_err(fail)?,
        Err(_) if evenkeel_server::is_obstructed(path) => {
            return Err(anyhow!(
                "cannot make the control socket {}: it exists and is not a socket; choose another place with --data-dir or server.control",
                path.display()
            ));
        }
        Err(_) => {}
    }
    // The mask closes the moment between making the socket and restricting it; no other thread runs yet.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(fail)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok((listener, SocketFile::new(path)))
}

/// Longest wait for the lock of the data folder: a process that was killed has it until the kernel has ended all its threads.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts to lock the data folder.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Locks the data folder until the returned file is dropped or the process ends. Two servers with different control sockets
/// would each overwrite the other's records of volumes there. `None` if this user cannot write the lock's file; with a warning if
/// the file exists.
fn lock(data_dir: &Path, patience: Duration) -> anyhow::Result<Option<fs::File>> {
    let path = lock_of(data_dir);
    let mut options = fs::OpenOptions::new();
    // In a folder of another user a link might lead anywhere, and a pipe that nothing reads would keep the server waiting.
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match fs::create_dir_all(data_dir).and_then(|()| options.open(&path)) {
        Ok(file) => file,
        Err(error) => {
            if fs::symlink_metadata(&path).is_ok() {
                tracing::warn!(
                    "{} cannot be opened ({error}), so that a second server with this data folder would go unnoticed, and both would overwrite each other's records of volumes: make it a file that this user may write, or remove it while no server runs",
                    path.display()
                );
            }
            return Ok(None);
        }
    };
    let until = Instant::now() + patience;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOCK_POLL),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(anyhow!(
                    "another server uses the data folder {}; stop it, or give this one a folder of its own with --data-dir (or server.data_dir)",
                    data_dir.display()
                ));
            }
            // There are file systems without locks.
            Ok(()) | Err(_) => return Ok(Some(file)),
        }
    }
}

/// A seed for the controllers' exploration and jitter, which differs at each start of the server.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Handles signals until the server has stopped. SIGHUP requests a reload through `reload`; a signal to stop starts a graceful
/// stop, and a second one aborts it.
fn wait(manager: &Arc<Manager>, mut signals: Received, reload: &SyncSender<Sender>) -> anyhow::Result<()> {
    let mut stopping: Option<(thread::JoinHandle<_>, Instant)> = None;
    let handle = signals.handle();
    for info in signals.forever() {
        let (signal, sender) = (info.si_signo, signals::sender(&info));
        let since = stopping.as_ref().map(|(_, begun)| begun.elapsed());
        match (signal, since) {
            // One that still waits for its turn will read the newest configuration.
            (SIGHUP, _) => drop(reload.try_send(sender)),
            // Sent every second from the limit on, once more by a program that watches the power, or twice at once.
            (_, Some(since)) if !signals::is_second_request(signal, since) => {}
            (_, Some(_)) => {
                tracing::warn!("a second signal: stopping without answering the requests in flight");
                manager.server().abort();
                return Err(anyhow!(
                    "a second signal stopped the server before all requests were answered and all data was durable: writes since the last flush may be lost"
                ));
            }
            (_, None) => {
                let patience = manager.config().server.drain_timeout;
                tracing::info!(
                    why = signals::reason(signal),
                    by = sender.map(tracing::field::display),
                    "stopping: answering requests in flight, for at most {patience}; a second TERM or INT stops at once"
                );
                systemd::notify(Condition::Stopping);
                let (stopper, handle) = (Arc::clone(manager), handle.clone());
                let stop = move || {
                    stopper.leave_cluster();
                    let stopped = stopper.server().shutdown();
                    stopper.stop_recording();
                    handle.close();
                    stopped
                };
                match thread::Builder::new().name("evenkeel-stop".into()).spawn(stop.clone()) {
                    Ok(thread) => stopping = Some((thread, Instant::now())),
                    Err(error) => {
                        tracing::warn!(%error, "cannot start a thread for the stop: the server ignores further signals until it has stopped; kill -9 ends it at once, and may lose writes since the last flush");
                        return Ok(stop()?);
                    }
                }
            }
        }
    }
    match stopping.map(|(thread, _)| thread.join()) {
        Some(Ok(stopped)) => Ok(stopped?),
        Some(Err(_)) => Err(anyhow!(
            "the server panicked while it stopped: writes since the last flush may be lost; report the panic above as a bug"
        )),
        None => Ok(()),
    }
}

/// The minute of the day by the clocks of this machine.
pub(crate) fn minute_of_day() -> u16 {
    moment::minute_of_day(history::now(), history::zone::local)
}

/// Puts limits and weights with hours into force and out of it.
fn keep_hours(manager: &Manager) {
    // Changes are in the log already.
    if let Err(refusal) = manager.keep_hours() {
        tracing::error!(cure = refusal.cure, "cannot switch limits and weights by their hours: {}", refusal.message);
    }
}

/// Starts a thread that applies the hours of limits and weights at each start of a minute, while the manager exists. The thread
/// of reloads does not do this, as a reload may hang.
fn keep_hours_in_time(manager: &Arc<Manager>) -> anyhow::Result<()> {
    let manager = Arc::downgrade(manager);
    let keep = move || {
        loop {
            thread::sleep(Duration::from_secs(60 - history::now() % 60));
            let Some(manager) = manager.upgrade() else { return };
            keep_hours(&manager);
        }
    };
    let started = thread::Builder::new().name("evenkeel-hours".into()).spawn(keep);
    started.context("cannot start a thread for limits with hours; raise the limit of threads (ulimit -u)")?;
    Ok(())
}

/// Starts a thread that calls `reload` for each sender of SIGHUP in the returned channel, and reports the reload to the service
/// manager. A slow device may block this thread, but not the handling of signals.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn reload_on_demand(reload: impl Fn(Sender) + Send + 'static) -> anyhow::Result<SyncSender<Sender>> {
    let (demand, demands) = sync_channel(1);
    let reload = move || {
        for sender in demands {
            tracing::info!("reloading the configuration: {}", Caller::Signal(sender));
            systemd::notify(Condition::Reloading);
            reload(sender);
            systemd::notify(Condition::Ready);
        }
    };
    let started = thread::Builder::new().name("evenkeel-reload".into()).spawn(reload);
    started.context("cannot start a thread for reloads; raise the limit of threads (ulimit -u)")?;
    Ok(demand)
}

pub(crate) fn log_changes(changes: &[String]) {
    if changes.is_empty() {
        tracing::info!("reloaded, nothing changed");
    }
    for change in changes {
        tracing::info!("reloaded: {change}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_can_be_read_once_only_is_refused() {
        let refused = readable_again(Path::new("-")).unwrap_err();
        assert!(refused.is::<output::Usage>() && refused.to_string().contains("name a file"), "{refused}");
        readable_again(Path::new("./-")).unwrap();
    }

    #[test]
    fn a_file_in_place_of_the_control_socket_is_named_and_kept() {
        let folder = crate::folder::Folder::new();
        let file = folder.file("no.sock", "data");
        let error = listen_control(&file).map(drop).unwrap_err().to_string();
        assert!(error.contains("is not a socket") && !error.contains("writable"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"data");
    }

    #[test]
    fn the_socket_of_another_server_in_the_same_place_stays() {
        let path = std::env::temp_dir().join(format!("evenkeel-control-place-{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        // As long as a socket is open, no other file has its inode.
        let _first = UnixListener::bind(&path).unwrap();
        let first = SocketFile::new(&path);
        assert!(first.is_in_place());
        fs::remove_file(&path).unwrap();
        assert!(!first.is_in_place());
        let _second = UnixListener::bind(&path).unwrap();
        let second = SocketFile::new(&path);
        assert!(!first.is_in_place() && second.is_in_place());
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "the other server's socket");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_data_folder_has_one_server() {
        let folder = std::env::temp_dir().join(format!("evenkeel-locked-{}", std::process::id()));
        let first = lock(&folder, Duration::ZERO).unwrap();
        assert!(first.is_some() && lock_of(&folder).exists());
        let error = lock(&folder, Duration::ZERO).map(drop).unwrap_err().to_string();
        assert!(error.contains(&folder.display().to_string()) && error.contains("--data-dir"), "{error}");
        drop(first);
        assert!(lock(&folder, Duration::ZERO).unwrap().is_some());
        // Where no records can be written there is nothing to lock.
        assert!(lock(&lock_of(&folder), Duration::ZERO).unwrap().is_none());
        fs::remove_file(lock_of(&folder)).unwrap();
        std::os::unix::fs::symlink(folder.join("elsewhere"), lock_of(&folder)).unwrap();
        assert!(lock(&folder, Duration::ZERO).unwrap().is_none());
        assert!(!folder.join("elsewhere").exists(), "a link makes a file of its choice");
        fs::remove_file(lock_of(&folder)).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, lock_of(&folder), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(lock(&folder, Duration::ZERO).unwrap().is_none(), "a pipe without a reader keeps no server waiting");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_status_address_that_cannot_be_had_comes_with_a_cure() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        // The second one is of no interface here: it is for documentation.
        for address in [taken.local_addr().unwrap(), SocketAddr::from(([192, 0, 2, 1], 0))] {
            let error = listen_status(address, STATUS_CURE).unwrap_err().to_string();
            assert!(error.contains(&address.to_string()) && error.ends_with(STATUS_CURE), "{error}");
        }
    }
}
