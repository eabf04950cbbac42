//! Tests of the settings of TLS: defaults, mistakes, and the clients that must use TLS.

use evenkeel_policy::Config;
use evenkeel_policy::change::{Change, plan};
use evenkeel_policy::check::check;
use evenkeel_policy::config::Need;

use super::reload::config;

const TLS: &str = "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\n";

#[test]
fn with_certificates_tls_is_required_over_tcp() {
    let text = format!("{TLS}[volumes.a]\nsize = \"1MiB\"\n[volumes.b]\nsize = \"1MiB\"\ntls = \"always\"\n");
    let config = config(&text);
    let needs = |name: &str, tcp| config.needs_tls(&config.volumes[name], tcp);
    assert_eq!(config.server.tls.as_ref().map(|tls| (tls.required, tls.named_only)), Some((Need::Tcp, false)));
    assert_eq!((needs("a", true), needs("a", false), needs("b", true), needs("b", false)), (true, false, true, true));
    assert_eq!((config.all_need_tls(true), config.all_need_tls(false)), (true, false));
    let none = Config::default();
    assert!(!none.needs_tls(&none.volumes["disk0"], true) && !none.all_need_tls(true));
}

#[test]
fn one_volume_without_tls_is_enough_to_answer_before_it() {
    let text = format!("{TLS}[volumes.a]\nsize = \"1MiB\"\n[volumes.b]\nsize = \"1MiB\"\ntls = \"no\"\n");
    assert!(!config(&text).all_need_tls(true));
    // The other way round there is a volume to come that would need none.
    let text = format!("{TLS}required = \"no\"\n[volumes.a]\nsize = \"1MiB\"\ntls = \"tcp\"\n");
    assert!(!config(&text).all_need_tls(true));
}

#[test]
fn mistakes_are_named_with_their_line_and_their_cure() {
    let hex = "ab".repeat(32);
    for (text, key, cure) in [
        ("[server.tls]\ncertificate = \"c\"\n".to_owned(), "server.tls", "`key`"),
        (format!("{TLS}revoked = \"r\"\n"), "test:4:1: server.tls.revoked: ", "set clients"),
        (format!("{TLS}named_only = true\n"), "test:4:1: server.tls.named_only: ", "set server.tls.clients"),
        (format!("{TLS}required = \"yes\"\n"), "test:4:", "always"),
        ("[volumes.a]\nsize = \"1MiB\"\ntls = \"tcp\"\n".to_owned(), "test:3:1: volumes.a.tls: ", "add [server.tls]"),
        (format!("{TLS}[tenants.a]\nmatch = [\"certificate:x\"]\n"), "test:5:1: tenants.a.match: ", "set clients"),
        (
            format!(
                "{TLS}clients = \"a\"\n[tenants.a]\nmatch = [\"certificate:X\"]\n[tenants.b]\nmatch = [\"certificate:x\"]\n"
            ),
            "tenants.b.match: ",
            "one tenant only",
        ),
        (
            format!("{TLS}clients = \"a\"\n[tenants.a]\nmatch = [\"certificate:sha256:{hex}0\"]\n"),
            "test:6:",
            "openssl x509",
        ),
    ] {
        let errors = Config::parse(&text, "test").expect_err(cure).to_string();
        assert!(errors.contains(key) && errors.contains(cure), "{errors}");
    }
}

#[test]
fn an_address_that_others_reach_is_warned_of_until_it_cannot_be_misused() {
    let warned = |tls: &str| {
        let report = check(&format!("[server]\nlisten = [\"0.0.0.0:1\"]\n{tls}"), "test");
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        report.warnings.first().map(|warning| (warning.key.clone(), warning.message.clone()))
    };
    for (tls, reason) in [
        (String::new(), "neither authenticates nor encrypts"),
        (format!("{TLS}required = \"no\"\n"), "volume \"disk0\" is served there without TLS too"),
        (TLS.to_owned(), "every client may connect"),
    ] {
        let (key, message) = warned(&tls).expect(reason);
        assert!(key == "server.listen" && message.contains(reason), "{key}: {message}");
    }
    assert_eq!(warned(&format!("{TLS}clients = \"a\"\n")), None);
}

#[test]
fn all_of_it_can_change_while_the_server_runs() {
    let before = config("[volumes.a]\nsize = \"1MiB\"\n");
    let after = config(&format!(
        "{TLS}clients = \"a\"\n[tenants.t]\nmatch = [\"certificate:x\"]\n[volumes.a]\nsize = \"1MiB\"\ntls = \"no\"\n"
    ));
    let changes = plan(&before, &after).expect("nothing needs a restart");
    let expected = [Change::Server { key: "tls" }, Change::TenantAdded("t".into()), Change::VolumeChanged("a".into())];
    assert_eq!(changes, expected);
}
