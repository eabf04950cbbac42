//! The parts of tenants' reservations and limits that apply on one host of a cluster.

use evenkeel_control::units::Fractions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trouble::Trouble;

/// The parts of a tenant's reservation and limit that apply on this host. The totals are in the tenant's `qos`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartsState {
    /// Requests per second of the reservation.
    pub reservation_iops: Option<u64>,
    /// Payload bytes per second of the reservation.
    pub reservation_bytes_per_s: Option<u64>,
    /// Requests per second of the limit.
    pub limit_iops: Option<u64>,
    /// Payload bytes per second of the limit.
    pub limit_bytes_per_s: Option<u64>,
}

impl PartsState {
    /// The record of the parts of a policy; `None` if the policy has no totals, or applies as a whole.
    pub fn of(qos: &evenkeel_control::mclock::Qos, fractions: &Fractions) -> Option<Self> {
        let (reservation, limit) = (fractions.of_reservation(qos.reservation), fractions.of_limit(qos.limit));
        // Fractions of rates that are not set do not matter.
        ((reservation, limit) != (qos.reservation, qos.limit)).then(|| Self {
            reservation_iops: set(reservation.iops),
            reservation_bytes_per_s: set(reservation.bytes_per_s),
            limit_iops: set(limit.iops),
            limit_bytes_per_s: set(limit.bytes_per_s),
        })
    }
}

/// Contact of this host with the cluster, from which its parts of tenants' totals follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TotalsState {
    /// `shared`: by the reports of all members; `none`: no report of this host has come back since its start; `lost`: the
    /// cluster was lost, and parts do not grow; `alone`: the other members keep the parts of this host free. Empty without such
    /// tenants here.
    pub contact: String,
    /// The same as a sentence.
    pub because: String,
    /// Tenants with a reservation, limit or guarantee, counted once for each pool that they use.
    pub tenants: u64,
    /// Totals beyond the number that a report, or the sum of this host's shard, may have, of which this host keeps almost no part.
    pub excess_tenants: u64,
    /// Totals with the parts of all members whose reports this host reads, at most 256: first those of this host's tenants,
    /// then those of tenants that it does not serve.
    #[serde(default)]
    pub by_host: Vec<TotalState>,
}

/// A tenant's total in one unit, by members of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TotalState {
    /// Name of the pool.
    pub pool: String,
    /// Name of the tenant.
    pub tenant: String,
    /// `requests` or `bytes`; of a guarantee with its key, such as `bytes of guarantee.read`.
    pub unit: String,
    /// The members with the largest parts, at most 8.
    pub hosts: Vec<HostPartState>,
    /// Number of further members.
    pub more_hosts: u64,
    /// Sum of the parts of the further members.
    pub more_part: f64,
}

/// A member's part of a total.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostPartState {
    /// Name of the member.
    pub host: String,
    /// Largest part (0 to 1) that the member uses by its last report; of an expired member the part kept free for it.
    pub part: f64,
}

impl TotalState {
    /// The parts as text: `requests: a 62 %, b 30 %, 4 more 8 %`.
    pub fn text(&self) -> String {
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        let mut parts: Vec<String> = self.hosts.iter().map(|of| format!("{} {}", of.host, percent(of.part))).collect();
        if self.more_hosts > 0 {
            parts.push(format!("{} more {}", self.more_hosts, percent(self.more_part)));
        }
        format!("{}: {}", self.unit, parts.join(", "))
    }
}

impl TotalsState {
    /// The parts by host of a tenant's totals in a pool, as text; `None` if no member has reported any.
    pub fn parts_of(&self, pool: &str, tenant: &str) -> Option<String> {
        let units = self.by_host.iter().filter(|of| of.pool == pool && of.tenant == tenant);
        let units: Vec<String> = units.map(TotalState::text).collect();
        (!units.is_empty()).then(|| units.join("; "))
    }

    /// The trouble of a host whose parts do not follow demand; `None` if the parts follow it.
    pub fn trouble(&self) -> Option<Trouble> {
        let about = "totals of tenants";
        if self.excess_tenants > 0 {
            let because = format!(
                "{} totals (reservations, limits and guarantees of tenants) are more than a report, or the sum of this host's shard, may have: this host gets almost nothing of each of these totals, a control group a 16th",
                self.excess_tenants
            );
            let cure = "spread these tenants over more hosts, or give some of them no reservation, limit or guarantee";
            return Some(Trouble::warning("totals_excess", about, because, cure));
        }
        let follows = self.contact.is_empty() || self.contact == "shared";
        (!follows).then(|| {
            let cure = "check that the addresses in cluster.etcd answer from this host";
            Trouble::warning("totals_lost", about, self.because.clone(), cure)
        })
    }
}

/// A rate as records show it; `None` for 0, which means that the rate is not set.
pub(crate) fn set(rate: u64) -> Option<u64> {
    (rate > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use evenkeel_control::mclock::Qos;
    use evenkeel_control::units::{Fraction, Rates};

    use super::*;

    #[test]
    fn parts_are_shown_beside_totals_only() {
        let limit = Rates { iops: 3_000, bytes_per_s: 0 };
        let (limited, free) = (Qos { limit, ..Qos::default() }, Qos::default());
        let third = Fractions { limit: [Fraction::of(1.0 / 3.0); 2], ..Fractions::WHOLE };
        let parts = PartsState::of(&limited, &third).expect("a part");
        assert_eq!(parts, PartsState { limit_iops: Some(1_000), ..PartsState::default() });
        assert_eq!(PartsState::of(&limited, &Fractions::WHOLE), None);
        let whole = [Fraction::WHOLE, Fraction::of(0.0)];
        assert_eq!(PartsState::of(&limited, &Fractions { reservation: whole, limit: whole }), None);
        assert_eq!(PartsState::of(&free, &third), None);
    }

    #[test]
    fn parts_by_host_are_shown_with_the_rest_together() {
        let hosts = [("a", 0.624), ("b", 0.3)].map(|(host, part)| HostPartState { host: host.into(), part });
        let of = |unit: &str, more_hosts: u64| TotalState {
            pool: "main".into(),
            tenant: "db".into(),
            unit: unit.into(),
            hosts: hosts.to_vec(),
            more_hosts,
            more_part: 0.08,
        };
        let totals = TotalsState { by_host: vec![of("requests", 4), of("bytes", 0)], ..TotalsState::default() };
        let text = "requests: a 62 %, b 30 %, 4 more 8 %; bytes: a 62 %, b 30 %";
        assert_eq!(totals.parts_of("main", "db").as_deref(), Some(text));
        assert_eq!((totals.parts_of("main", "web"), totals.parts_of("other", "db")), (None, None));
    }

    #[test]
    fn parts_that_do_not_follow_demand_are_a_trouble() {
        let of =
            |contact: &str| TotalsState { contact: contact.into(), because: "why".into(), ..TotalsState::default() };
        assert!(of("").trouble().is_none() && of("shared").trouble().is_none());
        for contact in ["none", "lost", "alone"] {
            let trouble = of(contact).trouble().expect("a trouble");
            assert_eq!((trouble.kind.as_str(), trouble.because.as_str()), ("totals_lost", "why"));
        }
        let excess = TotalsState { excess_tenants: 3, ..of("shared") };
        assert_eq!(excess.trouble().expect("a trouble").kind, "totals_excess");
    }
}
