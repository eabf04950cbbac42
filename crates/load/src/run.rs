//! Runs jobs: connects, divides volumes into regions, starts workers, collects their counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use evenkeel_control::rng::SplitMix64;
use evenkeel_nbd::client::{Connected, Refusal};
use evenkeel_nbd::wire::{TransmissionFlags, reply};
use evenkeel_net::dial::{self, DialError, Dialed};
use evenkeel_net::tls::ClientConfig;

use crate::certificates::Certificates;
use crate::connection::Connection;
use crate::content::Content;
use crate::error::{At, Error, ensure};
use crate::job::Job;
use crate::journal::{Journal, Record};
use crate::measure::Tally;
use crate::model::{Holds, Model};
use crate::pace::Pace;
use crate::region::{Region, partition};
use crate::stream::{Range, Stream, connection_seed};
use crate::worker::{Message, Shared, Summary, Worker};

/// The most blocks whose content a run can check; their model takes 512 MiB of memory.
const MAX_GRAINS: u64 = 64 << 20;
/// Bytes by which the payload buffer is larger than the largest block, so that writes can start at different places in it.
const PAYLOAD_SLACK: u64 = 256 << 10;
/// Salt of the seed for arrivals, which makes the arrivals independent of the requests' kinds and offsets.
const ARRIVAL_SALT: u64 = 0x6172_7269_7661_6c73;

/// The counts of one second of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// Start of the second, in seconds since the start of the measured run.
    pub(crate) at_s: u32,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// The measurements of a job.
pub struct JobResult {
    pub(crate) job: Job,
    pub(crate) connected: Connected,
    pub(crate) total: Tally,
    /// Counts of the seconds that all threads of the job have reported.
    pub(crate) seconds: Vec<Second>,
    /// The combined summaries of all threads: the longest time, and the sums of other figures.
    pub(crate) summary: Summary,
    /// Counts of the seconds that not all threads have reported yet, each with the number of threads that have.
    open: BTreeMap<u32, (Tally, u32)>,
    /// Number of threads that have finished.
    finished: u32,
}

/// Options that do not belong to a job.
#[derive(Default)]
pub struct Extras<'a> {
    /// The journal to which durable writes are recorded.
    pub journal: Option<&'a Journal>,
    /// A journal against which the volume of the only job is checked; the job itself does not run.
    pub record: Option<&'a Record>,
}

/// Runs all jobs at the same time until they have ended, and returns their results. `watch` is called about four times
/// per second with the results so far. Setting `stop` ends all jobs early.
///
/// # Errors
/// Reasons that prevent the jobs from starting. Later failures are in the results.
pub fn run(
    jobs: &[Job],
    extras: &Extras<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&[JobResult]),
) -> Result<Vec<JobResult>, Error> {
    raise_descriptor_limit(jobs.iter().map(|job| u64::from(job.connections + 2 * job.threads)).sum());
    let payload = payload(jobs);
    let ready = Barrier::new(jobs.iter().map(|job| job.threads as usize).sum());
    let (mailbox, messages) = mpsc::channel();
    let mut results = Vec::new();
    let mut workers = Vec::new();
    for (job_index, job) in jobs.iter().enumerate() {
        let (connected, parts) = prepare(job, extras, stop).at_with(|| format!("job `{}`", job.name))?;
        for (connections, regions) in parts {
            let shared = Shared {
                job_index,
                job,
                payload: &payload,
                journal: extras.journal,
                stop,
                ready: &ready,
                check_only: extras.record.is_some(),
                mailbox: mailbox.clone(),
            };
            workers.push(Worker::new(shared, connections, regions)?);
        }
        results.push(JobResult::new(job.clone(), connected));
    }
    drop(mailbox);
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| worker.run());
        }
        loop {
            match messages.recv_timeout(Duration::from_millis(250)) {
                Ok(Message::Second { job, second, tally }) => results[job].add(second, &tally),
                Ok(Message::Finished { job, summary }) => results[job].finish(summary),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            watch(&results);
        }
    });
    Ok(results)
}

/// Raises the limit of open descriptors to `needed`, as far as the system permits. If that is not enough, connecting
/// fails later with its own error.
fn raise_descriptor_limit(needed: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A hundred for standard streams, files and what the libraries open.
    let wanted = limit.maximum.map_or(needed + 100, |most| most.min(needed + 100));
    if limit.current.is_some_and(|current| current < wanted) {
        // Not permitted: then the limit stays as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

/// The payload buffer for writes whose content is not checked: incompressible, and large enough for the largest block.
fn payload(jobs: &[Job]) -> Vec<u8> {
    let writes = jobs.iter().filter(|job| job.changes_data());
    let Some(largest) = writes.map(|job| job.largest_block().max(PAYLOAD_SLACK)).max() else { return Vec::new() };
    let mut rng = SplitMix64::new(jobs.first().map_or(0, |job| job.seed));
    (0..(largest + PAYLOAD_SLACK) / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

type Part = (Vec<Connection>, Vec<Region>);

/// The error, extended by the name of the most similar export if the export does not exist and the server lists its exports.
fn with_suggestion(error: DialError, job: &Job, tls: Option<&Arc<ClientConfig>>) -> Error {
    if let DialError::Refused(Refusal { code: reply::ERR_UNKNOWN, .. }) = &error
        && let Ok(names) = dial::list(&job.target, tls)
    {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return Error::Export(evenkeel_policy::unknown("export", &job.target.export, &names));
    }
    error.into()
}

/// Connects a job, and divides connections and volume among its threads.
fn prepare(job: &Job, extras: &Extras<'_>, stop: &AtomicBool) -> Result<(Connected, Vec<Part>), Error> {
    let tls = job.certificates.as_ref().map(Certificates::read).transpose()?;
    let mut sockets: Vec<(Dialed, Connected)> = Vec::new();
    for index in 0..job.connections {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let made = dial::connect(&job.target, tls.as_ref(), job.framing, false)
            .map_err(|error| with_suggestion(error, job, tls.as_ref()))
            .at_with(|| format!("connection {}: cannot use {}", index + 1, job.target))?;
        if let Some((_, first)) = sockets.first() {
            ensure!(Export, first.size == made.1.size, "the export changed its size meanwhile; run again");
        }
        sockets.push(made);
    }
    let connected = sockets[0].1.clone();
    let range = usable(job, &connected, extras)?;
    let keeps_model = job.verify || extras.journal.is_some() || extras.record.is_some();
    let content = Content::new(extras.record.map_or(job.seed, |record| record.seed));
    let grain = extras.record.map_or(job.grain(), |record| record.grain);
    if keeps_model {
        ensure!(
            Export,
            range.length / grain <= MAX_GRAINS,
            "checking {} bytes in blocks of {grain} needs {} MiB of memory: choose a part of the volume with --size",
            range.length,
            (range.length / grain * Model::BYTES_PER_GRAIN) >> 20
        );
    }
    // Connections may share what is known only if the server keeps them coherent.
    let coherent = connected.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
    let shared = !keeps_model || coherent || job.threads == job.connections;
    let parts = partition(range, if shared { job.threads } else { job.connections }, job.largest_block());
    ensure!(
        Export,
        parts.iter().all(|part| part.length >= job.largest_block()),
        "the volume is too small for {} parts with blocks of {} bytes; use fewer connections or a smaller --block-size",
        parts.len(),
        job.largest_block()
    );
    let mut threads: Vec<Part> = (0..job.threads).map(|_| (Vec::new(), Vec::new())).collect();
    for (index, part) in parts.iter().enumerate() {
        let model = keeps_model.then(|| model(*part, content, grain, extras.record)).transpose()?;
        threads[index % job.threads as usize].1.push(Region::new(*part, model));
    }
    for (index, (socket, negotiated)) in (0..job.connections).zip(sockets) {
        let thread = (index % job.threads) as usize;
        let region = if shared { 0 } else { (index / job.threads) as usize };
        let seed = connection_seed(job.seed, index);
        let among = job.connections.div_ceil(parts.len() as u32);
        let (stream_range, phase) = if keeps_model {
            (threads[thread].1[region].range, f64::from(index / job.threads % among) / f64::from(among))
        } else {
            (range, f64::from(index) / f64::from(job.connections))
        };
        let stream = Stream::new(job, stream_range, seed, phase);
        let rate = job.rate.map(|rate| rate as f64 / f64::from(job.connections));
        let offset = f64::from(index) / f64::from(job.connections);
        let pace = Pace::new(rate, job.arrivals, job.burst, seed ^ ARRIVAL_SALT, offset);
        // The first connections take what does not divide.
        let left = job.requests.map(|all| {
            all / u64::from(job.connections) + u64::from(u64::from(index) < all % u64::from(job.connections))
        });
        threads[thread].0.push(Connection::new(
            (socket, &negotiated),
            (stream, pace),
            job.queue_depth,
            (region, keeps_model),
            left,
        ));
    }
    Ok((connected, threads))
}

/// The part of the volume that the job uses; an error if the export does not allow the job.
fn usable(job: &Job, connected: &Connected, extras: &Extras<'_>) -> Result<Range, Error> {
    let flags = connected.flags;
    let needs = |flag: TransmissionFlags, needed: bool, what: &str| {
        ensure!(Export, !needed || flags.contains(flag), "the export does not support {what}; leave that option out");
        Ok(())
    };
    ensure!(
        Export,
        !(job.changes_data() && extras.record.is_none() && flags.contains(TransmissionFlags::READ_ONLY)),
        "the export is read-only; use --op read, without --fill"
    );
    needs(TransmissionFlags::SEND_FLUSH, job.flush_every.is_some(), "FLUSH (--flush-every)")?;
    needs(TransmissionFlags::SEND_FUA, job.fua, "FUA (--fua)")?;
    needs(TransmissionFlags::SEND_TRIM, job.trim_percent > 0, "TRIM (--trim-percent)")?;
    needs(TransmissionFlags::SEND_WRITE_ZEROES, job.zero_percent > 0, "WRITE_ZEROES (--zero-percent)")?;
    let (grain, min) = (job.grain(), u64::from(connected.min_block));
    ensure!(
        Export,
        grain.is_multiple_of(min),
        "the export takes only multiples of {min} bytes, not {grain}; use another --block-size"
    );
    ensure!(
        Export,
        job.largest_block() <= u64::from(connected.max_payload),
        "the export takes at most {} bytes in one request, not {}; use a smaller --block-size",
        connected.max_payload,
        job.largest_block()
    );
    let unit = extras.record.map_or(grain, |record| record.grain);
    ensure!(
        Export,
        job.offset.is_multiple_of(unit),
        "--offset must be a multiple of the unit of the block sizes, {unit} bytes"
    );
    ensure!(Export, job.offset < connected.size, "--offset is beyond the end of the export ({} bytes)", connected.size);
    let rest = connected.size - job.offset;
    let length = job.size.unwrap_or(rest);
    ensure!(
        Export,
        length <= rest,
        "--offset and --size together reach beyond the end of the export ({} bytes): at most {rest} are left",
        connected.size
    );
    let length = length / unit * unit;
    ensure!(
        Export,
        length >= job.largest_block(),
        "the usable part of the export, {length} bytes, is smaller than a block of {} bytes",
        job.largest_block()
    );
    Ok(Range { start: job.offset, length })
}

fn model(range: Range, content: Content, grain: u64, record: Option<&Record>) -> Result<Model, Error> {
    let mut model = Model::new(content, range.start, range.length / grain * grain, grain);
    for floor in record.iter().flat_map(|record| &record.floors) {
        ensure!(
            Journal,
            floor.offset >= range.start && floor.offset + floor.length <= range.start + range.length,
            "the journal names offset {}, outside the export or the part of it to check; give the --offset and --size \
             of the run that wrote the journal",
            floor.offset
        );
        for at in (floor.offset..floor.offset + floor.length).step_by(grain as usize) {
            // Of two records, the newer write counts: the older may be gone.
            let before = match model.at_rest(at) {
                Some(Holds::AtLeast(generation)) => generation,
                _ => 0,
            };
            model.set(at, grain, Holds::AtLeast(before.max(floor.generation)));
        }
    }
    Ok(model)
}

impl JobResult {
    fn new(job: Job, connected: Connected) -> Self {
        Self {
            job,
            connected,
            total: Tally::default(),
            seconds: Vec::new(),
            summary: Summary::default(),
            open: BTreeMap::new(),
            finished: 0,
        }
    }

    fn add(&mut self, second: u32, tally: &Tally) {
        self.total.merge(tally);
        let (sum, threads) = self.open.entry(second).or_default();
        sum.merge(tally);
        *threads += 1;
        self.close_seconds();
    }

    fn finish(&mut self, summary: Summary) {
        self.finished += 1;
        if let Some(rest) = &summary.rest {
            self.total.merge(rest);
        }
        let mine = &mut self.summary;
        mine.failure = mine.failure.take().or(summary.failure);
        mine.first_error = mine.first_error.take().or(summary.first_error);
        mine.unsent += summary.unsent;
        mine.unanswered += summary.unanswered;
        mine.measured_ns = mine.measured_ns.max(summary.measured_ns);
        mine.cpu_ns += summary.cpu_ns;
        mine.answered += summary.answered;
        mine.verified_bytes += summary.verified_bytes;
        self.close_seconds();
    }

    /// Completes the seconds that every running thread has reported.
    fn close_seconds(&mut self) {
        while let Some(entry) = self.open.first_entry() {
            if entry.get().1 + self.finished < self.job.threads {
                return;
            }
            let (at_s, (tally, _)) = entry.remove_entry();
            let all = tally.all();
            self.seconds.push(Second {
                at_s,
                requests: all.requests,
                bytes: all.bytes,
                errors: tally.failures(),
                p50_ns: all.latency_ns.value_at_quantile(0.5),
                p99_ns: all.latency_ns.value_at_quantile(0.99),
            });
        }
    }

    /// Length of the measured run, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.summary.measured_ns as f64 / 1e9
    }

    /// Number of requests answered without error, per second.
    pub(crate) fn iops(&self) -> f64 {
        per_second(self.total.ops.iter().map(|op| op.requests).sum(), self.elapsed_s())
    }

    /// Payload bytes of the requests answered without error, per second.
    pub fn bytes_per_s(&self) -> f64 {
        per_second(self.total.ops.iter().map(|op| op.bytes).sum(), self.elapsed_s())
    }

    /// The `q` quantile (`q` in `0.0..=1.0`) of the latencies of all requests, in milliseconds.
    pub fn latency_ms(&self, q: f64) -> f64 {
        self.total.all().latency_ns.value_at_quantile(q) as f64 / 1e6
    }

    /// The reason why the job failed; `None` after a job without a failure.
    pub fn failure(&self) -> Option<&str> {
        self.summary.failure.as_deref()
    }
}

/// `count` per second; 0 when no time has passed.
pub(crate) fn per_second(count: u64, elapsed_s: f64) -> f64 {
    if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 }
}
