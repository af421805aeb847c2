"""Pairs of opposite edges, which have the same length, so that functions of length run once per pair.

A list of neighbors usually contains each pair of atoms in both directions. Functions of distances, above all the radial
network for the edges' weights, are then computed twice. `opposite_edge` [E] of a batch is the edge that joins the same
atoms in the other direction. Padding edges, which all have the same length, are paired with their neighbors.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

OPPOSITE = "opposite_edge"


def opposite_edges(graph: Data) -> Tensor | None:
    """Return the opposite edge of each edge: the edge that joins the same atoms in the other direction, int64 [E].

    Args:
        graph: Graph with `edge_index`, and with `unit_shift` if its cell is periodic.

    Returns:
        The opposite edges; None if an edge has no opposite edge, or is its own.

    Example:
        >>> graph = Data(edge_index=torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]]), unit_shift=torch.zeros(4, 3))
        >>> opposite_edges(graph).tolist()
        [1, 0, 3, 2]
    """
    ends = graph.edge_index.cpu().numpy()
    cells = graph.unit_shift.round().long().cpu().numpy().T if "unit_shift" in graph else np.zeros_like(ends[:1])
    there, back = np.lexsort((*cells, *ends)), np.lexsort((*-cells, *ends[::-1]))
    same = (ends[:, there] == ends[::-1, back]).all() and (cells[:, there] == -cells[:, back]).all()
    if not same or (there == back).any():
        return None
    opposite = np.empty_like(there)
    opposite[there] = back
    return torch.from_numpy(opposite)


def note_opposite_edges(graphs: Any) -> None:
    """Add `opposite_edge` to each structure of a list, if every edge of every structure has one."""
    found = [opposite_edges(graph) for graph in graphs] if isinstance(graphs, list) else [None]
    if all(opposite is not None for opposite in found):
        for graph, opposite in zip(graphs, found, strict=True):
            graph[OPPOSITE] = opposite


def opposite_in_batch(batch: Batch) -> dict[str, Tensor]:
    """Return a dictionary with a batch's `opposite_edge`, numbered within the batch, or an empty dictionary.

    Args:
        batch: Batch with `opposite_edge` counted from the first edge of each structure, and with any numbers in
            padding. The edges of a structure are next to each other, padding is last.
    """
    if OPPOSITE not in batch:
        return {}
    owner, edge = batch.batch[batch.edge_index[0]], torch.arange(len(batch[OPPOSITE]), device=batch.ptr.device)
    counts = torch.zeros_like(batch.ptr).index_add(0, owner, torch.ones_like(owner))
    is_odd = (edge - batch.edges_mask.sum()) % 2  # in padding
    beside = (edge + 1 - 2 * is_odd).clamp(max=len(edge) - 1)
    return {OPPOSITE: torch.where(batch.edges_mask, batch[OPPOSITE] + (counts.cumsum(0) - counts)[owner], beside)}


class PairwiseLayers:
    """Hooks that run modules of a model, which map edge rows to edge rows, on only one edge of each pair.

    Parameters and their names stay the same. In a batch without `opposite_edge` the modules run on every edge. Only one
    thread at a time may call the model with batches that have it, because the hooks keep the pairs of the present call.

    Args:
        model: Called with a mapping that has the batch's fields.
    """

    def __init__(self, model: nn.Module) -> None:
        # For the present call: opposite edges, the first edge of each pair, and the pair of each edge.
        self._pairs: list[Any] = [None] * 3
        model.register_forward_pre_hook(partial(_note, self._pairs))
        model.register_forward_hook(partial(_forget, self._pairs))

    def add(self, part: nn.Module) -> None:
        """Add a module whose result depends only on an edge's length, so that it is equal for both directions."""
        part.register_forward_pre_hook(partial(_take, self._pairs))
        part.register_forward_hook(partial(_give, self._pairs))


def _note(pairs: list[Any], _model: nn.Module, args: tuple[Mapping[str, Any], ...]) -> None:
    # No tensors here: torch.compile runs this hook separately from the model.
    pairs[:] = args[0].get(OPPOSITE) if args else None, None, None


def _forget(pairs: list[Any], *_call: Any) -> None:
    pairs[:] = None, None, None


def _take(pairs: list[Any], _part: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if pairs[0] is None:
        return args
    if pairs[1] is None:
        pairs[1:] = _pairs_of(pairs[0])
    return args[0].index_select(0, pairs[1]), *args[1:]


def _give(pairs: list[Any], _part: nn.Module, _args: tuple[Tensor, ...], made: Tensor) -> Tensor:
    return made if pairs[0] is None else made.index_select(0, pairs[2])


def _pairs_of(opposite: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first edge of each pair [ceil(E / 2)], and the pair of each edge [E]."""
    edge, num_pairs = torch.arange(len(opposite), device=opposite.device), (len(opposite) + 1) // 2
    is_first = edge <= opposite
    rank = is_first.cumsum(0) - 1
    place = torch.where(is_first, rank, num_pairs)  # edges that are not first go behind the last pair
    first = edge.new_zeros(num_pairs + 1).scatter(0, place, edge)[:num_pairs]
    return first, rank[torch.minimum(edge, opposite)]
