"""A loader or batch sampler as the subject of claims, and the planted graphs that its batches are made of.

A graph's `y` is its number, counted from 1, because padding is mostly 0. A row of `x` is the number of the node,
counted over all graphs, and the number of its graph. A row of `edge_attr` is the numbers of the edge's two nodes and of
the edge. The standard names of PyG are therefore enough to identify each row of a batch.
"""

import copy
import inspect
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from popgeo.testing.claims import BrokenError, Case, NotTriedError, Subject, SubjectKind

SIZES = (1, 5, 3, 7, 2, 9, 4, 6, 1, 8, 5, 3, 7, 2, 6, 4, 9, 1, 3, 8, 2, 5, 4)
"""Nodes of the planted graphs. The number of graphs is not divisible by 2, 3 or 4."""

DRAWS: dict[str, Callable[[], float]] = {
    "numpy": np.random.random,
    "python": random.random,
    "torch": lambda: float(torch.rand(())),
}
MASKS = {"graph": "graphs_mask", "node": "nodes_mask", "edge": "edges_mask"}
_COLUMNS = {"graph": ("y", 0), "node": ("x", 0), "edge": ("edge_attr", 2)}
_NAMES = ("y", "x", "edge_attr", "edge_index", "batch", *MASKS.values())


def planted_graphs(sizes: Sequence[int] = SIZES) -> list[Data]:
    """Return a graph for each number of nodes, with loops and duplicate edges; every fifth has no edge.

    Example:
        >>> first, second = planted_graphs([1, 3])
        >>> second.x.tolist(), second.y.tolist()
        ([[2.0, 2.0], [3.0, 2.0], [4.0, 2.0]], [[2.0]])
    """
    draw = torch.Generator().manual_seed(0)
    graphs, num_nodes, num_edges = [], 0, 0
    for number, size in enumerate(sizes, 1):
        ends = torch.randint(size, (2, 2 * size * (number % 5 != 1)), generator=draw)
        ends = torch.cat([ends, ends[:, :2]], 1)
        nodes = num_nodes + torch.arange(1, size + 1)
        edges = num_edges + torch.arange(1, ends.shape[1] + 1)
        x, y = torch.stack([nodes, torch.full_like(nodes, number)], 1).float(), torch.tensor([[float(number)]])
        edge_attr = torch.cat([nodes[ends], edges[None]]).T.float()
        graphs.append(Data(x=x, edge_index=ends, edge_attr=edge_attr, y=y))
        num_nodes, num_edges = num_nodes + size, num_edges + ends.shape[1]
    return graphs


class DrawnGraphs(Dataset[Data]):
    """A dataset of planted graphs that draws random node features at each access, as in augmentation.

    Args:
        graphs: Planted graphs.
        library: Name of the random number library, a key of `DRAWS`.
    """

    def __init__(self, graphs: Sequence[Data], library: str) -> None:
        self.graphs, self.library = graphs, library

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, number: int) -> Data:
        graph = copy.copy(self.graphs[number])
        graph.x = torch.full_like(graph.x, DRAWS[self.library]())
        return graph


def numbers_of(held: Mapping[str, Tensor] | Data) -> dict[str, Tensor]:
    """Return the numbers of graphs, nodes and edges that a planted graph or the rows of a batch contain."""
    return {kind: held[name][:, column] for kind, (name, column) in _COLUMNS.items() if name in held}


def read_rows(batch: Any, graphs: Sequence[Data]) -> dict[str, Tensor]:
    """Return copies of a batch's rows by PyG's names; without masks, all rows count as real.

    Args:
        batch: PyG batch, mapping or named tuple with its names, or indices from a batch sampler.
        graphs: Planted graphs, for indices.

    Raises:
        ValueError: the batch does not contain `y`.
    """
    held = batch._asdict() if hasattr(batch, "_asdict") else batch
    if isinstance(held, Sequence | Tensor | np.ndarray) and all(np.ndim(i) == 0 for i in held):
        held = {"y": torch.tensor([float(graphs[int(i)].y) for i in held])}
    if not isinstance(held, Mapping | BaseData) or "y" not in held:
        raise ValueError(
            f"The loader returned a {type(batch).__name__} without y, which numbers the planted graphs. Keep y, or "
            f"pass read=lambda batch: ... that returns a dictionary with y and some of {', '.join(_NAMES)}."
        )
    rows = {name: torch.as_tensor(held[name]).clone() for name in _NAMES if name in held and held[name] is not None}
    rows["y"] = rows["y"].reshape(-1, 1)
    for kind, numbers in numbers_of(rows).items():
        rows.setdefault(MASKS[kind], torch.ones(len(numbers), dtype=torch.bool))
    if "x" in rows and len(rows["y"]) == 1:
        rows.setdefault("batch", torch.zeros(len(rows["x"]), dtype=torch.int64))
    return rows


ChannelRows = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class LoaderSubject(Subject):
    """A loader as the subject of claims, given by the function that makes it for training.

    The kit calls `make(graphs, seed=0, rank=0, world_size=1, num_workers=0)`, but passes an argument only for claims
    about it. A claim about an argument that the function does not accept is not tried.

    Attributes:
        read: Function that converts a batch to a mapping with `y` and some of `x`, `edge_index`, `edge_attr`, `batch`
            and the masks.
    """

    kind: ClassVar[SubjectKind] = SubjectKind.LOADER
    limit: ClassVar[int] = 100
    read: Callable[[Any], Any] = lambda batch: batch

    def __post_init__(self) -> None:
        if not all(graph.get("edge_attr") is not None and "y" in graph for graph in self.graphs) or not self.graphs:
            sizes = [graph.num_nodes for graph in self.graphs]
            object.__setattr__(self, "graphs", tuple(planted_graphs(sizes) if sizes else planted_graphs()))

    def prepare(self) -> None:
        """Make a loader and read a batch."""
        if not callable(self.what):
            raise ValueError(
                f"A {type(self.what).__name__} was given, but a {self.kind.value} is tried through a function that "
                "makes it from a list of graphs. Pass lambda graphs: ..., with seed, rank, world_size and num_workers "
                "if possible."
            )
        loader = self.make(self.graphs)
        for batch in islice(loader, 1):
            read_rows(self.read(batch), self.graphs)

    def make(self, graphs: Any, **choices: Any) -> Any:
        """Return a new loader of these graphs."""
        known = inspect.signature(self.what).parameters
        lacking = [name for name in choices if name not in known]
        if lacking and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            raise NotTriedError(f"the function that makes the {self.kind.value} takes no {' and no '.join(lacking)}")
        return self.what(list(graphs) if isinstance(graphs, tuple) else graphs, **choices)

    def epoch(self, loader: Any, case: Case, epoch: int | None = None, needs: Sequence[str] = ()) -> list[ChannelRows]:
        """Return the rows of each batch of an epoch; `epoch` is set if the loader accepts it."""
        if epoch is not None:
            set_epoch(loader, epoch)
        most = 4 * len(case.graphs) + 8
        batches: list[ChannelRows] = [read_rows(self.read(batch), case.graphs) for batch in islice(loader, most)]
        if len(batches) == most:
            raise BrokenError(f"an epoch of {len(case.graphs)} graphs continues after batch {most}")
        if lacking := [name for name in needs if any(name not in rows for rows in batches)]:
            raise NotTriedError(f"batches have no {' and no '.join(lacking)}")
        return batches


class SamplerSubject(LoaderSubject):
    """A batch sampler with batches of graph indices, given by a function of a list of graphs."""

    kind: ClassVar[SubjectKind] = SubjectKind.SAMPLER


def set_epoch(loader: Any, number: int) -> bool:
    """Set the next epoch of a loader or its sampler, as trainers do; return whether it accepts one."""
    parts: list[Any] = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(number)
            return True
    return False


def order_of(batches: Sequence[ChannelRows]) -> list[int]:
    """Return the numbers of the real graphs, in order."""
    return [int(number) for rows in batches for number in numbers_of(rows)["graph"][rows["graphs_mask"]]]


def require_once(batches: Sequence[ChannelRows], graphs: Sequence[Data], loader: Any, where: str) -> None:
    """Raise BrokenError if graphs come twice, or are missing without being counted by the loader."""
    found = Counter(order_of(batches))
    if doubled := [number for number, times in found.items() if times > 1]:
        raise BrokenError(f"{len(doubled)} of {len(graphs)} graphs come more than once {where}: {doubled[:6]}")
    lost = sorted({int(graph.y) for graph in graphs} - {*found})
    if len(lost) > max(int(getattr(loader, name, 0)) for name in ("num_skipped", "num_dropped")):
        raise BrokenError(f"{len(lost)} of {len(graphs)} graphs are missing {where}, and not counted: {lost[:6]}")
