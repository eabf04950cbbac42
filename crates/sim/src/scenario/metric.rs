//! What of a run is measured, by name: `light.p99_ms`, `bulk.bytes_per_s`, `budget_cv`.

use std::fmt;

use evenkeel_control::{Duration, Instant};

use crate::world::{Run, Sample, Served, TenantResult};

/// Something that a run has as a number; the unit stands last in its name.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Place and name of the tenant it is about; the whole pool if `None`.
    tenant: Option<(usize, String)>,
    quantity: &'static Quantity,
}

/// A quantity by name.
#[derive(Debug)]
struct Quantity {
    name: &'static str,
    of: Source,
}

/// Where a quantity comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The whole run.
    Pool(fn(&Run) -> f64),
    /// A tenant of the whole run.
    Tenant(fn(&Run, &TenantResult) -> f64),
    /// What a tenant (or all together) received in some seconds.
    Served(fn(&Served, f64) -> f64),
    /// The mean budget of some time.
    Budget,
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Nothing completed, so there is no latency to speak of.
fn latency(result: &TenantResult, of: impl Fn(&TenantResult) -> Duration) -> f64 {
    if result.requests == 0 { f64::NAN } else { ms(of(result)) }
}

/// The quantities of a tenant.
static OF_TENANT: [Quantity; 20] = [
    Quantity { name: "iops", of: Source::Served(|served, seconds| served.requests as f64 / seconds) },
    Quantity { name: "bytes_per_s", of: Source::Served(|served, seconds| served.bytes as f64 / seconds) },
    Quantity {
        name: "read_bytes_per_s",
        of: Source::Tenant(|run, tenant| tenant.read_bytes as f64 / run.counted.as_secs_f64()),
    },
    Quantity {
        name: "write_bytes_per_s",
        of: Source::Tenant(|run, tenant| (tenant.bytes - tenant.read_bytes) as f64 / run.counted.as_secs_f64()),
    },
    Quantity { name: "mean_ms", of: Source::Served(mean_ms) },
    Quantity { name: "p50_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p50())) },
    Quantity { name: "p99_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p99())) },
    Quantity { name: "p999_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p999())) },
    Quantity { name: "max_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.max())) },
    Quantity {
        name: "queue_mean_ms",
        of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.queue_wait.mean())),
    },
    Quantity {
        name: "queue_p99_ms",
        of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.queue_wait.p99())),
    },
    Quantity { name: "device_mean_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.device.mean())) },
    Quantity { name: "device_p99_ms", of: Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.device.p99())) },
    Quantity {
        name: "worker_mean_ms",
        of: Source::Tenant(|run, tenant| {
            let mean = || latency(tenant, TenantResult::worker_mean);
            if run.workers.is_empty() { f64::NAN } else { mean() }
        }),
    },
    Quantity {
        name: "inversion_mean_ms",
        of: Source::Tenant(|_, tenant| latency(tenant, TenantResult::inversion_per_request)),
    },
    Quantity { name: "deficit_requests", of: Source::Tenant(|_, tenant| tenant.deficit.requests as f64) },
    Quantity { name: "deficit_bytes", of: Source::Tenant(|_, tenant| tenant.deficit.bytes as f64) },
    Quantity { name: "deficit_windows", of: Source::Tenant(|_, tenant| tenant.deficit.windows as f64) },
    Quantity { name: "requests", of: Source::Tenant(|_, tenant| tenant.requests as f64) },
    Quantity {
        name: "share_percent",
        of: Source::Tenant(|run, tenant| {
            let all: u64 = run.tenants.iter().map(|tenant| tenant.bytes).sum();
            if all == 0 { f64::NAN } else { tenant.bytes as f64 / all as f64 * 100.0 }
        }),
    },
];

/// The quantities of the pool.
static OF_POOL: [Quantity; 9] = [
    Quantity { name: "iops", of: Source::Served(|served, seconds| served.requests as f64 / seconds) },
    Quantity { name: "bytes_per_s", of: Source::Served(|served, seconds| served.bytes as f64 / seconds) },
    Quantity { name: "mean_ms", of: Source::Served(mean_ms) },
    Quantity { name: "budget_mean_bytes", of: Source::Budget },
    Quantity { name: "budget_cv", of: Source::Pool(|run| run.budget.cv) },
    Quantity { name: "budget_min_bytes", of: Source::Pool(|run| bytes(run.budget.min_bytes)) },
    Quantity { name: "budget_max_bytes", of: Source::Pool(|run| bytes(run.budget.max_bytes)) },
    Quantity {
        name: "busiest_worker_percent",
        // Without workers NaN.
        of: Source::Pool(|run| run.workers.iter().map(|worker| worker.busy * 100.0).fold(f64::NAN, f64::max)),
    },
    Quantity {
        name: "moves",
        of: Source::Pool(|run| if run.workers.is_empty() { f64::NAN } else { run.moves as f64 }),
    },
];

/// The names that can be measured in a part of a run.
pub const WINDOWED: &str = "iops, bytes_per_s, mean_ms (of a tenant or of the pool), budget_mean_bytes";

fn mean_ms(served: &Served, _: f64) -> f64 {
    if served.requests == 0 { f64::NAN } else { served.response_ns as f64 / served.requests as f64 / 1e6 }
}

/// A budget; unbounded is infinite.
fn bytes(budget: u64) -> f64 {
    if budget == u64::MAX { f64::INFINITY } else { budget as f64 }
}

fn budget_mean(samples: &[Sample]) -> f64 {
    samples.iter().map(|sample| bytes(sample.budget_bytes)).sum::<f64>() / samples.len() as f64
}

impl Metric {
    /// Finds a metric by its name among the tenants `names`.
    ///
    /// # Errors
    /// Says what is not known, and what is.
    pub fn parse(name: &str, names: &[&String]) -> Result<Self, String> {
        // A tenant's name may have dots in it, a quantity's has none.
        let Some((tenant, quantity)) = name.rsplit_once('.') else {
            let quantity = find(&OF_POOL, name).ok_or_else(|| {
                let known = OF_POOL.iter().map(|quantity| quantity.name);
                format!("{}; those of a tenant are written TENANT.NAME", unknown("metric of the pool", name, known))
            })?;
            return Ok(Self { tenant: None, quantity });
        };
        let place = names.iter().position(|&known| known == tenant);
        let place = place.ok_or_else(|| unknown("tenant", tenant, names.iter().map(|name| name.as_str())))?;
        let known = OF_TENANT.iter().map(|quantity| quantity.name);
        let quantity = find(&OF_TENANT, quantity).ok_or_else(|| unknown("metric of a tenant", quantity, known))?;
        Ok(Self { tenant: Some((place, tenant.to_owned())), quantity })
    }

    /// Every metric of a run with these tenants: those of each tenant, then those of the pool.
    pub fn all(tenants: &[String]) -> Vec<Self> {
        let of_tenants = tenants.iter().enumerate().flat_map(|(place, name)| {
            OF_TENANT.iter().map(move |quantity| Self { tenant: Some((place, name.clone())), quantity })
        });
        of_tenants.chain(OF_POOL.iter().map(|quantity| Self { tenant: None, quantity })).collect()
    }

    /// The name without the tenant.
    pub fn name(&self) -> &'static str {
        self.quantity.name
    }

    /// Whether it can be measured in a part of a run.
    pub fn has_windows(&self) -> bool {
        matches!(self.quantity.of, Source::Served(_) | Source::Budget)
    }

    /// Its value in a run, or in the samples that end within `window` of it; NaN if there is nothing to measure.
    pub fn measure(&self, run: &Run, window: Option<(Instant, Instant)>) -> f64 {
        let tenant = self.tenant.as_ref().map(|&(place, _)| &run.tenants[place]);
        match (self.quantity.of, tenant, window) {
            (Source::Pool(of), ..) => of(run),
            (Source::Tenant(of), Some(tenant), _) => of(run, tenant),
            (Source::Tenant(_), None, _) => f64::NAN,
            (Source::Budget, _, None) => run.budget.mean_bytes,
            (Source::Budget, ..) => budget_mean(within(run, window).1),
            (Source::Served(of), ..) => {
                let (seconds, samples) = within(run, window);
                of(&self.served(run, samples, window.is_none()), seconds)
            }
        }
    }

    /// What its tenant, or all, received: exactly over the whole run, else from samples.
    fn served(&self, run: &Run, samples: &[Sample], whole: bool) -> Served {
        let mut sum = Served::default();
        let mut add = |served: Served| {
            sum.requests += served.requests;
            sum.bytes += served.bytes;
            sum.response_ns = sum.response_ns.saturating_add(served.response_ns);
        };
        let mine = |place: usize| self.tenant.as_ref().is_none_or(|&(tenant, _)| tenant == place);
        if whole {
            for (_, tenant) in run.tenants.iter().enumerate().filter(|&(place, _)| mine(place)) {
                let response_ns = tenant.response.mean().as_nanos().saturating_mul(tenant.requests);
                add(Served { requests: tenant.requests, bytes: tenant.bytes, response_ns });
            }
        } else {
            let all = samples.iter().flat_map(|sample| sample.tenants.iter().enumerate());
            all.filter(|&(place, _)| mine(place)).for_each(|(_, tenant)| add(tenant.served));
        }
        sum
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some((_, tenant)) => write!(f, "{tenant}.{}", self.quantity.name),
            None => f.write_str(self.quantity.name),
        }
    }
}

/// The samples whose interval lies within a window, and the seconds they cover; all of the run without a window.
fn within(run: &Run, window: Option<(Instant, Instant)>) -> (f64, &[Sample]) {
    let Some((from, until)) = window else { return (run.counted.as_secs_f64(), &run.series) };
    let step = run.series.first().map_or(Duration::ZERO, |first| first.at.since(run.counted_from));
    let first = run.series.partition_point(|sample| sample.at < from + step);
    let last = run.series.partition_point(|sample| sample.at <= until).max(first);
    let samples = &run.series[first..last];
    (step.as_secs_f64() * samples.len() as f64, samples)
}

fn find(among: &'static [Quantity], name: &str) -> Option<&'static Quantity> {
    among.iter().find(|quantity| quantity.name == name)
}

/// "there is no metric ...; did you mean ...?"
pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    evenkeel_policy::unknown(what, name, &known.collect::<Vec<_>>())
}
