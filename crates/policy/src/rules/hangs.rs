//! Rules on values with which clients would seem to hang. They are valid, but hardly ever intended.

use evenkeel_control::admission::Config as Admission;

use super::Findings;
use crate::config::{Guarantee, Limit, Pool, Tenant, Volume};
use crate::units::{Bytes, Duration};

/// The usual size of a request: the page of a file system. With a limit below one such request per second every client waits
/// for seconds.
const USUAL_REQUEST: Bytes = Bytes(4096);

/// Checks rates, times and budgets of a pool for values with which clients would seem to hang.
pub(super) fn of_pool(name: &str, pool: &Pool, out: &mut Findings) {
    rate(pool.limit.bytes_per_s, &["pools", name, "limit", "bytes_per_s"], out);
    if let Some(emulate) = &pool.emulate {
        let at = |key| ["pools", name, "emulate", key];
        rate(Bytes(emulate.bandwidth_bytes_per_s), &at("bandwidth"), out);
        for (key, time) in [
            ("read_latency", emulate.read_latency),
            ("write_latency", emulate.write_latency),
            ("commit_latency", emulate.commit_latency),
        ] {
            latency(time, &at(key), out);
        }
    }
    if let Some((key, message)) = budget_that_hangs(&pool.tuning.admission, pool.tuning.base_cost) {
        out.hangs(&["pools", name, "tuning", "admission", key], message);
    }
}

/// Checks rates of a tenant, those for all pools and those for single pools.
pub(super) fn of_tenant(name: &str, tenant: &Tenant, out: &mut Findings) {
    // A limit enforces a guarantee.
    rates(Some(tenant.limit), Some(tenant.guarantee), &["tenants", name], out);
    for (pool, own) in &tenant.pools {
        rates(own.limit, own.guarantee, &["tenants", name, "pools", pool], out);
    }
}

/// Checks the limit of a volume.
pub(super) fn of_volume(name: &str, volume: &Volume, out: &mut Findings) {
    rates(Some(volume.limit), None, &["volumes", name], out);
}

fn rates(limit: Option<Limit>, guarantee: Option<Guarantee>, at: &[&str], out: &mut Findings) {
    if let Some(limit) = limit {
        rate(limit.bytes_per_s, &[at, &["limit", "bytes_per_s"]].concat(), out);
    }
    if let Some(guarantee) = guarantee {
        rate(guarantee.bytes_per_s, &[at, &["guarantee", "bytes_per_s"]].concat(), out);
        directions(&guarantee, &[at, &["guarantee"]].concat(), out);
    }
}

fn directions(guarantee: &Guarantee, at: &[&str], out: &mut Findings) {
    for (direction, of) in [("read", guarantee.read), ("write", guarantee.write)] {
        rate(of.bytes_per_s, &[at, &[direction, "bytes_per_s"]].concat(), out);
        if of.bytes_per_s.0 > 0 {
            rate(of.ceiling.unwrap_or_default(), &[at, &[direction, "ceiling"]].concat(), out);
        }
    }
}

fn rate(rate: Bytes, path: &[&str], out: &mut Findings) {
    if let Some(message) = rate_that_hangs(rate) {
        out.hangs(path, message);
    }
}

/// The fault of a limit in bytes per second with which clients wait for seconds; `None` for a usable limit, and for 0, which
/// means no limit.
pub fn rate_that_hangs(rate: Bytes) -> Option<String> {
    if rate.0 == 0 || rate >= USUAL_REQUEST {
        return None;
    }
    // A value of 2KiB or 1kB has its unit.
    let written = rate.0.is_multiple_of(1_000) || rate.0.is_multiple_of(1 << 10);
    let unit = if written { String::new() } else { format!("; is a unit missing, as in \"{}MB\"?", rate.0) };
    Some(format!(
        "{rate} a second is less than one request of {USUAL_REQUEST} a second, so that clients would wait for seconds; use at least {USUAL_REQUEST}{unit}"
    ))
}

/// Checks the latency of an emulated device for each request.
fn latency(time: Duration, path: &[&str], out: &mut Findings) {
    let second = Duration::from_secs(1);
    if time > second {
        let message = format!(
            "with {time} for a request, a client that sends one request after the other gets less than one a second; use at most \"{second}\""
        );
        out.hangs(path, message);
    }
}

/// The key and the fault of an admission budget that is smaller than one request; `None` for a usable budget. A request costs
/// `base_cost` on top of its bytes.
pub fn budget_that_hangs(admission: &Admission, base_cost: Bytes) -> Option<(&'static str, String)> {
    let (key, budget) = match admission {
        Admission::Fixed { budget_bytes } => ("budget", Bytes(*budget_bytes)),
        Admission::SlowFast(settings) => ("budget_max", Bytes(settings.budget_max_bytes)),
        _ => return None,
    };
    let request = Bytes(USUAL_REQUEST.0.saturating_add(base_cost.0));
    (budget < request).then(|| {
        let message = format!(
            "{budget} is below the cost of one request, {USUAL_REQUEST} and base_cost ({request} in all), so that only one is in flight at a time; use at least {request}, for example \"512KiB\""
        );
        (key, message)
    })
}
