"""Collaters: PyG's batches, batches of fixed size, and several batches joined to one item."""

import copy
import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.loader.dataloader import Collater as PyGCollater

from popgeo import data
from popgeo.capture.pytree import flatten, unflatten
from popgeo.compat.poptorch.errors import said
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions, sizes_in_todays_words
from popgeo.data.axes import Level
from popgeo.data.flat_store import FlatStore
from popgeo.data.subset import take
from popgeo.data.super_batch import join
from popgeo.data.trim import OverSizeStrategy, trim
from popgeo.loader.pack_graphs import equal_numbers_that_fit
from popgeo.packing import Budget


class FixedSizeError(RuntimeError, ValueError):
    """Error for graphs that do not fit a batch, as RuntimeError (PopTorch Geometric) and ValueError (popgeo)."""


def make_exclude_keys(include_keys: Sequence[str], data: BaseData) -> tuple[str, ...]:
    """Return all attributes of a graph except the wanted ones, for a loader's `exclude_keys`.

    Example:
        >>> from torch_geometric.data import Data
        >>> make_exclude_keys(["x"], Data(x=torch.ones(1), y=torch.ones(1)))
        ('y',)
    """
    keys = data.keys() if callable(data.keys) else data.keys
    return tuple(key for key in keys if key not in include_keys)


class Collater(PyGCollater):
    """Collater that makes one `Batch` from a list of graphs.

    Args:
        follow_batch: Attributes that get an assignment vector.
        exclude_keys: Attributes to omit.

    Example:
        >>> from torch_geometric.data import Data
        >>> Collater(exclude_keys=["y"])([Data(x=torch.ones(2, 1), y=torch.ones(1))] * 2)
        DataBatch(x=[4, 1], batch=[4], ptr=[3])
    """

    def __init__(self, follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None) -> None:
        super().__init__([], list(follow_batch or ()), list(exclude_keys or ()))


class FixedSizeCollater(data.FixedSizeCollater):
    """Collater that makes batches of fixed size; see `popgeo.data.FixedSizeCollater` for their contents.

    Graphs that fill all nodes and edges make a batch without padding, of up to `num_graphs` graphs. If they leave only
    edges and a graph, padding edges end outside of the batch, and a model that reads them raises an error.

    Args:
        args: `fixed_size_options` (a heterogeneous graph converts it to sizes per type, in place),
            `add_masks_to_batch`, `trim_nodes`, `trim_edges`, `follow_batch`, `exclude_keys`.
        skip: Whether to omit graphs that do not fit together with earlier graphs.
        kwargs: The same arguments by name.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> collate = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=4, num_graphs=3))
        >>> collate(graphs)
        DataBatch(x=[8, 1], edge_index=[2, 4], batch=[8], ptr=[4])
        >>> collate(graphs * 2)
        Traceback (most recent call last):
            ...
        popgeo.compat.poptorch_geometric.collate.FixedSizeError: The maximum number of graphs ... Batch has 4 graphs...
    """

    def __init__(self, *args: Any, skip: bool = False, **kwargs: Any) -> None:
        if "num_nodes" in kwargs or (args and not isinstance(args[0], data.FixedSizeOptions)):
            args, kwargs = (), sizes_in_todays_words(args, kwargs)
        self._adds_a_graph = kwargs.pop("adds_a_graph", False)
        super().__init__(*args, exact_fit=True, **kwargs)
        self.skip = skip

    @classmethod
    def of_loader(
        cls, options: FixedSizeOptions, over_size_strategy: OverSizeStrategy, add_pad_masks: bool | None, **kwargs: Any
    ) -> "FixedSizeCollater":
        """Return the collater for a loader's arguments."""
        trims = (over_size_strategy.trims_nodes, over_size_strategy.trims_edges)
        return cls(options, bool(add_pad_masks), *trims, **kwargs)

    def __call__(self, data_list: list[Any]) -> Batch:  # type: ignore[override]  # only a list, as in PopTorch
        """Make one batch of graphs, which stay unchanged.

        Raises:
            TypeError: `data_list` is not a list.
            FixedSizeError: The graphs do not fit. The error is a RuntimeError and a ValueError.
        """
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        own = copy.copy(self)
        own.options = _options_for(data_list, self.options)
        if self._adds_a_graph:
            own.options = dataclasses.replace(own.options, num_graphs=len(data_list) + 1)
        store = self.flat(data_list)
        if self.skip:
            store = _without_what_overflows(store, own.options)
        try:
            batch = own.collate(store, torch.default_generator)
        except ValueError as error:
            raise FixedSizeError(f"{_what_is_short(len(data_list), own.options, str(error))}: {error}") from error
        for name in ("num_trimmed_nodes", "num_trimmed_edges"):  # PopTorch Geometric's batches do not have them
            if name in batch and not any(name in graph for graph in data_list):
                del batch[name]
        return batch

    def _pruned(self, level: Level, data_list: list[Any]) -> list[Any]:
        """Return the graphs trimmed to the nodes, or edges, of a batch."""
        options, store = _options_for(data_list, self.options), self.flat(data_list)
        rows, here = store.sizes.sum(axis=0), [axis.level is level for axis in store.size_axes]
        limits = np.where(here, np.minimum(rows, [options.slots(axis) for axis in store.size_axes]), rows)
        nodes, edges = level is Level.NODE, level is Level.EDGE
        try:
            left, _ = trim(store, limits, nodes=nodes, edges=edges, generator=torch.default_generator)
        except ValueError as error:
            found = {"what": f"{level.name.lower()}s", "count": len(data_list), "total": rows[here].sum()}
            raise FixedSizeError(said("pruned", **found, over=(rows - limits).sum(), error=error)) from error
        return [left[i] for i in range(len(left))]

    _prune_nodes, _prune_edges = partialmethod(_pruned, Level.NODE), partialmethod(_pruned, Level.EDGE)


class CombinedBatchingCollater:
    """Collater that makes several batches from a list and joins them on dimension 0, for a call of an executor.

    Args:
        collater: Collater of each batch.
        mini_batch_size: Elements of each batch. None: one batch of all elements.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))] * 4
        >>> collate = CombinedBatchingCollater(Batch.from_data_list, mini_batch_size=2)
        >>> collate(graphs).edge_index.shape  # two batches of two graphs
        torch.Size([4, 2])
    """

    def __init__(self, collater: Callable[[list[Any]], Any], mini_batch_size: int | None = None) -> None:
        self.collater, self.mini_batch_size = collater, mini_batch_size

    def __call__(self, batch: list[Any]) -> Any:
        """Make the batches and join them. If the list holds lists, each of them is a batch.

        Raises:
            AssertionError: The list cannot be divided evenly.
        """
        lists = batch
        if not isinstance(batch[0], list):
            size = self.mini_batch_size or len(batch)
            if len(batch) % size:
                raise AssertionError(f"Invalid batch size. Got {len(batch)} graphs and `mini_batch_size={size}`.")
            lists = [batch[start : start + size] for start in range(0, len(batch), size)]
        parts = [self.collater(graphs) for graphs in lists]
        return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Batch):
        return join(parts)
    nests = [flatten(part) for part in parts]
    return unflatten(nests[0][1], [torch.cat(tensors) for tensors in zip(*(nest[0] for nest in nests), strict=True)])


def make_per_type(options: data.FixedSizeOptions, graph: Any) -> None:
    """Convert options to sizes per type, in place, if the graph has several types."""
    if isinstance(graph, HeteroData) and not options.is_hetero():
        options.to_hetero(graph.node_types, graph.edge_types)


def _options_for(data_list: list[Any], options: data.FixedSizeOptions) -> data.FixedSizeOptions:
    """Return options with sizes per type if the graphs need them, and with the first graph's numbers in padding."""
    make_per_type(options, data_list[0])
    held = (item for store in data_list[0].stores for item in store.items() if item[0] != "num_nodes")
    plain = {name: value for name, value in held if isinstance(value, bool | int | float)}
    return dataclasses.replace(options, pad_graph_defaults={**plain, **(options.pad_graph_defaults or {})})


def _what_is_short(count: int, options: data.FixedSizeOptions, error: str) -> str:
    """Return PopTorch Geometric's message for graphs that do not fit."""
    if count > options.num_graphs:
        return f"The maximum number of graphs requested doesn't allocate enough room for {count} graphs"
    if count == options.num_graphs:
        return said("what_is_short 2", count=count)
    found = re.search(r"(nodes|edges)(?: of type (\([^)]*\)|'\w+'))?", error)
    what, of_type = found.groups() if found else ("nodes or edges", None)
    kind = f"{of_type} " if of_type else ""
    return said("what_is_short", kind=kind, what=what, count=count)


def _without_what_overflows(store: FlatStore, options: data.FixedSizeOptions) -> FlatStore:
    limits = tuple(options.limits(store.size_axes).tolist())
    packs = equal_numbers_that_fit(store.sizes, Budget(sizes=limits, num_graphs=len(store)))
    return take(store, packs.indices) if len(packs.skipped) else store
