// One operation.

/** @param {URLSearchParams} query @param {string} name @returns {View} */
function operationView(query, name) {
  let /** @type {Item|null} */ item = null, tab = query.get("tab") ?? "", shownText = "", /** @type {any} */ drawn = null;
  const opened = new Set(), heading = h("h1", { tabindex: -1 }, name.split("/").pop() || name), head = h("div", { class: "head" }), state = h("div", { class: "big" });
  const asked = h("p", { class: "asked", role: "status" }), progress = meter(T.progress), line = h("ol", { class: "timeline" }), panel = h("div", { role: "tabpanel", id: "panel", tabindex: 0, "aria-labelledby": "tab" });
  const tabs = h("div", { role: "tablist", "aria-label": V.show }), facts = h("section", { class: "card" }), acts = h("div", { class: "acts" }), note = h("p", { class: "note", role: "status" });
  const changed = () => { if (item?.gone) location.hash = "#/"; else void look(undefined); };
  const open = (/** @type {"cancel"|"delete"} */ action) => item && askAction(action, [item], null, changed);
  const stop = button(T.cancel + "…", () => open("cancel")), remove = button(T.delete + "…", () => open("delete"), { class: "danger" });
  const again = button(V.rerun + "…", () => {
    const said = h("p", { role: "status" });
    const box = openDialog(put(V.rerunTitle, shortId(name)), [h("p", {}, V.rerunWhy), said], [[T.close, "", () => {}], [V.yesRerun, "go", () => {
      call("POST", `${pathOf(name)}:rerun`, {}).then((op) => { box.close(); location.hash = `#/${op.name.split("/").map(encodeURIComponent).join("/")}`; }, (error) => setText(said, error.message));
      return false;
    }]]);
  });
  acts.append(again, stop, remove);
  const look = async (/** @type {AbortSignal|undefined} */ signal) => { if (item) await describe([item], signal), follows.look(); };

  // --- Tabs.
  /** @type {[string, string][]} */
  const labels = [["metadata", V.metadata], ["response", V.response], ["error", T.error], ["raw", V.raw]], TABS = labels.map(([key]) => key);
  if (!TABS.includes(tab)) tab = "";
  const choose = (/** @type {string} */ key, focus = true) => {
    tab = key, shownText = "", drawn = null;
    history.replaceState(null, "", `#/${name.split("/").map(encodeURIComponent).join("/")}?tab=${key}`);
    drawTabs();
    if (focus) /** @type {HTMLElement|null} */ (tabs.querySelector("[aria-selected=true]"))?.focus();
  };
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length]);
  });
  for (const [key, label] of labels) tabs.append(button(label, () => choose(key), { role: "tab", "aria-controls": "panel", "data-key": key }));
  const drawTabs = () => {
    if (!item || item.op === drawn) return;
    const { op } = item, now = tab || (op.error ? "error" : op.response ? "response" : "metadata");
    for (const each of tabs.children) {
      const on = each.getAttribute("data-key") === now;
      each.setAttribute("aria-selected", String(on));
      each.setAttribute("tabindex", on ? "0" : "-1");
      each.id = on ? "tab" : "";
    }
    tab = now;
    const value = now === "raw" ? op : op[now], text = now + printed(value ?? null);
    const busy = getSelection(), held = busy && !busy.isCollapsed && panel.contains(busy.anchorNode);
    if (held && shownText.startsWith(now)) return;
    drawn = op;
    if (text === shownText) return;
    shownText = text;
    const here = document.activeElement?.getAttribute("data-path");
    if ((value ?? null) === null) panel.replaceChildren(h("p", { class: "dim" }, now === "error" ? V.noError : now === "metadata" ? V.noMetadata : op.done ? V.nothing : V.noResponse));
    else if (now === "error") panel.replaceChildren(h("p", { class: "code" }, h("code", { class: "s-fail" }, codeName(value)), " ", value.message ?? ""), ...[].concat(value.details ?? []).map((/** @type {any} */ each) => drawDetail(each, opened)));
    else panel.replaceChildren(drawJson(value, shortId(name), opened));
    if (here) /** @type {HTMLElement|null} */ (panel.querySelector(`[data-path=${CSS.escape(here)}]`))?.focus();
  };

  // --- Commands and code that read this operation.
  const base = new URL(session.server || api, location.href), prefix = base.pathname.match(/\/[^/]*$/)?.[0] ?? "", server = base.origin + base.pathname.slice(0, -prefix.length);
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", "'\\''")}'`, token = session.token || session.caller || kept("sessionStorage", "token") ? ' -H "Authorization: Bearer $LRO_TOKEN"' : "";
  const other = prefix === "/v1" ? "" : prefix;
  /** @type {[string, string][]} */
  const ways = [["curl", `curl${token} ${quoted(base.href + pathOf(name).slice(api.length))}`], ["lro", `lro watch ${quoted(name)} --server ${server}${other && " --prefix " + other}`],
    ["Python", `from lro_client import Client\n${other && "from lro_client.transports.http import Routes\n"}\nwith Client(${JSON.stringify(server)}${other && ", routes=Routes.below(" + JSON.stringify(prefix) + ")"}) as client:\n    operation = client.operation(${JSON.stringify(name)})\n    print(operation.result(timeout=60))`]];
  const yourself = h("section", { class: "card" }, h("h2", {}, V.yourself), ways.map(([label, text]) => h("div", { class: "way" }, h("h3", {}, label), iconButton("copy", put(T.copy, label), () => copy(text)), h("pre", { tabindex: 0 }, text))));

  let lineText = "", factText = "", headText = "";
  const draw = () => {
    if (!item) return;
    const { op, about } = item, now = stateOf(item), method = methodOf(item), at = (/** @type {string} */ field) => timeOf(/** @type {Item} */ (item), field);
    document.title = `${T.states[/** @type {"GONE"} */ (now)]} · ${lastPart(method)} ${shortId(name)}`;
    if (headText !== now + method + op.done) {
      headText = now + method + op.done;
      heading.replaceChildren(sign(method), lastPart(method) || shortId(name));
      state.replaceChildren(stateMark(now));
      const lost = document.activeElement === stop && (op.done || item.gone) || document.activeElement === remove && item.gone;
      stop.hidden = !may("cancel") || op.done || item.gone;
      remove.hidden = !may("delete") || item.gone;
      if (lost) heading.focus();
      node.className = `view one r-${ICONS[now]}`;
    }
    again.hidden = !may("rerun") || !op.error || item.gone || !!about?.rerun; // another rerun is started from the page of the last one
    const when = about?.cancelTime || item.askedAt;
    setText(asked, now === "STOPPING" ? when ? put(V.askedAt, hour(when)) : put(V.askedAt, "") : item.gone ? V.gone : "");
    progress.draw(item);
    const create = at("createTime"), begin = at("startTime"), end = at("endTime"), expire = at("expireTime"), attempts = Number(about?.attempt ?? 0), lost = Number(about?.lostAttempts ?? 0);
    const between = (/** @type {string} */ from, /** @type {string} */ to) => span(((to ? Date.parse(to) : clock()) - Date.parse(from)) / 1000);
    /** @type {[string, string, string[], string][]} label, time, notes, class */
    const steps = [[T.created, create, [], "done"]];
    if (begin || about) steps.push([begin ? V.began : V.notBegun, begin, [begin && create ? put(V.waited, between(create, begin)) : "", attempts > 1 ? put(V.attempt, attempts) : "", lost ? put(V.lost, lost) : ""], begin ? "done" : ""]);
    if (now === "STOPPING" || about?.cancelRequested) steps.push([T.stopAsked, when || "", [], "warn"]);
    if (now === "WAITING") steps.push([waitText(item), "", [], "next"]);
    else if (op.done || begin || !about) steps.push([op.done ? T.states[/** @type {"GONE"} */ (now)] : V.running, end, begin || create ? [put(V.ran, between(begin || create, end))] : [], op.done ? `end s-${ICONS[now]}` : "next"]);
    if (expire) steps.push([V.expires, expire, [put(V.inFuture, span((Date.parse(expire) - clock()) / 1000))], ""]);
    const text = JSON.stringify(steps);
    if (text !== lineText) line.replaceChildren(...steps.map(([label, time, notes, kind]) => h("li", { class: kind }, h("b", {}, label), time && moment(time), notes.filter(Boolean).map((each) => h("small", {}, each)))));
    lineText = text;
    const links = Object.entries(session.links ?? {}).map(([kind, url]) => [kind, String(url).replace("{trace_id}", encodeURIComponent(about?.traceId ?? "")).replace("{name}", encodeURIComponent(name))]).filter(([kind]) => kind !== "trace" || about?.traceId);
    const rows = /** @type {[string, Kid][]} */ ([[T.nameHead, h("span", {}, h("code", { class: "long" }, name), iconButton("copy", put(T.copy, T.name), () => copy(name)))], [T.method, method && h("code", { class: "long" }, method)],
      ...[[T.created, create], [V.began, begin], [V.endedAt, end], [V.expires, expire], [V.updated, about?.updateTime], [V.due, about?.dueTime], [V.beginBefore, about?.beginBefore]].map(([label, time]) => /** @type {[string, Kid]} */ ([label, time && full(time)])),
      [V.attempts, attempts ? String(attempts) : ""], [V.priority, about?.priority && String(about.priority)], [V.owner, about?.workerPid && `${about.workerHost}, PID ${about.workerPid}`], [V.origin, operationLink(about?.origin)], [V.rerunAs, operationLink(about?.rerun)]]).filter((each) => each[1]);
    const shown = JSON.stringify([about, create, end, method]);
    if (shown !== factText) drawFailures(about), facts.replaceChildren(h("h2", {}, V.facts), pairs(rows), h("p", { class: "row" }, links.map(([kind, url]) => safeLink(url, kind === "trace" ? V.trace : V.logs))));
    factText = shown;
    drawTabs();
  };
  // The failed attempts in the record, which only operators see.
  const drawFailures = (/** @type {any} */ about) => {
    const lines = [].concat(about?.failures ?? []).map((/** @type {any} */ each) => [each?.attempt, each?.time && moment(each.time), each?.error, each?.text].map((cell) => cell instanceof Node ? cell : String(cell ?? "")));
    failures.hidden = !lines.length;
    failures.replaceChildren(h("h2", {}, V.failures), simpleTable(V.failures, [V.attemptHead, V.time, T.error, V.message], lines));
  };
  const operationLink = (/** @type {any} */ given) => {
    const other = String(given ?? ""), text = other && h("code", { class: "long" }, other);
    return /(^|\/)operations\/[^/]/.test(other) ? h("a", { href: `#/${other.split("/").map(encodeURIComponent).join("/")}` }, text) : text;
  };
  const first = loop(async (signal) => {
    try { item = take(await call("GET", pathOf(name), null, signal)); } catch (error) {
      if (error instanceof Refusal && error.http === 404) return setText(note, item ? V.gone : error.message), lose(name), undefined;
      throw error;
    }
    item.draw = draw;
    card.hidden = side.hidden = false;
    draw();
    item.stale = true; // a failed attempt changes the description, not the operation
    await look(signal);
    return item.op.done ? undefined : session.refreshSeconds;
  });
  const follows = follow(() => item ? [item] : []);
  const failures = h("section", { class: "card", hidden: true });
  const card = h("div", { class: "main", hidden: true }, h("section", { class: "card now" }, h("div", { class: "row" }, state, acts), asked, progress.node, line), failures, h("section", { class: "card" }, tabs, panel));
  const side = h("div", { class: "side", hidden: true }, facts, yourself);
  const node = h("div", { class: "view one" }, head, note, h("div", { class: "columns" }, card, side));
  head.append(h("p", { class: "crumbs" }, h("a", { href: "#/" }, T.operations), " / ", h("code", {}, shortId(name))), heading);
  return { title: shortId(name), node, begin() { first.now(); ticks.set(node, draw); }, end() { first.stop(); follows.stop(); items.clear(); }, refresh() { first.now(); }, chosen: () => item ? [item] : [], changed };
}
