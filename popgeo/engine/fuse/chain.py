"""The data structure of a chain: element-wise operations as one program that runs block by block."""

from dataclasses import dataclass
from enum import Enum

from popgeo.capture.op_graph import Number

CHAIN = "popgeo.chain.default"
EDGE_CHAIN = "popgeo.edge_chain.default"
BLOCK = 1024  # elements, as in chain.h

# Codes by number of operands, in the order of TABLE in native/csrc/chains.cpp.
_COMPUTED = {
    1: "copy neg abs sign not exp expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid silu sin cos shifted_softplus",
    2: "add sub mul div max min gt ge lt le eq ne and or "
    "shifted_softplus_backward silu_backward sigmoid_backward tanh_backward",
    3: "where fma fnma lerp",
}
OPERANDS = {name: count for count, names in _COMPUTED.items() for name in names.split()}
_MEMORY = ("fill", "load_float", "load_bool", "load_int64", "load_int32", "store_float", "store_bool")
SUMS = ("sum_rows", "sum_columns", "sum_all")
AT_ROWS = ("sum_at", "max_at", "min_at")
# Steps whose results are rounded as in torch.
EXACT = {
    "copy", "neg", "abs", "sign", "not", "rsqrt", "reciprocal", "add", "sub", "mul", "div", "max", "min",
    "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "where", "fill",
}  # fmt: skip
JOINING = ("sum", *AT_ROWS)  # steps whose results have fewer elements
CODES = {name: code for code, name in enumerate(OPERANDS)}
CODES |= dict(zip((*_MEMORY, *SUMS, *AT_ROWS), range(100, 113), strict=True))


class Kind(Enum):
    """The kind of an operand of a step."""

    STEP = "step"
    VALUE = "value"
    NUMBER = "number"


@dataclass(frozen=True)
class Source:
    """An operand of a step: an earlier step, a value from before the chain, or a number, each by its position."""

    kind: Kind
    index: int


@dataclass(frozen=True)
class Step:
    """One instruction: its code and its operands.

    `OPERANDS` has the number of operands of a code; the codes `sum`, `fill` and `AT_ROWS` take one operand.
    """

    code: str
    operands: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class ElementPlace:
    """The place of a chain's elements in a value.

    Attributes:
        value: Number of the value in the graph.
        strides: Distance of neighboring elements in each dimension of the chain; 0 if they share one element.
        index: The value with the row of each edge in a table, along the first dimension. Default: no table.
    """

    value: int
    strides: tuple[int, ...]
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A program that runs for each element of a shape.

    Attributes:
        shape: Sizes of the dimensions; none is 1.
        steps: The instructions, in order.
        operands: Places that `VALUE` sources refer to.
        numbers: Numbers that `NUMBER` sources refer to.
        results: The step and the place of each result; the place of a sum has stride 0 in summed dimensions.
        num_ops: Number of the graph's operations in the chain.
        of_edges: Whether the first dimension is that of edges, and some places have an index.
        order: The value with the edges sorted by row, if the chain sums edges at rows.
    """

    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    operands: tuple[ElementPlace, ...]
    numbers: tuple[float | Number, ...]
    results: tuple[tuple[int, ElementPlace], ...]
    num_ops: int
    of_edges: bool = False
    order: int | None = None

    def __repr__(self) -> str:
        return f"Chain({self.num_ops} operations on {list(self.shape)})"

    def collapsed(self, strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Return the collapsed shape and strides of the elements; a chain of edges keeps its first dimension."""
        return (collapse_edges if self.of_edges else collapse)(self.shape, strides)


def collapse(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge dimensions; return the shape with the fewest dimensions, and the strides in these dimensions.

    Two neighboring dimensions are merged if one stride covers both of them, in every place.

    Example:
        >>> collapse((4, 3, 2), [(6, 2, 1), (0, 0, 1)])
        ((12, 2), [(2, 1), (0, 1)])
    """
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for d in reversed(range(len(shape))):
        if sizes and all(own[d] == steps[-1] * sizes[-1] for own, steps in zip(strides, joined, strict=True)):
            sizes[-1] *= shape[d]
            continue
        sizes.append(shape[d])
        for own, steps in zip(strides, joined, strict=True):
            steps.append(own[d])
    return tuple(sizes[::-1]), [tuple(steps[::-1]) for steps in joined]


def collapse_edges(
    shape: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Collapse the dimensions after the first to at least two; the strides also contain the stride of the first.

    Example:
        >>> collapse_edges((5, 2, 3), [(6, 3, 1), (0, 3, 1)])
        ((1, 6), [(6, 0, 1), (0, 0, 1)])
    """
    sizes, inner = collapse(shape[1:], [own[1:] for own in strides])
    missing = 2 - len(sizes)
    return (1,) * missing + sizes, [(own[0], *(0,) * missing, *left) for own, left in zip(strides, inner, strict=True)]


def fits_edges(shape: tuple[int, ...], strides: list[tuple[int, ...]], num_sums: int) -> bool:
    """Return whether the elements of an edge fit in a block as rows and columns, with sums of all or of columns.

    Args:
        shape: Shape of the chain.
        strides: Strides of all places; sums come last.
        num_sums: Number of sums.
    """
    (group, columns, *more), collapsed = collapse_edges(shape, strides)
    if more or group * columns > BLOCK:
        return False
    for edge, row, column in collapsed[len(collapsed) - num_sums :]:
        is_whole = (row == columns or group == 1) and (column == 1 or columns == 1)
        by_columns = edge and not (column and columns > 1) and (row or group == 1)
        if not (is_whole or by_columns or not (edge or row or column)):
            return False
    return True
