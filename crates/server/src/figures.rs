//! Figures of tenants and pools since the reading before, for the history.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_control::histogram::Histogram;
use evenkeel_control::limits::LimitSet;
use evenkeel_control::pool::{Pool, TenantId, TenantView};
use evenkeel_history::{Figures, Gauge, Sample, Series};

use crate::shared::Shared;

/// The state between two readings of [`Server::read`](crate::Server::read), which returns the figures of the time between them.
/// Takes about 2 KB of memory for each tenant.
#[derive(Default)]
pub struct Meter {
    /// Counters of each tenant at the reading before, by index of its pool and its identity there.
    tenants: HashMap<(usize, TenantId), Before>,
    /// Names of pools, by index.
    pools: HashMap<usize, Arc<Series>>,
}

/// A tenant at the reading before.
struct Before {
    series: Arc<Series>,
    requests: u64,
    bytes: u64,
    errors: u64,
    latency: Box<Histogram>,
    /// True if the tenant was there at the present reading.
    lives: bool,
}

impl Before {
    fn new(pool: &str, tenant: &str) -> Self {
        let series = Arc::new(Series { pool: pool.to_owned(), tenant: tenant.to_owned(), device: String::new() });
        Self { series, requests: 0, bytes: 0, errors: 0, latency: Box::default(), lives: true }
    }

    /// Figures since the reading before, without those of latencies; and the latencies themselves, if any were counted.
    fn read(&mut self, view: &TenantView<'_>) -> (Figures, Option<Histogram>) {
        let stats = view.stats;
        let since = |now: u64, before: &mut u64| now.checked_sub(std::mem::replace(before, now)).unwrap_or(now);
        let figures = Figures {
            requests: since(stats.reads + stats.writes + stats.flushes + stats.metas, &mut self.requests),
            bytes: since(stats.read_bytes + stats.write_bytes, &mut self.bytes),
            errors: since(stats.errors, &mut self.errors),
            queued: Gauge::at(view.queued as u64),
            in_flight: Gauge::at(view.in_flight),
            slots: slots(view.granted.share, view.slots),
            limit_iops: gauge(view.limit_iops.effective()),
            limit_bytes_per_s: gauge(view.limit_bytes_per_s.effective()),
            delay_us: gauge(view.throttled.map(|throttled| throttled.delay.as_nanos() / 1_000)),
            ..Figures::default()
        };
        let counted = stats.latency.count() != self.latency.count();
        (figures, counted.then(|| stats.latency.clone()))
    }
}

impl Meter {
    /// Reads all tenants and pools. Takes each pool's lock once for each of its tenants.
    pub(crate) fn read(&mut self, shared: &Shared) -> Vec<Sample> {
        let snapshot = shared.snapshot();
        self.tenants.values_mut().for_each(|before| before.lives = false);
        let mut samples = Vec::new();
        for (index, (pool, tenants)) in snapshot.pools.iter().zip(&snapshot.tenants).enumerate() {
            let mut whole = of_pool(&pool.lock());
            let mut latencies = Histogram::new();
            for (name, &id) in tenants {
                let state = pool.lock();
                let Some(view) = state.tenant(id) else { continue };
                let before = self.tenants.entry((index, id)).or_insert_with(|| Before::new(&pool.name, name));
                before.lives = true;
                if before.series.pool != pool.name {
                    *before = Before::new(&pool.name, name);
                }
                let (mut figures, counted) = before.read(&view);
                drop(state);
                if let Some(counted) = counted {
                    let since = counted.since(&before.latency);
                    *before.latency = counted;
                    latencies.merge(&since);
                    add_latencies(&mut figures, &since);
                }
                whole.requests += figures.requests;
                whole.bytes += figures.bytes;
                whole.errors += figures.errors;
                if !figures.is_idle() {
                    samples.push(Sample { series: Arc::clone(&before.series), figures });
                }
            }
            add_latencies(&mut whole, &latencies);
            if !whole.is_idle() {
                let series = self.pools.entry(index).or_default();
                if series.pool != pool.name {
                    *series = Arc::new(Series { pool: pool.name.clone(), ..Series::default() });
                }
                samples.push(Sample { series: Arc::clone(series), figures: whole });
            }
        }
        self.tenants.retain(|_, before| before.lives);
        samples
    }
}

/// Figures of a whole pool that are not sums over its tenants.
fn of_pool<R>(pool: &Pool<R>) -> Figures {
    let budget = pool.admission().decision().budget_bytes;
    let [limit_iops, limit_bytes_per_s] = pool.pool_limits().map(|limit| gauge(limit.effective()));
    Figures {
        queued: Gauge::at(pool.queued() as u64),
        in_flight: Gauge::at(pool.in_flight()),
        budget: gauge((budget < u64::MAX).then_some(budget)),
        slots: gauge(pool.slots().and_then(|slots| slots.total).map(|total| (total * 1e3) as u64)),
        limit_iops,
        limit_bytes_per_s,
        ..Figures::default()
    }
}

/// Adds the latencies counted in the time of the figures.
fn add_latencies(figures: &mut Figures, latencies: &Histogram) {
    let us = |quantile| latencies.quantile(quantile).as_nanos() / 1_000;
    figures.latency_us = latencies.sum().as_nanos() / 1_000;
    [figures.p50_us, figures.p99_us, figures.p999_us] = [0.5, 0.99, 0.999].map(us);
}

fn gauge(value: Option<u64>) -> Gauge {
    value.map_or_else(Gauge::default, Gauge::at)
}

/// Slots in thousandths: those granted for a latency target of the tenant, else the fewest that any owner set.
fn slots(granted: Option<f64>, set: &LimitSet) -> Gauge {
    let granted = granted.map(|granted| (granted * 1e3) as u64);
    gauge(granted.or(set.effective().map(|slots| slots.saturating_mul(1_000))))
}
