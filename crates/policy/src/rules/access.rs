//! Rules on access lists and on clients' certificates.

use super::Findings;
use crate::config::{Config, Match, Volume, Who};

/// Checks that the settings for clients' certificates fit together.
pub(super) fn certificates(config: &Config, out: &mut Findings) {
    let Some(tls) = config.server.tls.as_ref().filter(|tls| tls.named_only) else { return };
    let at = ["server", "tls", "named_only"];
    let mut entries = config.tenants.values().flat_map(|tenant| &tenant.matches);
    let named = entries.any(|entry| matches!(entry, Match::Client(who) if who.needs_certificate()));
    if tls.clients.is_some() && !named {
        let cure = "add match = [\"certificate:NAME\"] to a tenant, or remove this key";
        let why = "no tenant names a certificate, so every client with a certificate is refused";
        out.warning(&at, format!("{why}; {cure}"));
    }
    out.error_if(
        tls.clients.is_none(),
        &at,
        "would refuse every client, as no client is asked for a certificate; set server.tls.clients, or remove this key",
    );
}

/// Checks the access lists of the server.
pub(super) fn of_server(config: &Config, out: &mut Findings) {
    let server = &config.server;
    let tls_is_sure = !server.deny.iter().any(Who::needs_certificate) || config.all_need_tls(true);
    lists(config, &["server"], server.allow.as_deref(), &server.deny, tls_is_sure, out);
}

/// Checks the access lists of a volume.
pub(super) fn of_volume(config: &Config, name: &str, volume: &Volume, out: &mut Findings) {
    let tls_is_sure = config.needs_tls(volume, true);
    lists(config, &["volumes", name], volume.allow.as_deref(), &volume.deny, tls_is_sure, out);
}

/// Checks the access lists of the server or of a volume. `owner` is the path of the table that contains them; `tls_is_sure` is
/// true if all clients over TCP must use TLS.
fn lists(config: &Config, owner: &[&str], allow: Option<&[Who]>, deny: &[Who], tls_is_sure: bool, out: &mut Findings) {
    let at = |key: &'static str| [owner, &[key]].concat();
    out.error_if(
        allow.is_some_and(<[Who]>::is_empty),
        &at("allow"),
        "admits no client; name one, or remove this key to admit every client",
    );
    let asked_for = config.server.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    for (key, list) in [("allow", allow.unwrap_or_default()), ("deny", deny)] {
        if let Some(who) = list.iter().find(|who| who.needs_certificate() && !asked_for) {
            let why = format!("no client is asked for a certificate; set clients in [server.tls], or remove {who}");
            out.error(&at(key), why);
        }
    }
    if let Some(who) = deny.iter().find(|who| who.needs_certificate() && asked_for && !tls_is_sure) {
        let cure = if owner == ["server"] { "for every volume" } else { "for this volume" };
        let why = format!(
            "a client without TLS shows no certificate, so {who} would exclude no client; require TLS {cure} (tls = \"tcp\", or required in [server.tls])"
        );
        out.error(&at("deny"), why);
    }
    for who in allow.unwrap_or_default().iter().filter(|who| deny.contains(who)) {
        out.warning(&at("allow"), format!("{who} is in deny, too, which wins; remove it from allow or from deny"));
    }
}
