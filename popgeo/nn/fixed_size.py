"""Conversion of PyG models to fixed shapes. For an unsupported module, the error names a replacement."""

import copy
from collections.abc import Callable
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import RadiusInteractionGraph
from torch_geometric.nn.models.schnet import SchNet as PyGSchNet

from popgeo.nn.interaction_graph import KNNInteractionGraph
from popgeo.ops.refusals import check_least

POOLS: tuple[Callable[..., Tensor], ...] = (pyg.global_add_pool, pyg.global_mean_pool, pyg.global_max_pool)
INNER = (pyg.MessagePassing, pyg.aggr.Aggregation)


def to_fixed_size(model: nn.Module, num_graphs: int) -> nn.Module:
    """Return a copy of a PyG model with shapes that depend only on its inputs' shapes, never on their values.

    Readouts return `num_graphs` rows: each `Aggregation` outside a convolution, and each `global_add_pool`,
    `global_mean_pool` or `global_max_pool` that is an attribute of a module. SchNet's radius graph becomes
    `KNNInteractionGraph(max_num_neighbors, cutoff)`. Loops, relations and norms of graphs stay PyG's, because compiled
    steps have static forms of them. Parameters are copied and keep their names.

    Only modules are replaced; nothing reads the code of a `forward`. A `global_add_pool(x, batch)` in this code still
    takes its size from the data: `popgeo.ipu.check_static` lists such lines with replacements.

    Args:
        model: Any module made of PyG's layers. It stays unchanged.
        num_graphs: Graphs of each batch, padding included.

    Returns:
        The copy.

    Raises:
        ValueError: the statistics of a part would include padding.

    Example:
        >>> import torch
        >>> model = pyg.Sequential("x, edge_index, batch", [
        ...     (pyg.GCNConv(3, 4), "x, edge_index -> x"), (pyg.SumAggregation(), "x, batch -> x")])
        >>> x, edge_index = torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]])
        >>> to_fixed_size(model, num_graphs=5)(x, edge_index, torch.tensor([0, 1])).shape
        torch.Size([5, 4])
    """
    check_least(1, num_graphs=num_graphs)
    for name, module in model.named_modules():
        _refuse(name or type(model).__name__, module)
    return _fix(copy.deepcopy(model), num_graphs, {}, is_inner=False)


class FixedSizeReadout(nn.Module):
    """A readout of PyG that returns `num_graphs` rows unless the caller passes `dim_size`.

    It is no hook, because PyG's `Aggregation.__call__` reads a missing size from the data before it calls hooks. The
    readout's parameters, buffers and parts are also those of this module, by the same names, so that PyG's checkpoints
    load.
    """

    def __init__(self, readout: pyg.aggr.Aggregation, num_graphs: int) -> None:
        super().__init__()
        self.num_graphs = num_graphs
        self._readout = (readout,)  # in a tuple, so that torch does not register it as a part with different names
        # The same dictionaries, so that moved or swapped tensors of this module are those of the readout.
        self._parameters, self._buffers, self._modules = readout._parameters, readout._buffers, readout._modules
        self._non_persistent_buffers_set = readout._non_persistent_buffers_set

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        **kwargs: Any,
    ) -> Tensor:
        """Return a row per graph: [num_nodes, channels], graph of each node [num_nodes] -> [num_graphs, out_channels].

        Args:
            x: Features. [num_nodes, channels]
            index: Graph of each node. [num_nodes]
            ptr: First node of each graph, instead of `index`. [num_graphs + 1]
            dim_size: Rows of the result. Default: `num_graphs`.
            dim: Dimension of the nodes.
            **kwargs: Arguments of the readout's own `forward`.
        """
        return self._readout[0](x, index, ptr, self.num_graphs if dim_size is None else dim_size, dim, **kwargs)

    def train(self, mode: bool = True) -> "FixedSizeReadout":
        """Set the mode of this module and of the readout."""
        self._readout[0].train(mode)
        return super().train(mode)

    def reset_parameters(self) -> None:
        """Reset the readout's parameters."""
        self._readout[0].reset_parameters()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._readout[0]}, num_graphs={self.num_graphs})"


class FixedSizePool(nn.Module):
    """A global pool of PyG that returns `num_graphs` rows unless the caller passes `size`."""

    def __init__(self, pool: Callable[..., Tensor], num_graphs: int) -> None:
        super().__init__()
        self.pool, self.num_graphs = pool, num_graphs

    def forward(self, x: Tensor, batch: Tensor | None, size: int | None = None) -> Tensor:
        """Return a row per graph: [num_nodes, channels], graph of each node [num_nodes] -> [num_graphs, channels]."""
        return self.pool(x, batch, self.num_graphs if size is None else size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.__name__}, num_graphs={self.num_graphs})"


def _fix(module: nn.Module, num_graphs: int, fixed: dict[nn.Module, nn.Module], *, is_inner: bool) -> nn.Module:
    """Return the module with fixed submodules, or its replacement of fixed size.

    Args:
        module: Module to change in place.
        num_graphs: Graphs of each batch.
        fixed: Replacements of earlier modules, because one module may be in several places.
        is_inner: Whether the module is part of a convolution or of a readout, for which PyG knows the size.
    """
    if module in fixed:
        return fixed[module]
    for name, part in module.named_modules(remove_duplicate=False):  # `named_children` omits a part's second name
        if name and "." not in name:
            new = _fix(part, num_graphs, fixed, is_inner=isinstance(module, INNER))
            if new is not part:
                setattr(module, name, new)
    for name, value in list(vars(module).items()):
        if any(value is pool for pool in POOLS):
            setattr(module, name, FixedSizePool(value, num_graphs))
    if isinstance(module, PyGSchNet) and isinstance(module.interaction_graph, RadiusInteractionGraph):
        graph = module.interaction_graph
        module.interaction_graph = KNNInteractionGraph(graph.max_num_neighbors, graph.cutoff)
    readout = isinstance(module, pyg.aggr.Aggregation) and not is_inner
    fixed[module] = FixedSizeReadout(module, num_graphs) if readout else module
    return fixed[module]


def _refuse(name: str, module: nn.Module) -> None:
    """Raise a ValueError for a module that cannot be made static."""
    kind = type(module).__name__
    if isinstance(module, pyg.EquilibriumAggregation):
        _fail(name, kind, "it averages over graphs, padding too", "Use Sum, Mean, Max or AttentionalAggregation.")
    if isinstance(module, pyg.BatchNorm | nn.BatchNorm1d):
        _fail(name, kind, "its statistics count padding nodes", "Use popgeo.nn.BatchNorm and pass nodes_mask.")
    if isinstance(module, pyg.InstanceNorm) and module.track_running_stats:
        _fail(name, kind, "its running statistics count padding graphs", "Use popgeo.nn.InstanceNorm.")
    if isinstance(module, pyg.MLP) and any(isinstance(n, pyg.LayerNorm) and n.mode == "graph" for n in module.norms):
        _fail(name, kind, "its LayerNorm averages over the batch, padding too", 'Pass norm_kwargs={"mode": "node"}.')


def _fail(name: str, kind: str, why: str, remedy: str) -> None:
    raise ValueError(f"{name} ({kind}) cannot be made static: {why}. {remedy}")
