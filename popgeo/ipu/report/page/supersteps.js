/* ---- the timeline of a step: supersteps in time, one lane for each activity, blocks of the model above ---- */
{
  const steps = report.supersteps.filter((step) => step.activity !== "host"),
    LANES = ["block", "compute", "exchange", "sync"];
  const end = steps.length ? steps.at(-1).start + steps.at(-1).length : 1;
  const blocks = [];
  for (const step of steps) {
    const last = blocks.at(-1);
    if (last && last.name === step.block && last.phase === step.phase) last.end = step.start + step.length;
    else blocks.push({ name: step.block, phase: step.phase, start: step.start, end: step.start + step.length });
  }
  const hue = Object.fromEntries(
    [...new Set(blocks.map((b) => b.name))].map((name, i) => [name, HUES[i % HUES.length]]),
  );
  timeline({
    lanes: LANES,
    height: 42,
    end,
    first: end,
    draw(box) {
      for (const { name, phase, start, end } of blocks)
        box(0, start, end, hue[name], [`${name} ${phase}`, name, name.replace(/^.*\.(?=[^.]*[^.\d])/, "")], {
          ink: "#14181d",
          alpha: phase === "forward" ? 1 : 0.7,
        });
      for (const { activity, start, length, op } of steps)
        box(LANES.indexOf(activity), start, start + length, style("--" + activity), [op]);
    },
    tell(at, lane) {
      const step = steps.find((s) => at >= s.start && at < s.start + s.length);
      if (!step || (lane !== 0 && LANES[lane] !== step.activity)) return "";
      const op = report.ops[step.op_index];
      return (
        `${step.op}: ${step.step} (${step.activity})\n${step.module || "(model)"}, ${step.phase}\n${number(step.length)} cycles, ${micros(step.length)}\n${op.shapes}\n` +
        (step.activity === "compute"
          ? `${number(step.tiles)} tiles, balance ${percent(step.balance)}`
          : `all tiles ${bytes(step.bytes_total)}, most into one ${bytes(step.bytes_in)}`) +
        (op.split ? `\nplan: ${op.split}` : "")
      );
    },
  });
}
