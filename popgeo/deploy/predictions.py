"""Results of a predictor in the order of the graphs, as one tensor per name or graph by graph."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Axis, row_pointer

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions(Mapping[str, Tensor]):
    """The predicted results of many graphs, in the order of the graphs.

    Args:
        num_graphs: Number of graphs, including failed ones.
        tensors: One tensor per result: a row per graph, or a row per node or edge, graph after graph. A failed graph
            has NaN (0 among whole numbers) in results for graphs, and no rows in results for nodes and edges.
        axes: Level and type of the rows of each result.
        ptr: For each result, the first row of each graph, and the number of rows. int64 [num_graphs + 1]
        errors: Errors of failed graphs, by their numbers.
        files: Name of each graph's file, if the graphs are from a folder of files.

    Example:
        >>> y = torch.tensor([1.0, 2.0])
        >>> some = Predictions(num_graphs=2, tensors={"y": y}, axes={"y": GRAPHS}, ptr={"y": torch.arange(3)})
        >>> some["y"], some.of(1)
        (tensor([1., 2.]), {'y': tensor([2.])})
    """

    num_graphs: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    axes: Mapping[str, Axis] = field(default_factory=dict)
    ptr: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[int, Exception] = field(default_factory=dict)
    files: Sequence[str] = ()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            known = f"the results are {', '.join(self.tensors)}" if self.tensors else "no graph has results"
            raise KeyError(f"{name!r}; {known}.")
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def of(self, graph: int) -> dict[str, Tensor]:
        """Return the results of one graph by name. A result per graph has one row, [1, ...].

        Raises:
            Exception: the error of the graph, if it failed.
        """
        if graph in self.errors:
            raise self.errors[graph]
        starts = {name: ptr[graph : graph + 2].tolist() for name, ptr in self.ptr.items()}
        return {name: self.tensors[name][start:stop] for name, (start, stop) in starts.items()}

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {list(t.shape)} of {self.axes[name].level.value}s" for name, t in self.items())
        failed = f"; {len(self.errors):,} failed" if self.errors else ""
        return f"{type(self).__name__}({self.num_graphs:,} graphs; {shapes}{failed})"

    @staticmethod
    def concatenate(parts: "Iterable[Predictions]") -> "Predictions":
        """Concatenate the results of several lists of graphs."""
        parts = list(parts)
        like = next((part for part in parts if part.tensors), Predictions(num_graphs=0))
        errors: dict[int, Exception] = {}
        start = 0
        for part in parts:
            errors |= {start + graph: error for graph, error in part.errors.items()}
            start += part.num_graphs
        parts = [part if part.tensors else _all_failed(part, like) for part in parts]
        values = {name: torch.cat([part[name] for part in parts]) for name in like}
        ptr = {name: row_pointer(torch.cat([part.ptr[name].diff() for part in parts])) for name in like}
        return Predictions(num_graphs=start, tensors=values, axes=like.axes, ptr=ptr, errors=errors)

    def to_frames(self) -> "dict[str, pd.DataFrame]":
        """Return one table per level, with one row per graph, node or edge and the number of its graph.

        A result with several columns becomes `forces_0`, `forces_1` and so on. If the graphs are from a folder, `file`
        is the name of the graph's file.

        Raises:
            ValueError: two results have the same column, such as a result `forces_0` and the first column of `forces`.
        """
        import pandas as pd

        frames: dict[str, pd.DataFrame] = {}
        for name, tensor in self.items():
            level = self.axes[name].label
            if level not in frames:
                graph = np.repeat(np.arange(self.num_graphs), self.ptr[name].diff().numpy())
                of_file = {"file": np.array(self.files)[graph]} if self.files else {}
                frames[level] = pd.DataFrame({"graph": graph, **of_file})
            flat = _as_array(tensor).reshape(len(tensor), tensor.shape[1:].numel())
            names = [name] if flat.shape[1] == 1 else [f"{name}_{i}" for i in range(flat.shape[1])]
            if taken := sorted({*names} & {*frames[level]}):
                raise ValueError(f"Two results have the columns {taken}. Name results otherwise, or save them as .npz.")
            frames[level][names] = flat
        return frames

    def save(self, path: str | Path) -> list[Path]:
        """Write the results to a `.npz`, `.csv` or `.parquet` file.

        A `.npz` file has all tensors and the first row of each graph. The other formats contain tables.

        Nodes and edges have separate tables, such as `results.nodes.csv` next to `results.csv`.

        Returns:
            The files written.

        Raises:
            ValueError: the ending is unknown.
        """
        path = Path(path)
        if path.suffix == ".npz":
            arrays = {name: _as_array(tensor) for name, tensor in self.items()}
            if self.files:
                arrays["files"] = np.array(self.files)
            np.savez(path, **arrays, **{f"{name}.ptr": ptr.numpy() for name, ptr in self.ptr.items()})  # type: ignore[arg-type]  # of its flags
            return [path]
        check_ending(path)
        written = []
        for level, frame in self.to_frames().items():
            one = path if level == "graphs" else path.with_suffix(f".{level.replace(' ', '.')}{path.suffix}")
            frame.to_csv(one, index=False) if path.suffix == ".csv" else frame.to_parquet(one, index=False)
            written.append(one)
        return written


def check_ending(path: Path) -> None:
    """Check, before a prediction starts, that its results can be written to a file.

    Raises:
        ValueError: the ending is unknown, the package for it is not installed, or the folder does not exist.
    """
    if path.suffix not in (".csv", ".parquet", ".npz"):
        raise ValueError(f"{path} ends in {path.suffix!r}; results are written to .csv, .parquet or .npz.")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError(f"{path} is written by pyarrow, which is not installed: pip install pyarrow, or name a .csv.")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder, so {path.name} cannot be written. Make the folder first.")


def _all_failed(part: Predictions, like: Predictions) -> Predictions:
    """Return results for a list of failed graphs: no rows for nodes and edges, NaN for graphs."""
    counts = {axis: np.full(part.num_graphs, axis == GRAPHS, np.int64) for axis in like.axes.values()}
    rows = {name: tensor[:0] for name, tensor in like.items()}
    return replace(in_order(rows, like.axes, np.empty(0, np.int64), counts), num_graphs=part.num_graphs)


def _as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array. bfloat16, which NumPy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def in_order(
    rows: Mapping[str, Tensor], axes: Mapping[str, Axis], graphs: np.ndarray, counts: Mapping[Axis, np.ndarray]
) -> Predictions:
    """Sort results by graph number.

    Args:
        rows: Results, graph after graph in any order.
        axes: Level and type of the rows of each result.
        graphs: Number of each graph in the order of `rows`, each at most once. int64 [number of graphs with results]
        counts: Number of rows of each graph along each axis, including graphs without results. int64 [num_graphs]
    """
    values: dict[str, Tensor] = {}
    ptr: dict[str, Tensor] = {}
    of_axes = {axis: _places(graphs, numbers, axis == GRAPHS) for axis, numbers in counts.items()}
    for name, tensor in rows.items():
        places, ptr[name] = of_axes[axes[name]]
        empty = float("nan") if tensor.is_floating_point() else 0
        values[name] = tensor.new_full((int(ptr[name][-1]), *tensor.shape[1:]), empty)
        values[name][places.to(tensor.device)] = tensor
    num_graphs = len(next(iter(counts.values())))
    return Predictions(num_graphs=num_graphs, tensors=values, axes=dict(axes), ptr=ptr)


def _places(graphs: np.ndarray, counts: np.ndarray, is_graphs: bool) -> tuple[Tensor, Tensor]:
    """Return the position of each row after sorting by graph, and the first row of each graph."""
    of_came = counts[graphs]
    kept = counts.copy() if is_graphs else np.zeros_like(counts)
    kept[graphs] = of_came
    ptr = np.concatenate([[0], np.cumsum(kept)])
    first = np.repeat(ptr[graphs] - np.concatenate([[0], np.cumsum(of_came)[:-1]]), of_came)
    return torch.from_numpy(first + np.arange(len(first))), torch.from_numpy(ptr)


def to_records(predictions: Predictions) -> Iterator[dict[str, Any]]:
    """Yield the results graph by graph, or the exception of a failed graph."""
    for graph in range(predictions.num_graphs):
        failed = predictions.errors.get(graph)
        yield {"error": failed} if failed is not None else predictions.of(graph)
