"""The collater: a list of graphs becomes one batch of fixed size."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from popgeo.data.axes import Levels, levels_of
from popgeo.data.batch_layout import LayoutChoices, LayoutKeywords, lay_out
from popgeo.data.cut import BatchCutter, check_fits, fills_exactly
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.open_dataset import flat_graphs
from popgeo.data.sort_edges import sort_edges
from popgeo.data.trim import trim
from popgeo.packing import Packs

if TYPE_CHECKING:
    from torch_geometric.data import Batch, Data, HeteroData
    from typing_extensions import Unpack


class FixedSizeCollater:
    """A collater of graphs into a `Batch` of constant shapes.

    The first graphs decide the level (node, edge or graph) of each attribute, unless `levels` states it. Later graphs
    that contradict raise a ValueError.

    The real nodes, edges and graphs come first and equal `Batch.from_data_list`; padding comes last. All padding nodes
    belong to the first padding graph, and padding edges connect padding nodes, so padding never changes a real value.

    Args:
        fixed_size_options: The sizes of the batch and the values of padding.
        add_masks_to_batch: Whether to add `nodes_mask`, `edges_mask`, `graphs_mask` (True = real). Heterogeneous
            batches have the first two in the store of each type.
        trim_nodes: Whether to remove random nodes if there are too many. The batch then has `num_trimmed_nodes` and
            `num_trimmed_edges`, int64 [num_graphs]: the nodes and edges that each graph has lost.
        trim_edges: Whether to remove random edges if there are too many, with both directions of an undirected edge.
        follow_batch: Attributes to add an assignment vector for, as `Batch.from_data_list` does.
        exclude_keys: Attributes to leave out.
        protect: A boolean node attribute, True for nodes that trimming must keep.
        exact_fit: Whether to allow a batch without padding, of up to `num_graphs` real graphs, if its graphs fill all
            nodes and edges exactly. If the graphs fill all nodes but not all edges, a padding graph without nodes
            follows them, and padding edges end outside of the batch. Default: one node and one graph are padding.
        generator: Source of randomness of trimming. Default: torch's global generator.
        layout: All choices as one `LayoutChoices`, instead of masks, `follow_batch`, `exclude_keys` and `choices`.
        choices: Other choices of `LayoutChoices` by name: `levels`, `index_dtype`, `sort_edges`,
            `spread_padding_edges`.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3)]
        >>> batch = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=4, num_graphs=3), True)(graphs)
        >>> batch.edge_index
        tensor([[0, 2, 5, 5],
                [1, 3, 5, 5]])
        >>> batch.nodes_mask
        tensor([ True,  True,  True,  True,  True, False, False, False])
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool = False,
        trim_nodes: bool = False,
        trim_edges: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        *,
        protect: str | None = None,
        exact_fit: bool = False,
        generator: torch.Generator | None = None,
        layout: LayoutChoices | None = None,
        **choices: "Unpack[LayoutKeywords]",
    ) -> None:
        require_sizes(fixed_size_options)
        self.options = fixed_size_options
        self.trim_nodes, self.trim_edges = trim_nodes, trim_edges
        self.protect, self.generator, self.exact_fit = protect, generator, exact_fit
        self._learned: Levels | None = None
        self.layout = layout or LayoutChoices(
            add_pad_masks=add_masks_to_batch, follow_batch=follow_batch, exclude_keys=exclude_keys, **choices
        )

    def __repr__(self) -> str:
        options = self.options
        trims = [name for name, does in (("nodes", self.trim_nodes), ("edges", self.trim_edges)) if does]
        return (
            f"{type(self).__name__}({options.total_num_nodes:,} nodes, {options.total_num_edges:,} edges, "
            f"{options.num_graphs:,} graphs; {'masks' if self.layout.add_pad_masks else 'no masks'}"
            f"{'; trims ' + ' and '.join(trims) if trims else ''})"
        )

    def __call__(self, graphs: "Sequence[Data | HeteroData] | Batch") -> "Batch":
        """Return one batch of the graphs; the graphs do not change.

        Args:
            graphs: A list of graphs, or a `Batch` made by `Batch.from_data_list`.

        Raises:
            ValueError: `graphs` is not a list of graphs, or the graphs, nodes or edges do not fit.
        """
        if hasattr(graphs, "to_data_list"):
            graphs = graphs.to_data_list()
        if not isinstance(graphs, (list, tuple)):
            raise ValueError(f"Expected a list of graphs or a Batch, got {type(graphs).__name__}. Wrap it in a list.")
        store = self.flat(list(graphs))
        batch = self.collate(store, self.generator or torch.default_generator)
        self._learned = self._learned or levels_of(store.attributes, self.layout.levels)
        return batch

    def flat(self, graphs: "Sequence[Data | HeteroData]", numbers: Sequence[int] | None = None) -> FlatStore:
        """Return the graphs as a flat dataset without excluded attributes; errors use these numbers of graphs."""
        numbers = range(len(graphs)) if numbers is None else numbers
        levels = self._learned or self.layout.levels
        return flat_graphs(graphs, numbers, exclude_keys=self.layout.exclude_keys, levels=levels)

    def collate(self, store: FlatStore, generator: torch.Generator) -> "Batch":
        """Return one batch of all graphs of a flat dataset that is not a view."""
        lost = torch.zeros(2, self.options.num_graphs, dtype=torch.int64)
        if self.trim_nodes or self.trim_edges:
            limits = self.options.limits(store.size_axes)
            fits = self.exact_fit and fills_exactly(store, self.options)
            if not fits and (store.sizes.sum(axis=0) > limits).any():
                flags = {"nodes": self.trim_nodes, "edges": self.trim_edges}
                store, of_graphs = trim(store, limits, **flags, generator=generator, protect=self.protect)
                lost[:, : len(store)] = of_graphs
        everything = Packs.single(len(store))
        if not (self.exact_fit and fills_exactly(store, self.options, but_edges=True)):
            check_fits(store, self.options, everything)
        store = sort_edges(store) if self.layout.sort_edges else store
        layout = lay_out(store, self.options, self.layout)
        batch = BatchCutter(store, layout).cut(everything)[0]
        if self.trim_nodes or self.trim_edges:
            batch.num_trimmed_nodes, batch.num_trimmed_edges = lost
        return batch


def require_sizes(options: Any) -> None:
    """Raise if the sizes of a batch are not a `FixedSizeOptions`.

    Raises:
        ValueError: the argument has a different type.
    """
    if not isinstance(options, FixedSizeOptions):
        how = ", ".join(f"{name}={value!r}" for name, value in options.items()) if isinstance(options, Mapping) else ""
        raise ValueError(
            f"fixed_size_options is a {type(options).__name__}; pass popgeo.FixedSizeOptions({how or 'num_nodes=...'})."
        )
