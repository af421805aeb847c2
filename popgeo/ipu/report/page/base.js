"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const ACTIVITIES = ["compute", "exchange", "sync", "host"];
const HUES = [
  "#8ec1e0",
  "#f2c57c",
  "#8fd3b6",
  "#e8a5a0",
  "#cdb4db",
  "#d9c3a5",
  "#f3b7dc",
  "#bfc8d2",
  "#ede37c",
  "#a8dcec",
];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (x, digits = 0) =>
  x.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const percent = (x) => number(100 * x, 1) + " %";
const bytes = (x) =>
  x < 1e3
    ? `${number(x)} B`
    : x < 1e6
      ? `${number(x / 1e3, 1)} kB`
      : x < 1e9
        ? `${number(x / 1e6, 1)} MB`
        : `${number(x / 1e9, 1)} GB`;
const MICRO = report.clock / 1e6,
  micros = (cycles) => number(cycles / MICRO, 2) + " µs"; // cycles in a microsecond

const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, innerWidth - width - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - height - 8) + "px";
}
const hideTip = () => {
  tip.style.display = "none";
};
