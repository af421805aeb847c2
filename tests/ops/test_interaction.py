"""The interaction with filters on a grid: by hand, against plain torch in float64, with any number of threads."""

import itertools

import pytest
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.interaction import InteractionPlan, interaction, serves
from popgeo.ops.interaction_call import InteractionCall, interpolated, plan_size

served = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")
CUTOFF = 5.0
OPS = torch.ops.popgeo


def table_of(waves: Tensor, num_points: int = 257) -> Tensor:
    """Return smooth filters in float64, sums of sines: [num_waves, channels] -> [num_points, channels]."""
    grid = torch.linspace(0, CUTOFF, num_points, dtype=torch.float64)
    rows = torch.stack([torch.sin((k + 1) * grid) for k in range(len(waves))], dim=1)
    return rows @ waves.double()


def problem(num_edges=300, num_nodes=20, channels=7, *, vectors=False, seed=0) -> dict[str, Tensor]:
    """Return random arguments in float64, with a sixth of the distances beyond the cutoff."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    filters = 3 * channels if vectors else channels
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator)
    made = {
        "x": normal(num_nodes, 5 * channels if vectors else channels),
        "waves": normal(4, filters),
        "r": 6 * torch.rand(num_edges, generator=generator, dtype=torch.float64),
        "direction": normal(num_edges, 3) if vectors else None,
        "src": src,
        "dst": dst,
    }
    return {name: value for name, value in made.items() if value is not None}


def run(data: dict[str, Tensor], dtype: torch.dtype, *, half_list=False, plain=False) -> list[Tensor]:
    """Return the sums, the gradients by all inputs, and the second gradients, also by the sums' gradient."""
    leaves = {name: t.to(dtype).clone().requires_grad_() if t.is_floating_point() else t for name, t in data.items()}
    x, r, direction = leaves["x"], leaves["r"], leaves.get("direction")
    table, ends, num_nodes = table_of(leaves["waves"]), (leaves["src"], leaves["dst"]), len(x)
    if plain:
        out = InteractionCall(x, table, r, direction, *ends, num_nodes, CUTOFF, half_list).sums()
    else:
        out = interaction(x, table, r, *ends, num_nodes, CUTOFF, direction=direction, half_list=half_list)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(dtype).requires_grad_()
    by = [t for t in leaves.values() if t.requires_grad]
    first = torch.autograd.grad(out, by, grad, create_graph=True)
    others = [one for one, leaf in zip(first, by, strict=True) if leaf is not leaves["waves"]]
    total = sum((one * torch.linspace(-1, 1, one.numel()).view_as(one).to(dtype)).sum() for one in others)
    second = torch.autograd.grad(total, [grad, *by])
    return [t.detach() for t in (out, *first, *second)]


def assert_near(made, expected, tolerance):
    for one, other in zip(made, expected, strict=True):
        assert one.shape == other.shape
        largest = other.abs().max().item() if other.numel() else 0.0
        assert_close(one.double(), other.double(), rtol=0, atol=tolerance * largest + 1e-7)


def test_values_by_hand(native):
    table = torch.linspace(0, 2, 21, dtype=torch.float64).square().view(-1, 1) * torch.tensor([[1.0, 10.0]])
    x, src, dst = torch.tensor([[1.0, 1.0], [2.0, 3.0]]), torch.tensor([1, 1]), torch.tensor([0, 1])
    r = torch.tensor([1.5, 2.0])  # the second one is at the cutoff
    out = interaction(x, table, r, src, dst, 2, 2.0)
    assert_close(out, torch.tensor([[4.5, 67.5], [0.0, 0.0]]))
    both_ways = interaction(x, table, r, src, dst, 2, 2.0, half_list=True)
    assert_close(both_ways, torch.tensor([[4.5, 67.5], [2.25, 22.5]]))


def test_messages_of_scalars_and_vectors_by_hand(native):
    table = torch.ones(11, 3, dtype=torch.float64) * torch.tensor([2.0, 3.0, 5.0])
    x = torch.tensor([[1.0, 10.0, 20.0, 30.0, 7.0]])  # a scalar, a vector, and what goes along the edge
    nodes, direction = torch.tensor([0]), torch.tensor([[0.0, 0.0, 1.0]])
    out = interaction(x, table, torch.tensor([1.0]), nodes, nodes, 1, 2.0, direction=direction)
    assert_close(out, torch.tensor([[2.0, 30.0, 60.0, 90.0 + 35.0]]))


@pytest.mark.parametrize("sizes", [(60, 5, 16), (300, 20, 7), (700, 30, 64), (2500, 40, 33), (5000, 90, 1)])
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("half_list", [False, True])
def test_one_pass_is_plain_torch_to_rounding(sizes, vectors, half_list):
    data = problem(*sizes, vectors=vectors)
    exact = run(data, torch.float64, half_list=half_list, plain=True)
    cancelled = 1 + sizes[0] / sizes[1]  # of the terms of a sum, whose errors stay
    assert_near(run(data, torch.float32, half_list=half_list), exact, 2e-5 * cancelled)
    assert_near(run(data, torch.float64, half_list=half_list), exact, 2e-6 * cancelled)  # of the second slope


def test_gradients_are_right_twice(native):
    data = problem(6, 4, 2, vectors=True)

    def function(x, waves, r, direction):
        table = table_of(waves)
        return interaction(x, table, r, data["src"], data["dst"], 4, CUTOFF, direction=direction, half_list=True)

    leaves = [data[name].clone().requires_grad_() for name in ("x", "waves", "r", "direction")]
    assert torch.autograd.gradcheck(function, leaves, rtol=1e-4)
    assert torch.autograd.gradgradcheck(function, leaves, rtol=1e-3, atol=1e-4)


@served
@pytest.mark.parametrize("vectors", [False, True])
def test_any_number_of_threads_and_every_instruction_set_give_the_same_bits(vectors):
    choose = library.function("popgeo_choose_isa", "q", "q")
    data, before, newest = problem(3_000, 90, 40, vectors=vectors), torch.get_num_threads(), choose(-1)
    expected = run(data, torch.float32, half_list=True)
    try:
        for num_threads, isa in itertools.product((1, 2, 4), range(newest + 1)):
            torch.set_num_threads(num_threads)
            choose(isa)
            if interaction_call.is_served():
                made = run(data, torch.float32, half_list=True)
                assert all(map(torch.equal, made, expected)), (num_threads, isa)
    finally:
        choose(-1)
        torch.set_num_threads(before)


@served
def test_a_processor_without_fused_multiply_adds_takes_the_plain_path():
    choose = library.function("popgeo_choose_isa", "q", "q")
    data = problem()
    expected = run(data, torch.float32)
    try:
        choose(0)
        assert_near(run(data, torch.float32), expected, 1e-5)
    finally:
        choose(-1)


def test_edges_beyond_the_cutoff_carry_nothing(native):
    data = problem()
    data["r"][3], data["x"][data["src"][3]] = torch.inf, 0.0
    out, _, _, to_r, *_ = run(data, torch.float32)
    assert bool(out.isfinite().all())
    assert bool((to_r[data["r"] >= CUTOFF] == 0).all())


@pytest.mark.parametrize("name", ["x", "waves", "r"])
def test_a_nan_reaches_all_that_depends_on_it(native, name):
    data = problem(50, 6)
    data[name][1] = torch.nan
    data["r"] = data["r"].clamp(max=4.0)
    made, expected = run(data, torch.float32), run(data, torch.float32, plain=True)
    assert torch.equal(made[0].isnan(), expected[0].isnan())
    assert [bool(t.isnan().any()) for t in made] == [bool(t.isnan().any()) for t in expected]


def test_a_distance_of_zero_has_the_first_row_of_the_table(native):
    table, x = torch.arange(1.0, 12.0).view(-1, 1), torch.tensor([[2.0]])
    nodes = torch.tensor([0])
    assert_close(interaction(x, table, torch.tensor([0.0]), nodes, nodes, 1, 1.0), torch.tensor([[2.0]]))


def test_interpolation_is_exact_for_polynomials_of_degree_seven():
    grid = torch.linspace(0, 1, 20, dtype=torch.float64)
    powers = torch.stack([grid**k for k in range(8)], dim=1)
    r = torch.rand(100, dtype=torch.float64)
    assert_close(interpolated(powers, r, 1.0), torch.stack([r**k for k in range(8)], dim=1))


@served
def test_a_plan_is_made_once_and_not_used_for_other_edges():
    data = problem()
    x, r, src, dst = data["x"].float(), data["r"].float(), data["src"], data["dst"]
    table = table_of(data["waves"])
    plan = InteractionPlan.of(src, dst, r, (20, 20, 257), CUTOFF)
    assert int(plan.tensor[0]) == int((r < CUTOFF).sum())
    assert plan.is_of(src, dst, r, (20, 20, 257), CUTOFF)
    expected = interaction(x, table, r, src, dst, 20, CUTOFF)
    assert torch.equal(interaction(x, table, r, src, dst, 20, CUTOFF, plan=plan), expected)
    other = interaction(x, table, r, dst, src, 20, CUTOFF, plan=plan)
    assert torch.equal(other, interaction(x, table, r, dst, src, 20, CUTOFF))
    r[0] = 4.9 - r[0]
    assert not plan.is_of(src, dst, r, (20, 20, 257), CUTOFF)


@served
def test_a_plan_that_names_other_edges_is_refused_by_the_kernels():
    data = problem(10, 4)
    plan, weights = OPS.interaction_plan(data["src"], data["dst"], data["r"], CUTOFF, 4, 4, 257)
    for place in (0, 1, 2, 3, 4, 5, 5 + 10, 5 + 20, 5 + 30):
        broken = plan.clone()
        broken[place] = 10_000
        call = data["x"], table_of(data["waves"]), data["r"], None, data["src"], data["dst"], 4, CUTOFF, False
        with pytest.raises(ValueError, match="The plan of the interaction belongs to different edges or was changed"):
            OPS.interaction(*call, broken, weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_takes_the_plain_path(dtype):
    data = problem()
    x = data["x"].to(dtype)
    out = interaction(x, table_of(data["waves"]), data["r"], data["src"], data["dst"], 20, CUTOFF)
    assert out.dtype is dtype
    assert_near([out], [run(data, torch.float64)[0]], 0.05)


@pytest.mark.parametrize(("name", "value"), [("src", -1), ("dst", 20), ("dst", 2**40)])
def test_an_index_out_of_range_is_refused(native, name, value):
    data = problem()
    data[name][5] = value
    with pytest.raises(ValueError, match=rf"{name}\[5\] is {value}; allowed are 0 to 19"):
        run(data, torch.float32)


X, TABLE, R, NODES = torch.ones(4, 2), torch.ones(11, 2), torch.ones(2), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(4, 3)}, r"x has shape \(4, 3\); for filters of 2 channels pass \[n, 2\]"),
        ({"table": torch.ones(1, 2)}, r"table has shape \(1, 2\)"),
        ({"table": torch.ones(11)}, r"table has shape \(11,\)"),
        ({"r": torch.ones(3)}, r"r has shape \(3,\); it must be \(2,\)\. Pass one distance"),
        ({"direction": torch.ones(2, 3)}, "x has shape"),
        ({"direction": torch.ones(2, 2), "table": torch.ones(11, 3), "x": torch.ones(4, 5)}, "direction has shape"),
        ({"half_list": True, "num_nodes": 5}, "must be equal"),
        ({"num_nodes": -1}, "num_nodes is -1; it must be at least 0"),
        ({"cutoff": 0.0}, "it must be positive"),
        ({"src": NODES[:1]}, r"dst has shape \(2,\)"),
        ({"dst": NODES.short()}, "dst has dtype torch.int16"),
    ],
)
def test_what_does_not_fit_is_refused(native, change, message):
    given = {"x": X, "table": TABLE, "r": R, "src": NODES, "dst": NODES, "num_nodes": 4, "cutoff": 2.0}
    with pytest.raises(ValueError, match=message):
        interaction(**given | change)


def test_no_edges_make_zeros(native):
    none = torch.zeros(0, dtype=torch.long)
    out = interaction(X, TABLE, torch.zeros(0), none, none, 3, 2.0)
    assert out.tolist() == [[0.0, 0.0]] * 3


def test_an_operation_has_a_shape_rule_and_a_decomposition():
    data = problem(30, 5, vectors=True)
    call = data["x"], table_of(data["waves"]), data["r"], data["direction"], data["src"], data["dst"], 5, CUTOFF, True
    plan = OPS.interaction_plan(data["src"], data["dst"], data["r"], CUTOFF, 5, 5, 257)
    out = OPS.interaction(*call, *plan)
    torch.library.opcheck(OPS.interaction.default, (*call, *plan))
    assert_close(decomposition_table[OPS.interaction.default](*call, *plan), out)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) if isinstance(t, Tensor) else t for t in (*call, *plan)]
        assert OPS.interaction(*fakes).shape == out.shape


def test_a_trace_holds_forward_and_backward_as_one_operation_each():
    data = problem(30, 5)
    table = table_of(data["waves"])

    def step(x, r):
        out = interaction(x, table, r, data["src"], data["dst"], 5, CUTOFF)
        return torch.autograd.grad(out.square().sum(), [x, r])

    leaves = data["x"].clone().requires_grad_(), data["r"].clone().requires_grad_()
    targets = [str(node.target) for node in make_fx(step)(*leaves).graph.nodes]
    names = ("interaction_plan", "interaction", "interaction_backward")
    assert [targets.count(f"popgeo.{name}.default") for name in names] == [1, 1, 1]


def test_which_tensors_are_served():
    assert serves(torch.ones(2)) == serves(torch.ones(2).double()) == interaction_call.is_served()
    assert not serves(torch.ones(2).half())
    assert not serves(torch.ones(2, device="meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not serves(torch.ones(2))
    with library.without_native():
        assert not serves(torch.ones(2))


def test_the_size_of_a_plan_by_hand():
    """Expect a header of 5, and four numbers per edge: its number, its window and its two ends."""
    assert [plan_size(n) for n in (0, 1, 10)] == [5, 9, 45]
