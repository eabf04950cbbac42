//! The 99th percentiles of the newest recorded second, for the state.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_history::Sample;
use evenkeel_policy::state::State;

/// Age from which on a second is no longer shown: recording has paused or was switched off.
const OLD: Duration = Duration::from_secs(3);

/// Percentiles in ms, by pool and by tenant; those of a whole pool have an empty name.
type Percentiles = HashMap<String, HashMap<String, f64>>;

/// The percentiles of the newest second, with the time at which they were read; `None` before the first second.
#[derive(Default)]
pub(super) struct Recent(Mutex<Option<(Instant, Percentiles)>>);

impl Recent {
    /// Takes the figures of a second that ended at `now`.
    pub(super) fn set(&self, now: Instant, samples: &[Sample]) {
        let mut percentiles = Percentiles::new();
        for sample in samples.iter().filter(|sample| sample.figures.p99_us > 0) {
            let of_pool = percentiles.entry(sample.series.pool.clone()).or_default();
            of_pool.insert(sample.series.tenant.clone(), sample.figures.p99_us as f64 / 1e3);
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, percentiles));
    }

    /// Adds the percentiles to the figures of a state that is shown at `now`.
    pub(super) fn fill(&self, now: Instant, state: &mut State) {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((read, percentiles)) = &*recent else { return };
        if now.saturating_duration_since(*read) >= OLD {
            return;
        }
        for pool in &mut state.pools {
            let Some(of_pool) = percentiles.get(&pool.name) else { continue };
            if let Some(lately) = &mut pool.lately {
                lately.p99_ms = of_pool.get("").copied();
            }
            for tenant in &mut pool.tenants {
                if let Some(lately) = &mut tenant.lately {
                    lately.p99_ms = of_pool.get(&tenant.name).copied();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_history::{Figures, Series};
    use evenkeel_policy::state::{PoolState, TenantState};
    use evenkeel_policy::verdict::Lately;

    use super::*;

    #[test]
    fn percentiles_are_those_of_their_pool_and_tenant_and_are_soon_too_old() {
        let sample = |tenant: &str, p99_us| {
            let series = Series { pool: "main".into(), tenant: tenant.into(), device: String::new() };
            Sample { series: Arc::new(series), figures: Figures { p99_us, ..Figures::default() } }
        };
        let (recent, now) = (Recent::default(), Instant::now());
        let shown = |at: Instant| {
            let lately = || Some(Lately::default());
            let tenant = |name: &str| TenantState { name: name.into(), lately: lately(), ..TenantState::default() };
            let tenants = vec![tenant("shop"), tenant("idle")];
            let pool = PoolState { name: "main".into(), lately: lately(), tenants, ..PoolState::default() };
            let mut state = State { pools: vec![pool], ..State::default() };
            recent.fill(at, &mut state);
            let pool = &state.pools[0];
            let all = [&pool.lately, &pool.tenants[0].lately, &pool.tenants[1].lately];
            all.map(|lately| lately.as_ref().and_then(|lately| lately.p99_ms))
        };
        assert_eq!(shown(now), [None; 3], "nothing measured");
        recent.set(now, &[sample("", 2_500), sample("shop", 3_000), sample("idle", 0)]);
        assert_eq!(shown(now + Duration::from_secs(1)), [Some(2.5), Some(3.0), None]);
        assert_eq!(shown(now + OLD), [None; 3], "too old");
    }
}
