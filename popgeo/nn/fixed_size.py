"""Models of PyTorch Geometric with every shape fixed, or a refusal that names the module and what to use instead."""

import ast
import copy
import inspect
import textwrap
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import RadiusInteractionGraph
from torch_geometric.nn.models.schnet import SchNet as PyGSchNet

from popgeo.nn.interaction_graph import KNNInteractionGraph
from popgeo.nn.models.gcn import GCNConv, normalized
from popgeo.nn.models.gnn import Batched

GLOBAL_POOLS = {"global_add_pool", "global_mean_pool", "global_max_pool"}
INNER = (pyg.MessagePassing, pyg.aggr.Aggregation)
GRAPH_NORMS = (pyg.GraphNorm, pyg.InstanceNorm)
ADDS_SELF_LOOPS = (pyg.GATConv, pyg.GATv2Conv, pyg.ClusterGCNConv, pyg.ChebConv, pyg.ARMAConv, pyg.SGConv, pyg.APPNP)
PICKS_NODES = (pyg.TopKPooling, pyg.SAGPooling, pyg.ASAPooling, pyg.EdgePooling, pyg.PANPooling, pyg.MemPooling)
NEEDS_DENSE = (
    pyg.SortAggregation,
    pyg.LSTMAggregation,
    pyg.GRUAggregation,
    pyg.SetTransformerAggregation,
    pyg.GraphMultisetTransformer,
    pyg.MedianAggregation,
    pyg.QuantileAggregation,
    pyg.EquilibriumAggregation,
)


def to_fixed_size(model: nn.Module, num_graphs: int) -> nn.Module:
    """A copy of a PyG model whose shapes depend on its inputs' shapes only, never on what they hold.

    Readouts (any `Aggregation` outside a convolution) return `num_graphs` rows; norms of graphs are told `num_graphs`;
    `GCNConv` adds self-loops by arithmetic instead of edges; SchNet's radius graph becomes
    `KNNInteractionGraph(max_num_neighbors, cutoff)`. Parameters are copied, under the same names.

    Args:
        model: Any module made of PyG's layers. It stays as it is.
        num_graphs: Graphs of each batch, padding included.

    Returns:
        The copy.

    Raises:
        ValueError: a part has shapes that depend on data, or its statistics would see padding.

    Example:
        >>> import torch
        >>> model = pyg.Sequential("x, edge_index, batch", [
        ...     (pyg.GCNConv(3, 4), "x, edge_index -> x"), (pyg.SumAggregation(), "x, batch -> x")])
        >>> x, edge_index = torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]])
        >>> to_fixed_size(model, num_graphs=5)(x, edge_index, torch.tensor([0, 1])).shape
        torch.Size([5, 4])
    """
    if num_graphs < 1:
        raise ValueError(f"num_graphs is {num_graphs}; a batch has at least one graph.")
    model = copy.deepcopy(model)
    if type(model) is pyg.GCNConv:
        return _StaticGCNConv(model)
    for name, module in list(model.named_modules()):
        _refuse(name or type(model).__name__, module)
        _fix(module, num_graphs)
    return model


def _fix(module: nn.Module, num_graphs: int) -> None:
    """Replaces children that have a static counterpart, and fixes the number of graphs where one is taken."""
    for name, child in module.named_children():
        if type(child) is pyg.GCNConv:
            setattr(module, name, _StaticGCNConv(child))
        elif isinstance(child, pyg.aggr.Aggregation) and not isinstance(module, INNER):
            # PyG reads the size from the data before any hook runs, so the call itself must know it.
            child.__class__ = type(type(child).__name__, (_Sized, type(child)), {"num_graphs": num_graphs})
        elif isinstance(child, GRAPH_NORMS) or (isinstance(child, pyg.LayerNorm) and child.mode == "graph"):
            child.register_forward_pre_hook(_Inject(num_graphs), with_kwargs=True)
    if isinstance(module, PyGSchNet) and isinstance(module.interaction_graph, RadiusInteractionGraph):
        graph = module.interaction_graph
        module.interaction_graph = KNNInteractionGraph(graph.max_num_neighbors, graph.cutoff)


def _refuse(name: str, module: nn.Module) -> None:
    """Raises ValueError for a module that cannot be made static."""
    kind = type(module).__name__
    if isinstance(module, PICKS_NODES):
        _fail(name, kind, "the number of nodes it keeps depends on data", "Use a readout such as SumAggregation.")
    if isinstance(module, NEEDS_DENSE):
        _fail(name, kind, "it sorts or densifies by data", "Use Sum, Mean, Max or AttentionalAggregation.")
    if isinstance(module, ADDS_SELF_LOOPS) and getattr(module, "add_self_loops", True):
        _fail(
            name,
            kind,
            "it removes and adds self-loops, so the number of edges depends on data",
            "Build it with add_self_loops=False and add them once with the transform AddSelfLoops.",
        )
    if isinstance(module, pyg.BatchNorm | nn.BatchNorm1d):
        _fail(name, kind, "its statistics count padding nodes", "Use popgeo.nn.BatchNorm and pass nodes_mask.")
    if isinstance(module, pyg.MLP) and any(isinstance(n, pyg.LayerNorm) and n.mode == "graph" for n in module.norms):
        _fail(name, kind, "its LayerNorm averages over the batch, padding too", 'Pass norm_kwargs={"mode": "node"}.')
    for line, call in _unsized_pools(module):
        _fail(name, kind, f"line {line} of its forward calls {call} without a size", f"Call {call}(x, batch, size).")


def _fail(name: str, kind: str, why: str, remedy: str) -> None:
    raise ValueError(f"{name} ({kind}) cannot be made static: {why}. {remedy}")


def _unsized_pools(module: nn.Module) -> list[tuple[int, str]]:
    """Calls of PyG's functional pools in a module's forward that let the data decide the number of graphs."""
    if type(module).__module__.startswith(("torch.", "torch_geometric.")):
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(call, getattr(call.func, "id", getattr(call.func, "attr", ""))) for call in calls]
    return [
        (call.lineno, name)
        for call, name in named
        if name in GLOBAL_POOLS and len(call.args) < 3 and not any(keyword.arg == "size" for keyword in call.keywords)
    ]


class _Sized:
    """Mixed into a readout: it returns `num_graphs` rows unless told otherwise."""

    num_graphs: int

    def __call__(self, x: Tensor, index: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) < 2 and kwargs.get("dim_size") is None:
            kwargs["dim_size"] = self.num_graphs
        return super().__call__(x, index, *args, **kwargs)  # type: ignore[misc]


class _Inject:
    """A forward pre-hook that passes a norm the number of graphs where the caller left it out."""

    def __init__(self, num_graphs: int) -> None:
        self.num_graphs = num_graphs

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(args) < 3 and kwargs.get("batch_size") is None:
            kwargs = {**kwargs, "batch_size": self.num_graphs}
        return args, kwargs


class _StaticGCNConv(GCNConv):
    """PyG's `GCNConv` with self-loops by arithmetic; the parameters are its own."""

    def __init__(self, conv: pyg.GCNConv) -> None:
        super().__init__(conv.in_channels, conv.out_channels)
        if conv.improved or conv.cached or conv.flow != "source_to_target" or not conv.normalize:
            _fail("GCNConv", "GCNConv", "only normalize=True without improved, cached or flow is", "Use popgeo.nn.GCN.")
        self.lin = conv.lin
        self.bias = conv.bias
        self.add_self_loops = conv.add_self_loops

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """[num_nodes, in_channels], [2, num_edges], [num_edges] -> [num_nodes, out_channels]"""
        batched = Batched(src=edge_index[0], dst=edge_index[1], num_nodes=x.size(0), plan=None, edge_weight=edge_weight)
        return super().forward(x, normalized(batched, self.add_self_loops, x.dtype))
