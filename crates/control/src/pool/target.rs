//! A latency target for reads on one device: who waits, and who is to be throttled for it?
//!
//! The sensor of a [`response::Controller`] where the queue is ours. The measured latency is that which the pool sees, from
//! arrival to completion, of reads of tenants that are not noisy: a tenant that loads the device so much that it could be
//! throttled waits behind its own requests, and throttling it for that would slow it ever more.
//!
//! The delay that the controller decides is acted on in `throttles`.

use alloc::vec::Vec;

use crate::log::{Decided, Log};
use crate::response::{self, ClientDelay, ClientId, ClientSample, Controller, InvalidConfig, Reason, Sample, Shape};
use crate::time::{Duration, Instant};

/// Decisions that are remembered: enough to see how the present one came about.
const RECORDS: usize = 32;

/// Which figure of the latencies is to stay below the target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Statistic {
    /// Their mean over an interval.
    #[default]
    Mean,
    /// A percentile (above 0, below 100), over some seconds.
    Percentile(f64),
}

/// The load that makes a tenant noisy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// Payload bytes that it writes.
    #[default]
    Writes,
    /// Payload bytes that it reads.
    Reads,
    /// All payload bytes, read and written.
    All,
}

/// Settings of a latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Settings of the controller; its loads are in payload bytes per second.
    pub response: response::Config,
    /// The statistic that the target is for.
    pub statistic: Statistic,
    /// The load that makes a tenant noisy.
    pub load: Load,
}

impl Config {
    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let is_within =
            !matches!(self.statistic, Statistic::Percentile(percentile) if !(percentile > 0.0 && percentile < 100.0));
        InvalidConfig::check(&[(is_within, "statistic", "the mean or a percentile above 0 and below 100")])?;
        self.response.validate()
    }
}

/// A decision as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Why the delays are what they are.
    pub reason: Reason,
    /// Mean delay of the noisy tenants, weighted by load.
    pub mean_delay: Duration,
    /// Number of throttled tenants.
    pub throttled: u32,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        self.reason.name() == newer.reason.name() && self.throttled == newer.throttled
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
    /// The newest figure that the controller observed; `None` before the first read that counted.
    pub measured: Option<Duration>,
    /// Decisions lately, the newest included.
    pub records: &'a Log<Decision>,
}

/// The latency target of a pool.
pub(super) struct Target {
    config: Config,
    controller: Controller,
    /// When the present interval began.
    began: Instant,
    next_tick: Instant,
    /// True if anything at all has completed in the interval.
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

    /// Takes over `config` if nothing but the target's value differs; false if it did not.
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

    /// Notes that a request has completed.
    #[inline]
    pub(super) fn progress(&mut self) {
        self.moved = true;
    }

    /// A read of a tenant whose reads count has completed.
    #[inline]
    pub(super) fn read(&mut self, response_time: Duration) {
        if self.config.statistic != Statistic::Mean {
            self.shape.record(response_time);
        }
    }

    /// Ends the interval and returns its length; `None` if the interval goes on.
    ///
    /// An interval in which nothing completed although requests are in flight goes on: that is not idleness, for which
    /// tenants would be released. In the end the controller counts its signal as lost.
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

    /// Lists for the caller to fill: what each tenant did in the interval that was closed, and its load were it not
    /// throttled.
    pub(super) fn samples(&mut self) -> (&mut Vec<ClientSample>, &mut Vec<f64>) {
        (&mut self.samples, &mut self.loads)
    }

    /// Passes the closed interval to the controller: the tenants in [`Self::samples`], which are cleared, and `reads` reads
    /// that counted, whose latencies add up to `sum`.
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

    /// Decides; [`Self::delay`] has the delay of each client. Returns the reason, and true if the decision is of another kind
    /// than the one before.
    pub(super) fn decide(&mut self, now: Instant) -> (Reason, bool) {
        let decision = self.controller.tick(now);
        self.delays.clear();
        self.delays.extend_from_slice(decision.delays);
        let (reason, mean_delay) = (decision.reason, decision.mean_delay);
        let throttled = self.delays.len() as u32;
        (reason, self.records.record(now, Decision { reason, mean_delay, throttled }))
    }

    /// How a client is throttled by the newest decision, if it is.
    pub(super) fn delay(&self, client: ClientId) -> Option<&ClientDelay> {
        let place = self.delays.binary_search_by_key(&client, |delay| delay.client).ok()?;
        self.delays.get(place)
    }

    /// True if a tenant's reads count: it is not noisy.
    pub(super) fn counts(&self, client: ClientId) -> bool {
        !self.controller.is_noisy(client)
    }

    pub(super) fn view(&self) -> View<'_> {
        View { config: &self.config, measured: self.measured, records: &self.records }
    }
}
