"""Cases of convolutions, pools, losses, collectives and updates at sizes at which every branch and constant matters."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.collectives import TURNS, plan_collective
from popgeo.ipu.cost.convolution import Convolution, plan_convolution
from popgeo.ipu.cost.pooling import plan_pooling
from tests.support.cost_graphs import BOARD, FEW, HALF, ONE, PAIR, Case, Files, Given, cost_of, given, places


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


FILES: Files = {
    "convolution": _convolution,
    "pooling": _pooling,
    "losses": _losses,
    "collectives": _collectives,
    "fused": _fused,
}
