"""The figures of a report as rows: per operation, superstep, module and family."""

from collections.abc import Iterable, Sequence
from typing import Any

from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Superstep, Validity
from popgeo.ipu.report.report import Report
from popgeo.ipu.target import IpuTarget

Row = dict[str, Any]
OPTIMIZER, HOST = "(optimizer)", "(host)"  # in the place of a module, for what no module asked for
_TRUST = list(Validity)


def op_rows(report: Report) -> list[Row]:
    """One row for each operation, in order; cycles are those of the whole step."""
    total = sum(n for activity, n in report.cycles_by_activity.items() if activity is not Activity.HOST) or 1.0
    return [{"index": index, **_op_row(cost, report, total)} for index, cost in enumerate(report.costs)]


def _op_row(cost: OpCost, report: Report, total: float) -> Row:
    steps, n = cost.plan.supersteps, cost.count
    cycles = n * cost.plan.cycles(report.profile)
    return {
        "op": short_name(cost.target),
        "family": cost.plan.family,
        "phase": cost.phase,
        "module": module_of(cost),
        "cycles": cycles,
        "share": 0.0 if cost.phase == "host" else cycles / total,
        "count": n,
        **{a.value: n * sum(s.cycles(report.profile) for s in steps if s.activity is a) for a in Activity},
        "fixed": n * sum(fixed_cycles(s, report.target, report.profile) for s in steps),
        "ideal": n * cost.plan.cycles(Profile.IDEAL),
        "calibrated": n * cost.plan.cycles(Profile.CALIBRATED),
        "balance": balance(steps),
        "tiles": max((s.tiles for s in steps if s.activity is Activity.COMPUTE), default=0),
        "workers": max((s.workers for s in steps), default=0.0),
        "traffic": n * sum(s.bytes_total for s in steps if s.activity is not Activity.HOST),
        "flops": n * cost.plan.flops,
        "temporary_bytes": cost.plan.temporary_bytes,
        "split": _split(cost.plan),
        "considered": cost.plan.considered,
        "shapes": cost.shapes,
        "trust": cost.plan.validity.value,
        "known": cost.known,
        "why": cost.plan.why,
        "source": cost.source,
        "target": cost.target,
    }


def _split(plan: Plan) -> str:
    """Into how many parts a plan cuts each dimension, in words."""
    if plan.parts and not plan.split:
        return "; ".join(f"{part.family}: {_split(part)}" for part in plan.parts if _split(part))
    return " x ".join(f"{name} {parts}" for name, parts in plan.split.items())


def superstep_rows(report: Report) -> list[Row]:
    """One row for each superstep of one micro-batch and its update; `start` and `length` are those of one run."""
    rows, start = [], 0.0
    for index, cost in enumerate(report.costs):
        for step in cost.plan.supersteps:
            length = step.cycles(report.profile)
            beside = step.activity is Activity.HOST
            rows.append(
                {
                    "op_index": index,
                    "op": short_name(cost.target),
                    "module": module_of(cost),
                    "phase": cost.phase,
                    "step": step.name,
                    "activity": step.activity.value,
                    "start": start,
                    "length": length,
                    "cycles": cost.count * length,
                    "ideal": step.ideal,
                    "calibrated": step.calibrated,
                    "balance": balance([step]),
                    "tiles": step.tiles,
                    "workers": step.workers,
                    "bytes_in": step.bytes_in,
                    "bytes_out": step.bytes_out,
                    "bytes_total": step.bytes_total,
                    "fragments": step.fragments,
                }
            )
            start += 0 if beside else length
    return rows


def module_rows(report: Report) -> list[Row]:
    """One row for each module, what its submodules ask for included; `own` is what it asks for itself."""
    rows: dict[str, Row] = {}
    for op in op_rows(report):
        if op["phase"] == "host":
            continue
        name = op["module"]
        parts = name.split(".")
        paths = {"", *(".".join(parts[: i + 1]) for i in range(len(parts)))} if name else {""}
        for path in sorted(paths):
            row = rows.setdefault(
                path, {"module": path or "(model)", "cycles": 0.0, "share": 0.0, "own": 0.0, "ops": 0}
                | dict.fromkeys(("forward", "backward", "update"), 0.0)
            )  # fmt: skip
            row["cycles"] += op["cycles"]
            row["share"] += op["share"]
            row["own"] += op["cycles"] if path == name else 0.0
            row["ops"] += op["count"]
            row["update" if op["phase"] == "accumulate" else op["phase"]] += op["cycles"]
    return sorted(rows.values(), key=lambda row: -row["cycles"])


def family_rows(report: Report) -> list[Row]:
    """One row for each family of operations, the dearest first."""
    rows: dict[str, Row] = {}
    ops = op_rows(report)
    for op in ops:
        row = rows.setdefault(op["family"], _grouped([o for o in ops if o["family"] == op["family"]]))
        row["family"] = op["family"]
    return [{"family": row.pop("family"), **row} for row in sorted(rows.values(), key=lambda row: -row["cycles"])]


def group_rows(report: Report) -> list[Row]:
    """One row for each block of the model, as a page has room for: `interactions.0`, not all that lies in it."""
    ops = [op for op in op_rows(report) if op["phase"] != "host"]
    names = group_names([op["module"] for op in ops])
    groups = {name: _grouped([op for op, its in zip(ops, names, strict=True) if its == name]) for name in names}
    return sorted(({"module": name, **row} for name, row in groups.items()), key=lambda row: -row["cycles"])


def group_names(modules: Sequence[str]) -> list[str]:
    """The block of each module: what all have in common is left out, then one name and one number are kept.

    Example:
        >>> group_names(["net.layers.0.mlp.2", "net.layers.1", "net.head"])
        ['layers.0', 'layers.1', 'head']
    """
    paths = [module.split(".") for module in modules if module and not module.startswith("(")]
    common = 0
    while paths and all(len(path) > common and path[common] == paths[0][common] for path in paths):
        common += 1
    return [_group(module, common) for module in modules]


def _group(module: str, common: int) -> str:
    if module.startswith("("):
        return module
    parts = module.split(".")[common:]
    kept = parts[:2] if len(parts) > 1 and parts[1].isdigit() else parts[:1]
    return ".".join(kept) or "(model)"


def _grouped(ops: Sequence[Row]) -> Row:
    """What several operations cost together; `trust` is that of the least trusted, `validated` a part of the cycles."""
    summed = ("cycles", "share", "compute", "exchange", "sync", "host", "fixed", "ideal", "calibrated", "traffic")
    return {
        "ops": sum(op["count"] for op in ops),
        **{key: sum(op[key] for op in ops) for key in (*summed, "flops")},
        "balance": _mean([op["balance"] for op in ops], [op["compute"] for op in ops]),
        "validated": _mean(
            [float(op["trust"] == Validity.VALIDATED.value) for op in ops], [op["cycles"] for op in ops]
        ),
        "trust": max((op["trust"] for op in ops), key=lambda trust: _TRUST.index(Validity(trust))),
    }


def fixed_cycles(step: Superstep, target: IpuTarget, profile: Profile) -> float:
    """Cycles of a superstep that no smaller tensor would save: synchronisation, and the start of a compute set."""
    cycles = step.cycles(profile)
    limit = {Activity.EXCHANGE: target.sync_cycles, Activity.COMPUTE: target.launch_cycles, Activity.HOST: 0}
    return min(cycles, limit.get(step.activity, cycles))


def balance(steps: Iterable[Superstep]) -> float:
    """Mean over the slowest tile's work in the compute steps; 1 where every tile has the same."""
    work = [step for step in steps if step.activity is Activity.COMPUTE]
    slowest = sum(step.ideal for step in work)
    return sum(step.mean for step in work) / slowest if slowest else 1.0


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 1.0


def module_of(cost: OpCost) -> str:
    """The module that asked for an operation, or what stands in its place."""
    return {"update": OPTIMIZER, "accumulate": OPTIMIZER, "host": HOST}.get(cost.phase, cost.module)


def short_name(target: str) -> str:
    """The name that people use.

    Example:
        >>> short_name("aten.index_select.default"), short_name("popgeo.cfconv.default")
        ('index_select', 'cfconv')
    """
    return target.split(".")[1]
