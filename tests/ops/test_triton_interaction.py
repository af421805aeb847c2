"""Triton's interactions: the definition and its derivatives in the interpreter, and compiled for two kinds of GPU.

As in `test_triton_kernels`, the first part needs TRITON_INTERPRET=1 from the start; the second part must not have it.
"""

import itertools
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from popgeo import ops
from popgeo.ops import sum_on_device
from popgeo.ops.interaction_call import InteractionCall
from tests.ops.test_triton_kernels import DTYPES, ROUNDING, assert_near, compiled_ahead, kernels_if, recorded

CUTOFF = 2.0


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let the interactions of tensors in memory run as those of a GPU do."""
    kernels_if(interpreted=True)
    from popgeo.ops import triton_interaction

    monkeypatch.setattr(sum_on_device, "serves", torch.Tensor.is_floating_point)
    return triton_interaction


def problem(num_edges: int, channels: int, dtype: torch.dtype, with_directions: bool = False) -> dict[str, Tensor]:
    """Return the arguments of an interaction; a fifth of the edges are longer than the cutoff."""
    torch.manual_seed(0)
    src, dst = torch.randint(6, (2, num_edges))
    distances = torch.float64 if dtype is torch.float64 else torch.float32
    kinds, of_x = (3, 5) if with_directions else (1, 1)
    towards = {"direction": nn.functional.normalize(torch.randn(num_edges, 3, dtype=distances), dim=1)}
    return {
        "x": torch.randn(6, of_x * channels).to(dtype),
        "waves": torch.randn(2, kinds * channels, dtype=torch.float64),
        "r": 1.25 * CUTOFF * torch.rand(num_edges, dtype=distances),
        **(towards if with_directions else {}),
        "src": src,
        "dst": dst,
    }


def passes(data: dict[str, Tensor], num_points: int, half_list: bool, plain: bool = False) -> list[Tensor]:
    """Return the sums, their gradients, and second gradients as in training on forces."""

    def leaf(t: Tensor) -> Tensor:
        return (t.double() if plain else t).clone().requires_grad_()

    x, waves, r, *towards = leaves = [leaf(data[name]) for name in ("x", "waves", "r", "direction") if name in data]
    direction = towards[0] if towards else None
    grid = torch.linspace(0, CUTOFF, num_points, dtype=torch.float64)
    table = torch.stack([grid.sin(), (grid / 2).cos()], 1) @ waves  # smooth, so that slopes have one meaning
    ends = data["src"], data["dst"], len(x), CUTOFF
    if plain:
        out = InteractionCall(x, table, r, direction, *ends, half_list).sums()
    else:
        out = ops.interaction(x, table, r, *ends, direction=direction, half_list=half_list)

    def along(t: Tensor, kind: Tensor) -> Tensor:
        return torch.linspace(-1, 2, t.numel()).view_as(t).to(kind.dtype).to(t.dtype).requires_grad_()

    grad = along(out, data["x"])
    first = torch.autograd.grad(out, leaves, grad, create_graph=True)
    ways = [along(x, data["x"]).detach(), *(along(t, data["r"]).detach() for t in (r, *towards))]
    second = torch.autograd.grad((first[0], *first[2:]), (grad, *leaves), ways)
    return [t.detach() for t in (out, *first, *second)]


@pytest.mark.parametrize(
    ("dtype", "num_edges", "channels", "half_list", "with_directions", "edges_at_once"),
    [
        (torch.float32, 40, 3, False, False, 8),
        (torch.float64, 40, 3, True, False, 16),
        (torch.bfloat16, 40, 3, True, False, 16),
        (torch.float32, 1100, 2, True, False, 256),  # a point's edges in two parts
        (torch.float64, 1100, 2, False, False, 256),
        (torch.float32, 5, 130, False, False, 8),  # two blocks of channels
        (torch.float32, 40, 3, False, True, 64),
        (torch.float64, 40, 3, True, True, 64),
        (torch.bfloat16, 40, 3, True, True, 64),
        (torch.float64, 1100, 2, False, True, 256),
        (torch.float32, 5, 130, True, True, 8),
    ],
)
def test_interactions_are_the_definition_and_its_first_two_derivatives(
    on_device: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    num_edges: int,
    channels: int,
    half_list: bool,
    with_directions: bool,
    edges_at_once: int,
):
    monkeypatch.setattr(on_device, "_EDGES", edges_at_once)
    data = problem(num_edges, channels, dtype, with_directions)
    expected = passes(data, 33, half_list, plain=True)
    monkeypatch.setattr(InteractionCall, "is_served", lambda call: False)
    monkeypatch.setattr(InteractionCall, "sums", lambda call: pytest.fail("this is the definition"))
    made = passes(data, 33, half_list)
    # On a coarse grid, differences of eleven points are not quite the slopes of polynomials through eight.
    of_grid = [0.0] * 3 + [1e-6] * (len(made) - 5) + [1e-5] * 2
    if not with_directions:
        of_grid[-2] = 1e-6
    for one, other, error in zip(made, expected, of_grid, strict=True):
        assert_near(one, other, 4 * ROUNDING[dtype] + error)


def test_edges_beyond_the_cutoff_send_nothing_and_get_no_gradient(on_device: ModuleType):
    x = torch.tensor([[torch.nan], [2.0]], requires_grad=True)
    table, r = torch.ones(11, 1, dtype=torch.float64), torch.tensor([1.0, 2.0, 5.0], requires_grad=True)
    out = ops.interaction(x, table, r, torch.tensor([1, 0, 0]), torch.tensor([0, 1, 1]), 2, CUTOFF)
    torch.testing.assert_close(out, torch.tensor([[2.0], [0.0]]))
    to_x, to_r = torch.autograd.grad(out, (x, r), torch.ones(2, 1))
    torch.testing.assert_close(to_x, torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(to_r, torch.zeros(3), rtol=0, atol=1e-6)


def test_an_interaction_on_a_gpu_checks_the_ends_of_its_edges(on_device: ModuleType):
    x, table, nodes = torch.ones(2, 1), torch.ones(11, 1), torch.tensor([0, 2])
    for name, src, dst in (("src", nodes, nodes - nodes), ("dst", nodes - nodes, nodes)):
        with pytest.raises(RuntimeError, match=f"{name} has entries outside of 0 to 1"):
            ops.interaction(x, table, torch.ones(2), src, dst, 2, CUTOFF)


@pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_compile_ahead_and_contain_no_atomic_operation(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    kernels_if(interpreted=False)
    from popgeo.ops import triton_interaction as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    ends = src, dst = torch.randint(7, (2, 40))
    orders = sum_on_device.plan(dst, 7)
    start, weights = torch.zeros(45, dtype=torch.int32)[5:], torch.ones(40, 8)  # as in a plan, without alignment
    grid, r, of_edges = (start, weights.to(wide)), torch.ones(40, dtype=wide), torch.ones(40, 3, dtype=wide)
    with monkeypatch.context() as patched:
        found = recorded(kernels, patched)
        for channels, scale, half_list in itertools.product((1, 32), (None, r), (False, True)):
            table = torch.ones(11, 3 * channels, dtype=wide)
            x, x_of_vectors, of_vectors = (torch.randn(7, of * channels).to(dtype) for of in (1, 5, 4))
            for towards, one, grad in ((None, x, x), (of_edges, x_of_vectors, of_vectors)):
                kernels.interaction_rows(one, table, scale, towards, *grid, src, *orders, False)
                kernels.interaction_edges(one, grad, table, towards, towards, *grid, *ends, half_list)
                kernels.interaction_points(one, grad, scale, towards, *grid, *ends, *orders, half_list)
            kernels.interaction_rows(of_vectors, table, scale, of_edges, *grid, src, *orders, True)
    assert len({compiled_ahead(launch, capability) for launch in found}) == 3
