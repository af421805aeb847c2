"""Training time of other frameworks' potentials: an epoch as published, at fixed shape, and with a compiled step.

    pip install mace-torch
    python benchmarks/potentials.py
    python benchmarks/potentials.py --inductor --structures 2000     # with torch's compiler: minutes of compiling
    python benchmarks/potentials.py --framework nequip               # or schnetpack
    python benchmarks/potentials.py --screening 1000                 # MACE's ASE calculator and popgeo's
    python benchmarks/potentials.py --quick                          # all parts for one framework in two minutes

One thread, float32. The structures, crystals and clusters of 2 to 60 atoms, have energies and forces of EMT; the model
has random weights. An epoch runs MACE's `take_step` (loss, clipped gradients, Adam) over the batches of MACE's loader
or of popgeo's; both have the same mean number of structures per batch. Times are processor times, variants in turn.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from forces import processor
from potentials_others import NequIPEpochs, SchNetPackEpochs
from timing import measure, one_thread

from popgeo import StepOptions, compile_step
from popgeo.command_line import run

GOALS = {"compile_step, inductor, one pass": 6.0, "compile_step, one pass": 3.0}
CUTOFF, SPECIES, MOST_LOADER = 5.0, (13, 28, 29), 0.02


def structures(number: int) -> list[Any]:
    """Return copper crystals (every third) and clusters of three metals, with random displacements."""
    from ase.build import bulk
    from ase.calculators.emt import EMT
    from ase.calculators.singlepoint import SinglePointCalculator

    rng, made = np.random.default_rng(0), list[Any]()
    while len(made) < number:
        size = int(rng.integers(2, 61))
        atoms = bulk("Cu", cubic=True).repeat((max(1, size // 16), 2, 2) if size >= 16 else 1)
        if len(made) % 3:
            atoms = bulk("Al", cubic=True).repeat(3)
            nearest = np.linalg.norm(atoms.positions - atoms.positions.mean(axis=0), axis=1).argsort()
            atoms = atoms[nearest[:size]]
            atoms.pbc, atoms.cell, atoms.numbers = False, np.zeros((3, 3)), rng.choice(SPECIES, size)
        atoms.positions += rng.normal(0, 0.1, atoms.positions.shape)
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        made.append(atoms)
    return made


def as_items(structures: list[Any]) -> list[Any]:
    """Convert structures to MACE's `AtomicData`."""
    from mace import data, tools

    keys = data.KeySpecification(info_keys={"energy": "REF_energy"}, arrays_keys={"forces": "REF_forces"})
    table, made = tools.AtomicNumberTable(list(SPECIES)), []
    for atoms in structures:
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = atoms.get_potential_energy(), atoms.get_forces()
        config = data.config_from_atoms(atoms, key_specification=keys)
        made.append(data.AtomicData.from_config(config, z_table=table, cutoff=CUTOFF))
    return made


def mace_model(channels: int, species: Sequence[int] = SPECIES, cutoff: float = CUTOFF) -> torch.nn.Module:
    """Return a small MACE without TorchScript parts, which torch.compile cannot compile."""
    from e3nn import o3
    from mace import modules
    from mace.tools.compile import prepare

    block = modules.RealAgnosticResidualInteractionBlock
    sizes: dict[str, Any] = {"r_max": cutoff, "num_bessel": 8, "num_polynomial_cutoff": 5, "max_ell": 2}
    return prepare(modules.ScaleShiftMACE)(
        **sizes,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=len(species),
        hidden_irreps=o3.Irreps(f"{channels}x0e+{channels}x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.zeros(len(species)),
        avg_num_neighbors=20.0,
        atomic_numbers=list(species),
        correlation=2,
        gate=torch.nn.functional.silu,
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


class Epochs:
    """Epochs of MACE over one list of structures; each variant has its own model and optimizer."""

    def __init__(self, atoms: list[Any], channels: int, batch_size: int, cutoff: float) -> None:
        from mace import modules
        from mace.tools.torch_geometric import DataLoader

        from popgeo.potentials.mace import fixed_size_loader

        items = as_items(atoms)
        self.ragged = DataLoader(items, batch_size=batch_size, shuffle=True)
        self.fixed = fixed_size_loader(items, cutoff=cutoff, batch_size=batch_size + 1, shuffle=True)
        self.channels = channels
        self.model, self.loss = mace_model(channels), modules.WeightedEnergyForcesLoss(1.0, 100.0)

    def another(self, one_pass: bool) -> torch.nn.Module:
        """Return a model with the first model's weights; deepcopy would turn e3nn's parts into TorchScript again."""
        from popgeo.potentials.mace import in_one_pass

        model = mace_model(self.channels)
        model.load_state_dict(self.model.state_dict())
        return in_one_pass(model) if one_pass else model

    def own(
        self, loader: Any, wrap: Callable[[torch.nn.Module], Any] = lambda model: model, one_pass: bool = False
    ) -> Callable[[], None]:
        """Return an epoch with MACE's `take_step`."""
        from mace.tools.train import take_step

        model = self.another(one_pass)
        called, optimizer = wrap(model), torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
        asked = {"forces": True, "virials": False, "stress": False}

        def epoch() -> None:
            for batch in loader:
                batch.positions.requires_grad_()  # MACE leaves this call to its user if torch compiles
                take_step(called, self.loss, batch, optimizer, None, asked, 10.0, torch.device("cpu"))

        return epoch

    def compiled(self, backend: str, one_pass: bool = False) -> Callable[[], None]:
        """Return an epoch with a compiled step, with e3nn's convolutions or with one-pass convolutions."""
        from popgeo.potentials.mace import TrainingStep

        step = TrainingStep(self.another(one_pass), self.loss)
        optimizer = torch.optim.Adam(step.parameters(), lr=1e-3, amsgrad=True)
        options = StepOptions(max_grad_norm=10.0, num_threads=1)
        call = compile_step(step, optimizer, next(iter(self.fixed)).to_dict(), backend=backend, options=options)

        def epoch() -> None:
            for batch in self.fixed:
                call(**batch.to_dict())

        return epoch


def traces(epoch_with: Callable[[Callable[[torch.nn.Module], Any]], Callable[[], None]]) -> int:
    """Return the number of times that torch.compile traces the model in an epoch; it compiles no graph."""
    count = 0

    def counted(graph: Any, inputs: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    epoch_with(lambda model: torch.compile(model, dynamic=False, backend=counted))()
    return count


def screening(count: int) -> None:
    """Print MACE's calculator next to popgeo's, compiled in fixed shapes, on structures one by one."""
    from mace.calculators import MACECalculator
    from mace.tools.compile import configure_autograd_for_compile

    from popgeo.potentials.evaluator import SystemsCalculator
    from popgeo.potentials.mace import evaluator

    configure_autograd_for_compile()
    found, largest, shapes = structures(count), 0.0, set()
    model = mace_model(16).eval()
    traced = 0

    def counted(graph: Any, inputs: Any) -> Any:
        nonlocal traced
        traced += 1
        return graph.forward

    torch._dynamo.reset()
    ours = evaluator(torch.compile(model, dynamic=False, backend=counted))
    ours.make_room(found)
    plain, own = evaluator(model), MACECalculator(models=model, device="cpu", default_dtype="float32")
    plain.make_room(found)
    seconds = dict.fromkeys(("own", "popgeo", "compiled"), 0.0)
    for atoms in found:
        energies = {}
        for name, calculator in (("own", own), ("popgeo", SystemsCalculator(plain)), ("compiled", None)):
            one, start = atoms.copy(), time.process_time()
            one.calc = calculator or SystemsCalculator(ours)
            one.get_forces()
            seconds[name] += time.process_time() - start
            energies[name] = one.get_potential_energy() / len(one)
        largest = max(largest, abs(energies["own"] - energies["popgeo"]), abs(energies["own"] - energies["compiled"]))
        shapes.add((len(atoms), plain.num_real[1]))
        plain.num_real[1] = 0
    print(f"screening of {count} structures: MACE's calculator meets {len(shapes)} shapes, popgeo's {ours.num_shapes}")
    print(f"traces by torch.compile(dynamic=False) with popgeo's: {traced}; {ours.describe()}")
    print(f"energies per atom differ by {largest:.1e} eV; s: " + ", ".join(f"{k} {v:.1f}" for k, v in seconds.items()))


def main() -> None:
    """Measure an epoch of each variant, and print the ratios to the framework's own training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=10)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inductor", action="store_true", help="also measure torch.compile: minutes of compiling")
    parser.add_argument("--framework", choices=("mace", "nequip", "schnetpack"), default="mace")
    parser.add_argument("--screening", type=int, default=0, help="screen this number of structures instead of training")
    parser.add_argument("--quick", action="store_true", help="use fewer structures and rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.structures, arguments.rounds = 40, 2
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    one_thread()
    start = time.perf_counter()
    if arguments.screening:
        screening(arguments.screening)
        return
    kinds: dict[str, Any] = {"mace": Epochs, "nequip": NequIPEpochs, "schnetpack": SchNetPackEpochs}
    made = structures(arguments.structures)
    epochs = kinds[arguments.framework](made, arguments.channels, arguments.batch_size, CUTOFF)
    print(f"{processor()}; one thread; torch {torch.__version__}; {arguments.framework}; {epochs.fixed}")
    name = "eager, its loader"
    variants = {
        name: epochs.own(epochs.ragged),
        "eager, popgeo's loader": epochs.own(epochs.fixed),
        "compile_step": epochs.compiled("cpu"),
        "popgeo's loader alone": lambda: [None for _ in epochs.fixed],
        "eager, popgeo's loader, one pass": epochs.own(epochs.fixed, one_pass=True),
        "compile_step, one pass": epochs.compiled("cpu", one_pass=True),
    }
    if arguments.inductor:
        if arguments.framework == "mace":  # the other frameworks have their own switches to compile a model
            variants["torch.compile, its loader"] = epochs.own(epochs.ragged, torch.compile)
            fixed_shape: Any = lambda model: torch.compile(model, dynamic=False)  # noqa: E731
            variants["torch.compile, popgeo's loader"] = epochs.own(epochs.fixed, fixed_shape)
        variants["compile_step, inductor"] = epochs.compiled("inductor")
        variants["compile_step, inductor, one pass"] = epochs.compiled("inductor", one_pass=True)
    seconds = measure(variants, rounds=arguments.rounds, min_seconds=0.0)
    for variant, took in seconds.items():
        goal = f"   goal {GOALS[variant]:.1f}x" if variant in GOALS else ""
        print(f"{variant:<42} {took:8.2f} s per epoch   {seconds[name] / took:6.2f}x{goal}")
    fastest = min(took for variant, took in seconds.items() if "alone" not in variant)
    share = seconds["popgeo's loader alone"] / fastest
    print(f"the loader's share of the fastest epoch: {share:.2%}   goal {MOST_LOADER:.0%}")
    for loader in ("fixed", "ragged") if arguments.framework == "mace" else ():
        from mace.tools.compile import configure_autograd_for_compile

        configure_autograd_for_compile()
        count = traces(lambda wrap, loader=loader: epochs.own(getattr(epochs, loader), wrap))  # type: ignore[misc]
        print(f"traces by torch.compile(dynamic=False) in an epoch, {loader} batches: {count}")
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    run(main)
