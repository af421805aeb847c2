"""A chain: element-wise operations written as one program that runs block by block."""

from dataclasses import dataclass
from enum import Enum

from popgeo.capture.op_graph import Number

CHAIN = "popgeo.chain.default"

# In the order of TABLE in native/csrc/chains.cpp, with the number of operands.
_COMPUTED = {
    1: "copy neg abs sign not exp expm1 log log1p sqrt rsqrt reciprocal tanh sigmoid silu sin cos shifted_softplus",
    2: "add sub mul div max min gt ge lt le eq ne and or "
    "shifted_softplus_backward silu_backward sigmoid_backward tanh_backward",
    3: "where fma fnma lerp",
}
OPERANDS = {name: count for count, names in _COMPUTED.items() for name in names.split()}
_MEMORY = ("fill", "load_float", "load_bool", "load_int64", "load_int32", "store_float", "store_bool")
SUMS = ("sum_rows", "sum_columns", "sum_all")
CODES = {name: code for code, name in enumerate(OPERANDS)} | dict(zip((*_MEMORY, *SUMS), range(100, 110), strict=True))


class Kind(Enum):
    """What a step of a chain works on."""

    STEP = "step"
    VALUE = "value"
    NUMBER = "number"


@dataclass(frozen=True)
class Source:
    """An operand of a step: an earlier step, a value as it is before the chain runs, or a number; each by position."""

    kind: Kind
    index: int


@dataclass(frozen=True)
class Step:
    """One instruction: its name among `OPERANDS` and its operands; `sum` and `fill` take one."""

    code: str
    operands: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where elements of a chain lie in a value.

    Attributes:
        value: In the graph.
        strides: Elements between neighbours, per dimension of the chain; 0 where it has one for all.
    """

    value: int
    strides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A program for each element of a shape.

    Attributes:
        shape: Sizes of the dimensions; none is 1.
        steps: In order.
        operands: What `VALUE` sources name.
        numbers: What `NUMBER` sources name.
        results: The step that ends up in each value; for a sum a value with stride 0 along what is summed.
        num_ops: Operations of the graph that it stands for.
    """

    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    operands: tuple[Place, ...]
    numbers: tuple[float | Number, ...]
    results: tuple[tuple[int, Place], ...]
    num_ops: int

    def __repr__(self) -> str:
        return f"Chain({self.num_ops} operations on {list(self.shape)})"


def collapse(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The fewest dimensions that describe these elements, where neighbours that lie in a row everywhere are joined.

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
