"""Effects of filters on a grid: errors against float64, the time of a training step, and cycles of an IPU.

    python benchmarks/filter_grid.py

One thread, packed QM9 molecules (random molecules if POPGEO_SHARED_DATA is not set), all pairs within 10 angstrom,
energies and forces in the loss. "Edges" evaluates the filter networks at each edge, "grid" at a few hundred distances.
"""

from collections.abc import Callable
from typing import Any

import torch
from models import CUTOFF, GAUSSIANS, MAX_NUM_NODES, packed_batch
from timing import measure, one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch

from popgeo import compile_step
from popgeo.command_line import run
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.plan import Profile
from popgeo.nn import PaiNN, PairInteractionGraph, SchNet, energy_and_forces
from popgeo.nn.models.atom_model import AtomModel

CHANNELS, BLOCKS, ATOMS = 64, 4, 600
KINDS = ("edges", "grid")


class Step(nn.Module):
    """A model with a loss of energies and forces."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model, self.num_graphs = model, batch.num_graphs

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        energy, forces = energy_and_forces(self.model, z, pos, batch, num_graphs=self.num_graphs)
        return energy, forces, energy.square().mean() + forces.square().mean()


class Energies(nn.Module):
    """A model with a loss of energies only."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.model, self.num_graphs = model, batch.num_graphs

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.model(z, pos, batch, num_graphs=self.num_graphs)
        return energy, energy.square().mean()


def model_of(kind: type[AtomModel], filters: str) -> AtomModel:
    """Return a model; its weights are the same for each choice of filters."""
    torch.manual_seed(0)
    graph = PairInteractionGraph(CUTOFF, max_num_nodes=MAX_NUM_NODES)
    own: dict[str, Any] = {"num_filters": CHANNELS, "num_gaussians": GAUSSIANS} if kind is SchNet else {}
    shared: dict[str, Any] = {
        "num_interactions": BLOCKS,
        "cutoff": CUTOFF,
        "interaction_graph": graph,
        "filters": filters,
    }
    return kind(CHANNELS, **shared, **own)


def results_of(kind: type[AtomModel], filters: str, dtype: torch.dtype, batch: Batch) -> list[Tensor]:
    """Return energies, forces and the gradients of all weights, in float64."""
    step = Step(model_of(kind, filters).to(dtype), batch)
    energy, forces, loss = step(batch.z, batch.pos.to(dtype), batch.batch)
    loss.backward()
    weights = torch.cat([p.grad.flatten() for p in step.parameters() if p.grad is not None])
    return [t.detach().double() for t in (energy, forces, weights)]


def print_errors(kind: type[AtomModel], batch: Batch) -> None:
    """Print root mean square errors against float64 at each edge, relative to the root mean square."""
    exact = results_of(kind, "edges", torch.float64, batch)
    for dtype, filters in ((torch.float32, "edges"), (torch.float32, "grid"), (torch.float64, "grid")):
        made = results_of(kind, filters, dtype, batch)
        errors = [f"{float((one - right).norm() / right.norm()):.1e}" for one, right in zip(made, exact, strict=True)]
        print(f"  {str(dtype)[6:]}, {filters:6} energies, forces, gradients of weights off by {', '.join(errors)}")


def compiled(kind: type[AtomModel], filters: str, batch: Batch) -> Callable[[], object]:
    """Return a compiled training step with Adam."""
    step = Step(model_of(kind, filters), batch)
    run_step = compile_step(step, torch.optim.Adam(step.parameters(), lr=1e-4))
    return lambda: run_step(batch.z, batch.pos, batch.batch)


def print_cycles(batch: Batch) -> None:
    """Print the modelled cycles of SchNet's energies, forward and backward, at each edge and with the grid."""
    bow, cycles = IpuTarget.bow(), list[float]()
    for filters in KINDS:
        energies = Energies(model_of(SchNet, filters), batch)
        step = compile_step(energies, torch.optim.SGD(energies.parameters(), lr=0.0))
        step(batch.z, batch.pos, batch.batch)
        graph = step.bound.step.expanded.graph
        cycles.append(sum(float(op.plan.cycles(Profile.CALIBRATED)) for op in cost(graph, bow)))
    print(f"  Bow IPU: {cycles[0]:,.0f} cycles at each edge, {cycles[1] / cycles[0]:.2f} times as many with the grid")


def main() -> None:
    """Print errors, times and cycles."""
    one_thread()
    torch.set_flush_denormal(True)
    batch = packed_batch(ATOMS)
    for kind in (SchNet, PaiNN):
        print(f"{kind.__name__}, {CHANNELS} channels, {BLOCKS} blocks, {batch.num_graphs - 1} molecules:")
        print_errors(kind, batch)
        steps = {filters: compiled(kind, filters, batch) for filters in KINDS}
        model = model_of(kind, "grid")
        model.refine_filters()
        seconds = measure({**steps, "check": model.refine_filters})
        share = seconds["check"] / (200 * seconds["grid"])
        print(
            f"  compiled step with forces: {1e3 * seconds['edges']:.1f} ms at each edge, {1e3 * seconds['grid']:.1f} "
            f"with {model.filter_points} points: {seconds['edges'] / seconds['grid']:.2f} times as fast"
        )
        verdict = "met" if share < 0.01 else "missed"
        print(f"  checking the grid every 200 steps takes {100 * share:.2f} % of them (goal 1: {verdict})")
    print_cycles(batch)


if __name__ == "__main__":
    run(main)
