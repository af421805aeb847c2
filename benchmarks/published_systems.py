"""Published throughputs of BERT, ResNet-50 and EfficientNet on 16 and 64 Bow IPUs, next to plans without fitting.

The update of a row takes `accumulation` turns of its pipeline and a rest. If a program was published on 16 and on 64
IPUs with different accumulation, the two rows determine turn and rest; the script compares the plan's with them.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from published_models import Bert, EfficientNetB4, Lamb, ResNet50
from torch import nn
from whole_systems import Judged, points, summary
from whole_systems import judged as judged_others

from popgeo import ipu
from popgeo.ipu.report.report import Pipeline

MEDIAN_GATE, WORST_GATE, MEAN_GATE, PART_GATE = 0.10, 0.25, 0.05, 0.15
INSIDE_GATE, WIDTH_GATE = 0.8, 1.5  # share of rows within their own interval; width of the median interval
FLOOR = 1.14  # ratio between two frameworks for the same program
SLIGHTLY_OFF = ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99))  # factors on the seconds of a pair's two updates


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published throughput and its configuration."""

    name: str
    model: Callable[[], nn.Module]
    batch: int
    accumulation: int
    replicas: int
    stages: Mapping[str, int]
    recompute: Any
    proportion: Any
    optimizer: Callable[..., torch.optim.Optimizer]
    off_chip: bool = False
    shard: bool = False
    serialize: Mapping[str, int] = field(default_factory=dict)
    iterations: int = 1
    overlap_host: bool = False
    schedule: str | None = None


@functools.cache  # rows of one model have the same function
def _bert(layers: int, width: int, **sizes: Any) -> Callable[[], nn.Module]:
    return lambda: Bert(layers=layers, width=width, **sizes)


def _cuts(counts: tuple[int, ...], head: int) -> dict[str, int]:
    """Return the IPU of each first layer; the embedding is on the first IPU, the heads are on IPU `head`."""
    begins, layer = {}, 0
    for number, count in enumerate(counts):
        if count and number:
            begins[f"layers.{layer}"] = number
        layer += count
    return begins | ({"head": head} if head != len(counts) - 1 else {})


def _phase_1(name: str, accumulation: int, replicas: int) -> Row:
    return Row(
        name=name, model=_bert(24, 1024, tokens=128, masked=20), batch=8, accumulation=accumulation, replicas=replicas,
        stages=_cuts((3, 7, 7, 7), 0), recompute=[f"layers.{n}" for n in range(24)],
        proportion=(0.15, 0.25, 0.25, 0.25), optimizer=Lamb, off_chip=True, shard=True,
        serialize={"head.decoder": 5},
    )  # fmt: skip


ROWS = (
    _phase_1("bert-l-128-popart-16", 2048, 4),
    _phase_1("bert-l-128-tf1-16", 2050, 4),
    _phase_1("bert-l-128-tf2-16", 2040, 4),
    _phase_1("bert-l-128-popart-64", 512, 16),
    Row(
        name="bert-b-128-popart-16", model=_bert(12, 768, tokens=128, masked=20), batch=32, accumulation=512,
        replicas=4, stages=_cuts((0, 4, 4, 4), 0), recompute=[f"layers.{n}" for n in range(12)],
        proportion=0.28, optimizer=Lamb, off_chip=True, shard=True, serialize={"head.decoder": 5},
    ),
    Row(
        name="bert-l-squad-popart-16", model=_bert(24, 1024, tokens=384, attention_dropout=0.1), batch=4,
        accumulation=32, replicas=2, stages=_cuts((2, 3, 3, 3, 3, 3, 3, 4), 7),
        recompute=[f"layers.{n}" for n in range(24)], proportion=(0.1, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.32),
        optimizer=Lamb, shard=True, iterations=4,
    ),
    Row(
        name="resnet50-tf1-64", model=ResNet50, batch=20, accumulation=2, replicas=64,
        stages=dict.fromkeys(("layer1.1", "layer2.0", "layer2.1", "layer2.3", "layer3.1", "layer3.4"), 0),
        recompute=True, proportion=0.145, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        iterations=100, schedule="PipelineSchedule.Sequential",
    ),
    Row(
        name="effnet-b4-tf1-16", model=EfficientNetB4, batch=3, accumulation=256, replicas=8,
        stages={"blocks.3": 1}, recompute=True, proportion=0.4,
        optimizer=lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9), iterations=10, overlap_host=True,
    ),
)  # fmt: skip


def plan_of(row: Row) -> Pipeline:
    """Return the plan of a published configuration."""
    with torch.device("meta"):
        model = row.model()
    model = model.to(torch.float16)
    options = ipu.Options(
        gradient_accumulation=row.accumulation, replication_factor=row.replicas, device_iterations=row.iterations,
        matmul_proportion=row.proportion, shard_optimizer_state=row.shard, strict=False,
    )  # fmt: skip
    optimizer = row.optimizer(model.parameters())
    example: Any = model.example
    return ipu.pipeline(
        model, example(row.batch), options, optimizer, stages=row.stages, recompute=row.recompute,
        serialize=row.serialize, optimizer_off_chip=row.off_chip, overlap_host=row.overlap_host, schedule=row.schedule,
    )  # fmt: skip


def plans() -> Iterator[tuple[Row, Pipeline]]:
    """Yield each of `ROWS` with its plan; rows that differ only in accumulation and replicas share one capture."""
    last: tuple[Row, Pipeline] | None = None
    for row in ROWS:
        differing: dict[str, Any] = {"name": row.name, "accumulation": row.accumulation, "replicas": row.replicas}
        if last is not None and replace(last[0], **differing) == row:
            again = {"gradient_accumulation": row.accumulation, "replication_factor": row.replicas}
            assert last[1].plan_again is not None
            plan = last[1].plan_again(**again)
        else:
            plan = plan_of(row)
        yield (last := (row, plan))


def turn_and_rest(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Return the seconds of a turn and of the rest of an update, from two accumulations of the same program.

    Args:
        seconds: Seconds of an update, by the number of micro-batches.

    Example:
        >>> turn_and_rest({100: 1.5, 50: 1.0})
        (0.01, 0.5)
    """
    (many, long), (few, short) = sorted(seconds.items(), reverse=True)
    turn = (long - short) / (many - few)
    return turn, long - many * turn


def judged(folder: Path) -> Iterator[Judged]:
    """Yield each of `ROWS` next to its plan."""
    for row, plan in plans():
        (measured,) = points(folder, row.name, "real").values()
        ratio = plan.micro_batches_per_second * row.batch / measured
        yield Judged(name=row.name, ratio=ratio, budget=plan.error_budget)


def intervals(rows: Sequence[Judged]) -> tuple[float, float]:
    """Return the share of rows within their own intervals, and the median of high over low of the intervals."""
    widths = [row.budget.high / row.budget.low for row in rows]
    return sum(row.is_inside for row in rows) / len(rows), median(widths)


def tell(folder: Path) -> None:
    """Print each published row next to its plan, then turn and rest of the pairs."""
    print(f"\n{'BERT, ResNet, EfficientNet':<26}{'IPUs':>5}{'published':>12}{'modelled':>12}{'ratio':>7}", end="")
    print(f"{'turn, ms':>10}{'rest, s':>9}{'memory':>8}  items/s, Bow")
    errors, found, updates = [], [*judged_others(folder)], {}
    start = time.perf_counter()
    for row, plan in plans():
        ((ipus, measured),) = points(folder, row.name, "real").items()
        modelled = plan.micro_batches_per_second * row.batch
        errors.append(modelled / measured - 1)
        found.append(Judged(name=row.name, ratio=modelled / measured, budget=plan.error_budget))
        updates[row.name] = row.accumulation * row.replicas * row.batch / measured, row.accumulation, plan
        turn, rest = _parts(plan)
        print(
            f"{row.name:<26}{ipus:>5}{measured:>12,.0f}{modelled:>12,.0f}{modelled / measured:>7.2f}{turn * 1e3:>10.2f}"
            f"{rest:>9.4f}{max(plan.memory):>8.0%}  expected {plan.error_budget}  ({time.perf_counter() - start:.0f} s)"
        )
        start = time.perf_counter()
    of_all = summary(errors)
    met = of_all["median"] <= MEDIAN_GATE and of_all["largest"] <= WORST_GATE and abs(of_all["mean"]) <= MEAN_GATE
    print(
        f"  median error {of_all['median']:.0%} (goal {MEDIAN_GATE:.0%}), largest {of_all['largest']:.0%} "
        f"(goal {WORST_GATE:.0%}), mean with signs {of_all['mean']:+.1%} (goal {MEAN_GATE:.0%}): "
        f"{'met' if met else 'MISSED'}; the same program differs by {FLOOR} between two frameworks"
    )
    inside, wide = intervals(found)
    met = inside >= INSIDE_GATE and wide <= WIDTH_GATE
    print(
        f"  of {len(found)} published rows {inside:.0%} lie in the interval of their report (goal {INSIDE_GATE:.0%}); "
        f"the median interval is {wide:.2f} wide (goal {WIDTH_GATE}): {'met' if met else 'MISSED'}"
    )
    first, second = (updates[f"bert-l-128-popart-{ipus}"] for ipus in (16, 64))
    turn, rest = turn_and_rest({count: seconds for seconds, count, _ in (first, second)})
    rest -= (len(first[2].turns) - first[1]) * turn  # filling and draining the pipeline
    for name, published, modelled in zip(("turn", "rest"), (turn, rest), _parts(first[2]), strict=True):
        verdict = "met" if abs(modelled / published - 1) <= PART_GATE else "MISSED"
        print(f"  {name} of BERT-Large in PopART: {published:.4f} s published, {modelled:.4f} s modelled, {verdict}")
    moved = [turn_and_rest({first[1]: first[0] * a, second[1]: second[0] * b})[1] for a, b in SLIGHTLY_OFF]
    print(
        f"  the published rest moves by {(max(moved) - min(moved)) / 2:.3f} s if a throughput is 1 % off, and "
        f"assumes the same rest on both machines; the plan has {_parts(first[2])[1]:.3f} and "
        f"{_parts(second[2])[1]:.3f} s"
    )


def _parts(plan: Pipeline) -> tuple[float, float]:
    """Return the seconds of a turn (of a micro-batch if micro-batches do not overlap) and of the rest."""
    clock, rest = plan.target.clock, max(plan.update)
    whole = max((turn.end - turn.start for turn in plan.turns), default=(plan.cycles - rest) / plan.micro_batches)
    return whole / clock, rest / clock
