"use strict";
// Shows /api/v1/state. Names come from configurations and clients, so everything goes in as text, never as markup.

const PERIOD_MS = 1000;
let before = null;

const element = (tag, text, parent, kind) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  if (parent) parent.append(made);
  return made;
};

const scaled = (value, base, units) => {
  let step = 0;
  while (value >= base && step < units.length - 1) { value /= base; step += 1; }
  return (value >= 100 || step === 0 ? value.toFixed(0) : value.toFixed(1)) + units[step];
};
const count = value => scaled(value, 1000, ["", " k", " M", " G"]);
const bytes = value => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const ms = value => value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(3);
const rates = (iops, rate) => [iops === null ? null : count(iops) + " IOPS", rate === null ? null : bytes(rate) + "/s"]
  .filter(part => part !== null).join(", ") || "–";

const fill = (table, head, rows) => {
  table.replaceChildren();
  const top = element("tr", undefined, element("thead", undefined, table));
  head.forEach(text => element("th", text, top));
  const body = element("tbody", undefined, table);
  rows.forEach(row => {
    const line = element("tr", undefined, body);
    row.forEach(text => element("td", text, line));
  });
};

const perSecond = (now, then, seconds) => then === undefined || seconds <= 0 ? 0 : Math.max(0, (now - then) / seconds);

// Upper bounds of the quantiles of what was counted between two looks, from the buckets of both.
const recent = (now, then, name) => {
  const counted = new Map(then === undefined ? [] : then[name].buckets);
  const grown = now[name].buckets.map(([bound, n]) => [bound, n - (counted.get(bound) ?? 0)]).filter(([, n]) => n > 0);
  const total = grown.reduce((sum, [, n]) => sum + n, 0);
  const quantile = q => {
    let seen = 0;
    return grown.find(([, n]) => { seen += n; return seen >= q * total; })[0] * 1000;
  };
  return total === 0 ? "–" : ms(quantile(0.5)) + " / " + ms(quantile(0.99));
};

const tenantRow = (tenant, then, seconds) => {
  const requests = t => t === undefined ? undefined : t.reads_total + t.writes_total + t.flushes_total + t.metas_total;
  const payload = t => t === undefined ? undefined : t.read_bytes_total + t.write_bytes_total;
  return [
    tenant.name + (tenant.qos.class === "background" ? " (background)" : ""),
    rates(tenant.qos.reservation_iops, tenant.qos.reservation_bytes_per_s),
    tenant.qos.weight,
    rates(tenant.limit.iops, tenant.limit.bytes_per_s),
    count(perSecond(requests(tenant), requests(then), seconds)),
    bytes(perSecond(payload(tenant), payload(then), seconds)) + "/s",
    tenant.queued_requests + " / " + tenant.inside_requests,
    recent(tenant, then, "queue_wait"),
    recent(tenant, then, "device_latency"),
    tenant.connections,
    tenant.errors_total,
  ];
};

const TENANT_HEAD = ["Tenant", "Reserved", "Weight", "Limit", "IOPS", "Payload", "Queued / inside",
  "Queue wait p50 / p99 ms", "Device p50 / p99 ms", "Conns", "Errors"];

const showPool = (pool, then, seconds, parent) => {
  const section = element("section", undefined, parent);
  element("h2", "Pool " + pool.name, section);
  const admission = pool.admission;
  const budget = admission.budget_bytes === null ? "no bound" : bytes(admission.budget_bytes);
  const target = admission.target_ms === null ? "" : ", target " + ms(admission.target_ms) + " ms";
  element("p", "Scheduler " + pool.scheduler + ", limit " + rates(pool.limit.iops, pool.limit.bytes_per_s) + ", "
    + pool.queued_requests + " queued. Admission " + admission.kind + ": " + bytes(admission.inside_bytes) + " in "
    + admission.inside_requests + " requests inside, budget " + budget + target + ".", section);
  element("p", "Why: " + [...new Set([admission.reason, admission.target_reason])].filter(text => text).join("; "), section, "reason");
  if (pool.goal && pool.goal.decision) {
    element("p", "Goal: " + pool.goal.statistic + " of reads below " + ms(pool.goal.goal_ms) + " ms. Why: "
      + pool.goal.decision.because, section, "reason");
  }
  pool.tenants.forEach(tenant => tenant.promises.forEach(promise => {
    // In the units of the reason behind it.
    const promised = promise.unit === "requests" ? count(promise.promised_per_s) + " requests"
      : promise.promised_per_s >= 1e5 ? (promise.promised_per_s / 1e6).toFixed(1) + " MB" : promise.promised_per_s + " B";
    const of = promise.of === "all" ? "" : " of " + promise.of + "s";
    element("p", tenant.name + " was promised " + promised + "/s" + of + "; what binds: " + promise.binding + ". Why: "
      + promise.because, section, "reason");
  }));
  const table = element("table", undefined, element("div", undefined, section, "scroll"));
  const thenByName = new Map((then ? then.tenants : []).map(tenant => [tenant.name, tenant]));
  fill(table, TENANT_HEAD, pool.tenants.map(tenant => tenantRow(tenant, thenByName.get(tenant.name), seconds)));
};

const problems = state => {
  const found = [];
  if (state.draining) found.push("The server is stopping.");
  state.volumes.filter(volume => volume.error).forEach(volume => found.push("Volume " + volume.name + ": " + volume.error));
  state.volumes.filter(volume => volume.remote && !volume.remote.connected).forEach(volume => found.push("Volume "
    + volume.name + ": " + volume.remote.uri + " is away: " + (volume.remote.last_error || "no connection")));
  state.pools.forEach(pool => pool.overdue.forEach(io => found.push("Pool " + pool.name + ": " + io.kind + " of "
    + bytes(io.length_bytes) + " at " + io.offset_bytes + " of volume " + io.volume + " has been inside the device for "
    + io.age_s.toFixed(0) + " s")));
  return found;
};

const alarm = lines => {
  const box = document.getElementById("problems");
  box.hidden = lines.length === 0;
  box.textContent = lines.join("\n");
};

const show = state => {
  const seconds = before ? state.uptime_s - before.uptime_s : 0;
  document.getElementById("summary").textContent = "version " + state.version + ", up " + state.uptime_s.toFixed(0)
    + " s, " + state.engine + ", " + state.workers.length + " workers, " + state.connections + " connections, buffers "
    + bytes(state.buffer_memory_used_bytes) + " of " + bytes(state.buffer_memory_limit_bytes)
    + (state.read_only ? ", read-only" : "");
  alarm(problems(state));
  const thenByName = new Map((before ? before.pools : []).map(pool => [pool.name, pool]));
  const pools = document.createDocumentFragment();
  state.pools.forEach(pool => showPool(pool, thenByName.get(pool.name), seconds, pools));
  document.getElementById("pools").replaceChildren(pools);
  fill(document.getElementById("volumes"), ["Volume", "Size", "Backend", "Pool", "Tenant", "Conns", "Access"],
    state.volumes.map(volume => [volume.name, bytes(volume.size_bytes), volume.backend, volume.pool, volume.tenant,
      volume.connections, volume.read_only ? "read-only" : "read and write"]));
  before = state;
};

const refresh = async () => {
  try {
    const answer = await fetch("/api/v1/state", { cache: "no-store" });
    if (!answer.ok) throw new Error("status " + answer.status);
    show(await answer.json());
  } catch (error) {
    alarm(["The server does not answer: " + error.message]);
  }
  setTimeout(refresh, PERIOD_MS);
};
refresh();
