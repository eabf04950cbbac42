//! The driver thread of a remote volume: passes jobs to connections and results to workers, and reconnects.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::client::Connected;
use evenkeel_nbd::wire::{Errno, TransmissionFlags};
use evenkeel_net::dial::{DialError, Dialed};
use rustix::event::{Timespec, epoll};

use super::link::{Answer, Broken, DEPTH, Flight, Link, SCRATCH};
use super::{Guaranteed, Job, Outbox, ReplyTo, Settings, Status, connect, transport};
use crate::backend::operation::{Extent, FileIo, IoResult};
use crate::clock;
use crate::failures::Failures;
use crate::faults::Call;
use crate::mailbox::Mailbox;
use crate::prompt;
use crate::settle::AbortOnPanic;

/// Pause before the second attempt to connect; each further pause is twice as long as the one before.
const SHORTEST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause between two attempts to connect.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// Longest wait for events: a message whose wake-up has failed is late by no more than this.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Epoll event data of the inbox; the event data of a connection is its serial number and the index of its place.
const INBOX_EVENT: u64 = u64::MAX;
/// Largest number of events taken with one system call: enough for all connections and the inbox.
const EVENTS: usize = 65;

/// Messages to the driver.
pub(super) enum Event {
    /// Carry out an operation, and report its completion to the receiver.
    Job(FileIo, ReplyTo),
    /// The result of an attempt to connect, for the place with this index.
    Dialed(usize, Result<(Dialed, Connected), DialError>),
    /// The volume has been dropped: end the thread, because no more jobs come.
    Stop,
}

/// A place for one of the connections wanted.
#[derive(Default)]
struct Place {
    link: Option<Link>,
    /// True once the place has had a connection, so that the next one counts as a reconnection.
    was_used: bool,
}

/// Flushes of the volume. They run in rounds, one at a time, each with a flush on every connection that has unflushed writes.
/// Flushes asked for during a round share the next round.
#[derive(Default)]
struct Flushes {
    waiting: Vec<ReplyTo>,
    round: Option<Round>,
    last_id: u64,
}

struct Round {
    id: u64,
    waiters: Vec<ReplyTo>,
    /// Number of connections that have not answered the round's flush.
    pending: usize,
    /// Value of [`Driver::broken`] when the round began: the round also covers writes acknowledged on these lost connections.
    covers: u64,
}

/// The state of the driver thread.
pub(super) struct Driver {
    settings: Settings,
    guaranteed: Guaranteed,
    inbox: Arc<Mailbox<Event>>,
    status: Arc<Status>,
    epoll: OwnedFd,
    places: Vec<Place>,
    serial: u32,
    /// Jobs to be sent, in order of arrival.
    waiting: VecDeque<Job>,
    order: u64,
    flushes: Flushes,
    /// Number of connections that were lost with unflushed acknowledged writes, if the server is trusted to keep such writes.
    broken: u64,
    /// Number of the connections in `broken` that a later round of flushes has covered.
    covered: u64,
    is_dialing: bool,
    dial_at: Instant,
    backoff: Duration,
    /// Time at which the last of all connections was lost; `None` once a request is answered again, or no request waits.
    away_since: Option<Instant>,
    /// True if the server has been unreachable for too long, so that new requests fail at once.
    has_given_up: bool,
    /// The latest error of connecting that was logged, so that the log does not repeat it.
    complained: String,
    /// Bounds how often connections that are lost and made again are logged: a server can end ten in a second.
    logged: Failures,
    scratch: Vec<u8>,
    outbox: Outbox,
    has_stopped: bool,
}

impl Driver {
    /// A driver with its first connection.
    pub(super) fn new(
        settings: Settings,
        guaranteed: Guaranteed,
        inbox: Arc<Mailbox<Event>>,
        status: Arc<Status>,
        (dialed, connected): (Dialed, &Connected),
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inbox.event(), epoll::EventData::new_u64(INBOX_EVENT), epoll::EventFlags::IN)?;
        let places = std::iter::repeat_with(Place::default).take(settings.connections).collect();
        let mut driver = Self {
            settings,
            guaranteed,
            inbox,
            status,
            epoll,
            places,
            serial: 0,
            waiting: VecDeque::new(),
            order: 0,
            flushes: Flushes::default(),
            broken: 0,
            covered: 0,
            is_dialing: false,
            dial_at: Instant::ZERO,
            backoff: Duration::ZERO,
            away_since: None,
            has_given_up: false,
            complained: String::new(),
            logged: Failures::default(),
            scratch: vec![0; SCRATCH],
            outbox: Outbox::default(),
            has_stopped: false,
        };
        driver.connected(0, dialed, connected)?;
        Ok(driver)
    }

    /// Body of the driver thread: drives the connections until [`Event::Stop`].
    pub(super) fn run(mut self) {
        let alive = AbortOnPanic;
        let mut is_prompt = false;
        let mut events = Vec::with_capacity(EVENTS);
        let mut inbox = Vec::new();
        while !self.has_stopped {
            if is_prompt != prompt::is_wanted() {
                is_prompt = !is_prompt;
                prompt::be_prompt(is_prompt);
            }
            self.wait(&mut events);
            if events.is_empty() {
                self.on_inbox(&mut inbox);
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    INBOX_EVENT => self.on_inbox(&mut inbox),
                    data => self.on_link((data as u32) as usize, (data >> 32) as u32, event.flags),
                }
            }
            self.receive_held();
            let now = clock::now();
            self.give_up_if_away(now);
            self.dial_if_due(now);
            self.hand_out();
            self.send();
            // First: a client that gets an answer and then reads the state sees what led to it.
            self.publish();
            self.outbox.post();
        }
        for place in &mut self.places {
            if let Some(link) = &mut place.link {
                link.disconnect();
            }
        }
        std::mem::forget(alive);
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) {
        let now = clock::now();
        let mut until = now + LONGEST_WAIT;
        if !self.is_dialing && self.vacancy().is_some() {
            until = until.min(self.dial_at);
        }
        if let Some(since) = self.away_since.filter(|_| !self.has_given_up && !self.is_connected()) {
            until = until.min(since + self.settings.reconnect_timeout);
        }
        if self.places.iter().filter_map(|place| place.link.as_ref()).any(Link::has_received) {
            until = now;
        }
        let nanos = until.since(now).as_nanos();
        let timeout = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
        let room = rustix::buffer::spare_capacity(events);
        let waited =
            self.settings.faults.check(Call::Wait).and_then(|()| epoll::wait(&self.epoll, room, Some(&timeout)));
        if let Err(error) = waited
            && error != rustix::io::Errno::INTR
        {
            self.cannot_wait(error);
            // Nothing sensible is left to do, but spinning at full speed would make it worse.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Logs that waiting for events has failed, unless that was logged a moment ago.
    #[cold]
    fn cannot_wait(&mut self, error: rustix::io::Errno) {
        if let Some(not_logged) = self.logged.count("wait", error.raw_os_error(), clock::now()) {
            tracing::error!(volume = self.settings.volume, %error, not_logged, "cannot wait for answers of the remote server (epoll); the volume tries again every 100 ms");
        }
    }

    fn is_connected(&self) -> bool {
        self.places.iter().any(|place| place.link.is_some())
    }

    /// True if writes acknowledged on lost connections have not been covered by a round of flushes.
    fn is_carried(&self) -> bool {
        self.broken > self.covered
    }

    /// Index of a place without a connection; `None` if all places have one.
    fn vacancy(&self) -> Option<usize> {
        self.places.iter().position(|place| place.link.is_none())
    }

    fn on_inbox(&mut self, inbox: &mut Vec<Event>) {
        self.inbox.take(inbox);
        for event in inbox.drain(..) {
            match event {
                Event::Job(FileIo::Sync { .. }, to) => self.ask_for_flush(to),
                Event::Job(io, to) => {
                    let order = self.order;
                    self.order += 1;
                    let job = Job { io, to, done: 0, order, lost_at: None };
                    if self.has_given_up {
                        self.answer(job.to, IoResult::Code(-libc::EIO));
                    } else {
                        self.waiting.push_back(job);
                    }
                }
                Event::Dialed(place, result) => self.dialed(place, result),
                Event::Stop => self.has_stopped = true,
            }
        }
    }

    fn answer(&mut self, to: ReplyTo, result: IoResult) {
        self.outbox.put(to, result);
    }

    fn ask_for_flush(&mut self, to: ReplyTo) {
        let nothing = || {
            let dirty = self.places.iter().filter_map(|place| place.link.as_ref()).any(Link::is_dirty);
            !dirty && !self.is_carried()
        };
        // A stop asks for no more than what is needed; without FLUSH there is nothing to ask for.
        let is_stop = matches!(to, ReplyTo::Thread(_));
        if self.status.is_lost.load(Ordering::Relaxed) || (self.has_given_up && !(is_stop && nothing())) {
            self.answer(to, IoResult::Code(-libc::EIO));
        } else if !self.guaranteed.has(TransmissionFlags::SEND_FLUSH) || (is_stop && nothing()) {
            self.answer(to, IoResult::Code(0));
        } else {
            self.flushes.waiting.push(to);
        }
    }

    /// Hands waiting jobs to the connections, and begins a round of flushes if one is due.
    fn hand_out(&mut self) {
        while let Some(job) = self.waiting.front() {
            let open = self.places.iter_mut().filter_map(|place| place.link.as_mut());
            let Some(link) = open.filter(|link| link.in_flight() < DEPTH).min_by_key(|link| link.in_flight()) else {
                break;
            };
            if let FileIo::Extents { len, .. } = job.io
                && !link.has_extents()
            {
                // It does not tell: all of it may be data.
                let extents = vec![Extent { len, hole: false }];
                if let Some(job) = self.waiting.pop_front() {
                    self.answer(job.to, IoResult::Extents(extents));
                }
                continue;
            }
            if let Some(job) = self.waiting.pop_front() {
                link.queue(job, &self.guaranteed);
            }
        }
        self.begin_round();
    }

    /// Begins a round of flushes if a flush waits, no round is running, and there is a connection.
    fn begin_round(&mut self) {
        if self.flushes.round.is_some() || self.flushes.waiting.is_empty() || !self.is_connected() {
            return;
        }
        self.flushes.last_id += 1;
        let (id, mut pending) = (self.flushes.last_id, 0);
        for link in self.places.iter_mut().filter_map(|place| place.link.as_mut()).filter(|link| link.is_dirty()) {
            link.queue_flush(id);
            pending += 1;
        }
        if pending == 0 {
            // Something else than we may have written.
            let links = self.places.iter_mut().filter_map(|place| place.link.as_mut());
            if let Some(link) = links.min_by_key(|link| link.in_flight()) {
                link.queue_flush(id);
                pending = 1;
            }
        }
        let waiters = std::mem::take(&mut self.flushes.waiting);
        self.flushes.round = Some(Round { id, waiters, pending, covers: self.broken });
    }

    fn send(&mut self) {
        for index in 0..self.places.len() {
            let Some(link) = &mut self.places[index].link else { continue };
            let was_blocked = link.is_blocked;
            match link.send() {
                Ok(()) if link.is_blocked != was_blocked => self.watch(index),
                Ok(()) => {}
                Err(error) => self.lose(index, &Broken::Socket(error)),
            }
        }
    }

    /// Updates the epoll events of a connection: it is watched for room to send only while its socket is full.
    fn watch(&self, index: usize) {
        let Some(link) = &self.places[index].link else { return };
        let room = if link.is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(u64::from(link.serial) << 32 | index as u64);
        let _ = epoll::modify(&self.epoll, link.fd(), data, epoll::EventFlags::IN | room);
    }

    /// Reads the connections whose TLS sessions hold received data, of which epoll reports no event.
    fn receive_held(&mut self) {
        for index in 0..self.places.len() {
            let link = self.places[index].link.as_ref().filter(|link| link.has_received());
            let serial = link.map(|link| link.serial);
            if let Some(serial) = serial {
                self.on_link(index, serial, epoll::EventFlags::IN);
            }
        }
    }

    fn on_link(&mut self, index: usize, serial: u32, flags: epoll::EventFlags) {
        // Reported in one batch with what lost it; its place may have a new user by now.
        let place = self.places.get_mut(index).and_then(|place| place.link.as_mut());
        let Some(link) = place.filter(|link| link.serial == serial) else { return };
        // Room is used at the end of the round.
        if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            return;
        }
        let mut answers = Vec::new();
        let received = link.receive(&mut self.scratch, &mut answers);
        let mut broken = received.err();
        if !answers.is_empty() && link.has_answered {
            self.away_since = None;
        }
        for answer in answers {
            if self.answered(answer) {
                broken.get_or_insert(Broken::ShuttingDown);
            }
        }
        if let Some(broken) = broken {
            self.lose(index, &broken);
        }
    }

    /// Handles the reply to a request; true if the server has answered that it is shutting down.
    fn answered(&mut self, answer: Answer) -> bool {
        let Answer { flight, length, result } = answer;
        let is_ending = result.as_ref().is_err_and(|&errno| errno == Errno::Shutdown);
        match flight {
            Flight::Flush { .. } if is_ending => self.abort_round(),
            Flight::Flush { round, .. } => self.flushed(round, result.err()),
            Flight::Job(job) if is_ending => self.requeue(job),
            Flight::Job(job) => self.job_answered(job, length, result),
        }
        is_ending
    }

    fn job_answered(&mut self, mut job: Job, length: u64, result: Result<Vec<Extent>, Errno>) {
        let result = match (result, job.io) {
            (Ok(_), FileIo::Read { len, .. } | FileIo::Write { len, .. }) => IoResult::Code(len as i32),
            (Ok(extents), FileIo::Extents { .. }) => IoResult::Extents(extents),
            (Ok(_), FileIo::Trim { len, .. } | FileIo::Zero { len, .. } | FileIo::Cache { len, .. }) => {
                job.done += length;
                if job.done < len {
                    self.waiting.push_front(job);
                    return;
                }
                IoResult::Code(0)
            }
            (Ok(_), FileIo::Sync { .. }) => IoResult::Code(0),
            (Err(errno), io) => {
                // What makes it durable may have failed, and with it the server's one report on what others wrote.
                if errno == Errno::Io && matches!(io, FileIo::Write { durable: true, .. }) {
                    let uri = &self.settings.target;
                    self.lost(format!("the remote server {uri} failed a durable (FUA) write: {errno}"));
                }
                let fast = matches!(io, FileIo::Zero { may_write, .. } if self.guaranteed.tries_fast(may_write));
                IoResult::Code(-code_of(errno, fast))
            }
        };
        self.answer(job.to, result);
    }

    /// Handles the reply of one connection to the flush of the round `id`; `error` is the server's error.
    fn flushed(&mut self, id: u64, error: Option<Errno>) {
        if let Some(errno) = error {
            let uri = &self.settings.target;
            self.lost(format!("the remote server {uri} answered a flush with an error: {errno}"));
        }
        let Some(round) = self.flushes.round.as_mut().filter(|round| round.id == id) else { return };
        round.pending = round.pending.saturating_sub(1);
        if round.pending > 0 && error.is_none() {
            return;
        }
        if error.is_none() {
            self.covered = self.covered.max(round.covers);
        }
        let code = if self.status.is_lost.load(Ordering::Relaxed) { -libc::EIO } else { 0 };
        for waiter in self.flushes.round.take().into_iter().flat_map(|round| round.waiters) {
            self.answer(waiter, IoResult::Code(code));
        }
        if code < 0 {
            self.fail_flushes();
        }
    }

    /// Ends the running round of flushes, whose outcome is unknown; its waiters wait for the next round.
    fn abort_round(&mut self) {
        if let Some(round) = self.flushes.round.take() {
            self.flushes.waiting.splice(0..0, round.waiters);
        }
    }

    /// Answers all waiting flushes with an error, also those of the running round.
    fn fail_flushes(&mut self) {
        self.abort_round();
        for waiter in std::mem::take(&mut self.flushes.waiting) {
            self.answer(waiter, IoResult::Code(-libc::EIO));
        }
    }

    /// Records that acknowledged writes may be lost, for the reason `why`.
    fn lost(&mut self, why: String) {
        self.status.lose(&self.settings.volume, why);
    }

    /// Puts a job that was in flight on a lost connection back among the waiting jobs, in order of arrival; fails the job if
    /// it was first lost too long ago.
    fn requeue(&mut self, mut job: Job) {
        let now = clock::now();
        let since = *job.lost_at.get_or_insert(now);
        if now.since(since) >= self.settings.reconnect_timeout || self.has_given_up {
            self.answer(job.to, IoResult::Code(-libc::EIO));
            return;
        }
        self.status.resent.fetch_add(1, Ordering::Relaxed);
        let at = self.waiting.partition_point(|other| other.order < job.order);
        self.waiting.insert(at, job);
    }

    /// Removes the connection in the place `index`, which is of no further use, and puts its jobs back among the waiting
    /// ones.
    fn lose(&mut self, index: usize, why: &Broken) {
        let Some(link) = self.places[index].link.take() else { return };
        let (volume, uri) = (&self.settings.volume, &self.settings.target);
        let why = why.to_string();
        if let Some(not_logged) = self.logged.count("loss", 0, clock::now()) {
            let in_flight = link.in_flight();
            tracing::warn!(volume, %uri, %why, in_flight, not_logged, "a connection to the remote server is lost; its requests in flight are sent again over another connection");
        }
        self.status.error(&why);
        if link.is_dirty() {
            if self.settings.keeps_unflushed {
                self.broken += 1;
            } else {
                self.lost(format!("a connection to {uri} broke ({why}) with writes that were not flushed"));
            }
        }
        let now = clock::now();
        // One that did well for a while is missed at once; with one that was no use there is no hurry.
        self.backoff = match (link.has_answered, now.since(link.since) >= LONGEST_BACKOFF) {
            (true, true) => Duration::ZERO,
            (true, false) => SHORTEST_BACKOFF,
            (false, _) => (self.backoff + self.backoff).clamp(SHORTEST_BACKOFF, LONGEST_BACKOFF),
        };
        self.dial_at = now + self.backoff;
        for flight in link.into_flights() {
            match flight {
                Flight::Job(job) => self.requeue(job),
                Flight::Flush { .. } => self.abort_round(),
            }
        }
        if self.status.is_lost.load(Ordering::Relaxed) {
            self.fail_flushes();
        }
        if !self.is_connected() {
            self.away_since.get_or_insert(now);
        }
    }

    /// Fails all waiting jobs and flushes once the server has been unreachable for the configured time.
    fn give_up_if_away(&mut self, now: Instant) {
        let timeout = self.settings.reconnect_timeout;
        let too_long = self.away_since.is_some_and(|since| now.since(since) >= timeout);
        if !too_long || self.is_connected() || self.has_given_up {
            return;
        }
        self.has_given_up = true;
        if let Some(not_logged) = self.logged.count("outage", 0, now) {
            let (volume, uri) = (&self.settings.volume, &self.settings.target);
            let waiting = self.waiting.len() + self.flushes.waiting.len();
            tracing::error!(
                volume, %uri, waiting, seconds = timeout.as_secs_f64(), not_logged,
                "the remote server has been unreachable for the volume's reconnect_timeout: queued requests fail, and new ones fail at once, until that server answers; start it, or raise reconnect_timeout"
            );
        }
        for job in std::mem::take(&mut self.waiting) {
            self.answer(job.to, IoResult::Code(-libc::EIO));
        }
        self.fail_flushes();
    }

    fn dial_if_due(&mut self, now: Instant) {
        let Some(place) = self.vacancy().filter(|_| !self.is_dialing && now >= self.dial_at) else { return };
        let (settings, inbox) = (self.settings.clone(), Arc::clone(&self.inbox));
        let dial = move || {
            let made = connect(&settings.target, settings.tls.as_ref(), &settings.faults);
            // Without a driver the socket closes here.
            let _ = inbox.post(Event::Dialed(place, made));
        };
        let spawn = |()| std::thread::Builder::new().name("evenkeel-dial".into()).spawn(dial);
        match self.settings.faults.check(Call::Clone).map_err(Into::into).and_then(spawn) {
            Ok(_) => self.is_dialing = true,
            Err(error) => self.could_not_connect(&format!("cannot start a thread: {error}")),
        }
    }

    fn dialed(&mut self, place: usize, result: Result<(Dialed, Connected), DialError>) {
        self.is_dialing = false;
        let (dialed, connected) = match result {
            Ok(made) => made,
            Err(error) => return self.could_not_connect(&error.to_string()),
        };
        if let Err(why) = self.guaranteed.fits(&connected, self.settings.connections) {
            return self.could_not_connect(&why);
        }
        if connected.size > self.guaranteed.size + u64::from(self.guaranteed.min_block)
            && self.logged.count("growth", 0, clock::now()).is_some()
        {
            tracing::info!(
                volume = self.settings.volume,
                size = connected.size,
                served = self.guaranteed.size,
                "the remote export has grown; to serve all of it, restart the server, or remove the volume and create it again"
            );
        }
        let again = self.places[place].was_used;
        if let Err(error) = self.connected(place, dialed, &connected) {
            return self.could_not_connect(&error.to_string());
        }
        if again {
            self.status.reconnects.fetch_add(1, Ordering::Relaxed);
            if let Some(not_logged) = self.logged.count("return", 0, clock::now()) {
                let (volume, uri) = (&self.settings.volume, &self.settings.target);
                let waiting = self.waiting.len();
                tracing::info!(volume, %uri, waiting, not_logged, "connected to the remote server again; waiting requests are sent");
            }
        }
    }

    fn could_not_connect(&mut self, why: &str) {
        self.status.error(why);
        self.backoff = (self.backoff + self.backoff).clamp(SHORTEST_BACKOFF, LONGEST_BACKOFF);
        self.dial_at = clock::now() + self.backoff;
        if self.complained != why
            && let Some(not_logged) = self.logged.count("attempt", 0, clock::now())
        {
            let (volume, uri) = (&self.settings.volume, &self.settings.target);
            tracing::warn!(volume, %uri, why, not_logged, "cannot connect to the remote server; this server tries again, at intervals of up to 5 s");
            self.complained = why.to_owned();
        }
    }

    /// Puts a new connection into the place `index` and watches its socket.
    fn connected(&mut self, index: usize, dialed: Dialed, connected: &Connected) -> rustix::io::Result<()> {
        self.serial = self.serial.wrapping_add(1);
        // The event of the inbox is never mistaken for one of a connection: no place has that number.
        let transport = transport(dialed, &self.settings);
        let link = Link::new(transport, connected, self.serial);
        let data = epoll::EventData::new_u64(u64::from(link.serial) << 32 | index as u64);
        self.settings.faults.check(Call::Watch)?;
        epoll::add(&self.epoll, link.fd(), data, epoll::EventFlags::IN)?;
        self.places[index] = Place { link: Some(link), was_used: true };
        self.has_given_up = false;
        self.complained.clear();
        if self.waiting.is_empty() && self.flushes.waiting.is_empty() {
            // Nothing is there to prove that it works; what comes is new.
            self.away_since = None;
        }
        self.publish();
        Ok(())
    }

    /// Copies the driver's state to [`Status`], for other threads.
    fn publish(&self) {
        let status = &self.status;
        let links = || self.places.iter().filter_map(|place| place.link.as_ref());
        let set = |figure: &std::sync::atomic::AtomicU64, to: u64| figure.store(to, Ordering::Relaxed);
        status.connections.store(links().count() as u32, Ordering::Relaxed);
        set(&status.in_flight, links().map(|link| link.in_flight() as u64).sum());
        set(&status.waiting, (self.waiting.len() + self.flushes.waiting.len()) as u64);
        set(&status.away_since_ns, self.away_since.map_or(0, Instant::as_nanos));
        status.unflushed.store(self.is_carried() || links().any(Link::is_dirty), Ordering::Relaxed);
    }
}

/// The errno for an error of the remote server. Errors without a counterpart become EIO; so does "not supported", unless the
/// request was a fast zeroing (`fast`).
fn code_of(errno: Errno, fast: bool) -> i32 {
    match errno {
        Errno::Perm => libc::EPERM,
        Errno::NoMem => libc::ENOMEM,
        Errno::NoSpace => libc::ENOSPC,
        Errno::NotSupported if fast => libc::EOPNOTSUPP,
        Errno::NotSupported | Errno::Io | Errno::Invalid | Errno::Overflow | Errno::Shutdown => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use evenkeel_nbd::wire::Framing;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Level, Metadata, Subscriber};

    use super::*;
    use crate::faults::Faults;

    thread_local! {
        static LINES: Cell<u32> = const { Cell::new(0) };
    }

    /// Counts the log lines of level INFO and above that the calling thread writes.
    struct Log;

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            LINES.set(LINES.get() + 1);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// An export of this size, as a connection to it finds it.
    fn export(size: u64) -> Connected {
        Connected {
            size,
            flags: TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH,
            min_block: 1,
            preferred_block: 4096,
            max_payload: 1 << 20,
            framing: Framing::Simple,
            context: None,
            name: None,
            description: None,
        }
    }

    /// A connection to a server, and the server's end of it.
    fn dialed() -> (Dialed, UnixStream) {
        let (ours, server) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("settable");
        (Dialed { socket: ours.into(), tls: None }, server)
    }

    /// A driver of one connection, and the server's end of that.
    fn driver() -> (Driver, UnixStream) {
        let settings = Settings {
            volume: "test".into(),
            target: "nbd+unix:///disk?socket=/none".parse().expect("an address"),
            tls: None,
            connections: 1,
            reconnect_timeout: Duration::from_secs(30),
            keeps_unflushed: true,
            faults: Faults::NONE,
        };
        let inbox = Arc::new(Mailbox::new().expect("a mailbox"));
        let connected = export(1 << 30);
        let guaranteed = Guaranteed::of(&connected).expect("usable");
        let (dialed, server) = dialed();
        let driver = Driver::new(settings, guaranteed, inbox, Arc::default(), (dialed, &connected));
        (driver.expect("a driver"), server)
    }

    #[test]
    fn a_server_that_ends_every_connection_does_not_fill_the_log() {
        let (mut driver, _server) = driver();
        LINES.set(0);
        tracing::subscriber::with_default(Log, || {
            for n in 0..100 {
                driver.lose(0, &Broken::Closed);
                driver.give_up_if_away(clock::now() + driver.settings.reconnect_timeout);
                assert!(driver.has_given_up);
                driver.could_not_connect(&format!("refusal {n}"));
                driver.dialed(0, Ok((dialed().0, export(2 << 30))));
                assert!(driver.is_connected());
            }
        });
        assert_eq!(LINES.get(), 5, "a loss, an outage, a refusal, the larger size, and a return");
        let state = &driver.status;
        assert_eq!(state.reconnects.load(Ordering::Relaxed), 100, "all are counted");
    }

    #[test]
    fn waits_that_fail_ten_times_a_second_do_not_fill_the_log() {
        let (mut driver, _server) = driver();
        LINES.set(0);
        tracing::subscriber::with_default(Log, || (0..100).for_each(|_| driver.cannot_wait(rustix::io::Errno::BADF)));
        assert_eq!(LINES.get(), 1);
    }

    #[test]
    fn what_breaks_during_a_round_of_flushes_is_left_for_the_next() {
        let (mut driver, _server) = driver();
        let (to, result) = mpsc::channel();
        let mut flush = |breaks, error| {
            driver.flushes.waiting.push(ReplyTo::Thread(to.clone()));
            driver.begin_round();
            driver.broken += breaks;
            driver.flushed(driver.flushes.last_id, error);
            (result.try_recv().ok(), driver.is_carried())
        };
        assert_eq!(flush(1, None), (Some(0), true), "it broke after the flush was sent");
        assert_eq!(flush(0, None), (Some(0), false));
        assert_eq!(flush(1, None), (Some(0), true));
        assert_eq!(flush(1, None), (Some(0), true), "one that the round covers, and one that it does not");
        assert_eq!(flush(0, Some(Errno::Io)), (Some(-libc::EIO), true));
    }
}
