"""Faults that are planted in clean structures are found by name; clean structures have none."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from popgeo.__main__ import main
from popgeo.convert.doctor import _FAULTS, examine
from popgeo.data import write
from popgeo.datasets import Molecules

ELEMENTS = np.zeros(130)
ELEMENTS[[1, 8, 29]] = -13.6, -2041.0, -100.0  # eV
WATER = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])
SHELL = np.array(list(product((-1, 0, 1), repeat=3)))


def labelled(z, pos, cell=None, bonds=()):
    """Morse energies (harmonic for bonds), their forces and their stress."""
    repeats = cell is not None
    shifts = SHELL @ cell if repeats else np.zeros((1, 3))
    apart = pos[:, None, None] - pos[None, :, None] + shifts
    distance = np.linalg.norm(apart, axis=3)
    is_pair = (distance > 1e-9) & (distance < 6) & np.equal.outer(z, z)[:, :, None] & ~np.isin(z, 1)[:, None, None]
    safe = np.where(distance > 1e-9, distance, 1.0)
    hill = np.exp(-1.4 * (safe - 2.7))
    smooth = np.where(is_pair, (1 - (safe / 6) ** 2) ** 2, 0)
    pair = 0.34 * (hill**2 - 2 * hill)
    slope = 0.34 * -2.8 * (hill**2 - hill) * smooth + pair * np.where(
        is_pair, -4 * (1 - (safe / 6) ** 2) * safe / 36, 0
    )
    unit = apart / safe[..., None]
    energy, forces = (pair * smooth).sum() / 2, -(slope[..., None] * unit).sum(axis=(1, 2))
    stress = np.einsum("ijk,ijka,ijkb->ab", slope, unit, apart) / 2
    for first, second, length, stiffness in bonds:
        step = pos[first] - pos[second]
        size = np.linalg.norm(step)
        pull = stiffness * (size - length) * step / size
        energy += stiffness * (size - length) ** 2 / 2
        forces[first], forces[second] = forces[first] - pull, forces[second] + pull
    data = Data(z=torch.tensor(z), pos=torch.tensor(pos), forces=torch.tensor(forces))
    data.energy = torch.tensor([energy + ELEMENTS[z].sum()])
    if repeats:
        data.cell, data.pbc = torch.tensor(cell)[None], torch.ones(1, 3, dtype=torch.bool)
        data.stress = torch.tensor(stress / np.linalg.det(cell))[None]
    return data


def molecules(count=80):
    """Clusters of one to four water molecules."""
    rng, made = np.random.default_rng(0), []
    for index in range(count):
        many = 1 + index % 4
        places = np.array([[0.0, 0, 0], [2.9, 0, 0], [0, 2.9, 0], [0, 0, 2.9]])[:many] + rng.normal(0, 0.05, (many, 3))
        pos = np.concatenate([place + WATER for place in places])
        bonds = [(3 * k, 3 * k + h, 0.96, 45.0) for k in range(many) for h in (1, 2)]
        bonds += [(3 * k + 1, 3 * k + 2, 1.52, 12.0) for k in range(many)]
        made.append(labelled(np.array([8, 1, 1] * many), pos + rng.normal(0, 0.04, pos.shape), bonds=bonds))
    return made


def crystals(count=40):
    """Copper with strain and displaced atoms."""
    rng, made = np.random.default_rng(1), []
    corners = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    frac = (corners[:, None] + np.array(list(product((0, 1), repeat=3)))).reshape(-1, 3) / 2
    for index in range(count):
        cell = 7.2 * np.eye(3) @ (np.eye(3) * (1 + 0.002 * (index // 2)) + rng.normal(0, 0.005, (3, 3)))
        moved = rng.normal(0, 0.04 * (index % 2), (32, 3))
        made.append(labelled(np.full(32, 29), frac @ cell + moved, cell))
    return made


def each(which, name, change):
    """Change an attribute of some structures in place."""

    def plant(structures):
        for one in structures[which]:
            one[name] = change(one[name])
        return structures

    return plant


def every(*plants):
    def plant(structures):
        for one in plants:
            structures = one(structures)
        return structures

    return plant


def put(value, *index):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return change


def without(which, *names):
    def plant(structures):
        for one in structures[which]:
            for name in names:
                del one[name]
        return structures

    return plant


def shuffled(structures):
    """One water molecule in small steps, with the energies in another order."""
    rng, bonds = np.random.default_rng(3), [(0, 1, 0.96, 45.0), (0, 2, 0.96, 45.0), (1, 2, 1.52, 12.0)]
    moved = [labelled(np.array([8, 1, 1]), WATER + rng.normal(0, 0.02, (3, 3)), bonds=bonds) for _ in range(80)]
    energies = [one.energy for one in moved]
    for one, energy in zip(moved, energies[7:] + energies[:7], strict=True):
        one.energy = energy
    return moved


def copied(change):
    def plant(structures):
        copy = structures[3].clone()
        turn = torch.tensor(np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0])
        order = torch.randperm(copy.num_nodes, generator=torch.Generator().manual_seed(0))
        copy.z, copy.pos, copy.forces = copy.z[order], (copy.pos @ turn + 3)[order], (copy.forces @ turn)[order]
        return [*structures, change(copy)]

    return plant


def other_energy(copy):
    copy.energy = copy.energy + 0.1
    return copy


def fractional(structures):
    for one in structures:
        one.pos = one.pos @ torch.linalg.inv(one.cell[0])
    return structures


def flat(structures):
    """Return an asymmetric stress; a virial would be symmetric."""
    for one in structures:
        one.stress = one.stress + 0.05 * torch.tensor([[0.0, 1, 0], [0, 0, 0], [0, 0, 0]])
    return structures


ALL, SOME, ONE = slice(None), slice(0, None, 10), slice(7, 8)
HARTREE, KCAL, BOHR, GPA = 27.211386, 23.0605, 0.529177, 160.21766
PLANTED = [
    ("atoms too close to each other", molecules, each(ONE, "pos", lambda pos: put(pos[0] + 0.2, 1)(pos))),
    ("atoms too close to each other", crystals, each(ONE, "pos", lambda pos: put(pos[0] + 0.4, 1)(pos))),
    ("isolated atoms", molecules, each(ONE, "pos", put(50.0, 1))),
    ("positions in bohr", molecules, each(ALL, "pos", lambda pos: pos / BOHR)),
    ("positions in bohr", crystals, every(*(each(SOME, name, lambda x: x / BOHR) for name in ("pos", "cell")))),
    ("positions divided by 1.89 once too often", molecules, each(ALL, "pos", lambda pos: pos * BOHR)),
    ("positions in nanometre", molecules, each(ALL, "pos", lambda pos: pos / 10)),
    ("fractional coordinates", crystals, fractional),
    ("positions or cell not finite", molecules, each(ONE, "pos", put(np.nan, 0))),
    ("dummy atoms", molecules, each(ONE, "z", put(0, 0))),
    ("unknown elements", molecules, each(ONE, "z", put(200, 0))),
    ("rare elements", molecules, each(ONE, "z", put(9, 0))),
    ("mixed periodicity", crystals, without(SOME, "cell", "pbc")),
    ("mixed periodicity", crystals, each(ONE, "pbc", put(False, 0, 2))),
    ("partial periodicity without vacuum", crystals, each(ALL, "pbc", put(False, 0, 2))),
    ("cell without periodicity", crystals, each(ALL, "pbc", torch.zeros_like)),
    ("periodicity without a cell", crystals, each(SOME, "cell", torch.zeros_like)),
    ("left-handed cells", crystals, each(SOME, "cell", lambda cell: cell[:, [1, 0, 2]])),
    ("nearly singular cells", crystals, each(ONE, "cell", lambda cell: put(cell[0, 0] + 0.01, 0, 1)(cell))),
    ("thin cells", crystals, each(ONE, "cell", lambda cell: put(cell[0, 2] / 8, 0, 2)(cell))),
    ("atoms far outside the cell", crystals, each(ONE, "pos", lambda pos: put(pos[0] + 100, 0)(pos))),
    ("vacuum in a few structures", crystals, each(ONE, "cell", lambda cell: put(cell[0, 2] * 3, 0, 2)(cell))),
    ("large forces", molecules, each(ONE, "forces", lambda forces: forces * 100)),
    ("net force", molecules, each(ONE, "forces", lambda forces: put(forces[0] + 1, 0)(forces))),
    ("net force", crystals, each(ALL, "forces", lambda forces: forces + 0.1)),
    ("all forces are zero", molecules, each(SOME, "forces", torch.zeros_like)),
    ("forces are zero on part of the atoms", crystals, each(slice(1, None, 2), "forces", put(0.0, slice(0, 8)))),
    ("gradients instead of forces", molecules, each(ALL, "forces", torch.neg)),
    ("gradients instead of forces", crystals, each(ALL, "forces", torch.neg)),
    ("gradients instead of forces", molecules, each(SOME, "forces", torch.neg)),
    ("mixed force units", molecules, each(SOME, "forces", lambda forces: forces / HARTREE * BOHR)),
    ("forces in another unit", molecules, every(
        each(ALL, "forces", lambda forces: forces * KCAL), each(ALL, "energy", lambda energy: energy * KCAL))),
    ("forces in another unit", molecules, each(ALL, "forces", lambda forces: forces / HARTREE * BOHR)),
    ("energies and forces contradict", molecules, each(ALL, "energy", lambda energy: energy / HARTREE)),
    ("energies and forces contradict", molecules, each(ALL, "forces", lambda forces: forces / BOHR)),
    ("energies do not follow forces", molecules, shuffled),
    ("energies in mixed units", molecules, each(SOME, "energy", lambda energy: energy / HARTREE)),
    ("energies in mixed units", crystals, each(SOME, "energy", lambda energy: energy * KCAL)),
    ("energies in mixed units", molecules, each(ONE, "energy", torch.neg)),
    ("energy outliers", molecules, each(ONE, "energy", lambda energy: energy + 12)),
    ("positive energies", crystals, each(ALL, "energy", torch.neg)),
    ("energies too low for eV", molecules, each(ALL, "energy", lambda energy: energy * KCAL)),
    ("constant energies", crystals, each(ALL, "energy", lambda energy: energy * 0 - 3)),
    ("energies of exactly zero", molecules, each(SOME, "energy", torch.zeros_like)),
    ("energy outliers", crystals, each(ONE, "energy", lambda energy: energy + 5)),
    ("energies in mixed units", molecules, each(slice(0, None, 4), "energy", lambda energy: energy / HARTREE)),
    ("energies in mixed units", molecules, each(slice(0, 40), "energy", lambda energy: energy / HARTREE)),
    ("rare elements", lambda: crystals(20), each(ONE, "z", put(28, 0))),
    ("positions in bohr", crystals, each(ALL, "pos", lambda pos: pos / BOHR)),
    ("implausible stress", crystals, each(ONE, "stress", lambda stress: stress * GPA * 10)),
    ("energies per atom", molecules, lambda all_: [put_energy_per_atom(one) for one in all_]),
    ("implausible stress", crystals, each(ALL, "stress", lambda stress: stress * GPA * 10)),
    ("stress in another unit", crystals, each(ALL, "stress", lambda stress: stress * GPA)),
    ("stress in another unit", crystals, each(ALL, "stress", lambda stress: stress / GPA)),
    ("stress of the wrong sign", crystals, each(ALL, "stress", torch.neg)),
    ("stress without periodicity", crystals, without(ALL, "cell", "pbc")),
    ("asymmetric stress", crystals, flat),
    ("duplicates", molecules, copied(lambda copy: copy)),
    ("duplicates with different labels", molecules, copied(other_energy)),
    ("missing labels", molecules, without(SOME, "energy")),
    ("missing labels", crystals, without(ONE, "stress")),
    ("labels that are not finite", molecules, each(ONE, "energy", put(np.nan, 0))),
    ("labels that are not finite", molecules, each(ONE, "forces", put(np.inf, 2))),
    ("labels of another shape", molecules, lambda all_: [charged(one, k % 10 == 0) for k, one in enumerate(all_)]),
    ("energies, forces or stress of a wrong size", molecules, each(ONE, "forces", lambda forces: forces[:2])),
    ("structures that cannot be read", molecules, without(ONE, "pos")),
    ("no atoms", molecules, every(*(each(ONE, name, lambda one: one[:0]) for name in ("z", "pos", "forces")))),
]  # fmt: skip


def put_energy_per_atom(one):
    one.energy = one.energy / one.num_nodes
    return one


def charged(one, whole):
    one.charge = torch.zeros(1 if whole else one.num_nodes)
    return one


@pytest.mark.parametrize(("what", "clean", "plant"), PLANTED, ids=[f"{k}-{one[0]}" for k, one in enumerate(PLANTED)])
def test_a_planted_fault_is_found_by_name(what, clean, plant):
    structures = plant(clean())
    found = {one.what: one for one in examine(structures, show=False)}
    assert what in found, [str(one) for one in found.values()]
    assert 0 < found[what].count <= len(structures) + 1
    assert 0 <= found[what].where < len(structures)
    assert found[what].remedy.endswith(".")


def test_every_fault_is_planted():
    assert {what for what, _, _ in PLANTED} == {*_FAULTS.index}


def shared(name):
    folder = os.environ.get("POPGEO_SHARED_DATA")
    if folder is None:
        pytest.skip("POPGEO_SHARED_DATA is not set")
    return dict(np.load(Path(folder) / name))


def trajectory(name):
    d = shared(f"md/{name}.npz")
    rows = zip(*(torch.tensor(d[name]) for name in ("pos", "energy", "forces")), strict=True)
    return [Data(z=torch.tensor(d["z"]).long(), pos=p, energy=e[None], forces=f) for p, e, f in rows]


def water_clusters():
    d = shared("hydronet/water_w3_w8.npz")
    sizes = d["num_atoms"].tolist()
    rows = zip(*(torch.tensor(d[name]).split(sizes) for name in ("z", "pos")), d["energy"], strict=True)
    return [Data(z=z.long(), pos=pos, energy=torch.tensor([energy])) for z, pos, energy in rows]


def bundled():
    return [Data(z=one.z, pos=one.pos, energy=one.y[:, 4]) for one in Molecules()[:3000]]


CLEAN = {"molecules": molecules, "crystals": crystals, "bundled": bundled, "hydronet": water_clusters}
CLEAN |= {name: lambda name=name: trajectory(name) for name in ("ethanol_train", "ethanol_test", "3bpa_train_300K")}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_structures_have_no_fault(name):
    assert examine(CLEAN[name](), show=False) == []


def test_the_command_examines_a_store(tmp_path, capsys):
    write(each(ONE, "forces", lambda forces: forces * 100)(molecules()), tmp_path / "store")
    assert main(["info", str(tmp_path / "store")]) == 0
    shown = capsys.readouterr().out
    assert "80 graphs" in shown
    assert "large forces: 1 (structure 7" in shown
    write(molecules(), tmp_path / "clean")
    assert main(["info", str(tmp_path / "clean")]) == 0
    assert "no fault was found" in capsys.readouterr().out


def test_the_command_leaves_stores_alone_that_hold_no_atoms(tmp_path, capsys):
    write([Data(z=torch.tensor([1, 2]), pos=torch.rand(2, 2)) for _ in range(4)], tmp_path / "flat")
    assert main(["info", str(tmp_path / "flat")]) == 0
    assert "fault" not in capsys.readouterr().out


def test_the_command_examines_files_and_names_what_cannot_be_read(tmp_path, capsys):
    ase = pytest.importorskip("ase")
    from ase.io import write as save

    frames = [ase.Atoms(one.z.numpy(), one.pos.numpy(), info={"dft_energy": one.energy.item()}) for one in molecules()]
    for one, forces in zip(frames, molecules(), strict=True):
        one.arrays["dft_forces"] = -forces.forces.numpy()
    (tmp_path / "all").mkdir()
    save(tmp_path / "all" / "water.xyz", frames, format="extxyz")
    (tmp_path / "all" / "torn.xyz").write_text("3\nno atoms\n")
    assert main(["info", str(tmp_path / "all")]) == 0
    shown = capsys.readouterr().out
    assert "81 structures" in shown
    assert "gradients instead of forces: " in shown
    assert "structures that cannot be read: 1 (structure 0: " in shown
    assert main(["info", str(tmp_path / "all" / "water.xyz"), "--key", "forces="]) == 0
    assert "no fault was found" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "all" / "torn.xyz")]) == 2
    assert "torn.xyz" in capsys.readouterr().err


def test_constraints_and_cutoffs_are_respected():
    ase = pytest.importorskip("ase")
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.constraints import FixAtoms

    made = []
    for one in crystals():
        atoms = ase.Atoms(one.z.numpy(), one.pos.numpy(), cell=one.cell[0].numpy(), pbc=True)
        forces = np.where(np.arange(32)[:, None] < 8, 0, one.forces.numpy())
        atoms.set_constraint(FixAtoms(range(8)))
        atoms.calc = SinglePointCalculator(atoms, energy=one.energy.item(), forces=forces, stress=np.zeros(6))
        made.append(atoms)
    assert "forces are zero on part of the atoms" in {one.what for one in examine(made)}
    assert [one.what for one in examine(crystals(), cutoff=5.0)] == ["thin cells"]


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="None of 0 structures can be read"):
        examine([])
