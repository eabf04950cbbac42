//! Measures the bytes that a host receives from etcd as a function of the number of hosts that share a device, with records of
//! real controllers and the default settings of shards.
//!
//! `cargo test -p evenkeel-policy --test all cluster_bytes -- --nocapture` prints a table, which
//! `cargo xtask record cluster` writes.

use std::collections::BTreeMap;

use evenkeel_control::Duration;
use evenkeel_control::cluster::shard::Shard;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Controller, Report, Workload, WorkloadId};
use evenkeel_policy::cluster::{Cluster, Pools, READS, Record, Totals, VERSION, received_bytes, together};

/// Upper bound on the bytes that a host receives per period in divided clusters, divided by the square root of the number of
/// hosts.
const BYTES_PER_ROOT: f64 = 5_000.0;

fn workloads(rng: &mut SplitMix64) -> Vec<Workload> {
    let workload = |id| {
        let (arrived, latency) = (5 + rng.next_below(400), Duration::from_micros(2_000 + rng.next_below(40_000)));
        let times = |count: u64| Duration::from_nanos(latency.as_nanos() * count);
        let report = Report {
            length: Duration::from_secs(1),
            arrived,
            completed: arrived,
            bytes: arrived << 12,
            queued: rng.next_below(40),
            waited: Duration::from_millis(rng.next_below(1_000)),
            occupied: times(arrived),
            aside: Duration::ZERO,
            device_time: times(arrived),
            latency: times(2 * arrived),
        };
        let target = Some(Duration::from_millis(20 + rng.next_below(500)));
        Workload { id: WorkloadId(id), target, weight: 1.0, guaranteed_iops: 0.0, report }
    };
    (0..4).map(workload).collect()
}

fn text(bits: u8, members: u64, pools: Pools) -> String {
    let (incarnation, period) = (1_795_329_373_123_456_789, 1_795_329_373);
    let record = Record {
        v: VERSION,
        reads: READS,
        incarnation,
        period,
        early: 0,
        joined: period - 1,
        period_us: 1_000_000,
        lease: 0,
        revision: if members > 1 { 123_456_789 } else { 0 },
        leaving: false,
        bits,
        members,
        pools,
        totals: Totals::new(),
    };
    record.text().expect("one pool")
}

#[test]
fn what_a_host_receives_grows_with_the_root_of_the_hosts() {
    let mut rng = SplitMix64::new(1);
    let all: Vec<(String, Pools)> = (0..10_000)
        .map(|n| {
            let mut controller = Controller::new(&Config::NEEDS).expect("settings that make sense");
            let summary = controller.observe(&workloads(&mut rng));
            (format!("host-{n:05}"), BTreeMap::from([("main".to_owned(), summary.clone())]))
        })
        .collect();
    let sizes = Cluster::default().sizes();
    println!("| members | shards | values a period | bytes a period into each member |\n|---|---|---|---|");
    let mut before = 0;
    for hosts in [10, 100, 101, 300, 1_000, 3_000, 10_000] {
        let bits = sizes.bits(hosts as u64);
        let mut shards: BTreeMap<Shard, Vec<&(String, Pools)>> = BTreeMap::new();
        for host in &all[..hosts] {
            shards.entry(Shard::of(&host.0, bits)).or_default().push(host);
        }
        let sum = |members: &Vec<&(String, Pools)>| {
            let sums = together(members.iter().map(|(_, pools)| pools));
            let pools = sums.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect();
            text(bits, members.len() as u64, pools).len()
        };
        let sums: Vec<usize> = if bits > 0 { shards.values().map(sum).collect() } else { Vec::new() };
        // A host of the largest shard.
        let largest = shards.values().max_by_key(|members| members.len()).expect("hosts");
        let own = largest.iter().map(|(_, pools)| text(bits, 1, pools.clone()).len());
        let (values, bytes) = (sums.len() + largest.len(), received_bytes(sums.iter().copied().chain(own)));
        println!("| {hosts} | {} | {values} | {bytes} |", shards.len());
        let bound = if bits == 0 { 1_700.0 * hosts as f64 + 1_000.0 } else { BYTES_PER_ROOT * (hosts as f64).sqrt() };
        assert!((bytes as f64) < bound, "{hosts} hosts: {bytes} bytes, bound {bound}");
        assert!(bits == 0 || values as f64 <= 3.5 * (hosts as f64).sqrt(), "{hosts} hosts: {values} values");
        assert!(hosts != 101 || bytes < before, "from the threshold on it is less: {bytes} after {before}");
        before = bytes;
    }
}
