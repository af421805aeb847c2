"""Lists of graphs in, batches of fixed size out, with PopTorch Geometric's words for what does not fit."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from popgeo import data
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.pyg_collate import Collater
from popgeo.data.axes import Axis, Level
from popgeo.data.cut import fills_exactly
from popgeo.data.flat_store import FlatStore
from popgeo.data.subset import take
from popgeo.data.super_batch import join
from popgeo.data.trim import trim

__all__ = ["CombinedBatchingCollater", "FixedSizeCollater", "FixedSizeError", "make_exclude_keys"]


class FixedSizeError(RuntimeError, ValueError):
    """Graphs that do not fit the sizes of a batch: PopTorch Geometric's RuntimeError, popgeo's ValueError."""


def make_exclude_keys(include_keys: Sequence[str], data: BaseData) -> tuple[str, ...]:
    """All attributes of a graph but those wanted, as loaders take them.

    Example:
        >>> make_exclude_keys(["x"], Data(x=torch.ones(1), y=torch.ones(1)))
        ('y',)
    """
    keys = data.keys() if callable(data.keys) else data.keys
    return tuple(key for key in keys if key not in include_keys)


class FixedSizeCollater(Collater):
    """Makes batches of fixed size of lists of graphs; see `popgeo.data.FixedSizeCollater` for what they hold.

    Graphs that fill nodes and edges to the last one make a batch without padding, of up to `num_graphs` graphs.

    Args:
        fixed_size_options: Sizes of a batch; a heterogeneous graph makes them sizes per type, in place.
        add_masks_to_batch: Adds `nodes_mask`, `edges_mask`, `graphs_mask` (True = real).
        trim_nodes: Removes random nodes where there are too many.
        trim_edges: Removes random edges where there are too many.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        skip: Leaves out the graphs that do not fit beside those before them.
        protect: A boolean node attribute, True for nodes that trimming must keep.

    Example:
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> collate = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=4, num_graphs=3))
        >>> collate(graphs)
        DataBatch(x=[8, 1], edge_index=[2, 4], batch=[8], ptr=[4])
        >>> collate(graphs * 2)
        Traceback (most recent call last):
            ...
        popgeo.compat.poptorch_geometric.collate.FixedSizeError: The maximum number of graphs ... 4 graphs...
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool | None = False,
        trim_nodes: bool | None = False,
        trim_edges: bool | None = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        *,
        skip: bool = False,
        protect: str | None = None,
    ) -> None:
        super().__init__(follow_batch, exclude_keys)
        self.fixed_size_options, self.add_masks_to_batch = fixed_size_options, bool(add_masks_to_batch)
        self.trim_nodes, self.trim_edges, self.skip = bool(trim_nodes), bool(trim_edges), skip
        self.protect = protect

    def __call__(self, data_list: list[Any]) -> Batch:
        """One batch of the graphs, which stay as they are.

        Raises:
            TypeError: not a list.
            FixedSizeError: the graphs do not fit; it is a RuntimeError and a ValueError.
        """
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        options = self._options_for(data_list)
        store = self._opened(data_list)
        if self.skip:
            store = _without_what_overflows(store, options)
        exact = fills_exactly(store, options)
        self._check(store, options, exact)
        collate = data.FixedSizeCollater(
            options,
            self.add_masks_to_batch,
            self.trim_nodes,
            self.trim_edges,
            self.follow_batch,
            self.exclude_keys,
            protect=self.protect,
            exact_fit=True,
        )
        try:
            batch = collate.collate(store, torch.default_generator)
        except ValueError as error:
            raise FixedSizeError(str(error)) from error
        for name in ("num_trimmed_nodes", "num_trimmed_edges"):  # PopTorch Geometric's batches do not say
            if name in batch and not any(name in graph for graph in data_list):
                del batch[name]
        return batch

    def _opened(self, data_list: list[Any]) -> FlatStore:
        return FlatStore.from_dataset(data_list, exclude_keys=self.exclude_keys, levels=_level_of_labels(data_list))

    def _options_for(self, data_list: list[Any]) -> data.FixedSizeOptions:
        """The sizes, per type for graphs of several; and padding graphs that repeat plain numbers of the first one."""
        first = data_list[0]
        if isinstance(first, HeteroData) and not self.fixed_size_options.is_hetero():
            self.fixed_size_options.to_hetero(first.node_types, first.edge_types)
        plain = {
            name: value
            for store in first.stores
            for name, value in store.items()
            if isinstance(value, bool | int | float) and name != "num_nodes"
        }
        return self.fixed_size_options.as_popgeo(
            pad_graph_defaults={**plain, **self.fixed_size_options.pad_graph_defaults}
        )

    def _check(self, store: FlatStore, options: data.FixedSizeOptions, exact: bool) -> None:
        count, limit = len(store), options.num_graphs
        if count > limit:
            raise FixedSizeError(
                f"The maximum number of graphs requested doesn't allocate enough room for {count} graphs: num_graphs "
                f"is {limit}. Increase num_graphs to {count + 1}, with one of padding, or pass fewer graphs."
            )
        for axis, total in zip(store.size_axes, store.sizes.sum(axis=0).tolist(), strict=True):
            is_node = axis.level is Level.NODE
            trims = self.trim_nodes if is_node else self.trim_edges or (self.trim_nodes and not is_node)
            room = options.slots(axis) - (is_node and not exact)
            if total > room and not trims:
                raise FixedSizeError(_does_not_fit(axis, count, total, options.slots(axis), is_node))
        if count == limit and not exact:
            raise FixedSizeError(
                f"Requested to pad a batch to {limit} graphs but collater got a list of {count} graphs and cannot "
                f"create additional graphs to pad nodes and edges. Increase num_graphs to {count + 1} or pass one less."
            )

    def _prune_nodes(self, data_list: list[Any]) -> list[Any]:
        """The same graphs with as many nodes as a batch has."""
        return self._pruned(data_list, nodes=True, edges=False)

    def _prune_edges(self, data_list: list[Any]) -> list[Any]:
        """The same graphs with as many edges as a batch has."""
        return self._pruned(data_list, nodes=False, edges=True)

    def _pruned(self, data_list: list[Any], *, nodes: bool, edges: bool) -> list[Any]:
        options, store = self._options_for(data_list), self._opened(data_list)
        limits = store.sizes.sum(axis=0)
        for i, axis in enumerate(store.size_axes):
            if nodes if axis.level is Level.NODE else edges:
                limits[i] = min(limits[i], options.slots(axis))
        try:
            left = trim(store, limits, nodes=nodes, edges=edges, generator=torch.default_generator).store
        except ValueError as error:
            raise FixedSizeError(str(error)) from error
        return [left[i] for i in range(len(left))]


class CombinedBatchingCollater:
    """Makes several batches of one list and joins them on dimension 0, as an executor takes them apart.

    Args:
        collater: Makes each batch.
        mini_batch_size: Entries of the list for each batch; None makes one batch of all.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))] * 4
        >>> collate = CombinedBatchingCollater(Collater(), mini_batch_size=2)
        >>> collate(graphs).edge_index.shape  # two batches of two graphs
        torch.Size([4, 2])
    """

    def __init__(self, collater: Callable[[list[Any]], Any], mini_batch_size: int | None = None) -> None:
        self.collater, self.mini_batch_size = collater, mini_batch_size

    def __call__(self, batch: list[Any]) -> Any:
        """The batches, joined.

        Raises:
            AssertionError: the list cannot be shared out evenly.
        """
        size = self.mini_batch_size or len(batch)
        if len(batch) % size:
            raise AssertionError(f"Invalid batch size. Got {len(batch)} graphs and `mini_batch_size={size}`.")
        parts = [self.collater(batch[start : start + size]) for start in range(0, len(batch), size)]
        return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Batch):
        return join(parts)
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], tuple | list):
        return type(parts[0])(_joined(list(entries)) for entries in zip(*parts, strict=True))
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return default_collate(parts)


def _level_of_labels(data_list: list[Any]) -> dict[str, Level] | None:
    """Whether `y` belongs to nodes or to graphs, where its length says it of all graphs alike."""
    labels = [graph.y for graph in data_list if isinstance(graph, Data) and isinstance(graph.get("y"), Tensor)]
    if len(labels) < len(data_list) or any(label.dim() == 0 for label in labels):
        return None
    of_nodes = all(label.size(0) == graph.num_nodes for label, graph in zip(labels, data_list, strict=True))
    of_graphs = all(label.size(0) == 1 for label in labels)
    if of_nodes == of_graphs:
        return None  # single nodes, or something else: popgeo looks at names and sizes
    return {"y": Level.NODE if of_nodes else Level.GRAPH}


def _without_what_overflows(store: FlatStore, options: data.FixedSizeOptions) -> FlatStore:
    left, kept = options.limits(store.size_axes).copy(), []
    for i, sizes in enumerate(store.sizes):
        if (sizes <= left).all():
            kept.append(i)
            left -= sizes
    return take(store, np.array(kept, dtype=np.int64)) if len(kept) < len(store) else store


def _does_not_fit(axis: Axis, count: int, total: int, slots: int, is_node: bool) -> str:
    what = ("nodes" if is_node else "edges") if axis.store is None else axis.label
    kind = "nodes" if is_node else "edges"
    kept = " and one for padding" if is_node else ""
    where = f"num_{kind}" if axis.store is None else f"num_{kind}[{axis.store!r}]"
    return (
        f"The fixed sizes given don't allocate enough space for the number of {what} required to fit {count} "
        f"sample(s): they have {total} {kind}{kept}, a batch has {slots}. Increase {where} to {total + is_node} or set "
        f"`trim_{kind}`."
    )
