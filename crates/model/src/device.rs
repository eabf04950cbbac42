//! Any of the models behind one interface.

use alloc::boxed::Box;

use evenkeel_control::Instant;

use crate::Io;
use crate::ssd::{Ssd, SsdParams};
use crate::store::{Store, StoreParams};

/// Parameters of any model.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceParams {
    /// A batching store over a device.
    Store(StoreParams),
    /// A solid-state drive.
    Ssd(SsdParams),
}

/// Any of the models; the verbs are those of the [crate].
pub enum Device {
    /// A batching store over a device.
    Store(Box<Store>),
    /// A solid-state drive.
    Ssd(Box<Ssd>),
}

impl Device {
    /// An idle device. The same seed and calls give the same completions.
    pub fn new(params: &DeviceParams, seed: u64) -> Self {
        match params {
            DeviceParams::Store(params) => Self::Store(Box::new(Store::new(*params, seed))),
            DeviceParams::Ssd(params) => Self::Ssd(Box::new(Ssd::new(*params, seed))),
        }
    }

    /// Name of the model.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Store(_) => "store",
            Self::Ssd(_) => "ssd",
        }
    }

    /// Takes a request. `id` comes back from [`Device::poll`] and is not looked into.
    #[inline]
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        match self {
            Self::Store(device) => device.submit(now, id, io),
            Self::Ssd(device) => device.submit(now, id, io),
        }
    }

    /// When to poll next; `Instant::FAR_FUTURE` when nothing is under way.
    #[inline]
    pub fn next_event(&self) -> Instant {
        match self {
            Self::Store(device) => device.next_event(),
            Self::Ssd(device) => device.next_event(),
        }
    }

    /// The next request that has completed by `now`, in order of completion; call until `None`.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        match self {
            Self::Store(device) => device.poll(now),
            Self::Ssd(device) => device.poll(now),
        }
    }

    /// Stops everything for `length` from `now`.
    pub fn stall(&mut self, now: Instant, length: evenkeel_control::Duration) {
        match self {
            Self::Store(device) => device.stall(now, length),
            Self::Ssd(device) => device.stall(now, length),
        }
    }

    /// Changes the parameters; those of another kind of device change nothing.
    pub fn set_params(&mut self, now: Instant, params: &DeviceParams) {
        match (self, params) {
            (Self::Store(device), DeviceParams::Store(params)) => device.set_params(now, *params),
            (Self::Ssd(device), DeviceParams::Ssd(params)) => device.set_params(now, *params),
            (Self::Store(_) | Self::Ssd(_), _) => {}
        }
    }
}
