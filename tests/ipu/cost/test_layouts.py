"""Rows that meet blocks are laid out again; values of one layout stay in place."""

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.layouts import layout_bytes
from popgeo.ipu.cost.plan import Profile

ROWS, WIDTH = 1472, 64
BYTES = 4 * ROWS * WIDTH
X, WEIGHT, INDEX = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH), torch.zeros(ROWS, dtype=torch.long)


def moved(function, *inputs):
    """Return the operations that lay rows out again, with their bytes."""
    graph = ipu.compile(function, list(inputs)).graph
    return {
        op.target.split(".")[1]: nbytes for op, nbytes in zip(graph.ops, layout_bytes(graph), strict=True) if nbytes
    }


def test_chains_residual_sums_and_norms_of_products_move_nothing():
    def block(x, weight):
        hidden = torch.relu(x @ weight)
        return torch.nn.functional.layer_norm(x + torch.exp(hidden) * hidden + hidden @ weight, (WIDTH,))

    assert moved(block, X, WEIGHT) == {}


def test_gathered_rows_are_laid_out_for_the_product_that_they_meet_or_enter():
    assert moved(lambda x, w, i: x[i] * (x @ w), X, WEIGHT, INDEX) == {"mul": BYTES}
    assert moved(lambda x, w, i: x.index_select(0, i) @ w, X, WEIGHT, INDEX) == {"mm": BYTES}
    assert moved(lambda x, w, i: torch.exp(x.index_select(0, i)) @ w, X, WEIGHT, INDEX) == {"mm": BYTES}
    assert moved(lambda x, i: torch.exp(x[i]) + x[i], X, INDEX) == {}


def test_half_as_wide_numbers_cost_half_as_much():
    half = [t.half() if t.is_floating_point() else t for t in (X, WEIGHT, INDEX)]
    assert moved(lambda x, w, i: x[i] * (x @ w), *half) == {"mul": BYTES // 2}


def test_a_number_for_each_row_meets_anything():
    assert moved(lambda x, w, i: x[i].sum(1, keepdim=True) * (x @ w), X, WEIGHT, INDEX) == {}


def test_what_is_made_of_two_broadcast_operands_lies_as_neither_of_them():
    # Like Gaussians of gathered distances, with 64 numbers per distance.
    assert moved(lambda x, w, i: (x[i][:, :1] - x[0]) @ w, X, WEIGHT, INDEX) == {}


def test_rows_of_an_odd_number_of_halves_are_laid_out_by_each_product_that_reads_or_makes_them():
    tokens, heads = 197, 8
    query = torch.ones(heads, tokens, WIDTH)
    scores = 2 * heads * tokens**2
    half = [query.half(), query.half()]
    assert moved(lambda q, v: (q @ q.mT).softmax(-1), *half) == {"bmm": scores}
    graph = ipu.compile(lambda q, v: (q @ q.mT).softmax(-1) @ v, half).graph
    assert [nbytes for nbytes in layout_bytes(graph) if nbytes] == [scores, scores]
    assert moved(lambda q, v: (q @ q.mT).softmax(-1), query, query) == {}  # a float32 is a word
    assert moved(lambda q, v: q[:, 1:] @ q[:, 1:].mT, *half) == {}  # 196 tokens


def test_attention_lays_its_odd_scores_out_as_its_parts_do():
    def attention(q, v):
        return torch.nn.functional.scaled_dot_product_attention(q, q, v)

    def parts(q, v):
        return (q * WIDTH**-0.5 @ q.mT).softmax(-1) @ v

    for tokens, expected in ((197, 2), (196, 0)):
        inputs = [torch.ones(1, 8, tokens, WIDTH).half()] * 2
        for function in (attention, parts):
            plans = [one.plan for one in cost(ipu.compile(function, inputs).graph, ipu.IpuTarget.bow())]
            names = [step.name for plan in plans for step in plan.supersteps]
            assert names.count("lay out operands") == expected


def test_a_product_pays_less_for_rows_than_an_operation_by_element():
    step = ipu.compile(lambda x, w, i: x.index_select(0, i) @ w, [X, WEIGHT, INDEX])
    (product,) = (one for one in cost(step.graph, ipu.IpuTarget.bow()) if "mm" in one.target)
    assert product.plan.supersteps[0].calibrated == pytest.approx(2.927 * BYTES / ipu.IpuTarget.bow().num_tiles)


def test_the_plan_says_what_it_lays_out():
    step = ipu.compile(lambda x, w, i: x[i] * (x @ w), [X, WEIGHT, INDEX])
    target = ipu.IpuTarget.bow()
    (mul,) = (one for one in cost(step.graph, target) if "mul" in one.target)
    first = mul.plan.supersteps[0]
    assert (first.name, first.ideal) == ("lay out operands", 0.0)
    assert first.calibrated == pytest.approx(4.712 * BYTES / target.num_tiles)
    assert mul.plan.cycles(Profile.IDEAL) < mul.plan.cycles(Profile.CALIBRATED)
