//! HTTP connections: how many, from whom, for how long, and encrypted where that is asked for.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Times and numbers, all of them counted from the beginning: a byte now and then makes nothing longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at once; further ones wait in the kernel's queue. Monitoring needs a handful.
    pub(super) connections: usize,
    /// Of one address beyond this machine; further ones are closed.
    pub(super) of_address: usize,
    /// Until TLS stands.
    pub(super) handshake: Duration,
    /// Until the head of a request is there, from the end of the one before.
    pub(super) head: Duration,
    /// Nothing moves.
    pub(super) silence: Duration,
    /// The whole connection, which then ends behind the answer under way.
    pub(super) life: Duration,
    /// What that answer has left.
    pub(super) last_answer: Duration,
}

impl Bounds {
    /// Those of a server. A scraper asks every 15 s or so; whoever is cut off can connect again.
    pub(super) const USUAL: Self = Self {
        connections: 64,
        of_address: 16,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(30),
        silence: Duration::from_secs(60),
        life: Duration::from_secs(600),
        last_answer: Duration::from_secs(30),
    };
}

/// What a new connection is to do first.
pub(super) enum Opening {
    /// Nothing.
    Plain,
    /// TLS.
    Secure(Arc<ServerConfig>),
    /// There is nothing to begin TLS with any more.
    Close,
}

/// Serves a listener for as long as the process lives. `from` tells whence a connection comes, `None` where that is
/// not to count.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    bounds: Bounds,
    from: impl Fn(&L::Addr) -> Option<IpAddr>,
    opening: impl Fn() -> Opening,
) where
    L::Io: Unpin,
{
    let (room, shares) = (Arc::new(Semaphore::new(bounds.connections)), Shares::default());
    // The semaphore is never closed, so there always comes a permit.
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        let (stream, address) = listener.accept().await;
        let Some(share) = shares.take(from(&address), bounds.of_address) else { continue };
        let (router, opening) = (router.clone(), opening());
        tokio::spawn(async move {
            let stream = Impatient::new(stream, bounds.silence);
            match opening {
                Opening::Plain => converse(stream, router, bounds).await,
                Opening::Secure(config) => {
                    match timeout(bounds.handshake, TlsAcceptor::from(config).accept(stream)).await {
                        Ok(Ok(stream)) => converse(stream, router, bounds).await,
                        Ok(Err(why)) => tracing::info!(%why, "closing an HTTP connection: TLS failed"),
                        Err(_) => tracing::info!("closing an HTTP connection: TLS does not stand in time"),
                    }
                }
                Opening::Close => tracing::info!("closing an HTTP connection: TLS is not offered any more"),
            }
            drop((permit, share));
        });
    }
}

/// Answers one connection's requests until it ends or its time is over. What goes wrong is the client's business.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, bounds: Bounds) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(bounds.head);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    if timeout(bounds.life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(bounds.last_answer, connection).await;
    }
}

/// Connections by where they come from.
#[derive(Clone, Default)]
struct Shares(Arc<Mutex<HashMap<u64, usize>>>);

/// A connection that counts, until it is dropped.
struct Share(Option<(Shares, u64)>);

impl Shares {
    /// `None` if that address has its share already.
    fn take(&self, from: Option<IpAddr>, most: usize) -> Option<Share> {
        let Some(address) = from.map(|address| address.to_canonical()).filter(|address| !address.is_loopback()) else {
            return Some(Share(None));
        };
        let key = match address {
            IpAddr::V4(address) => address.to_bits().into(),
            // One host has as many of them as it likes. No /64 of the network is in the range of IPv4.
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = shares.entry(key).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Share(Some((self.clone(), key))))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some((shares, key)) = self.0.take() else { return };
        let mut shares = shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = shares.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                shares.remove(&key);
            }
        }
    }
}

/// A connection that fails when nothing moves for a while.
struct Impatient<T> {
    inner: T,
    patience: Duration,
    silence: Pin<Box<Sleep>>,
}

impl<T> Impatient<T> {
    fn new(inner: T, patience: Duration) -> Self {
        Self { inner, patience, silence: Box::pin(sleep(patience)) }
    }

    /// Restarts the clock when something moved, and fails when the time is over.
    fn watch<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.silence.as_mut().reset(Instant::now() + self.patience);
            return result;
        }
        self.silence.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Impatient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.watch(context, result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Impatient<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch(context, result)
    }
}

#[cfg(test)]
#[path = "serving_tests.rs"]
mod tests;
