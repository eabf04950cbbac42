//! The HTTP API: status over TCP, which is read-only, and control over a Unix socket, which may change settings.
//!
//! Any web page can make a browser send requests to localhost, so no change is possible over TCP, and access to the Unix
//! socket is controlled by file permissions. HTTP is served by a thread of its own, apart from the data path.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use evenkeel_policy::config::Terms;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::rustls::ServerConfig;

mod caller;
mod dashboard;
#[cfg(test)]
#[path = "../../evenkeel/tests/serve/folder.rs"]
mod folder;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod guard;
pub mod history;
mod openmetrics;
mod probe;
pub mod process;
mod progress;
mod refusal;
mod request;
mod rules;
pub mod serve;
mod serving;
mod sparing;

pub use caller::{Caller, Process};
pub use openmetrics::Description;
pub use refusal::Refusal;
pub use request::Request;
use rules::Hosts;
use serve::Manager;
use serving::{Bounds, Opening, Pace, serve};

/// Interval at which the server reads the tenants' counters. The windows of rates and verdicts are one to two times as long.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// The descriptions of all metrics of a server and of an agent.
pub fn metrics() -> [Vec<Description>; 2] {
    [serve::metrics::described(), guard::metrics::described()]
}

/// Serves both sockets of a server on a thread of their own for as long as the process lives.
///
/// # Errors
/// When the sockets cannot be used or no thread can be started.
pub fn spawn(manager: Arc<Manager>, status: Option<TcpListener>, control: UnixListener) -> io::Result<()> {
    let (runtime, pace) = (runtime(4)?, serving::pace());
    let show_status = |listener| {
        let (router, terms) = (serve::status_router(Arc::clone(&manager)), manager.config().server.terms());
        let manager = Arc::clone(&manager);
        show(&runtime, Arc::clone(&pace), router, listener, terms, move || manager.server().https())
    };
    let status = status.map(show_status).transpose()?;
    control.set_nonblocking(true)?;
    let control = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(control)?
    };
    let work = async move {
        let shown = async {
            if let Some(status) = status {
                status.await;
            }
        };
        let from = |stream: &tokio::net::UnixStream, _: &_| Caller::of(stream);
        let router = serve::control_router(Arc::clone(&manager));
        let controlled = serve(control, router, Bounds::USUAL, pace, from, || Opening::Plain);
        let counted = async {
            loop {
                manager.server().count();
                tokio::time::sleep(COUNTED_EVERY).await;
            }
        };
        // None ends by itself: errors of single connections are handled inside.
        tokio::join!(shown, controlled, counted);
    };
    on_a_thread(runtime, work)
}

/// Serves a read-only router, on a thread of its own for as long as the process lives. At addresses that `terms` names HTTPS is
/// served, with the certificates that `https` returns when a connection begins.
///
/// # Errors
/// When the socket cannot be used or no thread can be started.
pub fn spawn_read_only(
    router: Router,
    listener: TcpListener,
    terms: Terms,
    https: impl Fn() -> Option<Arc<ServerConfig>> + Send + Sync + 'static,
) -> io::Result<()> {
    let runtime = runtime(1)?;
    let shown = show(&runtime, serving::pace(), router, listener, terms, https)?;
    on_a_thread(runtime, shown)
}

/// Serves `router` at a status address; a future that does not end.
fn show(
    runtime: &Runtime,
    pace: Pace,
    router: Router,
    listener: TcpListener,
    terms: Terms,
    https: impl Fn() -> Option<Arc<ServerConfig>> + Send + Sync + 'static,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    listener.set_nonblocking(true)?;
    let loopback = listener.local_addr()?.ip().is_loopback();
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let Terms { table, http, .. } = terms;
    let (wanted, https) = (http.tls.applies(loopback), Arc::new(https));
    let with_certificate = Arc::clone(&https);
    let is_secure = Box::new(move || wanted && with_certificate().is_some());
    let opening = opening(wanted, move || https());
    let from = |_: &tokio::net::TcpStream, peer: &SocketAddr| Caller::Address(*peer);
    let router = rules::read_only(router, Hosts { loopback, table, http, is_secure });
    Ok(serve(listener, router, Bounds::USUAL, pace, from, opening))
}

fn runtime(blocking_threads: usize) -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(blocking_threads).build()
}

fn on_a_thread(runtime: Runtime, work: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("evenkeel-http".into()).spawn(move || runtime.block_on(work)).map(drop)
}

/// A function that decides how a new connection to the status address begins (HTTPS or plain HTTP), by the certificates in force.
/// Once HTTPS was served, plain HTTP is not, even if a reload has removed the certificates.
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
