// The progress of an operation, by the rules of lro_client.progress.

/** A number whose JSON text a double cannot represent exactly. */
class Exact {
  /** @param {string} text */
  constructor(text) { this.text = text; }
  valueOf() { return Number(this.text); }
  toString() { return this.text; }
}
/** Read JSON; numbers that a double would change become Exact. @param {string} text @returns {any} */
const readJson = (text) => JSON.parse(text, /** @type {any} */ ((/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
  typeof value === "number" && context && context.source !== String(value) ? new Exact(context.source) : value));

const PERCENTS = ["progressPercent", "progressPercentage", "percent", "percentComplete", "percentDone"];
const SHARES = ["fraction", "progressFraction", "fractionComplete", "fractionDone"];
const PAIRS = [["done", "total"], ["completed", "total"], ["processedCount", "totalCount"], ["doneUnits", "totalUnits"], ["itemsDone", "itemsTotal"], ["completedWork", "estimatedWork"]];
const NESTED = ["progress", "progressWorkDocuments", "progressWorkBytes", "progressDocuments", "progressEntities", "progressBytes"];
const MESSAGES = ["statusDetail", "statusMessage", "message", "currentStep", "stage", "state"];
const CANCELLING = ["cancelRequested", "requestedCancellation"];

/** @typedef {{fraction: number|null, done: number|null, total: number|null, message: string}} Progress */
/** @typedef {(field: string) => any} Look */

/** Return a function that reads fields in camelCase or snake_case; null if the value is not an object. @param {any} value @returns {Look|null} */
function lookup(value) {
  if (String(value?.["@type"]).endsWith("/google.protobuf.Struct")) value = value.value;
  if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof Exact) return null;
  const own = (/** @type {string} */ key) => Object.hasOwn(value, key) ? value[key] : null;
  return (field) => own(field) ?? own(field.replace(/[A-Z]/g, (high) => "_" + high.toLowerCase()));
}
/** @param {any} value */
function finite(value) {
  if (value instanceof Exact) value = value.text;
  if (typeof value === "string" ? !/^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(value) : typeof value !== "number") return null;
  return Number.isFinite(Number(value)) ? Number(value) : null;
}
/** @param {string} value */
const oneLine = (value) => value.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, " ").split(/\s+/).filter(Boolean).join(" ");
/** @param {any} value */
const plain = (value) => typeof value === "string" && !value.endsWith("_UNSPECIFIED") ? oneLine(value) : "";
/** @param {Look} look @param {string[]} fields */
function firstNumber(look, fields) {
  for (const field of fields) {
    const found = finite(look(field));
    if (found !== null && found >= 0) return found;
  }
  return null;
}
/** @param {Look} look */
function percentage(look) {
  const percent = firstNumber(look, PERCENTS), share = firstNumber(look, SHARES);
  if (percent !== null) return percent / 100;
  if (share !== null) return share;
  const value = look("progress"), number = finite(value);
  if (number === null || number < 0) return null;
  const counted = typeof value === "string" ? /^\s*\d+\s*$/.test(value) : !/[.e]/i.test(String(value));
  return counted || number > 1 ? number / 100 : number;
}
/** @param {Look} look @returns {[number|null, number|null]} */
function pair(look) {
  let alone = null;
  for (const [one, all] of PAIRS) {
    const done = firstNumber(look, [one]), total = firstNumber(look, [all]);
    if (done !== null && total) return [done, total];
    alone ??= done;
  }
  if (PAIRS.every(([one]) => look(one) === null)) { // ProtoJSON leaves out zeros
    const total = firstNumber(look, PAIRS.map((each) => each[1]));
    if (total) return [0, total];
  }
  return [alone, null];
}
/** @param {Progress|null} found */
const something = (found) => found && (found.message || found.fraction !== null || found.done !== null || found.total !== null) ? found : null;
/** @param {any} metadata @param {number} [depth] @returns {Progress|null} null if it has none */
function progressOf(metadata, depth = 3) {
  const look = lookup(metadata);
  if (!look) return null;
  let [done, total] = pair(look), inner = null;
  for (const field of depth ? NESTED : []) inner ??= progressOf(look(field), depth - 1);
  if (done === null && inner) ({ done, total } = inner);
  let fraction = percentage(look);
  if (fraction === null && done !== null && total !== null) fraction = done / total;
  fraction ??= inner ? inner.fraction : null;
  let message = MESSAGES.map((field) => plain(look(field))).find(Boolean)
    ?? [look("verb"), look("target")].map(plain).filter(Boolean).join(" ");
  if (CANCELLING.some((field) => look(field) === true)) message = message ? `${message}, cancelling` : "cancelling";
  return something({ fraction: fraction === null ? null : Math.min(fraction, 1), done, total, message: message || inner?.message || "" });
}

/** Estimates the seconds left from the fractions that are added, by the rate of about the last minute. */
class Estimate {
  /** @type {[number, number]|null} */ last = null;
  spent = 0; gained = 0; gap = 0;
  /** @param {number|null} fraction @param {number} now in seconds */
  add(fraction, now) {
    if (fraction === null || isNaN(fraction)) return;
    fraction = Math.min(Math.max(fraction, 0), 1);
    if (!this.last) { this.last = [now, fraction]; return; }
    const [before, had] = this.last;
    if (fraction === had || now < before) return;
    const fade = Math.exp(-(now - before) / 60);
    this.spent = this.spent * fade + (now - before);
    this.gained = this.gained * fade + (fraction - had);
    this.gap = now - before;
    this.last = [now, fraction];
    if (this.gained <= 0) this.spent = this.gained = 0;
  }
  /** @param {number} now @returns {number|null} */
  left(now) {
    if (!this.last) return null;
    const [then, fraction] = this.last;
    if (fraction === 1) return 0;
    if (!(this.spent > 0 && this.gained > 0)) return null;
    const quiet = Math.max(now - then, 0), stalled = Math.max(quiet - this.gap, 0);
    const left = (1 - fraction) * ((this.spent + stalled) / this.gained) - Math.min(quiet, this.gap);
    return Number.isFinite(left) ? Math.max(left, 0) : null;
  }
}
