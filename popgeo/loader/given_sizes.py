"""Reading of graph sizes from users' arguments, and a packer that needs only these sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from popgeo.data.axes import Axis, Level
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.open_dataset import OpenDataset
from popgeo.loader.pack_graphs import StrategyPacker, pack_epoch
from popgeo.loader.strategy import FixedSizeStrategy
from popgeo.packing import Budget, Packs, totals_of_packs

Sizes = Any
"""Whole numbers, one per graph: an array of NumPy (also mapped from a file) or torch, a list, or an iterable of numbers
or of pieces of an array, which is read once."""

_NODES, _EDGES = Axis(Level.NODE, None), Axis(Level.EDGE, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizesPacker(StrategyPacker):
    """A packer that groups graphs by their sizes alone.

    Args:
        sizes: Sizes of each graph. int32 or int64 [num_graphs, num_dimensions]
        limits: Limit of each size, summed over the graphs of a batch.
        num_graphs: Largest number of graphs in a batch; None for any number.
    """

    sizes: np.ndarray
    limits: tuple[int, ...]
    num_graphs: int | None

    def __post_init__(self) -> None:
        if self.strategy is FixedSizeStrategy.PadToMax:
            raise ValueError("PadToMax ignores the sizes of graphs. Use torch's BatchSampler, or Window.")
        if self.over_size_strategy.trims_nodes or self.over_size_strategy.trims_edges:
            raise ValueError("A sampler cannot trim graphs. Pass Error, Skip or Alone, or use a FixedSizeDataLoader.")

    @property
    def num_items(self) -> int:  # type: ignore[override]  # a number that follows from the sizes
        """Number of graphs."""
        return len(self.sizes)

    @property
    def budget(self) -> Budget:
        """Limits of a batch."""
        return Budget(sizes=self.limits, num_graphs=self.num_graphs or max(1, self.num_items))

    def pack(self, order: np.ndarray | None, generator: torch.Generator) -> Packs:
        """Group some graphs into batches."""
        return pack_epoch(self.sizes, self.budget, self, order, generator)

    def full(self, packs: Packs) -> np.ndarray:
        """Return the share of each limit that each batch uses, [num_packs, num_dimensions]."""
        return totals_of_packs(self.sizes, packs.indices, packs.ptr) / np.maximum(self.limits, 1)


def columns_of(
    num_nodes: Sizes, num_edges: Sizes, dataset: Any, options: FixedSizeOptions | None, budgets: Mapping[str, Any]
) -> dict[str, tuple[Sizes, int]]:
    """Return a dictionary of the limited sizes, with their limits.

    Args:
        num_nodes: Nodes of each graph, or a dataset to measure.
        num_edges: Edges of each graph.
        dataset: Dataset to measure.
        options: Sizes of a batch.
        budgets: Further sizes with their limits.

    Raises:
        ValueError: no sizes are given, or sizes without a limit.
    """
    if dataset is None and (hasattr(num_nodes, "__getitem__") and not _is_array(num_nodes)):
        num_nodes, dataset = None, num_nodes
    columns: dict[str, tuple[Sizes, int]] = {}
    if dataset is not None and num_nodes is None:
        num_nodes = _atoms_of(dataset)
        if num_nodes is None and options is not None:
            opened = OpenDataset.of(dataset)
            axes = opened.store.size_axes
            columns = {
                axis.label: (column, int(limit))
                for axis, column, limit in zip(axes, opened.sizes.values.T, options.limits(axes), strict=True)
                if num_edges is None or axis.level is Level.NODE
            }
    for name, sizes, axis in (("nodes", num_nodes, _NODES), ("edges", num_edges, _EDGES)):
        if sizes is not None:
            if options is None:
                raise ValueError(f"num_{name} is given, but no fixed_size_options, which say what a batch holds.")
            columns[name] = (sizes, int(options.limits((axis,))[0]))
    columns.update(budgets)
    if not columns:
        raise ValueError("There are no sizes. Pass num_nodes, a dataset with fixed_size_options, or budgets.")
    return columns


def _is_array(sizes: Any) -> bool:
    return isinstance(sizes, np.ndarray | torch.Tensor | range) or (
        isinstance(sizes, list | tuple) and (not sizes or isinstance(sizes[0], int | float | np.number))
    )


def _atoms_of(dataset: Any) -> np.ndarray | None:
    """Return the numbers of atoms that a fairchem or metatrain dataset reports; None if it reports none."""
    if hasattr(dataset, "get_metadata"):
        return np.asarray(dataset.get_metadata("natoms", list(range(len(dataset)))))
    return np.asarray(dataset.get_all_atom_counts()) if hasattr(dataset, "get_all_atom_counts") else None


def side_by_side(columns: Mapping[str, Sizes]) -> np.ndarray:
    """Return sizes as the columns of one table, int32 if all numbers fit.

    Args:
        columns: Whole numbers, one per graph, by name.

    Returns:
        int32 or int64 [num_graphs, number of columns]

    Raises:
        ValueError: a size is negative or not whole, or the columns have different lengths.
    """
    arrays = {name: _array(name, sizes) for name, sizes in columns.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len({*counts.values()}) > 1:
        raise ValueError(f"Sizes are of different numbers of graphs: {counts}. Give one number per graph in each.")
    large = any(array.max(initial=0) >= 2**31 for array in arrays.values())
    table = np.empty((max(counts.values()), len(arrays)), np.int64 if large else np.int32)
    for number, (name, array) in enumerate(arrays.items()):
        if array.min(initial=0) < 0:
            raise ValueError(f"Graph {int(array.argmin())} has {array.min()} {name}; no size may be negative.")
        table[:, number] = array
    return table


def _array(name: str, sizes: Sizes) -> np.ndarray:
    if isinstance(sizes, torch.Tensor):
        sizes = sizes.numpy(force=True)
    if not isinstance(sizes, np.ndarray):
        pieces = [np.atleast_1d(_array(name, piece) if isinstance(piece, torch.Tensor) else piece) for piece in sizes]
        sizes = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
    if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer):
        raise ValueError(f"Sizes of {name} are {sizes.dtype} {[*sizes.shape]}; give whole numbers, one per graph.")
    return sizes
