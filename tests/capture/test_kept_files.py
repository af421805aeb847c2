"""A kept step is read only if its file is whole, the user's own, and kept for the same model."""

import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo import StepOptions, compile_forward
from popgeo.capture import step_cache
from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import signature_of
from popgeo.capture.captured_step import CapturedStep
from popgeo.ipu import Options, training_model
from popgeo.sealed_file import sealed, unsealed

X = torch.tensor([[1.0, 4.0], [-2.0, 0.5]])


class Scaled(nn.Module):
    """A model with a weight, a constant, and an operation that allocates its result at each run."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 3.0))
        self.offsets = torch.arange(2.0 * size).reshape(2, size).t()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = (self.weight * x).flip(0) + self.offsets.t()
        return out, out.square().mean()


def trained(folder: Path, model: nn.Module | None = None) -> list[float]:
    """Return the losses of two steps."""
    model = model or Scaled()
    step = training_model(model, Options(cache_dir=folder), torch.optim.SGD(model.parameters(), 0.1))
    return [step(X)[1].item() for _ in range(2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a kept step."""
    folder = tmp_path_factory.mktemp("whole") / "steps"
    trained(folder)
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def kept(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the file, which the test may change."""
    shutil.copytree(whole.parent, tmp_path / "steps")
    return tmp_path / "steps" / whole.name


def load(path: Path) -> CapturedStep | None:
    """Return the step that a start of the model finds."""
    return step_cache.load(path.parent, path.stem, Arguments.of(signature_of(Scaled()), (X,), {}))


def refused(path: Path, match: str = "") -> None:
    """Check that a start does not use this file and warns."""
    with pytest.warns(UserWarning, match=f"is not a compiled step .*{match}.*compiling again"):
        assert load(path) is None


def test_a_whole_file_is_read_and_a_damaged_one_is_written_again(kept: Path, monkeypatch):
    expected = trained(kept.parent.parent / "fresh")
    before = kept.read_bytes()[:-1]
    kept.write_bytes(before)
    with pytest.warns(UserWarning, match="compiling again and replacing it"):
        assert trained(kept.parent) == expected
    assert kept.read_bytes() != before
    monkeypatch.setattr("popgeo.capture.capture_step.capture", None)
    assert trained(kept.parent) == expected


def test_a_step_with_a_scale_that_follows_the_gradients_is_found_again(tmp_path: Path, monkeypatch):
    def losses() -> list[float]:
        model = Scaled()
        options = Options(cache_dir=tmp_path, loss_scaling="dynamic")
        step = training_model(model, options, torch.optim.SGD(model.parameters(), 0.1))
        return [step(X)[1].item() for _ in range(2)]

    expected = losses()
    monkeypatch.setattr("popgeo.capture.capture_step.capture", None)
    assert losses() == expected


def contents_of(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the head of a kept step, its graph as plain data, and its constants."""
    content = unsealed(path.read_bytes(), path, step_cache.KIND, step_cache.VERSION)
    head, document, constants = content.split(b"\n", 2)
    return json.loads(head), json.loads(document), constants


@pytest.mark.parametrize("body", [b"[" * 10**5 + b"]" * 10**5, b"{}\n", b""], ids=["brackets", "no graph", "nothing"])
def test_a_sealed_file_without_a_step_is_refused(kept: Path, body: bytes):
    head, _, _ = contents_of(kept)
    kept.write_bytes(sealed(json.dumps(head).encode() + b"\n" + body, step_cache.KIND, step_cache.VERSION))
    refused(kept)


def test_a_step_of_a_different_version_is_refused(kept: Path):
    content = unsealed(kept.read_bytes(), kept, step_cache.KIND, step_cache.VERSION)
    kept.write_bytes(sealed(content, step_cache.KIND, step_cache.VERSION + 1))
    refused(kept, "a kept step of version")


def test_a_step_with_an_operation_that_no_imported_library_defines_is_refused(kept: Path):
    head, document, constants = contents_of(kept)
    document["ops"][0][0] = "nothing.such.default"
    parts = json.dumps(head).encode(), json.dumps(document).encode(), constants
    kept.write_bytes(sealed(b"\n".join(parts), step_cache.KIND, step_cache.VERSION))
    refused(kept, "No operation nothing.such.default: import the library that defines it")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_a_folder_that_others_can_write_to_is_refused_with_a_remedy(kept: Path, mode: int):
    kept.parent.chmod(mode)
    with pytest.raises(ValueError, match=r"can be written to by other users.*chmod go-w .*steps$"):
        load(kept)


def test_a_folder_of_a_different_user_is_refused_with_a_remedy(kept: Path, monkeypatch):
    owner = kept.parent.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # files of the administrator are trusted
        assert load(kept) is not None
        os.chown(kept.parent, 4321, -1)
        owner = 4321
    with pytest.raises(ValueError, match=f"belongs to user {owner}, who could choose what runs here"):
        load(kept)


def test_a_link_to_a_folder_counts_as_the_folder(kept: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(kept.parent)
    assert load(tmp_path / "link" / kept.name) is not None
    kept.parent.chmod(0o777)
    with pytest.raises(ValueError, match="can be written to by other users"):
        load(tmp_path / "link" / kept.name)


def test_files_that_others_can_write_to_links_and_pipes_are_not_read(kept: Path, tmp_path: Path):
    kept.chmod(0o666)
    refused(kept, "can be written to by other users")
    kept.chmod(0o600)
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    refused(kept)
    kept.unlink()
    os.mkfifo(kept, 0o600)
    refused(kept, "it is not a file")
    kept.unlink()
    kept.mkdir()
    refused(kept)


def test_folders_and_files_are_made_for_their_owner_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        trained(tmp_path / "new" / "steps")
    finally:
        os.umask(before)
    made = [tmp_path / "new", tmp_path / "new" / "steps", *(tmp_path / "new" / "steps").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o600]


def test_the_step_of_another_model_is_not_run_under_a_name_that_it_does_not_have(kept: Path):
    class Shifted(Scaled):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = (self.weight + x).flip(0) + self.offsets.t()
            return out, out.square().mean()

    trained(kept.parent.parent / "other", Shifted())
    (other,) = (kept.parent.parent / "other").iterdir()
    kept.write_bytes(other.read_bytes())
    refused(kept, "the step of a different model")


def test_a_flipped_bit_is_noticed_wherever_it_is(kept: Path):
    whole = kept.read_bytes()
    end = 8 * whole.index(b"\n")
    bits = [*range(0, end, 53), *random.Random(0).sample(range(end, 8 * len(whole)), 50)]
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        kept.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = load(kept)
        assert found is None, bit


def test_constants_lie_in_memory_as_they_did(tmp_path: Path):
    base = torch.arange(24.0).reshape(4, 6)
    views = [
        base.t(),
        base[1:3],
        base[2:4],
        base[0].expand(3, 6),
        base[:0],
        base.bool(),
        base[2, 3],
        base.bfloat16()[1],
    ]

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.views = list(views)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [view + x for view in self.views]

    expected = Held()(torch.ones(()))
    for _ in range(2):
        step = compile_forward(Held(), options=StepOptions(cache_dir=tmp_path / "steps"))
        for mine, theirs in zip(step(torch.ones(())), expected, strict=True):
            assert torch.equal(mine, theirs)
        for v, tensor in step.graph.constants.items():
            assert tensor.stride() == step.graph.values[v].stride
