//! What is said of HTTP beyond this machine.

use evenkeel_policy::check::check;

const TLS: &str = "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\n";

#[test]
fn beyond_loopback_it_is_encrypted_or_explicitly_not() {
    let said = |status: &str, rest: &str| {
        let report = check(&format!("[server]\nlisten = []\nstatus = \"{status}\"\n{rest}"), "test");
        (report.errors.first().map(ToString::to_string), report.warnings.first().map(ToString::to_string))
    };
    let (here, there) = ("127.0.0.1:1", "0.0.0.0:1");
    assert_eq!(said(here, ""), (None, None));
    assert_eq!(said(here, TLS), (None, None));
    assert_eq!(said(there, &format!("{TLS}clients = \"a\"\n")), (None, None));
    for (status, rest, key, cure) in [
        (there, String::new(), "test:3:1: server.status: ", "add [server.tls]"),
        (here, "[server.http]\ntls = \"always\"\n".into(), "test:5:1: server.http.tls: ", "add [server.tls]"),
        (here, "[server.http]\ntls = \"yes\"\n".into(), "test:5:", "always"),
    ] {
        let error = said(status, &rest).0.expect(cure);
        assert!(error.contains(key) && error.contains(cure), "{error}");
    }
    for (rest, unencrypted) in [
        ("[server.http]\ntls = \"no\"\n".to_owned(), true),
        (TLS.to_owned(), false),
        (format!("{TLS}clients = \"a\"\n[server.http]\ncertificates = \"optional\"\n"), false),
    ] {
        let (error, warning) = said(there, &rest);
        let warning = warning.expect("a warning");
        assert!(error.is_none() && warning.contains("can read the names"), "{warning}");
        assert_eq!(warning.contains("unencrypted"), unencrypted, "{warning}");
    }
}
