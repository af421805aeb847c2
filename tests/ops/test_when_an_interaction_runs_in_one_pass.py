"""When an interaction runs in one pass, what its kernels are told, and that it fits sources and receivers apart."""

import itertools
import struct

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.exp_or_zero import least_exponent
from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction import InteractionPlan, interaction, serves
from popgeo.ops.interaction_call import Call, filters_shape, plan_size

served = pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")
SRC, DST = torch.tensor([4, 0, 2, 4]), torch.tensor([1, 2, 0, 1])
SIZES = 5, 3


def given(dtype: torch.dtype = torch.float32, gaussians: bool = True) -> dict[str, object]:
    """The arguments of an interaction of five sources and three receivers, by name."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    weights, biases = [normal(6, 2), normal(3, 6)], [normal(6), None]
    centres = torch.tensor([0.0, 1.5]).to(dtype)
    return {
        "x": normal(5, 3),
        "src": SRC,
        "dst": DST,
        "num_nodes": 3,
        "network": FilterNetwork(weights=weights, biases=biases, activation=Activation.TANH),
        "expansion": normal(4).abs() if gaussians else normal(4, 2),
        "gaussians": Gaussians(centres=centres, width=-0.5) if gaussians else None,
        "envelope": torch.tensor([0.5, 0.0, 1.0, 2.0]).to(dtype),
    }


def by_hand(x, src, dst, num_nodes, network, expansion, gaussians, envelope) -> Tensor:
    """Edge by edge, of layers with tanh between them."""
    out = torch.zeros(num_nodes, x.shape[1], dtype=x.dtype)
    for e in range(len(src)):
        rows = expansion[e] if gaussians is None else (gaussians.width * (expansion[e] - gaussians.centres) ** 2).exp()
        (first, second), bias = network.weights, network.biases[0]
        out[dst[e]] += x[src[e]] * (second @ (first @ rows + bias).tanh()) * envelope[e]
    return out


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiled kernels were asked for."""
    asked: list[str] = []
    run, make_plan = interaction_call.run, interaction_call.make_plan
    monkeypatch.setattr(interaction_call, "run", lambda way, packed: (asked.append(way), run(way, packed))[1])
    monkeypatch.setattr(interaction_call, "make_plan", lambda *parts: (asked.append("plan"), make_plan(*parts))[1])
    return asked


@pytest.mark.parametrize("gaussians", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_sources_and_receivers_may_be_of_different_numbers(native, gaussians: bool, index_dtype: torch.dtype):
    for dtype in (torch.float32, torch.float64):
        arguments = given(dtype, gaussians)
        expected = by_hand(**arguments)
        arguments |= {"src": SRC.to(index_dtype), "dst": DST.to(index_dtype)}
        torch.testing.assert_close(interaction(**arguments), expected)
        leaf = arguments["x"].clone().requires_grad_()
        torch.testing.assert_close(interaction(**arguments | {"x": leaf}), expected)
        strided = {name: torch.stack([arguments[name]] * 2, 1)[:, 0] for name in ("x", "expansion", "envelope")}
        torch.testing.assert_close(interaction(**arguments | strided), expected)


@pytest.mark.parametrize(("name", "value", "limit"), [("src", 5, 4), ("src", -1, 4), ("dst", 3, 2), ("dst", -1, 2)])
def test_each_end_has_its_own_limit(native, name: str, value: int, limit: int):
    wrong = (SRC if name == "src" else DST).clone()
    wrong[2] = value
    message = rf"{name}\[2\] is {value}; allowed are 0 to {limit}"
    with pytest.raises(ValueError, match=message):
        interaction(**given() | {name: wrong})
    if interaction_call.is_served():
        ends = {"src": SRC, "dst": DST} | {name: wrong}
        with pytest.raises(ValueError, match=message):
            torch.ops.popgeo.interaction_plan(ends["src"], ends["dst"], None, None, *SIZES)


@served
def test_one_pass_serves_what_it_can_and_plain_torch_the_rest(runs):
    leaf = torch.zeros(2).requires_grad_()
    assert interaction(**given()).shape == (3, 3)
    assert runs == ["plan", "forward"]
    runs.clear()
    x = given()["x"].requires_grad_()
    interaction(**given() | {"x": x}).sum().backward()
    assert runs == ["plan", "forward", "backward"]
    runs.clear()
    with torch.no_grad():
        assert not interaction(**given() | {"x": x, "gaussians": Gaussians(centres=leaf, width=-1.0)}).requires_grad
    assert runs == ["plan", "forward"]
    runs.clear()
    out = interaction(**given() | {"gaussians": Gaussians(centres=leaf, width=-1.0)})
    assert torch.autograd.grad(out.sum(), leaf)[0].abs().sum() > 0
    interaction(**given(torch.float64))
    empty = {"src": SRC[:0], "dst": DST[:0], "expansion": torch.zeros(0), "envelope": torch.zeros(0)}
    assert interaction(**given() | empty).tolist() == [[0] * 3] * 3
    with torch.autocast("cpu", torch.bfloat16):
        interaction(**given())
    with library.without_native():
        interaction(**given())
    assert not runs
    tensors = [torch.ones(2), torch.tensor([1, 2])]
    assert serves(*tensors)
    for other in (torch.ones(2).double(), torch.ones(0), torch.zeros(0).long(), torch.ones(2, device="meta")):
        assert not serves(*tensors, other)
    assert serves(torch.ones(1), torch.tensor([1]).expand(2**31 - 1))
    assert not serves(torch.ones(1), torch.tensor([1]).expand(2**31))
    assert not serves(FakeTensorMode().from_tensor(torch.ones(2)))


@served
def test_a_plan_is_made_once_for_the_same_tensors(runs):
    arguments = given()
    plan = InteractionPlan.of(SRC, DST, SIZES, arguments["envelope"], arguments["expansion"])
    assert plan.sizes == SIZES
    runs.clear()
    expected = interaction(**given())
    assert runs == ["plan", "forward"]
    runs.clear()
    assert torch.equal(interaction(**arguments, plan=plan), expected)
    assert runs == ["forward"]
    for name, value in (("src", SRC.clone()), ("dst", DST.clone()), ("envelope", arguments["envelope"].clone())):
        runs.clear()
        assert torch.equal(interaction(**arguments | {name: value}, plan=plan), expected)
        assert runs == ["plan", "forward"]
    assert plan.is_of(SRC, DST, SIZES, arguments["envelope"])
    for sizes in ((5, 4), (6, 3)):
        assert not plan.is_of(SRC, DST, sizes, arguments["envelope"])
    assert not plan.is_of(SRC, DST, SIZES, None)
    for other in (None, arguments["envelope"]):
        one = InteractionPlan.of(SRC, DST, SIZES, other)
        assert one.is_of(SRC, DST, SIZES, other)
    with torch.inference_mode():
        inferred = SRC.clone()
        assert InteractionPlan.of(inferred, DST, SIZES).is_of(inferred, DST, SIZES, None)


@served
def test_a_plan_leaves_out_edges_without_a_factor_unless_their_gradient_is_wanted(monkeypatch):
    envelope = torch.tensor([0.5, 0.0, 1.0, 2.0])
    assert int(InteractionPlan.of(SRC, DST, SIZES, envelope).tensor[0]) == 3
    assert int(InteractionPlan.of(SRC, DST, SIZES, None).tensor[0]) == 4
    leaf = envelope.clone().requires_grad_()
    takes_part = torch.tensor([1.0, 1.0, 0.0, 1.0])
    assert int(InteractionPlan.of(SRC, DST, SIZES, leaf, None, takes_part).tensor[0]) == 3
    assert int(InteractionPlan.of(SRC, DST, SIZES, leaf).tensor[0]) == 4
    with torch.no_grad():
        assert int(InteractionPlan.of(SRC, DST, SIZES, leaf).tensor[0]) == 3
    told: list[Tensor | None] = []
    make_plan = interaction_call.make_plan
    monkeypatch.setattr(interaction_call, "make_plan", lambda *parts: (told.append(parts[4]), make_plan(*parts))[1])
    arguments = given()
    interaction(**arguments)
    interaction(**given(gaussians=False))
    assert torch.equal(told[0], arguments["expansion"])  # edges of like distance go beside each other
    assert told[1] is None  # rows of inputs are no distances


def test_the_size_of_a_plan_by_hand():
    """A header of 4; of each edge a number, two ends and two pairs; of each row and source a pointer, and one more."""
    assert [plan_size(*sizes) for sizes in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (10, 3, 2))] == [
        6,
        13,
        7,
        7,
        81,
    ]


def test_the_shape_of_filters_by_hand():
    """Groups of eight edges; of lines of 16 channels an odd number."""
    assert [filters_shape(n, 1) for n in (0, 1, 8, 9, 17)] == [(0, 16), (8, 16), (8, 16), (16, 16), (24, 16)]
    assert [filters_shape(1, n)[1] for n in (1, 16, 17, 33, 48, 49)] == [16, 16, 48, 48, 48, 80]


def test_numbers_that_the_kernels_have_too():
    assert least_exponent(torch.float32) == -60
    assert [int(one) for one in Activation] == [0, 1, 2, 3, 4, 5]


def test_what_the_kernels_are_told_is_the_structure_of_their_header():
    """InteractionCall of interaction.h: eighteen addresses, nine numbers, the width, six numbers for each layer."""
    numbers = itertools.count(1)

    def tensor(*shape: int) -> Tensor:
        return torch.full(shape, float(next(numbers)))

    call = Call(
        plan=tensor(7), x=tensor(5, 3), expansion=tensor(4), centres=tensor(2), width=-0.5,
        envelope=tensor(4), weights=[tensor(6, 2), tensor(3, 6)], biases=[tensor(6), None],
        src=SRC, dst=DST, num_nodes=3, activation=Activation.TANH, half_list=True, direction=tensor(4, 3),
    )  # fmt: skip
    out, grad, workspace = (tensor(n) for n in (15, 9, 1))
    filters = tensor(8, 96)  # with slopes next to them
    grads = [tensor(4), None, tensor(4, 3), tensor(6, 2), tensor(6), None, None]
    given = {"out": out, "filters": filters, "grad": grad, "grads": grads, "workspace": workspace, "num_threads": 9}
    along, to_grad = [tensor(5, 3), None, tensor(4), tensor(4, 3)], tensor(9)
    packed = call.pack(**given, along=along, to_grad=to_grad)
    at = lambda t: 0 if t is None else t.data_ptr()  # noqa: E731
    addresses = [
        call.plan,
        call.x,
        grad,
        out,
        filters,
        call.expansion,
        call.centres,
        call.envelope,
        call.direction,
        *grads[:3],
        workspace,
        *along,
        to_grad,
    ]
    layers = [
        *map(at, (call.weights[0], call.biases[0], grads[3], grads[4])), 2, 6,
        *map(at, (call.weights[1], None, None, None)), 6, 3, *[0] * 12,
    ]  # fmt: skip
    assert struct.unpack("27qd24q", packed) == (*map(at, addresses), 4, 5, 3, 1, 4, 2, 9, 1, 1, -0.5, *layers)
    alone = struct.unpack("27qd24q", call.pack())
    expected = [0 if number in (2, 3, 4, *range(9, 18)) else at(t) for number, t in enumerate(addresses)]
    assert alone[:18] == tuple(expected)
    assert alone[18:27] == (4, 5, 3, 1, 4, 2, 1, 0, 0)
    assert [alone[28 + 6 * layer + 2] for layer in range(4)] == [0, 0, 0, 0]


@served
def test_a_plan_of_other_edges_is_refused_by_the_kernels():
    call = Call(
        plan=torch.zeros(plan_size(1, 1, 1), dtype=torch.int32), x=torch.ones(1, 1), num_nodes=1,
        src=torch.zeros(1).long(), dst=torch.zeros(1).long(), expansion=torch.ones(1, 1), envelope=None,
        weights=[torch.ones(1, 1)], biases=[None], activation=0, half_list=False,
    )  # fmt: skip
    call.plan[0] = 99
    with pytest.raises(ValueError, match="The plan of the interaction is of other edges or was changed"):
        interaction_call.run("forward", call.pack(out=torch.ones(1, 1), workspace=call.workspace(1)))


@served
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_gradients_are_made_for_whom_they_are_wanted(wanted: tuple[bool, ...]):
    names = [name for name, is_wanted in zip(("x", "expansion", "envelope"), wanted, strict=True) if is_wanted]
    found = []
    for dtype in (torch.float32, torch.float64):
        arguments = given(dtype)
        arguments["envelope"][1] = 0.25
        leaves = {name: arguments[name].clone().requires_grad_() for name in names}
        out = interaction(**arguments | leaves)
        assert out.requires_grad is bool(names)
        found.append(torch.autograd.grad(out.square().sum(), list(leaves.values())) if names else [])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_second_gradients_are_made_for_whom_they_are_wanted(wanted: tuple[bool, ...]):
    names = [name for name, is_wanted in zip(("x", "expansion", "envelope"), wanted, strict=True) if is_wanted]
    found = []
    for dtype in (torch.float32, torch.float64):
        arguments = given(dtype)
        weights = [weight.clone().requires_grad_() for weight in arguments["network"].weights]
        arguments["network"] = FilterNetwork(weights=weights, biases=arguments["network"].biases)
        leaves = {name: arguments[name].clone().requires_grad_() for name in names}
        wanted_of = [*leaves.values(), weights[1]]
        out = interaction(**arguments | leaves).square().sum()
        first = torch.autograd.grad(out, wanted_of, create_graph=True)
        found.append(torch.autograd.grad(sum(one.square().sum() for one in first), [*leaves.values(), *weights]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(5)}, r"x has shape \(5,\); the network makes filters of 3 channels"),
        ({"x": torch.ones(5, 2)}, r"x has shape \(5, 2\)"),
        ({"expansion": torch.ones(4, 2)}, r"expansion has shape \(4, 2\); .* pass \(4,\)"),
        ({"gaussians": None}, r"expansion has shape \(4,\); .* pass \(4, 2\)"),
        (
            {"gaussians": Gaussians(centres=torch.ones(3), width=-1.0)},
            "There are 3 centres; the network takes 2 inputs",
        ),
        ({"envelope": torch.ones(3)}, r"envelope has shape \(3,\); pass one factor for each edge: \(4,\)"),
        ({"half_list": True}, "x has 5 rows and num_nodes is 3"),
        ({"src": SRC[:3]}, r"dst has shape \(4,\)"),
        ({"dst": DST.short()}, r"dst has dtype torch\.int16"),
        ({"src": SRC.short()}, r"src has dtype torch\.int16"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        interaction(**given() | change)


def test_networks_of_one_to_four_layers_that_follow_each_other():
    weight, bias = torch.eye(2), torch.ones(2)
    rows = torch.tensor([[-1.0, 2.0]])
    for count in (1, 2, 3, 4):
        network = FilterNetwork(weights=[weight] * count, biases=[bias] * count, activation=Activation.RELU)
        assert network(rows).tolist() == [[0.0, 3.0]] if count == 1 else [[count - 1.0, 2.0 + count]]
    for weights, biases in (([], []), ([weight] * 5, [None] * 5), ([weight], []), ([weight], [None, None])):
        with pytest.raises(ValueError, match=f"has {len(weights)} weights and {len(biases)} biases; pass one to 4"):
            FilterNetwork(weights=weights, biases=biases)
    for wrong, other in ((torch.ones(2), None), (torch.ones(2, 3), None), (weight, torch.ones(3)), (weight, weight)):
        with pytest.raises(ValueError, match=r"Layer 1 has a weight of shape .*; they are \[out, 2\] and \[out\]"):
            FilterNetwork(weights=[weight, wrong], biases=[None, other])
    with pytest.raises(ValueError, match=r"Layer 0 has a weight of shape \(2,\)"):
        FilterNetwork(weights=[torch.ones(2)], biases=[None])
    for width in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="it must be negative: they fall"):
            Gaussians(centres=bias, width=width)
    made = Gaussians(centres=torch.tensor([0.0, 2.0, 9.0]), width=-1.0)(torch.tensor([1.0]))
    torch.testing.assert_close(made, torch.tensor([[0.36787944, 0.36787944, 0.0]]))
    assert made[0, 2] == 0


@pytest.mark.parametrize("activation", list(Activation))
def test_each_activation_is_its_own(activation: Activation):
    rows = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    network = FilterNetwork(weights=[one, one], biases=[None, None], activation=activation)
    softplus, sigmoid = (1 + rows.exp()).log(), 1 / (1 + (-rows).exp())
    expected = {
        Activation.SHIFTED_SOFTPLUS: (rows.exp() / 2 + 0.5).log(), Activation.SOFTPLUS: softplus,
        Activation.SILU: rows * sigmoid, Activation.RELU: rows.clamp(min=0), Activation.TANH: rows.tanh(),
        Activation.SIGMOID: sigmoid,
    }[activation]  # fmt: skip
    torch.testing.assert_close(network(rows), expected)


def test_edges_that_run_both_ways_over_one_distance_share_their_filter_and_others_do_not():
    src, dst = torch.tensor([0, 1, 1, 2, 3]), torch.tensor([1, 0, 2, 1, 3])
    distances, envelope = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0]), torch.tensor([0.5, 0.5, 0.25, 0.25, 0.0])

    def head(sizes, distances=distances, envelope=envelope):
        plan = torch.zeros(interaction_call.plan_size(5, 4, 4), dtype=torch.int32)
        assert interaction_call.make_plan(src, dst, sizes, envelope, distances, plan)
        return plan[:2].tolist()

    assert head((4, 4, True)) == [2, ~5]
    assert head((4, 4)) == head((4, 4, False)) == [4, 5]
    assert head((4, 4, True), distances=torch.tensor([1.0, 1.5, 2.0, 2.0, 3.0])) == [4, 5]
    assert head((4, 4, True), envelope=torch.tensor([0.5, 0.5, 0.25, 0.25, 1.0])) == [5, 5]  # one goes to itself
