"""Cuts batches of fixed size out of a flat dataset: lays them out once, then fills many at a time."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.data.batch import BatchBuilder
from popgeo.data.fast_fill import Filler
from popgeo.data.flat_store import FlatStore
from popgeo.data.layout import lay_out
from popgeo.data.levels import Level
from popgeo.data.sizes import FixedSizeOptions


class BatchCutter:
    """Makes batches of one dataset and one layout from graph ids.

    Args are those of `FixedSizeCollater`.
    """

    def __init__(
        self,
        store: FlatStore,
        options: FixedSizeOptions,
        *,
        add_pad_masks: bool = True,
        follow_batch: Collection[str] = (),
        index_dtype: torch.dtype = torch.int64,
        spread_padding_edges: bool = False,
    ) -> None:
        self.store, self.options = store, options
        self.layout = lay_out(
            store,
            options,
            add_pad_masks=add_pad_masks,
            follow_batch=follow_batch,
            index_dtype=index_dtype,
            spread_padding_edges=spread_padding_edges,
        )
        self.builder = BatchBuilder(store, self.layout)
        self.fill = Filler(store, self.layout)

    def allocate(self, num_batches: int) -> list[Tensor]:
        """Uninitialised tensors for so many batches, one for each slot. [num_batches, *slot.shape]"""
        return [torch.empty((num_batches, *slot.shape), dtype=slot.dtype) for slot in self.layout.slots]

    def cut(self, ids: np.ndarray, ptr: np.ndarray, out: list[Tensor] | None = None) -> list[Batch]:
        """One `Batch` for each pack of graphs.

        The batches share their memory in chunks: `torch.save` of one saves its chunk, unless it is cloned first.

        Args:
            ids: Graphs of all batches, one batch after the other. int64 [total number of graphs]
            ptr: Where each batch starts in `ids`. int64 [num_batches + 1]
            out: Tensors to fill instead of new ones.
        """
        rows = self.store.rows(ids)
        out = self.allocate(len(ptr) - 1) if out is None else out
        self.fill(rows, ptr, out)
        columns = [tensor.unbind(0) for tensor in out]
        bounds = ptr.tolist()
        return [
            self.builder.build(list(tensors), rows[start:end])
            for tensors, start, end in zip(zip(*columns, strict=True), bounds[:-1], bounds[1:], strict=True)
        ]


def check_fits(store: FlatStore, options: FixedSizeOptions, ids: np.ndarray, ptr: np.ndarray, remedy: str = "") -> None:
    """Checks that every pack of graphs fits a batch with a node and a graph to spare.

    Raises:
        ValueError: a pack has too many nodes, edges or graphs.
    """
    num_graphs = np.diff(ptr)
    if num_graphs.size and num_graphs.max() >= options.num_graphs:
        found = int(num_graphs.max())
        raise ValueError(
            f"Batch has {found} graphs, FixedSizeOptions.num_graphs is {options.num_graphs} with one kept for padding. "
            f"Raise it to {found + 1} or pass fewer graphs."
        )
    limits = options.limits(store.size_axes)
    running = np.concatenate([np.zeros((1, len(limits)), dtype=np.int64), store.sizes[ids].cumsum(axis=0)])
    totals = running[ptr[1:]] - running[ptr[:-1]]
    over = np.argwhere(totals > limits)
    if not len(over):
        return
    pack, dimension = over[0]
    axis = store.size_axes[dimension]
    is_node = axis.level is Level.NODE
    members = ids[ptr[pack] : ptr[pack + 1]]
    sizes = store.sizes[members, dimension]
    what = ("nodes" if is_node else "edges") + ("" if axis.store is None else f" of type {axis.store!r}")
    option = ("num_nodes" if is_node else "num_edges") + ("" if axis.store is None else f"[{axis.store!r}]")
    kept = " with one kept for padding" if is_node else ""
    strategy = "OverSizeStrategy.TrimNodes" if is_node else "OverSizeStrategy.TrimEdges"
    raise ValueError(
        f"Batch has {totals[pack, dimension]} {what}, FixedSizeOptions.{option} is {options.slots(axis)}{kept}: "
        f"{totals[pack, dimension] - limits[dimension]} too many. Its largest graph is {members[sizes.argmax()]} with "
        f"{sizes.max()}. Raise {option} to {totals[pack, dimension] + is_node} or pass {remedy or strategy}."
    )
