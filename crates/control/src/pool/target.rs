//! A latency target for reads on one device: who waits, and who is to be throttled for it?
//!
//! The sensor of a [`response::Controller`] where the queue is ours. What counts is the latency as the pool sees
//! it, from arrival to completion, of reads of tenants that are not noisy: a tenant that loads the device so much that
//! it could be throttled waits behind itself, and taking that for a grievance would throttle it ever more.
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
    /// Its writes.
    #[default]
    Writes,
    /// Its reads.
    Reads,
    /// Both.
    All,
}

/// Settings of a latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The controller's; loads are in payload bytes per second.
    pub response: response::Config,
    /// Which figure the target is for.
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
        if let Statistic::Percentile(percentile) = self.statistic
            && !(percentile > 0.0 && percentile < 100.0)
        {
            return Err(InvalidConfig {
                setting: "statistic",
                must_be: "the mean or a percentile above 0 and below 100",
            });
        }
        self.response.validate()
    }
}

/// A decision as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Why.
    pub reason: Reason,
    /// Mean delay of those throttled, weighted by load.
    pub mean_delay: Duration,
    /// How many were throttled.
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
    /// Its settings.
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

    /// Takes another target if that is all that differs; returns whether it was.
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

    /// Something completed.
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

    /// Ends the interval if it has anything to say: its length.
    ///
    /// An interval in which nothing came out of a device that holds requests is none: that is no idleness, for
    /// which tenants would be released. It goes on, until the controller counts its signal as lost.
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

    /// Where the caller puts what each tenant did in the interval that was closed, and its load were it not throttled.
    pub(super) fn samples(&mut self) -> (&mut Vec<ClientSample>, &mut Vec<f64>) {
        (&mut self.samples, &mut self.loads)
    }

    /// Takes what is in [`Self::samples`], and empties it, and `reads` that counted and took `sum` together.
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

    /// Decides; [`Self::delay`] has the delay of each client. Returns the reason, and whether it is new.
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
