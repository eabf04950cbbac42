//! Rules on encryption and certificates.

use super::Findings;
use crate::config::{Config, Match};

/// Checks that the settings for TLS fit together.
pub(super) fn settings(config: &Config, out: &mut Findings) {
    let Some(tls) = config.server.tls.as_ref().filter(|tls| tls.named_only) else { return };
    let at = ["server", "tls", "named_only"];
    let mut entries = config.tenants.values().flat_map(|tenant| &tenant.matches);
    let named = entries.any(|entry| matches!(entry, Match::Client(who) if who.needs_certificate()));
    if tls.clients.is_some() && !named {
        let cure = "add match = [\"certificate:NAME\"] to a tenant, or remove this key";
        out.warning(&at, format!("no tenant names a certificate, and every client with one is refused; {cure}"));
    }
    out.error_if(
        tls.clients.is_none(),
        &at,
        "would refuse every client where clients need no certificate; set clients, or remove this key",
    );
}
