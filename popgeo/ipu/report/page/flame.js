/* ---- the flame view: modules above what they consist of, as wide as their cycles ---- */
{
  const place = document.getElementById("flame-view"),
    root = { name: "model", cycles: 0, parts: {}, family: "" };
  for (const op of report.ops) {
    if (op.phase === "host") continue;
    let node = root;
    node.cycles += op.cycles;
    const named = op.module ? (op.module.startsWith("(") ? [op.module] : op.module.split(".")) : [];
    for (const name of [...named, `${op.op} ${op.phase}`]) {
      node = node.parts[name] = node.parts[name] || { name, cycles: 0, parts: {}, family: "", count: 0 };
      node.cycles += op.cycles;
    }
    node.family = op.family;
    node.count += op.count;
    node.trust = op.trust;
  }
  const families = report.families
      .filter((family) => family.cycles > 0 && family.family !== "host")
      .map((family) => family.family),
    path = [root],
    pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  /* The first of these names that a box has room for. A long name that has none ends in an ellipsis, a short box is blank. */
  const label = ({ name, family }, room) =>
    [name, ...(family ? [name.split(" ")[0]] : [])].find((text) => pen.measureText(text).width <= room) ||
    (room > 40 ? name : "");
  function draw() {
    const top = path.at(-1),
      width = place.clientWidth,
      ROW = 22,
      made = [];
    let depth = path.length - 1;
    const box = (node, left, size, row, trail) => {
      if (size < 1.5) return;
      depth = Math.max(depth, row);
      const div = document.createElement("div");
      div.textContent = label(node, size - 10);
      Object.assign(div.style, {
        left: left + "px",
        width: size + "px",
        top: row * ROW + "px",
        background: node.family ? HUES[families.indexOf(node.family) % HUES.length] : row % 2 ? "#d5dbe3" : "#c6ced8",
      });
      div.onpointermove = (event) =>
        showTip(
          event,
          `${
            trail
              .map((n) => n.name)
              .slice(1)
              .join(" › ") || "model"
          }\n${number(node.cycles)} cycles, ${percent(node.cycles / (root.cycles || 1))}, ${micros(node.cycles)}` +
            (node.family ? `\n${node.count} × ${node.family}, ${node.trust}` : ""),
        );
      div.onpointerleave = hideTip;
      div.onclick = () => {
        if (node.family) return;
        path.splice(0, path.length, ...trail);
        hideTip();
        draw();
      };
      made.push(div);
      if (row >= path.length - 1) {
        let at = left;
        for (const part of Object.values(node.parts).sort((a, b) => b.cycles - a.cycles)) {
          const its = (size * part.cycles) / (node.cycles || 1);
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
  families.forEach((family) => {
    const item = document.createElement("span"),
      dot = document.createElement("i");
    dot.style.background = HUES[families.indexOf(family) % HUES.length];
    item.append(dot, family);
    key.append(item);
  });
  addEventListener("resize", draw);
  draw();
}
