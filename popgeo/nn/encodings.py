"""Positional encodings for graph transformers, computed once for each graph, as PyG's transforms of fixed shape."""

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from popgeo.ops.refusals import check_least


class _Encoding(BaseTransform):
    """A transform that sets an attribute of each graph; `repr` shows its settings without the attribute's name."""

    name: str

    def __repr__(self) -> str:
        choices = ", ".join(f"{name}={choice}" for name, choice in vars(self).items() if name != "name")
        return f"{type(self).__name__}({choices})"


class RandomWalkEncoding(_Encoding):
    """A transform that adds a random walk's return probabilities after 1, 2, ... steps (arXiv:2110.07875, eq. 12).

    If the graph has `edge_weight`, a walk takes an edge with a probability in proportion to its weight. (PyG's
    transform divides 1, instead of the weight, by the sum of weights.)

    Args:
        num_steps: Steps of the longest walk.
        name: Attribute to set. [num_nodes, num_steps]

    Raises:
        ValueError: there is no step; or, in a call, weights of edges are negative or do not fit.

    Example:
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> RandomWalkEncoding(num_steps=2)(path).random_walk
        tensor([[0.0000, 0.5000],
                [0.0000, 1.0000],
                [0.0000, 0.5000]])
    """

    def __init__(self, num_steps: int, name: str = "random_walk") -> None:
        check_least(1, num_steps=num_steps)
        self.num_steps, self.name = num_steps, name

    def forward(self, data: Data) -> Data:
        """Set the attribute of a graph, which PyG has copied before."""
        adjacency = _adjacency(data).toarray()
        degree = adjacency.sum(1, keepdims=True)
        step = adjacency / np.where(degree > 0, degree, 1)  # D^-1 A
        walk, returns = step, [step.diagonal()]
        for _ in range(self.num_steps - 1):
            walk = walk @ step
            returns.append(walk.diagonal())
        data[self.name] = torch.from_numpy(np.stack(returns, 1)).float()
        return data


class LaplacianEncoding(_Encoding):
    """A transform that adds the lowest eigenvectors and eigenvalues of I - D^-1/2 A D^-1/2 (arXiv:2012.09699, eq. 5).

    The first eigenvector, which is known beforehand, is left out. The largest entry of each vector is positive, or the
    first of several largest entries, so that the same graph has the same encoding. To train a model that does not
    depend on signs, use `draw_signs`. If a graph has too few nodes, missing vectors are zeros. If it has
    `edge_weight`, A consists of the weights.

    Args:
        num_vectors: Number of eigenvectors.
        name: Attribute to set; the eigenvalues, the same for all nodes of a graph, are in `NAME_values`.
            [num_nodes, num_vectors]

    Raises:
        ValueError: there is no vector; or, in a call, weights of edges are negative or do not fit.

    Example:
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> encoded = LaplacianEncoding(num_vectors=1)(path)
        >>> encoded.laplacian.flatten(), encoded.laplacian_values.flatten()
        (tensor([ 0.7071,  0.0000, -0.7071]), tensor([1., 1., 1.]))
    """

    def __init__(self, num_vectors: int, name: str = "laplacian") -> None:
        check_least(1, num_vectors=num_vectors)
        self.num_vectors, self.name = num_vectors, name

    def forward(self, data: Data) -> Data:
        """Set both attributes of a graph, which PyG has copied before."""
        adjacency = _adjacency(data).toarray()
        adjacency = np.maximum(adjacency, adjacency.T)
        degree = adjacency.sum(1)
        scale = np.where(degree > 0, np.where(degree > 0, degree, 1) ** -0.5, 0.0)
        values, vectors = np.linalg.eigh(np.eye(len(degree)) - scale[:, None] * adjacency * scale)
        values, vectors = values[1 : self.num_vectors + 1], vectors[:, 1 : self.num_vectors + 1]
        vectors = np.where(np.abs(vectors) < 1e-7, 0.0, vectors)
        largest = np.abs(vectors).round(6).argmax(0) if vectors.size else np.arange(0)
        vectors = vectors * np.where(vectors[largest, np.arange(len(values))] < 0, -1.0, 1.0)
        missing = ((0, 0), (0, self.num_vectors - len(values)))
        data[self.name] = torch.from_numpy(np.pad(vectors, missing)).float()
        rows = np.broadcast_to(values, (len(degree), len(values)))
        data[f"{self.name}_values"] = torch.from_numpy(np.pad(rows, missing)).float()
        return data


class ShortestPaths(_Encoding):
    """A transform that adds the shortest path length of each pair of nodes (arXiv:2106.05234, sec. 3.1.2).

    There is a row for each node and a column for each place in its graph, so that graphs of all sizes share a batch.

    Args:
        max_num_nodes: Nodes of the largest graph.
        max_hops: Largest number of edges that is distinguished. Longer paths have this number, and pairs without a path
            one more.
        name: Attribute to set; absent nodes have `max_hops + 2`. uint8 [num_nodes, max_num_nodes]

    Raises:
        ValueError: there is no node or no hop, or more than 253 hops; or, in a call, a graph is too large.

    Example:
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> ShortestPaths(max_num_nodes=4, max_hops=5)(path).hops
        tensor([[0, 1, 2, 7],
                [1, 0, 1, 7],
                [2, 1, 0, 7]], dtype=torch.uint8)
    """

    def __init__(self, max_num_nodes: int, max_hops: int = 20, name: str = "hops") -> None:
        check_least(1, max_num_nodes=max_num_nodes, max_hops=max_hops)
        self.max_num_nodes, self.max_hops, self.name = max_num_nodes, max_hops, name
        if max_hops > 253:
            raise ValueError(f"max_hops is {max_hops}; at most 253 are allowed, so that they fit in a byte.")

    def forward(self, data: Data) -> Data:
        """Set the attribute of a graph, which PyG has copied before."""
        num_nodes = _checked_size(data, self.max_num_nodes)
        hops = shortest_path(_adjacency(data, weighted=False), unweighted=True)
        hops = np.where(np.isinf(hops), self.max_hops + 1, np.minimum(hops, self.max_hops))
        absent = ((0, 0), (0, self.max_num_nodes - num_nodes))
        data[self.name] = torch.from_numpy(np.pad(hops, absent, constant_values=self.max_hops + 2).astype(np.uint8))
        return data


class PairDistances(_Encoding):
    """A transform that adds the spatial distance of each pair of nodes, in the layout of `ShortestPaths`.

    Args:
        max_num_nodes: Nodes of the largest graph.
        name: Attribute to set, in the unit of `pos`; 0 for absent nodes. [num_nodes, max_num_nodes]

    Raises:
        ValueError: there is no node; or, in a call, a graph is too large or has no positions.

    Example:
        >>> pair = Data(pos=torch.tensor([[0.0, 0, 0], [0, 3, 4]]))
        >>> PairDistances(max_num_nodes=3)(pair).distance
        tensor([[0., 5., 0.],
                [5., 0., 0.]])
    """

    def __init__(self, max_num_nodes: int, name: str = "distance") -> None:
        check_least(1, max_num_nodes=max_num_nodes)
        self.max_num_nodes, self.name = max_num_nodes, name

    def forward(self, data: Data) -> Data:
        """Set the attribute of a graph, which PyG has copied before."""
        if data.pos is None:
            raise ValueError("The graph has no pos, so it has no distances. Add pos, or leave PairDistances out.")
        num_nodes = _checked_size(data, self.max_num_nodes)
        distance = torch.linalg.vector_norm(data.pos.unsqueeze(1) - data.pos, dim=2)
        data[self.name] = torch.nn.functional.pad(distance, (0, self.max_num_nodes - num_nodes))
        return data


def draw_signs(encoding: Tensor, batch: Tensor, num_graphs: int, training: bool) -> Tensor:
    """Multiply eigenvectors by a random sign per graph and vector in training; otherwise return them unchanged.

    The sign of an eigenvector is arbitrary, so a model should not depend on it.

    Args:
        encoding: Eigenvectors. [num_nodes, num_vectors]
        batch: Graph of each node. [num_nodes]
        num_graphs: Graphs in the batch, padding included.
        training: Whether signs are drawn.

    Example:
        >>> draw_signs(torch.ones(2, 1), torch.tensor([0, 0]), num_graphs=1, training=True).abs().flatten()
        tensor([1., 1.])
    """
    if not training:
        return encoding
    signs = torch.rand(num_graphs, encoding.size(1), dtype=encoding.dtype, device=encoding.device)
    return encoding * torch.where(signs < 0.5, -1.0, 1.0).index_select(0, batch)


def _adjacency(data: Data, weighted: bool = True) -> csr_matrix:
    """Return the number of edges from each node to each node, or the sum of their weights. [num_nodes, num_nodes].

    Raises:
        ValueError: the number of weights is not the number of edges, or a weight is negative or not finite.
    """
    row, col = data.edge_index.numpy()
    weight = np.ones(len(row))
    if weighted and data.get("edge_weight") is not None:
        weight = data.edge_weight.detach().double().flatten().numpy()
        if weight.shape != row.shape or not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError(
                f"edge_weight has shape {tuple(data.edge_weight.shape)} for {len(row)} edges, and starts with "
                f"{weight[:3].tolist()}; give one finite weight of 0 or more for each edge, or leave it out."
            )
    return csr_matrix((weight, (row, col)), shape=(data.num_nodes, data.num_nodes))


def _checked_size(data: Data, max_num_nodes: int) -> int:
    if data.num_nodes > max_num_nodes:
        raise ValueError(f"The graph has {data.num_nodes} nodes, max_num_nodes is {max_num_nodes}. Raise it.")
    return data.num_nodes
