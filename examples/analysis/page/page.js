// A client of /v1: it starts an analysis, watches its operation, and draws what came out.
const VERBS = {
  detect: "Find faces", verify: "Is it the same scene?", compare: "What has changed?", segment: "Cut out objects",
  classify: "Which texture is it?", authenticate: "Who signed it?", score: "Is the photograph good?",
  explain: "Why this texture?", extract: "Colours, hash and tags", track: "Follow a box",
};
const PICTURES = ["astronaut.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg"];
const $ = (id) => document.getElementById(id);
const image = $("image"), reference = $("reference"), svg = $("drawing"), slider = $("frame");
let verb, request, name, corner, own = [];

function make(parent, tag, attributes = {}, text = "", space = parent.namespaceURI) {
  const made = parent.appendChild(document.createElementNS(space, tag));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(text);
  return made;
}

function say(text, failed = false) {
  $("says").textContent = text;
  $("says").classList.toggle("failed", failed);
}

async function call(url, body) {
  const headers = { "content-type": "application/json" };
  const reply = await fetch(url, body && { method: "POST", headers, body: JSON.stringify(body) });
  const read = await reply.json().catch(() => ({}));
  if (!reply.ok) throw Error(read.error?.message ?? `The server answered ${reply.status}.`);
  return read;
}

async function* updates() {
  try {
    const reply = await fetch(`v1/${name}:watch`);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "", piece = { value: "" }; !piece.done; piece = await reader.read()) {
      const events = (text + piece.value).split("\n\n");
      text = events.pop();
      for (const event of events) if (event.includes("event: operation")) yield JSON.parse(event.match(/^data: (.*)/m)[1]);
    }
  } catch { /* there is no stream, or it broke: ask instead */ }
  for (;;) {
    yield await call(`v1/${name}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

function show({ title, size, shapes, rows, overlay }) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
  svg.setAttribute("aria-label", title);
  if (overlay) make(svg, "image", { href: `data:image/png;base64,${overlay}`, width: size[0], height: size[1] });
  for (const { points, label, color, frame, closed, filled } of shapes) {
    const group = make(svg, "g", { "data-frame": frame, stroke: color, fill: color });
    const [x, y] = points[0], tag = points.length < 2 ? "circle" : closed ? "polygon" : "polyline";
    for (const look of filled ? ["filled"] : ["halo", "line"]) make(group, tag, { class: look, points: points.join(" "), cx: x, cy: y });
    make(group, "text", { x: Math.max(x, 0), y: Math.max(y, size[1] / 18), dx: ".3em", dy: "-.4em" }, label);
  }
  $("rows").replaceChildren();
  for (const { name, text, share, color } of rows) {
    make($("rows"), "dt", {}, name);
    const value = make($("rows"), "dd", {}, text);
    if (share < 0) continue;
    const bar = make(value, "svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": true }, "", svg.namespaceURI);
    make(bar, "rect", { width: 100 * share, height: 1, fill: color });
  }
  turn();
  fit();
}

const fit = () => svg.setAttribute("font-size", (14 * svg.viewBox.baseVal.width) / svg.clientWidth || 14);

// Of a film, the frame of the slider.
function turn() {
  const shapes = [...svg.querySelectorAll("g")];
  slider.max = Math.max(0, ...shapes.map((shape) => Number(shape.dataset.frame)));
  slider.hidden = slider.max == 0;
  for (const shape of shapes) shape.classList.toggle("away", ![-1, Number(slider.value)].includes(Number(shape.dataset.frame)));
  if (request.frames) image.src = source(request.frames[slider.value]);
}

const source = (picture) => `data:image;base64,${picture.content}`;

async function choose(chosen = verb) {
  verb = chosen;
  const sample = await call(`samples/${verb}`);
  if (verb != chosen) return; // another was chosen meanwhile
  request = sample;
  const [first, second = first] = own;
  if (first && verb == "track") [request.image, request.frames] = own.length > 1 ? [undefined, own] : [first];
  else if (first) Object.assign(request, { image: first }, request.reference && { reference: second });
  $("second").hidden = !request.reference;
  if (request.reference) reference.src = source(request.reference);
  image.src = source(request.image ?? request.frames[0]);
  say("");
  await image.decode().catch(() => say("This browser cannot show the picture. The server may read it.", true));
  outline();
}

// Before the start: what the request says, and the box that is to be followed.
function outline() {
  const { image: _, reference: __, frames: ___, ...options } = request, { x, y, width, height } = options.box ?? {};
  $("options").value = JSON.stringify(options, null, 1);
  $("progress").value = slider.value = 0;
  svg.classList.toggle("drag", Boolean(options.box));
  const points = [[x, y], [x + width, y], [x + width, y + height], [x, y + height]];
  const shapes = options.box ? [{ points, label: "drag another box", color: "#ffd23f", frame: -1, closed: true }] : [];
  show({ title: "Nothing is drawn yet", size: [image.naturalWidth || 1, image.naturalHeight || 1], shapes, rows: [] });
}

function drag({ type, buttons, clientX, clientY }) {
  if (!buttons || !request.box) return;
  const { left, top, width } = svg.getBoundingClientRect(), scale = image.naturalWidth / width;
  const [x, y] = [(clientX - left) * scale, (clientY - top) * scale].map(Math.round);
  if (type == "pointerdown") corner = [x, y];
  request.box = { x: Math.min(x, corner[0]), y: Math.min(y, corner[1]), width: Math.abs(x - corner[0]), height: Math.abs(y - corner[1]) };
  outline();
}

async function run() {
  const { image: one, reference: two, frames } = request;
  say("Sending");
  name = (await call(`v1/${verb}`, { ...JSON.parse($("options").value), image: one, reference: two, frames })).name;
  for await (const { done, error, metadata } of updates()) {
    $("progress").value = metadata.progressPercent ?? 0;
    say(`${metadata.stage} ${$("progress").value} %`);
    if (error) throw Error(error.message);
    if (done) break;
  }
  const drawing = await call(`drawings/${name}?reference=${reference.naturalWidth}x${reference.naturalHeight}`);
  show(drawing);
  say(drawing.title);
}

async function guarded(action, busy = false) {
  const lock = (on) => { for (const one of $("form").elements) one.disabled = (one.id == "cancel") != on; };
  const focused = document.activeElement;
  if (busy) lock(true);
  await action().catch((error) => say(error.message, true));
  if (busy) lock(false);
  if (busy) focused.focus();
}

const read = (file) => new Promise((resolve, reject) => {
  const reader = Object.assign(new FileReader(), { onerror: () => reject(reader.error), onload: () => resolve({ content: reader.result.split(",")[1] ?? "" }) });
  reader.readAsDataURL(file);
});
const take = (files) => guarded(async () => { own = await Promise.all([...files].map(read)); await choose(); });

for (const [verb, text] of Object.entries(VERBS)) {
  const label = make($("verbs"), "label");
  make(label, "input", { type: "radio", name: "verb" }).onchange = () => guarded(() => choose(verb));
  make(label, "b", {}, verb);
  make(label, "span", {}, text);
}
for (const file of PICTURES) {
  const button = make($("pictures"), "button", { type: "button" });
  make(button, "img", { src: `pictures/${file}`, alt: file });
  button.onclick = () => guarded(async () => take([await (await fetch(`pictures/${file}`)).blob()]));
}
$("sample").onclick = () => take([]);
$("files").onchange = () => take($("files").files);
$("form").onsubmit = (event) => { event.preventDefault(); guarded(run, true); };
$("cancel").onclick = () => guarded(() => call(`v1/${name}:cancel`, {}));
slider.oninput = turn;
svg.onpointerdown = svg.onpointermove = drag;
ondragover = (event) => event.preventDefault();
ondrop = (event) => { event.preventDefault(); take(event.dataTransfer.files); };
new ResizeObserver(fit).observe(svg);
document.querySelector("input").click();
