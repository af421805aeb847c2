"""Captured programs of one operation, written by hand, on machines from one tile to all tiles."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import OpCost, Plan

BOW = IpuTarget.bow()
ONE = replace(BOW, name="1 tile", num_tiles=1)
FEW = replace(BOW, name="8 tiles", num_tiles=8)
SMALL = replace(BOW, name="8 tiles of 20 kB", num_tiles=8, memory_per_tile=20_000)
PAIR = replace(BOW, name="2 of 8 tiles", num_tiles=8, num_ipus=2)
BOARD = replace(BOW, name="4 of 8 tiles", num_tiles=8, num_ipus=4)
HALF = torch.float16

Case = tuple[str, IpuTarget, "Plan | OpCost"]
Files = dict[str, Callable[[], Iterator[Case]]]  # by file of `popgeo/ipu/cost`, or part of a file


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments or results of an operation.

    Attributes:
        shape: Sizes of the tensor.
        dtype: Type of an element.
        stride: Elements between neighbors. Default: contiguous.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    stride: tuple[int, ...] | None = None


def given(*shape: int, dtype: torch.dtype = torch.float32) -> Given:
    return Given(shape, dtype)


def places(*shape: int) -> Given:
    return Given(shape, torch.int64)


def graph_of(
    target: str, *args: Any, makes: Sequence[Given | None], writes: Sequence[int] = (), **kwargs: Any
) -> OpGraph:
    """Return a program of one operation; `makes` has its results, with None for a missing tensor."""
    values: list[Value] = []

    def number(one: Given, producer: int | None) -> int:
        stride = one.stride or tuple(torch.empty(one.shape, device="meta").stride())
        values.append(
            Value(
                shape=one.shape, stride=stride, offset=0, dtype=one.dtype, storage=len(values), producer=producer,
            )
        )  # fmt: skip
        return len(values) - 1

    def stored(argument: Any) -> Any:
        if isinstance(argument, Given):
            return Ref(number(argument, None))
        return [stored(one) for one in argument] if isinstance(argument, list) else argument

    taken, named = tuple(map(stored, args)), {name: stored(one) for name, one in kwargs.items()}
    inputs = {Input(Role.ARGUMENT, f"x{v}"): v for v in range(len(values))}
    outputs = tuple(None if one is None else number(one, 0) for one in makes)
    op = Op(target=target, args=taken, kwargs=named, outputs=outputs, writes=tuple(writes))
    return OpGraph(ops=(op,), values=tuple(values), inputs=inputs, outputs=outputs)


def cost_of(machine: IpuTarget, target: str, *args: Any, **kwargs: Any) -> OpCost:
    """Return the cost of one operation."""
    (found,) = cost(graph_of(target, *args, **kwargs), machine)
    assert found.known, target
    return found
