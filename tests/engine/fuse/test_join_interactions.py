"""Interactions written out operation by operation: joined where all their parts are as is served, else left."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import popgeo.ops.cfconv  # noqa: F401  makes its operations known to torch
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value
from popgeo.engine.fuse import prepare_interaction
from popgeo.engine.fuse.def_use import DefUse
from popgeo.engine.fuse.interaction import (
    BACKWARD,
    FORWARD,
    PLAN,
    Sums,
    _match_sums,
    describe_interactions,
    join_interactions,
)
from popgeo.engine.fuse.plain_convolution import CFCONV
from popgeo.engine.fuse.prepared import prepared_op
from popgeo.engine.graph_runner import GraphRunner
from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import Activation

needs_kernels = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")

aten, ops = torch.ops.aten, torch.ops.popgeo
NUM_ROWS, NUM_EDGES, CHANNELS = 3, 6, 5


def given() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "x": (NUM_ROWS, CHANNELS), "rows": (NUM_EDGES, 4), "w1": (7, 4), "b1": (7,), "w2": (CHANNELS, 7),
        "b2": (CHANNELS,), "env": (NUM_EDGES, 1), "grad": (NUM_ROWS, CHANNELS),
    }  # fmt: skip
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return tensors | {"src": torch.tensor([0, 1, 2, 2, 0, 0]), "dst": torch.tensor([1, 2, 0, 1, 0, 1])}


def interaction(form: str) -> Callable[..., list[Tensor]]:
    """Forward and backward, and what a form does otherwise; `half` forms list each pair once."""

    def function(x, rows, w1, b1, w2, b2, env, grad, src, dst):
        half = form.startswith("half")
        a = torch.tanh(F.linear(rows, w1, b1))
        w = F.linear(a, w2, b2) * env
        plans = (*ops.gather_plan(dst, NUM_ROWS)[:2], None, None, 4) if form == "plan" else ()
        made = []
        if form == "channels apart":
            x = torch.cat([x, x], 1)[:, ::2]
        if form == "narrow indices":
            src, dst = src.int(), dst.int()
        num_rows = NUM_ROWS + 1 if form in ("more rows", "half more rows") else NUM_ROWS
        out = ops.cfconv(x, w, src, dst, num_rows, *plans)
        if half:
            second = (x, w, dst, src, num_rows)
            if form == "half same way":
                second = (x, w, src, src, num_rows)
            if form == "half other features":
                second = (x * 2, w, dst, src, num_rows)
            if form == "half one row":
                second = (x, w, src * 0, dst * 0, 1)
            other = ops.cfconv(*second)
            if form == "half one row":
                src, dst = dst * 0, src * 0
            if form == "half not added":
                made += [out, other]
            elif form == "half scaled":
                made.append(torch.add(out, other, alpha=2))
            elif form == "half turned round":
                made.append(other + out)
            elif form == "half and half":
                made += [out + out, other]
            else:
                made.append(out + other)
            if form == "half shown":
                made.append(out)
            if form == "half read":
                made.append(other.exp())
            if form == "half three":
                made.append(ops.cfconv(x, w, dst, dst, num_rows))
        else:
            made.append(out)
            if form == "two sums":
                made.append(ops.cfconv(x, w, dst, src, num_rows))
        if "forward" in form:
            return made
        if num_rows > NUM_ROWS:
            grad = torch.cat([grad, grad[:1]])
        if form == "gradient apart":
            grad = torch.cat([grad, grad], 1)[:, ::2]
        if form == "backward of others":
            src = src + 0
        plans = (None, None, None, None, 3) if form == "plan in backward" else ()
        to_x, to_w = ops.cfconv_backward(grad, x, w, src, dst, *plans)
        if half and form != "half once back":
            second_grad = grad * 2 if form == "half other gradient" else grad
            ends = (src, dst) if form == "half back the same way" else (dst, src)
            other_x, other_w = ops.cfconv_backward(second_grad, x, w, *ends)
            if form == "half gradients of x apart":
                made += [to_x, other_x]
            if form == "half gradient of x alone":
                made += [to_x]
            to_w = torch.add(to_w, other_w, alpha=2 if form == "half gradients scaled" else 1)
            to_x = to_x + other_x
        if form == "back twice":
            made += list(ops.cfconv_backward(grad * 3, x, w, src, dst))
        if form not in ("frozen features", "half frozen features") and "gradient of x a" not in form:
            made.append(to_x if form == "gradient of x shown" else to_x * 2)
        if form == "gradient of the filters shown":
            made.append(to_w)
        last = to_w * env
        made += [last.sum(0), aten.mm(aten.t(last), a)]
        to_h = aten.tanh_backward(aten.mm(last, w2), a)
        made += [to_h.sum(0), aten.mm(aten.t(to_h), rows)]
        return made

    return function


def graph_of(function: Callable[..., Any], tensors: dict[str, Tensor]) -> OpGraph:
    return capture(function, bind(function, **tensors)).graph


def count(graph: OpGraph) -> tuple[int, int, int]:
    targets = [op.target for op in graph.ops]
    return targets.count(PLAN), targets.count(FORWARD), targets.count(BACKWARD)


def assert_runs(form: str, joined: tuple[int, int, int]) -> None:
    """The form has so many plans, forward and backward passes, and gives what it gives in plain torch."""
    tensors, function = given(), interaction(form)
    runner = GraphRunner(graph_of(function, tensors), {})
    assert count(runner.runs) == joined
    for _ in range(2):
        results = runner.run(list(tensors.values()))
        for result, expected in zip(results, function(**tensors), strict=True):
            assert_close(result, expected, rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize(
    "form",
    [
        "plain", "more rows", "frozen features", "gradient of x shown", "half", "half turned round",
        "half frozen features",
    ],
)  # fmt: skip
def test_an_interaction_written_out_is_joined(form):
    assert_runs(form, (1, 1, 1))


@needs_kernels
@pytest.mark.parametrize("form", ["forward", "half forward"])
def test_a_forward_pass_alone_is_joined(form):
    assert_runs(form, (1, 1, 0))


@needs_kernels
@pytest.mark.parametrize(
    "form",
    [
        "channels apart", "narrow indices", "two sums", "gradient apart", "backward of others", "plan in backward",
        "back twice", "gradient of the filters shown", "half more rows", "half same way", "half other features",
        "half one row", "half not added", "half scaled", "half and half", "half shown", "half read", "half three",
        "half once back", "half other gradient", "half back the same way", "half gradients of x apart",
        "half gradient of x alone", "half gradients scaled",
    ],
)  # fmt: skip
def test_an_interaction_with_other_parts_is_left(form):
    assert_runs(form, (0, 0, 0))


@needs_kernels
@pytest.mark.parametrize(("half", "num_ops"), [("", 1), ("half ", 3)])
def test_what_the_joined_operations_take_and_make(half, num_ops):
    tensors = given()
    graph = graph_of(interaction(half or "plain"), tensors)
    joined = join_interactions(graph)
    plan, forward, backward = (next(op for op in joined.ops if op.target == t) for t in (PLAN, FORWARD, BACKWARD))
    v = {one.name: number for one, number in graph.inputs.items()}
    r = {name: Ref(number) for name, number in v.items()}
    assert plan.args == (r["src"], r["dst"], r["env"], None, NUM_ROWS, NUM_ROWS)
    (plan_value,) = plan.outputs
    common = (
        NUM_EDGES, NUM_ROWS, Ref(plan_value), r["x"], r["rows"], None, 0.0, r["env"], [r["w1"], r["w2"]],
        [r["b1"], r["b2"]], int(Activation.TANH), bool(half), torch.get_num_threads(),
    )  # fmt: skip
    out, to_x_doubled, to_b2, to_w2, to_b1, to_w1 = graph.outputs
    to_x = next(op.args[0].value for op in joined.ops if op.outputs == (to_x_doubled,))
    filters, workspace = forward.outputs[1:]
    assert forward.args == common
    assert forward.outputs == (out, filters, workspace)
    assert backward.args == (*common, Ref(filters), r["grad"], [True] * 5)
    assert backward.outputs[:-1] == (to_x, to_w1, to_w2, to_b1, to_b2)
    new = [joined.values[w] for w in (plan_value, filters, workspace, backward.outputs[-1])]
    assert [(value.offset, value.dtype) for value in new] == [(0, torch.int32), *[(0, torch.float32)] * 3]
    assert {value.storage for value in new}.isdisjoint(value.storage for value in graph.values)
    assert len({value.storage for value in new}) == 4
    assert new[0].shape == (interaction_call.plan_size(NUM_EDGES, NUM_ROWS, NUM_ROWS),)
    assert new[1].shape == (8, 16)  # whole groups of edges, rows an odd number of lines apart
    assert new[1].stride == (16, 1)
    assert not any(op.target.startswith("popgeo.cfconv") for op in joined.ops)
    # Of 13 operations forward and backward, and the product of the gradient of x, those of torch are left out.
    assert len(joined.ops) == 4
    parts = [op for op in graph.ops if op.target == CFCONV]
    assert len(parts) == (2 if half else 1)
    assert (forward.source, forward.module, forward.phase) == (
        graph.ops[max(i for i, op in enumerate(graph.ops) if op.outputs == (out,))].source,
        "",
        "forward",
    )


@needs_kernels
def test_frozen_parts_have_no_gradient():
    def function(x, rows, w1, b1, w2, b2, env, grad, src, dst):
        a = torch.tanh(F.linear(rows, w1, b1))
        w = F.linear(a, w2, b2) * env
        out = ops.cfconv(x, w, src, dst, NUM_ROWS) if forward_first else None
        _, to_w = ops.cfconv_backward(grad, x, w, src, dst)
        last = to_w * env
        to_h = aten.tanh_backward(aten.mm(last, w2), a)
        out = out if forward_first else ops.cfconv(x, w, src, dst, NUM_ROWS)
        return out, last.sum(0), aten.mm(aten.t(to_h), rows)

    forward_first = False
    graph = graph_of(function, given())
    assert join_interactions(graph) is graph  # a gradient needs the filters that the forward pass leaves
    forward_first = True
    joined = join_interactions(graph_of(function, given()))
    (backward,) = [op for op in joined.ops if op.target == BACKWARD]
    assert backward.args[-1] == [False, True, False, False, True]
    assert len(backward.outputs) == 3


def test_a_step_says_how_many_interactions_run_in_one_pass():
    plain, other = (graph_of(interaction(form), given()) for form in ("plain", "two sums"))
    if interaction_call.is_served():
        assert describe_interactions(join_interactions(plain)) == "1 of 1 interactions in one pass"
        left = "0 of 1 interactions in one pass (filters made in another way, or used elsewhere)"
        assert describe_interactions(join_interactions(other)) == left
    assert join_interactions(other) is other
    assert describe_interactions(graph_of(lambda x: x.exp(), {"x": torch.ones(2)})) == ""
    with library.without_native():
        assert join_interactions(plain) is plain
        assert describe_interactions(plain) == "0 of 1 interactions in one pass (no kernels for this processor)"


@needs_kernels
@pytest.mark.parametrize(
    ("other", "num_plans"), [("nothing", 1), ("envelope", 2), ("rows", 2), ("sources", 2), ("receivers", 2)]
)
def test_interactions_of_the_same_edges_share_a_plan(other, num_plans):
    def function(x, rows, w1, w2, env, src, dst):
        made = []
        for first in (True, False):
            w = F.linear(torch.tanh(F.linear(rows + first, w1)), w2)
            w = w * (env.cos() if other == "envelope" and first else env)
            y = torch.cat([x, x]) if other == "rows" and first else x + first
            num_rows = NUM_ROWS + 2 if other == "receivers" and first else NUM_ROWS
            made.append(ops.cfconv(y, w, src * 1 if other == "sources" and first else src, dst, num_rows))
        return made

    tensors = {name: t for name, t in given().items() if name in ("x", "rows", "w1", "w2", "env", "src", "dst")}
    runner = GraphRunner(graph_of(function, tensors), {})
    assert count(runner.runs) == (num_plans, 2, 0)
    for result, expected in zip(runner.run(list(tensors.values())), function(**tensors), strict=True):
        assert_close(result, expected, rtol=1e-5, atol=1e-5)


def edges(num_edges: int) -> OpGraph:
    """A convolution of as many edges, in memory that nobody has."""
    shapes = [((3, 1), torch.float32), ((num_edges, 1), torch.float32), *[((num_edges,), torch.int64)] * 2]
    values = [
        Value(shape=shape, stride=(1,) * len(shape), offset=0, dtype=dtype, storage=v, producer=None)
        for v, (shape, dtype) in enumerate(shapes)
    ]
    made = Value(shape=(3, 1), stride=(1, 1), offset=0, dtype=torch.float32, storage=4, producer=0)
    return OpGraph(
        ops=(Op(target=CFCONV, args=(Ref(0), Ref(1), Ref(2), Ref(3), 3), outputs=(4,)),),
        values=(*values, made), inputs={Input(Role.ARGUMENT, str(v)): v for v in range(4)}, outputs=(4,),
    )  # fmt: skip


def test_plans_number_fewer_than_2_to_the_28_edges():
    expected = Sums(x=0, src=2, dst=3, num_rows=3, half_list=False, result=4, ops=frozenset({0}))
    assert _match_sums(DefUse(edges(2**28 - 1)), 1) == expected
    assert _match_sums(DefUse(edges(2**28)), 1) is None


@needs_kernels
@pytest.mark.parametrize("late", [[], ["x"], ["src", "env"], ["dst", "rows", "grad", "w2"]])
def test_a_call_is_given_what_has_no_place_of_its_own(late):
    tensors = given()
    graph = join_interactions(graph_of(interaction("plain"), tensors))
    at = {one.name: v for one, v in graph.inputs.items()}
    memory = {v: torch.zeros(value.shape, dtype=value.dtype) for v, value in enumerate(graph.values)}
    memory |= {at[name]: tensor for name, tensor in tensors.items()}
    fixed = {v: tensor for v, tensor in memory.items() if v not in [at[name] for name in late]}
    for op in graph.ops:
        if op.target not in (PLAN, FORWARD, BACKWARD):
            continue
        call = prepared_op(op.target).prepare(graph, op, fixed)
        call(*(memory[v] for v in dict.fromkeys(op.reads()) if v not in fixed))
    made = [memory[v] for op in graph.ops if op.target in (FORWARD, BACKWARD) for v in op.outputs]
    out, _, _, to_x, to_w1, to_w2, to_b1, to_b2, _ = made
    expected = interaction("gradient of x shown")(**tensors)
    for result, want in zip((out, to_x, to_b2, to_w2, to_b1, to_w1), expected, strict=True):
        assert_close(result, want, rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("late", [False, True])
def test_a_call_has_as_many_threads_as_torch_but_no_more_than_there_is_memory_for(late, monkeypatch):
    graph = join_interactions(graph_of(interaction("forward"), given()))
    op = next(op for op in graph.ops if op.target == FORWARD)
    *args, _ = op.args
    two = Op(target=FORWARD, args=(*args, 2), outputs=op.outputs)
    memory = {v: torch.zeros(value.shape, dtype=value.dtype) for v, value in enumerate(graph.values)}
    x = args[3].value
    seen = []
    monkeypatch.setattr(
        interaction_call, "run", lambda way, packed: seen.append((way, memoryview(packed).cast("q")[17]))
    )
    call = prepare_interaction._prepare("forward", prepare_interaction.pack_forward)(
        graph, two, {v: tensor for v, tensor in memory.items() if not late or v != x}
    )
    for num_threads in (1, 2, 4, 1):
        torch.set_num_threads(num_threads)
        call(*([memory[x]] if late else []))
    assert seen == [("forward", 1), ("forward", 2), ("forward", 2), ("forward", 1)]


@needs_kernels
def test_gaussians_are_made_where_they_are_needed():
    def function(x, d, centres, w1, env, src, dst):
        rows = torch.exp(-0.7 * (d - centres).pow(2))
        return ops.cfconv(x, F.linear(rows, w1) * env, src, dst, NUM_ROWS)

    tensors = given()
    w1 = torch.randn(CHANNELS, 4, generator=torch.Generator().manual_seed(1))
    d, centres = torch.linspace(0.1, 3, NUM_EDGES).view(-1, 1), torch.linspace(0, 3, 4)
    kept = {name: tensors[name] for name in ("env", "src", "dst")}
    named = {"x": tensors["x"], "d": d, "centres": centres, "w1": w1, **kept}
    runner = GraphRunner(graph_of(function, named), {})
    assert [op.target for op in runner.runs.ops] == [PLAN, FORWARD]
    at = {one.name: Ref(v) for one, v in runner.runs.inputs.items()}
    plan, forward = runner.runs.ops
    assert plan.args[:4] == (at["src"], at["dst"], at["env"], at["d"])
    assert forward.args[4:8] == (at["d"], at["centres"], -0.7, at["env"])
    assert_close(runner.run(list(named.values()))[0], function(**named), rtol=1e-5, atol=1e-5)
    assert math.isclose(forward.args[6], -0.7)
