//! `/proc/diskstats`: the figures of each block device between two readings, from the kernel's running totals.
//!
//! The format is that of the kernel's `Documentation/admin-guide/iostats.rst`. Totals of requests and sectors are as wide as
//! the kernel's `unsigned long` and wrap at 32 bits on 32-bit kernels; times are printed as 32 bits of milliseconds on every
//! kernel and wrap after 49.7 days of summed waiting. The kernel cuts times to whole milliseconds when it prints them, so the
//! mean latency of n requests in an interval is exact to 1 ms / n; over several intervals the errors cancel.
//!
//! | module | what it is |
//! |---|---|
//! | `text` | lines of the file, and what is wrong with one |
//! | `digits` | numbers as the kernel prints them, many at a time |
//! | `flow` | how totals moved between two readings |
//! | `tracker` | every device from reading to reading |

mod digits;
mod flow;
mod text;
mod tracker;

#[cfg(test)]
mod tests;

pub(crate) use flow::Sum;
pub use flow::{Flow, Reading, Sample};
pub use text::{Line, Totals, parse};
pub use tracker::Tracker;

/// Size of a sector in `/proc/diskstats`, in bytes, also for devices with other sectors.
const SECTOR_BYTES: u64 = 512;

/// The kernel's number of a block device: major and minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Major number: the number of the driver.
    pub major: u32,
    /// Minor number: the number of the device or partition within the driver.
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl std::str::FromStr for DeviceNumber {
    type Err = String;

    /// Reads `MAJOR:MINOR`, as in `/sys/block/NAME/dev`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.trim().split_once(':');
        let number = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = number.ok_or_else(|| format!("{:?} is not MAJOR:MINOR such as 259:0", text.trim()))?;
        Ok(Self { major, minor })
    }
}
