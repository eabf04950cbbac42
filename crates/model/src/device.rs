//! A device of any of the models behind one interface.

use alloc::boxed::Box;

use evenkeel_control::Instant;

use crate::Io;
use crate::cached::{Cached, CachedParams};
use crate::disk::{Disk, DiskParams};
use crate::params::InvalidParams;
use crate::raid::{Raid0, Raid0Params};
use crate::ssd::{Ssd, SsdParams};
use crate::store::{Store, StoreParams};

/// Parameters of any model. As text: a table with `kind`, and keys of that kind that override its preset.
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
}

impl DeviceParams {
    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        match self {
            Self::Store(params) => params.validate(),
            Self::Ssd(params) => params.validate(),
            Self::Disk(params) => params.validate(),
            Self::Raid0(params) => params.validate(),
            Self::Cached(params) => params.validate(),
        }
    }
}

/// A device of any model; the methods are those of the [crate].
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
        }
    }

    /// Name of the model.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Store(_) => "store",
            Self::Ssd(_) => "ssd",
            Self::Disk(_) => "disk",
            Self::Raid0(_) => "raid0",
            Self::Cached(_) => "cached",
        }
    }

    /// Takes a request. [`Device::poll`] returns `id` when it has completed.
    #[inline]
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        match self {
            Self::Store(device) => device.submit(now, id, io),
            Self::Ssd(device) => device.submit(now, id, io),
            Self::Disk(device) => device.submit(now, id, io),
            Self::Raid0(device) => device.submit(now, id, io),
            Self::Cached(device) => device.submit(now, id, io),
        }
    }

    /// When to poll next; `Instant::FAR_FUTURE` when nothing is in flight.
    #[inline]
    pub fn next_event(&self) -> Instant {
        match self {
            Self::Store(device) => device.next_event(),
            Self::Ssd(device) => device.next_event(),
            Self::Disk(device) => device.next_event(),
            Self::Raid0(device) => device.next_event(),
            Self::Cached(device) => device.next_event(),
        }
    }

    /// The next request that has completed by `now`, in order of completion; call until `None`.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::Store(device) => device.poll(now),
            Self::Ssd(device) => device.poll(now),
            Self::Disk(device) => device.poll(now),
            Self::Raid0(device) => device.poll(now),
            Self::Cached(device) => device.poll(now).map(|done| done.id),
        }
    }

    /// Stalls the device: it serves nothing for `length` from `now`.
    pub fn stall(&mut self, now: Instant, length: evenkeel_control::Duration) {
        match self {
            Self::Store(device) => device.stall(now, length),
            Self::Ssd(device) => device.stall(now, length),
            Self::Disk(device) => device.stall(now, length),
            Self::Raid0(device) => device.stall(now, length),
            Self::Cached(device) => device.stall(now, length),
        }
    }

    /// Changes the parameters; parameters of another model have no effect.
    pub fn set_params(&mut self, now: Instant, params: &DeviceParams) {
        match (self, params) {
            (Self::Store(device), DeviceParams::Store(params)) => device.set_params(now, *params),
            (Self::Ssd(device), DeviceParams::Ssd(params)) => device.set_params(now, *params),
            (Self::Disk(device), DeviceParams::Disk(params)) => device.set_params(now, params.clone()),
            (Self::Raid0(device), DeviceParams::Raid0(params)) => device.set_params(now, params),
            (Self::Cached(device), DeviceParams::Cached(params)) => device.set_params(now, *params),
            _ => {}
        }
    }
}
