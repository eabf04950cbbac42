//! The test suite of nbd: its test client, in the modes that work with any server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::server::{Kind, Setup};
use super::{Bench, Skip};
use crate::base::process;
use crate::base::servers::{EXPORT, free_port};

const SMALL: u64 = 4 << 20;
/// Size of the volume in bytes, as the suite's logs of requests need it.
const LARGE: u64 = 50 << 20;
/// Time limit of a test: far above the duration of the slowest one.
const LIMIT: Duration = Duration::from_secs(300);
/// The header that nbd's script `configure` would write on a 64-bit Linux.
const CONFIG: &str = "\
#define HAVE_GNUTLS 1
#define HAVE_FDATASYNC 1
#define ISSERVER 1
#define NBD_LFS 1
#define PACKAGE_VERSION \"\"
#define PROG_NAME \"nbd-tester-client\"
#define SIZEOF_UNSIGNED_SHORT_INT 2
#define SIZEOF_UNSIGNED_INT 4
#define SIZEOF_UNSIGNED_LONG_INT 8
#define SIZEOF_UNSIGNED_LONG_LONG_INT 8
";

/// A special action or condition of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    Nothing,
    ReadOnly,
    Unix,
    /// The test first lists the exports with nbd's client.
    List,
    Tls,
    /// The test's client has a certificate that the server does not trust.
    WrongCertificate,
}

struct Test {
    /// Name of the test in the suite.
    name: &'static str,
    options: &'static [&'static str],
    /// Name of the log of requests that the client replays.
    log: Option<&'static str>,
    with: With,
}

impl Test {
    /// True if the test belongs to the short run with a server of this `kind`. The large log moves 6 GB, so it is replayed once
    /// for each engine and each storage, and only unencrypted, which is several times as fast.
    fn is_short(&self, kind: Kind) -> bool {
        self.log != HUGE || (self.with != With::Tls && Kind::PAIRED.contains(&kind))
    }
}

const fn test(name: &'static str, options: &'static [&'static str], log: Option<&'static str>, with: With) -> Test {
    Test { name, options, log, with }
}

const INTEGRITY: Option<&str> = Some("integrity-test.tr");
const HUGE: Option<&str> = Some("integrityhuge-test.tr");

const TESTS: [Test; 13] = [
    test("cfg1", &[], None, With::Nothing),
    test("cfgsize", &["-o"], None, With::Nothing),
    test("write", &["-w"], None, With::Nothing),
    test("flush", &["-w", "-f"], None, With::Nothing),
    test("rowrite", &["-w", "-F"], None, With::ReadOnly),
    test("handshake", &["-h"], None, With::Nothing),
    test("unix", &[], None, With::Unix),
    test("list", &[], None, With::List),
    test("integrity", &["-i"], INTEGRITY, With::Nothing),
    test("integrityhuge", &["-i"], HUGE, With::Nothing),
    test("tls", &["-i"], INTEGRITY, With::Tls),
    test("tlshuge", &["-i"], HUGE, With::Tls),
    test("tlswrongcert", &["-F"], None, With::WrongCertificate),
];

/// Tests of the suite that are skipped, with the reason.
pub(super) const SKIPPED: [Skip; 6] = [
    ("cfgmulti", "cfg1 on two exports of nbd-server's configuration"),
    ("cfgnew", "cfg1 with another form of nbd-server's configuration"),
    ("dirconfig", "cfg1 with another form of nbd-server's configuration"),
    ("tree", "a volume of nbd-server's that is a tree of files"),
    ("rotree", "a volume of nbd-server's that is a tree of files"),
    ("inetd", "starts nbd-server itself, on its standard input"),
];

/// The compiled test client, with its input files.
#[derive(Debug)]
pub(super) struct Suite {
    program: PathBuf,
    logs: PathBuf,
}

impl Suite {
    /// Compiles the test client from the folder `source`.
    pub(super) fn build(bench: &Bench<'_>, source: &Path) -> Result<Self> {
        let dir = bench.dir.join("nbd");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("config.h"), CONFIG)?;
        let (program, logs) = (dir.join("nbd-tester-client"), source.join("tests/run"));
        let mut cc = bench.compiler();
        cc.arg("-I").arg(&dir).arg("-I").arg(source).arg("-o").arg(&program).arg(logs.join("nbd-tester-client.c"));
        cc.args(["cliserv.c", "buffer.c", "crypto-gnutls.c"].map(|name| source.join(name)));
        process::output(cc.args(["-l:libglib-2.0.so.0", "-l:libgnutls.so.30"])).context("nbd-tester-client")?;
        Ok(Self { program, logs })
    }

    /// Runs each test with a server of its own, of this `kind`.
    pub(super) fn run(&self, bench: &mut Bench<'_>, kind: Kind) {
        for test in &TESTS {
            let name = format!("nbd_{}_{}", test.name, kind.name());
            if bench.wants(&name) && (bench.full || test.is_short(kind)) {
                let outcome = self.one(bench, test, kind, &name);
                bench.report(&name, outcome);
            }
        }
    }

    fn one(&self, bench: &Bench<'_>, test: &Test, kind: Kind, name: &str) -> Result<()> {
        let dir = bench.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let unix = dir.join("nbd.sock");
        let port = free_port()?;
        let secret = matches!(test.with, With::Tls | With::WrongCertificate);
        let size = if test.log.is_some() { LARGE } else { SMALL };
        let setup = Setup {
            read_only: test.with == With::ReadOnly,
            certificates: secret.then(|| bench.certificates.clone()),
            unix: (test.with == With::Unix).then(|| unix.clone()),
            port: (test.with != With::Unix).then_some(port),
            ..Setup::new(kind, size)
        };
        let server = setup.start(bench.binary, &dir)?;
        if test.with == With::List {
            let mut list = process::program("nbd-client");
            let exports = process::output(list.args(["-l", "127.0.0.1", &port.to_string()]))?;
            ensure!(exports.lines().any(|line| line.trim() == EXPORT), "nbd-client lists {exports}");
        }
        let mut client = process::program(&self.program.display().to_string());
        client.args(["-N", EXPORT]).args(test.options).current_dir(&dir);
        if let Some(log) = test.log {
            client.arg("-t").arg(self.logs.join(log));
        }
        if secret {
            let folder = if test.with == With::Tls { &bench.certificates } else { &bench.strangers };
            for (option, file) in [("-C", "client-cert.pem"), ("-K", "client-key.pem")] {
                client.arg(option).arg(folder.join(file));
            }
            client.arg("-A").arg(bench.certificates.join("ca-cert.pem")).args(["-H", "localhost"]);
        }
        match test.with {
            With::Unix => client.arg("-u").arg(&unix),
            _ => client.args(["127.0.0.1", &port.to_string()]),
        };
        let mut said = String::new();
        let (status, _) = process::stream(&mut client, LIMIT, |line| {
            // Progress stands on one line.
            said = line.rsplit('\r').find(|part| !part.trim().is_empty()).map_or(said.clone(), str::to_owned);
        })?;
        drop(server);
        if !status.success() {
            bail!("{status}; it said last: {}", said.trim());
        }
        if test.with == With::WrongCertificate {
            // The client takes any failure for the expected one.
            let log = std::fs::read_to_string(dir.join("server.log"))?;
            ensure!(log.contains("certificate"), "the server refused no certificate: {log}");
        }
        std::fs::remove_dir_all(&dir)?;
        Ok(())
    }
}
