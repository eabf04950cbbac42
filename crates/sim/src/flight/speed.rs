//! The search for the least speed of a device that is enough, as a multiple of the speed that it has.

/// The highest speed that is tried, as a multiple.
pub(super) const HIGHEST: u32 = 8;
/// Steps of the search in a multiple of 1.
const STEPS: u32 = 10;

/// The least speed above that of the device, in thousandths of it, that is `enough`, by bisection in steps of a tenth; `None` if
/// not even [`HIGHEST`] is. Calls `enough` at most eight times.
pub(super) fn least(mut enough: impl FnMut(u32) -> bool) -> Option<u32> {
    let thousandths = 1_000 / STEPS;
    let (mut missed, mut met) = (STEPS, HIGHEST * STEPS);
    if !enough(met * thousandths) {
        return None;
    }
    while met - missed > 1 {
        let middle = (missed + met) / 2;
        if enough(middle * thousandths) {
            met = middle;
        } else {
            missed = middle;
        }
    }
    Some(met * thousandths)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The result is the first tenth that is enough, found in few steps.
        #[test]
        fn the_least_speed_is_found(needed in 1_001_u32..9_000) {
            let mut calls = 0;
            let found = least(|speed| {
                calls += 1;
                speed >= needed
            });
            let tenth = needed.div_ceil(100) * 100;
            assert_eq!(found, (tenth <= 8_000).then_some(tenth), "{needed}");
            assert!(calls <= 8, "{calls}");
        }
    }
}
