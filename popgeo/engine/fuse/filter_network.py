"""Finds in a graph the filter network of an interaction: from an expansion to filters, and its gradients back."""

import math
from dataclasses import dataclass
from typing import Any

from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.ops.interaction_call import LEAST_EXPONENT, MAX_LAYERS, Activation

# Each with its derivative, and whether that is given the activation's result instead of what it was given.
_ACTIVATIONS = {
    "popgeo.shifted_softplus.default": (Activation.SHIFTED_SOFTPLUS, "popgeo.shifted_softplus_backward.default", False),
    "aten.softplus.default": (Activation.SOFTPLUS, "aten.softplus_backward.default", False),
    "aten.silu.default": (Activation.SILU, "aten.silu_backward.default", False),
    "aten.relu.default": (Activation.RELU, "aten.threshold_backward.default", True),
    "aten.tanh.default": (Activation.TANH, "aten.tanh_backward.default", True),
    "aten.sigmoid.default": (Activation.SIGMOID, "aten.sigmoid_backward.default", True),
}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A linear layer: its parameters, what it is given, and how the activation after it is differentiated."""

    weight: int
    bias: int | None
    rows: int
    result: int
    slope: tuple[str, int] = ("", -1)  # the operation, and what it is given beside the gradient; none after the last


@dataclass(frozen=True, kw_only=True)
class Network:
    """The filters of an interaction, by the values of the graph, and the operations that make them."""

    filters: int
    envelope: int | None
    layers: tuple[Layer, ...]
    activation: Activation
    ops: frozenset[int]

    @property
    def expansion(self) -> int:
        """What the first layer is given."""
        return self.layers[0].rows


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The gradients of a network's parameters, None where nobody asks, and the operations that make them."""

    weights: tuple[int | None, ...]
    biases: tuple[int | None, ...]
    ops: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class GaussiansOf:
    """Gaussians of distances, by the values of the graph."""

    distances: int
    centres: int
    width: float


def match_network(uses: DefUse, filters: int) -> Network | None:
    """The network that makes these filters, if it is of the kind that is served."""
    values, ops = uses.graph.values, set[int]()
    num_edges = values[filters].shape[0]
    envelope, result = None, filters
    scaled = uses.maker(filters, "aten.mul.Tensor")
    if scaled is not None:
        bare, envelope = map(ref, scaled.args[:2])
        if values[bare].shape == (num_edges, 1):
            bare, envelope = envelope, bare
        if not uses.is_plain(envelope, (num_edges, 1)):
            return None
        ops.add(_index(uses, filters))
        result = bare
    layers: list[Layer] = []
    kinds = set[Activation]()
    slope = ("", -1)
    while len(layers) < MAX_LAYERS:
        layer = _match_layer(uses, result, slope)
        if layer is None:
            return None
        layers.insert(0, layer)
        ops.add(_index(uses, result))
        activated = _match_activation(uses, layer.rows)
        if activated is None:
            break
        kind, result, slope, indices = activated
        kinds.add(kind)
        ops.update(indices)
    else:
        return None
    if len(kinds) > 1 or not uses.is_plain(layers[0].rows):
        return None
    activation = kinds.pop() if kinds else Activation.RELU
    return Network(filters=filters, envelope=envelope, layers=tuple(layers), activation=activation, ops=frozenset(ops))


def match_gradients(uses: DefUse, network: Network, gradient: int) -> Gradients | None:
    """The gradients of the network's parameters, made from that of its filters; None where more is asked for."""
    ops = set[int]()
    if network.envelope is not None:
        scaled = _only_user(uses, gradient, "aten.mul.Tensor")
        if scaled is None or network.envelope not in map(ref, uses.graph.ops[scaled].args[:2]):
            return None
        ops.add(scaled)
        (gradient,) = uses.graph.ops[scaled].makes()
    weights: list[int | None] = [None] * len(network.layers)
    biases: list[int | None] = [None] * len(network.layers)
    for position in reversed(range(len(network.layers))):
        layer, back, weight, bias = network.layers[position], None, None, None
        for index in uses.users.get(gradient, ()):
            op = uses.graph.ops[index]
            ops.add(index)
            (made,) = op.makes()
            if op.target == "aten.mm.default" and tuple(map(ref, op.args)) == (gradient, layer.weight) and position:
                back = made
            elif op.target == "aten.sum.dim_IntList" and op.args[1] == [0] and not op.kwargs and bias is None:
                bias = made
            elif uses.untransposed(made) == gradient and weight is None:
                product = _only_user(uses, made, "aten.mm.default")
                if product is None or tuple(map(ref, uses.graph.ops[product].args)) != (made, layer.rows):
                    return None
                ops.add(product)
                (weight,) = uses.graph.ops[product].makes()
            else:
                return None
        weights[position], biases[position] = weight, bias
        if position:
            stepped = _match_slope(uses, network.layers[position - 1], back)
            if stepped is None:
                break
            ops.add(stepped)
            (gradient,) = uses.graph.ops[stepped].makes()
    return Gradients(weights=tuple(weights), biases=tuple(biases), ops=frozenset(ops))


def match_gaussians(uses: DefUse, expansion: int) -> GaussiansOf | None:
    """The distances and centres that an expansion is made from, if it is Gaussians, cut off below e^-60 or not."""
    v = expansion
    cut = uses.maker(v, "aten.threshold.default")
    if cut is not None:
        if cut.args[1] > math.exp(LEAST_EXPONENT + 1) or cut.args[2] != 0:
            return None
        v = ref(cut.args[0])
    exponential = uses.maker(v, "aten.exp.default")
    if exponential is None:
        return None
    v = ref(exponential.args[0])
    clamped = uses.maker(v, "aten.clamp.default")
    if clamped is not None:
        if len(clamped.args) != 2 or clamped.kwargs or clamped.args[1] > LEAST_EXPONENT:
            return None
        v = ref(clamped.args[0])
    scaled = uses.maker(v, "aten.mul.Tensor", "aten.mul.Scalar")
    if scaled is None or not isinstance(scaled.args[1], float) or not scaled.args[1] < 0:
        return None
    squared = uses.maker(ref(scaled.args[0]), "aten.pow.Tensor_Scalar", "aten.square.default")
    if squared is None or squared.args[1:] not in ((), (2,)):
        return None
    difference = uses.maker(ref(squared.args[0]), "aten.sub.Tensor")
    if difference is None or difference.kwargs:
        return None
    num_edges, num_gaussians = uses.graph.values[expansion].shape
    distances, centres = map(ref, difference.args)
    if not uses.is_plain(distances, (num_edges, 1)) or not uses.is_plain(centres):
        return None
    if uses.graph.values[centres].numel != num_gaussians:
        return None
    return GaussiansOf(distances=distances, centres=centres, width=scaled.args[1])


def _match_layer(uses: DefUse, result: int, slope: tuple[str, int]) -> Layer | None:
    op = uses.maker(result, "aten.addmm.default", "aten.mm.default")
    if op is None or op.kwargs:
        return None
    *bias, rows, turned = map(ref, op.args)
    weight = uses.untransposed(turned)
    if weight is None or not uses.is_plain(weight):
        return None
    outputs, inputs = uses.graph.values[weight].shape
    if not outputs or not inputs or (bias and not uses.is_plain(bias[0], (outputs,))):
        return None
    return Layer(weight=weight, bias=bias[0] if bias else None, rows=rows, result=result, slope=slope)


def _match_activation(uses: DefUse, value: int) -> tuple[Activation, int, tuple[str, int], list[int]] | None:
    """What an activated value is made from: the kind, what it was, how that is differentiated, and by which ops."""
    shift = uses.maker(value, "aten.sub.Tensor")  # softplus minus its value at 0
    is_shifted = shift is not None and _is_log_2(shift.args[1]) and not shift.kwargs
    made = ref(shift.args[0]) if shift is not None and is_shifted else value
    op = uses.maker(made, *_ACTIVATIONS)
    if op is None or op.args[1:] not in ((), (1, 20)):  # softplus of another steepness or threshold
        return None
    kind, slope, takes_result = _ACTIVATIONS[op.target]
    indices = [_index(uses, made)]
    if is_shifted:
        if kind is not Activation.SOFTPLUS:
            return None
        kind = Activation.SHIFTED_SOFTPLUS
        indices.append(_index(uses, value))
    given = ref(op.args[0])
    return kind, given, (slope, made if takes_result else given), indices


def _is_log_2(argument: Any) -> bool:
    return isinstance(argument, float) and math.isclose(argument, math.log(2), abs_tol=1e-6)


def _match_slope(uses: DefUse, layer: Layer, gradient: int | None) -> int | None:
    """The operation that takes a gradient back through the activation after a layer."""
    target, saved = layer.slope
    index = None if gradient is None else _only_user(uses, gradient, target)
    if index is None:
        return None
    op = uses.graph.ops[index]
    given, other, *numbers = op.args
    fits = (ref(given), ref(other)) == (gradient, saved) and tuple(numbers) in ((), (0,), (1, 20))
    return index if fits else None


def _only_user(uses: DefUse, v: int, target: str) -> int | None:
    users = uses.users.get(v, [])
    return (
        users[0] if len(users) == 1 and uses.graph.ops[users[0]].target == target and v not in uses.returned else None
    )


def _index(uses: DefUse, v: int) -> int:
    index = uses.index_of_maker(v)
    assert index is not None
    return index
