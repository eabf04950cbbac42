//! At most one agent in a network namespace: two would take each other's queueing disciplines away.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::error::Error;

/// Names of this kind belong to the network namespace, as what we set does, and go with the process that has them.
const NAME: &str = "evenkeel-guard";

/// The right to set anything.
#[derive(Debug)]
pub(crate) struct Only(#[expect(dead_code, reason = "bound as long as it lives")] UnixListener);

impl Only {
    /// # Errors
    /// [`Error::AnotherAgent`] while another process has it.
    pub(crate) fn take() -> Result<Self, Error> {
        Self::of(NAME)
    }

    fn of(name: &str) -> Result<Self, Error> {
        let bound = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
        bound.map(Self).map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => Error::AnotherAgent,
            _ => Error::File { doing: "bind the abstract socket", path: name.into(), cause: e },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let name = format!("evenkeel-guard-test-{}", std::process::id());
        let first = Only::of(&name).unwrap();
        assert!(matches!(Only::of(&name), Err(Error::AnotherAgent)));
        drop(first);
        assert!(Only::of(&name).is_ok());
    }
}
