//! Rules on encryption and certificates.

use super::Findings;
use crate::config::{Config, Server};

/// What a client in the network could do, if anything.
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
    tls.clients.is_none().then(|| {
        "every client may connect: TLS without clients' certificates only encrypts; set server.tls.clients".into()
    })
}

/// Settings that make sense together.
pub(super) fn settings(server: &Server, out: &mut Findings) {
    let Some(tls) = &server.tls else { return };
    out.error_if(
        tls.named_only && tls.clients.is_none(),
        &["server", "tls", "named_only"],
        "would refuse every client where clients need no certificate; set clients, or remove this key",
    );
}
