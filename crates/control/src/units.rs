//! The work of a request for a device, and the rates of reservations and limits.

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request that moves data from the device.
    Read,
    /// A request that moves data to the device.
    Write,
    /// A request to make completed writes durable.
    Flush,
    /// Metadata work without data: trim, write zeroes, cache hints, block status.
    Meta,
}

impl Kind {
    /// The direction in which the request moves data; `None` for kinds that move none.
    #[inline]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Read => Some(Direction::Read),
            Self::Write => Some(Direction::Write),
            Self::Flush | Self::Meta => None,
        }
    }
}

/// The direction in which a request moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the device: [`Kind::Read`].
    Read,
    /// To the device: [`Kind::Write`].
    Write,
}

impl Direction {
    /// Both directions, in order of their numbers (as array indices).
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];
}

/// The position of a piece of work in a client's request. Large requests are divided into slices in front of the scheduler,
/// so that other requests are served between the slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The whole request, undivided.
    #[default]
    Whole,
    /// The first slice of a request: limits in requests per second count the request when this slice passes.
    First,
    /// A slice of a request between its first and its last slice.
    Middle,
    /// The last slice of a request: counts of served requests count the request with this slice.
    Last,
}

impl Part {
    /// True if a request begins with this part.
    #[inline]
    pub const fn begins(self) -> bool {
        matches!(self, Self::Whole | Self::First)
    }

    /// True if a request ends with this part.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Whole | Self::Last)
    }
}

/// A request, or a slice of one, as a device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The kind of the request.
    pub kind: Kind,
    /// Payload bytes that cross the device interface; 0 for [`Kind::Flush`]. For [`Kind::Meta`], the size of a transfer that
    /// would take the device as long as the request: it counts for weights and budget, not for limits.
    pub bytes: u32,
    /// The position of this work in its request.
    pub part: Part,
}

impl Work {
    /// A whole request.
    #[inline]
    pub const fn new(kind: Kind, bytes: u32) -> Self {
        Self { kind, bytes, part: Part::Whole }
    }

    /// Payload bytes, as limits count them: 0 for kinds that move no data.
    #[inline]
    pub const fn payload(&self) -> u32 {
        if self.kind.direction().is_some() { self.bytes } else { 0 }
    }
}

/// A rate in requests and a rate in bytes, which apply at the same time; 0 stands for "not set" in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests per second; 0 = not set.
    pub iops: u64,
    /// Payload bytes per second; 0 = not set.
    pub bytes_per_s: u64,
}

impl Rates {
    /// Neither rate set.
    pub const UNSET: Self = Self { iops: 0, bytes_per_s: 0 };

    /// True if neither rate is set.
    pub const fn is_unset(&self) -> bool {
        self.iops == 0 && self.bytes_per_s == 0
    }
}

/// A fraction of a rate, more than 0 and at most 1, in units of 2⁻³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u64);

impl Fraction {
    /// The whole rate.
    pub const WHOLE: Self = Self(1 << 32);

    /// The fraction nearest to `value` that is not larger; the smallest fraction, 2⁻³², for 0, negative values and NaN.
    pub fn of(value: f64) -> Self {
        // The conversion saturates, and turns NaN into 0.
        Self(((value * Self::WHOLE.0 as f64) as u64).clamp(1, Self::WHOLE.0))
    }

    /// The fraction in units of 2⁻³².
    pub(crate) const fn units(self) -> u64 {
        self.0
    }

    /// This fraction of a rate, rounded up to a whole number; 0 only if the rate is not set.
    pub fn of_rate(self, rate: u64) -> u64 {
        let product = u128::from(rate) * u128::from(self.0);
        u64::try_from(product.div_ceil(u128::from(Self::WHOLE.0))).unwrap_or(u64::MAX)
    }
}

/// The fractions of a tenant's reservation and of its limit that apply here, because other servers have the rest; of each the
/// fraction in requests, and the one in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fractions {
    /// Fractions of the reservation's two rates.
    pub reservation: [Fraction; 2],
    /// Fractions of the limit's two rates.
    pub limit: [Fraction; 2],
}

impl Fractions {
    /// Reservation and limit apply here as a whole.
    pub const WHOLE: Self = Self { reservation: [Fraction::WHOLE; 2], limit: [Fraction::WHOLE; 2] };

    /// The part of a reservation, in whole units.
    pub fn of_reservation(&self, total: Rates) -> Rates {
        of_rates(self.reservation, total)
    }

    /// The part of a limit, in whole units.
    pub fn of_limit(&self, total: Rates) -> Rates {
        of_rates(self.limit, total)
    }
}

fn of_rates([iops, bytes]: [Fraction; 2], total: Rates) -> Rates {
    Rates { iops: iops.of_rate(total.iops), bytes_per_s: bytes.of_rate(total.bytes_per_s) }
}
