"""The steps of an operation, each computed by torch, give the operation's result."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import popgeo.ops.shifted_softplus  # noqa: F401  makes its operations known to torch
from popgeo.capture.op_graph import Number, Op, Ref, Value, overload
from popgeo.engine.fuse.chain import OPERANDS
from popgeo.engine.fuse.chain_steps import WRITERS, fits

LN2 = math.log(2)
STEPS = {
    "copy": lambda x: x,
    "not": torch.logical_not,
    "silu": F.silu,
    "shifted_softplus": lambda x: F.softplus(x) - LN2,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "shifted_softplus_backward": lambda grad, x: grad * x.sigmoid(),
    "silu_backward": lambda grad, x: grad * (x.sigmoid() + x * x.sigmoid() * (1 - x.sigmoid())),
    "sigmoid_backward": lambda grad, y: grad * y * (1 - y),
    "tanh_backward": lambda grad, y: grad * (1 - y * y),
    "where": torch.where,
    "fma": lambda x, a, b: x + a * b,
    "fnma": lambda x, a, b: x - a * b,
    "lerp": lambda x, y, t: x + t * (y - x),
}


def by_steps(target: str, *args, **kwargs) -> Tensor | None:
    """Compute an operation by its steps, one after another."""

    def write(code: str, *operands) -> Tensor:
        assert len(operands) == OPERANDS.get(code, 1)
        tensors = [o if isinstance(o, Tensor) else torch.tensor(float(o), dtype=torch.float64) for o in operands]
        return tensors[0] if code == "fill" else STEPS.get(code, getattr(torch, code, None))(*tensors)

    return WRITERS[target](write, *args, **kwargs)


X = torch.tensor([-70.0, -2.5, -1.0, -0.3, 0.0, 0.2, 0.5, 1.0, 4.0, 9.5, 19.5, 20.5, 30.0], dtype=torch.float64)
Y, Z = X.flip(0), X.roll(3) / 2
POSITIVE, MASK, OTHER = X.abs() + 0.1, X > 0.3, X.roll(1) > 0
SCALARS = ("neg", "abs", "sign", "exp", "expm1", "tanh", "sigmoid", "silu", "sin", "cos")
ROOTS = ("log", "log1p", "sqrt", "rsqrt", "reciprocal")
CASES = {
    **{f"aten.{name}{end}.default": [(X,)] for name in SCALARS for end in ("", "_")},
    **{f"aten.{name}{end}.default": [(POSITIVE,)] for name in ROOTS for end in ("", "_")},
    **{f"aten.{name}.Tensor": [(X, Y), (X, X)] for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{f"aten.{name}.Scalar": [(X, 0.5), (X, 4)] for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{f"aten.logical_{name}.default": [(MASK, OTHER)] for name in ("and", "or")},
    **{f"aten.bitwise_{name}.Tensor": [(MASK, OTHER)] for name in ("and", "or")},
    **{f"aten.{name}_not.default": [(MASK,)] for name in ("logical", "bitwise")},
    **{
        f"aten.{name}.{kind}": [(X, y), (X, y, 1), (X, y, 1.0), (X, y, 3), (X, y, -0.5)]
        for name in ("add", "add_", "sub", "sub_", "rsub")
        for kind, y in (("Tensor", Y), ("Scalar", 0.7))
    },
    **{
        f"aten.{name}.{kind}": [(X, y)]
        for name in ("mul", "mul_", "div", "div_")
        for kind, y in (("Tensor", POSITIVE), ("Scalar", 0.7))
    },
    "aten.square.default": [(X,)],
    "aten.sgn.default": [(X,)],
    "aten.pow.Tensor_Scalar": [(POSITIVE, exponent) for exponent in (1, 2, 3, 0.5, -0.5, -1, -2, 2.0)],
    **{f"aten.{name}.default": [(X, Y)] for name in ("maximum", "minimum")},
    "aten.maximum.out": [(X, Y)],
    **{f"aten.clamp{end}.default": [(X, -0.5), (X, None, 0.4), (X, -0.4, 0.3)] for end in ("", "_")},
    "aten.clamp_min.default": [(X, 0.2)],
    "aten.clamp_max.default": [(X, 0.2)],
    **{f"aten.relu{end}.default": [(X,)] for end in ("", "_")},
    "aten.threshold_backward.default": [(Y, X, 0), (Y, X, 0.5)],
    "aten.leaky_relu.default": [(X,), (X, 0.3)],
    "aten.leaky_relu_backward.default": [(Y, X, 0.3, False)],
    "aten.softplus.default": [(X,), (X, 2), (X, 1, 4), (X, 0.5, 8)],
    "aten.softplus_backward.default": [(Y, X, 1, 20), (Y, X, 2, 20), (Y, X, 0.5, 4)],
    "aten.silu_backward.default": [(Y, X)],
    "aten.sigmoid_backward.default": [(Y, X.sigmoid())],
    "aten.tanh_backward.default": [(Y, X.tanh())],
    "popgeo.shifted_softplus.default": [(X.float(),)],
    "popgeo.shifted_softplus_backward.default": [(Y.float(), X.float())],
    "aten.where.self": [(MASK, X, Y)],
    "aten.where.ScalarOther": [(MASK, X, 0.5)],
    "aten.where.ScalarSelf": [(MASK, 0.5, X)],
    "aten.masked_fill.Scalar": [(X, MASK, 0.5)],
    "aten.masked_fill.Tensor": [(X, MASK, torch.tensor(0.5, dtype=torch.float64))],
    **{f"aten.addcmul{end}.default": [(X, Y, Z), (X, Y, Z, 0.3)] for end in ("", "_")},
    **{f"aten.addcdiv{end}.default": [(X, Y, POSITIVE), (X, Y, POSITIVE, 0.3)] for end in ("", "_")},
    **{f"aten.lerp{end}.Scalar": [(X, Y, 0.3)] for end in ("", "_")},
    "aten.lerp.Tensor": [(X, Y, POSITIVE / 100)],
    **{f"aten.{name}.default": [(X,)] for name in ("clone", "_to_copy", "zeros_like", "ones_like")},
    "aten.copy_.default": [(X, Y)],
    "aten.full_like.default": [(X, 0.3)],
    "popgeo.identity_loss.default": [(X,)],
}
NAMED = ("addcmul", "addcdiv", "add", "sub", "rsub")  # whose last number torch takes by name


def test_the_steps_of_each_operation_give_what_torch_gives():
    assert set(CASES) == set(WRITERS)
    for target, cases in CASES.items():
        for args in cases:
            *tensors, last = args
            named = {}
            if target.split(".")[1].strip("_") in NAMED and not isinstance(last, Tensor) and len(args) > 2:
                named, args = {"value" if "addc" in target else "alpha": last}, tensors
            if target == "aten.maximum.out":
                named = {"out": Z}
            found = by_steps(target, *args, **named)
            if target == "aten.maximum.out":
                expected = torch.maximum(*args)
            elif target == "popgeo.identity_loss.default":
                expected = args[0]
            else:
                given = [a.clone() if isinstance(a, Tensor) else a for a in args]  # some change what they are given
                expected = overload(target)(*given, **named)
            assert found is not None, (target, args)
            exact = expected.dtype != torch.float32
            assert_close(
                found.expand_as(expected).to(expected.dtype), expected, rtol=1e-13 if exact else 1e-6,
                atol=1e-14 if exact else 1e-6, msg=lambda text, of=(target, args): f"{of}: {text}",
            )  # fmt: skip


def test_a_factor_of_one_takes_no_step():
    for target, args, code in (
        ("add.Tensor", (X, Y, 1), "add"),
        ("sub.Tensor", (X, Y, 1.0), "sub"),
        ("pow.Tensor_Scalar", (X, 1), "copy"),
    ):
        codes = []
        WRITERS[f"aten.{target}"](lambda code, *_, to=codes: to.append(code), *args)
        assert codes == [code]


def test_bounds_may_be_named():
    for named in ({"min": -0.5}, {"max": 0.4}, {"min": -0.4, "max": 0.3}):
        assert_close(by_steps("aten.clamp.default", X, **named), X.clamp(**named), rtol=0, atol=0)


def test_powers_without_steps_of_their_own_and_names_that_are_not_known_are_left():
    assert by_steps("aten.pow.Tensor_Scalar", X, 4) is None
    assert by_steps("aten.pow.Tensor_Scalar", X, Number(0, 2.0)) is None  # two only this time
    assert by_steps("aten.mul.Tensor", X, Y, rounding_mode="floor") is None
    assert "aten.cumsum.default" not in WRITERS


F32, F64, BOOL, I64, I32, I16 = (
    torch.float32, torch.float64, torch.bool, torch.int64, torch.int32, torch.int16,
)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "operands", "result", "expected"),
    [
        ("aten.mul.Tensor", [F32, F32], F32, True),
        ("aten.mul.Tensor", [F32, BOOL], F32, True),
        ("aten.mul.Tensor", [F32, I64], F32, False),
        ("aten.mul.Tensor", [F32, F64], F64, False),
        ("aten.mul.Tensor", [F32, F32], F64, False),
        ("aten.add.Tensor", [BOOL, BOOL], F32, True),
        ("aten.where.self", [BOOL, F32, F32], F32, True),
        ("aten.where.self", [BOOL, BOOL, BOOL], BOOL, False),
        ("aten._to_copy.default", [BOOL], F32, True),
        ("aten._to_copy.default", [I64], F32, True),
        ("aten._to_copy.default", [I32], F32, True),
        ("aten._to_copy.default", [I16], F32, False),
        ("aten._to_copy.default", [F64], F32, False),
        ("aten._to_copy.default", [F32], F64, False),
        ("aten._to_copy.default", [F32], BOOL, False),
        ("aten.copy_.default", [F32, I64], F32, True),
        ("aten.clone.default", [I64], F32, False),
        ("aten.gt.Tensor", [F32, F32], BOOL, True),
        ("aten.gt.Tensor", [F32, F32], F32, False),
        ("aten.gt.Tensor", [F32, BOOL], BOOL, False),
        ("aten.gt.Tensor", [BOOL, BOOL], BOOL, False),
        ("aten.gt.Tensor", [F64, F64], BOOL, False),
        ("aten.logical_and.default", [BOOL, BOOL], BOOL, True),
        ("aten.logical_and.default", [F32, F32], BOOL, True),
        ("aten.logical_and.default", [F32, BOOL], BOOL, False),
        ("aten.logical_and.default", [I64, I64], BOOL, False),
        ("aten.bitwise_and.Tensor", [I64, I64], I64, False),
    ],
)
def test_types_that_a_chain_computes_with_as_torch_does(target, operands, result, expected):
    op = Op(target=target, args=tuple(map(Ref, range(len(operands)))), outputs=(len(operands),))
    assert fits(op, values_of(*operands, result)) is expected


def values_of(*types: torch.dtype) -> tuple[Value, ...]:
    return tuple(
        Value(shape=(3,), stride=(1,), offset=0, dtype=dtype, storage=v, producer=None) for v, dtype in enumerate(types)
    )


def test_an_operation_with_no_result_or_two_does_not_fit():
    values = values_of(F32, F32, F32)
    assert fits(Op(target="aten.neg.default", args=(Ref(0),), outputs=(1,)), values)
    assert not fits(Op(target="aten.neg.default", args=(Ref(0),), outputs=(None,)), values)
    assert not fits(Op(target="aten.neg.default", args=(Ref(0),), outputs=(1, 2)), values)


LARGEST = torch.finfo(F32).max


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (LARGEST, True), (-LARGEST, True), (3.5e38, False), (-3.5e38, False), (10**39, False), (-(10**39), False),
        (math.inf, True), (-math.inf, True), (math.nan, True), (0, True), (True, True), (None, True),
        (Number(0, 2.0), True), (Number(0, 1e39), False),
    ],
)  # fmt: skip
def test_numbers_beyond_single_precision_do_not_fit(number, expected):
    values = values_of(F32, F32)
    assert fits(Op(target="aten.mul.Scalar", args=(Ref(0), number), outputs=(1,)), values) is expected
    named = Op(target="aten.add.Scalar", args=(Ref(0), 1), kwargs={"alpha": number}, outputs=(1,))
    assert fits(named, values) is expected
