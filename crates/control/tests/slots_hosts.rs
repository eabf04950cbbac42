//! Slots of three hosts in front of one array, which exchange summaries: targets are met for clients whose requests do not come
//! evenly.

use std::collections::VecDeque;
use std::ops::Range;

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{self, Summary};
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

const WORK: Work = Work::new(Kind::Read, 4096);
/// Time from the end of a period until the last host's summary of it has come, in ms.
const CLUSTER_MS: u64 = 60;
const PERIOD_MS: u64 = 500;
const TARGET_MS: u64 = 250;

/// The way in which a client sends its requests.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// This many requests are outstanding at all times.
    Closed(usize),
    /// `per_s` requests per second at random times, at most `depth` outstanding.
    Random { per_s: f64, depth: usize },
    /// Like `Random`, but once no further request is due, the client waits until none is outstanding: it sends batches, which
    /// become larger the longer they take.
    Batches { per_s: f64, depth: usize },
}

struct Client {
    ask: Ask,
    rng: SplitMix64,
    next_ms: f64,
    outstanding: usize,
    quiet: bool,
}

impl Client {
    /// Number of requests that the client sends at `now_ms`.
    fn sends(&mut self, now_ms: u64) -> usize {
        let (per_s, depth, batches) = match self.ask {
            Ask::Closed(depth) => return depth - self.outstanding,
            Ask::Random { per_s, depth } => (per_s, depth, false),
            Ask::Batches { per_s, depth } => (per_s, depth, true),
        };
        let mut sends = 0;
        self.quiet &= self.outstanding > 0;
        while !self.quiet && self.outstanding + sends < depth {
            if self.next_ms > now_ms as f64 {
                self.quiet = batches && self.outstanding + sends > 0;
                break;
            }
            self.next_ms -= (1.0 - self.rng.next_f64()).ln() * 1e3 / per_s;
            sends += 1;
        }
        sends
    }
}

struct Host {
    pool: Pool<u64>,
    tenant: TenantId,
    client: Client,
    heard: Option<Summary>,
    /// Number of requests completed in the present second, and the sum of their latencies in ms.
    second: (u64, u64),
    /// Mean latency in each earlier second, in ms.
    means: Vec<f64>,
}

/// Runs three hosts on an array that serves 1,000 requests per second, first come, first served; returns each host's mean
/// latency in each second, in ms. `cut_off`: in these seconds the summaries of these hosts reach no other host, and none
/// reaches them.
fn run(asks: [(Ask, bool); 3], seconds: u64, cut_off: (Range<u64>, &[usize]), seed: u64) -> Vec<Vec<f64>> {
    let slots = slots::Config { period: Duration::from_millis(PERIOD_MS), most: 300.0, ..slots::Config::NEEDS };
    let config = Config {
        scheduler: Scheduler::Mclock,
        admission: Admission::None,
        base_cost_bytes: 0,
        cost: CostModel { base_bytes: 1, write_percent: 100 },
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: None,
        slots: Some(slots),
    };
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let mut hosts: Vec<Host> = (0u64..)
        .zip(asks)
        .map(|(place, (ask, target))| {
            let mut pool = Pool::new(config, at(0), seed ^ place);
            pool.share_slots(true);
            let tenant = pool.join(at(0), Qos::default());
            let target = target.then(|| LatencyTarget::mean(Duration::from_millis(TARGET_MS)));
            pool.set_latency_target(tenant, target);
            let rng = SplitMix64::new(seed.wrapping_mul(31) ^ place);
            let client = Client { ask, rng, next_ms: 0.0, outstanding: 0, quiet: false };
            Host { pool, tenant, client, heard: None, second: (0, 0), means: Vec::new() }
        })
        .collect();
    let mut array: VecDeque<(usize, u64, Ticket)> = VecDeque::new();
    for now in 1..=seconds * 1000 {
        if let Some((host, sent, ticket)) = array.pop_front() {
            let host = &mut hosts[host];
            host.pool.complete(at(now), ticket, Outcome::Done);
            host.client.outstanding -= 1;
            host.second = (host.second.0 + 1, host.second.1 + now - sent);
        }
        for (place, host) in hosts.iter_mut().enumerate() {
            for _ in 0..host.client.sends(now) {
                host.client.outstanding += 1;
                host.pool.submit(at(now), host.tenant, WORK, now).expect("a tenant");
            }
            if now % PERIOD_MS == 0 {
                host.pool.tick_controllers(at(now));
                host.heard = host.pool.take_summary(at(now));
            }
            host.pool.tick_controllers(at(now));
            while let Next::Run(sent, ticket) = host.pool.dispatch(at(now)) {
                array.push_back((place, sent, ticket));
            }
            if now % 1000 == 0 {
                let (count, sum) = std::mem::take(&mut host.second);
                host.means.push(if count == 0 { 1000.0 } else { sum as f64 / count as f64 });
            }
        }
        if now % PERIOD_MS == CLUSTER_MS {
            let (when, who) = &cut_off;
            let lost = |place: usize| when.contains(&(now / 1000)) && who.contains(&place);
            let mut cluster = Summary::default();
            let heard = hosts.iter().enumerate().filter(|(place, _)| !lost(*place));
            heard.filter_map(|(_, host)| host.heard.as_ref()).for_each(|heard| cluster.add(heard));
            for (place, host) in hosts.iter_mut().enumerate() {
                host.pool.share_slots(!lost(place));
                if !lost(place) {
                    host.pool.decide_slots(at(now), &cluster);
                }
            }
        }
    }
    hosts.into_iter().map(|host| host.means).collect()
}

/// Three clients: one with 150 requests outstanding at all times and a target, one with a target that sends as `uneven` says,
/// and one without a target that takes as much as it can get.
fn clients(uneven: Ask) -> [(Ask, bool); 3] {
    [(Ask::Closed(150), true), (uneven, true), (Ask::Closed(200), false)]
}

const RANDOM: Ask = Ask::Random { per_s: 100.0, depth: 64 };
const BATCHES: Ask = Ask::Batches { per_s: 100.0, depth: 64 };

/// Number of these seconds in which each of the two hosts with a target missed it.
fn missed(means: &[Vec<f64>], seconds: Range<usize>) -> [usize; 2] {
    let of = |means: &Vec<f64>| means[seconds.clone()].iter().filter(|mean| **mean > TARGET_MS as f64).count();
    [of(&means[0]), of(&means[1])]
}

/// The device's own queue must leave enough of the target for requests that come in batches or at random times.
#[test]
fn targets_are_met_however_unevenly_requests_come() {
    for (uneven, per_mille) in [(RANDOM, 0), (BATCHES, 5)] {
        let mut late = [0; 2];
        for seed in 300..320 {
            let means = run(clients(uneven), 110, (0..0, &[]), seed);
            // It takes some seconds to find out what the device can do.
            for (sum, late) in late.iter_mut().zip(missed(&means, 10..110)) {
                *sum += late;
            }
            let served: f64 = means[2][10..].iter().map(|mean| 200.0 / mean * 1e3).sum::<f64>() / 100.0;
            assert!(served > 100.0, "{uneven:?}, seed {seed}: {served:.0} requests a second are left for the third");
        }
        assert!(late.iter().all(|late| late * 1000 <= per_mille * 2000), "{uneven:?}: {late:?} seconds of 2000");
    }
}

/// Hosts that measure the device while a cut-off host loads it, unknown to them, must not keep what they learn from that.
#[test]
fn targets_are_met_while_a_host_is_cut_off_and_when_it_is_back() {
    for (uneven, per_cent) in [(RANDOM, 0), (BATCHES, 8)] {
        let (mut during, mut later) = ([0; 2], [0; 2]);
        for seed in 300..320 {
            let means = run(clients(uneven), 90, (30..60, &[2]), seed);
            for (sum, seconds) in [(&mut during, 36..60), (&mut later, 66..90)] {
                let late = missed(&means, seconds);
                sum.iter_mut().zip(late).for_each(|(sum, late)| *sum += late);
            }
        }
        assert!(
            during.iter().all(|late| late * 100 <= per_cent * 480),
            "{uneven:?}: {during:?} of 480 while it is gone"
        );
        assert!(later.iter().all(|late| late * 100 <= 480), "{uneven:?}: {later:?} of 480 when it is back");
    }
}
