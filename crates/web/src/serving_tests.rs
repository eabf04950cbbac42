//! Bounds on HTTP connections, made short, with real sockets.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::server::ResolvesServerCertUsingSni;

use super::*;

/// Longest wait for something that takes milliseconds; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bounds with which nothing ends by itself before [`PATIENCE`].
const LONG: Bounds = Bounds {
    connections: 8,
    grace: Duration::ZERO,
    of_address: 8,
    handshake: NEVER,
    head: NEVER,
    idle: NEVER,
    answer: NEVER,
    unsent: u64::MAX,
    silence: NEVER,
    life: NEVER,
    last_answer: NEVER,
};
const NEVER: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(200);
/// Longest time that an answer may take, even on a busy machine.
const FOR_AN_ANSWER: Duration = Duration::from_secs(2);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

async fn start(bounds: Bounds) -> SocketAddr {
    start_with(bounds, || Opening::Plain).await
}

async fn start_with(bounds: Bounds, opening: impl Fn() -> Opening + Send + Sync + 'static) -> SocketAddr {
    start_paced(bounds, Pace::default(), opening).await
}

async fn start_paced(bounds: Bounds, pace: Pace, opening: impl Fn() -> Opening + Send + Sync + 'static) -> SocketAddr {
    let listener = evenkeel_server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let address = listener.local_addr().unwrap();
    let slow = async || {
        sleep(2 * FOR_AN_ANSWER).await;
        "here"
    };
    let echo = post(async |said: String| said);
    let router = Router::new().route("/", get(async || "here")).route("/slow", get(slow)).route("/work", get(work));
    let counted = async || {
        COUNTED.fetch_add(1, Ordering::Relaxed);
        vec![b'x'; LARGE]
    };
    let router = router.route("/large", get(async || vec![b'x'; LARGE])).route("/counted", get(counted));
    let router = PROBES.iter().fold(router, |router, path| router.route(path, get(async || "here")));
    let router = router.route("/echo", echo).route("/queued", get(queued));
    tokio::spawn(serve(listener, router, bounds, pace, |_, peer| Caller::Address(*peer), opening));
    address
}

/// Bytes of an answer to `/large` and `/counted`: more than the sockets of both ends take.
const LARGE: usize = 64 << 20;
/// Answers to `/counted`, which one test asks for.
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// Processor time that an answer to `/work` takes.
const WORK: Duration = Duration::from_millis(2);

async fn work() -> &'static str {
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let begun = cpu();
    while (cpu() - begun).tv_nsec < WORK.as_nanos() as i64 {}
    "here"
}

/// The place in which answers to `/queued` are made, and the number of those that were asked for. One test uses both.
static PLACE: Semaphore = Semaphore::const_new(1);
static QUEUED: AtomicU64 = AtomicU64::new(0);

async fn queued() -> &'static str {
    QUEUED.fetch_add(1, Ordering::Relaxed);
    let _place = in_turn(&PLACE).await;
    work().await
}

/// True if a request on this connection is answered.
async fn is_answered(stream: &mut TcpStream) -> bool {
    is_answered_at(stream, "/").await
}

async fn is_answered_at(stream: &mut TcpStream, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.is_ok() && is_here(stream).await
}

async fn is_here(stream: &mut TcpStream) -> bool {
    let (mut said, mut more) = (Vec::new(), [0; 1024]);
    while !said.ends_with(b"here") {
        match timeout(PATIENCE, stream.read(&mut more)).await.expect("an answer or an end") {
            Ok(0) | Err(_) => return false,
            Ok(read) => said.extend_from_slice(&more[..read]),
        }
    }
    true
}

#[test]
fn one_address_has_its_share_and_this_machine_has_no_bound() {
    let shares = Shares::default();
    let take = |address: &str| shares.take(Some(address.parse().unwrap()), 2);
    let held = [take("192.0.2.1"), take("::ffff:192.0.2.1")];
    assert!(held.iter().all(Option::is_some) && take("192.0.2.1").is_none());
    let _others = [take("192.0.2.2").unwrap(), take("2001:db8::1").unwrap(), take("2001:db8::2").unwrap()];
    assert!(take("2001:db8::3").is_none(), "a network of one host");
    let local: Vec<_> = (0..5).map(|_| take("127.0.0.1")).collect();
    assert!(local.iter().all(Option::is_some));
    drop(held);
    assert!(take("192.0.2.1").is_some());
}

#[test]
fn the_networks_of_a_site_take_cpu_time_from_each_other_only() {
    let origin = |address: &str| Origin::from(address.parse::<IpAddr>().unwrap());
    for address in ["192.0.2.1", "::ffff:192.0.2.1", "::1"] {
        assert_eq!(origin(address).site(), None, "{address}");
    }
    assert_eq!((Origin::Unknown.site(), Origin::User(Some(100_000)).site()), (None, None));
    assert_ne!(origin("2001:db8:1::1").site(), origin("2001:db8:2::1").site());
    let sites: [fn(u8) -> String; 2] = [|n| format!("127.0.{n}.1"), |n| format!("2001:db8:1:{n}::1")];
    for address in sites {
        // Of a second that may be used at once, more than half is gone.
        let (pace, work) = (pace(), Work::begin());
        while work.spent() < Duration::from_millis(60) {}
        for n in 0..12 {
            pace.charge(origin(&address(n)), &work);
        }
        assert!(pace.delay(origin(&address(100))).is_some(), "its site has had its part");
        assert_eq!((pace.delay(origin("192.0.2.1")), pace.delay(origin("2001:db8:2::1"))), (None, None));
    }
}

#[tokio::test]
async fn a_head_that_trickles_is_not_waited_for() {
    let address = start(Bounds { head: SHORT, ..LONG }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let trickle = async {
        for byte in REQUEST.iter().take(REQUEST.len() - 2).chain(std::iter::repeat(&b'x')) {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, trickle).await.expect("closed in time");
}

#[test]
fn a_half_sent_head_has_five_seconds_and_gives_way_before_that() {
    let Bounds { head, grace, .. } = Bounds::USUAL;
    assert!(head == Duration::from_secs(5) && grace < Duration::from_secs(1), "{head:?}, {grace:?}");
}

#[tokio::test]
async fn the_time_of_a_head_counts_from_its_first_byte() {
    let address = start(Bounds { head: FOR_AN_ANSWER, ..LONG }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut stream).await);
    // Between two requests there is no head to wait for.
    sleep(FOR_AN_ANSWER + SHORT).await;
    assert!(is_answered(&mut stream).await);
    stream.write_all(&REQUEST[..5]).await.unwrap();
    let ended = timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("ended in time");
    assert!(matches!(ended, Ok(0) | Err(_)));
}

#[tokio::test]
async fn the_oldest_incomplete_request_gives_way() {
    let address = start(Bounds { connections: 3, ..LONG }).await;
    let mut served = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut served).await);
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(&REQUEST[..10]).await.unwrap();
        halves.push(half);
        assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await, "{}", halves.len());
    }
    assert!(is_answered(&mut served).await, "one that asks has its place");
    let ended = timeout(PATIENCE, halves[0].read(&mut [0; 1])).await.expect("ended in time");
    assert!(matches!(ended, Ok(0) | Err(_)));
    // Neither keep connections that ask for nothing any more others from being served.
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut stream).await, "{}", idle.len());
        idle.push(stream);
    }
}

/// A connection from another address of this machine.
async fn connect_from(source: &str, address: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(source.parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test]
async fn the_client_with_the_most_incomplete_requests_gives_way() {
    let address = start(Bounds { connections: 4, ..LONG }).await;
    // The oldest of all, which has sent nothing so far.
    let mut quiet = connect_from("127.0.0.2:0", address).await;
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(&REQUEST[..10]).await.unwrap();
        halves.push(half);
        assert!(is_answered(&mut connect_from("127.0.0.3:0", address).await).await, "{}", halves.len());
    }
    assert!(is_answered(&mut quiet).await);
}

#[tokio::test]
async fn an_incomplete_request_has_its_grace() {
    let address = start(Bounds { connections: 2, grace: SHORT, ..LONG }).await;
    let begun = Instant::now();
    let _silent = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    assert!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_request_that_has_arrived_whole_and_is_not_read_keeps_its_place() {
    let address = start(Bounds { connections: 1, ..LONG }).await;
    for round in 0..100 {
        let mut whole = TcpStream::connect(address).await.unwrap().into_std().unwrap();
        // It has its place.
        sleep(Duration::from_millis(1)).await;
        // The server sees these two at once, the newcomer first.
        let mut newcomer = std::net::TcpStream::connect(address).unwrap();
        whole.write_all(REQUEST).unwrap();
        newcomer.write_all(REQUEST).unwrap();
        newcomer.set_nonblocking(true).unwrap();
        for stream in [whole, newcomer] {
            assert!(is_here(&mut TcpStream::from_std(stream).unwrap()).await, "round {round}");
        }
    }
}

#[tokio::test]
async fn bytes_that_the_runtime_has_not_seen_count_as_arrived() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    let progress = Arc::new(Progress::new(Origin::from(peer.ip())));
    let mut stream = Impatient::new(stream, NEVER, Arc::clone(&progress));
    let mut read = || {
        let (mut bytes, context) = ([0; 1], &mut Context::from_waker(std::task::Waker::noop()));
        Pin::new(&mut stream).poll_read(context, &mut ReadBuf::new(&mut bytes)).is_pending()
    };
    progress.ask();
    assert!(read() && progress.gives_way());
    client.write_all(b"G").unwrap();
    assert!(read() && !progress.gives_way());
}

/// Sends a GET request for `path` on a connection of its own; returns how long the answer takes.
fn probe(address: SocketAddr, path: &str) -> Duration {
    let begun = Instant::now();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.ends_with(b"here"), "{said:?}");
    begun.elapsed()
}

/// Half-sent requests from this address; those that the server closes are sent again, until this is dropped.
struct HalfSent {
    came: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HalfSent {
    /// Starts `most` half-sent requests at once; returns when all have connected.
    fn start(address: SocketAddr, most: usize) -> Self {
        let (came, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (Arc::clone(&came), Arc::clone(&over));
        let storm = move || {
            let mut halves: Vec<std::net::TcpStream> = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                halves.retain_mut(|half| half.read(&mut [0; 1]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock));
                while halves.len() < most {
                    let mut half = std::net::TcpStream::connect(address).unwrap();
                    half.set_nonblocking(true).unwrap();
                    let _ = half.write_all(&REQUEST[..10]);
                    halves.push(half);
                    counts.fetch_add(1, Ordering::Relaxed);
                }
                // Others need the processor, too.
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let this = Self { came, over, thread: Some(std::thread::spawn(storm)) };
        while this.came() < most as u64 {
            std::thread::yield_now();
        }
        this
    }

    fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for HalfSent {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Starts a server on a thread of its own; `burst_ms`: processor time that may be used at once.
fn start_apart(bounds: Bounds, burst_ms: u64) -> SocketAddr {
    let burst = evenkeel_control::Duration::from_millis(burst_ms);
    let pace = Arc::new(Paced::new(evenkeel_control::duty::Config { one_in: 10, burst }));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tell.send(start_paced(bounds, pace, || Opening::Plain).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    told.recv().unwrap()
}

#[test]
fn whole_requests_are_answered_beside_hundreds_of_half_sent_ones() {
    let address = start_apart(Bounds { grace: Duration::from_millis(10), ..Bounds::USUAL }, 3_600_000);
    let halves = HalfSent::start(address, 500);
    let mut took: Vec<_> = (0..200).map(|_| probe(address, PROBES[0])).collect();
    let came = halves.came();
    took.sort();
    let (median, slowest) = (took[100], took[199]);
    assert!(
        median < Duration::from_secs(1) && slowest < FOR_AN_ANSWER,
        "{median:?}, {slowest:?}, while {came} half-sent ones came"
    );
    assert!(came > 5_000, "{came} half-sent ones came meanwhile");
}

#[test]
fn probes_are_answered_beside_a_storm_from_the_same_address() {
    // All of the time that may be used at once is gone at once, and the address is beyond its account.
    let address = start_apart(Bounds::USUAL, 20);
    let _halves = HalfSent::start(address, 100);
    let slowest = (0..10).flat_map(|_| PROBES.map(|path| probe(address, path))).max().unwrap();
    assert!(slowest < FOR_AN_ANSWER, "{slowest:?}");
}

/// A request of which the last byte of the body is missing.
const HALF_A_BODY: &[u8] = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nher";

#[tokio::test]
async fn a_request_whose_body_does_not_arrive_gives_way() {
    let address = start(Bounds { connections: 3, ..LONG }).await;
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(HALF_A_BODY).await.unwrap();
        halves.push(half);
        assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await, "{}", halves.len());
    }
    let ended = timeout(PATIENCE, halves[0].read(&mut [0; 1])).await.expect("ended in time");
    assert!(matches!(ended, Ok(0) | Err(_)));
    let mut last = halves.pop().unwrap();
    last.write_all(b"e").await.unwrap();
    assert!(is_here(&mut last).await, "one that goes on is answered");

    let address = start(Bounds { head: SHORT, ..LONG }).await;
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(HALF_A_BODY).await.unwrap();
    let ended = timeout(PATIENCE, half.read(&mut [0; 1])).await.expect("ended in time");
    assert!(matches!(ended, Ok(0) | Err(_)));
}

#[tokio::test]
async fn silence_and_age_end_a_connection_and_the_next_is_served() {
    for bounds in [Bounds { silence: FOR_AN_ANSWER, ..LONG }, Bounds { life: FOR_AN_ANSWER, ..LONG }] {
        let address = start(bounds).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(is_answered(&mut stream).await);
        let ended = timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("ended in time");
        assert!(matches!(ended, Ok(0) | Err(_)), "{bounds:?}");
        assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    }
    // However busy it is.
    let address = start(Bounds { life: SHORT, ..LONG }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let busy = async { while is_answered(&mut stream).await {} };
    timeout(PATIENCE, busy).await.expect("ended in time");
}

#[tokio::test]
async fn an_answer_may_take_longer_than_silence_and_is_followed_by_it() {
    let address = start(Bounds { silence: FOR_AN_ANSWER, ..LONG }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    // Up to its end, which silence makes.
    let ended = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("ended in time");
    assert!(said.ends_with(b"here"), "{ended:?} after {said:?}");
}

/// A client that has asked for `answers` large answers at once, and has read the beginning of the first.
async fn slow_reader(address: SocketAddr, path: &str, answers: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let requests = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(answers);
    stream.write_all(requests.as_bytes()).await.unwrap();
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("an answer").unwrap(), 1);
    stream
}

/// Reads up to the end of the stream, or of `answers` large answers; returns the number of bytes.
async fn read_on(stream: &mut TcpStream, answers: usize) -> usize {
    let (mut all, mut some) = (0, vec![0; 1 << 20]);
    while all < answers * LARGE {
        match timeout(PATIENCE, stream.read(&mut some)).await.expect("more, or the end") {
            Ok(0) | Err(_) => break,
            Ok(read) => all += read,
        }
    }
    all
}

#[tokio::test]
async fn an_answer_has_its_time_however_slowly_it_is_read() {
    let address = start(Bounds { answer: FOR_AN_ANSWER, ..LONG }).await;
    let mut slow = slow_reader(address, "/large", 1).await;
    let begun = Instant::now();
    while begun.elapsed() < 2 * FOR_AN_ANSWER {
        slow.read_exact(&mut [0; 1_000]).await.unwrap();
        sleep(SHORT / 10).await;
    }
    assert!(read_on(&mut slow, 1).await < LARGE, "it has all");
}

#[tokio::test]
async fn a_slow_reader_gives_way_when_none_is_idle() {
    let address = start(Bounds { connections: 2, ..LONG }).await;
    let mut slow = slow_reader(address, "/large", 1).await;
    // The second and the third each find one that is idle.
    for _ in 0..3 {
        assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    }
    let mut other = slow_reader(address, "/large", 1).await;
    assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    assert!(read_on(&mut slow, 1).await < LARGE, "the older of two");
    assert!(read_on(&mut other, 1).await >= LARGE);
}

#[tokio::test]
async fn the_next_request_is_answered_when_the_last_answer_is_sent() {
    let address = start(LONG).await;
    let mut slow = slow_reader(address, "/counted", 4).await;
    assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    let made = COUNTED.load(Ordering::Relaxed);
    assert!(read_on(&mut slow, 4).await >= 4 * LARGE);
    assert_eq!((made, COUNTED.load(Ordering::Relaxed)), (1, 4));
}

#[tokio::test]
async fn further_connections_wait_while_all_are_being_answered() {
    let address = start(Bounds { connections: 1, ..LONG }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    sleep(SHORT).await;
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(REQUEST).await.unwrap();
    assert!(timeout(SHORT, second.read(&mut [0; 1])).await.is_err(), "served although there is no room");
    drop(first);
    assert!(timeout(PATIENCE, second.read(&mut [0; 1])).await.expect("served").is_ok_and(|read| read == 1));
}

#[tokio::test]
async fn answers_that_are_not_read_take_bounded_memory() {
    let address = start(Bounds { unsent: LARGE as u64 * 3 / 2, ..LONG }).await;
    let mut older = slow_reader(address, "/large", 1).await;
    let mut newer = slow_reader(address, "/large", 1).await;
    assert!(is_answered(&mut TcpStream::connect(address).await.unwrap()).await);
    assert!(read_on(&mut older, 1).await < LARGE, "the older of two gives way");
    assert!(read_on(&mut newer, 1).await >= LARGE);
}

#[test]
fn the_client_with_the_most_unread_bytes_gives_way() {
    let of = |network| {
        let progress = Arc::new(Progress::new(Origin::Network(network)));
        progress.enter(Stage::Sending(Instant::now()));
        progress
    };
    let (unsent, quiet, first, second) = (Unsent::default(), of(1), of(2), of(2));
    [&quiet, &first, &second].into_iter().for_each(|progress| unsent.add(progress, 30, 80));
    assert_eq!([&quiet, &first, &second].map(|progress| progress.gives_way()), [false, true, false]);
    // One that is sent counts no longer, nor does one that has given way.
    quiet.send();
    let third = of(2);
    unsent.add(&third, 50, 80);
    assert_eq!([&quiet, &second, &third].map(|progress| progress.gives_way()), [false; 3]);
    unsent.add(&of(3), 1_000, 80);
    assert_eq!([&second, &third].map(|progress| progress.gives_way()), [true; 2]);
}

/// The place of work that goes on without its client. One test uses it.
static KEPT: Semaphore = Semaphore::const_new(1);

#[tokio::test]
async fn work_that_has_begun_keeps_its_place_though_its_client_leaves() {
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let (tell, begins) = tokio::sync::oneshot::channel::<()>();
    let request = tokio::spawn(elsewhere_in_turn(&KEPT, move || {
        let _ = tell.send(());
        let _ = waits.recv();
    }));
    timeout(PATIENCE, begins).await.expect("it begins").unwrap();
    request.abort();
    assert!(request.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(KEPT.available_permits(), 0);
    drop(go_on);
    drop(timeout(PATIENCE, KEPT.acquire()).await.expect("free when the work is done").unwrap());
}

/// A configuration that begins TLS, and has no certificate to go on with.
fn secure() -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(builder.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new())))
}

#[tokio::test]
async fn handshakes_that_do_not_get_on_make_room_for_others() {
    let config = secure();
    let bounds = Bounds { connections: 2, handshake: SHORT, ..LONG };
    let address = start_with(bounds, move || Opening::Secure(Arc::clone(&config))).await;
    // More than there is room for: one says nothing, one a byte now and then, the others wait.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut slow = TcpStream::connect(address).await.unwrap();
    let trickle = async {
        for byte in [0x16, 0x03, 0x01, 0x02].into_iter().chain(std::iter::repeat(0x01)) {
            if slow.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, trickle).await.expect("closed in time");
    for mut stream in silent {
        let ended = timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("ended in time");
        assert!(matches!(ended, Ok(0) | Err(_)));
    }
}

#[tokio::test]
async fn what_is_not_tls_gets_no_answer() {
    let config = secure();
    let address = start_with(LONG, move || Opening::Secure(Arc::clone(&config))).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut said = Vec::new();
    // The end may be told by a reset.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("ended in time");
    assert!(said.is_empty() || said[0] == 0x15, "an alert at most: {said:?}");
}

#[tokio::test]
async fn who_began_otherwise_ends() {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let opening = move || if over.load(Ordering::Relaxed) { Opening::Close } else { Opening::Plain };
    let address = start_with(LONG, opening).await;
    let (mut idle, mut used) = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
    assert!(is_answered(&mut used).await);
    is_over.store(true, Ordering::Relaxed);
    for stream in [&mut idle, &mut used] {
        let ended = timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("ended in time");
        assert!(matches!(ended, Ok(0) | Err(_)));
    }
    assert!(!is_answered(&mut TcpStream::connect(address).await.unwrap()).await, "closed at once");
}

#[tokio::test]
async fn a_storm_of_requests_takes_a_share_of_a_processor_and_another_client_is_answered() {
    // Within a second 100 ms of processor time may be used, and half of 100 ms at once.
    let burst = evenkeel_control::Duration::from_millis(100);
    let pace = Arc::new(Paced::new(evenkeel_control::duty::Config { one_in: 10, burst }));
    let address = start_paced(LONG, pace, || Opening::Plain).await;
    let answers = Arc::new(AtomicU64::new(0));
    let storms: Vec<_> = (0..LONG.connections - 1)
        .map(|_| {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                while is_answered_at(&mut stream, "/work").await {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let begun = Instant::now();
    let mut others = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        let mut stream = connect_from("127.0.0.2:0", address).await;
        assert!(is_answered(&mut stream).await);
        others += 1;
        sleep(Duration::from_millis(100)).await;
    }
    let most = (burst.as_secs_f64() + begun.elapsed().as_secs_f64() / 10.0) / WORK.as_secs_f64();
    let answers = answers.load(Ordering::Relaxed);
    assert!((20..=most as u64 + 20).contains(&answers), "{answers} answers of {WORK:?} each, of at most {most}");
    assert!(others >= 5, "another client was answered {others} times in 3 s");
    storms.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn requests_that_have_waited_for_a_place_wait_for_their_turn_again() {
    const REQUESTS: u64 = 32;
    let burst = evenkeel_control::Duration::from_millis(20);
    let pace = Arc::new(Paced::new(evenkeel_control::duty::Config { one_in: 10, burst }));
    let address = start_paced(Bounds { connections: REQUESTS as usize, ..LONG }, pace, || Opening::Plain).await;
    let place = PLACE.acquire().await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..REQUESTS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /queued HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        streams.push(stream);
    }
    let all_wait = async {
        while QUEUED.load(Ordering::Relaxed) < REQUESTS {
            sleep(SHORT / 10).await;
        }
    };
    timeout(PATIENCE, all_wait).await.expect("each had its turn");
    let begun = Instant::now();
    drop(place);
    for stream in &mut streams {
        assert!(is_here(stream).await);
    }
    // 64 ms of processor time, of which 20 ms may be used at once.
    assert!(begun.elapsed() > Duration::from_millis(200), "{:?}", begun.elapsed());
}
