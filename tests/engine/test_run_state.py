"""A user's own checkpoint: weights, the optimizer's state, and the run state of the step."""

import copy

import pytest
import torch
from torch import nn

from popgeo import StepOptions, compile_step


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x).square().mean()


def run(calls, state=None, **options):
    """Return a model, its optimizer and its step after more calls."""
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = compile_step(model, optimizer, options=StepOptions(**options))
    if state is not None:
        model.load_state_dict(state[0]), optimizer.load_state_dict(state[1])
        step.load_run_state(state[2])
    for _ in range(calls):
        step(torch.ones(3, 4))
    return model, optimizer, step


def test_a_run_continues_from_a_checkpoint_of_ones_own_with_the_same_bits():
    whole = run(5)[0]
    model, optimizer, step = run(2)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), step.run_state()))
    torch.manual_seed(9)
    continued = run(3, state)[0]
    assert all(map(torch.equal, continued.parameters(), whole.parameters()))


def test_the_state_of_other_replicas_is_refused():
    model, optimizer, step = run(1)
    state = model.state_dict(), optimizer.state_dict(), step.run_state()
    with pytest.raises(ValueError, match=r"holds replicas \[0\], this process runs \[0, 1\]"):
        run(0, state, replication_factor=2)
