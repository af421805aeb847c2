"""The operations of each part of a cut step, and the values that it receives and sends, worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.op_graph import OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.cut_parts import parts_of
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging, StashedValue, owner_of
from tests.support.parts import PIPELINED, inputs, views_of_views


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
    """A model that replaces a buffer by the result of its first layer; its last layer reads the old buffer."""

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
    # What replaces the buffer is copied if it is made, not where the step ends; before that the old one is saved.
    assert [targets(part.graph) for part in parts] == [
        ["exp", "mean", "copy_"],
        ["mul", "tanh", "sub", "sum"],
        ["full_like", "expand", "tanh_backward", "mul", "sum", "view"],
        [],
    ]
    numbers = {given.name: v for given, v in graph.inputs.items()}
    assert first.receives == tuple(map(StashedValue, graph.inputs_of(Role.ARGUMENT).values()))
    assert first.sends == (exp,)
    assert {kept: given.name for kept, given in first.saves.items()} == {
        StashedValue(numbers["mean"], before=True): "mean"
    }
    assert second.receives == tuple(
        sorted([StashedValue(exp), StashedValue(numbers["mean"], before=True)], key=lambda kept: kept.value)
    )
    assert second.sends == (tanh, graph.outputs[0])
    assert set(back.receives) == {
        StashedValue(exp),
        StashedValue(tanh),
        StashedValue(graph.outputs[0]),
    }  # like which its slope is
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
    """A model that changes in place a value that its gradient needs."""

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
    for recompute in (None, Recompute(), Recompute(last_stage=True)):
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
            repeats = recompute is not None and (recompute.last_stage or not part.stage)
            expected = ["mul", "mul_", "add_", *loss] if repeats else []
            assert [op.target.split(".")[1] for op in repeated] == expected
            assert {op.module for op in repeated} <= {f"layers.{part.stage}", ""}


def test_places_are_named_by_module_or_line_or_operation():
    model = TwoDoubled().requires_grad_(False)
    graph = fold_constants(capture_step(model, bind(model, inputs()[0])).graph)
    stage_of = tuple(1 if op.module == "layers.0" else 0 for op in graph.ops)
    backwards = Staging(stage_of=stage_of, order=PIPELINED[:4], names=("tail", "head"))
    message = r"module layers\.1 in stage 0 \(tail\) needs a result of module layers\.0 in stage 1 \(head\)\. Number"
    with pytest.raises(ValueError, match=message):
        parts_of(graph, backwards, num_results=1)
    bare = replace(graph, ops=tuple(replace(op, module="", source="") for op in graph.ops))
    with pytest.raises(
        ValueError, match=r"aten\.mul\.Tensor in stage 0 \(tail\) needs a result of aten\.sin\.default in"
    ):
        parts_of(bare, backwards, num_results=1)


class ReadsAfterwards(nn.Module):
    """A model with an operation between two changes of buffers that reads neither buffer."""

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
    assert set(third.receives) == {StashedValue(cos), StashedValue(seen)}


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
    assert StashedValue(made) in parts[2].receives
