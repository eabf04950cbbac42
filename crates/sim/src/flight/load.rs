//! A recording as a load to replay: the requests of one pool, by client, with their causes. With all that is computed from it a
//! request takes some 200 bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use evenkeel_control::units::Kind as Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Head, Kind, Name, Outcome, Recording, Request, Table};
use evenkeel_model::Io;
use evenkeel_policy::config::DEFAULT_POOL;
use serde::Serialize;

use super::infer::{Behaviour, Cause, Inferred, Times, infer};
use crate::workload::dependent::{Dependent, Start};

/// Bytes to which the parts of the device that volumes get are rounded up.
const PART: u64 = 1 << 20;
/// The longest load: figures are kept for each second.
const LONGEST: Duration = Duration::from_secs(31 * 86_400);

/// Reason why a recording cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// There is nothing to replay.
    #[error("the recording has no request of {pool} to replay; record while clients are active")]
    Empty {
        /// The pool, in words.
        pool: String,
    },
    /// The requests went to several devices.
    #[error("the recording has requests of several pools: {}; choose one of them with --pool", .pools.join(", "))]
    Pools {
        /// Names of the pools.
        pools: Vec<String>,
    },
    /// The chosen pool is not in the recording.
    #[error(
        "the recording has no request of pool {pool:?}; its pools are {}: choose one of them with --pool",
        .pools.join(", ")
    )]
    NoPool {
        /// The chosen pool.
        pool: String,
        /// Names of the pools.
        pools: Vec<String>,
    },
    /// The time is too long.
    #[error(
        "the recorded requests take {days:.1} days, and a replay takes at most 31; choose a part with --from and --for"
    )]
    Long {
        /// Time from the first arrival to the last completion, in days.
        days: f64,
    },
}

/// A request of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// Index of the tenant in [`Load::tenants`].
    pub tenant: usize,
    /// Kind as recorded.
    pub kind: Kind,
    /// The request as the device gets it.
    pub io: Io,
    /// Arrival, in nanoseconds since that of the first request.
    pub arrival_ns: u64,
    /// Recorded queue latency, in nanoseconds.
    pub queue_ns: u64,
    /// Recorded device latency, in nanoseconds.
    pub device_ns: u64,
    /// True if the request failed as recorded: its latency says nothing about the device.
    pub failed: bool,
}

impl Sent {
    /// Recorded admission to the device, in nanoseconds since the first arrival.
    pub fn admission_ns(&self) -> u64 {
        self.arrival_ns.saturating_add(self.queue_ns)
    }

    /// Recorded completion, in nanoseconds since the first arrival.
    pub fn completion_ns(&self) -> u64 {
        self.admission_ns().saturating_add(self.device_ns)
    }
}

/// A client of a run of the load: a recorded connection, or several of one peer that together are a closed loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Index of the client's tenant in [`Load::tenants`].
    pub tenant: usize,
    /// Index of the run in [`Load::starts`].
    pub run: usize,
    /// Indexes of the client's requests in [`Load::requests`], in order of arrival.
    pub requests: Vec<u32>,
    /// The causes of these requests.
    pub inferred: Inferred,
}

/// The requests that a recording leaves out of a load, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Requests that were dropped before they were dispatched.
    pub cancelled: u64,
    /// Repetitions of requests that failed and are sent: the replay does not fail. A repetition whose first attempt is not sent,
    /// as it was cancelled, refused or not recorded, is sent in its place.
    pub retried: u64,
    /// Requests that were refused before they reached the device, for example beyond the end of the volume.
    pub refused: u64,
    /// Requests that the recorder could not keep.
    pub lost: u64,
    /// Requests between the runs of a sample.
    pub unsampled: u64,
}

/// A recording as a load to replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The pool whose requests these are; [`DEFAULT_POOL`] if the recording names none.
    pub pool: String,
    /// Head of the recording.
    pub head: Head,
    /// Names of the tenants.
    pub tenants: Vec<String>,
    /// The requests, in order of arrival.
    pub requests: Vec<Sent>,
    /// The clients.
    pub clients: Vec<Client>,
    /// The start of each run in nanoseconds since the first arrival, in order; at least one. A run is simulated for itself.
    pub starts: Vec<u64>,
    /// Number of peers with several connections whose requests no completion explains.
    pub open_peers: usize,
    /// Requests of the recording that are left out.
    pub left_out: LeftOut,
}

impl Load {
    /// The load of `pool` in a recording, or of its only pool. O(n log n).
    ///
    /// # Errors
    /// When there is no such request, or several pools and none is chosen, or the time is too long.
    pub fn new(recording: Recording, pool: Option<&str>) -> Result<Self, Unusable> {
        Self::of_runs(recording, &[0], pool)
    }

    /// The load of `pool` in a sample of a recording: runs of requests that begin at `begins` on the clock of the arrivals, in
    /// order. A run has no requests in flight at its start, and the causes of its requests are its own. O(n log n).
    ///
    /// # Errors
    /// As of [`Load::new`].
    pub fn of_runs(recording: Recording, begins: &[u64], pool: Option<&str>) -> Result<Self, Unusable> {
        let volumes = volumes(&recording);
        let chosen = chosen(&volumes, pool)?;
        // Each volume gets a part of the device, one behind the other.
        let (mut starts, mut next): (BTreeMap<u32, u64>, u64) = (BTreeMap::new(), 0);
        for (&volume, (of, bytes)) in &volumes {
            if *of == chosen {
                starts.insert(volume, next);
                next = next.saturating_add(bytes.div_ceil(PART).saturating_mul(PART));
            }
        }
        let fates = fates(&recording.requests, |volume| starts.contains_key(&volume));
        let kept = recording.requests.iter().zip(&fates).filter(|(_, fate)| **fate == Fate::Sent);
        let kept = kept.map(|(request, _)| request);
        let mut tenants: BTreeMap<u32, usize> = kept.clone().map(|request| (request.tenant, 0)).collect();
        let (count, zero) = (kept.clone().count(), kept.clone().next().map_or(0, |request| request.arrival_ns));
        let known = recording.by_number(Table::Tenant);
        let name =
            |number: &u32| known.get(number).map_or_else(|| format!("tenant {number}"), |name| name.name.clone());
        // A tenant that was removed and added again has two numbers, and one limit.
        let (mut names, mut places): (Vec<String>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
        for (number, place) in &mut tenants {
            *place = *places.entry(name(number)).or_insert_with_key(|name| {
                names.push(name.clone());
                names.len() - 1
            });
        }
        let peers = recording.by_number(Table::Client);
        let peers = peers.into_iter().map(|(number, name)| (number, peer(name))).collect();
        let mut left_out = LeftOut { lost: recording.lost, ..LeftOut::default() };
        let mut requests = Vec::with_capacity(count);
        let mut connections: Connections = BTreeMap::new();
        for (request, fate) in recording.requests.into_iter().zip(fates) {
            let Some(&start) = starts.get(&request.volume) else { continue };
            match fate {
                Fate::Elsewhere => {}
                Fate::Cancelled => left_out.cancelled += 1,
                Fate::Retried => left_out.retried += 1,
                Fate::Refused => left_out.refused += 1,
                Fate::Sent => {
                    let tenant = tenants.get(&request.tenant).copied().unwrap_or(0);
                    let number = u32::try_from(requests.len()).unwrap_or(u32::MAX);
                    let run = begins.partition_point(|&start| start <= request.arrival_ns).saturating_sub(1);
                    let own = connections.entry((run, tenant, request.client));
                    own.or_insert_with(|| (request.volume, Vec::new())).1.push(number);
                    requests.push(Sent {
                        tenant,
                        kind: request.kind,
                        io: io(&request, start),
                        arrival_ns: request.arrival_ns.saturating_sub(zero),
                        queue_ns: request.queue_ns,
                        device_ns: request.device_ns,
                        failed: matches!(request.outcome, Outcome::Failed(_)),
                    });
                }
            }
        }
        if requests.is_empty() {
            return Err(Unusable::Empty { pool: format!("pool {chosen:?}") });
        }
        let length = Duration::from_nanos(requests.iter().map(Sent::completion_ns).max().unwrap_or(0));
        if length > LONGEST {
            return Err(Unusable::Long { days: length.as_secs_f64() / 86_400.0 });
        }
        let (clients, open_peers) = clients(&requests, connections, &peers);
        let starts = begins.iter().map(|start| start.saturating_sub(zero)).collect();
        Ok(Self { pool: chosen, head: recording.head, tenants: names, requests, clients, starts, open_peers, left_out })
    }

    /// True if the recording has latencies; a converted trace has none.
    pub fn has_latencies(&self) -> bool {
        self.requests.iter().any(|request| request.device_ns > 0)
    }

    /// Time from the first arrival to the last completion.
    pub fn length(&self) -> Duration {
        Duration::from_nanos(self.requests.iter().map(Sent::completion_ns).max().unwrap_or(0))
    }

    /// Share of the requests that depend on another one, 0 to 1.
    pub fn dependent(&self) -> f64 {
        let dependent: usize = self.clients.iter().map(|client| client.inferred.dependent()).sum();
        dependent as f64 / self.requests.len().max(1) as f64
    }

    /// The part of the recording that the load has, in words; `None` if it is no sample.
    pub fn sampled(&self) -> Option<String> {
        (self.left_out.unsampled > 0).then(|| {
            format!(
                "the recording has {} more requests than are taken (--most): this is of {} runs of consecutive ones, evenly \
                 spread over it, each simulated for itself",
                self.left_out.unsampled,
                self.starts.len()
            )
        })
    }

    /// True if more than a hundredth of the requests could not be recorded.
    pub(super) fn lacks_many(&self) -> bool {
        let all = (self.requests.len() as u64).saturating_add(self.left_out.unsampled);
        self.left_out.lost.saturating_mul(100) > all
    }

    /// The start of a run, in nanoseconds since the first arrival.
    pub(super) fn start_of(&self, run: usize) -> u64 {
        self.starts.get(run).copied().unwrap_or(0)
    }

    /// For each run and tenant the time in nanoseconds that counts for the tenant's rates beside that from its first arrival to
    /// its last completion in the run, as recorded: a run may have few requests of a tenant, or none. Nothing counts before the
    /// tenant's first arrival in the load, and after its last completion.
    pub(super) fn idle(&self) -> Vec<Vec<u64>> {
        // First arrival and last completion of each tenant in each run; first completion and end of each run.
        let mut spans = vec![vec![(u64::MAX, 0u64); self.tenants.len()]; self.starts.len()];
        let ends = self.starts.iter().skip(1).map(|next| next.saturating_sub(1)).chain([0]);
        let mut windows: Vec<(u64, u64)> = self.starts.iter().zip(ends).map(|(_, end)| (u64::MAX, end)).collect();
        for client in &self.clients {
            let span = spans.get_mut(client.run).and_then(|run| run.get_mut(client.tenant));
            let (Some(span), Some(window)) = (span, windows.get_mut(client.run)) else { continue };
            for &number in &client.requests {
                let request = &self.requests[number as usize];
                let end_ns = request.completion_ns();
                *span = (span.0.min(request.arrival_ns), span.1.max(end_ns));
                *window = (window.0.min(end_ns), window.1.max(end_ns));
            }
        }
        // First and last run of each tenant.
        let mut active: Vec<Option<(usize, usize)>> = vec![None; self.tenants.len()];
        for (run, spans) in spans.iter().enumerate() {
            for (active, _) in active.iter_mut().zip(spans).filter(|(_, span)| span.0 <= span.1) {
                *active = Some((active.map_or(run, |(first, _)| first), run));
            }
        }
        let of = |run: usize, span: (u64, u64), active: Option<(usize, usize)>| {
            let Some((first, last)) = active.filter(|(first, last)| (*first..=*last).contains(&run)) else { return 0 };
            let window = windows[run];
            let from_ns = match (run == first, window.0 <= window.1) {
                (true, _) => span.0,
                (false, true) => window.0,
                (false, false) => self.start_of(run),
            };
            let until_ns = if run == last { span.1 } else { window.1 };
            until_ns.saturating_sub(from_ns).saturating_sub(span.1.saturating_sub(span.0))
        };
        let of_run = |(run, spans): (usize, &Vec<(u64, u64)>)| -> Vec<u64> {
            spans.iter().zip(&active).map(|(&span, &active)| of(run, span, active)).collect()
        };
        spans.iter().enumerate().map(of_run).collect()
    }

    /// The requests of a client, to be sent by a simulated one.
    pub(super) fn workload(&self, client: &Client) -> Arc<Dependent> {
        let all = client.requests.iter().zip(&client.inferred.causes);
        let zero = self.start_of(client.run);
        let start = |cause: &Cause| match *cause {
            Cause::At(ns) => Start::At(Instant::from_nanos(ns.saturating_sub(zero))),
            Cause::After { request, think_ns } => Start::After { request, think: Duration::from_nanos(think_ns) },
        };
        Arc::new(Dependent::new(all.map(|(&number, cause)| (self.requests[number as usize].io, start(cause)))))
    }

    /// The load with a share of its requests, 0 to 1, evenly taken from each client. A request whose cause is left out depends
    /// on the cause of that cause, later by the time between them, so that a closed loop becomes slower.
    #[must_use]
    pub fn thinned(&self, share: f64) -> Self {
        let mut thin = Self {
            pool: self.pool.clone(),
            head: self.head.clone(),
            tenants: self.tenants.clone(),
            requests: Vec::new(),
            clients: Vec::new(),
            starts: self.starts.clone(),
            open_peers: self.open_peers,
            left_out: self.left_out,
        };
        let mut place = vec![u32::MAX; self.requests.len()];
        let mut keeps = vec![false; self.requests.len()];
        for client in &self.clients {
            for (turn, &number) in client.requests.iter().enumerate() {
                keeps[number as usize] = (turn as f64 * share).floor() < ((turn + 1) as f64 * share).floor();
            }
        }
        for (number, request) in self.requests.iter().enumerate() {
            if keeps[number] {
                place[number] = u32::try_from(thin.requests.len()).unwrap_or(u32::MAX);
                thin.requests.push(*request);
            }
        }
        for client in &self.clients {
            let (mut requests, mut causes) = (Vec::new(), Vec::new());
            // For each request of the client, the kept one that is its cause's cause, or itself: the number among the client's
            // kept ones, and that of the load.
            let mut anchors: Vec<Option<(u32, u32)>> = Vec::with_capacity(client.requests.len());
            for (&number, cause) in client.requests.iter().zip(&client.inferred.causes) {
                let anchor = match *cause {
                    Cause::At(_) => None,
                    Cause::After { request, .. } => anchors.get(request as usize).copied().flatten(),
                };
                if !keeps[number as usize] {
                    anchors.push(anchor);
                    continue;
                }
                let arrival_ns = self.requests[number as usize].arrival_ns;
                causes.push(anchor.map_or(Cause::At(arrival_ns), |(request, parent)| {
                    let think_ns = arrival_ns.saturating_sub(self.requests[parent as usize].completion_ns());
                    Cause::After { request, think_ns }
                }));
                anchors.push(Some((u32::try_from(requests.len()).unwrap_or(u32::MAX), number)));
                requests.push(place[number as usize]);
            }
            let inferred = Inferred { causes, behaviour: client.inferred.behaviour };
            thin.clients.push(Client { tenant: client.tenant, run: client.run, requests, inferred });
        }
        thin
    }
}

/// The requests of each connection by their numbers, with the volume of the first, by the index of the run, the tenant's index
/// and the number of the client.
type Connections = BTreeMap<(usize, usize, u32), (u32, Vec<u32>)>;

/// For each volume its pool, and its length: that of the recorded name, or up to the end of the last request.
fn volumes(recording: &Recording) -> BTreeMap<u32, (String, u64)> {
    let names = recording.by_number(Table::Volume);
    let of = |number: &u32| match names.get(number) {
        Some(name) if !name.pool.is_empty() => (name.pool.clone(), name.bytes),
        Some(name) => (DEFAULT_POOL.to_owned(), name.bytes),
        None => (DEFAULT_POOL.to_owned(), 0),
    };
    let mut volumes = BTreeMap::new();
    for request in recording.requests.iter().filter(|request| !is_refused(request)) {
        let end = request.offset.saturating_add(request.length);
        let (_, bytes) = volumes.entry(request.volume).or_insert_with(|| of(&request.volume));
        *bytes = end.max(*bytes);
    }
    volumes
}

fn chosen(volumes: &BTreeMap<u32, (String, u64)>, pool: Option<&str>) -> Result<String, Unusable> {
    let mut pools: Vec<String> = volumes.values().map(|(pool, _)| pool.clone()).collect();
    pools.sort_unstable();
    pools.dedup();
    match (pool, &pools[..]) {
        (None, []) => Err(Unusable::Empty { pool: "any pool".into() }),
        (Some(pool), []) => Err(Unusable::Empty { pool: format!("pool {pool:?}") }),
        (Some(pool), _) if !pools.iter().any(|known| known == pool) => {
            Err(Unusable::NoPool { pool: pool.to_owned(), pools })
        }
        (Some(pool), _) => Ok(pool.to_owned()),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(Unusable::Pools { pools }),
    }
}

/// The part that a recorded request has in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It went to another pool.
    Elsewhere,
    Sent,
    Cancelled,
    Retried,
    Refused,
}

/// The fates of requests in order of arrival. Of an attempt and its repetitions one is sent: the first that reached the device.
fn fates(requests: &[Request], is_chosen: impl Fn(u32) -> bool) -> Vec<Fate> {
    // The newest attempts without success, each with true if it or one that it repeats is sent.
    let mut attempts: HashMap<(u32, Kind, u64, u64), bool> = HashMap::new();
    let fate = |request: &Request| {
        if !is_chosen(request.volume) {
            return Fate::Elsewhere;
        }
        let of = (request.volume, request.kind, request.offset, request.length);
        let repeats_sent = request.retried && attempts.remove(&of) == Some(true);
        let fate = match request.outcome {
            Outcome::Cancelled => Fate::Cancelled,
            _ if repeats_sent => Fate::Retried,
            _ if is_refused(request) => Fate::Refused,
            _ => Fate::Sent,
        };
        if request.outcome != Outcome::Done {
            attempts.insert(of, repeats_sent || fate == Fate::Sent);
        }
        fate
    };
    requests.iter().map(fate).collect()
}

/// True if the request failed before it was queued, as one beyond the end of its volume.
fn is_refused(request: &Request) -> bool {
    matches!(request.outcome, Outcome::Failed(_)) && request.queue_ns == 0 && request.device_ns == 0
}

/// The peer of a connection without its port, with its identity.
fn peer(name: &Name) -> String {
    name.connection().map_or_else(|| name.name.clone(), |(host, _, identity)| format!("{host}{identity}"))
}

/// The clients, and the number of peers with several connections whose requests no completion explains. If none of the
/// connections of a peer to a volume is a closed loop for itself, all of them together may be one.
fn clients(requests: &[Sent], connections: Connections, peers: &HashMap<u32, String>) -> (Vec<Client>, usize) {
    let is_timed = requests.iter().any(|request| request.device_ns > 0);
    let inferred = |own: &[u32]| {
        let times = own.iter().map(|&number| {
            let request = &requests[number as usize];
            Times { arrival_ns: request.arrival_ns, completion_ns: request.completion_ns() }
        });
        let times: Vec<Times> = times.collect();
        if is_timed { infer(&times) } else { paced(&times) }
    };
    let mut by_peer: BTreeMap<(usize, usize, u32, &str), Vec<Client>> = BTreeMap::new();
    let mut others = Vec::new();
    for ((run, tenant, number), (volume, own)) in connections {
        let client = Client { tenant, run, inferred: inferred(&own), requests: own };
        match peers.get(&number) {
            Some(peer) => by_peer.entry((run, tenant, volume, peer.as_str())).or_default().push(client),
            None => others.push(client),
        }
    }
    // A peer counts once, not in each run.
    let (mut clients, mut open_peers) = (Vec::new(), BTreeSet::new());
    for ((run, tenant, volume, peer), own) in by_peer {
        let is_open = own.iter().all(|client| client.inferred.behaviour == Behaviour::Open);
        let is_closed = |client: &Client| matches!(client.inferred.behaviour, Behaviour::Closed { .. });
        if is_timed && own.len() > 1 && !own.iter().any(is_closed) {
            let mut all: Vec<u32> = own.iter().flat_map(|client| &client.requests).copied().collect();
            all.sort_unstable();
            let together = Client { tenant, run, inferred: inferred(&all), requests: all };
            if is_closed(&together) || (is_open && together.inferred.behaviour != Behaviour::Open) {
                clients.push(together);
                continue;
            }
            if is_open {
                open_peers.insert((tenant, volume, peer));
            }
        }
        clients.extend(own);
    }
    clients.extend(others);
    clients.sort_by_key(|client| client.requests.first().copied());
    (clients, open_peers.len())
}

fn paced(times: &[Times]) -> Inferred {
    let causes = times.iter().map(|times| Cause::At(times.arrival_ns)).collect();
    Inferred { causes, behaviour: Behaviour::Open }
}

fn io(request: &Request, start: u64) -> Io {
    let bytes = u32::try_from(request.length).unwrap_or(u32::MAX);
    let (kind, bytes) = match request.kind {
        Kind::Read => (Work::Read, bytes),
        Kind::Write => (Work::Write, bytes),
        Kind::Flush => (Work::Flush, 0),
        Kind::Trim | Kind::Zero | Kind::Other => (Work::Meta, 0),
    };
    Io { kind, offset: start.saturating_add(request.offset), bytes }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recording, request};
    use super::*;

    #[test]
    fn requests_that_were_cancelled_or_repeated_are_left_out() {
        let mut requests: Vec<Request> = (0..10).map(|n| request(n * 1_000_000, 100_000)).collect();
        requests[1].outcome = Outcome::Cancelled;
        requests[4].outcome = Outcome::Failed(5);
        requests[6].retried = true;
        let load = Load::new(recording(requests), None).unwrap();
        assert_eq!((load.requests.len(), load.left_out.cancelled, load.left_out.retried), (8, 1, 1));
        let failed: Vec<bool> = load.requests.iter().map(|sent| sent.failed).collect();
        assert_eq!(failed, [false, false, false, true, false, false, false, false]);
        assert_eq!((load.pool.as_str(), &load.tenants[..]), ("main", &["t0".to_owned()][..]));
    }

    #[test]
    fn a_request_is_sent_once_however_often_it_was_tried() {
        let (done, failed, cancelled) = (Outcome::Done, Outcome::Failed(5), Outcome::Cancelled);
        // For each attempt its outcome, and true if it is a repetition; those that are sent, and what is left out.
        let cases = [
            (vec![(cancelled, false), (done, true)], vec![1_u64], (1, 0, 0)),
            (vec![(cancelled, false), (cancelled, true), (done, true)], vec![2], (2, 0, 0)),
            (vec![(cancelled, false), (failed, true), (done, true)], vec![1], (1, 1, 0)),
            (vec![(failed, false), (done, true)], vec![0], (0, 1, 0)),
            (vec![(failed, false), (failed, true), (done, true)], vec![0], (0, 2, 0)),
            (vec![(failed, false), (cancelled, true), (done, true)], vec![0], (1, 1, 0)),
            // Refused at once, because the server was stopping.
            (vec![(Outcome::Failed(108), false), (done, true)], vec![1], (0, 0, 1)),
            // The first attempt was before the recording.
            (vec![(done, true)], vec![0], (0, 0, 0)),
            (vec![(failed, false), (done, true), (done, false)], vec![0, 2], (0, 1, 0)),
        ];
        for (attempts, sent, left_out) in cases {
            let one = |(n, &(outcome, retried)): (u64, &(Outcome, bool))| {
                let device_ns = if outcome == Outcome::Failed(108) { 0 } else { 100_000 };
                Request { outcome, retried, ..request((n + 1) * 1_000_000, device_ns) }
            };
            // The load's times begin with another request.
            let other = Request { offset: 4096, ..request(0, 100_000) };
            let requests = (0..).zip(&attempts).map(one).chain([other]).collect();
            let load = Load::new(recording(requests), None).unwrap();
            let own = load.requests.iter().filter(|sent| sent.io.offset == 0);
            let numbers: Vec<u64> = own.map(|sent| sent.arrival_ns / 1_000_000 - 1).collect();
            assert_eq!(numbers, sent, "{attempts:?}");
            let LeftOut { cancelled, retried, refused, .. } = load.left_out;
            assert_eq!((cancelled, retried, refused), left_out, "{attempts:?}");
        }
    }

    #[test]
    fn a_tenant_that_was_removed_and_added_again_is_one() {
        let mut requests: Vec<Request> = (0..10).map(|n| request(n * 1_000_000, 100_000)).collect();
        requests[7..].iter_mut().for_each(|request| request.tenant = 9);
        let mut recording = recording(requests);
        let (name, pool) = ("t0".to_owned(), String::new());
        recording.names.push(evenkeel_flight::Name { table: Table::Tenant, number: 9, name, pool, bytes: 0 });
        let load = Load::new(recording, None).unwrap();
        assert_eq!(load.tenants, ["t0"]);
        assert!(load.requests.len() == 10 && load.requests.iter().all(|sent| sent.tenant == 0));
    }

    #[test]
    fn a_pool_has_to_be_chosen_where_there_are_several() {
        let mut requests: Vec<Request> = (0..10).map(|n| request(n * 1_000_000, 100_000)).collect();
        requests[3].volume = 1;
        let recording = recording(requests);
        let of = |pool| Load::new(recording.clone(), pool);
        assert!(matches!(of(None), Err(Unusable::Pools { pools }) if pools == ["main", "other"]));
        assert_eq!(of(Some("other")).unwrap().requests.len(), 1);
        let mistyped = of(Some("mian")).unwrap_err().to_string();
        assert!(mistyped.contains("main, other") && mistyped.contains("\"mian\""), "{mistyped}");
    }

    #[test]
    fn refused_requests_are_neither_sent_nor_measured() {
        let mut requests: Vec<Request> = (0..10).map(|n| request(n * 1_000_000, 100_000)).collect();
        requests[2] = Request { outcome: Outcome::Failed(28), device_ns: 0, offset: 1 << 60, volume: 2, ..requests[2] };
        requests[6] = Request { volume: 2, ..requests[6] };
        let load = Load::new(recording(requests), None).unwrap();
        assert_eq!((load.requests.len(), load.left_out.refused), (9, 1));
        let refused = Request { outcome: Outcome::Failed(28), ..request(0, 0) };
        let of = |pool| Load::new(recording(vec![refused]), pool).unwrap_err().to_string();
        assert!(of(Some("main")).contains("no request of pool \"main\""), "{}", of(Some("main")));
        assert!(of(None).contains("no request of any pool"), "{}", of(None));
        // Volume 2 has no recorded length, and lies behind the GiB of volume 0.
        assert!(load.requests.iter().all(|sent| sent.io.offset <= 1 << 30), "{:?}", load.requests);
    }

    #[test]
    fn a_load_of_more_than_a_month_is_refused() {
        let month = 31 * 86_400 * 1_000_000_000;
        let of = |until| Load::new(recording(vec![request(0, 1_000), request(until, 1_000)]), None);
        assert!(of(month - 2_000).is_ok());
        let refused = of(month).unwrap_err().to_string();
        assert!(refused.contains("31.0 days") && refused.contains("--from and --for"), "{refused}");
    }

    #[test]
    fn a_closed_loop_over_two_connections_of_a_peer_is_one_client() {
        let client = |number: u32, name: String| {
            let (table, pool) = (Table::Client, String::new());
            Name { table, number, name, pool, bytes: 0 }
        };
        let of = |names: [&str; 2]| {
            let mut at = 0;
            let one = |n: u64| {
                let latency = 90_000 + n * n % 7 * 1_000;
                let one = Request { client: (n % 2) as u32, ..request(at, latency) };
                at += latency + 10_000;
                one
            };
            let mut recording = recording((0..1_000).map(one).collect());
            let names = (0..).zip(names).map(|(number, name)| client(number, name.to_owned()));
            recording.names.extend(names);
            recording
        };
        let load = |recording: Recording| Load::new(recording, None).unwrap();
        let pair = of(["10.0.0.1:4001", "10.0.0.1:4002"]);
        let mut scrambled = pair.clone();
        let scrambler = evenkeel_flight::Scrambler::new(b"key");
        scrambled.names.iter_mut().for_each(|name| *name = scrambler.entry(name));
        // Also with names that are scrambled, and with an identity that TLS has shown.
        for recording in [pair, scrambled, of(["10.0.0.1:4001 (alice)", "10.0.0.1:4002 (alice)"])] {
            let one = load(recording);
            let [only] = &one.clients[..] else { panic!("{} clients", one.clients.len()) };
            assert!(matches!(only.inferred.behaviour, Behaviour::Closed { .. }), "{:?}", only.inferred);
            assert!(one.dependent() > 0.95, "{}", one.dependent());
        }
        assert_eq!(load(of(["10.0.0.1:4001", "10.0.0.2:4002"])).clients.len(), 2);
        assert_eq!(load(of(["10.0.0.1:4001 (alice)", "10.0.0.1:4002 (bob)"])).clients.len(), 2);
        let names = ["[fd00::1]:10809", "unix", "client-3f9a"].map(|name| peer(&client(0, name.to_owned())));
        assert_eq!(names, ["[fd00::1]", "unix", "client-3f9a"]);
    }

    #[test]
    fn the_causes_of_a_run_are_its_own() {
        // One after the other, 10 µs behind the completion of the one before.
        let mut at = 500;
        let one = |n: u64| {
            let latency = 90_000 + n % 7 * 1_000;
            let one = request(at, latency);
            at += latency + 10_000;
            one
        };
        let requests: Vec<Request> = (0..200).map(one).collect();
        let begins = [500, requests[100].arrival_ns];
        let load = Load::of_runs(recording(requests.clone()), &begins, None).unwrap();
        assert_eq!(load.starts, [0, begins[1] - 500]);
        let runs: Vec<(usize, usize)> = load.clients.iter().map(|client| (client.run, client.requests.len())).collect();
        assert_eq!(runs, [(0, 100), (1, 100)]);
        assert_eq!(load.clients[1].inferred.causes[0], Cause::At(load.starts[1]));
        // Without the start of the second run it depends on the first.
        let whole = Load::new(recording(requests), None).unwrap();
        assert!(matches!(whole.clients[0].inferred.causes[100], Cause::After { .. }));
    }

    #[test]
    fn half_of_a_closed_loop_takes_as_long() {
        // One after the other: each 10 µs after the completion of the one before.
        let mut at = 0;
        let one = |n: u64| {
            let latency = 90_000 + n % 7 * 1_000;
            let one = request(at, latency);
            at += latency + 10_000;
            one
        };
        let requests = (0..1_000).map(one).collect();
        let load = Load::new(recording(requests), None).unwrap();
        assert!(load.dependent() > 0.95, "{}", load.dependent());
        let half = load.thinned(0.5);
        assert_eq!(half.requests.len(), 500);
        assert!(half.dependent() > 0.95, "{}", half.dependent());
        let Some(Cause::After { think_ns, .. }) = half.clients[0].inferred.causes.get(100) else { panic!("paced") };
        assert!((110_000..130_000).contains(think_ns), "{think_ns}");
        assert_eq!(load.thinned(1.0), load);
        // One after the other, with its think time behind the completion of the one before.
        let mut end = 0;
        for (&number, cause) in half.clients[0].requests.iter().zip(&half.clients[0].inferred.causes) {
            let latency = half.requests[number as usize].device_ns;
            end = match *cause {
                Cause::At(at) => at + latency,
                Cause::After { think_ns, .. } => end + think_ns + latency,
            };
        }
        let (whole, end) = (load.length().as_secs_f64(), end as f64 / 1e9);
        assert!((end / whole - 1.0).abs() < 0.01, "{end} s of {whole} s");
    }

    #[test]
    fn without_latencies_all_requests_are_paced() {
        let load = Load::new(recording((0..100).map(|n| request(n * 10, 0)).collect()), None).unwrap();
        assert!(!load.has_latencies() && load.dependent() == 0.0);
    }
}
