"""The Triton kernels: compared with plain torch in Triton's interpreter, and compiled ahead for two kinds of GPU.

The first part needs TRITON_INTERPRET=1 from the start of the process, and the second part must not have it.
"""

import os
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo.ops import reference, sum_on_device

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}
TYPES |= {torch.bool: "i1", torch.uint8: "u8"}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-7}  # the interpreter cuts off


def kernels_if(interpreted: bool) -> ModuleType:
    pytest.importorskip("triton", reason="triton is not installed; it comes with torch's CUDA builds")
    if (os.environ.get("TRITON_INTERPRET") == "1") != interpreted:  # Triton looks when it is imported
        pytest.skip(f"this test needs a process {'with' if interpreted else 'without'} TRITON_INTERPRET=1")
    from popgeo.ops import triton_kernels

    return triton_kernels


@pytest.fixture
def kernels() -> ModuleType:
    return kernels_if(interpreted=True)


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


class Recorder:
    """A stand-in for a kernel that records the arguments of its launches."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, tuple[Any, ...]]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *given, **_: self.launches.append((self.kernel, given))


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
    for order in (perm, None):
        for product in (False, True):
            kernels.sum_rows(w, rowptr, order, product)
        kernels.cfconv(x, w, src, rowptr, order)
    kernels.products(x, grad, src, dst)
    return found


def compiled_ahead(kernel: Any, given: tuple[Any, ...], capability: int, **options: Any) -> str:
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
    source, target = ASTSource(kernel, signature, constexprs=constants), GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
    assert not re.search(r"\b(atom|red)\.", compiled.asm["ptx"])
    assert options.get("enable_fp_fusion", True) or "fma" not in compiled.asm["ptx"]
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
    assert len({compiled_ahead(kernel, given, capability) for kernel, given in found}) == 3
