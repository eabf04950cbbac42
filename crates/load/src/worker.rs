//! A thread of a job, with its connections.
//!
//! ```text
//!       ┌────────────── due, room ──────────────┐
//!       ▼                                       │
//!  queue requests ─▶ one send ─▶ epoll ─▶ one receive ─▶ parse the batch, record with one clock reading
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender as Mailbox;
use std::time::Instant;

use evenkeel_control::{Duration, Instant as Moment};
use evenkeel_net::tls::Scratch;
use evenkeel_policy::figures::counted;
use evenkeel_server::Spin;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

use crate::connection::{Batch, Connection, Sender};
use crate::error::{At, Error};
use crate::job::Job;
use crate::journal::Journal;
use crate::measure::{INTERVAL_NS, Tally};
use crate::pace::Due;
use crate::region::Region;
use crate::stream::Op;

/// Size of the receive buffer, in bytes. A larger one gains no speed, and this one fits the processor's cache.
const RECEIVE_BUFFER: usize = 512 << 10;
/// The longest sleep, in nanoseconds, after which stop flag, timeouts and intervals are checked.
const LONGEST_WAIT_NS: u64 = 100_000_000;
/// Time after an interrupt for which answers are awaited, in nanoseconds.
const INTERRUPT_PATIENCE_NS: u64 = 1_000_000_000;
/// The epoll token of the timer; other tokens are indexes of connections.
const TIMER: u64 = u64::MAX;
/// Smallest size of the requests by which a region is filled or read back, in bytes; it is rounded down to whole grains.
const SWEEP_BLOCK: u64 = 128 << 10;

/// The phase of a worker's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The worker writes all its regions once.
    Fill,
    /// The worker sends the job's requests.
    Run,
    /// The worker reads back all blocks whose content is known.
    Check,
}

/// A message from a worker to the main thread.
pub(crate) enum Message {
    /// The counts of one whole second of the measured run.
    Second { job: usize, second: u32, tally: Tally },
    /// The worker has ended.
    Finished { job: usize, summary: Summary },
}

/// The result of a worker for its part of a job.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Reason for an early end; `None` if the worker ended as planned.
    pub(crate) failure: Option<String>,
    /// The first request that was answered with an error.
    pub(crate) first_error: Option<String>,
    /// Counts of the incomplete second at the end of the run.
    pub(crate) rest: Option<Tally>,
    /// Number of requests of an open loop that were due but had not been sent when the run ended.
    pub(crate) unsent: u64,
    /// Number of requests that had no answer when the run ended.
    pub(crate) unanswered: u64,
    /// Length of the measured run in nanoseconds: up to its planned end or the last answer, whichever is later.
    pub(crate) measured_ns: u64,
    /// CPU time of the worker's thread during the run including the warm-up, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Number of requests answered during the run, including the warm-up.
    pub(crate) answered: u64,
    /// Bytes of reads that were compared with the possible content of the volume.
    pub(crate) verified_bytes: u64,
}

/// State shared by all workers of a run and the main thread.
#[derive(Clone)]
pub(crate) struct Shared<'a> {
    pub(crate) job_index: usize,
    pub(crate) job: &'a Job,
    pub(crate) payload: &'a [u8],
    pub(crate) journal: Option<&'a Journal>,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) ready: &'a Barrier,
    /// True if the volume is only read back and checked against a journal.
    pub(crate) check_only: bool,
    pub(crate) mailbox: Mailbox<Message>,
}

/// A worker: a thread with its connections, and the regions that the connections use.
pub(crate) struct Worker<'a> {
    shared: Shared<'a>,
    connections: Vec<Connection>,
    regions: Vec<Region>,
    poll: OwnedFd,
    timer: OwnedFd,
    buffer: Vec<u8>,
    /// Scratch memory for TLS.
    room: Scratch,
    batch: Batch,
    spin: Spin,
    second: u32,
    summary: Summary,
}

impl<'a> Worker<'a> {
    /// A worker with connections, before its run.
    ///
    /// # Errors
    /// When the system provides no epoll set or timer.
    pub(crate) fn new(shared: Shared<'a>, connections: Vec<Connection>, regions: Vec<Region>) -> Result<Self, Error> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).at("cannot create an epoll set")?;
        for (index, connection) in connections.iter().enumerate() {
            epoll::add(&poll, &connection.socket, EventData::new_u64(index as u64), EventFlags::IN)?;
        }
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .at("cannot create a timer")?;
        epoll::add(&poll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let batch = Batch {
            tally: None,
            counted_from: shared.job.warmup_ns,
            records: shared.journal.is_some(),
            durable: Vec::new(),
            mismatch: None,
            error: None,
            last_answer: 0,
        };
        let spin = Spin::new(Duration::from_nanos(shared.job.busy_poll_ns));
        Ok(Self {
            shared,
            connections,
            regions,
            poll,
            timer,
            buffer: vec![0; RECEIVE_BUFFER],
            room: Scratch::default(),
            batch,
            spin,
            second: 0,
            summary: Summary::default(),
        })
    }

    /// Fills, runs and checks as the job requires, and sends the result to the mailbox.
    pub(crate) fn run(mut self) {
        // Each waits for all others, also for one that failed.
        // A check keeps what it is about.
        let fills = self.shared.job.fill && !self.shared.check_only;
        let filled = if fills { self.drive(Phase::Fill) } else { Ok(()) };
        self.shared.ready.wait();
        let result = filled.and_then(|()| self.run_and_check());
        let models = self.regions.iter().filter_map(|region| region.model.as_ref());
        self.summary.verified_bytes = models.map(|model| model.verified_bytes).sum();
        if let Err(error) = result {
            self.summary.failure = Some(error.in_full());
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        self.connections.iter_mut().for_each(|connection| connection.disconnect(&mut self.room));
        let message = Message::Finished { job: self.shared.job_index, summary: self.summary };
        // The receiver is gone only when the process is ending.
        let _ = self.shared.mailbox.send(message);
    }

    fn run_and_check(&mut self) -> Result<(), Error> {
        if !self.shared.check_only {
            let cpu = thread_cpu_ns();
            self.batch.tally = Some(Tally::default());
            let result = self.drive(Phase::Run);
            self.summary.rest = self.batch.tally.take();
            let first = self.batch.error.take();
            self.summary.first_error = first.map(|(op, offset, errno)| format!("{op} at offset {offset}: {errno}"));
            self.summary.cpu_ns = thread_cpu_ns().saturating_sub(cpu);
            result?;
        }
        if self.regions.iter().any(|region| region.model.is_some()) && !self.is_stopped() {
            self.drive(Phase::Check)?;
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Runs one phase to its end.
    fn drive(&mut self, phase: Phase) -> Result<(), Error> {
        let start = Instant::now();
        let clock = move || start.elapsed().as_nanos() as u64;
        let job = self.shared.job;
        // Large requests go fast, but must be multiples of the grain.
        let step = job.largest_block().max(SWEEP_BLOCK / job.grain() * job.grain());
        for region in &mut self.regions {
            match phase {
                Phase::Fill => region.start_sweep(Op::Write, step),
                Phase::Check => region.start_sweep(Op::Read, step),
                Phase::Run => {}
            }
        }
        self.batch.error = None;
        self.batch.last_answer = 0;
        let is_timed = phase == Phase::Run && self.connections.iter().any(|connection| connection.pace.is_timed());
        if is_timed {
            // Wake-ups for a rate must not be rounded to the usual 50 µs. It works without, only less exactly.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        }
        let end = match phase {
            Phase::Run => job.duration_ns.map_or(u64::MAX, |ns| job.warmup_ns + ns),
            Phase::Fill | Phase::Check => u64::MAX,
        };
        let mut run = Run { phase, end, interrupted: self.is_stopped().then_some(0) };
        let mut busy = false;
        for index in 0..self.connections.len() {
            busy |= self.serve(index, clock(), &run)?;
        }
        let result = self.drive_until_idle(busy, &mut run, is_timed, &clock);
        if phase == Phase::Run {
            // What ran out of requests ended with its last answer.
            let sent_to = run.interrupted.unwrap_or(if clock() < end { 0 } else { end });
            self.summary.measured_ns = sent_to.max(self.batch.last_answer).saturating_sub(job.warmup_ns);
            self.summary.unsent = self.unsent(sent_to);
            self.summary.unanswered = self.in_flight();
        }
        result
    }

    fn in_flight(&self) -> u64 {
        self.connections.iter().map(|connection| connection.slots.in_flight() as u64).sum()
    }

    fn unsent(&mut self, end: u64) -> u64 {
        let unsent = |connection: &mut Connection| {
            let due = connection.pace.skip_until(end);
            connection.left.map_or(due, |left| left.min(due))
        };
        self.connections.iter_mut().map(unsent).sum()
    }

    fn drive_until_idle(
        &mut self,
        mut busy: bool,
        run: &mut Run,
        is_timed: bool,
        clock: &impl Fn() -> u64,
    ) -> Result<(), Error> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut looked_at = 0;
        while busy {
            let now = clock();
            if is_timed {
                self.set_timer(now, run)?;
            }
            events.clear();
            self.wait(&mut events, now, clock)?;
            for event in &events {
                let token = event.data.u64();
                if token != TIMER {
                    self.receive(token as usize, event.flags, run, clock)?;
                }
            }
            let now = clock();
            if is_timed {
                for index in 0..self.connections.len() {
                    self.serve(index, now, run)?;
                }
            } else {
                for event in &events {
                    let token = event.data.u64();
                    if token != TIMER {
                        self.serve(token as usize, now, run)?;
                    }
                }
            }
            self.record_seconds(now, run.phase);
            // What follows costs a pass over all connections, so not after every batch of many.
            if self.connections.len() > 1 && now < looked_at + 1_000_000 {
                continue;
            }
            looked_at = now;
            if self.is_stopped() && run.interrupted.is_none() {
                run.interrupted = Some(now);
            }
            busy = self.is_busy(now, run);
            let waited = |since: u64| now.saturating_sub(since);
            if run.interrupted.is_some_and(|since| waited(since) > INTERRUPT_PATIENCE_NS) {
                return Ok(());
            }
            let timeout = self.shared.job.timeout_ns;
            if let Some(silent) = self
                .connections
                .iter()
                .find(|connection| connection.slots.in_flight() > 0 && waited(connection.heard) > timeout)
            {
                let oldest = silent.slots.oldest().map(|(op, offset)| format!("{op} at offset {offset}"));
                return Err(Error::Server(format!(
                    "the server has answered nothing on a connection with {} in flight for {:.1} s (the oldest: {}); \
                     look at its log, or raise --timeout",
                    counted(silent.slots.in_flight() as u64, "request"),
                    waited(silent.heard) as f64 / 1e9,
                    oldest.unwrap_or_default()
                )));
            }
        }
        Ok(())
    }

    /// Waits for answers: polls without sleeping while answers are expected soon, and sleeps after that.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, begun: u64, clock: &impl Fn() -> u64) -> Result<(), Error> {
        let until = begun + self.spin.window(Moment::from_nanos(begun)).as_nanos();
        let mut now = begun;
        while now < until {
            self.poll(events, 0)?;
            if !events.is_empty() {
                return Ok(());
            }
            // A server on the same processor goes first.
            rustix::thread::sched_yield();
            let before = std::mem::replace(&mut now, clock());
            if self.spin.is_crowded_out(Duration::from_nanos(now - before), Moment::from_nanos(now)) {
                break;
            }
        }
        self.poll(events, LONGEST_WAIT_NS)?;
        self.spin.slept(Duration::from_nanos(clock() - begun), !events.is_empty());
        Ok(())
    }

    fn poll(&self, events: &mut Vec<epoll::Event>, wait_ns: u64) -> Result<(), Error> {
        let wait = Timespec { tv_sec: 0, tv_nsec: wait_ns as i64 };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).at("cannot wait for the server"),
        }
    }

    /// True if requests are in flight or will be sent.
    fn is_busy(&self, now: u64, run: &Run) -> bool {
        if self.connections.iter().any(|connection| connection.slots.in_flight() > 0) {
            return true;
        }
        // Sweeps send whenever there is room, so nothing in flight is their end.
        run.phase == Phase::Run
            && run.interrupted.is_none()
            && now < run.end
            && self.connections.iter().any(|connection| connection.left != Some(0))
    }

    fn receive(&mut self, index: usize, flags: EventFlags, run: &Run, clock: &impl Fn() -> u64) -> Result<(), Error> {
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        let connection = &mut self.connections[index];
        let region = &mut self.regions[connection.region];
        let before = connection.slots.in_flight();
        let result = connection.receive((self.buffer.as_mut_slice(), &mut self.room), region, &mut self.batch, clock);
        if run.phase == Phase::Run {
            self.summary.answered += (before - connection.slots.in_flight()) as u64;
        }
        if let (Some(journal), false) = (self.shared.journal, self.batch.durable.is_empty()) {
            journal.append(&self.batch.durable).at("cannot write the journal")?;
            self.batch.durable.clear();
        }
        result?;
        if let Some(mismatch) = &self.batch.mismatch {
            return Err(Error::Server(format!("the content is wrong at {mismatch}")));
        }
        match (run.phase, self.batch.error) {
            (Phase::Fill | Phase::Check, Some((op, offset, errno))) => {
                let doing = if run.phase == Phase::Fill { "filling" } else { "reading back" };
                Err(Error::Server(format!("{doing} the volume failed: {op} at offset {offset}: {errno}")))
            }
            _ => Ok(()),
        }
    }

    /// Queues the requests that are due on a connection and sends them; true if requests are in flight or will be sent.
    fn serve(&mut self, index: usize, now: u64, run: &Run) -> Result<bool, Error> {
        let connection = &mut self.connections[index];
        let region = &mut self.regions[connection.region];
        let sender = Sender { payload: self.shared.payload, fua: self.shared.job.fua };
        while connection.has_room() && run.interrupted.is_none() {
            let (planned, since) = match run.phase {
                Phase::Fill | Phase::Check => match region.sweep() {
                    Some(planned) => (planned, now),
                    None => break,
                },
                Phase::Run => {
                    if connection.left == Some(0) {
                        break;
                    }
                    match connection.pace.due(now) {
                        Due::Now(since) if now < run.end => {
                            connection.pace.advance();
                            connection.left = connection.left.map(|left| left - 1);
                            (connection.stream.next(), since)
                        }
                        Due::Now(_) | Due::At(_) => break,
                    }
                }
            };
            connection.queue(planned, now, since, region, &sender);
        }
        let sent_all = connection.send(sender.payload, &mut self.room).at("the connection broke")?;
        if sent_all == connection.is_blocked {
            connection.is_blocked = !sent_all;
            let flags = if sent_all { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
            epoll::modify(&self.poll, connection.socket.as_fd(), EventData::new_u64(index as u64), flags)?;
        }
        Ok(connection.slots.in_flight() > 0 || (run.phase == Phase::Run && now < run.end && connection.left != Some(0)))
    }

    /// Sets the timer to the next request that is not due yet and has room in its queue depth.
    fn set_timer(&self, now: u64, run: &Run) -> Result<(), Error> {
        let due = self.connections.iter().filter(|connection| connection.has_room() && connection.left != Some(0));
        let next = due.map(|connection| match connection.pace.due(now) {
            Due::Now(_) => now,
            Due::At(at) => at,
        });
        let sends = now < run.end && run.interrupted.is_none();
        let next = if sends { next.min().unwrap_or(u64::MAX).min(run.end) } else { u64::MAX };
        // Zero would disarm the timer. Setting it also forgets that it has fired.
        let wait = next.saturating_sub(now).clamp(1, LONGEST_WAIT_NS);
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: 0, tv_nsec: wait as i64 };
        let setting = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).at("cannot set a timer")?;
        Ok(())
    }

    /// Reports each second of the measured run that has ended.
    fn record_seconds(&mut self, now: u64, phase: Phase) {
        if phase != Phase::Run {
            return;
        }
        let measured = now.saturating_sub(self.shared.job.warmup_ns);
        while measured >= (u64::from(self.second) + 1) * INTERVAL_NS {
            self.send_second();
        }
    }

    fn send_second(&mut self) {
        let tally = self.batch.tally.replace(Tally::default()).unwrap_or_default();
        let message = Message::Second { job: self.shared.job_index, second: self.second, tally };
        self.second += 1;
        // The receiver is gone only when the process is ending.
        let _ = self.shared.mailbox.send(message);
    }
}

/// State of a phase.
struct Run {
    phase: Phase,
    /// Instant at which sending stops, in ns since the start of the phase.
    end: u64,
    /// Instant at which the interrupt was noticed, in ns since the start of the phase; `None` without an interrupt.
    interrupted: Option<u64>,
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
