"""A training step of energies and forces: popgeo's potentials next to PyG's and SchNetPack's.

    python benchmarks/forces.py
    python benchmarks/forces.py --inductor
    python benchmarks/forces.py --small

One thread. Every step predicts energies and forces of packed QM9 molecules (random molecules if POPGEO_SHARED_DATA is
not set), computes the loss of both, backpropagates and updates the weights with Adam. All models of a kind get the same
real edges. The SchNets have the same weights. SchNetPack's PaiNN (`pip install schnetpack`; left out if missing) has
the same sizes. The peers run twice: with torch's defaults, and with denormal numbers flushed; goals are relative to
the flushed run.
"""

import argparse
import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch_geometric.nn as pyg
from models import CUTOFF, GAUSSIANS, packed_batch
from shares import print_roofline
from timing import both_ways, flushed, measure, one_thread
from torch import Tensor, nn
from torch.utils.data import dataloader

from popgeo import compile_step
from popgeo.command_line import run
from popgeo.engine.eager_memory import Allocations
from popgeo.engine.graph_runner import GraphRunner
from popgeo.nn import PaiNN, SchNet, energy_and_forces, mse_loss
from popgeo.ops import distance

GOALS = (
    ("SchNet on pairs, compiled", "PyG's SchNet", 4.0),
    ("SchNet on pairs", "PyG's SchNet", 1.5),
    ("SchNet, compiled", "PyG's SchNet", 2.5),
    ("SchNet on pairs, compiled", "SchNet on pairs, inductor", 1.5),
    ("PaiNN, compiled", "SchNetPack's PaiNN", 4.0),
    ("PaiNN, compiled", "PaiNN", 3.0),
    ("PaiNN, compiled", "PaiNN, inductor", 1.5),
)
# With --small: molecules, and the goals of SchNet against PyG's and of PaiNN against its own eager step.
SMALL = ((8, 4.5, 2.5), (31, 8.0, None), (124, 11.0, None))
NUM_RADIAL, GOAL_OF_MEMORY = 20, 1 / 3


class Lengths(nn.Module):
    """An interaction graph for PyG's model with known edges; it computes their lengths from the positions."""

    def __init__(self, edge_index: Tensor) -> None:
        super().__init__()
        self.edge_index = edge_index

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edge_index, distance(pos, self.edge_index, None, CUTOFF)


class SchNetPack(nn.Module):
    """SchNetPack's PaiNN with sums of the atoms' outputs and the arguments of popgeo's models."""

    def __init__(self, channels: int, blocks: int, num_radial: int) -> None:
        super().__init__()
        # SchNetPack 2.2 imports a name that newer releases of torch lack; it is not used here.
        dataloader.T_co = TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]
        from schnetpack.nn import BesselRBF, CosineCutoff
        from schnetpack.representation import PaiNN as Representation

        radial = BesselRBF(num_radial, CUTOFF)
        self.representation = Representation(channels, blocks, radial, CosineCutoff(CUTOFF))
        self.readout = nn.Sequential(nn.Linear(channels, channels // 2), nn.SiLU(), nn.Linear(channels // 2, 1))

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor,
        edge_index: Tensor,
        *,
        num_graphs: int,
        edge_shift: Tensor | float = 0.0,
    ) -> Tensor:
        neighbor, centre = edge_index
        vectors = pos[neighbor] - pos[centre] + edge_shift
        given = {"_atomic_numbers": z, "_Rij": vectors, "_idx_i": centre, "_idx_j": neighbor}
        out = self.readout(self.representation(given)["scalar_representation"])
        return out.new_zeros(num_graphs, 1).index_add(0, batch, out)


class Training(nn.Module):
    """The loss of a model's energies and forces."""

    def __init__(self, model: nn.Module, targets: tuple[Tensor, Tensor], **known: Any) -> None:
        super().__init__()
        self.model, self.known = model, known
        self.energies, self.forces = (nn.Buffer(target) for target in targets)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, *edges: Tensor) -> Tensor:
        energy, forces = energy_and_forces(self.model, z, pos, batch, *edges, **self.known)
        return mse_loss(energy, self.energies) + mse_loss(forces, self.forces)


class Comparison:
    """The compared steps, on one batch."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch = batch = packed_batch(options.nodes)
        self.channels, self.blocks = options.channels, options.blocks
        self.pairs = batch.edge_index
        self.edges = torch.cat([self.pairs, self.pairs.flip(0)], 1)
        self.edges = self.edges[:, self.edges[1].argsort(stable=True)]
        generator = torch.Generator().manual_seed(0)
        forces = torch.randn(batch.num_nodes, 3, generator=generator) * (batch.z > 0).unsqueeze(1)
        self.targets = torch.randn(batch.num_graphs, 1, generator=generator), forces
        self.given = batch.z, batch.pos, batch.batch
        self.memory: dict[str, Callable[[], int]] = {}

    def schnets(self, with_inductor: bool) -> tuple[dict[str, Callable[[], Tensor]], dict[str, Callable[[], Tensor]]]:
        """Return the steps of PyG's SchNet and of popgeo's."""
        torch.manual_seed(0)
        shape = self.channels, self.channels, self.blocks, GAUSSIANS, CUTOFF
        peer = pyg.SchNet(*shape, interaction_graph=Lengths(self.edges))

        def ours() -> nn.Module:
            model = SchNet(*shape)
            model.load_state_dict(peer.state_dict())
            return model

        return {"PyG's SchNet": self.eager("PyG's SchNet", peer)}, self.all_ways("SchNet", ours, with_inductor)

    def painns(self, with_inductor: bool) -> tuple[dict[str, Callable[[], Tensor]], dict[str, Callable[[], Tensor]]]:
        """Return the steps of SchNetPack's PaiNN, if it is installed, and of popgeo's."""
        peers, shape = {}, (self.channels, self.blocks, NUM_RADIAL)
        if importlib.util.find_spec("schnetpack") is not None:
            name = "SchNetPack's PaiNN"
            peers[name] = self.eager(name, SchNetPack(*shape), self.edges, num_graphs=self.batch.num_graphs)

        def ours() -> nn.Module:
            torch.manual_seed(0)
            return PaiNN(*shape, cutoff=CUTOFF)

        return peers, self.all_ways("PaiNN", ours, with_inductor)

    def all_ways(
        self, name: str, make: Callable[[], nn.Module], with_inductor: bool
    ) -> dict[str, Callable[[], Tensor]]:
        steps: dict[str, Callable[[], Tensor]] = {}
        for where, edges, half in (("", self.edges, False), (" on pairs", self.pairs, True)):
            known = {"num_graphs": self.batch.num_graphs, "half_list": half}
            steps[f"{name}{where}"] = self.eager(f"{name}{where}", make(), edges, **known)
            steps[f"{name}{where}, compiled"] = self.compiled(f"{name}{where}, compiled", make(), edges, **known)
            if with_inductor:
                steps[f"{name}{where}, inductor"] = self.compiled("", make(), edges, backend="inductor", **known)
        return steps

    def eager(self, name: str, model: nn.Module, *edges: Tensor, **known: Any) -> Callable[[], Tensor]:
        """Return an eager step: forward, loss, backward and Adam's update."""
        training = Training(model, self.targets, **known).train()
        optimizer = torch.optim.Adam(training.parameters(), lr=1e-4)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = training(*self.given, *edges)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def peak() -> int:
            with Allocations() as made:
                step()
            return made.peak().nbytes

        self.memory[name] = peak
        return step

    def compiled(
        self, name: str, model: nn.Module, *edges: Tensor, backend: str = "cpu", **known: Any
    ) -> Callable[[], Tensor]:
        """Return forward, loss, backward and Adam's update as one compiled step."""
        training = Training(model, self.targets, **known).train()
        optimizer = torch.optim.Adam(training.parameters(), lr=1e-4)
        step = compile_step(training, optimizer, backend=backend)

        def peak() -> int:
            runner = step.bound.on_processor.usual
            assert isinstance(runner, GraphRunner)
            return runner.peak_bytes + sum(p.nbytes for p in model.parameters())

        if name:
            self.memory[name] = peak
        return lambda: step(*self.given, *edges)

    def flops(self, name: str) -> float:
        """Return the floating-point operations of the unavoidable matrix products.

        Each filter layer runs forward with its derivative by the distance, and backward through both, to its inputs
        and weights: six products, and four for the layer after the Gaussians. Each node layer runs forward, backward,
        forward and backward again along the gradients of the forces, and twice to its weights.
        """
        c, atoms = self.channels, self.batch.num_nodes
        edges = self.pairs.shape[1] * (1 if "pairs" in name else 2)
        if "SchNet" in name:
            return 2.0 * self.blocks * (edges * (4 * GAUSSIANS * c + 6 * c * c) + 6 * atoms * 3 * c * c)
        return 2.0 * self.blocks * (edges * 4 * NUM_RADIAL * 3 * c + 6 * atoms * 15 * c * c)


def print_table(comparison: Comparison, seconds: dict[str, float], peers: list[str]) -> None:
    """Print each step's time next to its peers' times, its memory, and its goals."""
    flushed = [name for name in peers if name.endswith(", flushed")]
    for name, value in seconds.items():
        against = "".join(f" {seconds[peer] / value:6.2f}" for peer in flushed)
        peak = comparison.memory.get(name)
        memory = "" if peak is None else f"{peak() / 1e6:8.1f} MB"
        print(f"  {name:30} {1e3 * value:8.1f} ms {memory:12}{against}")
    for ours, peer, goal in GOALS:
        against = f"{peer}, flushed" if f"{peer}, flushed" in seconds else peer
        if ours in seconds and against in seconds:
            ratio = seconds[against] / seconds[ours]
            as_run = f", {seconds[peer] / seconds[ours]:.2f}x as run" if against != peer else ""
            verdict = "met" if ratio >= goal else "missed"
            print(f"  {ours} against {peer}: {ratio:.2f}x (goal {goal}: {verdict}){as_run}")
    for name in seconds:
        if name.endswith("compiled"):
            share = comparison.memory[name]() / comparison.memory[(peers or list(seconds))[0]]()
            print(f"  {name}: {share:.2f} of {(peers or list(seconds))[0]}'s memory (goal {GOAL_OF_MEMORY:.2f})")
            print_roofline(comparison.flops(name), seconds[name])


def print_small(options: argparse.Namespace) -> None:
    """Print how much faster compiled steps on pairs are for a few molecules, with denormal numbers flushed."""
    for molecules, of_schnet, of_painn in SMALL:
        options.nodes = 18 * molecules  # packed molecules of QM9 have 18 slots each
        comparison = Comparison(options)
        peers, ours = comparison.schnets(with_inductor=False)
        sides = [("SchNet", "PyG's SchNet", of_schnet)]
        steps = peers | ours
        if of_painn is not None:
            steps |= comparison.painns(with_inductor=False)[1]
            sides.append(("PaiNN", "PaiNN on pairs", of_painn))
        for name, peer, goal in sides:
            pair = {one: flushed(steps[one]) for one in (peer, f"{name} on pairs, compiled")}
            against, spent = measure(pair, rounds=options.rounds).values()
            verdict = "met" if against / spent >= goal else "missed"
            print(
                f"  {name}, {comparison.batch.num_graphs} molecules: {1e3 * spent:.2f} ms, {against / spent:.2f}x "
                f"{peer} (goal {goal}: {verdict})"
            )


def processor() -> str:
    """Return the processor's name and its vector instructions."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")), "")
    return f"{name or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=600)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("schnet", "painn"), help="measure only this model")
    parser.add_argument("--inductor", action="store_true", help="also measure torch.compile, a minute of compiling")
    parser.add_argument("--quick", action="store_true", help="use a small batch and two rounds")
    parser.add_argument("--small", action="store_true", help="measure compiled steps of 8, 31 and 124 molecules alone")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.channels, options.blocks, options.rounds = 64, 16, 2, 2
    one_thread()
    if options.small:
        print(processor())
        return print_small(options)
    comparison = Comparison(options)
    print(
        f"{processor()}: {options.nodes} atoms, {comparison.edges.shape[1]:,} edges, {options.channels} channels, "
        f"{options.blocks} blocks, energies and forces in the loss; times, peak memory, times as fast as flushed peers"
    )
    for kind, variants in (("schnet", comparison.schnets), ("painn", comparison.painns)):
        if options.only in (None, kind):
            peers, ours = variants(options.inductor)
            first = {name: float(step()) for name, step in ours.items()}
            assert max(first.values()) - min(first.values()) < 1e-3 * max(first.values()), first
            peers = both_ways(peers)
            print_table(comparison, measure(peers | ours, rounds=options.rounds), list(peers))


if __name__ == "__main__":
    run(main)
