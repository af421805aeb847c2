"""Features larger than memory: a `FeatureStore` of PyG that reads rows of arrays on disk."""

import mmap
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import TensorAttr

from popgeo.data.axes import StoreKey
from popgeo.loader.large.feature_rows import ReadOnlyFeatures
from popgeo.sampling.compressed_graph import check_range

_ROWS_AT_ONCE = 256
Files = str | os.PathLike[str] | Mapping[str, Any]


class DiskFeatures(ReadOnlyFeatures):
    """A feature store whose data stay in files. Many threads read only the pages of requested rows.

    The pages are in the operating system's cache, which is freed when memory is needed. Threads are used because a disk
    answers many requests faster at the same time than one after the other.

    Args:
        files: For each node or edge type (None without types) its source: a table in a file of Arrow or Parquet, with
            attributes as columns (extra `stores`); or a dictionary of `.npy` files and arrays by name. Parquet and
            compressed Arrow files cannot be mapped: their columns are written next to them once, as `.npy`.
        num_threads: Number of threads.

    Raises:
        ValueError: a column has nulls, rows of different widths, or no numbers.

    Example:
        >>> features = DiskFeatures({None: {"x": np.arange(6.0).reshape(3, 2)}})
        >>> features.get_tensor(group_name=None, attr_name="x", index=torch.tensor([2, 0])).tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, files: Mapping[StoreKey, Files], num_threads: int = 16) -> None:
        super().__init__()
        columns = {(key, name): parts for key, of_type in files.items() for name, parts in _opened(of_type).items()}
        self.__dict__.update(files=files, num_threads=num_threads, columns=columns)

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        parts = self.columns.get((attr.group_name, attr.attr_name))
        if parts is None:
            return None
        starts = np.cumsum([0, *map(len, parts)])
        index: Any = slice(None) if attr.index is None else attr.index
        is_choice = isinstance(index, slice) or str(getattr(index, "dtype", "")).endswith("bool")
        rows = np.arange(starts[-1])[index] if is_choice else np.asarray(index, np.int64).reshape(-1)
        check_range(f"The index of {attr.attr_name!r}", torch.from_numpy(rows), int(starts[-1]))
        out = np.empty((len(rows), *parts[0].shape[1:]), parts[0].dtype)

        def read(first: int) -> None:
            wanted, found = rows[first : first + _ROWS_AT_ONCE], out[first : first + _ROWS_AT_ONCE]
            of_part = np.searchsorted(starts, wanted, side="right") - 1
            for number in np.unique(of_part):
                here = of_part == number
                found[here] = parts[number].take(wanted[here] - starts[number], axis=0)  # without Python's lock

        with ThreadPoolExecutor(self.num_threads) as threads:
            list(threads.map(read, range(0, len(rows), _ROWS_AT_ONCE)))
        return torch.from_numpy(out)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        parts = self.columns[attr.group_name, attr.attr_name]
        return (sum(map(len, parts)), *parts[0].shape[1:])

    def __reduce__(self) -> Any:
        return DiskFeatures, (self.files, self.num_threads)  # other processes map the files themselves


def _opened(files: Files) -> dict[str, list[np.ndarray]]:
    """Return each attribute as a list of arrays that are consecutive parts of its rows."""
    if isinstance(files, Mapping):
        return {name: [_mapped(array)] for name, array in files.items()}
    path = Path(files)
    if path.suffix != ".parquet":
        import pyarrow as pa

        before = pa.total_allocated_bytes()
        table = pa.ipc.open_file(pa.py_buffer(_random(np.memmap(path, mode="r")))).read_all()
        if pa.total_allocated_bytes() - before < path.stat().st_size // 2:  # not compressed
            return {name: [_rows(name, part) for part in table[name].chunks] for name in table.column_names}
        del table
    folder = path.with_name(f"{path.name}.columns")
    if not folder.exists() or folder.stat().st_mtime < path.stat().st_mtime:
        _write_columns(path, folder)
    return {file.stem: [_mapped(file)] for file in sorted(folder.iterdir())}


def _mapped(array: Any) -> np.ndarray:
    """Return an array, which is memory-mapped if it is given as a file."""
    if isinstance(array, (str, os.PathLike)):
        array = np.load(array, mmap_mode="r")
    return _random(array if isinstance(array, np.ndarray) else torch.as_tensor(array).numpy())


def _random(array: np.ndarray) -> np.ndarray:
    """Return the array. If it is memory-mapped, advise the system to read only the pages that are used."""
    pages = getattr(array, "_mmap", None)
    if pages is not None and hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)


def _write_columns(path: Path, folder: Path) -> None:
    """Write each column of a table as an array. The folder appears only when it is complete."""
    from pyarrow import dataset

    table = dataset.dataset(path, format="parquet" if path.suffix == ".parquet" else "ipc")
    num_rows = table.count_rows()
    with TemporaryDirectory(prefix=f"{folder.name}.popgeo-", suffix=".part", dir=folder.parent) as home:
        part = Path(home) / folder.name
        part.mkdir()
        files: dict[str, np.ndarray] = {}
        start = 0
        for batch in table.to_batches(batch_readahead=0, fragment_readahead=0):  # one in memory at a time
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                rows = _rows(name, column)
                if name not in files:
                    shape, file = (num_rows, *rows.shape[1:]), part / f"{name}.npy"
                    files[name] = np.lib.format.open_memmap(file, mode="w+", dtype=rows.dtype, shape=shape)
                files[name][start : start + len(rows)] = rows
            start += batch.num_rows
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)


def _rows(name: str, column: Any) -> np.ndarray:
    """Return a column as an array with the same number of rows."""
    import pyarrow as pa

    if column.null_count:
        raise ValueError(f"Column {name!r} has {column.null_count} nulls; fill them, or write the table without it.")
    width: tuple[int, ...] = ()
    if pa.types.is_nested(column.type):
        flat = column.flatten()
        width = (len(flat) // max(1, len(column)),)
        if len(flat) != width[0] * len(column) or (
            pa.types.is_list(column.type) and column.value_lengths().unique().to_pylist() not in ([], [width[0]])
        ):
            raise ValueError(f"Column {name!r} has lists of different lengths; the rows of a tensor have one length.")
        column = flat
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"Column {name!r} is {column.type}; features are numbers. Write the table without it.")
    return values.reshape(-1, *width)
