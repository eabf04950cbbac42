//! Tests of `evenkeel serve` with common NBD clients: content, holes and exit codes, over TCP and Unix sockets, with both I/O
//! engines and all kinds of volumes. Also tests of the API of `evenkeel guard` with HTTPS clients.

#[macro_use]
#[path = "clients/harness.rs"]
mod harness;

#[path = "clients/access.rs"]
mod access;
#[path = "clients/fio.rs"]
mod fio;
#[path = "serve/folder.rs"]
mod folder;
#[path = "clients/guard.rs"]
mod guard;
#[path = "clients/https.rs"]
mod https;
#[path = "clients/libnbd.rs"]
mod libnbd;
#[path = "clients/lifecycle.rs"]
mod lifecycle;
#[path = "clients/qemu.rs"]
mod qemu;
#[path = "clients/remote.rs"]
mod remote;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
#[path = "clients/tls.rs"]
mod tls;
