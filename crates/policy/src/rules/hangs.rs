//! Values with which clients would seem to hang: right in syntax, and hardly ever meant.

use super::Findings;
use crate::config::{Admission, Pool, Tenant};
use crate::units::Bytes;

/// The request that most clients send, in bytes: the page of a file system. What lets less than one of them through in a
/// second keeps every client waiting for seconds.
const USUAL_REQUEST: Bytes = Bytes(4096);

/// Rates and budgets of a pool.
pub(super) fn of_pool(name: &str, pool: &Pool, out: &mut Findings) {
    rate(pool.limit.bytes_per_s, &["pools", name, "limit", "bytes_per_s"], out);
    if let Some(bandwidth) = pool.emulate.as_ref().and_then(|emulate| emulate.bandwidth) {
        rate(bandwidth, &["pools", name, "emulate", "bandwidth"], out);
    }
    let budget = match &pool.admission {
        Admission::Fixed { budget } => Some(("budget", *budget)),
        Admission::SlowFast(settings) => Some(("budget_max", settings.budget_max)),
        _ => None,
    };
    let request = Bytes(USUAL_REQUEST.0.saturating_add(pool.base_cost.0));
    if let Some((key, budget)) = budget.filter(|(_, budget)| *budget < request) {
        let message = format!(
            "{budget} is below the cost of one request, {USUAL_REQUEST} and base_cost ({request} in all), so that only one is in flight at a time; use at least {request}, for example \"512KiB\""
        );
        out.hangs(&["pools", name, "admission", key], message);
    }
}

/// Rates of a tenant.
pub(super) fn of_tenant(name: &str, tenant: &Tenant, out: &mut Findings) {
    rate(tenant.limit.bytes_per_s, &["tenants", name, "limit", "bytes_per_s"], out);
    // A promise is a limit, too.
    rate(tenant.promise.bytes_per_s, &["tenants", name, "promise", "bytes_per_s"], out);
    rate(tenant.promise.read.bytes_per_s, &["tenants", name, "promise", "read", "bytes_per_s"], out);
    rate(tenant.promise.write.bytes_per_s, &["tenants", name, "promise", "write", "bytes_per_s"], out);
}

fn rate(rate: Bytes, path: &[&str], out: &mut Findings) {
    if rate.0 > 0 && rate < USUAL_REQUEST {
        // Whoever writes 2KiB or 1kB has thought of the unit.
        let written = rate.0.is_multiple_of(1_000) || rate.0.is_multiple_of(1 << 10);
        let unit = if written { String::new() } else { format!("; is a unit missing, as in \"{}MB\"?", rate.0) };
        let message = format!(
            "{rate} a second is less than one request of {USUAL_REQUEST} a second, so that clients would wait for seconds; use at least {USUAL_REQUEST}{unit}"
        );
        out.hangs(path, message);
    }
}
