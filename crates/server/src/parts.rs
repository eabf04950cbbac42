//! The parts of a tenant's totals that apply before the cluster has granted any.

use evenkeel_control::Instant;
use evenkeel_control::pool::guarantee::Scope;
use evenkeel_control::pool::{Pool, TenantId};
use evenkeel_control::units::{Fraction, Fractions};
use evenkeel_policy::Config;
use evenkeel_policy::cluster::guarantee_total;

/// Makes almost nothing of the totals of a tenant that has just joined the pool apply; changes nothing where reservations, limits
/// and guarantees are values for each host.
pub(crate) fn begin<R>(config: &Config, pool: &mut Pool<R>, now: Instant, id: TenantId, name: &str) {
    if !config.cluster.has_totals() {
        return;
    }
    let least = [Fraction::of(0.0); 2];
    pool.set_fractions(now, id, Fractions { reservation: least, limit: least });
    for scope in Scope::ALL {
        if guarantee_total(scope.name(), name).is_some() {
            pool.set_guarantee_part(now, id, scope, least);
        }
    }
}
