/* ---- memory: bytes of each tile by what they hold, and of the fullest tile over time ---- */
if (report.memory) {
  const memory = report.memory,
    names = Object.keys(memory.categories),
    LEFT = 62,
    BOTTOM = 22;
  const key = document.getElementById("memory-key");
  names.forEach((name, i) => {
    const item = document.createElement("span"),
      dot = document.createElement("i");
    dot.style.background = HUES[i % HUES.length];
    item.append(dot, `${name}, at most ${bytes(memory.most[name])}`);
    key.append(item);
  });
  const axes = (g, w, h, top, label) => {
    const unit = niceStep(top, 5),
      y = (value) => h - BOTTOM - (value / top) * (h - BOTTOM - 10);
    g.strokeStyle = style("--line");
    g.fillStyle = style("--soft");
    g.textAlign = "right";
    for (let at = 0; at <= top; at += unit) {
      g.beginPath();
      g.moveTo(LEFT, y(at));
      g.lineTo(w, y(at));
      g.stroke();
      g.fillText(bytes(at), LEFT - 6, y(at) + 4);
    }
    g.textAlign = "center";
    g.fillText(label, LEFT + (w - LEFT) / 2, h - 4);
    return y;
  };
  // The line stands where a tile is full; if that is far above the picture, at its top edge, and says how far above.
  const limitLine = (g, w, y, top) => {
    const at = y(Math.min(top, memory.limit)),
      above = top < memory.limit ? `, ${number(memory.limit / top, 1)} times as high as this picture` : "";
    g.strokeStyle = style("--warn");
    g.setLineDash([6, 4]);
    g.beginPath();
    g.moveTo(LEFT, at);
    g.lineTo(w, at);
    g.stroke();
    g.setLineDash([]);
    g.fillStyle = style("--warn");
    g.textAlign = "right";
    g.fillText(`a tile has ${bytes(memory.limit)}${above}`, w - 4, at + 14);
    g.textAlign = "left";
  };
  const scale = (highest) =>
    highest > 0.1 * memory.limit ? 1.05 * Math.max(highest, memory.limit) : 1.3 * Math.max(highest, 1);
  const total = memory.peak.length;
  canvas("tiles", 230, (g, w, h, element) => {
    const top = scale(Math.max(...memory.peak)),
      y = axes(g, w, h, top, "tile"),
      size = (w - LEFT) / total;
    for (let tile = 0; tile < total; tile++) {
      const left = Math.floor(LEFT + tile * size),
        wide = Math.max(1, Math.floor(LEFT + (tile + 1) * size) - left); // whole pixels, or stripes show
      let base = 0;
      names.forEach((name, i) => {
        const value = memory.categories[name][tile];
        g.fillStyle = HUES[i % HUES.length];
        g.fillRect(left, y(base + value), wide, y(base) - y(base + value));
        base += value;
      });
    }
    limitLine(g, w, y, top);
    element.onpointerleave = hideTip;
    element.onpointermove = (event) => {
      const tile = Math.floor((event.clientX - element.getBoundingClientRect().left - LEFT) / size);
      if (tile < 0 || tile >= total) return hideTip();
      showTip(
        event,
        `tile ${tile}: ${bytes(memory.peak[tile])} at its peak\n` +
          names.map((name) => `${name}: ${bytes(memory.categories[name][tile])}`).join("\n"),
      );
    };
  });
  canvas("liveness", 200, (g, w, h, element) => {
    const curve = memory.curve,
      top = scale(Math.max(...curve)),
      y = axes(g, w, h, top, "operation"),
      step = (w - LEFT) / curve.length;
    g.beginPath();
    g.moveTo(LEFT, y(0));
    curve.forEach((value, i) => {
      g.lineTo(LEFT + i * step, y(value));
      g.lineTo(LEFT + (i + 1) * step, y(value));
    });
    g.lineTo(w, y(0));
    g.closePath();
    g.globalAlpha = 0.25;
    g.fillStyle = style("--compute");
    g.fill();
    g.globalAlpha = 1;
    g.strokeStyle = style("--compute");
    g.stroke();
    limitLine(g, w, y, top);
    const peak = LEFT + (memory.peak_op + 0.5) * step;
    g.fillStyle = style("--warn");
    g.beginPath();
    g.arc(peak, y(curve[memory.peak_op]), 4, 0, 7);
    g.fill();
    element.onpointerleave = hideTip;
    element.onpointermove = (event) => {
      const i = Math.floor((event.clientX - element.getBoundingClientRect().left - LEFT) / step),
        op = report.ops[memory.op_indices[i]];
      if (!(i >= 0 && i < curve.length)) return hideTip();
      showTip(
        event,
        `${bytes(curve[i])} on the fullest tile\n` +
          (op ? `while ${op.op} runs, ${op.phase}${op.module ? " in " + op.module : ""}\n${op.shapes}` : ""),
      );
    };
  });
}
