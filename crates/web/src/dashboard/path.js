// The I/O path as a picture: what a request passes, from its client to the device, with the figures of now.

import { byId, keyed, make, mark, say, shape } from "./dom.js";
import { bytes, count, megabytes, ms, percent, plural, rates } from "./figures.js";

/** Bars drawn in a picture; the rest is shown in figures. */
const BARS = 8;

/** Bars beside each other, as parts of the whole height. */
function bars(parts) {
  const shown = parts.slice(0, BARS);
  const width = 64 / Math.max(4, shown.length);
  return shown.flatMap((part, index) => [
    shape("rect", { class: "trough", x: 8 + index * width, y: 4, width: width - 3, height: 32, rx: 2 }),
    shape("rect", { class: "level", x: 8 + index * width, y: 36 - 32 * part, width: width - 3, height: 32 * part, rx: 2 }),
  ]);
}

/** Rows below each other, as parts of the whole width. */
function rows(parts) {
  const shown = parts.slice(0, 4);
  const height = 32 / Math.max(2, shown.length);
  return shown.flatMap(({ part, held }, index) => [
    shape("rect", { class: "trough", x: 8, y: 4 + index * height, width: 64, height: height - 3, rx: 2 }),
    shape("rect", { class: held ? "level held" : "level", x: 8, y: 4 + index * height, width: 64 * part, height: height - 3, rx: 2 }),
  ]);
}

/** A tank, filled so far; what waits stands in front of it. */
function tank(part, waiting) {
  const dots = Math.min(4, Math.ceil(Math.log2(1 + waiting)));
  const queue = Array.from({ length: dots }, (_, i) => shape("circle", { class: "waits", cx: 27 - i * 7, cy: 20, r: 2.6 }));
  return [
    ...queue,
    shape("rect", { class: "trough", x: 34, y: 4, width: 38, height: 32, rx: 3 }),
    shape("rect", { class: "level", x: 34, y: 36 - 32 * part, width: 38, height: 32 * part, rx: 3 }),
  ];
}

function people(connections) {
  return Array.from({ length: Math.min(12, connections) }, (_, i) =>
    shape("circle", { class: "level", cx: 15 + (i % 6) * 10, cy: connections > 6 ? 13 + Math.floor(i / 6) * 13 : 20, r: 3.6 }));
}

function device(inFlight) {
  const platter = (y, busy) => shape("ellipse", { class: busy ? "level" : "trough", cx: 40, cy: y, rx: 26, ry: 6 });
  const busy = Math.min(4, Math.ceil(Math.log2(1 + inFlight)));
  return [33, 25, 17, 9].map((y, i) => platter(y, i < busy));
}

const top = (parts) => [...parts].sort((a, b) => b.part - a.part);

/** How near a tenant is to the limit in force, or to what it was guaranteed; 0 without either. */
function near(tenant) {
  const work = tenant.work;
  if (!work) return 0;
  const { limit, qos } = tenant.raw;
  const part = (got, of) => (of ? got / of : 0);
  const bound = Math.max(part(work.iops, limit.iops), part(work.bytes, limit.bytes_per_s));
  return Math.min(1, bound || Math.max(part(work.iops, qos.reservation_iops), part(work.bytes, qos.reservation_bytes_per_s)));
}

/** Enforcement points of an agent. */
const POINTS = { packets: "Packets", cgroup: "Control groups", queue_depth: "Disk queues", osd: "OSD throttle" };

/** The stages of a pool of an agent: its clients, the points where they are throttled, the device. */
function points(state, pool, subject) {
  const { tenants } = pool;
  const held = tenants.filter((one) => one.hold);
  const most = tenants.reduce((sum, one) => Math.max(sum, one.work?.bytes ?? 0), 1);
  const loads = top(tenants.map((one) => ({ part: (one.work?.bytes ?? 0) / most, held: one.hold !== null }))).filter((one) => one.part > 0);
  return [
    {
      key: "clients", title: "Clients", picture: people(tenants.length),
      figure: plural(tenants.length, "client"),
      notes: [subject.tenants ? "" : `chosen: ${subject.name}`, `${count(subject.work?.iops)} IOPS, ${megabytes(subject.work?.bytes)} MB/s`],
    },
    ...(state.points[pool.name] ?? []).map(({ point, method, acts_on: actsOn, notes }) => ({
      key: point, title: POINTS[point] ?? point, picture: rows(loads),
      figure: subject.tenants ? `${held.length} of ${tenants.length} throttled` : subject.hold ? subject.hold.how : "not throttled",
      waits: subject.hold !== null, word: "throttled here",
      notes: [`${actsOn}, by ${method}`, notes[0] ?? ""],
    })),
    {
      key: "device", title: "Device", picture: device(subject.inFlight),
      figure: `${ms(pool.work?.device)} ms`,
      notes: [`${plural(pool.inFlight, "request")} in flight`, pool.waiting > 0 ? `${count(pool.waiting)} queued` : ""],
    },
  ];
}

/** The stages of a pool's path; `subject` is the pool, or the tenant that is looked at. */
function stages(state, pool, subject) {
  if (state.points) return points(state, pool, subject);
  const { admission, slots } = pool.raw;
  const tenant = subject.tenants ? null : subject;
  const workers = state.workers;
  const busy = workers.reduce((sum, worker) => sum + worker.busy, 0) / Math.max(1, workers.length);
  const busiest = workers.reduce((a, b) => (b.busy > (a?.busy ?? -1) ? b : a), null);
  const held = pool.tenants.filter((one) => one.hold);
  // What requests of the subject are queued for: a tenant that nothing throttles by name waits as its pool does.
  const cause = subject.waiting > 0 ? (subject.hold ?? pool.hold)?.cause ?? "" : null;
  const volumes = state.volumes.filter((volume) => volume.pool === pool.name);
  const connections = tenant ? tenant.raw.connections : pool.tenants.reduce((sum, one) => sum + one.raw.connections, 0);
  const list = [
    {
      key: "clients", title: "Clients", picture: people(connections),
      figure: plural(connections, "connection"),
      notes: [tenant ? `of ${tenant.name}` : plural(volumes.length, "volume"), `${count(subject.work?.iops)} IOPS, ${megabytes(subject.work?.bytes)} MB/s`],
    },
    {
      key: "workers", title: "Workers", picture: bars(workers.map((worker) => worker.busy)),
      figure: `${percent(busy)} busy`, waits: busiest?.busy > 0.95,
      notes: [
        busiest ? `busiest: ${busiest.index}, ${percent(busiest.busy)}` : "",
        `buffers ${bytes(state.buffer_memory_used_bytes)} of ${bytes(state.buffer_memory_limit_bytes)}`,
      ],
    },
    {
      key: "tenants", title: pool.raw.scheduler === "mclock" ? "Limits and mClock" : "First come, first served",
      picture: rows(top(pool.tenants.map((one) => ({ part: near(one), held: one.hold !== null }))).filter((one) => one.part > 0)),
      figure: `${count(subject.waiting)} queued`,
      // Of a pool that nothing throttles, requests are queued for limits of its tenants.
      waits: ["limit", "latency_target", ""].includes(cause),
      notes: tenant
        ? [tenant.hold ? `throttled by ${tenant.hold.by}: ${tenant.hold.how}` : "not throttled", `limit ${rates(tenant.raw.limit.iops, tenant.raw.limit.bytes_per_s)}`]
        : [held.length > 0 ? `${held.length} of ${pool.tenants.length} tenants throttled` : `${plural(pool.tenants.length, "tenant")}, none throttled`,
          `reservation ${count(pool.work?.reserved)}/s, weight ${count(pool.work?.weighted)}/s`],
    },
  ];
  if (slots) {
    const own = tenant?.raw.slots;
    list.push({
      key: "slots", title: `Slots: ${slots.method}`,
      picture: own ? tank(own.granted ? Math.min(1, own.used / own.granted) : 0, 0)
        : rows(top(pool.tenants.filter((one) => one.raw.slots?.granted).map((one) => ({ part: Math.min(1, one.raw.slots.used / one.raw.slots.granted), held: one.hold !== null })))),
      figure: own ? `${count(own.used)} of ${own.granted === null ? "any" : count(own.granted)}` : slots.total === null ? "no bound" : `${count(slots.total)} in all`,
      waits: cause === "slots",
      notes: [own ? `needs ${count(own.need)}` : slots.tightness === null ? "" : `targets need ${percent(slots.tightness)} of what there is`,
        slots.clustered ? `cluster: ${state.cluster?.status ?? "?"}` : "this host alone"],
    });
  }
  const limit = pool.raw.limit;
  if (limit.iops || limit.bytes_per_s) {
    const part = pool.work ? Math.max(limit.iops ? pool.work.iops / limit.iops : 0, limit.bytes_per_s ? pool.work.bytes / limit.bytes_per_s : 0) : 0;
    list.push({
      key: "limit", title: "Pool limit", picture: rows([{ part: Math.min(1, part), held: pool.hold?.cause === "pool_limit" }]),
      figure: rates(limit.iops, limit.bytes_per_s), waits: cause === "pool_limit",
      notes: [`${percent(part)} of the limit used`, pool.hold?.cause === "pool_limit" ? `set by ${pool.hold.by}` : ""],
    });
  }
  const full = admission.budget_bytes ? Math.min(1, admission.in_flight_bytes / admission.budget_bytes) : 0;
  list.push({
    key: "admission", title: `Admission: ${admission.kind}`, picture: tank(full, pool.waiting),
    figure: admission.budget_bytes === null ? "no bound" : `${bytes(admission.in_flight_bytes)} of ${bytes(admission.budget_bytes)}`,
    waits: cause === "admission",
    notes: [admission.reason],
  });
  const backends = [...new Set(volumes.map((volume) => volume.backend))].join(", ");
  list.push({
    key: "device", title: "Device", picture: device(subject.inFlight),
    figure: `${ms(subject.work?.device)} ms`, waits: pool.raw.overdue.length > 0,
    notes: [`${plural(subject.inFlight, "request")} in flight`, pool.raw.overdue.length > 0 ? `${pool.raw.overdue.length} OVERDUE` : backends],
  });
  return list;
}

/** Definitions of the stages, for their tooltips. */
const HINTS = {
  clients: "connections from which requests come",
  workers: "threads that serve connections",
  tenants: "requests wait here for limits and throttles of their tenants, and for their turn by reservation and weight",
  slots: "requests that tenants may have in flight, shared out by what their latency targets need",
  limit: "the rate of requests or bytes that the pool never exceeds",
  admission: "the budget: how much may be in flight in the device at once",
  device: "the storage behind the volumes; its latency begins when a request leaves the queue",
  packets: "packets of noisy clients are delayed here",
  cgroup: "control groups are limited here (io.max)",
  queue_depth: "queues of shared disks are shortened here",
  osd: "the throttle of the OSD is set here",
};

function create(stage) {
  const node = make("li", { className: "stage" });
  node.parts = {
    picture: shape("svg", { viewBox: "0 0 80 40", "aria-hidden": "true" }),
    title: make("h3", { title: HINTS[stage.key] ?? "" }),
    figure: make("p", { className: "figure" }),
    notes: [make("p", { className: "note" }), make("p", { className: "note" })],
    waits: make("p", { className: "queued-here" }),
  };
  node.dataset.stage = stage.key;
  const { title, picture, figure, notes, waits } = node.parts;
  node.append(title, picture, figure, ...notes, waits);
  return node;
}

function update(node, stage) {
  const { title, picture, figure, notes, waits } = node.parts;
  say(title, stage.title);
  say(figure, stage.figure);
  notes.forEach((note, i) => {
    say(note, stage.notes[i] ?? "");
    mark(note, "title", stage.notes[i] || null);
  });
  say(waits, stage.waits ? stage.word ?? "queued here" : "");
  node.classList.toggle("waiting", Boolean(stage.waits));
  picture.replaceChildren(...stage.picture);
}

/** How fast the pipes between the stages move: 0 not at all, 3 fast. */
function flow(iops) {
  if (!(iops > 0)) return 0;
  return iops < 100 ? 1 : iops < 3000 ? 2 : 3;
}

/** Draws the path of `pool` as `subject` (it, or one of its tenants) goes along it. */
export function showPath(state, pool, subject) {
  const path = byId("path");
  mark(path, "data-flow", flow(subject.work?.iops));
  keyed(path, stages(state, pool, subject), (stage) => stage.key, create, update);
  const work = subject.work;
  const split = byId("split");
  if (!(work?.response >= 0)) {
    say(split, "nothing completed just now");
    return;
  }
  if (!Number.isFinite(work.queue)) {
    say(split, `${subject.name}: latency ${ms(work.response)} ms`);
    return;
  }
  const share = work.response > 0 ? work.queue / work.response : 0;
  say(split, `${subject.name}: latency ${ms(work.response)} ms = ${ms(work.queue)} in the queue + ${ms(work.device)} in the device (${percent(share)} of the latency in the queue)`);
}
