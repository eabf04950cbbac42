//! Tests of hosts of two versions side by side, as during a rolling upgrade, and of a way back.

use super::*;

/// A version, by the start of its records, and the versions that it reads.
type Version = (&'static str, RangeInclusive<u32>);

const OLD: Version = ("\"v\":3", 3..=3);
/// A version that neither reads the old one nor is read by it.
const NEW: Version = ("\"v\":4", 4..=4);
/// A version that reads the old one, and that the old one can read.
const KIND: Version = ("\"v\":4,\"reads\":3", 3..=4);

impl World {
    /// A world in which all hosts have this version.
    fn of((v, reads): Version, seed: u64) -> Self {
        let mut world = Self::new(seed);
        for host in &mut world.hosts {
            (host.v, host.reads) = (v.to_owned(), reads.clone());
        }
        world
    }

    /// The host leaves in order, and starts with this version.
    fn upgrade(&mut self, n: usize, (v, reads): Version) {
        let before = &self.hosts[n];
        let last = Record { leaving: true, ..record(n as u64 + 1, self.tick / TICKS + 100 * n as u64, Totals::new()) };
        let text = before.text(&last);
        let mut host = Host::new(NAMES[n], n as u64 + 1);
        (host.rate, host.v, host.reads) = (before.rate, v.to_owned(), reads);
        self.log.push((n, Change::Put(text)));
        // A watch begins with the present values, and that of the host itself is gone.
        host.sharing.begin(at(self.tick), Shard::WHOLE, &NAMES.into_iter().collect());
        for (of, name) in NAMES.into_iter().enumerate().filter(|(of, _)| *of != n) {
            let newest = self.log.iter().rev().find(|(by, _)| *by == of);
            if let Some((_, Change::Put(text))) = newest {
                host.take_in(self.tick, name, text);
            }
        }
        host.read = self.log.len();
        self.hosts[n] = host;
    }

    fn sum(&self) -> f64 {
        self.parts().iter().sum()
    }
}

/// Hosts of the version `from` become hosts of the version `to`, one after the other. No tick may exceed the limit, which
/// [`World::tick`] checks. Returns the smallest sum of parts after each step.
fn roll(seed: u64, from: &Version, to: &Version) -> Vec<f64> {
    let mut world = World::of(from.clone(), seed);
    world.ask([4_000, 4_000, 4_000]);
    world.run(8);
    assert!(world.sum() > 0.9, "seed {seed}: {:?}", world.parts());
    let mut sums = Vec::new();
    for n in 0..3 {
        world.upgrade(n, to.clone());
        world.run(10);
        sums.push(world.sum());
        assert!(world.hosts.iter().all(|host| host.contact() == "shared"), "seed {seed}, step {n}");
        assert!(world.parts().iter().all(|part| *part > 0.25), "seed {seed}, step {n}: {:?}", world.parts());
    }
    sums
}

#[test]
fn a_rolling_upgrade_and_the_way_back_keep_the_limit_though_no_version_reads_the_other() {
    for seed in 0..20 {
        for (from, to) in [(OLD, NEW), (NEW, OLD)] {
            let sums = roll(seed, &from, &to);
            assert!(sums.iter().all(|sum| *sum > 0.9), "seed {seed}: {sums:?}");
        }
    }
}

#[test]
fn what_the_other_version_has_does_not_follow_demand_and_the_state_says_so() {
    for seed in 0..20 {
        let mut world = World::of(OLD, seed);
        world.ask([4_000, 4_000, 4_000]);
        world.run(8);
        world.upgrade(0, NEW);
        world.ask([300, 4_000, 300]);
        world.run(10);
        let parts = world.parts();
        // The old ones share two thirds by demand.
        let of_old = parts[1] + parts[2];
        assert!(parts[1] > 0.45 && of_old <= 2.0 / 3.0 + 1e-3 && parts[0] > 0.25, "seed {seed}: {parts:?}");
        let because = |n: usize| world.hosts[n].sharing.state().map(|state| state.because).unwrap_or_default();
        assert!(because(0).contains("the reports of 2 members are in a format"), "{}", because(0));
        assert!(because(1).contains("the reports of 1 member are in a format"), "{}", because(1));
    }
}

#[test]
fn without_the_store_hosts_of_two_versions_keep_the_safe_parts_of_all() {
    for seed in 0..20 {
        let mut world = World::of(OLD, seed);
        world.ask([4_000, 4_000, 4_000]);
        world.run(8);
        world.upgrade(0, NEW);
        world.run(10);
        world.hosts.iter_mut().for_each(|host| host.is_cut = true);
        // Until all are alone: each tick checks the sum.
        world.run(14);
        assert!(world.hosts.iter().all(|host| host.contact() == "alone"));
        assert!(world.sum() > 0.9, "seed {seed}: {:?}", world.parts());
        world.hosts.iter_mut().for_each(|host| host.is_cut = false);
        world.run(10);
        assert!(world.hosts.iter().all(|host| host.contact() == "shared"));
    }
}

#[test]
fn versions_that_read_each_other_share_by_demand() {
    for seed in 0..20 {
        for (from, to) in [(OLD, KIND), (KIND, OLD)] {
            let mut world = World::of(from, seed);
            world.ask([4_000, 4_000, 4_000]);
            world.run(8);
            world.upgrade(0, to);
            world.run(4);
            world.ask([4_000, 100, 400]);
            world.run(6);
            let parts = world.parts();
            assert!(parts[0] > 0.6 && parts[1] < 0.25, "seed {seed}: {parts:?}");
        }
    }
}
