"""One row for each graph: sums, means and maxima over a fixed number of graphs."""

from torch import Tensor


def global_add_pool(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Sum the rows of each graph.

    Args:
        x: One row for each node. [num_nodes, channels]
        batch: Graph of each node. [num_nodes]
        num_graphs: Rows of the result; never read from `batch`, so the shape is static.

    Returns:
        Sums; zero for a graph without nodes. [num_graphs, channels]

    Example:
        >>> import torch
        >>> global_add_pool(torch.ones(3, 1), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([2., 0., 1.])
    """
    return x.new_zeros(num_graphs, *x.shape[1:]).index_add(0, batch, x)


def global_mean_pool(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Average the rows of each graph; zero for a graph without nodes. Arguments as in `global_add_pool`.

    Example:
        >>> import torch
        >>> global_mean_pool(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([2., 0., 5.])
    """
    num_nodes = x.new_zeros(num_graphs).index_add(0, batch, x.new_ones(batch.size(0)))
    return global_add_pool(x, batch, num_graphs) / num_nodes.clamp(min=1).view(-1, *[1] * (x.dim() - 1))
