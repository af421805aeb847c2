"""Layers, losses, loops and collectives at sizes at which every branch and constant of their cost matters.

    python -m tests.support.cost_rows_layers

writes `tests/ipu/cost/cost_table_layers.csv` anew. Where `cost_table` captures programs, operations are written down
here as they would be captured, one at a time, so that a shape costs no memory and a row hardly any time.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.attention import Attention, plan_attention
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.collectives import TURNS, plan_collective
from popgeo.ipu.cost.convolution import Convolution, plan_convolution
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.loops import LOOP_OF, LOOPS
from popgeo.ipu.cost.norms import REDUCE, SOFTMAX, plan_groups
from popgeo.ipu.cost.plan import OpCost, Plan
from popgeo.ipu.cost.pooling import plan_pooling

TABLE = Path(__file__).parent.parent / "ipu" / "cost" / "cost_table_layers.csv"
NAMES = ("file", "case", "machine", "family", "split", "validity")
FIGURES = (
    "ideal", "calibrated", "mean", "bytes_in", "bytes_out", "bytes_total", "fragments", "tiles", "workers",
    "temporary_bytes", "flops", "considered", "steps", "parts", "bytes",
)  # fmt: skip
BOW = IpuTarget.bow()
ONE = replace(BOW, name="1 tile", num_tiles=1)
FEW = replace(BOW, name="8 tiles", num_tiles=8)
SMALL = replace(BOW, name="8 tiles of 20 kB", num_tiles=8, memory_per_tile=20_000)
PAIR = replace(BOW, name="2 of 8 tiles", num_tiles=8, num_ipus=2)
BOARD = replace(BOW, name="4 of 8 tiles", num_tiles=8, num_ipus=4)
HALF = torch.float16
ATTENTION = Attention(heads=6, queries=40, keys=24, width=8, value_width=12, nbytes=4)

Case = tuple[str, IpuTarget, "Plan | OpCost"]


@dataclass(frozen=True)
class Given:
    """A tensor among the arguments of an operation, or one that it makes.

    Attributes:
        shape: Sizes.
        dtype: Type of an element.
        stride: Elements between neighbours; as they lie in order by default.
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
    """A program of one operation, which takes some tensors and makes some; None where it returns none."""
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
    """What `graph_cost` makes of one operation."""
    (found,) = cost(graph_of(target, *args, **kwargs), machine)
    assert found.known, target
    return found


def _loops() -> Iterator[Case]:
    """Of each loop, and of each name for one, few elements and many; and of one loop every width."""
    for kind in LOOP_OF:
        for width in (4, 2) if kind in LOOPS else (4,):
            yield f"{kind} of 1001 of {width} bytes", ONE, plan_elementwise(kind, 1001, width, Machine(target=ONE))
    for elements in (1, 6, 7, 12, 13, 48, 49):
        for width in (1, 2, 4):
            plan = plan_elementwise("add", elements, width, Machine(target=ONE))
            yield f"{elements} additions of {width} bytes", ONE, plan


def _norms() -> Iterator[Case]:
    shapes = {"even": (64, 48), "uneven": (37, 13, 5), "one": (1, 1), "column": (5, 1), "row": (1, 5), "none": (0, 3)}
    tensors = {name: Given(shape) for name, shape in shapes.items()}
    tensors |= {"half": given(37, 65, dtype=HALF), "wide": given(2, 4096), "long": given(4096, 2)}
    for name, x in tensors.items():
        for dim in (-1, 0):
            for kind in ("_softmax", "_safe_softmax", "_log_softmax"):
                yield f"{kind} {name} {dim}", FEW, cost_of(FEW, f"aten.{kind}.default", x, dim, False, makes=[x])
            for kind in ("_softmax_backward_data", "_log_softmax_backward_data"):
                found = cost_of(FEW, f"aten.{kind}.default", x, x, dim, x.dtype, makes=[x])
                yield f"{kind} {name} {dim}", FEW, found
        yield from _layer_norms(name, x)
        yield from _batch_norms(name, x)
    for kind, args in {"_softmax": (0, False), "_log_softmax": (-1, False)}.items():
        yield f"{kind} of a number", FEW, cost_of(FEW, f"aten.{kind}.default", given(), *args, makes=[given()])
    backward = cost_of(FEW, "aten._softmax_backward_data.default", given(), given(), 0, torch.float32, makes=[given()])
    yield "_softmax_backward_data of a number", FEW, backward
    for name, sizes in {"even": (4, 8, 9, 2), "one": (1, 1, 1, 1), "none": (0, 8, 9, 4), "apart": (3, 6, 5, 6)}.items():
        yield from _group_norms(name, *sizes)
    for steps in (SOFTMAX, ("exp", REDUCE, REDUCE, "multiply by group", "add", "add by group", "inverse deviations")):
        for groups, elements, width, is_inner in ((7, 700, 4, True), (7, 700, 2, False), (300, 30, 4, True)):
            plan = plan_groups(steps, groups, elements, width, Machine(target=FEW), is_inner)
            yield f"{len(steps)} steps on {groups} of {elements}, {width} bytes, {is_inner=}", FEW, plan


def _layer_norms(name: str, x: Given) -> Iterator[Case]:
    row, mean = Given(x.shape[1:], x.dtype), Given((*x.shape[:1], *(1 for _ in x.shape[1:])))
    sizes = list(x.shape[1:])
    for weights in ((None, None), (row, None), (row, row)):
        made = [x, mean, mean]
        found = cost_of(FEW, "aten.native_layer_norm.default", x, sizes, *weights, 1e-5, makes=made)
        yield f"layer norm {name}, {sum(w is not None for w in weights)} weights", FEW, found
    for weights in ((None, None), (row, None), (row, row)):
        for made in ([x], [x, None, None], [x, row, None], [x, None, row], [x, row, row]):
            args = (x, x, sizes, mean, mean, *weights, [one is not None for one in made])
            found = cost_of(FEW, "aten.native_layer_norm_backward.default", *args, makes=made)
            asked = " ".join("01"[one is not None] for one in made)
            yield f"layer norm backward {name}, {sum(w is not None for w in weights)} weights, {asked}", FEW, found


def _batch_norms(name: str, x: Given) -> Iterator[Case]:
    column = given(x.shape[1])
    made, usual = [x, column, column], (column, column, column, column)
    for kind in ("native_batch_norm", "_native_batch_norm_legit"):
        found = cost_of(FEW, f"aten.{kind}.default", x, *usual, True, 0.1, 1e-5, makes=made)
        yield f"{kind} {name}", FEW, found
    args = (x, x, *usual, column, True, 1e-5, [True, True, True])
    yield f"batch norm backward {name}", FEW, cost_of(FEW, "aten.native_batch_norm_backward.default", *args, makes=made)


def _group_norms(name: str, samples: int, channels: int, positions: int, groups: int) -> Iterator[Case]:
    x, row, mean = given(samples, channels, positions), given(channels), given(samples, groups)
    sizes = (samples, channels, positions, groups)
    for weights in ((None, None), (row, None), (row, row)):
        args = (x, *weights, *sizes, 1e-5)
        found = cost_of(FEW, "aten.native_group_norm.default", *args, makes=[x, mean, mean])
        yield f"group norm {name}, {sum(w is not None for w in weights)} weights", FEW, found
    for weight in (None, row):
        args = (x, x, mean, mean, weight, *sizes, [True, True, True])
        found = cost_of(FEW, "aten.native_group_norm_backward.default", *args, makes=[x, row, row])
        yield f"group norm backward {name}, {'a' if weight else 'no'} weight", FEW, found


def _attention(machine: IpuTarget) -> Iterator[Case]:
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "half": {"nbytes": 2},
        "one of each": {"heads": 1, "queries": 1, "keys": 1, "width": 1, "value_width": 1},
        "mask of a head": {"mask": 40 * 24},
        "mask of all": {"mask": 6 * 40 * 24},
        "mask of nearly all": {"mask": 6 * 40 * 24 - 1},
        "one number of a mask": {"mask": 1},
        "dropped": {"is_dropped": True},
        "a head": {"heads": 1},
        "many heads": {"heads": 24},
        "seven heads": {"heads": 7},
        "long": {"queries": 200, "keys": 170},
        "long, masked": {"queries": 200, "keys": 170, "mask": 200 * 170},
        "long, a head": {"heads": 1, "queries": 333, "keys": 300},
        "long, a masked head": {"heads": 1, "queries": 333, "keys": 300, "mask": 333 * 300},
        "long, two heads, half": {"heads": 2, "queries": 500, "keys": 300, "nbytes": 2, "is_dropped": True},
        "wide": {"width": 100, "value_width": 60, "queries": 120},
        "far too long": {"heads": 2, "queries": 3, "keys": 30_000},
    }
    for name, change in changes.items():
        for is_backward in (False, True):
            plan = plan_attention(replace(ATTENTION, **change), Machine(target=machine), is_backward)
            yield f"{name}{', backward' * is_backward}", machine, plan


def _attention_at_its_limits() -> Iterator[Case]:
    for name, memory, change in (
        ("all just fits", 24_640, {"heads": 2, "queries": 80, "keys": 80}),
        ("a head just fits", 8_640, {"heads": 2, "queries": 64, "keys": 68}),
        ("scores of half the heads just fit", 25_000, {"queries": 100, "keys": 100}),
    ):
        sizes = replace(ATTENTION, width=2, value_width=2, **change)
        machine = replace(FEW, name=f"8 tiles of {memory:,} bytes", memory_per_tile=memory)
        yield name, machine, plan_attention(sizes, Machine(target=machine))


def _attention_operations() -> Iterator[Case]:
    """With and without a mask, causal and dropped out, keys and values of other sizes than queries."""
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    x, keys, narrow = given(2, 3, 10, 8), given(2, 3, 14, 8), given(2, 3, 14, 4)
    one = given(2, 3, 10, 1)
    for case, tensors, dropout, is_causal, mask in (
        ("plain", (x, keys, narrow), 0.0, False, None),
        ("half", tuple(replace(t, dtype=HALF) for t in (x, keys, narrow)), 0.0, False, None),
        ("causal", (x, keys, narrow), 0.0, True, None),
        ("dropped", (x, keys, narrow), 0.1, False, None),
        ("masked", (x, keys, narrow), 0.0, False, given(2, 1, 10, 14)),
        ("masked alike", (x, keys, narrow), 0.0, False, Given((2, 3, 10, 14), stride=(0, 0, 14, 1))),
        ("masked and causal", (x, keys, narrow), 0.0, True, given(1, 14)),
        ("three dimensions", (given(6, 10, 8), given(6, 14, 8), given(6, 14, 4)), 0.0, True, None),
        ("one", (given(1, 1, 1, 1),) * 3, 0.0, False, None),
        ("none", (given(0, 0, 0, 0),) * 3, 0.0, False, None),
    ):
        out = replace(tensors[0], shape=(*tensors[0].shape[:-1], tensors[2].shape[-1]))
        found = cost_of(FEW, f"{name}.default", *tensors, dropout, is_causal, attn_mask=mask, makes=[out, one])
        yield f"operation {case}", FEW, found
        args = (out, *tensors, out, one, dropout, is_causal)
        found = cost_of(FEW, f"{name}_backward.default", *args, attn_mask=mask, makes=list(tensors))
        yield f"operation {case}, backward", FEW, found
    yield "operation by defaults", FEW, cost_of(FEW, f"{name}.default", x, keys, narrow, makes=[x, one])


def _convolution() -> Iterator[Case]:
    usual = Convolution(samples=2, many=100, few=81, window=4, step=1, wide=20, deep=12, groups=1, nbytes=4)
    changes: dict[str, dict[str, Any]] = {
        "usual": {},
        "half": {"nbytes": 2},
        "few channels": {"wide": 3, "deep": 3},
        "few channels, half": {"wide": 3, "deep": 5, "nbytes": 2},
        "full channels": {"wide": 32, "deep": 16, "nbytes": 2},
        "in steps": {"many": 400, "few": 100, "window": 9, "step": 4},
        "steps beyond the window": {"many": 400, "few": 25, "window": 4, "step": 9},
        "one": {"samples": 1, "many": 1, "few": 1, "window": 1, "wide": 1, "deep": 1},
        "spread": {"many": 10, "few": 100, "window": 1},
        "groups": {"wide": 24, "deep": 12, "groups": 3},
        "channels apart": {"wide": 12, "deep": 24, "groups": 12},
        "more groups than channels": {"wide": 3, "deep": 5, "groups": 6},
        "large": {"samples": 8, "many": 1024, "few": 1024, "window": 9, "wide": 64, "deep": 64, "nbytes": 2},
    }
    for name, change in changes.items():
        for kind in ("forward", "input", "weight"):
            plan = plan_convolution(replace(usual, **change), Machine(target=FEW), kind)
            yield f"{name} {kind}", FEW, plan
    yield "by default", FEW, plan_convolution(usual, Machine(target=FEW))
    yield from _convolution_operations()


def _convolution_operations() -> Iterator[Case]:
    """One and two dimensions, with and without a bias, both ways, and each gradient alone."""
    for name, x, weight, made, stride, transposed, groups in (
        ("one dimension", given(3, 4, 20), given(6, 4, 3), given(3, 6, 18), [1], False, 1),
        ("two, in steps", given(2, 4, 9, 8), given(6, 4, 3, 2), given(2, 6, 4, 3), [2, 2], False, 1),
        ("half", given(2, 4, 9, 8, dtype=HALF), given(6, 4, 3, 2, dtype=HALF), given(2, 6, 7, 7, dtype=HALF), [1, 1],
         False, 1),
        ("back", given(2, 6, 4, 3), given(6, 4, 3, 2), given(2, 4, 9, 8), [2, 3], True, 1),
        ("groups", given(2, 8, 9, 9), given(6, 4, 3, 3), given(2, 6, 7, 7), [1, 1], False, 2),
        ("one", given(1, 1, 1), given(1, 1, 1), given(1, 1, 1), [1], False, 1),
        ("no samples", given(0, 4, 20), given(6, 4, 3), given(0, 6, 18), [1], False, 1),
        ("no channels", given(2, 4, 20), given(0, 4, 3), given(2, 0, 18), [1], False, 1),
    ):  # fmt: skip
        rank = len(stride)
        how = (stride, [0] * rank, [1] * rank, transposed, [0] * rank, groups)
        bias = replace(weight, shape=(made.shape[1],))
        for given_bias in (None, bias):
            found = cost_of(FEW, "aten.convolution.default", x, weight, given_bias, *how, makes=[made])
            yield f"operation {name}, {'a' if given_bias else 'no'} bias", FEW, found
        for mask in ([True, True, True], [True, False, False], [False, True, False], [False, False, True]):
            gradients = [one if asked else None for one, asked in zip((x, weight, bias), mask, strict=True)]
            args = (made, x, weight, [made.shape[1]], *how, mask)
            found = cost_of(FEW, "aten.convolution_backward.default", *args, makes=gradients)
            yield f"operation {name}, gradients {' '.join(map(str, map(int, mask)))}", FEW, found


def _pooling() -> Iterator[Case]:
    for results, taken, there, run, width in (
        (1, 1, 1, 1, 4), (0, 0, 0, 0, 4), (48, 192, 192, 4, 4), (700, 2800, 2000, 13, 4), (701, 6309, 999, 0, 2),
        (5000, 45_000, 6000, 50, 2), (33, 34, 35, 1, 4),
    ):  # fmt: skip
        if results:
            for per_vector in (3, 5):
                plan = plan_pooling(results, taken, there, run, width, Machine(target=FEW), per_vector)
                yield f"{results} of {taken} of {there}, runs of {run}, {width} bytes, {per_vector}", FEW, plan
            yield f"{results} by default", FEW, plan_pooling(results, taken, there, run, width, Machine(target=FEW))
    for name, x, out, kernel in (
        ("square", given(2, 3, 17, 18), given(2, 3, 8, 9), [2]),
        ("oblong", given(2, 3, 17, 18), given(2, 3, 15, 17), [3, 2]),
        ("half", given(4, 3, 20, 20, dtype=HALF), given(4, 3, 10, 10, dtype=HALF), [2, 2]),
        ("three dimensions", given(3, 17, 18), given(3, 8, 6), [2, 3]),
        ("one", given(1, 1, 1, 1), given(1, 1, 1, 1), [1, 1]),
        ("none", given(0, 3, 4, 4), given(0, 3, 2, 2), [2, 2]),
        ("tall", given(8, 3, 60, 9), given(8, 3, 30, 3), [2, 3]),
        ("coarse", given(1, 2, 7, 5), given(1, 2, 1, 1), [7, 5]),
        ("empty", given(1, 2, 7, 5), given(1, 2, 0, 0), [7, 5]),
    ):
        size, index = list(out.shape[-2:]), replace(out, dtype=torch.int64)
        forward: dict[str, tuple[tuple[Any, ...], list[Given]]] = {
            "max_pool2d_with_indices": ((x, kernel), [out, index]),
            "avg_pool2d": ((x, kernel), [out]),
            "_adaptive_avg_pool2d": ((x, size), [out]),
            "adaptive_max_pool2d": ((x, size), [out, index]),
            "upsample_nearest2d": ((out, list(x.shape[-2:])), [x]),
            "upsample_bilinear2d": ((out, list(x.shape[-2:]), False), [x]),
            "max_pool2d_with_indices_backward": ((out, x, kernel, [], [0, 0], [1, 1], False, index), [x]),
            "avg_pool2d_backward": ((out, x, kernel, [], [0, 0], False, True, None), [x]),
            "_adaptive_avg_pool2d_backward": ((out, x), [x]),
            "adaptive_max_pool2d_backward": ((out, x, index), [x]),
            "upsample_nearest2d_backward": ((x, list(x.shape[-2:]), list(out.shape)), [out]),
            "upsample_bilinear2d_backward": ((x, list(x.shape[-2:]), list(out.shape), False), [out]),
        }
        for kind, (args, made) in forward.items():
            yield f"{kind} {name}", FEW, cost_of(FEW, f"aten.{kind}.default", *args, makes=made)
    for kind, args, out in (
        ("upsample_nearest1d", (given(2, 3, 10), [30]), given(2, 3, 30)),
        ("upsample_nearest1d_backward", (given(2, 3, 30), [30], [2, 3, 10]), given(2, 3, 10)),
    ):
        yield kind, FEW, cost_of(FEW, f"aten.{kind}.default", *args, makes=[out])


def _losses() -> Iterator[Case]:
    tensors = {"matrix": given(37, 13), "half": given(37, 14, dtype=HALF), "one": given(1), "none": given(0)}
    for name, x in tensors.items():
        number, target = Given((), x.dtype), replace(x, dtype=torch.float32)
        for kind in (
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss", "mse_loss", "smooth_l1_loss",
            "huber_loss", "kl_div",
        ):  # fmt: skip
            for made in (x, number):
                found = cost_of(FEW, f"aten.{kind}.default", x, target, 1, makes=[made])
                yield f"{kind} {name} to {len(made.shape)} dimensions", FEW, found
        for kind in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "huber_loss"):
            found = cost_of(FEW, f"aten.{kind}_backward.default", number, x, target, 1, makes=[x])
            yield f"{kind} backward {name}", FEW, found
    for name, x, target in (
        ("rows", given(37, 13), places(37)),
        ("half", given(37, 300, dtype=HALF), places(37)),
        ("many rows", given(4000, 3), places(4000)),
        ("a row", given(1, 100), places(1)),
        ("one", given(1, 1), places(1)),
        ("a number", given(9), places()),
        ("none", given(0, 5), places(0)),
        ("two dimensions", given(2, 5, 6, 7), places(2, 6, 7)),
    ):
        kind = "nll_loss2d" if len(x.shape) > 2 else "nll_loss"
        number = Given((), x.dtype)
        args = (x, target, None, 1, -100)
        for machine in (ONE, FEW):
            found = cost_of(machine, f"aten.{kind}_forward.default", *args, makes=[number, number])
            yield f"nll {name}", machine, found
            found = cost_of(machine, f"aten.{kind}_backward.default", number, *args, number, makes=[x])
            yield f"nll backward {name}", machine, found


def _collectives() -> Iterator[Case]:
    for kind in TURNS:
        for machine in (FEW, PAIR):
            for members, stride in ((2, 1), (4, 1), (5, 1), (2, 4), (3, 64), (1, 1)):
                plan = plan_collective(kind, 1_000_003, members, stride, Machine(target=machine))
                yield f"{kind} of {members}, {stride} apart", machine, plan
    for machine in (FEW, PAIR, BOARD):
        for name, held, shards in (
            ("all", 4, 4), ("one of four", 1, 4), ("two of four", 2, 4), ("one", 1, 1), ("three", 3, 3),
            ("eight", 8, 8), ("two of sixteen", 2, 16), ("one of eight", 1, 8),
        ):  # fmt: skip
            for size in (60, 1, 0):
                yield from _shards(f"{name}, {size}", machine, held, shards, size)


def _shards(name: str, machine: IpuTarget, held: int, shards: int, size: int) -> Iterator[Case]:
    """What `held` of some shards, each of as many elements, tell each other; all at once and with others."""
    x, whole, dtype = given(held, size), given(size), torch.float32
    for stride in (1, 4) if size == 60 else (1,):
        found = cost_of(machine, "popgeo.all_reduce.default", x, shards, stride, makes=[whole])
        yield f"all_reduce {name}, {stride} apart", machine, found
        found = cost_of(machine, "popgeo.all_gather.default", x, shards, 0, stride, makes=[given(shards * size)])
        yield f"all_gather {name}, {stride} apart", machine, found
        made = Given((held, size // shards), dtype)
        found = cost_of(machine, "popgeo.reduce_scatter.default", x, shards, 0, stride, makes=[made])
        yield f"reduce_scatter {name}, {stride} apart", machine, found
    found = cost_of(machine, "popgeo.replicate.default", whole, shards, held, 1, makes=[x])
    yield f"replicate {name}", machine, found
    found = cost_of(machine, "popgeo.shard.default", whole, shards, held, 0, 1, makes=[given(held, size // shards)])
    yield f"shard {name}", machine, found
    parts = given(held, shards, size, dtype=HALF)
    found = cost_of(machine, "popgeo.all_to_all.default", parts, shards, makes=[parts])
    yield f"all_to_all {name}", machine, found


def _fused() -> Iterator[Case]:
    for name, nodes, edges, others, channels, dtype in (
        ("plain", 30, 100, 30, 8, torch.float32),
        ("half, to others", 40, 70, 20, 6, HALF),
        ("one", 1, 1, 1, 1, torch.float32),
        ("large", 400, 3000, 100, 64, torch.float32),
        ("few edges", 50, 20, 30, 8, torch.float32),
    ):
        x, filters = given(nodes, channels, dtype=dtype), given(edges, channels, dtype=dtype)
        made, index = given(others, channels, dtype=dtype), places(edges)
        args = (x, filters, index, index)
        yield f"cfconv {name}", FEW, cost_of(FEW, "popgeo.cfconv.default", *args, others, makes=[made])
        found = cost_of(FEW, "popgeo.cfconv_backward.default", made, *args, 0, makes=[x, filters])
        yield f"cfconv backward {name}", FEW, found
    for name, sizes in {"some": (300, 17, 1000), "few": (60, 40), "one": (1,), "none": (0,)}.items():
        tensors = [given(size) for size in sizes]
        steps = [given() for _ in sizes]
        writes = tuple(range(len(sizes)))
        for kind, lists in {
            "_fused_adam_": (tensors, tensors, tensors, tensors, [], steps),
            "_fused_adamw_": (tensors, tensors, tensors, tensors, [], steps),
            "_fused_adagrad_": (tensors, tensors, tensors, steps),
            "_fused_sgd_": (tensors, tensors, tensors),
        }.items():
            lists = tuple(list(one) for one in lists)
            yield f"{kind} {name}", FEW, cost_of(FEW, f"aten.{kind}.default", *lists, writes=writes, lr=0.1, makes=[])


FILES: dict[str, Callable[[], Iterator[Case]]] = {
    "loops": _loops,
    "norms": _norms,
    "attention": lambda: _attention(FEW),
    "attention in turns": lambda: _attention(SMALL),
    "attention at its limits": _attention_at_its_limits,
    "attention's operations": _attention_operations,
    "convolution": _convolution,
    "pooling": _pooling,
    "losses": _losses,
    "collectives": _collectives,
    "fused": _fused,
}


def rows(file: str) -> Iterator[dict[str, str | float]]:
    """What the model says of each case of a file of `popgeo/ipu/cost`, or of a part of one."""
    for case, machine, found in FILES[file]():
        plan = found.plan if isinstance(found, OpCost) else found
        split = " ".join(f"{name}={parts}" for name, parts in plan.split.items())
        names = (file, case, machine.name, plan.family, split, plan.validity.value)
        yield dict(zip(NAMES, names, strict=True)) | _figures(plan, found.bytes if isinstance(found, OpCost) else 0)


def _figures(plan: Plan, nbytes: int) -> dict[str, float]:
    steps = plan.supersteps
    sums: dict[str, float] = {name: sum(getattr(step, name) for step in steps) for name in FIGURES[:9]}
    whole = {name: getattr(plan, name) for name in FIGURES[9:12]}
    return {**sums, **whole, "steps": len(steps), "parts": len(plan.parts), "bytes": nbytes}


def write(path: Path = TABLE) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NAMES, *FIGURES), lineterminator="\n")
        writer.writeheader()
        for name in FILES:
            writer.writerows(rows(name))


if __name__ == "__main__":
    write()
