"""Batches for other frameworks: NumPy arrays, and the tuple of arrays that JAX's graph networks use."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from popgeo.data.attribute_names import JOINS, OF_EDGES, OF_GRAPHS, OF_NODES, with_registered


def as_arrays(batch: Any) -> dict[str, np.ndarray]:
    """Return the tensors of a batch as NumPy arrays that share its memory.

    Attributes that are not tensors, such as lists of names, are left out.

    Args:
        batch: A `Batch` on the processor, or a named tuple of tensors.

    Returns:
        Arrays by name. Names in a heterogeneous batch begin with the type, as `paper.x` and
        `author__writes__paper.edge_index`.

    Raises:
        ValueError: a tensor is on another device, or has a type that NumPy does not have.

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
        raise ValueError(f"{name} is on {tensor.device}; NumPy reads memory of the processor. Use device='cpu'.")
    try:
        return tensor.detach().numpy()
    except TypeError:
        raise ValueError(f"{name} is {tensor.dtype}, a type that NumPy lacks. Convert it, as to float32.") from None


class GraphsTuple(NamedTuple):
    """A batch of graphs with the fields of jraph's tuple of the same name, in the same order.

    Attributes:
        nodes: Attributes of nodes by name. [num_nodes, ...]
        edges: Attributes of edges by name. [num_edges, ...]
        receivers: The node that each edge ends at. [num_edges]
        senders: The node that each edge starts at. [num_edges]
        globals: Attributes of graphs by name. [num_graphs, ...]
        n_node: Nodes of each graph; padding nodes are in the padding graph. [num_graphs]
        n_edge: Edges of each graph; padding edges are in the padding graph. [num_graphs]
    """

    nodes: dict[str, np.ndarray]
    edges: dict[str, np.ndarray]
    receivers: np.ndarray
    senders: np.ndarray
    globals: dict[str, np.ndarray]
    n_node: np.ndarray
    n_edge: np.ndarray


def to_graphs_tuple(batch: Any, levels: Mapping[str, str] | None = None) -> GraphsTuple:
    """Return a batch of fixed size, padding included, as senders, receivers and counts.

    The first padding graph owns all padding nodes and edges; later padding graphs are empty. So `n_node` adds up to the
    node slots and `n_edge` to the edge slots, as with `jraph.pad_with_graphs`. Masks keep their names.

    Args:
        batch: A `Batch` of one node type, or a dictionary from a loader with `output="numpy"`.
        levels: The level of attributes, as `{"y": "graph"}`. Default: registered, or inferred from name and size.

    Returns:
        Arrays that share the memory of the batch. Only the counts are new.

    Raises:
        ValueError: the batch has several node types or joined batches, or the level of an attribute is not clear.

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
            parts[_level(name, array, sizes, with_registered(levels) or {})][name] = array
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
