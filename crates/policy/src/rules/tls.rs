//! Rules on encryption and certificates.

use super::Findings;
use crate::config::Server;

/// Settings that make sense together.
pub(super) fn settings(server: &Server, out: &mut Findings) {
    let Some(tls) = &server.tls else { return };
    out.error_if(
        tls.named_only && tls.clients.is_none(),
        &["server", "tls", "named_only"],
        "would refuse every client where clients need no certificate; set clients, or remove this key",
    );
}
