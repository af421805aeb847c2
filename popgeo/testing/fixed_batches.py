"""Batches of fixed size with a chosen amount and content of padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.transforms.pad import AttrNamePadding

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, unpad
from popgeo.data.axes import Axis

Garbage = float | Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FixedBatch:
    """A batch of fixed size, with its number of slots and of real rows.

    Attributes:
        batch: The batch, with masks.
        slots: Rows of the batch, padding included, of each kind: "graph", "node", "edge", or "node 'paper'" and so on.
        counts: Rows of each real graph, of the same kinds. Each is int64 [number of real graphs]
        garbage: Content of floating point attributes of padding.
    """

    batch: Batch
    slots: Mapping[str, int]
    counts: Mapping[str, Tensor]
    garbage: Garbage

    @property
    def used_graphs(self) -> int:
        """Graphs up to the last graph with a node: the number that a model sees without `num_graphs`."""
        owner = self.batch.get("batch")
        return -1 if owner is None or not len(owner) else int(owner.max()) + 1

    def __str__(self) -> str:
        padding = {kind: number - int(self.counts[kind].sum()) for kind, number in self.slots.items()}
        number = len(self.counts["graph"])
        graphs = f"{number} graph{'s' * (number > 1)}"
        if not any(padding.values()):
            return graphs
        return f"{graphs} and padding ({', '.join(f'{kind} {n}' for kind, n in padding.items())}) of {self.garbage}"


def first_graphs(graphs: Any, limit: int) -> list[Data | HeteroData]:
    """Return the first graphs of a dataset, a list or a batch, without padding.

    Raises:
        ValueError: there is no graph.
    """
    if isinstance(graphs, Batch):
        graphs = unpad(graphs) if "graphs_mask" in graphs else graphs.to_data_list()
    elif isinstance(graphs, BaseData):
        graphs = [graphs]
    few = list(islice(iter(graphs), limit))
    if not few:
        raise ValueError("There is no graph to check the model with. Pass a list of graphs, a dataset or a batch.")
    return few


def fixed_batch(
    graphs: Sequence[Data | HeteroData], *, padding: int | None, garbage: Garbage, num_graphs: int | None = None
) -> FixedBatch:
    """Return one batch of all these graphs.

    Args:
        graphs: Real graphs, in order.
        padding: Padding graphs beyond the minimum; the padding nodes and edges of each kind are different multiples of
            this number. None means PyG's batch of these graphs alone, with masks that are True.
        garbage: Content of the floating point attributes of padding, or a value for each name. Other attributes are 0.
        num_graphs: Graphs of the batch, padding included. Default: the real graphs and the padding graphs.
    """
    plain, store = Batch.from_data_list(list(graphs)), FlatStore.from_dataset(list(graphs))
    extra, num_node_types, num_edge_types = padding or 0, len(store.node_types), len(store.edge_types)
    factors = np.concatenate([2 + 2 * np.arange(num_node_types), 3 + 2 * np.arange(num_edge_types)])
    sizes = store.sizes.sum(axis=0) + 1 + extra * factors
    num_graphs = len(graphs) + 1 + extra if num_graphs is None else num_graphs
    fill = dict.fromkeys(("node_pad_value", "edge_pad_value", "graph_pad_value"), _padding(plain, garbage))
    options = FixedSizeOptions.from_sizes(store, sizes, num_graphs, **fill).with_rows_for(store)
    counts, slots = {"graph": torch.ones(len(graphs), dtype=torch.int64)}, {"graph": options.num_graphs}
    for axis, numbers in zip(store.size_axes, store.sizes.T, strict=True):
        counts[kind_of(axis)], slots[kind_of(axis)] = torch.tensor(numbers), options.slots(axis)
    if padding is None:
        slots = {kind: int(count.sum()) for kind, count in counts.items()}
        batch = _with_masks(plain)
    else:
        batch = FixedSizeCollater(options, add_masks_to_batch=True)(list(graphs))
    return FixedBatch(batch=batch, slots=slots, counts=counts, garbage=garbage)


def _with_masks(plain: Batch) -> Batch:
    """Return the batch with masks that are True."""
    for stores, level in ((plain.node_stores, "node"), (plain.edge_stores, "edge")):
        for store in stores:
            store[f"{level}s_mask"] = torch.ones(getattr(store, f"num_{level}s") or 0, dtype=torch.bool)
    plain.graphs_mask = torch.ones(plain.num_graphs, dtype=torch.bool)
    return plain


def kind_of(axis: Axis) -> str:
    """Return the name of the nodes or edges of an axis."""
    return axis.level.value if axis.store is None else f"{axis.level.value} {axis.store!r}"


def _padding(plain: Batch, garbage: Garbage) -> AttrNamePadding:
    """Return the padding values: garbage for floating point attributes, 0 for the others."""
    if isinstance(garbage, Mapping):
        return AttrNamePadding(dict(garbage), default=0.0)
    held = [(name, value) for store in plain.stores for name, value in store.items() if isinstance(value, Tensor)]
    whole = {name for name, value in held if not value.is_floating_point()}
    return AttrNamePadding({name: garbage for name, _ in held if name not in whole}, default=0.0)
