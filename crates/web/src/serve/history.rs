//! The history of a server: figures from its pools, and reasons and troubles from its state.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_history::Sample;
use evenkeel_policy::config::Bound;
use evenkeel_policy::explain;
use evenkeel_policy::state::{PoolState, TenantState, VolumeState};
use evenkeel_server::Meter;

use super::manager::Manager;
use crate::history::{HISTORY_LOST, Held, Place, Program, Reason, Recorder, Sense, Topic};

/// Decisions are read from this long before the last reading on, in seconds: their times are exact to milliseconds.
const OVERLAP_S: f64 = 1.0;

/// Starts to record the history of a server, in the folder `history` of its data folder; to be called at most once, when the
/// server starts.
///
/// # Errors
/// When no thread can be started.
pub fn record(manager: &Arc<Manager>) -> io::Result<()> {
    let program = Program { name: "server", key: "server.history" };
    let (configured, sensed) = (Arc::clone(manager), Arc::clone(manager));
    let place = move || {
        let server = &configured.config().server;
        match server.history {
            Bound::Off => None,
            Bound::At(bytes) => Some(Place { folder: server.history_path(), bytes: bytes.0 }),
        }
    };
    let sensed = Sensed { manager: sensed, meter: Meter::default(), read_to_s: 0.0 };
    manager.is_recorded_by(Recorder::start(program, place, sensed)?);
    Ok(())
}

struct Sensed {
    manager: Arc<Manager>,
    meter: Meter,
    /// Uptime of the last reading of decisions, in seconds.
    read_to_s: f64,
}

impl Sense for Sensed {
    fn samples(&mut self) -> Vec<Sample> {
        let samples = self.manager.server().read(&mut self.meter);
        self.manager.has_measured(&samples);
        samples
    }

    fn held(&mut self) -> Held {
        let state = self.manager.state_since(self.read_to_s - OVERLAP_S);
        self.read_to_s = state.uptime_s;
        let (uptime_s, mut troubles) = (state.uptime_s, state.health.troubles);
        // The ledger itself records the end of a pause.
        troubles.retain(|trouble| trouble.kind != HISTORY_LOST);
        let changes = self.manager.take_changes(Instant::now());
        let mut held = Held { uptime_s, troubles, changes, ..Held::default() };
        held.reasons.extend(state.volumes.iter().filter_map(of_volume));
        for pool in state.pools {
            of_pool(pool, &mut held);
        }
        held
    }
}

/// The throttle of a volume whose requests wait for its limit.
fn of_volume(volume: &VolumeState) -> Option<Reason> {
    let by = volume.throttled_by.as_ref()?;
    Some(Reason {
        pool: volume.pool.clone(),
        tenant: volume.tenant.clone(),
        volume: volume.name.clone(),
        topic: Topic::Volume,
        reason: "volume_at_limit".to_owned(),
        sentence: explain::throttle(by),
    })
}

/// Adds the reasons and decisions of a pool.
fn of_pool(pool: PoolState, held: &mut Held) {
    let in_force = |tenant: &str, topic, reason: &str, sentence: String| Reason {
        pool: pool.name.clone(),
        tenant: tenant.to_owned(),
        volume: String::new(),
        topic,
        reason: reason.to_owned(),
        sentence,
    };
    let throttled = |tenant: &str, lately: &Option<evenkeel_policy::verdict::Lately>| {
        let by = lately.as_ref()?.throttled_by.as_ref()?;
        Some(in_force(tenant, Topic::Throttle, &format!("throttled_by_{}", by.by), explain::throttle(by)))
    };
    held.reasons.extend(throttled("", &pool.lately));
    let admission = &pool.admission;
    if admission.budget_bytes.is_some() {
        let sentence = admission.reason.clone();
        held.reasons.push(in_force("", Topic::Budget, &admission.reason_data.kind, sentence));
    }
    for TenantState { name, lately, slots, .. } in &pool.tenants {
        held.reasons.extend(throttled(name, lately));
        let slots = slots.as_ref().filter(|slots| !slots.reason.is_empty());
        held.reasons.extend(slots.map(|slots| in_force(name, Topic::Slots, &slots.reason, slots.because.clone())));
    }
    held.decisions.extend(pool.latency_target.into_iter().flat_map(|target| target.decisions));
    let guarantees = pool.tenants.into_iter().flat_map(|tenant| tenant.guarantees);
    held.decisions.extend(guarantees.flat_map(|guarantee| guarantee.decisions));
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::state::LimitState;
    use evenkeel_policy::verdict::at_limit_of_volume;

    use super::*;

    #[test]
    fn a_volume_at_its_limit_is_recorded_with_its_tenant_and_the_owner() {
        let limit = LimitState { iops: Some(100), iops_owner: Some("operator".into()), ..LimitState::default() };
        let (name, pool, tenant) = ("db".into(), "main".into(), "shop".into());
        let throttled_by = at_limit_of_volume("db", &limit);
        let volume = VolumeState { name, pool, tenant, limit, throttled_by, ..VolumeState::default() };
        let reason = of_volume(&volume).expect("a throttle");
        let names = [&reason.pool, &reason.tenant, &reason.volume, &reason.reason];
        assert_eq!(names, ["main", "shop", "db", "volume_at_limit"]);
        let sentence =
            "throttled by the operator, 100 IOPS: volume db is at its limit of 100 IOPS, set by the operator";
        assert_eq!(reason.sentence, sentence);
        assert_eq!(of_volume(&VolumeState { throttled_by: None, ..volume }), None);
    }
}
