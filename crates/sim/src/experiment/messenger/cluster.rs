//! The Ceph cluster of the paper: connections between clients and OSDs, and the messages on them.

use evenkeel_control::rng::SplitMix64;

/// Number of OSDs (storage servers) in the cluster: four on each of four nodes (section VI.A of the paper).
pub const OSDS: usize = 16;
/// Number of OSDs on a node.
const OSDS_OF_NODE: usize = 4;
/// Worker threads of each OSD.
pub const WORKERS: usize = 8;
/// Number of clients. Each has one connection to every OSD.
pub const CLIENTS: usize = 8;
/// Number of connections of an OSD, as in the paper. Their division is assumed: 8 to clients, 15 to other OSDs, one to a
/// monitor, and the remaining 28 for heartbeats.
pub const CONNECTIONS: usize = 52;
/// Number of an OSD's connections to other OSDs.
const PEERS: usize = OSDS - 1;

/// Low-priority messages (maps, states) per client read in Table I; assumed to be proportional to the reads.
const LOW_PER_READ: f64 = (92 + 2_220 + 1_033 + 386 + 3_677) as f64 / 20_404_227.0;
/// Low-priority messages (maps, states) per client write in Table I; assumed to be proportional to the writes.
const LOW_PER_WRITE: f64 = (123 + 2_359 + 1_128 + 440 + 3_874) as f64 / 5_201_621.0;
/// Number of heartbeats in Table I, in a run with reads or with writes.
const PINGS: f64 = 28_724.0 + 14_356.0 + 14_356.0;
/// Heartbeats per client read; assumed to be proportional to the reads.
const PINGS_PER_READ: f64 = PINGS / 20_404_227.0;
/// Heartbeats per client write; assumed to be proportional to the writes.
const PINGS_PER_WRITE: f64 = PINGS / 5_201_621.0;
/// Mean number of messages to replicas per write beyond the first one (Table I).
pub(super) const MORE_REPOPS: f64 = 5_641_431.0 / 5_201_621.0 - 1.0;
/// Mean number of replies per message to a replica beyond the first one (Table I).
pub(super) const MORE_REPLIES: f64 = 6_650_456.0 / 5_641_431.0 - 1.0;

/// The number of an OSD's connection to `client`, among the OSD's [`CONNECTIONS`]; equal in every OSD.
pub(super) const fn client_connection(client: usize) -> u32 {
    client as u32
}

/// The number of the connection of `osd` to the OSD `peer`, among the connections of `osd`.
pub(super) const fn peer_connection(osd: usize, peer: usize) -> u32 {
    (CLIENTS + if peer < osd { peer } else { peer - 1 }) as u32
}

/// The OSD at the other end of `connection`, which must be one of the connections of `osd` to other OSDs.
pub(super) const fn peer(osd: usize, connection: u32) -> usize {
    let place = connection as usize - CLIENTS;
    if place < osd { place } else { place + 1 }
}

/// The kind of a light message, which belongs to no request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Light {
    /// A low-priority message (maps, states), on a connection to an OSD or to the monitor.
    Low,
    /// A heartbeat, on one of the connections for heartbeats.
    Ping,
}

impl Light {
    /// Mean number of messages of this kind per client request; `write`: per write, otherwise per read.
    pub(super) const fn per_request(self, write: bool) -> f64 {
        match (self, write) {
            (Self::Low, false) => LOW_PER_READ,
            (Self::Low, true) => LOW_PER_WRITE,
            (Self::Ping, false) => PINGS_PER_READ,
            (Self::Ping, true) => PINGS_PER_WRITE,
        }
    }

    /// The number of a random connection among an OSD's connections that carry messages of this kind.
    pub(super) fn connection(self, rng: &mut SplitMix64) -> u32 {
        let (first, count) = match self {
            Self::Low => (CLIENTS, PEERS + 1),
            Self::Ping => (CLIENTS + PEERS + 1, CONNECTIONS - CLIENTS - PEERS - 1),
        };
        first as u32 + rng.next_below(count as u64) as u32
    }
}

/// The inequality of the destinations of requests, and how it changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skew {
    /// Standard deviation of the logarithm of the weights by which a client chooses OSDs, and an OSD its replicas.
    pub sigma: f64,
    /// Fraction of the variance, 0 to 1, that belongs to the chosen OSD and is common to all choosers of this OSD.
    pub common: f64,
    /// Fraction of the variance, 0 to 1 - `common`, that changes over time. The remaining fraction belongs to each pair of
    /// chooser and chosen OSD and is constant over a run.
    pub drifting: f64,
    /// Time constant of the changing fraction, in seconds: after this time its correlation with the old value is 1/e.
    pub memory_s: f64,
}

/// The order in which an OSD's connections are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opening {
    /// A random order: the main case.
    #[default]
    Random,
    /// Every fourth connection carries requests or replicas, so that round robin puts all of these on two of eight workers. It
    /// is the worst case for round robin, and was assumed because no skew alone gives the differences of the paper's figure 2.
    Colliding,
}

evenkeel_control::named!(Opening: Random "random", Colliding "colliding");

/// Period of the colliding order: every fourth connection carries requests or replicas, until all of these are opened; the others
/// are light.
const TURN: usize = 4;

/// Numbers of the connections of `osd`, in the order in which they are opened.
pub(super) fn opening_order(osd: usize, opening: Opening, rng: &mut SplitMix64) -> Vec<u32> {
    fn shuffle(list: &mut [u32], rng: &mut SplitMix64) {
        for last in (1..list.len()).rev() {
            list.swap(last, rng.next_below(last as u64 + 1) as usize);
        }
    }
    let all = 0..CONNECTIONS as u32;
    if opening == Opening::Random {
        let mut order: Vec<u32> = all.collect();
        shuffle(&mut order, rng);
        return order;
    }
    let is_active = |&connection: &u32| {
        let place = connection as usize;
        place < CLIENTS || (place < CLIENTS + PEERS && peer(osd, connection) / OSDS_OF_NODE != osd / OSDS_OF_NODE)
    };
    let (mut active, mut others): (Vec<u32>, Vec<u32>) = all.partition(is_active);
    shuffle(&mut active, rng);
    let first = rng.next_below(TURN as u64) as usize;
    let mut order = vec![None; CONNECTIONS];
    for place in (first..CONNECTIONS).step_by(TURN) {
        order[place] = active.pop();
    }
    others.append(&mut active);
    shuffle(&mut others, rng);
    order.into_iter().filter_map(|taken| taken.or_else(|| others.pop())).collect()
}

/// Weights by which clients choose OSDs and OSDs choose replicas. The weights change every second.
#[derive(Clone, Debug)]
pub(super) struct Destinations {
    skew: Skew,
    /// Per client: the weights of the OSDs.
    of_clients: Vec<Table>,
    /// Per OSD: the weights of the OSDs that keep its replicas, all of which are on other nodes.
    of_osds: Vec<Table>,
}

#[derive(Clone, Debug)]
struct Table {
    common: Vec<f64>,
    lasting: Vec<f64>,
    drifting: Vec<f64>,
    possible: Vec<bool>,
    cumulative: Vec<f64>,
}

impl Table {
    fn new(possible: Vec<bool>, common: &[f64], rng: &mut SplitMix64) -> Self {
        let mut draw = || possible.iter().map(|_| rng.next_normal()).collect();
        let (lasting, drifting) = (draw(), draw());
        Self { common: common.to_vec(), lasting, drifting, cumulative: vec![0.0; possible.len()], possible }
    }

    fn add_up(&mut self, skew: &Skew) {
        let mut sum = 0.0;
        for place in 0..self.possible.len() {
            if self.possible[place] {
                let normal = skew.common.sqrt() * self.common[place]
                    + (1.0 - skew.common - skew.drifting).max(0.0).sqrt() * self.lasting[place]
                    + skew.drifting.sqrt() * self.drifting[place];
                sum += libm::exp(skew.sigma * normal);
            }
            self.cumulative[place] = sum;
        }
    }

    fn draw(&self, rng: &mut SplitMix64) -> usize {
        let last = self.cumulative.len() - 1;
        let point = rng.next_f64() * self.cumulative[last];
        self.cumulative.iter().position(|&sum| point < sum).unwrap_or(last)
    }
}

impl Destinations {
    pub(super) fn new(skew: Skew, rng: &mut SplitMix64) -> Self {
        let common: Vec<f64> = (0..OSDS).map(|_| rng.next_normal()).collect();
        let of_clients = (0..CLIENTS).map(|_| Table::new(vec![true; OSDS], &common, rng)).collect();
        let elsewhere = |osd: usize| (0..OSDS).map(|other| other / OSDS_OF_NODE != osd / OSDS_OF_NODE).collect();
        let of_osds = (0..OSDS).map(|osd| Table::new(elsewhere(osd), &common, rng)).collect();
        let mut destinations = Self { skew, of_clients, of_osds };
        destinations.tables().for_each(|table| table.add_up(&skew));
        destinations
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut Table> {
        self.of_clients.iter_mut().chain(&mut self.of_osds)
    }

    /// Moves all weights on by one second of their random walk; to be called once per second of virtual time.
    pub(super) fn drift(&mut self, rng: &mut SplitMix64) {
        let skew = self.skew;
        let kept = libm::exp(-1.0 / skew.memory_s);
        let new = (1.0 - kept * kept).sqrt();
        for table in self.tables() {
            table.drifting.iter_mut().for_each(|value| *value = kept * *value + new * rng.next_normal());
            table.add_up(&skew);
        }
    }

    /// A random OSD for a request of `client`, by weight.
    pub(super) fn of_client(&self, client: usize, rng: &mut SplitMix64) -> usize {
        self.of_clients[client].draw(rng)
    }

    /// A random OSD for the replica of a write to `osd`, by weight.
    pub(super) fn replica(&self, osd: usize, rng: &mut SplitMix64) -> usize {
        self.of_osds[osd].draw(rng)
    }
}

/// The distribution of the queue depths of a run's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// Every client has eight jobs with eight requests in flight each (section VI.B).
    Equal,
    /// A client's jobs, and requests in flight per job, are both drawn from a normal distribution with mean eight. Its
    /// standard deviation is assumed, because the paper leaves it open.
    Random,
}

evenkeel_control::named!(Load: Equal "equal clients", Random "random clients");

/// Mean number of jobs of a client, and also of requests in flight per job.
const JOBS: f64 = 8.0;
/// Standard deviation of a client's jobs, and also of requests in flight per job, with [`Load::Random`]; assumed.
const JOBS_SD: f64 = 3.0;

impl Load {
    /// The queue depth of each client: its jobs times the requests in flight per job.
    pub(super) fn depths(self, rng: &mut SplitMix64) -> Vec<u64> {
        let mut draw = |sd: f64| (JOBS + sd * rng.next_normal()).round().clamp(1.0, 2.0 * JOBS) as u64;
        let sd = if self == Self::Equal { 0.0 } else { JOBS_SD };
        (0..CLIENTS).map(|_| draw(sd) * draw(sd)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_agree() {
        for osd in 0..OSDS {
            for other in (0..OSDS).filter(|&other| other != osd) {
                let connection = peer_connection(osd, other);
                assert_eq!(peer(osd, connection), other);
                assert!((CLIENTS..CLIENTS + PEERS).contains(&(connection as usize)));
            }
        }
    }

    #[test]
    fn replicas_are_on_other_nodes_and_destinations_are_as_unequal_as_asked() {
        let mut rng = SplitMix64::new(4);
        let skew = Skew { sigma: 0.8, common: 0.0, drifting: 0.5, memory_s: 10.0 };
        let mut destinations = Destinations::new(skew, &mut rng);
        let (mut sum, mut squares, mut n) = (0.0, 0.0, 0.0);
        for second in 0..2_000 {
            destinations.drift(&mut rng);
            let osd = second % OSDS;
            assert_ne!(destinations.replica(osd, &mut rng) / OSDS_OF_NODE, osd / OSDS_OF_NODE);
            for table in &destinations.of_clients {
                for place in 1..OSDS {
                    let log = libm::log(table.cumulative[place] - table.cumulative[place - 1]);
                    (sum, squares, n) = (sum + log, squares + log * log, n + 1.0);
                }
            }
        }
        let deviation = (squares / n - (sum / n) * (sum / n)).sqrt();
        // The lasting half is 120 draws: 5 % is within three standard errors.
        assert!((deviation - 0.8).abs() < 0.08, "{deviation}");
    }

    #[test]
    fn connections_are_all_opened_and_those_in_use_in_turns() {
        let mut rng = SplitMix64::new(3);
        for osd in 0..OSDS {
            let order = opening_order(osd, Opening::Colliding, &mut rng);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..CONNECTIONS as u32).collect::<Vec<_>>());
            // Clients, and OSDs on other nodes.
            let active = |connection: u32| {
                connection < 8 || (8..23).contains(&connection) && peer(osd, connection) / 4 != osd / 4
            };
            let of_turn =
                |first: usize| (first..CONNECTIONS).step_by(TURN).filter(|&place| active(order[place])).count();
            assert_eq!((0..TURN).map(of_turn).max(), Some(13));
            assert_eq!((0..TURN).map(of_turn).sum::<usize>(), 20);
        }
    }

    #[test]
    fn a_random_order_has_all_connections_and_spreads_those_in_use() {
        let mut rng = SplitMix64::new(3);
        let mut in_turn = [0; TURN];
        for osd in (0..OSDS).cycle().take(40 * OSDS) {
            let order = opening_order(osd, Opening::Random, &mut rng);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..CONNECTIONS as u32).collect::<Vec<_>>());
            for place in (0..CONNECTIONS).filter(|&place| order[place] < CLIENTS as u32) {
                in_turn[place % TURN] += 1;
            }
        }
        // 5,120 connections to clients, a quarter in each turn: within 5 standard deviations.
        assert!(in_turn.iter().all(|&count: &i32| (1_125..=1_435).contains(&count)), "{in_turn:?}");
    }

    #[test]
    fn equal_clients_have_64_outstanding_and_random_ones_differ() {
        let mut rng = SplitMix64::new(2);
        assert_eq!(Load::Equal.depths(&mut rng), [64; CLIENTS]);
        let depths = Load::Random.depths(&mut rng);
        assert!(depths.iter().all(|depth| (1..=256).contains(depth)) && depths.windows(2).any(|two| two[0] != two[1]));
    }
}
