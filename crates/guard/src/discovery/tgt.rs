//! Targets of tgt, a SCSI target in user space, from the output of `tgtadm --lld iscsi --op show --mode target`.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::lio;
use super::roots::{self, Roots};
use crate::error::Fault;

/// A target of tgt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Name of the target.
    pub name: String,
    /// Sessions of initiators that are logged in to the target.
    pub sessions: Vec<Session>,
    /// Volumes of the target: number (LUN), and path of the block device or file.
    pub luns: Vec<(u32, PathBuf)>,
}

/// A session: an initiator that is logged in to a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Name of the initiator.
    pub initiator: String,
    /// Addresses from which the initiator is connected.
    pub addresses: Vec<IpAddr>,
}

/// Longest wait for the tool `tgtadm`. The daemon answers from memory: one that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Largest number of bytes of the tool's output that are read; the output for thousands of targets is shorter.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// The output of the tool `tgtadm`, which asks a running tgt for its targets; `None` if tgt does not run on this host.
///
/// # Errors
/// A message, if the tool cannot be started, fails, or does not answer within 2 s.
pub fn ask(roots: &Roots) -> Option<Result<String, String>> {
    let runs = |id: &String| {
        let name = roots::value(&roots.proc.join(id).join("comm")).ok().flatten();
        id.parse::<u32>().is_ok() && name.as_deref() == Some("tgtd")
    };
    roots::names(&roots.proc)
        .ok()?
        .iter()
        .any(runs)
        .then(|| run_tool().map_err(|problem| format!("tgt runs, but tgtadm {problem}; clients of tgt are unknown")))
}

fn run_tool() -> Result<String, String> {
    let mut command = Command::new("tgtadm");
    command.args(["--lld", "iscsi", "--op", "show", "--mode", "target"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    // Read meanwhile, or a long answer would fill the pipe and block the tool.
    let reader = child.stdout.take().map(|output| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            output.take(MAX_OUTPUT_BYTES).read_to_end(&mut text).map(|_| text)
        })
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("has not answered within {PATIENCE:?}"));
            }
        }
    };
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    let text = reader.and_then(|reader| reader.join().ok()).and_then(Result::ok).unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Parses the tool's output. The parser also checks the indentation of lines, because the tool prints an initiator's alias as
/// the initiator wrote it. An alias with line ends can still imitate the tool's lines, so that an address is only a claim of
/// the initiator; [`Map`](super::Map) takes only addresses with an established connection.
///
/// # Errors
/// A line about a target before the first target, or a text in the place of a number or address.
pub fn parse(text: &str) -> Result<Vec<Target>, Fault> {
    let mut targets: Vec<Target> = Vec::new();
    let mut lun = None;
    for (index, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        if let (4, Some(target), "LUN information:") = (indent, targets.last_mut(), line.trim()) {
            // Real volumes come after the last initiator.
            target.luns.clear();
        }
        let Some((key, value)) = line.trim().split_once(": ") else { continue };
        if indent == 0 {
            if key.starts_with("Target ") {
                targets.push(Target { name: value.trim().to_owned(), ..Target::default() });
                lun = None;
            }
            continue;
        }
        let fault = |problem: String| Fault::new(index + 1, problem);
        let target = targets.last_mut().ok_or_else(|| fault("this line stands before any target".into()));
        match (indent, key) {
            (12, "Initiator") => {
                let initiator = value.split(" alias: ").next().unwrap_or(value).trim().to_owned();
                target?.sessions.push(Session { initiator, addresses: Vec::new() });
            }
            (16, "IP Address") => {
                let address = lio::address(value.trim());
                let address = address.ok_or_else(|| fault(format!("{value:?} is not an IP address")))?;
                let session =
                    target?.sessions.last_mut().ok_or_else(|| fault("this address has no initiator".into()))?;
                if !session.addresses.contains(&address) {
                    session.addresses.push(address);
                }
            }
            (8, "LUN") => {
                target?;
                lun = Some(value.trim().parse().map_err(|_| fault(format!("{value:?} is not a LUN")))?);
            }
            (12, "Backing store path") => {
                // LUN 0 is the controller, whose path is "None".
                let path = value.trim();
                if let Some(number) = lun.filter(|_| path.starts_with('/')) {
                    target?.luns.push((number, path.into()));
                }
            }
            _ => {}
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = include_str!("../../tests/fixtures/tgtadm");

    #[test]
    fn sessions_and_volumes_of_each_target() {
        let targets = parse(TEXT).expect("the tool's format");
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[0].name, "iqn.2026-01.lab:t1");
        assert_eq!(targets[0].luns, [(1, PathBuf::from("/dev/vg1/lv1")), (2, PathBuf::from("/srv/b.img"))]);
        let session = Session { initiator: "iqn.2026-01.lab:b1".into(), addresses: vec![address("10.0.0.11")] };
        assert_eq!(targets[0].sessions, [session]);
        assert_eq!(targets[1].sessions, []);
    }

    #[test]
    fn a_fault_names_its_line() {
        assert_eq!(parse("\n        LUN: 1\n").expect_err("no target").line, 2);
        let fault =
            parse("Target 1: a\n        I_T nexus: 1\n            Initiator: i\n                IP Address: nowhere\n")
                .expect_err("none");
        assert_eq!(fault.to_string(), "line 4: \"nowhere\" is not an IP address");
    }

    #[test]
    fn an_alias_with_line_ends_makes_no_volume_and_no_address_by_another_indentation() {
        let alias = "b1\n  IP Address: 10.0.0.99\n    LUN information:\n        LUN: 9\n            Backing store path: /dev/sdz";
        let forged = TEXT.replace("alias: b1", &format!("alias: {alias}"));
        assert_ne!(forged, TEXT);
        assert_eq!(parse(&forged), parse(TEXT));
    }

    proptest! {
        #[test]
        fn a_text_cut_anywhere_does_not_panic(end in 0..TEXT.len()) {
            let _ = parse(TEXT.get(..end).unwrap_or_default());
        }
    }
}
