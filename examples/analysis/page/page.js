// A client of /v1: it starts an analysis, watches its operation, and draws the result.
const VERBS = {
  detect: "Find faces", verify: "Is it the same scene?", compare: "What has changed?", segment: "Cut out objects",
  classify: "Which texture is it?", authenticate: "Who signed it?", score: "Is the photo good?",
  explain: "Why this texture?", extract: "Colours, hash and tags", track: "Follow a box",
};
const $ = (id) => document.getElementById(id);
const image = $("image"), reference = $("reference"), svg = $("drawing"), slider = $("frame");
let verb, request, name, corner, own = [], pending = 0;

const source = (picture) => `data:image;base64,${picture.content}`;
const say = (text, kind = "") => Object.assign($("says"), { textContent: text, className: kind });
const fit = () => svg.setAttribute("font-size", (14 * svg.viewBox.baseVal.width) / svg.clientWidth || 14);

function make(parent, tag, attributes = {}, text = "") {
  const { namespaceURI } = tag == "svg" ? svg : parent, made = parent.appendChild(document.createElementNS(namespaceURI, tag));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(text);
  return made;
}

async function call(url, body) {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(url, body && post), read = await reply.json().catch(() => ({}));
  if (!reply.ok) throw Error(read.error?.message ?? `The server answered ${reply.status}`);
  return read;
}

async function* updates() {
  try {
    const { body } = await fetch(`v1/${name}:watch`), reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "", piece = { value: "" }; !piece.done; piece = await reader.read()) {
      const events = (text + piece.value).split("\n\n");
      text = events.pop();
      for (const event of events) if (event.includes("event: operation")) yield JSON.parse(event.match(/^data: (.*)/m)[1]);
    }
  } catch { /* There is no stream, or it broke: ask instead. */ }
  for (;; await new Promise((resolve) => setTimeout(resolve, 500))) yield await call(`v1/${name}`);
}

function show({ title, size: [width, height], shapes, rows, overlay }) {
  for (const part of [svg, $("rows")]) part.replaceChildren();
  for (const [key, value] of [["viewBox", `0 0 ${width} ${height}`], ["aria-label", title]]) svg.setAttribute(key, value);
  if (overlay) make(svg, "image", { href: source({ content: overlay }), width, height, preserveAspectRatio: "none" });
  for (const { points, label, color, frame, closed } of shapes) {
    const group = make(svg, "g", { "data-frame": frame, stroke: color, fill: color }), [[x, y]] = points;
    for (const look of ["halo", "line"]) make(group, closed ? "polygon" : "polyline", { class: look, points: points.join(" ") });
    make(group, "text", { x: Math.min(x, width * 0.8), y: Math.max(y, height / 18), dx: ".3em", dy: "-.4em" }, label);
  }
  for (const [name, text, share, color] of rows) {
    make($("rows"), "dt", {}, name);
    const value = make($("rows"), "dd", {}, text), bar = { viewBox: "0 0 1 1", preserveAspectRatio: "none" };
    if (share >= 0) make(make(value, "svg", bar), "rect", { width: share, height: 1, fill: color });
  }
  slider.hidden = !(slider.max = Math.max(0, ...shapes.map((shape) => shape.frame)));
  turn();
  fit();
}

function turn() {
  for (const { dataset, classList } of svg.querySelectorAll("g")) classList.toggle("away", ![-1, slider.value].some((at) => at == dataset.frame));
  if (request.frames) image.src = source(request.frames[slider.value]);
}

async function choose(chosen = verb) {
  const sample = await call(`samples/${verb = chosen}`), [first, second = first] = own;
  if (verb != chosen) return; // another verb was chosen meanwhile
  request = sample;
  if (first && request.frames) [request.image, request.frames] = own[1] ? [undefined, own] : [first];
  else if (first) Object.assign(request, { image: first }, request.reference && { reference: second });
  reference.hidden = !request.reference;
  if (request.reference) reference.src = source(request.reference);
  image.src = source(request.image ?? request.frames[0]);
  say("");
  await image.decode().catch(() => say("This browser cannot show the picture; the server may read it.", "failed"));
  outline();
}

function outline() { // draws the inputs that are known before the start
  const { image: _, reference: __, frames: ___, ...options } = request, { x, y, width, height } = options.box ?? {};
  $("options").value = JSON.stringify(options, null, 1);
  $("progress").value = slider.value = 0;
  const points = [[x, y], [x + width, y], [x + width, y + height], [x, y + height]];
  const shapes = options.box ? [{ points, label: "drag to choose", color: "#ffd23f", frame: -1, closed: true }] : [];
  svg.setAttribute("class", options.box ? "drag" : "");
  show({ title: "Nothing is drawn yet", size: [image.naturalWidth || 1, image.naturalHeight || 1], shapes, rows: [] });
}

function drag({ type, offsetX, offsetY }) { // drags a box from its upper left to its lower right corner
  const [x, y] = [offsetX, offsetY].map((at) => Math.round((at * image.naturalWidth) / svg.clientWidth));
  if (type == "pointerdown") corner = { x, y };
  else if (request.box) outline(request.box = { ...corner, width: x - corner.x, height: y - corner.y });
}

async function run() {
  say("Sending");
  const { image, frames } = request, body = { ...JSON.parse($("options").value), image, frames, reference: request.reference };
  ({ name } = await call(`v1/${verb}`, body));
  for await (const { done, error, metadata } of updates()) {
    say(`${metadata.stage} ${$("progress").value = metadata.progressPercent ?? 0} %`);
    if (error) throw Error(error.message);
    if (done) break;
  }
  const drawn = await call(`drawings/${name}?reference=${reference.naturalWidth}x${reference.naturalHeight}`);
  show(drawn);
  say(drawn.title);
}

async function guarded(action, lock = false) {
  [$("inputs").disabled, $("cancel").disabled, $("start").disabled] = [lock, !lock, ++pending];
  await action().catch((error) => say(error.message, "failed"));
  [$("inputs").disabled, $("cancel").disabled, $("start").disabled] = [false, true, --pending];
  if (lock) $("start").focus();
}

const read = async (file) => ({ content: new Uint8Array(await (await file).arrayBuffer()).toBase64() });
const take = (files) => guarded(async () => { own = await Promise.all([...files].map(read)); await choose(); });

for (const [verb, text] of Object.entries(VERBS)) {
  const label = make($("verbs"), "label"), radio = make(label, "input", { type: "radio", name: "verb", value: verb });
  radio.onchange = () => guarded(() => choose(verb));
  for (const [tag, said] of [["b", verb], ["span", text]]) make(label, tag, {}, said);
}
for (const file of ["", "astronaut.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg"]) {
  const button = make($("pictures"), "button", { type: "button" }, file ? "" : "Sample");
  if (file) make(button, "img", { src: `pictures/${file}`, alt: file });
  button.onclick = () => take(file ? [fetch(`pictures/${file}`)] : []);
}
$("files").onchange = () => take($("files").files);
$("form").onsubmit = (event) => { event.preventDefault(); guarded(run, true); };
$("cancel").onclick = () => call(`v1/${name}:cancel`, {}).catch((error) => say(error.message, "failed"));
[slider.oninput, svg.onpointerdown, svg.onpointerup, onresize] = [turn, drag, drag, fit];
ondragover = (event) => event.preventDefault();
ondrop = (event) => { event.preventDefault(); if (!$("inputs").disabled) take(event.dataTransfer.files); };
document.querySelector("[value=detect]").click();
