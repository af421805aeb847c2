"""The nodes of a sample, numbered in the order of discovery; no other file of sampling has state."""

import struct

import numpy as np
import torch
from torch import Tensor

from popgeo.native import library
from popgeo.sampling.compressed_graph import CompressedGraph

_SMALLEST_TABLE = 10  # 2^10 entries
_WIDE = 2**32


class NodeTable:
    """A table of the sampled nodes of one type: seeds first, then every new neighbor.

    Args:
        seeds: The first nodes. A repeated seed gets two numbers; as a neighbor it has the first number.
            int64 [num_seeds]
        trees: The tree of each seed, if every seed has a separate tree; otherwise None. int64 [num_seeds]
        num_nodes: The number of nodes of this type in the graph.
        num_trees: The number of trees.
    """

    def __init__(self, seeds: Tensor, trees: Tensor | None, num_nodes: int, num_trees: int) -> None:
        self._nodes, self._trees, self.size = seeds.clone(), None if trees is None else trees.clone(), len(seeds)
        self._num_nodes = num_nodes
        self._wide = num_nodes * (1 if trees is None else num_trees) >= _WIDE
        self._table = torch.empty(0, dtype=torch.int64)
        self._bits = 0
        self._listed = 0
        self._numbers: dict[tuple[int, int], int] = {}

    @property
    def nodes(self) -> Tensor:
        """The nodes found so far, int64 [size]."""
        return self._nodes[: self.size]

    @property
    def trees(self) -> Tensor | None:
        """The tree of each node, if there are several, int64 [size]."""
        return None if self._trees is None else self._trees[: self.size]

    def add(
        self, graph: CompressedGraph, places: Tensor, ptr: Tensor, first: int, trees: Tensor | None, edges: Tensor
    ) -> Tensor:
        """Add the neighbors at the other end of drawn edges and return their numbers.

        Args:
            graph: A graph with neighbors of this type.
            places: Places of the edges in `graph.col`. int64 [num_edges]
            ptr: The start of the edges of each row in `places`, and the end. int64 [num_rows + 1]
            first: The number of the first row, in the table of its type.
            trees: The tree of each row, if there are several trees. int64 [num_rows]
            edges: The result of earlier calls. int64 [3, num_before]

        Returns:
            The earlier edges followed by the new edges: the numbers of the neighbor, of the row, and of the edge in
            `edge_index`. int64 [3, num_before + num_edges]
        """
        grown = torch.empty(3, edges.shape[1] + len(places), dtype=torch.int64)
        grown[:, : edges.shape[1]] = edges
        new = grown[:, edges.shape[1] :]
        number_nodes = library.packed("popgeo_number_nodes")
        if number_nodes is None:
            numbers = self._add(graph.col[places], ptr, trees)
            rows = torch.repeat_interleave(torch.arange(first, first + len(ptr) - 1), ptr.diff())
            torch.stack([numbers, rows, places if graph.perm is None else graph.perm[places].long()], out=new)
            return grown
        self._reserve(self.size + len(places))
        in_trees = (None, None) if trees is None or self._trees is None else (trees, self._trees)
        tensors = (graph.col, graph.perm, places, ptr, self._nodes, self._table, *new, *in_trees)
        sizes = (len(ptr) - 1, first, graph.col.element_size(), self._num_nodes, self.size, self._listed, self._bits)
        fields = (*map(library.address, tensors), *sizes, self._wide)
        self.size = self._listed = number_nodes(struct.pack("19q", *fields))
        return grown

    def induced(self, graph: CompressedGraph, nodes: Tensor, trees: Tensor | None, not_after: Tensor | None) -> Tensor:
        """Return all edges from rows to nodes of this table.

        Args:
            graph: A graph with neighbors of this type.
            nodes: The rows. int64 [num_rows]
            trees: The tree of each row, if there are several trees. int64 [num_rows]
            not_after: The latest allowed time of each row, if the graph has times. int64 [num_rows]

        Returns:
            The numbers of the neighbor, of the row, and of the edge in `edge_index`. int64 [3, num_edges]
        """
        find_edges = library.packed("popgeo_induced_edges")
        if find_edges is None:
            return _with_numbers(graph, self._induced(graph, nodes, trees, not_after))
        self._reserve(self.size)
        limits = (None, None) if not_after is None or graph.time is None else (graph.time, not_after)
        in_trees = (None, None) if trees is None or self._trees is None else (trees, self._trees)
        tensors = (graph.rowptr, graph.col, nodes, self._nodes, self._table, *limits, *in_trees)
        inputs = [library.address(tensor) for tensor in tensors]
        sizes = (len(nodes), graph.col.element_size(), self._num_nodes, self.size)
        total = find_edges(struct.pack("19q", *inputs, 0, 0, 0, *sizes, self._listed, self._bits, self._wide))
        self._listed = self.size
        edges = torch.empty(3, total, dtype=torch.int64)
        outputs = (part.data_ptr() for part in edges)
        find_edges(struct.pack("19q", *inputs, *outputs, *sizes, self._listed, self._bits, self._wide))
        return _with_numbers(graph, edges)

    def _reserve(self, num_nodes: int) -> None:
        """Make room for `num_nodes` nodes in a table that is at most half full."""
        if num_nodes > len(self._nodes):
            self._nodes = torch.cat([self.nodes, self._nodes.new_empty(num_nodes - self.size)])
            if self._trees is not None:
                self._trees = torch.cat([self._trees[: self.size], self._nodes.new_empty(num_nodes - self.size)])
        entries = num_nodes if self._trees is not None else min(num_nodes, self._num_nodes)
        bits = max(_SMALLEST_TABLE, entries.bit_length() + 1)
        if bits > self._bits:
            self._bits, self._listed = bits, 0
            self._table = torch.from_numpy(np.zeros(2 << bits if self._wide else 1 << bits, np.int64))

    def _add(self, neighbors: Tensor, ptr: Tensor, trees: Tensor | None) -> Tensor:
        """Return the number of each neighbor; new neighbors become nodes."""
        self._list()
        numbers: list[int] = []
        new: list[tuple[int, int]] = []
        of_edges = [0] * len(neighbors) if trees is None else torch.repeat_interleave(trees, ptr.diff()).tolist()
        for pair in zip(of_edges, neighbors.tolist(), strict=True):
            numbers.append(self._numbers.setdefault(pair, self.size + len(new)))
            if numbers[-1] == self.size + len(new):
                new.append(pair)
        added = torch.tensor(new, dtype=torch.int64).view(-1, 2)
        self._nodes = torch.cat([self.nodes, added[:, 1]])
        if self._trees is not None:
            self._trees = torch.cat([self._trees[: self.size], added[:, 0]])
        self.size = self._listed = len(self._nodes)
        return torch.tensor(numbers, dtype=torch.int64)

    def _induced(self, graph: CompressedGraph, nodes: Tensor, trees: Tensor | None, not_after: Tensor | None) -> Tensor:
        self._list()
        found: list[tuple[int, int, int]] = []
        for row, node in enumerate(nodes.tolist()):
            tree = 0 if trees is None else int(trees[row])
            for place in range(int(graph.rowptr[node]), int(graph.rowptr[node + 1])):
                if not_after is not None and graph.time is not None and graph.time[place] > not_after[row]:
                    break
                number = self._numbers.get((tree, int(graph.col[place])))
                if number is not None:
                    found.append((number, row, place))
        return torch.tensor(found, dtype=torch.int64).view(-1, 3).t().contiguous()

    def _list(self) -> None:
        """Enter the new nodes into the dictionary of numbers."""
        trees = [0] * self.size if self._trees is None else self._trees[: self.size].tolist()
        for number in range(self._listed, self.size):
            self._numbers.setdefault((trees[number], int(self._nodes[number])), number)
        self._listed = self.size


def _with_numbers(graph: CompressedGraph, edges: Tensor) -> Tensor:
    """Replace the places in the last row by the numbers of the edges in `edge_index`."""
    if graph.perm is not None:
        edges[2] = graph.perm[edges[2]].long()
    return edges
