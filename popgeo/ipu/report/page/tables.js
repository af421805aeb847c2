/* ---- tables: click a heading to sort, type to keep the rows that hold all words ---- */
const FORMATS = {
  cycles: (x) => number(x),
  share: percent,
  balance: percent,
  percent,
  count: (x) => number(x),
  bytes,
  flops: (x) => number(x / 1e6, 2),
  one: (x) => number(x, 1),
};
function makeTable(rows, columns, about, chosen) {
  const box = document.createElement("div"),
    table = document.createElement("table"),
    tools = document.createElement("div");
  const filter = document.createElement("input"),
    found = document.createElement("span");
  const head = table.createTHead().insertRow(),
    body = table.createTBody(),
    limit = 300;
  let key = columns.find((c) => c.format === "cycles" && c.key !== "start").key,
    ascending = false;
  filter.placeholder = "filter: words that a row must hold";
  tools.className = "tools";
  box.className = "scroll";
  found.className = "soft";
  tools.append(filter, found);
  const texts = rows.map((row) => Object.values(row).join(" ").toLowerCase());
  for (const column of columns) {
    const th = document.createElement("th");
    th.textContent = column.name;
    th.title = about[column.key] + (column.format === "cycles" ? ", in cycles" : "");
    th.tabIndex = 0;
    if (!column.format) th.className = "words";
    const sort = () => {
      ascending = key === column.key ? !ascending : !column.format;
      key = column.key;
      fill();
    };
    th.onclick = sort;
    th.onkeydown = (event) => {
      if (event.key === "Enter") sort();
    };
    head.append(th);
  }
  function fill() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((_, i) => words.every((word) => texts[i].includes(word)));
    kept.sort(
      (a, b) =>
        (ascending ? 1 : -1) *
        (typeof a[key] === "number"
          ? a[key] - b[key]
          : String(a[key]).localeCompare(String(b[key]), "en", { numeric: true })),
    );
    found.textContent = `${kept.length} rows` + (kept.length > limit ? `, the first ${limit} shown` : "");
    [...head.children].forEach((th, i) =>
      columns[i].key === key
        ? th.setAttribute("aria-sort", ascending ? "ascending" : "descending")
        : th.removeAttribute("aria-sort"),
    );
    body.replaceChildren(
      ...kept.slice(0, limit).map((row) => {
        const tr = document.createElement("tr");
        if (chosen) {
          tr.className = "link";
          tr.tabIndex = 0;
          tr.onclick = () => chosen(row);
          tr.onkeydown = (event) => {
            if (event.key === "Enter") chosen(row);
          };
        }
        for (const { key: k, format } of columns) {
          const td = tr.insertCell(),
            value = row[k];
          if (format === "share" && value > 0) {
            const part = document.createElement("span");
            part.className = "part";
            part.style.width = 60 * Math.min(1, value) + "px";
            td.append(part);
          }
          td.append(format ? FORMATS[format](value) : String(value));
          if (!format) {
            td.className = "words";
            td.title = String(value);
          }
        }
        return tr;
      }),
    );
  }
  filter.oninput = fill;
  box.append(table);
  fill();
  return [tools, box];
}
const cycles = { key: "cycles", name: "cycles", format: "cycles" },
  share = { key: "share", name: "share", format: "share" };
const activities = ["compute", "exchange", "sync"].map((key) => ({ key, name: key, format: "cycles" }));
const trust = { key: "trust", name: "figures are" },
  balance = { key: "balance", name: "balance", format: "balance" };
/* ---- one operation: its plan and what each of its supersteps costs ---- */
function explain(op) {
  const place = document.getElementById("plan"),
    title = document.createElement("h2"),
    facts = document.createElement("p"),
    table = document.createElement("table");
  title.textContent = `${op.op} ${op.shapes}, ${op.phase}${op.module ? " in " + op.module : ""}`;
  facts.className = "soft";
  facts.textContent = [
    `${number(op.cycles)} cycles in ${number(op.count)} ${op.count === 1 ? "run" : "runs"}`,
    op.split && `plan: ${op.split}, the best of ${number(op.considered)}`,
    `figures are ${op.trust}${op.why ? ": " + op.why : ""}`,
    op.source,
  ]
    .filter(Boolean)
    .join(" · ");
  const columns = [
    ["step", "superstep"],
    ["activity", "activity"],
    ["calibrated", "calibrated", number],
    ["ideal", "ideal", number],
    ["tiles", "tiles", number],
    ["workers", "workers", FORMATS.one],
    ["balance", "balance", percent],
    ["bytes_in", "most in", bytes],
    ["bytes_total", "all bytes", bytes],
  ];
  const silent = { workers: "compute", balance: "compute", bytes_in: "exchange", bytes_total: "exchange" }; // says nothing of other activities
  const fill = (row, tag, texts) =>
    texts.forEach((text, i) => {
      const cell = document.createElement(tag);
      cell.textContent = text;
      if (!columns[i][2]) cell.className = "words";
      row.append(cell);
    });
  fill(
    table.createTHead().insertRow(),
    "th",
    columns.map((column) => column[1]),
  );
  [...table.tHead.rows[0].cells].forEach((th, i) => (th.title = report.about.supersteps[columns[i][0]]));
  const body = table.createTBody();
  for (const step of report.supersteps.filter((step) => step.op_index === op.index))
    fill(
      body.insertRow(),
      "td",
      columns.map(([key, , format]) =>
        !format ? step[key] : silent[key] && silent[key] !== step.activity ? "" : format(step[key]),
      ),
    );
  place.replaceChildren(title, facts, table);
  place.scrollIntoView({ block: "nearest", behavior: "smooth" });
}
const TABLES = {
  operations: [
    report.ops,
    [
      { key: "index", name: "#", format: "count" },
      { key: "op", name: "operation" },
      { key: "module", name: "module" },
      { key: "phase", name: "phase" },
      cycles,
      share,
      ...activities,
      { key: "fixed", name: "fixed", format: "cycles" },
      balance,
      { key: "tiles", name: "tiles", format: "count" },
      { key: "workers", name: "workers", format: "one" },
      { key: "traffic", name: "traffic", format: "bytes" },
      { key: "flops", name: "MFLOP", format: "flops" },
      { key: "split", name: "plan" },
      { key: "considered", name: "plans compared", format: "count" },
      { key: "shapes", name: "shapes" },
      trust,
      { key: "ideal", name: "ideal cycles", format: "cycles" },
      { key: "why", name: "why" },
      { key: "source", name: "line of the model" },
    ],
    report.about.ops,
    explain,
  ],
  families: [
    report.families,
    [
      { key: "family", name: "family" },
      { key: "ops", name: "operations", format: "count" },
      cycles,
      share,
      ...activities,
      { key: "fixed", name: "fixed", format: "cycles" },
      balance,
      { key: "traffic", name: "traffic", format: "bytes" },
      { key: "flops", name: "MFLOP", format: "flops" },
      { key: "ideal", name: "ideal cycles", format: "cycles" },
      { key: "validated", name: "validated", format: "percent" },
    ],
    report.about.families,
  ],
  modules: [
    report.modules,
    [
      { key: "module", name: "module" },
      { key: "ops", name: "operations", format: "count" },
      cycles,
      share,
      { key: "own", name: "own", format: "cycles" },
      ...["forward", "backward", "update"].map((key) => ({ key, name: key, format: "cycles" })),
    ],
    report.about.modules,
  ],
  supersteps: [
    report.supersteps,
    [
      { key: "op", name: "operation" },
      { key: "module", name: "module" },
      { key: "step", name: "superstep" },
      { key: "activity", name: "activity" },
      { key: "start", name: "start", format: "cycles" },
      { ...cycles, key: "length" },
      balance,
      { key: "tiles", name: "tiles", format: "count" },
      { key: "workers", name: "workers", format: "one" },
      { key: "bytes_in", name: "most in", format: "bytes" },
      { key: "bytes_out", name: "most out", format: "bytes" },
      { key: "bytes_total", name: "all bytes", format: "bytes" },
      { key: "fragments", name: "fragments", format: "count" },
    ],
    report.about.supersteps,
  ],
};
{
  const buttons = document.getElementById("which"),
    place = document.getElementById("table"),
    made = {};
  const show = (name) => {
    made[name] = made[name] || makeTable(...TABLES[name]);
    place.replaceChildren(...made[name]);
    [...buttons.children].forEach((button) => button.classList.toggle("on", button.textContent === name));
  };
  for (const name of Object.keys(TABLES)) {
    const button = document.createElement("button");
    button.textContent = name;
    button.onclick = () => show(name);
    buttons.append(button);
  }
  show("operations");
}
