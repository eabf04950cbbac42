//! Addresses of NBD servers and exports as URIs (the `nbd` URI specification).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::units::{UnitError, as_text};

/// The port that IANA reserves for NBD.
const DEFAULT_PORT: u16 = 10_809;
/// The longest name of an export that the protocol carries, in bytes.
const MAX_EXPORT: usize = 4096;
/// The name that the certificate of a server on a Unix socket must have, unless the URI has another.
const UNIX_HOST: &str = "localhost";
const FORM: &str =
    "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; with nbds instead of nbd the connection has TLS";
const FILES: &str = "name the files of certificates and keys outside the URI: on the command line by --ca, --cert and --key, in a configuration by uri_tls";

/// The address on which an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// The name that the server's certificate must have under TLS, unless the URI has another: the host, of a Unix socket
    /// "localhost".
    fn certified(&self) -> &str {
        match self {
            Self::Tcp(host, _) => host,
            Self::Unix(_) => UNIX_HOST,
        }
    }
}

/// An export of a server: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`; under TLS `nbds://` and
/// `nbds+unix://`, optionally with `tls-hostname=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The address on which the server listens.
    pub address: Address,
    /// Name of the export, at most 4096 bytes; empty for the server's default export.
    pub export: String,
    /// The name that the server's certificate must have; `None` without TLS.
    pub tls: Option<String>,
}

impl FromStr for Target {
    type Err = UnitError;

    fn from_str(uri: &str) -> Result<Self, UnitError> {
        let wrong = |why: String| Err(UnitError::new(why));
        let Some((scheme, rest)) = uri.split_once("://") else {
            return wrong(format!("`{uri}` is not an NBD URI: {FORM}"));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = percent_decode(export)?;
        let (scheme, secure) = match scheme {
            "nbds" => ("nbd", true),
            "nbds+unix" => ("nbd+unix", true),
            other => (other, false),
        };
        let (mut socket, mut hostname) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("socket", path)) => socket = Some(PathBuf::from(percent_decode(path)?)),
                Some(("tls-hostname", name)) if secure && !name.is_empty() => hostname = Some(percent_decode(name)?),
                Some(("tls-hostname", _)) => {
                    return wrong(format!("in `{uri}` tls-hostname needs a name and TLS: write nbds:// and the name"));
                }
                Some((key, _)) if key.starts_with("tls-") => {
                    return wrong(format!("`{uri}` has the parameter `{key}`, which Evenkeel does not use: {FILES}"));
                }
                _ => return wrong(format!("`{uri}` has the unknown parameter `{pair}`: {FORM}")),
            }
        }
        let address = match (scheme, socket) {
            ("nbd", None) => tcp(authority).map_err(|error| UnitError::new(format!("in `{uri}`: {error}")))?,
            ("nbd+unix", Some(path)) if authority.is_empty() => Address::Unix(path),
            ("nbd+unix", None) => return wrong(format!("`{uri}` lacks ?socket=PATH")),
            _ => return wrong(format!("`{uri}` is not an NBD URI: {FORM}")),
        };
        if export.len() > MAX_EXPORT {
            return wrong(format!("the export name in the URI is longer than {MAX_EXPORT} bytes"));
        }
        let tls = secure.then(|| hostname.unwrap_or_else(|| address.certified().to_owned()));
        Ok(Self { address, export, tls })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = Encoded(&self.export);
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let between = match &self.address {
            Address::Tcp(host, port) if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}/{export}")?;
                '?'
            }
            Address::Tcp(host, port) => {
                write!(f, "{scheme}://{host}:{port}/{export}")?;
                '?'
            }
            Address::Unix(path) => {
                write!(f, "{scheme}+unix:///{export}?socket={}", Encoded(&path.to_string_lossy()))?;
                '&'
            }
        };
        match &self.tls {
            Some(name) if name != self.address.certified() => write!(f, "{between}tls-hostname={}", Encoded(name)),
            _ => Ok(()),
        }
    }
}

as_text!(Target, "an NBD URI such as \"nbd://192.0.2.1:10809/disk0\"", None, {
    "type": "string",
    "pattern": "^nbds?(\\+unix)?://"
});

/// Prints a text as a part of a URI, with every character percent-encoded that could end this part.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| {
            if byte.is_ascii_alphanumeric() || b"/._-~:+,@".contains(&byte) {
                write!(f, "{}", char::from(byte))
            } else {
                write!(f, "%{byte:02X}")
            }
        })
    }
}

fn tcp(authority: &str) -> Result<Address, UnitError> {
    let (host, port) = if let Some(v6) = authority.strip_prefix('[') {
        let (host, rest) =
            v6.split_once(']').ok_or_else(|| UnitError::new("an IPv6 address ends with `]`".to_owned()))?;
        if !rest.is_empty() && !rest.starts_with(':') {
            return Err(UnitError::new(format!("`{rest}` after the address is not a port: write [ADDRESS]:PORT")));
        }
        (host, rest.strip_prefix(':'))
    } else {
        authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return Err(UnitError::new("the host is missing".to_owned()));
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| UnitError::new(format!("`{port}` is not a port (0 to 65535)")))?,
        None => DEFAULT_PORT,
    };
    Ok(Address::Tcp(host.to_owned(), port))
}

fn percent_decode(text: &str) -> Result<String, UnitError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let decoded = decoded.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let missing = || UnitError::new(format!("`{text}` has a `%` without two hexadecimal digits"));
        bytes.push(decoded.ok_or_else(missing)?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| UnitError::new(format!("`{text}` does not decode to UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_understood() {
        for (uri, address, export) in [
            ("nbd://localhost", Address::Tcp("localhost".into(), 10809), ""),
            ("nbd://localhost/", Address::Tcp("localhost".into(), 10809), ""),
            ("nbd://10.0.0.1:99/disk0", Address::Tcp("10.0.0.1".into(), 99), "disk0"),
            ("nbd://[::1]:99/a/b", Address::Tcp("::1".into(), 99), "a/b"),
            ("nbd://[::1]/", Address::Tcp("::1".into(), 10809), ""),
            ("nbd+unix:///disk%200?socket=/run/a%3Fb", Address::Unix("/run/a?b".into()), "disk 0"),
            ("nbd+unix:///?socket=/s", Address::Unix("/s".into()), ""),
            ("nbd+unix://?socket=/s", Address::Unix("/s".into()), ""),
            ("nbd+unix:///%25%26%c3%a4?socket=/a%26b%20c", Address::Unix("/a&b c".into()), "%&ä"),
        ] {
            let target = Target { address, export: export.into(), tls: None };
            assert_eq!(uri.parse::<Target>().unwrap(), target, "{uri}");
            assert_eq!(target.to_string().parse::<Target>().unwrap(), target, "{uri}: what is shown can be read");
        }
    }

    #[test]
    fn uris_with_tls_name_the_certificate_that_is_wanted() {
        for (uri, shown, name) in [
            ("nbds://far/a", "nbds://far:10809/a", "far"),
            ("nbds://[::1]:99/a", "nbds://[::1]:99/a", "::1"),
            ("nbds://10.0.0.1/a?tls-hostname=far", "nbds://10.0.0.1:10809/a?tls-hostname=far", "far"),
            ("nbds+unix:///a?socket=/s", "nbds+unix:///a?socket=/s", "localhost"),
            ("nbds+unix:///a?tls-hostname=far&socket=/s", "nbds+unix:///a?socket=/s&tls-hostname=far", "far"),
        ] {
            let target: Target = uri.parse().unwrap();
            assert_eq!((target.to_string().as_str(), target.tls.as_deref()), (shown, Some(name)));
            assert_eq!(shown.parse::<Target>().unwrap(), target);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (uri, reason) in [
            ("disk0", "not an NBD URI"),
            ("http://host/", "not an NBD URI"),
            ("nbds://host/?tls-certificates=/etc/pki", "--ca, --cert and --key"),
            ("nbds://host/?tls-hostname=", "needs a name and TLS"),
            ("nbd://host/?tls-hostname=far", "needs a name and TLS"),
            ("nbds+unix:///x", "lacks ?socket"),
            ("nbdss://host/", "not an NBD URI"),
            ("nbd:///x", "host is missing"),
            ("nbd://host:99999/x", "not a port"),
            ("nbd://[::1]10810/disk0", "write [ADDRESS]:PORT"),
            ("nbd+unix:///x", "lacks ?socket"),
            ("nbd+unix:///x?sock=/s", "unknown parameter"),
            ("nbd://h/%4", "hexadecimal"),
            ("nbd://h/%+1", "hexadecimal"),
            ("nbd://h/%ff", "UTF-8"),
        ] {
            let error = uri.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(reason), "{uri}: {error}");
        }
    }
}
