//! The SAAT method as published, with its equation for several tenants corrected.
//!
//! C. Wang, D. Sun, Y. Chai and F. Zhou, *Enabling Accurate Performance Isolation on Hybrid Storage Devices in Cloud
//! Environment*, section III. M is the throughput of a stream, A its limit, R its miss rate, T its guarantee, B the bandwidth
//! of the slow device, t_s and t_f the times that the slow and the fast device worked, op the part of t_f during which the
//! slow device worked too:
//!
//! ```text
//! (1)  M = A·t_f / (t_s + t_f − op·t_f)          (4)  t_s·B = Σ R_j·A_j·t_f
//! f₁:  op = 1 − (ΣA / ΣM)·(1 − Σ R_j·M_j / B)
//! f₂:  A_i = T_i·(1 − op) / (1 − Σ R_j·T_j / B)
//! ```
//!
//! The printed equation (5) subtracts a pure number from the reciprocal of a throughput; f₁ and f₂ are what (1) and (4)
//! give, with one op for the device, from sums. With one tenant they are equation (3).
//!
//! Choices where the paper leaves a case open: a negative op counts as 0; where the equation has no solution (Σ R·T ≥ B, or
//! op ≥ 1 because the slow device moved more than B) the algorithm begins anew with A = T; a stream without throughput takes
//! no part; requests are counted with their mean size. The method has no memory: missing throughput is not made up for.

use alloc::vec::Vec;

use super::Reason;
use super::stream::{Device, Interval, Seen, Stream};

pub(super) fn decide(device: &Device, mut streams: Vec<&mut Stream>) {
    let (mut assigned, mut measured, mut slow, mut slow_at_guarantee) = (0.0, 0.0, 0.0, 0.0);
    for stream in &streams {
        let Some((seen, miss_rate)) = usable(stream) else { continue };
        assigned += stream.assigned * seen.unit_bytes;
        measured += seen.rate * seen.unit_bytes;
        slow += miss_rate * seen.rate * seen.unit_bytes;
        slow_at_guarantee += miss_rate * stream.guaranteed * seen.unit_bytes;
    }
    let bandwidth = device.slow_bytes_per_s();
    for stream in &mut streams {
        let Interval::Seen(seen) = stream.interval else {
            let reset = matches!(stream.interval, Interval::Reset);
            stream.keep(if reset { Reason::CountersReset } else { Reason::NotEnoughData });
            continue;
        };
        if seen.rate <= 0.0 {
            stream.keep(Reason::Idle);
            continue;
        }
        let (Some(miss_rate), Some(bandwidth)) = (seen.miss_rate(), bandwidth) else {
            stream.keep(Reason::SlowDeviceUnknown);
            continue;
        };
        let (guaranteed, measured_rate) = (stream.guaranteed, seen.rate);
        // 1 − op, and what is left of the slow device at the guarantee.
        let not_overlapped = (assigned / measured * (1.0 - slow / bandwidth)).min(1.0);
        let left = 1.0 - slow_at_guarantee / bandwidth;
        if not_overlapped > 0.0 && left > 0.0 {
            let limit = guaranteed * not_overlapped / left;
            stream.assign(limit, Reason::Compensating { measured: measured_rate, guaranteed, miss_rate });
        } else {
            stream.assign(guaranteed, Reason::NoSolution { measured: measured_rate, guaranteed });
        }
    }
    for stream in streams {
        stream.interval = Interval::None;
    }
}

/// A stream's figures of the last interval and its miss rate (0 to 1); `None` if the stream had no throughput or its miss rate
/// is not known.
fn usable(stream: &Stream) -> Option<(Seen, f64)> {
    let Interval::Seen(seen) = stream.interval else { return None };
    Some((seen, seen.miss_rate()?)).filter(|_| seen.rate > 0.0)
}
