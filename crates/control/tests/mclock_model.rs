//! Compares mClock with a slow and obvious model of itself, without heaps: every rule is a scan over all clients.
//!
//! Rates divide 10⁹ × 2³² and weights are powers of two, so that both sides are exact
//! and every answer can be compared without a tolerance. Where the tags of several clients tie,
//! the model accepts any of these clients and continues with the one that was chosen.

use std::collections::VecDeque;

use evenkeel_control::mclock::{ClientId, CostModel, Phase, Pull, Qos, Queue};
use evenkeel_control::units::{Direction, Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

/// A time in units of 2⁻³² ns.
type Fine = i128;
const NS: Fine = 1 << 32;
const SECOND: Fine = 1_000_000_000 * NS;

/// Virtual time that a client of weight 1 moves on by for each cost unit.
const VIRTUAL: u128 = 1 << 28;

#[derive(Clone, Debug)]
struct ModelClient {
    id: ClientId,
    qos: Qos,
    /// When the next request is due by reservation, for the rate in requests/s and the one in bytes/s.
    reservation: [Fine; 2],
    /// When the limit lets the next request pass, for the rate in requests/s and the one in bytes/s.
    limit: [Fine; 2],
    start_tag: u128,
    /// True if the client has a reservation and waits for its turn by weight: its tag is raised only when it is charged or
    /// ceases to wait.
    waits: bool,
    blocked: bool,
    /// The limit on reads and the one on writes, each with the instants at which its two rates let the next request pass.
    limits_of: [(Rates, [Fine; 2]); 2],
    queue: VecDeque<Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    work: Work,
    cost: u128,
    sequence: u64,
    at: u64,
}

/// The lists of a client with a limit on a direction: requests without data, reads, writes. Each keeps its order.
const LISTS: [Option<Direction>; 3] = [None, Some(Direction::Read), Some(Direction::Write)];

fn rates(of: Rates) -> [u64; 2] {
    [of.iops, of.bytes_per_s]
}

/// Rounds up to whole nanoseconds, the resolution of the scheduler's instants.
fn ceil(at: Fine) -> Fine {
    at.div_euclid(NS) + Fine::from(at.rem_euclid(NS) > 0)
}

fn charge(tags: &mut [Fine; 2], of: Rates, now: Fine, slack: Fine, bytes: u32) {
    for (tag, (rate, amount)) in tags.iter_mut().zip(rates(of).into_iter().zip([1, bytes])) {
        if rate > 0 {
            *tag = (*tag).max(now - slack).min(now) + SECOND / Fine::from(rate) * Fine::from(amount);
        }
    }
}

/// Converts tags to new rates: a debt stays the same in requests or bytes, credit is dropped.
fn convert(tags: &mut [Fine; 2], from: Rates, to: Rates, now: Fine) {
    for (tag, (from, to)) in tags.iter_mut().zip(rates(from).into_iter().zip(rates(to))) {
        let debt = (*tag - now).max(0);
        let same_work =
            if from == 0 || to == 0 { 0 } else { (debt * Fine::from(from) + Fine::from(to) - 1) / Fine::from(to) };
        *tag = now + same_work;
    }
}

impl ModelClient {
    /// True if the client has requests queued.
    fn active(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if the client takes part in sharing by weight: it has requests and is not blocked. Blocking does not affect service
    /// by reservation.
    fn shares(&self) -> bool {
        self.active() && !self.blocked
    }

    fn limit_of(&self, list: Option<Direction>) -> (Rates, [Fine; 2]) {
        list.map_or((Rates::UNSET, [0; 2]), |direction| self.limits_of[direction as usize])
    }

    /// True if a direction has a limit of its own: only then may requests of the client change order.
    fn has_lists(&self) -> bool {
        self.limits_of.iter().any(|(limit, _)| !limit.is_unset())
    }

    /// The oldest request of each list that is not empty: its index in the queue, and the list.
    fn firsts(&self) -> Vec<(usize, Option<Direction>)> {
        if !self.has_lists() {
            return self.queue.front().map(|_| (0, None)).into_iter().collect();
        }
        let first = |list| Some((self.queue.iter().position(|waiting| waiting.work.kind.direction() == list)?, list));
        LISTS.into_iter().filter_map(first).collect()
    }

    fn reservation_due_in(&self, list: Option<Direction>) -> Option<Fine> {
        let (own, own_due) = self.limit_of(list);
        (0..2)
            .filter(|&unit| rates(self.qos.reservation)[unit] > 0)
            .map(|unit| {
                let reserved = rates(self.qos.reservation)[unit];
                let held =
                    |limit: Rates, due: &[Fine; 2]| if rates(limit)[unit] >= reserved { due[unit] } else { Fine::MIN };
                let held_until = held(self.qos.limit, &self.limit).max(held(own, &own_due));
                ceil(self.reservation[unit].max(held_until)).max(0)
            })
            .min()
    }

    fn reservation_due(&self) -> Option<Fine> {
        self.firsts().into_iter().filter_map(|(_, list)| self.reservation_due_in(list)).min()
    }

    fn limit_due(&self) -> Fine {
        let due = |limit: Rates, due: &[Fine; 2]| {
            let set = (0..2).filter(|&unit| rates(limit)[unit] > 0);
            set.map(|unit| ceil(due[unit])).max().unwrap_or(0).max(0)
        };
        let of_list = |(_, list)| {
            let (limit, own) = self.limit_of(list);
            due(limit, &own)
        };
        due(self.qos.limit, &self.limit).max(self.firsts().into_iter().map(of_list).min().unwrap_or(0))
    }

    /// Index in the queue of the client's next request in this phase.
    fn next(&self, phase: Phase, now: Fine) -> usize {
        let passes = |list: Option<Direction>| {
            let (limit, due) = self.limit_of(list);
            (0..2).all(|unit| rates(limit)[unit] == 0 || ceil(due[unit]) <= now)
        };
        let may = |list| phase == Phase::Weight || self.reservation_due_in(list).is_some_and(|due| due <= now);
        let firsts = self.firsts().into_iter().filter(|&(_, list)| may(list));
        // Of the same age, in the order of the lists: the least is the first of several.
        let next = firsts.min_by_key(|&(place, list)| (!passes(list), self.queue[place].at));
        next.expect("something waits").0
    }

    fn class(&self) -> usize {
        usize::from(self.qos.background)
    }

    fn caught_up(&self, virtual_time: u128, credit: u128) -> u128 {
        let credit = credit * VIRTUAL / u128::from(self.qos.weight.max(1));
        self.start_tag.max(virtual_time.saturating_sub(credit))
    }

    fn is_normal_with_a_reservation(&self) -> bool {
        !self.qos.background && !self.qos.reservation.is_unset()
    }
}

#[derive(Default)]
struct Model {
    clients: Vec<ModelClient>,
    virtual_time: [u128; 2],
    /// Virtual time of normal clients when one of them was last served by weight although a reservation was due.
    passed: u128,
    weight_claim: i128,
    background_claim: i128,
    base_bytes: u128,
}

impl Model {
    /// Clients that may be served by weight at `now`.
    fn ready(&self, class: usize, now: Fine) -> impl Iterator<Item = &ModelClient> {
        self.clients.iter().filter(move |c| c.shares() && c.class() == class && c.limit_due() <= now)
    }

    fn due(&self, now: Fine) -> Option<Fine> {
        let active = self.clients.iter().filter(|c| c.active());
        active.filter_map(ModelClient::reservation_due).min().filter(|&due| due <= now)
    }

    fn next_due(&self) -> Option<Fine> {
        let active = self.clients.iter().filter(|c| c.active());
        active.flat_map(|c| c.reservation_due().into_iter().chain(c.shares().then(|| c.limit_due()))).min()
    }

    /// Raises the start tags of clients that begin to take part in sharing by weight, to at most the credit behind virtual time.
    fn catch_up(&mut self, now: Fine) {
        let most = self.credit();
        for client in &mut self.clients {
            let shares = client.shares() && client.limit_due() <= now;
            if client.waits && !shares {
                client.start_tag = client.caught_up(self.passed, most);
            }
            if shares && !client.waits {
                client.start_tag = client.caught_up(self.virtual_time[client.class()], most);
            }
            client.waits = shares && client.is_normal_with_a_reservation();
        }
    }

    /// Changes the base cost of requests, and the credit, which depends on it.
    fn set_base_bytes(&mut self, base_bytes: u128, now: Fine) {
        let before = self.credit();
        self.base_bytes = base_bytes;
        if self.credit() == before {
            return;
        }
        for client in self.clients.iter_mut().filter(|client| client.waits) {
            client.start_tag = client.caught_up(self.passed, before);
            client.waits = false;
        }
        self.catch_up(now);
    }

    /// The credit in cost units: how far behind virtual time a client may be when it begins to share by weight.
    fn credit(&self) -> u128 {
        (16 * self.base_bytes).clamp(64 << 10, 256 << 20)
    }

    /// The tag by which a client with a reservation takes its turn by weight, after other clients were served ahead of due
    /// reservations.
    fn tag_after_passing(&self, client: &ModelClient) -> u128 {
        if client.waits { client.caught_up(self.passed, self.credit()) } else { client.start_tag }
    }

    /// The clients that may be at the head of one of the scheduler's heaps, several if tags tie; `[None]` if the heap is empty.
    fn heads(&self, class: usize, reserved: bool, now: Fine) -> Vec<Option<&ModelClient>> {
        let in_heap = |c: &&ModelClient| class == 1 || reserved != c.qos.reservation.is_unset();
        let least = self.ready(class, now).filter(in_heap).map(|c| c.start_tag).min();
        let heads = self.ready(class, now).filter(in_heap).filter(|c| Some(c.start_tag) == least);
        let heads: Vec<_> = heads.map(Some).collect();
        if heads.is_empty() { vec![None] } else { heads }
    }

    /// The normal clients that may be in turn by weight, several if tags tie. Of the clients with a reservation, those for
    /// which `wanted` is false do not count.
    fn in_turn(&self, now: Fine, wanted: impl Fn(&ModelClient) -> bool) -> Vec<Option<&ModelClient>> {
        let mut all = Vec::new();
        for plain in self.heads(0, false, now) {
            for reserved in self.heads(0, true, now).into_iter().map(|head| head.filter(|c| wanted(c))) {
                let Some((one, other)) = plain.zip(reserved) else {
                    all.push(plain.or(reserved));
                    continue;
                };
                let other_tag = self.tag_after_passing(other);
                all.extend((one.start_tag <= other_tag).then_some(plain));
                all.extend((other_tag <= one.start_tag).then_some(reserved));
            }
        }
        all
    }

    /// The clients that may be chosen at `now`, several if tags tie, each with the phase in which it is served.
    fn candidates(&mut self, now: Fine) -> Vec<(ClientId, Phase)> {
        self.catch_up(now);
        let (normal, background) = (self.ready(0, now).count(), self.ready(1, now).count());
        let ahead = normal > 0 && background > 0 && self.background_claim > 0;
        let weight = |c: &ModelClient| (c.id, Phase::Weight);
        let by_weight = |wanted: &dyn Fn(&ModelClient) -> bool| -> Vec<Option<&ModelClient>> {
            let mut all = if ahead { vec![None] } else { self.in_turn(now, wanted) };
            if all.iter().any(Option::is_none) {
                all.retain(Option::is_some);
                all.extend(self.heads(1, false, now).into_iter().map(|head| head.filter(|c| wanted(c))));
            }
            all
        };
        let Some(due) = self.due(now) else {
            return by_weight(&|_| true).into_iter().flatten().map(weight).collect();
        };
        let at_least = |c: &&ModelClient| c.active() && c.reservation_due() == Some(due);
        let mut all: Vec<_> = self.clients.iter().filter(at_least).map(|c| (c.id, Phase::Reservation)).collect();
        if self.weight_claim > 0 {
            let claimants = by_weight(&|c| c.reservation_due().is_none_or(|due| due > now));
            if claimants.iter().all(Option::is_some) {
                all.clear();
            }
            all.extend(claimants.into_iter().flatten().map(weight));
        }
        all
    }

    fn serve(&mut self, id: ClientId, phase: Phase, now: Fine) -> (Work, u64) {
        let fine_now = now * NS;
        let reservation_was_due = self.due(now).is_some();
        let (normal_waits, background_waits) =
            (self.ready(0, now).next().is_some(), self.ready(1, now).next().is_some());
        let (passed, credit) = (self.passed, self.credit());
        let client = self.clients.iter_mut().find(|c| c.id == id).expect("a known client");
        if client.waits {
            client.start_tag = client.caught_up(passed, credit);
        }
        let Waiting { work, cost, sequence, .. } = client.queue.remove(client.next(phase, now)).expect("a request");
        let class = client.class();
        let weight = u128::from(client.qos.weight);
        let earn = |claim: i128, waits: bool| (claim + cost as i128).min(if waits { cost as i128 } else { 0 });
        match phase {
            Phase::Reservation => {
                let bytes = if work.bytes == 0 { 4_096 } else { work.bytes };
                charge(&mut client.reservation, client.qos.reservation, fine_now, SECOND, bytes);
                let most = cost.max(1 << 19) * 2 * VIRTUAL / weight;
                client.start_tag = client.start_tag.min(self.virtual_time[class] + most);
                self.weight_claim = earn(self.weight_claim, normal_waits || background_waits);
            }
            Phase::Weight => {
                self.virtual_time[class] = self.virtual_time[class].max(client.start_tag);
                if reservation_was_due {
                    self.weight_claim -= 64 * cost as i128;
                    self.passed = self.virtual_time[0];
                }
                if class == 0 {
                    self.background_claim = earn(self.background_claim, background_waits);
                } else if normal_waits && self.background_claim > 0 {
                    self.background_claim -= 64 * cost as i128;
                }
            }
        }
        client.start_tag += cost * VIRTUAL / weight;
        let burst = Fine::from(client.qos.burst.as_nanos()) * NS;
        charge(&mut client.limit, client.qos.limit, fine_now, burst, work.bytes);
        if let Some(direction) = work.kind.direction() {
            let (limit, due) = &mut client.limits_of[direction as usize];
            charge(due, *limit, fine_now, burst, work.bytes);
        }
        (work, sequence)
    }

    fn set_limit_of(&mut self, id: ClientId, direction: Direction, limit: Rates, now: Fine) {
        let (passed, credit) = (self.passed, self.credit());
        let client = self.clients.iter_mut().find(|c| c.id == id).expect("a known client");
        let had = client.has_lists();
        if client.waits && (had || !limit.is_unset()) {
            client.start_tag = client.caught_up(passed, credit);
            client.waits = false;
        }
        let (old, due) = &mut client.limits_of[direction as usize];
        if *old != limit {
            convert(due, *old, limit, now * NS);
            *old = limit;
        }
        if had && !client.has_lists() {
            // One list again: what came at the same time stays as the lists were.
            let list = |work: &Work| LISTS.iter().position(|&list| list == work.kind.direction());
            client.queue.make_contiguous().sort_by_key(|waiting| (waiting.at, list(&waiting.work)));
        }
    }

    fn set_qos(&mut self, id: ClientId, qos: Qos, now: Fine) {
        let (passed, credit) = (self.passed, self.credit());
        let client = self.clients.iter_mut().find(|c| c.id == id).expect("a known client");
        if core::mem::take(&mut client.waits) {
            client.start_tag = client.caught_up(passed, credit);
        }
        let old = client.qos;
        if (old.weight, old.background) != (qos.weight, qos.background) {
            let lead = client.start_tag.saturating_sub(self.virtual_time[usize::from(old.background)]);
            let same_cost = lead * u128::from(old.weight) / u128::from(qos.weight);
            client.start_tag = self.virtual_time[usize::from(qos.background)] + same_cost;
        }
        if old.reservation != qos.reservation {
            convert(&mut client.reservation, old.reservation, qos.reservation, now * NS);
        }
        if (old.limit, old.burst) != (qos.limit, qos.burst) {
            convert(&mut client.limit, old.limit, qos.limit, now * NS);
        }
        if old.burst != qos.burst {
            for (limit, due) in &mut client.limits_of {
                convert(due, *limit, *limit, now * NS);
            }
        }
        client.qos = qos;
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join(Qos),
    Leave(usize),
    SetQos(usize, Qos),
    SetLimitOf(usize, Direction, Rates),
    SetCost(CostModel),
    Block(usize),
    Unblock(usize),
    Push(usize, Work),
    Pull {
        later_ns: u64,
        admit: bool,
    },
    /// Pull; if the answer is an instant to wait for, pull again just before this instant and at it.
    PullExactly,
}

fn a_rate() -> impl Strategy<Value = Rates> {
    let iops = prop_oneof![4 => Just(0), 1 => Just(1), 3 => Just(100), 3 => Just(1_000), 2 => Just(50_000)];
    let bytes = prop_oneof![6 => Just(0), 2 => Just(1 << 20), 2 => Just(64_000_000), 1 => Just(1 << 30)];
    (iops, bytes).prop_map(|(iops, bytes_per_s)| Rates { iops, bytes_per_s })
}

fn a_qos() -> impl Strategy<Value = Qos> {
    let weight = prop::sample::select(vec![1, 2, 4, 64, 1 << 16]);
    let burst = prop::sample::select(vec![0, 1_000_000, 100_000_000, 2_000_000_000]).prop_map(Duration::from_nanos);
    (a_rate(), a_rate(), weight, burst, prop::bool::weighted(0.2)).prop_map(
        |(reservation, limit, weight, burst, background)| Qos { reservation, limit, weight, burst, background },
    )
}

fn a_work() -> impl Strategy<Value = Work> {
    let bytes = prop::sample::select(vec![512, 4_096, 65_536, 1 << 20]);
    (prop::sample::select(vec![Kind::Read, Kind::Write, Kind::Flush, Kind::Meta]), bytes).prop_map(|(kind, bytes)| {
        let bytes = if matches!(kind, Kind::Read | Kind::Write) { bytes } else { 0 };
        Work::new(kind, bytes)
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    let client = 0..8_usize;
    let later_ns = prop::sample::select(vec![0, 1, 1_000, 20_000, 300_000, 10_000_000, 1_500_000_000]);
    prop_oneof![
        2 => a_qos().prop_map(Step::Join),
        1 => client.clone().prop_map(Step::Leave),
        2 => (client.clone(), a_qos()).prop_map(|(client, qos)| Step::SetQos(client, qos)),
        3 => (client.clone(), prop::sample::select(Direction::ALL.to_vec()), a_rate())
            .prop_map(|(client, direction, limit)| Step::SetLimitOf(client, direction, limit)),
        1 => (0..10_000_u32, 50..300_u32)
            .prop_map(|(base_bytes, write_percent)| Step::SetCost(CostModel { base_bytes, write_percent })),
        1 => client.clone().prop_map(Step::Block),
        2 => client.clone().prop_map(Step::Unblock),
        30 => (client, a_work()).prop_map(|(client, work)| Step::Push(client, work)),
        25 => (later_ns, prop::bool::weighted(0.9)).prop_map(|(later_ns, admit)| Step::Pull { later_ns, admit }),
        5 => Just(Step::PullExactly),
    ]
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all
}

struct Pair {
    queue: Queue<(ClientId, u64)>,
    model: Model,
    cost: CostModel,
    now: u64,
    sequence: u64,
    former: Vec<ClientId>,
}

impl Pair {
    fn new() -> Self {
        let cost = CostModel::default();
        let (model, former) = (Model::default(), Vec::new());
        Self { queue: Queue::new(cost), model, cost, now: 0, sequence: 0, former }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn id(&self, client: usize) -> Option<ClientId> {
        let count = self.model.clients.len();
        (count > 0).then(|| self.model.clients[client % count].id)
    }

    fn pull(&mut self, admit: bool) -> Option<Instant> {
        let candidates = self.model.candidates(Fine::from(self.now));
        let mut asked = None;
        let answer = self.queue.pull(self.now(), |&(id, _), work| {
            asked = Some((id, *work));
            admit
        });
        match answer {
            Pull::Ready { client, phase, work, payload, .. } => {
                assert!(admit && asked == Some((client, work)));
                assert!(candidates.contains(&(client, phase)), "{client:?} {phase:?} is none of {candidates:?}");
                let (expected_work, sequence) = self.model.serve(client, phase, Fine::from(self.now));
                assert_eq!((work, payload), (expected_work, (client, sequence)));
                None
            }
            Pull::Refused(until) => {
                assert!(!admit && until > self.now());
                let chosen = asked.map(|(id, _)| id);
                assert!(candidates.iter().any(|&(id, _)| Some(id) == chosen), "{chosen:?} is none of {candidates:?}");
                // Whoever was refused is next until then: nobody needs to ask before.
                let last = until.as_nanos().saturating_sub(1).min(self.now + 1_000_000_000_000);
                let mut asked_last = None;
                let answer = self.queue.pull(Instant::from_nanos(last), |&(id, _), work| {
                    asked_last = Some((id, *work));
                    false
                });
                assert!(matches!(answer, Pull::Refused(_)), "{answer:?} at {last}");
                assert_eq!(asked_last, asked, "chosen at {last}, before {until:?}");
                None
            }
            Pull::Wait(until) => {
                assert_eq!(candidates, []);
                assert_eq!(Some(Fine::from(until.as_nanos())), self.model.next_due());
                assert!(until > self.now());
                Some(until)
            }
            Pull::Idle => {
                assert_eq!(candidates, []);
                assert_eq!(self.model.next_due(), None);
                None
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Join(qos) => {
                if self.model.clients.len() == 8 {
                    return;
                }
                let id = self.queue.join(self.now(), qos);
                assert!(!self.former.contains(&id) && self.model.clients.iter().all(|c| c.id != id));
                let start_tag = self.model.virtual_time[usize::from(qos.background)];
                self.model.clients.push(ModelClient {
                    id,
                    qos,
                    reservation: [0; 2],
                    limit: [-Fine::from(qos.burst.as_nanos()) * NS; 2],
                    start_tag,
                    waits: false,
                    blocked: false,
                    limits_of: [(Rates::UNSET, [0; 2]); 2],
                    queue: VecDeque::new(),
                });
            }
            Step::Leave(client) => {
                let Some(id) = self.id(client) else { return };
                let position = client % self.model.clients.len();
                let gone = self.model.clients.remove(position);
                let mut expected: Vec<_> = gone.queue.iter().map(|waiting| (id, waiting.sequence)).collect();
                let mut left = self.queue.leave(id);
                if gone.has_lists() {
                    // Oldest first; among equals by list.
                    let ages: Vec<_> = left.iter().map(|&(_, n)| gone.queue.iter().find(|w| w.sequence == n)).collect();
                    assert!(ages.is_sorted_by_key(|waiting| waiting.map(|waiting| waiting.at)));
                    (expected, left) = (sorted(expected), sorted(left));
                }
                assert_eq!(left, expected);
                self.former.push(id);
            }
            Step::SetQos(client, qos) => {
                let Some(id) = self.id(client) else { return };
                self.queue.set_qos(self.now(), id, qos);
                self.model.set_qos(id, qos, Fine::from(self.now));
            }
            Step::SetLimitOf(client, direction, limit) => {
                let Some(id) = self.id(client) else { return };
                self.queue.set_limit_of(self.now(), id, direction, limit);
                self.model.set_limit_of(id, direction, limit, Fine::from(self.now));
            }
            Step::SetCost(cost) => {
                self.model.catch_up(Fine::from(self.now));
                self.queue.set_cost_model(self.now(), cost);
                self.cost = cost;
                self.model.set_base_bytes(cost.base_bytes.into(), Fine::from(self.now));
            }
            Step::Block(client) => {
                let Some(id) = self.id(client) else { return };
                self.queue.block(self.now(), id);
                let position = client % self.model.clients.len();
                self.model.clients[position].blocked = true;
            }
            Step::Unblock(client) => {
                let Some(id) = self.id(client) else { return };
                self.queue.unblock(self.now(), id);
                let position = client % self.model.clients.len();
                self.model.clients[position].blocked = false;
            }
            Step::Push(client, work) => {
                let Some(id) = self.id(client) else { return };
                self.sequence += 1;
                assert_eq!(self.queue.push(self.now(), id, work, (id, self.sequence)), Ok(()));
                let payload = u64::from(work.bytes)
                    * if work.kind == Kind::Write { u64::from(self.cost.write_percent) } else { 100 }
                    / 100;
                let cost = u128::from((u64::from(self.cost.base_bytes) + payload).max(1));
                let position = client % self.model.clients.len();
                let client = &mut self.model.clients[position];
                client.queue.push_back(Waiting { work, cost, sequence: self.sequence, at: self.now });
                if client.queue.len() == 1 {
                    client.reservation = client.reservation.map(|due| due.max(Fine::from(self.now) * NS));
                }
            }
            Step::Pull { later_ns, admit } => {
                self.now += later_ns;
                self.pull(admit);
            }
            Step::PullExactly => {
                if let Some(until) = self.pull(true) {
                    self.now = until.as_nanos() - 1;
                    assert_eq!(self.pull(true), Some(until), "not before");
                    self.now += 1;
                    let before = self.queue.len();
                    assert_eq!(self.pull(true), None);
                    assert_eq!(self.queue.len(), before - 1, "exactly then");
                }
            }
        }
    }

    /// Asserts what must hold after every step: numbers of queued requests equal those of the model, and calls for a client that
    /// has left do nothing.
    fn check(&mut self) {
        self.model.catch_up(Fine::from(self.now));
        let lengths: usize = self.model.clients.iter().map(|c| c.queue.len()).sum();
        assert_eq!(self.queue.len(), lengths);
        assert_eq!(self.queue.is_empty(), lengths == 0);
        for client in &self.model.clients {
            assert_eq!(self.queue.client_len(client.id), client.queue.len());
        }
        if let Some(&id) = self.former.last() {
            let now = self.now();
            assert_eq!(self.queue.client_len(id), 0);
            assert_eq!(self.queue.push(now, id, Work::new(Kind::Read, 1), (id, 0)), Err((id, 0)));
            self.queue.set_qos(now, id, Qos::default());
            self.queue.block(now, id);
            self.queue.unblock(now, id);
            self.queue.set_limit_of(now, id, Direction::Read, Rates { iops: 1, bytes_per_s: 1 });
            assert_eq!(self.queue.leave(id), []);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn does_what_the_model_says(
        guarantees in prop::collection::vec(a_qos(), 1..6),
        steps in prop::collection::vec(a_step(), 1..400),
    ) {
        let mut pair = Pair::new();
        for qos in guarantees {
            pair.apply(&Step::Join(qos));
        }
        for step in &steps {
            pair.apply(step);
            pair.check();
        }
    }
}
