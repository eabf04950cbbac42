//! NBD addresses as the community writes them (the `nbd` URI specification).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use evenkeel_nbd::wire::DEFAULT_PORT;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Where the server listens.
    pub(crate) address: Address,
    /// Name of the export; empty for the default one.
    pub(crate) export: String,
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(uri: &str) -> anyhow::Result<Self> {
        let form = "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH";
        let (scheme, rest) = uri.split_once("://").with_context(|| format!("`{uri}` is not an NBD URI: {form}"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = percent_decode(export)?;
        let mut socket = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("socket", path)) => socket = Some(PathBuf::from(percent_decode(path)?)),
                Some((key, _)) if key.starts_with("tls-") => bail!("`{uri}` asks for TLS, which load does not speak"),
                _ => bail!("`{uri}` has the unknown parameter `{pair}`: {form}"),
            }
        }
        let address = match (scheme, socket) {
            ("nbd", None) => tcp(authority).with_context(|| format!("in `{uri}`"))?,
            ("nbd+unix", Some(path)) if authority.is_empty() => Address::Unix(path),
            ("nbd+unix", None) => bail!("`{uri}` lacks ?socket=PATH"),
            ("nbds" | "nbds+unix", _) => bail!("`{uri}` asks for TLS, which load does not speak"),
            _ => bail!("`{uri}` is not an NBD URI: {form}"),
        };
        if export.len() > evenkeel_nbd::wire::MAX_STRING {
            bail!("the export name in the URI is longer than {} bytes", evenkeel_nbd::wire::MAX_STRING);
        }
        Ok(Self { address, export })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}/{}", self.export),
            Address::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{}", self.export),
            Address::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
        }
    }
}

fn tcp(authority: &str) -> anyhow::Result<Address> {
    let (host, port) = if let Some(v6) = authority.strip_prefix('[') {
        let (host, rest) = v6.split_once(']').context("an IPv6 address ends with `]`")?;
        (host, rest.strip_prefix(':'))
    } else {
        authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        bail!("the host is missing");
    }
    let port = match port {
        Some(port) => port.parse().with_context(|| format!("`{port}` is not a port (0 to 65535)"))?,
        None => DEFAULT_PORT,
    };
    Ok(Address::Tcp(host.to_owned(), port))
}

fn percent_decode(text: &str) -> anyhow::Result<String> {
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
        bytes.push(decoded.with_context(|| format!("`{text}` has a `%` without two hexadecimal digits"))?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).with_context(|| format!("`{text}` does not decode to UTF-8"))
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
        ] {
            assert_eq!(uri.parse::<Target>().unwrap(), Target { address, export: export.into() }, "{uri}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (uri, reason) in [
            ("disk0", "not an NBD URI"),
            ("http://host/", "not an NBD URI"),
            ("nbds://host/", "TLS"),
            ("nbd:///x", "host is missing"),
            ("nbd://host:99999/x", "not a port"),
            ("nbd+unix:///x", "lacks ?socket"),
            ("nbd+unix:///x?sock=/s", "unknown parameter"),
            ("nbd://h/%4", "hexadecimal"),
            ("nbd://h/%+1", "hexadecimal"),
            ("nbd://h/%ff", "UTF-8"),
        ] {
            let error = format!("{:#}", uri.parse::<Target>().unwrap_err());
            assert!(error.contains(reason), "{uri}: {error}");
        }
    }
}
