"""Lowers operations that copy elements in a known pattern, or make constants."""

from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Number, Op, overload, substitute
from popgeo.capture.operations import Out, operation_of
from popgeo.ipu.tiles.lower.builder import Scope, flat
from popgeo.ipu.tiles.steps import Operand, Region, Scalar

# Position of the argument that fills a tensor; other operations fill with a constant.
_VALUE_AT = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}


def divides(scope: Scope, op: Op) -> bool:
    """Check whether the number that fills a tensor is not itself a tensor."""
    return operation_of(op.target).short_name != "fill" or len(op.reads()) == 1


def lower_fill(scope: Scope, op: Op) -> None:
    """Fill a tensor; each tile fills its elements."""
    operation = operation_of(op.target)
    constant = 1 if operation.out is Out.ONES else 0
    number = op.args[_VALUE_AT[operation.short_name]] if operation.short_name in _VALUE_AT else constant
    fill(scope, scope.region(op.outputs[0]), number)


def fill(scope: Scope, out: Region, number: Any) -> None:
    """Add a compute set that sets each element of a region to a number, which the host may give at each run."""
    dtype = scope.builder.dtype(out)
    reads: tuple[Region, ...] = ()
    if isinstance(number, Number):
        reads, number = (Region(variable=scope.builder.numbers, elements=np.array(number.slot)),), Scalar(0)
    scope.compute(scope.label, "fill", out, lambda tile, where: (reads, (len(where), number, dtype)))


def lower_arange(scope: Scope, op: Op) -> None:
    """Lower aten.arange; each tile has its elements as a constant."""
    out = scope.region(op.outputs[0])
    whole = overload(op.target)(*op.args, **{k: v for k, v in op.kwargs.items() if k in ("dtype",)})
    scope.compute(scope.label, "constant", out, lambda tile, where: ((), (whole[where],)))


def lower_pattern(scope: Scope, op: Op) -> None:
    """Copy elements in a pattern that is known before the program runs.

    The operation runs on the numbers of the elements, which gives the pattern.
    """
    sources = [scope.region(v) for v in op.reads()]
    firsts = np.cumsum([1, *(region.elements.size for region in sources)])  # 0 marks elements without a source
    numbers = {
        v: torch.arange(first, first + region.elements.size).reshape(region.elements.shape)
        for v, region, first in zip(op.reads(), sources, firsts[:-1], strict=True)
    }
    arguments = substitute(op.args, numbers.__getitem__)
    value: Any = 0
    if op.target.startswith("aten.constant_pad_nd.") and len(arguments) > 2:
        *arguments, value = arguments
    pattern = overload(op.target)(*arguments).numpy().ravel()
    assemble(scope, scope.region(op.outputs[0]), sources, pattern, value)


def assemble(scope: Scope, out: Region, sources: list[Region], pattern: np.ndarray, value: Any = 0) -> None:
    """Copy to each element of `out` the element with its number in `pattern`, counted from 1 over all sources.

    Args:
        scope: The scope of the operation.
        out: Region to write.
        sources: Regions to copy from.
        pattern: Number of the source of each element of `out`; 0 for `value`. [out elements]
        value: Number for elements without a source.
    """
    sizes = [region.elements.size for region in sources]
    firsts = np.cumsum([1, *sizes])
    dtype = scope.builder.dtype(out)

    def work(tile: int, where: np.ndarray) -> tuple[list[Region], tuple[Any, ...]]:
        """Return the sources of some elements, and their places."""
        wanted = pattern[where]
        reads: list[Region] = []
        places, parts = [], []
        for region, first, size in zip(sources, firsts[:-1], sizes, strict=True):
            here = np.flatnonzero((wanted >= first) & (wanted < first + size))
            if len(here):
                parts.append(Operand(len(reads)))
                reads.append(flat(region, wanted[here] - first))
                places.append(here)
        return reads, (len(where), value, dtype, tuple(parts), tuple(places))

    scope.compute(scope.label, "assemble", out, work)


def lower_copy(scope: Scope, op: Op) -> None:
    """Lower popgeo.print_tensor(x, ...) as a copy. It prints nothing, since no tile has the whole tensor."""
    copy(scope, scope.region(op.outputs[0]), scope.region(op.reads()[0]))


def copy(scope: Scope, out: Region, source: Region) -> None:
    """Copy a region element by element to another region."""
    assemble(scope, out, [source], np.arange(1, source.elements.size + 1))
