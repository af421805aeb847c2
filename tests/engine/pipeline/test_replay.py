"""Operations that may run twice, draw random numbers or belong to the backward pass, worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.control_flow import for_loop
from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.capture.passes import fold_constants
from popgeo.engine.pipeline.cut_parts import parts_of
from popgeo.engine.pipeline.random_draws import drawing_from, draws, draws_ahead, uncounted
from popgeo.engine.pipeline.replay import leaving, replayable
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging, phase_of


def graph_of(function: Callable, *given: Tensor) -> OpGraph:
    return fold_constants(capture_step(function, bind(function, *given)).graph)


def names(graph: OpGraph, chosen: set[int]) -> list[str]:
    return [graph.ops[index].target.split(".")[1] for index in sorted(chosen)]


def again(function: Callable, *given: Tensor, own: Callable[[int], bool] = lambda index: True) -> list[str]:
    graph = graph_of(function, *given)
    return names(graph, replayable(graph, [i for i in range(len(graph.ops)) if own(i)], Recompute()))


X = torch.ones(3, 3)


def test_what_draws_or_prints_is_not_repeated():
    assert again(lambda x: (x.exp() + torch.rand_like(x)).cos(), X) == ["exp", "add", "cos"]
    assert again(lambda x: ipu.print_tensor(x.exp(), "x").cos(), X) == ["exp", "cos"]
    looped = again(lambda x: for_loop(2, lambda y: ipu.print_tensor(y, "y") + 1, [x.exp()])[0].cos(), X)
    assert looped == ["exp", "cos"]
    assert again(lambda x: for_loop(2, lambda y: y + 1, [x.exp()])[0].cos(), X) == ["exp", "for_loop", "cos"]


def test_what_is_changed_in_place_is_repeated_only_together():
    def changes(x: Tensor) -> Tensor:
        y = x.exp()
        return y.add_(1).mul_(x).cos() + x.sin()

    assert again(changes, X) == ["exp", "add_", "mul_", "cos", "sin", "add"]
    # Without one of those that change it, none that touches it is; what reads another's result is.
    assert again(changes, X, own=lambda index: index != 2) == ["sin", "add"]
    assert again(changes, X, own=lambda index: index != 0) == ["sin", "add"]

    assert again(lambda x: x.exp().add_(1), X) == ["exp", "add_"]

    def changes_a_row(x: Tensor) -> Tensor:
        y = x.exp()
        y[0].add_(1)
        return y.cos()

    graph = graph_of(changes_a_row, X)
    own = [index for index, one in enumerate(graph.ops) if not graph.is_view(one)]
    assert names(graph, replayable(graph, own, Recompute())) == ["exp", "add_", "cos"]

    def changes_with_chance(x: Tensor) -> Tensor:
        y = x.exp()
        z = y.sin()
        y.add_(z)
        y.bernoulli_(0.5)
        return y.cos() * z

    assert again(changes_with_chance, X) == ["mul"]


def test_what_reads_an_argument_that_changes_is_not_repeated():
    def changes(x: Tensor, y: Tensor) -> Tensor:
        z = x.exp()
        x.add_(1)
        return z * y.exp()

    assert again(changes, X, X.clone()) == ["exp", "mul"]


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).t()
        return x.exp()


def test_results_that_leave_a_kept_layer_are_not_made_twice():
    model = Layered().requires_grad_(False)
    graph = graph_of(model, X)
    plain = [(op.module, op.target.split(".")[1]) for op in graph.ops if not graph.is_view(op)]
    assert plain == [
        *((f"layers.{number}.{part}", name) for number in range(3) for part, name in ((0, "addmm"), (1, "tanh"))),
        ("", "exp"),
    ]

    def left(*layers: str) -> list[str]:
        return [graph.ops[index].module for index in sorted(leaving(graph, Recompute(layers=layers)))]

    assert left() == []
    assert left("layers.1") == ["layers.1.1"]
    assert left("layers.0", "layers.1", "layers.2") == ["layers.0.1", "layers.1.1", "layers.2.1"]
    assert left("layers") == ["layers.2.1"]
    assert left("layers.0.0", "layers.2") == ["layers.0.0", "layers.2.1"]
    assert left("layers.10", "layer") == []
    everything = range(len(graph.ops))
    kept = names(graph, replayable(graph, everything, Recompute(layers=("layers.1",))))
    assert kept.count("tanh") == 2
    assert kept.count("addmm") == 3


def test_only_results_of_the_forward_pass_that_it_reads_itself_leave_a_layer():
    model = Layered()
    step = capture_step(Summed(model), bind(Summed(model), X), trained=["model.layers.2.0.bias"])
    graph = fold_constants(step.graph)
    left = leaving(graph, Recompute(layers=("model.layers.0.0", "model.layers.2.1")))
    assert [graph.ops[index].module for index in sorted(left)] == ["model.layers.0.0", "model.layers.2.1"]
    assert all(graph.ops[index].phase == "forward" for index in left)
    assert leaving(graph, Recompute(layers=("nothing",))) == set()


class Summed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).sum()


def op(target: str, reads: tuple[int, ...] = (), makes: tuple[int, ...] = (), writes=(), phase: str = "backward") -> Op:
    return Op(target=target, args=tuple(map(Ref, reads)), outputs=makes, writes=writes, phase=phase)


def test_what_replaces_a_buffer_belongs_to_the_forward_pass_unless_it_depends_on_a_gradient():
    """Values 0 and 1 are buffers, and 2 is the loss; the capture puts later operations into the backward pass."""
    ops = [
        op("aten.exp.default", (0,), (2,), phase="forward"),
        op("aten.full_like.default", (2,), (3,)),
        op("aten.mul.Tensor", (3, 2), (4,)),
        op("aten.mul.Tensor", (2,), (5,)),  # half of the new mean
        op("aten.add.Tensor", (5,), (6,)),
        op("aten.copy_.default", (0, 6), (0,), (0,)),
        op("aten.copy_.default", (1, 4), (1,), (1,)),  # a gradient that is kept
        op("aten.cos.default", (2,), (7,)),  # which nobody puts into a buffer
    ]

    def found(ops: list[Op]) -> list[bool]:
        return phase_of(ops, lambda one: not {0, 1}.isdisjoint(one.writes))

    assert found(ops) == [False, True, True, False, False, False, True, True]
    # Where a gradient is added to the new mean before, all of that is of the backward pass.
    added = op("aten.add_.Tensor", (6, 4), (6,), (6,))
    assert found([*ops[:5], added, *ops[5:]]) == [False, *[True] * 8]
    assert found(ops[:2]) == [False, True]
    assert phase_of(ops, lambda one: False) == [False, *[True] * 7]


def test_a_staging_knows_its_micro_batches_and_whether_they_overlap():
    first = [Pass(0, 0, False), Pass(1, 0, False), Pass(1, 0, True), Pass(0, 0, True)]
    second = [one._replace(micro_batch=1) for one in first]
    alone = Staging(stage_of=(0, 1), order=(*first, *second), names=("embed to h.0",))
    assert (alone.micro_batches, alone.one_at_a_time, alone.recompute) == (2, True, None)
    mixed = Staging(stage_of=(0, 1), order=(first[0], second[0], *first[1:], *second[1:]))
    assert (mixed.micro_batches, mixed.one_at_a_time) == (2, False)
    assert [alone.name(0), alone.name(1), mixed.name(0)] == ["stage 0 (embed to h.0)", "stage 1", "stage 0"]


def test_layers_are_kept_by_their_whole_names():
    again = Recompute(layers=("layers.3", "head"))
    kept = [again.keeps(name) for name in ("layers.3", "layers.3.0.linear", "layers.30", "layers", "head", "", "heads")]
    assert kept == ["layers.3", "layers.3", "", "", "head", "", ""]
    assert Recompute().keeps("layers.3") == ""


@pytest.mark.parametrize(
    ("target", "draws_any", "by_data"),
    [
        ("aten.native_dropout.default", True, False),
        ("aten.randperm.default", True, False),
        ("aten.poisson.default", True, True),
        ("aten.multinomial.default", True, True),
        ("aten.exp.default", False, False),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", False, False),
    ],
)
def test_operations_that_draw_are_known_and_whether_shapes_say_how_much(target: str, draws_any: bool, by_data: bool):
    assert draws(op(target)) is draws_any
    assert uncounted(op(target)) is by_data


def test_a_loop_draws_as_its_body_does_and_nobody_counts_it():
    chance = graph_of(lambda x: for_loop(2, lambda y: y + torch.rand_like(y), [x])[0], X)
    plain = graph_of(lambda x: for_loop(2, lambda y: y + 1, [x])[0], X)
    assert [(draws(one), uncounted(one)) for one in (*chance.ops, *plain.ops)] == [(True, True), (False, False)]


def test_a_generator_takes_the_place_of_torch_s_own_even_when_something_fails():
    source, twin = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    drawn = []

    def draw(fails: bool) -> None:
        drawn.append(torch.rand(2))
        if fails:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        drawing_from(source, draw, True)
    assert torch.equal(source.get_state(), twin.get_state())  # what failed draws the same again
    drawing_from(source, draw, False)
    expected = torch.rand(2, generator=twin)
    assert all(torch.equal(one, expected) for one in drawn)
    assert torch.equal(source.get_state(), twin.get_state())
    assert torch.equal(torch.get_rng_state(), before)


def test_states_ahead_are_those_of_one_micro_batch_after_the_other():
    def noisy(x: Tensor) -> Tensor:
        y = x + torch.rand_like(x)
        y = y.exp()
        y = y * torch.randn_like(y)[:, :2].sum()
        return nn.functional.dropout(y, 0.5, training=True)

    graph = graph_of(noisy, X)
    exp = next(index for index, one in enumerate(graph.ops) if one.target == "aten.exp.default")
    last = max(index for index, one in enumerate(graph.ops) if draws(one))
    stage_of = tuple((index >= exp) + (index >= last) for index in range(len(graph.ops)))
    order = tuple(Pass(stage, micro, False) for stage in range(3) for micro in range(2))
    parts = parts_of(graph, Staging(stage_of=stage_of, order=order), num_results=1)
    assert [len(part.draws) for part in parts] == [1, 1, 1]
    source, twin = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    global_before, expected = torch.get_rng_state(), {}
    before, after = draws_ahead(graph, parts, source, micro_batches=2)
    for micro_batch in range(2):
        for stage in range(3):
            expected[micro_batch, stage, False] = twin.get_state()
            if stage < 2:
                (torch.rand, torch.randn)[stage]((3, 3), generator=twin)
            else:
                torch.empty(3, 3).bernoulli_(0.5, generator=twin)
    assert before.keys() == expected.keys()
    for key, state in expected.items():
        assert torch.equal(before[key], state)
    assert torch.equal(after, twin.get_state())
    assert torch.equal(source.get_state(), torch.Generator().manual_seed(3).get_state())
    assert torch.equal(torch.get_rng_state(), global_before)
