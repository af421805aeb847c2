"""A transform that pads one graph, and the removal of padding from a graph or a batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import BaseTransform
from torch_geometric.transforms.pad import Padding

from popgeo.data.attribute_names import SPLIT_MASKS, with_registered
from popgeo.data.axes import GRAPHS, Axis, Level, Levels, ends_of, require_certain
from popgeo.data.batch_contents import SlotKind
from popgeo.data.batch_layout import LayoutChoices, lay_out
from popgeo.data.compiled_fill import Filler
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.masks import MASKS
from popgeo.data.super_batch import split


class Pad(BaseTransform):
    """A transform that pads the nodes and edges of a graph to fixed numbers; graph attributes do not change.

    It takes the arguments of PyG's transform of the same name, and composes with PyG's transforms. PyG's padding edges
    may point at a node that does not exist. Here padding edges are loops on the first padding node, and a graph that
    needs padding edges but has no room for a padding node raises a ValueError.

    Args:
        max_num_nodes: Nodes of the result, or a number per node type.
        max_num_edges: Edges of the result, or a number per edge type. Default: `max_num_nodes` squared.
        node_pad_value: Value of node attributes in padding: a number, `AttrNamePadding` or `NodeTypePadding`.
        edge_pad_value: Value of edge attributes in padding: a number, `AttrNamePadding` or `EdgeTypePadding`.
        mask_pad_value: Value of `train_mask`, `val_mask` and `test_mask` in padding.
        add_pad_mask: Whether to add `nodes_mask` and `edges_mask`, True for real rows.
        exclude_keys: Attributes to remove.
        levels: The level of attributes, as `{"length": "edge"}`. Default: registered (`register_attributes`) or
            inferred from name and number of rows.

    Raises:
        ValueError: the transform is called with a graph that is too large, or that needs `levels`.

    Example:
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
        >>> padded = Pad(max_num_nodes=4, max_num_edges=3, add_pad_mask=True)(graph)
        >>> padded.edge_index
        tensor([[0, 2, 2],
                [1, 2, 2]])
        >>> padded.nodes_mask
        tensor([ True,  True, False, False])
    """

    def __init__(
        self,
        max_num_nodes: int | dict[str, int],
        max_num_edges: int | dict[tuple[str, str, str], int] | None = None,
        node_pad_value: float | Padding = 0.0,
        edge_pad_value: float | Padding = 0.0,
        mask_pad_value: bool = False,
        add_pad_mask: bool = False,
        exclude_keys: Sequence[str] | None = None,
        *,
        levels: Levels | None = None,
    ) -> None:
        if max_num_edges is None:
            if isinstance(max_num_nodes, dict):
                raise ValueError("max_num_edges is needed if max_num_nodes is given per type. Pass a number for each.")
            max_num_edges = max_num_nodes * max_num_nodes
        self.options = FixedSizeOptions(
            max_num_nodes, max_num_edges, node_pad_value=node_pad_value, edge_pad_value=edge_pad_value
        )
        self.mask_pad_value, self.add_pad_mask = mask_pad_value, add_pad_mask
        self.exclude_keys, self.levels = tuple(exclude_keys or ()), with_registered(levels)

    def forward(self, data: Data | HeteroData) -> Data | HeteroData:
        """Return the padded graph; `data` is PyG's shallow copy of the caller's graph."""
        store = FlatStore.from_dataset([data], exclude_keys=self.exclude_keys, levels=self.levels)
        require_certain((a for a in store.attributes if a.axis != GRAPHS), "padding differs between them")
        self._check(store)
        layout = lay_out(store, self.options, LayoutChoices(add_pad_masks=self.add_pad_mask))
        tensors = [torch.empty((1, *slot.shape), dtype=slot.dtype) for slot in layout.slots]
        Filler(store, layout)(np.zeros(1, dtype=np.int64), np.array([0, 1]), tensors)
        stores = {part._key: part for part in data.stores}
        for part in data.stores:
            for name in set(self.exclude_keys) & set(part.keys()):
                del part[name]
        for slot, tensor in zip(layout.slots, tensors, strict=True):
            if slot.axis.level is not Level.GRAPH and (slot.attribute is not None or slot.kind is SlotKind.MASK):
                stores[slot.store][slot.name] = tensor[0]
            if slot.name in SPLIT_MASKS and self.mask_pad_value:
                stores[slot.store][slot.name][int(store.counts(slot.axis)[0]) :] = self.mask_pad_value
        counted = {slot.store for slot in layout.slots if slot.axis.level is Level.NODE and slot.attribute is not None}
        for key in store.node_types:
            if key in store.states_num_nodes or key not in counted:
                stores[key].num_nodes = self.options.slots(Axis(Level.NODE, key))
        return data

    def _check(self, store: FlatStore) -> None:
        found = dict(zip(store.size_axes, store.sizes[0].tolist(), strict=True))
        free = {axis: self.options.slots(axis) - count for axis, count in found.items()}
        for axis, count in found.items():
            if free[axis] < 0:
                slots, name = self.options.slots(axis), f"Pad.max_num_{axis.level.value}s"
                raise ValueError(f"The graph has {count} {axis.label}, {name} is {slots}. Raise it to {count} or more.")
        for edges in [a.axis for a in store.attributes if a.name == "edge_index" and free.get(a.axis)]:
            for nodes in ends_of(edges):
                if not free[nodes]:
                    raise ValueError(
                        f"The graph needs {free[edges]} padding edges, which join padding nodes, but all "
                        f"{found[nodes]} {nodes.label} are real. Raise max_num_nodes to {found[nodes] + 1}."
                    )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_num_nodes={self.options.num_nodes}, max_num_edges={self.options.num_edges})"


def unpad(batch: Batch | Data | HeteroData, levels: Levels | None = None) -> list[Data | HeteroData]:
    """Return the real graphs of a batch of fixed size, without padding.

    Args:
        batch: A batch with masks, also several joined batches, or a graph from `Pad(add_pad_mask=True)`.
        levels: The level of attributes, as for `Pad`.

    Raises:
        ValueError: the batch has no masks, or a graph needs `levels`.

    Example:
        >>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> unpad(FixedSizeCollater(FixedSizeOptions(9, 4, 3), add_masks_to_batch=True)(graphs))
        [Data(x=[2, 1], edge_index=[2, 1]), Data(x=[3, 1], edge_index=[2, 1])]
    """
    if not isinstance(batch, Batch):
        return [_unpad_graph(batch, levels)]
    if "graphs_mask" not in batch:
        raise ValueError(
            "The batch has no graphs_mask, so padding and graphs cannot be distinguished. Make it with "
            "add_pad_masks=True (FixedSizeDataLoader) or add_masks_to_batch=True (FixedSizeCollater)."
        )
    if batch.graphs_mask.numel() > batch.num_graphs:
        return [graph for part in split(batch) for graph in unpad(part)]
    return [batch.get_example(i) for i in range(int(batch.graphs_mask.sum()))]


def _unpad_graph(data: Any, levels: Levels | None) -> Any:
    """Return a copy of a graph from `Pad(add_pad_mask=True)` without its padding.

    Raises:
        ValueError: the graph has no masks.
    """
    store = FlatStore.from_dataset([data], levels=levels)
    require_certain((a for a in store.attributes if a.axis != GRAPHS), "padding differs between them")
    out = data.__copy__()
    parts = {part._key: part for part in out.stores}
    masks = (MASKS[Level.NODE], MASKS[Level.EDGE])
    if not store.is_hetero and not any(mask in out for mask in masks):
        raise ValueError("The graph has no nodes_mask, so its padding is unknown. Pass Pad(add_pad_mask=True).")
    for attribute in store.attributes:
        part, name, mask = parts[attribute.store], attribute.name, MASKS[attribute.axis.level]
        if mask in masks and mask in part and name not in masks and attribute.is_tensor:
            part[name] = part[name].narrow(attribute.dim, 0, int(part[mask].sum()))
    for part in out.stores:
        if "num_nodes" in part and "nodes_mask" in part:
            part.num_nodes = int(part.nodes_mask.sum())
        for mask in masks:
            if mask in part:
                del part[mask]
    return out
