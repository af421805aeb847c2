"""Each operation is recorded once, with the values that it reads, makes and changes."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role
from popgeo.capture.recorder import Recorder
from popgeo.ipu import compile as popgeo_compile


def record(function, *inputs: Tensor, **options) -> OpGraph:
    """Return the graph of a function on real tensors."""
    recorder = Recorder(record.__code__, lambda problem: None, **options)
    recorder.page.add_inputs({Input(Role.ARGUMENT, f"{number}"): tensor for number, tensor in enumerate(inputs)})
    with recorder:
        results = function(*inputs)
    return recorder.page.graph(results)


def reads(op: Op) -> tuple[int, ...]:
    return tuple(op.reads())


def test_operations_stand_in_order_with_their_operands_and_results():
    c = torch.tensor([1.0, 2.0])
    graph = record(lambda x, y: [(x * c).exp() + y], torch.ones(2), torch.zeros(2))
    assert [(op.target, reads(op), op.outputs) for op in graph.ops] == [
        ("aten.mul.Tensor", (0, 2), (3,)),
        ("aten.exp.default", (3,), (4,)),
        ("aten.add.Tensor", (4, 1), (5,)),
    ]
    assert graph.outputs == (5,)
    assert graph.constants[2] is not c  # detached, in the same memory
    assert graph.constants[2].data_ptr() == c.data_ptr()


def test_a_view_shares_the_storage_and_a_copy_has_its_own():
    graph = record(lambda x: [x[1:], x.t(), x.clone()], torch.zeros(2, 3))
    x, row, flipped, copy = (graph.values[v] for v in (0, *graph.outputs))
    assert (row.storage, row.offset, row.shape) == (x.storage, 3, (1, 3))
    assert (flipped.storage, flipped.stride) == (x.storage, (1, 3))
    assert copy.storage != x.storage


def test_what_an_operation_changes_in_place_keeps_its_number():
    def function(x: Tensor) -> list[Tensor]:
        y = x.exp()
        y.mul_(3)
        torch.add(y, 1, out=y)
        return [y]

    graph = record(function, torch.zeros(2))
    assert [(op.target.split(".")[1], op.outputs, op.writes) for op in graph.ops] == [
        ("exp", (1,), ()),
        ("mul_", (1,), (1,)),
        ("add", (1,), (1,)),
    ]
    assert graph.outputs == (1,)


def test_running_statistics_are_changed_in_training_although_the_schema_does_not_say_so():
    def norm(training: bool):
        return lambda x, m, v: [torch.nn.functional.batch_norm(x, m, v, training=training)]

    inputs = torch.randn(4, 2), torch.zeros(2), torch.ones(2)
    assert {v for op in record(norm(True), *inputs).ops for v in op.writes} == {1, 2}
    assert {v for op in record(norm(False), *inputs).ops for v in op.writes} == set()


def test_a_view_in_place_changes_no_element_and_gives_the_tensor_another_value():
    def function(x: Tensor) -> list[Tensor]:
        y = x.exp()
        y.t_()
        return [y]

    graph = record(function, torch.zeros(2, 3))
    transposed = graph.ops[-1]
    assert (transposed.target, reads(transposed), transposed.writes) == ("aten.t.default", (1,), ())
    assert graph.values[graph.outputs[0]].shape == (3, 2)


def test_tensors_in_lists_are_references_too():
    graph = record(lambda x, y: [torch.cat([y, x, y])], torch.zeros(2), torch.zeros(3))
    assert graph.ops[0].args[0] == [Ref(1), Ref(0), Ref(1)]


def test_the_number_of_a_freed_tensor_is_not_given_to_the_next_one():
    def function(x: Tensor) -> list[Tensor]:
        for _ in range(20):
            x = x + torch.full((2,), 1.0)  # freed at once; the next would get its address and its id
        return [x]

    graph = record(function, torch.zeros(2))
    made = [v for op in graph.ops for v in op.outputs]
    assert len(set(made)) == len(made) >= 40


def test_a_change_of_what_is_no_input_is_refused_unless_it_may_be_lost():
    stray = torch.zeros(2)
    with pytest.raises(ValueError, match="neither parameter, buffer nor result"):
        record(lambda x: [stray.add_(x)], torch.ones(2))
    assert len(record(lambda x: [stray.add_(x)], torch.ones(2), keeps_state=False).ops) == 1


def test_a_tensor_without_a_fixed_layout_is_refused():
    with pytest.raises(ValueError, match="has no fixed layout"):
        record(lambda x: [x.to_sparse()], torch.ones(2, 2))


def test_submodules_are_followed_and_left_even_when_they_fail():
    class Fails(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError

    class Tries(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.linear = Fails(), torch.nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except RuntimeError:
                return self.linear(x).exp()

    model = Tries()
    graph = capture(model, bind(model.forward, torch.ones(3, 2))).graph
    assert [op.module for op in graph.ops] == ["linear", "linear", ""]


def test_the_backward_pass_has_the_places_of_the_forward_operations():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y.exp().sum()

    model = Model()
    graph = capture(model, bind(model.forward, torch.ones(3, 2)), trained=["linear.weight", "linear.bias"]).graph
    backward = {op.target.split(".")[1]: op for op in graph.ops if op.phase == "backward"}
    assert (backward["mm"].module, backward["mm"].source[-18:]) == ("linear", "y = self.linear(x)")
    assert (backward["mul"].module, backward["mul"].source[-20:]) == ("", "return y.exp().sum()")


def test_each_view_in_place_runs_as_the_view_that_it_is():
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        y.transpose_(0, 2).unsqueeze_(0).squeeze_(0).as_strided_((3, 2), (1, 3)).detach_()
        return y + y.shape[0]

    x = torch.randn(2, 1, 3)
    assert torch.equal(popgeo_compile(function, [x])(x), function(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x * 2).resize_(2),
        lambda x: (x * 2).set_(x * 3),
        lambda x: torch.add(x, 1, out=torch.empty(0)),
        lambda x: x.view(2, 2).exp().sum() if x.unsqueeze_(0) is None else x,
    ],
)
def test_another_shape_or_memory_in_place_is_refused_where_it_could_not_be_followed(change):
    with pytest.raises(ValueError, match=r"another shape or other memory.*new tensor"):
        popgeo_compile(change, [torch.ones(4)])


def test_a_number_of_a_tensor_from_outside_is_part_of_the_graph():
    factor = torch.tensor(3.0)
    graph = capture(lambda x: x * factor.item(), bind(lambda x: x, torch.ones(2))).graph
    assert [op.args[1] for op in graph.ops] == [3.0]


@pytest.mark.parametrize("name", ["weight", "count"])
def test_an_assignment_to_data_is_refused_as_its_value_would_be_lost(name):
    class Assigns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("count", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            state = getattr(self, name)
            state.data = state.data * 0.5
            return x * state

    with pytest.raises(ValueError, match=f"gives {name} another shape or other memory"):
        popgeo_compile(Assigns(), [torch.ones(2)])


LIBRARY = torch.library.Library("popgeo_test_aliases", "DEF")
for _name, _same in {"itself": lambda x: x, "its_memory": lambda x: x.view_as(x), "a_part": lambda x: x[1:]}.items():
    LIBRARY.define(f"{_name}(Tensor x) -> Tensor")
    LIBRARY.impl(_name, _same, "CompositeExplicitAutograd")


@pytest.mark.parametrize("name", ["itself", "its_memory", "a_part"])
def test_a_result_in_the_memory_of_its_argument_is_a_view_whatever_its_schema_says(name: str):
    function = getattr(torch.ops.popgeo_test_aliases, name)

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.relu()
        same = function(h)
        doubled = 2 * same
        h.add_(1)
        return torch.cat([same, doubled, h]), same

    x = torch.randn(5, 3)
    for made, expected in zip(popgeo_compile(twice, (x,))(x), twice(x), strict=True):
        assert torch.equal(made, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.dropout(x, 0.5, False),
        lambda x: torch.feature_dropout(x, 0.5, False),
        lambda x: torch.alpha_dropout(x, 0.5, False),
        lambda x: torch.rrelu(x, training=False),
        lambda x: x.contiguous(),
        lambda x: x.to(x.dtype),
        lambda x: x.sum_to_size(x.shape),
        lambda x: x.reshape(x.shape),
        lambda x: torch.nn.functional.linear(x, x),
        lambda x: torch.einsum("ij,kj->ik", x, x),
    ],
)
def test_tensors_made_in_inference_mode_are_captured_by_the_operations_that_run(function):
    with torch.inference_mode():
        held, x = torch.randn(5, 5), torch.randn(5, 5)

    def model(x: Tensor) -> Tensor:
        h = function(held + 0 * x)
        return torch.cat([h, 2 * h])

    for inside in (torch.inference_mode, torch.no_grad):
        with inside():
            assert torch.allclose(popgeo_compile(model, (x,))(x), model(x))
    targets = {op.target for op in popgeo_compile(lambda x: function(held), (x,)).graph.ops}
    assert not targets & {"aten.dropout.default", "aten.linear.default", "aten.reshape.default", "aten.einsum.default"}


MIXED = {
    "huber_loss": functional.huber_loss,
    "soft_margin_loss": functional.soft_margin_loss,
    "smooth_l1_loss": functional.smooth_l1_loss,
    "normal": lambda x, y: torch.normal(x, y.abs()),
    "addr": lambda x, y: torch.addr(x[:, None], y, y),
    "addr of a number": lambda x, y: torch.addr(x[0], y, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "copysign": torch.copysign,
    "in place": lambda x, y: x.clone().atan2_(y),
}
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("name", MIXED)
def test_operands_of_two_types_have_results_of_the_type_in_eager_mode(name):
    for first, second in itertools.permutations(TYPES, 2):
        x, y = torch.linspace(-1, 2, 4, dtype=first), torch.linspace(1, -2, 4, dtype=second)
        torch.manual_seed(0)
        try:
            expected = MIXED[name](x, y)
        except RuntimeError:  # torch refuses these types together
            continue
        torch.manual_seed(0)
        torch.testing.assert_close(popgeo_compile(MIXED[name], [x, y])(x, y), expected)
