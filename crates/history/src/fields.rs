//! Figures as a list of numbers, and a prediction of each, of which samples are encoded as the difference.

use crate::figures::{Figures, Gauge};

/// Number of figures of a sample. Those that change each second come first, so that their bits fit into one byte.
pub(crate) const FIELDS: usize = 28;
const REQUESTS: usize = 0;
const BYTES: usize = 1;
const LATENCY: usize = 2;
/// Sums of the gauges.
const SUMS: usize = 6;
const ERRORS: usize = 13;
/// Seconds of the gauges.
const SECONDS: usize = 14;
/// Maxima of the gauges.
const MAXIMA: usize = 21;

/// The figures in the order in which they are encoded.
pub(crate) fn fields(figures: &Figures) -> [u64; FIELDS] {
    let Figures { requests, bytes, errors, latency_us, p50_us, p99_us, p999_us, .. } = *figures;
    let Figures { queued, in_flight, budget, slots, limit_iops, limit_bytes_per_s, delay_us, .. } = *figures;
    let mut fields = [0; FIELDS];
    fields[..SUMS].copy_from_slice(&[requests, bytes, latency_us, p50_us, p99_us, p999_us]);
    fields[ERRORS] = errors;
    let gauges = [in_flight, queued, slots, delay_us, limit_iops, limit_bytes_per_s, budget];
    for (n, gauge) in gauges.into_iter().enumerate() {
        fields[SUMS + n] = gauge.sum;
        fields[SECONDS + n] = gauge.seconds;
        fields[MAXIMA + n] = gauge.max;
    }
    fields
}

/// The figures with these fields.
pub(crate) fn figures(fields: &[u64; FIELDS]) -> Figures {
    let gauge = |n: usize| Gauge { seconds: fields[SECONDS + n], sum: fields[SUMS + n], max: fields[MAXIMA + n] };
    Figures {
        requests: fields[REQUESTS],
        bytes: fields[BYTES],
        errors: fields[ERRORS],
        latency_us: fields[LATENCY],
        p50_us: fields[3],
        p99_us: fields[4],
        p999_us: fields[5],
        in_flight: gauge(0),
        queued: gauge(1),
        slots: gauge(2),
        delay_us: gauge(3),
        limit_iops: gauge(4),
        limit_bytes_per_s: gauge(5),
        budget: gauge(6),
    }
}

/// The value that field `n` is expected to have, from those before it in the same sample and from the previous sample of the
/// series: requests keep size and latency, a maximum its distance from the mean, all else its value.
pub(crate) fn predicted(n: usize, now: &[u64; FIELDS], before: &[u64; FIELDS]) -> u64 {
    match n {
        BYTES | LATENCY => now[REQUESTS].wrapping_mul(before[n] / before[REQUESTS].max(1)),
        MAXIMA.. => {
            let gauge = n - MAXIMA;
            let mean = |fields: &[u64; FIELDS]| match fields[SECONDS + gauge] {
                // At a resolution of a second, where most of the work is, without a division.
                0 | 1 => fields[SUMS + gauge],
                seconds => fields[SUMS + gauge] / seconds,
            };
            mean(now).wrapping_add(before[n].wrapping_sub(mean(before)))
        }
        _ => before[n],
    }
}
