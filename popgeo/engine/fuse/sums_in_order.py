"""Replaces sums over a batch by sums in the order of rows, so that a graph's part does not depend on the rest.

The gradient of a weight is a sum over all nodes, edges or graphs of a batch. Fast kernels add up blocks of rows first,
so the last bits of a graph's part depend on its place in the batch. Here each sum is one chain over the rows, in which
rows of zeros change nothing: the part of a graph has the same bits in every slot, with any padding and any other
graphs. All matrix products are popgeo's, because torch chooses its kernel by the number of rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from popgeo.capture.op_graph import Op, OpGraph, Ref, Role, Value
from popgeo.capture.passes import with_ops
from popgeo.capture.value_list import ValueList, dense_strides
from popgeo.engine.fuse.def_use import is_contiguous
from popgeo.native import library

PRODUCT, ROW_SUM = "native.product.default", "native.row_sum.default"
_PRODUCTS = {f"aten.{name}.default": adds for name, adds in [
    ("mm", False), ("bmm", False), ("mv", False), ("dot", False), ("addmm", True), ("baddbmm", True), ("addmv", True),
]}  # fmt: skip
_SUMS = {"aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim"}
_LAYER_NORM = "aten.native_layer_norm_backward.default"
_SOFTMAX = ("aten._softmax.default", "aten._softmax_backward_data.default")
_UNORDERED = {"aten.convolution.default", "aten.addbmm.default", "aten.addr.default", "aten.var_mean.correction"}
_FLOATS = (torch.float32, torch.float64)


def sums_in_order(graph: OpGraph) -> OpGraph:
    """Return the graph with sums over a batch as chains over its rows, and with popgeo's matrix products.

    Raises:
        ValueError: this processor has no kernels for matrix products, a product or sum is of another type than float32
            and float64, or an operation's order of summation is unknown.
    """
    multiplies = library.function("popgeo_multiplies", "", "q")
    if multiplies is None or not multiplies():
        raise ValueError(
            "batch_invariant needs popgeo's compiled matrix products, but this installation or processor has none "
            "(`popgeo info` says why). Leave the option out."
        )
    return _Rewriting(graph).result()


@dataclass
class _Rewriting:
    """One pass over a graph, which collects new values and operations."""

    graph: OpGraph
    values: ValueList = field(init=False)
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = ValueList(self.graph.values)
        self.constants = dict(self.graph.constants)
        weights = [v for one, v in self.graph.inputs.items() if one.role in (Role.PARAMETER, Role.BUFFER)]
        self._of_weights = {*weights, *self.graph.constants}

    def result(self) -> OpGraph:
        for op in self.graph.ops:
            if op.bodies:
                op = replace(op, bodies=tuple(sums_in_order(body) for body in op.bodies))
            is_float = any(self.values[v].dtype.is_floating_point for v in op.makes())
            if is_float and op.target in (*_PRODUCTS, *_SUMS, *_UNORDERED):
                self._require_known(op)
            if is_float and op.target in _PRODUCTS:
                self._add_product(op)
            elif is_float and op.target in _SUMS:
                self._add_sum(op)
            elif op.target == _LAYER_NORM and len(self.values[op.args[0].value].shape) == 2 and len(op.args[2]) == 1:
                self._add_layer_norm(op)
            elif is_float and op.target in _SOFTMAX and self._is_of_rows(op):
                self._add_softmax(op)
            else:
                self.ops.append(op)
            if op.reads() and self._of_weights.issuperset(op.reads()) and not op.writes:
                self._of_weights.update(op.makes())
        return with_ops(self.graph, self.ops, self.graph.outputs, self.constants, self.values)

    def _require_known(self, op: Op) -> None:
        dtypes = {self.values[v].dtype for v in (*op.reads(), *op.makes())}
        scaled = [key for key in ("alpha", "beta") if op.kwargs.get(key, 1) != 1]
        if op.target not in _UNORDERED and not scaled and dtypes <= {*_FLOATS} and len(dtypes) == 1:
            return
        types = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ValueError(
            f"batch_invariant cannot order the sums of {op.target} of {types}{' with ' if scaled else ''}"
            f"{' and '.join(scaled)}, in {op.source or 'the model'}. It serves matrix products and sums in float32 and "
            "float64; leave the option out for this model."
        )

    def _add_product(self, op: Op) -> None:
        """Add a product; its terms are in order if both factors depend on the batch, as in gradients of weights."""
        *first, a, b = op.args
        in_order = not any(ref.value in self._of_weights for ref in (a, b))
        a, b = (ref if _has_unit_stride(self.values[ref.value]) else self._dense(op, ref) for ref in (a, b))
        made = op.makes()[0]
        added = [self._dense(op, ref) for ref in first] if first else [None]
        if not first or self.values[first[0].value].shape[-1:] == self.values[made].shape[-1:]:
            self._emit(op, PRODUCT, (*added, a, b, in_order), made)
            return
        value = self.values[made]
        product = self._emit(op, PRODUCT, (None, a, b, in_order), self.values.new(value.shape, value.dtype))
        self._emit(op, "aten.add.Tensor", (Ref(product), *first), made)

    def _add_sum(self, op: Op) -> None:
        """Add a sum over rows in order, then a sum over the other dimensions; or a sum along each row, in order."""
        operand, (made,) = op.args[0], op.makes()
        outer = _outermost(self.values[operand.value])
        if outer is not None and not _has_rows(self.values[operand.value], outer):
            operand = self._dense(op, operand)
            outer = _outermost(self.values[operand.value])
        value, result = self.values[operand.value], self.values[made]
        reduced = _reduced(op, len(value.shape))
        if "sum" in op.target and len(value.shape) > 1 and reduced == {len(value.shape) - 1} and is_dense(value):
            total = self._view(op, self._sum_of_rows(op, operand).value, result.shape)
            self._emit(op, "aten.clone.default", (Ref(total),), made)  # other values may be views of the sum
            return
        if outer is None or outer not in reduced:
            self.ops.append(replace(op, args=(operand, *op.args[1:])))
            return
        shape = tuple(1 if d == outer else size for d, size in enumerate(value.shape))
        is_mean = "mean" in op.target
        if math.prod(shape) == result.numel and not is_mean and is_dense(result):
            self._emit(op, ROW_SUM, (operand, outer), made)
            return
        total = self._emit(op, ROW_SUM, (operand, outer), self.values.new(shape, value.dtype))
        last = self.values.new(result.shape, value.dtype) if is_mean else made
        self.ops.append(replace(op, args=(Ref(total), *op.args[1:]), outputs=(last,)))
        if is_mean:
            self._emit(op, "aten.div.Tensor", (Ref(last), value.shape[outer]), made)

    def _add_layer_norm(self, op: Op) -> None:
        """Add the backward pass of a layer norm, with gradients of weight and bias as sums of rows."""
        grad, x, _, mean, rstd, *_ = op.args
        to_x, to_weight, to_bias = op.outputs
        if to_x is not None:
            self.ops.append(replace(op, args=(*op.args[:-1], [True, False, False]), outputs=(to_x, None, None)))
        if to_weight is not None:
            value, number = self.values[x.value], x
            for target, other in (("sub", mean), ("mul", rstd), ("mul", grad)):
                made = self.values.new(value.shape, value.dtype)
                number = Ref(self._emit(op, f"aten.{target}.Tensor", (number, other), made))
            self._emit(op, ROW_SUM, (number, 0), to_weight)
        if to_bias is not None:
            self._emit(op, ROW_SUM, (self._dense(op, grad), 0), to_bias)

    def _is_of_rows(self, op: Op) -> bool:
        """Return whether a softmax, or its backward pass, goes along the adjacent elements of one type."""
        operands = [self.values[v] for v in (*op.reads(), *op.makes())]
        dim = op.args[1] if op.target == _SOFTMAX[0] else op.args[2]
        last = len(operands[0].shape) - 1
        return dim % (last + 1) == last and all(map(is_dense, operands)) and len({one.dtype for one in operands}) == 1

    def _add_softmax(self, op: Op) -> None:
        """Add a softmax, or its backward pass, with sums in order: hidden keys are zeros anywhere in a row."""
        (made,) = op.makes()
        value = self.values[made]

        def put(target: str, *args: Any, shape: Sequence[int] = value.shape, to: int | None = None) -> Ref:
            return Ref(self._emit(op, target, args, self.values.new(shape, value.dtype) if to is None else to))

        if op.target == _SOFTMAX[0]:
            largest = put("aten.amax.default", op.args[0], [-1], True, shape=(*value.shape[:-1], 1))
            powers = put("aten.exp.default", put("aten.sub.Tensor", op.args[0], largest))
            put("aten.div.Tensor", powers, self._sum_of_rows(op, powers), to=made)
        else:
            grad, out = op.args[:2]
            total = self._sum_of_rows(op, put("aten.mul.Tensor", grad, out))
            put("aten.mul.Tensor", put("aten.sub.Tensor", grad, total), out, to=made)

    def _sum_of_rows(self, op: Op, ref: Ref) -> Ref:
        """Return the sums along the last dimension, which is kept: a product with a column of ones."""
        value = self.values[ref.value]
        ones = self.values.new((value.shape[-1], 1), value.dtype)
        self.constants[ones] = torch.ones(value.shape[-1], 1, dtype=value.dtype)
        num_rows = math.prod(value.shape[:-1])
        rows = self._view(op, ref.value, (num_rows, value.shape[-1]))
        sums = self.values.new((num_rows, 1), value.dtype)
        total = self._emit(op, PRODUCT, (None, Ref(rows), Ref(ones), True), sums)
        return Ref(self._view(op, total, (*value.shape[:-1], 1)))

    def _view(self, op: Op, v: int, shape: Sequence[int]) -> int:
        """Add a view of a contiguous value in another shape."""
        value = self.values[v]
        made = self.values.add(replace(value, shape=tuple(shape), stride=dense_strides(shape), producer=None))
        return self._emit(op, "aten.view.default", (Ref(v), list(shape)), made)

    def _emit(self, op: Op, target: str, args: tuple[Any, ...], made: int, **kwargs: Any) -> int:
        self.ops.append(replace(op, target=target, args=args, kwargs=kwargs, outputs=(made,), writes=()))
        return made

    def _dense(self, op: Op, ref: Ref) -> Ref:
        """Return a value, or a contiguous copy of it."""
        value = self.values[ref.value]
        if is_dense(value):
            return ref
        options = {"memory_format": torch.contiguous_format}
        return Ref(self._emit(op, "aten.clone.default", (ref,), self.values.new(value.shape, value.dtype), **options))


def _reduced(op: Op, num_dims: int) -> set[int]:
    """Return the dimensions that a sum or mean removes."""
    listed = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim")
    dims = [listed] if isinstance(listed, int) else listed or range(num_dims)
    return {d % num_dims for d in dims} if num_dims else set()


def _outermost(value: Value) -> int | None:
    """Return the dimension whose neighbors are farthest apart in memory; None if there is one element or none."""
    long = [d for d, size in enumerate(value.shape) if size > 1]
    return max(long, key=lambda d: value.stride[d] or math.inf) if long and value.numel else None


def _has_rows(value: Value, outer: int) -> bool:
    """Return whether the elements at each index of dimension `outer` are adjacent, in the order of a dense tensor."""
    inner = [d for d in range(len(value.shape)) if d != outer]
    form = replace(value, shape=tuple(value.shape[d] for d in inner), stride=tuple(value.stride[d] for d in inner))
    return is_dense(form)


def is_dense(value: Value) -> bool:
    """Return whether a value is contiguous and has no marks."""
    return not any(value.marks) and is_contiguous(value)


def _has_unit_stride(value: Value) -> bool:
    """Return whether a factor has adjacent rows or adjacent columns, as the kernel of products needs it."""
    steps = [step for step, size in zip(value.stride[-2:], value.shape[-2:], strict=True) if size > 1]
    return not any(value.marks) and (not steps or 1 in steps)
