// Draws values as trees, and the details of errors by their types.

/** Print a value as JSON, with the original text of numbers. @param {any} value @param {string} [indent] @returns {string} */
function printed(value, indent = "\n") {
  if (value instanceof Exact) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const list = Array.isArray(value), inner = indent + "  ";
  const parts = list ? value.map((each) => printed(each, inner)) : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${printed(each, inner)}`);
  return parts.length ? (list ? "[" : "{") + inner + parts.join("," + inner) + indent + (list ? "]" : "}") : list ? "[]" : "{}";
}
const FIRST = 64e3, MOST = 5e6, NODES = 100;
/** @param {any} value @returns {number} */
const nodes = (value) => value === null || typeof value !== "object" || value instanceof Exact ? 1 : Object.values(value).reduce((sum, each) => sum > NODES ? sum : sum + nodes(each), 1);

/** Draw a JSON value as a tree; of a large value, draw the beginning of its text. @param {any} value @param {string} title @param {Set<string>} opened paths of open nodes @param {boolean} [whole] */
function drawJson(value, title, opened, whole) {
  const text = printed(value), size = text.length;
  const blob = () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: `${title}.json` });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  if (size <= FIRST || whole) return h("div", { class: "json" }, tree("", value, "", opened, nodes(value) <= NODES));
  const box = h("div", { class: "json" }, h("p", { class: "row" }, put(V.cut, bytes(size)), " ",
    size <= MOST && button(put(V.showAll, bytes(size)), () => box.replaceWith(drawJson(value, title, opened, true))), button(put(V.download, bytes(size)), blob)),
  h("pre", { tabindex: 0 }, text.slice(0, FIRST)));
  return box;
}
/** @param {string} key @param {any} value @param {string} path @param {Set<string>} opened @param {boolean} open @returns {HTMLElement} */
function tree(key, value, path, opened, open) {
  const label = key && h("span", { class: "key" }, key);
  if (value === null || typeof value !== "object" || value instanceof Exact) {
    const kind = value instanceof Exact ? "number" : value === null ? "null" : typeof value;
    return h("div", { class: "leaf" }, label, h("span", { class: kind }, typeof value === "string" ? JSON.stringify(value) : String(value)));
  }
  const entries = Object.entries(value), list = Array.isArray(value);
  if (!entries.length) return h("div", { class: "leaf" }, label, list ? "[]" : "{}");
  const inside = h("div"), at = `${path}/${key}`;
  let drawn = 0;
  const grow = () => {
    for (const [name, each] of entries.slice(drawn, drawn + NODES)) inside.append(tree(name, each, at, opened, open));
    drawn += NODES;
    if (drawn < entries.length) {
      const more = button(put(V.moreItems, count(entries.length - drawn)), () => { more.remove(); grow(); });
      inside.append(more);
    }
  };
  const wide = open || opened.has(at) || !key;
  if (wide) grow();
  if (!key) return inside;
  const node = h("details", { open: wide && !opened.has(`-${at}`), toggle: () => {
    opened.delete(node.open ? `-${at}` : at), opened.add(node.open ? at : `-${at}`);
    if (node.open && !drawn) grow();
  } }, h("summary", { "data-path": at }, label, h("span", { class: "dim" }, put(list ? V.items : V.fields, count(entries.length), entries.length > 1 ? "s" : ""))), inside);
  return node;
}

/** Draw a detail of an error (AIP-193). @param {any} detail @param {Set<string>} opened @returns {HTMLElement} */
function drawDetail(detail, opened) {
  const { "@type": type, ...rest } = detail ?? {}, kind = String(type ?? "").split(".").pop() ?? "";
  const table = rest.fieldViolations ?? rest.violations;
  let body;
  if (Array.isArray(table) && table.length) {
    const heads = [...new Set(table.flatMap((each) => Object.keys(each ?? {})))];
    body = simpleTable(kind, heads, table.map((each) => heads.map((key) => typeof each?.[key] === "string" ? each[key] : printed(each?.[key] ?? ""))));
  } else if (kind === "RetryInfo") body = h("p", {}, put(V.retryAfter, String(rest.retryDelay)));
  else if (kind === "Help" && Array.isArray(rest.links)) body = h("ul", {}, rest.links.map((/** @type {any} */ each) => h("li", {}, safeLink(each?.url, String(each?.description || each?.url)))));
  else if (kind === "LocalizedMessage") body = h("p", { lang: rest.locale }, rest.message);
  else if (kind === "DebugInfo") body = h("pre", { tabindex: 0 }, [].concat(rest.stackEntries ?? []).join("\n"), "\n", rest.detail ?? "");
  else if (Object.values(rest).every((value) => typeof value === "string" || value instanceof Exact)) body = pairs(Object.entries(rest).map(([key, value]) => [key, String(value)]));
  else body = drawJson(rest, kind, opened);
  return h("section", { class: "detail" }, h("h2", {}, kind || V.raw), body);
}
