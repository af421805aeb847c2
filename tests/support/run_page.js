/* Runs the script of a report's page in node, without a browser: prints every box and word that it draws, and what it
   says of a point of its timeline, as JSON. Usage: `node run_page.js page.html [x y]` */
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");
const drawn = [];
const context = () =>
  new Proxy(
    {},
    {
      get(held, name) {
        if (name in held) return held[name];
        if (name === "measureText") return (text) => ({ width: 6 * text.length });
        return (...given) => {
          if (name === "fillRect" || name === "fillText") drawn.push([name, held.fillStyle, ...given]);
        };
      },
    },
  );
const made = new Map();
function element(id) {
  if (!made.has(id))
    made.set(
      id,
      new Proxy(
        { style: {}, id },
        {
          get(held, name) {
            if (name in held) return held[name];
            if (name === "textContent" && id === "report")
              return page.match(/<script type="application\/json" id="report">(.*?)<\/script>/s)[1];
            if (name === "getBoundingClientRect") return () => ({ left: 0, top: 0, width: 0, height: 0 });
            if (name === "getContext") return context;
            if (name === "clientWidth") return 1186;
            if (name === "parentElement") return element("parent");
            if (name === "children") return [];
            if (name === "value") return "";
            return () => element(`${id}/${made.size}`);
          },
        },
      ),
    );
  return made.get(id);
}
globalThis.document = {
  documentElement: {},
  getElementById: (id) => (page.includes(`id="${id}"`) ? element(id) : null),
  createElement: (name) => element(`${name}/${made.size}`),
};
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => name });
globalThis.devicePixelRatio = 1;
globalThis.innerWidth = globalThis.innerHeight = 1200;
globalThis.addEventListener = () => {};
globalThis.matchMedia = () => ({ addEventListener: () => {} });
const script = page.match(/<\/script>\n<script>(.*)<\/script>/s)[1];
new Function(script)();
let told = "";
if (process.argv.length > 3) {
  element("timeline").onpointermove({ clientX: Number(process.argv[3]), clientY: Number(process.argv[4]) });
  told = element("tip").textContent;
  if (typeof told !== "string") told = "";
}
// What is written on boxes of a given width that are no part of a canvas.
const labels = [...made.values()].filter((e) => "width" in e.style).map((e) => [e.textContent, e.style.width]);
console.log(JSON.stringify({ drawn, told, labels }));
