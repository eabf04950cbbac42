// Answers of the server become figures of pools and tenants, with five minutes of history.

import { NO_READS, poolGoals, poolHold, poolWhy, tenantGoals, tenantHold, tenantWhy, worst } from "./judge.js";

/** Samples kept: five minutes at one a second. */
export const SAMPLES = 300;
/** What is kept of each subject and sample. */
const FIELDS = [
  "iops", "bytes", "queue", "device", "goalMs", "judgedMs", "guaranteedIops", "guaranteedBytes", "limitIops", "limitBytes",
  "bound", "used", "waiting", "inside", "rest",
];
const COLUMN = Object.fromEntries(FIELDS.map((field, index) => [field, index * SAMPLES]));

/** Names a pool, or a tenant on it, and is its address within the page. */
export const address = (pool, tenant) =>
  `#/${encodeURIComponent(pool)}${tenant === undefined ? "" : `/${encodeURIComponent(tenant)}`}`;

/** What was counted since the start. */
function counted(tenant) {
  return {
    requests: tenant.reads_total + tenant.writes_total + tenant.flushes_total + tenant.metas_total,
    bytes: tenant.read_bytes_total + tenant.write_bytes_total,
    errors: tenant.errors_total,
    reserved: tenant.by_reservation_total,
    weighted: tenant.by_weight_total,
    waits: tenant.latency.count,
    queue: tenant.queue_latency.sum_s,
    device: tenant.device_latency.sum_s,
    response: tenant.latency.sum_s,
  };
}

function add(a, b) {
  const sum = {};
  for (const key in b) sum[key] = (a[key] ?? 0) + b[key];
  return sum;
}

/** What was done between two counts. */
function worked(was, is, seconds) {
  if (!was) return null;
  const grown = (key) => Math.max(0, is[key] - was[key]);
  const waits = grown("waits");
  const mean = (key) => (waits > 0 ? (grown(key) * 1e3) / waits : NaN);
  return {
    iops: grown("requests") / seconds,
    bytes: grown("bytes") / seconds,
    errors: grown("errors"),
    reserved: grown("reserved") / seconds,
    weighted: grown("weighted") / seconds,
    queue: mean("queue"),
    device: mean("device"),
    response: mean("response"),
  };
}

const or = (value) => value ?? NaN;

/** What was guaranteed in a unit, in sum over the directions; NaN without a guarantee. */
function guaranteed(tenant, unit) {
  const own = tenant.guarantees.filter((guarantee) => guarantee.unit === unit);
  if (own.length > 0) return own.reduce((sum, guarantee) => sum + guarantee.guaranteed_per_s, 0);
  return or(unit === "bytes" ? tenant.qos.reservation_bytes_per_s : tenant.qos.reservation_iops);
}

export class Feed {
  constructor() {
    this.reset();
  }

  /** Forgets everything: a server that was started anew begins anew. */
  reset() {
    this.state = null;
    this.counts = new Map();
    this.subjects = new Map();
    this.histories = new Map();
    this.times = new Float64Array(SAMPLES).fill(NaN);
    this.taken = 0;
    this.epoch = (this.epoch ?? 0) + 1;
  }

  /** Takes an answer that came at `at` (ms of the day's clock). */
  take(state, at) {
    const was = this.state;
    if (was && state.uptime_s < was.uptime_s) this.reset();
    const before = this.state;
    const seconds = before ? Math.max(1e-3, state.uptime_s - before.uptime_s) : NaN;
    const previous = new Map();
    for (const pool of before?.pools ?? []) {
      for (const tenant of pool.tenants) previous.set(address(pool.name, tenant.name), tenant);
    }
    this.state = state;
    /** Added to a time of the server, in ms, gives one of the clock. */
    this.offset = at - state.uptime_s * 1e3;
    this.slot = this.taken % SAMPLES;
    this.taken += 1;
    this.times[this.slot] = state.uptime_s;
    const counts = new Map();
    this.subjects = new Map();
    const lookUp = (id, is) => {
      counts.set(id, is);
      return worked(this.counts.get(id), is, seconds);
    };
    for (const pool of state.pools) {
      let sum = { requests: 0, bytes: 0, errors: 0, reserved: 0, weighted: 0, waits: 0, queue: 0, device: 0, response: 0 };
      const tenants = pool.tenants.map((tenant) => {
        const id = address(pool.name, tenant.name);
        const count = counted(tenant);
        sum = add(sum, count);
        return this.#tenant(pool, tenant, id, lookUp(id, count), previous.get(id));
      });
      const id = address(pool.name);
      this.#pool(pool, id, lookUp(id, sum), tenants, sum.requests);
      for (const tenant of tenants) this.subjects.set(tenant.id, tenant);
    }
    this.counts = counts;
    for (const id of this.histories.keys()) {
      if (!this.subjects.has(id)) this.histories.delete(id);
    }
  }

  pools() {
    return [...this.subjects.values()].filter((subject) => subject.tenants);
  }

  tenants() {
    return [...this.subjects.values()].filter((subject) => !subject.tenants);
  }

  /** The history of a field: `[time, value]` for each sample, oldest first. */
  series(id, field) {
    const history = this.histories.get(id);
    const points = [];
    if (!history) return points;
    for (let age = Math.min(this.taken, SAMPLES) - 1; age >= 0; age -= 1) {
      const slot = (this.taken - 1 - age) % SAMPLES;
      points.push([this.times[slot], history[COLUMN[field] + slot]]);
    }
    return points;
  }

  #keep(id, values) {
    let history = this.histories.get(id);
    if (!history) {
      history = new Float32Array(FIELDS.length * SAMPLES).fill(NaN);
      this.histories.set(id, history);
    }
    for (const field of FIELDS) history[COLUMN[field] + this.slot] = values[field] ?? NaN;
  }

  #pool(pool, id, work, tenants, requests) {
    const goals = poolGoals(pool, work);
    const hold = poolHold(pool, work);
    const admission = pool.admission;
    const subject = {
      id, name: pool.name, pool: pool.name, raw: pool, work, goals, goal: worst(goals), hold, tenants, requests,
      waiting: pool.queued_requests, inside: admission.in_flight_requests, why: poolWhy(pool),
    };
    this.subjects.set(id, subject);
    this.#keep(id, {
      ...work,
      goalMs: or(pool.latency_target?.target_ms),
      judgedMs: NO_READS.has(pool.latency_target?.decision?.reason) ? NaN : or(pool.latency_target?.measured_ms),
      limitIops: or(pool.limit.iops),
      limitBytes: or(pool.limit.bytes_per_s),
      bound: or(admission.budget_bytes),
      used: admission.in_flight_bytes,
      waiting: subject.waiting,
      inside: subject.inside,
    });
  }

  #tenant(pool, tenant, id, work, was) {
    const goals = tenantGoals(tenant, was, work);
    const hold = tenantHold(tenant, work);
    const subject = {
      id, name: tenant.name, pool: pool.name, raw: tenant, work, goals, goal: worst(goals), hold,
      waiting: tenant.queued_requests, inside: tenant.in_flight_requests, why: tenantWhy(tenant, hold, pool),
    };
    const slots = tenant.slots;
    this.#keep(id, {
      ...work,
      goalMs: or(slots?.target_ms),
      guaranteedIops: guaranteed(tenant, "requests"),
      guaranteedBytes: guaranteed(tenant, "bytes"),
      limitIops: or(tenant.limit.iops),
      limitBytes: or(tenant.limit.bytes_per_s),
      bound: or(slots?.granted ?? tenant.throttled?.slots),
      used: slots ? slots.used : tenant.in_flight_requests,
      waiting: subject.waiting,
      inside: subject.inside,
      rest: or(tenant.throttled?.delay_ms),
    });
    return subject;
  }
}

/** Percentiles of what was counted between two answers, in ms; `null` if nothing was. */
export function percentiles(now, then, parts = [0.5, 0.99, 0.999]) {
  const old = new Map(then?.buckets ?? []);
  const grown = now.buckets.map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]);
  const total = grown.reduce((sum, [, count]) => sum + count, 0);
  if (total <= 0) return null;
  return parts.map((part) => {
    let seen = 0;
    for (const [bound, count] of grown) {
      seen += count;
      if (seen >= part * total) return bound * 1e3;
    }
    return NaN;
  });
}
