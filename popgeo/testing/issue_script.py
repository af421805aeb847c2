"""The smallest case that fails, as a script that is in an issue by itself."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from popgeo.testing.claims import Case, Claim, Subject

_WIDEST = 110


def issue_script(subject: Subject, claim: Claim, case: Case) -> str:
    """A program that tries one claim on one case and prints what comes of it; it needs popgeo and the subject."""
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
    """The expression that makes a graph."""
    if isinstance(graph, HeteroData):
        parts = {"_global_store": graph._global_store, **dict(graph.items())}
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
