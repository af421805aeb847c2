"""Reads graphs that are dictionaries of tensors; the stores of PyG's graphs are joined as such dictionaries, too."""

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


def read_dictionaries(graphs: Sequence[dict[str, Any]], excluded: set[str], levels: Levels) -> Columns:
    """The attributes of all graphs, each joined as PyG's `Data` would join it.

    Args:
        graphs: For each graph its tensors by name, such as `{"z": ..., "pos": ..., "edge_index": ...}`.
        excluded: Names to leave out.
        levels: What an attribute's rows belong to; the others are inferred.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be joined.
    """
    columns, stated = join_store(graphs, excluded, _cat_dim)
    counts: dict[StoreKey, Tensor] = {} if stated is None else {None: stated}
    return columns_of(dict, (None,), (None,), {None: columns}, counts, levels, len(graphs))


_MOST_NODES = 1 << 40


def _cat_dim(name: str, value: Tensor) -> int:
    """As `Data.__cat_dim__` says."""
    return -1 if "index" in name or name == "face" else 0


def join_store(
    graphs: Sequence[Mapping[str, Any]], excluded: set[str], dim_of: Callable[[str, Tensor], int | None]
) -> tuple[list[JoinedColumn], Tensor | None]:
    """The attributes of one store of all graphs, each joined, and the nodes of each graph if `num_nodes` states them.

    Args:
        graphs: The attributes of each graph's store by name.
        excluded: Names to leave out.
        dim_of: The dimension along which a class of graphs joins an attribute; None if graphs are stacked.

    Raises:
        ValueError: graphs have different names, or an attribute cannot be joined.
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
    """One attribute of all graphs: one tensor, or the values themselves if they are not tensors that can be joined.

    Raises:
        ValueError: graphs differ in kind, type or shape, or edges are not numbers of nodes.
    """
    first = values[0]
    if isinstance(first, (int, float)) and all(isinstance(value, (int, float)) for value in values):
        ends = torch.arange(len(values) + 1)
        return JoinedColumn(name=name, values=torch.tensor(values), slices=ends, is_number=True)
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
    # Of torch's own class, in memory: then what they are joined to tells all else about them.
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
        raise ValueError(f"edge_index is {first.dtype}; numbers of nodes are whole. Pass edge_index.long().")
    if name == "edge_index" and first.dim() == 2 and first.size(0) != 2:
        raise ValueError(f"edge_index has shape {tuple(first.shape)}; it is [2, num_edges]. Pass edge_index.t().")
    dim = dim_of(first)
    if dim is None or first.dim() == 0:
        values, dim = [value.unsqueeze(0) for value in values], 0
    try:
        # One graph alone, which may be a large one, is used where it lies.
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
    """Raise if a graph's own `batch` or `ptr` says more than that it is one graph, because a batch replaces it."""
    for graph, value in enumerate(values):
        numbers = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if numbers.numel() > 2 if name == "ptr" else bool(numbers.any()):
            raise ValueError(
                f"Graph {graph} has an attribute {name!r} of its own, which every batch makes itself. Rename it, or "
                f"pass exclude_keys=[{name!r}]."
            )


def stated_counts(stated: Sequence[Any]) -> Tensor:
    """`num_nodes` of each graph. int64 [num_graphs]"""
    for graph, count in enumerate(stated):
        one = count.reshape(()).item() if isinstance(count, Tensor) and count.numel() == 1 else count
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)) or not 0 <= one <= _MOST_NODES:
            raise ValueError(
                f"Graph {graph} has num_nodes={count!r}; it is a whole number, not negative, at most {_MOST_NODES:,}."
            )
    return torch.tensor([int(count) for count in stated], dtype=torch.int64)


def _width(value: Tensor, dim: int) -> tuple[int, ...]:
    """The shape without the dimension that graphs are joined along."""
    shape = list(value.shape)
    del shape[dim]
    return tuple(shape)


def refuse_containers(name: str, values: Any) -> None:
    """Sparse matrices and nested tensors have no fixed size; strings, None and other objects pass as they are."""
    probe = values[0] if isinstance(values, (list, tuple)) and values else values
    inner = probe[0] if isinstance(probe, (list, tuple)) and probe else probe
    if (isinstance(probe, np.ndarray) and probe.dtype.kind in "biufc") or (
        name in NUMBERS and isinstance(probe, (list, tuple)) and not isinstance(inner, str)
    ):
        raise ValueError(
            f"Attribute {name!r} is a {type(probe).__name__}, which would not be joined; batches hold tensors. Make it "
            f"one with torch.as_tensor, or pass exclude_keys=[{name!r}]."
        )
    if type(probe).__name__ == "SparseTensor" or isinstance(probe, (Tensor, Mapping)) or isinstance(inner, Tensor):
        kind = f"{probe.layout} tensor" if isinstance(probe, Tensor) else type(probe).__name__
        raise ValueError(
            f"Attribute {name!r} holds a {kind}, which has no flat layout. Store it as plain tensors "
            f"(an adjacency as edge_index) or pass exclude_keys=[{name!r}]."
        )
