"""Operations dealt out to stages in every way: what runs gives eager torch's results, and the rest is refused."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.parts import Kept, owner_of, parts_of
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging

MICRO_BATCHES = 2
PIPELINED = tuple(Pass(stage, micro, False) for stage in range(3) for micro in range(MICRO_BATCHES))
ONE_AT_A_TIME = tuple(Pass(stage, micro, False) for micro in range(MICRO_BATCHES) for stage in range(3))


def changed_before(x: Tensor) -> tuple[Tensor, ...]:
    """A value is read, changed in place and read again, by views too; one operation has two results."""
    a = x.sin()
    c = a.cos()
    a.add_(1)
    d = (a.t() * c.t()).exp()
    most, where = torch.max(d, 0)
    return d[1:], a.t(), most, where


def changes_its_argument(x: Tensor) -> tuple[Tensor, ...]:
    """The second change is of a part."""
    y = x * 2
    x.mul_(3)
    y.t()[0].add_(x[0])
    return (y.exp(), y)


def views_of_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()[1:].t()
    z = y[:2] + 1
    return (z * y[:2].square(), y)


FUNCTIONS = (changed_before, changes_its_argument, views_of_views)


def inputs() -> list[Tensor]:
    return list(torch.randn(MICRO_BATCHES, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def dealt(graph: OpGraph, stages: int) -> Iterator[tuple[int, ...]]:
    """Every stage for every operation that is no view, whose stage means nothing."""
    free = [index for index, op in enumerate(graph.ops) if not graph.is_view(op)]
    for number, chosen in enumerate(itertools.product(range(stages), repeat=len(free))):
        stage_of = [number % stages] * len(graph.ops)
        for index, stage in zip(free, chosen, strict=True):
            stage_of[index] = stage
        yield tuple(stage_of)


def is_in_order(graph: OpGraph, stage_of: Sequence[int]) -> bool:
    """Whether no operation is in an earlier stage than one before it with which it shares memory that one changes."""
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
    """The results of each micro-batch; what it changes of its arguments is among them."""
    runner = RoundRunner(step.graph, staging, state, step.num_results, {})
    made: dict[int, list[Tensor]] = {}
    random = [torch.Generator()]
    runner.run(
        [[[x]] for x in given], random,
        on_results=lambda micro, replica, results: made.update({micro: [t.clone() for t in results]}),
    )  # fmt: skip
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
            place = rf"test_parts\.py:\d+ in {function.__name__}: .* in stage [01]"
            with pytest.raises(ValueError, match=rf"Stages feed back: .*{place} .*{place}"):
                parts_of(graph, staging, num_results=step.num_results)
        elif counts[True] % 2 or max(stage_of) == 0:
            found = run(step, staging, {}, inputs())
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        else:
            parts_of(graph, staging, num_results=step.num_results)
    assert min(counts.values()) > 2


class Reads(nn.Module):
    """Reads a buffer before and after it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a = x + self.seen
        self.seen.mul_(2)
        return a, x * self.seen


class ChangesTwice(nn.Module):
    """Changes a buffer twice, reads it between, and another that it only reads."""

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
    """In which stage each operation is that reads or changes a buffer, and whether it changes it, in their order."""
    (buffer,) = (v for given, v in graph.inputs.items() if given.name == name)
    storage = graph.values[buffer].storage
    return [
        (stage_of[index], bool(op.writes))
        for index, op in enumerate(graph.ops)
        if any(graph.values[v].storage == storage for v in op.reads()) and not graph.is_view(op)
    ]


def fate(uses: Sequence[tuple[int, bool]], one_at_a_time: bool) -> str | None:
    """The refusal that the uses of a buffer deserve, or None where it runs."""
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


def test_views_have_the_owner_of_their_memory():
    step = capture_step(views_of_views, bind(views_of_views, inputs()[0]))
    graph = step.graph
    (x,) = graph.inputs.values()
    made = {op.target: op.makes()[0] for op in graph.ops}
    for op in graph.ops:
        for v in op.makes():
            expected = made["aten.exp.default"] if graph.is_view(op) else v
            assert owner_of(graph, v) == expected
    assert owner_of(graph, x) == x


class Averages(nn.Module):
    """Replaces a buffer by what its first layer makes, and its last layer reads the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        a = x.exp()
        old = self.mean
        self.mean = a.mean(0)
        return ((a * self.weight).tanh() - old).sum()


def targets(graph: OpGraph) -> list[str]:
    return [op.target.split(".")[1] for op in graph.ops]


def test_each_part_has_its_operations_and_takes_and_leaves_no_more_than_is_needed():
    model = Averages()
    step = capture_step(model, bind(model, inputs()[0]), trained=["weight"])
    graph = fold_constants(step.graph)
    assert targets(graph) == [
        "exp", "mean", "mul", "tanh", "sub", "sum", "full_like", "expand", "tanh_backward", "mul", "sum", "view",
        "copy_",
    ]  # fmt: skip
    exp, mean, _, tanh, *_ = (op.makes()[0] for op in graph.ops)
    where = {"exp": 0, "mean": 0}
    stage_of = tuple(where.get(name, 1) for name in targets(graph))
    order = tuple(Pass(s, m, b) for s, b in ((0, False), (1, False), (1, True), (0, True)) for m in range(2))
    parts = parts_of(graph, Staging(stage_of=stage_of, order=order), num_results=1, trained=["weight"])
    assert [(part.stage, part.backward) for part in parts] == [(0, False), (1, False), (1, True), (0, True)]
    first, second, back, none = parts
    # What replaces the buffer is copied where it is made, not where the step ends; before that the old one is saved.
    assert [targets(part.graph) for part in parts] == [
        ["exp", "mean", "copy_"],
        ["mul", "tanh", "sub", "sum"],
        ["full_like", "expand", "tanh_backward", "mul", "sum", "view"],
        [],
    ]
    numbers = {given.name: v for given, v in graph.inputs.items()}
    assert first.receives == tuple(map(Kept, graph.inputs_of(Role.ARGUMENT).values()))
    assert first.sends == (exp,)
    assert {kept: given.name for kept, given in first.saves.items()} == {Kept(numbers["mean"], before=True): "mean"}
    assert second.receives == tuple(
        sorted([Kept(exp), Kept(numbers["mean"], before=True)], key=lambda kept: kept.value)
    )
    assert second.sends == (tanh, graph.outputs[0])
    assert set(back.receives) == {Kept(exp), Kept(tanh), Kept(graph.outputs[0])}  # like which its slope is
    assert [part.gradients for part in parts] == [(), (), ("weight",), ()]
    assert [part.sends for part in (back, none)] == [(), ()]
    assert not second.saves
    assert not back.saves
    assert [[str(one) for one in part.graph.inputs if one.name in ("weight", "mean")] for part in parts] == [
        ["buffer:mean"], ["parameter:weight"], [], []
    ]  # fmt: skip
    assert [part.draws for part in parts] == [(), (), (), ()]
    assert mean not in first.sends


def test_what_replaces_a_buffer_moves_to_its_maker_only_where_nothing_reads_it_afterwards():
    model = Averages().requires_grad_(False)
    graph = fold_constants(capture_step(model, bind(model, inputs()[0])).graph)
    assert graph.ops[-1].target == "aten.copy_.default"
    stage_of = tuple(int(name not in ("exp", "mean")) for name in targets(graph))
    first, second = parts_of(graph, Staging(stage_of=stage_of, order=PIPELINED[:4]), num_results=1)
    assert targets(first.graph) == ["exp", "mean", "copy_"]
    assert targets(second.graph) == ["mul", "tanh", "sub", "sum"]

    class CopiesItself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.copy_(x.exp()[0])
            return x.cos() + self.mean

    itself = CopiesItself()
    graph = fold_constants(capture_step(itself, bind(itself, inputs()[0])).graph)
    stage_of = tuple(int(name not in ("exp", "select")) for name in targets(graph))
    first, second = parts_of(graph, Staging(stage_of=stage_of, order=PIPELINED[:4]), num_results=1)
    assert targets(first.graph) == ["exp"]
    assert sorted(targets(second.graph)) == ["add", "copy_", "cos", "select"]


class Doubled(nn.Module):
    """Changes in place what its gradient is worked out from."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.weight
        return h.mul_(2).add_(1).sin()


class TwoDoubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubled(), Doubled()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x)).sum()


def test_a_backward_pass_repeats_what_it_needs_of_its_own_stage_alone():
    model = TwoDoubled()
    step = capture_step(model, bind(model, inputs()[0]), trained=["layers.0.weight", "layers.1.weight"])
    graph = fold_constants(step.graph)
    stage_of = tuple(0 if op.module == "layers.0" else 1 for op in graph.ops)
    order = tuple(Pass(s, m, b) for s, b in ((0, False), (1, False), (1, True), (0, True)) for m in range(2))
    for recompute in (None, Recompute()):
        parts = parts_of(
            graph,
            Staging(stage_of=stage_of, order=order, recompute=recompute),
            num_results=1,
            trained=["layers.0.weight", "layers.1.weight"],
        )
        assert [part.gradients for part in parts] == [(), (), ("layers.1.weight",), ("layers.0.weight",)]
        for part in parts[2:]:
            repeated = [op for op in part.graph.ops if op.phase == "forward"]
            loss = ["sin", "sum"] if part.stage else []  # which its slope is like
            expected = [] if recompute is None else ["mul", "mul_", "add_", *loss]
            assert [op.target.split(".")[1] for op in repeated] == expected
            assert {op.module for op in repeated} <= {f"layers.{part.stage}", ""}


def test_places_are_named_by_module_or_line_or_operation():
    model = TwoDoubled().requires_grad_(False)
    graph = fold_constants(capture_step(model, bind(model, inputs()[0])).graph)
    stage_of = tuple(1 if op.module == "layers.0" else 0 for op in graph.ops)
    backwards = Staging(stage_of=stage_of, order=PIPELINED[:4], names=("tail", "head"))
    message = r"module layers\.1 in stage 0 \(tail\) needs what module layers\.0 in stage 1 \(head\) makes\. Number"
    with pytest.raises(ValueError, match=message):
        parts_of(graph, backwards, num_results=1)
    bare = replace(graph, ops=tuple(replace(op, module="", source="") for op in graph.ops))
    with pytest.raises(ValueError, match=r"aten\.mul\.Tensor in stage 0 \(tail\) needs what aten\.sin\.default in"):
        parts_of(bare, backwards, num_results=1)


class ReadsAfterwards(nn.Module):
    """What it works out meanwhile does not read the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3, dtype=torch.float64))
        self.register_buffer("last", torch.ones(3, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        b = x.exp()
        self.seen.mul_(2)
        y = b.cos()
        self.last = x
        return (y.add_(1) * self.seen).sin()


def test_only_what_is_read_of_a_buffer_counts_and_only_what_is_needed_is_sent():
    model = ReadsAfterwards()
    graph = fold_constants(capture_step(model, bind(model, inputs()[0])).graph)
    assert targets(graph) == ["exp", "mul_", "cos", "add_", "mul", "sin", "copy_"]
    first, second, third = parts_of(
        graph, Staging(stage_of=(1, 0, 1, 2, 2, 2, 2), order=PIPELINED), num_results=1
    )  # fmt: skip
    # An argument is there from the start.
    assert [targets(part.graph) for part in (first, second, third)] == [
        ["mul_", "copy_"], ["exp", "cos"], ["add_", "mul", "sin"]
    ]  # fmt: skip
    cos = graph.ops[2].makes()[0]
    (seen,) = (v for given, v in graph.inputs.items() if given.name == "seen")
    assert (first.sends, second.sends, third.sends) == ((seen,), (cos,), graph.outputs)
    assert set(third.receives) == {Kept(cos), Kept(seen)}


def test_without_backward_passes_all_is_of_the_forward_ones():
    model = TwoDoubled()
    graph = fold_constants(capture_step(model, bind(model, inputs()[0]), trained=["layers.0.weight"]).graph)
    stage_of = tuple(0 if op.module == "layers.0" and op.phase == "forward" else 1 for op in graph.ops)
    parts = parts_of(graph, Staging(stage_of=stage_of, order=PIPELINED[:4]), num_results=len(graph.outputs))
    assert [part.backward for part in parts] == [False, False]
    assert targets(parts[1].graph).count("cos") == 2


def test_a_gradient_that_the_forward_pass_makes_is_finished_by_the_first_backward_pass():
    model = TwoDoubled()
    graph = fold_constants(capture_step(model, bind(model, inputs()[0]), trained=["layers.0.weight"]).graph)
    made = graph.ops[0].makes()[0]
    stage_of = tuple(0 if op.module == "layers.0" else 1 for op in graph.ops)
    order = tuple(Pass(s, m, b) for s, b in ((0, False), (1, False), (1, True), (0, True)) for m in range(2))
    taken = replace(graph, outputs=(graph.outputs[0], made))
    parts = parts_of(taken, Staging(stage_of=stage_of, order=order), num_results=1, trained=["layers.0.weight"])
    assert [part.gradients for part in parts] == [(), (), ("layers.0.weight",), ()]
    assert Kept(made) in parts[2].receives
