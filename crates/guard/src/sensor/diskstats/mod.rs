//! `/proc/diskstats`: what each block device did, from the kernel's running totals.
//!
//! The format is that of the kernel's `Documentation/admin-guide/iostats.rst`. Totals of requests and sectors are
//! as wide as the kernel's `unsigned long` and wrap at 32 bits on 32-bit kernels; times are printed as 32 bits of
//! milliseconds on every kernel and wrap after 49.7 days of summed waiting. Times are cut to whole milliseconds when
//! printed, so the mean of a few requests is good to 1 ms / requests; over several intervals the cuts cancel.
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

/// Sectors of this file are 512 bytes, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// Major and minor number: what the kernel knows a device by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of the driver.
    pub major: u32,
    /// Number of the device or partition within the driver.
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
        let (major, minor) = number.ok_or_else(|| format!("{:?} is no device number MAJOR:MINOR", text.trim()))?;
        Ok(Self { major, minor })
    }
}
