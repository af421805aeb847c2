"""Fixtures of the engine's tests."""

import sys
from types import SimpleNamespace

import pytest
import torch

from popgeo.engine import bind_step, cuda_graph, step_recipe
from popgeo.ops import near_tensors
from tests.support.fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replace `torch.cuda` by a fake over models and tensors of the processor."""
    fake = FakeCuda()
    for module in (step_recipe, cuda_graph):
        monkeypatch.setattr(module, "device_of", lambda model, backend: torch.device("cpu"))
    monkeypatch.setattr(bind_step, "torch", SimpleNamespace(cuda=fake))
    monkeypatch.setattr(near_tensors, "cuda", fake)
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: fake.is_capturing)
    for name in ("adam", "rmsprop"):  # torch knows no processor that captures
        served = lambda *given, **named: ["cpu"]  # noqa: E731
        monkeypatch.setattr(sys.modules[f"torch.optim.{name}"], "_get_capturable_supported_devices", served)
    return fake
