"""Conversion of a model to a program of torch's own operations, which runs without popgeo."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from popgeo.capture.capture import bind, capture
from popgeo.capture.drawn_numbers import STATE
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import Role
from popgeo.engine.inductor import as_module
from popgeo.ops import reference
from popgeo.ops.exp_or_zero import least_exponent, sigmoid_or_zero


def plain_module(model: nn.Module, examples: Mapping[str, Tensor]) -> fx.GraphModule:
    """Return a model as a torch.fx module with weights, which runs without the model's source and without popgeo.

    Args:
        model: Module that takes tensors in order, as `FixedModel` does.
        examples: Example of each tensor, by name.

    Raises:
        ValueError: a shape depends on data, or the model needs an operation that plain torch does not have.
    """
    step = capture(model, bind(model, *examples.values())).expanded
    tensors = module_state(model)
    state = [tensors[one].detach() for one in step.graph.inputs if one.role is not Role.ARGUMENT]
    module = as_module(step.graph)

    def run(*given: Tensor) -> Any:
        return module(*state, *given)[: step.num_returned]

    with torch.no_grad():
        made = make_fx(run, decomposition_table=_PLAIN)(*examples.values())
    for node in made.graph.nodes:
        # The state was kept for draws that turned out not to exist.
        if str(node.target) == STATE and not node.users:
            made.graph.erase_node(node)
    made.recompile()
    for node in made.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ValueError(f"The model draws random numbers by {node.target}, which a file would not repeat.")
    left = {str(node.target) for node in made.graph.nodes if str(node.target).startswith("popgeo.")}
    if left:
        raise ValueError(f"The model needs {', '.join(sorted(left))}, which plain torch does not have.")
    return made


def _gather_csr(x: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    row = _row_of_each_edge(indptr, num_edges)
    return torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, row)


def _segment_sum(src: Tensor, indptr: Tensor) -> Tensor:
    return reference.scatter_sum(src, _row_of_each_edge(indptr, src.shape[0]), indptr.shape[0])[:-1]


def _segment_extremum(src: Tensor, indptr: Tensor, *, largest: bool) -> tuple[Tensor, Tensor]:
    row = _row_of_each_edge(indptr, src.shape[0])
    out, arg = reference.scatter_extremum(src, row, indptr.shape[0], largest=largest)
    return out[:-1], arg[:-1]


def _row_of_each_edge(indptr: Tensor, num_edges: int) -> Tensor:
    """Return the row of each edge, or the number of rows for an edge outside all rows, [num_edges]."""
    starts = indptr.new_zeros(num_edges + 1).scatter_add(0, indptr.long(), torch.ones_like(indptr))
    row = starts.cumsum(0)[:-1] - 1
    return torch.where(row < 0, indptr.shape[0] - 1, row).long()


def _shifted_softplus(x: Tensor) -> Tensor:
    return F.softplus(x.clamp(min=least_exponent(x.dtype))) - math.log(2.0)


_OURS = torch.ops.popgeo
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_PLAIN: dict[Any, Callable[..., Any]] = {
    _OURS.gather.default: lambda x, index, *_: x.index_select(0, index),
    _OURS.gather_csr.default: _gather_csr,
    _OURS.segment_sum.default: _segment_sum,
    _OURS.scatter_sum.default: lambda src, index, num_rows, *_: reference.scatter_sum(src, index, num_rows),
    _OURS.scatter_mul.default: lambda src, index, num_rows, *_: reference.scatter_mul(src, index, num_rows),
    _OURS.scatter_max.default: lambda *given: reference.scatter_extremum(*given[:3], largest=True),
    _OURS.scatter_min.default: lambda *given: reference.scatter_extremum(*given[:3], largest=False),
    _OURS.segment_max.default: partial(_segment_extremum, largest=True),
    _OURS.segment_min.default: partial(_segment_extremum, largest=False),
    _OURS.cfconv.default: lambda *given: reference.cfconv(*given[:5]),
    _OURS.cfconv_backward.default: lambda *given: reference.cfconv_backward(*given[:5]),
    _OURS.shifted_softplus.default: _shifted_softplus,
    _OURS.shifted_softplus_backward.default: lambda grad, x: grad * sigmoid_or_zero(x),
    _FLASH: decomposition_table[_FLASH],  # tagged as random for any dropout
    _OURS.identity_loss.default: torch.clone,
}
