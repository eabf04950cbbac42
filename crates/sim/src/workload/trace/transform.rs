//! Transforms recorded requests before the replay: selection, shift to time zero, change of speed, new offsets.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::error::{Fault, TraceError};
use super::{MAX_RECORDS, Record};

/// A selection of a trace's requests for replay. The default keeps all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Devices whose requests are kept; empty = all devices.
    pub devices: Vec<u32>,
    /// Requests that were sent less than this long after the trace's first request are left out.
    pub from: Duration,
    /// Requests that were sent this long or longer after the trace's first request are left out.
    pub until: Duration,
    /// Number of requests left out at the start; only requests that the fields above select count.
    pub skip: u64,
    /// The most requests kept, counted after those that `skip` leaves out. Reading ends with the last of them.
    pub count: u64,
}

impl Default for Selection {
    fn default() -> Self {
        Self { devices: Vec::new(), from: Duration::ZERO, until: Duration::MAX, skip: 0, count: u64::MAX }
    }
}

/// The requests of a trace to replay, in order of time. The first one is sent at time zero.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    records: Vec<Record>,
}

/// The error that the device's part is too small to hold a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a size of {span} bytes leaves {share} for each of {devices} devices, but the largest request has {largest}; \
     the size must be at least {needed} bytes"
)]
pub struct CannotRemap {
    /// Size of the device's part, in bytes.
    pub span: u64,
    /// Share of the part that each device of the trace would have, in bytes.
    pub share: u64,
    /// Number of devices in the trace.
    pub devices: u64,
    /// Size of the trace's largest request, in bytes.
    pub largest: u64,
    /// The smallest size of a part that holds the trace, in bytes.
    pub needed: u64,
}

impl Trace {
    /// A trace of `records`, sorted by time; `None` if `records` is empty. Requests of one instant keep their order.
    /// O(n log n).
    pub fn new(mut records: Vec<Record>) -> Option<Self> {
        records.sort_by_key(|record| record.at);
        let first = records.first()?.at;
        for record in &mut records {
            record.at = Instant::ZERO + record.at.since(first);
        }
        Some(Self { records })
    }

    /// A trace of the records that `selection` keeps; `None` if it keeps none.
    ///
    /// # Errors
    /// The reader's first error, or more than [`MAX_RECORDS`] requests.
    pub fn read(
        records: impl Iterator<Item = Result<Record, TraceError>>,
        selection: &Selection,
        file: &str,
    ) -> Result<Option<Self>, TraceError> {
        let (mut kept, mut first, mut passed) = (Vec::new(), None, 0);
        if selection.count == 0 {
            return Ok(None);
        }
        for (read, record) in (1u64..).zip(records) {
            let record = record?;
            let since = record.at.since(*first.get_or_insert(record.at));
            let wanted = selection.devices.is_empty() || selection.devices.contains(&record.device);
            if !wanted || since < selection.from || since >= selection.until {
                continue;
            }
            passed += 1;
            if passed <= selection.skip {
                continue;
            }
            if kept.len() == MAX_RECORDS {
                return Err(TraceError { file: file.into(), line: read, fault: Fault::TooManyRecords });
            }
            kept.push(record);
            if kept.len() as u64 == selection.count {
                break;
            }
        }
        Ok(Self::new(kept))
    }

    /// The requests, in order of time.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Time from the first request to the last.
    pub fn length(&self) -> Duration {
        self.records.last().map_or(Duration::ZERO, |last| last.at.since(Instant::ZERO))
    }

    /// Time from the first request to the first request of the next repetition, so that the mean rate stays the same: the
    /// length of the trace plus the mean gap between requests.
    pub fn period(&self) -> Duration {
        let gaps = self.records.len().saturating_sub(1).max(1) as u64;
        let length = self.length();
        length + Duration::from_nanos(length.as_nanos() / gaps)
    }

    /// Mean requests per second; `None` if all requests have the same instant.
    pub fn rate_per_s(&self) -> Option<f64> {
        let seconds = self.length().as_secs_f64();
        (seconds > 0.0).then(|| (self.records.len() - 1) as f64 / seconds)
    }

    /// Makes the replay `factor` times as fast, by dividing all times. A `factor` that is not above 0 changes nothing.
    pub fn speed_up(&mut self, factor: f64) {
        if factor > 0.0 && factor.is_finite() {
            for record in &mut self.records {
                record.at = Instant::from_nanos((record.at.as_nanos() as f64 / factor + 0.5) as u64);
            }
        }
    }

    /// Maps every offset into the `span` bytes that begin at `offset`, rounded to multiples of `align` bytes.
    ///
    /// Each device of the trace gets an equal share of these bytes, in the order of the devices' numbers. With `span` `None`,
    /// a share is as large as the largest device needs. An offset beyond its device's share wraps around, so that sequential
    /// requests stay sequential.
    ///
    /// # Errors
    /// When the largest request does not fit into a share.
    pub fn remap(&mut self, offset: u64, span: Option<u64>, align: u64) -> Result<(), CannotRemap> {
        let align = align.max(1);
        let mut places: BTreeMap<u32, u64> = self.records.iter().map(|record| (record.device, 0)).collect();
        for (place, slot) in places.values_mut().enumerate() {
            *slot = place as u64;
        }
        let devices = places.len().max(1) as u64;
        let (mut largest, mut extent) = (0, 0);
        for record in &mut self.records {
            record.offset = record.offset / align * align;
            if matches!(record.kind, Kind::Read | Kind::Write) {
                let aligned = u64::from(record.bytes).next_multiple_of(align);
                // An alignment of gigabytes makes no sense, but does no harm.
                record.bytes = u32::try_from(aligned).unwrap_or(record.bytes);
            }
            largest = largest.max(u64::from(record.bytes));
            extent = extent.max(record.offset.saturating_add(record.bytes.into()));
        }
        let share = match span {
            Some(span) => span / devices / align * align,
            None => extent.div_ceil(align).saturating_mul(align),
        };
        if share < largest.max(align) {
            let needed = largest.max(align).next_multiple_of(align).saturating_mul(devices);
            return Err(CannotRemap { span: span.unwrap_or(extent), share, devices, largest, needed });
        }
        for record in &mut self.records {
            let start = share.saturating_mul(places.get(&record.device).copied().unwrap_or(0));
            let within = (record.offset % share).min((share - u64::from(record.bytes)) / align * align);
            record.offset = offset.saturating_add(start).saturating_add(within);
        }
        Ok(())
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} requests in {:?})", self.records.len(), self.length())
    }
}
