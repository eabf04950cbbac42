//! Traces of requests that a disk served one at a time, with measured service times, and the distance of a model from them.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::disk::{BLOCK_BYTES, Disk, DiskParams};

/// A request with its service time, and the time from its completion until the host sent the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) io: Io,
    pub(crate) service: Duration,
    pub(crate) gap: Duration,
}

/// Parses a trace. A line consists of `R` or `W`, a word that is ignored, the first block, the number of blocks, the measured
/// service time in µs, and the time from the completion to the next request in µs.
///
/// # Errors
/// The number of the first invalid line, and the format that is expected.
pub(crate) fn parse(text: &str) -> Result<Vec<Record>, String> {
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    numbered
        .map(|(index, line)| {
            record(line).ok_or_else(|| {
                format!(
                    "line {}: {line:?} is not a request; write for example \"R Hit 1975456 4 15362.0 56074.0\": R or W, \
                     a word, first block, blocks, service time and gap in us",
                    index + 1
                )
            })
        })
        .collect()
}

fn record(line: &str) -> Option<Record> {
    let mut fields = line.split_whitespace();
    let kind = match fields.next()? {
        "R" => Kind::Read,
        "W" => Kind::Write,
        _ => return None,
    };
    fields.next()?;
    let block: u64 = fields.next()?.parse().ok()?;
    let blocks: u64 = fields.next()?.parse().ok()?;
    let mut micros = || -> Option<Duration> {
        let micros: f64 = fields.next()?.parse().ok()?;
        (0.0..=1e12).contains(&micros).then(|| Duration::from_nanos((micros * 1e3).round() as u64))
    };
    let (service, gap) = (micros()?, micros()?);
    let offset = block.checked_mul(BLOCK_BYTES)?;
    let bytes = u32::try_from(blocks.checked_mul(BLOCK_BYTES)?).ok()?;
    fields.next().is_none().then_some(Record { io: Io { kind, offset, bytes }, service, gap })
}

/// Service times of the model for the recorded requests, one at a time, each sent the recorded gap after the completion before.
pub(crate) fn replay(params: &DiskParams, seed: u64, records: &[Record]) -> Vec<Duration> {
    let mut disk = Disk::new(params.clone(), seed);
    let mut now = Instant::ZERO;
    let serve = |record: &Record| {
        disk.submit(now, 0, record.io);
        let issued = now;
        while disk.poll(now).is_none() {
            now = disk.next_event();
        }
        let service = now.since(issued);
        now += record.gap;
        service
    };
    records.iter().map(serve).collect()
}

/// Distance of a model from measured service times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distance {
    pub(crate) measured_mean_ms: f64,
    pub(crate) model_mean_ms: f64,
    /// Root mean square of the horizontal distance between the cumulative distributions of measured and modelled service times
    /// (Ruemmler and Wilkes 1994), in ms.
    pub(crate) demerit_ms: f64,
}

impl Distance {
    /// Amount by which the model's mean exceeds the measured mean, in per cent of the measured; negative if it is below.
    pub(crate) fn mean_percent(&self) -> f64 {
        (self.model_mean_ms / self.measured_mean_ms - 1.0) * 100.0
    }
}

/// Compares the service times of a model with as many measured ones.
pub(crate) fn distance(measured: &[Duration], model: &[Duration]) -> Distance {
    assert_eq!(measured.len(), model.len(), "one service time for every request");
    let sorted = |times: &[Duration]| {
        let mut times: Vec<f64> = times.iter().map(|time| time.as_millis_f64()).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (measured, model) = (sorted(measured), sorted(model));
    let n = measured.len().max(1) as f64;
    let squares: f64 = measured.iter().zip(&model).map(|(a, b)| (a - b) * (a - b)).sum();
    Distance {
        measured_mean_ms: measured.iter().sum::<f64>() / n,
        model_mean_ms: model.iter().sum::<f64>() / n,
        demerit_ms: (squares / n).sqrt(),
    }
}
