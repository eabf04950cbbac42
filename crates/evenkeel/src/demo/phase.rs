//! What changes in the course of a demonstration: how fast the device is, and what the bulk writer sends.

use serde::Serialize;

/// What the bulk writer keeps in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bulk {
    /// Size of a request, KiB.
    pub(super) block_kib: u32,
    /// Requests in flight.
    pub(super) depth: u32,
}

impl Bulk {
    pub(super) const USUAL: Self = Self { block_kib: 64, depth: 64 };
}

impl std::fmt::Display for Bulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}Kx{}", self.block_kib, self.depth)
    }
}

impl Serialize for Bulk {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads `64Kx64`.
pub(super) fn bulk(text: &str) -> Result<Bulk, String> {
    let parsed = text.split_once(['x', 'X']).and_then(|(size, depth)| {
        Some(Bulk { block_kib: size.strip_suffix(['k', 'K'])?.parse().ok()?, depth: depth.parse().ok()? })
    });
    let parsed = parsed.ok_or_else(|| "it is a size in KiB and a depth like 64Kx64".to_string())?;
    if !(4..=1024).contains(&parsed.block_kib) || parsed.block_kib % 4 != 0 {
        return Err("the size is a multiple of 4K, up to 1024K".into());
    }
    if !(1..=1024).contains(&parsed.depth) {
        return Err("the depth lies between 1 and 1024".into());
    }
    Ok(parsed)
}

/// How fast the device is and what the bulk writer does, while one measurement lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase {
    /// Speed of the device, 1 as it is usually.
    pub(super) speed: f64,
    /// What the bulk writer does.
    pub(super) bulk: Bulk,
}

/// The phases, in order; the shorter of the two lists stays at its last value.
pub(super) fn phases(speeds: &[f64], bulk: &[Bulk]) -> Vec<Phase> {
    let at = |index: usize| {
        let speed = *speeds.get(index).or(speeds.last())?;
        let bulk = *bulk.get(index).or(bulk.last())?;
        Some(Phase { speed, bulk })
    };
    (0..speeds.len().max(bulk.len())).filter_map(at).collect()
}

/// Reads a factor by which the device is faster.
pub(super) fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "it is a number like 0.4".to_string())?;
    if (0.01..=100.0).contains(&speed) { Ok(speed) } else { Err("it lies between 0.01 and 100".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_list_stays_at_its_last_value() {
        let of = |speed, block_kib, depth| Phase { speed, bulk: Bulk { block_kib, depth } };
        assert_eq!(phases(&[1.0, 0.5], &[Bulk::USUAL]), [of(1.0, 64, 64), of(0.5, 64, 64)]);
        let three = ["64Kx64", "256kx32", "4Kx512"].map(|text| bulk(text).unwrap());
        assert_eq!(phases(&[1.0, 0.5], &three), [of(1.0, 64, 64), of(0.5, 256, 32), of(0.5, 4, 512)]);
    }

    #[test]
    fn wrong_words_are_refused_with_the_cure() {
        for (wrong, why) in [
            ("64K", "like 64Kx64"),
            ("3Kx1", "multiple of 4K"),
            ("0Kx1", "multiple of 4K"),
            ("4Kx0", "between 1 and 1024"),
        ] {
            assert!(bulk(wrong).unwrap_err().contains(why), "{wrong}");
        }
        for wrong in ["0", "fast", "nan", "1000"] {
            assert!(speed(wrong).is_err(), "{wrong}");
        }
    }
}
