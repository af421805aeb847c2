"""Which operations are taken for a filter network and for its gradients, operation by operation."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import popgeo.ops.shifted_softplus  # noqa: F401  makes its operations known to torch
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.fuse.def_use import DefUse
from popgeo.engine.fuse.filter_network import Gradients, Layer, Network, match_gradients, match_network
from popgeo.ops.interaction_call import MAX_LAYERS, Activation

aten, popgeo_ops = torch.ops.aten, torch.ops.popgeo
NUM_EDGES, CHANNELS = 5, 7
GIVEN = {
    "rows": torch.ones(NUM_EDGES, 4), "w1": torch.ones(6, 4), "b1": torch.ones(6), "w2": torch.ones(CHANNELS, 6),
    "b2": torch.ones(CHANNELS), "env": torch.ones(NUM_EDGES, 1), "grad": torch.ones(NUM_EDGES, CHANNELS),
}  # fmt: skip


def graph_of(function: Callable[..., Any], **given: Tensor) -> tuple[OpGraph, dict[str, int]]:
    """The operations of a function of tensors, and the values that it is given by name."""
    graph = capture(function, bind(function, **given)).graph
    return graph, {one.name: v for one, v in graph.inputs.items()}


def network_of(function: Callable[..., Tensor], **other: Tensor) -> Network | None:
    """The match of what a function of tensors like `GIVEN` returns."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    graph, _ = graph_of(function, **{name: (GIVEN | other)[name] for name in names})
    assert graph.outputs[0] is not None
    return match_network(DefUse(graph), graph.outputs[0])


def two_layers(rows, w1, b1, w2, env):
    return F.linear(torch.tanh(F.linear(rows, w1, b1)), w2) * env


def test_a_network_of_two_layers_with_all_its_parts():
    graph, v = graph_of(two_layers, **{name: GIVEN[name] for name in ("rows", "w1", "b1", "w2", "env")})
    targets = [op.target.split(".")[1] for op in graph.ops]
    assert targets == ["t", "addmm", "tanh", "t", "mm", "mul"]
    _, first, activated, _, second, filters = (op.makes()[0] for op in graph.ops)
    assert match_network(DefUse(graph), filters) == Network(
        filters=filters,
        envelope=v["env"],
        layers=(
            Layer(
                weight=v["w1"], bias=v["b1"], rows=v["rows"], result=first,
                slope=("aten.tanh_backward.default", activated),
            ),
            Layer(weight=v["w2"], bias=None, rows=activated, result=second),
        ),
        activation=Activation.TANH,
        ops=frozenset({1, 2, 4, 5}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("activation", "kind", "slope", "takes_result", "num_ops"),
    [
        (popgeo_ops.shifted_softplus, Activation.SHIFTED_SOFTPLUS, "popgeo.shifted_softplus_backward", False, 1),
        (lambda x: F.softplus(x) - math.log(2), Activation.SHIFTED_SOFTPLUS, "aten.softplus_backward", False, 2),
        (lambda x: F.softplus(x) - 0.6931472, Activation.SHIFTED_SOFTPLUS, "aten.softplus_backward", False, 2),
        (F.softplus, Activation.SOFTPLUS, "aten.softplus_backward", False, 1),
        (lambda x: aten.softplus(x, 1, 20), Activation.SOFTPLUS, "aten.softplus_backward", False, 1),
        (F.silu, Activation.SILU, "aten.silu_backward", False, 1),
        (torch.relu, Activation.RELU, "aten.threshold_backward", True, 1),
        (torch.tanh, Activation.TANH, "aten.tanh_backward", True, 1),
        (torch.sigmoid, Activation.SIGMOID, "aten.sigmoid_backward", True, 1),
    ],
)
def test_activations_and_what_their_derivatives_are_given(activation, kind, slope, takes_result, num_ops):
    def function(rows, w1, w2):
        return F.linear(activation(F.linear(rows, w1)), w2)

    graph, _ = graph_of(function, rows=GIVEN["rows"], w1=GIVEN["w1"], w2=GIVEN["w2"])
    network = match_network(DefUse(graph), graph.outputs[0])
    made = [op.makes()[0] for op in graph.ops]  # t, mm, then the activation, which may end in a difference
    assert network is not None
    assert (network.activation, network.envelope) == (kind, None)
    assert network.layers[0].slope == (f"{slope}.default", made[2] if takes_result else made[1])
    assert network.layers[0].result == made[1]
    assert network.layers[1].rows == made[1 + num_ops]
    assert network.ops == {1, *range(2, 2 + num_ops), 3 + num_ops}


@pytest.mark.parametrize(
    "activation",
    [
        lambda x: F.softplus(x) - 0.5,
        lambda x: torch.tanh(x) - math.log(2),
        lambda x: F.softplus(x, 2),
        lambda x: F.softplus(x, 2) - math.log(2),
        lambda x: F.softplus(x, 1, 10),
        lambda x: torch.sub(F.softplus(x), math.log(2), alpha=2),
        lambda x: F.softplus(x) - torch.full((6,), math.log(2)),
        lambda x: F.softplus(x) + math.log(2),
        lambda x: F.softplus(x) - (math.log(2) + 3e-6),
        torch.sin,
    ],
)
def test_a_network_begins_after_what_only_looks_like_an_activation(activation):
    found = network_of(lambda rows, w1, w2: F.linear(activation(F.linear(rows, w1)), w2))
    assert found is not None
    assert len(found.layers) == len(found.ops) == 1


@pytest.mark.parametrize("num_layers", range(1, MAX_LAYERS + 2))
def test_so_many_layers_are_served(num_layers):
    def function(rows, w1, b1, w2, grad):  # the last is only that a value of its kind is there
        for _ in range(num_layers - 1):
            rows = torch.sigmoid(F.linear(rows, w1, b1))
        return F.linear(rows, w2) + 0 * grad, F.linear(rows, w2)

    given = GIVEN | {"rows": torch.ones(NUM_EDGES, 6), "w1": torch.ones(6, 6)}
    graph, v = graph_of(function, **{name: given[name] for name in ("rows", "w1", "b1", "w2", "grad")})
    found = match_network(DefUse(graph), graph.outputs[1])
    if num_layers > MAX_LAYERS:
        assert found is None
        return
    assert found is not None
    assert [layer.weight for layer in found.layers] == [v["w1"]] * (num_layers - 1) + [v["w2"]]
    assert [layer.bias for layer in found.layers] == [v["b1"]] * (num_layers - 1) + [None]
    assert found.expansion == v["rows"]
    assert len(found.ops) == 2 * num_layers - 1
    assert found.activation == (Activation.SIGMOID if num_layers > 1 else Activation.RELU)


def test_an_envelope_may_come_first():
    given = GIVEN | {"rows": torch.ones(NUM_EDGES, 6)}
    names = ("rows", "w2", "env")
    graph, v = graph_of(lambda rows, w2, env: env * F.linear(rows, w2), **{name: given[name] for name in names})
    found = match_network(DefUse(graph), graph.outputs[0])
    assert found is not None
    assert (found.envelope, found.layers[0].weight, found.ops) == (v["env"], v["w2"], {1, 2})


LINEAR = F.linear


@pytest.mark.parametrize(
    "function",
    [
        lambda rows, w1, env: LINEAR(rows, w1) * env[0],  # one number for all edges
        lambda rows, w1, env: LINEAR(rows, w1) * env.expand(5, 6),
        lambda rows, w1, env: LINEAR(rows, w1) * env.double(),
        lambda rows, w1, b1: LINEAR(rows, w1) * b1,
        lambda rows, w1, env: LINEAR(rows, w1) * 2.0,  # though the last value is like an envelope
        lambda rows, w1, env: (LINEAR(rows, w1) * env) * env,
        lambda rows, w1, env: LINEAR(rows, w1) + env,
        lambda rows, w1, env: LINEAR(rows, w1) * torch.cat([env, env], 1)[:, :1],
        lambda rows, w1, w2: LINEAR(torch.tanh(LINEAR(torch.relu(LINEAR(rows, w1[:6, :4])), w2[:6, :6])), w2),
        lambda rows, w1: torch.tanh(LINEAR(rows, w1)),
        lambda rows, w1, w2: LINEAR(torch.tanh(torch.sin(LINEAR(rows, w1))), w2),
        lambda rows, w1, b1: torch.addmm(b1, rows, w1.t(), beta=0.5),
        lambda rows, w1, b1: torch.addmm(b1, rows, w1.t(), alpha=2),
        lambda rows, w1: rows @ w1.view(4, 6),
        lambda rows, w1: LINEAR(rows, torch.cat([w1, w1], 1)[:, :4]),
        lambda rows, w1, b1: LINEAR(rows, w1, b1[:1]),
        lambda rows, w1, b1: torch.addmm(b1.expand(5, 6), rows, w1.t()),
        lambda rows, w1, b1: torch.addmm(torch.cat([b1, b1])[::2], rows, w1.t()),
        lambda rows, w1: LINEAR(torch.cat([rows, rows], 1)[:, ::2], w1),
        lambda rows, w1: LINEAR(rows, w1[:0]),
        lambda rows, w1: LINEAR(rows[:, :0].contiguous(), w1[:, :0].contiguous()),
        lambda rows, w1: LINEAR(rows.double(), w1.double()),
    ],
)
def test_what_only_looks_like_a_network_is_left(function):
    assert network_of(function) is None


def backward(form: str, env: Tensor, w1: Tensor, w2: Tensor, rows: Tensor, a: Tensor, grad: Tensor) -> list[Tensor]:
    """A backward pass written out, and what a form of it does otherwise."""
    last = grad * env if form != "another factor" else grad * env.exp()
    to_b2 = aten.sum.dim_IntList(last, [1] if form == "summed over channels" else [0], True)
    if form == "summed in double":
        to_b2 = aten.sum.dim_IntList(last, [0], True, dtype=torch.float64)
    turned = aten.t(last)
    to_w2 = aten.mm(turned, a * 2 if form == "product with another" else a)
    if form == "weight swapped":
        to_w2 = aten.mm(aten.t(a), last)
    made = [to_b2, to_w2]
    if form == "last layer alone":
        return made
    if form == "two products":
        made.append(aten.mm(turned, rows))
    if form == "two sums":
        made.append(aten.sum.dim_IntList(last, [0]))
    if form == "weight twice":
        made.append(aten.mm(last.transpose(0, 1), a))
    if form == "read by more":
        made.append(last.exp())
    if form == "gradient shown":
        made.append(last)
    if form == "gradient of the filters read":
        made.append(grad.sin())
    if form == "turned shown":
        made.append(turned)
    to_a = aten.mm(last, w2 + 0 if form == "back through another weight" else w2)
    to_h = aten.tanh_backward(to_a, a + 0 if form == "slope of another" else a)
    if form == "other activation":
        to_h = aten.sigmoid_backward(to_a, a)
    if form == "slope turned round":
        to_h = aten.tanh_backward(a, to_a)
    if form == "activation's gradient read":
        made.append(to_a.exp())
    if form == "activation's gradient shown":
        made.append(to_a)
    to_b1 = aten.sum.dim_IntList(to_h, [0])
    to_w1 = aten.mm(aten.t(to_h), rows)
    made += [to_b1, to_w1]
    if form == "gradient of the rows":
        made.append(aten.mm(to_h, w1))
    return made


def gradients_of(form: str) -> tuple[Gradients | None, list[int | None], OpGraph]:
    def function(rows, w1, b1, w2, b2, env, grad):
        a = torch.tanh(F.linear(rows, w1, b1))
        gradient = grad * 1
        return [F.linear(a, w2, b2) * env, gradient.view(-1), *backward(form, env, w1, w2, rows, a, gradient)]

    graph, _ = graph_of(function, **GIVEN)
    uses = DefUse(graph)
    network = match_network(uses, graph.outputs[0])
    gradient = next(op.makes()[0] for op in graph.ops if op.args[1:] == (1,) and op.target == "aten.mul.Tensor")
    assert network is not None
    # The view shows the gradient, which only makes its value easy to find.
    uses.users[gradient] = [i for i in uses.users[gradient] if uses.graph.ops[i].target != "aten.view.default"]
    return match_gradients(uses, network, gradient), list(graph.outputs), graph


def test_the_gradients_of_two_layers_and_the_operations_that_make_them():
    found, (_, _, to_b2, to_w2, to_b1, to_w1), graph = gradients_of("plain")
    targets = [op.target.split(".")[1] for op in graph.ops]
    begin = targets.index("view") + 2  # after the filters
    assert targets[begin - 1 :] == ["mul", "sum", "t", "mm", "mm", "tanh_backward", "sum", "t", "mm"]
    assert found == Gradients(
        weights=(to_w1, to_w2), biases=(to_b1, to_b2), ops=frozenset(range(begin - 1, len(targets)))
    )


def test_layers_that_no_gradient_goes_through_have_none():
    found, (_, _, to_b2, to_w2), _ = gradients_of("last layer alone")
    assert found is not None
    assert (found.weights, found.biases) == ((None, to_w2), (None, to_b2))


@pytest.mark.parametrize(
    "form",
    [
        "another factor", "summed over channels", "summed in double", "product with another", "weight swapped",
        "two products", "two sums", "weight twice", "read by more", "gradient of the filters read", "turned shown",
        "back through another weight", "gradient of the rows",
    ],
)  # fmt: skip
def test_gradients_with_more_or_other_parts_are_left(form):
    assert gradients_of(form)[0] is None


@pytest.mark.parametrize(
    "form",
    [
        "slope of another", "other activation", "slope turned round", "activation's gradient read",
        "activation's gradient shown",
    ],
)  # fmt: skip
def test_a_gradient_that_goes_on_otherwise_ends_there(form):
    found, (_, _, to_b2, to_w2, *_), _ = gradients_of(form)
    assert found is not None
    assert (found.weights, found.biases) == ((None, to_w2), (None, to_b2))
