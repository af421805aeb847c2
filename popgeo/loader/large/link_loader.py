"""Batches of edges that are seeds, of negatives drawn for them, and of the neighbors of their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from popgeo.data.attribute_names import MADE_FOR_LINKS
from popgeo.data.axes import Axis, Level, StoreKey, ends_of
from popgeo.loader.large.neighbor_loader import Neighborhood, layout_of
from popgeo.loader.large.subgraph import PartSampler, Subgraph
from popgeo.loader.large.subgraph_loader import SubgraphLoader
from popgeo.loader.large.whole_graph import edge_indices, links_of, num_ends, open_graph
from popgeo.sampling import NonEdges, sample_negatives
from popgeo.sampling.timed_negatives import TimedNonEdges

_EDGES_TO_SEE = 1000  # whether a graph is undirected


@dataclass(eq=False)
class LinkSampler(PartSampler):
    """Edges that are seeds, and how negatives and neighbors of their ends are sampled.

    Args:
        neighborhood: What neighbors are sampled in.
        edge_type: The type of the edges.
        links: Source and destination of each. int64 [2, num_links]
        label: The label of each; None if all are positives. [num_links]
        times: The time of each. int64 [num_links]
        negatives: How many to draw for each, and how; None for none.
        non_edges: What negatives are drawn from.
        batch_size: Edges of a batch.

    Raises:
        ValueError: not every edge has a label and a time, or with negatives a label is 0.
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
            raise ValueError("edge_label holds 0, which negatives get: with neg_sampling pass positives alone.")
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
        """The links `ids`, negatives for them, and the sampled neighbors of all ends."""
        chosen = torch.from_numpy(ids)
        links, times = self.links[:, chosen], None if self.times is None else self.times[chosen]
        label = torch.ones(len(ids)) if self.label is None else self.label[chosen]
        mask = torch.ones(len(ids), dtype=torch.bool)
        if self.negatives is not None and self.non_edges is not None and len(ids):
            mode, amount = self.negatives.mode.value, self.negatives.amount
            if isinstance(self.non_edges, TimedNonEdges):
                assert times is not None  # what they are made for
                drawn, exists = self.non_edges.draw(links, times, mode=mode, amount=amount, seed=seed)
            else:
                drawn = sample_negatives(links, self.non_edges, mode=mode, amount=amount, seed=seed)
                exists = torch.ones(drawn.shape[1], dtype=torch.bool)
            mask = torch.cat([mask, exists])
            links = torch.cat([links, drawn], dim=1)
            label = torch.cat([label, label.new_zeros(drawn.shape[1], *label.shape[1:])])
            if times is not None:
                # A negative has the time of the positive that it stands against.
                times = torch.cat([times, times.repeat_interleave(int(np.ceil(amount)))[: drawn.shape[1]]])
        seeds, places, of_seeds = self._seeds(links, times)
        labels = {"edge_label_index": places, "edge_label": label, "edge_label_mask": mask}
        return self.neighborhood.around(seeds, of_seeds, labels, seed)

    def _seeds(
        self, links: Tensor, times: Tensor | None
    ) -> tuple[dict[StoreKey, Tensor], Tensor, dict[StoreKey, Tensor] | None]:
        """The ends of links, each once unless every end has neighbors of its own; where they are; their times."""
        source, destination = self.ends
        parts = {source: links.flatten()} if source == destination else {source: links[0], destination: links[1]}
        if self.neighborhood.how["disjoint"]:
            places = torch.cat([torch.arange(len(nodes)) for nodes in parts.values()]).view(2, -1)
            return parts, places, None if times is None else dict.fromkeys(parts, times.repeat(2 // len(parts)))
        found = {key: nodes.unique(return_inverse=True) for key, nodes in parts.items()}
        places = torch.cat([numbers for _, numbers in found.values()]).view(2, -1)
        return {key: nodes for key, (nodes, _) in found.items()}, places, None


class FixedSizeLinkLoader(SubgraphLoader):
    """Loads edges of a large graph, with negatives and sampled neighbors of their ends, in batches of one shape.

    A batch carries `edge_label_index` [2, num_labels], places of both ends among its nodes; `edge_label` [num_labels],
    1 for the edges that are seeds, 0 for negatives; and `edge_label_mask` [num_labels], True if there is one, since
    a last batch has fewer. The ends are the first nodes; `seeds_mask` [num_nodes] is True for them. `num_labels` is
    `batch_size` and its negatives, which stand behind.

    Args:
        data: The graph, whose edges neighbors are sampled by, as `FixedSizeNeighborLoader` takes it.
        num_neighbors: How many neighbors of each node each hop takes, as `FixedSizeNeighborLoader` takes them.
        edge_label_index: The edges that are seeds, [2, num_links], or None for all; for a heterogeneous graph an edge
            type, or a pair of it and those.
        edge_label: The label of each; None means 1. With `neg_sampling` all must be positives. [num_links]
        edge_label_time: The time of each, with `time_attr`. [num_links]
        replace: Draws with replacement.
        subgraph_type: `"directional"`, `"bidirectional"` or `"induced"`.
        disjoint: Gives every end neighbors of its own.
        temporal_strategy: `"uniform"` or `"last"`.
        neg_sampling: Negatives for each edge: PyG's `NegativeSampling`, `"binary"` or `"triplet"`, which keeps the
            source of each edge. They are pairs of different nodes that neither an edge of the graph nor a seed joins,
            in either direction if every edge of the graph has its reverse. Where nodes have times, both nodes exist at
            the time of the edge; if no such node exists, `edge_label_mask` is False.
        neg_sampling_ratio: Short for `NegativeSampling("binary", neg_sampling_ratio)`.
        time_attr: The attribute of nodes, or of edges, that has their time.
        weight_attr: The attribute of edges that says how likely each is drawn.
        batch_size: Edges of a batch, without negatives.
        directed: False means `subgraph_type="induced"`.
        kwargs: As `FixedSizeNeighborLoader` takes them.

    Raises:
        ValueError: arguments contradict each other or the graph, or the sizes cannot hold the ends.

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
        **kwargs: Any,
    ) -> None:
        # A split such as PyG's RandomLinkSplit leaves the links on the graph; batches carry their own.
        kwargs["exclude_keys"] = [*(kwargs.get("exclude_keys") or ()), *MADE_FOR_LINKS]
        layout = layout_of(kwargs)
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
        super().__init__(data, store, sampler, layout, batch_size, **kwargs)


def _joined(edges: Tensor, links: Tensor, sizes: tuple[int, int], is_one_type: bool) -> Tensor:
    """Return the pairs of nodes that are no negatives: edges, seeds, and of one type each node with itself.

    Args:
        edges: Source and destination of each edge of the graph. [2, num_edges]
        links: Source and destination of each seed. [2, num_links]
        sizes: How many sources and destinations there are.
        is_one_type: Whether both are the same nodes.

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
    """Return whether edges run both ways, as in an undirected graph. The first edges show it. [2, num_edges]"""
    source, destination = edges[:, edges[0] != edges[1]]
    back = (destination * num_nodes + source)[:_EDGES_TO_SEE]
    return len(back) > 0 and bool(torch.isin(back, source * num_nodes + destination).all())


def _negatives(neg_sampling: NegativeSampling | str | None, ratio: float | None) -> NegativeSampling | None:
    if ratio:
        if neg_sampling is not None:
            raise ValueError("Both neg_sampling and neg_sampling_ratio are given; pass one of them.")
        return NegativeSampling("binary", ratio)
    chosen = NegativeSampling.cast(neg_sampling) if neg_sampling is not None else None
    if chosen is not None and (chosen.src_weight is not None or chosen.dst_weight is not None):
        raise ValueError("Negatives are drawn uniformly; leave the weights of NegativeSampling out.")
    return chosen
