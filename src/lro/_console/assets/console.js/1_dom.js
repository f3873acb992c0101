/** @typedef {Node|string|number|null|undefined|false} Kid */

/**
 * Give an element attributes, event handlers and children; a string becomes a text node, never HTML.
 * @template {Element} E
 * @param {E} made @param {Record<string, any>} props @param {(Kid|Kid[])[]} kids @returns {E}
 */
function dress(made, props, kids) {
  for (const [key, value] of Object.entries(props)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value || value === 0 || value === "") made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...shown(kids));
  return made;
}
/** @param {(Kid|Kid[])[]} kids */
const shown = (kids) => kids.flat().filter((kid) => kid || kid === 0 || kid === "").map((kid) => kid instanceof Node ? kid : String(kid));
/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} [props] @param {...(Kid|Kid[])} kids
 */
const h = (tag, props = {}, ...kids) => dress(document.createElement(tag), props, kids);
/** Make an SVG element. @param {string} tag @param {Record<string, any>} [props] @param {...(Kid|Kid[])} kids */
const g = (tag, props = {}, ...kids) => dress(document.createElementNS("http://www.w3.org/2000/svg", tag), props, kids);
/** @param {string} id */
const icon = (id) => g("svg", { class: `i i-${id}`, "aria-hidden": "true" }, g("use", { href: `#i-${id}` }));
/** @param {string} text @param {(event: Event) => any} act @param {Record<string, any>} [props] @param {...Kid} kids */
const button = (text, act, props = {}, ...kids) => h("button", { type: "button", click: act, ...props }, ...kids, text);
/** Make a button that shows only an icon. @param {string} id @param {string} label @param {(event: Event) => any} act */
const iconButton = (id, label, act) => button("", act, { class: "icon", "aria-label": label, title: label }, icon(id));
/** Change the text of a node only if it differs, so that a selection survives. @param {Element} node @param {string} text */
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Read, or with `value` write, the browser's storage, to which the page may have no access. @param {"localStorage"|"sessionStorage"} kind @param {string} key @param {string|null} [value] */
function kept(kind, key, value) {
  try {
    const at = kind === "sessionStorage" ? `lro.${location.pathname}.${key}` : `lro.${key}`; // a token belongs to one console
    if (value === undefined) return window[kind].getItem(at) ?? "";
    if (value) window[kind].setItem(at, value); else window[kind].removeItem(at);
  } catch { /* the page works without storage */ }
  return "";
}

// --- Times: measured by the server's clock; a negative time span is shown as 0.
let skew = 0;
const clock = () => Date.now() + skew;
/** @param {number} seconds */
function span(seconds) {
  const s = Math.max(seconds, 0);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${Math.floor(s * 10) / 10} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}
const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const HOUR = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
/** @param {string|number} at */
const millis = (at) => typeof at === "number" ? at : Date.parse(at);
/** Format a time, with its day unless that is today. @param {string|number} at */
function hour(at) {
  const date = new Date(millis(at));
  if (isNaN(+date)) return String(at);
  return date.toDateString() === new Date(clock()).toDateString() ? HOUR.format(date) : DAY.format(date);
}
/** @param {string|number} at */
const full = (at) => isNaN(millis(at)) ? String(at) : FULL.format(millis(at));
/** @param {string|number} at */
const ago = (at) => put(T.ago, span(Math.max(Math.floor((clock() - millis(at)) / 1000), 1)).split(" ", 2).join(" ").replace(/^(\d)\.0?/, "$1"));
/** @param {string|number} at @param {string} [text] */
const moment = (at, text) => h("time", { datetime: at, title: full(at) }, text ?? hour(at));
/** @param {number} size */
const bytes = (size) => size < 1e3 ? `${size} B` : size < 1e6 ? `${Math.ceil(size / 1e3)} KB` : `${(size / 1e6).toFixed(1)} MB`;
/** @param {number} count */
const count = (count) => count.toLocaleString("en");

// --- Announcements for screen readers: at most one in 5 s.
let /** @type {Map<string, number>} */ unsaid = new Map(), speaking = 0, saidAt = -1e9;
/** Announce a sentence soon; the counts of equal sentences are added up. @param {string} text @param {number} [times] */
function say(text, times = 0) {
  unsaid.set(text, (unsaid.get(text) ?? 0) + times);
  speaking ||= window.setTimeout(() => {
    speaking = 0, saidAt = performance.now();
    byId("said").textContent = [...unsaid].map(([each, n]) => put(each, n)).join(", ");
    unsaid.clear();
  }, Math.max(50, saidAt + 5000 - performance.now()));
}
/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(T.copied);
  } catch { // not allowed, or not available over plain HTTP
    const input = h("textarea", { readonly: true, rows: 4, "aria-label": T.copyThis });
    input.value = text;
    openDialog(T.copyThis, [input]);
    input.select();
  }
}
