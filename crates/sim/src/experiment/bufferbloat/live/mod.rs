//! Admission control on a running server: the settings that `evenkeel demo bufferbloat` measures, and conclusions from
//! the figures.
//!
//! Each setting has an emulated device of its own. A bulk writer keeps 4 MiB in flight; a light client with the higher
//! priority writes 4 KiB at a time. mClock would serve the light client first, but can reorder only requests that have
//! not been sent to the device. Admission control decides how many requests are in flight in the device.

mod picture;
mod svg;

use serde::Serialize;

pub use picture::{page, text};
pub use svg::svg;

/// A setting of admission control, which bounds the bytes in flight.
pub struct Setting {
    /// Name in results.
    pub name: &'static str,
    /// Value of the pool's `admission` key, in TOML.
    pub admission: &'static str,
    /// Seconds of load before the first measurement, in which the setting finds its operating point.
    warmup_s: u32,
}

/// All settings, in the order in which they are measured.
pub const SETTINGS: [Setting; 8] = [
    Setting { name: "none", admission: "\"none\"", warmup_s: 1 },
    Setting { name: "64K", admission: "{ kind = \"fixed\", budget = \"64KiB\" }", warmup_s: 1 },
    Setting { name: "256K", admission: "{ kind = \"fixed\", budget = \"256KiB\" }", warmup_s: 1 },
    Setting { name: "1M", admission: "{ kind = \"fixed\", budget = \"1MiB\" }", warmup_s: 1 },
    Setting { name: "4M", admission: "{ kind = \"fixed\", budget = \"4MiB\" }", warmup_s: 1 },
    Setting { name: "64M", admission: "{ kind = \"fixed\", budget = \"64MiB\" }", warmup_s: 1 },
    Setting { name: "slowfast", admission: "\"slowfast\"", warmup_s: 8 },
    Setting { name: "elastic", admission: "\"elastic\"", warmup_s: 4 },
];

/// Seconds of load before each later measurement, in which an adaptive setting adapts to the changed device or load.
const SETTLE_S: u32 = 3;

impl Setting {
    /// Seconds of load before the measurement of phase number `phase`; phases count from 0.
    pub fn warmup_s(&self, phase: usize) -> u32 {
        if phase == 0 { self.warmup_s } else { SETTLE_S }
    }
}

/// The requests that the bulk writer keeps in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// Size of a request, KiB.
    pub block_kib: u32,
    /// Queue depth: requests that the writer keeps in flight.
    pub depth: u32,
}

impl Bulk {
    /// The default load, which `--bulk` replaces: 64 requests in flight, of 64 KiB each.
    pub const USUAL: Self = Self { block_kib: 64, depth: 64 };
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

impl std::str::FromStr for Bulk {
    type Err = String;

    /// Parses text such as `64Kx64`: the size of a request in KiB, and the number of requests in flight.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(['x', 'X']).and_then(|(size, depth)| {
            Some(Self { block_kib: size.strip_suffix(['k', 'K'])?.parse().ok()?, depth: depth.parse().ok()? })
        });
        let parsed =
            parsed.ok_or_else(|| "write request size in KiB and queue depth, for example 64Kx64".to_string())?;
        if !(4..=1024).contains(&parsed.block_kib) || parsed.block_kib % 4 != 0 {
            return Err("the size of a request, before the x, must be a multiple of 4K, up to 1024K".into());
        }
        if !(1..=1024).contains(&parsed.depth) {
            return Err("the number of requests in flight, after the x, must be 1 to 1024".into());
        }
        Ok(parsed)
    }
}

/// The device's speed and the bulk writer's load during one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Speed of the device, as a multiple of its usual speed.
    pub speed: f64,
    /// The bulk writer's load.
    pub bulk: Bulk,
}

/// The phases in order: phase n has the n-th of `speeds` and of `bulk`. The shorter list is continued with its last value.
pub fn phases(speeds: &[f64], bulk: &[Bulk]) -> Vec<Phase> {
    let at = |index: usize| {
        let speed = *speeds.get(index).or(speeds.last())?;
        let bulk = *bulk.get(index).or(bulk.last())?;
        Some(Phase { speed, bulk })
    };
    (0..speeds.len().max(bulk.len())).filter_map(at).collect()
}

/// The clients' figures under one setting in one phase.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the setting.
    pub setting: &'static str,
    /// Speed of the device, as a multiple of its usual speed.
    pub speed: f64,
    /// The bulk writer's load.
    pub bulk: Bulk,
    /// Admission budget at the end of the measurement, in bytes; absent for a setting without a bound.
    pub budget_bytes: Option<u64>,
    /// Median latency of the light client while it sends one request at a time, in ms.
    pub light_p50_ms: f64,
    /// p99 latency of the light client while it sends one request at a time, in ms.
    pub light_p99_ms: f64,
    /// p99 latency of the light client while it sends bursts of 8 requests at a time, in ms.
    pub burst_p99_ms: f64,
    /// Throughput of the bulk writer, in bytes per second.
    pub bulk_bytes_per_s: f64,
}

impl Measured {
    /// True if the setting adapts its budget.
    fn adapts(&self) -> bool {
        matches!(self.setting, "slowfast" | "elastic")
    }

    fn phase(&self) -> Phase {
        Phase { speed: self.speed, bulk: self.bulk }
    }

    /// The setting's name, followed by the device's speed and the bulk writer's load where these differ from the defaults.
    fn label(&self) -> String {
        let mut label = self.setting.to_string();
        if self.speed != 1.0 {
            label += &format!(" x{}", self.speed);
        }
        if self.bulk != Bulk::USUAL {
            label += &format!(" {}", self.bulk);
        }
        label
    }
}

/// Conclusions from the measurements, as text: first those about the first phase, then a comparison over all phases.
pub fn conclusions(measured: &[Measured]) -> String {
    let first = measured.first().map(Measured::phase);
    let at_first: Vec<Measured> = measured.iter().filter(|measured| Some(measured.phase()) == first).cloned().collect();
    findings(&at_first) + &over_all_phases(measured)
}

/// Text that compares the setting `elastic` with every fixed budget over phases that differ in the device's speed or the load.
fn over_all_phases(measured: &[Measured]) -> String {
    /// Relative difference up to which two figures count as equal; two runs of one setting differ by about this share.
    const SAME: f64 = 0.05;
    let of = |name| measured.iter().filter(move |measured: &&Measured| measured.setting == name);
    let mut text = String::new();
    for setting in SETTINGS.iter().filter(|setting| !matches!(setting.name, "slowfast" | "elastic")) {
        let pairs: Vec<_> = of("elastic").zip(of(setting.name)).collect();
        if pairs.len() < 2 || pairs.iter().any(|(elastic, fixed)| elastic.phase() != fixed.phase()) {
            continue;
        }
        let mean = |figure: fn(&Measured) -> f64| {
            let logs = pairs.iter().map(|(elastic, fixed)| libm::log(figure(elastic) / figure(fixed).max(1e-9)));
            libm::exp(logs.sum::<f64>() / pairs.len() as f64)
        };
        let (p99, bulk) = (mean(|measured| measured.light_p99_ms), mean(|measured| measured.bulk_bytes_per_s));
        let (lost, won) = (p99 > 1.0 + SAME || bulk < 1.0 - SAME, p99 < 1.0 - SAME || bulk > 1.0 + SAME);
        let verdict = match (won, lost) {
            (true, false) => "elastic is better",
            (false, true) => "elastic is worse",
            (true, true) => "elastic is better in one figure and worse in the other",
            (false, false) => "no difference",
        };
        text += &format!(
            "Over all phases, elastic in place of {} multiplies the light client's 99th percentile by {p99:.2}, the bulk \
             writer's throughput by {bulk:.2} (geometric means): {verdict}.\n",
            setting.name
        );
    }
    text
}

/// Conclusions about one phase, as sentences that depend on the figures.
fn findings(measured: &[Measured]) -> String {
    let find = |name: &str| measured.iter().find(|measured| measured.setting == name);
    let Some(none) = find("none") else { return String::new() };
    let mut text = format!(
        "Without admission control everything that the bulk writer sends is in flight at once, and the light \
         client, though it has priority, waits behind these requests ({}).\n",
        latency(none)
    );
    if let Some(small) = find("64K") {
        text += &format!(
            "With a budget of 64 KiB the light client waits {}, but the bulk writer keeps only {:.0} % of its \
             throughput.\n",
            latency(small),
            percent(small, none)
        );
    }
    for (setting, name) in [("slowfast", "SlowFast CoDel"), ("elastic", "Elastic")] {
        let Some(adaptive) = find(setting) else { continue };
        let budget = adaptive.budget_bytes.map_or_else(|| "?".into(), kib);
        let ratio = none.light_p50_ms / adaptive.light_p50_ms.max(1e-6);
        let (figure, verdict) = if ratio >= 1.0 {
            (ratio, "times shorter at the median than without admission control")
        } else {
            (1.0 / ratio, "times longer at the median than without admission control: this method did not help")
        };
        text += &format!(
            "{name} found a budget by itself ({budget} at the end). The light client waits {}: {figure:.1} {verdict}. \
             The bulk writer keeps {:.0} % of its throughput.\n",
            latency(adaptive),
            percent(adaptive, none)
        );
    }
    text
}

fn latency(measured: &Measured) -> String {
    format!("{:.1} ms at the median, {:.1} ms at the 99th percentile", measured.light_p50_ms, measured.light_p99_ms)
}

fn percent(some: &Measured, of: &Measured) -> f64 {
    some.bulk_bytes_per_s / of.bulk_bytes_per_s.max(1.0) * 100.0
}

/// A number of bytes as text in KiB.
fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

#[cfg(test)]
impl Measured {
    /// Figures of a setting at the usual speed and load, without a budget.
    fn usual(setting: &'static str) -> Self {
        Self {
            setting,
            speed: 1.0,
            bulk: Bulk::USUAL,
            budget_bytes: None,
            light_p50_ms: 0.5,
            light_p99_ms: 50.0,
            burst_p99_ms: 3.0,
            bulk_bytes_per_s: 50e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(setting: &'static str, light_p50_ms: f64, bulk_bytes_per_s: f64) -> Measured {
        let budget_bytes = (setting != "none").then_some(400 << 10);
        Measured { budget_bytes, light_p50_ms, bulk_bytes_per_s, ..Measured::usual(setting) }
    }

    #[test]
    fn by_default_it_takes_less_than_a_minute() {
        let seconds: u32 = SETTINGS.iter().map(|setting| setting.warmup_s + 5).sum();
        assert!(seconds < 60, "{seconds} s");
    }

    #[test]
    fn over_all_phases_elastic_is_judged_by_both_figures() {
        let at =
            |setting, speed, p99: f64, bulk: f64| Measured { speed, light_p99_ms: p99, ..measured(setting, 1.0, bulk) };
        let all = |p99, bulk| {
            vec![
                at("64K", 1.0, 4.0, 50e6),
                at("64K", 0.4, 9.0, 30e6),
                at("elastic", 1.0, p99, bulk),
                at("elastic", 0.4, 9.0, 30e6),
            ]
        };
        assert!(
            over_all_phases(&all(4.0, 100e6))
                .contains("by 1.00, the bulk writer's throughput by 1.41 (geometric means): elastic is better")
        );
        assert!(over_all_phases(&all(8.0, 100e6)).contains("elastic is better in one figure and worse in the other"));
        assert!(over_all_phases(&all(8.0, 50e6)).contains("elastic is worse"));
        assert!(over_all_phases(&all(4.0, 51e6)).contains("no difference"));
        assert_eq!(over_all_phases(&all(4.0, 51e6)[1..]), "", "measured at one speed only");
        assert_eq!(all(1.0, 1e6)[1].label(), "64K x0.4");
    }

    #[test]
    fn the_sentences_follow_the_figures() {
        let mut all = vec![measured("none", 40.0, 90e6), measured("64K", 2.0, 30e6), measured("slowfast", 8.0, 81e6)];
        let text = findings(&all);
        assert!(text.contains("8.0 ms at the median") && text.contains("5.0 times shorter"), "{text}");
        assert!(text.contains("keeps 90 % of its throughput"), "{text}");
        assert!(text.contains("33 % of its throughput") && text.contains("400 KiB at the end"), "{text}");
        all[2].light_p50_ms = 80.0;
        assert!(findings(&all).contains("2.0 times longer"), "{}", findings(&all));
        all[2].setting = "elastic";
        assert!(findings(&all).contains("Elastic found a budget"), "{}", findings(&all));
    }

    #[test]
    fn the_shorter_list_stays_at_its_last_value() {
        let of = |speed, block_kib, depth| Phase { speed, bulk: Bulk { block_kib, depth } };
        assert_eq!(phases(&[1.0, 0.5], &[Bulk::USUAL]), [of(1.0, 64, 64), of(0.5, 64, 64)]);
        let three = ["64Kx64", "256kx32", "4Kx512"].map(|text| text.parse().unwrap());
        assert_eq!(phases(&[1.0, 0.5], &three), [of(1.0, 64, 64), of(0.5, 256, 32), of(0.5, 4, 512)]);
    }

    #[test]
    fn wrong_words_are_refused_with_the_cure() {
        for (wrong, why) in [
            ("64K", "for example 64Kx64"),
            ("3Kx1", "multiple of 4K"),
            ("0Kx1", "multiple of 4K"),
            ("4Kx0", "must be 1 to 1024"),
        ] {
            assert!(wrong.parse::<Bulk>().unwrap_err().contains(why), "{wrong}");
        }
    }
}
