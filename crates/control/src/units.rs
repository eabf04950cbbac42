//! What a request asks of a device, and the rates it is promised in.

/// What kind of work a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Data from the device.
    Read,
    /// Data to the device.
    Write,
    /// Make completed writes durable.
    Flush,
    /// Metadata work without data: trim, write zeroes, cache hints, block status.
    Meta,
}

impl Kind {
    /// The way its data goes; `None` where it moves none.
    #[inline]
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Self::Read => Some(Direction::Read),
            Self::Write => Some(Direction::Write),
            Self::Flush | Self::Meta => None,
        }
    }
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the device: [`Kind::Read`].
    Read,
    /// To the device: [`Kind::Write`].
    Write,
}

impl Direction {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];
}

/// What a request asks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What kind of work it is.
    pub kind: Kind,
    /// Payload bytes that cross the device interface; 0 for [`Kind::Flush`] and [`Kind::Meta`].
    pub bytes: u32,
}

/// A pair of rates that hold together; 0 stands for "not set" in either place.
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

    /// Whether neither rate is set.
    pub const fn is_unset(&self) -> bool {
        self.iops == 0 && self.bytes_per_s == 0
    }
}
