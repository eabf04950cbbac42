//! All about one thing: its settings and figures, and what was decided about it.

use evenkeel_policy::state::{LatencyState, PoolState, State, TenantState};

use super::figures::{bytes, count, ms, rates, uptime};
use super::model::Feed;
use super::row::{Id, Tab};
use super::serve::{self, client_name, percentiles, short};
use super::source::More;
use super::{guard, source};

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    /// When it was taken first and last, on the scale of the uptime.
    pub(super) from_s: f64,
    /// When it was taken last.
    pub(super) until_s: f64,
    /// How often.
    pub(super) times: u64,
    /// Why.
    pub(super) because: String,
}

/// What there is to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Detail {
    /// What it is set to and how it does, with names.
    pub(super) facts: Vec<(&'static str, String)>,
    /// Decisions, newest first.
    pub(super) decisions: Vec<Told>,
}

/// Puts it together. `more` is the newest answer about it, and the one before.
pub(super) fn of(feed: &Feed, wanted: &source::Wanted, more: (Option<&More>, Option<&More>)) -> Detail {
    let source::Wanted { tab, id } = wanted;
    match feed {
        Feed::None => Detail::default(),
        Feed::Serve(feed) => of_server(feed, *tab, id, more),
        Feed::Guard(feed) => of_agent(feed, *tab, id, more.0),
    }
}

fn of_server(feed: &serve::Feed, tab: Tab, id: &Id, more: (Option<&More>, Option<&More>)) -> Detail {
    let pool = |name: &str| feed.state.pools.iter().find(|pool| pool.name == name);
    match tab {
        Tab::Pools => pool(&id.name).map_or_else(Detail::default, of_pool),
        Tab::Tenants => {
            let tenant = |state: &State| {
                let pool = state.pools.iter().find(|pool| pool.name == id.of)?;
                pool.tenants.iter().find(|tenant| tenant.name == id.name).cloned()
            };
            let full = |more: Option<&More>| if let Some(More::Serve(state)) = more { tenant(state) } else { None };
            let Some(now) = full(more.0).or_else(|| tenant(&feed.state)) else { return Detail::default() };
            of_tenant(&now, full(more.1).as_ref())
        }
        Tab::Volumes => of_volume(feed, id),
        Tab::Clients => of_client(feed, id),
        Tab::Resources | Tab::Initiators | Tab::Groups | Tab::Queues | Tab::Osds => Detail::default(),
    }
}

fn of_pool(pool: &PoolState) -> Detail {
    let admission = &pool.admission;
    let mut facts = vec![
        ("scheduler", pool.scheduler.clone()),
        ("limit", rates(pool.limit.iops, pool.limit.bytes_per_s)),
        ("requests", format!("{} queued, {} in flight", pool.queued_requests, admission.in_flight_requests)),
        (
            "admission",
            format!(
                "{}: {} in flight, budget {}{}",
                admission.kind,
                bytes(admission.in_flight_bytes),
                admission.budget_bytes.map_or_else(|| "without bound".into(), bytes),
                admission.target_ms.map_or_else(String::new, |target| format!(", target {} ms", ms(target)))
            ),
        ),
        ("why", admission.reason.clone()),
    ];
    if !admission.target_reason.is_empty() && admission.target_reason != admission.reason {
        facts.push(("target", admission.target_reason.clone()));
    }
    let mut decisions = Vec::new();
    if let Some(goal) = &pool.latency_target {
        let measured = goal.measured_ms.map_or_else(|| "nothing measured yet".into(), |ms| format!("last {ms:.2} ms"));
        facts.push(("goal", format!("{} of reads below {} ms, {measured}", goal.percentile, short(goal.target_ms))));
        decisions.extend(goal.decisions.iter().rev().map(|decision| Told {
            from_s: decision.from_s,
            until_s: decision.until_s,
            times: decision.times,
            because: decision.because.clone(),
        }));
    }
    if let Some(slots) = &pool.slots {
        let total = slots.total.map_or_else(|| "without bound".into(), |total| format!("{total:.1}"));
        let with = if slots.exchanged { "with other hosts" } else { "alone" };
        facts.push(("slots", format!("{total}, by {}, {with}", slots.method)));
    }
    Detail { facts, decisions }
}

fn of_tenant(tenant: &TenantState, before: Option<&TenantState>) -> Detail {
    let qos = &tenant.qos;
    let owner = |owner: &Option<String>| owner.as_ref().map_or_else(String::new, |owner| format!(" (by {owner})"));
    let limit = &tenant.limit;
    let owners = if limit.iops_owner.is_some() { owner(&limit.iops_owner) } else { owner(&limit.bytes_per_s_owner) };
    let mut facts = vec![
        (
            "guaranteed",
            format!(
                "reservation {}, weight {}, {}, {}",
                rates(qos.reservation_iops, qos.reservation_bytes_per_s),
                qos.weight,
                qos.priority,
                tenant.throttle
            ),
        ),
        ("limit", rates(limit.iops, limit.bytes_per_s) + &owners),
        (
            "requests",
            format!(
                "{} queued, {} in flight, {} connections, {} errors",
                tenant.queued_requests, tenant.in_flight_requests, tenant.connections, tenant.errors_total
            ),
        ),
    ];
    let line = |now: &LatencyState, of: fn(&TenantState) -> &LatencyState| {
        percentiles(now, before.map(of))
            .map(|[p50, p99, p999]| format!("p50 {} ms, p99 {} ms, p99.9 {} ms", ms(p50), ms(p99), ms(p999)))
    };
    let since = if before.is_some() { "just now" } else { "since the start" };
    if let Some(text) = line(&tenant.latency, |tenant| &tenant.latency) {
        facts.push(("response", format!("{text}, {since}")));
    }
    facts.extend(line(&tenant.queue_latency, |tenant| &tenant.queue_latency).map(|text| ("queue", text)));
    facts.extend(line(&tenant.device_latency, |tenant| &tenant.device_latency).map(|text| ("device", text)));
    if let Some(hold) = &tenant.throttled {
        let text = format!(
            "{} slots ({}), each delayed by {} ms: {}",
            hold.slots,
            hold.slots_owner,
            ms(hold.delay_ms),
            hold.because
        );
        facts.push(("throttled", text));
    }
    if let Some(slots) = tenant.slots.as_ref() {
        let granted = slots.granted.map_or_else(|| "without bound".into(), |granted| format!("{granted:.1}"));
        let text = format!(
            "{granted}, needs {:.1}, uses {:.1}; missed {} of {} s: {}",
            slots.need, slots.used, slots.violated_total, slots.windows_total, slots.because
        );
        facts.push(("slots", text));
    }
    let mut decisions = Vec::new();
    for guarantee in &tenant.guarantees {
        let measured = guarantee.measured_per_s.map_or_else(|| "-".into(), count);
        let text = format!(
            "{} {}/s{}, got {measured}; what binds: {}; {}",
            count(guarantee.guaranteed_per_s as f64),
            guarantee.unit,
            guarantee.of_what(),
            guarantee.binding,
            guarantee.because
        );
        facts.push(("guarantee", text));
        decisions.extend(guarantee.decisions.iter().map(|decision| Told {
            from_s: decision.from_s,
            until_s: decision.until_s,
            times: decision.times,
            because: format!("{}{}", decision.because, guarantee.of_what()),
        }));
    }
    newest_first(&mut decisions);
    Detail { facts, decisions }
}

fn of_volume(feed: &serve::Feed, id: &Id) -> Detail {
    let Some(volume) = feed.state.volumes.iter().find(|volume| volume.name == id.name) else {
        return Detail::default();
    };
    let place = volume.path.as_ref().or(volume.remote.as_ref().map(|remote| &remote.uri));
    let place = place.or(volume.rbd.as_ref().map(|rbd| &rbd.image));
    let access = if volume.read_only { "read-only" } else { "read and write" };
    let mut facts = vec![
        ("tenant", volume.tenant.clone()),
        ("size", format!("{}, {access}", bytes(volume.size_bytes))),
        ("backend", format!("{} {}", volume.backend, place.map_or("", String::as_str))),
        ("clients", volume.connections.to_string()),
        ("offers", volume.flags.join(" ")),
    ];
    if let Some(remote) = &volume.remote {
        facts.push((
            "server",
            format!(
                "{} of {} connections, {} in flight, {} waiting, reconnected {} times",
                remote.connections,
                remote.connections_wanted,
                remote.in_flight_requests,
                remote.waiting_requests,
                remote.reconnects_total
            ),
        ));
        facts.extend(remote.last_error.iter().map(|error| ("last error", error.clone())));
    }
    facts.extend(volume.error.iter().map(|error| ("FAILED", error.clone())));
    Detail { facts, decisions: Vec::new() }
}

fn of_client(feed: &serve::Feed, id: &Id) -> Detail {
    let mut clients = feed.clients.iter();
    let found = clients.find(|client| client.volume == id.of && client_name(client) == id.name);
    let Some(client) = found else { return Detail::default() };
    let facts = vec![
        ("volume", format!("{} on pool {}", client.volume, client.pool)),
        ("tenant", client.tenant.clone()),
        ("worker", client.worker.to_string()),
        ("connected", uptime((feed.state.uptime_s - client.since_s).max(0.0))),
        ("requests", format!("{} so far, {} in flight", client.requests_total, client.in_flight_requests)),
        ("bytes", format!("{} received, {} sent", bytes(client.received_bytes_total), bytes(client.sent_bytes_total))),
    ];
    Detail { facts, decisions: Vec::new() }
}

fn of_agent(feed: &guard::Feed, tab: Tab, id: &Id, more: Option<&More>) -> Detail {
    let mut detail = Detail { facts: guard_facts(feed, tab, id), decisions: Vec::new() };
    let Some(More::Guard(all)) = more else { return detail };
    let told = all.decisions.iter().filter_map(|record| {
        let client = record.clients.iter().find(|client| client.client == id.name);
        let because = match tab {
            Tab::Initiators => client
                .map(|client| format!("waits {} ms: {}; {}", ms(client.delay_ms), client.because, record.because))?,
            Tab::Groups if record.of != id.name => return None,
            Tab::Queues if record.tenant != id.name => return None,
            Tab::Resources => format!("{} ({} throttled)", record.because, record.throttled),
            Tab::Osds => {
                let budget = record.set.map_or_else(|| "all".into(), |budget| bytes(budget as u64));
                format!("{} ({budget} in flight)", record.because)
            }
            _ => record.because.clone(),
        };
        Some(Told { from_s: record.from_s, until_s: record.until_s, times: record.times, because })
    });
    detail.decisions.extend(told);
    newest_first(&mut detail.decisions);
    detail
}

fn guard_facts(feed: &guard::Feed, tab: Tab, id: &Id) -> Vec<(&'static str, String)> {
    let state = &feed.state;
    let mut facts = Vec::new();
    match tab {
        Tab::Resources => {
            let Some((pool, resource)) = state.packets().find(|(pool, _)| pool.name == id.name) else { return facts };
            let devices: Vec<&str> = resource.devices.iter().map(|device| device.name.as_str()).collect();
            facts.push(("devices", format!("{}, {} requests in flight", devices.join(" "), resource.in_flight)));
            facts.push(("clients", resource.clients.len().to_string()));
            facts.push(("packets", resource.packets.clone()));
            facts.push(("why", pool.because.clone()));
        }
        Tab::Initiators => {
            let of = state.packets().find(|(pool, _)| pool.name == id.of);
            let found = of.and_then(|(_, of)| of.clients.iter().find(|client| client.address == id.name));
            let Some(client) = found else { return facts };
            facts.push(("names", client.names.join(" ")));
            facts.push(("throttle", client.throttle.clone()));
            facts.push(("load", if client.load_is_estimated { "estimated" } else { "measured" }.into()));
            facts.extend(client.exempt_because.iter().map(|why| ("exempt", why.clone())));
        }
        Tab::Groups => {
            let Some((pool, at)) = state.cgroups().find(|(pool, _)| pool.name == id.of) else { return facts };
            facts.push(("device", format!("{} {}, by {}", at.kind, at.device, pool.method)));
        }
        Tab::Queues => {
            let Some((_, array)) = state.queue_depths().find(|(pool, _)| pool.name == id.of) else { return facts };
            let Some(volume) = array.volumes.iter().find(|volume| volume.name == id.name) else { return facts };
            let slots = &volume.slots;
            let granted = slots.granted.map_or_else(|| "without bound".into(), |granted| format!("{granted:.1}"));
            facts.push(("device", volume.device.clone()));
            facts.push(("slots", format!("{granted}, needs {:.1}, uses {:.1}", slots.need, slots.used)));
            facts.push(("missed", format!("{} of {} s", slots.violated_total, slots.windows_total)));
            for queue in &volume.queues {
                let length = |length: Option<u32>| length.map_or_else(|| "-".into(), |length| length.to_string());
                let text =
                    format!("{} {} {} of {}", queue.disk, queue.setting, length(queue.value), length(queue.before));
                facts.push(("queue", text));
            }
        }
        Tab::Osds => {
            let Some((pool, osd)) = state.osds().find(|(pool, _)| pool.name == id.name) else { return facts };
            let set = osd.throttle_bytes.map_or_else(|| "without bound".into(), bytes);
            facts.push(("throttle", format!("{set}, {}, by {}", osd.condition, pool.method)));
            let inside = bytes(osd.measured.in_flight_bytes);
            facts.push(("in flight", format!("{inside}, {} waiting", osd.measured.waiting)));
            facts.push(("why", pool.because.clone()));
        }
        Tab::Pools | Tab::Tenants | Tab::Volumes | Tab::Clients => {}
    }
    facts
}

fn newest_first(decisions: &mut [Told]) {
    decisions.sort_by(|a, b| b.until_s.total_cmp(&a.until_s).then(b.from_s.total_cmp(&a.from_s)));
}
