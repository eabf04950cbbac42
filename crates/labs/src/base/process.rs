//! Child processes that never outlive this program.
//!
//! Every child leads its own process group and is killed by the kernel when this program dies
//! (`PR_SET_PDEATHSIG`). On Ctrl-C a signal thread ends all groups and prevents the start of further children, so that no
//! server, virtual machine or compiler stays behind.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Time between SIGTERM and SIGKILL for a child. It is enough for a lab, which has to end its own children and to remove
/// gigabytes of files.
const GRACE: Duration = Duration::from_secs(10);
/// The most lines of a child's output that are queued before they are handled; a pipe holds about as many.
const LINES_AHEAD: usize = 1_000;

/// Process groups of all running children, which are ended together with this program.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
/// True from the moment at which a signal begins to end this program. Written only under the lock of `GROUPS`.
static STOPPING: AtomicBool = AtomicBool::new(false);

fn groups() -> MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks [`GROUPS`] so that a child can be added. Never returns once a signal has begun to end this program.
fn open_groups() -> MutexGuard<'static, BTreeSet<i32>> {
    loop {
        let groups = groups();
        if !STOPPING.load(Ordering::Relaxed) {
            return groups;
        }
        drop(groups);
        thread::sleep(GRACE);
    }
}

/// Never returns if a signal is ending this program; otherwise returns at once.
pub fn let_signals_end() {
    drop(open_groups());
}

/// Installs the handling of SIGINT, SIGTERM and SIGHUP: all children are ended, with SIGKILL if they still run after
/// `patience`. To be called once, before any thread starts.
pub fn handle_signals(patience: Duration) {
    // SAFETY: the set is initialised by sigemptyset before use, and the calls only touch this thread's mask.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: `set` is initialised and `signal` outlives the call.
        unsafe { libc::sigwait(&set, &mut signal) };
        let running = groups();
        STOPPING.store(true, Ordering::Relaxed);
        drop(running);
        // In one piece, whatever children write meanwhile.
        let said = format!("\nxtask: stopped by signal {signal}, ending child processes\n");
        let _ = io::stderr().write_all(said.as_bytes());
        for round in [libc::SIGTERM, libc::SIGKILL] {
            groups().iter().for_each(|&group| kill_group(group, round));
            thread::sleep(patience);
        }
        crate::base::scratch::remove_all();
        std::process::exit(128 + signal);
    });
}

fn kill_group(group: i32, signal: i32) {
    // SAFETY: kill has no memory effects; the group belongs to a child that has not been reaped by others.
    unsafe { libc::kill(-group, signal) };
}

/// Resources that a child and its own ended children have used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// User plus system CPU time.
    pub(crate) cpu: Duration,
    /// The most memory of one process, in bytes. It is never below that of this program when the child was started.
    pub(crate) peak_bytes: u64,
}

/// A running child with its process group, killed and reaped on drop.
///
/// A process that leaves the group is not killed. The sentinel of an agent does so, which must outlive the agent; so do jobs
/// of fio, which must therefore run with `--thread`, in fio's own process.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    group: i32,
    name: String,
}

impl Running {
    /// Starts `command` in a process group of its own. Never returns while a signal is ending this program.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let name = describe(command);
        tie_to_this_program(command);
        let mut groups = open_groups();
        let child = command.process_group(0).spawn().with_context(|| format!("cannot start `{name}`"))?;
        let group = child.id() as i32;
        groups.insert(group);
        Ok(Self { child, group, name })
    }

    /// Process id of the child.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child's standard output, if it was piped; only the first call returns it.
    pub(crate) fn take_stdout(&mut self) -> Result<impl Read + Send + 'static> {
        self.child.stdout.take().context("standard output was not piped")
    }

    /// The child's standard input, if it was piped; only the first call returns it.
    pub(crate) fn take_stdin(&mut self) -> Result<impl io::Write + Send + 'static> {
        self.child.stdin.take().context("standard input was not piped")
    }

    /// The child's exit status if it has ended, else `None`.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the child ends; kills the child after `limit`, which is an error.
    pub(crate) fn wait(self, limit: Duration) -> Result<ExitStatus> {
        self.wait_and_count(limit).map(|(status, _)| status)
    }

    /// Like [`Self::wait`]. Returns also the user plus system CPU time of the child and of its own ended children.
    fn wait_and_count(self, limit: Duration) -> Result<(ExitStatus, Duration)> {
        self.wait_and_measure(limit).map(|(status, used)| (status, used.cpu))
    }

    /// Like [`Self::wait`]. Returns also what the child has used.
    pub(crate) fn wait_and_measure(mut self, limit: Duration) -> Result<(ExitStatus, Used)> {
        let deadline = Instant::now() + limit;
        loop {
            let mut status = 0;
            // SAFETY: an all-zero rusage is valid, and both pointers are to variables that outlive the call.
            let (pid, used) = unsafe {
                let mut used: libc::rusage = std::mem::zeroed();
                (libc::wait4(self.child.id() as i32, &mut status, libc::WNOHANG, &mut used), used)
            };
            if pid < 0 {
                // `ended` has already seen its end.
                return Ok((self.child.wait()?, Used::default()));
            }
            if pid > 0 {
                let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1_000);
                let cpu = time(used.ru_utime) + time(used.ru_stime);
                // In KiB.
                let peak_bytes = (used.ru_maxrss as u64) << 10;
                return Ok((ExitStatus::from_raw(status), Used { cpu, peak_bytes }));
            }
            if Instant::now() > deadline {
                bail!("`{}` did not end within {limit:?}", self.name);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the child alone, not to processes that it started.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory effects; the child has not been reaped.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Sends a signal to the child alone, and waits for the child's end as [`Self::wait`] does.
    pub(crate) fn stop(self, signal: i32, limit: Duration) -> Result<ExitStatus> {
        self.signal(signal);
        self.wait(limit)
    }

    /// Kills the child and all processes of its group, with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    fn kill_now(&mut self) {
        kill_group(self.group, libc::SIGKILL);
        let _ = self.child.wait();
        groups().remove(&self.group);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_now();
    }
}

/// Starts a daemon whose output goes to a log in `folder`.
pub(crate) fn daemon(folder: &Path, name: &str, command: &mut Command) -> Result<Running> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("{name}.log")))?;
    Running::spawn(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))
}

/// Runs a command to its end. Returns the JSON in the command's output; text before the JSON is skipped.
///
/// # Errors
/// When the command fails, or prints no JSON.
pub(crate) fn json(command: &mut Command) -> Result<Value> {
    let text = output(command)?;
    let from = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[from..]).with_context(|| format!("`{}` printed no JSON", describe(command)))
}

/// Waits until `holds` returns true, calling it at intervals of `pause`. Returns the time waited. `what` names the condition
/// in errors.
///
/// # Errors
/// When `holds` is not true within `limit`, or returns an error.
pub(crate) fn until(
    what: &str,
    [limit, pause]: [Duration; 2],
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let begun = Instant::now();
    while !holds()? {
        ensure!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(pause);
    }
    Ok(begun.elapsed())
}

/// Makes the kernel kill the command's process when this program dies, and unblocks signals in that process: this program
/// blocks signals for itself, and blocked signals stay blocked across exec.
pub(crate) fn tie_to_this_program(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec, calls only async-signal-safe functions, and the set is
    // initialised by sigemptyset before use.
    unsafe {
        command.pre_exec(move || {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have died between fork and prctl.
            if libc::getppid() as u32 != parent { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
        });
    }
}

/// The command as text, as it would be typed in a shell.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end, and calls `line` with every line of the command's standard output and standard error. Returns
/// the exit status and the CPU time used.
///
/// After `limit` the command gets SIGTERM, also if it has ended but another process keeps its output open, and later SIGKILL
/// if it does not end.
pub fn stream(command: &mut Command, limit: Duration, line: impl FnMut(&str)) -> Result<(ExitStatus, Duration)> {
    // One pipe for both, so that lines stay in the order in which they were written.
    let (reader, writer) = io::pipe()?;
    command.stderr(writer.try_clone()?);
    stream_from(command, (reader, writer), limit, line)
}

/// As [`stream`]. Returns the exit status and the lines, each with its end.
pub fn transcript(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String)> {
    let mut text = String::new();
    let (status, _) = stream(command, limit, |line| text.extend([line, "\n"]))?;
    Ok((status, text))
}

/// As [`stream`], but only with standard output; standard error is that of this program.
pub(crate) fn stream_output(
    command: &mut Command,
    limit: Duration,
    line: impl FnMut(&str),
) -> Result<(ExitStatus, Duration)> {
    stream_from(command, io::pipe()?, limit, line)
}

fn stream_from(
    command: &mut Command,
    (reader, writer): (io::PipeReader, io::PipeWriter),
    limit: Duration,
    mut line: impl FnMut(&str),
) -> Result<(ExitStatus, Duration)> {
    command.stdin(Stdio::null()).stdout(writer);
    let running = Running::spawn(command)?;
    // The command object holds the write ends; without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // A process of another group may outlive the command and keep the pipe open: the thread that reads is not waited for.
    let (send, lines) = sync_channel(LINES_AHEAD);
    thread::spawn(move || {
        BufReader::new(reader).split(b'\n').map_while(io::Result::ok).try_for_each(|text| send.send(text))
    });
    // Whether the output ended by then.
    let mut read_until = |deadline: Instant| loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            _ if left.is_zero() => return false,
            Ok(text) => line(&String::from_utf8_lossy(&text)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    };
    if !read_until(Instant::now() + limit) {
        kill_group(running.group, libc::SIGTERM);
        read_until(Instant::now() + GRACE);
        bail!("`{}` did not end within {limit:?}", running.name);
    }
    running.wait_and_count(Duration::from_secs(60))
}

/// Runs a command to its end. Returns its standard output; an error contains the command's messages.
pub fn output(command: &mut Command) -> Result<String> {
    let name = describe(command);
    tie_to_this_program(command);
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{name}`"))?;
    if !out.status.success() {
        bail!("`{name}` failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The path of a program, in `PATH` or in the folders where Debian keeps programs for root.
pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// A command for the program `name`, searched as in [`find_program`].
pub fn program(name: &str) -> Command {
    Command::new(find_program(name).map_or_else(|| OsStr::new(name).to_owned(), Into::into))
}

/// The first line that the program `name` prints with `--version`, or a text that the version is unknown.
pub(crate) fn version(name: &str) -> String {
    let printed = output(program(name).arg("--version")).unwrap_or_default();
    printed.lines().next().map_or_else(|| format!("{name}: unknown version"), str::to_owned)
}

/// User plus system CPU time of a process so far, in nanoseconds, from `/proc/PID/stat`.
///
/// The kernel counts in ticks of 10 ms, so a difference needs seconds of load to mean something.
pub(crate) fn cpu_ns(pid: u32) -> Result<u64> {
    cpu_ns_of(&format!("/proc/{pid}/stat"))
}

/// User plus system CPU time so far of all threads of a process that have this name, in nanoseconds. The kernel cuts thread
/// names off after 15 characters.
pub(crate) fn thread_cpu_ns(pid: u32, name: &str) -> Result<u64> {
    let mut total = None;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path();
        // One that ends meanwhile is another's.
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name) {
            total = Some(total.unwrap_or(0) + cpu_ns_of(&path.join("stat").to_string_lossy())?);
        }
    }
    total.with_context(|| format!("process {pid} has no thread {name}"))
}

fn cpu_ns_of(path: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let ticks = parse_cpu_ticks(&text).with_context(|| format!("unexpected format of {path}"))?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Ok(ticks * 1_000_000_000 / per_second.max(1))
}

/// Sum of fields 14 and 15 (user and system ticks) of the content of a file `/proc/PID/stat`. The process name in field 2
/// may contain spaces and brackets.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_survive_odd_process_names() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 37 5 0 0 20 0 1 0 100";
        assert_eq!(parse_cpu_ticks(stat), Some(42));
        assert_eq!(parse_cpu_ticks("garbage"), None);
    }

    #[test]
    fn a_program_without_a_version_is_named() {
        assert_eq!(version("no-such-program"), "no-such-program: unknown version");
        assert_eq!(version("echo").lines().count(), 1);
    }

    #[test]
    fn stream_gives_lines_of_both_outputs_and_the_status() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let (status, _) = stream(&mut command, Duration::from_secs(60), |l| lines.push(l.to_owned())).unwrap();
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_command_that_hangs_is_asked_to_end_and_what_it_left_behind_is_not_waited_for() {
        let mut command = Command::new("sh");
        // One process in a group of its own keeps the pipe open; nothing but the signal makes the shell say the last word.
        let script = "trap 'echo asked; exit' TERM; setsid sleep 30 & echo $!; while :; do sleep 0.1; done";
        let (mut lines, begun) = (Vec::new(), Instant::now());
        let outcome = stream(command.args(["-c", script]), Duration::from_secs(1), |l| lines.push(l.to_owned()));
        assert!(outcome.unwrap_err().to_string().contains("did not end within 1s"));
        assert_eq!(lines.last().unwrap(), "asked");
        assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
        // SAFETY: kill has no memory effects; the process sleeps for longer than this test.
        unsafe { libc::kill(lines[0].parse().unwrap(), libc::SIGKILL) };
    }

    /// Runs this test program a second time, as the program that a signal ends.
    #[test]
    fn after_a_signal_no_child_starts() {
        if std::env::var_os("STOPPED").is_some() {
            handle_signals(Duration::from_millis(300));
            // SAFETY: kill has no memory effects; all threads block the signal but for the one that waits for it.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
            loop {
                Running::spawn(&mut Command::new("true")).unwrap().wait(Duration::from_secs(60)).unwrap();
                println!("\nstarted");
            }
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "base::process::tests::after_a_signal_no_child_starts", "--nocapture"])
            .env("STOPPED", "1");
        tie_to_this_program(&mut command);
        // SAFETY: between fork and exec; the set is initialised by sigfillset before use.
        unsafe {
            command.pre_exec(|| {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
                Ok(())
            });
        }
        let (reader, writer) = io::pipe().unwrap();
        let mut child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
        drop(command);
        let said = io::read_to_string(reader).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGTERM));
        let (_, after) = said.split_once("stopped by signal 15").unwrap();
        // The one that was being started.
        assert!(after.matches("started").count() <= 1, "{said}");
    }

    #[test]
    fn children_receive_signals_that_this_program_blocks() {
        // SAFETY: the set is initialised by sigemptyset; only this thread's mask changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        let mask = output(Command::new("grep").args(["SigBlk", "/proc/self/status"])).unwrap();
        assert_eq!(mask.split_whitespace().last(), Some("0000000000000000"));
    }

    #[test]
    fn dropping_a_running_child_ends_its_whole_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Running::spawn(&mut command).unwrap();
        let mut first = String::new();
        BufReader::new(running.take_stdout().unwrap()).read_line(&mut first).unwrap();
        let grandchild: i32 = first.trim().parse().unwrap();
        drop(running);
        // Gone, or a zombie that waits for its new parent: either way it runs no longer.
        let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        let alive = state.rfind(')').is_some_and(|i| !matches!(&state[i + 2..i + 3], "Z" | "X"));
        assert!(!alive || killed_soon(grandchild), "grandchild {grandchild} is still alive: {state}");
    }

    /// True if the process ends within a short time: a killed process may need a moment to leave the run queue.
    fn killed_soon(pid: i32) -> bool {
        (0..500).any(|_| {
            thread::sleep(Duration::from_millis(10));
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |s| s.rfind(')').is_some_and(|i| matches!(&s[i + 2..i + 3], "Z" | "X")))
        })
    }
}
