//! Serves HTTP connections, with bounds on their number in all and per client, on their times and on CPU time, and with TLS where
//! it is configured.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use evenkeel_server::{Paced, Work};
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::ioctl_fionread;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinError;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::caller::Caller;
use crate::progress::{Crowd, LOOK, Origin, Progress, Stage, Unsent};
use crate::rules::MAX_BODY_BYTES;
use crate::sparing::Sparing;

/// Paths of probes. The bound on CPU time does not delay a probe that is the first request of a connection, because monitoring
/// may share an address with clients that send very many requests.
const PROBES: [&str; 2] = ["/healthz", "/livez"];

/// Least size of an answer in bytes that counts for [`Bounds::unsent`]. All smaller answers together take little memory.
const LARGE_ANSWER: u64 = 256 << 10;

/// Bounds on HTTP connections. All times count from the beginning of a stage, so that single bytes do not extend them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most simultaneous connections. For a further one another connection [gives way](Crowd::make_room); while all are being
    /// answered, the new one waits. Monitoring needs a handful.
    pub(crate) connections: usize,
    /// Time that a connection has for its first request before it may have to give way: longer than a busy machine takes from
    /// connecting to sending. At most `connections` connections come and go per `grace`.
    pub(crate) grace: Duration,
    /// The most connections from one address of another machine; further ones are closed.
    pub(crate) of_address: usize,
    /// Longest time until TLS is established.
    pub(crate) handshake: Duration,
    /// Longest time for the head of a request, from its first byte (for the first request from the beginning of the connection),
    /// and also the longest time for its body.
    pub(crate) head: Duration,
    /// Longest time from an answer until the next request begins. It differs from the usual periods of scrapers, so that their
    /// next request does not coincide with the end of the connection.
    pub(crate) idle: Duration,
    /// Longest time until an answer is completely sent.
    pub(crate) answer: Duration,
    /// The most bytes of large answers that are being sent at the same time: clients that do not read keep them in memory. For a
    /// further answer an older one [gives way](Unsent::add).
    pub(crate) unsent: u64,
    /// Longest time without any byte received or sent, unless an answer is being made.
    pub(crate) silence: Duration,
    /// Longest time of a connection, which ends after the answer that is under way by then.
    pub(crate) life: Duration,
    /// Longest time for the last answer of a connection that is to end.
    pub(crate) last_answer: Duration,
}

impl Bounds {
    /// The default bounds. A scraper sends a request about every 15 s; a client whose connection is closed can connect again.
    pub(crate) const USUAL: Self = Self {
        connections: 64,
        grace: Duration::from_millis(20),
        of_address: 16,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(5),
        idle: Duration::from_secs(45),
        answer: Duration::from_secs(30),
        unsent: 64 << 20,
        silence: Duration::from_secs(60),
        life: Duration::from_secs(600),
        last_answer: Duration::from_secs(30),
    };
}

/// The way in which a new connection begins.
pub(crate) enum Opening {
    /// The connection begins with a request, without TLS.
    Plain,
    /// The connection begins with a TLS handshake.
    Secure(Arc<ServerConfig>),
    /// The connection is closed at once: TLS was served here before, and its certificates are missing now.
    Close,
}

impl Opening {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain, Self::Plain) | (Self::Close, Self::Close) => true,
            (Self::Secure(one), Self::Secure(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The shared bound on the CPU time of all HTTP requests.
pub(crate) type Pace = Arc<Paced<Origin>>;

/// A new bound on the CPU time of all HTTP requests of this process, for all of its listeners. The clients of a site (such as an
/// IPv6 /48, see [`Origin::site`]) together get no more than one client elsewhere.
pub(crate) fn pace() -> Pace {
    Arc::new(Paced::of_sites(Origin::site))
}

/// Waits until the bound on CPU time admits a request of the client.
async fn turn(pace: &Paced<Origin>, origin: Origin) {
    while let Some(delay) = pace.delay(origin) {
        sleep(delay).await;
    }
}

thread_local! {
    /// Position in this thread's CPU time up to which it has been charged to clients. The thread serves only HTTP.
    static CHARGED: Cell<Option<Work>> = const { Cell::new(None) };
}

/// Does `work` and charges its CPU time to the client, together with the thread's CPU time since the last charge, which is as
/// much again for short requests.
async fn charged<T>(pace: &Paced<Origin>, origin: Origin, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let step = |context: &mut Context<'_>| {
        let begun = CHARGED.take().unwrap_or_else(Work::begin);
        let polled = work.as_mut().poll(context);
        CHARGED.set(Some(pace.charge(origin, &begun)));
        polled
    };
    poll_fn(step).await
}

tokio::task_local! {
    /// The bound and the client to which a request's work on other threads is charged, and the progress of its connection.
    static PAYS: (Pace, Origin, Arc<Progress>);
}

/// Waits for one of `places`, which bound the work that is done at the same time, and until the bound on CPU time admits the
/// client once more: other clients have used CPU time meanwhile. During this wait the connection may be closed for another one.
/// `None` if `places` is closed.
pub(crate) async fn in_turn(places: &Semaphore) -> Option<SemaphorePermit<'_>> {
    let pays = PAYS.try_with(Clone::clone).ok();
    let enter = |stage| pays.iter().for_each(|(_, _, progress)| progress.enter(stage));
    enter(Stage::Turn);
    let place = loop {
        let place = places.acquire().await.ok();
        match pays.as_ref().and_then(|(pace, origin, _)| pace.delay(*origin)) {
            None => break place,
            Some(delay) => {
                // Another client may go first.
                drop(place);
                sleep(delay).await;
            }
        }
    };
    enter(Stage::Answering);
    place
}

/// Does a part of a request on a thread that may block, and charges its CPU time like the rest of the request.
///
/// # Errors
/// If `work` panics.
pub(crate) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    let pays = PAYS.try_with(Clone::clone).ok();
    let work = move || {
        let begun = Work::begin();
        let done = work();
        if let Some((pace, origin, _)) = pays {
            pace.charge(origin, &begun);
        }
        done
    };
    tokio::task::spawn_blocking(work).await
}

/// Does a part of a request in one of `places`, as [`in_turn`] and [`elsewhere`] do. The place is taken until `work` is done,
/// even if the client leaves before: work that has begun goes on, and clients that leave could begin any amount of it.
///
/// # Errors
/// If `work` panics.
pub(crate) async fn elsewhere_in_turn<T: Send + 'static>(
    places: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let place = in_turn(places).await;
    elsewhere(move || (work(), place)).await.map(|(done, _)| done)
}

/// Serves a listener for as long as the process lives. `from` returns the caller at the other end of a connection, which is added
/// to requests as an extension. `opening` returns how a new connection begins; older connections that began otherwise are ended.
/// All listeners with the same `pace` together use no more CPU time than `pace` allows.
pub(crate) async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    bounds: Bounds,
    pace: Pace,
    from: impl Fn(&L::Io, &L::Addr) -> Caller,
    opening: impl Fn() -> Opening + Send + Sync + 'static,
) where
    L::Io: AsFd + Unpin,
{
    let (room, shares, opening) = (Arc::new(Semaphore::new(bounds.connections)), Shares::default(), Arc::new(opening));
    let (mut crowd, sparing, unsent) = (Crowd::default(), Arc::new(Sparing::default()), Arc::new(Unsent::default()));
    loop {
        while let Some(delay) = pace.delay_of_newcomer() {
            sleep(delay).await;
        }
        let (stream, address) = charged(&pace, Origin::Unknown, listener.accept()).await;
        let caller = from(&stream, &address);
        let (peer, origin) = (caller.address(), Origin::from(&caller));
        let Some(share) = shares.take(peer.map(|peer| peer.ip()), bounds.of_address) else { continue };
        let permit = loop {
            if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
                break permit;
            }
            let again = crowd.make_room(bounds.grace);
            if let Ok(Ok(permit)) = timeout(again, Arc::clone(&room).acquire_owned()).await {
                break permit;
            }
        };
        let progress = Arc::new(Progress::new(origin));
        crowd.push(&progress);
        let (router, opening, pace) = (router.clone(), Arc::clone(&opening), Arc::clone(&pace));
        let (sparing, unsent) = (Arc::clone(&sparing), Arc::clone(&unsent));
        tokio::spawn(async move {
            let stream = Impatient::new(stream, bounds.silence, Arc::clone(&progress));
            let begun = opening();
            let otherwise = until_otherwise(&*opening, &begun);
            let conversation = async {
                match &begun {
                    Opening::Plain => {
                        let client = (&pace, origin, caller);
                        converse(stream, router, bounds, &progress, client, &unsent, otherwise).await;
                        None
                    }
                    Opening::Secure(config) => {
                        progress.enter(Stage::Turn);
                        turn(&pace, origin).await;
                        progress.enter(Stage::Part(Instant::now()));
                        match timeout(bounds.handshake, TlsAcceptor::from(Arc::clone(config)).accept(stream)).await {
                            Ok(Ok(stream)) => {
                                let client = (&pace, origin, caller);
                                converse(stream, router, bounds, &progress, client, &unsent, otherwise).await;
                                None
                            }
                            Ok(Err(why)) => Some(why.to_string()),
                            Err(_) => Some(format!("the handshake took over {} s", bounds.handshake.as_secs())),
                        }
                    }
                    Opening::Close => Some("a reload has removed TLS from the configuration".into()),
                }
            };
            let failed = tokio::select! {
                biased;
                failed = charged(&pace, origin, conversation) => failed,
                () = progress.until_it_gives_way() => None,
            };
            if let Some(why) = failed
                && let Some(not_logged) = sparing.count(&why, Instant::now())
            {
                let peer = peer.map(tracing::field::display);
                tracing::info!(peer, %why, not_logged, "closing an HTTP connection: TLS failed");
            }
            drop((permit, share));
        });
    }
}

/// Waits until `opening` returns another value than `begun`, so that new connections begin in another way.
async fn until_otherwise(opening: &impl Fn() -> Opening, begun: &Opening) {
    while opening().is(begun) {
        sleep(LOOK).await;
    }
}

/// Answers one connection's requests until the connection ends, its time is over, or `over` is done; in the last two cases the
/// answer under way is completed. Errors of the connection are ignored.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    bounds: Bounds,
    progress: &Arc<Progress>,
    (pace, origin, caller): (&Pace, Origin, Caller),
    unsent: &Arc<Unsent>,
    over: impl Future<Output = ()>,
) {
    let router = TowerToHyperService::new(router);
    let is_first = AtomicBool::new(true);
    let service = service_fn(|request: Request<Incoming>| {
        let waits = !is_first.swap(false, Ordering::Relaxed) || !PROBES.contains(&request.uri().path());
        let (router, progress, pace) = (router.clone(), Arc::clone(progress), Arc::clone(pace));
        let (unsent, most) = (Arc::clone(unsent), bounds.unsent);
        async move {
            progress.until_sent().await;
            progress.enter(if request.body().is_end_stream() { Stage::Turn } else { Stage::Part(Instant::now()) });
            let (mut head, body) = request.into_parts();
            head.extensions.insert(caller);
            let body = whole(body).await?;
            if waits {
                progress.enter(Stage::Turn);
                turn(&pace, origin).await;
            }
            progress.enter(Stage::Answering);
            let answer = router.call(Request::from_parts(head, Body::from(body)));
            let Ok(answer) = PAYS.scope((pace, origin, Arc::clone(&progress)), answer).await;
            progress.enter(Stage::Sending(Instant::now()));
            let bytes = answer.body().size_hint().lower();
            if bytes >= LARGE_ANSWER {
                unsent.add(&progress, bytes, most);
            }
            Ok::<_, hyper::Error>(answer)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(bounds.idle);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    progress.enter(Stage::Part(Instant::now()));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = progress.until_late(bounds.head, bounds.answer) => return,
        _ = timeout(bounds.life, over) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(bounds.last_answer, connection).await;
}

/// Reads a whole body. Until the body is complete, the connection does not count as being answered. Bytes beyond
/// [`MAX_BODY_BYTES`] are not read; such a body is refused by its length.
async fn whole(mut body: Incoming) -> hyper::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() <= MAX_BODY_BYTES
        && let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
    {
        bytes.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(bytes)
}

/// The numbers of open connections by the network from which they come, see [`Origin::Network`].
#[derive(Clone, Default)]
struct Shares(Arc<Mutex<HashMap<u64, usize>>>);

/// A counted connection of a network; on drop the network's number decreases.
struct Share(Option<(Shares, u64)>);

impl Shares {
    /// Counts a connection from an address; `None` if the address's network already has `most` connections.
    fn take(&self, from: Option<IpAddr>, most: usize) -> Option<Share> {
        let from = from.filter(|address| !address.to_canonical().is_loopback());
        let Some(Origin::Network(key)) = from.map(Origin::from) else { return Some(Share(None)) };
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

/// A stream that fails if no byte is received or sent for the time [`Bounds::silence`], unless an answer is being made.
struct Impatient<T> {
    inner: T,
    patience: Duration,
    progress: Arc<Progress>,
    silence: Pin<Box<Sleep>>,
}

impl<T> Impatient<T> {
    fn new(inner: T, patience: Duration, progress: Arc<Progress>) -> Self {
        Self { inner, patience, progress, silence: Box::pin(sleep(patience)) }
    }

    /// Restarts the clock if bytes have been received or sent, and fails if the time is over.
    fn watch<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() || self.progress.is_answering() {
            self.silence.as_mut().reset(Instant::now() + self.patience);
            return result;
        }
        self.silence.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + AsFd + Unpin> AsyncRead for Impatient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.progress.receive();
        }
        if result.is_pending() {
            self.progress.starve(|| ioctl_fionread(&self.inner).is_ok_and(|unread| unread > 0));
        }
        self.watch(context, result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Impatient<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(context) {
            Poll::Pending => self.watch(context, Poll::Pending),
            // What was to be flushed moved when it was written; where there is nothing, this is so at every look. All of an
            // answer is written before it is flushed.
            ready => {
                self.progress.send();
                ready
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch(context, result)
    }
}

#[cfg(test)]
#[path = "serving_tests.rs"]
mod tests;
