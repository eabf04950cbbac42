//! Support for tests: a server in the test's process with a folder of its own, and a small blocking client.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

#[path = "../../../xtask/src/test/skip.rs"]
mod skip;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::client::{Connected, Expect, Handshake, Outcome, Purpose, Replies, Request, Sink, Wanted};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing};
use evenkeel_policy::Config;
use evenkeel_policy::config::{Engine, Status};
use evenkeel_server::{Server, Start};

pub(crate) use skip::skip;

/// Longest wait for something that takes milliseconds on an idle machine; reaching it is a failure.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Raises this process's limit of open files to its hard limit.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Both engines for I/O on files.
pub const ENGINES: [Engine; 2] = [Engine::IoUring, Engine::Epoll];

/// A temporary folder that is deleted when the value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A mounted file system (tmpfs) of 1 MiB, for tests of a full file system; unmounted when dropped.
pub struct SmallDisk(Scratch);

impl SmallDisk {
    /// Mounts the file system; `None` if mounting is not allowed, and then the test is reported as skipped.
    pub fn mount(name: &str) -> Option<Self> {
        let folder = Scratch::new(name);
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"]).arg(folder.path()).stderr(std::process::Stdio::null());
        if !mount.status().is_ok_and(|status| status.success()) {
            skip("mounting a tmpfs needs root");
            return None;
        }
        Some(Self(folder))
    }

    /// The folder that the file system is mounted on.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Configuration of the volume `disk0` in a file of 16 MiB, more than the file system can hold.
    pub fn volume(&self) -> String {
        format!("[volumes.disk0]\npath = \"{}/disk.img\"\nsize = \"16MiB\"\n", self.0.path().display())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// A running server with its own folder, Unix socket and TCP port.
pub struct TestServer {
    pub server: Server,
    pub scratch: Scratch,
    pub config: Config,
}

/// The configuration `text`, changed to use the folder `scratch`, its own sockets and `engine`.
pub fn config(scratch: &Scratch, engine: Engine, text: &str) -> Config {
    let mut config = Config::parse(text, "test").unwrap_or_else(|e| panic!("{e}"));
    config.server.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.server.status = Status::Off;
    config.server.data_dir = scratch.path().to_owned();
    config.server.engine = engine;
    if engine == Engine::Epoll {
        // So that what is tried on both engines is tried with workers that sleep at once, too.
        config.server.busy_poll = Default::default();
    }
    config
}

impl TestServer {
    /// Starts a server with the configuration `text`; `name`, which names its folder, must be unique among the tests of a
    /// program.
    pub fn start(name: &str, engine: Engine, text: &str) -> Self {
        let scratch = Scratch::new(name);
        let config = config(&scratch, engine, text);
        Self::with_config(scratch, config)
    }

    /// Starts a server with a configuration made by [`config`].
    pub fn with_config(scratch: Scratch, config: Config) -> Self {
        Self::with_start(scratch, config, Start::default())
    }

    /// As [`Self::with_config`], with the further parameters `start`.
    pub fn with_start(scratch: Scratch, config: Config, start: Start) -> Self {
        let server = Server::start(config.clone(), start).unwrap_or_else(|e| panic!("{e}"));
        Self { server, scratch, config }
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("nbd.sock")
    }

    pub fn connect(&self, export: &str) -> Client {
        Client::new(Stream::Unix(UnixStream::connect(self.socket()).unwrap()), export, Framing::Extended)
    }

    pub fn connect_tcp(&self, export: &str) -> Client {
        Client::new(Stream::Tcp(self.raw_tcp()), export, Framing::Structured)
    }

    pub fn tcp(&self) -> SocketAddr {
        let address = self.server.listening().iter().find_map(|uri| uri.strip_prefix("nbd://")).unwrap();
        address.parse().unwrap()
    }

    pub fn raw_tcp(&self) -> TcpStream {
        TcpStream::connect(self.tcp()).unwrap()
    }

    /// A TCP connection to the server from the local address 127.0.0.`host`.
    pub fn raw_tcp_from(&self, host: u8) -> io::Result<TcpStream> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&stream, &SocketAddr::from(([127, 0, 0, host], 0)))?;
        connect(&stream, &self.tcp())?;
        Ok(stream.into())
    }

    /// Processor time in seconds that all workers have used since the server's start; up to a second old.
    pub fn cpu_s(&self) -> f64 {
        self.server.state().workers.iter().map(|worker| worker.cpu_s).sum()
    }

    pub fn raw_unix(&self) -> UnixStream {
        UnixStream::connect(self.socket()).unwrap()
    }

    /// Waits until `done` returns true for the server's state, for at most [`PATIENCE`]; `what` names it in a failure.
    pub fn wait_for(&self, what: &str, mut done: impl FnMut(&evenkeel_policy::state::State) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = self.server.state();
            if done(&state) {
                return;
            }
            assert!(Instant::now() < until, "waited too long for: {what}; {state:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub enum Stream {
    Tcp(TcpStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Stream {
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        match self {
            Self::Tcp(s) => s.set_read_timeout(timeout).unwrap(),
            Self::Tls(s) => s.sock.set_read_timeout(timeout).unwrap(),
            Self::Unix(s) => s.set_read_timeout(timeout).unwrap(),
        }
    }

    pub fn finish_writing(&self) {
        match self {
            Self::Tcp(s) => s.shutdown(Shutdown::Write).unwrap(),
            Self::Tls(s) => s.sock.shutdown(Shutdown::Write).unwrap(),
            Self::Unix(s) => s.shutdown(Shutdown::Write).unwrap(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Self::Tcp(s) => s.read(buffer),
                Self::Tls(s) => s.read(buffer),
                Self::Unix(s) => s.read(buffer),
            };
            // The kernel takes down the ring of a server that was tried on this thread, and interrupts it for that.
            if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                return result;
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.write(bytes),
            Self::Tls(s) => s.write(bytes),
            Self::Unix(s) => s.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The replies that a client has received, by cookie, and the replies that it expects.
#[derive(Default)]
pub struct Answers {
    expected: HashMap<u64, Expect>,
    data: HashMap<u64, Vec<u8>>,
    pub done: HashMap<u64, Result<Vec<u8>, Errno>>,
    pub extents: Vec<(u64, u64)>,
}

impl Sink for Answers {
    fn expect(&self, cookie: u64) -> Option<Expect> {
        self.expected.get(&cookie).copied()
    }

    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) {
        let at = (offset - self.expected[&cookie].offset) as usize;
        self.data.get_mut(&cookie).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn hole(&mut self, _cookie: u64, _offset: u64, _length: u64) {}

    fn extent(&mut self, _cookie: u64, _context: u32, length: u64, status: u64) {
        self.extents.push((length, status));
    }

    fn done(&mut self, cookie: u64, result: Result<(), Errno>) {
        self.expected.remove(&cookie).expect("answered once");
        let data = self.data.remove(&cookie).unwrap_or_default();
        self.done.insert(cookie, result.map(|()| data));
    }
}

/// A blocking NBD client that can have many requests outstanding.
pub struct Client {
    pub stream: Stream,
    pub connected: Connected,
    replies: Replies,
    pub answers: Answers,
    input: Vec<u8>,
    next: u64,
}

impl Client {
    pub fn new(stream: Stream, export: &str, framing: Framing) -> Self {
        Self::negotiate(stream, export, framing, &[])
    }

    /// As [`Self::new`], on a stream on which the server's greeting was answered already, before TLS began.
    pub fn greeted(stream: Stream, export: &str, framing: Framing) -> Self {
        Self::negotiate(stream, export, framing, b"NBDMAGICIHAVEOPT\0\x03")
    }

    fn negotiate(mut stream: Stream, export: &str, framing: Framing, greeting: &[u8]) -> Self {
        stream.set_timeout(Some(PATIENCE));
        let (export, purpose) = (export.into(), Purpose::Go);
        let mut handshake = Handshake::new(Wanted { export, purpose, framing, base_allocation: true, tls: false });
        let (mut input, mut out) = (greeting.to_vec(), Vec::new());
        // Its answer, four bytes of flags, was sent with it.
        let mut said_already = if greeting.is_empty() { 0 } else { 4 };
        let connected = loop {
            let step = handshake.advance(&input, &mut out).unwrap_or_else(|v| panic!("{v}"));
            input.drain(..step.consumed);
            let skip = out.len().min(said_already);
            said_already -= skip;
            stream.write_all(&out[skip..]).unwrap();
            out.clear();
            match step.outcome {
                Some(Outcome::Connected(connected)) => break connected,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            let mut more = [0; 4096];
            let n = stream.read(&mut more).unwrap();
            assert!(n > 0, "the server closed the connection during the handshake");
            input.extend_from_slice(&more[..n]);
        };
        let replies = Replies::new(connected.framing, connected.context);
        Self { stream, connected, replies, answers: Answers::default(), input, next: 0 }
    }

    /// Sends a request, with the payload of a write; returns its cookie.
    pub fn send(&mut self, command: Command, flags: CommandFlags, offset: u64, length: u64, payload: &[u8]) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let bytes = self.encode(cookie, command, flags, offset, length, payload);
        self.expect(cookie, command, offset, length);
        self.stream.write_all(&bytes).unwrap();
        cookie
    }

    /// The bytes of a request as sent to the server, with its payload.
    pub fn encode(
        &self,
        cookie: u64,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        Request { cookie, command, flags, offset, length }.encode(self.connected.framing, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Prepares for the reply to a request that is not sent by [`Self::send`].
    pub fn expect(&mut self, cookie: u64, command: Command, offset: u64, length: u64) {
        self.answers.expected.insert(cookie, Expect { command, offset, length, unfragmented: false });
        if command == Command::Read {
            self.answers.data.insert(cookie, vec![0; length as usize]);
        }
    }

    /// Receives and parses some bytes of replies; false if the server has closed the connection.
    pub fn receive(&mut self) -> bool {
        let mut more = vec![0; 1 << 18];
        match self.stream.read(&mut more) {
            Ok(0) => return false,
            Ok(n) => self.input.extend_from_slice(&more[..n]),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) => {
                return false;
            }
            Err(error) => panic!("no answer: {error}"),
        }
        let used = self.replies.parse(&self.input, &mut self.answers).unwrap_or_else(|v| panic!("{v}"));
        self.input.drain(..used);
        true
    }

    /// Waits for the reply to one request: its data (of a read), or its error.
    pub fn wait(&mut self, cookie: u64) -> Result<Vec<u8>, Errno> {
        loop {
            if let Some(result) = self.answers.done.remove(&cookie) {
                return result;
            }
            assert!(self.receive(), "the server closed the connection");
        }
    }

    /// Receives replies until the server closes the connection; they are in `answers` afterwards.
    pub fn wait_for_close(&mut self) {
        while self.receive() {}
    }

    pub fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>, Errno> {
        let cookie = self.send(Command::Read, CommandFlags::NONE, offset, length, &[]);
        self.wait(cookie)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write_with(CommandFlags::NONE, offset, bytes)
    }

    pub fn write_with(&mut self, flags: CommandFlags, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        // Extended requests say with a flag that a payload follows; the encoder of the client sees to it.
        let cookie = self.send(Command::Write, flags, offset, bytes.len() as u64, bytes);
        self.wait(cookie).map(drop)
    }

    pub fn flush(&mut self) -> Result<(), Errno> {
        let cookie = self.send(Command::Flush, CommandFlags::NONE, 0, 0, &[]);
        self.wait(cookie).map(drop)
    }

    /// Keeps `depth` requests of `length` bytes at offset 0 outstanding until `stop` is set; returns how many were answered
    /// by then.
    pub fn keep_asking(&mut self, command: Command, length: u64, depth: usize, stop: &AtomicBool) -> u64 {
        let payload = vec![7; if command == Command::Write { length as usize } else { 0 }];
        let ask = |client: &mut Self| client.send(command, CommandFlags::NONE, 0, length, &payload);
        let mut cookies: VecDeque<u64> = (0..depth).map(|_| ask(self)).collect();
        let mut answered = 0;
        while !stop.load(Ordering::Relaxed) {
            self.wait(cookies.pop_front().unwrap()).unwrap();
            answered += 1;
            cookies.push_back(ask(self));
        }
        answered
    }

    pub fn disconnect(mut self) {
        let bytes = self.encode(u64::MAX, Command::Disconnect, CommandFlags::NONE, 0, 0, &[]);
        let _ = self.stream.write_all(&bytes);
    }
}

/// Sets the flag when dropped, also by a failing test: otherwise threads that wait for the flag would keep their scope from
/// ending.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A loop device over a file, which is detached when the value is dropped.
pub struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Self(name.trim().into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A loop device of 16 MiB over a file in `scratch`; `None` if there can be none, and then the test is reported as skipped.
pub fn loop_device(scratch: &Scratch) -> Option<Loop> {
    let image = scratch.path().join("device.img");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let device = Loop::over(&image);
    if device.is_none() {
        skip("loop devices need root and a kernel that has them");
    }
    device
}

/// A generator of pseudo-random numbers, which depend on its seed (not 0) alone.
pub struct Random(pub u64);

impl Random {
    /// The next pseudo-random number, at least 0 and less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Content of `len` bytes that depends on `offset` and `generation`, so that bytes at the wrong place or of an older write
/// are found.
pub fn pattern(offset: u64, generation: u64, len: usize) -> Vec<u8> {
    let mut state = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.wrapping_mul(0xd1b5_4a32_d192_ed03) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
