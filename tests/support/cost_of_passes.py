"""Cases of loops, norms and attention at sizes at which every branch and constant of their cost matters."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.attention import Attention, plan_attention
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.loops import LOOP_OF, LOOPS
from popgeo.ipu.cost.norms import REDUCE, SOFTMAX, plan_groups
from tests.support.cost_graphs import FEW, HALF, ONE, SMALL, Case, Files, Given, cost_of, given

ATTENTION = Attention(heads=6, queries=40, keys=24, width=8, value_width=12, nbytes=4)


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


FILES: Files = {
    "loops": _loops,
    "norms": _norms,
    "attention": lambda: _attention(FEW),
    "attention in turns": lambda: _attention(SMALL),
    "attention at its limits": _attention_at_its_limits,
    "attention's operations": _attention_operations,
}
