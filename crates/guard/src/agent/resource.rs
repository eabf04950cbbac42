//! One resource with a goal: its devices, its clients, its controller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use evenkeel_control::Instant;
use evenkeel_control::response::{
    ClientId, ClientReason, ClientSample, Controller, InvalidConfig, Reason, Sample, Standing,
};

use super::record::{
    ClientState, DeviceState, HeldClient, Record, ResourceState, Sentence, client_sentence, figures, seconds,
};
use crate::actuator::{Client, Hold, Packets};
use crate::config::{Config, Guard, PacketChoice, ResourceConfig, Who};
use crate::discovery::Link;
use crate::sensor::diskstats::{self, DeviceNumber, Reading, Tracker};

/// A resource with a goal.
pub(super) struct Guarded {
    name: String,
    config: ResourceConfig,
    controller: Controller,
    choice: PacketChoice,
    /// Which packets wait now: the choice, or all after it had no effect.
    packets: Packets,
    devices: BTreeMap<DeviceNumber, Device>,
    clients: Vec<GuardedClient>,
    /// For the controller, in the clients' order.
    samples: Vec<ClientSample>,
    last: diskstats::Sample,
    reason: Reason,
    mean_delay_ms: f64,
    /// Newest last.
    records: VecDeque<Record>,
    max_records: usize,
    /// What the newest record says, for a comparison without text.
    recorded: Vec<(ClientId, evenkeel_control::Duration)>,
}

struct Device {
    name: String,
    /// Clients that reach it.
    shared_by: usize,
    sample: Option<diskstats::Sample>,
}

struct GuardedClient {
    id: ClientId,
    address: IpAddr,
    names: BTreeSet<String>,
    standing: Standing,
    exempt_because: Option<String>,
    devices: BTreeSet<DeviceNumber>,
    /// What its packets are told by.
    keys: Vec<Client>,
    delay: Option<(evenkeel_control::Duration, ClientReason)>,
}

impl Guarded {
    pub(super) fn new(
        name: &str,
        resource: &ResourceConfig,
        config: &Config,
        max_records: usize,
    ) -> Result<Self, InvalidConfig> {
        Ok(Self {
            name: name.to_owned(),
            config: resource.clone(),
            controller: Controller::new(&config.controller(resource))?,
            choice: config.guard.packets,
            packets: config.guard.packets.packets(),
            devices: BTreeMap::new(),
            clients: Vec::new(),
            samples: Vec::new(),
            last: diskstats::Sample::default(),
            reason: Reason::NotEnoughData,
            mean_delay_ms: 0.0,
            records: VecDeque::new(),
            max_records,
            recorded: Vec::new(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Takes over who reaches it: its own links, and all links of clients that reach several resources.
    pub(super) fn follow(
        &mut self,
        links: &[&Link],
        of_ambiguous: &[&Link],
        guard: &Guard,
        mut id_of: impl FnMut(IpAddr) -> ClientId,
    ) {
        let mut addresses: BTreeMap<IpAddr, Vec<&Link>> = BTreeMap::new();
        let mut devices = BTreeMap::new();
        for link in links {
            if let Some((number, name)) = link.number.zip(link.device.clone()) {
                devices.entry(number).or_insert(Device { name, shared_by: 0, sample: None });
            }
            if let Some(address) = link.client {
                addresses.entry(address).or_default().push(link);
            }
        }
        let clients = addresses.into_iter().map(|(address, links)| {
            let names: BTreeSet<String> = links.iter().filter_map(|link| link.client_name.clone()).collect();
            let reached: BTreeSet<DeviceNumber> = links.iter().filter_map(|link| link.number).collect();
            for number in &reached {
                if let Some(device) = devices.get_mut(number) {
                    device.shared_by += 1;
                }
            }
            let keys = match of_ambiguous.iter().any(|link| link.client == Some(address)) {
                false => vec![Client::Address(address)],
                true => self.own_connections(of_ambiguous, address),
            };
            let (standing, exempt_because) = self.standing(guard, address, &names, &keys);
            GuardedClient {
                id: id_of(address),
                address,
                names,
                standing,
                exempt_because,
                devices: reached,
                keys,
                delay: None,
            }
        });
        self.clients = clients.collect();
        self.devices = devices;
    }

    /// Connections of an address that lead to this resource and to no other.
    fn own_connections(&self, links: &[&Link], address: IpAddr) -> Vec<Client> {
        let links = || links.iter().filter(|link| link.client == Some(address));
        let of = |here: bool| {
            let links = links().filter(move |link| (link.resource.as_ref() == Some(&self.name)) == here);
            links.flat_map(|link| link.connections.iter().copied())
        };
        let elsewhere: BTreeSet<_> = of(false).collect();
        // A link whose connections are not told may be any of them.
        let untold = links().any(|link| link.connections.is_empty());
        let own: BTreeSet<_> = of(true).filter(|connection| !untold && !elsewhere.contains(connection)).collect();
        let key = |connection: crate::discovery::map::Connection| Client::Connection {
            address,
            client_port: connection.remote.port(),
            service_port: connection.local.port(),
        };
        own.into_iter().map(key).collect()
    }

    fn standing(
        &self,
        guard: &Guard,
        address: IpAddr,
        names: &BTreeSet<String>,
        keys: &[Client],
    ) -> (Standing, Option<String>) {
        let names: Vec<String> = names.iter().cloned().collect();
        let on = |own: &[Who], general: &[Who]| own.iter().chain(general).any(|who| who.is(address, &names));
        if on(&self.config.never, &guard.never) {
            return (Standing::Never, None);
        }
        if keys.is_empty() {
            let why = "reaches several resources by connections that cannot be told apart";
            return (Standing::Never, Some(why.into()));
        }
        if address.is_loopback() {
            return (Standing::Never, Some("is on this machine".into()));
        }
        let standing = if on(&self.config.important, &guard.important) {
            Standing::Important
        } else if on(&self.config.always, &guard.always) {
            Standing::Always
        } else {
            Standing::Ordinary
        };
        (standing, None)
    }

    /// Tells the controller what its devices did.
    pub(super) fn observe(&mut self, now: Instant, tracker: &Tracker) {
        for (number, device) in &mut self.devices {
            device.sample = tracker.get(*number).and_then(Reading::sample).copied();
        }
        let known = || self.devices.values().filter_map(|device| device.sample.as_ref());
        if known().next().is_none() {
            // No measurement is not the same as no reads: the controller notices that nothing comes.
            return;
        }
        self.last = diskstats::together(known());
        if self.last.is_stuck() {
            // Nothing comes out of a device that holds requests: that is no idleness to let everyone go.
            return;
        }
        self.samples.clear();
        for client in &self.clients {
            let bytes_per_s = client.load(&self.devices, self.packets);
            self.samples.push(ClientSample { client: client.id, standing: client.standing, bytes_per_s });
        }
        let reads = &self.last.reads;
        let sample =
            Sample { read_response: reads.mean_response_time(), reads: reads.completed, clients: &self.samples };
        self.controller.observe(now, &sample);
    }

    /// Decides, and records why.
    pub(super) fn decide(&mut self, now: Instant) {
        let decision = self.controller.tick(now);
        self.reason = decision.reason;
        self.mean_delay_ms = decision.mean_delay.as_millis_f64();
        let delays = || decision.delays.iter().map(|delay| (delay.client, delay.delay));
        let newest = self.records.back();
        let same = newest.is_some_and(|record| record.reason == self.reason.name())
            && delays().eq(self.recorded.iter().copied());
        if !same {
            self.recorded.clear();
            self.recorded.extend(delays());
        }
        for client in &mut self.clients {
            let found = decision.delays.binary_search_by_key(&client.id, |delay| delay.client);
            client.delay = found.ok().map(|place| (decision.delays[place].delay, decision.delays[place].reason));
        }
        let mut because = Sentence(&self.reason).to_string();
        let without_effect = matches!(self.reason, Reason::DoesNotBite { .. });
        if without_effect && self.choice == PacketChoice::Acknowledgements && self.packets == Packets::Acknowledgements
        {
            self.packets = Packets::All;
            self.controller.throttle_changed();
            because += "; from now on all packets wait, not acknowledgements alone";
        }
        let (measured_ms, target_ms) = figures(&self.reason);
        // A decision that stays the same lengthens the record there is.
        if let Some(record) = self.records.back_mut().filter(|_| same) {
            record.until_s = seconds(now);
            record.times += 1;
            (record.because, record.measured_ms, record.target_ms) = (because, measured_ms, target_ms);
            return;
        }
        let held = self.clients.iter().filter_map(|client| {
            let (delay, reason) = client.delay.as_ref()?;
            let (delay_ms, because) = (delay.as_millis_f64(), client_sentence(reason));
            Some(HeldClient { client: client.address.to_string(), delay_ms, because })
        });
        let record = Record {
            resource: self.name.clone(),
            from_s: seconds(now),
            until_s: seconds(now),
            times: 1,
            reason: self.reason.name().to_owned(),
            because,
            measured_ms,
            target_ms,
            held: held.collect(),
        };
        if self.records.len() == self.max_records {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Its decisions, oldest first.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// What is to be held back for it.
    pub(super) fn holds(&self) -> impl Iterator<Item = (Client, Hold)> {
        self.clients.iter().flat_map(|client| {
            let delay = client.delay.as_ref().map(|(delay, _)| super::std_duration(*delay));
            let hold = delay.map(|delay| Hold { packets: self.packets, delay });
            client.keys.iter().filter_map(move |key| Some((*key, hold?)))
        })
    }

    /// What is known about it.
    pub(super) fn state(&self) -> ResourceState {
        let sample = &self.last;
        let ms = |duration: Option<evenkeel_control::Duration>| duration.map(evenkeel_control::Duration::as_millis_f64);
        let device = |device: &Device| {
            let sample = device.sample.unwrap_or_default();
            DeviceState {
                name: device.name.clone(),
                read_response_ms: ms(sample.reads.mean_response_time()),
                write_response_ms: ms(sample.writes.mean_response_time()),
                read_bytes_per_s: sample.reads.bytes_per_s(sample.interval),
                write_bytes_per_s: sample.writes.bytes_per_s(sample.interval),
                in_flight: sample.in_flight,
            }
        };
        ResourceState {
            name: self.name.clone(),
            goal_ms: self.config.read_response_time.0.as_millis_f64(),
            read_response_ms: ms(sample.reads.mean_response_time()),
            read_bytes_per_s: sample.reads.bytes_per_s(sample.interval),
            write_bytes_per_s: sample.writes.bytes_per_s(sample.interval),
            in_flight: sample.in_flight,
            mean_delay_ms: self.mean_delay_ms,
            reason: self.reason.name().to_owned(),
            because: Sentence(&self.reason).to_string(),
            packets: match self.packets {
                Packets::Acknowledgements => "acknowledgements",
                Packets::Data => "data",
                Packets::All => "all",
            }
            .to_owned(),
            devices: self.devices.values().map(device).collect(),
            clients: self.clients.iter().map(|client| client.state(&self.devices, self.packets)).collect(),
        }
    }
}

impl GuardedClient {
    /// Its load in bytes per second: what a delay of these packets holds back, on its own devices whole, on shared ones
    /// an equal part, because nobody tells more.
    fn load(&self, devices: &BTreeMap<DeviceNumber, Device>, packets: Packets) -> f64 {
        let loads = self.devices.iter().filter_map(|number| {
            let device = devices.get(number)?;
            let sample = device.sample.as_ref()?;
            let flow = match packets {
                Packets::Data => sample.reads,
                // Delaying everything is the fallback for writers whose acknowledgements cannot be delayed.
                Packets::Acknowledgements | Packets::All => sample.writes,
            };
            Some(flow.bytes_per_s(sample.interval) / device.shared_by.max(1) as f64)
        });
        loads.sum()
    }

    fn state(&self, devices: &BTreeMap<DeviceNumber, Device>, packets: Packets) -> ClientState {
        let shared = |number: &DeviceNumber| devices.get(number).is_some_and(|device| device.shared_by > 1);
        ClientState {
            address: self.address.to_string(),
            names: self.names.iter().cloned().collect(),
            standing: match self.standing {
                Standing::Ordinary => "ordinary",
                Standing::Important => "important",
                Standing::Never => "never",
                Standing::Always => "always",
            }
            .to_owned(),
            exempt_because: self.exempt_because.clone(),
            bytes_per_s: self.load(devices, packets),
            load_is_estimated: self.devices.iter().any(shared),
            delay_ms: self.delay.as_ref().map_or(0.0, |(delay, _)| delay.as_millis_f64()),
            because: self.delay.as_ref().map_or_else(String::new, |(_, reason)| client_sentence(reason)),
        }
    }
}
