/* ---- the timeline of a step in stages: a lane for each IPU, passes by the number of the micro-batch, grey waits ---- */
{
  const NAMED = new Set(["forward", "backward", "update"]),
    lanes = Array.from({ length: report.num_ipus }, (_, ipu) => `IPU ${ipu}`);
  timeline({
    lanes,
    height: lanes.length <= 16 ? 26 : 18,
    end: report.end,
    first: report.first,
    draw(box) {
      lanes.forEach((_, ipu) => box(ipu, 0, report.end, style("--wait")));
      for (const { kind, ipu, micro_batch, start, end } of report.spans)
        box(ipu, start, end, style("--" + kind), NAMED.has(kind) ? [`${micro_batch ?? kind}`] : []);
    },
    tell(at, lane) {
      const span = report.spans.find((one) => one.ipu === lane && at >= one.start && at < one.end);
      if (!span) return lane >= 0 && lane < lanes.length ? "wait for other IPUs" : "";
      const of = span.micro_batch === null ? "" : ` of micro-batch ${span.micro_batch}, stage ${span.stage}`,
        cycles = span.end - span.start;
      return `${span.kind}${of}\n${number(cycles)} cycles, ${micros(cycles)}`;
    },
  });
}
