// The past as the server recorded it: figures of a pool or tenant, gaps, events, and all tenants at a moment.

import { address } from "./feed.js";

/** Answers to one question at most: each has up to thousands of steps and events. */
const MOST_ANSWERS = 8;
/** Points of two sources nearer than this are one, in seconds. */
const SAME_S = 1;
/** A throttle's decisions have reasons that begin so. */
const THROTTLED = "throttled_by_";
/** Changes by command have this reason, which says nothing about what is in force. */
const BY_COMMAND = "changed_by_command";
/** Decisions about the limit of one volume have reasons that begin so; the tenant's own throttle may be another one. */
const OF_VOLUME = "volume_";

/** The history of a time. `get(path)` asks the server; without `tenant` all are wanted, with "" whole pools. */
export async function recall(get, { from, to, step, pool, tenant }) {
  const names = Object.entries({ pool, tenant }).filter(([, name]) => name !== undefined);
  const rest = names.map(([key, name]) => `&${key}=${encodeURIComponent(name)}`).join("");
  const all = { steps: [], gaps: [], events: [], problems: [], step, to: Math.ceil(to), oldest: null };
  let begin = Math.floor(from);
  for (let answers = 0; answers < MOST_ANSWERS; answers += 1) {
    const answer = await get(`/api/v1/history?from=${begin}&to=${all.to}&step=${step}${rest}`);
    for (const part of ["steps", "gaps", "events", "problems"]) all[part].push(...answer[part]);
    all.oldest = answer.oldest_s;
    if (answer.next_s === null) return all;
    begin = answer.next_s;
  }
  all.problems.push("there is more than this page shows: choose a shorter time");
  return all;
}

const or = (value) => value ?? NaN;
const mean = (gauge) => gauge?.mean ?? NaN;

function figures(series) {
  return {
    // Of some clients of an agent only bytes are counted.
    iops: series.iops === 0 && series.bytes_per_s > 0 ? NaN : series.iops,
    bytes: series.bytes_per_s,
    mean: or(series.latency_ms),
    p99: or(series.p99_ms),
    // Of the past alone: the state has no median of the last second.
    p50: or(series.p50_ms),
    p999: or(series.p999_ms),
    errors: series.errors,
    limitIops: mean(series.limit_iops),
    limitBytes: mean(series.limit_bytes_per_s),
    bound: mean(series.tenant === "" ? series.budget_bytes : series.slots),
    waiting: mean(series.queued),
    inFlight: mean(series.in_flight),
    delay: mean(series.delay_ms),
  };
}

/** Figures of a series without requests, which is not recorded. */
const IDLE = { iops: 0, bytes: 0, errors: 0, waiting: 0, inFlight: 0 };

/** Figures of several devices of a tenant together. */
function together(all) {
  const [sum, ...others] = all.map(figures);
  for (const other of others) for (const field of ["iops", "bytes", "errors", "waiting", "inFlight"]) sum[field] += other[field];
  return sum;
}

/** Figures of a pool or tenant over a time. */
export class Past {
  constructor(recalled, pool, tenant = "") {
    const own = (series) => series.pool === pool && series.tenant === tenant && (tenant !== "" || !series.device);
    this.points = recalled.steps.map((step) => {
      const found = step.series.filter(own);
      return [Math.min(step.at_s + step.seconds, recalled.to), found.length > 0 ? together(found) : IDLE];
    });
    this.gaps = recalled.gaps;
    /** End of the newest step, Unix time in seconds. */
    this.end = this.points.at(-1)?.[0] ?? -Infinity;
    /** The longest step, in seconds: older ones are coarser. */
    this.step = recalled.steps.reduce((most, step) => Math.max(most, step.seconds), recalled.step);
  }

  series(field) {
    return this.points.map(([time, values]) => [time, values[field] ?? NaN]);
  }
}

/** Points of what was seen, and of what was recorded where nothing was seen. */
export function merged(recorded, seen) {
  const points = [];
  let next = 0;
  let last = -Infinity;
  const take = (until) => {
    for (; next < recorded.length && recorded[next][0] < until - SAME_S; next += 1) {
      if (recorded[next][0] > last + SAME_S) points.push(recorded[next]);
    }
  };
  for (const point of seen) {
    take(point[0]);
    points.push(point);
    last = point[0];
  }
  take(Infinity);
  return points;
}

const KINDS = { trouble_begins: "trouble", trouble_ends: "trouble ended", started: "started", stopped: "stopped" };

/** Events as entries of the list of decisions, oldest first; a trouble lasts until its end. */
export function records(events) {
  const open = new Map();
  const seen = new Map();
  return events.map((event) => {
    const { at_s: at, kind, pool = "", tenant = "", about = "", reason } = event;
    const key = `${at} ${kind} ${pool} ${tenant} ${about} ${reason}`;
    seen.set(key, (seen.get(key) ?? 0) + 1);
    const record = {
      // The same event has the same name in each answer.
      id: `${key} ${seen.get(key)}`,
      subject: pool === "" ? "" : address(pool, tenant === "" ? undefined : tenant),
      by: KINDS[kind] ?? (reason.startsWith(THROTTLED) || reason.startsWith(OF_VOLUME) || reason === "released" ? "throttle" : reason === BY_COMMAND ? "command" : "decision"),
      reason, because: about === "" ? event.because : `${about}: ${event.because}`, from: at, until: at, times: 1, event,
    };
    const trouble = `${about} ${reason} ${event.level ?? ""}`;
    // A program that was ended records no end of its troubles; one that goes on is recorded again.
    if (kind === "started") open.clear();
    if (kind === "trouble_begins") {
      if (open.has(trouble)) open.get(trouble).until = at;
      open.set(trouble, record);
    }
    if (kind === "trouble_ends" && open.has(trouble)) {
      open.get(trouble).until = at;
      open.delete(trouble);
    }
    return record;
  });
}

/** Troubles at a moment, of the entries that begin at an hour before or later. */
export function troublesAt(entries, at) {
  const open = new Map();
  for (const { event } of entries) {
    const key = `${event.about ?? ""} ${event.reason} ${event.level ?? ""}`;
    if (event.at_s > at) break;
    if (event.kind === "trouble_begins") open.set(key, event);
    // A program that was ended records no end of its troubles.
    else if (event.kind === "trouble_ends") open.delete(key);
    else if (event.kind === "started") open.clear();
  }
  const worstFirst = [...open.values()].sort((a, b) => Number(b.level === "critical") - Number(a.level === "critical"));
  return worstFirst.map(({ about = "", because, level }) => ({ about, because, cure: "", level }));
}

/** A tenant without figures, as the page shows it. */
export const absent = (pool, tenant) => ({
  id: address(pool, tenant), name: tenant, pool, raw: { limit: {}, guarantees: [] }, targets: [], target: null, why: "", work: null,
  waiting: NaN, inFlight: NaN, hold: null,
});

/** Pools and tenants at a moment by address, as the page shows them, from what was recorded just before. */
export function subjectsAt(recalled, entries, at) {
  const step = recalled.steps.filter((one) => one.at_s <= at).at(-1);
  const groups = new Map();
  for (const series of step?.series ?? []) {
    if (series.tenant === "" && series.device) continue;
    const id = address(series.pool, series.tenant === "" ? undefined : series.tenant);
    groups.set(id, [...(groups.get(id) ?? []), series]);
  }
  const newest = new Map();
  const isOfSubject = ({ event, reason }) => event.kind === "decision" && reason !== BY_COMMAND && !reason.startsWith(OF_VOLUME);
  for (const entry of entries) if (entry.from <= at && isOfSubject(entry)) newest.set(entry.subject, entry);
  const subjects = new Map();
  for (const [id, all] of groups) {
    const [{ pool, tenant }] = all;
    const { iops, bytes, mean: response, p99, errors, waiting, inFlight } = together(all);
    const decided = newest.get(id);
    const throttled = decided?.reason.startsWith(THROTTLED) ? decided : null;
    subjects.set(id, {
      ...absent(pool, tenant), id, name: tenant || pool, why: decided?.because ?? "",
      work: { iops, bytes, response, queue: NaN, device: NaN, p99, errors }, waiting, inFlight,
      hold: throttled && { by: throttled.reason.slice(THROTTLED.length), how: throttled.because },
    });
  }
  for (const subject of subjects.values()) {
    if (subject.id !== address(subject.pool)) continue;
    subject.tenants = [...subjects.values()].filter((one) => one.pool === subject.pool && one !== subject);
  }
  return subjects;
}
