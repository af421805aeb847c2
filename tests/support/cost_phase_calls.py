"""Calls of vertices, transfers, searches and plans, in sizes for which each branch and each constant matters."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from popgeo.ipu.cost import distances, elementwise, gather, matmul, published_sizes, reduce, scatter, sorting
from popgeo.ipu.cost.movement import plan_copy
from popgeo.ipu.cost.plan import Plan, Superstep, Validity
from popgeo.ipu.cost.splits import cheapest, column_grains, largest_block, triples, within, work_space
from popgeo.ipu.cost.supersteps import (
    compute_step,
    exchange_step,
    in_sequence,
    overhead_step,
    repeated,
    transfer_cycles,
)
from popgeo.ipu.cost.vertex_cycles import add_partials, add_rows, amp_vertex, ceil_div, fill, in_block, slice_rows
from tests.support.cost_calls import BOW, EIGHT, ODD, ONE, PAIR, TIGHT, TWO, Call, call, grid, machine

MACHINES = [machine(target) for target in (ONE, TWO, EIGHT, PAIR, ODD, TIGHT)]
ON_ONE, ON_TWO, ON_EIGHT, ON_PAIR, ON_ODD, ON_TIGHT = MACHINES
ON_BOW = machine(BOW)


def named(name: str, function: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(name=name, function=function, args=args, kwargs=kwargs)


def of_transfer(target: Any, *sizes: Any, **kinds: bool) -> Call:
    names = ("bytes_in", "bytes_out", "fragments_in", "fragments_out")
    return Call(
        name=" ".join(["transfer_cycles", *kinds]),
        function=lambda target, *sizes: transfer_cycles(target, **dict(zip(names, sizes, strict=False)), **kinds),
        args=(target, *sizes),
    )


VERTICES = [
    *grid(ceil_div, [0, 6, 7], [1, 3]),
    *grid(slice_rows, [1, 13, 60], [1, 10], [10, 97], [1, 2, 5], [5, 6]),
    *grid(add_rows, [1, 13, 60], [1, 8, 13], [13, 97], [1, 4], [5, 6]),
    *grid(add_rows, [14], [7], [20], [1, 4], [6], [2, 5]),
    *grid(fill, [0, 1, 100], [2, 4]),
    *grid(add_partials, [1, 10], [1, 4], [2, 4]),
    *grid(in_block, [2, 4]),
    *grid(amp_vertex, [0, 1, 13, 19, 60], [1, 17, 40], [1, 16, 40], [2, 4], [BOW, ODD]),
    *grid(amp_vertex, [np.array([0, 6, 12, 13, 18, 24, 30])], [17], [40], [2, 4], [BOW, ODD]),
]

FEW = np.array([[1, 2, 3, 4], [1, 1, 2, 2], [2, 1, 1, 1]])
CYCLES = np.array([4.0, 3.0, 2.0, 1.0])
SPLITS = [
    *grid(triples, [1, 6]),
    *grid(within, [6], [0, 1, 2], [1, 3], [0, 6]),
    *grid(work_space, [BOW, TIGHT], [0, 300, 1_000_000], [0.1, 0.6, 1.0]),
    *(call(work_space, target) for target in (BOW, TIGHT)),
    named("work_space, nothing held", work_space, TIGHT, share=1.0),
    *(named("cheapest of many", cheapest, FEW, CYCLES, {"nbytes": np.array(nbytes), "other": 5}, TIGHT)
      for nbytes in ([10, 10, 1200, 1201], [10, 1200, 1201, 1300], [1201, 1300, 1400, 1500])),
    *(named("cheapest in its share", cheapest, FEW, CYCLES, {"nbytes": np.array([1, 500, 1000, 1700])}, TIGHT, share)
      for share in (0.25, 0.5, 1.0)),
    *(named("cheapest beside what lies there", cheapest, FEW, CYCLES,
            {"nbytes": np.array([1, 500, 1000, 1200]), "held": held}, TIGHT) for held in (500, 501, 700, 1200)),
    *grid(largest_block, [1, 10, 100], [1, 7, 40], [1, 50], [1, 2, 4], [FEW]),
    *grid(column_grains, [0, 1, 2, 7, 9], [1, 2, 4]),
]  # fmt: skip


def step_of(**figures: Any) -> Superstep:
    return exchange_step("bring", ODD, transfer=40, **figures)


A_STEP = exchange_step("bring", ODD, transfer=40, calibrated=3.5, bytes_in=10.6, bytes_out=7.7, fragments=3, tiles=5)
PLANS = [
    Plan(family="one", split={"a": 2}, supersteps=(A_STEP,), temporary_bytes=7, flops=3, considered=4,
         validity=Validity.VALIDATED),
    Plan(family="two", split={"b": 3}, supersteps=(A_STEP, A_STEP), temporary_bytes=5, flops=9, considered=2,
         validity=Validity.EXTRAPOLATED, why="large"),
    Plan(family="two", split={"c": 4}, validity=Validity.EXTRAPOLATED, why="large"),
    Plan(family="three", flops=1, why="unknown"),
]  # fmt: skip
SUPERSTEPS = [
    *(named(f"compute_step on {tiles} of {target.name}", compute_step, "add", target, vertex=vertex, tiles=tiles)
      for target, tiles, vertex in itertools.product((BOW, ODD, PAIR), (1, 7, 3000), (0, 100))),
    named("compute_step, all given", compute_step, "add", ODD, vertex=100, calibrated=0.0, tiles=3, workers=2.5,
          evenness=0.25),
    named("overhead_step", overhead_step, "start", calibrated=12.5, tiles=3),
    named("overhead_step without sync", overhead_step, "start", calibrated=12.5, tiles=3, is_sync=False),
    *(named(f"exchange_step on {tiles} tiles", step_of, tiles=tiles, bytes_in=10.6) for tiles in (1, 7, 9)),
    named("exchange_step, all given", lambda: A_STEP),
    *(named(f"in_sequence {main}", in_sequence, "both", PLANS[:many], main=main)
      for many, main in ((1, 0), (2, 1), (3, 2), (4, 0))),
    named("in_sequence by default", in_sequence, "both", PLANS[1:]),
    *(named(f"why of {many} in sequence", lambda n=many: in_sequence("both", PLANS[:n]).why) for many in (1, 2, 3, 4)),
    *(named(f"repeated {count}", repeated, A_STEP, count) for count in (0, 1, 3)),
    *(of_transfer(target, *sizes) for target in (BOW, ODD) for sizes in (
        (0,), (1,), (13,), (4000,), (0, 0), (0, 1), (0, 700), (700, 0), (512, 512, 1, 1), (4000, 4000, 7), (4, 4, 40),
        (4, 4, 1, 40), (4, 4, 40, 40), (100, 2000, 1, 1), (0, 0, 40, 40), (np.array([0, 1, 4000]),),
        (np.array([0, 1, 4000]), np.array([0, 9000, 1]), 2, np.array([1, 2, 3])),
    )),
    of_transfer(ODD, 4000, is_paired=True), of_transfer(ODD, 4000, 700, 2, 2, is_irregular=True),
    of_transfer(ODD, np.array([0, 1, 4000]), is_irregular=True, is_paired=True),
]  # fmt: skip

ELEMENTWISE = [
    *grid(elementwise.spread, [0, 1, 31, 32, 33, 129, 3200], [0, 1, 2, 4], [1, 8, 100]),
    *grid(elementwise.plan_elementwise, ["add", "cosine"], [1, 5, 100, 7777], [2, 4], MACHINES[2:5]),
    *grid(elementwise.plan_elementwise, ["subtract", "select"], [300, 5000], [1, 4], [ON_EIGHT], [0, 1, 2, 5000]),
    *grid(elementwise.plan_elementwise, sorted(elementwise.LOOP_OF), [1000], [2, 4], [ON_EIGHT]),
    *grid(elementwise.plan_elementwise, ["exp"], [1000], [4], [ON_EIGHT], [0], ["", "soft"], [False, True]),
    *grid(plan_copy, [1, 100, 5001], [1, 2, 4], [ON_EIGHT, ON_ODD], [1, 200]),
    *grid(plan_copy, [100], [4], [ON_EIGHT]),
]

OF_EIGHT = within(8, 8, 8, 8)[:, ::3]  # each third split
GATHER = [
    *grid(gather._terms, [9, 100], [1, 13], [1, 37], [2, 4], [OF_EIGHT], [EIGHT]),
    *grid(gather._terms, [50], [30], [40], [4], [within(7, 7, 7, 7)[:, ::3]], [ODD]),
    *grid(gather._search, [1, 3, 40], [5, 16], [1, 100], [4], [EIGHT, ODD]),
    *grid(gather.plan_gather, [0, 1, 2, 3, 17, 640], [0, 1, 12], [0, 1, 50], [4], [ON_EIGHT]),
    *grid(gather.plan_gather, [400, 401], [2], [1, 7], [4], [ON_TWO]),
    *grid(gather.plan_gather, [300, 301], [4, 64], [1, 7, 2000], [2, 4], [ON_ONE, ON_PAIR, ON_ODD, ON_TIGHT]),
]
SCATTER = [
    *grid(scatter._terms, [9, 100], [1, 13], [1, 37], [2, 4], [OF_EIGHT], [EIGHT], ["add", "extreme"]),
    *grid(scatter._terms, [50], [30], [40], [4], [within(7, 7, 7, 7)[:, ::3]], [ODD], ["write"]),
    *grid(scatter._search, [1, 3, 40], [5, 16], [1, 100], [4], [EIGHT, ODD], ["add"]),
    *grid(scatter.plan_scatter_add, [0, 1, 2, 3, 17, 640], [0, 1, 12], [0, 1, 50], [4], [ON_EIGHT]),
    *grid(scatter.plan_scatter_add, [7, 301], [4, 64], [1, 7, 2000], [2, 4], [ON_ONE, ON_PAIR, ON_ODD, ON_TIGHT]),
    *grid(scatter.plan_scatter_add, [20], [8], [60], [2, 4], [ON_EIGHT], [True, False],
          ["add", "multiply", "extreme", "write"]),
    # Whether the summands are split hangs on what starting their sum takes.
    *(call(scatter.plan_scatter_add, *sizes, 4, ON_EIGHT) for sizes in ((5, 6, 21), (20, 13, 44), (27, 7, 34))),
    *grid(scatter.fill_step, [0, 1, 31, 129, 33, 64, 65, 5000], [1, 2, 4], [EIGHT, ODD]),
]  # fmt: skip
EMBEDDINGS = [
    *grid(scatter.plan_embedding_gradient, [5, 60], [1, 2, 3, 40, 200, 1000], [1, 9, 100], [2, 4],
          [ON_EIGHT, ON_TIGHT]),
    *grid(scatter.plan_embedding_gradient, [5000], [1, 2, 3, 4, 8, 16, 32, 33, 64], [9], [4], [ON_TIGHT]),  # never fit
    # Just as much as the work space holds.
    *(call(scatter.plan_embedding_gradient, *sizes, 4, machine(replace(EIGHT, memory_per_tile=memory)))
      for sizes, memory in (((24, 16, 33), 820), ((4, 40, 33), 740), ((3, 100, 8), 1080))),
]  # fmt: skip

SIZES = [(1, 1, 1), (0, 0, 0), (7, 5, 3), (100, 33, 17), (4, 900, 30), (64, 16, 300), (129, 8, 16)]
MATMUL = [
    *(call(matmul._terms, *size, width, within(7, 7, 7, 7)[:, ::3], target, shares)
      for size, width, target, shares in itertools.product(
          SIZES[2:5], (2, 4), (EIGHT, ODD), ((1.0, 1.0), (0.5, 0.25)))),
    *(named(f"best way {swapped}", matmul._best, *size, 4, ODD, 7, turns, (0.5, 0.75), 0.6, is_swapped=swapped)
      for size, turns, swapped in itertools.product(SIZES[2:5], (1, 3), (False, True))),
    *(call(matmul._search, *size, 4, ODD, 5, (0.5, 0.75), share)
      for size, share in itertools.product(SIZES[2:], (0.01, 0.03, 0.6))),
    call(matmul._search, 30, 64, 1, 4, EIGHT, 3, (1.0, 1.0), 0.0045),  # in two turns it would be cheaper than in one
    *(call(matmul.plan_matmul, *size, width, machine)
      for size, width, machine in itertools.product(SIZES, (2, 4), MACHINES)),
    *(call(matmul.plan_matmul, *size, 4, machine, batch)
      for size, machine, batch in itertools.product(SIZES[2:4], (ON_EIGHT, ON_ODD), (0, 1, 2, 3, 4, 5, 8, 9, 20))),
    *(call(matmul.plan_matmul, *size, 4, ON_EIGHT, 1, shares)
      for size in SIZES[2:4] for shares in ((0.1, 1.0), (1.0, 0.1))),
]  # fmt: skip
# One tile, where nothing but the columns can be cut: each share of memory is just enough for another number of turns.
LARGE = replace(ONE, memory_per_tile=2**24)
TURNS = [
    call(matmul.plan_matmul, 8, 8, 16384, 4, machine(LARGE, matmul_proportion=(256 + 64 * part) / 2**24))
    for part in sorted({-(-16384 // turns) for turns in (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64,
                        96, 128, 192, 256, 384, 512, 1024, 2000)})
]  # fmt: skip
TURNS += [
    call(matmul.plan_matmul, 8, 8, 21504, 4, machine(LARGE, matmul_proportion=(256 + 64 * 21504 // turns) / 2**24))
    for turns in (3, 14, 24, 28, 192)
]

REDUCE = [
    *grid(reduce.reduce_vertex, [1, 2, 12, 25], [1, 10], [2, 4], [BOW, ODD]),
    *grid(reduce.plan_reduce, [0, 1, 3, 40, 400], [0, 1, 16, 500], [2, 4], [ON_EIGHT, ON_ODD], [False, True]),
    *grid(reduce.plan_reduce, [7], [100], [4], [ON_ONE, ON_PAIR]),
    *grid(reduce._stages, [1, 2, 3, 4, 5, 9, 10, 1472]),
    *grid(reduce._between_tiles, [1, 5, 30], [(2,), (8,), (4, 3)], [2, 4], [EIGHT, ODD, PAIR]),
]
SORTING = [
    *grid(sorting.num_stages, [0, 1, 2, 9, 16], [0, 1, 2, 3, 9, 20]),
    *grid(sorting.plan_sort, [1, 3, 100], [1, 2, 40, 500], [1, 3, 40], [2, 4], [ON_EIGHT]),
    *grid(sorting.plan_sort, [3], [100], [7], [4], [ON_ONE, ON_PAIR, ON_ODD]),
]
DISTANCES = [
    *grid(distances.plan_cdist, [1, 3, 90], [4, 70], [1, 2, 64], [2, 4], [ON_EIGHT]),
    *grid(distances.plan_cdist, [1000], [800], [3, 256], [4], [ON_BOW]),
]
LIMITS = [15, 16, 17, 511, 512, 513, 4095, 4096, 4097, 32767, 32768, 32769]
VALIDITY = [
    *(call(published_sizes.gather_validity, *(size if place == n else 100 for n in range(3)), 4, ON_BOW)
      for place in range(3) for size in (*LIMITS, 31, 32, 33)),
    *(call(published_sizes.scatter_validity, first, 100, second, 4, ON_BOW)
      for size, other in itertools.product((*LIMITS, 31, 32, 33), (20, 100, 20_000))
      for first, second in ((size, other), (other, size))),
    *grid(published_sizes.scatter_validity, [100], [15, 16, 512, 513], [1000], [2, 4], [ON_BOW, ON_EIGHT]),
    *(call(published_sizes.matmul_validity, *(size if place == n else other for n in range(3)), 4, 1, ON_BOW)
      for place in range(3) for other in (100, 2000)
      for size in (*LIMITS, 3, 4, 5, 1023, 1024, 1025, 8191, 8192, 8193)),
    *(call(published_sizes.matmul_validity, *sizes, width, batch, ON_EIGHT)
      for sizes in ((100, 100, 100), (2000, 2000, 9), (2000, 10, 9)) for width in (2, 4) for batch in (1, 2)),
    *grid(published_sizes.elementwise_validity, ["add", "scalar", "divide", "exp", "log", "cosine", "sqrt"], ["x"],
          [31, 32, 33, 32768 * 512, 32768 * 512 + 1], [2, 4], [ON_BOW]),
    *grid(published_sizes.elementwise_validity, ["add"], ["x"], [10, 100], [4], [ON_EIGHT]),
]  # fmt: skip

CALLS: dict[str, list[Call]] = {
    "vertices": VERTICES,
    "splits": SPLITS,
    "supersteps": SUPERSTEPS,
    "elementwise": ELEMENTWISE,
    "gather": GATHER,
    "scatter": SCATTER,
    "gradients of embeddings": EMBEDDINGS,
    "matmul": MATMUL,
    "matmul in turns": TURNS,
    "reduce": REDUCE,
    "sorting": SORTING,
    "distances": DISTANCES,
    "validity": VALIDITY,
}
