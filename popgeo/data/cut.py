"""Batches of fixed size from a flat dataset, many at a time, and the check that graphs fit a batch."""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from popgeo import largest_graph
from popgeo.data.axes import Level
from popgeo.data.batch import BatchBuilder
from popgeo.data.batch_contents import Layout
from popgeo.data.compiled_fill import Filler
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.packing import Packs, totals_of_packs

if TYPE_CHECKING:
    from torch_geometric.data import Batch


class BatchCutter:
    """A maker of batches of one dataset and one layout, from packs of graphs."""

    def __init__(self, store: FlatStore, layout: Layout) -> None:
        self.store, self.layout = store, layout
        self.fill = Filler(store, layout)
        self.builder = BatchBuilder(store, layout)

    def cut(self, packs: Packs, memory: "BatchMemory | None" = None, group: int = 1) -> "list[Batch]":
        """Return one `Batch` per pack of graphs, or one item per `group` packs, joined as by `super_batch.join`.

        Batches share memory in chunks: `torch.save` of a batch saves its chunk, unless the batch is cloned first.

        Args:
            packs: The graphs of each batch.
            memory: Memory for at least this number of batches. Default: new memory.
            group: Batches in one item; it divides the number of packs.
        """
        memory = memory or BatchMemory(self.layout, len(packs), group=group)
        rows, ptr = self.store.rows(packs.indices), packs.ptr
        self.fill(rows, ptr, memory.tensors)
        stored = [rows[start:stop] for start, stop in pairwise(ptr.tolist())]
        build, items = self.builder.build, memory.items
        if group == 1:
            return [build(tensors, (pack,)) for tensors, pack in zip(items, stored)]  # noqa: B905  memory may be larger
        return [build(items[i], stored[i * group : (i + 1) * group]) for i in range(len(stored) // group)]


class BatchMemory:
    """The tensors of several batches, one per slot [num_batches, *slot.shape], and views for each item.

    Args:
        layout: The layout of each batch.
        num_batches: The number of batches.
        pin_memory: Whether the memory is page-locked.
        group: Batches in one item.
        tensors: The tensors. Default: new tensors.
    """

    def __init__(
        self,
        layout: Layout,
        num_batches: int,
        *,
        pin_memory: bool = False,
        group: int = 1,
        tensors: list[Tensor] | None = None,
    ) -> None:
        self.tensors = tensors = tensors or [
            torch.empty((num_batches, *slot.shape), dtype=slot.dtype, pin_memory=pin_memory) for slot in layout.slots
        ]
        if group > 1:
            tensors = [t.view(len(t) // group, group * t.shape[1], *t.shape[2:]) for t in tensors]
        self.items = list(zip(*(tensor.unbind(0) for tensor in tensors), strict=True))
        for item in self.items:
            note_largest(item, layout)


def note_largest(tensors: Iterable[Tensor], layout: Layout) -> None:
    """Attach the size of the dataset's largest graph, if known, to the vectors `batch` of an item."""
    for slot, tensor in zip(layout.slots, tensors, strict=True):
        if slot.largest is not None:
            largest_graph.note(tensor, slot.largest)


def check_fits(store: FlatStore, options: FixedSizeOptions, packs: Packs) -> None:
    """Check that every pack of graphs fits a batch, with one node and one graph left for padding.

    Raises:
        ValueError: a pack has too many nodes, edges or graphs.
    """
    found = int(np.diff(packs.ptr).max(initial=0))
    if found >= options.num_graphs:
        raise ValueError(
            f"Batch has {found} graphs, FixedSizeOptions.num_graphs is {options.num_graphs} with one kept for padding. "
            f"Raise it to {found + 1} or pass fewer graphs."
        )
    _check_rows(store, options, packs)
    totals = totals_of_packs(store.sizes, packs.indices, packs.ptr)
    limits = options.limits(store.size_axes)
    over = np.argwhere(totals > limits)
    if not len(over):
        return
    pack, dimension = over[0]
    axis = store.size_axes[dimension]
    is_node = axis.level is Level.NODE
    members = packs[int(pack)]
    sizes = store.sizes[members, dimension]
    option = f"num_{axis.level.value}s" + ("" if axis.store is None else f"[{axis.store!r}]")
    kept = " with one kept for padding" if is_node else ""
    strategy = "OverSizeStrategy.TrimNodes" if is_node else "OverSizeStrategy.TrimEdges"
    raise ValueError(
        f"Batch has {totals[pack, dimension]} {axis.label}, FixedSizeOptions.{option} is {options.slots(axis)}{kept}: "
        f"{totals[pack, dimension] - limits[dimension]} too many. Its largest graph is {members[sizes.argmax()]} with "
        f"{sizes.max()}. Raise {option} to {totals[pack, dimension] + is_node} or pass {strategy}."
    )


def fills_exactly(store: FlatStore, options: FixedSizeOptions, *, but_edges: bool = False) -> bool:
    """Check whether the graphs together use every node and edge of a batch, so that it needs no padding.

    Args:
        store: The graphs.
        options: Slots of the batch.
        but_edges: Whether to allow fewer edges if a slot for a graph is free. Padding edges then end outside of the
            batch, and a model that reads them raises an error. Default: False.
    """
    left = [options.slots(axis) for axis in store.size_axes] - store.sizes.sum(axis=0)
    spares = [but_edges and len(store) < options.num_graphs and axis.level is Level.EDGE for axis in store.size_axes]
    return len(store) <= options.num_graphs and bool(((left == 0) | (left > 0) & spares).all())


def _check_rows(store: FlatStore, options: FixedSizeOptions, packs: Packs) -> None:
    for axis in store.row_pointers:
        limit = (options.num_rows or {}).get(axis.name or "")
        if axis.level is not Level.GRAPH or limit is None:
            continue
        total = totals_of_packs(store.counts(axis)[:, None], packs.indices, packs.ptr).max(initial=0)
        if total > limit:
            raise ValueError(
                f"Batch has {total} rows of {axis.name!r}, FixedSizeOptions.num_rows[{axis.name!r}] is {limit}. "
                f"Raise it to {total}."
            )
