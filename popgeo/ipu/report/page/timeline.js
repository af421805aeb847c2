/* ---- a timeline: lanes over time, to zoom and to move ----
   lanes: their names; height: of each; end and first: cycles of the step, and those that are shown first;
   draw(box): draws with box(lane, start, end, color, names, more), which writes the first name that has room;
   tell(at, lane): what is said of that time in that lane, if anything. */
function timeline({ lanes, height, end, first, draw, tell }) {
  const LEFT = 78,
    TOP = 24,
    BOTTOM = TOP + lanes.length * height,
    GAP = height > 30 ? 8 : 4;
  let from = 0,
    to = first,
    width = 1;
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT);
  const redraw = canvas("timeline", BOTTOM, (g, w) => {
    width = w;
    const labels = Math.min(9, (w - LEFT) / 70); // which leaves room for each on a narrow screen
    const unit = MICRO * niceStep((to - from) / MICRO, labels);
    g.strokeStyle = style("--line");
    g.fillStyle = style("--soft");
    g.textAlign = "center";
    for (let at = Math.ceil(from / unit) * unit; at <= to; at += unit) {
      g.beginPath();
      g.moveTo(x(at), TOP - 4);
      g.lineTo(x(at), BOTTOM);
      g.stroke();
      if (x(at) > LEFT + 30 && x(at) < w - 34) g.fillText(`${number(at / MICRO, unit < MICRO ? 2 : 0)} µs`, x(at), 13);
    }
    g.textAlign = "left";
    lanes.forEach((lane, i) => {
      g.fillStyle = style("--soft");
      g.fillText(lane, 0, TOP + i * height + height / 2 + 3);
    });
    g.save();
    g.beginPath();
    g.rect(LEFT, 0, w - LEFT, BOTTOM);
    g.clip();
    draw((lane, start, stop, color, names = [], { ink = "#fff", alpha = 1 } = {}) => {
      const left = x(start),
        size = Math.max(0.5, x(stop) - left);
      if (left > w || left + size < LEFT) return;
      g.fillStyle = color;
      g.globalAlpha = alpha;
      g.fillRect(left, TOP + lane * height + GAP / 2 - 1, size - (size > 4 ? 1 : 0), height - GAP);
      g.globalAlpha = 1;
      const begin = Math.max(left, LEFT),
        room = left + size - begin - 10;
      const name = names.find((text) => g.measureText(text).width < room);
      if (name) {
        g.fillStyle = ink;
        g.fillText(name, begin + 5, TOP + lane * height + height / 2 + 3);
      }
    });
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
  const whole = () => {
    from = 0;
    to = end;
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
  element.ondblclick = whole;
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
      lane = Math.floor((event.clientY - element.getBoundingClientRect().top - TOP) / height),
      words = at >= from && tell(at, lane);
    if (!words) return hideTip();
    showTip(event, words);
  };
  document.getElementById("closer").onclick = () => zoom(0.5, (from + to) / 2);
  document.getElementById("wider").onclick = () => zoom(2, (from + to) / 2);
  document.getElementById("whole").onclick = whole;
}
