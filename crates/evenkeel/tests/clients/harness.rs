//! Harness of the tests with NBD clients: each test has a server of its own, and client programs that are killed at the test's
//! end or after a minute.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evenkeel_net::http::{Method, Place, StatusCode, ask};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal};
use serde_json::Value;

use crate::folder::Folder;
use crate::skip::skip;

pub(crate) const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");
pub(crate) const MIB: u64 = 1 << 20;
/// Size of every volume, in bytes.
pub(crate) const SIZE: u64 = 32 * MIB;
/// Names of the volumes in [`TABLES`], one of each kind.
pub(crate) const VOLUMES: [&str; 3] = ["memory", "direct", "buffered"];
const TABLES: &str = "\
[volumes.memory]\nbackend = \"memory\"\nsize = \"32MiB\"\n\
[volumes.direct]\nsize = \"32MiB\"\n\
[volumes.buffered]\nsize = \"32MiB\"\ncache = \"buffered\"\n";
/// Upper bound on the wait for any event; only a broken program takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes two tests, one per I/O engine, of each named function `fn(case: &Case)`. A test is skipped if one of the programs behind
/// its name is missing.
macro_rules! on_both_engines {
    (@ $engine:ident; $($test:ident: $($program:literal)+;)+) => {
        mod $engine {
            $(
                #[test]
                fn $test() {
                    let needs = [$($program),+];
                    if let Some(case) = crate::harness::Case::new(stringify!($engine), &needs) {
                        super::$test(&case);
                    }
                }
            )+
        }
    };
    ($($test:ident: $($program:literal)+;)+) => {
        on_both_engines!(@ io_uring; $($test: $($program)+;)+);
        on_both_engines!(@ epoll; $($test: $($program)+;)+);
    };
}

/// A test's folder and the I/O engine under test.
pub(crate) struct Case {
    folder: Folder,
    engine: &'static str,
}

impl Case {
    /// A case for a test with `engine` that needs `programs`. If a program is missing or the kernel refuses the engine, reports
    /// the test as skipped and returns `None`.
    pub(crate) fn new(engine: &'static str, programs: &[&str]) -> Option<Self> {
        let missing = programs.iter().find(|program| !installed(program));
        let reason = match missing {
            Some(program) => format!("{program} is not installed"),
            None if engine == "io_uring" && !io_uring_works() => "the kernel refuses io_uring".to_owned(),
            None => return Some(Self::in_new_folder(engine)),
        };
        skip(&reason);
        None
    }

    fn in_new_folder(engine: &'static str) -> Self {
        Self { folder: Folder::new(), engine }
    }

    /// A case with the same engine and a new folder, for a second server of the test.
    pub(crate) fn beside(&self) -> Self {
        Self::in_new_folder(self.engine)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Path of the file `name` in the case's folder as text, for a command line.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a server's configuration: the table `[server]`, then the text `tables`. Returns the file's path.
    pub(crate) fn configure(&self, tables: &str) -> String {
        let at = self.folder.display();
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nstatus = \"off\"\ndata_dir = \"{at}\"\nengine = \"{}\"\n{tables}",
            self.engine
        );
        fs::write(self.path("config.toml"), text).expect("written");
        self.file("config.toml")
    }

    /// The command `evenkeel serve` behind the words `prefix`, with a configuration as [`Case::configure`] writes it.
    pub(crate) fn command(&self, prefix: &[&str], tables: &str) -> Command {
        let config = self.configure(tables);
        let words = [prefix, &[EVENKEEL, "serve", "--config", &config]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }

    /// Starts a server with the volumes [`VOLUMES`], one of each kind, and waits until it serves.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[], TABLES)
    }

    pub(crate) fn serve_with(&self, prefix: &[&str], tables: &str) -> Server {
        let mut server = self.spawn(self.command(prefix, tables));
        server.until_it_serves();
        assert_eq!(server.state()["engine"], self.engine);
        server
    }

    /// Starts `command` as a server in this case's folder, without waiting until it serves.
    pub(crate) fn spawn(&self, mut command: Command) -> Server {
        let create = |name| File::create(self.path(name)).expect("a file for its output");
        command.stdout(create("stdout")).stderr(create("stderr"));
        Server { process: Process::spawn(&mut command), folder: self.folder.to_path_buf() }
    }

    /// Starts a client program in the background.
    pub(crate) fn start(&self, words: &[&str]) -> Process {
        let discard = || Stdio::null();
        Process::spawn(self.client(words).stdin(discard()).stdout(discard()).stderr(discard()))
    }

    /// Runs a client program until it ends.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.client(words).stdin(Stdio::null()).output().expect("timeout runs")
    }

    /// Runs a client program, asserts that it succeeds, and returns its output.
    #[track_caller]
    pub(crate) fn succeed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (said, complaint) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{words:?}: {}\n{said}{complaint}", output.status);
        said
    }

    /// Runs a client program, asserts that it succeeds, and parses its output as JSON.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let said = self.succeed(words);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words:?}: {error}\n{said}"))
    }

    /// Names of the exports that a server lists, sorted.
    #[track_caller]
    pub(crate) fn exports(&self, uri: &str) -> Vec<Value> {
        let list = self.json(&["nbdinfo", "--list", "--json", uri]);
        let exports = list["exports"].as_array().expect("a list").iter();
        let mut names: Vec<Value> = exports.map(|export| export["export-name"].clone()).collect();
        names.sort_by_key(Value::to_string);
        names
    }

    /// Runs a client program, asserts that it fails with exit status 1, and returns its error message.
    #[track_caller]
    pub(crate) fn fail(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}\n{complaint}", output.status);
        complaint
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60"]).args(words).current_dir(self.folder.path());
        command
    }

    /// Content of a volume, as `nbdcopy` reads it.
    #[track_caller]
    pub(crate) fn content(&self, uri: &str) -> Vec<u8> {
        let copy = self.file("content.img");
        // A file that nbdcopy finds is not shortened.
        let _ = fs::remove_file(&copy);
        self.succeed(&["nbdcopy", uri, &copy]);
        fs::read(copy).expect("the copy")
    }

    /// Makes a file of [`SIZE`] bytes with data in [`DATA`] and holes elsewhere; returns its path and content.
    pub(crate) fn image(&self) -> (String, Vec<u8>) {
        let mut content = vec![0; SIZE as usize];
        let mut file = File::create(self.path("image.img")).expect("created");
        file.set_len(SIZE).expect("a sparse file");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for (start, end) in DATA {
            let range = &mut content[start as usize..end as usize];
            for bytes in range.chunks_mut(8) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                bytes.copy_from_slice(&random.to_le_bytes());
            }
            file.seek(SeekFrom::Start(start)).expect("sought");
            file.write_all(range).expect("written");
        }
        (self.file("image.img"), content)
    }

    /// Makes a file of [`SIZE`] bytes without a zero byte or hole; returns its path.
    pub(crate) fn full_image(&self) -> String {
        fs::write(self.path("full.img"), vec![0x5a; SIZE as usize]).expect("written");
        self.file("full.img")
    }
}

/// Ranges (start, end), in bytes, in which [`Case::image`] has data. Their bounds are multiples of 64 KiB, so that every kind of
/// volume can keep the holes.
pub(crate) const DATA: [(u64, u64); 4] = [
    (MIB, 2 * MIB),
    (5 * MIB, 5 * MIB + (64 << 10)),
    (20 * MIB + (64 << 10), 21 * MIB + (128 << 10)),
    (SIZE - (64 << 10), SIZE),
];

/// Number of bytes of data in [`Case::image`], without the holes.
pub(crate) fn data_bytes() -> u64 {
    DATA.iter().map(|(start, end)| end - start).sum()
}

/// Asserts that a file occupies as much space on the disk as the data of [`Case::image`], plus at most 64 KiB for the file
/// system's own records.
#[track_caller]
pub(crate) fn assert_sparse(path: &Path) {
    let allocated = fs::metadata(path).expect("it exists").blocks() * 512;
    let expected = data_bytes()..=data_bytes() + (64 << 10);
    assert!(expected.contains(&allocated), "{}: {allocated} bytes allocated, not {expected:?}", path.display());
}

/// Asserts that two contents are equal; panics with the index of the first difference otherwise. `what`: name of the content.
#[track_caller]
pub(crate) fn assert_same(left: &[u8], right: &[u8], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    // As a whole first: one by one takes a hundred times as long in a program that is not optimised.
    if left != right {
        let difference = left.iter().zip(right).position(|(a, b)| a != b);
        panic!("{what}: the first difference is at {difference:?}");
    }
}

/// Repeats `probe` until it returns `Some`; panics after [`PATIENCE`]. `what`: name of the awaited event, for the panic.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: nothing for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\" && command -v timeout", program]).output();
    found.is_ok_and(|output| output.status.success())
}

fn io_uring_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let case = Case::in_new_folder("io_uring");
        let mut server = case.spawn(case.command(&[], "[volumes.v]\nbackend = \"memory\"\nsize = \"1MiB\"\n"));
        until("a server", || {
            let refused = server.log().contains("the kernel refuses io_uring");
            // Any other reason not to serve is for the tests to report.
            (refused || server.serves() || server.process.ended().is_some()).then_some(!refused)
        })
    })
}

/// A child process. When the value is dropped, its whole process group is killed.
pub(crate) struct Process(Child);

impl Process {
    /// Starts the command as leader of its own process group. The kernel kills the process when the calling thread ends.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let die_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec the closure makes one system call and nothing else.
        let child = unsafe { command.process_group(0).pre_exec(die_with_us) }.spawn();
        Self(child.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program())))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Kills the whole process group at once and reaps the process.
    pub(crate) fn kill(&mut self) {
        // It is not reaped before this, so that the number is still its own.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.0.wait();
    }

    /// Exit status of the process; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child of ours")
    }

    /// Waits until the process ends; panics after [`PATIENCE`].
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        until("the end of a process", || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.kill();
        }
    }
}

/// A running `evenkeel serve`.
pub(crate) struct Server {
    pub(crate) process: Process,
    folder: PathBuf,
}

impl Server {
    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).expect("its output")
    }

    /// The server's log up to now.
    pub(crate) fn log(&self) -> String {
        self.said("stderr")
    }

    /// Waits until the server's log contains `words`.
    #[track_caller]
    pub(crate) fn until_logged(&self, words: &str) {
        until(words, || self.log().contains(words).then_some(()));
    }

    fn serves(&self) -> bool {
        self.said("stdout").contains("Control socket:")
    }

    #[track_caller]
    pub(crate) fn until_it_serves(&mut self) {
        until("a server", || {
            assert_eq!(self.process.ended(), None, "{}", self.log());
            self.serves().then_some(())
        });
    }

    /// Address and port of the server's NBD service over TCP.
    pub(crate) fn tcp(&self) -> String {
        let banner = self.said("stdout");
        let uri = banner.split_whitespace().find_map(|word| word.strip_prefix("nbd://"));
        uri.expect("an address").to_owned()
    }

    /// URI of a volume over the server's Unix socket.
    pub(crate) fn unix(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.folder.join("nbd.sock").display())
    }

    /// URIs of a volume over TCP and over the server's Unix socket.
    pub(crate) fn uris(&self, volume: &str) -> [String; 2] {
        [format!("nbd://{}/{volume}", self.tcp()), self.unix(volume)]
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process.pid(), signal).expect("it runs");
    }

    /// Stops the server gracefully; asserts that it succeeds and has not panicked.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.process.end();
        assert!(status.success(), "{status}: {}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }

    /// The server's state, read over its control socket.
    #[track_caller]
    pub(crate) fn state(&self) -> Value {
        let place = Place::Socket(self.folder.join("control.sock"));
        let asked = ask(&place, (PATIENCE, 64 << 20), Method::GET, "/api/v1/state", None);
        let (status, body) = asked.expect("an answer");
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Process id of the server; valid if its command was started without a prefix, or behind a program that replaced itself.
    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Number of connections that the server has accepted since its start.
    #[track_caller]
    pub(crate) fn accepted(&self) -> u64 {
        self.state()["accepted_connections_total"].as_u64().expect("a number")
    }

    /// Number of reads and writes that the server has answered since its start to the first tenant of its first pool.
    #[track_caller]
    pub(crate) fn requests(&self) -> u64 {
        let state = self.state();
        let tenant = &state["pools"][0]["tenants"][0];
        tenant["reads_total"].as_u64().expect("a number") + tenant["writes_total"].as_u64().expect("a number")
    }
}

/// A running `qemu-io` with one open connection.
pub(crate) struct Session {
    _process: Process,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Session {
    pub(crate) fn open(case: &Case, uri: &str) -> Self {
        let mut command = case.client(&["qemu-io", "-f", "raw", uri]);
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let commands = process.0.stdin.take().expect("piped");
        let answers = BufReader::new(process.0.stdout.take().expect("piped"));
        Self { _process: process, commands, answers }
    }

    /// Sends `qemu-io` a command and waits until its output contains `answer`; panics if the command fails or `qemu-io` ends.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str, answer: &str) {
        writeln!(self.commands, "{command}").expect("qemu-io listens");
        let mut said = String::new();
        while !said.contains(answer) {
            let read = self.answers.read_line(&mut said).expect("text");
            assert!(read > 0 && !said.contains("failed"), "{command}: no {answer:?} in:\n{said}");
        }
    }
}
