//! NBD servers, and `evenkeel load` as the program under test: child processes that end with their test.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::skip::skip;

/// Upper bound on the wait until a server or a load has started; only a broken program takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a temporary folder. Returns it, and the path of a file `name` in it, which does not exist yet.
pub(crate) fn scratch(name: &str) -> (Folder, PathBuf) {
    let folder = Folder::new();
    let file = folder.join(name);
    (folder, file)
}

/// True if `program` is installed; otherwise reports the test as skipped.
pub(crate) fn need(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what} took more than {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the file at `path` has at least `lines` lines.
pub(crate) fn wait_for_lines(path: &Path, lines: usize) {
    wait_until("the load", || fs::read_to_string(path).is_ok_and(|text| text.lines().count() >= lines));
}

/// A running NBD server (nbdkit, qemu-nbd or evenkeel), killed when the value is dropped.
pub(crate) struct Peer {
    child: Child,
    uri: String,
    _dir: Option<Folder>,
}

impl Peer {
    /// Starts nbdkit on a Unix socket; `None` if nbdkit is not installed.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        let (dir, socket) = scratch("socket");
        need("nbdkit").then(|| {
            let mut command = Command::new("nbdkit");
            command.args(["-f", "-U"]).arg(&socket).args(arguments);
            Self::spawn(command, dir, &socket)
        })
    }

    /// Starts nbdkit on a free TCP port; `None` if nbdkit is not installed.
    pub(crate) fn start_tcp(arguments: &[&str]) -> Option<Self> {
        need("nbdkit").then(|| {
            // It is handed a socket that listens already, so that nobody else can take the port before it does.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let script = "exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec nbdkit -f \"$@\"";
            let mut command = Command::new("sh");
            command.args(["-c", script, "nbdkit"]).args(arguments).stdin(OwnedFd::from(listener));
            let child = command.stderr(Stdio::null()).spawn().unwrap();
            Self { child, uri: format!("nbd://127.0.0.1:{port}/"), _dir: None }
        })
    }

    fn spawn(mut command: Command, dir: Folder, socket: &Path) -> Self {
        let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        wait_until("the server", || UnixStream::connect(socket).is_ok());
        Self { child, uri: format!("nbd+unix:///?socket={}", socket.display()), _dir: Some(dir) }
    }

    pub(crate) fn uri(&self) -> String {
        self.uri.clone()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts qemu-nbd with a device of 16 MiB that stores nothing; `None` if qemu-nbd is not installed.
pub(crate) fn qemu_nbd() -> Option<Peer> {
    let (dir, socket) = scratch("socket");
    need("qemu-nbd").then(|| {
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-e", "4", "-k"]).arg(&socket);
        command.args(["--image-opts", "driver=null-co,size=16M"]);
        Peer::spawn(command, dir, &socket)
    })
}

/// A running `evenkeel serve` on a Unix socket, and the temporary folder with its configuration and data.
pub(crate) struct Evenkeel {
    server: Peer,
    folder: PathBuf,
}

/// Starts `evenkeel serve`. `server`: further lines of the table `[server]`; `tables`: further tables of the configuration.
pub(crate) fn evenkeel(server: &str, tables: &str) -> Evenkeel {
    let (dir, socket) = scratch("nbd.sock");
    let folder = dir.path().to_owned();
    let config = folder.join("config.toml");
    let at = folder.display();
    let text = format!(
        "[server]\nlisten = []\nunix = [\"{}\"]\nstatus = \"off\"\ncontrol = \"{at}/control.sock\"\n\
         data_dir = \"{at}/data\"\n{server}{tables}",
        socket.display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["serve", "--config"]).arg(&config);
    Evenkeel { server: Peer::spawn(command, dir, &socket), folder }
}

impl Evenkeel {
    pub(crate) fn export(&self, name: &str) -> String {
        self.server.uri().replace("///", &format!("///{name}"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// A running `evenkeel load --json`.
pub(crate) struct Load(Child);

/// Output and exit status of `evenkeel load`.
#[derive(Debug)]
pub(crate) struct Finished(Output);

impl Load {
    /// Starts `evenkeel load ARGUMENTS --json`.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.arg("load").args(arguments).arg("--json").stdin(Stdio::null());
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Runs `evenkeel load ARGUMENTS --json` to its end.
    pub(crate) fn run(arguments: &[&str]) -> Finished {
        Self::start(arguments).finish()
    }

    pub(crate) fn finish(self) -> Finished {
        Finished(self.0.wait_with_output().unwrap())
    }

    /// Sends SIGINT to the load, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }
}

impl Finished {
    /// The report that the load has printed as JSON on standard output.
    pub(crate) fn report(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Asserts that the load succeeded without errors; returns the report of its first job.
    pub(crate) fn success(&self) -> serde_json::Value {
        assert!(self.0.status.success(), "{self}");
        let job = self.report()["jobs"][0].take();
        assert!(job["errors"].as_object().unwrap().is_empty() && job["failure"].is_null(), "{self}");
        assert_eq!(job["unanswered"], 0);
        job
    }

    /// Asserts that the load failed with exit status 1 and an error message with all of `words`; returns its report.
    pub(crate) fn fails_with(&self, words: &[&str]) -> serde_json::Value {
        self.says(words, 1);
        self.report()
    }

    /// Asserts that the load failed before it began: with exit status 1, an error message with all of `words`, and no report.
    pub(crate) fn fails_before_start(&self, words: &[&str]) {
        self.says(words, 1);
        assert!(self.0.stdout.is_empty(), "{self}");
    }

    /// Asserts that the load rejected its options: with exit status 2, an error message with all of `words`, and no report.
    pub(crate) fn is_misused(&self, words: &[&str]) {
        self.says(words, 2);
        assert!(self.0.stdout.is_empty(), "{self}");
    }

    fn says(&self, words: &[&str], status: i32) {
        assert_eq!(self.0.status.code(), Some(status), "{self}");
        let text = String::from_utf8_lossy(&self.0.stderr);
        for word in words {
            assert!(text.contains(word), "no `{word}` in: {self}");
        }
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        write!(f, "{}\n{}\n{}", self.0.status, text(&self.0.stderr), text(&self.0.stdout))
    }
}
