"""The contract of batches for potentials: structures at fixed shape, with padding that does not change results.

The items of a framework become graphs of PyG, `FixedSizeDataLoader` makes batches of them, and each batch becomes a
batch of the framework. In between, graphs have these names, which the file of each framework renames:

    z           [N]         species as the framework counts them: atomic numbers, or rows of its table
    pos         [N, 3]      positions
    edge_index  [2, E]      in the framework's own direction
    unit_shift  [E, 3]      numbers of cells that an edge crosses
    edge_shift  [E, 3]      the same in lengths: unit_shift @ cell of its structure; only if the framework has it
    cell        [G, 3, 3]   rows are the vectors; pbc [G, 3] if the framework has it
    all others under the framework's own names, and batch, ptr, nodes_mask, edges_mask, graphs_mask as in all batches

Of N atoms, E edges and G structures, n, e and g are real and come first. These rules apply to padding in any framework:

1. Padding atoms have a species that the model knows.
2. Every padding edge joins a padding atom to its own image several cutoffs away, where an envelope is exactly 0. Its
   length is never 0, where the square root has no gradient. Its `edge_shift` is `unit_shift @ cell`, as for real edges,
   so that models that strain the cell agree with models that do not.
3. Cells of padding are periodic cubes of that width; none is singular.
4. Every padding structure has at least one atom, so nothing is divided by 0. Weights, targets and other attributes are
   0 there.
5. Real rows equal the rows of the framework's own batch to the last bit. So energies, forces, stress and all gradients
   of weights are equal, too, if means count real rows only: `mean_over_real`, `slots_per_real`, and `unpad_outputs`.
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
from typing_extensions import Unpack

from popgeo.data.axes import Axis, Level
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.masks import MASKS
from popgeo.loader.data_loader import FixedSizeDataLoader
from popgeo.loader.epoch_choices import GraphLoaderArguments
from popgeo.loader.epoch_loader import loader_class
from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.strategy import FixedSizeStrategy, Packing, strategy_of

LEVELS = {"z": "node", "pos": "node", "unit_shift": "edge", "edge_shift": "edge", "cell": "graph", "pbc": "graph"}
"""Levels of the common attributes. Sizes do not decide them: a cell has three rows, like three atoms."""

_CELLS_WIDE = 2.0  # width of a padding cell in cutoffs; padding edges cross its diagonal, which is sqrt(3) times longer


class StructureSizes(FixedSizeOptions):
    """Batch sizes that reserve an atom for every possible padding structure.

    Example:
        >>> StructureSizes(num_nodes=12, num_edges=30, num_graphs=4).limits([Axis(Level.NODE, None)])
        array([9])
    """

    def limits(self, axes: Sequence[Axis]) -> np.ndarray:
        """Return the largest total size of a batch's real structures along each axis."""
        return super().limits(axes) - np.array([(axis.level is Level.NODE) * (self.num_graphs - 2) for axis in axes])


class Structures(Dataset[Data]):
    """A dataset that converts a framework's items to graphs with the attribute names of this module at each access.

    Args:
        items: Items of the framework, by index.
        as_graph: Makes a graph from an item. Its ValueError is raised again with the item's index.

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
        """Return a list of all graphs if the items are a list; otherwise this dataset, which every epoch reads."""
        return [self[number] for number in range(len(self))] if isinstance(self.items, list | tuple) else self


class PotentialArguments(GraphLoaderArguments, total=False):
    """Keyword arguments of `PotentialLoader` that every framework's `fixed_size_loader` takes.

    `num_nodes`, `num_edges` and `batch_size` are the sizes of a batch, padding included; `PotentialLoader` explains
    them. `FixedSizeDataLoader` explains the other arguments. `options` and `output` raise an error with a reason.
    """

    num_nodes: int | None
    num_edges: int | None
    batch_size: int
    fixed_size_strategy: FixedSizeStrategy | Packing | str
    protect: str | None
    shuffle_bytes: int
    progress_bar: bool | None


@loader_class
class PotentialLoader(FixedSizeDataLoader):
    """A loader of structures in a framework's own batches, all of one shape, padded as this module describes.

    Order, ranks, workers, `set_epoch` and `state_dict` are those of `FixedSizeDataLoader`.

    Args:
        structures: Graphs with the attribute names of this module.
        as_batch: Makes the framework's batch from a batch that keeps the contract.
        cutoff: Cutoff of the model, the longest real edge.
        species: Species of padding atoms, which the model must know.
        kwargs: `num_nodes`, `num_edges` and `batch_size` (16 by default) are the sizes of a batch, padding included, or
            `fixed_size_options` are. Default: the most that `batch_size - 1` structures need with `PadToMax`, otherwise
            the result of `FixedSizeOptions.tune` for that average. `fixed_size_strategy` is `"Window"` by default.
            `PotentialArguments` lists the other arguments.

    Raises:
        ValueError: the cutoff is not positive, no structure would be real, or `FixedSizeDataLoader` raises.
    """

    def __init__(
        self,
        structures: Any,
        as_batch: Callable[[Batch], Any],
        *,
        cutoff: float,
        species: int,
        **kwargs: Unpack[PotentialArguments],
    ) -> None:
        if not cutoff > 0:
            raise ValueError(f"The cutoff is {cutoff}; it must be more than 0.")
        num_nodes, num_edges = kwargs.pop("num_nodes", None), kwargs.pop("num_edges", None)
        batch_size = kwargs.pop("batch_size", 16)
        if batch_size < 2:
            raise ValueError(f"batch_size is {batch_size}, but one structure of a batch is padding. Pass 2 or more.")
        for name in ("options", "output"):
            if name in kwargs:
                raise ValueError(f"A framework's batch is one batch of torch tensors; leave {name} out.")
        strategy = strategy_of(kwargs.pop("fixed_size_strategy", FixedSizeStrategy.Window))
        given = kwargs.pop("fixed_size_options", None)
        if num_nodes is not None:
            given = FixedSizeOptions(num_nodes, num_edges, batch_size)
        sizes = given or _measured(structures, batch_size, strategy)
        self.as_batch, self.cell_length = as_batch, _CELLS_WIDE * cutoff
        of_nodes = AttrNamePadding({"z": species})
        of_edges = AttrNamePadding({"unit_shift": 1, "edge_shift": self.cell_length})
        counts = sizes.num_nodes, sizes.num_edges, sizes.num_graphs
        options = StructureSizes(*counts, node_pad_value=of_nodes, edge_pad_value=of_edges)
        kwargs["fixed_size_options"], kwargs["fixed_size_strategy"] = options, strategy
        kwargs["levels"] = {**LEVELS, **(kwargs.get("levels") or {})}
        super().__init__(structures, **kwargs)

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[Any]:
        for batch in super()._batches(run, plan):
            yield self.as_batch(with_safe_padding(batch, self.cell_length))


def _measured(structures: Any, batch_size: int, strategy: FixedSizeStrategy | Packing) -> FixedSizeOptions:
    """Return sizes that fit any `batch_size - 1` structures for `PadToMax`, else sizes with the least padding."""
    if strategy is FixedSizeStrategy.PadToMax:
        sizes = FixedSizeOptions.from_dataset(structures, batch_size)
    else:
        sizes = FixedSizeOptions.tune(structures, batch_size - 1, verbose=False)
    spare = sizes.num_graphs - 2  # measured sizes have one atom for padding
    return replace(sizes, num_nodes=sizes.total_num_nodes + spare)


def with_safe_padding(batch: Batch, cell_length: float) -> Batch:
    """Add an atom and a cell to every padding structure of a batch in place, and return the batch.

    Args:
        batch: Batch of `FixedSizeDataLoader`: one padding structure has all padding atoms.
        cell_length: Width of the cells of padding.
    """
    nodes, graphs = batch.nodes_mask, batch.graphs_mask
    n, g, num_graphs = nodes.sum(), graphs.sum(), len(graphs)
    node = torch.arange(len(nodes), device=nodes.device)
    graph = torch.arange(num_graphs + 1, device=nodes.device)
    owner = (g + node - n).clamp(max=num_graphs - 1)  # the last structure takes the remaining atoms
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
    """Return the mean over real rows. Padding may have any values, even NaN.

    Args:
        values: Values of all slots. [number of slots, ...]
        mask: True for real rows. bool [number of slots]

    Example:
        >>> mean_over_real(torch.tensor([[1.0, 3.0], [7.0, 9.0]]), torch.tensor([True, False]))
        tensor(2.)
    """
    per_row = values.reshape(len(mask), -1)
    return torch.where(mask[:, None], per_row, 0).sum() / (mask.sum() * per_row.shape[1])


def slots_per_real(mask: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the factor that turns a mean over all slots, with 0 in padding, into a mean over real rows.

    Args:
        mask: True for real rows. bool [number of slots]
        dtype: Type of the mean. Default: torch's default type.

    Example:
        >>> slots_per_real(torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    return len(mask) / mask.sum().clamp(min=1).to(dtype or torch.get_default_dtype())


def where_real(is_real: Tensor, values: Tensor, absent: Any) -> Tensor:
    """Return the values, with `absent` in the rows of padding.

    Args:
        is_real: True for real rows. bool [number of slots]
        values: Values of all slots. [number of slots, ...]
        absent: A number, or a tensor like `values`.
    """
    return torch.where(is_real.view(-1, *[1] * (values.dim() - 1)), values, absent)


def unpad_outputs(
    outputs: Mapping[str, Any], masks: Mapping[str, Any], levels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a model's results for real atoms, edges and structures, without padding.

    Args:
        outputs: Results by name. Results with no rows for atoms, edges or structures stay unchanged.
        masks: The batch, or a mapping with its `nodes_mask`, `edges_mask` and `graphs_mask`.
        levels: Level of outputs whose number of rows is ambiguous.

    Raises:
        ValueError: the number of rows fits two of the masks, and `levels` does not decide.

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
            f"{name!r} has {len(value)} rows, which fits {'s and '.join(fitting)}s of the batch. Pass its level: "
            f"levels={{{name!r}: {fitting[0]!r}}}."
        )
    return value[masks[fitting[0]]] if fitting else value
