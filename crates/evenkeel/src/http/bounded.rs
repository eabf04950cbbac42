//! A listener that serves so many connections at once and closes those that fall silent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// A scraper asks every 15 s or so; whoever is silent for longer than this can connect again.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub(super) struct Bounded<L> {
    inner: L,
    room: Arc<Semaphore>,
}

impl<L> Bounded<L> {
    /// Serves at most `connections` at once; further ones wait in the kernel's queue.
    pub(super) fn new(inner: L, connections: usize) -> Self {
        Self { inner, room: Arc::new(Semaphore::new(connections)) }
    }
}

impl<L: Listener> Listener for Bounded<L>
where
    L::Io: Unpin,
{
    type Io = Impatient<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed, so there always comes a permit.
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        let (inner, address) = self.inner.accept().await;
        (Impatient { inner, silence: Box::pin(sleep(PATIENCE)), _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection that fails when nothing moves for [`PATIENCE`].
pub(super) struct Impatient<T> {
    inner: T,
    silence: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T> Impatient<T> {
    /// Restarts the clock when something moved, and fails when the time is over.
    fn watch<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.silence.as_mut().reset(Instant::now() + PATIENCE);
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
