"""Sums, means, maxima and softmax over the nodes of each graph, for a fixed number of graphs."""

import torch
from torch import Tensor

from popgeo.ops import sum_on_device
from popgeo.ops.scatter_by_index import scatter
from popgeo.ops.scatter_plan import ScatterPlan
from popgeo.ops.scatter_softmax import scatter_softmax


def global_add_pool(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Sum the rows of each graph.

    Args:
        x: One row per node. [num_nodes, channels]
        batch: Graph of each node. [num_nodes]
        num_graphs: Rows of the result; never read from `batch`, so the shape is static.

    Returns:
        Sums; zero for a graph without nodes. [num_graphs, channels]

    Raises:
        ValueError: an entry of `batch` is negative or not below `num_graphs`.

    Example:
        >>> global_add_pool(torch.ones(3, 1), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([2., 0., 1.])
    """
    return scatter(x, batch, dim=0, dim_size=num_graphs, reduce="sum")


def global_mean_pool(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Average the rows of each graph; zero for a graph without nodes.

    Means of integers and booleans are floating point numbers, as in PyG; `scatter_mean` rounds them down.

    Args:
        x: One row per node. [num_nodes, channels]
        batch: Graph of each node. [num_nodes]
        num_graphs: Rows of the result.

    Example:
        >>> global_mean_pool(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([2., 0., 5.])
    """
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    return scatter(x, batch, dim=0, dim_size=num_graphs, reduce="mean")


def global_max_pool(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the largest entry of each channel in each graph; zero for a graph without nodes.

    A NaN makes the result NaN, as in PyG; `scatter_max` ignores it, as torch_scatter does.

    Args:
        x: One row per node. [num_nodes, channels]
        batch: Graph of each node. [num_nodes]
        num_graphs: Rows of the result.

    Example:
        >>> global_max_pool(torch.tensor([[-1.0], [-3.0], [5.0]]), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([-1.,  0.,  5.])
    """
    return max_or_nan(x, batch, num_graphs)


def max_or_nan(x: Tensor, index: Tensor, num_rows: int, plan: ScatterPlan | None = None) -> Tensor:
    """Return the maximum of the rows that share an index: NaN if a row has NaN, and 0 if there are no rows.

    Args:
        x: Rows. [num_entries, channels]
        index: Row of the result for each entry. [num_entries]
        num_rows: Rows of the result.
        plan: The plan of `index`, made once and reused.

    Example:
        >>> max_or_nan(torch.tensor([[1.0], [torch.nan], [2.0]]), torch.tensor([0, 0, 1]), 3).flatten()
        tensor([nan, 2., 0.])
    """
    if plan is None and sum_on_device.serves(x):
        plan = ScatterPlan.from_index(index, num_rows)
    largest = scatter(x, index, dim=0, dim_size=num_rows, reduce="max", plan=plan)
    if not x.is_floating_point():
        return largest
    missing = torch.where(x.isnan(), x, 0.0).detach()  # the maximum ignores a NaN, a sum does not
    return largest + scatter(missing, index, dim=0, dim_size=num_rows, plan=plan)


def global_softmax(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Compute the softmax of each channel over the nodes of each graph.

    Args:
        x: Scores. [num_nodes, channels]
        batch: Graph of each node. [num_nodes]
        num_graphs: Graphs in the batch, padding included.

    Returns:
        e^x divided by its sum over the graph; exactly 0 if it is at most e^-60 of the largest (e^-600 in float64), so
        that no denormal number arises. [num_nodes, channels]

    Example:
        >>> global_softmax(torch.tensor([[7.0], [7.0], [-5.0]]), torch.tensor([0, 0, 2]), num_graphs=3).flatten()
        tensor([0.5000, 0.5000, 1.0000])
    """
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return scatter_softmax(x, batch, 0, num_graphs)
