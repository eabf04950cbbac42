//! Rules on encryption and certificates.

use std::collections::BTreeMap;

use super::Findings;
use crate::config::{Config, Server};

/// What somebody in the network could do, if anything.
pub(crate) fn danger(config: &Config) -> Option<String> {
    let Some(tls) = &config.server.tls else {
        return Some(
            "NBD without TLS neither authenticates nor encrypts; set [server.tls], or keep it to networks you trust"
                .into(),
        );
    };
    if let Some((name, _)) = config.volumes.iter().find(|(_, volume)| !config.needs_tls(volume, true)) {
        return Some(format!(
            "volume {name:?} is served there without TLS too; set required = \"tcp\" in [server.tls], or tls = \"tcp\" for the volume"
        ));
    }
    tls.clients
        .is_none()
        .then(|| "anybody may connect: TLS without clients' certificates only encrypts; set server.tls.clients".into())
}

/// Settings that make sense together.
pub(super) fn settings(server: &Server, out: &mut Findings) {
    let Some(tls) = &server.tls else { return };
    out.error_if(
        tls.named_only && tls.clients.is_none(),
        &["server", "tls", "named_only"],
        "would refuse everybody where clients need no certificate; set clients, or remove this key",
    );
}

/// A certificate belongs to one tenant only, and somebody asks for it.
pub(super) fn certificates(config: &Config, out: &mut Findings) {
    let asked_for = config.server.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    let mut owners = BTreeMap::new();
    for (name, tenant) in &config.tenants {
        let at = ["tenants", name, "certificates"];
        if !tenant.certificates.is_empty() && !asked_for {
            out.error(&at, "no client is asked for a certificate; set clients in [server.tls]");
        }
        for certificate in &tenant.certificates {
            match owners.insert(certificate.to_string().to_lowercase(), name) {
                Some(other) if other != name => {
                    out.error(
                        &at,
                        format!("{certificate} already belongs to tenant {other:?}; a client can have one tenant only"),
                    );
                }
                _ => {}
            }
        }
    }
}
