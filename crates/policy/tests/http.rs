//! Tests of the findings about HTTP for clients on other machines.

use evenkeel_policy::check::check;

const TLS: &str = "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\n";

/// The first error and the first warning about a server with the status address `status` and further settings.
fn said(status: &str, rest: &str) -> (Option<String>, Option<String>) {
    let report = check(&format!("[server]\nlisten = []\nstatus = \"{status}\"\n{rest}"), "test");
    (report.errors.first().map(ToString::to_string), report.warnings.first().map(ToString::to_string))
}

#[test]
fn beyond_loopback_it_is_encrypted_or_there_is_a_warning() {
    let (here, there) = ("127.0.0.1:1", "0.0.0.0:1");
    let with = |clients: &str, http: &str| format!("{TLS}{clients}\n[server.http]\n{http}\n");
    let authority = "clients = \"a\"";
    for (status, rest) in [
        (here, String::new()),
        (here, TLS.to_owned()),
        (there, with(authority, "")),
        // Whoever says so means it.
        (there, "[server.http]\ntls = \"no\"\n".to_owned()),
        (there, with(authority, "tls = \"no\"")),
        (there, with("", "tls = \"no\"")),
        (there, with("", "certificates = \"optional\"")),
        (there, with(authority, "certificates = \"optional\"")),
        (here, with(authority, "tls = \"always\"")),
    ] {
        assert_eq!(said(status, &rest), (None, None), "{status} {rest}");
    }
    for (rest, cures) in [
        (String::new(), ["unencrypted", "set [server.tls]", "tls = \"no\""]),
        (TLS.to_owned(), ["no client certificate", "server.tls.clients", "certificates = \"optional\""]),
    ] {
        let (error, warning) = said(there, &rest);
        let warning = warning.expect("a warning");
        assert!(error.is_none() && warning.starts_with("test:3:1: server.status: "), "{warning}");
        assert!(cures.iter().all(|cure| warning.contains(cure)), "{warning}");
    }
}

#[test]
fn what_cannot_be_had_is_an_error() {
    for status in ["127.0.0.1:1", "0.0.0.0:1", "off"] {
        let error = said(status, "[server.http]\ntls = \"always\"\n").0.expect("an error");
        assert!(error.contains("test:5:1: server.http.tls: ") && error.contains("add [server.tls]"), "{error}");
    }
    let error = said("off", "[server.http]\ntls = \"yes\"\n").0.expect("an error");
    assert!(error.contains("test:5:") && error.contains("always"), "{error}");
}

#[test]
fn a_host_has_neither_scheme_nor_port() {
    for wrong in ["http://storage1", "storage1:9809", "", "*.example.org"] {
        let error = said("0.0.0.0:1", &format!("[server.http]\ntls = \"no\"\nhosts = [\"{wrong}\"]\n")).0;
        let error = error.expect("an error");
        assert!(error.contains("server.http.hosts: ") && error.contains("without http:// and port"), "{error}");
    }
    assert_eq!(said("0.0.0.0:1", "[server.http]\ntls = \"no\"\nhosts = [\"storage1.example.org\"]\n"), (None, None));
}
