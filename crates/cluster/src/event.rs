//! Events beside those of the driver.

use evenkeel_control::exchange::section::Section;

/// Events from the tasks beside the driver.
pub(crate) enum Event {
    /// Changes come from this server from now on; these are all values at present, of the hosts of a section and of sections.
    Watching { endpoint: String, section: Section, all: Vec<(String, Vec<u8>)>, sums: Vec<(String, Vec<u8>)> },
    /// A host said something.
    Said { host: String, value: Vec<u8> },
    /// The sum of a section was published.
    Summed { section: String, value: Vec<u8> },
    /// The key of a host is gone: its lease has ended.
    Ended { host: String },
    /// Changes do not come any more.
    Unwatched { why: String },
    /// Our value was written.
    Written,
    /// Our value was not written.
    Unwritten { why: String },
}
