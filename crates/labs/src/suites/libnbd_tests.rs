//! The list of libnbd's tests that are run, with their settings, and of skipped tests with the reasons.

use super::Skip;

/// A test of the suite, with the arguments for its compilation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Test {
    /// Name of the test in the suite.
    pub(super) name: String,
    /// Path of the test's source file, from the root of the suite's source.
    pub(super) source: String,
    /// Definitions for the compiler's option `-D`.
    pub(super) defines: Vec<String>,
}

/// Names of the tests that consist of one source file, in the suite's order.
pub(super) const PLAIN: [&str; 23] = [
    "errors-connect-twice",
    "errors-not-negotiating",
    "errors-notify-not-blocked",
    "errors-bad-cookie",
    "errors-pread-structured",
    "errors-server-invalid-offset",
    "errors-client-oversize",
    "errors-client-unknown-flags",
    "errors-server-unknown-flags",
    "errors-client-zerosize",
    "errors-server-zerosize",
    "shutdown-flags",
    "get-size",
    "read-only-flag",
    "read-write-flag",
    "opt-abort",
    "opt-list-meta",
    "connect-systemd-socket-activation",
    "connect-unix",
    "connect-tcp",
    "connect-tcp6",
    "aio-connect",
    "pread-initialize",
];

/// Names of the tests that load the server for ten seconds.
pub(super) const TIMED: [&str; 3] = ["aio-parallel", "aio-parallel-load", "synch-parallel"];

/// Tests that the suite makes from common source files with different definitions. Two of them contain one of `ports` each.
pub(super) fn variants(ports: &[u16; 2]) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: &str, source: &str, defines: &[&str]| {
        let defines = defines.iter().map(|define| (*define).to_owned()).collect();
        tests.push(Test { name: name.into(), source: source.into(), defines });
    };
    for (name, defines) in [
        ("can-flush-flag", &["flag=can_flush"][..]),
        ("can-fua-flag", &["flag=can_fua", "value=native"]),
        ("is-not-rotational-flag", &["flag=is_rotational", "value=false"]),
        ("can-trim-flag", &["flag=can_trim"]),
        ("can-zero-flag", &["flag=can_zero"]),
        ("can-fast-zero-flag", &["flag=can_fast_zero"]),
        ("can-df-flag", &["flag=can_df"]),
        ("can-not-df-flag", &["flag=can_df", "value=false", "no_sr"]),
        ("can-multi-conn-flag", &["flag=can_multi_conn"]),
        ("can-cache-flag", &["flag=can_cache", "value=native"]),
    ] {
        add(name, "tests/eflags.c", defines);
    }
    add("connect-tls-certs", "tests/connect-tls.c", &["CERTS=1"]);
    let tls = r#""--tls=require", "--tls-verify-peer", "--tls-certificates=pki""#;
    let [plain, secret] = ports;
    for (name, parameters, uri) in [
        ("connect-uri-nbd", format!(r#""-p", "{plain}""#), format!("nbd://localhost:{plain}/")),
        ("connect-uri-nbd-unix", r#""-U", UNIX_SOCKET"#.into(), "nbd+unix:///?socket=".into()),
        (
            "connect-uri-nbds-certs",
            format!(r#""-p", "{secret}", {tls}"#),
            format!("nbds://localhost:{secret}/?tls-certificates=pki"),
        ),
        (
            "connect-uri-nbds-unix-certs",
            format!(r#""-U", UNIX_SOCKET, {tls}"#),
            "nbds+unix://alice@/?tls-certificates=pki&socket=".into(),
        ),
    ] {
        let [parameters, pid_file, uri] =
            [format!("SERVER_PARAMS={parameters}"), format!("PIDFILE=\"{name}.pid\""), format!("URI=\"{uri}\"")];
        let mut defines = vec![parameters.as_str(), &pid_file, &uri];
        if name.contains("unix") {
            defines.push("NEEDS_UNIX_SOCKET=1");
        }
        add(name, "tests/connect-uri.c", &defines);
    }
    let interop = ["NEEDS_TMPFILE=1", "SERVER=\"nbdkit\""];
    for (name, server, tls) in [
        ("interop-nbdkit", "", &[][..]),
        ("interop-nbdkit-tls-certs", "require", &["CERTS=1", "TLS_MODE=LIBNBD_TLS_REQUIRE"]),
        ("interop-nbdkit-tls-certs-allow-enabled", "require", &["CERTS=1", "TLS_MODE=LIBNBD_TLS_ALLOW"]),
        ("interop-nbdkit-tls-certs-allow-fallback", "off", &["CERTS=1", "TLS_MODE=LIBNBD_TLS_ALLOW", "TLS_FALLBACK=1"]),
    ] {
        let options = match server {
            "require" => r#""--tls=require", "--tls-certificates=../tests/pki", "#,
            "off" => r#""--tls=off", "#,
            _ => "",
        };
        let parameters = format!(r#"SERVER_PARAMS={options}"-s", "--exit-with-parent", "file", TMPFILE"#);
        add(name, "interop/interop.c", &[&interop[..], tls, &[parameters.as_str()]].concat());
    }
    let parameters = r#"SERVER_PARAMS="file", tmpfile"#;
    add("socket-activation-nbdkit", "interop/socket-activation.c", &["SERVER=\"nbdkit\"", parameters]);
    tests
}

const NEVER: &str = "Evenkeel offers it in any case";
const SCRIPT: &str = "its server is a script of nbdkit's that behaves in a way of its own";
const OTHER: &str = "tests what another server has and Evenkeel has not";
const PSK: &str = "Evenkeel knows clients by certificates, not by shared keys";

/// Tests with a server that are skipped, with the reason.
pub(super) const SKIPPED: [Skip; 38] = [
    ("errors-multiple-disconnects", SCRIPT),
    ("errors-client-unadvertised-cmd", SCRIPT),
    ("errors-server-unadvertised-cmd", SCRIPT),
    ("errors-client-unaligned", "its server refuses what is not aligned; Evenkeel serves it"),
    ("errors-server-unaligned", "its server refuses what is not aligned; Evenkeel serves it"),
    ("server-death", "its server answers after 15 s"),
    ("closure-lifetimes", "its server answers after 10 s"),
    ("can-not-flush-flag", NEVER),
    ("can-not-fua-flag", NEVER),
    ("is-rotational-flag", "Evenkeel says so of no file and no memory"),
    ("can-not-trim-flag", NEVER),
    ("can-not-zero-flag", NEVER),
    ("can-not-fast-zero-flag", NEVER),
    ("can-not-multi-conn-flag", NEVER),
    ("can-not-cache-flag", NEVER),
    ("oldstyle", "Evenkeel speaks fixed newstyle alone"),
    ("newstyle-limited", "Evenkeel speaks fixed newstyle alone"),
    ("opt-list", SCRIPT),
    ("opt-info", SCRIPT),
    ("meta-base-allocation", SCRIPT),
    ("aio-connect-port", "needs a fixed port; the suite leaves it out, too"),
    ("connect-uri-nbd-vsock", OTHER),
    ("connect-tls-psk", PSK),
    ("connect-uri-nbds-psk", PSK),
    ("connect-uri-nbds-unix-psk", PSK),
    ("aio-parallel-tls", PSK),
    ("aio-parallel-load-tls", PSK),
    ("synch-parallel-tls", PSK),
    ("interop-nbdkit-tls-psk", PSK),
    ("interop-nbdkit-tls-psk-allow-enabled", PSK),
    ("interop-nbdkit-tls-psk-allow-fallback", PSK),
    ("list-exports-nbdkit", "its server serves a folder; nbd's test `list` lists exports"),
    ("interop-qemu-nbd", "its export is called `/`; interop-nbdkit does the same"),
    ("socket-activation-qemu-nbd", "its server is qemu-nbd; socket-activation-nbdkit does the same"),
    ("list-exports-qemu-nbd", "its export has a description"),
    ("dirty-bitmap", OTHER),
    ("structured-read", "its server serves an image of QEMU's format"),
    ("interop-nbd-server", "starts nbd-server on its standard input; interop-nbdkit does the same"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_test_runs_or_is_skipped_and_stands_once() {
        let variants = variants(&[1, 2]);
        let names = PLAIN.iter().chain(&TIMED).copied().chain(variants.iter().map(|test| test.name.as_str()));
        let names: Vec<&str> = names.chain(SKIPPED.iter().map(|(name, _)| *name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let uri = variants.iter().find(|test| test.name == "connect-uri-nbds-certs").unwrap();
        assert!(uri.defines.contains(&"URI=\"nbds://localhost:2/?tls-certificates=pki\"".to_owned()));
    }
}
