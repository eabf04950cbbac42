use proptest::prelude::*;

use super::*;

fn space(spare_percent: f64, used: f64, aged: bool) -> Space {
    let geometry = super::super::SsdParams::nvme().geometry;
    Space::new(&Geometry { capacity_bytes: 1 << 30, spare_percent, used, aged, ..geometry })
}

/// Asserts that the counts of valid units agree by region, by group, in the sums and in the trees, and that each group is in
/// exactly one state.
fn check(space: &Space) {
    for (index, region) in space.regions.iter().enumerate() {
        assert_eq!(region.units.iter().sum::<u32>(), region.valid, "region {index}");
        assert!(u64::from(region.valid) <= space.region_units, "region {index} holds more than its size");
        let mut rank = 0;
        for (group, &units) in region.units.iter().enumerate() {
            if units > 0 {
                assert_eq!(region.find(rank), group);
                assert_eq!(region.find(rank + units - 1), group);
            }
            rank += units;
        }
    }
    for (index, group) in space.groups.iter().enumerate() {
        let valid: u32 = space.regions.iter().map(|region| region.units[index]).sum();
        assert_eq!(valid, group.valid, "group {index}");
        assert!(valid <= space.size, "group {index} holds more than its size");
    }
    let mut places: Vec<usize> = space.free.clone();
    places.extend([space.host.group, space.moved.group]);
    places.extend(space.victim.as_ref().map(|victim| victim.group));
    places.extend((0..space.groups.len()).filter(|&group| space.closed[group]));
    places.sort_unstable();
    assert!(places.iter().copied().eq(0..space.groups.len()), "each group is free, open, closed or under collection");
    for &group in &space.free {
        assert_eq!(space.groups[group].valid, 0);
    }
}

#[test]
fn the_start_is_what_was_asked_for() {
    for (used, aged) in [(0.0, false), (0.0, true), (0.3, false), (0.3, true), (1.0, false), (1.0, true)] {
        let space = space(7.0, used, aged);
        check(&space);
        let valid: f64 = space.groups.iter().map(|group| f64::from(group.valid)).sum();
        let all = space.region_units as f64 * REGIONS as f64;
        assert!((valid / all - used).abs() < 0.002, "{} valid, {used} asked for", valid / all);
    }
}

#[test]
fn the_decay_has_the_mean_it_was_asked_for() {
    for mean in [0.05, 0.5, 0.93, 0.99] {
        let k = decay_of_mean(mean);
        assert!(((1.0 - libm::exp(-k)) / k - mean).abs() < 1e-9, "{k}");
    }
}

#[test]
fn nothing_is_moved_while_enough_is_free() {
    let mut space = space(7.0, 0.5, false);
    let mut rng = SplitMix64::new(1);
    // A quarter of the capacity, one unit at a time.
    for _ in 0..1 << 16 {
        let unit = rng.next_below(1 << 18);
        assert_eq!(space.write(unit, 1, &mut rng), 0);
    }
    check(&space);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Random { unit: u64, count: u64 },
    Sequential { unit: u64, count: u64 },
    Trim { unit: u64, count: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let unit = || 0u64..1 << 19;
    prop_oneof![
        4 => (unit(), 1u64..3_000).prop_map(|(unit, count)| Step::Random { unit, count }),
        2 => (unit(), 1u64..60_000).prop_map(|(unit, count)| Step::Sequential { unit, count }),
        1 => (unit(), 1u64..60_000).prop_map(|(unit, count)| Step::Trim { unit, count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After any writes and trims the counts of valid units agree, and at least one group is free.
    #[test]
    fn counts_stay_right(
        spare_percent in 1.0f64..30.0,
        used in 0.0f64..=1.0,
        aged in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut space = space(spare_percent, used, aged);
        let mut rng = SplitMix64::new(3);
        for step in steps {
            match step {
                Step::Random { unit, count } => {
                    for place in 0..count {
                        space.write(unit + place * 7_919 % 50_021, 1, &mut rng);
                    }
                }
                Step::Sequential { unit, count } => {
                    space.write(unit, count, &mut rng);
                }
                Step::Trim { unit, count } => space.trim(unit, count),
            }
            check(&space);
            prop_assert!(!space.free.is_empty(), "no free group left");
        }
    }
}
