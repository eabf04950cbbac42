//! `evenkeel serve` with common NBD clients: content, holes and exit codes, over TCP and Unix sockets, on both engines,
//! on every kind of volume. And the API of `evenkeel guard` with clients that use HTTPS.

#[macro_use]
#[path = "clients/harness.rs"]
mod harness;

#[path = "clients/access.rs"]
mod access;
#[path = "clients/fio.rs"]
mod fio;
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
