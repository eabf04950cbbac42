//! A device of any of the models behind one interface.

use alloc::boxed::Box;

use evenkeel_control::{Duration, Instant};

use crate::Io;
use crate::cached::{Cached, CachedParams};
use crate::disk::{Disk, DiskParams};
use crate::params::InvalidParams;
use crate::raid::{Raid0, Raid0Params};
use crate::ssd::{Ssd, SsdParams};
use crate::store::{Store, StoreParams};
use crate::surface::{Surface, SurfaceParams};

/// The value of an expression about the parameters or the device of any model, by the name `$one`.
macro_rules! of_any {
    ($any:expr, $one:ident => $value:expr) => {
        match $any {
            Self::Store($one) => $value,
            Self::Ssd($one) => $value,
            Self::Disk($one) => $value,
            Self::Raid0($one) => $value,
            Self::Cached($one) => $value,
            Self::Surface($one) => $value,
        }
    };
}

/// Parameters of any model. In TOML: a table whose key `kind` names the model; other keys override that model's preset.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "snake_case"))]
pub enum DeviceParams {
    /// A batching store (see [`store`](crate::store)).
    Store(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] StoreParams),
    /// A solid-state drive.
    Ssd(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] SsdParams),
    /// A disk.
    Disk(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] DiskParams),
    /// RAID-0 over equal members.
    Raid0(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] Raid0Params),
    /// A fast device that caches a slow one.
    Cached(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] CachedParams),
    /// A table of latencies.
    Surface(#[cfg_attr(feature = "serde", serde(deserialize_with = "crate::preset::read"))] SurfaceParams),
}

impl DeviceParams {
    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        of_any!(self, params => params.validate())
    }
}

/// An event loop's interface to a device; tests implement it by a device that misbehaves.
pub trait Machine {
    /// Name of the model.
    fn name(&self) -> &'static str;
    /// Takes a request. [`Machine::poll`] returns `id` when it has completed.
    fn submit(&mut self, now: Instant, id: u64, io: Io);
    /// When to poll next; `Instant::FAR_FUTURE` when nothing is in flight.
    fn next_event(&self) -> Instant;
    /// The next request that has completed by `now`, in order of completion; call until `None`.
    fn poll(&mut self, now: Instant) -> Option<u64>;
    /// Stalls the device: it serves nothing for `length` from `now`.
    fn stall(&mut self, now: Instant, length: Duration);
    /// Changes the parameters; parameters of another model have no effect.
    fn set_params(&mut self, now: Instant, params: &DeviceParams);
}

/// A device of any model; its methods are those of [`Machine`].
pub enum Device {
    /// A batching store (see [`store`](crate::store)).
    Store(Box<Store>),
    /// A solid-state drive.
    Ssd(Box<Ssd>),
    /// A disk.
    Disk(Box<Disk>),
    /// RAID-0 over equal members.
    Raid0(Box<Raid0>),
    /// A fast device that caches a slow one.
    Cached(Box<Cached>),
    /// A table of latencies.
    Surface(Box<Surface>),
}

impl Device {
    /// An idle device. The same seed and calls give the same completions.
    pub fn new(params: &DeviceParams, seed: u64) -> Self {
        match params {
            DeviceParams::Store(params) => Self::Store(Box::new(Store::new(*params, seed))),
            DeviceParams::Ssd(params) => Self::Ssd(Box::new(Ssd::new(*params, seed))),
            DeviceParams::Disk(params) => Self::Disk(Box::new(Disk::new(params.clone(), seed))),
            DeviceParams::Raid0(params) => Self::Raid0(Box::new(Raid0::new(params, seed))),
            // Nothing in it is left to chance.
            DeviceParams::Cached(params) => Self::Cached(Box::new(Cached::new(*params))),
            DeviceParams::Surface(params) => Self::Surface(Box::new(Surface::new(params, seed))),
        }
    }
}

impl Machine for Device {
    fn name(&self) -> &'static str {
        match self {
            Self::Store(_) => "store",
            Self::Ssd(_) => "ssd",
            Self::Disk(_) => "disk",
            Self::Raid0(_) => "raid0",
            Self::Cached(_) => "cached",
            Self::Surface(_) => "surface",
        }
    }

    #[inline]
    fn submit(&mut self, now: Instant, id: u64, io: Io) {
        of_any!(self, device => device.submit(now, id, io));
    }

    #[inline]
    fn next_event(&self) -> Instant {
        of_any!(self, device => device.next_event())
    }

    #[inline]
    fn poll(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::Store(device) => device.poll(now),
            Self::Ssd(device) => device.poll(now),
            Self::Disk(device) => device.poll(now),
            Self::Raid0(device) => device.poll(now),
            Self::Cached(device) => device.poll(now).map(|done| done.id),
            Self::Surface(device) => device.poll(now),
        }
    }

    fn stall(&mut self, now: Instant, length: Duration) {
        of_any!(self, device => device.stall(now, length));
    }

    fn set_params(&mut self, now: Instant, params: &DeviceParams) {
        match (self, params) {
            (Self::Store(device), DeviceParams::Store(params)) => device.set_params(now, *params),
            (Self::Ssd(device), DeviceParams::Ssd(params)) => device.set_params(now, *params),
            (Self::Disk(device), DeviceParams::Disk(params)) => device.set_params(now, params.clone()),
            (Self::Raid0(device), DeviceParams::Raid0(params)) => device.set_params(now, params),
            (Self::Cached(device), DeviceParams::Cached(params)) => device.set_params(now, *params),
            (Self::Surface(device), DeviceParams::Surface(params)) => device.set_params(now, params),
            _ => {}
        }
    }
}
