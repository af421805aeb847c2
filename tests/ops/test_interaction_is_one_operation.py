"""The interaction as operations of torch: right by every way to call them, whole where they are written down."""

import itertools

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


def call_of(dtype: torch.dtype, *, half_list: bool = False, by_distance: bool = False, vectors: bool = False) -> Call:
    """An interaction of seven edges between four nodes; one edge has no factor."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    src, dst = torch.randint(4, (2, 7), generator=generator)
    envelope = normal(7)
    envelope[2] = 0
    return Call(
        normal(4, 5 if vectors else 3),
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
        direction=normal(7, 3) if vectors else None,
    )


def leaves_of(call: Call) -> Call:
    return call.of([None if t is None else t.clone().requires_grad_() for t in call.tensors])


def operate(call: Call) -> Tensor:
    return OPS.interaction(*call.arguments)[0]


@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize(("by_distance", "vectors"), [(False, False), (True, False), (True, True)])
def test_its_derivatives_are_those_of_finite_differences(half_list, by_distance, vectors):
    call = leaves_of(call_of(torch.float64, half_list=half_list, by_distance=by_distance, vectors=vectors))
    given = [t for t in call.tensors if t is not None]

    def of(*tensors: Tensor) -> Tensor:
        left = iter(tensors)
        return operate(call.of([None if t is None else next(left) for t in call.tensors]))

    assert gradcheck(of, given)
    assert gradgradcheck(of, given)


@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize(("by_distance", "vectors"), [(False, False), (True, False), (False, True)])
def test_float32_gives_what_float64_gives(native, half_list, by_distance, vectors):
    results = []
    for dtype in (torch.float32, torch.float64):
        call = leaves_of(call_of(dtype, half_list=half_list, by_distance=by_distance, vectors=vectors))
        given = [t for t in call.tensors if t is not None]
        out = operate(call)
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), given)
        again = torch.autograd.grad(operate(call).square().sum(), given)  # by the operation of the backward pass
        results.append([out, *first, *second, *again])
    for one, other in zip(*results, strict=True):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "wanted", [[True] * 8, [False, True, False, True, False, True, True, False], [True] + [False] * 7]
)
def test_the_backward_operation_gives_the_gradients_that_are_wanted(native, wanted):
    call = call_of(torch.float32, vectors=True)
    wanted = wanted[: len(call.tensors)]
    wanted[-1] = False  # of a bias that is not there
    _, filters = OPS.interaction(*call.arguments)
    grad = torch.linspace(-1, 1, 16).view(4, 4)
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
        made = OPS.interaction_backward(*call.arguments, filters, out, [t is not None for t in call.tensors])
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


def test_what_trains_by_forces_is_written_down_as_three_operations():
    call = call_of(torch.float32, by_distance=True)

    def of(r: Tensor) -> Tensor:
        leaves = leaves_of(call.of([call.x, r, *call.tensors[2:]]))
        force = torch.autograd.grad(operate(leaves).square().sum(), leaves.expansion, create_graph=True)[0]
        return torch.autograd.grad(force.square().sum(), leaves.weights[0])[0]

    graph = make_fx(of)(call.expansion)
    names = [str(node.target) for node in graph.graph.nodes]
    for name in ("interaction", "interaction_backward", "interaction_second"):
        assert f"popgeo.{name}.default" in names
    assert not any("cfconv" in name for name in names)
    apart = make_fx(of, decomposition_table=decomposition_table)(call.expansion)
    assert not any("popgeo.interaction" in str(node.target) for node in apart.graph.nodes)
    assert_close(apart(call.expansion), graph(call.expansion), rtol=1e-4, atol=1e-5)


def test_the_second_backward_operation_stands_for_its_decomposition(native):
    call, grad, along = call_of(torch.float32, by_distance=True), torch.linspace(-1, 1, 12).view(4, 3), torch.ones(7)
    _, filters = OPS.interaction(*call.arguments)
    wanted = [True] * 4 + [False] + [True] * 3 + [False]
    first, along = [False, True, True, *[False] * 5], [along, along.cos()]
    for given in (along, [None, along[1]], [along[0], None]):
        arguments = *call.arguments, filters, grad, first, given, wanted
        made = OPS.interaction_second(*arguments)
        assert [t.shape for t in made] == [t.shape for t in (grad, *call.tensors) if t is not None]
        with torch.no_grad():
            expected = decomposition_table[OPS.interaction_second.default](*arguments)
        for one, other in zip(made, expected, strict=True):
            assert_close(one, other, rtol=1e-4, atol=1e-4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert [t.shape for t in OPS.interaction_second(*arguments)] == [t.shape for t in made]


def wide_call(
    dtype: torch.dtype, *, half_list: bool, centres: int, layers: int, activation: Activation, vectors: bool = False
) -> Call:
    """An interaction of several blocks of edges, of which some lie where most Gaussians are 0."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs, widths = centres or 5, [19] * (layers - 1)
    widths = [inputs, *widths, 60 if vectors else 20]
    weights = [normal(b, a) / a**0.5 for a, b in itertools.pairwise(widths)]
    src, dst = torch.randint(40, (2, 300), generator=generator)
    return Call(
        normal(40, 100 if vectors else 20), 3 * normal(300).abs() if centres else normal(300, inputs), normal(300),
        weights, [normal(width) for width in widths[1:]], src, dst, 40, int(activation), half_list,
        torch.linspace(0, 8, centres).to(dtype) if centres else None, -1.5 if centres else 0.0,
        direction=normal(300, 3) if vectors else None,
    )  # fmt: skip


def second_gradients_of(call: Call) -> list[Tensor]:
    """Derivatives of the gradients by features, expansion, envelope and directions, by all there is."""
    call = leaves_of(call)
    out = operate(call)
    grad = torch.linspace(-3, 3, out.numel(), dtype=out.dtype).view_as(out).sin().requires_grad_()
    by = [t for t in call.tensors[:4] if t is not None]
    first = torch.autograd.grad(out, by, grad, create_graph=True)
    total = sum((one * one.detach().cos()).sum() for one in first)
    return list(torch.autograd.grad(total, [grad, *(t for t in call.tensors if t is not None)]))


@pytest.mark.skipif(not interaction_call.is_served(), reason="no kernels for this processor")
@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize("centres", [0, 20])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("activation", "vectors"), [*((kind, False) for kind in Activation), (Activation.SILU, True)])
def test_second_derivatives_of_one_pass_are_those_of_the_definition(
    half_list, centres, layers, activation, vectors, monkeypatch
):
    asked, run = [], interaction_call.run
    monkeypatch.setattr(interaction_call, "run", lambda way, packed: (asked.append(way), run(way, packed))[1])
    given = {"half_list": half_list, "centres": centres, "layers": layers, "activation": activation, "vectors": vectors}
    found = second_gradients_of(wide_call(torch.float32, **given))
    assert asked == ["forward", "backward", "second"]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    again = second_gradients_of(wide_call(torch.float32, **given))
    torch.set_num_threads(threads)
    for one, same, other in zip(found, again, second_gradients_of(wide_call(torch.float64, **given)), strict=True):
        assert torch.equal(one, same)
        assert (one - other).abs().max() < 2e-5 * other.abs().max().clamp(min=1)


@pytest.mark.parametrize("along", [0, 1, 2, 3, 4])
def test_second_derivatives_along_one_thing_alone(native, along):
    """By features, distances, envelope, directions, or a weight, whose derivative is the definition's."""
    found = []
    for dtype in (torch.float32, torch.float64):
        call = leaves_of(call_of(dtype, by_distance=True, vectors=True))
        by = call.tensors[along]
        (first,) = torch.autograd.grad(operate(call).square().sum(), by, create_graph=True)
        given = [t for t in call.tensors if t is not None]
        found.append(torch.autograd.grad(first.square().sum(), given, materialize_grads=True))
    for one, other in zip(*found, strict=True):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


def test_third_derivatives_are_right(native):
    found = []
    for dtype in (torch.float32, torch.float64):
        call = leaves_of(call_of(dtype, by_distance=True))
        total = operate(call).sin().sum()
        for _ in range(3):
            (slope,) = torch.autograd.grad(total, call.expansion, create_graph=True)
            total = slope.sum()
        found.append(slope.double())
    assert_close(*found, rtol=1e-3, atol=1e-4)


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
