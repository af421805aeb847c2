"""Operations that lay elements out anew."""

import functools

from popgeo.ipu.codelets.calibration import Machine
from popgeo.ipu.codelets.compute import compute_step
from popgeo.ipu.codelets.elementwise import spread
from popgeo.ipu.codelets.exchange import exchange_step, transfer_cycles
from popgeo.ipu.codelets.operands import Rule, made, read, tensor, width
from popgeo.ipu.op_graph import Op, OpGraph
from popgeo.ipu.plan import Plan, Validity


@functools.lru_cache(maxsize=4096)
def plan_copy(elements: int, width: int, machine: Machine, pieces: int = 1) -> Plan:
    """Moves elements between tiles and into order.

    Args:
        elements: How many.
        width: Bytes of each.
        machine: What to plan for.
        pieces: Tensors that they come from.

    Example:
        >>> from popgeo.ipu.target import IpuTarget
        >>> plan_copy(1472 * 100, 4, Machine(target=IpuTarget.bow())).cycles("ideal")
        780.0
    """
    target = machine.target
    most, tiles = spread(elements, width, machine.num_tiles)
    nbytes = most * width
    transfer = transfer_cycles(target, bytes_in=nbytes, bytes_out=nbytes, fragments_in=pieces, is_irregular=True)
    steps = (
        exchange_step(
            "move elements", target, transfer=transfer, bytes_in=nbytes, bytes_out=nbytes, fragments=pieces, tiles=tiles
        ),
        compute_step(
            "copy", target, vertex=target.copy_cycles + nbytes / target.copy_bytes, tiles=tiles,
            evenness=elements / (tiles * most),
        ),
    )  # fmt: skip
    return Plan(
        family="copy", split={"tiles": tiles}, supersteps=steps, temporary_bytes=nbytes, validity=Validity.ESTIMATE,
        why="no published measurement of a copy",
    )  # fmt: skip


def _copy(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    values = made(graph, op) or [graph.values[v] for v in op.writes]
    return plan_copy(
        max(1, sum(value.numel for value in values)), width(values[0]), machine, max(1, len(read(graph, op)))
    )


def _copy_part(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Writes into a part of a tensor of which the rest stays or is zero."""
    result = made(graph, op)[0]
    return plan_copy(max(1, result.numel), width(tensor(graph, op.args[0])), machine, pieces=2)


RULES: dict[str, Rule] = {
    **{
        f"aten.{name}": _copy
        for name in (
            "clone", "copy", "contiguous", "cat", "concat", "stack", "hstack", "vstack", "repeat", "repeat_interleave",
            "tile", "flip", "roll", "rot90", "constant_pad_nd", "index_fill", "tril", "triu", "diag_embed", "view_copy",
            "_reshape_copy", "expand_copy", "slice_copy", "im2col", "_foreach_copy", "pixel_shuffle",
        )
    },
    **{
        f"aten.{name}": _copy_part
        for name in (
            "slice_backward", "select_backward", "slice_scatter", "select_scatter", "diagonal_backward",
            "as_strided_scatter", "unfold_backward", "diagonal_scatter", "masked_scatter",
        )
    },
}  # fmt: skip
