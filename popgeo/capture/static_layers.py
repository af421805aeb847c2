"""Static forms of PyG's layers that read data; each takes PyG's own function, then the arguments of that function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Original = Callable[..., Any]


def assume_sorted_index(original: Original, aggregation: Any, index: Tensor | None) -> None:
    """Skip the check of indices, because the indices of a batch are sorted before the capture."""


def hetero_linear(original: Original, layer: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """Return each row [*, out_channels] times the weights of its type: all types are computed, and one is kept."""
    kinds = type_vec.unsqueeze(-1)
    out = x.new_zeros(*x.shape[:-1], layer.out_channels)
    for kind, weight in enumerate(layer.weight):
        out = torch.where(kinds == kind, x @ weight, out)
    return out if layer.bias is None else out + layer.bias[type_vec]


def mf_conv(original: Original, layer: Any, x: Any, edge_index: Any, size: Any = None) -> Tensor:
    """Apply the weights of all degrees to each node, and keep the result for its own degree."""
    if not isinstance(edge_index, Tensor):
        return original(layer, x, edge_index, size)
    sources, targets = (x, x) if isinstance(x, Tensor) else x
    num_nodes = sources.size(layer.node_dim) if size is None else size[1]
    num_nodes = num_nodes if targets is None else targets.size(layer.node_dim)
    ends = edge_index[1 if layer.flow == "source_to_target" else 0]
    degree = torch.zeros(num_nodes, dtype=torch.long).index_add(0, ends, torch.ones_like(ends))
    degree = degree.clamp(max=layer.max_degree).unsqueeze(-1)
    h = layer.propagate(edge_index, x=(sources, targets), size=size)
    out = h.new_zeros(*h.shape[:-1], layer.out_channels)
    for number, (lin_l, lin_r) in enumerate(zip(layer.lins_l, layer.lins_r, strict=True)):
        row = lin_l(h) if targets is None else lin_l(h) + lin_r(targets)
        out = torch.where(degree == number, row, out)
    return out


def cluster_gcn_conv(original: Original, layer: Any, x: Tensor, edge_index: Any) -> Tensor:
    """Give existing self-loops weight 0 next to the added ones, instead of removing them."""
    if not isinstance(edge_index, Tensor) or layer.aggr not in ("add", "sum"):
        return original(layer, x, edge_index)
    num_nodes = x.size(layer.node_dim)
    counts = torch.ones(edge_index.size(1))  # [num_edges], of torch's default type, as PyG's degrees are
    if layer.add_self_loops:
        counts = torch.where(edge_index[0] == edge_index[1], 0.0, counts)
        counts = torch.cat([counts, torch.ones(num_nodes)])  # [num_edges + num_nodes]
        edge_index = torch.cat([edge_index, torch.arange(num_nodes).expand(2, -1)], dim=1)
    row, col = edge_index[0], edge_index[1]
    inverse = 1 / torch.zeros(num_nodes).index_add(0, col, counts).clamp(min=1)
    weight = inverse[col]
    weight = torch.where(row == col, weight + layer.diag_lambda * weight, weight) * counts
    weight = weight.to(x.dtype)
    return layer.lin_out(layer.propagate(edge_index, x=x, edge_weight=weight)) + layer.lin_root(x)


def norm_of_graphs(
    original: Original,
    layer: Any,
    x: Tensor,
    batch: Tensor | None = None,
    batch_size: int | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Call the norm with as many slots for graphs as there are nodes, if the number of graphs is not given.

    Empty slots are never read.

    Returns:
        Features. [num_nodes, channels]
    """
    given = batch_size if dim_size is None else dim_size
    return original(layer, x, batch, x.size(0) if batch is not None and given is None else given)


def instance_norm(
    original: Original, layer: Any, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
) -> Tensor:
    """Normalize each graph, with as many slots for graphs as there are nodes, if the number of graphs is not given."""
    if batch is None or batch_size is not None:
        return original(layer, x, batch, batch_size)
    if not (layer.training and layer.track_running_stats):
        return original(layer, x, batch, x.size(0))
    before = layer.running_mean, layer.running_var
    layer.running_mean, layer.running_var = map(torch.zeros_like, before)
    out = original(layer, x, batch, x.size(0))
    share = x.size(0) / (batch.max() + 1)  # PyG's means over graphs are means over all slots here
    pairs = zip(before, (layer.running_mean, layer.running_var), strict=True)
    layer.running_mean, layer.running_var = ((1 - layer.momentum) * old + share * new for old, new in pairs)
    return out


def mean_of_batches(original: Callable[..., Tensor], norm: Any, x: Tensor) -> Tensor:
    """Apply a batch norm with `momentum=None`, a mean over all batches, without reading the number of batches."""
    if norm.momentum is not None or not norm.training or norm.running_mean is None:
        return original(norm, x)
    norm._check_input_dim(x)
    mean, var = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    made = torch.nn.functional.batch_norm(x, mean, var, norm.weight, norm.bias, True, 1.0, norm.eps)
    norm.num_batches_tracked.add_(1)
    for running, batch in ((norm.running_mean, mean), (norm.running_var, var)):
        running.lerp_(batch, 1 / norm.num_batches_tracked.to(running.dtype))
    return made


def gps_conv(
    original: Original, layer: Any, x: Tensor, edge_index: Any, batch: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """Attend over all nodes of the batch, with a mask that separates the graphs."""
    if not isinstance(layer.attn, nn.MultiheadAttention):
        return original(layer, x, edge_index, batch, **kwargs)

    def normed(norm: Any, h: Tensor) -> Tensor:
        named = {"batch": batch} if layer.norm_with_batch else {}
        return h if norm is None else norm(h, **named)

    def dropped(h: Tensor) -> Tensor:
        return nn.functional.dropout(h, layer.dropout, layer.training)

    apart = None if batch is None else batch.unsqueeze(1) != batch
    h, _ = layer.attn(x[None], x[None], x[None], attn_mask=apart, need_weights=False)
    out = normed(layer.norm2, dropped(h[0]) + x)
    if layer.conv is not None:
        out = normed(layer.norm1, dropped(layer.conv(x, edge_index, **kwargs)) + x) + out
    return normed(layer.norm3, out + layer.mlp(out))
