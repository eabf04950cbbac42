//! mClock's guarantees to its clients, tested on a simulated device without looking at the queue's tags.
//!
//! The device serves one request at a time, each in the same time. Time is virtual.

use evenkeel_control::mclock::{ClientId, CostModel, Phase, Pull, Qos, Queue};
use evenkeel_control::token_bucket::TokenBucket;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn iops(iops: u64) -> Rates {
    Rates { iops, bytes_per_s: 0 }
}

fn bytes_per_s(bytes_per_s: u64) -> Rates {
    Rates { iops: 0, bytes_per_s }
}

fn weight(weight: u32) -> Qos {
    Qos { weight, ..Qos::default() }
}

fn reserved(rate: u64) -> Qos {
    Qos { reservation: iops(rate), ..Qos::default() }
}

fn limited(rate: u64) -> Qos {
    Qos { limit: iops(rate), ..Qos::default() }
}

/// A served request; `at` is when its service began, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Served {
    at: u64,
    client: usize,
    bytes: u32,
    phase: Phase,
}

/// A device, its queue, and clients that each keep three requests queued unless they are silent.
struct Device {
    queue: Queue<usize>,
    ids: Vec<ClientId>,
    /// Sizes of each client's requests in bytes, used in turn; empty = the client is silent.
    sizes: Vec<Vec<u32>>,
    pushed: Vec<usize>,
    now: u64,
    service_ns: u64,
    log: Vec<Served>,
}

impl Device {
    fn new(device_iops: u64) -> Self {
        let queue = Queue::new(CostModel::default());
        let service_ns = SECOND / device_iops;
        Self { queue, ids: vec![], sizes: vec![], pushed: vec![], now: 0, service_ns, log: vec![] }
    }

    fn with(device_iops: u64, guarantees: &[Qos]) -> Self {
        let mut device = Self::new(device_iops);
        for &qos in guarantees {
            device.join(qos, &[4_096]);
        }
        device
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn join(&mut self, qos: Qos, sizes: &[u32]) -> usize {
        self.ids.push(self.queue.join(self.now(), qos));
        self.sizes.push(sizes.to_vec());
        self.pushed.push(0);
        self.ids.len() - 1
    }

    fn set_qos(&mut self, client: usize, qos: Qos) {
        self.queue.set_qos(self.now(), self.ids[client], qos);
    }

    /// Lets the client send no more requests; its queued requests stay.
    fn silence(&mut self, client: usize) {
        self.sizes[client] = vec![];
    }

    fn push(&mut self, client: usize, bytes: u32) {
        let work = Work::new(Kind::Read, bytes);
        assert_eq!(self.queue.push(Instant::from_nanos(self.now), self.ids[client], work, client), Ok(()));
    }

    fn refill(&mut self) {
        for client in 0..self.ids.len() {
            while !self.sizes[client].is_empty() && self.queue.client_len(self.ids[client]) < 3 {
                let bytes = self.sizes[client][self.pushed[client] % self.sizes[client].len()];
                self.pushed[client] += 1;
                self.push(client, bytes);
            }
        }
    }

    /// Serves for `ns` nanoseconds and returns the requests served, in order.
    fn run(&mut self, ns: u64) -> Vec<Served> {
        let first = self.log.len();
        let end = self.now + ns;
        while self.now < end {
            self.refill();
            match self.queue.pull(self.now(), |_, _| true) {
                Pull::Ready { phase, work, payload, .. } => {
                    self.log.push(Served { at: self.now, client: payload, bytes: work.bytes, phase });
                    self.now += self.service_ns;
                }
                Pull::Wait(until) => self.now = until.as_nanos().min(end),
                Pull::Idle => self.now = end,
                Pull::Refused(_) => panic!("nothing is refused"),
            }
        }
        self.log[first..].to_vec()
    }

    /// Serves for `ns` nanoseconds and returns the number of requests served for each client.
    fn counts(&mut self, ns: u64) -> Vec<u64> {
        let mut counts = vec![0; self.ids.len()];
        for served in self.run(ns) {
            counts[served.client] += 1;
        }
        counts
    }
}

fn assert_near(value: u64, expected: u64, tolerance: u64) {
    assert!(value.abs_diff(expected) <= tolerance, "{value} instead of {expected} (±{tolerance})");
}

// Reservations.

#[test]
fn a_reservation_is_met_beside_greedy_neighbours() {
    let mut guarantees = vec![reserved(300)];
    guarantees.extend([weight(1_000); 20]);
    let counts = Device::with(1_000, &guarantees).counts(10 * SECOND);
    assert_near(counts[0], 3_000, 2);
    assert_eq!(counts.iter().sum::<u64>(), 10_000);
}

#[test]
fn a_client_gets_the_greater_of_reservation_and_share_not_the_sum() {
    let counts = Device::with(1_000, &[reserved(300), weight(1)]).counts(10 * SECOND);
    assert_near(counts[0], 5_000, 5);
    let counts = Device::with(1_000, &[reserved(800), weight(1)]).counts(10 * SECOND);
    assert_near(counts[0], 8_000, 2);
}

#[test]
fn large_requests_do_not_turn_the_greater_into_the_sum() {
    for (rate, others) in [(300, 1), (450, 1), (499, 1), (90, 9), (99, 9)] {
        let mut device = Device::new(1_000);
        device.join(reserved(rate), &[8 << 20]);
        for _ in 0..others {
            device.join(weight(1), &[8 << 20]);
        }
        let share = 10_000 / (others + 1);
        assert_near(device.counts(10 * SECOND)[0], share, share / 1_000 + 2);
    }
}

#[test]
fn a_reservation_in_bytes_is_met() {
    let mut device = Device::new(1_000);
    let guarantee = Qos { reservation: bytes_per_s(20 << 20), ..Qos::default() };
    device.join(guarantee, &[65_536]);
    for _ in 0..10 {
        device.join(weight(100), &[4_096]);
    }
    let counts = device.counts(10 * SECOND);
    assert_near(counts[0], 3_200, 2);
}

#[test]
fn either_unit_of_a_reservation_suffices() {
    let both = Qos { reservation: Rates { iops: 200, bytes_per_s: 1 << 20 }, ..Qos::default() };
    for (bytes, expected) in [(65_536, 200), (8_192, 200), (2_048, 512)] {
        let mut device = Device::new(1_000);
        device.join(both, &[bytes]);
        device.join(weight(1_000_000), &[512]);
        assert_near(device.counts(10 * SECOND)[0], expected * 10, 2);
    }
}

#[test]
fn requests_without_payload_do_not_make_a_byte_reservation_endless() {
    let mut device = Device::new(1_000);
    device.join(Qos { reservation: bytes_per_s(409_600), ..Qos::default() }, &[0]);
    device.join(weight(1_000_000), &[4_096]);
    assert_near(device.counts(10 * SECOND)[0], 1_000, 2);
}

#[test]
fn a_reservation_wins_over_a_limit() {
    let guarantee = Qos { reservation: iops(400), limit: iops(50), ..Qos::default() };
    let counts = Device::with(1_000, &[guarantee, weight(1)]).counts(10 * SECOND);
    assert_near(counts[0], 4_000, 3);
    // Nor does it get more than the reservation where there is more to get.
    let counts = Device::with(1_000, &[guarantee]).counts(10 * SECOND);
    assert_near(counts[0], 4_000, 3);
    // A limit in the other unit yields too.
    let crossed = Qos { reservation: iops(400), limit: bytes_per_s(4_096), ..Qos::default() };
    assert_near(Device::with(1_000, &[crossed]).counts(10 * SECOND)[0], 4_000, 3);
}

#[test]
fn a_reservation_beyond_the_limit_leaves_no_lasting_debt() {
    let mut device = Device::with(1_000, &[Qos { reservation: iops(900), limit: iops(100), ..Qos::default() }]);
    device.run(3_600 * SECOND);
    device.set_qos(0, limited(100));
    device.run(3 * SECOND);
    assert_near(device.counts(10 * SECOND)[0], 1_000, 1);
}

#[test]
fn after_a_stall_a_reservation_catches_up_one_second_at_most() {
    let mut device = Device::with(1_000, &[reserved(100), weight(1_000)]);
    device.run(SECOND);
    device.now += 30 * SECOND;
    // In the first 150 ms: 100 for the second, 15 for the time since.
    assert_near(device.counts(150 * SECOND / 1_000)[0], 115, 2);
    assert_near(device.counts(10 * SECOND)[0], 1_000, 2);
}

#[test]
fn idle_time_earns_no_reservation_credit() {
    let mut device = Device::with(1_000, &[reserved(100), weight(1_000)]);
    device.silence(0);
    device.run(100 * SECOND);
    device.sizes[0] = vec![4_096];
    let counts = device.counts(SECOND);
    // The credit by weight comes on top: 64 KiB, eight requests.
    assert_near(counts[0], 105, 4);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn feasible_reservations_are_met_over_any_window(
        shares in prop::collection::vec((1..1_000_u64, 1..1_000_u32), 1..12),
        greedy in prop::collection::vec(1..1_000_000_u32, 0..6),
        load_percent in 10..96_u64,
    ) {
        let total: u64 = shares.iter().map(|&(share, _)| share).sum();
        let rate = |share: u64| (share * 10_000 * load_percent / 100 / total).max(1);
        let mut guarantees: Vec<Qos> =
            shares.iter().map(|&(share, weight)| Qos { weight, ..reserved(rate(share)) }).collect();
        guarantees.extend(greedy.iter().map(|&w| weight(w)));
        let mut device = Device::with(10_000, &guarantees);
        let log = device.run(2 * SECOND);
        for (client, &(share, _)) in shares.iter().enumerate() {
            let times: Vec<u64> = log.iter().filter(|s| s.client == client).map(|s| s.at).collect();
            let needed = |ns: u64| rate(share) * ns / SECOND;
            // Late by at most one round of everyone's deadlines falling together.
            let slack = 1 + needed((guarantees.len() as u64 + 1) * device.service_ns) + 1;
            for (i, &from) in times.iter().enumerate() {
                let to = times.get(i + 50).copied().unwrap_or(2 * SECOND);
                let got = times[i..].iter().take_while(|&&at| at < to).count() as u64;
                prop_assert!(got + slack >= needed(to - from), "{got} of {} from {from} to {to}", needed(to - from));
            }
            prop_assert!(times.len() as u64 + slack >= needed(2 * SECOND));
        }
    }
}

// Weights.

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn weights_share_within_one_request_each_over_any_window(
        clients in prop::collection::vec(
            (prop_oneof![1..10_u32, 1..1_000_u32], prop::collection::vec(0..200_000_u32, 1..4)), 2..8),
    ) {
        let mut device = Device::new(1_000);
        for (w, sizes) in &clients {
            device.join(weight(*w), sizes);
        }
        let log = device.run(3 * SECOND);
        let cost = |bytes: u32| f64::from(bytes) + 4_096.0;
        let greatest: Vec<f64> = clients
            .iter()
            .map(|(w, sizes)| sizes.iter().map(|&s| cost(s)).fold(0.0, f64::max) / f64::from(*w))
            .collect();
        for a in 0..clients.len() {
            for b in 0..a {
                // The range of the running difference is its greatest change over any window.
                let (mut difference, mut low, mut high) = (0.0_f64, 0.0_f64, 0.0_f64);
                for served in log.iter().filter(|s| s.client == a || s.client == b) {
                    let normalised = cost(served.bytes) / f64::from(clients[served.client].0);
                    difference += if served.client == a { normalised } else { -normalised };
                    (low, high) = (low.min(difference), high.max(difference));
                }
                let bound = greatest[a] + greatest[b];
                prop_assert!(high - low <= bound * 1.0001, "{} > {bound}", high - low);
            }
        }
    }
}

#[test]
fn shares_follow_the_weights_at_the_extremes() {
    let counts = Device::with(10_000, &[weight(1_000_000), weight(500_000), weight(1)]).counts(100 * SECOND);
    assert_near(counts[0], 666_666, 2);
    assert_near(counts[1], 333_333, 2);
    assert!((1..=2).contains(&counts[2]), "{}", counts[2]);
}

#[test]
fn writes_can_cost_more_than_reads() {
    let mut queue = Queue::new(CostModel { base_bytes: 0, write_percent: 300 });
    let reader = queue.join(Instant::ZERO, weight(1));
    let writer = queue.join(Instant::ZERO, weight(1));
    let mut served = [0, 0];
    for _ in 0..400 {
        for (id, kind) in [(reader, Kind::Read), (writer, Kind::Write)] {
            assert_eq!(queue.push(Instant::ZERO, id, Work::new(kind, 4_096), ()), Ok(()));
        }
        if let Pull::Ready { client, .. } = queue.pull(Instant::ZERO, |_, _| true) {
            served[usize::from(client == writer)] += 1;
        }
    }
    assert_eq!(served, [300, 100]);
}

#[test]
fn a_returning_client_neither_collects_nor_pays_for_the_past() {
    let mut device = Device::with(1_000, &[weight(1), weight(1)]);
    device.run(10 * SECOND);
    device.silence(1);
    device.run(100 * SECOND);
    device.sizes[1] = vec![4_096];
    let log = device.run(SECOND);
    let first = log.iter().position(|s| s.client == 1).expect("served");
    assert!(first <= 1, "waited for {first} others");
    // It may be ahead by the credit of 64 KiB, eight requests of 4 KiB that cost 8 KiB each, and one at either end.
    let mut ahead = 0_i32;
    for window in log[first..].windows(11) {
        assert!(window.iter().any(|s| s.client == 0) && window.iter().any(|s| s.client == 1), "{window:?}");
    }
    for served in &log {
        ahead += if served.client == 1 { 1 } else { -1 };
        assert!((-1..=10).contains(&ahead), "ahead by {ahead}");
    }
}

/// The fixed cost of a request is 1 MiB, so a small request costs nearly as much as a large one. A returning client's burst of
/// small requests still goes before another client's backlog.
#[test]
fn sixteen_small_requests_of_a_returning_client_go_first_however_dear_requests_are() {
    let mut queue = Queue::new(CostModel { base_bytes: 1 << 20, write_percent: 100 });
    let (light, heavy) = (queue.join(Instant::ZERO, weight(1)), queue.join(Instant::ZERO, weight(1)));
    let at = |step: u64| Instant::from_nanos(step * 1_000_000);
    for step in 0..200 {
        queue.push(at(step), heavy, Work::new(Kind::Write, 65_536), ()).unwrap();
        if step >= 100 {
            queue.pull(at(step), |_, _| true);
        }
    }
    for _ in 0..40 {
        queue.push(at(200), light, Work::new(Kind::Read, 4_096), ()).unwrap();
    }
    let mut is_light = || matches!(queue.pull(at(200), |_, _| true), Pull::Ready { client, .. } if client == light);
    let first = (0..24).filter(|_| is_light()).count();
    // Sixteen of the credit, and half of the others.
    assert!((19..=21).contains(&first), "{first} of the first 24");
}

#[test]
fn who_is_a_little_late_each_time_still_gets_its_half() {
    // One request outstanding, and the next one comes just after its turn has passed, two times out of three.
    let mut queue = Queue::new(CostModel::default());
    let (light, heavy) = (queue.join(Instant::ZERO, weight(1)), queue.join(Instant::ZERO, weight(1)));
    let work = Work::new(Kind::Read, 4_096);
    let (mut absent, mut light_served) = (0, 0);
    for turn in 0..3_000_u64 {
        let now = Instant::from_nanos(turn);
        while queue.client_len(heavy) < 32 {
            assert_eq!(queue.push(now, heavy, work, ()), Ok(()));
        }
        if absent == 0 && queue.client_len(light) == 0 {
            assert_eq!(queue.push(now, light, work, ()), Ok(()));
        }
        match queue.pull(now, |_, _| true) {
            Pull::Ready { client, .. } if client == light => {
                light_served += 1;
                absent = if light_served % 3 == 0 { 0 } else { 2 };
            }
            _ => absent = u64::saturating_sub(absent, 1),
        }
    }
    assert!(light_served >= 1_200, "{light_served} of 3000");
}

#[test]
fn a_newcomer_neither_starves_nor_is_starved() {
    let mut device = Device::with(1_000, &[weight(1), weight(1), reserved(600)]);
    device.run(1_000 * SECOND);
    let newcomer = device.join(weight(1), &[4_096]);
    for window in device.run(10 * SECOND).chunks(100) {
        let count = |client| window.iter().filter(|s| s.client == client).count() as u64;
        assert_near(count(newcomer), 13, 1);
        assert_near(count(0), 13, 1);
    }
}

#[test]
fn service_by_reservation_is_not_held_against_a_client_for_ever() {
    let mut device = Device::with(1_000, &[reserved(900), weight(1)]);
    device.run(3_600 * SECOND);
    device.set_qos(0, weight(1));
    // 1 MiB of lead at 8 KiB a request is 128 requests.
    let wait = device.run(SECOND).iter().position(|s| s.client == 0).expect("served again") as u64;
    assert_near(wait, 129, 2);
    let counts = device.counts(10 * SECOND);
    assert_near(counts[0], 5_000, 5);
}

#[test]
fn time_spent_over_a_limit_earns_no_share() {
    let mut device = Device::with(1_000, &[limited(10), weight(1)]);
    device.run(1_000 * SECOND);
    device.set_qos(0, weight(1));
    // But for the credit of 64 KiB: four requests more for the one, four less for the other.
    assert_near(device.counts(SECOND)[0], 502, 4);
}

#[test]
fn a_light_client_gets_its_half_of_a_limited_pool() {
    // A pool limited to 5,000 IOPS; one tenant at queue depth 32, one at queue depth 1,
    // whose next request comes 100 µs after the last was dispatched.
    let mut queue = Queue::new(CostModel::default());
    let mut bucket = TokenBucket::new(iops(5_000), Duration::from_millis(1));
    let (light, heavy) = (queue.join(Instant::ZERO, weight(1)), queue.join(Instant::ZERO, weight(1)));
    let work = Work::new(Kind::Read, 4_096);
    let mut now = Instant::ZERO;
    let end = Instant::from_nanos(10 * SECOND);
    let mut light_returns = Some(Instant::ZERO);
    let mut served = [0_u64; 2];
    while now < end {
        while queue.client_len(heavy) < 32 {
            assert_eq!(queue.push(now, heavy, work, ()), Ok(()));
        }
        if light_returns.is_some_and(|at| at <= now) {
            assert_eq!(queue.push(now, light, work, ()), Ok(()));
            light_returns = None;
        }
        let ready = bucket.ready_at();
        if ready > now {
            now = light_returns.map_or(ready, |at| at.min(ready)).max(now + Duration::from_nanos(1));
            continue;
        }
        let Pull::Ready { client, .. } = queue.pull(now, |_, _| true) else { panic!("the heavy one always waits") };
        bucket.take(now, &work);
        served[usize::from(client == heavy)] += 1;
        if client == light {
            light_returns = Some(now + Duration::from_micros(100));
        }
    }
    assert!(served[0] >= 24_900, "{served:?}");
    assert_near(served[0] + served[1], 50_000, 10);
}

// Limits.

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limits_hold_over_any_window_and_are_reached(
        clients in prop::collection::vec(
            (1..3_000_u64, 0..100_u64, prop_oneof![Just(0), 0..50_000_000_u64], prop::bool::ANY, any::<bool>()), 1..5),
        late_ns in prop_oneof![Just(0), 0..400_000_u64],
    ) {
        let mut device = Device::new(100_000);
        for &(rate, reserved_percent, burst_ns, in_bytes, background) in &clients {
            let (limit, share) = if in_bytes { (rate * 4_096, rate * 4_096) } else { (rate, rate) };
            let rates = if in_bytes { bytes_per_s } else { iops };
            let reservation = rates(share * reserved_percent / 100);
            let burst = Duration::from_nanos(burst_ns);
            device.join(Qos { reservation, limit: rates(limit), burst, background, weight: 1 }, &[4_096, 8_192, 512]);
        }
        while device.now < SECOND {
            device.run(late_ns.max(1_000));
            device.now += late_ns;
        }
        for (client, &(rate, _, burst_ns, in_bytes, _)) in clients.iter().enumerate() {
            let rate = if in_bytes { rate * 4_096 } else { rate };
            let amount = |s: &Served| if in_bytes { u64::from(s.bytes) } else { 1 };
            let mine: Vec<(u64, u64)> =
                device.log.iter().filter(|s| s.client == client).map(|s| (s.at, amount(s))).collect();
            for (i, &(from, _)) in mine.iter().enumerate() {
                let mut sum = 0_u128;
                for &(to, amount) in &mine[i..] {
                    let allowed = u128::from(rate) * u128::from(to - from + burst_ns);
                    prop_assert!(sum * u128::from(SECOND) <= allowed, "{sum} in {} ns", to - from);
                    sum += u128::from(amount);
                }
            }
            if late_ns == 0 {
                // One request short, and what the others' turns cost where nothing may be saved up.
                let sum: u64 = mine.iter().map(|&(_, amount)| amount).sum();
                let lost = u64::from(in_bytes) * 8_192 + 1 + rate / 20;
                prop_assert!(sum + lost >= rate, "{sum} of {rate}");
            }
        }
    }
}

#[test]
fn idling_saves_up_the_burst_and_no_more() {
    let guarantee = Qos { burst: Duration::from_millis(50), ..limited(100) };
    let mut device = Device::with(1_000_000, &[guarantee]);
    device.silence(0);
    device.run(1_000 * SECOND);
    device.sizes[0] = vec![4_096];
    let log = device.run(SECOND / 1_000);
    assert_eq!(log.len(), 6, "50 ms at 100 a second, and one");
}

#[test]
fn a_raised_limit_holds_at_once_and_a_lowered_one_without_a_burst() {
    let mut device = Device::with(10_000, &[Qos { burst: Duration::from_secs(10), ..limited(1) }]);
    device.run(20 * SECOND);
    device.set_qos(0, limited(1_000));
    assert_near(device.counts(SECOND)[0], 1_000, 2);
    device.set_qos(0, Qos { burst: Duration::from_secs(10), ..limited(10) });
    assert_near(device.counts(SECOND)[0], 10, 1);
    device.set_qos(0, weight(1));
    assert_near(device.counts(SECOND)[0], 10_000, 1);
}

#[test]
fn adjusting_a_limit_often_does_not_cost_the_reservation() {
    let guarantee = |limit| Qos { limit: iops(limit), burst: Duration::from_millis(5), ..reserved(500) };
    let mut device = Device::with(1_000, &[guarantee(600), weight(1_000_000)]);
    let mut served = 0;
    for round in 0..1_000 {
        device.set_qos(0, guarantee(600 + round % 7));
        served += device.counts(SECOND / 100)[0];
    }
    assert_near(served, 5_000, 10);
}

// Background, starvation.

#[test]
fn background_yields_to_normal_clients_but_for_its_64th() {
    let background = Qos { background: true, weight: 1_000_000, ..Qos::default() };
    let counts = Device::with(1_000, &[weight(1), background]).counts(65 * SECOND);
    assert_near(counts[1], 1_000, 2);
}

#[test]
fn background_takes_what_no_other_tenant_wants() {
    let background = Qos { background: true, ..Qos::default() };
    let counts = Device::with(1_000, &[limited(200), background, background]).counts(10 * SECOND);
    assert_near(counts[0], 2_000, 15);
    assert_near(counts[1], 4_000, 8);
    assert_near(counts[2], 4_000, 8);
}

#[test]
fn a_background_client_that_comes_and_goes_gets_no_more() {
    let mut device = Device::with(1_000, &[weight(1)]);
    let background = device.join(Qos { background: true, ..Qos::default() }, &[]);
    let mut served = 0;
    for _ in 0..6_500 {
        if device.queue.client_len(device.ids[background]) == 0 {
            device.push(background, 4_096);
        }
        served += device.run(2_000_000).iter().filter(|s| s.client == background).count() as u64;
    }
    assert_near(served, 200, 3);
}

#[test]
fn a_large_background_request_is_counted_by_its_size() {
    let mut device = Device::with(1_000, &[weight(1)]);
    device.join(Qos { background: true, ..Qos::default() }, &[520_192]);
    // 520,192 + 4,096 is 64 times 8,192: one in 64 × 64.
    assert_near(device.counts(41 * SECOND)[1], 11, 1);
}

#[test]
fn no_client_starves_under_reservations_that_cannot_be_met() {
    let background = Qos { background: true, ..Qos::default() };
    let mut device = Device::with(1_000, &[reserved(5_000), reserved(700), weight(1), weight(1), background]);
    device.run(10 * SECOND);
    let counts = device.counts(650 * SECOND);
    for client in [2, 3] {
        assert_near(counts[client], 5_000, 200);
    }
    assert!(counts[4] >= 100, "{counts:?}");
    assert!(counts[1] > 100_000 && counts[0] > 100_000, "{counts:?}");
}

#[test]
fn a_greater_weight_or_larger_requests_starve_none_under_a_reservation_that_cannot_be_met() {
    // As in the first example of the README, on a slow device: a tenant with a reservation, and a backup.
    let background = Qos { background: true, ..Qos::default() };
    let counts = Device::with(1_000, &[reserved(5_000), background]).counts(100 * SECOND);
    assert_near(counts[1], 100_000 / 65, 5);
    for (of_reserved, bytes) in [(4, 262_144_u64), (16, 65_536), (200, 4_096)] {
        let strong = Qos { reservation: iops(5_000), ..weight(of_reserved) };
        let mut device = Device::with(1_000, &[strong]);
        device.join(weight(1), &[bytes as u32]);
        let counts = device.counts(1_000 * SECOND);
        // A 64th of the other's service, by cost.
        let expected = counts[0] * 8_192 / 64 / (bytes + 4_096);
        assert!(counts[1].abs_diff(expected) <= expected / 10 + 1, "{of_reserved}, {bytes}: {counts:?}, {expected}");
    }
}

#[test]
fn a_client_with_a_reservation_keeps_no_credit_from_when_requests_cost_more() {
    let dear = CostModel { base_bytes: 16 << 20, ..CostModel::default() };
    let mut queue = Queue::new(dear);
    let read = Work::new(Kind::Read, 4_096);
    let [plain, client] = [Qos::default(), reserved(1)].map(|qos| queue.join(Instant::ZERO, qos));
    for _ in 0..64 {
        assert!(queue.push(Instant::ZERO, plain, read, ()).is_ok());
        assert!(matches!(queue.pull(Instant::ZERO, |_, _| true), Pull::Ready { .. }));
    }
    // It comes 1 GiB late, and may go back by 256 MiB; then requests become cheap, and by 64 KiB.
    assert!(queue.push(Instant::ZERO, client, read, ()).is_ok());
    queue.set_cost_model(Instant::ZERO, CostModel::default());
    for _ in 0..200 {
        for id in [plain, client] {
            assert!(queue.push(Instant::ZERO, id, read, ()).is_ok());
        }
    }
    let served = (0..100).filter(|_| {
        let pull = queue.pull(Instant::ZERO, |_, _| true);
        matches!(pull, Pull::Ready { client: id, .. } if id == client)
    });
    let served = served.count();
    assert!(served < 65, "{served} of 100");
}

#[test]
fn reservations_that_fill_the_device_are_met_in_full_among_themselves() {
    let counts = Device::with(1_000, &[reserved(800), reserved(200)]).counts(100 * SECOND);
    assert_near(counts[0], 80_000, 3);
    assert_near(counts[1], 20_000, 3);
}

// Order, refusal, blocking.

#[test]
fn refusal_changes_nothing() {
    let guarantees = [reserved(100), limited(50), weight(3), Qos { background: true, ..weight(1) }];
    let mut plain = Device::with(1_000, &guarantees);
    let mut refusing = Device::with(1_000, &guarantees);
    for _ in 0..2_000 {
        for _ in 0..3 {
            refusing.refill();
            assert!(!matches!(refusing.queue.pull(refusing.now(), |_, _| false), Pull::Ready { .. }));
        }
        plain.run(1_000_000);
        refusing.run(1_000_000);
    }
    assert_eq!(plain.log, refusing.log);
}

#[test]
fn the_same_input_gives_the_same_order() {
    let guarantees: Vec<Qos> =
        (1..200).map(|i| Qos { reservation: iops(u64::from(i % 3) * 7), ..weight(1 + i % 5) }).collect();
    let log = |mut device: Device| device.run(5 * SECOND);
    assert_eq!(log(Device::with(1_000, &guarantees)), log(Device::with(1_000, &guarantees)));
}

#[test]
fn a_blocked_client_waits_and_keeps_its_order() {
    let mut queue = Queue::new(CostModel::default());
    let id = queue.join(Instant::ZERO, weight(1));
    let work = Work::new(Kind::Read, 1);
    for i in 0..3 {
        assert_eq!(queue.push(Instant::ZERO, id, work, i), Ok(()));
    }
    queue.block(Instant::ZERO, id);
    assert_eq!(queue.push(Instant::ZERO, id, work, 3), Ok(()));
    assert!(matches!(queue.pull(Instant::from_nanos(SECOND), |_, _| true), Pull::Idle));
    queue.unblock(Instant::from_nanos(SECOND), id);
    for expected in 0..4 {
        let Pull::Ready { payload, .. } = queue.pull(Instant::from_nanos(SECOND), |_, _| true) else {
            panic!("unblocked")
        };
        assert_eq!(payload, expected);
    }
    assert!(queue.is_empty());
}

#[test]
fn a_blocked_client_has_its_reservation_and_no_more() {
    let mut device = Device::with(1_000, &[reserved(100), weight(1)]);
    device.queue.block(Instant::ZERO, device.ids[0]);
    let mut counts = [0_u64; 2];
    for served in device.run(10 * SECOND) {
        counts[served.client] += 1;
    }
    assert_near(counts[0], 1_000, 1);
    assert_near(counts[1], 9_000, 1);
}

#[test]
fn blocking_after_every_request_costs_no_client_its_share() {
    // As a bound of one slot does: blocked from dispatch to completion.
    let mut device = Device::with(1_000, &[weight(1), weight(1)]);
    let mut counts = [0_u64; 2];
    for _ in 0..2_000 {
        for served in device.run(1_000_000) {
            counts[served.client] += 1;
            if served.client == 0 {
                device.queue.block(Instant::from_nanos(served.at), device.ids[0]);
            }
        }
        device.queue.unblock(device.now(), device.ids[0]);
    }
    assert_near(counts[0], 1_000, 1);
}

#[test]
fn leaving_gives_everything_back_and_frees_the_place_not_the_name() {
    let mut queue = Queue::new(CostModel::default());
    let work = Work::new(Kind::Write, 512);
    let first = queue.join(Instant::ZERO, reserved(5));
    for i in 0..5 {
        assert_eq!(queue.push(Instant::ZERO, first, work, i), Ok(()));
    }
    assert_eq!(queue.leave(first), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty());
    assert!(matches!(queue.pull(Instant::ZERO, |_, _| true), Pull::Idle));
    let second = queue.join(Instant::ZERO, weight(1));
    assert_ne!(first, second);
    assert_eq!(queue.push(Instant::ZERO, second, work, 9), Ok(()));
    assert!(queue.leave(first).is_empty());
    assert_eq!(queue.push(Instant::ZERO, first, work, 7), Err(7));
    assert_eq!((queue.client_len(first), queue.client_len(second)), (0, 1));
}

// Numbers at their ends.

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn survives_any_numbers(
        steps in prop::collection::vec(
            ((any::<u64>(), any::<u64>()), (any::<u64>(), any::<u64>()), any::<u32>(), any::<u64>(), any::<u32>(),
             prop_oneof![any::<u64>(), 0..1_000_u64]), 1..40),
    ) {
        let mut queue = Queue::new(CostModel { base_bytes: u32::MAX, write_percent: u32::MAX });
        let mut pushed = 0;
        for &((a, b), (c, d), weight, burst, bytes, now) in &steps {
            let now = Instant::from_nanos(now);
            let (reservation, limit) = (Rates { iops: a, bytes_per_s: b }, Rates { iops: c, bytes_per_s: d });
            let burst = Duration::from_nanos(burst);
            let qos = Qos { reservation, limit, weight, burst, background: a % 2 == 0 };
            let id = queue.join(now, qos);
            for kind in [Kind::Write, Kind::Flush] {
                prop_assert_eq!(queue.push(now, id, Work::new(kind, bytes), ()), Ok(()));
                pushed += 1;
            }
            if matches!(queue.pull(now, |_, _| true), Pull::Ready { .. }) {
                pushed -= 1;
            }
            queue.set_qos(now, id, Qos { weight: weight / 1_000, reservation: limit, limit: reservation, ..qos });
        }
        prop_assert_eq!(queue.len(), pushed);
    }
}
