//! A latency target for reads on one device: which tenants wait, and which are throttled for them?
//!
//! The sensor of a [`response::Controller`] for a pool, which has the queue itself. The measured latency is the time from
//! arrival in the pool to completion, of reads of tenants that are not noisy: a tenant that loads the device so much that it
//! could be throttled waits behind its own requests, and throttling it for that would slow it ever more.
//!
//! The module `throttles` puts the decided delays in force.

use alloc::vec::Vec;

use super::TenantId;
use crate::log::{Decided, Log};
use crate::response::{self, ClientDelay, ClientId, ClientSample, Controller, InvalidConfig, Reason, Sample, Shape};
use crate::time::{Duration, Instant};

/// Number of log entries for decisions about the target: enough to see how the present decision came about.
const RECORDS: usize = 32;

/// The statistic of latencies that is to stay below a latency target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Statistic {
    /// The mean latency.
    #[default]
    Mean,
    /// A percentile of the latencies (above 0, below 100): the mean times a ratio learned over the last 5 to 10 s.
    Percentile(f64),
}

/// The traffic that counts as a tenant's load and can make it noisy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// Payload bytes that the tenant writes.
    #[default]
    Writes,
    /// Payload bytes that the tenant reads.
    Reads,
    /// All payload bytes, read and written.
    All,
}

/// Settings of a pool's latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Settings of the controller, with the target itself; its loads are in payload bytes per second.
    pub response: response::Config,
    /// The statistic of read latencies that the target is for.
    pub statistic: Statistic,
    /// The traffic that counts as a tenant's load and can make it noisy.
    pub load: Load,
}

impl Config {
    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let is_within =
            !matches!(self.statistic, Statistic::Percentile(percentile) if !(percentile > 0.0 && percentile < 100.0));
        InvalidConfig::check(&[(is_within, "statistic", "the mean or a percentile above 0 and below 100")])?;
        self.response.validate()
    }
}

/// A number of tenants, of which the first are listed: enough of them for a sentence, in a decision of fixed size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Few<T> {
    /// The first of the tenants, at most two.
    pub first: [Option<T>; 2],
    /// Number of all the tenants.
    pub count: u32,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: [None, None], count: 0 }
    }
}

impl<T> Few<T> {
    /// Counts `one`, and lists it before those of the listed that it precedes by `precedes`.
    pub(super) fn add(&mut self, one: T, precedes: impl Fn(&T, &T) -> bool) {
        self.count += 1;
        let mut one = Some(one);
        for place in &mut self.first {
            let is_before = match (&one, &*place) {
                (Some(one), Some(listed)) => precedes(one, listed),
                (one, _) => one.is_some(),
            };
            if is_before {
                core::mem::swap(place, &mut one);
            }
        }
    }
}

/// A tenant that a decision throttles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowed {
    /// The tenant.
    pub tenant: TenantId,
    /// Requests that the tenant may have in flight; a slot that stays empty for a delay counts as a request.
    pub slots: u64,
    /// Time for which a slot stays empty after its request has left the device.
    pub delay: Duration,
    /// Payload bytes per second that the throttle lets pass beside a reservation, with requests and device latencies as they
    /// are at present; `None` before requests with payload have completed.
    pub bytes_per_s: Option<f64>,
    /// Delay of a request by the decision, before the throttle was expressed by fewer slots with a shorter delay, and the load
    /// in bytes per second that the tenant would have without a throttle.
    pub(super) rank: (Duration, f64),
}

impl Slowed {
    /// True if this tenant is throttled more than `other`: by a longer delay, or with more load by the same delay.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.rank > other.rank
    }
}

/// A decision for a pool's latency target, as its log keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Reason for the present delays.
    pub reason: Reason,
    /// Mean delay of the noisy tenants, weighted by load.
    pub mean_delay: Duration,
    /// The throttled tenants, the most throttled first.
    pub throttled: Few<Slowed>,
    /// The tenants that this decision released.
    pub released: Few<TenantId>,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        self.reason.name() == newer.reason.name() && self.throttled.count == newer.throttled.count
    }

    fn figure(&self) -> Option<f64> {
        Some(self.mean_delay.as_millis_f64())
    }
}

/// State of a pool's latency target.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The settings of the target.
    pub config: &'a Config,
    /// The newest measured statistic of read latencies; `None` before the first read of a tenant that is not noisy.
    pub measured: Option<Duration>,
    /// The latest decisions, up to the newest.
    pub records: &'a Log<Decision>,
}

/// The latency target of a pool, with its controller and the figures of the present interval.
pub(super) struct Target {
    config: Config,
    controller: Controller,
    /// When the present control interval began.
    began: Instant,
    next_tick: Instant,
    /// True if any request of the pool has completed in the present interval.
    moved: bool,
    shape: Shape,
    measured: Option<Duration>,
    samples: Vec<ClientSample>,
    loads: Vec<f64>,
    delays: Vec<ClientDelay>,
    records: Log<Decision>,
}

impl Target {
    pub(super) fn new(now: Instant, config: &Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self {
            config: *config,
            controller: Controller::new(&config.response)?,
            began: now,
            next_tick: now + config.response.interval,
            moved: false,
            shape: Shape::new(now),
            measured: None,
            samples: Vec::new(),
            loads: Vec::new(),
            delays: Vec::new(),
            records: Log::new(RECORDS),
        })
    }

    /// Takes over `config` if it differs from the present settings only in the target's value. False if it was not taken over.
    pub(super) fn adopt(&mut self, config: &Config) -> bool {
        let mut same = *config;
        same.response.target = self.config.response.target;
        let adopted = same == self.config && self.controller.set_target(config.response.target).is_ok();
        if adopted {
            self.config = *config;
        }
        adopted
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// Notes that a request of any tenant has completed.
    #[inline]
    pub(super) fn progress(&mut self) {
        self.moved = true;
    }

    /// Counts a completed read, of this latency, of a tenant that is not noisy.
    #[inline]
    pub(super) fn read(&mut self, response_time: Duration) {
        if self.config.statistic != Statistic::Mean {
            self.shape.record(response_time);
        }
    }

    /// Ends the control interval and returns its length; `None` if the interval goes on. `inside`: requests in flight.
    ///
    /// An interval in which nothing completed although requests are in flight goes on: the pool is not idle, so throttles
    /// must not end. If it goes on for too long, the controller counts its signal as lost.
    pub(super) fn close_interval(&mut self, now: Instant, inside: u64) -> Option<Duration> {
        self.next_tick = now + self.config.response.interval;
        let length = now.since(self.began);
        if length == Duration::ZERO || (!self.moved && inside > 0) {
            return None;
        }
        self.began = now;
        self.moved = false;
        Some(length)
    }

    /// Two lists for the caller to fill, with an entry for each tenant: its figures of the interval that was closed, and the
    /// load that it would have had without a throttle, in bytes per second.
    pub(super) fn samples(&mut self) -> (&mut Vec<ClientSample>, &mut Vec<f64>) {
        (&mut self.samples, &mut self.loads)
    }

    /// Passes the closed interval to the controller: the tenants' figures in [`Self::samples`], which are cleared, and `reads`
    /// reads of tenants that are not noisy, whose latencies add up to `sum`.
    pub(super) fn observe(&mut self, now: Instant, reads: u64, sum: Duration) {
        let mean = (reads > 0).then(|| Duration::from_nanos(sum.as_nanos() / reads));
        let figure = mean.map(|mean| match self.config.statistic {
            Statistic::Mean => mean,
            Statistic::Percentile(percentile) => {
                self.shape.close_interval(now);
                // A read that counts here is recorded there.
                self.shape.percentile(mean, percentile / 100.0).unwrap_or(mean)
            }
        });
        self.measured = figure.or(self.measured);
        self.controller.observe(now, &Sample { read_response: figure, reads, clients: &self.samples });
        self.samples.clear();
    }

    /// Decides the delays; [`Self::delay`] returns that of a client. The caller adds the tenants to the decision, and passes
    /// it to [`Self::record`].
    pub(super) fn decide(&mut self, now: Instant) -> Decision {
        let decision = self.controller.tick(now);
        self.delays.clear();
        self.delays.extend_from_slice(decision.delays);
        let (reason, mean_delay) = (decision.reason, decision.mean_delay);
        Decision { reason, mean_delay, throttled: Few::default(), released: Few::default() }
    }

    /// Logs a decision. True if the decision differs in kind from the previous one.
    pub(super) fn record(&mut self, now: Instant, mut decision: Decision) -> bool {
        // A renewed entry keeps the tenants that its first decision released.
        let renewed = self.records.last().map(|entry| entry.decision).filter(|last| last.is_renewed_by(&decision));
        if let Some(last) = renewed.filter(|_| decision.released.count == 0) {
            decision.released = last.released;
        }
        self.records.record(now, decision)
    }

    /// A client's delay by the newest decision; `None` if the client is not throttled.
    pub(super) fn delay(&self, client: ClientId) -> Option<&ClientDelay> {
        let place = self.delays.binary_search_by_key(&client, |delay| delay.client).ok()?;
        self.delays.get(place)
    }

    /// Notes that a shorter delay than the decided one is in force for the tenant with this number.
    pub(super) fn shorten(&mut self, client: ClientId, delay: Duration) {
        self.controller.shorten_delay(client, delay);
    }

    /// True if the tenant with this number is not noisy, so that its reads count in the measured latency.
    pub(super) fn counts(&self, client: ClientId) -> bool {
        !self.controller.is_noisy(client)
    }

    pub(super) fn view(&self) -> View<'_> {
        View { config: &self.config, measured: self.measured, records: &self.records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_are_listed_in_order() {
        let mut most = Few::default();
        for number in [3, 5, 4, 5, 1] {
            most.add(number, |one: &i32, other| one > other);
        }
        assert_eq!(most, Few { first: [Some(5), Some(5)], count: 5 });
        let mut arrived = Few::default();
        for number in [3, 5, 4] {
            arrived.add(number, |_, _| false);
        }
        assert_eq!(arrived, Few { first: [Some(3), Some(5)], count: 3 });
    }
}
