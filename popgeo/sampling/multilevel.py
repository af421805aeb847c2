"""A multilevel partitioner with a single kind of move: a node takes the label of most of its neighbors.

Nodes join small clusters, which makes the graph coarser, several times. A stream divides the coarsest graph (linear
deterministic greedy, Stanton and Kliot 2012). Then each finer graph starts with this division and moves nodes between
parts while fewer edges are cut (size-constrained label propagation, arXiv:1402.3281). All arithmetic is in integers, so
the compiled library and the Python code give the same parts.
"""

from dataclasses import dataclass

import numpy as np
import torch

from popgeo.native import library

# A coarse node has at most 1/8 of a part, so that parts can still be balanced; a graph with at most 24 nodes per part
# is not made coarser.
_SHARE_OF_A_PART, _COARSE_NODES_OF_A_PART = 8, 24
_PASSES, _STARTS = 12, 4
# Full parts cannot exchange nodes, so the start matters: small graphs are divided several times, and the best division
# is used.
_ATTEMPTS, _EDGES_OF_ALL_ATTEMPTS = 16, 2_000_000
_TOLERANCE = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """An undirected graph with weights, each edge in both directions, without loops.

    Args:
        rowptr: The start of the neighbors of each node in `col`, and the end. int64 [num_nodes + 1]
        col: Neighbors, in ascending order. int64 [2 * num_edges]
        edge_weight: The number of edges of the original graph in each edge. int64 [2 * num_edges]
        node_weight: The number of nodes of the original graph in each node. int64 [num_nodes]
    """

    rowptr: np.ndarray
    col: np.ndarray
    edge_weight: np.ndarray
    node_weight: np.ndarray

    @classmethod
    def from_edges(cls, edge_index: np.ndarray, num_nodes: int) -> "Graph":
        """Return the simple undirected graph of directed edges, which may repeat.

        Example:
            >>> graph = Graph.from_edges(np.array([[0, 1, 1], [1, 0, 2]]), num_nodes=3)
            >>> graph.rowptr, graph.col
            (array([0, 1, 3, 4]), array([1, 0, 2, 1]))
        """
        source, destination = (row.astype(np.int64) for row in edge_index)
        other = source != destination
        source, destination = source[other], destination[other]
        keys = np.concatenate([source * num_nodes + destination, destination * num_nodes + source])
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) != 0]
        row, col = np.divmod(keys, max(1, num_nodes))
        rowptr = np.concatenate([[0], np.bincount(row, minlength=num_nodes).cumsum()]).astype(np.int64)
        ones = (np.ones(len(col), np.int64), np.ones(num_nodes, np.int64))
        return cls(rowptr=rowptr, col=col, edge_weight=ones[0], node_weight=ones[1])

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self.node_weight)

    def cut(self, labels: np.ndarray) -> int:
        """Return the weight of the edges between different labels."""
        row = np.repeat(np.arange(self.num_nodes), np.diff(self.rowptr))
        return int(self.edge_weight[labels[row] != labels[self.col]].sum()) // 2


def multilevel(graph: Graph, num_parts: int, seed: int) -> np.ndarray:
    """Return the part of each node; a part is at most 5 %, or one node, above the mean, int64 [num_nodes].

    Example:
        >>> path = Graph.from_edges(np.array([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
        >>> multilevel(path, 2, seed=0).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
        True
    """
    capacity = max(-(-graph.num_nodes // num_parts), int(graph.num_nodes / num_parts * (1 + _TOLERANCE)))
    is_joined = np.diff(graph.rowptr) > 0
    parts = np.empty(graph.num_nodes, np.int64)
    joined, generator = _only(graph, is_joined), torch.Generator().manual_seed(seed)
    attempts = min(_ATTEMPTS, 1 + _EDGES_OF_ALL_ATTEMPTS // (1 + len(joined.col)))
    divisions = (_divide(joined, num_parts, capacity, generator) for _ in range(attempts))
    parts[is_joined] = min(divisions, key=joined.cut)
    # Nodes without neighbors fill the parts; they never add to the cut.
    weights = np.bincount(parts[is_joined], minlength=num_parts)
    room = np.repeat(np.arange(num_parts), np.clip(graph.num_nodes // num_parts - weights, 0, None))
    weights += np.bincount(room, minlength=num_parts)
    room = np.append(room, np.repeat(np.arange(num_parts), np.clip(capacity - weights, 0, None)))
    parts[~is_joined] = room[: int((~is_joined).sum())]
    return parts


def _only(graph: Graph, is_joined: np.ndarray) -> Graph:
    """Return the graph without isolated nodes."""
    if is_joined.all():
        return graph
    number = np.cumsum(is_joined) - 1
    return Graph(
        rowptr=np.append(graph.rowptr[:-1][is_joined], graph.rowptr[-1]),
        col=number[graph.col],
        edge_weight=graph.edge_weight,
        node_weight=graph.node_weight[is_joined],
    )


def _divide(graph: Graph, num_parts: int, capacity: int, generator: torch.Generator) -> np.ndarray:
    graphs, clusters = [graph], []
    while graphs[-1].num_nodes > _COARSE_NODES_OF_A_PART * num_parts:
        labels = _clusters(graphs[-1], max(2, capacity // _SHARE_OF_A_PART), generator)
        coarse = contract(graphs[-1], labels)
        if coarse.num_nodes > 0.95 * graphs[-1].num_nodes:
            break
        graphs.append(coarse)
        clusters.append(labels)
    coarsest = graphs[-1]
    parts = min((_start(coarsest, num_parts, capacity, i, generator) for i in range(_STARTS)), key=coarsest.cut)
    for finer, labels in zip(graphs[-2::-1], clusters[::-1], strict=True):
        parts = parts[labels]
        _refine(finer, parts, num_parts, capacity, generator)
    return parts


def _clusters(graph: Graph, capacity: int, generator: torch.Generator) -> np.ndarray:
    """Return small clusters of well-connected nodes, numbered from 0, int64 [num_nodes]."""
    labels = np.arange(graph.num_nodes)
    weights = graph.node_weight.copy()
    for _ in range(2):
        stream(graph, torch.randperm(graph.num_nodes, generator=generator).numpy(), labels, weights, capacity)
    used = np.zeros(graph.num_nodes, np.int64)
    used[labels] = 1
    return (np.cumsum(used) - 1)[labels]


def _start(graph: Graph, num_parts: int, capacity: int, attempt: int, generator: torch.Generator) -> np.ndarray:
    """Divide the coarsest graph by neighborhood, which suits meshes, or at random, which suits communities."""
    parts, weights = np.full(graph.num_nodes, -1, np.int64), np.zeros(num_parts, np.int64)
    order = torch.randperm(graph.num_nodes, generator=generator).numpy()
    # The limit is the mean, not the capacity; otherwise the last parts would stay empty.
    mean = -(-int(graph.node_weight.sum()) // num_parts)
    stream(graph, _breadth_first(graph, order) if attempt % 2 else order, parts, weights, mean)
    _refine(graph, parts, num_parts, capacity, generator)
    return parts


def _breadth_first(graph: Graph, order: np.ndarray) -> np.ndarray:
    """Return all nodes by component, then by distance from its first node of `order`, int64 [num_nodes]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    num_nodes = graph.num_nodes
    matrix = csr_array((graph.edge_weight, graph.col, graph.rowptr), shape=(num_nodes, num_nodes))
    _, component = connected_components(matrix, directed=False)
    _, first = np.unique(component[order], return_index=True)
    # An additional node with edges to the first node of each component reaches all nodes in one search.
    roots = order[first]
    rowptr = np.append(graph.rowptr, graph.rowptr[-1] + len(roots))
    col = np.concatenate([graph.col, roots])
    matrix = csr_array((np.ones(len(col), np.int8), col, rowptr), shape=(num_nodes + 1, num_nodes + 1))
    found = breadth_first_order(matrix, num_nodes, return_predecessors=False)[1:].astype(np.int64)
    return found[np.argsort(component[found], kind="stable")]


def _refine(graph: Graph, parts: np.ndarray, num_parts: int, capacity: int, generator: torch.Generator) -> None:
    """Move nodes between parts, in place, until no node moves or the passes are over."""
    placed = parts >= 0
    weights = np.bincount(parts[placed], graph.node_weight[placed], num_parts).astype(np.int64)
    # Without a least weight, small parts would lose all their nodes to neighboring parts.
    least = 2 * int(graph.node_weight.sum()) // num_parts - capacity
    for _ in range(_PASSES):
        order = torch.randperm(graph.num_nodes, generator=generator).numpy()
        if stream(graph, order, parts, weights, capacity, least) == 0:
            return


def stream(
    graph: Graph, order: np.ndarray, labels: np.ndarray, weights: np.ndarray, capacity: int, least: int = 0
) -> int:
    """Let nodes choose labels, one after the other, in place.

    A node without a label takes the label with the largest product of free room and edges to it, or else the lightest
    label. A node with a label changes to a label that has room and more edges to the node, or the same number of edges
    and less weight. A node leaves a label that is too heavy for the best label with room.

    Args:
        graph: The graph to divide.
        order: The nodes in the order in which they choose. int64 [num_nodes]
        labels: The label of each node, -1 for none; changed in place. int64 [num_nodes]
        weights: The weight of the nodes of each label; changed in place. int64 [num_labels]
        capacity: The largest weight that a label should have.
        least: The least weight; a lighter part loses no more nodes.

    Returns:
        The number of nodes that changed their label.
    """
    entry = library.function("popgeo_partition_stream", "PPPPPPPqqqq", "q")
    if entry is None:
        return _stream(graph, order, labels, weights, capacity, least)
    arrays = (graph.rowptr, graph.col, graph.edge_weight, graph.node_weight, order, labels, weights)
    pointers = [array.ctypes.data for array in arrays]
    return int(entry(*pointers, len(order), len(weights), capacity, least))


def _stream(graph: Graph, order: np.ndarray, labels: np.ndarray, weights: np.ndarray, capacity: int, least: int) -> int:
    """Run `stream` in Python, node by node."""
    rowptr, col, edge_weight = graph.rowptr.tolist(), graph.col.tolist(), graph.edge_weight.tolist()
    of_node, moved = graph.node_weight.tolist(), 0
    for node in order.tolist():
        own, weight = int(labels[node]), of_node[node]
        joined: dict[int, int] = {}
        for i in range(rowptr[node], rowptr[node + 1]):
            label = int(labels[col[i]])
            if label >= 0:
                joined[label] = joined.get(label, 0) + edge_weight[i]
        must_leave = own < 0 or weights[own] > capacity
        if not must_leave and weights[own] - weight < least:
            continue
        best, score = (-1, -1) if must_leave else (own, joined.get(own, 0))
        for label, edges in joined.items():
            if label == own or weights[label] + weight > capacity:
                continue
            value = edges * (capacity - int(weights[label])) if own < 0 else edges
            lighter = best >= 0 and weights[label] + weight < weights[best] - (weight if best == own else 0)
            if value > score or (value == score and lighter):
                best, score = label, value
        if best < 0:
            best = int(np.argmin(weights))
            # If no label has room, heavy coarse nodes stay; a finer graph corrects this.
            best = own if own >= 0 and weights[best] + weight > capacity else best
        if best != own:
            if own >= 0:
                weights[own] -= weight
            weights[best] += weight
            labels[node] = best
            moved += 1
    return moved


def contract(graph: Graph, labels: np.ndarray) -> Graph:
    """Return the graph with one node per cluster; edges inside a cluster vanish, edges between clusters add up.

    Args:
        graph: The finer graph.
        labels: The cluster of each node, numbered from 0 without gaps. int64 [num_nodes]

    Example:
        >>> path = Graph.from_edges(np.array([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
        >>> coarse = contract(path, np.array([0, 0, 1, 1]))
        >>> coarse.col.tolist(), coarse.node_weight.tolist()
        ([1, 0], [2, 2])
    """
    num_coarse = int(labels.max(initial=-1)) + 1
    node_weight = np.bincount(labels, graph.node_weight, num_coarse).astype(np.int64)
    entry = library.function("popgeo_partition_contract", "PPPPqqPPP", "q")
    if entry is None:
        row = labels[np.repeat(np.arange(graph.num_nodes), np.diff(graph.rowptr))]
        col = labels[graph.col]
        other = row != col
        keys, inverse = np.unique(row[other] * num_coarse + col[other], return_inverse=True)
        edge_weight = np.bincount(inverse, graph.edge_weight[other], len(keys)).astype(np.int64)
        row, col = np.divmod(keys, num_coarse)
        rowptr = np.concatenate([[0], np.bincount(row, minlength=num_coarse).cumsum()]).astype(np.int64)
        return Graph(rowptr=rowptr, col=col, edge_weight=edge_weight, node_weight=node_weight)
    rowptr, col = np.empty(num_coarse + 1, np.int64), np.empty_like(graph.col)
    edge_weight = np.empty_like(graph.edge_weight)
    arrays = (graph.rowptr, graph.col, graph.edge_weight, labels)
    out = [array.ctypes.data for array in (rowptr, col, edge_weight)]
    used = int(entry(*(array.ctypes.data for array in arrays), graph.num_nodes, num_coarse, *out))
    return Graph(rowptr=rowptr, col=col[:used].copy(), edge_weight=edge_weight[:used].copy(), node_weight=node_weight)
