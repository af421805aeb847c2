"""Compilations and wall time of a campaign: relaxations of crystals with the sizes of MPtrj and changing cells.

    pip install ase vesin                          # and mace-torch, torch-sim-atomistic for the parts with MACE
    python benchmarks/campaign.py                  # 1,000 structures with SchNet, 200 with MACE
    python benchmarks/campaign.py --quick

Sizes are drawn from MPtrj's histogram of atoms per structure (1 to 444; the figure `mp-trj-n-sites-hist` of
matbench-discovery, 1,580,312 structures); the smallest and the largest size always occur. Elements, cells and positions
are random, and so are the weights. Each structure is relaxed for a few steps, positions and cell. Times include
compilations. One thread; if other programs run, compare processor times.

`--check` also computes each structure by a new calculator, and compares the bits.
"""

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from forces import processor
from timing import one_thread
from torch import Tensor, nn

from popgeo import compile_forward
from popgeo.command_line import run
from popgeo.deploy import Calculator
from popgeo.nn import SchNet

# Atoms, and the share of the structures of MPtrj with at most this number of atoms.
HISTOGRAM = {
    0: 0.0, 1: 0.00123, 2: 0.00910, 3: 0.01781, 4: 0.07127, 6: 0.12165, 8: 0.17829, 12: 0.29004, 16: 0.38813,
    20: 0.47252, 24: 0.55423, 28: 0.62110, 32: 0.67681, 40: 0.76023, 48: 0.81802, 56: 0.85915, 64: 0.89219, 80: 0.93710,
    96: 0.96156, 120: 0.98208, 144: 0.99088, 200: 0.99868, 300: 0.99978, 444: 1.0,
}  # fmt: skip
SPECIES, CUTOFF = [8, 13, 14, 28, 29], 5.0
MOST_SHAPES = 2


def structures(number: int, seed: int = 0) -> list[Any]:
    """Return crystals of 10 to 25 cubic angstrom per atom with random cells and atoms that are not too close."""
    from ase import Atoms

    rng = np.random.default_rng(seed)
    counts = np.ceil(np.interp(rng.random(number), [*HISTOGRAM.values()], [*HISTOGRAM])).clip(1).astype(int)
    counts[rng.choice(number, 2, replace=False)] = 1, 444
    made = []
    for count in counts.tolist():
        across = rng.permutation(np.ceil(count ** (1 / 3) * np.array([1.0, 1.0, 1.0]))).astype(int)
        grid = np.stack(np.meshgrid(*map(np.arange, across), indexing="ij"), -1).reshape(-1, 3)
        places = (grid[rng.choice(len(grid), count, replace=False)] + rng.uniform(-0.15, 0.15, (count, 3))) / across
        cell = np.diag(across) + rng.normal(0, 0.1, (3, 3)) * across.min()
        cell *= (rng.uniform(10, 25) * count / abs(np.linalg.det(cell))) ** (1 / 3)
        made.append(Atoms(rng.choice(SPECIES, count), scaled_positions=places, cell=cell, pbc=True))
    return made


def relax(found: list[Any], calculator: Any, steps: int) -> list[float]:
    """Relax positions and cells of copies by ASE, and return the last energies per atom."""
    from ase.filters import FrechetCellFilter
    from ase.optimize import FIRE

    energies = []
    for start in found:
        atoms = start.copy()
        atoms.calc = calculator
        FIRE(FrechetCellFilter(atoms), logfile=None).run(fmax=0.0, steps=steps)
        energies.append(atoms.get_potential_energy() / len(atoms))
    return energies


def counted(only_traced: bool) -> tuple[Callable[..., Any], list[int]]:
    """Return a backend of torch.compile, and a list with the number of its graphs, which inductor compiles if asked."""
    from torch._inductor.compile_fx import compile_fx

    graphs = [0]

    def backend(graph: Any, inputs: Any, **options: Any) -> Any:
        graphs[0] += 1
        return graph.forward if only_traced else compile_fx(graph, inputs)

    torch._dynamo.reset()
    return backend, graphs


class Dynamic(nn.Module):
    """A model that is compiled by torch.compile(dynamic=True), for structures without padding."""

    def __init__(self, model: nn.Module, backend: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.cutoff, self.neighbor_rule = model, CUTOFF, model.neighbor_rule
        self.call = [backend]

    def forward(self, *tensors: Tensor, **others: Any) -> Tensor:
        if len(self.call) == 1:
            self.call.append(torch.compile(self.model, dynamic=True, backend=self.call[0]))
        return self.call[1](*tensors, **others)


Timed = tuple[list[float], float, float]
"""Energies per atom, seconds of wall time, and seconds of processor time."""


def timed(work: Callable[[], list[float]]) -> Timed:
    """Run a campaign and measure its time."""
    start, started = time.perf_counter(), time.process_time()
    return work(), time.perf_counter() - start, time.process_time() - started


def show(name: str, count: str, found: Timed, own: Timed) -> None:
    """Print a line of the table; the ratio is of wall times."""
    largest = max(abs(a - b) for a, b in zip(found[0], own[0], strict=True))
    times = f"{found[1]:8.1f} s {own[1] / found[1]:6.2f}x   processor {found[2]:8.1f} s {own[2] / found[2]:6.2f}x"
    print(f"  {name:<36} {count:>12} {times}   energies per atom differ by {largest:.0e}", flush=True)


def announced(evaluator: Any, calculator: Any, found: list[Any], steps: int) -> list[float]:
    """Announce a campaign and run it."""
    evaluator.make_room(found)
    return relax(found, calculator, steps)


def schnet(found: list[Any], steps: int, check: bool, only_traced: bool) -> None:
    """Print the campaign of SchNet under ASE."""
    torch.manual_seed(0)
    model = SchNet(64, 64, 3, 25, cutoff=CUTOFF)
    print(f"SchNet under ASE, {len(found)} structures of {sum(map(len, found)) / len(found):.1f} atoms, {steps} steps")
    own = timed(lambda: relax(found, Calculator(model), steps))
    show("eager", "", own, own)
    backend, graphs = counted(only_traced)
    peer = Calculator(Dynamic(model, backend), CUTOFF)
    spent = timed(lambda: relax(found, peer, steps))
    show("torch.compile(dynamic=True)", f"{graphs[0]} compiled", spent, own)
    ours = Calculator(model, compile=compile_forward)
    spent = timed(lambda: relax(found, ours, steps))
    show("popgeo, not announced", f"{ours.num_compilations} compiled", spent, own)
    ours = Calculator(model, compile=compile_forward)
    spent = timed(lambda: announced(ours, ours, found, steps))
    show("popgeo", f"{ours.num_compilations} compiled", spent, own)
    verdict = "met" if ours.num_compilations <= MOST_SHAPES else "missed"
    print(f"    the larger shape: {ours.num_atoms} atoms, {ours.num_edges} edges; goal of {MOST_SHAPES}: {verdict}")
    if check:
        new = [relax([one], Calculator(model, compile=compile_forward), steps)[0] for one in found]
        same = sum(a == b for a, b in zip(new, spent[0], strict=True))
        print(f"    {same} of {len(found)} structures have the bits of a new calculator")


class OneCall(nn.Module):
    """MACE with a batch's tensors as arguments, compiled by popgeo; `evaluator` reads the model's table and cutoff."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **fields: Tensor) -> dict[str, Tensor]:
        found = self.model(fields, compute_stress=True)
        return {name: found[name] for name in ("energy", "forces", "stress")}


class CompiledMACE:
    """A model that `popgeo.potentials.mace.evaluator` takes."""

    def __init__(self, model: Any) -> None:
        self.atomic_numbers, self.r_max, self.parameters = model.atomic_numbers, model.r_max, model.parameters
        self.model = OneCall(model)
        self.steps: dict[int, Any] = {}  # a compiled step has one shape

    def __call__(self, fields: dict[str, Tensor], compute_stress: bool) -> dict[str, Tensor]:
        size = len(fields["batch"])
        self.steps[size] = step = self.steps.get(size) or compile_forward(self.model)
        return step(**{name: value.detach() for name, value in fields.items()})


def mace(found: list[Any], steps: int, only_traced: bool) -> None:
    """Print the campaign of MACE under ASE, and under torch_sim if it is installed."""
    from mace.calculators import MACECalculator
    from mace.tools.compile import configure_autograd_for_compile
    from potentials import mace_model

    from popgeo.potentials.evaluator import SystemsCalculator
    from popgeo.potentials.mace import evaluator

    configure_autograd_for_compile()
    torch.manual_seed(0)
    model = mace_model(16, SPECIES, CUTOFF).eval()
    print(f"MACE under ASE, {len(found)} structures of {sum(map(len, found)) / len(found):.1f} atoms, {steps} steps")
    theirs = MACECalculator(models=model, device="cpu", default_dtype="float32")
    own = timed(lambda: relax(found, theirs, steps))
    show("MACE's calculator, eager", "", own, own)
    ours = evaluator(CompiledMACE(model))
    spent = timed(lambda: announced(ours, SystemsCalculator(ours), found, steps))
    show("popgeo", f"{ours.num_shapes} compiled", spent, own)
    print(f"    {ours.describe()}; goal of {MOST_SHAPES}: {'met' if ours.num_shapes <= MOST_SHAPES else 'missed'}")
    if importlib.util.find_spec("torch_sim") is not None:
        torch_sim_campaign(found, model, steps)
    backend, graphs = counted(only_traced)
    theirs.use_compile = True  # MACE's calculator then asks for the gradient of positions, as with compile_mode
    theirs.models[0] = torch.compile(model, dynamic=True, backend=backend)
    print("MACE under ASE again")
    spent = timed(lambda: relax(found, theirs, steps))
    show("MACE's, torch.compile(dynamic=True)", f"{graphs[0]} compiled", spent, own)


def torch_sim_campaign(found: list[Any], model: nn.Module, steps: int, at_once: int = 10) -> None:
    """Print descents of some structures at a time by torch_sim's states and models."""
    import torch_sim
    from torch_sim.models.mace import MaceModel

    from popgeo.potentials.mace import evaluator
    from popgeo.potentials.torch_sim import FixedSizeModel

    def descend(called: Any) -> list[float]:
        energies: list[float] = []
        for start in range(0, len(found), at_once):
            some = found[start : start + at_once]
            state = torch_sim.io.atoms_to_state(some, torch.device("cpu"), torch.float32)
            for _ in range(steps + 1):
                result = called(state)
                state.positions = state.positions + 0.02 * result["forces"].detach()
                state.cell = state.cell - 0.02 * torch.bmm(result["stress"].detach(), state.cell)
            energies += (result["energy"].detach() / torch.tensor([len(atoms) for atoms in some])).tolist()
        return energies

    of_torch_sim = MaceModel(model=model, device=torch.device("cpu"), dtype=torch.float32)
    print(f"MACE in torch_sim, {at_once} structures at a time")
    own = timed(lambda: descend(of_torch_sim))
    show("torch_sim's MaceModel, eager", "", own, own)
    ours = evaluator(CompiledMACE(model), num_graphs=at_once)

    def with_room() -> list[float]:
        ours.make_room(found)
        return descend(FixedSizeModel(ours))

    spent = timed(with_room)
    show("popgeo", f"{ours.num_shapes} compiled", spent, own)
    print(f"    {ours.describe()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=1000)
    parser.add_argument("--mace", type=int, default=200, help="number of structures for MACE; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=5, help="steps of each relaxation")
    parser.add_argument("--check", action="store_true", help="also compare with a new calculator for each structure")
    parser.add_argument("--quick", action="store_true", help="use few structures; torch.compile only traces")
    options = parser.parse_args()
    if options.quick:
        options.structures, options.mace, options.steps = 12, min(options.mace, 4), 1
    one_thread()
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    print(f"{processor()}; one thread; torch {torch.__version__}")
    schnet(structures(options.structures), options.steps, options.check, options.quick)
    if options.mace and importlib.util.find_spec("mace") is not None:
        mace(structures(options.mace), options.steps, options.quick)


if __name__ == "__main__":
    run(main)
