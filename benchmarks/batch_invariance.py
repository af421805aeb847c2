"""Bits of a graph in random batches, and the cost of `batch_invariant`.

    python benchmarks/batch_invariance.py
    python benchmarks/batch_invariance.py --combinations 10000

Each combination draws a graph, other graphs, a slot, a shape with its padding, and a number of threads. A compiled
training step computes the graph's outputs (energies and forces of potentials) and its part of each gradient. Each bit
is compared with the first combination of this graph. The second column counts the same combinations without the option,
for results and gradients, and the third for results alone. Then the step runs on a full batch with and without
`batch_invariant`, in turn, at one thread.
"""

import argparse
import platform
import random
import sys
from collections.abc import Callable, Sequence

import torch
import torch_geometric.nn as pyg
from timing import measure, one_thread
from torch import Tensor, nn
from torch_geometric.data import Data
from tqdm import trange

from popgeo import StepOptions, compile_step
from popgeo.command_line import run
from popgeo.engine.compiled_step import CompiledStep
from popgeo.nn import GCN, GIN, GPS, PaiNN, SchNet, energy_and_forces
from popgeo.ops import scatter_sum

GOAL_OF_COST, CHANNELS, CUTOFF = 1.3, 64, 5.0
# Slots of nodes, edges and graphs.
SHAPES = ((64, 1024, 2), (320, 5600, 9), (333, 4003, 7), (1000, 16000, 33), (1500, 26001, 130))


class GraphModel(nn.Module):
    """A model of nodes with a sum over each graph. The loss reads the graphs with a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.lin = model, nn.Linear(CHANNELS, 1)

    def forward(self, data: Data, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and a result per graph."""
        named = {"batch": data.batch, "num_graphs": len(weights)} if isinstance(self.model, GPS) else {}
        x = self.model(data.x, data.edge_index, **named)
        out = self.lin(scatter_sum(x, data.batch, dim=0, dim_size=len(weights)))
        return (out * weights).sum(), out.detach()


class Potential(nn.Module):
    """A model of energies and forces. The loss reads the graphs with a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Data, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, energies and forces."""
        given = data.z, data.pos, data.batch, data.edge_index
        energy, forces = energy_and_forces(self.model, *given, num_graphs=len(weights))
        loss = (energy.square() * weights).sum() + (forces.square() * weights[data.batch]).sum()
        return loss, energy.detach(), forces.detach()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "SchNet": lambda: Potential(SchNet(32, 32, 2, 16, CUTOFF)),
    "PaiNN": lambda: Potential(PaiNN(32, 2, 16, cutoff=CUTOFF)),
    "GCN": lambda: GraphModel(GCN(CHANNELS, CHANNELS, 2, CHANNELS)),
    "GIN": lambda: GraphModel(GIN(CHANNELS, CHANNELS, 2, CHANNELS)),
    "GAT": lambda: GraphModel(pyg.GAT(CHANNELS, CHANNELS, 2)),
    "GPS": lambda: GraphModel(GPS(CHANNELS, CHANNELS, 1, CHANNELS, conv="gin", norm="layer_norm")),
}


def random_graph(seed: int) -> Data:
    """Return up to 29 atoms at random positions, with edges between close atoms."""
    chance = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 30, (), generator=chance))
    pos = 1.1 * count ** (1 / 3) * torch.randn(count, 3, generator=chance)
    is_near = (torch.cdist(pos, pos) < CUTOFF) & ~torch.eye(count, dtype=torch.bool)
    x, z = torch.randn(count, CHANNELS, generator=chance), torch.randint(1, 10, (count,), generator=chance)
    return Data(x=x, z=z, pos=pos, edge_index=is_near.nonzero().t(), num_nodes=count)


class RandomBatches:
    """A model's compiled steps for several shapes, and random batches of graphs.

    Args:
        name: Name of the model in `MODELS`.
        batch_invariant: Whether the steps are compiled with this option.
    """

    def __init__(self, name: str, batch_invariant: bool = True) -> None:
        torch.manual_seed(0)
        self.num_results = 1  # tensors of `draw` before the gradients
        self.graphs, self.model = [random_graph(seed) for seed in range(40)], MODELS[name]()
        # Without a step, the optimizer keeps the last gradients as its state.
        optimizers = {
            (s, n): torch.optim.Adam(self.model.parameters(), 0.0, (0.0, 0.0)) for s in SHAPES for n in (1, 2)
        }
        self.steps = {
            key: (self.compiled(optimizer, key[1], batch_invariant), optimizer) for key, optimizer in optimizers.items()
        }

    def compiled(self, optimizer: torch.optim.Optimizer, num_threads: int, batch_invariant: bool) -> CompiledStep:
        """Return a step of the model."""
        options = StepOptions(num_threads=num_threads, batch_invariant=batch_invariant, show_progress=False)
        return compile_step(self.model, optimizer, options=options)

    def draw(self, chance: random.Random) -> tuple[int, list[Tensor]]:
        """Return the number of a random graph, and its results and gradients in a random batch."""
        shape, num_threads = chance.choice(SHAPES), chance.choice((1, 2))
        chosen = self.fitting(chance.sample(range(len(self.graphs)), len(self.graphs)) * 4, shape)
        chosen = chosen[: chance.randrange(len(chosen)) + 1] if chance.random() < 0.3 else chosen
        slot = chance.randrange(len(chosen))
        data = self.batch_of(chosen, shape)
        weights = torch.zeros(shape[2], 1)
        weights[slot] = 1.0
        step, optimizer = self.steps[shape, num_threads]
        _, per_graph, *per_node = step(data, weights)
        self.num_results = 1 + len(per_node)
        found = [per_graph[slot].clone(), *(rows[data.batch == slot].clone() for rows in per_node)]
        return chosen[slot], found + [state["exp_avg"].clone() for state in optimizer.state.values()]

    def full_batch(self) -> tuple[Data, Tensor]:
        """Return a batch of the largest shape, in which each real graph counts."""
        chosen = self.fitting([*range(len(self.graphs))] * 4, SHAPES[-1])
        weights = torch.ones(SHAPES[-1][2], 1)
        weights[-1] = 0.0
        return self.batch_of(chosen, SHAPES[-1]), weights

    def fitting(self, order: Sequence[int], shape: tuple[int, int, int]) -> list[int]:
        """Return the graphs, in this order, that fit in a batch."""
        chosen: list[int] = []
        num_nodes, num_edges = shape[0] - 1, shape[1]
        for i in order:
            graph = self.graphs[i]
            if len(chosen) < shape[2] - 1 and graph.num_nodes <= num_nodes and graph.num_edges <= num_edges:
                num_nodes, num_edges = num_nodes - graph.num_nodes, num_edges - graph.num_edges
                chosen.append(i)
        return chosen

    def batch_of(self, chosen: Sequence[int], shape: tuple[int, int, int]) -> Data:
        """Return a batch of graphs; the last node and the last graph are padding."""
        num_nodes, num_edges, num_graphs = shape
        data = Data(
            x=torch.zeros(num_nodes, CHANNELS), z=torch.zeros(num_nodes, dtype=torch.int64),
            pos=torch.zeros(num_nodes, 3), batch=torch.full((num_nodes,), num_graphs - 1),
            edge_index=torch.full((2, num_edges), num_nodes - 1), nodes_mask=torch.zeros(num_nodes, dtype=torch.bool),
        )  # fmt: skip
        node = edge = 0
        for slot, graph in enumerate(self.graphs[i] for i in chosen):
            rows, pairs = slice(node, node + graph.num_nodes), slice(edge, edge + graph.num_edges)
            data.x[rows], data.z[rows], data.pos[rows], data.batch[rows] = graph.x, graph.z, graph.pos, slot
            data.nodes_mask[rows] = True
            data.edge_index[:, pairs] = graph.edge_index + node
            node, edge = rows.stop, pairs.stop
        return data


def equal_combinations(name: str, combinations: int, batch_invariant: bool = True) -> tuple[int, int, int]:
    """Return the numbers of combinations with equal bits, with equal bits of the results alone, and of all compared."""
    batches, chance = RandomBatches(name, batch_invariant), random.Random(0)
    known: dict[int, list[Tensor]] = {}
    equal = equal_results = compared = 0
    for _ in trange(combinations, desc=name, leave=False, disable=not sys.stderr.isatty()):
        graph, found = batches.draw(chance)
        if graph in known:
            compared += 1
            same = [*map(torch.equal, found, known[graph])]
            equal, equal_results = equal + all(same), equal_results + all(same[: batches.num_results])
        known.setdefault(graph, found)
    return equal, equal_results, compared


def cost(name: str) -> float:
    """Return the time of a step with `batch_invariant`, relative to the step without it."""
    steps: dict[str, Callable[[], object]] = {}
    for invariant in (False, True):
        batches = RandomBatches(name)
        step = batches.compiled(torch.optim.Adam(batches.model.parameters(), 1e-4), 1, invariant)
        given = batches.full_batch()
        steps[str(invariant)] = lambda step=step, given=given: step(*given)  # type: ignore[misc]
    seconds = measure(steps)
    return seconds["True"] / seconds["False"]


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--combinations", type=int, default=600, help="combinations of all models together")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}\n")
    print(f"{'model':8}{'equal bits':>16}{'without it':>16}{'results without it':>20}{'cost':>7}")
    for name in MODELS:
        torch.set_num_threads(2)
        count = options.combinations // len(MODELS)
        (equal, _, compared), (usual, results, _) = (
            equal_combinations(name, count, with_it) for with_it in (True, False)
        )
        one_thread()
        ratio = cost(name)
        missed = "" if ratio <= GOAL_OF_COST else f" (goal {GOAL_OF_COST}: missed)"
        texts = [f"{number:,} of {compared:,}" for number in (equal, usual, results)]
        print(f"{name:8}{texts[0]:>16}{texts[1]:>16}{texts[2]:>20}{ratio:>6.2f}x{missed}")


if __name__ == "__main__":
    run(main)
