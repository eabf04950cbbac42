//! Tests of an OSD's controller against a modelled store: one device at a constant speed behind the throttle, whose counters
//! are read every 20 ms.

use std::collections::VecDeque;

use evenkeel_control::admission::{ElasticConfig, SlowFastConfig};
use evenkeel_control::rng::SplitMix64;

use super::*;
use crate::sensor::osd::{Average, Store, Throttle};

const COST: u64 = 65_536 + 4_000;
const INTERVAL: Duration = Duration::from_millis(20);
/// Duration of a commit, in seconds.
const COMMIT: f64 = 0.015;

/// A modelled store that serves one request after the other, and commits the served requests in batches, one batch after the
/// other. As in BlueStore, the cost of a batch returns to the throttle when the batch's commit begins.
struct Osd {
    rng: SplitMix64,
    bytes_per_s: f64,
    /// Number of requests that clients always have waiting at the throttle or inside the store.
    load: usize,
    budget: u64,
    /// Times, in seconds, at which each request inside the store will have reached the device.
    inside: VecDeque<f64>,
    /// Number of requests that have reached the device and wait for the running commit, which ends at `commits_at`.
    written: u64,
    commits_at: f64,
    free_at: f64,
    now: f64,
    counters: Counters,
}

impl Osd {
    fn new(bytes_per_s: f64, load: usize) -> Self {
        let average = Some(Average::default());
        let store = Store {
            state_aio_wait_lat: average,
            state_kv_queued_lat: average,
            state_kv_commiting_lat: average,
            bluestore_write_big_bytes: Some(0),
            bluestore_write_small_bytes: Some(0),
        };
        let counters = Counters { store, bytes: Throttle::default() };
        let rng = SplitMix64::new(7);
        Self {
            rng,
            bytes_per_s,
            load,
            budget: 64 << 20,
            inside: VecDeque::new(),
            written: 0,
            commits_at: 0.0,
            free_at: 0.0,
            now: 0.0,
            counters,
        }
    }

    fn outstanding(&self) -> usize {
        self.inside.len() + self.written as usize
    }

    /// Admits requests as far as the throttle allows. A request needs 0.5 ms before the device can begin with it, so that a
    /// device with one request inside is idle in between.
    fn admit(&mut self) {
        let Throttle { val, get_started, get, get_sum, .. } = &mut self.counters.bytes;
        while self.inside.len() + (self.written as usize) < self.load && *val + COST <= self.budget.max(COST) {
            *val += COST;
            *get_started += 1;
            *get += 1;
            *get_sum += COST;
            if let Some(written) = &mut self.counters.store.bluestore_write_big_bytes {
                *written += 65_536;
            }
            self.free_at = self.free_at.max(self.now + 0.0005);
            let noise = 0.7 + 0.6 * self.rng.next_f64();
            self.free_at += 65_536.0 / self.bytes_per_s * noise;
            self.inside.push_back(self.free_at);
        }
    }

    /// Lets the oldest request inside the store reach the device.
    fn reach(&mut self) {
        self.inside.pop_front();
        self.written += 1;
        let state = self.counters.store.state_aio_wait_lat.as_mut().unwrap();
        state.avgcount += 1;
        state.sum += self.inside.len() as f64 * 65_536.0 / self.bytes_per_s;
    }

    fn commit(&mut self) {
        let requests = std::mem::take(&mut self.written);
        self.commits_at = self.now + COMMIT;
        self.counters.bytes.val -= requests * COST;
        self.counters.bytes.put_sum += requests * COST;
        let Store { state_kv_queued_lat, state_kv_commiting_lat, .. } = &mut self.counters.store;
        for state in [state_kv_queued_lat, state_kv_commiting_lat].into_iter().flatten() {
            state.avgcount += requests;
            state.sum += requests as f64 * COMMIT;
        }
        if self.load > self.inside.len() + 1 {
            self.counters.bytes.wait.avgcount += requests;
        }
    }

    fn run_until(&mut self, end: f64) {
        self.admit();
        loop {
            let reaches = self.inside.front().copied();
            let commits = (self.written > 0).then_some(self.commits_at.max(self.now));
            let Some(next) = reaches.into_iter().chain(commits).reduce(f64::min).filter(|&next| next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            if commits == Some(next) {
                self.commit();
            } else {
                self.reach();
            }
            self.admit();
        }
        self.now = end;
        let waits = self.load > self.outstanding();
        self.counters.bytes.get_started = self.counters.bytes.get + u64::from(waits);
    }
}

/// Runs controller and store for `seconds`, beginning at the time `from`. Returns the payload bytes per second that were
/// committed in the second half of the run, and the median budget in that half, in bytes.
fn run(mind: &mut Mind, osd: &mut Osd, from: f64, seconds: f64) -> (f64, f64) {
    let steps = (seconds / 0.02) as usize;
    let (mut before, mut budgets) = (0, Vec::new());
    for step in 0..steps {
        if step == steps / 2 {
            before = osd.counters.bytes.put_sum;
        }
        osd.run_until(from + (step + 1) as f64 * 0.02);
        mind.sample(Instant::from_nanos((osd.now * 1e9) as u64), &osd.counters);
        osd.budget = mind.budget_bytes();
        if step >= steps / 2 {
            budgets.push(osd.budget);
        }
    }
    let cost = (osd.counters.bytes.put_sum - before) as f64;
    budgets.sort_unstable();
    (cost * 65_536.0 / COST as f64 / (seconds / 2.0), budgets[budgets.len() / 2] as f64)
}

fn elastic() -> Mind {
    Mind::new(Config::Elastic(ElasticConfig::default()), INTERVAL, Instant::ZERO, 1)
}

#[test]
fn the_budget_becomes_small_and_the_throughput_stays_also_after_the_device_has_changed() {
    let mut mind = elastic();
    let mut osd = Osd::new(40e6, 64);
    let mut from = 0.0;
    for (speed, unnoticed) in [(40e6, None), (16e6, None), (40e6, Some(1_500.0))] {
        osd.bytes_per_s = speed;
        // A faster device shows at the next question upwards, which comes after minutes.
        if let Some(seconds) = unnoticed {
            run(&mut mind, &mut osd, from, seconds);
            from += seconds;
        }
        let (bytes_per_s, budget) = run(&mut mind, &mut osd, from, 60.0);
        from += 60.0;
        assert!(bytes_per_s > 0.95 * speed, "{bytes_per_s} of {speed} with {budget}");
        // 64 requests would be 4.4 MB; half of a mebibyte costs a quarter, and the search is as fine as a factor of two.
        assert!(budget < 1.4e6, "{budget} at {speed}");
    }
}

#[test]
fn slowfast_holds_its_target_within_reach() {
    let config = SlowFastConfig::REPAIRED;
    let mut mind = Mind::new(Config::SlowFast(config), INTERVAL, Instant::ZERO, 1);
    let mut osd = Osd::new(40e6, 64);
    let (bytes_per_s, budget) = run(&mut mind, &mut osd, 0.0, 120.0);
    assert!(bytes_per_s > 0.7 * 40e6, "{bytes_per_s} with {budget}");
    assert!(budget < 4e6, "{budget}");
}

#[test]
fn light_load_teaches_nothing() {
    let mut mind = elastic();
    let mut osd = Osd::new(40e6, 1);
    // The first budget grows until it is as large as a first budget may be.
    run(&mut mind, &mut osd, 0.0, 10.0);
    let before = mind.budget_bytes();
    run(&mut mind, &mut osd, 10.0, 20.0);
    // One request after the other, none of which waits.
    assert_eq!(mind.budget_bytes(), before);
    assert!(explain::admission(&mind.decision().reason).contains("too light"), "{:?}", mind.decision());
}

#[test]
fn counters_that_begin_anew_are_no_throughput() {
    let mut mind = elastic();
    let mut osd = Osd::new(40e6, 64);
    run(&mut mind, &mut osd, 0.0, 5.0);
    let now = Instant::from_nanos((osd.now * 1e9) as u64);
    let anew = Osd::new(40e6, 64).counters;
    assert_eq!(mind.sample(now + INTERVAL, &anew), Taken::Anew);
    assert_eq!(mind.measured().store_latency_ms, None);
    assert_eq!(mind.sample(now + INTERVAL + INTERVAL, &anew), Taken::Counted);
    // After a long silence there is nothing to compare with.
    assert_eq!(mind.sample(now + Duration::from_secs(60), &anew), Taken::First);
}

#[test]
fn an_osd_that_was_away_for_long_has_begun_anew() {
    let mut mind = elastic();
    let mut osd = Osd::new(40e6, 64);
    run(&mut mind, &mut osd, 0.0, 5.0);
    let now = Instant::from_nanos((osd.now * 1e9) as u64);
    let anew = Osd::new(40e6, 64).counters;
    assert_eq!(mind.sample(now + Duration::from_secs(60), &anew), Taken::Anew);
    assert_eq!(mind.sample(now + Duration::from_secs(60) + INTERVAL, &anew), Taken::Counted);
}

#[test]
fn decisions_for_the_same_reason_are_one_record() {
    let mut mind = Mind::new(Config::Fixed { budget_bytes: 262_144 }, INTERVAL, Instant::ZERO, 1);
    let mut osd = Osd::new(40e6, 64);
    run(&mut mind, &mut osd, 0.0, 2.0);
    let records: Vec<_> = Budget::records(mind.decisions(), "osd.3").collect();
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.pool.as_str(), record.reason.as_str(), record.set), ("osd.3", "configured", Some(262_144.0)));
    assert!(record.times > 90, "{record:?}");
}

#[test]
fn a_byte_of_cost_carries_one_byte_of_payload_at_most() {
    let mut mind = elastic();
    assert_eq!(mind.payload_ratio(), 1.0, "nothing is known");
    // Both counters are read at one moment, but are not advanced at one moment.
    for (written, ratio) in [(0.0, 0.0), (50.0, 0.5), (100.0, 1.0), (250.0, 1.0)] {
        (mind.written, mind.cost) = (written, 100.0);
        assert_eq!(mind.payload_ratio(), ratio);
    }
}

/// Checks that a controller without a bound still sets a throttle, namely the one that the OSD had, so that a lowered
/// throttle is raised again.
#[test]
fn no_bound_is_a_throttle_that_can_be_set() {
    let mut mind = Mind::new(Config::None, INTERVAL, Instant::ZERO, 1);
    assert_eq!((mind.decision().budget_bytes, mind.budget_bytes()), (u64::MAX, NO_BOUND_BYTES));
    for (throttle_bytes, budget) in [(32 << 20, 32 << 20), (0, NO_BOUND_BYTES)] {
        mind.limit(throttle_bytes);
        assert_eq!(mind.budget_bytes(), budget);
    }
}
