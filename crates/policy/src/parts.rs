//! The parts of tenants' reservations and limits that apply on one host of a cluster.

use evenkeel_control::units::Fractions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trouble::{Level, Trouble};

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
        let is_set = !(qos.reservation.is_unset() && qos.limit.is_unset());
        let (reservation, limit) = (fractions.of_reservation(qos.reservation), fractions.of_limit(qos.limit));
        (is_set && *fractions != Fractions::WHOLE).then(|| Self {
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
    /// cluster was lost, and parts do not grow; `alone`: the other members keep the parts of this host free.
    pub contact: String,
    /// The same as a sentence.
    pub because: String,
    /// Tenants with a reservation or a limit, counted once for each pool that they use.
    pub tenants: u64,
    /// Tenants beyond the number that a report may have, which keep almost no part.
    pub excess_tenants: u64,
}

impl TotalsState {
    /// The trouble of a host whose parts do not follow demand; `None` if they do.
    pub fn trouble(&self) -> Option<Trouble> {
        let about = "totals of tenants";
        if self.excess_tenants > 0 {
            let because = format!(
                "{} tenants with reservations or limits are more than a report may have: they get almost nothing here, control groups a 16th",
                self.excess_tenants
            );
            let cure = "spread these tenants over more hosts, or give them neither a reservation nor a limit";
            return Some(Trouble::new(Level::Warning, "totals_excess", about, because, cure));
        }
        let follows = self.contact.is_empty() || self.contact == "shared";
        (!follows).then(|| {
            let cure = "check that the addresses in cluster.etcd answer from this host";
            Trouble::new(Level::Warning, "totals_lost", about, self.because.clone(), cure)
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
        assert_eq!(PartsState::of(&free, &third), None);
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
