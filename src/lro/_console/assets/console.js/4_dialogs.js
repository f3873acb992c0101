// Dialogs.

/** @param {string} title @param {(Kid|Kid[])[]} body @param {[string, string, () => any][]} [acts] label, class, action @returns {HTMLDialogElement} */
function openDialog(title, body, acts = [[T.close, "", () => {}]]) {
  const box = h("dialog", { "aria-labelledby": "asked", close: () => box.remove() },
    h("h2", { id: "asked" }, title), ...body,
    h("div", { class: "acts" }, acts.map(([label, kind, act]) => button(label, () => { if (act() !== false) box.close(); }, { class: kind }))));
  document.body.append(box);
  box.showModal();
  return box;
}
let asking = false;
/** @param {string} why */
function askToken(why) {
  if (asking) return;
  asking = true;
  const input = h("input", { type: "password", autocomplete: "off", "aria-label": T.token, autofocus: true });
  const use = () => { kept("sessionStorage", "token", input.value.trim()); setTimeout(start); };
  const box = openDialog(T.token, [h("p", {}, T.tokenWhy), why && h("p", { class: "dim" }, why), h("p", {}, input)],
    [[T.close, "", () => {}], [T.tokenForget, "", () => { input.value = ""; use(); }], [T.tokenUse, "go", use]]);
  box.addEventListener("close", () => { asking = false; });
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") { use(); box.close(); } });
}
function askHelp() {
  const keys = h("input", { type: "checkbox", checked: singleKeys(), change: () => kept("localStorage", "keys", keys.checked ? null : "off") });
  openDialog(T.keysTitle, [
    h("table", { class: "plain keys" }, h("caption", { class: "sr" }, T.keysTitle), h("tbody", {}, T.keys.map(([key, does]) => h("tr", {}, h("th", { scope: "row" }, key.split("  ").map((one) => h("kbd", {}, one))), h("td", {}, does))))),
    h("p", {}, h("label", { class: "check" }, keys, T.keysOn)),
    h("p", { class: "dim" }, session.caller && put(T.caller, session.caller), " ", session.version && put(T.version, session.version)),
  ], [[T.tokenGive, "", () => setTimeout(askToken, 0, "")], [T.close, "go", () => {}]]);
}
const singleKeys = () => kept("localStorage", "keys") !== "off";

/** @param {string} name @param {"cancel"|"delete"} action */
const request = (name, action) => action === "cancel" ? call("POST", `${pathOf(name)}:cancel`, {}) : call("DELETE", pathOf(name));
/** @param {string} name @param {"cancel"|"delete"} action */
async function act(name, action) {
  await request(name, action);
  const item = items.get(name);
  if (action === "delete") lose(name);
  else if (item && !item.op.done) item.askedAt = new Date(clock()).toISOString(), item.stale = true, redraw(item);
}
/**
 * Ask for confirmation, then cancel or delete these items, or with `all` the operations whose names it returns.
 * @param {"cancel"|"delete"} action @param {Item[]} chosen @param {(() => Promise<string[]>)|null} all @param {() => void} after
 */
function askAction(action, chosen, all, after) {
  const open = chosen.filter((item) => !item.op.done && !item.gone), one = chosen.length === 1 && !all, cancel = action === "cancel";
  if (!all && !chosen.length) return;
  if (!all && cancel && !open.length) return void openDialog(T.noneOpen, []);
  const what = one ? `${lastPart(methodOf(chosen[0]))} ${shortId(chosen[0].name)}` : all ? T.everything : put("{0} operations", cancel ? open.length : chosen.length);
  const results = h("ul", { class: "results", tabindex: 0 }), bar = h("progress", { "aria-label": T.progress }), said = h("p", { role: "status" }), sum = h("p", { class: "dim" });
  const begin = () => {
    const acts = /** @type {HTMLElement} */ (box.querySelector(".acts"));
    let going = true;
    acts.replaceChildren(button(T.stop, (event) => { if (/** @type {MouseEvent} */ (event).detail < 2) going = false; }));
    box.addEventListener("close", () => { going = false; after(); });
    const run = async () => {
      const names = all ? await all() : (cancel ? open : chosen).map((item) => item.name);
      let at = 0, done = 0, refused = 0;
      bar.max = names.length || 1;
      const lane = async () => {
        while (going && at < names.length) {
          const name = names[at++];
          let result = cancel ? T.okCancelled : T.okDeleted;
          try { await act(name, action); done++; } catch (error) {
            refused++, result = /** @type {Error} */ (error).message;
            if (error instanceof Refusal && error.http === 403) { going = false; setText(said, put(T.stopped, result)); }
          }
          if (!one) results.append(h("li", {}, h("code", {}, name), " ", result));
          bar.value = done + refused;
          setText(sum, put(T.doing, done + refused, names.length));
        }
      };
      await Promise.all(Array.from({ length: 8 }, lane));
      if (one && !refused) return box.close();
      if (one) return setText(said, results.textContent || said.textContent || "");
      if (going) setText(said, "");
      said.append(` ${put(T.finished, done, refused)} ${names.length >= 1000 ? T.limited : ""}`);
    };
    box.querySelector("form, .why")?.replaceWith(said, sum, bar, results);
    run().catch((error) => setText(said, error.message)).finally(() => acts.replaceChildren(button(T.close, () => box.close(), { autofocus: true })));
    return false;
  };
  const why = h("div", { class: "why" }, one && h("p", {}, h("code", {}, chosen[0].name)),
    h("p", {}, cancel ? one ? "" : T.cancelMany : one ? T.deleteOne : T.deleteMany, " ", cancel ? T.reach[/** @type {"NOT"} */ (session.cancelSupport || "")] ?? T.reach[""] : open.length || all ? T.goesOn : ""));
  /** @type {[string, string, () => any][]} */
  const acts = [[cancel ? T.dontCancel : T.dontDelete, "", () => {}], [T[`yes_${action}`], "danger", begin]];
  if (!cancel && one && open.length && may("cancel")) acts.splice(1, 0, [T.cancelFirst, "", () => setTimeout(askAction, 0, "cancel", chosen, null, after)]);
  const box = openDialog(put(cancel ? T.cancelTitle : T.deleteTitle, what), [why], acts);
}
/** @param {string} action */
const may = (action) => session.actions.includes(action);
/** @param {string} name */
const lastPart = (name) => name.split(".").pop() ?? name;
