"""The smallest case that still fails, and its script for an issue."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from popgeo.data import FlatStore, Level
from popgeo.data.axes import Axis
from popgeo.data.subset import keep_rows, take
from popgeo.data.trim import edges_between, ends_in_all
from popgeo.testing.claims import Case, Claim, Subject


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 200) -> Case:
    """Return a failing case with few graphs, then few nodes, then few edges, within a number of tries.

    Args:
        case: Failing case.
        fails: Function that checks whether a smaller case fails.
        tries: Largest number of calls of `fails`.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = tuple(Data(x=torch.arange(n), edge_index=torch.zeros(2, n).long()) for n in (3, 5, 4))
        >>> small = shrink(Case(graphs=graphs), lambda case: any(4 in graph.x for graph in case.graphs))
        >>> small.graphs
        (Data(x=[1], edge_index=[2, 0]),)
    """
    left, smallest = tries, case

    def still(store: FlatStore) -> bool:
        nonlocal left, smallest
        left -= 1
        smaller = replace(case, graphs=tuple(store))
        if left < 0 or not fails(smaller):
            return False
        smallest = smaller
        return True

    if not case.graphs:
        return case
    store = FlatStore.from_dataset(list(case.graphs))
    kept = _fewest(len(case.graphs), lambda ids: still(take(store, ids)), least=1)
    store = take(store, kept)
    for level in (Level.NODE, Level.EDGE):
        for axis in [axis for axis in store.row_pointers if axis.level is level and axis.name is None]:
            whole, rows = store, int(store.row_pointers[axis][-1])
            kept = _fewest(rows, lambda ids: still(_cut(whole, axis, ids)), least=0)  # noqa: B023  # called at once
            store = _cut(whole, axis, kept)
    return smallest


def _cut(store: FlatStore, axis: Axis, ids: np.ndarray) -> FlatStore:
    """Return the dataset with only these rows of an axis, without the edges that lose an end."""
    keep = {axis: torch.zeros(int(store.row_pointers[axis][-1]), dtype=torch.bool)}
    keep[axis][torch.from_numpy(ids)] = True
    edges = [attribute for attribute in store.attributes if attribute.name == "edge_index"]
    masks = {one.axis: edges_between(one.axis, ends_in_all(store, one), keep) for one in edges}
    return keep_rows(store, {**masks, **keep})


def _fewest(number: int, still: Callable[[np.ndarray], bool], least: int) -> np.ndarray:
    """Return the numbers below `number` that remain after removing every removable block, the largest blocks first."""
    kept: np.ndarray = np.arange(number)
    size = max(number // 2, 1)
    while size and len(kept) > least:
        start = 0
        while start < len(kept):
            fewer = np.delete(kept, slice(start, start + size))
            if len(fewer) >= least and still(fewer):
                kept = fewer
            else:
                start += size
        size //= 2
    return kept


_WIDEST = 110


def issue_script(subject: Subject, claim: Claim, case: Case) -> str:
    """Return a program that tries one claim on one case and prints the finding; it needs popgeo and the subject."""
    heads = ["import torch", "from torch_geometric.data import Data, HeteroData"]
    graphs = "".join(f"    {_graph(graph)},\n" for graph in case.graphs)
    settings = _literal(case.settings)
    what = repr(subject.origin)
    put = ""
    if not subject.origin:
        what, put = "subject", f"subject = ...  # {subject.name}, the {subject.kind.value} that was tried\n"
    if any(word in graphs + settings for word in ("nan", "inf")):
        heads = ["from math import inf, nan", "", *heads]
    kind = "" if subject.kind.value == "model" else f", kind={subject.kind.value!r}"
    return (
        f'"""{claim.says}"""\n\n' + "\n".join(heads) + "\n\nfrom popgeo.testing import check_conformance\n\n"
        f"{put}graphs = [\n{graphs}]\n"
        f"print(check_conformance({what}, graphs{kind}, claims=[{claim.name!r}], settings={settings}, slow=True))\n"
    )


def _graph(graph: Data | HeteroData) -> str:
    """Return the expression that makes a graph."""
    if isinstance(graph, HeteroData):
        of_types = {**dict(graph.node_items()), **dict(graph.edge_items())}
        parts = {"_global_store": graph._global_store, **of_types}
        stores = {key: _fields(store) for key, store in parts.items() if len(store)}
        return "HeteroData({" + ", ".join(f"{key!r}: dict({fields})" for key, fields in stores.items()) + "})"
    fields = _fields(graph._store)
    if len(fields) > _WIDEST:
        return "Data(\n        " + _fields(graph._store, ",\n        ") + ",\n    )"
    return f"Data({fields})"


def _fields(store: BaseStorage, between: str = ", ") -> str:
    return between.join(f"{name}={_literal(value)}" for name, value in store.items())


def _literal(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.numel() == 0:
            return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
        kept = {torch.int64: "", torch.float32: "", torch.bool: ""}.get(value.dtype, f", dtype={value.dtype}")
        return f"torch.tensor({value.tolist()}{kept})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(part)}" for key, part in value.items()) + "}"
    return repr(value)
