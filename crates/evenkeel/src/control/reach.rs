//! The places at which commands look for a server or an agent, and the first of them that answers.

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use evenkeel_net::http::Place;

use super::client::{Refusal, is_absent};
use super::{Certificates, Connect, Site, get, plain};
use crate::output::Usage;

/// The default status address of a server, and that of an agent.
const USUAL: [([u8; 4], u16); 2] = [([127, 0, 0, 1], 9809), ([127, 0, 0, 1], 9810)];

/// Options that name a server or an agent.
#[derive(Args)]
pub(crate) struct Reach {
    /// Status address of a server or an agent, for example of one on another host
    ///
    /// Without this, --control, --data-dir or --config: the server of this folder (./evenkeel-data/control.sock), else
    /// the server at 127.0.0.1:9809 (evenkeel serve), else the agent at 127.0.0.1:9810 (evenkeel guard). Only `evenkeel top`
    /// takes several.
    #[arg(long, value_name = "ADDR:PORT|https://HOST:PORT", conflicts_with_all = ["control", "config", "data_dir"])]
    status: Vec<Site>,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    connect: Connect,
}

impl Reach {
    /// Places at which to look for a server or an agent, in the order in which to ask them.
    ///
    /// # Errors
    /// When a file that an option names cannot be used.
    pub(crate) fn places(&self) -> anyhow::Result<Vec<Place>> {
        ensure!(self.status.len() <= 1, Usage("give --status once: only `evenkeel top` takes several".into()));
        if let Some(site) = self.status.first() {
            return Ok(vec![self.place(site)?]);
        }
        let mut places = vec![self.connect.socket()?];
        if !self.connect.is_given() {
            places.extend(USUAL.map(|address| plain(address.into())));
        }
        Ok(places)
    }

    /// The places at which to look for each of the servers and agents that the options name.
    ///
    /// # Errors
    /// As [`Self::places`].
    pub(crate) fn each(&self) -> anyhow::Result<Vec<Vec<Place>>> {
        if self.status.len() <= 1 {
            return Ok(vec![self.places()?]);
        }
        self.status.iter().map(|site| Ok(vec![self.place(site)?])).collect()
    }

    fn place(&self, site: &Site) -> anyhow::Result<Place> {
        let [(_, of_a_server), _] = USUAL;
        self.certificates.reach(site, of_a_server)
    }
}

/// Sends a GET request for `path` to `places` in order until one answers. Returns that place and its answer. Each part of an
/// answer may take `patience`.
///
/// # Errors
/// When none of `places` answers, or the first that does refuses the request.
pub(crate) fn first<'a>(places: &'a [Place], path: &str, patience: Duration) -> anyhow::Result<(&'a Place, String)> {
    let mut complaints = Vec::new();
    for place in places {
        match get(place, path, patience) {
            Ok(text) => return Ok((place, text)),
            Err(error) if error.is::<Refusal>() => return Err(error),
            Err(error) => complaints.push(error),
        }
    }
    // The error of a place where a program listens has the cause. Those of places without a program have not.
    if let Some(telling) = complaints.iter().find(|complaint| !is_absent(complaint)) {
        return Err(anyhow!("{telling:#}"));
    }
    let only = complaints.pop().context("no server is named; give --status ADDR:PORT")?;
    if complaints.is_empty() {
        return Err(anyhow!("{only:#}"));
    }
    let places: Vec<String> = places.iter().map(Place::to_string).collect();
    Err(anyhow!(
        "neither a server nor an agent answers at {}; start one with `evenkeel serve`, or name it with --status, --control, --data-dir or --config",
        places.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_place_that_cannot_be_asked_is_named_before_those_where_none_is() {
        let none = |name: &str| Place::Socket(format!("/evenkeel-none/{name}.sock").into());
        let patience = Duration::from_secs(5);
        let nowhere = first(&[none("a"), none("b")], "/", patience).expect_err("none is there").to_string();
        assert!(nowhere.starts_with("neither a server nor an agent answers at /evenkeel-none/a.sock, "), "{nowhere}");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let other = plain(listener.local_addr().expect("an address"));
        let speaks = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.write_all(b"this is not HTTP\r\n\r\n");
        });
        let error = first(&[none("a"), other, none("b")], "/", patience).expect_err("no HTTP").to_string();
        speaks.join().expect("no panic");
        assert!(error.contains("did not answer over HTTP; if it serves HTTPS, write https://"), "{error}");
    }
}
