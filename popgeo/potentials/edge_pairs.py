"""Opposite edges have one length, so what a model makes of lengths alone is made once for both.

In a list of neighbours that holds each pair in both directions, half of the work on distances, the radial network that
gives an edge its weights above all, is done twice. A batch says which edges are a pair:

    edge_of_pair  [ceil(E / 2)]  the first of the two, by its row
    pair_of_edge  [E]            the pair that an edge belongs to

Padding edges, which are all as long, are pairs of neighbours in their order.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

NAMES = ("edge_of_pair", "pair_of_edge")


def opposite_edges(graph: Data) -> Tensor | None:
    """The edge that joins the same atoms the other way, for each edge of a structure. int64 [E]

    Args:
        graph: With `edge_index`, and with `unit_shift` where cells repeat.

    Returns:
        None where an edge has none, or is its own.

    Example:
        >>> graph = Data(edge_index=torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]]), unit_shift=torch.zeros(4, 3))
        >>> opposite_edges(graph).tolist()
        [1, 0, 3, 2]
    """
    ends = graph.edge_index.cpu().numpy()
    cells = graph.unit_shift.round().long().cpu().numpy().T
    there, back = np.lexsort((*cells, *ends)), np.lexsort((*-cells, *ends[::-1]))
    same = (ends[:, there] == ends[::-1, back]).all() and (cells[:, there] == -cells[:, back]).all()
    if not same or (there == back).any():
        return None
    opposite = np.empty_like(there)
    opposite[there] = back
    return torch.from_numpy(opposite)


def note_opposite_edges(graphs: Any) -> None:
    """Gives each structure of a list its `opposite` edges, if every edge of all of them has one."""
    found = [opposite_edges(graph) for graph in graphs] if isinstance(graphs, list) else [None]
    if all(opposite is not None for opposite in found):
        for graph, opposite in zip(graphs, found, strict=True):
            graph.opposite = opposite


def pairs_of_batch(opposite: Tensor, batch: Batch) -> dict[str, Tensor]:
    """What a batch says of its pairs, by the names above.

    Args:
        opposite: Of each edge, counted from the first edge of its structure; anything for padding. int64 [E]
        batch: With `edge_index`, `batch`, `edges_mask`; the edges of a structure lie beside one another, padding last.
    """
    owner, edge = batch.batch[batch.edge_index[0]], torch.arange(len(opposite), device=opposite.device)
    counts = torch.zeros_like(batch.ptr).index_add(0, owner, torch.ones_like(batch.ptr[:1]).expand(len(owner)))
    place = edge - batch.edges_mask.sum()  # of padding
    beside = (edge + 1 - 2 * (place % 2)).clamp(max=len(edge) - 1)
    other = torch.where(batch.edges_mask, opposite + (counts.cumsum(0) - counts)[owner], beside)
    is_first = edge <= other
    rank = is_first.cumsum(0) - 1
    return {"edge_of_pair": edge[is_first], "pair_of_edge": rank[torch.minimum(edge, other)]}


class OnceForEachPair:
    """Lets parts of a model, which make rows of edges out of such rows, run on one edge of each pair.

    Their parameters and the names of these stay. A batch that does not say its pairs is taken edge by edge.

    Args:
        model: Called with a mapping that has what a batch says of its pairs.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pairs: list[Any] = [None, None]
        model.register_forward_pre_hook(partial(_note, self._pairs))

    def add(self, part: nn.Module) -> None:
        """Adds a part whose result depends on an edge's length alone, and is the same for both directions."""
        part.register_forward_pre_hook(partial(_take, self._pairs))
        part.register_forward_hook(partial(_give, self._pairs))


def _note(pairs: list[Any], _model: nn.Module, args: tuple[Mapping[str, Any], ...]) -> None:
    pairs[:] = (args[0].get(name) if args else None for name in NAMES)


def _take(pairs: list[Any], _part: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return args if pairs[0] is None else (args[0].index_select(0, pairs[0]), *args[1:])


def _give(pairs: list[Any], _part: nn.Module, _args: tuple[Tensor, ...], made: Tensor) -> Tensor:
    return made if pairs[1] is None else made.index_select(0, pairs[1])
