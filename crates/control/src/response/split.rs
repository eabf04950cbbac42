//! Whose delay makes up the mean?
//!
//! The effect of delays is that of their mean, weighted by load (see [`super::gain`]). That leaves free who has how much.
//! Here each noisy client's delay is in proportion to its share of the load, so that the one who causes most of it gives up
//! most; none exceeds the largest, and what that takes away goes to the others. Those who are important come in only when
//! all others have the largest.

use super::{nearest, whole};

/// A noisy client in the split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Share of the load, 0 to 1; the shares of all parts add up to 1.
    pub(super) share: f64,
    /// Whether it is spared as long as others are left.
    pub(super) spared: bool,
    /// The answer, in ms.
    pub(super) delay_ms: f64,
}

/// Gives each part its delay so that their mean, weighted by share, is `mean_ms`, or as near as `most_ms` allows. O(n) for
/// each of 60 halvings.
pub(super) fn split(parts: &mut [Part], mean_ms: f64, most_ms: f64) {
    let mut left = mean_ms;
    for spared in [false, true] {
        let group = |part: &&Part| part.spared == spared && part.share > 0.0;
        let mean = |slope: f64| -> f64 {
            parts.iter().filter(group).map(|part| part.share * most_ms.min(slope * part.share)).sum()
        };
        // At the highest slope all have the largest delay.
        let least = parts.iter().filter(group).map(|part| part.share).fold(1.0, f64::min).max(1e-9);
        let (mut low, mut high) = (0.0, most_ms / least);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            (low, high) = if mean(middle) > left { (low, middle) } else { (middle, high) };
        }
        left -= mean(low);
        // Of a nanosecond nothing is left for others.
        left = if left < 1e-6 { 0.0 } else { left };
        for part in parts.iter_mut().filter(|part| part.spared == spared) {
            part.delay_ms = most_ms.min(low * part.share);
        }
    }
}

/// Rounds the delays to multiples of `step_ms`, never above `most_ms`, in a way that keeps their weighted mean: what one
/// loses the next gains. With a step of 0 nothing changes. Answers the mean.
pub(super) fn round(parts: &mut [Part], step_ms: f64, most_ms: f64) -> f64 {
    let mut owed = 0.0;
    for part in parts.iter_mut().filter(|_| step_ms > 0.0) {
        // A part without a delay by the split is not there to pay for the rounding of others.
        let wanted = if part.delay_ms > 0.0 { part.delay_ms + owed / part.share } else { 0.0 };
        let rounded = nearest((wanted / step_ms).max(0.0)).min(whole(most_ms / step_ms + 1e-9));
        owed += part.share * (part.delay_ms - rounded * step_ms);
        part.delay_ms = rounded * step_ms;
    }
    parts.iter().map(|part| part.share * part.delay_ms).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn part(share: f64) -> Part {
        Part { share, spared: false, delay_ms: 0.0 }
    }

    fn delays(parts: &[Part]) -> Vec<f64> {
        parts.iter().map(|part| nearest(part.delay_ms * 1e9) / 1e9).collect()
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
    fn equal_loads_have_equal_delays_and_the_noisiest_most() {
        let mut parts = vec![part(0.25); 4];
        split(&mut parts, 5.0, 20.0);
        assert_eq!(delays(&parts), [5.0; 4]);
        let mut parts = vec![part(0.8), part(0.1), part(0.1)];
        split(&mut parts, 6.6, 20.0);
        assert!((parts[0].delay_ms - 8.0).abs() < 1e-9 && (parts[1].delay_ms - 1.0).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn others_bear_the_rest_of_the_largest_delay_and_the_important_last() {
        let mut parts = vec![part(0.5), part(0.25), Part { spared: true, ..part(0.25) }];
        split(&mut parts, 5.0, 8.0);
        assert_eq!(delays(&parts), [8.0, 4.0, 0.0]);
        split(&mut parts, 7.0, 8.0);
        assert_eq!(delays(&parts), [8.0, 8.0, 4.0]);
        split(&mut parts, 1e9, 8.0);
        assert_eq!(delays(&parts), [8.0; 3]);
    }

    proptest! {
        #[test]
        fn the_mean_is_kept_up_to_the_largest_delay(
            raw in proptest::collection::vec((0.0f64..1e8, any::<bool>()), 1..12),
            mean_ms in 0.0f64..30.0,
            steps in 1u32..40,
        ) {
            let most_ms = 0.5 * f64::from(steps);
            let total: f64 = raw.iter().map(|(load, ..)| load).sum();
            prop_assume!(total > 0.0);
            let mut parts: Vec<Part> =
                raw.iter().map(|&(load, spared)| Part { share: load / total, spared, delay_ms: 0.0 }).collect();
            split(&mut parts, mean_ms, most_ms);
            let expected = mean_ms.min(most_ms);
            let mean: f64 = parts.iter().map(|part| part.share * part.delay_ms).sum();
            prop_assert!((mean - expected).abs() < 1e-6 * (1.0 + expected), "{} {}", mean, expected);
            prop_assert!(parts.iter().all(|part| (0.0..=most_ms).contains(&part.delay_ms)));
            let rounded = round(&mut parts, 0.5, most_ms);
            prop_assert!(parts.iter().all(|part| part.delay_ms <= most_ms && (part.delay_ms * 2.0).fract() == 0.0));
            prop_assert!(rounded >= 0.0 && rounded <= mean + 0.26, "{} {}", rounded, mean);
        }
    }
}
