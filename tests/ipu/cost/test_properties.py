"""Properties of costs for any sizes: more work is no quicker, no plan beats the machine, the best division is taken."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise, spread
from popgeo.ipu.cost.gather import plan_gather
from popgeo.ipu.cost.loops import LOOP_OF
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.movement import plan_copy
from popgeo.ipu.cost.plan import Activity, Plan, Profile
from popgeo.ipu.cost.pooling import plan_pooling
from popgeo.ipu.cost.reduce import plan_reduce
from popgeo.ipu.cost.scatter import plan_scatter_add
from popgeo.ipu.cost.sorting import plan_sort, stage_shares
from popgeo.ipu.cost.vertex_cycles import amp_vertex

BOW = IpuTarget.bow()
FEW = Machine(target=replace(BOW, name="24 tiles", num_tiles=24))
TILES = FEW.num_tiles
SIZES, WIDTHS = st.integers(1, 700), st.sampled_from((2, 4))
KINDS = st.sampled_from(sorted(LOOP_OF))
few_examples = settings(max_examples=30, deadline=None)


def ideal(plan: Plan) -> float:
    return plan.cycles(Profile.IDEAL)


def compute(plan: Plan) -> float:
    """Return the cycles of a plan's compute steps, without launches."""
    return sum(s.ideal - BOW.launch_cycles for s in plan.supersteps if s.activity is Activity.COMPUTE)


def is_sound(plan: Plan) -> bool:
    """Check that no step takes negative time or more tiles than there are, and no mean exceeds its slowest tile."""
    return all(
        0 <= step.mean <= step.ideal + 1e-6 and 0 <= step.tiles <= TILES and step.calibrated >= 0
        for step in plan.supersteps
    )


@few_examples
@given(rows=SIZES, contraction=SIZES, columns=SIZES, width=WIDTHS)
def test_a_product_is_no_quicker_than_its_matrix_units(rows, contraction, columns, width):
    plan = plan_matmul(rows, contraction, columns, width, FEW)
    macs = BOW.float16_macs if width == 2 else BOW.float32_macs
    assert plan.flops == 2 * rows * contraction * columns
    assert compute(plan) >= plan.flops / 2 / macs / TILES
    assert is_sound(plan)


@few_examples
@given(rows=SIZES, contraction=SIZES, columns=SIZES, width=WIDTHS, share=st.sampled_from((0.25, 0.5, 1.0)))
def test_a_product_costs_as_much_either_way_round(rows, contraction, columns, width, share):
    one = plan_matmul(rows, contraction, columns, width, FEW, shares=(share, 1.0))
    other = plan_matmul(columns, contraction, rows, width, FEW, shares=(1.0, share))
    assert ideal(one) == pytest.approx(ideal(other))


@few_examples
@given(rows=st.integers(13, 700), contraction=SIZES, columns=SIZES, width=WIDTHS)
def test_the_matrix_unit_takes_longer_for_more(rows, contraction, columns, width):
    def cycles(*more: int) -> float:
        return amp_vertex(rows + more[0], contraction + more[1], columns + more[2], width, BOW)

    assert cycles(0, 0, 0) <= min(cycles(1, 0, 0), cycles(0, 1, 0), cycles(0, 0, 1))
    assert cycles(0, 0, 0) < min(cycles(6, 0, 0), cycles(0, 16, 0), cycles(0, 0, 16))


def plain_way(rows: int, contraction: int, columns: int, cuts: tuple[int, int, int]) -> tuple[float, float]:
    """Return the cycles of a float32 product in the given parts, without starts of steps, and the bytes of a tile.

    The matrix unit takes blocks of 8 terms and makes 16 columns at once. A tile receives 4 bytes per cycle, or 8 if a
    neighbor needs the same bytes, and no piece in less than 4 cycles. It lays out 8 bytes per cycle and adds vectors of
    two numbers.
    """
    high = math.ceil(rows / cuts[0])
    deep = min(contraction, 8 * math.ceil(math.ceil(contraction / 8) / cuts[1]))
    wide = min(columns, 16 * math.ceil(math.ceil(columns / 16) / cuts[2]))
    left, right, sums = 4 * high * deep, 4 * deep * wide, 4 * high * wide
    absent = right * (1 - 1 / cuts[0])  # the tile holds its share of the right matrix
    bring = max(left / (8 if cuts[2] % 2 == 0 else 4), 4) + (max(absent / 4, 4) if absent else 0)
    product = bring + (left + right) / 8 + amp_vertex(high, deep, wide, 4, BOW)
    if cuts[1] > 1:
        others = sums * (1 - 1 / cuts[1])
        product += max(others / 4, 3 * cuts[1] + 1 + others / 256)
        product += 17 + cuts[1] * math.ceil(math.ceil(high * wide / cuts[1]) / 2)
    return product, left + right + sums


def cheapest_ways(rows: int, contraction: int, columns: int, space: float, turns: int) -> list[float]:
    """Return the cycles of all divisions that fit, either way round, with the given number of serial parts."""
    every = [cuts for cuts in itertools.product(range(1, 13), repeat=3) if math.prod(cuts) <= 12]
    found = []
    for high, wide in ((rows, columns), (columns, rows)):
        part = math.ceil(wide / turns)
        for cuts in every:
            if cuts[0] <= high and cuts[1] <= math.ceil(contraction / 8) and cuts[2] <= math.ceil(part / 16):
                cycles, nbytes = plain_way(high, contraction, part, cuts)
                found += [turns * cycles + (500 * turns if turns > 1 else 0)] if nbytes <= space else []
    return found


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 90), contraction=st.integers(1, 90), columns=st.integers(1, 90),
    memory=st.sampled_from((2**20, 10_000, 6_000, 3_000)),
)  # fmt: skip
def test_a_product_is_computed_in_the_cheapest_of_all_ways_that_fit(rows, contraction, columns, memory):
    """The number of serial parts is the least that memory allows, or one of the next four numbers."""
    machine = Machine(target=replace(BOW, num_tiles=12, memory_per_tile=memory))
    plan = plan_matmul(rows, contraction, columns, 4, machine)
    held = 4 * (rows * contraction + contraction * columns + rows * columns) / 12
    space = min(0.6 * memory, 0.85 * memory - held)
    by_turns = [cheapest_ways(rows, contraction, columns, space, t) for t in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)]
    fewest = next((number for number, ways in enumerate(by_turns) if ways), None)
    assume(fewest is not None and fewest < 8)
    choice = by_turns[fewest : fewest + 5] if fewest else by_turns[:1]
    turns = plan.split["serial"]
    steps = [step for step in plan.supersteps if step.ideal and step.name != "loop over parts"]
    starts = turns * sum(240 if step.activity is Activity.EXCHANGE else 82 for step in steps)
    expected = min(way for ways in choice for way in ways)
    assert ideal(plan) - starts - (82 if turns > 1 else 0) == pytest.approx(expected)


@few_examples
@given(rows=SIZES, columns=st.integers(1, 90), lookups=SIZES, width=WIDTHS)
def test_a_gather_and_a_scatter_are_bounded_by_what_a_tile_must_read_and_write(rows, columns, lookups, width):
    gather = plan_gather(rows, columns, lookups, width, FEW)
    scatter = plan_scatter_add(rows, columns, lookups, width, FEW)
    for plan in (gather, scatter):
        assert is_sound(plan)
        assert compute(plan) >= 0.5 * lookups * columns / TILES  # a worker copies two elements in two cycles
    assert scatter.flops == lookups * columns
    assert ideal(plan_scatter_add(rows, columns, lookups, width, FEW, makes_table=True)) > ideal(scatter)


@few_examples
@given(kind=KINDS, elements=st.integers(1, 20_000), width=WIDTHS)
def test_work_by_element_grows_with_elements_and_shrinks_with_tiles(kind, elements, width):
    plan = plan_elementwise(kind, elements, width, FEW)
    assert is_sound(plan)
    assert ideal(plan) <= ideal(plan_elementwise(kind, elements + 1, width, FEW))
    assert ideal(plan) >= ideal(plan_elementwise(kind, elements, width, Machine(target=BOW)))
    assert plan.split["tiles"] == spread(elements, width, TILES)[1] <= TILES
    assert ideal(plan_elementwise(kind, elements, width, FEW, operand=2)) >= ideal(plan) + BOW.sync_cycles


@few_examples
@given(elements=st.integers(1, 20_000), width=WIDTHS)
def test_a_tensor_is_spread_so_that_no_tile_has_less_than_the_grain_unless_it_is_the_last(elements, width):
    most, tiles = spread(elements, width, TILES)
    assert (tiles - 1) * most < elements <= tiles * most
    assert most == elements or most * width >= 128


@few_examples
@given(outputs=SIZES, summands=SIZES, width=WIDTHS, is_inner=st.booleans())
def test_a_reduction_reads_every_element_and_counts_it_once(outputs, summands, width, is_inner):
    plan = plan_reduce(outputs, summands, width, FEW, is_inner)
    assert is_sound(plan)
    assert plan.flops == outputs * summands
    assert compute(plan) >= outputs * summands / TILES / (BOW.vector_bytes / width) - 64
    crossing = [step.name for step in plan.supersteps if "partial" in step.name]
    assert len(crossing) in (0, 2, 4)
    assert crossing == ["exchange partial results", "combine partial results"] * (len(crossing) // 2)


@few_examples
@given(elements=st.integers(1, 20_000), pieces=st.integers(1, 40), width=WIDTHS)
def test_a_copy_takes_its_bytes_over_the_exchange_and_through_memory(elements, pieces, width):
    move, copy = plan_copy(elements, width, FEW, pieces).supersteps
    nbytes = spread(elements, width, TILES)[0] * width
    assert (move.bytes_in, move.bytes_out, move.fragments) == (nbytes, nbytes, pieces)
    assert move.ideal == pytest.approx(
        BOW.sync_cycles + 1.2 * max(nbytes / BOW.exchange_bytes, 3 * pieces + 1 + nbytes / 256)
    )
    assert copy.ideal == pytest.approx(BOW.launch_cycles + BOW.copy_cycles + nbytes / BOW.copy_bytes)


@few_examples
@given(log_length=st.integers(0, 9), rows=st.integers(1, 40), width=WIDTHS)
def test_a_whole_sort_has_a_bitonic_networks_stages_and_a_search_no_more(log_length, rows, width):
    length = 2**log_length
    stages = stage_shares(length, length)
    assert stages == [1.0] * (log_length * (log_length + 1) // 2)
    for k in (1, max(1, length // 2), length):
        assert sum(stage_shares(length, k)) <= max(sum(stages), 2 * log_length + 1)
        assert ideal(plan_sort(rows, length, k, width, FEW)) <= ideal(plan_sort(rows, length, length, width, FEW)) * 2


@few_examples
@given(results=SIZES, window=st.integers(1, 30), run=st.integers(1, 50))
def test_a_pool_takes_longer_for_larger_windows_and_shorter_runs(results, window, run):
    def cycles(**changes: int) -> float:
        sizes = {"results": results, "taken": results * window, "given": results * window, "run": run} | changes
        return ideal(plan_pooling(**sizes, width=4, machine=FEW))

    assert cycles() <= cycles(taken=results * (window + 1))
    assert cycles() <= cycles(run=1)
    assert cycles() < cycles(given=results * window + 64 * TILES)


@pytest.mark.parametrize("plan", [
    lambda machine: plan_matmul(300, 200, 100, 4, machine),
    lambda machine: plan_gather(300, 64, 900, 4, machine),
    lambda machine: plan_scatter_add(300, 64, 900, 4, machine),
    lambda machine: plan_reduce(3, 9000, 4, machine),
    lambda machine: plan_sort(4, 256, 256, 4, machine),
])  # fmt: skip
def test_twice_the_tiles_are_never_slower(plan):
    found = [ideal(plan(Machine(target=replace(BOW, num_tiles=tiles)))) for tiles in (1, 2, 4, 8, 16, 32)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("faster", "plan"),
    [
        ({"exchange_bytes": 8, "exchange_pair_bytes": 16}, lambda m: plan_gather(300, 64, 900, 4, m)),
        ({"copy_bytes": 16}, lambda m: plan_matmul(300, 200, 100, 4, m)),
        ({"matrix_load_bytes": 32}, lambda m: plan_matmul(300, 200, 100, 4, m)),
        ({"float32_macs": 64}, lambda m: plan_matmul(3000, 200, 100, 4, m)),
        ({"float16_macs": 256}, lambda m: plan_matmul(3000, 200, 100, 2, m)),
        ({"sync_cycles": 100}, lambda m: plan_scatter_add(300, 64, 900, 4, m)),
        ({"launch_cycles": 10}, lambda m: plan_reduce(3, 9000, 4, m)),
        ({"vector_bytes": 16}, lambda m: plan_elementwise("exp", 9000, 4, m)),
        ({"copy_cycles": 10}, lambda m: plan_copy(9000, 4, m)),
    ],
)
def test_a_machine_that_is_faster_in_one_thing_is_not_slower(faster, plan):
    quick = replace(FEW, target=replace(FEW.target, **faster))
    assert ideal(plan(quick)) < ideal(plan(FEW))
