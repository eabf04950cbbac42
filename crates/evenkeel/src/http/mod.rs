//! Status over TCP, which only shows, and control over a Unix socket, which may change things.
//!
//! A web page anywhere can make a browser post to localhost, so nothing that changes anything is reachable over TCP,
//! and whoever reaches the Unix socket has the file permission to do so. Runs on its own thread, away from the data path.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use evenkeel_policy::config::Where;
use tokio_rustls::rustls::ServerConfig;

use crate::serve::{Caller, Manager};

mod api;
mod dashboard;
mod guard;
pub(crate) mod metrics;
pub(crate) mod openmetrics;
mod serving;

use serving::{Bounds, Opening, Pace, serve};

/// How often the server counts what tenants have done: windows of rates and verdicts last from one to two of these.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// Serves both sockets on a thread of their own for as long as the process lives.
///
/// # Errors
/// When the sockets cannot be used or no thread can be started.
pub(crate) fn spawn(manager: Arc<Manager>, status: Option<TcpListener>, control: UnixListener) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let status = match status {
        Some(listener) => {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let _inside = runtime.enter();
            Some((tokio::net::TcpListener::from_std(listener)?, address))
        }
        None => None,
    };
    control.set_nonblocking(true)?;
    let control = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(control)?
    };
    thread::Builder::new().name("evenkeel-http".into()).spawn(move || {
        runtime.block_on(async {
            let pace = Pace::default();
            let shown = async {
                if let Some((listener, address)) = status {
                    let loopback = address.ip().is_loopback();
                    let wanted = manager.config().server.http.tls.applies(loopback);
                    let router = status_router(Arc::clone(&manager), loopback);
                    let manager = Arc::clone(&manager);
                    let opening = opening(wanted, move || manager.server().https());
                    let from = |_: &tokio::net::TcpStream, peer: &SocketAddr| Caller::Address(*peer);
                    serve(listener, router, Bounds::USUAL, Arc::clone(&pace), from, opening).await;
                }
            };
            let controlled = async {
                let router = control_router(Arc::clone(&manager));
                let from = |stream: &tokio::net::UnixStream, _: &_| Caller::of(stream);
                serve(control, router, Bounds::USUAL, Arc::clone(&pace), from, || Opening::Plain).await;
            };
            let counted = async {
                loop {
                    manager.server().count();
                    tokio::time::sleep(COUNTED_EVERY).await;
                }
            };
            // None ends by itself: errors of single connections are handled inside.
            tokio::join!(shown, controlled, counted);
        });
    })?;
    Ok(())
}

/// Serves what only shows, on a thread of its own for as long as the process lives; HTTPS where that is `wanted`, by the
/// certificates of the moment that `https` tells.
///
/// # Errors
/// When the socket cannot be used or no thread can be started.
pub(crate) fn spawn_read_only(
    router: Router,
    listener: TcpListener,
    wanted: Where,
    https: impl Fn() -> Option<Arc<ServerConfig>> + Send + Sync + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
    listener.set_nonblocking(true)?;
    let loopback = listener.local_addr()?.ip().is_loopback();
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let router = guard::read_only(router, loopback);
    let opening = opening(wanted.applies(loopback), https);
    thread::Builder::new().name("evenkeel-http".into()).spawn(move || {
        let from = |_: &tokio::net::TcpStream, peer: &SocketAddr| Caller::Address(*peer);
        runtime.block_on(serve(listener, router, Bounds::USUAL, Pace::default(), from, opening));
    })?;
    Ok(())
}

/// What connections to the status address begin with, by the certificates of the moment. Where there was HTTPS, there
/// is no plain HTTP later, although a reload has taken the certificates away.
fn opening(
    wanted: bool,
    https: impl Fn() -> Option<Arc<ServerConfig>> + Send + Sync + 'static,
) -> impl Fn() -> Opening + Send + Sync + 'static {
    let was_secure = AtomicBool::new(https().is_some());
    move || match https().filter(|_| wanted) {
        Some(config) => {
            was_secure.store(true, Ordering::Relaxed);
            Opening::Secure(config)
        }
        None if wanted && was_secure.load(Ordering::Relaxed) => Opening::Close,
        None => Opening::Plain,
    }
}

/// What TCP shows. `loopback`: bound to this machine alone.
fn status_router(manager: Arc<Manager>, loopback: bool) -> Router {
    guard::read_only(
        dashboard::router().merge(metrics::router()).merge(api::read_router()).with_state(manager),
        loopback,
    )
}

/// What the Unix socket offers.
fn control_router(manager: Arc<Manager>) -> Router {
    guard::control(metrics::router().merge(api::read_router()).merge(api::write_router()).with_state(manager))
}
