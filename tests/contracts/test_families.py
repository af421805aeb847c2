"""One table: each operation has a family with a cost, a lowering or a stated fallback, and torch's variants."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu, ops
from popgeo.capture.control_flow import cond, for_loop
from popgeo.capture.op_graph import Op, Ref, overload
from popgeo.capture.operations import OPERATIONS, UNKNOWN, ChainStep, Division, DrawCount, Out, name_of, operation_of
from popgeo.engine.fuse import chain_steps
from popgeo.engine.out_variants import copy_or_fill, into
from popgeo.ipu import IpuTarget, TileExact
from popgeo.ipu.cost.graph_cost import RULES, cost
from popgeo.ipu.cost.loops import LOOP_OF
from popgeo.ipu.cost.norms import BY_GROUP, OF_SUMS, REDUCE
from popgeo.ipu.tiles.lower.lower_op import FALLBACKS, own_lowering

BOW = IpuTarget.bow()
PLANNED = {name: row for name, row in OPERATIONS.items() if row.family != UNKNOWN}
# Elementwise operations without torch's tag: they contain an `if`, or copy into existing memory.
ELEMENTWISE_UNTAGGED = {
    "_to_copy", "clone", "copy", "identity_loss", "masked_fill", "abs", "fill", "shifted_softplus",
    "shifted_softplus_backward", "_prelu_kernel", "leaky_relu_backward", "elu_backward", "softplus_backward",
    "hardtanh_backward", "hardswish", "hardswish_backward", "hardsigmoid", "hardsigmoid_backward", "mish_backward",
    "softshrink_backward", "hardshrink_backward", "convert_element_type", "leaky_relu",
}  # fmt: skip


def forms_of(name: str) -> list[str]:
    """Return the targets of all forms of an operation, including in-place forms."""
    namespace, short = name.split(".")
    packets = [getattr(getattr(torch.ops, namespace), form, None) for form in (short, f"{short}_")]
    return [f"{p._qualified_op_name.replace('::', '.')}.{kind}" for p in packets if p for kind in p.overloads()]


def test_each_row_is_divided_somehow_or_whole():
    """Check that each row has divisions, and that the fallback `whole` is the last."""
    for name, row in OPERATIONS.items():
        assert row.divisions, name
        assert Division.WHOLE not in row.divisions[:-1], name
        if Division.OWN in row.divisions:
            assert row.family == "control" or callable(own_lowering(row)[1]), name


def test_what_is_divided_by_element_is_tagged_so_by_torch_or_known_to_be():
    for name in (name for name, row in OPERATIONS.items() if Division.ELEMENT in row.divisions):
        tags = [overload(target).tags for target in forms_of(name)]
        pointwise = any(torch.Tag.pointwise in of for of in tags)
        assert pointwise or OPERATIONS[name].short_name in ELEMENTWISE_UNTAGGED, name
        assert not any(torch.Tag.nondeterministic_seeded in of for of in tags), name


def test_each_pass_of_a_row_is_a_loop_whose_cycles_are_known_or_a_reduction():
    passes = {name.removesuffix(BY_GROUP) for row in OPERATIONS.values() for name in row.passes}
    assert passes <= {*LOOP_OF, *OF_SUMS, REDUCE}


def test_each_row_of_a_family_has_a_cost_in_the_file_of_that_name():
    assert set(RULES) == set(PLANNED)
    for name, rule in RULES.items():
        file = inspect.getmodule(getattr(rule, "func", rule)).__name__.rpartition(".")[2]
        assert PLANNED[name].family == file or (PLANNED[name].family, file) == ("view", "movement"), name


def test_a_named_out_variant_exists_in_torch_and_is_found():
    for name in (name for name, row in OPERATIONS.items() if row.out is Out.BINDING):
        found = [into(target) for target in forms_of(name)]
        # torch's own function; PyG may have replaced the public name
        assert (getattr(torch._C._VariableFunctions, OPERATIONS[name].short_name), ("out",)) in found, name


def test_what_is_named_as_made_in_place_exists_in_torch():
    for name, row in OPERATIONS.items():
        assert forms_of(name) or row.family == "control", f"torch has no {name}"
        if row.out in (Out.COPY, Out.ZEROS, Out.ONES, Out.NOTHING):
            op = Op(target=f"{name}.default", args=(Ref(0),), outputs=(1,))
            assert row.out is Out.NOTHING or copy_or_fill(op, {0: torch.ones(1), 1: torch.ones(1)}) is not None


def test_what_joins_chains_has_a_writer_and_what_has_one_joins():
    assert {name_of(target) for target in chain_steps.WRITERS} == {
        name for name, row in OPERATIONS.items() if row.chain is not ChainStep.NO
    }


def test_what_draws_by_its_shape_is_marked_as_random_by_torch():
    for name in (name for name, row in OPERATIONS.items() if row.draws is not DrawCount.DATA):
        assert any(torch.Tag.nondeterministic_seeded in overload(target).tags for target in forms_of(name)), name


X = torch.randn(8, 6)
INDEX, TARGET = torch.tensor([0, 5, 3, 3]), torch.tensor([0, 5, 1, 2, 3, 3, 0, 1])
EXAMPLES: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda x: x[INDEX] + x.index_select(0, INDEX),
    "scatter": lambda x: torch.zeros(8, 6).index_add(0, INDEX, x[:4]),
    "matmul": lambda x: torch.addmm(x[:, 0], x, x.t()),
    "elementwise": lambda x: (x.square() + x.tanh()).sub(x).pow(3),
    "reduce": lambda x: x.cumsum(0).sum(1) + x.var(1) + x.argmax(1),
    "norms": lambda x: nn.functional.layer_norm(x.softmax(1), (6,)),
    "movement": lambda x: torch.cat([x.flip(0), torch.zeros(1, 6), x.repeat(2, 1)]).clone(),
    "sorting": lambda x: x.sort(1).values + x.topk(6).values,
    "distances": lambda x: torch.cdist(x, x),
    "losses": lambda x: nn.functional.cross_entropy(x, TARGET) + nn.functional.mse_loss(x, x.flip(0)),
    "collectives": lambda x: ops.all_gather(ops.reduce_scatter(x[:2], 0), 0) + ops.all_reduce(ops.replicate(x[0], 2)),
    "fused": lambda x: ops.cfconv(x, x[:4], INDEX, INDEX, 8),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*x.view(1, 1, 8, 6).repeat(3, 1, 4, 1, 1)),
    "convolution": lambda x: nn.functional.conv2d(x.view(2, 2, 4, 3), x[:3, :4].reshape(3, 2, 2, 1), x[0, :3]),
    "pooling": lambda x: (
        nn.functional.max_pool2d(x.view(2, 1, 4, 6), 2) + nn.functional.avg_pool2d(x.view(1, 8, 6), 4, 3)
    ),
    "control": lambda x: cond(x[0, 0] > 9, torch.neg, [x], lambda y: for_loop(3, lambda z: z * y, [y])[0], [x])[0],
}


@pytest.mark.parametrize("family", EXAMPLES)
def test_an_operation_is_planned_as_its_family_and_divided_over_tiles_unless_it_is_a_fallback_by_name(family: str):
    compiled = ipu.compile(EXAMPLES[family], [X])
    planned = [one.family for one in cost(compiled.graph, BOW)]
    assert planned == [operation_of(op.target).family for op in compiled.graph.ops]
    assert family in planned
    exact = TileExact(compiled)
    torch.testing.assert_close(exact(X), EXAMPLES[family](X))
    assert {name_of(target) for target in exact.program.fallbacks} <= FALLBACKS
    assert bool(exact.program.fallbacks) == (family == "losses")


def test_a_superstep_is_named_after_its_operation():
    def steps(function: Callable[[Tensor], Tensor]) -> list[str]:
        costs = cost(ipu.compile(function, [X]).graph, BOW)
        return [step.name for c in costs for step in c.plan.supersteps if step.activity == "compute"]

    assert steps(lambda x: x.square()) == ["square"]
    assert steps(lambda x: x.tanh()) == ["tanh"]
    assert steps(lambda x: x * 2) == ["mul"]
    assert steps(nn.functional.softplus) == ["abs", "negate", "exp", "log1p", "maximum", "add"]


def test_bytes_and_flops_are_those_that_an_operation_touches_and_does():
    (added,) = cost(ipu.compile(lambda x: x + 1, [X]).graph, BOW)
    assert (added.bytes, added.flops) == (2 * X.nbytes, X.numel())
    in_place = cost(ipu.compile(lambda x: x.clone().add_(1), [X]).graph, BOW)[-1]
    assert (in_place.target, in_place.bytes) == ("aten.add_.Tensor", 2 * X.nbytes)
    row = torch.ones(6)
    *_, broadcast = cost(ipu.compile(lambda x, y: x + y.expand(8, 6), [X, row]).graph, BOW)
    assert broadcast.bytes == 2 * X.nbytes + row.nbytes
    (view,) = cost(ipu.compile(lambda x: x.t(), [X]).graph, BOW)
    assert view.bytes == 0
