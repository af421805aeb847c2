"""Models of PyTorch Geometric with every shape fixed, or a refusal that names the module and what to use instead."""

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
    """A copy of a PyG model whose shapes depend on its inputs' shapes only, never on what they hold.

    Readouts (any `Aggregation` outside a convolution, and `global_add_pool` and its like where a module holds them)
    return `num_graphs` rows; SchNet's radius graph becomes `KNNInteractionGraph(max_num_neighbors, cutoff)`. Loops,
    relations and norms of graphs stay PyG's own: a compiled step has a static form of them. Parameters are copied,
    under the same names.

    Modules are replaced; the code of a `forward` is not read. A `global_add_pool(x, batch)` written there still takes
    its size from the data: `popgeo.ipu.check_static` lists such lines, and what to write instead.

    Args:
        model: Any module made of PyG's layers. It stays as it is.
        num_graphs: Graphs of each batch, padding included.

    Returns:
        The copy.

    Raises:
        ValueError: the statistics of a part would see padding.

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
    """Calls a readout of PyG, which returns `num_graphs` rows unless the caller says how many.

    PyG's `Aggregation.__call__` reads a size that is left out from the data, before any hook could tell it one.

    The readout's parameters, buffers and parts are those of this module, under the same names, so that PyG's
    checkpoints load as they are.
    """

    def __init__(self, readout: pyg.aggr.Aggregation, num_graphs: int) -> None:
        super().__init__()
        self.num_graphs = num_graphs
        self._readout = (readout,)  # in a tuple, so that torch does not count it as a part, with names of its own
        # The tables themselves, so that what moves or swaps tensors of this module does it to the readout.
        self._parameters, self._buffers, self._modules = readout._parameters, readout._buffers, readout._modules
        self._non_persistent_buffers_set = readout._non_persistent_buffers_set

    def forward(self, x: Tensor, index: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """[num_nodes, channels], graph of each node [num_nodes] -> [num_graphs, out_channels]; more as in PyG."""
        if len(args) < 2 and kwargs.get("dim_size") is None:  # args: ptr, dim_size, dim
            kwargs["dim_size"] = self.num_graphs
        return self._readout[0](x, index, *args, **kwargs)

    def train(self, mode: bool = True) -> "FixedSizeReadout":
        """Sets the mode of the readout too."""
        self._readout[0].train(mode)
        return super().train(mode)

    def reset_parameters(self) -> None:
        """Draws the readout's parameters again."""
        self._readout[0].reset_parameters()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._readout[0]}, num_graphs={self.num_graphs})"


class FixedSizePool(nn.Module):
    """One of PyG's global pools, with `num_graphs` rows unless the caller says how many."""

    def __init__(self, pool: Callable[..., Tensor], num_graphs: int) -> None:
        super().__init__()
        self.pool, self.num_graphs = pool, num_graphs

    def forward(self, x: Tensor, batch: Tensor | None, size: int | None = None) -> Tensor:
        """[num_nodes, channels], graph of each node [num_nodes] -> [num_graphs, channels]"""
        return self.pool(x, batch, self.num_graphs if size is None else size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.__name__}, num_graphs={self.num_graphs})"


def _fix(module: nn.Module, num_graphs: int, fixed: dict[nn.Module, nn.Module], *, is_inner: bool) -> nn.Module:
    """What is in for a module: itself with its parts fixed, or its counterpart of fixed size.

    Args:
        module: Changed in place.
        num_graphs: Graphs of each batch.
        fixed: The replacements of the modules met before, since one module may be in several places.
        is_inner: Whether it is part of a convolution or of a readout, whose sizes PyG knows.
    """
    if module in fixed:
        return fixed[module]
    for name, part in module.named_modules(remove_duplicate=False):  # `named_children` leaves out a part's second name
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
    """Raises ValueError for a module that cannot be made static."""
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
