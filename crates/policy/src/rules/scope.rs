//! Rules on the hours in which a limit or weight applies (`when`), and on tenants whose volumes are tenants of their own
//! (`each`).

use super::{Findings, MAX_WEIGHT};
use crate::config::{DEFAULT_TENANT, Limit, Match, Tenant};

/// Warns about hours of a limit that has no rate.
pub(super) fn hours(limit: Limit, at: &[&str], out: &mut Findings) {
    if limit.rates().is_unset()
        && let Some(hours) = limit.when
    {
        out.warning(at, format!("applies at {hours} and has no rate; add iops or bytes_per_s, or remove when"));
    }
}

/// Checks the weight of some hours: its range, and that it differs from the weight of the other hours.
pub(super) fn weight_at(tenant: &Tenant, at: &[&str], out: &mut Findings) {
    let Some(own) = tenant.weight_at else { return };
    let path = [at, &["weight"]].concat();
    if !(1..=MAX_WEIGHT).contains(&own.weight) {
        out.error(&path, format!("{} is out of range; use 1 to {MAX_WEIGHT}", own.weight));
    } else if own.weight == tenant.weight {
        let weight = own.weight;
        out.warning(
            &path,
            format!("{weight} is the weight of all other hours too; set another one, or remove weight_at"),
        );
    }
}

/// Checks that the volumes or control groups of a tenant with `each` can be tenants of their own.
pub(super) fn each(name: &str, tenant: &Tenant, out: &mut Findings) {
    let at = ["tenants", name, "each"];
    let other = |entry: &&Match| !entry.is_of_groups() && !matches!(entry, Match::Volume(_));
    out.error_if(
        tenant.each && name == DEFAULT_TENANT,
        &at,
        "is not for the default tenant, to which all other clients belong; name the volumes in match of another tenant",
    );
    if let Some(entry) = tenant.matches.iter().find(other).filter(|_| tenant.each) {
        out.error(
            &at,
            format!("makes tenants of volumes and control groups only, and match has {entry}; give {entry} to another tenant"),
        );
    }
}
