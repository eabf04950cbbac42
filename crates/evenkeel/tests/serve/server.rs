//! A process of `evenkeel serve` for each test, and a plain HTTP client for its API.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "folder.rs"]
mod folder;

pub(crate) use folder::Folder;

pub(crate) const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");
/// Upper bound on the wait for any event; only a broken program takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `evenkeel serve`, killed when the value is dropped.
pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The banner that the server printed at its start, with its addresses.
    pub(crate) banner: String,
}

impl Server {
    /// Starts `evenkeel serve` with further `arguments`, on free ports and with its data in `folder`; waits until it serves.
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = Command::new(EVENKEEL);
        command.current_dir(folder.path()).args(["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
        Self::spawn(command.args(arguments))
    }

    /// Starts `evenkeel serve` as [`Server::start`] does, with `text` in its configuration file `e.toml`.
    pub(crate) fn configured(folder: &Folder, text: impl AsRef<[u8]>) -> Self {
        fs::write(folder.join("e.toml"), text).expect("written");
        Self::start(folder, &["--config", "e.toml"])
    }

    /// Starts the server that `command` runs, and waits until it serves; panics if it ends instead.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::try_spawn(command).unwrap_or_else(|(status, said)| panic!("the server did not start: {status}: {said}"))
    }

    /// Starts the server that `command` runs, and waits until it serves. If the server ends instead, returns its exit status and
    /// its output as an error.
    pub(crate) fn try_spawn(command: &mut Command) -> Result<Self, (ExitStatus, String)> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut banner = String::new();
        while !banner.contains("Stop with") {
            if stdout.read_line(&mut banner).expect("text") == 0 {
                let _ = stderr.read_to_string(&mut banner);
                return Err((child.wait().expect("it ends"), banner));
            }
        }
        Ok(Self { child, stderr, banner })
    }

    /// URI of the server's first volume over TCP.
    pub(crate) fn uri(&self) -> &str {
        self.quoted("nbdinfo '")
    }

    /// Address and port of the server's dashboard and API.
    pub(crate) fn status(&self) -> &str {
        let start = self.banner.find("http://").expect("a status address") + "http://".len();
        self.banner[start..].split_whitespace().next().expect("an address")
    }

    fn quoted(&self, before: &str) -> &str {
        let start = self.banner.find(before).expect("a line to paste") + before.len();
        self.banner[start..].split('\'').next().expect("a closing quote")
    }

    /// Process id of the server.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Reads on in the server's log until a line contains `words`; returns the part that was read by this call.
    pub(crate) fn log_until(&mut self, words: &str) -> String {
        let mut log = String::new();
        while !log.contains(words) {
            assert!(self.stderr.read_line(&mut log).expect("text") > 0, "{words:?} never came in:\n{log}");
        }
        log
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Waits until the server has ended, without reading its log; returns its exit status.
    pub(crate) fn end_unread(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Waits until the server has ended; returns its exit status and the part of its log that was not read before.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.stderr.read_to_string(&mut log).expect("text");
        (self.child.wait().expect("it ends"), log)
    }

    /// Stops the server gracefully; asserts that it succeeds.
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        let (status, log) = self.end();
        assert!(status.success(), "{status}: {log}");
    }

    /// The server's state, read from its API over TCP.
    pub(crate) fn state(&self) -> Value {
        let answer = http(self.status(), "GET", "/api/v1/state", &[], "");
        assert_eq!(answer.status, 200);
        serde_json::from_str(&answer.body).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sends requests until the value is dropped.
pub(crate) struct Load(Child);

impl Load {
    /// Starts the load on a volume of the server whose data are in `folder`.
    pub(crate) fn start(folder: &Folder, volume: &str, arguments: &[&str]) -> Self {
        let socket = folder.join("evenkeel-data/nbd.sock");
        let uri = format!("nbd+unix:///{volume}?socket={}", socket.display());
        let mut command = Command::new(EVENKEEL);
        command.args(["load", &uri, "--duration", "300s"]).args(arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `evenkeel ARGUMENTS` in `folder`.
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> Output {
    Command::new(EVENKEEL).current_dir(folder.path()).args(arguments).output().expect("the program runs")
}

/// Runs `evenkeel ARGUMENTS` in `folder`, asserts that it succeeds, and returns its output.
#[track_caller]
pub(crate) fn succeed(folder: &Folder, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs `evenkeel ARGUMENTS` in `folder`, asserts exit status 1 or 2, and returns the error message.
#[track_caller]
pub(crate) fn fail(folder: &Folder, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    let complaint = String::from_utf8(output.stderr).expect("text");
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {}: {complaint}", output.status);
    complaint
}

/// Repeats `look` until it succeeds, and returns what it found; panics with its last error after `patience`.
#[track_caller]
pub(crate) fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(found) => return found,
            Err(shown) => assert!(Instant::now() < deadline, "this does not come true: {what}: {shown}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `holds`.
#[track_caller]
pub(crate) fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, PATIENCE, || if holds() { Ok(()) } else { Err("it does not hold".into()) });
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends one HTTP request over TCP and returns the answer.
pub(crate) fn http(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    request_on(TcpStream::connect(address).expect("the status address"), address, method, path, headers, body)
}

/// Sends one HTTP request over the control socket and returns the answer.
pub(crate) fn control(socket: &Path, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    request_on(UnixStream::connect(socket).expect("the control socket"), "localhost", method, path, headers, body)
}

fn request_on(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Answer {
    let mut lines = vec![
        format!("{method} {path} HTTP/1.1"),
        "Connection: close".into(),
        format!("Content-Length: {}", body.len()),
    ];
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        lines.push(format!("Host: {host}"));
    }
    lines.extend(headers.iter().map(|&header| header.to_owned()));
    // A server that refuses a large body answers and closes without having read all of it.
    let closed = |error: &io::Error| matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
    let sent = write!(stream, "{}\r\n\r\n{body}", lines.join("\r\n"));
    assert!(sent.as_ref().map_or_else(closed, |()| true), "{sent:?}");
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(error) if closed(&error) => break,
            Err(error) => panic!("no answer: {error}"),
        }
    }
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}
