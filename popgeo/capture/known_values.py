"""What stand-ins hold, worked out when it is asked for, if it follows from constants alone or from what is given."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map

from popgeo.capture.page import Page
from popgeo.capture.passes import is_random, run_op

# Positions of the arguments that do not decide how many elements such an operation returns.
_DATA = {"index": (0,), "masked_select": (0,), **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), (0, 2))}


class UnknownValue(Exception):
    """What a tensor holds depends on what is not known."""


def compute(
    page: Page,
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Mapping[int, Tensor] | None = None,
    makes_up: bool = False,
) -> Any:
    """The result of an operation on what its operands hold; a stand-in for each tensor.

    Args:
        page: How the operands were worked out.
        func: The operation.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        given: What some stand-ins hold that nothing made, by their id.
        makes_up: Take what is not known to be ones.

    Raises:
        UnknownValue: an operand that decides the result depends on what is neither constant nor given.
    """
    data: Collection[int] = _DATA.get(func._schema.name.removeprefix("aten::"), ())

    def known(part: Any, position: int | None = None) -> Any:
        try:
            return _elements(page, part, given or {}) if isinstance(part, Tensor) else part
        except UnknownValue:
            if not makes_up and position not in data:
                raise
            return torch.ones(part.shape, dtype=part.dtype)

    with unset_fake_temporarily():
        operands = [tree_map(lambda part, at=at: known(part, at), arg) for at, arg in enumerate(args)]
        made = func(*operands, **tree_map(known, dict(kwargs)))
    if func._schema.is_mutable:
        changed = operands[0]
        if isinstance(changed, Tensor) and changed.shape != args[0].shape:
            raise ValueError(
                f"{func._schema.name} gives a tensor of shape {list(args[0].shape)} the shape {list(changed.shape)} in "
                "place. Make a new tensor: call it without the underscore at the end of its name, or without out=."
            )
        return args[0]
    # Of constants alone nothing is a stand-in yet.
    mode = detect_fake_mode(args) or next(one.fake_mode for one in page.tensors() if isinstance(one, FakeTensor))
    return tree_map(lambda part: mode.from_tensor(part) if isinstance(part, Tensor) else part, made)


def _elements(page: Page, tensor: Tensor, given: Mapping[int, Tensor]) -> Tensor:
    """What a tensor holds, computed again in memory of its own; a tensor from outside itself if nothing made it."""
    ops, number = page.ops_for(tensor), page.number(tensor)
    if any(is_random(op) or op.bodies for op in ops):
        raise UnknownValue
    values: dict[int, Tensor] = {}
    for v in {v for v in (number, *(v for op in ops for v in op.reads())) if page.values[v].producer is None}:
        outside = page.constants.get(v)
        held = given.get(id(outside)) if isinstance(outside, FakeTensor) else outside
        if held is None:
            raise UnknownValue
        values[v] = held.detach().clone() if ops else held
    for op in ops:
        values |= run_op(op, values)
    return values[number]
