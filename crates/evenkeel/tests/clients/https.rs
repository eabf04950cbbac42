//! Tests of the API over HTTPS with the clients `curl` and `openssl`. Clients have a good certificate, an expired or revoked one,
//! one of another authority, or none.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Case, EVENKEEL, Server, until};
use crate::tls::Authority;

on_both_engines! {
    the_api_is_https_where_others_reach_it: "openssl" "curl";
    a_reload_renews_and_revokes_https: "openssl" "curl";
    https_without_client_certificates: "openssl" "curl";
    certificates_come_and_go_and_never_does_plain_http_come_back: "openssl" "curl";
}

/// The configuration's tables `[TABLE.tls]`, with the case's certificates and the further keys `tls`, and `[TABLE.http]`, with
/// the keys `http`. `table` is `server` or `agent`.
pub(crate) fn terms(case: &Case, table: &str, tls: &str, http: &str) -> String {
    let [certificate, key, clients] = ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(|name| case.file(name));
    format!(
        "[{table}.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclients = \"{clients}\"\n{tls}\n\
         [{table}.http]\n{http}\n"
    )
}

fn tables(case: &Case, tls: &str, http: &str) -> String {
    terms(case, "server", tls, http) + VOLUME
}

const VOLUME: &str = "[volumes.memory]\nbackend = \"memory\"\nsize = \"32MiB\"\n";

/// Starts a server whose API listens on all addresses of this machine, with `scheme` http or https. Returns the server and the
/// API's port.
fn serve(case: &Case, scheme: &str, tables: &str) -> (Server, String) {
    let mut command = case.command(&[], tables);
    command.args(["--status", "0.0.0.0:0"]);
    let mut server = case.spawn(command);
    server.until_it_serves();
    (server, port(case, scheme, "0.0.0.0"))
}

/// Port of the API, from the address `SCHEME://HOST:PORT` that the case's server or agent prints at its start.
pub(crate) fn port(case: &Case, scheme: &str, host: &str) -> String {
    until("the address of the API", || {
        let said = fs::read_to_string(case.path("stdout")).ok()?;
        let (_, rest) = said.split_once(&format!("{scheme}://{host}:"))?;
        Some(rest.split_once([' ', '/'])?.0.to_owned())
    })
}

/// Output of `curl` for a request over plain HTTP; empty if there is no answer.
pub(crate) fn plain(case: &Case, port: &str) -> String {
    let url = format!("http://localhost:{port}/healthz");
    let output = case.run(&["curl", "--silent", "--max-time", "20", "--http0.9", "--include", &url]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Answer to a request of `curl` for `path` over HTTPS; `None` if `curl` fails.
pub(crate) fn curl(case: &Case, port: &str, path: &str, options: &str) -> Option<String> {
    let words = format!(
        "curl --silent --show-error --max-time 20 --cacert ca-cert.pem {options} https://localhost:{port}{path}"
    );
    let output = case.run(&words.split_whitespace().collect::<Vec<_>>());
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Options with the client's certificate and key in `folder`, for curl as well as for Evenkeel's commands.
pub(crate) fn shows(folder: &str) -> String {
    format!("--cert {folder}/client-cert.pem --key {folder}/client-key.pem")
}

/// The line of a table `[TABLE.tls]` that names the case's list of revoked certificates.
pub(crate) fn revoked(case: &Case) -> String {
    format!("revoked = \"{}\"", case.file("crl.pem"))
}

fn the_api_is_https_where_others_reach_it(case: &Case) {
    let authority = Authority::new(case);
    let beside = case.beside();
    let folders = authority.good_and_bad(&beside);
    let (server, port) = serve(case, "https", &tables(case, &revoked(case), ""));
    assert_good_certificates_alone(case, &server, &port, &folders, ["\"uptime_s\"", "evenkeel_uptime_seconds", "main"]);
    server.stop();
}

/// Asserts that of the clients of [`Authority::good_and_bad`] only the first one gets state, metrics and the screen of `top`,
/// each with the given word, and that plain HTTP is refused.
pub(crate) fn assert_good_certificates_alone(
    case: &Case,
    server: &Server,
    port: &str,
    [alice, bob, old, stranger]: &[String; 4],
    [in_state, in_metrics, in_top]: [&str; 3],
) {
    let state = curl(case, port, "/api/v1/state", &shows(alice)).expect("an answer");
    assert!(state.contains(in_state), "{state}");
    assert!(curl(case, port, "/metrics", &shows(alice)).is_some_and(|text| text.contains(in_metrics)));
    for (options, reason) in [
        (shows(bob), "Revoked"),
        (shows(old), "xpired"),
        (shows(stranger), "UnknownIssuer"),
        (String::new(), "no certificates"),
        // The client does not believe in the server.
        (format!("{} --cacert {stranger}/ca-cert.pem", shows(alice)), "received fatal alert"),
    ] {
        assert_eq!(curl(case, port, "/api/v1/state", &options), None, "{reason}");
        server.until_logged(reason);
    }
    let top = |folder: &str, ca: &str| {
        let words = format!("{EVENKEEL} top --once --status https://localhost:{port} --ca {ca} {}", shows(folder));
        case.run(&words.split_whitespace().collect::<Vec<_>>())
    };
    let shown = top(alice, "ca-cert.pem");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && text.contains(in_top), "{text}");
    assert!(!top(bob, "ca-cert.pem").status.success(), "revoked");
    assert!(!top(alice, &format!("{stranger}/ca-cert.pem")).status.success(), "a server of another authority");
    // Plain HTTP is not spoken, and nothing can be changed here either.
    assert!(!plain(case, port).contains("HTTP"));
    let refused = curl(case, port, "/api/v1/reload", &format!("--request POST {}", shows(alice))).expect("an answer");
    assert!(refused.contains("read_only"), "{refused}");

    let openssl = |version: &str| {
        let words = format!(
            "openssl s_client -connect localhost:{port} -CAfile ca-cert.pem -verify_return_error \
             -cert {alice}/client-cert.pem -key {alice}/client-key.pem {version}"
        );
        let output = case.run(&words.split_whitespace().collect::<Vec<_>>());
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (version, said) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (success, text) = openssl(version);
        assert!(success && text.contains(said) && text.contains("Verify return code: 0 (ok)"), "{text}");
    }
    assert!(!openssl("-tls1_1 -cipher ALL:@SECLEVEL=0").0);
}

fn a_reload_renews_and_revokes_https(case: &Case) {
    let authority = Authority::new(case);
    authority.revoke(&[]);
    let (server, port) = serve(case, "https", &tables(case, &revoked(case), ""));
    assert_renewed_by_a_signal(case, &authority, &server, &port);
    server.stop();
}

/// Asserts that a server or an agent uses renewed TLS files after SIGHUP, and keeps the old ones if the new ones are invalid.
pub(crate) fn assert_renewed_by_a_signal(case: &Case, authority: &Authority<'_>, server: &Server, port: &str) {
    let [alice, bob] = ["alice", "bob"].map(|name| authority.issue(name, "client", 2));
    let asks = |folder: &str| curl(case, port, "/healthz", &shows(folder)).is_some();
    assert!(asks(&alice) && asks(&bob));
    let presented = || {
        let words = format!("openssl s_client -connect localhost:{port} -cert alice-cert.pem -key alice-key.pem");
        let output = case.run(&words.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, rest) = said.split_once("-----BEGIN CERTIFICATE-----").expect("a certificate");
        rest.split_once("-----END").expect("whole").0.to_owned()
    };
    let before = presented();
    authority.revoke(&["bob"]);
    authority.issue("server", "server", 2);
    assert_eq!(presented(), before, "nobody has said so yet");
    server.signal(Signal::HUP);
    server.until_logged("certificates changed");
    assert!(asks(&alice) && !asks(&bob));
    let renewed = presented();
    assert_ne!(renewed, before);

    fs::copy(case.path("alice-key.pem"), case.path("server-key.pem")).expect("copied");
    server.signal(Signal::HUP);
    server.until_logged("does not belong to");
    assert!(asks(&alice) && presented() == renewed);
}

fn https_without_client_certificates(case: &Case) {
    let authority = Authority::new(case);
    let alice = authority.issue("alice", "client", 2);
    let old = authority.issue("old", "client", -1);
    let (server, port) = serve(case, "https", &tables(case, "", "certificates = \"optional\""));
    let asks = |options: &str| curl(case, &port, "/healthz", options).is_some();
    assert!(asks("") && asks(&shows(&alice)) && !asks(&shows(&old)), "a bad certificate is worse than none");
    server.stop();
}

fn certificates_come_and_go_and_never_does_plain_http_come_back(case: &Case) {
    let authority = Authority::new(case);
    let alice = authority.issue("alice", "client", 2);
    let (server, port) = serve(case, "http", VOLUME);
    server.until_logged("can read all names and loads, unencrypted; set [server.tls]");
    assert!(plain(case, &port).contains("HTTP/1.1 200"));
    let reload = |tables: &str| {
        case.configure(tables);
        server.signal(Signal::HUP);
    };
    reload(&tables(case, "", ""));
    until("HTTPS", || curl(case, &port, "/healthz", &shows(&alice)));
    assert!(!plain(case, &port).contains("HTTP"));
    reload(VOLUME);
    until("an end of HTTPS", || curl(case, &port, "/healthz", &shows(&alice)).is_none().then_some(()));
    assert!(!plain(case, &port).contains("HTTP"), "{}", server.log());
    server.stop();
}
