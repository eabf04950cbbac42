//! The options of a member of etcd. The tests of the crate `evenkeel-cluster` use this file too, which needs only the standard
//! library.

use std::ffi::OsString;
use std::path::Path;

/// The options of the member with index `member` of an etcd, which has its data in the folder `data`. `listen`: addresses where
/// it listens for clients, separated by commas; `client`: its address for clients; `peers`: the address of each member for the
/// other members.
pub(crate) fn options(member: usize, data: &Path, [listen, client]: [&str; 2], peers: &[String]) -> Vec<OsString> {
    let all: Vec<String> = peers.iter().enumerate().map(|(of, peer)| format!("m{of}={peer}")).collect();
    let peer = &peers[member];
    let named = [
        format!("--name=m{member}"),
        format!("--listen-client-urls={listen}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={}", all.join(",")),
    ];
    let mut options = vec![OsString::from("--data-dir"), data.as_os_str().to_owned()];
    options.extend(named.map(OsString::from));
    options
}
