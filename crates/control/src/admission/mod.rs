//! Admission: how much may be inside the back end? (stub; the interface is fixed)
use crate::time::{Duration, Instant};

/// Which answer, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Config {
    /// Everything is admitted at once.
    None,
    /// A constant budget.
    Fixed {
        /// Budget in bytes.
        budget_bytes: u64,
    },
    /// SlowFast CoDel.
    SlowFast(SlowFastConfig),
}

/// Settings of SlowFast CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct SlowFastConfig {}

/// Why the controller decided what it decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No decision yet.
    Initial,
}

/// What the controller decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// Bytes that may be inside the back end; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Latency the controller aims at, if it has an aim.
    pub target: Option<Duration>,
    /// Why.
    pub reason: Reason,
}

/// Admission control in front of one back end.
pub struct Admission {
    config: Config,
    inside: u64,
    last: Decision,
}

impl Admission {
    /// A controller that starts at `now`; `seed` feeds exploration.
    pub fn new(config: Config, now: Instant, _seed: u64) -> Self {
        let budget_bytes = match config {
            Config::Fixed { budget_bytes } => budget_bytes,
            _ => u64::MAX,
        };
        Self { config, inside: 0, last: Decision { at: now, budget_bytes, target: None, reason: Reason::Initial } }
    }
    /// Whether a request of this cost fits now. A request larger than the whole budget fits when nothing is inside.
    #[inline]
    pub fn fits(&self, cost_bytes: u64) -> bool {
        self.inside == 0 || self.inside.saturating_add(cost_bytes) <= self.last.budget_bytes
    }
    /// Takes a request in.
    #[inline]
    pub fn admit(&mut self, cost_bytes: u64) {
        self.inside += cost_bytes;
    }
    /// A request has left after `latency` in the back end.
    #[inline]
    pub fn observe(&mut self, _now: Instant, cost_bytes: u64, _payload_bytes: u64, _latency: Duration) {
        self.inside -= cost_bytes;
    }
    /// A request has left without telling anything about the back end (cancelled, failed at once).
    #[inline]
    pub fn forget(&mut self, cost_bytes: u64) {
        self.inside -= cost_bytes;
    }
    /// When [`Admission::tick`] wants to run next; `Instant::FAR_FUTURE` = never.
    #[inline]
    pub fn next_tick(&self) -> Instant {
        Instant::FAR_FUTURE
    }
    /// Runs what is due at `now`; the newest decision if something was decided.
    pub fn tick(&mut self, _now: Instant) -> Option<Decision> {
        None
    }
    /// The decision in force.
    pub fn decision(&self) -> &Decision {
        &self.last
    }
    /// Cost of all that is inside, in bytes.
    pub fn inside_bytes(&self) -> u64 {
        self.inside
    }
    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// Changes the settings in force; what is inside stays counted.
    pub fn reconfigure(&mut self, config: Config, _now: Instant) {
        self.config = config;
    }
}
