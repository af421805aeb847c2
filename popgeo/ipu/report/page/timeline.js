/* ---- the timeline: supersteps in time, one lane for each activity, blocks of the model above ---- */
{
  const steps = report.supersteps.filter((step) => step.activity !== "host"),
    LANES = ["block", "compute", "exchange", "sync"];
  const end = steps.length ? steps.at(-1).start + steps.at(-1).length : 1,
    LEFT = 78,
    TOP = 24,
    LANE = 42;
  const blocks = [];
  for (const step of steps) {
    const last = blocks.at(-1);
    if (last && last.name === step.block && last.phase === step.phase) last.end = step.start + step.length;
    else blocks.push({ name: step.block, phase: step.phase, start: step.start, end: step.start + step.length });
  }
  const hue = Object.fromEntries(
    [...new Set(blocks.map((b) => b.name))].map((name, i) => [name, HUES[i % HUES.length]]),
  );
  let from = 0,
    to = end,
    width = 1;
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT);
  const redraw = canvas("timeline", TOP + 4 * LANE, (g, w) => {
    width = w;
    const labels = Math.min(9, (w - LEFT) / 70); // which leaves room for each on a narrow screen
    const unit = MICRO * niceStep((to - from) / MICRO, labels);
    g.strokeStyle = style("--line");
    g.fillStyle = style("--soft");
    g.textAlign = "center";
    for (let at = Math.ceil(from / unit) * unit; at <= to; at += unit) {
      g.beginPath();
      g.moveTo(x(at), TOP - 4);
      g.lineTo(x(at), TOP + 4 * LANE);
      g.stroke();
      if (x(at) > LEFT + 30 && x(at) < w - 34) g.fillText(`${number(at / MICRO, unit < MICRO ? 2 : 0)} µs`, x(at), 13);
    }
    g.textAlign = "left";
    LANES.forEach((lane, i) => {
      g.fillStyle = style("--soft");
      g.fillText(lane, 0, TOP + i * LANE + LANE / 2 + 3);
    });
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, w - LEFT, TOP + 4 * LANE);
    g.clip();
    for (const block of blocks) {
      const left = x(block.start),
        size = Math.max(0.5, x(block.end) - left);
      if (left > w || left + size < LEFT) continue;
      g.fillStyle = hue[block.name];
      g.globalAlpha = block.phase === "forward" ? 1 : 0.7;
      g.fillRect(left, TOP + 3, size - (size > 3 ? 1 : 0), LANE - 8);
      g.globalAlpha = 1;
      const begin = Math.max(left, LEFT),
        room = left + size - begin - 10;
      const name = [`${block.name} ${block.phase}`, block.name, block.name.replace(/^.*\.(?=[^.]*[^.\d])/, "")].find(
        (text) => g.measureText(text).width < room,
      );
      if (name) {
        g.fillStyle = "#14181d";
        g.fillText(name, begin + 5, TOP + LANE / 2 + 3);
      }
    }
    for (const step of steps) {
      const left = x(step.start),
        size = Math.max(0.5, x(step.start + step.length) - left),
        lane = LANES.indexOf(step.activity);
      if (left > w || left + size < LEFT) continue;
      g.fillStyle = style("--" + step.activity);
      g.fillRect(left, TOP + lane * LANE + 3, size - (size > 4 ? 1 : 0), LANE - 8);
      const begin = Math.max(left, LEFT);
      if (left + size - begin > g.measureText(step.op).width + 10) {
        g.fillStyle = "#fff";
        g.fillText(step.op, begin + 5, TOP + lane * LANE + LANE / 2 + 3);
      }
    }
    g.restore();
  });
  const element = document.getElementById("timeline");
  const time = (event) =>
    from + ((event.clientX - element.getBoundingClientRect().left - LEFT) / (width - LEFT)) * (to - from);
  const zoom = (factor, at) => {
    const span = Math.min(end, Math.max(50, (to - from) * factor)),
      part = (at - from) / (to - from);
    from = Math.max(0, Math.min(end - span, at - part * span));
    to = from + span;
    redraw();
  };
  let drag = null;
  element.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
    },
    { passive: false },
  );
  element.onpointerdown = (event) => {
    drag = { x: event.clientX, from };
    element.setPointerCapture(event.pointerId);
  };
  element.onpointerup = () => {
    drag = null;
  };
  element.onpointerleave = hideTip;
  element.ondblclick = () => {
    from = 0;
    to = end;
    redraw();
  };
  element.onpointermove = (event) => {
    if (drag) {
      const span = to - from;
      from = Math.max(0, Math.min(end - span, drag.from - ((event.clientX - drag.x) / (width - LEFT)) * span));
      to = from + span;
      hideTip();
      redraw();
      return;
    }
    const at = time(event),
      lane = LANES[Math.floor((event.clientY - element.getBoundingClientRect().top - TOP) / LANE)];
    const step = at >= from && steps.find((s) => at >= s.start && at < s.start + s.length);
    if (!step || (lane !== "block" && lane !== step.activity)) return hideTip();
    const op = report.ops[step.op_index];
    showTip(
      event,
      `${step.op}: ${step.step} (${step.activity})\n${step.module || "(model)"}, ${step.phase}\n${number(step.length)} cycles, ${micros(step.length)}\n${op.shapes}\n` +
        (step.activity === "compute"
          ? `${number(step.tiles)} tiles, balance ${percent(step.balance)}`
          : `all tiles ${bytes(step.bytes_total)}, most into one ${bytes(step.bytes_in)}`) +
        (op.split ? `\nplan: ${op.split}` : ""),
    );
  };
  document.getElementById("closer").onclick = () => zoom(0.5, (from + to) / 2);
  document.getElementById("wider").onclick = () => zoom(2, (from + to) / 2);
  document.getElementById("whole").onclick = () => {
    from = 0;
    to = end;
    redraw();
  };
}
