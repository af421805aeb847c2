"""Programs on tiles do what the plans of their operations say: supersteps, bytes exchanged, cycles of vertices."""

import importlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu, ops
from popgeo.capture.control_flow import for_loop
from popgeo.capture.operations import OPERATIONS, UNKNOWN
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Activity, OpCost, Plan
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import Repeat
from tests.support.program_figures import Done, figures
from tests.support.schedule import schedule

TARGET = replace(IpuTarget.bow(), num_tiles=64)
FEWER = replace(TARGET, num_tiles=32)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The allowed differences between the programs and the plans of a family, with the reasons.

    Attributes:
        planned_only: Steps of a plan without a compute set in the program.
        run_only: Compute sets without a step in the plan.
        bytes: Least and most bytes that the fullest tile receives, as shares of the planned bytes.
        cycles: Least and most cycles of the busiest tile, as shares of the planned cycles. Default: equal.
        why: The reasons.
    """

    planned_only: frozenset[str] = frozenset()
    run_only: frozenset[str] = frozenset()
    bytes: tuple[float, float] = (0.95, 1.0)
    cycles: tuple[float, float] = (1.0, 1.0)
    why: str = ""


FOLLOWED = {
    "gather": Agreement(),
    "scatter": Agreement(
        planned_only=frozenset({"fill"}),
        run_only=frozenset({"add"}),
        cycles=(0.5, 1.0),
        why="A vertex starts from zeros of its own, so nothing is filled before. A further compute set adds the sums "
        "of parts to the table; the plan counts it with the sum of the parts.",
    ),
    "matmul": Agreement(
        planned_only=frozenset({"lay out both matrices"}),
        bytes=(0.95, 2.0),
        why="A vertex reads its operands without blocks. A sum may be on a tile that made none of its parts, and then "
        "receives all of them: both instead of one, 8 instead of 7. Sizes are multiples of the matrix unit's blocks: "
        "for other sizes the plan cuts between blocks, the program evenly.",
    ),
    "elementwise": Agreement(),
    "movement": Agreement(),
    "reduce": Agreement(
        run_only=frozenset({"combine partial results, groups", "combine partial results"}),
        bytes=(0.0, 2.0),
        cycles=(0.1, 1.0),
        why="The layout of results is linear with at least 128 bytes per tile, so few tiles combine them, after many "
        "tiles combined groups; the plan combines them at once if that is faster.",
    ),
    "fused": Agreement(
        planned_only=frozenset({"fill", "multiply"}),
        cycles=(0.5, 1.0),
        why="As of a scatter-add; the vertices that add rows also multiply them by the filters.",
    ),
    "collectives": Agreement(
        bytes=(0.0, math.inf),
        why="The plan assumes that all shards lie alike, so that none moves; here they are parts of one tensor.",
    ),
}  # fmt: skip
WHOLE = {
    "norms": "a tile has whole rows or channels, and torch's operation does all passes over them at once",
    "attention": "a tile has whole heads; their products and softmax are one operation of torch",
    "convolution": "a tile has whole samples instead of positions and channels",
    "pooling": "a tile has whole samples, and there may be fewer samples than tiles",
    "distances": "a tile has rows of the first set and all rows of the second, without a matrix product",
    "sorting": "a tile sorts whole rows, without comparisons and swaps between tiles",
}
APART = {
    "losses": "they run on one tile",
    "control": "the operations of its bodies belong to other families",
    "view": "a view needs no step",
}

ROWS, COLUMNS = torch.randn(512, 96), torch.randn(96, 512)
MANY, FEW = torch.randint(0, 512, (2000,)), torch.arange(512) % 40
CASES: dict[str, list[tuple[Callable[..., Tensor], Sequence[Tensor]]]] = {
    "gather": [
        (lambda x, index: x.index_select(0, index), (ROWS, MANY)),
        (lambda x, index: x.index_select(0, index), (torch.randn(4096, 8), torch.randint(0, 4096, (64,)))),
    ],
    "scatter": [
        (lambda x, index: ops.scatter(x, index, dim=0, dim_size=40), (ROWS, FEW)),
        (lambda x, index: torch.zeros(40, 96).index_add(0, index, x), (ROWS, FEW)),
    ],
    "matmul": [
        (torch.mm, (ROWS, COLUMNS)),
        (torch.mm, (torch.randn(64, 256), torch.randn(256, 64))),
        (torch.mm, (torch.randn(128, 48), torch.randn(48, 80))),
    ],
    "elementwise": [
        (torch.add, (ROWS, torch.randn(512, 96))),
        (torch.add, (ROWS, torch.randn(96))),
        (torch.exp, (ROWS[0],)),
    ],
    "movement": [(lambda x: x.flip(0), (ROWS,)), (torch.zeros_like, (ROWS,)), (torch.zeros_like, (ROWS[:1],))],
    "reduce": [(torch.sum, (ROWS,)), (lambda x: x.sum(0), (ROWS,)), (lambda x: x.sum(1), (ROWS,))],
    "fused": [
        (lambda x, w, src, dst: ops.cfconv(x, w, src, dst, 512), (ROWS, torch.randn(2000, 96), MANY, MANY.flip(0)))
    ],
    "collectives": [(lambda x: ops.all_reduce(x, 2), (torch.randn(2, 256, 96),))],
}
DIVIDED: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
    "norms": (lambda x: x.softmax(1), (ROWS,)),
    "attention": (nn.functional.scaled_dot_product_attention, [torch.randn(8, 8, 16, 4)] * 3),
    "convolution": (nn.functional.conv2d, (torch.randn(64, 2, 8, 8), torch.randn(3, 2, 3, 3))),
    "pooling": (lambda x: nn.functional.avg_pool2d(x, 2), (torch.randn(64, 4, 8, 8),)),
    "distances": (torch.cdist, (ROWS, ROWS)),
    "sorting": (lambda x: x.sort(1).values, (ROWS,)),
}


def planned_and_run(
    function: Callable[..., Any], inputs: Sequence[Tensor], family: str, target: IpuTarget = TARGET
) -> tuple[OpCost, list[Done], Program]:
    """Return the cost of the only operation of a family, its compute sets, and the whole program."""
    graph = ipu.compile(function, list(inputs), target=target).graph
    costs = cost(graph, target)
    (planned,) = (one for one in costs if one.family == family)
    program = schedule(graph, costs, target)
    own = f"forward {planned.target.partition('.')[2]}"
    kept = [step for step in program.steps if own in getattr(step, "name", own)]
    return planned, figures(replace(program, steps=tuple(kept)), target), program


@dataclass(kw_only=True)
class Stage:
    """A planned compute set, with the exchanges before it."""

    name: str
    cycles: float
    bytes_in: int = field(default=0)


def stages_of(plan: Plan, without: Collection[str] = ()) -> list[Stage]:
    """Return the compute steps of a plan except some, without launch cycles, with the exchanges before each."""
    found, nbytes = [], 0
    for step in plan.supersteps:
        if step.activity is Activity.EXCHANGE:
            nbytes += step.bytes_in
        elif step.activity is Activity.COMPUTE and step.name not in without:
            found.append(Stage(name=step.name, cycles=step.ideal - TARGET.launch_cycles, bytes_in=nbytes))
            nbytes = 0
    return found


def differences(planned: OpCost, done: Sequence[Done], agreement: Agreement) -> list[str]:
    """Return a sentence for each difference between a program and its plan that the agreement does not allow."""
    stages = stages_of(planned.plan, agreement.planned_only)
    # A single compute set has the operation's name; several compute sets are named after their work.
    names = [one.name or stages[0].name for one in done]
    names = ["add" if name == "add shards" else name for name in names]
    found = []
    for one, name in zip(done, names, strict=True):
        if stages and name == stages[0].name:
            stage = stages.pop(0)
            found += _beyond(f"{name}: cycles", one.cycles, stage.cycles, agreement.cycles)
            found += _beyond(f"{name}: bytes", one.bytes_in, stage.bytes_in, agreement.bytes)
        elif name not in agreement.run_only:
            found.append(f"{name} runs, but is not planned")
    return found + [f"{stage.name} is planned, but does not run" for stage in stages]


def _beyond(what: str, run: float | None, planned: float, limits: tuple[float, float]) -> list[str]:
    low, high = limits
    fits = run is not None and low * planned <= run and (high == math.inf or run <= high * planned)
    return [] if fits else [f"{what} {run}, planned {planned}"]


@pytest.mark.parametrize(("family", "number"), [(family, n) for family in CASES for n in range(len(CASES[family]))])
def test_a_program_does_what_the_plan_says(family: str, number: int):
    function, inputs = CASES[family][number]
    planned, done, _ = planned_and_run(function, inputs, family)
    assert differences(planned, done, FOLLOWED[family]) == []
    stages = stages_of(planned.plan, FOLLOWED[family].planned_only)
    assert 0.5 <= sum(one.cycles or 0 for one in done) / sum(stage.cycles for stage in stages) <= 2


@pytest.mark.parametrize("family", DIVIDED)
def test_what_torch_computes_whole_is_at_work_on_all_planned_tiles_in_no_more_steps(family: str):
    function, inputs = DIVIDED[family]
    planned, done, program = planned_and_run(function, inputs, family, FEWER)
    assert len(done) <= max(2, len(stages_of(planned.plan))), WHOLE[family]
    assert done[0].tiles == FEWER.num_tiles == max(step.tiles for step in planned.plan.supersteps)
    assert program.fallbacks == ()


def test_every_family_is_compared_or_stands_apart_for_a_reason():
    assert {row.family for row in OPERATIONS.values()} - {UNKNOWN} == {*FOLLOWED, *WHOLE, *APART}
    assert (CASES.keys(), DIVIDED.keys()) == (FOLLOWED.keys(), WHOLE.keys())


def test_a_fallback_is_one_vertex_on_one_tile():
    _, done, program = planned_and_run(nn.functional.mse_loss, (ROWS, ROWS.flip(0)), "losses")
    assert program.fallbacks == ("aten.mse_loss.default",)
    assert done[0].tiles == 1


def test_a_loop_is_planned_and_run_as_often_as_it_turns():
    planned, _, program = planned_and_run(lambda x: for_loop(3, lambda y: y + x, [x])[0], (ROWS,), "control")
    (once,) = cost(ipu.compile(lambda x: x + x, [ROWS], target=TARGET).graph, TARGET)
    by_name = {step.name: step.ideal for step in planned.plan.supersteps}
    assert by_name["add"] == 3 * once.plan.supersteps[-1].ideal
    (loop,) = (step for step in program.steps if isinstance(step, Repeat))
    assert (loop.count, [step.name for step in loop.body].count("forward add.Tensor")) == (3, 1)


@pytest.mark.parametrize(
    ("family", "module", "name", "broken", "told"),
    [
        ("gather", "popgeo.ipu.tiles.lower.gather", "row_cuts_of", "coarser", "slice rows: cycles"),
        ("scatter", "popgeo.ipu.tiles.lower.scatter", "row_cuts_of", "coarser", "update rows: cycles"),
        ("matmul", "popgeo.ipu.tiles.lower.matmul", "cuts", "uneven", "multiply: cycles"),
    ],
)
def test_the_comparison_sees_a_lowering_that_divides_otherwise(family, module, name, broken, told, monkeypatch):
    file = importlib.import_module(module)
    right = getattr(file, name)

    def coarser(*sizes):
        rows, columns, lookups = right(*sizes)
        return rows, columns, [slice(0, lookups[-1].stop)]

    def uneven(size, parts):
        return right(size, max(1, parts // 2))

    monkeypatch.setattr(file, name, {"coarser": coarser, "uneven": uneven}[broken])
    function, inputs = CASES[family][0]
    planned, done, _ = planned_and_run(function, inputs, family)
    assert any(difference.startswith(told) for difference in differences(planned, done, FOLLOWED[family]))
