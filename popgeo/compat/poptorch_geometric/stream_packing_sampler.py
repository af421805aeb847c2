"""Samplers that pack as many graphs as fit into each batch, in the order of another sampler."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch_geometric.collate import FixedSizeCollater
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.data.axes import Level
from popgeo.data.open_dataset import OpenDataset
from popgeo.packing import Budget, stream


class UnknownLengthError(TypeError, NotImplementedError):
    """Error for the number of batches when their order is random."""


class StreamPackingSampler(Sampler[list[int]]):
    """Sampler that packs graphs into batches in a given order. A graph that does not fit starts a new batch.

    The sizes of graphs are read once and kept with the dataset.

    Args:
        data_source: Graphs.
        max_num_graphs: Maximum number of graphs of a batch.
        max_num_nodes: Maximum number of nodes of a batch, over all types or for each type. Default: `max_num_graphs`
            times the largest graph.
        max_num_edges: Maximum number of edges of a batch, as `max_num_nodes`.
        base_sampler: Order of the graphs. Default: the dataset's order.
        allow_skip_data: Whether to omit graphs that fit no batch. Otherwise they raise an error.

    Raises:
        ValueError: A number is too small, or the sampler is empty.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (3, 4, 5, 2)]
        >>> list(StreamPackingSampler(graphs, max_num_graphs=2, max_num_nodes=8))
        [[0, 1], [2, 3]]
    """

    def __init__(
        self, data_source: Any, max_num_graphs: int, max_num_nodes: int | dict[Any, int] | None = None,
        max_num_edges: int | dict[Any, int] | None = None, base_sampler: Sampler[int] | Iterable[int] | None = None,
        allow_skip_data: bool | None = False,
    ) -> None:  # fmt: skip
        if isinstance(base_sampler, Sized) and len(base_sampler) == 0:
            raise ValueError(f"The `sampler` {base_sampler} is empty. Pass a sampler with at least one graph.")
        check((max_num_graphs or 0) > 0, f"`max_num_graphs` must be at least 1; it is {max_num_graphs}.", ValueError)
        for name, most in (("max_num_nodes", max_num_nodes), ("max_num_edges", max_num_edges)):
            if isinstance(most, int) and most < max_num_graphs:
                raise ValueError(said("StreamPackingSampler 3", name=name, max_num_graphs=max_num_graphs, most=most))
        self.data_source, self.max_num_graphs = data_source, max_num_graphs
        self._opened = OpenDataset.of(data_source)
        self.max_num_nodes = self._counted(Level.NODE, None)[1][0] if max_num_nodes is None else max_num_nodes
        self.max_num_edges = self._counted(Level.EDGE, None)[1][0] if max_num_edges is None else max_num_edges
        self.base_sampler = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.allow_skip_data = bool(allow_skip_data)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the graphs of each batch.

        Raises:
            RuntimeError: A graph fits no batch.
        """
        order = np.fromiter(self.base_sampler, dtype=np.int64)
        nodes, most_nodes = self._counted(Level.NODE, self.max_num_nodes)
        edges, most_edges = self._counted(Level.EDGE, self.max_num_edges)
        sizes, limits = np.concatenate([nodes, edges], axis=1)[order], (*most_nodes, *most_edges)
        fits = (sizes <= limits).all(axis=1)
        if not fits.all() and not self.allow_skip_data:
            first = int(np.argmin(fits))
            found = {"order": order[first], "found": sizes[first].tolist(), "limits": list(limits)}
            raise RuntimeError(said("StreamPackingSampler", **found))
        order, sizes = order[fits], sizes[fits]
        for pack in stream(sizes, Budget(sizes=limits, num_graphs=self.max_num_graphs)) if len(order) else ():
            yield order[pack].tolist()

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: The order is random, and drawn again for each pass.
        """
        check(not isinstance(self.base_sampler, RandomSampler), said("StreamPackingSampler 2"), UnknownLengthError)
        return sum(1 for _ in self)

    def _counted(self, level: Level, most: Any) -> tuple[np.ndarray, list[int]]:
        """Return nodes or edges of each graph, per type or in total, and their limits in a batch."""
        axes = self._opened.store.size_axes
        here = [i for i, axis in enumerate(axes) if axis.level is level]
        sizes = self._opened.sizes.values[:, here]
        if isinstance(most, dict):
            return sizes, [most[axes[i].store] for i in here]
        sizes = sizes.sum(axis=1, keepdims=True)
        return sizes, [int(sizes.max()) * self.max_num_graphs if most is None else most]


class FixedBatchSampler(StreamPackingSampler):
    """Sampler of release 3.2: `StreamPackingSampler` with other argument names, and a random order by default.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (3, 4, 5, 2)]
        >>> list(FixedBatchSampler(graphs, num_graphs=2, num_nodes=8, sampler=range(4)))
        [[0, 1], [2, 3]]
    """

    def __init__(
        self, data_source: Any, num_graphs: int, num_nodes: int | None = None, num_edges: int | None = None,
        sampler: Any = None, allow_skip_data: bool | None = False,
    ) -> None:  # fmt: skip
        order = RandomSampler(data_source) if sampler is None else sampler
        super().__init__(data_source, num_graphs, num_nodes, num_edges, order, allow_skip_data)
        self.num_graphs, self.num_nodes, self.num_edges = self.max_num_graphs, self.max_num_nodes, self.max_num_edges
        self.sampler = order


def make_fixed_batch_generator(
    batch_sampler: Any, data_source: Any = None, num_graphs: int | None = None, num_nodes: int | None = None,
    num_edges: int | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Yield the padded batches of a sampler. Default sizes: the sampler's, plus one for padding.

    Raises:
        ValueError: Neither the call nor the sampler gives a size, or the size leaves no room for padding.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (3, 4)]
        >>> [len(batch.x) for batch in make_fixed_batch_generator(FixedBatchSampler(graphs, 2, 8))]
        [9]
    """
    sizes = {"num_nodes": num_nodes, "num_edges": num_edges, "num_graphs": num_graphs}
    for name, size in sizes.items():
        own = getattr(batch_sampler, name, None)
        sizes[name] = least = size if own is None else own + 1 if size is None else size
        if least is None or (own is not None and least <= own):
            raise ValueError(
                f"`{name}` is {size} and the sampler's own is {own}; pass at least one more than the sampler's."
            )
    collate = FixedSizeCollater(FixedSizeOptions(**sizes))  # type: ignore[arg-type]  # each is a number here
    graphs = batch_sampler.data_source if data_source is None else data_source
    return (collate([graphs[i] for i in batch]) for batch in batch_sampler)
