//! Shares a shortage by weight.
//!
//! When the slow device has been saturated for long and tenants that miss get less than they were guaranteed, their guarantees
//! are unachievable at their present miss rates, and no limit changes that. Left alone, the tenant with most requests out gets
//! most of the slow device. So its bytes are dealt out by weight, to no tenant more than it needs for its guarantee (weighted
//! max-min fairness), and who takes more than that from others is limited to it. Who does not need the slow device is not
//! concerned.

use alloc::vec::Vec;

use super::Reason;
use super::stream::{Device, Stream};

/// A slow device this busy over the last seconds is saturated.
const SATURATED: f64 = 0.95;
/// A stream that got this part of its guarantee over the last seconds is not short.
const NOT_SHORT: f64 = 0.95;
/// Shares are dealt out of this much more than was seen, so that the device stays busy and more is found when there is more.
const PROBE: f64 = 1.05;
/// A stream that gets this part of its share is not robbed of it.
const NOT_ROBBED: f64 = 0.9;
/// No tenant is limited to less than this part of its guarantee.
const LEAST: f64 = 0.05;

pub(super) fn what_is_short(device: &Device, streams: &mut [&mut Stream]) {
    // Once cut, cut until nothing is short: otherwise a tenant that is cut would be released as soon as it helps.
    let was_cut = streams.iter_mut().fold(false, |any, stream| any | core::mem::take(&mut stream.memory.cut));
    if device.usual_utilisation.is_none_or(|busy| busy < SATURATED) {
        return;
    }
    let misses = |stream: &Stream| stream.memory.usual_slow > 0.0 && stream.memory.usual_rate > 0.0;
    let short = |stream: &Stream| misses(stream) && stream.memory.usual_rate < NOT_SHORT * stream.guaranteed;
    if !streams.iter().any(|stream| short(stream)) {
        return;
    }
    // What each needs of the slow device for its guarantee, and its weight.
    let needs: Vec<(f64, f64)> = streams
        .iter()
        .map(|stream| {
            let per_unit = if misses(stream) { stream.memory.usual_slow / stream.memory.usual_rate } else { 0.0 };
            (per_unit * stream.guaranteed, stream.weight)
        })
        .collect();
    let had: f64 = streams.iter().map(|stream| stream.memory.usual_slow).sum();
    let shares = deal(PROBE * had, &needs);
    let robbed =
        |(stream, &share): (&&mut Stream, &f64)| short(stream) && stream.memory.usual_slow < NOT_ROBBED * share;
    let cut = was_cut || streams.iter().zip(&shares).any(robbed);
    for ((stream, share), (need, _)) in streams.iter_mut().zip(shares).zip(needs) {
        if !short(stream) && share >= need {
            continue;
        }
        let (measured, guaranteed) = (stream.memory.usual_rate, stream.guaranteed);
        let attainable = guaranteed * if need > 0.0 { (share / need).min(1.0) } else { 1.0 };
        stream.forgive();
        let limit = if cut { attainable.max(LEAST * guaranteed) } else { guaranteed };
        if share < need {
            stream.memory.cut = cut;
            stream.assign(limit, Reason::Unachievable { measured, guaranteed, attainable });
        }
    }
}

/// Deals `all` out to `needs` (need, weight): by weight, to none more than it needs.
fn deal(all: f64, needs: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    // Who needs least for its weight is satisfied first.
    order.sort_unstable_by(|&a, &b| (needs[a].0 / needs[a].1).total_cmp(&(needs[b].0 / needs[b].1)));
    let mut shares = alloc::vec![0.0; needs.len()];
    let (mut left, mut weights) = (all, needs.iter().map(|need| need.1).sum::<f64>());
    for place in order {
        let (need, weight) = needs[place];
        shares[place] = need.min(left * weight / weights.max(f64::MIN_POSITIVE)).max(0.0);
        left -= shares[place];
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::deal;

    #[test]
    fn shares_follow_weights_up_to_the_need() {
        assert_eq!(deal(90.0, &[(100.0, 1.0), (100.0, 2.0)]), [30.0, 60.0]);
        // What the small one does not need goes to the others.
        assert_eq!(deal(90.0, &[(10.0, 1.0), (100.0, 1.0), (100.0, 1.0)]), [10.0, 40.0, 40.0]);
        assert_eq!(deal(500.0, &[(10.0, 1.0), (100.0, 1.0)]), [10.0, 100.0]);
        assert_eq!(deal(50.0, &[(0.0, 5.0), (100.0, 1.0)]), [0.0, 50.0]);
        assert!(deal(1.0, &[]).is_empty());
    }
}
