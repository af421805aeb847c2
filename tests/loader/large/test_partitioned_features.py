"""Two processes with half of the features each load the same rows as one, and do not wait for an ended process."""

import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.support import quick_python
from tests.support.parted_features import memory_loader, trained


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_two_processes_with_half_the_features_each_load_what_one_loads(tmp_path):
    command = [*quick_python.command(), "-m", "tests.support.parted_features", str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said

    # one process is lost: the other is told in time
    seconds, _, message = (tmp_path / "told").read_text().partition(" ")
    assert float(seconds) < 60  # its own patience is 3 seconds, torch's would be half an hour
    assert "timed out waiting for rows" in message

    # what two processes had used and saved, one continues with: every seed exactly once
    loader, model = memory_loader(0, 1), nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader}
    dcp.load(state, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    seen = [torch.load(tmp_path / f"seeds {rank}.pt") for rank in range(2)]
    seen += [batch.n_id[batch.seeds_mask] for batch in loader]
    assert sorted(torch.cat(seen).tolist()) == list(range(53))
    assert torch.equal(state["model"]["weight"], trained()["model"].weight)
