//! Figures of a recording, and recordings without a tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use evenkeel_flight::{Item, Outcome, Reader, Recording, Request, Table, Writer};
use serde_json::Value;

/// Names of the figures that are compared, in the order of [`Measured::figures`].
pub(super) const FIGURES: [&str; 3] = ["IOPS", "p50 ms", "p99 ms"];

/// The figures of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Number of requests.
    pub(super) requests: u64,
    /// Requests per second from the first arrival to the last completion; median and 99th percentile of the latency in ms.
    pub(super) figures: [f64; 3],
}

/// The figures of each tenant as they were recorded.
///
/// # Errors
/// If the file is no whole recording, or a request is missing in it.
pub(super) fn measured(path: &Path) -> Result<BTreeMap<String, Measured>> {
    let recording = Recording::read(path)?;
    ensure!(recording.complete && recording.lost == 0, "{} lost {} requests", path.display(), recording.lost);
    Ok(of(&recording))
}

fn of(recording: &Recording) -> BTreeMap<String, Measured> {
    let mut tenants: BTreeMap<u32, Vec<&Request>> = BTreeMap::new();
    for request in &recording.requests {
        // As a replay does.
        if request.outcome != Outcome::Cancelled && !request.retried {
            tenants.entry(request.tenant).or_default().push(request);
        }
    }
    let name = |number| recording.name(Table::Tenant, number).map_or_else(String::new, |name| name.name.clone());
    tenants.into_iter().map(|(number, requests)| (name(number), one(&requests))).collect()
}

/// The figures of requests, of which there is one at least.
fn one(requests: &[&Request]) -> Measured {
    let mut latencies: Vec<u64> = requests.iter().map(|request| request.queue_ns + request.device_ns).collect();
    latencies.sort_unstable();
    let at = |percent: usize| {
        let place = (latencies.len() * percent).div_ceil(100).max(1) - 1;
        latencies[place] as f64 / 1e6
    };
    let from = requests.iter().map(|request| request.arrival_ns).min().unwrap_or(0);
    let ends = requests.iter().map(|request| request.arrival_ns + request.queue_ns + request.device_ns);
    let seconds = (ends.max().unwrap_or(0) - from).max(1) as f64 / 1e9;
    Measured { requests: requests.len() as u64, figures: [requests.len() as f64 / seconds, at(50), at(99)] }
}

/// The figures of each tenant in a document of `evenkeel replay --json`: one of its parts, such as `after`.
///
/// # Errors
/// If a figure is missing.
pub(super) fn simulated(part: &Value) -> Result<BTreeMap<String, Measured>> {
    let tenants = part["tenants"].as_array().context("the replay has no `tenants`")?;
    let one = |tenant: &Value| {
        let missing = |name: &str| format!("a tenant of the replay has no `{name}`");
        let figure = |name: &str| tenant[name].as_f64().with_context(|| missing(name));
        let name = tenant["tenant"].as_str().with_context(|| missing("tenant"))?.to_owned();
        let requests = tenant["requests"].as_u64().with_context(|| missing("requests"))?;
        Ok((name, Measured { requests, figures: [figure("iops")?, figure("p50_ms")?, figure("p99_ms")?] }))
    };
    tenants.iter().map(one).collect()
}

/// Copies a recording without the requests of a tenant.
///
/// # Errors
/// If the input is no recording or cannot be read, the output cannot be written, or the tenant is not in the recording.
pub(super) fn without<W: Write>(input: impl Read, output: W, tenant: &str) -> Result<W> {
    let mut reader = Reader::new(input)?;
    let mut writer = Writer::new(output, reader.head())?;
    let (mut numbers, mut dropped) = (BTreeSet::new(), 0_u64);
    while let Some(item) = reader.next()? {
        match &item {
            Item::Name(name) if name.table == Table::Tenant && name.name == tenant => {
                numbers.insert(name.number);
            }
            Item::Request(request) if numbers.contains(&request.tenant) => {
                dropped += 1;
                continue;
            }
            _ => {}
        }
        writer.write(&item)?;
    }
    ensure!(dropped > 0, "the recording has no requests of {tenant}");
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use evenkeel_flight::{Head, Name};
    use serde_json::json;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A recording of two tenants: the first sends a request every 10 ms, which take 1 to 100 ms, the second a single one.
    fn recording() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &Head::default()).unwrap();
        for (number, name) in [(0, "light"), (1, "bulk")] {
            let name = Name { table: Table::Tenant, number, name: name.into(), pool: String::new(), bytes: 0 };
            writer.write(&Item::Name(name)).unwrap();
        }
        for n in 0..101_u64 {
            let request = Request {
                arrival_ns: n * 10 * MS,
                device_ns: (n + 1) * MS,
                tenant: u32::from(n == 100),
                length: 4_096,
                ..Request::default()
            };
            writer.write(&Item::Request(request)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn figures_are_those_of_all_requests_of_a_tenant() {
        let all = of(&Recording::from_input(recording().as_slice()).unwrap());
        let light = all["light"];
        // The last arrives at 990 ms and takes 100 ms.
        assert_eq!((light.requests, light.figures), (100, [100.0 / 1.09, 50.0, 99.0]));
        assert_eq!(all["bulk"].requests, 1);
    }

    #[test]
    fn a_tenant_is_left_out() {
        let bytes = without(recording().as_slice(), Vec::new(), "light").unwrap();
        let rest = of(&Recording::from_input(bytes.as_slice()).unwrap());
        assert_eq!(rest.keys().collect::<Vec<_>>(), ["bulk"]);
        assert!(without(recording().as_slice(), Vec::new(), "other").is_err());
    }

    #[test]
    fn figures_of_a_replay_are_read() {
        let part = json!({"tenants": [{"tenant": "light", "requests": 7, "iops": 2.0, "p50_ms": 3.0, "p99_ms": 4.0}]});
        assert_eq!(simulated(&part).unwrap()["light"], Measured { requests: 7, figures: [2.0, 3.0, 4.0] });
        assert!(simulated(&json!(null)).is_err());
    }
}
