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
