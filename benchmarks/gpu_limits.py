"""The bytes and the arithmetic of a training step, and the least time that an H100 would need for them.

`python benchmarks/gpu.py --limits` prints them. The operations are those of a captured step with its fixed shapes.
Without fusion each operation reads its arguments from memory and writes its results. With fusion an element-wise
operation is part of the operation before or after it, so it moves nothing. Caches are ignored: a gather of rows reads
its table once. Both counts contain the update of Adam, which reads four numbers per weight and writes three.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.op_graph import Op, OpGraph, Ref
from popgeo.capture.operations import ChainStep, operation_of

BYTES_PER_SECOND, FLOPS_PER_SECOND = 3.35e12, 67e12  # H100 SXM: memory, float32
BYTES_OF_ADAM, FLOPS_OF_ADAM = 7 * 4, 12  # per weight
POINTS = 8  # of the grid that an interpolated filter reads


@dataclass(frozen=True)
class Limits:
    """Bytes and floating-point operations of a step."""

    bytes_alone: int
    bytes_fused: int
    flops: int

    def seconds(self, nbytes: int) -> float:
        """Return the least time: that of the memory, or that of the arithmetic if it is longer."""
        return max(nbytes / BYTES_PER_SECOND, self.flops / FLOPS_PER_SECOND)

    def __str__(self) -> str:
        alone, fused = (
            f"{nbytes / 1e6:7,.0f} MB, {1e6 * self.seconds(nbytes):6.0f} us"
            for nbytes in (self.bytes_alone, self.bytes_fused)
        )
        return f"each operation alone {alone}; element-wise fused {fused}; {self.flops / 1e9:6.1f} GFLOP"


def limits_of(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Limits:
    """Count a training step of a model that returns its loss."""
    names = [name for name, _ in model.named_parameters()]
    graph = capture_step(model, bind(model.forward, *inputs), trained=names).graph
    ops = [op for op in graph.ops if not graph.is_view(op)]
    weights = sum(p.numel() for p in model.parameters())
    fixed = weights * BYTES_OF_ADAM
    return Limits(
        bytes_alone=fixed + sum(bytes_of(graph, op) for op in ops),
        bytes_fused=fixed + sum(bytes_of(graph, op) for op in ops if not is_element_wise(op)),
        flops=weights * FLOPS_OF_ADAM + sum(flops_of(graph, op) for op in ops),
    )


def is_element_wise(op: Op) -> bool:
    """Check whether the operation can be part of the operation before or after it."""
    return operation_of(op.target).chain is not ChainStep.NO


def bytes_of(graph: OpGraph, op: Op) -> int:
    """Return the bytes of the arguments and results of an operation, each counted once."""
    return sum(graph.values[v].nbytes for v in {*op.reads(), *op.makes()})


def flops_of(graph: OpGraph, op: Op) -> int:
    """Return the floating-point operations, with two for a multiplication and an addition."""
    _, name, *_ = op.target.split(".")
    shapes = [graph.values[a.value].shape if isinstance(a, Ref) else () for a in op.args]
    made = sum(graph.values[v].numel for v in op.makes())
    if name in ("mm", "addmm", "bmm"):
        return 2 * made * shapes[2 if name == "addmm" else 1][-2]
    if name in ("cfconv", "cfconv_backward"):
        return (2 if name == "cfconv" else 3) * math.prod(shapes[1 if name == "cfconv" else 2])
    if name in ("interaction", "interaction_backward"):
        filters, ends = shapes[2][0] * shapes[1][1], 2 if op.args[8] else 1  # edges times channels
        forward = (2 * POINTS + 2 * ends) * filters
        return forward if name == "interaction" else forward + (2 * POINTS + ends) * filters
    return max(made, *(graph.values[v].numel for v in op.reads()), 0)
