"""A kept step has another name when anything changes that it depends on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from popgeo.capture import fingerprint as module
from popgeo.capture.fingerprint import Unknown, fingerprint

PACKAGE = Path(module.__file__).parents[1]


@pytest.fixture(autouse=True)
def _hashes_anew() -> Iterator[None]:
    module._versions.cache_clear()
    yield
    module._versions.cache_clear()


@pytest.mark.parametrize("pattern", module._DECIDES)
def test_every_part_of_the_package_that_it_names_is_there(pattern):
    assert list(PACKAGE.glob(pattern))


@pytest.mark.parametrize(
    "part", ["capture", "ops", "engine/optimizer", "ipu/cost", "ipu/tiles/lower", "ipu/step_cost.py"]
)
def test_a_changed_file_that_decides_what_is_captured_or_whether_it_fits_gives_another_name(part, monkeypatch):
    before = fingerprint(nn.Linear(2, 2))
    changed = str(PACKAGE / part) if part.endswith(".py") else str(next((PACKAGE / part).glob("*.py")))
    plain = module._hash
    monkeypatch.setattr(module, "_hash", lambda path: "changed" if path == changed else plain(path))
    module._versions.cache_clear()
    assert fingerprint(nn.Linear(2, 2)) != before


def test_a_changed_report_gives_the_same_name(monkeypatch):
    before = fingerprint(nn.Linear(2, 2))
    plain = module._hash
    monkeypatch.setattr(module, "_hash", lambda path: "changed" if "ipu/report" in path else plain(path))
    module._versions.cache_clear()
    assert fingerprint(nn.Linear(2, 2)) == before


class Holds(nn.Module):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), (torch.zeros(2), torch.ones(2)), ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), (torch.sin, torch.cos)],
)
def test_models_that_hold_different_things_have_different_names(one, other):
    assert fingerprint(Holds(one)) == fingerprint(Holds(one))
    assert fingerprint(Holds(one)) != fingerprint(Holds(other))
    with pytest.raises(Unknown, match="object cannot be read"):
        fingerprint(Holds(object()))
