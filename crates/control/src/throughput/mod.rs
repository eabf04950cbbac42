//! Throughput: which limit gives the throughput that was guaranteed?
//!
//! A tenant on a *cached device* (a slow one behind a fast one) whose limit equals its guarantee gets less than the guarantee:
//! while its requests miss the cache the slow device cannot keep up, and while they hit the limit forbids to catch up. So the
//! *assigned* limit has to be above the guarantee, by as much throughput as the misses cost. This module decides the assigned
//! limits of the tenants of one cached device, once in each control interval.
//!
//! | method | assigned limit |
//! |---|---|
//! | [`Method::Static`] | the guarantee, as administrators set it by hand |
//! | [`Method::Saat`] | by the equations of Wang et al., *Enabling Accurate Performance Isolation on Hybrid Storage Devices in Cloud Environment* |
//! | [`Method::Accurate`] | Evenkeel's own: learns the throughput that a limit yields, and repays missing throughput later |
//!
//! Counters go in as they are read (they only grow; one that shrinks was reset), so that no caller has to subtract:
//!
//! ```
//! use evenkeel_control::throughput::*;
//! use evenkeel_control::{Duration, Instant};
//!
//! let mut controller = Controller::new(&Config::DEFAULT)?;
//! let guarantee = Guarantee { read: Some(Bounds::new(Rate::BytesPerS(100_000_000))), write: None, weight: 1.0 };
//! let tenant = controller.join(&guarantee)?;
//! for second in 0..3 {
//!     let cached = Counters { read_bytes: second * 90_000_000, reads: second * 900, ..Counters::ZERO };
//!     let slow = Counters { read_bytes: second * 5_000_000, reads: second * 50, ..Counters::ZERO };
//!     let now = Instant::ZERO + Duration::from_secs(second);
//!     let sample = TenantSample { cached, slow: Some(slow), ..TenantSample::new(tenant) };
//!     controller.observe(now, None, &[sample]);
//!     for assignment in controller.tick(now).assignments {
//!         // write assignment.read.limit to io.max, log assignment.read.reason.name()
//!         assert!(assignment.read.is_some() && assignment.write.is_none());
//!     }
//! }
//! # Ok::<(), InvalidConfig>(())
//! ```

use alloc::vec::Vec;
use core::fmt;

use crate::time::{Duration, Instant};

mod accurate;
mod bandwidth;
mod config;
mod reason;
mod saat;
mod share;
mod stream;

pub(crate) use accurate::{ENOUGH, LEAST};
pub use bandwidth::{Bandwidth, SlowDevice};
pub use config::{Config, InvalidConfig, Method};
pub use reason::Reason;

use bandwidth::Estimator;
use stream::{Device, Stream};

/// Number of windows over which the average of lost time reaches back (the newest weighs a twentieth), and of busy intervals of
/// the slow device whose median is taken as its bandwidth.
const REMEMBERED: usize = 20;
/// Three numbers at once: intervals without a new sample after which the signal counts as lost; windows' worth of guaranteed
/// throughput that a debt may reach; busy intervals that it takes to trust the bandwidth of the slow device.
const PATIENCE: u32 = 5;

/// A tenant, by the number that [`Controller::join`] gave it. Numbers are dense, and are used again after
/// [`Controller::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A rate in one of the two units that a limit can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Payload bytes per second.
    BytesPerS(u64),
    /// Requests per second.
    RequestsPerS(u64),
}

impl Rate {
    /// The number, whatever its unit.
    pub const fn value(self) -> u64 {
        match self {
            Self::BytesPerS(value) | Self::RequestsPerS(value) => value,
        }
    }

    /// Another number of the same unit.
    pub const fn with_value(self, value: u64) -> Self {
        match self {
            Self::BytesPerS(_) => Self::BytesPerS(value),
            Self::RequestsPerS(_) => Self::RequestsPerS(value),
        }
    }
}

/// The guarantee for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The guaranteed throughput, above 0.
    pub guaranteed: Rate,
    /// Upper bound on the assigned limit, in the unit of the guarantee; at least the guarantee. `None`: only
    /// [`Config::max_raise`] bounds the limit.
    pub ceiling: Option<u64>,
}

impl Bounds {
    /// A guarantee without a [ceiling](Self::ceiling) of its own.
    pub const fn new(guaranteed: Rate) -> Self {
        Self { guaranteed, ceiling: None }
    }
}

/// The guarantee of a tenant. A direction without a guarantee gets no limit from the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guarantee {
    /// The guarantee for reads.
    pub read: Option<Bounds>,
    /// The guarantee for writes.
    pub write: Option<Bounds>,
    /// The tenant's share of the slow device while that device cannot keep all guarantees, relative to the weights of other
    /// tenants (above 0, at most 1e6).
    pub weight: f64,
}

/// Counters of a tenant or device since an arbitrary beginning; every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
}

impl Counters {
    /// All counters at 0.
    pub const ZERO: Self = Self { read_bytes: 0, written_bytes: 0, reads: 0, writes: 0 };
}

/// A tenant's demand between two samples: continuous or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Not measured: the controller infers the demand from the tenant's throughput.
    #[default]
    Unknown,
    /// The tenant had requests queued or in flight all the time: it wanted more than it got.
    Backlogged,
    /// The tenant had no requests at times: it may have got all that it asked for.
    AppLimited,
}

/// The limits that were found in force for a tenant, for example in `io.max`; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// The limit on reads, per second in the unit of the guarantee.
    pub read: Option<u64>,
    /// The limit on writes, per second in the unit of the guarantee.
    pub write: Option<u64>,
}

/// The present figures of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantSample {
    /// The tenant.
    pub tenant: TenantId,
    /// The tenant's counters on the cached device (that device's row of `io.stat` in the tenant's cgroup; 0 without a row).
    pub cached: Counters,
    /// The tenant's counters on the slow device, which are its cache misses (that device's row of the same `io.stat`). `None`
    /// if they are not known.
    pub slow: Option<Counters>,
    /// The limits that were found in force since the tenant's previous sample; `None`: the assigned ones. A limit other than
    /// the assigned one was set by another program, and nothing is learned from it.
    pub in_force: Option<InForce>,
    /// The tenant's demand since its previous sample.
    pub demand: Demand,
}

impl TenantSample {
    /// A sample with all counters at 0, misses unknown, assigned limits in force, demand unknown.
    pub const fn new(tenant: TenantId) -> Self {
        Self { tenant, cached: Counters::ZERO, slow: None, in_force: None, demand: Demand::Unknown }
    }
}

/// The limit of one direction until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The limit in the unit of the guarantee; above 0 and at most the ceiling.
    pub limit: Rate,
    /// Reason for the value of the limit.
    pub reason: Reason,
}

/// The limits of one tenant until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assignment {
    /// The tenant.
    pub tenant: TenantId,
    /// The limit on reads, if they have a guarantee.
    pub read: Option<Limit>,
    /// The limit on writes, if they have a guarantee.
    pub write: Option<Limit>,
}

impl Assignment {
    /// True if a guarantee to this tenant cannot be met at the present miss rate.
    pub fn unachievable(&self) -> bool {
        [self.read, self.write].iter().flatten().any(|limit| matches!(limit.reason, Reason::Unachievable { .. }))
    }
}

/// The limits of all tenants until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision<'a> {
    /// The assumed bandwidth of the slow device.
    pub slow_device: Bandwidth,
    /// Bytes per second that the slow device moved for no tenant (write-back, promotion, other users) in the latest interval
    /// with samples.
    pub background_bytes_per_s: f64,
    /// The limits of every tenant, in order of number.
    pub assignments: &'a [Assignment],
}

struct Tenant {
    /// Time, counters on the cached device and counters on the slow device of the tenant's latest sample; `None` before its
    /// first sample.
    seen: Option<(Instant, Counters, Option<Counters>)>,
    read: Option<Stream>,
    write: Option<Stream>,
}

impl Tenant {
    fn assignment(&self, tenant: TenantId) -> Assignment {
        Assignment {
            tenant,
            read: self.read.as_ref().map(Stream::limit),
            write: self.write.as_ref().map(Stream::limit),
        }
    }

    fn streams(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.read.iter_mut().chain(&mut self.write)
    }
}

/// Controls the limits of the tenants of one cached device, so that they get their guaranteed throughput.
pub struct Controller {
    config: Config,
    tenants: Vec<Option<Tenant>>,
    /// Numbers of tenants that have left, for tenants that join later.
    vacant: Vec<TenantId>,
    estimator: Estimator,
    device: Device,
    assignments: Vec<Assignment>,
    /// Time of the latest call of [`Self::observe`]; `None` before the first.
    sampled_at: Option<Instant>,
    /// True if [`Self::observe`] was called after the latest decision.
    fresh: bool,
}

impl Controller {
    /// A controller without tenants.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn new(config: &Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self {
            config: *config,
            tenants: Vec::new(),
            estimator: Estimator::new(config.slow_bytes_per_s),
            device: Device::default(),
            assignments: Vec::new(),
            vacant: Vec::new(),
            sampled_at: None,
            fresh: false,
        })
    }

    /// Adds a tenant. Until its first decision its limits equal its guarantees.
    ///
    /// # Errors
    /// The setting of the guarantee that is out of range.
    pub fn join(&mut self, guarantee: &Guarantee) -> Result<TenantId, InvalidConfig> {
        config::validate_guarantee(guarantee)?;
        let stream =
            |bounds: Option<Bounds>| bounds.map(|bounds| Stream::new(bounds, guarantee.weight, self.config.max_raise));
        let tenant = Tenant { seen: None, read: stream(guarantee.read), write: stream(guarantee.write) };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            TenantId(self.tenants.len() as u32 - 1)
        });
        self.tenants[id.0 as usize] = Some(tenant);
        self.list_one(id);
        Ok(id)
    }

    /// Forgets a tenant; a tenant that joins later may get its number. An unknown number changes nothing.
    pub fn leave(&mut self, tenant: TenantId) {
        if self.tenants.get_mut(tenant.0 as usize).is_some_and(|slot| slot.take().is_some()) {
            self.vacant.push(tenant);
            self.list_one(tenant);
        }
    }

    /// Changes a tenant's guarantee, and its limits in proportion. State learned under the old guarantee stays if the new one
    /// has the same unit; the debt (throughput still owed to the tenant) is forgotten. An unknown number changes nothing.
    ///
    /// # Errors
    /// The setting of the guarantee that is out of range; the old guarantee stays.
    pub fn guarantee(&mut self, tenant: TenantId, guarantee: &Guarantee) -> Result<(), InvalidConfig> {
        self.change(tenant, guarantee, Stream::learned_from)
    }

    /// Changes the part of its guarantee that a tenant has here, because other hosts have the rest, and its limits in proportion.
    /// The debt (throughput still owed to the tenant) stays, up to the largest that the new part allows. All state
    /// that was learned stays. An unknown number changes nothing.
    ///
    /// # Errors
    /// The setting of the guarantee that is out of range; the old guarantee stays.
    pub fn part(&mut self, tenant: TenantId, guarantee: &Guarantee) -> Result<(), InvalidConfig> {
        let length = self.config.window_s();
        self.change(tenant, guarantee, |new, old| new.in_part_from(old, length))
    }

    fn change(
        &mut self,
        tenant: TenantId,
        guarantee: &Guarantee,
        learned: impl Fn(Stream, &Stream) -> Stream,
    ) -> Result<(), InvalidConfig> {
        config::validate_guarantee(guarantee)?;
        if let Some(Some(known)) = self.tenants.get_mut(tenant.0 as usize) {
            let changed = |stream: &mut Option<Stream>, bounds: Option<Bounds>| {
                let next = bounds.map(|bounds| Stream::new(bounds, guarantee.weight, self.config.max_raise));
                *stream = match (stream.take(), next) {
                    (Some(old), Some(next)) => Some(learned(next, &old)),
                    (_, next) => next,
                };
            };
            changed(&mut known.read, guarantee.read);
            changed(&mut known.write, guarantee.write);
            self.list_one(tenant);
        }
        Ok(())
    }

    /// Takes samples of the slow device (`None` if it cannot be measured) and of the tenants. A tenant without a sample keeps
    /// its limits; its next sample then counts as one long interval. O(tenants).
    pub fn observe(&mut self, now: Instant, slow: Option<SlowDevice>, tenants: &[TenantSample]) {
        let slow_device = slow.and_then(|slow| self.estimator.observe(now, slow));
        let interval = self.config.interval;
        let mut tenants_slow = 0.0;
        for sample in tenants {
            let Some(Some(tenant)) = self.tenants.get_mut(sample.tenant.0 as usize) else { continue };
            let before = tenant.seen.replace((now, sample.cached, sample.slow));
            let Some((at, cached, slow)) = before else { continue };
            let seconds = now.since(at).as_secs_f64();
            if seconds <= 0.0 {
                tenant.seen = before;
                continue;
            }
            // After a pause the interval says nothing about a limit that was decided for a shorter one.
            let paused = now.since(at).as_nanos() > interval.as_nanos().saturating_mul(u64::from(PATIENCE));
            tenants_slow += stream::observe(
                [&mut tenant.read, &mut tenant.write],
                &stream::Change::between(&cached, slow.as_ref(), sample, seconds, paused),
            );
        }
        let since = self.sampled_at.map_or(interval, |at| now.since(at));
        self.device.observe(slow_device, tenants_slow, since, self.config.window_s());
        self.device.bandwidth = self.estimator.bandwidth(now);
        self.sampled_at = Some(now);
        self.fresh = true;
    }

    /// Decides the limits. Without a new sample the previous decision stands for 5 intervals; after that the signal counts as
    /// lost, and the limits equal the guarantees. O(tenants).
    pub fn tick(&mut self, now: Instant) -> Decision<'_> {
        let patience = Duration::from_nanos(self.config.interval.as_nanos().saturating_mul(u64::from(PATIENCE)));
        if core::mem::take(&mut self.fresh) {
            let streams = self.tenants.iter_mut().flatten().flat_map(Tenant::streams);
            match self.config.method {
                Method::Static => streams.for_each(|stream| stream.assign(stream.guaranteed, Reason::AsGuaranteed)),
                Method::Saat => saat::decide(&self.device, streams.collect()),
                Method::Accurate => accurate::decide(&self.config, &self.device, streams.collect()),
            }
            self.list();
        } else if self.sampled_at.is_some_and(|at| now.since(at) > patience) {
            for stream in self.tenants.iter_mut().flatten().flat_map(Tenant::streams) {
                stream.forget();
                stream.assign(stream.guaranteed, Reason::SignalLost);
            }
            self.list();
        }
        self.decision()
    }

    /// The limits in force, without a new decision.
    pub fn decision(&self) -> Decision<'_> {
        Decision {
            slow_device: self.device.bandwidth,
            background_bytes_per_s: self.device.background_bytes_per_s,
            assignments: &self.assignments,
        }
    }

    fn list(&mut self) {
        self.assignments.clear();
        let known = self.tenants.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)));
        self.assignments.extend(known.map(|(index, tenant)| tenant.assignment(TenantId(index as u32))));
    }

    /// Brings one tenant's entry in `assignments` up to date. O(log tenants), or O(tenants) if the tenant has just joined or
    /// left.
    fn list_one(&mut self, id: TenantId) {
        let assignment = self.tenants[id.0 as usize].as_ref().map(|tenant| tenant.assignment(id));
        match (self.assignments.binary_search_by_key(&id.0, |listed| listed.tenant.0), assignment) {
            (Ok(at), Some(assignment)) => self.assignments[at] = assignment,
            (Ok(at), None) => drop(self.assignments.remove(at)),
            (Err(at), Some(assignment)) => self.assignments.insert(at, assignment),
            (Err(_), None) => {}
        }
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("config", &self.config).field("decision", &self.decision()).finish()
    }
}
