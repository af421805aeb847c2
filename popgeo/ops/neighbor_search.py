"""popgeo::near_nodes: which nodes are near which, each within its own graph, as one operation.

The compiled search costs what the graphs' own pairs cost, whatever `width` is, and large graphs are searched by cells.
Its definition in plain torch looks at `width` rows for each node. Torch's table of decompositions has it, for machines
and files without this operation.
"""

import struct
from enum import IntEnum

import torch
from torch import Tensor
from torch._C import _functorch
from torch._decomp import register_decomposition
from torch.compiler import is_compiling

from popgeo.native import library
from popgeo.ops.kernel_arguments import as_int64, check_array, pointer
from popgeo.ops.neighbor_candidates import both_real, first_and_size, near_pairs, squared_distances
from popgeo.ops.refusals import check_index
from popgeo.ops.register_op import register

_pack = struct.Struct("=12qd").pack


class Form(IntEnum):
    """What is listed; the numbers are those of near_nodes.cpp."""

    KNN = 0
    PAIRS = 1
    RADIUS = 2


def near_nodes(
    form: Form,
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    slots: int,
    num_graphs: int,
    width: int,
    nodes_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The other ends of edges in fixed slots, and which of them are real; without a gradient.

    Args:
        form: The nearest of each node, each pair once, or all edges as they come.
        pos: Positions. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        cutoff: Longest edge, in the unit of `pos`.
        slots: Of each node; for `RADIUS` of the whole batch.
        num_graphs: Graphs in the batch, padding included.
        width: Rows from the start of its graph among which a node's neighbours are.
        nodes_mask: True where the node is real. [num_nodes]

    Returns:
        Neighbours of each node and where there is one, both [num_nodes, slots]; for `RADIUS` neighbours and centres
        [2, slots] and how many edges there are, which may be more. int64 []
    """
    arguments = (int(form), pos.detach(), batch, cutoff, slots, num_graphs, width, nodes_mask)
    is_transformed = not is_compiling() and _functorch.peek_interpreter_stack() is not None
    if is_transformed or not pos.is_cpu or pos.dtype not in (torch.float32, torch.float64):
        return _define(*arguments)
    return _NEAR_NODES(*arguments)


def _define(
    form: int,
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    slots: int,
    num_graphs: int,
    width: int,
    nodes_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `near_nodes`."""
    if form == Form.PAIRS:
        return _pairs(pos, batch, cutoff, slots, num_graphs, nodes_mask)
    candidates, near = near_pairs(pos, batch, cutoff, num_graphs, width, nodes_mask)
    if form == Form.KNN:
        return _nearest(pos, candidates, near, slots)
    centres = torch.arange(pos.size(0), device=pos.device).unsqueeze(1).expand_as(candidates)
    near = near.flatten()
    rank = near.cumsum(0) - 1
    # Everything that has no slot lands in one more, which is cut off.
    slot = torch.where(near & (rank < slots), rank, slots)
    ends = torch.stack([candidates.flatten(), centres.flatten()])
    edge_index = torch.full((2, slots + 1), pos.size(0) - 1, dtype=torch.long, device=pos.device)
    return edge_index.scatter(1, slot.expand_as(ends), ends)[:, :slots].clone(), near.sum()


def _nearest(pos: Tensor, candidates: Tensor, near: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    num_candidates = candidates.size(1)
    if num_candidates > slots:
        r2 = squared_distances(pos, candidates)
        nearest = r2.masked_fill(~near, torch.inf).sort(dim=1, stable=True).indices[:, :slots]
        return candidates.gather(1, nearest), near.gather(1, nearest)
    absent = (0, slots - num_candidates)
    return torch.nn.functional.pad(candidates, absent), torch.nn.functional.pad(near, absent)


def _pairs(
    pos: Tensor, batch: Tensor, cutoff: float, slots: int, num_graphs: int, nodes_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The node at place l of a graph of n nodes with places l + 1 to l + n // 2 (mod n)."""
    first, size = first_and_size(batch, num_graphs)
    rows = torch.arange(pos.size(0), device=pos.device)
    step = torch.arange(1, slots + 1, device=pos.device)
    place = (rows - first).unsqueeze(1)
    size = size.unsqueeze(1)
    others = place + step
    others = first.unsqueeze(1) + torch.where(others < size, others, others - size)
    # In a graph of an even number of nodes the longest step would find each pair from both ends.
    once = (2 * step < size) | ((2 * step == size) & (place < step))
    others = torch.where(once, others, rows.unsqueeze(1))
    return others, once & both_real(others, nodes_mask) & (squared_distances(pos, others) <= cutoff * cutoff)


def _search(
    form: int,
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    slots: int,
    num_graphs: int,
    width: int,
    nodes_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    native = library.packed("popgeo_near_nodes")
    if native is None or not pos.is_cpu:
        return _define(form, pos, batch, cutoff, slots, num_graphs, width, nodes_mask)
    num_nodes = len(batch)
    check_index("batch", batch, num_nodes, pos)
    if pos.dim() != 2 or len(pos) != num_nodes or slots < 0 or form not in list(Form):
        raise ValueError(f"pos has shape {tuple(pos.shape)} and there are {slots} slots; pos has a row for each node.")
    if nodes_mask is not None:
        check_array("nodes_mask", nodes_mask, (num_nodes,), torch.bool)
    others, near = _empty(form, pos, batch, cutoff, slots)
    pos, batch = library.as_read(pos), as_int64(batch)
    real = None if nodes_mask is None else nodes_mask.contiguous()
    sizes = (pos.shape[0], pos.shape[1], slots, width, form, pos.dtype is torch.float64, torch.get_num_threads())
    if native(_pack(*map(pointer, (pos, batch, real, others, near)), *sizes, cutoff)):
        raise MemoryError("popgeo could not allocate its working memory.")
    return others, near


def _empty(form: int, pos: Tensor, batch: Tensor, cutoff: float, slots: int, *_: object) -> tuple[Tensor, Tensor]:
    if form == Form.RADIUS:
        return batch.new_empty(2, slots, dtype=torch.long), batch.new_empty((), dtype=torch.long)
    shape = pos.shape[0], slots
    return batch.new_empty(shape, dtype=torch.long), batch.new_empty(shape, dtype=torch.bool)


_NEAR_NODES = register(
    "near_nodes(int form, Tensor pos, Tensor batch, float cutoff, SymInt slots, SymInt num_graphs, SymInt width, "
    "Tensor? nodes_mask) -> (Tensor, Tensor)",
    kernel=_search,
    fake=_empty,
)
register_decomposition(torch.ops.popgeo.near_nodes.default)(_define)
