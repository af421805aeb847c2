"""The graph of the nearest neighbours in a fixed number of slots."""

from torch import Tensor

from popgeo.capture import static_neighbors


def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """Edges from the nearest `k` nodes of each node in its graph; both ends are -1 where there are fewer.

    Args:
        x: Positions. [num_nodes, channels]
        k: Edges of each node.
        batch: Graph of each node. [num_nodes]
        loop: Whether a node may be its own neighbour.
        flow: `"source_to_target"` has the neighbours in row 0, `"target_to_source"` in row 1.
        cosine: Go by the angle instead of the distance.
        num_workers: Taken for the sake of PyG's signature; it changes nothing.

    Returns:
        The edges, `k` for each node. [2, num_nodes * k]

    Example:
        >>> import torch
        >>> knn_graph(torch.tensor([[0.0], [1.0], [3.0]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    return static_neighbors.knn_graph(knn_graph, x, k, batch, bool(loop), flow, cosine)
