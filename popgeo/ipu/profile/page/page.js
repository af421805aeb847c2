"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const ACTIVITIES = ["compute", "exchange", "sync", "host"];
const HUES = ["#8ec1e0", "#f2c57c", "#8fd3b6", "#e8a5a0", "#cdb4db", "#d9c3a5", "#f3b7dc", "#bfc8d2", "#ede37c", "#a8dcec"];
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (x, digits = 0) => x.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const percent = x => number(100 * x, 1) + " %";
const bytes = x => x < 1e3 ? `${number(x)} B` : x < 1e6 ? `${number(x / 1e3, 1)} kB` : x < 1e9 ? `${number(x / 1e6, 1)} MB` : `${number(x / 1e9, 1)} GB`;
const MICRO = report.clock / 1e6, micros = cycles => number(cycles / MICRO, 2) + " µs"; // cycles in a microsecond

const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, innerWidth - width - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - height - 8) + "px";
}
const hideTip = () => { tip.style.display = "none"; };

/* ---- tables: click a heading to sort, type to keep the rows that hold all words ---- */
const FORMATS = { cycles: x => number(x), share: percent, balance: percent, percent, count: x => number(x), bytes, flops: x => number(x / 1e6, 2), one: x => number(x, 1) };
function makeTable(rows, columns, chosen) {
  const box = document.createElement("div"), table = document.createElement("table"), tools = document.createElement("div");
  const filter = document.createElement("input"), found = document.createElement("span");
  const head = table.createTHead().insertRow(), body = table.createTBody(), limit = 300;
  let key = columns.find(c => c.format === "cycles" && c.key !== "start").key, ascending = false;
  filter.placeholder = "filter: words that a row must hold";
  tools.className = "tools"; box.className = "scroll"; found.className = "soft";
  tools.append(filter, found);
  const texts = rows.map(row => Object.values(row).join(" ").toLowerCase());
  for (const column of columns) {
    const th = document.createElement("th");
    th.textContent = column.name; th.title = column.about || ""; th.tabIndex = 0;
    if (!column.format) th.className = "words";
    const sort = () => { ascending = key === column.key ? !ascending : !column.format; key = column.key; fill(); };
    th.onclick = sort;
    th.onkeydown = event => { if (event.key === "Enter") sort(); };
    head.append(th);
  }
  function fill() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((_, i) => words.every(word => texts[i].includes(word)));
    kept.sort((a, b) => (ascending ? 1 : -1) * (typeof a[key] === "number" ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key]), "en", { numeric: true })));
    found.textContent = `${kept.length} rows` + (kept.length > limit ? `, the first ${limit} shown` : "");
    [...head.children].forEach((th, i) => columns[i].key === key ? th.setAttribute("aria-sort", ascending ? "ascending" : "descending") : th.removeAttribute("aria-sort"));
    body.replaceChildren(...kept.slice(0, limit).map(row => {
      const tr = document.createElement("tr");
      if (chosen) {
        tr.className = "link"; tr.tabIndex = 0;
        tr.onclick = () => chosen(row);
        tr.onkeydown = event => { if (event.key === "Enter") chosen(row); };
      }
      for (const { key: k, format } of columns) {
        const td = tr.insertCell(), value = row[k];
        if (format === "share" && value > 0) {
          const part = document.createElement("span");
          part.className = "part"; part.style.width = 60 * Math.min(1, value) + "px";
          td.append(part);
        }
        td.append(format ? FORMATS[format](value) : String(value));
        if (!format) { td.className = "words"; td.title = String(value); }
      }
      return tr;
    }));
  }
  filter.oninput = fill;
  box.append(table);
  fill();
  return [tools, box];
}
const cycles = { key: "cycles", name: "cycles", format: "cycles" }, share = { key: "share", name: "share", format: "share" };
const activities = ["compute", "exchange", "sync"].map(key => ({ key, name: key, format: "cycles" }));
const trust = { key: "trust", name: "figures are", about: "validated: checked on published measurements at such sizes; extrapolated: at other sizes; estimate: none are published" };
const balance = { key: "balance", name: "balance", format: "balance", about: "work of the mean tile over that of the slowest" };
/* ---- one operation: its plan and what each of its supersteps costs ---- */
function explain(op) {
  const place = document.getElementById("plan"), title = document.createElement("h2"), facts = document.createElement("p"), table = document.createElement("table");
  title.textContent = `${op.op} ${op.shapes}, ${op.phase}${op.module ? " in " + op.module : ""}`;
  facts.className = "soft";
  facts.textContent = [`${number(op.cycles)} cycles in ${number(op.count)} ${op.count === 1 ? "run" : "runs"}`, op.split && `plan: ${op.split}, the best of ${number(op.considered)}`, `figures are ${op.trust}${op.why ? ": " + op.why : ""}`, op.source].filter(Boolean).join(" · ");
  const columns = [["step", "superstep"], ["activity", "activity"], ["calibrated", "calibrated", number], ["ideal", "ideal", number], ["tiles", "tiles", number], ["workers", "workers", FORMATS.one], ["balance", "balance", percent], ["bytes_in", "most in", bytes], ["bytes_total", "all bytes", bytes]];
  const silent = { workers: "compute", balance: "compute", bytes_in: "exchange", bytes_total: "exchange" }; // says nothing of other activities
  const fill = (row, tag, texts) => texts.forEach((text, i) => { const cell = document.createElement(tag); cell.textContent = text; if (!columns[i][2]) cell.className = "words"; row.append(cell); });
  fill(table.createTHead().insertRow(), "th", columns.map(column => column[1]));
  const body = table.createTBody();
  for (const step of report.supersteps.filter(step => step.op_index === op.index)) fill(body.insertRow(), "td", columns.map(([key, , format]) => !format ? step[key] : silent[key] && silent[key] !== step.activity ? "" : format(step[key])));
  place.replaceChildren(title, facts, table);
  place.scrollIntoView({ block: "nearest", behavior: "smooth" });
}
const TABLES = {
  operations: [report.ops, [
    { key: "index", name: "#", format: "count" }, { key: "op", name: "operation" }, { key: "module", name: "module" }, { key: "phase", name: "phase" }, cycles, share, ...activities,
    { key: "fixed", name: "fixed", format: "cycles", about: "synchronisation and start of compute sets" }, balance,
    { key: "tiles", name: "tiles", format: "count" }, { key: "workers", name: "workers", format: "one" }, { key: "traffic", name: "traffic", format: "bytes" }, { key: "flops", name: "MFLOP", format: "flops" },
    { key: "split", name: "plan" }, { key: "considered", name: "plans compared", format: "count" }, { key: "shapes", name: "shapes" }, trust, { key: "ideal", name: "ideal cycles", format: "cycles" }, { key: "why", name: "why" }, { key: "source", name: "line of the model" }], explain],
  families: [report.families, [{ key: "family", name: "family" }, { key: "ops", name: "operations", format: "count" }, cycles, share, ...activities, { key: "fixed", name: "fixed", format: "cycles" }, balance, { key: "traffic", name: "traffic", format: "bytes" }, { key: "flops", name: "MFLOP", format: "flops" }, { key: "ideal", name: "ideal cycles", format: "cycles" }, { key: "validated", name: "validated", format: "percent", about: "part of the cycles whose formula was checked on published measurements at such sizes" }]],
  modules: [report.modules, [{ key: "module", name: "module" }, { key: "ops", name: "operations", format: "count" }, cycles, share, { key: "own", name: "own", format: "cycles", about: "without submodules" }, ...["forward", "backward", "update"].map(key => ({ key, name: key, format: "cycles" }))]],
  supersteps: [report.supersteps, [{ key: "op", name: "operation" }, { key: "module", name: "module" }, { key: "step", name: "superstep" }, { key: "activity", name: "activity" }, { key: "start", name: "start", format: "cycles" }, { ...cycles, key: "length" }, balance, { key: "tiles", name: "tiles", format: "count" }, { key: "workers", name: "workers", format: "one" }, { key: "bytes_in", name: "most in", format: "bytes", about: "most bytes that any tile receives" }, { key: "bytes_out", name: "most out", format: "bytes" }, { key: "bytes_total", name: "all bytes", format: "bytes" }, { key: "fragments", name: "fragments", format: "count" }]],
};
{
  const buttons = document.getElementById("which"), place = document.getElementById("table"), made = {};
  const show = name => {
    made[name] = made[name] || makeTable(...TABLES[name]);
    place.replaceChildren(...made[name]);
    [...buttons.children].forEach(button => button.classList.toggle("on", button.textContent === name));
  };
  for (const name of Object.keys(TABLES)) {
    const button = document.createElement("button");
    button.textContent = name; button.onclick = () => show(name);
    buttons.append(button);
  }
  show("operations");
}

/* ---- drawing on canvases as wide as the page, sharp on every screen ---- */
function canvas(id, height, draw) {
  const element = document.getElementById(id);
  if (!element) return () => {};
  const redraw = () => {
    const width = element.parentElement.clientWidth - 36, ratio = devicePixelRatio || 1;
    element.width = width * ratio; element.height = height * ratio; element.style.height = height + "px";
    const context = element.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    draw(context, width, height, element);
  };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
  return redraw;
}
function niceStep(span, most) {
  const raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find(m => m * power >= raw);
}

/* ---- the timeline: supersteps in time, one lane for each activity, blocks of the model above ---- */
{
  const steps = report.supersteps.filter(step => step.activity !== "host"), LANES = ["block", "compute", "exchange", "sync"];
  const end = steps.length ? steps.at(-1).start + steps.at(-1).length : 1, LEFT = 78, TOP = 24, LANE = 42;
  const blocks = [];
  for (const step of steps) {
    const last = blocks.at(-1);
    if (last && last.name === step.block && last.phase === step.phase) last.end = step.start + step.length;
    else blocks.push({ name: step.block, phase: step.phase, start: step.start, end: step.start + step.length });
  }
  const hue = Object.fromEntries([...new Set(blocks.map(b => b.name))].map((name, i) => [name, HUES[i % HUES.length]]));
  let from = 0, to = end, width = 1;
  const x = at => LEFT + (at - from) / (to - from) * (width - LEFT);
  const redraw = canvas("timeline", TOP + 4 * LANE, (g, w) => {
    width = w;
    const unit = MICRO * niceStep((to - from) / MICRO, 9);
    g.strokeStyle = style("--line"); g.fillStyle = style("--soft"); g.textAlign = "center";
    for (let at = Math.ceil(from / unit) * unit; at <= to; at += unit) {
      g.beginPath(); g.moveTo(x(at), TOP - 4); g.lineTo(x(at), TOP + 4 * LANE); g.stroke();
      if (x(at) > LEFT + 30 && x(at) < w - 34) g.fillText(`${number(at / MICRO, unit < MICRO ? 2 : 0)} µs`, x(at), 13);
    }
    g.textAlign = "left";
    LANES.forEach((lane, i) => { g.fillStyle = style("--soft"); g.fillText(lane, 0, TOP + i * LANE + LANE / 2 + 3); });
    g.save(); g.beginPath(); g.rect(LEFT, 0, w - LEFT, TOP + 4 * LANE); g.clip();
    for (const block of blocks) {
      const left = x(block.start), size = Math.max(0.5, x(block.end) - left);
      if (left > w || left + size < LEFT) continue;
      g.fillStyle = hue[block.name]; g.globalAlpha = block.phase === "forward" ? 1 : 0.7;
      g.fillRect(left, TOP + 3, size - (size > 3 ? 1 : 0), LANE - 8); g.globalAlpha = 1;
      const begin = Math.max(left, LEFT), room = left + size - begin - 10;
      const name = [`${block.name} ${block.phase}`, block.name, block.name.replace(/^.*\./, "")].find(text => g.measureText(text).width < room);
      if (name) { g.fillStyle = "#14181d"; g.fillText(name, begin + 5, TOP + LANE / 2 + 3); }
    }
    for (const step of steps) {
      const left = x(step.start), size = Math.max(0.5, x(step.start + step.length) - left), lane = LANES.indexOf(step.activity);
      if (left > w || left + size < LEFT) continue;
      g.fillStyle = style("--" + step.activity);
      g.fillRect(left, TOP + lane * LANE + 3, size - (size > 4 ? 1 : 0), LANE - 8);
      const begin = Math.max(left, LEFT);
      if (left + size - begin > g.measureText(step.op).width + 10) { g.fillStyle = "#fff"; g.fillText(step.op, begin + 5, TOP + lane * LANE + LANE / 2 + 3); }
    }
    g.restore();
  });
  const element = document.getElementById("timeline");
  const time = event => from + (event.clientX - element.getBoundingClientRect().left - LEFT) / (width - LEFT) * (to - from);
  const zoom = (factor, at) => {
    const span = Math.min(end, Math.max(50, (to - from) * factor)), part = (at - from) / (to - from);
    from = Math.max(0, Math.min(end - span, at - part * span)); to = from + span; redraw();
  };
  let drag = null;
  element.addEventListener("wheel", event => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event)); }, { passive: false });
  element.onpointerdown = event => { drag = { x: event.clientX, from }; element.setPointerCapture(event.pointerId); };
  element.onpointerup = () => { drag = null; };
  element.onpointerleave = hideTip;
  element.ondblclick = () => { from = 0; to = end; redraw(); };
  element.onpointermove = event => {
    if (drag) {
      const span = to - from;
      from = Math.max(0, Math.min(end - span, drag.from - (event.clientX - drag.x) / (width - LEFT) * span)); to = from + span;
      hideTip(); redraw(); return;
    }
    const at = time(event), lane = LANES[Math.floor((event.clientY - element.getBoundingClientRect().top - TOP) / LANE)];
    const step = at >= from && steps.find(s => at >= s.start && at < s.start + s.length);
    if (!step || (lane !== "block" && lane !== step.activity)) return hideTip();
    const op = report.ops[step.op_index];
    showTip(event, `${step.op}: ${step.step} (${step.activity})\n${step.module || "(model)"}, ${step.phase}\n${number(step.length)} cycles, ${micros(step.length)}\n${op.shapes}\n` +
      (step.activity === "compute" ? `${number(step.tiles)} tiles, balance ${percent(step.balance)}` : `all tiles ${bytes(step.bytes_total)}, most into one ${bytes(step.bytes_in)}`) + (op.split ? `\nplan: ${op.split}` : ""));
  };
  document.getElementById("closer").onclick = () => zoom(0.5, (from + to) / 2);
  document.getElementById("wider").onclick = () => zoom(2, (from + to) / 2);
  document.getElementById("whole").onclick = () => { from = 0; to = end; redraw(); };
}

/* ---- memory: bytes of each tile by what they hold, and of the fullest tile over time ---- */
if (report.memory) {
  const memory = report.memory, names = Object.keys(memory.categories), LEFT = 62, BOTTOM = 22;
  const key = document.getElementById("memory-key");
  names.forEach((name, i) => { const item = document.createElement("span"), dot = document.createElement("i"); dot.style.background = HUES[i % HUES.length]; item.append(dot, `${name}, at most ${bytes(memory.most[name])}`); key.append(item); });
  const axes = (g, w, h, top, label) => {
    const unit = niceStep(top, 5), y = value => h - BOTTOM - value / top * (h - BOTTOM - 10);
    g.strokeStyle = style("--line"); g.fillStyle = style("--soft"); g.textAlign = "right";
    for (let at = 0; at <= top; at += unit) { g.beginPath(); g.moveTo(LEFT, y(at)); g.lineTo(w, y(at)); g.stroke(); g.fillText(bytes(at), LEFT - 6, y(at) + 4); }
    g.textAlign = "center"; g.fillText(label, LEFT + (w - LEFT) / 2, h - 4);
    return y;
  };
  const limitLine = (g, w, y) => {
    g.strokeStyle = style("--warn"); g.setLineDash([6, 4]); g.beginPath(); g.moveTo(LEFT, y(memory.limit)); g.lineTo(w, y(memory.limit)); g.stroke(); g.setLineDash([]);
    g.fillStyle = style("--warn"); g.textAlign = "right"; g.fillText(`a tile has ${bytes(memory.limit)}`, w - 4, y(memory.limit) + 14); g.textAlign = "left";
  };
  const scale = highest => highest > 0.4 * memory.limit ? 1.05 * Math.max(highest, memory.limit) : 1.15 * Math.max(highest, 1);
  const total = memory.peak.length;
  canvas("tiles", 230, (g, w, h, element) => {
    const top = scale(Math.max(...memory.peak)), y = axes(g, w, h, top, "tile"), size = (w - LEFT) / total;
    for (let tile = 0; tile < total; tile++) {
      const left = Math.floor(LEFT + tile * size), wide = Math.max(1, Math.floor(LEFT + (tile + 1) * size) - left); // whole pixels, or stripes show
      let base = 0;
      names.forEach((name, i) => { const value = memory.categories[name][tile]; g.fillStyle = HUES[i % HUES.length]; g.fillRect(left, y(base + value), wide, y(base) - y(base + value)); base += value; });
    }
    if (top >= memory.limit) limitLine(g, w, y);
    element.onpointerleave = hideTip;
    element.onpointermove = event => {
      const tile = Math.floor((event.clientX - element.getBoundingClientRect().left - LEFT) / size);
      if (tile < 0 || tile >= total) return hideTip();
      showTip(event, `tile ${tile}: ${bytes(memory.peak[tile])} at its peak\n` + names.map(name => `${name}: ${bytes(memory.categories[name][tile])}`).join("\n"));
    };
  });
  canvas("liveness", 200, (g, w, h, element) => {
    const curve = memory.curve, top = scale(Math.max(...curve)), y = axes(g, w, h, top, "operation"), step = (w - LEFT) / curve.length;
    g.beginPath(); g.moveTo(LEFT, y(0));
    curve.forEach((value, i) => { g.lineTo(LEFT + i * step, y(value)); g.lineTo(LEFT + (i + 1) * step, y(value)); });
    g.lineTo(w, y(0)); g.closePath();
    g.globalAlpha = 0.25; g.fillStyle = style("--compute"); g.fill(); g.globalAlpha = 1; g.strokeStyle = style("--compute"); g.stroke();
    if (top >= memory.limit) limitLine(g, w, y);
    const peak = LEFT + (memory.peak_op + 0.5) * step;
    g.fillStyle = style("--warn"); g.beginPath(); g.arc(peak, y(curve[memory.peak_op]), 4, 0, 7); g.fill();
    element.onpointerleave = hideTip;
    element.onpointermove = event => {
      const i = Math.floor((event.clientX - element.getBoundingClientRect().left - LEFT) / step), op = report.ops[memory.op_indices[i]];
      if (!(i >= 0 && i < curve.length)) return hideTip();
      showTip(event, `${bytes(curve[i])} on the fullest tile\n` + (op ? `while ${op.op} runs, ${op.phase}${op.module ? " in " + op.module : ""}\n${op.shapes}` : ""));
    };
  });
}

/* ---- the flame view: modules above what they consist of, as wide as their cycles ---- */
{
  const place = document.getElementById("flame-view"), root = { name: "model", cycles: 0, parts: {}, family: "" };
  for (const op of report.ops) {
    if (op.phase === "host") continue;
    let node = root;
    node.cycles += op.cycles;
    const named = op.module ? (op.module.startsWith("(") ? [op.module] : op.module.split(".")) : [];
    for (const name of [...named, `${op.op} ${op.phase}`]) {
      node = node.parts[name] = node.parts[name] || { name, cycles: 0, parts: {}, family: "", count: 0 };
      node.cycles += op.cycles;
    }
    node.family = op.family; node.count += op.count; node.trust = op.trust;
  }
  const families = report.families.map(family => family.family), path = [root];
  function draw() {
    const top = path.at(-1), width = place.clientWidth, ROW = 22, made = [];
    let depth = path.length - 1;
    const box = (node, left, size, row, trail) => {
      if (size < 1.5) return;
      depth = Math.max(depth, row);
      const div = document.createElement("div");
      div.textContent = size > 30 ? node.name : "";
      Object.assign(div.style, { left: left + "px", width: size + "px", top: row * ROW + "px", background: node.family ? HUES[families.indexOf(node.family) % HUES.length] : row % 2 ? "#d5dbe3" : "#c6ced8" });
      div.onpointermove = event => showTip(event, `${trail.map(n => n.name).slice(1).join(" › ") || "model"}\n${number(node.cycles)} cycles, ${percent(node.cycles / (root.cycles || 1))}, ${micros(node.cycles)}` + (node.family ? `\n${node.count} × ${node.family}, ${node.trust}` : ""));
      div.onpointerleave = hideTip;
      div.onclick = () => { if (node.family) return; path.splice(0, path.length, ...trail); hideTip(); draw(); };
      made.push(div);
      if (row >= path.length - 1) {
        let at = left;
        for (const part of Object.values(node.parts).sort((a, b) => b.cycles - a.cycles)) {
          const its = size * part.cycles / (node.cycles || 1);
          box(part, at, its, row + 1, [...trail, part]);
          at += its;
        }
      }
    };
    path.slice(0, -1).forEach((node, row) => box(node, 0, width, row, path.slice(0, row + 1)));
    box(top, 0, width, path.length - 1, [...path]);
    place.replaceChildren(...made);
    place.style.height = (depth + 1) * ROW + "px";
  }
  const key = document.getElementById("flame-key");
  families.filter(family => family !== "host").forEach(family => { const item = document.createElement("span"), dot = document.createElement("i"); dot.style.background = HUES[families.indexOf(family) % HUES.length]; item.append(dot, family); key.append(item); });
  addEventListener("resize", draw);
  draw();
}
