"""Every operation of `torch.ops.popgeo`, with every argument wrong in many ways: a correct result or an error.

An operation that reads outside an array crashes the process or returns different numbers than torch's own code.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from popgeo.native import library
from popgeo.potentials import tensor_product  # noqa: F401  registers its operation

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of complex numbers that become real ones

NODES, EDGES, CHANNELS = 5, 9, 6
SRC, DST = torch.tensor([0, 1, 4, 3, 2, 2, 0, 1, 4]), torch.tensor([3, 0, 2, 4, 1, 0, 2, 2, 0])
X, W, GRAD = (torch.randn(n, CHANNELS, generator=torch.Generator().manual_seed(n)) for n in (NODES, EDGES, NODES + 1))
GRAD = GRAD[:NODES].contiguous()
INDPTR = torch.tensor([0, 2, 2, 7, 8, EDGES])
OPS = torch.ops.popgeo
TO_DST, TO_SRC = OPS.plan(DST, NODES), OPS.plan(SRC, NODES)

DISTANCES, DIRECTION = torch.linspace(0.5, 4, EDGES), torch.ones(EDGES, 3)
TABLE = torch.linspace(0, 1, 16, dtype=torch.float64).view(-1, 1) * torch.ones(CHANNELS)
PLAN, WEIGHTS = OPS.interaction_plan(SRC, DST, DISTANCES, 5.0, NODES, NODES, 16)
CALL = (X, TABLE, DISTANCES, None, SRC, DST, NODES, 5.0, False, None, None)
PLANNED = (*CALL[:9], PLAN, WEIGHTS)
VECTORS = (X[:, :5].contiguous(), TABLE[:, :3].contiguous(), DISTANCES, DIRECTION, *CALL[4:])
WANTED = [True, True, True, False]
FIRST = [True, False, True, False]

# One path of 2 channels with 3 components of x, 1 of y and 3 of the sums.
PRODUCT = ([6, 1, 2, 6], [2, 0, 3, 0, 1, 0, 0, 3], [v for i in range(3) for v in (0.0, i, 0.0, i, 0.5)])
FACTORS = X, torch.rand(EDGES, 1), torch.rand(EDGES, 2), GRAD

EXAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "plan": [(DST, NODES)],
    "gather": [(X, SRC, *TO_SRC, 0), (X, SRC)],
    **{f"scatter_{how}": [(W, DST, NODES, *TO_DST, 3), (W, DST, NODES)] for how in ("sum", "mul", "min", "max")},
    "cfconv": [(X, W, SRC, DST, NODES, *TO_DST, *TO_SRC, 2), (X, W, SRC, DST, NODES)],
    "cfconv_backward": [(GRAD, X, W, SRC, DST, *TO_DST, *TO_SRC, 2), (GRAD, X, W, SRC, DST)],
    **{f"segment_{how}": [(W, INDPTR)] for how in ("sum", "min", "max")},
    "softmax": [(W, DST, *TO_DST)],
    "softmax_backward": [(W, W.exp(), DST, *TO_DST)],
    "gather_csr": [(X, INDPTR, EDGES)],
    "shifted_softplus": [(X,)],
    "shifted_softplus_backward": [(GRAD, X)],
    "round_stochastic": [(X, torch.tensor(7), torch.float16)],
    "interaction_plan": [(SRC, DST, DISTANCES, 5.0, NODES, NODES, 16)],
    "interaction": [CALL, PLANNED, VECTORS, (*CALL[:8], True, None, None)],
    "interaction_backward": [(*PLANNED, GRAD, WANTED)],
    "interaction_second": [(*PLANNED, GRAD, FIRST, [X, None], [True, *WANTED])],
    "tensor_product": [
        (role, *[None if at == role else FACTORS[at] for at in range(4)], SRC, DST, NODES, *PRODUCT)
        for role in range(4)
    ],
    "near_nodes": [
        (form, 4, torch.rand(NODES, 3), torch.arange(NODES) // 3, 0.8, NODES, NODES, mask)
        for form in range(3)
        for mask in (None, torch.arange(NODES) % 4 > 0)
    ],
    "all_reduce": [(X, NODES, 1)],
    "replicate": [(X, 2, 2, 1)],
    "all_gather": [(X, NODES, 0, 1)],
    "shard": [(X, 2, 2, 1, 1)],
    "reduce_scatter": [(X[:2], 2, 0, 1)],
    "all_to_all": [(X[:, :5], NODES)],
}
OF_TORCH = {"random_state", "set_random_state", "print_tensor", "identity_loss"}  # no kernel of popgeo's
OPAQUE = {"interaction_plan": (0, 1), "near_nodes": (0, 1)}  # results that only other operations read
INDICES = {"index", "src", "dst", "r"}
PLANS = {"rowptr", "perm", "dst_rowptr", "dst_perm", "src_rowptr", "src_perm", "plan", "weights"}
REFUSALS = (ValueError, RuntimeError, TypeError, IndexError, NotImplementedError, MemoryError)


def test_every_operation_has_an_example():
    names = {schema.name.removeprefix("popgeo::") for schema in torch._C._jit_get_all_schemas()
             if schema.name.startswith("popgeo::")}  # fmt: skip
    assert names - OF_TORCH <= EXAMPLES.keys()


def wrong(value: Any) -> Iterator[Any]:
    """Yield wrong forms, and unusual but correct forms, of an argument."""
    if isinstance(value, Tensor):
        yield from (value[:-1], value[:0], value[1:], torch.cat([value, value[:1]])) if value.dim() else ()
        yield from (value.unsqueeze(0), value.unsqueeze(-1), value.flatten(), value.sum().to(value.dtype))
        if value.dim() == 2:
            yield from (value[:, :-1], value[:, :0], value.repeat(1, 2), value.t(), value.t().contiguous().t())
        if value.dim():
            yield from (value.repeat_interleave(2, 0)[::2], value[:1].expand(value.shape), value.flip(0))
            whole = torch.empty(value.numel() * value.element_size() + 1, dtype=torch.uint8)[1:]
            yield torch.frombuffer(whole.numpy(), dtype=value.dtype).view(value.shape).copy_(value)
        for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.bool, torch.complex64):
            yield value.to(dtype)
        if value.dim() and not value.is_floating_point():
            for number in (-1, EDGES, 1_000_000, 2**31 - 1, -(2**31)):
                for at in {0, value.numel() // 2, value.numel() - 1}:
                    changed = value.clone()
                    changed.view(-1)[at] = number
                    yield changed
        yield None
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-1, 0, 1, value + 1, value - 1, 1000, 2**62, -(2**62))
    elif isinstance(value, float):
        yield from (float("nan"), float("inf"), -1.0)
    elif isinstance(value, list):
        yield from ([], value[:-1], [*value, *value[:1]], value[::-1])
        yield from ([*value[:at], other, *value[at + 1 :]] for at in range(len(value)) for other in wrong(value[at]))
    elif isinstance(value, torch.dtype):
        yield from (torch.float32, torch.int64, torch.bfloat16)


def outcome(name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(OPS, name)(*arguments)
    except REFUSALS as error:
        return error


def is_plan_of_other_edges(names: list[str], at: int, example: tuple[Any, ...], other: Any) -> bool:
    """Check whether a plan and its index differ in their numbers only: the result is then that of the plan."""
    alike = other is None or (isinstance(other, Tensor) and example[at].shape == other.shape)
    has_plan = any(isinstance(value, Tensor) for name, value in zip(names, example, strict=False) if name in PLANS)
    return alike and (names[at] in PLANS or (names[at] in INDICES and has_plan))


@pytest.mark.parametrize("name", EXAMPLES)
def test_wrong_arguments_give_a_right_result_or_an_error(name):
    names = [argument.name for argument in getattr(OPS, name).default._schema.arguments]
    for example in EXAMPLES[name]:
        assert not isinstance(outcome(name, example), Exception)
        for at, value in enumerate(example):
            for other in wrong(value):
                arguments = (*example[:at], other, *example[at + 1 :])
                made = outcome(name, arguments)
                if isinstance(made, Exception) or is_plan_of_other_edges(names, at, example, other):
                    continue
                with library.without_native():
                    expected = outcome(name, arguments)
                told = f"{name}: {names[at]} = {describe(other)} gives {describe(made)}"
                assert not isinstance(expected, Exception), f"{told}, torch {expected!r}"
                pairs = zip(tree_leaves(made), tree_leaves(expected), strict=True)
                for i, (one, wanted) in enumerate(pairs):
                    if i not in OPAQUE.get(name, ()):
                        torch.testing.assert_close(one, wanted, rtol=1e-3, atol=1e-4, equal_nan=True, msg=told)


def describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else str(value)[:80]
