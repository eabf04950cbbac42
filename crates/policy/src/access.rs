//! Access lists: the entries of `allow` and `deny`, and the decision for one client.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::tls::Certificate;
use crate::units::{Cidr, UnitError, as_text};

/// A client in an entry of `allow` or `deny`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Clients that connect over TCP from these addresses.
    Address(Cidr),
    /// Clients of Unix sockets that run as this user.
    Uid(u32),
    /// All clients of Unix sockets.
    Unix,
    /// Clients that have presented this certificate under TLS.
    Certificate(Certificate),
}

const ADDRESS: &str = "address:";
const UID: &str = "uid:";
const UNIX: &str = "unix";
const CERTIFICATE: &str = "certificate:";

impl Who {
    pub(crate) fn names(&self, caller: &Caller<'_>) -> bool {
        match self {
            Self::Address(block) => caller.address.is_some_and(|address| block.contains(address)),
            Self::Uid(uid) => caller.uid == Some(*uid),
            Self::Unix => caller.uid.is_some(),
            Self::Certificate(wanted) => {
                caller.certificate.is_some_and(|(names, fingerprint)| wanted.means(names, fingerprint))
            }
        }
    }

    /// True if the entry names a certificate, which a client can present only under TLS.
    pub const fn needs_certificate(&self) -> bool {
        matches!(self, Self::Certificate(_))
    }
}

impl FromStr for Who {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == UNIX {
            return Ok(Self::Unix);
        }
        if let Some(name) = text.strip_prefix(CERTIFICATE) {
            return name.parse().map(Self::Certificate);
        }
        if let Some(uid) = text.strip_prefix(UID) {
            let wrong = |_| {
                UnitError::new(format!("{text:?} is not a user; write \"uid:\" and the number that `id -u USER` shows"))
            };
            return uid.parse().map(Self::Uid).map_err(wrong);
        }
        let (text, said) = text.strip_prefix(ADDRESS).map_or((text, false), |block| (block, true));
        let block: Result<Cidr, _> = text.parse();
        // An address that is slightly wrong is told what is wrong with it.
        let meant = said || text.contains('/') || text.parse::<IpAddr>().is_ok();
        block.map(Self::Address).map_err(|error| {
            if meant {
                return error;
            }
            UnitError::new(format!(
                "{text:?} names no client; write addresses (\"10.1.0.0/16\"), \"uid:1000\", \"unix\" or \"certificate:db.example.org\""
            ))
        })
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(block) => block.fmt(f),
            Self::Uid(uid) => write!(f, "{UID}{uid}"),
            Self::Unix => f.write_str(UNIX),
            Self::Certificate(certificate) => write!(f, "{CERTIFICATE}{certificate}"),
        }
    }
}

as_text!(Who, "addresses such as \"10.1.0.0/16\", \"uid:1000\", \"unix\" or \"certificate:db.example.org\"", None, { "type": "string" });

/// The facts about a client by which access is decided.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// The client's address; `None` unless it is connected over TCP.
    pub address: Option<IpAddr>,
    /// Id of the user that runs the client; `None` unless it is connected over a Unix socket.
    pub uid: Option<u32>,
    /// Names and SHA-256 fingerprint of the client's certificate; `None` until a certificate has been verified.
    pub certificate: Option<(&'a [String], &'a [u8; 32])>,
}

/// The access list that refuses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// `server.deny` names the client.
    ServerDeny,
    /// `server.allow` does not name the client.
    ServerAllow,
    /// `deny` of the volume names the client.
    VolumeDeny,
    /// `allow` of the volume does not name the client.
    VolumeAllow,
    /// The client has presented no certificate, but an `allow` list names certificates. The client can connect again under TLS.
    NoCertificate,
}

impl Barred {
    /// The reason of the refusal, in words.
    pub const fn because(self) -> &'static str {
        match self {
            Self::ServerDeny => "server.deny names this client",
            Self::ServerAllow => "server.allow does not name this client",
            Self::VolumeDeny => "the key deny of the volume names this client",
            Self::VolumeAllow => "the key allow of the volume does not name this client",
            Self::NoCertificate => {
                "allow names no address or user of this client: use TLS with a certificate that allow names"
            }
        }
    }
}

/// The access lists of the server or of a volume, with the reason that each list gives for a refusal.
pub(crate) struct Lists<'a> {
    pub(crate) allow: Option<&'a [Who]>,
    pub(crate) deny: &'a [Who],
    pub(crate) denied: Barred,
    pub(crate) not_allowed: Barred,
}

impl Lists<'_> {
    pub(crate) fn judge(&self, caller: &Caller<'_>) -> Result<(), Barred> {
        if self.deny.iter().any(|who| who.names(caller)) {
            return Err(self.denied);
        }
        let Some(allow) = self.allow else { return Ok(()) };
        if allow.iter().any(|who| who.names(caller)) {
            return Ok(());
        }
        let may_show_one = caller.certificate.is_none() && allow.iter().any(Who::needs_certificate);
        Err(if may_show_one { Barred::NoCertificate } else { self.not_allowed })
    }
}
