//! The metrics of a run by name: `light.p99_ms`, `bulk.bytes_per_s`, `budget_cv`.

use std::fmt;

use evenkeel_control::{Duration, Instant};

use crate::world::{NO_BOUND_BYTES, Run, Sample, Served, TenantResult};

/// A metric of a run. The metric's name ends with its unit.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Number and name of the tenant that the metric is about; `None` for a metric of the pool.
    tenant: Option<(usize, String)>,
    quantity: &'static Quantity,
}

/// A quantity of a tenant or of the pool.
#[derive(Debug)]
struct Quantity {
    name: &'static str,
    of: Source,
}

/// The source of a quantity.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Computed from the whole run.
    Pool(fn(&Run) -> f64),
    /// Computed from a tenant's figures over the whole run.
    Tenant(fn(&Run, &TenantResult) -> f64),
    /// Computed from the completions of a tenant, or of all tenants, in a window, and from the window's length in seconds.
    Served(fn(&Served, f64) -> f64),
    /// Mean admission budget over a window, in bytes.
    Budget,
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A latency of a tenant in ms; NaN if the tenant completed no request.
fn latency(result: &TenantResult, of: impl Fn(&TenantResult) -> Duration) -> f64 {
    if result.requests == 0 { f64::NAN } else { ms(of(result)) }
}

/// The quantities of a tenant.
static OF_TENANT: [Quantity; 20] = [
    quantity("iops", Source::Served(|served, seconds| served.requests as f64 / seconds)),
    quantity("bytes_per_s", Source::Served(|served, seconds| served.bytes as f64 / seconds)),
    quantity("read_bytes_per_s", Source::Tenant(|run, tenant| per_s(run, tenant.read_bytes))),
    quantity("write_bytes_per_s", Source::Tenant(|run, tenant| per_s(run, tenant.bytes - tenant.read_bytes))),
    quantity("mean_ms", Source::Served(mean_ms)),
    quantity("p50_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p50()))),
    quantity("p99_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p99()))),
    quantity("p999_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.p999()))),
    quantity("max_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.response.max()))),
    quantity("queue_mean_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.queue_wait.mean()))),
    quantity("queue_p99_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.queue_wait.p99()))),
    quantity("device_mean_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.device.mean()))),
    quantity("device_p99_ms", Source::Tenant(|_, tenant| latency(tenant, |tenant| tenant.device.p99()))),
    quantity("worker_mean_ms", Source::Tenant(worker_mean_ms)),
    quantity("inversion_mean_ms", Source::Tenant(|_, tenant| latency(tenant, TenantResult::inversion_per_request))),
    quantity("deficit_requests", Source::Tenant(|_, tenant| tenant.deficit.requests as f64)),
    quantity("deficit_bytes", Source::Tenant(|_, tenant| tenant.deficit.bytes as f64)),
    quantity("deficit_windows", Source::Tenant(|_, tenant| tenant.deficit.windows as f64)),
    quantity("requests", Source::Tenant(|_, tenant| tenant.requests as f64)),
    quantity("share_percent", Source::Tenant(share_percent)),
];

/// The quantities of the pool.
static OF_POOL: [Quantity; 9] = [
    quantity("iops", Source::Served(|served, seconds| served.requests as f64 / seconds)),
    quantity("bytes_per_s", Source::Served(|served, seconds| served.bytes as f64 / seconds)),
    quantity("mean_ms", Source::Served(mean_ms)),
    quantity("budget_mean_bytes", Source::Budget),
    quantity("budget_cv", Source::Pool(|run| run.budget.cv)),
    quantity("budget_min_bytes", Source::Pool(|run| bytes(run.budget.min_bytes))),
    quantity("budget_max_bytes", Source::Pool(|run| bytes(run.budget.max_bytes))),
    quantity("busiest_worker_percent", Source::Pool(busiest_worker_percent)),
    quantity("moves", Source::Pool(|run| if run.workers.is_empty() { f64::NAN } else { run.moves as f64 })),
];

const fn quantity(name: &'static str, of: Source) -> Quantity {
    Quantity { name, of }
}

fn per_s(run: &Run, bytes: u64) -> f64 {
    bytes as f64 / run.counted.as_secs_f64()
}

fn worker_mean_ms(run: &Run, tenant: &TenantResult) -> f64 {
    if run.workers.is_empty() { f64::NAN } else { latency(tenant, TenantResult::worker_mean) }
}

fn share_percent(run: &Run, tenant: &TenantResult) -> f64 {
    let all: u64 = run.tenants.iter().map(|tenant| tenant.bytes).sum();
    if all == 0 { f64::NAN } else { tenant.bytes as f64 / all as f64 * 100.0 }
}

/// Busy time of the busiest worker, in per cent of the counted time; NaN without workers.
fn busiest_worker_percent(run: &Run) -> f64 {
    run.workers.iter().map(|worker| worker.busy * 100.0).fold(f64::NAN, f64::max)
}

/// Names of the quantities that can be measured in a window of the run, for error messages.
pub const WINDOWED: &str = "iops, bytes_per_s, mean_ms (of a tenant or of the pool), budget_mean_bytes";

fn mean_ms(served: &Served, _: f64) -> f64 {
    if served.requests == 0 { f64::NAN } else { served.response_ns as f64 / served.requests as f64 / 1e6 }
}

/// An admission budget in bytes, as a metric's value; infinite without a bound.
fn bytes(budget: u64) -> f64 {
    if budget == u64::MAX { f64::INFINITY } else { budget as f64 }
}

fn budget_mean(samples: &[Sample]) -> f64 {
    let bounds = samples.iter().map(|sample| sample.budget_bytes);
    if bounds.clone().all(|budget| budget == u64::MAX) {
        return f64::INFINITY;
    }
    bounds.map(|budget| budget.min(NO_BOUND_BYTES) as f64).sum::<f64>() / samples.len() as f64
}

impl Metric {
    /// The metric with the name `name`; `names` are the scenario's tenants.
    ///
    /// # Errors
    /// A message that names the unknown metric and the known ones.
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

    /// Every metric of a run with these tenants: the metrics of each tenant, then those of the pool.
    pub fn all(tenants: &[String]) -> Vec<Self> {
        let of_tenants = tenants.iter().enumerate().flat_map(|(place, name)| {
            OF_TENANT.iter().map(move |quantity| Self { tenant: Some((place, name.clone())), quantity })
        });
        of_tenants.chain(OF_POOL.iter().map(|quantity| Self { tenant: None, quantity })).collect()
    }

    /// The quantity's name, without the tenant.
    pub fn name(&self) -> &'static str {
        self.quantity.name
    }

    /// True if the metric can be measured in a window of the run.
    pub fn has_windows(&self) -> bool {
        matches!(self.quantity.of, Source::Served(_) | Source::Budget)
    }

    /// The metric's value over the counted time of a run, or over the samples that lie within `window`; NaN if no request or
    /// no sample gives a value.
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

    /// Completions of the metric's tenant, or of all tenants for a metric of the pool: over the whole counted time if `whole`,
    /// otherwise in `samples`.
    fn served(&self, run: &Run, samples: &[Sample], whole: bool) -> Served {
        let mut sum = Served::default();
        let mine = |place: usize| self.tenant.as_ref().is_none_or(|&(tenant, _)| tenant == place);
        if whole {
            for (_, tenant) in run.tenants.iter().enumerate().filter(|&(place, _)| mine(place)) {
                let response_ns = tenant.response.mean().as_nanos().saturating_mul(tenant.requests);
                sum.add(&Served { requests: tenant.requests, bytes: tenant.bytes, response_ns });
            }
        } else {
            let all = samples.iter().flat_map(|sample| sample.tenants.iter().enumerate());
            all.filter(|&(place, _)| mine(place)).for_each(|(_, tenant)| sum.add(&tenant.served));
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

/// The samples whose interval lies within `window`, and before them the number of seconds that they cover. Without a window:
/// the length of the counted time, and all samples.
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

/// An error message such as "there is no metric ...; did you mean ...?"; `what` is the kind of object, for example "metric".
pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    evenkeel_policy::unknown(what, name, &known.collect::<Vec<_>>())
}
