"""The Triton kernels: compared with plain torch in Triton's interpreter, and compiled ahead for two kinds of GPU.

The first part needs TRITON_INTERPRET=1 from the start of the process, and the second part must not have it.
"""

import os
import re
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from popgeo.ops import reference, sum_on_device

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
COMPILED = [*DTYPES, torch.float16]
CHANNELS = (1, 33, 64)  # Triton compiles a kernel once more for a number of 1, and for multiples of 16
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


def test_kernels_run_on_the_device_of_their_tensors(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch):
    found: list[Tensor] = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext(found.append(tensor)))
    x, ends, order = torch.ones(7, 3), torch.zeros(40, dtype=torch.long), sum_on_device.plan(torch.zeros(40).long(), 7)
    kernels.sum_rows(torch.ones(40, 3), *order)
    kernels.cfconv(x, torch.ones(40, 3), ends, *order)
    kernels.products(x, x, ends, ends)
    assert [tensor.shape for tensor in found] == [(40, 3), (7, 3), (7, 3)]


class Recorder:
    """A stand-in for a kernel that records the arguments of its launches."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, ...]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *given, **options: self.launches.append((self.kernel, given, options))


def recorded(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return a list that gets each kernel that the module launches, with its arguments and options."""
    found: list[tuple[Any, ...]] = []
    for name, kernel in vars(kernels).copy().items():
        if hasattr(kernel, "params"):
            monkeypatch.setattr(kernels, name, Recorder(kernel, found))
    return found


def launches(kernels: ModuleType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return each kernel that the module launches, with its arguments and options."""
    found = recorded(kernels, monkeypatch)
    torch.manual_seed(0)
    src, dst = torch.randint(7, (2, 40))
    rowptr, perm = sum_on_device.plan(dst, 7)
    for channels in CHANNELS:
        x, grad, w = (torch.randn(rows, channels).to(dtype) for rows in (7, 7, 40))
        for pointers, order in ((rowptr, perm), (rowptr, None), (rowptr.long(), None)):
            for product in (False, True):
                kernels.sum_rows(w, pointers, order, product)
            kernels.cfconv(x, w, src, pointers, order)
        kernels.products(x, grad, src, dst)
    return found


def compiled_ahead(launch: tuple[Any, ...], capability: int) -> str:
    """Compile a kernel as a launch on a GPU does, without atomic operations, and return its name."""
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        get_current_device = staticmethod(lambda: capability)  # Triton keeps what it has compiled for a device
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", capability, 32))

    kernel, given, options = launch
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(triton.runtime.driver, "_active", Driver())
        compiled = kernel.warmup(*given, grid=(1,), **options)
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]
    assert not re.search(r"\b(atom|red)\.", compiled.asm["ptx"])
    assert options["enable_fp_fusion"] or "fma" not in compiled.asm["ptx"]
    products = re.findall(r"(%\S+) = arith.muli .* : i32", compiled.asm["ttir"])
    places = re.findall(r"tt.addptr %\S+, (%\S+) : !tt.ptr<\w+>, i32", compiled.asm["ttir"])
    assert not {*products} & {*places}  # a row times its channels may exceed 32 bits
    return kernel.fn.__name__


@pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)
@pytest.mark.parametrize("dtype", COMPILED, ids=str)
def test_kernels_compile_ahead_and_contain_no_atomic_operation(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    kernels = kernels_if(interpreted=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patched:
        found = launches(kernels, dtype, patched)
    assert len({compiled_ahead(launch, capability) for launch in found}) == 3
