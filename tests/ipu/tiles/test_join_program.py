"""The program of one call: its repeats, sums of gradients, lasting variables, and the order of its steps."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn, optim

from popgeo.capture.capture import bind, capture
from popgeo.ipu import IpuTarget, Options, TileExact, training_model
from popgeo.ipu.tiles.join_program import Joiner, join
from popgeo.ipu.tiles.program import Program, Training
from popgeo.ipu.tiles.steps import AllReduce, ComputeSet, HostCopy, Repeat, Step

SMALL = IpuTarget(name="small", num_tiles=4, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).square().mean()


def program_of(optimizer=optim.SGD, calls: int = 1, **options) -> Program:
    """Return the program of the last of a few calls of a training step."""
    model = Loss()
    made = Options(**options)
    step = training_model(model, made, optimizer(model.parameters(), lr=0.1))
    x = torch.ones(5 * made.batch_factor, 30)
    exact = TileExact(step.compile(x), SMALL)
    for _ in range(calls):
        exact(x)
    return exact.program


def outline(steps: Sequence[Step]) -> list:
    """Return repeats with their bodies, copies from and to the host, all-reduces, and the purpose of compute sets."""
    found: list = []
    for step in steps:
        if isinstance(step, Repeat):
            found.append((step.count, step.name, outline(step.body)))
        elif isinstance(step, HostCopy | AllReduce):
            found.append(str(step).partition(":")[0])
        elif isinstance(step, ComputeSet):
            kind = step.name.partition(":")[0]
            kind = kind if kind.endswith("gradients") else kind.partition(" ")[0]
            if not found or found[-1] != kind:
                found.append(kind)
    return found


def test_without_accumulation_gradients_are_copied_and_then_used():
    assert outline(program_of().steps) == [
        (
            1,
            "device iterations",
            ["host in", "forward", "backward", "host out", "collect gradients", "host in", "update"],
        )
    ]


def test_gradients_start_at_zero_add_up_over_micro_batches_and_replicas_and_are_divided_once():
    steps = program_of(device_iterations=2, gradient_accumulation=3, replication_factor=2).steps
    micro_batch = ["host in", "forward", "backward", "host out", "collect gradients"]
    assert outline(steps) == [
        (
            2,
            "device iterations",
            [
                "clear gradients",
                (3, "gradient accumulation", micro_batch),
                "all-reduce over 2 replicas",
                "update",  # divides
                "host in",
                "update",
            ],
        )
    ]


def test_the_norm_is_limited_after_all_gradients_are_there_and_before_the_update():
    (only,) = outline(program_of(gradient_accumulation=2, max_grad_norm=1.0).steps)
    assert only[2][2:] == ["update", "host in", "update"]  # the divisor and the limit, the numbers, the update


def test_updates_that_differ_have_repeats_of_their_own():
    first = program_of(optim.RAdam, device_iterations=8)  # it makes its state first; its rule changes with the sixth
    assert [step.count for step in first.steps] == [1, 4, 3]
    assert [step.count for step in program_of(optim.RAdam, calls=2, device_iterations=8).steps] == [8]


def test_weights_gradients_and_state_last_and_nothing_else_does():
    variables = program_of(optim.Adam).variables
    lasting = {name for name, held in variables.items() if held.lasting}
    assert lasting == {"weights.0", "gradients.0", "state:0.step", "state:0.exp_avg", "state:0.exp_avg_sq"}
    weights = variables["weights.0"].mapping
    assert weights.numel == 30 * 2 + 2
    assert len(set(weights.holders())) > 1
    for name in ("gradients.0", "state:0.exp_avg"):
        assert variables[name].mapping.holders().tolist() == weights.holders().tolist()


def test_numbers_of_the_update_are_on_every_tile():
    numbers = [held for name, held in program_of(optim.Adam).variables.items() if name.startswith("numbers")]
    assert [held.mapping.replicated for held in numbers] == [True]
    assert numbers[0].dtype is torch.float64


@pytest.mark.parametrize("iterations", [1, 3])
def test_inference_repeats_the_step_and_hands_out_only_its_results(iterations):
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    graph = capture(function, bind(function, torch.ones(8))).graph
    program = join(Joiner(graph, 1, SMALL, Training()), iterations, 1, 1).program
    (repeat,) = program.steps
    first, *_, last = repeat.body
    assert (repeat.count, repeat.name) == (iterations, "device iterations")
    assert (list(first.streams.values()), first.to_host) == (["input:x"], False)
    assert (len(last.streams), last.to_host) == (1, True)
