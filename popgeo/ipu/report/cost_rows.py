"""The figures of a report as rows per operation, superstep, module, block and family, each computed once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Superstep, Validity
from popgeo.ipu.target import IpuTarget

Row = Mapping[str, Any]  # read-only, so that all forms of a report can share it
OPTIMIZER, HOST = "(optimizer)", "(host)"  # in place of a module, for operations that no module called
_TRUST = list(Validity)
# Attributes of an operation, of its plan and of a superstep that a row copies.
_OF_OPERATION = ("family", "phase", "shapes", "known", "source", "target")
_OF_PLAN = ("temporary_bytes", "considered", "why")
_AS_PLANNED = ("ideal", "calibrated", "tiles", "workers", "bytes_in", "bytes_out", "bytes_total", "fragments")


@dataclass(frozen=True, kw_only=True)
class CostRows:
    """The rows behind each table of a report; `columns.csv` explains their columns.

    Attributes:
        costs: Every operation of a step, in order.
        target: The machine.
        profile: Kind of cycles.
    """

    costs: tuple[OpCost, ...]
    target: IpuTarget
    profile: Profile

    @cached_property
    def ops(self) -> tuple[Row, ...]:
        """One row per operation, in order; its cycles are the sum over all runs of a step."""
        cycles = activity_cycles(self.costs, self.profile)
        total = sum(n for activity, n in cycles.items() if activity is not Activity.HOST) or 1.0
        rows = (_op_row(cost, self.target, self.profile, total) for cost in self.costs)
        return _read_only({"index": index, **row} for index, row in enumerate(rows))

    @cached_property
    def supersteps(self) -> tuple[Row, ...]:
        """One row per superstep of one micro-batch and its update; `start` and `length` are for one run."""
        rows, start = list[dict[str, Any]](), 0.0
        for index, cost in enumerate(self.costs):
            for step in cost.plan.supersteps:
                length = step.cycles(self.profile)
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
                        "balance": balance([step]),
                        **{name: getattr(step, name) for name in _AS_PLANNED},
                    }
                )
                start += 0 if step.activity is Activity.HOST else length  # the host runs at the same time
        return _read_only(rows)

    @cached_property
    def modules(self) -> tuple[Row, ...]:
        """One row per module, submodules included; `own` excludes submodules."""
        rows: dict[str, dict[str, Any]] = {}
        for op in self.ops:
            if op["phase"] == "host":
                continue
            name = op["module"]
            parts = name.split(".") if name else []
            for path in (".".join(parts[:end]) for end in range(len(parts) + 1)):
                row = rows.setdefault(
                    path, {"module": path or "(model)", "cycles": 0.0, "share": 0.0, "own": 0.0, "ops": 0}
                    | dict.fromkeys(("forward", "backward", "update"), 0.0)
                )  # fmt: skip
                row["cycles"] += op["cycles"]
                row["share"] += op["share"]
                row["own"] += op["cycles"] if path == name else 0.0
                row["ops"] += op["count"]
                row["update" if op["phase"] == "accumulate" else op["phase"]] += op["cycles"]
        return _most_expensive_first(rows.values())

    @cached_property
    def blocks(self) -> tuple[Row, ...]:
        """One row per block of the model, such as `interactions.0`, but not one per submodule."""
        ops = [op for op in self.ops if op["phase"] != "host"]
        return _rows_by_name("module", ops, block_names([op["module"] for op in ops]))

    @cached_property
    def families(self) -> tuple[Row, ...]:
        """One row per family of operations, the most expensive first."""
        return _rows_by_name("family", self.ops, [op["family"] for op in self.ops])


def activity_cycles(costs: Iterable[OpCost], profile: Profile) -> dict[Activity, float]:
    """Return the cycles of one step for each activity of the slowest tile."""
    cycles = dict.fromkeys(Activity, 0.0)
    for cost in costs:
        for superstep in cost.plan.supersteps:
            cycles[superstep.activity] += cost.count * superstep.cycles(profile)
    return cycles


def _op_row(cost: OpCost, target: IpuTarget, profile: Profile, total: float) -> dict[str, Any]:
    steps, n = cost.plan.supersteps, cost.count
    cycles = n * cost.plan.cycles(profile)
    return {
        "op": short_name(cost.target),
        "module": module_of(cost),
        **{name: getattr(cost, name) for name in _OF_OPERATION},
        **{name: getattr(cost.plan, name) for name in _OF_PLAN},
        "cycles": cycles,
        "share": 0.0 if cost.phase == "host" else cycles / total,
        "count": n,
        **{a.value: n * sum(s.cycles(profile) for s in steps if s.activity is a) for a in Activity},
        "fixed": n * sum(fixed_cycles(s, target, profile) for s in steps),
        "ideal": n * cost.plan.cycles(Profile.IDEAL),
        "calibrated": n * cost.plan.cycles(Profile.CALIBRATED),
        "balance": balance(steps),
        "tiles": max((s.tiles for s in steps if s.activity is Activity.COMPUTE), default=0),
        "workers": max((s.workers for s in steps), default=0.0),
        "traffic": n * sum(s.bytes_total for s in steps if s.activity is not Activity.HOST),
        "flops": n * cost.flops,
        "split": _split(cost.plan),
        "trust": cost.plan.validity.value,
    }


def _split(plan: Plan) -> str:
    """Return the plan's number of parts along each dimension as text."""
    if plan.parts and not plan.split:
        return "; ".join(f"{part.family}: {_split(part)}" for part in plan.parts if _split(part))
    return " x ".join(f"{name} {parts}" for name, parts in plan.split.items())


def block_names(modules: Sequence[str]) -> list[str]:
    """Return the block of each module: after the common prefix, one name and one number.

    Example:
        >>> block_names(["net.layers.0.mlp.2", "net.layers.1", "net.head"])
        ['layers.0', 'layers.1', 'head']
    """
    paths = [module.split(".") for module in modules if module and not module.startswith("(")]
    common = sum(1 for _ in takewhile(lambda names: len({*names}) == 1, zip(*paths, strict=False)))
    return [_block(module, common) for module in modules]


def _block(module: str, common: int) -> str:
    if module.startswith("("):
        return module
    parts = module.split(".")[common:]
    kept = parts[:2] if len(parts) > 1 and parts[1].isdigit() else parts[:1]
    return ".".join(kept) or "(model)"


def _rows_by_name(key: str, ops: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """Return one row per name with the total cost of its operations, the most expensive first."""
    groups: dict[str, list[Row]] = {}
    for op, name in zip(ops, names, strict=True):
        groups.setdefault(name, []).append(op)
    return _most_expensive_first({key: name, **_total_row(its)} for name, its in groups.items())


def _total_row(ops: Sequence[Row]) -> dict[str, Any]:
    """Return the total cost of several operations, with the lowest trust and the validated share of the cycles."""
    summed = ("cycles", "share", "compute", "exchange", "sync", "host", "fixed", "ideal", "calibrated", "traffic")
    return {
        "ops": sum(op["count"] for op in ops),
        **{key: sum(op[key] for op in ops) for key in (*summed, "flops")},
        "balance": _mean((op["balance"], op["compute"]) for op in ops),
        "validated": _mean((float(op["trust"] == Validity.VALIDATED), op["cycles"]) for op in ops),
        "trust": max((op["trust"] for op in ops), key=_TRUST.index),
    }


def _most_expensive_first(rows: Iterable[dict[str, Any]]) -> tuple[Row, ...]:
    return _read_only(sorted(rows, key=lambda row: -row["cycles"]))


def _read_only(rows: Iterable[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(map(MappingProxyType, rows))


def fixed_cycles(step: Superstep, target: IpuTarget, profile: Profile) -> float:
    """Return the cycles of a superstep that no smaller tensor saves: synchronisation and compute-set starts."""
    cycles = step.cycles(profile)
    limit = {Activity.EXCHANGE: target.sync_cycles, Activity.COMPUTE: target.launch_cycles, Activity.HOST: 0}
    return min(cycles, limit.get(step.activity, cycles))


def balance(steps: Iterable[Superstep]) -> float:
    """Return the mean tile's work over the slowest tile's work in the compute steps; 1 without compute steps."""
    work = [step for step in steps if step.activity is Activity.COMPUTE]
    slowest = sum(step.ideal for step in work)
    return sum(step.mean for step in work) / slowest if slowest else 1.0


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the weighted mean of (value, weight) pairs; 1 if no weight is above 0."""
    pairs = list(weighted)
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else 1.0


def module_of(cost: OpCost) -> str:
    """Return the module that called an operation, or `(optimizer)` or `(host)`."""
    return {"update": OPTIMIZER, "accumulate": OPTIMIZER, "host": HOST}.get(cost.phase, cost.module)


def short_name(target: str) -> str:
    """Return the short name of an operation.

    Example:
        >>> short_name("aten.index_select.default"), short_name("popgeo.cfconv.default")
        ('index_select', 'cfconv')
    """
    return target.split(".")[1]


def shorten_start(name: str, width: int) -> str:
    """Shorten a name to a width by cutting its start."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]
