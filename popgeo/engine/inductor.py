"""Runs an `OpGraph` through inductor, torch's compiler, which takes the captured operations without tracing again."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from popgeo.capture.drawn_numbers import SET_STATE
from popgeo.capture.expand import expand
from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Input, OpGraph, overload, substitute
from popgeo.capture.passes import is_random
from popgeo.engine.memory_plan import laid_out
from popgeo.engine.out_variants import returns_list

# Draw random numbers as eager code does, in the same order.
_SETTINGS = {"fallback_random": True}
# In older versions a batch norm, an activation and dropout in one graph give NaN.
_LOSES_DROPOUT = torch.__version__ < "2.12"


class InductorRunner:
    """A graph that inductor has compiled, with the interface of `GraphRunner`.

    Args:
        graph: The graph to run.
        state: Tensors of the graph's parameters and buffers; buffers change in place.
        places: Tensors to write certain outputs to, by position.

    Raises:
        ValueError: the model seeds random numbers; no C++ compiler is installed; or the model has dropout, and torch is
            older than 2.12.
    """

    def __init__(
        self, graph: OpGraph, state: Mapping[Input, Tensor], places: Mapping[int, Tensor] | None = None
    ) -> None:
        if any(op.target == SET_STATE for op in graph.ops):
            raise ValueError(
                "The model seeds random numbers or draws them again, which inductor ignores. Use backend='cpu'."
            )
        if _LOSES_DROPOUT and any("bernoulli" in op.target for op in graph.ops):
            raise ValueError(
                "Inductor gives NaN for some dropout before torch 2.12. Update torch, or use backend='cpu'."
            )
        self.graph = graph = expand(graph)
        self.draws_random_numbers = any(is_random(op) for op in graph.ops)
        self._places = dict(places or {})
        # In the graph's order: tensors of the state, and None for arguments of a call.
        self._given = [state[one].detach() if one in state else None for one in graph.inputs]
        values = [graph.values[v] for v in graph.inputs.values()]
        pairs = zip(self._given, values, strict=True)
        examples = [empty_like(value).zero_() if tensor is None else tensor for tensor, value in pairs]
        self._strides = [value.stride for value in values]
        with torch.no_grad():
            self._run = _compiled(as_module(graph), examples)
        self.buffer_bytes = sum(tensor.nbytes for tensor in examples)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the graph's outputs for inputs in the graph's order; state is not among the inputs."""
        new = iter(inputs)
        given = [
            laid_out(next(new), stride) if tensor is None else tensor
            for tensor, stride in zip(self._given, self._strides, strict=True)
        ]
        with torch.no_grad():
            outputs = list(self._run(*given))
            for position, place in self._places.items():
                made = outputs[position]
                if made is not None:
                    outputs[position] = place.copy_(made)
        return outputs

    def listing(self) -> str:
        """Return how the graph runs, as text."""
        return self.describe()[0]

    def describe(self) -> tuple[str, str]:
        """Return how the graph runs, as text."""
        return f"{len(self.graph.ops):,} operations through inductor", ""


def as_module(graph: OpGraph) -> fx.GraphModule:
    """Return the operations as a module of torch.fx that takes the graph's inputs in order and returns its outputs.

    Example:
        >>> from popgeo.capture.capture import bind, capture
        >>> def scale(x, factor):
        ...     return x * factor
        >>> as_module(capture(scale, bind(scale, torch.ones(3), factor=2)).graph)(torch.ones(2))
        (tensor([2., 2.]),)
    """
    module = nn.Module()
    traced = fx.Graph()
    nodes: dict[int, fx.Node] = {v: traced.placeholder(f"input_{i}") for i, v in enumerate(graph.inputs.values())}
    for v, tensor in graph.constants.items():
        module.register_buffer(f"constant_{v}", tensor)
        nodes[v] = traced.get_attr(f"constant_{v}")
    for op in graph.ops:
        args, kwargs = (substitute(given, nodes.__getitem__) for given in (tuple(op.args), op.kwargs))
        made = traced.call_function(overload(op.target), args, kwargs)
        several = len(op.outputs) != 1 or returns_list(op.target)
        for position, out in enumerate(op.outputs):
            if out is not None and out not in nodes:  # a value changed in place keeps its node
                nodes[out] = traced.call_function(operator.getitem, (made, position)) if several else made
    traced.output(tuple(None if v is None else nodes[v] for v in graph.outputs))
    return fx.GraphModule(module, traced)


def _compiled(module: fx.GraphModule, examples: Sequence[Tensor]) -> Any:
    from torch._inductor import compile as compile_graph  # its import takes a second

    try:
        return compile_graph(module, list(examples), options=_SETTINGS)
    except Exception as error:
        if "InvalidCxxCompiler" in type(error).__name__ or "InvalidCxxCompiler" in str(error):
            raise ValueError("inductor finds no C++ compiler. Install g++ or clang, or use backend='cpu'.") from error
        raise
