//! The API over HTTPS, with `curl` and `openssl`: certificates that are good, of another authority, expired, revoked, none.

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

/// Tables with these keys, for the authority of the case's folder.
fn tables(case: &Case, tls: &str, http: &str) -> String {
    let [certificate, key, clients] = ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(|name| case.file(name));
    format!(
        "[server.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclients = \"{clients}\"\n{tls}\n\
         [server.http]\n{http}\n{VOLUME}"
    )
}

const VOLUME: &str = "[volumes.memory]\nbackend = \"memory\"\nsize = \"32MiB\"\n";

/// A server that shows its state at an address which other machines reach; that port.
fn serve(case: &Case, scheme: &str, tables: &str) -> (Server, String) {
    let mut command = case.command(&[], tables);
    command.args(["--status", "0.0.0.0:0"]);
    let mut server = case.spawn(command);
    server.until_it_serves();
    let port = until("the address of the API", || {
        let said = fs::read_to_string(case.path("stdout")).ok()?;
        let (_, rest) = said.split_once(&format!(" {scheme}://0.0.0.0:"))?;
        Some(rest.split(' ').next()?.to_owned())
    });
    (server, port)
}

/// What `curl` is told without TLS.
fn plain(case: &Case, port: &str) -> String {
    let url = format!("http://localhost:{port}/healthz");
    let output = case.run(&["curl", "--silent", "--max-time", "20", "--http0.9", "--include", &url]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What `curl` is answered, if it is.
fn curl(case: &Case, port: &str, path: &str, options: &str) -> Option<String> {
    let words = format!(
        "curl --silent --show-error --max-time 20 --cacert ca-cert.pem {options} https://localhost:{port}{path}"
    );
    let output = case.run(&words.split_whitespace().collect::<Vec<_>>());
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shows(folder: &str) -> String {
    format!("--cert {folder}/client-cert.pem --key {folder}/client-key.pem")
}

fn the_api_is_https_where_others_reach_it(case: &Case) {
    let authority = Authority::new(case);
    let beside = case.beside();
    let [alice, bob, old, stranger] = authority.good_and_bad(&beside);
    let (server, port) = serve(case, "https", &tables(case, &format!("revoked = \"{}\"", case.file("crl.pem")), ""));

    let state = curl(case, &port, "/api/v1/state", &shows(&alice)).expect("an answer");
    assert!(state.contains("\"uptime_s\""), "{state}");
    assert!(curl(case, &port, "/metrics", &shows(&alice)).is_some_and(|text| text.contains("evenkeel_uptime_seconds")));
    for (options, reason) in [
        (shows(&bob), "Revoked"),
        (shows(&old), "xpired"),
        (shows(&stranger), "UnknownIssuer"),
        (String::new(), "no certificates"),
        // The client does not believe in the server.
        (format!("{} --cacert {stranger}/ca-cert.pem", shows(&alice)), "received fatal alert"),
    ] {
        assert_eq!(curl(case, &port, "/api/v1/state", &options), None, "{reason}");
        server.until_logged(reason);
    }
    let top = |folder: &str, ca: &str| {
        let words = format!(
            "{EVENKEEL} top --once --status https://localhost:{port} --ca {ca} --cert {folder}/client-cert.pem --key {folder}/client-key.pem"
        );
        case.run(&words.split_whitespace().collect::<Vec<_>>())
    };
    let shown = top(&alice, "ca-cert.pem");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && text.contains("main"), "{text}");
    assert!(!top(&bob, "ca-cert.pem").status.success(), "revoked");
    assert!(!top(&alice, &format!("{stranger}/ca-cert.pem")).status.success(), "a server of another authority");
    // Plain HTTP is not spoken, and nothing can be changed here either.
    assert!(!plain(case, &port).contains("HTTP"));
    let refused = curl(case, &port, "/api/v1/reload", &format!("--request POST {}", shows(&alice))).expect("an answer");
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
    server.stop();
}

fn a_reload_renews_and_revokes_https(case: &Case) {
    let authority = Authority::new(case);
    let [alice, bob] = ["alice", "bob"].map(|name| authority.issue(name, "client", 2));
    authority.revoke(&[]);
    let (server, port) = serve(case, "https", &tables(case, &format!("revoked = \"{}\"", case.file("crl.pem")), ""));
    let asks = |folder: &str| curl(case, &port, "/healthz", &shows(folder)).is_some();
    assert!(asks(&alice) && asks(&bob));
    authority.revoke(&["bob"]);
    authority.issue("server", "server", 2);
    server.signal(Signal::HUP);
    server.until_logged("certificates changed");
    assert!(asks(&alice) && !asks(&bob));
    server.stop();
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
    server.until_logged("can read the names and loads of all tenants, unencrypted; set [server.tls]");
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
