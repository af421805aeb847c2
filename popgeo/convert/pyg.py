"""PyG's datasets by name, and the files of PyG and torch."""

import inspect
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch_geometric.datasets
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

# The classes in graphs that torch does not load by default; none of them runs code from the file.
_OF_PYG = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]


def dataset_by_name(name: str, root: Path | None, options: Mapping[str, Any]) -> Any:
    """Return a dataset of `torch_geometric.datasets`.

    Raises:
        ValueError: the class does not exist, or cannot be made with these options.
    """
    cls = getattr(torch_geometric.datasets, name, None)
    if not inspect.isclass(cls):
        raise ValueError(f"{name!r} is neither a file nor a class of torch_geometric.datasets. Check its spelling.")
    parameters = inspect.signature(cls).parameters
    if unknown := sorted(set(options) - set(parameters)):
        raise ValueError(f"{name} takes no {unknown}; it takes {[p for p in parameters if p != 'root']}.")
    if "root" in parameters and root is None:
        raise ValueError(f"{name} needs a folder: pass --root FOLDER. An empty folder means that PyG downloads it.")
    where = {"root": str(root)} if "root" in parameters else {}
    try:
        return cls(**where, **options)
    except (TypeError, AssertionError, OSError) as error:
        raise ValueError(f"{name} cannot be opened with {dict(options)}: {error}") from error


def read_pt(path: Path, trust: bool = False) -> Any:
    """Return the graphs of a file of `torch.save` or of a PyG dataset: processed data, a list, or one graph.

    Args:
        path: The file.
        trust: Whether code in the file may run, which files with other classes need. Default: False.

    Raises:
        ValueError: the file is damaged, has no graphs, or would run code.
    """
    with path.open("rb") as file:
        try:
            _require_whole(file)
            with torch.serialization.safe_globals(_OF_PYG):
                content = torch.load(file, weights_only=not trust)
        except Exception as error:  # a damaged file may raise any error
            remedy = "Write or download it again; it may be damaged."
            if isinstance(error, pickle.UnpicklingError):
                remedy = "If it comes from a source that you trust, pass --trust."
            raise ValueError(f"{path} cannot be read: {_first_line(error)} {remedy}") from error
    if isinstance(content, Batch):
        return content.to_data_list()
    if isinstance(content, Data | HeteroData):
        return [content]
    if isinstance(content, Sequence) and content and all(isinstance(one, Data | HeteroData) for one in content):
        return list(content)
    if isinstance(content, tuple) and len(content) in (2, 3) and isinstance(content[1], Mapping | None):
        return _processed(path, *content)
    raise ValueError(
        f"{path} contains a {type(content).__name__}; graphs, or the files of a dataset of PyG, are needed."
    )


def _require_whole(file: BinaryIO) -> None:
    """Compare the checksums that torch writes but does not check when it loads.

    Raises:
        ValueError: the file is empty, or a checksum does not match. A cut off file raises an error of zipfile.
    """
    start = file.read(4)
    if not start:
        raise ValueError("it is empty.")
    if start == b"PK\x03\x04":  # before torch 1.6 files were not zip files and had no checksums
        with zipfile.ZipFile(file) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} does not match.")
    file.seek(0)


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _processed(path: Path, data: Any, slices: Mapping[str, Any] | None, cls: type = Data) -> Any:
    """Return the content of a file of `InMemoryDataset.save` as a dataset."""
    graphs = cls.from_dict(data) if isinstance(data, Mapping) else data  # type: ignore[attr-defined]  # as PyG does
    if not isinstance(graphs, Data | HeteroData):
        raise ValueError(f"{path} contains a tuple that no dataset of PyG has written.")
    if slices is None:
        return [graphs]
    dataset = InMemoryDataset()
    dataset._data, dataset.slices = graphs, dict(slices)
    return dataset
