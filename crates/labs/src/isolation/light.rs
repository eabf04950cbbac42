//! The light client: paced small reads on one connection, and a new connection every 250 ms.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::places;
use crate::base::client::{Client, Command};

/// The light client's reservation and also its request rate, in requests per second.
pub(super) const IOPS: u64 = 1_000;
/// Time from one due request of the light client to the next.
const EVERY: Duration = Duration::from_nanos(1_000_000_000 / IOPS);
/// Export name of the light client's volume.
pub(super) const EXPORT: &str = "light";
/// Size of the light client's volume, in bytes.
pub(super) const VOLUME_BYTES: u64 = 64 << 20;
/// Size of a request, in bytes.
const BLOCK: usize = 4_096;
/// The most requests in flight, as many as the server accepts on one connection. A request that is due while so many are in
/// flight waits in the client; its latency counts from the instant at which it was due.
const IN_FLIGHT: u64 = 256;
/// The most requests of a light client, 120 s of load: many times the duration of an attack.
const MOST: usize = 120 * IOPS as usize;
/// Pause between two attempts to connect anew.
const ANEW_EVERY: Duration = Duration::from_millis(250);
/// Time after which an attempt to connect anew has failed.
pub(super) const ANEW_LIMIT: Duration = Duration::from_secs(10);

/// The running light client: one connection, with a thread that sends and a thread that receives.
pub(super) struct Light {
    begun: Instant,
    shared: Arc<Shared>,
    client: Client,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    received: AtomicU64,
    /// Per request: instant from which its latency counts, in ns since the start; 0: not yet sent.
    sent: Vec<AtomicU64>,
    /// Per request: instant of its reply, in ns since the start; 0: not yet answered.
    done: Vec<AtomicU64>,
    /// Reason why the connection ended, if the client did not end it.
    broken: Mutex<Option<String>>,
}

/// The light client's figures between two instants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    /// Number of replies in the window, divided by the number of requests that were due in it.
    pub(super) share: f64,
    /// p99 latency of the requests that were due in the window: from sending to the reply, or from the due time if the queue
    /// depth delayed their sending.
    pub(super) p99: Duration,
}

impl Light {
    /// Connects to the server and starts the load: only reads, or with `writes` a write as every second request.
    pub(super) fn start(address: &str, writes: bool) -> Result<Self> {
        let client = Client::connect(address, EXPORT, ANEW_LIMIT)?;
        let (mut sender, mut receiver) = (client.twin()?, client.twin()?);
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: (0..MOST).map(|_| AtomicU64::new(0)).collect(),
            done: (0..MOST).map(|_| AtomicU64::new(0)).collect(),
            broken: Mutex::new(None),
        });
        let begun = Instant::now();
        let sending = {
            let shared = Arc::clone(&shared);
            move || shared.send(&mut sender, begun, writes)
        };
        let receiving = {
            let shared = Arc::clone(&shared);
            move || shared.receive(&mut receiver, begun, writes)
        };
        let threads = vec![guarded(&shared, sending), guarded(&shared, receiving)];
        Ok(Self { begun, shared, client, threads })
    }

    /// Waits until all requests that were due by `until` are answered, but at most for `limit`.
    pub(super) fn settle(&self, until: Instant, limit: Duration) {
        let (due, deadline) = (index(until.duration_since(self.begun)), Instant::now() + limit);
        let settled = || self.shared.done[..due].iter().rev().all(|done| done.load(Ordering::Acquire) > 0);
        while !settled() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The figures from `begin` to `end`. A request without a reply counts as answered at the present instant.
    pub(super) fn window(&self, begin: Instant, end: Instant) -> Result<Window> {
        if let Some(broken) = &*self.shared.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            anyhow::bail!("the light client's connection ended: {broken}");
        }
        let at = |instant: Instant| instant.duration_since(self.begun);
        let times = |moments: &[AtomicU64]| -> Vec<Duration> {
            moments.iter().map(|moment| Duration::from_nanos(moment.load(Ordering::Acquire))).collect()
        };
        let (sent, done) = (times(&self.shared.sent), times(&self.shared.done));
        window(&sent, &done, at(begin), at(end), self.begun.elapsed()).context("nothing was due")
    }
}

impl Drop for Light {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.client.shut();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Starts a thread that does `work`. Its error becomes the client's [`Shared::broken`], unless the client is being stopped.
fn guarded(shared: &Arc<Shared>, work: impl FnOnce() -> Result<()> + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        places::keep_light();
        become_prompt();
        if let Err(error) = work()
            && !shared.stop.load(Ordering::Relaxed)
        {
            shared.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(format!("{error:#}"));
        }
    })
}

/// Gives the calling thread a processor as soon as it wakes: it stands for another machine, and what it waits for a processor
/// would count as the server's latency. Without the right to real-time scheduling the thread gets the shortest time slice
/// instead (from Linux 6.12 on), and may wait up to a tick, 4 ms, for a thread of the server that has one, too.
fn become_prompt() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the structure, which outlives the call; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const lowest) } == 0 {
        return;
    }
    // SAFETY: integers only, for which zero is a value: ordinary scheduling.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most as many bytes as it is given the size of, and reads as many as the structure says.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.sched_runtime = attributes.sched_runtime.min(100_000);
            // Without it the client is measured all the same.
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

impl Shared {
    fn send(&self, client: &mut Client, begun: Instant, writes: bool) -> Result<()> {
        let (mut sent, mut blocked) = (0, false);
        while sent < MOST as u64 && !self.stop.load(Ordering::Relaxed) {
            let now = begun.elapsed();
            let room = sent - self.received.load(Ordering::Acquire) < IN_FLIGHT;
            if room && EVERY * sent as u32 <= now {
                // A client that comes late for want of a processor says nothing about the server.
                let from = if blocked { EVERY * sent as u32 } else { now };
                self.sent[sent as usize].store(from.as_nanos() as u64, Ordering::Release);
                let block = (sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % (VOLUME_BYTES / BLOCK as u64);
                let (command, payload): (_, &[u8]) =
                    if is_write(sent, writes) { (Command::Write, &[0x5a; BLOCK]) } else { (Command::Read, &[]) };
                client.send(command, false, sent, block * BLOCK as u64, BLOCK as u32, payload)?;
                sent += 1;
                blocked &= EVERY * sent as u32 <= now;
            } else {
                blocked |= !room;
                thread::sleep(if room { EVERY * sent as u32 - now } else { EVERY });
            }
        }
        Ok(())
    }

    fn receive(&self, client: &mut Client, begun: Instant, writes: bool) -> Result<()> {
        let mut data = [0; BLOCK];
        loop {
            let cookie = client.receive()?;
            if !is_write(cookie, writes) {
                client.data(&mut data)?;
            }
            let done = self.done.get(cookie as usize).context("a reply to a request that was not made")?;
            let before = done.swap(begun.elapsed().as_nanos() as u64, Ordering::Release);
            ensure!(before == 0, "request {cookie} was answered twice");
            self.received.fetch_add(1, Ordering::Release);
        }
    }
}

/// True if the request with this number is a write; `writes`: the client sends writes.
fn is_write(request: u64, writes: bool) -> bool {
    writes && request % 2 == 1
}

/// Number of the first request that is due at `at` or later; `at` is the time since the client's start.
fn index(at: Duration) -> usize {
    (at.as_nanos().div_ceil(EVERY.as_nanos()) as usize).min(MOST)
}

/// The figures from `begin` to `end`, from the times at which requests were sent and done (zero: not yet); `now` stands for
/// missing replies. `None` if no request was due. All times count from the client's start.
fn window(sent: &[Duration], done: &[Duration], begin: Duration, end: Duration, now: Duration) -> Option<Window> {
    let due = index(begin)..index(end);
    let wanted = due.len();
    let answered = done.iter().filter(|done| **done > begin && **done <= end).count();
    let mut latencies: Vec<Duration> = due
        .map(|request| {
            let from = if sent[request].is_zero() { EVERY * request as u32 } else { sent[request] };
            let to = if done[request].is_zero() { now } else { done[request] };
            to.saturating_sub(from)
        })
        .collect();
    latencies.sort_unstable();
    let p99 = *latencies.get((wanted * 99).div_ceil(100).checked_sub(1)?)?;
    Some(Window { share: answered as f64 / wanted as f64, p99 })
}

/// Makes attempts such as to connect, read and disconnect, every [`ANEW_EVERY`], until it is dropped.
pub(super) struct Anew {
    shared: Arc<(AtomicBool, Mutex<Attempts>)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Attempts {
    slowest: Duration,
    failed: Option<String>,
    made: u32,
    since: Option<Instant>,
}

impl Anew {
    /// Starts a thread that runs `attempt` again and again.
    pub(super) fn start(attempt: impl Fn() -> Result<()> + Send + 'static) -> Self {
        let shared = Arc::new((AtomicBool::new(false), Mutex::new(Attempts::default())));
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let lock = || shared.1.lock().unwrap_or_else(PoisonError::into_inner);
                while !shared.0.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    lock().since = Some(begun);
                    let outcome = attempt();
                    let mut attempts = lock();
                    (attempts.since, attempts.made) = (None, attempts.made + 1);
                    attempts.slowest = attempts.slowest.max(begun.elapsed());
                    if let Err(error) = outcome {
                        attempts.slowest = attempts.slowest.max(ANEW_LIMIT);
                        attempts.failed.get_or_insert(format!("{error:#}"));
                    }
                    drop(attempts);
                    thread::sleep(ANEW_EVERY);
                }
            })
        };
        Self { shared, thread: Some(thread) }
    }

    /// Ends the attempts. Returns the duration of the slowest one, and the reason of the first failure. A failed attempt counts
    /// as [`ANEW_LIMIT`] at least.
    pub(super) fn end(&self) -> (Duration, Option<String>) {
        self.shared.0.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + ANEW_LIMIT;
        loop {
            let attempts = self.shared.1.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(since) = attempts.since else { return (attempts.slowest, attempts.failed.clone()) };
            if Instant::now() > deadline {
                return (since.elapsed().max(ANEW_LIMIT), Some("no answer".into()));
            }
            drop(attempts);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Anew {
    fn drop(&mut self) {
        self.shared.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn latency_counts_to_the_answer_or_to_now() {
        // One request a millisecond, each answered half a millisecond later, but the last one of the window.
        let sent: Vec<Duration> = (0..400).map(|n| MS * n + MS / 4).collect();
        let mut done: Vec<Duration> = (0..400).map(|n| MS * n + MS / 2).collect();
        done[299] = Duration::ZERO;
        let all = window(&sent, &done, 100 * MS, 300 * MS, 900 * MS).unwrap();
        assert_eq!(all, Window { share: 199.0 / 200.0, p99: MS / 4 });
        let last = window(&sent, &done, 290 * MS, 300 * MS, 900 * MS).unwrap();
        assert_eq!(last.p99, 601 * MS - MS / 4);
        assert_eq!(window(&sent, &done, 300 * MS, 300 * MS, 900 * MS), None);
    }

    #[test]
    fn what_is_never_sent_is_late_since_it_was_due() {
        let never = vec![Duration::ZERO; 400];
        let stalled = window(&never, &never, 100 * MS, 300 * MS, 1_000 * MS).unwrap();
        assert_eq!(stalled, Window { share: 0.0, p99: 1_000 * MS - 102 * MS });
    }

    #[test]
    fn a_failed_attempt_took_as_long_as_it_may() {
        let anew = Anew::start(|| anyhow::bail!("refused"));
        while anew.shared.1.lock().unwrap().made == 0 {
            thread::sleep(MS);
        }
        let (slowest, failed) = anew.end();
        assert_eq!((slowest, failed.as_deref()), (ANEW_LIMIT, Some("refused")));
    }
}
