//! Counters of refused clients, by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_policy::access::Barred;
use rustls::CertificateError;

/// The reason for refusing a client before it has opened a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// An access list of the server, or of the volume that the client asked for, bars the client.
    Barred(Barred),
    /// No tenant names the client's certificate, and `named_only` is set.
    UnnamedCertificate,
    /// The client has not chosen a volume within the handshake timeout.
    HandshakeTimeout,
    /// Too many connections have not chosen a volume yet.
    Handshakes,
    /// Too many connections of this client, or of its site, have not chosen a volume yet.
    HandshakesOfClient,
    /// All `server.max_connections` connections are open.
    Connections,
    /// The client, or its site, has as many connections as it may have, so that other clients find free ones.
    ConnectionsOfClient,
    /// The client's tenant has as many connections as it may have, so that other tenants find free ones.
    ConnectionsOfTenant,
    /// Of the descriptors that the client's user has passed over Unix sockets, too many are not closed yet.
    Descriptors,
    /// TLS with the client has failed, for this reason.
    Tls(Fault),
}

/// The reason why TLS with a client has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client has shown no certificate.
    NoCertificate,
    /// The client's certificate has expired, or is not valid yet.
    Expired,
    /// The client's certificate has been revoked.
    Revoked,
    /// The client's certificate is invalid for another reason, usually because its authority is unknown.
    BadCertificate,
    /// The client has ended TLS with an alert, usually because it does not trust the server's certificate.
    Alert,
    /// Client and server have no common protocol: another version of TLS, no common cipher, or no TLS at all.
    Protocol,
}

impl From<&rustls::Error> for Fault {
    fn from(error: &rustls::Error) -> Self {
        use CertificateError as Bad;
        match error {
            rustls::Error::NoCertificatesPresented => Self::NoCertificate,
            rustls::Error::InvalidCertificate(
                Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. },
            ) => Self::Expired,
            rustls::Error::InvalidCertificate(Bad::Revoked) => Self::Revoked,
            rustls::Error::InvalidCertificate(_) => Self::BadCertificate,
            rustls::Error::AlertReceived(_) => Self::Alert,
            _ => Self::Protocol,
        }
    }
}

impl Reason {
    /// All reasons, each with its name in the state and in metrics.
    const NAMED: [(Self, &'static str); 19] = [
        (Self::Barred(Barred::ServerDeny), "server_deny"),
        (Self::Barred(Barred::ServerAllow), "server_allow"),
        (Self::Barred(Barred::VolumeDeny), "volume_deny"),
        (Self::Barred(Barred::VolumeAllow), "volume_allow"),
        (Self::Barred(Barred::NoCertificate), "no_certificate"),
        (Self::UnnamedCertificate, "unnamed_certificate"),
        (Self::HandshakeTimeout, "handshake_timeout"),
        (Self::Handshakes, "handshakes"),
        (Self::HandshakesOfClient, "handshakes_of_client"),
        (Self::Connections, "connections"),
        (Self::ConnectionsOfClient, "connections_of_client"),
        (Self::ConnectionsOfTenant, "connections_of_tenant"),
        (Self::Descriptors, "descriptors"),
        (Self::Tls(Fault::NoCertificate), "tls_no_certificate"),
        (Self::Tls(Fault::Expired), "tls_expired"),
        (Self::Tls(Fault::Revoked), "tls_revoked"),
        (Self::Tls(Fault::BadCertificate), "tls_bad_certificate"),
        (Self::Tls(Fault::Alert), "tls_alert"),
        (Self::Tls(Fault::Protocol), "tls_protocol"),
    ];

    /// Name of the reason in the state and in metrics.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(reason, _)| *reason == self).map_or("", |&(_, name)| name)
    }

    /// The reason as a clause about the client, for messages.
    pub(crate) const fn because(self) -> &'static str {
        match self {
            Self::Barred(barred) => barred.because(),
            Self::UnnamedCertificate => "no tenant names this client's certificate, and server.tls.named_only is true",
            Self::HandshakeTimeout => "the client chose no volume within server.handshake_timeout",
            Self::Handshakes => {
                "server.max_handshakes connections have not chosen a volume yet; raise that key (needs a restart)"
            }
            Self::Connections => {
                "all connections of server.max_connections are open; raise that key (needs a restart) and LimitNOFILE="
            }
            Self::ConnectionsOfClient => {
                "this client, its /48 network of IPv6, its block of 65,536 user ids, or 127.0.0.0/8 as a whole has its largest number of connections, as other clients may need the rest of server.max_connections; raise that key and LimitNOFILE= (needs a restart)"
            }
            Self::ConnectionsOfTenant => {
                "the client's tenant has its largest number of connections, as other tenants may need the rest of server.max_connections; raise that key and LimitNOFILE= (needs a restart)"
            }
            Self::Descriptors => {
                "a user of this machine has passed file descriptors over Unix sockets that cannot be closed, usually of a FUSE file system that does not answer; end that file system's process"
            }
            Self::Tls(_) => "TLS failed",
            Self::HandshakesOfClient => {
                "this client, its /48 network of IPv6, its block of 65,536 user ids, or 127.0.0.0/8 as a whole has its largest number of connections that have chosen no volume yet: server.max_handshakes_per_client (a /48 or a block: four times that), or fewer, as other clients may need the rest of server.max_handshakes; raise both keys (needs a restart)"
            }
        }
    }
}

/// Number of refused clients since the start, for each reason.
#[derive(Default)]
pub(crate) struct Refusals([AtomicU64; Reason::NAMED.len()]);

impl Refusals {
    /// Counts one more client that was refused for this reason.
    pub(crate) fn count(&self, reason: Reason) {
        let place = Reason::NAMED.iter().position(|(other, _)| *other == reason);
        place.and_then(|place| self.0.get(place)).map(|count| count.fetch_add(1, Ordering::Relaxed));
    }

    /// The number of refused clients by the name of the reason, including zeros.
    pub(crate) fn totals(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Reason::NAMED.iter().map(|&(_, name)| name.to_owned()).zip(counts).collect()
    }
}
