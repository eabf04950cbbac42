//! Tests of the tables of signals and limits in `docs/reference/failures.md`: each line is tried on a running server or agent.

#[path = "serve/agent.rs"]
mod agent;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "serve/server.rs"]
mod server;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
#[path = "../../xtask/src/test/tables.rs"]
mod tables;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use agent::Agent;
use server::{EVENKEEL, Folder, Server, http, run, succeed, wait};
use tables::table;

/// Names of the signals 1 to 31, in the order of their numbers, without `SIG`.
const NAMES: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN \
                     TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS";

/// The lines of the page's table of signals: the signals' numbers, and their effects on server and agent. Asserts that each of
/// the signals 1 to 64 occurs once.
fn signals() -> Vec<(Vec<i32>, [&'static str; 2])> {
    let number = |name: &str| {
        let known = NAMES.split_whitespace().position(|known| known == name).map(|index| index as i32 + 1);
        known.or(name.parse().ok()).unwrap_or_else(|| panic!("which signal is {name}?"))
    };
    let range = |names: &'static str| {
        let (first, last) = names.split_once('-').unwrap_or((names, names));
        number(first)..=number(last)
    };
    let rows: Vec<_> = table::<3>("Signals")
        .into_iter()
        .map(|[names, serve, guard]| (names.split(' ').flat_map(range).collect::<Vec<i32>>(), [serve, guard]))
        .collect();
    let mut all: Vec<i32> = rows.iter().flat_map(|(signals, _)| signals.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=64).collect::<Vec<_>>(), "every signal once");
    rows
}

/// A process to which a test sends signals: a server or an agent.
trait Target {
    /// Index of this program's effect in the lines of [`signals`]: 0 for the server, 1 for the agent.
    const COLUMN: usize;
    fn start() -> Self;
    fn id(&self) -> u32;
    fn send(&mut self, signal: i32) {
        kill(self.id(), signal);
    }
    /// Panics unless the process answers a request for its state.
    fn answers(&mut self);
    /// Waits until the process has reloaded its configuration after SIGHUP.
    fn has_reloaded(&mut self);
    fn end(&mut self) -> ExitStatus;
    /// Panics unless a new process starts in the folder of this one, which has ended, and stops gracefully.
    fn start_again(self);
}

fn kill(pid: u32, signal: i32) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.expect("kill runs").success());
}

struct Serve(Folder, Server);

impl Serve {
    fn command(folder: &Folder) -> Command {
        let mut command = Command::new("prlimit");
        let serve = ["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0", "--workers", "2"];
        command.current_dir(folder.path()).args(["--core=0", EVENKEEL]).args(serve);
        command
    }
}

impl Target for Serve {
    const COLUMN: usize = 0;

    fn start() -> Self {
        let folder = Folder::new();
        let server = Server::spawn(&mut Self::command(&folder));
        succeed(&folder, &["load", server.uri(), "--op", "write", "--requests", "20"]);
        Self(folder, server)
    }

    fn id(&self) -> u32 {
        self.1.id()
    }

    fn answers(&mut self) {
        assert_eq!(self.1.state()["volumes"][0]["error"], serde_json::Value::Null);
    }

    fn has_reloaded(&mut self) {
        self.1.log_until("reloaded, nothing changed");
    }

    fn end(&mut self) -> ExitStatus {
        self.1.end().0
    }

    fn start_again(self) {
        let Self(folder, _) = self;
        let server = Server::spawn(&mut Self::command(&folder));
        assert_eq!(server.state()["volumes"][0]["error"], serde_json::Value::Null);
        server.stop();
    }
}

/// A running agent, and its folder, which is removed after it.
struct Guard(Agent, Folder);

impl Guard {
    fn start_in(folder: Folder) -> Self {
        let config = "[agent]\nstatus = \"127.0.0.1:0\"\n[pools.nothing-served]\nlatency.target = \"15ms\"\n";
        let file = folder.file("guard.toml", config);
        let mut command = Command::new("prlimit");
        Self(Agent::spawn(command.current_dir(folder.path()).args(["--core=0", EVENKEEL]), &file), folder)
    }
}

impl Target for Guard {
    const COLUMN: usize = 1;

    fn start() -> Self {
        Self::start_in(Folder::new())
    }

    fn id(&self) -> u32 {
        self.0.child.id()
    }

    fn answers(&mut self) {
        assert_eq!(server::http(&self.0.status, "GET", "/api/v1/state", &[], "").status, 200);
    }

    fn has_reloaded(&mut self) {
        self.answers();
    }

    fn end(&mut self) -> ExitStatus {
        self.0.child.wait().expect("it ends")
    }

    fn start_again(self) {
        let mut again = Self::start_in(self.1);
        again.send(15);
        assert!(again.end().success());
    }
}

/// True if the line `mask` (such as `SigIgn`) in `/proc/PROCESS/status` contains a signal. `process` is a process id or `self`.
fn has(process: &str, mask: &str, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("readable");
    let mask = status.lines().find_map(|line| line.strip_prefix(mask)).expect("a mask");
    let mask = u64::from_str_radix(mask.trim_start_matches(':').trim(), 16).expect("a number");
    mask >> (signal - 1) & 1 == 1
}

/// True if this test's process ignores a signal, as under nohup; its child processes then ignore the signal, too.
fn ignored(signal: i32) -> bool {
    has("self", "SigIgn", signal)
}

/// Waits until a process has handled a signal; for signals whose handler removes itself when it runs.
fn until_taken(process: u32, signal: i32) {
    wait(&format!("signal {signal} is taken"), || !has(&process.to_string(), "SigCgt", signal));
}

/// Asserts that each signal has the effect on `T` that the page's table states.
fn judge<T: Target>() {
    const HUP: i32 = 1;
    const CONT: i32 = 18;
    let mut lasting = T::start();
    for (signals, effects) in signals() {
        let effect = effects[T::COLUMN];
        for signal in signals.into_iter().filter(|&signal| !ignored(signal)) {
            let context = format!("signal {signal}: {effect}");
            if effect.starts_with("goes on") {
                lasting.send(signal);
                lasting.answers();
            } else if effect.starts_with("pauses") {
                lasting.send(signal);
                lasting.send(CONT);
                lasting.answers();
            } else if effect.starts_with("reads") {
                assert_eq!(signal, HUP);
                lasting.send(signal);
                lasting.has_reloaded();
                lasting.answers();
            } else if effect.starts_with("stops gracefully") {
                let mut target = T::start();
                target.send(signal);
                if effect.contains("however often") {
                    target.send(signal);
                }
                let status = target.end();
                assert!(status.success(), "{context}: {status}");
                target.start_again();
            } else if effect.starts_with("ends at once") {
                let mut target = T::start();
                target.send(signal);
                if effect.contains("lost") || effect.contains("likewise") {
                    // A second one that comes while the first is pending is none.
                    until_taken(target.id(), signal);
                    target.answers();
                    target.send(signal);
                }
                assert_eq!(target.end().signal(), Some(signal), "{context}");
                target.start_again();
            } else {
                // What they do depends on how the program was started.
                assert!(signal == 32 || signal == 33, "{context}");
            }
        }
    }
    lasting.send(15);
    assert!(lasting.end().success());
}

#[test]
fn every_signal_does_to_a_server_what_the_page_says() {
    judge::<Serve>();
}

#[test]
fn every_signal_does_to_an_agent_what_the_page_says() {
    judge::<Guard>();
}

#[test]
fn the_sentinel_lets_stray_signals_pass_and_ends_with_its_agent() {
    let folder = Folder::new();
    let mut command = Command::new(EVENKEEL);
    command.args(["guard", "sentinel", "--journal"]).arg(folder.join("journal")).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let pipe: ChildStdin = child.stdin.take().expect("piped");
    // Before its handlers stand, a signal would end it.
    wait("it waits for its agent", || {
        let call = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
        call.split(' ').nth(1) == Some("0x0")
    });
    for (signals, [_, effect]) in signals() {
        signals.into_iter().filter(|_| effect.starts_with("goes on")).for_each(|signal| kill(child.id(), signal));
    }
    assert!(child.try_wait().expect("asked").is_none(), "it goes on");
    drop(pipe);
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
}

/// Starts a server under a resource limit `NAME=VALUE`, as `prlimit` has it; an error with status and message if the server does
/// not start. Under `nproc`, which does not apply to root, it runs as another user; `None` if this test may not change users.
fn start_limited(folder: &Folder, limit: &str) -> Option<Result<Server, (ExitStatus, String)>> {
    let (name, _) = limit.split_once('=').expect("a value");
    let mut command = if name == "nproc" {
        use std::os::unix::fs::PermissionsExt;
        if !rustix::process::getuid().is_root() {
            return None;
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        // A limit counts all processes of a user, and tests run side by side.
        static USERS: AtomicU32 = AtomicU32::new(0);
        let uid = 1_000_000 + std::process::id() % 100_000 * 1_000 + USERS.fetch_add(1, Ordering::Relaxed) % 1_000;
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]).arg("prlimit");
        command
    } else {
        Command::new("prlimit")
    };
    let serve = ["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0", "--workers", "2"];
    command.current_dir(folder.path()).arg(format!("--{limit}")).arg(EVENKEEL).args(serve);
    // Each arena of glibc's allocator takes 64 MiB of addresses, if they happen to lie on a boundary of 64 MiB.
    command.env("MALLOC_ARENA_MAX", "1");
    Some(Server::try_spawn(&mut command))
}

/// True if `evenkeel --version` succeeds under a resource limit `NAME=VALUE`.
fn begins(limit: &str) -> bool {
    let version = Command::new("prlimit").args([&format!("--{limit}"), EVENKEEL, "--version"]).output();
    version.expect("prlimit").status.success()
}

/// Writes 100 blocks to the server's volume and reads 100 blocks; asserts that no request fails.
fn load(folder: &Folder, server: &Server) {
    let requests = ["--requests", "100", "--queue-depth", "8"];
    succeed(folder, &[&["load", server.uri(), "--op", "write"], &requests[..]].concat());
    succeed(folder, &[&["load", server.uri(), "--op", "read"], &requests[..]].concat());
}

#[test]
fn every_limit_does_what_the_page_says() {
    for [limits, does, says, _] in table::<4>("Limits of the process") {
        for limit in limits.split(' ').map(|limit| limit.trim_matches('`')) {
            let (folder, says) = (Folder::new(), says.trim_matches('`'));
            let Some(started) = start_limited(&folder, limit) else {
                return skip::skip(&format!("{limit} needs root"));
            };
            match (does, started) {
                ("does not start", Err((status, said))) => {
                    assert_eq!(
                        status.code(),
                        Some(if said.contains("for the log") { 2 } else { 1 }),
                        "{limit}: {said}"
                    );
                    assert!(said.contains(says) && !said.contains("panicked"), "{limit}: {said}");
                }
                ("serves", Ok(mut server)) => {
                    load(&folder, &server);
                    server.signal("TERM");
                    let (status, log) = server.end();
                    assert!(status.success() && log.contains(says), "{limit}: {status}: {log}");
                }
                ("stops gracefully", Ok(mut server)) => {
                    // Until it is gone.
                    while run(&folder, &["load", server.uri(), "--op", "read", "--duration", "1s"]).status.success() {}
                    let (status, log) = server.end();
                    assert!(status.success() && log.contains(says), "{limit}: {status}: {log}");
                }
                (does, Ok(_)) => panic!("{limit}: it {does}, says the page, and it serves"),
                (does, Err((status, said))) => panic!("{limit}: it {does}, says the page: {status}: {said}"),
            }
        }
    }
}

#[test]
fn health_names_a_failing_volume_with_cause_and_cure() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    let health = || {
        let output = run(&folder, &["health", "--data-dir", "evenkeel-data"]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(health(), (Some(0), "EVENKEEL OK: no troubles\n".to_owned()));
    let probe = |server: &Server, path: &str| {
        let answer = http(server.status(), "GET", path, &[], "");
        (answer.status, answer.body)
    };
    assert_eq!(probe(&server, "/healthz"), (200, "ok\n".to_owned()));
    let limited = Command::new("prlimit").args(["--pid", &server.id().to_string(), "--fsize=4096"]).status();
    assert!(limited.expect("prlimit").success());
    let written = run(&folder, &["load", server.uri(), "--op", "write", "--requests", "10"]);
    assert!(!written.status.success(), "writes past the limit succeed");
    let (status, said) = health();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.starts_with("EVENKEEL CRITICAL: volume disk0: ") && said.contains(" failed (write: "), "{said}");
    assert!(said.contains("what to do: make room on the file system of "), "{said}");
    // Readiness ends; liveness does not, as a restart would not make room.
    let (status, said) = probe(&server, "/healthz");
    assert!(said.starts_with("critical: volume disk0: ") && said.contains("; make room on "), "{said}");
    assert_eq!(status, 503, "{said}");
    assert_eq!(probe(&server, "/livez"), (200, "ok\n".to_owned()));
    server.signal("TERM");
    server.end();
    let (status, said) = health();
    assert_eq!(status, Some(3), "{said}");
    assert!(said.starts_with("EVENKEEL UNKNOWN: no server answers on "), "{said}");
    // A wrong command line of a check is no trouble of the server.
    for wrong in [&["health", "--stats"][..], &["--log", "loud", "health"], &["health", "--status", "storage1:9809"]] {
        let output = run(&folder, wrong);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(3) && said.starts_with("EVENKEEL UNKNOWN: "), "{wrong:?}: {said}");
        assert!(!said.contains('|'), "figures: {said}");
    }
}

/// Under any value of a resource limit a server either serves and stops gracefully, or reports why it does not start.
#[test]
fn no_value_of_a_limit_makes_a_server_crash() {
    let nofile = (6..72).step_by(6).map(|n| format!("nofile={n}"));
    let nproc = (2..10).map(|n| format!("nproc={n}"));
    let memory = [1u64, 4, 8, 16, 24, 32].map(|mib| format!("data={}", mib << 20));
    let addresses = [8u64, 16, 24, 28, 32, 36, 40, 44, 48, 52, 56, 64, 96].map(|mib| format!("as={}", mib << 20));
    for limit in nofile.chain(nproc).chain(memory).chain(addresses) {
        let folder = Folder::new();
        let Some(started) = start_limited(&folder, &limit) else { continue };
        let (status, log) = match started {
            Ok(mut server) => {
                // May fail, as memory and threads may be short.
                let _ = run(&folder, &["load", server.uri(), "--block-size", "1MiB", "--requests", "32"]);
                server.signal("TERM");
                server.end()
            }
            // Too little for the dynamic loader, which says so before anything of the server runs.
            Err((status, said)) if status.code() == Some(127) && said.contains("while loading shared libraries") => {
                continue;
            }
            // Too little for the first lines of the program, before it looks at its limits.
            Err((status, said)) if limit.starts_with("as=") && status.signal() == Some(6) => {
                assert!(said.contains("memory allocation of"), "{limit}: {status}: {said}");
                continue;
            }
            // Too little for the kernel to begin any program with so much data, and be it to print its version.
            Err((status, said)) if status.signal().is_some() && said.is_empty() && !begins(&limit) => continue,
            Err((status, said)) => {
                assert!(said.contains("cannot") || said.contains("the limit of"), "{limit}: {status}: {said}");
                assert!(matches!(status.code(), Some(1 | 2)), "{limit}: {status}: {said}");
                continue;
            }
        };
        assert!(status.success() && !log.contains("panicked"), "{limit}: {status}: {log}");
    }
}

/// A volume in memory for which there is no address space is refused with the reason, and the server serves others.
#[test]
fn a_volume_in_memory_beyond_the_address_space_is_refused_and_others_serve() {
    let folder = Folder::new();
    let Some(Ok(mut server)) = start_limited(&folder, "as=134217728") else { panic!("it serves") };
    let create =
        |name: &str, size: &str| run(&folder, &["volume", "create", name, "--backend", "memory", "--size", size]);
    let large = create("large", "1GiB");
    let said = String::from_utf8_lossy(&large.stderr).into_owned();
    assert!(!large.status.success() && said.contains("cannot map memory for a volume"), "{}: {said}", large.status);
    let small = create("small", "16MiB");
    assert!(small.status.success(), "{}", String::from_utf8_lossy(&small.stderr));
    load(&folder, &server);
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success() && !log.contains("panicked"), "{status}: {log}");
}

/// A server without the right to raise the I/O priority reports the lack once: as soon as there is both a reservation and a
/// volume on a disk.
#[test]
fn a_right_that_a_reservation_lacks_is_reported_when_the_first_one_comes() {
    const LACK: &str = "no right to raise the I/O priority";
    if !rustix::process::getuid().is_root() {
        return skip::skip("a right can only be taken from root");
    }
    let folder = Folder::new();
    let write = |tenants: &str| {
        let text = format!("[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n{tenants}");
        fs::write(folder.join("evenkeel.toml"), text).expect("the configuration");
    };
    write("");
    let mut command = Command::new("setpriv");
    command.current_dir(folder.path()).arg("--bounding-set=-sys_nice,-sys_admin").arg(EVENKEEL);
    command.args(["serve", "--config", "evenkeel.toml", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
    let mut server = Server::spawn(&mut command);
    let reservation = |tenant| format!("[tenants.{tenant}]\nreservation = {{ iops = 100 }}\n");
    write(&reservation("a"));
    let none = succeed(&folder, &["reload"]);
    assert!(none.contains("tenant a added") && !none.contains(LACK), "no volume is on a disk: {none}");
    let first = succeed(&folder, &["volume", "create", "b", "--size", "1MiB"]);
    assert!(first.contains(LACK), "{first}");
    write(&(reservation("a") + &reservation("b")));
    let second = succeed(&folder, &["reload"]);
    assert!(second.contains("tenant b added") && !second.contains(LACK), "{second}");
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success() && log.matches(LACK).count() == 1, "{status}: {log}");
}
