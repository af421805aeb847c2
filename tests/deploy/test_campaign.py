"""A campaign of structures of any size has two shapes, and no result depends on earlier structures or on ranks."""

import multiprocessing
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from popgeo import compile_forward
from popgeo.deploy import Calculator
from popgeo.nn import SchNet

ase = pytest.importorskip("ase", reason="ase is not installed: pip install '.[atoms]' in a clone")
from ase.build import bulk, molecule  # noqa: E402


@pytest.fixture
def model() -> SchNet:
    torch.manual_seed(0)
    return SchNet(8, 8, num_interactions=2, num_gaussians=8, cutoff=3.0)


def crystal(repeats: int = 1, *, volume: float = 1.0, seed: int = 0):
    atoms = bulk("Cu", cubic=True).repeat((repeats, 1, 1))
    atoms.rattle(0.1, seed=seed)
    atoms.set_cell(atoms.cell * volume ** (1 / 3), scale_atoms=True)
    return atoms


def campaign() -> list[Any]:
    """Return many small structures, molecules and single atoms among them, and a few large ones."""
    small = [crystal(1 + number % 2, seed=number) for number in range(12)]
    small += [molecule("CH3CH2OH"), molecule("H2O"), ase.Atoms("O"), ase.Atoms("Cu", cell=[2.5] * 3, pbc=True)]
    return [*small, crystal(16), crystal(1, volume=2.5), *small[:3], crystal(14, seed=3)]


def results_of(atoms: Any, calculator: Calculator) -> tuple[Any, ...]:
    """Return the bits of energy, forces and stress."""
    atoms = atoms.copy()
    atoms.calc = calculator
    energy, forces, stress = atoms.get_potential_energy(), atoms.get_forces(), atoms.calc.results.get("stress")
    return energy, forces.tobytes(), None if stress is None else stress.tobytes()


def test_an_announced_campaign_is_compiled_twice_and_has_the_bits_of_new_calculators(model: SchNet):
    calculator = Calculator(model, compile=compile_forward)
    calculator.make_room(campaign())
    for atoms in campaign():
        alone = results_of(atoms, Calculator(model, compile=compile_forward))
        assert results_of(atoms, calculator) == alone
    assert calculator.num_compilations == 2
    assert calculator.num_atoms == 64


@pytest.mark.filterwarnings("ignore:logm")
def test_relaxations_with_changing_cells_stay_within_two_compilations_and_cut_no_pair(model: SchNet):
    from ase.filters import FrechetCellFilter
    from ase.optimize import FIRE

    structures = [crystal(1 + 9 * (number == 3), seed=number) for number in range(6)]
    calculator = Calculator(model, compile=compile_forward)
    calculator.make_room(structures)
    largest = [len(calculator.neighbors.of(structures[3])[0][0])]
    for number, atoms in enumerate(structures):
        atoms.calc = calculator
        atoms.set_cell(atoms.cell * (0.84 if number == 3 else 0.98 + 0.01 * number), scale_atoms=True)
        largest.append(len(calculator.neighbors.of(atoms)[0][0]))
        FIRE(FrechetCellFilter(atoms), logfile=None).run(fmax=0, steps=4)
        last = atoms.copy()
        last.calc = Calculator(model)
        np.testing.assert_allclose(atoms.get_forces(), last.get_forces(), atol=1e-5)
    assert max(largest) > 1.05 * largest[0]  # pairs appear in the largest structure
    assert calculator.num_compilations == 2


@pytest.mark.parametrize("compile", [None, compile_forward], ids=["eager", "compiled"])
@pytest.mark.filterwarnings("ignore:A structure has")
@pytest.mark.parametrize(
    "order",
    [
        (crystal(), crystal(8), crystal()),
        (crystal(volume=2.0), crystal(volume=0.8), crystal(volume=2.0)),
        (crystal(), molecule("CH3CH2OH"), crystal(volume=1.1), ase.Atoms("O"), molecule("H2O")),
        (ase.Atoms("Cu", cell=[9] * 3, pbc=True), crystal(4), ase.Atoms("Cu", cell=[9] * 3, pbc=True)),
    ],
    ids=["A, B, A", "dense after sparse", "molecule after crystal", "one atom"],
)
def test_results_do_not_depend_on_earlier_structures(model: SchNet, order, compile):
    calculator = Calculator(model, compile=compile)
    for atoms in order:
        assert results_of(atoms, calculator) == results_of(atoms, Calculator(model, compile=compile))


@pytest.mark.parametrize("is_far", [False, True])
def test_dynamics_with_a_kept_list_have_the_bits_of_a_new_calculator_at_each_step(model: SchNet, is_far: bool):
    atoms, rng = crystal(), np.random.default_rng(0)  # cells smaller than the cutoff: several images of each pair
    atoms.positions += 300.0 * is_far
    kept = Calculator(model, compile=compile_forward, skin=1.0, num_atoms=4, num_edges=200)
    for _ in range(8):
        atoms.positions += rng.uniform(-0.1, 0.1, atoms.positions.shape)
        new = Calculator(model, compile=compile_forward, skin=1.0, num_atoms=4, num_edges=200)
        assert results_of(atoms, kept) == results_of(atoms, new)
    assert kept.neighbors.num_found < 8


def test_sizes_that_come_one_at_a_time_reach_the_largest_in_few_compilations(model: SchNet):
    calculator = Calculator(model, compile=compile_forward)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for repeats in range(1, 41):
            results_of(crystal(repeats), calculator)
    assert all("call make_room(structures) first" in str(one.message) for one in told)
    assert len(told) == calculator.num_compilations - 1 == 3  # from 4 to 160 atoms
    results_of(crystal(2), calculator)  # shapes of earlier structures stay
    assert calculator.num_compilations == 4


def test_a_model_that_is_not_compiled_gets_one_atom_of_padding(model: SchNet):
    class Recorded(SchNet):
        def forward(self, z, pos, batch, edge_index, **others):
            sizes.append((len(z), edge_index.shape[1]))
            return super().forward(z, pos, batch, edge_index, **others)

    sizes: list[tuple[int, int]] = []
    atoms = molecule("CH3CH2OH")
    atoms.calc = Calculator(Recorded(8, 8, num_interactions=1, cutoff=3.0))
    atoms.get_forces()
    pairs = np.count_nonzero(atoms.get_all_distances() < 3.0) - len(atoms)
    assert sizes == [(10, pairs)]


def test_room_for_no_structure_is_refused(model: SchNet):
    with pytest.raises(ValueError, match="There are no structures"):
        Calculator(model).make_room([])


def work(rank: int, folder: Path, told: Any) -> None:
    """Take part in a campaign as one of two processes: process 1 has the large structures."""
    torch.set_num_threads(1)
    file = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    calculator = Calculator(SchNet(8, 8, num_interactions=1, cutoff=3.0), compile=compile_forward)
    mine = [[crystal(1 + number % 2) for number in range(9)], [crystal(12), molecule("H2O")]][rank]
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calculator.make_room(mine, dist.group.WORLD)
        found["shapes"] = list(calculator._few.shapes)
        found["compiled at once"] = calculator.num_compilations
        for atoms in mine:
            results_of(atoms, calculator)
        found["compiled"] = calculator.num_compilations
        try:
            results_of(crystal(30), calculator)
        except ValueError as error:
            found["too large"] = str(error)
        calculator.make_room([crystal(30 if rank else 1)], dist.group.WORLD)
        found["told"] = [str(one.message) for one in caught if one.category is UserWarning]
        found["then"] = list(calculator._few.shapes)
        try:
            calculator.make_room([ase.Atoms("Cu2", [[0, 0, 0], [0, 0, 2]], pbc=True)] * rank, dist.group.WORLD)
        except ValueError as error:
            found["wrong"] = str(error)
    told.put((rank, found))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo")
def test_two_ranks_agree_on_shapes_and_no_rank_compiles_alone(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    ranks = [context.Process(target=work, args=(rank, tmp_path, told)) for rank in range(2)]
    for one in ranks:
        one.start()
    try:
        found = dict(told.get(timeout=100) for _ in ranks)
    finally:
        for one in ranks:
            one.join(timeout=30)
            one.kill()
    first, second = found[0], found[1]
    for name in ("shapes", "compiled at once", "compiled", "then", "wrong"):
        assert first[name] == second[name], name
    assert len(first["shapes"]) == first["compiled at once"] == first["compiled"] == 2
    assert "All processes must compile the same shapes" in first["too large"]
    assert [len(each["told"]) for each in (first, second)] == [1, 0]  # growth is reported once
    assert "The cell repeats" in first["wrong"]
