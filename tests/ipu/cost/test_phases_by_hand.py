"""Costs worked out by hand: products, work in turns, refusals of planners, and operations without cost.

As in `test_worked_by_hand`: six workers, vectors of 8 bytes, 4 bytes per cycle, 82 cycles to start a compute set and
240 to synchronise. A product of 12 x 16 by 16 x 16 float32 takes 63 + 6 * 10 + 348 + 452 = 923 cycles of the matrix
unit.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from popgeo.capture.op_graph import OpGraph, Value
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.operands import distinct, tensor
from popgeo.ipu.cost.plan import Activity, OpCost, Plan, Profile, Superstep, Validity
from popgeo.ipu.cost.published_sizes import gather_validity, matmul_validity, scatter_validity
from popgeo.ipu.cost.reduce import reduce_vertex
from popgeo.ipu.cost.scatter import plan_embedding_gradient, plan_scatter_add
from popgeo.ipu.cost.splits import cheapest, triples, work_space
from popgeo.ipu.cost.supersteps import in_sequence, transfer_cycles
from popgeo.ipu.cost.vertex_cycles import amp_vertex
from tests.support.cost_graphs import cost_of, given

BOW = IpuTarget.bow()
ON_BOW = Machine(target=BOW)
ONE, TWO = Machine(target=replace(BOW, num_tiles=1)), Machine(target=replace(BOW, num_tiles=2))


def cycles(plan: Plan) -> tuple[float, float]:
    return plan.cycles(Profile.IDEAL), plan.cycles(Profile.CALIBRATED)


def test_a_product_on_one_tile():
    # 768 B of the left matrix come in 192 cycles; the right one lies there. Both, 1792 B, are laid out at 8 B a cycle.
    plan = plan_matmul(12, 16, 16, 4, ONE)
    assert cycles(plan) == pytest.approx(
        ((240 + 192) + (82 + 224) + (82 + 923), 1060 + 1.111 * (192 + 224) + 0.9588 * 923)
    )
    assert (plan.temporary_bytes, plan.flops) == (768 + 1024 + 768, 2 * 12 * 16 * 16)


def test_products_that_find_no_tile_of_their_own_come_one_after_the_other():
    # Each turn starts all steps again, and takes 500 further cycles.
    plan = plan_matmul(12, 16, 16, 4, ONE, batch=3)
    loop = 82 + 3 * 500
    assert cycles(plan) == pytest.approx(
        (
            3 * (240 + 192) + 3 * (82 + 224) + 3 * (82 + 923) + loop,
            1060 + 3 * (1.111 * (192 + 224) + 0.9588 * 923) + 3 * 500,
        )
    )
    assert plan.flops == 3 * 2 * 12 * 16 * 16


def test_a_product_whose_contraction_is_split_adds_partial_sums():
    # Two tiles with 8 of 16 terms each: 384 and 512 B. Then each gets the other's half of 192 sums, 384 B, and adds
    # two vectors of 96 in 17 + 2 * 48 cycles.
    plan = plan_matmul(12, 16, 16, 4, TWO)
    assert plan.split == {"rows": 1, "contraction": 2, "columns": 1, "serial": 1}
    assert [(step.name, step.ideal, step.bytes_in) for step in plan.supersteps if step.ideal] == [
        ("bring both matrices", 240 + 96, 384), ("lay out both matrices", 82 + 112, 0),
        ("multiply", 82 + amp_vertex(12, 8, 16, 4, BOW), 0),
        ("exchange partial sums", 240 + 96, 384), ("add partial sums", 82 + 113, 0),
    ]  # fmt: skip
    assert plan.temporary_bytes == 384 + 512 + 768


def test_rows_of_windows_that_overlap_are_brought_once():
    # Half of the left matrix is distinct, and both of two tiles, which make other columns, receive it over both lanes.
    # What each holds of the right one, 16 of 32 columns, lies there.
    plan = plan_matmul(12, 16, 32, 4, TWO, shares=(0.5, 1.0))
    assert plan.split == {"rows": 1, "contraction": 1, "columns": 2, "serial": 1}
    bring, lay_out = (
        step.ideal for step in plan.supersteps if step.name in ("bring both matrices", "lay out both matrices")
    )
    assert (bring, lay_out) == (240 + 384 / 8, 82 + (384 + 1024) / 8)


def test_columns_of_an_embedding_gradient_take_turns_where_all_are_too_many():
    machine = Machine(target=replace(BOW, num_tiles=8, memory_per_tile=2000))
    plan = plan_embedding_gradient(5, 200, 9, 4, machine)
    (turns,) = (
        turns
        for turns in (2, 4, 8, 16, 32, 64)
        if plan.temporary_bytes
        == plan_scatter_add(5, -(-200 // turns), 9, 4, machine, makes_table=True).temporary_bytes
    )
    part = plan_scatter_add(5, -(-200 // turns), 9, 4, machine, makes_table=True)
    assert cycles(plan) == pytest.approx(tuple(turns * (each + 82 + 418) for each in cycles(part)))
    assert plan.flops == 9 * 200
    assert part.temporary_bytes <= work_space(machine.target, 5 * 200 * 4 / 8)


def test_one_sum_takes_an_element_a_cycle_and_several_a_vector_each_worker():
    assert reduce_vertex(1, 100, 4, BOW) == 17 + 100
    assert reduce_vertex(2, 100, 4, BOW) == 6 * (16 + 1 * (11 + 99))
    assert reduce_vertex(13, 100, 2, BOW) == 6 * (16 + 1 * (11 + 99))
    assert reduce_vertex(13, 100, 4, BOW) == 6 * (16 + 2 * (11 + 99))


def test_an_exchange_takes_the_longest_of_receiving_sending_and_issuing_instructions():
    assert transfer_cycles(BOW, bytes_in=400, bytes_out=4000) == 1000
    assert transfer_cycles(BOW, bytes_in=400, bytes_out=400, fragments_in=50, fragments_out=70) == 150 + 70 + 400 / 256
    assert transfer_cycles(BOW, bytes_in=0, bytes_out=0, fragments_in=50) == 0
    assert transfer_cycles(BOW, bytes_in=400, is_irregular=True) == pytest.approx(120)


def test_of_splits_that_fit_the_quickest_is_taken_and_where_none_fits_the_quickest_of_all():
    splits, quick = np.array([[1, 2, 3]] * 3), np.array([3.0, 2.0, 1.0])
    target = replace(BOW, memory_per_tile=1000)

    def taken(*nbytes: int, share: float = 0.6, **others: int) -> int:
        return cheapest(splits, quick, {"nbytes": np.array(nbytes), **others}, target, share).cuts[0]

    assert [taken(1, 600, 601), taken(1, 600, 600), taken(601, 601, 601)] == [2, 3, 3]
    assert [taken(1, 500, 501, share=0.5), taken(1, 850, 851, share=1.0)] == [2, 2]
    assert [taken(1, 550, 551, held=300), taken(1, 600, 601, held=250)] == [2, 2]


def test_what_a_plan_in_sequence_cannot_be_trusted_for_is_said_once():
    sure = Plan(family="gather", validity=Validity.VALIDATED, split={"rows": 2})
    large = Plan(family="matmul", validity=Validity.EXTRAPOLATED, why="large", temporary_bytes=7)
    both = in_sequence("both", sure, large, large, main=1)
    assert (both.validity, both.why, both.temporary_bytes) == (Validity.EXTRAPOLATED, "matmul: large", 7)
    assert in_sequence("both", large, Plan(family="x", why="unknown"), sure).validity is Validity.ESTIMATE
    assert in_sequence("both", sure, sure).validity is Validity.VALIDATED


@pytest.mark.parametrize(("size", "is_inside"), [(15, False), (16, True), (4096, True), (4097, False)])
def test_what_was_measured_is_meant_with_its_ends(size, is_inside):
    expected = Validity.VALIDATED if is_inside else Validity.EXTRAPOLATED
    assert gather_validity(size, 100, 1000, 4, ON_BOW)[0] is expected
    assert scatter_validity(size, 100, 32768, 4, ON_BOW)[0] is expected
    assert scatter_validity(20_000, 100, size, 4, ON_BOW)[0] is expected
    assert matmul_validity(2000, 2000, size, 2, 1, ON_BOW)[0] is Validity.VALIDATED  # from 4 to 32,768


def test_the_first_of_several_passes_brings_the_smaller_operand():
    by_element = {"elements": 600, "width": 4, "machine": ONE}
    remainder = cost_of(ONE.target, "aten.remainder.Tensor", given(20, 30), given(30), makes=[given(20, 30)])
    first, second = remainder.plan.parts
    assert first == plan_elementwise("divide", **by_element, operand=30)
    assert second == plan_elementwise("add product", **by_element)


def test_an_estimate_of_an_operation_by_element_names_it():
    assert plan_elementwise("sqrt", 600, 4, ONE).why.startswith("cycles of sqrt by poplibs")
    assert plan_elementwise("sqrt", 600, 4, ONE, name="deviations").why.startswith("cycles of deviations by poplibs")


def test_what_is_not_said_of_a_cost_is_nothing_once():
    step = Superstep(name="wait", activity=Activity.SYNC, ideal=1.0, calibrated=2.0)
    counts = (step.mean, step.tiles, step.workers, step.bytes_in, step.bytes_out, step.bytes_total, step.fragments)
    assert counts == (0, 0, 0, 0, 0, 0, 0)
    assert (step.cycles(Profile.IDEAL), step.cycles(Profile.CALIBRATED)) == (1, 2)
    plan = Plan(family="gather", supersteps=(step, step))
    assert (plan.temporary_bytes, plan.flops, plan.considered, plan.parts) == (0, 0, 1, ())
    assert plan.validity is Validity.ESTIMATE
    assert cycles(plan) == (2, 4)
    cost = OpCost(target="aten.add.Tensor", phase="forward", plan=plan)
    assert (cost.known, cost.count, cost.bytes, cost.family, cost.flops) == (True, 1, 0, "gather", 0)


def test_a_number_where_a_tensor_belongs_is_refused():
    with pytest.raises(ValueError, match="Expected a tensor among the arguments of an operation, found 3"):
        tensor(OpGraph(ops=(), values=(), inputs={}, outputs=()), 3)


def test_an_expanded_tensor_without_elements_has_none():
    value = {"offset": 0, "dtype": torch.float32, "storage": 0, "producer": None}
    assert distinct(Value(shape=(0, 3), stride=(0, 1), **value)) == 0
    assert distinct(Value(shape=(8, 3), stride=(0, 1), **value)) == 3


def test_the_splits_of_a_machine_are_kept_from_changes():
    with pytest.raises(ValueError, match="read-only"):
        triples(4)[0, 0] = 2
