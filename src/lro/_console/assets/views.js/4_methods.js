// The methods of the service.

/** Return an example filter on a field. @param {{path: string, type: string}} field */
function example({ path, type }) {
  if (/ of /.test(type)) return `${path}:*`;
  if (/int|double|float|number/i.test(type)) return `${path} > 10`;
  if (/bool/i.test(type)) return `${path} = true`;
  if (/timestamp|time/i.test(type)) return `${path} > "${new Date(clock() - 864e5).toISOString().slice(0, 10)}T00:00:00Z"`;
  if (/duration/i.test(type)) return `${path} > 10s`;
  return /string|text/i.test(type) ? `${path} = "a*"` : `${path}:*`;
}
/** @returns {View} */
function methodsView() {
  const link = (/** @type {string} */ filter, /** @type {Kid} */ text) => h("a", { href: `#/?${new URLSearchParams({ filter })}` }, text);
  const act = (/** @type {string} */ verb, /** @type {string} */ method) => void call("POST", verb, { method }).then(() => tally.now(), (error) => setText(said, error.message));
  const ask = (/** @type {string} */ method) => openDialog(put(V.pauseTitle, lastPart(method)), [h("p", {}, V.pauseWhy)], [[T.close, "", () => {}], [V.yesPause, "danger", () => act("pause", method)]]);
  const card = (/** @type {any} */ one) => {
    const test = one.request && methodTest(one), type = (/** @type {string} */ name) => name && h("code", { class: "long" }, name);
    return h("section", { class: "card" }, h("h2", { class: "m" }, methodCell(one.name)), pairs(/** @type {[string, Kid][]} */ ([[V.paused, one.paused && full(one.paused)], [V.path, type(one.path)], [V.request, type(one.request)], [V.response, type(one.response)], [V.metadata, type(one.metadata)],
      ...one.request ? [[V.concurrency, one.concurrency ?? V.unlimited], [V.rate, one.rate], [V.timeLimit, one.timeLimit ? inWords(one.timeLimit) : V.noLimit], [V.keepFor, one.keepFor && inWords(one.keepFor)], [V.attempts, String(one.attempts)], [V.begins, one.begins]] : []]).filter((each) => each[1])),
    one.fields?.length > 0 && h("details", {}, h("summary", {}, V.filterFields), simpleTable(`${V.filterFields}: ${lastPart(one.name)}`, [T.nameHead, V.type, V.example], one.fields.map((/** @type {any} */ field) => [h("code", {}, field.path), field.type, link([test, example(field)].filter(Boolean).join(" AND "), h("code", {}, example(field)))]))),
    test && h("p", {}, link(test, V.see)), may("pause") && button(one.paused ? V.resume : V.pause + "…", () => one.paused ? act("resume", one.name) : ask(one.name), { "data-method": one.name }));
  };
  const said = h("p", { role: "alert" }), cards = h("div", { class: "cards" }), ticks = h("section", { class: "card", hidden: true });
  let drawn = "";
  const draw = (/** @type {any} */ { paused, schedules }) => {
    if (drawn === (drawn = JSON.stringify([paused, schedules]))) return;
    const since = new Map(paused.map((/** @type {any} */ one) => [one.method, one.since])), here = document.activeElement?.getAttribute("data-method");
    for (const one of session.methods) one.paused = since.get(one.name), since.delete(one.name);
    const all = [...session.methods, ...[...since].map(([name, paused]) => ({ name, paused }))];
    cards.replaceChildren(...all.length ? all.map(card) : [h("p", { class: "note" }, V.noMethods)]);
    ticks.hidden = !schedules.length;
    ticks.replaceChildren(h("h2", {}, V.schedules), simpleTable(V.schedules, [T.nameHead, T.method, V.when, V.nextTick], schedules.map((/** @type {any} */ one) => [one.name, h("span", { class: "m" }, methodCell(one.method)), h("span", {}, h("code", {}, one.expression), ` ${one.timezone}`), one.nextTick ? moment(one.nextTick) : "–"])));
    if (here) [...cards.querySelectorAll("button")].find((each) => each.dataset.method === here)?.focus();
  };
  draw({ paused: session.methods.map((/** @type {any} */ one) => ({ method: one.name, since: one.paused })), schedules: [] });
  const tally = loop(async (signal) => {
    const found = session.statistics && !missing.has("tally") && await readTally(1, signal);
    if (found) draw(found);
    return found ? 15 : undefined;
  });
  return { title: T.methods, node: h("div", { class: "view" }, h("h1", { tabindex: -1 }, T.methods), said, cards, ticks), begin() { tally.now(); }, end() { tally.stop(); }, refresh() { tally.now(); } };
}
/** @param {string} duration such as `30s` */
const inWords = (duration) => isNaN(parseFloat(duration)) ? duration : span(parseFloat(duration)).replace(/ 0 \S+$/, "");

Object.assign(VIEWS, { operation: operationView, overview: overviewView, methods: methodsView });
