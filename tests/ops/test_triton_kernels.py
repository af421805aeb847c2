"""The Triton kernels: compared with plain torch in Triton's interpreter, and compiled ahead for two kinds of GPU.

The first part needs TRITON_INTERPRET=1 from the start of the process, and the second part must not have it.
"""

import itertools
import os
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo import ops
from popgeo.ops import reference, sum_on_device
from popgeo.ops.interaction_call import InteractionCall

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}
CUTOFF, ROUNDING = 2.0, {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-7}  # the interpreter cuts off


def kernels_if(interpreted: bool) -> ModuleType:
    pytest.importorskip("triton", reason="triton is not installed; it comes with torch's CUDA builds")
    if (os.environ.get("TRITON_INTERPRET") == "1") != interpreted:  # Triton looks when it is imported
        pytest.skip(f"this test needs a process {'with' if interpreted else 'without'} TRITON_INTERPRET=1")
    from popgeo.ops import triton_kernels

    return triton_kernels


@pytest.fixture
def kernels() -> ModuleType:
    return kernels_if(interpreted=True)


@pytest.fixture
def on_device(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let the interactions of tensors in memory run as those of a GPU do."""
    monkeypatch.setattr(sum_on_device, "serves", torch.Tensor.is_floating_point)
    return kernels


def assert_near(made: Tensor, expected: Tensor, relative: float) -> None:
    assert made.shape == expected.shape
    largest = expected.double().abs().max().item()
    torch.testing.assert_close(made.double(), expected.double(), rtol=0, atol=relative * largest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_and_convolutions_are_those_of_the_reference(kernels: ModuleType, dtype: torch.dtype):
    torch.manual_seed(0)
    src, dst = torch.randint(7, (2, 40))
    x, grad, w = (torch.randn(rows, 130).to(dtype) for rows in (7, 7, 40))  # more channels than one block
    order, reverse = sum_on_device.plan(dst, 7), sum_on_device.plan(src, 7)
    to_x, to_w = reference.cfconv_backward(grad, x, w, src, dst)
    for made, expected in (
        (kernels.sum_rows(w, *order), reference.scatter_sum(w, dst, 7)),
        (kernels.cfconv(x, w, src, *order), reference.cfconv(x, w, src, dst, 7)),
        (kernels.cfconv(grad, w, dst, *reverse), to_x),
        (kernels.products(x, grad, src, dst), to_w),
    ):
        assert made.dtype is dtype
        assert_near(made, expected, ROUNDING[dtype])


def problem(num_edges: int, channels: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the arguments of an interaction; a fifth of the edges are longer than the cutoff."""
    torch.manual_seed(0)
    src, dst = torch.randint(6, (2, num_edges))
    distances = torch.float64 if dtype is torch.float64 else torch.float32
    return {
        "x": torch.randn(6, channels).to(dtype),
        "waves": torch.randn(2, channels, dtype=torch.float64),
        "r": 1.25 * CUTOFF * torch.rand(num_edges, dtype=distances),
        "src": src,
        "dst": dst,
    }


def passes(data: dict[str, Tensor], num_points: int, half_list: bool, plain: bool = False) -> list[Tensor]:
    """Return the sums, their gradients, and second gradients as in training on forces."""

    def leaf(t: Tensor) -> Tensor:
        return (t.double() if plain else t).clone().requires_grad_()

    x, waves, r = (leaf(data[name]) for name in ("x", "waves", "r"))
    grid = torch.linspace(0, CUTOFF, num_points, dtype=torch.float64)
    table = torch.stack([grid.sin(), (grid / 2).cos()], 1) @ waves  # smooth, so that slopes have one meaning
    ends = data["src"], data["dst"], len(x), CUTOFF
    if plain:
        out = InteractionCall(x, table, r, None, *ends, half_list).sums()
    else:
        out = ops.interaction(x, table, r, *ends, half_list=half_list)

    def along(t: Tensor, kind: Tensor) -> Tensor:
        return torch.linspace(-1, 2, t.numel()).view_as(t).to(kind.dtype).to(t.dtype).requires_grad_()

    grad = along(out, data["x"])
    first = torch.autograd.grad(out, (x, waves, r), grad, create_graph=True)
    second = torch.autograd.grad(
        (first[0], first[2]), (grad, x, waves, r), [along(x, data["x"]).detach(), along(r, data["r"]).detach()]
    )
    return [t.detach() for t in (out, *first, *second)]


@pytest.mark.parametrize(
    ("dtype", "num_edges", "channels", "half_list", "edges_at_once"),
    [
        (torch.float32, 40, 3, False, 8),
        (torch.float64, 40, 3, True, 16),
        (torch.bfloat16, 40, 3, True, 16),
        (torch.float32, 1100, 2, True, 256),  # a point's edges in two parts
        (torch.float64, 1100, 2, False, 256),
        (torch.float32, 5, 130, False, 8),  # two blocks of channels
    ],
)
def test_interactions_are_the_definition_and_its_first_two_derivatives(
    on_device: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    num_edges: int,
    channels: int,
    half_list: bool,
    edges_at_once: int,
):
    names = ("interaction_rows", "interaction_edges", "interaction_points")
    asked: list[str] = []
    for name in names:
        real = getattr(on_device, name)
        monkeypatch.setattr(on_device, name, lambda *given, real=real, name=name: (asked.append(name), real(*given))[1])
    monkeypatch.setattr(on_device, "_EDGES", edges_at_once)
    data = problem(num_edges, channels, dtype)
    made, expected = passes(data, 33, half_list), passes(data, 33, half_list, plain=True)
    # On a coarse grid, differences of eleven points are not quite the slopes of polynomials through eight.
    of_grid = [0.0] * 3 + [1e-6] * 4 + [1e-5]
    for one, other, error in zip(made, expected, of_grid, strict=True):
        assert_near(one, other, 4 * ROUNDING[dtype] + error)
    assert {*asked} == {*names}


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


class Recorder:
    """A stand-in for a kernel that records the arguments of its launches."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, tuple[Any, ...]]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *given: self.launches.append((self.kernel, given))


def recorded(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return a list that gets each kernel that the module launches, with its arguments."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    for name, kernel in vars(kernels).copy().items():
        if hasattr(kernel, "params"):
            monkeypatch.setattr(kernels, name, Recorder(kernel, found))
    return found


def launches(
    kernels: ModuleType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return each kernel that the module launches, with its arguments."""
    found = recorded(kernels, monkeypatch)
    torch.manual_seed(0)
    src, dst = torch.randint(7, (2, 40))
    x, grad, w = (torch.randn(rows, 33).to(dtype) for rows in (7, 7, 40))
    rowptr, perm = sum_on_device.plan(dst, 7)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    start, weights, r = torch.zeros(40, dtype=torch.int32), torch.ones(40, 8, dtype=wide), torch.ones(40, dtype=wide)
    table = torch.ones(11, 33, dtype=wide)
    for order in (perm, None):
        for product in (False, True):
            kernels.sum_rows(w, rowptr, order, product)
        kernels.cfconv(x, w, src, rowptr, order)
    kernels.products(x, grad, src, dst)
    for scale, half_list in itertools.product((None, r), (False, True)):
        kernels.interaction_rows(x, table, scale, start, weights, src, rowptr, perm)
        kernels.interaction_edges(x, grad, table, start, weights, src, dst, half_list)
        kernels.interaction_points(x, grad, scale, start, weights, src, dst, rowptr, perm, half_list)
    return found


def compiled_ahead(kernel: Any, given: tuple[Any, ...], capability: int) -> str:
    """Compile a kernel for a GPU without atomic operations, and return its name."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for parameter, value in zip(kernel.params, given, strict=True):
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = f"*{TYPES[value.dtype]}" if isinstance(value, Tensor) else "i32"
    compiled = triton.compile(
        ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", capability, 32)
    )
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
    assert not re.search(r"\b(atom|red)\.", compiled.asm["ptx"])
    return kernel.fn.__name__


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_compile_ahead_and_contain_no_atomic_operation(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    kernels = kernels_if(interpreted=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patched:
        found = launches(kernels, dtype, patched)
    assert len({compiled_ahead(kernel, given, capability) for kernel, given in found}) == 6
