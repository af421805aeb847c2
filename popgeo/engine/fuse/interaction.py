"""Joins each interaction of a graph, forward and backward, into one pass over the edges."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, Ref, Value
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.engine.fuse import prepare_interaction  # noqa: F401  makes known how the operations are prepared
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.filter_network import (
    GaussiansOf,
    Gradients,
    Network,
    match_gaussians,
    match_gradients,
    match_network,
)
from popgeo.engine.fuse.plain_convolution import CFCONV, CFCONV_BACKWARD
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import Call

FORWARD, BACKWARD, PLAN = (f"popgeo.interaction{kind}.default" for kind in ("", "_backward", "_plan"))


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Where filters and features become messages: once, or once each way where each edge stands for both directions."""

    x: int
    src: int
    dst: int
    num_rows: int
    half_list: bool
    result: int
    ops: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Back:
    """The backward pass of an interaction."""

    grad: int
    to_x: int | None
    gradients: Gradients
    ops: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Match:
    """An interaction of the graph."""

    sums: Sums
    network: Network
    gaussians: GaussiansOf | None
    back: Back | None


def join_interactions(graph: OpGraph) -> OpGraph:
    """The graph with each interaction that is served as one operation, and its backward pass as another."""
    if not any(op.target == CFCONV for op in graph.ops) or not interaction_call.is_served():
        return graph
    uses = DefUse(graph)
    matches = [match for filters in _filters(graph) if (match := _match(uses, filters)) is not None]
    return drop_unused(_Rewriter(graph, matches).graph()) if matches else graph


def describe_interactions(joined: OpGraph) -> str:
    """How many interactions of a graph run in one pass, and why others do not; empty where there is none.

    Args:
        joined: As it runs.
    """
    count = sum(op.target == FORWARD for op in joined.ops)
    total = count + len(list(_filters(joined)))
    if not total:
        return ""
    text = f"{count} of {total} interactions in one pass"
    if count == total:
        return text
    if not interaction_call.is_served():
        return f"{text} (no kernels for this processor)"
    return f"{text} (filters made in another way, or used elsewhere)"


def _filters(graph: OpGraph) -> Iterator[int]:
    return iter(dict.fromkeys(ref(op.args[1]) for op in graph.ops if op.target == CFCONV))


def _match(uses: DefUse, filters: int) -> Match | None:
    """The interaction that these filters are of, if all of it is such as is served."""
    sums = _match_sums(uses, filters)
    network = match_network(uses, filters) if sums is not None else None
    if sums is None or network is None:
        return None
    back = _match_back(uses, sums, network)
    if back is not None and min(back.ops) < max(sums.ops):
        return None
    replaced = sums.ops | network.ops | (back.ops if back is not None else frozenset())
    kept = {sums.result}
    if back is not None:
        kept |= {v for v in (back.to_x, *back.gradients.weights, *back.gradients.biases) if v is not None}
    if not _is_closed(uses, replaced, kept):
        return None
    return Match(sums=sums, network=network, gaussians=match_gaussians(uses, network.expansion), back=back)


def _is_closed(uses: DefUse, replaced: frozenset[int], kept: set[int]) -> bool:
    """Whether nothing but these operations reads what they make, apart from what is kept."""
    inner = {v for index in replaced for v in uses.graph.ops[index].makes()} - kept
    return not inner & uses.returned and all(replaced.issuperset(uses.users.get(v, ())) for v in inner)


def _match_sums(uses: DefUse, filters: int) -> Sums | None:
    indices = uses.users_of(filters, CFCONV)
    ops = [uses.graph.ops[index] for index in indices]
    if any(len(op.args) != 5 for op in ops):  # with plans of the user's own
        return None
    x, w, src, dst = map(ref, ops[0].args[:4])
    num_rows, values = ops[0].args[4], uses.graph.values
    num_edges, channels = values[w].shape
    plain = uses.is_plain(x, (values[x].shape[0], channels)) and num_edges < 2**28
    if not plain or not all(uses.is_plain(index, (num_edges,), torch.int64) for index in (src, dst)):
        return None
    (result,) = ops[0].makes()
    if len(ops) == 1:
        return Sums(x=x, src=src, dst=dst, num_rows=num_rows, half_list=False, result=result, ops=frozenset(indices))
    reverse = tuple(map(ref, ops[1].args[:4])) == (x, w, dst, src)
    if not reverse or num_rows != ops[1].args[4] or num_rows != values[x].shape[0]:
        return None
    total = _sum_of(uses, result, *ops[1].makes())
    if total is None:
        return None
    (result,) = uses.graph.ops[total].makes()
    return Sums(
        x=x, src=src, dst=dst, num_rows=num_rows, half_list=True, result=result, ops=frozenset([*indices, total])
    )


def _match_back(uses: DefUse, sums: Sums, network: Network) -> Back | None:
    indices = uses.users_of(network.filters, CFCONV_BACKWARD)
    ops = [uses.graph.ops[index] for index in indices]
    ends = [(sums.x, network.filters, sums.src, sums.dst), (sums.x, network.filters, sums.dst, sums.src)]
    found = {tuple(map(ref, op.args[1:])) for op in ops}  # with plans of the user's own there are more
    wanted = ends if sums.half_list else ends[:1]
    if not ops or len(ops) != len(wanted) or any(end not in found for end in wanted):
        return None
    if any(op.args[0] != ops[0].args[0] for op in ops):
        return None
    replaced = set(indices)
    to_x: int | None
    (to_x, to_w), *others = [op.makes() for op in ops]
    if others:
        of_x, of_w = (_sum_of(uses, one, other) for one, other in zip((to_x, to_w), others[0], strict=True))
        if of_w is None:
            return None
        replaced.update(index for index in (of_x, of_w) if index is not None)
        to_x = None if of_x is None else uses.graph.ops[of_x].makes()[0]
        (to_w,) = uses.graph.ops[of_w].makes()
    grad = ref(ops[0].args[0])
    gradients = match_gradients(uses, network, to_w)
    if gradients is None or not uses.is_plain(grad, (sums.num_rows, uses.graph.values[sums.x].shape[1])):
        return None
    needed = to_x in uses.users or to_x in uses.returned
    return Back(grad=grad, to_x=to_x if needed else None, gradients=gradients, ops=frozenset(replaced) | gradients.ops)


def _sum_of(uses: DefUse, one: int, other: int) -> int | None:
    """The operation that adds two values, which nothing else reads."""
    for index in uses.users.get(one, ()):
        op = uses.graph.ops[index]
        if op.target == "aten.add.Tensor" and not op.kwargs and {ref(arg) for arg in op.args} == {one, other}:
            return index
    return None


class _Rewriter:
    """Puts joined operations into a graph, where the last of their parts stood, or the first of a backward pass."""

    def __init__(self, graph: OpGraph, matches: Sequence[Match]) -> None:
        self._graph, self._values = graph, list(graph.values)
        self._storages = itertools.count(max(value.storage for value in graph.values) + 1)
        self._plans: dict[tuple[int | None, ...], int] = {}
        self._placed: dict[int, list[Op]] = {}
        self._dropped = set[int]()
        # In order, so that a plan stands before all that use it.
        for match in sorted(matches, key=lambda match: max(match.sums.ops)):
            self._replace(match)

    def graph(self) -> OpGraph:
        """The graph with the matches replaced."""
        ops: list[Op] = []
        for index, op in enumerate(self._graph.ops):
            ops += self._placed.get(index, [])
            if index not in self._dropped:
                ops.append(op)
        return with_ops(dataclasses.replace(self._graph, values=tuple(self._values)), ops, self._graph.outputs)

    def _replace(self, match: Match) -> None:
        sums, back = match.sums, match.back
        place = max(sums.ops)
        arguments, stand_in = self._arguments(match, place)
        filters = self._new(interaction_call.filters_shape(stand_in.num_edges, stand_in.x.shape[1]))
        outputs: tuple[int, ...] = sums.result, filters, self._workspace(stand_in)
        self._put(place, FORWARD, arguments, outputs, self._graph.ops[max(sums.ops)])
        self._dropped |= sums.ops | match.network.ops
        if back is None:
            return
        made = [back.to_x, *back.gradients.weights, *back.gradients.biases]
        arguments = *arguments, Ref(filters), Ref(back.grad), [v is not None for v in made]
        outputs = *(v for v in made if v is not None), self._workspace(stand_in)
        place = min(back.ops)
        self._put(place, BACKWARD, arguments, outputs, self._graph.ops[place])
        self._dropped |= back.ops

    def _put(self, place: int, target: str, args: tuple[object, ...], outputs: tuple[int, ...], like: Op) -> None:
        op = Op(target=target, args=args, outputs=outputs, phase=like.phase, module=like.module, source=like.source)
        self._placed.setdefault(place, []).append(op)

    def _arguments(self, match: Match, place: int) -> tuple[tuple[object, ...], Call]:
        """What the operations take, and the same call on tensors of the right shapes."""
        sums, network, gaussians = match.sums, match.network, match.gaussians
        plan = self._plan(match, place)
        num_edges = self._values[sums.src].shape[0]
        tensors = {
            "plan": plan,
            "x": sums.x,
            "expansion": network.expansion if gaussians is None else gaussians.distances,
            "centres": None if gaussians is None else gaussians.centres,
            "envelope": network.envelope,
            "weights": [layer.weight for layer in network.layers],
            "biases": [layer.bias for layer in network.layers],
        }
        others = {
            "num_edges": num_edges,
            "num_rows": sums.num_rows,
            "width": 0.0 if gaussians is None else gaussians.width,
            "activation": int(network.activation),
            "half_list": sums.half_list,
        }
        refs = {key: _each(value, Ref) for key, value in tensors.items()} | others
        sizes = {key: _each(value, self._stand_in) for key, value in tensors.items()} | others
        arguments = tuple(refs[name.name] for name in dataclasses.fields(Call))
        return (*arguments, torch.get_num_threads()), Call(**sizes)

    def _plan(self, match: Match, place: int) -> int:
        """The plan of the match's edges, made where it is needed first."""
        sums, network, gaussians = match.sums, match.network, match.gaussians
        distances = None if gaussians is None else gaussians.distances
        num_sources = self._values[sums.x].shape[0]
        key = sums.src, sums.dst, network.envelope, distances, num_sources, sums.num_rows
        if key not in self._plans:
            num_edges = self._values[sums.src].shape[0]
            size = interaction_call.plan_size(num_edges, num_sources, sums.num_rows)
            self._plans[key] = self._new((size,), torch.int32)
            args = *(None if v is None else Ref(v) for v in key[:4]), num_sources, sums.num_rows
            self._put(place, PLAN, args, (self._plans[key],), self._graph.ops[place])
        return self._plans[key]

    def _workspace(self, call: Call) -> int:
        return self._new((call.workspace_size(torch.get_num_threads()),))

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
        stride = tuple(torch.empty(shape, device="meta").stride())
        value = Value(shape=shape, stride=stride, offset=0, dtype=dtype, storage=next(self._storages), producer=None)
        self._values.append(value)
        return len(self._values) - 1

    def _stand_in(self, v: int) -> Tensor:
        """A tensor of the value's shape, of which only the shape is read."""
        return torch.empty(1).expand(self._values[v].shape)


def _each(given: Any, make: Callable[[int], Any]) -> Any:
    """What is made of a value, of each of several, or of none."""
    if isinstance(given, list):
        return [_each(one, make) for one in given]
    return None if given is None else make(given)
