"""Operations that only copy elements, in a pattern known beforehand, or make constants."""

from typing import Any

import numpy as np
import torch

from popgeo.capture.op_graph import Number, Op, overload, substitute
from popgeo.ipu.cost.plan import name_of
from popgeo.ipu.tiles.lower import elementwise
from popgeo.ipu.tiles.lower.builder import Lowering, Scope, flat
from popgeo.ipu.tiles.steps import Operand, Region, Scalar, Vertex

MOVES = {
    "cat", "stack", "repeat", "flip", "roll", "tril", "triu", "constant_pad_nd", "contiguous", "reshape",
    "slice_backward", "select_backward", "diagonal_backward", "slice_scatter", "select_scatter", "_unsafe_view",
    "_reshape_alias", "view_copy", "t_copy", "permute_copy", "transpose_copy", "expand_copy", "squeeze_copy",
    "unsqueeze_copy", "slice_copy", "select_copy", "diagonal_copy",
}  # fmt: skip
FILLS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "ones": 1, "ones_like": 1, "new_ones": 1, "empty": 0,
    "empty_like": 0, "new_empty": 0, "empty_strided": 0, "new_empty_strided": 0,
}  # fmt: skip
VALUE_AT = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}


def lowering_of(scope: Scope, op: Op) -> Lowering | None:
    """How elements are copied in a pattern known beforehand, or made of a number; None for what depends on data."""
    name = _short(op)
    if (name in FILLS or name in VALUE_AT) and (name != "fill" or len(op.reads()) == 1):
        return _fill
    if name == "arange":
        return _arange
    if name == "print_tensor":  # nothing is printed, since no tile has the tensor
        return _copy_whole
    if name in MOVES or looks_only(op.target):
        return _move
    return elementwise.lowering_of(scope, op)


def looks_only(target: str) -> bool:
    """Whether an operation returns a view; in memory of its own it copies in the view's pattern.

    Example:
        >>> looks_only("aten.t.default"), looks_only("aten.clone.default")
        (True, False)
    """
    returns = overload(target)._schema.returns  # type: ignore[attr-defined]
    return [item.alias_info is not None and not item.alias_info.is_write for item in returns] == [True]


def _short(op: Op) -> str:
    return name_of(op.target).partition(".")[2]


def _fill(scope: Scope, op: Op) -> None:
    """Each tile fills its elements."""
    name = _short(op)
    number = FILLS[name] if name in FILLS else op.args[VALUE_AT[name]]
    (made,) = op.outputs
    assert made is not None
    fill(scope, scope.region(made), number)


def fill(scope: Scope, out: Region, number: Any) -> None:
    """Gives each element of a region a number, which may be one that is given anew at each run."""
    dtype = scope.builder.dtype(out)
    reads: tuple[Region, ...] = ()
    if isinstance(number, Number):
        reads, number = (Region(variable=scope.builder.numbers, elements=np.array(number.slot)),), Scalar(0)

    def vertex(tile: int, where: np.ndarray) -> Vertex:
        writes = (flat(out, where),)
        return Vertex(tile=tile, operation="fill", reads=reads, writes=writes, arguments=(len(where), number, dtype))

    scope.builder.compute(scope.label, (vertex(tile, where) for tile, where in scope.builder.pieces(out)))


def _arange(scope: Scope, op: Op) -> None:
    """Each tile counts from its own first element."""
    (made,) = op.outputs
    assert made is not None
    out = scope.region(made)
    whole = overload(op.target)(*op.args, **{k: v for k, v in op.kwargs.items() if k in ("dtype",)})

    def vertex(tile: int, where: np.ndarray) -> Vertex:
        return Vertex(tile=tile, operation="constant", reads=(), writes=(flat(out, where),), arguments=(whole[where],))

    scope.builder.compute(scope.label, (vertex(tile, where) for tile, where in scope.builder.pieces(out)))


def _move(scope: Scope, op: Op) -> None:
    """The pattern is found by moving the numbers of the elements instead of the elements."""
    (made,) = op.outputs
    assert made is not None
    sources: list[Region] = []
    start = 1  # 0 marks what no operand gives

    def numbered(v: int) -> torch.Tensor:
        nonlocal start
        region = scope.region(v)
        sources.append(region)
        ids = torch.arange(start, start + region.elements.size).reshape(region.elements.shape)
        start += region.elements.size
        return ids

    arguments = substitute(op.args, numbered)
    value: Any = 0
    if _short(op) == "constant_pad_nd" and len(arguments) > 2:
        *arguments, value = arguments
    pattern = overload(op.target)(*arguments).numpy().ravel()
    assemble(scope, scope.region(made), sources, pattern, value)


def assemble(scope: Scope, out: Region, sources: list[Region], pattern: np.ndarray, value: Any = 0) -> None:
    """Copies into each element of `out` the element that `pattern` numbers, counted from 1 over all sources.

    Args:
        scope: What is lowered.
        out: What to write.
        sources: What to copy from.
        pattern: For each element of `out` the number of its source, 0 for `value`. [out elements]
        value: What stands where nothing is copied.
    """
    sizes = [region.elements.size for region in sources]
    firsts = np.cumsum([1, *sizes])
    dtype = scope.builder.dtype(out)

    def vertex(tile: int, where: np.ndarray) -> Vertex:
        wanted = pattern[where]
        reads: list[Region] = []
        places, parts = [], []
        for region, first, size in zip(sources, firsts[:-1], sizes, strict=True):
            here = np.flatnonzero((wanted >= first) & (wanted < first + size))
            if len(here):
                parts.append(Operand(len(reads)))
                reads.append(flat(region, wanted[here] - first))
                places.append(here)
        return Vertex(
            tile=tile,
            operation="assemble",
            reads=tuple(reads),
            writes=(flat(out, where),),
            arguments=(len(where), value, dtype, tuple(parts), tuple(places)),
        )

    scope.builder.compute(scope.label, (vertex(tile, where) for tile, where in scope.builder.pieces(out)))


def _copy_whole(scope: Scope, op: Op) -> None:
    (made,) = op.outputs
    assert made is not None
    copy(scope, scope.region(made), scope.region(op.reads()[0]))


def copy(scope: Scope, out: Region, source: Region) -> None:
    """Copies a region element by element to where another lies."""
    assemble(scope, out, [source], np.arange(1, source.elements.size + 1))
