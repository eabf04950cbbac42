//! Status addresses from the command line, with the authorities and certificates for HTTPS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use evenkeel_net::http::Place;
use evenkeel_net::tls;

/// The status address of a server or an agent, as parsed from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// `ADDR:PORT`, for plain HTTP.
    Plain(SocketAddr),
    /// `https://HOST[:PORT]`: the host, of an IPv6 address without brackets, and the port if one was given.
    Secure(String, Option<u16>),
}

impl FromStr for Site {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            anyhow!("{text:?} is not a status address; write ADDR:PORT, such as 127.0.0.1:9809, or https://HOST:PORT")
        };
        let Some(rest) = text.strip_prefix("https://") else {
            return text
                .strip_prefix("http://")
                .unwrap_or(text)
                .trim_end_matches('/')
                .parse()
                .map(Self::Plain)
                .map_err(|_| wrong());
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(wrong)?)),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
        if host.is_empty() || host.contains(['/', ' ']) {
            return Err(wrong());
        }
        Ok(Self::Secure(host.to_owned(), port))
    }
}

/// Certificates for such an address.
#[derive(clap::Args)]
pub(crate) struct Certificates {
    /// PEM file with the authorities to trust, for a status address that is https://
    #[arg(long, value_name = "FILE", requires = "status")]
    ca: Option<PathBuf>,

    /// PEM file with a client certificate, for a status address that asks for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl Certificates {
    /// The place to which requests for `site` go. An address without a port gets the port `usual`.
    ///
    /// # Errors
    /// When a file for TLS is missing or cannot be used.
    pub(crate) fn reach(&self, site: &Site, usual: u16) -> anyhow::Result<Place> {
        let (host, port) = match site {
            Site::Plain(address) => return Ok(plain(*address)),
            Site::Secure(host, port) => (host.clone(), port.unwrap_or(usual)),
        };
        let Some(ca) = &self.ca else {
            bail!(
                "no CA certificate for {host}: pass --ca FILE, the certificate of the authority that signed the one of https://{host}:{port}"
            );
        };
        let own = self.cert.as_deref().zip(self.key.as_deref()).map(|(cert, key)| (("--cert", cert), ("--key", key)));
        Ok(Place::Secure(host, port, tls::client(("--ca", ca), own)?))
    }
}

/// The place for plain HTTP at `address`. An IPv6 address keeps its scope (`%3`) as part of the host.
pub(crate) fn plain(address: SocketAddr) -> Place {
    let text = address.to_string();
    let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
    Place::Plain(host.trim_matches(['[', ']']).to_owned(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let plain = Site::Plain("127.0.0.1:9809".parse().unwrap());
        for text in ["127.0.0.1:9809", "http://127.0.0.1:9809/"] {
            assert_eq!(text.parse::<Site>().unwrap(), plain);
        }
        for (text, host, port) in [
            ("https://storage1", "storage1", None),
            ("https://storage1:443/", "storage1", Some(443)),
            ("https://[2001:db8::1]:99", "2001:db8::1", Some(99)),
            ("https://[2001:db8::1]", "2001:db8::1", None),
        ] {
            assert_eq!(text.parse::<Site>().unwrap(), Site::Secure(host.into(), port));
        }
        for text in ["storage1:9809", "https://", "https://a/b", "https://a:b", "https://[::1]x", "https://[::1]:"] {
            assert!(text.parse::<Site>().is_err(), "{text}");
        }
    }
}
