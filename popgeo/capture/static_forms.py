"""Static forms of functions of torch and PyG that read data: each shape follows from the arguments.

This file is the only place that replaces the functions, and only while a model is captured. The forms are in
`static_layers` (layers and norms), `static_neighbors` and `farthest_points` (searches), `static_rows` (rows chosen by
masks; see `free_slots`) and `static_ctc` (a loss).
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.distributions import Distribution
from torch.jit._fuser import optimized_execution
from torch.overrides import TorchFunctionMode

from popgeo.capture import farthest_points, static_layers, static_neighbors, static_rows
from popgeo.capture.free_slots import FreeSlots
from popgeo.capture.static_ctc import ctc_loss
from popgeo.replaced import replaced

# The form of each function, by module and name. The form of a method takes the original method as its first argument.
_IN_PYG: dict[tuple[str, str], Any] = {
    ("torch_geometric.backend", "use_segment_matmul"): False,  # PyG's default would read the longest segment's length
    ("torch_geometric.utils._scatter", "scatter"): static_rows.scatter,
    ("torch_geometric.utils._degree", "degree"): static_rows.degree,
    ("torch_geometric.nn.aggr.base", "Aggregation.assert_sorted_index"): static_layers.assume_sorted_index,
    ("torch_geometric.nn.dense.linear", "HeteroLinear.forward"): static_layers.hetero_linear,
    ("torch_geometric.nn.conv.mf_conv", "MFConv.forward"): static_layers.mf_conv,
    ("torch_geometric.nn.conv.cluster_gcn_conv", "ClusterGCNConv.forward"): static_layers.cluster_gcn_conv,
    ("torch_geometric.nn.conv.gps_conv", "GPSConv.forward"): static_layers.gps_conv,
    ("torch_geometric.nn.norm.instance_norm", "InstanceNorm.forward"): static_layers.instance_norm,
    ("torch_geometric.nn.norm.graph_norm", "GraphNorm.forward"): static_layers.norm_of_graphs,
    ("torch_geometric.nn.norm.graph_size_norm", "GraphSizeNorm.forward"): static_layers.norm_of_graphs,
    ("torch_geometric.nn.norm.layer_norm", "LayerNorm.forward"): static_layers.norm_of_graphs,
    ("torch_geometric.nn.norm.mean_subtraction_norm", "MeanSubtractionNorm.forward"): static_layers.norm_of_graphs,
    ("torch_geometric.nn.norm.pair_norm", "PairNorm.forward"): static_layers.norm_of_graphs,
    ("torch.nn.modules.batchnorm", "_BatchNorm.forward"): static_layers.mean_of_batches,
    ("torch.nn.modules.transformer", "_detect_is_causal_mask"): lambda mask, is_causal=None, size=None: bool(is_causal),
    ("torch_geometric.nn.unpool.knn_interpolate", "knn_interpolate"): static_neighbors.knn_interpolate,
}
_SEARCHES = {
    "knn": static_neighbors.knn,
    "knn_graph": static_neighbors.knn_graph,
    "radius": static_rows.with_free_slots(static_neighbors.radius),
    "radius_graph": static_rows.with_free_slots(static_neighbors.radius_graph),
    "nearest": static_neighbors.nearest,
    "fps": farthest_points.fps_of_graphs,
}
_IN_PYG |= {(of, name): form for of in ["torch_geometric.nn.pool", "torch_cluster"] for name, form in _SEARCHES.items()}
# Layers of PyG that search by an operator of pyg-lib, with the first node of each graph instead of each node's graph.
_SEARCHING_LAYERS = [f"torch_geometric.nn.conv.{name}" for name in ("edge_conv", "gravnet_conv", "x_conv")]


@contextlib.contextmanager
def static_forms(slots: FreeSlots) -> Iterator[None]:
    """Replace functions that read data by their static forms while the block runs; they note slots that may be free.

    Example:
        >>> with static_forms(FreeSlots()):
        ...     torch.bincount(torch.tensor([0, 2]), minlength=4)
        tensor([1, 0, 1, 0])
    """
    with contextlib.ExitStack() as stack:
        # TorchScript's optimizer compares constants, which stand-ins cannot do.
        stack.enter_context(optimized_execution(False))
        # A recurrent layer of oneDNN has no derivative that can be recorded; its single operations have.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        # Distributions read their parameters to refuse a negative variance, which makes their samples NaN.
        stack.enter_context(replaced(Distribution, "_validate_args", False))
        # Torch logs each operation that stand-ins refuse; the error that follows names the model's line.
        stack.enter_context(replaced(fake_tensor.log, "disabled", True))
        if "torch_geometric" in sys.modules:
            static_rows.pyg_scatter()  # copies PyG's code before it is replaced
        for (module, path), form in _IN_PYG.items():
            _replace_function(stack, module, path, form)
        for layer in filter(None, map(sys.modules.get, _SEARCHING_LAYERS)):
            stack.enter_context(replaced(layer, "index2ptr", lambda batch, size=None: batch))
        stack.enter_context(replaced(torch.ops.pyg, "knn", _knn_of_layers))
        stack.enter_context(_TorchForms(slots))
        yield


class _TorchForms(TorchFunctionMode):
    def __init__(self, slots: FreeSlots) -> None:
        super().__init__()
        self._slots = slots

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        form, named = _IN_TORCH.get(func), kwargs or {}
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = static_rows.with_boolean_masks(*args)
        made = NotImplemented if form is None else form(*args, **named)
        return self._slots.mark_sizes(func, args, named, func(*args, **named)) if made is NotImplemented else made


def _knn_of_layers(x: Tensor, y: Tensor, of_x: Any, of_y: Any, k: int, cosine: bool, num_workers: int) -> Tensor:
    return static_rows.with_free_slots(static_neighbors.knn)(x, y, k, of_x, of_y, cosine)


def _bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    """Return the counts of the numbers below `minlength`; a larger number is an error at run time."""
    if minlength == 0:
        return NotImplemented
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.to(torch.float64)  # the type in which torch adds
    return weights.new_zeros(minlength).scatter_add(0, input.to(torch.int64), weights)


def _one_hot(input: Tensor, num_classes: int = -1) -> Any:
    """Return one-hot vectors, with an operation that checks the classes; torch checks them only in eager code."""
    if num_classes <= 0:
        return NotImplemented
    known = (input >= 0) & (input < num_classes)
    torch._assert_async(known.all(), f"one_hot: a class is negative or not below num_classes, {num_classes}.")
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).to(torch.int64)


def _matrix_rank(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
    """Copy the rank into `out`, because torch would give `out` other memory without telling the recorder."""
    return NotImplemented if out is None else out.copy_(torch.linalg.matrix_rank(*args, **kwargs))


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """Return the loss without torch's check for a negative variance, which makes the loss NaN instead."""
    if reduction not in ("mean", "sum", "none") or not isinstance(var, Tensor):
        return NotImplemented
    shapes = (input.shape, (*input.shape[:-1], 1), input.shape[:-1])
    if var.shape not in shapes:
        return NotImplemented
    var = var.unsqueeze(-1) if var.shape == shapes[2] != input.shape else var
    limited = var.clone()
    with torch.no_grad():  # the gradient ignores the limit
        limited.clamp_(min=eps)
    limited = torch.where(var < 0, torch.nan, limited)
    loss = 0.5 * (limited.log() + (input - target).square() / limited) + (0.5 * math.log(2 * math.pi) if full else 0)
    return loss if reduction == "none" else getattr(loss, reduction)()


def _tensor_split(input: Tensor, split: Any, dim: int = 0) -> Any:
    """Split at places that are a constant tensor, which torch would read without the recorder."""
    return torch.tensor_split(input, split.tolist(), dim) if isinstance(split, Tensor) else NotImplemented


_IN_TORCH: dict[Any, Callable[..., Any]] = {
    torch.bincount: _bincount,
    torch.Tensor.bincount: _bincount,
    torch.Tensor.__getitem__: static_rows.get_item,
    torch.Tensor.__setitem__: static_rows.set_item,
    torch.Tensor.numpy: static_rows.refuse_numpy,
    torch.cat: static_rows.cat,
    torch.linalg.matrix_rank: _matrix_rank,
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll_loss,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
}


def _replace_function(stack: contextlib.ExitStack, module: str, path: str, form: Any) -> None:
    """Replace one function of the table until the stack is closed."""
    owner, _, name = path.rpartition(".")
    holder = sys.modules.get(module)  # no model uses a module that is not imported
    holder = getattr(holder, owner) if holder and owner else holder
    original = vars(holder).get(name, form) if holder else form
    if original is form:
        return
    if isinstance(original, FunctionType) and not owner:
        stack.enter_context(_code_replaced(original, form))
    else:
        method = functools.wraps(original)(lambda *args, **kwargs: form(original, *args, **kwargs)) if owner else form
        stack.enter_context(replaced(holder, name, method))


@contextlib.contextmanager
def _code_replaced(function: FunctionType, form: Callable[..., Any]) -> Iterator[None]:
    """Let a function run its form while the block runs, under every name that a model has for it."""

    def stand_in(*args: Any, _form: Any, **kwargs: Any) -> Any:
        return _form(*args, **kwargs)

    before = function.__code__, function.__defaults__, function.__kwdefaults__
    function.__code__, function.__defaults__, function.__kwdefaults__ = stand_in.__code__, None, {"_form": form}
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = before
