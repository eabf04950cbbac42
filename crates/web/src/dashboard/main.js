// The dashboard: asks the server or agent once a second, and shows the answer, or the past. It changes nothing.

import { Decisions } from "./decisions.js";
import { byId, keyed, make, mark, say } from "./dom.js";
import { address, Feed, isMissed } from "./feed.js";
import { clock, count, moment, plural, span } from "./figures.js";
import { Panels, showFacts, showPools, showTroubles, subjectOf, tenantTable, troubles } from "./panels.js";
import { absent, merged, Past, recall, records, subjectsAt, troublesAt } from "./past.js";
import { showPath } from "./path.js";
import { Plots } from "./plots.js";
import { readable, Timeline } from "./timeline.js";
import { When } from "./when.js";

const PERIOD_MS = 1000;
const SOON_MS = 150;
/** The server answers in milliseconds, or hangs. */
const PATIENCE_MS = 5000;
/** Waits between attempts while no answer comes: doubled each time, up to this. */
const LONGEST_WAIT_MS = 15000;
/** What is read out is read out this rarely. */
const NEWS_MS = 10000;
/** Longer silence of what is seen is filled from the history, in seconds; and is a gap in the plots. */
const GAP_S = 3.5;
/** Plots of the last hour and longer are asked for anew this often. */
const AGAIN_MS = 30000;
const SOON_AGAIN_MS = 3000;
/** Number of times that a history without the awaited moment is asked for anew: a minute's worth. */
const SOON_AGAINS = 20;
/** A refusal takes this many of them: the server has no history, or has just started and has none yet. */
const REFUSAL_TAKES = 8;
/** Time before a moment in which its troubles began, and before which its figures are not its own, in seconds. */
const TROUBLES_S = 3600;
const FIGURES_S = 4;
/** Gaps that are named at once. */
const GAPS = 5;
/** Without a history: seconds of the plots, the first that holds all that was seen, and from tick to tick. */
const SPANS = [[60, 15], [120, 30], [300, 60], [600, 120]];

const feed = new Feed();
const decisions = new Decisions();
const panels = new Panels();
const tenants = tenantTable();
const timeline = new Timeline((record) => choose(record, true));
const plots = new Plots((record) => choose(record, false), (time) => when.closer(time));

/** By how much the server's clock is ahead of the browser's, in seconds; `null` before the first answer. */
let ahead = null;
/** True when the moment in the address was read by the server's clock. */
let isSettled = false;
/** The server's time, Unix time in seconds. */
const serverTime = () => Date.now() / 1e3 + (ahead ?? 0);
const when = new When(() => (Number.isNaN(feed.time) ? serverTime() : Math.max(feed.time, serverTime())), whenChanged);

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
/** An agent's state in the form of a server's has a path of its own. */
let isAgent = false;
/** What was recorded of the subject and time that are shown; `null` before the answer. */
let past = null;
/** Address of the subject that the history was last asked about. */
let remembered = null;
let recalling = null;
let recallTimer = null;
/** The moment that the history is to reach: of the first answer after a silence; and how often it may still be asked for anew. */
let awaited = { moment: -Infinity, again: 0 };

async function get(path, signal) {
  const answer = await fetch(path, { signal, headers: { Accept: "application/json" }, cache: "no-store" });
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    const { message, cure } = told?.error ?? {};
    throw Object.assign(new Error(`the server answers ${answer.status}`), { status: answer.status, told: message && `${message}: ${cure}` });
  }
  const found = Date.parse(answer.headers.get("date") ?? "") / 1e3 - Date.now() / 1e3;
  // The header has whole seconds: of several the largest difference is the nearest, unless a clock was set.
  if (Number.isFinite(found) && (ahead === null || found > ahead || found < ahead - 5)) ahead = found;
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
    const brief = `/api/v1/state?brief=true${tenant === undefined ? "" : `&whole=${encodeURIComponent(tenant)}`}`;
    let state = await get(isAgent ? "/api/v1/pools" : brief, mine.signal);
    if ("acting" in state) {
      isAgent = true;
      state = await get("/api/v1/pools", mine.signal);
    }
    const clients = !isAgent && byId("clients-panel").open ? await get("/api/v1/clients", mine.signal) : null;
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
  answeredAt = Date.now() / 1e3;
  byId("lost").hidden = true;
  status(when.at === null ? "live" : "past");
}

function lost(error, wait) {
  const since = answeredAt === null ? "" : ` since ${clock(answeredAt)}`;
  const why = error instanceof SyntaxError || /answers/.test(error.message) ? ` (${error.message})` : "";
  byId("lost").hidden = false;
  say(byId("lost-since"), `No answer from the server${since}${why}. The figures on this page are old.`);
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
  // Another version may answer in another form: its own page is loaded.
  if (feed.state && feed.state.version !== state.version) {
    location.reload();
    return;
  }
  if (!isSettled && ahead !== null) {
    isSettled = true;
    when.settle();
  }
  const { epoch, time } = feed;
  feed.take(state, serverTime());
  if (feed.epoch !== epoch) decisions.reset();
  decisions.take(state, of);
  document.body.dataset.program = state.points ? "agent" : "server";
  // At first, after a pause of this page, and after one of the server.
  const missed = feed.epoch !== epoch || !(feed.time - time < GAP_S);
  if (of) {
    const [pool, tenant] = parts(of);
    const record = state.pools.find((one) => one.name === pool)?.tenants.find((one) => one.name === tenant) ?? null;
    whole = { of, now: record, before: whole.of === of && feed.epoch === epoch ? whole.now : null };
  }
  draw();
  if (missed) {
    // The server records its newest second a little later, and a gap before it is known only then.
    awaited = { moment: feed.time, again: SOON_AGAINS };
    remember();
  } else if (when.at === null && remembered !== null && remembered !== (subject()?.id ?? "")) {
    // Without a choice of the user, the subject follows the first load and the first trouble.
    remember();
  }
}

/** Asks for what was recorded of the subject and the time that are shown. */
async function remember() {
  clearTimeout(recallTimer);
  recalling?.abort();
  if (!feed.state || document.hidden) return;
  const mine = new AbortController();
  recalling = mine;
  const { id, pool, tenants: whole, name } = subject() ?? { id: "", pool: "", name: "" };
  remembered = id;
  const [{ from, to }, { at, length: { step } }] = [when.window(), when];
  const ask = (query) => recall((path) => get(path, mine.signal), query);
  try {
    // One after the other: the server answers one at a time.
    const figures = await ask({ from, to, step, pool, tenant: whole ? "" : name });
    const all = await ask({ from: at === null ? from : Math.min(from, at - TROUBLES_S), to, step: 600, tenant: "" });
    const then = at === null ? null : await ask({ from: at - FIGURES_S, to: at + 1, step: 1 });
    if (recalling !== mine) return;
    const entries = records(all.events);
    past = {
      id, at, from, entries, seen: new Past(figures, pool, whole ? "" : name), problems: figures.problems, oldest: figures.oldest,
      subjects: then && subjectsAt(then, entries, at), troubles: then && troublesAt(entries, at), error: null,
    };
  } catch (error) {
    if (recalling !== mine) return;
    if (error.status >= 400 && error.status < 500) awaited.again -= REFUSAL_TAKES;
    // Without a history, plots begin when the page is opened.
    past = { id, at, from, entries: [], seen: null, problems: [], oldest: null, subjects: null, troubles: null, error: error.told ?? error.message };
  }
  // A gap at the end is about to end, or to be explained.
  const isOpen = past.seen?.gaps.at(-1)?.to_s >= Math.ceil(to);
  const isBehind = isOpen || !(past.seen?.end >= awaited.moment);
  const isEarly = awaited.again > 0 && isBehind;
  // A busy server may record the awaited second late.
  if (when.at === null && (isEarly || isOpen || (past.seen && isBehind) || step > 1)) {
    if (isEarly) awaited.again -= 1;
    recallTimer = setTimeout(remember, isEarly ? SOON_AGAIN_MS : AGAIN_MS);
  }
  draw();
}

/** Another time was chosen. */
function whenChanged() {
  past = null;
  if (!feed.state) return;
  if (!failures && !paused) status(when.at === null ? "live" : "past");
  draw();
  remember();
}

/** Pool and tenant of an address. */
function parts(id) {
  try {
    return id.startsWith("#/") ? id.slice(2).split("/").map(decodeURIComponent) : [];
  } catch {
    return [];
  }
}

/** What is looked at, as it is at the time that is shown; at first the pool in trouble, or else the one that does most. */
function subject() {
  const pools = feed.pools();
  const [name, tenant] = parts(looked);
  // One that has left may have been there.
  const left = when.at !== null && tenant !== undefined ? absent(name, tenant) : undefined;
  const found = past?.subjects?.get(looked) ?? feed.subjects.get(looked) ?? left ?? pools.find((pool) => pool.name === name);
  if (found) return found;
  for (const trouble of feed.state.health.troubles) {
    const [of] = parts(subjectOf(trouble, feed.state.volumes));
    const pool = pools.find((one) => one.name === of);
    if (pool) {
      looked = pool.id;
      return pool;
    }
  }
  const most = pools.reduce((a, b) => (b.work?.iops > (a.work?.iops ?? 0) ? b : a), pools[0]);
  if (most?.work?.iops > 0) looked = most.id;
  return most;
}

function draw() {
  const state = feed.state;
  if (!state) return;
  header(state);
  const now = subject();
  if (!now) return;
  const id = address(now.pool);
  const pool = past?.subjects?.get(id) ?? feed.subjects.get(id) ?? now;
  showPools(feed.pools(), id);
  if (when.at === null) showPath(state, pool, now);
  tenants.show(when.at === null ? pool.tenants : (past?.subjects?.get(id)?.tenants ?? []));
  // Its page is turned to once, then the rows stay where they are.
  if (tenants.chosen !== now.id) tenants.choose(now.id, true);
  say(byId("subject"), now.tenants ? `Pool ${now.name}` : `Tenant ${now.name}`);
  byId("whole").hidden = Boolean(now.tenants);
  mark(byId("whole"), "href", id);
  const why = when.at === null || past?.subjects?.has(now.id) ? now.why : "";
  say(byId("why"), why);
  mark(byId("why"), "title", why);
  plot(now);
  if (when.at !== null) return;
  showFacts(state, now, whole.of === now.id ? whole.now : null, whole.of === now.id ? whole.before : null);
  panels.draw(state);
}

function plot(now) {
  const shown = view(now);
  const listed = timeline.select(entries(shown), now.id);
  plots.draw(shown, now, unitOf(now), listed, timeline.chosen);
  timeline.draw(shown.now, now.id);
  const names = (gap) => `No record from ${moment(gap.from_s, shown.now)} to ${moment(gap.to_s, shown.now)}: ${gap.because}.`;
  const gaps = shown.gaps.filter((gap) => gap.to_s > shown.from).slice(-GAPS).map(names);
  const oldest = past?.oldest && past.oldest > shown.from ? [`The oldest record is of ${moment(past.oldest, shown.now)}.`] : [];
  const wanted = when.at !== null || when.length.step > 1;
  const told = [...gaps, ...(wanted ? oldest : []), ...(past?.problems ?? []), ...(wanted && past?.error ? [past.error] : [])];
  keyed(byId("gaps"), told, (text) => text, () => make("li"), (item, text) => say(item, text));
}

/** The time that the plots show, with the figures of a subject: what was recorded and, of the present, what was seen. */
function view(now) {
  const live = when.at === null;
  const { from, to } = when.window();
  const recorded = past?.id === now.id && past.at === when.at ? past.seen : null;
  const series = (field) => {
    const points = merged(recorded?.series(field) ?? [], live ? feed.series(now.id, field) : []);
    // That none failed is no line.
    return field === "errors" ? points.map(([time, value]) => [time, value > 0 ? value : NaN]) : points;
  };
  const step = recorded?.step ?? 1;
  const { seconds, tick } = when.length;
  const shown = {
    live, from, to, now: to, span: seconds, tick, series, gaps: recorded?.gaps ?? [], step, gap: Math.max(GAP_S, 1.6 * step),
    home: live ? undefined : when.at,
  };
  if (!live) return { ...shown, now: serverTime() };
  // The newest sample is at the edge.
  const end = Number.isNaN(feed.time) ? to : feed.time;
  const known = recorded ? seconds : end - (feed.series(now.id, "iops")[0]?.[0] ?? end);
  const [length, every] = recorded || step > 1 || seconds > SPANS.at(-1)[0] ? [seconds, tick] : (SPANS.find(([most]) => known <= most) ?? SPANS.at(-1));
  return { ...shown, to: end, now: end, from: end - length, span: length, tick: every };
}

/** Entries of the list of decisions, oldest first. What this page has seen takes the place of what was recorded meanwhile. */
function entries({ live, from, to }) {
  const recorded = past?.at === when.at && !past?.error ? past.entries : null;
  const within = (recorded ?? []).filter((entry) => entry.from >= from && entry.from <= to);
  if (!live) return within;
  if (!recorded) return decisions.since(-Infinity, feed.start);
  return [...within.filter((entry) => entry.from <= feed.since), ...decisions.since(feed.since, feed.start)];
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
  const own = state.points ? ["agent", ...state.facts] : [state.engine, plural(state.connections, "connection"), ...(state.read_only ? ["read-only"] : [])];
  say(byId("summary"), [state.version, `up ${span(state.uptime_s)}`, ...own].join(" · "));
  const all = [...feed.subjects.values()];
  const tally = { met: 0, missed: 0, unachievable: 0, idle: 0 };
  const targets = all.flatMap((one) => one.targets);
  for (const target of targets) tally[target.verdict] += 1;
  const missed = targets.filter(isMissed).length;
  const held = all.filter((one) => one.hold && !one.tenants).length;
  const verdicts = Object.entries(tally).map(([verdict, number]) => `${count(number)} ${verdict}`).join(", ");
  say(byId("targets"), `${targets.length > 0 ? `Targets: ${verdicts}` : "No targets"}; ${plural(held, "tenant")} throttled`);
  mark(byId("targets"), "data-verdict", missed > 0 ? "missed" : null);
  const critical = state.health.troubles.filter(({ level }) => level === "critical").length;
  const alarms = [[critical, "critical"], [missed, "missed"]].filter(([number]) => number > 0).map((one) => one.join(" "));
  document.title = alarms.length > 0 ? `✕ ${alarms.join(", ")} · Evenkeel` : "Evenkeel";
  const told = troubles(when.at === null ? state.health.troubles : (past?.troubles ?? []), state.volumes);
  showTroubles(told);
  if (when.at === null) news(all, told.map(({ text }) => text));
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
  else if (here) plots.readAt(record.from);
  plot(subject());
}

function turnTo(id) {
  looked = id;
  timeline.chosen = null;
  plots.cursor = plots.home ?? null;
  if (!feed.state) return;
  draw();
  remember();
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
  "a": () => byId("at").focus(),
  "l": () => when.go(null),
  "r": () => when.next(),
  "[": () => when.step(-1),
  "]": () => when.at !== null && when.step(1),
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
