"""Ctrl-C at any moment of a compilation or a run is a KeyboardInterrupt, and the model can be used afterwards."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_forward
from popgeo.capture.interrupts import held_interrupts, raise_held
from tests.support import quick_python

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm")
# The alarm sends what Ctrl-C sends. Forces take gradients in the forward pass, from which no error may leave torch.
PROGRAM = """
import os, random, signal, sys, time
import torch
from torch import nn
import popgeo
from popgeo.nn import SchNet, energy_and_forces

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of the tests ignores it
signal.signal(signal.SIGALRM, lambda *of_the_signal: os.kill(os.getpid(), signal.SIGINT))
z, pos, batch = torch.tensor([8, 1, 1]), torch.eye(3), torch.zeros(3, dtype=torch.int64)
edge_index = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
field = SchNet(8, 8, 1, 8, cutoff=4.0)

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = field

    def forward(self, pos):
        energy, forces = energy_and_forces(self.field, z, pos, batch, edge_index, num_graphs=1)
        return energy.sum() + forces.square().sum()

def compute():
    step = popgeo.compile_step(Loss(), torch.optim.SGD(field.parameters(), 0.0))
    return [float(step(pos)) for _ in range(2)]

expected, start = compute(), time.perf_counter()
compute()
lasts, moments, count = time.perf_counter() - start, random.Random(0), 0
for _ in range(int(sys.argv[1])):
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-4, lasts))
        compute()
        time.sleep(1.0)
    except KeyboardInterrupt:
        count += 1
    assert compute() == expected
print(count)
"""


def test_an_interrupt_at_any_moment_of_a_compilation_or_a_run_leaves_a_model_that_can_be_used():
    command = [*quick_python.command(), "-c", PROGRAM, "12"]
    folder = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    # Python itself drops an interrupt that comes while it frees an object.
    assert int(ended.stdout) >= 10


def send(number: int = signal.SIGALRM) -> None:
    signal.raise_signal(number)


def test_a_signal_waits_for_the_next_operation_and_a_second_one_does_not_wait():
    came: list[int] = []

    def handler(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with held_interrupts(), held_interrupts():
            send()
            assert came == []
            with pytest.raises(KeyboardInterrupt):
                raise_held()
            raise_held()  # once is enough
            send()
            with pytest.raises(KeyboardInterrupt):
                send()
        assert len(came) == 2
        with pytest.raises(KeyboardInterrupt), held_interrupts():
            send()
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


INTERRUPTS = iter([True])


class Interrupted(nn.Module):
    """A module that is interrupted in its first call."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        if next(INTERRUPTS, False):
            send(signal.SIGINT)
        return x.exp() if x.shape[0] == 2 else x


def test_an_interrupted_step_is_compiled_again():
    step = compile_forward(Interrupted())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of the tests ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            step(torch.ones(2))
    finally:
        signal.signal(signal.SIGINT, before)
    torch.testing.assert_close(step(torch.ones(2)), torch.full((2,), 2.0).exp())


def test_other_threads_compile_without_handlers_of_signals():
    found = []
    thread = threading.Thread(target=lambda: found.append(compile_forward(nn.ReLU())(torch.ones(2))))
    thread.start()
    thread.join()
    assert found[0].tolist() == [1.0, 1.0]
