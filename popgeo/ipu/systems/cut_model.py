"""Cutting of a model into stages, at layers or at named blocks, according to the option `stages`."""

from collections.abc import Mapping, Sequence

from popgeo.capture.op_graph import BlockMark, OpGraph, Role
from popgeo.ipu.cost.plan import OpCost, Profile
from popgeo.ipu.options import Options
from popgeo.ipu.stage_choices import BLOCKS, EACH_BLOCK, Stage, Stages
from popgeo.ipu.systems.stage_cut import LayerOps, StageCut, cut, cut_at, cut_by_layers, cut_evenly


def requested_stages(graph: OpGraph, options: Options) -> Stages | None:
    """Return the stages of the options, or else the model's named blocks; None if neither has several."""
    stages, named = options.stages, any(op.block is not None for op in graph.ops)
    if stages is None:
        # Operations before the first block are on IPU 0.
        ipus = {0 if op.block is None else op.block.ipu for op in graph.ops if op.phase == "forward"}
        return BLOCKS if named and len(ipus - {None}) > 1 else None
    return None if stages == EACH_BLOCK and not named else stages


def cut_model(
    graph: OpGraph, layers: Sequence[LayerOps], costs: Sequence[OpCost], stages: Stages, *, on_one_ipu: bool = False
) -> StageCut:
    """Return the model cut into stages.

    Args:
        graph: The step of one micro-batch.
        layers: Layers of its forward pass.
        costs: Costs of its operations, in order.
        stages: Stages in a form that `Options` has checked.
        on_one_ipu: Whether stages share one IPU unless they name their IPUs.

    Raises:
        ValueError: the stages do not cover the model.
    """
    if isinstance(stages, Mapping):
        return cut(graph, *cut_at(graph, layers, stages))
    ipus: Sequence[int] | None = None
    if isinstance(stages, int):
        firsts = cut_evenly(layers, *_weights(graph, layers, costs), stages)
    elif counts := [one for one in stages if isinstance(one, int)]:
        firsts = cut_by_layers(layers, counts)
    else:
        marks, layers = named_blocks(graph)
        if stages == BLOCKS:
            firsts, ipus = cut_at_ipus(marks)
        elif stages == EACH_BLOCK:
            firsts, ipus = [*range(len(marks))], [n if mark.ipu is None else mark.ipu for n, mark in enumerate(marks)]
        else:
            firsts, ipus = cut_at_stages(marks, [one for one in stages if isinstance(one, Stage)])
    return cut(graph, layers, firsts, [0] * len(firsts) if on_one_ipu else ipus or range(len(firsts)))


def _weights(
    graph: OpGraph, layers: Sequence[LayerOps], costs: Sequence[OpCost]
) -> tuple[Sequence[float], Sequence[int]]:
    """Return the cycles of each layer, forward and backward, and the bytes of its parameters."""
    every = [*range(len(layers))]
    layer_of = cut(graph, layers, every, every).stage_of
    cycles, held = [0.0] * len(layers), [dict[int, int]() for _ in layers]
    parameters = {v for given, v in graph.inputs.items() if given.role is Role.PARAMETER}
    for layer, op, its in zip(layer_of, graph.ops, costs, strict=True):
        cycles[layer] += its.plan.cycles(Profile.CALIBRATED)
        held[layer] |= {v: graph.values[v].nbytes for v in op.reads() if v in parameters}
    return cycles, [sum(one.values()) for one in held]


FIRST = BlockMark("(start)", 0)


def named_blocks(graph: OpGraph) -> tuple[list[BlockMark], list[LayerOps]]:
    """Return the marks and the operations of the forward pass's blocks, in order.

    Operations before the first block make their own block on IPU 0, as PopTorch's guide says ("by default all layers
    will be on IPU 0 until the first pipeline annotation is encountered"). Later operations outside of all blocks belong
    to the block before if they read no weights.

    Raises:
        ValueError: the model names no block, or a later operation with weights runs outside of all blocks.
    """
    state = graph.state_storages()
    found: list[tuple[BlockMark, list[int]]] = []
    forward = [(index, op) for index, op in enumerate(graph.ops) if op.phase == "forward"]
    if all(op.block is None for _, op in forward):
        raise ValueError(
            "Options.stages asks for the model's blocks, but the model names none. Mark the beginning of each block "
            "with ipu.BeginBlock(model.layer, ipu_id=1), or pass a number of stages."
        )
    for index, op in forward:
        weights = not graph.is_view(op) and any(graph.values[v].storage in state for v in op.reads())
        if op.block is None and weights and op.source and found and found[-1][0] is not FIRST:
            raise ValueError(
                f"The blocks do not cover the model: {f'module {op.module}' if op.module else 'the model'} uses its "
                f"weights outside of every block ({op.source}). Let a block begin there."
            )
        mark = op.block or (found[-1][0] if found else FIRST)
        if found and found[-1][0] == mark:
            found[-1][1].append(index)
        else:
            found.append((mark, [index]))
    blocks = [LayerOps(name=mark.name, ops=tuple(ops), numbered=False) for mark, ops in found]
    return [mark for mark, _ in found], blocks


def cut_at_ipus(marks: Sequence[BlockMark]) -> tuple[list[int], list[int]]:
    """Return the first block and the IPU of each stage; a stage begins at each change of the IPU.

    Example:
        >>> cut_at_ipus([BlockMark("a", 0), BlockMark("b", None), BlockMark("c", 1)])
        ([0, 2], [0, 1])
    """
    firsts, ipus = [0], [marks[0].ipu or 0]
    for number, mark in enumerate(marks):
        if mark.ipu is not None and mark.ipu != ipus[-1]:
            firsts.append(number)
            ipus.append(mark.ipu)
    return firsts, ipus


def cut_at_stages(marks: Sequence[BlockMark], stages: Sequence[Stage]) -> tuple[list[int], list[int]]:
    """Return the first block and the IPU of each stage, for stages that name their blocks.

    Raises:
        ValueError: a block is in no stage or in two stages, a stage names a block that the model does not run, or the
            model returns to an earlier stage.

    Example:
        >>> marks = [BlockMark(name, None) for name in ("a", "b", "c")]
        >>> cut_at_stages(marks, [Stage("a", "b"), Stage("c").ipu(1)])
        ([0, 2], [0, 1])
    """
    of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in stage.names:
            if name in of:
                raise ValueError(f"Block {name!r} is in stages {of[name]} and {number}; a block has one stage.")
            of[name] = number
    names = [mark.name for mark in marks]
    if marks[0] is FIRST and len(marks) > 1:
        of[FIRST.name] = of.get(names[1], 0)
    absent = [name for name in of if name not in names]
    without = [name for name in names if name not in of]
    if absent or without:
        what = f"names block {absent[0]!r}, which the model does not run" if absent else f"has no block {without[0]!r}"
        raise ValueError(f"Options.stages {what}; the model runs {', '.join(dict.fromkeys(names))}.")
    firsts, order = list[int](), list[int]()
    for number, name in enumerate(names):
        if not order or of[name] != order[-1]:
            if of[name] in order or (order and of[name] < order[-1]):
                raise ValueError(
                    f"Stages feed back: block {name!r} of stage {of[name]} runs after block {names[number - 1]!r} of "
                    f"stage {order[-1]}, and may need its results. Number stages in the order of the model's "
                    f"blocks: {', '.join(dict.fromkeys(names))}."
                )
            firsts.append(number)
            order.append(of[name])
    return firsts, [n if stages[n].on_ipu is None else stages[n].on_ipu or 0 for n in order]
