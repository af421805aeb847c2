"""The loader of seed edges, with negatives and with the neighbors of their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling
from typing_extensions import Unpack

from popgeo.data.attribute_names import MADE_FOR_LINKS
from popgeo.data.axes import Axis, Level, StoreKey, ends_of
from popgeo.data.batch_layout import LayoutChoices
from popgeo.loader.epoch_choices import EpochChoices, choices_from
from popgeo.loader.epoch_loader import loader_class
from popgeo.loader.large.neighbor_loader import NeighborArguments, Neighborhood, check_arguments
from popgeo.loader.large.subgraph import PartSampler, Subgraph
from popgeo.loader.large.subgraph_loader import SubgraphLoader, versions_of
from popgeo.loader.large.whole_graph import edge_indices, links_of, num_ends, open_graph
from popgeo.sampling import NonEdges, sample_negatives
from popgeo.sampling.timed_negatives import TimedNonEdges

_EDGES_TO_SEE = 1000  # to find out whether a graph is undirected


@dataclass(eq=False)
class LinkSampler(PartSampler):
    """A sampler of seed edges, negatives for them, and the neighbors of all ends.

    Args:
        neighborhood: The graph that neighbors are sampled from.
        edge_type: Type of the seed edges.
        links: Source and destination of each seed edge. int64 [2, num_links]
        label: Label of each seed edge; None if all are positives. [num_links]
        times: Time of each seed edge. int64 [num_links]
        negatives: Number of negatives per seed edge, and how to draw them; None for no negatives.
        non_edges: Pairs of nodes that negatives are drawn from.
        batch_size: Seed edges of a batch.

    Raises:
        ValueError: the number of labels or times differs from the number of edges, or a label is 0 although negatives
            are drawn.
    """

    neighborhood: Neighborhood
    edge_type: StoreKey
    links: Tensor
    label: Tensor | None
    times: Tensor | None
    negatives: NegativeSampling | None
    non_edges: NonEdges | TimedNonEdges | None
    batch_size: int

    def __post_init__(self) -> None:
        self.num_items, self.repeats = self.links.shape[1], self.neighborhood.repeats
        for name, values in (("edge_label", self.label), ("edge_label_time", self.times)):
            if values is not None and values.shape[:1] != (self.num_items,):
                raise ValueError(
                    f"{name} has shape {tuple(values.shape)} for {self.num_items} edges; give one for each edge."
                )
        if self.negatives is not None and self.label is not None and bool((self.label == 0).any()):
            raise ValueError("edge_label contains 0, the label of negatives. With neg_sampling pass only positives.")
        self.label_store, self.seed_type = Axis(Level.EDGE, self.edge_type), self.edge_type
        self.ends = tuple(end.store for end in ends_of(self.label_store))
        amount = 0.0 if self.negatives is None else float(self.negatives.amount)
        rows = self.batch_size + int(np.ceil(self.batch_size * amount))
        like = torch.empty(0, dtype=torch.float32) if self.label is None else self.label
        self.labels = {
            "edge_label_index": torch.zeros(2, rows, dtype=torch.int64),
            "edge_label": like.new_zeros(rows, *like.shape[1:]),
            "edge_label_mask": torch.zeros(rows, dtype=torch.bool),
        }

    def sample(self, ids: np.ndarray, seed: int) -> Subgraph:
        """Return the seed edges `ids`, negatives for them, and the sampled neighbors of all ends."""
        chosen = torch.from_numpy(ids)
        links, times = self.links[:, chosen], None if self.times is None else self.times[chosen]
        label = torch.ones(len(ids)) if self.label is None else self.label[chosen]
        mask = torch.ones(len(ids), dtype=torch.bool)
        if self.negatives is not None and self.non_edges is not None and len(ids):
            mode, amount = self.negatives.mode.value, self.negatives.amount
            if isinstance(self.non_edges, TimedNonEdges):
                assert times is not None  # TimedNonEdges are made only if there are times
                drawn, exists = self.non_edges.draw(links, times, mode=mode, amount=amount, seed=seed)
            else:
                drawn = sample_negatives(links, self.non_edges, mode=mode, amount=amount, seed=seed)
                exists = torch.ones(drawn.shape[1], dtype=torch.bool)
            mask = torch.cat([mask, exists])
            links = torch.cat([links, drawn], dim=1)
            label = torch.cat([label, label.new_zeros(drawn.shape[1], *label.shape[1:])])
            if times is not None:
                # A negative has the time of its positive.
                times = torch.cat([times, times.repeat_interleave(int(np.ceil(amount)))[: drawn.shape[1]]])
        seeds, places, of_seeds = self._seeds(links, times)
        labels = {"edge_label_index": places, "edge_label": label, "edge_label_mask": mask}
        return self.neighborhood.around(seeds, of_seeds, labels, seed)

    def _seeds(
        self, links: Tensor, times: Tensor | None
    ) -> tuple[dict[StoreKey, Tensor], Tensor, dict[StoreKey, Tensor] | None]:
        """Return the ends of links, the positions of each link's ends among them, and the times of the ends.

        Each node is listed once; if seeds share no nodes, each end is listed separately.
        """
        source, destination = self.ends
        parts = {source: links.flatten()} if source == destination else {source: links[0], destination: links[1]}
        if self.neighborhood.how["disjoint"]:
            places = torch.cat([torch.arange(len(nodes)) for nodes in parts.values()]).view(2, -1)
            return parts, places, None if times is None else dict.fromkeys(parts, times.repeat(2 // len(parts)))
        found = {key: nodes.unique(return_inverse=True) for key, nodes in parts.items()}
        places = torch.cat([numbers for _, numbers in found.values()]).view(2, -1)
        return {key: nodes for key, (nodes, _) in found.items()}, places, None


@loader_class
class FixedSizeLinkLoader(SubgraphLoader):
    """A loader of edges of a large graph, with negatives and sampled neighbors of their ends, in batches of one shape.

    A batch carries three attributes of its labels. `edge_label_index` [2, num_labels] is the place of both ends among
    the nodes of the batch. `edge_label` [num_labels] is 1 for seed edges and 0 for negatives. `edge_label_mask`
    [num_labels] is True for real labels, since a last batch has fewer. The ends are the first nodes; `seeds_mask`
    [num_nodes] is True for them. `num_labels` counts `batch_size` seed edges, then their negatives.

    Args:
        data: The graph, as `FixedSizeNeighborLoader` takes it. Neighbors are sampled along its edges.
        num_neighbors: Number of neighbors of each node that each hop takes, as in `FixedSizeNeighborLoader`.
        edge_label_index: The seed edges, [2, num_links], or None for all; for a heterogeneous graph an edge type, or a
            pair of the type and the edges.
        edge_label: Label of each seed edge. Default: 1. With `neg_sampling` no label may be 0. [num_links]
        edge_label_time: Time of each seed edge, with `time_attr`. [num_links]
        replace: Whether neighbors are drawn with replacement.
        subgraph_type: `"directional"`, `"bidirectional"` or `"induced"`, as in `FixedSizeNeighborLoader`.
        disjoint: Whether ends share no nodes. Default: False, but True for edges with times.
        temporal_strategy: `"uniform"` or `"last"`, as in `FixedSizeNeighborLoader`.
        neg_sampling: Negatives per edge: PyG's `NegativeSampling`, `"binary"`, or `"triplet"`, which keeps the source
            of each edge. A negative is a pair of different nodes without an edge of the graph or a seed edge from the
            first to the second; in an undirected graph also without one from the second to the first. If nodes have
            times, both nodes exist at the time of the edge. If there is no such node, `edge_label_mask` is False.
        neg_sampling_ratio: Short for `NegativeSampling("binary", neg_sampling_ratio)`.
        time_attr: Name of the attribute with the times of nodes or of edges.
        weight_attr: Name of the edge attribute with sampling weights.
        batch_size: Seed edges of a batch.
        directed: False means `subgraph_type="induced"`.
        kwargs: Further arguments, such as `fixed_size_options`, `shuffle` and `num_workers`; see `NeighborArguments`.

    Raises:
        ValueError: arguments contradict each other or the graph, or the ends do not fit the sizes.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
        >>> data = Data(x=torch.arange(6.0)[:, None], edge_index=ring)
        >>> loader = FixedSizeLinkLoader(data, [1], batch_size=2, neg_sampling="binary")
        >>> batch = next(iter(loader))
        >>> batch.edge_label.tolist(), batch.edge_label_index.shape
        ([1.0, 1.0, 0.0, 0.0], torch.Size([2, 4]))
    """

    _unit = "links"

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        batch_size: int = 1,
        *,
        directed: bool = True,
        **kwargs: Unpack[NeighborArguments],
    ) -> None:
        check_arguments(kwargs)
        # A split such as PyG's RandomLinkSplit leaves the links on the graph; batches carry their own.
        kwargs["exclude_keys"] = [*(kwargs.get("exclude_keys") or ()), *MADE_FOR_LINKS]
        layout = choices_from(LayoutChoices, kwargs)
        store = open_graph(data, layout.exclude_keys, layout.levels, (time_attr, weight_attr))
        how: dict[str, Any] = {"subgraph_type": subgraph_type, "directed": directed, "replace": replace}
        how |= {"disjoint": disjoint or edge_label_time is not None, "temporal_strategy": temporal_strategy}
        neighborhood = Neighborhood(store, num_neighbors, time_attr, weight_attr, **how)
        edge_type, links = links_of(store, edge_label_index)
        negatives = _negatives(neg_sampling, neg_sampling_ratio)
        sizes = num_ends(store, edge_type)
        non_edges: NonEdges | TimedNonEdges | None = None
        if negatives:
            ends = ends_of(Axis(Level.EDGE, edge_type))
            edges = _joined(edge_indices(store)[edge_type], links, sizes, is_one_type=ends[0] == ends[1])
            source, destination = map(neighborhood.time_of.get, ends)
            if edge_label_time is None or (source is None and destination is None):
                non_edges = NonEdges.from_edge_index(edges, sizes)
            else:
                non_edges = TimedNonEdges.from_edge_index(edges, sizes, (source, destination))
        sampler = LinkSampler(
            neighborhood, edge_type, links, edge_label, edge_label_time, negatives, non_edges, batch_size
        )
        self._most_seeds = most = dict.fromkeys(sampler.ends, 0)
        for end, size in zip(sampler.ends, sizes, strict=True):
            rows = most[end] + len(sampler.labels["edge_label"])
            most[end] = rows if neighborhood.how["disjoint"] else min(size, rows)
        self.num_neighbors = num_neighbors
        choices, seen = choices_from(EpochChoices, kwargs), versions_of(data, store, time_attr, weight_attr)
        super().__init__(data, store, sampler, layout, choices, batch_size, kwargs, seen)


def _joined(edges: Tensor, links: Tensor, sizes: tuple[int, int], is_one_type: bool) -> Tensor:
    """Return the pairs of nodes that cannot be negatives: edges, seeds, and each node with itself.

    Args:
        edges: Source and destination of each edge of the graph. [2, num_edges]
        links: Source and destination of each seed. [2, num_links]
        sizes: Numbers of sources and destinations.
        is_one_type: Whether sources and destinations are the same nodes.

    Returns:
        Source and destination of each pair. int64 [2, num_pairs]
    """
    pairs = [edges.long(), links]
    if is_one_type:
        pairs.append(torch.arange(sizes[0]).expand(2, -1))
        if _has_reverses(pairs[0], sizes[0]):
            pairs.append(links.flip(0))
    return torch.cat(pairs, dim=1)


def _has_reverses(edges: Tensor, num_nodes: int) -> bool:
    """Check whether the first edges have reverses, as in an undirected graph. `edges` is [2, num_edges]."""
    source, destination = edges[:, edges[0] != edges[1]]
    back = (destination * num_nodes + source)[:_EDGES_TO_SEE]
    return len(back) > 0 and bool(torch.isin(back, source * num_nodes + destination).all())


def _negatives(neg_sampling: NegativeSampling | str | None, ratio: float | None) -> NegativeSampling | None:
    """Return the rule for negatives from either of the two arguments; None for no negatives."""
    if ratio:
        if neg_sampling is not None:
            raise ValueError("Both neg_sampling and neg_sampling_ratio are given; pass one of them.")
        return NegativeSampling("binary", ratio)
    chosen = NegativeSampling.cast(neg_sampling) if neg_sampling is not None else None
    if chosen is not None and (chosen.src_weight is not None or chosen.dst_weight is not None):
        raise ValueError("Negatives are drawn uniformly; leave the weights of NegativeSampling out.")
    return chosen
