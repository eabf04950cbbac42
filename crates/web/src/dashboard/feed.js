// Answers of the server become figures of pools and tenants, with those of ten minutes. Times are Unix time in seconds.

/** Verdicts as the server gives them, the worst first. */
export const VERDICTS = ["missed", "unachievable", "met", "idle"];
/** Whether a target is not met. */
export const isMissed = (target) => target?.verdict === "missed" || target?.verdict === "unachievable";
/** Of several targets the worst one. */
const worst = (targets) =>
  targets.reduce((a, b) => (!a || VERDICTS.indexOf(b.verdict) < VERDICTS.indexOf(a.verdict) ? b : a), null);

/** Samples kept: ten minutes at one a second. */
const SAMPLES = 600;
/** A clock that differs by more has been set, in seconds; a slow answer makes no difference. */
const SET_S = 2;
/** What is kept of each subject and sample. */
const FIELDS = [
  "iops", "bytes", "errors", "queue", "device", "p99", "targetMs", "judgedMs", "guaranteedIops", "guaranteedBytes", "limitIops",
  "limitBytes", "bound", "used", "waiting", "inFlight", "delay",
];
const COLUMN = Object.fromEntries(FIELDS.map((field, index) => [field, index * SAMPLES]));

/** Names a pool, or a tenant on it, and is its address within the page. */
export const address = (pool, tenant) =>
  `#/${encodeURIComponent(pool)}${tenant === undefined ? "" : `/${encodeURIComponent(tenant)}`}`;

const or = (value) => value ?? NaN;
/** A figure that an answer leaves out while it is 0. */
const sent = (value) => value ?? 0;

/** What a pool or tenant got, its verdicts, and what throttles it. */
function judged(lately) {
  const targets = lately?.targets ?? [];
  const work = lately && {
    // Of some clients of an agent only bytes are counted.
    iops: !lately.iops && lately.bytes_per_s > 0 ? NaN : sent(lately.iops),
    bytes: sent(lately.bytes_per_s),
    errors: sent(lately.errors),
    reserved: sent(lately.by_reservation_iops),
    weighted: sent(lately.by_weight_iops),
    response: or(lately.latency_ms),
    queue: or(lately.queue_latency_ms),
    device: or(lately.device_latency_ms),
    p99: or(lately.p99_ms),
  };
  return { work, targets, target: worst(targets), hold: lately?.throttled_by ?? null, why: lately?.because ?? "" };
}

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
    this.subjects = new Map();
    this.histories = new Map();
    this.times = new Float64Array(SAMPLES).fill(NaN);
    this.taken = 0;
    /** When the server started, when the first answer came, and when the newest did. */
    this.start = NaN;
    this.since = NaN;
    this.time = NaN;
    this.epoch = (this.epoch ?? 0) + 1;
  }

  /** Takes an answer that was given at `at`. */
  take(state, at) {
    if (this.state && state.uptime_s < this.state.uptime_s) this.reset();
    this.state = state;
    if (!(Math.abs(at - state.uptime_s - this.start) < SET_S)) this.start = at - state.uptime_s;
    this.time = this.start + state.uptime_s;
    if (Number.isNaN(this.since)) this.since = this.time;
    this.slot = this.taken % SAMPLES;
    this.taken += 1;
    this.times[this.slot] = this.time;
    this.subjects = new Map();
    for (const pool of state.pools) {
      const tenants = pool.tenants.map((tenant) => this.#tenant(pool, tenant));
      this.#pool(pool, tenants);
      for (const tenant of tenants) this.subjects.set(tenant.id, tenant);
    }
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

  /** What was seen of a field: `[time, value]` for each sample, oldest first. */
  series(id, field) {
    const history = this.histories.get(id);
    const points = [];
    const column = COLUMN[field];
    if (!history) return points;
    for (let age = Math.min(this.taken, SAMPLES) - 1; age >= 0; age -= 1) {
      const slot = (this.taken - 1 - age) % SAMPLES;
      points.push([this.times[slot], column === undefined ? NaN : history[column + slot]]);
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

  #pool(pool, tenants) {
    const id = address(pool.name);
    const admission = pool.admission;
    const subject = {
      id, name: pool.name, pool: pool.name, raw: pool, ...judged(pool.lately), tenants,
      waiting: pool.queued_requests, inFlight: admission.in_flight_requests,
    };
    this.subjects.set(id, subject);
    this.#keep(id, {
      ...subject.work,
      targetMs: or(pool.latency_target?.target_ms),
      judgedMs: subject.target?.verdict === "idle" ? NaN : or(pool.latency_target?.measured_ms),
      limitIops: or(pool.limit.iops),
      limitBytes: or(pool.limit.bytes_per_s),
      bound: or(admission.budget_bytes),
      used: admission.in_flight_bytes,
      waiting: subject.waiting,
      inFlight: subject.inFlight,
    });
  }

  #tenant(pool, tenant) {
    const id = address(pool.name, tenant.name);
    const subject = {
      id, name: tenant.name, pool: pool.name, raw: tenant, ...judged(tenant.lately),
      waiting: tenant.queued_requests, inFlight: tenant.in_flight_requests,
    };
    const slots = tenant.slots;
    this.#keep(id, {
      ...subject.work,
      targetMs: or(slots?.target_ms),
      guaranteedIops: guaranteed(tenant, "requests"),
      guaranteedBytes: guaranteed(tenant, "bytes"),
      limitIops: or(tenant.limit.iops),
      limitBytes: or(tenant.limit.bytes_per_s),
      // An agent delays without slots.
      bound: or(slots?.granted ?? (tenant.throttled?.slots || null)),
      used: slots ? slots.used : tenant.in_flight_requests,
      waiting: subject.waiting,
      inFlight: subject.inFlight,
      delay: or(tenant.throttled?.delay_ms),
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
