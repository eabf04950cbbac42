//! Bounds on the number of connections of each client; and on connections that have not chosen a volume yet: their number,
//! their duration, and the processor time that they take.
//!
//! A client may have at most as many connections as it leaves free for other clients: the first client half of all places,
//! the next a quarter, and so on, so that a new client always finds a place. The last places are kept for clients that have
//! few connections. A site, the /48 network of IPv6 addresses that one customer of a provider usually gets, has as many places
//! as a few clients: it has 65,536 networks that count as clients. The addresses 127.0.0.0/8 of this machine count as clients
//! of their own, so that programs which stand for several hosts are several clients; all of them together leave some places to
//! clients from elsewhere, because each local program can use every one of these 16 million addresses. User ids that are
//! subordinate to one user (`/etc/subuid`) count like the networks of a site: the user can be each of them. In all three cases
//! the clients together have little more processor time of their own for negotiations than one other client; beyond it they
//! take what other clients leave over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_control::duty::{Config, Turn};
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::handshake::MAX_OPTIONS_PER_EXPORT;

use crate::paced::{Paced, Work};
use crate::refusals::Reason;
use crate::transport::Peer;

/// Divisor: this part of all places is kept for clients with few connections.
const KEPT: u32 = 16;
/// A client has few connections if it has less than the number of free places divided by this. With 16,384 places and clients
/// that want all of them, the last of 32 clients gets 11 places, the last of 100 gets 4.
const FEW: u32 = 64;
/// A client, or a site, has many connections if it has more than this number: more than one client uses for throughput.
const MANY: u32 = 64;
/// A site may have as many connections and negotiations as this number of clients: of each, at most three quarters of all.
const SITE: u32 = 4;
/// The first user id that may be subordinate to another user (`SUB_UID_MIN` of `/etc/login.defs`).
const SUBORDINATE: u32 = 100_000;
/// Number of user ids that are usually subordinate to one user (`SUB_UID_COUNT` of `/etc/login.defs`).
const OF_ONE_USER: u32 = 65_536;
/// Divisor: this part of all places is for clients that do not come from a loopback address. It is half of what is kept for
/// clients with few connections, so that 32 greedy loopback addresses leave some places to other loopback addresses.
const NOT_LOOPBACK: u32 = 32;
/// Time that each answered option adds to a client's handshake timeout, for at most [`MAX_OPTIONS_PER_EXPORT`] options for
/// each export: a client that asks for every export's description over a slow link is not timed out, an idle one is.
const PER_OPTION: Duration = Duration::from_millis(250);
/// Upper bound on the time that waiting for turns adds to a client's handshake timeout, as a multiple of that timeout.
const LONGEST_WAIT: u64 = 4;

/// Processor time that handshakes may take at once after a pause, on a server without exports. Half of it suffices for one
/// host that starts a hundred machines: a TLS handshake takes 0.2 to 0.5 ms.
const BURST: Duration = Duration::from_millis(100);
/// Processor time that each export adds to [`BURST`]. Half of it suffices for a client that asks for descriptions of all
/// exports: `nbdinfo --list` takes 60 us for each export.
const BURST_PER_EXPORT: Duration = Duration::from_micros(150);

/// Bound on the processor time of accepting and refusing connections: a third of a processor, of which the thread's clock
/// counts three quarters. Under this bound a full queue of the kernel (4,096 connections, some 20 us each) is emptied within
/// 0.4 s. So a client that connects during a flood is accepted before TCP would retransmit its SYN (1 s), unless the flood
/// brings more than 12,000 connections per second.
const ACCEPTING: Config = Config { one_in: 4, burst: BURST };

/// Processor time that handshakes may take at once after a pause, on a server with `exports` exports.
fn burst(exports: usize) -> Duration {
    BURST + Duration::from_nanos(BURST_PER_EXPORT.as_nanos().saturating_mul(exports as u64))
}

/// True if a client or tenant that has `own` places may take another one, when `taken` of the `most` places in all are taken.
/// If there are fewer than [`KEPT`] places in all, any free place may be taken.
pub(crate) fn may_have_another(own: u32, taken: u32, most: u32) -> bool {
    let free = most.saturating_sub(taken);
    free > 0 && (own == 0 || most < KEPT || own < free.saturating_sub(most / KEPT).max(free / FEW))
}

/// Counts connections and running negotiations, in total and of each client. Bounds the processor time of accepting
/// connections and, shared out among clients, of negotiations (TLS and options).
pub(crate) struct Handshakes {
    most: u32,
    most_of_client: u32,
    most_connections: u32,
    patience: Duration,
    counts: Mutex<Counts>,
    pace: Paced<Client>,
    accepting: Paced<()>,
}

#[derive(Default)]
struct Counts {
    all: Count,
    of: HashMap<Client, Count>,
}

impl Counts {
    fn of(&self, client: Client) -> Count {
        self.of.get(&client).copied().unwrap_or_default()
    }

    /// Adds `one` to the counts of the client, of its site, and of all.
    fn more(&mut self, client: Client, one: Count) {
        let more = |count: &mut Count| {
            count.negotiating += one.negotiating;
            count.connections += one.connections;
        };
        more(&mut self.all);
        for client in client.and_site() {
            more(self.of.entry(client).or_default());
        }
    }

    /// Takes `one` off the counts to which [`Self::more`] has added it.
    fn less(&mut self, client: Client, one: Count) {
        let less = |count: &mut Count| {
            count.negotiating -= one.negotiating;
            count.connections -= one.connections;
            *count == Count::default()
        };
        less(&mut self.all);
        for client in client.and_site() {
            if let Entry::Occupied(mut count) = self.of.entry(client)
                && less(count.get_mut())
            {
                count.remove();
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    connections: u32,
    negotiating: u32,
}

/// A client, as connections are counted: an IPv4 address, the /64 network of an IPv6 address (in which a host can have any
/// number of addresses), a user of this machine, or a certificate, whichever addresses show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Client {
    V4(u32),
    V6(u64),
    /// A site, the /48 network of IPv6 addresses, which only counts beside its clients.
    Site(u64),
    /// All addresses 127.0.0.0/8, which only count beside their clients.
    Loopback,
    User(Option<u32>),
    /// The user ids that may be subordinate to one user, which only count beside their clients.
    Users(u32),
    /// A certificate, by the first eight bytes of its fingerprint.
    Certificate(u64),
}

impl Client {
    /// The site of the client, if it has one; for a loopback address, all of them, and for a subordinate user id, its block.
    fn site(self) -> Option<Self> {
        match self {
            Self::V6(network) => Some(Self::Site(network >> 16)),
            Self::V4(address) => Ipv4Addr::from_bits(address).is_loopback().then_some(Self::Loopback),
            Self::User(uid) => uid?.checked_sub(SUBORDINATE).map(|above| Self::Users(above / OF_ONE_USER)),
            Self::Site(_) | Self::Loopback | Self::Users(_) | Self::Certificate(_) => None,
        }
    }

    /// The client, and its site if it has one.
    fn and_site(self) -> impl Iterator<Item = Self> {
        [Some(self), self.site()].into_iter().flatten()
    }
}

impl From<&Peer> for Client {
    fn from(peer: &Peer) -> Self {
        match peer.address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => Self::V4(address.to_bits()),
            Some(IpAddr::V6(address)) => Self::V6((address.to_bits() >> 64) as u64),
            None => Self::User(peer.uid),
        }
    }
}

impl Handshakes {
    /// Counts without connections, with these bounds: `most` running negotiations, `most_of_client` negotiations of one
    /// client, `patience` for each negotiation, and `most_connections` connections.
    pub(crate) fn new(most: u32, most_of_client: u32, patience: Duration, most_connections: u32) -> Self {
        Self {
            most,
            most_of_client,
            most_connections,
            patience,
            counts: Mutex::default(),
            pace: Paced::with_sites(Config { burst: burst(0), ..Config::STORM }, Client::site),
            accepting: Paced::new(ACCEPTING),
        }
    }

    /// Sets the number of exports, on which the burst of processor time depends.
    pub(crate) fn set_exports(&self, exports: usize) {
        self.pace.set_burst(burst(exports));
    }

    /// Counts a new connection: it counts as negotiating until the ticket is dropped, and as a connection until the place is
    /// dropped.
    ///
    /// # Errors
    /// The reason for refusing the connection: the bound that it would exceed.
    pub(crate) fn begin(self: &Arc<Self>, peer: &Peer, now: Instant) -> Result<(Ticket, Place), Reason> {
        let client: Client = peer.into();
        let mut counts = self.counts();
        let (all, own) = (counts.all, counts.of(client));
        let of_site = client.site().map(|site| counts.of(site)).unwrap_or_default();
        let is_loopback = client.site() == Some(Client::Loopback);
        // As one of the clients among which the site's places are shared out.
        let site = if is_loopback {
            Count::default()
        } else {
            Count { connections: of_site.connections / SITE, negotiating: of_site.negotiating / SITE }
        };
        let is_crowded = |of_site: u32, most: u32| is_loopback && of_site >= most - most / NOT_LOOPBACK;
        if all.negotiating >= self.most {
            return Err(Reason::Handshakes);
        }
        let fits = |count: Count| {
            count.negotiating < self.most_of_client && may_have_another(count.negotiating, all.negotiating, self.most)
        };
        if !fits(own) || !fits(site) || is_crowded(of_site.negotiating, self.most) {
            return Err(Reason::HandshakesOfClient);
        }
        let fits = |count: Count| may_have_another(count.connections, all.connections, self.most_connections);
        if !fits(own) || !fits(site) || is_crowded(of_site.connections, self.most_connections) {
            return Err(if all.connections >= self.most_connections {
                Reason::Connections
            } else {
                Reason::ConnectionsOfClient
            });
        }
        counts.more(client, Count { negotiating: 1, connections: 1 });
        let most = self.patience.as_nanos().saturating_mul(LONGEST_WAIT);
        let ticket = Ticket {
            counted: self.counted(client),
            until: now + self.patience,
            options: 0,
            waits_since: None,
            may_wait: Duration::from_nanos(most),
        };
        Ok((ticket, Place(self.counted(client))))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counted(self: &Arc<Self>, client: Client) -> Counted {
        Counted { handshakes: Arc::clone(self), client }
    }

    /// Charges the accepting of connections this thread's processor time since `work` began; returns a new measurement that
    /// begins now.
    pub(crate) fn accepted(&self, work: &Work) -> Work {
        self.accepting.charge((), work)
    }

    /// Time from which the next connection may be accepted; `None`: at once.
    pub(crate) fn next_connection(&self) -> Option<Instant> {
        self.accepting.newcomer()
    }

    /// Charges a negotiating client this thread's processor time since `work` began; returns a new measurement that begins
    /// now.
    pub(crate) fn charge(&self, client: Client, work: &Work) -> Work {
        self.pace.charge(client, work)
    }

    /// As [`Self::charge`], for work that cannot wait for the client's turn: accepting the client, or finding that it has to
    /// wait.
    pub(crate) fn charge_anyway(&self, client: Client, work: &Work) -> Work {
        self.pace.charge_anyway(client, work)
    }
}

struct Counted {
    handshakes: Arc<Handshakes>,
    client: Client,
}

/// A running negotiation, counted until dropped, with its timeout.
pub(crate) struct Ticket {
    counted: Counted,
    /// Time by which the client must have chosen a volume.
    until: Instant,
    /// Number of answered options that have extended `until`.
    options: u32,
    /// Time at which the client began to wait for its turn; `None` if it is not waiting.
    waits_since: Option<Instant>,
    /// Time that waiting for turns may still add to `until`, at most.
    may_wait: Duration,
}

impl Ticket {
    /// The client that negotiates.
    pub(crate) fn client(&self) -> Client {
        self.counted.client
    }

    /// The answer if it is the client's turn now, or until when the client has to wait.
    pub(crate) fn turn(&self) -> Turn {
        self.counted.handshakes.pace.turn(self.counted.client)
    }

    /// Records that the client waits for its turn from `now` on; this time does not count towards its timeout.
    pub(crate) fn waits(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// Records that the client is served again at `now`: extends its timeout by the time for which it waited.
    pub(crate) fn goes_on(&mut self, now: Instant) {
        let Some(since) = self.waits_since.take() else { return };
        let waited = now.since(since).min(self.may_wait);
        self.may_wait = Duration::from_nanos(self.may_wait.as_nanos() - waited.as_nanos());
        self.until += waited;
    }

    /// Extends the client's timeout for answered options. `options`: number of the client's options answered so far;
    /// `exports`: number of the server's exports.
    pub(crate) fn has_answered(&mut self, options: u32, exports: usize) {
        let most = u32::try_from(exports).unwrap_or(u32::MAX).saturating_mul(MAX_OPTIONS_PER_EXPORT);
        let options = options.min(most).max(self.options);
        let more = u64::from(options - self.options);
        self.until += Duration::from_nanos(PER_OPTION.as_nanos() * more);
        self.options = options;
    }

    /// True if the client's timeout is over at `now`.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let waits = self.waits_since.map_or(Duration::ZERO, |since| now.since(since).min(self.may_wait));
        now > self.until + waits
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Counted { handshakes, client } = &self.counted;
        handshakes.counts().less(*client, Count { negotiating: 1, connections: 0 });
    }
}

/// A connection that counts for its client until this value is dropped.
pub(crate) struct Place(Counted);

impl Place {
    /// True if the connection's client, or its site, has more than [`MANY`] connections.
    pub(crate) fn is_one_of_many(&self) -> bool {
        let counts = self.0.handshakes.counts();
        self.0.client.and_site().any(|client| counts.of(client).connections > MANY)
    }

    /// Records that the connection's client has shown the certificate with this fingerprint: from now on the connection
    /// counts for this certificate, not for its address.
    ///
    /// # Errors
    /// If the certificate has as many connections as it may have; in this case the connection still counts for its address.
    pub(crate) fn shows(&mut self, fingerprint: &[u8; 32]) -> Result<(), Reason> {
        let (bytes, _) = fingerprint.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let client = Client::Certificate(u64::from_be_bytes(*bytes));
        let Counted { handshakes, client: before } = &mut self.0;
        let mut counts = handshakes.counts();
        let own = counts.of(client).connections;
        // Without this one, which is counted already.
        if !may_have_another(own, counts.all.connections - 1, handshakes.most_connections) {
            return Err(Reason::ConnectionsOfClient);
        }
        let one = Count { negotiating: 0, connections: 1 };
        counts.more(client, one);
        counts.less(std::mem::replace(before, client), one);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.handshakes.counts().less(self.0.client, Count { negotiating: 0, connections: 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshakes(most: u32, of_client: u32) -> Arc<Handshakes> {
        Arc::new(Handshakes::new(most, of_client, Duration::from_secs(30), 1024))
    }

    fn second(second: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(second)
    }

    fn at(address: &str) -> Peer {
        Peer { address: Some(address.parse().unwrap()), ..Peer::default() }
    }

    #[test]
    fn one_client_cannot_take_the_places_of_others() {
        let handshakes = handshakes(3, 2);
        let begin = |peer: &Peer| handshakes.begin(peer, Instant::ZERO);
        let mut held: Vec<_> = (0..2).map(|_| begin(&at("192.0.2.1")).ok().unwrap()).collect();
        assert_eq!(begin(&at("192.0.2.1")).err(), Some(Reason::HandshakesOfClient));
        assert_eq!(begin(&at("::ffff:192.0.2.1")).err(), Some(Reason::HandshakesOfClient));
        held.push(begin(&at("192.0.2.2")).ok().unwrap());
        assert_eq!(begin(&at("192.0.2.3")).err(), Some(Reason::Handshakes));
        held.remove(0);
        assert!(begin(&at("192.0.2.1")).is_ok());
        held.clear();
        let counts = handshakes.counts();
        assert!(counts.all == Count::default() && counts.of.is_empty(), "nothing is left of those that are done");
    }

    #[test]
    fn a_client_has_many_connections_only_beside_its_own() {
        let handshakes = handshakes(u32::MAX, u32::MAX);
        let begin = |peer: &Peer| handshakes.begin(peer, Instant::ZERO).ok().unwrap().1;
        let mut held: Vec<_> = (0..MANY).map(|_| begin(&at("192.0.2.1"))).collect();
        assert!(!held.iter().any(Place::is_one_of_many));
        held.push(begin(&at("192.0.2.1")));
        assert!(held.iter().all(Place::is_one_of_many));
        assert!(!begin(&at("192.0.2.2")).is_one_of_many());
    }

    #[test]
    fn the_many_networks_of_one_site_leave_places_to_others() {
        let handshakes = handshakes(64, 8);
        let begin = |network: u32| handshakes.begin(&at(&format!("2001:db8:1:{network:x}::1")), Instant::ZERO);
        let mut held: Vec<_> = (0..1_000).filter_map(|network| begin(network).ok()).collect();
        assert_eq!(held.len(), 32, "as many as four clients");
        let refused = begin(2_000).err().expect("its client has no connection, its site too many");
        assert_eq!(refused, Reason::HandshakesOfClient);
        assert!(refused.because().contains("/48"), "{}", refused.because());
        for other in ["2001:db8:2::1", "192.0.2.1"] {
            held.extend((0..8).map(|_| handshakes.begin(&at(other), Instant::ZERO).ok().unwrap()));
        }
        // The connections of a site whose clients have finished their negotiations.
        let of_site = Arc::new(Handshakes::new(u32::MAX, u32::MAX, Duration::from_secs(30), 1024));
        let begin = |network: u32| of_site.begin(&at(&format!("2001:db8:1:{network:x}::1")), Instant::ZERO);
        let mut places: Vec<_> = (0..2_000).filter_map(|network| begin(network).ok()).collect();
        assert!((700..=1024 / 4 * 3).contains(&places.len()), "{} connections", places.len());
        let refused = begin(0).err().expect("its site has too many");
        assert_eq!(refused, Reason::ConnectionsOfClient);
        assert!(refused.because().contains("/48"), "{}", refused.because());
        let other = of_site.begin(&at("2001:db8:2::1"), Instant::ZERO);
        assert!(other.is_ok());
        // A client that shows its certificate does not count for its site any more.
        let (_ticket, mut place) = places.pop().unwrap();
        let site = Client::Site(0x2001_0db8_0001);
        let before = of_site.counts().of(site).connections;
        assert!(place.shows(&[7; 32]).is_ok());
        assert_eq!(of_site.counts().of(site).connections, before - 1);
        drop((held, places, place, _ticket, other));
        for handshakes in [handshakes, of_site] {
            let counts = handshakes.counts();
            assert!(counts.all == Count::default() && counts.of.is_empty(), "nothing is left");
        }
    }

    #[test]
    fn the_many_user_ids_of_one_user_leave_places_to_others() {
        let handshakes = handshakes(u32::MAX, u32::MAX);
        let begin = |uid: u32| handshakes.begin(&Peer { uid: Some(uid), ..Peer::default() }, Instant::ZERO);
        let mut held: Vec<_> = (0..4_000).filter_map(|n| begin(SUBORDINATE + n).ok()).collect();
        assert!((700..=1024 / 4 * 3).contains(&held.len()), "{} connections", held.len());
        let refused = begin(SUBORDINATE + OF_ONE_USER - 1).err().expect("its block has too many");
        assert_eq!(refused, Reason::ConnectionsOfClient);
        assert!(refused.because().contains("user ids"), "{}", refused.because());
        for other in [0, 1_000, SUBORDINATE - 1, SUBORDINATE + OF_ONE_USER, u32::MAX - 1] {
            held.extend((0..8).map(|_| begin(other).ok().unwrap()));
        }
        held.push(handshakes.begin(&at("192.0.2.1"), Instant::ZERO).ok().unwrap());
        drop(held);
        let counts = handshakes.counts();
        assert!(counts.all == Count::default() && counts.of.is_empty(), "nothing is left");
    }

    #[test]
    fn each_loopback_address_is_a_client_and_all_of_them_leave_places_to_others() {
        let begin = |handshakes: &Arc<Handshakes>, host: u32| {
            let address = IpAddr::V4(Ipv4Addr::from_bits(0x7f00_0001 + host));
            handshakes.begin(&Peer { address: Some(address), ..Peer::default() }, Instant::ZERO)
        };
        assert_ne!(Client::from(&at("127.0.0.1")), Client::from(&at("127.0.0.2")));
        // Of 1,024 connections: those of 32 that want all, and then of thousands that want one.
        let connections = handshakes(u32::MAX, u32::MAX);
        let mut held = Vec::new();
        for host in 0..32 {
            held.extend(std::iter::from_fn(|| begin(&connections, host).ok()));
        }
        assert!((900..992).contains(&held.len()), "{} connections of a crowd leave some to others", held.len());
        held.extend((32..4_000).filter_map(|host| begin(&connections, host).ok()));
        assert_eq!(held.len(), 1024 - 32);
        for another in ["127.200.0.1", "::ffff:127.200.0.1"] {
            assert_eq!(connections.begin(&at(another), Instant::ZERO).err(), Some(Reason::ConnectionsOfClient));
        }
        // Of 64 negotiations.
        let negotiations = handshakes(64, 64);
        held.extend((0..1_000).filter_map(|host| begin(&negotiations, host).ok()));
        assert_eq!(negotiations.counts().all.negotiating, 64 - 2);
        let refused = begin(&negotiations, 2_000).err().expect("all of them together have too many");
        assert_eq!(refused, Reason::HandshakesOfClient);
        assert!(refused.because().contains("127.0.0.0/8"), "{}", refused.because());
        for handshakes in [&connections, &negotiations] {
            for other in [at("192.0.2.1"), at("2001:db8::1"), Peer { uid: Some(7), ..Peer::default() }] {
                let other = handshakes.begin(&other, Instant::ZERO);
                assert!(other.is_ok(), "{:?}", other.err());
            }
        }
        drop(held);
        for handshakes in [connections, negotiations] {
            let counts = handshakes.counts();
            assert!(counts.all == Count::default() && counts.of.is_empty(), "nothing is left");
        }
    }

    #[test]
    fn the_many_clients_of_a_site_take_their_turns_from_each_other_only() {
        let sites: [fn(u32) -> Client; 3] = [
            |n| Client::V4(0x7f00_0001 + n),
            |n| Client::V6(0x2001_0db8_0001_0000 + u64::from(n)),
            |n| Client::User(Some(SUBORDINATE + n)),
        ];
        for client in sites {
            let handshakes = handshakes(64, 64);
            // 1.6 s may be used at once, of which six clients use 540 ms.
            handshakes.set_exports(10_000);
            let work = Work::begin();
            while Work::begin().since(&work) < 90_000_000 {}
            for n in 0..6 {
                handshakes.pace.charge(client(n), &work);
            }
            assert_eq!(handshakes.pace.turn(client(100)), Turn::Spare, "its site has had its part");
            for other in [Client::V4(0xc000_0201), Client::V6(0x2001_0db8_0002_0000), Client::User(Some(1_000))] {
                assert_eq!(handshakes.pace.turn(other), Turn::Own);
            }
        }
    }

    #[test]
    fn what_may_be_used_at_once_grows_with_the_exports() {
        // Half of it goes to one client: 250 TLS handshakes, or a description of all exports.
        let half = |exports| Duration::from_nanos(burst(exports).as_nanos() / 2);
        assert_eq!(half(0), Duration::from_millis(50));
        assert_eq!(half(10_000), Duration::from_millis(800));
        let handshakes = handshakes(3, 3);
        let client = Client::V4(1);
        // Three quarters of it are used up: it takes seconds, however slow the machine is, until half of it is there again.
        let work = Work::begin();
        while Work::begin().since(&work) < burst(0).as_nanos() / 4 * 3 {}
        handshakes.charge(client, &work);
        assert!(handshakes.pace.delay(client).is_some());
        handshakes.set_exports(10_000);
        assert!(handshakes.pace.delay(client).is_some(), "exports that are added are no present");
    }

    #[test]
    fn however_many_connections_clients_open_one_that_has_none_finds_a_place() {
        const MOST: u32 = 1024;
        let handshakes = handshakes(u32::MAX, u32::MAX);
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for host in 0..40u8 {
            let address = format!("192.0.2.{host}");
            let before = held.len();
            held.extend(std::iter::from_fn(|| handshakes.begin(&at(&address), Instant::ZERO).ok()).take(MOST as usize));
            counts.push(held.len() - before);
        }
        assert_eq!(counts[..4], [480, 240, 120, 60], "half of what is left, and a sixteenth is kept");
        assert!(counts.iter().all(|&count| count >= 1), "{counts:?}");
        assert_eq!(handshakes.begin(&at("192.0.2.0"), Instant::ZERO).err(), Some(Reason::ConnectionsOfClient));
        // Few places go to who comes first.
        assert!((0..15).all(|n| may_have_another(n, n, 15)) && !may_have_another(15, 15, 15));
    }

    #[test]
    fn many_clients_of_one_site_have_many_connections_together() {
        let handshakes = handshakes(u32::MAX, u32::MAX);
        let begin = |peer: &Peer| handshakes.begin(peer, Instant::ZERO).ok().unwrap().1;
        let sites: [fn(u32) -> Peer; 3] = [
            |n| at(&format!("127.0.0.{n}")),
            |n| at(&format!("2001:db8:0:{n}::1")),
            |n| Peer { uid: Some(SUBORDINATE + n), ..Peer::default() },
        ];
        for client in sites {
            let mut held: Vec<_> = (1..=MANY).map(|n| begin(&client(n))).collect();
            assert!(!held.iter().any(Place::is_one_of_many));
            held.push(begin(&client(MANY + 1)));
            assert!(held.iter().all(Place::is_one_of_many));
        }
        assert!(!begin(&at("192.0.2.1")).is_one_of_many());
    }

    #[test]
    fn of_many_clients_that_want_every_place_each_has_more_than_one() {
        const MOST: u32 = 16_384;
        let greedy = |clients: usize| {
            let mut taken = 0;
            let mut had = Vec::new();
            for _ in 0..clients {
                let own = (0..).find(|&own| !may_have_another(own, taken + own, MOST)).unwrap();
                taken += own;
                had.push(own);
            }
            // Those that came first want more whenever they may.
            assert!(had[0] >= 7_000 && had.iter().all(|&own| own >= 7_000 || !may_have_another(own, taken, MOST)));
            had.into_iter().min().unwrap()
        };
        assert_eq!((greedy(32), greedy(100)), (11, 4));
    }

    #[test]
    fn who_shows_a_certificate_is_one_client_wherever_from() {
        const MOST: u32 = 1024;
        let handshakes = handshakes(u32::MAX, u32::MAX);
        let mut held = Vec::new();
        let of = |handshakes: &Handshakes, client| handshakes.counts().of.get(&client).map(|count| count.connections);
        let refused = (0..).find(|n: &u32| {
            let (_ticket, mut place) = handshakes.begin(&at(&format!("192.0.2.{}", n % 100)), Instant::ZERO).unwrap();
            let shown = place.shows(&[7; 32]);
            held.push(place);
            shown.is_err()
        });
        assert_eq!(refused, Some(480), "as many as of one address");
        assert_eq!(of(&handshakes, Client::Certificate(0x0707_0707_0707_0707)), Some(480));
        assert_eq!(of(&handshakes, (&at("192.0.2.1")).into()), None);
        assert_eq!(of(&handshakes, (&at("192.0.2.80")).into()), Some(1), "the refused one is still its address's");
        let (_ticket, mut place) = handshakes.begin(&at("192.0.2.1"), Instant::ZERO).unwrap();
        assert!(place.shows(&[8; 32]).is_ok() && handshakes.counts().all.connections <= MOST);
        drop((held, place, _ticket));
        let counts = handshakes.counts();
        assert!(counts.all == Count::default() && counts.of.is_empty());
    }

    #[test]
    fn a_host_is_its_network_where_it_has_many_addresses_and_a_user_where_it_has_none() {
        let client = |peer: &Peer| Client::from(peer);
        assert_eq!(client(&at("2001:db8::1")), client(&at("2001:db8::ffff:1")));
        assert_ne!(client(&at("2001:db8::1")), client(&at("2001:db8:0:1::1")));
        assert_ne!(client(&at("192.0.2.1")), client(&at("192.0.2.2")));
        let user = |uid| Client::from(&Peer { uid: Some(uid), ..Peer::default() });
        assert!(user(1) == user(1) && user(1) != user(2));
    }

    #[test]
    fn time_grows_with_options_that_there_is_reason_to_ask_and_with_no_others() {
        let handshakes = handshakes(3, 3);
        let begin = || handshakes.begin(&at("192.0.2.1"), second(100)).ok().unwrap();
        let (idle, _place) = begin();
        assert!(!idle.is_late(second(130)) && idle.is_late(second(131)));
        // A hundred exports: 400 options add 100 s, however many there are.
        let (mut busy, _place) = begin();
        (1..=1_000).for_each(|options| busy.has_answered(options, 100));
        assert!(!busy.is_late(second(230)) && busy.is_late(second(231)));
        // Exports that are removed take nothing back, and add nothing when they come again.
        busy.has_answered(1_001, 1);
        busy.has_answered(1_002, 100);
        assert!(!busy.is_late(second(230)) && busy.is_late(second(231)));
    }

    #[test]
    fn waiting_for_its_turn_does_not_count_against_a_client_up_to_a_bound() {
        let handshakes = handshakes(3, 3);
        let (mut ticket, _place) = handshakes.begin(&at("192.0.2.1"), second(0)).ok().unwrap();
        ticket.waits(second(10));
        ticket.waits(second(20));
        assert!(!ticket.is_late(second(60)), "it still waits");
        ticket.goes_on(second(60));
        ticket.goes_on(second(70));
        assert!(!ticket.is_late(second(80)) && ticket.is_late(second(81)), "50 s do not count");
        ticket.waits(second(80));
        // Of 120 s, 70 are left.
        assert!(!ticket.is_late(second(150)) && ticket.is_late(second(151)));
        ticket.goes_on(second(1_000));
        assert!(ticket.is_late(second(1_000)));
    }
}
