// The list of operations.

/** @typedef {{title: string, node: HTMLElement, begin: () => void, end: () => void, refresh: () => void, chosen?: () => Item[], all?: () => (() => Promise<string[]>)|null, changed?: () => void}} View */

/** Make a method's sign: one or two letters on a colour, to recognise it at a glance. @param {string} method */
function sign(method) {
  let hash = 0;
  for (const char of method) hash = (hash * 31 + char.charCodeAt(0)) >>> 0;
  const word = lastPart(method);
  return h("span", { class: `sign h${hash % 8}`, "aria-hidden": "true" }, (word.match(/[A-Z]/g)?.slice(0, 2).join("") || word.slice(0, 1)).padEnd(2, word[1] ?? "").slice(0, 2));
}
/** @param {string} method */
const methodCell = (method) => [sign(method), h("span", { class: "two" }, h("b", {}, lastPart(method) || "–"), h("small", {}, method.includes(".") ? method.slice(0, method.lastIndexOf(".")) : ""))];
/** @type {Record<string, string>} */
const ICONS = { WAITING: "wait", IN_PROGRESS: "run", STOPPING: "stop", SUCCEEDED: "ok", FAILED: "fail", CANCELLED: "cancel", GONE: "gone" };
/** @param {string} state */
const stateMark = (state) => h("span", { class: `state s-${ICONS[state]}` }, icon(ICONS[state]), T.states[/** @type {"GONE"} */ (state)]);
/** Say for what waiting work waits. @param {Item} item */
const waitText = ({ about }) => Date.parse(about?.dueTime) > clock() ? put(T.waitsUntil, hour(about.dueTime)) : T.waiting;
/** Make a progress bar, and the function that draws an item on it. @param {string} label */
function meter(label) {
  const bar = h("progress", { max: 1, "aria-label": label }), percent = h("b"), text = h("small");
  const node = h("div", { class: "meter" }, h("span", { class: "line" }, bar, percent), text);
  const draw = (/** @type {Item} */ item) => {
    const state = stateOf(item), found = progressOf(item.op.metadata), over = FINAL.has(state);
    const fraction = state === "SUCCEEDED" ? null : found?.fraction ?? null;
    bar.hidden = fraction === null;
    bar.value = fraction ?? 0;
    setText(percent, fraction === null ? "" : `${Math.floor(fraction * 100 + 1e-9)} %`);
    const left = over || state === "WAITING" ? null : item.estimate.left(clock() / 1000);
    const units = found?.done != null && found.total != null && fraction !== null ? `${count(found.done)} of ${count(found.total)}` : "";
    setText(text, over ? item.op.error ? String(item.op.error.message ?? "") : "" : state === "WAITING" ? waitText(item)
      : [found?.message || units, left === null ? "" : put(T.left, span(Math.ceil(left)))].filter(Boolean).join(" · "));
  };
  return { node, draw };
}
/** @param {string} caption @param {string[]} heads @param {Kid[][]} lines @param {string} [kind] */
const simpleTable = (caption, heads, lines, kind = "plain") => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", { class: kind }, h("caption", { class: "sr" }, caption),
  h("thead", {}, h("tr", {}, heads.map((each) => h("th", { scope: "col" }, each)))),
  h("tbody", {}, lines.map((line) => h("tr", {}, line.map((each, at) => at ? h("td", {}, each) : h("th", { scope: "row" }, each)))))));
/** @param {[string, Kid][]} pairs */
const pairs = (pairs) => h("dl", {}, pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
/** Make a link if the URL is valid for HTTP; otherwise, a text. @param {any} url @param {string} text */
function safeLink(url, text) {
  return /^https?:\/\//i.test(String(url)) && URL.canParse(url) ? h("a", { href: url, rel: "noreferrer noopener", target: "_blank" }, text) : h("span", {}, text, url && text !== url ? ` (${url})` : "");
}
/** Update a text like "3 min ago" every second. @param {Element} node @param {() => string} text */
function ticking(node, text) {
  const tick = () => setText(node, text());
  tick();
  ticks.set(node, tick);
  return node;
}
/** @type {Map<Element, () => void>} */
const ticks = new Map();
setInterval(() => {
  wake();
  if (awake()) for (const [node, tick] of ticks) if (node.isConnected) tick(); else ticks.delete(node);
}, 1000);

/** Split a filter at each AND outside of quotes and parentheses. @param {string} text */
function termsOf(text) {
  const found = text.match(/(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|\((?:"(?:\\.|[^"\\])*"|[^()"]|\([^()]*\))*\)|(?!\sAND\s)[^])+/g) ?? [];
  return found.map((term) => term.replace(/^\s*AND\s+/, "").trim()).filter(Boolean);
}
/** @type {[keyof typeof T.states | "ASKED", string][]} */
const OURS = [["IN_PROGRESS", "state() = IN_PROGRESS"], ["FAILED", "state() = FAILED"], ["CANCELLED", "state() = CANCELLED"], ["SUCCEEDED", "state() = SUCCEEDED"], ["ASKED", "cancel_requested()"]];
/** Return the filter for the operations of a method; empty if there is none. @param {any} method */
function methodTest(method) {
  const alone = session.methods.filter((/** @type {any} */ each) => each.metadata === method.metadata).length < 2, verb = lastPart(method.name);
  if (alone && method.metadata) return `type(metadata) = ${method.metadata}`;
  return method.metadata?.endsWith("OperationMetadata") ? `metadata.verb = "${verb[0].toLowerCase()}${verb.slice(1)}"` : "";
}

/** @param {number} minutes @param {AbortSignal} signal @returns {Promise<any>} null if the server has no tally */
async function readTally(minutes, signal) {
  try { return await call("GET", `tally?minutes=${minutes}`, null, signal); } catch (error) {
    if (!(error instanceof Refusal) || !error.unknown) throw error;
    missing.add("tally");
    return null;
  }
}
/** Format a number of operations in progress, with "+" if counting stopped early. @param {any} load @param {(each: any) => number} of */
const number = (load, of) => count(load.methods.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + of(each), 0)) + (load.capped ? "+" : "");
/** @param {URLSearchParams} query @returns {View} */
function listView(query) {
  const filter = query.get("filter") ?? "", owner = query.get("parent") ?? session.parents[0] ?? "";
  /** @type {Map<string, {tr: HTMLTableRowElement, box: HTMLInputElement, item: Item}>} */
  const rows = new Map();
  let token = "", short = false, first = true, everything = false, /** @type {any[]} */ fresh = [];

  // --- The filter and its chips.
  const go = (/** @type {string} */ text, /** @type {string} */ of) => {
    const next = new URLSearchParams();
    if (text) next.set("filter", text);
    if (of) next.set("parent", of);
    const hash = next.size ? `#/?${next}` : "#/";
    if (location.hash === hash) view.refresh(); else location.hash = hash;
  };
  const input = h("input", { id: "filter", type: "search", spellcheck: "false", autocomplete: "off", placeholder: T.filterHint, "aria-label": T.filter, "aria-describedby": "wrong" });
  const echo = h("div", { class: "echo", "aria-hidden": "true" }), wrong = h("p", { id: "wrong", role: "alert" });
  input.value = filter;
  for (const kind of ["scroll", "input"]) input.addEventListener(kind, () => { echo.scrollLeft = input.scrollLeft; if (kind === "input") echo.replaceChildren(); });
  const form = h("form", { class: "box", role: "search", submit: (/** @type {Event} */ event) => { event.preventDefault(); go(input.value.trim(), owner); } },
    h("div", { class: "over" }, echo, input), h("button", { class: "go" }, T.apply));
  const change = (/** @type {(term: string) => boolean} */ drop, /** @type {string} */ add) => go([...termsOf(input.value).filter((term) => !drop(term)), add].filter(Boolean).join(" AND "), owner);
  const terms = termsOf(filter), ours = offers("BatchGetOperations") && session.verbs.length > 0, counted = h("span", { class: "count" });
  const chips = (ours ? OURS : /** @type {typeof OURS} */ ([["IN_PROGRESS", "done = false"], ["SUCCEEDED", "done = true"]])).map(([state, term]) => {
    const on = terms.includes(term), asked = state === "ASKED";
    return button(asked ? T.stopAsked : T.states[state], () => change((each) => each === term || !asked && /^(state\(\)|done) = /.test(each), on ? "" : term),
      { class: "chip", "aria-pressed": String(on) }, icon(asked ? "stop" : ICONS[state]), state === "IN_PROGRESS" && counted);
  });
  const isTime = (/** @type {string} */ term) => /^create_time\(\) >= "/.test(term), since = terms.find(isTime)?.match(/"(.*)"/)?.[1];
  const at = h("input", { type: "datetime-local", "aria-label": T.sinceTime, hidden: true, change: () => { const date = new Date(at.value); if (+date) change(isTime, `create_time() >= "${date.toISOString()}"`); } });
  const pick = (/** @type {string} */ label, /** @type {[string, string][]} */ options, /** @type {string} */ chosen, /** @type {(value: string) => any} */ act) => {
    const made = h("select", { "aria-label": label, class: chosen && "on", change: () => act(made.value) }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
    return made;
  };
  /** @type {[string, string][]} */
  const tests = session.methods.map((/** @type {any} */ method) => [methodTest(method), lastPart(method.name)]).filter((/** @type {string[]} */ each) => each[0]);
  const bar = h("div", { class: "chips" }, h("div", { role: "group", "aria-label": T.state }, chips),
    tests.length > 0 && pick(T.method, [["", T.anyMethod], ...tests], tests.find(([test]) => terms.includes(test))?.[0] ?? "", (value) => change((term) => tests.some(([test]) => test === term), value)),
    ours && pick(T.created, [...(since ? /** @type {[string, string][]} */ ([["x", put(T.since, hour(since))]]) : []), ["", T.anyTime], ["3600", T.hour], ["86400", T.day], ["604800", T.week], ["at", T.custom]], since ? "x" : "", (value) => {
      if (value === "at") at.hidden = false, at.focus();
      else if (value !== "x") change(isTime, value && `create_time() >= "${new Date(clock() - Number(value) * 1000).toISOString().slice(0, 19)}Z"`);
    }), ours && at,
    session.parents.length > 1 && pick(T.parent, session.parents.map((/** @type {string} */ each) => [each, each || T.noParent]), owner, (value) => go(input.value.trim(), value)));

  /** Mark the error in the filter, and offer corrections. @param {Refusal} error */
  const showWrong = (error) => {
    const detail = error.details.find((/** @type {any} */ one) => one.metadata?.position !== undefined), chars = [...filter];
    const place = detail ? Math.min(Number(detail.metadata.position), chars.length) : -1;
    const word = place < 0 ? "" : chars.slice(place).join("").match(/^[\w.]+|^[^]/)?.[0] ?? "", before = chars.slice(0, Math.max(place, 0)).join("");
    if (place >= 0) echo.replaceChildren(before, h("mark", {}, word || " "), filter.slice(before.length + word.length));
    const meant = error.message.match(/did you mean (.+?)\?/)?.[1].split(/, | or /) ?? [];
    wrong.replaceChildren(error.message.replace(/^filter, /, ""), ...meant.flatMap((each) => [" ", button(each, () => go(before + each + filter.slice(before.length + word.length), owner))]));
    if (place >= 0) echo.scrollLeft = input.scrollLeft;
  };

  // --- Rows, made once and then changed in place.
  const body = h("tbody"), note = h("p", { class: "note", role: "status" }), more = button(T.more, () => { token && load(token); }, { hidden: true });
  const newer = button("", () => showFresh(), { class: "newer", hidden: true });
  const markAll = h("input", { type: "checkbox", "aria-label": T.markAll, change: () => { for (const { box } of rows.values()) box.checked = markAll.checked; everything = false; drawBulk(); } });
  const acts = may("cancel") || may("delete");
  const table = h("table", { class: "ops bare" }, h("caption", { class: "sr" }, T.operations), h("thead", {}, h("tr", {},
    acts && h("th", { scope: "col", class: "mark" }, h("label", { class: "hit" }, markAll)), [T.state, T.method, T.nameHead, T.progress, T.created, T.took, T.error].map((text) => h("th", { scope: "col" }, text)))), body);
  const bulk = h("div", { class: "bulk", hidden: true, role: "region", "aria-label": put(T.marked, "") });
  const marked = () => [...rows.values()].filter(({ box }) => box.checked).map(({ item }) => item);
  const collect = async () => {
    const names = [];
    for (let next = "", more = true; more && names.length < 1000;) {
      const page = await fetchPage(next, undefined, 1000);
      for (const op of page.operations ?? []) if (names.length < 1000) names.push(op.name), take(op);
      next = page.nextPageToken ?? "", more = !!next;
      say(put(T.collecting, names.length));
    }
    return names;
  };
  const drawBulk = () => {
    const number = marked().length;
    bulk.hidden = !number;
    markAll.checked = number > 0 && number === rows.size;
    markAll.indeterminate = number > 0 && number < rows.size;
    if (!number) { everything = false; return; }
    const all = h("input", { type: "checkbox", checked: everything, change: () => { everything = all.checked; } });
    bulk.replaceChildren(h("b", {}, put(T.marked, number)), h("label", { class: "check" }, all, T.everything),
      ...["cancel", "delete"].filter(may).map((each) => button(T[/** @type {"cancel"} */ (each)] + "…", () => askAction(/** @type {"cancel"} */ (each), marked(), view.all?.() ?? null, drawBulk), { class: each === "delete" ? "danger" : "" })),
      button(T.clear, () => { for (const { box } of rows.values()) box.checked = false; drawBulk(); }));
  };
  /** @param {any} op @param {Node|null} before */
  const addRow = (op, before) => {
    const item = take(op);
    if (rows.has(op.name)) return;
    const link = h("a", { href: `#/${op.name.split("/").map(encodeURIComponent).join("/")}`, title: op.name, class: "name" }, shortId(op.name));
    const box = h("input", { type: "checkbox", "aria-label": put(T.mark, shortId(op.name)), change: drawBulk });
    const state = h("td", { class: "c-state" }), method = h("td", { class: "c-method" }), progress = meter(`${T.progress}, ${shortId(op.name)}`);
    const made = h("td", { class: "c-created" }), took = h("td", { class: "c-took" }), error = h("td", { class: "c-error" });
    const tr = h("tr", {}, acts && h("td", { class: "mark" }, h("label", { class: "hit" }, box)), state, method,
      h("td", { class: "c-name" }, link, iconButton("copy", put(T.copy, T.name), () => copy(op.name))), h("td", { class: "c-progress" }, progress.node), made, took, error);
    let drawn = "", called = "", began = "";
    item.draw = () => {
      const now = stateOf(item), name = methodOf(item), from = timeOf(item, "createTime");
      if (now !== drawn) state.replaceChildren(stateMark(now)), tr.className = `r-${ICONS[now]}`;
      if (name !== called) method.replaceChildren(h("div", { class: "m" }, methodCell(name)));
      if (from !== began) made.replaceChildren(h("span", { class: "two" }, moment(from), ticking(h("small"), () => ago(from))));
      drawn = now, called = name, began = from;
      progress.draw(item);
      const code = item.op.error ? codeName(item.op.error) : "";
      if (error.textContent !== code) error.replaceChildren(code && h("code", {}, code));
    };
    ticking(took, () => {
      const seconds = secondsOf(item);
      if (!item.op.done && !item.gone) progress.draw(item);
      return seconds === null ? "" : span(seconds >= 10 ? seconds : item.op.done ? seconds : Math.floor(seconds) || seconds);
    });
    item.draw();
    rows.set(op.name, { tr, box, item });
    body.insertBefore(tr, before);
  };
  const shownItems = () => [...rows.values()].map(({ item }) => item);
  const fetchPage = (/** @type {string} */ next, /** @type {AbortSignal|undefined} */ signal, size = 50) => {
    const query = new URLSearchParams({ pageSize: String(size) });
    if (filter) query.set("filter", filter);
    if (next) query.set("pageToken", next);
    return call("GET", `${collection(owner)}?${query}`, null, signal);
  };
  const drawNote = () => {
    const last = [...rows.values()].at(-1)?.item;
    more.hidden = !token;
    setText(more, short ? T.further : T.more);
    setText(note, !token ? rows.size ? rows.size > 5 ? put(T.end, rows.size) : "" : filter ? T.none : T.empty
      : !last ? T.shortNone : short ? put(T.short, hour(timeOf(last, "createTime")), rows.size) : "");
    table.classList.toggle("bare", !rows.size);
  };
  const load = async (/** @type {string} */ next) => {
    more.disabled = true;
    try { append(await fetchPage(next, undefined), null); token = lastToken; } catch (error) { setText(note, /** @type {Error} */ (error).message); return; } finally { more.disabled = false; }
    drawNote();
    follows.look();
  };
  let lastToken = "";
  const append = (/** @type {any} */ page, /** @type {Node|null} */ before) => {
    for (const op of page.operations ?? []) if (!rows.has(op.name)) addRow(op, before);
    lastToken = page.nextPageToken ?? "";
    short = (page.operations ?? []).length < 50;
  };
  const showFresh = () => {
    if (!fresh.some((op) => rows.has(op.name)) && rows.size) return view.refresh(); // operations between the two pages are missing
    const top = body.firstChild;
    for (const op of fresh) if (!rows.has(op.name)) addRow(op, top);
    drawFresh();
    drawNote();
    follows.look();
    tally.now();
    /** @type {HTMLElement|null} */ (body.querySelector("a"))?.focus();
  };
  const drawFresh = () => {
    const number = fresh.filter((op) => !rows.has(op.name)).length;
    if (number && newer.hidden) say(T.arrived, number);
    newer.hidden = !number;
    setText(newer, put(T.newer, number >= 50 ? "50+" : number));
  };
  /** An item that is missing from the page, although a later one is on it, may be deleted: mark it to be read once. @param {boolean} cut */
  const lookForLost = (cut) => {
    const listed = new Set(fresh.map((op) => op.name)), last = [...rows.values()].filter(({ item }) => listed.has(item.name)).map(({ tr }) => tr.rowIndex);
    for (const { tr, item } of rows.values()) if (!item.unlisted && !listed.has(item.name) && (!cut || tr.rowIndex < Math.max(...last))) item.unlisted = item.stale = true;
  };
  const pages = loop(async (signal) => {
    if (!first && scrollY > 400 && (offers("WatchOperations") || offers("BatchGetOperations"))) return session.refreshSeconds;
    let page;
    try { page = await fetchPage("", signal); } catch (error) {
      if (error instanceof Refusal && error.http === 400 && filter) return showWrong(error), undefined;
      throw error;
    }
    if (first) {
      body.replaceChildren(), rows.clear(), note.replaceChildren();
      // Draw the rows that fit on a screen first.
      append({ operations: page.operations?.slice(0, 16) }, null);
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      if (signal.aborted) return;
      append(page, null);
      token = lastToken, first = false;
      drawNote();
    } else {
      fresh = page.operations ?? [];
      for (const op of fresh) if (rows.has(op.name)) take(op);
      lookForLost(!!page.nextPageToken);
      if (!rows.size && fresh.length) showFresh(), token = page.nextPageToken ?? "", drawNote();
      drawFresh();
    }
    await describe(shownItems(), signal);
    follows.look();
    return session.refreshSeconds;
  });
  const follows = follow(shownItems);
  const tally = loop(async (signal) => {
    if (!session.statistics || missing.has("tally")) return;
    const found = await readTally(1, signal); // only the number in progress is shown here
    if (found) setText(counted, number(found.inProgress, (/** @type {any} */ each) => each.waiting + each.running));
    return found ? 15 : undefined;
  });
  /** @type {View} */
  const view = {
    title: T.operations, node: h("div", { class: "view list" }, h("div", { class: "row" }, h("h1", { tabindex: -1 }, T.operations), newer), form, wrong, bar, table, h("div", { class: "foot" }, note, more), bulk),
    begin() { for (const { item } of rows.values()) items.set(item.name, item); pages.now(); tally.now(); },
    end() { pages.stop(); follows.stop(); tally.stop(); for (const { item } of rows.values()) item.draw = null; items.clear(); },
    refresh() { first = true, fresh = [], newer.hidden = true; setText(wrong, ""); echo.replaceChildren(); pages.now(); tally.now(); },
    chosen() { const many = marked(), here = document.activeElement?.closest("tr"); return many.length ? many : [...rows.values()].filter(({ tr }) => tr === here).map(({ item }) => item); },
    all: () => everything ? collect : null,
    changed: drawBulk,
  };
  return view;
}
