"""The op popgeo::near_nodes, which searches for the neighbors of nodes within their graphs.

The cost of the compiled search depends on the pairs of each graph, not on `width`; it searches large graphs by cells.
On a GPU kernels of Triton find lists that are shorter than the list of all candidates.
The definition in plain torch compares each node with `width` rows. It is in torch's table of decompositions, for
machines and files without this operation.
"""

import struct
from enum import IntEnum
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch
from torch._decomp import register_decomposition
from torch.compiler import is_compiling

from popgeo.native import library
from popgeo.ops import sum_on_device
from popgeo.ops.kernel_arguments import as_int64, check_array
from popgeo.ops.neighbor_candidates import both_real, first_and_size, squared_distances
from popgeo.ops.refusals import check_index, refuse_index
from popgeo.ops.register_op import register

SERVED = (torch.float32, torch.float64)
_pack = struct.Struct("=13qd").pack


class SearchKind(IntEnum):
    """The kinds of neighbor lists, numbered as in near_nodes.cpp.

    Attributes:
        KNN: The nearest neighbors of each node.
        PAIRS: Each pair once.
        RADIUS: All edges, ordered by center.
    """

    KNN = 0
    PAIRS = 1
    RADIUS = 2


class Search(NamedTuple):
    """The nodes and the limits of a search.

    Attributes:
        pos: Positions; the search has no gradient. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        cutoff: Longest edge, in the unit of `pos`.
        num_graphs: Graphs in the batch, padding included.
        width: Number of rows, from the start of a node's graph, that are searched for its neighbors.
        nodes_mask: True where the node is real. [num_nodes]
    """

    pos: Tensor
    batch: Tensor
    cutoff: float
    num_graphs: int
    width: int
    nodes_mask: Tensor | None


def near_nodes(form: SearchKind, slots: int, search: Search) -> tuple[Tensor, Tensor]:
    """Find the edges of nodes, in fixed slots with a mask for the real edges, without a gradient.

    Args:
        form: Kind of the list.
        slots: Slots of each node; for `RADIUS` slots of the whole batch.
        search: Nodes and limits of the search.

    Returns:
        Neighbors of each node and their mask, both [num_nodes, slots]. For `RADIUS` neighbors and centers [2, slots],
        and the number of edges, which may be larger than the number of slots. int64 []
    """
    pos = search.pos.detach()
    is_transformed = not is_compiling() and _functorch.peek_interpreter_stack() is not None
    arguments = pos, *tuple(search)[1:]
    is_served = pos.is_cpu and pos.dtype in SERVED
    if is_transformed or not (is_served or _on_device(form, slots, search)):
        return _define(form, slots, *arguments)
    return _NEAR_NODES(int(form), slots, *arguments)


def _on_device(form: int, slots: int, search: Search) -> ModuleType | None:
    """Return the kernels of a GPU for lists that are shorter than their candidates; torch makes the other lists."""
    is_short = form == SearchKind.RADIUS or (form == SearchKind.KNN and search.width - 1 > slots)
    if not is_short or not sum_on_device.serves(search.pos) or search.pos.dtype not in SERVED:
        return None
    return sum_on_device.triton_kernels("triton_neighbors")


def _define(form: int, slots: int, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Find the edges with the definition in plain torch; `near_nodes` explains the arguments."""
    search = Search(*arguments)
    if form == SearchKind.PAIRS:
        return _pairs(slots, search)
    num_nodes = len(search.pos)
    candidates, near = _near_pairs(search)
    if form == SearchKind.KNN:
        return _nearest(search.pos, candidates, near, slots)
    centres = torch.arange(num_nodes, device=near.device).unsqueeze(1).expand_as(candidates)
    near = near.flatten()
    rank = near.cumsum(0) - 1
    # Edges without a slot go to an additional slot, which is cut off.
    slot = torch.where(near & (rank < slots), rank, slots)
    ends = torch.stack([candidates.flatten(), centres.flatten()])
    edge_index = torch.full((2, slots + 1), num_nodes - 1, dtype=torch.long, device=near.device)
    return edge_index.scatter(1, slot.expand_as(ends), ends)[:, :slots].clone(), near.sum()


def _near_pairs(search: Search) -> tuple[Tensor, Tensor]:
    """Return each node's candidates except the node itself, and a mask of its neighbors. [num_nodes, width - 1]."""
    first, size = first_and_size(search.batch, search.num_graphs)
    rows = torch.arange(len(search.pos), device=first.device)
    place = torch.arange(search.width - 1, device=first.device).expand(len(rows), -1)
    place = place + (place >= (rows - first).unsqueeze(1))
    inside = place < size.unsqueeze(1)
    others = torch.where(inside, first.unsqueeze(1) + place, rows.unsqueeze(1))
    real = inside & both_real(others, search.nodes_mask)
    return others, real & (squared_distances(search.pos, others) <= search.cutoff * search.cutoff)


def _nearest(pos: Tensor, candidates: Tensor, near: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    num_candidates = candidates.size(1)
    if num_candidates > slots:
        r2 = squared_distances(pos, candidates)
        nearest = r2.masked_fill(~near, torch.inf).sort(dim=1, stable=True).indices[:, :slots]
        return candidates.gather(1, nearest), near.gather(1, nearest)
    absent = (0, slots - num_candidates)
    return torch.nn.functional.pad(candidates, absent), torch.nn.functional.pad(near, absent)


def _pairs(slots: int, search: Search) -> tuple[Tensor, Tensor]:
    """Pair the node at place l of a graph of n nodes with the places l + 1 to l + n // 2 (mod n)."""
    first, size = first_and_size(search.batch, search.num_graphs)
    rows = torch.arange(len(search.pos), device=first.device)
    step = torch.arange(1, slots + 1, device=first.device)
    place = (rows - first).unsqueeze(1)
    size = size.unsqueeze(1)
    others = place + step
    others = first.unsqueeze(1) + torch.where(others < size, others, others - size)
    # With an even number of nodes the longest step would find each pair from both ends.
    once = (2 * step < size) | ((2 * step == size) & (place < step))
    others = torch.where(once, others, rows.unsqueeze(1))
    near = squared_distances(search.pos, others) <= search.cutoff * search.cutoff
    return others, once & both_real(others, search.nodes_mask) & near


def _search(form: int, slots: int, *arguments: Any) -> tuple[Tensor, Tensor]:
    search = Search(*arguments)
    native, kernels = library.packed("popgeo_near_nodes"), _on_device(form, slots, search)
    if kernels is None and (native is None or not search.pos.is_cpu or search.pos.dtype not in SERVED):
        return _define(form, slots, *arguments)
    num_nodes = len(search.batch)
    check_index("batch", search.batch, num_nodes, search.pos)
    fits = search.pos.dim() == 2 and len(search.pos) == num_nodes and slots >= 0 and form in list(SearchKind)
    is_wide = search.width > 0 or form == SearchKind.PAIRS or not num_nodes
    if not fits or not is_wide or max(search.width, search.num_graphs) >= 2**31:
        raise ValueError(f"pos {[*search.pos.shape]} and {num_nodes} nodes, or slots and width, do not fit each other.")
    check_array("nodes_mask", search.nodes_mask, (num_nodes,), torch.bool)
    if kernels is not None:
        find = kernels.nearest if form == SearchKind.KNN else kernels.within
        graphs = first_and_size(search.batch, search.num_graphs)
        limit = search.pos.new_full((1,), search.cutoff * search.cutoff)
        return find(search.pos, *graphs, search.nodes_mask, limit, search.width, slots)
    assert native is not None
    others, near = _empty(form, slots, *arguments)
    pos, batch = library.as_read(search.pos), as_int64(search.batch)
    real = None if search.nodes_mask is None else search.nodes_mask.contiguous()
    sizes = *pos.shape, slots, search.width, search.num_graphs, form
    pointers = map(library.address, (pos, batch, real, others, near))
    if native(_pack(*pointers, *sizes, pos.dtype is torch.float64, torch.get_num_threads(), search.cutoff)):
        refuse_index("batch", search.batch, search.num_graphs)
        raise MemoryError("popgeo could not allocate its working memory.")
    return others, near


def _empty(form: int, slots: int, pos: Tensor, batch: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    if form == SearchKind.RADIUS:
        return batch.new_empty(2, slots, dtype=torch.long), batch.new_empty((), dtype=torch.long)
    shape = len(pos), slots
    return batch.new_empty(shape, dtype=torch.long), batch.new_empty(shape, dtype=torch.bool)


_NEAR_NODES = register(
    "near_nodes(int form, SymInt slots, Tensor pos, Tensor batch, float cutoff, SymInt num_graphs, SymInt width, "
    "Tensor? nodes_mask) -> (Tensor, Tensor)",
    kernel=_search,
    fake=_empty,
)
register_decomposition(torch.ops.popgeo.near_nodes.default)(_define)
