//! Counters of refused clients, by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_policy::access::Barred;
use rustls::CertificateError;

/// Why a client was turned away before it had a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A list of the server, or of the volume that the client asked for, bars it.
    Barred(Barred),
    /// No tenant names the client's certificate, and `named_only` is set.
    UnnamedCertificate,
    /// The client has not chosen a volume in time.
    HandshakeTimeout,
    /// Too many connections negotiate.
    Handshakes,
    /// Too many connections of this client negotiate.
    HandshakesOfClient,
    /// There are `server.max_connections` connections.
    Connections,
    /// The client has as many connections as it leaves free for others.
    ConnectionsOfClient,
    /// The client's tenant has as many connections as it leaves free for others.
    ConnectionsOfTenant,
    /// TLS with the client has failed.
    Tls(Fault),
}

/// Why TLS with a client has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client has shown no certificate.
    NoCertificate,
    /// Its certificate has expired, or is not valid yet.
    Expired,
    /// Its certificate is bad for another reason, usually an unknown authority.
    Revoked,
    /// Its certificate is not good for another reason, an unknown authority most of all.
    BadCertificate,
    /// The client has given up, usually because it does not trust the server's certificate.
    Alert,
    /// The two do not understand each other: another version, no common cipher, no TLS at all.
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
    const ALL: [Self; 18] = [
        Self::Barred(Barred::ServerDeny),
        Self::Barred(Barred::ServerAllow),
        Self::Barred(Barred::VolumeDeny),
        Self::Barred(Barred::VolumeAllow),
        Self::Barred(Barred::NoCertificate),
        Self::UnnamedCertificate,
        Self::HandshakeTimeout,
        Self::Handshakes,
        Self::HandshakesOfClient,
        Self::Connections,
        Self::ConnectionsOfClient,
        Self::ConnectionsOfTenant,
        Self::Tls(Fault::NoCertificate),
        Self::Tls(Fault::Expired),
        Self::Tls(Fault::Revoked),
        Self::Tls(Fault::BadCertificate),
        Self::Tls(Fault::Alert),
        Self::Tls(Fault::Protocol),
    ];

    /// Name in state and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Barred(Barred::ServerDeny) => "server_deny",
            Self::Barred(Barred::ServerAllow) => "server_allow",
            Self::Barred(Barred::VolumeDeny) => "volume_deny",
            Self::Barred(Barred::VolumeAllow) => "volume_allow",
            Self::Barred(Barred::NoCertificate) => "no_certificate",
            Self::UnnamedCertificate => "unnamed_certificate",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::Handshakes => "handshakes",
            Self::HandshakesOfClient => "handshakes_of_client",
            Self::Connections => "connections",
            Self::ConnectionsOfClient => "connections_of_client",
            Self::ConnectionsOfTenant => "connections_of_tenant",
            Self::Tls(Fault::NoCertificate) => "tls_no_certificate",
            Self::Tls(Fault::Expired) => "tls_expired",
            Self::Tls(Fault::Revoked) => "tls_revoked",
            Self::Tls(Fault::BadCertificate) => "tls_bad_certificate",
            Self::Tls(Fault::Alert) => "tls_alert",
            Self::Tls(Fault::Protocol) => "tls_protocol",
        }
    }

    /// The reason as a clause about the client, for messages.
    pub(crate) const fn because(self) -> &'static str {
        match self {
            Self::Barred(barred) => barred.because(),
            Self::UnnamedCertificate => "no tenant names its certificate",
            Self::HandshakeTimeout => "no volume chosen within server.handshake_timeout",
            Self::Handshakes => "server.max_handshakes connections have not chosen a volume yet",
            Self::Connections => "all server.max_connections are open; raise it (needs a restart) and LimitNOFILE=",
            Self::ConnectionsOfClient => {
                "this client has as many connections as it may while others may need the rest; raise server.max_connections (needs a restart)"
            }
            Self::ConnectionsOfTenant => {
                "its tenant has as many connections as it may while others may need the rest; raise server.max_connections (needs a restart)"
            }
            Self::Tls(_) => "TLS failed",
            Self::HandshakesOfClient => {
                "this client has as many connections without a volume as it may: its part of server.max_handshakes, at most server.max_handshakes_per_client"
            }
        }
    }
}

/// How many clients were turned away, by reason.
#[derive(Default)]
pub(crate) struct Refusals([AtomicU64; Reason::ALL.len()]);

impl Refusals {
    /// Counts one more client turned away for this reason.
    pub(crate) fn count(&self, reason: Reason) {
        let place = Reason::ALL.iter().position(|other| *other == reason);
        place.and_then(|place| self.0.get(place)).map(|count| count.fetch_add(1, Ordering::Relaxed));
    }

    /// The counts by the name of the reason, zeros included.
    pub(crate) fn totals(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Reason::ALL.iter().map(|reason| reason.name().to_owned()).zip(counts).collect()
    }
}
