/** What this console may show and do: the reply of `session`, or the defaults for a server without it. @type {any} */
let session = { version: "", title: T.operations, caller: "", api: "v1", parents: [""], actions: ["cancel", "delete"], verbs: [], watches: true, statistics: false, cancelSupport: "", refreshSeconds: 5, links: {}, methods: [] };
let api = "";

/** A reply that is an error; `http` is its status, or 0 if there was no reply. */
class Refusal extends Error {
  /** @param {number} http @param {any} status @param {number} [after] seconds */
  constructor(http, status, after = 0) {
    super(status.message || `HTTP ${http}`);
    this.http = http, this.code = String(status.status ?? ""), this.details = status.details ?? [], this.after = after;
  }
  /** True if the server does not have this call. */
  get unknown() { return [404, 405, 501].includes(this.http) && !this.details.some((/** @type {any} */ one) => one.reason === "OPERATION_NOT_FOUND"); }
  /** True if the same request may succeed later. */
  get passing() { return !this.http || this.http === 408 || this.http === 429 || this.http >= 500; }
}

/** Send a request, and return the JSON of the reply, or its stream. @param {string} method @param {string} path @param {any} [body] @param {AbortSignal} [signal] @param {boolean} [stream] @returns {Promise<any>} */
async function call(method, path, body, signal, stream) {
  // A browser resolves parts like ".." in a name, and so would request a different path.
  if (path.startsWith(api) && /\/\.{1,2}(?![^/?])/.test(path.slice(api.length))) throw new Refusal(400, { message: T.notName });
  const headers = new Headers({ accept: stream ? "text/event-stream" : "application/json" });
  const token = kept("sessionStorage", "token");
  if (token) headers.set("authorization", `Bearer ${token}`);
  if (body) headers.set("content-type", "application/json");
  const limits = [signal, stream ? null : AbortSignal.timeout(60000)].filter((one) => !!one);
  let reply, text = "";
  try {
    reply = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.any(limits) });
    if (!reply.ok || !stream) text = await reply.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, { message: T.offline });
  }
  const drift = Date.parse(reply.headers.get("date") ?? "") - Date.now();
  if (Math.abs(drift - skew) > 2000) skew = drift;
  if (reply.ok && stream) return reply.body;
  let read;
  try { read = text ? readJson(text) : {}; } catch { /* handled below */ }
  if (reply.ok && read) return read;
  const after = reply.headers.get("retry-after") ?? "";
  const error = new Refusal(reply.ok ? 0 : reply.status, read?.error ?? { message: reply.ok ? T.unreadable : "" }, Number(after) || Math.max((Date.parse(after) - clock()) / 1000, 0) || 0);
  if (error.http === 401) askToken(error.message);
  throw error;
}
/** @param {string} name */
const pathOf = (name) => `${api}/${name.split("/").map(encodeURIComponent).join("/")}`;
/** Return the path of the operations of a parent. @param {string} owner */
const collection = (owner) => pathOf(owner ? `${owner}/operations` : "operations");
/** @param {string} name */
const ownerOf = (name) => name.replace(/(^|\/)operations\/.*$/, "");
/** @param {string} name */
const shortId = (name) => (name.split("/").pop() ?? "").slice(-8);

// --- Repeated requests, only while the page is visible and in use.
const IDLE = 300000;
let paused = false, touched = performance.now();
const awake = () => !document.hidden && !paused && performance.now() - touched < IDLE;
/** @typedef {{now: () => void, rest: () => void, stop: () => void, failed?: string, at?: number}} Loop */
/** @type {Set<Loop>} */
const loops = new Set();

/**
 * Run `work` repeatedly. It returns the seconds until its next run, or undefined to end. Each failure makes the pause longer.
 * Work that takes long, such as a stream, calls `well` when it has begun without an error.
 * @param {(signal: AbortSignal, well: () => void) => Promise<number|undefined>} work @returns {Loop}
 */
function loop(work) {
  let timer = 0, fails = 0, /** @type {AbortController|null} */ control = null;
  const rest = () => { clearTimeout(timer); control?.abort(); control = null; };
  const run = async () => {
    const mine = control = new AbortController();
    let next;
    try {
      next = await work(mine.signal, () => { if (mine === control) me.failed = undefined, showTrouble(); });
      fails = 0, me.failed = undefined;
      if (next !== undefined) next *= 0.8 + 0.4 * Math.random();
    } catch (error) {
      if (mine !== control) return;
      if (!(error instanceof Refusal)) console.error(error);
      me.failed = error instanceof Error ? error.message : String(error);
      next = error instanceof Refusal && !error.passing ? undefined : Math.max(2 ** Math.min(fails++, 6) * (0.8 + 0.2 * Math.random()), error instanceof Refusal ? error.after : 0);
      if (next !== undefined) next = Math.min(next, 3600), me.at = performance.now() + next * 1000;
      else me.at = undefined;
    }
    if (mine !== control) return;
    showTrouble();
    if (next !== undefined) timer = window.setTimeout(run, next * 1000);
  };
  /** @type {Loop} */
  const me = { rest, now() { rest(); if (awake()) void run(); }, stop() { rest(); loops.delete(me); showTrouble(); } };
  loops.add(me);
  return me;
}
let wasAwake = true;
function wake() {
  if (awake() !== wasAwake) for (const each of loops) if (wasAwake) each.rest(); else each.now();
  wasAwake = awake();
  showTrouble();
}
function touch() {
  touched = performance.now();
  if (!wasAwake) wake();
}
/** Show in a bar which request fails, and when it is tried again. */
function showTrouble() {
  const bar = byId("trouble"), bad = [...loops].find((each) => each.failed);
  const idle = !paused && !document.hidden && !awake();
  showLive();
  if (!bad) { bar.replaceChildren(...(idle ? [h("p", {}, T.idle)] : [])); return; }
  const text = bad.at === undefined || !awake() ? bad.failed ?? "" : put(T.retrying, bad.failed ?? "", span(Math.ceil((bad.at - performance.now()) / 1000)));
  const line = bar.querySelector(".bad");
  if (line) setText(line, text);
  else say(bad.failed ?? ""), bar.replaceChildren(h("p", { class: "bad" }, text), button(T.retry, () => { for (const each of loops) if (each.failed) each.now(); }));
}

// --- The known operations.
/** @typedef {{name: string, op: any, about: any, estimate: Estimate, askedAt: string, gone: boolean, stale: boolean, unlisted?: boolean, lookedAt: number, draw: (() => void)|null}} Item */
/** @type {Map<string, Item>} */
const items = new Map();
/** Store the state of an operation from a reply. @param {any} op */
function take(op) {
  let item = items.get(op.name);
  if (!item) items.set(op.name, item = { name: op.name, op, about: null, estimate: new Estimate(), askedAt: "", gone: false, stale: true, lookedAt: 0, draw: null });
  if (item.op.done && !op.done) return item; // the reply was sent before the operation ended
  const before = stateOf(item);
  const waits = !item.about?.startTime && (clock() - item.lookedAt > 60000 || JSON.stringify(op.metadata) !== JSON.stringify(item.op.metadata));
  if (op.done !== item.op.done || waits) item.stale = true;
  item.op = op;
  item.estimate.add(progressOf(op.metadata)?.fraction ?? null, clock() / 1000);
  if (op.done && !FINAL.has(before) && item.draw) say(stateOf(item) === "FAILED" ? T.failed : T.ended, 1);
  redraw(item);
  return item;
}
/** @param {string} name */
function lose(name) {
  const item = items.get(name);
  if (item) item.gone = true, redraw(item);
}
const dirty = new Set();
let drawnAt = 0;
/** Draw an item once, with the next frame, but at most five times a second. @param {Item} item */
function redraw(item) {
  if (!dirty.size) setTimeout(() => requestAnimationFrame(() => {
    drawnAt = performance.now();
    for (const each of dirty) each.draw?.();
    dirty.clear();
  }), Math.max(0, drawnAt + 200 - performance.now()));
  dirty.add(item);
}
const FINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED", "GONE"]);
/** @param {Item} item */
function stateOf({ op, about, gone, askedAt }) {
  if (gone) return "GONE";
  if (op.done) return op.error ? Number(op.error.code) === 1 ? "CANCELLED" : "FAILED" : "SUCCEEDED";
  const look = lookup(op.metadata);
  if (askedAt || about?.cancelRequested || CANCELLING.some((field) => look?.(field) === true)) return "STOPPING";
  return about && (about.dueTime || !about.startTime) ? "WAITING" : "IN_PROGRESS";
}
const CODES = "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED".split(" ");
/** @param {any} error */
const codeName = (error) => CODES[Number(error.code)] ?? `${error.code}`;
/** Return a time from the description of an operation, or from common metadata fields. @param {Item} item @param {string} field */
const timeOf = (item, field) => {
  const found = item.about?.[field] ?? lookup(item.op.metadata)?.(field) ?? (field === "createTime" ? lookup(item.op.metadata)?.("startTime") : null);
  return typeof found === "string" && !isNaN(Date.parse(found)) ? found : "";
};
/** Return the method's full name, or the type of the metadata. @param {Item} item */
const methodOf = (item) => plain(item.about?.method) || plain(lookup(item.op.metadata)?.("method")) || String(item.op.metadata?.["@type"] ?? "").replace(/^.*\//, "");
/** Return the seconds from creation to the end, or until now. @param {Item} item */
function secondsOf(item) {
  const begin = timeOf(item, "createTime"), end = timeOf(item, "endTime");
  return !begin || (item.op.done && !end) ? null : ((end ? Date.parse(end) : clock()) - Date.parse(begin)) / 1000;
}
/** Read the descriptions of stale items. @param {Item[]} wanted @param {AbortSignal} [signal] */
async function describe(wanted, signal) {
  const stale = wanted.filter((item) => item.stale && !item.gone).slice(0, 100);
  if (!stale.length || !offers("BatchGetOperations")) return;
  for (const item of stale) item.stale = false, item.lookedAt = clock();
  try {
    const found = await call("POST", `${collection(ownerOf(stale[0].name))}:batchGet${missing.has("view") ? "" : "?view=FULL"}`, { names: stale.map((item) => item.name) }, signal);
    for (const { name, description: about } of found.operations ?? []) {
      const item = items.get(name);
      if (item && about) {
        if (!item.about && about.startTime && Number(about.attempt) < 2 && !item.op.done && item.estimate.last) item.estimate = begun(item, about.startTime);
        item.about = about, redraw(item);
      }
    }
    for (const name of found.missing ?? []) lose(name);
  } catch (error) {
    if (error instanceof Refusal && error.code === "INVALID_ARGUMENT") missing.add("view"); // an older or a foreign server
    if (error instanceof Refusal && error.unknown) missing.add("BatchGetOperations");
    else for (const item of stale) item.stale = true;
  }
}
/** Make an estimate with fraction 0 at the start, so that the first report already gives a rate. @param {Item} item @param {string} start */
function begun(item, start) {
  const estimate = new Estimate();
  estimate.add(0, Date.parse(start) / 1000);
  estimate.add(item.estimate.last?.[1] ?? null, clock() / 1000);
  return estimate;
}
/** @type {Set<string>} */
const missing = new Set();
/** @param {string} verb */
const offers = (verb) => !missing.has(verb) && (!session.verbs.length || session.verbs.includes(verb));

/** Follow operations: by a stream, otherwise in batches; without either, only a single one. @param {() => Item[]} wanted the shown items @returns {Loop & {look: () => void}} */
function follow(wanted) {
  let /** @type {string[]} */ names = [], pause = 2, later = 0;
  const open = () => wanted().filter((item) => !item.op.done && !item.gone).slice(0, 100).map((item) => item.name);
  const changed = () => {
    later ||= window.setTimeout(() => { later = 0; if (awake()) void describe(wanted()); }, 700);
  };
  const me = loop(async (signal, well) => {
    names = open();
    if (!names.length) return;
    const many = collection(ownerOf(names[0]));
    if (session.watches && offers("WatchOperations")) {
      try {
        const wanted = names, listened = await inSlot(async () => {
          const stream = await call("POST", `${many}:watch`, { names: wanted }, signal, true);
          well();
          return listen(stream, changed, signal);
        });
        if (listened) return open().length ? 1 : undefined;
      } catch (error) {
        if (!(error instanceof Refusal) || !error.unknown) throw error;
        missing.add("WatchOperations");
      }
    }
    const before = names.map((name) => JSON.stringify(items.get(name)?.op)).join();
    if (offers("BatchGetOperations")) {
      try {
        const found = await call("POST", `${many}:batchGet`, { names }, signal);
        found.operations?.forEach(take);
        found.missing?.forEach(lose);
      } catch (error) {
        if (!(error instanceof Refusal) || !error.unknown) throw error;
        missing.add("BatchGetOperations");
        return 0.1;
      }
    } else if (names.length === 1) take(await call("GET", pathOf(names[0]), null, signal));
    else return; // the list is read repeatedly anyway
    const same = before === names.map((name) => JSON.stringify(items.get(name)?.op)).join();
    if (!same) changed();
    pause = same ? Math.min(pause * 1.5, 30) : 2;
    return open().length ? pause : undefined;
  });
  return Object.assign(me, {
    /** Follow items that are shown since the last request, too. */
    look() { if (open().some((name) => !names.includes(name))) pause = 2, me.now(); changed(); },
  });
}
/**
 * Run `work` while holding one of three locks for streams: a browser opens only six connections to a server, in all tabs together.
 * @param {() => Promise<void>} work @returns {Promise<boolean>} whether a lock was free
 */
async function inSlot(work) {
  let done = !navigator.locks;
  if (done) await work();
  for (let slot = 0; slot < 3 && !done; slot++) {
    await navigator.locks.request(`lro.stream.${slot}`, { ifAvailable: true }, async (lock) => { if (lock) done = true, await work(); });
  }
  return done;
}
/** Read the events of a stream to its end. @param {ReadableStream} stream @param {() => void} changed @param {AbortSignal} signal */
async function listen(stream, changed, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", silent = 0;
  try {
    for (;;) {
      const quiet = new Promise((_, fail) => { silent = window.setTimeout(() => fail(new Refusal(0, { message: T.quiet })), 45000); });
      const { value, done } = await Promise.race([reader.read(), /** @type {Promise<any>} */ (quiet)]).finally(() => clearTimeout(silent));
      if (done || signal.aborted) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop() ?? "";
      for (const event of events) {
        const data = event.match(/^data: (.*)$/m)?.[1];
        if (!data) continue;
        const read = readJson(data);
        if (/^event: missing$/m.test(event)) lose(read.name);
        else {
          const item = take(read);
          if (item.stale) changed();
        }
      }
    }
  } catch (error) {
    throw error instanceof Refusal || signal.aborted ? error : new Refusal(0, { message: T.offline });
  } finally {
    void reader.cancel().catch(() => {});
  }
}
