//! Whom the server has turned away, counted by reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_policy::access::Barred;

/// Why a client was turned away before it had a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// By a list of the server or of the volume that it asked for.
    Barred(Barred),
    /// No tenant names its certificate, and `named_only` is set.
    UnnamedCertificate,
    /// It has not chosen a volume in time.
    HandshakeTimeout,
    /// Too many connections negotiate.
    Handshakes,
    /// Too many connections of this client negotiate.
    HandshakesOfClient,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Barred(Barred::ServerDeny),
        Self::Barred(Barred::ServerAllow),
        Self::Barred(Barred::VolumeDeny),
        Self::Barred(Barred::VolumeAllow),
        Self::Barred(Barred::NoCertificate),
        Self::UnnamedCertificate,
        Self::HandshakeTimeout,
        Self::Handshakes,
        Self::HandshakesOfClient,
    ];

    /// Name in state and metrics.
    const fn name(self) -> &'static str {
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
        }
    }

    /// The same as a sentence about the client.
    pub(crate) const fn because(self) -> &'static str {
        match self {
            Self::Barred(barred) => barred.because(),
            Self::UnnamedCertificate => "no tenant names its certificate",
            Self::HandshakeTimeout => "no export chosen in time",
            Self::Handshakes => "server.max_handshakes connections have not chosen a volume yet",
            Self::HandshakesOfClient => {
                "server.max_handshakes_per_client of its connections have not chosen a volume yet"
            }
        }
    }
}

/// How many clients were turned away, by reason.
#[derive(Default)]
pub(crate) struct Refusals([AtomicU64; Reason::ALL.len()]);

impl Refusals {
    /// One more.
    pub(crate) fn count(&self, reason: Reason) {
        let place = Reason::ALL.iter().position(|other| *other == reason);
        place.and_then(|place| self.0.get(place)).map(|count| count.fetch_add(1, Ordering::Relaxed));
    }

    /// By name; every reason, also those that there were none of.
    pub(crate) fn totals(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Reason::ALL.iter().map(|reason| reason.name().to_owned()).zip(counts).collect()
    }
}
