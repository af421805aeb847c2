"""Loops and branches are recorded once, as operations with graphs of their bodies."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.capture import serialize
from popgeo.capture.control_flow import COND, FOR_LOOP, cond, for_loop
from popgeo.capture.op_graph import OpGraph
from tests.support.check_graph import check_graph


def graph_of(function: Callable[..., object], *inputs: Tensor) -> OpGraph:
    return ipu.compile(function, list(inputs)).graph


def same_as_eager(function: Callable[..., list[Tensor]], *inputs: Tensor) -> None:
    compiled = ipu.compile(function, [tensor.clone() for tensor in inputs])
    expected = function(*(tensor.clone() for tensor in inputs))
    for _ in range(2):  # the second run starts from clean memory
        torch.testing.assert_close(list(compiled(*(tensor.clone() for tensor in inputs))), list(expected))


def test_a_loop_doubles_ten_times():
    double = ipu.compile(lambda x: for_loop(10, lambda y: 2 * y, [x])[0], [torch.ones(1)])
    assert double(torch.tensor([3.0])).item() == 3 * 2**10


def test_a_loop_is_one_operation_whatever_its_count():
    sizes = {n: len(str(graph_of(lambda x, n=n: for_loop(n, torch.sin, [x]), torch.ones(2)))) for n in (2, 9)}
    assert sizes[2] == sizes[9]


def test_two_equal_loops_stay_two():
    graph = graph_of(lambda x: for_loop(3, torch.sin, [x])[0] + for_loop(3, torch.sin, [x])[0], torch.ones(2))
    assert [op.target for op in graph.ops].count(FOR_LOOP) == 2


def test_carried_values_may_change_places():
    same_as_eager(lambda x, y: for_loop(5, lambda a, b: (b, a + 1), [x, y]), torch.zeros(2), torch.ones(2))


def test_what_a_body_changes_in_place_is_its_own():
    def count(x: Tensor) -> list[Tensor]:
        x = x + 0
        made = for_loop(3, lambda y: y.add_(1).add_(1), [x])
        x += 1
        return [*made, x]

    given = torch.tensor([1, 5])
    (made, kept) = ipu.compile(count, [given])(given)
    assert (made.tolist(), kept.tolist()) == ([7, 11], [2, 6])


def test_a_body_sees_several_views_of_one_memory():
    def loop(x: Tensor) -> list[Tensor]:
        turned, tail = x.t(), x[1:]
        return for_loop(3, lambda y: y @ turned + tail.sum() + x[0].sum(), [torch.ones(2, 2)])

    same_as_eager(loop, torch.tensor([[0.5, 1.0], [2.0, 0.25]]))


def test_loops_and_branches_nest():
    def nested(holds: Tensor, x: Tensor) -> list[Tensor]:
        inner = lambda y: cond(holds, lambda: x * y, [], lambda z: z - x, [y])[0]  # noqa: E731
        return for_loop(2, lambda y: for_loop(3, inner, [y])[0] + 1, [x])

    for holds in (True, False):
        same_as_eager(nested, torch.tensor([holds]), torch.tensor([2.0, 3.0]))


def test_one_compiled_branch_follows_the_condition_of_each_run():
    body = ipu.compile(
        lambda c, x, y: cond(c, lambda a: (a, x + y), [x], lambda b: (b * y, x - y), [y]),
        [torch.tensor(True), torch.ones(1), torch.ones(1)],
    )
    x, y = torch.tensor([2.0]), torch.tensor([3.0])
    assert [t.item() for t in body(torch.tensor(True), x, y)] == [2, 5]
    assert [t.item() for t in body(torch.tensor(False), x, y)] == [9, -1]
    assert COND in {op.target for op in body.graph.ops}


def test_random_numbers_differ_from_turn_to_turn_and_are_those_of_torch():
    draw = ipu.compile(lambda x: for_loop(3, lambda y: 10 * y + torch.rand(1), [x])[0], [torch.zeros(1)])
    torch.manual_seed(3)
    a, b, c = torch.rand(3).tolist()
    draw.replica_states()[0].generator.manual_seed(3)
    assert draw(torch.zeros(1)).item() == pytest.approx(100 * a + 10 * b + c)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return for_loop(2, self.linear, [x])[0].sum()


def test_weights_in_a_body_are_those_of_the_run():
    model = Loop()
    infer = ipu.inference_model(model)
    infer(torch.ones(1, 2))
    with torch.no_grad():
        model.linear.weight.fill_(1.0)
        model.linear.bias.fill_(0.0)
    assert infer(torch.tensor([[1.0, 2.0]])).item() == 12  # 3 and 3, then 6 and 6


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: for_loop(2, lambda y: y[:1], [x]), r"takes float32\[2\], but returns float32\[1\]"),
        (lambda x: for_loop(-1, torch.sin, [x]), "count -1"),
        (lambda x: for_loop(1, lambda y: 3, [x]), "must return tensors"),
        (lambda x: for_loop(1, lambda y: y + x.add_(1), [x]), "Pass it as an input"),
        (lambda x: cond(x, torch.sin, [x], torch.cos, [x]), "single element"),
        (lambda x: cond(x[0] > 0, torch.sin, [x], lambda y: y[:1], [x]), "the two must be the same"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(function: Callable[[Tensor], object], message: str):
    with pytest.raises(ValueError, match=message):
        ipu.compile(function, [torch.ones(2)])


def test_no_gradient_passes_a_loop():
    with pytest.raises(ValueError, match=r"poptorch.for_loop\(\) is only supported in inference models"):
        ipu.training_model(Loop())(torch.ones(1, 2))


def test_a_kept_step_has_its_loop():
    step = ipu.compile(lambda x: for_loop(2, lambda y: y + x, [x]), [torch.ones(2)]).captured
    check_graph(step.graph)
    assert str(serialize.from_bytes(serialize.to_bytes(step)).graph) == str(step.graph)
