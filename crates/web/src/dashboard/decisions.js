// The record of decisions: what the server records, and what is seen to change between two answers.

import { address } from "./feed.js";
import { bytes, ms } from "./figures.js";

/** Decisions kept, of all subjects together. */
const KEPT = 1000;
/** Times of the same decision differ by so much at most: the server works them out anew for each answer. */
const SAME_S = 0.05;
/**
 * With more tenants than this, neither how each stood when the page was opened nor that one has nothing to do is recorded:
 * it would drown the rest.
 */
const FEW = 50;

/** Reasons of the placement for leaving everything as it is: which of them changes from second to second. */
const STAYS = new Set(["static", "one_worker", "not_busy", "not_worth", "uncertain"]);

export class Decisions {
  constructor() {
    this.reset();
  }

  reset() {
    this.all = [];
    // Never used twice: lists and plots know decisions by it.
    this.next ??= 1;
    this.newest = new Map();
    this.begun = false;
  }

  /** Takes the content of an answer. `whole`: address of the tenant whose decisions are all in it. */
  take(state, whole) {
    const now = state.uptime_s;
    if (state.points) this.#agent(state);
    else this.#server(state, now, whole);
    if (state.cluster) this.#stands("", "cluster", state.cluster.status, state.cluster.because, now);
    this.begun = true;
    if (this.all.length > KEPT) this.all.splice(0, this.all.length - KEPT);
  }

  /** An agent keeps all its decisions itself. */
  #agent(state) {
    for (const { pool, tenant, of, point, reason, because, from_s: from, until_s: until, times } of state.decisions) {
      const subject = address(pool, tenant || undefined);
      this.#told({ subject, by: of ? `${point} ${of}` : point, reason, because, from, until, times });
    }
  }

  #server(state, now, whole) {
    for (const pool of state.pools) {
      const subject = address(pool.name);
      this.#admission(pool.admission, subject, now);
      for (const told of pool.latency_target?.decisions ?? []) {
        this.#told({ subject, by: "target", reason: told.reason, because: told.because, from: told.from_s, until: told.until_s, times: told.times });
      }
      const many = pool.tenants.length > FEW;
      for (const tenant of pool.tenants) this.#tenant(tenant, address(pool.name, tenant.name), now, whole, many);
      if (pool.overdue.length > 0) this.#stands(subject, "device", "overdue", `${pool.overdue.length} requests have been in flight for too long`, now);
      else this.#ends(subject, "device", "answered", "every request in flight is in time again", now);
    }
    const placement = state.placement;
    const placed = STAYS.has(placement.reason) ? "connections stay" : placement.reason;
    this.#stands("", "placement", placed, placement.because, now, placement.moves_total);
  }

  /** All since a time, oldest first, with times of the clock. `start`: when the server started. */
  since(time, start) {
    const found = this.all.filter((record) => start + record.from > time);
    return found.map((record) => ({ ...record, from: start + record.from, until: start + record.until }));
  }

  #admission(admission, subject, now) {
    const budget = admission.budget_bytes === null ? "" : `; budget ${bytes(admission.budget_bytes)}`;
    const last = this.newest.get(`${subject} admission`);
    const kind = admission.reason_data.kind;
    const because = admission.reason + budget;
    if (last && last.reason === kind) {
      if (Math.abs(last.decided - admission.decided_at_s) > SAME_S) last.times += 1;
      Object.assign(last, { because, until: now, decided: admission.decided_at_s });
      return;
    }
    // A stall before the page was opened began long ago.
    const from = Math.min(now, admission.decided_at_s);
    this.#push({ subject, by: "admission", reason: kind, because, from, until: now, times: 1, decided: admission.decided_at_s });
  }

  #tenant(tenant, subject, now, whole, many) {
    const hold = tenant.throttled;
    if (hold) {
      const because = `${hold.slots} slots, each delayed by ${ms(hold.delay_ms)} ms: ${hold.because}`;
      this.#stands(subject, `${hold.slots_owner} throttle`, "throttled", because, now);
      this.newest.set(`${subject} held`, hold.slots_owner);
    } else if (this.newest.has(`${subject} held`)) {
      this.#ends(subject, `${this.newest.get(`${subject} held`)} throttle`, "released", "no longer throttled", now);
      this.newest.delete(`${subject} held`);
    }
    const targets = tenant.lately?.targets?.filter((target) => target.kind === "guarantee") ?? [];
    for (const [i, guarantee] of tenant.guarantees.entries()) {
      const by = guarantee.of === "all" ? "guarantee" : `guarantee of ${guarantee.of}s`;
      if (subject === whole && guarantee.decisions.length > 0) this.#replace(subject, by, guarantee.decisions);
      else this.#stands(subject, by, guarantee.reason, guarantee.because, now, undefined, many && (!this.begun || targets[i]?.verdict === "idle"));
    }
    const slots = tenant.slots;
    if (slots && slots.reason) this.#stands(subject, "slots", slots.reason, slots.because, now, undefined, many && !this.begun);
  }

  /** What is in force now, and was perhaps before: one record until its reason (or `version`) changes. */
  #stands(subject, by, reason, because, now, version, quietly) {
    const key = `${subject} ${by}`;
    const last = this.newest.get(key);
    if (last && last.reason === reason && last.version === version) {
      last.because = because;
      last.until = now;
      if (!last.quiet) last.times += 1;
      return;
    }
    const record = { subject, by, reason, because, from: now, until: now, times: 1, version };
    if (quietly) this.newest.set(key, { ...record, quiet: true });
    else this.#push(record);
  }

  /** The end of something that stood. */
  #ends(subject, by, reason, because, now) {
    const last = this.newest.get(`${subject} ${by}`);
    if (last && last.reason !== reason) this.#push({ subject, by, reason, because, from: now, until: now, times: 1 });
  }

  /** A record that the server keeps itself. */
  #told(record) {
    const last = this.newest.get(`${record.subject} ${record.by}`);
    if (last && Math.abs(last.from - record.from) < SAME_S) Object.assign(last, record);
    else if (!last || record.from > last.from) this.#push(record);
  }

  /** All that the server keeps takes the place of what was seen from outside. */
  #replace(subject, by, told) {
    const key = `${subject} ${by}`;
    const last = this.newest.get(key);
    if (last && !last.told) {
      this.all = this.all.filter((record) => record.subject !== subject || record.by !== by);
      this.newest.delete(key);
    }
    for (const one of told) {
      this.#told({ subject, by, reason: one.reason, because: one.because, from: one.from_s, until: one.until_s, times: one.times, told: true });
    }
  }

  #push(record) {
    record.id = this.next;
    this.next += 1;
    this.newest.set(`${record.subject} ${record.by}`, record);
    this.all.push(record);
    // Records of the server may come late; mostly it is the last place.
    for (let i = this.all.length - 1; i > 0 && this.all[i - 1].from > this.all[i].from; i -= 1) {
      [this.all[i - 1], this.all[i]] = [this.all[i], this.all[i - 1]];
    }
  }
}
