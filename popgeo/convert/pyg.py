"""PyG's datasets by name, and the files that PyG and torch write."""

import inspect
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch_geometric.datasets
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

# What graphs are made of and torch does not know by itself; none of it runs code of the file's.
_OF_PYG = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]


def dataset_by_name(name: str, root: Path | None, options: Mapping[str, Any]) -> Any:
    """A dataset of `torch_geometric.datasets`.

    Raises:
        ValueError: there is no such class, or it cannot be made so.
    """
    cls = getattr(torch_geometric.datasets, name, None)
    if not inspect.isclass(cls):
        raise ValueError(f"{name!r} is neither a file nor a class of torch_geometric.datasets. Check its spelling.")
    parameters = inspect.signature(cls).parameters
    if unknown := sorted(set(options) - set(parameters)):
        raise ValueError(f"{name} takes no {unknown}; it takes {[p for p in parameters if p != 'root']}.")
    if "root" in parameters and root is None:
        raise ValueError(f"{name} lies in a folder; pass --root FOLDER, which may be empty to have it downloaded.")
    where = {"root": str(root)} if "root" in parameters else {}
    try:
        return cls(**where, **options)
    except (TypeError, AssertionError, OSError) as error:
        raise ValueError(f"{name} cannot be opened with {dict(options)}: {error}") from error


def read_pt(path: Path, trust: bool = False) -> Any:
    """The graphs of a file that `torch.save` or a dataset of PyG has written: processed data, a list, or one graph.

    Args:
        path: The file.
        trust: Whether code in the file may run, as classes of others need; otherwise such a file is refused.

    Raises:
        ValueError: it holds something else, or would run code.
    """
    try:
        with torch.serialization.safe_globals(_OF_PYG):
            content = torch.load(path, weights_only=not trust)
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or ["it is empty or cut off."])[0]
        raise ValueError(
            f"{path} cannot be read: {reason} If it comes from a source that you trust, pass --trust."
        ) from error
    if isinstance(content, Batch):
        return content.to_data_list()
    if isinstance(content, Data | HeteroData):
        return [content]
    if isinstance(content, Sequence) and content and all(isinstance(one, Data | HeteroData) for one in content):
        return list(content)
    if isinstance(content, tuple) and len(content) in (2, 3) and isinstance(content[1], Mapping | None):
        return _processed(path, *content)
    raise ValueError(f"{path} holds a {type(content).__name__}; graphs, or what a dataset of PyG writes, are needed.")


def _processed(path: Path, data: Any, slices: Mapping[str, Any] | None, cls: type = Data) -> Any:
    """What `InMemoryDataset.save` has written, as a dataset."""
    graphs = cls.from_dict(data) if isinstance(data, Mapping) else data  # type: ignore[attr-defined]  # as PyG does
    if not isinstance(graphs, Data | HeteroData):
        raise ValueError(f"{path} holds a tuple that no dataset of PyG has written.")
    if slices is None:
        return [graphs]
    dataset = InMemoryDataset()
    dataset._data, dataset.slices = graphs, dict(slices)
    return dataset
