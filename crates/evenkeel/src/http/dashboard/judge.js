// What was guaranteed, whether it is kept, and who throttles: the same rules as `evenkeel top`.

import { bytes, count, megabytes, ms, rates } from "./figures.js";

/** A rate of so much of its limit is at the limit: what is measured between two looks is never exact. */
const AT_LIMIT = 0.95;
/** As much of a guarantee is a guarantee kept, for the same reason. */
const AS_GUARANTEED = 0.98;
/** Reasons with which nothing is known about a guarantee at present. */
export const BLIND = new Set(["idle", "app_limited", "not_enough_data", "counters_reset", "signal_lost"]);

/** Reasons with which the last figure of a pool's goal is old news. */
export const NO_READS = new Set(["not_enough_data", "idle", "signal_lost"]);

export const MISSED = "missed";
export const MET = "met";
export const IDLE = "idle";
const ORDER = [MISSED, MET, IDLE];

/** Of several goals the worst one. */
export const worst = (goals) => goals.reduce((a, b) => (!a || ORDER.indexOf(b.verdict) < ORDER.indexOf(a.verdict) ? b : a), null);

const short = (value) => String(Math.round(value * 1e3) / 1e3);

/** The goal of a pool for its reads. */
export function poolGoals(pool, work) {
  const goal = pool.latency_target;
  if (!goal) return [];
  const blind = NO_READS.has(goal.decision?.reason);
  const measured = work && work.iops > 0 && !blind ? goal.measured_ms : null;
  const verdict = measured === null ? IDLE : measured <= goal.target_ms ? MET : MISSED;
  return [{ what: `${goal.percentile} < ${short(goal.target_ms)} ms`, verdict }];
}

/** All that a tenant was guaranteed: a latency, throughputs, a reservation. */
export function tenantGoals(tenant, was, work) {
  if (!work) return [];
  const goals = [];
  const slots = tenant.slots;
  if (slots && slots.target_ms !== null) {
    const grown = (key) => slots[key] - (was?.slots?.[key] ?? slots[key]);
    const verdict = grown("violated_total") > 0 ? MISSED : grown("windows_total") > 0 ? MET : IDLE;
    goals.push({ what: `${slots.percentile || "mean"} < ${short(slots.target_ms)} ms`, verdict });
  }
  for (const guarantee of tenant.guarantees) {
    const figure = guarantee.unit === "bytes" ? `${megabytes(guarantee.guaranteed_per_s)} MB/s` : `${count(guarantee.guaranteed_per_s)}/s`;
    const of = guarantee.of === "all" ? "" : ` ${guarantee.of}`;
    const measured = guarantee.measured_per_s;
    const verdict = measured === null || BLIND.has(guarantee.reason) ? IDLE
      : measured >= AS_GUARANTEED * guarantee.guaranteed_per_s ? MET : MISSED;
    goals.push({ what: figure + of, verdict });
  }
  const reserved = (guaranteed, got, text) => {
    if (guaranteed === null) return;
    // One that has nothing waiting could have had more, had it asked.
    const verdict = got >= AS_GUARANTEED * guaranteed ? MET : tenant.queued_requests === 0 ? IDLE : MISSED;
    goals.push({ what: text, verdict });
  };
  const qos = tenant.qos;
  reserved(qos.reservation_iops, work.iops, `${count(qos.reservation_iops)} IOPS`);
  reserved(qos.reservation_bytes_per_s, work.bytes, `${megabytes(qos.reservation_bytes_per_s)} MB/s`);
  return goals;
}

/** The limit that the work has come up to, if it has. */
function atLimit(limit, work) {
  if (!work) return null;
  if (limit.iops && work.iops >= AT_LIMIT * limit.iops) {
    return { by: limit.iops_owner ?? "operator", how: rates(limit.iops, null) };
  }
  if (limit.bytes_per_s && work.bytes >= AT_LIMIT * limit.bytes_per_s) {
    return { by: limit.bytes_per_s_owner ?? "operator", how: rates(null, limit.bytes_per_s) };
  }
  return null;
}

/** What throttles a pool as a whole: its limit, or its admission control. */
export function poolHold(pool, work) {
  const limit = atLimit(pool.limit, work);
  if (limit) return { ...limit, why: `the pool is at its limit of ${limit.how}, set by ${limit.by}` };
  const admission = pool.admission;
  if (admission.budget_bytes !== null && pool.queued_requests > 0) {
    return { by: admission.kind, how: bytes(admission.budget_bytes), why: admission.reason };
  }
  return null;
}

/** Who throttles a tenant, how and why; the strictest first. */
export function tenantHold(tenant, work) {
  const hold = tenant.throttled;
  if (hold) {
    const how = `${hold.slots} slots, rest ${ms(hold.delay_ms)} ms`;
    return { by: hold.slots_owner, how, why: `throttled for the pool's latency target: ${hold.because}` };
  }
  const limit = atLimit(tenant.limit, work);
  if (limit) {
    const guarantee = tenant.guarantees.find((guarantee) => guarantee.binding === limit.by);
    return { ...limit, why: guarantee ? guarantee.because : `it is at its limit of ${limit.how}, set by ${limit.by}` };
  }
  const slots = tenant.slots;
  if (slots && slots.granted !== null && slots.used >= AT_LIMIT * slots.granted) {
    return { by: "slots", how: `${slots.granted.toFixed(1)} slots`, why: slots.because };
  }
  return null;
}

/** The newest reason on record of a pool. */
export function poolWhy(pool) {
  const goal = pool.latency_target?.decision ? `Goal: ${pool.latency_target.decision.because}. ` : "";
  return `${goal}Admission: ${pool.admission.reason}.`;
}

/** The same of a tenant. */
export function tenantWhy(tenant, hold, pool) {
  if (hold) return hold.why;
  const because = tenant.guarantees[0]?.because || tenant.slots?.because;
  if (because) return because;
  return tenant.queued_requests > 0
    ? `${tenant.queued_requests} requests wait for pool ${pool.name}: ${pool.admission.reason}`
    : "nothing throttles it";
}
