//! Tests of the agent's API, which follows the same rules as the server's: HTTPS on addresses that other machines reach, with
//! certificates that SIGHUP renews.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::{Case, EVENKEEL, Server};
use crate::https::{
    assert_good_certificates_alone, assert_renewed_by_a_signal, curl, plain, port, revoked, shows, terms,
};
use crate::tls::Authority;

const TARGET: &str = "[pools.nothing-served]\nlatency.target = \"15ms\"\n";

/// A folder for a test that needs `openssl` and `curl`; `None` if one of the programs is missing.
fn prepared() -> Option<Case> {
    Case::new("epoll", &["openssl", "curl"])
}

/// Writes an agent's configuration with the API at the address `status` and with further `tables`. Returns the file's path.
fn configure(case: &Case, status: &str, tables: &str) -> String {
    let text = format!("[agent]\nstatus = \"{status}\"\ninterval = \"20ms\"\n{tables}{TARGET}");
    fs::write(case.path("guard.toml"), text).expect("written");
    case.file("guard.toml")
}

/// Starts an agent with `--dry-run`, so that it throttles no client. The API is at the address `status`.
fn guard(case: &Case, status: &str, tables: &str) -> Server {
    let mut command = Command::new(EVENKEEL);
    command.args(["guard", "run", "--dry-run", "--config", &configure(case, status, tables)]);
    case.spawn(command)
}

/// Runs `evenkeel guard COMMAND`. Returns its output if it succeeds, else its error message.
fn ask(case: &Case, command: &str) -> Result<String, String> {
    let output = case.run(&[&[EVENKEEL, "guard"], &command.split(' ').collect::<Vec<_>>()[..]].concat());
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn the_agents_api_is_https_where_others_reach_it() {
    let Some(case) = prepared() else { return };
    let authority = Authority::new(&case);
    let beside = case.beside();
    let folders = authority.good_and_bad(&beside);
    let agent = guard(&case, "0.0.0.0:0", &terms(&case, "agent", &revoked(&case), ""));
    let port = port(&case, "https", "0.0.0.0");
    let words = ["\"ticks_total\"", "evenkeel_guard_ticks_total", "nothing-served"];
    assert_good_certificates_alone(&case, &agent, &port, &folders, words);

    let [alice, bob, _, stranger] = &folders;
    let there = |ca: &str, folder: &str| format!("--status https://localhost:{port} --ca {ca} {}", shows(folder));
    let state = ask(&case, &format!("status --json {}", there("ca-cert.pem", alice))).expect("an answer");
    assert!(state.contains("\"ticks_total\""), "{state}");
    let why = ask(&case, &format!("why nothing-served {}", there("ca-cert.pem", alice))).expect("an answer");
    assert!(why.contains("nothing-served: "), "{why}");
    for (options, complaint) in [
        (there("ca-cert.pem", bob), "TLS with https://localhost:"),
        (there(&format!("{stranger}/ca-cert.pem"), alice), "UnknownIssuer"),
        (format!("--status https://localhost:{port}"), "--ca"),
        (format!("--status 127.0.0.1:{port}"), "write https:// before the address"),
    ] {
        let said = ask(&case, &format!("status {options}")).expect_err("a refusal");
        assert!(said.contains(complaint), "{options}: {said}");
    }
    assert!(!agent.log().contains("can read all names"), "{}", agent.log());
    agent.stop();
}

#[test]
fn a_signal_renews_the_agents_certificates() {
    let Some(case) = prepared() else { return };
    let authority = Authority::new(&case);
    authority.revoke(&[]);
    let agent = guard(&case, "0.0.0.0:0", &terms(&case, "agent", &revoked(&case), ""));
    let port = port(&case, "https", "0.0.0.0");
    assert_renewed_by_a_signal(&case, &authority, &agent, &port);
    agent.until_logged("agent.tls.key: ");

    // A newer policy is taken beside certificates that cannot be.
    let file = case.path("guard.toml");
    let policy = fs::read_to_string(&file).expect("text").replace("15ms", "25ms");
    fs::write(file, policy).expect("written");
    agent.signal(Signal::HUP);
    agent.until_logged("reloaded: pools nothing-served changed");
    let refused = "new certificates refused, the present ones stay in use: agent.tls.key: ";
    assert_eq!(agent.log().matches(refused).count(), 2, "{}", agent.log());
    agent.stop();
}

#[test]
fn an_agent_without_certificates_is_plain_and_says_so() {
    let Some(case) = prepared() else { return };
    let agent = guard(&case, "0.0.0.0:0", "");
    let port = port(&case, "http", "0.0.0.0");
    let warning = "guard.toml:2:1: agent.status: every client that reaches 0.0.0.0:0 can read all names and loads, unencrypted; set [agent.tls]";
    agent.until_logged(warning);
    assert!(plain(&case, &port).contains("HTTP/1.1 "));
    // There is nothing to renew, and nothing ends by it.
    agent.signal(Signal::HUP);
    agent.until_logged("reloaded, nothing changed");
    assert!(plain(&case, &port).contains("HTTP/1.1 "));
    agent.stop();

    let warned = |tables: &str| {
        let file = configure(&case, "0.0.0.0:0", tables);
        let output = case.run(&[EVENKEEL, "check", &file]);
        String::from_utf8_lossy(&output.stderr).contains(warning)
    };
    assert!(warned("") && !warned("[agent.http]\ntls = \"no\"\n"));
}

#[test]
fn what_the_agents_tables_say_goes_for_loopback_too() {
    let Some(case) = prepared() else { return };
    let authority = Authority::new(&case);
    let old = authority.issue("old", "client", -1);
    let agent = guard(&case, "127.0.0.1:0", &terms(&case, "agent", "", ""));
    assert!(plain(&case, &port(&case, "http", "127.0.0.1")).contains("HTTP/1.1 "));
    agent.stop();
    let http = "tls = \"always\"\ncertificates = \"optional\"";
    let agent = guard(&case, "127.0.0.1:0", &terms(&case, "agent", "", http));
    let port = port(&case, "https", "127.0.0.1");
    let asks = |options: &str| curl(&case, &port, "/healthz", options).is_some();
    assert!(asks("") && !asks(&shows(&old)), "a bad certificate is worse than none");
    agent.stop();
}

#[test]
fn certificates_that_cannot_be_used_are_named_at_the_start() {
    let Some(case) = prepared() else { return };
    let authority = Authority::new(&case);
    let start = |tables: &str| ask(&case, &format!("run --dry-run --config {}", configure(&case, "0.0.0.0:0", tables)));
    let refused = start("[agent.http]\ntls = \"always\"\n").expect_err("refused");
    assert!(refused.contains("guard.toml:5:1: agent.http.tls: ") && refused.contains("add [agent.tls]"), "{refused}");
    let tables = terms(&case, "agent", "", "");
    for (file, complaint) in
        [("ca-key.pem", "does not belong to"), ("ca-cert.pem", "has no private key"), ("nowhere.pem", "cannot be read")]
    {
        let refused = start(&tables.replace("server-key.pem", file)).expect_err("refused");
        assert!(refused.contains("agent.tls.key: ") && refused.contains(complaint), "{refused}");
    }
    // As of a server: whether the clients mind is theirs to say.
    authority.issue("server", "server", -1);
    let agent = guard(&case, "0.0.0.0:0", &tables);
    port(&case, "https", "0.0.0.0");
    agent.until_logged("server-cert.pem has expired");
    agent.stop();
}
