//! Tests of members that report no more, while the store does not say that their leases have ended, as after its leader changed.

use super::*;

/// Ticks until the store notes the end of a lease.
const NEVER: u64 = u64::MAX;

#[test]
fn the_part_of_a_host_that_dies_becomes_free_though_its_lease_never_ends() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.expiry = NEVER;
        world.ask([4_000, 300, 300]);
        world.run(8);
        assert!(world.parts()[0] > 0.6, "seed {seed}: {:?}", world.parts());
        world.hosts[0].is_dead = true;
        world.ask([0, 3_000, 3_000]);
        // Lease, period and the safe time: until then it may only be slow.
        world.run(5);
        assert!(world.parts().iter().sum::<f64>() < 0.41, "seed {seed}: {:?}", world.parts());
        world.run(6);
        let sum = world.parts().iter().sum::<f64>();
        assert!((0.6..=2.0 / 3.0 + 1e-4).contains(&sum), "seed {seed}: {:?}", world.parts());
        world.run(70);
        assert!(world.parts().iter().sum::<f64>() > 0.9, "seed {seed}: it is forgotten: {:?}", world.parts());
    }
}

#[test]
fn a_host_without_the_store_has_its_safe_part_at_most_when_it_counts_as_ended() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.expiry = NEVER;
        world.ask([4_000, 3_000, 3_000]);
        world.run(8);
        world.hosts[0].is_cut = true;
        // Each tick checks the sum.
        world.run(20);
        let sum = world.parts().iter().sum::<f64>();
        assert!(world.hosts[0].contact() == "alone" && sum > 0.9, "seed {seed}: {:?}", world.parts());
        world.hosts[0].is_cut = false;
        world.run(10);
        assert!(world.hosts.iter().all(|host| host.contact() == "shared"), "seed {seed}");
    }
}

#[test]
fn a_host_that_reads_late_takes_no_part_that_is_in_use() {
    for seed in 0..20 {
        for late in [2, 5, 8] {
            let mut world = World::new(seed);
            world.expiry = NEVER;
            world.ask([4_000, 300, 300]);
            world.run(8);
            world.hosts[1].is_deaf = true;
            world.ask([4_000, 4_000, 4_000]);
            world.run(late);
            world.hosts[1].is_deaf = false;
            world.run(12);
            assert!(world.hosts.iter().all(|host| host.contact() == "shared"), "seed {seed}, {late} s");
            assert!(world.parts().iter().all(|part| *part > 0.2), "seed {seed}, {late} s: {:?}", world.parts());
        }
    }
}

#[test]
fn a_member_counts_until_a_report_is_back_that_was_made_after_the_member_lost_the_cluster() {
    let lines = Line { need: 0.5, throttled: 0.5, claim: 0.5, safe: 0.25, ..Line::default() };
    let sums = [Sums { members: 1, lines, reserved: 0.0 }, Sums::default()];
    let of_b = Totals::from([("main".into(), BTreeMap::from([("db".into(), sums)]))]);
    let of_b = Record { lease: LEASE, ..record(2, 7, of_b) };
    let mut host = Host::new("a", 1);
    host.rate = 4_000;
    host.sharing.heard(at(1), "b", &of_b, false);
    let report = |host: &mut Host, made: u64, read: u64, period: u64| {
        host.arrived += 4_000;
        let totals = host.report(made, period);
        host.sharing.heard(at(read), "a", &record(1, period, totals), false);
    };
    for (made, read, period) in [(10, 11, 1), (20, 21, 2), (30, 31, 3)] {
        report(&mut host, made, read, period);
    }
    assert!((0.45..=0.5).contains(&host.part()), "{}", host.part());
    // A report that comes back late says nothing of what the store has had since it was made.
    report(&mut host, 45, 60, 4);
    assert!((0.45..=0.5).contains(&host.part()), "{}", host.part());
    // Nor is the report of b news because a watch begins anew.
    host.sharing.begin(at(61), Shard::WHOLE, &BTreeSet::from(["a", "b"]));
    host.sharing.heard(at(61), "b", &of_b, false);
    report(&mut host, 62, 63, 5);
    assert!((0.65..=0.75).contains(&host.part()), "what b keeps is its safe part: {}", host.part());
}
