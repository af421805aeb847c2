"""A storage has the mapping that a plan wants, and otherwise an even one; worked out by hand on six tiles."""

import dataclasses

import pytest
import torch
from torch import Tensor

from popgeo import ops
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.tiles.map_tensors import map_storages, storage_sizes
from popgeo.ipu.tiles.tile_mapping import TileMapping, blocked, linear

SIX = IpuTarget(name="six", num_tiles=6, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)
PRODUCT = {"rows": 2, "contraction": 1, "columns": 3, "serial": 1}


def graph_of(function, *inputs: Tensor) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


def mapped(graph: OpGraph, splits: dict[str, dict[str, int]], **given: TileMapping) -> dict[int, TileMapping]:
    """Return the mapping of each value, with these divisions of the operations of these names."""
    costs = [
        dataclasses.replace(c, plan=dataclasses.replace(c.plan, split=splits.get(c.target.split(".")[1], {})))
        for c in cost(graph, SIX)
    ]
    known = {graph.values[v].storage: given[one.name] for one, v in graph.inputs.items() if one.name in given}
    mappings = map_storages(graph, [cost.plan for cost in costs], SIX.all_tiles, known)
    return {v: mappings[value.storage] for v, value in enumerate(graph.values)}


def test_a_product_leaves_blocks_and_wants_its_left_matrix_where_its_rows_are_needed():
    graph = graph_of(torch.mm, torch.zeros(8, 4), torch.zeros(4, 6))
    left, right, made = mapped(graph, {"mm": PRODUCT}).values()
    assert made.holders().tolist() == [r // 4 * 3 + c // 2 for r in range(8) for c in range(6)]
    assert left.holders().tolist() == [r // 2 for r in range(8) for c in range(4)]  # 8 rows in 2 x 3 parts
    assert right.holders().tolist() == [0] * 24  # of less than a grain of 32


def test_a_transposed_left_matrix_is_cut_where_its_rows_lie_in_memory():
    graph = graph_of(lambda x, y: x.t() @ y, torch.zeros(4, 8), torch.zeros(4, 6))
    left, *_ = mapped(graph, {"mm": PRODUCT}).values()
    assert left.holders().tolist() == [c // 2 for r in range(4) for c in range(8)]


def test_a_product_that_adds_partial_results_says_nothing_of_where_they_end():
    graph = graph_of(torch.mm, torch.zeros(8, 8), torch.zeros(8, 16))
    *_, made = mapped(graph, {"mm": PRODUCT | {"contraction": 2}}).values()
    assert made.holders().tolist() == [k // 32 for k in range(128)]


def test_an_elementwise_result_lies_where_its_most_spread_operand_does():
    graph = graph_of(lambda x, y: x + y, torch.zeros(4, 6), torch.zeros(4, 6))
    spread = blocked(4, 6, row_parts=2, column_parts=2, num_tiles=6)
    *_, made = mapped(graph, {}, y=spread).values()
    assert made.holders().tolist() == spread.holders().tolist()


def test_a_transposed_operand_leads_nowhere():
    graph = graph_of(lambda x, y: x + y.t(), torch.zeros(6, 4), torch.zeros(4, 6))
    spread = blocked(4, 6, row_parts=2, column_parts=2, num_tiles=6)
    *_, made = mapped(graph, {}, y=spread).values()
    assert made.holders().tolist() == [0] * 24


@pytest.mark.parametrize(
    ("split", "holders"),
    [
        ({"rows": 2, "columns": 1, "lookups": 3}, [r for r in range(6) for _ in range(4)]),  # 6 rows in 2 x 3 parts
        ({"rows": 1, "columns": 2, "lookups": 3}, [r // 2 * 2 + c // 2 for r in range(6) for c in range(4)]),
    ],
)
def test_gathered_rows_stay_where_they_are_looked_up(split, holders):
    graph = graph_of(lambda x, i: x.index_select(0, i), torch.zeros(9, 4), torch.zeros(6, dtype=torch.long))
    *_, made = mapped(graph, {"index_select": split}).values()
    assert made.holders().tolist() == holders


@pytest.mark.parametrize(
    ("lookups", "holders"),
    [(1, [r // 3 * 2 + c // 2 for r in range(9) for c in range(4)]), (2, [k // 32 for k in range(36)])],
)
def test_a_table_lies_in_the_blocks_of_its_gather_unless_several_tiles_share_them(lookups, holders):
    graph = graph_of(lambda x, i: x.index_select(0, i), torch.zeros(9, 4), torch.zeros(6, dtype=torch.long))
    table, *_ = mapped(graph, {"index_select": {"rows": 3, "columns": 2, "lookups": lookups}}).values()
    assert table.holders().tolist() == holders


@pytest.mark.parametrize(
    ("rows", "holders"),
    [(1, [r // 3 * 2 + c // 2 for r in range(9) for c in range(4)]), (2, [k // 32 for k in range(36)])],
)
def test_summands_lie_in_the_parts_of_their_scatter_add_unless_several_tiles_need_them(rows, holders):
    graph = graph_of(lambda x, i: ops.scatter(x, i, dim=0, dim_size=5), torch.zeros(9, 4), torch.arange(9) % 5)
    summands, *_ = mapped(graph, {"scatter_sum": {"rows": rows, "columns": 2, "lookups": 3}}).values()
    assert summands.holders().tolist() == holders


def test_views_lie_where_their_base_does_and_every_storage_lies_somewhere():
    graph = graph_of(lambda x, unused: x.view(4, 24)[1:].t() * 2, torch.zeros(96), torch.zeros(64))
    mappings = mapped(graph, {})
    x, unused, *views = [*mappings.values()][:-1]
    assert all(view is x for view in views)
    assert unused.holders().tolist() == [0] * 32 + [1] * 32


def test_where_something_lies_already_it_stays():
    graph = graph_of(lambda x, y: x @ y, torch.zeros(8, 4), torch.zeros(4, 6))
    there = linear(32, num_tiles=6, grain=1)
    left, *_ = mapped(graph, {"mm": PRODUCT}, x=there).values()
    assert left is there


def test_a_storage_is_as_large_as_what_looks_at_most_of_it_and_counts_in_bytes_under_two_types():
    x = torch.zeros(3, 5)
    graph = graph_of(lambda x: (x[1:, ::2], x.view(torch.int16)[0], x[:0]), x)
    assert storage_sizes(graph)[graph.values[0].storage] == (60, 1)
    graph = graph_of(lambda x: x[1:, ::2], x)
    assert storage_sizes(graph)[graph.values[0].storage] == (15, 4)
    tail = torch.zeros(10)[4:]  # the program sees only these six elements
    graph = graph_of(lambda x: x + tail, torch.zeros(6))
    (constant,) = graph.constants
    assert storage_sizes(graph)[graph.values[constant].storage] == (10, 4)
