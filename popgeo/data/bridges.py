"""Batches for other frameworks: as NumPy arrays, and as the tuple of them that graph networks in JAX share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from popgeo.data.attribute_names import JOINS, OF_EDGES, OF_GRAPHS, OF_NODES


def as_arrays(batch: Any) -> dict[str, np.ndarray]:
    """The tensors of a batch as NumPy arrays of the same memory; nothing is copied.

    What is not a tensor, such as a list of names, is left out.

    Args:
        batch: A `Batch` on the processor, or a named tuple of tensors.

    Returns:
        Arrays by name; those of a node or edge type of a heterogeneous batch as `paper.x` and
        `author__writes__paper.edge_index`.

    Raises:
        ValueError: a tensor lies on another device, or has a type that NumPy does not know.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Batch
        >>> as_arrays(Batch(x=torch.ones(2, 1)))["x"].shape
        (2, 1)
    """
    arrays = {}
    for store in [batch._asdict()] if hasattr(batch, "_asdict") else batch.stores:
        key = getattr(store, "_key", None)
        prefix = "" if key is None else f"{key if isinstance(key, str) else '__'.join(key)}."
        for name, value in store.items():
            if isinstance(value, Tensor):
                arrays[f"{prefix}{name}"] = _array(f"{prefix}{name}", value)
    return arrays


def _array(name: str, tensor: Tensor) -> np.ndarray:
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} lies on {tensor.device}; NumPy reads memory of the processor. Use device='cpu'.")
    try:
        return tensor.detach().numpy()
    except TypeError:
        raise ValueError(f"{name} is {tensor.dtype}, which NumPy does not know; convert it, say to float32.") from None


class GraphsTuple(NamedTuple):
    """A batch of graphs with the fields, in the order, of jraph's tuple of the same name.

    Attributes:
        nodes: Attributes of nodes by name. [num_nodes, ...]
        edges: Attributes of edges by name. [num_edges, ...]
        receivers: The node that each edge ends at. [num_edges]
        senders: The node that each edge starts at. [num_edges]
        globals: Attributes of graphs by name. [num_graphs, ...]
        n_node: Nodes of each graph; padding nodes are in the padding graph. [num_graphs]
        n_edge: Edges of each graph, likewise. [num_graphs]
    """

    nodes: dict[str, np.ndarray]
    edges: dict[str, np.ndarray]
    receivers: np.ndarray
    senders: np.ndarray
    globals: dict[str, np.ndarray]
    n_node: np.ndarray
    n_edge: np.ndarray


def to_graphs_tuple(batch: Any, levels: Mapping[str, str] | None = None) -> GraphsTuple:
    """One batch of fixed size, padding included, as senders, receivers and counts.

    The first graph of padding owns all nodes and edges of padding, later ones are empty: `n_node` adds up to the number
    of node slots and `n_edge` to that of edge slots, as `jraph.pad_with_graphs` makes it. Masks come along by name.

    Args:
        batch: A `Batch` of one node type, or the dictionary that a loader with `output="numpy"` gives.
        levels: What an attribute belongs to, as `{"y": "graph"}`, where name and size do not tell.

    Returns:
        Arrays that share the batch's memory, but for the counts.

    Raises:
        ValueError: it holds several node types or joined batches, or the level of an attribute is not clear.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from popgeo.data import FixedSizeCollater, FixedSizeOptions
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([3.0]))
        >>> batch = FixedSizeCollater(FixedSizeOptions(4, 5, 3), add_masks_to_batch=True)([graph])
        >>> graphs = to_graphs_tuple(batch)
        >>> graphs.n_node.tolist(), graphs.n_edge.tolist(), graphs.globals["y"].tolist()
        ([2, 2, 0], [2, 3, 0], [3.0, 0.0, 0.0])
    """
    arrays = dict(batch) if isinstance(batch, Mapping) else as_arrays(batch)
    if "edge_index" not in arrays or "batch" not in arrays or "ptr" not in arrays:
        raise ValueError(f"The batch has {sorted(arrays)}; edge_index, batch and ptr of one node type are needed.")
    senders, *rest = arrays["edge_index"]
    if len(rest) != 1:
        raise ValueError("The item holds several batches; split it with popgeo.data.super_batch.split first.")
    receivers, ptr = rest[0], arrays["ptr"]
    sizes = {"node": len(arrays["batch"]), "edge": len(receivers), "graph": len(ptr) - 1}
    parts: dict[str, dict[str, np.ndarray]] = {level: {} for level in sizes}
    for name, array in arrays.items():
        if name not in JOINS and not name.endswith(("_ptr", "_batch")):
            parts[_level(name, array, sizes, levels or {})][name] = array
    return GraphsTuple(
        nodes=parts["node"],
        edges=parts["edge"],
        receivers=receivers,
        senders=senders,
        globals=parts["graph"],
        n_node=np.diff(ptr).astype(np.int32),
        n_edge=np.bincount(arrays["batch"][receivers], minlength=sizes["graph"]).astype(np.int32),
    )


def _level(name: str, array: np.ndarray, sizes: Mapping[str, int], levels: Mapping[str, str]) -> str:
    if name in levels:
        level = levels[name]
        if level not in sizes:
            raise ValueError(f"levels[{name!r}] is {level!r}; it is one of {list(sizes)}.")
        return level
    for level, names in (("node", OF_NODES), ("edge", OF_EDGES), ("graph", OF_GRAPHS)):
        if name in names:
            return level
    fits = [level for level, size in sizes.items() if array.ndim and len(array) == size]
    if len(fits) != 1:
        found = " and ".join(f"{level}s" for level in fits) or f"none of {dict(sizes)}"
        raise ValueError(
            f"{name} of shape {array.shape} fits {found}. Pass levels={{{name!r}: 'node'}}, 'edge' or 'graph'."
        )
    return fits[0]
