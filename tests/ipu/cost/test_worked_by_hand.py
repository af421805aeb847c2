"""Costs of each family worked out by hand, on machines of one tile or two, so that every term can be followed.

A Bow tile has six workers, loads and stores vectors of 8 bytes, receives 4 bytes per cycle, and needs 82 cycles to
start a compute set and 240 to synchronise.
"""

from dataclasses import replace

import pytest
import torch

from popgeo import ipu
from popgeo.capture.capture import bind, capture
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.distances import plan_cdist
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.movement import plan_copy
from popgeo.ipu.cost.plan import Profile
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.scatter import fill_step, plan_embedding_gradient, plan_scatter_add
from popgeo.ipu.cost.sorting import plan_sort
from popgeo.ipu.cost.vertex_cycles import amp_vertex

BOW = IpuTarget.bow()
ONE, TWO = Machine(target=replace(BOW, num_tiles=1)), Machine(target=replace(BOW, num_tiles=2))


def cycles(plan) -> tuple[float, float]:
    return plan.cycles(Profile.IDEAL), plan.cycles(Profile.CALIBRATED)


def ideal_steps(plan) -> dict[str, float]:
    return {step.name: step.ideal for step in plan.supersteps if step.ideal}


def test_a_gather_on_one_tile():
    # 10 rows of 4 floats, 60 lookups. The table lies there; the index comes: 60 * 4 B = 240 B in 60 cycles.
    # Each worker looks up 10 rows and finds all: 30 + 10 * (19 + 2 * 2) = 260 cycles, of which each takes 6.
    plan = plan_gather(10, 4, 60, 4, ONE)
    ideal = (240 + 60) + (82 + 6 * 260)
    # The constants replace what starts and synchronises: 1350, factors 1.221 and 1.077, and 1.431 an element.
    calibrated = 1350 + 1.221 * 60 + 1.077 * 6 * 260 + 1.431 * 240
    assert cycles(plan) == pytest.approx((ideal, calibrated))
    assert plan.temporary_bytes == 240


def test_a_gather_whose_rows_are_split_has_a_second_stage():
    # 1000 rows of 2 floats on two tiles of 500 rows, which lie there, both with the one lookup: 2 transfers take
    # 3 * 2 + 1 instructions. A worker finds the row: 30 + (19 + 2). Then one tile takes the results of both blocks,
    # 2 * 8 B, by 3 * 2 + 2 + 16 / 256 instructions, and picks one. It holds both, 8 B more, and the index.
    plan = plan_gather(1000, 2, 1, 4, TWO)
    assert plan.split == {"columns": 1, "rows": 2, "lookups": 1}
    assert ideal_steps(plan) == {
        "spread table and index": 240 + 7, "slice rows": 82 + 6 * 51,
        "regroup blocks of rows": 240 + 8.0625, "select block": 82 + 6 * 51,
    }  # fmt: skip
    assert plan.temporary_bytes == 16 + 8 + 4


def test_a_scatter_on_one_tile():
    # 60 rows of 4 floats into 12. A worker has 2 rows, sees all 60 summands and adds 10 of them:
    # 38 + 10 * (11 + 3 * 3) + 5 * 50.
    plan = plan_scatter_add(12, 4, 60, 4, ONE)
    add = 6 * (38 + 10 * 20 + 250)
    ideal = (240 + 60) + (82 + add) + 240  # the result is already in place
    calibrated = 1905 + 3.434 * 60 + 0.7553 * add + 6.146 * 48 + 3.083 * 240
    assert cycles(plan) == pytest.approx((ideal, calibrated))
    assert plan.flops == 240
    assert plan.temporary_bytes == 192 + 960 + 240  # the rows, the summands, the index


def test_a_scatter_whose_summands_are_split_adds_partial_sums():
    # Two tiles with 30 summands each: 120 B of index in 30 cycles. Zeroing 48 floats takes 23 + 24 cycles; a worker
    # adds 5 of the 30: 38 + 5 * 20 + 5 * 25. Then each tile gets its 24 sums twice, 192 B in 48 cycles, and adds them:
    # 17 + 2 * 12, and 6 * (60 + 3 * 2) to scale them.
    plan = plan_scatter_add(12, 4, 60, 4, TWO)
    assert plan.split == {"columns": 1, "rows": 1, "lookups": 2}
    assert ideal_steps(plan) == {
        "spread summands and index": 240 + 30, "update rows": 82 + 47 + 6 * 263,
        "exchange partial sums": 240 + 48, "add partial sums": 82 + 41 + 6 * 66,
    }  # fmt: skip
    assert plan.temporary_bytes == 2 * 192 + 480 + 120


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Two blocks of 8 floats; a worker streams 2 rows in 46 cycles, in the first pass in 46 + 2 + 8 * 2 = 64.
        ((12, 16, 16, 4), 63 + 6 * (7 + 3) + (15 + 25 + 32 + 6 * 46) + (11 + 25 + 32 + 6 * 64)),
        # One block; 4 rows take 46 + 8 cycles, and 2 + 8 * 4 more.
        ((24, 8, 16, 4), 63 + 6 * 7 + (11 + 25 + 32 + 6 * (54 + 34))),
        # Two blocks of 16 halves, two of 16 columns; 2 rows take 34 cycles, in the first pass too.
        ((12, 32, 17, 2), 63 + 6 * (7 + 3) + (15 + 2 * (57 + 6 * 34)) + (11 + 2 * (57 + 6 * 34))),
        ((6, 16, 16, 2), 63 + 6 * 7 + (11 + 57 + 6 * 25)),
        ((6, 8, 16, 4), 63 + 6 * 7 + (11 + 57 + 6 * (47 + 2 + 8))),
        ((18, 16, 16, 2), 63 + 6 * 7 + (11 + 57 + 6 * 31)),
        ((24, 16, 16, 2), 63 + 6 * 7 + (11 + 57 + 6 * (31 + 4))),
    ],
)
def test_a_product_in_the_matrix_unit(sizes, expected):
    assert amp_vertex(*sizes, BOW) == expected


def test_an_operation_by_element_on_one_tile():
    # 24 floats, 4 of which are broadcast: 16 B come in 4 cycles, but 3 + 1 + 16 / 256 instructions take longer.
    # A worker has 4, two vectors of 3 cycles: 29 + 6; the tile 11 around them.
    plan = plan_elementwise("add", 24, 4, ONE, operand=4)
    bring, compute = 240 + 4.0625, 82 + 6 * 35 + 11
    assert cycles(plan) == pytest.approx((bring + compute, 716.2 + bring + compute))
    assert plan.flops == 24
    # A half-precision cosine goes one by one: 20 + 25 for the one element of each worker.
    assert plan_elementwise("cosine", 6, 2, ONE).cycles(Profile.IDEAL) == 82 + 6 * 45


def test_a_sum_that_crosses_tiles():
    # 64 floats on two tiles: each sums 32 in 17 + 32 cycles; one receives two sums, by 3 * 2 + 1 + 4 / 256
    # instructions, and adds them in 17 + 2.
    ideal = (82 + 49) + (240 + 7.015625) + (82 + 19)
    assert cycles(plan_reduce(1, 64, 4, TWO)) == pytest.approx((ideal, ideal + 1380 + 870))


def test_sums_that_lie_on_one_tile_each_cross_nothing():
    # Four sums of 16 on two tiles, two each: one vector of two, 16 + 8 + 3 + 15 cycles of a worker.
    ideal = 82 + 6 * 42
    assert cycles(plan_reduce(4, 16, 4, TWO, is_inner=True)) == pytest.approx((ideal, ideal + 1380))
    assert plan_reduce(4, 16, 4, TWO, is_inner=False).cycles(Profile.IDEAL) > ideal


@pytest.mark.parametrize(
    ("tiles", "ways", "meet"), [(3, 1, [3]), (10, 2, [10]), (64, 2, [64]), (400, 2, [20, 20]), (1472, 2, [39, 38])]
)
def test_partial_sums_meet_at_once_or_in_two_stages_of_their_square_root(tiles, ways, meet):
    plan = plan_reduce(1, 64 * tiles, 4, Machine(target=replace(BOW, num_tiles=tiles)))
    assert (plan.considered, [step.fragments for step in plan.supersteps if step.fragments]) == (ways, meet)


def test_a_copy_and_a_fill():
    # 32 floats on each of two tiles, from 3 tensors: 128 B in 32 cycles, 1.2 times as many as they have no order; then
    # 288 cycles and 8 B each.
    assert plan_copy(64, 4, TWO, pieces=3).cycles(Profile.IDEAL) == pytest.approx(240 + 38.4 + 82 + 288 + 16)
    step = fill_step(100, 4, BOW)  # 400 B on four tiles, 25 floats each: 23 cycles and 13 vectors
    assert (step.tiles, step.ideal, step.workers) == (4, 82 + 36, 1)


@pytest.mark.parametrize(
    ("function", "k"),
    [
        (lambda x: x.sort(dim=1, stable=True).indices[:, :28], 28),
        (lambda x: x.sort(dim=-1, descending=True).values[:, :28].exp(), 28),
        (lambda x: x.sort(dim=1).values[:, :-1], 575),
        (lambda x: [part[:, : 4 * i] for i, part in enumerate(x.sort(dim=1), start=1)], 8),
        (lambda x: x.sort(dim=1).values[:, 2:28], 576),
        (lambda x: x.sort(dim=1).values[:28], 576),
        (lambda x: tuple(x.sort(dim=1)), 576),
    ],
)
def test_a_sort_of_which_only_the_first_places_are_read_is_a_search_for_them(function, k):
    graph = ipu.compile(function, [torch.ones(576, 576)]).graph
    (found,) = (one.plan for one in cost(graph, BOW) if one.family == "sorting")
    assert found.cycles(Profile.IDEAL) == plan_sort(576, 576, k, 4, Machine(target=BOW)).cycles(Profile.IDEAL)


def test_sorting_exchanges_only_between_tiles():
    # Four numbers: 3 stages; a worker has one, and one pair: 23 + 4 + 11.
    assert plan_sort(1, 4, 4, 4, ONE).cycles(Profile.IDEAL) == 3 * (82 + 19 + 6 * 38)
    # 64 over two tiles: 21 stages; half of 32 numbers with their places, 128 B in 32 cycles; 6 numbers, 3 pairs each.
    plan = plan_sort(1, 64, 64, 4, TWO)
    assert plan.cycles(Profile.IDEAL) == 21 * (240 + 32 + 82 + 19 + 6 * (23 + 24 + 33))
    assert plan.temporary_bytes == 2 * 32 * 8


def test_distances_of_few_coordinates_are_taken_difference_by_difference():
    # 3 and 4 points of 2 coordinates: 24 differences, the larger set brought; their squares; 12 sums of 2; 12 roots.
    assert plan_cdist(3, 4, 2, 4, ONE).parts == (
        plan_elementwise("subtract", 24, 4, ONE, operand=8),
        plan_elementwise("square", 24, 4, ONE),
        plan_reduce(12, 2, 4, ONE, is_inner=True),
        plan_elementwise("sqrt", 12, 4, ONE),
    )


def parts(function, *inputs):
    """Return the passes of the last operation with a cost."""
    graph = capture(function, bind(function, *inputs)).graph
    return [op.plan for op in cost(graph, ONE.target) if op.plan.supersteps][-1].parts


def test_what_is_made_of_passes_is_made_of_these():
    x, by_element = torch.zeros(8, 16), plan_elementwise
    rows = plan_reduce(8, 16, 4, ONE, is_inner=True)
    one_per_row = {"elements": 128, "width": 4, "machine": ONE, "operand": 8}
    assert parts(lambda x: torch._softmax(x, 1, False), x) == (
        rows, by_element("subtract", **one_per_row), by_element("exp", 128, 4, ONE), rows,
        by_element("inverse", 8, 4, ONE, name="inverse of sums"), by_element("multiply", **one_per_row),
    )  # fmt: skip
    (whitened,) = parts(lambda x: torch.nn.functional.layer_norm(x, [16]), x)
    assert whitened.parts == (
        rows, rows, by_element("rsqrt", 8, 4, ONE, name="inverse deviations"), by_element("subtract", **one_per_row),
        by_element("multiply", **one_per_row),
    )  # fmt: skip
    assert parts(torch.nn.functional.mse_loss, x, x) == (
        by_element("subtract", 128, 4, ONE), by_element("square", 128, 4, ONE), plan_reduce(1, 128, 4, ONE, True),
    )  # fmt: skip
    picked = parts(lambda x, y: torch.nn.functional.nll_loss(x, y), x, torch.zeros(8, dtype=torch.long))
    assert picked[0].family == "losses"  # a one at the target of each row
    assert picked[1:] == (by_element("multiply", 128, 4, ONE), rows, plan_reduce(1, 8, 4, ONE, True))
    total = plan_reduce(8, 16, 4, ONE, is_inner=True)
    assert parts(lambda x: x.mean(1), x) == (total, by_element("scalar", 8, 4, ONE))


def plan_of(function, *inputs):
    """Return the plan of the last operation that gathers or scatters."""
    graph = capture(function, bind(function, *inputs)).graph
    return [op.plan for op in cost(graph, ONE.target) if op.plan.family in ("gather", "scatter")][-1]


TABLE, FIVE = torch.zeros(8, 16), torch.zeros(5, dtype=torch.long)  # a table, and lookups in it
ROW_EACH = FIVE[:, None].expand(5, 16)
DENSE = torch.zeros(5, 16, dtype=torch.long)


@pytest.mark.parametrize(
    ("function", "others", "sizes"),
    [
        (lambda x, i: x.index_select(0, i), (FIVE,), (8, 16, 5)),
        (lambda x, i: x.index_select(-1, i), (FIVE,), (16, 8, 5)),
        (lambda x, i: torch.nn.functional.embedding(i, x), (FIVE.view(1, 5),), (8, 16, 5)),
        (lambda x, i: x[i], (FIVE,), (8, 16, 5)),
        (lambda x, i: x[:, i], (FIVE,), (16, 8, 5)),
        (lambda x, i: x[i, i], (FIVE,), (128, 1, 5)),
        (lambda x, i: x.gather(0, i.expand(5, 16)), (FIVE[:, None],), (8, 16, 5)),
        (lambda x, i: x.gather(-2, i), (DENSE,), (128, 1, 80)),  # another row for each column: single elements
        (lambda x, i: x.gather(0, i), (FIVE[:, None],), (8, 1, 5)),  # only the first column
    ],
)
def test_what_gathers_is_planned_as_rows_that_are_looked_up(function, others, sizes):
    assert plan_of(function, TABLE, *others) == plan_gather(*sizes, 4, ONE)


@pytest.mark.parametrize(
    ("function", "others", "sizes", "operation"),
    [
        (lambda x, i, y: x.index_add(0, i, y), (FIVE, torch.zeros(5, 16)), (8, 16, 5), "add"),
        (lambda x, i, y: x.index_add(1, i, y), (FIVE, torch.zeros(8, 5)), (16, 8, 5), "add"),
        (lambda x, i, y: x.index_copy(0, i, y), (FIVE, torch.zeros(5, 16)), (8, 16, 5), "write"),
        (lambda x, i, y: x.scatter_add(0, i.expand(5, 16), y), (FIVE[:, None], torch.zeros(5, 16)), (8, 16, 5), "add"),
        (lambda x, i, y: x.scatter_add(0, i, y), (DENSE, torch.zeros(5, 16)), (128, 1, 80), "add"),
        (lambda x, i, y: x.scatter(0, i, y), (DENSE, torch.zeros(5, 16)), (128, 1, 80), "write"),
        (lambda x, i, y: x.scatter_reduce(0, i, y, "sum"), (DENSE, torch.zeros(5, 16)), (128, 1, 80), "add"),
        (lambda x, i, y: x.scatter_reduce(0, i, y, "prod"), (DENSE, torch.zeros(5, 16)), (128, 1, 80), "multiply"),
        (lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), (DENSE, torch.zeros(5, 16)), (128, 1, 80), "extreme"),
        (lambda x, i, y: x.index_put((i,), y), (FIVE, torch.zeros(5, 16)), (8, 16, 5), "write"),
        (lambda x, i, y: x.index_put((i,), y, False), (FIVE, torch.zeros(5, 16)), (8, 16, 5), "write"),
        (lambda x, i, y: x.index_put((i, i), y, True), (FIVE, torch.zeros(5)), (128, 1, 5), "add"),
    ],
)
def test_what_scatters_is_planned_as_rows_that_are_changed(function, others, sizes, operation):
    assert plan_of(function, TABLE, *others) == plan_scatter_add(*sizes, 4, ONE, operation=operation)


def test_a_mean_is_a_sum_a_sum_of_ones_and_a_quotient():
    def mean(x, i, y):
        return x.scatter_reduce(0, i.expand(5, 16), y, "mean")

    assert plan_of(mean, TABLE, FIVE[:, None], torch.zeros(5, 16)).parts == (
        plan_scatter_add(8, 16, 5, 4, ONE),
        plan_scatter_add(8, 1, 5, 4, ONE, makes_table=True),
        plan_elementwise("divide", 128, 4, ONE, operand=8),
    )


def test_the_gradient_of_an_embedding_adds_as_many_columns_at_a_time_as_the_work_space_holds():
    def gradient(y, i):
        return torch.ops.aten.embedding_dense_backward(y, i, 8, -1, False)

    assert plan_of(gradient, torch.zeros(5, 16), FIVE) == plan_embedding_gradient(8, 16, 5, 4, ONE)
    assert plan_embedding_gradient(8, 16, 5, 4, ONE) == plan_scatter_add(8, 16, 5, 4, ONE, makes_table=True)
