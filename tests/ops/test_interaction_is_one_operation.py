"""The interaction as operations of torch: right by every way to call them, whole where they are written down."""

import pytest
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.filter_network import Activation, FilterNetwork
from popgeo.ops.interaction import interaction
from popgeo.ops.interaction_call import Call

OPS = torch.ops.popgeo


def call_of(dtype: torch.dtype, *, half_list: bool = False, by_distance: bool = False) -> Call:
    """An interaction of seven edges between four nodes; one edge has no factor."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    src, dst = torch.randint(4, (2, 7), generator=generator)
    envelope = normal(7)
    envelope[2] = 0
    return Call(
        normal(4, 3),
        normal(7).abs() if by_distance else normal(7, 2),
        envelope,
        [normal(5, 2), normal(3, 5)],
        [normal(5), None],
        src,
        dst,
        4,
        int(Activation.TANH),
        half_list,
        torch.tensor([0.0, 1.5], dtype=dtype) if by_distance else None,
        -0.5 if by_distance else 0.0,
    )


def leaves_of(call: Call) -> Call:
    return call.of([None if t is None else t.clone().requires_grad_() for t in call.tensors])


def operate(call: Call) -> Tensor:
    return OPS.interaction(*call.arguments)[0]


@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize("by_distance", [False, True])
def test_its_derivatives_are_those_of_finite_differences(native, half_list, by_distance):
    call = leaves_of(call_of(torch.float64, half_list=half_list, by_distance=by_distance))
    given = [t for t in call.tensors if t is not None]

    def of(*tensors: Tensor) -> Tensor:
        left = iter(tensors)
        return operate(call.of([None if t is None else next(left) for t in call.tensors]))

    assert gradcheck(of, given)
    assert gradgradcheck(of, given)


@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize("by_distance", [False, True])
def test_float32_gives_what_float64_gives(native, half_list, by_distance):
    results = []
    for dtype in (torch.float32, torch.float64):
        call = leaves_of(call_of(dtype, half_list=half_list, by_distance=by_distance))
        given = [t for t in call.tensors if t is not None]
        out = operate(call)
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), given)
        again = torch.autograd.grad(operate(call).square().sum(), given)  # by the operation of the backward pass
        results.append([out, *first, *second, *again])
    for one, other in zip(*results, strict=True):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wanted", [[True] * 7, [False, True, False, False, True, True, False], [True] + [False] * 6])
def test_the_backward_operation_gives_the_gradients_that_are_wanted(native, wanted):
    call = call_of(torch.float32)
    wanted = wanted[: len(call.tensors)]
    wanted[-1] = False  # of a bias that is not there
    _, filters = OPS.interaction(*call.arguments)
    grad = torch.linspace(-1, 1, 12).view(4, 3)
    made = OPS.interaction_backward(*call.arguments, filters, grad, wanted)
    with torch.no_grad():
        expected = call.gradients(grad, wanted)
    for one, other in zip(made, expected, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_backward_operation_can_be_differentiated(native):
    call = leaves_of(call_of(torch.float32))
    _, filters = OPS.interaction(*call.arguments)
    grad = torch.ones(4, 3, requires_grad=True)
    wanted = [t is not None for t in call.tensors]
    made = OPS.interaction_backward(*call.arguments, filters.detach(), grad, wanted)
    expected = call.gradients(grad, wanted)
    for one, other in zip(made, expected, strict=True):
        by = torch.autograd.grad(one.square().sum(), grad, retain_graph=True, allow_unused=True)
        want = torch.autograd.grad(other.square().sum(), grad, retain_graph=True, allow_unused=True)
        assert_close(by, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["test_schema", "test_faketensor", "test_autograd_registration"])
def test_torch_finds_it_well_registered(native, name):
    call = leaves_of(call_of(torch.float32))
    torch.library.opcheck(OPS.interaction.default, call.arguments, test_utils=name)


def test_shapes_are_known_without_data():
    with FakeTensorMode(allow_non_fake_inputs=True):
        call = call_of(torch.float32)
        out, filters = OPS.interaction(*call.arguments)
        made = OPS.interaction_backward(*call.arguments, filters, out, [True] * 6 + [False])
    assert out.shape == (4, 3)
    assert [t.shape for t in made] == [t.shape for t in call.tensors if t is not None]


def network_of(call: Call) -> FilterNetwork:
    return FilterNetwork(weights=call.weights, biases=call.biases, activation=Activation(call.activation))


def test_it_is_written_down_whole_and_its_table_takes_it_apart():
    call = call_of(torch.float32)

    def of(x: Tensor) -> Tensor:
        edges = call.src, call.dst, 4
        return interaction(x, *edges, network_of(call), call.expansion, envelope=call.envelope)

    whole = make_fx(of)(call.x)
    apart = make_fx(of, decomposition_table=decomposition_table)(call.x)
    names = [[str(node.target) for node in graph.graph.nodes] for graph in (whole, apart)]
    assert "popgeo.interaction.default" in names[0]
    assert "popgeo.cfconv.default" not in names[0]
    assert "popgeo.interaction.default" not in names[1]
    assert "popgeo.cfconv.default" in names[1]
    for graph in (whole, apart):
        assert_close(graph(call.x), of(call.x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_written_down_as_the_definition(dtype):
    call = call_of(dtype)
    graph = make_fx(lambda x: interaction(x, call.src, call.dst, 4, network_of(call), call.expansion))(call.x)
    names = [str(node.target) for node in graph.graph.nodes]
    assert "popgeo.interaction.default" not in names
    assert "popgeo.cfconv.default" in names


def test_what_forces_come_from_is_written_down_as_the_definition():
    call = call_of(torch.float32, by_distance=False)

    def of(rows: Tensor) -> Tensor:
        rows = rows.detach().requires_grad_()
        out = interaction(call.x, call.src, call.dst, 4, network_of(call), rows)
        return torch.autograd.grad(out.sum(), rows)[0]

    assert "popgeo.interaction.default" not in [str(n.target) for n in make_fx(of)(call.expansion).graph.nodes]


@pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")
def test_the_operation_is_what_the_function_runs():
    call = call_of(torch.float32)
    edges = call.src, call.dst, 4
    out = interaction(call.x, *edges, network_of(call), call.expansion)
    bare = Call(*(None if name == "envelope" else part for name, part in vars(call).items()))
    assert torch.equal(operate(bare), out)
    with library.without_native():
        assert_close(operate(bare), out, rtol=1e-5, atol=1e-5)


def test_an_index_out_of_range_is_refused(native):
    call = call_of(torch.float32)
    call.dst[3] = 4
    with pytest.raises(ValueError, match=r"dst\[3\] is 4; allowed are 0 to 3"):
        operate(call)
