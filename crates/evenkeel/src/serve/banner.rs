//! The banner that `evenkeel serve` prints at its start: the server's addresses, and commands to paste.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use evenkeel_policy::Config;
use evenkeel_policy::figures::counted;
use evenkeel_policy::uri::{Address, Target};

use crate::output::quoted;

/// The banner's text. `uris`: the server's addresses for NBD; `status`: that of its dashboard and API; `control`: its control
/// socket.
pub(crate) fn lines(config: &Config, uris: &[String], status: Option<SocketAddr>, control: &Path) -> String {
    let mut text = String::new();
    let out = &mut text;
    let read_only = if config.server.read_only { ", all read-only" } else { "" };
    let _ = writeln!(out, "Evenkeel serves {}{read_only} on", counted(config.volumes.len() as u64, "volume"));
    for uri in uris {
        let _ = writeln!(out, "    {uri}");
    }
    if let Some(address) = status {
        let scheme = if config.server.terms().is_https(address) { "https" } else { "http" };
        let _ = writeln!(out, "Status, metrics and API (read-only):  {scheme}://{address}  /metrics  /api/v1/state");
    }
    let _ = writeln!(out, "Control socket:                       {}", control.display());
    let export = config.default_export().or_else(|| config.volumes.keys().next().map(String::as_str));
    if let Some(export) = export {
        let needs_tls = |uri: &String| {
            config.volumes.get(export).is_some_and(|volume| config.needs_tls(volume, uri.starts_with("nbd://")))
        };
        let clear: Vec<String> = uris.iter().filter(|uri| !needs_tls(uri)).cloned().collect();
        match (clear.first(), uris.iter().find_map(|uri| uri.strip_prefix("nbd://"))) {
            (Some(uri), _) => try_it(out, export, uri, &clear),
            (None, Some(address)) => {
                let uri = format!("nbds://{address}/{export}?tls-certificates=DIR");
                let _ = writeln!(out, "\nTry it with a certificate, in another terminal:\n    nbdinfo '{uri}'");
            }
            (None, None) => {}
        }
    }
    let _ = writeln!(out, "\nStop with Ctrl-C.");
    text
}

fn try_it(out: &mut String, export: &str, first: &str, uris: &[String]) {
    let uri = with_export(first, export);
    // Reads alone: the volume may have data.
    let _ = writeln!(out, "\nTry it, in another terminal:");
    let _ = writeln!(out, "    nbdinfo '{uri}'");
    // As this program was called: it need not be on the path.
    let program = quoted(std::env::args().next().unwrap_or_else(|| "evenkeel".into()));
    let _ = writeln!(out, "    {program} load '{uri}' --op read --queue-depth 32 --duration 5s");
    let _ = writeln!(
        out,
        "    fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5"
    );
    let _ = writeln!(out, "    qemu-img info '{uri}'");
    let _ = writeln!(out, "    qemu-img convert -p -O qcow2 '{uri}' {export}.qcow2");
    if let Some(address) = uris.iter().find_map(|uri| uri.strip_prefix("nbd://")) {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "10809"));
        let host = host.trim_matches(['[', ']']);
        let _ = writeln!(out, "    sudo modprobe nbd && sudo nbd-client {host} {port} /dev/nbd0 -name {export}");
    } else if let Ok(Target { address: Address::Unix(socket), .. }) = first.parse() {
        let socket = quoted(socket.display().to_string());
        let _ = writeln!(out, "    sudo modprobe nbd && sudo nbd-client -unix {socket} /dev/nbd0 -name {export}");
    }
}

/// The URI of an export, from the URI of its server.
fn with_export(uri: &str, export: &str) -> String {
    match uri.split_once("///") {
        Some((scheme, rest)) => format!("{scheme}///{export}{rest}"),
        None => format!("{uri}/{export}"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::config::Need;

    use super::*;

    #[test]
    fn the_lines_name_the_export_and_both_transports() {
        let uris = ["nbd://127.0.0.1:10809".to_owned(), "nbd+unix:///?socket=/run/nbd.sock".to_owned()];
        let status = "127.0.0.1:9809".parse().ok();
        let text = lines(&Config::default(), &uris, status, Path::new("/run/control.sock"));
        for line in [
            "Evenkeel serves 1 volume on",
            "nbdinfo 'nbd://127.0.0.1:10809/disk0'",
            "--uri='nbd://127.0.0.1:10809/disk0' --rw=randread",
            "nbd-client 127.0.0.1 10809 /dev/nbd0 -name disk0",
            "http://127.0.0.1:9809",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert_eq!(with_export(&uris[1], "disk0"), "nbd+unix:///disk0?socket=/run/nbd.sock");
    }

    #[test]
    fn where_tls_is_needed_nothing_is_offered_that_would_be_refused() {
        let mut config = Config::default();
        let uris = ["nbd://[::1]:10809".to_owned(), "nbd+unix:///?socket=/s".to_owned()];
        let need = |config: &mut Config, need| config.volumes.values_mut().for_each(|volume| volume.tls = Some(need));
        need(&mut config, Need::Tcp);
        let text = lines(&config, &uris, None, Path::new("c"));
        assert!(text.contains("nbdinfo 'nbd+unix:///disk0?socket=/s'") && !text.contains("'nbd://"), "{text}");
        need(&mut config, Need::Always);
        let text = lines(&config, &uris, None, Path::new("c"));
        assert!(text.contains("nbdinfo 'nbds://[::1]:10809/disk0?tls-certificates=DIR'"), "{text}");
        assert!(!text.contains("nbd-client") && !text.contains("nbdinfo 'nbd+unix"), "{text}");
    }

    #[test]
    fn no_line_writes() {
        let config = Config::default();
        let text = lines(&config, &["nbd+unix:///?socket=/s".to_owned()], None, Path::new("c"));
        assert!(text.contains("--rw=randread") && text.contains("--op read"), "{text}");
        assert!(text.contains("nbd-client -unix /s /dev/nbd0"), "{text}");
        let text = lines(&config, &["nbd+unix:///?socket=/a%20b".to_owned()], None, Path::new("c"));
        assert!(text.contains("nbd-client -unix '/a b' /dev/nbd0") && text.contains("?socket=/a%20b'"), "{text}");
        assert!(!text.contains("http://"), "{text}");
    }
}
