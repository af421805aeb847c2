"""A graph runs on the memory of its weights, writes results to given places, and names errors."""

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_step
from popgeo.capture.capture import bind, capture
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import Input, Number, Op, OpGraph, Ref, Role, Value
from popgeo.engine.graph_runner import GraphRunner


def graph_of(function, *inputs: Tensor) -> OpGraph:
    return capture(function, bind(getattr(function, "forward", function), *inputs)).graph


def test_a_changed_weight_is_seen_by_the_next_run_and_a_buffer_changes_in_place():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
            self.register_buffer("runs", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.runs.add_(1)
            return self.weight * x

    model = Counts()
    runner = GraphRunner(graph_of(model, torch.ones(2)), module_state(model))
    assert runner.run([torch.ones(2)])[0].tolist() == [2, 3]
    with torch.no_grad():
        model.weight.fill_(5)
    assert runner.run([torch.ones(2)])[0].tolist() == [5, 5]
    assert model.runs.tolist() == [2]


def test_inputs_are_copied_so_that_neither_side_sees_what_the_other_does_to_them():
    x = torch.ones(2)
    runner = GraphRunner(graph_of(lambda x: x.add_(1), x), {})
    assert runner.run([x])[0].tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def results_in_place(function) -> list[float]:
    """Return the caller's memory after a run that writes its first two results there."""
    places = {0: torch.full((2,), -1.0), 1: torch.full((2,), -1.0)}
    runner = GraphRunner(graph_of(function, torch.ones(2)), {}, places)
    returned = runner.run([torch.tensor([1.0, 2.0])])
    assert [returned[k].data_ptr() for k in places] == [place.data_ptr() for place in places.values()]
    return [place.tolist() for place in places.values()]


def test_results_come_where_they_are_wanted_whatever_they_are():
    assert results_in_place(lambda x: (x * 2, x * 3)) == [[2, 4], [3, 6]]
    assert results_in_place(lambda x: (x, x * 3)) == [[1, 2], [3, 6]]

    def one_twice(x):
        y = x * 2
        return y, y

    assert results_in_place(one_twice) == [[2, 4], [2, 4]]

    def a_view_of_another(x):
        y = x * 2
        return y, y.flip(0).view(2) + y.view(2)

    assert results_in_place(a_view_of_another) == [[2, 4], [6, 6]]

    def changed_later(x):
        y = x * 2
        z = y + 1
        y.add_(10)
        return y, z

    assert results_in_place(changed_later) == [[12, 14], [3, 5]]
    assert results_in_place(lambda x: (torch.stack([x, x], 1)[:, 0], x + 1)) == [[1, 2], [2, 3]]  # with gaps
    assert results_in_place(lambda x: (torch.cat([x, x * 2]).mul(3)[2:], x + 1)) == [[6, 12], [2, 3]]  # a part


def test_memory_is_counted_with_that_of_inputs():
    runner = GraphRunner(graph_of(lambda x: x.cos().sin(), torch.zeros(1024)), {})
    assert runner.buffer_bytes == 2 * 4096


def divide(x: Tensor) -> Tensor:
    y = x - 1
    return (y / x).log()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (0.0, r"aten.div.Tensor in the forward pass gave infinity .*return \(y / x\).log\(\)"),
        (0.5, "aten.log.* gave NaN"),
    ],
)
def test_the_first_operation_that_makes_nan_or_infinity_of_finite_numbers_is_named(x, message):
    graph = graph_of(divide, torch.ones(2))
    checked = GraphRunner(graph, {}, floating_point_exceptions=True)
    assert checked.run([torch.full((2,), 3.0)])[0].isfinite().all()
    with pytest.raises(FloatingPointError, match=message):
        checked.run([torch.tensor([3.0, x])])
    assert not GraphRunner(graph, {}).run([torch.tensor([3.0, x])])[0].isfinite().all()


def test_nan_that_comes_in_and_infinity_that_is_asked_for_are_no_exceptions():
    def function(x, y):
        return y.masked_fill(x > 0, float("inf")), x + 1

    runner = GraphRunner(graph_of(function, torch.ones(2), torch.ones(2)), {}, floating_point_exceptions=True)
    made = runner.run([torch.tensor([torch.nan, 1]), torch.ones(2)])
    assert made[0].tolist() == [1, torch.inf]


@pytest.mark.parametrize(("function", "draws"), [(torch.rand_like, True), (torch.cos, False)])
def test_it_knows_whether_it_draws_random_numbers(function, draws):
    assert GraphRunner(graph_of(lambda x: function(x), torch.ones(2)), {}).draws_random_numbers is draws


def test_a_gradient_that_nobody_asked_for_passes_the_check_of_results():
    model, x = Squares(nn.BatchNorm1d(3)), torch.randn(4, 3)
    graph = capture(model, bind(model.forward, x), trained=["norm.weight"]).graph
    results = GraphRunner(graph, module_state(model), floating_point_exceptions=True).run([x])
    assert all(result is not None for result in results)


class Squares(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).square().sum()


def test_an_operation_may_return_a_list_of_one_tensor():
    def function(x: Tensor) -> Tensor:
        y = x.roll(1, 1)  # has no place of its own, so neither have views of it
        return y.unbind(0)[0] + y.split(2, dim=1)[0][0]

    x = torch.tensor([[1.0, 2.0]])
    assert GraphRunner(graph_of(function, x), {}).run([x])[0].tolist() == [4, 2]


def test_numbers_that_are_given_anew_count_from_the_next_run_on():
    values = [
        Value(shape=(2,), stride=(1,), offset=0, dtype=torch.float32, storage=v, producer=None if v == 0 else v - 1)
        for v in range(3)
    ]
    ops = [
        Op(target="aten.mul.Scalar", args=(Ref(0), Number(slot=1, value=2.0)), outputs=(1,)),
        Op(target="aten.add.Scalar", args=(Ref(1), Number(slot=0, value=1.0)), outputs=(2,)),
    ]
    graph = OpGraph(ops=tuple(ops), values=tuple(values), inputs={Input(Role.ARGUMENT, "x"): 0}, outputs=(2,))
    runner, x = GraphRunner(graph, {}), torch.tensor([1.0, 3.0])
    assert runner.run([x])[0].tolist() == [3, 7]
    runner.set_numbers([10.0, 5.0])
    assert runner.run([x])[0].tolist() == [15, 25]


def signs_after_a_view(x: Tensor, weight: Tensor) -> Tensor:
    alike = torch.ones(6, 4).movedim(0, -1)  # the gradient of the signs is turned in the same way
    return alike.sum() + (x * weight).movedim(0, -1).sgn().square().mean()


def signs_of_a_product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", x * weight, x).sgn().sum()


@pytest.mark.parametrize("signs", [signs_after_a_view, signs_of_a_product])
def test_gradients_that_torch_keeps_without_memory_are_zeros(signs):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 6))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight).tanh().sum() + signs(x, self.weight)

    model, x = Model(), torch.linspace(-1, 1, 24).view(4, 6)
    expected = model.weight.detach() - 0.1 * x * (1 - x.tanh().square())
    compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))(x)
    torch.testing.assert_close(model.weight.detach(), expected)
