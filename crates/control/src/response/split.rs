//! Divides the mean delay among clients.
//!
//! The effect of delays on latency depends only on their mean, weighted by load (see [`super::gain`]), so the mean may be
//! divided among clients freely. Here each noisy client's delay is in proportion to its share of the load, so that the client
//! with most load is throttled most. No delay exceeds the largest allowed one, or the smaller bound of a client whose tenant
//! has a reservation or guarantee; delay that a client cannot take goes to the other clients. Clients with
//! [`Throttle::Last`] are delayed only when all others have their largest delay.

use super::clients::Client;
use super::{Throttle, nearest, whole};

/// Gives each noisy client its delay so that the mean of the delays, weighted by load, is `mean_ms`, or as near to it as
/// `most_ms`, the largest delay, allows; clients that are not noisy get no delay. Delays are multiples of `step_ms` unless that
/// is 0. O(clients²) at worst.
pub(super) fn split(clients: &mut [Client], mean_ms: f64, step_ms: f64, most_ms: f64) {
    let total: f64 = clients.iter().filter(|client| client.noisy).map(Client::load).sum();
    for client in clients.iter_mut() {
        client.share = if client.noisy && total > 0.0 { client.load() / total } else { 0.0 };
        client.delay_ms = 0.0;
    }
    let (mut left, mut owed) = (mean_ms, 0.0);
    for spared in [false, true] {
        let group = |client: &Client| client.share > 0.0 && (client.throttle == Throttle::Last) == spared;
        // The slope grows as clients reach the largest delay.
        let mut slope = 0.0;
        left = loop {
            let (rest, squares) = clients.iter().filter(|client| group(client)).fold((left, 0.0), |sums, client| {
                match slope * client.share < client.most_of(most_ms, step_ms) {
                    true => (sums.0, sums.1 + client.share * client.share),
                    false => (sums.0 - client.share * client.most_of(most_ms, step_ms), sums.1),
                }
            });
            if squares == 0.0 {
                // Of a nanosecond nothing is left for others.
                break rest - 1e-6;
            } else if rest / squares <= slope {
                break 0.0;
            }
            slope = rest / squares;
        };
        for client in clients.iter_mut().filter(|client| slope > 0.0 && group(client)) {
            let most_ms = client.most_of(most_ms, step_ms);
            let exact = most_ms.min(slope * client.share);
            // What one loses by rounding the next gains.
            let steps =
                nearest(((exact + owed / client.share) / step_ms).max(0.0)).min(whole(most_ms / step_ms + 1e-9));
            client.delay_ms = if step_ms > 0.0 { steps * step_ms } else { exact };
            owed += client.share * (exact - client.delay_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn noisy(load: f64) -> Client {
        Client { noisy: true, bytes_per_s: load, ..Client::default() }
    }

    fn mean(clients: &[Client]) -> f64 {
        clients.iter().map(|client| client.share * client.delay_ms).sum()
    }

    fn delays(clients: &[Client]) -> Vec<f64> {
        clients.iter().map(|client| nearest(client.delay_ms * 1e9) / 1e9).collect()
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
        let mut clients = vec![noisy(1e6); 4];
        split(&mut clients, 5.0, 0.0, 20.0);
        assert_eq!(delays(&clients), [5.0; 4]);
        let mut clients = vec![noisy(8e6), noisy(1e6), Client { noisy: false, ..noisy(9e9) }, noisy(1e6)];
        split(&mut clients, 6.6, 0.0, 20.0);
        assert_eq!(delays(&clients), [8.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn others_bear_the_rest_of_the_largest_delay_and_the_important_last() {
        let mut clients = vec![noisy(2e6), noisy(1e6), Client { throttle: Throttle::Last, ..noisy(1e6) }];
        for (mean_ms, expected) in [(5.0, [8.0, 4.0, 0.0]), (7.0, [8.0, 8.0, 4.0]), (1e9, [8.0; 3])] {
            split(&mut clients, mean_ms, 0.0, 8.0);
            assert!(delays(&clients).iter().zip(expected).all(|(is, due)| (is - due).abs() < 1e-5), "{clients:?}");
        }
    }

    proptest! {
        #[test]
        fn the_mean_is_kept_up_to_the_largest_delay(
            raw in proptest::collection::vec((0.0f64..1e8, any::<bool>()), 1..12),
            mean_ms in 0.0f64..30.0,
            steps in 1u32..40,
        ) {
            let most_ms = 0.5 * f64::from(steps);
            prop_assume!(raw.iter().any(|&(load, _)| load > 0.0));
            let throttle = |spared| if spared { Throttle::Last } else { Throttle::Normal };
            let mut clients: Vec<Client> =
                raw.iter().map(|&(load, spared)| Client { throttle: throttle(spared), ..noisy(load) }).collect();
            split(&mut clients, mean_ms, 0.0, most_ms);
            let (exact, expected) = (mean(&clients), mean_ms.min(most_ms));
            prop_assert!((exact - expected).abs() < 2e-6 * (1.0 + expected), "{} {}", exact, expected);
            prop_assert!(clients.iter().all(|client| (0.0..=most_ms).contains(&client.delay_ms)));
            split(&mut clients, mean_ms, 0.5, most_ms);
            let rounded = mean(&clients);
            prop_assert!(clients.iter().all(|c| c.delay_ms <= most_ms && (c.delay_ms * 2.0).fract() == 0.0));
            prop_assert!(rounded >= 0.0 && rounded <= exact + 0.26, "{} {}", rounded, exact);
        }
    }
}
