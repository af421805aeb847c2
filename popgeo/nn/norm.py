"""Norms whose statistics exclude padding. Parameters have PyG's names, so that PyG's checkpoints load."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.ops import ScatterPlan, gather, global_add_pool, scatter, sum_on_device
from popgeo.ops.half_precision import in_float32
from popgeo.ops.refusals import check_choice


class Norm(nn.Module):
    """The base class of all norms, which take the same arguments."""

    def forward(
        self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None, nodes_mask: Tensor | None = None
    ) -> Tensor:
        """Return normalised features.

        Args:
            x: Features. [num_nodes, in_channels]
            batch: Graph of each node. Default: one graph. [num_nodes]
            num_graphs: Graphs in the batch, padding included; norms of graphs require it with `batch`.
            nodes_mask: True where the node is real. [num_nodes]

        Returns:
            [num_nodes, in_channels]

        Raises:
            ValueError: `batch` is a mask, or a norm of graphs gets `batch` without `num_graphs`.
        """
        if batch is not None and batch.dtype == torch.bool:
            raise ValueError("batch is a mask; it must be the number of each node's graph. Pass nodes_mask=.")
        return self.normalize(x, batch, num_graphs, nodes_mask)

    @abstractmethod
    def normalize(self, x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None) -> Tensor:
        """Return normalised features; `forward` explains the arguments."""


class LayerNorm(Norm, nn.LayerNorm):
    """A norm of each node over its own channels, independent of other rows (arXiv:1607.06450).

    PyG's `LayerNorm` takes one mean over all nodes of a graph, or of the batch, unless `mode="node"` is set.

    Args:
        in_channels: Channels of a node.
        eps: Number added to the variance.
        affine: Whether to learn a scale and a shift for each channel.

    Example:
        >>> LayerNorm(2)(torch.tensor([[1.0, 3.0], [0.0, 200.0]]))
        tensor([[-1.0000,  1.0000],
                [-1.0000,  1.0000]], grad_fn=<NativeLayerNormBackward0>)
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(in_channels, eps, affine)
        self.in_channels = in_channels

    def normalize(self, x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None) -> Tensor:
        """Return each node's features, normalised over its channels."""
        return F.layer_norm(x, (self.in_channels,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.in_channels}, eps={self.eps}, affine={self.elementwise_affine}"


class BatchNorm(Norm):
    """A norm of each channel over the real nodes of the batch (arXiv:1502.03167), also in its running statistics.

    The `state_dict` has the keys of PyG's norm. A checkpoint of `torch.nn.BatchNorm1d` loads too, and the attribute
    `module` is a `BatchNorm1d` with the same weights.

    Args:
        in_channels: Channels of a node.
        eps: Number added to the variance.
        momentum: Share of a new batch in the running statistics; None averages all batches equally.
        affine: Whether to learn a scale and a shift for each channel.
        track_running_stats: Whether to keep running statistics and use them in evaluation.

    Example:
        >>> x, nodes_mask = torch.tensor([[1.0], [3.0], [999.0]]), torch.tensor([True, True, False])
        >>> BatchNorm(1, affine=False)(x, nodes_mask=nodes_mask)[:2].flatten()
        tensor([-1.0000,  1.0000])
    """

    def __init__(
        self,
        in_channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        # It holds parameters and statistics by PyG's names; its own forward pass, which counts padding, is not used.
        self.module = nn.BatchNorm1d(in_channels, eps, momentum, affine, track_running_stats)

    def normalize(self, x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None) -> Tensor:
        """Return features that are normalised over the real nodes of the batch."""
        return batch_normalized(self.module, x, nodes_mask)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in self.module.state_dict():  # the names of torch.nn.BatchNorm1d
            if prefix + name in state_dict:
                state_dict[f"{prefix}module.{name}"] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


@in_float32
def batch_normalized(module: nn.BatchNorm1d, x: Tensor, nodes_mask: Tensor | None) -> Tensor:
    """Normalise rows by the statistics of the real rows, and update the module's running statistics.

    Padding rows are scaled in the same way.
    """
    running_mean, running_var = module.running_mean, module.running_var
    if running_mean is not None and running_var is not None and not module.training:
        mean, var = running_mean, running_var.to(x.dtype)
    else:
        mean, var = _statistics(module, x, nodes_mask)
    out = (x - mean) * (var + module.eps).rsqrt()
    return out * module.weight + module.bias if module.affine else out


def _statistics(module: nn.BatchNorm1d, x: Tensor, nodes_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the real rows, after an update of the running statistics."""
    if nodes_mask is None:
        nodes_mask = torch.ones_like(x[:, 0], dtype=torch.bool)
    mask = nodes_mask.unsqueeze(1)
    is_real = nodes_mask.any()  # a batch of padding alone updates nothing
    num_nodes = nodes_mask.sum().clamp(min=1).to(x.dtype)
    mean = torch.where(mask, x, 0.0).sum(0) / num_nodes
    var = torch.where(mask, x - mean, 0.0).square().sum(0) / num_nodes
    if module.running_mean is not None and module.running_var is not None:
        assert module.num_batches_tracked is not None, "BatchNorm1d counts batches if it tracks statistics"
        with torch.no_grad():
            module.num_batches_tracked.add_(is_real)
            share = 1 / module.num_batches_tracked.to(x.dtype) if module.momentum is None else module.momentum
            for running, new in ((module.running_mean, mean), (module.running_var, _unbiased(var, num_nodes))):
                running.add_(torch.where(is_real, share * (new - running), 0.0))
    return mean, var


class GraphNorm(Norm):
    """A norm of each channel over the nodes of one graph, with a learned share of the mean (arXiv:2009.03294).

    Args:
        in_channels: Channels of a node.
        eps: Number added to the variance.

    Example:
        >>> x, batch = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])
        >>> GraphNorm(1)(x, batch, num_graphs=2).detach().flatten()
        tensor([-1.0000,  1.0000,  0.0000])
    """

    def __init__(self, in_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(in_channels))
        self.bias = nn.Parameter(torch.zeros(in_channels))
        self.mean_scale = nn.Parameter(torch.ones(in_channels))

    @in_float32
    def normalize(self, x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None) -> Tensor:
        """Return features that are normalised over each graph, except for a learned share of the mean."""
        _, mean_of, at_nodes = _graphs(x, batch, num_graphs, nodes_mask)
        out = x - at_nodes(mean_of(x)) * self.mean_scale
        var = mean_of(out.square())
        return self.weight * out * at_nodes((var + self.eps).rsqrt()) + self.bias

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{len(self.weight)}, eps={self.eps}"


class InstanceNorm(Norm, nn.InstanceNorm1d):
    """A norm of each channel over the nodes of one graph (arXiv:1607.08022).

    Args:
        in_channels: Channels of a node.
        eps: Number added to the variance.
        momentum: Share of a new batch in the running statistics, which average over real graphs.
        affine: Whether to learn a scale and a shift for each channel.
        track_running_stats: Whether to keep running statistics and use them in evaluation.

    Example:
        >>> x, batch = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])
        >>> InstanceNorm(1)(x, batch, num_graphs=2).flatten()
        tensor([-1.0000,  1.0000,  0.0000])
    """

    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(
        self,
        in_channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__(in_channels, eps, momentum, affine, track_running_stats)
        self.in_channels = in_channels

    @in_float32
    def normalize(self, x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None) -> Tensor:
        """Return features that are normalised over each graph."""
        batch, mean_of, at_nodes = _graphs(x, batch, num_graphs, nodes_mask)
        if self.track_running_stats and not self.training:
            out = (x - self.running_mean) * (self.running_var.to(x.dtype) + self.eps).rsqrt()
        else:
            mean = mean_of(x)
            out = x - at_nodes(mean)
            var = mean_of(out.square())
            if self.track_running_stats:
                self._track(mean, var, batch, nodes_mask)
            out = out * at_nodes((var + self.eps).rsqrt())
        return out * self.weight + self.bias if self.affine else out

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, batch: Tensor, nodes_mask: Tensor | None) -> None:
        real = torch.ones_like(batch) if nodes_mask is None else nodes_mask
        real = real.to(mean.dtype).unsqueeze(1)
        num_nodes = global_add_pool(real, batch, mean.size(0))  # [num_graphs, 1]
        graphs_mask = (num_nodes > 0) | (nodes_mask is None)
        for running, values in ((self.running_mean, mean), (self.running_var, _unbiased(var, num_nodes))):
            new = torch.where(graphs_mask, values, 0.0).sum(0) / graphs_mask.sum()
            running.add_(torch.where(graphs_mask.any(), self.momentum * (new - running), 0.0))


NORMS: dict[str, Callable[..., nn.Module]] = {
    "batch_norm": BatchNorm,
    "graph_norm": GraphNorm,
    "instance_norm": InstanceNorm,
    "layer_norm": LayerNorm,
}


def make_norm(name: str | None, in_channels: int) -> nn.Module | None:
    """Return a norm by its name, or None if the name is None.

    Raises:
        ValueError: no norm has this name.

    Example:
        >>> make_norm("layer_norm", 8)
        LayerNorm(8, eps=1e-05, affine=True)
    """
    check_choice("norm", name, (None, *NORMS))
    return None if name is None else NORMS[name](in_channels)


def _unbiased(var: Tensor, num_nodes: Tensor) -> Tensor:
    """Return the unbiased estimate of a variance from this number of nodes."""
    return var * (num_nodes / (num_nodes - 1).clamp(min=1))


def _graphs(
    x: Tensor, batch: Tensor | None, num_graphs: int | None, nodes_mask: Tensor | None
) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return the graph of each node, a function for means over graphs, and a function from graphs to their nodes.

    Default: one graph, and a second graph of padding.
    """
    if batch is None and nodes_mask is not None:
        batch, num_graphs = (~nodes_mask).long(), 2
    elif batch is None:
        batch, num_graphs = torch.zeros(x.size(0), dtype=torch.long, device=x.device), 1
    elif num_graphs is None:
        raise ValueError("batch is given without num_graphs, which fixes the shapes. Pass num_graphs=batch.num_graphs.")
    # On a GPU all sums, and those of the gradients, share one sort.
    plan = ScatterPlan.from_index(batch, num_graphs) if sum_on_device.serves(x) else None
    mean_of = partial(scatter, index=batch, dim=0, dim_size=num_graphs, reduce="mean", plan=plan)
    return batch, mean_of, partial(gather, index=batch, plan=plan)
