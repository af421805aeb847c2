"""Operations put together by hand, for what the rules of the machine model make of their arguments."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from popgeo.capture.op_graph import Number, Op, OpGraph, Ref, Value
from popgeo.capture.operations import name_of
from popgeo.ipu.cost import distances, elementwise, gather, matmul, movement, operands, reduce, scatter, sorting
from popgeo.ipu.cost.operands import Rule
from popgeo.ipu.cost.serialized import serialized
from tests.support.cost_calls import EIGHT, TIGHT, Call, machine

RULES: dict[str, Rule] = {}
for family in (distances, elementwise, gather, matmul, movement, reduce, scatter, sorting):
    RULES |= family.RULES
HALF, LONG, BYTE, BOOL, DOUBLE = torch.float16, torch.int64, torch.int8, torch.bool, torch.float64
ON_EIGHT = machine(EIGHT)


@dataclass(frozen=True)
class Array:
    """A tensor among the arguments of an operation."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]

    def __str__(self) -> str:
        strides = "" if self.stride == _in_order(self.shape) else f" by {list(self.stride)}"
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{strides}"

    def value(self, number: int) -> Value:
        return Value(
            shape=self.shape, stride=self.stride, offset=0, dtype=self.dtype, storage=number, producer=None
        )  # fmt: skip


def _in_order(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.empty(list(shape), device="meta").stride())


def array(*shape: int, dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None) -> Array:
    return Array(shape, dtype, _in_order(shape) if stride is None else stride)


def index(*shape: int, stride: tuple[int, ...] | None = None) -> Array:
    return array(*shape, dtype=LONG, stride=stride)


def operation(
    target: str, args: Sequence[Any], made: Sequence[Array | None], writes: Sequence[Array], **kwargs: Any
) -> tuple[OpGraph, Op]:
    """A graph of one operation."""
    values: list[Value] = []

    def put(argument: Any) -> Any:
        if isinstance(argument, Array):
            values.append(argument.value(len(values)))
            return Ref(len(values) - 1)
        return [put(item) for item in argument] if isinstance(argument, list) else argument

    placed = tuple(put(argument) for argument in args)
    outputs = tuple(None if result is None else put(result).value for result in made)
    changed = tuple(put(result).value for result in writes)
    op = Op(target=target, args=placed, kwargs=kwargs, outputs=outputs, writes=changed)
    return OpGraph(ops=(op,), values=tuple(values), inputs={}, outputs=()), op


def rule(
    target: str, *args: Any, made: Sequence[Array | None] = (), writes: Sequence[Array] = (), **kwargs: Any
) -> Call:
    """What the rule of an operation plans for it; `aten.` and the overload are left out."""
    full = (target if target.startswith("popgeo.") else f"aten.{target}") + ("" if ".." in target else ".default")
    graph, op = operation(full, args, made, writes, **kwargs)
    shown = [f"{name}={value}" for name, value in kwargs.items()]
    into = [*map(str, made), *(f"in {value}" for value in writes)]
    text = [_words(argument) for argument in args]
    return Call(
        name=target,
        function=lambda *_: RULES[name_of(full)](graph, op, ON_EIGHT),
        args=(*text, *shown, "->", *into),
    )


def _words(argument: Any) -> str:
    return "[" + ", ".join(map(_words, argument)) + "]" if isinstance(argument, list) else str(argument)


TABLE, SMALL, NUMBER = array(8, 16), array(5, 16), array()
GATHER = [
    *(rule("index_select", TABLE, dim, index(5)) for dim in (0, 1, -1)),
    rule("index_select", array(1, 16), 0, index(5)),
    rule("index_select", array(0, 16), 0, index(0)),
    rule("index_select", NUMBER, 0, index(1)),
    *(rule("embedding", table, index(3, 5)) for table in (TABLE, array(1, 16), array(0, 16), array(8, 16, dtype=HALF))),
    *(rule(name, array(8, 16, 3), indices) for name in ("index", "_unsafe_index") for indices in (
        [index(5)], [None, index(5)], [index(5), index(1)], [index(2), None, index(9)], [None, index(2), index(1, 1)],
    )),
    *(rule("gather", TABLE, dim, names) for dim in (0, 1, -1, -2) for names in (
        index(5, 16), index(5, 1), index(1, 5), index(5, 16, stride=(1, 0)), index(5, 16, stride=(0, 1)), index(0, 16),
        index(1, 1),
    )),
    *(rule("gather", array(9), dim, names) for dim in (0, -1) for names in (index(4), index(1), index(0))),
    rule("gather", NUMBER, 0, index()),
    rule("gather", array(0, 3), 0, index(0, 3)),
    rule("gather", array(0, 3), 0, index(2, 3, stride=(1, 0))),
    rule("gather", array(1, 1, 4), 2, index(1, 1, 3)),
    rule("popgeo.gather", TABLE, index(5), made=[SMALL]),
    rule("popgeo.gather", array(0, 16), index(0), made=[array(0, 16)]),
    rule("popgeo.gather_csr", array(1, 16, dtype=HALF), index(5), made=[SMALL]),
]  # fmt: skip

REDUCTIONS = ("sum", "add", "mean", "prod", "multiply", "amax", "amin")
SCATTER = [
    *(rule(name, table, dim, index(5), SMALL) for name in ("index_add", "index_copy") for dim in (0, 1)
      for table in (TABLE, array(1, 16), array(0, 16))),
    rule("index_add", NUMBER, 0, index(1), array(1)),
    *(rule("index_reduce", TABLE, 0, index(5), SMALL, kind) for kind in REDUCTIONS),
    *(rule(name, TABLE, 0, names, SMALL) for name in ("scatter_add", "scatter")
      for names in (index(5, 16), index(5, 16, stride=(1, 0)))),
    *(rule("scatter_reduce", array(8, 16, dtype=kind), 0, index(5, 16, stride=(1, 0)), SMALL, by)
      for kind in (torch.float32, HALF) for by in REDUCTIONS),
    rule("scatter_reduce", TABLE, 0, index(5, 16), SMALL, reduce="amax"),
    rule("scatter_reduce", TABLE, 0, index(5, 16), SMALL, reduce="mean"),
    rule("scatter_reduce", TABLE, 0, index(5, 16), SMALL, "amax", True),
    rule("scatter_reduce", TABLE, 0, index(5, 16), SMALL),
    rule("scatter_reduce", array(1, 1), 0, index(5, 1), array(5, 1), "mean"),
    rule("scatter_reduce", array(0, 3), 0, index(0, 3), array(0, 3), "mean"),
    *(rule(name, TABLE, indices, SMALL, *accumulate)
      for name in ("index_put", "_index_put_impl", "_unsafe_index_put")
      for indices in ([index(5)], [index(5), index(5)], [None, index(3)])
      for accumulate in ((), (False,), (True,), (True, False))),
    *(rule("embedding_dense_backward", array(places, 16), index(places), rows, -1, False, made=[array(rows, 16)])
      for rows in (0, 1, 8) for places in (0, 5)),
    rule("embedding_dense_backward", array(5, 0), index(5), 8, -1, False, made=[array(8, 0)]),
    rule("embedding_dense_backward", array(5, 1), index(5), 8, -1, False, made=[array(8, 1)]),
    *(rule(f"popgeo.{name}", source, index(source.shape[0]), made=[array(rows, 16)])
      for name in ("scatter_sum", "scatter_mul", "scatter_max", "scatter_min")
      for source in (SMALL, array(0, 16), array(1, 16, dtype=HALF)) for rows in (0, 1, 8)),
    *(rule("popgeo.segment_sum", SMALL, index(rows + 1), made=[array(rows, 16)]) for rows in (0, 1, 8)),
    rule("popgeo.scatter_max", array(1, 1), index(1), made=[array(9, 1)]),
]  # fmt: skip

LEFT, RIGHT = array(40, 37), array(37, 20)
MATMUL = [
    *(rule("mm", array(40, 37, dtype=kind), array(37, 20, dtype=kind))
      for kind in (torch.float32, HALF, torch.bfloat16, DOUBLE, BYTE)),
    rule("mm", array(4, 0), array(0, 6)), rule("mm", array(0, 3), array(3, 6)), rule("mm", array(4, 1), array(1, 6)),
    rule("bmm", array(12, 5, 4), array(12, 4, 6)), rule("bmm", array(0, 5, 4), array(0, 4, 6)),
    rule("bmm", array(12, 5, 1), array(12, 1, 6)),
    rule("matmul", array(3, 2, 5, 4), array(3, 2, 4, 6)), rule("matmul", array(7, 3, 8), array(8, 5)),
    rule("matmul", array(3, 8), array(7, 8, 5)), rule("matmul", LEFT, RIGHT), rule("matmul", array(37), RIGHT),
    rule("mv", LEFT, array(37)), rule("dot", array(37), array(37)), rule("vdot", array(1), array(1)),
    *(rule("addmm", bias, LEFT, RIGHT, made=made) for bias in (array(20), array(40, 20), array())
      for made in ([array(40, 20)], [])),
    rule("addmm", array(20, dtype=HALF), LEFT, RIGHT, made=[array(40, 20, dtype=HALF)]),
    rule("addmm", array(1), array(1, 37), array(37, 1), made=[array(1, 1)]),
    rule("addmm", array(0), LEFT, array(37, 0), made=[array(40, 0)]),
    rule("addmv", array(40), LEFT, array(37), made=[array(40)]),
    rule("baddbmm", array(12, 5, 6), array(12, 5, 4), array(12, 4, 6), made=[array(12, 5, 6)]),
    *(rule("linear", x, weight, *bias, made=[array(*x.shape[:-1], *weight.shape[:-1])])
      for x, weight in ((LEFT, array(20, 37)), (array(3, 5, 37), array(20, 37)), (array(37), array(20, 37)))
      for bias in ((), (None,), (array(20),))),
    rule("linear", array(37), array(37), array(), made=[array()]),
]  # fmt: skip

REDUCE = [
    *(rule(name, array(40, 30, dtype=kind), [1], made=[array(*left, dtype=kind)])
      for name in ("sum", "mean", "norm", "linalg_vector_norm", "logsumexp", "var", "std", "var_mean", "std_mean")
      for kind in (torch.float32, HALF) for left in ((40,), (30,), (40, 1), (1, 30), ())),
    *(rule(name, array(40, 30), made=[array(40)]) for name in ("prod", "amax", "amin", "max", "min", "aminmax",
      "argmax", "argmin", "any", "all", "count_nonzero", "nansum", "median", "mode")),
    *(rule(name, NUMBER, made=[NUMBER]) for name in ("sum", "logsumexp", "var")),
    *(rule("sum", array(500, last), [0], made=[array(1, last)]) for last in (1, 2)),
    *(rule("sum", array(9, 30, 16), [0], made=[array(*left)])
      for left in ((9, 16), (30, 16), (9, 30), (16,), (9,), (1, 30, 16), (9, 1, 16), (9, 30, 1))),
    *(rule(name, array(0, 5), made=[array(5)]) for name in ("sum", "logsumexp", "norm", "var")),
    *(rule(name, array(5, 0), made=[array(0)]) for name in ("sum", "logsumexp")),
    *(rule(name, array(*shape, dtype=kind), 0) for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
      for shape in ((500,), (0,), (1,), ()) for kind in (torch.float32, HALF)),
]  # fmt: skip

LONG_ROWS = array(40, 90)
SORTING = [
    *(rule("topk", LONG_ROWS, *rest) for rest in ((3,), (3, 0), (3, 1), (3, -1), (40, 1, True, True), (1, 0))),
    rule("topk", LONG_ROWS, 3, dim=0), rule("topk", array(5, 0), 0), rule("topk", NUMBER, 1), rule("topk", array(7), 2),
    rule("topk", array(0, 5), 2), rule("topk", array(40, 90, dtype=HALF), 3), rule("topk", array(5, 1), 1),
    *(rule(name, LONG_ROWS, *rest) for name in ("sort", "argsort", "msort", "searchsorted", "bucketize")
      for rest in ((), (0,), (True, 0), (0, True), (False, -2, True))),
    *(rule(name, value) for name in ("sort", "kthvalue") for value in (NUMBER, array(0, 5), array(5, 0), array(5, 1))),
    *(rule(name, array(5, 6, 90), *(3,) * (name != "sort")) for name in ("topk", "sort", "kthvalue")),
    rule("sort", LONG_ROWS, dim=0), rule("sort", array(40, 90, dtype=HALF), dim=0),
    *(rule("kthvalue", LONG_ROWS, *rest) for rest in ((3,), (3, 0), (3, 1), (3, 0, True), (3, -2))),
]  # fmt: skip

DISTANCES = [
    *(rule(name, x, y) for name in ("_cdist_forward", "_euclidean_dist", "cdist") for x, y in (
        (array(30, 3), array(20, 3)), (array(2, 30, 3), array(2, 20, 3)), (array(30, 0), array(20, 0)),
        (array(0, 3), array(0, 3)), (array(1, 1), array(1, 1)), (array(30, 3, dtype=HALF), array(20, 3, dtype=HALF)),
    )),
    rule("cdist", array(30, 1), array(20, 1)),
    rule("_cdist_backward", array(2, 30, 20), array(2, 30, 3), array(2, 20, 3), 2.0, array(1)),
    *(rule("_cdist_backward", array(*x.shape[:-1], y.shape[-2]), x, y, 2.0, array(1)) for x, y in (
        (array(30, 3), array(20, 3)), (array(30, 0), array(20, 0)), (array(0, 3), array(0, 3)),
        (array(1, 1), array(1, 1)), (array(90, 3, dtype=HALF), array(200, 3, dtype=HALF)),
    )),
]  # fmt: skip

MOVEMENT = [
    *(rule("cat", [array(40, 90)] * many, made=[array(40 * many, 90)]) for many in (1, 2, 50)),
    rule("clone", array(40, dtype=HALF), made=[array(40, dtype=HALF)]), rule("clone", array(0), made=[array(0)]),
    rule("clone", array(1), made=[array(1)]), rule("clone", index(90), made=[index(90)]),
    rule("copy_", array(500), array(1), writes=[array(500)]),
    rule("repeat", array(5), [90], made=[array(450)]), rule("_foreach_copy_", [array(500)] * 3, [array(500)] * 3,
        writes=[array(500)] * 3),
    rule("eye", 500, made=[array(500, 500)]), rule("tril_indices", made=[index(2, 500)]),
    rule("constant_pad_nd", array(30), made=[array(500)]), rule("im2col", made=[array(500)]),
    *(rule("slice_backward", array(30, dtype=kind), [size], made=[array(size)]) for size in (0, 1, 500)
      for kind in (torch.float32, HALF)),
    rule("zeros", made=[array(500, dtype=HALF)]), rule("zeros", made=[array(0)]), rule("ones", made=[array(1)]),
    rule("fill_", array(500), 1.0), rule("new_zeros", array(3), [500], made=[array(500), array(200)]),
    rule("view", array(3)), rule("popgeo.identity_loss", array(40), made=[NUMBER]),
]  # fmt: skip

X, WHOLE = array(20, 30), index(20, 30)
ELEMENTWISE = [
    *(rule(name, X, made=[X]) for name in elementwise._PASSES if not name.startswith(("popgeo.", "_foreach"))),
    *(rule(name, WHOLE, WHOLE, made=[WHOLE]) for name in ("add", "sub", "mul", "maximum", "div", "addcmul", "neg",
      "lerp", "eq", "where", "exp", "hardswish", "softplus")),
    *(rule(name, X, made=[X]) for name in ("popgeo.shifted_softplus", "popgeo.shifted_softplus_backward")),
    *(rule(name, [X, array(10)], [X, array(10)], writes=[X, array(10)])
      for name in ("_foreach_add_", "_foreach_mul_", "_foreach_div_", "_foreach_sqrt_")),
    *(rule("add", *operands, made=[X]) for operands in (
        (X, 2), (X, 2.5), (2, X), (X, Number(0, 3.0)), (X, X), (X, array(30)), (X, NUMBER), (X, array(1, 30)),
        (X, array(20, 30, stride=(1, 0))), (X, array(20, 30, stride=(0, 0))), (X, WHOLE), (WHOLE, X), (array(30), X),
        (X, array(2)), (X, array(20, 30, dtype=HALF)), (array(20, 30, dtype=HALF), X),
    )),
    *(rule("mul", *operands, made=[WHOLE]) for operands in ((WHOLE, 2), (WHOLE, index(30)))),
    rule("logical_and", array(500, dtype=BOOL), array(500, dtype=BOOL), made=[array(500, dtype=BOOL)]),
    rule("add", array(500, dtype=BOOL), array(500, dtype=BOOL), made=[array(500, dtype=BOOL)]),
    rule("add", array(500, dtype=BYTE), array(500, dtype=BYTE), made=[array(500, dtype=BYTE)]),
    rule("relu", array(0), made=[array(0)]), rule("relu", array(1), made=[array(1)]),
    rule("rand", [90], made=[array(90)]),
    rule("native_dropout", X, 0.5, True, made=[X, array(20, 30, dtype=BOOL)]),
    rule("native_dropout", array(3, 30), 0.5, True, made=[array(3, 30), X]),
    rule("softplus", array(30), made=[X]), rule("native_dropout_backward", X, array(20, 30, dtype=BOOL), 2.0, made=[X]),
    rule("relu_", X), rule("relu_", X, writes=[X]), rule("relu", X, made=[None, X]),
    *(rule("pow", X, exponent, made=[X])
      for exponent in (2, 3, 4, 0.5, -0.5, -1, 1, 0, 1.7, 2.0, -2, -3.0, Number(0, 2.0), array(20, 30))),
    rule("pow", 2, X, made=[X]), rule("pow", WHOLE, 2, made=[WHOLE]),
    *(rule(name, array(500, dtype=before), made=[array(500, dtype=after)]) for name in ("_to_copy", "to")
      for before, after in itertools.product((torch.float32, HALF, BYTE, LONG), repeat=2)),
    rule("popgeo.round_stochastic", array(500), made=[array(500, dtype=HALF)]),
]  # fmt: skip

VALUES = [
    array(8, 3), array(8, 3, stride=(1, 0)), array(0, 3, stride=(0, 0)), array(0), array(), array(1, stride=(0,)),
    array(5, stride=(0,)), array(4, 3, 2, stride=(2, 0, 1)), array(1), array(7, dtype=HALF), array(7, dtype=BOOL),
    array(7, dtype=LONG),
]  # fmt: skip
OPERANDS = [
    Call(name=function.__name__, function=lambda _, f=function, v=value: f(v.value(0)), args=(str(value),))
    for function in (operands.width, operands.distinct) for value in VALUES
]  # fmt: skip


def in_parts(target: str, *args: Any, outputs: int, parts: int) -> Call:
    graph, op = operation(f"aten.{target}.default", args, [], [])
    return Call(
        name=f"serialized {target}",
        function=lambda *_: serialized(graph, op, ON_EIGHT if parts < 6 else machine(TIGHT), outputs, parts) or "none",
        args=(*map(str, args), outputs, parts),
    )


SERIALIZED = [
    *(in_parts("mm", LEFT, RIGHT, outputs=outputs, parts=parts) for outputs in (40, 37, 20, 21) for parts in (1, 3, 6)),
    in_parts("linear", LEFT, array(20, 37), outputs=20, parts=3),
    in_parts("matmul", LEFT, array(37), outputs=40, parts=3),
    *(in_parts(name, *args, outputs=outputs, parts=3) for outputs in (20, 37, 40, 120) for name, args in (
        ("matmul", (array(3, 40, 37), RIGHT)), ("addmm", (array(20), LEFT, RIGHT)),
        ("linear", (LEFT, array(20, 37), array(20))), ("mm", (array(40, 37, dtype=HALF), array(37, 20, dtype=HALF))),
        ("bmm", (array(3, 40, 37), array(3, 37, 20))), ("relu", (LEFT,)),
        ("mm", (array(40, 37, dtype=BYTE), array(37, 20, dtype=BYTE))),
    )),
]  # fmt: skip

CALLS: dict[str, list[Call]] = {
    "rules of gather": GATHER,
    "rules of scatter": SCATTER,
    "rules of matmul": MATMUL,
    "rules of reduce": REDUCE,
    "rules of sorting": SORTING,
    "rules of distances": DISTANCES,
    "rules of movement": MOVEMENT,
    "rules of elementwise": ELEMENTWISE,
    "operands": OPERANDS,
    "serialized": SERIALIZED,
}
