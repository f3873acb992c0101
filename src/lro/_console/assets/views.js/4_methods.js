// What the service can do.

/** An example of a test of a field. @param {{path: string, type: string}} field */
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
  const cards = session.methods.map((/** @type {any} */ one) => {
    const test = methodTest(one), type = (/** @type {string} */ name) => h("code", { class: "long" }, name);
    return h("section", { class: "card" }, h("h2", { class: "m" }, methodCell(one.name)), pairs(/** @type {[string, Kid][]} */ ([[V.paused, one.paused && full(one.paused)], [V.path, one.path && type(one.path)], [V.request, type(one.request)], [V.response, type(one.response)], [V.metadata, type(one.metadata)],
      [V.concurrency, one.concurrency ?? V.unlimited], [V.timeLimit, one.timeLimit ? inWords(one.timeLimit) : V.noLimit], [V.keepFor, one.keepFor && inWords(one.keepFor)], [V.attemptsMost, String(one.attempts)], [V.begins, one.begins]]).filter((each) => each[1])),
    one.fields?.length > 0 && h("details", {}, h("summary", {}, V.filterFields), simpleTable(`${V.filterFields}: ${lastPart(one.name)}`, [T.nameHead, V.type, V.example], one.fields.map((/** @type {any} */ field) => [h("code", {}, field.path), field.type, link([test, example(field)].filter(Boolean).join(" AND "), h("code", {}, example(field)))]))),
    test && h("p", {}, link(test, V.see)));
  });
  return { title: T.methods, node: h("div", { class: "view" }, h("h1", { tabindex: -1 }, T.methods), cards.length ? h("div", { class: "cards" }, cards) : h("p", { class: "note" }, V.noMethods)), begin() {}, end() {}, refresh() { } };
}
/** @param {string} duration such as 30s */
const inWords = (duration) => isNaN(parseFloat(duration)) ? duration : span(parseFloat(duration)).replace(/ 0 \S+$/, "");

Object.assign(VIEWS, { operation: operationView, overview: overviewView, methods: methodsView });
