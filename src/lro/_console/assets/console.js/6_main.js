// The frame of the page: its routes, keys and theme.

let /** @type {View|null} */ view = null, began = false;
/** The views by name; all except the list are loaded when they are first opened. @type {Record<string, (query: URLSearchParams, name: string) => View>} */
const VIEWS = { list: listView };
/** Show the view in the address. */
async function route() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/), asked = location.href;
  const kind = path === "" ? "list" : path === "overview" || path === "methods" ? path : "operation";
  view?.end();
  for (const box of document.querySelectorAll("dialog")) box.close(); // it belongs to the view before
  view = null;
  if (!VIEWS[kind]) await import(new URL(document.querySelector("meta[name=views]")?.getAttribute("content") ?? "", document.baseURI).href);
  if (asked !== location.href) return;
  let name = path;
  try { name = path.split("/").map(decodeURIComponent).join("/"); } catch { /* the server refuses the name */ }
  view = VIEWS[kind](new URLSearchParams(search), name);
  document.title = `${view.title} · ${session.title}`;
  for (const link of document.querySelectorAll("nav.views a")) {
    if (link.getAttribute("data-at") === (kind === "operation" ? "list" : kind)) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  byId("main").replaceChildren(view.node);
  view.begin();
  if (began) view.node.querySelector("h1")?.focus({ preventScroll: true }), scrollTo(0, 0);
  began = true;
}
const live = button("", () => togglePause(), { class: "live" });
function showLive() {
  const down = [...loops].some((each) => each.failed), on = !paused && !down && !!awake();
  live.setAttribute("aria-pressed", String(paused));
  live.title = paused ? T.resume : T.pause;
  const text = paused ? T.paused : down ? T.down : T.live;
  if (live.textContent !== text || !live.firstChild) live.replaceChildren(icon(paused ? "play" : "pause"), text);
  live.classList.toggle("on", on);
}
function togglePause() {
  paused = !paused;
  touched = performance.now();
  wake();
  say(paused ? T.paused : T.live);
}
const THEMES = ["", "light", "dark"], WORDS = ["as the system", "light", "dark"];
/** @param {number} step */
function theme(step) {
  const at = (THEMES.indexOf(kept("localStorage", "theme")) + step) % 3;
  if (step) kept("localStorage", "theme", THEMES[at]);
  document.documentElement.dataset.theme = THEMES[at];
  themes.setAttribute("aria-label", put(T.theme, WORDS[at]));
  themes.title = put(T.theme, WORDS[at]);
  if (step) say(put(T.theme, WORDS[at]).replace(/ \(.*/, ""));
}
const themes = iconButton("theme", "", () => theme(1));

/** Move the focus to the next link of the list, or with step -1 to the previous one. @param {number} step */
function move(step) {
  const links = [...document.querySelectorAll("table.ops .name")], here = document.activeElement?.closest("tr")?.querySelector(".name");
  const at = here ? links.indexOf(here) + step : step > 0 ? 0 : links.length - 1;
  /** @type {HTMLElement|undefined} */ (links[Math.min(Math.max(at, 0), links.length - 1)])?.focus();
}
/** @param {"cancel"|"delete"} action */
const actOn = (action) => {
  const chosen = view?.chosen?.() ?? [];
  if (may(action)) askAction(action, chosen, view?.all?.() ?? null, () => view?.changed?.());
};
/** @type {Record<string, () => any>} */
const KEYS = {
  "/": () => byId("filter")?.focus(), j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
  x: () => /** @type {HTMLElement|null} */ (document.activeElement?.closest("tr")?.querySelector("[type=checkbox]"))?.click(),
  c: () => actOn("cancel"), d: () => actOn("delete"), r: () => view?.refresh(), p: togglePause, t: () => theme(1), "?": askHelp,
};
document.addEventListener("keydown", (event) => {
  const at = /** @type {Element} */ (event.target), arrow = event.key.startsWith("Arrow");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || at.closest("input:not([type=checkbox]), textarea, select")) return;
  if (!Object.hasOwn(KEYS, event.key) || !arrow && !singleKeys() || arrow && !at.closest("table.ops")) return;
  event.preventDefault();
  KEYS[event.key]();
});
for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "touchstart"]) document.addEventListener(kind, touch, { passive: true });
document.addEventListener("visibilitychange", () => { if (!document.hidden) touched = performance.now(); wake(); });
window.addEventListener("pagehide", () => { for (const each of loops) each.rest(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) for (const each of loops) each.now(); });
window.addEventListener("hashchange", () => void route());

/** The first request, as a loop, so that the bar of failures shows it. @type {Loop} */
const starting = { now: () => void start(), rest() {}, stop() {} };
/** Read the session, and show the page. */
async function start() {
  try { session = await call("GET", "session"); } catch (error) {
    if (!(error instanceof Refusal) || !error.unknown) {
      const later = error instanceof Refusal && error.passing;
      starting.failed = /** @type {Error} */ (error).message, starting.at = later ? performance.now() + 5000 : undefined;
      loops.add(starting);
      showTrouble();
      if (later) setTimeout(start, 5000);
      return;
    }
  }
  loops.delete(starting);
  api = session.api.replace(/\/$/, "");
  missing.clear();
  setText(/** @type {Element} */ (document.querySelector(".brand b")), session.title);
  /** @type {[string, string][]} */
  const places = [["list", T.operations], ["overview", T.overview], ["methods", T.methods]];
  const nav = document.querySelector("nav");
  nav?.setAttribute("aria-label", T.views);
  nav?.classList.add("views");
  nav?.replaceChildren(...places.filter(([at]) => at !== "overview" || session.statistics).filter(([at]) => at !== "methods" || session.methods.length).map(([at, text]) => h("a", { href: at === "list" ? "#/" : `#/${at}`, "data-at": at }, text)));
  showTrouble();
  await route();
}
const skip = /** @type {HTMLElement} */ (document.querySelector(".skip"));
setText(skip, T.skip);
skip.addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
document.querySelector(".tools")?.append(live, themes, iconButton("help", T.help, askHelp));
theme(0);
showLive();
void start();
