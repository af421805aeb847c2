"""A kept step gets a new name when anything changes on which it depends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from popgeo.capture import fingerprint as module
from popgeo.capture.fingerprint import DECIDES, fingerprint, hash_sources
from popgeo.capture.outside_values import UnknownStateError
from popgeo.ipu import Options, inference_model, ipu_machine

PACKAGE = Path(module.__file__).parents[1]


@pytest.fixture(autouse=True)
def _hashes_anew() -> Iterator[None]:
    hash_sources.cache_clear()
    yield
    hash_sources.cache_clear()


@pytest.mark.parametrize("pattern", [*DECIDES, *ipu_machine.DECIDES])
def test_every_part_of_the_package_that_is_named_is_there(pattern):
    assert list(PACKAGE.glob(pattern))


def name_of_a_step() -> tuple[str, str]:
    return fingerprint(nn.Linear(2, 2)), hash_sources(*ipu_machine.DECIDES)


def change(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the contents of the files of a part of the package, as far as the hash can see."""
    plain = module._hash
    monkeypatch.setattr(module, "_hash", lambda path: "changed" if f"popgeo/{part}" in path else plain(path))
    hash_sources.cache_clear()


@pytest.mark.parametrize("part", ["capture/", "ops/"])
def test_a_changed_file_that_decides_what_is_captured_gives_another_name(part, monkeypatch):
    before = fingerprint(nn.Linear(2, 2))
    change(part, monkeypatch)
    assert fingerprint(nn.Linear(2, 2)) != before


@pytest.mark.parametrize(
    "part", ["engine/optimizer/", "ipu/cost/", "ipu/tiles/lower/", "ipu/step_cost.py", "ipu/target.py"]
)
def test_a_changed_file_that_decides_whether_a_step_fits_gives_it_another_name(part, monkeypatch, tmp_path):
    def compile() -> None:
        inference_model(nn.Linear(2, 2), Options(cache_dir=tmp_path)).compile(torch.ones(1, 2))

    before = fingerprint(nn.Linear(2, 2))
    compile()
    change(part, monkeypatch)
    assert fingerprint(nn.Linear(2, 2)) == before
    compile()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_changed_report_gives_the_same_name(monkeypatch):
    before = name_of_a_step()
    change("ipu/report/text", monkeypatch)
    assert name_of_a_step() == before


class Holds(nn.Module):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (torch.zeros(2), torch.ones(2)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (torch.sin, torch.cos),
        (slice(3), slice(0, 3)),
        (lambda x: x[..., :3], lambda x: x[:, :3]),
    ],
)
def test_models_that_hold_different_things_have_different_names(one, other):
    assert fingerprint(Holds(one)) == fingerprint(Holds(one))
    assert fingerprint(Holds(one)) != fingerprint(Holds(other))
    with pytest.raises(UnknownStateError, match="object cannot be read"):
        fingerprint(Holds(object()))
