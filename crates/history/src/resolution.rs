//! Resolutions and streams: how finely data are kept, for how long, and in files of which length.

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;

/// A resolution at which samples are kept, finest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// One second, kept for an hour.
    Second,
    /// Ten seconds, kept for six hours.
    TenSeconds,
    /// One minute, kept for three days.
    Minute,
    /// Ten minutes, kept for thirty days.
    TenMinutes,
}

impl Resolution {
    /// All resolutions, finest first.
    pub const ALL: [Self; 4] = [Self::Second, Self::TenSeconds, Self::Minute, Self::TenMinutes];

    /// Length of one step, in seconds.
    pub const fn seconds(self) -> u64 {
        Stream::of(self).step
    }

    /// Least time for which data are kept, in seconds, if the bound of the history has room for them. Files are removed as a
    /// whole, so that data are kept for up to one length of a file longer.
    pub const fn kept_s(self) -> u64 {
        Stream::of(self).kept_s
    }
}

/// A sequence of files: samples at one resolution, or marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Position in lists of all streams.
    pub(crate) index: usize,
    /// The number that stands for the stream in names and heads of files.
    pub(crate) code: u16,
    /// Length of a block, in seconds.
    pub(crate) step: u64,
    /// Length of a file, in seconds; a file begins anew at each multiple.
    pub(crate) span_s: u64,
    /// Time for which data are kept if there is room, in seconds.
    pub(crate) kept_s: u64,
}

impl Stream {
    /// All streams, in the order of [`Stream::index`]: the resolutions, and the marks.
    pub(crate) const ALL: [Self; 5] = [
        Self { index: 0, code: 1, step: 1, span_s: 300, kept_s: HOUR_S },
        Self { index: 1, code: 10, step: 10, span_s: HOUR_S, kept_s: 6 * HOUR_S },
        Self { index: 2, code: 60, step: 60, span_s: 6 * HOUR_S, kept_s: 3 * DAY_S },
        Self { index: 3, code: 600, step: 600, span_s: DAY_S, kept_s: 30 * DAY_S },
        Self::MARKS,
    ];
    /// Decisions and troubles.
    pub(crate) const MARKS: Self = Self { index: 4, code: 0, step: 1, span_s: DAY_S, kept_s: 30 * DAY_S };

    /// The stream of samples at a resolution.
    pub(crate) const fn of(resolution: Resolution) -> Self {
        Self::ALL[resolution as usize]
    }
}
