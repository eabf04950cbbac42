//! Whose delay makes up the mean?
//!
//! The effect of delays is that of their mean, weighted by load (see [`super::gain`]). That leaves free who has how much.
//! Here each offender's delay is in proportion to its share of the load, so that the one who causes most of it gives up
//! most; nobody's exceeds its cap, and what the caps take away goes to the others. Those who are important come in only
//! when all others are at their caps.

use super::{nearest, whole};

/// An offender in the split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Share of the load, 0 to 1; the shares of all parts add up to 1.
    pub(super) share: f64,
    /// Largest delay in ms.
    pub(super) cap_ms: f64,
    /// Whether it is spared as long as others are left.
    pub(super) spared: bool,
    /// The answer, in ms.
    pub(super) delay_ms: f64,
}

/// Stands for a delay that is not known yet.
const OPEN: f64 = -1.0;

/// The largest mean delay that the caps allow, in ms.
pub(super) fn capacity(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.share * part.cap_ms).sum()
}

/// Gives each part its delay so that their mean, weighted by share, is `mean_ms`, or as near as the caps allow.
/// O(n) for each round in which somebody reaches a cap; there are few, because whoever does leaves only little to others.
pub(super) fn split(parts: &mut [Part], mean_ms: f64) {
    let mut left = mean_ms.max(0.0);
    for spared in [false, true] {
        left = fill(parts, spared, left);
    }
}

/// The same among those who are spared or those who are not; answers what of the mean is left.
fn fill(parts: &mut [Part], spared: bool, mean_ms: f64) -> f64 {
    let group = |part: &&mut Part| part.spared == spared;
    let capacity: f64 = parts.iter().filter(|part| part.spared == spared).map(|part| part.share * part.cap_ms).sum();
    if mean_ms >= capacity {
        let most = |part: &Part| if part.share > 0.0 { part.cap_ms } else { 0.0 };
        parts.iter_mut().filter(group).for_each(|part| part.delay_ms = most(part));
        return mean_ms - capacity;
    }
    // With delay = slope · share, whoever has reached its cap at one slope has at any higher one.
    let mut left = mean_ms;
    let mut squares: f64 = parts.iter().filter(|part| part.spared == spared).map(|part| part.share * part.share).sum();
    parts.iter_mut().filter(group).for_each(|part| part.delay_ms = OPEN);
    loop {
        let slope = if squares > 0.0 { left.max(0.0) / squares } else { 0.0 };
        let mut capped = false;
        for part in parts.iter_mut().filter(group).filter(|part| part.delay_ms == OPEN) {
            if slope * part.share > part.cap_ms {
                part.delay_ms = part.cap_ms;
                left -= part.share * part.cap_ms;
                squares -= part.share * part.share;
                capped = true;
            }
        }
        if !capped {
            let open = parts.iter_mut().filter(group).filter(|part| part.delay_ms == OPEN);
            open.for_each(|part| part.delay_ms = slope * part.share);
            return 0.0;
        }
    }
}

/// Rounds the delays to multiples of `step_ms`, never above a cap, in a way that keeps their weighted mean: what one
/// loses the next gains. With a step of 0 nothing changes. Answers the mean.
pub(super) fn round(parts: &mut [Part], step_ms: f64) -> f64 {
    let mut owed = 0.0;
    for part in &mut *parts {
        if step_ms > 0.0 && part.share > 0.0 {
            let wanted = part.delay_ms + owed / part.share;
            let most = whole(part.cap_ms / step_ms + 1e-9);
            // Whoever has no delay by the split is not there to pay for the rounding of others.
            let rounded = if part.delay_ms > 0.0 { nearest((wanted / step_ms).max(0.0)).min(most) } else { 0.0 };
            owed += part.share * (part.delay_ms - rounded * step_ms);
            part.delay_ms = rounded * step_ms;
        } else if step_ms > 0.0 {
            part.delay_ms = 0.0;
        }
    }
    parts.iter().map(|part| part.share * part.delay_ms).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn part(share: f64, cap_ms: f64) -> Part {
        Part { share, cap_ms, spared: false, delay_ms: 0.0 }
    }

    fn delays(parts: &[Part]) -> Vec<f64> {
        parts.iter().map(|part| part.delay_ms).collect()
    }

    #[test]
    fn whole_numbers_are_those_of_libm() {
        for x in
            [0.0, 0.3, 0.499_999_999_999_999_94, 0.5, 1.0, 1.5, 2.5, 19.999_999_999, 1e9 + 0.5, 4_503_599_627_370_497.5]
        {
            assert_eq!((whole(x), nearest(x)), (libm::floor(x), libm::round(x)), "{x}");
        }
    }

    #[test]
    fn equal_loads_have_equal_delays_and_the_loudest_most() {
        let mut parts = vec![part(0.25, 20.0); 4];
        split(&mut parts, 5.0);
        assert_eq!(delays(&parts), [5.0; 4]);
        let mut parts = vec![part(0.8, 20.0), part(0.1, 20.0), part(0.1, 20.0)];
        split(&mut parts, 6.6);
        assert!((parts[0].delay_ms - 8.0).abs() < 1e-9 && (parts[1].delay_ms - 1.0).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn what_a_cap_takes_away_others_bear_and_the_important_last() {
        let mut parts = vec![part(0.5, 2.0), part(0.25, 20.0), Part { spared: true, ..part(0.25, 20.0) }];
        split(&mut parts, 4.0);
        assert_eq!(delays(&parts), [2.0, 12.0, 0.0]);
        split(&mut parts, 8.0);
        assert_eq!(delays(&parts), [2.0, 20.0, 8.0]);
        split(&mut parts, 1e9);
        assert_eq!(delays(&parts), [2.0, 20.0, 20.0]);
        assert_eq!(capacity(&parts), 11.0);
    }

    proptest! {
        #[test]
        fn the_mean_is_kept_up_to_the_caps(
            raw in proptest::collection::vec((0.0f64..1e8, 0.0f64..20.0, any::<bool>()), 1..12),
            mean_ms in 0.0f64..30.0,
        ) {
            let total: f64 = raw.iter().map(|(load, ..)| load).sum();
            prop_assume!(total > 0.0);
            let mut parts: Vec<Part> = raw
                .iter()
                .map(|&(load, cap_ms, spared)| Part { share: load / total, cap_ms, spared, delay_ms: 0.0 })
                .collect();
            split(&mut parts, mean_ms);
            let expected = mean_ms.min(capacity(&parts));
            let mean: f64 = parts.iter().map(|part| part.share * part.delay_ms).sum();
            prop_assert!((mean - expected).abs() < 1e-6 * (1.0 + expected), "{} {}", mean, expected);
            prop_assert!(parts.iter().all(|part| (0.0..=part.cap_ms).contains(&part.delay_ms)));
            let rounded = round(&mut parts, 0.5);
            prop_assert!(parts.iter().all(|part| part.delay_ms <= part.cap_ms && (part.delay_ms * 2.0).fract() == 0.0));
            prop_assert!(rounded >= 0.0 && rounded <= mean + 0.26, "{} {}", rounded, mean);
        }
    }
}
