//! The one-sided PID controller as published.
//!
//! J. Bjørgeengen and H. Haugerud, *Using TCP/IP traffic shaping to achieve iSCSI service predictability*, sections 2.3
//! and appendix A. Equation (2), with e the latency over the threshold:
//!
//! ```text
//! u_k = K_p·e_k + (I_{k−1} + K_p·T/T_i·e_k) + K_p·T_d/T·(e_k − e_{k−1})
//! ```
//!
//! Output and integral are clamped to 0 … the largest class, and the output is rounded up to a class, which is a delay of a
//! whole number of steps. "One-sided" is that clamp: below the threshold the integral winds down to 0, and the delay with it.
//!
//! The paper gives neither the gains nor the constant of the moving average; with the defaults here a latency target was
//! held in a test with the paper's load. One deviation: at the first sample e_{k−1} is taken as e_k, so that the derivative
//! part starts at 0.

use alloc::vec::Vec;

use super::clients::Clients;
use super::gain::PRIOR;
use super::{ClientDelay, ClientId, ClientReason, Config, Decision, InvalidConfig, Reason, Sample, Throttle, from_ms};
use crate::time::{Duration, Instant};

/// Distance between two delay classes in the paper.
const PUBLISHED_STEP: Duration = Duration::from_micros(500);

/// Constants of the published controller, a one-sided PID.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PidConfig {
    /// Proportional gain K_p, in classes (delays of one step each) per millisecond of latency over the target (0 to 1000).
    pub gain_classes_per_ms: f64,
    /// Integral time T_i (above zero, at most 1000 s).
    pub integral_time: Duration,
    /// Derivative time T_d (at most 1000 s); zero for no derivative part.
    pub derivative_time: Duration,
    /// Weight of the newest sample in the moving average of the latency (above 0, at most 1).
    pub newest_weight: f64,
    /// Time between two updates of the set of noisy clients.
    pub set_interval: Duration,
}

impl PidConfig {
    /// Constants with which a target of 20 ms was met within 4 s on a real storage target.
    pub const DEFAULT: Self = Self {
        gain_classes_per_ms: 0.3,
        integral_time: Duration::from_secs(1),
        derivative_time: Duration::ZERO,
        newest_weight: 0.15,
        set_interval: Duration::from_secs(1),
    };

    pub(super) fn validate(&self) -> Result<(), InvalidConfig> {
        let long = Duration::from_secs(1000);
        InvalidConfig::check(&[
            ((0.0..=1000.0).contains(&self.gain_classes_per_ms), "gain_classes_per_ms", "from 0 to 1000"),
            (
                !self.integral_time.is_zero() && self.integral_time <= long,
                "integral_time",
                "above 0 and at most 1000 s",
            ),
            (self.derivative_time <= long, "derivative_time", "at most 1000 s"),
            (self.newest_weight > 0.0 && self.newest_weight <= 1.0, "newest_weight", "above 0 and at most 1"),
        ])
    }
}

impl Default for PidConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The controller of [`Method::Pid`](super::Method::Pid).
#[derive(Debug)]
pub(super) struct Pid {
    config: PidConfig,
    target: Duration,
    target_ms: f64,
    interval_s: f64,
    step: Duration,
    classes: f64,
    threshold: f64,
    clients: Clients,
    since_set: Duration,
    sampled_at: Option<Instant>,
    /// Moving average of the latency of reads, in ms; `None` before the first read.
    response_ms: Option<f64>,
    integral: f64,
    previous_error: Option<f64>,
    class: u64,
    reason: Reason,
    delays: Vec<ClientDelay>,
}

impl Pid {
    pub(super) fn new(config: &Config, pid: &PidConfig) -> Self {
        // The gain is in classes, so there must be some: the paper's.
        let step = if config.step == Duration::ZERO { PUBLISHED_STEP } else { config.step };
        Self {
            config: *pid,
            target: config.target,
            target_ms: config.target.as_millis_f64(),
            interval_s: config.interval.as_secs_f64(),
            step,
            classes: (config.max_delay.as_nanos() / step.as_nanos()) as f64,
            threshold: config.noisy_bytes_per_s as f64,
            clients: Clients::default(),
            since_set: Duration::MAX,
            sampled_at: None,
            response_ms: None,
            integral: 0.0,
            previous_error: None,
            class: 0,
            reason: Reason::NotEnoughData,
            delays: Vec::new(),
        }
    }

    pub(super) fn is_noisy(&self, client: ClientId) -> bool {
        self.clients.is_noisy(client)
    }

    pub(super) fn set_target(&mut self, target: Duration) {
        (self.target, self.target_ms) = (target, target.as_millis_f64());
    }

    pub(super) fn limit_delay(&mut self, most: Duration) {
        self.classes = (most.as_nanos() / self.step.as_nanos()).max(1) as f64;
    }

    pub(super) fn observe(&mut self, now: Instant, sample: &Sample<'_>) {
        let length = self.sampled_at.map_or(from_ms(self.interval_s * 1e3), |before| now.since(before));
        self.sampled_at = Some(now);
        // Measured now: the average comes after the loads.
        let latency = sample.read_response.map(Duration::as_millis_f64).or(self.response_ms).unwrap_or(self.target_ms);
        self.clients.observe(length, sample.clients, latency, PRIOR.0);
        self.since_set = self.since_set + length;
        if self.since_set >= self.config.set_interval {
            self.clients.all.iter_mut().for_each(|client| client.judge(&[(client.bytes_per_s, self.threshold)]));
            self.since_set = Duration::ZERO;
        }
        // Only what has read activity counts: without reads the average stays.
        if let Some(response) = sample.read_response {
            let response = response.as_millis_f64();
            let average = self.response_ms.get_or_insert(response);
            *average += self.config.newest_weight * (response - *average);
        }
    }

    pub(super) fn decide(&mut self, _now: Instant) {
        let Some(response_ms) = self.response_ms else { return };
        let Self { config, classes, interval_s, .. } = *self;
        let error = response_ms - self.target_ms;
        let proportional = config.gain_classes_per_ms * error;
        let growth = proportional * interval_s / config.integral_time.as_secs_f64();
        self.integral = (self.integral + growth).clamp(0.0, classes);
        let change = error - self.previous_error.replace(error).unwrap_or(error);
        let derivative = config.gain_classes_per_ms * config.derivative_time.as_secs_f64() / interval_s * change;
        let output = (proportional + self.integral + derivative).clamp(0.0, classes);
        let before = self.class;
        self.class = libm::ceil(output) as u64;
        self.delays.clear();
        let delay = self.delay();
        let (delay_ms, step_ms) = (delay.as_millis_f64(), self.step.as_millis_f64());
        for client in &mut self.clients.all {
            // The published method knows no clients that are throttled last; never to throttle them comes nearest.
            let throttled = client.noisy && client.throttle != Throttle::Last;
            client.delay_ms = if throttled { client.most_of(delay_ms, step_ms) } else { 0.0 };
            if client.delay_ms > 0.0 {
                let same = client.delay_ms >= delay_ms;
                let (delay, reason) = match same {
                    true => (delay, ClientReason::SameForAll),
                    false => (from_ms(client.delay_ms), ClientReason::Owed),
                };
                self.delays.push(ClientDelay { client: client.id, delay, reason });
            }
        }
        let (measured, target) = (from_ms(response_ms), self.target);
        self.reason = match () {
            () if self.class == 0 => Reason::UnderTarget { measured, target },
            () if self.delays.is_empty() && error > 0.0 => Reason::NoNoisy { measured, target },
            () if self.delays.is_empty() => Reason::UnderTarget { measured, target },
            () if error > 0.0 && self.class as f64 >= classes => Reason::Unachievable { measured, target },
            () if error > 0.0 => Reason::ReadsOverTarget { measured, target },
            () if self.class > before => Reason::ReadsNearTarget { measured, target, set_point: None },
            () => Reason::ReadsUnderTarget { measured, target },
        };
    }

    /// Ends the delays of all clients and resets the controller's state.
    pub(super) fn signal_lost(&mut self) {
        (self.integral, self.previous_error, self.class, self.response_ms) = (0.0, None, 0, None);
        self.reason = Reason::SignalLost;
        self.clients.all.iter_mut().for_each(|client| client.delay_ms = 0.0);
        self.delays.clear();
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.step.as_nanos().saturating_mul(self.class))
    }

    pub(super) fn decision(&self) -> Decision<'_> {
        let mean_delay = if self.delays.is_empty() { Duration::ZERO } else { self.delay() };
        Decision { reason: self.reason, mean_delay, delays: &self.delays }
    }
}
