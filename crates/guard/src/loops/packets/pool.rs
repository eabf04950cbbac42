//! One pool with a latency target: its devices, its clients, its controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use evenkeel_control::log::{Decided, Entry, Log};
use evenkeel_control::response::{ClientId, ClientReason, ClientSample, Controller, InvalidConfig, Reason, Sample};
use evenkeel_control::{Duration, Instant};

use super::super::owed::Pace;
use super::percentile::Percentile;
use super::shares::Shares;
use crate::actuator::{Client, Delay, Delays, Packets};
use crate::config::{Config, PacketsConfig};
use crate::discovery::{KnownBy, Link};
use crate::loops::record::{At, ClientState, DeviceState, PacketsState, PoolState, ReadsState};
use crate::sensor::diskstats::{self, DeviceNumber, Reading, Sum, Tracker};
use crate::sensor::initiators::Moved;
use evenkeel_policy::config::{Enforcement, Percentile as Figure, Throttle};
use evenkeel_policy::decision::{DecisionRecord, MostThrottled, Throttled, seconds};
use evenkeel_policy::explain::{self, Throttles};
use evenkeel_policy::state::LatencyTargetState;
use evenkeel_policy::verdict::{self, Lately};

/// The advice for an operator if delaying packets has no effect on the latency.
const CURE: &str = "cap the window in which the target receives, so that clients must wait for acknowledgements: sysctl -w \
     net.ipv4.tcp_rmem='4096 32768 32768' before the target listens, which caps the windows of all TCP connections of this \
     host; or raise max_delay if requests are few and large";

/// Number of clients that a sentence about a decision names at most.
const LISTED: usize = 2;

/// A decision about a pool, as the log keeps it.
#[derive(Clone, Debug)]
struct Decision {
    reason: Reason,
    mean_delay: Duration,
    /// A further step that was taken with the decision, or advice; appended to the sentence about the decision.
    also: Option<&'static str>,
    /// The throttled clients, each with the delay of its packets and the reason for this delay.
    held: Vec<(IpAddr, Duration, ClientReason)>,
    /// The clients that the decision released.
    released: Vec<IpAddr>,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        (self.reason.name(), self.also) == (newer.reason.name(), newer.also) && self.held == newer.held
    }

    fn figure(&self) -> Option<f64> {
        Some(self.mean_delay.as_millis_f64())
    }
}

/// A pool with a latency target.
///
/// Data that every tick touches is contiguous in memory, separate from names and addresses, which only records need.
pub(super) struct Guarded {
    name: String,
    config: PacketsConfig,
    /// Local TCP ports from which packets can be delayed.
    ports: Vec<u16>,
    controller: Controller,
    /// Counts of single reads, if the latency target is for a percentile; `None` if it is for the mean.
    percentile: Option<Percentile>,
    choice: Packets,
    /// The packets that are delayed now: the configured `choice`, or all packets once delaying acknowledgements alone has had
    /// no effect.
    packets: Packets,
    /// Devices of the pool, sorted by device number; `names` lists their numbers and names in the same order.
    devices: Vec<Device>,
    /// For each device, in the order of `devices`: the number of clients that reach it.
    shared_by: Vec<u32>,
    names: Vec<(DeviceNumber, String)>,
    /// [`Tracker::arrangement`] at the time when the devices' indices in the tracker were looked up; `None` before the first
    /// look-up.
    arrangement: Option<u64>,
    /// Clients of the pool, sorted by [`ClientId`]; the controller's decisions have the same order.
    clients: Vec<GuardedClient>,
    /// The newest sample of each client for the controller, in the order of `clients`.
    samples: Vec<ClientSample>,
    /// Each client's delay and the reason for it, in the order of `clients`; a delay of zero means that the client is not
    /// throttled.
    delays: Vec<(Duration, ClientReason)>,
    /// Pairs of a client and a device that it reaches, as indices into `clients` and `devices`.
    reach: Vec<(u32, u32)>,
    /// The pairs of `reach` whose device several clients reach.
    shared_reach: Vec<(u32, u32)>,
    /// For each device that several clients reach: its load in bytes per second divided by the number of these clients. Empty
    /// if no device is shared.
    shared_loads: Vec<f64>,
    /// Throughput of each device, and throughput of each tenant; both empty if none of the clients' tenants has a reservation
    /// or guarantee.
    paces: (Vec<Pace>, Vec<Pace>),
    /// The clients' known parts of the load of shared devices.
    shares: Shares,
    /// Pairs of a client (index into `clients`) and the index of one of its entries in [`Delays`].
    places: Vec<(u32, u32)>,
    last: diskstats::Sample,
    reason: Reason,
    mean_delay: Duration,
    decisions: Log<Decision>,
}

/// The facts about a device that every tick needs.
#[derive(Clone, Copy)]
struct Device {
    /// Index of the device in the [`Tracker`]; `u32::MAX` if the tracker does not know the device.
    place: u32,
    /// Index of the only client that reaches the device; `u32::MAX` if there is no client or several.
    client: u32,
}

struct GuardedClient {
    id: ClientId,
    address: IpAddr,
    names: BTreeSet<String>,
    /// Index of the client's tenant in the configured throttles.
    tenant: u32,
    throttle: Throttle,
    exempt_because: Option<String>,
    /// Keys (addresses or connections) by which packets to the client are recognised.
    keys: Vec<Client>,
}

impl Guarded {
    pub(super) fn new(
        name: &str,
        settings: &PacketsConfig,
        config: &Config,
        max_decisions: usize,
    ) -> Result<Self, InvalidConfig> {
        Ok(Self {
            name: name.to_owned(),
            config: settings.clone(),
            ports: config.agent.ports.clone(),
            controller: Controller::new(&config.controller(settings))?,
            percentile: match settings.latency.percentile {
                Figure::Mean => None,
                Figure::At(percentile) => Some(Percentile::new(percentile)),
            },
            choice: config.agent.packets,
            packets: config.agent.packets,
            devices: Vec::new(),
            shared_by: Vec::new(),
            names: Vec::new(),
            arrangement: None,
            clients: Vec::new(),
            samples: Vec::new(),
            delays: Vec::new(),
            reach: Vec::new(),
            shared_reach: Vec::new(),
            shared_loads: Vec::new(),
            paces: (Vec::new(), Vec::new()),
            shares: Shares::default(),
            places: Vec::new(),
            last: diskstats::Sample::default(),
            reason: Reason::NotEnoughData,
            mean_delay: Duration::ZERO,
            decisions: Log::new(max_decisions),
        })
    }

    /// If the settings of a newer policy differ from the present ones in nothing but the value of the latency target, takes
    /// them over, keeps the controller's state, and returns true; otherwise changes nothing.
    pub(super) fn adopt(&mut self, config: &PacketsConfig) -> bool {
        let mut same = config.clone();
        same.latency.target = self.config.latency.target;
        let adopted = same == self.config && self.controller.set_target(config.latency.target).is_ok();
        if adopted {
            self.config = config.clone();
        }
        adopted
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// True if the latency target is for a percentile, so that single reads have to be timed.
    pub(super) fn wants_read_times(&self) -> bool {
        self.percentile.is_some()
    }

    /// The kernel's numbers of the pool's devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceNumber> {
        self.names.iter().map(|(number, _)| *number)
    }

    /// The counts of single reads, with a window that ends at `now`; `None` if the latency target is for the mean.
    pub(super) fn percentile(&mut self, now: Instant) -> Option<&mut Percentile> {
        let percentile = self.percentile.as_mut()?;
        percentile.advance(now);
        Some(percentile)
    }

    /// Takes over the pool's clients and devices. `links`: the pool's own links; `of_ambiguous`: all links of each client that
    /// reaches several pools.
    pub(super) fn follow(
        &mut self,
        links: &[&Link],
        of_ambiguous: &BTreeMap<IpAddr, Vec<&Link>>,
        mut id_of: impl FnMut(IpAddr) -> ClientId,
    ) {
        let mut by_client: BTreeMap<ClientId, Vec<&Link>> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for link in links {
            if let Some((number, name)) = link.number.zip(link.device.as_ref()) {
                names.entry(number).or_insert(name);
            }
            if let Some(address) = link.client {
                by_client.entry(id_of(address)).or_default().push(link);
            }
        }
        self.names = names.into_iter().map(|(number, name): (_, &String)| (number, name.clone())).collect();
        self.devices = vec![Device { place: u32::MAX, client: u32::MAX }; self.names.len()];
        self.shared_by = vec![0; self.names.len()];
        self.arrangement = None;
        self.clients.clear();
        self.reach.clear();
        for (id, links) in by_client {
            let Some(address) = links.iter().find_map(|link| link.client) else { continue };
            let names: BTreeSet<String> = links.iter().filter_map(|link| link.client_name.clone()).collect();
            let reached: BTreeSet<DeviceNumber> = links.iter().filter_map(|link| link.number).collect();
            for number in &reached {
                if let Ok(place) = self.names.binary_search_by_key(number, |(number, _)| *number) {
                    self.shared_by[place] += 1;
                    self.reach.push((self.clients.len() as u32, place as u32));
                }
            }
            let keys = match of_ambiguous.get(&address) {
                None => vec![Client::Address(address)],
                Some(links) => self.own_connections(links, address),
            };
            let all_names: Vec<String> = names.iter().cloned().collect();
            let tenant = self.config.throttles.tenant_of(address, &all_names);
            let guessed = links.iter().any(|link| link.known_by == KnownBy::Candidate);
            let (throttle, exempt_because) = match self.spared(address, &all_names) {
                Some(why) => (Throttle::Never, Some(why)),
                None => self.throttle(tenant, address, &keys, guessed, self.other_port(&links)),
            };
            let tenant = tenant as u32;
            self.clients.push(GuardedClient { id, address, names, tenant, throttle, exempt_because, keys });
        }
        let (shared_by, names) = (&self.shared_by, &self.names);
        self.shared_reach.clear();
        for &(client, device) in &self.reach {
            match shared_by[device as usize] {
                1 => self.devices[device as usize].client = client,
                _ => self.shared_reach.push((client, device)),
            }
        }
        self.shared_loads = vec![0.0; if self.shared_reach.is_empty() { 0 } else { self.devices.len() }];
        let places: BTreeMap<IpAddr, u32> = self.clients.iter().map(|client| client.address).zip(0..).collect();
        self.shares.follow(links, |link| {
            let number = link.number?;
            let device = names.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            let client = *places.get(&link.client?)?;
            (shared_by[device] > 1).then_some((client, device as u32))
        });
        let sample = |client: &GuardedClient| ClientSample {
            client: client.id,
            throttle: client.throttle,
            paid: f64::INFINITY,
            ..ClientSample::default()
        };
        self.samples = self.clients.iter().map(sample).collect();
        let tenants = self.config.throttles.tenants();
        let owes = self.clients.iter().any(|client| !tenants[client.tenant as usize].owed.is_nothing());
        let paces = |count: usize| if owes { vec![Pace::default(); count] } else { Vec::new() };
        self.paces = (paces(self.devices.len()), paces(tenants.len()));
        self.delays = vec![Default::default(); self.clients.len()];
    }

    /// Keys (addresses or connections) by which packets to the pool's clients are recognised.
    pub(super) fn keys(&self) -> impl Iterator<Item = Client> {
        self.clients.iter().flat_map(|client| client.keys.iter().copied())
    }

    /// Looks up and keeps the index of each of the pool's clients in `delays`.
    pub(super) fn place(&mut self, delays: &Delays) {
        let places = self.clients.iter().zip(0u32..).flat_map(|(client, number)| {
            let place = move |key: &Client| Some((number, delays.place(&key.canonical())? as u32));
            client.keys.iter().filter_map(place)
        });
        self.places = places.collect();
    }

    /// The connections of the client at `address`, whose links are `links`, that lead to this pool and to no other.
    fn own_connections(&self, links: &[&Link], address: IpAddr) -> Vec<Client> {
        let of = |here: bool| {
            let links = links.iter().filter(move |link| (link.pool.as_ref() == Some(&self.name)) == here);
            links.flat_map(|link| link.connections.iter().copied())
        };
        let elsewhere: BTreeSet<_> = of(false).collect();
        // A link whose connections are not told may be any of them.
        let untold = links.iter().any(|link| link.connections.is_empty());
        let own: BTreeSet<_> = of(true).filter(|connection| !untold && !elsewhere.contains(connection)).collect();
        let key = |connection: crate::discovery::map::Connection| Client::Connection {
            address,
            client_port: connection.remote.port(),
            service_port: connection.local.port(),
        };
        own.into_iter().map(key).collect()
    }

    /// The reason why no packet to the address of several initiators, as behind address translation, may be delayed: one of
    /// them is of a tenant that is never throttled. `None` without such a reason.
    fn spared(&self, address: IpAddr, names: &[String]) -> Option<String> {
        // Of one name the tenant is known already.
        if names.len() < 2 {
            return None;
        }
        let throttles = &self.config.throttles;
        let tenant_of = |names: &[String]| &throttles.tenants()[throttles.tenant_of(address, names)];
        // Then it is the policy that says so.
        if tenant_of(names).throttle == Throttle::Never {
            return None;
        }
        let never = names.iter().find(|&name| tenant_of(std::slice::from_ref(name)).throttle == Throttle::Never)?;
        Some(format!("shares its address with {never}, which is never throttled"))
    }

    /// One of the local ports to which a client with these links is connected, if packets from none of these ports can be
    /// delayed; otherwise `None`.
    fn other_port(&self, links: &[&Link]) -> Option<u16> {
        // Which ports links without known connections have is not known.
        if links.iter().any(|link| link.connections.is_empty()) {
            return None;
        }
        let mut ports = links.iter().flat_map(|link| &link.connections).map(|connection| connection.local.port());
        let first = ports.next()?;
        let is_other = |port: &u16| !self.ports.contains(port);
        Some(first).filter(|first| is_other(first) && ports.all(|port| is_other(&port)))
    }

    /// Permitted throttling of a client, and a reason if it is exempt for another cause than the policy. `guessed`: true if the
    /// client may reach only another volume of the same server, not this pool. `other_port`: a port from which packets to the
    /// client leave and cannot be delayed.
    fn throttle(
        &self,
        tenant: usize,
        address: IpAddr,
        keys: &[Client],
        guessed: bool,
        other_port: Option<u16>,
    ) -> (Throttle, Option<String>) {
        let throttle = self.config.throttles.tenants()[tenant].throttle;
        if throttle == Throttle::Never {
            return (throttle, None);
        }
        if guessed {
            return (Throttle::Never, Some("is one of several clients, any of which may use the volume".into()));
        }
        if keys.is_empty() {
            let why = "reaches several pools by connections that cannot be distinguished";
            return (Throttle::Never, Some(why.into()));
        }
        if address.is_loopback() {
            return (Throttle::Never, Some("is on this machine".into()));
        }
        if let Some(port) = other_port {
            let why = format!("is connected to port {port}, from which no packet is delayed: add it to agent.ports");
            return (Throttle::Never, Some(why));
        }
        (throttle, None)
    }

    /// Limits the delays that the controller chooses to `most` from now on.
    pub(super) fn limit(&mut self, most: Duration) {
        self.controller.limit_delay(most);
    }

    /// Passes the newest sample of the pool's devices and clients, taken at `now`, to the controller.
    pub(super) fn observe(&mut self, now: Instant, tracker: &Tracker) {
        if self.arrangement != Some(tracker.arrangement()) {
            for (device, (number, _)) in self.devices.iter_mut().zip(&self.names) {
                device.place = tracker.place(*number).map_or(u32::MAX, |place| place as u32);
            }
            self.arrangement = Some(tracker.arrangement());
        }
        let mut sum = Sum::default();
        self.samples.iter_mut().for_each(|sample| (sample.bytes_per_s, sample.all_bytes_per_s) = (0.0, 0.0));
        self.shared_loads.fill(0.0);
        // Devices are read together, so that nearly always their intervals are the same.
        let (mut interval_us, mut per_s) = (0, 0.0);
        let reads_count = self.packets == Packets::Data;
        for (number, device) in self.devices.iter().enumerate() {
            let moved = tracker.at(device.place as usize).filter(|moved| moved.is_sample());
            let Some(moved) = moved else { continue };
            sum.add(moved);
            // Delaying everything is the fallback for writers whose acknowledgements cannot be delayed.
            let bytes = if reads_count { moved.read_bytes() } else { moved.written_bytes() };
            if moved.interval_us() != interval_us {
                interval_us = moved.interval_us();
                per_s = 1e6 / f64::from(interval_us.max(1));
            }
            if let Some(pace) = self.paces.0.get_mut(number) {
                let bytes = [moved.read_bytes(), moved.written_bytes()].map(|bytes| bytes as f64 * per_s);
                *pace = Pace { bytes, requests: moved.completed().map(|count| f64::from(count as u32) * per_s) };
            }
            // On its own devices a client's load is known, of shared ones an equal part at first.
            let load = bytes as f64 * per_s;
            if let Some(sample) = self.samples.get_mut(device.client as usize) {
                sample.bytes_per_s += load;
                sample.all_bytes_per_s += (moved.read_bytes() + moved.written_bytes()) as f64 * per_s;
            } else if let Some(part) = self.shared_loads.get_mut(number) {
                *part = load / f64::from(self.shared_by[number].max(1));
            }
        }
        // No measurement is not the same as no reads: the controller notices that nothing comes.
        let Some(sum) = sum.sample() else { return };
        self.last = sum;
        if self.last.is_stuck() {
            // Nothing comes out of a device that holds requests: that is no idleness, and no client is released for it.
            return;
        }
        for &(client, device) in &self.shared_reach {
            self.samples[client as usize].bytes_per_s += self.shared_loads[device as usize];
        }
        for &(client, device, more) in self.shares.uneven() {
            self.samples[client as usize].bytes_per_s += self.shared_loads[device as usize] * more;
        }
        self.pay();
        let reads = &self.last.reads;
        let mut read_response = reads.mean_latency();
        if let Some((percentile, mean)) = self.percentile.as_mut().zip(read_response) {
            read_response = percentile.figure(now, mean);
            if read_response.is_none() {
                // Reads that were not timed are no idleness; if it stays so, the controller counts its signal as lost.
                return;
            }
        }
        let sample = Sample { read_response, reads: reads.completed, clients: &self.samples };
        self.controller.observe(now, &sample);
    }

    /// Updates, in each client's sample, the throughput of the client's tenant as a multiple of its reservation or guarantee.
    fn pay(&mut self) {
        let (devices, tenants) = &mut self.paces;
        if tenants.is_empty() {
            return;
        }
        tenants.fill(Pace::default());
        for (device, pace) in self.devices.iter().zip(devices.iter()) {
            if let Some(client) = self.clients.get(device.client as usize) {
                tenants[client.tenant as usize].add(pace, 1.0);
            }
        }
        let part = |device: u32| 1.0 / f64::from(self.shared_by[device as usize].max(1));
        let equal = self.shared_reach.iter().map(|&(client, device)| (client, device, 1.0));
        for (client, device, parts) in equal.chain(self.shares.uneven().iter().copied()) {
            tenants[self.clients[client as usize].tenant as usize].add(&devices[device as usize], parts * part(device));
        }
        devices.fill(Pace::default());
        let slowed = [self.packets != Packets::Acknowledgements, self.packets != Packets::Data];
        let terms = self.config.throttles.tenants();
        for (sample, client) in self.samples.iter_mut().zip(&self.clients) {
            let tenant = client.tenant as usize;
            sample.paid = terms[tenant].owed.paid(&tenants[tenant], slowed);
        }
    }

    /// Takes in how much each initiator has read and written on shared devices; `read` returns the counters in a folder.
    pub(super) fn count_initiators(&mut self, read: &mut dyn FnMut(&Path) -> Option<Moved>) {
        let shared_by = &self.shared_by;
        self.shares.count(self.packets, read, |device| shared_by[device as usize]);
    }

    /// Decides on the delays of all clients, and logs the decision with its reason. Returns true if the delay of a client or
    /// the kind of delayed packets has changed.
    pub(super) fn decide(&mut self, now: Instant) -> bool {
        let decision = self.controller.tick(now);
        self.reason = decision.reason;
        self.mean_delay = decision.mean_delay;
        let mut changed = false;
        let mut released = Vec::new();
        let mut decided = decision.delays.iter().peekable();
        for ((sample, held), client) in self.samples.iter().zip(&mut self.delays).zip(&self.clients) {
            // Who is gone may still be in the decision.
            while decided.next_if(|delay| delay.client < sample.client).is_some() {}
            let new = decided.next_if(|delay| delay.client == sample.client);
            let new = new.map(|new| (new.delay, new.reason)).unwrap_or_default();
            changed |= held.0 != new.0;
            if held.0 > Duration::ZERO && new.0.is_zero() {
                released.push(client.address);
            }
            *held = new;
        }
        let mut also = None;
        let before = self.decisions.last().map(|entry| entry.decision.reason);
        if matches!(self.reason, Reason::Ineffective { .. }) && !matches!(before, Some(Reason::Ineffective { .. })) {
            if self.choice == Packets::Acknowledgements && self.packets == Packets::Acknowledgements {
                self.packets = Packets::All;
                self.controller.throttle_changed();
                also = Some("from now on all packets to throttled clients wait, not acknowledgements alone");
                changed = true;
            } else {
                also = Some(CURE);
            }
        }
        let (reason, mean_delay) = (self.reason, self.mean_delay);
        // A decision that stays the same lengthens the record there is, ten times a second without a list of clients.
        if let Some(newest) = self.decisions.last_mut()
            && !changed
            && newest.decision.reason.name() == reason.name()
        {
            let before = &mut newest.decision;
            let (also, held) = (before.also, std::mem::take(&mut before.held));
            let released = std::mem::take(&mut before.released);
            newest.renew(now, Decision { reason, mean_delay, also, held, released });
            return false;
        }
        let clients = self.clients.iter().zip(&self.delays).filter(|(_, (delay, _))| *delay > Duration::ZERO);
        let held = clients.map(|(client, (delay, reason))| (client.address, *delay, *reason)).collect();
        self.decisions.record(now, Decision { reason, mean_delay, also, held, released });
        changed
    }

    /// The decisions in the log, oldest first.
    pub(super) fn records(&self) -> impl Iterator<Item = DecisionRecord> {
        self.decisions.iter().map(|entry| self.record(entry))
    }

    fn record(&self, entry: &Entry<Decision>) -> DecisionRecord {
        let mut record = self.plain_record(&entry.decision, DecisionRecord::of(entry, seconds));
        if let Some(also) = entry.decision.also {
            record.because = format!("{}; {also}", record.because);
        }
        record
    }

    /// The record of a decision with the times of `at`, without the decision's further step.
    fn plain_record(&self, decision: &Decision, at: DecisionRecord) -> DecisionRecord {
        let Decision { reason, mean_delay, held, released, .. } = decision;
        let tenant = |address: IpAddr| {
            let client = self.clients.iter().find(|client| client.address == address);
            let terms = client.and_then(|client| self.config.throttles.tenants().get(client.tenant as usize));
            terms.map_or_else(String::new, |terms| terms.tenant.clone())
        };
        let mut most: Vec<&(IpAddr, Duration, ClientReason)> = held.iter().collect();
        most.sort_by_key(|(_, delay, _)| std::cmp::Reverse(*delay));
        let most = most.iter().take(LISTED).map(|(address, delay, _)| MostThrottled {
            tenant: tenant(*address),
            client: address.to_string(),
            delay_ms: delay.as_millis_f64(),
            bytes_per_s: None,
        });
        let client = |(client, delay, reason): &(IpAddr, Duration, ClientReason)| Throttled {
            client: client.to_string(),
            delay_ms: delay.as_millis_f64(),
            because: explain::throttled(reason),
        };
        let mut record = DecisionRecord {
            point: Enforcement::Packets,
            throttled: held.len() as u64,
            most_throttled: most.collect(),
            released: released.len() as u64,
            some_released: released.iter().take(LISTED).map(IpAddr::to_string).collect(),
            clients: held.iter().map(client).collect(),
            ..at.with_latency(&self.name, self.config.latency.percentile, reason, *mean_delay)
        };
        record.because = explain::latency(reason, Throttles::Clients, &record);
        record
    }

    /// The newest decision as a sentence.
    fn because(&self) -> String {
        let newest = self.decisions.last().map(|entry| self.plain_record(&entry.decision, DecisionRecord::default()));
        let percentile = self.config.latency.percentile;
        let undecided =
            || DecisionRecord::default().with_latency(&self.name, percentile, &self.reason, self.mean_delay);
        newest.map_or_else(|| explain::latency(&self.reason, Throttles::Clients, &undecided()), |record| record.because)
    }

    /// Writes the delays of the pool's clients to their entries in `delays`.
    pub(super) fn delay(&self, delays: &mut Delays) {
        self.each_delay(delays, |entry, delay| *entry = delay);
    }

    /// As [`Self::delay`], but keeps a longer delay that another pool has written for the same client.
    pub(super) fn delay_longer(&self, delays: &mut Delays) {
        self.each_delay(delays, |entry, delay| *entry = entry.or_longer(delay));
    }

    fn each_delay(&self, delays: &mut Delays, take: impl Fn(&mut Delay, Delay)) {
        for &(client, place) in &self.places {
            let (delay, _) = self.delays[client as usize];
            if let Some(entry) = delays.at(place as usize) {
                take(entry, Delay { packets: self.packets, delay: delay.into() });
            }
        }
    }

    /// The state of the pool as of the latest tick; figures of single devices come from `tracker`.
    pub(super) fn state(&self, tracker: &Tracker) -> PoolState {
        let sample = &self.last;
        let ms = |duration: Option<Duration>| duration.map(Duration::as_millis_f64);
        let device = |(number, name): &(DeviceNumber, String)| {
            let reading = tracker.get(*number);
            let sample = reading.and_then(Reading::sample).unwrap_or_default();
            DeviceState {
                name: name.clone(),
                read_latency_ms: ms(sample.reads.mean_latency()),
                write_latency_ms: ms(sample.writes.mean_latency()),
                iops: sample.all().iops(sample.interval),
                latency_ms: ms(sample.all().mean_latency()),
                read_bytes_per_s: sample.reads.bytes_per_s(sample.interval),
                write_bytes_per_s: sample.writes.bytes_per_s(sample.interval),
                in_flight: sample.in_flight,
            }
        };
        let mut clients: Vec<(IpAddr, ClientState)> = self
            .clients
            .iter()
            .zip(0..)
            .map(|(client, place)| (client.address, self.client_state(client, place)))
            .collect();
        clients.sort_by_key(|(address, _)| *address);
        let (percentile, read_ms) = (self.percentile.as_ref(), ms(sample.reads.mean_latency()));
        let reads = ReadsState {
            measured: if percentile.is_some() { "device" } else { "statistics" }.into(),
            latency_ms: read_ms,
            percentiles: percentile.and_then(Percentile::usual),
        };
        let measured_ms = percentile.map_or(read_ms, |percentile| ms(percentile.measured()));
        let target = LatencyTargetState::of(self.config.latency, measured_ms);
        let (because, mean_delay_ms) = (self.because(), self.mean_delay.as_millis_f64());
        let throttled = self.delays.iter().filter(|(delay, _)| *delay > Duration::ZERO).count();
        let latency_ms = ms(sample.all().mean_latency());
        let lately = Lately {
            window_s: sample.interval.as_secs_f64(),
            iops: sample.all().iops(sample.interval),
            bytes_per_s: sample.all().bytes_per_s(sample.interval),
            latency_ms,
            device_latency_ms: latency_ms,
            p99_ms: reads.percentiles.map(|reads| reads.p99_ms),
            targets: vec![verdict::of_latency(&target, self.reason.name())],
            throttled_by: verdict::delays(throttled, "client", mean_delay_ms, &because),
            because,
            ..Lately::default()
        };
        let at = PacketsState {
            read_bytes_per_s: sample.reads.bytes_per_s(sample.interval),
            write_bytes_per_s: sample.writes.bytes_per_s(sample.interval),
            packets: match self.packets {
                Packets::Acknowledgements => "acknowledgements",
                Packets::Data => "data",
                Packets::All => "all",
            }
            .to_owned(),
            devices: self.names.iter().map(device).collect(),
            clients: clients.into_iter().map(|(_, client)| client).collect(),
        };
        PoolState {
            name: self.name.clone(),
            method: self.config.method.name().into(),
            reason: self.reason.name().to_owned(),
            notes: Vec::new(),
            lately,
            latency_target: Some(target),
            reads: Some(reads),
            in_flight: sample.in_flight,
            mean_delay_ms,
            at: At::Packets(at),
        }
    }

    fn client_state(&self, client: &GuardedClient, place: usize) -> ClientState {
        let (delay, reason) = &self.delays[place];
        let reached = &self.reach[self.reach.partition_point(|(client, _)| (*client as usize) < place)..];
        let mut reached = reached.iter().take_while(|(client, _)| *client as usize == place);
        let throttled = || if delay.is_zero() { String::new() } else { explain::throttled(reason) };
        let because = client.exempt_because.clone().unwrap_or_else(throttled);
        let delay_ms = delay.as_millis_f64();
        ClientState {
            address: client.address.to_string(),
            names: client.names.iter().cloned().collect(),
            throttle: client.throttle.name().into(),
            exempt_because: client.exempt_because.clone(),
            load_is_estimated: reached
                .any(|&(client, device)| self.shared_by[device as usize] > 1 && !self.shares.knows(client, device)),
            delay_ms,
            lately: Lately {
                window_s: self.last.interval.as_secs_f64(),
                bytes_per_s: self.samples[place].bytes_per_s,
                throttled_by: verdict::delayed(delay_ms, &because),
                because,
                ..Lately::default()
            },
        }
    }
}
