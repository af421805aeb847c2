"""The stage of each operation of a captured step."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from popgeo.capture.op_graph import BlockMark, OpGraph
from popgeo.did_you_mean import meant

_NUMBERED = re.compile(r"^(.*?\.)?\d+(?=\.|$)")


@dataclass(frozen=True, kw_only=True)
class LayerOps:
    """A layer: consecutive operations of the forward pass that are never cut apart.

    Attributes:
        name: Dotted name of the layer: up to the first number, as in `layers.3`, or the whole name without a number.
        ops: Positions of its operations in the graph.
        numbered: Whether the layer is an element of a list of layers.
    """

    name: str
    ops: tuple[int, ...]
    numbered: bool


@dataclass(frozen=True, kw_only=True)
class StageCut:
    """A model cut into stages.

    Attributes:
        stage_of: Stage of each operation, in the order of the graph.
        ipus: IPU of each stage. A later stage may use an earlier IPU again.
        layers: Names of each stage's layers, in order.
    """

    stage_of: tuple[int, ...]
    ipus: tuple[int, ...]
    layers: tuple[tuple[str, ...], ...]

    @property
    def num_ipus(self) -> int:
        """Number of IPUs."""
        return max(self.ipus) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """First and last layer of each stage as text."""
        ends = [(layers[0] or "(model)", layers[-1] or "(model)") for layers in self.layers]
        return tuple(" to ".join(dict.fromkeys(of)) for of in ends)


def layers_of(graph: OpGraph) -> list[LayerOps]:
    """Return the layers of the forward pass in order; operations between two layers belong to the first one."""
    layers: list[tuple[str, bool, list[int]]] = []
    for index, op in enumerate(graph.ops):
        if op.phase != "forward":
            continue
        match = _NUMBERED.match(op.module)
        name = match.group(0) if match else op.module
        if layers and (name == layers[-1][0] or not op.module):
            layers[-1][2].append(index)
        else:
            layers.append((name, match is not None, [index]))
    return [LayerOps(name=name, ops=tuple(ops), numbered=numbered) for name, numbered, ops in layers]


def cut_evenly(layers: Sequence[LayerOps], cycles: Sequence[float], nbytes: Sequence[int], stages: int) -> list[int]:
    """Return the first layer of each stage, for the shortest slowest stage and evenly used memory.

    Dynamic programming over all cuts into consecutive layers solves this chains-on-chains problem (Pinar and Aykanat,
    2004). The weight of a stage is its share of all cycles or its share of all bytes, the larger of the two.

    Args:
        layers: Layers, in order.
        cycles: Cycles of each layer, forward and backward.
        nbytes: Bytes that each layer keeps between steps.
        stages: Number of stages.

    Raises:
        ValueError: there are fewer layers than stages.

    Example:
        >>> layers = [LayerOps(name=str(n), ops=(n,), numbered=True) for n in range(4)]
        >>> cut_evenly(layers, cycles=[1, 1, 1, 3], nbytes=[0, 0, 0, 0], stages=2)
        [0, 3]
    """
    if stages > len(layers):
        raise ValueError(
            f"The forward pass has {len(layers)} layers ({', '.join(layer.name or '(model)' for layer in layers[:5])}, "
            f"…), which cannot be cut into {stages} stages. Ask for at most {len(layers)}."
        )
    weights = [max(c / max(sum(cycles), 1), b / max(sum(nbytes), 1)) for c, b in zip(cycles, nbytes, strict=True)]
    total = list(itertools.accumulate(weights, initial=0.0))
    best = [[float("inf")] * (len(layers) + 1) for _ in range(stages + 1)]
    start = [[0] * (len(layers) + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, stages + 1):
        for end in range(stage, len(layers) + 1):
            for begin in range(stage - 1, end):
                slowest = max(best[stage - 1][begin], total[end] - total[begin])
                if slowest < best[stage][end]:
                    best[stage][end], start[stage][end] = slowest, begin
    firsts, end = [], len(layers)
    for stage in range(stages, 0, -1):
        end = start[stage][end]
        firsts.append(end)
    return firsts[::-1]


def cut_by_layers(layers: Sequence[LayerOps], layers_per_ipu: Sequence[int]) -> list[int]:
    """Return the first layer of each stage, from the number of numbered layers on each IPU.

    Operations before the first numbered layer belong to the first stage, operations after the last to the last stage.

    Raises:
        ValueError: the counts do not add up to the model's numbered layers, or an IPU after the first has no layer.

    Example:
        >>> names = ("embed", "h.0", "h.1", "head")
        >>> layers = [LayerOps(name=name, ops=(), numbered=name[-1].isdigit()) for name in names]
        >>> cut_by_layers(layers, [0, 1, 1])
        [0, 1, 2]
    """
    numbered = [number for number, layer in enumerate(layers) if layer.numbered]
    if sum(layers_per_ipu) != len(numbered) or min(layers_per_ipu, default=-1) < 0:
        raise ValueError(
            f"The layers per IPU {list(layers_per_ipu)} add up to {sum(layers_per_ipu)}, but the model runs "
            f"{len(numbered)} numbered layers; put every layer on one IPU."
        )
    firsts, done = [0], layers_per_ipu[0]
    for count in layers_per_ipu[1:]:
        if count == 0 or (done == 0 and numbered[0] == 0):
            raise ValueError(
                f"The layers per IPU {list(layers_per_ipu)} leave a stage without operations; only the first IPU may "
                "have no layer, if the model runs operations before its first layer."
            )
        firsts.append(numbered[done])
        done += count
    return firsts


def cut_at(
    graph: OpGraph, layers: Sequence[LayerOps], begins: Mapping[str, int]
) -> tuple[list[LayerOps], list[int], list[int]]:
    """Return the layers, the first layer of each stage and its IPU, for modules that begin a stage.

    It follows PopTorch's BeginBlock. A module may be inside of a layer, which is then cut at the module, and may be
    called in parts: a stage begins at its first part, and again only after another stage.

    Raises:
        ValueError: a name is not a module of the forward pass.
    """
    pieces: list[LayerOps] = []
    firsts, ipus, current = [0], [0], ""
    for layer in layers:
        start = 0
        for place, index in enumerate(layer.ops):
            inside = (name for name in begins if f"{graph.ops[index].module}.".startswith(f"{name}."))
            into = max(inside, key=len, default="")  # the innermost
            if not into or f"{current}.".startswith(f"{into}."):
                continue
            if place > start:
                pieces.append(replace(layer, ops=layer.ops[start:place]))
            start, current = place, into
            if pieces:
                firsts.append(len(pieces))
                ipus.append(begins[into])
            else:
                ipus[0] = begins[into]
        pieces.append(replace(layer, ops=layer.ops[start:]))
    require_layers(graph, begins, "Options.stages")
    return pieces, firsts, ipus


def require_layers(graph: OpGraph, names: Iterable[str], owner: str) -> None:
    """Raise if the forward pass does not run a layer that an option names.

    Raises:
        ValueError: the forward pass runs neither a module of that name nor a module inside of it.
    """
    modules = dict.fromkeys(op.module for op in graph.ops if op.phase == "forward" and op.module)
    layers = dict.fromkeys(layer.name for layer in layers_of(graph) if layer.name)
    for name in names:
        if not any(f"{module}.".startswith(f"{name}.") for module in modules):
            raise ValueError(
                f"{owner} names {name!r}, but no layer has this name.{meant(name, [*layers, *modules])} The forward "
                f"pass runs {', '.join(layers) or 'no layer'}; names of modules inside of a layer are also allowed."
            )


def cut(graph: OpGraph, layers: Sequence[LayerOps], firsts: Sequence[int], ipus: Sequence[int]) -> StageCut:
    """Return the stage of every operation: by its layer, or in the backward pass by the layer of its gradient.

    A gradient is computed on its layer's stage or, if that is unclear, on the stage of its inputs. It never moves to a
    later stage.

    Raises:
        ValueError: the IPUs are not numbered from 0 without gaps.
    """
    if {*ipus} != {*range(len({*ipus}))}:
        raise ValueError(f"The stages are on IPUs {[*ipus]}; number them from 0 without gaps.")
    groups = [layers[first:end] for first, end in zip(firsts, [*firsts[1:], len(layers)], strict=True)]
    stage_of = [len(firsts) - 1] * len(graph.ops)
    of_module: dict[tuple[str, BlockMark | None], set[int]] = {}
    for stage, group in enumerate(groups):
        for index in (index for layer in group for index in layer.ops):
            stage_of[index] = stage
            of_module.setdefault((graph.ops[index].module, graph.ops[index].block), set()).add(stage)
    made_in: dict[int, int] = {}  # stage of each value of the backward pass
    for index, op in enumerate(graph.ops):
        if op.phase == "forward":
            continue
        arrives = min((made_in[v] for v in op.reads() if v in made_in), default=len(firsts) - 1)
        its = of_module.get((op.module, op.block), set())
        own = next(iter(its)) if len(its) == 1 else arrives
        stage_of[index] = min(own, arrives)
        made_in |= dict.fromkeys(op.makes(), stage_of[index])
    names = tuple(tuple(layer.name for layer in group) for group in groups)
    return StageCut(stage_of=tuple(stage_of), ipus=tuple(ipus), layers=names)
