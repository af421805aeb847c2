"""Cuts a model where it is asked for: the one place that tells the forms of stages apart."""

from collections.abc import Mapping, Sequence

from popgeo.capture.op_graph import OpGraph, Role
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.options import Options
from popgeo.ipu.stage_choices import BLOCKS, EACH_BLOCK, Stage, Stages
from popgeo.ipu.systems.named_blocks import (
    cut_at_each,
    cut_at_ipus,
    cut_at_stages,
    has_blocks,
    named_blocks,
    several_ipus,
)
from popgeo.ipu.systems.stage_cut import LayerOps, StageCut, cut, cut_at, cut_by_layers, cut_evenly


def stages_asked_for(graph: OpGraph, options: Options) -> Stages | None:
    """The stages of the options, or else the blocks that the model names; None where neither asks for several."""
    stages: Stages | None = options.stages
    if stages is None:
        return BLOCKS if several_ipus(graph) else None
    return None if stages == EACH_BLOCK and not has_blocks(graph) else stages


def cut_model(
    graph: OpGraph, layers: Sequence[LayerOps], costs: Sequence[OpCost], stages: Stages, *, on_one_ipu: bool = False
) -> StageCut:
    """The model cut into stages.

    Args:
        graph: The step of one micro-batch.
        layers: Of its forward pass.
        costs: Of its operations, in order.
        stages: In a form that `Options` has checked.
        on_one_ipu: Whether stages share one IPU, unless they name theirs.

    Raises:
        ValueError: the stages do not cover the model.
    """
    of_ipus = () if isinstance(stages, int | str | Mapping) else tuple(stages)
    named = [one for one in of_ipus if isinstance(one, Stage)]
    counts = [one for one in of_ipus if isinstance(one, int)]
    if named or isinstance(stages, str):
        marked = named_blocks(graph)
        marks, layers = [mark for mark, _ in marked], [block for _, block in marked]
    if isinstance(stages, Mapping):
        return cut(graph, layers, *cut_at(layers, stages))
    if isinstance(stages, int):
        firsts, ipus = cut_evenly(layers, *_weights(graph, layers, costs), stages), [*range(stages)]
    elif isinstance(stages, str):
        firsts, ipus = cut_at_ipus(marks) if stages == BLOCKS else cut_at_each(marks)
    elif named:
        firsts, ipus = cut_at_stages(marks, named)
    else:
        firsts, ipus = cut_by_layers(layers, counts), [*range(len(counts))]
    return cut(graph, layers, firsts, [0] * len(ipus) if on_one_ipu else ipus)


def _weights(
    graph: OpGraph, layers: Sequence[LayerOps], costs: Sequence[OpCost]
) -> tuple[Sequence[float], Sequence[int]]:
    """Cycles of each layer, forward and backward, and bytes of its parameters."""
    every = [*range(len(layers))]
    layer_of = cut(graph, layers, every, every).stage_of
    cycles, held = [0.0] * len(layers), [dict[int, int]() for _ in layers]
    parameters = {v for given, v in graph.inputs.items() if given.role is Role.PARAMETER}
    for layer, op, its in zip(layer_of, graph.ops, costs, strict=True):
        cycles[layer] += its.plan.cycles(Profile.CALIBRATED)
        held[layer] |= {v: graph.values[v].nbytes for v in op.reads() if v in parameters}
    return cycles, [sum(one.values()) for one in held]
