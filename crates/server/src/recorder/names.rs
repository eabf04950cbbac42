//! The numbers and names of tenants, clients and volumes in recordings.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use evenkeel_control::pool::TenantId;
use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Name, Table};

use super::clients::Known;
use super::{Host, Record};
use crate::worker::request::ConnKey;

/// Time for which the client of an ended connection is remembered although another one has its slot: records come at most a
/// few rounds of a worker later.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Largest number of clients that are remembered: some 10 MB. Clients that come and go a thousand times a second would
/// otherwise use up the memory in the hour for which an ordered recording remembers them.
const MOST_CLIENTS: usize = 1 << 16;
/// Time after its newest request from which on a client is forgotten where there are so many; under a new number it may come
/// again.
const FORGOTTEN_EARLY: Duration = Duration::from_secs(10);
/// Number that stands for all clients for which there is no room.
const OTHERS: u32 = u32::MAX;
/// Name of a tenant or client that is not known.
const UNKNOWN: &str = "unknown";

/// The numbers that stand for a request's tenant and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) tenant: u32,
    pub(super) client: u32,
}

/// A volume as recordings name it.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) pool: String,
    pub(super) bytes: u64,
}

struct Client {
    numbers: Numbers,
    used: Instant,
}

/// All numbers of the session. A number stands for the same name in all files of the session, and never for another one.
pub(super) struct Names {
    /// Epoch of the snapshot from which tenants and volumes were taken.
    epoch: u64,
    tenant_ids: HashMap<(u32, TenantId), u32>,
    tenant_numbers: HashMap<Arc<str>, u32>,
    /// Names of tenants by number.
    tenants: HashMap<u32, Arc<str>>,
    next_tenant: u32,
    volumes: HashMap<u32, Volume>,
    /// Tenants and volumes that the configuration has no more, by number, each with the time at which that was noticed.
    gone: HashMap<(Table, u32), Instant>,
    clients: HashMap<ConnKey, Client>,
    /// Names of clients by number.
    client_names: HashMap<u32, String>,
    next_client: u32,
    /// When clients were forgotten early last.
    made_room: Instant,
    /// Clients of connections whose slots others have: since about the time `since`, and in the [`REMEMBERED`] before that.
    recent: HashMap<ConnKey, Known>,
    older: HashMap<ConnKey, Known>,
    since: Instant,
}

impl Names {
    /// No names but that of the unknown tenant, whose number is 0.
    pub(super) fn new() -> Self {
        let unknown: Arc<str> = UNKNOWN.into();
        Self {
            epoch: u64::MAX,
            tenant_ids: HashMap::new(),
            tenant_numbers: HashMap::from([(Arc::clone(&unknown), 0)]),
            tenants: HashMap::from([(0, unknown)]),
            next_tenant: 1,
            volumes: HashMap::new(),
            gone: HashMap::new(),
            clients: HashMap::new(),
            client_names: HashMap::from([(OTHERS, UNKNOWN.to_owned())]),
            next_client: 0,
            made_room: Instant::ZERO,
            recent: HashMap::new(),
            older: HashMap::new(),
            since: Instant::ZERO,
        }
    }

    /// Takes over tenants and volumes if the configuration has changed, and the clients of connections whose slots others have.
    pub(super) fn follow(&mut self, shared: &dyn Host, now: Instant) {
        if shared.epoch() != self.epoch {
            self.epoch = shared.epoch();
            // Not kept: it would keep files of removed volumes open.
            let snapshot = shared.snapshot();
            let mut present = HashSet::from([(Table::Tenant, 0)]);
            for (pool, tenants) in snapshot.tenants.iter().enumerate() {
                for (name, &id) in tenants {
                    let number = self.tenant(name);
                    self.tenant_ids.insert((pool as u32, id), number);
                    present.insert((Table::Tenant, number));
                }
            }
            for volume in snapshot.volumes.iter().flatten() {
                let pool = snapshot.pools.get(volume.pool).map(|pool| pool.name.clone()).unwrap_or_default();
                let named = Volume { name: volume.name.clone(), pool, bytes: volume.size() };
                self.volumes.insert(volume.id, named);
                present.insert((Table::Volume, volume.id));
            }
            self.lack(&present, now);
        }
        if now.since(self.since) > REMEMBERED {
            self.since = now;
            self.older = std::mem::take(&mut self.recent);
        }
        let replaced = shared.recorder().clients.lock().unwrap_or_else(PoisonError::into_inner).take_replaced();
        self.recent.extend(replaced.into_iter().map(|known| (known.key, known)));
    }

    /// Notes which tenants and volumes the configuration has no more; `present`: those that it has.
    fn lack(&mut self, present: &HashSet<(Table, u32)>, now: Instant) {
        self.gone.retain(|known, _| !present.contains(known));
        let tenants = self.tenants.keys().map(|&number| (Table::Tenant, number));
        let volumes = self.volumes.keys().map(|&id| (Table::Volume, id));
        for known in tenants.chain(volumes).filter(|known| !present.contains(known)) {
            self.gone.entry(known).or_insert(now);
        }
    }

    fn tenant(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&number) = self.tenant_numbers.get(name) {
            return number;
        }
        let number = self.next_tenant;
        self.next_tenant = self.next_tenant.wrapping_add(1);
        self.tenants.insert(number, Arc::clone(name));
        self.tenant_numbers.insert(Arc::clone(name), number);
        number
    }

    /// The numbers of a request's tenant and client.
    pub(super) fn numbers(&mut self, shared: &dyn Host, record: &Record) -> Numbers {
        let of_client = match self.clients.get_mut(&record.key) {
            Some(client) => {
                client.used = client.used.max(record.done);
                client.numbers
            }
            None => self.meet(shared, record),
        };
        let named = record.tenant.and_then(|id| self.tenant_ids.get(&(record.pool, id)).copied());
        Numbers { tenant: named.unwrap_or(of_client.tenant), ..of_client }
    }

    /// Gives numbers to a client that has had none.
    #[cold]
    fn meet(&mut self, shared: &dyn Host, record: &Record) -> Numbers {
        let key = record.key;
        let known = self.recent.get(&key).or_else(|| self.older.get(&key)).cloned();
        let known = known
            .or_else(|| shared.recorder().clients.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned());
        self.number(key, known.as_ref(), record.done)
    }

    /// Gives numbers to the client of a connection, of which a request ended at `done`; `known`: what is known of it.
    fn number(&mut self, key: ConnKey, known: Option<&Known>, done: Instant) -> Numbers {
        let tenant = known.map_or(0, |known| self.tenant(&known.tenant));
        if !self.has_room(done) {
            return Numbers { tenant, client: OTHERS };
        }
        let numbers = Numbers { tenant, client: self.next_client };
        self.next_client = self.next_client.wrapping_add(1);
        let name = known.map_or_else(|| UNKNOWN.to_owned(), |known| known.peer.to_string());
        self.client_names.insert(numbers.client, name);
        self.clients.insert(key, Client { numbers, used: done });
        numbers
    }

    /// True if there is room for another client; forgets clients early for that, once in a while.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.clients.len() >= MOST_CLIENTS && now.since(self.made_room) >= REMEMBERED {
            self.made_room = now;
            self.forget_clients(now - FORGOTTEN_EARLY);
        }
        self.clients.len() < MOST_CLIENTS
    }

    /// Forgets clients of which no request has ended since `before`.
    fn forget_clients(&mut self, before: Instant) {
        let names = &mut self.client_names;
        self.clients.retain(|_, client| {
            let stays = client.used >= before;
            if !stays {
                names.remove(&client.numbers.client);
            }
            stays
        });
    }

    /// Forgets clients of which no request has ended since `before`, and tenants and volumes that had gone by then.
    pub(super) fn forget(&mut self, before: Instant) {
        self.forget_clients(before);
        let used: HashSet<u32> = self.clients.values().map(|client| client.numbers.tenant).collect();
        let Self { gone, tenants, tenant_numbers, volumes, .. } = self;
        gone.retain(|&(table, number), since| {
            if *since >= before || (table == Table::Tenant && used.contains(&number)) {
                return true;
            }
            match table {
                Table::Tenant => {
                    tenants.remove(&number).and_then(|name| tenant_numbers.remove(&name));
                }
                Table::Volume => drop(volumes.remove(&number)),
                Table::Client => {}
            }
            false
        });
        self.tenant_ids.retain(|_, number| self.tenants.contains_key(number));
    }

    /// True if the client with this number has not been forgotten.
    pub(super) fn has_client(&self, number: u32) -> bool {
        self.client_names.contains_key(&number)
    }

    /// The volume with this id.
    pub(super) fn volume(&mut self, id: u32) -> &Volume {
        match self.volumes.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            // It was there for less than the time between two turns of the thread.
            Entry::Vacant(place) => {
                place.insert(Volume { name: format!("volume {id}"), pool: String::new(), bytes: 0 })
            }
        }
    }

    /// The name that a number stands for.
    pub(super) fn name(&mut self, table: Table, number: u32) -> Name {
        let plain = |name: String| Name { table, number, name, pool: String::new(), bytes: 0 };
        match table {
            Table::Tenant => plain(self.tenants.get(&number).map_or(UNKNOWN, |name| &**name).to_owned()),
            Table::Client => plain(self.client_names.get(&number).cloned().unwrap_or_else(|| UNKNOWN.to_owned())),
            Table::Volume => {
                let volume = self.volume(number).clone();
                Name { table, number, name: volume.name, pool: volume.pool, bytes: volume.bytes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_come_and_go_use_up_no_memory() {
        let key = |n: u32| ConnKey { slot: n % 1_000, generation: n / 1_000 * 2 };
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut names = Names::new();
        let many = 4 * MOST_CLIENTS as u32;
        // Five thousand a second: those of the newest ten seconds have room.
        let mut given = HashSet::new();
        for n in 0..many {
            given.insert(names.number(key(n), None, at(u64::from(n) / 5)).client);
        }
        assert_eq!(given.len(), many as usize, "each has a number of its own");
        let most = |names: &Names| names.clients.len() <= MOST_CLIENTS && names.client_names.len() <= 1 + MOST_CLIENTS;
        assert!(most(&names), "{} clients", names.clients.len());
        // All at once.
        let now = at(u64::from(many) / 5);
        for n in many..2 * many {
            given.insert(names.number(key(n), None, now).client);
        }
        assert!(given.contains(&OTHERS) && most(&names) && names.has_client(OTHERS));
        assert_eq!(names.name(Table::Client, OTHERS).name, UNKNOWN);
    }

    #[test]
    fn what_has_gone_is_forgotten_and_its_number_is_not_used_again() {
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let mut names = Names::new();
        let (shop, bank) = (names.tenant(&"shop".into()), names.tenant(&"bank".into()));
        for (id, name) in [(7, "a"), (8, "b")] {
            names.volumes.insert(id, Volume { name: name.into(), pool: "main".into(), bytes: 1 });
        }
        // A connection of the bank's is still there.
        let key = ConnKey { slot: 0, generation: 0 };
        let numbers = Numbers { tenant: bank, client: 0 };
        names.clients.insert(key, Client { numbers, used: at(50) });
        names.client_names.insert(0, "unix".into());
        let present = HashSet::from([(Table::Tenant, 0), (Table::Volume, 8)]);
        names.lack(&present, at(10));
        names.lack(&present, at(20));
        names.forget(at(10));
        assert_eq!((names.tenants.len(), names.volumes.len(), names.has_client(0)), (3, 2, true), "too early");
        names.forget(at(11));
        assert_eq!((names.tenants.len(), names.volumes.len()), (2, 1));
        assert_eq!(names.name(Table::Tenant, bank).name, "bank");
        names.forget(at(60));
        assert_eq!((names.tenants.len(), names.tenant_numbers.len(), names.has_client(0)), (1, 1, false));
        assert_eq!(names.name(Table::Tenant, bank).name, UNKNOWN);
        let again = names.tenant(&"shop".into());
        assert!(again > shop && again > bank, "{again}");
    }
}
