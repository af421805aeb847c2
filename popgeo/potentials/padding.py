"""The contract of batches for potentials: structures at fixed shape, with padding that physics cannot notice.

The items of a framework become graphs of PyG, are put together by `FixedSizeDataLoader`, and each batch becomes one of
the framework's own. In between stand the names of this page, which every framework's file starts from and renames:

    z           [N]         species, as the framework counts them: atomic numbers, or rows of its table
    pos         [N, 3]      positions
    edge_index  [2, E]      the framework's own direction
    unit_shift  [E, 3]      how many cells an edge crosses
    edge_shift  [E, 3]      the same in lengths: unit_shift @ cell of its structure; only where the framework has it
    cell        [G, 3, 3]   rows are the vectors; pbc [G, 3] if it has that
    the rest under the framework's own names, and batch, ptr, nodes_mask, edges_mask, graphs_mask as in all batches

Of N atoms, E edges and G structures, n, e and g are real and come first. Of padding is true, in any framework:

1. Padding atoms have a species that the model knows.
2. Every padding edge joins a padding atom to its own image several cutoffs away, where an envelope is exactly 0: never
   at distance 0, whose square root has no gradient. `unit_shift @ cell` is its `edge_shift`, as for real edges, so that
   models that strain the cell agree with models that keep it.
3. Cells of padding are cubes, periodic, as wide as that; none is singular.
4. Every padding structure has at least one atom, so nothing is divided by 0; weights, targets and whatever else the
   framework has are 0 there.
5. Real rows equal the rows of the framework's own batch to the last bit, so energies, forces, stress and the gradient
   of every weight do, once means count real rows only: `mean_over_real`, `slots_per_real`, and `unpad_outputs`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.transforms.pad import AttrNamePadding

from popgeo.data.axes import Axis, Level
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.masks import MASKS
from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.strategy import FixedSizeStrategy, Packing, strategy_of

LEVELS = {"z": "node", "pos": "node", "unit_shift": "edge", "edge_shift": "edge", "cell": "graph", "pbc": "graph"}
"""What the rows of the common attributes belong to. Sizes do not tell: a cell has three rows, as three atoms have."""

_CELLS_WIDE = 2.0  # a padding cell, in cutoffs; its diagonal, which padding edges cross, is sqrt(3) times as long


class StructureSizes(FixedSizeOptions):
    """Sizes of a batch that keep an atom for every structure that may turn out to be padding.

    Example:
        >>> StructureSizes(num_nodes=12, num_edges=30, num_graphs=4).limits([Axis(Level.NODE, None)])
        array([9])
    """

    def limits(self, axes: Sequence[Axis]) -> np.ndarray:
        """What the real structures of a batch may use along each axis."""
        return super().limits(axes) - np.array([(axis.level is Level.NODE) * (self.num_graphs - 2) for axis in axes])


class Structures(Dataset[Data]):
    """The items of a framework as graphs with the names of this page, made one by one when they are asked for.

    Args:
        items: The framework's own, in whatever can be indexed.
        as_graph: Makes a graph of an item; its ValueError is raised again with the item's index.

    Raises:
        ValueError: there are no structures.
    """

    def __init__(self, items: Any, as_graph: Callable[[Any], Data]) -> None:
        if not len(items):
            raise ValueError("There are no structures. Pass at least one.")
        self.items, self.as_graph = items, as_graph

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Data:
        try:
            return self.as_graph(self.items[number])
        except ValueError as error:
            raise ValueError(f"Structure {number}: {error}") from error

    def in_memory(self) -> "list[Data] | Structures":
        """A list of all graphs, where the items are one, too; otherwise these, to be read in every epoch."""
        return [self[number] for number in range(len(self))] if isinstance(self.items, list | tuple) else self


class PotentialLoader(FixedSizeDataLoader):
    """Loads structures in a framework's own batches, all of one shape, with the padding that this page describes.

    It is a `FixedSizeDataLoader` in all else: order, ranks, workers, `set_epoch`, `state_dict`.

    Args:
        structures: Graphs with the names of this page.
        as_batch: Makes the framework's batch of one that keeps the contract.
        cutoff: The longest edge that the model sees.
        species: One that the model knows, for padding atoms.
        levels: What the rows of further attributes belong to: "node", "edge" or "graph".
        num_nodes: Atoms of a batch, padding included; it, `num_edges` and `batch_size` may be given as
            `fixed_size_options`, and are otherwise measured: the most that `batch_size - 1` structures need with
            `PadToMax`, else what `FixedSizeOptions.tune` finds for that many on average.
        num_edges: Edges of a batch.
        batch_size: Structures of a batch, padding included.
        fixed_size_strategy: As of `FixedSizeDataLoader`; batches within both budgets when left out.
        kwargs: What else `FixedSizeDataLoader` takes.

    Raises:
        ValueError: the cutoff is not positive, no structure would be real, or see `FixedSizeDataLoader`.
    """

    def __init__(
        self,
        structures: Any,
        as_batch: Callable[[Batch], Any],
        *,
        cutoff: float,
        species: int,
        levels: Mapping[str, str] | None = None,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        batch_size: int = 16,
        fixed_size_strategy: FixedSizeStrategy | Packing | str = FixedSizeStrategy.Window,
        **kwargs: Any,
    ) -> None:
        if not cutoff > 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be more than 0.")
        if batch_size < 2:
            raise ValueError(f"batch_size is {batch_size}, and one structure of a batch is padding. Pass 2 or more.")
        for name in ("options", "output"):
            if name in kwargs:
                raise ValueError(f"A framework's batch is one batch of torch tensors; leave {name} out.")
        strategy = strategy_of(fixed_size_strategy)
        given: FixedSizeOptions | None = kwargs.pop("fixed_size_options", None)
        if num_nodes is not None:
            given = FixedSizeOptions(num_nodes, num_edges, batch_size)
        sizes = given or _measured(structures, batch_size, strategy)
        self.as_batch, self.cell_length = as_batch, _CELLS_WIDE * cutoff
        of_nodes = AttrNamePadding({"z": species})
        of_edges = AttrNamePadding({"unit_shift": 1, "edge_shift": self.cell_length})
        counts = sizes.num_nodes, sizes.num_edges, sizes.num_graphs
        options = StructureSizes(*counts, node_pad_value=of_nodes, edge_pad_value=of_edges)
        levels = {**LEVELS, **(levels or {})}
        super().__init__(structures, fixed_size_options=options, fixed_size_strategy=strategy, levels=levels, **kwargs)

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[Any]:
        for batch in super()._batches(run, plan):
            yield self.as_batch(with_safe_padding(batch, self.cell_length))


def _measured(structures: Any, batch_size: int, strategy: FixedSizeStrategy | Packing) -> FixedSizeOptions:
    """Sizes that hold any structures, where batches have equally many, or that are filled best."""
    if strategy is FixedSizeStrategy.PadToMax:
        sizes = FixedSizeOptions.from_dataset(structures, batch_size)
    else:
        sizes = FixedSizeOptions.tune(structures, batch_size - 1, verbose=False)
    spare = sizes.num_graphs - 2  # what was measured has one atom for padding
    return replace(sizes, num_nodes=sizes.total_num_nodes + spare)


def with_safe_padding(batch: Batch, cell_length: float) -> Batch:
    """A batch of `PotentialLoader` whose padding structures have an atom each, and cells.

    Args:
        batch: As `FixedSizeDataLoader` makes it: one padding structure has all padding atoms.
        cell_length: How wide the cells of padding are.
    """
    nodes, graphs = batch.nodes_mask, batch.graphs_mask
    n, g, num_graphs = nodes.sum(), graphs.sum(), len(graphs)
    node = torch.arange(len(nodes), device=nodes.device)
    graph = torch.arange(num_graphs + 1, device=nodes.device)
    owner = (g + node - n).clamp(max=num_graphs - 1)  # the last one takes what is left
    batch.batch = torch.where(nodes, batch.batch, owner.to(batch.batch.dtype))
    batch.ptr = torch.where(graph <= g, batch.ptr, (n + graph - g).to(batch.ptr.dtype))
    batch.ptr[-1] = len(nodes)
    if "cell" in batch:
        cube = cell_length * torch.eye(3, dtype=batch.cell.dtype, device=batch.cell.device)
        batch.cell = torch.where(graphs[:, None, None], batch.cell, cube)
    if "pbc" in batch:
        batch.pbc = batch.pbc | ~graphs[:, None]
    return batch


def mean_over_real(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over real rows, whatever padding holds, NaN included.

    Args:
        values: [number of slots, ...]
        mask: True for real rows. bool [number of slots]

    Example:
        >>> mean_over_real(torch.tensor([[1.0, 3.0], [7.0, 9.0]]), torch.tensor([True, False]))
        tensor(2.)
    """
    per_row = values.reshape(len(mask), -1)
    return torch.where(mask[:, None], per_row, 0).sum() / (mask.sum() * per_row.shape[1])


def slots_per_real(mask: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """By what a mean over all slots is multiplied, where padding adds nothing to it, to be one over real rows.

    Args:
        mask: True for real rows. bool [number of slots]
        dtype: That of the mean; torch's default when left out.

    Example:
        >>> slots_per_real(torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return len(mask) / mask.sum().clamp(min=1).to(dtype or torch.get_default_dtype())


def where_real(is_real: Tensor, values: Tensor, absent: Any) -> Tensor:
    """The values, with `absent` in the rows of padding.

    Args:
        is_real: True for real rows. bool [number of slots]
        values: [number of slots, ...]
        absent: A number, or a tensor like `values`.
    """
    return torch.where(is_real.view(-1, *[1] * (values.dim() - 1)), values, absent)


def unpad_outputs(
    outputs: Mapping[str, Any], masks: Mapping[str, Any], levels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a model says of real atoms, edges and structures; its values for padding are left out.

    Args:
        outputs: Its results, by name. Results without rows for one of the three stay as they are.
        masks: The batch, or whatever has its `nodes_mask`, `edges_mask` and `graphs_mask`.
        levels: What the rows of an output belong to, where their number does not tell.

    Raises:
        ValueError: the number of rows fits two of the masks, and `levels` does not say which.

    Example:
        >>> masks = {"nodes_mask": torch.tensor([True, False, False]), "graphs_mask": torch.tensor([True, False])}
        >>> unpad_outputs({"forces": torch.zeros(3, 3), "energy": torch.ones(2)}, masks)
        {'forces': tensor([[0., 0., 0.]]), 'energy': tensor([1.])}
    """
    found = {level.name.lower(): masks[name] for level, name in MASKS.items() if name in masks}
    if not found:
        raise ValueError("There are no masks, so padding and real rows cannot be distinguished. Pass the batch itself.")
    return {name: _unpadded(name, value, found, (levels or {}).get(name)) for name, value in outputs.items()}


def _unpadded(name: str, value: Any, masks: Mapping[str, Tensor], level: str | None) -> Any:
    if not isinstance(value, Tensor) or not value.dim():
        return value
    fitting = [level] if level else [one for one, mask in masks.items() if len(mask) == len(value)]
    if len(fitting) > 1:
        raise ValueError(
            f"{name!r} has {len(value)} rows, which fits {'s and '.join(fitting)}s of the batch. Say which it has: "
            f"levels={{{name!r}: {fitting[0]!r}}}."
        )
    return value[masks[fitting[0]]] if fitting else value
