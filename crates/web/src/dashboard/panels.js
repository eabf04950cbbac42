// Everything that is shown in tables and lists: tenants, workers, volumes, connections, the cluster, settings.

import { address, isMissed, percentiles, VERDICTS } from "./feed.js";
import { byId, keyed, make, mark, say } from "./dom.js";
import { bytes, count, megabytes, ms, NONE, percent, plural, rates, span } from "./figures.js";
import { first, largest, PagedTable } from "./table.js";

const SIGNS = { missed: "✕", unachievable: "✕", met: "✓" };

const iops = { key: "iops", title: "IOPS", hint: "requests completed per second", numeric: true, order: largest((row) => row.work?.iops), text: (row) => count(row.work?.iops) };
const rate = { key: "bytes", title: "MB/s", hint: "payload, in 10⁶ bytes per second", numeric: true, order: largest((row) => row.work?.bytes), text: (row) => megabytes(row.work?.bytes) };

/** A bar of two parts beside the figure: the queue and the device. */
function fillResponse(cell, row) {
  if (!cell.parts) {
    cell.parts = { figure: make("span"), queue: make("i", { className: "queue" }), device: make("i", { className: "device" }) };
    cell.parts.bar = make("span", { className: "bar" }, cell.parts.device, cell.parts.queue);
    cell.append(cell.parts.figure, cell.parts.bar);
  }
  const work = row.work;
  say(cell.parts.figure, ms(work?.response));
  // Of the past, and of an agent, the parts are not known.
  const parted = work?.response > 0 && Number.isFinite(work.queue);
  const share = parted ? work.queue / work.response : 0;
  cell.parts.bar.style.visibility = parted ? "" : "hidden";
  cell.parts.queue.style.width = `${(share * 100).toFixed(0)}%`;
  cell.parts.device.style.width = `${(100 - share * 100).toFixed(0)}%`;
  mark(cell, "title", parted ? `${ms(work.queue)} ms in the queue, ${ms(work.device)} ms in the device` : null);
}

function fillTarget(cell, row) {
  const target = row.target;
  say(cell, target ? `${SIGNS[target.verdict] ?? "·"} ${isMissed(target) ? target.verdict.toUpperCase() : target.verdict} ${target.what}` : NONE);
  mark(cell, "data-verdict", target?.verdict ?? null);
  mark(cell, "title", row.targets.map((one) => `${one.verdict}: ${one.what}`).join("; ") || null);
}

const verdict = (row) => (row.target ? VERDICTS.indexOf(row.target.verdict) : VERDICTS.length);

/** Tenants of all pools. */
export function tenantTable() {
  return new PagedTable(byId("tenants"), {
    caption: "Tenants: rates, latencies, targets and what throttles them, over the last second",
    sort: "iops",
    key: (row) => row.id,
    href: (row) => row.id,
    match: (row) => `${row.name} ${row.pool} ${row.hold?.by ?? ""} ${row.target?.verdict ?? ""}`,
    columns: [
      { key: "name", title: "Tenant", hint: "clients and volumes with one QoS policy", order: first((row) => `${row.name} ${row.pool}`), text: (row) => row.name },
      iops,
      rate,
      { key: "response", title: "Latency ms", hint: "mean from arrival to completion, without the network; bar: the parts in the device and in the queue", numeric: true, order: largest((row) => row.work?.response), fill: fillResponse },
      { key: "p99", title: "p99 ms", hint: "99th percentile of the latencies: one request in a hundred took longer", numeric: true, order: largest((row) => row.work?.p99), text: (row) => ms(row.work?.p99) },
      { key: "errors", title: "Failed", hint: "requests that the device failed", numeric: true, order: largest((row) => row.work?.errors), text: (row) => count(row.work?.errors) },
      { key: "waiting", title: "Queued", hint: "requests that wait where they can still be reordered", numeric: true, order: largest((row) => row.waiting), text: (row) => count(row.waiting) },
      { key: "target", title: "Target", hint: "latency target, guarantee or reservation with its verdict: met, missed, unachievable, or idle (less was asked for)", order: (a, b) => verdict(a) - verdict(b), fill: fillTarget },
      {
        key: "hold", title: "Throttled by", hint: "owner and amount of the limit that binds; the reason is in the cell's tooltip", order: (a, b) => !a.hold - !b.hold,
        text: (row) => (row.hold ? `${row.hold.by}: ${row.hold.how}` : NONE), hover: (row) => row.why,
      },
    ],
  });
}

/** A bar beside a share. */
function fillBusy(cell, row) {
  if (!cell.parts) {
    cell.parts = { figure: make("span"), level: make("i", { className: "level" }) };
    cell.append(cell.parts.figure, make("span", { className: "bar" }, cell.parts.level));
  }
  say(cell.parts.figure, percent(row.busy));
  cell.parts.level.style.width = `${Math.min(100, row.busy * 100).toFixed(0)}%`;
}

/** Makes rates of counters, each by a name. */
class Paces {
  constructor() {
    this.were = new Map();
  }

  /** Rates of `things`; those that are gone are forgotten. `count(thing)` is `[name, total, time]`. */
  take(things, count) {
    const are = new Map();
    const paced = things.map((thing) => {
      const [name, total, at] = count(thing);
      const was = this.were.get(name);
      // Workers count once a second, not when they are asked.
      const same = was && at - was.at < 0.05;
      const rate = same ? was.rate : was && total >= was.total ? (total - was.total) / (at - was.at) : NaN;
      are.set(name, same ? was : { total, at, rate });
      return { ...thing, rate };
    });
    this.were = are;
    return paced;
  }
}

function workerTable() {
  return new PagedTable(byId("workers"), {
    caption: "Workers: load, connections and requests",
    sort: "index",
    size: 10,
    key: (row) => row.index,
    match: (row) => String(row.index),
    columns: [
      { key: "index", title: "Worker", hint: "a thread that serves connections, by its number", order: (a, b) => a.index - b.index, text: (row) => `${row.index}${row.leaving ? ", leaving" : ""}` },
      { key: "busy", title: "Busy", hint: "share of the last second in which the worker had something to do", numeric: true, order: largest((row) => row.busy), fill: fillBusy },
      { key: "connections", title: "Connections", hint: "connections of clients at present", numeric: true, order: largest((row) => row.connections), text: (row) => count(row.connections) },
      { key: "rate", title: "Requests/s", hint: "requests received per second", numeric: true, order: largest((row) => row.rate), text: (row) => count(row.rate) },
    ],
  });
}

/** Troubles that the page lists at most. */
const MOST_TROUBLES = 6;

/** What is wrong with a volume; the health of the server has failed requests. */
const trouble = (volume) => (volume.error ? `FAILED: ${volume.error}`
  : volume.remote && !volume.remote.connected ? `AWAY: ${volume.remote.last_error ?? "no connection"}`
    : volume.health ?? "");

/** Free part of a file system below which it is marked. */
const LITTLE = 0.05;

function fillFree(cell, { space }) {
  say(cell, space ? bytes(space.free_bytes) : NONE);
  mark(cell, "title", space ? `${bytes(space.free_bytes)} of ${bytes(space.capacity_bytes)} of its file system are free` : null);
  mark(cell, "data-verdict", space && space.free_bytes < LITTLE * space.capacity_bytes ? "missed" : null);
}

/** A column with the text that rows have under `key`. */
const text = (key, title, hint) => ({ key, title, hint, order: first((row) => row[key]), text: (row) => row[key] });

function volumeTable() {
  return new PagedTable(byId("volumes"), {
    caption: "Volumes",
    sort: "name",
    size: 10,
    key: (row) => row.name,
    match: (row) => row.name,
    columns: [
      text("name", "Volume", "name of the export"),
      {
        key: "size", title: "Size", hint: "space allocated in the file system, of the volume's size", numeric: true, order: largest((row) => row.size_bytes),
        text: (row) => (row.space ? `${bytes(row.space.allocated_bytes)} of ${bytes(row.size_bytes)}` : bytes(row.size_bytes)),
        hover: (row) => (row.trims_total ? `${count(row.trims_total)} trims, ${bytes(row.trimmed_bytes_total)} in all` : ""),
      },
      { key: "free", title: "Free", hint: "free space in the file system of the volume's file, for all volumes there", numeric: true, order: largest((row) => row.space?.free_bytes), fill: fillFree },
      text("tenant", "Tenant", "the tenant whose policy applies to the volume"),
      text("pool", "Pool", "the shared device on which the volume is"),
      { ...text("backend", "Backend", "kind of storage of its data; the place is in the cell's tooltip"), hover: (row) => row.path ?? row.remote?.uri ?? row.rbd?.image },
      { key: "connections", title: "Connections", hint: "connections of clients at present", numeric: true, order: largest((row) => row.connections), text: (row) => count(row.connections) },
      {
        key: "trouble", title: "State", hint: "ok, read-only, at its limit, or what is wrong", order: first((row) => (trouble(row) ? "" : row.throttled_by ? " " : "~")),
        text: (row) => trouble(row) || (row.throttled_by ? `at its limit of ${row.throttled_by.how}` : row.read_only ? "read-only" : "ok"),
        hover: (row) => trouble(row) || (row.throttled_by?.because ?? ""),
      },
    ],
  });
}

function clientTable() {
  return new PagedTable(byId("clients"), {
    caption: "Connections",
    sort: "rate",
    key: (row) => row.id,
    match: (row) => row.address,
    columns: [
      { key: "address", title: "Client", hint: "address of the client; of a Unix socket its user", order: first((row) => row.address), text: (row) => (row.address.startsWith("unix") ? `${row.address} #${row.id}` : row.address) },
      text("volume", "Volume", "the export that the client has opened"),
      text("tenant", "Tenant", "the tenant whose policy applies to the connection"),
      { key: "worker", title: "Worker", hint: "the thread that serves the connection", numeric: true, order: (a, b) => a.worker - b.worker, text: (row) => String(row.worker) },
      { key: "rate", title: "Requests/s", hint: "requests received per second", numeric: true, order: largest((row) => row.rate), text: (row) => count(row.rate) },
      { key: "inFlight", title: "In flight", hint: "requests not yet answered", numeric: true, order: largest((row) => row.in_flight_requests), text: (row) => count(row.in_flight_requests) },
    ],
  });
}

function memberTable() {
  return new PagedTable(byId("members"), {
    caption: "Members of the cluster",
    sort: "name",
    size: 10,
    key: (row) => row.name,
    match: (row) => row.name,
    columns: [
      text("name", "Member", "a host of the cluster"),
      text("presence", "Presence", "present; suspect: stopped reporting and keeps its share; expired: the other members have its share"),
      { key: "missed", title: "Missed periods", hint: "periods since its last report", numeric: true, order: largest((row) => row.missed_periods), text: (row) => count(row.missed_periods) },
    ],
  });
}

/** Address of the pool or tenant that a trouble is about, or of the volume's pool; "" if it is about none. */
export function subjectOf({ about }, volumes) {
  const [, tenant, volume, pool] = /^(?:tenant (\S+) in |volume (\S+)$)?(?:pool ([^\s,]+))?/.exec(about) ?? [];
  if (pool) return address(pool, tenant);
  const of = volumes.find((one) => one.name === volume)?.pool;
  return of ? address(of) : "";
}

/** Troubles with what to do, worst first, and with the addresses of their subjects. */
export function troubles(all, volumes) {
  const shown = all.slice(0, MOST_TROUBLES).map((one) => {
    const { about, because, cure, level } = one;
    return { text: `${level === "critical" ? "CRITICAL: " : ""}${about && `${about}: `}${because}.${cure && ` What to do: ${cure}.`}`, href: subjectOf(one, volumes) };
  });
  if (all.length > shown.length) shown.push({ text: `And ${all.length - shown.length} more: evenkeel health.`, href: "" });
  return shown;
}

/** Shows troubles above all else; each leads to its subject. */
export function showTroubles(told) {
  const list = byId("troubles");
  list.hidden = told.length === 0;
  keyed(list, told.map((one, i) => ({ ...one, i })), ({ i, href }) => `${i} ${href}`,
    ({ href }) => make("li", {}, href ? make("a", { href }) : make("span")), (item, { text }) => say(item.firstChild, text));
}

export class Panels {
  constructor() {
    this.workers = workerTable();
    this.volumes = volumeTable();
    this.clients = clientTable();
    this.members = memberTable();
    this.workerPaces = new Paces();
    this.clientPaces = new Paces();
  }

  draw(state) {
    this.workers.show(this.workerPaces.take(state.workers, (worker) => [worker.index, worker.requests_total, state.uptime_s]));
    // Requests that failed minutes ago are a warning: the volume does not fail at present.
    const words = ({ because, level }) => `${level === "critical" ? "FAILING" : "WARNING"}: ${because}`;
    const failing = new Map(state.health.troubles.map((one) => [one.about, words(one)]).reverse());
    this.volumes.show(state.volumes.map((volume) => ({ ...volume, health: failing.get(`volume ${volume.name}`) })));
    const { method, because, moves_total: moves } = state.placement;
    say(byId("placement"), `Placement by ${method}: ${because}; ${plural(moves, "connection")} moved so far.`);
    const cluster = state.cluster;
    byId("cluster-panel").hidden = !cluster;
    if (cluster) {
      const ago = cluster.age_s === null ? "" : `, last report ${span(cluster.age_s)} ago`;
      say(byId("cluster"), `${cluster.status}: ${cluster.because}. Cluster ${cluster.name}, this host is ${cluster.host}; period ${cluster.period_s} s, last decided ${cluster.decided_period ?? NONE}${ago}; takes ${percent(cluster.ramp)} of its share; ${plural(cluster.counted_members || cluster.members.length, "member")}${cluster.shard ? ` in ${cluster.shards.length} shards, its own is ${cluster.shard}` : ""}. ${cluster.connected ? `Connected to ${cluster.endpoint ?? NONE}` : "Not connected"}${cluster.error ? `: ${cluster.error}` : ""}.`);
      this.members.show(cluster.members);
    }
  }

  /** Connections, which are asked for only while they are shown. */
  drawClients(answer) {
    this.clients.show(this.clientPaces.take(answer.clients, (client) => [client.id, client.requests_total, client.counted_at_s]));
  }
}

function poolFacts(pool) {
  const { admission, limit, latency_target: target, slots } = pool.raw;
  const facts = [
    ["scheduler", pool.raw.scheduler],
    ["limit", rates(limit.iops, limit.bytes_per_s)],
    ["requests", `${pool.waiting} queued, ${pool.inFlight} in flight`],
    ["admission", `${admission.kind}: ${bytes(admission.in_flight_bytes)} in flight, budget ${admission.budget_bytes === null ? "without bound" : bytes(admission.budget_bytes)}${admission.target_ms === null ? "" : `, target ${ms(admission.target_ms)} ms`}`],
    ["why", pool.why],
  ];
  if (admission.target_reason && admission.target_reason !== admission.reason) facts.push(["why admission target", admission.target_reason]);
  if (target) facts.push(["latency target", `${target.percentile} of reads below ${target.target_ms} ms, ${target.measured_ms === null ? "nothing measured yet" : `last ${ms(target.measured_ms)} ms`}`]);
  if (slots) facts.push(["slots", `${slots.total === null ? "without bound" : slots.total.toFixed(1)}, by ${slots.method}, ${slots.clustered ? "with other hosts" : "alone"}`]);
  return facts;
}

function tenantFacts(tenant, whole, before) {
  const { qos, limit, slots, guarantees } = tenant.raw;
  const owner = limit.iops_owner ?? limit.bytes_per_s_owner;
  const facts = [
    ["guaranteed", `reservation ${rates(qos.reservation_iops, qos.reservation_bytes_per_s)}, weight ${qos.weight}, ${qos.priority}, ${tenant.raw.throttle}`],
    ["limit", `${rates(limit.iops, limit.bytes_per_s)}${owner ? ` (by ${owner})` : ""}`],
    ["why", tenant.why],
    ["requests", `${tenant.waiting} queued, ${tenant.inFlight} in flight, ${plural(tenant.raw.connections, "connection")}, ${plural(tenant.raw.errors_total, "error")}`],
  ];
  if (whole) {
    const since = before ? "just now" : "since the start";
    for (const [name, key] of [["latency", "latency"], ["queue", "queue_latency"], ["device", "device_latency"]]) {
      const found = percentiles(whole[key], before?.[key]);
      if (found) facts.push([name, `p50 ${ms(found[0])} ms, p99 ${ms(found[1])} ms, p99.9 ${ms(found[2])} ms, ${since}`]);
    }
  }
  if (slots) facts.push(["slots", ofSlots(slots)]);
  if (tenant.raw.parts) facts.push(["totals", ofTotals(qos, tenant.raw.parts)]);
  return [...facts, ...ofGuarantees(guarantees)];
}

function ofTotals(qos, parts) {
  const of = (which) => [parts, qos].map((one) => rates(one[`${which}_iops`], one[`${which}_bytes_per_s`])).join(" of ");
  return `here reservation ${of("reservation")}, limit ${of("limit")} in the cluster`;
}

/** Totals of a tenant, or in a pool of tenants of other hosts only, with the parts of each host. */
function byHost(state, { pool, name, tenants }) {
  const isShown = (of) => of.pool === pool && (tenants ? !tenants.some((tenant) => tenant.name === of.tenant) : of.tenant === name);
  const totals = (state.cluster?.totals?.by_host ?? []).filter(isShown).slice(0, 8);
  return totals.map(({ tenant, unit, hosts, more_hosts: more, more_part: rest }) => {
    const parts = hosts.map(({ host, part }) => `${host} ${percent(part)}`);
    if (more) parts.push(`${more} more ${percent(rest)}`);
    return [tenants ? `elsewhere: ${tenant}, ${unit}` : `${unit} by host`, parts.join(", ")];
  });
}

function ofSlots(slots) {
  const granted = slots.granted === null ? "without bound" : slots.granted.toFixed(1);
  return `${granted}, needs ${slots.need.toFixed(1)}, uses ${slots.used.toFixed(1)}; missed ${slots.violated_total} of ${slots.windows_total} s: ${slots.because}`;
}

function ofGuarantees(guarantees) {
  return guarantees.map((guarantee, i) => {
    const of = guarantee.of === "all" ? "" : ` of ${guarantee.of}s`;
    const per = (value) => (guarantee.unit === "bytes" ? `${megabytes(value)} MB/s` : `${count(value)} IOPS`);
    // Several control groups of a tenant have one each.
    const name = guarantees.findIndex((one) => one.of === guarantee.of) === i ? `guarantee${of}` : `guarantee${of}, ${i + 1}`;
    const part = guarantee.total_per_s ? `, part of ${per(guarantee.total_per_s)} in the cluster` : "";
    return [name, `${per(guarantee.guaranteed_per_s)}${part}, got ${per(guarantee.measured_per_s ?? NaN)}; what binds: ${guarantee.binding}; ${guarantee.because}`];
  });
}

/** Settings and figures of a pool or tenant of an agent. */
function agentFacts(subject, points, reads) {
  const { raw } = subject;
  const facts = points.map(({ point, acts_on: actsOn, method, notes }) => [point, `${actsOn}, by ${method}${notes.map((note) => `; ${note}`).join("")}`]);
  if (!subject.tenants && raw.throttle) facts.push(["throttle", raw.throttle]);
  facts.push(["why", subject.why]);
  const target = raw.latency_target;
  if (target) facts.push(["latency target", `${target.percentile} of reads below ${target.target_ms} ms, ${target.measured_ms === null ? "nothing measured" : `last ${ms(target.measured_ms)} ms`}`]);
  if (reads && subject.tenants) facts.push(["read latency", `p50 ${ms(reads.p50_ms)} ms, p99 ${ms(reads.p99_ms)} ms, p99.9 ${ms(reads.p999_ms)} ms, last 5 to 10 s`]);
  if (raw.slots?.need !== undefined) facts.push(["slots", ofSlots(raw.slots)]);
  return [...facts, ...ofGuarantees(raw.guarantees ?? [])];
}

/** Settings and figures of what is looked at. `whole`, `before`: the newest full records of a tenant, if there are. */
export function showFacts(state, subject, whole, before) {
  const facts = state.points ? agentFacts(subject, state.points[subject.pool] ?? [], state.percentiles?.[subject.pool])
    : [...(subject.tenants ? poolFacts(subject) : tenantFacts(subject, whole, before)), ...byHost(state, subject)];
  keyed(byId("facts"), facts, ([name]) => name, () => make("div", {}, make("dt"), make("dd")), (node, [name, text]) => {
    say(node.firstChild, name);
    say(node.lastChild, text);
  });
}

/** Links to the pools, where there are several. */
export function showPools(pools, chosen) {
  const nav = byId("pools");
  nav.hidden = pools.length < 2;
  keyed(nav, pools, (pool) => pool.id, (pool) => make("a", { href: pool.id }), (link, pool) => {
    say(link, `${pool.name}${isMissed(pool.target) ? " ✕" : ""}`);
    mark(link, "aria-current", pool.id === chosen ? "true" : null);
  });
}
