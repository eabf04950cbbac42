//! Options that several commands share: those of limits and latency targets, and the values of hours and weights.

use anyhow::ensure;
use clap::Args;
use clap::builder::PossibleValuesParser;
use evenkeel_policy::hours::Hours;
use evenkeel_policy::units::{Bytes, Duration, UnitError};
use serde_json::{Value, json};

use super::{given, whole};
use crate::output::Usage;

/// Options of a limit; what is left out stays as it is.
#[derive(Args, Default)]
pub(crate) struct LimitOptions {
    /// Requests per second at most; 0 = no limit
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    limit_iops: Option<u64>,
    /// Bytes per second at most, for example 200MB; 0 = no limit
    #[arg(long, value_name = "BYTES")]
    limit_bytes_per_s: Option<Bytes>,
    /// Unused limit that may be saved up, as time at the limit, for example 50ms
    #[arg(long, value_name = "TIME")]
    limit_burst: Option<Duration>,
    /// Hours of the day in which the limit applies, by the host's clock, for example 22:00-06:00; "none" = all hours
    #[arg(long, value_parser = parse_hours, value_name = "HOURS")]
    limit_when: Option<Value>,
}

impl LimitOptions {
    /// The limit for the request; `None` if no option was given. Hours that are null are removed.
    pub(super) fn patch(&self) -> Option<Value> {
        given([
            ("iops", self.limit_iops.map(Value::from)),
            ("bytes_per_s", self.limit_bytes_per_s.map(|rate| json!(rate))),
            ("burst", self.limit_burst.map(|burst| json!(burst))),
            ("when", self.limit_when.clone()),
        ])
    }
}

/// Options of a latency target; what is left out stays as it is.
#[derive(Args, Default)]
pub(crate) struct LatencyOptions {
    /// Latency target, for example 10ms@99 (percentile) or 10ms@mean; 10ms keeps the present percentile; "none" = no
    /// target. That of a tenant needs a pool with slots
    #[arg(long, value_parser = parse_latency, value_name = "TIME[@PERCENTILE]")]
    latency: Option<Value>,
    /// Requests whose latency counts [default: all of a tenant, reads of a pool]
    #[arg(long, value_parser = PossibleValuesParser::new(["reads", "writes", "all"]))]
    latency_of: Option<String>,
}

impl LatencyOptions {
    /// The latency target for the request, null for none; `None` if no option was given.
    ///
    /// # Errors
    /// If the target is removed, and its requests are named.
    pub(super) fn patch(&self) -> anyhow::Result<Option<Value>> {
        let Some(of) = &self.latency_of else { return Ok(self.latency.clone()) };
        let mut target = self.latency.clone().unwrap_or_else(|| json!({}));
        let message = "--latency none removes the target that --latency-of changes; leave out one of the two";
        ensure!(target.is_object(), Usage(message.into()));
        target["of"] = json!(of);
        Ok(Some(target))
    }
}

/// Parses `TIME[@PERCENTILE]`; null for none.
fn parse_latency(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let (time, percentile) = text.split_once('@').map_or((text, None), |(time, percentile)| (time, Some(percentile)));
    let target: Duration = time.parse().map_err(|error: UnitError| error.to_string())?;
    let percentile = match percentile {
        // The server keeps the present one: a target for p99 would silently become one for the mean.
        None => return Ok(json!({ "target": target })),
        Some("mean") => json!("mean"),
        Some(text) => {
            let percent = text.parse::<f64>().ok().filter(|percent| (0.0..100.0).contains(percent));
            json!(percent.ok_or_else(|| format!("{text:?} is not a percentile; write for example 10ms@99"))?)
        }
    };
    Ok(json!({ "target": target, "percentile": percentile }))
}

/// Parses hours of the day as the configuration does; null for none.
fn parse_hours(text: &str) -> Result<Value, String> {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let hours: Hours = text.parse().map_err(|error: UnitError| error.to_string())?;
    Ok(json!(hours))
}

/// Parses `WEIGHT@HOURS`; null for none.
pub(super) fn parse_weight_at(text: &str) -> Result<Value, String> {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let (weight, hours) = text.split_once('@').ok_or("write WEIGHT@HOURS, for example 8@22:00-06:00")?;
    let hours: Hours = hours.parse().map_err(|error: UnitError| error.to_string())?;
    Ok(json!({ "weight": whole::<u32>(weight)?, "when": hours }))
}

/// True if the value of an option removes a setting.
fn is_none(text: &str) -> bool {
    text.is_empty() || text == "none"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_target_is_a_time_and_perhaps_a_percentile() {
        for (text, percentile) in [("10ms@mean", json!("mean")), ("10ms@99.9", json!(99.9))] {
            assert_eq!(parse_latency(text).expect(text), json!({ "target": "10ms", "percentile": percentile }));
        }
        assert_eq!(parse_latency("10ms"), Ok(json!({ "target": "10ms" })), "the percentile stays");
        assert_eq!(parse_latency("none"), Ok(Value::Null));
        for text in ["10", "10ms@", "10ms@p99", "10ms@nan", "10ms@100", "@99"] {
            assert!(parse_latency(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_latency_target_may_name_its_requests() {
        let patch = |latency: Option<Value>, of: Option<&str>| {
            LatencyOptions { latency, latency_of: of.map(str::to_owned) }.patch()
        };
        assert_eq!(patch(None, None).expect("nothing"), None);
        assert_eq!(patch(Some(Value::Null), None).expect("no target"), Some(Value::Null));
        assert_eq!(patch(None, Some("writes")).expect("requests"), Some(json!({ "of": "writes" })));
        let both = patch(Some(json!({ "target": "10ms" })), Some("all")).expect("both");
        assert_eq!(both, Some(json!({ "target": "10ms", "of": "all" })));
        assert!(patch(Some(Value::Null), Some("all")).is_err_and(|error| error.is::<Usage>()));
    }

    #[test]
    fn hours_are_those_of_the_configuration_and_none_removes_them() {
        assert_eq!(parse_hours("22:00 - 06:00"), Ok(json!("22:00-06:00")));
        assert_eq!(parse_weight_at("8@18:00-24:00"), Ok(json!({ "weight": 8, "when": "18:00-24:00" })));
        for parse in [parse_hours, parse_weight_at] {
            assert_eq!([parse("none"), parse("")], [Ok(Value::Null), Ok(Value::Null)]);
        }
        for text in ["22-06", "8@22:00-06:00", "08:00-08:00"] {
            let refused = parse_hours(text);
            assert!(refused.is_err_and(|error| error.contains("write for example \"22:00-06:00\"")), "{text}");
        }
        for text in ["8", "@22:00-06:00", "8@", "-1@22:00-06:00", "8@none"] {
            assert!(parse_weight_at(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_has_what_was_given() {
        assert_eq!(LimitOptions::default().patch(), None);
        let hours = LimitOptions {
            limit_iops: Some(500),
            limit_burst: Some(Duration::from_millis(50)),
            limit_when: Some(json!("22:00-06:00")),
            ..LimitOptions::default()
        };
        assert_eq!(hours.patch(), Some(json!({ "iops": 500, "burst": "50ms", "when": "22:00-06:00" })));
        let none = LimitOptions { limit_when: Some(Value::Null), ..LimitOptions::default() };
        assert_eq!(none.patch(), Some(json!({ "when": null })));
    }
}
