"""Training that was stopped continues as if it had never stopped."""

import signal
import subprocess
import textwrap
import time

import pytest
import torch
from torch import nn

from popgeo.engine.replicas import Replicas
from popgeo.engine.resume import load_checkpoint
from popgeo.ipu import Options, training_model
from tests.conftest import REPOSITORY
from tests.support import quick_python


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x, y):
        return (self.net(x).squeeze(-1) - y).square().mean()


def make_step(**options):
    torch.manual_seed(0)
    model = Regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return training_model(model, Options(random_seed=1, **options), optimizer)


def make_batch(number: int, factor: int = 1):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8 * factor, 3, generator=generator), torch.randn(8 * factor, generator=generator)


@pytest.mark.parametrize("compiled_before", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_losses_go_on_exactly_where_they_were(tmp_path, compiled_before, replicas):
    step = make_step(replication_factor=replicas)
    for number in range(3):
        step(*make_batch(number, replicas))
    step.save(tmp_path / "step.pt")
    expected = [step(*make_batch(number, replicas)) for number in range(3, 6)]
    again = make_step(replication_factor=replicas)
    if compiled_before:
        again(*make_batch(9, replicas))
    again.load(tmp_path / "step.pt")
    continued = [again(*make_batch(number, replicas)) for number in range(3, 6)]
    assert all(map(torch.equal, continued, expected))


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.pt"
    for content in [{"weights": torch.ones(1)}, nn.Linear(1, 1)]:
        torch.save(content, path)
        with pytest.raises(ValueError, match="is not a checkpoint of popgeo"):
            make_step().load(path)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not a checkpoint of popgeo"):
        make_step().load(path)


@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_checkpoint_of_other_replicas_is_refused_and_changes_nothing(tmp_path, compiled_before):
    step = make_step(replication_factor=2)
    step(*make_batch(0, 2))
    step.save(tmp_path / "step.pt")
    alone, other = make_step(), make_step()
    if compiled_before:
        alone(*make_batch(1)), other(*make_batch(1))
    addresses = [p.data_ptr() for p in alone.parameters()]
    with pytest.raises(ValueError, match=r"holds replicas \[0, 1\], this process runs \[0\]"):
        alone.load(tmp_path / "step.pt")
    assert [p.data_ptr() for p in alone.parameters()] == addresses
    assert torch.equal(alone(*make_batch(0)), other(*make_batch(0)))
    torch.testing.assert_close(alone.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_replicas_that_are_dealt_out_between_loading_and_compiling_are_refused_before_weights_move(
    tmp_path, monkeypatch
):
    step = make_step(replication_factor=2)
    step(*make_batch(0, 2))
    step.save(tmp_path / "step.pt")
    again = make_step(replication_factor=2)
    again.load(tmp_path / "step.pt")
    addresses = [p.data_ptr() for p in again.parameters()]
    monkeypatch.setattr(Replicas, "of_this_process", lambda factor, trains: Replicas((0,), 2))
    with pytest.raises(ValueError, match=r"holds replicas \[0, 1\], this process runs \[0\]"):
        again.compile(*make_batch(0))
    assert [p.data_ptr() for p in again.parameters()] == addresses
    monkeypatch.undo()
    assert again(*make_batch(0, 2)).isfinite().all()


def test_an_optimizer_of_other_groups_is_refused(tmp_path):
    step = make_step()
    step(*make_batch(0))
    step.save(tmp_path / "step.pt")
    model = Regression()
    other = training_model(model, None, torch.optim.Adam([{"params": [p]} for p in model.parameters()]))
    with pytest.raises(ValueError, match="does not fit the optimizer: loaded state dict has a different number"):
        other.load(tmp_path / "step.pt")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta])
def test_an_optimizer_of_another_kind_is_refused(tmp_path, kind):
    step = make_step()
    step(*make_batch(0))
    step.save(tmp_path / "step.pt")
    model = Regression()
    other = training_model(model, None, kind(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=f"of {kind.__name__} is missing, so the file is of another kind of optimizer"):
        other.load(tmp_path / "step.pt")


def test_saving_needs_a_compiled_step(tmp_path):
    with pytest.raises(ValueError, match="has not been compiled"):
        make_step().save(tmp_path / "step.pt")


WRITER = textwrap.dedent("""
    import sys
    import torch
    torch.set_num_threads(1)
    from tests.engine.test_checkpoint import make_batch, make_step
    step = make_step()
    for number in range(10**6):
        step(*make_batch(number))
        step.save(sys.argv[1])
        print(number, flush=True)
""")


def test_killed_while_saving_the_last_whole_checkpoint_remains(tmp_path):
    path = tmp_path / "step.pt"
    command = [*quick_python.command(), "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        time.sleep(0.0137)
        process.send_signal(signal.SIGKILL)
        process.stdout.read()  # until nobody is left who could write
    again = make_step()
    again.load(path)
    done = load_checkpoint(path)["num_updates"]
    assert done >= 5
    reference = make_step()
    for number in range(done):
        reference(*make_batch(number))
    for number in range(done, done + 3):
        assert torch.equal(again(*make_batch(number)), reference(*make_batch(number)))
