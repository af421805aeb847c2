"""Operations that lay elements out anew, that make tensors out of nothing, and that only look at memory differently."""

import functools

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import spread
from popgeo.ipu.cost.operands import Rule, made, read, tensor, width
from popgeo.ipu.cost.plan import Activity, Plan, Superstep, Validity
from popgeo.ipu.cost.scatter import fill_step
from popgeo.ipu.cost.supersteps import compute_step, exchange_step, transfer_cycles


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
        family="movement", split={"tiles": tiles}, supersteps=steps, temporary_bytes=nbytes, validity=Validity.ESTIMATE,
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


def _fill(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    values = made(graph, op) or [tensor(graph, op.args[0])]
    step = fill_step(sum(value.numel for value in values), width(values[0]), machine.target)
    return Plan(
        family="movement", split={"tiles": step.tiles}, supersteps=(step,), validity=Validity.ESTIMATE,
        why="no published measurement of a fill",
    )  # fmt: skip


def _all_to_all(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    """Every replica sends each other one its part, over IPU-Links, all at the same time."""
    target, value = machine.target, made(graph, op)[0]
    world_size = int(op.args[1])
    sent = value.nbytes * (world_size - 1) // world_size
    cycles = (target.link_seconds * (world_size - 1) + sent / target.link_bytes_per_second) * target.clock
    share = -(-sent // machine.num_tiles)
    step = Superstep(
        name="all-to-all", activity=Activity.EXCHANGE, ideal=cycles, calibrated=cycles, mean=cycles,
        tiles=machine.num_tiles, bytes_in=share, bytes_out=share, bytes_total=sent,
    )  # fmt: skip
    return Plan(
        family="movement", split={"replicas": world_size}, supersteps=(step,), temporary_bytes=share,
        validity=Validity.ESTIMATE, why="links at their full rate; no figures are published for it alone",
    )  # fmt: skip


def _free(graph: OpGraph, op: Op, machine: Machine) -> Plan:
    return Plan(family="view", validity=Validity.ESTIMATE, why="taken to cost nothing")


RULES: dict[str, Rule] = {
    "popgeo.identity_loss": _copy,
    "popgeo.print_tensor": _copy,
    "popgeo.all_to_all": _all_to_all,
    **{
        f"aten.{name}": _copy
        for name in (
            "clone", "copy", "contiguous", "cat", "concat", "stack", "hstack", "vstack", "repeat", "repeat_interleave",
            "tile", "flip", "roll", "rot90", "constant_pad_nd", "index_fill", "tril", "triu", "diag_embed", "view_copy",
            "_reshape_copy", "expand_copy", "slice_copy", "im2col", "_foreach_copy", "pixel_shuffle",
            "pixel_unshuffle", "channel_shuffle",
        )
    },
    **{
        f"aten.{name}": _copy_part
        for name in (
            "slice_backward", "select_backward", "slice_scatter", "select_scatter", "diagonal_backward",
            "as_strided_scatter", "unfold_backward", "diagonal_scatter", "masked_scatter",
        )
    },
    **{
        f"aten.{name}": _fill
        for name in (
            "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like",
            "fill", "zero", "arange", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices",
        )
    },
    **{
        f"aten.{name}": _free
        for name in (
            "view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "expand", "expand_as", "t", "transpose",
            "permute", "numpy_T", "mT", "movedim", "select", "slice", "narrow", "unsqueeze", "squeeze", "flatten",
            "unflatten", "split", "split_with_sizes", "unsafe_split", "chunk", "unbind", "diagonal", "as_strided",
            "alias", "detach", "lift", "lift_fresh", "view_as_real", "view_as_complex", "unfold", "empty", "empty_like",
            "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "sym_size", "_local_scalar_dense",
            "resize", "set",
        )
    },
}  # fmt: skip
