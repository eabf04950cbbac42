// The dashboard: asks the server once a second, and shows the answer. It changes nothing.

import { Decisions } from "./decisions.js";
import { byId, mark, say } from "./dom.js";
import { address, Feed, isMissed } from "./feed.js";
import { clock, count, plural, span } from "./figures.js";
import { Panels, showFacts, showPools, tenantTable, troubles } from "./panels.js";
import { showPath } from "./path.js";
import { Plots } from "./plots.js";
import { readable, Timeline } from "./timeline.js";

const PERIOD_MS = 1000;
const SOON_MS = 150;
/** The server answers in milliseconds, or hangs. */
const PATIENCE_MS = 5000;
/** Waits between attempts while no answer comes: doubled each time, up to this. */
const LONGEST_WAIT_MS = 15000;
/** What is read out is read out this rarely. */
const NEWS_MS = 10000;

const feed = new Feed();
const decisions = new Decisions();
const panels = new Panels();
const tenants = tenantTable();
const timeline = new Timeline((record) => choose(record, true));
const plots = new Plots((record) => choose(record, false));

/** What is looked at: the address of a pool or tenant; "" before anything is known. */
let looked = "";
/** The unit of throughput that the user chose. */
let unit = null;
let paused = false;
let timer = null;
let asking = null;
let failures = 0;
let answeredAt = null;
/** Full records of the tenant that is looked at: the newest and the one before. */
let whole = { of: "", now: null, before: null };
let missedBefore = new Set();
let troublesBefore = 0;
let newsAt = 0;

async function get(path, signal) {
  const answer = await fetch(path, { signal, headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return answer.json();
}

/** Gives up what was asked, and what was about to be. */
function rest() {
  clearTimeout(timer);
  asking?.abort();
  asking = null;
}

/** Looks in a moment: the user may go on to the next tenant at once. */
function lookSoon() {
  rest();
  timer = setTimeout(look, SOON_MS);
}

/** One look at the server; the next one follows by itself. */
async function look() {
  rest();
  if (paused || document.hidden) return;
  const begun = performance.now();
  const mine = new AbortController();
  asking = mine;
  const late = setTimeout(() => mine.abort(), PATIENCE_MS);
  let wait = PERIOD_MS;
  try {
    const [pool, tenant] = parts(looked);
    const state = await get(`/api/v1/state?brief=true${tenant === undefined ? "" : `&whole=${encodeURIComponent(tenant)}`}`, mine.signal);
    const clients = byId("clients-panel").open ? await get("/api/v1/clients", mine.signal) : null;
    if (asking !== mine) return;
    take(state, tenant === undefined ? "" : address(pool, tenant));
    if (clients) panels.drawClients(clients);
    found();
    wait = Math.max(0, PERIOD_MS - (performance.now() - begun));
  } catch (error) {
    // A newer look took this one's place.
    if (asking !== mine) return;
    failures += 1;
    wait = Math.min(LONGEST_WAIT_MS, PERIOD_MS * 2 ** (failures - 1));
    lost(error, wait);
  } finally {
    clearTimeout(late);
  }
  timer = setTimeout(look, wait);
}

function found() {
  failures = 0;
  answeredAt = Date.now();
  byId("lost").hidden = true;
  status("live");
}

function lost(error, wait) {
  const since = answeredAt === null ? "" : ` since ${clock(answeredAt)}`;
  const why = error instanceof SyntaxError || /answers/.test(error.message) ? ` (${error.message})` : "";
  byId("lost").hidden = false;
  say(byId("lost-since"), `No answer from the server${since}${why}. What is shown is old.`);
  say(byId("lost-next"), `The next attempt is in ${span(wait / 1000)}.`);
  status("lost");
}

function status(name) {
  const pill = byId("status");
  say(pill, name);
  pill.dataset.status = name;
  document.body.dataset.status = name;
}

function take(state, of) {
  const epoch = feed.epoch;
  feed.take(state, Date.now());
  if (feed.epoch !== epoch) decisions.reset();
  decisions.take(state, of);
  if (of) {
    const [pool, tenant] = parts(of);
    const record = state.pools.find((one) => one.name === pool)?.tenants.find((one) => one.name === tenant) ?? null;
    whole = { of, now: record, before: whole.of === of && feed.epoch === epoch ? whole.now : null };
  }
  draw();
}

/** Pool and tenant of an address. */
function parts(id) {
  try {
    return id.startsWith("#/") ? id.slice(2).split("/").map(decodeURIComponent) : [];
  } catch {
    return [];
  }
}

/** What is looked at, as it is now; at first the pool that does most. */
function subject() {
  const pools = feed.pools();
  const [name] = parts(looked);
  const found = feed.subjects.get(looked) ?? pools.find((pool) => pool.name === name);
  if (found) return found;
  const most = pools.reduce((a, b) => (b.work?.iops > (a.work?.iops ?? 0) ? b : a), pools[0]);
  if (most?.work?.iops > 0) looked = most.id;
  return most;
}

function draw() {
  const state = feed.state;
  const now = state && subject();
  if (!now) return;
  const pool = feed.subjects.get(address(now.pool));
  header(state);
  showPools(feed.pools(), pool.id);
  showPath(state, pool, now);
  tenants.show(pool.tenants);
  // Its page is turned to once, then the rows stay where they are.
  if (tenants.chosen !== now.id) tenants.choose(now.id, true);
  say(byId("subject"), now.tenants ? `Pool ${now.name}` : `Tenant ${now.name}`);
  byId("whole").hidden = Boolean(now.tenants);
  mark(byId("whole"), "href", pool.id);
  say(byId("why"), now.why);
  mark(byId("why"), "title", now.why);
  plot(now);
  showFacts(now, whole.of === now.id ? whole.now : null, whole.of === now.id ? whole.before : null);
  panels.draw(state);
}

function plot(now) {
  const shown = timeline.select(decisions, now.id);
  plots.draw(feed, now, unitOf(now), shown, timeline.chosen);
  timeline.draw(feed.offset, now.id);
}

/** The unit in which something was guaranteed or limited, unless the user chose another one. */
function unitOf(now) {
  const { qos, guarantees, limit } = now.raw;
  const inRequests = guarantees?.some((guarantee) => guarantee.unit === "requests") || qos?.reservation_iops || limit.iops;
  const inBytes = guarantees?.some((guarantee) => guarantee.unit === "bytes") || qos?.reservation_bytes_per_s || limit.bytes_per_s;
  const shown = unit ?? (inRequests && !inBytes ? "iops" : "bytes");
  for (const one of ["bytes", "iops"]) mark(byId(`unit-${one}`), "aria-pressed", one === shown);
  return shown;
}

function header(state) {
  say(byId("summary"), [
    state.version, `up ${span(state.uptime_s)}`, state.engine, plural(state.connections, "connection"), ...(state.read_only ? ["read-only"] : []),
  ].join(" · "));
  const all = [...feed.subjects.values()];
  const tally = { met: 0, missed: 0, unachievable: 0, idle: 0 };
  const targets = all.flatMap((one) => one.targets);
  for (const target of targets) tally[target.verdict] += 1;
  const missed = targets.filter(isMissed).length;
  const held = all.filter((one) => one.hold && !one.tenants).length;
  const verdicts = Object.entries(tally).map(([verdict, number]) => `${count(number)} ${verdict}`).join(", ");
  say(byId("targets"), `${targets.length > 0 ? `Targets: ${verdicts}` : "No targets"}; ${plural(held, "tenant")} throttled`);
  mark(byId("targets"), "data-verdict", missed > 0 ? "missed" : null);
  document.title = missed > 0 ? `✕ ${missed} missed · Evenkeel` : "Evenkeel";
  const list = byId("troubles");
  const told = troubles(state);
  if ([...list.children].map((item) => item.textContent).join("\n") !== told.join("\n")) {
    list.replaceChildren(...told.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  }
  list.hidden = told.length === 0;
  news(all, told);
}

/** Reads out which targets are newly missed or met again, and new troubles; not every second. */
function news(all, troubled) {
  if (Date.now() - newsAt < NEWS_MS) return;
  const missed = new Set(all.filter((one) => isMissed(one.target)).map((one) => one.id));
  const fresh = [...missed].filter((id) => !missedBefore.has(id));
  const over = [...missedBefore].filter((id) => !missed.has(id));
  const names = (ids) => (ids.length > 3 ? plural(ids.length, "target") : `target of ${ids.map(readable).join(", ")}`);
  const trouble = troubled.length > troublesBefore ? `${plural(troubled.length, "trouble")}: ${troubled.at(-1)}` : "";
  troublesBefore = troubled.length;
  const told = [trouble, fresh.length > 0 ? `${names(fresh)} missed` : "", over.length > 0 ? `${names(over)} no longer missed` : ""].filter(Boolean);
  if (told.length === 0) return;
  newsAt = Date.now();
  missedBefore = missed;
  say(byId("news"), told.join("; "));
}

/** Shows a decision in list and plots. `here`: it was chosen in the list. */
function choose(record, here) {
  const again = here && timeline.chosen === record.id;
  timeline.choose(again ? null : record.id, !here);
  if (again) plots.read(null);
  else if (here) plots.read(feed.state.uptime_s - record.from < 300 ? Math.max(1, feed.state.uptime_s - record.from) : null);
  plot(subject());
}

function turnTo(id) {
  looked = id;
  timeline.chosen = null;
  plots.cursor = null;
  if (!feed.state) return;
  draw();
  // All about a tenant comes with the next answer.
  if (!paused) lookSoon();
}

function setPaused(now) {
  paused = now;
  mark(byId("pause"), "aria-pressed", paused);
  say(byId("pause"), paused ? "Go on" : "Pause");
  if (!paused) {
    look();
    return;
  }
  rest();
  status("paused");
}

function setUnit(to) {
  unit = to;
  if (feed.state) plot(subject());
}

function nextTheme() {
  window.evenkeelTheme.next();
  say(byId("theme"), `Theme: ${window.evenkeelTheme.now}`);
}

/** Keys without Ctrl or Alt, where nothing is being typed. */
const KEYS = {
  "?": () => byId("keys").showModal(),
  "/": () => byId("search").focus(),
  "j": () => step(1),
  "k": () => step(-1),
  "b": () => tenants.turn(-1),
  "n": () => tenants.turn(1),
  "d": () => timeline.focus(),
  "u": () => feed.state && setUnit(unitOf(subject()) === "bytes" ? "iops" : "bytes"),
  "p": () => setPaused(!paused),
  "t": nextTheme,
  "Escape": () => {
    const now = feed.state && subject();
    if (now && !now.tenants) location.hash = address(now.pool);
  },
};

function step(by) {
  const next = tenants.beside(by);
  if (next) location.hash = next.id;
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || byId("keys").open) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape" && event.target === byId("search")) {
      byId("search").value = "";
      tenants.search("");
      byId("search").blur();
    }
    return;
  }
  if (event.key !== "Escape" && !byId("single").checked) return;
  const pool = /^[1-9]$/.test(event.key) && feed.state ? feed.pools()[Number(event.key) - 1] : null;
  if (pool) location.hash = pool.id;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

byId("pause").addEventListener("click", () => setPaused(!paused));
byId("theme").addEventListener("click", nextTheme);
byId("help").addEventListener("click", KEYS["?"]);
byId("retry").addEventListener("click", () => look());
byId("search").addEventListener("input", (event) => tenants.search(event.target.value));
byId("unit-bytes").addEventListener("click", () => setUnit("bytes"));
byId("unit-iops").addEventListener("click", () => setUnit("iops"));
byId("by").addEventListener("change", () => feed.state && plot(subject()));
byId("everywhere").addEventListener("change", () => feed.state && plot(subject()));
byId("clients-panel").addEventListener("toggle", () => byId("clients-panel").open && !paused && look());
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => look());
addEventListener("hashchange", () => location.hash.startsWith("#/") && turnTo(location.hash));

say(byId("theme"), `Theme: ${window.evenkeelTheme.now}`);
if (location.hash.startsWith("#/")) looked = location.hash;
look();
