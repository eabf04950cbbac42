//! Throughput guarantees on a cached device that is a formula: properties under any events, and how closely a guarantee is met.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::{
    Bounds, Config, Controller, Counters, Demand, Guarantee, InForce, InvalidConfig, Method, Rate, Reason, SlowDevice,
    TenantId, TenantSample,
};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const MB: f64 = 1e6;
/// Time step of the simulated device, in seconds.
const STEP_S: f64 = 0.01;

fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

fn reads(bytes_per_s: f64) -> Guarantee {
    Guarantee { read: Some(Bounds::new(Rate::BytesPerS(bytes_per_s as u64))), write: None, weight: 1.0 }
}

/// A reader that alternates between phases of cache hits and of cache misses.
#[derive(Clone, Debug)]
struct Reader {
    /// Guaranteed bytes per second.
    guaranteed: f64,
    /// Most bytes per second that the reader asks for.
    demand: f64,
    /// Mean length of a phase of hits, in seconds.
    hits_s: f64,
    /// Mean length of a phase of misses, in seconds; 0 = there is none.
    misses_s: f64,
    /// Weight by which the slow device is shared among the readers that miss.
    pressure: f64,
    /// Limit that the controller has set, in bytes per second.
    limit: f64,
    missing: bool,
    /// Rest of the current phase, in seconds.
    left_s: f64,
    counters: Counters,
    /// Requests and bytes of the reader that the slow device has served.
    slow: Counters,
}

fn reader(guaranteed: f64, hits_s: f64, misses_s: f64) -> Reader {
    Reader {
        guaranteed,
        demand: f64::INFINITY,
        hits_s,
        misses_s,
        pressure: 1.0,
        limit: guaranteed,
        missing: false,
        left_s: 0.0,
        counters: Counters::ZERO,
        slow: Counters::ZERO,
    }
}

/// Readers on a simulated cached device, with limits that a controller sets.
struct Plant {
    readers: Vec<Reader>,
    ids: Vec<TenantId>,
    slow_bytes_per_s: f64,
    /// Part of the slow device's throughput that write-back takes, from 0 to 1.
    background: f64,
    /// The controller sees the slow device's counters.
    shows_device: bool,
    /// Busy time that the slow device has reported so far, in seconds.
    busy_s: f64,
    /// The slow device reports that it is busy all the time.
    always_busy: bool,
    /// Bytes that write-back has moved so far.
    background_bytes: f64,
    controller: Controller,
    interval_s: f64,
    now_s: f64,
    rng: SplitMix64,
    reasons: Vec<Reason>,
}

impl Plant {
    fn new(config: Config, readers: Vec<Reader>, slow_bytes_per_s: f64, seed: u64) -> Self {
        let mut controller = Controller::new(&config).unwrap();
        let ids = readers.iter().map(|reader| controller.join(&reads(reader.guaranteed)).unwrap()).collect();
        Self {
            readers,
            ids,
            slow_bytes_per_s,
            background: 0.0,
            shows_device: true,
            busy_s: 0.0,
            always_busy: false,
            background_bytes: 0.0,
            controller,
            interval_s: config.interval.as_secs_f64(),
            now_s: 0.0,
            rng: SplitMix64::new(seed),
            reasons: Vec::new(),
        }
    }

    fn control(&mut self) {
        let now = Instant::ZERO + seconds(self.now_s);
        let samples: Vec<TenantSample> = self
            .readers
            .iter()
            .zip(&self.ids)
            .map(|(reader, &id)| TenantSample {
                cached: reader.counters,
                slow: Some(reader.slow),
                ..TenantSample::new(id)
            })
            .collect();
        let tenants: u64 = self.readers.iter().map(|reader| reader.slow.read_bytes).sum();
        let counters = Counters { read_bytes: tenants, written_bytes: self.background_bytes as u64, ..Counters::ZERO };
        let device = SlowDevice { counters, busy: seconds(self.busy_s) };
        self.controller.observe(now, self.shows_device.then_some(device), &samples);
        let decision = self.controller.tick(now);
        self.reasons.clear();
        for (reader, assignment) in self.readers.iter_mut().zip(decision.assignments) {
            let read = assignment.read.unwrap();
            reader.limit = read.limit.value() as f64;
            self.reasons.push(read.reason);
        }
    }

    /// Runs for `length_s` seconds; returns for each reader its bytes in each second.
    fn run(&mut self, length_s: f64) -> Vec<Vec<f64>> {
        let mut rates = vec![Vec::new(); self.readers.len()];
        let steps = (length_s / STEP_S).round() as u64;
        let per_interval = (self.interval_s / STEP_S).round() as u64;
        let mut before: Vec<u64> = self.readers.iter().map(|reader| reader.counters.read_bytes).collect();
        for step in 0..steps {
            if step % per_interval == 0 {
                self.control();
            }
            self.step();
            if (step + 1) % 100 == 0 {
                for ((rates, reader), before) in rates.iter_mut().zip(&self.readers).zip(&mut before) {
                    rates.push((reader.counters.read_bytes - *before) as f64);
                    *before = reader.counters.read_bytes;
                }
            }
        }
        rates
    }

    fn step(&mut self) {
        self.now_s += STEP_S;
        let rng = &mut self.rng;
        for reader in &mut self.readers {
            reader.left_s -= STEP_S;
            if reader.left_s <= 0.0 && reader.misses_s > 0.0 {
                reader.missing = !reader.missing || reader.hits_s == 0.0;
                let mean = if reader.missing { reader.misses_s } else { reader.hits_s };
                reader.left_s = mean * (0.5 + rng.next_f64());
            }
        }
        // The slow device is shared by pressure; what somebody may not use is there for the others.
        let mut free = self.slow_bytes_per_s * (1.0 - self.background);
        let mut pressure: f64 = self.readers.iter().filter(|reader| reader.missing).map(|reader| reader.pressure).sum();
        let mut rates: Vec<f64> = self.readers.iter().map(|reader| reader.limit.min(reader.demand)).collect();
        let mut order: Vec<usize> = (0..rates.len()).filter(|&place| self.readers[place].missing).collect();
        order.sort_by(|&a, &b| (rates[a] / self.readers[a].pressure).total_cmp(&(rates[b] / self.readers[b].pressure)));
        for place in order {
            let own = self.readers[place].pressure;
            rates[place] = rates[place].min(free * own / pressure);
            (free, pressure) = (free - rates[place], pressure - own);
        }
        let mut busy = self.background;
        for (reader, rate) in self.readers.iter_mut().zip(rates) {
            let bytes = (rate * STEP_S) as u64;
            reader.counters.read_bytes += bytes;
            reader.counters.reads += bytes / 4096;
            if reader.missing {
                reader.slow.read_bytes += bytes;
                reader.slow.reads += bytes / 4096;
                busy += rate / self.slow_bytes_per_s;
            }
        }
        self.busy_s += if self.always_busy { 1.0 } else { busy.min(1.0) } * STEP_S;
        self.background_bytes += self.slow_bytes_per_s * self.background * STEP_S;
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn dat(rates: &[f64], guaranteed: f64) -> f64 {
    (mean(rates) / guaranteed - 1.0).abs()
}

fn jitter(rates: &[f64], guaranteed: f64) -> f64 {
    mean(&rates.iter().map(|rate| (rate / guaranteed - 1.0).abs()).collect::<Vec<f64>>())
}

fn often() -> Config {
    Config { interval: Duration::from_millis(100), ..Config::DEFAULT }
}

#[test]
fn a_static_limit_is_the_guarantee_and_falls_short() {
    let config = Config { method: Method::Static, ..Config::DEFAULT };
    let mut plant = Plant::new(config, vec![reader(100.0 * MB, 0.8, 0.2)], 50.0 * MB, 1);
    let rates = plant.run(300.0);
    assert_eq!(plant.readers[0].limit, 100.0 * MB);
    assert_eq!(plant.reasons, [Reason::AsGuaranteed]);
    // Half of what was guaranteed for a fifth of the time.
    assert!((0.08..0.12).contains(&dat(&rates[0], 100.0 * MB)), "{}", dat(&rates[0], 100.0 * MB));
}

/// Observes second number `n`, in which each tenant of `moved` read (all bytes, bytes from the slow device), and decides;
/// returns each read limit in bytes per second with its reason.
fn second(controller: &mut Controller, n: u64, moved: &[(TenantId, u64, u64)]) -> Vec<(f64, Reason)> {
    let samples: Vec<TenantSample> = moved
        .iter()
        .map(|&(tenant, bytes, slow)| TenantSample {
            cached: Counters { read_bytes: n * bytes, reads: n, ..Counters::ZERO },
            slow: Some(Counters { read_bytes: n * slow, reads: n, ..Counters::ZERO }),
            ..TenantSample::new(tenant)
        })
        .collect();
    let now = Instant::ZERO + Duration::from_secs(n);
    controller.observe(now, None, &samples);
    let read = controller.tick(now).assignments.iter().filter_map(|assignment| assignment.read);
    read.map(|limit| (limit.limit.value() as f64, limit.reason)).collect()
}

fn published(slow: u64) -> Controller {
    Controller::new(&Config { method: Method::Saat, slow_bytes_per_s: Some(slow), ..Config::DEFAULT }).unwrap()
}

#[test]
fn saat_with_one_tenant_is_equation_3() {
    let mut controller = published(200_000_000);
    let tenant = controller.join(&reads(100.0 * MB)).unwrap();
    second(&mut controller, 1, &[(tenant, 80_000_000, 16_000_000)]);
    let (limit, reason) = second(&mut controller, 2, &[(tenant, 80_000_000, 16_000_000)])[0];
    // R = 0.2. (3) solved for 1 − op: A·(1/M − R/B) = 100·(1/80 − 0.2/200) = 1.15, so op is 0 at least, and
    // A = 1/(1/T − R/B) = 1/(0.01 − 0.001).
    assert!((limit - 1e6 / (0.01 - 0.001)).abs() < 2.0, "{limit}");
    let Reason::Compensating { measured, guaranteed, miss_rate } = reason else { panic!("{reason:?}") };
    assert_eq!((measured, guaranteed), (80.0 * MB, 100.0 * MB));
    assert!((miss_rate - 0.2).abs() < 1e-9);
    // From the new limit: 1 − op = 111.1·(1/90 − 0.001) = 1.123, so again 0.
    let mut controller = published(100_000_000);
    let tenant = controller.join(&reads(100.0 * MB)).unwrap();
    second(&mut controller, 1, &[(tenant, 90_000_000, 45_000_000)]);
    let (limit, _) = second(&mut controller, 2, &[(tenant, 90_000_000, 45_000_000)])[0];
    // R = 0.5: 1 − op = 100·(1/90 − 0.5/100) = 0.6111, A = 0.6111/(1/100 − 0.5/100).
    assert!((limit - 0.611_111_1 * MB / 0.005).abs() < 100.0, "{limit}");
}

#[test]
fn saat_with_several_tenants_uses_sums_and_one_overlap() {
    let mut controller = published(200_000_000);
    let a = controller.join(&reads(100.0 * MB)).unwrap();
    let b = controller.join(&reads(50.0 * MB)).unwrap();
    let moved = [(a, 90_000_000, 45_000_000), (b, 48_000_000, 12_000_000)];
    second(&mut controller, 1, &moved);
    let limits = second(&mut controller, 2, &moved);
    let not_overlapped = 150.0 / 138.0 * (1.0 - (45.0 + 12.0) / 200.0);
    let left = 1.0 - (0.5 * 100.0 + 0.25 * 50.0) / 200.0;
    for ((limit, _), guaranteed) in limits.iter().zip([100.0, 50.0]) {
        assert!((limit - guaranteed * MB * not_overlapped / left).abs() < 2.0, "{limit}");
    }
}

#[test]
fn saat_reports_where_it_has_no_solution_and_does_not_divide() {
    let mut controller = published(50_000_000);
    let tenant = controller.join(&reads(100.0 * MB)).unwrap();
    second(&mut controller, 1, &[(tenant, 60_000_000, 30_000_000)]);
    // R·T = B exactly.
    let (limit, reason) = second(&mut controller, 2, &[(tenant, 60_000_000, 30_000_000)])[0];
    assert_eq!(limit, 100.0 * MB);
    assert!(matches!(reason, Reason::NoSolution { .. }), "{reason:?}");
    let mut unknown = Controller::new(&Config { method: Method::Saat, ..Config::DEFAULT }).unwrap();
    let tenant = unknown.join(&reads(100.0 * MB)).unwrap();
    second(&mut unknown, 1, &[(tenant, 60_000_000, 30_000_000)]);
    assert_eq!(second(&mut unknown, 2, &[(tenant, 60_000_000, 30_000_000)])[0].1, Reason::SlowDeviceUnknown);
}

/// The bytes that a simple rule would owe on the same bursts: within a window of one second it sets an even limit for the
/// rest, and in each window it repays a twentieth of the debt. Bytes are in seconds of the guarantee, rates in parts of it.
struct Ledger {
    /// Part of a window's rest by which the rule runs ahead of an even limit; 0 = not at all.
    ahead: f64,
    /// Moving average over twenty intervals of the part of the limit that was not served.
    lost: f64,
    debt_s: f64,
    /// Bytes still due in the current window.
    rest_s: f64,
}

impl Ledger {
    fn new(ahead: f64) -> Self {
        Self { ahead, lost: 0.0, debt_s: 0.0, rest_s: 1.0 }
    }

    /// Accounts for one control interval of `interval_s`, at whose start the window had `left_s` to go, and of which the reader
    /// missed for `missing_s`; all in seconds.
    fn account(&mut self, left_s: f64, interval_s: f64, missing_s: f64, bursts: &Bursts) {
        let usable = if interval_s == 1.0 { 1.0 - self.lost } else { 1.0 };
        let limit = self.rest_s / (usable * (left_s - self.ahead * (left_s - interval_s)));
        let limit = limit.clamp(0.1, Config::DEFAULT.max_raise);
        let got_s = limit * (interval_s - missing_s) + limit.min(bursts.slow) * missing_s;
        // A slow device that seems busy all the time says nothing about the limit.
        if missing_s < 0.97 * interval_s * bursts.figure.unwrap_or(1.0) {
            self.lost += 0.05 * (1.0 - got_s / (limit * interval_s) - self.lost);
        }
        self.rest_s -= got_s;
        if left_s < 1.5 * interval_s {
            self.debt_s += self.rest_s - 0.05 * self.debt_s;
            self.rest_s = 1.0 + 0.05 * self.debt_s;
        }
    }
}

#[derive(Debug)]
struct Bursts {
    /// Mean length of a phase of cache hits, in seconds.
    hits_s: f64,
    /// Mean length of a phase of cache misses, in seconds.
    misses_s: f64,
    /// Rate of the slow device, as a part of the guarantee.
    slow: f64,
    /// The slow device's rate as configured in the controller, divided by the true rate. `None`: the controller measures it.
    figure: Option<f64>,
}

/// Part of a guarantee of 100 MB/s that is missed over 300 s, after 20 s of warm-up, with a decision each `interval_ms`; and
/// the upper bound of that part.
///
/// The bytes missing over the 300 s are the growth of the debt. A higher limit never leaves more debt, so the debt lies
/// between those of two ledgers: one never runs ahead; the other always does by 0.65 of a window's rest, the most that the
/// controller may. With one decision in a window both ledgers are the same, and the bound is exact.
fn missed_and_bound(seed: u64, bursts: &Bursts, interval_ms: u64) -> (f64, f64) {
    let slow_bytes_per_s = bursts.slow * 100.0 * MB;
    let config = Config {
        interval: Duration::from_millis(interval_ms),
        slow_bytes_per_s: bursts.figure.map(|figure| (figure * slow_bytes_per_s) as u64),
        ..Config::DEFAULT
    };
    let reader = reader(100.0 * MB, bursts.hits_s, bursts.misses_s);
    let mut plant = Plant::new(config, vec![reader], slow_bytes_per_s, seed);
    plant.shows_device = bursts.figure.is_none();
    let (mut least, mut most) = (Ledger::new(0.65), Ledger::new(0.0));
    let mut run = |windows: u64| {
        let before = plant.readers[0].counters.read_bytes;
        for left_ms in (0..windows).flat_map(|_| (1..=1000 / interval_ms).rev().map(|left| left * interval_ms)) {
            plant.control();
            let mut missing_s = 0.0;
            for _ in 0..interval_ms / 10 {
                plant.step();
                missing_s += if plant.readers[0].missing { STEP_S } else { 0.0 };
            }
            for ledger in [&mut least, &mut most] {
                ledger.account(left_ms as f64 / 1e3, interval_ms as f64 / 1e3, missing_s, bursts);
            }
        }
        let got = (plant.readers[0].counters.read_bytes - before) as f64;
        (got / (100.0 * MB * windows as f64), least.debt_s, most.debt_s)
    };
    let (_, least_before, most_before) = run(20);
    let (got, least, most) = run(300);
    let bound = (most - least_before).max(most_before - least) / 300.0;
    // The plant moves whole bytes: up to one less in a step of 1 MB.
    ((got - 1.0).abs(), bound + 1e-6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// Phases of misses of random length, a third of the time at most: the guarantee is missed by no more than the bound.
    #[test]
    fn a_guarantee_is_missed_by_what_bursts_leave_owed_and_no_more(
        seed in any::<u64>(), hits in 0.6f64..2.0, misses in 0.05f64..0.3, slow in 0.2f64..0.9,
        interval_ms in prop::sample::select(vec![100u64, 250, 500, 1_000]),
    ) {
        let bursts = Bursts { hits_s: hits, misses_s: misses, slow, figure: None };
        let (missed, bound) = missed_and_bound(seed, &bursts, interval_ms);
        prop_assert!(missed <= bound, "{missed} of at most {bound}");
    }

    /// The controller cannot measure the slow device, and the rate configured for it is wrong: the bound holds all the same.
    #[test]
    fn a_slow_device_taken_for_half_or_half_as_much_again_costs_nothing_more(
        seed in any::<u64>(), figure in prop::sample::select(vec![0.5, 1.5]), interval_ms in prop::sample::select(vec![100u64, 1_000]),
    ) {
        let bursts = Bursts { hits_s: 0.8, misses_s: 0.2, slow: 0.5, figure: Some(figure) };
        let (missed, bound) = missed_and_bound(seed, &bursts, interval_ms);
        prop_assert!(missed <= bound, "{missed} of at most {bound}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// With ten decisions per second the rate varies less than half as much as under a fixed limit.
    #[test]
    fn it_is_steadier_than_a_plain_limit(seed in any::<u64>(), hits in 0.5f64..2.0, misses in 0.1f64..0.2) {
        let run = |config| {
            let mut plant = Plant::new(config, vec![reader(100.0 * MB, hits, misses)], 40.0 * MB, seed);
            plant.run(20.0);
            jitter(&plant.run(200.0)[0], 100.0 * MB)
        };
        let (plain, ours) = (run(Config { method: Method::Static, ..often() }), run(often()));
        prop_assert!(ours < 0.5 * plain, "{ours} against {plain}");
    }

    /// Write-back takes half of the slow device's throughput for 100 s, none, and half again: the guarantee is met within 1 %.
    #[test]
    fn background_write_back_is_made_up_for(seed in any::<u64>()) {
        let mut plant = Plant::new(often(), vec![reader(100.0 * MB, 1.0, 0.15)], 60.0 * MB, seed);
        plant.run(20.0);
        for background in [0.5, 0.0, 0.5] {
            plant.background = background;
            let rates = plant.run(100.0);
            prop_assert!(dat(&rates[0], 100.0 * MB) <= 0.01, "{} at {background}", dat(&rates[0], 100.0 * MB));
        }
    }

    /// Under any counters, a limit stays between 1 and the most that the guarantee and its ceiling allow.
    #[test]
    fn limits_stay_in_bounds_whatever_is_reported(
        seed in any::<u64>(), method in prop::sample::select(Method::ALL.to_vec()), ceiling in prop::option::of(1.0f64..3.0),
    ) {
        let mut rng = SplitMix64::new(seed);
        let mut controller = Controller::new(&Config { method, slow_bytes_per_s: Some(1_000_000), ..often() }).unwrap();
        let most = ceiling.map(|factor| (1e7 * factor) as u64);
        let bounds = Bounds { guaranteed: Rate::BytesPerS(10_000_000), ceiling: most };
        let requests = Bounds::new(Rate::RequestsPerS(500));
        let tenant = controller.join(&Guarantee { read: Some(bounds), write: Some(requests), weight: 2.0 }).unwrap();
        let mut now = Instant::ZERO;
        for _ in 0..300 {
            now += Duration::from_nanos(rng.next_below(300_000_000));
            let mut any = || { let shift = rng.next_below(64); rng.next_u64() >> shift };
            let mut counters = || Counters { read_bytes: any(), written_bytes: any(), reads: any(), writes: any() };
            let (cached, slow, device) = (counters(), counters(), counters());
            let demand = [Demand::Unknown, Demand::Backlogged, Demand::AppLimited][rng.next_below(3) as usize];
            let sample = TenantSample { cached, slow: Some(slow), demand, ..TenantSample::new(tenant) };
            let busy = Duration::from_nanos(rng.next_u64() >> 20);
            controller.observe(now, Some(SlowDevice { counters: device, busy }), &[sample]);
            let assignment = controller.tick(now).assignments[0];
            let (read, write) = (assignment.read.unwrap().limit.value(), assignment.write.unwrap().limit);
            prop_assert!((1..=most.unwrap_or(40_000_000)).contains(&read), "{read}");
            prop_assert!(matches!(write, Rate::RequestsPerS(1..=2000)), "{write:?}");
        }
    }
}

#[test]
fn a_long_unachievable_phase_leaves_no_wound_up_limit() {
    for config in [often(), Config::DEFAULT] {
        let mut plant = Plant::new(config, vec![reader(100.0 * MB, 0.8, 0.1)], 50.0 * MB, 3);
        plant.run(60.0);
        // Nothing but misses for a minute: half of the guarantee is all there is.
        let (hits, misses) = (plant.readers[0].hits_s, plant.readers[0].misses_s);
        (plant.readers[0].hits_s, plant.readers[0].misses_s) = (0.0, 1.0);
        let rates = plant.run(60.0);
        assert!((mean(&rates[0][5..]) - 50.0 * MB).abs() < 2.0 * MB, "what there is it gets: {}", mean(&rates[0]));
        assert!(matches!(plant.reasons[0], Reason::Unachievable { .. }), "{:?}", plant.reasons[0]);
        let Reason::Unachievable { attainable, .. } = plant.reasons[0] else { unreachable!() };
        assert!((45.0 * MB..56.0 * MB).contains(&attainable), "{attainable}");
        (plant.readers[0].hits_s, plant.readers[0].misses_s) = (hits, misses);
        let after = plant.run(60.0);
        let worst = after[0].iter().copied().fold(0.0, f64::max);
        assert!(worst < 135.0 * MB, "a second of {worst}");
        assert!(dat(&after[0][30..], 100.0 * MB) < 0.03, "{}", dat(&after[0][30..], 100.0 * MB));
    }
}

#[test]
fn who_asks_for_less_is_not_learned_from_and_gets_its_guarantee_when_it_asks_again() {
    for config in [often(), Config::DEFAULT] {
        let mut plant = Plant::new(config, vec![reader(100.0 * MB, 0.9, 0.1)], 50.0 * MB, 4);
        plant.run(60.0);
        let known = plant.readers[0].limit;
        // Half of the guarantee at most, without misses; then nothing.
        (plant.readers[0].demand, plant.readers[0].missing, plant.readers[0].left_s) = (50.0 * MB, false, 1e9);
        plant.run(100.0);
        assert!(matches!(plant.reasons[0], Reason::AppLimited { .. }), "{:?}", plant.reasons[0]);
        plant.readers[0].demand = 0.0;
        plant.run(100.0);
        assert_eq!(plant.reasons[0], Reason::Idle);
        if config.interval == config.window {
            let limit = plant.readers[0].limit;
            assert!((limit / known - 1.0).abs() < 0.25, "{limit} was {known}");
        }
        (plant.readers[0].demand, plant.readers[0].left_s) = (f64::INFINITY, 0.0);
        let rates = plant.run(100.0);
        let worst = rates[0].iter().copied().fold(0.0, f64::max);
        assert!(worst < 125.0 * MB, "a second of {worst}");
        assert!(dat(&rates[0], 100.0 * MB) < 0.02, "{}", dat(&rates[0], 100.0 * MB));
    }
}

#[test]
fn what_is_short_is_shared_by_weight_and_no_tenant_is_starved() {
    // Two who only miss, one of them with nine times as many requests out; one who does not miss.
    let greedy = Reader { pressure: 9.0, ..reader(100.0 * MB, 0.0, 1.0) };
    let readers = vec![greedy, reader(100.0 * MB, 0.0, 1.0), reader(100.0 * MB, 1.0, 0.0)];
    for config in [often(), Config::DEFAULT] {
        let mut plant = Plant::new(config, readers.clone(), 60.0 * MB, 5);
        let before = plant.run(5.0);
        assert!(mean(&before[1]) < 10.0 * MB, "left alone it gets a tenth");
        plant.run(120.0);
        let rates = plant.run(60.0);
        assert!((25.0 * MB..36.0 * MB).contains(&mean(&rates[0])), "{}", mean(&rates[0]));
        assert!((24.0 * MB..36.0 * MB).contains(&mean(&rates[1])), "{}", mean(&rates[1]));
        assert!(dat(&rates[2], 100.0 * MB) < 0.005, "not concerned");
        let unachievable = plant.controller.decision().assignments.iter().map(|assignment| assignment.unachievable());
        assert_eq!(unachievable.collect::<Vec<bool>>(), [true, true, false]);
    }
}

#[test]
fn a_tenant_that_wants_little_leaves_the_slow_device_to_the_others() {
    // The device's queue is never empty (others keep it so), and it has 100 MB/s left.
    let little = Reader { demand: 20.0 * MB, ..reader(200.0 * MB, 0.4, 0.1) };
    let mut plant = Plant::new(often(), vec![little, reader(150.0 * MB, 0.0, 1.0)], 100.0 * MB, 5);
    plant.always_busy = true;
    let before = plant.run(10.0);
    assert!(mean(&before[1][3..]) > 90.0 * MB, "{}", mean(&before[1][3..]));
    plant.run(60.0);
    let rates = plant.run(120.0);
    assert!(mean(&rates[1]) > 90.0 * MB, "{}", mean(&rates[1]));
    assert!(mean(&rates[0]) > 15.0 * MB, "{}", mean(&rates[0]));
}

#[test]
fn who_has_stopped_takes_nothing_from_the_others() {
    let readers = vec![reader(80.0 * MB, 0.0, 1.0), reader(80.0 * MB, 0.0, 1.0)];
    let mut plant = Plant::new(often(), readers, 100.0 * MB, 6);
    plant.always_busy = true;
    plant.run(60.0);
    plant.readers[0].demand = 0.0;
    plant.run(60.0);
    let rates = plant.run(60.0);
    assert!(dat(&rates[1], 80.0 * MB) < 0.03, "{}", mean(&rates[1]));
}

#[test]
fn counters_that_begin_anew_are_not_learned_from() {
    let mut plant = Plant::new(often(), vec![reader(100.0 * MB, 0.9, 0.1)], 50.0 * MB, 6);
    plant.run(60.0);
    for _ in 0..10 {
        (plant.readers[0].counters, plant.readers[0].slow) = (Counters::ZERO, Counters::ZERO);
        plant.busy_s = 0.0;
        plant.control();
        assert_eq!(plant.reasons[0], Reason::CountersReset);
        let rates = plant.run(10.0);
        let worst = rates[0].iter().copied().fold(0.0, f64::max);
        assert!(worst < 115.0 * MB, "a second of {worst}");
        assert!(dat(&rates[0], 100.0 * MB) < 0.03, "{}", dat(&rates[0], 100.0 * MB));
    }
}

#[test]
fn a_limit_that_another_program_set_is_not_learned_from() {
    let mut controller = Controller::new(&Config::DEFAULT).unwrap();
    let tenant = controller.join(&reads(100.0 * MB)).unwrap();
    for n in 0..200 {
        let cached = Counters { read_bytes: n * 20_000_000, reads: n * 100, ..Counters::ZERO };
        let slow = Counters { read_bytes: n * 10_000_000, reads: n * 50, ..Counters::ZERO };
        let in_force = Some(InForce { read: Some(20_000_000), write: None });
        let sample = TenantSample { cached, slow: Some(slow), in_force, ..TenantSample::new(tenant) };
        let now = Instant::ZERO + Duration::from_secs(n);
        controller.observe(now, None, &[sample]);
        let read = controller.tick(now).assignments[0].read.unwrap();
        assert!((read.limit.value() as f64 - 100.0 * MB).abs() < MB, "{read:?}");
        assert!(n == 0 || read.reason == Reason::OtherLimit { in_force: 20.0 * MB }, "{:?}", read.reason);
    }
}

#[test]
fn without_news_the_guarantee_is_the_limit() {
    let mut plant = Plant::new(Config::DEFAULT, vec![reader(100.0 * MB, 0.8, 0.2)], 50.0 * MB, 7);
    plant.run(60.0);
    assert!(plant.readers[0].limit > 105.0 * MB);
    let later = |s: f64| Instant::ZERO + seconds(plant.now_s + s);
    let held = plant.controller.tick(later(3.0)).assignments[0].read.unwrap();
    assert_eq!(held.limit.value() as f64, plant.readers[0].limit);
    let lost = plant.controller.tick(later(30.0)).assignments[0].read.unwrap();
    assert_eq!((lost.limit.value(), lost.reason), (100_000_000, Reason::SignalLost));
}

#[test]
fn the_slow_device_is_estimated_while_busy_and_never_while_idle() {
    let mut controller = Controller::new(&Config::DEFAULT).unwrap();
    let (mut bytes, mut busy) = (0, 0);
    let mut second = |n: u64, more: u64, busy_ms: u64| {
        bytes += more;
        busy += busy_ms;
        let counters = Counters { read_bytes: bytes, ..Counters::ZERO };
        let now = Instant::ZERO + Duration::from_secs(n);
        controller.observe(now, Some(SlowDevice { counters, busy: Duration::from_millis(busy) }), &[]);
        controller.tick(now).slow_device
    };
    // A few requests now and then, at a rate that says nothing.
    for n in 0..100 {
        let estimate = second(n, 1_000_000, 100);
        assert!(estimate.bytes_per_s.is_none() && !estimate.trusted);
    }
    for n in 100..110 {
        let one_is_odd = if n == 105 { 900_000_000 } else { 40_000_000 };
        second(n, one_is_odd, 800);
    }
    let estimate = second(110, 1_000_000, 100);
    assert_eq!((estimate.bytes_per_s, estimate.trusted), (Some(50e6), true));
    let old = second(110 + 700, 0, 0);
    assert_eq!((old.bytes_per_s, old.trusted), (Some(50e6), false));
}

#[test]
fn another_part_of_a_guarantee_scales_the_limit_and_keeps_the_debt() {
    // A reader gets half of its guarantee for a while, so that it is owed something; then its part is halved.
    let limit_after = |change: fn(&mut Controller, TenantId, &Guarantee) -> Result<(), InvalidConfig>| {
        let mut controller = Controller::new(&Config::DEFAULT).unwrap();
        let tenant = controller.join(&reads(10.0 * MB)).unwrap();
        let mut counters = Counters::ZERO;
        for second in 0..=4 {
            let sample = TenantSample { cached: counters, demand: Demand::Backlogged, ..TenantSample::new(tenant) };
            controller.observe(Instant::ZERO + Duration::from_secs(second), None, &[sample]);
            controller.tick(Instant::ZERO + Duration::from_secs(second));
            counters = Counters { read_bytes: counters.read_bytes + 5_000_000, ..counters };
        }
        let limit = |controller: &Controller| controller.decision().assignments[0].read.unwrap().limit.value() as f64;
        let before = limit(&controller);
        change(&mut controller, tenant, &reads(5.0 * MB)).unwrap();
        assert!((limit(&controller) / before - 0.5).abs() < 0.01, "{before} {}", limit(&controller));
        // From now on it gets its guarantee.
        let now = Instant::ZERO + Duration::from_secs(5);
        let sample = TenantSample { cached: counters, demand: Demand::Backlogged, ..TenantSample::new(tenant) };
        controller.observe(now, None, &[sample]);
        controller.tick(now);
        limit(&controller)
    };
    let (part, new) = (limit_after(Controller::part), limit_after(Controller::guarantee));
    assert!(part > new, "the debt is repaid: {part}, and a new guarantee owes nothing: {new}");
}

#[test]
fn a_large_request_at_a_tiny_part_is_no_large_debt_after_the_part_has_grown() {
    let mut controller = Controller::new(&Config::DEFAULT).unwrap();
    let tenant = controller.join(&reads(0.01 * MB)).unwrap();
    let mut counters = Counters::ZERO;
    for (second, moved) in [(0, 1_000_000), (1, 0), (2, 10_000_000), (3, 10_000_000), (4, 0)] {
        let now = Instant::ZERO + Duration::from_secs(second);
        let sample = TenantSample { cached: counters, demand: Demand::Backlogged, ..TenantSample::new(tenant) };
        controller.observe(now, None, &[sample]);
        controller.tick(now);
        if second == 2 {
            controller.part(tenant, &reads(10.0 * MB)).unwrap();
        }
        counters = Counters { read_bytes: counters.read_bytes + moved, ..counters };
    }
    let limit = controller.decision().assignments[0].read.unwrap().limit.value();
    assert!((9_900_000..=10_100_000).contains(&limit), "it moved 1 MB more than its part: {limit}");
}

#[test]
fn tenants_come_and_go() {
    let mut controller = Controller::new(&Config::DEFAULT).unwrap();
    let (a, b) = (controller.join(&reads(1e6)).unwrap(), controller.join(&reads(2e6)).unwrap());
    controller.leave(a);
    assert_eq!(controller.decision().assignments.iter().map(|each| each.tenant).collect::<Vec<_>>(), [b]);
    assert_eq!(controller.join(&reads(3e6)).unwrap(), a, "the number is given anew");
    let read = controller.decision().assignments[0].read.unwrap();
    assert_eq!((read.limit, read.reason), (Rate::BytesPerS(3_000_000), Reason::NotEnoughData));
    controller.guarantee(a, &reads(6e6)).unwrap();
    assert_eq!(controller.decision().assignments[0].read.unwrap().limit, Rate::BytesPerS(6_000_000));
    assert!(controller.guarantee(a, &reads(0.0)).is_err() && controller.join(&reads(0.0)).is_err());
    let low = Bounds { ceiling: Some(5), ..Bounds::new(Rate::BytesPerS(6)) };
    let error = controller.join(&Guarantee { read: Some(low), ..reads(1.0) }).unwrap_err();
    assert_eq!(error.to_string(), "ceiling must be at least the guarantee");
}
