"""Fixtures of the engine's tests."""

import pytest

from tests.support.fake_cuda import FakeCuda, install


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replace `torch.cuda` by a fake over models and tensors of the processor."""
    return install(monkeypatch)
