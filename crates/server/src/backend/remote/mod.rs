//! A volume that another NBD server exports, with or without TLS.
//!
//! ```text
//!  workers ── jobs ──▶ inbox ──▶ driver (one thread, epoll) ──▶ links (connections) ──▶ server
//!     ◀── reports, in batches ─────┘      ▲ sockets, hands shaken
//!                                         └── a thread for each attempt to connect
//! ```
//!
//! A job that was in flight on a broken connection is sent again: every command that is used is idempotent, and an unanswered
//! request is not ordered against any other request of its client. So a job may be carried out twice, the second time after a
//! later overlapping request that was in flight at the same time. No client can distinguish this from an order in which the
//! server might have carried out the two requests anyway.
//!
//! A flush never succeeds while acknowledged writes may be lost. Every connection counts the writes that it has acknowledged,
//! and how many of these a later flush *on the same connection* has covered; a flush of the volume is a flush on each
//! connection with uncovered writes. If a connection with uncovered writes breaks, the remote server may have been restarted
//! and have lost them: from then on every flush fails, unless the operator has configured that the server keeps acknowledged
//! writes.

mod driver;
mod link;

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::client::Connected;
use evenkeel_nbd::wire::{Framing, MAX_PAYLOAD, MIN_UNFRAGMENTED, PORTABLE_MIN_BLOCK, TransmissionFlags};
use evenkeel_net::dial::{self, DialError, Dialed};
use evenkeel_net::tls::client_of;
use evenkeel_policy::config::{self, EtcdTls};
use evenkeel_policy::state::RemoteState;
use evenkeel_policy::uri::{Address, Target};

use super::operation::{FileIo, IoResult, Report, Reports};
use crate::clock;
use crate::error::Error;
use crate::faults::{Call, Faults};
use crate::mailbox::Mailbox;
use crate::transport::{Transport, prepare};
use driver::{Driver, Event};

/// Settings of a remote volume.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Name of the volume, for the log.
    pub(crate) volume: String,
    /// Address of the remote server, and name of the export.
    pub(crate) target: Target,
    /// The files for TLS, if the target's URI asks for it.
    pub(crate) tls: Option<EtcdTls>,
    /// Number of connections wanted.
    pub(crate) connections: usize,
    /// Longest time for which requests wait while the remote server is unreachable.
    pub(crate) reconnect_timeout: Duration,
    /// True if the remote server keeps acknowledged writes even if it crashes.
    pub(crate) keeps_unflushed: bool,
    /// The faults that a test injects into the calls for the remote server.
    pub(crate) faults: Faults,
}

/// The properties of a remote export on which clients rely, so that the export must keep them as long as the volume is
/// served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guaranteed {
    /// Size of the export that is served, in bytes.
    pub(crate) size: u64,
    /// The export's NBD transmission flags, without flags that this program does not know.
    pub(crate) flags: TransmissionFlags,
    /// Requests must be multiples of this number of bytes.
    pub(crate) min_block: u32,
    /// Requests should be multiples of this number of bytes.
    pub(crate) preferred_block: u32,
    /// Largest read or write that the export accepts, in bytes.
    pub(crate) max_payload: u32,
}

impl Guaranteed {
    /// The properties of an export, as negotiated by its first connection.
    ///
    /// # Errors
    /// The reason why the export cannot be served.
    fn of(connected: &Connected) -> Result<Self, String> {
        let min_block = connected.min_block;
        let size = connected.size / u64::from(min_block) * u64::from(min_block);
        let max_payload = connected.max_payload.min(MAX_PAYLOAD) / min_block * min_block;
        if size == 0 || i64::try_from(size).is_err() {
            return Err(format!(
                "the export's size of {} bytes cannot be served: an export must have from one block to 2^63 - 1 bytes",
                connected.size
            ));
        }
        if max_payload < MIN_UNFRAGMENTED {
            return Err(format!(
                "the export takes at most {max_payload} bytes in one request, and a volume needs an export that takes {MIN_UNFRAGMENTED}"
            ));
        }
        let preferred_block = connected.preferred_block.clamp(min_block.max(PORTABLE_MIN_BLOCK), max_payload);
        let unknown = connected.flags.without(TransmissionFlags::ALL);
        Ok(Self { size, flags: connected.flags.without(unknown), min_block, preferred_block, max_payload })
    }

    fn has(&self, flag: TransmissionFlags) -> bool {
        self.flags.contains(flag)
    }

    /// True if the export refuses writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.has(TransmissionFlags::READ_ONLY)
    }

    /// True if the export supports durable single writes (FUA).
    pub(crate) fn has_fua(&self) -> bool {
        self.has(TransmissionFlags::SEND_FUA)
    }

    /// True if the export can refuse a zeroing that would mean writing zeros (FAST_ZERO).
    pub(crate) fn zeroes_fast(&self) -> bool {
        self.has(TransmissionFlags::SEND_FAST_ZERO)
    }

    /// True if a zeroing is sent with FAST_ZERO: zeros may not be written (`may_write` is false), and the export supports the
    /// flag.
    fn tries_fast(&self, may_write: bool) -> bool {
        !may_write && self.zeroes_fast()
    }

    /// The NBD transmission flags offered to clients of the volume. CAN_MULTI_CONN is among them: the connections to the
    /// remote server are coherent, and a flush covers all of them.
    pub(crate) fn flags(&self, read_only: bool) -> TransmissionFlags {
        use TransmissionFlags as Has;
        let flush = self.has(Has::SEND_FLUSH);
        let mut flags = Has::HAS_FLAGS | Has::SEND_DF | Has::CAN_MULTI_CONN;
        let mut offer = |flag, offered: bool| flags |= if offered { flag } else { Has::NONE };
        offer(Has::SEND_FLUSH, flush);
        // Trims, zeroing, and what is divided are followed by a flush, and writes are where there is no FUA.
        offer(Has::SEND_FUA, flush);
        offer(Has::READ_ONLY, read_only);
        for flag in [Has::ROTATIONAL, Has::SEND_CACHE] {
            offer(flag, self.has(flag));
        }
        let zeroes = self.has(Has::SEND_WRITE_ZEROES);
        offer(Has::SEND_TRIM, !read_only && self.has(Has::SEND_TRIM));
        offer(Has::SEND_WRITE_ZEROES, !read_only && zeroes);
        offer(Has::SEND_FAST_ZERO, !read_only && zeroes && self.has(Has::SEND_FAST_ZERO));
        flags
    }

    /// Checks that the export, as a new connection finds it now, still has the properties on which clients rely.
    ///
    /// # Errors
    /// The property that the export has lost.
    fn fits(&self, now: &Connected, connections: usize) -> Result<(), String> {
        use TransmissionFlags as Has;
        if now.size < self.size {
            return Err(format!("the export has {} bytes only, clients of the volume expect {}", now.size, self.size));
        }
        if now.flags.contains(Has::READ_ONLY) && !self.is_read_only() {
            return Err("the export has become read-only".into());
        }
        if now.min_block > self.min_block || now.max_payload < self.max_payload {
            return Err(format!(
                "the export takes requests in multiples of {} bytes, up to {} bytes each, and clients of the volume rely on multiples of {}, up to {}",
                now.min_block, now.max_payload, self.min_block, self.max_payload
            ));
        }
        let needed = [
            (Has::SEND_FLUSH, "flush"),
            (Has::SEND_FUA, "FUA"),
            (Has::SEND_TRIM, "trim"),
            (Has::SEND_WRITE_ZEROES, "write zeroes"),
            (Has::SEND_FAST_ZERO, "fast zeroes"),
            (Has::SEND_CACHE, "cache"),
        ];
        if let Some((_, what)) = needed.iter().find(|(flag, _)| self.has(*flag) && !now.flags.contains(*flag)) {
            return Err(format!("the export no longer supports {what}, on which clients of the volume rely"));
        }
        if connections > 1 && !now.flags.contains(Has::CAN_MULTI_CONN) {
            return Err("the server no longer keeps several connections coherent (CAN_MULTI_CONN)".into());
        }
        Ok(())
    }
}

/// An operation on the remote export, with the address to which its result goes.
pub(crate) struct Job {
    /// The operation to be sent.
    io: FileIo,
    /// The receiver of the job's result.
    to: ReplyTo,
    /// Number of bytes of the job's range that earlier requests to the remote server have completed.
    done: u64,
    /// Number of the job in the order of arrival.
    order: u64,
    /// Time at which a connection first broke while the job was in flight on it; `None` if none has.
    lost_at: Option<Instant>,
}

impl Job {
    /// True if the job changes data and the change is not durable before a flush.
    fn leaves_something_to_flush(&self) -> bool {
        matches!(self.io, FileIo::Write { durable: false, .. } | FileIo::Trim { .. } | FileIo::Zero { .. })
    }
}

/// The receiver of an operation's result.
pub(crate) enum ReplyTo {
    /// A worker, by its mailbox, with the token of the operation.
    Worker(Arc<Reports>, u32),
    /// A thread that waits for a flush, and gets 0 or minus the errno.
    Thread(Sender<i32>),
}

/// The driver's state, as published for other threads.
#[derive(Default)]
struct Status {
    connections: AtomicU32,
    reconnects: AtomicU64,
    resent: AtomicU64,
    in_flight: AtomicU64,
    waiting: AtomicU64,
    unflushed: AtomicBool,
    /// Time at which the last of all connections was lost, in ns of `CLOCK_MONOTONIC`; 0 once requests are answered again.
    away_since_ns: AtomicU64,
    last_error: Mutex<Option<String>>,
    is_lost: AtomicBool,
    loss: Mutex<Option<String>>,
}

impl Status {
    fn error(&self, why: &str) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Records that acknowledged writes may be lost, for the reason `why`: from now on no flush succeeds.
    fn lose(&self, volume: &str, why: String) {
        let mut loss = self.loss.lock().unwrap_or_else(PoisonError::into_inner);
        if loss.is_none() {
            tracing::error!(volume, %why, "written data may be lost; every further flush is answered with an error until the server restarts, or the volume is removed and created again");
            *loss = Some(why);
        }
        self.is_lost.store(true, Ordering::Release);
    }
}

/// A volume's remote export, with the driver thread for the connections to it. The thread ends when this value is dropped.
pub(crate) struct Remote {
    guaranteed: Guaranteed,
    uri: String,
    connections: usize,
    inbox: Arc<Mailbox<Event>>,
    status: Arc<Status>,
}

impl Remote {
    /// Connects to the export of `volume`, reads its properties, and starts the driver thread.
    ///
    /// # Errors
    /// If the remote server cannot be reached, has no such export, or the export cannot be served.
    pub(crate) fn open(name: &str, volume: &config::Volume, read_only: bool, faults: &Faults) -> Result<Self, Error> {
        let target = volume.uri.clone().ok_or_else(|| Error::Refused(format!("volume \"{name}\" needs a uri")))?;
        let fail = |why: String| Error::Remote { volume: name.to_owned(), uri: target.to_string(), why };
        let (dialed, connected) =
            connect(&target, volume.uri_tls.as_ref(), faults).map_err(|error| fail(error.to_string()))?;
        let mut guaranteed = Guaranteed::of(&connected).map_err(fail)?;
        if guaranteed.size < connected.size {
            tracing::warn!(
                volume = name,
                size = connected.size,
                served = guaranteed.size,
                "the remote export ends within a block; the volume ends at the last whole block"
            );
        }
        if read_only {
            guaranteed.flags |= TransmissionFlags::READ_ONLY;
        }
        let mut connections = volume.connections as usize;
        if connections > 1 && !connected.flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
            tracing::warn!(
                volume = name,
                "the remote server lacks CAN_MULTI_CONN (several coherent connections); the volume uses one connection"
            );
            connections = 1;
        }
        let system = |cause: rustix::io::Errno| Error::System { action: "watch a remote volume", cause: cause.into() };
        let inbox = Arc::new(Mailbox::with(faults.clone()).map_err(system)?);
        let status = Arc::<Status>::default();
        let uri = target.to_string();
        let settings = Settings {
            volume: name.to_owned(),
            target,
            tls: volume.uri_tls.clone(),
            connections,
            reconnect_timeout: volume.reconnect_timeout,
            keeps_unflushed: volume.unflushed == config::Unflushed::Kept,
            faults: faults.clone(),
        };
        let driver = Driver::new(settings, guaranteed, Arc::clone(&inbox), Arc::clone(&status), (dialed, &connected));
        let driver = driver.map_err(system)?;
        inbox.open();
        let spawned = std::thread::Builder::new().name("evenkeel-remote".into()).spawn(move || driver.run());
        spawned.map_err(|cause| Error::System { action: "start a thread for a remote volume", cause })?;
        Ok(Self { guaranteed, uri, connections, inbox, status })
    }

    /// The properties of the remote export on which clients rely.
    pub(crate) fn guaranteed(&self) -> &Guaranteed {
        &self.guaranteed
    }

    /// Passes an operation to the driver; its completion is reported to `reply_to` with `token`.
    pub(crate) fn submit(&self, io: FileIo, token: u32, reply_to: &Arc<Reports>) {
        self.inbox.report(Event::Job(io, ReplyTo::Worker(Arc::clone(reply_to), token)));
    }

    /// Makes all acknowledged writes durable, if there are any that are not. Blocks until the remote server has answered.
    ///
    /// # Errors
    /// If the flush fails, or acknowledged writes may be lost already.
    pub(crate) fn sync(&self) -> Result<(), String> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let (done, result) = mpsc::channel();
        self.inbox.report(Event::Job(FileIo::Sync { turn: 0 }, ReplyTo::Thread(done)));
        match result.recv() {
            Ok(0) => Ok(()),
            Ok(_) | Err(_) => {
                Err(self.loss().unwrap_or_else(|| "the remote server did not complete a flush; see its log".into()))
            }
        }
    }

    /// True if acknowledged writes may be lost.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.status.is_lost.load(Ordering::Acquire)
    }

    /// The reason why acknowledged writes may be lost; `None` if they are not.
    pub(crate) fn loss(&self) -> Option<String> {
        self.status.loss.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if there is no connection to the remote server at present.
    pub(crate) fn is_away(&self) -> bool {
        self.status.connections.load(Ordering::Relaxed) == 0
    }

    /// URI of the remote export.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// The volume's state for the API.
    pub(crate) fn state(&self) -> RemoteState {
        let status = &self.status;
        let number = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let connections = status.connections.load(Ordering::Relaxed);
        let away_since = Some(number(&status.away_since_ns)).filter(|&since| since > 0 && connections == 0);
        RemoteState {
            uri: self.uri.clone(),
            connected: connections > 0,
            connections: connections.into(),
            connections_wanted: self.connections as u64,
            reconnects_total: number(&status.reconnects),
            retransmits_total: number(&status.resent),
            in_flight_requests: number(&status.in_flight),
            waiting_requests: number(&status.waiting),
            away_ms: away_since.map(|since| clock::now().as_nanos().saturating_sub(since) / 1_000_000),
            unflushed: status.unflushed.load(Ordering::Relaxed),
            last_error: status.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.inbox.post(Event::Stop);
    }
}

/// Connects to the export and negotiates it; blocks as [`dial::connect`] does. The files for TLS are read each time, so that a
/// new connection uses renewed certificates.
fn connect(target: &Target, tls: Option<&EtcdTls>, faults: &Faults) -> Result<(Dialed, Connected), DialError> {
    let files = tls.filter(|_| target.tls.is_some());
    let tls = files.map(|files| client_of("uri_tls", files)).transpose().map_err(DialError::Files)?;
    faults.check(Call::Connect).map_err(|errno| DialError::Connect(errno.into()))?;
    dial::connect(target, tls.as_ref(), Framing::Extended, true)
}

/// Takes over a connection; a peer that acknowledges nothing for the reconnect timeout counts as gone.
fn transport(Dialed { socket: fd, tls }: Dialed, settings: &Settings) -> Transport {
    let transport = match settings.target.address {
        Address::Tcp(..) => {
            prepare(fd.as_fd(), settings.reconnect_timeout.into());
            Transport::tcp(fd)
        }
        Address::Unix(_) => Transport::unix(fd),
    };
    transport.with(settings.faults.clone()).under(tls)
}

/// Collects reports to workers, so that all reports to a worker take one lock and one wake-up.
#[derive(Default)]
struct Outbox(Vec<(Arc<Reports>, Vec<Report>)>);

impl Outbox {
    fn put(&mut self, to: ReplyTo, result: IoResult) {
        let (mailbox, token) = match to {
            ReplyTo::Worker(mailbox, token) => (mailbox, token),
            ReplyTo::Thread(waiter) => {
                let code = if let IoResult::Code(code) = result { code } else { 0 };
                // The thread that asked may have given up.
                let _ = waiter.send(code);
                return;
            }
        };
        let message = Report::Done(token, result);
        match self.0.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &mailbox)) {
            Some((_, messages)) => messages.push(message),
            None => self.0.push((mailbox, vec![message])),
        }
    }

    fn post(&mut self) {
        for (mailbox, messages) in &mut self.0 {
            if !messages.is_empty() {
                mailbox.post_all(messages);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_a_server_prefers_are_ones_that_it_takes() {
        let preferred = |min_block, preferred_block, max_payload| {
            let connected = Connected {
                size: 1 << 30,
                flags: TransmissionFlags::HAS_FLAGS,
                min_block,
                preferred_block,
                max_payload,
                framing: Framing::Simple,
                context: None,
                name: None,
                description: None,
            };
            Guaranteed::of(&connected).map(|guaranteed| (guaranteed.preferred_block, guaranteed.max_payload))
        };
        assert_eq!(preferred(1, 4096, 1 << 20), Ok((4096, 1 << 20)));
        assert_eq!(preferred(1, 1, 1 << 20), Ok((PORTABLE_MIN_BLOCK, 1 << 20)));
        assert_eq!(preferred(4096, 512, 1 << 20), Ok((4096, 1 << 20)));
        // What it prefers may be more than it takes at once.
        assert_eq!(preferred(512, 1 << 22, 1 << 20), Ok((1 << 20, 1 << 20)));
    }
}
