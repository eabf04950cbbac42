//! Infers from arrivals and completions which requests of a client wait for the completion of others.
//!
//! A client in a *closed loop* sends a request because another one has completed: on a faster device it sends sooner. A client in
//! an *open loop* sends when the outside world wants something. A replay at recorded times takes all clients for open, one at
//! full speed takes all for closed. The dependencies between requests are not recorded, but they show in the times: Haghdoost et
//! al., "On the Accuracy and Scalability of Intensive I/O Workload Replay", FAST 2017 (hfplayer), take a request for dependent
//! on a completion that it follows within a short think time, while no more requests are in flight than before.
//!
//! Requests that are independent also follow completions by chance. So a client is closed only on one of two grounds:
//!
//! - *Arrivals crowd behind completions.* The share of arrivals with a completion in the window right before them is compared
//!   with the share that has one in windows of the same length nearby, which is the share by chance. Windows of several lengths
//!   are tried, at most [`LONGEST_THINK_NS`] or a tenth of the median latency.
//! - *In flight is bounded.* With independent arrivals the number in flight exceeds any bound now and then (it is Poisson
//!   distributed at best). A client that never exceeds its largest number, although ten times of excess would be expected,
//!   waits for completions, with long think times. A clock with jitter, and bursts at equal distances, are bounded as well: so
//!   completions have to explain the arrivals better than a clock. Think times must vary less than the times from the arrival
//!   of the cause, to which the cause's latency contributes, and less than the times between arrivals, or between bursts.
//!
//! A client whose arrivals are more regular than its think times would be is paced by a clock, and open.
//!
//! Then each arrival is chained to a completion before it to which none is chained yet: of those within the longest think time
//! the earliest, because think times that overlap end in the order in which they began. Of a client whose arrivals nearly all
//! follow completions the late ones are chained as well, each to a completion within the median latency that caused nothing: a
//! late request that kept its time would add to the number in flight on a slower device, and many of them to a queue that the
//! client never has. Limits: of a client that waits for a whole batch only one completion of the batch is taken for the cause;
//! and a paced request that arrives right after a completion by chance is chained to it.

use std::collections::VecDeque;

use serde::Serialize;

/// Longest think time, in nanoseconds, of an arrival that crowds behind a completion, unless a tenth of the median latency is
/// longer.
pub const LONGEST_THINK_NS: u64 = 50_000;
/// Shortest window that is tried, in nanoseconds.
const SHORTEST_WINDOW_NS: u64 = 1_000;
/// A client counts as a closed loop if the share of arrivals right after a completion exceeds the share by chance by this.
const SURPLUS: f64 = 0.2;
/// A client counts as a closed loop if chance would exceed its largest number in flight so many times, and it never is.
const EXCESSES: f64 = 10.0;
/// A client is a closed loop as a whole if this share of its arrivals is right behind completions: the others are late, and
/// hardly independent.
const WHOLE: f64 = 0.95;
/// Least number of requests from which a client's behaviour is inferred; the requests of others are paced.
const FEWEST: usize = 16;
/// Completions explain arrivals if think times vary by less than this part of what a clock would have to explain.
const EXPLAINED: f64 = 0.95;
/// A think time of a client with bounded depth is at most this multiple of its median; after longer ones it is paced.
const LONGEST_MEDIANS: u64 = 10;

/// Arrival and completion of a request, in nanoseconds from any common zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Arrival.
    pub arrival_ns: u64,
    /// Completion; not before the arrival.
    pub completion_ns: u64,
}

/// The cause of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The outside world: the request arrives at this time, in nanoseconds.
    At(u64),
    /// The completion of another request of the client.
    After {
        /// Number of the other request among those of the client, in order of arrival.
        request: u32,
        /// Time from the completion to the arrival, in nanoseconds.
        think_ns: u64,
    },
}

/// The behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "behaviour", rename_all = "snake_case")]
pub enum Behaviour {
    /// Open loop: each request is sent at its recorded time, also while earlier ones are in flight.
    Open,
    /// Closed loop: requests follow completions within a short think time.
    Closed {
        /// Usual longest think time, in nanoseconds.
        window_ns: u64,
        /// Share of the arrivals that follow a completion within this time, 0 to 1.
        near: f64,
        /// Share that would by chance.
        chance: f64,
    },
    /// Requests follow completions after longer think times: no more than `depth` are ever in flight.
    Bounded {
        /// Largest number in flight.
        depth: u32,
    },
}

/// The causes of a client's requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Inferred {
    /// The cause of each request.
    pub causes: Vec<Cause>,
    /// The behaviour by which they were inferred.
    pub behaviour: Behaviour,
}

impl Inferred {
    /// Number of requests that depend on another one.
    pub fn dependent(&self) -> usize {
        self.causes.iter().filter(|cause| matches!(cause, Cause::After { .. })).count()
    }
}

/// Infers the causes of a client's requests, given in order of arrival. O(n log n).
pub fn infer(times: &[Times]) -> Inferred {
    let order = by_completion(times);
    let behaviour = behaviour(times, &order);
    let causes = match behaviour {
        Behaviour::Open => times.iter().map(|times| Cause::At(times.arrival_ns)).collect(),
        Behaviour::Closed { window_ns, near, .. } if near >= WHOLE => {
            let mut causes = chain(times, &order, window_ns, true);
            chain_late(times, &order, window_ns.max(median_latency(times)), &mut causes);
            causes
        }
        Behaviour::Closed { window_ns, .. } => chain(times, &order, window_ns, true),
        Behaviour::Bounded { .. } => {
            let longest = median(&mut gaps(times, &order)).saturating_mul(LONGEST_MEDIANS);
            chain(times, &order, longest.max(longest_window(times)), false)
        }
    };
    Inferred { causes, behaviour }
}

/// The behaviour of a client; `order`: the numbers of its requests in order of completion.
fn behaviour(times: &[Times], order: &[u32]) -> Behaviour {
    if times.len() < FEWEST || is_clockwork(times, order) {
        return Behaviour::Open;
    }
    let completions: Vec<u64> = order.iter().map(|&number| times[number as usize].completion_ns).collect();
    let mut windows = Vec::new();
    let mut window = longest_window(times);
    while window >= SHORTEST_WINDOW_NS {
        windows.push((window, shares(times, &completions, window)));
        window /= 4;
    }
    let surplus = |&(_, (near, chance)): &(u64, (f64, f64))| near - chance;
    let best = windows.iter().map(surplus).fold(0.0, f64::max);
    if best > SURPLUS
        && let Some(&(window_ns, (near, chance))) = windows.iter().find(|window| surplus(window) >= 0.9 * best)
    {
        return Behaviour::Closed { window_ns, near, chance };
    }
    match bound(times, &completions) {
        Some(depth) if is_explained(times, order, depth) => Behaviour::Bounded { depth },
        _ => Behaviour::Open,
    }
}

/// True if completions explain the arrivals of a client with at most `depth` requests in flight better than a clock does.
fn is_explained(times: &[Times], order: &[u32], depth: u32) -> bool {
    let (mut thinks, mut cycles) = (Vec::new(), Vec::new());
    for (own, cause) in times.iter().zip(chain(times, order, u64::MAX, false)) {
        if let Cause::After { request, think_ns } = cause {
            thinks.push(think_ns);
            cycles.push(own.arrival_ns - times[request as usize].arrival_ns);
        }
    }
    let apart = |distance: usize| -> Vec<u64> {
        let later = times.iter().skip(distance);
        times.iter().zip(later).map(|(one, later)| later.arrival_ns - one.arrival_ns).collect()
    };
    let mut between = apart(1);
    let (middle, long) = (median(&mut between), quantile(&mut between, 19, 20));
    // Bursts: most requests follow each other at once, compared with the time between bursts.
    let by_clock = if middle.saturating_mul(10) < long {
        let begins = times.windows(2).filter(|pair| pair[1].arrival_ns - pair[0].arrival_ns > long / 2);
        let begins: Vec<u64> = begins.map(|pair| pair[1].arrival_ns).collect();
        width(&mut begins.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<u64>>())
    } else {
        width(&mut between).max(width(&mut apart(depth.max(1) as usize)))
    };
    let least = by_clock.min(width(&mut cycles)) as f64;
    !thinks.is_empty() && (width(&mut thinks) as f64) < EXPLAINED * least
}

fn longest_window(times: &[Times]) -> u64 {
    LONGEST_THINK_NS.max(median_latency(times) / 10)
}

fn median_latency(times: &[Times]) -> u64 {
    let mut latencies: Vec<u64> = times.iter().map(|times| times.completion_ns - times.arrival_ns).collect();
    median(&mut latencies)
}

/// The share of arrivals with a completion in the `window` nanoseconds before them, and the share by chance: that of windows at
/// a distance of two and three windows to both sides.
fn shares(times: &[Times], completions: &[u64], window: u64) -> (f64, f64) {
    let w = i64::try_from(window).unwrap_or(i64::MAX / 8);
    let share = |shift: i64| {
        let (mut place, mut near) = (0, 0u64);
        for times in &times[1..] {
            let until = times.arrival_ns.saturating_add_signed(shift);
            while completions.get(place).is_some_and(|&completion| completion <= until) {
                place += 1;
            }
            near += u64::from(place > 0 && until - completions[place - 1] < window);
        }
        near as f64 / (times.len() - 1) as f64
    };
    let chance = [-3, -2, 2, 3].map(|by: i64| share(by.saturating_mul(w)));
    (share(0), chance.iter().sum::<f64>() / chance.len() as f64)
}

/// True if a clock paces the client: its arrivals are more regular than the times between completions and arrivals.
fn is_clockwork(times: &[Times], order: &[u32]) -> bool {
    let mut between: Vec<u64> = times.windows(2).map(|pair| pair[1].arrival_ns - pair[0].arrival_ns).collect();
    let mut gaps = gaps(times, order);
    if gaps.len() < FEWEST / 2 {
        return false;
    }
    let regular = spread(&mut between);
    regular < median(&mut between) / 10 && regular < spread(&mut gaps) / 2
}

/// For each arrival, the time since the earliest completion that is not yet the cause of another arrival.
fn gaps(times: &[Times], order: &[u32]) -> Vec<u64> {
    let think = |cause| match cause {
        Cause::After { think_ns, .. } => Some(think_ns),
        Cause::At(_) => None,
    };
    chain(times, order, u64::MAX, false).into_iter().filter_map(think).collect()
}

/// The largest number in flight, if so low a maximum shows that the client waits for completions.
fn bound(times: &[Times], completions: &[u64]) -> Option<u32> {
    let (mut place, mut depth) = (0, 0);
    for (arrived, times) in times.iter().enumerate() {
        while completions.get(place).is_some_and(|&completion| completion <= times.arrival_ns) {
            place += 1;
        }
        depth = depth.max((arrived + 1).saturating_sub(place));
    }
    let span = completions.last()?.saturating_sub(times.first()?.arrival_ns);
    let latencies: u128 = times.iter().map(|times| u128::from(times.completion_ns - times.arrival_ns)).sum();
    let mean = latencies as f64 / span.max(1) as f64;
    // The probability that a Poisson distributed number with this mean is at least `depth`.
    let (mut term, mut below) = (libm::exp(-mean), 0.0);
    for number in 0..depth {
        below += term;
        term *= mean / (number + 1) as f64;
    }
    // Arrivals that exceed it come in groups, of about as many as are in flight.
    let excesses = (1.0 - below).max(0.0) * times.len() as f64 / (mean + 1.0);
    (mean < 500.0 && excesses >= EXCESSES).then(|| u32::try_from(depth).unwrap_or(u32::MAX))
}

/// Chains each arrival to the earliest completion to which none is chained, at most `longest` nanoseconds before the arrival. If
/// `shared`, and there is none, it is chained to the latest completion of all as long as no more are in flight than ever before.
fn chain(times: &[Times], order: &[u32], longest: u64, shared: bool) -> Vec<Cause> {
    let mut free: VecDeque<u32> = VecDeque::new();
    let (mut place, mut depth, mut latest) = (0, 0, None);
    let mut causes = Vec::with_capacity(times.len());
    for (number, own) in times.iter().enumerate() {
        // A completion at the same time as the arrival of a request behind it in the list is not its cause.
        while let Some(&done) = order.get(place)
            && times[done as usize].completion_ns <= own.arrival_ns
            && (done as usize) < number
        {
            free.push_back(done);
            latest = Some(done);
            place += 1;
        }
        let in_flight = (number + 1).saturating_sub(place);
        let think = |done: u32| own.arrival_ns - times[done as usize].completion_ns;
        while free.front().is_some_and(|&done| think(done) > longest) {
            free.pop_front();
        }
        let last = latest.filter(|&done| shared && think(done) <= longest && in_flight <= depth);
        let cause = free.pop_front().or(last);
        depth = depth.max(in_flight);
        causes.push(match cause {
            Some(request) => Cause::After { request, think_ns: think(request) },
            None => Cause::At(own.arrival_ns),
        });
    }
    causes
}

/// Chains each arrival without a cause to the earliest completion that is no cause yet, at most `longest` nanoseconds before it.
fn chain_late(times: &[Times], order: &[u32], longest: u64, causes: &mut [Cause]) {
    let mut taken = vec![false; times.len()];
    for cause in causes.iter() {
        if let Cause::After { request, .. } = cause {
            taken[*request as usize] = true;
        }
    }
    let mut free: VecDeque<u32> = VecDeque::new();
    let mut place = 0;
    for (number, (own, cause)) in times.iter().zip(causes).enumerate() {
        while let Some(&done) = order.get(place)
            && times[done as usize].completion_ns <= own.arrival_ns
            && (done as usize) < number
        {
            if !taken[done as usize] {
                free.push_back(done);
            }
            place += 1;
        }
        if !matches!(cause, Cause::At(_)) {
            continue;
        }
        let think = |done: u32| own.arrival_ns - times[done as usize].completion_ns;
        while free.front().is_some_and(|&done| think(done) > longest) {
            free.pop_front();
        }
        if let Some(request) = free.pop_front() {
            *cause = Cause::After { request, think_ns: think(request) };
        }
    }
}

/// The numbers of the requests in order of completion.
fn by_completion(times: &[Times]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..u32::MAX).zip(times).map(|(number, _)| number).collect();
    order.sort_by_key(|&number| (times[number as usize].completion_ns, number));
    order
}

/// The median; 0 of nothing.
fn median(values: &mut [u64]) -> u64 {
    quantile(values, 1, 2)
}

/// The distance between the quartiles.
fn spread(values: &mut [u64]) -> u64 {
    quantile(values, 3, 4) - quantile(values, 1, 4)
}

/// The distance between the first and the last decile.
fn width(values: &mut [u64]) -> u64 {
    quantile(values, 9, 10) - quantile(values, 1, 10)
}

fn quantile(values: &mut [u64], part: usize, of: usize) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let place = (values.len() - 1) * part / of;
    *values.select_nth_unstable(place).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::rng::SplitMix64;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// Latency between 200 µs and 2 ms.
    fn latency(rng: &mut SplitMix64) -> u64 {
        200_000 + rng.next_below(1_800_000)
    }

    /// A closed loop of `depth` with think times that `think` draws: each place of the queue is filled again when its request has
    /// completed.
    fn closed(depth: usize, count: usize, rng: &mut SplitMix64, think: impl Fn(&mut SplitMix64) -> u64) -> Vec<Times> {
        let mut places: Vec<u64> = (0..depth as u64).collect();
        let mut all = Vec::new();
        while all.len() < count {
            let place = (0..depth).min_by_key(|&place| places[place]).unwrap();
            let arrival_ns = places[place];
            let completion_ns = arrival_ns + latency(rng);
            places[place] = completion_ns + think(rng);
            all.push(Times { arrival_ns, completion_ns });
        }
        all
    }

    /// Independent arrivals with this mean time between them.
    fn open(mean_ns: f64, count: usize, rng: &mut SplitMix64) -> Vec<Times> {
        let mut at = 0.0;
        let one = |_| {
            at += -libm::log(rng.next_f64()) * mean_ns;
            let arrival_ns = at as u64;
            Times { arrival_ns, completion_ns: arrival_ns + latency(rng) }
        };
        (0..count).map(one).collect()
    }

    proptest! {
        // The assertions hold with high probability.
        #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn a_closed_loop_is_found_with_its_think_time(seed: u64, depth in 1usize..16, think in 0u64..20_000) {
            let times = closed(depth, 2_000, &mut SplitMix64::new(seed), |_| think);
            let inferred = infer(&times);
            prop_assert!(inferred.dependent() >= 1_900, "{} of {:?}", inferred.dependent(), inferred.behaviour);
            for cause in &inferred.causes {
                if let Cause::After { think_ns, .. } = cause {
                    prop_assert!(*think_ns <= think, "{think_ns}");
                }
            }
        }

        #[test]
        fn independent_arrivals_stay_at_their_times(seed: u64, mean_us in 50u64..5_000) {
            let times = open(mean_us as f64 * 1e3, 2_000, &mut SplitMix64::new(seed));
            let inferred = infer(&times);
            prop_assert_eq!(inferred.dependent(), 0, "{:?}", inferred.behaviour);
        }

        #[test]
        fn of_a_mixture_the_closed_part_is_chained(seed: u64, mean_us in 2_000u64..4_000) {
            let mut rng = SplitMix64::new(seed);
            let fast = closed(2, 2_000, &mut rng, |_| 5_000);
            let mut all: Vec<(Times, bool)> = fast.into_iter().map(|t| (t, true)).collect();
            let end = all.last().unwrap().0.arrival_ns;
            let paced = open(mean_us as f64 * 1e3, 1_000, &mut rng).into_iter().filter(|t| t.arrival_ns < end);
            all.extend(paced.map(|t| (t, false)));
            all.sort_by_key(|(t, _)| t.arrival_ns);
            let times: Vec<Times> = all.iter().map(|(t, _)| *t).collect();
            let causes = infer(&times).causes;
            let share = |of_closed: bool| {
                let of = all.iter().zip(&causes).filter(|((_, closed), _)| *closed == of_closed);
                let chained = of.clone().filter(|(_, cause)| matches!(cause, Cause::After { .. })).count();
                chained as f64 / of.count().max(1) as f64
            };
            prop_assert!(share(true) > 0.9, "{}", share(true));
            prop_assert!(share(false) < 0.3, "{}", share(false));
        }
    }

    #[test]
    fn a_client_that_thinks_long_is_bounded() {
        let think = |rng: &mut SplitMix64| 1_000_000 + rng.next_below(2_000_000);
        let times = closed(2, 5_000, &mut SplitMix64::new(1), think);
        let inferred = infer(&times);
        assert_eq!(inferred.behaviour, Behaviour::Bounded { depth: 2 });
        assert!(inferred.dependent() > 4_500, "{}", inferred.dependent());
    }

    #[test]
    fn late_requests_of_a_closed_loop_depend_on_completions() {
        // One of 50 is late: without its cause it would be one more in flight on a slower device.
        let think = |rng: &mut SplitMix64| if rng.next_below(50) == 0 { 300_000 } else { 5_000 };
        let inferred = infer(&closed(8, 2_000, &mut SplitMix64::new(1), think));
        assert!(matches!(inferred.behaviour, Behaviour::Closed { window_ns, .. } if window_ns < 300_000));
        assert_eq!(inferred.dependent(), 1_992);
    }

    #[test]
    fn a_closed_loop_that_changes_its_depth_keeps_its_think_time() {
        let mut rng = SplitMix64::new(1);
        let (mut begin, mut times, mut alone) = (0u64, Vec::new(), Vec::new());
        for phase in 0..40 {
            let (depth, count, usual) = if phase % 2 == 0 { (8, 200, 800_000u64) } else { (1, 100, 100_000) };
            let mut places = vec![begin; depth];
            for _ in 0..count {
                let place = (0..depth).min_by_key(|&place| places[place]).unwrap();
                let arrival_ns = places[place];
                let completion_ns = arrival_ns + usual / 10 * 9 + rng.next_below(usual / 5);
                places[place] = completion_ns + 5_000;
                times.push(Times { arrival_ns, completion_ns });
                alone.push(depth == 1);
            }
            // The others of the phase's last requests cause nothing.
            begin = places.into_iter().min().unwrap();
        }
        let inferred = infer(&times);
        let Behaviour::Closed { near, .. } = inferred.behaviour else { panic!("{:?}", inferred.behaviour) };
        assert!(near >= WHOLE, "{near}");
        let thinks = inferred.causes.iter().zip(alone).filter_map(|(cause, alone)| match cause {
            Cause::After { think_ns, .. } if alone => Some(*think_ns),
            _ => None,
        });
        let mut thinks: Vec<u64> = thinks.collect();
        assert!(thinks.len() > 1_900, "{}", thinks.len());
        let median = median(&mut thinks);
        assert!(median < 20_000, "{median}");
    }

    #[test]
    fn a_clock_is_no_closed_loop() {
        let mut rng = SplitMix64::new(1);
        let tick = |n: u64| Times { arrival_ns: n * 2_100_000, completion_ns: n * 2_100_000 + latency(&mut rng) };
        let times: Vec<Times> = (0..2_000).map(tick).collect();
        assert_eq!(infer(&times).dependent(), 0);
    }

    /// Such clients never have more in flight than at their regular times, and are not bounded by completions.
    #[test]
    fn a_timer_with_jitter_and_regular_bursts_are_open() {
        let mut rng = SplitMix64::new(3);
        let mut tick = |n: u64| {
            let arrival_ns = n * 10_000_000 + rng.next_below(2_000_000);
            Times { arrival_ns, completion_ns: arrival_ns + latency(&mut rng) }
        };
        let timer: Vec<Times> = (0..2_000).map(&mut tick).collect();
        assert_eq!(infer(&timer).behaviour, Behaviour::Open);
        let mut completions: Vec<u64> = timer.iter().map(|times| times.completion_ns).collect();
        completions.sort_unstable();
        assert_eq!(bound(&timer, &completions), Some(1), "the bound alone does not tell");
        let mut rng = SplitMix64::new(4);
        let mut burst = |place: u64| {
            let arrival_ns = place / 4 * 10_000_000 + place % 4 * 100_000 + rng.next_below(50_000);
            Times { arrival_ns, completion_ns: arrival_ns + 1_000_000 + rng.next_below(4_000_000) }
        };
        let bursts: Vec<Times> = (0..2_000).map(&mut burst).collect();
        assert_eq!(infer(&bursts).behaviour, Behaviour::Open);
        let mut completions: Vec<u64> = bursts.iter().map(|times| times.completion_ns).collect();
        completions.sort_unstable();
        assert_eq!(bound(&bursts, &completions), Some(4));
    }

    #[test]
    fn all_of_a_batch_follow_its_last_completion() {
        let every = 10_000_000;
        let one = |n: u64, k: u64| Times { arrival_ns: n * every, completion_ns: (n + 1) * every - 10_000 - k };
        let times: Vec<Times> = (0..400).map(|place| one(place / 4, place % 4)).collect();
        assert_eq!(infer(&times).dependent(), 99 * 4);
    }

    #[test]
    fn few_requests_stay_at_their_times() {
        let times = [Times { arrival_ns: 5, completion_ns: 9 }, Times { arrival_ns: 9, completion_ns: 12 }];
        assert_eq!(infer(&times).causes, [Cause::At(5), Cause::At(9)]);
        assert!(infer(&[]).causes.is_empty());
    }
}
