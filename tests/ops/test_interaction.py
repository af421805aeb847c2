"""The interaction in one pass: by hand, against plain torch in float64, at any number of threads, and its refusals."""

import ctypes
import functools
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction import InteractionPlan, interaction

served = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")


def problem(
    num_edges=300,
    num_nodes=20,
    widths=(9, 13, 7),
    activation=Activation.SHIFTED_SOFTPLUS,
    *,
    biases=True,
    gaussians=True,
    envelope=True,
    half_list=False,
    seed=0,
):
    """The arguments of an interaction by name, a third of the envelope exactly 0; parameters and data are leaves."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = [normal(o, i) / i**0.5 for i, o in pairwise(widths)]
    factor = normal(num_edges).relu()
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return {
        "x": normal(num_nodes, widths[-1]),
        "src": src,
        "dst": dst,
        "num_nodes": num_nodes,
        "weights": weights,
        "biases": [normal(len(weight)) if biases else None for weight in weights],
        "activation": activation,
        "expansion": normal(num_edges).abs() * 3 if gaussians else normal(num_edges, widths[0]),
        "centres": torch.linspace(0, 5, widths[0], dtype=torch.float64) if gaussians else None,
        "envelope": factor if envelope else None,
        "half_list": half_list,
    }


def run(given, dtype=torch.float32, plan=None, wants_envelope=False):
    """The result and all gradients."""
    x, expansion, envelope, *layers = (
        None if t is None else t.to(dtype).clone().requires_grad_()
        for t in (given["x"], given["expansion"], given["envelope"], *given["weights"], *given["biases"])
    )
    envelope = envelope if wants_envelope or envelope is None else envelope.detach()
    half = len(given["weights"])
    network = FilterNetwork(weights=layers[:half], biases=layers[half:], activation=given["activation"])
    centres = given["centres"]
    gaussians = None if centres is None else Gaussians(centres=centres.to(dtype), width=-1.5)
    edges = given["src"], given["dst"], given["num_nodes"]
    out = interaction(x, *edges, network, expansion, gaussians, envelope, half_list=given["half_list"], plan=plan)
    leaves = [t for t in (x, expansion, envelope, *layers) if t is not None and t.requires_grad]
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def assert_near(one, two, tolerance):
    for a, b in zip(one, two, strict=True):
        assert a.shape == b.shape
        assert_close(a.double(), b.double(), rtol=0, atol=tolerance * largest(b))


def largest(tensor):
    return tensor.abs().max().item() if tensor.numel() else 0.0


def disturbed(given, seed):
    """The same problem with its numbers changed as much as rounding to float32 may change them."""
    generator = torch.Generator().manual_seed(seed)

    def of(value):
        if isinstance(value, list):
            return [of(one) for one in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value * (1 + 2**-24 * (2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1))

    return {name: of(value) for name, value in given.items()}


def assert_as_exact_as_plain(given, function=run, factor=40):
    """Whether float32 is as near to float64 as plain torch's own float32, which rounds in another order.

    How near that is depends on how much cancels. One number may be right by luck, so that the error of rounding the
    input alone counts too. Torch also adds up in pairs, which is a few times as exact as one number after the other.
    """
    exact, ours = function(given, torch.float64), function(given, torch.float32)
    with library.without_native():
        plain = [function(given, torch.float32)]
    plain += [function(disturbed(given, seed), torch.float64) for seed in range(3)]
    for a, b, *others in zip(ours, exact, *plain, strict=True):
        assert a.shape == b.shape
        allowed = max(largest(other.double() - b) for other in others) + 2**-24 * largest(b)
        assert_close(a.double(), b, rtol=0, atol=factor * allowed)


def test_values_by_hand(native):
    network = FilterNetwork(weights=[torch.tensor([[2.0], [1.0]])], biases=[torch.tensor([1.0, 0.0])])
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    arguments = x, torch.tensor([1, 1]), torch.tensor([0, 1]), 2, network, torch.tensor([[3.0], [4.0]])
    envelope = torch.tensor([0.5, 0.0])
    assert interaction(*arguments, envelope=envelope).tolist() == [[7.0, 30.0], [0.0, 0.0]]
    both_ways = interaction(*arguments, envelope=envelope, half_list=True)
    assert both_ways.tolist() == [[7.0, 30.0], [3.5, 15.0]]


def test_gaussians_end_in_exact_zeros(native):
    network = FilterNetwork(weights=[torch.eye(2)], biases=[None])
    gaussians = Gaussians(centres=torch.tensor([0.0, 10.0]), width=-1.0)
    nodes = torch.tensor([0])
    out = interaction(torch.ones(1, 2), nodes, nodes, 1, network, torch.tensor([1.0]), gaussians)
    assert_close(out, torch.tensor([[0.36787944, 0.0]]))
    assert out[0, 1] == 0


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(st.sampled_from([0, 1, 7, 128, 129, 700]), st.integers(1, 40)),
    widths=st.lists(st.sampled_from([1, 3, 8, 13, 16, 33, 64, 100]), min_size=2, max_size=5),
    activation=st.sampled_from(list(Activation)),
    flags=st.tuples(*[st.booleans()] * 5),
    seed=st.integers(0, 2**20),
)
def test_one_pass_is_plain_torch_to_rounding(sizes, widths, activation, flags, seed):
    names = ("biases", "gaussians", "envelope", "half_list")
    arguments = problem(*sizes, widths, activation, seed=seed, **dict(zip(names, flags, strict=False)))
    assert_as_exact_as_plain(arguments, functools.partial(run, wants_envelope=flags[4]))


@pytest.mark.parametrize("half_list", [False, True])
def test_gradients_are_right_twice(half_list):
    given = problem(6, 4, (3, 4, 2), half_list=half_list)
    network = given["weights"], given["biases"]

    def function(x, r, first, second, bias):
        layers = FilterNetwork(weights=[first, second], biases=[bias, None])
        gaussians = Gaussians(centres=given["centres"], width=-1.5)
        # The distance reaches the result in two ways.
        edges = given["src"], given["dst"], given["num_nodes"]
        return interaction(x, *edges, layers, r, gaussians, torch.exp(-r), half_list=half_list)

    leaves = [t.clone().requires_grad_() for t in (given["x"], given["expansion"], *network[0], network[1][0])]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@served
def test_second_derivatives_in_float32_are_those_of_float64():
    def second(given, dtype):
        x, r, *weights = (
            t.to(dtype).clone().requires_grad_() for t in (given["x"], given["expansion"], *given["weights"])
        )
        network = FilterNetwork(weights=weights, biases=[None, None])
        gaussians = Gaussians(centres=given["centres"].to(dtype), width=-1.5)
        edges = given["src"], given["dst"], given["num_nodes"]
        out = interaction(x, *edges, network, r, gaussians, torch.exp(-r), half_list=True)
        (force,) = torch.autograd.grad(out.square().sum(), r, create_graph=True)
        return [force.detach(), *torch.autograd.grad(force.square().sum(), [x, r, *weights])]

    assert_as_exact_as_plain(problem(40, 6, half_list=True), second)


@served
@pytest.mark.parametrize("half_list", [False, True])
def test_any_number_of_threads_gives_the_same_bits(half_list):
    given = problem(2_000, 90, (50, 100, 100), half_list=half_list)
    before = torch.get_num_threads()
    try:
        results = []
        for num_threads in (1, 2, 4):
            torch.set_num_threads(num_threads)
            results.append(run(given, wants_envelope=True))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], others, strict=True))


@served
@pytest.mark.parametrize("widths", [(50, 100, 100), (9, 13, 7), (20, 33)])
def test_every_instruction_set_that_is_served_gives_the_same_bits(widths):
    choose = library.function("popgeo_choose_isa", (ctypes.c_int64,), ctypes.c_int64)
    given, newest = problem(500, 30, widths, half_list=True), choose(-1)
    expected = run(given)
    try:
        for isa in range(newest):
            choose(isa)
            if interaction_call.is_served():
                assert all(torch.equal(one, two) for one, two in zip(run(given), expected, strict=True))
    finally:
        choose(-1)


@served
def test_a_processor_without_fused_multiply_adds_takes_the_plain_path():
    choose = library.function("popgeo_choose_isa", (ctypes.c_int64,), ctypes.c_int64)
    given, newest = problem(), choose(-1)
    expected = run(given)
    try:
        choose(0)
        assert_near(run(given), expected, 1e-5)
    finally:
        assert choose(-1) == newest


@served
def test_absent_edges_cost_no_filter_and_have_no_gradient():
    given = problem(300)
    absent = given["envelope"] == 0
    plan = InteractionPlan.of(given["src"], given["dst"], (20, 20), given["envelope"].float())
    assert int(plan.tensor[0]) == int((~absent).sum()) < 300
    assert bool((run(given)[2][absent] == 0).all())


@served
def test_a_plan_of_other_edges_is_not_used():
    given = problem()
    plan = InteractionPlan.of(given["dst"], given["src"], (20, 20), given["envelope"].float())
    assert all(torch.equal(one, two) for one, two in zip(run(given, plan=plan), run(given), strict=True))


def test_a_plan_notices_changes_in_place():
    src, dst, envelope = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([1.0, 0.0])
    if not interaction_call.is_served():
        pytest.skip("no kernels for this processor")
    plan = InteractionPlan.of(src, dst, (2, 2), envelope)
    assert plan.is_of(src, dst, (2, 2), envelope)
    envelope[1] = 1.0
    assert not plan.is_of(src, dst, (2, 2), envelope)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_take_the_plain_path(dtype):
    given = problem()
    assert_near(run(given, dtype), run(given, torch.float64), 0.1 if dtype is torch.bfloat16 else 1e-12)


@pytest.mark.parametrize("name", ["x", "weights", "expansion"])
def test_a_nan_reaches_all_that_depends_on_it(native, name):
    given = problem(50, 6)
    broken = given[name][0] if name == "weights" else given[name]
    broken[3] = torch.nan
    given["envelope"][:] = 1.0
    with library.without_native():
        expected = run(given)
    assert [bool(t.isnan().any()) for t in run(given)] == [bool(t.isnan().any()) for t in expected]
    assert torch.equal(run(given)[0].isnan(), expected[0].isnan())


@pytest.mark.parametrize(("name", "value"), [("src", -1), ("dst", 20), ("dst", 2**40)])
def test_an_index_out_of_range_is_refused(native, name, value):
    given = problem()
    given[name][5] = value
    with pytest.raises(ValueError, match=rf"{name}\[5\] is {value}; allowed are 0 to 19"):
        run(given)


def test_what_does_not_fit_is_refused():
    weight, x, nodes = torch.ones(2, 3), torch.ones(4, 2), torch.tensor([0, 1])
    network = FilterNetwork(weights=[weight], biases=[None])
    with pytest.raises(ValueError, match="makes filters of 2 channels"):
        interaction(torch.ones(4, 3), nodes, nodes, 4, network, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"expansion has shape \(3, 3\)"):
        interaction(x, nodes, nodes, 4, network, torch.ones(3, 3))
    with pytest.raises(ValueError, match="must be equal"):
        interaction(x, nodes, nodes, 5, network, torch.ones(2, 3), half_list=True)
    with pytest.raises(ValueError, match=r"envelope has shape \(2, 1\)"):
        interaction(x, nodes, nodes, 4, network, torch.ones(2, 3), envelope=torch.ones(2, 1))
    with pytest.raises(ValueError, match="must be negative"):
        Gaussians(centres=torch.ones(3), width=1.0)
    with pytest.raises(ValueError, match="Layer 1 has a weight"):
        FilterNetwork(weights=[weight, weight], biases=[None, None])
    with pytest.raises(ValueError, match="one to 4 layers"):
        FilterNetwork(weights=[], biases=[])


@served
def test_a_gradient_that_is_one_number_for_all_is_read_as_it_is():
    given = problem(200)
    sums = []
    for dtype in (torch.float32, torch.float64):
        x = given["x"].to(dtype).requires_grad_()
        network = FilterNetwork(weights=[w.to(dtype) for w in given["weights"]], biases=[None, None])
        gaussians = Gaussians(centres=given["centres"].to(dtype), width=-1.5)
        edges = given["src"], given["dst"], given["num_nodes"]
        interaction(x, *edges, network, given["expansion"].to(dtype), gaussians).sum().backward()
        sums.append(x.grad)
    assert_near(sums[:1], sums[1:], 1e-5)


@pytest.mark.parametrize("end", ["src", "dst"])
def test_an_end_for_another_number_of_edges_is_refused(native, end):
    network = FilterNetwork(weights=[torch.eye(2)], biases=[None])
    ends = {"src": torch.tensor([0, 1]), "dst": torch.tensor([1, 0])} | {end: torch.tensor([[0, 1]])}
    with pytest.raises(ValueError, match=end):
        interaction(torch.ones(2, 2), ends["src"], ends["dst"], 2, network, torch.ones(2, 2))
