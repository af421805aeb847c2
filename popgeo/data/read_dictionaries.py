"""Columns from graphs that are dictionaries of tensors; the stores of PyG's graphs are such dictionaries, too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.attribute_names import MADE_BY_BATCH, NUMBERS
from popgeo.data.axes import Levels, StoreKey, row_pointer
from popgeo.data.columns import Columns
from popgeo.data.pyg_counts import JoinedColumn, columns_of
from popgeo.native.plain_tensor import plain_tensor

_SPARSE = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc


def read_dictionaries(graphs: Sequence[dict[str, Any]], excluded: set[str], levels: Levels | None) -> Columns:
    """Return graphs as columns, with each attribute concatenated as PyG does for `Data`.

    Args:
        graphs: The tensors of each graph by name, such as `{"z": ..., "pos": ..., "edge_index": ...}`.
        excluded: Names to leave out.
        levels: The level of attributes. Default: registered or inferred.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be concatenated.
    """
    columns, stated = join_store(graphs, excluded, _cat_dim)
    counts: dict[StoreKey, Tensor] = {} if stated is None else {None: stated}
    return columns_of(dict, (None,), (None,), {None: columns}, counts, levels, len(graphs))


_MOST_NODES = 1 << 40


def _cat_dim(name: str, value: Tensor) -> int:
    """Return the dimension that `Data.__cat_dim__` returns."""
    return -1 if "index" in name or name == "face" else 0


def join_store(
    graphs: Sequence[Mapping[str, Any]], excluded: set[str], dim_of: Callable[[str, Tensor], int | None]
) -> tuple[list[JoinedColumn], Tensor | None]:
    """Return the concatenated attributes of one store of all graphs, and the `num_nodes` of each graph if stated.

    Args:
        graphs: The attributes of each graph's store by name.
        excluded: Names to leave out.
        dim_of: A function that returns the dimension of concatenation of an attribute; None means stacking.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be concatenated.
    """
    names = graphs[0].keys()
    for i, graph in enumerate(graphs):
        if graph.keys() != names and (odd := sorted((graph.keys() ^ names) - excluded)):
            raise ValueError(
                f"Graphs 0 and {i} differ in the attributes {odd}; all graphs of a batch need the same. Set them "
                f"everywhere or pass exclude_keys={odd}."
            )
    for name in {"batch", "ptr"} & names - excluded:
        refuse_own(name, [graph[name] for graph in graphs])
    kept = [name for name in names if name not in excluded | MADE_BY_BATCH]
    columns = [_join(name, [graph[name] for graph in graphs], partial(dim_of, name)) for name in kept]
    states = "num_nodes" in names and "num_nodes" not in excluded
    return columns, stated_counts([graph["num_nodes"] for graph in graphs]) if states else None


def _join(name: str, values: list[Any], dim_of: Callable[[Tensor], int | None]) -> JoinedColumn:
    """Return an attribute of all graphs as one tensor, or as a list if the values are not tensors.

    Raises:
        ValueError: values differ in type, dtype or shape between graphs, or edges are not integers.
    """
    first = values[0]
    if isinstance(first, (int, float)) and all(isinstance(value, (int, float)) for value in values):
        ends = torch.arange(len(values) + 1)
        try:
            return JoinedColumn(name=name, values=torch.tensor(values), slices=ends, is_number=True)
        except (RuntimeError, ValueError, OverflowError) as error:
            graph = next((i for i, value in enumerate(values) if not -(2**63) <= value < 2**63), 0)
            raise ValueError(
                f"Attribute {name!r} of graph {graph} is {values[graph]}, which no tensor of integers holds. Store "
                f"it as text or pass exclude_keys=[{name!r}]."
            ) from error
    are_tensors = [isinstance(value, Tensor) for value in values]
    if any(are_tensors) and not all(are_tensors):
        odd = are_tensors.index(not are_tensors[0])
        raise ValueError(
            f"Attribute {name!r} is a {type(first).__name__} in graph 0 and a {type(values[odd]).__name__} in graph "
            f"{odd}; it must be a tensor in all graphs or in none. Convert it or pass exclude_keys=[{name!r}]."
        )
    if not isinstance(first, Tensor) or first.layout in _SPARSE or first.is_nested:
        refuse_containers(name, values)
        return JoinedColumn(name=name, values=values)
    # Plain tensors in memory need no check one by one: the concatenated tensor is checked below.
    if set(map(type, values)) != {Tensor} or any(value.numel() for value in values if not value.data_ptr()):
        values = [plain_tensor(f"Attribute {name!r} of graph {i}", value) for i, value in enumerate(values)]
    first = values[0]
    if len(set(map(attrgetter("dtype"), values))) > 1:
        odd = next(i for i, value in enumerate(values) if value.dtype != first.dtype)
        raise ValueError(
            f"Attribute {name!r} is {first.dtype} in graph 0 and {values[odd].dtype} in graph {odd}. Convert one of "
            f"them or pass exclude_keys=[{name!r}]."
        )
    if name == "edge_index" and (first.is_floating_point() or first.is_complex() or first.dtype is torch.bool):
        raise ValueError(f"edge_index is {first.dtype}; indices are integers. Pass edge_index.long().")
    if name == "edge_index" and first.dim() == 2 and first.size(0) != 2:
        raise ValueError(f"edge_index has shape {tuple(first.shape)}; it is [2, num_edges]. Pass edge_index.t().")
    dim = dim_of(first)
    if dim is None or first.dim() == 0:
        values, dim = [value.unsqueeze(0) for value in values], 0
    try:
        # A single graph, which may be large, is not copied.
        with torch.no_grad():
            joined = torch.cat(values, dim=dim) if len(values) > 1 else values[0]
    except RuntimeError as error:
        graph = next((i for i, value in enumerate(values) if _width(value, dim) != _width(values[0], dim)), 0)
        raise ValueError(
            f"Attribute {name!r} cannot be joined along dimension {dim}: it is {list(values[0].shape)} in graph 0 and "
            f"{list(values[graph].shape)} in graph {graph}. Make the other dimensions equal or pass "
            f"exclude_keys=[{name!r}]."
        ) from error
    counts = torch.tensor(list(map(methodcaller("size", dim), values)))
    joined = plain_tensor(f"Attribute {name!r}", joined).contiguous()
    return JoinedColumn(name=name, values=joined, slices=row_pointer(counts), dim=int(dim) % joined.dim())


def refuse_own(name: str, values: Iterable[Any]) -> None:
    """Raise if a graph has a `batch` or `ptr` of more than one graph, because a batch replaces both."""
    for graph, value in enumerate(values):
        numbers = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if numbers.numel() > 2 if name == "ptr" else bool(numbers.any()):
            raise ValueError(
                f"Graph {graph} has an attribute {name!r}, which every batch makes itself. Rename it, or "
                f"pass exclude_keys=[{name!r}]."
            )


def stated_counts(stated: Sequence[Any]) -> Tensor:
    """Return `num_nodes` of each graph, int64 [num_graphs]."""
    for graph, count in enumerate(stated):
        one = count.reshape(()).item() if isinstance(count, Tensor) and count.numel() == 1 else count
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)) or not 0 <= one <= _MOST_NODES:
            raise ValueError(f"Graph {graph} has num_nodes={count!r}; pass a whole number from 0 to {_MOST_NODES:,}.")
    return torch.tensor([int(count) for count in stated], dtype=torch.int64)


def _width(value: Tensor, dim: int) -> tuple[int | None, ...]:
    """Return the shape with None for the dimension of concatenation, which a number does not have."""
    return tuple(None if i == dim % value.dim() else size for i, size in enumerate(value.shape))


def refuse_containers(name: str, values: Any) -> None:
    """Raise for containers of numbers that a batch cannot hold as one tensor; strings, None and other objects pass."""
    probe = values[0] if isinstance(values, (list, tuple)) and values else values
    inner = probe[0] if isinstance(probe, (list, tuple)) and probe else probe
    if (isinstance(probe, np.ndarray) and probe.dtype.kind in "biufc") or (
        name in NUMBERS and isinstance(probe, (list, tuple)) and not isinstance(inner, str)
    ):
        raise ValueError(
            f"Attribute {name!r} is a {type(probe).__name__}, which is not concatenated; batches hold tensors. "
            f"Convert it with torch.as_tensor, or pass exclude_keys=[{name!r}]."
        )
    if type(probe).__name__ == "SparseTensor" or isinstance(probe, (Tensor, Mapping)) or isinstance(inner, Tensor):
        kind = f"{probe.layout} tensor" if isinstance(probe, Tensor) else type(probe).__name__
        raise ValueError(
            f"Attribute {name!r} holds a {kind}, which has no flat layout. Store it as plain tensors "
            f"(an adjacency as edge_index) or pass exclude_keys=[{name!r}]."
        )
