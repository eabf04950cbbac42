use super::*;
use crate::config::{Abilities, Config};
use crate::sensor::diskstats::Flow;

const QUEUE: QueueSlots = QueueSlots { all: 64, shows_waiting: true };

fn array(text: &str) -> Array {
    let config = Config::parse(text, "test", Abilities { tracepoints: false }).unwrap();
    Array::new("san", &config.arrays["san"], &config.cluster).unwrap()
}

fn sample(completed: u64, each_ms: u64) -> Sample {
    let reads = Flow { completed, bytes: completed * 4096, time: Duration::from_millis(completed * each_ms) };
    Sample { interval: Duration::from_millis(100), reads, writes: Flow::default(), in_flight: 1 }
}

/// Runs ten ticks of 100 ms, each with this sample; returns the volumes' slots if slots were decided.
fn second(array: &mut Array, now: &mut Instant, sample: &Sample) -> Option<Vec<f64>> {
    for _ in 0..10 {
        *now += Duration::from_millis(100);
        array.observe(0, Some(sample), QUEUE);
        array.tick(*now);
    }
    array.take_slots().map(Iterator::collect)
}

#[test]
fn targets_are_judged_by_seconds_and_reasons_are_kept() {
    let mut array = array(
        "[pools.san]\ntuning.slots = \"needs\"\n[tenants.db]\nmatch = [\"device:sda\"]\nlatency.target = \"10ms\"\n",
    );
    let mut now = Instant::ZERO;
    // The period begins with the first look.
    assert_eq!(second(&mut array, &mut now, &sample(10, 5)), None);
    for each_ms in [5, 30, 5] {
        let slots = second(&mut array, &mut now, &sample(10, each_ms));
        assert!(slots.is_some_and(|slots| slots.len() == 1 && slots[0] > 0.0));
    }
    let state = array.state();
    let slots = &state.volumes[0].slots;
    assert_eq!((slots.windows_total, slots.violated_total), (3, 1));
    assert_eq!((array.method(), state.period_s, state.slots.clustered), ("needs", 1.0, false));
    let times: u64 = array.records().map(|record| record.times).sum();
    assert_eq!(times, 3);
    assert!(array.records().all(|record| !record.because.is_empty() && record.tenant == "db"));
}

#[test]
fn seconds_in_which_nothing_comes_out_miss_the_target() {
    let mut array = array(
        "[pools.san]\ntuning.slots = \"needs\"\n[tenants.db]\nmatch = [\"device:sda\"]\nlatency.target = \"10ms\"\n",
    );
    let mut now = Instant::ZERO;
    let [stuck, idle] = [4, 0].map(|in_flight| Sample { in_flight, ..sample(0, 0) });
    for sample in [sample(10, 5), stuck, stuck, stuck, idle, idle, idle] {
        second(&mut array, &mut now, &sample);
    }
    // A period ends with the first sample of the next second.
    let volume = &array.state().volumes[0];
    assert_eq!((volume.slots.windows_total, volume.slots.violated_total), (4, 3));
    assert_eq!(volume.lately.targets[0].verdict, verdict::Verdict::Idle, "the newest second asked for nothing");
}

#[test]
fn no_bound_is_infinite_and_a_ceiling_holds_always() {
    let unbound = "[pools.san]\nenforce = [\"queue_depth\"]\n[tenants.db]\nmatch = [\"device:sda\"]\n";
    let mut free = array(unbound);
    let mut now = Instant::ZERO;
    second(&mut free, &mut now, &sample(10, 5));
    assert_eq!(second(&mut free, &mut now, &sample(10, 5)), Some(vec![f64::INFINITY]));
    let mut bound = array(&format!("{unbound}max_in_flight = 3\n"));
    let mut now = Instant::ZERO;
    second(&mut bound, &mut now, &sample(10, 5));
    assert_eq!(second(&mut bound, &mut now, &sample(10, 5)), Some(vec![3.0]));
}

#[test]
fn fixed_shares_go_by_weight() {
    let mut array = array(
        "[pools.san.tuning]\nslots = \"rwd\"\nslots_most = 12\n[tenants.a]\nmatch = [\"device:sda\"]\nweight = 2\n\
         [tenants.b]\nmatch = [\"device:sdb\"]\n",
    );
    let mut now = Instant::ZERO;
    second(&mut array, &mut now, &sample(10, 5));
    let slots = second(&mut array, &mut now, &sample(10, 5));
    assert_eq!(slots, Some(vec![8.0, 4.0]));
}

#[test]
fn a_host_that_joins_takes_its_share_in_steps() {
    let mut array =
        array("[pools.san.tuning]\nslots = \"rwd\"\nslots_most = 12\n[tenants.a]\nmatch = [\"device:sda\"]\n");
    let mut now = Instant::ZERO;
    second(&mut array, &mut now, &sample(10, 5));
    second(&mut array, &mut now, &sample(10, 5));
    let mut cluster = array.take_summary().unwrap();
    cluster.weight *= 2.0;
    for (ramp, slots) in [(0.0, 1.0), (0.5, 3.0), (1.0, 6.0)] {
        array.decide(now, &cluster, ramp);
        assert_eq!(array.take_slots().map(Iterator::collect), Some(vec![slots]));
    }
    // While others have a say, it does not decide by itself, and its periods end when it is asked.
    assert_eq!(second(&mut array, &mut now, &sample(10, 5)), None);
    assert!(array.take_summary().is_some_and(|own| own.completed > 0.0));
}

/// Checks precedence: a bound on slots never goes below a reservation, whatever other tenants' latency targets need.
#[test]
fn no_bound_takes_a_reservation() {
    for (reservation, least) in [("reservation.iops = 400\n", 0.95 * 400.0 * 0.04), ("", 0.0)] {
        let mut array = array(&format!(
            "[pools.san.tuning]\nslots = \"needs\"\nslots_latency = \"1ms\"\n[tenants.a]\nmatch = [\"device:sda\"]\n{reservation}"
        ));
        let mut now = Instant::ZERO;
        // 64 requests at all times, each of 40 ms in the array.
        let flow = Flow { completed: 160, bytes: 160 * 4096, time: Duration::from_millis(160 * 60) };
        let busy = Sample { reads: flow, in_flight: 64, ..sample(0, 0) };
        let slots = (0..20).filter_map(|_| second(&mut array, &mut now, &busy)).last().unwrap()[0];
        assert!(slots >= least, "{slots} slots, of {least}");
        assert!(!reservation.is_empty() || slots < 8.0, "{slots} slots without one");
        let own = array.take_summary().unwrap();
        array.decide(now, &own, 0.0);
        let slots = array.take_slots().unwrap().next().unwrap();
        assert!(slots >= least, "{slots} slots of a host that joins, of {least}");
    }
}
