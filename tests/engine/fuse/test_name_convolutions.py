"""Gather, product and sum are taken for a convolution where that is what they are, operation by operation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import popgeo.ops.cfconv  # noqa: F401  makes its operations known to torch
from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph, Ref
from popgeo.capture.passes import drop_unused, merge_equal_values
from popgeo.engine.fuse.fuse_graph import fuse
from popgeo.engine.fuse.interaction import FORWARD
from popgeo.engine.fuse.plain_convolution import CFCONV, CFCONV_BACKWARD, _may_have_any, name_convolutions
from popgeo.engine.graph_runner import GraphRunner
from popgeo.ops import interaction_call

aten, ops = torch.ops.aten, torch.ops.popgeo
N, C = 3, 2
SEED = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=SEED)


GIVEN = {
    "src": torch.tensor([0, 2, 1, 2]), "dst": torch.tensor([1, 2, 0, 0]), "x": draw(N, C), "w": draw(4, C),
    "g": draw(N, C),
}  # fmt: skip


def graph_of(function: Callable[..., Any], **given: Tensor) -> OpGraph:
    return drop_unused(merge_equal_values(capture(function, bind(function, **given)).graph))


def assert_named(function: Callable[..., Any], forward: int, backward: int = 0, **other: Tensor) -> OpGraph:
    """So many convolutions are found, and the graph gives with them and without what torch gives."""
    given = GIVEN | other
    graph = graph_of(function, **given)
    named = name_convolutions(graph)
    targets = [op.target for op in named.ops]
    assert (targets.count(CFCONV), targets.count(CFCONV_BACKWARD)) == (forward, backward)
    assert (named is graph) == (not forward and not backward)
    expected = function(**given)
    expected = expected if isinstance(expected, tuple | list) else [expected]
    results = GraphRunner(named, {}).run([t.clone() for t in given.values()])
    for result, want in zip(results[: len(expected)], expected, strict=True):
        assert_close(result, want, rtol=1e-6, atol=1e-6)
    return named


@pytest.mark.parametrize(
    "function",
    [
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) * w),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(-2, dst, w * x.index_select(-2, src)),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add_(0, dst, x.index_select(0, src) * w),
        lambda src, dst, x, w, g: torch.zeros_like(x).index_add(0, dst, x.index_select(0, src) * w),
        lambda src, dst, x, w, g: x.new_zeros(N, C).index_add(0, dst, x.index_select(0, src) * w),
        lambda src, dst, x, w, g: ZEROS.index_add(0, dst, x.index_select(0, src) * w),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add(
            0, dst.view(-1, 1).expand(-1, C), x.gather(0, src[:, None].expand(-1, C)) * w
        ),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add_(
            0, dst.unsqueeze(1).expand(-1, C), x.gather(0, src.view(4, 1).expand(4, C)) * w
        ),
    ],
)
def test_a_convolution_is_found_however_it_is_written(function):
    named = assert_named(function, 1)
    (op,) = [op for op in named.ops if op.target == CFCONV]
    at = {one.name: Ref(v) for one, v in named.inputs.items()}
    assert op.args == (at["x"], at["w"], at["src"], at["dst"], N)
    assert not any(op.target.split(".")[1] in ("mul", "index_add", "scatter_add", "zeros") for op in named.ops)


ZEROS, ONES = torch.zeros(N, C), torch.ones(N, C)


def messages(x: Tensor, src: Tensor, w: Tensor) -> Tensor:
    return x.index_select(0, src) * w


def zeros_of_messages(src, dst, x, w, g):
    """As PyG begins its sums: zeros of the type of the messages."""
    m = messages(x, src, w)
    return m.new_zeros(N, C).index_add(0, dst, m)


def zeros_of_messages_shown(src, dst, x, w, g):
    m = messages(x, src, w)
    zeros = m.new_zeros(N, C)
    return zeros.index_add(0, dst, m), zeros


def zeros_of_messages_read(src, dst, x, w, g):
    m = messages(x, src, w)
    zeros = m.new_zeros(N, C)
    return zeros.index_add(0, dst, m), zeros + 1


def zeros_of_messages_and_more(src, dst, x, w, g):
    m = messages(x, src, w)
    return m.new_zeros(N, C).index_add(0, dst, m), m.exp()


def ones_of_messages(src, dst, x, w, g):
    m = messages(x, src, w)
    return m.new_ones(N, C).index_add(0, dst, m)


def test_zeros_in_the_type_of_the_messages_go_with_them():
    named = assert_named(zeros_of_messages, 1)
    assert [op.target for op in named.ops] == [CFCONV]


@pytest.mark.parametrize(
    "function",
    [
        zeros_of_messages_shown,
        zeros_of_messages_read,
        zeros_of_messages_and_more,
        ones_of_messages,
        lambda src, dst, x, w, g: ONES.index_add(0, dst, messages(x, src, w)),
        lambda src, dst, x, w, g: torch.ones(N, C).index_add_(0, dst, messages(x, src, w)),
        lambda src, dst, x, w, g: x.index_add(0, dst, messages(x, src, w)),
        lambda src, dst, x, w, g: (x * 1).index_add_(0, dst, messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, w), alpha=2),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add_(0, dst, messages(x, src, w), alpha=2),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, m := messages(x, src, w)) + m.sum(),
        lambda src, dst, x, w, g: (torch.zeros(N, C).index_add(0, dst, m := messages(x, src, w)), m),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) + w),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) * 2),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) * w[:, :1]),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) * w[0]),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x[:, :1].index_select(0, src) * w),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, w.exp() * w),
        lambda src, dst, x, w, g: ZEROS.index_add(0, dst, torch.cat([x, x], 1)[:, :C].index_select(0, src) * w),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, torch.cat([w, w], 1)[:, :C])),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst.int(), messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src.int(), w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, w)).mul_(2),
        lambda src, dst, x, w, g: torch.zeros(N).index_add(0, dst, x[:, 0].index_select(0, src) * w[:, 0]),
        lambda src, dst, x, w, g: torch.zeros(N, C, 1).index_add(0, dst, messages(x[..., None], src, w[..., None])),
        lambda src, dst, x, w, g: torch.zeros(N, C).double().index_add(0, dst, messages(x.double(), src, w.double())),
        lambda src, dst, x, w, g: torch.zeros(C, N).t().index_add(0, dst, messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add(
            0, torch.stack([dst, src], 1), x.gather(0, src[:, None].expand(-1, C)) * w
        ),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add(
            0, dst[:, None].expand(-1, C), x.gather(0, torch.stack([dst, src], 1)) * w
        ),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add(0, dst[:2, None].expand(-1, C), messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).scatter_add(0, dst.view(2, 2), messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(4, C).index_add(1, dst[2:], messages(x, src, w)),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst[:C], x[:C].index_select(1, src[:C] % 2) * w[:C]),
        lambda src, dst, x, w, g: torch.zeros(C, C).index_add(1, src[:C] % 2, messages(x, src[:C], w[:C])),
        lambda src, dst, x, w, g: torch.zeros(N, C).index_add(
            0, dst[:N], x.gather(1, (src[:N] % 2)[:, None].expand(-1, C)) * w[:N]
        ),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_convolution_is_left(function):
    assert_named(function, 0)


def written_twice(src, dst, x, w, g):
    out = torch.zeros(N, C)
    out.index_add_(0, dst, messages(x, src, w))
    out.index_add_(0, src, messages(g, dst, w))
    return out


def read_before(src, dst, x, w, g):
    out = torch.zeros(N, C)
    before = out + 1
    return out.index_add_(0, dst, messages(x, src, w)), before


def on_a_part(src, dst, x, w, g):
    out = torch.zeros(N + 1, C)
    out[:N].index_add_(0, dst, messages(x, src, w))
    return out


@pytest.mark.parametrize("function", [written_twice, read_before, on_a_part])
def test_zeros_that_something_else_reads_or_changes_stay(function):
    assert_named(function, 0)


def test_sums_in_place_that_are_no_convolution_stay_in_place():
    def function(src, dst, x, w, g):
        first = torch.zeros(N, C).index_add_(0, dst, messages(x, src, w))
        return first, torch.zeros(N, C).index_add_(0, dst, w.exp()), torch.zeros(N, C).index_add_(0, src, w * 2)

    named = assert_named(function, 1)
    assert [op.target for op in named.ops].count("aten.index_add_.default") == 2
    storages = [named.values[op.makes()[0]].storage for op in named.ops if op.target in (CFCONV, "aten.zeros.default")]
    assert len(storages) == len(set(storages))


def test_several_sums_in_place_get_memory_of_their_own():
    def function(src, dst, x, w, g):
        first = torch.zeros(N, C).index_add_(0, dst, messages(x, src, w))
        second = torch.zeros(N, C).index_add_(0, src, messages(x.exp(), dst, w.cos()))
        return first, second

    assert_named(function, 2)


def test_single_channels_have_one_row_number_each():
    def function(src, dst, x, w, g):
        return torch.zeros(N, 1).scatter_add(0, dst.view(-1, 1), x.gather(0, src.view(-1, 1)) * w)

    assert_named(function, 1, x=draw(N, 1), w=draw(4, 1))


def test_filters_may_be_the_first_value():
    graph = graph_of(
        lambda w, src, dst, x: torch.zeros(N, C).index_add(0, dst, messages(x, src, w)),
        **{name: GIVEN[name] for name in ("w", "src", "dst", "x")},
    )
    assert [op.target for op in name_convolutions(graph).ops] == [CFCONV]
    graph = graph_of(
        lambda src, w, dst, x: torch.zeros(N, C).index_add(0, dst, w * x.index_select(0, src)),
        **{name: GIVEN[name] for name in ("src", "w", "dst", "x")},
    )
    assert [op.target for op in name_convolutions(graph).ops] == [CFCONV]


def test_sums_may_be_left_out():
    graph = graph_of(lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, w)), **GIVEN)
    assert name_convolutions(graph, {graph.outputs[0]}) is graph


def test_graphs_without_gathers_products_and_sums_are_not_searched():
    def searched(function: Callable[..., Any]) -> bool:
        return _may_have_any(graph_of(function, **GIVEN))

    assert searched(lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, w)))
    assert searched(lambda src, dst, x, w, g: torch.zeros(N, C).index_add_(0, dst, w * x.index_select(0, src)))
    assert not searched(lambda src, dst, x, w, g: messages(x, src, w).cumsum(0))
    assert not searched(lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, w.exp() * w))
    assert not searched(lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, messages(x, src, w[0])))
    assert not searched(lambda src, dst, x, w, g: (messages(x, src, w), torch.zeros(N, C).index_add(0, dst, w)))
    assert not searched(lambda src, dst, x, w, g: torch.zeros(N, C).index_add(0, dst, x.index_select(0, src) * 2))


def backward(form: str) -> Callable[..., list[Tensor]]:
    """A convolution and its gradients, in plain operations, and what a form does otherwise."""

    def function(src, dst, x, w, g):
        zeros = torch.zeros(N, C)
        if form == "gradient of filters before all":
            g = g * 2
            gathered, back = x.index_select(0, src), g.index_select(0, dst)
            to_w = gathered * back
            return [zeros.index_add(0, dst, gathered * w), zeros.index_add(0, src, back * w), to_w]
        if form == "gradient first":
            y, z = g * 2, x * 1
            to_x = zeros.index_add(0, src, messages(y, dst, w))
            return [zeros.index_add(0, dst, messages(z, src, w)), to_x, z.index_select(0, src) * y.index_select(0, dst)]
        gathered = x.index_select(0, src)
        rows = N + 1 if form == "more rows" else N
        out = torch.zeros(rows, C).index_add(0, dst, w * gathered if form == "factors turned" else gathered * w)
        if form == "gradient of more rows":
            g = torch.cat([g, g])
        g = g * 2
        back = g.index_select(0, dst)
        other = {"filters of another": w * 2}.get(form, w)
        first, second = (dst, dst) if form == "ends alike" else (src, dst)
        if form == "gradient of filters first":
            to_w = gathered * back
        to_x = torch.zeros(N + 1 if form == "gradient has more rows" else N, C).index_add(
            0, first, g.index_select(0, second) * other
        )
        made = [out, to_x]
        if form == "gradient of filters first":
            made.append(to_w)
        elif form == "no gradient of filters":
            made.append(back)
        elif form == "gradient of filters turned":
            made.append(back * gathered)
        elif form == "gradient of filters of another":
            made.append(gathered * back.exp())
        else:
            made.append(gathered * back)
        return made

    return function


@pytest.mark.parametrize(
    ("form", "forward", "both"),
    [
        ("plain", 1, 1), ("factors turned", 1, 1), ("gradient of filters turned", 1, 1),
        ("gradient of filters first", 1, 1), ("no gradient of filters", 2, 0), ("filters of another", 2, 0),
        ("ends alike", 2, 0), ("gradient of filters of another", 2, 0), ("more rows", 2, 0),
        ("gradient has more rows", 2, 0), ("gradient of more rows", 2, 0), ("gradient first", 1, 1),
        ("gradient of filters before all", 2, 0),
    ],
)  # fmt: skip
def test_gradients_are_paired_with_their_convolution(form, forward, both):
    named = assert_named(backward(form), forward, both)
    if both:
        (op,) = [op for op in named.ops if op.target == CFCONV_BACKWARD]
        if form == "gradient first":  # which of the two is taken for the gradient does not matter
            return
        at = {one.name: Ref(v) for one, v in named.inputs.items()}
        assert op.args[1:] == (at["x"], at["w"], at["src"], at["dst"])
        assert op.outputs == tuple(v for v in named.outputs[1:])
        left = {op.target for op in named.ops if op.target not in (CFCONV, CFCONV_BACKWARD)}
        assert left == {"aten.mul.Tensor"}  # that of the gradient by two


def test_each_product_is_the_gradient_of_one_convolution():
    def function(src, dst, x, w, g):
        gathered = x.index_select(0, src)
        out = ZEROS.index_add(0, dst, gathered * w)
        back = (g * 2).index_select(0, dst)
        return out, ZEROS.index_add(0, src, back * w), ZEROS.index_add(0, src, back * w), gathered * back

    graph = capture(function, bind(function, **GIVEN)).graph  # where what is equal is still made twice
    targets = [op.target for op in name_convolutions(graph).ops]
    assert (targets.count(CFCONV), targets.count(CFCONV_BACKWARD)) == (2, 1)


def interactions(form: str) -> Callable[..., list[Tensor]]:
    """An interaction in plain operations, beside convolutions of filters that are given."""

    def function(src, dst, x, w, g, rows, w1):
        made = [torch.zeros(N, C).index_add(0, dst, messages(x, src, F.linear(rows, w1)))]
        if "plain" in form:
            made.append(torch.zeros(N, C).index_add(0, src, messages(x, dst, w)))
        if "gradient" in form:
            h = g * 2
            made.append(torch.zeros(N, C).index_add(0, dst, messages(h, src, w)))
            made.append(x.index_select(0, dst) * h.index_select(0, src))
        if "own" in form:
            made.append(ops.cfconv(x, w.exp(), src, dst, N))
        return made

    return function


@pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")
@pytest.mark.parametrize("form", ["alone", "plain", "own", "plain own", "plain gradient", "plain gradient own"])
def test_convolutions_without_a_filter_network_stay_as_written(form):
    given = GIVEN | {"rows": draw(4, 3), "w1": draw(C, 3)}
    graph = graph_of(interactions(form), **given)
    targets = [op.target for op in fuse(graph).ops]
    assert (targets.count(FORWARD), targets.count(CFCONV)) == (1, int("own" in form))
    assert targets.count(CFCONV_BACKWARD) == 0
    assert targets.count("aten.index_add.default") == ("plain" in form) + ("gradient" in form)
    results = GraphRunner(graph, {}).run(list(given.values()))
    for result, want in zip(results, interactions(form)(**given), strict=True):
        assert_close(result, want, rtol=1e-5, atol=1e-5)
