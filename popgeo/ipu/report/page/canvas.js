/* ---- drawing on canvases as wide as the page, sharp on every screen ---- */
function canvas(id, height, draw) {
  const element = document.getElementById(id);
  if (!element) return () => {};
  const redraw = () => {
    const width = element.parentElement.clientWidth - 36,
      ratio = devicePixelRatio || 1;
    element.width = width * ratio;
    element.height = height * ratio;
    element.style.height = height + "px";
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
  const raw = span / most,
    power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((m) => m * power >= raw);
}
