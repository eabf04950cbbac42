//! Shares the bandwidth of a saturated slow device by weight.
//!
//! When the slow device has been saturated for long and tenants with cache misses get less than their guarantees, these
//! guarantees are unachievable at the present miss rates, and no limit changes that. Without intervention, the tenant with
//! most requests in flight gets most of the slow device. So the slow device's bytes are divided by weight, with no tenant
//! getting more than it needs for its guarantee (weighted max-min fairness), and a tenant that takes more than its share from
//! others is limited to its share. A tenant that does not need the slow device, asks for nothing, or takes no more when
//! others are limited, gets no limit from this rule.

use alloc::vec::Vec;

use super::accurate::{LEAST, NEWEST};
use super::stream::{Device, Stream};
use super::{PATIENCE, Reason};

/// A relative difference of averages over windows that may be chance: one half-empty window causes it. The slow device counts
/// as saturated from a utilisation of 1 − `SLACK` on; a stream is short below 1 − `SLACK` of its guarantee. Shares are parts
/// of 1 + `SLACK` times the bytes seen, so that the device stays busy and any additional bandwidth is found.
const SLACK: f64 = NEWEST;
/// A stream whose rate rises by this factor while others are limited uses the bandwidth that they leave: repayment of a debt
/// raises a rate by at most this factor.
const TAKES: f64 = 1.0 + NEWEST * PATIENCE as f64;

/// Limits streams to their shares of a slow device that is saturated. `seconds`: time until a change shows in the averages, in
/// seconds; `interval`: time since the previous decision, in seconds.
pub(super) fn what_is_short(device: &Device, streams: &mut [&mut Stream], seconds: f64, interval: f64) {
    // Once cut, cut until nothing is short: otherwise a tenant that is cut would be released as soon as it helps.
    let was_cut = streams.iter_mut().fold(0.0_f64, |all, stream| all.max(core::mem::take(&mut stream.memory.cut)));
    if device.usual_utilisation.is_none_or(|busy| busy < 1.0 - SLACK) {
        streams.iter_mut().for_each(|stream| stream.memory.wants = Wants::default());
        return;
    }
    let misses = |stream: &Stream| stream.memory.usual_slow > 0.0 && stream.memory.usual_rate > 0.0;
    let short = |stream: &Stream| {
        let memory = &stream.memory;
        let asks = memory.is_backlogged() && !matches!(memory.wants, Wants::NoMore { .. });
        misses(stream) && asks && memory.usual_rate < (1.0 - SLACK) * stream.guaranteed
    };
    if !streams.iter().any(|stream| short(stream)) {
        return;
    }
    // What each needs of the slow device for its guarantee, and its weight.
    let needs: Vec<(f64, f64)> = streams
        .iter()
        .map(|stream| {
            let per_unit = if misses(stream) { stream.memory.usual_slow / stream.memory.usual_rate } else { 0.0 };
            let need = per_unit * stream.guaranteed;
            let asks_for = if short(stream) { need } else { need.min((1.0 + SLACK) * stream.memory.usual_slow) };
            (asks_for, stream.weight)
        })
        .collect();
    // No less than when the cut began: bytes that it left and no stream took are no sign of a slower device.
    let had = streams.iter().map(|stream| stream.memory.usual_slow).sum::<f64>().max(was_cut);
    let shares = deal((1.0 + SLACK) * had, &needs);
    // Once for what is dealt out beyond the bytes that were seen, once for chance.
    let robbed = |stream: &Stream, share: f64| short(stream) && stream.memory.usual_slow < (1.0 - 2.0 * SLACK) * share;
    let cut = was_cut > 0.0 || streams.iter().zip(&shares).any(|(stream, &share)| robbed(stream, share));
    for ((stream, share), (need, _)) in streams.iter_mut().zip(shares).zip(needs) {
        let (is_short, is_robbed) = (short(stream), robbed(stream, share));
        stream.memory.wants.learn(is_robbed && was_cut > 0.0, stream.memory.usual_rate, seconds, interval);
        if !is_short && share >= need {
            continue;
        }
        let (measured, guaranteed) = (stream.memory.usual_rate, stream.guaranteed);
        let attainable = guaranteed * if need > 0.0 { (share / need).min(1.0) } else { 1.0 };
        stream.forgive();
        let limit = if cut { attainable.max(LEAST * guaranteed) } else { guaranteed };
        if share < need {
            stream.memory.cut = if cut { had } else { 0.0 };
            stream.assign(limit, Reason::Unachievable { measured, guaranteed, attainable });
        }
    }
}

/// Response of a stream's rate to limits on other streams in its favour. Rates are in units of the stream's guarantee per
/// second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Wants {
    /// The stream is assumed to want more than it gets.
    #[default]
    More,
    /// Others have been limited in the stream's favour for `for_s` seconds; the stream's rate was `had` when that began.
    Offered { had: f64, for_s: f64 },
    /// The stream's rate rose, up to the rate `up_to`, when others were limited.
    Takes { up_to: f64 },
    /// The stream's rate hardly rose above `had` when others were limited, so the stream is not short of the slow device.
    NoMore { had: f64 },
}

impl Wants {
    fn learn(&mut self, offered: bool, rate: f64, seconds: f64, interval: f64) {
        *self = match *self {
            Self::More if offered => Self::Offered { had: rate, for_s: 0.0 },
            Self::Offered { had, .. } if rate >= TAKES * had => Self::Takes { up_to: rate },
            Self::Offered { had, for_s } if offered => {
                let for_s = for_s + interval;
                if for_s < seconds { Self::Offered { had, for_s } } else { Self::NoMore { had } }
            }
            Self::Takes { up_to } if TAKES * rate >= up_to => Self::Takes { up_to: up_to.max(rate) },
            Self::NoMore { had } if rate < TAKES * had => Self::NoMore { had },
            _ => Self::More,
        };
    }
}

/// Divides `all` among `needs`, which are pairs of need and weight: in proportion to weights, but at most the need to each.
/// Returns the shares in the order of `needs`.
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
