//! Tests of a store that is restored from an older state: its reports are older than the parts in use.

use super::*;

/// The newest value of each host after the first `kept` changes and those from `since` on.
fn values(world: &World, kept: usize, since: usize) -> BTreeMap<usize, String> {
    let mut values = BTreeMap::new();
    for (n, change) in world.log[..kept].iter().chain(&world.log[since..]) {
        match change {
            Change::Put(text) => values.insert(*n, text.clone()),
            Change::Ended => values.remove(n),
        };
    }
    values
}

/// A host begins to watch the store, which has these values.
fn watch(world: &mut World, n: usize, values: &BTreeMap<usize, String>) {
    let (tick, read) = (world.tick, world.log.len());
    let host = &mut world.hosts[n];
    let present: BTreeSet<&str> = values.keys().map(|of| NAMES[*of]).collect();
    host.sharing.begin(at(tick), Shard::WHOLE, &present);
    for (of, text) in values.iter().filter(|(of, _)| **of != n) {
        host.take_in(tick, NAMES[*of], text);
    }
    // That of the host itself comes last.
    if let Some(text) = values.get(&n) {
        host.take_in(tick, NAMES[n], text);
    }
    (host.read, host.is_cut) = (read, false);
}

#[test]
fn a_store_that_is_restored_from_an_older_state_doubles_no_part() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask([4_000, 300, 300]);
        world.run(8);
        let kept = world.log.len();
        world.ask([300, 300, 4_000]);
        world.run(8);
        let parts = world.parts();
        assert!(parts[2] > 0.6 && parts[0] < 0.25, "seed {seed}: {parts:?}");
        let (since, tick) = (world.log.len(), world.tick);
        for host in &mut world.hosts {
            (host.is_cut, host.last_put) = (true, tick);
        }
        // By the older state, the first host may have almost all; the last one, which has it, comes back last.
        world.ask([4_000, 300, 4_000]);
        for (n, ticks) in [2, 5, 8].into_iter().enumerate() {
            // Each tick checks the sum.
            (0..ticks).for_each(|_| world.tick());
            let present = values(&world, kept, since);
            watch(&mut world, n, &present);
            assert_eq!(world.hosts[n].contact(), "lost", "seed {seed}, host {n}");
        }
        world.run(12);
        let sum = world.parts().iter().sum::<f64>();
        assert!(sum > 0.9 && world.hosts.iter().all(|host| host.contact() == "shared"), "seed {seed}: {sum}");
    }
}

#[test]
fn a_watch_that_begins_anew_changes_no_part() {
    let mut world = World::new(1);
    world.ask([4_000, 300, 300]);
    world.run(8);
    let before = world.parts()[0];
    let all = world.log.len();
    let present = values(&world, all, all);
    watch(&mut world, 0, &present);
    assert_eq!(world.hosts[0].contact(), "shared");
    assert!(before > 0.6 && world.parts()[0] >= 0.9 * before, "{before} and {}", world.parts()[0]);
}

#[test]
fn a_store_without_the_report_of_a_host_leaves_the_host_its_safe_part() {
    // The store is empty or older than the host, or it has a report of an earlier process.
    for has_earlier_process in [false, true] {
        let mut world = World::new(1);
        world.ask([4_000, 300, 300]);
        world.run(8);
        assert!(world.parts()[0] > 0.6, "{:?}", world.parts());
        let all = world.log.len();
        let mut present = values(&world, all, all);
        let own = present.remove(&0).expect("a report");
        if has_earlier_process {
            let earlier = own.replacen("\"incarnation\":1,", "\"incarnation\":9,", 1);
            assert_ne!(earlier, own);
            present.insert(0, earlier);
        }
        watch(&mut world, 0, &present);
        let host = &world.hosts[0];
        assert!(host.contact() == "lost" && host.part() <= 0.334, "{has_earlier_process}: {}", host.part());
        world.run(12);
        let host = &world.hosts[0];
        assert!(host.contact() == "shared" && host.part() > 0.6, "{has_earlier_process}: {}", host.part());
    }
}

#[test]
fn a_store_that_counts_from_a_lower_revision_on_was_restored_even_if_it_has_the_newest_report() {
    for (revision, contact) in [(9, "shared"), (8, "lost")] {
        let mut host = Host::new("a", 1);
        host.rate = 1_000;
        let totals = host.report(10, 1);
        host.sharing.note_revision(9);
        host.sharing.heard(at(11), "a", &record(1, 1, totals.clone()), false);
        assert_eq!(host.contact(), "shared");
        host.sharing.note_revision(revision);
        host.sharing.begin(at(12), Shard::WHOLE, &BTreeSet::from(["a"]));
        host.sharing.heard(at(12), "a", &record(1, 1, totals), false);
        assert_eq!(host.contact(), contact, "revision {revision}");
    }
}

#[test]
fn a_report_that_has_expired_is_not_lost_by_the_store() {
    let mut world = World::new(1);
    world.ask([4_000, 300, 300]);
    world.run(8);
    world.hosts[0].is_cut = true;
    world.run(5);
    let all = world.log.len();
    let present = values(&world, all, all);
    assert!(!present.contains_key(&0));
    watch(&mut world, 0, &present);
    assert_eq!(world.hosts[0].sharing.distrusted_until, Instant::ZERO);
}
