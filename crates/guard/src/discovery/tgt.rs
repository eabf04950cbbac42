//! tgt, a SCSI target in user space: the output of `tgtadm --lld iscsi --op show --mode target`.

use std::net::IpAddr;
use std::path::PathBuf;

use super::lio;
use crate::error::Fault;

/// A target of tgt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Who is logged in.
    pub sessions: Vec<Session>,
    /// Volumes: number and path.
    pub luns: Vec<(u32, PathBuf)>,
}

/// An initiator that is logged in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub initiator: String,
    /// Where its connections come from.
    pub addresses: Vec<IpAddr>,
}

/// Reads the output.
///
/// # Errors
/// A line that belongs to a target where there is none, or a number that is none.
pub fn parse(text: &str) -> Result<Vec<Target>, Fault> {
    let mut targets: Vec<Target> = Vec::new();
    let mut lun = None;
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.trim().split_once(": ") else { continue };
        if !line.starts_with(' ') {
            if key.starts_with("Target ") {
                targets.push(Target { name: value.trim().to_owned(), ..Target::default() });
                lun = None;
            }
            continue;
        }
        let fault = |problem: String| Fault::new(index + 1, problem);
        let target = targets.last_mut().ok_or_else(|| fault("stands before the first target".into()))?;
        match key {
            "Initiator" => {
                let initiator = value.split(" alias: ").next().unwrap_or(value).trim().to_owned();
                target.sessions.push(Session { initiator, addresses: Vec::new() });
            }
            "IP Address" => {
                let address = lio::address(value.trim());
                let address = address.ok_or_else(|| fault(format!("{value:?} is no IP address")))?;
                let session = target.sessions.last_mut().ok_or_else(|| fault("stands before an initiator".into()))?;
                if !session.addresses.contains(&address) {
                    session.addresses.push(address);
                }
            }
            "LUN" => lun = Some(value.trim().parse().map_err(|_| fault(format!("{value:?} is no LUN")))?),
            "Backing store path" => {
                // LUN 0 is the controller, whose path is "None".
                let path = value.trim();
                if let Some(number) = lun.filter(|_| path.starts_with('/')) {
                    target.luns.push((number, path.into()));
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
        assert_eq!(parse("\n  LUN: 1\n").expect_err("no target").line, 2);
        let fault = parse("Target 1: a\n    I_T nexus: 1\n  Initiator: i\n  IP Address: nowhere\n").expect_err("none");
        assert_eq!(fault.to_string(), "line 4: \"nowhere\" is no IP address");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(Target 1: a\n)?[ -~\né]{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_text_cut_anywhere_does_not_panic(end in 0..TEXT.len()) {
            let _ = parse(TEXT.get(..end).unwrap_or_default());
        }
    }
}
