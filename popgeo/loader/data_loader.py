"""The loader of a dataset of graphs, which yields PyG batches of one shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data.data import BaseData
from typing_extensions import Unpack

from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.collate import FixedSizeCollater, require_sizes
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.open_dataset import OpenDataset
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.chunk_order import SHUFFLE_BYTES, ChunkOrder
from popgeo.loader.epoch_choices import EpochChoices, LoaderArguments, choices_from
from popgeo.loader.epoch_loader import EpochLoader, loader_class
from popgeo.loader.pack_graphs import GraphPacker
from popgeo.loader.source import BatchSource, FetchingSource, FlatSource, opened_for
from popgeo.loader.strategy import FixedSizeStrategy, Packing, member, strategy_of
from popgeo.loader.tensor_versions import TensorVersions, consists_of_lists
from popgeo.packing import totals_of_packs


@loader_class
class FixedSizeDataLoader(EpochLoader):
    """A loader of graphs in batches with constant shapes.

    Every batch is a PyG `Batch` with `num_nodes` nodes, `num_edges` edges and `num_graphs` graphs. Real nodes, edges
    and graphs come first; `nodes_mask`, `edges_mask` and `graphs_mask` are True for them.

    Args:
        dataset: An `InMemoryDataset` (also indexed, shuffled or split), a list of `Data` or `HeteroData`, a `Subset`
            or `ConcatDataset` of them, or a `FlatStore`. These are read when the loader is made: later assignments to
            their graphs do not reach the batches. Any other dataset of graphs works too, but more slowly: it is read
            one additional time if batches depend on the sizes of its graphs.
        batch_size: Graphs of a batch, the padding graph included, as in PopTorch Geometric: with `PadToMax` a batch has
            `batch_size - 1` real graphs. It must equal `fixed_size_options.num_graphs`.
        shuffle: Whether each epoch has a random order, given by `seed` and the number of the epoch.
        fixed_size_options: Sizes of a batch. Default: `FixedSizeOptions.from_dataset(dataset, batch_size)`.
        fixed_size_strategy: How graphs are grouped into batches: a `FixedSizeStrategy`, or any function
            `(sizes, budget, *, generator) -> Packs` such as those in `popgeo.packing`.
        over_size_strategy: Treatment of graphs that do not fit, an `OverSizeStrategy` or its name: Error, Skip (leave
            them out), or TrimNodes, TrimEdges, TrimNodesAndEdges (remove random parts of them).
        add_pad_masks: Whether batches contain `nodes_mask`, `edges_mask` and `graphs_mask`.
        follow_batch: Names of attributes for which a batch also contains `NAME_batch`, the graph of each row.
        exclude_keys: Names of attributes that batches leave out.
        options: Number of batches that are joined into one item, or `popgeo.Options`, which determine the number; see
            `EpochChoices`. Default: 1.
        num_nodes: Nodes of a batch. Pass it with `num_edges` and `batch_size` instead of `fixed_size_options`.
        num_edges: Edges of a batch; pass it with `num_nodes`.
        seed: Number that determines the order of each epoch. Default: drawn from torch's generator; see
            `EpochChoices`.
        protect: Name of a boolean node attribute, True for nodes that trimming must keep.
        shuffle_bytes: Bytes of graphs that are shuffled together if the dataset is a larger store on disk, so that the
            disk is read in long sequences. A smaller store is shuffled as a whole. See `popgeo.loader.chunk_order`.
        progress_bar: Whether to show a bar if a first pass over the dataset lasts longer than a second. Default: at a
            terminal and in notebooks.
        kwargs: Further arguments; `EpochChoices` and `LayoutChoices` explain those that are not torch's.

    Raises:
        ValueError: a graph does not fit and `over_size_strategy` is Error, or arguments contradict each other.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
        >>> loader = FixedSizeDataLoader(graphs, num_nodes=8, num_edges=9, batch_size=4)
        >>> [batch.x.shape for batch in loader]
        [torch.Size([8, 1]), torch.Size([8, 1])]
        >>> loader
        FixedSizeDataLoader(4 graphs -> 2 batches of 8 nodes, 9 edges, 4 graphs; 68.8 % full)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy | Packing | str = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: Any = None,
        *,
        num_nodes: int | dict[str, int] | None = None,
        num_edges: int | dict[tuple[str, str, str], int] | None = None,
        seed: int | None = None,
        protect: str | None = None,
        shuffle_bytes: int = SHUFFLE_BYTES,
        progress_bar: bool | None = None,
        **kwargs: Unpack[LoaderArguments],
    ) -> None:
        self.strategy = strategy_of(fixed_size_strategy)
        self.over_size_strategy = over_size = member(OverSizeStrategy, over_size_strategy)
        if isinstance(dataset, BaseData):
            raise ValueError(f"The dataset is one {type(dataset).__name__}; pass a list, even of one: [graph].")
        epoch = choices_from(EpochChoices, kwargs, shuffle=shuffle, seed=seed, options=options)
        epoch = epoch.seeded_if(over_size.trims_nodes or over_size.trims_edges)
        layout = choices_from(
            LayoutChoices, kwargs, add_pad_masks=add_pad_masks, follow_batch=follow_batch, exclude_keys=exclude_keys
        )
        self._check(dataset, epoch)
        opened, layout = opened_for(dataset, layout, progress_bar)
        self._opened = opened
        sizes = _sizes(opened, batch_size, fixed_size_options, num_nodes, num_edges).with_rows_for(opened.store)
        self.fixed_size_options = sizes
        self.collater = FixedSizeCollater(
            sizes, trim_nodes=over_size.trims_nodes, trim_edges=over_size.trims_edges, protect=protect, layout=layout
        )
        source: BatchSource = FetchingSource(dataset, self.collater, opened.store)
        chunk_order = seen = None
        if opened.holds_all:
            chunk_order, seen = ChunkOrder.of(opened.store, shuffle_bytes), TensorVersions(dataset)
            source = FlatSource(opened.store, self.collater, chunk_order)
        packer = GraphPacker(
            opened=opened,
            seen=seen,
            by_batch=epoch.device is not None and consists_of_lists(dataset),  # a GPU would wait for a long check
            options=sizes,
            strategy=self.strategy,
            over_size_strategy=over_size,
            drop_last=epoch.drop_last,
            chunk_order=None if epoch.has_own_order else chunk_order,
        )
        if not epoch.has_own_order:
            packer.warn_of_sizes()
        super().__init__(dataset, source, packer, epoch, sizes.num_graphs, kwargs)

    def _check(self, dataset: Any, epoch: EpochChoices) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) and not isinstance(dataset, FlatStore):
            raise ValueError(
                f"A {type(dataset).__name__} cannot be indexed. Pass its graphs to popgeo.loader.stream_batches."
            )
        if self.over_size_strategy is OverSizeStrategy.Alone:
            raise ValueError("All batches have one size, so no graph can be Alone. Pass Skip or one that trims.")
        if epoch.batch_sampler is not None and self.strategy is not FixedSizeStrategy.PadToMax:
            raise ValueError("A batch_sampler decides the batches; leave out shuffle and strategies except PadToMax.")

    @property
    def num_skipped(self) -> int:
        """Number of graphs that `OverSizeStrategy.Skip` leaves out of the current or next epoch."""
        return len(self.plan().skipped)

    def filling(self) -> pd.DataFrame:
        """Compute how full the batches of the next epoch are.

        A dataset that is not in memory, and has not been measured yet, is read once for this.

        Returns:
            One row per node type, per edge type, and for the graphs: `slots` of a batch, `real` nodes, edges or graphs
            of a mean batch, and their share `full`, 0 to 1.
        """
        packs, options, axes = self.plan(), self.fixed_size_options, self._opened.store.size_axes
        slots, labels = [*map(options.slots, axes), options.num_graphs], [*(axis.label for axis in axes), "graphs"]
        used = totals_of_packs(self._opened.sizes.values, packs.indices, packs.ptr).sum(axis=0)
        real = np.append(used, packs.num_graphs) / max(1, len(packs))
        table = pd.DataFrame({"slots": slots, "real": real}, index=labels)
        return table.assign(full=table["real"] / table["slots"].clip(lower=1))

    def _table(self) -> pd.DataFrame | None:
        # A repr must not read a dataset that has not been measured.
        return self.filling() if self._opened.sizes.are_known else None

    def _in_one_line(self) -> str:
        table, packs, options = self._table(), self.plan(), self.fixed_size_options
        full = ""
        if table is not None:
            nodes = table.iloc[: len(self._opened.store.node_types)]
            full = f"; {100 * nodes['real'].sum() / max(1, nodes['slots'].sum()):.1f} % full"
        skipped = f"; {len(packs.skipped):,} skipped" if len(packs.skipped) else ""
        return (
            f"{packs.num_graphs:,} graphs -> {len(packs):,} batches of {options.total_num_nodes:,} nodes, "
            f"{options.total_num_edges:,} edges, {options.num_graphs:,} graphs{full}{skipped}"
        )


def _sizes(
    opened: OpenDataset,
    batch_size: int | None,
    options: FixedSizeOptions | None,
    num_nodes: int | dict[str, int] | None,
    num_edges: int | dict[tuple[str, str, str], int] | None,
) -> FixedSizeOptions:
    """Return the given sizes of a batch, or sizes that fit the largest graphs.

    Raises:
        ValueError: sizes are given twice, or `batch_size` contradicts them.
    """
    if options is not None and (num_nodes is not None or num_edges is not None):
        raise ValueError("Both fixed_size_options and num_nodes or num_edges are given; pass one or the other.")
    if num_nodes is None and num_edges is not None:
        raise ValueError("num_edges is given without num_nodes; pass both, or neither to have them measured.")
    num_graphs = 2 if batch_size is None else batch_size
    if num_nodes is not None:
        options = FixedSizeOptions(num_nodes, num_edges, num_graphs)
    elif options is None:
        options = FixedSizeOptions.worst_case(opened.store, opened.sizes.values, num_graphs)
    require_sizes(options)
    if batch_size is not None and batch_size != options.num_graphs:
        raise ValueError(
            f"batch_size is {batch_size} and fixed_size_options.num_graphs is {options.num_graphs}; both count the "
            f"graphs of a batch, padding included. Leave batch_size out or make them equal."
        )
    store = opened.store
    return options.to_hetero(store.node_types, store.edge_types) if store.is_hetero else options
