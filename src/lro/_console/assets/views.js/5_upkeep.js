// Below the list: which methods are paused, and what is started periodically.

/** @param {HTMLElement} place @param {any} tally @param {() => void} again */
function drawUpkeep(place, { paused = [], schedules = [] }, again) {
  const shown = JSON.stringify([paused, schedules]);
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  const since = new Map(paused.map((/** @type {any} */ one) => [one.method, one.since])), said = h("p", { role: "alert" });
  const here = document.activeElement?.getAttribute("data-method"), open = place.querySelector("details")?.open;
  const set = (/** @type {string} */ verb, /** @type {string} */ method) => void call("POST", verb, { method }).then(again, (error) => setText(said, error.message));
  const ask = (/** @type {string} */ method) => openDialog(put(V.pauseTitle, lastPart(method)), [h("p", {}, V.pauseWhy)], [[T.close, "", () => {}], [V.yesPause, "danger", () => set("pause", method)]]);
  const act = (/** @type {string} */ method) => button(since.has(method) ? V.resume : V.pause + "…", () => since.has(method) ? set("resume", method) : ask(method), { "data-method": method });
  for (const one of session.methods) one.paused = since.get(one.name) ?? null;
  const names = [...new Set([...session.methods.map((/** @type {any} */ one) => one.name), ...since.keys()])].filter((method) => may("pause") || since.has(method));
  const cell = (/** @type {string} */ method) => h("span", { class: "m" }, methodCell(method)), time = (/** @type {string|undefined} */ at) => at ? moment(at) : "–";
  place.hidden = !names.length && !schedules.length;
  place.replaceChildren(h("details", { open }, h("summary", {}, paused.length ? put(V.upkeepPaused, paused.length) : V.upkeep), said,
    names.length > 0 && simpleTable(T.methods, [T.method, V.paused, ...may("pause") ? [V.action] : []], names.map((method) => [cell(method), time(since.get(method)), ...may("pause") ? [act(method)] : []])),
    schedules.length > 0 && simpleTable(V.schedules, [T.nameHead, T.method, V.when, V.nextTick], schedules.map((/** @type {any} */ one) => [one.name, cell(one.method), h("span", {}, h("code", {}, one.expression), ` ${one.timezone}`), time(one.nextTick)]))));
  if (here) /** @type {HTMLElement|undefined} */ ([...place.querySelectorAll("button")].find((each) => each.dataset.method === here))?.focus();
}
VIEWS.upkeep = drawUpkeep;
