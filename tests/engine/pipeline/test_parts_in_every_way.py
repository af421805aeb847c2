"""Every assignment of operations to stages either gives eager PyTorch's results or is refused."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import OpGraph
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.cut_parts import parts_of
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import Pass, Staging
from tests.support.parts import MICRO_BATCHES, PIPELINED, inputs, views_of_views

ONE_AT_A_TIME = tuple(Pass(stage, micro, False) for micro in range(MICRO_BATCHES) for stage in range(3))


def changed_before(x: Tensor) -> tuple[Tensor, ...]:
    """Read a value, change it in place and read it again, also by views; one operation has two results."""
    a = x.sin()
    c = a.cos()
    a.add_(1)
    d = (a.t() * c.t()).exp()
    most, where = torch.max(d, 0)
    return d[1:], a.t(), most, where


def changes_its_argument(x: Tensor) -> tuple[Tensor, ...]:
    """Change an argument in place, the second time only a part of it."""
    y = x * 2
    x.mul_(3)
    y.t()[0].add_(x[0])
    return (y.exp(), y)


FUNCTIONS = (changed_before, changes_its_argument, views_of_views)


def dealt(graph: OpGraph, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield every assignment of operations to stages; the stages of views do not matter."""
    free = [index for index, op in enumerate(graph.ops) if not graph.is_view(op)]
    for number, chosen in enumerate(itertools.product(range(stages), repeat=len(free))):
        stage_of = [number % stages] * len(graph.ops)
        for index, stage in zip(free, chosen, strict=True):
            stage_of[index] = stage
        yield tuple(stage_of)


def is_in_order(graph: OpGraph, stage_of: Sequence[int]) -> bool:
    """Return whether operations that share changed memory are in stages of the same order."""
    touched = []
    for index, op in enumerate(graph.ops):
        if graph.is_view(op):
            continue
        made = {graph.values[v].storage for v in (*op.makes(), *op.writes)}
        touched.append((stage_of[index], made, {graph.values[v].storage for v in op.reads()} | made))
    return all(
        one[0] <= other[0] or not (one[1] & other[2] or one[2] & other[1])
        for one, other in itertools.combinations(touched, 2)
    )


def run(step, staging: Staging, state, given: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the results of each micro-batch, with the arguments that it changes."""
    runner = RoundRunner(step.graph, staging, state, step.num_results, {})
    made: dict[int, list[Tensor]] = {}
    runner.run(
        [[[x]] for x in given],
        [torch.Generator()],
        on_results=lambda micro, replica, results: made.update({micro: [t.clone() for t in results]}),
    )
    return [made[micro] for micro in range(MICRO_BATCHES)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_in_order_runs_and_what_is_not_is_refused(function: Callable):
    step = capture_step(function, bind(function, inputs()[0]))
    expected = []
    for x in inputs():
        given = x.clone()
        results = function(given)
        expected.append([*results, *([given] if step.written else [])])
    graph, counts = fold_constants(step.graph), {True: 0, False: 0}
    for stage_of in dealt(graph, 2):
        fits = is_in_order(graph, stage_of)
        counts[fits] += 1
        order = tuple(one for one in PIPELINED if one.stage <= max(stage_of))
        staging = Staging(stage_of=stage_of, order=order)
        if not fits:
            place = rf"\w+\.py:\d+ in {function.__name__}: .* in stage [01]"
            with pytest.raises(ValueError, match=rf"Stages feed back: .*{place} .*{place}"):
                parts_of(graph, staging, num_results=step.num_results)
        elif counts[True] % 2 or max(stage_of) == 0:
            found = run(step, staging, {}, inputs())
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        else:
            parts_of(graph, staging, num_results=step.num_results)
    assert min(counts.values()) > 2


class Reads(nn.Module):
    """A model that reads a buffer before and after it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a = x + self.seen
        self.seen.mul_(2)
        return a, x * self.seen


class ChangesTwice(nn.Module):
    """A model that changes a buffer twice and reads it in between, and only reads another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, dtype=torch.float64))
        self.register_buffer("fixed", torch.full((3,), 2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.seen.add_(x[0])
        a = x * self.seen[0]
        self.seen.mul_(self.fixed)
        return (a.cos() * self.fixed,)


def stages_of_buffer(graph: OpGraph, stage_of: Sequence[int], name: str) -> list[tuple[int, bool]]:
    """Return the stage of each operation that touches a buffer, in order, and whether it changes the buffer."""
    (buffer,) = (v for given, v in graph.inputs.items() if given.name == name)
    storage = graph.values[buffer].storage
    return [
        (stage_of[index], bool(op.writes))
        for index, op in enumerate(graph.ops)
        if any(graph.values[v].storage == storage for v in op.reads()) and not graph.is_view(op)
    ]


def fate(uses: Sequence[tuple[int, bool]], one_at_a_time: bool) -> str | None:
    """Return the expected message for these uses of a buffer, or None if the step runs."""
    writers = {stage for stage, writes in uses if writes}
    for reader in {stage for stage, _ in uses} - (writers if len(writers) == 1 else set()):
        if len(writers) > 1 or reader < min(writers):
            if not one_at_a_time:
                return "Stages feed back: .* reads seen, which .* changes for the next micro-batch"
            continue
        at = [number for number, (stage, _) in enumerate(uses) if stage == reader]
        changes = [number for number, (_, writes) in enumerate(uses) if writes]
        if not (max(at) < min(changes) or min(at) > max(changes)):
            return "reads seen both before and after another stage changes it. Put the two in one stage"
    return None


@pytest.mark.parametrize("kind", [Reads, ChangesTwice])
@pytest.mark.parametrize("order", [PIPELINED, ONE_AT_A_TIME])
def test_buffers_are_read_as_they_were_for_each_micro_batch_or_refused(kind: type[nn.Module], order):
    model, twin = kind(), kind()
    step = capture_step(model, bind(model, inputs()[0]))
    expected = [[*twin(x.clone())] for x in inputs()]
    graph, fates = fold_constants(step.graph), []
    for stage_of in dealt(graph, 3):
        if max(stage_of) != 2 or not is_in_order_but_for_state(graph, stage_of):
            continue
        staging = Staging(stage_of=stage_of, order=order)
        uses = stages_of_buffer(graph, stage_of, "seen")
        refusal = fate(uses, order is ONE_AT_A_TIME)
        fates.append(refusal)
        if refusal is not None:
            with pytest.raises(ValueError, match=refusal):
                parts_of(graph, staging, num_results=step.num_results)
            continue
        backwards = any(one > other for (one, a), (other, b) in itertools.combinations(uses, 2) if a or b)
        if backwards and order is ONE_AT_A_TIME and min(s for s, w in uses) < min(s for s, w in uses if w):
            continue  # no cut of a model gives an operation to an earlier stage than one before it
        if backwards and len({stage for stage, writes in uses if writes}) > 1:
            continue
        model.load_state_dict(kind().state_dict())
        found = run(step, staging, module_state(model), inputs())
        torch.testing.assert_close([made[: len(expected[0])] for made in found], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-12, atol=1e-12)
    assert None in fates
    assert len(set(fates)) > 1


def is_in_order_but_for_state(graph: OpGraph, stage_of: Sequence[int]) -> bool:
    held = {graph.values[v].storage for given, v in graph.inputs.items() if given.name in ("seen", "fixed")}
    maker: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if graph.is_view(op):
            continue
        read = {graph.values[v].storage for v in op.reads()} - held
        if any(stage_of[maker[storage]] > stage_of[index] for storage in read if storage in maker):
            return False
        maker |= {graph.values[v].storage: index for v in op.makes()}
    return True
