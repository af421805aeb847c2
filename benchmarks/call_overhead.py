"""Time of a call of a compiled step without the operations of its graphs, for models of few and of many parameters.

Each step is called again with graphs that only return their earlier results. The remaining time is spent on arguments,
the check for changes of the model, threads, denormal numbers, random numbers, copies of inputs and results, and, in
training, the Python code around the optimizer's operations. For comparison, the script prints the time of the whole
call and of the same step in eager PyTorch; with `--inductor` also for a step compiled by inductor. The last two lines
are whole calls of twenty small layers with tanh.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timing import measure, one_thread
from torch import Tensor, nn

import popgeo
from popgeo.command_line import run
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner

GOALS, PARAMETERS_OF_GOAL = {False: 10.0, True: 25.0}, 40  # microseconds by training; parameters of this model
GOALS_WITH_TANH = {False: 40.0, True: 120.0}  # microseconds of a whole call of twenty layers, by training


class Layers(nn.Module):
    """Many small weights: the graph takes little time, and the overhead of a call is visible."""

    def __init__(self, parameters: int, act: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        one, self.act = parameters == 1, act
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=not one) for _ in range(max(parameters // 2, 1)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.act is None else self.act(layer(x))
        return x.square().mean()


def eager_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    """Run one plain PyTorch update."""
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()


@contextmanager
def idle_graphs(call: Callable[[], object]) -> Iterator[None]:
    """Replace the graphs of a call by functions that only return the graphs' present results."""
    made: dict[Any, Any] = {}
    kinds: list[tuple[Any, Any]] = [(kind, kind.run) for kind in (GraphRunner, InductorRunner)]
    for kind, runs in kinds:

        def note(runner: Any, inputs: Any, runs: Any = runs) -> Any:
            made[runner] = runs(runner, inputs)
            return made[runner]

        kind.run = note
    try:
        call()
    finally:
        for kind, runs in kinds:
            kind.run = runs
    for runner, outputs in made.items():
        runner.run = lambda inputs, outputs=outputs: list(outputs)
    try:
        yield
    finally:
        for runner in made:
            del runner.run


def figures(
    parameters: int, trains: bool, backend: str, rounds: int, act: Callable[[Tensor], Tensor] | None = None
) -> tuple[float, float, float]:
    """Return the microseconds of a call without its graphs, of the whole call, and of eager PyTorch."""
    model, twin, x = Layers(parameters, act), Layers(parameters, act), torch.randn(8, 4)
    optimizer, other = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (model, twin))
    if trains:
        step = popgeo.compile_step(model, optimizer, x, backend)
    else:
        step = popgeo.compile_forward(model, x, backend, options=popgeo.Options(num_threads=1))
    for _ in range(5):  # threads are chosen, the optimizer's update is captured
        step(x)
    peers = {"whole": lambda: step(x), "eager": lambda: eager_step(twin, other, x) if trains else twin(x)}
    seconds = measure(peers, rounds, min_seconds=0.01)
    with idle_graphs(lambda: step(x)):
        beside = measure({"beside": lambda: step(x)}, rounds, min_seconds=0.01)["beside"]
    return 1e6 * beside, 1e6 * seconds["whole"], 1e6 * seconds["eager"]


def main() -> None:
    """Print the times of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inductor", action="store_true", help="also measure inductor, which compiles for minutes")
    parser.add_argument("--quick", action="store_true", help="run few rounds")
    options = parser.parse_args()
    one_thread()
    for backend in ("cpu", "inductor") if options.inductor else ("cpu",):
        for trains in (False, True):
            for parameters in (1, 40, 200):
                beside, whole, eager = figures(parameters, trains, backend, rounds=5 if options.quick else 25)
                goal = f" (goal {GOALS[trains]:.0f})" if (parameters, backend) == (PARAMETERS_OF_GOAL, "cpu") else ""
                print(
                    f"{'training' if trains else 'forward':8} {parameters:4} parameters, {backend}: {beside:5.1f} µs/"
                    f"call without its graphs{goal}, {whole:7.1f} µs in total, eager {eager:7.1f}"
                )
    for trains, goal_of_call in GOALS_WITH_TANH.items():
        _, whole, eager = figures(40, trains, "cpu", 5 if options.quick else 25, torch.tanh)
        kind = "training" if trains else "forward"
        print(
            f"{kind:8} 20 layers with tanh, cpu: {whole:.1f} µs in total (goal {goal_of_call:.0f}), eager {eager:.1f}"
        )


if __name__ == "__main__":
    run(main)
