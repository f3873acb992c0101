// Charts of the last hours, and the operations in progress.

/** Return the value below which this share of a histogram lies; null for an empty one. @param {number[]} counts @param {number[]} bounds @param {number} share */
function quantile(counts, bounds, share) {
  const all = counts.reduce((sum, each) => sum + each, 0);
  let want = all * share;
  if (!all) return null;
  for (const [at, here] of counts.entries()) {
    const low = at ? bounds[at - 1] : 0, high = bounds[at] ?? low;
    if (here && want <= here) return low + (high - low) * want / here;
    want -= here;
  }
  return bounds[bounds.length - 1];
}
/** Draw a chart, its summary and its table; a chart that is not stacked has a logarithmic scale. @param {string} title @param {number[]} times @param {[string, string, (number|null)[]][]} series label, class, values @param {boolean} stacked @param {(value: number) => string} unit @param {string} summary */
function chart(title, times, series, stacked, unit, summary) {
  const width = times.length * 10, height = 100;
  const sums = times.map((_, at) => stacked ? series.reduce((sum, [, , values]) => sum + (values[at] ?? 0), 0) : Math.max(...series.map(([, , values]) => values[at] ?? 0)));
  const most = Math.max(...sums), scale = (/** @type {number} */ value) => stacked ? value : Math.log1p(value * 100), top = most > 0 ? scale(most) * 1.05 : 1;
  const shapes = stacked ? times.flatMap((time, at) => {
    let y = height;
    const parts = series.map(([label, kind, values]) => {
      const tall = (values[at] ?? 0) / top * height;
      y -= tall;
      return tall ? g("rect", { class: kind, x: at * 10 + 1, y, width: 8, height: tall }) : null;
    });
    return sums[at] ? [g("g", {}, g("title", {}, `${hour(time)}: ${series.map(([label, , values]) => `${label} ${unit(values[at] ?? 0)}`).join(", ")}`), g("rect", { class: "ghost", x: at * 10, y: 0, width: 10, height }), ...parts)] : [];
  }) : series.flatMap(([label, kind, values]) => {
    let path = "", alone = "";
    const has = (/** @type {number} */ at) => (values[at] ?? null) !== null;
    values.forEach((value, at) => {
      if (value === null) return;
      const point = `${at * 10 + 5} ${height - scale(value) / top * height}h.01`;
      if (has(at - 1) || has(at + 1)) path += (has(at - 1) ? "L" : "M") + point; else alone += "M" + point;
    });
    return [g("path", { class: `curve ${kind}`, d: path }), g("path", { class: `curve dot ${kind}`, d: alone })];
  });
  return h("figure", { class: "card" }, h("figcaption", {}, h("h2", {}, title), h("span", { class: "legend" }, series.map(([label, kind]) => h("span", {}, g("svg", { viewBox: "0 0 10 10", "aria-hidden": "true", class: "key" }, g("rect", { class: kind, width: 10, height: 10, rx: 2 })), label)))),
    h("div", { class: "chart" }, h("span", { class: "y" }, (most ? [most, stacked ? most / 2 : Math.expm1(scale(most) / 2) / 100] : []).map((value) => h("span", {}, stacked ? count(Math.round(value * 10) / 10) : unit(value))), h("span", {}, "0")),
      g("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": summary }, [0, 50, 100].map((y) => g("path", { class: "grid", d: `M0 ${y}H${width}` })), shapes),
      !stacked && h("span", {}, V.axis), h("span", { class: "x" }, moment(times[0]), moment(times[times.length - 1]))),
    h("p", { class: "dim" }, summary),
    h("details", {}, h("summary", {}, V.asTable), simpleTable(title, [V.time, ...series.map(([label]) => label)], times.map((time, at) => /** @type {Kid[]} */ ([hour(time), ...series.map(([, , values]) => values[at] === null ? "–" : unit(values[at] ?? 0))])).filter((_, at) => sums[at]))));
}
/** @param {URLSearchParams} query @returns {View} */
function overviewView(query) {
  const minutes = Number(query.get("minutes")) || 60, body = h("div", { class: "cards" });
  const open = new Set();
  const draw = (/** @type {any} */ tally) => {
    const step = minutes <= 60 ? 1 : minutes <= 360 ? 5 : 30, end = Math.floor(Date.parse(tally.now) / 60000 / step) * step, slots = minutes / step;
    const times = Array.from({ length: slots }, (_, at) => (end - (slots - 1 - at) * step) * 60000);
    const bounds = tally.buckets, of = () => Array.from({ length: slots }, () => 0), histogram = () => times.map(() => Array(bounds.length + 1).fill(0));
    const done = of(), failed = of(), cancelled = of(), queued = histogram(), worked = histogram(), /** @type {Map<string, number>} */ codes = new Map();
    let lost = 0, refused = 0;
    for (const { minute, counts } of tally.points) {
      const at = Math.min(slots - 1, Math.round(Math.floor(Date.parse(minute) / 60000 / step) - times[0] / 60000 / step));
      if (at < 0) continue;
      for (const [series, value] of Object.entries(counts)) {
        const [kind, what, last, bucket] = series.split("."), n = Number(value);
        if (kind === "ends") {
          (what === "succeeded" ? done : what === "failed" ? failed : cancelled)[at] += n;
          if (what === "failed") codes.set(last, (codes.get(last) ?? 0) + n);
        } else if (kind === "queue" && what !== "sum") queued[at][Number(what)] += n;
        else if (kind === "attempt" && ["succeeded", "failed", "cancelled"].includes(what)) {
          const index = Number(bucket ?? last);
          if (index >= 0) worked[at][index] += n;
        } else if (kind === "lost") lost += n;
        else if (kind === "refused_writes") refused += n;
      }
    }
    const total = (/** @type {number[]} */ values) => values.reduce((sum, each) => sum + each, 0), load = tally.inProgress;
    const spans = (/** @type {string} */ title, /** @type {number[][]} */ all) => {
      const whole = all.reduce((sum, each) => sum.map((/** @type {number} */ n, /** @type {number} */ at) => n + each[at]), Array(bounds.length + 1).fill(0));
      const [half, most] = [0.5, 0.95].map((share) => quantile(whole, bounds, share));
      return chart(title, times, [[put(V.about, "p50"), "k-run", all.map((each) => quantile(each, bounds, 0.5))], [put(V.about, "p95"), "k-wait", all.map((each) => quantile(each, bounds, 0.95))]], false, span, half === null || most === null ? V.noData : put(V.summaryTime, title, span(half), span(most)));
    };
    const ends = done.map((n, at) => n + failed[at] + cancelled[at]), peak = ends.indexOf(Math.max(...ends));
    const tile = (/** @type {string} */ label, /** @type {string} */ value, /** @type {string} */ kind = "") => h("div", { class: `tile ${kind}` }, h("b", {}, value), h("span", {}, label));
    const within = (/** @type {string} */ label) => put(V.inWindow, label, minutes <= 60 ? V.minutes60 : minutes <= 360 ? V.hours6 : V.hours72);
    const many = Math.max(1, ...load.methods.map((/** @type {any} */ each) => each.waiting + each.running));
    const stack = (/** @type {any} */ each) => g("svg", { class: "stack", viewBox: `0 0 ${many} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, g("rect", { class: "k-run", width: each.running, height: 1 }), g("rect", { class: "k-wait", x: each.running, width: each.waiting, height: 1 }));
    const ranked = [...codes].sort((a, b) => b[1] - a[1]), top = ranked[0]?.[1] ?? 1, perStep = put(V.perStep, step === 1 ? "minute" : `${step} minutes`);
    const parts = [
      h("div", { class: "tiles" }, tile(V.runningNow, number(load, (each) => each.running), "s-run"), tile(V.waitingNow, number(load, (each) => each.waiting), "s-wait"), tile(within(V.endedAt), count(total(ends))), tile(within(V.failedWord), count(total(failed)), total(failed) ? "s-fail" : ""), tile(within(V.lostWorkers), count(lost), lost ? "s-fail" : ""), tile(within(V.refusedWrites), count(refused), refused ? "s-cancel" : "")),
      chart(perStep, times, [[V.succeeded, "k-ok", done], [V.failedWord, "k-fail", failed], [V.cancelled, "k-cancel", cancelled]], true, count, total(ends) ? put(V.summary, perStep, count(total(ends)), count(ends[peak]), hour(times[peak])) : V.noData),
      h("section", { class: "card" }, h("h2", {}, V.now), load.methods.length ? simpleTable(V.now, [T.method, V.share, V.runningWord, V.waitingWord, V.oldest], load.methods.map((/** @type {any} */ each) => [h("span", { class: "m" }, methodCell(each.method)), stack(each), count(each.running), count(each.waiting),
        each.oldestName && h("a", { href: `#/${each.oldestName.split("/").map(encodeURIComponent).join("/")}`, title: full(each.oldestCreateTime) }, span((clock() - Date.parse(each.oldestCreateTime)) / 1000))])) : h("p", { class: "dim" }, V.nowNone)),
      spans(V.queueTime, queued), spans(V.runTime, worked),
      h("section", { class: "card" }, h("h2", {}, V.byCode), ranked.length ? simpleTable(V.byCode, [V.code, V.share, V.number], ranked.map(([code, n]) => [h("code", {}, code), h("progress", { class: "k-fail", max: top, value: n, "aria-label": code }), count(n)])) : h("p", { class: "dim" }, V.noFailures)),
      h("section", { class: "card" }, h("h2", {}, V.leases), load.workers.length ? simpleTable(V.leases, [V.owner, V.number], load.workers.map((/** @type {any} */ each) => [h("code", {}, each.owner), count(each.operations)])) : h("p", { class: "dim" }, V.noLeases)),
      h("p", { class: "dim wide" }, put(V.counted, tally.everySeconds, hour(tally.now), count(tally.limit))),
    ];
    const old = [...body.querySelectorAll("details")].map((each) => each.open), here = document.activeElement, place = here && body.contains(here) ? [...body.querySelectorAll("a, summary, [tabindex]")].indexOf(here) : -1;
    body.replaceChildren(...parts);
    body.querySelectorAll("details").forEach((each, at) => { each.open = old[at] ?? false; });
    if (place >= 0) /** @type {HTMLElement|undefined} */ (body.querySelectorAll("a, summary, [tabindex]")[place])?.focus();
  };
  const reads = loop(async (signal) => {
    const tally = session.statistics ? await readTally(minutes, signal) : null;
    if (!tally) return body.replaceChildren(h("p", { class: "note" }, V.noTally)), undefined;
    draw(tally);
    return 10;
  });
  const windows = h("nav", { class: "windows", "aria-label": V.window }, [[60, V.minutes60], [360, V.hours6], [4320, V.hours72]].map(([value, label]) => h("a", { href: `#/overview?minutes=${value}`, class: "chip", "aria-current": value === minutes && "true" }, label)));
  return { title: T.overview, node: h("div", { class: "view over-view" }, h("div", { class: "row" }, h("h1", { tabindex: -1 }, T.overview), windows), body), begin: () => reads.now(), end: () => reads.stop(), refresh: () => reads.now() };
}
